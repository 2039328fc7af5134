"""The Spec of a language model's loss: the logits at a position predict the token after it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import reference
from ..checks import varied
from ..compare import Problem, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import UNTOUCHED, Case, Check, Run, Spec
from . import mutants

STATEMENT = """next_token_loss(logits, labels, *, ignore=-100) -> a number: the mean negative log-likelihood
of each sequence's next tokens. logits (B, L, V); labels (B, L) are the token IDs that were read, not
shifted: the logits at position t predict label t + 1 of the same sequence. Labels that are `ignore` do
not count. A batch in which none counts costs 0."""


def _case(
    rng: np.random.Generator, label: str, shape: tuple[int, int, int], *, padded: int = 0,
    first: int = 0, dtype: torch.dtype = torch.float64, **options: Any,
) -> Case:  # fmt: skip
    """Random labels; the last of the first sequences are ignored, one more for each, or the first of all."""
    batch, length, vocab = shape
    ignore = options.get("ignore", -100)
    labels = rng.choice([token for token in range(vocab) if token != ignore], size=(batch, length))
    for row in range(min(padded, batch)):
        labels[row, length - 1 - row :] = ignore
    labels[:, :first] = ignore
    logits = 2.0 * rng.normal(size=shape)
    return Case(label, {"logits": logits, "labels": labels, **options}, dtype)


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label: str, *shape: int, **options: Any) -> Case:
        return _case(rng, label, shape, **options)

    return [
        case("two tokens", 1, 2, 5),
        case("one sequence", 1, 5, 6),
        case("three sequences", 3, 4, 7),
        case("as many sequences as tokens", 3, 3, 4),
        case("padding on the right", 2, 5, 6, padded=2),
        case("padding is token 3", 2, 5, 6, padded=2, ignore=3),
        case("a prompt that does not count", 2, 6, 5, first=3),
        case("prompt and padding", 3, 7, 5, first=2, padded=2),
        case("token 0 counts", 2, 4, 2, padded=1),
        case("a long sequence", 2, 40, 9, padded=1),
        case("float32", 2, 5, 6, padded=1, dtype=torch.float32),
        case("bfloat16", 2, 4, 6, dtype=torch.bfloat16),
        case("nothing counts", 2, 4, 5, first=4),
        case("one token: nothing to predict", 2, 1, 5),
    ]


def _drawn(draw: Draw) -> Case:
    """Any shape, padding, prompt and dtype together."""
    shape = draw.one_of(1, 3), draw.one_of(4, 2, 9), draw.one_of(5, 2, 30)
    options = {"ignore": 1} if draw.one_of(False, True) else {}
    return _case(
        draw.numbers, "drawn", shape, padded=draw.one_of(0, 1, 2), first=draw.one_of(0, 1, 2),
        dtype=draw.one_of(torch.float64, torch.float32), **options,
    )  # fmt: skip


def _counts(case: Case) -> np.ndarray:
    """Which labels count: the first of a sequence never does."""
    counts = case.arguments["labels"] != case.arguments.get("ignore", -100)
    counts[:, 0] = False
    return counts


def _exact(case: Case) -> bool:
    """In float64, with something to predict."""
    return case.dtype == torch.float64 and bool(_counts(case).any())


def _unchanged(run: Run, case: Case, when: str, **changes: Any) -> Problem | None:
    tolerance = 2 * run.expected(case)[1]
    return unchanged(run.value(case), run.value(case, **changes), tolerance, when, "the loss")


def _one_number(run: Run, case: Case) -> Problem | None:
    shape = run.value(case).shape
    return Problem("one number", f"shape {shape}") if shape else None


def _sure(run: Run, case: Case) -> Problem | None:
    """A model that puts everything on the next token, right where it is to be predicted."""
    logits, labels = np.zeros_like(case.arguments["logits"]), case.arguments["labels"]
    for b, t in np.argwhere(_counts(case)):
        logits[b, t - 1, labels[b, t]] = 60.0
    sure = varied(case, "sure", logits=logits)
    return unchanged(
        np.zeros(()), run.value(sure), 2 * run.expected(sure)[1] + 1e-20,
        "all probability is on each next token", "the loss, 0,",
    )  # fmt: skip


def _last(run: Run, case: Case) -> Problem | None:
    logits = case.arguments["logits"].copy()
    logits[:, -1] = 5.0 - 3.0 * logits[:, -1]
    return _unchanged(run, case, "the last logits of each sequence change", logits=logits)


def _alone(run: Run, case: Case) -> Problem | None:
    """The sum over the sequences, each alone, over the number of labels that count."""
    counts, total = _counts(case), 0.0
    for b in range(len(counts)):
        part = {name: case.arguments[name][b : b + 1] for name in ("logits", "labels")}
        total += float(run.value(case, **part)) * counts[b].sum()
    slack = 2 * len(counts) * run.expected(case)[1]
    return unchanged(
        np.asarray(total / counts.sum()), run.value(case), slack,
        "the sequences come together", "the loss",
    )  # fmt: skip


def _ignored(run: Run, case: Case) -> Problem | None:
    """Logits that predict an ignored label are nobody's business."""
    logits = case.arguments["logits"].copy()
    ignored = ~_counts(case)
    logits[:, :-1][ignored[:, 1:]] = 7.0
    return _unchanged(run, case, "the logits before ignored labels change", logits=logits)


CHECKS = (
    Check("one number", "The loss is one number for the whole batch.", _one_number),
    UNTOUCHED,
    Check(
        "a model that knows the next token has a loss of zero",
        "The logits at position t predict label t + 1: shift once, neither twice nor not at all.",
        _sure,
        when=_exact,
    ),
    Check(
        "the last logits predict nothing",
        "Nothing follows the last token of a sequence, so its logits have no target.",
        _last,
        when=_exact,
    ),
    Check(
        "ignored labels cost nothing",
        "Where the next label is ignored the model may say anything.",
        _ignored,
        when=lambda case: _exact(case) and not bool(_counts(case)[:, 1:].all()),
    ),
    Check(
        "a batch is the mean over its tokens",
        "Each token that counts costs the same, whichever sequence it is in and beside whichever others.",
        _alone,
        when=lambda case: _exact(case) and len(case.arguments["labels"]) > 1
        and bool(_counts(case).any(-1).all()),
    ),
)  # fmt: skip


def plain(logits: Tensor, labels: Tensor, ignore: int = -100) -> Any:
    """The formula in the dtype of the logits."""
    logits, targets = logits[:, :-1], labels[:, 1:]
    logits, targets = logits[targets != ignore], targets[targets != ignore]
    log_p = logits - logits.logsumexp(-1, keepdim=True)
    return -log_p.gather(-1, targets[:, None]).sum() / max(len(targets), 1)


NEXT_TOKEN_LOSS = Spec(
    name="next_token_loss",
    statement=STATEMENT,
    required=("logits", "labels"),
    reference=reference.next_token_loss,
    baseline=plain,
    cases=_cases,
    combine=_drawn,
    num_drawn=5,
    usual=(UNTOUCHED,),
    checks=CHECKS,
    mutants=mistakes_in(mutants),
    chapter=13,
)
