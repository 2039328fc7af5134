"""For each family of ideas one Spec: what is right, and the famous mistakes. `judge` decides."""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from ..errors import argument_error
from .case import Case
from .compare import Problem
from .judge import Verdict, judge
from .mistakes import Mutant, mistake, mistakes, mistakes_in
from .run import Run
from .spec import Check, Spec, specs_in


@cache
def _discovered() -> dict[str, Spec]:
    """The Specs of every folder here, in the order of the chapters."""
    families = [each.name for each in iter_modules(__path__) if each.ispkg]
    modules = [import_module(f"{__name__}.{family}.spec") for family in families]
    every = [spec for module in modules for spec in specs_in(module)]
    return {spec.name: spec for spec in sorted(every, key=lambda spec: spec.chapter)}


def __getattr__(name: str) -> Any:
    """SPECS, by name, when it is asked for: one Spec alone needs no module of another family."""
    if name != "SPECS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _discovered()


def pitfall(name: str) -> Mutant:
    """The famous mistake of that name, from whichever Spec holds it.

    Raises: ValueError if there is none.
    """
    every = {mutant.name: mutant for spec in _discovered().values() for mutant in spec.mutants}
    if name not in every:
        raise argument_error(ValueError, "name", repr(name), f"one of {', '.join(sorted(every))}")
    return every[name]


__all__ = [
    "SPECS",
    "Case",
    "Check",
    "Mutant",
    "Problem",
    "Run",
    "Spec",
    "Verdict",
    "judge",
    "mistake",
    "mistakes",
    "mistakes_in",
    "pitfall",
]
