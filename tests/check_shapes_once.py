"""Shape checks at a fraction of their price: a call like one that was right is not checked again."""

import functools
import inspect

import jaxtyping
import numpy as np
import torch
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
    either a letter such as B has one size in all arguments and the answer. A call whose arguments
    and answer are of the same kinds as in an earlier one would pass as that one did.
    """
    if fn is None:
        return functools.partial(check_once, typechecker=typechecker)
    if not inspect.isfunction(fn):  # a class or a property hands its functions back to us
        return jaxtyped(fn, typechecker=typechecker)
    if not fn.__annotations__ or made_at_every_call(fn):
        return fn
    right, answers = {}, []  # the kinds of arguments and answers that passed; an answer to check

    @functools.wraps(fn)
    def call(*args, **kwargs):
        return answers.pop() if answers else fn(*args, **kwargs)

    checked = checked_types(call)

    @functools.wraps(fn)
    def in_one_context(*args, **kwargs):
        asked = kind_of((args, kwargs))
        if asked in right:
            answer = fn(*args, **kwargs)
            if kind_of(answer) == right[asked]:
                return answer
            answers.append(answer)
        with jaxtyped("context"):
            try:
                answer = checked(*args, **kwargs)
            except BeartypeCallHintViolation as error:
                raise jaxtyping.TypeCheckError(str(error)) from error
        right[asked] = kind_of(answer)
        return answer

    return in_one_context


PLAIN = (
    torch.Tensor,
    torch.nn.Parameter,
    np.ndarray,
)  # a subclass may run code when it is asked for its shape
ALONE = set()  # the types met so far whose values are all alike to a check: modules, numbers, None


def kind_of(value, depth=5):
    """What a check depends on: of an array its shape and dtype, of a word the word, of most things the type.

    Of what could be anything, a subclass of tensors, a deep or long list, a long text, the kind is a new object: no other
    call is like this one.
    """
    kind = type(value)
    if kind in ALONE:
        return kind
    if kind in PLAIN:
        return kind, value.shape, value.dtype
    if depth == 0 or isinstance(value, torch.Tensor) or (kind is str and len(value) > 100):
        return object()
    if kind in (tuple, list, dict) and len(value) > 30:
        return object()  # going through it would cost more than the check
    if kind in (tuple, list):
        return kind, *(kind_of(each, depth - 1) for each in value)
    if kind is dict:
        pairs = ((kind_of(key, depth - 1), kind_of(each, depth - 1)) for key, each in value.items())
        return kind, *pairs
    if kind in (bool, str) or isinstance(value, type):
        return kind, value
    ALONE.add(kind)
    return kind


def made_at_every_call(fn) -> bool:
    """A function inside a function, no shape in its signature: its check would be compiled each time."""
    shaped = any("'" in str(hint) for hint in fn.__annotations__.values())
    return "<locals>" in fn.__qualname__ and not shaped
