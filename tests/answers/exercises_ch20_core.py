"""The answers to the exercises of chapter 20's main page."""

import torch
from torch.nn import functional

from answers import right, wrong
from tested_transformer.exercises.ch20_core import linear_attention
from tested_transformer.mixers.delta_rule import parallel_delta_rule, recurrent_delta_rule
from tested_transformer.mixers.linear_attention import chunked_linear_attention

# --- Linear attention -----------------------------------------------------------------------------

right("ch20.linear_attention", "all scores")(linear_attention)


@right("ch20.linear_attention", "the package's")
def packaged(query, key, value):
    return chunked_linear_attention(query, key, value, chunk_size=2)[0]


@right("ch20.linear_attention", "token by token")
def by_tokens(query, key, value):
    q, k = functional.elu(query) + 1, functional.elu(key) + 1
    state, total, outputs = 0, 0, []
    for t in range(q.shape[2]):
        state = state + k[:, :, t, :, None] * value[:, :, t, None]
        total = total + k[:, :, t]
        read = (q[:, :, t, None] @ state)[:, :, 0]
        outputs.append(read / (q[:, :, t] * total).sum(-1, keepdim=True))
    return torch.stack(outputs, 2)


@wrong("ch20.linear_attention", "the query's own token is left out")
def without_own(query, key, value):
    q, k = functional.elu(query) + 1, functional.elu(key) + 1
    scores = (q @ k.mT).tril(-1)
    return scores @ value / scores.sum(-1, keepdim=True).clamp(min=1e-6)


@wrong("ch20.linear_attention", "divided by the number of tokens")
def mean_of_scores(query, key, value):
    q, k = functional.elu(query) + 1, functional.elu(key) + 1
    return (q @ k.mT).tril() @ value / torch.arange(1, q.shape[2] + 1)[:, None]


# --- The delta rule with a decay ------------------------------------------------------------------

right("ch20.gated_delta_rule", "the package's, token by token")(recurrent_delta_rule)
right("ch20.gated_delta_rule", "the package's, at once")(parallel_delta_rule)


@right("ch20.gated_delta_rule", "by einsum")
def by_einsum(query, key, value, beta, log_decay, state=None):
    if state is None:
        state = torch.zeros_like(key[:, :, 0, :, None] * value[:, :, 0, None])
    outputs = []
    for q, k, v, b, g in zip(
        *(x.unbind(2) for x in (query, key, value, beta, log_decay)), strict=True
    ):
        state = state * g.exp()[..., None, None]
        change = b[..., None] * (v - torch.einsum("bhd,bhdv->bhv", k, state))
        state = state + torch.einsum("bhd,bhv->bhdv", k, change)
        outputs.append(torch.einsum("bhd,bhdv->bhv", q, state) / q.shape[-1] ** 0.5)
    return torch.stack(outputs, 2), state


@wrong("ch20.gated_delta_rule", "the logarithm is taken for the decay")
def logarithm_as_decay(query, key, value, beta, log_decay, state=None):
    return recurrent_delta_rule(query, key, value, beta, (-log_decay).log(), state=state)


@wrong("ch20.gated_delta_rule", "the output is not scaled")
def not_scaled(query, key, value, beta, log_decay, state=None):
    return recurrent_delta_rule(query, key, value, beta, log_decay, state=state, scale=1.0)
