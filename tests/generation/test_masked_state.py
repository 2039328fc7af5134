"""Generating from a prompt whose padding is known by a mask: as each prompt alone."""

from dataclasses import replace

import pytest
import torch

from tested_transformer.data import pad
from tested_transformer.generation.beam_search import beam_search
from tested_transformer.generation.generate import generate
from tested_transformer.generation.masked_state import MaskedCausalState
from tested_transformer.models.language_model import LanguageModel, LanguageModelConfig

ROWS = [[5, 6, 7, 8], [9], [10, 11]]
PROMPTS = pad(ROWS, left=True)
MASK = PROMPTS != 0
POSITIONS = pytest.mark.parametrize(
    "positions", ["sinusoidal", "learned", "none", "rotary", "alibi"]
)


def model(positions="learned", pad_id=None, **changes):
    """Its tokens differ from row to row."""
    torch.manual_seed(4)
    config = LanguageModelConfig(
        13, d_model=12, num_heads=3, num_layers=2, positions=positions, max_length=30, pad_id=pad_id,
        **changes,
    )  # fmt: skip
    found = LanguageModel(config).eval().double()
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.mul_(2.0)
    return found


@POSITIONS
@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("window", [None, 3])
def test_as_each_prompt_alone(positions, cache, window):
    ours = model(positions, window=window)
    for search in (
        lambda state, start: generate(state, start, max_new=6, eos=None),
        lambda state, start: beam_search(state, start, num_beams=3, max_new=6, eos=2),
    ):
        together = search(MaskedCausalState(ours, MASK, cache=cache), PROMPTS)
        for row, prompt in enumerate(ROWS):
            alone = torch.tensor([prompt])
            state = MaskedCausalState(ours, torch.ones_like(alone, dtype=torch.bool))
            found = search(state, alone)
            new = found.tokens.shape[1]
            assert torch.equal(together.tokens[row, :new], found.tokens[0])
            assert not together.tokens[row, new:].any()
            torch.testing.assert_close(together.scores[row], found.scores[0])


@POSITIONS
def test_as_a_model_that_knows_padding_by_its_token(positions):
    ours = model(positions)
    twin = LanguageModel(replace(ours.config, pad_id=0)).eval().double()
    twin.load_state_dict(ours.state_dict())
    state = MaskedCausalState(ours, MASK)
    fed = [state.feed(PROMPTS), state.feed(torch.tensor([[3], [4], [5]]))]
    cache = twin.new_cache()
    with torch.no_grad():
        wanted = [twin(PROMPTS, cache=cache), twin(torch.tensor([[3], [4], [5]]), cache=cache)]
    for mine, yours in zip(fed, wanted, strict=True):
        torch.testing.assert_close(mine, yours[:, -1])


@pytest.mark.plain_types
def test_the_prompt_is_fed_whole():
    state = MaskedCausalState(model(), MASK)
    with pytest.raises(
        ValueError, match=r"tokens: expected the attention mask's shape \(3, 4\), got"
    ):
        state.feed(PROMPTS[:, :2])
    with pytest.raises(TypeError, match="attention_mask: expected torch.bool"):
        MaskedCausalState(model(), MASK.long())
    state.feed(PROMPTS)
    state.reorder(torch.tensor([2, 0]))
    assert torch.equal(state.real, MASK[[2, 0]])
    assert state.batch == 2
