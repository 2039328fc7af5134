"""Exercises of chapter 17, on its pages about clustering and about convolutions."""

from __future__ import annotations

from ..specs.clustered.spec import CLUSTERED_ATTENTION
from ..specs.dynamic_convolution.spec import DYNAMIC_CONVOLUTION
from ..specs.spec import Case


def _plain(case: Case) -> bool:
    """Nothing but the four tensors, and every query in a cluster."""
    only = set(case.arguments) == set(CLUSTERED_ATTENTION.required)
    return only and not case.is_empty and bool((case.arguments["clusters"] >= 0).all())


def _unpadded(case: Case) -> bool:
    return "key_mask" not in case.arguments and not case.is_empty


CLUSTERED = CLUSTERED_ATTENTION.narrowed(
    _plain,
    name="ch17.clustered_attention",
    statement="clustered_attention(query, key, value, clusters): in each head, the mean of the queries of a cluster "
    "attends to the keys, and all its queries return its output; scale 1 / sqrt(d). query (B, H, L, d), key "
    "(B, H, S, d), value (B, H, S, dv), clusters (B, H, L), numbers from 0 on -> (B, H, L, dv)",
    mutants=[m for m in CLUSTERED_ATTENTION.mutants if "padding" not in m.name],
    points=2,
)

CONVOLUTION = DYNAMIC_CONVOLUTION.narrowed(
    _unpadded,
    name="ch17.dynamic_convolution",
    statement="dynamic_convolution(x, logits, *, causal=False): each token is a weighted sum of K neighbors, the weights "
    "a softmax of its K logits. With causal the last neighbor is the token itself, else the middle one (of an "
    "even number, the left of the two). Beyond the ends there are zeros. The D features are H runs of D / H "
    "neighbors that share their weights. x (B, L, D), logits (B, L, H, K), broadcast over B and L -> (B, L, D)",
    mutants=[m for m in DYNAMIC_CONVOLUTION.mutants if m.name != "padding is convolved"],
    points=2,
)

EXERCISES = (CLUSTERED, CONVOLUTION)
