"""The exercises of chapter 5: a right answer passes, the usual mistakes are named."""

import math

import torch

from tested_transformer.exercises.ch05 import EXERCISES
from tested_transformer.specs.judge import judge


def split_heads(x, num_heads):
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def multi_head(x, w_query, w_key, w_value, w_output, num_heads, mask=None):
    query, key, value = (split_heads(x @ w, num_heads) for w in (w_query, w_key, w_value))
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return (scores.softmax(-1) @ value).transpose(1, 2).flatten(2) @ w_output


def contributions(heads, w_output):
    return heads @ w_output.unflatten(0, (heads.shape[1], -1))


def head_forms(w_query, w_key, num_heads):
    query, key = (w.unflatten(-1, (num_heads, -1)).transpose(0, 1) for w in (w_query, w_key))
    return query @ key.mT / math.sqrt(query.shape[-1])


class Cached:
    def __init__(self):
        self.kept = []

    def __call__(self, query, key, value, mask):
        self.kept.append((key, value))
        keys, values = (torch.cat(part, dim=2) for part in zip(*self.kept, strict=True))
        scores = query @ keys.mT / math.sqrt(query.shape[-1])
        allowed = torch.ones_like(scores, dtype=torch.bool).tril(keys.shape[2] - query.shape[2])
        allowed = allowed if mask is None else allowed & mask
        return scores.masked_fill(~allowed, -math.inf).softmax(-1).nan_to_num(0.0) @ values


SOLUTIONS = {
    "ch05.split_heads": split_heads,
    "ch05.multi_head": multi_head,
    "ch05.contributions": contributions,
    "ch05.head_forms": head_forms,
    "ch05.cached": Cached,
}
SPECS = {spec.name: spec for spec in EXERCISES}


def test_padding_that_leaves_nothing_is_no_business_of_the_cache():
    """A padded query's answer is ignored, NaN or not."""

    class Nan(Cached):
        def __call__(self, query, key, value, mask):
            output = super().__call__(query, key, value, mask)
            if mask is None:
                return output
            own = mask[:, 0, 0, -query.shape[2] :]
            return output.masked_fill(~own[:, None, :, None], math.nan)

    assert judge(SPECS["ch05.cached"], Nan).passed
