"""DeepSeek and GPT-OSS: what other families do not have. Most of it is in test_loading."""

import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("transformers")

from tested_transformer.layers.latent_attention import LatentConfig
from tested_transformer.layers.moe import ExpertsConfig, MixtureOfExperts
from tested_transformer.models.gpt_oss import GptOss, GptOssConfig
from tested_transformer.models.language_model import LanguageModel, LanguageModelConfig
from tested_transformer.models.loading import from_pretrained, save_pretrained
from tested_transformer.positions.mscale import MscaleYarnScaling
from tested_transformer.positions.scaled_rotary import YarnScaling

SIZES = {
    "d_model": 12, "num_heads": 3, "num_layers": 3, "norm_placement": "pre", "norm": "rms",
    "positions": "rotary", "activation": "swiglu", "bias": False, "scale_embedding": False,
    "pad_id": None, "max_length": 40, "tied_output": False, "dropout": 0.0, "norm_eps": 1e-6,
}  # fmt: skip
LATENT = LatentConfig(d_latent=10, d_rotary=4, d_value=5, d_query_latent=7)
EXPERTS = ExpertsConfig(
    num_experts=4, num_chosen=2, d_expert=8, d_shared=8, scoring="sigmoid", normalize=True,
    num_dense=1,
)  # fmt: skip
DEEPSEEK = LanguageModelConfig(17, **SIZES, d_head=6, latent=LATENT, experts=EXPERTS)
GPT_OSS = GptOssConfig(17, **SIZES, num_experts=4, num_chosen=2, window=3)
IDS = torch.arange(3, 15)[None].repeat(2, 1)


def made(config, build=LanguageModel):
    torch.manual_seed(0)
    return build(config).eval()


@torch.no_grad()
def test_the_cache_of_deepseek_keeps_a_latent_and_a_rotary_key_per_token():
    model = made(DEEPSEEK)
    cache = model.new_cache(capacity=12)
    model(IDS, cache=cache)
    assert cache.nbytes == 3 * 2 * 12 * (10 + 4) * 4  # layers B S (c + r), float32: no heads
    assert type(model.layers[0].feed_forward) is not MixtureOfExperts
    assert type(model.layers[1].feed_forward) is MixtureOfExperts


@torch.no_grad()
def test_every_other_layer_of_gpt_oss_keeps_no_more_than_its_window():
    model = made(GPT_OSS, GptOss)
    cache = model.new_cache(capacity=12)
    logits = model(IDS[:, :7], cache=cache)
    assert [layer.own.keys.shape[2] for layer in cache.layers] == [3, 7, 3]
    logits = torch.cat((logits, model(IDS[:, 7:], cache=cache)), 1)
    torch.testing.assert_close(logits, model(IDS))


@torch.no_grad()
def test_a_chunk_with_padding_is_masked_by_each_layers_own_keys():
    model, mask = made(GPT_OSS, GptOss).double(), torch.ones_like(IDS, dtype=torch.bool)
    mask[0, :4] = False
    whole, cache, pieces = model(IDS, mask), model.new_cache(), []
    for start in range(0, 12, 5):
        end = min(start + 5, 12)
        pieces.append(model(IDS[:, start:end], mask[:, :end], cache=cache))
    torch.testing.assert_close(torch.cat(pieces, 1)[mask], whole[mask])


def test_the_two_factors_of_yarn():
    """0.707 twice leaves the rotary part as it is, and multiplies scores by (0.1 x 0.707 ln 40 + 1)^2."""
    lite = MscaleYarnScaling(40.0, 4096, mscale=0.707, mscale_all_dim=0.707)
    assert lite.attention_factor == 1.0
    assert lite.score_factor == pytest.approx((0.0707 * math.log(40) + 1) ** 2, rel=1e-15)
    uneven = MscaleYarnScaling(4.0, 30, mscale=0.6, mscale_all_dim=1.3)
    one, two = 0.06 * math.log(4) + 1, 0.13 * math.log(4) + 1
    assert uneven.attention_factor == pytest.approx(one / two, rel=1e-15)
    assert uneven.score_factor == pytest.approx(two**2, rel=1e-15)
    assert YarnScaling(4.0, 30).attention_factor == 0.1 * math.log(4) + 1


def test_the_score_factor_is_in_the_scale_of_every_layer():
    scaling = MscaleYarnScaling(4.0, 30, mscale=0.6, mscale_all_dim=1.3)
    model = made(replace(DEEPSEEK, rotary_scaling=scaling))
    scales = {layer.attention.scale for layer in model.layers}
    assert scales == {scaling.score_factor * 10**-0.5}
    assert {layer.attention.scale for layer in made(DEEPSEEK).layers} == {None}


@torch.no_grad()
def test_the_bias_of_the_choice_may_be_of_float32_beside_bfloat16(tmp_path):
    """As in the released DeepSeek-V3; any other tensor may not."""
    save_pretrained(made(DEEPSEEK).bfloat16(), tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    tensors[name] = torch.tensor([1.00001, -2.0, 3.0, 0.1])
    tensors["model.layers.61.eh_proj.weight"] = torch.ones(2)  # of multi-token prediction
    save_file(tensors, path)
    ours = from_pretrained(tmp_path)
    assert torch.equal(ours.layers[1].feed_forward.choice_bias, tensors[name])
    assert {each.dtype for each in ours.parameters()} == {torch.bfloat16}
    assert ours(IDS).dtype == torch.bfloat16
    save_file(tensors | {"model.norm.weight": torch.ones(12)}, path)
    with pytest.raises(ValueError, match="weights of one floating point dtype"):
        from_pretrained(tmp_path)


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window": 4}, "window: expected None, with latent attention, got 4"),
        ({"num_kv_heads": 1}, "num_kv_heads: expected 3, with latent attention, got 1"),
        ({"positions": "none"}, "positions: expected 'rotary', with latent attention, got 'none'"),
        (
            {
                "latent": None,
                "rotary_scaling": MscaleYarnScaling(4.0, 30, mscale=1.0, mscale_all_dim=1.0),
            },
            "rotary_scaling: expected another scaling: this one scales the scores of a latent",
        ),
        ({"qk_norm": True}, "qk_norm: expected False, with latent attention, got True"),
    ],
)
def test_options_that_latent_attention_does_not_have(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(DEEPSEEK, **changes)


@pytest.mark.plain_types
def test_models_that_no_family_has(tmp_path):
    with pytest.raises(ValueError, match="windowed: expected one for each of 3 layers, got 2"):
        replace(GPT_OSS, windowed=(True, False))
    odd = replace(DEEPSEEK, experts=replace(EXPERTS, d_shared=12))  # no multiple of d_expert
    with pytest.raises(ValueError, match=r"model\.config: expected experts = "):
        save_pretrained(made(odd), tmp_path / "odd")
