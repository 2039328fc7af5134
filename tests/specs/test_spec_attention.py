"""The Spec of attention: every implementation passes, every mutant is rejected and recognized."""

from dataclasses import replace
from functools import partial

import pytest

from tested_transformer import attention
from tested_transformer.functional.backends import BACKENDS
from tested_transformer.specs import judge
from tested_transformer.specs.attention.mutants import AttentionFormula
from tested_transformer.specs.attention.spec import ATTENTION, textbook

# Which checks do not apply, and why: an implementation that stops serving a call shows up here.
SKIPPED = {"auto": {}, "plain": {}, "tiled": {}, "fused": {}}


def test_every_backend_is_judged():
    assert {*SKIPPED} == {"auto", *BACKENDS} - {"flash"}  # tests/gpu has flash


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("backend", SKIPPED)
def test_every_backend_passes(backend, seed):
    verdict = judge(ATTENTION, partial(attention, backend=backend), seed=seed)
    assert verdict.passed, verdict
    assert dict(verdict.skipped) == SKIPPED[backend]
    assert verdict.num_cases == len(ATTENTION.draw(seed))


@pytest.mark.parametrize(
    "right", [textbook, AttentionFormula()], ids=["the baseline", "the mutants' base"]
)
def test_what_the_judge_itself_leans_on(right):
    # The baseline has NaN gradients at fully masked rows, so only its numbers are judged.
    checks = [check for check in ATTENTION.checks if "gradient" not in check.name]
    verdict = judge(replace(ATTENTION, checks=checks), right)
    assert verdict.passed, verdict
