"""The exercises of chapter 8: a right answer passes, the usual mistakes are named."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tested_transformer import FeedForward, MultiHeadAttention, check


def feed_forward(x, w_up, b_up, w_down, b_down):
    return (x @ w_up + b_up).relu() @ w_down + b_down


def dead_units(x, w_up, b_up):
    return (x @ w_up + b_up).flatten(0, -2).amax(0) <= 0


def swiglu(x, w_gate, w_up, w_down):
    gate = x @ w_gate
    return (gate * gate.sigmoid() * (x @ w_up)) @ w_down


def remember(keys, values):
    count, width = keys.shape
    return keys.T, keys.new_full((count,), 1 - width), values, values.new_zeros(values.shape[1])


def ffn_share(length, d_model, d_ff):
    return d_ff / (d_ff + 2 * d_model + length)


SOLUTIONS = {
    "ch08.feed_forward": feed_forward,
    "ch08.dead_units": dead_units,
    "ch08.swiglu": swiglu,
    "ch08.remember": remember,
    "ch08.ffn_share": ffn_share,
}


def test_a_memory_may_spend_more_units_than_facts():
    def spendthrift(keys, values):
        w_up, b_up, w_down, b_down = remember(keys, values)
        twice = torch.cat([w_down, w_down]) / 2
        return torch.cat([w_up, w_up], 1), torch.cat([b_up, b_up]), twice, b_down

    assert check("ch08.remember", spendthrift).passed


@pytest.mark.parametrize(("length", "d_model", "d_ff"), [(5, 8, 32), (40, 8, 24)])
def test_the_share_is_what_torch_counts(length, d_model, d_ff):
    x = torch.zeros(1, length, d_model)
    flops = []
    for part in (FeedForward(d_model, d_ff), MultiHeadAttention(d_model, 2, backend="plain")):
        with FlopCounterMode(display=False) as counter:
            part(x)
        flops.append(counter.get_total_flops())
    assert flops[0] / sum(flops) == pytest.approx(ffn_share(length, d_model, d_ff), abs=1e-12)
