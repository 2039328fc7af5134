"""Exercises of chapter 20's main page: linear attention with its normalizer, and the delta rule with a decay."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from .. import reference
from ..specs.compare import Problem, compare, unchanged
from ..specs.delta_rule.spec import DELTA_RULE
from ..specs.mistakes import mistake, mistakes
from ..specs.spec import Case, Check, Run, Spec

# --- Linear attention -----------------------------------------------------------------------------


def _linear_reference(query, key, value):
    return reference.linear_attention(query, key, value)[0]


def linear_attention(query, key, value):
    """All scores of positive features, masked, divided by their sum."""
    q, k = functional.elu(query) + 1, functional.elu(key) + 1
    scores = (q @ k.mT).tril()
    return scores @ value / scores.sum(-1, keepdim=True)


@mistake(
    "nothing is divided",
    rejected_by="the weights sum to 1",
    cause="phi(q)^T S has to be divided by phi(q) . z, the sum of the scores.",
)
def not_divided(query, key, value):
    """The sums as they are."""
    q, k = functional.elu(query) + 1, functional.elu(key) + 1
    return (q @ k.mT).tril() @ value


@mistake(
    "elu without the 1",
    rejected_by="no weight is negative",
    cause="elu goes down to -1, and the sum of the scores may be 0.",
)
def without_one(query, key, value):
    """Features below 0."""
    scores = (functional.elu(query) @ functional.elu(key).mT).tril()
    return scores @ value / scores.sum(-1, keepdim=True)


@mistake(
    "the future is divided by, too",
    rejected_by="a token does not depend on later ones",
    cause="The normalizer has to sum over the keys up to the query's own token, as the numerator does.",
)
def normalizer_of_all(query, key, value):
    """Numerators are causal, denominators are not."""
    q, k = functional.elu(query) + 1, functional.elu(key) + 1
    return (q @ k.mT).tril() @ value / (q @ k.mT).sum(-1, keepdim=True)


@mistake(
    "a softmax of the masked scores",
    rejected_by="equals the reference",
    cause="Scores of features are divided by their sum. No exponential is taken.",
)
def softmax_of_scores(query, key, value):
    """Softmax attention on features."""
    q, k = functional.elu(query) + 1, functional.elu(key) + 1
    scores = q @ k.mT
    future = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -torch.inf).softmax(-1) @ value


def _linear_cases(rng: np.random.Generator) -> list[Case]:
    sizes = {
        "one token": (1, 1, 1, 2, 3),
        "two tokens": (1, 2, 2, 3, 2),
        "six tokens": (2, 3, 6, 4, 2),
    }
    made = {
        label: {
            "query": rng.normal(size=(*shape, d)),
            "key": rng.normal(size=(*shape, d)),
            "value": rng.normal(size=(*shape, dv)),
        }
        for label, (*shape, d, dv) in sizes.items()
    }
    cases = [Case(label, arguments) for label, arguments in made.items()]
    return [*cases, Case("float32", made["six tokens"], torch.float32)]


def _future(run: Run, case: Case) -> Problem | None:
    """Another last key and value: the outputs before stay."""
    changed = {name: case.arguments[name].copy() for name in ("key", "value")}
    for each in changed.values():
        each[:, :, -1] += 1.0
    before, after = run.value(case)[:, :, :-1], run.value(case, **changed)[:, :, :-1]
    slack = run.expected(case)[1] + run.expected(case, **changed)[1]
    return unchanged(before, after, slack, "the last token changes", "an earlier output")


def _sum_to_one(run: Run, case: Case) -> Problem | None:
    ones = np.ones_like(case.arguments["value"])
    slack = run.expected(case, value=ones)[1]
    what = "where all values are 1, the outputs"
    return compare(ones, run.value(case, value=ones), slack, what)


def _no_negative(run: Run, case: Case) -> Problem | None:
    """Weights, read off values that are 1 for one token and 0 for the others."""
    for token in range(case.arguments["value"].shape[2]):
        value = np.zeros_like(case.arguments["value"])
        value[:, :, token] = 1.0
        least = run.value(case, value=value).min()
        if least < -run.expected(case, value=value)[1]:
            return Problem(f"weights of token {token} of at least 0", f"{least:.3g}")
    return None


LINEAR = Spec(
    name="ch20.linear_attention",
    statement="linear_attention(query, key, value): causal linear attention with the features elu(x) + 1 of queries "
    "and keys; each output is divided by the sum of its scores. query and key (B, H, L, d), value (B, H, L, dv) -> "
    "(B, H, L, dv)",
    required=("query", "key", "value"),
    reference=_linear_reference,
    baseline=linear_attention,
    cases=_linear_cases,
    checks=(
        Check(
            "a token does not depend on later ones",
            "A query reads the keys up to its own token, in the numerator and in the denominator.",
            _future,
            when=lambda case: case.arguments["query"].shape[2] > 1,
        ),
        Check(
            "the weights sum to 1",
            "The output is a weighted mean of the values.",
            _sum_to_one,
        ),
        Check(
            "no weight is negative",
            "Features must be positive.",
            _no_negative,
        ),
    ),
    mutants=mistakes(not_divided, without_one, normalizer_of_all, softmax_of_scores),
    chapter=20,
    points=2,
)

# --- The delta rule with a decay ------------------------------------------------------------------

OTHER_TOPICS = {
    "one decay for all channels", "the rule normalizes the keys", "decays as a quotient of products",
}  # fmt: skip

GATED = DELTA_RULE.narrowed(
    lambda case: (
        not case.is_empty
        and not case.arguments.keys() & {"scale", "chunk_size"}
        and case.arguments.get("log_decay") is not None
        and case.arguments["log_decay"].shape == case.arguments["beta"].shape
    ),
    name="ch20.gated_delta_rule",
    statement="gated_delta_rule(query, key, value, beta, log_decay, state=None) -> (output, new state). At each token "
    "the state is multiplied by exp(log_decay), then takes in key (beta (value - key^T state))^T, and the output is "
    "query^T state / sqrt(d). query and key (B, H, L, d), value (B, H, L, dv), beta and log_decay (B, H, L), state "
    "(B, H, d, dv), 0 if None -> (B, H, L, dv) and (B, H, d, dv)",
    required=("query", "key", "value", "beta", "log_decay"),
    mutants=[mutant for mutant in DELTA_RULE.mutants if mutant.name not in OTHER_TOPICS],
    points=3,
)

EXERCISES = (LINEAR, GATED)
