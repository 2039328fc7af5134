"""The public names of the package, discovered: what a module lists in `__all__` and defines itself."""

from __future__ import annotations

import functools
from importlib import import_module
from pkgutil import walk_packages

import tested_transformer

# The folders in the order of the API page. What is in none of them comes last.
ORDER = (
    "functional positions mixers layers models data training distributed generation analysis "
    "experiments specs exercises reader homework"
).split()

# The first two run when they are imported; the others need Triton, which `make book` does not install.
NOT_IMPORTED = ("__main__", ".worker", ".flash_kernels", ".flash_small")


@functools.cache
def public_names() -> dict[str, list[str]]:
    """Each module with the names that it makes public, in the order of the API page.

    A package that only passes names on, such as `reference`, is not listed.
    """
    root = tested_transformer.__name__
    modules = [
        each.name
        for each in walk_packages(tested_transformer.__path__, f"{root}.")
        if not each.name.endswith(NOT_IMPORTED)
    ]
    found = {}
    for name in sorted(modules, key=_place):
        module = import_module(name)
        own = [each for each in getattr(module, "__all__", ()) if _defines(module, each)]
        if own:
            found[name] = own
    return found


def folder_of(name: str) -> str:
    """The folder of the package in which a module or public name stands, or its own module where in none."""
    return name.split(".")[1]


def _place(name: str) -> tuple[int, str]:
    folder = folder_of(name)
    return (ORDER.index(folder) if folder in ORDER else len(ORDER)), name


def _defines(module, name: str) -> bool:
    return getattr(getattr(module, name), "__module__", module.__name__) == module.__name__
