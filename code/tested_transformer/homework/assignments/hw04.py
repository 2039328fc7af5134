"""Homework 4: multi-head attention."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ... import reference
from ...specs.compare import Problem, compare, unchanged
from ...specs.mistakes import Mutant, mistake, mistakes
from ...specs.multi_head.mutants import (
    CutStraight,
    EveryHthNumber,
    HeadMajorMask,
    HeadsFormula,
    JoinedStraight,
    SoftmaxOverHeads,
    WholeWidth,
)
from ...specs.spec import Case, Check, Run, Spec
from ..checks import of_exponents, right_with, same_with
from ..tasks import Assignment, Hunt, Task, Written

# --- Packed projections ---------------------------------------------------------------------------


def _repack_reference(packed, num_heads):
    """Row by row: where number i of head h's query, key or value stood, and where it belongs."""
    answer = np.zeros_like(packed)
    d = len(packed) // (3 * num_heads)
    for h, part, i in np.ndindex(num_heads, 3, d):
        answer[part * num_heads * d + h * d + i] = packed[h * 3 * d + part * d + i]
    return answer


@mistake(
    "packed once more",
    rejected_by="the queries stand together",
    cause="This is the inverse: it takes three blocks and distributes them over the heads.",
)
def repacked_back(packed, num_heads):
    """From three blocks to heads: the way back."""
    return packed.unflatten(0, (3, num_heads, -1)).transpose(0, 1).flatten(0, 2)


@mistake(
    "split and not transposed",
    rejected_by="the queries stand together",
    cause="The axes (H, 3, d) are split and merged without being transposed.",
)
def repacked_not_at_all(packed, num_heads):
    """Cut and joined, and not turned."""
    return packed.unflatten(0, (num_heads, 3, -1)).flatten(0, 2)


@mistake(
    "every third row",
    rejected_by="the queries stand together",
    cause="Queries, keys and values are taken row by row; they alternate in runs of d rows.",
)
def repacked_by_threes(packed, num_heads):
    """Every third row."""
    return packed.unflatten(0, (-1, 3)).transpose(0, 1).flatten(0, 1)


@mistake(
    "heads inside features",
    rejected_by="the queries stand together",
    cause="Each block has feature 0 of all heads first, then feature 1 of all heads.",
)
def repacked_within_heads(packed, num_heads):
    """The order of the parts in each head is right; that of the heads is lost."""
    parts = packed.unflatten(0, (num_heads, 3, -1))
    return parts.transpose(0, 1).transpose(1, 2).flatten(0, 2)


@mistake(
    "a matrix and no bias",
    rejected_by="IndexError",
    cause="The second axis is used, but a bias has none.",
)
def repacked_matrices_only(packed, num_heads):
    """A matrix is expected; a bias has one axis."""
    width = packed.shape[1]
    return packed.reshape(num_heads, 3, -1, width).transpose(0, 1).reshape(-1, width)


def _repack_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, num_heads, d, *rest) -> Case:
        packed = rng.normal(size=(3 * num_heads * d, *rest))
        return Case(label, {"packed": packed, "num_heads": num_heads})

    return [
        case("two heads of width 1", 2, 1, 2),
        case("one head", 1, 2, 4),
        case("three heads", 3, 2, 5),
        case("two heads of width 3", 2, 3, 6),
        case("five heads", 5, 2, 7),
        case("a bias", 4, 3),
        case("two axes behind the rows", 2, 3, 4, 2),
    ]


def _third(part: int, what: str) -> Check:
    def test(run: Run, case: Case) -> Problem | None:
        expected, got = run.expected(case)[0], run.value(case)
        size = len(expected) // 3
        own = slice(part * size, (part + 1) * size)
        return compare(expected[own], got[own], 0.0, f"the rows of the {what}")

    return Check(
        f"the {what} stand together",
        f"The rows of all {what} are one block, head by head, number by number.",
        test,
    )


REPACK = Spec(
    name="hw04.repack",
    statement="repack(packed, num_heads): rows ordered by head, then query/key/value, then number, (3 H d, "
    "*rest), to rows ordered by query/key/value, then head, then number, of the same shape",
    required=("packed", "num_heads"),
    reference=_repack_reference,
    cases=_repack_cases,
    checks=(_third(0, "queries"), _third(1, "keys"), _third(2, "values")),
    mutants=mistakes(
        repacked_back, repacked_not_at_all, repacked_by_threes, repacked_within_heads,
        repacked_matrices_only
    ),
    chapter=5,
    points=2,
)  # fmt: skip

# --- Shared keys ----------------------------------------------------------------------------------


def _grouped_reference(weight, num_heads, num_groups):
    """Column by column: the mean over the heads of a group."""
    d, size = weight.shape[1] // num_heads, num_heads // num_groups
    answer = np.zeros((len(weight), num_groups * d), dtype=weight.dtype)
    for row, group, i in np.ndindex(len(weight), num_groups, d):
        members = [weight[row, (group * size + m) * d + i] for m in range(size)]
        answer[row, group * d + i] = sum(members) / size
    return answer


def _grouped(weight, num_heads, num_groups):
    return weight.unflatten(1, (num_groups, num_heads // num_groups, -1)).mean(2).flatten(1)


@mistake(
    "groups of every G-th head",
    rejected_by="heads that are alike stay as they are",
    cause="Heads at a distance of G are put into one group.",
)
def grouped_with_strides(weight, num_heads, num_groups):
    """Heads g, g + G, g + 2 G ... for group g."""
    return weight.unflatten(1, (num_heads // num_groups, num_groups, -1)).mean(1).flatten(1)


@mistake(
    "the sum of a group",
    rejected_by="heads that are alike stay as they are",
    cause="The heads of a group are summed and not divided.",
)
def grouped_by_sums(weight, num_heads, num_groups):
    """Added up."""
    return weight.unflatten(1, (num_groups, num_heads // num_groups, -1)).sum(2).flatten(1)


@mistake(
    "the first of a group for all",
    rejected_by="every head counts",
    cause="One head of each group is taken, but the mean is needed.",
)
def grouped_by_the_first(weight, num_heads, num_groups):
    """The first head of each group for all."""
    return weight.unflatten(1, (num_groups, num_heads // num_groups, -1))[:, :, 0].flatten(1)


@mistake(
    "neighboring features for neighboring heads",
    rejected_by="heads that are alike stay as they are",
    cause="The mean is taken over columns of one head.",
)
def grouped_neighboring_numbers(weight, num_heads, num_groups):
    """The mean of neighboring columns."""
    return weight.unflatten(1, (-1, num_heads // num_groups)).mean(2)


@mistake(
    "rows of the projection grouped",
    rejected_by="the right shape and dtype",
    cause="The rows are split into heads, but this matrix multiplies from the right.",
)
def grouped_rows(weight, num_heads, num_groups):
    """Rows for columns."""
    return weight.unflatten(0, (num_groups, num_heads // num_groups, -1)).mean(1).flatten(0, 1)


def _grouped_cases(rng: np.random.Generator) -> list[Case]:

    def case(rows, num_heads, num_groups, d) -> Case:
        sizes = {"num_heads": num_heads, "num_groups": num_groups}
        weight = rng.normal(size=(rows, num_heads * d))
        return Case(f"H {num_heads}, G {num_groups}, d {d}", {"weight": weight, **sizes})

    return [
        case(2, 2, 1, 2),
        case(4, 4, 2, 1),
        case(6, 3, 3, 2),
        case(12, 6, 2, 4),
        case(12, 6, 3, 5),
    ]


def _alike(run: Run, case: Case) -> Problem | None:
    """Heads that are alike within each group: nothing is lost."""
    _, num_heads, num_groups = case.arguments.values()
    d = case.arguments["weight"].shape[1] // num_heads
    heads = case.arguments["weight"][:, : num_groups * d].reshape(-1, num_groups, d)
    weight = heads.repeat(num_heads // num_groups, axis=1).reshape(len(heads), -1)
    return right_with(run, case, "with heads alike within each group, the answer", weight=weight)


def _mean_stays(run: Run, case: Case) -> Problem | None:
    """The mean over everything stays."""
    expected = np.asarray(case.arguments["weight"].mean())
    got, tolerance = np.asarray(run.value(case).mean()), run.expected(case)[1]
    return compare(expected, got, tolerance, "the mean of all numbers")


GROUP_HEADS = Spec(
    name="hw04.group_heads",
    statement="group_heads(weight, num_heads, num_groups): from a key or value projection (D, H d) one of "
    "G heads, (D, G d): each the mean of H / G neighboring heads",
    required=("weight", "num_heads", "num_groups"),
    reference=_grouped_reference,
    baseline=_grouped,
    differentiable=False,
    cases=_grouped_cases,
    checks=(
        Check(
            "heads that are alike stay as they are",
            "If all heads of a group are the same, the new head is that head.",
            _alike,
        ),
        Check(
            "every head counts",
            "A mean over groups of equal size keeps the mean of all entries: some head is "
            "missing.",
            _mean_stays,
        ),
    ),
    mutants=mistakes(
        grouped_with_strides, grouped_by_sums, grouped_by_the_first, grouped_neighboring_numbers,
        grouped_rows
    ),
    chapter=5,
    points=2,
)  # fmt: skip

# --- One bias -------------------------------------------------------------------------------------


def _one_bias_reference(b_value, w_output, b_output, num_heads):
    """Number by number: each head adds its group's bias times its rows."""
    d = len(w_output) // num_heads
    size = num_heads // (len(b_value) // d)
    answer = np.array(b_output)
    for h, i, column in np.ndindex(num_heads, d, len(b_output)):
        answer[column] += b_value[(h // size) * d + i] * w_output[h * d + i, column]
    return answer


def _spread(b_value, w_output, num_heads):
    """The bias of each query head, side by side."""
    d = len(w_output) // num_heads
    groups = b_value.unflatten(0, (-1, d))
    return groups.repeat_interleave(num_heads // len(groups), dim=0).flatten()


def _one_bias(b_value, w_output, b_output, num_heads):
    return _spread(b_value, w_output, num_heads) @ w_output + b_output


@mistake(
    "the groups' biases repeated in turn",
    rejected_by="the layer stays the same",
    cause="The biases are repeated group after group; which query heads use a group?",
)
def one_bias_repeated(b_value, w_output, b_output, num_heads):
    """Groups 0 1 0 1 for 0 0 1 1."""
    return b_value.repeat(len(w_output) // len(b_value)) @ w_output + b_output


@mistake(
    "the old output bias lost",
    rejected_by="without a value bias nothing changes",
    cause="The new bias replaces the old one; both are needed.",
)
def one_bias_alone(b_value, w_output, b_output, num_heads):
    """The old bias of the output is lost."""
    return _spread(b_value, w_output, num_heads) @ w_output


@mistake(
    "two biases added up",
    rejected_by="the layer stays the same",
    cause="The value bias passes through the output matrix.",
)
def one_bias_added(b_value, w_output, b_output, num_heads):
    """Added up, as if the output layer were not between them."""
    spread = _spread(b_value, w_output, num_heads)
    return spread + b_output if len(spread) == len(b_output) else b_output


@mistake(
    "the output matrix transposed",
    rejected_by="RuntimeError",
    cause="nn.Linear stores its matrix transposed; here w_output multiplies from the right.",
)
def one_bias_transposed(b_value, w_output, b_output, num_heads):
    """Columns for rows."""
    return _spread(b_value, w_output, num_heads) @ w_output.T + b_output


@mistake(
    "each group counted once",
    rejected_by="the layer stays the same",
    cause="Only the rows of the first G heads are used.",
)
def one_bias_of_the_first(b_value, w_output, b_output, num_heads):
    """Each group counted once."""
    return b_value @ w_output[: len(b_value)] + b_output


@mistake(
    "a bias shared out among the heads",
    rejected_by="the layer stays the same",
    cause="Heads are concatenated, not averaged: each adds its whole bias.",
)
def one_bias_shared_out(b_value, w_output, b_output, num_heads):
    """Divided by the number of heads."""
    return _spread(b_value, w_output, num_heads) @ w_output / num_heads + b_output


def _one_bias_cases(rng: np.random.Generator) -> list[Case]:

    def case(width, num_heads, num_groups, d) -> Case:
        draw = {
            "b_value": (num_groups * d,),
            "w_output": (num_heads * d, width),
            "b_output": (width,),
        }
        drawn = {name: rng.normal(size=shape) for name, shape in draw.items()}
        label = f"D {width}, H {num_heads}, G {num_groups}, d {d}"
        return Case(label, {**drawn, "num_heads": num_heads})

    return [
        case(1, 1, 1, 1),
        case(2, 2, 2, 1),
        case(4, 2, 1, 2),
        case(12, 6, 2, 2),
        case(7, 4, 2, 3),
    ]


def _without_a_value_bias(run: Run, case: Case) -> Problem | None:
    zeros = np.zeros_like(case.arguments["b_value"])
    return right_with(run, case, "with b_value zero, the answer", b_value=zeros)


def _layer_stays(run: Run, case: Case) -> Problem | None:
    """Random weights whose rows sum to 1: the layer with both biases, and with one."""
    b_value, w_output, b_output, num_heads = case.arguments.values()
    d = len(w_output) // num_heads
    size = num_heads // (len(b_value) // d)
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(3), size=(num_heads, 4))  # H L S
    values = rng.normal(size=(num_heads // size, 3, d)).repeat(size, axis=0)
    biases = b_value.reshape(-1, 1, d).repeat(size, axis=0)

    def output(value, bias):
        return (weights @ value).transpose(1, 0, 2).reshape(4, -1) @ w_output + bias

    largest = np.abs(w_output).sum(0).max() * (1 + np.abs(b_value).max()) + np.abs(b_output).max()
    got = output(values, run.value(case))
    slack = run.expected(case)[1] + case.rounding(len(w_output) + 3) * largest
    return compare(output(values + biases, b_output), got, slack, "the layer's output")


ONE_BIAS = Spec(
    name="hw04.one_bias",
    statement="one_bias(b_value, w_output, b_output, num_heads): the output bias (D) with which a layer "
    "without a value bias is the same layer; b_value (G d), w_output (H d, D), b_output (D); query head h "
    "reads key/value head h // (H / G)",
    required=("b_value", "w_output", "b_output", "num_heads"),
    reference=_one_bias_reference,
    baseline=_one_bias,
    differentiable=False,
    cases=_one_bias_cases,
    checks=(
        Check(
            "without a value bias nothing changes",
            "If the value bias is zero, the result is the old output bias.",
            _without_a_value_bias,
        ),
        Check(
            "the layer stays the same",
            "With your bias and no value bias, some output differs from that of the old layer.",
            _layer_stays,
        ),
    ),
    mutants=mistakes(
        one_bias_repeated, one_bias_alone, one_bias_added, one_bias_transposed,
        one_bias_of_the_first, one_bias_shared_out
    ),
    chapter=5,
    points=2,
)  # fmt: skip

# --- One token for each sample --------------------------------------------------------------------

DECODE = ("x", "keys", "values", "lengths", "w_query", "w_key", "w_value", "w_output", "num_heads")


def _decode_reference(x, keys, values, lengths, w_query, w_key, w_value, w_output, num_heads):
    """Sample by sample and head by head: what is cached, and the new token behind it."""
    groups, d = keys.shape[1], keys.shape[3]
    query, new_key, new_value = (reference.matmul(x, w) for w in (w_query, w_key, w_value))
    heads = np.zeros((len(x), num_heads * d), dtype=x.dtype)
    for b, h in np.ndindex(len(x), num_heads):
        g, own = h // (num_heads // groups), slice(h * d, (h + 1) * d)
        shared, n = slice(g * d, (g + 1) * d), lengths[b]
        key = np.concatenate([keys[b, g, :n], new_key[b : b + 1, shared]])
        value = np.concatenate([values[b, g, :n], new_value[b : b + 1, shared]])
        heads[b, own] = reference.attention(query[b : b + 1, own], key, value)[0]
    return reference.matmul(heads, w_output)


def _neighbors(keys: Tensor, times: int) -> Tensor:
    """Neighboring query heads share a KV head: B G S d -> B H S d."""
    return keys.repeat_interleave(times, dim=1)


def _cached_and_own(slot: Tensor, length: Tensor, own: int) -> Tensor:
    """Which slots are seen: what is cached, and the new token's own, which stands last."""
    return (slot < length) | (slot == own)


def _step(
    x, keys, values, lengths, w_query, w_key, w_value, w_output, num_heads, *,
    share=_neighbors, scale=lambda d, num_heads, width: d**-0.5, seen=_cached_and_own,
    softmax=lambda scores: scores.softmax(-1),
):  # fmt: skip
    """The right step, cut into the parts that the mutants replace one at a time."""
    batch, groups, slots, d = keys.shape
    query = (x @ w_query).view(batch, num_heads, 1, d)
    new = ((x @ w).view(batch, groups, 1, d) for w in (w_key, w_value))
    joined = (torch.cat(pair, dim=2) for pair in zip((keys, values), new, strict=True))
    keys, values = (share(each, num_heads // groups) for each in joined)
    allowed = seen(torch.arange(slots + 1), lengths[:, None], slots)[:, None, None]
    scores = (query @ keys.mT * scale(d, num_heads, x.shape[1])).masked_fill(~allowed, -math.inf)
    return (softmax(scores) @ values).flatten(1) @ w_output


def _plain_softmax(scores: Tensor) -> Tensor:
    """Exponentials of the scores as they are."""
    return scores.exp() / scores.exp().sum(-1, keepdim=True)


@mistake(
    "the step writes into the buffer",
    rejected_by="the inputs stay as they were",
    cause="The new key and value are written into the caller's cache.",
)
def step_written_in_place(x, keys, values, lengths, *matrices_and_heads):
    """Store the new key and value where they belong, if there is room."""
    answer = _step(x, keys, values, lengths, *matrices_and_heads)
    for buffer, w in ((keys, matrices_and_heads[1]), (values, matrices_and_heads[2])):
        for b, length in enumerate(lengths.tolist()):
            buffer[b, :, length : length + 1] = (x[b] @ w).view(keys.shape[1], 1, -1)
    return answer


every_gth_head = partial(_step, share=lambda keys, times: keys.repeat(1, times, 1, 1))
scale_of_all_heads = partial(_step, scale=lambda d, num_heads, width: (d * num_heads) ** -0.5)
scale_of_the_width = partial(_step, scale=lambda d, num_heads, width: (width / num_heads) ** -0.5)
without_maximum = partial(_step, softmax=_plain_softmax)
not_itself = partial(_step, seen=lambda slot, length, own: slot < length)
one_slot_more = partial(_step, seen=lambda slot, length, own: (slot <= length) | (slot == own))
longest_for_all = partial(
    _step, seen=lambda slot, length, own: _cached_and_own(slot, length.max().expand_as(length), own)
)


def _decode_cases(rng: np.random.Generator) -> list[Case]:

    def case(
        label, lengths, slots, num_heads, groups, d, width, leftovers=1.0, dtype=torch.float64
    ) -> Case:
        batch = len(lengths)
        shapes = {
            "x": (batch, width),
            "keys": (batch, groups, slots, d),
            "values": (batch, groups, slots, d),
            "w_query": (width, num_heads * d),
            "w_key": (width, groups * d),
            "w_value": (width, groups * d),
            "w_output": (num_heads * d, width),
        }
        drawn = {name: rng.normal(size=shape) for name, shape in shapes.items()}
        for b, length in enumerate(lengths):
            for name in ("keys", "values"):
                drawn[name][b, :, length:] *= leftovers
        every = {**drawn, "lengths": np.asarray(lengths), "num_heads": num_heads}
        return Case(label, {name: every[name] for name in DECODE}, dtype)

    def far(label, shift) -> Case:
        """Small whole scores, which w_query's first row moves by `shift` up or down, head by head.

        D / H = d = 4, so that every scale in use is exact, a wrong one too.
        """
        lengths, num_heads, groups, d = (2, 4), 4, 2, 4
        shifted = case(label, lengths, 5, num_heads, groups, d, num_heads * d)
        for name in ("x", "keys", "w_query", "w_key"):
            given = shifted.arguments[name]
            given[...] = rng.integers(-1, 2, size=given.shape)
        shifted.arguments["x"][:, 0] = 1.0
        shifted.arguments["keys"][..., 0] = 2.0
        w_query, w_key = shifted.arguments["w_query"], shifted.arguments["w_key"]
        w_query[0], w_key[:, ::d] = 0.0, 0.0
        w_query[0, ::d], w_key[0, ::d] = shift * (-1.0) ** np.arange(num_heads), 2.0
        return shifted

    return [
        case("the first token of all", [0], 2, 1, 1, 2, 2),
        case("one sample, two heads", [2], 3, 2, 2, 2, 4),
        case("two heads share a KV head", [1], 1, 2, 1, 3, 6),
        case("samples of three lengths", [3, 0, 1], 4, 2, 2, 3, 5, 30.0),
        case("a full buffer", [5, 2], 5, 6, 2, 2, 12, 30.0),
        case("six heads, three groups", rng.integers(1, 7, size=4), 7, 6, 3, 4, 10, 30.0),
        case("float32", [2, 4], 5, 4, 2, 3, 7, dtype=torch.float32),
        far(FAR, 20000.0),
    ]


FAR = "scores far from 0"


def _far(run: Run, case: Case) -> Problem | None:
    """The same scores, each head's moved back to around 0: the same answer."""
    near = case.arguments["w_query"].copy()
    near[0] = 0.0
    return same_with(run, case, "each head's scores are moved by one number", w_query=near)


def _leftovers(run: Run, case: Case) -> Problem | None:
    """Other numbers in the free slots: the same answer."""
    changed = {name: case.arguments[name].copy() for name in ("keys", "values")}
    for b, length in enumerate(case.arguments["lengths"]):
        for buffer in changed.values():
            buffer[b, :, length:] = -1.5
    some = case.arguments["lengths"] > 0  # the others show whether a token sees itself
    before, after = run.value(case)[some], run.value(case, **changed)[some]
    tolerance = 2 * run.expected(case)[1]
    return unchanged(before, after, tolerance, "other numbers stand in the free slots")


def _step_slack(case: Case) -> float:
    """A weight may be made as the exponential of a difference of two large numbers."""
    a = {name: np.abs(each) for name, each in case.arguments.items()}
    query, key, value = (a["x"] @ a[name] for name in ("w_query", "w_key", "w_value"))
    key, value = (
        max(each.max(), a[name].max()) for each, name in ((key, "keys"), (value, "values"))
    )
    largest = query.max() * key * a["keys"].shape[-1] ** 0.5
    return of_exponents(case, largest) * float(value * a["w_output"].sum(0).max())


def _plain_mean(*empty: str):
    """With all keys 0 all scores are 0; the tensors named in `empty` are 0, too."""

    def test(run: Run, case: Case) -> Problem | None:
        names = ("keys", "w_key", *empty)
        zeros = {name: np.zeros_like(case.arguments[name]) for name in names}
        return right_with(run, case, f"with {', '.join(names)} set to 0, the answer", **zeros)

    return test


def _shares(case: Case) -> bool:
    """More than one group, and fewer than there are heads."""
    return 1 < case.arguments["keys"].shape[1] < case.arguments["num_heads"]


NEXT_TOKEN = Spec(
    name="hw04.next_token",
    statement="next_token(x, keys, values, lengths, w_query, w_key, w_value, w_output, num_heads): the "
    "attention layer's output (B, D) for one new token of each sample; x (B, D), keys and values "
    "(B, G, C, d), of which sample b has lengths[b] in use, w_query (D, H d), w_key and w_value (D, G d), "
    "w_output (H d, D); scores times 1/sqrt(d), and they may be large",
    required=DECODE,
    reference=_decode_reference,
    slack=_step_slack,
    baseline=_step,
    differentiable=False,
    cases=_decode_cases,
    checks=(
        Check(
            "free slots are not read",
            "Sample b has lengths[b] keys in the cache; the slots after them are not its own.",
            _leftovers,
            when=lambda case: case.label != FAR,
        ),
        Check(
            "a token attends to itself",
            "Here the check sets all keys to 0, the new ones included, and the values in the "
            "cache: what is left of the output comes from the new token's own value, to which it "
            "attends like to the others.",
            _plain_mean("values"),
            when=lambda case: not _shares(case),
        ),
        Check(
            "neighboring heads share a KV head",
            "Here the check sets all keys to 0, the new ones included. Then all scores are "
            "equal, and a head takes the plain mean of its own group's values: heads 0 to H / G "
            "- 1 of group 0, and so on.",
            _plain_mean(),
            when=_shares,
        ),
        Check(
            "scores far from 0",
            "Here one number is added to all scores of a head. No weight may change, however "
            "large the scores are: does every intermediate number fit?",
            _far,
            when=lambda case: case.label == FAR,
        ),
    ),
    mutants=mistakes(
        Mutant(
            "every G-th head shares", every_gth_head,
            rejected_by="neighboring heads share a KV head",
            cause="Query heads at a distance of G share a KV head.",
        ),
        Mutant(
            "a step with the scale of all heads", scale_of_all_heads,
            rejected_by="equals the reference",
            cause="1/sqrt(H d), but a head sums d products.",
        ),
        Mutant(
            "the width of x in the scale", scale_of_the_width, rejected_by="equals the reference",
            cause="The scale is computed from D / H. How many products does a head sum?",
        ),
        Mutant(
            "exponentials that do not fit in a step", without_maximum,
            rejected_by="scores far from 0",
            cause="exp(s) overflows or underflows for scores like these.",
        ),
        Mutant(
            "a token that does not see itself", not_itself, rejected_by="a token attends to itself",
            cause="Only the cache is used, which does not contain the new token yet.",
        ),
        Mutant(
            "one free slot read", one_slot_more, rejected_by="free slots are not read",
            cause="The first free slot is treated as used.",
        ),
        Mutant(
            "the longest length for all", longest_for_all, rejected_by="free slots are not read",
            cause="Every sample attends to as many slots as the longest one uses.",
        ),
        step_written_in_place,
    ),
    chapter=5,
    points=3,
)  # fmt: skip

# --- The hunt -------------------------------------------------------------------------------------


def _groups(w_query, w_key, num_heads) -> int:
    return w_key.shape[1] * num_heads // w_query.shape[1]


class OnTrial:
    """One of the formulas, called as the hunt calls it."""

    def __init__(self, formula: HeadsFormula) -> None:
        self.formula = formula

    def __call__(self, x, w_query, w_key, w_value, w_output, num_heads, mask):
        """Shapes: as in the statement."""
        groups = _groups(w_query, w_key, num_heads)
        matrices = (w_query, w_key, w_value, w_output)
        return self.formula(x, *matrices, num_heads, mask=mask, num_kv_heads=groups)


class GroupsInTurn(HeadsFormula):
    """KV heads 0 1 0 1 for 0 0 1 1."""

    def __call__(self, x, w_query, w_key, w_value, w_output, num_heads, *, mask=None,
                 num_kv_heads=None):  # fmt: skip
        """Give each KV head to every G-th query head."""
        times = num_heads // num_kv_heads
        w_key, w_value = w_key.repeat(1, times), w_value.repeat(1, times)
        return super().__call__(x, w_query, w_key, w_value, w_output, num_heads, mask=mask)


class OutputTurned(HeadsFormula):
    """The output layer as nn.Linear keeps it."""

    def output(self, joined, w_output):
        """Mix with the transpose."""
        return joined @ w_output.T


class MaskOfHeadZero(HeadsFormula):
    """One mask for all heads."""

    def allowed(self, scores, mask, causal):
        """What head 0 may see."""
        mask = None if mask is None else mask.expand(scores.shape)[:, :1]
        return super().allowed(scores, mask, causal)


class WidthGuessed(HeadsFormula):
    """The width of a head is taken to be D / H."""

    def __call__(self, x, *matrices, **options):
        """Note the width."""
        self.width = x.shape[-1]
        return super().__call__(x, *matrices, **options)

    def scale(self, query, num_heads):
        """1/sqrt(D / H)."""
        return (self.width / num_heads) ** -0.5


def right_head_by_head(x, w_query, w_key, w_value, w_output, num_heads, mask):
    """A loop over the heads; what each adds to the output is summed."""
    d = w_query.shape[1] // num_heads
    size = num_heads // _groups(w_query, w_key, num_heads)
    shape = (len(x), num_heads, x.shape[1], x.shape[1])
    mask = torch.ones(shape, dtype=torch.bool) if mask is None else mask.expand(shape)
    output = torch.zeros(*x.shape[:2], w_output.shape[1], dtype=x.dtype)
    for h in reversed(range(num_heads)):
        own, shared = slice(h * d, (h + 1) * d), slice(h // size * d, (h // size + 1) * d)
        scores = (x @ w_query[:, own]) @ (x @ w_key[:, shared]).mT / d**0.5
        weights = scores.masked_fill(~mask[:, h], -math.inf).softmax(-1)
        output += weights @ (x @ w_value[:, shared]) @ w_output[own]
    return output


def right_einsum(x, w_query, w_key, w_value, w_output, num_heads, mask):
    """Every matrix with an axis for its heads; no head is ever split."""
    groups = _groups(w_query, w_key, num_heads)
    w_query = w_query.unflatten(1, (groups, num_heads // groups, -1))
    w_key, w_value = (w.unflatten(1, (groups, -1)) for w in (w_key, w_value))
    query = torch.einsum("blm,mgnd->blgnd", x, w_query) * w_query.shape[-1] ** -0.5
    key, value = (torch.einsum("bsm,mgd->bsgd", x, w) for w in (w_key, w_value))
    scores = torch.einsum("blgnd,bsgd->bgnls", query, key).flatten(1, 2)
    scores = scores if mask is None else scores.masked_fill(~mask, -math.inf)
    weights = scores.softmax(-1).unflatten(1, (groups, -1))
    heads = torch.einsum("bgnls,bsgd->blgnd", weights, value)
    return heads.flatten(2) @ w_output


def right_library(x, w_query, w_key, w_value, w_output, num_heads, mask):
    """The library's attention between a split and a join."""
    groups = _groups(w_query, w_key, num_heads)
    query = (x @ w_query).unflatten(-1, (num_heads, -1)).transpose(1, 2)
    key, value = ((x @ w).unflatten(-1, (groups, -1)).transpose(1, 2) for w in (w_key, w_value))
    heads = scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    return heads.transpose(1, 2).flatten(2) @ w_output


HUNT = Hunt(
    name="hw04.hunt",
    function="test_multi_head",
    statement="test_multi_head(implementation): raise unless implementation(x, w_query, w_key, "
    "w_value, w_output, num_heads, mask) is multi-head attention with KV heads shared by groups "
    "of query heads: x (B, L, D), w_query (D, H d), w_key and w_value (D, G d), w_output (H d, "
    "D), mask None or a boolean (B, H, L, L) or what broadcasts with it, True = may attend, no "
    "fully masked row -> (B, L, D)",
    right={
        "the formula": OnTrial(HeadsFormula()),
        "head by head": right_head_by_head,
        "with einsum": right_einsum,
        "the library": right_library,
    },
    mutants=(
        Mutant(
            "cut straight", OnTrial(CutStraight()), rejected_by="the hunt",
            symptom="A head consists of whole tokens, or of pieces of a few.",
            cause="reshape(B, H, L, d) in place of reshape(B, L, H, d).transpose(1, 2).",
        ),
        Mutant(
            "joined straight", OnTrial(JoinedStraight()), rejected_by="the hunt",
            symptom="Each output mixes positions in a way that depends on the length.",
            cause="The axes (B, H, L, d) are merged without being transposed back.",
        ),
        Mutant(
            "numbers dealt out", OnTrial(EveryHthNumber()), rejected_by="the hunt",
            symptom="Trains well, but trained weights from elsewhere give nonsense.",
            cause="The D columns are split into (d, H), but (H, d) is meant.",
        ),
        Mutant(
            "the scale of all heads", OnTrial(WholeWidth()), rejected_by="the hunt",
            symptom="Right for one head; flatter weights with several.",
            cause="1/sqrt(H d), but a head sums d products.",
        ),
        Mutant(
            "the width of a head guessed", OnTrial(WidthGuessed()), rejected_by="the hunt",
            symptom="Right while H d = D.",
            cause="The scale is computed from D / H, but a head has d features.",
        ),
        Mutant(
            "heads that compete", OnTrial(SoftmaxOverHeads()), rejected_by="the hunt",
            symptom="Rows do not sum to 1.",
            cause="softmax(dim=1) runs over the heads.",
        ),
        Mutant(
            "a mask repeated head by head", OnTrial(HeadMajorMask()), rejected_by="the hunt",
            symptom="Right for a mask with an axis for the heads; with one mask for all heads, "
            "the samples of a batch get each other's masks.",
            cause="repeat gives samples 0 1 0 1, but 0 0 1 1 is meant.",
        ),
        Mutant(
            "the mask of head 0", OnTrial(MaskOfHeadZero()), rejected_by="the hunt",
            symptom="Right while all heads have one mask.",
            cause="mask[:, :1], broadcast over the heads.",
        ),
        Mutant(
            "groups in turn", OnTrial(GroupsInTurn()), rejected_by="the hunt",
            symptom="Right with one group, and with as many groups as heads.",
            cause="repeat in place of repeat_interleave: head h uses KV head h mod G.",
        ),
        Mutant(
            "the output layer transposed", OnTrial(OutputTurned()), rejected_by="the hunt",
            symptom="Raises unless H d = D; then every output is wrong.",
            cause="w_output.T, the form in which nn.Linear stores its matrix.",
        ),
    ),
    points=4,
    minutes=65,
    difficulty="core",
    chapter=5,
)  # fmt: skip

# --- The assignment -------------------------------------------------------------------------------

WHOLE_ATTENTION = (
    "F.scaled_dot_product_attention",
    "F.multi_head_attention_forward",
    "nn.MultiheadAttention",
    "torch.nn.attention.flex_attention.flex_attention",
)

ASSIGNMENT = Assignment(
    name="hw04",
    title="What is a head worth?",
    weeks="4",
    chapters=(5,),
    parts=(
        Task(REPACK, "repack", minutes=10, difficulty="warm-up"),
        Task(GROUP_HEADS, "group_heads", minutes=20, difficulty="core"),
        Task(ONE_BIAS, "one_bias", minutes=20, difficulty="core"),
        Task(
            NEXT_TOKEN,
            "next_token",
            minutes=40,
            difficulty="challenge",
            forbidden=WHOLE_ATTENTION,
        ),
        HUNT,
        Written(
            "hw04-three-biases",
            "explanation",
            points=2,
            minutes=20,
            rubric="1 point: q . (k_j + b) = q . k_j + q . b, where q . b is the same for every "
            "key of a row, and a number added to a whole row cancels in the softmax. Half a "
            "point: a query bias adds b . k_j, which differs from key to key, so it does not "
            "cancel. Half a point: moving the value bias requires weights that sum to 1; one "
            "situation in which they do not is enough: a fully masked row that gives zeros, "
            "dropout on the weights, an additional key with the value 0 (a softmax with 1 added "
            "to its denominator), masked weights set to 0 after the softmax.",
        ),
        Written(
            "hw04-nobody",
            "explanation",
            points=2,
            minutes=25,
            rubric="1 point, half for each change with its reason: a permutation of the heads "
            "(columns of W_Q, W_K, W_V and rows of W_O together), because the output is a sum "
            "over heads; an invertible matrix R inside a head (W_Q R and W_K R^-T, or W_V R and "
            "R^-1 W_O), because only the products matter. 1 point: the number of a head and its "
            "single matrices say nothing about two layers (half); one can compare what these "
            "changes leave unchanged, each head with every head of the other layer: the "
            "attention weights on the same sentences, a head's contribution to the output, or "
            "the products W_Q W_K^T and W_V W_O (half; the products are right here because the "
            "two layers have the same inputs and the same layers after them).",
        ),
        Written(
            "hw04-together",
            "experiment",
            points=3,
            minutes=50,
            rubric="1 point: 24 single results, and a curve or table of heads switched off "
            "together, in the order of the single results, with the ties shuffled at least "
            "twice; how many can be removed (at most one number of 50 lost), alone and together. "
            "1 point: at least one random order beside it, with the seed, and a fair reading "
            "that says how much the shuffles of the ties differ. 1 point: heads that cost "
            "nothing alone cost a lot together, with numbers; a reason (they replace each other, "
            "so each is measured while the others still work) or what to measure instead (again "
            "after each head is removed).",
        ),
    ),
)
