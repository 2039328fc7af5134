"""Positions: how a model that sees a set of tokens is told their order."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from .attention import attention
from .errors import (
    complain,
    need_count,
    need_float_tensor,
    need_integer_tensor,
    need_positive,
    need_probability,
    need_rank,
    shape_of,
)
from .layers import LayerNorm

LAYOUTS = ("interleaved", "halves")

# --- Sinusoids ------------------------------------------------------------------------------------


def sinusoidal_positions(
    positions: Int[Tensor, "*batch"],
    d_model: int,
    *,
    base: float = 10000.0,
    layout: str = "interleaved",
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "*batch D"]:
    """One vector a position: the sine and cosine of D/2 angles, the i-th of them pos / base^(2i/D).

    layout: "interleaved" puts each cosine beside its sine (the paper), "halves" all sines before all
    cosines (Marian). An odd D ends with one cosine fewer. Nothing is stored, so no position is too
    large. Angles are made in float64: in float32 the numbers around 100,000 lie 1/128 apart, and the
    sine of such an angle is as wrong.

    Shapes: (*batch) -> (*batch, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Vaswani et al. 2017, section 3.5.

    >>> sinusoidal_positions(torch.tensor([0, 1]), 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    need_integer_tensor("positions", positions)
    need_floating("dtype", dtype)
    angles = positions.double().unsqueeze(-1) * frequencies(d_model, base).to(positions.device)
    sines, cosines = angles.sin(), angles.cos()  # *batch ceil(D/2)
    if need_layout(layout) == "halves":
        return torch.cat((sines, cosines), -1)[..., :d_model].to(dtype)
    return torch.stack((sines, cosines), -1).flatten(-2)[..., :d_model].to(dtype)


def frequencies(d_model: int, base: float = 10000.0) -> Float[Tensor, " pairs"]:
    """How far each pair of sine and cosine turns from a position to the next, in radians.

    1 / base^(2i/D) for i = 0 ... ceil(D/2) - 1, in float64: 1 for the first pair, close to 1/base
    for the last.

    Shapes: a number -> (ceil(D/2)).
    Raises: TypeError or ValueError that name the argument.
    Source: Vaswani et al. 2017, section 3.5.
    """
    need_count("d_model", d_model)
    need_positive("base", base)
    columns = torch.arange(0, d_model, 2, dtype=torch.float64)  # 2i
    return base ** (-columns / d_model)


def shift_matrix(
    offset: int,
    d_model: int,
    *,
    base: float = 10000.0,
    layout: str = "interleaved",
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "D D"]:
    """The matrix R that moves any position: R PE(pos) = PE(pos + offset), whatever pos is.

    Each pair (sine, cosine) turns by its own angle, offset x frequency. A sine without its cosine
    can not be turned, so D must be even.

    Shapes: numbers -> (D, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Vaswani et al. 2017, section 3.5, the sentence about a fixed offset k.
    """
    need_whole("offset", offset)
    need_floating("dtype", dtype)
    angles = offset * frequencies(d_model, base)
    if d_model % 2:
        raise complain(ValueError, "d_model", d_model, "an even number: each sine needs its cosine")
    halves = need_layout(layout) == "halves"
    sine = torch.arange(d_model // 2) * (1 if halves else 2)  # the columns of the sines
    cosine = sine + (d_model // 2 if halves else 1)
    turn = torch.zeros(d_model, d_model, dtype=torch.float64)
    turn[sine, sine] = turn[cosine, cosine] = angles.cos()
    turn[sine, cosine] = angles.sin()  # sin(a + b) = sin a cos b + cos a sin b
    turn[cosine, sine] = -angles.sin()  # cos(a + b) = cos a cos b - sin a sin b
    return turn.to(dtype)


class SinusoidalPositions(nn.Module):
    """`sinusoidal_positions` as a layer without parameters; its dtype is the module's.

    Shapes: (*batch, L) -> (*batch, L, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Vaswani et al. 2017, section 3.5.
    """

    def __init__(self, d_model: int, *, base: float = 10000.0, layout: str = "interleaved") -> None:
        super().__init__()
        frequencies(d_model, base)  # complains about both
        self.d_model, self.base, self.layout = d_model, base, need_layout(layout)
        self.register_buffer("like", torch.empty(0), persistent=False)  # follows .to(dtype)

    def forward(self, positions: Int[Tensor, "*batch L"]) -> Float[Tensor, "*batch L D"]:
        """The vectors of these positions."""
        return sinusoidal_positions(
            positions, self.d_model, base=self.base, layout=self.layout, dtype=self.like.dtype
        )


# --- Learned --------------------------------------------------------------------------------------


class LearnedPositions(nn.Module):
    """A table with one trained row a position, and no answer past its last row.

    The parameter `weight` (max_length, D) starts as small noise, of standard deviation 0.02.

    Shapes: (*batch, L) -> (*batch, L, D).
    Raises: TypeError or ValueError that name the argument; ValueError for a position below 0 or
        not below max_length.
    Source: Gehring et al. 2017, section 3.1; Devlin et al. 2019, section 3.
    """

    def __init__(self, max_length: int, d_model: int) -> None:
        super().__init__()
        need_count("max_length", max_length)
        need_count("d_model", d_model)
        self.weight = nn.Parameter(torch.empty(max_length, d_model).normal_(std=0.02))

    def forward(self, positions: Int[Tensor, "*batch L"]) -> Float[Tensor, "*batch L D"]:
        """The rows of these positions."""
        need_indices("positions", positions, len(self.weight))
        return functional.embedding(positions, self.weight)


class SegmentedEmbedding(nn.Module):
    """BERT's input: token + segment + learned position, each a table's row, normalized, with dropout.

    Parts `token`, `segment` (nn.Embedding), `position` (LearnedPositions), `norm` and `dropout`. The
    row of padding_idx starts at zero and gets no gradient.

    Shapes: tokens and segments (*batch, L), positions broadcastable to them -> (*batch, L, D).
        Without segments all are segment 0; without positions they are 0 ... L - 1.
    Raises: TypeError or ValueError that name the argument.
    Source: Devlin et al. 2019, section 3, figure 2.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        *,
        max_length: int = 512,
        num_segments: int = 2,
        padding_idx: int | None = 0,
        dropout: float = 0.1,
        eps: float = 1e-12,
    ) -> None:
        super().__init__()
        need_count("vocab_size", vocab_size)
        need_count("d_model", d_model)
        need_count("num_segments", num_segments)
        need_probability("dropout", dropout)
        if padding_idx is not None:
            need_count("padding_idx", padding_idx, least=0)
            if padding_idx >= vocab_size:
                raise complain(ValueError, "padding_idx", padding_idx, f"below {vocab_size}")
        self.token = nn.Embedding(vocab_size, d_model, padding_idx=padding_idx)
        self.segment = nn.Embedding(num_segments, d_model)
        self.position = LearnedPositions(max_length, d_model)
        self.norm = LayerNorm(d_model, eps=eps)
        self.dropout = nn.Dropout(dropout)
        with torch.no_grad():
            self.segment.weight.normal_(std=0.02)
            self.token.weight.normal_(std=0.02)
            if padding_idx is not None:
                self.token.weight[padding_idx] = 0

    def forward(
        self,
        tokens: Int[Tensor, "*batch L"],
        segments: Int[Tensor, "*batch L"] | None = None,
        positions: Int[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "*batch L D"]:
        """Look up, add, normalize."""
        need_indices("tokens", tokens, self.token.num_embeddings)
        if tokens.ndim == 0:
            raise complain(ValueError, "tokens", "shape ()", "at least 1 axis")
        segments = torch.zeros_like(tokens) if segments is None else segments
        need_indices("segments", segments, self.segment.num_embeddings)
        if segments.shape != tokens.shape:
            came, wanted = f"shape {shape_of(segments)}", f"that of tokens, {shape_of(tokens)}"
            raise complain(ValueError, "segments", came, wanted)
        if positions is None:
            positions = torch.arange(tokens.shape[-1], device=tokens.device)
        x = self.token(tokens) + self.segment(segments) + self.position(positions)
        return self.dropout(self.norm(x))


# --- Relative -------------------------------------------------------------------------------------


def relative_distances(
    num_queries: int, num_keys: int, max_distance: int, *, device: Any = None
) -> Int[Tensor, "L S"]:
    """Which row of a table belongs to each pair: the key's place less the query's, clipped, made >= 0.

    Entry (i, j) is clip(j - p, -K, K) + K, where p = i + S - L is the query's place (the last query
    stands at the last key) and K is max_distance.

    Shapes: numbers -> (L, S), entries 0 ... 2K.
    Raises: TypeError or ValueError that name the argument.
    Source: Shaw et al. 2018, section 3.2.

    >>> relative_distances(3, 3, 1)
    tensor([[1, 2, 2],
            [0, 1, 2],
            [0, 0, 1]])
    """
    need_count("num_queries", num_queries, least=0)
    need_count("num_keys", num_keys, least=0)
    need_count("max_distance", max_distance, least=0)
    queries = torch.arange(num_queries, device=device) + num_keys - num_queries
    distances = torch.arange(num_keys, device=device) - queries[:, None]  # L S
    return distances.clamp(-max_distance, max_distance) + max_distance


def relative_attention(
    query: Float[Tensor, "*batch L d"],
    key: Float[Tensor, "*kv_batch S d"],
    value: Float[Tensor, "*kv_batch S dv"],
    key_table: Float[Tensor, "rows d"],
    value_table: Float[Tensor, "rows dv"] | None = None,
    *,
    mask: Bool[Tensor, "..."] | None = None,
    causal: bool = False,
    dropout_p: float = 0.0,
    return_weights: bool = False,
) -> Any:
    """Attention in which a pair's distance has a vector of its own, added to its key and its value.

    softmax(q_i . (k_j + a_ij) / sqrt(d)) (v_j + b_ij), where a_ij and b_ij are the tables' rows for
    the distance of j from i, clipped to K; the tables have 2K + 1 rows. The sums are split, so that
    no tensor of L x S vectors is made: each query meets each row of the key table once, and the
    weights are summed by distance before they meet the value table.

    Shapes: query (*batch, L, d), key (*batch, S, d), value (*batch, S, dv), tables (2K + 1, d) and
        (2K + 1, dv) -> (*batch, L, dv) [, weights (*batch, L, S)].
    Raises: TypeError or ValueError that name the argument.
    Source: Shaw et al. 2018, equations 3 to 5, and the split of section 3.3.
    """
    need_tables(query, key, value, key_table, value_table)
    max_distance = len(key_table) // 2
    picks = relative_distances(
        query.shape[-2], key.shape[-2], max_distance, device=query.device
    ).expand(*query.shape[:-1], -1)  # *batch L S
    by_row = query @ key_table.mT * query.shape[-1] ** -0.5  # *batch L 2K+1
    bias = by_row.gather(-1, picks)  # *batch L S
    output, weights = attention(
        query, key, value, mask=mask, bias=bias, causal=causal, dropout_p=dropout_p,
        return_weights=True,
    )  # fmt: skip
    if value_table is not None:
        by_distance = torch.zeros_like(by_row).scatter_add(-1, picks, weights)  # *batch L 2K+1
        output = output + by_distance @ value_table
    return (output, weights) if return_weights else output


class RelativeAttention(nn.Module):
    """`relative_attention` with tables of its own, shared by all heads and all samples.

    Parameters `key_table` and `value_table` (2K + 1, d), small noise at the start.

    Shapes: query (*batch, L, d), key and value (*batch, S, d) -> (*batch, L, d); options as in
        `relative_attention`.
    Raises: TypeError or ValueError that name the argument.
    Source: Shaw et al. 2018, section 3.2.
    """

    def __init__(self, d_head: int, max_distance: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        need_count("d_head", d_head)
        need_count("max_distance", max_distance, least=0)
        need_probability("dropout", dropout)
        rows = 2 * max_distance + 1
        self.key_table = nn.Parameter(torch.empty(rows, d_head).normal_(std=0.02))
        self.value_table = nn.Parameter(torch.empty(rows, d_head).normal_(std=0.02))
        self.dropout = dropout

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        """Attend, with the distances in mind."""
        dropout_p = self.dropout if self.training else 0.0
        return relative_attention(
            query, key, value, self.key_table, self.value_table, dropout_p=dropout_p, **options
        )


# --- What one might try first ---------------------------------------------------------------------


def integer_positions(
    positions: Int[Tensor, "*batch"], *, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "*batch 1"]:
    """The position itself, as one number to add to every feature: it has no upper end.

    Shapes: (*batch) -> (*batch, 1).
    Raises: TypeError that names the argument.
    Source: chapter 6, where an experiment rejects it.
    """
    need_integer_tensor("positions", positions)
    need_floating("dtype", dtype)
    return positions.to(dtype).unsqueeze(-1)


def unit_positions(
    positions: Int[Tensor, "*batch"], length: int, *, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "*batch 1"]:
    """The position as a share of the way, 0 for the first token and 1 for the last of `length`.

    Shapes: (*batch) -> (*batch, 1); a length of 1 gives 0.
    Raises: TypeError or ValueError that name the argument.
    Source: chapter 6, where an experiment rejects it.
    """
    need_count("length", length)
    return integer_positions(positions, dtype=dtype) / max(length - 1, 1)


def binary_positions(
    positions: Int[Tensor, "*batch"], num_bits: int, *, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "*batch bits"]:
    """The position's binary digits, the lowest first: column b changes every 2^b positions.

    Shapes: (*batch) -> (*batch, num_bits).
    Raises: TypeError that names the argument; ValueError for a position that needs more bits.
    Source: chapter 6, where an experiment rejects it.

    >>> binary_positions(torch.tensor([3, 4]), 3).tolist()
    [[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    need_count("num_bits", num_bits)
    need_indices("positions", positions, 2**num_bits)
    need_floating("dtype", dtype)
    bits = torch.arange(num_bits, device=positions.device)
    return (positions.long().unsqueeze(-1) >> bits & 1).to(dtype)


# --- Checks ---------------------------------------------------------------------------------------


def need_layout(layout: object) -> str:
    """The layout itself. Raises: ValueError unless it is a known one."""
    if layout not in LAYOUTS:
        raise complain(ValueError, "layout", repr(layout), '"interleaved" or "halves"')
    return layout


def need_floating(argument: str, dtype: object) -> None:
    """Raise TypeError unless dtype is a floating point dtype."""
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise complain(TypeError, argument, dtype, "a floating point dtype")


def need_whole(argument: str, value: object) -> None:
    """Raise TypeError unless the value is an int, negative ones included."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise complain(TypeError, argument, type(value).__name__, "an int")


def need_indices(argument: str, indices: Any, size: int) -> None:
    """Raise unless all indices name a row of a table of that size.

    It looks at the values: on a GPU a wrong index would otherwise kill the process.
    """
    need_integer_tensor(argument, indices)
    if indices.is_meta or torch.compiler.is_compiling() or not indices.numel():
        return
    low, high = (int(end) for end in indices.aminmax())
    if low < 0 or high >= size:
        came = low if low < 0 else high
        raise complain(ValueError, argument, came, f"0 to {size - 1}: the table has {size} rows")


def need_tables(query: Any, key: Any, value: Any, key_table: Any, value_table: Any) -> None:
    """Raise unless the tables fit: 2K + 1 rows, as wide as the keys and the values."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        need_float_tensor(name, tensor)
        if tensor.ndim < 2:
            raise complain(ValueError, name, f"shape {shape_of(tensor)}", "at least 2 axes")
    need_float_tensor("key_table", key_table)
    tables = {"key_table": (key_table, query.shape[-1])}
    if value_table is not None:
        need_float_tensor("value_table", value_table)
        tables["value_table"] = value_table, value.shape[-1]
    for name, (table, width) in tables.items():
        need_rank(name, table, 2)
        rows = len(key_table)
        if table.shape != (rows, width) or rows % 2 == 0:
            rows += rows % 2 == 0
            came, wanted = f"shape {shape_of(table)}", f"({rows}, {width}), an odd number of rows"
            raise complain(ValueError, name, came, wanted)
        if table.dtype != query.dtype:
            raise complain(TypeError, name, table.dtype, f"query's dtype {query.dtype}")
