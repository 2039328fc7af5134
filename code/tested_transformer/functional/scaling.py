"""Scaling: how large scores are, what the softmax makes of them, what gets back through it."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from ..bounds import Above, AtLeast, Below, PositiveFloat, PositiveInt
from ..shapes import checked

__all__ = [
    "entropy",
    "fold_scale",
    "perplexity",
    "scaled_scores",
    "score_gap",
    "softmax",
    "softmax_jacobian",
]

Weights = Annotated[Float[Tensor, "*batch S"], AtLeast(0)]


@checked
def softmax(
    scores: Float[Tensor, "*batch S"], *, temperature: PositiveFloat = 1.0
) -> Float[Tensor, "*batch S"]:
    """Turn each row of scores into positive weights that sum to 1.

    The row's maximum is subtracted first, which changes nothing (it cancels) except that no
    exponential can overflow. This is the formula written out, for reading; the rest of the package
    calls torch.softmax, which does the same in one kernel, with its own backward pass.

    Shapes: (*batch, S) -> the same; S may be 0. It computes in at least float32.
    Raises: TypeError for scores that are no floating point tensor; ValueError for scores without
        axes and for a temperature that is not above 0.
    Source: Bridle 1990; the temperature: Hinton et al. 2015, equation 1.

    >>> softmax(torch.tensor([1000.0, 1000.0])).tolist()
    [0.5, 0.5]
    """
    if scores.shape[-1] == 0:  # a row of nothing has no maximum
        return scores.clone()
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    top = wide.amax(dim=-1, keepdim=True).detach()  # it cancels, so no gradient runs through it
    exponentials = ((wide - top) / temperature).exp()  # *batch S, each in [0, 1]
    return (exponentials / exponentials.sum(dim=-1, keepdim=True)).to(scores.dtype)


@checked
def softmax_jacobian(weights: Float[Tensor, "*batch S"]) -> Float[Tensor, "*batch S S"]:
    """How each weight answers to each score: entry (i, j) is the derivative of p_i with respect to score j.

    diag(p) - p p^T: it needs the weights only, not the scores that made them.

    Shapes: (*batch, S) -> (*batch, S, S); S may be 0.
    Raises: TypeError for weights that are no floating point tensor; ValueError without axes.
    Source: chapter 3, the derivative of the softmax.

    >>> softmax_jacobian(torch.tensor([0.5, 0.5])).tolist()
    [[0.25, -0.25], [-0.25, 0.25]]
    """
    return torch.diag_embed(weights) - weights.unsqueeze(-1) * weights.unsqueeze(-2)


@checked
def entropy(weights: Weights) -> Float[Tensor, "*batch"]:
    """The entropy of each row of weights, in nats: 0 if one key has all, log(S) if all share alike.

    Shapes: (*batch, S) -> (*batch); S may be 0.
    Raises: as softmax_jacobian; ValueError for a negative weight.
    Source: Shannon 1948.
    """
    return torch.special.entr(weights).sum(dim=-1)  # -p log p, and 0 at p = 0


@checked
def perplexity(weights: Weights) -> Float[Tensor, "*batch"]:
    """How many keys a row effectively sees: exp(entropy), from 1 to S.

    Shapes: (*batch, S) -> (*batch).
    Raises: as softmax_jacobian.
    Source: the exponential of Shannon's entropy (1948).

    >>> perplexity(torch.tensor([0.25, 0.25, 0.25, 0.25])).item()
    4.0
    """
    return entropy(weights).exp()


@checked
def score_gap(
    weight: Annotated[float, Above(0), Below(1)], num_keys: Annotated[int, AtLeast(2)]
) -> float:
    """How far the winner's score must lie above num_keys - 1 equal losers to get this weight.

    Shapes: numbers in, a number out.
    Raises: TypeError for what is no number; ValueError unless 0 < weight < 1 and num_keys >= 2.
    Source: the softmax solved for the score: ln(w / (1 - w)) + ln(num_keys - 1); chapter 3.

    >>> round(score_gap(0.9, 10), 2)
    4.39
    """
    return math.log(weight / (1 - weight)) + math.log(num_keys - 1)


@checked
def scaled_scores(
    query: Float[Tensor, "*batch L d"],
    key: Float[Tensor, "*batch S d"],
    *,
    scale: float | None = None,
) -> Float[Tensor, "*batch L S"]:
    """The scores q.k scale, with the query scaled before the product and not the product after it.

    Both orders are the same number, but q.k is up to 1/scale times larger than what is wanted, and
    float16 ends at 65504.

    Shapes: (*batch, L, d), (*batch, S, d) -> (*batch, L, S); scale defaults to 1 / sqrt(d).
    Raises: TypeError for other dtypes; ValueError for shapes that do not fit, a head size of 0 and
        a scale that is not finite.
    Source: Vaswani et al. 2017, section 3.2.1.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return (query * scale) @ key.mT


@checked
def fold_scale(weight: Float[Tensor, "*shape"], d_head: PositiveInt) -> Float[Tensor, "*shape"]:
    """W_Q / sqrt(d): with these query weights the scores need no scale. A bias is folded likewise.

    Shapes: any -> the same.
    Raises: TypeError for what is no floating point tensor or int; ValueError for d_head below 1.
    Source: T5 (Raffel et al. 2020) as implemented in Mesh TensorFlow, whose initial W_Q is smaller
        by this factor.
    """
    return weight / math.sqrt(d_head)
