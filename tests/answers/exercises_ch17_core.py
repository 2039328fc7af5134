"""The answers to the exercises of chapter 17's main page."""

import numpy as np
import torch
from torch.nn import functional

from tested_transformer import attention, window_mask
from tested_transformer.exercises.ch17_core import best_keys, in_blocks, layers_needed

from . import right, wrong

# --- How far information travels ------------------------------------------------------------------

right("ch17.layers_needed", "layer by layer")(layers_needed)


@right("ch17.layers_needed", "by powers of a matrix")
def by_powers(mask):
    step = (mask | torch.eye(len(mask), dtype=torch.bool)).double()
    reach = step
    for layers in range(1, len(mask) + 1):
        if reach[-1, 0] > 0:
            return layers
        reach = (reach @ step).clamp(max=1)
    return -1


@right("ch17.layers_needed", "in NumPy, from the first token on")
def forward(mask):
    told = np.zeros(len(mask), dtype=bool)
    told[0] = True
    for layers in range(1, len(mask) + 1):
        told |= (mask.numpy() & told).any(1)
        if told[-1]:
            return layers
    return -1


@wrong("ch17.layers_needed", "the length over the window")
def by_division(mask):
    return -(-len(mask) // int(mask.sum(1).max()))


@wrong("ch17.layers_needed", "never is the number of tokens")
def never_is_long(mask):
    found = layers_needed(mask)
    return len(mask) if found < 0 else found


# --- A window, block by block ---------------------------------------------------------------------

right("ch17.local_attention", "in blocks")(in_blocks)


@right("ch17.local_attention", "the package's")
def by_package(query, key, value, window):
    return attention(query, key, value, causal=True, window=window)


@right("ch17.local_attention", "torch's, with a mask")
def by_torch(query, key, value, window):
    length = query.shape[2]
    mask = window_mask(length, window=window).tril()
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


@right("ch17.local_attention", "query by query")
def by_loop(query, key, value, window):
    outputs = []
    for i in range(query.shape[2]):
        keys = slice(max(0, i - window + 1), i + 1)
        scores = query[:, :, i, None] @ key[:, :, keys].mT / query.shape[-1] ** 0.5
        outputs.append(scores.softmax(-1) @ value[:, :, keys])
    return torch.cat(outputs, dim=2)


@wrong("ch17.local_attention", "the window on both sides")
def both_sides(query, key, value, window):
    return attention(query, key, value, window=window)


@wrong("ch17.local_attention", "no scale")
def unscaled(query, key, value, window):
    return attention(query, key, value, causal=True, window=window, scale=1.0)


@wrong("ch17.local_attention", "the whole past")
def all_keys(query, key, value, window):
    return attention(query, key, value, causal=True)


# --- The best keys --------------------------------------------------------------------------------

right("ch17.best_keys", "by topk")(best_keys)


@right("ch17.best_keys", "by the rank of each score")
def by_rank(scores, num_keys):
    past = torch.ones_like(scores, dtype=torch.bool).tril()
    better = (scores[..., None, :] > scores[..., None]) & past[..., None, :]
    return (better.sum(-1) < num_keys) & past


@right("ch17.best_keys", "query by query")
def by_rows(scores, num_keys):
    selected = torch.zeros_like(scores, dtype=torch.bool)
    for i in range(scores.shape[1]):
        best = scores[:, i, : i + 1].argsort(descending=True)[:, :num_keys]
        selected[:, i].scatter_(-1, best, True)
    return selected


@wrong("ch17.best_keys", "one key too many")
def one_more(scores, num_keys):
    return best_keys(scores, num_keys + 1)


@wrong("ch17.best_keys", "the own key never")
def strictly_past(scores, num_keys):
    own = torch.eye(scores.shape[-1], dtype=torch.bool)
    return best_keys(scores, num_keys) & ~own
