"""The slow truth of a mixture of experts: token by token, expert by expert."""

from __future__ import annotations

import numpy as np

from .attention import _wide, softmax
from .feed_forward import swiglu


def expert_routing(
    logits, num_chosen, *, scoring="softmax", bias=None, normalize=False, scale=1.0,
    num_groups=1, num_kept_groups=1,
):  # fmt: skip
    """The weights of every token's experts, zero where one is not chosen.

    Shapes: (*batch, E), bias (E) -> (*batch, E). Source: DeepSeek-V2, section 2.2; DeepSeek-V3, equations
    12 to 16.
    """
    logits = _wide(logits)
    weights = np.zeros_like(logits)
    for token in np.ndindex(logits.shape[:-1]):
        row = logits[token]
        scores = softmax(row) if scoring == "softmax" else 1 / (1 + np.exp(-row))
        preference = scores if bias is None else scores + _wide(bias)
        best = 1 if scoring == "softmax" else 2
        allowed = experts_of_best_groups(preference, num_groups, num_kept_groups, best)
        chosen = sorted(allowed, key=lambda expert: -preference[expert])[:num_chosen]
        total = sum(scores[expert] for expert in chosen) if normalize else 1
        for expert in chosen:
            weights[(*token, expert)] = scale * scores[expert] / total
    return weights


def experts_of_best_groups(preference, num_groups, num_kept, num_best):
    """The numbers of all experts in the groups whose num_best best experts have the largest sum."""
    size = len(preference) // num_groups
    groups = [range(first, first + size) for first in range(0, len(preference), size)]
    value = [
        sum(sorted((preference[e] for e in group), reverse=True)[:num_best]) for group in groups
    ]
    best = sorted(range(num_groups), key=lambda group: -value[group])[:num_kept]
    return [expert for group in best for expert in groups[group]]


def mixture_of_experts(x, experts, weights, gate, up, down):
    """For each token the weighted sum of what its experts return, each of them a SwiGLU network.

    Shapes: x (T, D), experts and weights (T, k), gate and up (N, f, D), down (N, D, f) -> (T, D).
    Source: Shazeer et al. 2017, equation 1.
    """
    x, weights, gate, up, down = map(_wide, (x, weights, gate, up, down))
    output = np.zeros_like(x)
    for token, rank in np.ndindex(experts.shape):
        own = experts[token, rank]
        output[token] += weights[token, rank] * swiglu(
            x[token], gate[own].T, up[own].T, down[own].T
        )
    return output


def clamped_swiglu(gate_up, *, limit=7.0, alpha=1.702):
    """Pairs of neighbors, a gate and an up: gate / (1 + exp(-alpha gate)) (up + 1), after clamping.

    Shapes: (*batch, 2 f) -> (*batch, f). Source: openai/gpt-oss, `swiglu` of gpt_oss/torch/model.py.
    """
    gate_up = _wide(gate_up)
    output = np.zeros((*gate_up.shape[:-1], gate_up.shape[-1] // 2), gate_up.dtype)
    for place in np.ndindex(output.shape):
        *token, feature = place
        gate, up = gate_up[(*token, 2 * feature)], gate_up[(*token, 2 * feature + 1)]
        gate, up = min(gate, limit), max(min(up, limit), -limit)
        output[place] = gate / (1 + np.exp(-alpha * gate)) * (up + 1)
    return output


def balance_loss(logits, num_chosen, *, real=None):
    """N times the sum of f_i P_i: how often an expert was chosen per token, and its mean probability.

    Shapes: logits (*tokens, E), real (*tokens) -> (). Source: Switch Transformer, equations 4 to 6.
    """
    logits = _wide(logits)
    count = logits.shape[-1]
    frequency, probability, tokens = np.zeros(count, logits.dtype), np.zeros(count, logits.dtype), 0
    for token in np.ndindex(logits.shape[:-1]):
        if real is not None and not real[token]:
            continue
        scores, tokens = softmax(logits[token]), tokens + 1
        probability += scores
        for expert in sorted(range(count), key=lambda expert: -scores[expert])[:num_chosen]:
            frequency[expert] += 1
    return count * sum(f * p for f, p in zip(frequency, probability, strict=True)) / tokens**2


def router_z_loss(logits, *, real=None):
    """The mean of (log sum exp)^2. Shapes: logits (*tokens, E), real (*tokens) -> (). Source: ST-MoE."""
    logits = _wide(logits)
    tokens = [t for t in np.ndindex(logits.shape[:-1]) if real is None or real[t]]
    shifts = [max(logits[token]) for token in tokens]
    sums = [np.log(np.exp(logits[t] - s).sum()) + s for t, s in zip(tokens, shifts, strict=True)]
    return sum(each**2 for each in sums) / len(tokens)


def balance_bias_step(bias, counts, rate):
    """rate up for an expert below the mean count, rate down for one above. Shapes: (E), (E) -> (E)."""
    bias, mean = _wide(bias).copy(), sum(counts.tolist()) / len(counts)
    for expert, count in enumerate(counts.tolist()):
        bias[expert] += rate * ((count < mean) - (count > mean))
    return bias


def within_capacity(experts, capacity):
    """Rank by rank, token by token: an expert takes a token while it has room.

    Shapes: (T, k) -> (T, k), True where it is taken. Source: GShard.
    """
    taken, room = np.zeros(experts.shape, bool), {}
    for rank in range(experts.shape[1]):
        for token in range(len(experts)):
            expert = int(experts[token, rank])
            if room.setdefault(expert, capacity) > 0:
                room[expert] -= 1
                taken[token, rank] = True
    return taken
