"""Solutions of the exercise on RWKV-4's attention weights."""

import torch

from answers import right, wrong
from tested_transformer.mixers.rwkv import recurrent_wkv


@right("ch20.wkv_weights", "a softmax of a row of scores")
def rows_of_scores(key, log_decay, bonus):
    length, rows = len(key), []
    for i in range(length):
        distance = torch.arange(i - 1, -1, -1)[:, None]  # i-1-j for j = 0 .. i-1
        scores = torch.cat([key[:i] + distance * log_decay, (key[i] + bonus)[None]])
        row = torch.cat([scores.softmax(0), key.new_zeros(length - 1 - i, key.shape[1])])
        rows.append(row)
    return torch.stack(rows)


@right("ch20.wkv_weights", "what the recurrence makes of values that are 1 for one token")
def by_values(key, log_decay, bonus):
    values = torch.eye(len(key), dtype=key.dtype)[..., None].expand(-1, -1, key.shape[1])
    keys = key.expand(len(key), -1, -1)  # one text for each value
    return recurrent_wkv(keys, values, log_decay, bonus)[0].transpose(0, 1)


@wrong("ch20.wkv_weights", "rows and columns exchanged")
def exchanged(key, log_decay, bonus):
    return by_values(key, log_decay, bonus).transpose(0, 1)


@wrong("ch20.wkv_weights", "the bonus has no gradient")
def frozen_bonus(key, log_decay, bonus):
    return rows_of_scores(key, log_decay, bonus.detach())
