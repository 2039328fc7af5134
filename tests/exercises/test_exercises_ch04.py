"""The exercises of chapter 4: a right answer passes, the usual mistakes are named."""

import math

import torch

from tested_transformer.exercises.ch04 import ON_TRIAL


def causal(num_queries, num_keys):
    return torch.ones(num_queries, num_keys, dtype=torch.bool).tril(num_keys - num_queries)


def padding(tokens, pad_id):
    return (tokens != pad_id)[:, None, None, :]


def softmax(scores, allowed):
    if allowed is None:
        return torch.softmax(scores, -1)
    empty = ~allowed.any(-1, keepdim=True)
    scores = torch.where(allowed | empty, scores, -math.inf)
    return torch.where(empty, torch.zeros_like(scores), torch.softmax(scores, -1))


def document_causal(document_ids):
    same = document_ids[:, None, :, None] == document_ids[:, None, None, :]
    return same.tril()


def to_multihead(allowed, num_heads):
    return (~allowed).expand(-1, num_heads, -1, -1).flatten(0, 1)


def is_causal(candidate):
    x = torch.randn(8, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for place in range(1, 8):
        changed = x.clone()
        changed[place:] += 1
        before, after = candidate(x, x, x), candidate(changed, changed, changed)
        if not torch.allclose(before[:place], after[:place], atol=1e-12, equal_nan=True):
            return False
    return True


SOLUTIONS = {
    "ch04.causal_mask": causal,
    "ch04.padding_mask": padding,
    "ch04.masked_softmax": softmax,
    "ch04.document_causal": document_causal,
    "ch04.to_multihead": to_multihead,
    "ch04.is_causal": is_causal,
}


def test_what_is_on_trial_leaks_or_not_as_it_says():
    """By gradients: does an output depend on a later token?"""
    for attention in ON_TRIAL:
        x = torch.randn(8, 3, dtype=torch.float64)
        jacobian = torch.autograd.functional.jacobian(lambda t: attention(t, t, t).sum(-1), x)  # noqa: B023
        future = jacobian.sum(-1).triu(1)
        assert (bool(future.isnan().any()) or bool(future.abs().max() > 1e-12)) == attention.leaks
        assert str(attention) in {each.name for each in ON_TRIAL}
