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
)

LLAMA3 = {"low_freq_factor": 0.5, "high_freq_factor": 4.0, "original_max_position_embeddings": 30}
SCALINGS = {
    "linear": (LinearScaling(8.0), {}),
    "llama3": (Llama3Scaling(8.0, 0.5, 4.0, 30), LLAMA3),
}
EACH = pytest.mark.parametrize("kind", SCALINGS)


def exact(d_head=32, base=100.0):
    return base ** -(torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)


@EACH
def test_frequencies_are_theirs(kind):
    """Theirs come from float32, in half units of it: a power, whose exponent's rounding counts ln 100 = 4.6
    times, six more operations, and a passage that multiplies the error of the turns by up to 7 x 0.5 / 3.5:
    under 32 together."""
    scaling, options = SCALINGS[kind]
    given = {"rope_type": kind, "rope_theta": 100.0, "factor": 8.0} | options
    config = LlamaConfig(hidden_size=32, num_attention_heads=1, rope_parameters=given)
    theirs, _ = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
    ours = scaling(exact())
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
            "scaling: expected a LinearScaling or a Llama3Scaling, got float",
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
