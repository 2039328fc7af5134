"""Homework 7: a whole model and how it learns (chapters 9 and 10)."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ... import reference
from ...specs.compare import Problem, brief, compare, unchanged
from ...specs.draw import attempts
from ...specs.mistakes import mistake, mistakes
from ...specs.spec import SHAPE, Case, Check, Run, Spec
from ..checks import of_exponents
from ..tasks import Assignment, Hunt, Task, Written

# --- What the decoder reads when sentences are packed ---------------------------------------------


def _reads_reference(said: np.ndarray, bos: int, eos: int, pad: int) -> np.ndarray:
    """Word by word: remember the last one, and forget it where a sentence ends."""
    answer = np.full_like(said, pad)
    for row, words in enumerate(said):
        last = bos
        for place, word in enumerate(words):
            if word == pad:
                continue
            answer[row, place] = last
            last = bos if word == eos else word
    return answer


def _before(said: Tensor, first: Tensor) -> Tensor:
    return torch.cat([first, said[:, :-1]], dim=1)


@mistake(
    "EOS read at the beginning",
    rejected_by="no sentence reads its neighbor",
    cause="The shift ignores the boundaries between sentences.",
)
def reads_the_neighbor(said, bos, eos, pad):
    """One place to the right, as for one sentence a row."""
    before = _before(said, torch.full_like(said[:, :1], bos))
    return before.masked_fill(said == pad, pad)


@mistake(
    "around the corner",
    rejected_by="a sequence begins with BOS",
    cause="torch.roll moves the last token to the front.",
)
def reads_around_the_corner(said, bos, eos, pad):
    """roll brings the last word of a row to its beginning."""
    before = said.roll(1, dims=1)
    return before.masked_fill((before == eos) | (before == pad), bos).masked_fill(said == pad, pad)


@mistake(
    "tokens in the padding",
    rejected_by="padding where the target is padding",
    cause="The shift carries the last EOS into the padding.",
)
def reads_in_padding(said, bos, eos, pad):
    """The padding is left to itself."""
    before = _before(said, torch.full_like(said[:, :1], bos))
    return before.masked_fill(before == eos, bos)


@mistake(
    "no shift",
    rejected_by="equals the reference",
    cause="Input and target must be shifted by one position.",
)
def reads_the_answer(said, bos, eos, pad):
    """No shift."""
    begins = _before(said, torch.full_like(said[:, :1], eos)) == eos
    return said.masked_fill(begins & (said != pad), bos)


@mistake(
    "the usual token IDs",
    rejected_by="a sequence begins with BOS",
    cause="0, 1 and 2 are hard-coded in place of the arguments.",
)
def reads_usual_numbers(said, bos, eos, pad):
    """PAD 0, BOS 1, EOS 2, as in this book."""
    before = _before(said, torch.full_like(said[:, :1], 1))
    return before.masked_fill(before == 2, 1).masked_fill(said == 0, 0)


@mistake(
    "BOS in an empty sequence",
    rejected_by="padding where the target is padding",
    cause="Position 0 is set to BOS even if it is padding.",
)
def reads_into_an_empty_row(said, bos, eos, pad):
    """Every row begins with BOS, also one of padding alone."""
    reads = torch.from_numpy(_reads_reference(said.numpy(), bos, eos, pad))
    reads[:, 0] = bos
    return reads


def _reads_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, rows, length, ids=(1, 2, 0)) -> Case:
        """Rows of words from 10 on, each a list of sentences' lengths; a last 0: cut off by the end."""
        bos, eos, pad = ids
        said = np.full((len(rows), length), pad)
        for row, sizes in enumerate(rows):
            words: list[int] = []
            for size in sizes:
                words += [*rng.integers(10, 30, size=size).tolist(), eos]
            words = words[:length]
            said[row, : len(words)] = words
        return Case(label, {"said": said, "bos": bos, "eos": eos, "pad": pad})

    return [
        case("one sentence", [[2]], 3),
        case("two sentences in a row", [[2, 1]], 5),
        case("padding at the end", [[1, 2]], 8),
        case("the last one cut off", [[3, 9], [2, 4]], 7),
        case("three rows", [[1, 1, 1], [6], [0, 2]], 9),
        case("a row of padding alone", [[2], [], [1, 1]], 4),
        case("padding is 7, BOS 8, EOS 9", [[2, 1], [1, 9]], 6, (8, 9, 7)),
    ]


def _at(where: Any) -> Any:
    """The answer is right at the places that `where(said, before, arguments)` picks."""

    def test(run: Run, case: Case) -> Problem | None:
        a = case.arguments
        before = np.pad(a["said"], ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
        expected, got = run.expected(case)[0], run.value(case)
        wrong = np.argwhere(where(a["said"], before, a) & (expected != got))
        if not len(wrong):
            return None
        row, place = wrong[0]
        return Problem(
            f"{expected[row, place]} at place {place} of row {row}, where said is {brief(a['said'][row])}",
            f"{got[row, place]}, in {brief(got[row])}",
        )

    return test


READS = Spec(
    name="hw07.reads",
    statement="reads(said, bos, eos, pad): what the decoder reads, (B, L); said (B, L) holds, in "
    "each sequence, sentences one after the other, each ended by eos (the last one may be cut "
    "off), then pad; a sequence may be all pad. The decoder reads, for each token, the token "
    "before it in its own sentence, bos for the first token, and pad where said is pad",
    required=("said", "bos", "eos", "pad"),
    reference=_reads_reference,
    cases=_reads_cases,
    checks=(
        Check(
            "a sequence begins with BOS",
            "Nothing comes before the first token of a sequence.",
            _at(lambda said, before, a: (before == -1) & (said != a["pad"])),
        ),
        Check(
            "no sentence reads its neighbor",
            "The token after EOS begins another sentence, which is independent of the one before.",
            _at(lambda said, before, a: (before == a["eos"]) & (said != a["pad"])),
        ),
        Check(
            "padding where the target is padding",
            "Where said is padding, what the decoder reads is padding too.",
            _at(lambda said, before, a: said == a["pad"]),
        ),
    ),
    mutants=mistakes(
        reads_the_neighbor, reads_around_the_corner, reads_in_padding, reads_the_answer,
        reads_usual_numbers, reads_into_an_empty_row
    ),
    chapter=10,
    points=2,
)  # fmt: skip

# --- The widest model that fits -------------------------------------------------------------------


def parameters(vocab: int, width: int, layers: int) -> int:
    """Part by part: the table, then each matrix, bias and norm of every layer."""
    attention = 4 * (width * width + width)
    network = width * 4 * width + 4 * width + 4 * width * width + width
    norm = 2 * width
    encoder_layer = attention + norm + network + norm
    decoder_layer = attention + norm + attention + norm + network + norm
    return vocab * width + layers * (encoder_layer + decoder_layer)


def _widest(count: Any, budget: int, multiple: int, slack: int = 0) -> int:
    """The last multiple whose count stays within the budget."""
    width = 0
    while count(width + multiple) + slack <= budget:
        width += multiple
    return width


def _widest_reference(budget: int, vocab: int, layers: int, multiple: int) -> int:
    return _widest(lambda width: parameters(vocab, width, layers), budget, multiple)


@mistake(
    "the embedding matrix forgotten",
    rejected_by="it fits",
    cause="The embedding matrix has vocab x D parameters.",
)
def widest_without_table(budget, vocab, layers, multiple):
    """Layers only."""
    return _widest(lambda d: layers * (28 * d * d + 32 * d), budget, multiple)


@mistake(
    "the embedding matrix twice",
    rejected_by="nothing wider fits",
    cause="Embedding and output layer share one matrix.",
)
def widest_with_two_tables(budget, vocab, layers, multiple):
    """The output layer is counted again."""
    return _widest(lambda d: 2 * vocab * d + layers * (28 * d * d + 32 * d), budget, multiple)


@mistake(
    "matrices only",
    rejected_by="it fits",
    cause="Biases and norms have 32 D parameters in each pair of layers.",
)
def widest_without_biases(budget, vocab, layers, multiple):
    """Matrices only."""
    return _widest(lambda d: vocab * d + layers * 28 * d * d, budget, multiple)


@mistake(
    "no cross-attention",
    rejected_by="it fits",
    cause="A decoder layer has a second attention with its norm.",
)
def widest_without_cross(budget, vocab, layers, multiple):
    """A decoder layer like an encoder layer."""
    return _widest(lambda d: vocab * d + layers * 2 * (12 * d * d + 13 * d), budget, multiple)


@mistake(
    "less than the budget",
    rejected_by="nothing wider fits",
    cause="< in place of <=.",
)
def widest_with_room_to_spare(budget, vocab, layers, multiple):
    """Less than the budget."""
    return _widest(lambda d: parameters(vocab, d, layers), budget, multiple, slack=1)


@mistake(
    "a bias for the output",
    rejected_by="nothing wider fits",
    cause="The output layer is the embedding matrix alone and has no bias.",
)
def widest_with_output_bias(budget, vocab, layers, multiple):
    """One number more for each word."""
    return _widest(lambda d: parameters(vocab, d, layers) + vocab, budget, multiple)


@mistake(
    "a limit on the dimension",
    rejected_by="nothing wider fits",
    cause="The loop over D ends by itself. Only the budget may end it.",
)
def widest_up_to_a_limit(budget, vocab, layers, multiple):
    """Every width below 5,000 is tried."""
    widths = range(multiple, 5000, multiple)
    return max((d for d in widths if parameters(vocab, d, layers) <= budget), default=0)


@mistake(
    "rounded to the nearest",
    rejected_by="it fits",
    cause="The largest model that fits: round down, not up.",
)
def widest_rounded(budget, vocab, layers, multiple):
    """The nearest multiple, which may be too wide."""
    exact = _widest(lambda d: parameters(vocab, d, layers), budget, 1)
    return multiple * ((exact + multiple // 2) // multiple)


def _widest_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, budget, vocab, layers, multiple) -> Case:
        sizes = {"budget": budget, "vocab": vocab, "layers": layers, "multiple": multiple}
        return Case(label, sizes)

    drawn = [int(n) for n in rng.integers(2, 9, size=3)]
    vocab, layers, multiple = 100 * drawn[0], drawn[1], 2 * drawn[2]
    width = multiple * int(rng.integers(3, 9))
    return [
        case("a small model", 600, 10, 1, 2),
        case("a little room", parameters(20, 16, 2) + 3, 20, 2, 4),
        case("the budget is used up", 616, 10, 1, 2),
        case("one parameter short", parameters(50, 24, 2) - 1, 50, 2, 8),
        case("a table larger than the layers", 1_000_000, 9_000, 1, 4),
        case("more than half of a step left", parameters(30, 44, 3), 30, 3, 16),
        case("nothing fits", 1_000, 20, 2, 8),
        case("other sizes, used up", parameters(vocab, width, layers), vocab, layers, multiple),
        case("other sizes, one short", parameters(vocab, width, layers) - 1, vocab, layers, multiple),
        case("the base model of 2017", 65_000_000, 37_000, 6, 64),
        case("very wide", parameters(100, 40_960, 1) + 9, 100, 1, 512),
    ]  # fmt: skip


def _a_multiple(run: Run, case: Case) -> Problem | None:
    got, multiple = int(run.value(case)), case.arguments["multiple"]
    return (
        Problem(f"a multiple of {multiple}, from 0 up", str(got))
        if got % multiple or got < 0
        else None
    )


def _fits(run: Run, case: Case) -> Problem | None:
    a, got = case.arguments, int(run.value(case))
    count = parameters(a["vocab"], got, a["layers"])
    if count <= a["budget"]:
        return None
    return Problem(f"at most {a['budget']:,} parameters", f"width {got} with {count:,}")


def _no_wider(run: Run, case: Case) -> Problem | None:
    a, got = case.arguments, int(run.value(case))
    wider = got + a["multiple"]
    count = parameters(a["vocab"], wider, a["layers"])
    if count > a["budget"]:
        return None
    return Problem(f"width {wider}, with {count:,} of {a['budget']:,}", f"width {got}")


WIDEST = Spec(
    name="hw07.widest",
    statement="widest(budget, vocab, layers, multiple): the largest model dimension D, a "
    "multiple of `multiple`, for which the post-norm Transformer of 2017 has at most `budget` "
    "parameters; `layers` in each stack, hidden dimension 4 D, one matrix for both embeddings "
    "and the output layer, biases everywhere except in the output layer; no parameters in the "
    "positions, no norm after the stacks; 0 if nothing fits; an int",
    required=("budget", "vocab", "layers", "multiple"),
    reference=_widest_reference,
    cases=_widest_cases,
    usual=(SHAPE,),
    checks=(
        Check("a multiple", "D must be a multiple of the number in the argument.", _a_multiple),
        Check(
            "it fits",
            "A model of this dimension has more parameters than the budget allows. What did you "
            "not count?",
            _fits,
        ),
        Check(
            "nothing wider fits",
            "The next multiple still fits. What did you count twice, or is the budget not used "
            "up?",
            _no_wider,
        ),
    ),
    mutants=mistakes(
        widest_without_table, widest_with_two_tables, widest_without_biases, widest_without_cross,
        widest_with_room_to_spare, widest_with_output_bias, widest_up_to_a_limit, widest_rounded
    ),
    chapter=9,
    points=2,
)  # fmt: skip

# --- The gradient of the loss ---------------------------------------------------------------------


def _gradient_reference(
    logits: np.ndarray, answers: np.ndarray, smoothing: float, pad: int
) -> np.ndarray:
    """Place by place: what the model says, less the target, over the number of words."""
    words, gradient = int((answers != pad).sum()), np.zeros_like(logits)
    for place in np.argwhere(answers != pad):
        at, vocab = tuple(place), logits.shape[-1]
        target = reference.word_target(answers[at], vocab, smoothing, logits.dtype.type)
        gradient[at] = (reference.softmax(logits[at]) - target) / words
    return gradient


def _excess(logits: Tensor, answers: Tensor, right: float, other: float) -> Tensor:
    """Softmax less a target with `right` on the answer and `other` elsewhere, at every position."""
    words = answers.clamp(0, logits.shape[-1] - 1)  # where pad is none, any: it does not count
    target = torch.full_like(logits, other).scatter(-1, words[..., None], right)
    return logits.softmax(-1) - target


def _smoothed_excess(logits: Tensor, answers: Tensor, smoothing: float) -> Tensor:
    other = smoothing / logits.shape[-1]
    return _excess(logits, answers, 1 - smoothing + other, other)


def _over_words(excess: Tensor, answers: Tensor, pad: int) -> Tensor:
    real = answers != pad
    return excess.masked_fill(~real[..., None], 0.0) / max(int(real.sum()), 1)


def _plain_gradient(logits, answers, smoothing, pad):
    return _over_words(_smoothed_excess(logits, answers, smoothing), answers, pad)


@mistake(
    "padding pulls",
    rejected_by="no gradient at padding",
    cause="The rows at padding are not set to 0.",
)
def gradient_on_padding(logits, answers, smoothing, pad):
    """Padding pulls like a word."""
    real = int((answers != pad).sum())
    return _smoothed_excess(logits, answers, smoothing) / max(real, 1)


@mistake(
    "divided by all positions",
    rejected_by="more padding changes nothing",
    cause="B L in place of the number of targets.",
)
def gradient_over_places(logits, answers, smoothing, pad):
    """Divided by B L."""
    return (
        _smoothed_excess(logits, answers, smoothing) * (answers != pad)[..., None] / answers.numel()
    )


@mistake(
    "not divided",
    rejected_by="every sentence twice, half of the pull on each",
    cause="The gradient of the sum, not of the mean.",
)
def gradient_of_the_sum(logits, answers, smoothing, pad):
    """Not divided."""
    return _smoothed_excess(logits, answers, smoothing) * (answers != pad)[..., None]


@mistake(
    "a mean of means",
    rejected_by="tokens count, not sentences",
    cause="Divided by the number of tokens of each sentence, then by the number of sentences.",
)
def gradient_by_sentence(logits, answers, smoothing, pad):
    """Each sentence's mean, and then the mean of these."""
    real = answers != pad
    words = real.sum(-1, keepdim=True).clamp(min=1)[..., None]
    sentences = max(int(real.any(-1).sum()), 1)
    excess = _smoothed_excess(logits, answers, smoothing) * real[..., None]
    return excess / words / sentences


@mistake(
    "the wrong tokens get all of it",
    rejected_by="at rest at the target",
    cause="e is distributed over V - 1 tokens, but the right one gets e/V as well.",
)
def gradient_wrong_words_only(logits, answers, smoothing, pad):
    """e is spread over V - 1 words."""
    other = smoothing / (logits.shape[-1] - 1)
    return _over_words(_excess(logits, answers, 1 - smoothing, other), answers, pad)


@mistake(
    "a target that is short",
    rejected_by="each row sums to 0",
    cause="1 - e for the right token and e/V for the others sum to less than 1.",
)
def gradient_target_short(logits, answers, smoothing, pad):
    """The right word keeps 1 - e and no more."""
    other = smoothing / logits.shape[-1]
    return _over_words(_excess(logits, answers, 1 - smoothing, other), answers, pad)


@mistake(
    "uphill",
    rejected_by="a step against it lowers the loss",
    cause="Target minus softmax: the sign is wrong.",
)
def gradient_uphill(logits, answers, smoothing, pad):
    """Target less softmax."""
    return -_plain_gradient(logits, answers, smoothing, pad)


@mistake(
    "exp of large scores",
    rejected_by="finite for logits of any magnitude",
    cause="exp overflows at 710 in float64: softmax subtracts the largest logit first.",
)
def gradient_overflows(logits, answers, smoothing, pad):
    """exp(x) / sum of exp(x), as it stands in the formula."""
    raised = logits.exp()
    logs = (raised / raised.sum(-1, keepdim=True)).log()
    return _plain_gradient(logs, answers, smoothing, pad)


@mistake(
    "padding looked up",
    rejected_by="RuntimeError",
    cause="one_hot accepts only IDs from 0 to V - 1. Replace pad with any valid ID first: it "
    "does not count.",
)
def gradient_looks_padding_up(logits, answers, smoothing, pad):
    """A row of zeros and a 1 for every place, also where the number is no word."""
    right = functional.one_hot(answers, logits.shape[-1]).to(logits.dtype)
    target = (1 - smoothing) * right + smoothing / logits.shape[-1]
    return _over_words(logits.softmax(-1) - target, answers, pad)


def _gradient_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, lengths, longest, vocab, smoothing, pad=0, scale=2.0, dtype=torch.float64):
        words = [word for word in range(vocab) if word != pad]
        answers = rng.choice(words, size=(len(lengths), longest))
        for row, length in zip(answers, lengths, strict=True):
            row[length:] = pad
        logits = scale * rng.normal(size=(*answers.shape, vocab))
        arguments = {"logits": logits, "answers": answers, "smoothing": smoothing, "pad": pad}
        return Case(label, arguments, dtype)

    return [
        case("one word", [1], 1, 3, 0.0),
        case("one word, smoothed", [1], 1, 4, 0.3),
        case("a sentence with padding", [2], 4, 5, 0.1),
        case("two sentences of different lengths", [5, 2], 5, 6, 0.2),
        case("padding is number 4", [1, 3, 4], 4, 7, 0.1, pad=4),
        case("padding is number -100", [2, 3], 3, 5, 0.1, pad=-100),
        case("one row is padding only", [3, 0], 3, 8, 0.0),
        case("no word at all", [0, 0], 3, 5, 0.1),
        case("large scores", [2, 3], 3, 6, 0.1, scale=1e4),
        case("float32", [6, 3, 1], 7, 9, 0.1, dtype=torch.float32),
    ]


def _gradient_slack(case: Case) -> float:
    """A probability may be made as the exponential of a difference of two large numbers."""
    words = max(1, int(_real(case).sum()))
    return of_exponents(case, np.abs(case.arguments["logits"]).max()) / words


def _real(case: Case) -> np.ndarray:
    return case.arguments["answers"] != case.arguments["pad"]


def _ordinary(case: Case) -> bool:
    return case.dtype == torch.float64 and bool(_real(case).any())


def _first_place(wrong: np.ndarray, expected: str, got: np.ndarray) -> Problem | None:
    """The first place, (B, L), at which something is wrong, and what stands there."""
    if not wrong.any():
        return None
    row, place = np.argwhere(wrong)[0]
    return Problem(f"{expected}, at place {place} of row {row}", brief(got[row, place]))


def _numbers(run: Run, case: Case) -> Problem | None:
    got = run.value(case)
    return _first_place(~np.isfinite(got).all(-1), "numbers", got)


def _sums_to_zero(run: Run, case: Case) -> Problem | None:
    got = run.value(case)
    far = np.abs(got.sum(-1)) > got.shape[-1] * run.expected(case)[1]
    return _first_place(_real(case) & far, "the sum 0", got.sum(-1))


def _no_pull_on_padding(run: Run, case: Case) -> Problem | None:
    got = run.value(case)
    return _first_place(~_real(case) & (got != 0).any(-1), "zeros (answers is pad)", got)


def _still_at_the_target(run: Run, case: Case) -> Problem | None:
    """Where the model says exactly the target, nothing pulls."""
    a = case.arguments
    vocab, best = a["logits"].shape[-1], np.zeros_like(a["logits"])
    for place in np.argwhere(_real(case)):
        best[tuple(place)] = np.log(
            reference.word_target(a["answers"][tuple(place)], vocab, a["smoothing"])
        )
    expected, rounding = run.expected(case, logits=best)  # what cancels was rounded as elsewhere
    tolerance = rounding + run.expected(case)[1]
    return compare(expected, run.value(case, logits=best), tolerance, "at the target")


def _twice_is_half(run: Run, case: Case) -> Problem | None:
    twice = {name: np.concatenate([case.arguments[name]] * 2) for name in ("logits", "answers")}
    got = run.value(case, **twice)[: len(twice["answers"]) // 2]
    what = "the pull times the number of words"
    return unchanged(
        run.value(case), 2 * got, 2 * run.expected(case)[1], "every sentence comes twice", what
    )


def _more_padding(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    answers = np.pad(a["answers"], ((0, 0), (0, 3)), constant_values=a["pad"])
    logits = np.pad(a["logits"], ((0, 0), (0, 3), (0, 0)), constant_values=0.5)
    got = run.value(case, logits=logits, answers=answers)[:, : a["answers"].shape[1]]
    return unchanged(run.value(case), got, 2 * run.expected(case)[1], "there is more padding")


def _one_long_row(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    logits, answers = a["logits"].reshape(1, -1, a["logits"].shape[-1]), a["answers"].reshape(1, -1)
    got = run.value(case, logits=logits, answers=answers).reshape(a["logits"].shape)
    return unchanged(run.value(case), got, 2 * run.expected(case)[1], "all stand in one row")


def _downhill(run: Run, case: Case) -> Problem | None:
    a, got = case.arguments, run.value(case)
    length = float(np.sqrt((got**2).sum()))
    if length == 0:
        return None
    options = {"ignore": a["pad"], "label_smoothing": a["smoothing"]}
    here, there = (
        float(reference.cross_entropy(a["logits"] - step * got / length, a["answers"], **options))
        for step in (0.0, 1e-3)
    )
    return None if there < here else Problem(f"a loss below {here:.6f}", f"{there:.6f}")


SCORE_GRADIENT = Spec(
    name="hw07.score_gradient",
    statement="score_gradient(logits, answers, smoothing, pad): the gradient, with respect to "
    "the logits, of the mean cross-entropy per token, (B, L, V), by a formula, without autograd; "
    "logits (B, L, V), answers (B, L); where the answer is pad, any integer, there is no target. "
    "The target probability is 1 - smoothing for the right token, plus smoothing/V for each of "
    "the V tokens. Without any target the gradient is 0",
    required=("logits", "answers", "smoothing", "pad"),
    reference=_gradient_reference,
    slack=_gradient_slack,
    baseline=_plain_gradient,
    differentiable=False,
    cases=_gradient_cases,
    checks=(
        Check(
            "finite for logits of any magnitude",
            "Softmax is finite for logits of any magnitude, and so is the gradient. exp alone is "
            "not.",
            _numbers,
            when=lambda case: _ordinary(case) and np.abs(case.arguments["logits"]).max() > 1000,
        ),
        Check(
            "no gradient at padding",
            "At padding every entry of the gradient is 0.",
            _no_pull_on_padding,
        ),
        Check(
            "each row sums to 0",
            "A softmax does not change if all its logits are shifted, so the gradient of a row "
            "sums to 0.",
            _sums_to_zero,
            when=_ordinary,
        ),
        Check(
            "at rest at the target",
            "Where the softmax equals the smoothed target, the loss is smallest and the gradient "
            "is 0.",
            _still_at_the_target,
            when=lambda case: _ordinary(case) and case.arguments["smoothing"] > 0,
        ),
        Check(
            "more padding changes nothing",
            "The mean is over the targets. Padding must not make the gradient smaller.",
            _more_padding,
            when=_ordinary,
        ),
        Check(
            "every sentence twice, half of the pull on each",
            "It is the gradient of a mean: with twice as many targets, each contributes half.",
            _twice_is_half,
            when=_ordinary,
        ),
        Check(
            "tokens count, not sentences",
            "The same tokens in one long sequence must have the same gradient.",
            _one_long_row,
            when=_ordinary,
        ),
        Check(
            "a step against it lowers the loss",
            "The gradient points in the direction in which the loss increases.",
            _downhill,
            when=lambda case: _ordinary(case) and np.abs(case.arguments["logits"]).max() < 100,
        ),
    ),
    mutants=mistakes(
        gradient_on_padding, gradient_over_places, gradient_of_the_sum, gradient_by_sentence,
        gradient_wrong_words_only, gradient_target_short, gradient_uphill, gradient_overflows,
        gradient_looks_padding_up
    ),
    chapter=10,
    points=2,
)  # fmt: skip

# --- The cheapest batches -------------------------------------------------------------------------


def _pads(batch: Sequence[int]) -> int:
    return max(batch) * len(batch) - sum(batch)


def _best_cuts(ordered: list[int], num_batches: int) -> int:
    """Try every size of the first batch, and the best for the rest."""

    @functools.cache
    def best(first: int, batches: int) -> float:
        if first == len(ordered):
            return 0
        if batches == 0:
            return float("inf")
        ends = range(first + 1, len(ordered) + 1)
        return min(_pads(ordered[first:end]) + best(end, batches - 1) for end in ends)

    return int(best(0, num_batches))


def _fewest_reference(lengths: Sequence[int], num_batches: int) -> int:
    """Some best split never mixes: it cuts the sorted list. All cuts are tried."""
    return _best_cuts(sorted(lengths), num_batches)


@mistake(
    "in the order given",
    rejected_by="a batch for each length",
    cause="Only neighbors are combined, but the list is not sorted.",
)
def pads_in_the_given_order(lengths, num_batches):
    """Not sorted."""
    return _best_cuts(list(lengths), num_batches)


@mistake(
    "equal batches",
    rejected_by="a batch for each length",
    cause="The sorted list is divided into equal parts, not where it saves padding.",
)
def pads_of_equal_batches(lengths, num_batches):
    """Sorted, and cut into batches of the same size."""
    ordered, size = sorted(lengths), -(-len(lengths) // num_batches)
    return sum(_pads(ordered[first : first + size]) for first in range(0, len(ordered), size))


def _cut_at(ordered: list[int], cuts: list[int]) -> int:
    edges = [0, *sorted(cuts), len(ordered)]
    return sum(_pads(ordered[a:b]) for a, b in itertools.pairwise(edges) if a < b)


@mistake(
    "divided at the largest jumps",
    rejected_by="equals the reference",
    cause="A jump costs one padding token for each sentence that is padded across it.",
)
def pads_at_the_largest_gaps(lengths, num_batches):
    """A cut wherever the lengths jump most."""
    ordered = sorted(lengths)
    places = sorted(range(1, len(ordered)), key=lambda i: ordered[i - 1] - ordered[i])
    return _cut_at(ordered, places[: num_batches - 1])


@mistake(
    "the best boundary, again and again",
    rejected_by="equals the reference",
    cause="A greedy choice, but all boundaries must be chosen together.",
)
def pads_cut_by_cut(lengths, num_batches):
    """The cut that saves most, then the next."""
    ordered, cuts = sorted(lengths), []
    for _ in range(min(num_batches, len(ordered)) - 1):
        others = [place for place in range(1, len(ordered)) if place not in cuts]
        cuts.append(min(others, key=lambda place: _cut_at(ordered, [*cuts, place])))
    return _cut_at(ordered, cuts)


@mistake(
    "the cheapest neighbors merged",
    rejected_by="equals the reference",
    cause="A greedy choice from below: what is merged once is never separated again.",
)
def pads_merged(lengths, num_batches):
    """A batch for each sentence; the two neighbors that cost least are merged, again and again."""
    ordered = sorted(lengths)
    cuts = list(range(1, len(ordered)))
    while len(cuts) >= num_batches:
        cuts.remove(min(cuts, key=lambda cut: _cut_at(ordered, [c for c in cuts if c != cut])))
    return _cut_at(ordered, cuts)


@mistake(
    "no batch left empty",
    rejected_by="a way is found",
    cause="Exactly num_batches in place of at most num_batches.",
)
def pads_in_exactly_as_many(lengths, num_batches):
    """No way is found if a batch would be empty."""
    if num_batches > len(lengths):
        return math.inf
    return _fewest_reference(lengths, num_batches)


@mistake(
    "all positions counted",
    rejected_by="a single batch",
    cause="The size of a batch, sentences x longest, is not its padding.",
)
def pads_and_words(lengths, num_batches):
    """All places, not the padded ones."""
    return _fewest_reference(lengths, num_batches) + sum(lengths)


def _fewest_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, lengths, num_batches) -> Case:
        return Case(label, {"lengths": tuple(int(n) for n in lengths), "num_batches": num_batches})

    def drawn(label, count, longest, num_batches) -> Case:
        """The first lengths for which every short cut but sorting costs something."""
        for _ in attempts():
            lengths = rng.geometric(2 / longest, size=count).tolist()
            best = _fewest_reference(lengths, num_batches)
            others = (
                pads_of_equal_batches, pads_at_the_largest_gaps, pads_cut_by_cut, pads_merged,
            )  # fmt: skip
            if min(wrong(lengths, num_batches) for wrong in others) > best:
                return case(label, lengths, num_batches)

    return [
        case("one batch", [3, 1, 4], 1),
        case("five sentences", [9, 1, 8, 2, 2], 2),
        case("three short ones and a long one", [2, 7, 2, 2], 2),
        case("more batches than sentences", [5, 2], 4),
        case("many short ones", [1, 1, 6, 1, 3, 1, 1], 2),
        case("four sentences", [9, 6, 4, 1], 2),
        drawn("nine sentences", 9, 12, 3),
        drawn("sixteen sentences", 16, 20, 4),
        drawn("twenty-two sentences", 22, 40, 5),
        drawn("forty sentences, ten batches", 40, 80, 10),  # 2 * 10^8 ways to cut the sorted list
    ]


def _a_way_is_found(run: Run, case: Case) -> Problem | None:
    got = run.value(case)
    return None if np.isfinite(got).all() else Problem("a number of pads", brief(got))


def _one_batch(run: Run, case: Case) -> Problem | None:
    lengths = case.arguments["lengths"]
    got = run.value(case, num_batches=1)
    return compare(np.asarray(_pads(lengths)), got, 0.0, "with num_batches 1, the padding")


def _one_for_each(run: Run, case: Case) -> Problem | None:
    batches = len(set(case.arguments["lengths"]))
    got = run.value(case, num_batches=batches)
    return compare(np.asarray(0), got, 0.0, f"with num_batches {batches}, the padding")


def _any_order(run: Run, case: Case) -> Problem | None:
    lengths = tuple(sorted(case.arguments["lengths"]))
    got = run.value(case, lengths=lengths)
    return unchanged(run.value(case), got, 0.0, "the lengths are sorted", "the padding")


FEWEST_PADS = Spec(
    name="hw07.fewest_pads",
    statement="fewest_pads(lengths, num_batches): the smallest number of padding tokens with "
    "which sentences of these lengths (a tuple of ints, from 1 up) can be divided into at most "
    "num_batches batches of any sizes; in a batch every sentence is padded to the longest; an int",
    required=("lengths", "num_batches"),
    reference=_fewest_reference,
    cases=_fewest_cases,
    usual=(SHAPE,),
    checks=(
        Check(
            "a way is found",
            "At most num_batches means that not all of them have to be used.",
            _a_way_is_found,
        ),
        SHAPE,
        Check(
            "a single batch",
            "With one batch there is no choice: all are padded to the longest, and the padding "
            "is counted.",
            _one_batch,
        ),
        Check(
            "a batch for each length",
            "If there are as many batches as different lengths, no padding is needed.",
            _one_for_each,
        ),
        Check(
            "in any order",
            "Any sentences may share a batch, so their order must not matter.",
            _any_order,
        ),
    ),
    mutants=mistakes(
        pads_in_the_given_order, pads_of_equal_batches, pads_at_the_largest_gaps, pads_cut_by_cut,
        pads_merged, pads_in_exactly_as_many, pads_and_words
    ),
    chapter=10,
    points=3,
)  # fmt: skip

# --- The hunt: a loss -----------------------------------------------------------------------------


def _surprise(logits: Tensor, answers: Tensor, pad: int) -> tuple[Tensor, Tensor]:
    """-log p of each answer (B, L), and where words stand; what stands at padding is arbitrary."""
    real = answers != pad
    safe = answers.masked_fill(~real, 0)
    return -logits.log_softmax(-1).gather(-1, safe[..., None])[..., 0], real


def loss_by_torch(logits, answers, pad):
    """torch's sum, divided by the words."""
    total = functional.cross_entropy(
        logits.flatten(0, 1), answers.flatten(), ignore_index=pad, reduction="sum"
    )
    return total / (answers != pad).sum().clamp(min=1)


def loss_in_a_loop(logits, answers, pad):
    """Word by word, from the last to the first, in powers of 2, and a mean that moves on."""
    mean, words = logits.new_zeros(()), 0
    for row, word in zip(
        logits.flatten(0, 1).flip(0), answers.flatten().flip(0).tolist(), strict=True
    ):
        if word != pad:
            words += 1
            bits = (row - row.min()) / math.log(2)
            mean = mean + (functools.reduce(torch.logaddexp2, bits) - bits[word] - mean) / words
    return mean * math.log(2)


def loss_by_targets(logits, answers, pad):
    """Scores from 0 up, and a table of the words' shares of the mean, by einsum."""
    real = answers != pad
    targets = torch.zeros_like(logits).scatter(-1, answers.masked_fill(~real, 0)[..., None], 1.0)
    targets = targets * real[..., None] / max(int(real.sum()), 1)
    scores = logits - logits.amin(-1, keepdim=True)
    return torch.einsum("blv,blv->", targets, scores.logsumexp(-1, keepdim=True) - scores)


@mistake(
    "padding counted",
    rejected_by="a padded row",
    symptom="What the model predicts at padding changes the loss.",
    cause="Padding counts like any other token.",
)
def hunted_pads_counted(logits, answers, pad):
    """Padding is word 0, or whatever its number is."""
    surprise, _ = _surprise(logits, answers.clamp(0, logits.shape[-1] - 1), -1)
    return surprise.mean()


@mistake(
    "divided by all positions",
    rejected_by="a padded row",
    symptom="More padding makes the loss smaller.",
    cause="The mean is over all B L positions.",
)
def hunted_all_places(logits, answers, pad):
    """Zeros are part of the mean."""
    surprise, real = _surprise(logits, answers, pad)
    return (surprise * real).mean()


@mistake(
    "a mean of means",
    rejected_by="rows of different lengths",
    symptom="A short sentence counts as much as a long one.",
    cause="One mean for each sentence, and then the mean of these.",
)
def hunted_by_sentence(logits, answers, pad):
    """The mean of the sentences' means."""
    surprise, real = _surprise(logits, answers, pad)
    means = (surprise * real).sum(-1) / real.sum(-1).clamp(min=1)
    return means.sum() / real.any(-1).sum().clamp(min=1)


@mistake(
    "softmax twice",
    rejected_by="any example",
    symptom="A confident and right prediction still has a loss.",
    cause="The logits pass through a softmax before the loss.",
)
def hunted_softmax_twice(logits, answers, pad):
    """Probabilities are taken for logits."""
    return loss_by_torch(logits.softmax(-1), answers, pad)


@mistake(
    "exp overflows",
    rejected_by="large scores",
    symptom="The loss is NaN if the logits are large.",
    cause="exp before the maximum is subtracted.",
)
def hunted_overflow(logits, answers, pad):
    """log(exp(x) / sum of exp(x))."""
    raised = logits.exp()
    return loss_by_torch((raised / raised.sum(-1, keepdim=True)).log(), answers, pad)


@mistake(
    "padding is always 0",
    rejected_by="another pad number",
    symptom="Right for one vocabulary and wrong for another.",
    cause="The argument pad is not used.",
)
def hunted_pad_is_zero(logits, answers, pad):
    """The argument is not looked at."""
    return loss_by_torch(logits, answers.masked_fill(answers < 0, 0), 0)


@mistake(
    "nothing divided by nothing",
    rejected_by="a batch of padding",
    symptom="One batch without a target, and every weight is NaN.",
    cause="0 / 0 if there is no target.",
)
def hunted_no_words(logits, answers, pad):
    """0 / 0."""
    surprise, real = _surprise(logits, answers, pad)
    return (surprise * real).sum() / real.sum()


@mistake(
    "up to the first padding",
    rejected_by="padding on the left",
    symptom="Sequences with padding on the left contribute nothing.",
    cause="Each sequence is read up to its first padding.",
)
def hunted_upto_padding(logits, answers, pad):
    """The words before the first padding."""
    surprise, real = _surprise(logits, answers, pad)
    real = real.long().cumprod(-1)
    return (surprise * real).sum() / real.sum().clamp(min=1)


@mistake(
    "the scores changed",
    rejected_by="compare the inputs before and after",
    symptom="The loss is right, but later results from the same logits are not.",
    cause="-= works in place, on the caller's tensor.",
)
def hunted_in_place(logits, answers, pad):
    """The largest score is subtracted from the caller's tensor."""
    logits -= logits.amax(-1, keepdim=True)
    return loss_by_torch(logits, answers, pad)


@mistake(
    "half precision",
    rejected_by="more than three digits, or scores above 65,504",
    symptom="Right to three digits.",
    cause="The logits are rounded to float16 on the way.",
)
def hunted_half(logits, answers, pad):
    """Half precision on the way."""
    return loss_by_torch(logits.half().float(), answers, pad).to(logits.dtype)


HUNT = Hunt(
    name="hw07.hunt",
    function="test_loss",
    statement="test_loss(loss): assert that loss(logits, answers, pad) is the mean cross-entropy "
    "over the targets of a batch, 0 without any target, for logits of any magnitude; logits (B, "
    "L, V) in float32 or float64, answers (B, L); where the answer is pad, anywhere in a "
    "sequence, there is no target; pad is any integer, also none of the V token IDs; the inputs "
    "are unchanged",
    right={"torch": loss_by_torch, "a loop": loss_in_a_loop, "einsum": loss_by_targets},
    mutants=mistakes(
        hunted_pads_counted, hunted_all_places, hunted_by_sentence, hunted_softmax_twice,
        hunted_overflow, hunted_pad_is_zero, hunted_no_words, hunted_upto_padding, hunted_in_place,
        hunted_half
    ),
    points=4,
    minutes=55,
    difficulty="core",
    chapter=10,
)  # fmt: skip

ASSIGNMENT = Assignment(
    name="hw07",
    title="Losses and batches",
    weeks="7",
    chapters=(9, 10),
    parts=(
        Task(spec=READS, function="reads", minutes=15, difficulty="warm-up"),
        Task(spec=WIDEST, function="widest", minutes=30, difficulty="core"),
        Task(
            spec=SCORE_GRADIENT, function="score_gradient", minutes=25, difficulty="core",
            forbidden=(
                "torch.autograd.grad",
                "torch.autograd.backward",
                "torch.func.grad",
                "torch.autograd.forward_ad.make_dual",
            ),
        ),
        Task(spec=FEWEST_PADS, function="fewest_pads", minutes=50, difficulty="challenge"),
        HUNT,
        Written(
            name="hw07-tied",
            kind="explanation",
            points=2,
            minutes=30,
            rubric="0.5: V D = 37,000 x 512 = 18,944,000 more parameters (about 30 % of 63 "
            "million). 0.5: tied, with one layer in each stack, the untrained model predicts the "
            "token that it has read, because the residual stream carries its embedding to the "
            "output layer, where it matches itself best, and its loss is above ln V (measured "
            "with V = 37,000: 100 % and 11.7, ln V is 10.5); untied, the logits are near 0 and "
            "the loss is at ln V. A quarter for the depth: each sublayer adds something to the "
            "sum and the norm rescales it, so the share of the embedding shrinks (measured: "
            "cosine of the final state and the row 0.5, and 0.01 with six layers). 0.75: untied, "
            "an input row whose token is not in the batch has a gradient of exactly 0; tied, "
            "every row gets one at every step, because the softmax runs over all V tokens and "
            "each row has produced a logit. Half of that without the reason.",
        ),
        Written(
            name="hw07-below",
            kind="explanation",
            points=2,
            minutes=25,
            rubric="0.5 for each of two harmless causes with its mechanism (dropout on in "
            "training only; the training loss is an average over an epoch in which the weights "
            "improved; label smoothing or other regularization in the training loss only; an "
            "easier validation set), at most 1. 0.5: a bug in the evaluation (padding counted; "
            "divided by positions or by batches of another kind; the target can be copied "
            "because the causal mask or the shift is missing), and why a leak alone is not "
            "enough: sentences that are in both sets are at best as easy as the training set, "
            "measured in the same way. 0.5: a measurement that would decide, such as the same "
            "sentences with the same weights and dropout off through the training loss and the "
            "evaluation loss: equal if the causes are harmless (smoothing aside), lower in the "
            "evaluation if that is wrong. A quarter for evaluating the training sentences like "
            "the validation sentences: it detects an easier set, but not a wrong evaluation.",
        ),
        Written(
            name="hw07-experiment",
            kind="experiment",
            points=3,
            minutes=50,
            rubric="1: the code runs, compares with the undisturbed accuracy at the same "
            "positions, and never replaces a token with itself. 1: the finding with numbers: the "
            "next prediction is mostly wrong (measured: 3 % right after position 2, 41 % after "
            "position 4, a few points more or less with other seeds), one token later 98 % are "
            "right again. 1: a careful conclusion: what counts as wrong is often a repair (72 % "
            "of the rows predict `hundred` one token late) or fits the new prefix; the right "
            "tokens are fed again after the mistake, so this is the effect of reading one wrong "
            "token, not of free generation; a random token is a more severe error than a "
            "probable mistake; one model, one task. Two of these are enough.",
        ),
    ),
)  # fmt: skip
