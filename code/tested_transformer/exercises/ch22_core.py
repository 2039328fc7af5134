"""Exercises of chapter 22's main page: texts for a database, exact neighbors, chunked cross-attention."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from ..specs.compare import Problem, compare
from ..specs.mistakes import mistake, mistakes
from ..specs.retrieval.spec import CHUNKED, NEAREST
from ..specs.spec import Case, Check, Run, Spec

# --- Chunks and what comes after them -------------------------------------------------------------


def _texts_reference(document, chunk_size, pad_id):
    texts = []
    for begin in range(0, len(document), chunk_size):
        text = list(document[begin : begin + 2 * chunk_size])
        texts.append(text + [pad_id] * (2 * chunk_size - len(text)))
    return np.array(texts, dtype=document.dtype).reshape(-1, 2 * chunk_size)


def database_texts(document, chunk_size, pad_id):
    """Padded, then each chunk beside the next."""
    padded = functional.pad(document, (0, -len(document) % chunk_size + chunk_size), value=pad_id)
    chunks = padded.view(-1, chunk_size)
    return torch.cat((chunks[:-1], chunks[1:]), 1)


@mistake(
    "a chunk continues with itself",
    rejected_by="the second half is the next chunk",
    cause="The continuation begins where the chunk ends.",
)
def twice(document, chunk_size, pad_id):
    """The chunk, two times."""
    texts = database_texts(document, chunk_size, pad_id)
    return torch.cat((texts[:, :chunk_size],) * 2, 1)


@mistake(
    "a continuation of one token",
    rejected_by="the second half is the next chunk",
    cause="The texts overlap by a chunk: each begins one chunk, not one token, after the one before.",
)
def one_token(document, chunk_size, pad_id):
    """The continuation is shifted by one token."""
    texts = database_texts(document, chunk_size, pad_id)
    return torch.cat((texts[:, :chunk_size], texts[:, 1 : chunk_size + 1]), 1)


@mistake(
    "the end continues with the beginning",
    rejected_by="after the last chunk comes padding",
    cause="torch.roll and an index of -1 wrap around: nothing comes after a document's last chunk.",
)
def around(document, chunk_size, pad_id):
    """The next chunk of the last one is the first."""
    chunks = database_texts(document, chunk_size, pad_id)[:, :chunk_size]
    return torch.cat((chunks, chunks.roll(-1, 0)), 1)


@mistake(
    "padding is always token 0",
    rejected_by="after the last chunk comes padding",
    cause="Zeros fill what is missing. In many vocabularies token 0 is a word.",
)
def zeros(document, chunk_size, pad_id):
    """pad_id is not used."""
    return database_texts(document, chunk_size, 0)


def _text_cases(rng: np.random.Generator) -> list[Case]:
    sizes = {
        "two chunks": (4, 2), "a rest of one token": (7, 3), "one chunk": (3, 3),
        "less than a chunk": (2, 5), "chunks of two": (9, 2),
    }  # fmt: skip
    return [
        Case(label, {"document": rng.integers(1, 20, length), "chunk_size": size, "pad_id": 33})
        for label, (length, size) in sizes.items()
    ]


def _next_chunk(run: Run, case: Case) -> Problem | None:
    """The document's own tokens in the second halves; what is padding there is asked of the last text."""
    size, expected = case.arguments["chunk_size"], run.expected(case)[0]
    own = expected != case.arguments["pad_id"]
    got = np.where(own, run.value(case), case.arguments["pad_id"])
    return compare(expected[:-1, size:], got[:-1, size:], 0.0, "second halves but for the last")


def _padding(run: Run, case: Case) -> Problem | None:
    got, expected = run.value(case)[-1], run.expected(case)[0][-1]
    return compare(expected, got, 0.0, "the last text")


TEXTS = Spec(
    name="ch22.database_texts",
    statement="database_texts(document, chunk_size, pad_id): for each chunk of a document the chunk and the chunk "
    "after it, with pad_id where the document has ended. document (L,), integers -> (S, 2 chunk_size), S chunks, the "
    "last of which may be filled up with pad_id",
    required=("document", "chunk_size", "pad_id"),
    reference=_texts_reference,
    baseline=database_texts,
    differentiable=False,
    cases=_text_cases,
    checks=(
        Check(
            "the second half is the next chunk",
            "What a chunk continues with is what the model may need to predict.",
            _next_chunk,
            when=lambda case: len(case.arguments["document"]) > case.arguments["chunk_size"] + 1,
        ),
        Check(
            "after the last chunk comes padding",
            "Nothing of the document comes after its end.",
            _padding,
        ),
    ),
    mutants=mistakes(twice, one_token, around, zeros),
    chapter=22,
    points=1,
)

# --- Neighbors, and attention to them -------------------------------------------------------------

NEIGHBORS = NEAREST.narrowed(
    lambda case: (
        not case.is_empty
        and case.arguments["num_neighbors"] <= len(case.arguments["keys"])
        and case.arguments.get("allowed") is None
    ),
    name="ch22.nearest_neighbors",
    statement="nearest_neighbors(queries, keys, num_neighbors): for each query the numbers of the keys at the smallest "
    "Euclidean distance, the nearest first and of equal ones the first first. queries (Q, d), keys (S, d) -> integers "
    "(Q, num_neighbors)",
    mutants=[
        mutant
        for mutant in NEAREST.mutants
        if mutant.name in ("the farthest keys", "the largest dot product as the distance")
    ],
    points=1,
)

CHUNKED_ATTENTION = CHUNKED.narrowed(
    lambda case: not case.is_empty and "mask" not in case.arguments,
    name="ch22.chunked_cross_attention",
    statement="chunked_cross_attention(query, key, value, chunk_size): token t attends to the neighbors of chunk "
    "(t + 1) // chunk_size - 1; the first chunk_size - 1 tokens get zeros. query (B, H, L, d), key (B, H, N, R, d), "
    "value (B, H, N, R, dv), N = L // chunk_size -> (B, H, L, dv)",
    required=("query", "key", "value", "chunk_size"),
    mutants=[m for m in CHUNKED.mutants if m.name != "padding of the neighbors is read"],
    points=3,
)

EXERCISES = (TEXTS, NEIGHBORS, CHUNKED_ATTENTION)
