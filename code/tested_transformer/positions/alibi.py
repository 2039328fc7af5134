"""ALiBi: no positions in the model, only a penalty on each score that grows with the distance."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..bounds import Device, PositiveInt
from ..shapes import checked
from .protocol import PositionScheme

__all__ = ["ALiBi", "alibi_slopes"]


@checked
def alibi_slopes(num_heads: PositiveInt, *, device: Device | None = None) -> Float[Tensor, " H"]:
    """The slope of each head: a geometric sequence from 2^(-8/n) to 2^-8, n = num_heads.

    That holds for a power of two. Any other num_heads takes the n slopes of the next smaller power n,
    and then every second one of the 2n slopes, from the first: 2^(-4/n), 2^(-12/n), ...

    Shapes: a number -> (H), float32.
    Raises: TypeError or ValueError that name the argument.
    Source: Press et al. 2022, section 3, and `get_slopes` of their code for other numbers.

    >>> alibi_slopes(4).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    >>> alibi_slopes(6)[4:]  # the first and the third of 8 heads
    tensor([0.5000, 0.1250])
    """
    n = 2 ** (num_heads.bit_length() - 1)  # the largest power of two up to num_heads
    steps = torch.arange(1, n + 1, device=device)  # 1, 2, ... n
    extra = torch.arange(num_heads - n, device=device) + 0.5  # 0.5, 1.5, ...
    return 2.0 ** (-8 / n * torch.cat((steps, extra)))


class ALiBi(PositionScheme):
    """A bias of -slope x distance on every score, with `alibi_slopes` for the heads. No parameters.

    `bias` writes it out for any position IDs; `slopes` is for `attention(..., alibi_slopes=...)`,
    which counts the distance along the sequence and needs no L x S bias where a backend can do without.

    Shapes: query_ids (L) or (B, L), key_ids (S) or (B, S) -> bias (B, H, L, S), B = 1 without one.
    Raises: TypeError or ValueError that name the argument.
    Source: Press et al. 2022, section 3.
    """

    @checked
    def __init__(self, num_heads: PositiveInt) -> None:
        super().__init__()
        self.num_heads = num_heads

    @checked(H="self.num_heads")
    def bias(
        self,
        query_ids: Int[Tensor, " L"] | Int[Tensor, "B L"],
        key_ids: Int[Tensor, " S"] | Int[Tensor, "B S"],
        query: Float[Tensor, "B H L d"] | None = None,
    ) -> Float[Tensor, "B H L S"]:
        """-slope x |query position - key position|, in float32, whatever the query."""
        distance = (query_ids.unsqueeze(-1) - key_ids.unsqueeze(-2)).abs()  # *ids L S
        slopes = alibi_slopes(self.num_heads, device=query_ids.device).view(-1, 1, 1)  # H 1 1
        distance = distance if distance.ndim == 3 else distance[None]
        return -slopes * distance.unsqueeze(1)

    @checked
    def slopes(self, like: Tensor) -> Float[Tensor, " H"]:
        """`alibi_slopes` on the device of `like`."""
        return alibi_slopes(self.num_heads, device=like.device)

    def extra_repr(self) -> str:
        """What a printed model says of it."""
        return str(self.num_heads)
