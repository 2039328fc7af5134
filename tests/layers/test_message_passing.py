"""The largest message: a step of Bellman-Ford, gradients against loops, padding, any numbering of the nodes."""

import pytest
import torch

from tested_transformer import reference
from tested_transformer.data.graphs import distance_trace, sample_graphs
from tested_transformer.layers.message_passing import MessagePassing, max_messages


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


SENDER, RECEIVER, EDGE = numbers(2, 5, 3), numbers(2, 5, 3, seed=1), numbers(2, 5, 5, 3, seed=2)
ADJACENCY = numbers(2, 5, 5, seed=3) > 0
REAL = torch.tensor([[True, True, True, True, False], [False, True, True, True, True]])


@pytest.mark.parametrize("real", [None, REAL])
def test_equal_to_the_reference(real):
    found = max_messages(SENDER, RECEIVER, EDGE, ADJACENCY, real=real)
    given = [each.numpy() for each in (SENDER, RECEIVER, EDGE, ADJACENCY)]
    expected = reference.max_messages(*given, real=None if real is None else real.numpy())
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=0, atol=8e-16)


def test_steps_are_those_of_bellman_ford():
    """Minus the distance is sent, minus the length is added: the largest is the shortest."""
    lengths, source, _ = sample_graphs(20, 9, torch.Generator().manual_seed(0))
    trace = distance_trace(lengths, source, 9)
    edge = lengths.masked_fill(~lengths.isfinite(), 0.0)[..., None]
    for before, after in zip(trace.unbind(1), trace.unbind(1)[1:], strict=False):
        sent = before[..., None]
        found = -max_messages(-sent, torch.zeros_like(sent), -edge, lengths.isfinite())
        assert torch.equal(found[..., 0], after)


def test_gradients_go_to_the_senders_of_the_largest_messages():
    """One for each node and feature: finite differences agree, and other senders get zeros."""
    given = [each.clone().requires_grad_() for each in (SENDER, RECEIVER, EDGE)]
    assert torch.autograd.gradcheck(lambda *each: max_messages(*each, ADJACENCY, real=REAL), given)
    max_messages(*given, ADJACENCY).sum().backward()
    assert torch.equal(given[0].grad.sum(1), torch.full((2, 3), 5.0).double())
    assert torch.equal(given[2].grad.sum(1), torch.ones(2, 5, 3).double())


def test_another_numbering_of_the_nodes():
    torch.manual_seed(0)
    layer, order = MessagePassing(3, 2).double(), torch.tensor([3, 0, 4, 1, 2])
    edges = numbers(2, 5, 5, 2, seed=4)
    found = layer(SENDER, edges, ADJACENCY)
    other = layer(SENDER[:, order], edges[:, order][:, :, order], ADJACENCY[:, order][:, :, order])
    torch.testing.assert_close(other, found[:, order])


def test_a_layer_in_a_batch_with_padding():
    torch.manual_seed(0)
    layer, edges = MessagePassing(3, 2).double(), numbers(2, 5, 5, 2, seed=4)
    found = layer(SENDER, edges, ADJACENCY, real=REAL)
    for b, part in enumerate((slice(0, 4), slice(1, 5))):
        one = slice(b, b + 1)
        alone = layer(SENDER[one, part], edges[one, part, part], ADJACENCY[one, part, part])
        torch.testing.assert_close(found[one, part], alone)


def test_every_parameter_has_a_gradient():
    layer = MessagePassing(3, 2).double()
    layer(SENDER, numbers(2, 5, 5, 2, seed=4), ADJACENCY).sum().backward()
    assert all(bool(p.grad.any()) for p in layer.parameters())


def test_no_nodes():
    empty = torch.zeros(2, 0, 3)
    found = max_messages(empty, empty, torch.zeros(2, 0, 0, 3), torch.zeros(2, 0, 0).bool())
    assert found.shape == (2, 0, 3)


@pytest.mark.plain_types
def test_bad_input_is_refused():
    with pytest.raises(TypeError, match="adjacency: expected"):
        max_messages(SENDER, RECEIVER, EDGE, ADJACENCY.double())
    with pytest.raises(ValueError, match="edge: expected"):
        max_messages(SENDER, RECEIVER, EDGE[:, :4], ADJACENCY)
    with pytest.raises(ValueError, match="edges: expected"):
        MessagePassing(3, 2).double()(SENDER, EDGE, ADJACENCY)
    with pytest.raises(ValueError, match="d_edge: expected at least 1"):
        MessagePassing(3, 0)
