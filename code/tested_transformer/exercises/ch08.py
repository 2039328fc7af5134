"""Exercises of chapter 8: the feed-forward network."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import reference
from ..specs.checks import as_expected, varied
from ..specs.compare import Problem, compare
from ..specs.feed_forward.spec import FEED_FORWARD, SWIGLU
from ..specs.mistakes import mistake, mistakes
from ..specs.spec import SHAPE, Case, Check, Run, Spec

# --- The network ----------------------------------------------------------------------------------


_OF_ALL_ACTIVATIONS = {
    "ReLU, whatever was asked for",
    "GELU's tanh form for the exact one",
    "the exact GELU for its tanh form",
}

FUNCTION = FEED_FORWARD.narrowed(
    lambda case: not {"activation", "dropout"} & set(case.arguments),
    name="ch08.feed_forward",
    statement="feed_forward(x, w_up, b_up, w_down, b_down): relu(x w_up + b_up) "
    "w_down + b_down; x (*batch, D), w_up (D, d_ff), w_down (d_ff, D)",
    mutants=[
        mutant
        for mutant in FEED_FORWARD.mutants
        if mutant.candidate is not None
        and not isinstance(mutant.candidate, type)
        and mutant.name not in _OF_ALL_ACTIVATIONS
    ],
    points=1,
)

# --- Dead units -----------------------------------------------------------------------------------


def _dead_reference(x: np.ndarray, w_up: np.ndarray, b_up: np.ndarray) -> np.ndarray:
    """True for a unit that is above 0 for no token."""
    tokens = x.reshape(-1, x.shape[-1])
    return np.array(
        [
            all(reference.dot(token, w) + b <= 0 for token in tokens)
            for w, b in zip(w_up.T, b_up, strict=True)
        ],
        dtype=bool,
    )


@mistake(
    "silent for one token",
    rejected_by="one token keeps a unit alive",
    cause="any in place of all: silence now and then is what a ReLU is for.",
)
def silent_once(x, w_up, b_up):
    """Dead if some token leaves it silent."""
    return (x @ w_up + b_up <= 0).flatten(0, -2).any(0)


@mistake(
    "silent on average",
    rejected_by="one token keeps a unit alive",
    cause="The mean over tokens is compared with 0; the largest one decides.",
)
def silent_on_average(x, w_up, b_up):
    """Dead if the mean is not above 0."""
    return (x @ w_up + b_up).flatten(0, -2).mean(0) <= 0


@mistake(
    "only one sample asked",
    rejected_by="one token keeps a unit alive",
    cause="The batch axis is not looked at.",
)
def one_sample_asked(x, w_up, b_up):
    """Dead if the first sample leaves it silent."""
    first = x if x.ndim == 2 else x[0]
    return (first @ w_up + b_up <= 0).flatten(0, -2).all(0)


@mistake(
    "a zero taken for life",
    rejected_by="exactly 0 is silent",
    cause="< 0 in place of <= 0.",
)
def strictly_below(x, w_up, b_up):
    """Dead if all are below 0; a unit that is exactly 0 counts as alive."""
    return (x @ w_up + b_up < 0).flatten(0, -2).all(0)


def _dead_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, shape, d_ff, shift=0.0) -> Case:
        """Small whole numbers, so that exact zeros occur."""
        return Case(
            label,
            {
                "x": rng.integers(-2, 3, size=shape).astype(float),
                "w_up": rng.integers(-2, 3, size=(shape[-1], d_ff)).astype(float),
                "b_up": rng.integers(-3, 3, size=d_ff) + shift,
            },
        )

    return [
        case("one token", (1, 2), 6),
        case("two tokens", (2, 2), 12),
        case("all alive", (20, 3), 5, 9.0),
        case("all dead", (20, 3), 5, -99.0),
        case("a batch", (3, 2, 3), 40, -4.0),
        case("two batch axes", (2, 2, 3, 4), 40, -6.0),
        faint(case("hardly above 0", (5, 3), 30, -2.0)),
    ]


def faint(case: Case) -> Case:
    """The same signs, all sums smaller than 1e-11: a power of 2 is exact."""
    powers = {"x": 2.0**-20, "w_up": 2.0**-20, "b_up": 2.0**-40}
    smaller = {name: power * case.arguments[name] for name, power in powers.items()}
    return replace(case, arguments=smaller)


def _alive_are_alive(run: Run, case: Case) -> Problem | None:
    wanted, got = _dead_reference(**case.arguments), run.value(case)
    wrong = np.flatnonzero(got & ~wanted)
    return Problem(f"unit {wrong[0]} alive", "dead") if len(wrong) else None


def _dead_are_dead(run: Run, case: Case) -> Problem | None:
    wanted, got = _dead_reference(**case.arguments), run.value(case)
    wrong = np.flatnonzero(wanted & ~got)
    return Problem(f"unit {wrong[0]} dead", "alive") if len(wrong) else None


DEAD_UNITS = Spec(
    name="ch08.dead_units",
    statement="dead_units(x, w_up, b_up): boolean (d_ff), True for a ReLU unit that gives 0 "
    "for every token of x; x (*batch, L, D), w_up (D, d_ff), b_up (d_ff)",
    required=("x", "w_up", "b_up"),
    reference=_dead_reference,
    cases=_dead_cases,
    checks=(
        Check(
            "one token keeps a unit alive",
            "A unit that is above 0 for a single token of a single sample is not dead.",
            _alive_are_alive,
        ),
        Check(
            "exactly 0 is silent",
            "Where the sum is 0, ReLU gives 0 and its slope is 0: silent, like below 0.",
            _dead_are_dead,
        ),
    ),
    mutants=mistakes(silent_once, silent_on_average, one_sample_asked, strictly_below),
    chapter=8,
    points=1,
)  # fmt: skip

# --- A memory by hand -----------------------------------------------------------------------------


def _every_question(width: int) -> np.ndarray:
    return np.array(list(itertools.product((-1.0, 1.0), repeat=width)))


def _asked(answer: Any, arguments: dict[str, Any]) -> Tensor:
    """What the network with these weights says to every vector of signs."""
    w_up, b_up, w_down, b_down = answer
    questions = torch.from_numpy(_every_question(arguments["keys"].shape[1]))
    return (questions @ w_up + b_up).relu() @ w_down + b_down


def remembers(keys, values):
    """The baseline: x . k - (D - 2) is 2 for a match, and 0 or less for any other vector of signs."""
    bias = keys.new_full((len(keys),), 2.0 - keys.shape[1])
    return keys.T, bias, values / 2, 0 * values[0]


def _memory_reference(keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The value of the key that the question is, and 0 for a stranger."""
    questions = _every_question(keys.shape[1])
    output = np.zeros((len(questions), values.shape[1]), dtype=values.dtype)
    for row, question in enumerate(questions):
        for key, value in zip(keys, values, strict=True):
            if (key == question).all():
                output[row] = value
    return output


@mistake(
    "a memory without thresholds",
    rejected_by="a stranger gets nothing",
    cause="b_1 is 0; only a full match, x . k = D, may pass.",
)
def remembers_without_bias(keys, values):
    """relu(x . k) / D."""
    width = keys.shape[1]
    return keys.T, torch.zeros(len(keys)).double(), values / width, 0 * values[0]


@mistake(
    "a threshold that nothing passes",
    rejected_by="a key gets its value",
    cause="With b_1 = -D even the match gives max(0, 0).",
)
def remembers_with_bias_of_the_width(keys, values):
    """relu(x . k - D): the match itself gives 0."""
    bias = torch.full((len(keys),), -float(keys.shape[1])).double()
    return keys.T, bias, values, 0 * values[0]


@mistake(
    "a match that counts twice",
    rejected_by="a key gets its value",
    cause="x . k falls in steps of 2; with b_1 = -(D - 2) the match gives 2, not 1.",
)
def remembers_twice(keys, values):
    """relu(x . k - (D - 2)): the match gives 2."""
    bias = torch.full((len(keys),), 2.0 - keys.shape[1]).double()
    return keys.T, bias, values, 0 * values[0]


def _memory_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, number, width, depth) -> Case:
        keys = rng.permutation(_every_question(width))[:number]
        return Case(label, {"keys": keys, "values": rng.normal(size=(number, depth))})

    return [
        case("one fact", 1, 2, 1),
        case("two facts", 2, 3, 2),
        case("every question has an answer", 8, 3, 4),
        case("five facts", 5, 4, 3),
        case("twenty facts", 20, 5, 2),
    ]


def _is_key(case: Case) -> np.ndarray:
    keys = case.arguments["keys"]
    questions = _every_question(keys.shape[1])
    return (questions[:, None] == keys).all(-1).any(1)


def _silent_for_strangers(run: Run, case: Case) -> Problem | None:
    got = run.value(case)[~_is_key(case)]
    return compare(np.zeros_like(got), got, run.expected(case)[1], "the answers to strangers")


def _keys_answered(run: Run, case: Case) -> Problem | None:
    known, (expected, far) = _is_key(case), run.expected(case)
    return compare(expected[known], run.value(case)[known], far)


REMEMBER = Spec(
    name="ch08.remember",
    statement="remember(keys, values): weights (w_up, b_up, w_down, b_down) with which "
    "relu(x w_up + b_up) w_down + b_down is values[i] where x is keys[i], and 0 for every "
    "other x of signs; keys (N, D) of +1 and -1, no two alike, values (N, dv), float64",
    required=("keys", "values"),
    reference=_memory_reference,
    baseline=remembers,
    differentiable=False,  # weights may be found in many ways
    cases=_memory_cases,
    read=_asked,
    checks=(
        Check(
            "a stranger gets nothing",
            "For signs that are no key every unit must be silent.",
            _silent_for_strangers,
            when=lambda case: not _is_key(case).all(),
        ),
        Check("a key gets its value", "Where x is keys[i], the answer is values[i].", _keys_answered),
    ),
    mutants=mistakes(remembers_without_bias, remembers_with_bias_of_the_width, remembers_twice),
    chapter=8,
    points=3,
)  # fmt: skip

# --- The share of the work ------------------------------------------------------------------------


def _share_reference(length: int, d_model: int, d_ff: int) -> float:
    """2 FLOPs for each weight and token, and for each pair of tokens twice D."""
    network = 2 * length * (d_model * d_ff + d_ff * d_model)
    projections = 2 * length * 4 * d_model * d_model
    pairs = 2 * length * length * (d_model + d_model)
    return network / (network + projections + pairs)


@mistake(
    "parameters for FLOPs",
    rejected_by="longer, smaller",
    cause="The scores have no parameters, and they cost L^2 D all the same.",
)
def share_of_parameters(length, d_model, d_ff):
    """Weights, not FLOPs."""
    return d_ff / (d_ff + 2 * d_model)


@mistake(
    "attention without its projections",
    rejected_by="half at twice the width",
    cause="Four products with D x D matrices are not counted.",
)
def share_without_projections(length, d_model, d_ff):
    """Attention as scores and mixing alone."""
    return d_ff / (d_ff + length)


@mistake(
    "the mean of the values not counted",
    rejected_by="half at twice the width",
    cause="There are two products over all pairs: Q K^T, and the weights times V.",
)
def share_without_mixing(length, d_model, d_ff):
    """The scores are counted, the mean of the values is not."""
    return 2 * d_ff / (2 * d_ff + 4 * d_model + length)


@mistake(
    "the network for one token",
    rejected_by="half at twice the width",
    cause="The network runs once for each of the L tokens.",
)
def share_per_token(length, d_model, d_ff):
    """The network for one token, the attention for all."""
    return d_ff / (d_ff + length * (2 * d_model + length))


def _share_cases(rng: np.random.Generator) -> list[Case]:
    sizes = [(1, 2, 8), (4, 2, 8), (10, 8, 32), (16, 8, 32), (100, 8, 32), (1000, 512, 2048)]
    sizes += [tuple(map(int, rng.integers(1, 99, size=3))) for _ in range(3)]
    return [
        Case(f"L = {length}", {"length": length, "d_model": d_model, "d_ff": d_ff})
        for length, d_model, d_ff in sizes
    ]


def _half(run: Run, case: Case) -> Problem | None:
    d_model = case.arguments["d_model"]
    half = varied(case, "half", length=2 * d_model, d_ff=4 * d_model)
    return as_expected(run, half, "share at L = 2 D, d_ff = 4 D")


def _falls(run: Run, case: Case) -> Problem | None:
    length = case.arguments["length"]
    near, far = run.value(case), run.value(case, length=2 * length)
    return None if far < near else Problem("less at twice the length", f"{near:.4g}, {far:.4g}")


def _one_less(case: Case) -> float:
    """It may be 1 less the attention's share: four roundings of a number near 1."""
    return 4 * torch.finfo(case.dtype).eps


SHARE = Spec(
    name="ch08.ffn_share",
    statement="ffn_share(length, d_model, d_ff): the share of the feed-forward network in the FLOPs of "
    "an encoder layer, between 0 and 1; a product of (a, b) and (b, c) takes 2abc FLOPs, all else none",
    required=("length", "d_model", "d_ff"),
    reference=_share_reference,
    slack=_one_less,
    cases=_share_cases,
    usual=(SHAPE,),
    checks=(
        Check("longer, smaller", "Attention grows with the square of the length.", _falls),
        Check(
            "half at twice the width",
            "At d_ff = 4 D, network and attention cost the same where L = 2 D.",
            _half,
        ),
    ),
    mutants=mistakes(
        share_of_parameters, share_without_projections, share_without_mixing, share_per_token
    ),
    chapter=8,
    points=2,
)  # fmt: skip

EXERCISES = (
    FUNCTION,
    DEAD_UNITS,
    replace(SWIGLU, name="ch08.swiglu", points=1),
    REMEMBER,
    SHARE,
)
