"""The answers to positions: sinusoids, shifts, BERT's input, relative attention, and chapter 6."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from tested_transformer.layers.segmented_embedding import SegmentedEmbedding
from tested_transformer.positions import relative, sinusoidal
from tested_transformer.specs.positions.mutants import BertInput

from . import right, wrong
from .spoiled import spoil

# --- Sinusoids ------------------------------------------------------------------------------------


def sinusoids(positions, d_model, base=10000.0, layout="interleaved", dtype=torch.float32):
    """Column by column."""
    columns = torch.arange(d_model)
    angles = positions.double()[..., None] / base ** ((columns - columns % 2).double() / d_model)
    table = torch.where(columns % 2 == 0, angles.sin(), angles.cos())
    if layout == "halves":
        table = torch.cat((table[..., 0::2], table[..., 1::2]), -1)
    return table.to(dtype)


right("sinusoidal_positions", "the library's")(sinusoidal.sinusoidal_positions)

for each in ("sinusoidal_positions", "ch06.sinusoids"):
    right(each, "the formula")(sinusoids)

    @right(each)
    def sinusoids_by_logarithms(
        positions, d_model, base=10000.0, layout="interleaved", dtype=torch.float32, **options
    ):
        speeds = torch.exp(torch.arange(0, d_model, 2).double() * (-math.log(base) / d_model))
        angles = positions[..., None] * speeds
        if layout == "halves":
            return torch.cat((angles.sin(), angles.cos()), -1)[..., :d_model].to(dtype)
        return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)[..., :d_model].to(dtype)

    @right(each)
    def sinusoids_filled_in(
        positions, d_model, base=10000.0, layout="interleaved", dtype=torch.float32
    ):
        table = torch.zeros(*positions.shape, d_model, dtype=torch.float64)
        pairs = torch.arange((d_model + 1) // 2).double()
        angles = torch.einsum("...,i->...i", positions.double(), base ** (-2 * pairs / d_model))
        half = (d_model + 1) // 2
        odd = slice(half, None) if layout == "halves" else slice(1, None, 2)
        table[..., :half] = 0
        table[..., slice(half) if layout == "halves" else slice(0, None, 2)] = angles.sin()
        table[..., odd] = angles.cos()[..., : d_model // 2]
        return table.to(dtype)

    @right(each)
    def sinusoids_of_complex_numbers(
        positions, d_model, base=10000.0, layout="interleaved", dtype=torch.float32
    ):
        speeds = torch.pow(base, -torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
        turned = torch.polar(
            torch.ones_like(speeds), torch.outer(positions.flatten().double(), speeds)
        )
        pair = torch.stack((turned.imag, turned.real), -1)
        pair = pair.view(*positions.shape, *pair.shape[1:])
        pair = pair.transpose(-1, -2) if layout == "halves" else pair
        return pair.flatten(-2)[..., :d_model].to(dtype)

    @right(each)
    def sinusoids_of_numpy(
        positions, d_model, base=10000.0, layout="interleaved", dtype=torch.float32
    ):
        speeds = float(base) ** (-np.arange(0, d_model, 2) / d_model)
        angles = positions.numpy()[..., None] * speeds
        pair = np.stack((np.sin(angles), np.cos(angles)), -2 if layout == "halves" else -1)
        flat = pair.reshape(*positions.shape, 2 * len(speeds))[..., :d_model]
        return torch.from_numpy(np.ascontiguousarray(flat)).to(dtype)

    @wrong(each, "no positions raise")
    def sinusoids_of_some(positions, d_model, **options):
        positions.max()
        return sinusoids(positions, d_model, **options)

    @wrong(each, "at most 512 positions")
    def sinusoids_of_512(positions, d_model, **options):
        return sinusoids(positions.clamp(max=512), d_model, **options)

    @wrong(each, "at most 128 columns")
    def sinusoids_of_128(positions, d_model, **options):
        table = sinusoids(positions, d_model, **options)
        return table.where(torch.arange(d_model) < 128, torch.zeros_like(table))

    @wrong(each, "a batch flattened")
    def sinusoids_flat(positions, d_model, **options):
        return sinusoids(positions.reshape(-1), d_model, **options)

    @wrong(each, "the first row for the whole batch")
    def sinusoids_of_the_first_row(positions, d_model, **options):
        row = positions[:1].expand_as(positions) if positions.ndim > 1 else positions
        return sinusoids(row, d_model, **options)

    @wrong(each, "floor of D / 2 in the exponent")
    def sinusoids_of_an_even_width(positions, d_model, **options):
        return sinusoids(positions, d_model + d_model % 2, **options)[..., :d_model]

    @wrong(each, "always float64")
    def sinusoids_in_float64(positions, d_model, **options):
        return sinusoids(positions, d_model, **options | {"dtype": torch.float64})

    @wrong(each, "angles in bfloat16")
    def sinusoids_in_bfloat16(positions, d_model, **options):
        return sinusoids(positions.bfloat16(), d_model, **options)


def sinusoids_of(change):
    """The right formula at changed arguments."""

    def formula(positions, d_model, base=10000.0, layout="interleaved", dtype=torch.float32):
        return change(positions, d_model, base, layout, dtype)

    return formula


for name, change in {
    "positions before the start taken for 0": lambda p, *o: sinusoids(p.clamp(min=0), *o),
    "positions before the start counted from the end": lambda p, *o: sinusoids(p % 10**6, *o),
    "positions through float32": lambda p, *o: sinusoids(p.float().double(), *o),
    "the base ignored": lambda p, d, b, *o: sinusoids(p, d, 10000.0, *o),
    "the base ignored in halves": lambda p, d, b, way, t: sinusoids(
        p, d, b if way[0] == "i" else 1e4, way, t
    ),
    "the layout ignored": lambda p, d, b, way, t: sinusoids(p, d, b, "interleaved", t),
    "the layout ignored in bfloat16": lambda p, d, b, way, t: sinusoids(
        p, d, b, "interleaved" if t == torch.bfloat16 else way, t
    ),
    "the dtype ignored": lambda p, d, b, way, t: sinusoids(p, d, b, way),
    "bfloat16 comes back as float32": lambda p, d, b, way, t: sinusoids(
        p, d, b, way, torch.float32 if t == torch.bfloat16 else t
    ),
    "computed in the answer's dtype": lambda p, d, b, way, t: sinusoids(p.to(t), d, b, way, t),
    "rounded to float32 in float64": lambda p, d, b, way, t: sinusoids(p, d, b, way).to(t),
    "a base of at least 1": lambda p, d, b, way, t: sinusoids(p, d, max(b, 1.0), way, t),
}.items():
    wrong("sinusoidal_positions", name)(sinusoids_of(change))


# --- Shift ----------------------------------------------------------------------------------------


def shifted(offset, d_model, base=10000.0, layout="interleaved"):
    """A block for each pair."""
    speeds = base ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    blocks = [torch.tensor([[a.cos(), a.sin()], [-a.sin(), a.cos()]]) for a in offset * speeds]
    turn = torch.block_diag(*blocks)
    if layout == "halves":
        order = torch.cat((torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)))
        turn = turn[order][:, order]
    return turn.float()


right("shift_matrix", "the library's")(sinusoidal.shift_matrix)

for each in ("shift_matrix", "ch06.shift"):
    right(each, "the formula")(shifted)

    @right(each)
    def shift_of_diagonals(offset, d_model, base=10000.0, layout="interleaved"):
        angles = offset * torch.exp(
            -math.log(base) * torch.arange(0, d_model, 2).double() / d_model
        )
        cos, sin = torch.diag(angles.cos()), torch.diag(angles.sin())
        turn = torch.cat((torch.cat((cos, sin), 1), torch.cat((-sin, cos), 1)))
        if layout == "interleaved":
            order = torch.arange(d_model).view(2, -1).T.flatten()
            turn = turn[order][:, order]
        return turn.to(torch.float32)

    @right(each)
    def shift_by_least_squares(offset, d_model, base=10000.0, layout="interleaved"):
        """R from the sinusoids themselves: PE(p + offset) = PE(p) R^T at D well-placed positions."""
        steps = offset * base ** (-torch.arange(0, d_model, 2).double() / d_model)
        half = layout == "halves"
        turn = torch.zeros(d_model, d_model, dtype=torch.float64)
        for pair, angle in enumerate(steps.tolist()):
            a, b = (pair, pair + d_model // 2) if half else (2 * pair, 2 * pair + 1)
            turn[a, a] = turn[b, b] = math.cos(angle)
            turn[a, b] = math.sin(angle)
            turn[b, a] = -math.sin(angle)
        return turn.float()

    @wrong(each, "the absolute offset")
    def shift_forward(offset, d_model, **options):
        return shifted(abs(offset), d_model, **options)

    @wrong(each, "transposed")
    def shift_transposed(offset, d_model, **options):
        return shifted(offset, d_model, **options).T

    @wrong(each, "sixteen pairs at most")
    def shift_of_sixteen(offset, d_model, **options):
        turn = shifted(offset, d_model, **options)
        turn[32:, 32:] = torch.eye(max(d_model - 32, 0))
        return turn

    @wrong(each, "float64")
    def shift_in_float64(offset, d_model, **options):
        return shifted(offset, d_model, **options).double()

    @wrong(each, "angles in bfloat16")
    def shift_in_bfloat16(offset, d_model, **options):
        return shifted(torch.tensor(offset).bfloat16().item() * 1.01, d_model, **options)


@wrong("shift_matrix", "the base ignored")
def shift_of_10000(offset, d_model, base=10000.0, layout="interleaved"):
    return shifted(offset, d_model, 10000.0, layout)


@wrong("shift_matrix", "the base ignored in halves")
def shift_of_10000_in_halves(offset, d_model, base=10000.0, layout="interleaved"):
    return shifted(offset, d_model, base if layout == "interleaved" else 10000.0, layout)


@wrong("shift_matrix", "backwards in halves")
def shift_backwards_in_halves(offset, d_model, base=10000.0, layout="interleaved"):
    return shifted(-offset if layout == "halves" else offset, d_model, base, layout)


# --- BERT's input ---------------------------------------------------------------------------------

right("segmented_embedding", "the library's")(SegmentedEmbedding)
right("segmented_embedding", "the baseline's module")(BertInput)


@right("segmented_embedding")
def segmented_function(tokens, segments, token, segment, position, weight, bias):
    x = nn.functional.embedding(tokens, token, padding_idx=0)
    x = x + segment[segments] + position[torch.arange(tokens.shape[1])]
    return nn.functional.layer_norm(x, (x.shape[-1],), weight, bias, eps=1e-12)


@right("segmented_embedding")
def segmented_by_one_hot(tokens, segments, token, segment, position, weight, bias):
    token = torch.cat((token[:1].detach(), token[1:]))
    one_hot = nn.functional.one_hot(tokens, len(token)).to(token)
    x = one_hot @ token + nn.functional.one_hot(segments, len(segment)).to(token) @ segment
    x = x + position[: tokens.shape[-1]]
    x = x - x.mean(-1, keepdim=True)
    return x * (x.square().mean(-1, keepdim=True) + 1e-12).rsqrt() * weight + bias


class SwappedInit(BertInput):
    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        with torch.no_grad():
            self.norm.weight.zero_()
            self.norm.bias.fill_(1.0)


class PaddingEverywhere(BertInput):
    """Segment 0 and position 0 get no gradient either."""

    def segments(self, segments):
        return nn.functional.embedding(segments, self.segment.weight, padding_idx=0)

    def positions(self, tokens):
        ids = torch.arange(tokens.shape[1])
        return nn.functional.embedding(ids, self.position.weight, padding_idx=0)


class DetachedTokens(BertInput):
    def forward(self, tokens, segments):
        x = self.token(tokens).detach() + self.segments(segments) + self.positions(tokens)
        return self.normalize(x)


class DetachedStatistics(BertInput):
    def normalize(self, x):
        mean, spread = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
        return (x - mean.detach()) / (
            spread + 1e-12
        ).sqrt().detach() * self.norm.weight + self.norm.bias


class KeepsItsFirstSegments(BertInput):
    kept = None

    def segments(self, segments):
        if self.kept is None or self.kept.shape != segments.shape:
            self.kept = segments.clone()
        return self.segment(self.kept)


class WordsTwice(BertInput):
    def forward(self, tokens, segments):
        x = 2 * self.token(tokens) + self.segments(segments) + self.positions(tokens)
        return self.normalize(x)


class SampleVariance(BertInput):
    def normalize(self, x):
        spread = x.std(-1, keepdim=True)
        return (x - x.mean(-1, keepdim=True)) / spread * self.norm.weight + self.norm.bias


class NoBias(BertInput):
    def normalize(self, x):
        return nn.functional.layer_norm(
            x, x.shape[-1:], self.norm.weight, 0 * self.norm.bias, 1e-12
        )


class PositionsBackwards(BertInput):
    def positions(self, tokens):
        return super().positions(tokens).flip(0)


for module, name in {
    SwappedInit: "scale 0 and shift 1 when made",
    PaddingEverywhere: "padding_idx in all three tables",
    DetachedTokens: "words detached",
    DetachedStatistics: "mean and variance detached",
    KeepsItsFirstSegments: "the segments of its first call",
    WordsTwice: "words twice",
    SampleVariance: "the variance of a sample",
    NoBias: "the norm's bias left out",
    PositionsBackwards: "positions from the end",
}.items():
    wrong("segmented_embedding", name)(module)


# --- Relative attention ---------------------------------------------------------------------------


def relative_formula(query, key, value, key_table, value_table, *, mask=None, causal=False):
    """softmax(q (k + a) / sqrt(d)) (v + b), one vector for each pair."""
    length, keys, clip = query.shape[-2], key.shape[-2], len(key_table) // 2
    distance = torch.arange(keys) - torch.arange(keys - length, keys)[:, None]
    rows = distance.clamp(-clip, clip) + clip
    allowed = torch.ones(length, keys, dtype=torch.bool) if mask is None else mask
    allowed = allowed & (distance <= 0) if causal else allowed
    scores = torch.einsum("...ld,...lsd->...ls", query, key.unsqueeze(-3) + key_table[rows])
    scores = scores / math.sqrt(query.shape[-1])
    empty = ~allowed.any(-1, keepdim=True)
    weights = scores.masked_fill(~(allowed | empty), -math.inf).softmax(-1).masked_fill(empty, 0.0)
    return torch.einsum("...ls,...lsd->...ld", weights, value.unsqueeze(-3) + value_table[rows])


TENSORS = ("query", "key", "value", "key_table", "value_table")
right("relative_attention", "the library's")(relative.relative_attention)
right("relative_attention", "the formula")(relative_formula)
spoil("relative_attention", relative_formula, *TENSORS)


@right("relative_attention")
def relative_by_rows(query, key, value, key_table, value_table, mask=None, causal=False):
    """Each query by each row of the table, then the rows that are wanted; logarithms for the softmax."""
    length, keys, clip = query.shape[-2], key.shape[-2], len(key_table) // 2
    distance = torch.arange(keys)[None] - (torch.arange(length)[:, None] + keys - length)
    rows = distance.clamp(-clip, clip) + clip
    scale = query.shape[-1] ** -0.5
    by_row = (query * scale) @ key_table.T
    scores = (query * scale) @ key.mT + by_row.gather(-1, rows.expand(*query.shape[:-1], keys))
    hidden = distance > 0 if causal else torch.zeros_like(distance, dtype=torch.bool)
    hidden = hidden if mask is None else hidden | ~mask
    hidden = hidden.expand_as(scores)
    empty = hidden.all(-1, keepdim=True)
    scores = scores.masked_fill(hidden & ~empty, -math.inf)
    weights = (scores - scores.logsumexp(-1, keepdim=True)).exp().masked_fill(empty, 0.0)
    of_row = nn.functional.one_hot(rows, len(value_table)).to(value)
    return weights @ value + torch.einsum("...ls,lsr,rv->...lv", weights, of_row, value_table)


@wrong("relative_attention", "mask and causal: the mask alone")
def relative_of_mask_or_causal(query, key, value, a, b, *, mask=None, causal=False):
    return relative_formula(query, key, value, a, b, mask=mask, causal=causal and mask is None)


@wrong("relative_attention", "mask and causal: causal alone")
def relative_of_causal_or_mask(query, key, value, a, b, *, mask=None, causal=False):
    return relative_formula(query, key, value, a, b, mask=None if causal else mask, causal=causal)


@wrong("relative_attention", "causal from the top left")
def relative_causal_top_left(query, key, value, a, b, *, mask=None, causal=False):
    allowed = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool)
    if causal:
        allowed = allowed.tril()
    return relative_formula(
        query, key, value, a, b, mask=allowed if mask is None else allowed & mask
    )


@wrong("relative_attention", "the mask of the first head for all")
def relative_of_one_mask(query, key, value, a, b, *, mask=None, causal=False):
    if mask is not None and mask.ndim == 4:
        mask = mask[:, :1]
    return relative_formula(query, key, value, a, b, mask=mask, causal=causal)


@wrong("relative_attention", "softmax without the maximum")
def relative_naive(query, key, value, a, b, *, mask=None, causal=False):
    length, keys, clip = query.shape[-2], key.shape[-2], len(a) // 2
    distance = torch.arange(keys) - torch.arange(keys - length, keys)[:, None]
    rows = distance.clamp(-clip, clip) + clip
    scores = (query[..., None, :] * (key.unsqueeze(-3) + a[rows])).sum(-1) / query.shape[-1] ** 0.5
    allowed = torch.ones(length, keys, dtype=torch.bool) if mask is None else mask
    allowed = allowed & (distance <= 0) if causal else allowed
    powers = scores.exp() * allowed
    weights = powers / powers.sum(-1, keepdim=True).clamp_min(1e-300)
    return (weights[..., None] * (value.unsqueeze(-3) + b[rows])).sum(-2)


@wrong("relative_attention", "a query that may attend to nothing is NaN")
def relative_nan(query, key, value, a, b, *, mask=None, causal=False):
    answer = relative_formula(query, key, value, a, b, mask=mask, causal=causal)
    allowed = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool) if mask is None else mask
    return answer.masked_fill(~allowed.any(-1, keepdim=True), math.nan)


@wrong("relative_attention", "K at least 1")
def relative_of_some_distance(query, key, value, a, b, **options):
    if len(a) == 1:
        a, b = (torch.cat((torch.zeros_like(t), t, torch.zeros_like(t))) for t in (a, b))
    return relative_formula(query, key, value, a, b, **options)


@wrong("relative_attention", "-1e4 for what is hidden")
def relative_of_a_constant(query, key, value, a, b, *, mask=None, causal=False):
    bias = 0.0 if mask is None else (~mask) * -1e2
    length, keys, clip = query.shape[-2], key.shape[-2], len(a) // 2
    distance = torch.arange(keys) - torch.arange(keys - length, keys)[:, None]
    rows = distance.clamp(-clip, clip) + clip
    scores = (query[..., None, :] * (key.unsqueeze(-3) + a[rows])).sum(-1) / query.shape[-1] ** 0.5
    scores = scores + bias + ((distance > 0) * -1e2 if causal else 0.0)
    return (scores.softmax(-1)[..., None] * (value.unsqueeze(-3) + b[rows])).sum(-2)


# --- Exercises of chapter 6 -----------------------------------------------------------------------


@right("ch06.relative_rows")
def rows_by_loops(num_queries, num_keys, max_distance):
    first = num_keys - num_queries
    rows = [
        [
            min(max(j - i - first, -max_distance), max_distance) + max_distance
            for j in range(num_keys)
        ]
        for i in range(num_queries)
    ]
    return torch.tensor(rows)


@right("ch06.relative_rows")
def rows_by_minimum(num_queries, num_keys, max_distance):
    keys, queries = torch.arange(num_keys), torch.arange(num_keys - num_queries, num_keys)
    later = torch.minimum(keys[None] - queries[:, None], torch.tensor(max_distance))
    return torch.maximum(later + max_distance, torch.tensor(0))


@right("ch06.relative_rows")
def rows_of_numpy(num_queries, num_keys, max_distance):
    steps = np.subtract.outer(np.arange(num_queries) + num_keys - num_queries, np.arange(num_keys))
    return torch.from_numpy(np.clip(max_distance - steps, 0, 2 * max_distance))


for name, wrong_rows in {
    "clipped one short": lambda n, s, k: (
        (torch.arange(s) - torch.arange(s - n, s)[:, None]).clamp(-k, max(k - 1, 0)) + k
    ),
    "the distance without direction": lambda n, s, k: (
        (torch.arange(s) - torch.arange(s - n, s)[:, None]).abs().clamp(max=k) + k
    ),
    "floats": lambda n, s, k: rows_by_loops(n, s, k).double(),
    "transposed": lambda n, s, k: rows_by_loops(n, s, k).T,
    "the future clipped to 0": lambda n, s, k: rows_by_loops(n, s, k).clamp(max=k),
    "K at least 1": lambda n, s, k: rows_by_loops(n, s, max(k, 1)),
    "a query too far": lambda n, s, k: (
        (torch.arange(s) - torch.arange(s - n + 1, s + 1)[:, None]).clamp(-k, k) + k
    ),
    "five queries at most": lambda n, s, k: (
        (torch.arange(s) - torch.arange(s - n, s).clamp(max=4 + s - n)[:, None]).clamp(-k, k) + k
    ),
}.items():
    wrong("ch06.relative_rows", name)(wrong_rows)


@right("ch06.places")
def places_by_loops(real):
    found = torch.zeros(real.shape, dtype=torch.long)
    for row, out in zip(real, found, strict=True):
        for n, place in enumerate(row.nonzero()[:, 0]):
            out[place] = n
    return found


@right("ch06.places")
def places_by_where(real):
    return torch.where(real, real.long().cumsum(-1) - 1, 0)


@right("ch06.places")
def places_by_exclusive_sums(real):
    return (real.cumsum(1) - real.long()) * real.long()


for name, wrong_places in {
    "words so far": lambda real: real.cumsum(1) - real.long(),
    "from the first word on": lambda real: (
        (torch.arange(real.shape[1]) - real.long().argmax(1, keepdim=True)).clamp(min=0) * real
    ),
    "floats": lambda real: places_by_where(real).double(),
    "padding at the last place": lambda real: (real.cumsum(1) - 1).clamp(min=0),
    "the first row's": lambda real: places_by_where(real[:1].expand_as(real)),
    "over the batch": lambda real: (real.cumsum(0) - 1).clamp(min=0) * real,
    "of int8, which ends at 127": lambda real: (
        (real.cumsum(1, dtype=torch.int8) - 1).clamp(min=0) * real
    ),
}.items():
    wrong("ch06.places", name)(wrong_places)


@right("ch06.to_halves")
def to_halves_by_an_order(weight):
    order = torch.arange(len(weight))
    return weight[torch.cat((order[order % 2 == 0], order[order % 2 == 1]))]


@right("ch06.to_halves")
def to_halves_by_sorting(weight):
    return weight[torch.argsort(torch.arange(len(weight)) % 2, stable=True)]


@right("ch06.to_halves")
def to_halves_by_a_matrix(weight):
    size, half = len(weight), (len(weight) + 1) // 2
    rows = [2 * row if row < half else 2 * (row - half) + 1 for row in range(size)]
    return torch.eye(size, dtype=weight.dtype)[rows] @ weight


spoil("ch06.to_halves", lambda weight: torch.cat((weight[0::2], weight[1::2])), "weight")

for name, wrong_weight in {
    "even widths only": lambda weight: torch.cat(
        (weight[0 : len(weight) // 2 * 2 : 2], weight[1::2])
    ),
    "the odd row dropped to the end": lambda weight: torch.cat(
        (
            weight[: len(weight) // 2 * 2]
            .view(-1, 2, weight.shape[1])
            .mT.reshape(-1, weight.shape[1]),
            weight[len(weight) // 2 * 2 :],
        )
    ),
    "rows moved twice": lambda weight: to_halves_by_an_order(to_halves_by_an_order(weight)),
    "the odd rows negated": lambda weight: torch.cat((weight[0::2], -weight[1::2])),
}.items():
    wrong("ch06.to_halves", name)(wrong_weight)
