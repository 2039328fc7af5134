"""Exercises of chapter 21's main page: who is chosen, what imbalance costs, and a bias that balances."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from .. import reference
from ..specs.balance.spec import BALANCE_BIAS_STEP, BALANCE_LOSS
from ..specs.compare import Problem, compare
from ..specs.mistakes import mistake, mistakes
from ..specs.moe.spec import _routing
from ..specs.spec import Case, Check, Run, Spec

# --- The weights of the chosen experts ------------------------------------------------------------


def _reference(logits: np.ndarray, num_chosen: int) -> np.ndarray:
    return reference.expert_routing(logits, num_chosen, normalize=True)


def top_k_weights(logits, num_chosen):
    """A softmax over the chosen logits alone."""
    chosen = logits.topk(num_chosen, -1).indices
    mask = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, chosen, True)
    return logits.masked_fill(~mask, -torch.inf).softmax(-1)


@mistake(
    "probabilities that are not divided by their sum",
    rejected_by="a token's weights sum to 1",
    cause="The softmax runs over all experts; those that are not chosen keep their part of the sum.",
)
def not_divided(logits, num_chosen):
    """The probabilities of the chosen experts."""
    return logits.softmax(-1) * (top_k_weights(logits, num_chosen) > 0)


@mistake(
    "logits of zero for the others",
    rejected_by="as many experts as asked for",
    cause="exp(0) is 1: an expert with a logit of 0 has a weight. Masked logits are -inf.",
)
def masked_with_zero(logits, num_chosen):
    """Filled with 0 before the softmax."""
    return (logits * (top_k_weights(logits, num_chosen) > 0)).softmax(-1)


@mistake(
    "the same weight for all chosen experts",
    rejected_by="equals the reference",
    cause="The router's logits say how much each expert counts, not only whether it is chosen.",
)
def same_weight(logits, num_chosen):
    """1 / k each, with a gradient of 0."""
    return (top_k_weights(logits, num_chosen) > 0).to(logits) / num_chosen + 0 * logits


def _cases(rng: np.random.Generator) -> list[Case]:
    sizes = {
        "one of two": ((3, 2), 1), "two of four": ((5, 4), 2), "two of eight": ((4, 8), 2),
        "three of five": ((2, 5), 3), "every expert": ((3, 3), 3),
    }  # fmt: skip
    made = [
        Case(label, _routing(rng, shape) | {"num_chosen": chosen})
        for label, (shape, chosen) in sizes.items()
    ]
    return [*made, Case("float32", made[1].arguments, torch.float32)]


def _count(run: Run, case: Case) -> Problem | None:
    found = (run.value(case) != 0).sum(-1)
    wanted = np.full(found.shape, case.arguments["num_chosen"])
    return compare(wanted, found, 0.0, "the number of experts with a weight")


def _sums(run: Run, case: Case) -> Problem | None:
    sums = run.value(case).sum(-1)
    return compare(np.ones_like(sums), sums, 4 * case.rounding(8), "the sum of a token's weights")


TOP_K_WEIGHTS = Spec(
    name="ch21.top_k_weights",
    statement="top_k_weights(logits, num_chosen): a softmax over the num_chosen largest logits of each token, and 0 for "
    "all other experts. logits (T, E) -> (T, E)",
    required=("logits", "num_chosen"),
    reference=_reference,
    baseline=top_k_weights,
    cases=_cases,
    checks=(
        Check("as many experts as asked for", "All other experts have a weight of 0.", _count),
        Check("a token's weights sum to 1", "The softmax runs over the chosen experts.", _sums),
    ),
    mutants=mistakes(not_divided, masked_with_zero, same_weight),
    chapter=21,
    points=2,
)

# --- What imbalance costs -------------------------------------------------------------------------

WITHOUT_PADDING = BALANCE_LOSS.narrowed(
    lambda case: "real" not in case.arguments and case.arguments["logits"].ndim == 2,
    name="ch21.balance_loss",
    statement="balance_loss(logits, num_chosen): E sum_i f_i P_i over the E experts. f_i is the number of tokens that "
    "have expert i among their num_chosen most probable ones, divided by the number of tokens; P_i is the mean of its "
    "probability, a softmax over all experts. logits (T, E) -> ()",
    mutants=[
        m for m in BALANCE_LOSS.mutants
        if m.name not in ("padding counts as tokens", "a mean over the padded length", "each sequence balanced by itself")
    ],
    points=2,
)  # fmt: skip

EXERCISES = (
    TOP_K_WEIGHTS,
    WITHOUT_PADDING,
    replace(BALANCE_BIAS_STEP, name="ch21.bias_step", points=1),
)
