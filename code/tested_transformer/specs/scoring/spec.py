"""The Specs of the scoring functions: what each must do, and how each goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ... import reference
from ..judge import EQUAL, SHAPE, UNTOUCHED, Case, Check, Mutant, Problem, Run, Spec, compare

MADE = "made for this book"


def slack(run: Run, case: Case) -> float:
    """What rounding may do to two answers that should agree."""
    return 2 * run.expected(case)[1] + 4 * torch.finfo(case.dtype).eps


def cases_of(*makers: tuple[str, Callable[[np.random.Generator], dict[str, Any]]]) -> Any:
    """A Spec's `cases`: each maker draws one case's arguments; the last is repeated in float32."""

    def cases(seed: int) -> list[Case]:
        rng = np.random.default_rng(seed)
        drawn = [Case(label, make(rng)) for label, make in makers]
        return [*drawn, Case("float32", makers[-1][1](rng), torch.float32)]

    return cases


# --- Additive -------------------------------------------------------------------------------------


def plain_additive(query, key, w_query, w_key, w_v):
    """The baseline: w_v^T tanh(W_q q + W_k k)."""
    sums = (query @ w_query.mT).unsqueeze(-2) + (key @ w_key.mT).unsqueeze(-3)
    return torch.tanh(sums) @ w_v


def additive_without_tanh(query, key, w_query, w_key, w_v):
    sums = (query @ w_query.mT).unsqueeze(-2) + (key @ w_key.mT).unsqueeze(-3)
    return sums @ w_v


def tanh_before_the_sum(query, key, w_query, w_key, w_v):
    query, key = torch.tanh(query @ w_query.mT), torch.tanh(key @ w_key.mT)
    return (query.unsqueeze(-2) + key.unsqueeze(-3)) @ w_v


def additive_transposed(query, key, w_query, w_key, w_v):
    sums = (query @ w_query.mT).unsqueeze(-3) + (key @ w_key.mT).unsqueeze(-2)
    return torch.tanh(sums) @ w_v


def additive_without_projections(query, key, w_query, w_key, w_v):
    return torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3)) @ w_v


def additive_without_w_v(query, key, w_query, w_key, w_v):
    sums = (query @ w_query.mT).unsqueeze(-2) + (key @ w_key.mT).unsqueeze(-3)
    return torch.tanh(sums).sum(-1)


def additive_arguments(query: tuple[int, ...], keys: int, key_size: int, hidden: int) -> Any:
    """A maker of arguments: query (*batch, L, dq)."""

    def make(rng: np.random.Generator) -> dict[str, Any]:
        return {
            "query": rng.normal(size=query),
            "key": rng.normal(size=(*query[:-2], keys, key_size)),
            "w_query": rng.normal(size=(hidden, query[-1])),
            "w_key": rng.normal(size=(hidden, key_size)),
            "w_v": rng.normal(size=hidden),
        }

    return make


def _mixes(run: Run, case: Case) -> Problem | None:
    """s(i, j) - s(i, 0) must depend on i: what only adds up cancels in the softmax."""
    scores = run.value(case)
    gains = scores - scores[..., :1]
    if np.abs(gains - gains[..., :1, :]).max() > 1e-3:
        return None
    return Problem("rows of scores that differ by more than a constant", "rows that do not")


def _bounded(run: Run, case: Case) -> Problem | None:
    largest = np.abs(run.value(case, query=1e3 * case.arguments["query"])).max()
    most = np.abs(case.arguments["w_v"]).sum() * (1 + 1e-6)
    if largest <= most:
        return None
    return Problem(f"scores of at most sum |w_v| = {most:.4g}", f"{largest:.4g}")


def _homogeneous(run: Run, case: Case) -> Problem | None:
    expected = 2 * run.value(case)
    return compare(expected, run.value(case, w_v=2 * case.arguments["w_v"]), 2 * slack(run, case))


ADDITIVE = Spec(
    name="additive scores",
    statement="""additive_scores(query, key, w_query, w_key, w_v): w_v^T tanh(W_q q + W_k k).
query (*batch, L, dq), key (*batch, S, dk), w_query (hidden, dq), w_key (hidden, dk), w_v (hidden)
-> (*batch, L, S)""",
    required=("query", "key", "w_query", "w_key", "w_v"),
    reference=reference.additive_scores,
    baseline=plain_additive,
    cases=cases_of(
        ("two queries, three keys", additive_arguments((2, 3), 3, 3, 3)),
        ("as many queries as keys", additive_arguments((3, 4), 3, 4, 4)),
        ("sizes that differ", additive_arguments((3, 5), 4, 2, 6)),
        ("a batch", additive_arguments((2, 3, 5), 4, 2, 6)),
    ),
    checks=(
        SHAPE,
        UNTOUCHED,
        Check(
            "the score mixes query and key",
            "Without a tanh over the sum the query adds the same to every score, and it cancels.",
            _mixes,
        ),
        Check(
            "w_v weighs the hidden units", "Twice the w_v gives twice the scores.", _homogeneous
        ),
        Check(
            "the tanh bounds the score", "No score can exceed the sum of the |w_v|.", _bounded
        ),
        EQUAL,
    ),
    mutants=(
        Mutant(
            "additive without tanh", additive_without_tanh, "the score mixes query and key",
            symptom="Every query gets the same weights: attention that ignores the question.",
            cause="w_v^T (W_q q + W_k k) is a sum; the query's part cancels in the softmax.",
            seen="practical-pytorch issue 82 (the `concat` score)", chapter=2,
        ),
        Mutant(
            "tanh before the sum", tanh_before_the_sum, "the score mixes query and key",
            symptom="Every query gets the same weights, although a tanh is there.",
            cause="The tanh is taken of each projection, not of their sum.",
            seen=MADE, chapter=2,
        ),
        Mutant(
            "additive transposed", additive_transposed, "the right shape and dtype",
            symptom="Scores (S, L); with as many queries as keys nothing complains.",
            cause="The new axes are swapped: queries belong on rows, keys on columns.",
            seen=MADE, chapter=2,
        ),
        Mutant(
            "additive without projections", additive_without_projections, "RuntimeError",
            symptom="RuntimeError unless query, key and hidden size agree; then, wrong scores.",
            cause="tanh(q + k) without W_q and W_k: not the paper's score.",
            seen="tensorflow issue 39332", chapter=2,
        ),
        Mutant(
            "additive without w_v", additive_without_w_v, "w_v weighs the hidden units",
            symptom="Hidden units can not vote against a match.",
            cause="The hidden layer is summed; w_v is never used.",
            seen=MADE, chapter=2,
        ),
    ),
    chapter=2,
)  # fmt: skip


# --- Bilinear -------------------------------------------------------------------------------------


def plain_bilinear(query, key, weight):
    """The baseline: q^T W k."""
    return query @ weight @ key.mT


def weight_transposed(query, key, weight):
    return query @ weight.mT @ key.mT


def bilinear_scaled(query, key, weight):
    return query @ weight @ key.mT / query.shape[-1] ** 0.5


def only_the_diagonal(query, key, weight):
    size = min(weight.shape)
    return query[..., :size] * weight.diagonal() @ key[..., :size].mT


def bilinear_arguments(query: tuple[int, ...], keys: int, key_size: int) -> Any:
    """A maker of arguments: query (*batch, L, dq)."""

    def make(rng: np.random.Generator) -> dict[str, Any]:
        return {
            "query": rng.normal(size=query),
            "key": rng.normal(size=(*query[:-2], keys, key_size)),
            "weight": rng.normal(size=(query[-1], key_size)),
        }

    return make


def _square(case: Case) -> bool:
    rows, columns = case.arguments["weight"].shape
    return rows == columns


def _identity(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    expected = a["query"] @ np.swapaxes(a["key"], -1, -2)
    got = run.value(case, weight=np.eye(len(a["weight"])))
    return compare(expected, got, 8 * slack(run, case))


def _one_entry(run: Run, case: Case) -> Problem | None:
    """With one entry of W, row 0 and column 1, the score is q_0 k_1."""
    a = case.arguments
    weight = np.zeros_like(a["weight"])
    weight[0, 1] = 1.0
    expected = a["query"][..., :, None, 0] * a["key"][..., None, :, 1]
    return compare(expected, run.value(case, weight=weight), 8 * slack(run, case))


BILINEAR = Spec(
    name="bilinear scores",
    statement="""bilinear_scores(query, key, weight): q^T W k.
query (*batch, L, dq), key (*batch, S, dk), weight (dq, dk) -> (*batch, L, S)""",
    required=("query", "key", "weight"),
    reference=reference.bilinear_scores,
    baseline=plain_bilinear,
    cases=cases_of(
        ("two queries, three keys", bilinear_arguments((2, 3), 3, 3)),
        ("a square weight in a batch", bilinear_arguments((2, 3, 4), 5, 4)),
        ("sizes that differ", bilinear_arguments((3, 5), 4, 2)),
        ("a batch", bilinear_arguments((2, 3, 2), 4, 5)),
    ),
    checks=(
        Check(
            "W = I gives the dot product",
            "With the identity as weight the score is q.k itself: nothing is divided or added.",
            _identity,
            when=_square,
        ),
        Check(
            "rows of W meet the query",
            "W's entry (m, n) multiplies the query's number m and the key's number n.",
            _one_entry,
        ),
        SHAPE,
        UNTOUCHED,
        EQUAL,
    ),
    mutants=(
        Mutant(
            "bilinear weight transposed", weight_transposed, "rows of W meet the query",
            symptom="RuntimeError where the sizes differ; where they agree, silently k^T W q.",
            cause="q^T W^T k: the weight of a Linear layer is used the wrong way round.",
            seen=MADE, chapter=2,
        ),
        Mutant(
            "bilinear with a scale", bilinear_scaled, "W = I gives the dot product",
            symptom="Scores too small by sqrt(d): the weights are flatter than the paper's.",
            cause="A 1/sqrt(d) of the scaled dot product, where W already sets the scale.",
            seen=MADE, chapter=2,
        ),
        Mutant(
            "only the diagonal of W", only_the_diagonal, "rows of W meet the query",
            symptom="Number m of a query only ever meets number m of a key.",
            cause="W is a vector in disguise: a weight a feature, no mixing of features.",
            seen=MADE, chapter=2,
        ),
    ),
    chapter=2,
)  # fmt: skip


# --- Location -------------------------------------------------------------------------------------


def plain_location(query, weight):
    """The baseline: W q."""
    return query @ weight.mT


def location_after_softmax(query, weight):
    return (query @ weight.mT).softmax(-1)


def location_scaled(query, weight):
    return query @ weight.mT / query.shape[-1] ** 0.5


def location_of_itself(query, weight):
    return query @ weight[: query.shape[-2]].mT


def location_arguments(query: tuple[int, ...], places: int) -> Any:
    """A maker of arguments: query (*batch, L, d)."""

    def make(rng: np.random.Generator) -> dict[str, Any]:
        return {"query": rng.normal(size=query), "weight": rng.normal(size=(places, query[-1]))}

    return make


def _twice(run: Run, case: Case) -> Problem | None:
    got = run.value(case, query=2 * case.arguments["query"])
    return compare(2 * run.value(case), got, 2 * slack(run, case))


def _one_hot_query(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    query = np.zeros_like(a["query"])
    query[..., 0] = 1.0
    expected = np.broadcast_to(a["weight"][:, 0], (*query.shape[:-1], len(a["weight"])))
    return compare(expected, run.value(case, query=query), 2 * slack(run, case))


LOCATION = Spec(
    name="location scores",
    statement="""location_scores(query, weight): W q, a score for each place from the query alone.
query (*batch, L, d), weight (S, d) -> (*batch, L, S)""",
    required=("query", "weight"),
    reference=reference.location_scores,
    baseline=plain_location,
    cases=cases_of(
        ("one query, two places", location_arguments((1, 3), 2)),
        ("more places than queries", location_arguments((2, 3), 5)),
        ("a batch", location_arguments((2, 3, 4), 5)),
    ),
    checks=(
        SHAPE,
        UNTOUCHED,
        Check(
            "scores are linear in the query",
            "Twice the query, twice the scores: the softmax comes later, once.",
            _twice,
        ),
        Check(
            "row j of W scores place j",
            "A query of 1, 0, 0, ... reads the first column of W.",
            _one_hot_query,
        ),
        EQUAL,
    ),
    mutants=(
        Mutant(
            "softmax twice", location_after_softmax, "scores are linear in the query",
            symptom="Almost uniform weights: a softmax of numbers between 0 and 1.",
            cause="The scores already went through a softmax.",
            seen=MADE, chapter=2,
        ),
        Mutant(
            "location with a scale", location_scaled, "row j of W scores place j",
            symptom="Scores too small by sqrt(d).",
            cause="A 1/sqrt(d) of the scaled dot product: W already sets the scale.",
            seen=MADE, chapter=2,
        ),
        Mutant(
            "as many places as queries", location_of_itself, "the right shape and dtype",
            symptom="The source can be no longer than the target.",
            cause="The table is cut to the number of queries, not of keys.",
            seen=MADE, chapter=2,
        ),
    ),
    chapter=2,
)  # fmt: skip


# --- Content --------------------------------------------------------------------------------------


def plain_content(query, key, sharpness):
    """The baseline: the sharpness times the cosine, 0 for a zero vector."""
    lengths = query.norm(dim=-1, keepdim=True) * key.norm(dim=-1).unsqueeze(-2)
    return (
        sharpness * (query @ key.mT) / torch.where(lengths == 0, torch.ones_like(lengths), lengths)
    )


def cosine_without_lengths(query, key, sharpness):
    return sharpness * (query @ key.mT)


def cosine_divides_by_zero(query, key, sharpness):
    query, key = (v / v.norm(dim=-1, keepdim=True) for v in (query, key))
    return sharpness * (query @ key.mT)


def length_over_the_wrong_axis(query, key, sharpness):
    query, key = (v / v.norm(dim=-2, keepdim=True).clamp_min(1e-12) for v in (query, key))
    return sharpness * (query @ key.mT)


def sharpness_as_temperature(query, key, sharpness):
    return plain_content(query, key, 1 / sharpness)


def content_arguments(query: tuple[int, ...], keys: int, zero: bool = False) -> Any:
    """A maker of arguments: query (*batch, L, d); the last key may be a vector of zeros."""

    def make(rng: np.random.Generator) -> dict[str, Any]:
        key = rng.normal(size=(*query[:-2], keys, query[-1]))
        if zero:
            key[..., -1, :] = 0.0
        sharpness = float(rng.uniform(2, 5))
        return {"query": rng.normal(size=query), "key": key, "sharpness": sharpness}

    return make


def _directions(run: Run, case: Case) -> Problem | None:
    key = case.arguments["key"].copy()
    key[..., 0, :] *= 8.0
    return compare(run.value(case), run.value(case, key=key), slack(run, case))


def _has_zero(case: Case) -> bool:
    return not case.arguments["key"][..., -1, :].any()


def _zero_vector(run: Run, case: Case) -> Problem | None:
    got = run.value(case)[..., -1]
    return compare(np.zeros_like(got), got, 0.0)


def _parallel(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    places = np.arange(a["query"].shape[-2])[None].repeat(2, 0)
    own = run.value(case, key=3.0 * a["query"])[..., places[0], places[1]]
    return compare(np.full_like(own, a["sharpness"]), own, slack(run, case))


CONTENT = Spec(
    name="content scores",
    statement="""content_scores(query, key, sharpness): sharpness x the cosine of query and key.
query (*batch, L, d), key (*batch, S, d) -> (*batch, L, S); a vector of zeros scores 0""",
    required=("query", "key", "sharpness"),
    reference=reference.content_scores,
    baseline=plain_content,
    cases=cases_of(
        ("two queries, three keys", content_arguments((2, 3), 3)),
        ("a key of zeros", content_arguments((2, 4), 3, zero=True)),
        ("a batch", content_arguments((2, 3, 4), 5)),
    ),
    checks=(
        SHAPE,
        UNTOUCHED,
        Check(
            "only the direction counts",
            "A key eight times as long points the same way and scores the same.",
            _directions,
            when=lambda case: not _has_zero(case),
        ),
        Check(
            "a zero vector scores 0",
            "0/0 is NaN, and one NaN spoils the row: a vector without direction scores 0.",
            _zero_vector,
            when=_has_zero,
        ),
        Check(
            "parallel vectors score the sharpness",
            "The cosine of parallel vectors is 1, so their score is the sharpness itself.",
            _parallel,
        ),
        EQUAL,
    ),
    mutants=(
        Mutant(
            "cosine without lengths", cosine_without_lengths, "only the direction counts",
            symptom="Long keys win, whatever they say.",
            cause="A dot product: the lengths are not divided out.",
            seen=MADE, chapter=2,
        ),
        Mutant(
            "cosine of a zero vector", cosine_divides_by_zero, "a zero vector scores 0",
            symptom="NaN everywhere as soon as one memory slot is empty.",
            cause="The length 0 is in the denominator: 0/0.",
            seen="NTM-tensorflow issue 2", chapter=2,
        ),
        Mutant(
            "lengths over the wrong axis", length_over_the_wrong_axis, "only the direction counts",
            symptom="One long key shrinks all the others.",
            cause="The norm runs over the sequence (dim=-2), not over each vector.",
            seen=MADE, chapter=2,
        ),
        Mutant(
            "sharpness as a temperature", sharpness_as_temperature,
            "parallel vectors score the sharpness",
            symptom="Raising the sharpness flattens the weights.",
            cause="The cosine is divided by the sharpness, which multiplies.",
            seen=MADE, chapter=2,
        ),
    ),
    chapter=2,
)  # fmt: skip


# --- Kernel regression ----------------------------------------------------------------------------


def squared_distances(query, key):
    """|q - k|^2 for each pair, from the differences."""
    return (query.unsqueeze(-2) - key.unsqueeze(-3)).square().sum(-1)


def plain_kernel(query, key, value, bandwidth):
    """The baseline: softmax(-|q - k|^2 / (2 s^2)) v."""
    return torch.softmax(-squared_distances(query, key) / (2 * bandwidth**2), -1) @ value


def bandwidth_not_squared(query, key, value, bandwidth):
    return torch.softmax(-squared_distances(query, key) / (2 * bandwidth), -1) @ value


def bandwidth_upside_down(query, key, value, bandwidth):
    return torch.softmax(-squared_distances(query, key) * bandwidth**2 / 2, -1) @ value


def the_two_forgotten(query, key, value, bandwidth):
    return torch.softmax(-squared_distances(query, key) / bandwidth**2, -1) @ value


def kernel_by_hand(query, key, value, bandwidth):
    kernel = torch.exp(-squared_distances(query, key) / (2 * bandwidth**2))
    return kernel / kernel.sum(-1, keepdim=True) @ value


def kernel_not_normalized(query, key, value, bandwidth):
    kernel = torch.exp(-squared_distances(query, key) / (2 * bandwidth**2))
    return kernel @ value / key.shape[-2]


def square_expanded(query, key, value, bandwidth):
    squares = query.square().sum(-1, keepdim=True) + key.square().sum(-1).unsqueeze(-2)
    distances = squares - 2 * query @ key.mT
    return torch.softmax(-distances / (2 * bandwidth**2), -1) @ value


def kernel_over_queries(query, key, value, bandwidth):
    return torch.softmax(-squared_distances(query, key) / (2 * bandwidth**2), -2) @ value


def kernel_arguments(query: tuple[int, ...], keys: int, width: int = 1, at: float = 0.0) -> Any:
    """A maker of arguments: query (*batch, L, d), everything moved by `at`."""

    def make(rng: np.random.Generator) -> dict[str, Any]:
        # Sixteenths stay exact in float32 when they are moved by a large whole number.
        places = [query, (*query[:-2], keys, query[-1])]
        moved = [np.round(16 * rng.normal(size=shape)) / 16 + at for shape in places]
        value = rng.normal(size=(*query[:-2], keys, width))
        bandwidth = float(rng.uniform(0.3, 0.7))
        return {"query": moved[0], "key": moved[1], "value": value, "bandwidth": bandwidth}

    return make


def kernel_cases(seed: int) -> list[Case]:
    """Small ones first, then one far from all keys and, in float32, one far from zero."""
    rng = np.random.default_rng(seed)
    lonely = kernel_arguments((2, 1), 3)(rng)
    lonely["query"] = lonely["query"] + 60.0
    return [
        Case("one query, two points", kernel_arguments((1, 1), 2)(rng)),
        Case("numbers", kernel_arguments((3, 1), 5)(rng)),
        Case("vectors in a batch", kernel_arguments((2, 3, 4), 5, 2)(rng)),
        Case("far from all points", lonely),
        Case("far from zero, float32", kernel_arguments((3, 1), 5, at=4096.0)(rng), torch.float32),
    ]


def _constant(run: Run, case: Case) -> Problem | None:
    value = np.full_like(case.arguments["value"], 3.0)
    got = run.value(case, value=value)
    return compare(np.full_like(got, 3.0), got, slack(run, case) * 8)


def _units(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    changed = {"query": 4 * a["query"], "key": 4 * a["key"], "bandwidth": 4 * a["bandwidth"]}
    return compare(run.value(case), run.value(case, **changed), 8 * slack(run, case))


def _moved(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    home = {"query": a["query"] - 4096.0, "key": a["key"] - 4096.0}
    return compare(run.value(case, **home), run.value(case), 8 * slack(run, case))


KERNEL = Spec(
    name="kernel regression",
    statement="""kernel_regression(query, key, value, bandwidth): softmax(-|q-k|^2 / (2 s^2)) value.
query (*batch, L, d), key (*batch, S, d), value (*batch, S, dv) -> (*batch, L, dv)""",
    required=("query", "key", "value", "bandwidth"),
    reference=reference.kernel_regression,
    baseline=plain_kernel,
    cases=kernel_cases,
    checks=(
        SHAPE,
        UNTOUCHED,
        Check(
            "far away it is still a number",
            "All kernels underflow to 0 there, and 0/0 is NaN. A softmax of the exponents is safe.",
            lambda run, case: None if np.isfinite(run.value(case)).all()
            else Problem("finite numbers", "NaN or inf"),
            when=lambda case: case.label == "far from all points",
        ),
        Check(
            "equal values give that value",
            "The prediction is a mean: if every known value is 3, it is 3 everywhere.",
            _constant,
        ),
        Check(
            "the unit does not matter",
            "Meters or feet: with query, key and bandwidth all 4 times as large, nothing changes.",
            _units,
            when=lambda case: case.dtype == torch.float64 and case.label != "far from all points",
        ),
        Check(
            "moving all points changes nothing",
            "Only differences count. |q|^2 - 2 q.k + |k|^2 loses them far from zero.",
            _moved,
            when=lambda case: case.label.startswith("far from zero"),
        ),
        EQUAL,
    ),
    mutants=(
        Mutant(
            "bandwidth not squared", bandwidth_not_squared, "the unit does not matter",
            symptom="The curve changes when meters become feet.",
            cause="The exponent is divided by 2 s, where 2 s^2 is meant.",
            seen=MADE, chapter=2,
        ),
        Mutant(
            "bandwidth upside down", bandwidth_upside_down, "the unit does not matter",
            symptom="A larger bandwidth makes the curve rougher.",
            cause="The distance is multiplied by the bandwidth: an inverse width.",
            seen=MADE, chapter=2,
        ),
        Mutant(
            "the 2 of the Gaussian", the_two_forgotten, "equals the reference",
            symptom="A curve as for a bandwidth smaller by sqrt(2).",
            cause="The exponent is divided by s^2, where 2 s^2 is meant.",
            seen=MADE, chapter=2,
        ),
        Mutant(
            "kernels without a softmax", kernel_by_hand, "far away it is still a number",
            symptom="NaN for a query far from every key.",
            cause="Kernels are exponentiated first and divided by their sum: 0/0.",
            seen=MADE, chapter=2,
        ),
        Mutant(
            "kernels not normalized", kernel_not_normalized, "equal values give that value",
            symptom="The curve sinks to 0 where points are few.",
            cause="Divided by the number of points, not by the sum of their kernels.",
            seen=MADE, chapter=2,
        ),
        Mutant(
            "the square expanded", square_expanded, "moving all points changes nothing",
            symptom="Points far from zero blur into each other in float32.",
            cause="|q|^2 - 2 q.k + |k|^2 subtracts large numbers that nearly agree.",
            seen="pytorch issue 42479", chapter=2,
        ),
        Mutant(
            "kernel over the queries", kernel_over_queries, "equal values give that value",
            symptom="Predictions that depend on which other questions are asked.",
            cause="The softmax runs over the queries: dim=-2 in place of dim=-1.",
            seen=MADE, chapter=2,
        ),
    ),
    chapter=2,
)  # fmt: skip


# --- Local ----------------------------------------------------------------------------------------


class LocalFormula:
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(self, scores, centers, half_width, *, gaussian=False):
        """A softmax over the window, times a Gaussian for local-p."""
        steps = torch.arange(scores.shape[-1]) - self.centers(centers).unsqueeze(-1)
        weights = self.weights(scores, self.window(steps, half_width))
        if not gaussian:
            return weights
        return self.product(
            weights, torch.exp(-(steps.square()) / (2 * self.sigma(half_width) ** 2))
        )

    def centers(self, centers):
        """Real numbers, as they come."""
        return centers

    def window(self, steps, half_width):
        """Both ends belong to the window."""
        return steps.abs() <= half_width

    def weights(self, scores, window):
        """A softmax over the window alone."""
        return scores.masked_fill(~window, -torch.inf).softmax(-1)

    def sigma(self, half_width):
        """Half the half-width."""
        return half_width / 2

    def product(self, weights, gaussian):
        """The product, as it is."""
        return weights * gaussian


class WindowAfterSoftmax(LocalFormula):
    def weights(self, scores, window):
        return scores.softmax(-1) * window


class WindowLikeASlice(LocalFormula):
    def window(self, steps, half_width):
        return (steps >= -half_width) & (steps < half_width)


class SigmaIsTheHalfWidth(LocalFormula):
    def sigma(self, half_width):
        return half_width


class Renormalized(LocalFormula):
    def product(self, weights, gaussian):
        return weights * gaussian / (weights * gaussian).sum(-1, keepdim=True)


class RoundedCenters(LocalFormula):
    def centers(self, centers):
        return centers.round()


def local_arguments(shape: tuple[int, ...], half_width: int, gaussian: bool | None = None) -> Any:
    """A maker of arguments: scores (*batch, L, S)."""

    def make(rng: np.random.Generator) -> dict[str, Any]:
        # Whole centers without the Gaussian (local-m), real ones with it (local-p).
        centers = rng.uniform(0, shape[-1], size=shape[:-1])
        if gaussian is None:
            centers = np.minimum(np.floor(centers), shape[-1] - 1)
        scores = rng.normal(size=shape)
        return {
            "scores": scores,
            "centers": centers,
            "half_width": half_width,
            "gaussian": gaussian,
        }

    return make


def _window(case: Case) -> np.ndarray:
    a = case.arguments
    places = np.arange(a["scores"].shape[-1])
    return np.abs(places - a["centers"][..., None]) <= a["half_width"]


def _inside(run: Run, case: Case) -> Problem | None:
    return compare(_window(case), run.value(case) > 0, 0.0)


def _shares(run: Run, case: Case) -> Problem | None:
    sums = run.value(case).sum(-1)
    return compare(np.ones_like(sums), sums, 16 * torch.finfo(case.dtype).eps)


def _not_shared(run: Run, case: Case) -> Problem | None:
    largest = run.value(case).sum(-1).max()
    return None if largest < 1 - 1e-6 else Problem("sums below 1", f"a sum of {largest:.4g}")


def _follows(run: Run, case: Case) -> Problem | None:
    """A step that moves no key into or out of the window must still move the weights."""
    before = run.value(case)
    after = run.value(case, centers=case.arguments["centers"] + 1e-3)
    moved = np.abs(after - before).max(-1) > 1e-6
    return compare(np.ones_like(moved), moved, 0.0)


LOCAL = Spec(
    name="local weights",
    statement="""local_weights(scores, centers, half_width, gaussian=False): a softmax over the places
s with |s - p| <= D; with gaussian=True then times exp(-(s - p)^2 / (2 (D/2)^2)).
scores (*batch, L, S), centers (*batch, L) -> (*batch, L, S)""",
    required=("scores", "centers", "half_width"),
    reference=reference.local_weights,
    baseline=LocalFormula(),
    cases=cases_of(
        ("local-m, one query", local_arguments((1, 5), 1)),
        ("local-m", local_arguments((3, 9), 2)),
        ("local-p, one query", local_arguments((1, 5), 1, True)),
        ("local-p", local_arguments((4, 9), 2, True)),
        ("local-m in a batch", local_arguments((2, 3, 7), 2)),
        ("local-p in a batch", local_arguments((2, 3, 11), 3, True)),
    ),
    checks=(
        SHAPE,
        UNTOUCHED,
        Check(
            "the window reaches D places",
            "The places from p - D to p + D have weight, both ends included, and no others.",
            _inside,
        ),
        Check(
            "the window shares the whole",
            "Without the Gaussian the weights in the window sum to 1: cut before the softmax.",
            _shares,
            when=lambda case: case.arguments["gaussian"] is None,
        ),
        Check(
            "the Gaussian takes its part",
            "The paper multiplies and leaves it at that: the weights sum to less than 1.",
            _not_shared,
            needs=("gaussian",),
        ),
        Check(
            "the Gaussian follows the center",
            "A center is a real number: rounded, it would never learn.",
            _follows,
            needs=("gaussian",),
        ),
        EQUAL,
    ),
    mutants=(
        Mutant(
            "window after the softmax", WindowAfterSoftmax(), "the window shares the whole",
            symptom="Far keys take weight away, and it is lost: the output shrinks.",
            cause="The softmax ran over all keys before the window cut them off.",
            seen=MADE, chapter=2,
        ),
        Mutant(
            "window like a slice", WindowLikeASlice(), "the window reaches D places",
            symptom="One place is missing on the right.",
            cause="Python's range(p - D, p + D) leaves p + D out.",
            seen=MADE, chapter=2,
        ),
        Mutant(
            "sigma is the half-width", SigmaIsTheHalfWidth(), "equals the reference",
            symptom="The Gaussian hardly falls inside the window.",
            cause="sigma = D, where the paper sets sigma = D/2.",
            seen=MADE, chapter=2,
        ),
        Mutant(
            "local-p made to sum to 1", Renormalized(), "the Gaussian takes its part",
            symptom="Weights that sum to 1: plausible, and not the paper's.",
            cause="The product is divided by its sum, or the Gaussian went into the softmax.",
            seen=MADE, chapter=2,
        ),
        Mutant(
            "rounded centers", RoundedCenters(), "the window reaches D places",
            symptom="The center never gets a gradient.",
            cause="p is rounded to a place; the paper keeps the real number.",
            seen=MADE, chapter=2,
        ),
    ),
    chapter=2,
)  # fmt: skip

SCORING = (ADDITIVE, BILINEAR, LOCATION, CONTENT, KERNEL, LOCAL)
