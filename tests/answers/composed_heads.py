"""Composed heads: the package's, by one matrix per pair, rank by rank."""

import torch

from answers import right, wrong
from tested_transformer.functional.composed_heads import compose_heads, composed_attention

right("compose_heads", "the package's")(compose_heads)
right("composed_attention", "the package's")(composed_attention)


@right("compose_heads", "one matrix for each query and one for each key")
def by_matrices(scores, base, query_down, query_up, query_gate, key_down, key_up, key_gate):
    query = query_down.mT @ query_up + torch.diag_embed(query_gate) + base  # B L H H
    key = key_down.mT @ key_up + torch.diag_embed(key_gate)  # B S H H
    rows = scores.permute(0, 2, 3, 1)  # B L S H
    by_query = rows @ query
    by_key = (rows.transpose(1, 2) @ key).transpose(1, 2)
    return (by_query + by_key).permute(0, 3, 1, 2)


@right("composed_attention", "one matrix for each pair")
def by_pairs(query, key, value, before, after, *, causal=False):
    length, keys = query.shape[2], key.shape[2]

    def mixed(scores, composition):
        base, (down, up, gate), (key_down, key_up, key_gate) = composition
        ours = down.mT @ up + torch.diag_embed(gate)
        theirs = key_down.mT @ key_up + torch.diag_embed(key_gate)
        pairs = base + ours[:, :, None] + theirs[:, None]  # B L S H H
        return torch.einsum("bmls,blsmn->bnls", scores, pairs)

    scores = mixed(torch.einsum("bhld,bhsd->bhls", query, key) / query.shape[-1] ** 0.5, before)
    if causal:
        seen = torch.ones(length, keys, dtype=torch.bool).tril(keys - length)
        scores = torch.where(seen, scores, -torch.inf)
    return torch.einsum("bhls,bhsv->bhlv", mixed(torch.softmax(scores, -1), after), value)


@wrong("compose_heads", "the scores once more, as a residual connection")
def residual(scores, base, *sides):
    return compose_heads(scores, base, *sides) + scores


@wrong("compose_heads", "the key's gate without a gradient")
def gate_detached(scores, base, query_down, query_up, query_gate, key_down, key_up, key_gate):
    sides = query_down, query_up, query_gate, key_down, key_up, key_gate.detach()
    return compose_heads(scores, base, *sides)


@wrong("composed_attention", "the compositions exchanged")
def exchanged(query, key, value, before, after, *, causal=False):
    return composed_attention(query, key, value, after, before, causal=causal)
