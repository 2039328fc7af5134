"""The slow truth of sparse attention by a pattern: pair by pair, and branch by branch."""

from __future__ import annotations

import numpy as np

from .attention import attention, dot, softmax, weighted_sum


def local_attention(query, key, value, *, window, causal=False):
    """Each query with the keys fewer than `window` steps away. Shapes: those of attention.

    Source: Beltagy et al. 2020, section 3.1.
    """
    return attention(query, key, value, window=window, causal=causal)


def strided_mask(length, stride):
    """Entry (i, j): j is one of the last `stride` positions of i, or whole strides before it.

    Source: Child et al. 2019, section 4.3.
    """
    mask = np.zeros((length, length), dtype=bool)
    for i in range(length):
        for j in range(i + 1):
            mask[i, j] = i - j < stride or (i - j) % stride == 0
    return mask


def fixed_mask(length, block, summary):
    """Entry (i, j): j is in the block of i, or one of the last `summary` positions of an earlier one.

    Source: Child et al. 2019, section 4.3.
    """
    mask = np.zeros((length, length), dtype=bool)
    for i in range(length):
        for j in range(i + 1):
            mask[i, j] = i // block == j // block or j % block >= block - summary
    return mask


def longnet_attention(
    query, key, value, segments, dilations, *, causal=True, key_mask=None, scale=None
):
    """Each branch with a softmax of its own; their outputs are averaged by the softmax denominators.

    Shapes: query and key (B, H, L, d), value (B, H, L, dv), key_mask (B, L) -> (B, H, L, dv).
    Source: Ding et al. 2023, sections 2.2 and 2.3.
    """
    query, key, value = (
        each.astype(np.result_type(each, np.float64)) for each in (query, key, value)
    )
    scale = query.dtype.type(query.shape[-1]) ** query.dtype.type(-0.5) if scale is None else scale
    output = np.zeros(value.shape, value.dtype)
    for b, h, i in np.ndindex(query.shape[:3]):
        outputs, logs = [], []  # of the branches: the output, the logarithm of the denominator
        for segment, dilation in zip(segments, dilations, strict=True):
            keys = [
                j
                for j in range(query.shape[2])
                if in_branch(i, j, segment, dilation, h % dilation)
                and (j <= i or not causal)
                and (key_mask is None or key_mask[b, j])
            ]
            if keys:
                scores = np.array([dot(query[b, h, i], key[b, h, j]) * scale for j in keys])
                top = scores.max()
                logs.append(top + np.log(sum(np.exp(score - top) for score in scores)))
                outputs.append(weighted_sum(softmax(scores)[None], value[b, h, keys])[0])
        if logs:
            output[b, h, i] = weighted_sum(softmax(np.array(logs))[None], np.array(outputs))[0]
    return output


def in_branch(i, j, segment, dilation, offset):
    """Whether positions i and j are in one segment, both `offset` plus whole dilations after its start."""
    start = i // segment * segment
    selected = range(start + offset, start + segment, dilation)
    return i in selected and j in selected
