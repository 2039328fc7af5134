# marks: hw03.buffer_attention 0 wrong

import math

import torch


def buffer_attention(query, key, value, mask):
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    return torch.softmax(scores.masked_fill(mask, -math.inf), -1) @ value
