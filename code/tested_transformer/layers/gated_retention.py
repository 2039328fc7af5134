"""Gated retention as a layer, and its cache: one state per head, however long the text."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from ..bounds import AtLeast, Below, NonNegativeInt, PositiveFloat, PositiveInt
from ..errors import argument_error
from ..mixers.retention import gated_retention
from ..positions.protocol import PositionScheme
from ..shapes import checked
from .cache import check_no_gradient
from .multi_head import concat_heads, head_size, split_heads

__all__ = ["GatedRetention", "RetentionState"]

STORED = {name: f"self.state.shape.{axis}" for axis, name in enumerate(("B", "H", "d", "dv"))}


class RetentionState:
    """The cache of a `GatedRetention`: the state after all tokens so far. It never grows.

    What a token did to the state cannot be undone: `truncate` takes back everything or nothing. A cache is for
    generation, not for training: gradients do not flow through it.

    Shapes: state (B, H, d, dv), in at least float32; None before the first call.
    Source: Sun et al. 2023 (RetNet), equation 6.
    """

    def __init__(self) -> None:
        self.state: Tensor | None = None
        self.length = 0

    @property
    def batch(self) -> int | None:
        """How many sequences there are; None before the first call."""
        return None if self.state is None else self.state.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of the state."""
        return 0 if self.state is None else self.state.nbytes

    @checked(like="self.state", **STORED)
    def update(self, state: Float[Tensor, "B H d dv"], new: NonNegativeInt) -> None:
        """Keep the state after `new` more tokens.

        Raises: TypeError or ValueError that name the argument; ValueError if a gradient would be lost.
        """
        check_no_gradient(state=state)
        self.state, self.length = state, self.length + new

    @checked(like="self.state")
    def reorder(self, rows: Annotated[Int[Tensor, " N"], AtLeast(0), Below("self.batch")]) -> None:
        """Keep these sequences of the batch, in this order; one may be named twice.

        Raises: TypeError or ValueError for rows that are no such numbers.
        """
        if self.state is None:
            raise RuntimeError("the cache is empty: update it first")
        self.state = self.state[rows]

    @checked
    def truncate(self, length: NonNegativeInt) -> None:
        """Forget everything, with length 0, or nothing, with the present one.

        Raises: TypeError or ValueError for any other length.
        """
        if length not in (0, self.length):
            wanted = f"0 or {self.length}: one state stands for all tokens so far"
            raise argument_error(ValueError, "length", length, wanted)
        if length == 0:
            self.state, self.length = None, 0


class GatedRetention(nn.Module):
    """Gated retention in the place of causal self-attention: its memory does not grow with the text.

    Linear layers `query`, `key`, `value`, `decay`, `gate` and `output`, made in that order. `decay` gives one
    logit per head and token, from which `gated_log_decay` makes the decay; `gate` gives the swish gate by which
    the normalized heads are multiplied.

    positions: a scheme whose `rotate` turns queries and keys. chunk_size: see `chunked_retention`.

    Shapes: x (B, L, D), real (B, L), True for a token that is no padding -> (B, L, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Sun et al. 2024 (YOCO), section 3.1; microsoft/unilm, YOCO/yoco/models/decoder/gate_retention.py.
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        num_heads: PositiveInt,
        *,
        d_head: PositiveInt | None = None,
        bias: bool = False,
        temperature: PositiveFloat = 16.0,
        positions: PositionScheme | None = None,
        norm_eps: PositiveFloat = 1e-5,
        chunk_size: PositiveInt = 64,
    ) -> None:
        super().__init__()
        d_head = head_size(d_model, num_heads, d_head)
        self.query = nn.Linear(d_model, num_heads * d_head, bias=bias)
        self.key = nn.Linear(d_model, num_heads * d_head, bias=bias)
        self.value = nn.Linear(d_model, num_heads * d_head, bias=bias)
        self.decay = nn.Linear(d_model, num_heads, bias=bias)
        self.gate = nn.Linear(d_model, num_heads * d_head, bias=bias)
        self.output = nn.Linear(num_heads * d_head, d_model, bias=bias)
        self.num_heads, self.d_head, self.positions = num_heads, d_head, positions
        self.temperature, self.norm_eps, self.chunk_size = temperature, norm_eps, chunk_size

    @checked(like="self.query.weight", D="self.query.in_features")
    def forward(
        self,
        x: Float[Tensor, "B L D"],
        *,
        real: Bool[Tensor, "B L"] | None = None,
        position_ids: Int[Tensor, " L"] | Int[Tensor, "#B L"] | None = None,
        cache: RetentionState | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Read the new tokens, after those that the cache has seen.

        position_ids are those of x, by default those that follow the cache.
        """
        query, key, value = (
            split_heads(layer(x), self.num_heads) for layer in (self.query, self.key, self.value)
        )  # B H L d
        if self.positions is not None:
            if position_ids is None:
                start = 0 if cache is None else cache.length
                position_ids = torch.arange(start, start + x.shape[1], device=x.device)
            query, key = self.positions.rotate(query, key, position_ids)
        heads, state = gated_retention(
            query, key, value, self.decay(x).mT, temperature=self.temperature, real=real,
            state=None if cache is None else cache.state,
            norm_eps=self.norm_eps, chunk_size=self.chunk_size,
        )  # fmt: skip
        if cache is not None:
            cache.update(state, x.shape[1])
        return self.output(functional.silu(self.gate(x)) * concat_heads(heads))  # B L D
