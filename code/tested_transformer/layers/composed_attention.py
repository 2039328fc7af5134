"""DCMHA: multi-head attention whose heads are composed anew for every pair of tokens."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..bounds import AtLeast, Divides, PositiveFloat, PositiveInt
from ..functional.composed_heads import Composition, HeadMixing, composed_attention
from ..positions.protocol import PositionScheme
from ..shapes import checked
from .cache import AttentionCache
from .multi_head import concat_heads, split_heads

__all__ = ["ComposedAttention", "HeadMixingWeights"]


class HeadMixingWeights(nn.Module):
    """From each token one `HeadMixing`: down normalized over the heads, up, and a gate through tanh.

    up and the gate start at 0, so that at first nothing is mixed; down does not, or nothing would learn.

    Shapes: (B, T, D) -> down and up (B, T, R, H), gate (B, T, H).
    Raises: TypeError or ValueError that name the argument.
    Source: Xiao et al. 2024 (DCMHA); Caiyun-AI/DCFormer, DynamicWeightProjection.
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        num_heads: PositiveInt,
        *,
        rank: PositiveInt = 2,
        norm_eps: PositiveFloat = 1e-6,
    ) -> None:
        super().__init__()
        self.shape, self.norm_eps = (2, rank, num_heads), norm_eps
        width = 2 * rank * num_heads
        self.hidden = nn.Linear(d_model, width, bias=False)
        self.mixing = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(d_model, num_heads, bias=False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialize: up and the gate return 0."""
        nn.init.zeros_(self.mixing.weight[rank_and_heads(self.shape) :])
        nn.init.zeros_(self.gate.weight)

    @checked(like="self.hidden.weight", D="self.hidden.in_features")
    def forward(self, x: Float[Tensor, "B T D"]) -> HeadMixing:
        """The weights of every token."""
        mixing = self.mixing(nn.functional.gelu(self.hidden(x)))  # B T 2RH
        down, up = mixing.unflatten(-1, self.shape).unbind(-3)  # B T R H, twice
        down = nn.functional.rms_norm(down, down.shape[-1:], eps=self.norm_eps)
        return HeadMixing(down, up, self.gate(x).tanh())


class ComposedAttention(nn.Module):
    """Multi-head attention with a composition of heads before the softmax and one after it.

    `base` holds two H x H matrices, at first the identity: then this is multi-head attention. The cache
    keeps a token's key-side weights beside its value: 2 (2 R + 1) more numbers per head.

    Shapes: (B, L, D) -> (B, L, D), and the composed weights (B, H, L, S) with return_weights.
    Raises: TypeError or ValueError that name the argument.
    Source: Xiao et al. 2024 (DCMHA).
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        num_heads: Annotated[int, AtLeast(1), Divides("d_model")],
        *,
        rank: PositiveInt = 2,
        bias: bool = True,
        positions: PositionScheme | None = None,
    ) -> None:
        super().__init__()
        self.num_heads, self.rank, self.positions = num_heads, rank, positions
        for name in ("query", "key", "value", "output"):
            setattr(self, name, nn.Linear(d_model, d_model, bias=bias))
        self.base = nn.Parameter(torch.eye(num_heads).repeat(2, 1, 1))
        self.query_sides, self.key_sides = (
            nn.ModuleList(HeadMixingWeights(d_model, num_heads, rank=rank) for _ in range(2))
            for _ in range(2)
        )

    @checked(like="self.query.weight", D="self.query.in_features")
    def forward(
        self,
        x: Float[Tensor, "B L D"],
        *,
        mask: Bool[Tensor, "#L #T"] | Bool[Tensor, "#B #H #L #T"] | None = None,
        causal: bool = False,
        position_ids: Int[Tensor, " L"] | Int[Tensor, "#B L"] | None = None,
        cache: AttentionCache | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B L D"] | tuple[Float[Tensor, "B L D"], Float[Tensor, "B H L S"]]:
        """Attend, head by head, and compose; the arguments are those of `MultiHeadAttention`."""
        query, key, value = (
            split_heads(layer(x), self.num_heads) for layer in (self.query, self.key, self.value)
        )
        if self.positions is not None:
            position_ids = following(x, cache) if position_ids is None else position_ids
            query, key = self.positions.rotate(query, key, position_ids)
        value = torch.cat((value, packed([side(x) for side in self.key_sides])), -1)
        if cache is not None:
            key, value = cache.append(key, value)
        value, sides = value.split([query.shape[-1], value.shape[-1] - query.shape[-1]], -1)
        given = zip(self.base, self.query_sides, unpacked(sides, self.rank), strict=True)
        before, after = (Composition(base, side(x), other) for base, side, other in given)
        heads, weights = composed_attention(
            query, key, value, before, after, mask=mask, causal=causal, return_weights=True
        )
        output = self.output(concat_heads(heads))  # B L D
        return (output, weights) if return_weights else output


def rank_and_heads(shape: tuple[int, int, int]) -> int:
    """How many numbers down has, before those of up."""
    return shape[1] * shape[2]


def following(x: Tensor, cache: AttentionCache | None) -> Int[Tensor, " L"]:
    """The positions after those in the cache."""
    start = 0 if cache is None else cache.length
    return torch.arange(start, start + x.shape[1], device=x.device)


def packed(sides: list[HeadMixing]) -> Float[Tensor, "B H S n"]:
    """All numbers of two compositions, for each head those that it has: as features of its values."""
    rows = [
        row for side in sides for row in (side.down, side.up, side.gate.unsqueeze(-2))
    ]  # B S r H
    return torch.cat(rows, -2).permute(0, 3, 1, 2)


def unpacked(features: Float[Tensor, "B H S n"], rank: int) -> list[HeadMixing]:
    """What `packed` packed."""
    rows = features.permute(0, 2, 3, 1).chunk(2, -2)  # B S 2R+1 H, twice
    parts = (each.split([rank, rank, 1], -2) for each in rows)
    return [HeadMixing(down, up, gate.squeeze(-2)) for down, up, gate in parts]
