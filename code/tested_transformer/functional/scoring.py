"""Scoring functions: how well a query and a key match. Attention is any of them, then a softmax.

Every `..._scores` function gives scores of shape (*batch, L, S), in at least float32, so that
float16 and bfloat16 inputs neither overflow nor lose the small differences that a softmax sees.
`attend` turns scores into weights and weights into means of the values.
"""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..bounds import AtLeast, Below, NonNegativeInt, PositiveFloat, PositiveInt, Probability
from ..shapes import checked
from .masks import Mask, combine_masks, masked_softmax

__all__ = [
    "additive_scores",
    "attend",
    "bilinear_scores",
    "content_scores",
    "dot_scores",
    "gaussian_scores",
    "hard_attention",
    "kernel_regression",
    "local_weights",
    "local_window",
    "location_scores",
    "predicted_centers",
    "reinforce_loss",
]

# --- Scores ---------------------------------------------------------------------------------------


@checked
def dot_scores(
    query: Float[Tensor, "*batch L d"],
    key: Float[Tensor, "*batch S d"],
    *,
    scale: float | None = None,
) -> Float[Tensor, "*batch L S"]:
    """Score by the dot product: q . k x scale.

    Shapes: query (*batch, L, d), key (*batch, S, d) -> (*batch, L, S). The scale defaults to
    1 / sqrt(d), as in `attention`; Luong's "dot" has scale=1.
    Raises: TypeError or ValueError that name the argument.
    Source: Luong et al. 2015, section 3.1, "dot"; the scale: Vaswani et al. 2017, equation 1.

    >>> dot_scores(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]), scale=1.0)
    tensor([[11.]])
    """
    query, key = wide(query, key)
    return query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)  # *batch L S


@checked
def bilinear_scores(
    query: Float[Tensor, "*batch L dq"],
    key: Float[Tensor, "*batch S dk"],
    weight: Float[Tensor, "dq dk"],
) -> Float[Tensor, "*batch L S"]:
    """Score by a learned dot product: q^T W k. Queries and keys may differ in size.

    Shapes: query (*batch, L, dq), key (*batch, S, dk), weight (dq, dk) -> (*batch, L, S).
    Raises: TypeError or ValueError that name the argument.
    Source: Luong et al. 2015, section 3.1, "general".
    """
    query, key, weight = wide(query, key, weight)
    return query @ weight @ key.mT  # *batch L S


@checked
def additive_scores(
    query: Float[Tensor, "*batch L dq"],
    key: Float[Tensor, "*batch S dk"],
    w_query: Float[Tensor, "hidden dq"],
    w_key: Float[Tensor, "hidden dk"],
    w_v: Float[Tensor, " hidden"],
) -> Float[Tensor, "*batch L S"]:
    """Score by a small network with one hidden layer: w_v^T tanh(W_q q + W_k k).

    Each side is projected once, L + S times in all; the sum and the tanh are taken for every pair,
    which makes a tensor of L x S x hidden numbers.

    Shapes: query (*batch, L, dq), key (*batch, S, dk), w_query (hidden, dq), w_key (hidden, dk),
        w_v (hidden) -> (*batch, L, S).
    Raises: TypeError or ValueError that name the argument.
    Source: Bahdanau et al. 2015, appendix A.1.2.
    """
    query, key, w_query, w_key, w_v = wide(query, key, w_query, w_key, w_v)
    projected_query = (query @ w_query.mT).unsqueeze(-2)  # *batch L 1 hidden
    projected_key = (key @ w_key.mT).unsqueeze(-3)  # *batch 1 S hidden
    return torch.tanh(projected_query + projected_key) @ w_v  # *batch L S


@checked
def location_scores(
    query: Float[Tensor, "*batch L d"], weight: Float[Tensor, "S d"]
) -> Float[Tensor, "*batch L S"]:
    """Score each place by the query alone: W q. What stands at the places is not looked at.

    Shapes: query (*batch, L, d), weight (S, d), a row for each place -> (*batch, L, S).
    Raises: TypeError or ValueError that name the argument.
    Source: Luong et al. 2015, equation 8, "location".
    """
    query, weight = wide(query, weight)
    return query @ weight.mT  # *batch L S


@checked
def content_scores(
    query: Float[Tensor, "*batch L d"],
    key: Float[Tensor, "*batch S d"],
    sharpness: PositiveFloat | Float[Tensor, "*batch L"] = 1.0,
) -> Float[Tensor, "*batch L S"]:
    """Score by the cosine of the angle between query and key, times a sharpness.

    Only directions count. A vector of zeros has none, and scores 0.

    Shapes: query (*batch, L, d), key (*batch, S, d), sharpness a number above 0 or (*batch, L), one
        for each query -> (*batch, L, S).
    Raises: TypeError or ValueError that name the argument.
    Source: Graves et al. 2014, equations 5 and 6.
    """
    if isinstance(sharpness, Tensor):
        sharpness = sharpness.unsqueeze(-1)  # *batch L 1
    query, key = (direction(vectors) for vectors in wide(query, key))
    return query @ key.mT * sharpness  # *batch L S


def direction(vectors: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
    """Each vector divided by its length; a vector of zeros stays, with a finite gradient."""
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / length.masked_fill(length == 0, 1.0)


@checked
def gaussian_scores(
    query: Float[Tensor, "*batch L d"],
    key: Float[Tensor, "*batch S d"],
    bandwidth: PositiveFloat | Float[Tensor, ""],
) -> Float[Tensor, "*batch L S"]:
    """Score by nearness: -|q - k|^2 / (2 bandwidth^2), the exponent of a Gaussian kernel.

    The differences are formed before they are squared: |q|^2 - 2 q.k + |k|^2 would cancel.

    Shapes: query (*batch, L, d), key (*batch, S, d), bandwidth a number above 0 or a tensor without
        axes (to learn it) -> (*batch, L, S).
    Raises: TypeError or ValueError that name the argument.
    Source: Nadaraya 1964; Watson 1964.

    >>> gaussian_scores(torch.tensor([[0.0]]), torch.tensor([[1.0], [2.0]]), bandwidth=1.0)
    tensor([[-0.5000, -2.0000]])
    """
    query, key = wide(query, key)
    difference = (query.unsqueeze(-2) - key.unsqueeze(-3)) / bandwidth  # *batch L S d
    return -difference.square().sum(-1) / 2  # *batch L S


# --- From scores to outputs -----------------------------------------------------------------------


@checked(any_dtype="value")
def attend(
    scores: Float[Tensor, "*batch L S"],
    value: Float[Tensor, "*batch S dv"],
    *,
    allowed: Mask | None = None,
    dropout_p: Probability = 0.0,
    return_weights: bool = False,
) -> (
    Float[Tensor, "*batch L dv"] | tuple[Float[Tensor, "*batch L dv"], Float[Tensor, "*batch L S"]]
):
    """Soft attention: the mean of the values, weighted by the softmax of the scores.

    A query that is allowed no key gets zeros, in the output and in every gradient.

    Shapes: scores (*batch, L, S), value (*batch, S, dv), allowed of rank 2 or the scores' rank ->
        (*batch, L, dv) in the value's dtype, and the weights (*batch, L, S) with return_weights.
    Raises: TypeError or ValueError that name the argument.
    Source: Bahdanau et al. 2015, equations 5 and 6.
    """
    dtype = torch.promote_types(wide(scores)[0].dtype, value.dtype)
    weights = masked_softmax(scores.to(dtype), allowed)  # *batch L S
    if dropout_p > 0:
        weights = nn.functional.dropout(weights, dropout_p, training=True)
    output = (weights @ value.to(dtype)).to(value.dtype)  # *batch L dv
    return (output, weights.to(value.dtype)) if return_weights else output


@checked(any_dtype="value")
def kernel_regression(
    query: Float[Tensor, "*batch L d"],
    key: Float[Tensor, "*batch S d"],
    value: Float[Tensor, "*batch S dv"],
    *,
    bandwidth: PositiveFloat | Float[Tensor, ""],
) -> Float[Tensor, "*batch L dv"]:
    """Predict at each query the mean of the known values, the nearer keys counting more.

    Shapes: query (*batch, L, d), key (*batch, S, d), value (*batch, S, dv) -> (*batch, L, dv).
    Raises: TypeError or ValueError that name the argument.
    Source: Nadaraya 1964; Watson 1964.
    """
    return attend(gaussian_scores(query, key, bandwidth), value)


@checked
def visible(
    scores: Float[Tensor, "B L S"],
    key_lengths: Annotated[Int[Tensor, " B"] | Int[Tensor, "B L"], AtLeast(0)] | None = None,
    mask: Mask | None = None,
) -> Bool[Tensor, "..."] | None:
    """What mask and key lengths leave visible, as one mask; None if nothing is hidden.

    Shapes: key_lengths (B) or (B, L), mask (L, S) or (B, L, S) -> broadcastable to (B, L, S).
    Raises: TypeError or ValueError that name the argument.
    """
    if key_lengths is None:
        return mask
    places = torch.arange(scores.shape[-1], device=scores.device)
    lengths = key_lengths if key_lengths.ndim == 2 else key_lengths[:, None]  # B L, or B 1
    return combine_masks(places < lengths.unsqueeze(-1), mask)


# --- Hard attention -------------------------------------------------------------------------------


@checked(any_dtype="value")
def hard_attention(
    scores: Float[Tensor, "*batch L S"],
    value: Float[Tensor, "*batch S dv"],
    *,
    sample: bool = False,
    generator: torch.Generator | None = None,
    allowed: Mask | None = None,
) -> tuple[Float[Tensor, "*batch L dv"], Int[Tensor, "*batch L"]]:
    """Hard attention: each query takes one value, the best or one drawn by the scores' softmax.

    No gradient reaches the scores: see `reinforce_loss`.

    Shapes: scores (*batch, L, S), value (*batch, S, dv) -> output (*batch, L, dv) and the choices
        (*batch, L), -1 where a query is allowed no key and its output is 0.
    Raises: TypeError or ValueError that name the argument.
    Source: Xu et al. 2015, section 4.1.
    """
    weights = masked_softmax(wide(scores)[0].detach(), allowed)  # *batch L S
    empty = weights.sum(-1) == 0  # *batch L
    if not scores.shape[-1]:
        output = value.new_zeros(*empty.shape, value.shape[-1])
        return output, torch.full_like(empty, -1, dtype=torch.long)
    choice = (
        draw(weights.masked_fill(empty[..., None], 1.0), generator)
        if sample
        else weights.argmax(-1)
    )
    output = value.take_along_dim(choice[..., None], dim=-2)  # *batch L dv
    return output.masked_fill(empty[..., None], 0.0), choice.masked_fill(empty, -1)


def draw(
    weights: Float[Tensor, "*batch L S"], generator: torch.Generator | None = None
) -> Int[Tensor, "*batch L"]:
    """One index for each row, with a probability proportional to its weight."""
    if not weights.numel():
        return torch.zeros(weights.shape[:-1], dtype=torch.long, device=weights.device)
    rows = weights.flatten(0, -2)
    return torch.multinomial(rows, 1, generator=generator).view(weights.shape[:-1])


@checked(any_dtype="cost baseline")
def reinforce_loss(
    scores: Float[Tensor, "*batch L S"],
    choice: Annotated[Int[Tensor, "*batch L"], AtLeast(-1), Below("S")],
    cost: Float[Tensor, "*batch L"],
    *,
    baseline: float | Float[Tensor, "*batch L"] = 0.0,
    allowed: Mask | None = None,
) -> Float[Tensor, "*batch L"]:
    """A loss that equals the cost, and whose gradient is right on average over the choices.

    The cost of a choice does not depend smoothly on the scores, so autograd sees nothing. Adding
    (cost - baseline) x log p(choice), with value 0, gives the missing gradient: its mean over all
    choices, each with its probability, is the gradient of the expected cost. A baseline that does
    not depend on the choice moves single gradients and leaves their mean.

    Shapes: scores (*batch, L, S), choice and cost (*batch, L) -> (*batch, L). A choice of -1, of a
        query without keys, adds nothing.
    Raises: TypeError or ValueError that name the argument.
    Source: Williams 1992, theorem 1; Xu et al. 2015, section 4.1.
    """
    (scores,) = wide(scores)
    if allowed is not None:
        empty = ~allowed.any(-1, keepdim=True)
        scores = scores.masked_fill(~allowed, float("-inf")).masked_fill(empty, 0.0)
    others = torch.arange(scores.shape[-1], device=scores.device) != choice[..., None]
    log_p = scores.log_softmax(-1).masked_fill(others, 0.0).sum(-1)  # *batch L
    advantage = (cost - baseline).detach()
    return cost + advantage * (log_p - log_p.detach())


# --- Local attention ------------------------------------------------------------------------------


@checked
def predicted_centers(
    query: Float[Tensor, "*batch L d"],
    w_p: Float[Tensor, "hidden d"],
    v_p: Float[Tensor, " hidden"],
    num_keys: NonNegativeInt,
) -> Float[Tensor, "*batch L"]:
    """Where each query wants to look: p = S sigmoid(v_p^T tanh(W_p q)), a real number in [0, S].

    Shapes: query (*batch, L, d), w_p (hidden, d), v_p (hidden) -> (*batch, L).
    Raises: TypeError or ValueError that name the argument.
    Source: Luong et al. 2015, equation 9, "local-p".
    """
    query, w_p, v_p = wide(query, w_p, v_p)
    return num_keys * torch.sigmoid(torch.tanh(query @ w_p.mT) @ v_p)


@checked
def local_window(
    centers: Float[Tensor, "*batch L"], num_keys: NonNegativeInt, half_width: PositiveInt
) -> Bool[Tensor, "*batch L S"]:
    """Let a query see the keys at most `half_width` places from its center, on both sides.

    Shapes: centers (*batch, L) -> (*batch, L, S). For local-m the centers are 0, 1, 2, ...
    Raises: TypeError or ValueError that name the argument.
    Source: Luong et al. 2015, section 3.2: the window [p - D, p + D], cut at the borders.

    >>> local_window(torch.tensor([0.0, 2.0]), 4, half_width=1).int().tolist()
    [[1, 1, 0, 0], [0, 1, 1, 1]]
    """
    places = torch.arange(num_keys, device=centers.device)
    return (places - centers.unsqueeze(-1)).abs() <= half_width


@checked(any_dtype="centers")
def local_weights(
    scores: Float[Tensor, "*batch L S"],
    centers: Float[Tensor, "*batch L"],
    half_width: PositiveInt,
    *,
    gaussian: bool = False,
    allowed: Mask | None = None,
) -> Float[Tensor, "*batch L S"]:
    """Local attention: a softmax over a window around each query's center.

    With gaussian=True (local-p) the weights are then multiplied by exp(-(s - p)^2 / (2 sigma^2)),
    sigma = half_width / 2, and sum to less than 1. Through this factor, and only through it, the
    centers get a gradient. Places count from 0.

    Shapes: scores (*batch, L, S), centers (*batch, L) -> weights (*batch, L, S).
    Raises: TypeError or ValueError that name the argument.
    Source: Luong et al. 2015, section 3.2 and equation 10.
    """
    scores, centers = wide(scores, centers)
    window = local_window(centers, scores.shape[-1], half_width)
    weights = masked_softmax(scores, combine_masks(window, allowed))  # *batch L S
    if not gaussian:
        return weights
    places = torch.arange(scores.shape[-1], device=scores.device)
    steps = (places - centers.unsqueeze(-1)) / (half_width / 2)
    return weights * torch.exp(-steps.square() / 2)


# --- Precision ------------------------------------------------------------------------------------


def wide(*tensors: Tensor) -> list[Tensor]:
    """The tensors in at least float32."""
    return [t.to(torch.promote_types(t.dtype, torch.float32)) for t in tensors]
