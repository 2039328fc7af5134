"""The slow truth of masks."""

from __future__ import annotations

import numpy as np

from .attention import is_allowed


def causal_mask(num_queries, num_keys=None):
    """Entry (i, j) is True where key j is not in the future of query i, aligned bottom-right."""
    num_keys = num_queries if num_keys is None else num_keys
    return _mask(num_queries, num_keys, causal=True)


def window_mask(num_queries, num_keys=None, *, window):
    """Entry (i, j) is True where key j is fewer than `window` steps from query i."""
    num_keys = num_queries if num_keys is None else num_keys
    return _mask(num_queries, num_keys, window=window)


def _mask(num_queries, num_keys, **rules):
    mask = np.zeros((num_queries, num_keys), dtype=bool)
    for i, j in np.ndindex(mask.shape):
        mask[i, j] = is_allowed(i, j, num_queries, num_keys, **rules)
    return mask


def padding_mask(lengths, num_keys):
    """Entry (b, 1, 1, j) is True where j is below the length of sample b."""
    mask = np.zeros((len(lengths), 1, 1, num_keys), dtype=bool)
    for b, _, _, j in np.ndindex(mask.shape):
        mask[b, 0, 0, j] = j < lengths[b]
    return mask


def padding_mask_from_tokens(tokens, pad_id):
    """Entry (b, 1, 1, j) is True where token j of sample b is no padding."""
    mask = np.zeros((len(tokens), 1, 1, tokens.shape[1]), dtype=bool)
    for b, _, _, j in np.ndindex(mask.shape):
        mask[b, 0, 0, j] = tokens[b, j] != pad_id
    return mask


def prefix_mask(prefix_lengths, num_tokens):
    """Entry (b, 1, i, j) is True where j is in the prefix of sample b, or not after i."""
    mask = np.zeros((len(prefix_lengths), 1, num_tokens, num_tokens), dtype=bool)
    for b, _, i, j in np.ndindex(mask.shape):
        mask[b, 0, i, j] = j < prefix_lengths[b] or j <= i
    return mask


def document_mask(document_ids):
    """Entry (b, 1, i, j) is True where tokens i and j of sample b are of one document."""
    samples, length = document_ids.shape
    mask = np.zeros((samples, 1, length, length), dtype=bool)
    for b, _, i, j in np.ndindex(mask.shape):
        mask[b, 0, i, j] = document_ids[b, i] == document_ids[b, j]
    return mask
