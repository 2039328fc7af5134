"""FlashAttention in Triton: forward, and backward in two kernels that need no atomic additions.

It imports Triton: `flash.py` imports it only when it is needed. Four helpers are shared by all
kernels, so that forward and backward cannot disagree about who sees whom: `tile_range`,
`load_tile`, `scores` and `keep`. A feature is a constexpr flag and leaves no code behind when off.

Rows are queries, columns are keys. Strides are those of (B, H, L, d); of packed tensors the first is
0, since `starts` says where a document begins. Scores are in units of log2, because a GPU has an
instruction for 2^x; the log-sum-exp that is stored is the natural one, +inf for a row that sees
nothing, so that every weight made from it again is 0.

Sources: Dao et al. 2022 (the algorithm), Dao 2023 (the order of loops, backward in section 3.1).
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


# --- What all kernels share -----------------------------------------------------------------------


@triton.jit
def tile_range(
    start, size, limit, shift, window,
    STEP: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, OF_KEYS: tl.constexpr,
):  # fmt: skip
    """Which places of the other axis a tile has to do with: (low, first, last, high).

    low to high has a part that is visible; first to last is visible throughout, and needs no mask.
    OF_KEYS: rows ask which keys; otherwise keys ask which rows. shift: S - L, or L - S.
    """
    near = start + shift  # where the first of the tile meets the other axis
    far = near + size - 1  # where the last does
    low, first, last, high = 0, 0, limit, limit
    if WINDOW:
        low = tl.maximum(low, near - window + 1)
        first = tl.maximum(first, far - window + 1)
        last = tl.minimum(last, near + window)
        high = tl.minimum(high, far + window)
    if CAUSAL and OF_KEYS:
        last = tl.minimum(last, near + 1)
        high = tl.minimum(high, far + 1)
    if CAUSAL and not OF_KEYS:
        low = tl.maximum(low, near)
        first = tl.maximum(first, far)
    low = low // STEP * STEP
    first = tl.minimum(tl.cdiv(first, STEP), tl.cdiv(tl.maximum(high, low), STEP)) * STEP
    last = tl.maximum(last // STEP * STEP, first)
    return low, first, last, high


@triton.jit
def load_tile(
    place, strides, start, limit,
    ROWS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr,
    TMA: tl.constexpr,
):  # fmt: skip
    """ROWS x BLOCK_D numbers from row `start` on, zeros past the limit and past D.

    place: a pointer to row 0 of a head; with TMA (descriptor, batch, head).
    """
    if TMA:
        return place[0].load([place[1], place[2], start, 0]).reshape(ROWS, BLOCK_D)
    else:
        rows, width = tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK_D)[None, :]
        at = place + tl.cast(start, tl.int64) * strides[2]
        at += rows * strides[2] + width * strides[3]
        if MASKED and D < BLOCK_D:
            return tl.load(at, mask=(start + rows < limit) & (width < D), other=0.0)
        elif MASKED:
            return tl.load(at, mask=start + rows < limit, other=0.0)
        elif D < BLOCK_D:
            return tl.load(at, mask=width < D, other=0.0)
        else:
            return tl.load(at)


@triton.jit
def scores(
    products, row, col, seen, shift, window, slope, bias, bias_strides, scale,
    rows, cols,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, ALIBI: tl.constexpr, BIAS: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """From dot products to scores in units of log2, -inf where nothing may be seen.

    row and col: place numbers that broadcast to the products. seen: so many keys are real. Without
    ALiBi and bias the products are not scaled yet: `weight_scale` is, inside one multiply-add.
    """
    ahead = row + shift - col  # how far the key lies before the query
    if ALIBI or BIAS:
        products = products * scale
    if ALIBI:
        products -= slope * tl.abs(ahead).to(tl.float32)
    if BIAS:
        at = bias + row.to(tl.int64) * bias_strides[2] + col.to(tl.int64) * bias_strides[3]
        found = tl.load(at, mask=(row < rows) & (col < cols), other=0)
        if BIAS == 1:  # boolean: may attend
            products = tl.where(found != 0, products, float("-inf"))
        else:
            products += found.to(tl.float32) * LOG2E
    if MASKED:
        visible = col < seen
        if CAUSAL:
            visible = visible & (ahead >= 0)
        if WINDOW:
            visible = visible & (tl.abs(ahead) < window)
        products = tl.where(visible, products, float("-inf"))
    return products


@triton.jit
def keep(seed, head, row, col, dropout):
    """Which weights survive dropout. Counted by place, so that every kernel draws the same."""
    drawn, _, _, _ = tl.philox(seed, col + 0 * row, row + 0 * col, head, 0)
    return tl.uint_to_uniform_float(drawn) >= dropout


@triton.jit
def product(a, b, PRECISION: tl.constexpr, UPCAST: tl.constexpr):
    """a @ b, summed in float32. UPCAST is for the interpreter, which cannot multiply bfloat16."""
    if UPCAST:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def head_of(tensor, strides, batch, head, start, TMA: tl.constexpr):
    """Where a head of a document begins, for `load_tile`."""
    if TMA:
        return tensor, batch, head
    else:
        at = batch.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[1]
        return tensor + at + start.to(tl.int64) * strides[2]


@triton.jit
def my_tile(length, heads, SIZE: tl.constexpr, LAST_FIRST: tl.constexpr):
    """Which tile of which head and sample this program answers: (start, head, batch)."""
    tiles = tl.cdiv(length, SIZE)
    place = tl.program_id(0)
    tile = place % tiles
    if LAST_FIRST:  # under a causal mask the last rows have most to do
        tile = tiles - 1 - tile
    return tile * SIZE, place // tiles % heads, place // tiles // heads


@triton.jit
def sizes_of(batch, length, keys, row_starts, col_starts, key_lengths,
             PACKED: tl.constexpr, LENGTHS: tl.constexpr):  # fmt: skip
    """Of one document: where its rows and columns begin, how many they are, how many keys are real."""
    row_start, col_start = batch * 0, batch * 0
    if PACKED:
        row_start, col_start = tl.load(row_starts + batch), tl.load(col_starts + batch)
        length = tl.load(row_starts + batch + 1) - row_start
        keys = tl.load(col_starts + batch + 1) - col_start
    seen = keys
    if LENGTHS:
        seen = tl.minimum(keys, tl.load(key_lengths + batch)).to(tl.int32)
    return row_start, col_start, length, keys, seen


# --- Forward --------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["seed"])  # or odd and even seeds were compiled apart
def forward_kernel(
    query, key, value, output, lse, q_strides, k_strides, v_strides, o_strides, lse_strides,
    bias, bias_strides, slopes, key_lengths, row_starts, col_starts,
    heads, group, length, keys, scale, window, dropout, seed,
    D: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, PACKED: tl.constexpr, LENGTHS: tl.constexpr,
    ALIBI: tl.constexpr, BIAS: tl.constexpr, DROPOUT: tl.constexpr, TMA: tl.constexpr,
    PRECISION: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """One program answers ROWS queries of one head, and notes their log-sum-exp."""
    start, head, batch = my_tile(length, heads, ROWS, True)
    row_start, col_start, length, keys, seen = sizes_of(
        batch, length, keys, row_starts, col_starts, key_lengths, PACKED, LENGTHS
    )
    if PACKED and start >= length:
        return
    scale *= LOG2E
    factor = 1.0 if (ALIBI or BIAS) else scale  # what `scores` leaves to be multiplied
    slope = tl.load(slopes + head).to(tl.float32) * LOG2E if ALIBI else 0.0
    bias += batch.to(tl.int64) * bias_strides[0] + head.to(tl.int64) * bias_strides[1]
    queries = head_of(query, q_strides, batch, head, row_start, TMA)
    keys_at = head_of(key, k_strides, batch, head // group, col_start, TMA)
    values_at = head_of(value, v_strides, batch, head // group, col_start, TMA)
    q = load_tile(queries, q_strides, start, length, ROWS, D, BLOCK_D, True, TMA)
    row = start + tl.arange(0, ROWS)
    best = tl.full((ROWS,), float("-inf"), tl.float32)  # the largest score so far
    total = tl.zeros((ROWS,), tl.float32)  # the sum of 2^(score - best) so far
    mixed = tl.zeros((ROWS, BLOCK_D), tl.float32)  # the same sum, each term times its value
    bounds = tile_range(start, ROWS, seen, keys - length, window, COLS, CAUSAL, WINDOW, True)
    for phase in tl.static_range(3):
        if phase > 0 or WINDOW:
            for at in tl.range(bounds[phase], bounds[phase + 1], COLS):
                k = load_tile(keys_at, k_strides, at, seen, COLS, D, BLOCK_D, phase != 1, TMA)
                col = at + tl.arange(0, COLS)
                s = scores(
                    product(q, k.T, PRECISION, UPCAST), row[:, None], col[None, :], seen,
                    keys - length, window, slope, bias, bias_strides, scale, length, keys,
                    CAUSAL, WINDOW, ALIBI, BIAS, phase != 1,
                )  # fmt: skip
                higher = tl.maximum(best, tl.max(s, 1) * factor)
                safe = higher
                if phase != 1 or BIAS:  # a row that has seen nothing yet
                    safe = tl.where(higher == float("-inf"), 0.0, higher)
                shrink = tl.exp2(best - safe)  # the old sums were taken against the old maximum
                p = tl.exp2(s * factor - safe[:, None])
                total = total * shrink + tl.sum(p, 1)
                if DROPOUT:
                    number = batch * heads + head
                    p = tl.where(keep(seed, number, row[:, None], col[None, :], dropout), p, 0.0)
                v = load_tile(values_at, v_strides, at, seen, COLS, D, BLOCK_D, phase != 1, TMA)
                mixed = mixed * shrink[:, None] + product(p.to(v.dtype), v, PRECISION, UPCAST)
                best = higher
    empty = total == 0.0
    norm = tl.where(empty, 1.0, total)
    store_tile(
        output, o_strides, batch, head, row_start, start, length,
        mixed / (norm * (1.0 - dropout))[:, None], ROWS, D, BLOCK_D,
    )  # fmt: skip
    found = tl.where(empty, float("inf"), (best + tl.log2(norm)) * LN2)
    lse_at = head_of(lse, lse_strides, batch, head, row_start, False)
    tl.store(lse_at + row, found, mask=row < length)


@triton.jit
def store_tile(
    tensor, strides, batch, head, document, start, limit, numbers,
    ROWS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Write rows below the limit; always through a mask, since a neighbor may follow."""
    row, width = start + tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    at = head_of(tensor, strides, batch, head, document, False)
    at += row.to(tl.int64)[:, None] * strides[2] + width[None, :] * strides[3]
    inside = (row < limit)[:, None] & (width < D)[None, :]
    tl.store(at, numbers.to(tensor.dtype.element_ty), mask=inside)


# --- Backward -------------------------------------------------------------------------------------


@triton.jit
def delta_kernel(
    output, gradient, delta, o_strides, g_strides, lse_strides, row_starts, heads, length,
    D: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """delta = sum(output x its gradient) of each row: what the softmax's backward pass subtracts."""
    start, head, batch = my_tile(length, heads, ROWS, False)
    row_start, _, length, _, _ = sizes_of(
        batch, length, length, row_starts, row_starts, row_starts, PACKED, False
    )
    row = start + tl.arange(0, ROWS)
    o_at = head_of(output, o_strides, batch, head, row_start, False)
    g_at = head_of(gradient, g_strides, batch, head, row_start, False)
    o = load_tile(o_at, o_strides, start, length, ROWS, D, BLOCK_D, True, False).to(tl.float32)
    g = load_tile(g_at, g_strides, start, length, ROWS, D, BLOCK_D, True, False).to(tl.float32)
    delta_at = head_of(delta, lse_strides, batch, head, row_start, False)
    tl.store(delta_at + row, tl.sum(o * g, 1), mask=row < length)


@triton.jit(do_not_specialize=["seed"])  # or odd and even seeds were compiled apart
def key_value_kernel(
    query, key, value, gradient, d_key, d_value, lse, delta,
    q_strides, k_strides, v_strides, g_strides, dk_strides, dv_strides, lse_strides,
    bias, bias_strides, slopes, key_lengths, row_starts, col_starts,
    heads, group, length, keys, scale, window, dropout, seed,
    D: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, PACKED: tl.constexpr, LENGTHS: tl.constexpr,
    ALIBI: tl.constexpr, BIAS: tl.constexpr, DROPOUT: tl.constexpr, TMA: tl.constexpr,
    PRECISION: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """One program gathers the gradients of COLS keys and values, from every query head they serve."""
    start, kv_head, batch = my_tile(keys, heads // group, COLS, False)
    row_start, col_start, length, keys, seen = sizes_of(
        batch, length, keys, row_starts, col_starts, key_lengths, PACKED, LENGTHS
    )
    if PACKED and start >= keys:
        return
    keys_at = head_of(key, k_strides, batch, kv_head, col_start, TMA)
    values_at = head_of(value, v_strides, batch, kv_head, col_start, TMA)
    k = load_tile(keys_at, k_strides, start, seen, COLS, D, BLOCK_D, True, TMA)
    v = load_tile(values_at, v_strides, start, seen, COLS, D, BLOCK_D, True, TMA)
    dk, dv = tl.zeros((COLS, BLOCK_D), tl.float32), tl.zeros((COLS, BLOCK_D), tl.float32)
    factor = 1.0 if (ALIBI or BIAS) else scale * LOG2E
    col = start + tl.arange(0, COLS)
    limit = tl.where(start < seen, length, 0)  # hidden keys have nothing to gather
    bounds = tile_range(start, COLS, limit, length - keys, window, ROWS, CAUSAL, WINDOW, False)
    for member in range(0, group):
        head = kv_head * group + member
        slope = tl.load(slopes + head).to(tl.float32) * LOG2E if ALIBI else 0.0
        bias_at = bias + batch.to(tl.int64) * bias_strides[0] + head.to(tl.int64) * bias_strides[1]
        queries = head_of(query, q_strides, batch, head, row_start, TMA)
        gradients = head_of(gradient, g_strides, batch, head, row_start, TMA)
        lse_at = head_of(lse, lse_strides, batch, head, row_start, False)
        delta_at = head_of(delta, lse_strides, batch, head, row_start, False)
        for phase in tl.static_range(3):
            if phase != 0 or (CAUSAL or WINDOW):
                for at in tl.range(bounds[phase], bounds[phase + 1], ROWS):
                    q = load_tile(queries, q_strides, at, length, ROWS, D, BLOCK_D, phase != 1, TMA)
                    row = at + tl.arange(0, ROWS)
                    norm = tl.load(lse_at + row, mask=row < length, other=float("inf")) * LOG2E
                    s = scores(
                        product(k, q.T, PRECISION, UPCAST), row[None, :], col[:, None], seen,
                        keys - length, window, slope, bias_at, bias_strides, scale * LOG2E, length,
                        keys, CAUSAL, WINDOW, ALIBI, BIAS, phase != 1,
                    )  # fmt: skip
                    p = tl.exp2(s * factor - norm[None, :])  # COLS ROWS: the weights, transposed
                    g = load_tile(
                        gradients, g_strides, at, length, ROWS, D, BLOCK_D, phase != 1, TMA
                    )
                    dp = product(v, g.T, PRECISION, UPCAST)
                    used = p
                    if DROPOUT:
                        number = batch * heads + head
                        kept = keep(seed, number, row[None, :], col[:, None], dropout)
                        used = tl.where(kept, p / (1.0 - dropout), 0.0)
                        dp = tl.where(kept, dp / (1.0 - dropout), 0.0)
                    dv += product(used.to(g.dtype), g, PRECISION, UPCAST)
                    shift = tl.load(delta_at + row, mask=row < length, other=0.0)
                    ds = p * (dp - shift[None, :])
                    dk += product(ds.to(q.dtype), q, PRECISION, UPCAST)
    real = (col < seen)[:, None]
    store_tile(d_key, dk_strides, batch, kv_head, col_start, start, keys,
               tl.where(real, dk * scale, 0.0), COLS, D, BLOCK_D)  # fmt: skip
    store_tile(d_value, dv_strides, batch, kv_head, col_start, start, keys,
               tl.where(real, dv, 0.0), COLS, D, BLOCK_D)  # fmt: skip


@triton.jit(do_not_specialize=["seed"])  # or odd and even seeds were compiled apart
def query_kernel(
    query, key, value, gradient, d_query, lse, delta,
    q_strides, k_strides, v_strides, g_strides, dq_strides, lse_strides,
    bias, bias_strides, slopes, key_lengths, row_starts, col_starts,
    heads, group, length, keys, scale, window, dropout, seed,
    D: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, PACKED: tl.constexpr, LENGTHS: tl.constexpr,
    ALIBI: tl.constexpr, BIAS: tl.constexpr, DROPOUT: tl.constexpr, TMA: tl.constexpr,
    PRECISION: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """One program gathers the gradient of ROWS queries of one head: the loop of `forward_kernel`."""
    start, head, batch = my_tile(length, heads, ROWS, True)
    row_start, col_start, length, keys, seen = sizes_of(
        batch, length, keys, row_starts, col_starts, key_lengths, PACKED, LENGTHS
    )
    if PACKED and start >= length:
        return
    factor = 1.0 if (ALIBI or BIAS) else scale * LOG2E
    slope = tl.load(slopes + head).to(tl.float32) * LOG2E if ALIBI else 0.0
    bias += batch.to(tl.int64) * bias_strides[0] + head.to(tl.int64) * bias_strides[1]
    queries = head_of(query, q_strides, batch, head, row_start, TMA)
    gradients = head_of(gradient, g_strides, batch, head, row_start, TMA)
    keys_at = head_of(key, k_strides, batch, head // group, col_start, TMA)
    values_at = head_of(value, v_strides, batch, head // group, col_start, TMA)
    q = load_tile(queries, q_strides, start, length, ROWS, D, BLOCK_D, True, TMA)
    g = load_tile(gradients, g_strides, start, length, ROWS, D, BLOCK_D, True, TMA)
    row = start + tl.arange(0, ROWS)
    lse_at = head_of(lse, lse_strides, batch, head, row_start, False)
    delta_at = head_of(delta, lse_strides, batch, head, row_start, False)
    norm = tl.load(lse_at + row, mask=row < length, other=float("inf")) * LOG2E
    shift = tl.load(delta_at + row, mask=row < length, other=0.0)
    dq = tl.zeros((ROWS, BLOCK_D), tl.float32)
    bounds = tile_range(start, ROWS, seen, keys - length, window, COLS, CAUSAL, WINDOW, True)
    for phase in tl.static_range(3):
        if phase > 0 or WINDOW:
            for at in tl.range(bounds[phase], bounds[phase + 1], COLS):
                k = load_tile(keys_at, k_strides, at, seen, COLS, D, BLOCK_D, phase != 1, TMA)
                v = load_tile(values_at, v_strides, at, seen, COLS, D, BLOCK_D, phase != 1, TMA)
                col = at + tl.arange(0, COLS)
                s = scores(
                    product(q, k.T, PRECISION, UPCAST), row[:, None], col[None, :], seen,
                    keys - length, window, slope, bias, bias_strides, scale * LOG2E, length, keys,
                    CAUSAL, WINDOW, ALIBI, BIAS, phase != 1,
                )  # fmt: skip
                p = tl.exp2(s * factor - norm[:, None])
                dp = product(g, v.T, PRECISION, UPCAST)
                if DROPOUT:
                    number = batch * heads + head
                    kept = keep(seed, number, row[:, None], col[None, :], dropout)
                    dp = tl.where(kept, dp / (1.0 - dropout), 0.0)
                ds = p * (dp - shift[:, None])
                dq += product(ds.to(k.dtype), k, PRECISION, UPCAST)
    store_tile(d_query, dq_strides, batch, head, row_start, start, length, dq * scale, ROWS, D,
               BLOCK_D)  # fmt: skip


@triton.jit
def dropout_kernel(mask, seed, dropout, length, keys, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Write down what `keep` decides, (heads, length, keys): for tests only."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)[None, :]
    head = tl.program_id(2)
    at = mask + (head.to(tl.int64) * length + row) * keys + col
    kept = keep(seed, head, row, col, dropout)
    tl.store(at, kept.to(tl.int8), mask=(row < length) & (col < keys))
