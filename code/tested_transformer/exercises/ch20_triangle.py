"""The exercise of chapter 20 on its page about the impossible triangle: what a published factor of memory compares."""

from __future__ import annotations

import numpy as np

from ..specs.compare import Problem, compare
from ..specs.mistakes import mistake, mistakes
from ..specs.spec import Case, Check, Run, Spec

SIZES = ("weights", "per_token", "state", "length", "batch")


def _reference(weights: int, per_token: int, state: int, length: int, batch: int) -> np.ndarray:
    """Text by text: each has a cache of its own, or a state of its own."""
    with_caches = weights + sum(length * per_token for _ in range(batch))
    with_states = weights + sum(state for _ in range(batch))
    return np.asarray(with_caches / with_states)


@mistake(
    "caches and states without the weights",
    rejected_by="without any text both need the weights alone",
    cause="Both models keep their weights in memory as well, once.",
)
def no_weights(weights, per_token, state, length, batch):
    """The quotient of what grows."""
    return length * per_token * max(batch, 1) / (state * max(batch, 1))


@mistake(
    "weights for each text",
    rejected_by="a large batch hides the weights",
    cause="A batch shares the weights: they count once.",
)
def weights_for_each(weights, per_token, state, length, batch):
    """As if each text had a model of its own: the batch cancels."""
    return 1.0 if batch == 0 else (weights + length * per_token) / (weights + state)


@mistake(
    "one state for the whole batch",
    rejected_by="a cache as large as the state makes no difference",
    cause="Each text of the batch has a state of its own.",
)
def one_state(weights, per_token, state, length, batch):
    """As if all texts shared it."""
    return (weights + batch * length * per_token) / (weights + state * min(batch, 1))


@mistake(
    "a state for each token",
    rejected_by="a cache as large as the state makes no difference",
    cause="A state stands for all tokens of a text: it does not grow with the length.",
)
def state_grows(weights, per_token, state, length, batch):
    """Both grow."""
    return (weights + batch * length * per_token) / (weights + batch * length * state)


@mistake(
    "the smaller by the larger",
    rejected_by="a large batch hides the weights",
    cause="Asked for is how many times as much memory the caches take: divide by the model with a state.",
)
def inverse(weights, per_token, state, length, batch):
    """Below 1 for long texts."""
    return (weights + batch * state) / (weights + batch * length * per_token)


def _cases(rng: np.random.Generator) -> list[Case]:
    sizes = [(13_400_000_000, 524_288, 134_217_728, 8192, 8), (100, 3, 12, 7, 2)]
    sizes += [tuple(int(n) for n in rng.integers(2, 40, size=5)) for _ in range(4)]
    return [Case(f"{row}", dict(zip(SIZES, row, strict=True))) for row in sizes]


def _slack(value: float) -> float:
    """A quotient of whole numbers that are exact."""
    return 4 * np.finfo(float).eps * value


def _no_text(run: Run, case: Case) -> Problem | None:
    return compare(np.asarray(1.0), run.value(case, batch=0), _slack(1), "with a batch of 0")


def _equal(run: Run, case: Case) -> Problem | None:
    state = case.arguments["length"] * case.arguments["per_token"]
    got = run.value(case, state=state)
    return compare(np.asarray(1.0), got, _slack(1), "where a state is as large as a cache")


def _large_batch(run: Run, case: Case) -> Problem | None:
    """Without weights to speak of, the factor is that of one cache and one state."""
    a = case.arguments
    wanted = a["length"] * a["per_token"] / a["state"]
    got = run.value(case, batch=10**9, weights=1)
    # the weights' 1 beside 10^9 states of at least 1: 10^-9 of either sum
    return compare(
        np.asarray(wanted), got, 2e-9 * wanted, "with 10^9 texts and weights of one byte"
    )


MEMORY_FACTOR = Spec(
    name="ch20.memory_factor",
    statement="memory_factor(weights, per_token, state, length, batch): how many times as much memory a model with "
    "caches takes as one with states, where both have the same bytes of `weights`, each of `batch` texts has `length` "
    "tokens, a cache has `per_token` bytes for each token, and a state has `state` bytes for each text",
    required=SIZES,
    reference=_reference,
    differentiable=False,
    cases=_cases,
    checks=(
        Check(
            "without any text both need the weights alone",
            "Both models have weights, and the same ones.",
            _no_text,
        ),
        Check(
            "a cache as large as the state makes no difference",
            "If length x per_token = state, both take the same memory.",
            _equal,
        ),
        Check(
            "a large batch hides the weights",
            "Weights count once; with many texts only caches and states are left.",
            _large_batch,
        ),
    ),
    mutants=mistakes(no_weights, weights_for_each, one_state, state_grows, inverse),
    chapter=20,
    points=1,
)

EXERCISES = (MEMORY_FACTOR,)
