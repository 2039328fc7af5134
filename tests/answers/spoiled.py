"""Wrong answers made of a right formula: what goes wrong in any function, whatever it computes."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from . import wrong

Change = Callable[[Tensor], Tensor]


def with_inputs(formula: Callable[..., Any], change: Change, *names: str) -> Callable[..., Any]:
    """The formula of changed arguments, all the floating point ones unless they are named."""

    @wraps(formula)
    def spoiled(*placed: Any, **named: Any) -> Any:
        given = signature(formula).bind(*placed, **named)
        for name, argument in given.arguments.items():
            is_float = isinstance(argument, Tensor) and argument.is_floating_point()
            if is_float and (name in names or not names):
                given.arguments[name] = change(argument)
        return formula(*given.args, **given.kwargs)

    return spoiled


def spoil(spec: str, formula: Callable[..., Tensor], *inputs: str) -> None:
    """Each input detached; a gradient that float32 alone lacks; float32 inside; axes of length 1 dropped;
    only tensors that are contiguous; an answer that is kept; an input changed in place."""
    for name in inputs:
        wrong(spec, f"{name} detached")(with_inputs(formula, Tensor.detach, name))
        wrong(spec, f"{name} half detached")(
            with_inputs(formula, lambda t: (t + t.detach()) / 2, name)
        )

    def in_float32(tensor: Tensor) -> Tensor:
        return tensor.detach() if tensor.dtype == torch.float32 else tensor

    wrong(spec, "no gradient in float32")(with_inputs(formula, in_float32))
    wrong(spec, "rounded to float32")(with_inputs(formula, lambda t: t.float().to(t.dtype)))
    wrong(spec, "rounded to float16 in float32")(
        with_inputs(formula, lambda t: t.half().float() if t.dtype == torch.float32 else t)
    )
    wrong(spec, "a view of the inputs")(with_inputs(formula, lambda t: t.view(-1).view(t.shape)))
    wrong(spec, "axes of length 1 dropped")(
        wraps(formula)(lambda *a, **o: formula(*a, **o).squeeze())
    )
    wrong(spec, "half of the gradient")(wraps(formula)(lambda *a, **o: _half(formula(*a, **o))))
    wrong(spec, "the seed set")(wraps(formula)(lambda *a, **o: _seeded(formula(*a, **o))))
    wrong(spec, "the first input doubled in place")(with_inputs(formula, _doubled, inputs[0]))
    kept: dict[Any, Tensor] = {}

    @wrong(spec, "the answer of the first call")
    @wraps(formula)
    def remembered(*placed: Any, **named: Any) -> Tensor:
        shapes = tuple(getattr(each, "shape", each) for each in placed)
        return kept.setdefault((shapes, *named), formula(*placed, **named).detach())


def _half(answer: Tensor) -> Tensor:
    return (answer + answer.detach()) / 2


def _seeded(answer: Tensor) -> Tensor:
    torch.manual_seed(0)
    return answer


def _doubled(tensor: Tensor) -> Tensor:
    with torch.no_grad():
        return tensor.mul_(2).div_(2).add_(1e-30).sub_(1e-30).mul_(2)
