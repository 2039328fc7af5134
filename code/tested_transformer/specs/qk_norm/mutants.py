"""The famous mistakes with QK-norm: the wrong order, the wrong axis, half of it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..mistakes import mistake


def scores(query: Tensor, key: Tensor) -> Tensor:
    """The scaled dot products."""
    return query @ key.mT / math.sqrt(query.shape[-1])


def rotated(x: Tensor, position_ids: Tensor) -> Tensor:
    """Rotary positions, in halves."""
    half = x.shape[-1] // 2
    steps = torch.arange(half, dtype=torch.float64) / half
    angles = position_ids.double()[:, None] * 10000.0**-steps  # L d/2
    cos, sin = angles.cos().to(x), angles.sin().to(x)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


def normed(x: Tensor, scale: Tensor | float = 1.0) -> Tensor:
    """RMSNorm over the features of a head."""
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * scale


def plain(query, key, query_scale, key_scale, position_ids):
    """The baseline: normalize, rotate, compare."""
    query, key = normed(query, query_scale), normed(key, key_scale)
    return scores(rotated(query, position_ids), rotated(key, position_ids))


@mistake(
    "QK-norm after the rotation",
    rejected_by="scores depend on the distance alone",
    symptom="Logits differ from the published model's; a trained scale breaks relative positions.",
    cause="The norm's scale differs between the two features of a pair, so it must come before they turn.",
    seen="meta-pytorch/torchtune issue 2809",
)
def norm_after_rotation(query, key, query_scale, key_scale, position_ids):
    """Rotate, then normalize."""
    query, key = rotated(query, position_ids), rotated(key, position_ids)
    return scores(normed(query, query_scale), normed(key, key_scale))


@mistake(
    "QK-norm without its scale",
    rejected_by="equals the reference",
    symptom="Right at initialization, where the scale is 1, and wrong after training.",
    cause="The learned scale is left out: no score can then exceed sqrt(d).",
)
def norm_without_scale(query, key, query_scale, key_scale, position_ids):
    """The scales are never used."""
    return plain(query, key, torch.ones_like(query_scale), torch.ones_like(key_scale), position_ids)


@mistake(
    "queries normalized, keys not",
    rejected_by="the norm of a query or key does not matter",
    symptom="Scores still grow without bound, with the keys.",
    cause="Both factors of the dot product have to be bounded.",
)
def queries_alone(query, key, query_scale, key_scale, position_ids):
    """Only one of the two norms."""
    query = normed(query, query_scale)
    return scores(rotated(query, position_ids), rotated(key * key_scale, position_ids))


@mistake(
    "all heads normalized together",
    rejected_by="each head has its own norm",
    symptom="A head with large queries makes the scores of all others small.",
    cause="The mean square is taken over all heads of a token; Qwen3 takes that of each head.",
    seen="vllm-project/vllm pull request 16311 (Llama 4)",
)
def over_all_heads(query, key, query_scale, key_scale, position_ids):
    """One mean square per token."""

    query, key = (
        x / (x.square().mean((1, 3), keepdim=True) + 1e-6).sqrt() * scale
        for x, scale in ((query, query_scale), (key, key_scale))
    )
    return scores(rotated(query, position_ids), rotated(key, position_ids))
