"""Bytes of a cache: the formula against caches that are filled, and the table against transformers' configurations."""

import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

from tested_transformer.analysis.cache_sizes import (
    CACHED_MODELS,
    CachedModel,
    cache_bytes,
    cache_flops_per_byte,
)
from tested_transformer.functional.latent import absorbed_latent_attention
from tested_transformer.layers.cache import KeyValueCache
from tested_transformer.layers.latent_attention import LatentAttention
from tested_transformer.layers.multi_head import MultiHeadAttention

X = torch.randn(3, 5, 24)  # B L D


@torch.no_grad()
@pytest.mark.parametrize("kv_heads", [6, 3, 2, 1])
def test_a_filled_cache_takes_these_bytes(kv_heads):
    model = CachedModel(2, 6, 4, kv_heads=kv_heads)
    caches = [KeyValueCache(capacity=5) for _ in range(2)]
    for cache in caches:
        MultiHeadAttention(24, 6, num_kv_heads=kv_heads)(X, cache=cache)
    assert sum(cache.nbytes for cache in caches) == 3 * cache_bytes(model, 5, item=4)


@torch.no_grad()
def test_a_filled_cache_of_latents_takes_these_bytes():
    model, cache = CachedModel(1, 6, 4, latent=10, rotary=2), KeyValueCache(capacity=5)
    LatentAttention(24, 6, d_head=4, d_latent=10, d_rotary=2)(X, causal=True, cache=cache)
    assert cache.nbytes == 3 * cache_bytes(model, 5, item=4)


SAME = {  # as transformers' configurations have them by default
    "Falcon-7B": ("Falcon", {}),
    "gpt-oss-120b": ("GptOss", {}),
    "DeepSeek-V3": ("DeepseekV3", {}),
    "GPT-2 XL": ("GPT2", {"n_layer": 48, "n_head": 25, "n_embd": 1600}),
}


@pytest.mark.parametrize("name", SAME)
def test_the_sizes_are_those_of_transformers(name):
    family, changes = SAME[name]
    config = getattr(transformers, f"{family}Config")(**changes)
    model = CACHED_MODELS[name]
    assert (model.layers, model.heads) == (config.num_hidden_layers, config.num_attention_heads)
    if model.latent is not None:
        assert model.d_head == config.qk_nope_head_dim == config.v_head_dim
        assert (model.latent, model.rotary) == (config.kv_lora_rank, config.qk_rope_head_dim)
    elif family == "Falcon":
        assert config.multi_query
        assert (model.kind, model.d_head) == ("MQA", config.head_dim)
    else:
        assert model.kv_heads == getattr(config, "num_key_value_heads", model.heads)
        assert model.d_head == getattr(config, "head_dim", config.hidden_size // model.heads)


def test_the_number_of_the_title():
    assert round(cache_bytes(CACHED_MODELS["LLaMA-13B"], 2048) / 1e9, 2) == 1.68
    kinds = {name: model.kind for name, model in CACHED_MODELS.items()}
    assert kinds["GPT-2 XL"] == kinds["LLaMA-13B"] == "MHA"
    assert kinds["Falcon-7B"] == kinds["StarCoder"] == "MQA"
    assert kinds["Falcon-40B"] == kinds["Llama 3 8B"] == kinds["gpt-oss-120b"] == "GQA"


def counted(function):
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


@pytest.mark.parametrize("groups", [6, 2, 1])
def test_flops_for_each_byte_are_those_of_the_counter(groups):
    keys, d = 7, 4
    query, key = torch.randn(groups, 6 // groups, d), torch.randn(groups, keys, d)
    flops = counted(lambda: (query @ key.mT).softmax(-1) @ key)
    model = CachedModel(1, 6, d, kv_heads=groups)
    assert flops / cache_bytes(model, keys) == cache_flops_per_byte(model)


def test_flops_for_each_byte_with_a_latent():
    keys, (c, r) = 7, (10, 2)
    query, latent = torch.randn(6, c + r), torch.randn(keys, c + r)
    flops = counted(lambda: (query @ latent.mT).softmax(-1) @ latent[:, :c])
    model = CachedModel(1, 6, 4, latent=c, rotary=r)
    assert flops / cache_bytes(model, keys) == cache_flops_per_byte(model)
    shapes = ((1, 6, 1, 4), (1, 6, 1, r), (1, keys, c), (1, keys, r), (6, 4, c), (6, 4, c))
    made = [torch.randn(shape) for shape in shapes]
    outside = 2 * 2 * 6 * 4 * c  # the two matrices of each head, whatever the number of keys
    assert counted(lambda: absorbed_latent_attention(*made, backend="plain")) >= flops + outside


@pytest.mark.plain_types
def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="latent: expected a number, or None with kv_heads"):
        CachedModel(1, 2, 4)
    with pytest.raises(ValueError, match="latent: expected a number, or None with kv_heads"):
        CachedModel(1, 2, 4, kv_heads=2, latent=3)
    with pytest.raises(ValueError, match="kv_heads: expected"):
        CachedModel(1, 4, 4, kv_heads=3)
    with pytest.raises(ValueError, match="tokens: expected"):
        cache_bytes(CACHED_MODELS["GPT-2 XL"], -1)
    with pytest.raises(TypeError, match="model: expected"):
        cache_bytes("GPT-2 XL")
