"""The Specs of rotary positions: the rotation, and attention that decodes with it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import reference
from ..checks import any_dtype, transposed, varied
from ..compare import Problem, compare, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants
from .mutants import RotaryDecoder, RotaryFormula

# --- The rotation ---------------------------------------------------------------------------------


def _rotary_cases(rng: np.random.Generator) -> list[Case]:
    """From one pair to far positions, both layouts, partial rotation, position IDs of their own."""

    def case(label, shape, position_ids, dtype=torch.float64, **options) -> Case:
        arguments = {"x": rng.normal(size=shape), "position_ids": np.asarray(position_ids)}
        return Case(label, arguments | options, dtype)

    left = np.maximum(np.arange(5) - np.array([[0], [2]]), 0)  # the second is padded on the left
    return [
        case("one pair", (1, 1, 3, 2), [0, 1, 2]),
        case("two pairs", (1, 2, 3, 4), [0, 1, 2]),
        case("two pairs as halves", (1, 2, 3, 4), [0, 1, 2], layout="halves"),
        case("after a cache", (2, 3, 4, 6), [5, 6, 7, 8]),
        case("a sequence's own positions", (2, 3, 5, 8), left, layout="halves"),
        case("out of order", (2, 1, 5, 6), rng.permuted(np.tile(np.arange(9), (2, 1)), axis=1)[:, :5]),
        case("another base", (1, 2, 4, 8), [0, 1, 5, 9], base=500.0),
        case("another base, halves", (1, 2, 3, 6), [0, 2, 3], base=500000.0, layout="halves"),
        case("part of the head", (2, 2, 3, 10), [0, 1, 4], rotary_dim=4),
        case("part of the head, halves", (1, 2, 3, 10), [1, 2, 3], rotary_dim=6, layout="halves"),
        case("float32, far away", (1, 2, 4, 8), rng.integers(9000, 9999, 4), torch.float32),
        case("float32, past 100,000", (1, 2, 3, 8), rng.integers(100_000, 131_072, 3), torch.float32),
        case("before the start", (2, 1, 3, 4), [-3, -1, 2]),
        case("part of an odd head", (1, 2, 3, 5), [0, 1, 4], rotary_dim=4),
        case("bfloat16, far away", (2, 2, 3, 8), rng.integers(8000, 8192, 3), torch.bfloat16),
        case("bfloat16", (2, 2, 3, 8), [0, 1, 2], torch.bfloat16, layout="halves"),
        case("float16, far away", (1, 2, 3, 8), rng.integers(2000, 4000, 3), torch.float16),
        case("float32", (2, 2, 3, 4), [0, 1, 2], torch.float32, layout="halves"),
        case("one token, its own position", (3, 2, 1, 4), rng.integers(0, 99, (3, 1))),
        case("one row of positions for the batch", (3, 2, 2, 4), [[4, 5]]),
        case("past 512", (1, 1, 3, 6), rng.integers(513, 5000, 3)),
        case("as many tokens as features", (2, 4, 4, 4), [3, 4, 5, 6]),
        case("no tokens", (2, 2, 0, 4), np.zeros(0, dtype=np.int64)),
        case("part of the head, another base", (1, 2, 3, 6), [1, 2, 3], rotary_dim=4, base=100.0),
        replace(own := case("transposed tensors", (2, 3, 4, 6), [0, 1, 2, 9]),
                arguments=transposed(own.arguments)),
    ]  # fmt: skip


def _rotary_by_chance(draw: Draw) -> Case:
    batch, length, d = draw.one_of(1, 3), draw.one_of(3, 1), draw.one_of(4, 2, 8)
    far = draw.one_of(10, 1000)
    shape = draw.one_of((length,), (batch, length))
    options = draw.one_of({}, {"layout": "halves"})
    options = options | draw.one_of({}, {"rotary_dim": 2})
    options = options | draw.one_of({}, {"base": 500.0})
    arguments = {"x": draw.numbers.normal(size=(batch, draw.one_of(1, 2), length, d))}
    arguments["position_ids"] = draw.numbers.integers(0, far, shape)
    return Case("options by chance", arguments | options, any_dtype(draw))


def _exact(case: Case) -> bool:
    return case.dtype == torch.float64 and not case.is_empty


def _partly(case: Case) -> bool:
    return _exact(case) and case.arguments.get("rotary_dim") is not None


def _pairs(array: np.ndarray, case: Case) -> np.ndarray:
    """The features that rotate as (..., r/2, 2), as the case's layout has them."""
    size = case.arguments.get("rotary_dim") or array.shape[-1]
    if case.arguments.get("layout") == "halves":
        return np.stack((array[..., : size // 2], array[..., size // 2 : size]), -1)
    return array[..., :size].reshape(*array.shape[:-1], size // 2, 2)


def _identity(run: Run, case: Case) -> Problem | None:
    first = case.arguments["x"][:, :, :1]
    got = run.value(case, x=first, position_ids=np.zeros(1, dtype=int))
    return compare(first, got, run.expected(case)[1])


def _rest_stays(run: Run, case: Case) -> Problem | None:
    size = case.arguments["rotary_dim"]
    rest = case.arguments["x"][..., size:], run.value(case)[..., size:]
    return compare(*rest, 0.0, "the features that do not rotate")


def _norms(run: Run, case: Case) -> Problem | None:
    x = case.arguments["x"]
    before, after = ((_pairs(each, case) ** 2).sum(-1) for each in (x, run.value(case)))
    slack = 8 * np.abs(x).max(initial=0.0) * run.expected(case)[1]  # 2 (|a| + |b|) for either
    return compare(before, after, slack, "the squared norm of each pair")


def _alone(run: Run, case: Case) -> Problem | None:
    """Each token of each sequence alone, with its own position, against itself among the others."""
    x, together = case.arguments["x"], run.value(case)
    batch, _, length, _ = x.shape
    position_ids = np.broadcast_to(case.arguments["position_ids"], (batch, length))
    for b, i in np.ndindex(batch, length):
        token = slice(b, b + 1), slice(None), slice(i, i + 1)
        own = position_ids[b : b + 1, i : i + 1].copy()
        alone = run.value(case, x=x[token], position_ids=own)
        what, slack = f"the token at position {own.item()}", 2 * run.expected(case)[1]
        if problem := unchanged(together[token], alone, slack, "it comes alone", what):
            return problem
    return None


def _speeds(run: Run, case: Case) -> Problem | None:
    """The angle by which (1, 0) in each pair has turned at position 1."""
    x, base = case.arguments["x"], case.arguments.get("base") or 10000.0
    unit = np.zeros_like(x)
    pairs = _pairs(np.arange(x.shape[-1])[None], case)[0]  # which features make a pair
    unit[..., pairs[:, 0]] = 1.0
    position_ids = np.ones_like(case.arguments["position_ids"])
    step = varied(case, "position 1", x=unit, position_ids=position_ids)
    turned = _pairs(run.value(step), case)[0, 0, 0]
    wanted, slack = base ** (-np.arange(len(pairs)) / len(pairs)), 2 * run.expected(step)[1]
    return compare(wanted, np.arctan2(turned[:, 1], turned[:, 0]), slack, "radians, by pair")


def _distances(run: Run, case: Case) -> Problem | None:
    """The same queries and keys 17 positions later have the same scores."""
    position_ids = case.arguments["position_ids"]
    here, there = run.value(case), run.value(case, position_ids=position_ids + 17)
    scores = here @ here.swapaxes(-1, -2), there @ there.swapaxes(-1, -2)
    off = (1 + 18) * run.expected(case)[1]  # of each feature: an angle is as wrong as it is large
    slack = 4 * here.shape[-1] * np.abs(case.arguments["x"]).max(initial=0.0) * off
    return unchanged(*scores, slack, "all tokens stand 17 positions later", "a score")


ROTARY = Spec(
    name="apply_rotary",
    statement="""apply_rotary(x, position_ids, *, base=10000, layout="interleaved", rotary_dim=None):
pair i = 0 ... r/2 - 1 of the first r = rotary_dim features (all by default), (a, b), becomes
(a cos t - b sin t, a sin t + b cos t), t = position / base^(2i/r); the others stay. Pair i is features
2i and 2i + 1, with layout="halves" i and i + r/2. x (B, H, L, d), position_ids (L) or (B, L). Angles in
float32 at least.""",
    required=("x", "position_ids"),
    reference=reference.apply_rotary,
    baseline=RotaryFormula(),
    cases=_rotary_cases,
    combine=_rotary_by_chance,
    num_drawn=3,
    checks=(
        Check(
            "position 0 is the identity",
            "At position 0 every angle is 0: each feature must come back as it was, where it was.",
            _identity,
            when=_exact,
        ),
        Check(
            "features past rotary_dim stay",
            "Only the first rotary_dim features of a head rotate.",
            _rest_stays,
            when=_partly,
        ),
        Check(
            "each pair keeps its norm",
            "A rotation of the plane of two features changes neither their norm nor other features.",
            _norms,
            when=_exact,
        ),
        Check(
            "position IDs decide",
            "The rotation of a token may depend on nothing but its own position ID.",
            _alone,
            when=_exact,
        ),
        Check(
            "each pair turns at its own speed",
            "From a position to the next, pair i turns by base^(-2i/r) radians, (1, 0) towards (0, 1).",
            _speeds,
            when=_exact,
        ),
        Check(
            "scores depend on the distance alone",
            "Moved together, a query and a key must keep their dot product.",
            _distances,
            when=_exact,
        ),
    ),
    mutants=mistakes_in(mutants, of="apply_rotary"),
    chapter=18,
)

# --- Attention that decodes -----------------------------------------------------------------------


def _decode(candidate: Any, query: Tensor, key: Tensor, value: Tensor, chunks: tuple) -> Tensor:
    """Feed a whole sequence to a new object, chunk by chunk."""
    decoder = candidate()
    parts = zip(*(t.split(chunks, 2) for t in (query, key, value)), strict=True)
    return torch.cat([decoder(*part) for part in parts], 2)


def _slow_decode(query, key, value, chunks):
    return reference.rotary_attention(query, key, value)


def _decode_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, chunks, batch, heads, d, dtype=torch.float64) -> Case:
        shape = (batch, heads, sum(chunks), d)
        tensors = {name: rng.normal(size=shape) for name in ("query", "key", "value")}
        return Case(label, tensors | {"chunks": chunks}, dtype)

    return [
        case("three tokens at once", (3,), 1, 1, 2),
        case("five at once", (5,), 2, 3, 4),
        case("one by one", (1,) * 5, 2, 1, 4),
        case("a prompt, then one by one", (4, 1, 1), 3, 2, 6),
        case("chunks of several", (2, 3, 1, 2), 1, 2, 8),
        case("float32", (3, 1, 2), 2, 2, 6, torch.float32),
        case("one token", (1,), 1, 1, 2),
        case("more than 16 tokens", (12, 6), 1, 1, 4, torch.float32),
        case("more than 64 tokens", (60, 1, 9), 1, 1, 2, torch.float32),
        case("bfloat16", (3, 2), 2, 1, 4, torch.bfloat16),
    ]


def _decode_by_chance(draw: Draw) -> Case:
    chunks = draw.one_of((2, 1), (1, 3), (1, 1, 1), (2, 2, 2))
    shape = (draw.one_of(1, 2), draw.one_of(1, 3), sum(chunks), draw.one_of(2, 4))
    tensors = {name: draw.numbers.normal(size=shape) for name in ("query", "key", "value")}
    tensors["query"] = draw.one_of(1.0, 1000.0) * tensors["query"]
    return Case("options by chance", tensors | {"chunks": chunks}, any_dtype(draw))


def _one_pass(run: Run, case: Case) -> Problem | None:
    whole, slack = (sum(case.arguments["chunks"]),), 2 * run.expected(case)[1]
    when = "a sequence comes in chunks"
    return unchanged(run.value(case, chunks=whole), run.value(case), slack, when)


def _values_stay(run: Run, case: Case) -> Problem | None:
    """Equal values have themselves as their weighted sum."""
    value, slack = np.ones_like(case.arguments["value"]), 4 * run.expected(case)[1]
    return compare(value, run.value(case, value=value), slack, "the sum of equal values")


def _sees_order(run: Run, case: Case) -> Problem | None:
    """The first two tokens exchanged, keys and values, must change the last output."""
    swapped = {}
    for name in ("key", "value"):
        swapped[name] = case.arguments[name].copy()
        swapped[name][:, :, [0, 1]] = swapped[name][:, :, [1, 0]]
    before, after = run.value(case)[:, :, -1], run.value(case, **swapped)[:, :, -1]
    if np.abs(after - before).max() > 2 * run.expected(case)[1]:
        return None
    return Problem("another output", "the same output after two tokens have changed places")


def _distance_alone(run: Run, case: Case) -> Problem | None:
    """With one query and one key everywhere, a score less its row's last must repeat on diagonals."""
    arguments = case.arguments
    same = {name: np.empty_like(arguments[name]) for name in ("query", "key")}
    for name, tensor in same.items():
        tensor[:] = arguments[name][:, :, :1]
    length, weights = arguments["query"].shape[2], []
    for token in range(length):  # values that are 1 at one token give the weights of that token
        value = np.zeros_like(arguments["value"])
        value[:, :, token] = 1.0
        weights.append(run.value(case, **same, value=value)[..., 0])
    with np.errstate(divide="ignore"):  # the future has no weight
        scores = np.log(np.stack(weights, -1))  # B H L L
    least = min(weight[weight > 0].min() for weight in weights)
    scores = scores - np.diagonal(scores, axis1=-2, axis2=-1)[..., None]
    i, j = np.tril_indices(length - 1)
    slack = 4 * run.expected(case)[1] / least  # a logarithm's slope; four of them are compared
    before, after = scores[..., i, j], scores[..., i + 1, j + 1]
    return unchanged(before, after, slack, "query and key stand one position later", "a score")


def _ordinary(case: Case) -> bool:
    """Float64, and no weight that underflows."""
    loud = np.abs(case.arguments["query"]).max() > 10
    return _exact(case) and not loud and case.arguments["query"].shape[2] > 1


ROTARY_ATTENTION = Spec(
    name="rotary_attention",
    statement="""A class; each object remembers the keys and values that it was given:
object(query, key, value) -> output, causal attention of a chunk to everything so far, itself included.
Queries and keys are rotated by the positions of their tokens in the whole sequence (interleaved, base
10000), values are not. All (B, H, L, d).""",
    required=("query", "key", "value", "chunks"),
    reference=_slow_decode,
    baseline=partial(_decode, RotaryDecoder),
    cases=_decode_cases,
    combine=_decode_by_chance,
    num_drawn=3,
    checks=(
        Check(
            "values are not rotated",
            "The weighted sum of equal values is that value, wherever the tokens are.",
            _values_stay,
            when=_exact,
        ),
        Check(
            "chunks equal one pass",
            "A chunk's positions go on where the cache ends; cached keys are rotated once.",
            _one_pass,
            when=_exact,
        ),
        Check(
            "order is seen",
            "Two tokens that change places must change what a later query gets.",
            _sees_order,
            when=_ordinary,
        ),
        Check(
            "scores depend on the distance alone",
            "Equal queries and keys at equal distances must have equal scores.",
            _distance_alone,
            when=_ordinary,
        ),
    ),
    mutants=mistakes_in(mutants, of="rotary_attention"),
    build=lambda candidate, arguments: partial(_decode, candidate),
    chapter=18,
)
