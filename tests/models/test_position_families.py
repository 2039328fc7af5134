"""Families that show a scheme of positions each: GPT-NeoX, GPT-J, BLOOM, MPT and RoFormer, as transformers has them."""

import dataclasses
import json
from dataclasses import replace

import pytest
import torch

pytest.importorskip("transformers")

import transformers as hf
from transformers.models.bloom.modeling_bloom import _get_alibi_slopes
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from hf_copies import PAD, assert_comes_back, assert_read_whole, loaded, padded
from same_numbers import assert_float32_same, in_dtype, shake
from tested_transformer.data import pad
from tested_transformer.generation.beam_search import beam_search
from tested_transformer.generation.generate import generate
from tested_transformer.generation.masked_state import MaskedCausalState
from tested_transformer.models.families.gpt_neox import rotary_share
from tested_transformer.models.loading import (
    FAMILIES,
    from_pretrained,
    save_pretrained,
)
from tested_transformer.models.mpt import Mpt, MptConfig
from tested_transformer.models.parallel import ParallelLanguageModel, ParallelLanguageModelConfig
from tested_transformer.models.roformer import RoFormer, RoFormerConfig
from tested_transformer.positions.alibi import alibi_slopes
from tested_transformer.positions.scaled_rotary import YarnScaling
from tested_transformer.specs.contract import contract

CLASSES = {
    "gpt_neox": (hf.GPTNeoXConfig, hf.GPTNeoXForCausalLM, hf.GPTNeoXModel),
    "gptj": (hf.GPTJConfig, hf.GPTJForCausalLM, hf.GPTJModel),
    "bloom": (hf.BloomConfig, hf.BloomForCausalLM, hf.BloomModel),
    "mpt": (hf.MptConfig, hf.MptForCausalLM, hf.MptModel),
    "roformer": (hf.RoFormerConfig, hf.RoFormerForMaskedLM, hf.RoFormerModel),
}
SHARED = {"vocab_size": 17, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": PAD}
SIZES = {
    "gpt_neox": {
        "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3,
        "intermediate_size": 40, "max_position_embeddings": 40,
    },
    "gptj": {"n_embd": 24, "n_layer": 3, "n_head": 3, "n_positions": 40, "rotary_dim": 4},
    "bloom": {"hidden_size": 24, "n_layer": 3, "n_head": 6},
    "mpt": {"d_model": 24, "n_layers": 3, "n_heads": 6, "max_seq_len": 40},
    "roformer": {
        "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
        "intermediate_size": 40, "max_position_embeddings": 40, "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "beta_fast": 2.0, "beta_slow": 0.2,
    "original_max_position_embeddings": 30, "partial_rotary_factor": 0.75,
}  # fmt: skip
VARIANTS = {
    "gpt_neox": [
        {},
        {"use_parallel_residual": False, "rotary_pct": 0.5, "hidden_act": "gelu_fast"},
        {"attention_bias": False, "rotary_pct": 1.0, "rotary_emb_base": 50, "layer_norm_eps": 1e-2},
        {"rope_parameters": YARN, "tie_word_embeddings": True, "hidden_act": "relu"},
        {"head": False, "pad_token_id": None},
    ],
    "gptj": [
        {},
        {"rotary_dim": 8, "n_inner": 20, "activation_function": "gelu", "layer_norm_epsilon": 0.01},
        {"tie_word_embeddings": True, "activation_function": "silu"},
        {"head": False},
    ],
    "bloom": [
        {},
        {"n_head": 1, "layer_norm_epsilon": 1e-2, "tie_word_embeddings": False},
        {"hidden_size": 36, "n_head": 12},
        {"head": False},
    ],
    "mpt": [
        {},
        {"attn_config": {"clip_qkv": 0.7}, "tie_word_embeddings": False},
        {"d_model": 36, "n_heads": 12, "layer_norm_epsilon": 1e-2},
        {"head": False, "n_heads": 1},
    ],
    "roformer": [
        {},
        {"embedding_size": 10, "hidden_act": "relu", "pad_token_id": None},
        {"head": False, "type_vocab_size": 3, "layer_norm_eps": 1e-2},
    ],
}  # fmt: skip
EACH = pytest.mark.parametrize("kind", CLASSES)
CAUSAL = pytest.mark.parametrize("kind", [kind for kind in CLASSES if kind != "roformer"])
ROTARY = ("gpt_neox", "gptj")
EVERY = pytest.mark.parametrize(
    ("kind", "changes"), [(kind, each) for kind, several in VARIANTS.items() for each in several]
)
PADDED = [(kind, {}, "left") for kind in VARIANTS] + [
    (kind, changes, ("none", "right", "left")[number % 3])
    for kind, several in VARIANTS.items() for number, changes in enumerate(several)
]  # fmt: skip
COSINES = {"roformer.encoder.embed_positions.weight", "encoder.embed_positions.weight"}


def small(kind, seed=0, *, head=True, **changes):
    """A model of the family with random weights, biases and norms, all sizes different."""
    config, *models = CLASSES[kind]
    theirs = models[0 if head else 1](config(**SHARED | SIZES[kind] | changes))
    return shake(theirs, seed).eval()


def texts(seed, padding="left", batch=3, length=9):
    """IDs and the mask: sequences of different lengths, padded on one side, or full without a mask."""
    ids = torch.randint(3, 17, (batch, length), generator=torch.Generator().manual_seed(seed))
    return padded(ids, padding)


def gradients_of(module, family):
    """The gradient of every weight, with the name that it has in a file of a whole model."""
    found = {name: each.grad for name, each in module.named_parameters() if each.requires_grad}
    older = {"lm_head.weight": "embed_out.weight"} if family.model_type == "gpt_neox" else {}
    heads = ("lm_head.", "cls.", family.base)
    named = {n if n.startswith(heads) else family.base + n: g for n, g in found.items()}
    return {older.get(name, name): gradient for name, gradient in named.items()}


def assert_agree(theirs, ids, mask, **positions):
    """Logits of the real tokens, and the gradient of every weight."""
    ours, family = loaded(theirs), FAMILIES[theirs.config.model_type]
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask

    def run(dtype, module):
        twin = in_dtype(module, dtype)
        logits = twin(
            ids, attention_mask=mask if module is ours or mask is None else mask.long(), **positions
        )
        logits = (logits if module is ours else logits[0])[real]
        noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(3))
        (logits * noise.to(dtype)).sum().backward()
        if module is ours:
            state = {name: each.grad for name, each in twin.named_parameters()}
            gradients = {w.name: w.to_disk(state) for w in family.weights(twin)}
        else:
            gradients = gradients_of(twin, family)
        return {"logits": [logits], "gradients": [gradients[name] for name in sorted(gradients)]}

    assert_float32_same(lambda dtype: run(dtype, ours), lambda dtype: run(dtype, theirs))


# --- The same numbers -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "changes", "padding"), PADDED)
def test_logits_and_gradients(kind, changes, padding):
    assert_agree(small(kind, 1, **changes), *texts(1, padding))


@pytest.mark.parametrize("kind", ROTARY)
def test_positions_that_the_caller_counts(kind):
    """Of real tokens alone, and far from the beginning."""
    ids, mask = texts(2)
    assert_agree(small(kind, 2), ids, mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0))
    assert_agree(small(kind, 2), ids, None, position_ids=20 + torch.arange(9).expand(3, -1))


@EACH
def test_padding_leaves_the_real_tokens_alone(kind):
    """Rotary positions and ALiBi know differences alone, so that nobody has to count the real tokens."""
    ours = loaded(small(kind, 3)).double()
    for side in ("left", "right"):
        ids, mask = texts(3, side)
        with torch.no_grad():
            logits = ours(ids, mask)
            assert torch.equal(logits, ours(ids, mask.long()))
            for row in range(3):
                alone = ours(ids[row, mask[row]][None])
                torch.testing.assert_close(logits[row, mask[row]], alone[0])


def test_padding_in_the_middle_of_a_text():
    """BLOOM's ALiBi counts real tokens, as in transformers; MPT's counts all of them."""
    ids = texts(4, "none")[0]
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[:, 4:6] = False
    for kind in ("bloom", "mpt"):
        assert_agree(small(kind, 4), ids, mask)
        ours = loaded(small(kind, 4)).double()
        with torch.no_grad():
            alone = ours(ids[:, [0, 1, 2, 3, 6, 7, 8]])[:, -1]
            assert torch.allclose(ours(ids, mask)[:, -1], alone) == (kind == "bloom")


@CAUSAL
@pytest.mark.parametrize("chunk", [1, 4])
def test_a_masked_text_in_chunks_equals_one_pass(kind, chunk):
    ours = loaded(small(kind, 5)).double()
    ids, mask = texts(5)
    with torch.no_grad():
        whole, cache, pieces = ours(ids, mask), ours.new_cache(), []
        for start in range(0, 9, chunk):
            end = min(start + chunk, 9)
            pieces.append(ours(ids[:, start:end], mask[:, :end], cache=cache))
    torch.testing.assert_close(torch.cat(pieces, dim=1)[mask], whole[mask])


@pytest.mark.slow
@CAUSAL
@pytest.mark.parametrize("beams", [1, 3])
def test_generated_tokens_are_theirs(kind, beams):
    theirs = small(kind, 6)
    if kind in ROTARY:  # the others' softmax is float32, where the mask of float64 overflows to NaN
        theirs.double()
    with torch.no_grad():
        theirs.get_output_embeddings().weight[PAD] = 0.0  # a logit of 0, never the largest
        if kind == "gptj":
            theirs.lm_head.bias.zero_()
    prompts = pad([[5, 6, 7, 8], [9], [10, 11]], left=True, value=PAD)
    mask = prompts != PAD
    options = {} if beams == 1 else {"num_beams": beams, "early_stopping": "never"}
    wanted = theirs.generate(
        prompts, attention_mask=mask.long(), max_new_tokens=12, do_sample=False, **options
    )[:, prompts.shape[1] :]
    ours = loaded(theirs)
    for cache in (True, False):
        state = MaskedCausalState(ours, mask, cache=cache)
        search = generate if beams == 1 else beam_search
        options = {} if beams == 1 else {"num_beams": beams}
        found = search(state, prompts, max_new=12, eos=2, padding=PAD, **options)
        assert torch.equal(found.tokens, wanted)


@pytest.mark.slow
@EACH
@pytest.mark.plain_types
def test_the_contract_is_kept(kind):
    report = contract(loaded(small(kind, 7)))
    assert report, report
    held = {each.name for each in report.results if each.outcome == "holds"}
    assert {"batch = single", "masked tokens do not matter", "every parameter learns"} <= held
    assert kind == "roformer" or "cached = uncached, with padding" in held
    assert kind not in ROTARY or "position IDs have an effect" in held


# --- There and back -------------------------------------------------------------------------------


@EVERY
def test_what_comes_back_is_what_went(kind, changes, tmp_path):
    assert_comes_back(small(kind, 8, **changes), tmp_path, COSINES if kind == "roformer" else set())


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
    ids, mask = texts(9)
    with torch.no_grad():
        wanted = theirs(ids, attention_mask=mask.long())[0][mask]
    torch.testing.assert_close(ours(ids, mask)[mask], wanted)
    assert from_pretrained(tmp_path).config == replace(config, dropout=0.0)


def test_a_share_of_a_head_comes_back_as_the_same_number_of_features():
    """26 / 46 of 46 features are 25.999..., which rounds down to 25."""
    assert int(46 * (26 / 46)) == 25
    for d_head in range(2, 200):
        for rotary_dim in range(2, d_head + 1, 2):
            assert int(d_head * rotary_share(rotary_dim, d_head)) == rotary_dim
    assert rotary_share(24, 96) == 0.25
    assert rotary_share(None, 96) == 1.0


# --- Real configurations --------------------------------------------------------------------------

NEOX = {
    "architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0,
    "hidden_act": "gelu", "initializer_range": 0.02, "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048, "model_type": "gpt_neox", "rotary_emb_base": 10000,
    "rotary_pct": 0.25, "tie_word_embeddings": False, "torch_dtype": "float16",
    "transformers_version": "4.24.0", "use_cache": True, "use_parallel_residual": True,
}  # fmt: skip
BLOOM = {
    "apply_residual_connection_post_layernorm": False, "architectures": ["BloomForCausalLM"],
    "attention_dropout": 0.0, "attention_softmax_in_fp32": True, "bias_dropout_fusion": True,
    "bos_token_id": 1, "eos_token_id": 2, "hidden_dropout": 0.0, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "masked_softmax_fusion": True, "model_type": "bloom",
    "n_inner": None, "offset_alibi": 100, "pad_token_id": 3, "seq_length": 2048,
    "skip_bias_add": True, "skip_bias_add_qkv": False, "slow_but_exact": False,
    "unk_token_id": 0, "use_cache": True, "vocab_size": 250880,
}  # fmt: skip
MPT_7B = {
    "architectures": ["MPTForCausalLM"], "attn_config": {
        "alibi": True, "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0,
        "attn_type": "multihead_attention", "attn_uses_sequence_id": False, "clip_qkv": None,
        "prefix_lm": False, "qk_ln": False, "softmax_scale": None,
    },
    "auto_map": {"AutoConfig": "configuration_mpt.MPTConfig"}, "d_model": 4096, "emb_pdrop": 0,
    "embedding_fraction": 1.0, "expansion_ratio": 4, "init_config": {"name": "kaiming_normal_"},
    "init_device": "cpu", "learned_pos_emb": True, "logit_scale": None, "max_seq_len": 2048,
    "model_type": "mpt", "n_heads": 32, "n_layers": 32, "no_bias": True,
    "norm_type": "low_precision_layernorm", "resid_pdrop": 0, "torch_dtype": "bfloat16",
    "tokenizer_name": "EleutherAI/gpt-neox-20b", "use_cache": False, "verbose": 0,
    "vocab_size": 50432,
}  # fmt: skip
REAL = {
    "mpt-7b": (MPT_7B, 6_649_286_656),
    "pythia-160m": (
        NEOX | {
            "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12,
            "num_hidden_layers": 12, "vocab_size": 50304,
        },
        162_322_944,
    ),
    "gpt-neox-20b": (
        NEOX | {
            "attention_probs_dropout_prob": 0, "hidden_dropout_prob": 0, "hidden_act": "gelu_fast",
            "hidden_size": 6144, "intermediate_size": 24576, "num_attention_heads": 64,
            "num_hidden_layers": 44, "vocab_size": 50432,
        },
        20_554_567_680,
    ),
    "gpt-j-6b": (
        {
            "activation_function": "gelu_new", "architectures": ["GPTJForCausalLM"],
            "attn_pdrop": 0.0, "bos_token_id": 50256, "embd_pdrop": 0.0, "eos_token_id": 50256,
            "gradient_checkpointing": False, "initializer_range": 0.02,
            "layer_norm_epsilon": 1e-05, "model_type": "gptj", "n_embd": 4096, "n_head": 16,
            "n_inner": None, "n_layer": 28, "n_positions": 2048, "resid_pdrop": 0.0,
            "rotary": True, "rotary_dim": 64, "scale_attn_weights": True,
            "summary_activation": None, "summary_first_dropout": 0.1,
            "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True,
            "tie_word_embeddings": False, "use_cache": True, "vocab_size": 50400,
        },
        6_050_882_784,
    ),
    "bloom-560m": (
        BLOOM | {"n_embed": 1024, "n_layer": 24, "num_attention_heads": 16, "pretraining_tp": 1},
        559_214_592,
    ),
    "bloom": (
        BLOOM | {"n_embed": 14336, "n_layer": 70, "num_attention_heads": 112, "pretraining_tp": 4},
        176_247_271_424,
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_real_configurations_are_read_whole(name, tmp_path):
    """Counted on the meta device, where numbers need no memory; and theirs has as many."""
    config, count = REAL[name]
    assert_read_whole(config, count, tmp_path, CLASSES[config["model_type"]][1])


def test_mosaics_clipped_models():
    family = FAMILIES["mpt"]
    clipped = MPT_7B | {"attn_config": MPT_7B["attn_config"] | {"clip_qkv": 6}}
    assert family.read(family.options(MPT_7B)).clip_qkv is None
    assert family.read(family.options(clipped)).clip_qkv == 6


@EACH
def test_every_option_of_theirs_is_known_with_its_default(kind):
    family, config = FAMILIES[kind], CLASSES[kind][0]
    fields = {each.name: each.default for each in dataclasses.fields(config)}
    for name, value in family.defaults.items():
        if name in fields:
            assert value == fields[name], name
    assert family.read(family.options(json.loads(config().to_json_string())))


# --- Positions, by themselves ---------------------------------------------------------------------


def test_the_slopes_of_any_number_of_heads_are_theirs():
    """6 and 12 heads crashed once (transformers PR 28380); MPT and BLOOM say the same in other words."""
    for heads in range(1, 40):
        slopes = alibi_slopes(heads)
        steps = build_mpt_alibi_tensor(heads, 2)  # -slope and 0
        torch.testing.assert_close(slopes, -steps[:, 0, 0])
        torch.testing.assert_close(slopes, _get_alibi_slopes(heads, torch.device("cpu")))


def test_their_mpt_has_one_largest_bias():
    """transformers 5.23 reads alibi_bias_max and ignores it: so a 16, as MPT-7B-StoryWriter has, is refused."""
    ids = texts(10, "none")[0]
    eight, sixteen = (small("mpt", 10, attn_config={"alibi_bias_max": m}) for m in (8, 16))
    with torch.no_grad():
        assert torch.equal(eight(ids).logits, sixteen(ids).logits)
    with pytest.raises(ValueError, match="alibi_bias_max: expected 8, got 16"):
        loaded(sixteen)


def test_only_a_part_of_each_head_rotates():
    """With rotary_dim features of queries and keys set to zero, nothing depends on the order of the past."""
    options = {"d_model": 24, "num_heads": 3, "num_layers": 1, "dropout": 0.0, "pad_id": None}
    config = ParallelLanguageModelConfig(
        17, **options, num_parallel_norms=2, norm_placement="pre", positions="rotary", rotary_dim=4
    )
    model = shake(ParallelLanguageModel(config), 11).eval()
    ids, other = torch.tensor([[5, 6, 7, 8], [7, 5, 6, 8]])
    with torch.no_grad():
        assert not torch.allclose(model(ids[None])[0, -1], model(other[None])[0, -1], atol=1e-3)
        for name in ("query", "key"):
            layer = getattr(model.layers[0].attention, name)
            layer.weight.view(3, 8, 24)[:, :4] = 0
            layer.bias.view(3, 8)[:, :4] = 0
        torch.testing.assert_close(model(ids[None])[0, -1], model(other[None])[0, -1])


def test_yarn_scales_the_features_that_rotate():
    ours = loaded(small("gpt_neox", rope_parameters=YARN))
    assert ours.config.rotary_dim == 6
    assert ours.config.rotary_scaling == YarnScaling(4.0, 30, fast_turns=2.0, slow_turns=0.2)
    assert ours.layers[0].attention.positions.rotary_dim == 6


def test_a_clipped_projection():
    config = MptConfig(17, d_model=12, num_heads=3, num_layers=1, dropout=0.0, clip_qkv=0.5)
    model = Mpt(config)
    query = model.layers[0].attention.query
    x = 100 * torch.randn(2, 12, generator=torch.Generator().manual_seed(12))
    assert query(x).abs().max() == 0.5
    assert torch.equal(query(x / 1e4), x / 1e4 @ query.weight.T)


# --- What is refused ------------------------------------------------------------------------------


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("gpt_neox", {"hidden_dropout": 0.1}, "hidden_dropout: expected 0.0, got 0.1"),
        ("gpt_neox", {"hidden_act": "mish"}, "hidden_act: expected .*, got 'mish'"),
        (
            "gpt_neox",
            {"rope_parameters": YARN | {"partial_rotary_factor": 0.4}},
            "rotary_dim: expected an even number, at most the head's 8 features, got 3",
        ),
        ("gpt_neox", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling: .*dyn"),
        ("gptj", {"resid_pdrop": 0.1}, "resid_pdrop: expected 0.0, got 0.1"),
        ("gptj", {"rotary_dim": 10}, "rotary_dim: expected an even number, at most .* 8 feat"),
        ("gptj", {"rotary": False}, "rotary: expected True, got False"),
        ("bloom", {"n_inner": 20}, "n_inner: expected None, got 20"),
        (
            "bloom",
            {"apply_residual_connection_post_layernorm": True},
            "post_layernorm: expected False, got True",
        ),
        ("bloom", {"n_head": 5}, "num_heads: expected .* divides d_model = 24, got 5"),
        ("mpt", {"expansion_ratio": 3}, "expansion_ratio: expected 4, got 3"),
        ("mpt", {"no_bias": False}, "no_bias: expected True, got False"),
        ("mpt", {"logit_scale": 2.0}, "logit_scale: expected None, got 2.0"),
        ("mpt", {"attn_config": {"alibi": False}}, "attn_config, alibi: expected True, got False"),
        ("mpt", {"attn_config": {"softmax_scale": 0.1}}, "softmax_scale: expected None, got 0.1"),
        ("mpt", {"attn_config": {"qk_ln": True}}, "qk_ln: expected False, got True"),
        ("mpt", {"attn_config": {"prefix_lm": True}}, "prefix_lm: expected False, got True"),
        ("mpt", {"attn_config": {"attn_pdrop": 0.1}}, "attn_pdrop: expected 0, got 0.1"),
        ("mpt", {"attn_config": {"rope": True}}, "attn_config, rope: expected no such option"),
        (
            "mpt",
            {"attn_config": {"clip_qkv": -1.0}},
            "clip_qkv: expected a number above 0, got -1.0",
        ),
        ("mpt", {"attn_config": "alibi"}, "attn_config: expected an object of options"),
        ("roformer", {"rotary_value": True}, "rotary_value: expected False, got True"),
        ("roformer", {"is_decoder": True}, "is_decoder: expected False, got True"),
        (
            "roformer",
            {"architectures": ["RoFormerForSequenceClassification"]},
            "architectures: expected .*, got .*SequenceClassification",
        ),
    ],
)
def test_options_that_are_not_supported(kind, options, message, tmp_path):
    small(kind).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | options), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        from_pretrained(tmp_path)


@pytest.mark.plain_types
def test_positions_where_there_are_none():
    for kind in ("bloom", "mpt"):
        with pytest.raises(ValueError, match='position_ids: expected None, with positions="alibi"'):
            loaded(small(kind))(torch.ones(1, 3).long(), position_ids=torch.tensor([[0, 1, 2]]))
    with pytest.raises(ValueError, match="position_ids: expected at least 0"):
        RoFormer(RoFormerConfig(17, d_model=12, num_heads=3, num_layers=1))(
            torch.ones(1, 2).long(), position_ids=torch.tensor([[-1, 0]])
        )
