"""What a pattern costs on paper is what the matrix products and the reads of `sparse_attention` are."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from tested_transformer.analysis.sparse_cost import dense_cost, pattern_cost
from tested_transformer.mixers.fixed_patterns import Atrous, Local, fixed_pattern, strided_pattern
from tested_transformer.mixers.longnet import LongNet
from tested_transformer.mixers.patterns import sparse_attention

PATTERNS = [
    Local(4),
    Local(4, causal=True),
    Atrous(4),
    strided_pattern(4),
    fixed_pattern(4, 2),
    LongNet((4, 16), (1, 4), head=1),
]


class Reads(TorchDispatchMode):
    """The bytes that indexing by the groups of a part copies."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        made = function(*arguments, **(options or {}))
        if function is torch.ops.aten.index.Tensor and made.is_floating_point():
            self.bytes += made.nbytes
        return made


@pytest.mark.parametrize("length", [16, 37])
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_flops_and_bytes_are_those_of_a_call(pattern, length):
    query, key, value = torch.randn(3, 2, 3, length, 8)
    with FlopCounterMode(display=False) as counter, Reads() as reads:
        sparse_attention(query, key, value, pattern)
    cost = pattern_cost(pattern, length, 8)
    assert counter.get_total_flops() == 2 * 3 * cost.flops
    assert reads.bytes == 2 * 3 * cost.bytes


@pytest.mark.parametrize("pattern", PATTERNS[:-1], ids=str)
def test_the_pairs_are_those_of_the_mask(pattern):
    cost = pattern_cost(pattern, 37, 8)
    assert cost.pairs == pattern.mask(37).sum()
    assert cost.pairs <= cost.scores


def test_a_pair_of_two_branches_is_computed_twice():
    pattern = LongNet((4, 16), (1, 4))
    assert pattern_cost(pattern, 37, 8).pairs == pattern.counts(37).sum()


def test_growth_is_linear_n_sqrt_n_or_quadratic():
    def growth(make):
        return pattern_cost(make(4096), 4096, 8).scores / pattern_cost(make(1024), 1024, 8).scores

    assert growth(lambda length: Local(32)) == 4
    assert growth(lambda length: LongNet((32, 128, 512), (1, 4, 16))) == 4
    assert growth(lambda length: strided_pattern(int(length**0.5))) == 8
    assert growth(lambda length: Atrous(32)) == 16


def test_dense_attention_masks_half_of_its_scores():
    cost = dense_cost(5, 8, causal=True)
    assert (cost.pairs, cost.scores, cost.flops) == (15, 25, 800)
    query, key, value = torch.randn(3, 1, 1, 5, 8)
    with FlopCounterMode(display=False) as counter:
        _ = query @ key.mT @ value
    assert counter.get_total_flops() == cost.flops
    assert cost.bytes == sum(each.nbytes for each in (query, key, value))
