"""Falcon in all its shapes: the parallel layer, ALiBi in bfloat16, few KV heads, and generation with a cache."""

import pytest
import torch

pytest.importorskip("transformers")

import transformers as hf
from torch import nn

from hf_copies import PAD, loaded
from same_numbers import shake
from tested_transformer.data import pad
from tested_transformer.generation.generate import generate
from tested_transformer.generation.masked_state import MaskedCausalState
from tested_transformer.layers.parallel_layer import ParallelLayer
from tested_transformer.models.falcon import Falcon, FalconConfig, KeyALiBi
from tested_transformer.positions.alibi import ALiBi
from tested_transformer.specs.contract import contract

SMALL = {
    "vocab_size": 17, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4,
    "ffn_hidden_size": 40, "max_position_embeddings": 40, "bos_token_id": 0, "eos_token_id": 2,
    "pad_token_id": PAD,
}  # fmt: skip
KINDS = {
    "7b": {},
    "40b": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "11b": {
        "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1,
        "tie_word_embeddings": False,
    },
    "rw": {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
}  # fmt: skip
EACH = pytest.mark.parametrize("kind", KINDS)


def small(kind, seed=0, attention="sdpa", **changes):
    options = SMALL | KINDS[kind] | changes
    return shake(
        hf.FalconForCausalLM(hf.FalconConfig(**options, attn_implementation=attention)), seed
    ).eval()


@pytest.mark.slow
@EACH
@pytest.mark.plain_types
def test_the_contract_is_kept(kind):
    report = contract(loaded(small(kind)))
    assert report, report
    held = {each.name for each in report.results if each.outcome == "holds"}
    assert {"batch = single", "cached = uncached, with padding"} <= held, report


@pytest.mark.slow
@EACH
@pytest.mark.parametrize("seed", range(2))
def test_generated_tokens_are_theirs(kind, seed):
    theirs = small(kind, seed).double()
    prompts = pad([[5, 6, 7, 8], [9], [10, 11]], left=True, value=PAD)
    mask = prompts != PAD
    with torch.no_grad():
        theirs.get_output_embeddings().weight[PAD] = 0.0  # a logit of 0, never the largest
        options = {"max_new_tokens": 12, "do_sample": False}
        wanted = theirs.generate(prompts, attention_mask=mask.long(), **options)[:, 4:]
    ours = loaded(theirs)
    for cache in (True, False):
        state = MaskedCausalState(ours, mask, cache=cache)
        found = generate(state, prompts, max_new=12, eos=2, padding=PAD)
        assert torch.equal(found.tokens, wanted)


@EACH
def test_the_cache_keeps_the_kv_heads_alone(kind):
    ours = loaded(small(kind))
    cache = ours.new_cache(capacity=9)
    with torch.no_grad():
        ours(torch.arange(3, 12)[None], cache=cache)
    kv_heads = {"7b": 1, "40b": 2, "11b": 2, "rw": 4}[kind]
    assert (
        cache.nbytes == 3 * 2 * kv_heads * 9 * 4 * 4
    )  # layers, K and V, heads, tokens, d, float32


def test_eager_counts_alibi_twice():
    """A bug of transformers 5.23: the bias is in the mask already when the eager path adds it again."""
    theirs, ids = small("rw", attention="eager").double(), torch.arange(3, 14)[None]
    ours = loaded(theirs)
    with torch.no_grad():
        wanted = theirs(ids).logits
        assert not torch.allclose(ours(ids), wanted, atol=1e-3)
        ours.alibi.d_head /= 4  # twice the bias
        torch.testing.assert_close(ours(ids), wanted)
    other = small("rw", attention="sdpa").double()
    with torch.no_grad():
        torch.testing.assert_close(loaded(other)(ids), other(ids).logits)


def test_alibi_by_key_is_alibi_up_to_rounding():
    """The difference is one number per query, which a softmax does not see; far away bfloat16 is too short."""
    places = torch.arange(200)
    by_key, usual = KeyALiBi(8, 16).bias(places, places), ALiBi(8).bias(places, places) / 4
    causal = torch.ones(200, 200, dtype=torch.bool).tril()
    apart = (by_key - usual).masked_fill(~causal, 0.0)
    assert torch.equal(apart[..., -1, :], apart[..., -1, :1].expand(1, 8, 200))
    far = torch.arange(300)
    rounded = KeyALiBi(8, 16).bias(far, far)[0, 0, 0] * 4 / 0.5
    assert torch.equal(rounded[:257], far[:257].float())
    assert rounded[257] == 256.0


def test_the_mask_moves_the_positions_of_alibi():
    ours = loaded(small("rw")).double()
    ids = torch.tensor([[PAD, PAD, 5, 6, 7]])
    with torch.no_grad():
        padded = ours(ids, ids != PAD)[:, 2:]
        torch.testing.assert_close(padded, ours(ids[:, 2:]))


def test_one_of_ones_own():
    """Every number of parallel norms, with the parameters that it says, and each of them counts."""
    for norms, names in ((0, "residuals"), (1, "shared_norm"), (2, "attention_norm")):
        config = FalconConfig(
            17, d_model=12, num_heads=3, num_kv_heads=1, num_layers=2, dropout=0.0,
            num_parallel_norms=norms, linear_bias=norms == 2, attention_bias=norms == 2,
            norm_placement="pre", positions="rotary", pad_id=None, activation="gelu",
        )  # fmt: skip
        ours = Falcon(config)
        parameters = dict(ours.named_parameters())
        assert any(names in name for name in parameters)
        assert ("layers.0.feed_forward.up_proj.bias" in parameters) == (norms == 2)
        ours(torch.tensor([[3, 4, 5, 6]])).square().sum().backward()
        assert all(bool((p.grad != 0).any()) for n, p in parameters.items() if "key.bias" not in n)


def test_a_parallel_layer_is_a_sum():
    class Attention(nn.Linear):
        def forward(self, x, *, return_weights=False, **options):
            assert options == {"causal": True}
            return (super().forward(x), x[:, None]) if return_weights else super().forward(x)

    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    attention, other, norms = Attention(4, 4), nn.Linear(4, 4), (nn.LayerNorm(4), nn.RMSNorm(4))
    one, two = (ParallelLayer(attention, other, *norms[:n]) for n in (1, 2))
    first, last = norms[0](x), norms[1](x)
    torch.testing.assert_close(
        one(x, causal=True), x + attention(first, causal=True) + other(first)
    )
    output, weights = two(x, causal=True, return_weights=True)
    torch.testing.assert_close(output, x + attention(first, causal=True) + other(last))
    assert torch.equal(weights, first[:, None])


@pytest.mark.plain_types
def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="num_parallel_norms: expected .*got 3"):
        FalconConfig(17, d_model=12, num_heads=3, num_parallel_norms=3)
    with pytest.raises(TypeError, match="linear_bias: expected"):
        FalconConfig(17, d_model=12, num_heads=3, linear_bias=1)
    with pytest.raises(ValueError, match="dropout: expected"):
        ParallelLayer(nn.Identity(), nn.Identity(), nn.Identity(), dropout=1.5)
    with pytest.raises(ValueError, match="x: expected"):
        ParallelLayer(nn.Identity(), nn.Identity(), nn.Identity())(torch.ones(2, 3))
