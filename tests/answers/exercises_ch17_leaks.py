"""The answers to chapter 17's exercise in which the reader writes the leak test."""

import torch
from torch.autograd.functional import jacobian

from tested_transformer.exercises.ch17_leaks import leaks

from . import right, wrong

right("ch17.leaks", "token by token")(leaks)


@right("ch17.leaks", "everything from a position on is replaced")
def all_later_ones(attend, query, key, value):
    inputs = torch.stack([query, key, value])
    before = attend(*inputs)
    for start in range(1, query.shape[2]):
        changed = inputs.clone()
        changed[:, :, :, start:] = torch.randn_like(changed[:, :, :, start:])
        same = attend(*changed)[:, :, :start].isclose(before[:, :, :start], equal_nan=True)
        if not same.all():
            return True
    return False


@wrong("ch17.leaks", "by the gradients alone")
def by_gradients(attend, query, key, value):
    """A selection has no gradient: it leaks, and no derivative says so."""
    for which in range(3):
        given = [query, key, value]

        def of_one(x, which=which, given=given):
            return attend(*given[:which], x, *given[which + 1 :]).sum((0, 1, 3))  # L

        slope = jacobian(of_one, given[which]).abs().sum((1, 2, 4))  # L L: output, input
        if slope.nan_to_num().triu(1).any():
            return True
    return False


@wrong("ch17.leaks", "the first output alone is compared")
def first_output(attend, query, key, value):
    inputs = torch.stack([query, key, value])
    before = attend(*inputs)[:, :, 0]
    inputs[:, :, :, -1] += 1.0
    return not torch.allclose(attend(*inputs)[:, :, 0], before, equal_nan=True)


@wrong("ch17.leaks", "always")
def always(attend, query, key, value):
    return True
