"""Exercises of chapter 12: BERT."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..data.masked_tokens import IGNORE
from ..specs.compare import Problem, compare
from ..specs.masked_language.spec import MASK_TOKENS
from ..specs.mistakes import mistake, mistakes
from ..specs.spec import SHAPE, UNTOUCHED, Case, Check, Run, Spec

# --- The lowest possible loss at each position ----------------------------------------------------


def _known_reference(sentences: np.ndarray, bidirectional: bool) -> np.ndarray:
    """For each position: the mean of -ln p(token | context), p counted over the sentences."""
    rows, count, length = sentences.tolist(), len(sentences), sentences.shape[1]
    answer = np.zeros(length, dtype=np.float64)
    for i in range(length):
        contexts = [tuple(r[:i] + (r[i + 1 :] if bidirectional else [])) for r in rows]
        alike = Counter(contexts)
        same = Counter((c, r[i]) for c, r in zip(contexts, rows, strict=True))
        for c, r in zip(contexts, rows, strict=True):
            answer[i] -= math.log(same[c, r[i]] / alike[c]) / count
    return answer


def _equal_contexts(sentences: Tensor, kept: Tensor) -> Tensor:
    """Which sentences agree with which on the positions that are kept: (N, N)."""
    part = sentences[:, kept]
    return (part[:, None] == part[None]).all(-1)


def lowest_losses(sentences: Tensor, context) -> Tensor:
    """The losses when the model reads the positions `context(i, L)`."""
    length, losses = sentences.shape[1], []
    for i in range(length):
        alike = _equal_contexts(sentences, context(i, length))
        same = alike & (sentences[:, None, i] == sentences[None, :, i])
        losses.append((alike.sum(1).double() / same.sum(1)).log().mean())
    return torch.stack(losses)


def others(i: int, length: int) -> Tensor:
    """Every position but i."""
    return torch.arange(length) != i


def earlier(i: int, length: int) -> Tensor:
    """The positions before i."""
    return torch.arange(length) < i


def lowest(sentences: Tensor, bidirectional: bool) -> Tensor:
    """The plain formula."""
    return lowest_losses(sentences, others if bidirectional else earlier)


@mistake(
    "the masked token is read",
    rejected_by="nothing before the first token",
    cause="The context ends one position too late, as without a causal mask: then nothing is unknown.",
)
def _reads_itself(sentences, bidirectional):
    return lowest_losses(sentences, lambda i, length: torch.arange(length) <= i)


@mistake(
    "bits for nats",
    rejected_by="nothing before the first token",
    cause="log2: a cross-entropy of F.cross_entropy is in nats.",
)
def _in_bits(sentences, bidirectional):
    return lowest(sentences, bidirectional) / math.log(2)


@mistake(
    "every token that can follow is as probable",
    rejected_by="nothing before the first token",
    cause="The logarithm of how many different tokens there are; some of them are more frequent.",
)
def _distinct_tokens(sentences, bidirectional):
    count, length = sentences.shape
    losses = torch.zeros(length, dtype=torch.float64)
    for i in range(length):
        context = others(i, length) if bidirectional else earlier(i, length)
        alike = _equal_contexts(sentences, context)
        for row in range(count):
            losses[i] += math.log(len(set(sentences[alike[row], i].tolist()))) / count
    return losses


@mistake(
    "left context only",
    rejected_by="more context never hurts",
    cause="bidirectional has no effect.",
)
def _left_alone(sentences, bidirectional):
    return lowest(sentences, False)


@mistake(
    "right context only",
    rejected_by="more context never hurts",
    cause="The model reads the tokens after the masked one, and not those before it.",
)
def _right_alone(sentences, bidirectional):
    if not bidirectional:
        return lowest(sentences, False)
    return lowest_losses(sentences, lambda i, length: torch.arange(length) > i)


def _known_cases(rng: np.random.Generator) -> list[Case]:

    def case(label: str, rows, bidirectional: bool) -> Case:
        return Case(label, {"sentences": np.array(rows), "bidirectional": bidirectional})

    # token 0 returns at position 2, plus 3; a frequent beginning, and one that a single sentence has
    rows = [[0, 4, 3], [0, 4, 3], [1, 4, 4], [2, 5, 5], [0, 5, 3]]
    drawn = rng.integers(3, size=(12, 4))
    drawn[:, 3] = drawn[:, 0]
    some = rng.integers(2, size=(9, 3))
    return [
        case("one sentence, left-to-right", [[3, 1, 2]], False),
        case("two sentences, left-to-right", [[0, 1], [2, 1]], False),
        case("two sentences, bidirectional", [[0, 1], [2, 1]], True),
        case("five sentences, left-to-right", rows, False),
        case("five sentences, bidirectional", rows, True),
        case("drawn, left-to-right", drawn, False),
        case("drawn, bidirectional", drawn, True),
        case("nine short ones, bidirectional", some, True),
        case("one token each, bidirectional", [[0], [1], [1]], True),
    ]


def _first(run: Run, case: Case) -> Problem | None:
    expected, tolerance = run.expected(case)
    return compare(expected[:1], run.value(case)[:1], tolerance, "the loss of the first token")


def _knows_more(run: Run, case: Case) -> Problem | None:
    left, both = run.value(case, bidirectional=False), run.value(case)
    more = both - left
    tolerance = run.expected(case)[1]
    if (more <= tolerance).all():
        expected = run.expected(case)[0]
        return compare(expected, both, tolerance, "the bidirectional losses")
    return Problem("at most the left-to-right loss", f"{more.max():.3g} more")


COVERED_LOSS = Spec(
    name="ch12.lowest_loss",
    statement="lowest_loss(sentences, bidirectional) -> float64 (L): the lowest possible mean cross-entropy "
    "in nats at each position, over N equally probable sentences (N, L) of token IDs. The model reads the "
    "earlier tokens; with bidirectional=True it reads all tokens but the one at this position",
    required=("sentences", "bidirectional"),
    reference=_known_reference,
    baseline=lowest,
    differentiable=False,
    cases=_known_cases,
    checks=(
        Check(
            "nothing before the first token",
            "Before the first token, a left-to-right model has read nothing: its loss there is -ln of how often "
            "each first token occurs, averaged over the sentences.",
            _first,
            when=lambda case: not case.arguments["bidirectional"],
        ),
        Check(
            "more context never hurts",
            "With bidirectional=True the model reads all other tokens, those before and those after, so that "
            "no loss is higher than with the earlier tokens alone.",
            _knows_more,
            when=lambda case: case.arguments["bidirectional"],
        ),
    ),
    mutants=mistakes(_reads_itself, _in_bits, _distinct_tokens, _left_alone, _right_alone),
    chapter=12,
    points=2,
)  # fmt: skip

# --- The loss of a masked language model ----------------------------------------------------------


def _loss_reference(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The mean of -ln p(label), position by position."""
    total, count = logits.dtype.type(0), 0
    for place in np.ndindex(labels.shape):
        if labels[place] == IGNORE:
            continue
        row = logits[place] - logits[place].max()
        total += np.log(np.exp(row).sum()) - row[labels[place]]
        count += 1
    return np.asarray(total / count)


def masked_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The plain formula."""
    chosen = labels != IGNORE
    log_p = logits[chosen].log_softmax(-1)
    return -log_p.gather(-1, labels[chosen].unsqueeze(-1)).mean()


@mistake(
    "divided by all positions",
    rejected_by="other positions do not count",
    cause="The sum over the chosen tokens is divided by B L.",
)
def _mean_over_all(logits, labels):
    return masked_loss(logits, labels) * (labels != IGNORE).to(logits.dtype).mean()


@mistake(
    "labels above 0 alone",
    rejected_by="equals the reference",
    cause="labels > 0 stands for `is chosen`, where 0 is a token like any other.",
    seen="mosaicml/examples issue 457",
)
def _above_zero(logits, labels):
    return masked_loss(logits, labels.masked_fill(labels == 0, IGNORE))


@mistake(
    "the label of the next position",
    rejected_by="other positions do not count",
    cause="Shifted, as for a left-to-right language model; in a masked one, the label belongs to the masked position itself.",
)
def _shifted(logits, labels):
    if labels.shape[1] < 2 or (labels[:, 1:] == IGNORE).all():
        return masked_loss(logits, labels)
    return masked_loss(logits[:, :-1], labels[:, 1:])


@mistake(
    "the mean of each sentence's mean",
    rejected_by="equals the reference",
    cause="A chosen token of a sentence with few of them counts for more.",
)
def _mean_of_means(logits, labels):
    pairs = zip(logits, labels, strict=True)
    means = [masked_loss(a, b) for a, b in pairs if (b != IGNORE).any()]
    return torch.stack(means).mean()


@mistake(
    "softmax before the loss",
    rejected_by="equals the reference",
    cause="F.cross_entropy takes logits and applies a softmax itself.",
)
def _softmax_twice(logits, labels):
    return functional.cross_entropy(logits.softmax(-1).flatten(0, 1), labels.flatten())


def _loss_cases(rng: np.random.Generator) -> list[Case]:

    def case(label: str, shape: tuple[int, int], vocab: int, chosen, **options) -> Case:
        labels = np.full(shape, IGNORE)
        for b, i, token in chosen:
            labels[b, i] = token
        logits = 2 * rng.normal(size=(*shape, vocab))
        return Case(label, {"logits": logits, "labels": labels}, **options)

    few = [(0, 1, 3), (1, 2, 0), (1, 4, 2)]
    return [
        case("one token", (1, 1), 4, [(0, 0, 2)]),
        case("one of five", (1, 5), 4, [(0, 3, 1)]),
        case("two sentences", (2, 5), 6, few),
        case("a sentence without one", (3, 5), 7, few),
        case("float32", (2, 5), 6, few, dtype=torch.float32),
        case("all of them", (1, 3), 5, [(0, i, i) for i in range(3)]),
    ]


def _only_chosen(run: Run, case: Case) -> Problem | None:
    """Other logits where nothing is to be predicted, and then the whole value."""
    free = case.arguments["labels"] == IGNORE
    changed = np.where(free[..., None], case.arguments["logits"] + 1.5, case.arguments["logits"])
    changed[..., 0] += np.where(free, 3.0, 0.0)
    before, after = run.value(case), run.value(case, logits=changed)
    problem = compare(before, after, 2 * run.expected(case)[1], "the loss")
    doubled = {name: np.concatenate([a, a], axis=1) for name, a in case.arguments.items()}
    doubled["labels"][:, free.shape[1] :] = IGNORE
    return problem or compare(
        before, run.value(case, **doubled), 2 * run.expected(case)[1],
        "the loss with as many positions again, none of them chosen",
    )  # fmt: skip


MASKED_LOSS = Spec(
    name="ch12.masked_loss",
    statement="masked_loss(logits, labels): the mean cross-entropy over the positions whose label is not "
    "-100, a number; logits (B, L, V), labels (B, L), at least one of them not -100",
    required=("logits", "labels"),
    reference=_loss_reference,
    baseline=masked_loss,
    cases=_loss_cases,
    usual=(SHAPE, UNTOUCHED),
    checks=(
        Check(
            "other positions do not count",
            "Positions with the label -100 must change neither the sum nor the number it is divided by.",
            _only_chosen,
        ),
    ),
    mutants=mistakes(_mean_over_all, _above_zero, _shifted, _mean_of_means, _softmax_twice),
    chapter=12,
    points=1,
)  # fmt: skip

EXERCISES = (COVERED_LOSS, MASKED_LOSS, replace(MASK_TOKENS, name="ch12.mask_tokens", points=3))
