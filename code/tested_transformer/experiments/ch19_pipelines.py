"""Timetables of chapter 19's page about pipelines: what each stage does at each time, forward and backward."""

from __future__ import annotations

import torch


def all_forward_first(stage, stages, micro_batches):
    """The order of GPipe: n is the forward pass of micro-batch n, counted from 1, and -n its backward pass."""
    numbers = range(1, micro_batches + 1)
    return list(numbers) + [-n for n in numbers]


def one_forward_one_backward(stage, stages, micro_batches):
    """The order of 1F1B: some forward passes to fill the pipeline, then forward and backward in turn."""
    first = min(stages - 1 - stage, micro_batches)
    passes = list(range(1, first + 1))
    for n in range(1, micro_batches + 1):
        if first + n <= micro_batches:
            passes.append(first + n)
        passes.append(-n)
    return passes


def run(order, stages, micro_batches):
    """Which pass each stage has at each time, and 0 where it waits."""
    todo = [order(stage, stages, micro_batches) for stage in range(stages)]
    done, table = [set() for _ in range(stages)], []
    while any(todo):
        column = []
        for stage in range(stages):
            n = todo[stage][0] if todo[stage] else 0
            source = stage - 1 if n > 0 else stage + 1  # the neighbor whose result it needs
            ready = source in (-1, stages) or n in done[source]
            column.append(n if ready else 0)
        for stage, n in enumerate(column):  # the passes end: their results are sent
            if n:
                done[stage].add(todo[stage].pop(0))
        table.append(column)
    return torch.tensor(table).T  # stages, times


def stored(table):
    """How many micro-batches' activations each stage keeps, at most: +1 per forward, -1 per backward pass."""
    return table.sign().cumsum(1).amax(1)
