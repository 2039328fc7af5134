"""Stand in for packages that a GPU machine may lack, so that the attention of this package imports.

Such a machine has torch, Triton, NumPy and pytest. The package also imports jaxtyping (for its
signatures), matplotlib, tokenizers, safetensors and tqdm (which attention never calls): in place of
each that is missing comes a module whose every name is a harmless class.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types

ABSENT = ("jaxtyping", "matplotlib", "tokenizers", "safetensors", "tqdm")


class Anything(type):
    """A class of which every attribute, item and call is the class again."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __getitem__(cls, item):
        return cls

    def __call__(cls, *_, **__):
        """Whatever it is called with."""
        return cls

    def __or__(cls, other):
        return cls

    __ror__ = __or__


class Harmless(metaclass=Anything):
    """What a missing package's names stand for."""


class StandIn(types.ModuleType):
    """A module that has every name."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Harmless


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives a stand-in for a missing package and everything in it."""

    def __init__(self, missing):
        self.missing = missing

    def find_spec(self, name, path=None, target=None):
        """Claim what is missing."""
        if name.split(".")[0] in self.missing:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        """Make the stand-in."""
        return StandIn(spec.name)

    def exec_module(self, module):
        """It has nothing to run."""


def stand_in(names=ABSENT):
    """Let the packages named that are not installed be imported all the same; return which."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        sys.meta_path.insert(0, Finder(missing))
    return missing
