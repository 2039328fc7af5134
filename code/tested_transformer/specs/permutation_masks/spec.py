"""The Specs of a permutation language model's masks, and of the positions of its targets."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ... import reference
from ..compare import Problem
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants


def read(answer: Any, arguments: dict[str, Any]) -> torch.Tensor | None:
    """Both masks, one after the other."""
    return None if answer is None else torch.stack(tuple(answer))


def _orders(rng: np.random.Generator, batch: int, length: int) -> np.ndarray:
    return np.array([rng.permutation(length) for _ in range(batch)]).reshape(batch, length)


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label: str, order: Any, predicted: Any = None, functional: Any = None) -> Case:
        given = {"predicted": predicted, "functional": functional}
        given = {n: np.array(a, bool) for n, a in given.items() if a is not None}
        return Case(label, {"order": np.array(order)} | given)

    middle = [[False, True, True, True, False]] * 2
    ends = [[False, False, False, False, True]] * 2
    return [
        case("one token", [[0]]),
        case("from left to right", [[0, 1, 2]]),
        case("from right to left", [[3, 2, 1, 0]]),
        case("the third, the first, the second", [[2, 0, 1]]),
        case("two orders", _orders(rng, 2, 5)),
        case("three of five are predicted", _orders(rng, 2, 5), middle),
        case("a separator at the end", _orders(rng, 2, 5), middle, ends),
        case("nothing is predicted", _orders(rng, 1, 3), [[False] * 3]),
        case("no tokens", np.zeros((2, 0), int)),
    ]


def _by_chance(draw: Draw) -> Case:
    batch, length = draw.one_of(1, 2, 3), draw.one_of(2, 1, 4, 7)
    arguments = {"order": _orders(draw.numbers, batch, length)}
    if draw.one_of(False, True):
        arguments["predicted"] = draw.numbers.random((batch, length)) < 0.5
        if draw.one_of(False, True):
            arguments["functional"] = draw.numbers.random((batch, length)) < 0.3
    return Case("sizes by chance", arguments)


def _mask(run: Run, case: Case, stream: int) -> np.ndarray:
    """A mask (B, L, L): 0 that of the content stream, 1 that of the query stream."""
    return run.value(case)[stream][:, 0].astype(bool)


def _all_predicted(case: Case) -> bool:
    return "predicted" not in case.arguments and case.arguments["order"].shape[1] > 1


def _last_sees_all(run: Run, case: Case) -> Problem | None:
    """The row of the position that comes last has a True in every other column."""
    order, mask = case.arguments["order"], _mask(run, case, 1)
    for b, row in enumerate(order):
        wanted = np.arange(len(row)) != row[-1]
        if not np.array_equal(mask[b, row[-1]] & wanted, wanted):
            got = np.flatnonzero(mask[b, row[-1]]).tolist()
            return Problem(
                f"position {row[-1]}, last of {row.tolist()}, attends to all others", f"to {got}"
            )
    return None


def _own(run: Run, case: Case, stream: int, wanted: bool) -> Problem | None:
    """The diagonal of a mask, where tokens are predicted."""
    own = np.diagonal(_mask(run, case, stream), axis1=1, axis2=2)
    asked = case.arguments.get("predicted", np.ones_like(own))
    if (own[asked] == wanted).all():
        return None
    return Problem(f"{wanted} on the diagonal", f"{not wanted}")


def _functional(run: Run, case: Case) -> Problem | None:
    """What the first of the order attends to is context: neither predicted nor functional."""
    a, mask = case.arguments, _mask(run, case, 1)
    hidden = a["predicted"] | a["functional"]
    for b, row in enumerate(a["order"]):
        first = next((position for position in row if hidden[b, position]), None)
        others = hidden[b] & (np.arange(len(row)) != first)
        if first is not None and (mask[b, first] & others).any():
            seen = np.flatnonzero(mask[b, first] & others).tolist()
            return Problem(
                "the first of the order attends to context alone", f"it attends to {seen}"
            )
    return None


def _context(run: Run, case: Case) -> Problem | None:
    """A row of context has no True outside of the context, but for its own column."""
    a = case.arguments
    hidden = a["predicted"] | a.get("functional", np.zeros_like(a["predicted"]))
    for stream in (0, 1):
        leaks = np.argwhere(_mask(run, case, stream) & ~hidden[:, :, None] & hidden[:, None, :])
        if len(leaks):
            b, i, j = leaks[0].tolist()
            return Problem("context that attends to context", f"sequence {b}: {i} attends to {j}")
    return None


PERMUTATION_MASKS = Spec(
    name="permutation_masks",
    statement="permutation_masks(order, predicted, functional) -> (content mask, query mask), each (B, 1, L, L), True "
    "where query i may attend to key j. order (B, L) has the positions in the order of their prediction. Query mask: keys "
    "that come before i in the order; content mask: the same, and i itself. With predicted (B, L), tokens that are "
    "neither predicted nor functional are context: every query attends to them, and they attend to nothing else",
    required=("order",),
    reference=lambda **arguments: np.stack(reference.permutation_masks(**arguments)),
    baseline=mutants.MaskFormula(),
    differentiable=False,
    cases=_cases,
    combine=_by_chance,
    read=read,
    checks=(
        Check(
            "the last of the order attends to all others",
            "True means may attend, and order[t] is the position whose turn is t.",
            _last_sees_all,
            when=_all_predicted,
        ),
        Check(
            "functional tokens are no context",
            "Context is neither predicted nor functional: predicted | functional is hidden.",
            _functional,
            needs=("predicted", "functional"),
        ),
        Check(
            "a target does not attend to itself",
            "The query stream predicts the token: it must not read it.",
            lambda run, case: _own(run, case, 1, False),
            when=lambda case: not case.is_empty,
        ),
        Check(
            "a read token attends to itself",
            "The content stream has read its own token.",
            lambda run, case: _own(run, case, 0, True),
            when=lambda case: not case.is_empty,
        ),
        Check(
            "context attends to context alone",
            "What context has read of a target, every target reads in the next layer.",
            _context,
            needs=("predicted",),
        ),
    ),
    mutants=mistakes_in(mutants, of="permutation_masks"),
    chapter=18,
)  # fmt: skip


# --- The targets ----------------------------------------------------------------------------------


def _target_cases(rng: np.random.Generator) -> list[Case]:

    def case(label: str, targets: Any, length: int) -> Case:
        arguments = {"targets": np.array(targets), "length": length}
        return Case(label, arguments, torch.float32)

    return [
        case("one target", [[1]], 3),
        case("one per sequence", [[2], [0]], 4),
        case("several", [[4, 1], [0, 3], [2, 0]], 5),
        case("all in an order", _orders(rng, 2, 4), 4),
        case("none", np.zeros((2, 0), int), 3),
    ]


def _one_each(run: Run, case: Case) -> Problem | None:
    sums = run.value(case).sum(-1)
    return None if (sums == 1).all() else Problem("rows with a sum of 1", f"sums {sums.tolist()}")


TARGET_MAPPING = Spec(
    name="target_mapping",
    statement="target_mapping(targets, length): targets (B, M) -> (B, M, L), float32, 1 at each target's position and 0 "
    "elsewhere",
    required=("targets", "length"),
    reference=reference.target_mapping,
    baseline=mutants.one_hot,
    differentiable=False,
    cases=_target_cases,
    checks=(
        Check(
            "every target has one position",
            "In every sequence of the batch, each target's row has one 1.",
            _one_each,
        ),
    ),
    mutants=mistakes_in(mutants, of="target_mapping"),
    chapter=18,
)
