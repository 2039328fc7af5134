"""The Specs of LSH attention: the hash, and attention among the tokens that it brings together."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ... import reference
from ..checks import any_dtype, transposed
from ..compare import Problem, brief, compare, unchanged
from ..draw import Draw, attempts
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants

# --- The hash -------------------------------------------------------------------------------------

GAP = 0.02  # between the largest number and the next one: rounding does not change the bucket


def _vectors(rng: np.random.Generator, batch, heads, length, width, rounds, half) -> dict[str, Any]:
    for _ in attempts():  # in one dimension, some rotations bring every vector near two buckets
        rotations = rng.normal(size=(heads, width, rounds, half))
        vectors = rng.normal(size=(batch, heads, length, width))
        rotated = np.einsum("bhld,hdrk->bhrlk", vectors, rotations)
        both = np.sort(np.concatenate((rotated, -rotated), -1), -1)
        if (both[..., -1] - both[..., -2] > GAP).all():
            return {"vectors": vectors, "rotations": rotations}


def _bucket_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64, **options) -> Case:
        return Case(label, _vectors(rng, *sizes) | options, dtype)

    padding = np.array([[True, True, True, False, False], [True, False, True, True, True]])
    return [
        case("one token, two buckets", 1, 1, 1, 2, 1, 1),
        case("five tokens, four buckets", 1, 2, 5, 3, 1, 2),
        case("three rounds", 2, 3, 5, 4, 3, 2),
        case("six buckets", 2, 2, 4, 5, 2, 3),
        case("padding", 2, 3, 5, 4, 2, 2, key_mask=padding),
        case("float32", 2, 2, 6, 4, 2, 2, dtype=torch.float32),
        Case("transposed tensors", transposed(_vectors(rng, 2, 3, 5, 4, 2, 2))),
        case("no tokens", 2, 2, 0, 3, 2, 2),
    ]


def _buckets_by_chance(draw: Draw) -> Case:
    batch, length = draw.one_of(1, 2), draw.one_of(4, 1, 2, 6)
    sizes = (batch, draw.one_of(2, 1, 3), length, draw.one_of(4, 1, 3, 8))
    arguments = _vectors(draw.numbers, *sizes, draw.one_of(2, 1, 3), draw.one_of(2, 1, 3))
    if draw.one_of(False, True):
        arguments["key_mask"] = draw.numbers.random((batch, length)) < 0.7
    return Case("sizes by chance", arguments, any_dtype(draw))


def _opposite(run: Run, case: Case) -> Problem | None:
    """-x has the bucket on the other side of x's."""
    half = case.arguments["rotations"].shape[-1]
    expected = (run.value(case) + half) % (2 * half)
    opposite = run.value(case, vectors=-case.arguments["vectors"])
    return compare(expected, opposite, 0.0, "the buckets of -x")


def _any_norm(run: Run, case: Case) -> Problem | None:
    before, after = run.value(case), run.value(case, vectors=4 * case.arguments["vectors"])
    return unchanged(before, after, 0.0, "the vectors are four times as long", "a bucket")


def _apart(run: Run, case: Case) -> Problem | None:
    got, half = run.value(case), case.arguments["rotations"].shape[-1]
    padding = np.broadcast_to(~case.arguments["key_mask"][:, None, None], got.shape)
    if (got[padding] == 2 * half).all() and (got[~padding] < 2 * half).all():
        return None
    return Problem(f"bucket {2 * half} for padding, and for nothing else", brief(got))


LSH_BUCKETS = Spec(
    name="lsh_buckets",
    statement="lsh_buckets(vectors, rotations, *, key_mask): for each of R rounds the argmax of [x R, -x R], "
    "where R is that head's and round's matrix of r columns: numbers from 0 to 2 r - 1. Padding, where key_mask "
    "is False, gets 2 r. vectors (B, H, L, d), rotations (H, d, R, r), key_mask (B, L) -> (B, H, R, L)",
    required=("vectors", "rotations"),
    reference=reference.lsh_buckets,
    differentiable=False,
    cases=_bucket_cases,
    combine=_buckets_by_chance,
    num_drawn=5,
    checks=(
        Check(
            "padding has a bucket of its own",
            "Give padding one more bucket, behind all others: it then comes last in the sorted order.",
            _apart,
            needs=("key_mask",),
        ),
        Check(
            "opposite vectors have opposite buckets",
            "Each axis has two buckets, one for either direction: bucket k belongs to x R, k + r to -x R.",
            _opposite,
            when=lambda case: "key_mask" not in case.arguments and not case.is_empty,
        ),
        Check(
            "the norm does not matter",
            "The hash is one of directions.",
            _any_norm,
            when=lambda case: not case.is_empty,
        ),
    ),
    mutants=mistakes_in(mutants, of="lsh_buckets"),
    chapter=17,
)

# --- Attention ------------------------------------------------------------------------------------

NAMES = ("query", "value", "buckets", "chunk_size")


def _arguments(
    rng: np.random.Generator, batch, heads, length, widths, rounds, chunk_size, most=3, **options: Any
) -> dict[str, Any]:  # fmt: skip
    """Buckets that are drawn: what LSH attention does with them does not depend on where they come from."""
    made = {
        "query": rng.normal(size=(batch, heads, length, widths[0])),
        "value": rng.normal(size=(batch, heads, length, widths[1])),
        "buckets": rng.integers(0, most, (batch, heads, rounds, length)),
        "chunk_size": chunk_size,
    }
    if "key_mask" in options:
        made["buckets"][
            np.broadcast_to(~options["key_mask"][:, None, None], made["buckets"].shape)
        ] = most
    return made | options


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64, **options) -> Case:
        return Case(label, _arguments(rng, *sizes, **options), dtype)

    small = (2, 2, 7, (4, 3), 2, 2)
    right = np.array([[True] * 7, [True] * 4 + [False] * 3])
    left = right[:, ::-1].copy()
    every = {"chunks_before": 2, "chunks_after": 1, "key_mask": right, "form": "trax"}
    return [
        case("one token", 1, 1, 1, (2, 3), 1, 2),
        case("two tokens, one bucket", 1, 1, 2, (3, 2), 1, 2, most=1),
        case("seven tokens, one round", 1, 2, 7, (3, 2), 1, 2),
        case("two rounds", *small),
        case("three rounds, chunks of three", 2, 2, 8, (4, 3), 3, 3),
        case("causal", *small, causal=True),
        case("causal, four rounds", 1, 2, 6, (4, 3), 4, 2, causal=True, most=2),
        case("a chunk ahead", *small, chunks_after=1),
        case("two chunks back", 1, 2, 9, (4, 3), 2, 2, most=1, chunks_before=2, causal=True),
        case("padding on the right", *small, key_mask=right),
        case("padding on the left, causal", *small, key_mask=left, causal=True),
        case("the form of trax", *small, form="trax"),
        case("the form of trax, causal", 1, 2, 7, (4, 3), 3, 2, form="trax", causal=True),
        case("the form of trax, padded", *small, form="trax", key_mask=right, chunks_after=1),
        case("one chunk", 2, 2, 5, (4, 3), 2, 9, most=2),
        case("float32", *small, causal=True, dtype=torch.float32),
        Case(
            "all options at once, transposed tensors", transposed(_arguments(rng, *small, **every))
        ),
        case("no tokens", 2, 2, 0, (3, 2), 2, 2),
    ]


def _by_chance(draw: Draw) -> Case:
    batch, length = draw.one_of(1, 2), draw.one_of(5, 1, 3, 8)
    sizes = (
        batch, draw.one_of(2, 1), length, (draw.one_of(4, 1, 3), draw.one_of(3, 1)),
        draw.one_of(2, 1, 3), draw.one_of(2, 1, 3, 9),
    )  # fmt: skip
    options: dict[str, Any] = {"most": draw.one_of(3, 1, 2)}
    if draw.one_of(False, True):
        options["causal"] = True
    if draw.one_of(False, True):
        options["key_mask"] = draw.numbers.random((batch, length)) < 0.7
    if draw.one_of(False, True):
        options |= {"chunks_before": draw.one_of(1, 0), "chunks_after": draw.one_of(1, 0)}
    if draw.one_of(False, True):
        options["form"] = "trax"
    return Case("sizes by chance", _arguments(draw.numbers, *sizes, **options), any_dtype(draw))


def _in_paper_form(case: Case) -> bool:
    return case.arguments.get("form", "paper") == "paper" and not case.is_empty


def _weights(run: Run, case: Case, **changes: Any) -> tuple[np.ndarray, np.ndarray, float]:
    """The attention weights, (B, H, L, L): the reference's, the candidate's, and a tolerance.

    They are the outputs where each value names its token.
    """
    length = case.arguments["query"].shape[2]
    names = np.broadcast_to(np.eye(length), (*case.arguments["query"].shape[:3], length)).copy()
    expected, slack = run.expected(case, value=names, **changes)
    return expected, run.value(case, value=names, **changes), slack


def _alone(run: Run, case: Case) -> Problem | None:
    """Where the reference reads the token itself, it reads nothing else: the weight is 1, up to rounding, or 0."""
    expected, got, slack = _weights(run, case)
    own = expected.diagonal(0, 2, 3)
    found = np.where(own > 0.5, got.diagonal(0, 2, 3), 1.0)
    return compare(
        np.ones_like(found), found, slack, "the weight of a token that reads nobody else"
    )


def _not_itself(run: Run, case: Case) -> Problem | None:
    expected, got, slack = _weights(run, case)
    found = np.where(expected.diagonal(0, 2, 3) > 0.5, 0.0, got.diagonal(0, 2, 3))
    return compare(np.zeros_like(found), found, slack, "a token's weight for itself")


def _future(run: Run, case: Case) -> Problem | None:
    """Another last token, in the same buckets: the outputs before stay."""
    last = case.arguments["query"].shape[2] - 1
    changed = {name: case.arguments[name].copy() for name in ("query", "value")}
    for each in changed.values():
        each[:, :, -1] += 1.0
    before, after = run.value(case)[:, :, :last], run.value(case, **changed)[:, :, :last]
    slack = run.expected(case)[1] + run.expected(case, **changed)[1]
    return unchanged(before, after, slack, "the last token changes", "an earlier output")


def _padding(run: Run, case: Case) -> Problem | None:
    """Other vectors and values where nothing is real."""
    real = case.arguments["key_mask"][:, None, :, None]
    changed = {name: np.where(real, case.arguments[name], 3.0) for name in ("query", "value")}
    before, after = run.value(case), run.value(case, **changed)
    slack = run.expected(case)[1] + run.expected(case, **changed)[1]
    before, after = np.where(real, before, 0), np.where(real, after, 0)
    return unchanged(before, after, slack, "padding has other vectors", "a real token's output")


def _neighbors(run: Run, case: Case) -> Problem | None:
    """Which other tokens are read when all are in one bucket, and all scores are equal."""
    one = {name: np.zeros_like(case.arguments[name]) for name in ("query", "buckets")}
    expected, got, _ = _weights(run, case, **one)
    others = ~np.eye(got.shape[-1], dtype=bool)
    return compare(
        (expected > 0) & others, (got > 0) & others, 0.0, "with one bucket, what is read"
    )


def _own_bucket(run: Run, case: Case) -> Problem | None:
    buckets = case.arguments["buckets"]
    met = (buckets[..., None] == buckets[..., None, :]).any(2)
    _, got, slack = _weights(run, case)
    found = np.where(met, 0.0, got)
    return compare(np.zeros_like(found), found, slack, "the weight of keys of other buckets")


def _equal(run: Run, case: Case) -> Problem | None:
    expected, got, slack = _weights(run, case, query=np.zeros_like(case.arguments["query"]))
    return compare(expected, got, slack, "with equal scores, the weights")


def _key_norm(run: Run, case: Case) -> Problem | None:
    """A first token of a hundred times the norm: the others' outputs stay, but for the eps of the norm."""
    query = case.arguments["query"].copy()
    query[:, :, 0] *= 100
    (expected, slack), got = run.expected(case, query=query), run.value(case, query=query)
    return compare(
        expected[:, :, 1:], got[:, :, 1:], slack, "with a longer first token, the outputs"
    )


def _not_empty(case: Case) -> bool:
    return not case.is_empty


LSH_ATTENTION = Spec(
    name="lsh_attention",
    statement="lsh_attention(query, value, buckets, chunk_size, *, chunks_before, chunks_after, causal, key_mask, "
    "form) -> output. Keys are the queries divided by the root of their mean square + 1e-6; scores are divided by "
    "sqrt(d). In each round the tokens are sorted by bucket, then by position, and split into chunks, the last one "
    "perhaps shorter; a query reads the keys of its own bucket in its chunk, in chunks_before chunks before it (1 by "
    "default) and chunks_after after it (0). Its weights are a softmax over the keys that any round finds, each once; "
    "its own score is -1e5. causal (False by default): keys up to its own position; key_mask (B, L): no padding. "
    "form='trax': keys of all buckets, each as often as the rounds find it, and the chunks of all rounds are one "
    "ring. A query without a key gets 0. query (B, H, L, d), value (B, H, L, dv), buckets (B, H, R, L) -> "
    "(B, H, L, dv)",
    required=NAMES,
    reference=reference.lsh_attention,
    baseline=mutants.LshFormula(),
    build=lambda candidate, arguments: (
        lambda query, value, buckets, chunk_size, **options: candidate(
            query, value, buckets, chunk_size=chunk_size, **options
        )
    ),
    cases=_cases,
    combine=_by_chance,
    num_drawn=5,
    checks=(
        Check(
            "a query reads its chunk and the neighbors",
            "chunks_before chunks before it and chunks_after after it; the first chunk has none before it.",
            _neighbors,
            when=lambda case: _in_paper_form(case) and "key_mask" not in case.arguments,
        ),
        Check(
            "a query reads keys of its own bucket",
            "A chunk has tokens of several buckets: keys of others are masked.",
            _own_bucket,
            when=_in_paper_form,
        ),
        Check(
            "a token does not depend on later ones",
            "The causal mask compares positions in the text, which the sorted tokens take with them.",
            _future,
            needs=("causal",),
            when=lambda case: _not_empty(case) and case.arguments["query"].shape[2] > 1,
        ),
        Check(
            "padding is not read",
            "A key that is padding has a score of -inf in every chunk.",
            _padding,
            needs=("key_mask",),
            when=_not_empty,
        ),
        Check(
            "a token that reads nobody else reads itself",
            "Its own score is low, but finite: alone in a softmax it gets all the weight.",
            _alone,
            when=_not_empty,
        ),
        Check(
            "a token that reads others does not read itself",
            "Query and key are one vector, so a token's score with itself would nearly always win.",
            _not_itself,
            when=_not_empty,
        ),
        Check(
            "equal scores have equal weights",
            "One softmax over all keys that any round finds: a key counts once, and a round in proportion to "
            "its sum of exponentials.",
            _equal,
            when=_in_paper_form,
        ),
        Check(
            "the norm of a key does not matter",
            "Keys are the queries divided by their norms, and have the norm sqrt(d) all.",
            _key_norm,
            when=_not_empty,
        ),
    ),
    mutants=mistakes_in(mutants, of="lsh_attention"),
    chapter=17,
)  # fmt: skip
