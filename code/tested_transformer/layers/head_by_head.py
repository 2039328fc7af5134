"""Multi-head attention as separate modules, one per head."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..bounds import check_known
from ..functional.attention import attention
from ..shapes import checked
from .multi_head import MultiHeadAttention

__all__ = ["HeadByHead"]


class HeadByHead(nn.Module):
    """The same layer with a module per head, run one after the other: to read, not to use.

    It copies the weights of a MultiHeadAttention: rows h d to (h + 1) d of `query`, `key` and `value`
    make the projections of head h; with num_kv_heads = G < H, those of its group.

    Shapes: as MultiHeadAttention.
    Raises: TypeError if `joined` is no MultiHeadAttention; ValueError if it has positions or a window.
    Source: Vaswani et al. 2017, section 3.2.2, as the formula is written.
    """

    @checked
    def __init__(self, joined: MultiHeadAttention) -> None:
        super().__init__()
        check_known("joined", joined, {"positions": (None,), "window": (None,)})
        self.heads = nn.ModuleList(Head(joined, head) for head in range(joined.num_heads))
        self.output = _rows(joined.output, slice(None))

    @checked(
        like="self.output.weight",
        D="self.output.out_features",
        D_context="self.heads.0.key.in_features",
    )
    def forward(
        self,
        x: Float[Tensor, "B L D"],
        context: Float[Tensor, "B S D_context"] | None = None,
        **options: Any,
    ) -> Float[Tensor, "B L D"]:
        """Run each head, concatenate their outputs, project.

        The options are those of `attention`, return_weights excepted; a mask is (L, S) or (B, L, S),
        the same for all heads.
        """
        context = x if context is None else context
        outputs = [head(x, context, **options) for head in self.heads]  # H times B L d
        return self.output(torch.cat(outputs, dim=-1))


class Head(nn.Module):
    """One head of a MultiHeadAttention, with its own three small projections.

    Shapes: x (B, L, D), context (B, S, d_context) -> (B, L, d).
    """

    def __init__(self, joined: MultiHeadAttention, head: int) -> None:
        super().__init__()
        d, group = joined.d_head, head * joined.num_kv_heads // joined.num_heads
        self.query = _rows(joined.query, slice(head * d, (head + 1) * d))
        self.key = _rows(joined.key, slice(group * d, (group + 1) * d))
        self.value = _rows(joined.value, slice(group * d, (group + 1) * d))

    def forward(
        self, x: Float[Tensor, "B L D"], context: Float[Tensor, "B S D_context"], **options: Any
    ) -> Float[Tensor, "B L d"]:
        """Attention as in chapter 1, with d features per token."""
        return attention(self.query(x), self.key(context), self.value(context), **options)


def _rows(layer: nn.Linear, rows: slice) -> nn.Linear:
    """A copy of some rows of a linear layer: those outputs, and no others."""
    weight, bias = layer.weight[rows], layer.bias
    part = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None).to(weight)
    with torch.no_grad():
        part.weight.copy_(weight)
        if bias is not None:
            part.bias.copy_(bias[rows])
    return part
