"""The Specs of retrieval: who reads which chunk's neighbors, chunked cross-attention, exact nearest neighbors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ... import reference
from ..checks import any_dtype, larger, transposed
from ..compare import Problem, compare, unchanged
from ..draw import Draw, attempts
from ..mistakes import mistakes_in
from ..spec import AGAIN, EQUAL, GRADIENTS, Case, Check, Run, Spec
from . import mutants

# --- Which chunk a position reads -----------------------------------------------------------------


def _position_cases(rng: np.random.Generator) -> list[Case]:

    def case(label: str, positions: Any, chunk_size: int) -> Case:
        return Case(label, {"position_ids": np.asarray(positions), "chunk_size": chunk_size})

    return [
        case("two chunks of four", np.arange(8), 4),
        case("a length that chunks do not divide", np.arange(11), 3),
        case("chunks of one token", np.arange(4), 1),
        case("chunks of two", np.arange(7), 2),
        case("a text shorter than a chunk", np.arange(3), 5),
        case("one position alone", np.array(9), 5),
        case("positions in any order", 100_003 + rng.permutation(20).reshape(4, 5), 6),
        case("no positions", np.arange(0), 4),
    ]


def _positions_by_chance(draw: Draw) -> Case:
    chunk_size, length = draw.one_of(3, 1, 2, 5, 8), draw.one_of(6, 1, 9, 20)
    positions = draw.numbers.integers(0, 40, length)
    return Case("positions by chance", {"position_ids": positions, "chunk_size": chunk_size})


def _last_token(chunk: np.ndarray, chunk_size: int) -> np.ndarray:
    return (chunk + 1) * chunk_size - 1


def _nothing_early(run: Run, case: Case) -> Problem | None:
    positions, size = case.arguments["position_ids"], case.arguments["chunk_size"]
    first = positions < size - 1
    found = run.value(case)[first]
    if (found == -1).all():
        return None
    return Problem(f"-1 for positions {positions[first].tolist()}", f"{found.tolist()}")


def _knows_no_future(run: Run, case: Case) -> Problem | None:
    positions, size = case.arguments["position_ids"], case.arguments["chunk_size"]
    late = (_last_token(run.value(case), size) > positions) & (positions >= size - 1)
    if not late.any():
        return None
    place, chunk = int(positions[late].flat[0]), int(run.value(case)[late].flat[0])
    last = int(_last_token(np.array(chunk), size))
    return Problem(
        f"position {place} reads a chunk that is complete by then",
        f"chunk {chunk}, whose last token is at {last}",
    )


def _as_soon_as_possible(run: Run, case: Case) -> Problem | None:
    positions, size = case.arguments["position_ids"], case.arguments["chunk_size"]
    old = _last_token(run.value(case) + 1, size) <= positions
    if not old.any():
        return None
    place, chunk = int(positions[old].flat[0]), int(run.value(case)[old].flat[0])
    return Problem(f"position {place} reads chunk {chunk + 1}, which is complete", f"chunk {chunk}")


CHUNK_READ_BY = Spec(
    name="chunk_read_by",
    statement="chunk_read_by(position_ids, chunk_size): for each position the newest chunk whose last token is at "
    "or before it; positions and chunks count from 0, and -1 stands for none. position_ids of any shape -> integers "
    "of the same shape",
    required=("position_ids", "chunk_size"),
    reference=reference.chunk_read_by,
    baseline=mutants.newest_complete,
    cases=_position_cases,
    combine=_positions_by_chance,
    num_drawn=5,
    differentiable=False,
    checks=(
        Check(
            "no neighbor knows the future",
            "Neighbors are retrieved with all tokens of their chunk: a position before its last token must not "
            "read them.",
            _knows_no_future,
        ),
        Check(
            "nothing is read before the first chunk is complete",
            "The first m - 1 positions have no complete chunk behind them.",
            _nothing_early,
        ),
        Check(
            "neighbors are read as soon as they may be",
            "The last token of a chunk predicts the first of the next: it already reads the neighbors.",
            _as_soon_as_possible,
        ),
    ),
    mutants=mistakes_in(mutants, of="chunk_read_by"),
    chapter=22,
)

# --- Chunked cross-attention ----------------------------------------------------------------------

NAMES = ("query", "key", "value")


def _attention_arguments(rng: np.random.Generator, sizes: tuple, **options: Any) -> dict[str, Any]:
    """Sizes: B, H, L, m, R, (d, dv)."""
    batch, heads, length, chunk_size, read, (width, wide) = sizes
    count = length // chunk_size
    shapes = (
        (batch, heads, length, width), (batch, heads, count, read, width),
        (batch, heads, count, read, wide),
    )  # fmt: skip
    made = {name: rng.normal(size=shape) for name, shape in zip(NAMES, shapes, strict=True)}
    return made | {"chunk_size": chunk_size} | options


def _attention_cases(rng: np.random.Generator) -> list[Case]:

    def case(label: str, *sizes: Any, dtype: torch.dtype = torch.float64, **options: Any) -> Case:
        return Case(label, _attention_arguments(rng, sizes, **options), dtype)

    small = (2, 3, 11, 4, 5, (3, 2))
    some = rng.random((2, 2, 5)) < 0.6
    some[0, 0], some[1, 1] = [True, False, True, True, False], False  # a chunk without any neighbor
    return [
        case("one chunk of two tokens", 1, 1, 2, 2, 1, (2, 3)),
        case("two chunks of four", 1, 1, 8, 4, 3, (2, 3)),
        case("a length that chunks do not divide", *small),
        case("a token after the last chunk", 1, 2, 7, 3, 4, (2, 3)),
        case("chunks of one token", 2, 1, 4, 1, 3, (3, 2)),
        case("a text shorter than a chunk", 2, 2, 3, 5, 4, (3, 2)),
        case("one token less than a chunk", 1, 2, 4, 5, 4, (3, 2)),
        case("masked neighbors", *small, mask=some),
        case("float32", *small, dtype=torch.float32),
        Case("transposed tensors", transposed(_attention_arguments(rng, small))),
        case("no tokens", 2, 2, 0, 3, 4, (3, 2)),
    ]


def _attention_by_chance(draw: Draw) -> Case:
    sizes = (
        draw.one_of(1, 2), draw.one_of(1, 3), draw.one_of(7, 2, 5, 12), draw.one_of(3, 1, 2, 4),
        draw.one_of(3, 1, 4), (draw.one_of(3, 1, 4), draw.one_of(2, 5)),
    )  # fmt: skip
    arguments = _attention_arguments(draw.numbers, sizes)
    if draw.one_of(False, True):
        shape = (sizes[0], sizes[2] // sizes[3], sizes[4])
        arguments["mask"] = draw.numbers.random(shape) < 0.7
    return Case("sizes by chance", arguments, any_dtype(draw))


def _has_chunks(case: Case) -> bool:
    return not case.is_empty and case.arguments["key"].shape[2] > 0


def _changed_neighbors(run: Run, case: Case, chunk: int) -> tuple[np.ndarray, np.ndarray, Any]:
    """The outputs before and after the values of one chunk's neighbors grow by 1, and the tolerance."""
    value = case.arguments["value"].copy()
    value[:, :, chunk] += 1.0
    slack = run.expected(case)[1] + run.expected(case, value=value)[1]
    return run.value(case), run.value(case, value=value), slack


def _early(run: Run, case: Case) -> Problem | None:
    """The tokens before the last of a chunk do not depend on its neighbors."""
    size, last = case.arguments["chunk_size"], case.arguments["key"].shape[2] - 1
    before, after, slack = _changed_neighbors(run, case, last)
    end = (last + 1) * size - 1
    return unchanged(
        before[:, :, :end], after[:, :, :end], slack,
        f"the neighbors of chunk {last} change, whose last token is at {end}", "an earlier output",
    )  # fmt: skip


def _first(run: Run, case: Case) -> Problem | None:
    end = case.arguments["chunk_size"] - 1
    got = run.value(case)[:, :, :end]
    return compare(np.zeros_like(got), got, 0.0, f"outputs of the first {end} tokens")


def _at_the_last(run: Run, case: Case) -> Problem | None:
    """Values that are 1 for one chunk and 0 for the others name the chunk that the last token of each reads."""
    size, count = case.arguments["chunk_size"], case.arguments["key"].shape[2]
    value = np.zeros_like(case.arguments["value"])
    value[:] = np.arange(1.0, count + 1)[:, None, None]
    expected, slack = run.expected(case, value=value)
    ends = np.arange(1, count + 1) * size - 1
    got = run.value(case, value=value)[:, :, ends]
    what = "where chunk u's values are u + 1, outputs of the last tokens"
    return compare(expected[:, :, ends], got, slack, what)


def _sum_to_one(run: Run, case: Case) -> Problem | None:
    """The last token, where it is in a chunk that is not complete."""
    ones = np.ones_like(case.arguments["value"])
    expected, slack = run.expected(case, value=ones)
    got = run.value(case, value=ones)[:, :, -1]
    return compare(expected[:, :, -1], got, slack, "where all values are 1, the last output")


def _masked(run: Run, case: Case) -> Problem | None:
    mask = case.arguments["mask"][:, None, ..., None]
    changed = {
        name: np.where(mask, case.arguments[name], case.arguments[name] + 3.0)
        for name in ("key", "value")
    }
    slack = run.expected(case)[1] + run.expected(case, **changed)[1]
    return unchanged(run.value(case), run.value(case, **changed), slack, "masked neighbors change")


CHUNKED = Spec(
    name="chunked_cross_attention",
    statement="chunked_cross_attention(query, key, value, *, chunk_size, mask): token t attends to the neighbors of "
    "chunk (t + 1) // chunk_size - 1, the newest that is complete with token t; the first chunk_size - 1 tokens get "
    "zeros. mask (B, N, R): True where a neighbor's token may be read; a token that may read none gets zeros. "
    "query (B, H, L, d), key (B, H, N, R, d), value (B, H, N, R, dv), N = L // chunk_size -> (B, H, L, dv)",
    required=NAMES,
    reference=reference.chunked_cross_attention,
    baseline=mutants.ChunkedFormula(),
    cases=_attention_cases,
    combine=_attention_by_chance,
    num_drawn=5,
    checks=(
        Check(
            "neighbors are read by their last token and later ones",
            "The neighbors of a chunk are retrieved with all of its tokens: only its last token and later ones may "
            "read them.",
            _early,
            when=lambda case: _has_chunks(case) and case.arguments["key"].shape[2] > 1,
        ),
        Check(
            "the first m - 1 tokens read nothing",
            "No chunk is complete before token m - 1.",
            _first,
            when=lambda case: not case.is_empty and case.arguments["chunk_size"] > 1,
        ),
        Check(
            "masked neighbor tokens do not matter",
            "A token that is masked has weight 0.",
            _masked,
            needs=("mask",),
            when=_has_chunks,
        ),
        Check(
            "the weights sum to 1",
            "One softmax over all tokens of all neighbors of a chunk.",
            _sum_to_one,
            when=lambda case: (
                _has_chunks(case)
                and case.arguments["query"].shape[2] % case.arguments["chunk_size"] > 0
            ),
        ),
        Check(
            "the last token of a chunk reads its neighbors",
            "It predicts the first token of the next chunk, and has seen all of its own.",
            _at_the_last,
            when=_has_chunks,
        ),
    ),
    last=(EQUAL, replace(GRADIENTS, when=_has_chunks), AGAIN),  # zeros depend on nothing
    mutants=mistakes_in(mutants, of="chunked_cross_attention"),
    chapter=22,
)

# --- Nearest neighbors ----------------------------------------------------------------------------

GAP = 1e-3  # between two squared distances: rounding changes no order


def _clear(queries, keys, **_: Any) -> bool:
    distance = np.sort(((queries[:, None] - keys) ** 2).sum(-1), -1)
    return bool((np.diff(distance, axis=-1) > GAP).all())


def _neighbor_arguments(rng: np.random.Generator, sizes: tuple, **options: Any) -> dict[str, Any]:
    """Sizes: Q, S, d, k; drawn until no two keys are at nearly the same distance."""
    count, stored, width, wanted = sizes
    for _ in attempts():
        queries, keys = rng.normal(size=(count, width)), rng.normal(size=(stored, width))
        keys *= rng.uniform(0.3, 3.0, (stored, 1))  # norms that differ
        queries, keys = (
            np.round(64 * each) / 64 for each in (queries, keys)
        )  # exact, 1000 farther away
        if _clear(queries, keys):
            return {"queries": queries, "keys": keys, "num_neighbors": wanted} | options


def _neighbor_cases(rng: np.random.Generator) -> list[Case]:

    def case(label: str, *sizes: int, dtype: torch.dtype = torch.float64, **options: Any) -> Case:
        return Case(label, _neighbor_arguments(rng, sizes, **options), dtype)

    few = np.array([[True, True, True, True, True, True], [False] * 6, [False, True] * 3])
    ties = {"queries": np.zeros((1, 2)), "num_neighbors": 3}
    ties["keys"] = np.array([[0.0, 2.0], [1.0, 0.0], [0.0, -1.0], [-1.0, 0.0]])
    owners = rng.integers(0, 3, 9)
    return [
        case("one query, two keys", 1, 2, 2, 1),
        case("four queries, six keys", 4, 6, 3, 2),
        case("all of the keys", 2, 5, 4, 5),
        case("more neighbors than keys", 2, 3, 2, 5),
        Case("keys at the same distance", ties),
        case("one feature", 3, 4, 1, 2),
        case("some are not allowed", 3, 6, 3, 2, allowed=few),
        case("other documents only", 9, 9, 3, 3, allowed=owners[:, None] != owners),
        larger(
            case("float32, far away", 4, 6, 3, 2, dtype=torch.float32), queries=1000.0, keys=1000.0
        ),
        case("no queries", 0, 3, 2, 2),
    ]


def _neighbors_by_chance(draw: Draw) -> Case:
    sizes = (draw.one_of(2, 1, 4), draw.one_of(5, 1, 8), draw.one_of(2, 1, 4), draw.one_of(2, 1, 6))
    arguments = _neighbor_arguments(draw.numbers, sizes)
    if draw.one_of(False, True):
        arguments["allowed"] = draw.numbers.random(sizes[:2]) < 0.6
    return Case("sizes by chance", arguments, draw.one_of(torch.float64, torch.float32))


def _itself(run: Run, case: Case) -> Problem | None:
    keys = case.arguments["keys"]
    got = run.value(case, queries=keys.copy(), num_neighbors=1)
    return compare(
        np.arange(len(keys))[:, None], got, 0.0, "where each key is a query, the nearest"
    )


def _only_allowed(run: Run, case: Case) -> Problem | None:
    allowed, found = case.arguments["allowed"], run.value(case)
    for query, row in enumerate(found):
        bad = [int(s) for s in row if s >= 0 and not allowed[query, s]]
        if bad:
            return Problem(f"allowed keys for query {query}", f"key {bad[0]}")
    return None


def _as_many(run: Run, case: Case) -> Problem | None:
    wanted, allowed = case.arguments["num_neighbors"], case.arguments["allowed"]
    expected = np.minimum(allowed.sum(-1), wanted)
    return compare(expected, (run.value(case) >= 0).sum(-1), 0.0, "numbers of neighbors")


NEAREST = Spec(
    name="nearest_neighbors",
    statement="nearest_neighbors(queries, keys, num_neighbors, *, allowed): for each query the numbers of the keys at "
    "the smallest Euclidean distance, the nearest first and of equal ones the first first. allowed (Q, S): True "
    "where a key may be returned; where fewer may, -1 stands for none. queries (Q, d), keys (S, d) -> integers "
    "(Q, num_neighbors)",
    required=("queries", "keys", "num_neighbors"),
    reference=reference.nearest_neighbors,
    baseline=mutants.NearestFormula(),
    cases=_neighbor_cases,
    combine=_neighbors_by_chance,
    num_drawn=5,
    differentiable=False,
    checks=(
        Check(
            "a key is its own nearest neighbor",
            "Its distance to itself is 0.",
            _itself,
            when=lambda case: "allowed" not in case.arguments,
        ),
        Check(
            "what is not allowed is not returned",
            "Chunks of the same document hold the text that is to be predicted.",
            _only_allowed,
            needs=("allowed",),
        ),
        Check(
            "as many neighbors as are allowed",
            "Leave out first, then search: else keys that are not allowed take the places of others.",
            _as_many,
            needs=("allowed",),
        ),
    ),
    mutants=mistakes_in(mutants, of="nearest_neighbors"),
    chapter=22,
)
