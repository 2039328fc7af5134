"""The slow truth of Transformer-XL: a distance for each pair, and what a segment leaves behind."""

from __future__ import annotations

import numpy as np

from .attention import _wide, attention, dot


def relative_shift(by_distance, num_keys):
    """Entry (i, j): row i at the column of distance i + S - L - j; 0 where there is no such column.

    Column r belongs to distance S - 1 - r. Shapes: (*batch, L, R) -> (*batch, L, S), R = S + L - 1 or S.
    Source: Dai et al. 2019, appendix B.
    """
    by_distance = _wide(by_distance)
    *batch, length, columns = by_distance.shape
    output = np.zeros((*batch, length, num_keys), by_distance.dtype)
    for *sample, i, j in np.ndindex(output.shape):
        distance = i + num_keys - length - j
        column = num_keys - 1 - distance
        if column < columns:
            output[(*sample, i, j)] = by_distance[(*sample, i, column)]
    return output


def transformer_xl_attention(
    query, key, value, position_key, content_bias, position_bias, *, mask=None, causal=False,
    window=None,
):  # fmt: skip
    """Scores ((q_i + u) . k_j + (q_i + v) . p_ij) / sqrt(d), pair by pair, then attention as usual.

    Shapes: query (B, H, L, d), key (B, H, S, d), value (B, H, S, dv), position_key (H, R, d), both biases (H, d) ->
    (B, H, L, dv). Source: Dai et al. 2019, section 3.3.
    """
    query, key, position_key = _wide(query), _wide(key), _wide(position_key)
    batch, heads, length, width = query.shape
    num_keys = key.shape[2]
    root = query.dtype.type(width) ** query.dtype.type(0.5)
    content, position = query.copy(), np.zeros((batch, heads, length, num_keys), query.dtype)
    for b, h, i in np.ndindex(batch, heads, length):
        content[b, h, i] += content_bias[h]
        for j in range(num_keys):
            column = num_keys - 1 - (i + num_keys - length - j)
            if column < position_key.shape[1]:
                own = query[b, h, i] + position_bias[h]
                position[b, h, i, j] = dot(own, position_key[h, column]) / root
    return attention(content, key, value, mask=mask, bias=position, causal=causal, window=window)


def extend_memory(memory, hidden, memory_length):
    """The last states of the memory and the segment, one after the other.

    Shapes: (B, M, D) or None, (B, L, D) -> (B, N, D). Source: Dai et al. 2019, section 3.2.
    """
    kept = [] if memory is None else [memory[:, n] for n in range(memory.shape[1])]
    for n in range(hidden.shape[1]):
        kept.append(hidden[:, n])
    while len(kept) > memory_length:
        kept.pop(0)
    return np.stack(kept, axis=1) if kept else hidden[:, :0]
