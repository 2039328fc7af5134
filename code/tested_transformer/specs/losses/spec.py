"""The Spec of the loss: the mean surprise at the words that should have been said."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import reference
from ..compare import Problem, compare
from ..mistakes import mistakes_in
from ..spec import UNTOUCHED, Case, Check, Run, Spec
from . import mutants

STATEMENT = """cross_entropy(logits, expected, *, ignore=0, label_smoothing=0.0, reduction="mean") -> a
number; logits (*batch, V), expected (*batch) with the words' numbers; where expected is `ignore` no word
stands. With label smoothing e the target is 1 - e for the right word, and e/V for every word on top."""
ROUNDING = 1e-9  # between two answers in float64 that should be the same


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, shape, vocab, *, padded=0, dtype=torch.float64, scale=2.0, **options) -> Case:
        ignore = options.get("ignore", 0)
        words = [number for number in range(vocab) if number != ignore]
        expected = rng.choice(words, size=shape)
        for row in range(padded):
            expected[row, -1 - row :] = ignore
        logits = scale * rng.normal(size=(*shape, vocab))
        return Case(label, {"logits": logits, "expected": expected, **options}, dtype)

    return [
        case("one word", (1,), 5),
        case("two sentences", (2, 3), 6),
        case("padding", (2, 4), 6, padded=1),
        case("padding is number 4", (2, 4), 6, padded=2, ignore=4),
        case("padding is number -100", (2, 4), 5, padded=1, ignore=-100),
        case("two batch axes", (2, 1, 3), 4),
        case("smoothed", (2, 3), 5, label_smoothing=0.1),
        case("smoothed and padded", (3, 4), 6, padded=2, label_smoothing=0.3),
        case("a smoothed sum", (3, 4), 5, padded=1, label_smoothing=0.2, reduction="sum"),
        case("large logits", (2, 3), 5, scale=1e4),
        case("float32", (2, 4), 9, padded=1, label_smoothing=0.1, dtype=torch.float32),
        case("bfloat16", (2, 4), 9, padded=1, dtype=torch.bfloat16),
    ]


def _counts(case: Case) -> np.ndarray:
    """Where a word stands."""
    return case.arguments["expected"] != case.arguments.get("ignore", 0)


def _padded(case: Case) -> bool:
    return case.dtype == torch.float64 and not bool(_counts(case).all())


def _precise(case: Case) -> bool:
    return case.dtype == torch.float64


def _words(case: Case) -> int:
    """What the mean divides by."""
    return 1 if case.arguments.get("reduction") == "sum" else int(_counts(case).sum())


def _targets(case: Case) -> np.ndarray:
    """The target of each place; zeros where no word stands."""
    a = case.arguments
    smoothing, vocab = a.get("label_smoothing", 0.0), a["logits"].shape[-1]
    targets = np.zeros_like(a["logits"])
    for place in np.argwhere(_counts(case)):
        targets[tuple(place)] = reference.word_target(a["expected"][tuple(place)], vocab, smoothing)
    return targets


def _one_number(run: Run, case: Case) -> Problem | None:
    shape = run.value(case).shape
    return Problem("one number", f"shape {shape}") if shape else None


def _shift(run: Run, case: Case) -> Problem | None:
    shifted = run.value(case, logits=case.arguments["logits"] + 3)
    return compare(run.value(case), shifted, ROUNDING, "the loss")


def _sure(run: Run, case: Case) -> Problem | None:
    logits = 60.0 * (_targets(case) > 0)
    got = float(run.value(case, logits=logits))
    return None if abs(got) < 1e-6 else Problem("a loss of 0", f"{got:.4f}")


def _uniform(run: Run, case: Case) -> Problem | None:
    logits = np.zeros_like(case.arguments["logits"])
    words = int(_counts(case).sum()) if case.arguments.get("reduction") == "sum" else 1
    wanted = np.array(words * np.log(logits.shape[-1]))
    return compare(wanted, run.value(case, logits=logits), 1e-6, "the loss of equal logits")


def _padding(run: Run, case: Case) -> Problem | None:
    logits = case.arguments["logits"]
    other = np.where(_counts(case)[..., None], logits, 7.0 - 3.0 * logits)
    return compare(run.value(case), run.value(case, logits=other), ROUNDING, "the loss")


def _more_padding(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    wider = np.pad(a["expected"], ((0, 0), (0, 3)), constant_values=a.get("ignore", 0))
    logits = np.pad(a["logits"], ((0, 0), (0, 3), (0, 0)), constant_values=0.5)
    got = run.value(case, logits=logits, expected=wider)
    return compare(run.value(case), got, ROUNDING, "the loss")


def _one_row(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    flat = a["logits"].reshape(-1, a["logits"].shape[-1])
    got = run.value(case, logits=flat, expected=a["expected"].reshape(-1))
    return compare(run.value(case), got, ROUNDING, "the loss")


def _lowest(run: Run, case: Case) -> Problem | None:
    """No slope where the probabilities are those of the target."""
    targets = _targets(case)
    best = np.log(np.where(targets > 0, targets, 1.0))
    slope = run.gradients(case, ["logits"], logits=best)["logits"]
    return compare(0 * slope, slope, ROUNDING, "the gradient")


def _gradient(run: Run, case: Case) -> Problem | None:
    logits, counts = case.arguments["logits"], _counts(case)[..., None]
    raised = np.exp(logits - logits.max(-1, keepdims=True))
    p = np.where(counts, raised / raised.sum(-1, keepdims=True), 0.0)
    got = run.gradients(case, ["logits"])["logits"]
    return compare((p - _targets(case)) / _words(case), got, ROUNDING, "the gradient")


def _large(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    logits = 1e4 * a["logits"] / np.abs(a["logits"]).max()
    wanted = np.asarray(reference.cross_entropy(**{**a, "logits": logits}))
    return compare(wanted, run.value(case, logits=logits), 1e-6 * abs(float(wanted)), "the loss")


def _smoothed(case: Case) -> bool:
    return bool(case.arguments.get("label_smoothing"))


CHECKS = (
    Check("one number", "The loss is one number for the whole batch.", _one_number),
    UNTOUCHED,
    Check(
        "a shift changes nothing",
        "Softmax sees only differences: 3 more for every logit is the same distribution.",
        _shift,
        when=_precise,
    ),
    Check(
        "padding costs nothing",
        "What the model says where no word stands must not matter.",
        _padding,
        when=_padded,
    ),
    Check(
        "twice the padding, the same loss",
        "The mean is over words. More places without a word must not change it.",
        _more_padding,
        when=lambda case: _precise(case) and case.arguments["expected"].ndim == 2,
    ),
    Check(
        "a sure and right guess costs nothing",
        "With all probability on the right word the loss is 0. Cross-entropy takes logits: a "
        "softmax before it is one too many.",
        _sure,
        when=lambda case: _precise(case) and not _smoothed(case),
    ),
    Check(
        "equal logits cost log V",
        "Where all V words are equally likely each costs log V, whatever target sums to 1.",
        _uniform,
        when=_precise,
    ),
    Check(
        "words count, not sentences",
        "The same words in one long row must cost the same.",
        _one_row,
        when=_precise,
    ),
    Check(
        "large logits stay finite",
        "At logits of 10,000 exp overflows and probabilities become 0; the loss is finite.",
        _large,
        when=lambda case: _precise(case) and not _smoothed(case),
    ),
    Check(
        "lowest at the smoothed target",
        "Where the probabilities are those of the target, the gradient is 0.",
        _lowest,
        when=lambda case: _precise(case) and _smoothed(case),
    ),
    Check(
        "the gradient is p - target",
        "For each word the softmax minus the target, divided by the number of words.",
        _gradient,
        when=_precise,
    ),
)


def plain(
    logits: Tensor,
    expected: Tensor,
    ignore: int = 0,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Any:
    """The formula in the dtype of the logits, nothing upcast."""
    logits, expected = logits[expected != ignore], expected[expected != ignore]
    log_p = logits - logits.logsumexp(-1, keepdim=True)
    surprise = -log_p.gather(-1, expected[:, None])[:, 0]
    surprise = (1 - label_smoothing) * surprise - label_smoothing * log_p.mean(-1)
    return surprise.mean() if reduction == "mean" else surprise.sum()


CROSS_ENTROPY = Spec(
    name="cross_entropy",
    statement=STATEMENT,
    required=("logits", "expected"),
    reference=reference.cross_entropy,
    baseline=plain,
    cases=_cases,
    usual=(UNTOUCHED,),
    checks=CHECKS,
    mutants=mistakes_in(mutants),
    chapter=10,
)
