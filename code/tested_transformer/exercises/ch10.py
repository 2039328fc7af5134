"""Exercises of chapter 10: training."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import reference
from ..data.vocabulary import EOS, PAD
from ..specs.checks import as_expected, stays, varied
from ..specs.compare import Problem, compare
from ..specs.mistakes import mistake, mistakes
from ..specs.spec import SHAPE, Case, Check, Run, Spec
from ..specs.training.spec import TEACHER_FORCING

# --- Teacher forcing ------------------------------------------------------------------------------

SHIFT_RIGHT = replace(
    TEACHER_FORCING,
    name="ch10.shift_right",
    statement=TEACHER_FORCING.statement.replace("teacher_forcing", "shift_right", 1)
    + "; after its last word a row of target may hold EOS or PAD",
    points=1,
)

# --- The lowest loss under label smoothing --------------------------------------------------------


def _lowest_reference(vocab: int, smoothing: float) -> np.ndarray:
    """The entropy of the target, word by word."""
    target = reference.word_target(0, vocab, smoothing, np.longdouble)
    return np.asarray(-sum(share * np.log(share) for share in target))


@mistake(
    "a perfect model pays nothing",
    rejected_by="all smoothed away, log V",
    cause="With smoothing the target itself is unsure; its entropy must be paid.",
)
def lowest_is_zero(vocab, smoothing):
    """A perfect model pays nothing."""
    return 0.0


@mistake(
    "the right word alone",
    rejected_by="all smoothed away, log V",
    cause="-log of the right word's share, without its weight and without the other words.",
)
def surprise_of_the_right_word(vocab, smoothing):
    """Only the right word is looked at."""
    return -math.log(1 - smoothing + smoothing / vocab)


@mistake(
    "right or wrong",
    rejected_by="all smoothed away, log V",
    cause="The wrong words are taken as one; there are V - 1 of them, each with e/V.",
)
def entropy_of_two(vocab, smoothing):
    """Right or wrong, and not which of the wrong ones."""
    right = 1 - smoothing + smoothing / vocab
    return -right * math.log(right) - (1 - right) * math.log(1 - right)


@mistake(
    "all of e for the wrong words",
    rejected_by="all smoothed away, log V",
    cause="e/(V - 1) for each wrong word is the target of another convention.",
)
def entropy_of_wrong_words(vocab, smoothing):
    """All of e for the wrong words."""
    share = smoothing / (vocab - 1)
    return -(1 - smoothing) * math.log(1 - smoothing) - smoothing * math.log(share)


def _lowest_cases(rng: np.random.Generator) -> list[Case]:
    sizes = [(2, 0.5), (3, 0.1), (5, 0.3), (10, 0.1), (100, 0.9), (1000, 0.1)]
    sizes += [(2, 0.999), (4000, 1e-6), (7, 0.875)]
    sizes += [(int(rng.integers(3, 500)), float(rng.uniform(0.01, 0.99))) for _ in range(2)]
    return [Case(f"{vocab} words", {"vocab": vocab, "smoothing": e}) for vocab, e in sizes]


def _nearly_none(run: Run, case: Case) -> Problem | None:
    least = varied(case, "nearly none", smoothing=1e-9)
    got, most = float(run.value(least)), 2 * float(run.expected(least)[0])
    return None if abs(got) < most else Problem(f"below {most:.2g} at smoothing 1e-9", f"{got:.4g}")


def _nearly_all(run: Run, case: Case) -> Problem | None:
    return as_expected(run, varied(case, "all", smoothing=1 - 1e-9), "at smoothing 1 - 1e-9")


def _reached(run: Run, case: Case) -> Problem | None:
    """What a model pays whose probabilities are those of the target."""
    vocab, smoothing = case.arguments["vocab"], case.arguments["smoothing"]
    logits = np.log(reference.word_target(1, vocab, smoothing))[None]
    paid = reference.cross_entropy(logits, np.array([1]), label_smoothing=smoothing)
    slack = 2 * run.expected(case)[1]
    return compare(np.asarray(paid), run.value(case), slack, "the lowest loss")


def _plain_lowest(vocab: int, smoothing: float) -> Tensor:
    """The entropy of the target, all words in one sum."""
    target = torch.full((vocab,), smoothing, dtype=torch.float64) / vocab
    right = torch.nn.functional.one_hot(torch.tensor(0), vocab).double()
    target = target + right * (1 - torch.tensor(smoothing, dtype=torch.float64))
    return -(target * target.log()).sum()


def _word_by_word(case: Case) -> float:
    """V words added one by one round more often than one sum does."""
    return case.rounding(case.arguments["vocab"]) * math.log(case.arguments["vocab"])


LOWEST_LOSS = Spec(
    name="ch10.lowest_loss",
    statement="lowest_loss(vocab, smoothing): the lowest loss that any model can reach, in nats, with "
    "vocab words and label smoothing e between 0 and 1; the target is 1 - e + e/V for the right word and "
    "e/V for every other",
    required=("vocab", "smoothing"),
    reference=_lowest_reference,
    baseline=_plain_lowest,
    differentiable=False,
    slack=_word_by_word,
    cases=_lowest_cases,
    checks=(
        Check(
            "nearly no smoothing, nearly no loss",
            "Without smoothing a perfect model pays nothing.",
            _nearly_none,
        ),
        Check(
            "all smoothed away, log V",
            "At e = 1 every word is as right as any other: each costs log V.",
            _nearly_all,
        ),
        Check(
            "a model that says the target pays it",
            "The loss is lowest where the model's probabilities are the target, and there it is "
            "-sum of target x log target.",
            _reached,
        ),
    ),
    mutants=mistakes(
        lowest_is_zero, surprise_of_the_right_word, entropy_of_two, entropy_of_wrong_words
    ),
    chapter=10,
    points=2,
)  # fmt: skip

# --- The peak of the paper's rate -----------------------------------------------------------------


def _peak_reference(d_model: int, warmup: int) -> np.ndarray:
    """Step by step, until the rate has fallen to half of the largest."""
    rates, best = [0.0], 0
    while len(rates) < 4 or 2 * rates[-1] > rates[best] * (1 + 1e-12):
        rates.append(reference.paper_rate(len(rates), d_model, warmup))
        best = len(rates) - 1 if rates[-1] > rates[best] else best
    half = next(s for s in range(best, len(rates)) if 2 * rates[s] <= rates[best] * (1 + 1e-12))
    return np.array([best, rates[best], half])


def _peak_read(answer: Any, arguments: dict[str, Any]) -> Tensor:
    return torch.tensor([float(number) for number in answer], dtype=torch.float64)


@mistake(
    "half at twice the step",
    rejected_by="half of it, later",
    cause="1 / sqrt(step), not 1 / step: half the rate needs four times the step.",
)
def half_at_twice(d_model, warmup):
    """As if it fell as 1 / step."""
    return warmup, (d_model * warmup) ** -0.5, 2 * warmup


@mistake(
    "half on the way up",
    rejected_by="half of it, later",
    cause="The line passes half of the peak too, at warmup / 2.",
)
def half_on_the_way_up(d_model, warmup):
    """The other step with half the rate."""
    return warmup, (d_model * warmup) ** -0.5, warmup / 2


@mistake(
    "the slope for the rate",
    rejected_by="the rate of that step",
    cause="warmup^-1.5 is what each step adds; there are warmup of them.",
)
def rate_of_the_slope(d_model, warmup):
    """The step is forgotten."""
    return warmup, d_model**-0.5 * warmup**-1.5, 4 * warmup


@mistake(
    "the width forgotten",
    rejected_by="the rate of that step",
    cause="d_model^-0.5 stands in front of both halves.",
)
def rate_without_width(d_model, warmup):
    """warmup^-0.5 alone."""
    return warmup, warmup**-0.5, 4 * warmup


@mistake(
    "the root from the first step",
    rejected_by="no step has more",
    cause="The smaller of the two counts: at first that is the line.",
)
def largest_at_first(d_model, warmup):
    """The root is largest at step 1."""
    return 1, d_model**-0.5, 4


def _peak_cases(rng: np.random.Generator) -> list[Case]:
    sizes = [(4, 2), (16, 9), (64, 25), (512, 400), (1, 1), (2, 1), (1024, 2500)]
    sizes += [tuple(int(n) for n in rng.integers(2, 300, size=2)) for _ in range(3)]
    return [Case(f"warmup {w}", {"d_model": d_model, "warmup": w}) for d_model, w in sizes]


def _nothing_larger(run: Run, case: Case) -> Problem | None:
    step = run.value(case)[0]
    near = [s for s in (step - 1, step + 1) if s >= 1]
    here, *others = (reference.paper_rate(s, **case.arguments) for s in (step, *near))
    for other, rate in zip(near, others, strict=True):
        if rate > here:
            return Problem(f"step {step:g} at the top", f"step {other:g} has a larger rate")
    return None


def _rate_there(run: Run, case: Case) -> Problem | None:
    step, rate, _ = run.value(case)
    wanted = np.array(reference.paper_rate(step, **case.arguments))
    slack = _largest_rounding(run, case) * rate
    return compare(wanted, np.array(rate), slack, f"the rate at step {step:g}")


def _largest_rounding(run: Run, case: Case) -> float:
    """What rounding does to a rate, as a share of it: the tolerance is for the largest number."""
    expected, tolerance = run.expected(case)
    return tolerance / float(expected.max())


def _half_later(run: Run, case: Case) -> Problem | None:
    step, rate, half = run.value(case)
    if half <= step:
        return Problem(f"a step after {step:g}", f"{half:g}")
    found = reference.paper_rate(half, **case.arguments) / rate
    near = abs(found - 0.5) <= 2 * _largest_rounding(run, case)
    return None if near else Problem("half the rate", f"{found:.4g} of it")


PEAK = Spec(
    name="ch10.peak",
    statement="peak(d_model, warmup): (step, rate, half) of the paper's learning rate: the step at which "
    "it is largest, the rate there, and the later step at which it has fallen to half of that",
    required=("d_model", "warmup"),
    reference=_peak_reference,
    cases=_peak_cases,
    read=_peak_read,
    usual=(SHAPE,),
    checks=(
        Check("no step has more", "The steps before and after must have smaller rates.", _nothing_larger),
        Check("the rate of that step", "Put the step into the formula.", _rate_there),
        Check(
            "half of it, later",
            "After the warm-up the rate falls as 1 / sqrt(step).",
            _half_later,
        ),
    ),
    mutants=mistakes(
        half_at_twice, half_on_the_way_up, rate_of_the_slope, rate_without_width, largest_at_first
    ),
    chapter=10,
    points=2,
)  # fmt: skip

# --- Several batches for one step -----------------------------------------------------------------


def _combine_reference(gradients: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Each word brings the gradient of its batch."""
    every = [gradient for gradient, n in zip(gradients, words, strict=True) for _ in range(n)]
    return np.sum(every, axis=0) / len(every)


@mistake(
    "each batch counts alike",
    rejected_by="a batch counts by its words",
    cause="The mean of means.",
)
def combined_by_mean(gradients, words):
    """Each batch counts alike."""
    return gradients.mean(0)


@mistake(
    "means added up",
    rejected_by="what all agree on stays",
    cause="backward adds, and nothing divides.",
)
def combined_by_sum(gradients, words):
    """Added up."""
    return gradients.sum(0)


@mistake(
    "weighted and not divided",
    rejected_by="what all agree on stays",
    cause="The weights must sum to 1.",
)
def combined_undivided(gradients, words):
    """Weighted and added up."""
    return (gradients * words[:, None]).sum(0)


@mistake(
    "weighted by words, divided by batches",
    rejected_by="what all agree on stays",
    cause="The weights are words, so their sum is the divisor.",
)
def combined_per_batch(gradients, words):
    """Weighted by words, divided by batches."""
    return (gradients * words[:, None]).mean(0)


@mistake(
    "divided by the words again",
    rejected_by="a batch counts by its words",
    cause="The rows are means already; undo their division, do not repeat it.",
)
def combined_twice(gradients, words):
    """Divided by the words once more."""
    shares = 1 / words.to(gradients.dtype)
    return (gradients * shares[:, None]).sum(0) / shares.sum()


def _combine_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, words, size, dtype=torch.float64) -> Case:
        words = np.asarray(words)
        gradients = rng.normal(size=(len(words), size))
        return Case(label, {"gradients": gradients, "words": words}, dtype)

    return [
        case("one batch", [3], 2),
        case("two batches", [1, 3], 1),
        case("three batches", [5, 2, 8], 4),
        case("of one size", [4, 4, 4], 3),
        case("six batches", rng.integers(1, 60, size=6), 5),
        case("float32", [7, 2, 3], 4, torch.float32),
        case("one word in eight", [1, 7], 3),
        case("many batches", rng.integers(1, 5000, size=40), 3),
        case("a batch of one word among many", [1, 1000], 2),
    ]


def _all_alike(run: Run, case: Case) -> Problem | None:
    gradients = np.repeat(case.arguments["gradients"][:1], len(case.arguments["words"]), axis=0)
    alike = varied(case, "alike", gradients=gradients)
    one = alike.tensors()["gradients"][0].double().numpy()
    return compare(one, run.value(alike), run.expected(alike)[1], "the gradient")


def _cut_in_words(run: Run, case: Case) -> Problem | None:
    """Batches of one word each, with the gradients of the batches that they came from."""
    words = case.arguments["words"]
    each = np.repeat(case.arguments["gradients"], words, axis=0)
    cut = varied(case, "cut", gradients=each, words=np.ones(len(each), dtype=int))
    return stays(run, case, cut, "each word is a batch of its own", "the gradient")


def _float32_shares(case: Case) -> float:
    """In torch whole numbers divided by whole numbers are float32: three times what that does."""
    words = case.arguments["words"]
    off = np.abs((words / words.sum()).astype(np.float32) - words / words.sum())
    return 3 * float((off[:, None] * np.abs(case.arguments["gradients"])).sum(0).max())


COMBINE = Spec(
    name="ch10.combine",
    statement="combine(gradients, words): the gradient of the mean loss per word over all batches "
    "together, (n); gradients (K, n), row k that of the mean loss of batch k; words (K), whole numbers, "
    "how many words batch k has",
    required=("gradients", "words"),
    reference=_combine_reference,
    baseline=lambda gradients, words: words.to(gradients.dtype) @ gradients / words.sum(),
    differentiable=False,
    slack=_float32_shares,
    cases=_combine_cases,
    checks=(
        Check(
            "what all agree on stays",
            "If all batches have the same gradient, that is the gradient of all of them.",
            _all_alike,
        ),
        Check(
            "a batch counts by its words",
            "A batch of three words must count as much as three batches of one.",
            _cut_in_words,
        ),
    ),
    mutants=mistakes(
        combined_by_mean, combined_by_sum, combined_undivided, combined_per_batch, combined_twice
    ),
    chapter=10,
    points=1,
)  # fmt: skip

# --- Clipping -------------------------------------------------------------------------------------


def _clip_all(candidate: Any, first: Tensor, second: Tensor, third: Tensor, limit: float):
    """Call with a list; all the answers' numbers in one row."""
    given = [first, second, third]
    answer = candidate(given, limit)
    if answer is None or answer is ...:
        return None
    pairs = list(zip(answer, given, strict=True))
    return torch.cat([got.broadcast_to(tensor.shape).flatten() for got, tensor in pairs])


def _clip_reference(first: np.ndarray, second: np.ndarray, third: np.ndarray, limit: float):
    """The norm of all numbers together; nothing becomes longer."""
    whole = np.concatenate([part.ravel() for part in (first, second, third)])
    norm = np.sqrt(reference.dot(whole, whole))
    return whole * (limit / norm if norm > limit else 1)


def clipped_plainly(gradients, limit):
    """The baseline."""
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    return [g * limit / norm if norm > limit else g for g in gradients]


@mistake(
    "every tensor for itself",
    rejected_by="the direction stays",
    cause="The length is that of all tensors together.",
)
def clip_each(gradients, limit):
    """Each tensor by its own norm."""
    return [g * (limit / (g.norm() + 1e-12)).clamp(max=1) for g in gradients]


@mistake(
    "every number for itself",
    rejected_by="the direction stays",
    cause="clamp in place of one common factor.",
)
def clip_numbers(gradients, limit):
    """Each number for itself."""
    return [g.clamp(-limit, limit) for g in gradients]


@mistake(
    "always as long as the limit",
    rejected_by="what is short enough stays",
    cause="The factor limit / length must not be above 1.",
)
def clip_always(gradients, limit):
    """Every gradient is made as long as the limit."""
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    return [g * limit / (norm + 1e-12) for g in gradients]


@mistake(
    "the root forgotten",
    rejected_by="what is short enough stays",
    cause="The sum of squares is the square of the length.",
)
def clip_by_square(gradients, limit):
    """The root is forgotten."""
    square = sum((g**2).sum() for g in gradients)
    return [g * limit / square if square > limit else g for g in gradients]


@mistake(
    "clipped in place",
    rejected_by="the inputs stay as they were",
    cause="mul_ works in place.",
)
def clip_in_place(gradients, limit):
    """Right numbers, in the caller's tensors."""
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    for gradient in gradients:
        gradient.mul_((limit / (norm + 1e-6)).clamp(max=1))
    return gradients


def _clip_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, scale, limit, dtype=torch.float64) -> Case:
        shapes = {"first": (2,), "second": (3, 2), "third": (1, 2, 2)}
        tensors = {name: scale * rng.normal(size=shape) for name, shape in shapes.items()}
        if label == "exactly the limit":  # 3, 4 and zeros
            tensors = {name: 0 * tensor for name, tensor in tensors.items()}
            tensors["first"][0], tensors["third"][0, 0, 0] = 3.0, -4.0
        return Case(label, {**tensors, "limit": limit}, dtype)

    return [
        case("long", 1.0, 1.0),
        case("short", 0.01, 1.0),
        case("far too long", 1000.0, 0.5),
        case("nothing at all", 0.0, 1.0),
        case("a little too long", 1.0, 2.0),
        case("float32", 3.0, 1.0, torch.float32),
        case("exactly the limit", 1.0, 5.0),
        case("tiny, and too long", 1e-5, 1e-6),
        case("a large limit", 1e6, 1e5),
    ]


def _whole(case: Case) -> np.ndarray:
    return np.concatenate([case.arguments[n].ravel() for n in ("first", "second", "third")])


def _short_stays(run: Run, case: Case) -> Problem | None:
    return as_expected(run, case, "the gradients")


def _not_longer(run: Run, case: Case) -> Problem | None:
    norm, limit = np.linalg.norm(run.value(case)), case.arguments["limit"]
    slack = run.expected(case)[1] * np.sqrt(_whole(case).size)  # each number may be off
    if abs(norm - limit) <= slack:
        return None
    return Problem(f"{limit:g} long, all together", f"{norm:.4g} long")


def _same_direction(run: Run, case: Case) -> Problem | None:
    whole, got = _whole(case), run.value(case)
    wanted = whole * np.linalg.norm(got) / np.linalg.norm(whole)
    share = np.linalg.norm(wanted) / case.arguments["limit"]
    slack = 2 * max(share, 1.0) * run.expected(case)[1] * np.sqrt(got.size)
    return compare(wanted, got, slack, "the gradients")


def _is_long(case: Case) -> bool:
    return float(np.linalg.norm(_whole(case))) > case.arguments["limit"]


def _as_torch_clips(case: Case) -> float:
    """torch's clip_grad_norm_ divides by length + 1e-6, and so may an answer: three times what that does."""
    norm, limit = float(np.linalg.norm(_whole(case))), case.arguments["limit"]
    return 3e-6 * min(1.0, limit / norm) if norm + 1e-6 > limit else 0.0


CLIP = Spec(
    name="ch10.clip",
    statement="clip(gradients, limit): a new list of tensors, the same as gradients where these are "
    "together at most limit long, and else shortened to that length in the same direction; the length is "
    "the root of the sum of the squares of all numbers of all tensors",
    required=("first", "second", "third", "limit"),
    reference=_clip_reference,
    baseline=lambda **arguments: _clip_all(clipped_plainly, **arguments),
    differentiable=False,
    slack=_as_torch_clips,
    cases=_clip_cases,
    build=lambda candidate, arguments: lambda *placed: _clip_all(candidate, *placed),
    checks=(
        Check(
            "what is short enough stays",
            "Clipping only shortens. Nothing to shorten: nothing changes, not even 0.",
            _short_stays,
            when=lambda case: not _is_long(case),
        ),
        Check(
            "the direction stays",
            "All numbers are multiplied by the same factor.",
            _same_direction,
            when=_is_long,
        ),
        Check(
            "as long as the limit",
            "What was too long is, all tensors together, as long as the limit.",
            _not_longer,
            when=_is_long,
        ),
    ),
    mutants=mistakes(clip_each, clip_numbers, clip_always, clip_by_square, clip_in_place),
    chapter=10,
    points=2,
)  # fmt: skip

# --- Exact match ----------------------------------------------------------------------------------


def _until_end(row: np.ndarray) -> list[int]:
    """The words before EOS, EOS included; all if there is none."""
    words: list[int] = []
    for word in row.tolist():
        words.append(word)
        if word == EOS:
            break
    return words


def _match_reference(said: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Sentence by sentence."""
    right = [_until_end(a) == _until_end(b) for a, b in zip(said, expected, strict=True)]
    return np.asarray(sum(right) / len(right))


def _of_one_width(said: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
    wide = max(said.shape[1], expected.shape[1])
    return tuple(
        torch.nn.functional.pad(t, (0, wide - t.shape[1]), value=PAD) for t in (said, expected)
    )


@mistake(
    "words counted, not sentences",
    rejected_by="one wrong word is enough",
    cause="The mean over words; all of a sentence's words must be right.",
)
def share_of_words(said, expected):
    """Words, not sentences."""
    said, expected = _of_one_width(said, expected)
    return (said == expected)[expected != PAD].double().mean()


@mistake(
    "what stands after the end compared",
    rejected_by="after the end nothing counts",
    cause="The whole rows are compared, not the sentences in them.",
)
def everything_compared(said, expected):
    """What stands after the end counts too."""
    said, expected = _of_one_width(said, expected)
    return (said == expected).all(1).double().mean()


@mistake(
    "cut to the shorter",
    rejected_by="a sentence must end",
    cause="zip, or [:L], drops what the other has more.",
)
def cut_to_the_shorter(said, expected):
    """The width that both have."""
    wide = min(said.shape[1], expected.shape[1])
    said, expected = said[:, :wide], expected[:, :wide]
    return ((said == expected) | (expected == PAD)).all(1).double().mean()


@mistake(
    "the end not compared",
    rejected_by="a sentence must end",
    cause="EOS is left out with the padding.",
)
def end_not_compared(said, expected):
    """The words without EOS."""
    said, expected = _of_one_width(said, expected)
    matter = (expected != PAD) & (expected != EOS)
    return ((said == expected) | ~matter).all(1).double().mean()


@mistake(
    "the words in any order",
    rejected_by="equals the reference",
    cause="Sets or sorted lists of words are compared.",
)
def bag_of_words(said, expected):
    """The right words in any order."""
    pairs = zip(said.tolist(), expected.tolist(), strict=True)
    pairs = [(a, b) for a, b in pairs if EOS in a]
    right = [sorted(a[: a.index(EOS)]) == sorted(b[: b.index(EOS)]) for a, b in pairs]
    return sum(right) / len(said)


def _match_cases(rng: np.random.Generator) -> list[Case]:
    """Expected sentences, and what came: right, wrong, too long, too short, in another order."""

    def case(label, faults, lengths, *, extra=0, limit=None, vocab=None) -> Case:
        vocab = vocab or (700 if max(lengths) > 9 else None)
        words = [
            rng.permutation(9)[:n] if vocab is None else rng.integers(vocab, size=n)
            for n in lengths
        ]
        rows = [[*(each + 20).tolist(), EOS] for each in words]
        said = [_with_fault(row, fault, rng) for row, fault in zip(rows, faults, strict=True)]
        said_wide = max(map(len, said)) + extra
        wide = max(map(len, rows))
        # what stands after the end is whatever the model went on to say
        noise = [row + rng.integers(20, 29, size=said_wide - len(row)).tolist() for row in said]
        expected = [row + [PAD] * (wide - len(row)) for row in rows]
        said = np.array(noise)[:, :limit]
        return Case(label, {"said": said, "expected": np.array(expected)})

    return [
        case("one right", ["right"], [2]),
        case("one word wrong", ["word"], [3]),
        case("went on after the end", ["right", "right"], [2, 2], extra=2),
        case("one that does not end", ["right", "long"], [3, 2]),
        case("one that ends too soon", ["short", "short"], [3, 3]),
        case("stopped before the end", ["right", "right"], [3, 1], limit=2),
        case("in another order", ["order", "right"], [2, 3]),
        case(
            "some of each", ["right", "word", "long", "short", "right", "order"], [4, 3, 2, 4, 1, 3]
        ),
        case("the last word wrong", ["last", "right"], [4, 2]),
        case("words of one kind", ["right", "last", "long"], [3, 3, 1], vocab=1),
        case("an empty sentence", ["right", "long"], [0, 0]),
        case("a long sentence", ["last", "right"], [600, 600]),
        case("large token IDs", ["right", "word"], [3, 3], vocab=200_000),
    ]


def _with_fault(row: list[int], fault: str, rng: np.random.Generator) -> list[int]:
    words = row[:-1]
    if fault == "word":
        words[int(rng.integers(len(words)))] = 13
    elif fault == "last":
        words[-1] = 13
    elif fault == "long":
        words = [*words, 13]
    elif fault == "short":
        words = words[:-1]
    elif fault == "order":
        words = [*words[1:], words[0]]
    return [*words, EOS]


def _all_right(run: Run, case: Case) -> Problem | None:
    got = float(run.value(case, said=case.arguments["expected"]))
    return None if got == 1 else Problem("1 where the expected sentences are said", f"{got:.4g}")


def _nothing_after(run: Run, case: Case) -> Problem | None:
    said = case.arguments["said"].copy()
    for row in said:
        row[len(_until_end(row)) :] = 9
    longer = np.pad(said, ((0, 0), (0, 1)), constant_values=5)
    return stays(run, case, varied(case, "longer", said=longer), "more is said after the end")


def _one_is_enough(run: Run, case: Case) -> Problem | None:
    said = case.arguments["expected"].copy()
    said[:, 0] = 14
    got = float(run.value(case, said=said))
    return None if got == 0 else Problem("0 where each first word is wrong", f"{got:.4g}")


def _must_end(run: Run, case: Case) -> Problem | None:
    expected = case.arguments["expected"]
    shortest = int((expected == EOS).argmax(1).min())
    for said in (np.where(expected == EOS, 14, expected), expected[:, :shortest].copy()):
        got = float(run.value(case, said=said))
        if got != 0:
            return Problem("0 where no sentence ends", f"{got:.4g}")
    return None


def _in_float64(answer: Any, arguments: dict[str, Any]) -> Any:
    """A share may come in any dtype."""
    return answer.double() if isinstance(answer, Tensor) and answer.is_floating_point() else answer


def _in_float32(case: Case) -> float:
    """One whole number divided by another is float32 in torch: a right share, less precise."""
    return torch.finfo(torch.float32).eps


EXACT_MATCH = Spec(
    name="ch10.exact_match",
    statement="exact_match(said, expected): the share of sentences that are right from the first word to "
    f"the end, a number; said (B, L), expected (B, M), token IDs. A sentence ends with EOS = {EOS}; "
    f"after it said holds anything and expected PAD = {PAD}. One that never ends is wrong",
    required=("said", "expected"),
    reference=_match_reference,
    slack=_in_float32,
    cases=_match_cases,
    build=lambda candidate, arguments: lambda *given: _in_float64(candidate(*given), arguments),
    checks=(
        Check(
            "the expected sentences are all right",
            "Whoever says exactly what was expected is right every time.",
            _all_right,
        ),
        Check(
            "after the end nothing counts",
            "What stands behind EOS was never said.",
            _nothing_after,
            when=lambda case: bool((case.arguments["said"] == EOS).any(1).all()),
        ),
        Check(
            "one wrong word is enough",
            "Sentences are counted, not words.",
            _one_is_enough,
            when=lambda case: bool((case.arguments["expected"][:, 0] != EOS).all()),
        ),
        Check(
            "a sentence must end",
            "The right words and then more words is another sentence: EOS must agree too.",
            _must_end,
        ),
    ),
    mutants=mistakes(
        share_of_words, everything_compared, cut_to_the_shorter, end_not_compared, bag_of_words
    ),
    chapter=10,
    points=2,
)  # fmt: skip

EXERCISES = (SHIFT_RIGHT, LOWEST_LOSS, PEAK, COMBINE, CLIP, EXACT_MATCH)
