"""Latent attention: equal to transformers', both forms equal, and a cache that does not grow with the heads."""

import pytest
import torch

from tested_transformer.functional.latent import absorbed_latent_attention, latent_attention
from tested_transformer.layers.cache import KeyValueCache
from tested_transformer.layers.latent_attention import LatentAttention
from tested_transformer.specs.judge import judge
from tested_transformer.specs.latent.spec import LATENT_ATTENTION

SIZES = {"d_head": 6, "d_latent": 10, "d_rotary": 4, "d_value": 5}
EPS = torch.finfo(torch.float64).eps
X = torch.randn(2, 5, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def layer(**options):
    torch.manual_seed(0)
    found = LatentAttention(24, 3, **SIZES, **options).double().eval()
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape))
    return found


@pytest.mark.parametrize("form", [latent_attention, absorbed_latent_attention])
def test_right_implementations_pass(form):
    verdict = judge(LATENT_ATTENTION, form)
    assert verdict.passed, verdict


def theirs_and_ours(query_latent):
    """A layer of transformers and ours with its weights."""
    deepseek = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    config = deepseek.DeepseekV3Config(
        hidden_size=24, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=query_latent,
        kv_lora_rank=10, qk_rope_head_dim=4, qk_nope_head_dim=6, v_head_dim=5, attention_bias=True,
        attn_implementation="eager",
    )  # fmt: skip
    theirs = deepseek.DeepseekV3Attention(config, 0).double().eval()
    ours = layer(bias=True, d_query_latent=query_latent)
    names = {
        "down": "kv_a_proj_with_mqa", "latent_norm": "kv_a_layernorm", "up": "kv_b_proj",
        "output": "o_proj", "query": "q_proj", "query_down": "q_a_proj",
        "query_norm": "q_a_layernorm", "query_up": "q_b_proj",
    }  # fmt: skip
    split = (name.rpartition(".") for name in ours.state_dict())
    theirs.load_state_dict({f"{names[m]}.{p}": ours.state_dict()[f"{m}.{p}"] for m, _, p in split})
    return theirs, ours, deepseek.DeepseekV3RotaryEmbedding(config)


@pytest.mark.parametrize("query_latent", [None, 7])
@pytest.mark.parametrize("absorbed", [False, True])
def test_equal_to_transformers(query_latent, absorbed):
    """Their angles are those of float32, so that is how far numbers of this size may be apart."""
    theirs, ours, rotary = theirs_and_ours(query_latent)
    x = [X.clone().requires_grad_() for _ in range(2)]
    future = torch.full((5, 5), -1e300, dtype=torch.float64).triu(1)[None, None]
    wanted, _ = theirs(x[0], rotary(x[0], torch.arange(5)[None]), future)
    found = ours(x[1], causal=True, absorbed=absorbed)
    eps = torch.finfo(torch.float32).eps  # of an angle of at most 4, and of its sine and cosine
    torch.testing.assert_close(
        found, wanted, rtol=0, atol=8 * eps * float(wanted.detach().abs().max())
    )
    for output in (wanted, found):
        output.square().sum().backward()
    largest = float(x[0].grad.abs().max())
    torch.testing.assert_close(x[1].grad, x[0].grad, rtol=0, atol=16 * eps * largest)


@torch.no_grad()
@pytest.mark.parametrize("chunk", [1, 2, 3])
@pytest.mark.parametrize("absorbed", [None, False, True])
def test_in_chunks(chunk, absorbed):
    ours, cache = layer(), KeyValueCache()
    pieces = X.split(chunk, dim=1)
    outputs = [ours(piece, causal=True, cache=cache, absorbed=absorbed) for piece in pieces]
    torch.testing.assert_close(torch.cat(outputs, dim=1), ours(X, causal=True))


@torch.no_grad()
def test_the_cache_keeps_a_latent_and_a_rotary_key():
    ours, cache = layer(), KeyValueCache(capacity=5)
    ours(X, causal=True, cache=cache)
    assert cache.nbytes == 2 * 5 * (10 + 4) * 8  # B S (c + r), float64: no head in it
    assert cache.keys.shape == (2, 1, 5, 10)
    assert cache.values.shape == (2, 1, 5, 4)


def test_both_forms_have_the_same_weights_and_gradients():
    ours = layer()
    found = []
    for absorbed in (False, True):
        ours.zero_grad()
        output, weights = ours(X, causal=True, absorbed=absorbed, return_weights=True)
        output.square().sum().backward()
        found.append([output, weights, *(p.grad.clone() for p in ours.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_only_the_distance_counts():
    """Positions act by the rotary part, which turns: all moved by 7 change nothing."""
    ours, places = layer(), torch.arange(5)
    moved = ours(X, causal=True, position_ids=places + 7)
    torch.testing.assert_close(moved, ours(X, causal=True, position_ids=places))
    swapped = ours(X, causal=True, position_ids=places.flip(0))
    assert not torch.allclose(swapped, moved)


def test_the_scale_is_given_or_that_of_both_parts():
    torch.testing.assert_close(layer(scale=10**-0.5)(X), layer()(X))
    assert not torch.allclose(layer(scale=6**-0.5)(X), layer()(X))


@pytest.mark.plain_types
def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="d_latent: expected at least 1, got 0"):
        LatentAttention(24, 3, **SIZES | {"d_latent": 0})
    with pytest.raises(ValueError, match="rotary_dim: expected an even number"):
        LatentAttention(24, 3, **SIZES | {"d_rotary": 3})
    with pytest.raises(ValueError, match="x: expected"):
        layer()(X[..., :7])
    with pytest.raises(ValueError, match="latent: expected"):
        latent_attention(*torch.ones(2, 1, 3, 4, 5), torch.ones(1, 5), torch.ones(1, 4, 5), X, X, X)


def test_no_scale_is_one_over_the_root_of_both_widths_in_either_form():
    generator = torch.Generator().manual_seed(2)
    shapes = ((1, 2, 3, 5), (1, 2, 3, 4), (1, 3, 9), (1, 3, 4), (2, 5, 9), (2, 6, 9))
    made = [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]
    for form in (latent_attention, absorbed_latent_attention):
        assert torch.equal(form(*made, scale=None), form(*made))
        torch.testing.assert_close(form(*made, scale=None), form(*made, scale=1 / 3))
