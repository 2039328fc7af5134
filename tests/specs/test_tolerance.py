"""A tolerance is worked out when an answer comes near the part that is known, and is a number otherwise."""

import operator

import numpy as np
import pytest

from tested_transformer.specs.compare import compare, needed, shares, unchanged
from tested_transformer.specs.tolerance import Tolerance, grown

ZERO = np.zeros(3)


@pytest.fixture
def asked():
    """A tolerance of 4 of which 1 is known, and how often the rest was asked for."""
    times = []
    return Tolerance(1.0, lambda: times.append(None) or 4.0), times


@pytest.mark.parametrize("others", [np.array([0.0, 0.4, -0.4]), ZERO])
def test_who_is_near_needs_the_known_part_only(asked, others):
    tolerance, times = asked
    assert compare(ZERO, others, tolerance) is None
    assert unchanged(ZERO, others, 2 * tolerance + 1.0, "it is asked again") is None
    assert times == []


@pytest.mark.parametrize(("far", "right"), [(0.6, True), (1.5, True), (4.0, True), (4.1, False)])
def test_who_is_farther_off_is_held_to_the_whole(asked, far, right):
    tolerance, times = asked
    assert (compare(ZERO, ZERO + far, tolerance) is None) == right
    assert (unchanged(ZERO, ZERO - far, tolerance, "it is asked again") is None) == right
    assert len(times) == 1  # for both


def test_nan_is_never_near(asked):
    tolerance, times = asked
    assert compare(ZERO, ZERO * np.nan, tolerance) is not None
    assert times


def test_shares_are_of_the_whole_where_they_must_be_exact(asked):
    tolerance, _ = asked
    with shares(exactly=True) as used:
        compare(ZERO, ZERO + 0.4, tolerance)
    assert used == [0.1]
    with shares() as used:
        compare(ZERO, ZERO + 0.4, tolerance)
        compare(ZERO, ZERO + 2.0, tolerance)
    assert used == [0.4, 0.5]


SUMS = {
    "twice": (lambda t: 2 * t, 2.0, 8.0),
    "times an array's number": (lambda t: np.float64(3) * t, 3.0, 12.0),
    "a number more": (lambda t: 0.5 + t, 1.5, 4.5),
    "two of them": (lambda t: t + t * 2, 3.0, 12.0),
    "a sum": (lambda t: sum([t, t]), 2.0, 8.0),
    "what grows with it": (lambda t: grown(t, lambda number: number / (5 - number)), 0.25, 4.0),
}


@pytest.mark.parametrize(("made", "least", "whole"), SUMS.values(), ids=SUMS)
def test_sums_and_multiples_wait_too(asked, made, least, whole):
    found = made(asked[0])
    assert isinstance(found, Tolerance)
    assert found.least == least
    assert asked[1] == []
    assert float(found) == whole


ARRAY = np.array([1.0, 4.0, 9.0])


@pytest.mark.parametrize("other", [0.5, 4, 9.0, np.float64(4.0), ARRAY])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "lt", "le", "gt", "ge", "eq"])
def test_it_is_a_number_to_everything_else(asked, name, other):
    act = getattr(operator, name)
    for found, wanted in (
        (act(asked[0], other), act(4.0, other)),
        (act(other, asked[0]), act(other, 4.0)),
        (act(asked[0], asked[0]), act(4.0, 4.0)),
    ):
        found = float(found) if isinstance(found, Tolerance) else found
        np.testing.assert_array_equal(found, wanted)


def test_it_is_a_number_to_the_rest_of_python(asked):
    tolerance, _ = asked
    assert (-tolerance, tolerance**2, f"{tolerance:.1e}", repr(tolerance)) == (
        -4.0, 16.0, "4.0e+00", "4.0",
    )  # fmt: skip
    assert max(tolerance, 3.0) is tolerance
    assert tolerance
    assert not Tolerance(0.0, lambda: 0.0)
    assert float(np.max(ARRAY, initial=float(tolerance))) == 9.0


def test_needed_takes_a_number_as_it_is():
    assert needed(ZERO, ZERO, 0.25) == 0.25
    assert grown(0.25, lambda number: 2 * number) == 0.5
