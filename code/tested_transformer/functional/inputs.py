"""A call of attention(), packed once and handed on whole: every backend starts from here."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..errors import BackendError, argument_error, shape_of
from .masks import causal_mask, offsets, window_mask

NOTHING = nullcontext()


@dataclass
class AttentionInputs:
    """The arguments of attention(), with the scale filled in.

    A new option is a field here and an argument of `attention`; backends get it without another
    signature.

    Raises: ValueError for grouped-query attention, key lengths and slopes that do not fit the query.
    """

    query: Tensor  # *batch L d
    key: Tensor  # *batch S d
    value: Tensor  # *batch S dv
    scale: float
    mask: Tensor | None = None  # L S, or the rank of the scores
    bias: Tensor | None = None  # L S, or the rank of the scores
    causal: bool = False
    window: int | None = None
    key_lengths: Tensor | None = None  # B
    alibi_slopes: Tensor | None = None  # H
    dropout_p: float = 0.0
    return_weights: bool = False

    def __post_init__(self) -> None:
        batch, own = tuple(self.query.shape[:-2]), tuple(self.key.shape[:-2])  # B H, B G
        grouped = (
            len(batch) == len(own) == 2 and batch[0] == own[0] and own[1] and not batch[1] % own[1]
        )
        if own != batch and not grouped:
            wanted = f"query's batch axes {batch}"
            if len(batch) == 2:
                wanted += f" (or a number of heads that divides the {batch[1]} query heads)"
            raise argument_error(ValueError, "key", f"shape {shape_of(self.key)}", wanted)
        lengths, slopes = self.key_lengths, self.alibi_slopes
        if lengths is not None and lengths.shape != batch[:1]:
            wanted = f"one length per sample: {batch[:1] or 'a query with a batch axis'}"
            raise argument_error(ValueError, "key_lengths", f"shape {shape_of(lengths)}", wanted)
        if slopes is not None and slopes.shape != batch[-1:]:
            wanted = f"one slope per query head: {batch[-1:] or 'a query with a head axis'}"
            raise argument_error(ValueError, "alibi_slopes", f"shape {shape_of(slopes)}", wanted)

    @property
    def scores_shape(self) -> tuple[int, ...]:
        """*batch L S, with the query's heads."""
        return (*self.query.shape[:-1], self.key.shape[-2])

    @property
    def groups(self) -> int:
        """How many query heads share one key/value head (1: every head has its own)."""
        if self.query.ndim != 4 or self.key.shape[1] == 0:
            return 1
        return self.query.shape[1] // self.key.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """What scores and softmax are computed in: at least float32."""
        return torch.promote_types(self.query.dtype, torch.float32)

    def wide(self) -> AttentionInputs:
        """The same call with query, key and value in that dtype."""
        tensors = {name: getattr(self, name).to(self.dtype) for name in ("query", "key", "value")}
        return replace(self, **tensors)

    def allowed(self) -> Tensor | None:
        """Everything that hides a key, in one boolean mask; None if nothing does."""
        length, keys = self.scores_shape[-2:]
        parts = [] if self.mask is None else [self.mask]
        if self.causal:
            parts.append(causal_mask(length, keys, device=self.query.device))
        if self.window is not None:
            parts.append(window_mask(length, keys, window=self.window, device=self.query.device))
        if self.key_lengths is not None:
            kept = torch.arange(keys, device=self.query.device) < self.key_lengths[:, None]
            ones = [1] * (self.query.ndim - 2)
            parts.append(kept.view(kept.shape[0], *ones, keys))
        if self.bias is not None:
            parts.append(self.bias != float("-inf"))
        return reduce(torch.logical_and, parts) if parts else None

    def total_bias(self) -> Tensor | None:
        """What is added to the scores: the bias and ALiBi's distance penalty, or None."""
        if self.alibi_slopes is None:
            return self.bias
        distance = offsets(*self.scores_shape[-2:], device=self.query.device).abs()
        penalty = -self.alibi_slopes.to(self.dtype)[:, None, None] * distance
        return penalty if self.bias is None else self.bias + penalty


def no_autocast(device: str) -> AbstractContextManager:
    """A context without autocast, where there is any."""
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return NOTHING


def transforms() -> list[str]:
    """What torch.func does around this call, from the outside in: "vmap", "grad" (reverse), "jvp".

    "jvp" stands last for torch.autograd's own forward mode too.
    """
    if torch.compiler.is_compiling():
        return []
    stack = torch._C._functorch.get_interpreter_stack()
    modes = [level.key().name.lower() for level in stack] if stack else []
    return [*modes, "jvp"] if forward_ad._current_level >= 0 and "jvp" not in modes else modes


def once_differentiable(backend: str, output: Tensor) -> Tensor:
    """The output of a kernel without a second derivative: asking for one raises BackendError."""

    def first_only(_: object) -> None:
        if torch.is_grad_enabled():
            raise BackendError(
                f'backend "{backend}": its gradient cannot be differentiated again '
                '(create_graph=True); backend="plain" can'
            )

    if output.requires_grad and not torch.compiler.is_compiling() and not transforms():
        output.grad_fn.register_prehook(first_only)
    return output


def masked_bias(bias: Tensor, allowed: Tensor | None) -> Tensor:
    """The bias, -inf where it is not allowed: for kernels that take one tensor for both."""
    if allowed is None:
        return bias
    shape = torch.broadcast_shapes(bias.shape, allowed.shape)
    return bias.expand(shape).masked_fill(~allowed, float("-inf"))
