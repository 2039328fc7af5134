"""Mixtures of experts: by torch, by transformers, token by token."""

import torch
from torch.nn import functional

from answers import right, wrong
from tested_transformer.functional.routing import route
from tested_transformer.layers.clamped_experts import clamped_swiglu
from tested_transformer.layers.moe import mix_experts

# --- Routing --------------------------------------------------------------------------------------

right("expert_routing", "the package's")(route)


@right("expert_routing", "sorted, token by token")
def by_sorting(
    logits, num_chosen, *, scoring="softmax", bias=None, normalize=False, scale=1.0,
    num_groups=1, num_kept_groups=1,
):  # fmt: skip
    scores = logits.softmax(-1) if scoring == "softmax" else 1 / (1 + (-logits).exp())
    preference = scores.detach() if bias is None else (scores + bias).detach()
    size, best = logits.shape[-1] // num_groups, 2 if scoring == "sigmoid" else 1
    chosen = torch.zeros(logits.shape, dtype=torch.bool)
    rows, found = preference.reshape(-1, logits.shape[-1]), chosen.view(-1, logits.shape[-1])
    for row, own in zip(rows, found, strict=True):
        value = row.view(num_groups, size).sort(descending=True).values[:, :best].sum(-1)
        groups = value.argsort(descending=True)[:num_kept_groups].tolist()
        members = torch.tensor([e for g in groups for e in range(g * size, (g + 1) * size)])
        own[members[row[members].argsort(descending=True)[:num_chosen]]] = True
    weights = scores * chosen
    return scale * (weights / weights.sum(-1, keepdim=True) if normalize else weights)


@right("expert_routing", "log-sum-exp over the chosen where it is normalized")
def by_logits(logits, num_chosen, *, scoring="softmax", normalize=False, **options):
    if scoring == "sigmoid":
        return route(logits, num_chosen, scoring=scoring, normalize=normalize, **options)
    chosen = route(logits, num_chosen, **options) != 0
    over = chosen if normalize else torch.ones_like(chosen)
    total = logits.masked_fill(~over, float("-inf")).logsumexp(-1, keepdim=True)
    return options.get("scale", 1.0) * ((logits - total).exp() * chosen)


@wrong("expert_routing", "the weights are detached")
def detached(logits, num_chosen, **options):
    return logits * 0 + route(logits, num_chosen, **options).detach()


@wrong("expert_routing", "one choice for all tokens")
def one_choice(logits, num_chosen, **options):
    first = logits.reshape(-1, logits.shape[-1])[:1].expand_as(logits)
    return route(first, num_chosen, **options)


# --- The mixture ----------------------------------------------------------------------------------


@right("mixture_of_experts", "the package's loop over experts")
def by_the_package(x, experts, weights, gate, up, down):
    def network(number):
        return lambda own: (
            (functional.silu(own @ gate[number].T) * (own @ up[number].T)) @ down[number].T
        )

    return mix_experts(x, experts, weights, [network(number) for number in range(len(gate))])


@right("mixture_of_experts", "each token gathers its matrices")
def by_gathering(x, experts, weights, gate, up, down):
    hidden = functional.silu(torch.einsum("tkfd,td->tkf", gate[experts], x))
    hidden = hidden * torch.einsum("tkfd,td->tkf", up[experts], x)
    return torch.einsum("tkf,tkdf,tk->td", hidden, down[experts], weights)


@right("mixture_of_experts", "pairs sorted by expert, and back")
def by_sorted_pairs(x, experts, weights, gate, up, down):
    order = experts.flatten().argsort(stable=True)
    token = order // experts.shape[1]
    outputs = x[token][:, None, :]  # pairs 1 D
    own = experts.flatten()[order]
    hidden = functional.silu(outputs @ gate[own].mT) * (outputs @ up[own].mT)
    outputs = (hidden @ down[own].mT)[:, 0] * weights.flatten()[order, None]
    return torch.zeros_like(x).index_add(0, token, outputs)


@wrong("mixture_of_experts", "sorted by expert, and not back")
def not_back(x, experts, weights, gate, up, down):
    order = experts[:, 0].argsort(stable=True)
    return by_gathering(x, experts, weights, gate, up, down)[order]


@wrong("mixture_of_experts", "the mean in place of the sum")
def mean(x, experts, weights, gate, up, down):
    return by_gathering(x, experts, weights, gate, up, down) / experts.shape[1]


# --- GPT-OSS's activation -------------------------------------------------------------------------

right("clamped_swiglu", "the package's")(clamped_swiglu)


@right("clamped_swiglu", "by minimum and maximum")
def by_minimum(gate_up, *, limit=7.0, alpha=1.702):
    gate, up = gate_up.unflatten(-1, (-1, 2)).unbind(-1)
    gate = torch.where(gate > limit, limit, gate)
    up = torch.where(up > limit, limit, torch.where(up < -limit, -limit, up))
    return gate / (1 + (-alpha * gate).exp()) * (1 + up)


@right("clamped_swiglu", "by SiLU of the steeper gate")
def by_silu(gate_up, *, limit=7.0, alpha=1.702):
    gate, up = gate_up[..., ::2].clamp(max=limit), gate_up[..., 1::2].clamp(-limit, limit)
    return functional.silu(alpha * gate) / alpha * (1 + up)


@wrong("clamped_swiglu", "up and gate exchanged")
def exchanged(gate_up, **options):
    return clamped_swiglu(gate_up.unflatten(-1, (-1, 2)).flip(-1).flatten(-2), **options)


@wrong("clamped_swiglu", "clamped after the product")
def clamped_late(gate_up, *, limit=7.0, alpha=1.702):
    return clamped_swiglu(gate_up, limit=1e9, alpha=alpha).clamp(-limit, limit)
