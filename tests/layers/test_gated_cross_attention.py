"""Gated cross-attention: equal to nn.MultiheadAttention in values and gradients, closed at the beginning."""

import pytest
import torch
from torch import nn

from tested_transformer.layers.gated_cross_attention import (
    GatedCrossAttention,
    gated_cross_attention,
)

REAL = torch.tensor([[True, True, True, False], [False, True, False, True]])


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, NODES = numbers(2, 3, 8), numbers(2, 4, 6, seed=1)


def pair(gate=0.7):
    """Our layer, and torch's attention with the same weights."""
    torch.manual_seed(0)
    ours = GatedCrossAttention(8, 2, 6).double()
    theirs = nn.MultiheadAttention(8, 2, bias=False, kdim=6, vdim=6, batch_first=True).double()
    with torch.no_grad():
        ours.gate.fill_(gate)
        theirs.q_proj_weight.copy_(ours.attention.query.weight)
        theirs.k_proj_weight.copy_(ours.attention.key.weight)
        theirs.v_proj_weight.copy_(ours.attention.value.weight)
        theirs.out_proj.weight.copy_(ours.attention.output.weight)
    return ours, theirs


@pytest.mark.parametrize("real", [None, REAL])
def test_equal_to_torch_in_values_and_gradients(real):
    ours, theirs = pair()
    x, nodes = X.clone().requires_grad_(), NODES.clone().requires_grad_()
    y, others = X.clone().requires_grad_(), NODES.clone().requires_grad_()
    hidden = None if real is None else ~real  # torch: True is masked
    found = ours(x, nodes, real=real)
    normed = nn.functional.layer_norm(y, (8,))
    expected = y + torch.tanh(torch.tensor(0.7).double()) * theirs(
        normed, others, others, key_padding_mask=hidden, need_weights=False
    )[0]  # fmt: skip
    torch.testing.assert_close(found, expected)
    probe = numbers(2, 3, 8, seed=2)
    (found * probe).sum().backward()
    (expected * probe).sum().backward()
    for mine, other in (
        (x, y), (nodes, others),
        (ours.attention.query.weight, theirs.q_proj_weight),
        (ours.attention.key.weight, theirs.k_proj_weight),
        (ours.attention.value.weight, theirs.v_proj_weight),
        (ours.attention.output.weight, theirs.out_proj.weight),
    ):  # fmt: skip
        torch.testing.assert_close(mine.grad, other.grad)


def test_the_layer_is_the_formula_behind_a_norm():
    ours, _ = pair()
    names = ("query", "key", "value", "output")
    matrices = [getattr(ours.attention, name).weight.T for name in names]
    normed = nn.functional.layer_norm(X, (8,))
    formula = gated_cross_attention(normed, NODES, *matrices, ours.gate, 2, real=REAL)
    torch.testing.assert_close(ours(X, NODES, real=REAL), formula - normed + X)


def test_it_begins_closed_and_the_gate_learns_first():
    """Tokens come back bit by bit; of all parameters only the gate has a gradient."""
    layer = GatedCrossAttention(8, 2, 6).double()
    found = layer(X, NODES)
    assert torch.equal(found, X)
    (found * numbers(2, 3, 8, seed=2)).sum().backward()
    learns = {name for name, p in layer.named_parameters() if bool(p.grad.any())}
    assert learns == {"gate"}


def test_texts_without_nodes():
    ours, _ = pair()
    real = torch.tensor([[True, True, False, True], [False] * 4])
    x = X.clone().requires_grad_()
    found = ours(x, NODES, real=real)
    assert torch.equal(found[1], X[1])
    torch.testing.assert_close(found[:1], ours(X[:1], NODES[:1, real[0]]))
    found.sum().backward()
    assert bool(x.grad.isfinite().all())
    assert torch.equal(ours(X, NODES[:, :0]), X)


@pytest.mark.plain_types
def test_bad_input_is_refused():
    layer, _ = pair()
    with pytest.raises(ValueError, match="nodes: expected"):
        layer(X, NODES[..., :5])
    with pytest.raises(ValueError, match="real: expected"):
        layer(X, NODES, real=REAL[:, :3])
    with pytest.raises(TypeError, match="x: expected"):
        layer(X.float(), NODES)
    with pytest.raises(ValueError, match="num_heads: expected"):
        GatedCrossAttention(8, 0, 6)
    w = [numbers(8, 4), numbers(6, 4), numbers(6, 4), numbers(4, 8)]
    with pytest.raises(ValueError, match="gate: expected"):
        gated_cross_attention(X, NODES, *w, torch.ones(2).double(), 2)
    with pytest.raises(ValueError, match="x: expected|num_heads: expected"):
        gated_cross_attention(X, NODES, *w, torch.tensor(1.0).double(), 3)
