"""The assignments of the course: a module here with an ASSIGNMENT is one, and is read when it is asked for."""

import difflib
import importlib
import pkgutil

from ...errors import argument_error
from ..tasks import Assignment, Hunt, Task


def assignment_names() -> list[str]:
    """The names of all assignments, in the order of the course."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def assignment(name: str) -> Assignment:
    """The assignment of that name.

    Raises: ValueError if there is none.
    """
    if name not in assignment_names():
        expected = f"one of {', '.join(assignment_names())}"
        raise argument_error(ValueError, "assignment", repr(name), expected)
    return importlib.import_module(f"{__name__}.{name}").ASSIGNMENT


def part(name: str) -> Task | Hunt:
    """The code task or bug hunt of that name, such as "hw01.hunt".

    Raises: TypeError if `name` is no string; ValueError if nothing is called so.
    """
    if not isinstance(name, str):
        raise argument_error(TypeError, "name", type(name).__name__, "the name of a task")
    home, names = name.partition(".")[0], assignment_names()
    parts = {each.name: each for each in assignment(home).coded} if home in names else {}
    if name not in parts:
        known = list(parts) or [f"{each}.hunt" for each in names]
        near = difflib.get_close_matches(name, known, n=3) or known[:3]
        raise argument_error(ValueError, "name", repr(name), f"a task, such as {', '.join(near)}")
    return parts[name]
