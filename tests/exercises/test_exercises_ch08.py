"""What is special to the exercises of chapter 8."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from solutions import chapter_solutions
from tested_transformer import FeedForward, MultiHeadAttention, check

SOLUTIONS = chapter_solutions()
remember = SOLUTIONS["ch08.remember"]
ffn_share = SOLUTIONS["ch08.ffn_share"]


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
