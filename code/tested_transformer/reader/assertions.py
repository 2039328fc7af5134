"""The judge and the contract for somebody's own code, in pytest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import argument_error
from ..exercises import EXERCISES
from ..specs import SPECS
from ..specs.contract import PROPERTIES, Report, contract
from ..specs.judge import judge
from ..specs.spec import Spec

__all__ = ["assert_contract", "assert_meets"]

EVERY_SPEC = {**SPECS, **EXERCISES}


def assert_meets(spec: str, candidate: Any, *, seed: int = 0) -> None:
    """Raise AssertionError with the verdict unless the candidate is what the Spec asks for: for pytest.

    Raises: ValueError for an unknown Spec.
    """
    verdict = judge(spec_named(spec), candidate, seed=seed)
    assert verdict.passed, f"\n{verdict}"


def assert_contract(
    model: Any, *, only: Sequence[str] = (), vocab_size: int | None = None, seed: int = 0
) -> Report:
    """Raise AssertionError with the report unless the model keeps the contract: for pytest.

    Raises: TypeError or ValueError that name the argument.
    """
    report = contract(model, only=known(only), vocab_size=vocab_size, seed=seed)
    assert report, f"\n{report}"
    return report


def spec_named(name: str) -> Spec:
    """The Spec of that name, of the package or of an exercise.

    Raises: ValueError that lists them.
    """
    if name not in EVERY_SPEC:
        raise argument_error(ValueError, "spec", repr(name), f"one of {', '.join(EVERY_SPEC)}")
    return EVERY_SPEC[name]


def known(names: Sequence[str]) -> Sequence[str]:
    """The names, each of a property.

    Raises: ValueError that lists them.
    """
    every = [each.name for each in PROPERTIES]
    for name in names:
        if name not in every:
            raise argument_error(ValueError, "only", repr(name), f"one of {', '.join(every)}")
    return names
