"""The state space of Mamba-2 (SSD): one decay per head, and so attention with a 1-semiseparable mask."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..bounds import PositiveInt
from ..errors import argument_error
from ..shapes import checked
from .retention import chunked_retention, parallel_retention, recurrent_retention

__all__ = ["chunked_ssd", "parallel_ssd", "recurrent_ssd"]

Outputs = tuple[Float[Tensor, "B H L d"], Float[Tensor, "B H N d"]]


@checked(any_dtype="delta a skip state")
def parallel_ssd(
    x: Float[Tensor, "B H L d"],
    delta: Float[Tensor, "B H L"],
    a: Float[Tensor, " H"],
    b: Float[Tensor, "B G L N"],
    c: Float[Tensor, "B G L N"],
    *,
    skip: Float[Tensor, " H"] | None = None,
    state: Float[Tensor, "B H N d"] | None = None,
    real: Bool[Tensor, "B L"] | None = None,
) -> Outputs:
    """All tokens at once: (C B^T * M) (delta x), where M[i, j] is the product of the decays of tokens j+1 to i.

    Queries are c, keys are b, values are x times its step size delta, and the decay is exp(delta a): retention
    without a scale. b and c have G groups, each shared by H / G neighboring heads: these share key and query, and
    each has values of its own. Padding, where `real` is False, has a step of 0: it leaves the state alone.

    Shapes: x (B, H, L, d), delta (B, H, L), a and skip (H), b and c (B, G, L, N), state (B, H, N, d), real (B, L)
        -> (B, H, L, d), and the state after the last token, in at least float32.
    Raises: TypeError or ValueError that name the argument; ValueError unless G divides H.
    Source: Dao and Gu 2024 (Mamba-2).
    """
    y, state = parallel_retention(*_as_retention(x, delta, a, b, c, real), state=state, scale=1.0)
    return _skipped(y, x, skip), state


@checked(any_dtype="delta a skip state")
def recurrent_ssd(
    x: Float[Tensor, "B H L d"],
    delta: Float[Tensor, "B H L"],
    a: Float[Tensor, " H"],
    b: Float[Tensor, "B G L N"],
    c: Float[Tensor, "B G L N"],
    *,
    skip: Float[Tensor, " H"] | None = None,
    state: Float[Tensor, "B H N d"] | None = None,
    real: Bool[Tensor, "B L"] | None = None,
) -> Outputs:
    """Token by token: h = exp(delta a) h + delta b x^T, then y = c^T h + skip x.

    Shapes, arguments: those of `parallel_ssd`, which gives the same numbers.
    Raises: TypeError or ValueError that name the argument; ValueError unless G divides H.
    Source: Dao and Gu 2024 (Mamba-2).
    """
    y, state = recurrent_retention(*_as_retention(x, delta, a, b, c, real), state=state, scale=1.0)
    return _skipped(y, x, skip), state


@checked(any_dtype="delta a skip state")
def chunked_ssd(
    x: Float[Tensor, "B H L d"],
    delta: Float[Tensor, "B H L"],
    a: Float[Tensor, " H"],
    b: Float[Tensor, "B G L N"],
    c: Float[Tensor, "B G L N"],
    *,
    skip: Float[Tensor, " H"] | None = None,
    state: Float[Tensor, "B H N d"] | None = None,
    real: Bool[Tensor, "B L"] | None = None,
    chunk_size: PositiveInt = 64,
) -> Outputs:
    """Attention within a chunk, the state from chunk to chunk.

    Shapes, arguments: those of `parallel_ssd`, which gives the same numbers.
    Raises: TypeError or ValueError that name the argument; ValueError unless G divides H.
    Source: Dao and Gu 2024 (Mamba-2).
    """
    given: dict[str, Any] = {"state": state, "scale": 1.0, "chunk_size": chunk_size}
    y, state = chunked_retention(*_as_retention(x, delta, a, b, c, real), **given)
    return _skipped(y, x, skip), state


def _as_retention(
    x: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, real: Tensor | None
) -> tuple[Tensor, ...]:
    """Query, key, value and log_decay of a retention, in at least float32."""
    heads, groups = x.shape[1], b.shape[1]
    if groups == 0 or heads % groups:
        raise argument_error(ValueError, "b", f"{groups} groups", f"a divisor of {heads} heads")
    wide = torch.promote_types(x.dtype, torch.float32)
    x, delta, a, b, c = (each.to(wide) for each in (x, delta, a, b, c))
    if real is not None:
        delta = delta.masked_fill(~real[:, None], 0.0)
    key, query = (each.repeat_interleave(heads // groups, dim=1) for each in (b, c))
    return query, key, delta[..., None] * x, delta * a[:, None]


def _skipped(y: Tensor, x: Tensor, skip: Tensor | None) -> Tensor:
    """The output with the input that goes around the state, in the input's dtype."""
    y = y if skip is None else y + skip.to(y.dtype)[:, None, None] * x
    return y.to(x.dtype)
