# marks: hw03.buffer_attention 0 wrong

import math

import torch


def buffer_attention(query, key, value, mask):
    unseen = ~mask.any(-2).unsqueeze(-1)
    key, value = key.masked_fill(unseen, 0.0), value.masked_fill(unseen, 0.0)
    empty = ~mask.any(-1, keepdim=True)
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    scores = scores.detach()
    scores = scores.masked_fill(~mask, -math.inf).masked_fill(empty, 0.0)
    return scores.softmax(-1).masked_fill(empty, 0.0) @ value
