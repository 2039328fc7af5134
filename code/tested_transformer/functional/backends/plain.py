"""The formula, line by line: softmax(Q K^T scale + bias, over what is allowed) V."""

from __future__ import annotations

import torch
from torch import Tensor

from ..inputs import AttentionInputs
from ..masks import masked_softmax


def unsupported_reason(call: AttentionInputs) -> str | None:
    """The plain backend serves every call."""
    return None


def run(call: AttentionInputs) -> tuple[Tensor, Tensor]:
    """Answer the call, and give the weights too, computing in at least float32.

    Shapes: -> output (*batch, L, dv) and weights (*batch, L, S), in the query's dtype.
    Source: Vaswani et al. 2017, equation 1; dropout on the weights as in their code.
    """
    query, key, value = (t.to(call.dtype) for t in (call.query, call.key, call.value))
    if call.groups > 1:  # each key/value head serves `groups` neighboring query heads
        key = key.repeat_interleave(call.groups, dim=1)  # B H S d
        value = value.repeat_interleave(call.groups, dim=1)  # B H S dv
    scores = (query @ key.mT) * call.scale  # *batch L S
    bias = call.total_bias()
    if bias is not None:
        scores = scores + bias.to(call.dtype)
    weights = masked_softmax(scores, call.allowed())  # *batch L S
    if call.dropout_p > 0:
        weights = torch.nn.functional.dropout(weights, call.dropout_p, training=True)
    output = weights @ value  # *batch L dv
    return output.to(call.query.dtype), weights.to(call.query.dtype)
