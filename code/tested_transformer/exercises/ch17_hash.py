"""Exercises of chapter 17, on its page about hashing and clustering."""

from __future__ import annotations

import numpy as np
import torch

from ..specs.compare import Problem, compare
from ..specs.mistakes import mistake, mistakes
from ..specs.spec import Case, Check, Run, Spec

# --- Which keys a query reads ---------------------------------------------------------------------


def _reads_reference(buckets: np.ndarray, chunk_size: int) -> np.ndarray:
    """By lists: the sorted tokens, their chunks, and each query's candidates."""
    order = sorted(range(len(buckets)), key=lambda i: (buckets[i], i))
    reads = np.zeros((len(buckets), len(buckets)), bool)
    for place, i in enumerate(order):
        begin = place // chunk_size * chunk_size
        for j in order[max(0, begin - chunk_size) : begin + chunk_size]:
            reads[i, j] = buckets[i] == buckets[j]
    return reads


def _steps(buckets: torch.Tensor, chunk_size: int) -> torch.Tensor:
    """How many chunks key j is behind query i."""
    chunks = buckets.argsort(stable=True).argsort() // chunk_size
    return chunks[:, None] - chunks


@mistake(
    "chunks of the text",
    rejected_by="a bucket that fits into a chunk and the one before is read",
    cause="The chunks are those of the sorted tokens: near in the order of the buckets, not in the text.",
)
def _reads_of_text(buckets, chunk_size):
    chunks = torch.arange(len(buckets)) // chunk_size
    steps = chunks[:, None] - chunks
    return (steps >= 0) & (steps <= 1) & (buckets[:, None] == buckets)


@mistake(
    "no chunk before",
    rejected_by="a bucket that fits into a chunk and the one before is read",
    cause="A bucket may begin in one chunk and end in the next: a query reads the chunk before its own, too.",
)
def _reads_own_chunk(buckets, chunk_size):
    return (_steps(buckets, chunk_size) == 0) & (buckets[:, None] == buckets)


@mistake(
    "the chunk after",
    rejected_by="a bucket that fits into a chunk and the one before is read",
    cause="Key j may be in the chunk before that of query i: chunk(i) - chunk(j) is 0 or 1, not 0 or -1.",
)
def _reads_after(buckets, chunk_size):
    return _reads_own_chunk(buckets, chunk_size) | (
        (_steps(buckets, chunk_size) == -1) & (buckets[:, None] == buckets)
    )


@mistake(
    "all keys of the chunks",
    rejected_by="no key of another bucket is read",
    cause="Two chunks hold several buckets. A query reads those keys that have its own.",
)
def _reads_all(buckets, chunk_size):
    steps = _steps(buckets, chunk_size)
    return (steps >= 0) & (steps <= 1)


@mistake(
    "the whole bucket",
    rejected_by="a query reads two chunks at most",
    cause="A bucket of more than two chunks loses pairs: that is why LSH attention has a fixed cost.",
)
def _reads_bucket(buckets, chunk_size):
    return buckets[:, None] == buckets


def _reads_cases(rng: np.random.Generator) -> list[Case]:

    def case(label: str, buckets: list[int], chunk_size: int) -> Case:
        return Case(label, {"buckets": np.array(buckets), "chunk_size": chunk_size})

    return [
        case("two tokens", [0, 0], 1),
        case("the page's example", [0, 1, 0, 1, 1, 0], 2),
        case("a long bucket", [0] * 7, 2),
        case("three buckets", [2, 0, 1, 2, 0, 1, 2, 2], 3),
        case("one chunk", [1, 0, 1], 4),
        case("by chance", rng.integers(0, 3, 11).tolist(), 3),
        case("more by chance", rng.integers(0, 4, 13).tolist(), 2),
    ]


def _reads_no_other(run: Run, case: Case) -> Problem | None:
    buckets = case.arguments["buckets"]
    wrong = run.value(case).astype(bool) & (buckets[:, None] != buckets)
    return compare(np.zeros_like(wrong), wrong, 0.0, "what is read of other buckets")


def _reads_at_most(run: Run, case: Case) -> Problem | None:
    most = int(run.value(case).astype(bool).sum(-1).max())
    wanted = 2 * case.arguments["chunk_size"]
    return None if most <= wanted else Problem(f"at most {wanted} keys per query", f"{most} keys")


def _reads_fitting(run: Run, case: Case) -> Problem | None:
    """Nothing is missing that the reference reads."""
    found, expected = run.value(case).astype(bool), run.expected(case)[0]
    missing = expected & ~found
    return compare(np.zeros_like(missing), missing, 0.0, "keys that are missing")


LSH_READS = Spec(
    name="ch17.lsh_reads",
    statement="lsh_reads(buckets, chunk_size): which keys a query reads in one round of LSH attention. The tokens "
    "are sorted by bucket, then by position, and split into chunks of chunk_size; a query reads the keys of its own "
    "bucket in its own chunk and in the chunk before. buckets (L), integers -> (L, L), boolean: row i, column j "
    "is True if query i reads key j",
    required=("buckets", "chunk_size"),
    reference=_reads_reference,
    differentiable=False,
    cases=_reads_cases,
    checks=(
        Check(
            "no key of another bucket is read",
            "Compare the buckets of query and key.",
            _reads_no_other,
        ),
        Check(
            "a query reads two chunks at most",
            "Its own and the one before, however long its bucket is.",
            _reads_at_most,
        ),
        Check(
            "a bucket that fits into a chunk and the one before is read",
            "Sort first: the chunks are those of the sorted tokens. Two argsorts give each token's place.",
            _reads_fitting,
        ),
    ),
    mutants=mistakes(_reads_of_text, _reads_own_chunk, _reads_after, _reads_all, _reads_bucket),
    chapter=17,
    points=2,
)

EXERCISES = (LSH_READS,)
