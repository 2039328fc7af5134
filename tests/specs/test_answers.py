"""Right answers pass at every seed, wrong ones at none, and nobody comes near a tolerance."""

from collections import Counter
from dataclasses import replace

import pytest

from answers import EVERY, RIGHT, WRONG, spec_named
from tested_transformer.specs.compare import shares
from tested_transformer.specs.judge import judge

# They call a package whose shapes other tests check; a check at each call would double the time.
pytestmark = pytest.mark.plain_types

SEEDS = (0, 1)  # `make judge-soak` takes 500
ENOUGH = 0.5  # of a tolerance, for a right answer


def of_specs(answers):
    """The names of their Specs: one test each, since the reference's answers are computed once."""
    return sorted({answer.spec for answer in answers})


@pytest.mark.parametrize("name", of_specs(RIGHT))
def test_right_answers_pass_at_every_seed(name):
    for seed in SEEDS:
        for answer in RIGHT:
            if answer.spec == name:
                with shares() as used:
                    verdict = judge(spec_named(name), answer.candidate, seed=seed)
                assert verdict.passed, f"{answer.name}, seed {seed}: {verdict}"
                assert max(used, default=0.0) < ENOUGH, f"{answer.name}, seed {seed}"


@pytest.mark.parametrize("name", of_specs(WRONG))
def test_wrong_answers_are_rejected(name):
    spec = replace(spec_named(name), mutants=())  # which mistake it looks like is asked elsewhere
    verdicts = {a.name: judge(spec, a.candidate) for a in WRONG if a.spec == name}
    assert [name for name, verdict in verdicts.items() if verdict.passed] == []
    assert [name for name, verdict in verdicts.items() if verdict.unwritten] == []


def test_an_answer_has_a_spec_and_a_name_of_its_own():
    for answers in (RIGHT, WRONG):
        assert {answer.spec for answer in answers} <= set(EVERY)
        names = Counter(f"{answer.spec}: {answer.name}" for answer in answers)
        assert [name for name, count in names.items() if count > 1] == []
