"""What every Spec must be held to, whoever wrote it."""

from __future__ import annotations

import copy
import itertools

from tested_transformer.specs.judge import drawn, judge, same_outcome
from tested_transformer.specs.mistakes import Mutant
from tested_transformer.specs.spec import AGAIN, EQUAL, GRADIENTS, Spec

GALLERY_ONLY = "gallery only"


def assert_spec_is_sound(spec: Spec) -> None:
    """Checks concern some case, are named once, and the mutants are rejected, named and distinct."""
    cases = spec.draw(0)
    assert len(cases) >= 3, f"{spec.name}: {len(cases)} cases"
    names = [check.name for check in spec.checks]
    assert len(names) == len(set(names)), f"{spec.name}: a check is named twice"
    last = [name for name in names if name not in (GRADIENTS.name, AGAIN.name)][-1]
    assert last == EQUAL.name, f"{spec.name}: after all properties comes {last}"
    assert spec.slack is None or spec.slack.__doc__, f"{spec.name}: why is there slack?"
    for check in spec.checks:
        assert any(check.concerns(case) for case in cases), f"{spec.name}: {check.name}: no case"
    for mutant in spec.mutants:
        if mutant.candidate is not None:
            assert_mutant_is_rejected(spec, mutant)
    assert_mutants_differ(spec)


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
