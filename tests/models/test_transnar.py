"""TransNAR: the plain Transformer at first, batches as single graphs, names and nodes in any order."""

import pytest
import torch

from tested_transformer.data.graphs import Graphs, graph_tokens, sample_graphs
from tested_transformer.models.transnar import AlgorithmNetwork, TransNar, TransNarConfig

GRAPHS = sample_graphs(2, 5, torch.Generator().manual_seed(0))
SMALL = {"d_model": 8, "num_heads": 2, "num_layers": 2, "num_answers": 7}


def network():
    torch.manual_seed(0)
    return AlgorithmNetwork(6)


def model(gate=0.5, **options):
    torch.manual_seed(1)
    made = TransNar(TransNarConfig(**SMALL | {"d_states": 6} | options))
    for layer in made.layers:
        if layer.cross_attention is not None:
            torch.nn.init.constant_(layer.cross_attention.gate, gate)
    return made


def padded(graphs, more):
    """The same graphs with `more` nodes behind them, and which are real."""
    lengths = torch.nn.functional.pad(graphs.lengths, (0, more, 0, more), value=1.0)
    real = torch.arange(lengths.shape[1]) < graphs.lengths.shape[1]
    return lengths, real.expand(len(lengths), -1)


def test_padding_nodes_change_nothing():
    net = network()
    states, predictions = net(GRAPHS.lengths, GRAPHS.source)
    lengths, real = padded(GRAPHS, 2)
    more, others = net(lengths, GRAPHS.source, num_steps=5, real=real)
    torch.testing.assert_close(more[:, :5], states)
    torch.testing.assert_close(others[:, :, :5], predictions)
    text, transnar = graph_tokens(*GRAPHS), model()
    names = torch.nn.functional.pad(GRAPHS.names, (0, 2))
    found = transnar(text.tokens, more, names, real=text.real, real_nodes=real)
    expected = transnar(text.tokens, states, GRAPHS.names, real=text.real)
    torch.testing.assert_close(found, expected)


def test_a_batch_is_its_graphs_one_by_one():
    net, transnar = network(), model()
    text = graph_tokens(*GRAPHS)
    states = net(GRAPHS.lengths, GRAPHS.source)[0]
    together = transnar(text.tokens, states, GRAPHS.names, real=text.real)
    for b in range(2):
        one = Graphs(*(each[b : b + 1] for each in GRAPHS))
        alone = graph_tokens(*one)
        states = net(one.lengths, one.source)[0]
        logits = transnar(alone.tokens, states, one.names, real=alone.real)
        torch.testing.assert_close(logits[:, -5:], together[b : b + 1, -5:])


def test_another_numbering_of_the_nodes_is_the_same_graph():
    """Questions come in the order of the nodes; the rest is a set."""
    net, transnar, order = network(), model(), torch.tensor([2, 0, 4, 1, 3])
    position = order.argsort()  # where each node has gone
    other = Graphs(
        GRAPHS.lengths[:, order][:, :, order], position[GRAPHS.source], GRAPHS.names[:, order]
    )
    logits = []
    for graphs in (GRAPHS, other):
        text = graph_tokens(*graphs)
        states = net(graphs.lengths, graphs.source)[0]
        logits.append(transnar(text.tokens, states, graphs.names, real=text.real)[:, -5:])
    torch.testing.assert_close(logits[1], logits[0][:, order])


def test_at_first_it_is_the_transformer_alone():
    """With closed gates: the logits of the model without states and with the same weights."""
    transnar, plain = model(gate=0.0), TransNar(TransNarConfig(**SMALL))
    missing = plain.load_state_dict(transnar.state_dict(), strict=False)
    assert not missing.missing_keys
    text = graph_tokens(*GRAPHS)
    states = network()(GRAPHS.lengths, GRAPHS.source)[0]
    found = transnar(text.tokens, states, GRAPHS.names, real=text.real)
    assert torch.equal(found, plain(text.tokens, real=text.real))


def test_states_and_names_have_an_effect():
    transnar, text = model(), graph_tokens(*GRAPHS)
    states = network()(GRAPHS.lengths, GRAPHS.source)[0]
    first = transnar(text.tokens, states, GRAPHS.names, real=text.real)
    for other in (
        (states + 1.0 * (torch.arange(5)[:, None] == 2), GRAPHS.names),
        (states, GRAPHS.names.flip(1)),
    ):
        assert not torch.allclose(transnar(text.tokens, *other, real=text.real), first, atol=1e-4)


def test_every_parameter_has_a_gradient():
    net, transnar, text = network(), model(), graph_tokens(*GRAPHS)
    states, predictions = net(GRAPHS.lengths, GRAPHS.source)
    transnar(text.tokens, states.detach(), GRAPHS.names, real=text.real).square().sum().backward()
    predictions.square().sum().backward()
    for each in (net, transnar):
        for name, parameter in each.named_parameters():
            if not name.endswith("key.bias"):  # the softmax does not feel a bias of all keys
                assert parameter.grad is not None, name
                assert bool(parameter.grad.any()), name


def test_a_network_runs_as_many_steps_as_it_is_told():
    net = network()
    _, six = net(GRAPHS.lengths, GRAPHS.source, num_steps=6)
    _, five = net(GRAPHS.lengths, GRAPHS.source)
    assert six.shape == (2, 6, 5, 2)
    torch.testing.assert_close(six[:, :5], five)


def test_lengths_of_a_node_to_itself_are_not_read():
    lengths = GRAPHS.lengths.clone()
    lengths.diagonal(dim1=1, dim2=2).fill_(3.0)
    net = network()
    torch.testing.assert_close(net(lengths, GRAPHS.source), net(GRAPHS.lengths, GRAPHS.source))


@pytest.mark.plain_types
def test_bad_input_is_refused():
    text, states = graph_tokens(*GRAPHS), torch.zeros(2, 5, 6)
    with pytest.raises(TypeError, match="states: expected a tensor, got NoneType"):
        model()(text.tokens)
    with pytest.raises(TypeError, match="states: expected none: d_states is None"):
        TransNar(TransNarConfig(**SMALL))(text.tokens, states, GRAPHS.names)
    with pytest.raises(TypeError, match="names: expected a tensor"):
        model()(text.tokens, states)
    with pytest.raises(ValueError, match="states: expected d_states = 6 features"):
        model()(text.tokens, states[..., :4], GRAPHS.names)
    with pytest.raises(ValueError, match="tokens: expected field 3 below 4, got 9"):
        model()(text.tokens.clone().index_fill_(2, torch.tensor([3]), 9), states, GRAPHS.names)
    with pytest.raises(ValueError, match="num_heads: expected"):
        TransNarConfig(d_model=6, num_heads=4)
    with pytest.raises(ValueError, match="source: expected"):
        network()(GRAPHS.lengths, torch.tensor([0, 5]))
