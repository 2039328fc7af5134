"""Homework 1, chapters 0 and 1: what a weighted average can say, and what can be read off it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ... import reference
from ...specs.attention.mutants import InPlace, NaiveSoftmax, TransposeAll
from ...specs.compare import Problem, compare
from ...specs.draw import Draw
from ...specs.mistakes import Mutant, mistake, mistakes
from ...specs.spec import Case, Check, Run, Spec
from ..checks import of_exponents, right_with, same_with, sums_of_rows
from ..tasks import Assignment, Hunt, Task, Written

DECIMALS = 6  # where an answer comes out of a linear system, its last digits are nobody's business


def _six_decimals(case: Case) -> float:
    """The statement compares six decimals: an answer that is rounded to them, or cut off, is right."""
    return 10**-DECIMALS


# --- A dictionary that never says no --------------------------------------------------------------


def _look_up(labels, value, asked, sharpness):
    scores = np.zeros((*asked.shape, labels.shape[-1]), dtype=value.dtype)
    for *batch, i, j in np.ndindex(scores.shape):
        if asked[(*batch, i)] == labels[(*batch, j)]:
            scores[(*batch, i, j)] = sharpness
    return reference.weighted_sum(reference.masked_softmax(scores), value)


def matches(labels: Tensor, asked: Tensor) -> Tensor:
    """True where a label is the one that is asked for. Shape (*batch, L, S)."""
    return asked.unsqueeze(-1) == labels.unsqueeze(-2)


def soft_look_up(labels: Tensor, value: Tensor, asked: Tensor, sharpness: float) -> Tensor:
    """The baseline."""
    return torch.softmax(matches(labels, asked).to(value.dtype) * sharpness, -1) @ value


def _look_up_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, batch, labels, asked, sharpness, dtype=torch.float64) -> Case:
        """`labels` entries and `asked` questions, drawn from a few numbers: some repeat, some miss."""
        arguments = {
            "labels": rng.integers(0, 6, size=(*batch, labels)),
            "value": rng.normal(size=(*batch, labels, 2)),
            "asked": rng.integers(0, 6, size=(*batch, asked)),
            "sharpness": sharpness,
        }
        return Case(label, arguments, dtype)

    def given(label, labels, asked, sharpness) -> Case:
        value = np.arange(1.0, len(labels) + 1)[:, None] * 10
        arguments = {"labels": np.array(labels), "value": value, "asked": np.array(asked)}
        return Case(label, {**arguments, "sharpness": sharpness})

    return [
        given("two entries, sharpness ln 3", [3, 5], [5], float(np.log(3))),
        given("a label that stands there twice", [3, 5, 3], [3, 5], 2.0),
        given("a label that is not there", [3, 5, 3], [7, 5, 9, 3], 4.0),
        case("as many questions as entries", (), 5, 5, 1.5),
        case("a batch", (2,), 5, 3, 3.0),
        case("a batch of heads", (2, 3), 4, 7, 2.5),
        case("sharpness 0", (2,), 4, 3, 0.0),
        given("labels that float32 cannot tell apart", [2**24, 2**24 + 1, 5], [2**24 + 1], 3.0),
        given("sharpness 5000", [3, 5, 8], [5, 1, 8, 3], 5000.0),
        case("float32", (3,), 6, 4, 2.0, torch.float32),
    ]


def _look_up_slack(case: Case) -> float:
    """A weight may be made as the exponential of a difference of two large numbers."""
    largest = float(np.abs(case.arguments["value"]).max())
    return of_exponents(case, case.arguments["sharpness"]) * largest


def _any_look_up(draw: Draw) -> Case:
    batch, dtype = draw.one_of((), (1,), (2,), (2, 3)), draw.one_of(torch.float64, torch.float32)
    entries, asked = draw.one_of(2, 1, 5, 9), draw.one_of(2, 1, 6)
    arguments = {
        "labels": draw.numbers.integers(-3, 4, size=(*batch, entries)),
        "value": draw.numbers.normal(size=(*batch, entries, draw.one_of(2, 1, 5))),
        "asked": draw.numbers.integers(-3, 4, size=(*batch, asked)),
        "sharpness": draw.one_of(1.0, 0, 0.3, 12, 300.0, 5000.0),
    }
    return Case("any", arguments, dtype)


def _constant_value(run: Run, case: Case) -> Problem | None:
    """A weighted average of ones is 1."""
    ones = np.ones_like(case.arguments["value"])
    return right_with(run, case, "with values of 1, the answer", value=ones)


def _missing(run: Run, case: Case) -> Problem | None:
    nobody = np.full_like(case.arguments["asked"], 99)
    return right_with(run, case, "asked for label 99, which nobody has, the answer", asked=nobody)


@mistake(
    "an ordinary dictionary",
    rejected_by="an average of equal values is that value",
    cause="Only entries that match are averaged; a softmax gives every entry some weight.",
)
def ordinary_dictionary(labels, value, asked, sharpness):
    return (
        (hit := matches(labels, asked).to(value.dtype)) / hit.sum(-1, keepdim=True).clamp(min=1)
    ) @ value


@mistake(
    "shares over the questions",
    rejected_by="an average of equal values is that value",
    cause="The softmax runs over the axis of the queries: dim=-2 in place of dim=-1.",
)
def shares_over_the_questions(labels, value, asked, sharpness):
    return torch.softmax(matches(labels, asked).to(value.dtype) * sharpness, -2) @ value


@mistake(
    "exponentials that overflow",
    rejected_by="an average of equal values is that value",
    cause="exp is taken as it stands; torch.softmax subtracts the largest score first.",
)
def exponentials_that_overflow(labels, value, asked, sharpness):
    return (
        (e := (matches(labels, asked).to(value.dtype) * sharpness).exp()) / e.sum(-1, keepdim=True)
    ) @ value


@mistake(
    "worked out in float32",
    rejected_by="an average of equal values is that value",
    cause="True and False times a Python number are float32, and so are their weights. "
    "Converting them to float64 later restores no digit.",
)
def worked_out_in_float32(labels, value, asked, sharpness):
    return torch.softmax(matches(labels, asked) * float(sharpness), -1).to(value.dtype) @ value


@mistake(
    "the first match alone",
    rejected_by="equals the reference",
    cause="A search that stops at the first match; attention scores every entry.",
)
def first_match_alone(labels, value, asked, sharpness):
    return (
        torch.softmax(
            (matches(labels, asked) & (matches(labels, asked).cumsum(-1) == 1)).to(value.dtype)
            * sharpness,
            -1,
        )
        @ value
    )


LOOK_UP = Spec(
    name="hw01.look_up",
    statement="look_up(labels, value, asked, sharpness): attention in which the score is `sharpness` "
    "where the label is the one asked for and 0 elsewhere. labels (*batch, S) and asked (*batch, L) "
    "are integers, value (*batch, S, dv), sharpness a number of at least 0 -> (*batch, L, dv)",
    required=("labels", "value", "asked", "sharpness"),
    reference=_look_up,
    baseline=soft_look_up,
    differentiable=False,
    slack=_look_up_slack,
    cases=_look_up_cases,
    combine=_any_look_up,
    checks=(
        Check(
            "an average of equal values is that value",
            "The weights of a query sum to 1, so if every value is 1, every output is 1.",
            _constant_value,
        ),
        Check(
            "no label matches: a uniform average",
            "A label that does not occur has the score 0 everywhere. A softmax of equal scores "
            "is uniform.",
            _missing,
        ),
    ),
    mutants=mistakes(
        ordinary_dictionary, shares_over_the_questions, exponentials_that_overflow,
        worked_out_in_float32, first_match_alone
    ),
    chapter=1,
    points=2,
)  # fmt: skip

# --- Back in order --------------------------------------------------------------------------------


def _unshuffled(weights, order):
    answer = np.zeros_like(weights)
    for *batch, i, j in np.ndindex(weights.shape):
        at = tuple(batch)
        answer[at][order[at][i], order[at][j]] = weights[at][i, j]
    return answer


def back_in_order(weights: Tensor, order: Tensor) -> Tensor:
    """The baseline: rows, then columns, by the inverse of the order."""
    inverse = order.argsort(-1)
    rows = torch.take_along_dim(weights, inverse.unsqueeze(-1), -2)
    return torch.take_along_dim(rows, inverse.unsqueeze(-2), -1)


def _order_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *shape, order=None, dtype=torch.float64) -> Case:
        length = shape[-1]
        if order is None:  # never one that undoes itself: a shifted cycle
            order = np.empty(shape, dtype=np.int64)
            for row in np.ndindex(shape[:-1]):
                cycle = rng.permutation(length)
                order[row][cycle] = np.roll(cycle, 1)
        scores = rng.normal(size=(*shape, length))
        arguments = {"weights": reference.masked_softmax(scores), "order": np.array(order)}
        return Case(label, arguments, dtype)

    return [
        case("three tokens, one round", 3, order=[2, 0, 1]),
        case("two tokens exchanged", 2, order=[1, 0]),
        case("five tokens", 5),
        case("a batch, each sample in its own order", 4, 6),
        case("as many samples as tokens", 5, 5),
        case("a batch of heads", 2, 3, 7),
        case("nothing moved", 4, order=[0, 1, 2, 3]),
        case("one token", 1, order=[0]),
        case("float32", 3, 9, dtype=torch.float32),
    ]


def _itself(run: Run, case: Case) -> Problem | None:
    """What a token gives itself stays on the diagonal, in the first token's row or another."""
    weights = case.arguments["weights"]
    got = np.sort(np.diagonal(run.value(case), axis1=-2, axis2=-1), -1)
    own = np.sort(np.diagonal(weights, axis1=-2, axis2=-1), -1)
    return compare(own, got, run.expected(case)[1], "the sorted diagonal")


@mistake(
    "only the rows",
    rejected_by="what a token gives itself",
    cause="The columns are tokens too: they were shuffled along with the rows.",
)
def only_the_rows(weights, order):
    return torch.take_along_dim(weights, order.argsort(-1).unsqueeze(-1), -2)


@mistake(
    "only the columns",
    rejected_by="what a token gives itself",
    cause="The rows were shuffled along with the columns.",
)
def only_the_columns(weights, order):
    return torch.take_along_dim(weights, order.argsort(-1).unsqueeze(-2), -1)


@mistake(
    "shuffled once more",
    rejected_by="equals the reference",
    cause="weights[order] applies the order a second time; the inverse is needed.",
)
def shuffled_once_more(weights, order):
    return back_in_order(weights, order.argsort(-1))


@mistake(
    "the first sample's order for all",
    rejected_by="equals the reference",
    cause="One permutation is used for every sample of the batch.",
)
def first_order_for_all(weights, order):
    return back_in_order(
        weights,
        order.reshape(-1, order.shape[-1])[:1]
        .expand_as(order.reshape(-1, order.shape[-1]))
        .reshape(order.shape),
    )


UNSHUFFLE = Spec(
    name="hw01.unshuffle",
    statement="unshuffle(weights, order): weights (*batch, L, L) are those of the tokens x[order]; give "
    "those of the tokens x. order (*batch, L), a permutation for each sample -> (*batch, L, L)",
    required=("weights", "order"),
    reference=_unshuffled,
    baseline=back_in_order,
    differentiable=False,
    cases=_order_cases,
    checks=(
        Check("rows still sum to 1", "Reordering changes no weight, so the sorted weights must "
        "stay the same.", sums_of_rows),
        Check(
            "what a token gives itself",
            "Weight (i, i) belongs to one token, so it must be on the diagonal before and after.",
            _itself,
        ),
    ),
    mutants=mistakes(
        only_the_rows, only_the_columns, shuffled_once_more, first_order_for_all
    ),
    chapter=1,
    points=2,
)  # fmt: skip

# --- One-way interest -----------------------------------------------------------------------------


def _one_way(w_query, w_key):
    answer = np.zeros(w_query.shape[:-2], dtype=np.float64)
    for at in np.ndindex(answer.shape):
        query, key = w_query[at], w_key[at]
        size = len(query)
        table = [[reference.dot(query[i], key[j]) for j in range(size)] for i in range(size)]
        pairs = list(np.ndindex(size, size))
        whole = sum(table[i][j] ** 2 for i, j in pairs)
        odd = sum(((table[i][j] - table[j][i]) / 2) ** 2 for i, j in pairs)
        answer[at] = odd / whole
    return answer


def one_way_part(w_query: Tensor, w_key: Tensor) -> Tensor:
    """The baseline."""
    table = w_query @ w_key.mT
    odd = (table - table.mT) / 2
    return odd.square().sum((-2, -1)) / table.square().sum((-2, -1))


def _one_way_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *shape, like=None) -> Case:
        w_query = rng.normal(size=shape)
        w_key = rng.normal(size=shape) if like is None else like(w_query)
        return Case(label, {"w_query": w_query, "w_key": w_key})

    def plain(label, w_query, w_key) -> Case:
        return Case(label, {"w_query": np.array(w_query), "w_key": np.array(w_key)})

    eye = np.eye(5)
    return [
        plain("two features", [[1.0], [0.0]], [[1.0], [1.0]]),
        plain("only the first asks, only the second answers", [[2.0], [0.0]], [[0.0], [3.0]]),
        plain("against itself", [[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, -1.0]]),
        plain("look to the right", np.roll(eye, 1, 1), eye),
        case("random", 6, 3),
        case("as many heads as features", 4, 4, 2),
        case("a batch of heads", 2, 3, 5, 4),
        case("W_Q = W_K", 7, 3, like=lambda w: w),
        case("W_K = -2 W_Q", 6, 4, like=lambda w: -2 * w),
        case("large matrices", 8, 5, like=lambda w: 1000 * w[::-1]),
        case("small matrices", 5, 3, like=lambda w: 1e-7 * w[::-1]),
    ]


def _neither_scale(run: Run, case: Case) -> Problem | None:
    times = -10 * case.arguments["w_query"]
    return same_with(run, case, "W_Q is multiplied by -10", w_query=times)


def _roles(run: Run, case: Case) -> Problem | None:
    turned = {"w_query": case.arguments["w_key"], "w_key": case.arguments["w_query"]}
    return same_with(run, case, "W_Q and W_K change places", **turned)


def _number(answer, arguments):
    """The answer as a tensor: a Python number is as good."""
    return torch.as_tensor(answer)


@mistake(
    "the half forgotten",
    rejected_by="equals the reference",
    cause="M - M^T is twice the antisymmetric part, and squaring makes this a factor of 4.",
)
def half_forgotten(w_query, w_key):
    return 4 * one_way_part(w_query, w_key)


@mistake(
    "lengths for squares",
    rejected_by="equals the reference",
    cause="This is the quotient of two norms, but only squares add up.",
)
def lengths_for_squares(w_query, w_key):
    return one_way_part(w_query, w_key).sqrt()


@mistake(
    "the mutual part",
    rejected_by="equals the reference",
    cause="(M + M^T) / 2 in place of (M - M^T) / 2.",
)
def mutual_part(w_query, w_key):
    return 1 - one_way_part(w_query, w_key)


@mistake(
    "the matrices compared, not their product",
    rejected_by="the size of the matrices does not count",
    cause="Only the product W_Q W_K^T enters the scores, and many pairs of matrices have the "
    "same product.",
)
def matrices_compared_not_their_product(w_query, w_key):
    return (w_query - w_key).square().sum((-2, -1)) / (w_query.square() + w_key.square()).sum(
        (-2, -1)
    )


ONE_WAY = Spec(
    name="hw01.one_way",
    statement="one_way(w_query, w_key): with M = W_Q W_K^T, the share of the sum of M's squared entries "
    "that is left when M is replaced by (M - M^T) / 2. (*batch, D, d), (*batch, D, d) -> (*batch), "
    "compared in six decimals; M is not 0",
    required=("w_query", "w_key"),
    reference=_one_way,
    baseline=one_way_part,
    read=_number,
    slack=_six_decimals,
    differentiable=False,
    cases=_one_way_cases,
    checks=(
        Check(
            "the size of the matrices does not count",
            "With ten times the queries and the other sign, both parts of M grow by the same "
            "factor, and so do their squares.",
            _neither_scale,
        ),
        Check(
            "asking and answering exchanged",
            "If W_Q and W_K are exchanged, M becomes its transpose, which is as asymmetric as M.",
            _roles,
        ),
    ),
    mutants=mistakes(
        half_forgotten, lengths_for_squares, mutual_part, matrices_compared_not_their_product
    ),
    chapter=1,
    points=2,
)  # fmt: skip

# --- Who was read? --------------------------------------------------------------------------------


def _who(output, value):
    answer = np.zeros((*output.shape[:-1], value.shape[-2]))
    for row in np.ndindex(output.shape[:-1]):
        entries = value[row[:-1]].astype(np.float64)
        equations = np.concatenate([entries.T, np.ones((1, len(entries)))])
        sides = np.append(output[row].astype(np.float64), 1.0)
        answer[row] = np.linalg.lstsq(equations, sides, rcond=None)[0]
    return answer


def recovered(output: Tensor, value: Tensor, ones: bool = True) -> Tensor:
    """Weights from outputs, with the equation that they sum to 1, or without."""
    if ones:
        output = torch.cat([output, torch.ones_like(output[..., :1])], -1)
        value = torch.cat([value, torch.ones_like(value[..., :1])], -1)
    return output @ torch.linalg.pinv(value)


def _who_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, batch, queries, keys, width) -> Case:
        """Values whose equations are well posed: corners of a simplex, turned, moved and shaken."""
        corners = np.zeros((*batch, keys, width))
        for row in np.ndindex(*batch):
            turned = np.linalg.qr(rng.normal(size=(width, width)))[0]
            simplex = 3 * np.eye(keys, width)  # with width + 1 keys the last one is the origin
            corners[row] = simplex @ turned + 0.2 * rng.normal(size=(keys, width)) + 0.5
        weights = reference.masked_softmax(1.5 * rng.normal(size=(*batch, queries, keys)))
        return Case(label, {"output": weights @ corners, "value": corners})

    two = {"output": np.array([[5.0, 1.0]]), "value": np.array([[4.0, 0.0], [8.0, 4.0]])}
    line = {"output": np.array([[5.0], [8.0]]), "value": np.array([[4.0], [8.0]])}
    copied = case("one token copied", (), 3, 4, 5)
    copied.arguments["output"][:] = copied.arguments["value"][[2, 0, 2]]
    return [
        Case("two tokens in a plane", two),
        Case("two tokens on a line", line),
        case("three tokens", (), 4, 3, 5),
        case("as many tokens as numbers", (), 3, 4, 4),
        case("one token more than numbers", (), 2, 6, 5),
        case("a batch", (2,), 3, 4, 6),
        case("as many of everything", (4,), 4, 4, 4),
        case("a batch of heads, one token more", (2, 3), 5, 5, 4),
        copied,
        case("a single token", (), 3, 1, 2),
        case("many tokens", (), 3, 33, 32),
    ]


def _adds_up(run: Run, case: Case) -> Problem | None:
    sums = run.value(case).sum(-1)
    slack = run.expected(case)[1] * case.arguments["value"].shape[-2]
    return compare(np.ones_like(sums), sums, slack, "sums of the weights")


def _gives_back(run: Run, case: Case) -> Problem | None:
    value, weights = case.arguments["value"], run.value(case)
    if weights.shape != (*case.arguments["output"].shape[:-1], value.shape[-2]):
        return Problem("a weight for each query and token", f"shape {weights.shape}")
    slack = run.expected(case)[1] * np.abs(value).sum(-2).max()
    return compare(case.arguments["output"], weights @ value, slack, "weights @ value")


@mistake(
    "one equation forgotten",
    rejected_by="the weights sum to 1",
    cause="The values alone are not enough: 4 w1 + 8 w2 = 5 has many solutions.",
)
def one_equation_forgotten(output, value):
    return recovered(output, value, ones=False)


@mistake(
    "resemblance taken for weight",
    rejected_by="the weights reproduce the output",
    cause="How similar an output is to a value also depends on the other values.",
)
def resemblance_taken_for_weight(output, value):
    return torch.softmax(output @ value.mT, -1)


@mistake(
    "made to sum to 1 afterwards",
    rejected_by="the weights reproduce the output",
    cause="One of many solutions was taken and then rescaled, after which it is no solution.",
)
def made_to_sum_to_1_afterwards(output, value):
    return (w := recovered(output, value, ones=False)) / w.sum(-1, keepdim=True)


@mistake(
    "the first sample's values for all",
    rejected_by="the weights reproduce the output",
    cause="One system is solved for every sample, but each sample has its own values.",
)
def first_values_for_all(output, value):
    return recovered(output, value.reshape(-1, *value.shape[-2:])[0].expand_as(value))


WHO = Spec(
    name="hw01.who_was_read",
    statement="who_was_read(output, value): the attention weights that turned these values into this "
    "output. output (*batch, L, dv), value (*batch, S, dv) with S at most dv + 1 and in general "
    "position -> (*batch, L, S), compared in six decimals",
    required=("output", "value"),
    reference=_who,
    baseline=recovered,
    read=_number,
    slack=_six_decimals,
    differentiable=False,
    cases=_who_cases,
    checks=(
        Check(
            "the weights reproduce the output",
            "The weighted sum of the values, with the weights that you found, must be the output.",
            _gives_back,
        ),
        Check(
            "the weights sum to 1",
            "You know something about attention weights before you look at any output.",
            _adds_up,
        ),
    ),
    mutants=mistakes(
        one_equation_forgotten, resemblance_taken_for_weight, made_to_sum_to_1_afterwards,
        first_values_for_all
    ),
    chapter=1,
    points=3,
)  # fmt: skip

# --- The hunt -------------------------------------------------------------------------------------


def by_einsum(query, key, value):
    """All pairs at once."""
    scores = torch.einsum("...ld,...sd->...ls", query, key) / query.shape[-1] ** 0.5
    return torch.einsum("...ls,...sv->...lv", scores.softmax(-1), value)


def by_queries(query, key, value):
    """One query after the other, the keys from the last to the first."""
    key, value, rows = key.flip(-2), value.flip(-2), []
    for one in query.unbind(-2):
        scores = (key @ one.unsqueeze(-1)).squeeze(-1) * query.shape[-1] ** -0.5
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        mean = (weights.unsqueeze(-1) * value).sum(-2) / weights.sum(-1, keepdim=True)
        rows.append(mean)
    return torch.stack(rows, -2)


def in_double(query, key, value):
    """In float64 whatever came, the scale on the keys, and back."""
    wide = [tensor.double() for tensor in (query, key, value)]
    answer = (wide[0] @ (wide[1] / query.shape[-1] ** 0.5).mT).softmax(-1) @ wide[2]
    return answer.to(value.dtype)


@mistake(
    "a batch read as one sequence",
    rejected_by="the hunt",
    symptom="A sample's output depends on its neighbors in the batch.",
    cause="The batch is flattened into the length before the scores.",
)
def _one_sequence(query, key, value):
    flat = [tensor.reshape(-1, tensor.shape[-1]) for tensor in (query, key, value)]
    return by_einsum(*flat).reshape(*query.shape[:-1], value.shape[-1])


@mistake(
    "the scale of the values",
    rejected_by="the hunt",
    symptom="Right as long as keys and values have the same dimension.",
    cause="1/sqrt(dv), but d is the dimension of query and key.",
)
def _scale_of_the_values(query, key, value):
    return by_einsum(query * (query.shape[-1] / value.shape[-1]) ** 0.5, key, value)


@mistake(
    "as many keys as queries",
    rejected_by="the hunt",
    symptom="If the second sequence is longer, its last tokens have no effect.",
    cause="The keys are truncated to the number of queries, as if it were self-attention.",
)
def _as_many_keys_as_queries(query, key, value):
    length = query.shape[-2]
    return by_einsum(query, key[..., :length, :], value[..., :length, :])


@mistake(
    "an axis counted from the front",
    rejected_by="the hunt",
    symptom="Right with one batch axis; with two, the rows of weights do not sum to 1.",
    cause="softmax(dim=2) is right for three axes; with four it is the axis of the queries.",
)
def _axis_from_the_front(query, key, value):
    scores = query @ key.mT * query.shape[-1] ** -0.5
    return scores.softmax(min(2, scores.ndim - 1)) @ value


@mistake(
    "half of the digits",
    rejected_by="the hunt",
    symptom="Input and output are float64, but the last nine digits are noise. How large a "
    "difference between two float64 numbers does your comparison allow?",
    cause="Everything is computed in float32 on the way.",
)
def _in_single(query, key, value):
    return by_einsum(query.float(), key.float(), value.float()).to(query.dtype)


@mistake(
    "one maximum for all rows",
    rejected_by="the hunt",
    symptom="There is no overflow, but a row whose scores are far below another row's becomes 0/0.",
    cause="scores.max() where each row needs its own largest score.",
)
def _one_maximum(query, key, value):
    scores = query @ key.mT * query.shape[-1] ** -0.5
    exponentials = (scores - scores.max()).exp()
    return exponentials / exponentials.sum(-1, keepdim=True) @ value


HUNT = Hunt(
    name="hw01.hunt",
    function="test_attention",
    statement="test_attention(implementation): raises unless implementation(query, key, value) is "
    "softmax(query key^T / sqrt(d)) value, for query (*batch, L, d), key (*batch, S, d) and value "
    "(*batch, S, dv) in float32 or float64, with any number of batch axes.",
    right={
        "all pairs at once": by_einsum,
        "one query after the other": by_queries,
        "in float64 and back": in_double,
        "torch's own": lambda query, key, value: (
            torch.nn.functional.scaled_dot_product_attention(query, key, value)
        ),
    },
    mutants=mistakes(
        Mutant(
            "K.T with a batch", TransposeAll(), rejected_by="the hunt",
            symptom="With batch axes it raises; if all sizes are equal it does not raise, but mixes "
            "samples.",
            cause="`.T` reverses all axes; with a batch only the last two may be exchanged: "
            "`.mT`.",
        ),
        _one_sequence,
        _scale_of_the_values,
        _as_many_keys_as_queries,
        _axis_from_the_front,
        Mutant(
            "exponentials that overflow", NaiveSoftmax(), rejected_by="the hunt",
            symptom="NaN for large scores.",
            cause="exp is taken before the largest score is subtracted.",
        ),
        _one_maximum,
        Mutant(
            "the caller's query scaled", InPlace(), rejected_by="the hunt",
            symptom="The output is right, but the second call with the same tensors is not.",
            cause="query.mul_ works in place, on the caller's tensor.",
        ),
        _in_single,
    ),
    points=4,
    minutes=60,
    difficulty="core",
    chapter=1,
)  # fmt: skip

ASSIGNMENT = Assignment(
    name="hw01",
    title="What a weighted average can tell",
    weeks="1",
    chapters=(0, 1),
    parts=(
        Task(LOOK_UP, "look_up", 15, "warm-up", ("F.scaled_dot_product_attention",)),
        Task(UNSHUFFLE, "unshuffle", 20, "core"),
        Task(ONE_WAY, "one_way", 15, "warm-up"),
        Task(WHO, "who_was_read", 30, "challenge"),
        HUNT,
        Written(
            "hw01-count", "explanation", 2, 25,
            "1 point: without the start token the layer cannot count, with the argument: the "
            "repeated sequence has the same average (each weight is halved, each value occurs "
            "twice), but twice the count. 1 point: with the start token it is possible: n_vier / "
            "(n + 1) and 1 / (n + 1) are both averages with equal weights, and their quotient, a "
            "function of the output, is n_vier; n need not be known from elsewhere. Half a point "
            "if the start token is named without a way to the number.",
        ),
        Written(
            "hw01-what-a-share-says", "explanation", 2, 25,
            "1 point: the second claim is refuted by the patching experiment: vier und zwanzig "
            "and vier und dreißig differ in one token, so what the state of und holds about the "
            "tens came from that token, in the encoder. The state of zwanzig is not needed, but "
            "the token is. 1 point: the first claim is open, because all numbers that were "
            "patched had the same unit; an experiment that changes the unit and one state alone "
            "(the state of und from 27 in 24), with what each outcome would mean. Half a point "
            "if it is the page's own patching of 24 and 34. Training another model or plotting "
            "more heat maps is no such experiment.",
        ),
        Written(
            "hw01-noise", "experiment", 3, 40,
            "1 point: the table or plot: for each number of tokens the median and the mean of "
            "the error over at least 100 samples. 1 point: the finding, with numbers: the error "
            "grows slowly at first and steeply when the number of tokens comes near dv + 1, and "
            "there the mean is much larger than the median. 1 point: reasons that fit: for the "
            "error, as many unknowns as equations, so that no equation is left to average the "
            "noise; for the mean, a few samples whose values lie nearly in a common hyperplane. "
            "Half a point for one of the two.",
        ),
    ),
)  # fmt: skip
