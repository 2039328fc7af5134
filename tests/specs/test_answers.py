"""Right answers pass at every seed, wrong ones at none, and nobody comes near a tolerance."""

from collections import Counter

import pytest

from answers import EVERY, RIGHT, WRONG, Answer, spec_named
from tested_transformer.specs.compare import shares
from tested_transformer.specs.judge import judge

# They call a package whose shapes other tests check; a check at each call would double the time.
pytestmark = pytest.mark.plain_types

SEEDS = range(5)  # `make judge-soak` takes 500
ENOUGH = 0.5  # of a tolerance, for a right answer


def named(answer: Answer) -> str:
    return f"{answer.spec}: {answer.name}"


@pytest.mark.parametrize("answer", RIGHT, ids=named)
def test_a_right_answer_passes_at_every_seed(answer):
    for seed in SEEDS:
        with shares() as used:
            verdict = judge(spec_named(answer.spec), answer.candidate, seed=seed)
        assert verdict.passed, f"seed {seed}: {verdict}"
        assert max(used, default=0.0) < ENOUGH, f"seed {seed}"


@pytest.mark.parametrize("answer", WRONG, ids=named)
def test_a_wrong_answer_is_rejected(answer):
    for seed in (0, 1):
        verdict = judge(spec_named(answer.spec), answer.candidate, seed=seed)
        assert not verdict.passed, f"seed {seed}: {answer.name}"
        assert not verdict.unwritten


def test_an_answer_has_a_spec_and_a_name_of_its_own():
    for answers in (RIGHT, WRONG):
        assert {answer.spec for answer in answers} <= set(EVERY)
        names = Counter(map(named, answers))
        assert [name for name, count in names.items() if count > 1] == []
