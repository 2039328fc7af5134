"""Homework 2, chapters 2 and 3: what a score means, how large it is, and what a softmax makes of it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from torch import Tensor

from ... import reference
from ...specs.compare import Problem, compare
from ...specs.mistakes import mistake, mistakes
from ...specs.scaling.mutants import exponentials_that_overflow, the_maximum_of_the_batch
from ...specs.spec import SHAPE, Case, Check, Run, Spec, finite
from ..checks import of_exponents, sums_of_rows
from ..tasks import Assignment, Hunt, Task, Written

# --- A window without edges -----------------------------------------------------------------------


def _windowed(scores, centers, width):
    moved = scores.copy()
    for *row, place in np.ndindex(scores.shape):
        step = place - centers[tuple(row)]
        moved[(*row, place)] -= step * step / (2 * width * width)
    return reference.masked_softmax(moved)


def steps_from(scores: Tensor, centers: Tensor) -> Tensor:
    """How far each place lies from the center. Shape (*batch, L, S)."""
    return torch.arange(scores.shape[-1]) - centers.unsqueeze(-1)


def bell(scores: Tensor, centers: Tensor, width: float) -> Tensor:
    """The Gaussian around each center."""
    return torch.exp(-steps_from(scores, centers).square() / (2 * width**2))


def window_inside(scores: Tensor, centers: Tensor, width: float) -> Tensor:
    """The baseline."""
    return torch.softmax(scores - steps_from(scores, centers).square() / (2 * width**2), -1)


def _window_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *shape, width=1.5, centers=None, dtype=torch.float64) -> Case:
        if centers is None:
            centers = rng.integers(0, shape[-1], size=shape[:-1]) + rng.uniform(-0.4, 0.4)
        arguments = {"scores": rng.normal(size=shape), "centers": np.asarray(centers)}
        return Case(label, {**arguments, "width": width}, dtype)

    even = {"scores": np.zeros((1, 2)), "centers": np.array([0.0]), "width": 1.0}
    return [
        Case("two equal scores, the center on the first", even),
        case("a few places", 3, 5),
        case("as many queries as places", 4, 4),
        case("a batch", 2, 3, 6),
        case("a batch of heads", 2, 3, 4, 7, width=3.0),
        case("a narrow window", 3, 6, width=0.2),
        case("a center beyond the end", 2, 5, centers=[60.0, -45.0], width=1.0),
        case("far beyond, a wide window", 2, 6, centers=[300.0, -250.0], width=6.0),
        case("a window wider than all", 2, 5, width=1000.0),
        Case("scores in the thousands", {
            "scores": 1000 * rng.normal(size=(3, 6)), "centers": np.array([1.0, 3.2, 4.0]), "width": 2.0
        }),
        case("float32", 3, 8, dtype=torch.float32),
    ]  # fmt: skip


def _window_slack(case: Case) -> float:
    """A weight may be made as the exponential of a difference of two large numbers."""
    scores, centers, width = case.arguments.values()
    far = np.max(np.abs(centers)) + scores.shape[-1]
    return of_exponents(case, np.abs(scores).max() + (far / width) ** 2 / 2)


def _nearest_wins(run: Run, case: Case) -> Problem | None:
    scores, centers = case.arguments["scores"], case.arguments["centers"]
    nearest = np.clip(np.rint(centers), 0, scores.shape[-1] - 1).astype(int)
    got = run.value(case, scores=np.zeros_like(scores)).argmax(-1)
    return compare(nearest, got, 0.0, "the place that weighs most")


@mistake(
    "the sums left as they are",
    rejected_by="rows sum to 1",
    cause="The division by the row's sum is missing.",
)
def sums_left_as_they_are(scores, centers, width):
    return scores.softmax(-1) * bell(scores, centers, width)


@mistake(
    "a product that underflows",
    rejected_by="finite numbers",
    cause="Every factor underflows to 0. Can the normalization come before the exponential?",
)
def product_that_underflows(scores, centers, width):
    return (w := scores.softmax(-1) * bell(scores, centers, width)) / w.sum(-1, keepdim=True)


@mistake(
    "positions counted from 1",
    rejected_by="among equal scores the nearest position wins",
    cause="The first position is 0, like the first index of a tensor.",
)
def places_counted_from_1(scores, centers, width):
    return window_inside(scores, centers - 1, width)


@mistake(
    "the 2 forgotten",
    rejected_by="equals the reference",
    cause="(s - p)^2 / width^2 without the 2.",
)
def two_forgotten(scores, centers, width):
    return window_inside(scores, centers, width / 2**0.5)


@mistake(
    "the window alone",
    rejected_by="equals the reference",
    cause="The scores are replaced by the window instead of being combined with it.",
)
def window_alone(scores, centers, width):
    return window_inside(0 * scores, centers, width)


WINDOW = Spec(
    name="hw02.windowed",
    statement="windowed(scores, centers, width): softmax(scores), each weight times "
    "exp(-(s - p)^2 / (2 width^2)) for place s = 0, 1, ... and center p, then divided by the row's sum. "
    "scores (*batch, L, S), centers (*batch, L), width above 0 -> (*batch, L, S)",
    required=("scores", "centers", "width"),
    reference=_windowed,
    slack=_window_slack,
    baseline=window_inside,
    differentiable=False,
    cases=_window_cases,
    checks=(
        Check("finite numbers", "A row is NaN: its sum was 0 before the division.", finite),
        Check("rows sum to 1", "The rows are divided by their sums.", sums_of_rows),
        Check(
            "among equal scores the nearest position wins",
            "If all scores are equal, only the window matters, and it is largest next to its "
            "center.",
            _nearest_wins,
            when=lambda case: case.arguments["width"] < 100,
        ),
    ),
    mutants=mistakes(
        sums_left_as_they_are, product_that_underflows, places_counted_from_1, two_forgotten,
        window_alone
    ),
    chapter=2,
    points=2,
)  # fmt: skip

# --- Keys of one length ---------------------------------------------------------------------------


def _level(key):
    answer = np.zeros((*key.shape[:-1], key.shape[-1] + 1), dtype=key.dtype)
    for batch in np.ndindex(key.shape[:-2]):
        squares = [reference.dot(row, row) for row in key[batch]]
        for j, row in enumerate(key[batch]):
            answer[batch][j] = [*row, max(squares) - squares[j]]
    return answer


def _last_squared(answer: Tensor, arguments: dict) -> Tensor:
    """The last number squared, its sign kept: near 0 rounding decides the number, and not its square."""
    last = torch.as_tensor(answer)[..., -1:]
    return torch.cat([torch.as_tensor(answer)[..., :-1], last * last.abs()], -1)


def leveled(key: Tensor) -> Tensor:
    """The baseline."""
    squares = key.square().sum(-1, keepdim=True)
    return torch.cat([key, (squares.amax(-2, keepdim=True) - squares).sqrt()], -1)


def _level_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *shape, longest=3.0, dtype=torch.float64) -> Case:
        """Directions at random; lengths that differ, or rounding decides a root of nearly 0."""
        key = rng.normal(size=shape)
        lengths = rng.permuted(
            np.broadcast_to(np.linspace(1, longest, shape[-2]), shape[:-1]), axis=-1
        )
        factors = 1 + np.arange(math.prod(shape[:-2])).reshape(*shape[:-2], 1)  # by sample
        key *= (lengths * factors / np.linalg.norm(key, axis=-1))[..., None]
        return Case(label, {"key": key}, dtype)

    by_hand = {"key": np.array([[3.0, 4.0], [0.0, 3.0], [5.0, 0.0], [0.0, 0.0]])}
    return [
        Case("lengths 5, 3, 5 and 0", by_hand),
        case("three keys", 3, 4),
        case("as many keys as numbers", 5, 5),
        case("a batch, one sample longer than the other", 2, 4, 3),
        case("a batch of heads", 2, 3, 5, 4),
        case("a single key", 1, 3),
        case("many samples", 40, 2, 5),
        case("large keys", 4, 6, longest=3000.0),
        case("float32", 3, 6, 8, dtype=torch.float32),
    ]


def _kept(run: Run, case: Case) -> Problem | None:
    key, got = case.arguments["key"], run.value(case)
    slack = torch.finfo(case.dtype).eps * float(np.abs(key).max())
    return compare(key, got[..., :-1], slack, "the first d numbers")


def _equal_lengths(run: Run, case: Case) -> Problem | None:
    got = run.value(case)
    squares = np.square(got[..., :-1]).sum(-1) + got[..., -1]
    expected = np.broadcast_to(squares.max(-1, keepdims=True), squares.shape)
    slack = 2 * case.rounding(got.shape[-1]) * float(squares.max())  # both sides are sums
    return compare(expected, squares, slack, "squared lengths")


@mistake(
    "every key divided by its norm",
    rejected_by="the keys stay what they were",
    cause="Normalizing changes the keys; only the appended feature may make the norms equal.",
)
def every_key_divided_by_its_length(key):
    return torch.cat([key / key.norm(dim=-1, keepdim=True).clamp(min=1e-30), 0 * key[..., :1]], -1)


@mistake(
    "the missing norm, not its square",
    rejected_by="one norm for all keys of a sample",
    cause="The largest norm minus the key's own: a new feature adds to the square of the norm.",
)
def what_is_missing_in_length(key):
    return torch.cat(
        [
            key,
            key.norm(dim=-1, keepdim=True).amax(-2, keepdim=True) - key.norm(dim=-1, keepdim=True),
        ],
        -1,
    )


@mistake(
    "a root of slightly less than 0",
    rejected_by="finite numbers",
    cause="Rounding can make the difference of two equal squared norms slightly negative, and "
    "its root is then NaN.",
)
def root_of_slightly_less_than_0(key):
    return torch.cat(
        [
            key,
            (
                key.norm(dim=-1, keepdim=True).amax(-2, keepdim=True).square()
                - key.square().sum(-1, keepdim=True)
            ).sqrt(),
        ],
        -1,
    )


@mistake(
    "the root forgotten",
    rejected_by="one norm for all keys of a sample",
    cause="The difference of the squared norms is the square of the number to append.",
)
def root_forgotten(key):
    return torch.cat([key, leveled(key)[..., -1:].square()], -1)


@mistake(
    "the largest norm of the whole batch",
    rejected_by="equals the reference",
    cause="max() runs over everything; amax(-2, keepdim=True) runs over one sample.",
)
def longest_key_of_the_whole_batch(key):
    return torch.cat([key, ((s := key.square().sum(-1, keepdim=True)).max() - s).sqrt()], -1)


LEVEL = Spec(
    name="hw02.level",
    statement="level(key): each key with one feature more, at least 0, such that all keys of a "
    "sample have the same norm, and none is larger than necessary. (*batch, S, d) -> (*batch, S, "
    "d + 1)",
    required=("key",),
    reference=_level,
    baseline=leveled,
    read=_last_squared,
    differentiable=False,
    cases=_level_cases,
    checks=(
        Check(
            "finite numbers",
            "NaN is 0/0 or the root of a negative number: the same square, computed in two ways, "
            "may differ in its last digit.",
            finite,
        ),
        Check(
            "the keys stay what they were",
            "The first d features are the old key, so a query with a 0 appended keeps its scores.",
            _kept,
        ),
        Check(
            "one norm for all keys of a sample",
            "The squared norms of a sample's new keys must be equal. Squares add up, norms do "
            "not.",
            _equal_lengths,
        ),
    ),
    mutants=mistakes(
        every_key_divided_by_its_length, what_is_missing_in_length, root_of_slightly_less_than_0,
        root_forgotten, longest_key_of_the_whole_batch
    ),
    chapter=2,
    points=2,
)  # fmt: skip

# --- The scale for other inputs -------------------------------------------------------------------


def _scale_for(d, query_mean, query_std, key_mean, key_std):
    """By counting: entries that are mean + std or mean - std, all combinations equally often."""
    wide = np.longdouble
    signs = list(itertools.product((-1, 1), repeat=d))
    queries = [[wide(query_mean) + s * wide(query_std) for s in row] for row in signs]
    keys = [[wide(key_mean) + s * wide(key_std) for s in row] for row in signs]
    total = wide(0)
    for query in queries:
        row = [sum(a * b for a, b in zip(query, key, strict=True)) for key in keys]
        middle = sum(row) / len(row)
        total += sum((score - middle) ** 2 for score in row) / len(row)
    return np.float64(1 / np.sqrt(total / len(queries)))


def scale_for_rows(d, query_mean, query_std, key_mean, key_std):
    """The baseline."""
    wide = (
        torch.tensor(number, dtype=torch.float64) for number in (query_mean, query_std, key_std)
    )
    query_mean, query_std, key_std = wide
    return 1 / (key_std * (d * (query_std.square() + query_mean.square())).sqrt())


@mistake(
    "all scores in one pot",
    rejected_by="equals the reference",
    cause="This is the variance over all queries and keys. A shift of a whole row does not "
    "count, because the softmax normalizes each row by itself.",
)
def _all_scores_scale(d, query_mean, query_std, key_mean, key_std):
    both = (query_std**2 + query_mean**2) * (key_std**2 + key_mean**2)
    return 1 / math.sqrt(d * (both - query_mean**2 * key_mean**2))


def _scale_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, d, *moments) -> Case:
        names = ("query_mean", "query_std", "key_mean", "key_std")
        numbers = zip(names, map(float, moments), strict=True)
        return Case(label, {"d": d, **dict(numbers)})

    return [
        case("queries of 0 and 2, keys of -1 and 1", 2, 1, 1, 0, 1),
        case("one number", 1, 0, 1, 0, 1),
        case("the premise of the paper", 4, 0, 1, 0, 1),
        case("other standard deviations", 3, 0, 2, 0, 0.5),
        case("keys with a mean", 3, 0, 1, 2, 1),
        case("queries with a mean", 5, -3, 1, 0, 1),
        case("small everything", 4, 1e-3, 2e-3, 5e-3, 1e-3),
        case("random", 4, *rng.uniform(0.5, 2, size=4)),
        case("queries that hardly differ", 3, 1.5, 0.1, 0.5, 2),
    ]


def _halves(run: Run, case: Case, **changes) -> Problem | None:
    """The scale of changed arguments is half of the scale; neither need be the right one."""
    half, got = float(run.value(case)) / 2, float(run.value(case, **changes))
    if abs(got - half) <= run.expected(case)[1]:  # half of it for either
        return None
    before, after = (_call(arguments) for arguments in (case.arguments, case.arguments | changes))
    return Problem(f"half of your {before} = {2 * half:.6g}, so {half:.6g}", f"{after} = {got:.6g}")


def _call(arguments) -> str:
    return f"scale_for({', '.join(f'{number:.4g}' for number in arguments.values())})"


def _four_times_wider(run: Run, case: Case) -> Problem | None:
    return _halves(run, case, d=4 * case.arguments["d"])


def _twice_the_keys(run: Run, case: Case) -> Problem | None:
    return _halves(
        run, case, **{name: 2 * case.arguments[name] for name in ("key_mean", "key_std")}
    )


@mistake(
    "one over the root of d",
    rejected_by="keys of twice the size, half the scale",
    cause="The assumptions of 1/sqrt(d) do not hold here.",
)
def one_over_the_root_of_d(d, query_mean, query_std, key_mean, key_std):
    return d**-0.5


@mistake(
    "the variance for its root",
    rejected_by="four times the dimension, half the scale",
    cause="A factor enters the variance squared, so the scores are divided by the root of the "
    "variance.",
)
def variance_for_its_root(d, query_mean, query_std, key_mean, key_std):
    return scale_for_rows(d, query_mean, query_std, key_mean, key_std) ** 2


@mistake(
    "the mean of the queries forgotten",
    rejected_by="equals the reference",
    cause="Each entry of a key is multiplied by an entry of the query, and the query's mean "
    "contributes to its square: E[q^2] = std^2 + mean^2.",
)
def mean_of_the_queries_forgotten(d, query_mean, query_std, key_mean, key_std):
    return 1 / (query_std * key_std * math.sqrt(d))


SCALE = Spec(
    name="hw02.scale_for",
    statement="scale_for(d, query_mean, query_std, key_mean, key_std): the number that q.k must be "
    "multiplied by for the scores of one query with many keys to have variance 1, on average over "
    "queries. All entries are independent, those of queries and of keys with this mean and standard "
    "deviation. -> a number",
    required=("d", "query_mean", "query_std", "key_mean", "key_std"),
    reference=_scale_for,
    baseline=scale_for_rows,
    differentiable=False,
    cases=_scale_cases,
    usual=(SHAPE,),
    checks=(
        Check(
            "four times the dimension, half the scale",
            "The variance of a sum of independent terms grows with their number, and its root "
            "with the root.",
            _four_times_wider,
        ),
        Check(
            "keys of twice the size, half the scale",
            "Multiplying every key by 2 multiplies every score by 2.",
            _twice_the_keys,
        ),
    ),
    mutants=mistakes(
        one_over_the_root_of_d, variance_for_its_root, mean_of_the_queries_forgotten,
        _all_scores_scale
    ),
    chapter=3,
    points=2,
)  # fmt: skip

# --- Which scores sharpen? ------------------------------------------------------------------------


def _entropy_gradient(scores):
    answer = np.zeros_like(scores)
    for row in np.ndindex(scores.shape[:-1]):
        weights, total = reference.softmax(scores[row]), reference.log_sum_exp(scores[row])
        logs = [s - total if p > 0 else 0 * p for s, p in zip(scores[row], weights, strict=True)]
        entropy = -sum(p * log for p, log in zip(weights, logs, strict=True))
        answer[row] = [-p * (log + entropy) for p, log in zip(weights, logs, strict=True)]
    return answer


def entropy_slope(scores: Tensor) -> Tensor:
    """The baseline."""
    logs = scores.log_softmax(-1)
    weights = logs.exp()
    terms = weights * logs.masked_fill(weights == 0, 0.0)
    return weights * terms.sum(-1, keepdim=True) - terms


def _tame_logs(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Weights, and their logarithms with 0 for that of 0."""
    logs = scores.log_softmax(-1)
    return logs.exp(), logs.masked_fill(logs.exp() == 0, 0.0)


@mistake(
    "each weight alone",
    rejected_by="raising all scores changes nothing",
    cause="-p (ln p + 1): as if a score changed only its own weight, and by p.",
)
def _no_mean(scores: Tensor) -> Tensor:
    weights, logs = _tame_logs(scores)
    return -weights * (logs + 1)


@mistake(
    "only the diagonal of the Jacobian",
    rejected_by="raising all scores changes nothing",
    cause="p (1 - p) is how a score changes its own weight. It changes all the others too.",
)
def _only_itself(scores: Tensor) -> Tensor:
    weights, logs = _tame_logs(scores)
    return -weights * (1 - weights) * (logs + 1)


@mistake(
    "the logarithm of 0",
    rejected_by="finite numbers",
    cause="0 times -inf is NaN: the logarithm of a weight that has already underflowed to 0.",
)
def _log_of_zero(scores: Tensor) -> Tensor:
    weights = scores.softmax(-1)
    entropy = -(weights * weights.log()).sum(-1, keepdim=True)
    return -weights * (weights.log() + entropy)


def _entropy_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *shape, spread=1.0, dtype=torch.float64) -> Case:
        return Case(label, {"scores": spread * rng.normal(size=shape)}, dtype)

    hidden = case("some keys hidden by -inf", 2, 3, 6)
    hidden.arguments["scores"][..., 1] = -np.inf
    hidden.arguments["scores"][0, 0, 3:] = -np.inf
    even = np.array([[1.0, 1.0, 1.0], [0.0, 1.0, 3.0]])
    return [
        Case("weights of a quarter and three quarters", {"scores": np.array([0.0, np.log(3.0)])}),
        case("a row", 5),
        Case("equal scores in one row of two", {"scores": even}),
        case("as many rows as keys", 4, 4),
        case("a batch of heads", 2, 3, 4, 7),
        case("nearly decided", 3, 5, spread=10.0),
        case("many keys", 2, 40),
        case("scores in the thousands", 3, 6, spread=2000.0),
        hidden,
        case("one key", 3, 1),
        case("float32", 4, 9, dtype=torch.float32),
    ]


def _entropy_slack(case: Case) -> float:
    """Logarithms of weights may be differences of two large numbers; twice they are in p (ln p + H)."""
    scores = case.arguments["scores"]
    largest = np.max(np.abs(scores), initial=0.0, where=np.isfinite(scores))
    return of_exponents(case, largest) * (2 + math.log(scores.shape[-1]))


@mistake(
    "the other sign",
    rejected_by="equals the reference",
    cause="The minus in front of the sum is missing.",
)
def other_sign(scores):
    return -entropy_slope(scores)


@mistake(
    "bits for nats",
    rejected_by="equals the reference",
    cause="log2 in place of ln.",
)
def bits_for_nats(scores):
    return entropy_slope(scores) / math.log(2)


ENTROPY = Spec(
    name="hw02.entropy_gradient",
    statement="entropy_gradient(scores): the derivatives of H = -sum p ln p, p = softmax(scores), by each "
    "score, row by row; 0 ln 0 counts as 0, and -inf hides a key. (*batch, S) -> (*batch, S)",
    required=("scores",),
    reference=_entropy_gradient,
    slack=_entropy_slack,
    baseline=entropy_slope,
    differentiable=False,
    cases=_entropy_cases,
    checks=(
        Check(
            "finite numbers",
            "A weight that is 0, or underflows to 0, adds nothing to the entropy, and its score "
            "has the derivative 0.",
            finite,
        ),
        Check(
            "raising all scores changes nothing",
            "A shift of the whole row does not change the softmax, so the derivatives of a row "
            "sum to 0.",
            sums_of_rows,
        ),
    ),
    mutants=mistakes(_log_of_zero, _no_mean, _only_itself, other_sign, bits_for_nats),
    chapter=3,
    points=3,
)  # fmt: skip

# --- The hunt -------------------------------------------------------------------------------------


def in_double(scores, scale):
    """torch's own, in float64."""
    wide = scores.double()
    return torch.softmax((wide - wide.amax(-1, keepdim=True)) * scale, -1).to(scores.dtype)


def by_exponentials(scores, scale):
    """Written out, in float32 at least; the keys from the last to the first."""
    wide = (scores.float() if scores.dtype == torch.float16 else scores).flip(-1)
    exponentials = ((wide - wide.amax(-1, keepdim=True)) * scale).exp()
    return (exponentials / exponentials.sum(-1, keepdim=True)).flip(-1).to(scores.dtype)


def by_logarithms(scores, scale):
    """The logarithm of the sum, then one exponential."""
    wide = scores.double()
    wide = (wide - wide.amax(-1, keepdim=True)) * scale
    return (wide - wide.logsumexp(-1, keepdim=True)).exp().to(scores.dtype)


def _wide(scores: Tensor) -> Tensor:
    return scores.float() if scores.dtype == torch.float16 else scores


@mistake(
    "the largest magnitude subtracted",
    rejected_by="the hunt",
    symptom="A row of scores that are all far below zero becomes 0/0.",
    cause="abs().amax() in place of amax(): the largest score must be subtracted.",
)
def _largest_magnitude(scores, scale):
    scaled = _wide(scores) * scale
    largest = scaled.masked_fill(scaled.isinf(), 0.0).abs().amax(-1, keepdim=True)
    exponentials = (scaled - largest).exp()
    return (exponentials / exponentials.sum(-1, keepdim=True)).to(scores.dtype)


@mistake(
    "an axis counted from the front",
    rejected_by="the hunt",
    symptom="Right for one matrix of scores, wrong for a batch of them.",
    cause="softmax(dim=1): counted from the end, the last axis is always dim=-1.",
)
def _second_axis(scores, scale):
    return torch.softmax(_wide(scores) * scale, min(1, scores.ndim - 1)).to(scores.dtype)


@mistake(
    "the caller's scores scaled",
    rejected_by="the hunt",
    symptom="The output is right, but the second call with the same tensor is not.",
    cause="scores.mul_ works in place, on the caller's tensor.",
)
def _in_place(scores, scale):
    kept = in_double(scores, scale)
    scores.mul_(scale)
    return kept


@mistake(
    "float32 is returned",
    rejected_by="the hunt",
    symptom="The input is float16, the output is float32 and needs twice the memory.",
    cause="The float32 result is not converted back to the dtype of the scores.",
)
def _not_back(scores, scale):
    return torch.softmax(_wide(scores) * scale, -1)


@mistake(
    "scaled in half precision",
    rejected_by="the hunt",
    symptom="NaN in float16 for scores that are finite.",
    cause="scores * scale exceeds 65504 before the maximum is subtracted or the dtype is changed.",
)
def _half_overflow(scores, scale):
    scaled = scores * scale
    exponentials = (_wide(scaled) - _wide(scaled).amax(-1, keepdim=True)).exp()
    return (exponentials / exponentials.sum(-1, keepdim=True)).to(scores.dtype)


@mistake(
    "not quite masked",
    rejected_by="the hunt",
    symptom="-inf masks a key most of the time.",
    cause="-inf is replaced by -10000, which is only a low score among others.",
)
def _not_quite_hidden(scores, scale):
    return in_double(scores.clamp(min=-1e4), scale)


@mistake(
    "a small number for safety",
    rejected_by="the hunt",
    symptom="Rows sum to 1 in six digits, but float64 has fifteen.",
    cause="1e-6 is added to the sum, which is never below 1 once the largest score is subtracted.",
)
def _small_number(scores, scale):
    wide = scores.double()
    exponentials = ((wide - wide.amax(-1, keepdim=True)) * scale).exp()
    return (exponentials / (exponentials.sum(-1, keepdim=True) + 1e-6)).to(scores.dtype)


@mistake(
    "exponentials that overflow",
    rejected_by="the hunt",
    symptom="NaN for large scores.",
    cause="exp is taken before anything is subtracted: inf / inf.",
)
def overflowing(scores, scale):
    return exponentials_that_overflow(_wide(scores) * scale).to(scores.dtype)


@mistake(
    "one maximum for the whole batch",
    rejected_by="the hunt",
    symptom="A row whose scores are far below those of another row in its batch becomes 0/0.",
    cause="scores.max() where each row needs its own largest score.",
)
def one_maximum_for_the_whole_batch(scores, scale):
    return the_maximum_of_the_batch(_wide(scores) * scale).to(scores.dtype)


@mistake(
    "the scale for a temperature",
    rejected_by="the hunt",
    symptom="A larger scale makes the weights more uniform.",
    cause="The scores are divided by the scale instead of being multiplied by it.",
)
def scale_for_a_temperature(scores, scale):
    return in_double(scores, 1 / scale)


HUNT = Hunt(
    name="hw02.hunt",
    function="test_softmax",
    statement="test_softmax(implementation): raises unless implementation(scores, scale) is the softmax of "
    "scores * scale along the last axis, for scores (*batch, S) in float16, float32 or float64 and a "
    "scale above 0, in the dtype of the scores and as exact as it allows. Each row has a finite score; "
    "-inf hides a key.",
    right={
        "torch's own, in float64": in_double,
        "written out": by_exponentials,
        "by logarithms": by_logarithms,
    },
    mutants=mistakes(
        overflowing, one_maximum_for_the_whole_batch, _largest_magnitude,
        _second_axis, _in_place, scale_for_a_temperature, _not_back, _half_overflow,
        _not_quite_hidden, _small_number
    ),
    points=4,
    minutes=65,
    difficulty="core",
    chapter=3,
)  # fmt: skip

AUTOMATIC = (  # when marked, H.backward(), torch.func and torch.autograd.functional end here too
    "torch.autograd.grad", "torch.autograd.backward", "torch.func.grad",
    "torch.autograd.forward_ad.make_dual",
)  # fmt: skip

ASSIGNMENT = Assignment(
    name="hw02",
    title="How large is a score?",
    weeks="2",
    chapters=(2, 3),
    parts=(
        Task(WINDOW, "windowed", 15, "warm-up"),
        Task(LEVEL, "level", 20, "core"),
        Task(SCALE, "scale_for", 20, "core"),
        Task(ENTROPY, "entropy_gradient", 35, "challenge", AUTOMATIC),
        HUNT,
        Written(
            "hw02-additive-scale", "explanation", 2, 20,
            "1 point: tanh lies between -1 and 1, so the absolute value of an additive score is "
            "at most the sum of |w_v|, whatever the dimensions of query and key; inside the tanh "
            "large dimensions can still make the numbers large, and then it saturates (half a "
            "point for one of the two). 1 point: the dimension that matters is h, the number of "
            "terms; with independent entries of w_v the variance grows with h, and the "
            "initialization (w_v with standard deviation about 1/sqrt(h)) divides by the root: "
            "the scale is in the weights.",
        ),
        Written(
            "hw02-every-row", "explanation", 2, 20,
            "1 point: what is lost: no query can be more or less certain than another; twice the "
            "query gives the same weights, so training cannot make a row sharper or flatter "
            "through its norm. 1 point: two keys: the standardized scores are 1 and -1 whatever "
            "the difference, so the larger weight is 1 / (1 + e^-2) = 0.88, never more and never "
            "less, except for equal scores. Half a point for a bound without the number.",
        ),
        Written(
            "hw02-keys-seen", "experiment", 3, 45,
            "1 point: the table or plot: at least five values of sigma and three numbers of "
            "keys, medians over many rows. 1 point: for small sigma the fraction does not depend "
            "on n and is near exp(-sigma^2 / 2); the approximation is off by 10 % near sigma = "
            "1.2, 1.8 and 2.3 for 64, 1024 and 16384 keys (0.2 more or less is sampling). 1 "
            "point: for large sigma the effective number of keys decreases to a few, and later "
            "the more keys there are, with numbers and the reason (at sqrt(2 ln n) the formula "
            "predicts one key and beyond it less than one, which is impossible).",
        ),
    ),
)  # fmt: skip
