"""Exercises of chapter 17's main page: how far information travels, a window in blocks, the best keys."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch.nn.functional import pad

from .. import reference
from ..analysis.reach import layers_to_reach
from ..functional.masks import causal_mask
from ..mixers.fixed_patterns import Blocks, Local, Merged
from ..mixers.indexed_attention import select_keys, selection_mask
from ..specs.compare import Problem, compare, unchanged
from ..specs.mistakes import mistake, mistakes
from ..specs.spec import Case, Check, Run, Spec

# --- How far information travels ------------------------------------------------------------------


def _layers_reference(mask: np.ndarray) -> np.ndarray:
    """Layer by layer, whom the last token has heard of."""
    length = len(mask)
    heard = [j for j in range(length) if mask[length - 1][j] or j == length - 1]
    layers = 1
    while 0 not in heard:
        more = sorted({j for i in heard for j in range(length) if mask[i][j]} | set(heard))
        if more == heard:
            return np.asarray(-1)
        heard, layers = more, layers + 1
    return np.asarray(layers)


def layers_needed(mask):
    """After how many layers the last token can have heard of the first; -1: never."""
    return int(layers_to_reach(mask)[-1, 0])


@mistake(
    "the first layer is not counted",
    rejected_by="full attention needs one layer",
    cause="Attention of the first layer already reaches every key of the mask.",
)
def one_too_few(mask):
    """One less."""
    found = layers_needed(mask)
    return found - 1 if found > 0 else found


@mistake(
    "rows and columns exchanged",
    rejected_by="the queries are the rows",
    cause="mask[i, j] says that query i attends to key j: information flows from column to row.",
)
def exchanged(mask):
    """With the transposed matrix, from the same token."""
    return layers_needed(mask.T)


@mistake(
    "the reach doubles in every layer",
    rejected_by="equals the reference",
    cause="The product is with the reach itself, not with the mask: a layer adds the keys of one mask.",
)
def squared(mask):
    """Squares the matrix in every round: 1, 2, 4 layers counted as 1, 2, 3."""
    reach, layers = mask | torch.eye(len(mask), dtype=torch.bool), 1
    while not reach[-1, 0]:
        more = (reach.float() @ reach.float()) > 0
        if torch.equal(more, reach):
            return -1
        reach, layers = more, layers + 1
    return layers


def _layers_cases(rng: np.random.Generator) -> list[Case]:
    steps = np.arange(8)[:, None] - np.arange(8)
    window = (steps >= 0) & (steps < 3)
    masks = {
        "a window of 3": window,
        "a window of 2": (steps >= 0) & (steps < 2),
        "every second token": (steps >= 0) & (steps % 2 == 0),
        "everything": steps == steps,
        "a window, and token 3 for all": window | (np.arange(8) == 3) & (steps >= 0),
        "only keys 2 and 5 steps back": (steps == 2) | (steps == 5),
        "two tokens": np.array([[True, False], [True, True]]),
    }
    for n in range(4):
        length = int(rng.integers(3, 10))
        masks[f"by chance {n}"] = np.tri(length, dtype=bool) & (rng.random((length, length)) < 0.4)
    return [Case(label, {"mask": mask}) for label, mask in masks.items()]


def _at_once(run: Run, case: Case) -> Problem | None:
    found = run.value(case, mask=np.ones_like(case.arguments["mask"]))
    return compare(np.asarray(1), found, 0.0, "where every query attends to every key")


def _queries_are_rows(run: Run, case: Case) -> Problem | None:
    """Only the last row attends to the first column; only the first row attends to the last column."""
    length = len(case.arguments["mask"])
    mask = np.eye(length, dtype=bool)
    mask[-1, 0] = True
    other = np.eye(length, dtype=bool)
    other[0, -1] = True
    forward = compare(
        np.asarray(1), run.value(case, mask=mask), 0.0, "the last query attends to key 0"
    )
    return forward or compare(
        np.asarray(-1), run.value(case, mask=other), 0.0, "query 0 attends to the last key"
    )


LAYERS_NEEDED = Spec(
    name="ch17.layers_needed",
    statement="layers_needed(mask): after how many layers the last token can have heard of the first, if every "
    "layer attends by the same boolean mask (L, L), at least two tokens; -1 if it never can",
    required=("mask",),
    reference=_layers_reference,
    differentiable=False,
    cases=_layers_cases,
    checks=(
        Check(
            "full attention needs one layer",
            "One layer of attention brings every key that the mask allows.",
            _at_once,
        ),
        Check(
            "the queries are the rows",
            "mask[i, j]: query i attends to key j.",
            _queries_are_rows,
        ),
    ),
    mutants=mistakes(one_too_few, exchanged, squared),
    chapter=17,
    points=1,
)

# --- A window, block by block ---------------------------------------------------------------------


def _window_reference(query, key, value, window):
    return reference.attention(query, key, value, causal=True, window=window)


def _masked(query, key, value, mask):
    """Attention with all scores under a mask (L, L)."""
    scores = query @ key.mT / math.sqrt(query.shape[-1])  # B H L L
    weights = scores.masked_fill(~mask, -math.inf).softmax(-1).masked_fill(~mask, 0.0)
    return weights @ value


def _local(query, key, value, window):
    """The baseline: a mask."""
    return _masked(query, key, value, Local(window, causal=True).mask(query.shape[2]))


def in_blocks(query, key, value, window, *, hide_padding=True):
    """Blocks of `window` queries, with the keys of their own block and of the one before it."""
    length = query.shape[2]
    more = -length % window
    query, key, value = (pad(x, (0, 0, 0, more)) for x in (query, key, value))
    query, key, value = (x.unflatten(2, (-1, window)) for x in (query, key, value))  # B H n w d
    key, value = (
        torch.cat((pad(x, (0, 0, 0, 0, 1, 0))[:, :, :-1], x), dim=3) for x in (key, value)
    )
    scores = query @ key.mT / math.sqrt(query.shape[-1])  # B H n w 2w
    steps = window + torch.arange(window)[:, None] - torch.arange(2 * window)
    visible = ((steps >= 0) & (steps < window)).repeat(scores.shape[2], 1, 1)  # n w 2w
    if hide_padding:
        visible[:1, :, :window] = False  # the first block has none before it
    weights = scores.masked_fill(~visible, -math.inf).softmax(-1)
    return (weights @ value).flatten(2, 3)[:, :, :length]


@mistake(
    "one key too many",
    rejected_by="a query reads the last w keys",
    symptom="The window of a converted model is off by one; the cache drops a key that is still read.",
    cause="The own token is not counted: w keys before it and itself are w + 1.",
)
def one_key_more(query, key, value, window):
    """A window of w + 1."""
    return _local(query, key, value, window + 1)


@mistake(
    "the own block alone",
    rejected_by="a query reads the last w keys",
    cause="The first query of a block has no key before it: the block before is missing.",
)
def own_block(query, key, value, window):
    """Blocks that do not overlap: information never leaves a block."""
    return _masked(query, key, value, Blocks(window, causal=True).mask(query.shape[2]))


@mistake(
    "a block sees its own future",
    rejected_by="no query reads the future",
    symptom="The training loss is far too low, and generated text is nonsense.",
    cause="Inside a block every query attends to every key: blocks are no substitute for the causal mask.",
)
def sees_future(query, key, value, window):
    """All keys of the own block."""
    return _masked(
        query, key, value, Merged((Local(window, causal=True), Blocks(window))).mask(query.shape[2])
    )


@mistake(
    "keys of padding before the first block",
    rejected_by="the first token gets its own value",
    symptom="The first w - 1 outputs are too small.",
    cause="The first block has no block before it. Keys of zeros have scores of 0, and exp(0) is 1: mask them.",
)
def padding_counts(query, key, value, window):
    """Zeros in front take a share of the weights."""
    return in_blocks(query, key, value, window, hide_padding=False)


def _window_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, batch, heads, length, d, d_value, window, dtype=torch.float64) -> Case:
        shapes = zip(("query", "key", "value"), (d, d, d_value), strict=True)
        made = {name: rng.normal(size=(batch, heads, length, n)) for name, n in shapes}
        return Case(label, made | {"window": window}, dtype)

    return [
        case("two blocks of two", 1, 1, 4, 2, 3, 2),
        case("three blocks of three", 2, 2, 9, 4, 3, 3),
        case("the last block is shorter", 1, 2, 7, 3, 4, 3),
        case("a window of one", 1, 2, 4, 3, 2, 1),
        case("a window longer than the text", 2, 1, 3, 2, 3, 5),
        case("float32", 2, 3, 8, 4, 5, 3, torch.float32),
    ]


def _no_future(run: Run, case: Case) -> Problem | None:
    value = case.arguments["value"].copy()
    value[:, :, -1] += 1.0
    before, after = run.value(case)[:, :, :-1], run.value(case, value=value)[:, :, :-1]
    slack = 2 * run.expected(case)[1]
    return unchanged(before, after, slack, "the last value changes", "an earlier output")


def _first(run: Run, case: Case) -> Problem | None:
    got, slack = run.value(case)[:, :, :1], run.expected(case)[1]
    return compare(case.arrays()["value"][:, :, :1], got, slack, "output 0, which has one key,")


def _last_keys(run: Run, case: Case) -> Problem | None:
    """Equal scores: the mean of the last w values."""
    zeros = {"query": np.zeros_like(case.arguments["query"])}
    expected, slack = run.expected(case, **zeros)
    got = run.value(case, **zeros)
    what = "with equal scores, the output, the mean of the last w values,"
    return compare(expected, got, slack, what)


LOCAL_ATTENTION = Spec(
    name="ch17.local_attention",
    statement="local_attention(query, key, value, window): causal attention in which each query attends to the last "
    "`window` keys, its own included; scale 1 / sqrt(d). query and key (B, H, L, d), value (B, H, L, dv) -> "
    "(B, H, L, dv)",
    required=("query", "key", "value", "window"),
    reference=_window_reference,
    baseline=_local,
    cases=_window_cases,
    checks=(
        Check(
            "no query reads the future",
            "Inside a block, too, a query attends to its own token and earlier ones only.",
            _no_future,
        ),
        Check(
            "the first token gets its own value",
            "Before the first token there is nothing: what fills up the first block has to be masked.",
            _first,
        ),
        Check(
            "a query reads the last w keys",
            "Query i attends to the keys i - w + 1 to i.",
            _last_keys,
        ),
    ),
    mutants=mistakes(one_key_more, own_block, sees_future, padding_counts),
    chapter=17,
    points=3,
)

# --- The best keys --------------------------------------------------------------------------------


def _best_reference(scores: np.ndarray, num_keys: int) -> np.ndarray:
    """Query by query: the earlier keys in the order of their scores, cut off."""
    selected = np.zeros(scores.shape, dtype=bool)
    for b, i in np.ndindex(scores.shape[:2]):
        order = sorted(range(i + 1), key=lambda j: -scores[b, i, j])
        selected[b, i, order[:num_keys]] = True
    return selected


def best_keys(scores, num_keys):
    """Mask the future, then take the best."""
    length = scores.shape[-1]
    return selection_mask(*select_keys(scores, num_keys, mask=causal_mask(length)[None]), length)


@mistake(
    "selected before the mask",
    rejected_by="as many keys as there are",
    symptom="Early tokens attend to fewer keys than they may, some to none: their output is 0 or NaN.",
    cause="Keys of the future take places among the best, and are masked afterward.",
)
def mask_afterward(scores, num_keys):
    """top-k over all keys, then the causal mask."""
    future = torch.ones_like(scores, dtype=torch.bool).triu(1)
    best = scores.topk(min(num_keys, scores.shape[-1])).indices
    return torch.zeros_like(future).scatter(-1, best, True) & ~future


@mistake(
    "the future fills up the selection",
    rejected_by="no key of the future",
    symptom="The first tokens read the future: the loss of the first positions is too low.",
    cause="Where fewer than k keys are visible, top-k returns masked ones as well: take them out again.",
)
def filled_up(scores, num_keys):
    """-inf is still among the best of too few."""
    future = torch.ones_like(scores, dtype=torch.bool).triu(1)
    best = scores.masked_fill(future, -math.inf).topk(min(num_keys, scores.shape[-1])).indices
    return torch.zeros_like(future).scatter(-1, best, True)


@mistake(
    "the best queries of each key",
    rejected_by="as many keys as there are",
    cause="top-k along the axis of the queries: some queries get many keys, others none.",
)
def along_queries(scores, num_keys):
    """The other axis."""
    future = torch.ones_like(scores, dtype=torch.bool).triu(1)
    best = scores.masked_fill(future, -math.inf).topk(min(num_keys, scores.shape[1]), 1).indices
    return torch.zeros_like(future).scatter(1, best, True) & ~future


@mistake(
    "the magnitudes are compared",
    rejected_by="a higher score is better",
    cause="A score of -3 is worse than one of 1: no absolute value.",
)
def by_magnitude(scores, num_keys):
    """abs."""
    return best_keys(scores.abs(), num_keys)


def _best_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, batch, length, num_keys) -> Case:
        scores = np.stack(
            [
                [rng.permutation(length) - length / 2 + 0.2 for _ in range(length)]
                for _ in range(batch)
            ]
        )
        return Case(label, {"scores": scores, "num_keys": num_keys})

    return [
        case("four tokens, two keys", 1, 4, 2),
        case("six tokens, three keys", 2, 6, 3),
        case("one key", 2, 5, 1),
        case("as many keys as tokens", 1, 4, 4),
        case("more keys than tokens", 1, 3, 8),
        case("one token", 2, 1, 2),
    ]


def _none_of_the_future(run: Run, case: Case) -> Problem | None:
    got = run.value(case)
    if got.shape != case.arguments["scores"].shape or not np.triu(got, 1).any():
        return None
    _, i, j = np.argwhere(np.triu(got, 1))[0]
    return Problem("only keys up to the query's own", f"query {i} selects key {j}")


def _how_many(run: Run, case: Case) -> Problem | None:
    length, count = case.arguments["scores"].shape[-1], case.arguments["num_keys"]
    expected = np.broadcast_to(
        np.minimum(np.arange(length) + 1, count), (len(run.value(case)), length)
    )
    return compare(expected, run.value(case).sum(-1), 0.0, "the number of selected keys per query")


def _higher(run: Run, case: Case) -> Problem | None:
    """Scores that rise from the first key to the last, and are negative at first: the last keys win."""
    length = case.arguments["scores"].shape[-1]
    scores = np.broadcast_to(np.arange(length) - length + 0.5, case.arguments["scores"].shape)
    expected = run.expected(case, scores=scores)[0]
    what = "with scores that rise toward the last key, which keys are selected"
    return compare(expected, run.value(case, scores=scores), 0.0, what)


BEST_KEYS = Spec(
    name="ch17.best_keys",
    statement="best_keys(scores, num_keys): which keys each query selects, True or False: the num_keys best of its own "
    "and earlier ones, all of them where there are not so many. scores (B, L, L), all different -> (B, L, L)",
    required=("scores", "num_keys"),
    reference=_best_reference,
    differentiable=False,
    cases=_best_cases,
    checks=(
        Check(
            "no key of the future", "Key j is visible to query i if j <= i.", _none_of_the_future
        ),
        Check(
            "as many keys as there are",
            "Query i has i + 1 visible keys; it selects num_keys of them, or all.",
            _how_many,
        ),
        Check(
            "a higher score is better", "A score may be negative: the largest ones win.", _higher
        ),
    ),
    mutants=mistakes(mask_afterward, filled_up, along_queries, by_magnitude),
    chapter=17,
    points=2,
)

EXERCISES = (LAYERS_NEEDED, LOCAL_ATTENTION, BEST_KEYS)
