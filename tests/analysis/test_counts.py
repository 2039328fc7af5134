"""Counts on paper against counts on a model: parameters, FLOPs, bytes."""

from dataclasses import replace

import pytest
import torch

from tested_transformer.analysis.counts import (
    PARTS,
    Counts,
    count_activations,
    count_flops,
    count_parameters,
    measure_activations,
    measure_flops,
    measure_parameters,
    part_of,
    side_by_side,
)
from tested_transformer.models.transformer import Transformer, TransformerConfig

SIZES = {
    "source_vocab": 11, "target_vocab": 13, "d_model": 12, "num_heads": 3, "num_encoder_layers": 2,
    "num_decoder_layers": 3, "d_ff": 20, "pad_id": None,
}  # fmt: skip
SMALL = TransformerConfig(**SIZES)
VARIANTS = [
    {},
    {"target_vocab": None},
    {"tied_output": False},
    {"tied_output": False, "output_bias": True, "bias": False},
    {"norm_placement": "pre"},
    {"norm_placement": "pre", "final_norm": False},
    {"norm_placement": "post", "final_norm": True},
    {"norm_placement": "deepnorm"},
    {"norm_placement": "resi_dual"},
    {"activation": "gelu"},
    {"activation": "silu"},
    {"activation": "swiglu"},
    {"embedding_norm": True},
    {"positions": "none", "num_heads": 1},
    {"num_encoder_layers": 1, "num_decoder_layers": 1},
    {"positions": "learned", "max_length": 9},
    {"norm": "rms"},
]
WITH_FORMULA = [v for v in VARIANTS if not {"max_length", "norm"} & v.keys()]


def build(changes, device="cpu"):
    torch.manual_seed(0)
    with torch.device(device):
        return Transformer(TransformerConfig(**SIZES | changes))


def ids(batch, source, target, device="cpu"):
    generator = torch.Generator().manual_seed(1)
    both = (torch.randint(11, (batch, length), generator=generator) for length in (source, target))
    return tuple(each.to(device) for each in both)


# --- Against a model ------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_parameters_on_paper_are_those_of_the_model(changes):
    model = build(changes)
    counted, measured = count_parameters(model.config), measure_parameters(model)
    assert counted == measured
    assert measured.total == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
@pytest.mark.parametrize("sizes", [(1, 5, 7), (3, 8, 2)])
def test_flops_on_paper_are_those_of_torchs_counter(changes, sizes):
    model = build(changes)
    batch, source, target = sizes
    measured = measure_flops(model, *ids(*sizes))
    assert count_flops(model.config, source, target, batch) == measured
    assert measured.total > 0


@pytest.mark.parametrize("changes", WITH_FORMULA, ids=str)
@pytest.mark.parametrize("sizes", [(1, 5, 7), (3, 8, 2)])
def test_activations_on_paper_are_what_autograd_saves(changes, sizes):
    model = build(changes)
    batch, source, target = sizes
    measured = measure_activations(model, *ids(*sizes))
    counted = count_activations(model.config, source, target, batch)
    assert dict(counted.parts) == dict(measured.parts)


@pytest.mark.parametrize(
    ("config", "total"),
    [
        (TransformerConfig(), 63_082_496),
        (TransformerConfig.big(), 214_245_376),
    ],
)
def test_the_papers_models(config, total):
    """About 65 and 213 million, says table 3; the sums here are exact for 37,000 words."""
    with torch.device("meta"):
        model = Transformer(config)
        source, target = torch.zeros(2, 7, dtype=torch.long), torch.zeros(2, 9, dtype=torch.long)
    assert count_parameters(config) == measure_parameters(model)
    assert count_parameters(config).total == total
    assert count_flops(config, 7, 9, 2) == measure_flops(model, source, target)


def test_the_measured_flops_are_all_of_them():
    """The parts add up to what the counter saw in the whole model, outside the parts too."""
    from torch.utils.flop_counter import FlopCounterMode

    model = build({})
    for module in model.modules():
        if hasattr(module, "backend") and hasattr(module, "num_heads"):
            module.backend = "plain"
    with FlopCounterMode(display=False) as counter:
        model(*ids(2, 5, 7))
    assert measure_flops(model, *ids(2, 5, 7)).total == counter.get_total_flops()


def test_measuring_leaves_the_model_as_it_was():
    model = build({}).train()
    backends = [m.backend for m in model.modules() if hasattr(m, "num_heads")]
    measure_flops(model, *ids(1, 3, 3))
    measure_activations(model, *ids(1, 3, 3))
    assert model.training
    assert model.encoder.layers[0].feed_forward.dropout.training
    assert backends == [m.backend for m in model.modules() if hasattr(m, "num_heads")]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_mask_costs_little():
    """What the formula leaves out: the masks. Under 5 % even in so small a model."""
    model = build({"pad_id": 0})
    source, target = ids(2, 9, 8)
    source[0, 6:], target[1, 5:] = 0, 0
    counted = count_activations(model.config, 9, 8, 2).total
    assert 1 <= measure_activations(model, source, target).total / counted < 1.05


# --- Numbers that can be checked with a pencil ----------------------------------------------------


def test_by_hand():
    config = TransformerConfig(
        10, d_model=2, num_heads=1, num_encoder_layers=1, num_decoder_layers=1
    )
    assert dict(count_parameters(config).parts) == {
        "embeddings": 20,
        "encoder attention": 24,
        "encoder feed-forward": 42,
        "encoder norms": 8,
        "decoder self-attention": 24,
        "decoder cross-attention": 24,
        "decoder feed-forward": 42,
        "decoder norms": 12,
        "output": 0,
    }
    flops = count_flops(config, 3, 1)
    assert flops["encoder attention"] == 2 * (4 * 3 * 2 * 2 + 2 * 3 * 3 * 2)
    assert flops["decoder cross-attention"] == 2 * (2 * (1 + 3) * 2 * 2 + 2 * 1 * 3 * 2)
    assert flops["output"] == 2 * 2 * 10


def test_the_two_norms_that_torch_keeps():
    """nn.Transformer ends both stacks in a norm, post-LN or not."""
    base = TransformerConfig()
    with torch.device("meta"):
        theirs = torch.nn.Transformer(batch_first=True)
    ours = count_parameters(base)
    extra = sum(p.numel() for p in theirs.parameters()) - (ours.total - ours["embeddings"])
    assert extra == 2 * 2 * 512 == 2048
    assert count_parameters(replace(base, final_norm=True)).total - ours.total == extra


def test_lengths_of_zero_cost_nothing():
    assert count_flops(SMALL, 0, 0).total == 0
    assert count_activations(SMALL, 0, 5, 0).total == 0


# --- The table ------------------------------------------------------------------------------------


def test_every_parameter_has_a_part():
    names = [name for name, _ in build({"norm": "rms", "output_bias": True}).named_parameters()]
    assert all(part_of(name) in PARTS for name in names)
    assert part_of("encoder.layers.0") is None
    assert part_of("encoder.layers.0.attention_of_mine") is None


def test_how_counts_are_printed():
    counts = Counts("FLOPs", {"one": 1000, "the other": 3000})
    assert repr(counts) == (
        "FLOPs:\none        1,000   25.0%\nthe other  3,000   75.0%\ntotal      4,000  100.0%"
    )
    assert repr(Counts("bytes", {"one": 0})) == "bytes:\none    0    0.0%\ntotal  0    0.0%"
    counted = count_parameters(SMALL)
    lines = side_by_side(counted=counted, again=counted).splitlines()
    assert len(lines) == len(PARTS) + 2
    assert len({len(line) for line in lines}) == 1


# --- Malformed calls ------------------------------------------------------------------------------


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: count_parameters(5), TypeError, "config.*TransformerConfig.*int"),
        (lambda: count_flops(None, 1, 1), TypeError, "config"),
        (lambda: count_flops(SMALL, -1, 1), ValueError, "source_length"),
        (lambda: count_flops(SMALL, 1, 1.5), TypeError, "target_length"),
        (lambda: count_activations(SMALL, 1, 1, "2"), TypeError, "batch"),
        (lambda: count_activations(replace(SMALL, norm="rms"), 1, 1), ValueError, "config.norm"),
        (
            lambda: count_activations(replace(SMALL, positions="learned", max_length=3), 1, 1),
            ValueError,
            "config.positions",
        ),
        (lambda: measure_parameters(torch.nn.Linear(1, 1)), TypeError, "model.*Linear"),
        (lambda: measure_flops(None, *ids(1, 1, 1)), TypeError, "model"),
        (lambda: measure_activations(None, *ids(1, 1, 1)), TypeError, "model"),
    ],
)
def test_malformed_calls(call, error, words):
    with pytest.raises(error, match=words):
        call()
