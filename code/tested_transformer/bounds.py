"""What an annotation says of a plain value: its type, and bounds such as `PositiveInt` in a signature.

`shapes.checked` reads them. A bound stands in an Annotated, several are joined by "and":

    PositiveInt, NonNegativeInt, PositiveFloat, Probability
    Annotated[float, Above(0), AtMost(1)]
    Annotated[int, Divides("d_model")]                  # the limit is another argument
    Annotated[Int[Tensor, "B L"], AtLeast(0), Below("self.config.vocab")]   # all of its values
    Annotated[Int[Tensor, "B L"], Below("V")]           # the size of an axis of a tensor before it
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable
from numbers import Real
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import torch

from .errors import argument_error


class Bound:
    """What a value must fulfill besides its type; a limit of None bounds nothing."""

    words: str
    holds: Callable[[Any, Any], bool]  # of the value and the limit
    error: type[Exception] = ValueError

    def __init__(self, limit: Any) -> None:
        self.limit = limit

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.limit!r})"

    def expected(self, limit: Any) -> str:
        """The bound in words: at least 1, at most num_keys = 3."""
        return self.words.format(limit if limit is self.limit else f"{self.limit} = {limit}")


class AtLeast(Bound):
    """The limit or more."""

    words, holds = "at least {}", operator.ge


class AtMost(Bound):
    """The limit or less."""

    words, holds = "at most {}", operator.le


class Above(Bound):
    """More than the limit."""

    words, holds = "a number above {}", operator.gt


class Below(Bound):
    """Less than the limit."""

    words, holds = "a number below {}", operator.lt


class Divides(Bound):
    """A divisor of the limit."""

    words = "a number that divides {}"
    holds = staticmethod(lambda value, number: value > 0 and number % value == 0)


class Where(Bound):
    """Any other rule: `Where("an even number", lambda n: n % 2 == 0)`."""

    def __init__(self, words: str, holds: Callable, error: type[Exception] = ValueError) -> None:
        super().__init__(())
        self.words, self.holds, self.error = words, lambda value, _: holds(value), error


class OneOf(Where):
    """One of some names that a Literal cannot list: `Annotated[str, OneOf(ACTIVATIONS)]`."""

    def __init__(self, known: Iterable[Any]) -> None:
        super().__init__(one_of(known), known.__contains__)


Text = Annotated[str, Where("at least one character", bool)]
Int64 = Annotated[int, AtLeast(-(2**63)), Below(2**63)]
TokenID = Annotated[int, AtLeast(0), Below(2**63)]
PositiveInt = Annotated[int, AtLeast(1)]
NonNegativeInt = Annotated[int, AtLeast(0)]
Seed = Annotated[int, AtLeast(0), Below(2**32)]
NonNegativeFloat = Annotated[float, AtLeast(0)]
PositiveFloat = Annotated[float, Above(0)]
Probability = Annotated[float, Where("a probability in [0, 1)", lambda p: 0 <= p < 1)]


def is_device(value: Any) -> bool:
    """Whether a tensor can be made there."""
    try:
        return torch.empty(0, device=value) is not None
    except (RuntimeError, AssertionError, ValueError):  # AssertionError: PyTorch without CUDA
        return False


Device = Annotated[torch.device | str, Where('a device of this machine, such as "cpu"', is_device)]


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can encode a string: lone surrogates are no characters."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


Unicode = Annotated[str, Where("text without lone surrogates", is_unicode)]


# --- Types ----------------------------------------------------------------------------------------


class Option(NamedTuple):
    """One type that an argument may have: in words, as a test, and what is checked after it."""

    words: str
    accepts: Callable[[Any], bool]
    check: Callable[..., None] | None = None  # called with the argument's name, its value, the call
    turn: int = 0  # 0 plain values, 1 with a limit by name, 2 tensors, 3 those that broadcast
    changing: bool = False  # whether the check reads a tensor's values, or a limit by name


def plain_option(hint: Any) -> Option:
    """The option that the annotation of a plain value gives; an unknown one accepts anything."""
    if get_origin(hint) is Literal:
        return Option("", anything, functools.partial(check_choice, get_args(hint)))
    cls = get_origin(hint) or hint
    if cls in PLAIN:
        return PLAIN[cls]
    try:
        isinstance(None, cls)
    except TypeError:  # Any, a TypeVar, a protocol that cannot be asked
        return Option("", anything)
    return Option(name_of(cls), lambda value: isinstance(value, cls))


def anything(value: Any) -> bool:
    """Accept every value."""
    return True


def check_finite(name: str, value: Any, call: Any) -> None:
    """Raise ValueError for NaN and the infinities."""
    if not math.isfinite(value):
        raise argument_error(ValueError, name, value, "a finite number")


def check_choice(known: tuple, name: str, value: Any, call: Any) -> None:
    """Raise ValueError unless the value is one of a Literal's."""
    if not any(type(value) is type(one) and value == one for one in known):
        raise argument_error(ValueError, name, repr(value), one_of(known))


def check_known(argument: str, thing: Any, wanted: dict[str, tuple]) -> None:
    """Raise ValueError unless each of these attributes of an argument has one of the values."""
    for name, known in wanted.items():
        value = getattr(thing, name)
        if value not in known:
            raise argument_error(ValueError, f"{argument}.{name}", repr(value), one_of(known))


def one_of(known: Iterable[Any]) -> str:
    """Choices in words: "a" or "b"; one of "a", "b", "c"."""
    words = [f'"{one}"' if isinstance(one, str) else repr(one) for one in known]
    return f"one of {', '.join(words)}" if len(words) > 2 else " or ".join(words)


def name_of(cls: type) -> str:
    """A class in an error: a torch.device, an nn.Linear, a Path."""
    home = cls.__module__.partition(".")
    prefix = "" if home[0] != "torch" else "nn." if home[2].startswith("nn.") else "torch."
    name = prefix + cls.__name__
    return f"an {name}" if name[0] in "AEIOUn" else f"a {name}"


PLAIN = {
    bool: Option("True or False", lambda v: isinstance(v, bool)),
    int: Option("an int", lambda v: isinstance(v, (int, torch.SymInt)) and not isinstance(v, bool)),
    float: Option(
        "a number", lambda v: isinstance(v, Real) and not isinstance(v, bool), check_finite
    ),
    str: Option("a string", lambda v: isinstance(v, str)),
    type(None): Option("None", lambda value: value is None),
    Callable: Option("a function", callable),
}
