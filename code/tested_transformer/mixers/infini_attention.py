"""Infini-attention: softmax attention within a segment, and one matrix that stands for all segments before it."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..bounds import PositiveInt
from ..errors import argument_error
from ..functional.attention import attention
from ..shapes import checked

__all__ = ["infini_attention"]

Memory = tuple[Float[Tensor, "B H d dv"], Float[Tensor, "B H d"]]


@checked(any_dtype="memory normalizer")
def infini_attention(
    query: Float[Tensor, "B H L d"],
    key: Float[Tensor, "B H L d"],
    value: Float[Tensor, "B H L dv"],
    gate: Float[Tensor, " H"],
    *,
    segment_length: PositiveInt,
    delta: bool = False,
    memory: Float[Tensor, "B H d dv"] | None = None,
    normalizer: Float[Tensor, "B H d"] | None = None,
    scale: float | None = None,
) -> tuple[Float[Tensor, "B H L dv"], Float[Tensor, "B H d dv"], Float[Tensor, "B H d"]]:
    """Segment by segment: attend within it, read the memory, and only then write the segment into it.

    In that order no token sees a later one: what a segment has written is read by the segments after it. The
    output is sigmoid(gate) times what the memory returns plus (1 - sigmoid(gate)) times causal
    attention within the segment; an empty memory returns 0. delta: write only what the memory does not
    return already for the same keys. memory and normalizer: those after the tokens before, with which the
    next call goes on where this one stopped; the end of a call is the end of a segment.

    Shapes: query and key (B, H, L, d), value (B, H, L, dv), gate (H), memory (B, H, d, dv), normalizer
        (B, H, d) -> the output (B, H, L, dv), and memory and normalizer after the last token, in at
        least float32.
    Raises: TypeError or ValueError that name the argument.
    Source: Munkhdalai et al. 2024 (Infini-attention), equations 3 to 8.
    """
    memory, normalizer = _given_or_empty(key, value, memory, normalizer)
    share = gate.sigmoid()[:, None, None].to(memory)  # H 1 1
    outputs = []
    segments = (each.split(segment_length, dim=2) for each in (query, key, value))
    for q, k, v in zip(*segments, strict=True):
        local = attention(q, k, v, causal=True, scale=scale)  # B H L dv
        recalled = _recall(q, memory, normalizer)  # B H L dv
        memory, normalizer = _memorize(k, v, memory, normalizer, delta)
        outputs.append(share * recalled + (1 - share) * local)
    return torch.cat(outputs, dim=2).to(query.dtype), memory, normalizer


def _positive(x: Tensor) -> Tensor:
    """ELU + 1: x + 1 above 0, exp(x) below; every weight in the memory is above 0.

    Not elu(x) + 1, which rounds: in float32 it is 0 from -17 on.
    """
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def _recall(query: Tensor, memory: Tensor, normalizer: Tensor) -> Float[Tensor, "B H L dv"]:
    """The mean of all values in the memory, weighted by how their keys match; 0 if there are none."""
    features = _positive(query.to(memory))  # B H L d
    total = features @ normalizer[..., None]  # B H L 1
    return features @ memory / total.masked_fill(total == 0, 1.0)


def _memorize(
    key: Tensor, value: Tensor, memory: Tensor, normalizer: Tensor, delta: bool
) -> Memory:
    """The memory and the sum of its keys after one more segment."""
    features, value = _positive(key.to(memory)), value.to(memory)  # B H L d, B H L dv
    if delta:
        value = value - _recall(key, memory, normalizer)
    return memory + features.mT @ value, normalizer + features.sum(dim=2)


def _given_or_empty(
    key: Tensor, value: Tensor, memory: Tensor | None, normalizer: Tensor | None
) -> Memory:
    """The memory in at least float32; one that nothing was written into is 0."""
    if (memory is None) != (normalizer is None):
        name = "memory" if memory is None else "normalizer"
        raise argument_error(
            ValueError, name, "None", "a tensor: memory and normalizer come together"
        )
    wide = torch.promote_types(value.dtype, torch.float32)
    if memory is None:
        memory = value.new_zeros(*key.shape[:2], key.shape[-1], value.shape[-1])
        normalizer = key.new_zeros(*key.shape[:2], key.shape[-1])
    return memory.to(wide), normalizer.to(wide)
