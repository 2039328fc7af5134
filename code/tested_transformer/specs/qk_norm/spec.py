"""The Spec of QK-norm: the scores of queries and keys that were normalized, then rotated."""

from __future__ import annotations

import numpy as np
import torch

from ... import reference
from ..compare import Problem, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants


def _qk_reference(query, key, query_scale, key_scale, position_ids):
    query, key = reference.rms_norm(query, query_scale), reference.rms_norm(key, key_scale)
    query, key = (reference.apply_rotary(x, position_ids, layout="halves") for x in (query, key))
    scores = np.zeros((*query.shape[:-1], key.shape[-2]), query.dtype)
    for b, h, i, j in np.ndindex(scores.shape):
        scores[b, h, i, j] = sum(query[b, h, i] * key[b, h, j]) / np.sqrt(
            query.dtype.type(query.shape[-1])
        )
    return scores


def _qk_case(rng, label, batch, heads, length, d, *, first=0, dtype=torch.float64) -> Case:
    shape = (batch, heads, length, d)
    arguments = {
        "query": rng.normal(size=shape) * rng.uniform(1, 3, (batch, heads, length, 1)),
        "key": rng.normal(size=shape) * rng.uniform(1, 3, (batch, heads, length, 1)),
        "query_scale": rng.uniform(0.5, 2.0, d), "key_scale": rng.uniform(0.5, 2.0, d),
        "position_ids": np.arange(first, first + length),
    }  # fmt: skip
    return Case(label, arguments, dtype)


def _qk_cases(rng: np.random.Generator) -> list[Case]:
    return [
        _qk_case(rng, "one pair, three tokens", 1, 2, 3, 2),
        _qk_case(rng, "two heads", 1, 2, 3, 4),
        _qk_case(rng, "a batch", 2, 3, 5, 6, first=4),
        _qk_case(rng, "as many tokens as features", 2, 2, 4, 4, first=100),
        _qk_case(rng, "float32", 2, 3, 4, 8, dtype=torch.float32),
    ]


def _qk_by_chance(draw: Draw) -> Case:
    sizes = draw.one_of(1, 2), draw.one_of(2, 3), draw.one_of(4, 2), draw.one_of(4, 2, 8)
    return _qk_case(draw.numbers, "drawn", *sizes, first=draw.one_of(0, 30))


def _qk_distance(run: Run, case: Case) -> Problem | None:
    later = run.value(case, position_ids=case.arguments["position_ids"] + 17)
    slack = 20 * run.expected(case)[1]
    return unchanged(
        run.value(case), later, slack, "all tokens stand 17 positions later", "a score"
    )


def _qk_norms(run: Run, case: Case) -> Problem | None:
    changes = {"query": 7.0 * case.arguments["query"], "key": 5.0 * case.arguments["key"]}
    slack = 2 * run.expected(case)[1] + 1e-5 * np.abs(run.value(case)).max()  # eps in the root
    return unchanged(
        run.value(case), run.value(case, **changes), slack,
        "queries are 7 times and keys 5 times as large", "a score",
    )  # fmt: skip


def _qk_heads(run: Run, case: Case) -> Problem | None:
    query = case.arguments["query"].copy()
    query[:, 0] *= 7.0
    slack = 2 * run.expected(case)[1] + 1e-5 * np.abs(run.value(case)).max()
    return unchanged(
        run.value(case)[:, 1:], run.value(case, query=query)[:, 1:], slack,
        "head 0's queries are 7 times as large", "a score of another head",
    )  # fmt: skip


def _far_from_zero(case: Case) -> bool:
    """No query or key is so small that eps matters."""
    smallest = min(
        float(np.square(case.arguments[name]).mean(-1).min()) for name in ("query", "key")
    )
    return case.dtype == torch.float64 and smallest > 0.1


QK_NORM_SCORES = Spec(
    name="qk_norm_scores",
    statement="qk_norm_scores(query, key, query_scale, key_scale, position_ids): the scores of Qwen3's "
    "attention. Each query and key gets an RMSNorm over its d features (eps 1e-6, one scale (d) for all "
    "heads), then rotary positions in halves (base 10,000), then the dot product over sqrt(d). query, key "
    "(B, H, L, d), scales (d), position_ids (L) -> (B, H, L, L)",
    required=("query", "key", "query_scale", "key_scale", "position_ids"),
    reference=_qk_reference,
    baseline=mutants.plain,
    cases=_qk_cases,
    combine=_qk_by_chance,
    num_drawn=4,
    checks=(
        Check(
            "scores depend on the distance alone",
            "Moved together, a query and a key must keep their score, whatever the scales are.",
            _qk_distance,
            when=lambda case: case.dtype == torch.float64,
        ),
        Check(
            "each head has its own norm",
            "The mean square is that of one head's d features.",
            _qk_heads,
            when=_far_from_zero,
        ),
        Check(
            "the norm of a query or key does not matter",
            "After the norm only the direction is left: scores cannot grow with the queries.",
            _qk_norms,
            when=_far_from_zero,
        ),
    ),
    mutants=mistakes_in(mutants),
    chapter=13,
)
