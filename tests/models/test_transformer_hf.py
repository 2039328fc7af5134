"""Against Hugging Face: MarianMT, BART and mBART with the same weights give the same numbers."""

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from hf_copies import PAD, config_of_hf, from_hf, hf_pairs, small_hf
from same_numbers import assert_same_numbers, gradients_as_weights, in_dtype, shake
from tested_transformer.models.transformer import Transformer

KINDS = ["marian", "bart", "mbart"]
pytestmark = pytest.mark.slow


def sentences(seed: int, batch: int, *lengths: int) -> list[torch.Tensor]:
    """Token ids, padded right: rows of different lengths, the first one full."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for length in lengths:
        ids = torch.randint(3, 17, (batch, length), generator=generator)
        ends = torch.tensor([max(1, length - 2 * row) for row in range(batch)])
        rows.append(ids.masked_fill(torch.arange(length) >= ends[:, None], PAD))
    return rows


def in_their_dtype(theirs, dtype):
    """A copy; Marian's table of sinusoids, stored in float32, is made anew for float64."""
    twin = in_dtype(theirs, dtype)
    if dtype == torch.float64 and twin.config.model_type == "marian":
        for stack in (twin.model.encoder, twin.model.decoder):
            table = stack.embed_positions.weight
            table.copy_(halves(*table.shape))
    return twin


def halves(length: int, width: int) -> torch.Tensor:
    """Sines, then cosines, number by number."""
    table = np.zeros((length, width))
    for place in range(length):
        for i in range(width // 2):
            angle = place / 10000 ** (2 * i / width)
            table[place, i], table[place, width // 2 + i] = np.sin(angle), np.cos(angle)
    return torch.from_numpy(table)


def their_logits(theirs, source, target):
    return theirs(
        input_ids=source, attention_mask=(source != PAD).long(), decoder_input_ids=target,
        decoder_attention_mask=(target != PAD).long(), use_cache=False,
    ).logits  # fmt: skip


def assert_agree(theirs, source, target):
    real = target != PAD

    def run(dtype, use_ours):
        module = in_their_dtype(theirs, dtype)
        ours = from_hf(module)
        logits = ours(source, target) if use_ours else their_logits(module, source, target)
        logits = logits[real]
        noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(3))
        (logits * noise.to(dtype)).sum().backward()
        if use_ours:
            gradients = [mine.grad for mine, _ in hf_pairs(ours, module)]
        else:
            gradients = [g for _, g in hf_pairs(ours, gradients_as_weights(module))]
        return {"logits": [logits], "gradients": gradients}

    return assert_same_numbers(lambda d: run(d, True), lambda d: run(d, False))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_gradients(kind, attention, seed):
    theirs = shake(small_hf(kind, attention), seed).train(seed == 1)
    assert_agree(theirs, *sentences(seed, 2 + seed, 9, 6 + 5 * seed))


@pytest.mark.parametrize(
    "changes",
    [
        {"activation_function": "swish"},
        {"activation_function": "relu", "scale_embedding": False},
        {"activation_function": "gelu_new"},
        {"encoder_layers": 1, "decoder_layers": 4, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8},
        {"d_model": 10, "encoder_attention_heads": 5, "decoder_attention_heads": 5},
        {"d_model": 10, "encoder_attention_heads": 1, "decoder_attention_heads": 1},
    ],
)
def test_other_configurations_of_marian(changes):
    assert_agree(shake(small_hf("marian", "sdpa", **changes), 4), *sentences(4, 3, 5, 8))


def test_they_are_what_they_are():
    """Three wirings of one model, read from their configurations."""
    marian, bart, mbart = (config_of_hf(small_hf(kind)) for kind in KINDS)
    assert (marian.norm_placement, marian.positions, marian.final_norm) == (
        "post",
        "sinusoidal",
        False,
    )
    assert (bart.norm_placement, bart.embedding_norm, bart.final_norm) == ("post", True, False)
    assert (mbart.norm_placement, mbart.embedding_norm, mbart.final_norm) == ("pre", True, True)


def test_marians_table_is_ours_in_halves():
    theirs = small_hf("marian")
    ours = Transformer(config_of_hf(theirs))
    table = theirs.model.encoder.embed_positions.weight
    assert torch.equal(ours.source_embedding.positions(torch.arange(len(table))), table)
    np.testing.assert_allclose(table.double(), halves(*table.shape), atol=2**-24)


def test_source_padding_on_the_left_moves_their_positions_and_not_ours():
    """Theirs count padding. With it on the left they answer as if the sentence began later."""
    theirs = shake(small_hf("marian"), 5).eval()
    ours = from_hf(theirs)
    source, target = sentences(5, 1, 6, 4)
    padded = torch.cat([torch.full((1, 3), PAD), source], dim=1)
    with torch.no_grad():
        torch.testing.assert_close(ours(padded, target), ours(source, target))
        alone, late = their_logits(theirs, source, target), their_logits(theirs, padded, target)
    assert (alone - late).abs().max() > 0.01


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", KINDS)
def test_their_cache_and_ours_give_the_same_steps(kind):
    theirs = shake(small_hf(kind, use_cache=True), 6).double().eval()
    ours = from_hf(in_their_dtype(theirs, torch.float64))
    theirs = in_their_dtype(theirs, torch.float64)
    source, target = sentences(6, 2, 7, 5)
    target[target == PAD] = 4
    cache, past = ours.new_cache(), None
    with torch.no_grad():
        memory = ours.encode(source)
        for step in range(target.shape[1]):
            chunk = target[:, step : step + 1]
            answer = theirs(
                input_ids=source, attention_mask=(source != PAD).long(), decoder_input_ids=chunk,
                past_key_values=past, use_cache=True,
            )  # fmt: skip
            past = answer.past_key_values
            got = ours.decode(chunk, memory, memory_mask=ours.padding(source), cache=cache)
            torch.testing.assert_close(got, answer.logits, atol=1e-12, rtol=1e-12)
