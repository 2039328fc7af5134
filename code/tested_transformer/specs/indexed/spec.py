"""The Specs of DeepSeek sparse attention: attention over selected keys, the indexer, and the indexer's loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ... import reference
from ..checks import any_dtype, larger, transposed
from ..compare import Problem, compare, unchanged
from ..draw import Draw, attempts
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec, finite
from . import mutants

GAP = 0.02  # between the scores of the last key selected and the first one left out
OLDER = 0.4  # by how much a key grows with each step back: no two scores come near each other
FAR = 7.0  # larger than any number that is drawn


def clear(scores: np.ndarray, num_keys: int, allowed: np.ndarray) -> bool:
    """Whether rounding cannot change which keys are selected."""
    if num_keys >= scores.shape[-1]:
        return True
    best = -np.sort(-np.where(allowed, scores, -np.inf), -1)
    last, next_one = best[..., num_keys - 1], best[..., num_keys]
    return bool(((next_one == -np.inf) | (last > next_one + GAP)).all())


def redrawn(make: Callable[[], dict[str, Any]], fits: Callable[..., bool]) -> dict[str, Any]:
    """What `make` draws, again and again until it fits."""
    for _ in attempts():
        if fits(**(made := make())):
            return made


# --- Attention over the selected keys -------------------------------------------------------------

NAMES = ("query", "key", "value", "index_query", "index_key", "index_weights")


def _arguments(rng: np.random.Generator, sizes: tuple, **options: Any) -> dict[str, Any]:
    """Sizes: B, (H, G), (L, S), (d, dv), (I, e)."""
    batch, (heads, groups), (length, total), (width, wide), (voters, small) = sizes
    shapes = (
        (batch, heads, length, width), (batch, groups, total, width), (batch, groups, total, wide),
        (batch, voters, length, small), (batch, total, small), (batch, voters, length),
    )  # fmt: skip

    def make() -> dict[str, Any]:
        made = {name: rng.normal(size=s) for name, s in zip(NAMES, shapes, strict=True)}
        if voters == 1:  # else half of the scores were 0
            made |= {name: abs(made[name]) for name in ("index_query", "index_key")}
        return made | options

    return redrawn(make, _is_clear)


def _is_clear(num_keys: int, index_query, index_key, index_weights, **others: Any) -> bool:
    matches = np.maximum(index_query @ index_key[:, None].swapaxes(-1, -2), 0)
    scores = np.einsum("bil,bils->bls", index_weights, matches)
    return clear(scores, num_keys, _allowed(index_query, index_key, **others))


def _allowed(index_query, index_key, causal=True, key_mask=None, mask=None, **_) -> np.ndarray:
    """The keys that each query may read: (B, L, S)."""
    length, total = index_query.shape[2], index_key.shape[1]
    allowed = np.ones((len(index_key), length, total), bool)
    allowed &= np.tri(length, total, total - length, dtype=bool) if causal else True
    allowed &= True if key_mask is None else key_mask[:, None]
    return allowed if mask is None else allowed & mask


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64, num_keys=2, **options) -> Case:
        return Case(label, _arguments(rng, sizes, num_keys=num_keys, **options), dtype)

    small = (2, (4, 2), (6, 6), (3, 5), (3, 4))
    left = np.array([[True] * 6, [False, False, True, True, True, True]])
    none = np.array([[True, False, True, True, True, False], [False] * 6])
    pairs = rng.random((2, 6, 6)) < 0.7
    return [
        case("one token", 1, (1, 1), (1, 1), (2, 3), (2, 2)),
        case("three tokens, one key each", 1, (1, 1), (3, 3), (2, 3), (2, 2), num_keys=1),
        case("six tokens, two KV heads", *small),
        case("one head votes", 1, (2, 1), (5, 5), (3, 2), (1, 3)),
        case("more heads vote than attend", 2, (1, 1), (5, 5), (4, 3), (4, 2), num_keys=3),
        case("as many keys as there are", *small, num_keys=6),
        case("more keys than there are", *small, num_keys=9),
        case("after earlier tokens", 2, (2, 2), (3, 7), (3, 4), (3, 2), num_keys=3),
        case("the newest token alone", 1, (2, 1), (1, 6), (3, 4), (3, 2), num_keys=3),
        case("more queries than keys", 1, (2, 2), (5, 3), (2, 3), (2, 2)),
        case("padding on the left", *small, key_mask=left),
        case("padding inside, and nothing else", *small, key_mask=none),
        case("no causal mask", *small, causal=False, num_keys=3),
        case("a mask of its own", *small, mask=pairs),
        case("a scale of its own", *small, scale=0.3),
        case("chunks of two", *small, chunk_size=2),
        case("chunks of four", *small, chunk_size=4, key_mask=left),
        larger(case("float32", *small, dtype=torch.float32), key=100.0),
        Case("all options at once, transposed tensors",
             transposed(_arguments(rng, small, num_keys=2, causal=False, mask=pairs, key_mask=left, scale=0.3))),
        case("no tokens", 2, (2, 2), (0, 0), (3, 2), (2, 2)),
    ]  # fmt: skip


def _by_chance(draw: Draw) -> Case:
    length = draw.one_of(4, 1, 3, 6)
    total = length + draw.one_of(0, 3)
    batch = draw.one_of(1, 2)
    sizes = (
        batch, draw.one_of((2, 2), (1, 1), (4, 2), (3, 1)), (length, total),
        (draw.one_of(3, 1, 4), draw.one_of(2, 5)), (draw.one_of(3, 4, 2), draw.one_of(3, 2)),
    )  # fmt: skip
    options: dict[str, Any] = {"num_keys": draw.one_of(2, 1, 3, 20)}
    if draw.one_of(False, True):
        options["key_mask"] = draw.numbers.random((batch, total)) < 0.7
    if draw.one_of(False, True):
        options["causal"] = False
    if draw.one_of(False, True):
        options["chunk_size"] = draw.one_of(2, 1)
    arguments = _arguments(draw.numbers, sizes, **options)
    return Case("sizes by chance", arguments, any_dtype(draw))


def _weights(run: Run, case: Case, **changes: Any) -> np.ndarray:
    """The attention weights (B, H, L, S): the output where each value names its key."""
    total = case.arguments["key"].shape[2]
    names = np.broadcast_to(np.eye(total), (*case.arguments["key"].shape[:3], total)).copy()
    return run.value(case, value=names, **changes)


def _of(case: Case) -> np.ndarray:
    return _allowed(**case.arguments)


def _causal(case: Case) -> bool:
    return case.arguments.get("causal", True)


def _zeros(run: Run, case: Case) -> Problem | None:
    got = run.value(case)[~case.arguments["key_mask"].any(-1)]
    return compare(np.zeros_like(got), got, 0.0, "the output where every key is padding")


def _at_most(run: Run, case: Case) -> Problem | None:
    most, wanted = (_weights(run, case) != 0).sum(-1).max(), case.arguments["num_keys"]
    return None if most <= wanted else Problem(f"at most {wanted} keys read", f"{most} keys read")


def _last(run: Run, case: Case) -> Problem | None:
    total = case.arguments["key"].shape[2]
    read = (_weights(run, case, num_keys=total + 1)[:, :, -1] != 0).sum(-1).min()
    if read == total:
        return None
    return Problem(f"the last query reading all {total} keys", f"{read} keys read")


def _padding(run: Run, case: Case) -> Problem | None:
    """Padding of other keys and values, which the indexer would like best."""
    real = case.arguments["key_mask"]
    changes = {n: np.where(real[:, None, :, None], case.arguments[n], FAR) for n in NAMES[1:3]}
    before = run.value(case)
    for sign in (1, -1):
        key = np.where(real[..., None], case.arguments["index_key"], sign * FAR)
        after = run.value(case, **changes, index_key=key)
        slack = 2 * run.expected(case)[1]
        problem = unchanged(before, after, slack, "padding has other keys and values")
        if problem is not None:
            return problem
    return None


def _at_least(run: Run, case: Case) -> Problem | None:
    wanted = np.minimum(_of(case).sum(-1), case.arguments["num_keys"])[:, None]  # B 1 L
    read = (_weights(run, case) != 0).sum(-1)  # B H L
    if (read >= wanted).all():
        return None
    place = tuple(np.argwhere(read < wanted)[0])
    return Problem(
        f"{np.broadcast_to(wanted, read.shape)[place]} keys read by query {place[2]}",
        f"{read[place]} keys read",
    )


def _future(run: Run, case: Case) -> Problem | None:
    """Another last token: the outputs before stay."""
    last = case.arguments["query"].shape[2] - 1
    before = run.value(case)[:, :, :last]
    for sign in (1, -1):
        changes = {name: case.arguments[name].copy() for name in ("key", "value", "index_key")}
        for each in changes.values():
            each[..., -1, :] = sign * FAR
        after = run.value(case, **changes)[:, :, :last]
        slack = 2 * run.expected(case)[1]
        problem = unchanged(before, after, slack, "the last token changes", "an earlier output")
        if problem is not None:
            return problem
    return None


def _same_keys(run: Run, case: Case) -> Problem | None:
    read = _weights(run, case) != 0
    if (read == read[:, :1]).all():
        return None
    return Problem("the same keys read by all heads", "keys that only some of the heads read")


def _vote(run: Run, case: Case, second: float) -> Problem | None:
    """Two heads with opposite queries, and keys of both signs; all other heads weigh nothing."""
    made = {name: np.zeros_like(case.arguments[name]) for name in NAMES[3:]}
    made["index_query"][:, 0, :, 0], made["index_query"][:, 1, :, 0] = 1.0, -1.0
    steps = np.arange(made["index_key"].shape[1])
    made["index_key"][..., 0] = (-1.0) ** steps * (steps + 1)
    made["index_weights"][:, 0], made["index_weights"][:, 1] = 1.0, second
    expected, slack = run.expected(case, **made)
    what = f"two heads of the indexer with opposite queries and weights 1 and {second}: the output"
    return compare(expected, run.value(case, **made), slack, what)


def _votes(case: Case) -> bool:
    voters, total = case.arguments["index_query"].shape[1], case.arguments["index_key"].shape[1]
    return voters > 1 and total > case.arguments["num_keys"] + 1


def _not_empty(case: Case) -> bool:
    return not case.is_empty


INDEXED_ATTENTION = Spec(
    name="indexed_attention",
    statement="indexed_attention(query, key, value, index_query, index_key, index_weights, *, num_keys, causal, "
    "key_mask, mask, scale, chunk_size) -> output. The index score of key s for query t is the sum over the "
    "indexer's heads of index_weights x ReLU(index_query . index_key); each query attends to the num_keys keys of "
    "the largest scores among those that it may read, or to all of them if they are fewer. causal (True by "
    "default) is aligned at the last query and the last key; key_mask (B, S) is False for padding; mask (B, L, S) "
    "is False where a query may not read a key; scale: 1 / sqrt(d) by default; a query without a key gets zeros; "
    "chunk_size changes no number. query (B, H, L, d), key (B, G, S, d), value (B, G, S, dv), G divides H, "
    "index_query (B, I, L, e), index_key (B, S, e), index_weights (B, I, L) -> (B, H, L, dv)",
    required=NAMES,
    reference=reference.indexed_attention,
    baseline=mutants.IndexedFormula(),
    cases=_cases,
    combine=_by_chance,
    num_drawn=5,
    checks=(
        Check(
            "a query that may read no key gets zeros",
            "Mask with -inf, and fill the weights of a query without any key with zeros.",
            _zeros,
            needs=("key_mask",),
        ),
        Check(
            "only the selected keys have a weight",
            "A key that is not selected has a score of -inf before the softmax, or is not there at all.",
            _at_most,
            when=_not_empty,
        ),
        Check(
            "the last query may read every key",
            "With earlier tokens in a cache, query i is at position i + S - L.",
            _last,
            when=lambda case: _not_empty(case) and "mask" not in case.arguments and "key_mask" not in case.arguments,
        ),
        Check(
            "padding changes nothing",
            "Padding is masked before the best keys are taken: it is never one of them.",
            _padding,
            needs=("key_mask",),
        ),
        Check(
            "a query reads num_keys of the keys that it may read",
            "Mask first, then take the best: a masked key takes nobody's place.",
            _at_least,
            when=_not_empty,
        ),
        Check(
            "a token does not depend on later ones",
            "Later tokens are masked in the indexer's scores, too: they may not decide what is read.",
            _future,
            when=lambda case: _not_empty(case) and _causal(case) and case.arguments["query"].shape[2] > 1,
        ),
        Check(
            "all heads read the same keys",
            "The indexer's heads are summed: one list of keys for each query, whatever the head.",
            _same_keys,
            when=_not_empty,
        ),
        Check(
            "a head with a negative weight votes against a key",
            "The weights are used as they are, with their signs.",
            lambda run, case: _vote(run, case, -0.77),
            when=_votes,
        ),
        Check(
            "a negative match counts as none",
            "ReLU comes before the sum over heads.",
            lambda run, case: _vote(run, case, 0.77),
            when=_votes,
        ),
    ),
    mutants=mistakes_in(mutants, of="indexed_attention"),
    chapter=17,
)  # fmt: skip


# --- The indexer ----------------------------------------------------------------------------------


def _indexed(rng: np.random.Generator, batch, voters, length, width, **options: Any) -> dict:
    shapes = ((batch, voters, length, width), (batch, length, width), (batch, voters, length))
    names = ("query", "key", "weights")

    def make() -> dict[str, Any]:
        made = {name: rng.normal(size=s) for name, s in zip(names, shapes, strict=True)}
        return made | options

    return redrawn(make, _turned_is_clear)


def _turned(x: np.ndarray, rotary_dim: int, base: float) -> np.ndarray:
    """Features i and i + rotary_dim / 2 as complex numbers, turned by the position."""
    half = rotary_dim // 2
    angles = np.arange(x.shape[-2])[:, None] / base ** (np.arange(half) / half)
    numbers = (x[..., :half] + 1j * x[..., half:rotary_dim]) * np.exp(1j * angles)
    return np.concatenate((numbers.real, numbers.imag, x[..., rotary_dim:]), -1)


def _turned_is_clear(query, key, weights, num_keys, rotary_dim, base=10000.0) -> bool:
    query, key = (_turned(each, rotary_dim, base) for each in (query, key[:, None]))
    scores = np.einsum("bil,bils->bls", weights, np.maximum(query @ key.swapaxes(-1, -2), 0))
    return clear(scores, num_keys, np.tri(query.shape[2], dtype=bool)[None])


def _indexer_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64, **options) -> Case:
        return Case(label, _indexed(rng, *sizes, **options), dtype)

    return [
        case("two tokens", 1, 2, 2, 4, num_keys=1, rotary_dim=4),
        case("twelve tokens", 2, 3, 12, 10, num_keys=2, rotary_dim=8),
        case("all features rotated", 2, 3, 6, 4, num_keys=3, rotary_dim=4),
        case("another base", 1, 4, 7, 8, num_keys=2, rotary_dim=4, base=50.0),
        case("as many keys as there are", 1, 2, 4, 6, num_keys=4, rotary_dim=4),
        case("float32", 2, 3, 6, 6, num_keys=3, rotary_dim=4, dtype=torch.float32),
        case("no tokens", 2, 2, 0, 4, num_keys=2, rotary_dim=4),
    ]


def _indexer_by_chance(draw: Draw) -> Case:
    width = draw.one_of(6, 4, 8)
    sizes = (draw.one_of(1, 2), draw.one_of(3, 2, 4), draw.one_of(5, 1, 3, 7), width)
    options = {"num_keys": draw.one_of(2, 1, 3, 9), "rotary_dim": draw.one_of(4, width)}
    return Case("sizes by chance", _indexed(draw.numbers, *sizes, **options), any_dtype(draw))


def _turns(run: Run, case: Case, feature: int) -> Problem | None:
    """One feature of queries and keys, larger in older keys: which key is best depends on its rotation."""
    made = {name: np.zeros_like(case.arguments[name]) for name in ("query", "key", "weights")}
    length = made["key"].shape[1]
    made["query"][:, 0, :, feature] = 1.0
    made["key"][..., feature] = 1 + OLDER * (length - np.arange(length))
    made["weights"][:, 0] = 1.0
    expected, got = run.expected(case, **made, num_keys=1)[0], run.value(case, **made, num_keys=1)
    if expected.shape == got.shape and (expected == got).all():
        return None
    place = tuple(np.argwhere(expected)[0]) if expected.shape != got.shape else tuple(
        np.argwhere(expected & ~got)[0]
    )  # fmt: skip
    what = f"where feature {feature} alone is not 0, query {place[1]}"
    return Problem(f"{what} selecting key {place[2]}", "another key")


def _not_all(case: Case) -> bool:
    return _long(case) and case.arguments["rotary_dim"] < case.arguments["key"].shape[-1]


def _long(case: Case) -> bool:
    return case.arguments["key"].shape[1] > 1


LIGHTNING_INDEXER = Spec(
    name="lightning_indexer",
    statement="lightning_indexer(query, key, weights, *, num_keys, rotary_dim, base) -> selected. The first "
    "rotary_dim features of queries and keys are rotated by the positions 0 to L - 1, feature i with feature "
    "i + rotary_dim / 2; the score of a key is the sum over heads of weights x ReLU(query . key); True where a "
    "key is one of the num_keys best of a query's own and earlier tokens. base: 10000 by default. query "
    "(B, I, L, e), key (B, L, e), weights (B, I, L) -> (B, L, L)",
    required=("query", "key", "weights"),
    reference=reference.lightning_indexer,
    cases=_indexer_cases,
    combine=_indexer_by_chance,
    num_drawn=5,
    differentiable=False,
    checks=(
        Check(
            "the features after the first rotary_dim stay",
            "In the indexer the rotary part comes first; the features after it know no position.",
            lambda run, case: _turns(run, case, case.arguments["key"].shape[-1] - 1),
            when=_not_all,
        ),
        Check(
            "an indexer's score knows the distance",
            "Queries and keys of the indexer are rotated by their positions.",
            lambda run, case: _turns(run, case, 0),
            when=_long,
        ),
        Check(
            "feature i is rotated with feature i + rotary_dim / 2",
            'The layout is "halves": feature 1 turns slowly, with the second of the two halves.',
            lambda run, case: _turns(run, case, 1),
            when=_long,
        ),
    ),
    mutants=mistakes_in(mutants, of="lightning_indexer"),
    chapter=17,
)  # fmt: skip


# --- The loss of the indexer ----------------------------------------------------------------------


def _rows(rng: np.random.Generator, batch, heads, length, mask=None) -> np.ndarray:
    """Attention weights (B, H, L, L) over the keys of the mask."""
    weights = np.exp(rng.normal(size=(batch, heads, length, length)))
    weights = weights if mask is None else weights * mask[:, None]
    return weights / np.maximum(weights.sum(-1, keepdims=True), 1e-9)


def _loss_arguments(rng: np.random.Generator, *sizes: int, mask=None) -> dict[str, Any]:
    batch, _, length = sizes
    made = {
        "scores": 2 * rng.normal(size=(batch, length, length)),
        "attention_weights": _rows(rng, *sizes, mask),
    }
    return made if mask is None else made | {"mask": mask}


def _loss_cases(rng: np.random.Generator) -> list[Case]:
    past = np.tri(5, dtype=bool)[None]
    selected = past & (np.arange(5) % 2 == 0) & np.ones((2, 1, 1), bool)  # 1, 1, 2, 2, 3 keys
    padded = past & np.array([[[True] * 5], [[False, False, True, True, True]]])
    return [
        Case("two tokens", _loss_arguments(rng, 1, 2, 2)),
        Case("no mask", _loss_arguments(rng, 2, 3, 4)),
        Case("the past", _loss_arguments(rng, 2, 3, 5, mask=past)),
        Case("selected keys", _loss_arguments(rng, 2, 3, 5, mask=selected)),
        Case("queries without a key", _loss_arguments(rng, 2, 3, 5, mask=padded)),
        larger(
            Case("float32", _loss_arguments(rng, 2, 3, 5, mask=past), torch.float32), scores=200.0
        ),
        Case("no tokens", _loss_arguments(rng, 2, 2, 0)),
    ]


def _kept(case: Case) -> np.ndarray:
    scores = case.arguments["scores"]
    return np.broadcast_to(case.arguments.get("mask", True), scores.shape)


def _nothing(run: Run, case: Case) -> Problem | None:
    """Scores that are the logarithm of what the heads attend to."""
    weights = case.arguments["attention_weights"]
    total = np.where(_kept(case), weights.sum(1), 1.0)
    scores = np.log(np.where(total > 0, total, 1.0))
    got = run.value(case, scores=scores)
    eps = torch.finfo(case.dtype).eps
    what = "the loss where the softmax is what the heads attend to"
    return compare(np.zeros_like(got), got, 64 * eps, what)


def _one_key(run: Run, case: Case) -> Problem | None:
    """All heads attend to one key, and the scores are equal: the loss is the logarithm of how many keys."""
    kept = _kept(case)
    weights = np.zeros_like(case.arguments["attention_weights"])
    first = kept.argmax(-1)[:, None, :, None]
    np.put_along_axis(weights, np.broadcast_to(first, (*weights.shape[:3], 1)), 1.0, -1)
    weights *= kept[:, None]
    numbers = kept.sum(-1)
    expected = np.log(numbers[numbers > 0]).mean()
    got = run.value(case, scores=np.zeros_like(case.arguments["scores"]), attention_weights=weights)
    what = "the loss where all heads attend to one key and the scores are equal"
    return compare(np.array(expected), got, 64 * torch.finfo(case.dtype).eps, what)


def _outside(run: Run, case: Case) -> Problem | None:
    scores = np.where(_kept(case), case.arguments["scores"], FAR)
    before, after = run.value(case), run.value(case, scores=scores)
    when = "keys outside the mask have other scores"
    return unchanged(before, after, 2 * run.expected(case)[1], when, "the loss")


INDEXER_LOSS = Spec(
    name="indexer_loss",
    statement="indexer_loss(scores, attention_weights, *, mask) -> loss. For each query p is the sum over heads of "
    "attention_weights, divided by its own sum over the keys of the mask, and q is the softmax of scores over the "
    "keys of the mask; the loss is the mean of KL(p || q) over the queries for which that sum is not 0 (0 if there "
    "is none). No gradient reaches attention_weights. mask: all keys by default. scores (B, L, S), "
    "attention_weights (B, H, L, S), mask (B, L, S) or broadcast to it -> ()",
    required=("scores", "attention_weights"),
    reference=reference.indexer_loss,
    baseline=mutants.LossFormula(),
    cases=_loss_cases,
    checks=(
        Check(
            "finite where an attention weight is 0",
            "p log p is 0 where p is 0.",
            finite,
        ),
        Check(
            "keys outside the mask change nothing",
            "Mask the scores, too: the softmax is over the keys of the mask.",
            _outside,
            needs=("mask",),
        ),
        Check(
            "equal distributions have a loss of 0",
            "The heads' weights sum to the number of heads: divide by the sum.",
            _nothing,
            when=lambda case: not case.is_empty,
        ),
        Check(
            "a key that the heads do not attend to costs little",
            "KL(p || q), with the heads' distribution first.",
            _one_key,
            when=lambda case: not case.is_empty,
        ),
    ),
    mutants=mistakes_in(mutants, of="indexer_loss"),
    chapter=17,
)  # fmt: skip
