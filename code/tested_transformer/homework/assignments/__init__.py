"""The assignments of the course, each in a module of its own."""

import importlib
import pkgutil

from ..tasks import Assignment, Hunt, Task

ASSIGNMENTS: dict[str, Assignment] = {
    name: importlib.import_module(f"{__name__}.{name}").ASSIGNMENT
    for name in sorted(module.name for module in pkgutil.iter_modules(__path__))
}
PARTS: dict[str, Task | Hunt] = {
    part.name: part for assignment in ASSIGNMENTS.values() for part in assignment.coded
}
