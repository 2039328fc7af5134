"""The Specs of clustered attention, plain and improved."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ... import reference
from ..checks import any_dtype, larger, transposed
from ..compare import Problem, compare, unchanged
from ..draw import Draw, attempts
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants

NAMES = ("query", "key", "value", "clusters")
GAP = 0.02  # between the scores of the last top key and the next one, for every centroid


def _arguments(
    rng: np.random.Generator, batch, heads, lengths, widths, num_clusters, **options: Any
) -> dict[str, Any]:
    """Sizes: (L, S), (d, dv). Clusters are drawn: what attention does with them is the same for any."""
    made: dict[str, Any] = {"clusters": rng.integers(0, num_clusters, (batch, heads, lengths[0]))}
    if "query_mask" in options:
        made["clusters"][
            np.broadcast_to(~options.pop("query_mask")[:, None], made["clusters"].shape)
        ] = -1
    shapes = ((lengths[0], widths[0]), (lengths[1], widths[0]), (lengths[1], widths[1]))
    for _ in attempts():
        for name, shape in zip(NAMES, shapes, strict=False):
            made[name] = rng.normal(size=(batch, heads, *shape))
        if _is_clear(**made, **options):
            return {name: made[name] for name in NAMES} | options


def _is_clear(query, key, clusters, num_keys=0, key_mask=None, **_: Any) -> bool:
    """Whether rounding cannot change which keys are a centroid's top keys."""
    if not 0 < num_keys < key.shape[2]:
        return True
    for b, h, c in np.ndindex(*clusters.shape[:2], clusters.max(initial=-1) + 1):
        members = query[b, h, clusters[b, h] == c]
        scores = key[b, h] @ members.mean(0) if len(members) else np.array([])
        scores = np.sort(scores if key_mask is None or not len(scores) else scores[key_mask[b]])[
            ::-1
        ]
        if len(scores) > num_keys and scores[num_keys - 1] < scores[num_keys] + GAP:
            return False
    return True


def _case_of(rng: np.random.Generator, **common: Any) -> Any:

    def case(label, *sizes, dtype=torch.float64, **options) -> Case:
        return Case(label, _arguments(rng, *sizes, **common, **options), dtype)

    return case


SMALL = (2, 2, (6, 5), (4, 3), 3)
KEYS = np.array([[True] * 5, [True, True, False, True, False]])
QUERIES = np.array([[True, True, True, True, False, False], [False] + [True] * 5])


def _cases(rng: np.random.Generator) -> list[Case]:
    case = _case_of(rng)
    return [
        case("one query, one key", 1, 1, (1, 1), (2, 3), 1),
        case("three queries, one cluster", 1, 2, (3, 4), (3, 2), 1),
        case("six queries, three clusters", *SMALL),
        case("padded keys", *SMALL, key_mask=KEYS),
        case("padded queries", *SMALL, query_mask=QUERIES),
        case("no key at all", *SMALL, key_mask=KEYS & np.array([[True], [False]])),
        case("padding, and a scale of its own", *SMALL, key_mask=KEYS, scale=0.3),
        larger(case("float32", *SMALL, dtype=torch.float32), key=100.0),
        Case("transposed tensors", transposed(_arguments(rng, *SMALL))),
        case("no queries", 2, 2, (0, 3), (3, 2), 2),
    ]


def _improved_cases(rng: np.random.Generator) -> list[Case]:
    case = _case_of(rng, num_keys=2)
    return [
        case("one query, one key", 1, 1, (1, 1), (2, 3), 1),
        case("three queries, one cluster", 1, 2, (3, 4), (3, 2), 1),
        case("six queries, three clusters", *SMALL),
        case("padded keys", *SMALL, key_mask=KEYS),
        case("fewer keys than wanted", *SMALL, key_mask=KEYS & (np.arange(5) < 1)),
        case("padded queries", *SMALL, query_mask=QUERIES),
        case("padding, and a scale of its own", *SMALL, key_mask=KEYS, scale=0.3),
        Case("one top key", _arguments(rng, *SMALL, num_keys=1)),
        Case("all keys", _arguments(rng, *SMALL, num_keys=9)),
        larger(case("float32", *SMALL, dtype=torch.float32), key=100.0),
        Case("transposed tensors", transposed(_arguments(rng, *SMALL, num_keys=2))),
        case("no queries", 2, 2, (0, 3), (3, 2), 2),
    ]


def _by_chance(draw: Draw, **options: Any) -> Case:
    batch, lengths = draw.one_of(1, 2), (draw.one_of(4, 1, 7), draw.one_of(5, 1, 3, 8))
    sizes = (batch, draw.one_of(2, 1), lengths, (draw.one_of(4, 1, 3), draw.one_of(3, 1)))
    for name, length in (("query_mask", lengths[0]), ("key_mask", lengths[1])):
        if draw.one_of(False, True):
            options[name] = draw.numbers.random((batch, length)) < 0.7
    arguments = _arguments(draw.numbers, *sizes, draw.one_of(2, 1, 4), **options)
    return Case("sizes by chance", arguments, any_dtype(draw))


def _improved_by_chance(draw: Draw) -> Case:
    return _by_chance(draw, num_keys=draw.one_of(2, 1, 3, 9))


def _weights(run: Run, case: Case, **changes: Any) -> tuple[np.ndarray, np.ndarray, float]:
    """The attention weights, (B, H, L, S): the reference's, the candidate's, and a tolerance.

    They are the outputs where each value names its key.
    """
    total = case.arguments["key"].shape[2]
    names = np.broadcast_to(np.eye(total), (*case.arguments["key"].shape[:3], total)).copy()
    expected, slack = run.expected(case, value=names, **changes)
    return expected, run.value(case, value=names, **changes), slack


def _padding(run: Run, case: Case) -> Problem | None:
    """Other keys and values where the mask is False."""
    real = case.arguments["key_mask"][:, None, :, None]
    changed = {name: np.where(real, case.arguments[name], 3.0) for name in ("key", "value")}
    slack = run.expected(case)[1] + run.expected(case, **changed)[1]
    before, after = run.value(case), run.value(case, **changed)
    return unchanged(before, after, slack, "padding has other keys and values")


def _outside(run: Run, case: Case) -> Problem | None:
    """Other queries where there is no cluster; they return 0 themselves."""
    inside = case.arguments["clusters"][..., None] >= 0
    changed = {"query": np.where(inside, case.arguments["query"], 3.0)}
    slack = run.expected(case)[1] + run.expected(case, **changed)[1]
    after = run.value(case, **changed)
    found = np.where(inside, 0.0, after)
    return unchanged(
        run.value(case), after, slack, "a query of cluster -1 changes"
    ) or compare(np.zeros_like(found), found, 0.0, "the output of a query of cluster -1")  # fmt: skip


def _equal_queries(run: Run, case: Case) -> Problem | None:
    query = case.arguments["query"]
    same = np.broadcast_to(query[:, :, :1], query.shape).copy()
    (expected, slack), got = run.expected(case, query=same), run.value(case, query=same)
    return compare(expected, got, slack, "with one query for all, the output")


def _own_clusters(run: Run, case: Case) -> Problem | None:
    """All queries of the first head in one cluster: the other heads stay."""
    clusters = case.arguments["clusters"].copy()
    clusters[:, 0] = np.minimum(clusters[:, 0], 0)
    before, after = run.value(case)[:, 1:], run.value(case, clusters=clusters)[:, 1:]
    slack = run.expected(case)[1] + run.expected(case, clusters=clusters)[1]
    return unchanged(
        before, after, slack, "the clusters of the first head change", "another head's output"
    )


def _sums(run: Run, case: Case) -> Problem | None:
    expected, got, slack = _weights(run, case)
    return compare(
        expected.sum(-1), got.sum(-1), slack * expected.shape[-1], "the sum of the weights"
    )


def _others(run: Run, case: Case) -> Problem | None:
    """Outside the top keys the weights of a cluster are equal, and the reference's."""
    expected, got, slack = _weights(run, case)
    plain = {name: case.arrays()[name] for name in ("query", "key", "clusters")}
    options = {n: a for n, a in case.arrays().items() if n in ("key_mask", "scale")}
    eye = np.broadcast_to(np.eye(got.shape[-1]), (*case.arguments["key"].shape[:3], got.shape[-1]))
    weights = reference.clustered_attention(**plain, value=eye.copy(), **options)
    kept = np.argsort(np.argsort(-weights, -1, kind="stable"), -1) >= case.arguments["num_keys"]
    return compare(
        np.where(kept, expected, 0), np.where(kept, got, 0), slack, "the weights of the other keys"
    )


def _all_keys(run: Run, case: Case) -> Problem | None:
    every = case.arguments["key"].shape[2]
    (expected, slack), got = run.expected(case, num_keys=every), run.value(case, num_keys=every)
    return compare(expected, got, slack, "with all keys at the top, the output")


def _not_empty(case: Case) -> bool:
    return not case.is_empty


PADDING = Check(
    "padding is not read",
    "A key that is padding has a score of -inf, for the centroid and for each query.",
    _padding,
    needs=("key_mask",),
    when=_not_empty,
)
OUTSIDE = Check(
    "a query without a cluster changes nothing",
    "Cluster -1 is no cluster: such a query is in no mean, and returns 0.",
    _outside,
    when=lambda case: _not_empty(case) and (case.arguments["clusters"] < 0).any(),
)
OWN_CLUSTERS = Check(
    "a head has clusters of its own",
    "clusters has an axis of heads.",
    _own_clusters,
    when=lambda case: _not_empty(case) and case.arguments["query"].shape[1] > 1,
)
STATEMENT = (
    "scale is 1 / sqrt(d) by default; key_mask (B, S) is False for padding; a query of cluster -1 is in no "
    "cluster and returns 0. query (B, H, L, d), key (B, H, S, d), value (B, H, S, dv), clusters (B, H, L) -> "
    "(B, H, L, dv)"
)

CLUSTERED_ATTENTION = Spec(
    name="clustered_attention",
    statement="clustered_attention(query, key, value, clusters, *, key_mask, scale) -> output: the mean of the "
    f"queries of a cluster attends to the keys, and all its queries return its output. {STATEMENT}",
    required=NAMES,
    reference=reference.clustered_attention,
    baseline=mutants.ClusteredFormula(),
    cases=_cases,
    combine=_by_chance,
    num_drawn=5,
    checks=(
        PADDING,
        OUTSIDE,
        Check(
            "equal queries attend as one of them",
            "The centroid is the mean: where all queries of a cluster are equal, it is that query.",
            _equal_queries,
            when=_not_empty,
        ),
        OWN_CLUSTERS,
    ),
    mutants=mistakes_in(mutants, of="clustered_attention"),
    chapter=17,
)

IMPROVED_CLUSTERED_ATTENTION = Spec(
    name="improved_clustered_attention",
    statement="improved_clustered_attention(query, key, value, clusters, num_keys, *, key_mask, scale) -> output: "
    "as clustered attention. But the num_keys keys of the largest weights of a centroid get, together, the weight "
    f"that the centroid gives them, divided by a softmax of each query's own scores with them. {STATEMENT}",
    required=(*NAMES, "num_keys"),
    reference=reference.improved_clustered_attention,
    baseline=mutants.ClusteredFormula(),
    build=lambda candidate, arguments: (
        lambda query, key, value, clusters, num_keys, **options: candidate(
            query, key, value, clusters, num_keys=num_keys, **options
        )
    ),
    cases=_improved_cases,
    combine=_improved_by_chance,
    num_drawn=5,
    checks=(
        PADDING,
        OUTSIDE,
        Check(
            "the weights of a query sum to 1",
            "The exact weights share out what the centroid gave the top keys, and replace it.",
            _sums,
            when=_not_empty,
        ),
        Check(
            "other keys keep the weights of the centroid",
            "Keys outside the top ones are still read, by the centroid's weights.",
            _others,
            when=_not_empty,
        ),
        Check(
            "with all keys at the top it is full attention",
            "The exact weights are each query's own, computed with its own scores.",
            _all_keys,
            when=_not_empty,
        ),
        OWN_CLUSTERS,
    ),
    mutants=mistakes_in(mutants, of="improved_clustered_attention"),
    chapter=17,
)
