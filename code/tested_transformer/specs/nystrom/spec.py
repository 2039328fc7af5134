"""The Spec of Nystrom attention: landmarks, three softmaxes and an iterated pseudo-inverse."""

from __future__ import annotations

import numpy as np
import torch

from ... import reference
from ..checks import any_dtype, larger, transposed
from ..compare import Problem, compare, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants

NAMES = ("query", "key", "value", "num_landmarks")
TENSORS = NAMES[:3]
MANY = 12  # iterations after which the residual of a well-conditioned matrix is below all rounding


def _arguments(rng: np.random.Generator, batch, heads, length, widths, landmarks) -> dict:
    width, values = widths
    shapes = (*2 * ((batch, heads, length, width),), (batch, heads, length, values))
    made = {name: rng.normal(size=shape) for name, shape in zip(TENSORS, shapes, strict=True)}
    made["query"] += made[
        "key"
    ]  # each near its own key: a core that nearly loses rank rounds badly
    return made | {"num_landmarks": landmarks}


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64, **options) -> Case:
        return Case(label, _arguments(rng, *sizes) | options, dtype)

    small = (2, 3, 6, (4, 2), 3)
    right = np.array([[True] * 6, [True] * 4 + [False] * 2])
    inside = np.array([[True, False, True, True, False, True], [False] * 3 + [True] * 3])
    few = np.array([[True] * 6, [False, True, False, False, True, False]])
    return [
        case("one token, one landmark", 1, 1, 1, (2, 3), 1),
        case("four tokens, two landmarks", 1, 2, 4, (3, 2), 2),
        case("two samples, three heads", *small),
        case("one landmark", 1, 2, 5, (3, 4), 1),
        case("segments of different lengths", 2, 2, 7, (4, 3), 3),
        case("a landmark per token", 1, 2, 4, (8, 2), 4),
        case("more landmarks than tokens", 1, 2, 3, (6, 2), 5),
        case("ten iterations", *small, iterations=10),
        case("one iteration", *small, iterations=1),
        case("padding at the end", *small, key_mask=right),
        case("padding anywhere", *small, key_mask=inside),
        case("fewer real tokens than landmarks", *small, key_mask=few),
        case("a scale of its own", *small, scale=0.3),
        larger(case("float32", *small, dtype=torch.float32, key_mask=right), key=100.0),
        Case(
            "all options at once, transposed tensors",
            transposed(_arguments(rng, *small))
            | {"iterations": 3, "key_mask": inside, "scale": 0.3},
        ),
    ]


def _by_chance(draw: Draw) -> Case:
    length = draw.one_of(4, 2, 7)
    sizes = (
        draw.one_of(1, 2), draw.one_of(2, 1, 3), length,
        (draw.one_of(3, 1, 5), draw.one_of(2, 1, 4)), draw.one_of(2, 1, 3),
    )  # fmt: skip
    arguments = _arguments(draw.numbers, *sizes) | {"iterations": draw.one_of(6, 2, 4)}
    if draw.one_of(False, True):
        arguments["key_mask"] = draw.numbers.random((sizes[0], length)) < 0.7
    return Case("sizes by chance", arguments, any_dtype(draw))


def _alone(run: Run, case: Case) -> Problem | None:
    """The last head of the last sample by itself, where nothing else can act on it."""
    one = {name: case.arguments[name][-1:, -1:] for name in TENSORS}
    before, after = run.value(case, **one), run.value(case)[-1:, -1:]
    slack = run.expected(case)[1] + run.expected(case, **one)[1]
    return unchanged(before, after, slack, "other heads and samples are there", "a head's output")


def _padding(run: Run, case: Case) -> Problem | None:
    """Real tokens' outputs, whatever the padding holds."""
    real = case.arguments["key_mask"][:, None, :, None]
    changed = {name: np.where(real, case.arguments[name], 5.0) for name in TENSORS}
    before, after = (np.where(real, run.value(case, **each), 0) for each in ({}, changed))
    slack = run.expected(case)[1] + run.expected(case, **changed)[1]
    return unchanged(before, after, slack, "padding has other numbers", "a real token's output")


def _no_token(run: Run, case: Case) -> Problem | None:
    """The last sample alone, without its padding."""
    a, real = case.arguments, case.arguments["key_mask"][-1]
    alone = {name: a[name][-1:, :, real] for name in TENSORS} | {"key_mask": None}
    before, after = run.value(case, **alone), run.value(case)[-1:, :, real]
    slack = run.expected(case)[1] + run.expected(case, **alone)[1]
    return unchanged(before, after, slack, "it comes in a padded batch", "the output of a sample")


def _exchanged(run: Run, case: Case, first: int, when: str) -> Problem | None:
    """Two neighbors change places, and so do their outputs."""
    order = np.arange(_length(case))
    order[[first, first + 1]] = order[[first + 1, first]]
    turned = {name: case.arguments[name][:, :, order] for name in TENSORS}
    before, after = run.value(case), run.value(case, **turned)[:, :, order]
    slack = run.expected(case)[1] + run.expected(case, **turned)[1]
    return unchanged(before, after, slack, when, "a token's output")


def _alike(run: Run, case: Case) -> Problem | None:
    return _exchanged(run, case, 0, "the first two tokens, of one segment, change places")


def _ragged(run: Run, case: Case) -> Problem | None:
    first = _length(case) - 2
    return _exchanged(run, case, first, "the last two tokens, of one segment, change places")


def _dense(run: Run, case: Case) -> Problem | None:
    """Attention, up to what the iteration has left: its residual is known from the singular values.

    A Z A - A has the singular values s e, e the residual of s after the iterations, from 1 - s^2 / norms.
    """
    a, count = case.arrays(), case.arguments["query"].shape[2]
    many = {"num_landmarks": count, "iterations": MANY}
    expected = reference.attention(a["query"], a["key"], a["value"], scale=a.get("scale"))
    left = 0.0
    for b, h in np.ndindex(a["query"].shape[:2]):
        one = np.eye(count)
        weights = reference.attention(a["query"][b, h], a["key"][b, h], one, scale=a.get("scale"))
        weights = weights.astype(np.float64)
        values = np.linalg.svd(weights, compute_uv=False)
        e = 1 - values**2 / (weights.sum(0).max() * weights.sum(1).max())
        for _ in range(MANY):
            e = e**3 * (3 + e) / 4
        size = np.linalg.norm(a["value"][b, h].astype(np.float64), 2)
        left = max(left, float((values * np.abs(e)).max() * size))
    slack = 2 * run.expected(case, **many)[1] + 2 * left  # twice: the bound is reached
    got = run.value(case, **many)
    return compare(expected, got, slack, "with a landmark per token, the output")


def _length(case: Case) -> int:
    return case.arguments["query"].shape[2]


def _divides(case: Case) -> bool:
    """Whether all segments have the same number of tokens, two at least, and nothing is padded."""
    length, number = _length(case), case.arguments["num_landmarks"]
    return "key_mask" not in case.arguments and length % number == 0 and length > number


def _ends_in_two(case: Case) -> bool:
    """Whether the segments differ in length, and the last one has two tokens at least."""
    length, number = _length(case), case.arguments["num_landmarks"]
    same = (length - 2) * number // length == (length - 1) * number // length
    return "key_mask" not in case.arguments and length % number > 0 and length > 2 and same


NYSTROM_ATTENTION = Spec(
    name="nystrom_attention",
    statement="nystrom_attention(query, key, value, num_landmarks, *, iterations, key_mask, scale): "
    "softmax(q Kl^T) Z softmax(Ql k^T) v, all scores times the scale, 1 / sqrt(d) by default. Ql and Kl are the "
    "means of m = num_landmarks segments: real token number r of n belongs to segment floor(r m / n), and a segment "
    "without tokens is left out. Z starts as A^T / (largest column sum x largest row sum) of A = softmax(Ql Kl^T), "
    "each matrix by itself, and is replaced `iterations` times, 6 by default, by Z (13 I - A Z (15 I - A Z "
    "(7 I - A Z))) / 4. key_mask: True for real tokens. query and key (B, H, L, d), value (B, H, L, dv), key_mask "
    "(B, L) -> (B, H, L, dv)",
    required=NAMES,
    reference=reference.nystrom_attention,
    baseline=mutants.NystromFormula(),
    cases=_cases,
    combine=_by_chance,
    num_drawn=5,
    checks=(
        Check(
            "tokens of a segment are alike",
            "A segment's tokens enter through their mean alone, so that two of them may change places.",
            _alike,
            when=_divides,
        ),
        Check(
            "a length that the landmarks do not divide",
            "Segments then differ by a token. Nothing is shifted, and nothing is cut off.",
            _ragged,
            when=_ends_in_two,
        ),
        Check(
            "a sample in a batch is that sample alone",
            "Each matrix has a start of its own: the norms are not those of another sample or head.",
            _alone,
            when=lambda case: "key_mask" not in case.arguments and not case.is_empty,
        ),
        Check(
            "padding does nothing",
            "No number of the padding may enter a mean or a sum.",
            _padding,
            needs=("key_mask",),
            when=lambda case: not case.is_empty,
        ),
        Check(
            "padding is no token",
            "A text in a padded batch gets the outputs that it gets alone: the segments are those of its real tokens.",
            _no_token,
            needs=("key_mask",),
            when=lambda case: not case.is_empty and bool(case.arguments["key_mask"][-1].any()),
        ),
        Check(
            "with a landmark per token it is attention",
            "All three matrices are then the same A, and A pinv(A) A = A.",
            _dense,
            when=lambda case: case.label == "a landmark per token",
        ),
    ),
    mutants=mistakes_in(mutants, of="nystrom_attention"),
    chapter=17,
)  # fmt: skip
