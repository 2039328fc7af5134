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
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import jaxtyping
import torch
from torch import Tensor

from .bounds import Bound, Option, anything, plain_option
from .errors import argument_error, shape_of, type_of

SIMPLE = (bool, int, float, str, torch.dtype, torch.device)
MANY = {int: "ints", float: "numbers", str: "strings"}
GROUPS = (list, tuple, dict, Sequence, Collection, Iterable, Mapping)
NEVER_EMPTY = "d dq dk D V"  # a vector has an entry; every other letter may be 0


def checked(
    function: Callable | None = None, /, *, nonempty="", any_dtype="", like="", **sizes: str
) -> Callable:
    """Check the arguments of every call by the function's own annotations.

    nonempty: more letters whose axes must not be 0: `nonempty="B L"`.
    any_dtype: floating point tensors that need not have the others' dtype: `any_dtype="bias"`.
    like: a tensor whose dtype and device the others must have: `@checked(like="self.weight")`, or
        `like="x"`, an argument. Under autocast, which casts, any floating point dtype will do.
    sizes: what sets a letter's size, an argument or something of it: `@checked(D="self.d_model")`,
        `@checked(S="num_keys")`, `@checked(B="cache.real.shape.0")`; None sets nothing.

    Raises: TypeError or ValueError that name the argument, what came and what was expected.
    """
    options = {"nonempty": nonempty, "any_dtype": any_dtype, "like": like} | sizes
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
        _rules_of_class(type(instance)).check((), {"self": instance, **vars(instance)})


class Rules:
    """What the annotations of a function, or of a dataclass's fields, ask of each argument."""

    def __init__(
        self, function: Callable, nonempty="", any_dtype="", like="", **sizes: str
    ) -> None:
        hints = typing.get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters.values()
        self.positional = [p.name for p in parameters if p.kind < p.VAR_POSITIONAL]
        self.several = next((p.name for p in parameters if p.kind == p.VAR_POSITIONAL), None)
        self.required = {
            p.name for p in parameters if p.default is p.empty and p.kind not in (2, 4)
        }
        self.defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        named = [p.name for p in parameters if p.name in hints]
        options = [(name, options_of(hints[name])) for name in named]
        turns = {name: max(option.turn for option in choices) for name, choices in options}
        later = {name for name in named if not turns[name] and is_changing(hints[name])}
        self.options = sorted(options, key=lambda pair: (turns[pair[0]], pair[0] in later))
        self.nonempty = frozenset(f"{NEVER_EMPTY} {nonempty}".split())
        self.any_dtype, self.like, self.sizes = frozenset(any_dtype.split()), like, sizes
        self.paths = [path for path in (like, *self.sizes.values()) if path]
        self.of_self = all(path.startswith("self.") for path in self.paths)
        self.bounded = {name for name in named if is_bounded(hints[name])}
        self.changing = [pair for pair in self.options if is_changing(hints[pair[0]])]
        self.passed: dict[tuple, dict[str, Any]] = {}  # the sizes in calls that were right

    def check(self, args: tuple, kwargs: dict[str, Any]) -> None:
        """Raise for the first argument that does not fit; a missing one is left to Python."""
        try:
            summary = self.summary(args, kwargs)
            known = self.passed.get(summary)
        except (TypeError, KeyError):  # a symbolic size has no hash; an argument is missing
            summary = known = None
        if known is not None and not self.changing:
            return
        given = dict(zip(self.positional, args, strict=False)) | kwargs
        if not self.required <= given.keys():
            return
        call = Call(self, self.defaults | given, known)
        for name, options in self.options if known is None else self.changing:
            if name in given:
                check_value(name, given[name], options, call)
            elif name == self.several:
                for number, value in enumerate(args[len(self.positional) :]):
                    check_value(f"{name}[{number}]", value, options, call)
        if known is None and summary is not None and len(self.passed) < 10_000:
            self.passed[summary] = call.sizes

    def summary(self, args: tuple, kwargs: dict[str, Any]) -> tuple:
        """All that the checks depend on: a call like an earlier one passes. TypeError if unknown."""
        parts: list[Any] = []
        if self.paths:
            given = {"self": args[0]}  # most paths begin there
            if not self.of_self:
                given = self.defaults | dict(zip(self.positional, args, strict=False)) | kwargs
            parts += [value_of(path, given) for path in self.sizes.values()]
            own = value_of(self.like, given) if self.like else None
            if isinstance(own, Tensor):
                parts += own.dtype, own.device, autocasts(own)
        places = len(self.positional)
        for name, value in (*zip(self.positional, args), *kwargs.items()):  # noqa: B905
            if isinstance(value, Tensor):
                parts += name, value.shape, value.dtype, value.device
            elif value is None or type(value) in SIMPLE:
                parts += name, type(value), value
            else:
                parts += name, self.type_of(name, value)
        parts += [self.type_of(self.several, value) for value in args[places:]]
        return tuple(parts)

    def type_of(self, name: str, value: Any) -> Any:
        """What the checks depend on in any other value: its type, if they look at nothing else."""
        if isinstance(value, Tensor):
            return value.shape, value.dtype, value.device
        if isinstance(value, tuple):
            return type(value), *(self.type_of(name, one) for one in value)
        if name in self.bounded or isinstance(value, SIMPLE):
            raise TypeError(name)
        return type(value)


_rules_of_class = functools.cache(Rules)


class Call:
    """What is known of one call: its arguments, the sizes of letters, the first tensors."""

    def __init__(self, rules: Rules, arguments: dict[str, Any], known: dict | None = None) -> None:
        self.rules, self.arguments = rules, arguments
        self.sizes: dict[str, Any] = {}  # of each letter, a tuple for a star
        self.origins: dict[str, str] = {}  # who has set it
        for letter, path in rules.sizes.items():
            size = value_of(path, arguments)
            if size is not None:
                self.sizes[letter] = size
                self.origins[letter] = path.partition(".shape.")[0].replace("._", ".")
        self.sizes |= known or {}
        own = value_of(rules.like, arguments) if rules.like else None
        of_self = rules.like.startswith("self.")
        owner = type(arguments["self"]).__name__ if of_self else rules.like
        first = (owner, own) if isinstance(own, Tensor) else None
        self.first: tuple[str, Tensor] | None = first
        self.first_float: tuple[str, Tensor] | None = first
        self.casts = first is not None and autocasts(own)  # any dtype fits then


def value_of(path: str, arguments: dict[str, Any]) -> Any:
    """The argument of that name, or what lies under it: `self.config.vocab`; under None lies None."""
    name, *attributes = path.split(".")
    value = arguments.get(name)
    try:
        for attribute in attributes:
            if value is None:
                return None
            value = value[int(attribute)] if attribute.isdigit() else getattr(value, attribute)
    except (AttributeError, IndexError):  # an argument of a wrong type, which its own check tells
        if name == "self":
            raise
        return None
    return value


def autocasts(tensor: Any) -> bool:
    """Whether autocast is on where the tensor is."""
    device = tensor.device.type if isinstance(tensor, Tensor) else "meta"
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


# --- Annotations ----------------------------------------------------------------------------------


def options_of(hint: Any) -> list[Option]:
    """The types that an annotation allows; the tensors of a union are one option."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        bounds = [one for one in inner[1:] if isinstance(one, Bound)]
        return [bounded(option, bounds) for option in options_of(inner[0])]
    if origin in GROUPS:
        return [group_option(hint)]
    if origin not in (typing.Union, types.UnionType):
        if hasattr(hint, "_fields"):
            return [record_option(hint)]
        return [shape_option(hint) if is_shape(hint) else plain_option(hint)]
    shapes = [one for one in inner if is_shape(one)]
    options = [option for one in inner if not is_shape(one) for option in options_of(one)]
    options.sort(key=lambda option: option.accepts is anything)  # a Literal accepts any type
    return [shape_option(*shapes), *options] if shapes else options


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

    words = f"a {origin.__name__.lower()}".replace("a iter", "an iter")
    plain = typing.get_args(inner[0])[0] if typing.get_origin(inner[0]) is Annotated else inner[0]
    words += f" of {MANY[plain]}" if plain in MANY and (len(inner) == 1 or ... in inner) else ""
    return Option(words, lambda v: isinstance(v, origin) and not isinstance(v, str | bytes), check)


def record_option(cls: type) -> Option:
    """A NamedTuple, whose fields are checked as arguments are."""
    fields = {name: options_of(hint) for name, hint in typing.get_type_hints(cls).items()}

    def check(name: str, value: Any, call: Call) -> None:
        for field, options in fields.items():
            check_value(f"{name}.{field}", getattr(value, field), options, call)

    return plain_option(cls)._replace(check=check, turn=1)


def is_changing(hint: Any) -> bool:
    """Whether a bound reads the values of a tensor or a limit by name: the next call may differ."""
    inner = typing.get_args(hint)
    if typing.get_origin(hint) is not Annotated:
        return any(is_changing(one) for one in inner)
    by_name = any(isinstance(getattr(one, "limit", None), str) for one in inner[1:])
    return by_name or "Tensor" in str(inner[0])


def is_bounded(hint: Any) -> bool:
    """Whether the check of a plain value looks at more than its type."""
    return (
        typing.get_origin(hint) in (typing.Literal, *GROUPS)
        or any(isinstance(one, Bound) for one in getattr(hint, "__metadata__", ()))
        or any(is_bounded(one) for one in typing.get_args(hint))
    )


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

    def check(name: str, value: Any, call: Call) -> None:
        if option.check is not None:
            option.check(name, value, call)
        check_bounds(name, value, bounds, call)

    return option if option.words == "None" else option._replace(check=check)


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
    return value_of(bound.limit, call.arguments | call.sizes)


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
}


class Layout:
    """One annotation of a tensor: its kind of dtype and its axes."""

    def __init__(self, hint: Any) -> None:
        self.kind, self.has_dtype = KINDS.get(hint.dtype.__name__, ("any dtype", anything))
        self.axes = [axis.replace("#", "") for axis in hint.dim_str.split()]
        self.broadcast = ["#" in axis for axis in hint.dim_str.split()]
        self.fixed = {axis: int(axis) for axis in self.axes if axis.isdigit()}
        self.letters = {axis for axis in self.axes if re.fullmatch(r"\*?[^\W\d_]\w*", axis)}
        stars = [i for i, axis in enumerate(self.axes) if axis.startswith(("*", "..."))]
        self.star = stars[0] if stars else None
        self.least = len(self.axes) - len(stars)

    def has_rank(self, rank: int) -> bool:
        """Whether a tensor of so many axes can have this layout."""
        return rank == self.least or (rank > self.least and self.star is not None)

    def sizes_of(self, shape: tuple[int, ...], sizes: dict[str, Any]) -> dict[str, Any]:
        """What the shape says of each letter; Misfit if it does not fit what is known so far."""
        if not self.has_rank(len(shape)):
            raise Misfit
        if self.star is not None:
            end = self.star + len(shape) - self.least
            shape = (*shape[: self.star], tuple(shape[self.star : end]), *shape[end:])
        found: dict[str, Any] = {}
        for axis, broadcast, size in zip(self.axes, self.broadcast, shape, strict=True):
            if axis in self.fixed:
                agreed(size, self.fixed[axis], broadcast)
            elif axis in self.letters:
                known = found.get(axis, sizes.get(axis))
                found[axis] = agreed(size, known, broadcast)
        return found

    def expected(self, call: Call) -> str:
        """The axes by name, and by size where one is known: (*batch, S, d) = (2, S, 8)."""
        sizes: list[Any] = []
        for axis in self.axes:
            size = call.sizes.get(axis)
            several = size if isinstance(size, tuple) else (axis if size is None else size,)
            sizes += [1 if one is None else one for one in several]
        return axes_text(self.axes) + (f" = {axes_text(sizes)}" if sizes != self.axes else "")


class Misfit(Exception):
    """A shape that does not fit a layout."""


def agreed(size: Any, known: Any, broadcast: bool) -> Any:
    """The size of a letter that is known and met once more; None stands for not known yet."""
    if broadcast and isinstance(size, tuple):
        known = (None,) * len(size) if known is None else known
        if len(size) != len(known):
            raise Misfit
        return tuple(agreed(one, old, True) for one, old in zip(size, known, strict=True))
    if broadcast and size == 1:
        return known
    if known is not None and known != size:
        raise Misfit
    return size


def axes_text(axes: Iterable[Any]) -> str:
    """A shape as people write it, of letters and numbers: (B,), (2, S, 8)."""
    words = [str(axis) for axis in axes]
    return f"({words[0]},)" if len(words) == 1 else f"({', '.join(words)})"


def shape_option(*hints: Any) -> Option:
    """A tensor in one of these layouts."""
    layouts = [Layout(hint) for hint in hints]
    turn = 2 if any("#" in hint.dim_str for hint in hints) else 1
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
        try:
            found = layout.sizes_of(value.shape, call.sizes)
        except Misfit:
            continue
        known = {letter: size for letter, size in found.items() if size is not None}
        empty = [letter for letter in known if not known[letter] and letter in call.rules.nonempty]
        if empty:
            wanted = f"{empty[0]} of at least 1 in {axes_text(layout.axes)}"
            raise argument_error(ValueError, name, f"shape {shape_of(value)}", wanted)
        call.sizes |= known
        call.origins = dict.fromkeys(known, name) | call.origins
        return
    wanted = shape_text(right, value, call)
    raise argument_error(ValueError, name, f"shape {shape_of(value)}", wanted)


def check_alike(name: str, value: Tensor, call: Call) -> None:
    """Raise unless the tensor has the device of the first one, and its dtype among the floats."""
    first, tensor = call.first = call.first or (name, value)
    if value.device != tensor.device:
        raise argument_error(ValueError, name, value.device, f"{first}'s device {tensor.device}")
    if value.is_floating_point() and name not in call.rules.any_dtype and not call.casts:
        first, tensor = call.first_float = call.first_float or (name, value)
        if value.dtype != tensor.dtype:
            raise argument_error(TypeError, name, value.dtype, f"{first}'s dtype {tensor.dtype}")


def shape_text(layouts: list[Layout], value: Tensor, call: Call) -> str:
    """What shape was expected: a number of axes, or the sizes and who has set them."""
    first = layouts[0]
    if len(layouts) == 1 and not first.has_rank(value.ndim):
        count = "1 axis" if first.least == 1 else f"{first.least} axes"
        return f"{'at least ' if first.star is not None else ''}{count} {axes_text(first.axes)}"
    letters = [axis for layout in layouts for axis in layout.axes]
    known = [letter for letter in letters if call.sizes.get(letter) is not None]
    origins = " and ".join(dict.fromkeys(call.origins[letter] for letter in known))
    text = "shape " + " or ".join(layout.expected(call) for layout in layouts)
    text += f" as in {origins}" if origins else ""
    return text + (", or 1 in any axis" if any(any(one.broadcast) for one in layouts) else "")
