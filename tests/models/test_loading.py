"""Models that come from transformers' folders and go back: the same weights, numbers and tokens."""

import dataclasses
import json
from dataclasses import replace

import pytest
import torch

pytest.importorskip("transformers")

import transformers as hf
from safetensors.torch import load_file, save_file

from hf_copies import PAD, assert_comes_back, assert_equal, assert_read_whole, loaded, padded
from same_numbers import assert_float32_same, assert_same_numbers, in_dtype, shake
from tested_transformer.data import pad
from tested_transformer.generation.beam_search import beam_search
from tested_transformer.generation.generate import generate
from tested_transformer.generation.masked_state import MaskedCausalState
from tested_transformer.models.family import IGNORED
from tested_transformer.models.language_model import LanguageModel, LanguageModelConfig
from tested_transformer.models.loading import (
    FAMILIES,
    from_pretrained,
    save_pretrained,
)
from tested_transformer.positions.mscale import MscaleYarnScaling
from tested_transformer.positions.scaled_rotary import Llama3Scaling, YarnScaling
from tested_transformer.specs.contract import contract

CLASSES = {
    "gpt2": (hf.GPT2Config, hf.GPT2LMHeadModel, hf.GPT2Model),
    "openai-gpt": (hf.OpenAIGPTConfig, hf.OpenAIGPTLMHeadModel, hf.OpenAIGPTModel),
    "llama": (hf.LlamaConfig, hf.LlamaForCausalLM, hf.LlamaModel),
    "mistral": (hf.MistralConfig, hf.MistralForCausalLM, hf.MistralModel),
    "mixtral": (hf.MixtralConfig, hf.MixtralForCausalLM, hf.MixtralModel),
    "qwen3": (hf.Qwen3Config, hf.Qwen3ForCausalLM, hf.Qwen3Model),
    "bitnet": (hf.BitNetConfig, hf.BitNetForCausalLM, hf.BitNetModel),
    "gpt_bigcode": (hf.GPTBigCodeConfig, hf.GPTBigCodeForCausalLM, hf.GPTBigCodeModel),
    "falcon": (hf.FalconConfig, hf.FalconForCausalLM, hf.FalconModel),
    "deepseek_v2": (hf.DeepseekV2Config, hf.DeepseekV2ForCausalLM, hf.DeepseekV2Model),
    "gpt_oss": (hf.GptOssConfig, hf.GptOssForCausalLM, hf.GptOssModel),
    "deepseek_v3": (hf.DeepseekV3Config, hf.DeepseekV3ForCausalLM, hf.DeepseekV3Model),
    "deepseek_v32": (hf.DeepseekV32Config, hf.DeepseekV32ForCausalLM, hf.DeepseekV32Model),
}
GPTS = ("gpt2", "openai-gpt", "gpt_bigcode")
EAGER = ("openai-gpt", "gpt_oss")  # they know no other attention
GPT = {
    "vocab_size": 17, "n_positions": 40, "n_embd": 12, "n_layer": 3, "n_head": 3,
    "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0,
    "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": PAD,
}  # fmt: skip
LLAMA = {
    "vocab_size": 17, "hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8,
    "max_position_embeddings": 40, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": PAD,
}  # fmt: skip
FALCON = {
    "vocab_size": 17, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4,
    "ffn_hidden_size": 40, "max_position_embeddings": 40, "bos_token_id": 0, "eos_token_id": 2,
    "pad_token_id": PAD,
}  # fmt: skip
DEEPSEEK = {
    "vocab_size": 17, "hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 3,
    "num_attention_heads": 3, "num_key_value_heads": 3, "q_lora_rank": 7, "kv_lora_rank": 10,
    "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5, "first_k_dense_replace": 1,
    "n_routed_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 8,
    "n_shared_experts": 2, "n_group": 3, "topk_group": 2, "max_position_embeddings": 40,
    "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": PAD, "experts_implementation": "eager",
}  # fmt: skip
GPT_OSS = LLAMA | {
    "num_local_experts": 5, "num_experts_per_tok": 3, "sliding_window": 3, "swiglu_limit": 0.7,
    "experts_implementation": "eager",
}  # fmt: skip
MIXTRAL = LLAMA | {"num_local_experts": 5, "experts_implementation": "eager"}
BITNET = {name: n for name, n in LLAMA.items() if name != "head_dim"} | {
    "hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
INDEXED = DEEPSEEK | {"index_n_heads": 5, "index_head_dim": 6, "index_topk": 3}
SIZES = dict.fromkeys(GPTS, GPT) | {
    "falcon": FALCON, "deepseek_v2": DEEPSEEK, "deepseek_v3": DEEPSEEK, "deepseek_v32": INDEXED,
    "gpt_oss": GPT_OSS, "mixtral": MIXTRAL, "bitnet": BITNET,
}  # fmt: skip
# Its four frequencies at base 100 make 4.8, 1.5, 0.48 and 0.15 turns in 30 tokens: one stays, one lies
# between, two are divided.
STRETCHED = {
    "rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 0.5,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 30,
}  # fmt: skip
STRETCHED_BY_YARN = {
    "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "beta_fast": 2.0, "beta_slow": 0.2,
    "original_max_position_embeddings": 30,
}  # fmt: skip
# As the released configurations have them: 0.707 twice in V2, 1 twice in V3.
EVEN, UNEVEN = ({"mscale": m, "mscale_all_dim": n} for m, n in ((0.707, 0.707), (0.6, 1.3)))
VARIANTS = {
    "gpt2": [
        {},
        {"n_inner": 20, "layer_norm_epsilon": 1e-2, "tie_word_embeddings": False},
        {"activation_function": "gelu"},
        {"activation_function": "relu", "n_embd": 10, "n_head": 1},
        {"activation_function": "silu"},
        {"activation_function": "gelu_pytorch_tanh", "pad_token_id": None},
        {"head": False, "n_inner": 20},
    ],
    "openai-gpt": [
        {},
        {"afn": "relu", "layer_norm_epsilon": 1e-2},
        {"afn": "silu"},
        {"head": False},
    ],
    "llama": [
        {},
        {"num_key_value_heads": None, "head_dim": None, "tie_word_embeddings": True},
        {"attention_bias": True, "num_key_value_heads": 1},
        {"mlp_bias": True, "rms_norm_eps": 1e-2},
        {"attention_bias": True, "mlp_bias": True, "pad_token_id": None},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
        {"rope_parameters": STRETCHED},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 70.0, "factor": 4.0}},
        {"rope_parameters": STRETCHED_BY_YARN},
        {
            "rope_parameters": {
                n: STRETCHED_BY_YARN[n] for n in ("rope_type", "rope_theta", "factor")
            }
        },
        {"head": False},
    ],
    "mistral": [
        {},
        {"sliding_window": 4},
        {"sliding_window": None, "head_dim": 4},
        {"rope_parameters": STRETCHED_BY_YARN | {"attention_factor": 1.5, "truncate": False}},
        {"head": False, "sliding_window": 4},
    ],
    "mixtral": [
        {},
        {"sliding_window": 4, "num_experts_per_tok": 3, "tie_word_embeddings": True},
        {"num_local_experts": 1, "num_experts_per_tok": 1, "rms_norm_eps": 1e-2},
        {"rope_parameters": STRETCHED_BY_YARN, "pad_token_id": None},
        {"head": False, "num_experts_per_tok": 1},
    ],
    "qwen3": [
        {},
        {"attention_bias": True, "tie_word_embeddings": True, "rms_norm_eps": 1e-2},
        {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0},
        {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 3},
        {"rope_parameters": STRETCHED_BY_YARN},
        {"head": False, "tie_word_embeddings": True},
    ],
    "bitnet": [
        {},
        {"attention_bias": True, "tie_word_embeddings": True, "rms_norm_eps": 1e-2},
        {"num_key_value_heads": None, "rope_parameters": STRETCHED_BY_YARN, "pad_token_id": None},
        {"head": False, "num_key_value_heads": 1},
    ],
    "gpt_bigcode": [
        {},
        {"multi_query": False, "n_inner": 20, "tie_word_embeddings": False},
        {"activation_function": "gelu", "layer_norm_epsilon": 1e-2},
        {"activation_function": "gelu_fast", "pad_token_id": None},
        {"multi_query": False, "n_embd": 10, "n_head": 1, "activation_function": "relu"},
        {"head": False, "n_inner": 20},
    ],
    "falcon": [
        {},
        {"new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": None},
        {
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "num_ln_in_parallel_attn": 1,
            "bias": True,
            "tie_word_embeddings": False,
        },
        {
            "new_decoder_architecture": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
        },
        {"multi_query": False, "bias": True, "layer_norm_epsilon": 1e-2, "pad_token_id": None},
        {"multi_query": False, "parallel_attn": False, "activation": "relu"},
        {"parallel_attn": False, "rope_parameters": STRETCHED_BY_YARN},
        {"multi_query": False, "parallel_attn": False, "bias": True, "alibi": True},
        {"multi_query": False, "alibi": True, "hidden_size": 24, "num_attention_heads": 6},
        {"alibi": True, "new_decoder_architecture": True, "num_kv_heads": 2},
        {"head": False, "new_decoder_architecture": True, "num_kv_heads": 2},
    ],
    "deepseek_v2": [
        {"topk_method": "group_limited_greedy", "routed_scaling_factor": 16.0},
        {
            "q_lora_rank": None, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 4,
            "rope_scaling": STRETCHED_BY_YARN | EVEN,
        },
        {
            "attention_bias": True, "mlp_bias": True, "first_k_dense_replace": 0,
            "n_shared_experts": 1, "rope_parameters": STRETCHED_BY_YARN | UNEVEN,
        },
        {"head": False, "rms_norm_eps": 1e-2, "rope_parameters": STRETCHED_BY_YARN},
    ],
    "gpt_oss": [
        {},
        {
            "sliding_window": 4, "rope_parameters": STRETCHED_BY_YARN | {"truncate": False},
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
        {
            "attention_bias": False, "num_key_value_heads": 1, "tie_word_embeddings": True,
            "layer_types": ["full_attention"] * 3, "swiglu_alpha": 1.0, "rms_norm_eps": 1e-2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
        },
        {"head": False, "layer_types": ["sliding_attention"] * 3, "swiglu_limit": 5.0},
    ],
    "deepseek_v3": [
        {"rope_scaling": STRETCHED_BY_YARN | EVEN},
        {
            "norm_topk_prob": False, "rope_interleave": False, "attention_bias": True,
            "rope_parameters": STRETCHED_BY_YARN | UNEVEN,
        },
        {"q_lora_rank": None, "n_group": 2, "topk_group": 1, "tie_word_embeddings": True},
        {"head": False, "first_k_dense_replace": 3, "n_shared_experts": 1},
    ],
    "deepseek_v32": [
        {},
        {"index_topk": 40, "attention_bias": True, "rope_parameters": STRETCHED_BY_YARN | EVEN},
        {
            "index_topk": 1, "norm_topk_prob": False, "first_k_dense_replace": 2,
            "rope_parameters": STRETCHED_BY_YARN | UNEVEN,
        },
        {"head": False, "index_topk": 5, "index_head_dim": 4, "tie_word_embeddings": True},
    ],
}  # fmt: skip
EACH = pytest.mark.parametrize("kind", CLASSES)
EVERY = pytest.mark.parametrize(
    ("kind", "changes"), [(kind, each) for kind, several in VARIANTS.items() for each in several]
)


def small(kind, seed=0, attention="eager", *, head=True, **changes):
    """A model of the family with random weights, all sizes different."""
    config, model = CLASSES[kind][0], CLASSES[kind][1 if head else 2]
    options = SIZES.get(kind, LLAMA) | changes
    theirs = model(config(**options, attn_implementation=attention))
    for name, buffer in theirs.named_buffers():
        if name.endswith("e_score_correction_bias"):  # of both signs, and as large as the scores
            generator = torch.Generator().manual_seed(seed)
            buffer.copy_(0.5 * torch.randn(buffer.shape, generator=generator))
    return shake(theirs, seed).eval()


def texts(seed, padding, batch=3, length=9):
    """IDs and the mask: rows of different lengths, padded on a side, or all full without a mask.

    The padding token is also a real one: Llama's heirs give its embedding no gradient, GPT does.
    """
    ids = torch.randint(3, 17, (batch, length), generator=torch.Generator().manual_seed(seed))
    ids[0, 4] = PAD
    return padded(ids, padding)


def assert_agree(theirs, ids, mask, positions=None):
    """Logits of the real tokens, and the gradient of every weight, in the names of theirs."""
    ours = loaded(theirs)
    family = FAMILIES[theirs.config.model_type]
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask

    def run(dtype, module):
        twin = in_dtype(module, dtype)
        if module is ours:
            logits = twin(ids, mask, position_ids=positions)
        else:
            options = {} if kind_of(theirs) == "openai-gpt" else {"use_cache": False}
            given = None if mask is None else mask.long()
            logits = twin(ids, attention_mask=given, position_ids=positions, **options)[0]
        logits = logits[real]
        noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(3))
        (logits * noise.to(dtype)).sum().backward()
        parameters = twin.named_parameters(remove_duplicate=False)
        gradients = {name: each.grad for name, each in parameters if "indexer" not in name}
        if module is ours:
            weights = [w for w in family.weights(twin) if w.ours[0] in gradients]  # no buffers
            gradients = {w.name: w.to_disk(gradients) for w in weights}
        elif not hasattr(theirs, "lm_head"):
            gradients = {family.base + name: each for name, each in gradients.items()}
        elif theirs.config.tie_word_embeddings:
            del gradients["lm_head.weight"]
        if ("deepseek" in kind_of(theirs) or kind_of(theirs) == "mixtral") and module is not ours:
            gradients = by_expert(gradients, kind_of(theirs))
        return {"logits": [logits], "gradients": [gradients[name] for name in sorted(gradients)]}

    same = assert_same_numbers if kind_of(theirs) in ("gpt2", "openai-gpt") else assert_float32_same
    same(lambda dtype: run(dtype, ours), lambda dtype: run(dtype, theirs))


def by_expert(gradients, kind):
    """With the names that experts have on disk: transformers stacks them, gate over up."""
    found = {}
    for name, gradient in gradients.items():
        place, _, last = name.rpartition(".")
        pieces = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
        if ".mlp." in name and "mixtral" in kind:
            name = name.replace(".mlp.", ".block_sparse_moe.")
            place = place.replace(".mlp.", ".block_sparse_moe.")
            pieces = {"gate_up_proj": ("w1", "w3"), "down_proj": ("w2",)}
        if not place.endswith(".experts"):
            found[name] = gradient
            continue
        for number, expert in enumerate(gradient):
            halves = expert.chunk(len(pieces[last]))
            for piece, half in zip(pieces[last], halves, strict=True):
                found[f"{place}.{number}.{piece}.weight"] = half
    return found


def kind_of(theirs):
    return theirs.config.model_type


# --- The same numbers -----------------------------------------------------------------------------


@pytest.mark.plain_types  # other tests check the same shapes
@pytest.mark.slow
@EVERY
@pytest.mark.parametrize("padding", ["none", "left", "right"])
def test_logits_and_gradients(kind, changes, padding):
    """Angles, norms and softmax of Llama's heirs are float32 in theirs, so float64 is GPT's alone."""
    attention = "eager" if padding == "left" or kind in EAGER else "sdpa"
    if changes.get("alibi"):  # which eager adds twice, see below
        attention = "sdpa"
    assert_agree(small(kind, 1, attention, **changes), *texts(1, padding))


@pytest.mark.slow
@EACH
@pytest.mark.parametrize("seed", [2, 3])
def test_other_weights_and_lengths(kind, seed):
    assert_agree(small(kind, seed), *texts(seed, "left", batch=2, length=13))


@EACH
def test_positions_that_the_caller_counts(kind):
    """Of real tokens alone, and far from the beginning."""
    ids, mask = texts(4, "left")
    counted = (mask.cumsum(1) - 1).clamp(min=0)
    assert_agree(small(kind, 4), ids, mask, counted)
    assert_agree(small(kind, 4), ids, None, 20 + torch.arange(9).expand(3, -1))


@EACH
def test_padding_leaves_the_real_tokens_alone(kind):
    """Left of a text, with positions that count real tokens: as the text alone; and the mask may be 0 and 1."""
    ours = loaded(small(kind, 5)).double()
    ids, mask = texts(5, "left")
    counted = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        logits = ours(ids, mask, position_ids=counted)
        assert torch.equal(logits, ours(ids, mask.long(), position_ids=counted))
        for row in range(3):
            alone = ours(ids[row, mask[row]][None])
            torch.testing.assert_close(logits[row, mask[row]], alone[0])
        assert not torch.allclose(logits[2, -1], ours(ids)[2, -1])


@EACH
@pytest.mark.parametrize("chunk", [1, 2, 4, 5])
def test_a_masked_text_in_chunks_equals_one_pass(kind, chunk):
    """Once with the mask of all tokens so far each time, once where only the first chunk has padding."""
    ours = loaded(small(kind, 6, **({"sliding_window": 4} if kind == "mistral" else {}))).double()
    ids, mask = texts(6, "left")
    with torch.no_grad():
        whole = ours(ids, mask)
        cache, pieces = ours.new_cache(), []
        for start in range(0, 9, chunk):
            end = min(start + chunk, 9)
            pieces.append(ours(ids[:, start:end], mask[:, :end], cache=cache))
        torch.testing.assert_close(torch.cat(pieces, dim=1)[mask], whole[mask])
        cache = ours.new_cache()
        pieces = [ours(ids[:, :5], mask[:, :5], cache=cache)]
        pieces += [ours(piece, cache=cache) for piece in ids[:, 5:].split(chunk, dim=1)]
        torch.testing.assert_close(torch.cat(pieces, dim=1)[mask], whole[mask])


# --- The same tokens ------------------------------------------------------------------------------

PROMPTS = pad([[5, 6, 7, 8], [9], [10, 11]], left=True, value=PAD)
OURS = {"max_new": 12, "eos": 2, "padding": PAD}


def talker(kind, seed, **changes):
    """A model whose choices are clear, and which never generates padding."""
    theirs = small(kind, seed, "eager" if kind in EAGER else "sdpa", **changes).double()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if parameter.ndim > 1 and "embed" not in name:
                parameter.mul_(1.5)
        theirs.get_output_embeddings().weight[PAD] = 0.0  # a logit of 0, never the largest
    return theirs


CHANGES = {
    "mistral": {"sliding_window": 3},
    "llama": {"rope_parameters": STRETCHED},
    "deepseek_v2": {
        "num_hidden_layers": 2, "topk_method": "group_limited_greedy",
        "rope_parameters": STRETCHED_BY_YARN | EVEN,
    },
    "deepseek_v3": {"num_hidden_layers": 2, "rope_parameters": STRETCHED_BY_YARN | UNEVEN},
    "deepseek_v32": {"num_hidden_layers": 2, "index_topk": 4},
    "gpt_oss": {"num_hidden_layers": 2},
}  # fmt: skip


@pytest.mark.plain_types  # other tests check the same shapes
@pytest.mark.slow
@EACH
@pytest.mark.parametrize(("beams", "seed"), [(1, 0), (1, 1), (1, 2), (3, 0)])
def test_generated_tokens_are_theirs(kind, seed, beams):
    theirs = talker(kind, seed, **CHANGES.get(kind, {}))
    mask = PROMPTS != PAD
    options = {} if beams == 1 else {"num_beams": beams, "early_stopping": "never"}
    if kind == "openai-gpt":
        options["use_cache"] = False
    wanted = theirs.generate(
        PROMPTS, attention_mask=mask.long(), max_new_tokens=12, do_sample=False, **options
    )[:, PROMPTS.shape[1] :]
    ours = loaded(theirs)
    for cache in (True, False):
        state = MaskedCausalState(ours, mask, cache=cache)
        search = generate if beams == 1 else beam_search
        found = search(state, PROMPTS, **OURS, **({} if beams == 1 else {"num_beams": beams}))
        assert torch.equal(found.tokens, wanted)


@pytest.mark.slow
@EACH
@pytest.mark.plain_types
def test_the_contract_is_kept(kind):
    report = contract(loaded(small(kind, 7, **CHANGES.get(kind, {}))))
    assert report, report
    asked = {each.name for each in report.results if each.outcome == "holds"}
    assert {"batch = single", "cached = uncached, with padding"} <= asked, report
    assert {"position IDs have an effect", "greedy generation is argmax"} <= asked, report


# --- There and back -------------------------------------------------------------------------------


@EVERY
def test_what_comes_back_is_what_went(kind, changes, tmp_path):
    assert_comes_back(small(kind, 8, **changes), tmp_path)


@EACH
@pytest.mark.parametrize("head", [True, False])
def test_a_model_of_ones_own_goes_to_transformers(kind, head, tmp_path):
    """One that was never loaded: its configuration alone says which family it is."""
    config = replace(loaded(small(kind, head=head)).config, dropout=0.1)
    if kind in ("mistral", "qwen3"):
        config = replace(config, window=3)
    ours = shake(FAMILIES[kind].build(config), 9).eval()
    save_pretrained(ours, tmp_path)
    classes = (hf.AutoModelForCausalLM, 1) if head else (hf.AutoModel, 2)
    theirs = classes[0].from_pretrained(tmp_path).eval()
    assert type(theirs) is CLASSES[kind][classes[1]]
    ids, mask = texts(9, "left")

    def run(dtype, module):
        return {"logits": [in_dtype(module, dtype)(ids, mask)[mask]]}

    def run_theirs(dtype):
        twin = in_dtype(theirs, dtype)
        return {"logits": [twin(ids, attention_mask=mask.long())[0][mask]]}

    assert_float32_same(lambda dtype: run(dtype, ours), run_theirs)
    assert from_pretrained(tmp_path).config == replace(config, dropout=0.0)


@EACH
@pytest.mark.plain_types  # most of it is the contract
def test_a_model_without_a_head(kind, tmp_path):
    """The same hidden states from a file of the whole model; no output layer, nothing to generate."""
    # rounding to bfloat16 may select another key, by which an output changes by more than rounding
    changes = {"index_topk": 40} if kind == "deepseek_v32" else {}
    whole = small(kind, 13, **changes)
    whole.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["architectures"] = [CLASSES[kind][2].__name__]
    path.write_text(json.dumps(config), encoding="utf-8")
    if not whole.config.tie_word_embeddings:
        with pytest.raises(ValueError, match=r"got lm_head\.weight left over"):
            from_pretrained(tmp_path)
        whole = small(kind, 13, tie_word_embeddings=True, **changes)
        whole.save_pretrained(tmp_path)
        path.write_text(json.dumps(config | {"tie_word_embeddings": True}), encoding="utf-8")
    ours = from_pretrained(tmp_path)
    assert ours.output is None
    assert not ours.config.head
    with torch.no_grad():
        logits = ours(PROMPTS) @ ours.embedding.table.weight.T
        torch.testing.assert_close(logits, loaded(whole)(PROMPTS))
    with pytest.raises(ValueError, match="model: expected a model with an output layer"):
        MaskedCausalState(ours, PROMPTS != PAD)
    if kind not in ("gpt2", "llama", "deepseek_v3"):  # one of each make
        return
    report = contract(ours)
    assert report, report
    outcomes = {each.name: each.outcome for each in report.results}
    assert outcomes["greedy generation is argmax"] == "does not apply"
    assert outcomes["cached = uncached, with padding"] == "holds"


@EACH
def test_shards(kind, tmp_path):
    theirs = small(kind, 10)
    theirs.save_pretrained(tmp_path, max_shard_size="3KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    whole = loaded(theirs).state_dict()
    assert_equal(from_pretrained(tmp_path).state_dict(), whole)
    save_pretrained(from_pretrained(tmp_path), tmp_path)  # one file in place of them
    assert [path.name for path in tmp_path.glob("*.safetensors*")] == ["model.safetensors"]
    assert_equal(from_pretrained(tmp_path).state_dict(), whole)


@EACH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_keep_their_dtype(kind, dtype, tmp_path):
    theirs = small(kind, 11).to(dtype)
    theirs.save_pretrained(tmp_path / "a")
    ours = from_pretrained(tmp_path / "a")
    assert {each.dtype for each in ours.parameters()} == {dtype}
    save_pretrained(ours, tmp_path / "b")
    assert hf.AutoModelForCausalLM.from_pretrained(tmp_path / "b").dtype == dtype


def test_dropout_is_theirs(tmp_path):
    """Three numbers in GPT-2, each in its place, and none on the hidden features."""
    theirs = small("gpt2", embd_pdrop=0.1, attn_pdrop=0.2, resid_pdrop=0.3)
    theirs.save_pretrained(tmp_path / "a")
    ours = from_pretrained(tmp_path / "a")
    assert not ours.training
    layer = ours.layers[-1]
    found = [ours.embedding.dropout.p, layer.attention.dropout, layer.feed_forward.dropout.p]
    assert found == [0.1, 0.2, 0.0]
    assert [each.dropout.p for each in layer.residuals] == [0.3, 0.3]
    save_pretrained(ours, tmp_path / "b")
    config = hf.AutoConfig.from_pretrained(tmp_path / "b")
    assert (config.embd_pdrop, config.attn_pdrop, config.resid_pdrop) == (0.1, 0.2, 0.3)
    theirs = small("llama", attention_dropout=0.25)
    assert {layer.attention.dropout for layer in loaded(theirs).layers} == {0.25}


def test_the_output_layer_stays_tied():
    ours = loaded(small("gpt2"))
    assert ours.output.weight is ours.embedding.table.weight
    assert sum(p.numel() for p in ours.parameters()) == small("gpt2").num_parameters()


def test_older_files(tmp_path):
    """As on the Hub: names without the model's own, the causal mask as a tensor, the tied matrix twice."""
    for kind, prefix, junk in (
        ("gpt2", "transformer.", "h.0.attn.bias"),
        ("gpt2", "transformer.", "h.1.attn.masked_bias"),
        ("openai-gpt", "transformer.", "h.2.attn.bias"),
        ("llama", "model.", "layers.0.self_attn.rotary_emb.inv_freq"),
    ):
        place = tmp_path / junk
        theirs = small(kind, tie_word_embeddings=True)
        theirs.save_pretrained(place)
        tensors = load_file(place / "model.safetensors")
        older = {name.removeprefix(prefix): each for name, each in tensors.items()}
        table = theirs.get_input_embeddings().weight.detach().clone()
        save_file(
            older | {junk: torch.ones(3), "lm_head.weight": table}, place / "model.safetensors"
        )
        assert torch.equal(from_pretrained(place)(PROMPTS), loaded(theirs)(PROMPTS))
        other = older | {"lm_head.weight": table + 1}
        save_file(other, place / "model.safetensors")
        with pytest.raises(
            ValueError, match="lm_head.weight: expected .* once more, to which config.json ties it"
        ):
            from_pretrained(place)


# --- Real configurations --------------------------------------------------------------------------

GENERATION = {"text-generation": {"do_sample": True, "max_length": 50}}
SUMMARY = {
    "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
    "summary_type": "cls_index", "summary_use_proj": True, "initializer_range": 0.02,
    "embd_pdrop": 0.1, "attn_pdrop": 0.1, "resid_pdrop": 0.1, "layer_norm_epsilon": 1e-05,
    "task_specific_params": GENERATION,
}  # fmt: skip
GPT2 = {
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2",
    "bos_token_id": 50256, "eos_token_id": 50256, "n_ctx": 1024, "n_positions": 1024,
    "vocab_size": 50257, **SUMMARY,
}  # fmt: skip
OF_LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "initializer_range": 0.02, "pretraining_tp": 1,
    "torch_dtype": "float16", "transformers_version": "4.31.0.dev0", "use_cache": True,
    "tie_word_embeddings": False,
}  # fmt: skip
OF_BIGCODE = {
    "architectures": ["GPTBigCodeForCausalLM"], "attention_softmax_in_fp32": True,
    "attn_pdrop": 0.1, "bos_token_id": 0, "embd_pdrop": 0.1, "eos_token_id": 0,
    "inference_runner": 0, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
    "max_batch_size": None, "max_sequence_length": None, "model_type": "gpt_bigcode",
    "multi_query": True, "pad_key_length": True, "pre_allocate_kv_cache": False,
    "resid_pdrop": 0.1, "scale_attention_softmax_in_fp32": True, "scale_attn_weights": True,
    "use_cache": True, "validate_runner_input": True, **SUMMARY,
}  # fmt: skip
OF_FALCON = {
    "alibi": False, "apply_residual_connection_post_layernorm": False,
    "architectures": ["FalconForCausalLM"], "attention_dropout": 0.0, "bias": False,
    "bos_token_id": 11, "eos_token_id": 11, "hidden_dropout": 0.0, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "falcon", "multi_query": True,
    "new_decoder_architecture": False, "parallel_attn": True, "torch_dtype": "bfloat16",
    "transformers_version": "4.27.4", "use_cache": True, "vocab_size": 65024,
    "auto_map": {"AutoConfig": "configuration_falcon.FalconConfig"},
}  # fmt: skip
REAL = {
    "gpt2": (GPT2 | {"n_embd": 768, "n_head": 12, "n_layer": 12}, 124_439_808),
    "gpt2-medium": (GPT2 | {"n_embd": 1024, "n_head": 16, "n_layer": 24}, 354_823_168),
    "gpt2-large": (GPT2 | {"n_embd": 1280, "n_head": 20, "n_layer": 36}, 774_030_080),
    "gpt2-xl": (GPT2 | {"n_embd": 1600, "n_head": 25, "n_layer": 48, "output_past": True}, 1_557_611_200),
    "openai-gpt": (
        {
            "afn": "gelu", "architectures": ["OpenAIGPTLMHeadModel"], "model_type": "openai-gpt",
            "n_ctx": 512, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 512,
            "n_special": 0, "predict_special_tokens": True, "vocab_size": 40478, **SUMMARY,
        },
        116_534_784,
    ),
    "llama-2-7b": (
        OF_LLAMA | {
            "hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 4096,
            "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
            "rms_norm_eps": 1e-05, "rope_scaling": None, "vocab_size": 32000,
        },
        6_738_415_616,
    ),
    "llama-3.1-8b": (
        OF_LLAMA | {
            "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
            "eos_token_id": [128001, 128008, 128009], "hidden_size": 4096,
            "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": False,
            "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
            "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "vocab_size": 128256,
            "rope_scaling": {
                "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192, "rope_type": "llama3",
            },
        },
        8_030_261_248,
    ),
    "yarn-llama-2-7b-128k": (
        OF_LLAMA | {
            "hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 131072,
            "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
            "rms_norm_eps": 1e-05, "vocab_size": 32000, "rope_scaling": {
                "factor": 32.0, "original_max_position_embeddings": 4096, "type": "yarn",
                "finetuned": True,
            },
        },
        6_738_415_616,
    ),
    "mistral-7b": (
        {
            "architectures": ["MistralForCausalLM"], "model_type": "mistral", "bos_token_id": 1,
            "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096,
            "initializer_range": 0.02, "intermediate_size": 14336,
            "max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 32,
            "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
            "sliding_window": 4096, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
            "transformers_version": "4.34.0.dev0", "use_cache": True, "vocab_size": 32000,
        },
        7_241_732_096,
    ),
    "starcoder": (
        OF_BIGCODE | {
            "activation_function": "gelu", "n_embd": 6144, "n_head": 48, "n_inner": 24576,
            "n_layer": 40, "n_positions": 8192, "vocab_size": 49152,
        },
        15_517_456_384,
    ),
    "santacoder": (
        OF_BIGCODE | {
            "activation_function": "gelu_fast", "n_embd": 2048, "n_head": 16, "n_inner": 8192,
            "n_layer": 24, "n_positions": 2048, "vocab_size": 49280,
        },
        1_124_886_528,
    ),
    "falcon-7b": (
        OF_FALCON | {"hidden_size": 4544, "num_attention_heads": 71, "num_hidden_layers": 32},
        6_921_720_704,
    ),
    "falcon-40b": (
        OF_FALCON | {
            "hidden_size": 8192, "num_attention_heads": 128, "num_hidden_layers": 60,
            "num_kv_heads": 8, "new_decoder_architecture": True,
        },
        41_303_293_952,
    ),
    "falcon-rw-1b": (
        OF_FALCON | {
            "alibi": True, "bias": True, "multi_query": False, "parallel_attn": False,
            "hidden_size": 2048, "num_attention_heads": 32, "num_hidden_layers": 24,
            "vocab_size": 50304, "bos_token_id": 1, "eos_token_id": 2,
        },
        1_311_625_216,
    ),
    "qwen3-0.6b": (
        {
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False,
            "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645,
            "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
            "initializer_range": 0.02, "intermediate_size": 3072,
            "max_position_embeddings": 40960, "max_window_layers": 28, "num_attention_heads": 16,
            "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
            "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None,
            "tie_word_embeddings": True, "torch_dtype": "bfloat16",
            "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False,
            "vocab_size": 151936,
        },
        596_049_920,
    ),
    "deepseek-v2-lite": (
        {
            "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2",
            "attention_bias": False, "attention_dropout": 0.0, "aux_loss_alpha": 0.001,
            "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV2Config"},
            "bos_token_id": 100000, "eos_token_id": 100001, "first_k_dense_replace": 1,
            "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
            "intermediate_size": 10944, "kv_lora_rank": 512, "max_position_embeddings": 163840,
            "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1,
            "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": False,
            "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27,
            "num_key_value_heads": 16, "pretraining_tp": 1, "q_lora_rank": None,
            "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
            "rope_scaling": {
                "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707,
                "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096, "type": "yarn",
            },
            "rope_theta": 10000, "routed_scaling_factor": 1.0, "scoring_func": "softmax",
            "seq_aux": True, "tie_word_embeddings": False, "topk_group": 1,
            "topk_method": "greedy", "torch_dtype": "bfloat16", "use_cache": True,
            "v_head_dim": 128, "vocab_size": 102400,
        },
        15_706_484_224,
    ),
    "gpt-oss-20b": (
        {
            "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss",
            "attention_bias": True, "attention_dropout": 0.0, "eos_token_id": 200002,
            "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
            "initial_context_length": 4096, "initializer_range": 0.02, "intermediate_size": 2880,
            "layer_types": ["sliding_attention", "full_attention"] * 12,
            "max_position_embeddings": 131072, "num_attention_heads": 64,
            "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8,
            "num_local_experts": 32, "output_router_logits": False, "pad_token_id": 199999,
            "rms_norm_eps": 1e-05, "rope_scaling": {
                "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "rope_type": "yarn",
                "original_max_position_embeddings": 4096, "truncate": False,
            },
            "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128,
            "swiglu_limit": 7.0, "tie_word_embeddings": False, "use_cache": True,
            "vocab_size": 201088,
        },
        20_914_757_184,
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_real_configurations_are_read_whole(name, tmp_path):
    """Counted on the meta device, where numbers need no memory; and theirs has as many."""
    config, count = REAL[name]
    ours, twin = assert_read_whole(config, count, tmp_path, CLASSES[config["model_type"]][1])
    if "rotary" in ours.config.positions:
        assert ours.config.rotary_base == twin.config.rope_parameters["rope_theta"]
        assert ours.config.window == getattr(twin.config, "sliding_window", None)
    scalings = {
        "llama-3.1-8b": Llama3Scaling(8.0, 1.0, 4.0, 8192),
        "yarn-llama-2-7b-128k": YarnScaling(32.0, 4096),
        "deepseek-v2-lite": MscaleYarnScaling(40, 4096, mscale=0.707, mscale_all_dim=0.707),
        "gpt-oss-20b": YarnScaling(32.0, 4096, truncate=False),
    }
    assert ours.config.rotary_scaling == scalings.get(name)


@EACH
def test_every_option_of_theirs_is_known_with_its_default(kind):
    family, config = FAMILIES[kind], CLASSES[kind][0]
    fields = {each.name: each.default for each in dataclasses.fields(config)}
    for name, value in family.defaults.items():
        if name in fields:
            assert value == fields[name], name
    assert family.options(json.loads(config().to_json_string()))
    sent = set(hf.GenerationConfig._get_default_generation_params())
    assert sent <= IGNORED


# --- What is refused ------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """A function that writes a small model with changes of its options and its weights."""

    def make(kind="gpt2", options=None, change=None, left_out=()):
        place = tmp_path / "model"
        small(kind, 12, **CHANGES.get(kind, {})).save_pretrained(place)
        path = place / "config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        config = {k: v for k, v in config.items() if k not in left_out} | (options or {})
        path.write_text(json.dumps(config), encoding="utf-8")
        if change is not None:
            tensors = load_file(place / "model.safetensors")
            change(tensors)
            save_file(tensors, place / "model.safetensors")
        return place

    return make


DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
MIXED = ["full_attention", "sliding_attention", "full_attention"]


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (
            "gpt2",
            {"model_type": "ctrl"},
            'model_type: expected one of .*"gpt2", .*"qwen3".*, got .ctrl',
        ),
        ("gpt2", {"model_type": None}, "model_type: expected one of .*, got None"),
        ("gpt2", {"model_type": ["gpt2"]}, r"model_type: expected one of .*, got \['gpt2'\]"),
        (
            "gpt2",
            {"architectures": ["GPT2ForSequenceClassification"]},
            r"architectures: .*\['GPT2LMHeadModel'\], .*\['GPT2Model'\], got \['GPT2ForSeq",
        ),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights: expected True, got False"),
        (
            "gpt2",
            {"scale_attn_by_inverse_layer_idx": True},
            "inverse_layer_idx: expected False, got True",
        ),
        ("gpt2", {"reorder_and_upcast_attn": True}, "upcast_attn: expected False, got True"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention: expected False, got True"),
        (
            "gpt2",
            {"activation_function": "quick_gelu"},
            "activation_function: .*, got 'quick_gelu'",
        ),
        (
            "gpt2",
            {"quantization_config": {"bits": 4}},
            "quantization_config: expected no such .*bits",
        ),
        ("gpt2", {"resid_pdrop": 1.0}, r"resid_pdrop: expected a probability in \[0, 1\), got 1.0"),
        ("gpt2", {"resid_pdrop": "0"}, r"resid_pdrop: expected a probability in \[0, 1\), got '0'"),
        ("gpt2", {"n_head": 5}, "num_heads: expected a number that divides d_model = 12, got 5"),
        ("openai-gpt", {"afn": "gelu_new"}, "afn: expected one of .*, got 'gelu_new'"),
        ("llama", {"hidden_act": "gelu"}, 'hidden_act: expected "silu" or "swish", got .gelu'),
        (
            "llama",
            {"rope_parameters": DYNAMIC},
            'rope_parameters: .*"linear", "llama3" or "yarn", got .*dynamic',
        ),
        (
            "qwen3",
            {"rope_parameters": STRETCHED_BY_YARN | {"mscale": 0.7}},
            "rope_parameters: expected factor, orig.*, truncate with rope_type 'yarn', got .*mscale",
        ),
        (
            "mistral",
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}},
            "rope_parameters: expected factor, .* with rope_type 'yarn'",
        ),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling: .*dynamic"),
        (
            "llama",
            {"rope_parameters": {"factor": 2.0}},
            "rope_parameters: expected nothing more with",
        ),
        (
            "llama",
            {"rope_parameters": STRETCHED | {"beta": 1}},
            "rope_parameters: expected factor, low",
        ),
        (
            "llama",
            {"sliding_window": 4},
            "sliding_window: expected no such option of llama, .*got 4",
        ),
        (
            "llama",
            {"hidden_size": 20},
            "hidden_size: expected a multiple of num_attention_heads = 6",
        ),
        (
            "llama",
            {"num_key_value_heads": 4},
            "num_kv_heads: expected .* divides num_heads = 6, got 4",
        ),
        ("llama", {"pad_token_id": 17}, "pad_token_id: expected an int from -17 to 16, got 17"),
        ("mistral", {"attention_bias": True}, "attention_bias: expected no such option of mistral"),
        ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob: expected False, got True"),
        ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method: expected .*, got 'noaux_tc'"),
        ("deepseek_v2", {"n_shared_experts": None}, "n_shared_experts: expected an int of at"),
        ("deepseek_v2", {"hidden_size": 10}, "hidden_size: expected a multiple of num_att"),
        (
            "deepseek_v2",
            {"num_key_value_heads": 1},
            "num_key_value_heads: expected num_attention_heads = 3: each .*, got 1",
        ),
        (
            "deepseek_v2",
            {"rope_parameters": STRETCHED_BY_YARN | {"mscale_all_dim": 0.7}},
            "rope_parameters: expected factor, .*, mscale, mscale_all_dim with rope_type 'yarn'",
        ),
        ("deepseek_v3", {"scoring_func": "softmax"}, 'scoring_func: expected "sigmoid", got'),
        (
            "deepseek_v3",
            {"topk_group": 1, "num_experts_per_tok": 3},
            "num_chosen: expected at most",
        ),
        ("deepseek_v3", {"n_group": 4}, "num_groups: expected a number that divides the 6 experts"),
        (
            "deepseek_v3",
            {"quantization_config": {"quant_method": "fp8"}},
            "quantization_config: expected no such option of deepseek_v3, .*fp8",
        ),
        ("deepseek_v32", {"q_lora_rank": None}, "q_lora_rank: expected an int"),
        ("deepseek_v32", {"layer_types": MIXED}, "layer_types: expected 2 times 'indexed_att"),
        (
            "deepseek_v32",
            {"mlp_layer_types": ["dense", "sparse", "dense"]},
            "mlp_layer_types: expected 2 entries, one per layer: 'dense' for the first ones",
        ),
        ("deepseek_v32", {"mlp_bias": True}, "mlp_bias: expected False, got True"),
        ("gpt_oss", {"layer_types": MIXED[:1]}, "layer_types: expected .* for each of 2 layers"),
        ("gpt_oss", {"layer_types": ["chunked"] * 2}, 'layer_types: expected "full_attention" or'),
        ("gpt_oss", {"sliding_window": None}, 'sliding_window: expected an int, with "sliding'),
        ("gpt_oss", {"hidden_act": "gelu"}, 'hidden_act: expected "silu" or "swish"'),
        (
            "gpt_oss",
            {"quantization_config": {"quant_method": "mxfp4"}},
            "no such option of gpt_oss",
        ),
        ("gpt_bigcode", {"scale_attn_weights": False}, "scale_attn_weights: expected True, got F"),
        ("gpt_bigcode", {"add_cross_attention": True}, "cross_attention: expected False, got True"),
        ("gpt_bigcode", {"activation_function": "tanh"}, "activation_function: .*, got 'tanh'"),
        ("gpt_bigcode", {"n_head": 5}, "num_heads: expected .* divides d_model = 12, got 5"),
        ("falcon", {"hidden_dropout": 0.1}, "hidden_dropout: expected 0.0, got 0.1"),
        ("falcon", {"attention_dropout": 0.1}, "attention_dropout: expected 0.0, got 0.1"),
        ("falcon", {"activation": "mish"}, "config.json, activation: expected .*, got 'mish'"),
        (
            "falcon",
            {"parallel_attn": False, "new_decoder_architecture": True},
            "parallel_attn: expected True with new_decoder_architecture, got False",
        ),
        (
            "falcon",
            {"num_ln_in_parallel_attn": 2},
            "num_ln_in_parallel_attn: expected 1, or 2 with new_decoder_architecture, got 2",
        ),
        (
            "falcon",
            {"num_kv_heads": 2, "multi_query": False},
            "num_kv_heads: expected 4, the number of heads, without multi_query and .*, got 2",
        ),
        (
            "falcon",
            {"num_kv_heads": 3, "new_decoder_architecture": True},
            "num_kv_heads: expected .* divides num_heads = 4, got 3",
        ),
        ("falcon", {"hidden_size": 18}, "num_heads: expected .* divides d_model = 18, got 4"),
        ("falcon", {"rope_scaling": DYNAMIC}, "rope_scaling: .*dynamic"),
        (
            "falcon",
            {"apply_residual_connection_post_layernorm": True},
            "post_layernorm: expected False, got True",
        ),
        ("qwen3", {"layer_types": MIXED}, "layer_types: expected the same for each of 3 layers"),
        ("bitnet", {"hidden_act": "silu"}, "hidden_act: expected .*relu2.*, got .*silu"),
        (
            "bitnet",
            {"quantization_config": {"quant_method": "bitnet"}},
            "quantization_config: expected None",
        ),
        (
            "qwen3",
            {"layer_types": MIXED[:1]},
            "layer_types: expected the same for each of 3 layers",
        ),
    ],
)
def test_options_that_are_not_supported(folder, kind, options, message):
    with pytest.raises(ValueError, match=message):
        from_pretrained(folder(kind, options))


@pytest.mark.plain_types
def test_an_option_of_the_wrong_type(folder):
    with pytest.raises(TypeError, match="num_layers: expected an int, got str"):
        from_pretrained(folder("gpt2", {"n_layer": "3"}))


BIAS = "transformer.h.0.attn.c_attn.bias"
FIRST = "transformer.h.0.ln_1.weight"


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: t.pop(BIAS),
            f"folder: expected the weights of GPT2LMHeadModel or GPT2Model, got {BIAS} missing",
        ),
        (lambda t: [t.pop(n) for n in list(t) if ".0." in n], "and 8 more missing"),
        (
            lambda t: t.update(extra=torch.ones(1)),
            "weights of GPT2LMHeadModel or GPT2Model, got extra left over",
        ),
        (
            lambda t: t.update({BIAS: torch.ones(35)}),
            rf"{BIAS}: expected shape \(36,\), got shape \(35,\)",
        ),
        (
            lambda t: t.update({"transformer.h.0.mlp.c_fc.weight": torch.ones(48, 12)}),
            r"mlp.c_fc.weight: expected shape \(12, 48\), got shape \(48, 12\)",
        ),
        (
            lambda t: t.update({FIRST: t[FIRST].half()}),
            "one floating point dtype, got .*float16.*ln_1",
        ),
        (lambda t: t.update({n: each.int() for n, each in t.items()}), "dtype, got torch.int32"),
    ],
)
def test_weights_that_do_not_fit(folder, change, message):
    with pytest.raises(ValueError, match=message):
        from_pretrained(folder(change=change))


@pytest.mark.plain_types
def test_a_vocabulary_too_small_and_another_models_config(folder):
    with pytest.raises(
        ValueError, match=r"wte.weight: expected shape \(16, 12\), got shape \(17, 12\)"
    ):
        from_pretrained(folder("gpt2", {"vocab_size": 16}))
    with pytest.raises(ValueError, match=r"GPT2LMHeadModel or GPT2Model, got .*missing"):
        from_pretrained(folder("gpt2", {"n_layer": 4}))
    with pytest.raises(ValueError, match="GPT2LMHeadModel or GPT2Model, got .* left over"):
        from_pretrained(folder("gpt2", {"n_layer": 2}))
    windows = ("layer_types", "max_window_layers", "sliding_window", "use_sliding_window")
    place = folder("qwen3", {"model_type": "llama", "architectures": None}, left_out=windows)
    with pytest.raises(ValueError, match="LlamaForCausalLM or .*, got .*k_norm.*left over"):
        from_pretrained(place)
    with pytest.raises(ValueError, match="MistralForCausalLM|LlamaForCausalLM"):
        from_pretrained(folder("llama", {"model_type": "mistral"}))


@pytest.mark.plain_types
@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_files_that_are_cut_short(folder, keep):
    place = folder()
    path = place / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match="model.safetensors: expected a whole file, got"):
        from_pretrained(place)
    config = (place / "config.json").read_bytes()
    (place / "config.json").write_bytes(config[: len(config) // 2])
    with pytest.raises(
        ValueError, match="config.json: expected a JSON object, got a file that is cut"
    ):
        from_pretrained(place)


@pytest.mark.plain_types
def test_files_that_are_not_there(folder, tmp_path):
    with pytest.raises(
        FileNotFoundError, match="folder: expected a config.json in it, got .*nowhere"
    ):
        from_pretrained(tmp_path / "nowhere")
    place = folder()
    (place / "model.safetensors").rename(place / "other.safetensors")
    with pytest.raises(
        FileNotFoundError, match="expected model.safetensors or model.safetensors.ind"
    ):
        from_pretrained(str(place))
    index = place / "model.safetensors.index.json"
    for names, error, message in (
        ({"a": "gone.safetensors"}, FileNotFoundError, "expected gone.safetensors, which .*names"),
        ({"a": "../model/other.safetensors"}, FileNotFoundError, "expected ../model"),
        ({"a": 3}, ValueError, "weight_map: expected a file per tensor"),
        (None, ValueError, "weight_map: expected a file per tensor, got None"),
    ):
        index.write_text(json.dumps({"weight_map": names}), encoding="utf-8")
        with pytest.raises(error, match=message):
            from_pretrained(place)
    with pytest.raises(TypeError, match="folder: expected a string or a Path, got int"):
        from_pretrained(3)


@pytest.mark.plain_types
def test_a_tensor_in_two_shards(tmp_path):
    small("gpt2").save_pretrained(tmp_path, max_shard_size="3KB")
    first, second = sorted(tmp_path.glob("*.safetensors"))[:2]
    save_file(load_file(first) | load_file(second), second)
    with pytest.raises(
        ValueError,
        match="expected the weights of GPT2LMHeadModel or GPT2Model, got .* stored twice",
    ):
        from_pretrained(tmp_path)


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda m: m(torch.tensor([[17]])),
            "ids: expected .* below self.config.vocab_size = 17, got 17",
        ),
        (lambda m: m(torch.ones(1, 41).long()), "position_ids: expected .* = 40, got 0 to 40"),
        (
            lambda m: m(torch.ones(2, 3).long(), torch.ones(2, 4).bool()),
            r"attention_mask: expected 3 columns, for every token so far, got shape \(2, 4\)",
        ),
        (
            lambda m: m(torch.ones(2, 3).long(), torch.ones(3, 3).bool()),
            r"attention_mask: expected shape \(B, T\) = \(2, T\)",
        ),
        (
            lambda m: m(torch.ones(1, 3).long(), torch.full((1, 3), 2)),
            "attention_mask: expected at least 0 and at most 1, got 2 to 2",
        ),
        (
            lambda m: m(torch.ones(1, 3).long(), position_ids=torch.tensor([[0, 1, 40]])),
            "position_ids: expected .* = 40, got 0 to 40",
        ),
        (
            lambda m: m(torch.ones(1, 3).long(), position_ids=torch.tensor([[-1, 0, 1]])),
            "position_ids: expected at least 0, got -1 to 1",
        ),
    ],
)
def test_calls_that_do_not_fit(folder, call, message):
    with pytest.raises(ValueError, match=message):
        call(from_pretrained(folder()))


@pytest.mark.plain_types
@pytest.mark.parametrize("positions", ["none", "alibi"])
def test_positions_where_there_are_none(positions):
    model = LanguageModel(LanguageModelConfig(17, **OWN | {"positions": positions}))
    with pytest.raises(
        ValueError, match=f'position_ids: expected None, with positions="{positions}"'
    ):
        model(torch.ones(1, 3).long(), position_ids=torch.tensor([[0, 1, 2]]))


OWN = {
    "d_model": 12, "num_heads": 3, "num_layers": 1, "pad_id": None, "scale_embedding": False,
    "norm_placement": "pre", "positions": "learned", "max_length": 9, "activation": "relu",
}  # fmt: skip


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pad_id": 0}, "model.config: expected pad_id = None, as gpt2 has it, got pad_id = 0"),
        ({"scale_embedding": True}, "expected scale_embedding = False, as gpt2 .* = True"),
        ({"norm_placement": "resi_dual"}, "norm_placement = 'pre', as gpt2"),
        ({"window": 4}, "expected window = None, as gpt2 has it, got window = 4"),
        ({"positions": "alibi"}, "got positions = 'alibi'"),
        ({"d_head": 5}, "expected d_head = 4, as gpt2 has it, got d_head = 5"),
        ({"attention_bias": False}, "expected attention_bias = True, as gpt2"),
        ({"activation": "swiglu"}, "model.config: expected"),
    ],
)
def test_models_that_no_family_has(changes, message, tmp_path):
    model = LanguageModel(LanguageModelConfig(17, **OWN | changes))
    with pytest.raises(ValueError, match=message):
        save_pretrained(model, tmp_path / "new")
    assert not list(tmp_path.iterdir())
    save_pretrained(LanguageModel(LanguageModelConfig(17, **OWN)), tmp_path / "new")


@pytest.mark.plain_types
def test_folders_that_hold_something_else(folder, tmp_path):
    place = folder()
    ours = from_pretrained(place)
    (place / "tokenizer.json").write_text("{}", encoding="utf-8")
    (place / "more").mkdir()
    (place / "more" / "notes.md").write_text("kept", encoding="utf-8")
    save_pretrained(ours, place)
    assert (place / "more" / "notes.md").read_text(encoding="utf-8") == "kept"
    assert (place / "tokenizer.json").exists()
    other = tmp_path / "other"
    other.mkdir()
    save_pretrained(ours, other)
    (other / "config.json").unlink()
    for path in (other, other / "model.safetensors"):
        with pytest.raises(
            ValueError, match=r"folder: expected a new or empty folder, or one with con"
        ):
            save_pretrained(ours, path)
    with pytest.raises(TypeError, match="model: expected a .*LanguageModel.*, got Linear"):
        save_pretrained(torch.nn.Linear(2, 2), other)


def test_nothing_is_half_written(folder, monkeypatch, tmp_path):
    """A disk that is full while the new model is written leaves the old one whole, and nothing beside it."""
    place = folder()
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    ours = from_pretrained(place)

    def full(*_, **__):
        raise OSError("no space left on device")

    for module, name in (
        ("tested_transformer.models.loading", "save_file"),
        ("tested_transformer.models.loading", "json.dumps"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(f"{module}.{name}", full)
            with pytest.raises(OSError, match="no space left"):
                save_pretrained(ours, place)
        assert {path.name: path.read_bytes() for path in place.iterdir()} == before
        assert [path.name for path in tmp_path.iterdir()] == [place.name]
