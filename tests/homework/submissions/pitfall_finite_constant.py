# marks: hw03.buffer_attention 0 wrong

import math

import torch


def buffer_attention(query, key, value, mask):
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    return torch.softmax(torch.where(mask, scores, -1e9), -1) @ value.nan_to_num()
