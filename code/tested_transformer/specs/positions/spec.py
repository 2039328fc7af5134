"""The Specs of positions: sinusoids, their shift, BERT's input, relative attention."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from ... import reference
from ...errors import BackendError
from ..checks import any_batch, any_dtype, as_expected, transposed, varied
from ..compare import Problem, compare, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import EQUAL, GRADIENTS, SHAPE, UNTOUCHED, Case, Check, Run, Spec
from ..surroundings import seeded
from . import mutants
from .mutants import (
    BertInput,
    RelativeFormula,
    SinusoidFormula,
    shift,
)

# --- Sinusoids ------------------------------------------------------------------------------------


def _options(case: Case) -> dict[str, Any]:
    named = {name: case.arguments.get(name) for name in ("base", "layout")}
    return {name: option for name, option in named.items() if option is not None}


def _slow_sinusoids(positions, d_model, dtype=None, **options):
    return reference.sinusoidal_positions(positions, d_model, **options)


def sinusoid_cases(rng: np.random.Generator) -> list[Case]:
    """From three positions and four columns to far positions, odd widths, layouts and bases."""

    def case(label, positions, d_model, **options) -> Case:
        arguments = {"positions": np.asarray(positions), "d_model": d_model, **options}
        return Case(label, arguments, options.get("dtype", torch.float32))

    return [
        case("the first three", [0, 1, 2], 4),
        case("one pair", [0, 3, 7], 2),
        case("six columns", np.arange(5), 6),
        case("out of order", rng.permutation(9)[:5], 10),
        case("a batch", rng.integers(0, 50, (2, 4)), 8),
        case("an odd width", [0, 1, 5], 7),
        case("one column", [0, 2], 1),
        case("halves", [0, 1, 4], 6, layout="halves"),
        case("halves, odd", [0, 2, 3], 5, layout="halves"),
        case("another base", [0, 1, 6], 8, base=500.0),
        case("another base, halves", [0, 1, 6], 8, base=500.0, layout="halves"),
        case("bfloat16, halves", [0, 1, 6], 8, layout="halves", dtype=torch.bfloat16),
        case("float64", rng.integers(0, 9, 4), 12, dtype=torch.float64),
        case("bfloat16", rng.integers(0, 999, 4), 6, dtype=torch.bfloat16),
        case("float16", rng.integers(0, 999, 4), 6, dtype=torch.float16),
        case("one position", rng.integers(0, 99), 6),
        case("no positions", np.zeros((2, 0), dtype=np.int64), 6),
        case("before the start", rng.integers(-99, 0, 3), 6),
        case("past 512", rng.integers(513, 1000, 3), 8),
        case("wide", rng.integers(0, 999, 2), 130),
        case("base 1 or less", rng.integers(0, 9, 3), 6, base=0.5),
        case("far away", rng.integers(100_000, 200_000, 5), 16),
        case("beyond 2^24", 2**24 + 1 + 2 * rng.integers(0, 99, 3), 8),
        case("beyond 2^31", 2**40 + rng.integers(0, 99, 3), 8),
        case("int32", rng.integers(0, 9, 3).astype(np.int32), 6),
    ]


def _sinusoids_by_chance(draw: Draw) -> Case:
    far = draw.one_of(10, 1000, 100_000)
    positions = draw.numbers.integers(0, far, (*any_batch(draw), draw.one_of(3, 1)))
    options = draw.one_of({}, {"layout": "halves"})
    options = options | draw.one_of({}, {"base": 500.0})
    dtype = draw.one_of(None, torch.float64, torch.bfloat16, torch.float16)
    options = options if dtype is None else options | {"dtype": dtype}
    arguments = {"positions": positions, "d_model": draw.one_of(4, 7, 1, 64)}
    return Case("options by chance", arguments | options, dtype or torch.float32)


def _exact_sinusoids(positions, d_model, dtype=None, **options):
    """The baseline in float64: what the answer's dtype does to it is the judge's to say."""
    return SinusoidFormula()(positions, d_model, dtype=torch.float64, **options)


def _split(table: np.ndarray, case: Case) -> tuple[np.ndarray, np.ndarray]:
    """The sines and the cosines of a table, as the case's layout has them."""
    if case.arguments.get("layout") == "halves":
        half = (table.shape[-1] + 1) // 2
        return table[..., :half], table[..., half:]
    return table[..., 0::2], table[..., 1::2]


def _origin(run: Run, case: Case) -> Problem | None:
    return as_expected(run, varied(case, "position 0", positions=np.zeros(1, dtype=np.int64)))


def _alone(run: Run, case: Case) -> Problem | None:
    """The vector of each position on its own, against its vector among the others."""
    positions = case.arguments["positions"].reshape(-1)
    together = run.value(case).reshape(len(positions), -1)
    for n, position in enumerate(positions):
        alone = run.value(case, positions=position[None])[0]
        what, slack = f"the vector of position {position}", 2 * run.expected(case)[1]
        if problem := unchanged(together[n], alone, slack, "it comes alone", what):
            return problem
    return None


def _shared_angle(run: Run, case: Case) -> Problem | None:
    """sin^2 + cos^2 = 1 for each pair."""
    sines, cosines = _split(run.value(case), case)
    lengths = sines[..., : cosines.shape[-1]] ** 2 + cosines**2
    # both are at most 1 and off by a tolerance each: 2 (|sin| + |cos|) of it
    return compare(np.ones_like(lengths), lengths, 3 * run.expected(case)[1], "sin^2 + cos^2")


def _speeds(run: Run, case: Case) -> Problem | None:
    """The angle by which each pair has turned at position 1."""
    d_model, base = case.arguments["d_model"], case.arguments.get("base") or 10000.0
    first = varied(case, "the first two", positions=np.arange(2))
    sines, cosines = _split(run.value(first)[1], case)
    turned = np.arctan2(sines[: len(cosines)], cosines)
    wanted = base ** (-2 * np.arange(len(cosines)) / d_model)
    wanted = np.arctan2(
        np.sin(wanted), np.cos(wanted)
    )  # a base below 1 turns by more than half a turn
    return compare(wanted, turned, 2 * run.expected(first)[1], "radians a step, pair by pair")


SINUSOIDAL_POSITIONS = Spec(
    name="sinusoidal_positions",
    statement="""sinusoidal_positions(positions, d_model, *, base=10000, layout="interleaved", dtype=float32):
column 2i of position p is sin(p / base^(2i/D)), column 2i+1 its cosine; layout="halves" puts all sines
before all cosines. positions (*batch), integers of any size and sign -> (*batch, D); D may be odd. Angles
in float64.""",
    required=("positions", "d_model"),
    reference=_slow_sinusoids,
    baseline=_exact_sinusoids,
    differentiable=False,  # of integers
    cases=sinusoid_cases,
    combine=_sinusoids_by_chance,
    num_drawn=6,
    checks=(
        Check(
            "position 0 has sines of 0 and cosines of 1",
            "At position 0 all angles are 0: zeros where the sines stand, ones where the cosines do.",
            _origin,
        ),
        Check(
            "one position, one vector",
            "The vector of a position may depend on nothing but the position.",
            _alone,
            when=lambda case: not case.is_empty,
        ),
        Check(
            "a sine and its cosine share an angle",
            "sin^2 + cos^2 must be 1 for each pair: both have the exponent 2i/D, i counting pairs.",
            _shared_angle,
            when=lambda case: case.arguments["d_model"] > 1 and case.dtype == torch.float32,
        ),
        Check(
            "each pair turns at its own speed",
            "From a position to the next, pair i turns by base^(-2i/D) radians: 1 for the first pair.",
            _speeds,
            when=lambda case: case.arguments["d_model"] > 1 and case.dtype == torch.float32,
        ),
    ),
    mutants=mistakes_in(mutants, of="sinusoidal_positions"),
    chapter=6,
)

# --- Shift ----------------------------------------------------------------------------------------


def _slow_shift(offset, d_model, **options):
    return reference.shift_matrix(offset, d_model, **options)


def _shift_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, offset, d_model, **options) -> Case:
        return Case(label, {"offset": offset, "d_model": d_model, **options}, torch.float32)

    return [
        case("one pair, one step", 1, 2),
        case("two pairs", 3, 4),
        case("backwards", -2, 4),
        case("far", int(rng.integers(20, 60)), 6),
        case("halves", 5, 6, layout="halves"),
        case("another base", 4, 8, base=100.0),
        case("another base, halves", 4, 8, base=100.0, layout="halves"),
        case("no step", 0, 6),
        case("halves, backwards", -3, 4, layout="halves"),
        case("wide", int(rng.integers(1, 9)), 34),
        case("very far", int(rng.integers(100_000, 200_000)), 8),
    ]


def _shift_by_chance(draw: Draw) -> Case:
    offset = int(draw.numbers.integers(-9, 10)) * draw.one_of(1, 100)
    options = draw.one_of({}, {"layout": "halves"})
    options = options | draw.one_of({}, {"base": 100.0})
    return Case("options by chance", {"offset": offset, "d_model": draw.one_of(4, 2, 10)} | options,
                torch.float32)  # fmt: skip


def _lengths(run: Run, case: Case) -> Problem | None:
    turn = run.value(case)
    # two terms of each row are not 0, at most 1, and every term is off by a tolerance
    slack = 4 * len(turn) * run.expected(case)[1]
    return compare(np.eye(len(turn)), turn @ turn.T, slack, "R R^T")


def _carries(run: Run, case: Case) -> Problem | None:
    start = np.array([0, 1, 17])
    table = partial(
        reference.sinusoidal_positions, d_model=case.arguments["d_model"], **_options(case)
    )
    moved = (run.value(case) @ table(start).astype(float).T).T
    wanted = table(start + case.arguments["offset"]).astype(float)
    return compare(wanted, moved, len(moved[0]) * run.expected(case)[1], "R PE(pos)")


SHIFT_MATRIX = Spec(
    name="shift_matrix",
    statement="""shift_matrix(offset, d_model, *, base=10000, layout="interleaved"): the (D, D) matrix R
with R PE(pos) = PE(pos + offset) for every position, PE being the sinusoids. D is even.""",
    required=("offset", "d_model"),
    reference=_slow_shift,
    baseline=shift,
    differentiable=False,  # of an integer
    cases=_shift_cases,
    combine=_shift_by_chance,
    num_drawn=4,
    usual=(SHAPE,),
    checks=(
        Check(
            "it keeps lengths",
            "R only turns: its rows have length 1 and stand at right angles, R R^T = 1.",
            _lengths,
        ),
        Check(
            "it carries each position forward",
            "R times the vector of a position must be the vector `offset` places later.",
            _carries,
        ),
    ),
    mutants=mistakes_in(mutants, of="shift_matrix"),
    chapter=6,
)

# --- BERT's input ---------------------------------------------------------------------------------

PARAMETERS = {
    "token_table": "token.weight",
    "segment_table": "segment.weight",
    "position_table": "position.weight",
    "norm_weight": "norm.weight",
    "norm_bias": "norm.bias",
}


def _build_segmented(candidate: Any, arguments: dict[str, Any]) -> Any:
    """A function of tokens, segments and five tensors; a module gets these as its parameters."""
    if not (isinstance(candidate, type) and issubclass(candidate, nn.Module)):
        if "num_segments" in arguments:
            raise BackendError("a function has no tables of its own")
        return candidate
    tables = [arguments[name] for name in ("token_table", "position_table", "segment_table")]
    vocab_size, max_length, num_segments = map(len, tables)
    width = tables[0].shape[1]
    with seeded(0):
        module = candidate(vocab_size, width, max_length=max_length, num_segments=num_segments)
    return partial(_with_tables, module.eval())


def _with_tables(
    module: nn.Module, tokens: Tensor, segments: Tensor, *tensors: Tensor, **fresh: int
) -> Tensor:
    """Call the module with these tables in place of its own; a fresh one keeps its own."""
    if fresh:
        return module.double()(tokens, segments)
    weights = dict(zip(PARAMETERS.values(), tensors, strict=True))
    return functional_call(module, weights, (tokens, segments), strict=True)


def _slow_segmented(num_segments=2, **given):
    return reference.segmented_embedding(**given)


def _segmented_cases(rng: np.random.Generator) -> list[Case]:

    def case(
        label,
        shape,
        vocab,
        width,
        max_length,
        dtype=torch.float64,
        segments_of=2,
        padded=-1,
        **fresh,
    ) -> Case:
        tokens = rng.integers(1, vocab, shape)
        tokens[:, padded] = 0
        segments = np.sort(rng.integers(0, segments_of, shape), axis=1)
        segments[0, 0], segments[0, -1] = 0, segments_of - 1
        tables = [rng.normal(size=size) for size in ((vocab, width), (segments_of, width))]
        tables += [rng.normal(size=(max_length, width)), 1 + rng.random(width), rng.random(width)]
        arguments = {"tokens": tokens, "segments": segments}
        return Case(label, arguments | dict(zip(PARAMETERS, tables, strict=True)) | fresh, dtype)

    return [
        case("one text", (1, 3), 5, 4, 6),
        case("two texts", (2, 5), 7, 6, 5),
        case("four texts of four", (4, 4), 9, 5, 8),
        case("float32", (3, 6), 8, 7, 9, torch.float32),
        case("as long as the table", (1, 6), 8, 4, 6),
        case("a batch of words that repeat", (3, 7), 3, 4, 12),
        case("three segments", (2, 6), 7, 4, 9, segments_of=3),
        case("padding on the left", (2, 4), 6, 4, 5, padded=0),
        case("freshly made", (2, 3), 6, 4, 5, num_segments=2),
    ]


def _given(case: Case) -> bool:
    """Does the case give the tables, or is the module to use its own?"""
    return "num_segments" not in case.arguments


def _learns(run: Run, case: Case) -> Problem | None:
    names = ("position_table", "segment_table", "token_table")
    for name, gradient in run.gradients(case, names).items():
        if not np.abs(gradient).sum():
            return Problem(f"a gradient for {name}", "none: the table never learns")
    return None


def _padding_stays(run: Run, case: Case) -> Problem | None:
    row = run.gradients(case, ("token_table",))["token_table"][0]
    return compare(np.zeros_like(row), row, 0.0, "the gradient of row 0, padding")


def _sees_order(run: Run, case: Case) -> Problem | None:
    """The same token and segment at two places has two vectors."""
    arguments = case.arguments
    tokens, segments = np.ones_like(arguments["tokens"]), np.zeros_like(arguments["segments"])
    vectors = run.value(case, tokens=tokens, segments=segments)[0]
    alike = np.abs(vectors[0] - vectors[1]).max() <= 2 * run.expected(case)[1]
    return Problem("two vectors", "one word has the same vector at both places") if alike else None


def _fresh(run: Run, case: Case) -> Problem | None:
    """The eps of 1e-12 is at most a hundredth of the variance of embeddings that are 1e-5 large."""
    vectors = run.value(case)
    found = np.stack((vectors.mean(-1), vectors.var(-1)))
    wanted = np.stack((np.zeros(vectors.shape[:-1]), np.ones(vectors.shape[:-1])))
    return compare(wanted, found, 0.01, "mean and variance")


SEGMENTED_EMBEDDING = Spec(
    name="segmented_embedding",
    may_refuse=True,
    statement="""LayerNorm(token + segment + position), eps 1e-12; token 0 is padding, whose row gets no gradient.
A module class(vocab_size, d_model, max_length=, num_segments=) with parameters token.weight, segment.weight,
position.weight, norm.weight and norm.bias; forward takes tokens and segments, (B, L) -> (B, L, D).
Or a function of tokens, segments and these five tensors.""",
    required=("tokens", "segments", *PARAMETERS),
    reference=_slow_segmented,
    baseline=lambda **given: _build_segmented(BertInput, given)(
        *(given[name] for name in ("tokens", "segments", *PARAMETERS))
    ),
    cases=_segmented_cases,
    checks=(
        replace(SHAPE, when=_given),
        UNTOUCHED,
        Check(
            "every table learns",
            "A gradient must reach the tables of tokens, segments and positions.",
            _learns,
            when=_given,
        ),
        Check(
            "padding does not learn",
            "The row of padding must get no gradient: padding_idx of nn.Embedding.",
            _padding_stays,
            when=_given,
        ),
        Check(
            "order is seen",
            "The same word at two places must have two vectors.",
            _sees_order,
            when=_given,
        ),
        Check(
            "a fresh module normalizes",
            "Before training the scale is 1 and the shift 0: each vector has mean 0 and variance 1.",
            _fresh,
            when=lambda case: not _given(case),
        ),
        replace(EQUAL, when=_given),
        replace(GRADIENTS, when=_given),
    ),
    mutants=mistakes_in(mutants, of="segmented_embedding"),
    build=_build_segmented,
    chapter=6,
)  # fmt: skip

# --- Relative attention ---------------------------------------------------------------------------


def _relative_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, batch, sizes, clip, dtype=torch.float64, **options) -> Case:
        """sizes L, S, d, dv."""
        length, keys, d, width = sizes
        shapes = {
            "query": (*batch, length, d), "key": (*batch, keys, d), "value": (*batch, keys, width),
            "key_table": (2 * clip + 1, d), "value_table": (2 * clip + 1, width),
        }  # fmt: skip
        arguments = {name: rng.normal(size=shape) for name, shape in shapes.items()}
        return Case(label, arguments | options, dtype)

    mask = rng.random((2, 1, 4, 4)) < 0.6
    by_head, holes = rng.random((2, 3, 4, 4)) < 0.6, rng.random((5, 5)) < 0.6
    words = np.arange(5) < np.array([3, 5])[:, None, None, None]
    holes[2] = False  # a query that may attend to nothing
    loud = case("large scores", (2,), (3, 5, 4, 2), 2)
    loud.arguments["query"][...] *= 1000.0
    lying = case("transposed tensors", (2, 3), (4, 5, 3, 2), 2)
    lying = replace(lying, arguments=transposed(lying.arguments))
    return [
        case("two tokens, K = 1", (), (2, 2, 3, 2), 1),
        case("three tokens, K = 2", (), (3, 3, 2, 4), 2),
        case("longer than K", (), (6, 6, 3, 2), 2),
        case("two heads of two samples", (2, 2), (4, 4, 3, 5), 1),
        case("causal", (2,), (5, 5, 4, 3), 2, causal=True),
        case("a cache: two new tokens", (2,), (2, 5, 3, 4), 2, causal=True),
        case("a mask", (2, 3), (4, 4, 2, 3), 1, mask=mask),
        case("a mask for each head, causal", (2, 3), (4, 4, 2, 3), 1, mask=by_head, causal=True),
        case(
            "a mask that leaves a query nothing, causal",
            (),
            (5, 5, 3, 2),
            2,
            mask=holes,
            causal=True,
        ),
        case("padded keys", (2, 3), (4, 5, 2, 3), 1, mask=words),
        case("no keys", (2,), (3, 0, 2, 3), 1),
        case("K = 0", (2,), (3, 4, 2, 3), 0),
        case("one of everything", (1,), (1, 1, 1, 1), 1),
        case("fewer keys than queries, causal", (2,), (5, 3, 2, 3), 2, causal=True),
        loud,
        lying,
        case("float32", (2, 2), (5, 5, 4, 3), 3, torch.float32),
        case("bfloat16", (2,), (4, 4, 3, 2), 2, torch.bfloat16),
    ]


def _relative_by_chance(draw: Draw) -> Case:
    batch, length, d = any_batch(draw), draw.one_of(3, 1, 5), draw.one_of(3, 1)
    keys, width, clip = draw.one_of(3, 5, 2), draw.one_of(2, 4), draw.one_of(1, 0, 4)
    shapes = {
        "query": (*batch, length, d), "key": (*batch, keys, d), "value": (*batch, keys, width),
        "key_table": (2 * clip + 1, d), "value_table": (2 * clip + 1, width),
    }  # fmt: skip
    options = draw.one_of({}, {"causal": True})
    masks = {}, {"mask": draw.numbers.random((length, keys)) < 0.7}
    options = options | draw.one_of(*masks)
    arguments = {name: draw.numbers.normal(size=shape) for name, shape in shapes.items()}
    return Case("options by chance", arguments | options, any_dtype(draw))


def _without(run: Run, case: Case, *names: str) -> Problem | None:
    """The candidate against the reference, with zeros for some arguments."""
    zeros = {name: np.zeros_like(case.arguments[name]) for name in names}
    return as_expected(run, varied(case, f"without {names}", **zeros))


def _by_logarithms(case: Case) -> float:
    """exp(score - log-sum-exp) rounds by an eps of the score, in each of the two, where a softmax may be exact."""
    given = case.arguments
    query, key, value = given["query"], given["key"], given["value"]
    if not (query.size and key.size and value.size):
        return 0.0
    keys = np.abs(key).max(-2) + np.abs(given["key_table"]).max(-2)  # of each feature, the largest
    scores = (np.abs(query) * keys[..., None, :]).sum(-1).max() * query.shape[-1] ** -0.5
    values = np.abs(value).max() + np.abs(given["value_table"]).max()
    return float(2 * torch.finfo(case.dtype).eps * scores * values)


RELATIVE_ATTENTION = Spec(
    name="relative_attention",
    statement="""relative_attention(query, key, value, key_table, value_table, *, mask=None, causal=False):
softmax(q_i (k_j + a_ij) / sqrt(d)) (v_j + b_ij), where a_ij and b_ij are row clip(j - p, -K, K) + K of the
tables and p = i + S - L is the query's place. query (*batch, L, d), key (*batch, S, d),
value (*batch, S, dv), tables (2K + 1, d) and (2K + 1, dv) -> (*batch, L, dv).""",
    required=("query", "key", "value", "key_table", "value_table"),
    reference=reference.relative_attention,
    baseline=RelativeFormula(),
    slack=_by_logarithms,
    cases=_relative_cases,
    combine=_relative_by_chance,
    num_drawn=4,
    checks=(
        Check(
            "without distances it is attention",
            "With tables of zeros nothing but plain attention is left.",
            lambda run, case: _without(run, case, "key_table", "value_table"),
        ),
        Check(
            "scores know the distance",
            "Row clip(j - i, -K, K) + K of the key table belongs to key j as seen from query i.",
            lambda run, case: _without(run, case, "value_table"),
        ),
        Check(
            "values know the distance",
            "The value table's row is added to the value, with the same weight.",
            lambda run, case: _without(run, case, "key_table", "value"),
        ),
    ),
    mutants=mistakes_in(mutants, of="relative_attention"),
    chapter=6,
)
