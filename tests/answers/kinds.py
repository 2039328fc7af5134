"""The plain formulas of chapters 12 to 22, each wrong in one of the ways in which any function can be.

The kinds take turns: what rejects one of them is the same code for all Specs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from tested_transformer.errors import BackendError
from tested_transformer.specs import SPECS, Spec

from . import wrong

Formula = Callable[..., Any]


def floats(given: Any) -> Iterator[Tensor]:
    """The floating point tensors among arguments, or in an answer."""
    if isinstance(given, Tensor) and given.is_floating_point():
        yield given
    elif isinstance(given, list | tuple | dict):
        for each in given.values() if isinstance(given, dict) else given:
            yield from floats(each)


def changed(answer: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """An answer whose floating point tensors are changed."""
    if isinstance(answer, tuple):
        return tuple(changed(each, change) for each in answer)
    return change(answer) if isinstance(answer, Tensor) and answer.is_floating_point() else answer


def doubled_without_gradients(answer: Any, given: dict[str, Any]) -> Any:
    return answer if torch.is_grad_enabled() else changed(answer, lambda t: 2 * t)


def shifted_in_training(answer: Any, given: dict[str, Any]) -> Any:
    asked = any(tensor.requires_grad for tensor in floats(given))
    return changed(answer, lambda t: t + 1 if asked else t)


def detached_beside_a_frozen_input(answer: Any, given: dict[str, Any]) -> Any:
    asking = [tensor for tensor in floats(given) if tensor.requires_grad]
    if not asking or len(asking) == len(list(floats(given))):
        return answer
    return changed(answer, lambda t: t.detach() + 0 * sum(each.sum() for each in asking))


def kept_for_good(formula: Formula) -> Formula:
    seen: list[Any] = []

    def keeps(**given: Any) -> Any:
        seen.append(given)
        return formula(**given)

    return keeps


def one_buffer(formula: Formula) -> Formula:
    buffers: dict[Any, Tensor] = {}

    def put(tensor: Tensor) -> Tensor:
        if tensor.requires_grad:
            return tensor
        return buffers.setdefault((tensor.shape, tensor.dtype), tensor.clone()).copy_(tensor)

    return lambda **given: changed(formula(**given), put)


def of_views(formula: Formula) -> Formula:
    def flat(given: Any) -> Any:
        return given.view(-1).view(given.shape) if isinstance(given, Tensor) else given

    return lambda **given: formula(**{name: flat(each) for name, each in given.items()})


def all_but_the_first(formula: Formula) -> Formula:
    first: list[Any] = []

    def refuses(**given: Any) -> Any:
        sizes = [tensor.shape for tensor in floats(given)]
        first[:] = first or [sizes]
        if sizes != first[0]:
            raise BackendError("not these sizes")
        return formula(**given)

    return refuses


def after(change: Callable[[Any, dict[str, Any]], Any]) -> Callable[[Formula], Formula]:
    return lambda formula: lambda **given: change(formula(**given), given)


KINDS = {
    "doubled under no_grad": after(doubled_without_gradients),
    "another answer where a gradient is asked for": after(shifted_in_training),
    "detached where one of the inputs is frozen": after(detached_beside_a_frozen_input),
    "every input is kept": kept_for_good,
    "one buffer for all answers": one_buffer,
    "tensors that lie in memory in order": of_views,
    "refused but for the first sizes": all_but_the_first,
}


def spoil(spec: Spec, name: str) -> None:
    spoiled = KINDS[name](spec.baseline)

    @wrong(spec.name, name)
    @wraps(spec.baseline)
    def candidate(*placed: Any, **named: Any) -> Any:
        return spoiled(**dict(zip(spec.required, placed, strict=False)), **named)


REBUILT = {
    "composed_attention",
    "hyper_connection",
    "lsh_attention",
    "read_by_segments",
    "rotary_attention",
}

for _place, _spec in enumerate(SPECS.values()):
    _asked = _spec.chapter >= 12 and _spec.baseline is not None and _spec.differentiable
    if _asked and _spec.name not in REBUILT:  # whose candidates get other arguments
        spoil(_spec, [*KINDS][(_place + (len(_spec.required) == 1)) % len(KINDS)])
