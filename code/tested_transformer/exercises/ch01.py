"""Exercises of chapter 1: self-attention."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import reference
from ..data.number_words import german_words
from ..errors import argument_error
from ..specs.attention.spec import narrowed
from ..specs.compare import Problem, compare
from ..specs.mistakes import mistake, mistakes
from ..specs.self_attention.spec import SELF_ATTENTION
from ..specs.spec import EQUAL, SHAPE, Case, Check, Run, Spec, finite

# --- 1.1: the weights of one query ----------------------------------------------------------------


def _weights(query, key):
    products = [reference.dot(query, row) for row in key]
    scale = query.dtype.type(len(query)) ** query.dtype.type(-0.5)
    return reference.softmax(np.array(products) * scale)


def _weight_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, keys, d, dtype=torch.float64, spread=1.0) -> Case:
        query = spread * rng.normal(size=d)
        return Case(label, {"query": query, "key": spread * rng.normal(size=(keys, d))}, dtype)

    return [
        case("two keys", 2, 3),
        case("one key", 1, 2),
        case("five keys", 5, 4),
        case("nine keys in float32", 9, 6, torch.float32),
        case("scores in the thousands", 6, 3, spread=40.0),
        case("one number", 3, 1),
        case("scores above 88 in float32", 6, 3, torch.float32, spread=20.0),
        case("scores above 11 in float16", 6, 3, torch.float16, spread=6.0),
        case("bfloat16", 4, 5, torch.bfloat16),
        case("past 512 keys", 600, 2),
    ]


def _sums_to_one(run: Run, case: Case) -> Problem | None:
    weights = run.value(case)
    if weights.min() < 0:
        return Problem("weights of at least 0", f"a weight of {weights.min():.4g}")
    slack = len(weights) * run.expected(case)[1]  # that of each weight
    return compare(np.ones(1), weights.sum(keepdims=True), slack)


def plain_weights(query: Tensor, key: Tensor) -> Tensor:
    """The baseline: of the right answers the one that rounds the most."""
    scores = key @ query * len(query) ** -0.5
    return torch.exp(scores - scores.logsumexp(0))


@mistake(
    "the scores as they are",
    rejected_by="the weights share out 1",
    cause="The softmax is missing.",
)
def scores_as_they_are(query, key):
    return key @ query * len(query) ** -0.5


@mistake(
    "scores divided by their sum",
    rejected_by="the weights share out 1",
    cause="Division makes a sum of 1, not a distribution: that takes the exponential.",
)
def scores_divided_by_their_sum(query, key):
    return (key @ query) / (key @ query).sum()


@mistake(
    "weights without the scale",
    rejected_by="equals the reference",
    cause="The scores are not divided by sqrt(d).",
)
def weights_without_the_scale(query, key):
    return torch.softmax(key @ query, dim=0)


@mistake(
    "scaled by the number of keys",
    rejected_by="equals the reference",
    cause="1/sqrt(S) with S keys, where d is the dimension of the query.",
)
def scaled_by_the_number_of_keys(query, key):
    return torch.softmax(key @ query * len(key) ** -0.5, dim=0)


@mistake(
    "an exponential that overflows",
    rejected_by="no overflow",
    cause="The largest score is not subtracted first.",
)
def exponential_that_overflows(query, key):
    return (s := (key @ query * len(query) ** -0.5).exp()) / s.sum()


WEIGHTS = Spec(
    name="ch01.weights",
    statement="weights(query, key): query (d), key (S, d) -> the S attention weights of the query",
    required=("query", "key"),
    reference=_weights,
    baseline=plain_weights,
    cases=_weight_cases,
    checks=(
        Check(
            "no overflow",
            "The exponential overflows: torch.softmax subtracts the largest score first.",
            finite,
        ),
        Check("the weights share out 1", "None is negative and together they are 1.", _sums_to_one),
    ),
    mutants=mistakes(
        scores_as_they_are, scores_divided_by_their_sum, weights_without_the_scale,
        scaled_by_the_number_of_keys, exponential_that_overflows
    ),
    chapter=1,
    points=2,
)  # fmt: skip

# --- 1.2: attention -------------------------------------------------------------------------------

TYPICAL = {
    "no softmax",
    "softmax over the queries",
    "K.T with a batch",
    "keys ask and queries answer",
    "softmax without the maximum",
    "no scale",
    "softmax before the scale",
    "the caller's query scaled",
}
ATTENTION = narrowed(
    "ch01.attention",
    "attention(query, key, value) = softmax(query key^T / sqrt(d)) value, with or without batch",
    chapter=1,
    points=3,
)
ATTENTION = replace(ATTENTION, mutants=[m for m in ATTENTION.mutants if m.name in TYPICAL])

# --- 1.3: self-attention for a batch --------------------------------------------------------------

SELF = SELF_ATTENTION.narrowed(
    lambda case: not any(case.arguments.get(name) for name in SELF_ATTENTION.of_modules),
    name="ch01.self_attention",
    mutants=tuple(m for m in SELF_ATTENTION.mutants if not isinstance(m.candidate, type)),
    points=3,
)

# --- 1.4: matrices that look at the right neighbor ------------------------------------------------


def _looked_at(answer: Any, arguments: dict[str, Any]) -> np.ndarray:
    """True where a token but the last gives more than 0.99. Shape (length - 1, length)."""
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        raise argument_error(
            TypeError, "the answer", type(answer).__name__, "a pair (w_query, w_key)"
        )
    length = arguments["length"]
    w_query, w_key = (torch.as_tensor(matrix).double() for matrix in answer)
    wanted = f"two matrices of shape ({length}, d)"
    for matrix in (w_query, w_key):
        if matrix.ndim != 2 or matrix.shape != (length, w_query.shape[-1]):
            raise argument_error(ValueError, "the answer", f"shape {tuple(matrix.shape)}", wanted)
    scores = w_query @ w_key.T * w_query.shape[1] ** -0.5  # x is the identity
    return (torch.softmax(scores, dim=-1)[:-1] > 0.99).numpy()


def _decided(run: Run, case: Case) -> Problem | None:
    wavering = np.flatnonzero(~run.value(case).any(-1))
    if not len(wavering):
        return None
    return Problem("one weight above 0.99 for each token", f"none for token {wavering[0]}")


def _right(length: int) -> np.ndarray:
    return np.eye(length, k=1, dtype=bool)[:-1]


def shift(length: int, by: int = 1, score: float = 20.0) -> tuple[Tensor, Tensor]:
    """Queries that ask for the position `by` steps to the right, which gets this score."""
    return score * length**0.5 * torch.eye(length).roll(by, dims=1), torch.eye(length)


@mistake(
    "each token looks at itself",
    rejected_by="equals the reference",
    cause="The two matrices are the same up to a factor: a position matches itself.",
)
def each_token_looks_at_itself(length):
    return shift(length, 0)


@mistake(
    "each token looks left",
    rejected_by="equals the reference",
    cause="The shift goes the wrong way, or stands in the keys in place of the queries.",
)
def each_token_looks_left(length):
    return shift(length, -1)


@mistake(
    "too timid a score",
    rejected_by="each token decides",
    cause="Scores of 1 or less: the softmax needs a lead of ln(99 x (length - 1)).",
)
def too_timid_a_score(length):
    return shift(length, 1, 1.0)


LOOK_RIGHT = Spec(
    name="ch01.look_right",
    statement="""look_right(length): two matrices (w_query, w_key), each (length, d), d being
your choice. With x the identity matrix (token i is the one-hot vector of position i), each token
but the last must give its right neighbor a weight above 0.99.""",
    required=("length",),
    reference=_right,
    cases=lambda rng: [Case(f"{n} tokens", {"length": n}) for n in (2, 3, 5, 8, 16, 40)],
    read=_looked_at,
    usual=(SHAPE,),
    checks=(
        Check(
            "each token decides",
            "A token spreads its weight. Larger scores make a sharper softmax: mind sqrt(d).",
            _decided,
        ),
        replace(EQUAL, explain="A token gives its weight to another than its right neighbor."),
    ),
    mutants=mistakes(each_token_looks_at_itself, each_token_looks_left, too_timid_a_score),
    chapter=1,
    points=3,
)  # fmt: skip

# --- 1.5: two numbers, one bag of morphemes -------------------------------------------------------


def morphemes(number: int) -> list[str]:
    """The German number word in pieces, the tens whole."""
    return german_words(number, segmentation="coarse")


def _check_number(answer: Any) -> int:
    if isinstance(answer, bool) or not isinstance(answer, int):
        raise argument_error(TypeError, "the answer", type(answer).__name__, "an int")
    if not 200 <= answer <= 999 or answer // 10 % 10 == 1:
        raise argument_error(ValueError, "the answer", answer, "200 to 999, tens digit not 1")
    return answer


def _another(run: Run, case: Case) -> Problem | None:
    number = case.arguments["number"]
    same = int(run.value(case)) == number
    return Problem("another number", f"{number} again") if same else None


def _same_bag(run: Run, case: Case) -> Problem | None:
    wanted, got = (morphemes(n) for n in (case.arguments["number"], int(run.value(case))))
    if Counter(wanted) == Counter(got):
        return None
    return Problem(" ".join(sorted(wanted)), " ".join(sorted(got)))


@mistake(
    "the number itself",
    rejected_by="another number",
    cause="Nothing was exchanged.",
)
def number_itself(number):
    return number


@mistake(
    "units and tens exchanged",
    rejected_by="the same morphemes",
    cause="A tens word is one piece: its digit cannot move. The other two can.",
)
def units_and_tens_exchanged(number):
    return number // 100 * 100 + number % 10 * 10 + number // 10 % 10


@mistake(
    "the next number",
    rejected_by="the same morphemes",
    cause="Order, not size, is what may change.",
)
def next_number(number):
    return number + 1


SAME_BAG = Spec(
    name="ch01.same_bag",
    statement="""same_bag(number): another number whose German word has the same morphemes, in
another order. number is from 200 to 999, its tens digit is not 1, and its hundreds and units digits
are two different digits from 2 to 9. 203 is zwei hundert drei.""",
    required=("number",),
    reference=lambda number: number % 10 * 100 + number // 10 % 10 * 10 + number // 100,
    cases=lambda rng: [Case(f"the number {n}", {"number": n}) for n in (203, 324, 705, 986, 452)],
    read=lambda answer, arguments: _check_number(answer),
    usual=(),
    checks=(
        Check("another number", "The answer must differ from the number given.", _another),
        Check(
            "the same morphemes",
            "Both words must be made of the same pieces, each as often.",
            _same_bag,
        ),
    ),
    mutants=mistakes(number_itself, units_and_tens_exchanged, next_number),
    chapter=1,
    points=2,
)  # fmt: skip

EXERCISES = (
    WEIGHTS,
    ATTENTION,
    SELF,
    LOOK_RIGHT,
    SAME_BAG,
)
