"""The exercise of chapter 17 in which the reader writes a test: does an attention depend on the future?"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..specs.compare import Problem, compare
from ..specs.mistakes import mistake, mistakes
from ..specs.spec import Case, Check, Run, Spec

# --- Attention that is causal, and attention that is not ------------------------------------------


def _weights(scores: Tensor, visible: Tensor) -> Tensor:
    return scores.masked_fill(~visible, -math.inf).softmax(-1)


def _scores(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.mT / math.sqrt(query.shape[-1])


def _past(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


def full(query, key, value):
    """All earlier keys."""
    return _weights(_scores(query, key), _past(query.shape[2])) @ value


def window(query, key, value):
    """The last three keys."""
    visible = _past(query.shape[2])
    return _weights(_scores(query, key), visible & ~visible.tril(-3)) @ value


def best_three(query, key, value):
    """The future is masked, then the three best keys are selected."""
    scores = _scores(query, key).masked_fill(~_past(query.shape[2]), -math.inf)
    best = scores.topk(min(3, scores.shape[-1])).indices
    selected = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True)
    return _weights(scores, selected & _past(query.shape[2])) @ value


def strictly_earlier(query, key, value):
    """Without the query's own key: the first query has none, and its output is NaN."""
    return _weights(_scores(query, key), _past(query.shape[2]).tril(-1)) @ value


def everything(query, key, value):
    """No mask at all."""
    return _scores(query, key).softmax(-1) @ value


def best_of_all(query, key, value):
    """The three best keys are selected, then the future is masked."""
    scores, past = _scores(query, key), _past(query.shape[2])
    best = scores.topk(min(3, scores.shape[-1])).indices
    selected = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True) & past
    return _weights(scores, selected).masked_fill(~selected, 0.0) @ value


def masked_too_late(query, key, value):
    """The softmax runs over all keys, then the future is masked: values do not leak, keys do."""
    return _scores(query, key).softmax(-1).masked_fill(~_past(query.shape[2]), 0.0) @ value


def mean_value(query, key, value):
    """Every output has the mean of all values subtracted: keys do not leak, values do."""
    return full(query, key, value) - value.mean(2, keepdim=True)


def one_pair(query, key, value):
    """The first token reads the second one, and no other reads the future."""
    visible = _past(query.shape[2]).clone()
    visible[0, 1] = True
    return _weights(_scores(query, key), visible) @ value


def later_query(query, key, value):
    """Each query has the next one added to it: neither keys nor values leak, queries do."""
    following = torch.cat([query[:, :, 1:], query[:, :, -1:]], dim=2)
    return full(query + following, key, value)


CAUSAL: dict[str, Callable[..., Tensor]] = {
    each.__name__: each for each in (full, window, best_three, strictly_earlier)
}
LEAKY: dict[str, Callable[..., Tensor]] = {
    each.__name__: each
    for each in (everything, best_of_all, masked_too_late, mean_value, one_pair, later_query)
}

# --- The test --------------------------------------------------------------------------------------


def _reference(attend: str, query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
    """What each of the functions above does by construction."""
    return np.asarray(attend in LEAKY)


def _build(candidate: Any, arguments: dict[str, Any]) -> Callable[..., Any]:
    """The candidate gets the function, of which a case has the name."""

    def call(attend: str, query: Tensor, key: Tensor, value: Tensor) -> Any:
        return candidate((CAUSAL | LEAKY)[attend], query, key, value)

    return call


def _changes(attend, given, position, *, which=(0, 1, 2), own=0, equal_nan=True):
    """Whether an output before `position` changes when the token there is another one."""
    before = attend(*given)
    changed = [each.clone() for each in given]
    for n in which:
        changed[n][:, :, position] += torch.randn_like(changed[n][:, :, position])
    after, stop = attend(*changed), position + own
    same = torch.allclose(after[:, :, :stop], before[:, :, :stop], equal_nan=equal_nan)
    return not same


def leaks(attend, query, key, value):
    """Every token but the first is replaced, one at a time."""
    given = (query, key, value)
    return any(_changes(attend, given, position) for position in range(1, query.shape[2]))


@mistake(
    "only the last token is replaced",
    rejected_by="a leak between any two tokens is found",
    symptom="The test passes, and the first tokens read the future all the same.",
    cause="A method may leak at one position and at no other: replace every token in turn.",
)
def last_token_alone(attend, query, key, value):
    """One position."""
    return _changes(attend, (query, key, value), query.shape[2] - 1)


@mistake(
    "only the value is replaced",
    rejected_by="a leak without the value is found",
    symptom="The test passes; the model trains too well and generates nonsense.",
    cause="A later key can change a softmax, or a selection, without its value being read.",
)
def value_alone(attend, query, key, value):
    """The key and the query of the token stay."""
    given = (query, key, value)
    return any(_changes(attend, given, n, which=(2,)) for n in range(1, query.shape[2]))


@mistake(
    "the token's own output counts",
    rejected_by="causal attention passes",
    symptom="The test fails for every attention, correct ones included.",
    cause="The output at the replaced position may change: compare the outputs before it.",
)
def own_output(attend, query, key, value):
    """One output too many."""
    given = (query, key, value)
    return any(_changes(attend, given, n, own=1) for n in range(1, query.shape[2]))


@mistake(
    "NaN counts as a change",
    rejected_by="causal attention passes",
    symptom="A causal method is reported as leaking, because its first query has no key.",
    cause="NaN is not equal to itself: a query without keys needs equal_nan=True.",
)
def nan_differs(attend, query, key, value):
    """Without equal_nan."""
    given = (query, key, value)
    return any(_changes(attend, given, n, equal_nan=False) for n in range(1, query.shape[2]))


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(attend: str) -> Case:
        names, shape = ("query", "key", "value"), (2, 3, 12, 4)  # a selection leaks in most heads
        made = {name: rng.normal(size=shape) for name in names}
        return Case(attend.replace("_", " "), {"attend": attend} | made)

    return [case(name) for name in CAUSAL | LEAKY]


def _says(run: Run, case: Case) -> Problem | None:
    """Whether the answer about the function of the case is right."""
    return compare(run.expected(case)[0], run.value(case), 0.0, "the answer")


def _among(*attends: str) -> Callable[[Case], bool]:
    return lambda case: case.arguments["attend"] in attends


LEAKS = Spec(
    name="ch17.leaks",
    statement="leaks(attend, query, key, value): True if an output of attend(query, key, value) changes when a later "
    "token is replaced, else False. query, key and value have shape (B, H, L, d), as does the output; an output "
    "may be NaN where a query has no key",
    required=("attend", "query", "key", "value"),
    reference=_reference,
    build=_build,
    differentiable=False,
    cases=_cases,
    checks=(
        Check(
            "causal attention passes",
            "The output of the replaced token itself may change, and NaN in the same output is no change.",
            _says,
            when=_among(*CAUSAL),
        ),
        Check(
            "a leak between any two tokens is found",
            "Replace each token in turn, and compare all outputs before it.",
            _says,
            when=_among("one_pair", "mean_value", "everything"),
        ),
        Check(
            "a leak without the value is found",
            "Replace the whole token: its query, its key and its value.",
            _says,
            when=_among("masked_too_late", "best_of_all", "later_query"),
        ),
    ),
    mutants=mistakes(last_token_alone, value_alone, own_output, nan_differs),
    chapter=17,
    points=2,
)

EXERCISES = (LEAKS,)
