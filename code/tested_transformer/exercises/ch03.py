"""Exercises of chapter 3: scaling."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from .. import reference
from ..functional.scaling import perplexity
from ..specs.checks import any_batch, any_dtype, transposed, varied
from ..specs.compare import Problem, compare
from ..specs.draw import Draw
from ..specs.mistakes import mistake, mistakes
from ..specs.online_softmax.spec import Watched
from ..specs.scaling.spec import SCALED_SCORES, SOFTMAX
from ..specs.spec import EQUAL, UNTOUCHED, Case, Check, Run, Spec


def _without(spec: Spec, option: str):
    """The cases that the Spec draws by chance, without this option."""

    def combine(draw: Draw) -> Case:
        case = spec.combine(draw)
        return replace(case, arguments={n: a for n, a in case.arguments.items() if n != option})

    return combine


STABLE_SOFTMAX = SOFTMAX.narrowed(
    lambda case: "temperature" not in case.arguments,
    name="ch03.softmax",
    statement="softmax(scores): exp(s_i) over the sum of these, for scores of any size; without "
    "calling a softmax. scores (*batch, S) -> (*batch, S)",
    mutants=[mutant for mutant in SOFTMAX.mutants if "temperature" not in mutant.name],
    combine=_without(SOFTMAX, "temperature"),
    num_drawn=5,
    points=2,
)

SCALED_IN_TIME = SCALED_SCORES.narrowed(
    lambda case: "scale" not in case.arguments,
    name="ch03.scaled_scores",
    statement="scaled_scores(query, key): q.k / sqrt(d) for each pair, in the dtype of the query, "
    "finite whenever the answer is. (*batch, L, d), (*batch, S, d) -> (*batch, L, S)",
    combine=_without(SCALED_SCORES, "scale"),
    num_drawn=4,
    points=1,
)

# --- The gradient that gets through ---------------------------------------------------------------


def _backward_reference(weights, gradient):
    jacobian = reference.jacobian_of_weights(weights)
    result = np.zeros_like(gradient)
    for row in np.ndindex(gradient.shape[:-1]):
        for j in range(gradient.shape[-1]):
            result[(*row, j)] = sum(gradient[row] * jacobian[row][:, j])
    return result


def _backward_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *shape, spread=1.0, dtype=torch.float64) -> Case:
        weights = reference.tempered_softmax(spread * rng.normal(size=shape))
        return Case(label, {"weights": weights, "gradient": rng.normal(size=shape)}, dtype)

    even = {"weights": np.array([0.5, 0.5]), "gradient": np.array([1.0, 0.0])}
    return [
        Case("two equal weights", even),
        case("a row", 4),
        case("rows", 3, 5),
        case("as many rows as keys", 4, 4),
        case("a batch of heads", 2, 3, 4, 5),
        # beside a row that is not: alone its answer would be what is left when everything cancels
        case("a saturated row", 2, 4, spread=np.array([[30.0], [1.0]])),
        case("many keys", 40),
        case("float32", 3, 6, dtype=torch.float32),
        case("no keys", 3, 0),
        case("one key", 3, 1),
        case("bfloat16", 3, 6, dtype=torch.bfloat16),
        case("float16", 2, 5, dtype=torch.float16),
    ]


def _no_jacobian(run: Run, case: Case) -> Problem | None:
    keys = case.arguments["weights"].shape[-1]
    with Watched(lambda shape: shape.numel() >= keys**2) as watched:
        run.answer(case.tensors())
    wanted = f"no tensor of {keys} x {keys} numbers"
    return Problem(wanted, f"shape {watched.found}") if watched.found else None


def _nothing_in_sum(run: Run, case: Case) -> Problem | None:
    """Nothing is left but what the weights' own sum is off from 1."""
    given = {name: a.astype(np.float64) for name, a in case.arrays().items()}
    gradients, weights = run.value(case), given["weights"]
    mean = (weights * given["gradient"]).sum(-1, keepdims=True)
    left = mean * (1 - weights.sum(-1, keepdims=True))
    sums = gradients.sum(-1, keepdims=True)
    return compare(
        left, sums, weights.shape[-1] * run.expected(case)[1], "the sum of the gradients"
    )


def _constant_gradient(run: Run, case: Case) -> Problem | None:
    """Nothing but what the weights' sum, which was rounded, is off from 1."""
    constant = varied(case, "constant", gradient=np.ones_like(case.arguments["gradient"]))
    got, weights = run.value(constant), case.arrays()["weights"]
    left = float(np.abs(1 - weights.sum(-1)).max(initial=0.0))
    return compare(np.zeros_like(got), got, run.expected(constant)[1] + left)


def _backward_by_chance(draw: Draw) -> Case:
    shape = (*any_batch(draw), draw.one_of(4, 1, 6))
    weights = reference.tempered_softmax(draw.numbers.normal(size=shape))
    arguments = {"weights": weights, "gradient": draw.numbers.normal(size=shape)}
    return Case("sizes by chance", draw.one_of(arguments, transposed(arguments)), any_dtype(draw))


@mistake(
    "only p (1 - p)",
    rejected_by="a constant gradient gives nothing",
    cause="Only the diagonal of the Jacobian: that is the derivative of a sigmoid.",
)
def only_p_times_1_minus_p(weights, gradient):
    return gradient * weights * (1 - weights)


@mistake(
    "the plain mean subtracted",
    rejected_by="what one score gains the others lose",
    cause="What is subtracted is the gradient's mean weighted by p, not the plain mean.",
)
def plain_mean_subtracted(weights, gradient):
    return weights * (gradient - gradient.mean(-1, keepdim=True))


@mistake(
    "the factor p forgotten",
    rejected_by="what one score gains the others lose",
    cause="p_j (g_j - sum p g) without the p_j in front.",
)
def factor_p_forgotten(weights, gradient):
    return gradient - (weights * gradient).sum(-1, keepdim=True)


@mistake(
    "the Jacobian formed",
    rejected_by="the Jacobian is never formed",
    cause="diag(p) - p p^T is made, S x S numbers for each row, only to be multiplied.",
)
def jacobian_formed(weights, gradient):
    jacobian = torch.diag_embed(weights) - weights[..., :, None] * weights[..., None, :]
    return (jacobian @ gradient[..., None])[..., 0]


SOFTMAX_BACKWARD = Spec(
    name="ch03.softmax_backward",
    statement="softmax_backward(weights, gradient): the gradient with respect to the scores, from the "
    "softmax's weights and the gradient with respect to them, without forming the (S, S) Jacobian. "
    "(*batch, S), (*batch, S) -> (*batch, S)",
    required=("weights", "gradient"),
    reference=_backward_reference,
    baseline=lambda weights, gradient: (
        weights * (gradient - (weights * gradient).sum(-1, keepdim=True))
    ),
    cases=_backward_cases,
    combine=_backward_by_chance,
    num_drawn=4,
    checks=(
        Check(
            "a constant gradient gives nothing",
            "If every weight is wanted equally, no score should move: the weights always sum to 1.",
            _constant_gradient,
        ),
        Check(
            "what one score gains the others lose",
            "The gradients of a row of scores sum to 0: raising all of them changes no weight.",
            _nothing_in_sum,
        ),
        Check(
            "the Jacobian is never formed",
            "S x S numbers for each row: p_j (g_j - sum p g) needs no more than S.",
            _no_jacobian,
            when=lambda case: case.label == "many keys",
        ),
    ),
    mutants=mistakes(
        only_p_times_1_minus_p, plain_mean_subtracted, factor_p_forgotten, jacobian_formed
    ),
    chapter=3,
    points=3,
)

# --- The gap --------------------------------------------------------------------------------------


def _gap_reference(weight, num_keys):
    return np.array([np.log(w / (1 - w)) + np.log(w.dtype.type(num_keys - 1)) for w in weight])


def _gap_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, weight, num_keys) -> Case:
        return Case(label, {"weight": np.array(weight), "num_keys": num_keys})

    return [
        case("a half, two keys", [0.5], 2),
        case("nine tenths, two keys", [0.9], 2),
        case("a tenth and a half, ten keys", [0.1, 0.5], 10),
        case("several", [0.2, 0.5, 0.99], 50),
        case("random", rng.uniform(0.05, 0.95, size=7), 1000),
        case("small and large weights", [1e-6, 1 - 1e-6], 7),
    ]


def _gap_gives_weight(run: Run, case: Case) -> Problem | None:
    gaps, others = run.value(case), case.arguments["num_keys"] - 1
    got = 1 / (1 + others * np.exp(-gaps))
    # the weight changes by at most a quarter of what the gap is off by
    return compare(case.arguments["weight"], got, run.expected(case)[1] + case.rounding(2))


@mistake(
    "always two keys",
    rejected_by="the gap gives the weight back",
    cause="The logistic function's inverse: there, one loser; here, num_keys - 1.",
)
def always_two_keys(weight, num_keys):
    return (weight / (1 - weight)).log()


@mistake(
    "the winner counted among the losers",
    rejected_by="the gap gives the weight back",
    cause="num_keys in place of num_keys - 1.",
)
def winner_counted_among_the_losers(weight, num_keys):
    return (weight * num_keys / (1 - weight)).log()


SCORE_GAP = Spec(
    name="ch03.score_gap",
    statement="score_gap(weight, num_keys): by how much the winner's score must exceed that of the "
    "num_keys - 1 equal losers for the winner to get this weight. weight (N), an int -> (N)",
    required=("weight", "num_keys"),
    reference=_gap_reference,
    baseline=lambda weight, num_keys: (weight * (num_keys - 1) / (1 - weight)).log(),
    differentiable=False,  # a number to read off, loops over math.log included
    cases=_gap_cases,
    checks=(
        Check(
            "the gap gives the weight back",
            "A softmax over one `gap` and num_keys - 1 zeros must give the winner `weight`.",
            _gap_gives_weight,
        ),
    ),
    mutants=mistakes(always_two_keys, winner_counted_among_the_losers),
    chapter=3,
    points=2,
)

# --- The scale in the weights ---------------------------------------------------------------------


def _fold_reference(weight, bias, num_heads):
    root = np.sqrt(weight.dtype.type(weight.shape[1] // num_heads))
    return np.concatenate([weight / root, bias[None] / root])


def _fold_read(answer, given) -> Tensor:
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise TypeError("the answer: expected two tensors, (weight, bias)")
    return torch.cat([answer[0], answer[1][None]])


def _fold_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, width, num_heads, dtype=torch.float64) -> Case:
        arguments = {"weight": rng.normal(size=(width + 1, width)), "bias": rng.normal(size=width)}
        return Case(label, {**arguments, "num_heads": num_heads}, dtype)

    return [
        case("one head", 4, 1),
        case("two heads", 6, 2),
        case("four heads", 8, 4),
        case("heads of size 1", 3, 3),
        case("the size of the paper's head", 128, 2, torch.float32),
    ]


def _same_scores(run: Run, case: Case) -> Problem | None:
    a = case.arrays()
    width, heads = a["weight"].shape[1], a["num_heads"]
    x = np.linspace(-1, 1, len(a["weight"]))
    key = np.cos(np.arange(width)).reshape(heads, -1)
    expected = (x @ a["weight"] + a["bias"]).reshape(heads, -1) * key / math.sqrt(width // heads)
    folded = run.value(case)
    got = (x @ folded[:-1] + folded[-1]).reshape(heads, -1) * key
    moved = np.abs(x).sum() + 1  # by what an entry of weight and bias that is off moves a query
    slack = run.expected(case)[1] * moved * np.abs(key).sum(-1)
    return compare(expected.sum(-1).astype(float), got.sum(-1).astype(float), float(slack.max()))


@mistake(
    "the bias left out",
    rejected_by="the unscaled scores are the scaled ones",
    cause="The whole query is divided by sqrt(d), and the bias is a part of it.",
)
def bias_left_out(weight, bias, num_heads):
    return (weight / (weight.shape[1] // num_heads) ** 0.5, bias)


@mistake(
    "the root of the model's width",
    rejected_by="the unscaled scores are the scaled ones",
    cause="sqrt(D) where the size of one head, D / num_heads, belongs under the root.",
)
def root_of_the_model_width(weight, bias, num_heads):
    return (
        weight / weight.shape[1] ** 0.5,
        bias / weight.shape[1] ** 0.5,
    )


@mistake(
    "divided by the head size",
    rejected_by="the unscaled scores are the scaled ones",
    cause="d for sqrt(d): as if queries and keys were both divided by the root.",
)
def divided_by_the_head_size(weight, bias, num_heads):
    return (
        weight / (weight.shape[1] // num_heads),
        bias / (weight.shape[1] // num_heads),
    )


FOLD = Spec(
    name="ch03.fold",
    statement="fold(weight, bias, num_heads): new (weight, bias) of the query projection "
    "x @ weight + bias, such that attention without a scale gives what the old ones gave with "
    "1/sqrt(d); d is the size of one head. weight (D_in, D), bias (D) -> the same shapes",
    required=("weight", "bias", "num_heads"),
    reference=_fold_reference,
    baseline=lambda weight, bias, num_heads: (
        weight / math.sqrt(weight.shape[1] // num_heads),
        bias / math.sqrt(weight.shape[1] // num_heads),
    ),
    read=_fold_read,
    cases=_fold_cases,
    checks=(
        Check(
            "the unscaled scores are the scaled ones",
            "(x W' + b').k must equal (x W + b).k / sqrt(d) for each head, with d = D / num_heads.",
            _same_scores,
        ),
    ),
    mutants=mistakes(bias_left_out, root_of_the_model_width, divided_by_the_head_size),
    chapter=3,
    points=2,
)

# --- The temperature that gives a target ----------------------------------------------------------


def _search(seen, target: float, scores: Tensor) -> float:
    """The temperature at which the growing function `seen` reaches the target, by halving.

    At a hundredth of the gap between the two best scores one key is seen, at a thousand times their
    range all keys are.
    """
    best, second = scores.topk(2).values.tolist()
    low, high = (best - second) / 100, 1000 * (best - scores.min().item())
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if seen(middle) < target else (low, middle)
    return math.sqrt(low * high)


def _weights(scores: Tensor, temperature: float) -> Tensor:
    return torch.softmax(scores.double() / temperature, dim=-1)


def right_temperature(scores: Tensor, target: float) -> float:
    """The temperature at which the softmax sees as many keys."""
    return _search(lambda t: perplexity(_weights(scores, t)).item(), target, scores)


@mistake(
    "the entropy in place of its exponential",
    rejected_by="the softmax sees as many keys as asked for",
    cause="The target was compared with the entropy; the perplexity is its exponential.",
)
def _entropy_is_target(scores: Tensor, target: float) -> float:
    return _search(lambda t: perplexity(_weights(scores, t)).log().item(), target, scores)


@mistake(
    "bits taken for nats",
    rejected_by="the softmax sees as many keys as asked for",
    cause="2 to the power of an entropy that was taken with the natural logarithm.",
)
def _bits_for_nats(scores: Tensor, target: float) -> float:
    return _search(lambda t: 2 ** perplexity(_weights(scores, t)).log().item(), target, scores)


@mistake(
    "another count of keys",
    rejected_by="the softmax sees as many keys as asked for",
    cause="1 / sum p^2 also counts keys, but it is not exp(entropy).",
)
def _inverse_of_squares(scores: Tensor, target: float) -> float:
    return _search(lambda t: 1 / _weights(scores, t).square().sum().item(), target, scores)


@mistake(
    "the scale for the temperature",
    rejected_by="the softmax sees as many keys as asked for",
    cause="1/temperature was returned: the number that multiplies the scores.",
)
def _scale_for_temperature(scores: Tensor, target: float) -> float:
    return 1 / right_temperature(scores, target)


def _keys_seen(answer, given) -> float:
    """What the judge compares: the keys seen at the temperature that was returned."""
    temperature = float(answer)
    if not temperature > 0:
        raise ValueError(f"temperature: expected a number above 0, got {temperature:.4g}")
    return perplexity(_weights(given["scores"], temperature)).item()


def _near_enough(case: Case) -> float:
    """The statement asks for no more."""
    return 0.0005


def _temperature_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, scores, target) -> Case:
        return Case(label, {"scores": np.asarray(scores), "target": target})

    return [
        case("three scores, two keys seen", [0.0, 1.0, 2.0], 2.0),
        case("ten scores, three keys seen", rng.normal(size=10), 3.0),
        case("ten scores, nearly all seen", rng.normal(size=10), 9.5),
        case("large scores", 30 * rng.normal(size=8), 4.0),
        case("small scores, nearly one seen", 0.1 * np.arange(6.0), 1.2),
        case("scores in the millions", 1e6 * rng.normal(size=6), 2.5),
        case("tiny scores", 1e-5 * rng.normal(size=6), 2.5),
    ]


TEMPERATURE = Spec(
    name="ch03.temperature",
    statement="temperature(scores, target): a temperature at which the softmax of scores / "
    "temperature sees `target` keys: its perplexity, exp(entropy), is within 0.0005 of the target. "
    "scores (S) of any size, without a tie at the top, 1 < target < S -> a number above 0",
    required=("scores", "target"),
    reference=lambda scores, target: np.asarray(float(target)),
    slack=_near_enough,  # no baseline: what rounding does is nothing beside it
    read=_keys_seen,
    cases=_temperature_cases,
    usual=(UNTOUCHED,),
    checks=(
        Check(
            "the softmax sees as many keys as asked for",
            "exp(entropy) of softmax(scores / temperature) must be the target; it grows with the "
            "temperature, so halving an interval finds it.",
            EQUAL.test,
        ),
    ),
    mutants=mistakes(
        _entropy_is_target, _bits_for_nats, _inverse_of_squares, _scale_for_temperature
    ),
    chapter=3,
    points=3,
)

EXERCISES = (STABLE_SOFTMAX, SOFTMAX_BACKWARD, SCORE_GAP, SCALED_IN_TIME, FOLD, TEMPERATURE)
