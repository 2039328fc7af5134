"""The cache of a recurrent layer: named tensors that follow their rows, and are forgotten whole or not at all."""

import pytest
import torch

from tested_transformer.layers.cache import LayerState
from tested_transformer.layers.recurrent_state import RecurrentState
from tested_transformer.layers.selective_state_space import SelectiveStateSpace
from tested_transformer.layers.state_space_duality import StateSpaceDuality

LAYERS = {
    "Mamba": lambda: SelectiveStateSpace(6, num_states=3, width=3),
    "Mamba-2": lambda: StateSpaceDuality(6, 4, 3, num_states=5, num_groups=2, width=3),
}
EACH = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)


@torch.no_grad()
@EACH
def test_rows_change_places_and_are_forgotten_whole(make):
    torch.manual_seed(0)
    layer, cache, x = make().double(), RecurrentState(), torch.randn(2, 9, 6).double()
    assert isinstance(cache, LayerState)
    assert (cache.batch, cache.nbytes, cache.length) == (None, 0, 0)
    with pytest.raises(RuntimeError, match="the cache is empty"):
        cache.reorder(torch.tensor([0]))
    layer(x[:, :5], cache=cache)
    size, rows = cache.nbytes, torch.tensor([1, 0, 1])
    cache.reorder(rows)
    assert (cache.batch, cache.length, 2 * cache.nbytes) == (3, 5, 3 * size)
    torch.testing.assert_close(layer(x[rows][:, 5:], cache=cache), layer(x[rows])[:, 5:])
    cache.truncate(9)
    with pytest.raises(ValueError, match="length: expected 0 or 9: one state stands for all"):
        cache.truncate(4)
    cache.truncate(0)
    torch.testing.assert_close(layer(x, cache=cache), layer(x))


@EACH
def test_a_gradient_would_be_lost(make):
    with pytest.raises(ValueError, match="no gradient: call under torch.no_grad"):
        make()(torch.randn(2, 4, 6), cache=RecurrentState())


@EACH
def test_every_parameter_counts(make):
    torch.manual_seed(0)
    layer = make()
    layer(torch.randn(2, 9, 6)).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert bool((parameter.grad != 0).any()), name


def test_the_steps_begin_between_a_thousandth_and_a_tenth():
    torch.manual_seed(0)
    for bias in (SelectiveStateSpace(200).step.bias, StateSpaceDuality(6, 400, 3).step_bias):
        steps = torch.nn.functional.softplus(bias.detach())
        assert float(steps.min()) > 0.00099
        assert float(steps.max()) < 0.101
        assert 0.4 < float((steps < 0.01).float().mean()) < 0.6  # half of them in each decade


@pytest.mark.plain_types
def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="num_groups: expected a divisor of num_heads = 4, got 3"):
        StateSpaceDuality(6, 4, 3, num_groups=3)
    with pytest.raises(ValueError, match="x: expected"):
        SelectiveStateSpace(6)(torch.zeros(2, 4, 5))
    with pytest.raises(ValueError, match="num_states: expected at least 1"):
        SelectiveStateSpace(6, num_states=0)
    with pytest.raises(TypeError, match="rows: expected"):
        RecurrentState().reorder(torch.tensor([0.5]))
