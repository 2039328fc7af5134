"""The exercise of chapter 20 on its page about RWKV-4: the attention weights that the recurrence stands for."""

from __future__ import annotations

import numpy as np
import torch

from ..specs.compare import Problem, compare, unchanged
from ..specs.mistakes import mistake, mistakes
from ..specs.spec import Case, Check, Run, Spec


def _reference(key, log_decay, bonus):
    """Each row by itself: exponentials of scores minus the largest, divided by their sum."""
    length, features = key.shape
    weights = np.zeros((length, length, features), key.dtype)
    for i, d in np.ndindex(length, features):
        past = [key[j, d] + (i - 1 - j) * log_decay[d] for j in range(i)]
        scores = np.array([*past, key[i, d] + bonus[d]], key.dtype)
        exponentials = np.exp(scores - scores.max())
        weights[i, : i + 1, d] = exponentials / exponentials.sum()
    return weights


def _scores(key, log_decay, shift=1):
    """Row i, column j: the key of j, faded by all tokens between it and i."""
    rows = torch.arange(len(key))
    between = (rows[:, None] - rows - shift)[..., None]  # L L 1
    return key + between * log_decay  # L L D


def _with_own(scores, own):
    rows = torch.arange(len(own))
    scores = scores.masked_fill((rows[:, None] <= rows)[..., None], -torch.inf)
    return torch.where((rows[:, None] == rows)[..., None], own, scores)


def wkv_weights(key, log_decay, bonus):
    """One softmax per token and feature."""
    return _with_own(_scores(key, log_decay), (key + bonus)[:, None]).softmax(1)


@mistake(
    "the token before has faded",
    rejected_by="the token before counts in full",
    cause="Token j fades i - 1 - j times: not at all in the row of the next token.",
)
def faded_once_more(key, log_decay, bonus):
    """i - j times."""
    return _with_own(_scores(key, log_decay, shift=0), (key + bonus)[:, None]).softmax(1)


@mistake(
    "the bonus for every token",
    rejected_by="the bonus counts for the token itself",
    cause="The bonus is added to the key of the newest token of a row alone.",
)
def bonus_for_all(key, log_decay, bonus):
    """Every key gets it, so that the softmax loses it."""
    return _with_own(_scores(key + bonus, log_decay), (key + bonus)[:, None]).softmax(1)


@mistake(
    "a softmax over the features",
    rejected_by="the weights of a feature sum to 1",
    cause="Each feature has a softmax over the tokens of its own.",
)
def over_features(key, log_decay, bonus):
    """The last axis instead of the tokens'."""
    weights = _with_own(_scores(key, log_decay), (key + bonus)[:, None]).softmax(2)
    return weights.nan_to_num()


@mistake(
    "exponentials of the scores as they are",
    rejected_by="large keys stay finite",
    cause="exp(800) is infinity. A softmax subtracts the largest score first.",
)
def not_shifted(key, log_decay, bonus):
    """Overflows."""
    weights = _with_own(_scores(key, log_decay), (key + bonus)[:, None]).exp()
    return weights / weights.sum(1, keepdim=True)


@mistake(
    "later tokens are weighted, too",
    rejected_by="a token does not depend on later ones",
    cause="In row i the scores of the columns after i have to be -infinity.",
)
def not_causal(key, log_decay, bonus):
    """Their scores would even grow with the distance: taken as they are."""
    scores = _scores(key, log_decay)
    own = torch.eye(len(key), dtype=torch.bool)[..., None]
    return torch.where(own, (key + bonus)[:, None], scores).softmax(1)


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, length, features, dtype=torch.float64) -> Case:
        arguments = {
            "key": 2 * rng.normal(size=(length, features)),
            "log_decay": -0.05 - rng.exponential(0.5, features),
            "bonus": 0.3 + rng.random(features),
        }
        return Case(label, arguments, dtype)

    return [
        case("one token", 1, 2),
        case("two tokens", 2, 1),
        case("six tokens", 6, 3),
        case("seven tokens, float32", 7, 2, torch.float32),
    ]


def _future(run: Run, case: Case) -> Problem | None:
    """Another last key: the rows before stay."""
    key = case.arguments["key"].copy()
    key[-1] += 1.0
    slack = run.expected(case)[1] + run.expected(case, key=key)[1]
    before, after = run.value(case)[:-1], run.value(case, key=key)[:-1]
    return unchanged(before, after, slack, "the last key changes", "an earlier row")


def _sum_to_one(run: Run, case: Case) -> Problem | None:
    got = run.value(case).sum(1)
    slack = len(got) * run.expected(case)[1]
    return compare(np.ones_like(got), got, slack, "sums over the tokens")


def _finite(run: Run, case: Case) -> Problem | None:
    key = case.arguments["key"] + 800.0
    if not np.isfinite(run.value(case, key=key)).all():
        return Problem("finite weights for keys near 800", "NaN or infinity")
    return None


def _before(run: Run, case: Case) -> Problem | None:
    """Keys of 0, no bonus, decays of nearly 0: a half for a token, a half for the one before it."""
    a = case.arguments
    changed = {"key": 0 * a["key"], "bonus": 0 * a["bonus"], "log_decay": 0 * a["log_decay"] - 60}
    slack = run.expected(case, **changed)[1]
    got = run.value(case, **changed)[1]
    expected = np.zeros_like(got)
    expected[:2] = 0.5
    return compare(expected, got, slack, "with decays of nearly 0 and keys of 0, the second row")


def _own_bonus(run: Run, case: Case) -> Problem | None:
    """A very large bonus: each token has all of its own row."""
    bonus = case.arguments["bonus"] + 80.0
    got, slack = run.value(case, bonus=bonus), run.expected(case, bonus=bonus)[1]
    expected = np.broadcast_to(np.eye(len(got))[..., None], got.shape)
    return compare(expected, got, slack, "with a bonus of 80, the weights")


def _is_long(case: Case) -> bool:
    return len(case.arguments["key"]) > 1


WKV_WEIGHTS = Spec(
    name="ch20.wkv_weights",
    statement="wkv_weights(key, log_decay, bonus): the attention weights of RWKV-4. Feature by feature, row i is a "
    "softmax over the tokens j up to i, with the scores key_j + (i - 1 - j) log_decay for j < i, and key_i + bonus for "
    "i itself. key (L, D), log_decay and bonus (D) -> (L, L, D), 0 where j > i",
    required=("key", "log_decay", "bonus"),
    reference=_reference,
    baseline=wkv_weights,
    cases=_cases,
    checks=(
        Check(
            "large keys stay finite",
            "Subtract the largest score of a row before any exponential; softmax does.",
            _finite,
        ),
        Check(
            "a token does not depend on later ones",
            "Row i has weights for the tokens up to i alone.",
            _future,
            when=_is_long,
        ),
        Check(
            "the weights of a feature sum to 1",
            "The softmax runs over the tokens, for each feature by itself.",
            _sum_to_one,
        ),
        Check(
            "the bonus counts for the token itself",
            "The bonus raises a token's weight in its own row alone.",
            _own_bonus,
            when=_is_long,
        ),
        Check(
            "the token before counts in full",
            "Fading begins with the token after the next.",
            _before,
            when=_is_long,
        ),
    ),
    mutants=mistakes(faded_once_more, bonus_for_all, over_features, not_shifted, not_causal),
    chapter=20,
    points=3,
)

EXERCISES = (WKV_WEIGHTS,)
