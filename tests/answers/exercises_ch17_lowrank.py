"""The answers to the exercise of chapter 17 on random features."""

import torch

from . import right, wrong


@right("ch17.running_sums")
def by_cumsum(query_features, key_features, value):
    state = (key_features.unsqueeze(-1) * value.unsqueeze(-2)).cumsum(2)
    numerator = torch.einsum("bhlm,bhlmv->bhlv", query_features, state)
    return numerator / (query_features * key_features.cumsum(2)).sum(-1, keepdim=True)


@right("ch17.running_sums", "token by token")
def by_tokens(query_features, key_features, value):
    state, sums, outputs = 0.0, 0.0, []
    for q, k, v in zip(*(x.unbind(2) for x in (query_features, key_features, value)), strict=True):
        state, sums = state + k[..., None] * v[..., None, :], sums + k
        outputs.append((q[..., None, :] @ state)[..., 0, :] / (q * sums).sum(-1, keepdim=True))
    return torch.stack(outputs, 2)


@right("ch17.running_sums", "a column of ones beside the values")
def with_ones(query_features, key_features, value):
    both = torch.cat((value, torch.ones_like(value[..., :1])), -1)
    sums = (query_features @ key_features.mT).tril() @ both
    return sums[..., :-1] / sums[..., -1:]


@wrong("ch17.running_sums", "the keys' features get no gradient")
def fixed_keys(query_features, key_features, value):
    return by_cumsum(query_features, key_features.detach(), value)


@wrong("ch17.running_sums", "the query's own key is left out")
def own_left_out(query_features, key_features, value):
    weights = (query_features @ key_features.mT).tril(-1)
    return weights @ value / weights.sum(-1, keepdim=True).clamp(min=1e-9)
