"""Checks that a signature already states: `@checked` reads them off its annotations.

    @checked
    def attend(
        query: Float[Tensor, "*batch L d"],         # floating point, at least 2 axes, d at least 1
        key: Float[Tensor, "*batch S d"],           # the same batch axes, d, dtype and device
        mask: Bool[Tensor, "#L #S"] | None = None,  # an axis marked # may also be 1
        window: PositiveInt | None = None,          # an int, no bool, of at least 1
        dropout_p: Probability = 0.0,               # a finite number in [0, 1)
    ): ...

A letter has one size in all tensors of a call; the tensors share a device, the floating point ones a
dtype. A wrong type or dtype raises TypeError, a wrong shape or value ValueError, and both read
`argument: expected ..., got ...`. Not checked: what is returned, and axes such as `L-2`. Compiled
and exported code runs without the checks.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import jaxtyping
import torch
from torch import Tensor, nn

from .bounds import Bound, Option, anything, plain_option
from .errors import argument_error, shape_of, type_of

SIMPLE = (bool, int, float, str, torch.dtype, torch.device)
SIMPLE_OR_NONE = frozenset((*SIMPLE, type(None)))
MANY = {int: "ints", float: "numbers", str: "strings"}
GROUPS = (list, tuple, dict, Sequence, Collection, Iterable, Mapping)
LETTER = re.compile(r"\*?[^\W\d_]\w*")  # not 3, L-2, ...
NEVER_EMPTY = "d dq dk D V"  # a vector has an entry; every other letter may be 0


def checked(function: Callable | None = None, /, **options: str) -> Callable:
    """Check the arguments of every call by the function's own annotations.

    nonempty: more letters whose axes must not be 0: `nonempty="B L"`.
    any_dtype: floating point tensors that need not have the others' dtype: `any_dtype="bias"`.
    like: a tensor whose dtype and device the others must have: `@checked(like="self.weight")`, or
        `like="x"`, an argument. Under autocast, which casts, any floating point dtype will do.
    Any other name is a letter, and what sets its size, an argument or something of it:
        `@checked(D="self.d_model")`, `@checked(S="num_keys")`, `@checked(B="self.real.shape.0")`;
        None sets nothing.

    Raises: TypeError or ValueError that name the argument, what came and what was expected.
    """
    if function is None:
        return functools.partial(checked, **options)
    if not hasattr(jaxtyping, "__version__"):  # a stand-in, on a machine without jaxtyping
        return function
    rules = functools.cache(lambda: Rules(function, **options))  # at the first call

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            rules().check(args, kwargs)
        return function(*args, **kwargs)

    return wrapper


def check_fields(instance: Any) -> None:
    """Check the fields of a dataclass by their annotations; its `__post_init__` calls this.

    Raises: TypeError or ValueError that name the field.
    """
    if hasattr(jaxtyping, "__version__"):
        _rules_of_class(type(instance)).check_given({"self": instance, **vars(instance)})


class Rules:
    """What the annotations of a function, or of a dataclass's fields, ask of each argument."""

    def __init__(
        self, function: Callable, nonempty="", any_dtype="", like="", **sizes: str
    ) -> None:
        hints = typing.get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters.values()
        self.positional = [p.name for p in parameters if p.kind < p.VAR_POSITIONAL]
        self.several = next((p.name for p in parameters if p.kind == p.VAR_POSITIONAL), None)
        self.defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        if self.several in hints:
            hints[self.several] = tuple[hints[self.several], ...]
        named = [p.name for p in parameters if p.name in hints and p.kind != p.VAR_KEYWORD]
        options = [(name, options_of(hints[name])) for name in named]
        self.options = sorted(options, key=lambda pair: max(one.turn for one in pair[1]))
        self.changing = [pair for pair in self.options if any(one.changing for one in pair[1])]
        self.looked_into = {name for name, choices in options if any(one.check for one in choices)}
        self.nonempty = frozenset(f"{NEVER_EMPTY} {nonempty}".split())
        self.any_dtype, self.like, self.sizes = frozenset(any_dtype.split()), like, sizes
        self.annotated = frozenset(named)
        positional = tuple(self.positional)
        self.readers = [reader(path, positional) for path in sizes.values()]
        self.read_like = reader(like, positional) if like else None
        self.passed: dict[tuple, dict[str, Any]] = {}  # the sizes in calls that were right

    def check(self, args: tuple, kwargs: dict[str, Any]) -> None:
        """Raise for the first argument that does not fit; a missing one is left to Python."""
        try:
            summary = self.summary(args, kwargs)
            known = self.passed.get(summary)
        except TypeError:  # a symbolic size has no hash
            summary = known = None
        if known is not None and not self.changing:
            return
        given = dict(zip(self.positional, args, strict=False)) | kwargs
        if self.several is not None:
            given[self.several] = args[len(self.positional) :]
        sizes = self.check_given(given, known)
        if known is None and summary is not None and len(self.passed) < 10_000:
            self.passed[summary] = sizes

    def check_given(self, given: dict[str, Any], known: dict | None = None) -> dict[str, Any]:
        """Raise for the first of these arguments that does not fit; return the sizes of letters.

        known: the sizes, if a call like this one was right: then only what may change is checked.
        """
        options = [pair for pair in self.options if pair[0] in given]
        if known is not None:  # None has passed, and does not change
            options = [pair for pair in self.changing if given.get(pair[0]) is not None]
            if not options:
                return known
        call = Call(self, self.defaults | given, known)
        for name, choices in options:
            check_value(name, given[name], choices, call)
        return call.sizes

    def summary(self, args: tuple, kwargs: dict[str, Any]) -> tuple:
        """All that the checks depend on: a call like an earlier one passes. TypeError if unknown."""
        parts = [read(args, kwargs) for read in self.readers]
        if self.read_like is not None:
            own = self.read_like(args, kwargs)
            if isinstance(own, Tensor):
                parts += own.dtype, own.device, autocasts(own)
        for name, value in zip(self.positional, args, strict=False):
            if name in self.annotated:
                parts.append(self.mark(name, value))
        if self.several is not None:
            parts.append(self.mark(self.several, args[len(self.positional) :]))
        for name, value in kwargs.items():
            if name in self.annotated:
                parts += name, None if value is None else self.mark(name, value)
        return tuple(parts)

    def mark(self, name: str, value: Any) -> Any:
        """What the checks depend on in a value: of a tensor its shape, of most objects their type."""
        if isinstance(value, Tensor):
            return value.shape, value.dtype, value.device
        kind = type(value)
        if kind in SIMPLE_OR_NONE:
            return kind, value
        if isinstance(value, tuple):
            return kind, *(self.mark(name, one) for one in value)
        if name in self.looked_into:
            raise TypeError(name)
        return kind


_rules_of_class = functools.cache(Rules)


class Call:
    """What is known of one call: its arguments, the sizes of letters, the first tensors."""

    def __init__(self, rules: Rules, arguments: dict[str, Any], known: dict | None) -> None:
        self.rules, self.arguments, self.known = rules, arguments, known is not None
        self.sizes: dict[str, Any] = {}  # of each letter; of *batch, the number of its axes
        self.origins: dict[str, str] = {}  # who has set it
        self.first: dict[str, tuple[str, Tensor]] = {}  # it sets the device, or the dtype
        if known is not None:  # what is left to check are bounds
            self.sizes = known
            return
        for letter, path in rules.sizes.items():
            size = value_of(path, arguments)
            if size is not None:
                self.sizes[letter] = size
                self.origins[letter] = path.partition(".shape.")[0].replace("._", ".")
        own = value_of(rules.like, arguments)
        if isinstance(own, Tensor):
            of_self = rules.like.startswith("self.")
            owner = type(arguments["self"]).__name__ if of_self else rules.like
            self.first = dict.fromkeys(("device", "dtype"), (owner, own))
        self.casts = isinstance(own, Tensor) and autocasts(own)  # any dtype fits then


def value_of(path: str, arguments: dict[str, Any]) -> Any:
    """The argument of that name, or what lies under it: `self.config.vocab`; under None lies None."""
    return reader(path)((), arguments)


@functools.cache
def reader(path: str, positional: tuple[str, ...] = ()) -> Callable[[tuple, dict[str, Any]], Any]:
    """`value_of` as a function of a call's arguments: those by position, and those by name."""
    name, *attributes = path.split(".")
    steps = [int(one) if one.isdigit() else one for one in attributes]
    place = positional.index(name) if name in positional else math.inf

    def read(args: tuple, kwargs: dict[str, Any]) -> Any:
        value = args[place] if place < len(args) else kwargs.get(name)
        try:
            for step in steps:
                if value is None:
                    return None
                if type(step) is int:
                    value = value[step]
                elif isinstance(value, nn.Module):
                    value = member(value, step)
                else:
                    value = getattr(value, step)
        except (AttributeError, IndexError):  # of a wrong type, which its own check tells
            if name == "self":
                raise
            return None
        return value

    return read


def member(module: nn.Module, name: str) -> Any:
    """`getattr`, ten times as fast for layers and parameters: Python's own lookup fails first for them."""
    if name in module._modules:
        return module._modules[name]
    return module._parameters[name] if name in module._parameters else getattr(module, name)


def autocasts(tensor: Tensor) -> bool:
    """Whether autocast is on where the tensor is."""
    kind = autocast_of(tensor.device)
    return kind is not None and torch.is_autocast_enabled(kind)


@functools.cache
def autocast_of(device: torch.device) -> str | None:
    """The device type, None where there is no autocast."""
    return device.type if torch.amp.is_autocast_available(device.type) else None


# --- Annotations ----------------------------------------------------------------------------------


def options_of(hint: Any) -> list[Option]:
    """The types that an annotation allows; the tensors of a union are one option."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        bounds = [one for one in inner[1:] if isinstance(one, Bound)]
        return [bounded(option, bounds) for option in options_of(inner[0])]
    if origin in (typing.Union, types.UnionType):
        shapes = [one for one in inner if is_shape(one)]
        options = [option for one in inner if not is_shape(one) for option in options_of(one)]
        options.sort(key=lambda option: option.accepts is anything)  # a Literal accepts any type
        return [shape_option(*shapes), *options] if shapes else options
    if is_shape(hint):
        return [shape_option(hint)]
    if origin in GROUPS:
        return [group_option(hint)]
    return [record_option(hint) if hasattr(hint, "_fields") else plain_option(hint)]


def group_option(hint: Any) -> Option:
    """A list, tuple, mapping ... and what each of its items may be; a string is none of them."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    each = [options_of(one) for one in inner if one is not ...]
    size = len(inner) if origin is tuple and ... not in inner else None

    def check(name: str, value: Any, call: Call) -> None:
        if size is not None and len(value) != size:
            raise argument_error(ValueError, name, f"{len(value)} values", f"{size} values")
        if isinstance(value, Iterator):
            return  # to look at its items is to take them away
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for number, (key, item) in enumerate(items):
            options = each[number if size else -1]
            if options[0].check is not None or not options[0].accepts(item):
                check_value(f"{name}[{key!r}]", item, options, call)

    def accepts(value: Any) -> bool:
        return isinstance(value, origin) and not isinstance(value, str | bytes)

    everything = all(option == Option("", anything) for options in each for option in options)
    words = f"a {origin.__name__.lower()}".replace("a iter", "an iter")
    plain = typing.get_args(inner[0])[0] if typing.get_origin(inner[0]) is Annotated else inner[0]
    words += f" of {MANY[plain]}" if plain in MANY and (len(inner) == 1 or ... in inner) else ""
    turn = max(option.turn for options in each for option in options)
    return Option(words, accepts, None if everything and size is None else check, turn)


def record_option(cls: type) -> Option:
    """A NamedTuple, whose fields are checked as arguments are."""
    fields = {name: options_of(hint) for name, hint in typing.get_type_hints(cls).items()}

    def check(name: str, value: Any, call: Call) -> None:
        for field, options in fields.items():
            check_value(f"{name}.{field}", getattr(value, field), options, call)

    return plain_option(cls)._replace(check=check, turn=2)


def is_shape(hint: Any) -> bool:
    """Whether the annotation is jaxtyping's, of a torch tensor."""
    return typing.get_origin(hint) is None and getattr(hint, "array_type", None) is Tensor


def check_value(name: str, value: Any, options: list[Option], call: Call) -> None:
    """Raise TypeError unless an option accepts the value; the first that does checks the rest."""
    for option in options:
        if option.accepts(value):
            if option.check is not None:
                option.check(name, value, call)
            return
    wanted = " or ".join(option.words for option in options)
    raise argument_error(TypeError, name, type_of(value), wanted)


def bounded(option: Option, bounds: list[Bound]) -> Option:
    """The option, held to the bounds too."""
    if option.words == "None":
        return option

    by_name = any(isinstance(bound.limit, str) for bound in bounds)
    fixed = [(bound.holds, bound.limit) for bound in bounds if bound.limit is not None]

    def check(name: str, value: Any, call: Call) -> None:
        if option.check is not None and (option.changing or not call.known):
            option.check(name, value, call)
        plain = not by_name and not isinstance(value, Tensor)  # often one of thousands of ids
        if not (plain and all(holds(value, limit) for holds, limit in fixed)):
            check_bounds(name, value, bounds, call)

    turn = max(option.turn, int(by_name))
    return option._replace(check=check, turn=turn, changing=turn > 0)


def check_bounds(name: str, value: Any, bounds: list[Bound], call: Call) -> None:
    """Raise unless the value, or every value of a tensor, is within the bounds."""
    limits = ((bound, limit_of(bound, call)) for bound in bounds)
    rules = [(bound, limit) for bound, limit in limits if limit is not None]
    ends = extremes(value) if isinstance(value, Tensor) else (value,)
    for bound, limit in rules:
        if not all(bound.holds(end, limit) for end in ends):
            wanted = " and ".join(rule.expected(limit) for rule, limit in rules)
            came = [repr(e) if isinstance(e, SIMPLE) or not e else type_of(e) for e in ends]
            raise argument_error(bound.error, name, " to ".join(came), wanted)


def limit_of(bound: Bound, call: Call) -> Any:
    """The limit itself, or what it names: a letter's size, an argument or something of it."""
    if not isinstance(bound.limit, str):
        return bound.limit
    name = bound.limit.partition(".")[0]
    return value_of(bound.limit, call.sizes if name in call.sizes else call.arguments)


def extremes(tensor: Tensor) -> tuple[float | int, ...]:
    """The least and the largest value, where they can be read without waiting for a device."""
    if tensor.device.type != "cpu":
        return ()
    try:
        ends = (end.item() for end in tensor.detach().aminmax())
        return tuple(end for end in ends if end == end)  # NaN has no place among the numbers
    except RuntimeError:  # there is none, or it cannot be read: under vmap, while tracing
        return ()


# --- Shapes of tensors ----------------------------------------------------------------------------


KINDS = {
    "Float": ("a floating point dtype", lambda dtype: dtype.is_floating_point),
    "Bool": ("torch.bool (True = may attend)", lambda dtype: dtype == torch.bool),
    "Int": (
        "an integer dtype",
        lambda dtype: not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool),
    ),
    "Complex": ("a complex dtype", lambda dtype: dtype.is_complex),
}


class Layout:
    """One annotation of a tensor: its kind of dtype and its axes."""

    def __init__(self, hint: Any) -> None:
        self.kind, self.has_dtype = KINDS.get(hint.dtype.__name__, ("any dtype", anything))
        self.axes = hint.dim_str.replace("#", "").split()
        self.broadcast = ["#" in axis for axis in hint.dim_str.split()]
        self.star = next((axis for axis in self.axes if axis.startswith(("*", "..."))), None)
        self.least = len(self.axes) - (self.star is not None)

    def has_rank(self, rank: int) -> bool:
        """Whether a tensor of so many axes can have this layout."""
        return rank == self.least or (rank > self.least and self.star is not None)

    def spread(self, count: int) -> list[tuple[str, bool]]:
        """Each axis, and whether it may be 1; a star of two axes is *batch0 and *batch1."""
        pairs = []
        for axis, broadcast in zip(self.axes, self.broadcast, strict=True):
            names = [f"{axis}{i}" for i in range(count)] if axis == self.star else [axis]
            pairs += [(name, broadcast) for name in names]
        return pairs

    def sizes_of(self, shape: tuple[int, ...], known: dict[str, Any]) -> dict[str, Any] | None:
        """What the shape says of each letter; None if it does not fit what is known so far."""
        count = len(shape) - self.least
        if not self.has_rank(len(shape)) or known.get(self.star, count) != count:
            return None
        found = {self.star or "": count}
        for (axis, broadcast), size in zip(self.spread(count), shape, strict=True):
            if broadcast and size == 1:
                continue
            wanted = int(axis) if axis.isdigit() else known.get(axis, size)
            if size != found.setdefault(axis, wanted):
                return None
        return {axis: size for axis, size in found.items() if LETTER.fullmatch(axis)}

    def expected(self, call: Call) -> str:
        """The axes by name, and by size where one is known: (*batch, S, d) = (2, S, 8)."""
        count = call.sizes.get(self.star)
        axes = self.axes if count is None else [axis for axis, _ in self.spread(count)]
        sizes = [call.sizes.get(axis, axis if axis in self.axes else 1) for axis in axes]
        return axes_text(self.axes) + (f" = {axes_text(sizes)}" if sizes != self.axes else "")


def axes_text(axes: Iterable[Any]) -> str:
    """A shape as people write it, of letters and numbers: (B,), (2, S, 8)."""
    words = [str(axis) for axis in axes]
    return f"({words[0]},)" if len(words) == 1 else f"({', '.join(words)})"


def shape_option(*hints: Any) -> Option:
    """A tensor in one of these layouts."""
    layouts = [Layout(hint) for hint in hints]
    turn = 3 if any("#" in hint.dim_str for hint in hints) else 2
    check = functools.partial(check_tensor, layouts)
    return Option("a torch.Tensor", lambda value: isinstance(value, Tensor), check, turn)


def check_tensor(layouts: list[Layout], name: str, value: Tensor, call: Call) -> None:
    """Raise unless dtype, device and shape fit a layout; take the sizes of the first that fits."""
    right = [layout for layout in layouts if layout.has_dtype(value.dtype)]
    if not right:
        wanted = " or ".join(dict.fromkeys(layout.kind for layout in layouts))
        raise argument_error(TypeError, name, value.dtype, wanted)
    check_alike(name, value, call)
    for layout in right:
        found = layout.sizes_of(value.shape, call.sizes)
        if found is None:
            continue
        empty = [letter for letter in found if not found[letter] and letter in call.rules.nonempty]
        if empty:
            wanted = f"{empty[0]} of at least 1 in {axes_text(layout.axes)}"
            raise argument_error(ValueError, name, f"shape {shape_of(value)}", wanted)
        call.sizes |= found
        call.origins = dict.fromkeys(found, name) | call.origins
        return
    wanted = shape_text(right, value, call)
    raise argument_error(ValueError, name, f"shape {shape_of(value)}", wanted)


def check_alike(name: str, value: Tensor, call: Call) -> None:
    """Raise unless the tensor has the device of the first one, and its dtype among the floats."""
    first, tensor = call.first.setdefault("device", (name, value))
    if value.device != tensor.device:
        raise argument_error(ValueError, name, value.device, f"{first}'s device {tensor.device}")
    if value.is_floating_point() and name not in call.rules.any_dtype and not call.casts:
        first, tensor = call.first.setdefault("dtype", (name, value))
        if value.dtype != tensor.dtype:
            raise argument_error(TypeError, name, value.dtype, f"{first}'s dtype {tensor.dtype}")


def shape_text(layouts: list[Layout], value: Tensor, call: Call) -> str:
    """What shape was expected: a number of axes, or the sizes and who has set them."""
    first = layouts[0]
    if len(layouts) == 1 and not first.has_rank(value.ndim):
        count = "1 axis" if first.least == 1 else f"{first.least} axes"
        return f"{'at least ' if first.star is not None else ''}{count} {axes_text(first.axes)}"
    letters = [axis for layout in layouts for axis in layout.axes]
    origins = " and ".join(dict.fromkeys(call.origins[a] for a in letters if a in call.origins))
    text = "shape " + " or ".join(layout.expected(call) for layout in layouts)
    text += f" as in {origins}" if origins else ""
    return text + (", or 1 in any axis" if any(any(one.broadcast) for one in layouts) else "")
