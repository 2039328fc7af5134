"""The Specs of a mixture of experts: who is chosen, what they add up to, and GPT-OSS's activation."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ... import reference
from ..checks import any_dtype, transposed
from ..compare import Problem, compare, unchanged
from ..draw import Draw, attempts
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants

# --- Routing --------------------------------------------------------------------------------------

GAP = 1e-3  # between one preference and the next, far above rounding: near a tie either is right


def _routing(rng: np.random.Generator, shape: tuple[int, ...], **options: Any) -> dict[str, Any]:
    """Logits without near ties, among experts or groups, also without the bias."""
    middle, spread = options.pop("middle", 0.0), options.pop("spread", 1.5)
    for _ in attempts():
        logits = middle + spread * rng.normal(size=shape)
        if not logits.size or _is_clear(logits, **options):
            return {"logits": logits} | options


def _is_clear(
    logits: np.ndarray, scoring="softmax", bias=None, num_groups=1, **_options: Any
) -> bool:
    scores = 1 / (1 + np.exp(-logits))
    if scoring == "softmax":
        scores = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    for preference in (scores,) if bias is None else (scores + bias,):
        grouped = np.sort(preference.reshape(*logits.shape[:-1], num_groups, -1), -1)
        values = [preference, grouped[..., -1], grouped[..., -2:].sum(-1)]
        if any(np.diff(np.sort(value, -1), axis=-1).min(initial=1.0) < GAP for value in values):
            return False
    return True


def _routing_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, shape, num_chosen, dtype=torch.float64, **options) -> Case:
        drawn = _routing(rng, shape, num_chosen=num_chosen, **options)
        order = ("logits", "num_chosen")
        return Case(label, {n: drawn[n] for n in (*order, *(drawn.keys() - set(order)))}, dtype)

    def sigmoid(experts: int, middle: float = 0.0, spread: float = 0.4) -> dict[str, Any]:
        return {"scoring": "sigmoid", "bias": middle + spread * rng.normal(size=experts)}

    groups = {"num_groups": 3, "num_kept_groups": 2}
    one_group = {"num_groups": 3, "num_kept_groups": 1}
    twelve = {"scoring": "sigmoid", "bias": 12 + 0.01 * rng.permutation(6.0 + np.arange(6))}
    return [
        case("three experts, one chosen", (1, 3), 1),
        case("two of four", (3, 4), 2),
        case("two of four, normalized", (3, 4), 2, normalize=True),
        case("scaled, not normalized", (2, 5), 2, scale=16.0),
        case("scaled and normalized", (2, 5), 3, scale=2.5, normalize=True),
        case("sigmoid", (3, 5), 2, **sigmoid(5), normalize=True),
        case("sigmoid, not normalized", (2, 4), 3, **sigmoid(4), scale=1.5),
        case("groups", (4, 6), 2, **groups),
        case("one group of three", (3, 9), 2, **one_group, normalize=True),
        case("groups and a bias", (4, 9), 3, **one_group, **sigmoid(9), normalize=True),
        case("negative biases", (3, 9), 4, **groups, **sigmoid(9, -3.0), scale=2.5),
        case("every expert", (2, 3), 3),
        case("axes of a batch", (2, 3, 4), 2, normalize=True),
        case("float32", (3, 6), 2, torch.float32, **groups, **sigmoid(6), normalize=True),
        case("a bias of 12", (2, 6), 2, torch.float32, **twelve, normalize=True, middle=-17.0, spread=0.3),
        Case("transposed tensors", transposed(_routing(rng, (3, 4), num_chosen=2))),
        case("no tokens", (0, 4), 2),
    ]  # fmt: skip


def _routing_by_chance(draw: Draw) -> Case:
    tokens, size, groups = draw.one_of(2, 1, 4), draw.one_of(2, 3), draw.one_of(1, 2, 3)
    options = {"num_groups": groups, "num_kept_groups": draw.one_of(1, groups)}
    most = size * options["num_kept_groups"]
    options |= {"num_chosen": min(draw.one_of(2, 1, 3), most)}
    if draw.one_of(False, True):
        options["scale"] = 2.5
    options |= draw.one_of({}, {"normalize": True})
    if draw.one_of(False, True):
        bias = draw.one_of(0.0, -2.0) + 0.4 * draw.numbers.normal(size=size * groups)
        options |= {"scoring": "sigmoid", "bias": bias}
    drawn = _routing(draw.numbers, (tokens, size * groups), **options)
    return Case("options by chance", drawn, any_dtype(draw))


def _count(run: Run, case: Case) -> Problem | None:
    wanted, got = case.arguments["num_chosen"], (run.value(case) != 0).sum(-1)
    if (got == wanted).all():
        return None
    return Problem(f"{wanted} experts for each token", f"{got.ravel().tolist()}")


def _few_groups(run: Run, case: Case) -> Problem | None:
    kept, groups = case.arguments["num_kept_groups"], case.arguments["num_groups"]
    weights = run.value(case)
    used = (weights.reshape(*weights.shape[:-1], groups, -1) != 0).any(-1).sum(-1)
    if (used <= kept).all():
        return None
    return Problem(f"experts of at most {kept} groups", f"of {used.ravel().tolist()}")


def _sum_to_scale(run: Run, case: Case) -> Problem | None:
    sums = run.value(case).sum(-1)
    wanted = np.full(sums.shape, float(case.arguments.get("scale", 1.0)))
    slack = case.arguments["num_chosen"] * run.expected(case)[1]
    return compare(wanted, sums, slack, "the sum of a token's weights")


def _scales(run: Run, case: Case) -> Problem | None:
    scale = case.arguments.get("scale", 1.0)
    once, twice = run.value(case, scale=1.0), run.value(case, scale=2.0)
    slack = 4 * run.expected(case)[1] / min(scale, 1.0)
    return compare(2 * once, twice, slack, "the weights at twice the scale")


def _same_bias(run: Run, case: Case) -> Problem | None:
    bias = case.arguments["bias"]
    before, after = run.value(case), run.value(case, bias=bias + 1.0)
    slack = 2 * run.expected(case)[1]
    return unchanged(before, after, slack, "every bias is larger by 1", "the weights")


def _large_bias(run: Run, case: Case) -> Problem | None:
    """The first experts, as many as are chosen, get a bias that no score makes up for."""
    bias, chosen = case.arguments["bias"].copy(), case.arguments["num_chosen"]
    bias[:chosen] = bias.max() + 9.0
    got = run.value(case, bias=bias)[..., :chosen]
    if (got != 0).all():
        return None
    return Problem(f"experts 0 to {chosen - 1}, whose bias is larger by 9 or more", "others")


def _all_count(run: Run, case: Case) -> Problem | None:
    """A logit that rises, of an expert that stays the least preferred, takes from all others."""
    logits = case.arguments["logits"]
    least = np.eye(logits.shape[-1])[logits.argmin(-1)]
    lifted = logits + 0.5 * (np.sort(logits, -1)[..., 1:2] - logits) * least
    before, after = run.value(case), run.value(case, logits=lifted)
    if (after <= before).all() and (after < before).any(-1).all():
        return None
    return Problem("smaller weights when the logit of an expert that is not chosen rises", "others")


EXPERT_ROUTING = Spec(
    name="expert_routing",
    statement='expert_routing(logits, num_chosen, *, scoring="softmax", bias, normalize, scale, num_groups, '
    "num_kept_groups): the weights of all experts, zero for those that are not chosen. Scores are a softmax over "
    "all experts or a sigmoid of each. A token chooses the num_chosen experts of the largest score plus bias, "
    "among the num_kept_groups best of num_groups groups of neighbors, a group being as good as its best expert "
    "(softmax) or the sum of its two best (sigmoid). Weights are their scores, without bias; normalize divides "
    "them by their sum, scale multiplies them. logits (*batch, E), bias (E) -> (*batch, E)",
    required=("logits", "num_chosen"),
    reference=reference.expert_routing,
    baseline=mutants.RoutingFormula(),
    cases=_routing_cases,
    combine=_routing_by_chance,
    num_drawn=3,
    checks=(
        Check(
            "as many experts as asked for",
            "Each token has num_chosen experts, whatever the other tokens have.",
            _count,
            when=lambda case: not case.is_empty,
        ),
        Check(
            "a large bias wins",
            "The bias decides who is chosen: that is what it is for.",
            _large_bias,
            needs=("bias",),
            when=lambda case: not case.is_empty and case.arguments.get("num_groups", 1) == 1,
        ),
        Check(
            "experts of few groups",
            "A token's experts belong to its best groups, runs of neighbors, whatever the signs of the scores.",
            _few_groups,
            needs=("num_kept_groups",),
            when=lambda case: not case.is_empty,
        ),
        Check(
            "one bias for all changes nothing",
            "The bias is for the choice; the weights are the scores without it.",
            _same_bias,
            needs=("bias",),
            when=lambda case: case.dtype == torch.float64 and not case.is_empty,
        ),
        Check(
            "normalized weights sum to the scale",
            "normalize divides the weights of the chosen experts by their sum; then they are scaled.",
            _sum_to_scale,
            needs=("normalize",),
            when=lambda case: case.dtype == torch.float64 and not case.is_empty,
        ),
        Check(
            "twice the scale, twice the weights",
            "The scale multiplies the weights once, normalized or not.",
            _scales,
            when=lambda case: case.dtype == torch.float64 and not case.is_empty,
        ),
        Check(
            "another logit changes the weights",
            "The softmax is over all experts: those that are not chosen count in its sum.",
            _all_count,
            when=lambda case: (
                case.dtype == torch.float64
                and "bias" not in case.arguments
                and not case.arguments.get("normalize")
                and case.arguments.get("num_groups", 1) == 1
                and case.arguments["num_chosen"] < case.arguments["logits"].shape[-1]
                and not case.is_empty
            ),
        ),
    ),
    mutants=mistakes_in(mutants, "expert_routing"),
    chapter=16,
)

# --- The mixture ----------------------------------------------------------------------------------

NAMES = ("x", "experts", "weights", "gate", "up", "down")


def _mixture(rng: np.random.Generator, tokens, chosen, count, sizes) -> dict[str, Any]:
    width, hidden = sizes
    experts = [rng.permutation(count)[:chosen] for _ in range(tokens)]
    return {
        "x": rng.normal(size=(tokens, width)),
        "experts": np.array(experts, dtype=np.int64).reshape(tokens, chosen),
        "weights": rng.uniform(0.2, 1.5, size=(tokens, chosen)),
        "gate": rng.normal(size=(count, hidden, width)),
        "up": rng.normal(size=(count, hidden, width)),
        "down": rng.normal(size=(count, width, hidden)),
    }


def _mixture_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64, **changes) -> Case:
        return Case(label, _mixture(rng, *sizes) | changes, dtype)

    crowd = np.array([[1, 0], [1, 2], [2, 1], [1, 0], [0, 1]])
    return [
        case("one token, one expert", 1, 1, 1, (2, 3)),
        case("one token, two experts", 1, 2, 2, (2, 3)),
        case("three tokens", 3, 2, 4, (3, 2)),
        case("all choose one expert", 5, 2, 3, (4, 2), experts=crowd),
        case("an expert that nobody chooses", 2, 1, 5, (3, 4)),
        case("every expert", 3, 3, 3, (2, 5)),
        case("float32", 4, 2, 3, (5, 6), dtype=torch.float32),
        Case("transposed tensors", transposed(_mixture(rng, 3, 2, 4, (3, 2)))),
        case("no tokens", 0, 2, 3, (4, 2)),
    ]


def _mixture_by_chance(draw: Draw) -> Case:
    count = draw.one_of(3, 2, 4)
    sizes = draw.one_of(3, 1, 6), min(draw.one_of(2, 1, 3), count), count
    widths = draw.one_of(3, 2), draw.one_of(4, 1)
    return Case("sizes by chance", _mixture(draw.numbers, *sizes, widths), any_dtype(draw))


def _alone(run: Run, case: Case) -> Problem | None:
    together, slack = run.value(case), 2 * run.expected(case)[1]
    per_token = ("x", "experts", "weights")
    for token in range(len(together)):
        own = {name: case.arguments[name][token : token + 1] for name in per_token}
        alone = run.value(case, **own)[0]
        if problem := unchanged(together[token], alone, slack, "it comes alone", f"token {token}"):
            return problem
    return None


def _any_order(run: Run, case: Case) -> Problem | None:
    turned = {name: case.arguments[name][:, ::-1].copy() for name in ("experts", "weights")}
    slack = 2 * run.expected(case)[1]
    before, after = run.value(case), run.value(case, **turned)
    return unchanged(before, after, slack, "a token's experts are in reverse order", "the output")


def _linear(run: Run, case: Case) -> Problem | None:
    once, twice = run.value(case), run.value(case, weights=2 * case.arguments["weights"])
    slack = 3 * run.expected(case)[1]
    return unchanged(2 * once, twice, slack, "the weights are doubled", "twice the output")


MIXTURE_OF_EXPERTS = Spec(
    name="mixture_of_experts",
    statement="mixture_of_experts(x, experts, weights, gate, up, down): for each token the sum of weights[token, r] "
    "times the output of expert experts[token, r]; an expert is down (silu(gate x) * (up x)). x (T, D), experts and "
    "weights (T, k), gate and up (N, f, D), down (N, D, f) -> (T, D)",
    required=NAMES,
    reference=reference.mixture_of_experts,
    baseline=mutants.MixtureFormula(),
    cases=_mixture_cases,
    combine=_mixture_by_chance,
    num_drawn=3,
    checks=(
        Check(
            "weights act on what experts return",
            "The output is linear in the weights: twice the weights, twice the output.",
            _linear,
            when=lambda case: not case.is_empty,
        ),
        Check(
            "each token alone",
            "A token's output does not depend on the others: an expert takes all that choose it.",
            _alone,
            when=lambda case: len(case.arguments["x"]) > 1,
        ),
        Check(
            "in any order",
            "Each expert goes with its own weight, and a sum has no order.",
            _any_order,
            when=lambda case: case.arguments["weights"].shape[1] > 1 and not case.is_empty,
        ),
    ),
    mutants=mistakes_in(mutants, "mixture_of_experts"),
    chapter=16,
)

# --- GPT-OSS's activation -------------------------------------------------------------------------


def _pairs(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Numbers on both sides of the limits, none of them within 0.01 of one."""
    drawn = 6 * rng.normal(size=shape)
    near = (np.abs(np.abs(drawn) - 7) < 0.01) | (np.abs(np.abs(drawn) - 2) < 0.01)
    return np.where(near, drawn + 0.05, drawn)


def _clamped_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *shape, dtype=torch.float64, **options) -> Case:
        return Case(label, {"gate_up": _pairs(rng, *shape)} | options, dtype)

    return [
        Case("one pair", {"gate_up": np.array([1.0, 2.0])}),
        Case("two pairs", {"gate_up": np.array([1.0, 2.0, -1.0, 0.5])}),
        Case("beyond the limits", {"gate_up": np.array([[9.0, 8.0, 9.0, -8.0], [-9.0, 8.0, 8.0, 0.0]])}),
        case("three tokens", 3, 4),
        case("a limit of 2", 3, 6, limit=2.0),
        case("another slope", 2, 6, alpha=1.0),
        case("both", 2, 3, 4, limit=2.0, alpha=0.5),
        case("float32", 4, 6, dtype=torch.float32),
        Case("transposed tensors", transposed({"gate_up": _pairs(rng, 3, 4)})),
        case("no tokens", 0, 4),
    ]  # fmt: skip


def _clamped_by_chance(draw: Draw) -> Case:
    shape = draw.one_of((2,), (3, 4), (1, 2, 6))
    options = draw.one_of({}, {"limit": 2.0}) | draw.one_of({}, {"alpha": 1.0})
    arguments = {"gate_up": _pairs(draw.numbers, *shape)}
    return Case("options by chance", arguments | options, any_dtype(draw))


def _with(case: Case, gate: float | None = None, up: float | None = None) -> np.ndarray:
    """The case's numbers, all gates or all ups replaced."""
    gate_up = case.arguments["gate_up"].copy()
    gate_up[..., ::2] = gate_up[..., ::2] if gate is None else gate
    gate_up[..., 1::2] = gate_up[..., 1::2] if up is None else up
    return gate_up


def _zero_up(run: Run, case: Case) -> Problem | None:
    """A gate of 1 and an up of 0."""
    got = run.value(case, gate_up=_with(case, 1.0, 0.0))
    wanted = np.full(got.shape, 1 / (1 + np.exp(-case.arguments.get("alpha", 1.702))))
    return compare(wanted, got, case.rounding(8), "where gate = 1 and up = 0")


def _closed(run: Run, case: Case) -> Problem | None:
    got = run.value(case, gate_up=_with(case, -200.0))
    return compare(np.zeros_like(got), got, 1e-20, "where gate = -200")


def _constant_outside(run: Run, case: Case) -> Problem | None:
    limit = case.arguments.get("limit", 7.0)
    before = run.value(case, gate_up=_with(case, limit + 1, limit + 1))
    after = run.value(case, gate_up=_with(case, limit + 5, limit + 9))
    return unchanged(before, after, 0.0, "gate and up rise beyond the limit")


CLAMPED_SWIGLU = Spec(
    name="clamped_swiglu",
    statement="clamped_swiglu(gate_up, *, limit=7.0, alpha=1.702): gate sigmoid(alpha gate) (up + 1) for each pair "
    "of neighbors (gate, up), the gate clamped to at most limit, the up to the interval from -limit to limit. "
    "gate_up (*batch, 2 f) -> (*batch, f)",
    required=("gate_up",),
    reference=reference.clamped_swiglu,
    baseline=mutants.ClampedFormula(),
    cases=_clamped_cases,
    combine=_clamped_by_chance,
    num_drawn=3,
    checks=(
        Check(
            "an up of zero passes the gate",
            "The gate is multiplied by up plus one.",
            _zero_up,
            when=lambda case: not case.is_empty,
        ),
        Check(
            "beyond the limit nothing changes",
            "Gate and up are clamped from above.",
            _constant_outside,
            when=lambda case: not case.is_empty,
        ),
        Check(
            "a gate far below zero closes",
            "The gate has no lower limit: sigmoid makes it 0 there.",
            _closed,
            when=lambda case: not case.is_empty,
        ),
    ),
    mutants=mistakes_in(mutants, "clamped_swiglu"),
    chapter=16,
)
