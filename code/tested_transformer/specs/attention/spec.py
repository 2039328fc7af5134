"""The Spec of attention(): what every implementation of the formula must do, and how they fail."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from ... import reference
from ..compare import Problem, compare, unchanged
from ..draw import Draw
from ..masks.spec import textbook as masked_softmax
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec, finite
from ..tolerance import Tolerance, grown
from . import mutants

STATEMENT = """attention(query, key, value, ...): softmax(query key^T / sqrt(d), over the allowed keys) value.
query (*batch, L, d), key (*batch, S, d), value (*batch, S, dv) -> (*batch, L, dv)"""
OPTIONS = ("mask", "bias", "causal", "window", "key_lengths", "alibi_slopes", "scale")


def textbook(query, key, value, *, mask=None, bias=None, causal=False, window=None, key_lengths=None,
             alibi_slopes=None, scale=None) -> Tensor:  # fmt: skip
    """The baseline: the formula in torch with nothing upcast, so that its error is that of the dtype."""
    if query.ndim == 4:
        key, value = (t.repeat_interleave(query.shape[1] // t.shape[1], 1) for t in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    length, keys = scores.shape[-2:]
    back = torch.arange(length)[:, None] + keys - length - torch.arange(keys)
    hidden = torch.zeros_like(scores, dtype=torch.bool)
    if alibi_slopes is not None:
        scores = scores - alibi_slopes[:, None, None] * back.abs()
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        hidden = hidden | ~mask
    if causal:
        hidden = hidden | (back < 0)
    if window is not None:
        hidden = hidden | (back.abs() >= window)
    if key_lengths is not None:
        past = torch.arange(keys) >= key_lengths[:, None]
        hidden = hidden | past.view(len(key_lengths), *[1] * (query.ndim - 2), keys)
    return masked_softmax(scores, ~hidden) @ value


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(
        label, query, keys, width=6, dtype=torch.float64, spread=1.0, turned=False, **options
    ) -> Case:
        """query (*batch, L, d); keys (*batch, S). Turned: in memory L comes before the axis before it."""
        arrays = {
            "query": spread * rng.normal(size=query),
            "key": spread * rng.normal(size=(*keys, query[-1])),
            "value": rng.normal(size=(*keys, width)),
        }
        if turned:
            arrays = {n: a.swapaxes(-2, -3).copy().swapaxes(-2, -3) for n, a in arrays.items()}
        return Case(label, arrays | options, dtype)

    def random_mask(*shape, empty=None):
        mask = rng.random(shape) < 0.6
        mask[..., 0] = True
        if empty is not None:
            mask[..., empty, :] = False
        return mask

    def holes(*shape):
        bias = rng.normal(size=shape)
        bias[..., 2] = -np.inf
        bias[..., 1, :] = -np.inf
        return bias

    slopes = np.array([0.5, 0.25, 0.125])
    last_keys = np.zeros((2, 1, 1, 5), dtype=bool)  # as where padding stands on the left
    last_keys[..., 3:] = True
    return [
        case("one query, two keys", (1, 3), (2,), 4),
        case("no batch axis", (3, 4), (5,)),
        case("a square without batch", (4, 3), (4,), 2),
        case("a batch", (2, 3, 4), (2, 5)),
        case("heads", (2, 3, 5, 4), (2, 3, 7)),
        case("heads as many as the head size", (2, 4, 3, 4), (2, 4, 5)),
        case("more heads than the head size", (2, 5, 3, 4), (2, 5, 6)),
        case("scores in the thousands", (2, 3, 4), (2, 5), spread=40.0),
        case("a mask for all", (3, 4), (5,), mask=random_mask(3, 5)),
        case("a mask for each sample", (2, 3, 5, 4), (2, 3, 7), mask=random_mask(2, 1, 5, 7)),
        case("a mask with a fully masked row", (2, 3, 4), (2, 5), mask=random_mask(2, 3, 5, empty=1)),
        case("causal", (2, 3, 5, 4), (2, 3, 5), causal=True),
        case("causal with a cache", (2, 3, 4), (2, 7), causal=True),
        case("causal, one new query", (2, 1, 4), (2, 7), causal=True),
        case("causal, fewer keys than queries", (2, 5, 4), (2, 3), causal=True),
        case("a window", (2, 5, 4), (2, 7), window=2),
        case("a causal window", (2, 6, 4), (2, 7), causal=True, window=3),
        case("lengths", (3, 2, 5, 4), (3, 2, 7), key_lengths=np.array([4, 0, 7])),
        case("a bias", (2, 3, 5, 4), (2, 3, 7), bias=rng.normal(size=(5, 7))),
        case("a bias that hides", (2, 3, 5, 4), (2, 3, 7), bias=holes(1, 3, 5, 7)),
        case("distance penalties", (2, 3, 5, 4), (2, 3, 7), alibi_slopes=slopes),
        case("grouped-query attention", (2, 6, 3, 4), (2, 3, 5)),
        case("a scale of its own", (2, 3, 4), (2, 5), scale=0.3),
        case("float32", (2, 3, 5, 4), (2, 3, 7), dtype=torch.float32),
        case("bfloat16", (2, 3, 5, 4), (2, 3, 7), dtype=torch.bfloat16, causal=True),
        case("float16, masked", (2, 3, 4), (2, 5), dtype=torch.float16, mask=random_mask(3, 5)),
        case("everything", (2, 6, 5, 4), (2, 3, 7), causal=True, window=4, scale=0.4,
             mask=random_mask(2, 1, 5, 7), key_lengths=np.array([5, 7]), bias=rng.normal(size=(5, 7)),
             alibi_slopes=rng.random(6)),
        case("float32 without heads", (2, 3, 4), (2, 5), dtype=torch.float32),
        case("float16", (2, 3, 4), (2, 5), dtype=torch.float16),
        case("bfloat16 without heads", (3, 4), (5,), dtype=torch.bfloat16),
        case("one number per head", (1, 3, 1), (1, 4), 1),
        case("no keys", (2, 3, 4), (2, 0)),
        case("no queries", (2, 0, 4), (2, 5)),
        case("heads split from one matrix", (2, 3, 5, 4), (2, 3, 7), turned=True),
        case("samples behind the tokens", (2, 4, 3), (2, 5), turned=True),
        case("scores above 88 in float32", (2, 3, 4), (2, 5), dtype=torch.float32, spread=20.0),
        case("scores above 88 in bfloat16", (2, 3, 4), (2, 5), dtype=torch.bfloat16, spread=20.0),
        case("scores above 11 in float16", (2, 3, 4), (2, 5), dtype=torch.float16, spread=6.0),
        case("a scale of 0", (2, 3, 4), (2, 5), scale=0.0),
        case("a negative scale", (2, 3, 4), (2, 5), scale=-0.7),
        case("a window, fewer keys than queries", (2, 6, 4), (2, 4), window=2),
        case("a causal window, one new query", (2, 1, 4), (2, 7), causal=True, window=2),
        case("lengths without heads", (3, 4, 4), (3, 5), key_lengths=np.array([2, 5, 0])),
        case("distance penalties, fewer keys than queries", (2, 3, 6, 4), (2, 3, 4), alibi_slopes=slopes),
        case("a mask for each head", (2, 3, 5, 4), (2, 3, 7), mask=random_mask(2, 3, 5, 7)),
        case("grouped-query attention, a mask for each", (2, 6, 3, 4), (2, 3, 5), mask=random_mask(2, 6, 3, 5)),
        case("causal, padded on the left", (2, 3, 5, 4), (2, 3, 5), causal=True, mask=last_keys),
        case("causal with a cache and lengths", (3, 3, 4), (3, 7), causal=True,
             key_lengths=np.array([5, 7, 3])),
        case("a window, a mask and a bias", (2, 3, 5, 4), (2, 3, 6), window=3,
             mask=random_mask(5, 6), bias=rng.normal(size=(2, 1, 5, 6))),
        case("causal with a bias", (2, 3, 5, 4), (2, 3, 5), causal=True, bias=holes(5, 5)),
        case("past 512 keys", (2, 3), (600,), 2),
        case("causal, past 512 keys", (3, 3), (600,), 2, causal=True, window=550),
        case("five axes", (2, 1, 2, 3, 4), (2, 1, 2, 5), causal=True, mask=random_mask(2, 1, 1, 3, 5)),
        case("a whole number for the scale", (2, 3, 4), (2, 5), scale=1),
        case("a bias far below zero", (2, 3, 4), (2, 5), bias=-30000.0 - rng.random((3, 5))),
        case("slopes of any sign", (2, 3, 5, 4), (2, 3, 7), alibi_slopes=np.array([-0.5, 0.0, 0.25])),
        case("a window of one key", (2, 4, 4), (2, 5), window=1),
        case("a window wider than any sequence", (2, 4, 4), (2, 5), window=2**40),
    ]  # fmt: skip


def _drawn(draw: Draw) -> Case:
    """Any options together, in any dtype."""
    rng = draw.numbers
    batch, kv = draw.one_of(((2,), (2,)), ((2, 3), (2, 3)), ((2, 4), (2, 2)), ((1, 3), (1, 1)))
    length, keys = draw.one_of((4, 4), (2, 5), (1, 6), (6, 3))
    heads = batch[1] if len(batch) == 2 else None
    ranks = ((length, keys), (2, length, keys)) if heads is None else (
        (length, keys), (batch[0], 1, 1, keys), (1, heads, length, 1), (*batch, length, keys)
    )  # fmt: skip

    def mask():
        return rng.random(draw.one_of(*ranks)) < 0.7

    def bias():
        bias = rng.normal(size=draw.one_of(*ranks))
        bias[rng.random(bias.shape) < 0.2] = -np.inf
        return bias

    options = {
        "mask": draw.maybe(mask),
        "bias": draw.maybe(bias),
        "causal": draw.one_of(None, True),
        "window": draw.one_of(None, 2, 3),
        "key_lengths": draw.maybe(lambda: rng.integers(0, keys + 1, size=batch[0])),
        "alibi_slopes": draw.maybe(lambda: rng.random(heads)) if heads else None,
        "scale": draw.one_of(None, 0.4, -0.3),
    }
    dtype = draw.one_of(torch.float64, torch.float32, torch.bfloat16, torch.float16)
    sizes = {"query": (*batch, length, 4), "key": (*kv, keys, 4), "value": (*kv, keys, 3)}
    arrays = {name: rng.normal(size=size) for name, size in sizes.items()}
    return Case("options drawn at random", arrays | options, dtype)


_ALLOWED: WeakKeyDictionary[Case, np.ndarray] = WeakKeyDictionary()


def allowed_in(case: Case) -> np.ndarray:
    """Which query may attend to which key, by the reference's rules. Shape (*batch, L, S)."""
    if case not in _ALLOWED:
        _ALLOWED[case] = _allowed_in(case)
    return _ALLOWED[case]


def _allowed_in(case: Case) -> np.ndarray:
    a = case.arguments
    shape = (*a["query"].shape[:-1], a["key"].shape[-2])
    allowed = np.array(np.broadcast_to(True if a.get("mask") is None else a["mask"], shape))
    if a.get("bias") is not None:
        allowed &= np.broadcast_to(a["bias"] != -np.inf, shape)
    for *batch, i, j in np.ndindex(shape):
        lengths = a.get("key_lengths")
        length = None if lengths is None else lengths[batch[0]]
        rules = {"causal": a.get("causal", False), "window": a.get("window"), "length": length}
        allowed[(*batch, i, j)] &= reference.is_allowed(i, j, *shape[-2:], **rules)
    return allowed


# Attention to the rows of an identity matrix returns the weights; each case is made once.
_READABLE: WeakKeyDictionary[Case, Case] = WeakKeyDictionary()


def readable(case: Case) -> Case:
    """The same call with an identity matrix for the values: what it returns are the weights."""
    if case not in _READABLE:
        keys = case.arguments["key"].shape[:-1]
        identity = np.broadcast_to(np.eye(keys[-1]), (*keys, keys[-1])).copy()
        _READABLE[case] = case.changed(value=identity)
    return _READABLE[case]


def weights_of(run: Run, case: Case) -> np.ndarray:
    """The candidate's weights."""
    return run.value(readable(case))


def _distribution(run: Run, case: Case) -> Problem | None:
    weights = weights_of(run, case)
    if weights.size and weights.min() < 0:
        return Problem("weights of at least 0", f"a weight of {weights.min():.4g}")
    expected = allowed_in(case).any(-1).astype(float)
    slack = weights.shape[-1] * run.expected(readable(case))[1]  # that of each weight
    return compare(expected, weights.sum(-1), slack, "sums of the weights")


def _scale(run: Run, case: Case) -> Problem | None:
    """From the weights alone: log(w_0 / w_j) must be the scaled difference of the two products."""
    a = case.arrays()
    products = np.asarray(a["query"] @ np.swapaxes(a["key"], -1, -2), dtype=np.float64)
    scale = a["query"].shape[-1] ** -0.5 if a.get("scale") is None else a["scale"]
    exact, slack = run.expected(readable(case))
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(weights_of(run, case))
    expected = (products[..., :1] - products) * scale
    slack = log_slack(exact, slack)
    return compare(expected, logs[..., :1] - logs, slack, "ln(w_0 / w_j)")


def _roles(run: Run, case: Case) -> Problem | None:
    """Up to one factor for all (the next check's), log weights are the products q.k, less their mean."""
    a, (exact, slack) = case.arrays(), run.expected(readable(case))
    products = np.asarray(a["query"] @ np.swapaxes(a["key"], -1, -2), dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(weights_of(run, case))
    return same_direction(products, logs, log_slack(exact, slack))


def same_direction(products: np.ndarray, logs: np.ndarray, slack: float) -> Problem | None:
    """A Problem unless the logarithms, less the mean of their row, are a multiple of the products."""
    wanted, got = (each - each.mean(-1, keepdims=True) for each in (products, logs))
    squares = float((wanted * wanted).sum())
    factor = float((wanted * got).sum()) / squares if squares else 0.0
    return compare(
        wanted * factor,
        got,
        slack * (1 + wanted.size**0.5),  # of an entry, and of the factor: at most that of a row
        "ln(weights), less their mean",
    )


def log_slack(weights: np.ndarray, slack: float | Tolerance) -> float | Tolerance:
    """How far the difference of the logarithms of two such weights may be off if each is, by the slack."""
    smallest = float(weights.min(initial=1.0))

    def of(slack: float) -> float:
        left = smallest - slack
        return 2 * slack / left if left > 0 else np.inf

    return grown(slack, of)


def _hidden(run: Run, case: Case) -> Problem | None:
    """Hidden keys weigh nothing, allowed keys something; fully masked rows have a check of their own."""
    weights, allowed = weights_of(run, case), allowed_in(case)
    filled = allowed.any(-1, keepdims=True)
    seen = np.argwhere(filled & ~allowed & (weights != 0))
    if len(seen):
        *_, i, j = place = tuple(int(n) for n in seen[0])
        return Problem(f"weight 0 for query {i}, key {j}", f"{weights[place]:.4g}")
    lost = np.argwhere(allowed & ~(weights > 0))
    if len(lost):
        *_, i, j = place = tuple(int(n) for n in lost[0])
        return Problem(f"a weight above 0 for query {i}, key {j}", f"{weights[place]:.4g}")
    return None


def _empty_rows(run: Run, case: Case) -> Problem | None:
    empty = ~allowed_in(case).any(-1)
    output = run.value(case)
    return compare(np.zeros_like(output[empty]), output[empty], 0.0)


def _empty_gradients(run: Run, case: Case) -> Problem | None:
    empty = ~allowed_in(case).any(-1)
    if not run.outcome(case).is_tensor:  # a NumPy array has no gradient
        return None
    for name, gradient in run.gradients(case, ("query", "key", "value")).items():
        if not np.isfinite(gradient).all():
            return Problem(f"a finite gradient for `{name}`", "NaN or inf")
        if name == "query" and gradient[empty].any():
            return Problem(
                "gradient 0 for the query of a fully masked row", brief_max(gradient[empty])
            )
    return None


def brief_max(array: np.ndarray) -> str:
    """The largest entry, in words."""
    return f"up to {np.abs(array).max():.4g}"


def _key_order(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    order = np.arange(a["key"].shape[-2])[::-1]
    turned = run.value(case, key=a["key"][..., order, :], value=a["value"][..., order, :])
    return unchanged(
        run.value(case), turned, _slack(run, case), "keys and values are reversed together"
    )


def _slack(run: Run, case: Case) -> float:
    return 2 * run.expected(case)[1]


def _samples(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    changed = {name: a[name].copy() for name in ("query", "key", "value")}
    for array in changed.values():
        array[0] = -array[0]
    before, after = run.value(case), run.value(case, **changed)
    when = "the first sample changes"
    return unchanged(before[1:], after[1:], _slack(run, case), when, "the answer of the others")


def _groups(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    heads, groups = a["query"].shape[1], a["key"].shape[1]
    value = a["value"].copy()
    value[:, 0] += 1  # only the query heads of the first group may notice
    moved = np.abs(run.value(case, value=value) - run.value(case)).max(axis=(0, 2, 3)) > 0.5
    expected = np.arange(heads) < heads // groups
    return compare(expected, moved, 0.0)


def _chunks(run: Run, case: Case) -> Problem | None:
    """Feed the queries in chunks of 2, each with the keys so far, as a cache does."""
    a = case.arguments
    length = a["query"].shape[-2]
    whole = run.value(case)
    for start in range(0, length, 2):
        stop = min(start + 2, length)
        part = run.value(
            case,
            query=a["query"][..., start:stop, :],
            key=a["key"][..., :stop, :],
            value=a["value"][..., :stop, :],
        )
        when = f"queries {start} to {stop - 1} come as a chunk"
        problem = unchanged(whole[..., start:stop, :], part, _slack(run, case), when)
        if problem is not None:
            return problem
    return None


def _padding(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    key, value = a["key"].copy(), a["value"].copy()
    for b, length in enumerate(a["key_lengths"]):
        key[b, ..., length:, :] = 50.0
        value[b, ..., length:, :] = -50.0
    after = run.value(case, key=key, value=value)
    return unchanged(run.value(case), after, _slack(run, case), "padding holds other numbers")


def options_of(case: Case) -> set[str]:
    """The options that a case uses."""
    return {name for name in OPTIONS if case.arguments.get(name) is not None}


def grouped(case: Case) -> bool:
    """Does the case have fewer KV heads than query heads?"""
    return case.arguments["key"].shape[:-2] != case.arguments["query"].shape[:-2]


def _large(case: Case) -> bool:
    """Are there products that no exponential survives?"""
    return bool(np.abs(case.arguments["query"]).max(initial=0.0) > 10)


def _small(case: Case) -> bool:
    """Is every weight a number of the dtype: exp(lowest score - highest score) / S?"""
    a = case.arguments
    scale = a["query"].shape[-1] ** -0.5 if a.get("scale") is None else a["scale"]
    key = (
        a["key"].repeat(a["query"].shape[1] // a["key"].shape[1], 1) if grouped(case) else a["key"]
    )
    scores = a["query"] @ key.swapaxes(-1, -2) * scale
    largest = 2 * np.abs(scores).max(initial=0.0) + np.log(max(scores.shape[-1], 1))
    return bool(largest < -np.log(torch.finfo(case.dtype).tiny))


def _short(case: Case) -> bool:
    """Can an identity matrix stand in for the values?"""
    return case.arguments["key"].shape[-2] < 100


def _plain(case: Case) -> bool:
    return options_of(case) <= {"scale"} and _small(case) and not grouped(case) and _short(case)


def _has_empty(case: Case) -> bool:
    return not bool(allowed_in(case).any(-1).all())


def _hides(option: str, name: str, explain: str) -> Check:
    """A check on the cases where this option alone hides (a window may be causal as well)."""
    alone = {option}, {option, "causal"} if option == "window" else {option}
    return Check(
        name,
        explain,
        _hidden,
        (option,),
        lambda case: options_of(case) in alone and _small(case) and _short(case),
    )


CHECKS = (
    Check(
        "no overflow",
        "The softmax overflows. Subtract the row's maximum before the exponential.",
        finite,
        when=_large,
    ),
    Check(
        "weights are a distribution",
        "The weights of a query are at least 0 and sum to 1 (to 0 if it may attend to nothing).",
        _distribution,
        when=_plain,
    ),
    Check(
        "rows ask, columns answer",
        "Score (i, j) is query i times key j, softmax runs over j, and weight (i, j) is for value j.",
        _roles,
        when=lambda case: _plain(case) and case.arguments["key"].shape[-2] > 1,
    ),
    Check(
        "the scale is 1/sqrt(d)",
        "Weights must differ by exp((q.k - q.k') / sqrt(d)), where d is the size of one head.",
        _scale,
        when=_plain,
    ),
    Check(
        "the order of the keys does not matter",
        "Attention looks values up in a set: turning keys and values round together changes nothing.",
        _key_order,
        when=_plain,
    ),
    Check(
        "samples do not mix",
        "Changing the first sample of a batch must leave the others alone.",
        _samples,
        when=lambda case: _plain(case) and case.arguments["query"].ndim > 2,
    ),
    _hides("mask", "the mask decides", "Hidden keys have weight 0, allowed keys more than 0."),
    _hides("causal", "the future stays hidden",
           "Query i sees the keys up to i + S - L, so the last query sees them all, and no more."),
    _hides("window", "the window decides", "A window of w reaches w - 1 keys away, the own included."),
    _hides("key_lengths", "the lengths decide", "Keys at or past a sample's length have weight 0."),
    Check(
        "the allowed weights sum to 1",
        "The weights of the allowed keys share the whole: mask the scores before the softmax.",
        _distribution,
        when=lambda case: (
            bool(options_of(case)) and not _has_empty(case) and not grouped(case) and _short(case)
        ),
    ),
    Check(
        "a fully masked row is zero",
        "A query that may attend to nothing has nothing to say: its output is 0, not NaN, no mean.",
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
        "padding changes nothing",
        "What stands in padded places must not reach the output.",
        _padding,
        needs=("key_lengths",),
        when=lambda case: case.arguments.get("bias") is None,
    ),
    Check(
        "chunks equal one pass",
        "Fed in chunks with a cache of keys, the outputs must be those of one pass.",
        _chunks,
        needs=("causal",),
        when=lambda case: options_of(case) == {"causal"}
        and case.arguments["query"].shape[-2] == case.arguments["key"].shape[-2],
    ),
    Check(
        "query heads read their group's KV head",
        "Query heads 0 and 1 share KV head 0, heads 2 and 3 share KV head 1, and so on.",
        _groups,
        when=lambda case: grouped(case) and not options_of(case),
    ),
)  # fmt: skip


ATTENTION = Spec(
    name="attention",
    may_refuse=True,
    statement=STATEMENT,
    required=("query", "key", "value"),
    reference=reference.attention,
    baseline=textbook,
    cases=_cases,
    combine=_drawn,
    checks=CHECKS,
    mutants=mistakes_in(mutants),
    chapter=4,
)


def narrowed(
    name: str, statement: str, *options: str, chapter: int, points: int = 0, max_axes: int = 3
) -> Spec:
    """The same Spec for a function that takes fewer options: only the cases that need no others.

    The options named become required arguments, in that order, after query, key and value. Cases
    have at most `max_axes` axes.
    """
    return ATTENTION.narrowed(
        lambda case: (
            options_of(case) == set(options)
            and not grouped(case)
            and case.arguments["query"].ndim <= max_axes
        ),
        name=name,
        statement=statement,
        required=("query", "key", "value", *options),
        chapter=chapter,
        points=points,
    )
