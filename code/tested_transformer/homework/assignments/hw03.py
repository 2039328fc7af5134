"""Homework 3: masks."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ... import reference
from ...specs.compare import Problem, compare, unchanged
from ...specs.mistakes import mistake, mistakes
from ...specs.spec import SHAPE, Case, Check, Run, Spec
from ..checks import of_exponents, same_with
from ..tasks import Assignment, Hunt, Task, Written

# --- How many pairs -------------------------------------------------------------------------------


def _count_reference(num_queries, num_keys, window):
    """Query by query: its newest and its oldest key, and how many there are from one to the other."""
    total = 0
    for i in range(num_queries):
        newest = i + num_keys - num_queries
        oldest = max(newest - window + 1, 0)
        total += max(newest - oldest + 1, 0)
    return total


def _rows(num_queries, num_keys):
    """How many keys lie at or before each query; a negative number of keys for none."""
    return torch.arange(num_queries) + num_keys - num_queries + 1


@mistake(
    "the future counted too",
    rejected_by="the pairs of a small mask",
    cause="The window is counted on both sides of a query; a causal window ends at the query.",
)
def counted_on_both_sides(num_queries, num_keys, window):
    """The window also reaches into the future."""
    back = _rows(num_queries, num_keys) - 1
    first, last = (back - window + 1).clamp(min=0), (back + window - 1).clamp(max=num_keys - 1)
    return int((last - first + 1).clamp(min=0).sum())


@mistake(
    "the cache not counted",
    rejected_by="the pairs of a small mask",
    cause="The first query is placed at the first key: the S - L is missing.",
)
def counted_without_cache(num_queries, num_keys, window):
    """As if the first query stood at the first key."""
    return int(_rows(num_queries, num_queries).clamp(max=min(window, num_keys)).sum())


@mistake(
    "fewer than no keys",
    rejected_by="the pairs of a small mask",
    cause="A query before the first key has no keys; here it has a negative number of them.",
)
def counted_below_nothing(num_queries, num_keys, window):
    """Queries before the first key count as negative."""
    return int(_rows(num_queries, num_keys).clamp(max=window).sum())


@mistake(
    "a window of w + 1",
    rejected_by="the pairs of a small mask",
    cause="The query's own key is one of the w.",
)
def counted_one_too_many(num_queries, num_keys, window):
    """A window of w + 1 keys."""
    return int(_rows(num_queries, num_keys).clamp(0, window + 1).sum())


@mistake(
    "a count that is no integer",
    rejected_by="the right shape and dtype",
    cause="/ gives a float; // gives an integer.",
)
def counted_with_a_slash(num_queries, num_keys, window):
    """The right number, as a float."""
    return float(_rows(num_queries, num_keys).clamp(0, window).sum())


@mistake(
    "the pairs of a whole table",
    rejected_by="RuntimeError",
    cause="A mask of L S entries is built only to be counted.",
)
def counted_in_a_table(num_queries, num_keys, window):
    """Make the mask and count what is True."""
    back = _rows(num_queries, num_keys)[:, None] - 1 - torch.arange(num_keys)
    return int(((back >= 0) & (back < window)).sum())


def _count_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, num_queries, num_keys, window) -> Case:
        sizes = {"num_queries": num_queries, "num_keys": num_keys, "window": window}
        return Case(label, sizes)

    keys = int(rng.integers(20, 30))
    return [
        case("one pair", 1, 1, 1),
        case("three tokens, a window of two", 3, 3, 2),
        case("a window wider than the text", 4, 4, 9),
        case("two new tokens after four", 2, 6, 3),
        case("five queries, three keys", 5, 3, 2),
        case("no keys", 3, 0, 2),
        case("no queries", 0, 4, 2),
        case("a chunk", int(rng.integers(3, 12)), keys, int(rng.integers(4, 16))),
        case("far more queries than keys", 2000 + keys, 300, 70),
        case("a cache too long for any table", 1000 + keys, 10**15, 700),
    ]


def _small(case: Case) -> bool:
    return case.arguments["num_keys"] < 1000


def _by_pairs(run: Run, case: Case) -> Problem | None:
    """Count the pairs one by one."""
    sizes = case.arguments["num_queries"], case.arguments["num_keys"]
    table = [
        reference.is_allowed(i, j, *sizes, causal=True, window=case.arguments["window"])
        for i, j in np.ndindex(sizes)
    ]
    return compare(np.asarray(sum(table)), run.value(case), 0.0)


COUNT_PAIRS = Spec(
    name="hw03.count_pairs",
    statement="count_pairs(num_queries, num_keys, window): an int, the number of pairs (i, j) "
    "with 0 <= i + S - L - j < window, for L = num_queries, S = num_keys, without building a "
    "matrix",
    required=("num_queries", "num_keys", "window"),
    reference=_count_reference,
    cases=_count_cases,
    usual=(SHAPE,),
    checks=(
        Check(
            "the pairs of a small mask",
            "Write this mask down by hand and count its Trues: each query has its own number of "
            "keys.",
            _by_pairs,
            when=lambda case: _small(case) and case.arguments["num_queries"] < 100,
        ),
    ),
    mutants=mistakes(
        counted_on_both_sides, counted_without_cache, counted_below_nothing, counted_one_too_many,
        counted_with_a_slash, counted_in_a_table
    ),
    chapter=4,
    points=2,
)  # fmt: skip

# --- The mean of the words ------------------------------------------------------------------------


def _mean_reference(x, real):
    """Add up the real tokens of each sample, one by one."""
    answer = np.zeros((x.shape[0], x.shape[2]), dtype=x.dtype)
    for b in range(len(x)):
        words = [x[b, i] for i in range(x.shape[1]) if real[b, i]]
        for word in words:
            answer[b] += word / len(words)
    return answer


def _mean_of_shares(x, real):
    """Each real token's share, added up."""
    count = real.sum(1).clamp(min=1)[:, None, None]
    return (x.masked_fill(~real[..., None], 0.0) / count).sum(1)


@mistake(
    "padding in the denominator",
    rejected_by="the gradient is uniform and finite",
    cause="The sum of the real tokens is divided by L, not by their number.",
)
def mean_of_everything(x, real):
    """Divide by the length."""
    return (x.masked_fill(~real[..., None], 0.0) / x.shape[1]).sum(1)


@mistake(
    "zero times NaN",
    rejected_by="padding is not read",
    cause="x * mask: 0 x NaN is NaN, and so is 0 x inf. Replace, do not multiply.",
)
def mean_by_product(x, real):
    """Multiply by zero what is padding."""
    count = real.sum(1).clamp(min=1)[:, None, None]
    return (x * real[..., None] / count).sum(1)


@mistake(
    "a mean of no tokens",
    rejected_by="no real tokens give zeros",
    cause="0/0: the number of real tokens is 0.",
)
def mean_without_guard(x, real):
    """Divide by the number of words, also if it is 0."""
    return x.masked_fill(~real[..., None], 0.0).sum(1) / real.sum(1)[:, None].to(x.dtype)


@mistake(
    "the mean repaired too late",
    rejected_by="the gradient is uniform and finite",
    cause="0/0 is computed and then replaced, but its gradient is NaN all the same.",
)
def mean_cleared_too_late(x, real):
    """Divide by 0, and clear the NaN."""
    count = real.sum(1)[:, None].to(x.dtype)
    words = x.nan_to_num(0.0, 0.0, 0.0) * real[..., None] / count[..., None]
    return words.sum(1).nan_to_num(0.0)


@mistake(
    "a sum too large for its dtype",
    rejected_by="a large sum does not overflow",
    cause="The sum is computed in the dtype of x and divided afterward.",
)
def mean_of_a_sum(x, real):
    """Add up in the dtype of x, then divide."""
    words = x.masked_fill(~real[..., None], 0.0)
    return words.sum(1) / real.sum(1).clamp(min=1)[:, None]


def _mean_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, real, width, padding=None, dtype=torch.float64, scale=1.0) -> Case:
        real = np.asarray(real, dtype=bool)
        x = rng.normal(size=(*real.shape, width)) * scale
        if padding is not None:
            x[~real] = rng.choice(padding, size=x[~real].shape)
        return Case(label, {"x": x, "real": real}, dtype)

    def lengths(counts, longest):
        return [[place < count for place in range(longest)] for count in counts]

    half = case("large numbers in float16", lengths((50, 40), 50), 3, dtype=torch.float16)
    half.arguments["x"][...] = 3000 + 100 * half.arguments["x"]
    return [
        case("one word", [[1]], 2),
        case("two words and a padding", [[1, 1, 0]], 2),
        case("padding on the left", [[0, 0, 1, 1], [0, 1, 1, 1]], 3),
        case("padding that holds inf and NaN", lengths((3, 5, 1), 5), 4, [np.nan, np.inf, -np.inf]),
        case("a sample without a word", lengths((2, 0, 4), 4), 3),
        case("no words, and NaN", lengths((0, 3), 3), 2, [np.nan]),
        half,
    ]


def _padding_unread(run: Run, case: Case) -> Problem | None:
    """Other numbers at the padded places: the same answer, to the last bit."""
    x = case.arguments["x"].copy()
    x[~case.arguments["real"]] = -7.5
    some = case.arguments["real"].any(1)  # the others have a check of their own
    before, after = run.value(case)[some], run.value(case, x=x)[some]
    when, tolerance = "-7.5 stands at the padded positions", 2 * run.expected(case)[1]
    return unchanged(before, after, tolerance, when, "the mean")


def _mean_gradient(run: Run, case: Case) -> Problem | None:
    real = case.arguments["real"]
    count = np.maximum(real.sum(1), 1)[:, None, None]
    expected = np.broadcast_to(real[..., None] / count, case.arguments["x"].shape)
    return compare(expected, run.gradients(case, ["x"])["x"], case.rounding(1), "the gradient of x")


def _without_words(run: Run, case: Case) -> Problem | None:
    empty = ~case.arguments["real"].any(1)
    got = run.value(case)[empty]
    return compare(np.zeros_like(got), got, 0.0, "the samples without a word")


MEAN_OF_WORDS = Spec(
    name="hw03.mean_of_words",
    statement="mean_of_words(x, real): the mean of each sample's real tokens, (B, D); x (B, L, D), real "
    "boolean (B, L); padding may hold inf and NaN, no real token gives zeros",
    required=("x", "real"),
    reference=_mean_reference,
    baseline=_mean_of_shares,
    cases=_mean_cases,
    checks=(
        Check(
            "padding is not read",
            "What padding holds, even inf or NaN, must not change the output.",
            _padding_unread,
        ),
        Check(
            "no real tokens give zeros",
            "A sample without a real token has the mean 0, by definition.",
            _without_words,
            when=lambda case: not case.arguments["real"].any(1).all(),
        ),
        Check(
            "the gradient is uniform and finite",
            "Each of n real tokens gets the gradient 1/n, padding gets 0, and none gets NaN.",
            _mean_gradient,
            when=lambda case: case.dtype == torch.float64,
        ),
        Check(
            "a large sum does not overflow",
            "The mean fits into float16, but the sum on the way to it does not.",
            lambda run, case: (
                None if np.isfinite(run.value(case)).all() else Problem("finite means", "inf or NaN")
            ),
            when=lambda case: case.dtype == torch.float16,
        ),
    ),
    mutants=mistakes(
        mean_of_everything, mean_by_product, mean_without_guard, mean_cleared_too_late,
        mean_of_a_sum
    ),
    chapter=4,
    points=2,
)  # fmt: skip

# --- A chunk, a cache, and padding on the left ----------------------------------------------------


def _chunk_reference(pads, num_cached, num_new):
    """Place by place: a word sees words not after it, padding sees itself."""
    keys = num_cached + num_new
    mask = np.zeros((len(pads), 1, num_new, keys), dtype=bool)
    for b, _, i, j in np.ndindex(mask.shape):
        place = num_cached + i
        mask[b, 0, i, j] = pads[b] <= j <= place or j == place
    return mask


def _places(pads, num_cached, num_new) -> tuple[Tensor, Tensor, Tensor]:
    """Places of the queries and of the keys, and how many pads stand before them."""
    keys = num_cached + num_new
    return torch.arange(num_cached, keys)[:, None], torch.arange(keys), pads[:, None, None]


@mistake(
    "the chunk at the top left",
    rejected_by="every query attends to itself",
    cause="The queries are numbered from 0; the chunk begins at position num_cached.",
)
def chunk_top_left(pads, num_cached, num_new):
    """The first new token at place 0."""
    place, key, pad = _places(pads, num_cached, num_new)
    place = place - num_cached
    return ((key <= place) & (key >= pad) | (key == place))[:, None]


@mistake(
    "a chunk padded on the right",
    rejected_by="real tokens attend to those before them",
    cause="The last keys are taken for padding; in this batch the first ones are.",
)
def chunk_padded_on_the_right(pads, num_cached, num_new):
    """The last keys are the padding."""
    place, key, pad = _places(pads, num_cached, num_new)
    return ((key <= place) & (key < num_cached + num_new - pad) | (key == place))[:, None]


@mistake(
    "a chunk with fully masked rows",
    rejected_by="every query attends to itself",
    cause="A padded query may attend to neither padding nor real tokens: its row is fully masked.",
)
def chunk_with_empty_rows(pads, num_cached, num_new):
    """A padded query sees nothing."""
    place, key, pad = _places(pads, num_cached, num_new)
    return ((key <= place) & (key >= pad))[:, None]


@mistake(
    "padding that reads padding",
    rejected_by="equals the reference",
    cause="A padded query attends to all the padding before it; it may attend to itself only.",
)
def chunk_padding_reads_padding(pads, num_cached, num_new):
    """A padded query sees the padding before it."""
    place, key, pad = _places(pads, num_cached, num_new)
    return ((key <= place) & ((key >= pad) | (place < pad)))[:, None]


@mistake(
    "rows masked in place of keys",
    rejected_by="real tokens do not attend to padding",
    cause="The padding is masked on the axis of the queries, not on that of the keys.",
)
def chunk_own_place_for_padding_only(pads, num_cached, num_new):
    """Words see the whole cache, padding included."""
    place, key, pad = _places(pads, num_cached, num_new)
    return ((key <= place) & (place >= pad) | (key == place))[:, None]


@mistake(
    "a chunk without order",
    rejected_by="the future is masked",
    cause="The causal mask is missing, as if a chunk with a cache had no future.",
)
def chunk_without_order(pads, num_cached, num_new):
    """Words see the whole chunk: with a cache there is no future, or so it is said."""
    place, key, pad = _places(pads, num_cached, num_new)
    return ((key >= pad) & (place >= pad) | (key == place))[:, None]


@mistake(
    "a chunk mask of rank 3",
    rejected_by="the right shape and dtype",
    cause="The axis for the heads is missing.",
)
def chunk_without_heads(pads, num_cached, num_new):
    """(B, L, S)."""
    place, key, pad = _places(pads, num_cached, num_new)
    return (key <= place) & (key >= pad) | (key == place)


def _chunk_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, pads, num_cached, num_new) -> Case:
        sizes = {"num_cached": num_cached, "num_new": num_new}
        return Case(label, {"pads": np.asarray(pads), **sizes})

    return [
        case("one word", [0], 0, 1),
        case("a prompt at once", [1, 0], 0, 3),
        case("one more word", [0, 2], 4, 1),
        case("a chunk that begins in the padding", [0, 3], 1, 3),
        case("a chunk of nothing but padding", [5, 1, 2], 2, 2),
        case("a long prompt in chunks", rng.integers(0, 9, size=5), 4, 7),
    ]


def _part(where: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]):
    """A check of the places where `where` is true, of places of queries, of keys, and pads."""

    def test(run: Run, case: Case) -> Problem | None:
        pads, cached, new = case.arguments.values()
        place = np.arange(cached, cached + new)[:, None]
        region = where(place, np.arange(cached + new), pads[:, None, None])[:, None]
        expected, got = run.expected(case)[0], run.value(case)
        wrong = np.argwhere((expected != got) & region)
        if not len(wrong):
            return None
        b, _, i, j = wrong[0]
        where_from = f"sample {b}, query {i}, key {j}: "
        return Problem(where_from + str(expected[b, 0, i, j]), where_from + str(got[b, 0, i, j]))

    return test


CHUNK_MASK = Spec(
    name="hw03.chunk_mask",
    statement="chunk_mask(pads, num_cached, num_new): boolean (B, 1, num_new, num_cached + "
    "num_new); the first pads[b] tokens of sample b are padding; a real token may attend to the "
    "real tokens up to its own position, a padding token to itself only; pads (B)",
    required=("pads", "num_cached", "num_new"),
    reference=_chunk_reference,
    cases=_chunk_cases,
    checks=(
        Check(
            "every query attends to itself",
            "Query i of the chunk is at the position of key num_cached + i and may attend to it: "
            "no row is fully masked.",
            _part(lambda place, key, pad: key + 0 * pad == place),
        ),
        Check(
            "the future is masked",
            "No query may attend to a key after its own position.",
            _part(lambda place, key, pad: key + 0 * pad > place),
        ),
        Check(
            "real tokens attend to those before them",
            "A real token may attend to every real token of its sample up to its own position, "
            "cached or new.",
            _part(lambda place, key, pad: (key >= pad) & (key < place)),
        ),
        Check(
            "real tokens do not attend to padding",
            "The first pads[b] keys of sample b are padding, in the cache as in the chunk.",
            _part(lambda place, key, pad: (key < pad) & (place >= pad)),
        ),
    ),
    mutants=mistakes(
        chunk_top_left, chunk_without_order, chunk_padded_on_the_right, chunk_with_empty_rows,
        chunk_padding_reads_padding, chunk_own_place_for_padding_only, chunk_without_heads
    ),
    chapter=4,
    points=2,
)  # fmt: skip

# --- A buffer that is not full --------------------------------------------------------------------


def _buffer_reference(query, key, value, mask):
    """Query by query, over the slots that it may see and no others."""
    shape = (*query.shape[:3], key.shape[2])
    mask = np.broadcast_to(mask, shape)
    root = np.sqrt(query.dtype.type(query.shape[3]))
    answer = np.zeros((*query.shape[:3], value.shape[3]), dtype=query.dtype)
    for b, h, i in np.ndindex(shape[:3]):
        slots = np.flatnonzero(mask[b, h, i])
        scores = [reference.dot(query[b, h, i], key[b, h, j]) / root for j in slots]
        for weight, j in zip(reference.softmax(np.array(scores)), slots, strict=True):
            answer[b, h, i] += weight * value[b, h, j]
    return answer


def _attend(query, key, value, mask, empty=None):
    """Attention as most pages have it; with `empty`, these rows are zero."""
    scores = (query @ key.mT / query.shape[-1] ** 0.5).masked_fill(~mask, -math.inf)
    if empty is None:
        return scores.softmax(-1) @ value
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0) @ value


def _no_key(mask: Tensor) -> Tensor:
    return ~mask.any(-1, keepdim=True)


def _unseen(mask: Tensor) -> Tensor:
    return ~mask.any(-2).unsqueeze(-1)


def _clean(query, key, value, mask):
    """Slots that nobody sees are emptied first."""
    key, value = (t.masked_fill(_unseen(mask), 0.0) for t in (key, value))
    return _attend(query, key, value, mask, _no_key(mask))


@mistake(
    "leftovers times zero",
    rejected_by="leftovers are not read",
    cause="The weight of a masked slot is 0, but 0 x NaN is NaN in the weighted sum of the values.",
)
def buffer_read(query, key, value, mask):
    """-inf for what is hidden, and nothing else."""
    return _attend(query, key, value, mask, _no_key(mask))


@mistake(
    "the output repaired",
    rejected_by="leftovers are not read",
    cause="NaN is replaced in the output, when it has already spread to everything.",
)
def buffer_answer_wiped(query, key, value, mask):
    """Replace the NaN of the answer."""
    return _attend(query, key, value, mask).nan_to_num(0.0, 0.0, 0.0)


@mistake(
    "leftovers in the backward pass",
    rejected_by="the gradients are finite",
    cause="The gradient with respect to the query is a product with the keys, that of the "
    "weights one with the values: a leftover in either, NaN or large, is still multiplied by 0.",
)
def buffer_values_only(query, key, value, mask):
    """Empty the values; hidden scores are replaced anyway."""
    return _attend(query, key, value.masked_fill(_unseen(mask), 0.0), mask, _no_key(mask))


@mistake(
    "the lowest number in a cache",
    rejected_by="a query with no slot gives zeros",
    cause="torch.finfo(dtype).min in place of -inf: equal scores give equal weights.",
)
def buffer_lowest_number(query, key, value, mask):
    """The dtype's lowest number for -inf."""
    key, value = (t.masked_fill(_unseen(mask), 0.0) for t in (key, value))
    scores = query @ key.mT / query.shape[-1] ** 0.5
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1) @ value


@mistake(
    "a fully masked row of NaN",
    rejected_by="a query with no slot gives zeros",
    cause="The softmax of nothing but -inf is 0/0.",
)
def buffer_empty_is_nan(query, key, value, mask):
    """Clean slots, and no care for fully masked rows."""
    key, value = (t.masked_fill(_unseen(mask), 0.0) for t in (key, value))
    return _attend(query, key, value, mask)


@mistake(
    "exponentials that do not fit",
    rejected_by="scores far from 0",
    cause="exp(s) overflows or underflows for scores like these.",
)
def buffer_exponentials(query, key, value, mask):
    """Exponentials of the scores as they are."""
    key, value = (t.masked_fill(_unseen(mask), 0.0) for t in (key, value))
    exponentials = (query @ key.mT / query.shape[-1] ** 0.5).exp() * mask
    total = exponentials.sum(-1, keepdim=True)
    return exponentials / total.masked_fill(_no_key(mask), 1.0) @ value


@mistake(
    "slots emptied for everybody",
    rejected_by="equals the reference",
    cause="A slot that is masked for one query is set to zero for the others, too.",
)
def buffer_emptied_for_all(query, key, value, mask):
    """Empty what is hidden from any query."""
    hidden = ~mask.all(-2).unsqueeze(-1)
    key, value = (t.masked_fill(hidden, 0.0) for t in (key, value))
    return _attend(query, key, value, mask, _no_key(mask))


@mistake(
    "the caller's buffer emptied",
    rejected_by="the inputs stay as they were",
    cause="masked_fill_ with an underscore changes its tensor in place.",
)
def buffer_emptied_in_place(query, key, value, mask):
    """Empty the caller's buffers."""
    for buffer in (key, value):
        buffer.detach().masked_fill_(_unseen(mask), 0.0)
    return _attend(query, key, value, mask, _no_key(mask))


def _buffer_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, mask, heads, widths, *, batch=None, length=None, left=(), dtype=torch.float64):
        mask = np.asarray(mask, dtype=bool)
        batch = len(mask) if batch is None else batch
        length, slots = length or mask.shape[2], mask.shape[3]
        query = rng.normal(size=(batch, heads, length, widths[0]))
        key, value = (rng.normal(size=(batch, heads, slots, width)) for width in widths)
        if left:
            unseen = ~np.broadcast_to(mask.any(2), (batch, heads, slots))
            for buffer in (key, value):
                buffer[unseen] = rng.choice(left, size=buffer[unseen].shape)
        return Case(label, {"query": query, "key": key, "value": value, "mask": mask}, dtype)

    def chunk(written, slots, length):
        """Causal for the last `length` of the written slots of each sample."""
        place = np.asarray(written)[:, None, None, None] - length + np.arange(length)[:, None]
        return np.arange(slots) <= place

    def far(label, shift, dtype) -> Case:
        """Small whole scores, which `shift` moves row by row, up and down; d = 4, so all are exact."""
        shifted = case(label, chunk([4, 3], 5, 1), 2, (4, 3), length=3, dtype=dtype)
        query, key = shifted.arguments["query"], shifted.arguments["key"]
        query[...], key[...] = (rng.integers(-1, 2, size=t.shape) for t in (query, key))
        query[..., 0], key[..., 0] = shift * (-1.0) ** np.arange(3), 2.0
        return shifted

    odd = [np.nan, np.inf, -np.inf, 1e30]
    written_by_head = np.arange(5) < np.array([[3, 5, 2], [1, 4, 5]])[..., None, None]
    return [
        case("two slots, one written", [[[[1, 0]]]], 1, (2, 2)),
        case("a causal mask for all samples", chunk([4], 4, 3), 2, (4, 3), batch=2),
        case("an unwritten slot holds NaN", chunk([3], 4, 2), 1, (3, 2), left=[np.nan]),
        case(
            "one row of the mask for all queries",
            chunk([2, 4], 5, 1),
            2,
            (4, 3),
            length=3,
            left=odd,
        ),
        case("queries with no slot", chunk([3, 1], 4, 3), 2, (4, 5), left=[0.0]),
        case("fully masked rows and leftovers", chunk([5, 2, 6], 8, 4), 3, (5, 4), left=odd),
        case("float16", chunk([3, 5], 6, 2), 2, (8, 3), left=[np.nan, 6e4], dtype=torch.float16),
        case(
            "float16, unwritten slots hold large numbers",
            chunk([3, 5], 7, 2),
            2,
            (6, 3),
            left=[rng.choice([6e4, -6e4])],
            dtype=torch.float16,
        ),
        case("a mask for each head", rng.random((2, 3, 5, 7)) < 0.5, 3, (6, 4)),
        case("slots that one head alone has left", written_by_head, 3, (3, 4), left=odd),
        far(FAR, 20000.0, torch.float64),
        far(FAR, 40.0, torch.float16),
    ]


FAR = "scores far from 0"


def _far(run: Run, case: Case) -> Problem | None:
    """The same scores, each row moved back to around 0: the same answer."""
    near = case.arguments["query"].copy()
    near[..., 0] = 0.0
    return same_with(run, case, "each row of scores is moved by one number", query=near)


def _buffer_slack(case: Case) -> float:
    """A weight may be made as the exponential of a difference of two large numbers."""
    a = case.arguments
    seen = np.broadcast_to(a["mask"].any(2), a["key"].shape[:3])
    key, value = (np.abs(a[name][seen]).max(initial=0.0) for name in ("key", "value"))
    largest = np.abs(a["query"]).max() * key * a["key"].shape[-1] ** 0.5
    return of_exponents(case, largest) * float(value)


def _has_odd(case: Case) -> bool:
    return not np.isfinite(case.arguments["key"]).all()


def _leftovers(run: Run, case: Case) -> Problem | None:
    """Zeros in the unwritten slots: the same answer."""
    arguments = case.arguments
    unseen = ~np.broadcast_to(arguments["mask"].any(2), arguments["key"].shape[:3])
    empty = {name: arguments[name].copy() for name in ("key", "value")}
    for buffer in empty.values():
        buffer[unseen] = 0.0
    some = ~_no_slot(case)  # the others have a check of their own
    before, after = run.value(case)[some], run.value(case, **empty)[some]
    tolerance = 2 * run.expected(case)[1]
    return unchanged(before, after, tolerance, "zeros stand in the unwritten slots")


def _gradients(run: Run, case: Case) -> Problem | None:
    for name, gradient in run.gradients(case, ["query", "key", "value"]).items():
        if not np.isfinite(gradient).all():
            return Problem(f"a finite gradient of {name}", "inf or NaN in it")
    return None


def _no_slot(case: Case) -> np.ndarray:
    shape = (*case.arguments["query"].shape[:3], case.arguments["key"].shape[2])
    return ~np.broadcast_to(case.arguments["mask"], shape).any(-1)


def _zeros(run: Run, case: Case) -> Problem | None:
    got = run.value(case)[_no_slot(case)]
    return compare(np.zeros_like(got), got, 0.0, "the rows of queries with no slot")


BUFFER_ATTENTION = Spec(
    name="hw03.buffer_attention",
    statement="buffer_attention(query, key, value, mask): attention (B, H, L, d), (B, H, C, d), "
    "(B, H, C, dv) -> (B, H, L, dv) over the slots where the mask, four axes that broadcast with "
    "(B, H, L, C), is True; slots to which no query may attend hold anything, large numbers "
    "included; a query with no slot gives zeros; scores may be large",
    required=("query", "key", "value", "mask"),
    reference=_buffer_reference,
    slack=_buffer_slack,
    baseline=_clean,
    cases=_buffer_cases,
    checks=(
        Check(
            "leftovers are not read",
            "A slot to which no query may attend must not change the output, whatever it holds.",
            _leftovers,
            when=_has_odd,
        ),
        Check(
            "scores far from 0",
            "Here one number is added to all scores of a row. No weight may change, however "
            "large the scores are: does every intermediate number fit?",
            _far,
            when=lambda case: case.label == FAR,
        ),
        Check(
            "a query with no slot gives zeros",
            "If a row of the mask has no True, the output is zero, not NaN and not a mean.",
            _zeros,
            when=lambda case: bool(_no_slot(case).any()),
        ),
        Check(
            "the gradients are finite",
            "The output is right but a gradient is not: some leftover is still multiplied in the "
            "backward pass.",
            _gradients,
        ),
    ),
    mutants=mistakes(
        buffer_read, buffer_answer_wiped, buffer_values_only, buffer_lowest_number,
        buffer_empty_is_nan, buffer_exponentials, buffer_emptied_for_all, buffer_emptied_in_place
    ),
    chapter=4,
    points=3,
)  # fmt: skip

# --- The hunt -------------------------------------------------------------------------------------


def right_formula(query, key, value, mask):
    """-inf before the softmax, and fully masked rows cleared."""
    return _attend(query, key, value, mask, _no_key(mask))


def right_loop(query, key, value, mask):
    """Query by query, over its own keys only."""
    mask = mask.expand(*query.shape[:3], key.shape[2])
    answer = query.new_zeros(*query.shape[:3], value.shape[3])
    for b, h, i in np.ndindex(tuple(query.shape[:3])):
        seen = mask[b, h, i]
        scores = key[b, h, seen] @ query[b, h, i] / query.shape[-1] ** 0.5
        answer[b, h, i] = scores.softmax(0) @ value[b, h, seen]
    return answer


def right_exponentials(query, key, value, mask):
    """Exponentials of what is allowed, added up, and divided at the very end."""
    scores = torch.einsum("bhld,bhsd->bhls", query / query.shape[-1] ** 0.5, key)
    scores = scores.masked_fill(~mask, -math.inf)
    top = scores.amax(-1, keepdim=True).masked_fill(_no_key(mask), 0.0)
    exponentials = (scores - top).exp()
    total = exponentials.sum(-1, keepdim=True).masked_fill(_no_key(mask), 1.0)
    return torch.einsum("bhls,bhse->bhle", exponentials, value) / total


def right_library(query, key, value, mask):
    """The library's function, with fully masked rows cleared."""
    mask = mask.expand(*query.shape[:3], key.shape[2])
    empty = _no_key(mask)
    answer = scaled_dot_product_attention(query, key, value, attn_mask=mask | empty)
    return answer.masked_fill(empty, 0.0)


def right_backwards(query, key, value, mask):
    """From the last key to the first: another order of summation."""
    mask = mask.expand(*query.shape[:3], key.shape[2])
    return right_formula(query, key.flip(2), value.flip(2), mask.flip(3))


def _with(query, key, value, mask, weights):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    return weights(scores, mask.expand(scores.shape)) @ value


@mistake(
    "weights zeroed after the softmax",
    rejected_by="the hunt",
    symptom="The weights of the allowed keys sum to less than 1.",
    cause="The weights are multiplied by the mask.",
)
def masks_after_softmax(query, key, value, mask):
    """Hidden weights set to 0."""
    return _with(query, key, value, mask, lambda s, m: s.softmax(-1) * m)


@mistake(
    "-10,000 for minus infinity",
    rejected_by="the hunt",
    symptom="Right as long as all scores are of ordinary magnitude.",
    cause="10,000 is subtracted from a masked score; a larger score is still attended to.",
)
def adds_minus_10000(query, key, value, mask):
    """-10,000 added to what is hidden."""
    answer = _with(query, key, value, mask, lambda s, m: (s - 1e4 * ~m).softmax(-1))
    return answer.masked_fill(_no_key(mask), 0.0)


@mistake(
    "0/0 in a fully masked row",
    rejected_by="the hunt",
    symptom="A query that may attend to nothing gives NaN.",
    cause="The softmax of nothing but -inf.",
)
def empties_to_nan(query, key, value, mask):
    """No care for fully masked rows."""
    return _attend(query, key, value, mask)


@mistake(
    "sample 0 decides for all",
    rejected_by="the hunt",
    symptom="Right for one sample; in a batch others get its padding.",
    cause="mask[:1], broadcast over the batch.",
)
def first_sample_for_all(query, key, value, mask):
    """The mask of sample 0 for every sample."""
    return right_formula(query, key, value, mask.expand(*query.shape[:3], key.shape[2])[:1])


@mistake(
    "head 0 decides for all",
    rejected_by="the hunt",
    symptom="Right while all heads have one mask.",
    cause="mask[:, :1], broadcast over the heads.",
)
def first_head_for_all(query, key, value, mask):
    """The mask of head 0 for every head."""
    return right_formula(query, key, value, mask.expand(*query.shape[:3], key.shape[2])[:, :1])


@mistake(
    "the mask squeezed",
    rejected_by="the hunt",
    symptom="Right for a mask of full size, but not for one row that all queries of a sample "
    "share.",
    cause="squeeze() removes all axes of size 1, and the remaining axes move to the right.",
)
def mask_squeezed(query, key, value, mask):
    """The mask without its axes of size 1."""
    return right_formula(query, key, value, mask.squeeze())


@mistake(
    "the mask repeated",
    rejected_by="the hunt",
    symptom="Right with one head, with one sample, and where all heads have one mask.",
    cause="Head masks for all samples are repeated 0 0 1 1, but 0 1 0 1 is meant.",
)
def mask_repeated(query, key, value, mask):
    """Samples and heads joined to one axis, the mask's rows repeated to fit."""
    flat = mask.flatten(0, 1)
    times = query.shape[0] * query.shape[1] // len(flat)
    flat = flat.repeat_interleave(times, dim=0)
    return right_formula(query, key, value, flat.unflatten(0, query.shape[:2]))


@mistake(
    "a softmax over masked keys too",
    rejected_by="the hunt",
    symptom="Zeros where a masked key has by far the largest score.",
    cause="The softmax includes the masked keys; almost nothing is left for the others.",
)
def drowned_by_the_hidden(query, key, value, mask):
    """Softmax of everything, hidden weights cleared, divided by what is left."""

    def weights(scores, allowed):
        kept = scores.softmax(-1) * allowed
        total = kept.sum(-1, keepdim=True)
        return kept / total.masked_fill(total == 0, 1.0)

    return _with(query, key, value, mask, weights)


@mistake(
    "the scale of the values",
    rejected_by="the hunt",
    symptom="Right while values and keys have the same dimension.",
    cause="The square root of the values' dimension, but the dot product sums over that of "
    "queries and keys.",
)
def scaled_by_the_values(query, key, value, mask):
    """1/sqrt(dv)."""
    root = (query.shape[-1] / value.shape[-1]) ** 0.5
    return right_formula(query * root, key, value, mask)


@mistake(
    "masked slots zeroed in place",
    rejected_by="the hunt",
    symptom="Every output is right, but the caller's keys and values have changed.",
    cause="masked_fill_ with an underscore works in place.",
)
def empties_the_hidden(query, key, value, mask):
    """What nobody sees is set to 0 afterwards."""
    answer = right_formula(query, key, value, mask)
    unseen = _unseen(mask.expand(*query.shape[:3], key.shape[2]))
    for tensor in (key, value):
        tensor.masked_fill_(unseen, 0.0)
    return answer


HUNT = Hunt(
    name="hw03.hunt",
    function="test_masked_attention",
    statement="test_masked_attention(implementation): raise unless implementation(query, key, value, "
    "mask) is masked attention: (B, H, L, d), (B, H, S, d), (B, H, S, dv) -> (B, H, L, dv); the mask "
    "(B, H, L, S), each axis of full size or 1, True = may attend; a fully masked row gives zeros, inputs stay "
    "as they were",
    right={
        "the formula": right_formula,
        "a loop over the queries": right_loop,
        "exponentials, divided last": right_exponentials,
        "the library": right_library,
        "from the last key to the first": right_backwards,
    },
    mutants=mistakes(
        masks_after_softmax, adds_minus_10000, empties_to_nan, first_sample_for_all,
        first_head_for_all, mask_squeezed, mask_repeated, drowned_by_the_hidden,
        scaled_by_the_values, empties_the_hidden
    ),
    points=4,
    minutes=60,
    difficulty="core",
    chapter=4,
)  # fmt: skip

# --- The assignment -------------------------------------------------------------------------------

WHOLE_ATTENTION = (
    "F.scaled_dot_product_attention",
    "F.multi_head_attention_forward",
    "nn.MultiheadAttention",
    "torch.nn.attention.flex_attention.flex_attention",
)

ASSIGNMENT = Assignment(
    name="hw03",
    title="Which keys may a query attend to?",
    weeks="3",
    chapters=(4,),
    parts=(
        Task(COUNT_PAIRS, "count_pairs", minutes=20, difficulty="warm-up"),
        Task(MEAN_OF_WORDS, "mean_of_words", minutes=20, difficulty="core"),
        Task(CHUNK_MASK, "chunk_mask", minutes=25, difficulty="core"),
        Task(
            BUFFER_ATTENTION,
            "buffer_attention",
            minutes=40,
            difficulty="challenge",
            forbidden=WHOLE_ATTENTION,
        ),
        HUNT,
        Written(
            "hw03-only-causal",
            "explanation",
            points=2,
            minutes=20,
            rubric="1 point: with padding on the right, every padding key comes after every real "
            "query, so the causal mask already masks it. 1 point: two changes after which the "
            "attention needs a padding mask, each with its reason (half a point each): padding "
            "on the left; no causal mask (an encoder); cross-attention to a padded source; a "
            "cache that was filled with padding, followed by more tokens. A loss or a mean that "
            "counts padding does not qualify: a mask in the attention does not repair it.",
        ),
        Written(
            "hw03-extra-key",
            "explanation",
            points=2,
            minutes=20,
            rubric="1 point: the additional key adds e^0 = 1 to the denominator and 0 to the "
            "weighted sum, so the other weights sum to less than 1 and a fully masked row is 0/1 "
            "= 0 without a special case (half a point for the formula, half for the fully masked "
            "row). 1 point: a constant added to all scores of a row cancels in the softmax, but "
            "no longer does here, because the additional score stays 0; the example with two "
            "equal scores (0: 1/3 each; ln 10: 10/21 each), or another one that is right.",
        ),
        Written(
            "hw03-reach",
            "experiment",
            points=3,
            minutes=60,
            rubric="1 point: a measured table or plot with several numbers of layers and several "
            "windows, and the seed. 1 point: the reach is n (w - 1) and exactly 0 beyond, with "
            "the reason (each layer adds w - 1 positions at most), and the number of layers for "
            "1,000 tokens with w = 64 (999 / 63, rounded up: 16). 1 point: how the effect "
            "decreases with the distance, in measured numbers (many powers of ten between a near "
            "position and the limit), and one sentence on what that means: what can have an "
            "effect need not have a noticeable one.",
        ),
    ),
)
