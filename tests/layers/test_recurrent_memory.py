"""Memory tokens: what is passed on, how far gradients flow, and a body of causal layers."""

import pytest
import torch
from torch import nn

from same_numbers import shake
from tested_transformer.layers.multi_head import MultiHeadAttention
from tested_transformer.layers.recurrent_memory import RecurrentMemory, read_by_segments
from tested_transformer.specs.judge import judge
from tested_transformer.specs.recurrent_memory.spec import READ_BY_SEGMENTS

X = torch.randn(2, 7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Body(nn.Module):
    """One layer of causal attention with a residual connection."""

    def __init__(self):
        super().__init__()
        self.attention = MultiHeadAttention(6, 2)

    def forward(self, x):
        return x + self.attention(x, causal=True)


def small(**options):
    options = {"segment_length": 2} | options
    return shake(RecurrentMemory(Body(), 6, 3, **options), 0).double()


def test_the_spec():
    verdict = judge(READ_BY_SEGMENTS, read_by_segments)
    assert verdict.passed, verdict


@pytest.mark.parametrize("cut", [2, 4, 6])
def test_a_memory_is_handed_on(cut):
    model = small()
    whole, last = model(X)
    first, memory = model(X[:, :cut])
    second, end = model(X[:, cut:], memory)
    torch.testing.assert_close(torch.cat((first, second), 1), whole)
    torch.testing.assert_close(end, last)


@pytest.mark.parametrize("groups", [1, 2, 3, None])
def test_a_gradient_flows_through_so_many_segments(groups):
    """Of the last of four segments: it reaches the first token of its own group, and no token before."""
    x = X.clone().requires_grad_()
    output, _ = small(backprop_segments=groups)(x)
    output[:, -1].square().sum().backward()
    reached = (x.grad != 0).any(-1).any(0).tolist()
    first = {1: 6, 2: 4, 3: 6, None: 0}[groups]  # segments 0 1 | 2 3, and 0 1 2 | 3
    assert reached == [token >= first for token in range(7)]


def test_no_token_sees_a_later_one():
    """Not even by way of the memory, which has seen the segment before."""
    x = X.clone().requires_grad_()
    output, _ = small()(x)
    for token in range(7):
        (found,) = torch.autograd.grad(output[:, token].sum(), x, retain_graph=True)
        assert not found[:, token + 1 :].any()
        assert bool(found[:, : token + 1].any())


def test_the_first_memory_learns():
    model = small(backprop_segments=1)
    output, memory = model(X)
    assert memory.shape == (2, 3, 6)
    output.sum().backward()
    assert bool((model.initial.grad != 0).any(-1).all())


@pytest.mark.plain_types
def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="num_memory: expected at least 1"):
        RecurrentMemory(Body(), 6, 0, segment_length=2)
    with pytest.raises(ValueError, match="memory: expected"):
        small()(X, X[:, :2])
    with pytest.raises(ValueError, match="backprop_segments: expected at least 1"):
        read_by_segments(Body().double(), X, X, segment_length=2, backprop_segments=0)
