"""The Specs of the scoring functions: what each must do, and how each goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ... import reference
from ..checks import any_batch, any_dtype, as_expected, scaled_up, transposed, varied
from ..compare import Problem, compare, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import EQUAL, GRADIENTS, SHAPE, UNTOUCHED, Case, Check, Run, Spec, finite
from . import mutants
from .mutants import (
    LocalFormula,
    plain_additive,
    plain_bilinear,
    plain_content,
    plain_kernel,
    plain_location,
)


def slack(run: Run, case: Case) -> float:
    """What rounding may do to two answers that should agree."""
    return 2 * run.expected(case)[1] + 4 * torch.finfo(case.dtype).eps


def cases_of(*makers: tuple[str, Callable[[np.random.Generator], dict[str, Any]]]) -> Any:
    """A Spec's `cases`: each maker draws one case's arguments; the last is repeated in float32, and
    in views of transposed tensors."""

    def cases(rng: np.random.Generator) -> list[Case]:
        drawn = [Case(label, make(rng)) for label, make in makers]
        last = makers[-1][1]
        drawn.append(Case("float32", last(rng), torch.float32))
        return [*drawn, Case("transposed tensors", transposed(last(rng)))]

    return cases


def combined(make: Callable[..., Any]) -> Callable[[Draw], Case]:
    """A Spec's `combine`: `make(query's shape, number of keys, draw)` is a maker of arguments."""

    def combine(draw: Draw) -> Case:
        query = (*any_batch(draw), draw.one_of(2, 1, 3), draw.one_of(3, 1, 4))
        arguments = make(query, draw.one_of(3, 1, 5, 0), draw)(draw.numbers)
        dtype = any_dtype(draw)
        return Case("options by chance", arguments, dtype)

    return combine


def _vary(scores: np.ndarray) -> float:
    """By how much the gains of one key over another differ between two queries, at most."""
    gains = scores - scores[..., :1]
    return float(np.abs(gains - gains[..., :1, :]).max(initial=0.0))


# --- Additive -------------------------------------------------------------------------------------


def additive_arguments(query: tuple[int, ...], keys: int, key_size: int, hidden: int) -> Any:
    """A maker of arguments: query (*batch, L, dq)."""

    def make(rng: np.random.Generator) -> dict[str, Any]:
        return {
            "query": rng.normal(size=query),
            "key": rng.normal(size=(*query[:-2], keys, key_size)),
            "w_query": rng.normal(size=(hidden, query[-1])),
            "w_key": rng.normal(size=(hidden, key_size)),
            "w_v": rng.normal(size=hidden),
        }

    return make


def _mixes(run: Run, case: Case) -> Problem | None:
    """s(i, j) - s(i, 0) must depend on i: what only adds up cancels in the softmax."""
    expected, tolerance = run.expected(case)
    clear = _vary(expected) > 16 * tolerance  # four scores, off by a tolerance each, and room
    if not clear or _vary(run.value(case)) > 4 * tolerance:
        return None
    return Problem("rows of scores that differ by more than a constant", "rows that do not")


def _bounded(run: Run, case: Case) -> Problem | None:
    w_v = case.arguments["w_v"]
    largest = np.abs(run.value(case, query=1e3 * case.arguments["query"])).max(initial=0.0)
    most = np.abs(w_v).sum() * (1 + case.rounding(len(w_v)))
    if largest <= most:
        return None
    return Problem(f"scores of at most sum |w_v| = {most:.4g}", f"{largest:.4g}")


def _homogeneous(run: Run, case: Case) -> Problem | None:
    return as_expected(run, varied(case, "twice w_v", w_v=2 * case.arguments["w_v"]))


ADDITIVE = Spec(
    name="additive scores",
    statement="""additive_scores(query, key, w_query, w_key, w_v): w_v^T tanh(W_q q + W_k k).
query (*batch, L, dq), key (*batch, S, dk), w_query (hidden, dq), w_key (hidden, dk), w_v (hidden)
-> (*batch, L, S)""",
    required=("query", "key", "w_query", "w_key", "w_v"),
    reference=reference.additive_scores,
    baseline=plain_additive,
    cases=cases_of(
        ("two queries, three keys", additive_arguments((2, 3), 3, 3, 3)),
        ("as many queries as keys", additive_arguments((3, 4), 3, 4, 4)),
        ("sizes that differ", additive_arguments((3, 5), 4, 2, 6)),
        ("one of everything", additive_arguments((1, 1), 1, 1, 1)),
        ("no keys", additive_arguments((2, 3), 0, 2, 4)),
        ("large queries", scaled_up(additive_arguments((2, 3), 3, 2, 4), query=1e3)),
        ("heads", additive_arguments((2, 3, 2, 3), 4, 2, 5)),
        ("a batch", additive_arguments((2, 3, 5), 4, 2, 6)),
    ),
    combine=combined(
        lambda query, keys, draw: additive_arguments(
            query, keys, draw.one_of(2, 1, 4), draw.one_of(3, 1, 6)
        )
    ),
    num_drawn=4,
    checks=(
        Check(
            "the score mixes query and key",
            "Without a tanh over the sum the query adds the same to every score, and it cancels.",
            _mixes,
        ),
        Check("w_v weighs the hidden units", "Twice the w_v gives twice the scores.", _homogeneous),
        Check("the tanh bounds the score", "No score can exceed the sum of the |w_v|.", _bounded),
    ),
    mutants=mistakes_in(mutants, of="additive scores"),
    chapter=2,
)


# --- Bilinear -------------------------------------------------------------------------------------


def bilinear_arguments(query: tuple[int, ...], keys: int, key_size: int) -> Any:
    """A maker of arguments: query (*batch, L, dq)."""

    def make(rng: np.random.Generator) -> dict[str, Any]:
        return {
            "query": rng.normal(size=query),
            "key": rng.normal(size=(*query[:-2], keys, key_size)),
            "weight": rng.normal(size=(query[-1], key_size)),
        }

    return make


def _square(case: Case) -> bool:
    rows, columns = case.arguments["weight"].shape
    return rows == columns


def _identity(run: Run, case: Case) -> Problem | None:
    return as_expected(run, varied(case, "W = I", weight=np.eye(len(case.arguments["weight"]))))


def _one_entry(run: Run, case: Case) -> Problem | None:
    """With one entry of W, row 0 and column 1, the score is q_0 k_1."""
    weight = np.zeros_like(case.arguments["weight"])
    weight[0, 1] = 1.0
    return as_expected(run, varied(case, "one entry", weight=weight))


BILINEAR = Spec(
    name="bilinear scores",
    statement="""bilinear_scores(query, key, weight): q^T W k.
query (*batch, L, dq), key (*batch, S, dk), weight (dq, dk) -> (*batch, L, S)""",
    required=("query", "key", "weight"),
    reference=reference.bilinear_scores,
    baseline=plain_bilinear,
    cases=cases_of(
        ("two queries, three keys", bilinear_arguments((2, 3), 3, 3)),
        ("a square weight in a batch", bilinear_arguments((2, 3, 4), 5, 4)),
        ("sizes that differ", bilinear_arguments((3, 5), 4, 2)),
        ("one of everything", bilinear_arguments((1, 1), 1, 1)),
        ("no keys", bilinear_arguments((2, 3), 0, 2)),
        ("heads", bilinear_arguments((2, 3, 2, 3), 4, 2)),
        ("a batch", bilinear_arguments((2, 3, 2), 4, 5)),
    ),
    combine=combined(
        lambda query, keys, draw: bilinear_arguments(query, keys, draw.one_of(2, 1, 4))
    ),
    num_drawn=4,
    checks=(
        Check(
            "W = I gives the dot product",
            "With the identity as weight the score is q.k itself: nothing is divided or added.",
            _identity,
            when=_square,
        ),
        Check(
            "rows of W meet the query",
            "W's entry (m, n) multiplies the query's number m and the key's number n.",
            _one_entry,
            when=lambda case: case.arguments["weight"].shape[1] > 1,
        ),
        SHAPE,
        UNTOUCHED,
    ),
    mutants=mistakes_in(mutants, of="bilinear scores"),
    chapter=2,
)


# --- Location -------------------------------------------------------------------------------------


def location_arguments(query: tuple[int, ...], places: int) -> Any:
    """A maker of arguments: query (*batch, L, d)."""

    def make(rng: np.random.Generator) -> dict[str, Any]:
        return {"query": rng.normal(size=query), "weight": rng.normal(size=(places, query[-1]))}

    return make


def _twice(run: Run, case: Case) -> Problem | None:
    twice = varied(case, "twice the query", query=2 * case.arguments["query"])
    slack = run.expected(twice)[1] + 2 * run.expected(case)[1]
    return compare(2 * run.value(case), run.value(twice), slack)


def _one_hot_query(run: Run, case: Case) -> Problem | None:
    query = np.zeros_like(case.arguments["query"])
    query[..., 0] = 1.0
    return as_expected(run, varied(case, "1, 0, 0 ...", query=query))


LOCATION = Spec(
    name="location scores",
    statement="""location_scores(query, weight): W q, a score for each place from the query alone.
query (*batch, L, d), weight (S, d) -> (*batch, L, S)""",
    required=("query", "weight"),
    reference=reference.location_scores,
    baseline=plain_location,
    cases=cases_of(
        ("one query, two places", location_arguments((1, 3), 2)),
        ("more places than queries", location_arguments((2, 3), 5)),
        ("fewer places than queries", location_arguments((4, 3), 2)),
        ("one of everything", location_arguments((1, 1), 1)),
        ("no places", location_arguments((2, 3), 0)),
        ("heads", location_arguments((2, 3, 2, 3), 4)),
        ("a batch", location_arguments((2, 3, 4), 5)),
    ),
    combine=combined(lambda query, keys, draw: location_arguments(query, keys)),
    num_drawn=4,
    checks=(
        Check(
            "scores are linear in the query",
            "Twice the query, twice the scores: the softmax comes later, once.",
            _twice,
        ),
        Check(
            "row j of W scores place j",
            "A query of 1, 0, 0, ... reads the first column of W.",
            _one_hot_query,
        ),
    ),
    mutants=mistakes_in(mutants, of="location scores"),
    chapter=2,
)


# --- Content --------------------------------------------------------------------------------------


def content_arguments(
    query: tuple[int, ...],
    keys: int,
    zero: str | None = None,
    at: float = 1.0,
    sharpness: float | None = None,
) -> Any:
    """A maker of arguments: query (*batch, L, d), vectors of about the length `at`; the last key or the
    first query may be a vector of zeros."""

    def make(rng: np.random.Generator) -> dict[str, Any]:
        key = at * rng.normal(size=(*query[:-2], keys, query[-1]))
        asked = at * rng.normal(size=query)
        if zero == "key":
            key[..., -1:, :] = 0.0
        if zero == "query":
            asked[..., :1, :] = 0.0
        given = float(rng.uniform(2, 5)) if sharpness is None else sharpness
        return {"query": asked, "key": key, "sharpness": given}

    return make


def _directions(run: Run, case: Case) -> Problem | None:
    key = case.arguments["key"].copy()
    key[..., :1, :] *= 8.0
    longer = varied(case, "a longer key", key=key)
    slack = run.expected(case)[1] + run.expected(longer)[1]
    return unchanged(run.value(case), run.value(longer), slack, "a key is eight times as long")


def _has_zero(case: Case, *names: str) -> bool:
    """Whether one of the keys, or of the queries, is a vector of zeros."""
    vectors = [case.arguments[name] for name in names or ("key", "query")]
    return any(bool(each.size) and not each.any(-1).all() for each in vectors)


def _zero_vector(run: Run, case: Case) -> Problem | None:
    zero = {name: ~case.arguments[name].any(-1) for name in ("query", "key")}
    got = run.value(case)[zero["query"][..., :, None] | zero["key"][..., None, :]]
    return compare(np.zeros_like(got), got, 0.0)


def _zero_vector_learns(run: Run, case: Case) -> Problem | None:
    for name, gradient in run.gradients(case, ("query", "key")).items():
        if not np.isfinite(gradient).all():
            return Problem(f"a finite gradient by `{name}`", "NaN or inf")
    return None


def _parallel(run: Run, case: Case) -> Problem | None:
    query, sharpness = case.arguments["query"], case.arguments["sharpness"]
    for times, name in ((3.0, "parallel keys"), (-2.0, "opposite keys")):
        along = varied(case, name, key=times * query)
        own = np.diagonal(run.value(along), axis1=-2, axis2=-1)[query.any(-1)]
        wanted = np.full_like(own, np.sign(times) * sharpness)
        if problem := compare(wanted, own, run.expected(along)[1], f"the score of {name}"):
            return problem
    return None


CONTENT = Spec(
    name="content scores",
    statement="""content_scores(query, key, sharpness): sharpness x the cosine of query and key.
query (*batch, L, d), key (*batch, S, d) -> (*batch, L, S), however short the vectors are; a vector of
zeros scores 0""",
    required=("query", "key", "sharpness"),
    reference=reference.content_scores,
    baseline=plain_content,
    cases=cases_of(
        ("two queries, three keys", content_arguments((2, 3), 3)),
        ("a key of zeros", content_arguments((2, 4), 3, "key")),
        ("a query of zeros", content_arguments((2, 3, 4), 3, "query")),
        ("a sharpness below 1", content_arguments((2, 3), 3, sharpness=0.3)),
        ("one of everything", content_arguments((1, 1), 1)),
        ("no keys", content_arguments((2, 3), 0)),
        ("short vectors", content_arguments((2, 3), 3, at=1e-9)),
        ("long vectors", content_arguments((2, 3), 3, at=1e6)),
        ("heads", content_arguments((2, 3, 2, 3), 4)),
        ("a batch", content_arguments((2, 3, 4), 5)),
    ),
    combine=combined(
        lambda query, keys, draw: content_arguments(
            query,
            keys,
            draw.one_of(None, "key", "query"),
            draw.one_of(1.0, 1e3, 1e-9),
            draw.one_of(None, 0.5, 1, 40.0),
        )
    ),
    num_drawn=6,
    checks=(
        Check(
            "only the direction counts",
            "A key eight times as long points the same way and scores the same.",
            _directions,
            when=lambda case: not _has_zero(case),
        ),
        Check(
            "a zero vector scores 0",
            "0/0 is NaN, and one NaN spoils the row: a vector without direction scores 0.",
            _zero_vector,
            when=_has_zero,
        ),
        Check(
            "a zero vector has a finite gradient",
            "The norm has no derivative at 0: a `where` after the division does not stop its NaN.",
            _zero_vector_learns,
            when=_has_zero,
        ),
        Check(
            "parallel vectors score the sharpness",
            "The cosine of parallel vectors is 1, so their score is the sharpness itself; that of opposite "
            "ones is -1.",
            _parallel,
        ),
        EQUAL,
        # at 0 the cosine has no derivative: finite is all that can be asked
        replace(GRADIENTS, when=lambda case: GRADIENTS.when(case) and not _has_zero(case)),
    ),
    mutants=mistakes_in(mutants, of="content scores"),
    chapter=2,
)


# --- Kernel regression ----------------------------------------------------------------------------


def kernel_arguments(
    query: tuple[int, ...],
    keys: int,
    width: int = 1,
    at: float = 0.0,
    bandwidth: float | None = None,
) -> Any:
    """A maker of arguments: query (*batch, L, d), everything moved by `at`."""

    def make(rng: np.random.Generator) -> dict[str, Any]:
        # Sixteenths stay exact in float32 when they are moved by a large whole number.
        places = [query, (*query[:-2], keys, query[-1])]
        moved = [np.round(16 * rng.normal(size=shape)) / 16 + at for shape in places]
        value = rng.normal(size=(*query[:-2], keys, width))
        given = float(rng.uniform(0.3, 0.7)) if bandwidth is None else bandwidth
        return {"query": moved[0], "key": moved[1], "value": value, "bandwidth": given}

    return make


def kernel_cases(rng: np.random.Generator) -> list[Case]:
    """Small ones first, then one far from all keys and, in float32, one far from zero."""
    lonely = kernel_arguments((2, 1), 3)(rng)
    lonely["query"] = lonely["query"] + 60.0
    return [
        Case("one query, two points", kernel_arguments((1, 1), 2)(rng)),
        Case("one query, one point", kernel_arguments((1, 1), 1)(rng)),
        Case("numbers", kernel_arguments((3, 1), 5)(rng)),
        Case("vectors in a batch", kernel_arguments((2, 3, 4), 5, 2)(rng)),
        Case("transposed tensors", transposed(kernel_arguments((2, 3, 2), 4, 3)(rng))),
        Case("heads", kernel_arguments((2, 2, 3, 2), 4, 3)(rng)),
        Case("float32", kernel_arguments((2, 3, 2), 4, 2)(rng), torch.float32),
        Case("far from all points", lonely),
        Case("far from all points, float32", lonely, torch.float32),
        Case("a narrow kernel", kernel_arguments((2, 3, 2), 4, bandwidth=0.03)(rng)),
        Case("a wide kernel", kernel_arguments((2, 3, 2), 4, bandwidth=20)(rng)),
        Case("far from zero, float32", kernel_arguments((3, 1), 5, at=4096.0)(rng), torch.float32),
    ]


def _constant(run: Run, case: Case) -> Problem | None:
    alike = varied(case, "values of 3", value=np.full_like(case.arguments["value"], 3.0))
    got = run.value(alike)
    return compare(np.full_like(got, 3.0), got, run.expected(alike)[1])


def _units(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    changed = {"query": 4 * a["query"], "key": 4 * a["key"], "bandwidth": 4 * a["bandwidth"]}
    return _as_before(run, case, varied(case, "units", **changed), "the unit is a quarter")


def _moved(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    home = {"query": a["query"] - 4096.0, "key": a["key"] - 4096.0}
    return _as_before(run, case, varied(case, "at home", **home), "all points are moved")


def _turned(run: Run, case: Case) -> Problem | None:
    """Query and key rotated in the plane of their first two features."""
    turn = np.eye(case.arguments["query"].shape[-1])
    turn[:2, :2] = [[0.6, -0.8], [0.8, 0.6]]
    moved = {name: case.arguments[name] @ turn for name in ("query", "key")}
    return _as_before(run, case, varied(case, "turned", **moved), "all points are rotated")


def _as_before(run: Run, case: Case, other: Case, when: str) -> Problem | None:
    """The same answer to two cases."""
    slack = run.expected(case)[1] + run.expected(other)[1]
    return unchanged(run.value(case), run.value(other), slack, when)


def _lonely(case: Case) -> bool:
    return case.label.startswith("far from all points")


def _kernel_by_chance(draw: Draw) -> Case:
    query = (*any_batch(draw), draw.one_of(2, 1, 3), draw.one_of(1, 2, 4))
    make = kernel_arguments(query, draw.one_of(3, 1, 6), draw.one_of(1, 3))
    return Case("options by chance", make(draw.numbers), any_dtype(draw))


KERNEL = Spec(
    name="kernel regression",
    statement="""kernel_regression(query, key, value, bandwidth): softmax(-|q-k|^2 / (2 s^2)) value.
query (*batch, L, d), key (*batch, S, d), value (*batch, S, dv) -> (*batch, L, dv)""",
    required=("query", "key", "value", "bandwidth"),
    reference=reference.kernel_regression,
    baseline=plain_kernel,
    cases=kernel_cases,
    combine=_kernel_by_chance,
    num_drawn=4,
    checks=(
        Check(
            "far away it is still a number",
            "All kernels underflow to 0 there, and 0/0 is NaN. A softmax of the exponents is safe.",
            finite,
            when=_lonely,
        ),
        Check(
            "equal values give that value",
            "The prediction is a mean: if every known value is 3, it is 3 everywhere.",
            _constant,
        ),
        Check(
            "the unit does not matter",
            "Meters or feet: with query, key and bandwidth all 4 times as large, nothing changes.",
            _units,
            when=lambda case: case.dtype == torch.float64 and not _lonely(case),
        ),
        Check(
            "moving all points changes nothing",
            "Only differences count. |q|^2 - 2 q.k + |k|^2 loses them far from zero.",
            _moved,
            when=lambda case: case.label.startswith("far from zero"),
        ),
        Check(
            "rotating all points changes nothing",
            "Nearness is |q - k|^2, the sum of the squared differences of all features.",
            _turned,
            when=lambda case: case.dtype == torch.float64 and case.arguments["query"].shape[-1] > 1,
        ),
    ),
    mutants=mistakes_in(mutants, of="kernel regression"),
    chapter=2,
)


# --- Local ----------------------------------------------------------------------------------------


def local_arguments(
    shape: tuple[int, ...], half_width: int, gaussian: bool | None = None, whole: bool = True
) -> Any:
    """A maker of arguments: scores (*batch, L, S)."""

    def make(rng: np.random.Generator) -> dict[str, Any]:
        # Whole centers without the Gaussian (local-m), real ones with it (local-p).
        centers = rng.uniform(0, shape[-1], size=shape[:-1])
        if gaussian is None and whole:
            centers = np.minimum(np.floor(centers), shape[-1] - 1)
        scores = rng.normal(size=shape)
        return {
            "scores": scores,
            "centers": centers,
            "half_width": half_width,
            "gaussian": gaussian,
        }

    return make


def _window(case: Case) -> np.ndarray:
    a = case.arguments
    places = np.arange(a["scores"].shape[-1])
    return np.abs(places - a["centers"][..., None]) <= a["half_width"]


def _inside(run: Run, case: Case) -> Problem | None:
    return compare(_window(case), run.value(case) > 0, 0.0)


def _moderate(case: Case) -> bool:
    """Whether no weight underflows to 0."""
    return np.abs(case.arguments["scores"]).max(initial=0.0) < 10


def _shares(run: Run, case: Case) -> Problem | None:
    sums = run.value(case).sum(-1)
    wanted = _window(case).any(-1).astype(float)  # nothing where the window holds no place
    return compare(wanted, sums, case.rounding(case.arguments["scores"].shape[-1]), "the sums")


def _not_shared(run: Run, case: Case) -> Problem | None:
    expected, tolerance = run.expected(case)
    sums, slack = run.value(case).sum(-1), tolerance * expected.shape[-1]
    shared = (sums >= 1 - slack) & (expected.sum(-1) < 1 - 2 * slack)
    return Problem("sums below 1", f"a sum of {sums[shared][0]:.4g}") if shared.any() else None


def _follows(run: Run, case: Case) -> Problem | None:
    """A step that moves no key into or out of the window must still move the weights."""
    after = varied(case, "a step", centers=case.arguments["centers"] + 1e-3)
    (before, one), (there, other) = run.expected(case), run.expected(after)
    clear = np.abs(there - before).max(-1) > 4 * (one + other)
    moved = np.abs(run.value(after) - run.value(case)).max(-1) > one + other
    stuck = np.argwhere(clear & ~moved)
    if not len(stuck):
        return None
    return Problem(
        "other weights", f"the same, at {stuck[0].tolist()}, for a center 0.001 farther on"
    )


def _local_by_chance(draw: Draw) -> Case:
    shape = (*any_batch(draw), draw.one_of(2, 1, 3), draw.one_of(7, 1, 12))
    make = local_arguments(shape, draw.one_of(2, 1, 5), draw.one_of(None, True))
    arguments = make(draw.numbers)
    arguments["scores"] = draw.one_of(1.0, 1000.0) * arguments["scores"]
    arguments["centers"] = draw.one_of(1.0, 2.0) * arguments["centers"]  # past the end
    return Case("options by chance", arguments, any_dtype(draw))


def _spread_out(make: Any) -> Any:
    """Scores whose exponentials overflow."""
    return scaled_up(make, scores=1000.0)


def _past_the_ends(make: Any) -> Any:
    """Half of the centers so far out that their window holds no place."""

    def moved(rng: np.random.Generator) -> dict[str, Any]:
        drawn = make(rng)
        drawn["centers"][..., ::2] = drawn["scores"].shape[-1] + drawn["half_width"] + 1.5
        drawn["centers"][..., :1] *= -1
        return drawn

    return moved


LOCAL = Spec(
    name="local weights",
    statement="""local_weights(scores, centers, half_width, gaussian=False): a softmax over the places
s with |s - p| <= D, zeros if there is none; with gaussian=True then times exp(-(s - p)^2 / (2 (D/2)^2)).
scores (*batch, L, S), centers (*batch, L) -> (*batch, L, S)""",
    required=("scores", "centers", "half_width"),
    reference=reference.local_weights,
    baseline=LocalFormula(),
    cases=cases_of(
        ("local-m, one query", local_arguments((1, 5), 1)),
        ("local-m", local_arguments((3, 9), 2)),
        ("local-p, one query", local_arguments((1, 5), 1, True)),
        ("local-p", local_arguments((4, 9), 2, True)),
        ("local-m, large scores", _spread_out(local_arguments((3, 9), 2))),
        ("local-p, large scores", _spread_out(local_arguments((3, 9), 2, True))),
        ("local-m past the ends", _past_the_ends(local_arguments((4, 6), 1))),
        ("local-p past the ends", _past_the_ends(local_arguments((4, 6), 1, True))),
        ("real centers without the Gaussian", local_arguments((3, 9), 2, whole=False)),
        ("the Gaussian refused by name", local_arguments((2, 3, 9), 2, False)),
        ("one place", local_arguments((2, 1), 1)),
        ("wider than the sequence", local_arguments((2, 3), 5, True)),
        ("heads", local_arguments((2, 2, 3, 6), 2)),
        ("local-m in a batch", local_arguments((2, 3, 7), 2)),
        ("local-p in a batch", local_arguments((2, 3, 11), 3, True)),
    ),
    combine=_local_by_chance,
    num_drawn=5,
    checks=(
        Check(
            "the window reaches D places",
            "The places from p - D to p + D have weight, both ends included, and no others.",
            _inside,
            when=_moderate,
        ),
        Check(
            "the window shares the whole",
            "Without the Gaussian the weights in the window sum to 1: cut before the softmax.",
            _shares,
            when=lambda case: not case.arguments["gaussian"],
        ),
        Check(
            "the Gaussian takes its part",
            "The paper multiplies and leaves it at that: the weights sum to less than 1.",
            _not_shared,
            needs=("gaussian",),
            when=lambda case: bool(case.arguments.get("gaussian", True)),
        ),
        Check(
            "the Gaussian follows the center",
            "A center is a real number: rounded, it would never learn.",
            _follows,
            needs=("gaussian",),
            when=lambda case: bool(case.arguments.get("gaussian", True)) and _moderate(case),
        ),
    ),
    mutants=mistakes_in(mutants, of="local weights"),
    chapter=2,
)
