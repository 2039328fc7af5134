"""Latent attention with an indexer: transformers' selection, full attention in its limit, its cache, its training."""

import pytest
import torch

from tested_transformer.functional.masks import causal_mask
from tested_transformer.layers.cache import KeyValueCache
from tested_transformer.layers.indexed_latent_attention import (
    IndexedLatentAttention,
    IndexerConfig,
    LightningIndexer,
)
from tested_transformer.layers.latent_attention import LatentAttention
from tested_transformer.mixers.indexed_attention import (
    indexer_loss,
    indexer_scores,
    lightning_indexer,
    select_keys,
    selection_mask,
)
from tested_transformer.models.language_model import LanguageModelConfig

SIZES = {"d_head": 6, "d_latent": 10, "d_rotary": 4, "d_value": 5, "d_query_latent": 7}
X = torch.randn(2, 9, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
LEFT = torch.arange(9) >= torch.tensor([[0], [3]])
PAST = causal_mask(9)


def shaken(module):
    """All weights of the same size, so that a norm's or a small layer's count as well."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return module.double().eval()


def layer(num_keys=3, layout="halves", **options):
    indexer = IndexerConfig(num_heads=5, d_head=8, num_keys=num_keys, layout=layout)
    return shaken(IndexedLatentAttention(24, 3, indexer=indexer, **SIZES, **options))


def selected_by(ours, x=X, mask=PAST[None]):
    """The keys that a layer's indexer selects, (B, L, L)."""
    latent = ours.query_norm(ours.query_down(x))
    query, key, weights = ours.indexer(x, latent, torch.arange(x.shape[1]))
    scores = indexer_scores(query, key[:, 0], weights)
    return selection_mask(*select_keys(scores, ours.indexer.config.num_keys, mask=mask), x.shape[1])


def theirs_with_weights_of(ours, num_keys):
    """transformers' indexer, and the rotation that it is given."""
    deepseek = pytest.importorskip("transformers.models.deepseek_v32.modeling_deepseek_v32")
    config = deepseek.DeepseekV32Config(
        hidden_size=24, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=7,
        qk_rope_head_dim=4, index_n_heads=5, index_head_dim=8, index_topk=num_keys,
    )  # fmt: skip
    theirs = deepseek.DeepseekV32Indexer(config, 0).double()
    names = {"query": "wq_b", "key": "wk", "key_norm": "k_norm", "weights": "weights_proj"}
    split = (name.rpartition(".") for name in ours.indexer.state_dict())
    state = {f"{names[m]}.{p}": ours.indexer.state_dict()[f"{m}.{p}"] for m, _, p in split}
    theirs.load_state_dict(state)
    return theirs, deepseek.DeepseekV32RotaryEmbedding(config)(X, torch.arange(9)[None])


@torch.no_grad()
@pytest.mark.parametrize("num_keys", [1, 3, 9, 20])
@pytest.mark.parametrize("mask", [PAST[None], PAST & LEFT[:, None]])
def test_the_selected_keys_are_those_of_transformers(num_keys, mask):
    """As sets, of the keys that may be read; with interleaved pairs they would not be."""
    ours = layer(num_keys)
    theirs, turns = theirs_with_weights_of(ours, num_keys)
    latent = ours.query_norm(ours.query_down(X))
    indices = theirs(X, latent, turns, mask.expand(2, 9, 9), None)
    wanted = torch.zeros(2, 9, 9, dtype=torch.bool).scatter(-1, indices.long(), True) & mask
    assert torch.equal(selected_by(ours, mask=mask), wanted)
    interleaved = selected_by(layer(num_keys, "interleaved"), mask=mask)
    assert torch.equal(interleaved, wanted) == (num_keys >= 9)


@torch.no_grad()
def test_the_function_selects_what_the_layer_does():
    ours = layer()
    latent = ours.query_norm(ours.query_down(X))
    query = ours.indexer.query(latent).unflatten(-1, (5, 8)).transpose(1, 2)
    key, weights = ours.indexer.key_norm(ours.indexer.key(X)), ours.indexer.weights(X).mT
    selected = lightning_indexer(query, key, weights, num_keys=3, rotary_dim=4)
    assert torch.equal(selected, selected_by(ours))


@pytest.mark.parametrize("options", [{}, {"mask": LEFT[:, None, None] & PAST}, {"mask": PAST}])
def test_latent_attention_under_the_mask_of_the_selected_keys(options):
    """Output and gradients of every weight but the indexer's."""
    ours, plain = layer(), shaken(LatentAttention(24, 3, **SIZES))
    plain.load_state_dict({n: w for n, w in ours.state_dict().items() if "indexer" not in n})
    allowed = options.get("mask", PAST)
    allowed = allowed[:, 0] if allowed.ndim == 4 else allowed[None]
    mask = selected_by(ours, mask=allowed)
    wanted = plain(X, mask=mask[:, None])
    found = ours(X, causal=not options, **options)
    torch.testing.assert_close(found, wanted)
    for output in (found, wanted):
        output.square().sum().backward()
    gradients = {name: each.grad for name, each in ours.named_parameters()}
    for name, each in plain.named_parameters():
        torch.testing.assert_close(gradients.pop(name), each.grad)
    assert all(each is None for each in gradients.values())


@torch.no_grad()
@pytest.mark.parametrize("num_keys", [9, 2048])
def test_as_many_keys_as_there_are_is_latent_attention(num_keys):
    ours, plain = layer(num_keys), shaken(LatentAttention(24, 3, **SIZES))
    plain.load_state_dict({n: w for n, w in ours.state_dict().items() if "indexer" not in n})
    torch.testing.assert_close(ours(X, causal=True), plain(X, causal=True))


@torch.no_grad()
def test_the_weights_are_0_where_a_key_is_not_selected():
    ours = layer()
    output, weights = ours(X, causal=True, return_weights=True)
    torch.testing.assert_close(output, ours(X, causal=True))
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 9, dtype=torch.float64))
    assert torch.equal(weights[:, 0] > 0, selected_by(ours))


@torch.no_grad()
@pytest.mark.parametrize("chunk", [1, 2, 4])
def test_in_chunks(chunk):
    ours, cache = layer(), KeyValueCache()
    pieces = [ours(piece, causal=True, cache=cache) for piece in X.split(chunk, dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), ours(X, causal=True))


@torch.no_grad()
def test_the_cache_keeps_a_latent_a_rotary_key_and_a_key_of_the_indexer():
    ours, cache = layer(), KeyValueCache(capacity=9)
    ours(X, causal=True, cache=cache)
    assert cache.nbytes == 2 * 9 * (10 + 4 + 8) * 8  # B S (c + r + e), float64
    assert cache.values.shape == (2, 1, 9, 4 + 8)


def test_its_loss_trains_the_indexer_and_nothing_else():
    """Neither the other weights nor the layers below, by way of the tokens."""
    ours, x = layer(), X.clone().requires_grad_()
    _, weights = ours(x, causal=True, return_weights=True)
    latent = ours.query_norm(ours.query_down(x))
    query, key, votes = ours.indexer(x, latent, torch.arange(9))
    indexer_loss(indexer_scores(query, key[:, 0], votes), weights, mask=PAST[None]).backward()
    trained = {n for n, p in ours.named_parameters() if p.grad is not None and p.grad.any()}
    assert trained == {n for n, _ in ours.named_parameters() if n.startswith("indexer.")}
    assert x.grad is None


@torch.no_grad()
def test_weights_of_float32_beside_half_precision():
    """As transformers keeps them."""
    ours = layer().bfloat16()
    ours.indexer.weights.float()
    assert ours(X.bfloat16(), causal=True).dtype == torch.bfloat16


@pytest.mark.plain_types
def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="num_keys: expected at least 1, got 0"):
        IndexerConfig(num_heads=2, d_head=4, num_keys=0)
    with pytest.raises(ValueError, match="layout: expected"):
        IndexerConfig(num_heads=2, d_head=4, num_keys=1, layout="pairs")
    with pytest.raises(ValueError, match="d_rotary: expected at most d_head = 2 of the indexer"):
        LightningIndexer(24, 7, 4, IndexerConfig(num_heads=2, d_head=2, num_keys=1))
    with pytest.raises(ValueError, match="mask: expected"):
        layer()(X, mask=torch.ones(2, 3, 9, 9, dtype=torch.bool))
    with pytest.raises(ValueError, match="indexer: expected None, without a latent"):
        LanguageModelConfig(17, indexer=IndexerConfig(num_heads=2, d_head=4, num_keys=1))
