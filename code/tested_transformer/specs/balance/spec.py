"""The Specs of balance among experts: the loss at balance and at collapse, the z-loss, the bias, the capacity."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import torch

from ... import reference
from ..checks import any_dtype, transposed
from ..compare import Problem, compare, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..moe.spec import _routing
from ..spec import Case, Check, Run, Spec
from . import mutants

# --- The balance loss -----------------------------------------------------------------------------

SMALL = 1e-6  # logits so small make flat probabilities, and still a choice


def _loss_arguments(
    rng: np.random.Generator, shape: tuple[int, ...], chosen: int
) -> dict[str, Any]:
    """Logits without near ties, at which the choice would jump."""
    return {"logits": _routing(rng, shape)["logits"], "num_chosen": chosen}


def _loss_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, shape, num_chosen, dtype=torch.float64, **options) -> Case:
        return Case(label, _loss_arguments(rng, shape, num_chosen) | options, dtype)

    padded = np.array([[True, True, True, False], [False, True, True, True]])
    return [
        case("three tokens, two experts", (3, 2), 1),
        case("five tokens, two of four", (5, 4), 2),
        case("two sequences", (2, 4, 3), 2),
        case("two sequences of other tokens", (2, 6, 5), 1),
        case("padding", (2, 4, 5), 2, real=padded),
        case("padding, one expert", (2, 4, 3), 1, real=padded[:, ::-1]),
        case("every expert", (4, 3), 3),
        case("one token", (1, 4), 2),
        case("float32", (2, 4, 6), 3, torch.float32, real=padded),
        Case("transposed tensors", transposed(_loss_arguments(rng, (5, 4), 2))),
    ]


def _loss_by_chance(draw: Draw) -> Case:
    shape = draw.one_of((3,), (2, 3), (2, 1, 4))
    experts = draw.one_of(3, 2, 5)
    chosen = min(draw.one_of(1, 2, 3), experts)
    arguments = _loss_arguments(draw.numbers, (*shape, experts), chosen)
    if draw.one_of(False, True):
        real = draw.numbers.random(shape) < 0.6
        real[(0,) * len(shape)] = True
        arguments["real"] = real
    return Case("sizes by chance", arguments, any_dtype(draw))


def _collapsed(run: Run, case: Case) -> Problem | None:
    """Every token is as good as sure of expert 0."""
    logits = 0.1 * case.arguments["logits"]
    logits[..., 0] = logits.max() + 60.0
    wanted = np.asarray(float(logits.shape[-1]))
    slack = case.rounding(logits.size) * logits.shape[-1]
    return compare(wanted, run.value(case, logits=logits), slack, "the loss of a collapsed router")


def _flat(run: Run, case: Case) -> Problem | None:
    """Each probability is 1 / E but for a factor of at most exp(2 SMALL max), and the frequencies sum to k."""
    logits = SMALL * case.arguments["logits"]
    chosen = case.arguments["num_chosen"]
    slack = chosen * (np.expm1(2 * np.abs(logits).max()) + case.rounding(logits.size))
    got = run.value(case, logits=logits)
    return compare(np.asarray(float(chosen)), got, slack, "the loss of flat probabilities")


def _padding(run: Run, case: Case) -> Problem | None:
    logits, real = case.arguments["logits"], case.arguments["real"]
    others = np.where(real[..., None], logits, np.arange(logits.shape[-1]))
    return unchanged(
        run.value(case), run.value(case, logits=others), 2 * run.expected(case)[1],
        "padding has other logits", "the loss",
    )  # fmt: skip


def _no_order(run: Run, case: Case) -> Problem | None:
    """Tokens of one sequence stand in another."""
    logits = case.arguments["logits"]
    tokens = logits.reshape(-1, logits.shape[-1])
    order = np.argsort(tokens[:, 0])
    other = tokens[order].reshape(logits.shape)
    return unchanged(
        run.value(case), run.value(case, logits=other), 2 * run.expected(case)[1],
        "the tokens of the batch are sorted", "the loss",
    )  # fmt: skip


PADDING = Check(
    "padding does not count",
    "Padding is no token: what the router makes of it has no part in a loss.",
    _padding,
    needs=("real",),
    when=lambda case: not case.arguments["real"].all(),
)

BALANCE_LOSS = Spec(
    name="balance_loss",
    statement="balance_loss(logits, num_chosen, *, real): E sum_i f_i P_i over the E experts, where f_i is the number "
    "of tokens that have expert i among their num_chosen most probable ones divided by the number of tokens, and P_i "
    "the mean of its probability, a softmax over all experts. Tokens that are not real count for nothing. "
    "logits (*tokens, E), real (*tokens) -> ()",
    required=("logits", "num_chosen"),
    reference=reference.balance_loss,
    baseline=mutants.BalanceFormula(),
    cases=_loss_cases,
    combine=_loss_by_chance,
    num_drawn=4,
    checks=(
        Check(
            "flat probabilities cost k",
            "With P of 1 / E the loss is the sum of the frequencies, which is k, the experts per token.",
            _flat,
            when=lambda case: case.dtype == torch.float64,
        ),
        Check(
            "a router that collapsed costs the most",
            "Every token gives expert 0 a probability of 1: f and P of it are 1, and the loss is the number of experts.",
            _collapsed,
        ),
        PADDING,
        Check(
            "tokens have no order",
            "f and P are means over all tokens of the batch, whichever sequence they stand in.",
            _no_order,
            when=lambda case: "real" not in case.arguments,
        ),
    ),
    mutants=mistakes_in(mutants, "balance_loss"),
    chapter=21,
)

# --- The z-loss -----------------------------------------------------------------------------------


def _z_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *shape, dtype=torch.float64, **options) -> Case:
        return Case(label, {"logits": 2 * rng.normal(size=shape)} | options, dtype)

    real = np.array([[True, False, True], [True, True, False]])
    return [
        case("one token", 1, 3),
        case("four tokens", 4, 2),
        case("two sequences", 2, 3, 4),
        case("padding", 2, 3, 5, real=real),
        case("float32", 2, 3, 6, dtype=torch.float32, real=real),
    ]


def _zero_logits(run: Run, case: Case) -> Problem | None:
    logits = 0 * case.arguments["logits"]
    wanted = np.asarray(np.log(logits.shape[-1]) ** 2)
    slack = case.rounding(logits.size) * (1 + wanted)
    return compare(wanted, run.value(case, logits=logits), slack, "the loss of logits of 0")


def _large(run: Run, case: Case) -> Problem | None:
    got = run.value(case, logits=case.arguments["logits"] + 1000.0)
    return (
        None if np.isfinite(got).all() else Problem("a finite loss of logits near 1000", f"{got}")
    )


ROUTER_Z_LOSS = Spec(
    name="router_z_loss",
    statement="router_z_loss(logits, *, real): the mean over the real tokens of the square of log sum exp of a token's "
    "logits. logits (*tokens, E), real (*tokens) -> ()",
    required=("logits",),
    reference=reference.router_z_loss,
    baseline=mutants.z_formula,
    cases=_z_cases,
    checks=(
        Check(
            "logits of zero cost the squared logarithm",
            "The sum of E ones is E: the loss is (ln E)^2.",
            _zero_logits,
        ),
        Check("large logits stay finite", "The maximum is subtracted before exp.", _large),
        PADDING,
    ),
    mutants=mistakes_in(mutants, "router_z_loss"),
    chapter=21,
)

# --- The step of the bias -------------------------------------------------------------------------


def _step_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, counts, rate, dtype=torch.float64) -> Case:
        bias = 0.1 * rng.normal(size=len(counts))
        return Case(label, {"bias": bias, "counts": np.array(counts), "rate": rate}, dtype)

    return [
        case("two experts", [3, 1], 0.5),
        case("balance", [4, 4, 4], 0.5),
        case("one at the mean", [1001, 1002, 1003], 0.25),
        case("two idle experts", [0, 7, 0, 3, 2], 0.125),
        case("float32", [9, 0, 0, 1], 0.001, torch.float32),
    ]


def _directions(run: Run, case: Case) -> Problem | None:
    counts = case.arguments["counts"]
    moved = run.value(case, bias=0 * case.arguments["bias"])
    if ((moved > 0) == (counts < counts.mean())).all():
        return None
    return Problem("a bias that rises where the count is below the mean", f"steps of {moved}")


def _one_size(run: Run, case: Case) -> Problem | None:
    moved = np.abs(run.value(case, bias=0 * case.arguments["bias"]))
    size = moved[moved > 0]
    wanted = np.full(size.shape, case.arguments["rate"])
    return compare(wanted, size, case.rounding(2), "the size of the steps")


BALANCE_BIAS_STEP = Spec(
    name="balance_bias_step",
    statement="balance_bias_step(bias, counts, rate): bias plus rate for experts whose count is below the mean of all "
    "counts, minus rate for those above it. bias and counts (E) -> (E)",
    required=("bias", "counts", "rate"),
    reference=reference.balance_bias_step,
    baseline=mutants.step_formula,
    cases=_step_cases,
    checks=(
        Check(
            "idle experts rise, crowded ones sink",
            "A larger bias means more tokens: it goes to experts that have too few.",
            _directions,
        ),
        Check(
            "every step has one size",
            "The rule takes the sign of the imbalance alone, so that no batch moves a bias by more than the rate.",
            _one_size,
        ),
    ),
    mutants=mistakes_in(mutants, "balance_bias_step"),
    chapter=21,
)

# --- Capacity -------------------------------------------------------------------------------------


def _choices(rng: np.random.Generator, tokens: int, count: int, chosen: int) -> np.ndarray:
    drawn = [rng.permutation(count)[:chosen] for _ in range(tokens)]
    return np.array(drawn, dtype=np.int64).reshape(tokens, chosen)


def _capacity_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, tokens, count, chosen, capacity) -> Case:
        experts = _choices(rng, tokens, count, chosen)
        return Case(label, {"experts": experts, "capacity": capacity})

    crowd = np.array([[0, 1], [1, 0], [0, 2], [0, 1]])
    return [
        case("one token", 1, 2, 1, 1),
        Case("a crowd, and experts of large numbers", {"experts": 200 * crowd, "capacity": 2}),
        case("six tokens, one of two", 6, 2, 1, 2),
        case("six tokens, two of three", 6, 3, 2, 2),
        case("room for all", 3, 4, 2, 6),
        case("nine tokens, three of four", 9, 4, 3, 5),
        case("no tokens", 0, 3, 2, 1),
    ]


def _capacity_by_chance(draw: Draw) -> Case:
    count, tokens = draw.one_of(3, 2, 5), draw.one_of(4, 2, 8)
    experts = _choices(draw.numbers, tokens, count, min(draw.one_of(2, 1), count))
    return Case("sizes by chance", {"experts": experts, "capacity": draw.one_of(2, 1, 3)})


def _limit(run: Run, case: Case) -> Problem | None:
    taken, limit = run.value(case), case.arguments["capacity"]
    used = Counter(case.arguments["experts"][taken.astype(bool)].tolist())
    most = max(used.values(), default=0)
    return None if most <= limit else Problem(f"at most {limit} for each expert", f"{most}")


def _first(run: Run, case: Case) -> Problem | None:
    """First choices are taken as if there were no others."""
    experts = case.arguments["experts"]
    alone = run.expected(case, experts=experts[:, :1].copy())[0]
    return compare(alone, run.value(case)[:, :1], 0.0, "which first choices are taken")


def _room(run: Run, case: Case) -> Problem | None:
    taken, experts = run.value(case).astype(bool), case.arguments["experts"]
    used = Counter(experts[taken].tolist())
    for expert in experts[~taken].tolist():
        if used[expert] < case.arguments["capacity"]:
            wanted = f"{case.arguments['capacity']} tokens for expert {expert}, which others wanted"
            return Problem(wanted, f"{used[expert]}")
    return None


WITHIN_CAPACITY = Spec(
    name="within_capacity",
    statement="within_capacity(experts, capacity): True for each choice that its expert has room for. An expert takes "
    "at most `capacity` choices: all first choices in the order of the tokens, then all second ones, and so on. "
    "experts (T, k) -> (T, k)",
    required=("experts", "capacity"),
    reference=reference.within_capacity,
    cases=_capacity_cases,
    combine=_capacity_by_chance,
    num_drawn=4,
    differentiable=False,
    checks=(
        Check("no expert has more than its capacity", "An expert has that much room.", _limit),
        Check(
            "first choices come first",
            "No second choice takes the room of a first one.",
            _first,
            when=lambda case: not case.is_empty,
        ),
        Check(
            "no room is left while a choice is dropped",
            "A choice is dropped only where its expert is full.",
            _room,
        ),
    ),
    mutants=mistakes_in(mutants, "within_capacity"),
    chapter=21,
)
