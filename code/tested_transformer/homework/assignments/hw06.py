"""Homework 6: normalization and the feed-forward network."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ... import reference
from ...errors import argument_error
from ...specs.compare import Problem, compare, unchanged
from ...specs.mistakes import mistake, mistakes
from ...specs.norms.mutants import (
    eps_outside_the_root,
    plain_layer_norm,
    squared_in_half_precision,
    squares_first,
)
from ...specs.spec import SHAPE, Case, Check, Run, Spec
from ..checks import right_with
from ..tasks import Assignment, Hunt, Task, Written

# --- 6.1: who is heard at the end -----------------------------------------------------------------


def _shares_reference(norm_placement, num_sublayers, variance):
    """The variance of every part of the stream, step by step; a norm divides all by their sum."""
    parts = [np.longdouble(1)]
    for _ in range(num_sublayers):
        parts.append(np.longdouble(variance))
        if norm_placement == "post":
            total = sum(parts)
            parts = [part / total for part in parts]
    return np.array(parts) / sum(parts)


def plain_shares(norm_placement, num_sublayers, variance):
    """The baseline."""
    after = torch.arange(num_sublayers, 0, -1, dtype=torch.float64)
    variance = torch.tensor(variance, dtype=torch.float64)  # so that its rounding is counted
    kept = 1 / (1 + variance)
    found = variance * (kept**after if norm_placement == "post" else torch.ones_like(after))
    first = kept**num_sublayers if norm_placement == "post" else torch.ones_like(kept)
    parts = torch.cat((first[None], found))
    return parts / parts.sum()


@mistake(
    "standard deviations for variances",
    rejected_by="the shares sum to 1",
    cause="Dividing by the root of the sum divides the variance by the sum.",
)
def deviations_shared(norm_placement, num_sublayers, variance):
    return plain_shares(norm_placement, num_sublayers, variance).sqrt()


@mistake(
    "a variance of 1 taken for granted",
    rejected_by="one sublayer",
    cause="The norm divides by 1 + variance, which is 2 in the chapter's example.",
)
def a_variance_of_one(norm_placement, num_sublayers, variance):
    return plain_shares(norm_placement, num_sublayers, 1.0)


@mistake(
    "float32 on the way",
    rejected_by="one sublayer",
    cause="torch.tensor([0.4]) is float32; converting it to float64 later restores no digit.",
)
def variance_in_float32(norm_placement, num_sublayers, variance):
    return plain_shares(norm_placement, num_sublayers, float(np.float32(variance)))


@mistake(
    "post-norm without norms",
    rejected_by="equals the reference",
    cause="In post-norm the stream is rescaled before the next sublayer adds to it.",
)
def never_normalized(norm_placement, num_sublayers, variance):
    return plain_shares("pre", num_sublayers, variance)


@mistake(
    "the wirings exchanged",
    rejected_by="equals the reference",
    cause="Post-norm normalizes after the sum, pre-norm before the sublayer and once at the end.",
)
def norm_placements_exchanged(norm_placement, num_sublayers, variance):
    return plain_shares({"pre": "post", "post": "pre"}[norm_placement], num_sublayers, variance)


@mistake(
    "the last sublayer first",
    rejected_by="equals the reference",
    cause="The outputs of the first sublayers have passed through the most norms.",
)
def last_sublayer_first(norm_placement, num_sublayers, variance):
    found = plain_shares(norm_placement, num_sublayers, variance)
    return torch.cat((found[:1], found[1:].flip(0)))


def _shares_cases(rng: np.random.Generator) -> list[Case]:

    def case(norm_placement, num_sublayers, variance) -> Case:
        given = {
            "norm_placement": norm_placement,
            "num_sublayers": num_sublayers,
            "variance": variance,
        }
        return Case(f"{norm_placement}-norm", given)

    return [
        case("pre", 1, 0.6),
        case("post", 1, 0.3),
        case("pre", 2, 1.0),
        case("post", 2, 1.0),
        case("post", 3, 0.25),
        case("pre", 5, 4.0),
        case("pre", 24, float(rng.uniform(0.1, 2))),
        case("post", 24, float(rng.uniform(0.1, 2))),
        case("pre", 0, 1.0),
        case("post", 0, 3.0),
    ]


def _whole(run: Run, case: Case) -> Problem | None:
    expected, tolerance = run.expected(case)
    sums = np.asarray(run.value(case).sum())
    return compare(
        np.asarray(expected.sum()), sums, len(expected) * tolerance, "the sum of the shares"
    )


def _one_sublayer(run: Run, case: Case) -> Problem | None:
    return compare(run.expected(case)[0], run.value(case), run.expected(case)[1], "the shares")


SHARES = Spec(
    name="hw06.shares",
    statement="shares(norm_placement, num_sublayers, variance): the shares of the embedding and of each sublayer, "
    'first to last, in the variance of what leaves the stack; norm_placement "post" or "pre"; the embedding '
    "has variance 1 and each sublayer adds something new of this variance; float64 (N + 1)",
    required=("norm_placement", "num_sublayers", "variance"),
    reference=_shares_reference,
    baseline=plain_shares,
    differentiable=False,
    cases=_shares_cases,
    usual=(SHAPE,),
    checks=(
        Check(
            "the shares sum to 1",
            "The parts are uncorrelated, so their variances add up to the total.",
            _whole,
        ),
        Check(
            "one sublayer",
            "After one sublayer there are two parts, of variance 1 and `variance`, in both norm "
            "placements.",
            _one_sublayer,
            when=lambda case: case.arguments["num_sublayers"] == 1,
        ),
    ),
    mutants=mistakes(
        deviations_shared, a_variance_of_one, variance_in_float32, never_normalized,
        norm_placements_exchanged, last_sublayer_first
    ),
    chapter=7,
    points=2,
)  # fmt: skip

# --- 6.2: a token in pieces -----------------------------------------------------------------------


def _merge_reference(counts, means, variances):
    """The mean of all numbers, and the mean of their squared distances from it."""
    found = np.zeros((*means.shape[:-1], 2), dtype=means.dtype)
    pieces = [p for p, count in enumerate(counts) if count]
    number = sum(int(counts[p]) for p in pieces)
    for place in np.ndindex(means.shape[:-1]):
        mean = sum(int(counts[p]) * means[(*place, p)] for p in pieces) / number
        squares = [
            int(counts[p]) * (variances[(*place, p)] + (means[(*place, p)] - mean) ** 2)
            for p in pieces
        ]
        found[place] = mean, sum(squares) / number
    return found


def _mean_and_variance(answer: Any, given: dict[str, Any]) -> Tensor:
    """Both as one tensor (*batch, 2)."""
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        raise argument_error(TypeError, "the answer", type(answer).__name__, "(mean, variance)")
    return torch.stack([torch.as_tensor(part) for part in answer], dim=-1)


def _merged(counts, means, variances):
    """Shares of the pieces, and the pieces without the empty ones."""
    real = counts > 0
    shares = (counts[real] / counts.sum()).to(means.dtype)
    return shares, means[..., real], variances[..., real]


def plain_merge(counts, means, variances):
    """The baseline."""
    shares, means, variances = _merged(counts.double(), means, variances)
    mean = (shares * means).sum(-1)
    return mean, (shares * (variances + (means - mean[..., None]).square())).sum(-1)


@mistake(
    "parts of one size",
    rejected_by="equals the reference",
    cause="A part of eight features counts as much as eight parts of one.",
)
def pieces_of_one_size(counts, means, variances):
    return plain_merge((counts > 0).long(), means, variances)


@mistake(
    "variances averaged",
    rejected_by="equals the reference",
    cause="The means of the parts differ as well: that part of the variance is missing.",
)
def variances_averaged(counts, means, variances):
    shares, means, variances = _merged(counts.double(), means, variances)
    return (shares * means).sum(-1), (shares * variances).sum(-1)


@mistake(
    "the mean of squares less the squared mean",
    rejected_by="a shift moves the mean alone",
    cause="Two large numbers cancel; use squares of differences from the mean.",
)
def squares_then_mean(counts, means, variances):
    shares, means, variances = _merged(counts.double(), means, variances)
    mean = (shares * means).sum(-1)
    return mean, (shares * (variances + means.square())).sum(-1) - mean.square()


@mistake(
    "shares in float32",
    rejected_by="parts that are alike",
    cause="One integer tensor divided by another is float32, whatever the means are.",
)
def shares_in_float32(counts, means, variances):
    shares, means, variances = _merged(counts, means, variances)
    mean = (shares * means).sum(-1)
    return mean, (shares * (variances + (means - mean[..., None]).square())).sum(-1)


@mistake(
    "empty parts counted",
    rejected_by="parts that are alike",
    cause="0 times NaN is NaN: a weight of 0 does not remove a part.",
)
def empty_pieces_counted(counts, means, variances):
    shares = (counts.double() / counts.sum()).to(means.dtype)
    mean = (shares * means).sum(-1)
    return mean, (shares * (variances + (means - mean[..., None]).square())).sum(-1)


@mistake(
    "empty parts overwritten",
    rejected_by="the inputs stay as they were",
    cause="means[..., empty] = 0 writes into the caller's tensor: leave the empty parts out, or "
    "use where.",
)
def emptied_in_place(counts, means, variances):
    means[..., counts == 0] = variances[..., counts == 0] = 0.0
    return plain_merge(counts, means, variances)


@mistake(
    "divided by one less",
    rejected_by="parts that are alike",
    cause="A norm divides by the count.",
)
def one_less(counts, means, variances):
    mean, variance = plain_merge(counts, means, variances)
    return mean, variance * counts.sum() / (counts.sum() - 1)


def _merge_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, batch, counts, dtype=torch.float64, shift=0.0, left=np.nan) -> Case:
        """left: what stands for an empty piece."""
        counts = np.array(counts)
        means = rng.normal(size=(*batch, len(counts))) + shift
        variances = rng.uniform(0.2, 2, means.shape)
        means[..., counts == 0] = variances[..., counts == 0] = left
        return Case(label, {"counts": counts, "means": means, "variances": variances}, dtype)

    return [
        case("one piece", (3,), [5]),
        case("two pieces of a token", (), [4, 4]),
        case("pieces of two sizes", (2,), [6, 2]),
        case("tokens", (2, 3), [8, 1, 3, 4]),
        case("float32", (4,), [7, 9, 5], torch.float32),
        case("far from 0", (2, 2), [16, 3, 8], shift=1e6),
        case("an empty piece", (5,), [6, 0, 2]),
        case("empty pieces first and last", (2, 4), [0, 3, 9, 1, 0]),
        case("an empty piece with 5 for mean and variance", (3, 2), [4, 0, 7], left=5.0),
    ]


def _alike(run: Run, case: Case) -> Problem | None:
    """Pieces of mean 2 and variance 3."""
    means, empty = case.arguments["means"], case.arguments["counts"] == 0
    given = {"means": np.full(means.shape, 2.0), "variances": np.full(means.shape, 3.0)}
    for numbers in given.values():
        numbers[..., empty] = np.nan
    return right_with(run, case, "mean, variance of pieces with 2 and 3", **given)


def _moved(run: Run, case: Case) -> Problem | None:
    """All means moved by 2^20."""
    far = case.arguments["means"] + 2.0**20
    before, after = run.value(case)[..., 1], run.value(case, means=far)[..., 1]
    tolerance = run.expected(case)[1] + run.expected(case, means=far)[1]
    return unchanged(before, after, tolerance, "all numbers are moved by 2^20", "the variance")


MERGE = Spec(
    name="hw06.merge_statistics",
    statement="merge_statistics(counts, means, variances) -> (mean, variance): of each token's "
    "features, from the statistics of its P parts; counts (P), integers, means and variances "
    "(*batch, P), each result (*batch); the mean and variance of an empty part mean nothing and "
    "are usually NaN; variances are divided by the count",
    required=("counts", "means", "variances"),
    reference=_merge_reference,
    baseline=plain_merge,
    differentiable=False,
    cases=_merge_cases,
    checks=(
        Check(
            "parts that are alike",
            "If every part has the same mean and variance, so has the whole. Empty parts add "
            "nothing.",
            _alike,
        ),
        Check(
            "a shift moves the mean alone",
            "Adding one number to all means shifts the mean and leaves the variance as it is, "
            "also far from 0.",
            _moved,
            when=lambda case: case.dtype == torch.float64,
        ),
    ),
    mutants=mistakes(
        pieces_of_one_size, variances_averaged, squares_then_mean, shares_in_float32,
        empty_pieces_counted, emptied_in_place, one_less
    ),
    read=_mean_and_variance,
    chapter=7,
    points=2,
)  # fmt: skip

# --- 6.3: the next fold ---------------------------------------------------------------------------


def _fold_reference(x, direction, w_up, b_up):
    """Unit by unit: where on its way does the token meet the line on which the unit is 0?"""
    found = np.full(x.shape[:-1], np.inf, dtype=x.dtype)
    for place in np.ndindex(found.shape):
        for key, threshold in zip(w_up.T, b_up, strict=True):
            height = reference.dot(x[place], key) + threshold
            slope = reference.dot(direction[place], key)
            if slope != 0 and -height / slope > 0:
                found[place] = min(found[place], -height / slope)
    return found


def _crossings(x, direction, w_up, b_up):
    return -(x @ w_up + b_up) / (direction @ w_up)  # *batch d_ff


def _first(steps):
    return steps.where(steps > 0, torch.inf).amin(-1)


def plain_fold(x, direction, w_up, b_up):
    """The baseline."""
    return _first(_crossings(x, direction, w_up, b_up))


@mistake(
    "kinks behind counted",
    rejected_by="there is a kink",
    cause="The sign of t tells whether the kink is ahead.",
)
def folds_behind_counted(x, direction, w_up, b_up):
    return _first(_crossings(x, direction, w_up, b_up).abs())


@mistake(
    "only units that are on",
    rejected_by="nothing switches before",
    cause="A kink can be crossed from either side.",
)
def only_units_that_are_on(x, direction, w_up, b_up):
    steps = _crossings(x, direction, w_up, b_up)
    return _first(steps.where(x @ w_up + b_up > 0, torch.inf))


@mistake(
    "biases forgotten",
    rejected_by="nothing switches before",
    cause="b_up moves each kink.",
)
def thresholds_forgotten(x, direction, w_up, b_up):
    return plain_fold(x, direction, w_up, torch.zeros_like(b_up))


@mistake(
    "the kink at the start",
    rejected_by="kinks ahead",
    cause="t = 0 is where the token starts.",
)
def the_fold_under_the_feet(x, direction, w_up, b_up):
    steps = _crossings(x, direction, w_up, b_up)
    return steps.where(steps >= 0, torch.inf).amin(-1)


@mistake(
    "the norm of the direction",
    rejected_by="nothing switches before",
    cause="t counts steps of the direction as it is given.",
)
def length_of_the_way(x, direction, w_up, b_up):
    return plain_fold(x, direction, w_up, b_up) * direction.norm(dim=-1)


@mistake(
    "one result for all tokens",
    rejected_by="there is a kink",
    cause="The smallest t of all tokens, but each token has its own.",
)
def one_for_all_tokens(x, direction, w_up, b_up):
    return plain_fold(x, direction, w_up, b_up).amin().expand(x.shape[:-1])


def _fold_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, batch, width, d_ff, dtype=torch.float64, whole=False, shift=0.0) -> Case:
        def draw(*shape):
            return rng.integers(-2, 3, shape).astype(float) if whole else rng.normal(size=shape)

        given = {"x": draw(*batch, width), "direction": draw(*batch, width)}
        given["direction"][..., 0] += 3.0  # never the zero vector
        return Case(label, given | {"w_up": draw(width, d_ff), "b_up": draw(d_ff) + shift}, dtype)

    sorter = np.array([[1.0, -1, 1, -1], [-1, 1, 1, -1]])
    way = np.array([[-1.0, 1], [1, 0], [0, 1]])
    x = np.array([[3.0, -1]]).repeat(3, 0)
    near = {
        "x": np.array([[1.0], [-1.0]]), "direction": np.array([[1.0], [-(2.0**-20)]]),
        "w_up": np.ones((1, 2)), "b_up": np.array([-1 - 2.0**-40, 2.0]),
    }  # fmt: skip
    pencil = {"x": x, "direction": way, "w_up": sorter, "b_up": np.zeros(4)}
    return [
        Case("the sorter of chapter 8", pencil),
        Case("a fold at hand, and one far away", near),
        case("one token, one unit", (), 2, 1),
        case("tokens", (4,), 3, 6),
        case("a batch", (2, 3), 5, 12),
        case("float32", (6,), 4, 9, torch.float32),
        case("few units", (3, 5), 4, 2),
        case("whole numbers, on folds and along them", (40,), 2, 5, whole=True),
        case("far thresholds", (7,), 3, 8, shift=50.0),
    ]


def _ahead(run: Run, case: Case) -> Problem | None:
    steps = run.value(case)
    wrong = steps[~(steps > 0)]
    return Problem("steps above 0", str(wrong.flat[0])) if len(wrong) else None


def _heights(case: Case, steps: np.ndarray) -> np.ndarray:
    """What every unit gets before its bend, after so many steps. (tokens, d_ff)"""
    a = case.arguments
    moved = a["x"] + steps[..., None] * a["direction"]
    return (moved @ a["w_up"] + a["b_up"]).reshape(-1, len(a["b_up"]))


def _none_before(run: Run, case: Case) -> Problem | None:
    """No unit that was on or off has changed just before."""
    steps = run.value(case)
    way = 0.99 * np.where(np.isfinite(steps), steps, 1e6)
    signs = np.sign(_heights(case, np.zeros_like(way))) * np.sign(_heights(case, way))
    if (signs < 0).any():
        token, unit = np.argwhere(signs < 0)[0]
        return Problem(
            "no unit switched before", f"unit {unit} switched on the way of token {token}"
        )
    return None


def _at_a_fold(run: Run, case: Case) -> Problem | None:
    """Some unit is at 0 there."""
    steps = run.value(case)
    finite = np.isfinite(steps)
    steps = np.where(finite, steps, 0.0)
    nearest = np.abs(_heights(case, steps)).min(-1)[finite.reshape(-1)]
    what = "the smallest |x k + b| at the fold"
    return compare(np.zeros_like(nearest), nearest, _height_tolerance(run, case), what)


def _height_tolerance(run: Run, case: Case) -> float:
    """How far from 0 a unit can stand where t and the unit's height are rounded."""
    a, (steps, tolerance) = case.arguments, run.expected(case)
    far = np.max(steps, initial=0.0, where=np.isfinite(steps)) + tolerance
    each = (np.abs(a[name]) @ np.abs(a["w_up"]) for name in ("x", "direction"))
    x, slope = (float(heights.max()) for heights in each)
    largest = x + far * slope + float(np.abs(a["b_up"]).max())
    return slope * tolerance + case.rounding(len(a["w_up"]) + 2) * largest


FOLD = Spec(
    name="hw06.next_fold",
    statement="next_fold(x, direction, w_up, b_up): for each token the smallest t > 0 at which "
    "some unit of relu((x + t direction) w_up + b_up) has the input 0 and does not stay there, "
    "inf if there is none; x and direction (*batch, D), w_up (D, d_ff), b_up (d_ff) -> (*batch)",
    required=("x", "direction", "w_up", "b_up"),
    reference=_fold_reference,
    baseline=plain_fold,
    differentiable=False,
    cases=_fold_cases,
    checks=(
        Check("kinks ahead", "Only kinks ahead of the token count: t is above 0.", _ahead),
        Check(
            "nothing switches before",
            "Some unit switches on or off before the result: that kink comes first.",
            _none_before,
        ),
        Check(
            "there is a kink",
            "After t steps along the direction the input of one unit must be 0.",
            _at_a_fold,
        ),
    ),
    mutants=mistakes(
        folds_behind_counted, only_units_that_are_on, thresholds_forgotten, the_fold_under_the_feet,
        length_of_the_way, one_for_all_tokens
    ),
    chapter=8,
    points=2,
)  # fmt: skip

# --- 6.4: the lightest network --------------------------------------------------------------------


def _lightest_reference(w_up, b_up, w_down):
    """Unit by unit: both sides get the geometric mean of their lengths."""
    found = []
    for key, threshold, value in zip(w_up.T, b_up, w_down, strict=True):
        before = np.sqrt(reference.dot(key, key) + threshold**2)
        after = np.sqrt(reference.dot(value, value))
        length = np.sqrt(before * after)
        if length == 0:
            found.append(np.zeros(len(key) + 1 + len(value)))
        else:
            found.append([*(length / before * key), length / before * threshold,
                          *(length / after * value)])  # fmt: skip
    return np.array(found, dtype=w_up.dtype).T


def _three_parts(answer: Any, given: dict[str, Any]) -> Tensor:
    """A column for each unit: its key, its bias, its value."""
    if not isinstance(answer, tuple | list) or len(answer) != 3:
        wanted = "(w_up, b_up, w_down)"
        raise argument_error(TypeError, "the answer", type(answer).__name__, wanted)
    w_up, b_up, w_down = answer
    return torch.cat((w_up, b_up[None], w_down.T))


def _lengths(w_up, b_up, w_down):
    return (w_up.square().sum(0) + b_up.square()).sqrt(), w_down.norm(dim=1)


def _stretched(w_up, b_up, w_down, stretch):
    """Every unit's first side times its number, the second side divided; units of no use are 0."""
    before, after = _lengths(w_up, b_up, w_down)
    used = before * after > 0
    up = torch.where(used, stretch, 0.0)
    down = torch.where(used, 1 / stretch, 0.0)
    return w_up * up, b_up * up, w_down * down[:, None]


def plain_lightest(w_up, b_up, w_down):
    """The baseline."""
    before, after = _lengths(w_up, b_up, w_down)
    return _stretched(w_up, b_up, w_down, (after / before).sqrt())


@mistake(
    "the root forgotten",
    rejected_by="no unit can be made lighter",
    cause="One side is multiplied and the other divided by the same number: use the square root "
    "of the ratio.",
)
def root_forgotten(w_up, b_up, w_down):
    before, after = _lengths(w_up, b_up, w_down)
    return _stretched(w_up, b_up, w_down, after / before)


@mistake(
    "the bias not weighed",
    rejected_by="no unit can be made lighter",
    cause="The bias is rescaled with its column and counts like one more weight.",
)
def threshold_not_weighed(w_up, b_up, w_down):
    stretch = (w_down.norm(dim=1) / w_up.norm(dim=0)).sqrt()
    return _stretched(w_up, b_up, w_down, stretch)


@mistake(
    "the bias left behind",
    rejected_by="the same function",
    cause="relu(c z) = c relu(z) requires that all of z is rescaled, bias included.",
)
def threshold_not_moved(w_up, b_up, w_down):
    w, _, v = plain_lightest(w_up, b_up, w_down)
    return w, b_up, v


@mistake(
    "a unit judged by its column",
    rejected_by="the same function",
    cause="A unit whose column is zero and whose bias is not adds the same to every token.",
)
def by_the_key_alone(w_up, b_up, w_down):
    used = (w_up.norm(dim=0) > 0).to(w_up.dtype)
    w, b, v = plain_lightest(w_up, b_up, w_down)
    return w * used, b * used, v * used[:, None]


@mistake(
    "small taken for nothing",
    rejected_by="the same function",
    cause="A unit contributes the product of its two sides: only if one side is all zeros does "
    "it contribute nothing.",
)
def small_for_nothing(w_up, b_up, w_down):
    before, after = _lengths(w_up, b_up, w_down)
    used = ((before > 1e-6) & (after > 1e-6)).to(w_up.dtype)
    w, b, v = plain_lightest(w_up, b_up, w_down)
    return w * used, b * used, v * used[:, None]


@mistake(
    "every norm 1",
    rejected_by="the same function",
    cause="The product of the two norms is what the unit contributes: it must not change.",
)
def every_length_one(w_up, b_up, w_down):
    before, after = _lengths(w_up, b_up, w_down)
    before, after = before.where(before > 0, 1.0), after.where(after > 0, 1.0)
    return w_up / before, b_up / before, w_down / after[:, None]


@mistake(
    "one factor for all units",
    rejected_by="no unit can be made lighter",
    cause="Units do not depend on each other: each has its own best factor.",
)
def one_stretch_for_all(w_up, b_up, w_down):
    before, after = _lengths(w_up, b_up, w_down)
    stretch = (after.norm() / before.norm()).sqrt().expand(before.shape)
    return _stretched(w_up, b_up, w_down, stretch)


@mistake(
    "nothing divided by nothing",
    rejected_by="units of no use weigh nothing",
    cause="The ratio of two norms does not exist if one of them is 0.",
)
def nothing_over_nothing(w_up, b_up, w_down):
    before, after = _lengths(w_up, b_up, w_down)
    stretch = (after / before).sqrt()
    return w_up * stretch, b_up * stretch, w_down / stretch[:, None]


def _lightest_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, width, d_ff, out, dtype=torch.float64, silent=(), mute=()) -> Case:
        """silent units have no key and no bias, mute ones no value."""
        w, b, v = (rng.normal(size=shape) for shape in ((width, d_ff), (d_ff,), (d_ff, out)))
        w *= np.exp(rng.normal(size=d_ff))  # units of different sizes
        w[:, list(silent)] = b[list(silent)] = v[list(mute)] = 0.0
        return Case(label, {"w_up": w, "b_up": b, "w_down": v}, dtype)

    constant = case("a unit that is always on", 3, 4, 2)
    constant.arguments["w_up"][:, 2] = 0.0
    constant.arguments["b_up"][2] = abs(constant.arguments["b_up"][2])
    faint = case("a faint unit that is heard loudly", 2, 3, 4)
    faint.arguments["w_up"][:, 1] *= 1e-7
    faint.arguments["b_up"][1] *= 1e-7
    faint.arguments["w_down"][1] *= 1e7
    pencil = {"w_up": np.array([[3.0], [0]]), "b_up": np.array([4.0])}
    return [
        Case("one unit", pencil | {"w_down": np.array([[20.0]])}),
        case("two units", 2, 2, 1),
        case("as wide as narrow", 4, 5, 4),
        case("float32", 3, 8, 6, torch.float32),
        case("many units", 6, 24, 5),
        constant,
        faint,
        case("a unit without a value", 3, 5, 2, mute=[1]),
        case("a unit without a key", 2, 6, 3, silent=[0], mute=[4]),
    ]


STRETCHING = 8  # operations that a unit's two sides have been through


def _tokens(case: Case) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(9, len(case.arguments["w_up"])))


def _network(case: Case, w: np.ndarray, b: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.maximum(_tokens(case) @ w + b, 0) @ v


def _parts(run: Run, case: Case) -> tuple[np.ndarray, ...]:
    width = len(case.arguments["w_up"])
    columns = run.value(case)
    return columns[:width], columns[width], columns[width + 1 :].T


def _idle(case: Case) -> np.ndarray:
    """Which units have zeros only on one of their sides. (d_ff)"""
    a = case.arguments
    first = np.abs(a["w_up"]).sum(0) + np.abs(a["b_up"])
    return (first == 0) | (np.abs(a["w_down"]).sum(1) == 0)


def _same_function(run: Run, case: Case) -> Problem | None:
    wanted = _network(case, *(case.arguments[n] for n in ("w_up", "b_up", "w_down")))
    w, b, v = (np.abs(case.arguments[name]) for name in ("w_up", "b_up", "w_down"))
    largest = float(((np.abs(_tokens(case)) @ w + b) @ v).max())
    slack = case.rounding(sum(w.shape) + STRETCHING) * largest
    return compare(wanted, _network(case, *_parts(run, case)), slack, "the answers to 9 tokens")


def _no_gain(run: Run, case: Case) -> Problem | None:
    """Stretch each unit by 1 % and by -1 %: the sum of squares must not fall.

    What answers something else is another network: that is for the next check to say.
    """
    if _same_function(run, case) is not None:
        return None
    w, b, v = _parts(run, case)
    first, second = (w**2).sum(0) + b**2, (v**2).sum(1)
    for stretch in (0.99, 1.01):
        gain = first + second - (first * stretch**2 + second / stretch**2)
        if (gain > 0).any():
            unit = int(gain.argmax())
            return Problem(
                "no unit that can be made lighter", f"unit {unit}, stretched by {stretch}"
            )
    return None


def _of_no_use(run: Run, case: Case) -> Problem | None:
    """A unit that adds nothing weighs nothing."""
    for unit in np.flatnonzero(_idle(case)):
        rest = run.value(case)[:, unit]
        what = f"column, bias, row of unit {unit}, of which one side was zeros"
        if (problem := compare(np.zeros_like(rest), rest, 0.0, what)) is not None:
            return problem
    return None


LIGHTEST = Spec(
    name="hw06.lightest",
    statement="lightest(w_up, b_up, w_down) -> the same three, with units rescaled so that "
    "relu(x w_up + b_up) w_down is the same for every x and the sum of the squares of all "
    "weights and biases is as small as possible; a unit that contributes nothing for any x "
    "because one of its sides is all zeros becomes zeros; (D, d_ff), (d_ff), (d_ff, E)",
    required=("w_up", "b_up", "w_down"),
    reference=_lightest_reference,
    baseline=plain_lightest,
    differentiable=False,
    cases=_lightest_cases,
    checks=(
        Check(
            "no unit can be made lighter",
            "Rescaling one unit by one percent still lowers the sum of squares.",
            _no_gain,
            when=lambda case: not _idle(case).any(),
        ),
        Check(
            "the same function",
            "The new network must give the same outputs as the old one.",
            _same_function,
            when=lambda case: not _idle(case).any(),
        ),
        Check(
            "units of no use weigh nothing",
            "A unit with a side of zeros contributes nothing: all of its weights become 0, and "
            "none NaN.",
            _of_no_use,
            when=lambda case: _idle(case).any(),
        ),
    ),
    mutants=mistakes(
        root_forgotten, threshold_not_weighed, threshold_not_moved, every_length_one,
        one_stretch_for_all, by_the_key_alone, small_for_nothing, nothing_over_nothing
    ),
    read=_three_parts,
    chapter=8,
    points=3,
)  # fmt: skip

# --- 6.5: the hunt --------------------------------------------------------------------------------


def norm_formula(x, gain, bias, eps):
    """The formula, in float32 at least."""
    return plain_layer_norm(x, gain.to(x.dtype), bias.to(x.dtype), eps=eps)


def norm_of_torch(x, gain, bias, eps):
    """PyTorch's kernel."""
    return functional.layer_norm(x, gain.shape, gain, bias, eps)


def norm_by_welford(x, gain, bias, eps):
    """One number after the other, in float64: mean and squared distances grow along."""
    wide = x.double()
    mean, squares = torch.zeros_like(wide[..., 0]), torch.zeros_like(wide[..., 0])
    for count, number in enumerate(wide.unbind(-1), start=1):
        step = number - mean
        mean = mean + step / count
        squares = squares + step * (number - mean)
    spread = (squares / wide.shape[-1] + eps).sqrt()
    centered = (wide - mean[..., None]) / spread[..., None]
    return (centered * gain.double() + bias.double()).to(x.dtype)


def norm_moved_first(x, gain, bias, eps):
    """All numbers less the first one; then the mean of squares less the squared mean, in float64."""
    moved = x.double() - x[..., :1].double()
    mean = moved.mean(-1, keepdim=True)
    variance = (moved.square().mean(-1, keepdim=True) - mean.square()).clamp(min=0)
    return ((moved - mean) * (variance + eps).rsqrt() * gain.double() + bias.double()).to(x.dtype)


def _wide(x):
    return x.to(torch.promote_types(x.dtype, torch.float32))


@mistake(
    "divided by one less",
    rejected_by="hunt",
    symptom="Every output is too small by sqrt((D-1)/D).",
    cause="The variance is divided by D - 1.",
)
def norm_with_one_less(x, gain, bias, eps):
    wide = _wide(x)
    variance = wide.var(-1, keepdim=True)
    return ((wide - wide.mean(-1, keepdim=True)) * (variance + eps).rsqrt() * gain + bias).to(
        x.dtype
    )


@mistake(
    "eps outside the root",
    rejected_by="hunt",
    symptom="Right until a token is nearly constant.",
    cause="sqrt(var) + eps where sqrt(var + eps) is right.",
)
def norm_with_eps_outside(x, gain, bias, eps):
    return eps_outside_the_root(_wide(x), gain, bias, eps=eps).to(x.dtype)


@mistake(
    "one mean for the sample",
    rejected_by="hunt",
    symptom="Another token of the same sample changes the output.",
    cause="Mean and variance over L and D.",
)
def norm_of_the_sample(x, gain, bias, eps):
    wide = _wide(x)
    axes = tuple(range(min(1, x.ndim - 1), x.ndim))
    variance, mean = torch.var_mean(wide, axes, correction=0, keepdim=True)
    return ((wide - mean) * (variance + eps).rsqrt() * gain + bias).to(x.dtype)


@mistake(
    "float32 for all",
    rejected_by="hunt",
    symptom="The dtype is right, but half of the digits of a float64 output are wrong.",
    cause="x.float() raises the precision of float16 and lowers that of float64.",
)
def norm_in_float32(x, gain, bias, eps):
    return norm_formula(x.float(), gain.float(), bias.float(), eps).to(x.dtype)


@mistake(
    "squares less the squared mean",
    rejected_by="hunt",
    symptom="Right around 0, but meaningless for a token far from 0.",
    cause="Two large numbers cancel in float32.",
)
def norm_of_squares(x, gain, bias, eps):
    return squares_first(x, gain, bias, eps=eps)


@mistake(
    "squared in half precision",
    rejected_by="hunt",
    symptom="In float16, only the bias is left of tokens of large magnitude.",
    cause="Squares above 65504 are infinite in float16.",
)
def norm_in_half(x, gain, bias, eps):
    return squared_in_half_precision(x, gain, bias, eps=eps)


@mistake(
    "centered in place",
    rejected_by="hunt",
    symptom="The output is right, but the residual connection adds the wrong x.",
    cause="x -= mean works in place, on the caller's tensor.",
)
def norm_in_place(x, gain, bias, eps):
    wide = _wide(x)
    mean = wide.mean(-1, keepdim=True)
    answer = norm_formula(x, gain, bias, eps)
    x -= mean.to(x.dtype)
    return answer


@mistake(
    "an eps of its own",
    rejected_by="hunt",
    symptom="Weights of a model with another eps give slightly different numbers.",
    cause="1e-5, whatever the argument is.",
)
def norm_with_fixed_eps(x, gain, bias, eps):
    return norm_formula(x, gain, bias, 1e-5)


@mistake(
    "zeros for a constant token",
    rejected_by="hunt",
    symptom="A token whose features are all equal loses its bias.",
    cause="A guard against a division by zero, which eps already rules out.",
)
def norm_without_constants(x, gain, bias, eps):
    constant = (x == x[..., :1]).all(-1, keepdim=True)
    return norm_formula(x, gain, bias, eps).masked_fill(constant, 0.0)


@mistake(
    "eps as a floor",
    rejected_by="hunt",
    symptom="Right for tokens of large magnitude and for constant ones, wrong for tokens of "
    "small magnitude.",
    cause="max(var, eps) where var + eps is right.",
)
def norm_with_a_floor(x, gain, bias, eps):
    wide = _wide(x)
    variance, mean = torch.var_mean(wide, -1, correction=0, keepdim=True)
    return ((wide - mean) * variance.clamp(min=eps).rsqrt() * gain + bias).to(x.dtype)


HUNT = Hunt(
    name="hw06.hunt",
    function="test_layer_norm",
    statement="test_layer_norm(layer_norm): raise for every wrong implementation of layer_norm(x, gain, "
    "bias, eps) and for no right one; x (*batch, D), gain and bias (D), all in one dtype, eps a number; "
    "squares of the numbers fit into float32",
    right={
        "the formula": norm_formula,
        "PyTorch's kernel": norm_of_torch,
        "number by number": norm_by_welford,
        "moved, then squares": norm_moved_first,
    },
    mutants=mistakes(
        norm_with_one_less, norm_with_eps_outside, norm_of_the_sample, norm_in_float32,
        norm_of_squares, norm_in_half, norm_in_place, norm_with_fixed_eps, norm_without_constants,
        norm_with_a_floor
    ),
    points=4,
    minutes=65,
    difficulty="challenge",
    chapter=7,
)  # fmt: skip

# --- The assignment -------------------------------------------------------------------------------

ASSIGNMENT = Assignment(
    name="hw06",
    title="What a layer does to a single token",
    weeks="6",
    chapters=(7, 8),
    parts=(
        Task(SHARES, "shares", 20, "warm-up"),
        Task(MERGE, "merge_statistics", 25, "core"),
        Task(FOLD, "next_fold", 20, "core"),
        Task(LIGHTEST, "lightest", 40, "challenge"),
        HUNT,
        Written(
            "hw06-quiet-sublayers",
            "explanation",
            2,
            15,
            "1 point: pre-norm: with variance 1/N the embedding keeps 1/2 at any depth, without "
            "it 1/13 and 1/97. 1 point: post-norm: (1 + 1/N)^-N, 0.38 and 0.37 in place of 2^-12 "
            "and 2^-96, with the limit 1/e (or 0.368, from large N), so with sublayers of small "
            "variance post-norm keeps the embedding as well. Numbers from the student's own "
            "`shares` are enough.",
        ),
        Written(
            "hw06-in-slices",
            "explanation",
            2,
            20,
            "1 point: 2 GiB and 128 MiB; slices of tokens are concatenated, slices of units are "
            "added, with b_2 once. 1 point: with a softmax over the units the sum of all "
            "exponentials is needed, so slices of units cannot simply be added; slices of tokens "
            "still work. (A running sum as in online softmax, named as the solution, counts as "
            "well.)",
        ),
        Written(
            "hw06-experiment",
            "experiment",
            3,
            40,
            "1 point: a table of the drift for both activations and at least three step sizes "
            "with the same product of step size and steps, from a run of the code. 1 point: the "
            "finding: for ReLU the drift decreases in proportion to the step size, for GELU it "
            "does not. 1 point: the reason: for ReLU a unit can be rescaled without changing the "
            "loss, so the gradient has no component in that direction; for GELU it cannot.",
        ),
    ),
)  # fmt: skip
