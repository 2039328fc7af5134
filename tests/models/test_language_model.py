"""The decoder-only model: against transformers' GPT-2, in one pass, in chunks and word for word."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from hf_copies import (
    PAD,
    from_mpt,
    loaded,
    small_gpt2,
    small_llama,
    small_mpt,
)
from same_numbers import assert_float32_same, assert_same_numbers, in_dtype
from tested_transformer.data import pad
from tested_transformer.generation.beam_search import beam_search
from tested_transformer.generation.decoding_state import CausalState
from tested_transformer.generation.generate import generate
from tested_transformer.models.language_model import LanguageModel, LanguageModelConfig
from tested_transformer.models.transformer import TransformerConfig

EOS = 2
PROMPTS = [[5, 6, 7, 8], [9], [10, 11]]
OURS = {"max_new": 12, "eos": EOS, "padding": PAD}


def gpt2(seed, pad_id=PAD):
    torch.manual_seed(seed)
    theirs = small_gpt2(pad_id).double()
    with torch.no_grad():
        theirs.transformer.wte.weight[PAD] = 0.0  # never the likeliest, so that no row says it
    return theirs


@pytest.mark.parametrize("seed", range(3))
def test_logits_and_gradients_equal_gpt2(seed):
    theirs = gpt2(seed, pad_id=None)
    ours = loaded(theirs)
    ids = torch.randint(0, 17, (3, 9), generator=torch.Generator().manual_seed(seed))

    def of(model, table, logits_of):
        def run(dtype):
            twin = in_dtype(model, dtype)
            logits = logits_of(twin)
            (logits.softmax(-1)[..., :5].sum()).backward()
            return {"logits": [logits], "table": [table(twin).weight.grad]}

        return run

    assert_same_numbers(
        of(ours, lambda m: m.embedding.table, lambda m: m(ids)),
        of(theirs, lambda m: m.transformer.wte, lambda m: m(ids).logits),
    )


OTHERS = {
    "llama": (small_llama, loaded, lambda m: m.model.embed_tokens),
    "mistral": (partial(small_llama, "mistral", sliding_window=4), loaded, lambda m: m.model.embed_tokens),
    "mpt": (small_mpt, from_mpt, lambda m: m.transformer.wte),
}  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", OTHERS)
def test_logits_and_gradients_equal_llama_mistral_and_mpt(kind, seed):
    """Rotary, grouped-query attention, a head size of its own, RMSNorm, SwiGLU; a window; ALiBi."""
    small, copy, table = OTHERS[kind]
    torch.manual_seed(seed)
    theirs = small()
    ours = copy(theirs)
    ids = torch.randint(0, 17, (3, 9), generator=torch.Generator().manual_seed(seed))

    def of(model, table, logits_of):
        def run(dtype):
            twin = in_dtype(model, dtype)
            logits = logits_of(twin)
            (logits.softmax(-1)[..., :5].sum()).backward()
            grad = table(twin).weight.grad.clone()
            grad[PAD] = 0  # theirs gives the padding token's embedding no gradient
            return {"logits": [logits], "table": [grad]}

        return run

    assert_float32_same(
        of(ours, lambda m: m.embedding.table, lambda m: m(ids)),
        of(theirs, table, lambda m: m(ids, use_cache=False).logits),
    )


WINDOW = 3


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "alibi"])
@pytest.mark.parametrize("chunk", [1, 2, WINDOW, WINDOW + 1, 100])
@pytest.mark.parametrize("pad_id", [None, 0])
def test_a_window_in_chunks_equals_one_pass(positions, chunk, pad_id):
    """The cache keeps the last keys only; positions count every token that was ever seen."""
    config = LanguageModelConfig(
        17, d_model=12, num_heads=6, num_kv_heads=3, d_head=4, num_layers=2, positions=positions,
        max_length=20, window=WINDOW, pad_id=pad_id,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LanguageModel(config).eval().double()
    rows = [[5, 6, 7, 8, 9, 3, 4, 11, 12], [4, 8, 3, 5], [10, 11, 3, 1, 2, 2, 7]]
    ids = pad(rows, left=True, value=0)
    cache, pieces = model.new_cache(), []
    with torch.no_grad():
        whole = model(ids)
        for piece in ids.split(chunk, dim=1):
            pieces.append(model(piece, cache=cache))
            assert cache.length == sum(each.shape[1] for each in pieces)
            assert all(layer.own.keys.shape[2] <= WINDOW for layer in cache.layers)
        wide = LanguageModel(replace(config, window=None)).eval().double()
        wide.load_state_dict(model.state_dict())
        everything = wide(ids)
    real = torch.ones_like(ids, dtype=torch.bool) if pad_id is None else ids != pad_id
    torch.testing.assert_close(torch.cat(pieces, dim=1)[real], whole[real])
    if pad_id is not None:
        alone = model(torch.tensor(rows[1:2]))
        torch.testing.assert_close(whole[1, -4:], alone[0])
    assert not torch.allclose(whole[0, -1], everything[0, -1])  # the window hides something
    torch.testing.assert_close(whole[0, :WINDOW], everything[0, :WINDOW])


@pytest.mark.parametrize("positions", ["rotary", "alibi"])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_padding_anywhere_changes_nothing(positions, chunk):
    """Padding on the left, on the right of a chunk that others follow, or both: as if alone."""
    config = LanguageModelConfig(17, d_model=12, num_heads=3, num_layers=2, positions=positions)
    torch.manual_seed(0)
    model = LanguageModel(config).eval().double()
    rows = torch.tensor([[5, 6, 0, 0, 7, 8, 9], [0, 0, 4, 8, 3, 0, 5], [3, 4, 5, 6, 7, 8, 9]])
    cache = model.new_cache(capacity=2)
    with torch.no_grad():
        pieces = [model(piece, cache=cache) for piece in rows.split(chunk, dim=1)]
        for logits, row in zip(torch.cat(pieces, dim=1), rows, strict=True):
            torch.testing.assert_close(logits[row != 0], model(row[row != 0][None])[0])


@pytest.mark.parametrize("norm_placement", ["post", "pre", "deepnorm", "resi_dual"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "none", "rotary", "alibi"])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_chunks_equal_one_pass_with_padding(norm_placement, positions, chunk):
    config = LanguageModelConfig(
        17, d_model=12, num_heads=3, num_layers=2, norm_placement=norm_placement, positions=positions,
        max_length=20,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LanguageModel(config).eval().double()
    ids = pad([[5, 6, 7, 8, 9], [4], [10, 11, 3]], left=True)
    cache, pieces = model.new_cache(capacity=2), []
    with torch.no_grad():
        whole = model(ids)
        for piece in ids.split(chunk, dim=1):
            pieces.append(model(piece, cache=cache))
        alone = model(ids[2:, 2:])
    real = ids != 0
    torch.testing.assert_close(torch.cat(pieces, dim=1)[real], whole[real])
    torch.testing.assert_close(whole[2, 2:], alone[0])


def test_the_future_is_hidden_and_weights_say_so():
    model = LanguageModel(LanguageModelConfig(17, d_model=12, num_heads=3, num_layers=2))
    ids = torch.randint(1, 17, (2, 6), generator=torch.Generator().manual_seed(0))
    changed = ids.clone()
    changed[:, -1] = 1
    logits, weights = model.eval()(ids, return_weights=True)
    torch.testing.assert_close(model(changed)[:, :-1], logits[:, :-1])
    assert len(weights) == 2
    assert all(not w.triu(1).any() for w in weights)
    mask = torch.ones(6, 6, dtype=torch.bool)
    mask[:, 0] = False
    hidden = model(ids, mask=mask, return_weights=True)[1]
    assert not hidden[0][..., 0].any()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("cache", [True, False])
def test_greedy_equals_hf_word_for_word(seed, cache):
    theirs, prompts = gpt2(seed), pad(PROMPTS, left=True, value=PAD)
    wanted = theirs.generate(
        prompts, attention_mask=(prompts != PAD).long(), max_new_tokens=12, do_sample=False
    )
    found = generate(CausalState(loaded(theirs, PAD), cache=cache), prompts, **OURS)
    assert torch.equal(found.tokens, wanted[:, prompts.shape[1] :])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("beams", [2, 4])
def test_beams_equal_hf_word_for_word(seed, beams):
    theirs, prompts = gpt2(seed), pad(PROMPTS, left=True, value=PAD)
    wanted = theirs.generate(
        prompts, attention_mask=(prompts != PAD).long(), max_new_tokens=12, do_sample=False,
        num_beams=beams, early_stopping="never",
    )[:, prompts.shape[1] :]  # fmt: skip
    for cache in (True, False):
        session = CausalState(loaded(theirs, PAD), cache=cache)
        found = beam_search(session, prompts, num_beams=beams, **OURS)
        assert torch.equal(found.tokens, wanted)


@pytest.mark.plain_types
def test_what_has_no_place_is_refused():
    with pytest.raises(TypeError, match="config: expected a LanguageModelConfig, got Transformer"):
        LanguageModel(TransformerConfig(9, 8, d_model=4, num_heads=2))
    model = LanguageModel(LanguageModelConfig(9, d_model=4, num_heads=2, num_layers=1))
    with pytest.raises(
        ValueError, match="ids: expected at least 0 and a number below .*vocab_size = 9, got 9 to 9"
    ):
        model(torch.tensor([[9]]))
    with pytest.raises(TypeError, match="config: expected a LanguageModelConfig"):
        LanguageModel(3)
    other = LanguageModel(LanguageModelConfig(9, d_model=4, num_heads=2, num_layers=2))
    with pytest.raises(ValueError, match="cache: expected 1, got 2 layers"):
        model(torch.tensor([[3]]), cache=other.new_cache())


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"vocab_size": 0}, ValueError, ["vocab_size", "at least 1"]),
        ({"num_layers": 0}, ValueError, ["num_layers", "at least 1"]),
        ({"num_heads": 3}, ValueError, ["num_heads", "3", "8"]),
        ({"num_kv_heads": 3}, ValueError, ["num_kv_heads", "divides num_heads = 4"]),
        ({"d_head": 0}, ValueError, ["d_head", "at least 1"]),
        ({"window": 0}, ValueError, ["window", "at least 1"]),
        ({"window": 2.0}, TypeError, ["window", "float"]),
        ({"positions": "relative"}, ValueError, ["positions", "relative", '"rotary", "alibi"']),
        ({"positions": "learned"}, TypeError, ["max_length", "got None"]),
        ({"pad_id": 9}, ValueError, ["pad_id", "below vocab_size = 9"]),
        ({"norm": "batch"}, ValueError, ["norm", '"layer" or "rms"']),
    ],
)
def test_malformed_configurations(changes, error, words):
    with pytest.raises(error) as caught:
        LanguageModelConfig(**{"vocab_size": 9, "d_model": 8, "num_heads": 4} | changes)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_head_size_need_not_divide_the_width():
    config = LanguageModelConfig(9, d_model=8, num_heads=3, d_head=4, num_layers=1)
    assert LanguageModel(config)(torch.tensor([[3, 4]])).shape == (1, 2, 9)
