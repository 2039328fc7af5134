"""XLNet's attention: a content stream that has read each token, and a query stream that must predict it."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..bounds import PositiveInt, Probability
from ..errors import argument_error
from ..functional.relative_shift import transformer_xl_attention
from ..shapes import checked

__all__ = ["TwoStreamAttention"]


class TwoStreamAttention(nn.Module):
    """Attention by content, distance and segment; both streams attend to the content stream's keys and values.

    The query stream has one vector per target, which knows the target's position and not its token. Parameters
    `query`, `key`, `value`, `position` and `output` (D, H, d), `content_bias`, `position_bias` and
    `segment_bias` (H, d), and `segment` (2, H, d), for keys of the query's own segment and of another, start
    as noise of standard deviation 0.02. Two vectors for "own" and "other" serve any number of segments.

    Shapes: content (B, L, D), targets (B, M, D) -> the same.
    Raises: TypeError or ValueError that name the argument.
    Source: Yang et al. 2019 (XLNet), sections 2.3 to 2.5.
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        num_heads: PositiveInt,
        *,
        d_head: PositiveInt,
        dropout: Probability = 0.0,
    ) -> None:
        super().__init__()
        heads = (num_heads, d_head)
        for name in ("query", "key", "value", "position", "output"):
            setattr(self, name, nn.Parameter(0.02 * torch.randn(d_model, *heads)))
        for name in ("content_bias", "position_bias", "segment_bias"):
            setattr(self, name, nn.Parameter(0.02 * torch.randn(heads)))
        self.segment = nn.Parameter(0.02 * torch.randn(2, *heads))
        self.dropout = dropout

    @checked(like="self.query", D="self.query.shape.0")
    def forward(
        self,
        content: Float[Tensor, "B L D"],
        targets: Float[Tensor, "B M D"] | None = None,
        *,
        encodings: Float[Tensor, "R D"],
        content_mask: Bool[Tensor, "#B 1 #L L"] | None = None,
        query_mask: Bool[Tensor, "#B 1 #L L"] | None = None,
        mapping: Float[Tensor, "B M L"] | None = None,
        other_segment: Bool[Tensor, "B L L"] | None = None,
    ) -> tuple[Float[Tensor, "B L D"], Float[Tensor, "B M D"] | None]:
        """Both streams; without targets the content stream alone.

        encodings: those of `distance_encodings`. mapping: that of `target_mapping`, which puts each target at its
        position, for its distances and its row of the query mask. other_segment: whether query i and key
        j are in different segments.
        """
        if (targets is None) != (mapping is None):
            name = "targets" if targets is None else "mapping"
            wanted = "a tensor: targets and mapping come together"
            raise argument_error(ValueError, name, "None", wanted)
        keys = {
            "key": project(content, self.key), "value": project(content, self.value),
            "position_key": torch.einsum("rm,mhd->hrd", encodings, self.position),
        }  # fmt: skip
        query = project(content, self.query)  # B H L d
        content = self._attend(query, mask=content_mask, other=other_segment, **keys)
        if targets is None:
            return content, None
        query = project(mapping.mT @ targets, self.query)  # B H L d: 0 where nothing is predicted
        placed = self._attend(query, mask=query_mask, other=other_segment, **keys)  # B L D
        return content, mapping @ placed

    def _attend(
        self, query: Tensor, *, mask: Tensor | None, other: Tensor | None, **keys: Tensor
    ) -> Float[Tensor, "B L D"]:
        """One stream."""
        heads = transformer_xl_attention(
            query, content_bias=self.content_bias, position_bias=self.position_bias, mask=mask,
            bias=None if other is None else self._by_segment(query, other),
            dropout_p=self.dropout if self.training else 0.0, **keys,
        )  # fmt: skip
        return torch.einsum("bhld,mhd->blm", heads, self.output)

    def _by_segment(self, query: Tensor, other: Tensor) -> Float[Tensor, "B H L L"]:
        """The segment term: each query times the vector for its own segment, or that for another."""
        own = query + self.segment_bias[:, None]  # B H L d
        scores = torch.einsum("bhld,shd->sbhl", own, self.segment) * query.shape[-1] ** -0.5
        return torch.where(other[:, None], scores[1][..., None], scores[0][..., None])


def project(x: Float[Tensor, "B L D"], weight: Float[Tensor, "D H d"]) -> Float[Tensor, "B H L d"]:
    """A linear layer to all heads."""
    return torch.einsum("blm,mhd->bhld", x, weight)
