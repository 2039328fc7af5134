"""Timetables of chapter 19's page about pipelines: what each stage does at each time, forward and backward."""

from __future__ import annotations

import torch


def all_forward_first(stage, stages, micro_batches):
    """The order of GPipe: all forward passes, then all backward passes."""
    return ["F"] * micro_batches + ["B"] * micro_batches


def one_forward_one_backward(stage, stages, micro_batches):
    """1F1B: some forward passes to fill the pipeline, then one backward and one forward pass in turn."""
    first = min(stages - 1 - stage, micro_batches)
    return ["F"] * first + ["F", "B"] * (micro_batches - first) + ["B"] * first


def run(order, stages, micro_batches):
    """+n where a stage has the forward pass of micro-batch n - 1, -n for its backward pass, 0 where it waits.

    A pass takes one unit of time, and a stage has its passes in `order`, each as early as it can.
    """
    waiting = [order(stage, stages, micro_batches) for stage in range(stages)]
    counts = [{"F": 0, "B": 0} for _ in range(stages)]  # finished passes of each stage
    table = []
    while any(waiting):
        before, column = [dict(each) for each in counts], []
        for stage, passes in enumerate(waiting):
            kind = passes[0] if passes else None
            number = before[stage][kind] if kind else 0
            source = stage - 1 if kind == "F" else stage + 1  # whose result the pass needs
            ready = not 0 <= source < stages or before[source].get(kind, 0) > number
            if kind and ready:
                passes.pop(0)
                counts[stage][kind] += 1
            column.append(0 if not (kind and ready) else number + 1 if kind == "F" else -number - 1)
        table.append(column)
    return torch.tensor(table).T  # stages, times


def stored(table):
    """How many micro-batches' activations each stage keeps, at most."""
    return (table.sign().cumsum(1)).amax(1)
