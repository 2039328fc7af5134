"""The delta rule as products of matrices, by the inverse, by halves; and wrong ones that are nobody's mistake."""

import torch
from torch.nn import functional

from answers import right, wrong
from tested_transformer.mixers.delta_rule import (
    chunked_delta_rule,
    parallel_delta_rule,
    recurrent_delta_rule,
)

right("delta_rule", "the package's, parallel")(parallel_delta_rule)
right("delta_rule", "the package's, recurrent")(recurrent_delta_rule)
right("delta_rule", "the package's, in chunks")(chunked_delta_rule)


def decays(query, log_decay):
    if log_decay is None:
        return torch.ones_like(query)
    return (log_decay[..., None] if log_decay.ndim == 3 else log_decay).exp().expand(query.shape)


@right("delta_rule", "a transition matrix for each token")
def by_transitions(
    query, key, value, beta, log_decay=None, *, state=None, scale=None, chunk_size=None
):  # fmt: skip
    d = query.shape[-1]
    state = value.new_zeros(*query.shape[:2], d, value.shape[-1]) if state is None else state
    scale = d**-0.5 if scale is None else scale
    erase = beta[..., None, None] * torch.einsum("bhli,bhlj->bhlij", key, key)
    transition = (torch.eye(d, dtype=query.dtype) - erase) @ torch.diag_embed(
        decays(query, log_decay)
    )
    write = torch.einsum("bhl,bhli,bhlj->bhlij", beta, key, value)
    outputs = [value[:, :, :0]]
    for t in range(query.shape[2]):
        state = transition[:, :, t] @ state + write[:, :, t]
        outputs.append(scale * torch.einsum("bhd,bhdv->bhv", query[:, :, t], state)[:, :, None])
    return torch.cat(outputs, 2), state


@right("delta_rule", "the old value out, the new one in")
def out_and_in(query, key, value, beta, log_decay=None, *, state=None, scale=None, chunk_size=None):
    d = query.shape[-1]
    state = value.new_zeros(*query.shape[:2], d, value.shape[-1]) if state is None else state
    decay, outputs = decays(query, log_decay), [value[:, :, :0]]
    for t in range(query.shape[2]):
        state = state * decay[:, :, t, :, None]
        k = key[:, :, t, :, None]
        b = beta[:, :, t, None, None]
        state = state - k @ (b * (k.mT @ state)) + k @ (b * value[:, :, t, None])
        outputs.append(query[:, :, t, None] @ state)
    return torch.cat(outputs, 2) * (d**-0.5 if scale is None else scale), state


@right("delta_rule", "two halves, each by two halves")
def by_halves(query, key, value, beta, log_decay=None, *, state=None, scale=None, chunk_size=None):
    length = query.shape[2]
    if log_decay is not None:
        log_decay = log_decay.expand(*query.shape[:3], *log_decay.shape[3:])
    if length < 2:
        return by_transitions(query, key, value, beta, log_decay, state=state, scale=scale)
    outputs = []
    for part in (slice(length // 2), slice(length // 2, None)):
        q, k, v, b = (each[:, :, part] for each in (query, key, value, beta))
        g = None if log_decay is None else log_decay[:, :, part]
        output, state = by_halves(q, k, v, b, g, state=state, scale=scale)
        outputs.append(output)
    return torch.cat(outputs, 2), state


@wrong("delta_rule", "the state is detached from call to call")
def detached(query, key, value, beta, log_decay=None, *, state=None, **options):
    state = None if state is None else state.detach()
    return parallel_delta_rule(query, key, value, beta, log_decay, state=state, **options)


@wrong("delta_rule", "the difference gets no gradient through the state")
def semi_gradient(
    query, key, value, beta, log_decay=None, *, state=None, scale=None, chunk_size=None
):
    d = query.shape[-1]
    state = value.new_zeros(*query.shape[:2], d, value.shape[-1]) if state is None else state
    decay, outputs = decays(query, log_decay), [value[:, :, :0]]
    for t in range(query.shape[2]):
        state, k = state * decay[:, :, t, :, None], key[:, :, t, :, None]
        change = beta[:, :, t, None, None] * (value[:, :, t, None] - (k.mT @ state).detach())
        state = state + k @ change
        outputs.append(query[:, :, t, None] @ state)
    return torch.cat(outputs, 2) * (d**-0.5 if scale is None else scale), state


@wrong("delta_rule", "beta goes through a sigmoid once more")
def sigmoid_of_beta(query, key, value, beta, log_decay=None, **options):
    return parallel_delta_rule(query, key, value, functional.sigmoid(beta), log_decay, **options)


@wrong("delta_rule", "the decay of the token before")
def decay_of_token_before(query, key, value, beta, log_decay=None, **options):
    if log_decay is not None:
        log_decay = log_decay.expand(*query.shape[:3], *log_decay.shape[3:]).roll(1, 2)
    return parallel_delta_rule(query, key, value, beta, log_decay, **options)
