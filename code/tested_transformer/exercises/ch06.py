"""Exercises of chapter 6: positional encoding."""

from __future__ import annotations

import numpy as np
import torch

from .. import reference
from ..specs.checks import transposed
from ..specs.compare import Problem, compare
from ..specs.mistakes import mistake, mistakes
from ..specs.positions.mutants import SinusoidFormula
from ..specs.positions.spec import SHIFT_MATRIX, SINUSOIDAL_POSITIONS
from ..specs.spec import SHAPE, Case, Check, Run, Spec

# --- 6.1: sinusoids -------------------------------------------------------------------------------


class InFloat32(SinusoidFormula):
    """What a reader writes: angles in float32 are exact enough for near positions."""

    least = torch.float32


def _plain(case: Case) -> bool:
    """Are these near positions in the paper's layout?"""
    positions = case.arguments["positions"]
    near = ((positions >= 0) & (positions < 1000)).all()
    return set(case.arguments) == {"positions", "d_model"} and bool(near)


TOO_FINE = ("angles in float32", "a table of 1,000 sinusoids")  # no case here can show these two

SINUSOIDS = SINUSOIDAL_POSITIONS.narrowed(
    _plain,
    name="ch06.sinusoids",
    statement="sinusoids(positions, d_model): column 2i of position p is sin(p / 10000^(2i/D)), column 2i+1 "
    "its cosine; positions (*batch), integers -> (*batch, D); D may be odd",
    baseline=InFloat32(),
    differentiable=False,
    mutants=tuple(m for m in SINUSOIDAL_POSITIONS.mutants if m.name not in TOO_FINE),
    points=2,
)

# --- 6.2: the shift -------------------------------------------------------------------------------

SHIFT = SHIFT_MATRIX.narrowed(
    lambda case: set(case.arguments) == {"offset", "d_model"},
    name="ch06.shift",
    statement="shift(offset, d_model): the (D, D) matrix R with R PE(pos) = PE(pos + offset) for every pos, "
    "PE being the interleaved sinusoids with base 10000; D is even",
    points=2,
)

# --- 6.3: which row for which pair ----------------------------------------------------------------


def _rows(num_queries, num_keys, max_distance):
    """clip(j - (i + S - L)) + K, pair by pair."""
    rows = np.zeros((num_queries, num_keys), dtype=np.int64)
    for i, j in np.ndindex(rows.shape):
        distance = j - (i + num_keys - num_queries)
        rows[i, j] = min(max(distance, -max_distance), max_distance) + max_distance
    return rows


def _row_cases(rng: np.random.Generator) -> list[Case]:
    sizes = [(2, 2, 1), (3, 3, 1), (4, 4, 2), (5, 5, 0), (2, 5, 2), (1, 6, 3), (7, 7, 9), (5, 2, 3)]
    names = ("num_queries", "num_keys", "max_distance")
    return [Case(f"L = {s[0]}, S = {s[1]}, K = {s[2]}", dict(zip(names, s, strict=True)))
            for s in sizes]  # fmt: skip


def _distances(queries, keys):
    return torch.arange(keys) - torch.arange(queries)[:, None]


@mistake(
    "not clipped",
    rejected_by="a row for every pair",
    cause="Clip to -K ... K before K is added.",
)
def rows_not_clipped(num_queries, num_keys, max_distance):
    return _distances(num_queries, num_keys) + num_queries - num_keys + max_distance


@mistake(
    "the sign reversed",
    rejected_by="later keys have larger rows",
    cause="p - j in place of j - p.",
)
def rows_reversed(num_queries, num_keys, max_distance):
    back = num_keys - num_queries - _distances(num_queries, num_keys)
    return back.clamp(-max_distance, max_distance) + max_distance


@mistake(
    "every query counted from 0",
    rejected_by="distance 0 is row K",
    cause="With a cache the first new query stands at S - L.",
)
def rows_from_zero(num_queries, num_keys, max_distance):
    places = _distances(num_queries, num_keys)
    return places.clamp(-max_distance, max_distance) + max_distance


@mistake(
    "K not added",
    rejected_by="a row for every pair",
    cause="Distances start at -K, rows at 0.",
)
def rows_not_moved(num_queries, num_keys, max_distance):
    places = _distances(num_queries, num_keys) + num_queries - num_keys
    return places.clamp(-max_distance, max_distance)


def _in_range(run: Run, case: Case) -> Problem | None:
    rows, last = run.value(case), 2 * case.arguments["max_distance"]
    if rows.min() < 0 or rows.max() > last:
        return Problem(f"rows from 0 to {last}", f"{rows.min()} to {rows.max()}")
    return None


def _own_row(run: Run, case: Case) -> Problem | None:
    """A query's own key has distance 0, row K."""
    rows, clip = run.value(case), case.arguments["max_distance"]
    own = np.diagonal(rows, rows.shape[1] - rows.shape[0])
    return compare(np.full(len(own), clip), own, 0.0, "the rows of the queries' own keys")


def _later_is_larger(run: Run, case: Case) -> Problem | None:
    rows = run.value(case)
    if (np.diff(rows, axis=1) < 0).any():
        return Problem("rows that grow from left to right", str(rows.tolist()))
    return None


ROWS = Spec(
    name="ch06.relative_rows",
    statement="relative_rows(num_queries, num_keys, max_distance): integers (L, S), clip(j - p, -K, K) + K "
    "for key j and a query at place p; the last query stands at the last key",
    required=("num_queries", "num_keys", "max_distance"),
    reference=_rows,
    cases=_row_cases,
    usual=(SHAPE,),
    checks=(
        Check("a row for every pair", "The tables have rows 0 to 2K: clip, then add K.", _in_range),
        Check(
            "distance 0 is row K",
            "A query's own key is in the middle of the table. Query i stands at place i + S - L.",
            _own_row,
        ),
        Check(
            "later keys have larger rows",
            "The distance is the key's place less the query's: j - p, not p - j.",
            _later_is_larger,
        ),
    ),
    mutants=mistakes(rows_not_clipped, rows_reversed, rows_from_zero, rows_not_moved),
    chapter=6,
    points=1,
)  # fmt: skip

# --- 6.4: places in a padded batch ----------------------------------------------------------------


def _places(real):
    """Each real token's number among the real ones before it; 0 for padding."""
    places = np.zeros(real.shape, dtype=np.int64)
    for b, row in enumerate(real):
        seen = 0
        for t, is_real in enumerate(row):
            places[b, t] = seen if is_real else 0
            seen += int(is_real)
    return places


@mistake(
    "places of the columns",
    rejected_by="the first word stands at 0",
    cause="arange counts the padding too.",
)
def places_of_the_columns(real):
    return torch.arange(real.shape[1]).expand(real.shape).clone()


@mistake(
    "places counted from 1",
    rejected_by="the first word stands at 0",
    cause="cumsum counts the word itself: subtract 1.",
)
def places_from_one(real):
    return torch.where(real, real.cumsum(1), 0)


@mistake(
    "place -1 for padding",
    rejected_by="no place below 0",
    cause="cumsum - 1 is -1 before the first word.",
)
def padding_below_zero(real):
    return real.cumsum(1) - 1


@mistake(
    "places counted from the end",
    rejected_by="the first word stands at 0",
    cause="The sum runs from the wrong side.",
)
def places_from_the_end(real):
    return torch.where(real, real.flip(1).cumsum(1).flip(1) - 1, 0)


def _real_cases(rng: np.random.Generator) -> list[Case]:

    def rows(*lengths: int, left: bool = False) -> np.ndarray:
        table = np.arange(max(lengths))[None] < np.array(lengths)[:, None]
        return table[:, ::-1].copy() if left else table

    return [
        Case("no padding", {"real": rows(3, 3)}),
        Case("padding on the right", {"real": rows(3, 1)}),
        Case("padding on the left", {"real": rows(2, 4, left=True)}),
        Case("a fully masked row", {"real": rows(3, 0)}),
        Case("padding anywhere", {"real": rng.random((3, 7)) < 0.6}),
        Case("long rows", {"real": rows(300, 2)}),
        Case("one word", {"real": rows(1)}),
    ]


def _first(run: Run, case: Case) -> Problem | None:
    real, places = case.arguments["real"], run.value(case)
    for b in np.flatnonzero(real.any(1)):
        start = int(real[b].argmax())
        if places[b, start] != 0:
            return Problem(f"0 for the first word of row {b}", str(places[b, start]))
    return None


def _valid(run: Run, case: Case) -> Problem | None:
    places = run.value(case)
    return Problem("places of at least 0", str(places.min())) if (places < 0).any() else None


def _padding_zero(run: Run, case: Case) -> Problem | None:
    padding = run.value(case)[~case.arguments["real"]]
    return compare(np.zeros_like(padding), padding, 0.0, "the places of padding")


PLACES = Spec(
    name="ch06.places",
    statement="places(real): from a boolean (B, L), True for words, the place of each word among the words "
    "of its row, 0, 1, 2 ..., and 0 for padding; integers (B, L)",
    required=("real",),
    reference=_places,
    cases=_real_cases,
    checks=(
        Check("no place below 0", "A table has no row -1; an embedding raises or reads its end.",
              _valid),
        Check(
            "the first word stands at 0",
            "However many padding tokens stand before it, the first word of a row has place 0.",
            _first,
        ),
        Check("padding stands at 0", "Padding gets place 0, which every table has.", _padding_zero),
    ),
    mutants=mistakes(
        places_of_the_columns, places_from_one, padding_below_zero, places_from_the_end
    ),
    chapter=6,
    points=1,
)  # fmt: skip

# --- 6.5: weights for the other layout ------------------------------------------------------------


def _to_halves(weight):
    """Row c of the answer meets column c of a table in halves."""
    d_model = len(weight)
    order = [*range(0, d_model, 2), *range(1, d_model, 2)]
    return np.array([weight[row] for row in order], dtype=weight.dtype)


@mistake(
    "moved the other way",
    rejected_by="the same products",
    cause="This turns halves into interleaved; the question is the way back.",
)
def halves_to_interleaved(weight):
    rows = torch.empty_like(weight)
    sines = (len(weight) + 1) // 2
    rows[0::2], rows[1::2] = weight[:sines], weight[sines:]
    return rows


@mistake(
    "cosines before sines",
    rejected_by="the same products",
    cause="Halves are [sin | cos]: even rows first.",
)
def cosines_first(weight):
    return torch.cat((weight[1::2], weight[0::2]))


@mistake(
    "columns moved",
    rejected_by="the same products",
    cause="In x @ weight the rows of the weight meet the columns of x.",
)
def columns_moved(weight):
    return torch.cat((weight[:, 0::2], weight[:, 1::2]), 1)


@mistake(
    "weights left alone",
    rejected_by="the same products",
    cause="Each weight belongs to a column, and the columns have moved.",
)
def left_alone(weight):
    return weight.clone()


def _weight_cases(rng: np.random.Generator) -> list[Case]:
    shapes = [(4, 2), (2, 3), (6, 5), (7, 4), (12, 12)]
    drawn = [
        Case(f"D = {shape[0]}", {"weight": rng.normal(size=shape)}, torch.float64)
        for shape in shapes
    ]
    lying = transposed({"weight": rng.normal(size=(6, 5))})
    return [
        *drawn,
        Case("one column", {"weight": rng.normal(size=(6, 1))}),
        Case("float32", {"weight": rng.normal(size=(7, 4))}, torch.float32),
        Case("a transposed weight", lying),
    ]


def _same_products(run: Run, case: Case) -> Problem | None:
    weight, positions = case.arrays()["weight"].astype(float), np.arange(9)
    interleaved, halves = (
        reference.sinusoidal_positions(positions, len(weight), layout=layout).astype(float)
        for layout in ("interleaved", "halves")
    )
    slack = len(weight) * run.expected(case)[1] + case.rounding(len(weight)) * np.abs(weight).max()
    return compare(interleaved @ weight, halves @ run.value(case), slack, "PE @ weight")


TO_HALVES = Spec(
    name="ch06.to_halves",
    statement="to_halves(weight): from the weight (D, d) of a layer table @ weight, where table holds "
    "interleaved sinusoids, the weight that gives the same numbers with a table in halves",
    required=("weight",),
    reference=_to_halves,
    baseline=lambda weight: torch.cat((weight[0::2], weight[1::2])),
    cases=_weight_cases,
    checks=(
        Check(
            "the same products",
            "Halves @ new weight must be interleaved @ old weight, for every position.",
            _same_products,
        ),
    ),
    mutants=mistakes(halves_to_interleaved, cosines_first, columns_moved, left_alone),
    chapter=6,
    points=2,
)  # fmt: skip

EXERCISES = (SINUSOIDS, SHIFT, ROWS, PLACES, TO_HALVES)
