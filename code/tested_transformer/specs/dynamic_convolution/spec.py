"""The Spec of dynamic convolution: each token averages its neighbors with weights of its own making."""

from __future__ import annotations

import numpy as np
import torch

from ... import reference
from ..checks import any_dtype, larger, transposed
from ..compare import Problem, compare, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants

LARGE = (
    60.0  # a logit by which exp(-LARGE) is below any rounding: its weight is 1, the others are 0
)


def _arguments(rng: np.random.Generator, batch, length, heads, channels, width) -> dict:
    x = rng.normal(size=(batch, length, heads * channels))
    return {"x": x, "logits": rng.normal(size=(batch, length, heads, width))}


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64, **options) -> Case:
        return Case(label, _arguments(rng, *sizes) | options, dtype)

    real = np.array([[True] * 6, [True] * 4 + [False] * 2])
    light = _arguments(rng, 2, 6, 2, 3, 3)
    light["logits"] = light["logits"][:1, :1]
    return [
        case("one token", 1, 1, 1, 2, 3),
        case("three neighbors", 1, 4, 1, 1, 3),
        case("causal", 1, 5, 1, 2, 3, causal=True),
        case("two heads", 2, 5, 2, 3, 3),
        case("two heads, causal, four neighbors", 2, 6, 2, 2, 4, causal=True),
        case("an even number of neighbors", 1, 6, 2, 3, 4),
        case("a kernel longer than the text", 2, 3, 1, 2, 7, causal=True),
        case("padding", 2, 6, 2, 2, 3, key_mask=real),
        case("padding, causal", 2, 6, 3, 2, 2, key_mask=real[::-1, ::-1].copy(), causal=True),
        Case("the same weights for all tokens", light),
        case("float32", 2, 5, 2, 3, 3, dtype=torch.float32),
        larger(
            Case("transposed tensors", transposed(_arguments(rng, 2, 4, 2, 3, 3))), logits=800.0
        ),
        case("no tokens", 2, 0, 2, 3, 3),
    ]


def _by_chance(draw: Draw) -> Case:
    sizes = (
        draw.one_of(2, 1), draw.one_of(5, 1, 8), draw.one_of(2, 1, 3), draw.one_of(2, 1, 3),
        draw.one_of(3, 1, 2, 5),
    )  # fmt: skip
    arguments = _arguments(draw.numbers, *sizes)
    if draw.one_of(False, True):
        arguments["causal"] = True
    if draw.one_of(False, True):
        arguments["key_mask"] = draw.numbers.random(sizes[:2]) < 0.7
    return Case("sizes by chance", arguments, any_dtype(draw))


def _future(run: Run, case: Case) -> Problem | None:
    """Another last token: the outputs before stay."""
    x = case.arguments["x"].copy()
    x[:, -1] += 1.0
    before, after = run.value(case)[:, :-1], run.value(case, x=x)[:, :-1]
    slack = run.expected(case)[1] + run.expected(case.changed(x=x))[1]
    return unchanged(before, after, slack, "the last token changes", "an earlier output")


def _constant(run: Run, case: Case) -> Problem | None:
    """Logits that are all larger by 1."""
    logits = case.arguments["logits"] + 1.0
    slack = run.expected(case)[1] + run.expected(case.changed(logits=logits))[1]
    before, after = run.value(case), run.value(case, logits=logits)
    return unchanged(before, after, slack, "all logits are larger by 1", "the output")


def _itself(run: Run, case: Case) -> Problem | None:
    """A large last logit, in a causal convolution: the output is the input."""
    logits = np.zeros_like(case.arguments["logits"])
    logits[..., -1] = LARGE
    got = run.value(case, logits=logits)
    slack = run.expected(case)[1] + run.expected(case.changed(logits=logits))[1]
    expected = case.arrays()["x"] * _real(case)[..., None]
    return compare(expected, got, slack, "with all weight on the last neighbor, the output")


def _real(case: Case) -> np.ndarray:
    return case.arguments.get("key_mask", np.ones(case.arguments["x"].shape[:2], bool))


def _own_head(run: Run, case: Case) -> Problem | None:
    """Other weights of the first head: the channels of the others stay."""
    logits, x = case.arguments["logits"].copy(), case.arguments["x"]
    logits[..., 0, :] *= -2.0
    others = slice(x.shape[-1] // logits.shape[-2], None)
    slack = run.expected(case)[1] + run.expected(case.changed(logits=logits))[1]
    before, after = run.value(case)[..., others], run.value(case, logits=logits)[..., others]
    return unchanged(before, after, slack, "the first head has other weights", "another channel")


def _padding(run: Run, case: Case) -> Problem | None:
    x = np.where(_real(case)[..., None], case.arguments["x"], 5.0)
    before, after = run.value(case), run.value(case, x=x)
    slack = run.expected(case)[1] + run.expected(case.changed(x=x))[1]
    return unchanged(before, after, slack, "padding has other numbers", "an output")


def _is_causal(case: Case) -> bool:
    return bool(case.arguments.get("causal")) and not case.is_empty


DYNAMIC_CONVOLUTION = Spec(
    name="dynamic_convolution",
    statement="dynamic_convolution(x, logits, *, causal, key_mask): each token is a weighted sum of K neighbors, the "
    "weights a softmax of its K logits. With causal the last neighbor is the token itself, else the middle one "
    "(of an even number, the left of the two). Beyond the ends and where key_mask is False there are zeros. The D "
    "channels are H runs of D / H neighbors that share their weights. x (B, L, D), logits (B, L, H, K), broadcast "
    "over B and L, key_mask (B, L) -> (B, L, D)",
    required=("x", "logits"),
    reference=reference.dynamic_convolution,
    baseline=mutants.ConvolutionFormula(),
    cases=_cases,
    combine=_by_chance,
    num_drawn=5,
    checks=(
        Check(
            "a token does not depend on later ones",
            "A causal convolution has all its padding on the left.",
            _future,
            when=lambda case: _is_causal(case) and case.arguments["x"].shape[1] > 1,
        ),
        Check(
            "padding does nothing",
            "Padding is zero before it is convolved.",
            _padding,
            when=lambda case: "key_mask" in case.arguments and not case.is_empty,
        ),
        Check(
            "a constant on all logits changes nothing",
            "The weights of a token and head are a softmax over its neighbors.",
            _constant,
            when=lambda case: not case.is_empty,
        ),
        Check(
            "the last weight is that of the token itself",
            "In a causal convolution the neighbors are in the order of the text.",
            _itself,
            when=_is_causal,
        ),
        Check(
            "neighboring channels share a head",
            "Head h has the h-th run of D / H channels.",
            _own_head,
            when=lambda case: case.arguments["logits"].shape[-2] > 1 and not case.is_empty,
        ),
    ),
    mutants=mistakes_in(mutants, of="dynamic_convolution"),
    chapter=17,
)  # fmt: skip
