"""What random queries and keys give with and without the scale, for chapter 3."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..bounds import PositiveInt, Seed
from ..functional.scaling import perplexity, scaled_scores
from ..shapes import checked

__all__ = ["ScoreStatistics", "score_statistics"]


@dataclass(frozen=True)
class ScoreStatistics:
    """What random queries and keys give; each tensor has one entry a query."""

    scores: Float[Tensor, "N S"]  # scaled
    top_weight: Float[Tensor, " N"]
    perplexity: Float[Tensor, " N"]
    score_gradient: Float[Tensor, " N"]  # its norm, with respect to the scaled scores
    query_gradient: Float[Tensor, " N"]  # its norm


@checked
def score_statistics(
    d_head: PositiveInt,
    *,
    scale: float | None = None,
    num_keys: PositiveInt = 10,
    num_queries: PositiveInt = 2000,
    seed: Seed = 0,
) -> ScoreStatistics:
    """Draw standard normal queries and keys, attend, and send a squared error back.

    Each query has keys, values and a target of its own; values and targets are standard normal with
    4 entries. The loss of a query is half the squared distance of its output from its target.

    Shapes: N = num_queries, S = num_keys; scale defaults to 1 / sqrt(d_head).
    Raises: TypeError and ValueError for counts below 1 and a scale that is not finite.
    Source: the experiment of chapter 3.
    """
    rng = torch.Generator().manual_seed(seed)
    query = torch.randn(num_queries, 1, d_head, generator=rng, requires_grad=True)  # N 1 d
    key = torch.randn(num_queries, num_keys, d_head, generator=rng)  # N S d
    value = torch.randn(num_queries, num_keys, 4, generator=rng)  # N S 4
    target = torch.randn(num_queries, 1, 4, generator=rng)  # N 1 4
    scores = scaled_scores(query, key, scale=scale)  # N 1 S
    weights = torch.softmax(scores, dim=-1)
    loss = 0.5 * (weights @ value - target).square().sum()
    by_score, by_query = torch.autograd.grad(loss, (scores, query))
    weights = weights.detach().squeeze(1)  # N S
    return ScoreStatistics(
        scores=scores.detach().squeeze(1),
        top_weight=weights.amax(-1),
        perplexity=perplexity(weights),
        score_gradient=by_score.norm(dim=-1).squeeze(1),
        query_gradient=by_query.norm(dim=-1).squeeze(1),
    )
