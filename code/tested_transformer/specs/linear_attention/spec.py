"""The Spec of linear attention, in any of its three forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional

from ... import reference
from ..checks import any_dtype, transposed
from ..compare import Problem, brief, compare
from ..draw import Draw
from ..mistakes import mistakes_in
from ..recurrences import (
    CAUSAL,
    is_long,
    length_of,
    of_candidate,
    padding_is_left_out,
    two_parts,
)  # fmt: skip
from ..spec import Case, Check, Run, Spec
from . import mutants

NAMES = ("query", "key", "value")


def read(answer: Any, arguments: dict[str, Any]) -> torch.Tensor | None:
    """The output and the state below it, (B, H, L + d, m): one tensor to compare."""
    if answer is None:
        return None
    output, state = answer
    return torch.cat((functional.pad(output, (0, state.shape[-1] - output.shape[-1])), state), 2)


def _stacked(**arguments: Any) -> np.ndarray:
    output, state = reference.linear_attention(**arguments)
    missing = state.shape[-1] - output.shape[-1]
    return np.concatenate((np.pad(output, [(0, 0)] * 3 + [(0, missing)]), state), 2)


def _normalized(case: Case) -> bool:
    return case.arguments.get("normalize", True)


def _shows_weights(case: Case) -> bool:
    """The weights are those of the call's own tokens, and are divided by their sum."""
    a = case.arguments
    positive = a.get("feature_map", "elu+1") == "elu+1"
    alone = a.get("state") is None and a.get("real") is None
    return _normalized(case) and positive and alone and not case.is_empty


def _arguments(rng: np.random.Generator, batch, heads, length, widths) -> dict:
    shapes = ((batch, heads, length, width) for width in (widths[0], *widths))
    return {name: rng.normal(size=shape) for name, shape in zip(NAMES, shapes, strict=True)}


def _state(rng: np.random.Generator, batch, heads, length, widths, normalize=True) -> np.ndarray:
    """Positive, as sums of features are: a normalizer near 0 would round badly."""
    return np.abs(rng.normal(size=(batch, heads, widths[0], widths[1] + normalize)))


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64, state=False, **options) -> Case:
        arguments = _arguments(rng, *sizes) | options
        if state:
            arguments["state"] = _state(rng, *sizes, normalize=options.get("normalize", True))
        return Case(label, arguments, dtype)

    small = (2, 3, 5, (4, 2))
    every = _arguments(rng, *small)
    left = np.array([[True] * 5, [False, False, True, True, True]])
    plain = {"normalize": False, "feature_map": "identity"}
    return [
        case("one token, one head", 1, 1, 1, (2, 3)),
        case("two tokens, two heads", 1, 2, 2, (3, 2)),
        case("five tokens", *small),
        case("without a normalizer", *small, normalize=False),
        case("neither feature map nor normalizer", *small, **plain),
        case("after a state", *small, state=True),
        case("one token after a state", 2, 2, 1, (3, 4), state=True),
        case("neither, after a state", *small, state=True, **plain),
        case("padding on the left", *small, real=left),
        case("padding inside, after a state", *small, real=left[:, ::-1], state=True, chunk_size=2),
        case("chunks of two", *small, chunk_size=2, state=True),
        case("chunks of three", 1, 2, 7, (2, 4), chunk_size=3),
        case("a chunk longer than the text", *small, chunk_size=9, state=True),
        case("float32", 2, 2, 6, (4, 3), state=True, dtype=torch.float32),
        Case(
            "all options at once, transposed tensors",
            transposed({name: np.abs(a) for name, a in every.items()})
            | {"feature_map": "identity", "real": left, "state": _state(rng, *small)},
        ),
        case("no tokens", 2, 2, 0, (3, 2), state=True),
    ]


def _by_chance(draw: Draw) -> Case:
    length = draw.one_of(3, 1, 2, 6)
    sizes = (
        draw.one_of(1, 2), draw.one_of(2, 1, 3), length, (draw.one_of(3, 1, 4), draw.one_of(2, 1, 5)),
    )  # fmt: skip
    arguments = _arguments(draw.numbers, *sizes)
    normalize = draw.one_of(True, False)
    if not normalize:
        arguments |= {"normalize": False, "feature_map": draw.one_of("elu+1", "identity")}
    if draw.one_of(False, True):
        arguments["state"] = _state(draw.numbers, *sizes, normalize=normalize)
    if draw.one_of(False, True):
        arguments["real"] = draw.numbers.random((sizes[0], length)) < 0.7
    if draw.one_of(False, True):
        arguments["chunk_size"] = draw.one_of(2, 1, 4)
    return Case("sizes by chance", arguments, any_dtype(draw))


def _sum_to_one(run: Run, case: Case) -> Problem | None:
    """Where all values are 1, so are all outputs."""
    ones = np.ones_like(case.arguments["value"])
    got = run.value(case, value=ones)[:, :, : length_of(case), : ones.shape[-1]]
    slack = run.expected(case, value=ones)[1]
    return compare(ones, got, slack, "where all values are 1, the outputs")


def _no_negative(run: Run, case: Case) -> Problem | None:
    """Weights, read off values that are 1 for one token and 0 for the others."""
    for token in range(length_of(case)):
        value = np.zeros_like(case.arguments["value"])
        value[:, :, token] = 1.0
        got = run.value(case, value=value)[:, :, : length_of(case), : value.shape[-1]]
        if got.min() < -run.expected(case, value=value)[1]:
            return Problem(f"weights of token {token} of at least 0", brief(got.min()))
    return None


def _padding(run: Run, case: Case) -> Problem | None:
    """Other keys and values where nothing is real."""
    real = case.arguments["real"]
    changed = {
        name: np.where(real[:, None, :, None], case.arguments[name], 5.0) for name in NAMES[1:]
    }
    return padding_is_left_out(run, case, "padding has other keys and values", **changed)


LINEAR_ATTENTION = Spec(
    name="linear_attention",
    statement="linear_attention(query, key, value, *, feature_map, normalize, real, state, chunk_size) -> (output, "
    "new state). The state takes in phi(key) value^T of each token, and the output is phi(query)^T state. With "
    "normalize (the default) each value gets a 1 at its end, and the output is divided by its last entry, or by "
    "1 where that is 0. feature_map: 'elu+1' (the default) or 'identity'. Where real is False, a token leaves "
    "the state as it is. state: the one before the first token, 0 by default; chunk_size may change how it is "
    "computed, and no number. query and key (B, H, L, d), value (B, H, L, dv), real (B, L), state (B, H, d, m) -> "
    "(B, H, L, dv) and (B, H, d, m), where m is dv + 1 with normalize, else dv",
    required=NAMES,
    reference=_stacked,
    baseline=mutants.LinearFormula(),
    cases=_cases,
    combine=_by_chance,
    num_drawn=5,
    read=read,
    checks=(
        CAUSAL,
        Check(
            "the weights sum to 1",
            "The output is a weighted mean of the values: divide by the sum of the scores, the query's own "
            "token included.",
            _sum_to_one,
            when=_shows_weights,
        ),
        Check(
            "no weight is negative",
            "Features must be positive, so that no score is negative and their sum is not 0.",
            _no_negative,
            when=_shows_weights,
        ),
        Check(
            "padding does nothing",
            "The features of padding are 0: mask after the feature map, which makes 1 of a 0.",
            _padding,
            when=lambda case: case.arguments.get("real") is not None and not case.is_empty,
        ),
        Check(
            "a call in two parts is one call",
            "The state has all keys and values so far, and the sum of the keys for the normalizer.",
            lambda run, case: two_parts(run, case, NAMES, state=of_candidate, with_itself=True),
            when=is_long,
        ),
    ),
    mutants=mistakes_in(mutants),
    chapter=20,
)
