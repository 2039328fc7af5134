"""Multi-head attention as separate modules, one for each head."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import (
    argument_error,
)
from ..functional.attention import attention
from .multi_head import MultiHeadAttention

__all__ = ["HeadByHead"]


class HeadByHead(nn.Module):
    """The same layer with a module for each head, run one after the other: to read, not to use.

    It copies the weights of a MultiHeadAttention: rows h d to (h + 1) d of `query`, `key` and `value`
    make the projections of head h; with num_kv_heads = G < H, those of its group.

    Shapes: as MultiHeadAttention.
    Raises: TypeError if `joined` is no MultiHeadAttention.
    Source: Vaswani et al. 2017, section 3.2.2, as the formula is written.
    """

    def __init__(self, joined: MultiHeadAttention) -> None:
        super().__init__()
        if not isinstance(joined, MultiHeadAttention):
            raise argument_error(TypeError, "joined", type(joined).__name__, "a MultiHeadAttention")
        self.heads = nn.ModuleList(Head(joined, head) for head in range(joined.num_heads))
        self.output = _rows(joined.output, slice(None))

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        context: Float[Tensor, "B S D_context"] | None = None,
        **options: Any,
    ) -> Float[Tensor, "B L D"]:
        """Ask each head, put the answers side by side, mix them.

        The options are those of `attention`, return_weights excepted; a mask is (L, S) or (B, L, S),
        for a head knows no others.
        """
        context = x if context is None else context
        answers = [head(x, context, **options) for head in self.heads]  # H times B L d
        return self.output(torch.cat(answers, dim=-1))


class Head(nn.Module):
    """One head of a MultiHeadAttention, with its own three small projections.

    Shapes: x (B, L, D), context (B, S, d_context) -> (B, L, d).
    """

    def __init__(self, joined: MultiHeadAttention, head: int) -> None:
        super().__init__()
        width = joined.query.out_features // joined.num_heads
        group = head * joined.num_kv_heads // joined.num_heads
        self.query = _rows(joined.query, slice(head * width, (head + 1) * width))
        self.key = _rows(joined.key, slice(group * width, (group + 1) * width))
        self.value = _rows(joined.value, slice(group * width, (group + 1) * width))

    def forward(
        self, x: Float[Tensor, "B L D"], context: Float[Tensor, "B S D_context"], **options: Any
    ) -> Float[Tensor, "B L d"]:
        """Attention as in chapter 1, with d numbers a token."""
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
