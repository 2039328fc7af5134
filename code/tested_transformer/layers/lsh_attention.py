"""LSH attention as a layer: one projection for queries and keys, and rotations that training draws anew."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..bounds import NonNegativeInt, PositiveInt, Seed, Where
from ..mixers.lsh import Form, lsh_attention, lsh_buckets
from ..shapes import checked
from .multi_head import concat_heads, head_size, split_heads

__all__ = ["LshAttention"]

EvenInt = Annotated[int, Where("an even number of at least 2", lambda n: n >= 2 and n % 2 == 0)]


class LshAttention(nn.Module):
    """Self-attention of a Reformer: hashed, sorted, and attended to in chunks.

    Linear layers `query_key`, `value` and `output`, without a bias, made in that order. In training each call
    hashes with new rotations; in evaluation they are those of `hash_seed`, so that a text has one output.

    num_buckets: about twice the number of chunks, says the paper: a bucket then has half a chunk.
    num_rounds, chunk_size, chunks_before, chunks_after, causal, form: see `lsh_attention`.

    Shapes: x (B, L, D), real (B, L), True for a token that is no padding -> (B, L, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Kitaev et al. 2020 (Reformer); transformers, LSHSelfAttention.
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        num_heads: PositiveInt,
        *,
        num_buckets: EvenInt,
        num_rounds: PositiveInt = 1,
        chunk_size: PositiveInt = 64,
        chunks_before: NonNegativeInt = 1,
        chunks_after: NonNegativeInt = 0,
        causal: bool = False,
        form: Form = "paper",
        d_head: PositiveInt | None = None,
        hash_seed: Seed = 0,
    ) -> None:
        super().__init__()
        d_head = head_size(d_model, num_heads, d_head)
        self.query_key = nn.Linear(d_model, num_heads * d_head, bias=False)
        self.value = nn.Linear(d_model, num_heads * d_head, bias=False)
        self.output = nn.Linear(num_heads * d_head, d_model, bias=False)
        self.num_heads, self.hash_seed = num_heads, hash_seed
        self.shape = (num_heads, d_head, num_rounds, num_buckets // 2)
        self.options = {
            "chunk_size": chunk_size, "chunks_before": chunks_before, "chunks_after": chunks_after,
            "causal": causal, "form": form,
        }  # fmt: skip

    @checked(like="self.value.weight", D="self.value.in_features")
    def forward(
        self, x: Float[Tensor, "B L D"], *, real: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B L D"]:
        """Attend within the text."""
        query = split_heads(self.query_key(x), self.num_heads)  # B H L d
        value = split_heads(self.value(x), self.num_heads)  # B H L d
        buckets = lsh_buckets(query, self._rotations(query), key_mask=real)  # B H R L
        heads = lsh_attention(query, value, buckets, key_mask=real, **self.options)
        return self.output(concat_heads(heads))  # B L D

    def _rotations(self, like: Tensor) -> Tensor:
        """(H, d, R, number of buckets / 2) in the dtype of the queries, drawn on the CPU."""
        seeded = None if self.training else torch.Generator().manual_seed(self.hash_seed)
        dtype = torch.promote_types(like.dtype, torch.float32)
        return torch.randn(self.shape, generator=seeded, dtype=dtype).to(like)
