"""The rebuilt blocks of chapter 21: their sizes, how they are balanced, and what is stored of their training."""

import json
from pathlib import Path

import pytest
import torch

from tested_transformer.experiments.ch13_counting import counting_batch, counting_vocabulary
from tested_transformer.experiments.ch21_blocks import (
    BIAS_RATE,
    BLOCKS,
    EXPERTS,
    block_bytes,
    block_model,
    loads,
    step_bias,
    train_block,
)
from tested_transformer.layers.bit_linear import BitLinear
from tested_transformer.layers.moe import MixtureOfExperts

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "rebuilt_blocks.json"
D, D_FF = 64, 171


def ids(count=4):
    return counting_batch(count, 48, torch.Generator().manual_seed(5), counting_vocabulary())


def used(name):
    """Weights of the feed-forward network of one layer that a token meets, without the router."""
    network = block_model(name).layers[0].feed_forward
    total = sum(weight.numel() for weight in network.parameters())
    if not isinstance(network, MixtureOfExperts):
        return total
    one = sum(weight.numel() for weight in network.experts[0].parameters())
    return one * BLOCKS[name].experts.num_chosen


@pytest.mark.parametrize("name", BLOCKS)
def test_a_token_meets_as_many_weights_in_every_block(name):
    """Three matrices of D x 171; 2 x 85 hidden features are one less, and splines come in steps."""
    assert used(name) == pytest.approx(3 * D * D_FF, rel=0.03)


def test_the_bytes_are_those_of_the_formula():
    dense = 2 * 3 * D * D_FF  # layers, matrices
    assert block_bytes(block_model("SwiGLU")) == 4 * dense
    assert block_bytes(block_model("ternary weights")) == dense // 4 + 2 * 3 * 4
    experts = block_bytes(block_model("1 of 8, no balance"))
    assert experts == 4 * (EXPERTS * dense + 2 * EXPERTS * D)


def test_every_linear_layer_of_the_block_is_ternary_and_no_other():
    model = block_model("ternary weights")
    found = [name for name, each in model.named_modules() if isinstance(each, BitLinear)]
    assert len(found) == 6
    assert all("feed_forward" in name for name in found)


@pytest.mark.parametrize("name", ["8 experts, bias", "1 of 8, balance loss", "splines (KAN)"])
def test_two_steps_of_training_change_every_weight(name):
    torch.manual_seed(0)
    model = block_model(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    train_block(model, name, 0, 2, lr=0.01)
    still = [key for key, value in model.state_dict().items() if torch.equal(value, before[key])]
    assert [key for key in still if "knots" not in key] == []


def test_the_bias_moves_by_its_rate_towards_balance():
    mixture = block_model("8 experts, bias").layers[0].feed_forward
    logits = torch.randn(50, EXPERTS, generator=torch.Generator().manual_seed(1)).double()
    logits[:, 0] += 5.0
    step_bias(mixture, logits)
    assert mixture.choice_bias[0].item() == pytest.approx(-BIAS_RATE)
    assert mixture.choice_bias.max().item() == pytest.approx(BIAS_RATE)


def test_the_parts_of_all_choices_sum_to_one():
    torch.manual_seed(0)
    found = loads(block_model("8 experts, no balance"), ids())
    assert len(found) == 2
    for layer in found:
        assert sum(layer) == pytest.approx(1)
        assert layer == sorted(layer, reverse=True)
    assert loads(block_model("SwiGLU"), ids()) == []


def test_three_seeds_of_every_block_are_stored():
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]
    assert {(row["variant"], row["seed"]) for row in rows} == {
        (name, seed) for name in BLOCKS for seed in range(3)
    }
    for row in rows:
        model = block_model(row["variant"])
        assert row["bytes"] == block_bytes(model)
        assert row["parameters"] == sum(weight.numel() for weight in model.layers.parameters())
        assert len(row["loads"]) == (2 if BLOCKS[row["variant"]].experts else 0)
