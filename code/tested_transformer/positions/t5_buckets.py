"""T5's relative positions: one number per head for each bucket of distances, added to the scores."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..bounds import PositiveInt
from ..errors import argument_error
from ..shapes import checked
from .protocol import PositionScheme

__all__ = ["T5Positions", "t5_buckets"]


@checked
def t5_buckets(
    query_ids: Int[Tensor, " L"] | Int[Tensor, "B L"],
    key_ids: Int[Tensor, " S"] | Int[Tensor, "B S"],
    *,
    num_buckets: PositiveInt = 32,
    max_distance: PositiveInt = 128,
    bidirectional: bool = True,
) -> Int[Tensor, "L S"] | Int[Tensor, "B L S"]:
    """The bucket of each pair of positions: small distances have one each, larger ones share.

    Of n buckets, the first n / 2 are distances 0, 1, 2 ... The others are equally wide on a logarithmic scale
    from n / 2 to max_distance, and the last one has everything beyond. bidirectional: half of the buckets are
    for keys after the query; otherwise all of them count as distance 0.

    Shapes: query_ids (L) or (B, L), key_ids (S) or (B, S) -> (L, S) or (B, L, S).
    Raises: TypeError or ValueError that name the argument.
    Source: Raffel et al. 2020 (T5), section 2.1; mesh-tensorflow, `_relative_position_bucket`.

    >>> ids = torch.arange(0, 60, 10)
    >>> t5_buckets(ids[-1:], ids, num_buckets=8, max_distance=40, bidirectional=False)
    tensor([[7, 7, 7, 6, 5, 0]])
    """
    check_buckets(num_buckets, max_distance, bidirectional)
    distance = key_ids.unsqueeze(-2) - query_ids.unsqueeze(-1)  # *ids L S
    if not bidirectional:
        return one_side(-distance.clamp(max=0), num_buckets, max_distance)
    half = num_buckets // 2
    return half * (distance > 0) + one_side(distance.abs(), half, max_distance)


def one_side(
    distance: Int[Tensor, "... L S"], num_buckets: int, max_distance: int
) -> Int[Tensor, "... L S"]:
    """The bucket of each distance from 0 on: exact, then by its logarithm, then the last one."""
    exact = num_buckets // 2
    ratio = distance.clamp(min=exact).double() / exact
    share = ratio.log() / math.log(max_distance / exact)  # 0 at exact, 1 at max_distance
    shared = exact + (share * (num_buckets - exact)).long()
    return torch.where(distance < exact, distance, shared.clamp(max=num_buckets - 1))


class T5Positions(PositionScheme):
    """A learned bias for each bucket of `t5_buckets` and each head.

    The parameter `table` (num_buckets, H) starts at 0, where no distance matters. All layers of a stack share
    one such scheme, so that it has parameters once; attention to an encoder's output has none.

    Shapes: query_ids (L) or (B, L), key_ids (S) or (B, S) -> bias (B, H, L, S), B = 1 without one.
    Raises: TypeError or ValueError that name the argument.
    Source: Raffel et al. 2020 (T5), section 2.1.
    """

    @checked
    def __init__(
        self,
        num_heads: PositiveInt,
        *,
        num_buckets: PositiveInt = 32,
        max_distance: PositiveInt = 128,
        bidirectional: bool = True,
    ) -> None:
        super().__init__()
        check_buckets(num_buckets, max_distance, bidirectional)
        self.num_heads, self.max_distance = num_heads, max_distance
        self.bidirectional = bidirectional
        self.table = nn.Parameter(torch.zeros(num_buckets, num_heads))

    @checked(H="self.num_heads", like="self.table")
    def bias(
        self,
        query_ids: Int[Tensor, " L"] | Int[Tensor, "B L"],
        key_ids: Int[Tensor, " S"] | Int[Tensor, "B S"],
        query: Float[Tensor, "B H L d"] | None = None,
    ) -> Float[Tensor, "#B H L S"]:
        """The bias of each pair's bucket, whatever the query."""
        rows = t5_buckets(
            query_ids, key_ids, num_buckets=len(self.table), max_distance=self.max_distance,
            bidirectional=self.bidirectional,
        )  # fmt: skip
        bias = self.table[rows].movedim(-1, -3)  # *ids H L S
        return bias if bias.ndim == 4 else bias[None]

    def extra_repr(self) -> str:
        """What a printed model says of it."""
        return (
            f"{self.num_heads}, num_buckets={len(self.table)}, max_distance={self.max_distance}, "
            f"bidirectional={self.bidirectional}"
        )


def check_buckets(num_buckets: int, max_distance: int, bidirectional: bool) -> None:
    """Raise unless there are exact buckets on every side, and distances beyond them."""
    least = 4 if bidirectional else 2
    if num_buckets < least:
        wanted = f"at least {least}, with bidirectional={bidirectional}"
        raise argument_error(ValueError, "num_buckets", num_buckets, wanted)
    exact = num_buckets // least
    if max_distance <= exact:
        wanted = f"more than {exact}, up to which each distance has a bucket"
        raise argument_error(ValueError, "max_distance", max_distance, wanted)
