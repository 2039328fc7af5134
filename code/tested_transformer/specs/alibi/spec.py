"""The Specs of ALiBi: the slopes, and the bias made of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from ... import reference
from ..checks import varied
from ..compare import Problem, compare, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import SHAPE, Case, Check, Run, Spec
from . import mutants
from .mutants import BiasFormula, slopes

# --- Slopes ---------------------------------------------------------------------------------------


def _slope_cases(rng: np.random.Generator) -> list[Case]:
    """Powers of two and other numbers, as checkpoints have them (BLOOM 112, Baichuan 40)."""
    drawn = int(rng.integers(17, 32))
    return [Case(f"{n} heads", {"num_heads": n}, torch.float32)
            for n in (8, 1, 2, 16, 6, 3, 5, 7, 12, 24, 40, 64, 112, 128, drawn)]  # fmt: skip


def _is_power(case: Case) -> bool:
    num_heads = case.arguments["num_heads"]
    return num_heads & (num_heads - 1) == 0


def _geometric(run: Run, case: Case) -> Problem | None:
    num_heads = case.arguments["num_heads"]
    wanted = 2.0 ** (-8 / num_heads * np.arange(1, num_heads + 1))
    return compare(wanted, run.value(case), run.expected(case)[1])


def _power_first(run: Run, case: Case) -> Problem | None:
    smaller = 2 ** int(np.log2(case.arguments["num_heads"]))
    fewer = varied(case, "the power of two", num_heads=smaller)
    slack, what = run.expected(case)[1] + run.expected(fewer)[1], f"the first {smaller} slopes"
    return unchanged(run.value(fewer), run.value(case)[:smaller], slack, "heads are added", what)


ALIBI_SLOPES = Spec(
    name="alibi_slopes",
    statement="""alibi_slopes(num_heads) -> (H,) in float32. For n = num_heads a power of two, 2^(-8/n),
2^(-16/n), ... 2^-8. Otherwise the slopes of the next smaller power n, then every second slope of 2n,
from the first.""",
    required=("num_heads",),
    reference=reference.alibi_slopes,
    baseline=slopes,
    differentiable=False,  # of integers
    cases=_slope_cases,
    usual=(SHAPE,),
    checks=(
        Check(
            "a power of two: 2^(-8/n) to 2^-8",
            "For n heads, n a power of two, head h = 1 ... n has slope 2^(-8h/n).",
            _geometric,
            when=_is_power,
        ),
        Check(
            "a power of two comes first",
            "Other numbers of heads begin with the slopes of the next smaller power of two.",
            _power_first,
        ),
    ),
    mutants=mistakes_in(mutants, of="alibi_slopes"),
    chapter=18,
)

# --- The bias -------------------------------------------------------------------------------------


def _build(candidate: Any, arguments: dict[str, Any]) -> Any:
    """A function of query_ids, key_ids and num_heads; of a scheme's class, its `bias`."""
    if not (isinstance(candidate, type) and issubclass(candidate, nn.Module)):
        return candidate
    return lambda query_ids, key_ids, num_heads: candidate(num_heads).bias(query_ids, key_ids)


def _bias_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, query_ids, key_ids, num_heads) -> Case:
        arguments = {"query_ids": np.asarray(query_ids), "key_ids": np.asarray(key_ids)}
        return Case(label, arguments | {"num_heads": num_heads}, torch.float32)

    far = int(rng.integers(10_000, 20_000))
    padded = np.maximum(np.arange(5) - np.array([[0], [2], [3]]), 0)
    return [
        case("three tokens", range(3), range(3), 4),
        case("one new token after four", [4], range(5), 8),
        case("two new tokens after four", [4, 5], range(6), 2),
        case("six heads", range(4), range(4), 6),
        case("a batch with positions of its own", padded, padded, 3),
        case("a batch after a cache", padded[:2, 3:], padded[:2], 4),
        case("far from the start", range(far, far + 3), range(far - 4, far + 3), 16),
        case("positions out of order", rng.permutation(6)[:4], rng.permutation(6), 5),
        case("one head", [2], range(3), 1),
        case("far apart", [20_001], [0, 1, 9_999], 8),
        case("beyond 2^24", [2**24 + 3], 2**24 + np.arange(4), 4),
        case("no keys", range(2), np.zeros(0, dtype=np.int64), 4),
        case("a batch of queries, the same keys", padded, np.tile(np.arange(5), (3, 1)), 12),
        case("one query for a batch of keys", [4], padded, 6),
        case("a batch of queries, one row of keys", padded, range(5), 4),
        case("int32", np.arange(3, dtype=np.int32), np.arange(3, dtype=np.int32), 8),
    ]  # fmt: skip


def _bias_by_chance(draw: Draw) -> Case:
    batch = draw.one_of((), (1,), (3,))
    far = draw.one_of(5, 1000)
    arguments = {
        "query_ids": draw.numbers.integers(0, far, (*batch, draw.one_of(3, 1))),
        "key_ids": draw.numbers.integers(0, far, (*batch, draw.one_of(4, 1))),
        "num_heads": draw.one_of(4, 1, 6, 12),
    }
    return Case("sizes by chance", arguments, torch.float32)


def _line(case: Case) -> dict[str, np.ndarray]:
    """One query at position 5, keys at 0 ... 10: what lies before it and after it."""
    return {"query_ids": np.array([5]), "key_ids": np.arange(11)}


def _at_itself(run: Run, case: Case) -> Problem | None:
    """A query at the position of a key has no penalty there."""
    bias, keys = run.value(case), case.arguments["key_ids"]
    same = case.arguments["query_ids"][..., :, None] == keys[..., None, :]
    there = np.where(same if same.ndim == 2 else same[:, None], bias, 0.0)
    return compare(np.zeros_like(there), there, 0.0, "the bias where the positions are equal")


def _farther(run: Run, case: Case) -> Problem | None:
    past, future = np.split(run.value(case, **_line(case))[0, :, 0], [5], axis=-1)
    with np.errstate(invalid="ignore"):  # inf - inf
        falling = (np.diff(past) > 0).all() and (np.diff(future) < 0).all()
    return (
        None if falling else Problem("less with every step away", "not less, on one side at least")
    )


def _steps(run: Run, case: Case) -> Problem | None:
    line = varied(case, "a line", **_line(case))
    steps = np.abs(np.diff(run.value(line)[0, :, 0]))  # H 10
    wanted = np.broadcast_to(steps[:, 4:5], steps.shape)
    slack = 4 * run.expected(line)[1] * max(1.0, steps.max())  # larger steps round by as much more
    return compare(wanted, steps, slack, "the cost of a step")


def _slopes(run: Run, case: Case) -> Problem | None:
    step = varied(case, "one step", query_ids=np.array([1]), key_ids=np.array([0]))
    wanted = reference.alibi_slopes(case.arguments["num_heads"]).astype(float)
    bias, slack = run.value(step), run.expected(step)[1]
    return compare(wanted, -bias.reshape(-1), slack, "the cost of one step, by head")


ALIBI_BIAS = Spec(
    name="alibi_bias",
    statement="""alibi_bias(query_ids, key_ids, num_heads): -slope_h x |query position - key position|, the slopes
being alibi_slopes(num_heads). query_ids (L) or (B, L), key_ids (S) or (B, S), integers ->
(B, H, L, S) in float32, B = 1 without a batch. Or a module class(num_heads) with bias(query_ids, key_ids).""",
    required=("query_ids", "key_ids", "num_heads"),
    reference=reference.alibi_bias,
    baseline=BiasFormula(),
    differentiable=False,  # of integers
    cases=_bias_cases,
    combine=_bias_by_chance,
    num_drawn=4,
    checks=(
        Check(
            "no penalty at no distance",
            "Where query and key have the same position the bias is 0.",
            _at_itself,
        ),
        Check(
            "farther is less",
            "Every step away from the query, back or forth, lowers the bias.",
            _farther,
        ),
        Check(
            "every step costs the same",
            "The bias is linear in the distance.",
            _steps,
        ),
        Check(
            "each head has its slope",
            "One step costs head h its own slope, slopes in the order of the heads.",
            _slopes,
        ),
    ),
    mutants=mistakes_in(mutants, of="alibi_bias"),
    build=_build,
    chapter=18,
)
