"""CRATE with a residual connection around its step: the layer, and the parameters of the two controls."""

import pytest
import torch

from tested_transformer.experiments.ch21_layers import ResidualCrate, layer_bytes, rebuilt_model
from tested_transformer.functional.coding_rate import ista_step


def test_what_the_step_adds_is_added_to_its_input():
    torch.manual_seed(0)
    layer, x = ResidualCrate(8, 2), torch.randn(2, 5, 8)
    after = x + layer.attention(layer.norms[0](x), causal=True)
    z = layer.norms[1](after)
    expected = after + ista_step(z, z, layer.sparsify.dictionary)
    torch.testing.assert_close(layer(x, causal=True), expected)


@pytest.mark.parametrize(("times_layers", "name"), [(1, ""), (4, ", four times the layers")])
def test_the_controls_have_the_parameters_of_crate_or_four_times_as_many(times_layers, name):
    plain = layer_bytes(rebuilt_model("CRATE"))
    assert layer_bytes(rebuilt_model(f"CRATE, residual{name}")) == times_layers * plain
    if times_layers == 4:
        assert layer_bytes(rebuilt_model("Llama")) == pytest.approx(4 * plain, rel=0.03)
