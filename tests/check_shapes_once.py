"""Shape checks at half their price: each argument is checked once a call, and not a second time."""

import functools
import inspect

import jaxtyping
from beartype import BeartypeConf, beartype
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import _decorator

jaxtyped = _decorator.jaxtyped
checked_types = beartype(
    conf=BeartypeConf(is_pep484_tower=True)
)  # a float may be an int, as Python has it


def install() -> None:
    """Mend what `--jaxtyping-packages` does; before any test imports the package."""
    _decorator.jaxtyped = jaxtyping.jaxtyped = check_once


def check_once(fn=None, *, typechecker):
    """Check the signature of a function in the older of jaxtyping's two ways.

    The newer checks the arguments, calls, and then checks the arguments again with the answer, so
    that its message can tell them apart. In the older, one check of both surrounds the call. In
    either a letter such as B has one size in all arguments and the answer.
    """
    if fn is None:
        return functools.partial(check_once, typechecker=typechecker)
    if not inspect.isfunction(fn):  # a class or a property hands its functions back to us
        return jaxtyped(fn, typechecker=typechecker)
    if not fn.__annotations__ or made_at_every_call(fn):
        return fn
    checked = checked_types(fn)

    @functools.wraps(fn)
    def in_one_context(*args, **kwargs):
        with jaxtyped("context"):
            try:
                return checked(*args, **kwargs)
            except BeartypeCallHintViolation as error:
                raise jaxtyping.TypeCheckError(str(error)) from error

    return in_one_context


def made_at_every_call(fn) -> bool:
    """A function inside a function, no shape in its signature: its check would be compiled each time."""
    shaped = any("'" in str(hint) for hint in fn.__annotations__.values())
    return "<locals>" in fn.__qualname__ and not shaped
