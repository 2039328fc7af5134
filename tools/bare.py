"""Stand in for jaxtyping, which a GPU machine may lack, so that the attention of this package imports.

Such a machine has torch, Triton, NumPy and pytest. Of all else the package needs jaxtyping alone to
be imported, for its signatures; without it these are read and not checked.
"""

import importlib.util
import sys
import types

NAMES = ("Bool", "Float", "Int", "Integer", "Num", "Shaped")


class Hint:
    """What each of jaxtyping's names stands for: an annotation that says nothing."""

    def __class_getitem__(cls, shape):
        """Any shape of any array."""
        return cls


def stand_in() -> bool:
    """Let jaxtyping be imported where it is not installed; say whether that was needed."""
    missing = importlib.util.find_spec("jaxtyping") is None
    if missing:
        sys.modules["jaxtyping"] = types.ModuleType("jaxtyping")
        vars(sys.modules["jaxtyping"]).update(dict.fromkeys(NAMES, Hint))
    return missing
