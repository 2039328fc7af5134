"""Homework 5: positions."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch

from ... import reference
from ...specs.compare import Problem, compare
from ...specs.mistakes import Mutant, mistake, mistakes
from ...specs.positions.mutants import (
    ClippedOneShort,
    FromTheTopLeft,
    RelativeFormula,
    SignReversed,
)
from ...specs.spec import EQUAL, Case, Check, Run, Spec
from ..checks import right_with, same_with
from ..tasks import Assignment, Hunt, Task, Written

# --- 5.1: alike by distance -----------------------------------------------------------------------


def _similarity_reference(distances, d_model):
    """The cosine of the angle between the row of position 0 and the row of the distance."""
    here = reference.sinusoidal_positions(np.zeros(1), d_model)[0]
    there = reference.sinusoidal_positions(distances, d_model)
    found = np.zeros(distances.shape)
    for place in np.ndindex(distances.shape):
        row = there[place]
        found[place] = reference.dot(here, row) / np.sqrt(
            reference.dot(here, here) * reference.dot(row, row)
        )
    return found


def _hands(d_model, dtype=torch.float64):
    """How far each pair turns in one step."""
    return 10000.0 ** (-torch.arange(0, d_model, 2, dtype=dtype) / d_model)


@mistake(
    "not divided by the lengths",
    rejected_by="a position is wholly alike to itself",
    cause="The cosine of an angle is the dot product divided by both norms.",
)
def not_divided(distances, d_model):
    return (distances[..., None] * _hands(d_model)).cos().sum(-1).float()


@mistake(
    "divided by the dimension",
    rejected_by="a position is wholly alike to itself",
    cause="A vector of D features has D/2 pairs, and each pair has norm 1.",
)
def divided_by_the_width(distances, d_model):
    return not_divided(distances, d_model) / d_model


@mistake(
    "sines compared as well",
    rejected_by="left is as far as right",
    cause="sin a sin b + cos a cos b is one cosine of a - b; no sine is left over.",
)
def sines_compared(distances, d_model):
    angles = distances[..., None] * _hands(d_model)
    return (angles.cos() + angles.sin()).mean(-1).float()


@mistake(
    "a speed for each column",
    rejected_by="equals the reference",
    cause="There are D/2 frequencies, one per pair, not D.",
)
def a_speed_for_each_column(distances, d_model):
    speeds = 10000.0 ** (-torch.arange(d_model, dtype=torch.float64) / d_model)
    return (distances[..., None] * speeds).cos().mean(-1).float()


@mistake(
    "the exponent doubled",
    rejected_by="equals the reference",
    cause="arange(0, D, 2) is already 2i; 2 * arange(0, D, 2) doubles it again.",
)
def exponent_doubled(distances, d_model):
    return (distances[..., None] * _hands(d_model) ** 2).cos().mean(-1).float()


@mistake(
    "the last pair at the base",
    rejected_by="equals the reference",
    cause="The exponent is i over D/2, not over D/2 - 1: it never reaches 1.",
)
def ends_at_the_base(distances, d_model):
    pairs = torch.arange(d_model // 2, dtype=torch.float64)
    speeds = 10000.0 ** (-pairs / max(d_model // 2 - 1, 1))
    return (distances[..., None] * speeds).cos().mean(-1).float()


@mistake(
    "angles in float32",
    rejected_by="equals the reference",
    cause="The cosine of a large angle depends on digits of the angle that float32 does not "
    "have: it has seven in all.",
)
def angles_in_float32(distances, d_model):
    return (distances[..., None].float() * _hands(d_model, torch.float32)).cos().mean(-1)


def _similarity_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, distances, d_model) -> Case:
        return Case(label, {"distances": np.asarray(distances), "d_model": d_model}, torch.float32)

    return [
        case("one pair", [0, 3, 6], 2),
        case("two pairs", [0, 1, 2, 5, 6], 4),
        case("back and forth", [[-7, -1, 0], [1, 7, 40]], 6),
        case("a batch", rng.integers(-99, 100, (2, 3, 4)), 10),
        case("a wide table", rng.integers(0, 5000, 7), 64),
        case("one distance", np.int64(rng.integers(1, 4)), 8),
        case("far away", rng.integers(300_000, 900_000, 6), 16),
    ]


def _wholly_alike(run: Run, case: Case) -> Problem | None:
    zeros = np.zeros(2, dtype=np.int64)
    return right_with(run, case, "the similarity at distance 0", distances=zeros)


def _both_sides(run: Run, case: Case) -> Problem | None:
    opposite = np.asarray(-case.arguments["distances"])
    return same_with(
        run, case, "the distances change their signs", "the similarity", distances=opposite
    )


def _mean_in_float32(case: Case) -> float:
    """Cosines in float64, and their mean in float32: half an eps for each of D/2 terms, and one more."""
    return (case.arguments["d_model"] / 2 + 1) / 2 * torch.finfo(case.dtype).eps


SIMILARITY = Spec(
    name="hw05.similarity",
    statement="similarity(distances, d_model): the cosine of the angle between the vectors of two "
    "positions (interleaved sinusoids, base 10000) that are `distances` apart; integers (*batch) -> "
    "float32 (*batch); d_model is even",
    required=("distances", "d_model"),
    reference=_similarity_reference,
    slack=_mean_in_float32,
    cases=_similarity_cases,
    checks=(
        Check(
            "a position is wholly alike to itself",
            "At distance 0 the two vectors are the same, so the cosine is 1.",
            _wholly_alike,
        ),
        Check(
            "left is as far as right",
            "Distances k and -k name the same pair of positions, from either end.",
            _both_sides,
        ),
    ),
    mutants=mistakes(
        not_divided, divided_by_the_width, sines_compared, a_speed_for_each_column,
        exponent_doubled, ends_at_the_base, angles_in_float32
    ),
    chapter=6,
    points=2,
)  # fmt: skip

# --- 5.2: a table stretched -----------------------------------------------------------------------


def _stretch_reference(table, length):
    """Row r stands at r (N - 1) / (length - 1) of the old table."""
    rows, width = table.shape
    found = np.zeros((length, width), dtype=table.dtype)
    for r in range(length):
        below, part = divmod(r * (rows - 1), length - 1) if length > 1 else (0, 0)
        part = table.dtype.type(part) / max(length - 1, 1)
        for c in range(width):
            above = table[min(below + 1, rows - 1), c]
            found[r, c] = table[below, c] + part * (above - table[below, c])
    return found


def _between(table, places):
    """The table read at places between its rows."""
    below = places.floor().long().clamp(0, len(table) - 1)
    above = (below + 1).clamp(max=len(table) - 1)
    return table[below].lerp(table[above], (places - below).to(table.dtype)[:, None])


def plain_stretch(table, length):
    """The baseline: the positions are not the table's, and exact, so NumPy makes them."""
    places = np.linspace(0, len(table) - 1, length)
    below = np.floor(places).astype(int)
    part = torch.from_numpy(places - below).to(table.dtype)[:, None]
    return table[below].lerp(table[np.minimum(below + 1, len(table) - 1)], part)


@mistake(
    "the nearest row",
    rejected_by="equal steps stay equal",
    cause="Positions between two rows are rounded to one of them.",
)
def nearest_row(table, length):
    places = torch.linspace(0, len(table) - 1, length, dtype=torch.float64)
    return table[places.round().long()]


@mistake(
    "rows counted for gaps",
    rejected_by="the ends stay",
    cause="N rows have N - 1 gaps between them, and the new rows have one gap less than rows too.",
)
def rows_for_gaps(table, length):
    return _between(table, torch.arange(length, dtype=torch.float64) * (len(table) / length))


@mistake(
    "rows taken for cells",
    rejected_by="the ends stay",
    cause="Half a step at each end, as for the pixels of an image (align_corners=False).",
)
def centers_aligned(table, length):
    places = (torch.arange(length, dtype=torch.float64) + 0.5) * (len(table) / length) - 0.5
    return _between(table, places.clamp(0, len(table) - 1))


@mistake(
    "the last row repeated",
    rejected_by="the ends stay",
    cause="The matrix is extended, not interpolated.",
)
def last_row_repeated(table, length):
    return table[torch.arange(length).clamp(max=len(table) - 1)]


@mistake(
    "a length of 1 forgotten",
    rejected_by="ZeroDivisionError",
    cause="One row has no gap to divide by.",
)
def one_row_forgotten(table, length):
    step = (len(table) - 1) / (length - 1)
    return _between(table, torch.arange(length, dtype=torch.float64) * step)


@mistake(
    "positions in float32",
    rejected_by="equal steps stay equal",
    cause="The positions are computed in torch's default dtype, whatever the dtype of the matrix "
    "is.",
)
def places_in_float32(table, length):
    return _between(table, torch.linspace(0, len(table) - 1, length, dtype=torch.float32))


@mistake(
    "positions in the table's dtype",
    rejected_by="equals the reference",
    cause="A position such as 47.58 has digits before the point: float16 stores it only to the "
    "nearest 1/32.",
)
def places_in_the_tables_dtype(table, length):
    return _between(table, torch.linspace(0, len(table) - 1, length, dtype=table.dtype))


def _stretch_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, rows, width, length, dtype=torch.float64) -> Case:
        return Case(label, {"table": rng.normal(size=(rows, width)), "length": length}, dtype)

    steep = case("a long table in float16", 50, 12, 63, torch.float16)
    steep.arguments["table"][...] = rng.uniform(0.9, 1.1, size=(50, 12))
    steep.arguments["table"][::2] *= -1  # between neighbors all depends on the position
    return [
        case("two rows into three", 2, 1, 3),
        case("three rows into five", 3, 2, 5),
        case("three rows into four", 3, 4, 4),
        case("the same length", 4, 3, 4),
        case("stretched", 6, 5, 23),
        case("float32", 5, 7, 12, torch.float32),
        case("shrunk", 9, 4, 6),
        case("one row of many", 5, 2, 1),
        case("many rows of one", 1, 3, 4),
        case("a long table in float32", 61, 12, 64, torch.float32),
        steep,
    ]


def _ends_stay(run: Run, case: Case) -> Problem | None:
    (expected, tolerance), came = run.expected(case), run.value(case)
    if len(came) == 1:
        return compare(expected, came, tolerance, "the only row")
    return compare(expected[[0, -1]], came[[0, -1]], tolerance, "the first and the last row")


def _even_steps(run: Run, case: Case) -> Problem | None:
    """A table that climbs evenly from 0 to 1."""
    rows, width = case.arguments["table"].shape
    climb = np.linspace(0, 1, rows)[:, None].repeat(width, 1)
    expected, tolerance = run.expected(case, table=climb)
    wanted, steps = (np.diff(rows, axis=0) for rows in (expected, run.value(case, table=climb)))
    return compare(wanted, steps, 2 * tolerance, "steps of a table that climbs evenly from 0 to 1")


STRETCH = Spec(
    name="hw05.stretch",
    statement="stretch(table, length): the learned positions of `table` (N, D) interpolated "
    "linearly at `length` evenly spaced positions from its first row to its last -> (length, D), "
    "in the table's dtype (float16, float32 or float64) and as accurate as that allows; length 1 "
    "gives the first row",
    required=("table", "length"),
    reference=_stretch_reference,
    baseline=plain_stretch,
    differentiable=False,
    cases=_stretch_cases,
    checks=(
        Check(
            "the ends stay",
            "The first new row is the first old one, and the last is the last.",
            _ends_stay,
        ),
        Check(
            "equal steps stay equal",
            "The new rows are spaced evenly: a matrix that grows evenly must still do so.",
            _even_steps,
            when=lambda case: (
                case.dtype != torch.float16
                and min(case.arguments["length"], len(case.arguments["table"])) > 1
            ),
        ),
    ),
    mutants=mistakes(
        nearest_row, rows_for_gaps, centers_aligned, last_row_repeated, one_row_forgotten,
        places_in_float32, places_in_the_tables_dtype
    ),
    chapter=6,
    points=2,
)  # fmt: skip

# --- 5.3: what a table of biases learns -----------------------------------------------------------


def _gradient_reference(gradient, max_distance):
    """Each score hands its gradient to the one row that it has read."""
    _, heads, length, keys = gradient.shape
    found = np.zeros((heads, 2 * max_distance + 1), dtype=gradient.dtype)
    for b, h, i, j in np.ndindex(gradient.shape):
        distance = j - (i + keys - length)
        row = min(max(distance, -max_distance), max_distance) + max_distance
        found[h, row] += gradient[b, h, i, j]
    return found


def _rows(length, keys, max_distance):
    return RelativeFormula().distances(length, keys).clamp(-max_distance, max_distance)


def _collected(gradient, rows, num_rows):
    """The sum over samples and over all pairs of each row; a row of -1 is left out."""
    hits = (rows[..., None] == torch.arange(num_rows)).to(gradient.dtype)  # L S 2K+1
    return torch.einsum("bhij,ijr->hr", gradient, hits)


def plain_table_gradient(gradient, max_distance):
    """The baseline: what autograd finds."""
    rows = _rows(*gradient.shape[2:], max_distance) + max_distance
    table = gradient.new_zeros(gradient.shape[1], 2 * max_distance + 1, requires_grad=True)
    return torch.autograd.grad((table[:, rows] * gradient).sum(), table)[0]


@mistake(
    "far pairs dropped",
    rejected_by="nothing is lost",
    cause="All distances beyond K use the outer entry too.",
)
def far_pairs_dropped(gradient, max_distance):
    rows = RelativeFormula().distances(*gradient.shape[2:]) + max_distance
    return _collected(gradient, rows, 2 * max_distance + 1)


@mistake(
    "the mean of the gradients",
    rejected_by="nothing is lost",
    cause="A number that is used many times gets the sum of the gradients.",
)
def means_of_rows(gradient, max_distance):
    rows = _rows(*gradient.shape[2:], max_distance) + max_distance
    count = torch.bincount(rows.flatten(), minlength=2 * max_distance + 1).clamp(min=1)
    return _collected(gradient, rows, 2 * max_distance + 1) / (count * len(gradient))


@mistake(
    "the sides exchanged",
    rejected_by="equals the reference",
    cause="p - j in place of j - p.",
)
def sides_exchanged(gradient, max_distance):
    rows = max_distance - _rows(*gradient.shape[2:], max_distance)
    return _collected(gradient, rows, 2 * max_distance + 1)


@mistake(
    "more queries than keys forgotten",
    rejected_by="distance 0 is the middle",
    cause="S - L may be negative: the first queries are then before every key.",
)
def more_queries_forgotten(gradient, max_distance):
    length, keys = gradient.shape[2:]
    places = torch.arange(length) + max(keys - length, 0)
    distances = torch.arange(keys) - places[:, None]
    rows = distances.clamp(-max_distance, max_distance) + max_distance
    return _collected(gradient, rows, 2 * max_distance + 1)


@mistake(
    "queries counted from 0",
    rejected_by="distance 0 is the middle",
    cause="The last query is at the position of the last key.",
)
def queries_from_zero(gradient, max_distance):
    length, keys = gradient.shape[2:]
    rows = torch.arange(keys) - torch.arange(length)[:, None]
    rows = rows.clamp(-max_distance, max_distance) + max_distance
    return _collected(gradient, rows, 2 * max_distance + 1)


@mistake(
    "only one sample learns",
    rejected_by="nothing is lost",
    cause="The samples share the table: sum over the batch axis too.",
)
def one_sample_learns(gradient, max_distance):
    return plain_table_gradient(gradient[:1], max_distance)


@mistake(
    "heads taught together",
    rejected_by="each head has its own entries",
    cause="The gradient is summed over the heads, but each head has its own entries.",
)
def heads_share(gradient, max_distance):
    found = plain_table_gradient(gradient, max_distance)
    return found.sum(0, keepdim=True).expand_as(found)


def _gradient_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, shape, clip, dtype=torch.float64) -> Case:
        return Case(label, {"gradient": rng.normal(size=shape), "max_distance": clip}, dtype)

    return [
        case("two tokens", (1, 1, 2, 2), 1),
        case("three tokens", (1, 1, 3, 3), 1),
        case("two heads", (1, 2, 4, 4), 2),
        case("three samples", (3, 2, 5, 5), 2),
        case("float32", (2, 3, 6, 6), 3, torch.float32),
        case("a cache: two new tokens", (2, 3, 2, 7), 2),
        case("all distances in one row", (2, 3, 4, 4), 0),
        case("rows that no pair reads", (2, 1, 3, 3), 5),
        case("more queries than keys", (2, 2, 5, 3), 1),
        case("more queries than keys, one row", (1, 3, 4, 2), 0),
    ]


def _nothing_lost(run: Run, case: Case) -> Problem | None:
    """Every score has read one row: ones come out as the number of pairs."""
    ones = np.ones_like(case.arguments["gradient"])
    expected, tolerance = run.expected(case, gradient=ones)
    sums, slack = run.value(case, gradient=ones).sum(-1), expected.shape[-1] * tolerance
    what = "sums over the rows, if every score has the gradient 1"
    return compare(expected.sum(-1), sums, slack, what)


def _own_row(run: Run, case: Case) -> Problem | None:
    """Only the scores of a query with its own key have a gradient."""
    samples, heads, length, keys = case.arguments["gradient"].shape
    own = np.zeros((samples, heads, length, keys))
    queries = np.arange(max(length - keys, 0), length)  # those before them have no key of their own
    own[:, :, queries, queries + keys - length] = 1.0
    return right_with(
        run, case, "the answer if each query's own key has the gradient 1", gradient=own
    )


def _own_head(run: Run, case: Case) -> Problem | None:
    """Only head 0 has a gradient."""
    gradient = case.arguments["gradient"].copy()
    gradient[:, 1:] = 0.0
    others, tolerance = run.value(case, gradient=gradient)[1:], run.expected(case)[1]
    return compare(
        np.zeros_like(others), others, tolerance, "the other heads if head 0 alone learns"
    )


TABLE_GRADIENT = Spec(
    name="hw05.table_gradient",
    statement="table_gradient(gradient, max_distance): score (b, h, i, j) had table[h, clip(j - p, -K, K) "
    "+ K] added, p = i + S - L; from the gradient of the loss with respect to the scores "
    "(B, H, L, S) that with respect to the table (H, 2K + 1), in the same dtype",
    required=("gradient", "max_distance"),
    reference=_gradient_reference,
    baseline=plain_table_gradient,
    differentiable=False,
    cases=_gradient_cases,
    checks=(
        Check(
            "each head has its own entries",
            "The scores of one head use the entries of that head: no other entry gets a gradient.",
            _own_head,
            when=lambda case: case.arguments["gradient"].shape[1] > 1,
        ),
        Check(
            "nothing is lost",
            "Every score of every sample uses one entry, also at large distances, and its "
            "gradient is added there.",
            _nothing_lost,
        ),
        Check(
            "distance 0 is the middle",
            "A query's own key has distance 0, entry K. Query i is at position i + S - L.",
            _own_row,
        ),
    ),
    mutants=mistakes(
        far_pairs_dropped, means_of_rows, one_sample_learns, queries_from_zero,
        more_queries_forgotten, sides_exchanged, heads_share
    ),
    chapter=6,
    points=2,
)  # fmt: skip

# --- 5.4: read the clock --------------------------------------------------------------------------


def _read_reference(vectors, base):
    """From the slowest hand to the fastest: of all whole turns near the last estimate, the best."""
    found = np.zeros(vectors.shape[:-1], dtype=np.int64)
    width = vectors.shape[-1]
    for place in np.ndindex(found.shape):
        row, estimate = vectors[place], 0.0
        for pair in reversed(range(width // 2)):
            turn = 2 * math.pi * base ** (2 * pair / width)  # positions for a whole turn
            shown = math.atan2(row[2 * pair], row[2 * pair + 1]) / (2 * math.pi) * turn
            first = (estimate - shown) // turn
            options = [shown + (first + step) * turn for step in range(-1, 3)]
            slowest = 2 * pair + 2 == width
            estimate = shown if slowest else min(options, key=lambda p: abs(p - estimate))
        found[place] = round(estimate)
    return found


def _read(
    vectors, base, *, dtype=torch.float64, pairs=slice(None), turns=torch.round, finish=torch.round,
    angle=torch.atan2,
):  # fmt: skip
    """The right way, with the steps that the mutants replace; without a dtype, that of the vectors."""
    vectors = vectors.to(dtype or vectors.dtype)
    width = vectors.shape[-1]
    angles = angle(vectors[..., 0::2], vectors[..., 1::2])
    speeds = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    place = angles[..., -1] / speeds[-1]
    for i in list(range(width // 2 - 1))[::-1][pairs]:
        whole = turns((place * speeds[i] - angles[..., i]) / (2 * math.pi))
        place = (angles[..., i] + 2 * math.pi * whole) / speeds[i]
    return finish(place).long()


def _from_zero(sine, cosine):
    return torch.atan2(sine, cosine) % (2 * math.pi)


slowest_hand_alone = partial(_read, pairs=slice(0))
straight_to_the_fastest = partial(_read, pairs=slice(-1, None))
from_the_other_axis = partial(_read, angle=lambda sine, cosine: torch.atan2(cosine, sine))
half_of_the_dial = partial(_read, angle=lambda sine, cosine: (sine / cosine).atan())
turns_cut_off = partial(_read, turns=torch.floor)
angles_from_zero = partial(_read, angle=_from_zero)
read_in_float32 = partial(_read, dtype=torch.float32)
read_in_the_vectors_dtype = partial(_read, dtype=None)
cut_not_rounded = partial(_read, finish=torch.trunc)


def _rows_of(positions, d_model, base):
    angles = np.asarray(positions)[..., None] / base ** (np.arange(0, d_model, 2) / d_model)
    return np.stack((np.sin(angles), np.cos(angles)), -1).reshape(*angles.shape[:-1], d_model)


TOP = ("position 0, every sine 0.01 too low", "the first positions, with noise")


def _read_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, shape, d_model, base, noise, dtype=torch.float64) -> Case:
        """Positions up to a third of the slowest turn."""
        last = int(2 * math.pi * base ** (1 - 2 / d_model) / 3)
        rows = _rows_of(rng.integers(last // 2, last + 1, shape), d_model, base)
        rows += rng.uniform(-noise, noise, rows.shape)
        return Case(label, {"vectors": rows, "base": base}, dtype)

    def top(label, positions, d_model, base, noise) -> Case:
        """Positions whose slow hands noise may push to before the top; the first is pushed."""
        rows = _rows_of(positions, d_model, base)
        rows += rng.uniform(-noise, noise, rows.shape)
        rows[0, ::2] = -0.01
        return Case(label, {"vectors": rows, "base": base})

    return [
        case("one hand", (4,), 2, 10000.0, 0.1),
        case("two hands", (5,), 4, 100.0, 0.1),
        case("a batch", (2, 3), 8, 10000.0, 0.1),
        case("one vector", (), 16, 10000.0, 0.2),
        case("much noise", (2, 2, 3), 32, 10000.0, 0.3),
        case("three hands far apart", (7,), 6, 1000.0, 0.05),
        case("a thousand billion positions", (3, 5), 64, 1e13, 0.2),
        top(TOP[0], [0], 2, 10000.0, 0.0),
        top(TOP[0], [0], 8, 10000.0, 0.0),
        top(TOP[1], [0, *rng.integers(0, 5, 9)], 64, 1e13, 0.2),
        case("vectors in float32", (9,), 48, 1e10, 0.1, torch.float32),
    ]


def _afar(case: Case) -> bool:
    """Far from the top of the dial, in float64."""
    return case.dtype == torch.float64 and case.label not in TOP


def _without_noise(run: Run, case: Case) -> Problem | None:
    positions = run.expected(case)[0]
    d_model, base = case.arguments["vectors"].shape[-1], case.arguments["base"]
    came = run.value(case, vectors=_rows_of(positions, d_model, base))
    return compare(positions, came, 0.0, "the case's positions, from vectors without its noise")


READ_POSITIONS = Spec(
    name="hw05.read_positions",
    statement="read_positions(vectors, base): the positions, int64 (*batch), whose interleaved sinusoids "
    "with this base, and a little noise on every number, are `vectors` (*batch, D); D is even, no "
    "position is below 0 or beyond a third of the longest wavelength",
    required=("vectors", "base"),
    reference=_read_reference,
    cases=_read_cases,
    checks=(
        Check(
            "right without noise",
            "Even without noise, another position comes out.",
            _without_noise,
            when=_afar,
        ),
        Check(
            "right with noise",
            "Right without noise, wrong with it: a small error in one hand's angle became a "
            "large error in the position.",
            EQUAL.test,
            when=_afar,
        ),
        Check(
            "right at the top of the dial",
            "Noise can turn the hands of position 0 to slightly less than 0. The position is "
            "still 0.",
            EQUAL.test,
            when=lambda case: case.label in TOP,
        ),
        Check(
            "exact from float32 vectors",
            "These positions have more digits than float32, the dtype of the vectors, but the "
            "result needs all of them.",
            EQUAL.test,
            when=lambda case: case.dtype == torch.float32,
        ),
    ),
    mutants=(
        Mutant(
            "the slowest hand alone", slowest_hand_alone, rejected_by="right with noise",
            cause="The slow hand gives a rough position; only the fast hands give it exactly.",
        ),
        Mutant(
            "straight to the fastest hand", straight_to_the_fastest, rejected_by="right with noise",
            cause="The slowest hand is too imprecise to count the turns of the fastest: use "
            "those in between.",
        ),
        Mutant(
            "sine and cosine exchanged", from_the_other_axis, rejected_by="right without noise",
            cause="atan2 takes the sine first: position 0 has cosine 1 and sine 0.",
        ),
        Mutant(
            "half of the dial", half_of_the_dial, rejected_by="right without noise",
            cause="The quotient is the same for opposite directions: atan covers half a turn, "
            "atan2 a whole one.",
        ),
        Mutant(
            "whole turns cut off", turns_cut_off, rejected_by="right without noise",
            cause="The estimate may be slightly too small or too large: the nearest number of "
            "turns is right.",
        ),
        Mutant(
            "angles from 0 to a whole turn", angles_from_zero,
            rejected_by="right at the top of the dial",
            cause="A slow hand slightly before a whole turn means slightly less than 0, not a "
            "whole turn.",
        ),
        Mutant(
            "read in float32", read_in_float32, rejected_by="right without noise",
            cause="float32 has seven digits, but these positions have up to thirteen.",
        ),
        Mutant(
            "read in the vectors' dtype", read_in_the_vectors_dtype,
            rejected_by="exact from float32 vectors",
            cause="Angles may be float32; turns and positions need float64.",
        ),
        Mutant(
            "cut, not rounded", cut_not_rounded, rejected_by="right without noise",
            cause="The fast hand may be off in either direction; 6.98 is 7.",
        ),
    ),
    chapter=6,
    points=3,
)  # fmt: skip

# --- 5.5: the hunt --------------------------------------------------------------------------------


class RelativeScores(RelativeFormula):
    """q (k + a) / sqrt(d), a vector for each pair."""

    def __call__(self, query, key, table):
        """The scores alone."""
        clip = len(table) // 2
        rows = self.clipped(self.distances(query.shape[-2], key.shape[-2]), clip) + clip
        return self.total(query @ key.mT, self.bias(query, key, table, rows), query.shape[-1])

    def bias(self, query, key, table, rows):
        """What the distance adds, before the scale."""
        return torch.einsum("...id,ijd->...ij", query, table[rows])


def scores_by_loops(query, key, table):
    """Pair by pair."""
    clip, (length, d), keys = len(table) // 2, query.shape[-2:], key.shape[-2]
    rows = []
    for i in range(length):
        for j in range(keys):
            distance = min(max(j - i - keys + length, -clip), clip)
            moved = key[..., j, :] + table[distance + clip]
            rows.append((query[..., i, :] * moved).sum(-1) / math.sqrt(d))
    return torch.stack(rows, -1).unflatten(-1, (length, keys))


def scores_split(query, key, table):
    """Every row once, then picked, with the scale on the queries."""
    scaled = query * query.shape[-1] ** -0.5
    rows = _rows(query.shape[-2], key.shape[-2], len(table) // 2) + len(table) // 2
    picks = rows.expand(*query.shape[:-1], -1)
    return (scaled @ table.mT).gather(-1, picks) + scaled @ key.mT


def scores_row_by_row(query, key, table):
    """One row of the table after the other, where it is read, added up in float64."""
    rows = _rows(query.shape[-2], key.shape[-2], len(table) // 2) + len(table) // 2
    wide, total = query.double(), query.double() @ key.double().mT
    for row, vector in enumerate(table.double()):
        total = total + (wide @ vector)[..., None] * (rows == row)
    return (total / math.sqrt(query.shape[-1])).to(query.dtype)


@mistake(
    "clipped one step short",
    rejected_by="hunt",
    symptom="The first and the last row of the table are never used.",
    cause="Clipped to K - 1.",
)
class ClippedScoresOneShort(ClippedOneShort, RelativeScores):
    pass


@mistake(
    "the distance reversed",
    rejected_by="hunt",
    symptom="Left and right are exchanged.",
    cause="p - j in place of j - p.",
)
class ScoresReversed(SignReversed, RelativeScores):
    pass


@mistake(
    "distances from the top left",
    rejected_by="hunt",
    symptom="With a cache, each new token is treated as if it were at position 0.",
    cause="Query i is at position i + S - L.",
)
class ScoresFromTheTopLeft(FromTheTopLeft, RelativeScores):
    pass


@mistake(
    "more queries than keys forgotten",
    rejected_by="hunt",
    symptom="Right with a cache, wrong where there are more queries than keys.",
    cause="S - L may be negative: the first queries are then before every key.",
)
class MoreQueriesThanKeys(RelativeScores):
    def distances(self, length, keys):
        start = max(keys - length, 0)
        return torch.arange(keys) - (torch.arange(length) + start)[:, None]


@mistake(
    "an axis counted from the front",
    rejected_by="hunt",
    symptom="Right for one sample, too large or too small for a batch.",
    cause="query.shape[1] is d without a batch and the length with one; shape[-1] is always d.",
)
class AxisFromTheFront(RelativeScores):
    def __call__(self, query, key, table):
        return super().__call__(query, key, table) * (query.shape[-1] / query.shape[1]) ** 0.5


@mistake(
    "the bias of the first sample",
    rejected_by="hunt",
    symptom="The scores of one sample depend on another sample of the batch.",
    cause="The products of queries and table are computed once and used for the whole batch.",
)
class BiasOfTheFirstSample(RelativeScores):
    def bias(self, query, key, table, rows):
        first = query.reshape(-1, *query.shape[-2:])[0]
        return super().bias(first, key, table, rows)


@mistake(
    "no table for K = 0",
    rejected_by="hunt",
    symptom="A table of one row is ignored.",
    cause="`if K:` is false for 0, but with K = 0 there is still one row, which all pairs use.",
)
class NoTableForK0(RelativeScores):
    def bias(self, query, key, table, rows):
        return super().bias(query, key, table, rows) * bool(len(table) // 2)


@mistake(
    "the queries' axis lost",
    rejected_by="hunt",
    symptom="For one new token the scores lack an axis; a comparison that broadcasts does not "
    "notice it.",
    cause="squeeze() removes the axis of the queries if its length is 1.",
)
def scores_squeezed(query, key, table):
    return RelativeScores()(query, key, table).squeeze(-2)


@mistake(
    "float32 inside",
    rejected_by="hunt",
    symptom="The dtype is right, but half of the digits are wrong.",
    cause="Inputs in float64 are rounded to float32 on the way.",
)
def scores_in_float32(query, key, table):
    return RelativeScores()(query.float(), key.float(), table.float()).to(query.dtype)


@mistake(
    "the query scaled in place",
    rejected_by="hunt",
    symptom="The scores are right, but the caller's tensor has changed.",
    cause="query *= ... works in place, on the caller's tensor.",
)
def scores_that_scale_the_query(query, key, table):
    query *= query.shape[-1] ** -0.5
    return RelativeScores()(query, key, table) * query.shape[-1] ** 0.5


HUNT = Hunt(
    name="hw05.hunt",
    function="test_relative_scores",
    statement="test_relative_scores(scores): raise for every wrong implementation of relative_scores(query, "
    "key, table) and for no right one; query (*batch, L, d), key (*batch, S, d), table (2K + 1, d) -> "
    "(*batch, L, S); L, S and d at least 1, K at least 0",
    right={
        "a vector for each pair": RelativeScores(),
        "loops": scores_by_loops,
        "split, then picked": scores_split,
        "row by row, in float64": scores_row_by_row,
    },
    mutants=mistakes(
        ClippedScoresOneShort,
        ScoresReversed,
        ScoresFromTheTopLeft,
        MoreQueriesThanKeys,
        AxisFromTheFront,
        BiasOfTheFirstSample,
        NoTableForK0,
        scores_squeezed,
        scores_in_float32,
        scores_that_scale_the_query,
    ),
    points=4,
    minutes=60,
    difficulty="core",
    chapter=6,
)  # fmt: skip

# --- The assignment -------------------------------------------------------------------------------

ASSIGNMENT = Assignment(
    name="hw05",
    title="How does a model know positions?",
    weeks="5",
    chapters=(6,),
    parts=(
        Task(SIMILARITY, "similarity", 15, "warm-up", ("torch.cosine_similarity", "F.cosine_similarity")),
        Task(STRETCH, "stretch", 25, "core", ("F.interpolate", "F.grid_sample", "nn.Upsample")),
        Task(TABLE_GRADIENT, "table_gradient", 25, "core"),
        Task(READ_POSITIONS, "read_positions", 45, "challenge"),
        HUNT,
        Written(
            "hw05-sines-only",
            "explanation",
            2,
            20,
            "1 point: a frequency and two positions, neither of them 0, with the same sine and "
            "different sines one position later, and what follows: a sine alone does not say "
            "whether it rises or falls. 1 point: sin a sin b contains cos(a + b) as well, so the "
            "dot product depends on the positions and not on the distance alone.",
        ),
        Written(
            "hw05-stretched-waves",
            "explanation",
            2,
            25,
            "1 point: the mean of two neighbors on a sinusoid of frequency w is the true value "
            "times cos(w/2): 0.88 for the fastest pair, 0.99995 for w = 1/50; the norm becomes "
            "smaller. 1 point: the best match is two rows to the left, where the token two "
            "positions back is and not the neighbor, so the layer misses its neighbor (any right "
            "consequence counts, such as that some training at the new length is needed).",
        ),
        Written(
            "hw05-experiment",
            "experiment",
            3,
            45,
            "1 point: a table for at least four bases and two noise levels, from a run of the "
            "code. 1 point: the finding agrees with the table: the larger the base, the fewer "
            "positions are decoded exactly; and how large the errors beyond 5 positions are, at "
            "the smallest base (few, anywhere in the text) and at the largest (many, mostly "
            "nearer). 1 point: the reasons: with a large base most pairs hardly turn over these "
            "positions and tell neighbors apart no better than noise; the wrong positions are "
            "those where the fast pairs agree again and the slow ones have hardly turned. With a "
            "small base all pairs turn, and what looks similar by chance may be anywhere.",
        ),
    ),
)  # fmt: skip
