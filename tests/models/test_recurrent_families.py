"""Language models without attention: Mamba, Mamba-2 and RWKV-4, as transformers has them; chunks, padding, contract."""

import json

import pytest
import torch

pytest.importorskip("transformers")

import transformers as hf

from hf_copies import PAD, assert_comes_back, assert_read_whole, loaded, padded
from same_numbers import assert_float32_same, in_dtype, shake
from tested_transformer.data import pad
from tested_transformer.generation.generate import generate
from tested_transformer.generation.masked_state import MaskedCausalState
from tested_transformer.models.loading import FAMILIES, from_pretrained, save_pretrained
from tested_transformer.specs.contract import contract

CLASSES = {
    "mamba": (hf.MambaConfig, hf.MambaForCausalLM, hf.MambaModel),
    "mamba2": (hf.Mamba2Config, hf.Mamba2ForCausalLM, hf.Mamba2Model),
    "rwkv": (hf.RwkvConfig, hf.RwkvForCausalLM, hf.RwkvModel),
}
SHARED = {"vocab_size": 17, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": PAD}
SIZES = {
    "mamba": {"hidden_size": 12, "state_size": 5, "num_hidden_layers": 3, "time_step_rank": 2},
    "mamba2": {
        "hidden_size": 12, "state_size": 5, "num_hidden_layers": 3, "num_heads": 6,
        "head_dim": 4, "n_groups": 3, "chunk_size": 4,
    },
    "rwkv": {"hidden_size": 12, "num_hidden_layers": 3, "intermediate_size": 20},
}  # fmt: skip
VARIANTS = {
    "mamba": [
        {},
        {"expand": 3, "conv_kernel": 2, "use_conv_bias": False, "layer_norm_epsilon": 1e-2},
        {"use_bias": True, "tie_word_embeddings": False, "time_step_rank": "auto"},
        {"head": False, "residual_in_fp32": False},
    ],
    "mamba2": [
        {},
        {"n_groups": 1, "conv_kernel": 2, "use_conv_bias": False, "layer_norm_epsilon": 1e-2},
        {"use_bias": True, "tie_word_embeddings": True, "time_step_limit": (0.3, 0.9)},
        {"head": False, "residual_in_fp32": False, "n_groups": 6},
    ],
    "rwkv": [
        {},
        {"attention_hidden_size": 10, "layer_norm_epsilon": 1e-2},
        {"tie_word_embeddings": True, "intermediate_size": None},
        {"head": False},
    ],
}  # fmt: skip
EACH = pytest.mark.parametrize("kind", CLASSES)
EVERY = pytest.mark.parametrize(
    ("kind", "changes"), [(kind, each) for kind, several in VARIANTS.items() for each in several]
)


def small(kind, seed=0, *, head=True, **changes):
    """A model of the family with random weights, all sizes different; nothing is left at 0 or 1."""
    config, *models = CLASSES[kind]
    theirs = models[0 if head else 1](config(**SHARED | SIZES[kind] | changes))
    return shake(theirs, seed).eval()


def texts(seed, padding="left", batch=3, length=9):
    """IDs and the mask: sequences of different lengths, padded on one side, or full without a mask."""
    ids = torch.randint(3, 17, (batch, length), generator=torch.Generator().manual_seed(seed))
    return padded(ids, padding)


def assert_agree(theirs, ids, mask):
    """Logits of the real tokens, and the gradient of every weight."""
    ours, family = loaded(theirs), FAMILIES[theirs.config.model_type]
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask

    def run(dtype, module):
        twin = in_dtype(module, dtype)
        if module is ours:
            logits = twin(ids, mask)[real]
        else:
            options = {} if mask is None else {"attention_mask": mask.long()}
            logits = twin(ids, use_cache=False, **options)[0][real]
        noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(3))
        (logits * noise.to(dtype)).sum().backward()
        state = {name: each.grad for name, each in twin.named_parameters()}
        if module is ours:
            gradients = {w.name: w.to_disk(state) for w in family.weights(twin)}
        else:
            whole = ("lm_head.", "head.", family.base)
            gradients = {n if n.startswith(whole) else family.base + n: g for n, g in state.items()}
        return {"logits": [logits], "gradients": [gradients[name] for name in sorted(gradients)]}

    assert_float32_same(lambda dtype: run(dtype, ours), lambda dtype: run(dtype, theirs))


# --- The same numbers -----------------------------------------------------------------------------


@EVERY
def test_logits_and_gradients(kind, changes):
    assert_agree(small(kind, 1, **changes), *texts(1, "none"))


@pytest.mark.parametrize("kind", ["mamba", "mamba2"])
@pytest.mark.parametrize("padding", ["left", "right"])
def test_padded_logits_and_gradients(kind, padding):
    """Theirs masks before and after the convolution; in one pass that is right on both sides."""
    assert_agree(small(kind, 2), *texts(2, padding))


@EACH
@pytest.mark.parametrize("side", ["left", "right", "inside"])
def test_padding_leaves_the_real_tokens_alone(kind, side):
    ours = loaded(small(kind, 3, use_bias=True) if kind != "rwkv" else small(kind, 3)).double()
    ids, mask = texts(3, "none" if side == "inside" else side)
    if side == "inside":
        mask = torch.ones_like(ids, dtype=torch.bool)
        mask[1, 2:4], mask[2, 5] = False, False
    with torch.no_grad():
        logits = ours(ids, mask)
        assert torch.equal(logits, ours(ids, mask.long()))
        other = ours(ids.masked_fill(~mask, 16), mask)
        torch.testing.assert_close(other[mask], logits[mask], rtol=0, atol=0)
        for row in range(3):
            alone = ours(ids[row, mask[row]][None])
            torch.testing.assert_close(logits[row, mask[row]], alone[0])


@EACH
@pytest.mark.parametrize("side", ["none", "left", "right"])
@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_chunks_equal_one_pass(kind, side, chunk):
    """With padding on the right, too: the tokens that follow find the state of the real ones."""
    ours = loaded(small(kind, 5)).double()
    ids, mask = texts(5, side)
    more = texts(6, "none")[0]
    ids = torch.cat([ids, more], 1)
    mask = None if mask is None else torch.cat([mask, torch.ones_like(more, dtype=torch.bool)], 1)
    with torch.no_grad():
        whole, cache, pieces, sizes = ours(ids, mask), ours.new_cache(), [], set()
        for start in range(0, 18, chunk):
            end = min(start + chunk, 18)
            given = None if mask is None else mask[:, :end]
            pieces.append(ours(ids[:, start:end], given, cache=cache))
            sizes.add(cache.nbytes)
        for row in range(3):
            kept = slice(None) if mask is None else mask[row]
            alone = ours(ids[row, kept][None])[0]
            torch.testing.assert_close(whole[row, kept], alone)
    found = torch.cat(pieces, dim=1)
    real = slice(None) if mask is None else mask
    torch.testing.assert_close(found[real], whole[real])
    assert len(sizes) == 1  # the state does not grow


@pytest.mark.parametrize("kind", ["mamba", "mamba2"])
def test_generated_tokens_are_theirs(kind):
    theirs = small(kind, 6)
    prompts = pad([[5, 6, 7, 8], [9], [10, 11]], left=True, value=PAD)
    mask = prompts != PAD
    with torch.no_grad():
        theirs.get_output_embeddings().weight[PAD] = 0.0  # a logit of 0, never the largest
    wanted = theirs.generate(
        prompts, attention_mask=mask.long(), max_new_tokens=12, do_sample=False
    )[:, 4:]
    for cache in (True, False):
        state = MaskedCausalState(loaded(theirs), mask, cache=cache)
        found = generate(state, prompts, max_new=12, eos=2, padding=PAD)
        assert torch.equal(found.tokens, wanted)


def test_rwkv_generates_their_tokens_alone_and_its_own_in_a_batch():
    """Theirs ignores the mask, and its one-token step is wrong in a batch: one text at a time is right."""
    theirs = small("rwkv", 6)
    with torch.no_grad():
        theirs.get_output_embeddings().weight[PAD] = 0.0
    ours, texts = loaded(theirs), [[5, 6, 7, 8], [9], [10, 11]]
    prompts = pad(texts, left=True, value=PAD)
    state = MaskedCausalState(ours, prompts != PAD)
    together = generate(state, prompts, max_new=12, eos=2, padding=PAD).tokens
    for row, text in enumerate(texts):
        ids = torch.tensor([text])
        wanted = theirs.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False
        )[:, len(text) :]
        assert torch.equal(together[row : row + 1, : wanted.shape[1]], wanted)


@torch.no_grad()
def test_their_step_of_a_batch_is_not_the_step_of_each_text():
    """(B, D) where (B, 1, D) is meant: the token before broadcasts over the wrong axis. Ours does not."""
    theirs, (ids, _) = small("rwkv", 10), texts(10, "none", batch=2)
    ours = loaded(theirs)
    start, last = ids[:, :-1], ids[:, -1:]
    shapes = {}
    for batch in (1, 2):
        state = theirs(start[:batch], use_cache=True).state
        shapes[batch] = theirs(last[:batch], state=state, use_cache=True).logits
    whole = theirs(ids, use_cache=False).logits[:, -1:]
    torch.testing.assert_close(shapes[1], whole[:1])
    assert shapes[2].shape != whole.shape or not torch.allclose(shapes[2], whole)
    cache = ours.new_cache()
    ours(start, cache=cache)
    torch.testing.assert_close(ours(last, cache=cache), whole)


@pytest.mark.slow
@EACH
@pytest.mark.plain_types
def test_the_contract_is_kept(kind):
    report = contract(loaded(small(kind, 7)))
    assert report, report
    held = {each.name for each in report.results if each.outcome == "holds"}
    wanted = {
        "batch = single", "masked tokens do not matter", "every parameter learns",
        "cached = uncached", "cached = uncached, with padding", "the cache follows its rows",
        "no future leak", "large values stay finite", "low precision agrees",
        "greedy generation is argmax", "order matters",
    }  # fmt: skip
    assert wanted <= held


# --- There and back -------------------------------------------------------------------------------


@EVERY
def test_what_comes_back_is_what_went(kind, changes, tmp_path):
    assert_comes_back(small(kind, 8, **changes), tmp_path)


@EACH
@pytest.mark.parametrize("head", [True, False])
def test_a_model_of_ones_own_goes_to_transformers(kind, head, tmp_path):
    """One that was never loaded: its configuration alone says which family it is."""
    config = loaded(small(kind, head=head)).config
    ours = shake(FAMILIES[kind].build(config), 9).eval()
    save_pretrained(ours, tmp_path)
    theirs = CLASSES[kind][1 if head else 2].from_pretrained(tmp_path).eval()
    assert theirs.config.model_type == kind
    assert theirs.config.architectures == [type(theirs).__name__]
    ids, _ = texts(9, "none")
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), theirs(ids)[0], rtol=1e-4, atol=1e-5)
    assert from_pretrained(tmp_path).config == config


# --- Real configurations --------------------------------------------------------------------------

MAMBA = {
    "architectures": ["MambaForCausalLM"], "bos_token_id": 0, "conv_kernel": 4, "eos_token_id": 0,
    "expand": 2, "fused_add_norm": True, "hidden_act": "silu", "initializer_range": 0.1,
    "layer_norm_epsilon": 1e-05, "model_type": "mamba", "pad_token_id": 0,
    "pad_vocab_size_multiple": 8, "rescale_prenorm_residual": False, "residual_in_fp32": True,
    "rms_norm": True, "state_size": 16, "time_step_floor": 0.0001,
    "time_step_init_scheme": "random", "time_step_max": 0.1, "time_step_min": 0.001,
    "time_step_scale": 1.0, "torch_dtype": "float32", "transformers_version": "4.39.0.dev0",
    "use_bias": False, "use_cache": True, "use_conv_bias": True, "vocab_size": 50280,
}  # fmt: skip
REAL = {
    "mamba-130m-hf": (
        MAMBA | {
            "d_inner": 1536, "d_model": 768, "hidden_size": 768, "intermediate_size": 1536,
            "n_layer": 24, "num_hidden_layers": 24, "ssm_cfg": {}, "time_step_rank": 48,
        },
        129_135_360,
    ),
    "mamba-2.8b-hf": (
        MAMBA | {
            "hidden_size": 2560, "intermediate_size": 5120, "n_layer": 64,
            "num_hidden_layers": 64, "time_step_rank": 160,
        },
        2_768_345_600,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_configurations_of_published_models(name, tmp_path):
    """They are read whole, and have as many parameters as theirs."""
    config, count = REAL[name]
    assert_read_whole(config, count, tmp_path, hf.MambaForCausalLM)


@pytest.mark.parametrize(
    ("kind", "option", "value"),
    [
        ("mamba", "hidden_act", "relu"), ("mamba", "rms_norm", False),
        ("mamba", "time_step_rank", "full"), ("mamba2", "expand", 3),
        ("mamba2", "time_step_limit", [0.0]), ("rwkv", "gate", True),
    ],
)  # fmt: skip
def test_options_that_are_not_supported(kind, option, value, tmp_path):
    small(kind).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {option: value}))
    with pytest.raises(ValueError, match=f"config.json, {option}: expected"):
        from_pretrained(tmp_path)
