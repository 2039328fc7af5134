"""The Spec of Linformer attention: keys and values projected along the sequence, then attention."""

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

NAMES = ("query", "key", "value", "key_projection", "value_projection")


def _arguments(rng: np.random.Generator, batch, heads, lengths, widths, projected, shared) -> dict:
    (length, keys), (width, values) = lengths, widths
    shapes = (
        (batch, heads, length, width),
        (batch, heads, keys, width),
        (batch, heads, keys, values),
        *2 * ((1 if shared else heads, projected, keys),),
    )
    made = {name: rng.normal(size=shape) for name, shape in zip(NAMES, shapes, strict=True)}
    for name in NAMES[3:]:
        made[name] /= max(keys, 1) ** 0.5
    return made


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64, **options) -> Case:
        return Case(label, _arguments(rng, *sizes) | options, dtype)

    small = (2, 3, (6, 6), (4, 5), 3, False)
    right = np.array([[True] * 6, [True] * 4 + [False] * 2])
    inside = np.array([[True, False, True, True, False, True], [False] * 3 + [True] * 3])
    return [
        case("one head, one key", 1, 1, (1, 1), (2, 3), 1, False),
        case("four keys, two projected", 1, 2, (4, 4), (3, 2), 2, False),
        case("two samples, three heads", *small),
        case("one projection for all heads", 2, 3, (5, 5), (3, 4), 2, True),
        case("as many projected keys as keys", 1, 2, (4, 4), (5, 3), 4, False),
        case("fewer queries than keys", 2, 2, (3, 7), (4, 2), 3, False),
        case("padding at the end", *small, key_mask=right),
        case("padding anywhere", *small, key_mask=inside),
        case("a scale of its own", *small, scale=0.3),
        larger(case("float32", *small, dtype=torch.float32, key_mask=right), key=100.0),
        Case(
            "all options at once, transposed tensors",
            transposed(_arguments(rng, *small)) | {"key_mask": inside, "scale": 0.3},
        ),
        case("no queries", 2, 2, (0, 4), (3, 2), 2, False),
    ]


def _by_chance(draw: Draw) -> Case:
    keys = draw.one_of(4, 2, 7)
    sizes = (
        draw.one_of(1, 2), draw.one_of(2, 1, 3), (draw.one_of(3, 1, 6), keys),
        (draw.one_of(3, 1, 5), draw.one_of(2, 1, 4)), draw.one_of(2, 1, 3), draw.one_of(False, True),
    )  # fmt: skip
    arguments = _arguments(draw.numbers, *sizes)
    if draw.one_of(False, True):
        arguments["key_mask"] = draw.numbers.random((sizes[0], keys)) < 0.7
    return Case("sizes by chance", arguments, any_dtype(draw))


def _queries_alike(run: Run, case: Case) -> Problem | None:
    """In reverse order the queries have the same outputs, in reverse order."""
    turned = {"query": case.arguments["query"][:, :, ::-1].copy()}
    before, after = run.value(case), run.value(case, **turned)[:, :, ::-1]
    slack = run.expected(case)[1] + run.expected(case, **turned)[1]
    return unchanged(before, after, slack, "the queries come in reverse order", "a query's output")


def _padding(run: Run, case: Case) -> Problem | None:
    real = case.arguments["key_mask"][:, None, :, None]
    changed = {name: np.where(real, case.arguments[name], 5.0) for name in ("key", "value")}
    before, after = run.value(case), run.value(case, **changed)
    slack = run.expected(case)[1] + run.expected(case, **changed)[1]
    return unchanged(before, after, slack, "padding has other keys and values")


def _of_values(run: Run, case: Case) -> Problem | None:
    """Twice the projection of the values, twice the output."""
    changed = {"value_projection": 2 * case.arguments["value_projection"]}
    got, slack = run.value(case, **changed), run.expected(case, **changed)[1]
    what = "with the values' projection doubled, the output"
    return compare(2 * run.value(case), got, slack + 2 * run.expected(case)[1], what)


def _dense(run: Run, case: Case) -> Problem | None:
    """With identities for projections it is softmax attention."""
    a = case.arrays()
    one = np.eye(a["key"].shape[2])[None]
    changed = {"key_projection": one, "value_projection": one}
    expected = reference.attention(a["query"], a["key"], a["value"], scale=a.get("scale"))
    slack = 2 * run.expected(case, **changed)[1]
    return compare(
        expected, run.value(case, **changed), slack, "with identity projections, the output"
    )


LINFORMER_ATTENTION = Spec(
    name="linformer_attention",
    statement="linformer_attention(query, key, value, key_projection, value_projection, *, key_mask, scale): "
    "softmax(q (E k)^T scale) F v, where E = key_projection and F = value_projection make k keys and values of S. "
    "key_mask, True for real tokens: padding counts for nothing. scale: 1 / sqrt(d) by default. query "
    "(B, H, L, d), key (B, H, S, d), value (B, H, S, dv), projections (H, k, S) or (1, k, S), key_mask (B, S) "
    "-> (B, H, L, dv)",
    required=NAMES,
    reference=reference.linformer_attention,
    baseline=mutants.LinformerFormula(),
    cases=_cases,
    combine=_by_chance,
    num_drawn=5,
    checks=(
        Check(
            "the queries are alike",
            "Which projected keys a query reads does not depend on its position: none of them is a token.",
            _queries_alike,
            when=lambda case: case.arguments["query"].shape[2] > 1 and not case.is_empty,
        ),
        Check(
            "padding does nothing",
            "What the padding holds must not enter the sums over the sequence: zero it before the projection.",
            _padding,
            needs=("key_mask",),
            when=lambda case: not case.is_empty,
        ),
        Check(
            "values have a projection of their own",
            "E projects the keys, F the values.",
            _of_values,
            when=lambda case: not case.is_empty,
        ),
        Check(
            "the scale is that of the head dimension",
            "With the identity for both projections Linformer is softmax attention, scaled by 1 / sqrt(d).",
            _dense,
            when=lambda case: "key_mask" not in case.arguments and not case.is_empty,
        ),
    ),
    mutants=mistakes_in(mutants, of="linformer_attention"),
    chapter=17,
)  # fmt: skip
