"""The simulated day: nothing is lost, memory is never exceeded, and pages waste less than a page each."""

import numpy as np
import pytest

from tested_transformer.experiments.ch16_serving import (
    BLOCK,
    MAX_LENGTH,
    MEMORY,
    POLICIES,
    Day,
    serve,
    simulated_day,
)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_evening(policy):
    day = simulated_day(0, hours=1)
    served = serve(day, policy)
    assert (served.reserved <= MEMORY).all()
    assert (served.held <= served.reserved).all()
    arrived = np.searchsorted(day.arrival, np.arange(len(served.running)), side="right")
    gone = (
        arrived - served.running - served.waiting
    )  # those that are done, before the step's tokens
    assert (np.diff(gone) >= 0).all()
    assert gone[-1] <= served.num_done <= gone[-1] + served.running[-1]
    again = serve(simulated_day(0, hours=1), policy)
    assert np.array_equal(again.held, served.held)


def test_the_waste_of_each_policy():
    shares = {}
    for policy in POLICIES:
        served = serve(simulated_day(1, hours=1), policy)
        shares[policy] = served.share
        wasted = served.reserved - served.held
        if policy == "blocks of 16":
            assert (wasted <= (BLOCK - 1) * served.running).all()
        if policy == "power of two":
            assert (wasted < served.held + BLOCK * served.running).all()
    assert (
        shares["maximum length"]
        < 0.3
        < 0.6
        < shares["power of two"]
        < 0.8
        < 0.97
        < shares["blocks of 16"]
    )


def test_two_requests_by_hand():
    """Room for 40 tokens: the first grows from 10 to 30, the second waits until it is gone."""
    day = Day(np.array([0, 0, 4]), np.array([10, 20, 1]), np.array([20, 1, 1]))
    served = serve(day, "blocks of 16", memory=40)
    assert served.running.tolist() == [1, 1, 0, 0, 1]
    assert served.held[0] == 10
    assert served.reserved[0] == 16
    assert served.num_done == 3


def test_lengths():
    day = simulated_day(0, hours=2)
    assert (day.prompt + day.output <= MAX_LENGTH).all()
    assert (day.prompt >= 1).all()
    assert (day.output >= 1).all()
    assert 150 < day.prompt.mean() < 170
    assert 310 < day.output.mean() < 340
