"""Exercise of chapter 17, on its page about random features."""

from __future__ import annotations

import numpy as np
import torch

from ..specs.checks import any_dtype
from ..specs.compare import Problem, compare, unchanged
from ..specs.draw import Draw
from ..specs.mistakes import mistake, mistakes
from ..specs.spec import Case, Check, Run, Spec

NAMES = ("query_features", "key_features", "value")


def _reference(query_features, key_features, value) -> np.ndarray:
    """Query by query, over the keys up to its own."""
    output = np.zeros((*query_features.shape[:-1], value.shape[-1]), value.dtype)
    for *batch, i in np.ndindex(query_features.shape[:-1]):
        at = tuple(batch)
        weights = [query_features[at][i] @ key_features[at][j] for j in range(i + 1)]
        for weight, vector in zip(weights, value[at], strict=False):
            output[at][i] += weight / sum(weights) * vector
    return output


def _by_matrix(query_features, key_features, value):
    """The baseline: the whole matrix of weights."""
    weights = (query_features @ key_features.mT).tril()
    return weights @ value / weights.sum(-1, keepdim=True)


@mistake(
    "the running sums without a denominator",
    rejected_by="values of one give ones",
    cause="The weights of a query must sum to 1: divide by the query's features times the sum of the keys' features.",
)
def without_denominator(query_features, key_features, value):
    """The numerator alone."""
    return (query_features @ key_features.mT).tril() @ value


@mistake(
    "the sums over all keys",
    rejected_by="a query does not depend on later keys",
    cause="Use cumsum along the tokens, not sum.",
)
def over_all_keys(query_features, key_features, value):
    """Bidirectional."""
    weights = query_features @ key_features.mT
    return weights @ value / weights.sum(-1, keepdim=True)


@mistake(
    "the denominator of all keys",
    rejected_by="values of one give ones",
    cause="The denominator is a running sum as well, over the same keys as the numerator.",
)
def denominator_of_all(query_features, key_features, value):
    """The numerator is causal."""
    weights = query_features @ key_features.mT
    return weights.tril() @ value / weights.sum(-1, keepdim=True)


@mistake(
    "each running sum divided by its own feature's",
    rejected_by="equals the reference",
    cause="The query's features weigh the numerators and the denominators first; then one number divides the other.",
    seen="lucidrains/performer-pytorch issue 21",
)
def feature_by_feature(query_features, key_features, value):
    """A mean for each feature, weighted by the query."""
    sums = key_features.cumsum(-2)  # B H L m
    state = (key_features[..., :, None] * value[..., None, :]).cumsum(-3)  # B H L m dv
    shares = query_features / query_features.sum(-1, keepdim=True)
    return ((shares / sums)[..., None, :] @ state)[..., 0, :]


def _arguments(rng: np.random.Generator, batch, heads, length, features, width) -> dict:
    shapes = (*2 * ((batch, heads, length, features),), (batch, heads, length, width))
    made = {name: rng.normal(size=shape) for name, shape in zip(NAMES, shapes, strict=True)}
    return {name: each if name == "value" else np.exp(each) for name, each in made.items()}


def _cases(rng: np.random.Generator) -> list[Case]:
    sizes = [(1, 1, 1, 2, 3), (1, 1, 3, 2, 2), (2, 3, 5, 4, 2), (1, 2, 6, 1, 3)]
    listed = [
        Case(f"{each[2]} tokens, {each[3]} features", _arguments(rng, *each)) for each in sizes
    ]
    return [*listed, Case("float32", _arguments(rng, 2, 2, 4, 3, 5), torch.float32)]


def _by_chance(draw: Draw) -> Case:
    sizes = draw.one_of(1, 2), draw.one_of(1, 3), draw.one_of(2, 1, 7), draw.one_of(2, 1, 5), 3
    return Case("sizes by chance", _arguments(draw.numbers, *sizes), any_dtype(draw))


def _ones(run: Run, case: Case) -> Problem | None:
    ones = np.ones_like(case.arguments["value"])
    slack = run.expected(case, value=ones)[1]
    return compare(ones, run.value(case, value=ones), slack, "with values of one, the output")


def _future(run: Run, case: Case) -> Problem | None:
    changed = {name: case.arguments[name].copy() for name in NAMES[1:]}
    for each in changed.values():
        each[:, :, -1] += 1.0
    before, after = run.value(case)[:, :, :-1], run.value(case, **changed)[:, :, :-1]
    slack = run.expected(case)[1] + run.expected(case, **changed)[1]
    return unchanged(before, after, slack, "the last key and value change", "an earlier output")


RUNNING_SUMS = Spec(
    name="ch17.running_sums",
    statement="running_sums(query_features, key_features, value): causal attention in which key j has the weight "
    "query_features[i] key_features[j], for j up to i, divided by the sum of these weights. All features are above 0. "
    "features (B, H, L, m), value (B, H, L, dv) -> (B, H, L, dv)",
    required=NAMES,
    reference=_reference,
    baseline=_by_matrix,
    cases=_cases,
    combine=_by_chance,
    num_drawn=3,
    checks=(
        Check(
            "values of one give ones",
            "The weights of each query sum to 1, whatever the features are.",
            _ones,
        ),
        Check(
            "a query does not depend on later keys",
            "The sums of query i end with key i.",
            _future,
            when=lambda case: case.arguments["value"].shape[2] > 1,
        ),
    ),
    mutants=mistakes(without_denominator, over_all_keys, denominator_of_all, feature_by_feature),
    chapter=17,
    points=2,
)

EXERCISES = (RUNNING_SUMS,)
