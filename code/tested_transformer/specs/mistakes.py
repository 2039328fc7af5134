"""A famous mistake: the wrong code, and above it, said once, what there is to know about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

__all__ = ["Mutant", "mistake", "mistakes", "mistakes_in"]

GALLERY_ONLY = "gallery only"  # rejected by no judge: such a mistake has no candidate
MADE_HERE = "made for this book"  # seen nowhere, and needed: the checks must tell it apart
Wrong = TypeVar("Wrong")


@dataclass(frozen=True)
class Mutant:
    """A famous mistake: a wrong implementation, and what there is to know about it.

    `rejected_by` names the first check that must reject it, or the exception that it raises. A
    mistake that no judge can see (a test without an assertion) has no candidate. `of` is the Spec that it
    belongs to, where a module has mistakes of several; `chapter` is that of the Spec unless it says so.
    """

    name: str
    candidate: Any
    rejected_by: str
    cause: str
    symptom: str = ""
    seen: str = MADE_HERE
    chapter: int = 0
    of: str = ""


class Formula:
    """A right formula, cut into steps: a mistake is a subclass that replaces one of them.

    It is called without being made first: the candidate of such a mistake is an object of the class.
    """


def mistake(name: str, **record: Any) -> Callable[[Wrong], Wrong]:
    """Say of the wrong function or class below which famous mistake it is; see `Mutant` for the rest.

    >>> @mistake("no softmax", rejected_by="weights sum to 1", cause="The scores are the weights.")
    ... def no_softmax(scores):
    ...     return scores
    >>> no_softmax.mistake.cause
    'The scores are the weights.'
    """

    def record_on(wrong: Wrong) -> Wrong:
        is_formula = isinstance(wrong, type) and issubclass(wrong, Formula)
        wrong.mistake = Mutant(name, wrong() if is_formula else wrong, **record)
        return wrong

    return record_on


def mistakes(*wrong: Any) -> tuple[Mutant, ...]:
    """What `@mistake` said of each; a Mutant stands for itself."""
    return tuple(each if isinstance(each, Mutant) else vars(each)["mistake"] for each in wrong)


def mistakes_in(module: ModuleType, of: str = "") -> tuple[Mutant, ...]:
    """The mistakes of one Spec that a module defines, in its order."""
    marked = (
        each for each in vars(module).values() if isinstance(each, Mutant) or _is_marked(each)
    )
    return tuple(mutant for mutant in mistakes(*marked) if mutant.of == of)


def _is_marked(thing: Any) -> bool:
    """Whether `@mistake` stands above it, and not above a class that it inherits from."""
    return "mistake" in getattr(thing, "__dict__", ())
