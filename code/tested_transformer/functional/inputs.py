"""A call of attention(), checked once: every backend starts from here."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import (
    argument_error,
    check_bool,
    check_count,
    check_float_tensor,
    check_integer_tensor,
    check_number,
    check_probability,
    check_rank,
    shape_of,
)
from .masks import causal_mask, check_mask, check_scores_shape, combine_masks, offsets, window_mask


@dataclass(frozen=True)
class AttentionInputs:
    """The arguments of attention(), valid and with their defaults filled in."""

    query: Tensor  # *batch L d
    key: Tensor  # *batch S d
    value: Tensor  # *batch S dv
    mask: Tensor | None  # L S, or the rank of the scores
    bias: Tensor | None  # L S, or the rank of the scores
    causal: bool
    window: int | None
    key_lengths: Tensor | None  # B
    alibi_slopes: Tensor | None  # H
    scale: float
    dropout_p: float
    return_weights: bool

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

    def allowed(self) -> Tensor | None:
        """Everything that hides a key, in one boolean mask; None if nothing does."""
        length, keys = self.scores_shape[-2:]
        parts = [self.mask]
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
        return combine_masks(*parts)

    def total_bias(self) -> Tensor | None:
        """What is added to the scores: the bias and ALiBi's distance penalty, or None."""
        if self.alibi_slopes is None:
            return self.bias
        distance = offsets(*self.scores_shape[-2:], device=self.query.device).abs()
        slopes = self.alibi_slopes.to(torch.promote_types(self.query.dtype, torch.float32))
        penalty = -slopes[:, None, None] * distance
        return penalty if self.bias is None else self.bias + penalty


def masked_bias(bias: Tensor, allowed: Tensor | None) -> Tensor:
    """The bias, -inf where it is not allowed: for kernels that take one tensor for both."""
    if allowed is None:
        return bias
    shape = torch.broadcast_shapes(bias.shape, allowed.shape)
    return bias.expand(shape).masked_fill(~allowed, float("-inf"))


def check_call(
    query, key, value, *, mask, bias, causal, window, key_lengths, alibi_slopes, scale,
    dropout_p, return_weights,
) -> AttentionInputs:  # fmt: skip
    """Check the arguments of attention() and fill in the scale; raise TypeError or ValueError."""
    _check_tensors(query, key, value)
    scores_shape = (*query.shape[:-1], key.shape[-2])
    if mask is not None:
        check_mask("mask", mask, scores_shape)
        _same_device("mask", mask, query)
    if bias is not None:
        check_float_tensor("bias", bias)
        check_scores_shape("bias", bias, scores_shape)
        _same_device("bias", bias, query)
    check_bool("causal", causal)
    check_bool("return_weights", return_weights)
    if window is not None:
        check_count("window", window)
    if key_lengths is not None:
        _check_key_lengths(key_lengths, query)
    if alibi_slopes is not None:
        _check_slopes(alibi_slopes, query)
    if scale is not None:
        check_number("scale", scale)
    check_probability("dropout_p", dropout_p)
    scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
    return AttentionInputs(
        query, key, value, mask, bias, causal, window, key_lengths, alibi_slopes, scale,
        float(dropout_p), return_weights,
    )  # fmt: skip


def _check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check_float_tensor(name, tensor)
        if tensor.ndim < 2:
            raise argument_error(ValueError, name, f"shape {shape_of(tensor)}", "at least 2 axes")
    for name, tensor in (("key", key), ("value", value)):
        if tensor.ndim != query.ndim:
            came, wanted = f"shape {shape_of(tensor)}", f"{query.ndim} axes, as query has"
            raise argument_error(ValueError, name, came, wanted)
        if tensor.dtype != query.dtype:
            raise argument_error(TypeError, name, tensor.dtype, f"query's dtype {query.dtype}")
        _same_device(name, tensor, query)
    if query.shape[-1] == 0:
        raise argument_error(
            ValueError, "query", f"shape {shape_of(query)}", "a head size of at least 1"
        )
    if key.shape[-1] != query.shape[-1]:
        wanted = f"query's head size {query.shape[-1]} in the last axis"
        raise argument_error(ValueError, "key", f"shape {shape_of(key)}", wanted)
    if value.shape[:-1] != key.shape[:-1]:
        wanted = f"key's batch axes and length {tuple(key.shape[:-1])}"
        raise argument_error(ValueError, "value", f"shape {shape_of(value)}", wanted)
    _check_batch(query, key)


def _check_batch(query: Tensor, key: Tensor) -> None:
    if query.shape[:-2] == key.shape[:-2]:
        return
    if query.ndim != 4 or query.shape[0] != key.shape[0]:
        wanted = f"query's batch axes {tuple(query.shape[:-2])}"
        raise argument_error(ValueError, "key", f"shape {shape_of(key)}", wanted)
    heads, groups = query.shape[1], key.shape[1]
    if groups == 0 or heads % groups:
        wanted = f"a number of key heads that divides the {heads} query heads"
        raise argument_error(ValueError, "key", f"{groups} heads", wanted)


def _check_key_lengths(key_lengths: Tensor, query: Tensor) -> None:
    check_integer_tensor("key_lengths", key_lengths)
    check_rank("key_lengths", key_lengths, 1)
    _same_device("key_lengths", key_lengths, query)
    if query.ndim < 3:
        raise argument_error(
            ValueError, "key_lengths", "a query without batch axis", "a batch axis"
        )
    if key_lengths.shape[0] != query.shape[0]:
        came, wanted = f"shape {shape_of(key_lengths)}", f"one length a sample: ({query.shape[0]},)"
        raise argument_error(ValueError, "key_lengths", came, wanted)
    # Reading values on a GPU would wait for it, and stops torch.compile: checked on the CPU only.
    readable = key_lengths.device.type == "cpu" and not torch.compiler.is_compiling()
    if readable and key_lengths.numel() and int(key_lengths.min()) < 0:
        raise argument_error(ValueError, "key_lengths", key_lengths.tolist(), "no negative lengths")


def _check_slopes(slopes: Tensor, query: Tensor) -> None:
    check_float_tensor("alibi_slopes", slopes)
    _same_device("alibi_slopes", slopes, query)
    if query.ndim < 3 or slopes.shape != (query.shape[-3],):
        heads = query.shape[-3] if query.ndim >= 3 else "a head axis"
        wanted = f"one slope a query head: ({heads},)"
        raise argument_error(ValueError, "alibi_slopes", f"shape {shape_of(slopes)}", wanted)


def _same_device(name: str, tensor: Tensor, query: Tensor) -> None:
    if tensor.device != query.device:
        raise argument_error(ValueError, name, tensor.device, f"query's device {query.device}")
