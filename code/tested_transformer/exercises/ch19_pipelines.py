"""An exercise of chapter 19, on its page about pipelines: which stage computes what, and when."""

from __future__ import annotations

import numpy as np
import torch

from ..specs.compare import Problem, compare
from ..specs.mistakes import mistake, mistakes
from ..specs.spec import Case, Check, Run, Spec


def _times_reference(stages: int, micro_batches: int) -> np.ndarray:
    """A simulation: a stage takes the next micro-batch that the stage before it has finished."""
    done = [0] * stages  # how many each stage has finished
    table = []
    while done[-1] < micro_batches:
        ready = [micro_batches, *done[:-1]]
        column = [done[s] if done[s] < ready[s] else -1 for s in range(stages)]
        done = [n + (now >= 0) for n, now in zip(done, column, strict=True)]
        table.append(column)
    return np.asarray(table).T


def timetable(stages, micro_batches):
    """Stage s computes micro-batch t - s at time t."""
    numbers = torch.arange(micro_batches + stages - 1) - torch.arange(stages)[:, None]
    return numbers.where((numbers >= 0) & (numbers < micro_batches), -1)


@mistake(
    "all stages begin at once",
    rejected_by="a stage waits for the one before",
    cause="Stage s needs the output of stage s - 1: it begins s steps later.",
)
def _at_once(stages, micro_batches):
    return torch.arange(micro_batches).repeat(stages, 1)


@mistake(
    "one stage at a time",
    rejected_by="m + p - 1 steps",
    symptom="All other devices wait: p devices do the work of one.",
    cause="Split the batch into micro-batches, and let a stage begin the next one while the first moves on.",
)
def _one_at_a_time(stages, micro_batches):
    table = torch.full((stages, stages * micro_batches), -1)
    for stage in range(stages):
        table[stage, stage * micro_batches : (stage + 1) * micro_batches] = torch.arange(micro_batches)
    return table


@mistake(
    "the pipeline is not emptied",
    rejected_by="every stage computes every micro-batch",
    cause="After the first stage has finished, the last micro-batch still passes through p - 1 others.",
)
def _not_emptied(stages, micro_batches):
    table = timetable(stages, micro_batches)
    table[:, micro_batches:] = -1
    return table


@mistake(
    "the last stage begins",
    rejected_by="a stage waits for the one before",
    cause="In the forward pass data moves from stage 0 on. The backward pass runs the other way.",
)
def _backward(stages, micro_batches):
    return timetable(stages, micro_batches).flip(0)


def _times_cases(rng: np.random.Generator) -> list[Case]:
    sizes = [(2, 1), (2, 3), (3, 2), (4, 8), (1, 3), (5, int(rng.integers(2, 9)))]
    return [
        Case(f"{p} stages, {m} micro-batches", {"stages": p, "micro_batches": m}) for p, m in sizes
    ]


def _steps(run: Run, case: Case) -> Problem | None:
    p, m = case.arguments["stages"], case.arguments["micro_batches"]
    shape = run.value(case).shape
    if len(shape) == 2 and shape[1] > m + p - 1:
        return Problem(f"{m + p - 1} steps", f"{shape[1]} steps")
    return None


def _waits(run: Run, case: Case) -> Problem | None:
    """No stage has a micro-batch before the stage above it has finished it."""
    for above, below in zip(run.value(case), run.value(case)[1:], strict=False):
        for number in set(below.tolist()) - {-1}:
            began = list(below).index(number)
            if number not in list(above)[:began]:
                return Problem(
                    f"micro-batch {number} finished by the stage before", f"begun at time {began}"
                )
    return None


def _each(run: Run, case: Case) -> Problem | None:
    found = np.asarray([np.sort(row[row >= 0]) for row in run.value(case)], dtype=object)
    expected = list(range(case.arguments["micro_batches"]))
    short = next((list(row) for row in found if list(row) != expected), None)
    return None if short is None else Problem(f"micro-batches {expected}", f"{short}")


TIMETABLE = Spec(
    name="ch19.timetable",
    statement="timetable(stages, micro_batches): which micro-batch each stage computes at each time, in the forward pass of "
    "a pipeline in which every stage takes one unit of time per micro-batch and begins as early as it can; -1 where it "
    "waits -> (stages, micro_batches + stages - 1), integers",
    required=("stages", "micro_batches"),
    reference=_times_reference,
    differentiable=False,
    usual=(),
    cases=_times_cases,
    checks=(
        Check("m + p - 1 steps", "The micro-batches follow each other without a gap.", _steps),
        Check(
            "a stage waits for the one before",
            "Stage s can begin with a micro-batch when stage s - 1 has finished it.",
            _waits,
        ),
        Check(
            "every stage computes every micro-batch",
            "All micro-batches pass through all stages, and in order.",
            _each,
        ),
    ),
    mutants=mistakes(_at_once, _one_at_a_time, _not_emptied, _backward),
    chapter=19,
    points=2,
)

EXERCISES = (TIMETABLE,)
