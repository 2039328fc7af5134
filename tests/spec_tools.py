"""What every Spec must be held to, whoever wrote it."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tested_transformer.specs.judge import drawn, judge, same_outcome
from tested_transformer.specs.mistakes import Mutant
from tested_transformer.specs.spec import EQUAL, Case, Spec

GALLERY_ONLY = "gallery only"


def assert_spec_is_sound(spec: Spec) -> None:
    """Checks concern some case, are named once, and the mutants are rejected, named and distinct."""
    cases = spec.draw(0)
    assert len(cases) >= 3, f"{spec.name}: {len(cases)} cases"
    names = [check.name for check in spec.checks]
    assert len(names) == len(set(names)), f"{spec.name}: a check is named twice"
    last = spec.checks[-1]
    assert (last.name, last.test) == (EQUAL.name, EQUAL.test), f"{spec.name}: EQUAL must come last"
    assert spec.slack is None or spec.slack.__doc__, f"{spec.name}: why is there slack?"
    for check in spec.checks:
        assert any(check.concerns(case) for case in cases), f"{spec.name}: {check.name}: no case"
    for mutant in spec.mutants:
        if mutant.candidate is not None:
            assert_mutant_is_rejected(spec, mutant)
    assert_mutants_differ(spec)
    assert_baseline_differs_by_rounding(spec)


def assert_baseline_differs_by_rounding(spec: Spec) -> None:
    """Else a wrong reference, or a baseline that means something else, would widen its own tolerance.

    Each of the baseline's operations rounds its result. In a formula that is worth calling a baseline, that
    does what other rounding of the inputs, or of the answer, would do: it adds an eps of the answer
    and what an eps of the inputs does to it, which is much where most of the numbers cancel.
    """
    for seed in range(3):
        for case in spec.draw(seed):
            expected = spec.expected(case)
            if spec.baseline is None or expected.dtype.kind not in "fc":
                continue
            once = _rounding(spec, case, expected)
            error, bound = spec.error(case, expected), _operations(spec, case) * once
            where = f"{spec.name}: {case.label}, seed {seed}"
            assert error <= bound, (
                f"{where}: baseline - reference {error:.1e}, rounding {bound:.1e}"
            )


def _rounding(spec: Spec, case: Case, expected: np.ndarray) -> float:
    """eps x the largest answer + the largest change of the reference when eps changes each input.

    An answer that an eps changes by a tenth has jumped (a place was rounded): a baseline has to be on the
    same side as the reference, and nothing is allowed for.
    """
    eps, finite = torch.finfo(case.dtype).eps, np.isfinite(expected)
    largest = float(np.max(np.abs(expected), initial=0.0, where=finite))
    rng, moved = np.random.default_rng(0), 0.0
    for _ in range(4):
        other = np.asarray(spec.reference(**_nudged(case.arrays(), eps, rng)))
        with np.errstate(invalid="ignore"):  # inf - inf, which does not count
            far = np.abs(other - expected)
        moved = max(moved, float(np.max(far, initial=0.0, where=finite)))
    return eps * largest + (moved if moved < 0.1 * largest else 0.0)


def _nudged(arguments: dict, eps: float, rng: np.random.Generator) -> dict:
    """Every number of the arrays a little larger or smaller: by eps of itself."""
    return {
        name: a * (1 + eps * rng.choice([-1, 1], size=a.shape).astype(a.dtype))
        if isinstance(a, np.ndarray) and a.dtype.kind == "f"
        else a
        for name, a in arguments.items()
    }


class _Counter(TorchDispatchMode):
    """Counts the operations that torch carries out."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def _operations(spec: Spec, case: Case) -> int:
    """How many tensor operations the baseline takes, and 1 for Python's own arithmetic."""
    arguments = case.tensors()
    with _Counter() as counter:
        spec.baseline(**arguments)
    return 1 + counter.count


def assert_mutant_is_rejected(spec: Spec, mutant: Mutant) -> None:
    """The mutant fails by the check (or exception) that it names, and the diagnosis names it."""
    verdict = judge(spec, _twin(mutant.candidate))
    assert not verdict.passed, f"{spec.name}: {mutant.name} passes"
    found = type(verdict.error).__name__ if mutant.rejected_by.endswith("Error") else verdict.failed
    assert found == mutant.rejected_by, f"{spec.name}: {mutant.name}: rejected by {found!r}"
    assert verdict.mistake is not None, f"{spec.name}: {mutant.name} is not recognized"
    assert verdict.mistake.name == mutant.name, f"{mutant.name} taken for {verdict.mistake.name}"


def _twin(candidate):
    """The same mistake in another object: the diagnosis skips a mutant that is itself on trial."""
    if isinstance(candidate, type):
        return type(candidate.__name__, (candidate,), {})
    if not hasattr(candidate, "__code__"):
        return copy.copy(candidate)
    twin = type(candidate)(
        candidate.__code__, candidate.__globals__, candidate.__name__,
        candidate.__defaults__, candidate.__closure__,
    )  # fmt: skip
    twin.__kwdefaults__ = candidate.__kwdefaults__
    return twin


def assert_mutants_differ(spec: Spec) -> None:
    """No two mutants behave alike on the Spec's cases: each name means one mistake."""
    cases, runs = drawn(spec, 0)
    for (mutant, run), (other_mutant, other) in itertools.combinations(runs, 2):
        alike = all(same_outcome(run, c, run.outcome(c), other.outcome(c)) for c in cases)
        assert not alike, f"{mutant.name} and {other_mutant.name} do the same on every case"
