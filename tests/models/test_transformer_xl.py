"""Transformer-XL: the shift against a loop, the contract, and where segments give what the whole text gives."""

from dataclasses import replace

import pytest
import torch

from same_numbers import shake
from tested_transformer.functional.relative_shift import relative_shift, transformer_xl_attention
from tested_transformer.generation.decoding_state import CausalState
from tested_transformer.generation.generate import generate
from tested_transformer.layers.relative_attention import TransformerXLAttention, distance_encodings
from tested_transformer.layers.segment_memory import SegmentMemory, extend_memory
from tested_transformer.models.transformer_xl import TransformerXL, TransformerXLConfig
from tested_transformer.specs.contract import contract
from tested_transformer.specs.judge import judge
from tested_transformer.specs.transformer_xl.spec import (
    EXTEND_MEMORY,
    RELATIVE_SHIFT,
    TRANSFORMER_XL_ATTENTION,
)

CONFIG = TransformerXLConfig(
    13, d_model=12, num_heads=3, num_layers=3, d_ff=20, dropout=0.0, memory_length=9
)
IDS = torch.randint(1, 13, (2, 10), generator=torch.Generator().manual_seed(0))
GIVEN = {
    RELATIVE_SHIFT: relative_shift, TRANSFORMER_XL_ATTENTION: transformer_xl_attention,
    EXTEND_MEMORY: extend_memory,
}  # fmt: skip


def small(seed=0, **changes):
    return shake(TransformerXL(replace(CONFIG, **changes)), seed).double().eval()


def by_segments(model, ids, length):
    memory = model.new_cache()
    return torch.cat([model(part, cache=memory) for part in ids.split(length, 1)], 1)


@pytest.mark.parametrize("spec", GIVEN, ids=lambda spec: spec.name)
def test_the_specs(spec):
    verdict = judge(spec, GIVEN[spec])
    assert verdict.passed, verdict


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{}, {"pad_id": None, "norm_placement": "pre"}, {"window": 3, "memory_length": 2}],
    ids=["memory", "without a padding id", "window"],
)
@pytest.mark.plain_types
def test_the_contract_is_kept(changes):
    report = contract(small(num_layers=2, **changes))
    assert report, report
    held = {each.name for each in report.results if each.outcome == "holds"}
    assert {"cached = uncached", "cached = uncached, with padding", "batch = single"} <= held, (
        report
    )


# --- The relative shift ---------------------------------------------------------------------------


@pytest.mark.parametrize("memory", range(5))
@pytest.mark.parametrize("length", range(1, 5))
def test_the_shift_is_the_loop_for_any_memory(length, memory):
    """Every entry of both forms names its row and its distance, so equal numbers mean equal places."""
    keys = memory + length
    for columns in (keys, keys + length - 1):
        distance = keys - 1.0 - torch.arange(columns)
        named = 100.0 * torch.arange(1, length + 1)[:, None] + distance
        found = relative_shift(named, keys)
        for i in range(length):
            for j in range(keys):
                steps = i + memory - j
                known = steps >= 0 or columns > keys
                assert float(found[i, j]) == (100.0 * (i + 1) + steps if known else 0.0)


def test_the_causal_form_is_refused_where_it_would_be_wrong():
    """The bug of the first Conformers: distances to the past alone, and no causal mask."""
    heads = torch.randn(1, 2, 3, 4, dtype=torch.float64)
    rest = (torch.randn(2, 3, 4, dtype=torch.float64), *torch.randn(2, 2, 4, dtype=torch.float64))
    transformer_xl_attention(heads, heads, heads, *rest, causal=True)
    with pytest.raises(ValueError, match="position_key: expected 5 rows: the call is not causal"):
        transformer_xl_attention(heads, heads, heads, *rest)


def test_encodings_of_all_distances():
    found = distance_encodings(2, 4, 6, like=IDS.double())
    assert found.shape == (5, 6)
    torch.testing.assert_close(found[:, 0], torch.tensor([3.0, 2, 1, 0, -1]).double().sin())
    torch.testing.assert_close(found[:, 3], torch.tensor([3.0, 2, 1, 0, -1]).double().cos())


@torch.no_grad()
def test_scores_depend_on_the_distance_alone():
    """Of equal tokens, attention weights relative to a query's own are the same for every query."""
    layer = shake(TransformerXLAttention(8, 2), 0).double()
    x = torch.randn(1, 1, 8, dtype=torch.float64).expand(1, 7, 8)
    _, weights = layer(x, causal=False, return_weights=True)
    logits = weights.log()
    logits = logits - logits.diagonal(dim1=-2, dim2=-1)[..., None]
    for steps in range(-6, 7):
        diagonal = logits.diagonal(steps, -2, -1)
        torch.testing.assert_close(diagonal, diagonal[..., :1].expand_as(diagonal))


# --- Segment by segment ---------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("length", [1, 3, 4, 10])
def test_segments_are_the_whole_text_where_the_memory_holds_it(length):
    """Before the last segment there are 10 - 1 - (9 mod length) tokens: that much memory, and no token less."""
    before = (10 - 1) // length * length
    whole = small(memory_length=before)(IDS)
    torch.testing.assert_close(by_segments(small(memory_length=before), IDS, length), whole)
    if before:
        found = by_segments(small(memory_length=before - 1), IDS, length)
        assert not torch.allclose(found[:, before], whole[:, before])
        torch.testing.assert_close(found[:, :before], whole[:, :before])


@torch.no_grad()
@pytest.mark.parametrize("length", [1, 2, 3, 7])
@pytest.mark.parametrize("window", [1, 2, 4])
def test_with_a_window_a_short_memory_is_enough_for_any_text(length, window):
    """window - 1 states per layer, though three layers read 3 (window - 1) tokens back."""
    whole = small(window=window)(IDS)
    exact = small(window=window, memory_length=window - 1)
    torch.testing.assert_close(by_segments(exact, IDS, length), whole)
    if window > 1:
        short = small(window=window, memory_length=window - 2)
        assert not torch.allclose(by_segments(short, IDS, length), whole)


@torch.no_grad()
def test_how_far_a_token_reads():
    """Through n layers, n (window - 1) tokens back, across segments; not a token farther."""
    model, changed = small(window=3, memory_length=2), IDS.clone()
    changed[:, 0] = changed[:, 0] % 12 + 1
    far = (by_segments(model, IDS, 2) - by_segments(model, changed, 2)).abs().amax((0, 2))
    assert bool((far[: 3 * 2 + 1] > 0).all())
    assert bool((far[3 * 2 + 1 :] == 0).all())


def test_no_gradient_reaches_back_into_the_memory():
    """The second segment's loss changes no number that only the first one reads; outputs depend on it."""
    model, memory = small(), small().new_cache()
    vectors = []
    model.embedding.register_forward_hook(lambda m, x, y: vectors.append(y) or y.retain_grad())
    model(IDS[:, :5], cache=memory)
    model(IDS[:, 5:], cache=memory).square().sum().backward()
    assert vectors[0].grad is None
    assert bool((vectors[1].grad != 0).any())
    assert not any(layer.own.hidden.requires_grad for layer in memory.layers)


def test_the_memory_is_of_fixed_size():
    model = small(memory_length=4)
    for length in (1, 4, 9):
        memory = model.new_cache()
        by = [model(part, cache=memory) for part in IDS.split(length, 1)]
        assert torch.cat(by, 1).shape == (2, 10, 13)
        assert [layer.own.hidden.shape for layer in memory.layers] == [(2, 4, 12)] * 3
        assert memory.nbytes == 3 * 2 * 4 * 12 * 8


def test_generation_with_and_without_a_memory():
    model = small(memory_length=16)
    found = [
        generate(CausalState(model, cache=cache), IDS[:, :4], max_new=5, eos=None).tokens
        for cache in (True, False)
    ]
    assert torch.equal(*found)


def test_taking_back():
    memory, states = SegmentMemory(3), torch.randn(2, 5, 4)
    memory.append(states[:, :2])
    memory.append(states[:, 2:3])
    memory.truncate(2)
    assert torch.equal(memory.hidden, states[:, :2])
    context = memory.append(states[:, 2:])
    assert torch.equal(context, states)
    assert torch.equal(memory.hidden, states[:, 2:])
    memory.reorder(torch.tensor([1, 1]))
    assert torch.equal(memory.hidden, states[[1, 1], 2:])
    with pytest.raises(ValueError, match="length: expected 5 to 5: older states are gone, got 4"):
        memory.truncate(4)


@pytest.mark.plain_types
def test_bad_input_is_refused():
    for changes, message in (
        ({"memory_length": -1}, "memory_length: expected at least 0"),
        ({"positions": "rotary"}, 'positions: expected "none"'),
        ({"num_kv_heads": 1}, "num_kv_heads: expected num_heads = 3"),
        ({"window": 0}, "window: expected at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(CONFIG, **changes)
    with pytest.raises(
        ValueError, match="by_distance: expected 4 columns, or 5 for both directions"
    ):
        relative_shift(torch.ones(2, 3), 4)
    memory = SegmentMemory(2)
    memory.append(torch.ones(2, 3, 4))
    with pytest.raises(ValueError, match="x: expected"):
        memory.append(torch.ones(1, 3, 4))
    with pytest.raises(RuntimeError, match="the memory is empty"):
        SegmentMemory(2).reorder(torch.tensor([0]))
