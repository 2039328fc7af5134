"""The slow truth of positional encodings."""

from __future__ import annotations

import numpy as np

from .attention import _wide, attention, dot, is_allowed, masked_softmax


def sinusoidal_positions(positions, d_model, base=10000.0, layout="interleaved"):
    """sin and cos of pos / base^(2i/D) for each pair i, one entry at a time, in longdouble.

    Shapes: (*batch) -> (*batch, D). Source: Vaswani et al. 2017, section 3.5.
    """
    positions = np.asarray(positions)
    table = np.zeros((*positions.shape, d_model), dtype=np.longdouble)
    for *place, column in np.ndindex(table.shape):
        pair, is_cosine = divmod(column, 2)
        if layout == "halves":
            sines = (d_model + 1) // 2
            pair, is_cosine = column % sines, column >= sines
        exponent = np.longdouble(2 * pair) / d_model
        angle = positions[tuple(place)] / np.longdouble(base) ** exponent
        table[(*place, column)] = np.cos(angle) if is_cosine else np.sin(angle)
    return table


def shift_matrix(offset, d_model, base=10000.0, layout="interleaved"):
    """A rotation by offset x frequency for each pair, zero elsewhere. Shapes: numbers -> (D, D)."""
    turn = np.zeros((d_model, d_model), dtype=np.longdouble)
    for pair in range(d_model // 2):
        angle = offset / np.longdouble(base) ** (np.longdouble(2 * pair) / d_model)
        sine, cosine = 2 * pair, 2 * pair + 1
        if layout == "halves":
            sine, cosine = pair, pair + d_model // 2
        turn[sine, sine] = turn[cosine, cosine] = np.cos(angle)
        turn[sine, cosine], turn[cosine, sine] = np.sin(angle), -np.sin(angle)
    return turn


def segmented_embedding(
    tokens, segments, token_table, segment_table, position_table, norm_weight, norm_bias
):
    """Three rows added, then mean 0 and variance 1. Shapes: (B, L) twice, tables -> (B, L, D).

    Source: Devlin et al. 2019, section 3.
    """
    tables = [_wide(t) for t in (token_table, segment_table, position_table)]
    weight, bias = _wide(norm_weight), _wide(norm_bias)
    output = np.zeros((*tokens.shape, len(weight)), dtype=weight.dtype)
    for b, place in np.ndindex(tokens.shape):
        rows = (tokens[b, place], segments[b, place], place)
        x = sum(table[row] for table, row in zip(tables, rows, strict=True))
        mean = sum(x) / len(x)
        variance = sum((number - mean) ** 2 for number in x) / len(x)
        output[b, place] = (x - mean) / np.sqrt(variance + x.dtype.type("1e-12")) * weight + bias
    return output


def relative_attention(query, key, value, key_table, value_table=None, mask=None, causal=False):
    """Attention of one sequence, each pair with the vectors of its clipped distance added.

    Shapes: (*batch, L, d), (*batch, S, d), (*batch, S, dv), (2K + 1, d), (2K + 1, dv) ->
    (*batch, L, dv). Source: Shaw et al. 2018, equations 3 to 5.
    """
    query, key, value, key_table = map(_wide, (query, key, value, key_table))
    no_table = np.zeros((len(key_table), value.shape[-1]))
    value_table = _wide(no_table if value_table is None else value_table)
    clip = len(key_table) // 2
    length, keys = query.shape[-2], key.shape[-2]
    allowed = np.broadcast_to(True if mask is None else mask, (*query.shape[:-1], keys))
    output = np.zeros((*query.shape[:-1], value.shape[-1]), dtype=query.dtype)
    for *batch, i in np.ndindex(query.shape[:-1]):
        rows = [min(max(j - (i + keys - length), -clip), clip) + clip for j in range(keys)]
        k, v, q = key[tuple(batch)], value[tuple(batch)], query[(*batch, i)]
        scores = [dot(q, k[j] + key_table[row]) / np.sqrt(q.dtype.type(len(q)))
                  for j, row in enumerate(rows)]  # fmt: skip
        seen = [allowed[(*batch, i, j)] and is_allowed(i, j, length, keys, causal=causal)
                for j in range(keys)]  # fmt: skip
        weights = masked_softmax(np.array(scores, dtype=query.dtype), np.array(seen))
        for j, row in enumerate(rows):
            output[(*batch, i)] += weights[j] * (v[j] + value_table[row])
    return output


def apply_rotary(x, position_ids, base=10000.0, layout="interleaved", rotary_dim=None):
    """Each pair of features as one complex number, times exp(i angle), angle = p / base^(2i/r).

    Shapes: (B, H, L, d), (L) or (B, L) -> (B, H, L, d). Source: Su et al. 2021, section 3.2.1.
    """
    output = _wide(x).copy()
    size = x.shape[-1] if rotary_dim is None else rotary_dim
    positions = np.broadcast_to(position_ids, (x.shape[0], x.shape[2]))
    for b, h, i in np.ndindex(x.shape[:3]):
        for pair in range(size // 2):
            first, second = 2 * pair, 2 * pair + 1
            if layout == "halves":
                first, second = pair, pair + size // 2
            angle = positions[b, i] / np.longdouble(base) ** (np.longdouble(2 * pair) / size)
            number = (output[b, h, i, first] + 1j * output[b, h, i, second]) * np.exp(1j * angle)
            output[b, h, i, first], output[b, h, i, second] = number.real, number.imag
    return output


def rotary_attention(query, key, value):
    """Causal attention of queries and keys that are rotated by their positions 0 ... L - 1.

    Shapes: (B, H, L, d), (B, H, L, d), (B, H, L, dv) -> (B, H, L, dv). Source: Su et al. 2021.
    """
    positions = np.arange(query.shape[2])
    return attention(
        apply_rotary(query, positions), apply_rotary(key, positions), value, causal=True
    )


def alibi_slopes(num_heads):
    """2^(-8/n), 2^(-16/n), ... 2^-8; other numbers borrow from the next smaller and larger power of two.

    Shapes: a number -> (H). Source: Press et al. 2022, `get_slopes` of their code.
    """
    if num_heads & (num_heads - 1) == 0:
        first = np.longdouble(2) ** (-np.longdouble(8) / num_heads)
        return np.array([first ** (head + 1) for head in range(num_heads)])
    smaller = 2 ** int(np.log2(num_heads))
    borrowed = alibi_slopes(2 * smaller)[::2][: num_heads - smaller]
    return np.concatenate([alibi_slopes(smaller), borrowed])


def alibi_bias(query_ids, key_ids, num_heads):
    """-slope x |query position - key position|, entry by entry.

    Shapes: (L) or (B, L), (S) or (B, S) -> (B, H, L, S). Source: Press et al. 2022, section 3.
    """
    query_ids, key_ids = np.atleast_2d(query_ids), np.atleast_2d(key_ids)
    batch, length, keys = max(len(query_ids), len(key_ids)), query_ids.shape[1], key_ids.shape[1]
    query_ids = np.broadcast_to(query_ids, (batch, length))
    key_ids = np.broadcast_to(key_ids, (batch, keys))
    bias = np.zeros((batch, num_heads, length, keys), dtype=np.longdouble)
    for b, h, i, j in np.ndindex(bias.shape):
        bias[b, h, i, j] = -alibi_slopes(num_heads)[h] * abs(
            int(query_ids[b, i]) - int(key_ids[b, j])
        )
    return bias


def t5_bucket(distance, num_buckets, max_distance, bidirectional):
    """The bucket of one distance, key position - query position, by integers alone.

    Beyond e = n / 2, bucket e + k begins at the first distance that is at least e (D / e)^(k / (n - e)).
    Source: Raffel et al. 2020, section 2.1; mesh-tensorflow, `_relative_position_bucket`.
    """
    if bidirectional and distance > 0:
        return num_buckets // 2 + t5_bucket(-distance, num_buckets, max_distance, True)
    num_buckets = num_buckets // 2 if bidirectional else num_buckets
    distance, exact = max(-distance, 0), num_buckets // 2
    if distance < exact:
        return distance
    bucket, steps = exact, num_buckets - exact
    while bucket < num_buckets - 1:
        k = bucket + 1 - exact
        if distance**steps * exact**k < max_distance**k * exact**steps:
            break
        bucket += 1
    return bucket


def t5_bias(query_ids, key_ids, table, bidirectional=True, max_distance=128):
    """The number of each pair's bucket and each head, entry by entry.

    Shapes: (L) or (B, L), (S) or (B, S), (num_buckets, H) -> (B, H, L, S). Source: Raffel et al. 2020,
    section 2.1.
    """
    query_ids, key_ids, table = np.atleast_2d(query_ids), np.atleast_2d(key_ids), _wide(table)
    batch, length, keys = max(len(query_ids), len(key_ids)), query_ids.shape[1], key_ids.shape[1]
    query_ids = np.broadcast_to(query_ids, (batch, length))
    key_ids = np.broadcast_to(key_ids, (batch, keys))
    bias = np.zeros((batch, table.shape[1], length, keys), dtype=table.dtype)
    for b, h, i, j in np.ndindex(bias.shape):
        distance = int(key_ids[b, j]) - int(query_ids[b, i])
        bias[b, h, i, j] = table[t5_bucket(distance, len(table), max_distance, bidirectional), h]
    return bias


def apply_xpos(
    x, position_ids, of_keys=False, base=10000.0, scale_base=512.0, center=0, layout="interleaved"
):
    """Each pair rotated, then times (z / divided by z) to the power of its centered position.

    Shapes: (B, H, L, d), (L) or (B, L) -> (B, H, L, d). Source: Sun et al. 2022.
    """
    output = apply_rotary(x, position_ids, base=base, layout=layout)
    positions = np.broadcast_to(np.atleast_2d(position_ids), (x.shape[0], x.shape[2]))
    size, kind = x.shape[-1], output.dtype.type
    for b, h, place, feature in np.ndindex(output.shape):
        pair = feature // 2 if layout == "interleaved" else feature % (size // 2)
        rate = (kind(2 * pair) / size + kind("0.4")) / kind("1.4")
        exponent = kind(int(positions[b, place]) - center) / kind(scale_base)
        output[b, h, place, feature] *= rate ** (-exponent if of_keys else exponent)
    return output
