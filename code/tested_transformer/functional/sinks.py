"""Learned attention sinks: one logit per head in the softmax's denominator, so that a head may attend to nothing."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from ..bounds import AtLeast, PositiveInt
from ..shapes import checked
from .attention import Bias, attention
from .inputs import AttentionInputs
from .masks import Mask

__all__ = ["sink_attention"]


@checked(any_dtype="bias alibi_slopes sinks")
def sink_attention(
    query: Float[Tensor, "B H L d"],
    key: Float[Tensor, "B G S d"],
    value: Float[Tensor, "B G S dv"],
    sinks: Float[Tensor, " H"],
    *,
    mask: Mask | None = None,
    bias: Bias | None = None,
    causal: bool = False,
    window: PositiveInt | None = None,
    key_lengths: Annotated[Int[Tensor, " B"], AtLeast(0)] | None = None,
    alibi_slopes: Float[Tensor, " H"] | None = None,
    return_weights: bool = False,
    **options: Any,
) -> Float[Tensor, "B H L dv"] | tuple[Float[Tensor, "B H L dv"], Float[Tensor, "B H L S"]]:
    """Attend to the keys and to one more, the sink: its score is a number of the head, its value 0.

    A weight is exp(score) / (exp(sink) + the sum over the allowed keys of exp(score)), so the weights of a
    query sum to less than 1. The sink is never masked: neither mask, causal, window nor key_lengths hide
    it. A sink of -inf is none. scale, dropout_p and backend are those of `attention`, and so are the rest.

    Shapes: query (B, H, L, d), key (B, G, S, d), value (B, G, S, dv), sinks (H) -> (B, H, L, dv), and the
        weights (B, H, L, S), without the sink's, with return_weights.
    Raises: as `attention`.
    Source: OpenAI 2025 (gpt-oss, gpt_oss/torch/model.py, sdpa); Xiao et al. 2023 (StreamingLLM) for the name.
    """
    rules = AttentionInputs(
        query, key, value, 1.0, mask=mask, bias=bias, causal=causal, window=window,
        key_lengths=key_lengths, alibi_slopes=alibi_slopes,
    )  # fmt: skip
    answer = attention(
        query, pad(key, (0, 0, 1, 0)), pad(value, (0, 0, 1, 0)),  # B G 1+S .
        mask=sink_allowed(rules), bias=sink_bias(rules, sinks), return_weights=return_weights, **options,
    )  # fmt: skip
    if not return_weights:
        return answer
    output, weights = answer
    return output, weights[..., 1:]


def sink_allowed(rules: AttentionInputs) -> Tensor | None:
    """The mask with a column of True in front: the sink's."""
    allowed = rules.allowed()
    if allowed is None:
        return None
    allowed = allowed.expand(*allowed.shape[:-1], rules.scores_shape[-1])
    return pad(allowed, (1, 0), value=True)


def sink_bias(rules: AttentionInputs, sinks: Tensor) -> Tensor:
    """The bias with the sinks in a column in front."""
    bias = rules.total_bias()
    bias = sinks.new_zeros(()) if bias is None else bias
    shape = torch.broadcast_shapes(bias.shape, (1, len(sinks), 1, rules.scores_shape[-1]))
    column = sinks[:, None, None].expand(*shape[:-1], 1)  # . H . 1
    return torch.cat((column, bias.expand(shape)), -1)  # . H . 1+S
