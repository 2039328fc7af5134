"""Right answers pass at every seed, wrong ones at none, and nobody comes near a tolerance."""

import itertools
from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache

import pytest

from answers import EVERY, RIGHT, WRONG, spec_named
from tested_transformer.specs.compare import shares
from tested_transformer.specs.judge import judge

# They call a package whose shapes other tests check; a check at each call would double the time.
pytestmark = pytest.mark.plain_types

SEEDS = range(5)  # of which each Spec takes two here; `make judge-soak` takes 500
ENOUGH = 0.5  # of a tolerance, for a right answer


def of_specs(answers, others):
    """A test for each Spec that has such answers; the two tests of one Spec run one after the other.

    In one process as well (`sharing.py`): what the reference answers to a Spec's cases is remembered.
    """
    named, also = ({answer.spec for answer in some} for some in (answers, others))
    names = [*sorted(named & also), *sorted(named - also)]  # pytest goes by the place in the list
    return pytest.mark.parametrize("name", names, scope="module")


def by_spec(answers):
    """Name of a Spec -> its answers."""
    found = defaultdict(list)
    for answer in answers:
        found[answer.spec].append(answer)
    return found


@cache  # one object, whose cases are drawn once
def without_mutants(name):
    """Which mistake an answer looks like is asked elsewhere."""
    return replace(spec_named(name), mutants=())


def turns(names, answers):
    """Name -> seed -> the answers judged at it: half at seed 0, where the wrong ones are, half at another.

    What the reference answers is worked out for each seed, so that two cost much less than five.
    """
    others = dict(zip(names, itertools.cycle(SEEDS[1:])))
    return {
        name: {0: answers[name][::2], others[name]: answers[name][1::2] or answers[name]}
        for name in names
    }


TURNS = turns(sorted({a.spec for a in RIGHT}), by_spec(RIGHT))


def test_every_answer_has_its_turn_and_every_seed_an_answer():
    judged = [(seed, answer) for spec in TURNS.values() for seed in spec for answer in spec[seed]]
    assert {seed for seed, _ in judged} == set(SEEDS)
    assert {id(answer) for _, answer in judged} == {id(answer) for answer in RIGHT}
    assert all(len(spec) == 2 and all(spec.values()) for spec in TURNS.values())


@of_specs(RIGHT, WRONG)
def test_right_answers_pass_at_every_seed(name):
    """Each Spec at two seeds, which its answers share: all at five hundred takes `make judge-soak`."""
    for seed, answers in TURNS[name].items():
        for answer in answers:
            with shares() as used:
                verdict = judge(without_mutants(name), answer.candidate, seed=seed)
            assert verdict.passed, f"{answer.name}, seed {seed}: {verdict}"
            assert max(used, default=0.0) < ENOUGH, f"{answer.name}, seed {seed}"


@of_specs(WRONG, RIGHT)
def test_wrong_answers_are_rejected(name):
    spec = without_mutants(name)
    verdicts = {a.name: judge(spec, a.candidate) for a in WRONG if a.spec == name}
    assert [name for name, verdict in verdicts.items() if verdict.passed] == []
    assert [name for name, verdict in verdicts.items() if verdict.unwritten] == []


def test_an_answer_has_a_spec_and_a_name_of_its_own():
    for answers in (RIGHT, WRONG):
        assert {answer.spec for answer in answers} <= set(EVERY)
        names = Counter(f"{answer.spec}: {answer.name}" for answer in answers)
        assert [name for name, count in names.items() if count > 1] == []
