"""Retention by einsum, token by token without logarithms, by halves of halves; with gates as roots of sigmoids."""

import torch
from torch.nn import functional

from answers import right, wrong
from tested_transformer.mixers.retention import (
    chunked_retention,
    gated_retention,
    parallel_retention,
    recurrent_retention,
)

right("retention", "the package's, parallel")(parallel_retention)
right("retention", "the package's, recurrent")(recurrent_retention)
right("retention", "the package's, in chunks")(chunked_retention)
right("gated_retention", "the package's")(gated_retention)


def nothing(query, value):
    return value.new_zeros(*query.shape[:2], query.shape[-1], value.shape[-1])


@right("retention", "einsum, decays from differences of sums")
def by_einsum(query, key, value, log_decay, *, state=None, scale=None):
    length, width = query.shape[2:]
    state = nothing(query, value) if state is None else state
    sums = log_decay.expand(query.shape[:3]).cumsum(-1)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    steps = (sums[..., :, None] - sums[..., None, :]).masked_fill(future, 0.0)
    decay = steps.exp().masked_fill(future, 0.0)
    scale = width**-0.5 if scale is None else scale
    output = torch.einsum("bhld,bhsd,bhls,bhsv->bhlv", query, key, decay, value)
    output = output + torch.einsum("bhl,bhld,bhdv->bhlv", sums.exp(), query, state)
    total = log_decay.expand(query.shape[:3]).sum(-1)
    rest = (total[..., None] - sums).exp()
    new = torch.einsum("bhl,bhld,bhlv->bhdv", rest, key, value)
    return scale * output, new + total.exp()[..., None, None] * state


@right("retention", "a product of matrices, token by token, without logarithms")
def by_products(query, key, value, log_decay, *, state=None, scale=None):
    state = nothing(query, value) if state is None else state
    decays, outputs = log_decay.exp().expand(query.shape[:3]).unbind(2), []
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    for q, k, v, decay in zip(query.unbind(2), key.unbind(2), value.unbind(2), decays, strict=True):
        state = torch.addcmul(torch.einsum("bhd,bhv->bhdv", k, v), decay[..., None, None], state)
        outputs.append(scale * torch.einsum("bhd,bhdv->bhv", q, state))
    return (torch.stack(outputs, 2) if outputs else value), state


@right("retention", "two halves, each by two halves")
def by_halves(query, key, value, log_decay, *, state=None, scale=None, chunk_size=None):
    state = nothing(query, value) if state is None else state
    log_decay, length = log_decay.expand(query.shape[:3]), query.shape[2]
    if length < 2:
        return by_products(query, key, value, log_decay, state=state, scale=scale)
    first, second = (
        [each[:, :, part] for each in (query, key, value, log_decay)]
        for part in (slice(length // 2), slice(length // 2, None))
    )
    one, state = by_halves(*first, state=state, scale=scale)
    other, state = by_halves(*second, state=state, scale=scale)
    return torch.cat((one, other), 2), state


@right("gated_retention", "roots of sigmoids, and the norm by its definition")
def by_roots(
    query, key, value, gate_logits, *, temperature=16.0, real=None, state=None, scale=None, norm_eps=1e-5
):  # fmt: skip
    decays = gate_logits.sigmoid() ** (1 / temperature)
    if real is not None:
        decays = torch.where(real[:, None], decays, 1.0)
        key = torch.where(real[:, None, :, None], key, 0.0)
    output, state = by_products(query, key, value, decays.log(), state=state, scale=scale)
    return output / (output.pow(2).mean(-1, keepdim=True) + norm_eps).sqrt(), state


@right("gated_retention", "torch's softplus and its kernel of the norm")
def by_softplus(
    query, key, value, gate_logits, *, temperature=16.0, real=None, state=None, scale=None, norm_eps=1e-5
):  # fmt: skip
    log_decay = -functional.softplus(-gate_logits) / temperature
    if real is not None:
        log_decay, key = log_decay * real[:, None], key * real[:, None, :, None]
    output, state = by_halves(query, key, value, log_decay, state=state, scale=scale)
    return functional.rms_norm(output, output.shape[-1:], eps=norm_eps), state


@wrong("retention", "the state is detached from call to call")
def detached(query, key, value, log_decay, *, state=None, **options):
    state = None if state is None else state.detach()
    return parallel_retention(query, key, value, log_decay, state=state, **options)


@wrong("retention", "the decays get no gradient")
def fixed(query, key, value, log_decay, **options):
    return parallel_retention(query, key, value, log_decay.detach(), **options)


@wrong("retention", "the state is scaled, too")
def scaled_state(query, key, value, log_decay, *, scale=None, **options):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return parallel_retention(query, scale * key, value, log_decay, scale=1.0, **options)


@wrong("gated_retention", "the mean is subtracted, as in layer norm")
def centered(query, key, value, gate_logits, *, norm_eps=1e-5, **options):
    _, state = gated_retention(query, key, value, gate_logits, norm_eps=norm_eps, **options)
    value = value - value.mean(-1, keepdim=True)
    before = options.pop("state", None)
    before = before if before is None else before - before.mean(-1, keepdim=True)
    output, _ = gated_retention(
        query, key, value, gate_logits, state=before, norm_eps=norm_eps, **options
    )
    return output, state


@wrong("gated_retention", "padding is real")
def padding_is_real(query, key, value, gate_logits, *, real=None, **options):
    return gated_retention(query, key, value, gate_logits, **options)
