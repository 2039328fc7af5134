"""The Spec of the loss: the mean surprise at the words that should have been said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import reference
from ..checks import as_expected, stays, varied
from ..compare import Problem, compare, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..run import probe
from ..spec import GRADIENTS, UNTOUCHED, Case, Check, Run, Spec
from . import mutants

STATEMENT = """cross_entropy(logits, expected, *, ignore=0, label_smoothing=0.0, reduction="mean") -> a
number; logits (*batch, V), expected (*batch) with the words' numbers; where expected is `ignore` no word
stands. With label smoothing e the target is 1 - e for the right word, and e/V for every word on top.
A batch without any word costs 0."""


def _case(
    rng: np.random.Generator, label: str, shape: tuple[int, ...], vocab: int, *, padded: int = 0,
    dtype: torch.dtype = torch.float64, scale: float = 2.0, **options: Any,
) -> Case:  # fmt: skip
    """Words without `ignore`; the last of the first rows, one more for each row, are padding."""
    ignore = options.get("ignore", 0)
    words = [number for number in range(vocab) if number != ignore]
    expected = rng.choice(words, size=shape)
    for row in range(min(padded, len(expected))):
        expected[row, ..., -1 - row :] = ignore
    logits = scale * rng.normal(size=(*shape, vocab))
    return Case(label, {"logits": logits, "expected": expected, **options}, dtype)


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label: str, shape: tuple[int, ...], vocab: int, **options: Any) -> Case:
        return _case(rng, label, shape, vocab, **options)

    sure = case("300 words, of which nearly all are sure", (3, 100), 4, dtype=torch.bfloat16)
    others = sure.arguments["expected"][..., None] != np.arange(4)
    sure.arguments["logits"] = np.where(
        np.arange(300).reshape(3, 100, 1) < 8, sure.arguments["logits"], -64.0 * others
    )
    nothing = case("a batch of padding", (2, 3), 5)
    nothing.arguments["expected"][:] = 0
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
        case("large logits in float32", (2, 4), 9, padded=1, scale=200.0, dtype=torch.float32),
        case("large logits in float16", (2, 4), 9, scale=20.0, dtype=torch.float16),
        case("a large vocabulary", (2, 3), 700, padded=1, label_smoothing=0.1),
        case("much smoothing", (2, 3), 6, label_smoothing=0.9),
        sure,
        nothing,
        case("no sentence", (0, 3), 4),
    ]


def _drawn(draw: Draw) -> Case:
    """Any shape, padding, smoothing, reduction and dtype together."""
    shape = draw.one_of((2,), (3, 4), (1, 1), (2, 3, 4))
    vocab = draw.one_of(5, 2, 40)
    options = {
        "ignore": draw.one_of(None, 1, -100, vocab - 1),
        "label_smoothing": draw.one_of(None, 0.1, 0.9),
        "reduction": draw.one_of(None, "sum", "mean"),
    }
    return _case(
        draw.numbers, "drawn", shape, vocab, padded=draw.one_of(0, 1, 2) if len(shape) > 1 else 0,
        dtype=draw.one_of(torch.float64, torch.float32, torch.bfloat16),
        scale=draw.one_of(1.0, 100.0), **{n: o for n, o in options.items() if o is not None},
    )  # fmt: skip


def _counts(case: Case) -> np.ndarray:
    """Where a word stands."""
    return case.arguments["expected"] != case.arguments.get("ignore", 0)


def _padded(case: Case) -> bool:
    return _precise(case) and not bool(_counts(case).all())


def _exact(case: Case) -> bool:
    """In float64, with a word."""
    return case.dtype == torch.float64 and bool(_counts(case).any())


def _precise(case: Case) -> bool:
    """... and with logits of a size at which every formula is finite."""
    return _exact(case) and float(np.abs(case.arguments["logits"]).max()) < 100


def _words(case: Case) -> int:
    """What the mean divides by."""
    return 1 if case.arguments.get("reduction") == "sum" else max(int(_counts(case).sum()), 1)


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


def _same(run: Run, case: Case, when: str, **changes: Any) -> Problem | None:
    """The same words, so that both answers round as the formula does on these."""
    before, tolerance = run.value(case), 2 * run.expected(case)[1]
    return unchanged(before, run.value(case, **changes), tolerance, when, "the loss")


def _shift(run: Run, case: Case) -> Problem | None:
    shifted = varied(case, "shifted", logits=case.arguments["logits"] + 3)
    return stays(run, case, shifted, "3 is added to every logit", "the loss")


def _sure(run: Run, case: Case) -> Problem | None:
    sure = varied(case, "sure", logits=60.0 * (_targets(case) > 0))
    return as_expected(run, sure, "the loss where only the right words are likely")


def _uniform(run: Run, case: Case) -> Problem | None:
    even = varied(case, "even", logits=np.zeros_like(case.arguments["logits"]))
    return as_expected(run, even, "the loss of equal logits")


def _padding(run: Run, case: Case) -> Problem | None:
    logits = case.arguments["logits"]
    other = np.where(_counts(case)[..., None], logits, 7.0 - 3.0 * logits)
    return _same(run, case, "the logits change where no word stands", logits=other)


def _more_padding(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    words = np.pad(a["expected"], ((0, 0), (0, 3)), constant_values=a.get("ignore", 0))
    logits = np.pad(a["logits"], ((0, 0), (0, 3), (0, 0)), constant_values=0.5)
    when = "each sentence gets three more padding tokens"
    return _same(run, case, when, logits=logits, expected=words)


def _one_row(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    flat = a["logits"].reshape(-1, a["logits"].shape[-1])
    when = "all words stand in one row"
    return _same(run, case, when, logits=flat, expected=a["expected"].reshape(-1))


def _backward(run: Run, case: Case) -> Problem | None:
    try:
        run.gradients(case, ["logits"])
    except TypeError:  # of `gradients`: the call itself has passed the checks before
        return Problem("a loss from which backward reaches the logits", "a number without a past")
    return None


def _slope(run: Run, case: Case, what: str) -> Problem | None:
    """p - target against the gradient by the logits, in the direction in which it is taken."""
    logits, counts = case.arguments["logits"], _counts(case)[..., None]
    raised = np.exp(logits - logits.max(-1, keepdims=True))
    p = np.where(counts, raised / raised.sum(-1, keepdims=True), 0.0)
    wanted = (p - _targets(case)) / _words(case) * float(probe(torch.zeros(())))
    got, (_, tolerance) = run.all_gradients(case), run.spec.gradients_of(case)["logits"]
    tolerance += case.rounding(logits.shape[-1]) / _words(case)  # backward sums the target
    return compare(wanted, got["logits"], tolerance, what)


def _lowest(run: Run, case: Case) -> Problem | None:
    """No slope where the probabilities are those of the target."""
    targets = _targets(case)
    best = varied(case, "best", logits=np.log(np.where(targets > 0, targets, 1.0)))
    return _slope(run, best, "the gradient")


def _gradient(run: Run, case: Case) -> Problem | None:
    return _slope(run, case, "the gradient")


def _large(run: Run, case: Case) -> Problem | None:
    logits = case.arguments["logits"]
    large = varied(case, "large", logits=1e4 * logits / np.abs(logits).max())
    return as_expected(run, large, "the loss")


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
        when=lambda case: _exact(case) and not _smoothed(case),
    ),
    Check(
        "backward reaches the logits",
        "The loss must remember how it was computed: item(), tensor() and detach() cut it off.",
        _backward,
        when=_precise,
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
    replace(GRADIENTS, when=lambda case: case.arguments["logits"].shape[-1] <= 40),  # see _slope
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
    return surprise.sum() / (max(len(expected), 1) if reduction == "mean" else 1)


def _in_any_order(case: Case) -> float:
    """Hundreds of words added one by one round more often than the one sum of the plain formula."""
    vocab, words = case.arguments["logits"].shape[-1], _counts(case).sum() / _words(case)
    return case.rounding(vocab) * words if vocab > 100 else 0.0


CROSS_ENTROPY = Spec(
    name="cross_entropy",
    statement=STATEMENT,
    required=("logits", "expected"),
    reference=reference.cross_entropy,
    baseline=plain,
    slack=_in_any_order,
    cases=_cases,
    combine=_drawn,
    num_drawn=5,
    usual=(UNTOUCHED,),
    checks=CHECKS,
    mutants=mistakes_in(mutants),
    chapter=10,
)
