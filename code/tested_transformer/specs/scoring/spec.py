"""The Specs of the scoring functions: what each must do, and how each goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ... import reference
from ..compare import Problem, compare
from ..mistakes import mistakes_in
from ..spec import SHAPE, UNTOUCHED, Case, Check, Run, Spec
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
    """A Spec's `cases`: each maker draws one case's arguments; the last is repeated in float32."""

    def cases(rng: np.random.Generator) -> list[Case]:
        drawn = [Case(label, make(rng)) for label, make in makers]
        return [*drawn, Case("float32", makers[-1][1](rng), torch.float32)]

    return cases


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
    scores = run.value(case)
    gains = scores - scores[..., :1]
    if np.abs(gains - gains[..., :1, :]).max() > 1e-3:
        return None
    return Problem("rows of scores that differ by more than a constant", "rows that do not")


def _bounded(run: Run, case: Case) -> Problem | None:
    largest = np.abs(run.value(case, query=1e3 * case.arguments["query"])).max()
    most = np.abs(case.arguments["w_v"]).sum() * (1 + 1e-6)
    if largest <= most:
        return None
    return Problem(f"scores of at most sum |w_v| = {most:.4g}", f"{largest:.4g}")


def _homogeneous(run: Run, case: Case) -> Problem | None:
    expected = 2 * run.value(case)
    return compare(expected, run.value(case, w_v=2 * case.arguments["w_v"]), 2 * slack(run, case))


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
        ("a batch", additive_arguments((2, 3, 5), 4, 2, 6)),
    ),
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
    a = case.arguments
    expected = a["query"] @ np.swapaxes(a["key"], -1, -2)
    got = run.value(case, weight=np.eye(len(a["weight"])))
    return compare(expected, got, 8 * slack(run, case))


def _one_entry(run: Run, case: Case) -> Problem | None:
    """With one entry of W, row 0 and column 1, the score is q_0 k_1."""
    a = case.arguments
    weight = np.zeros_like(a["weight"])
    weight[0, 1] = 1.0
    expected = a["query"][..., :, None, 0] * a["key"][..., None, :, 1]
    return compare(expected, run.value(case, weight=weight), 8 * slack(run, case))


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
        ("a batch", bilinear_arguments((2, 3, 2), 4, 5)),
    ),
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
    got = run.value(case, query=2 * case.arguments["query"])
    return compare(2 * run.value(case), got, 2 * slack(run, case))


def _one_hot_query(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    query = np.zeros_like(a["query"])
    query[..., 0] = 1.0
    expected = np.broadcast_to(a["weight"][:, 0], (*query.shape[:-1], len(a["weight"])))
    return compare(expected, run.value(case, query=query), 2 * slack(run, case))


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
        ("a batch", location_arguments((2, 3, 4), 5)),
    ),
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


def content_arguments(query: tuple[int, ...], keys: int, zero: bool = False) -> Any:
    """A maker of arguments: query (*batch, L, d); the last key may be a vector of zeros."""

    def make(rng: np.random.Generator) -> dict[str, Any]:
        key = rng.normal(size=(*query[:-2], keys, query[-1]))
        if zero:
            key[..., -1, :] = 0.0
        sharpness = float(rng.uniform(2, 5))
        return {"query": rng.normal(size=query), "key": key, "sharpness": sharpness}

    return make


def _directions(run: Run, case: Case) -> Problem | None:
    key = case.arguments["key"].copy()
    key[..., 0, :] *= 8.0
    return compare(run.value(case), run.value(case, key=key), slack(run, case))


def _has_zero(case: Case) -> bool:
    return not case.arguments["key"][..., -1, :].any()


def _zero_vector(run: Run, case: Case) -> Problem | None:
    got = run.value(case)[..., -1]
    return compare(np.zeros_like(got), got, 0.0)


def _parallel(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    places = np.arange(a["query"].shape[-2])[None].repeat(2, 0)
    own = run.value(case, key=3.0 * a["query"])[..., places[0], places[1]]
    return compare(np.full_like(own, a["sharpness"]), own, slack(run, case))


CONTENT = Spec(
    name="content scores",
    statement="""content_scores(query, key, sharpness): sharpness x the cosine of query and key.
query (*batch, L, d), key (*batch, S, d) -> (*batch, L, S); a vector of zeros scores 0""",
    required=("query", "key", "sharpness"),
    reference=reference.content_scores,
    baseline=plain_content,
    cases=cases_of(
        ("two queries, three keys", content_arguments((2, 3), 3)),
        ("a key of zeros", content_arguments((2, 4), 3, zero=True)),
        ("a batch", content_arguments((2, 3, 4), 5)),
    ),
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
            "parallel vectors score the sharpness",
            "The cosine of parallel vectors is 1, so their score is the sharpness itself.",
            _parallel,
        ),
    ),
    mutants=mistakes_in(mutants, of="content scores"),
    chapter=2,
)


# --- Kernel regression ----------------------------------------------------------------------------


def kernel_arguments(query: tuple[int, ...], keys: int, width: int = 1, at: float = 0.0) -> Any:
    """A maker of arguments: query (*batch, L, d), everything moved by `at`."""

    def make(rng: np.random.Generator) -> dict[str, Any]:
        # Sixteenths stay exact in float32 when they are moved by a large whole number.
        places = [query, (*query[:-2], keys, query[-1])]
        moved = [np.round(16 * rng.normal(size=shape)) / 16 + at for shape in places]
        value = rng.normal(size=(*query[:-2], keys, width))
        bandwidth = float(rng.uniform(0.3, 0.7))
        return {"query": moved[0], "key": moved[1], "value": value, "bandwidth": bandwidth}

    return make


def kernel_cases(rng: np.random.Generator) -> list[Case]:
    """Small ones first, then one far from all keys and, in float32, one far from zero."""
    lonely = kernel_arguments((2, 1), 3)(rng)
    lonely["query"] = lonely["query"] + 60.0
    return [
        Case("one query, two points", kernel_arguments((1, 1), 2)(rng)),
        Case("numbers", kernel_arguments((3, 1), 5)(rng)),
        Case("vectors in a batch", kernel_arguments((2, 3, 4), 5, 2)(rng)),
        Case("far from all points", lonely),
        Case("far from zero, float32", kernel_arguments((3, 1), 5, at=4096.0)(rng), torch.float32),
    ]


def _constant(run: Run, case: Case) -> Problem | None:
    value = np.full_like(case.arguments["value"], 3.0)
    got = run.value(case, value=value)
    return compare(np.full_like(got, 3.0), got, slack(run, case) * 8)


def _units(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    changed = {"query": 4 * a["query"], "key": 4 * a["key"], "bandwidth": 4 * a["bandwidth"]}
    return compare(run.value(case), run.value(case, **changed), 8 * slack(run, case))


def _moved(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    home = {"query": a["query"] - 4096.0, "key": a["key"] - 4096.0}
    return compare(run.value(case, **home), run.value(case), 8 * slack(run, case))


KERNEL = Spec(
    name="kernel regression",
    statement="""kernel_regression(query, key, value, bandwidth): softmax(-|q-k|^2 / (2 s^2)) value.
query (*batch, L, d), key (*batch, S, d), value (*batch, S, dv) -> (*batch, L, dv)""",
    required=("query", "key", "value", "bandwidth"),
    reference=reference.kernel_regression,
    baseline=plain_kernel,
    cases=kernel_cases,
    checks=(
        Check(
            "far away it is still a number",
            "All kernels underflow to 0 there, and 0/0 is NaN. A softmax of the exponents is safe.",
            lambda run, case: (
                None
                if np.isfinite(run.value(case)).all()
                else Problem("finite numbers", "NaN or inf")
            ),
            when=lambda case: case.label == "far from all points",
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
            when=lambda case: case.dtype == torch.float64 and case.label != "far from all points",
        ),
        Check(
            "moving all points changes nothing",
            "Only differences count. |q|^2 - 2 q.k + |k|^2 loses them far from zero.",
            _moved,
            when=lambda case: case.label.startswith("far from zero"),
        ),
    ),
    mutants=mistakes_in(mutants, of="kernel regression"),
    chapter=2,
)


# --- Local ----------------------------------------------------------------------------------------


def local_arguments(shape: tuple[int, ...], half_width: int, gaussian: bool | None = None) -> Any:
    """A maker of arguments: scores (*batch, L, S)."""

    def make(rng: np.random.Generator) -> dict[str, Any]:
        # Whole centers without the Gaussian (local-m), real ones with it (local-p).
        centers = rng.uniform(0, shape[-1], size=shape[:-1])
        if gaussian is None:
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


def _shares(run: Run, case: Case) -> Problem | None:
    sums = run.value(case).sum(-1)
    return compare(np.ones_like(sums), sums, 16 * torch.finfo(case.dtype).eps)


def _not_shared(run: Run, case: Case) -> Problem | None:
    largest = run.value(case).sum(-1).max()
    return None if largest < 1 - 1e-6 else Problem("sums below 1", f"a sum of {largest:.4g}")


def _follows(run: Run, case: Case) -> Problem | None:
    """A step that moves no key into or out of the window must still move the weights."""
    before = run.value(case)
    after = run.value(case, centers=case.arguments["centers"] + 1e-3)
    moved = np.abs(after - before).max(-1) > 1e-6
    return compare(np.ones_like(moved), moved, 0.0)


LOCAL = Spec(
    name="local weights",
    statement="""local_weights(scores, centers, half_width, gaussian=False): a softmax over the places
s with |s - p| <= D; with gaussian=True then times exp(-(s - p)^2 / (2 (D/2)^2)).
scores (*batch, L, S), centers (*batch, L) -> (*batch, L, S)""",
    required=("scores", "centers", "half_width"),
    reference=reference.local_weights,
    baseline=LocalFormula(),
    cases=cases_of(
        ("local-m, one query", local_arguments((1, 5), 1)),
        ("local-m", local_arguments((3, 9), 2)),
        ("local-p, one query", local_arguments((1, 5), 1, True)),
        ("local-p", local_arguments((4, 9), 2, True)),
        ("local-m in a batch", local_arguments((2, 3, 7), 2)),
        ("local-p in a batch", local_arguments((2, 3, 11), 3, True)),
    ),
    checks=(
        Check(
            "the window reaches D places",
            "The places from p - D to p + D have weight, both ends included, and no others.",
            _inside,
        ),
        Check(
            "the window shares the whole",
            "Without the Gaussian the weights in the window sum to 1: cut before the softmax.",
            _shares,
            when=lambda case: case.arguments["gaussian"] is None,
        ),
        Check(
            "the Gaussian takes its part",
            "The paper multiplies and leaves it at that: the weights sum to less than 1.",
            _not_shared,
            needs=("gaussian",),
        ),
        Check(
            "the Gaussian follows the center",
            "A center is a real number: rounded, it would never learn.",
            _follows,
            needs=("gaussian",),
        ),
    ),
    mutants=mistakes_in(mutants, of="local weights"),
    chapter=2,
)

SCORING = (ADDITIVE, BILINEAR, LOCATION, CONTENT, KERNEL, LOCAL)
