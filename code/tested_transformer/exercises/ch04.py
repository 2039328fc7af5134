"""Exercises of chapter 4: masks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from .. import reference
from ..specs.compare import Problem, compare
from ..specs.masks.spec import CAUSAL_MASK, MASKED_SOFTMAX, PADDING_MASK_FROM_TOKENS, document_cases
from ..specs.mistakes import mistake, mistakes
from ..specs.spec import SHAPE, Case, Check, Run, Spec

# --- Documents in time ----------------------------------------------------------------------------


def _document_causal_reference(document_ids: np.ndarray) -> np.ndarray:
    """True where token j is of i's document and not after it."""
    length = document_ids.shape[1]
    return reference.document_mask(document_ids) & np.tril(np.ones((length, length), dtype=bool))


def _past(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


def _same(ids: Tensor) -> Tensor:
    return (ids[:, :, None] == ids[:, None, :])[:, None]


@mistake(
    "documents without time",
    rejected_by="the future is hidden",
    cause="The causal mask is missing.",
)
def documents_without_time(document_ids):
    """Only the document counts."""
    return _same(document_ids)


@mistake(
    "time without documents",
    rejected_by="other documents are hidden",
    cause="The document mask is missing.",
)
def time_without_documents(document_ids):
    """Only the order counts."""
    batch, length = document_ids.shape
    return _past(length).expand(batch, 1, -1, -1).clone()


@mistake(
    "same document OR past",
    rejected_by="other documents are hidden",
    cause="| where & is meant: masks of what is allowed are joined with AND.",
)
def documents_or_past(document_ids):
    """OR for AND."""
    return _same(document_ids) | _past(document_ids.shape[1])


def _causal_or_document(wanted: bool, region: Callable[[np.ndarray], np.ndarray]):
    def test(run: Run, case: Case) -> Problem | None:
        mask = run.value(case)
        wrong = np.argwhere((mask != wanted) & region(case.arguments["document_ids"]))
        if not len(wrong):
            return None
        return Problem(f"{wanted} at {wrong[0].tolist()}", str(not wanted))

    return test


DOCUMENT_CAUSAL = Spec(
    name="ch04.document_causal",
    statement="document_causal(document_ids): boolean (B, 1, L, L), True where token j is of the same "
    "document as token i and not after it; document_ids (B, L)",
    required=("document_ids",),
    reference=_document_causal_reference,
    cases=document_cases,
    checks=(
        Check(
            "the own document's past is seen",
            "A token sees itself and what stands before it in its own document.",
            _causal_or_document(True, _document_causal_reference),
        ),
        Check(
            "other documents are hidden",
            "Tokens of two documents must not see each other, in either direction.",
            _causal_or_document(False, lambda ids: ~reference.document_mask(ids)),
        ),
        Check(
            "the future is hidden",
            "Inside a document, too, a token must not see what comes after it.",
            _causal_or_document(False, lambda ids: ~_document_causal_reference(ids)),
        ),
    ),
    mutants=mistakes(documents_without_time, time_without_documents, documents_or_past),
    chapter=4,
    points=2,
)  # fmt: skip

# --- The form of nn.MultiheadAttention ------------------------------------------------------------


def _to_multihead_reference(allowed: np.ndarray, num_heads: int) -> np.ndarray:
    """Entry (b H + h, i, j) is True where sample b hides key j from query i."""
    batch, _, length, keys = allowed.shape
    hide = np.zeros((batch * num_heads, length, keys), dtype=bool)
    for b in range(batch):
        for h in range(num_heads):
            hide[b * num_heads + h] = ~allowed[b, 0]
    return hide


@mistake(
    "the polarity kept for nn.MultiheadAttention",
    rejected_by="True means hide",
    cause="nn.MultiheadAttention hides where the mask is True: ~ is missing.",
)
def polarity_kept(allowed, num_heads):
    """The mask in the right shape, True still means may attend."""
    return allowed[:, 0].repeat_interleave(num_heads, dim=0)


@mistake(
    "the mask repeated head by head",
    rejected_by="the heads of a sample stand together",
    cause="repeat gives samples 0 1 0 1; the flattened batch wants 0 0 1 1.",
)
def heads_outside(allowed, num_heads):
    """Repeated head by head: sample 0, sample 1, sample 0, sample 1 ..."""
    return ~allowed[:, 0].repeat(num_heads, 1, 1)


@mistake(
    "no axis for the heads",
    rejected_by="the right shape and dtype",
    cause="(B, L, S) where (B H, L, S) is wanted.",
)
def heads_forgotten(allowed, num_heads):
    """(B, L, S), one for each sample."""
    return ~allowed[:, 0]


def _some_masks(rng: np.random.Generator) -> list[Case]:

    def case(label, shape, num_heads) -> Case:
        return Case(label, {"allowed": rng.random(shape) < 0.6, "num_heads": num_heads})

    return [
        case("one sample, one head", (1, 1, 2, 3), 1),
        case("two samples, one head", (2, 1, 2, 3), 1),
        case("one sample, three heads", (1, 1, 3, 2), 3),
        case("two samples, three heads", (2, 1, 4, 5), 3),
        case("no keys", (2, 1, 3, 0), 2),
        case("three samples, four heads", (3, 1, 5, 5), 4),
    ]


def _hides(run: Run, case: Case) -> Problem | None:
    if case.arguments["num_heads"] > 1 and len(case.arguments["allowed"]) > 1:
        return None
    return compare(_to_multihead_reference(**case.arguments), run.value(case), 0.0)


def _batch_first(run: Run, case: Case) -> Problem | None:
    return compare(_to_multihead_reference(**case.arguments), run.value(case), 0.0)


TO_MULTIHEAD = Spec(
    name="ch04.to_multihead",
    statement="to_multihead(allowed, num_heads): the mask that nn.MultiheadAttention wants, (B H, L, S), "
    "True = hide, sample by sample; allowed (B, 1, L, S), True = may attend",
    required=("allowed", "num_heads"),
    reference=_to_multihead_reference,
    cases=_some_masks,
    checks=(
        Check("True means hide", "nn.MultiheadAttention hides where the mask is True.", _hides),
        Check(
            "the heads of a sample stand together",
            "Row b H + h belongs to sample b: repeat_interleave, or expand and flatten.",
            _batch_first,
        ),
    ),
    mutants=mistakes(polarity_kept, heads_outside, heads_forgotten),
    chapter=4,
    points=2,
)  # fmt: skip

# --- The test that catches the leak ---------------------------------------------------------------


@dataclass(frozen=True)
class OnTrial:
    """A causal self-attention, right or wrong, with a name for people."""

    name: str
    leaks: bool
    hides: Callable[[Tensor], Tensor]  # from steps back (L, S) to what is hidden
    after: bool = False  # applied after the softmax

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Shapes: (*batch, L, d) three times -> (*batch, L, d)."""
        scores = query @ key.mT / query.shape[-1] ** 0.5
        steps = torch.arange(scores.shape[-2])
        hidden = self.hides(steps[:, None] - steps)
        if self.after:
            return scores.softmax(-1).masked_fill(hidden, 0.0) @ value
        return scores.masked_fill(hidden, -math.inf).softmax(-1) @ value

    def __repr__(self) -> str:
        return self.name


def _first_columns(back: Tensor, number: int) -> Tensor:
    """Hidden: the future, in a table that was made for `number` keys only."""
    hidden = back < 0
    hidden[:, number:] = False
    return hidden


def _but_for(back: Tensor, query: int, key: int) -> Tensor:
    """Hidden: the future, but for one key from one query."""
    hidden = back < 0
    hidden[query : query + 1, key : key + 1] = False
    return hidden


ON_TRIAL = (
    OnTrial("a causal attention", False, lambda back: back < 0),
    OnTrial("no mask", True, lambda back: back > 99),
    OnTrial("the mask inverted", True, lambda back: back >= 0),
    OnTrial("a causal window of 3", False, lambda back: (back < 0) | (back >= 3)),
    OnTrial("masked after the softmax", True, lambda back: back < 0, after=True),
    OnTrial("one step into the future", True, lambda back: back < -1),
    OnTrial("every token sees itself only", False, lambda back: back != 0),
    OnTrial("a table of 6 keys", True, lambda back: _first_columns(back, 6)),
    OnTrial("token 2 sees token 3, else causal", True, lambda back: _but_for(back, 2, 3)),
    OnTrial(
        "the first token sees the last of 8, else causal", True, lambda back: _but_for(back, 0, 7)
    ),
    OnTrial("token 6 sees token 7, else causal", True, lambda back: _but_for(back, 6, 7)),
    OnTrial("only the next three are hidden", True, lambda back: (back < 0) & (back >= -3)),
)


def _trial_cases(rng: np.random.Generator) -> list[Case]:
    return [Case(str(each), {"candidate": each}) for each in ON_TRIAL]


@mistake(
    "a test that cannot fail",
    rejected_by="leaks are caught",
    cause="The comparison is made and its result not used.",
)
def never_fails(candidate):
    """Compare, and return True anyway."""
    return True


@mistake(
    "a test that cannot pass",
    rejected_by="right ones pass",
    cause="The output at the changed place may change; only the places before it may not.",
)
def always_fails(candidate):
    """Change a token and require that nothing at all changes."""
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    changed = x.clone()
    changed[-1] += 1
    return torch.equal(candidate(x, x, x), candidate(changed, changed, changed))


@mistake(
    "only the first output looked at",
    rejected_by="leaks are caught",
    cause="Every output before the change must stay, not the first alone.",
)
def only_the_first_row(candidate):
    """Change the last token and look at the first."""
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    changed = x.clone()
    changed[-1] += 1
    return torch.equal(candidate(x, x, x)[0], candidate(changed, changed, changed)[0])


@mistake(
    "a sequence too short for the leak",
    rejected_by="leaks are caught",
    cause="The test uses 3 tokens.",
)
def too_short(candidate):
    """A sequence of three."""
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    changed = x.clone()
    changed[-1] += 1
    return torch.equal(candidate(x, x, x)[:-1], candidate(changed, changed, changed)[:-1])


@mistake(
    "a tolerance larger than the leak",
    rejected_by="leaks are caught",
    cause="Without a leak the outputs before the change are equal to the last bit; allow rounding.",
)
def far_too_tolerant(candidate):
    """A tolerance larger than the effect."""
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    changed = x.clone()
    changed[-1] += 1
    before, after = candidate(x, x, x)[:-1], candidate(changed, changed, changed)[:-1]
    return torch.allclose(before, after, atol=0.5)


def _right_verdict(leaks: bool):
    def test(run: Run, case: Case) -> Problem | None:
        verdict = bool(run.value(case))
        words = {True: "True (no leak)", False: "False (a leak)"}
        return None if verdict != leaks else Problem(words[not leaks], words[verdict])

    return test


CATCHES_LEAK = Spec(
    name="ch04.is_causal",
    statement="is_causal(candidate): True if candidate(query, key, value), for tensors (L, d), never lets "
    "a position depend on a later one, for sequences of up to 8 tokens; False if it leaks",
    required=("candidate",),
    reference=lambda candidate: not candidate.leaks,
    cases=_trial_cases,
    usual=(SHAPE,),
    checks=(
        Check(
            "right ones pass",
            "This attention does not leak, and the test says that it does.",
            _right_verdict(False),
            when=lambda case: not case.arguments["candidate"].leaks,
        ),
        Check(
            "leaks are caught",
            "This attention leaks, and the test does not notice.",
            _right_verdict(True),
            when=lambda case: case.arguments["candidate"].leaks,
        ),
    ),
    mutants=mistakes(never_fails, always_fails, only_the_first_row, too_short, far_too_tolerant),
    chapter=4,
    points=3,
)  # fmt: skip

EXERCISES = (
    replace(CAUSAL_MASK, name="ch04.causal_mask", points=1),
    replace(PADDING_MASK_FROM_TOKENS, name="ch04.padding_mask", points=1),
    replace(MASKED_SOFTMAX, name="ch04.masked_softmax", points=3),
    DOCUMENT_CAUSAL,
    TO_MULTIHEAD,
    CATCHES_LEAK,
)
