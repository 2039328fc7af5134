"""Linear attention: without the softmax, one matrix stands for all keys and values; three forms of one function."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..bounds import PositiveInt
from ..errors import argument_error
from ..shapes import checked

__all__ = [
    "chunked_linear_attention",
    "elu_plus_one",
    "parallel_linear_attention",
    "recurrent_linear_attention",
]

FeatureMap = Literal["elu+1", "identity"]
Outputs = tuple[Float[Tensor, "B H L dv"], Float[Tensor, "B H d m"]]


@checked
def elu_plus_one(x: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """The feature map of linear attention: x + 1 above 0, exp(x) below. It is positive.

    elu(x) + 1 is the same function, but computes exp(x) - 1 + 1, which is 0 in float32 for x below -17.

    Shapes: any.
    Raises: TypeError that names the argument.
    Source: Katharopoulos et al. 2020 (Transformers are RNNs), section 3.

    >>> elu_plus_one(torch.tensor([-1.0, 0.0, 2.0]))
    tensor([0.3679, 1.0000, 3.0000])
    """
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


# --- Three forms of one function ------------------------------------------------------------------


@checked(any_dtype="state")
def parallel_linear_attention(
    query: Float[Tensor, "B H L d"],
    key: Float[Tensor, "B H L d"],
    value: Float[Tensor, "B H L dv"],
    *,
    feature_map: FeatureMap = "elu+1",
    normalize: bool = True,
    real: Bool[Tensor, "B L"] | None = None,
    state: Float[Tensor, "B H d m"] | None = None,
) -> Outputs:
    """All tokens at once: the scores phi(q) . phi(k) of the past, times the values.

    With `normalize` the scores of a token are divided by their sum, so that they are attention weights. The
    sum is that of a value that is always 1: it is the last column of the state, and m is dv + 1. Without it,
    m is dv. What came before the first token is in `state`. Where `real` is False, a key counts nothing.
    A token whose scores add to 0 has an output of 0.

    Shapes: query and key (B, H, L, d), value (B, H, L, dv), real (B, L), state (B, H, d, m) -> the output
        (B, H, L, dv) and the state after the last token, in at least float32.
    Raises: TypeError or ValueError that name the argument.
    Source: Katharopoulos et al. 2020 (Transformers are RNNs), section 3.
    """
    q, k, v, state = _prepared(query, key, value, feature_map, normalize, real, state)
    output = (q @ k.mT).tril() @ v + q @ state  # B H L m
    return _divided(output, normalize).to(query.dtype), state + k.mT @ v


@checked(any_dtype="state")
def recurrent_linear_attention(
    query: Float[Tensor, "B H L d"],
    key: Float[Tensor, "B H L d"],
    value: Float[Tensor, "B H L dv"],
    *,
    feature_map: FeatureMap = "elu+1",
    normalize: bool = True,
    real: Bool[Tensor, "B L"] | None = None,
    state: Float[Tensor, "B H d m"] | None = None,
) -> Outputs:
    """Token by token: the state takes in phi(k) v^T and is read by phi(q). Memory does not grow.

    Shapes, arguments: those of `parallel_linear_attention`, which gives the same numbers.
    Raises: TypeError or ValueError that name the argument.
    Source: Katharopoulos et al. 2020 (Transformers are RNNs), section 3.
    """
    q, k, v, state = _prepared(query, key, value, feature_map, normalize, real, state)
    outputs = [v[:, :, :0]]  # so that there is something to join without any token
    for t in range(query.shape[2]):
        state = state + k[:, :, t, :, None] * v[:, :, t, None, :]  # B H d m
        outputs.append(q[:, :, t, None] @ state)  # B H 1 m
    return _divided(torch.cat(outputs, 2), normalize).to(query.dtype), state


@checked(any_dtype="state")
def chunked_linear_attention(
    query: Float[Tensor, "B H L d"],
    key: Float[Tensor, "B H L d"],
    value: Float[Tensor, "B H L dv"],
    *,
    feature_map: FeatureMap = "elu+1",
    normalize: bool = True,
    real: Bool[Tensor, "B L"] | None = None,
    state: Float[Tensor, "B H d m"] | None = None,
    chunk_size: PositiveInt = 64,
) -> Outputs:
    """Parallel within a chunk, recurrent from chunk to chunk: linear time, and chunk_size^2 scores at once.

    The last chunk may be shorter.

    Shapes, arguments: those of `parallel_linear_attention`, which gives the same numbers.
    Raises: TypeError or ValueError that name the argument.
    Source: the chunks are those of Sun et al. 2023 (RetNet), equation 7.
    """
    q, k, v, state = _prepared(query, key, value, feature_map, normalize, real, state)
    outputs = []
    for q_part, k_part, v_part in zip(*(x.split(chunk_size, 2) for x in (q, k, v)), strict=True):
        outputs.append((q_part @ k_part.mT).tril() @ v_part + q_part @ state)
        state = state + k_part.mT @ v_part
    return _divided(torch.cat(outputs, 2), normalize).to(query.dtype), state


def _prepared(
    query: Tensor, key: Tensor, value: Tensor, feature_map: FeatureMap, normalize: bool,
    real: Tensor | None, state: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Features of queries and keys, the values with their 1, and the state, in at least float32."""
    wide = torch.promote_types(query.dtype, torch.float32)
    q, k, v = (each.to(wide) for each in (query, key, value))
    if feature_map == "elu+1":
        q, k = elu_plus_one(q), elu_plus_one(k)
    if real is not None:  # after the feature map: the features of a key of 0 are 1
        k = k.masked_fill(~real[:, None, :, None], 0.0)
    if normalize:
        v = torch.cat((v, v.new_ones(*v.shape[:3], 1)), -1)  # B H L dv+1
    if state is None:
        return q, k, v, v.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
    if state.shape[-1] != v.shape[-1]:
        wanted = f"a last axis of {v.shape[-1]}, " + ("dv + 1" if normalize else "dv")
        raise argument_error(ValueError, "state", tuple(state.shape), wanted)
    return q, k, v, state.to(wide)


def _divided(output: Tensor, normalize: bool) -> Tensor:
    """The weighted sum of the values, divided by the sum of the weights, which is its last column."""
    if not normalize:
        return output
    total = output[..., -1:]
    return output[..., :-1] / total.masked_fill(total == 0, 1.0)
