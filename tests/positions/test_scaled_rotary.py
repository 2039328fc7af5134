"""Rotary positions for longer texts: against the frequencies of transformers, and what they are for."""

import pytest
import torch

pytest.importorskip("transformers")

from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tested_transformer.positions.rotary import RotaryPositions
from tested_transformer.positions.scaled_rotary import (
    LinearScaling,
    Llama3Scaling,
    ScaledRotaryPositions,
    YarnScaling,
)

LLAMA3 = {"low_freq_factor": 0.5, "high_freq_factor": 4.0, "original_max_position_embeddings": 30}
YARN = {"beta_fast": 4.0, "beta_slow": 0.5, "original_max_position_embeddings": 30}
SCALINGS = {
    "linear": (LinearScaling(8.0), {}),
    "llama3": (Llama3Scaling(8.0, 0.5, 4.0, 30), LLAMA3),
    "yarn": (YarnScaling(8.0, 30, 4.0, 0.5), YARN),
    "yarn, not rounded": (
        YarnScaling(8.0, 30, 4.0, 0.5, truncate=False, attention_factor=0.7),
        YARN | {"truncate": False, "attention_factor": 0.7},
    ),
    "yarn, as it comes": (YarnScaling(8.0, 4096), {"original_max_position_embeddings": 4096}),
    "yarn, without a passage": (
        YarnScaling(8.0, 30, 1.0, 1.0, truncate=False),
        YARN | {"beta_fast": 1.0, "beta_slow": 1.0, "truncate": False},
    ),
}
EACH = pytest.mark.parametrize("kind", SCALINGS)


def exact(d_head=32, base=100.0):
    return base ** -(torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)


@EACH
def test_frequencies_are_theirs(kind):
    """Theirs come from float32, in half units of it: a power, whose exponent's rounding counts ln 100 = 4.6
    times, six more operations, and a passage that multiplies the error of the turns by up to 7 x 0.5 / 3.5:
    under 32 together."""
    (scaling, options), kind = SCALINGS[kind], kind.partition(",")[0]
    given = {"rope_type": kind, "rope_theta": 100.0, "factor": 8.0} | options
    config = LlamaConfig(hidden_size=32, num_attention_heads=1, rope_parameters=given)
    theirs, factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
    ours = scaling(exact())
    assert getattr(scaling, "attention_factor", 1.0) == factor
    torch.testing.assert_close(theirs.double(), ours, rtol=32 * 2**-24, atol=0)


def test_llama3_keeps_the_fast_and_divides_the_slow():
    ratio = exact() / SCALINGS["llama3"][0](exact())
    turns = 30 * exact() / (2 * torch.pi)
    assert (ratio[turns >= 4] == 1).all()
    torch.testing.assert_close(ratio[turns <= 0.5], torch.full_like(ratio[turns <= 0.5], 8))
    between = ratio[(turns > 0.5) & (turns < 4)]
    assert len(between) > 2
    assert ((between > 1) & (between < 8)).all()
    assert (ratio.diff() >= 0).all()


def test_yarn_keeps_the_fast_and_divides_the_slow():
    """Between them it passes linearly in the index, and rounds both ends outward: it keeps a little less."""
    turns = 30 * exact() / (2 * torch.pi)
    for truncate, shift in ((False, 0), (True, 1)):
        ratio = exact() / YarnScaling(8.0, 30, 4.0, 0.5, truncate=truncate)(exact())
        fast, slow = int((turns >= 4).sum()), int((turns > 0.5).sum())
        assert (ratio[: fast - shift] == 1).all()
        torch.testing.assert_close(ratio[slow + shift :], torch.full_like(ratio[slow + shift :], 8))
        kept = (1 / ratio[fast + 1 : slow - 1]).diff()
        assert len(kept) > 2
        torch.testing.assert_close(kept, kept[:1].expand_as(kept))
    paper = ((turns - 0.5) / 3.5).clamp(0, 1)  # linear in the turns: another passage
    assert ((paper + (1 - paper) / 8) * ratio - 1).abs().max() > 0.2


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_yarn_multiplies_what_rotates(layout):
    """Queries and keys, so that scores are multiplied by the square; features that do not rotate stay."""
    query, key = (torch.randn(2, heads, 5, 6, dtype=torch.float64) for heads in (4, 2))
    options = {"layout": layout, "rotary_dim": 4, "base": 50.0}
    for factor in (1.0, 1.5):
        scaling = YarnScaling(8.0, 30, attention_factor=factor)
        frequencies = torch.stack([torch.ones(()), torch.tensor(50.0) ** -0.5]).double()
        assert scaling(frequencies).shape == (2,)
        found = ScaledRotaryPositions(6, scaling, **options).rotate(query, key, torch.arange(5))
        alone = ScaledRotaryPositions(6, YarnScaling(8.0, 30, attention_factor=1.0), **options)
        for mine, yours in zip(found, alone.rotate(query, key, torch.arange(5)), strict=True):
            torch.testing.assert_close(mine[..., :4], factor * yours[..., :4])
            assert torch.equal(mine[..., 4:], yours[..., 4:])


def test_linear_scaling_brings_positions_closer_together():
    """Position 8 p is turned as p is without scaling."""
    query, key = (torch.randn(2, heads, 5, 6, dtype=torch.float64) for heads in (4, 2))
    places = torch.arange(5)
    for layout in ("halves", "interleaved"):
        scaled = ScaledRotaryPositions(
            6, LinearScaling(8.0), layout=layout, rotary_dim=4, base=50.0
        )
        plain = RotaryPositions(6, layout=layout, rotary_dim=4, base=50.0)
        for mine, yours in zip(
            scaled.rotate(query, key, 8 * places), plain.rotate(query, key, places), strict=True
        ):
            torch.testing.assert_close(mine, yours)
        same = ScaledRotaryPositions(6, LinearScaling(1.0), layout=layout).rotate(
            query, key, places
        )
        for mine, yours in zip(
            same, RotaryPositions(6, layout=layout).rotate(query, key, places), strict=True
        ):
            assert torch.equal(mine, yours)


def test_it_says_what_it_is():
    assert "base=7.0" in repr(ScaledRotaryPositions(4, LinearScaling(2.0), base=7.0))
    assert "LinearScaling(factor=2.0)" in repr(ScaledRotaryPositions(4, LinearScaling(2.0)))


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: LinearScaling(0.5), ValueError, "factor: expected at least 1, got 0.5"),
        (lambda: LinearScaling("2"), TypeError, "factor: expected a number, got str"),
        (
            lambda: Llama3Scaling(8.0, 4.0, 4.0, 30),
            ValueError,
            "high_freq_factor: expected a number above low_freq_factor = 4.0, got 4.0",
        ),
        (
            lambda: Llama3Scaling(8.0, 0.0, 4.0, 30),
            ValueError,
            "low_freq_factor: expected a number above 0",
        ),
        (
            lambda: Llama3Scaling(8.0, 1.0, 4.0, 0),
            ValueError,
            "original_length: expected at least 1",
        ),
        (
            lambda: ScaledRotaryPositions(4, 2.0),
            TypeError,
            "scaling: expected a LinearScaling or a Llama3Scaling or a YarnScaling, got float",
        ),
        (
            lambda: YarnScaling(8.0, 30, 1.0, 4.0),
            ValueError,
            "fast_turns: expected at least slow_turns = 4.0, got 1.0",
        ),
        (lambda: YarnScaling(8.0, 0), ValueError, "original_length: expected at least 1"),
        (
            lambda: YarnScaling(8.0, 30, attention_factor=0.0),
            ValueError,
            "attention_factor: expected a number above 0, got 0.0",
        ),
        (
            lambda: YarnScaling(8.0, 30)(torch.ones(1)),
            ValueError,
            "frequency: expected at least 2, .* got 1 of them",
        ),
        (
            lambda: ScaledRotaryPositions(5, LinearScaling(2.0)),
            ValueError,
            "rotary_dim: expected an even number",
        ),
    ],
)
def test_malformed(call, error, message):
    with pytest.raises(error, match=message):
        call()
