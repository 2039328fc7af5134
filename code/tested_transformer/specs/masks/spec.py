"""The Specs of masks: how each is made, how they are joined, and the softmax that obeys them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ... import reference
from ..compare import Problem, compare
from ..mistakes import mistakes_in
from ..run import probe
from ..spec import EQUAL, SHAPE, Case, Check, Run, Spec
from . import mutants as mutants

# --- masked_softmax -------------------------------------------------------------------------------


def textbook(scores: Tensor, allowed: Tensor | None) -> Tensor:
    """The baseline: exp(score - log sum exp), which of the right formulas rounds the most."""
    hidden = scores == -math.inf
    if allowed is not None:
        hidden = hidden | ~allowed
    filled = scores.masked_fill(hidden, -math.inf).masked_fill(hidden.all(-1, keepdim=True), 0.0)
    return (filled - filled.logsumexp(-1, keepdim=True)).exp().masked_fill(hidden, 0.0)


def _softmax_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, shape, allowed=None, dtype=torch.float64, shift=0.0) -> Case:
        return Case(label, {"scores": rng.normal(size=shape) + shift, "allowed": allowed}, dtype)

    def random_mask(*shape, empty=None):
        mask = rng.random(shape) < 0.6
        mask[..., 0] = True
        if empty is not None:
            mask[..., empty, :] = False
        return mask

    loud = case(
        "a hidden key with a huge score",
        (2, 4),
        np.array([True, True, False, True]) & random_mask(2, 4),
    )
    loud.arguments["scores"][:, 2] = 1000.0
    heads = random_mask(2, 1, 1, 5)
    low = case("float16, allowed scores of -65000", (2, 4), random_mask(2, 4), torch.float16)
    low.arguments["scores"][:] = -65000.0
    gone = case("an allowed score of -inf", (2, 4), np.array([[True, True, True, False]]))
    gone.arguments["scores"][:, 1] = -np.inf
    broken = case("hidden scores of NaN and inf", (2, 5), random_mask(2, 5) & (np.arange(5) < 3))
    broken.arguments["scores"][:, 3:] = np.nan, np.inf
    return [
        case("one row", (1, 3), np.array([[True, True, False]])),
        case("no mask", (2, 4)),
        case("a mask for all", (2, 3, 5), random_mask(3, 5)),
        case("a mask for each sample", (2, 3, 4, 5), heads),
        case("causal, fewer queries than keys", (2, 2, 5), reference.causal_mask(2, 5)),
        loud,
        case("scores below minus a million", (2, 4), random_mask(2, 4), shift=-2e6),
        case("a fully masked row", (2, 3, 4), random_mask(3, 4, empty=1)),
        case("causal, fewer keys than queries", (5, 3), reference.causal_mask(5, 3)),
        case("nothing allowed", (2, 3), np.zeros((2, 3), dtype=bool)),
        case("no keys", (2, 0), np.zeros((2, 0), dtype=bool)),
        case("no queries", (2, 0, 3), np.zeros((0, 3), dtype=bool)),
        case("float32", (3, 6), random_mask(3, 6, empty=2), torch.float32),
        case("a mask for each head", (2, 3, 4, 5), random_mask(2, 3, 4, 5)),
        case("a mask of columns", (2, 3, 4), rng.random((2, 3, 1)) < 0.6),
        case("one key", (2, 3, 1), random_mask(3, 1, empty=1)),
        case("one mask for all keys of a sample", (3, 2, 2, 4), rng.random((3, 1, 1, 4)) < 0.5),
        gone,
        low,
        case("float32, scores above 88", (2, 4), random_mask(2, 4), torch.float32, shift=90.0),
        case("float16, scores above 11", (2, 4), random_mask(2, 4), torch.float16, shift=20.0),
        case("bfloat16, scores above 88", (2, 4), random_mask(2, 4), torch.bfloat16, shift=120.0),
        case("bfloat16", (2, 3, 6), random_mask(3, 6), torch.bfloat16),
        case("float16", (2, 3, 6), random_mask(3, 6, empty=0), torch.float16),
        broken,
        case("past 512 keys", (2, 600), random_mask(2, 600)),
    ]


def _allowed(case: Case) -> np.ndarray:
    scores, allowed = case.arguments["scores"], case.arguments["allowed"]
    return np.broadcast_to(True if allowed is None else allowed, scores.shape)


def _has_empty(case: Case) -> bool:
    return not bool(_allowed(case).any(-1).all())


def _is_loud(case: Case) -> bool:
    scores = case.arguments["scores"]
    return bool(scores.max(initial=0.0) > 500)


def _is_ordinary(case: Case) -> bool:
    """No score is huge, and none is NaN."""
    return not _is_loud(case) and not np.isnan(case.arguments["scores"]).any()


def _hidden(run: Run, case: Case) -> Problem | None:
    weights, allowed = run.value(case), _allowed(case)
    seen = np.argwhere(allowed.any(-1, keepdims=True) & ~allowed & (weights != 0))
    if len(seen):
        place = tuple(int(n) for n in seen[0])
        return Problem(f"weight 0 at {list(place)}", f"{weights[place]:.4g}")
    scores = np.where(allowed, case.arguments["scores"], -np.inf)
    top = scores.max(-1, keepdims=True, initial=-np.inf)
    lost = np.argwhere((scores == top) & (top > -np.inf) & ~(weights > 0))
    if not len(lost):
        return None
    place = tuple(int(n) for n in lost[0])
    return Problem(f"a weight above 0 for the largest allowed score {list(place)}", "0")


def _sums(run: Run, case: Case) -> Problem | None:
    filled = _allowed(case).any(-1)
    sums = run.value(case).sum(-1)[filled]
    slack = case.arguments["scores"].shape[-1] * run.expected(case)[1]  # that of each weight
    return compare(np.ones_like(sums), sums, slack)


def _empty_rows(run: Run, case: Case) -> Problem | None:
    rows = run.value(case)[~_allowed(case).any(-1)]
    return compare(np.zeros_like(rows), rows, 0.0)


def _empty_gradients(run: Run, case: Case) -> Problem | None:
    gradient = run.all_gradients(case)["scores"]
    if not np.isfinite(gradient).all():
        return Problem("a finite gradient for the scores", "NaN or inf")
    rows = gradient[~_allowed(case).any(-1)]
    return compare(np.zeros_like(rows), rows, 0.0)


def _right_gradient(run: Run, case: Case) -> Problem | None:
    """diag(p) - p p^T, row by row, from the reference's weights."""
    weights = np.float64(run.expected(case)[0])
    direction = probe(torch.from_numpy(weights)).numpy()
    expected = weights * (direction - (weights * direction).sum(-1, keepdims=True))
    _, slack = run.spec.gradients_of(case)["scores"]
    return compare(expected, run.all_gradients(case)["scores"], slack)


MASKED_SOFTMAX = Spec(
    name="masked_softmax",
    statement="masked_softmax(scores, allowed): the softmax of each row over its allowed keys; "
    "hidden keys weigh 0, whatever their scores are, and so does every key of a row that allows none. "
    "scores (*batch, L, S), allowed boolean and broadcastable, or None -> (*batch, L, S)",
    required=("scores", "allowed"),
    reference=reference.masked_softmax,
    baseline=textbook,
    cases=_softmax_cases,
    checks=(
        Check(
            "hidden keys weigh nothing",
            "A hidden key must have weight 0 exactly: its score becomes -inf before the softmax.",
            _hidden,
            needs=("allowed",),
            when=_is_ordinary,
        ),
        Check(
            "the allowed weights sum to 1",
            "The allowed keys share the whole: mask the scores before the softmax.",
            _sums,
            when=_is_ordinary,
        ),
        Check(
            "hidden keys do not drown the others",
            "A hidden score must not take part: neither in the sum nor in the maximum.",
            _sums,
            when=lambda case: _is_loud(case) and not np.isnan(case.arguments["scores"]).any(),
        ),
        Check(
            "a fully masked row is zero",
            "A query that may attend to nothing has weights 0, not NaN and not 1/S.",
            _empty_rows,
            when=_has_empty,
        ),
        Check(
            "a fully masked row has no gradient",
            "Clearing NaN after the softmax leaves NaN in the gradient: fill the row before it, too.",
            _empty_gradients,
            when=_has_empty,
        ),
        Check(
            "a hidden score may be anything",
            "A hidden score of NaN or inf is replaced, not added to or multiplied: both stay NaN.",
            EQUAL.test,
            when=lambda case: bool(np.isnan(case.arguments["scores"]).any()),
        ),
        Check(
            "the gradient is that of a softmax",
            "The gradient of the scores must be that of a softmax over the allowed keys.",
            _right_gradient,
            when=lambda case: case.dtype == torch.float64,
        ),
    ),
    mutants=mistakes_in(mutants, of="masked_softmax"),
    chapter=4,
)

# --- Masks from sizes -----------------------------------------------------------------------------

Region = Callable[..., np.ndarray]


def _region(name: str, explain: str, region: Region, seen: bool, when=lambda case: True) -> Check:
    """In `region(**arguments)`, a boolean array, every entry of the mask must be `seen`."""

    def test(run: Run, case: Case) -> Problem | None:
        mask = run.value(case)
        wrong = np.argwhere(np.broadcast_to(region(**case.arguments), mask.shape) & (mask != seen))
        if not len(wrong):
            return None
        words = ("False, hidden", "True, seen")
        return Problem(f"{words[seen]} at {wrong[0].tolist()}", words[not seen])

    return Check(name, explain, test, when=when)


def _back(num_queries: int, num_keys: int) -> np.ndarray:
    return np.arange(num_queries)[:, None] + num_keys - num_queries - np.arange(num_keys)


def _size_case(label: str, num_queries: int, num_keys: int, **options) -> Case:
    return Case(label, {"num_queries": num_queries, "num_keys": num_keys, **options})


def _causal_cases(rng: np.random.Generator) -> list[Case]:
    more = int(rng.integers(3, 9))
    return [
        _size_case("as many keys as queries", 3, 3),
        _size_case("a cache", 2, 5),
        _size_case("one query", 1, 4),
        _size_case("fewer keys than queries", 5, 3),
        _size_case("no queries", 0, 3),
        _size_case("no keys", 3, 0),
        _size_case("a size drawn at random", more, more + 4),
        _size_case("one query, one key", 1, 1),
        _size_case("past 4096 keys", 2, 4100),
        _size_case("many more queries than keys", 1030, 2),
    ]


CAUSAL_MASK = Spec(
    name="causal_mask",
    statement="causal_mask(num_queries, num_keys): boolean (L, S), True where key j is not in the "
    "future of query i. The last query stands at the last key: j <= i + S - L",
    required=("num_queries", "num_keys"),
    reference=reference.causal_mask,
    cases=_causal_cases,
    usual=(SHAPE,),
    checks=(
        _region(
            "the present and the past are seen",
            "Query i sees its own place and all before it: keys 0 to i + S - L.",
            lambda num_queries, num_keys: _back(num_queries, num_keys) >= 0,
            seen=True,
        ),
        _region(
            "the future is hidden",
            "No query sees a key past i + S - L.",
            lambda num_queries, num_keys: _back(num_queries, num_keys) < 0,
            seen=False,
        ),
    ),
    mutants=mistakes_in(mutants, of="causal_mask"),
    chapter=4,
)


def _window_cases(rng: np.random.Generator) -> list[Case]:
    return [
        _size_case("only the own place", 3, 3, window=1),
        _size_case("two keys on each side", 5, 5, window=3),
        _size_case("a cache", 2, 7, window=3),
        _size_case("fewer keys than queries", 6, 3, window=2),
        _size_case("wider than the sequence", 3, 4, window=9),
        _size_case("no queries", 0, 3, window=2),
        _size_case("no keys", 3, 0, window=2),
        _size_case("a size drawn at random", 9, 11, window=int(rng.integers(4, 7))),
        _size_case("past 4096 keys", 2, 4100, window=514),
        _size_case("wider than 256", 2, 600, window=257),
        _size_case("as wide as the sequence", 4, 4, window=4),
        _size_case("the widest that is a number", 3, 4, window=2**62),
    ]


WINDOW_MASK = Spec(
    name="window_mask",
    statement="window_mask(num_queries, num_keys, *, window): boolean (L, S), True where key j is "
    "fewer than `window` steps from query i, before or after: |i + S - L - j| < window",
    required=("num_queries", "num_keys"),
    reference=reference.window_mask,
    cases=_window_cases,
    usual=(SHAPE,),
    checks=(
        _region(
            "the keys inside are seen",
            "A window of w reaches w - 1 keys to each side of i + S - L.",
            lambda num_queries, num_keys, window: np.abs(_back(num_queries, num_keys)) < window,
            seen=True,
        ),
        _region(
            "the window ends where it should",
            "A key w steps away is outside a window of w: the own place is the first of the w.",
            lambda num_queries, num_keys, window: np.abs(_back(num_queries, num_keys)) >= window,
            seen=False,
        ),
    ),
    mutants=mistakes_in(mutants, of="window_mask"),
    chapter=4,
)

# --- Masks from lengths and tokens ----------------------------------------------------------------


def _padding_cases(rng: np.random.Generator) -> list[Case]:
    def case(label, lengths, num_keys) -> Case:
        return Case(label, {"lengths": np.array(lengths, dtype=np.int64), "num_keys": num_keys})

    drawn = rng.integers(0, 8, size=6)
    return [
        case("one sample", [2], 4),
        case("two samples", [1, 3], 3),
        case("as many samples as keys", [3, 1, 2], 3),
        case("an empty and a full sample", [0, 5, 2], 5),
        case("no samples", [], 3),
        case("no keys", [0, 0], 0),
        case("lengths drawn at random", drawn, 7),
        case("past 4096 keys", [4097, 513], 4100),
        case("past 256, one by one", [255, 256, 257, 258], 300),
    ]


_WORDS = "True for the words of each sample, False for its padding: (B, 1, 1, S)."


def _as_reference(function: Callable, name: str = "words are seen, padding is not") -> Check:
    """The whole mask against the reference, with a sentence about words and padding."""

    def test(run: Run, case: Case) -> Problem | None:
        mask, expected = run.value(case), function(**case.arguments)
        return compare(expected, mask, 0.0)

    return Check(name, _WORDS, test)


PADDING_MASK = Spec(
    name="padding_mask",
    statement="padding_mask(lengths, num_keys): boolean (B, 1, 1, S), True where j < lengths[b]",
    required=("lengths", "num_keys"),
    reference=reference.padding_mask,
    cases=_padding_cases,
    checks=(_as_reference(reference.padding_mask),),
    mutants=mistakes_in(mutants, of="padding_mask"),
    chapter=4,
)


def _token_cases(rng: np.random.Generator) -> list[Case]:
    def case(label, tokens, pad_id) -> Case:
        return Case(label, {"tokens": np.array(tokens, dtype=np.int64), "pad_id": pad_id})

    drawn = rng.integers(0, 4, size=(3, 6))
    return [
        case("padding at the end", [[5, 7, 9], [5, 0, 0]], 0),
        case("another padding id", [[5, 0, 1, 1], [0, 7, 9, 1]], 1),
        case("padding at the front", [[3, 3, 5, 7], [3, 5, 7, 9]], 3),
        case("nothing but padding", [[2, 2], [4, 2], [2, 2]], 2),
        case("a negative id", [[5, -100, -100], [5, 6, -100]], -100),
        case("no samples", np.zeros((0, 3)), 0),
        case("no tokens", np.zeros((2, 0)), 0),
        case("tokens drawn at random", drawn, 3),
        case("padding between words", [[0, 5, 0, 7], [6, 0, 0, 0]], 0),
        case("ids above and below", [[9, 8, 7, 6], [8, 8, 9, 7]], 8),
        case("ids that float32 cannot tell apart", [[2**24, 2**24 + 1, 5]], 2**24 + 1),
        case("past 512 tokens", rng.integers(0, 3, size=(2, 600)), 2),
    ]


PADDING_MASK_FROM_TOKENS = Spec(
    name="padding_mask_from_tokens",
    statement="padding_mask_from_tokens(tokens, pad_id): boolean (B, 1, 1, S), False where the token "
    "is pad_id, wherever it stands; tokens (B, S)",
    required=("tokens", "pad_id"),
    reference=reference.padding_mask_from_tokens,
    cases=_token_cases,
    checks=(_as_reference(reference.padding_mask_from_tokens),),
    mutants=mistakes_in(mutants, of="padding_mask_from_tokens"),
    chapter=4,
)


def _prefix_cases(rng: np.random.Generator) -> list[Case]:
    def case(label, lengths, num_tokens) -> Case:
        lengths = np.array(lengths, dtype=np.int64)
        return Case(label, {"prefix_lengths": lengths, "num_tokens": num_tokens})

    return [
        case("one sample", [2], 4),
        case("no prefix, and nothing else", [0, 3], 3),
        case("different prefixes", [1, 4, 2], 5),
        case("no samples", [], 3),
        case("no tokens", [0], 0),
        case("prefixes drawn at random", rng.integers(0, 8, size=4), 7),
        case("a prefix as long as the text", [3, 2], 3),
        case("one token", [0, 1], 1),
        case("past 512 tokens", [513], 520),
    ]


def _in_prefix(prefix_lengths, num_tokens) -> np.ndarray:
    return np.arange(num_tokens) < prefix_lengths[:, None, None, None]


PREFIX_MASK = Spec(
    name="prefix_mask",
    statement="prefix_mask(prefix_lengths, num_tokens): boolean (B, 1, L, L), True where key j is in "
    "the prefix of sample b, j < prefix_lengths[b], or not in the future, j <= i",
    required=("prefix_lengths", "num_tokens"),
    reference=reference.prefix_mask,
    cases=_prefix_cases,
    checks=(
        _region("the prefix is seen", "Every token sees the whole prefix.", _in_prefix, seen=True),
        _region(
            "the present and the past are seen",
            "Beyond the prefix a token sees its own place and all before it.",
            lambda prefix_lengths, num_tokens: _back(num_tokens, num_tokens) >= 0,
            seen=True,
        ),
        _region(
            "the future is hidden beyond the prefix",
            "A key that is neither in the prefix nor in the past must not be seen, by any query.",
            lambda prefix_lengths, num_tokens: (
                ~_in_prefix(prefix_lengths, num_tokens) & (_back(num_tokens, num_tokens) < 0)
            ),
            seen=False,
        ),
    ),
    mutants=mistakes_in(mutants, of="prefix_mask"),
    chapter=4,
)


def document_cases(rng: np.random.Generator) -> list[Case]:
    """Rows of one, two and many documents, in any order of their ids."""

    def case(label, ids) -> Case:
        return Case(label, {"document_ids": np.array(ids, dtype=np.int64)})

    return [
        case("two documents", [[0, 0, 1]]),
        case("three documents, ids in any order", [[7, 7, 2, 2, 2, 5]]),
        case("one document", [[4, 4, 4]]),
        case("two rows", [[0, 0, 1, 1], [0, 1, 1, 2]]),
        case("as many rows as tokens", [[0, 0, 1], [0, 1, 1], [2, 2, 2]]),
        case("no rows", np.zeros((0, 3))),
        case("no tokens", np.zeros((2, 0))),
        case("ids drawn at random", np.sort(rng.integers(0, 4, size=(3, 8)))),
        case("a document that comes back", [[3, 3, 1, 3, 1]]),
        case("documents that come back, at random", rng.integers(0, 3, size=(2, 7))),
        case("padding of -1", [[0, 0, 1, -1], [2, -1, -1, -1]]),
        case("ids that float32 cannot tell apart", [[2**24, 2**24 + 1, 2**24]]),
        case("ids that float64 cannot tell apart", [[2**53, 2**53 + 1, -(2**53)]]),
        case("past 512 tokens", np.sort(rng.integers(0, 9, size=(1, 520)))),
    ]


def _of_document(name: str, explain: str, when: Callable[[Case], bool]) -> Check:
    def test(run: Run, case: Case) -> Problem | None:
        return compare(reference.document_mask(**case.arguments), run.value(case), 0.0)

    return Check(name, explain, test, when=when)


DOCUMENT_MASK = Spec(
    name="document_mask",
    statement="document_mask(document_ids): boolean (B, 1, L, L), True where the tokens i and j of "
    "sample b have the same document id; document_ids (B, L)",
    required=("document_ids",),
    reference=reference.document_mask,
    cases=document_cases,
    checks=(
        _of_document(
            "other documents are hidden, the own is seen",
            "Token i may attend to token j exactly where their ids are equal.",
            when=lambda case: len(case.arguments["document_ids"]) == 1,
        ),
        _of_document(
            "each row has its own mask",
            "Documents end at different places in each row of the batch.",
            when=lambda case: len(case.arguments["document_ids"]) > 1,
        ),
    ),
    mutants=mistakes_in(mutants, of="document_mask"),
    chapter=4,
)

# --- Combining ------------------------------------------------------------------------------------


def _combined(first, second, third) -> np.ndarray:
    """True where every mask that is given is True."""
    masks = [mask for mask in (first, second, third) if mask is not None]
    shape = np.broadcast_shapes(*(mask.shape for mask in masks))
    every = np.ones(shape, dtype=bool)
    for place in np.ndindex(shape):
        every[place] = all(np.broadcast_to(mask, shape)[place] for mask in masks)
    return every


def _combine_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, first, second, third=None) -> Case:
        return Case(label, {"first": first, "second": second, "third": third})

    past, words = reference.causal_mask(3), reference.padding_mask([2, 3], 3)
    drawn = [rng.random(shape) < 0.5 for shape in ((2, 1, 4, 5), (1, 3, 4, 5), (4, 5))]
    return [
        case("two of rank 2", past, rng.random((3, 3)) < 0.5),
        case("causal and padding", past, words),
        case("padding and causal", words, past),
        case("one is None", past, None),
        case("the first is None", None, words),
        case("three", past, words, rng.random((2, 2, 3, 3)) < 0.5),
        case("no keys", np.zeros((3, 0), dtype=bool), np.zeros((2, 1, 3, 0), dtype=bool)),
        case("drawn at random", *drawn),
        case("three of rank 3", *(rng.random(shape) < 0.6 for shape in ((2, 1, 4), (2, 3, 4), (1, 3, 1)))),
        case("rank 2 and two of rank 3", rng.random((3, 4)) < 0.6, rng.random((2, 1, 4)) < 0.6,
             rng.random((2, 3, 4)) < 0.6),
        case("only the third", None, None, past),
        case("rank 4, every axis broadcast once", *(rng.random(shape) < 0.7 for shape in (
            (1, 2, 3, 4), (2, 1, 3, 4), (2, 2, 1, 4)))),
    ]  # fmt: skip


COMBINE_MASKS = Spec(
    name="combine_masks",
    statement="combine_masks(first, second, third): allow what every mask allows; None allows all. "
    "Rank 2, or one common rank, broadcastable",
    required=("first", "second", "third"),
    reference=_combined,
    cases=_combine_cases,
    checks=(
        _region(
            "what one mask hides stays hidden",
            "Masks of what is allowed are joined with AND: a key must pass every one of them.",
            lambda **masks: ~_combined(**masks),
            seen=False,
        ),
        _region(
            "what all masks allow is allowed",
            "A key that no mask hides must be seen.",
            _combined,
            seen=True,
        ),
    ),
    mutants=mistakes_in(mutants, of="combine_masks"),
    chapter=4,
)

MASK_SPECS = (
    MASKED_SOFTMAX, CAUSAL_MASK, WINDOW_MASK, PADDING_MASK, PADDING_MASK_FROM_TOKENS, PREFIX_MASK,
    DOCUMENT_MASK, COMBINE_MASKS,
)  # fmt: skip
