"""The layer of a Reformer: equal to transformers' ReformerModel, with padding, and one output in evaluation."""

import pytest
import torch

from tested_transformer.layers.lsh_attention import LshAttention

EPS = torch.finfo(torch.float64).eps
SIZES = {"num_buckets": 6, "num_rounds": 2, "chunk_size": 4}


def numbers(*shape, seed=1):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def layer(**options):
    torch.manual_seed(0)
    return LshAttention(24, 3, **SIZES, **options).double().eval()


X = numbers(2, 19, 24)
REAL = torch.arange(19) < torch.tensor([[19], [13]])


def reformer(causal):
    reformer = pytest.importorskip("transformers.models.reformer.modeling_reformer")
    config = reformer.ReformerConfig(
        hidden_size=24, num_attention_heads=3, attention_head_size=8, num_buckets=6, num_hashes=2,
        lsh_attn_chunk_length=4, lsh_num_chunks_after=0, is_decoder=causal, hash_seed=7,
        attn_layers=["lsh", "lsh"], num_hidden_layers=2, axial_pos_embds=False, feed_forward_size=32,
        max_position_embeddings=64, vocab_size=50, hidden_dropout_prob=0.0,
        lsh_attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    return reformer.ReformerModel(config).double().eval()


def with_our_layers(model, x, real, causal):
    """Their model with our attention: two streams, of which each is changed by the other."""
    first = second = x
    for block in model.encoder.layers:
        theirs = block.attention
        ours = layer(causal=causal, form="trax", hash_seed=7)
        ours.query_key, ours.value = theirs.self_attention.query_key, theirs.self_attention.value
        ours.output = theirs.output.dense
        first = first + ours(theirs.layer_norm(second), real=real)
        second = second + block.feed_forward(first)
    return model.encoder.layer_norm(torch.cat((first, second), -1))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_reformer(causal, padded):
    """16 tokens, a multiple of the chunk; and 19, which their model fills up by itself."""
    model, real = reformer(causal), REAL if padded else None
    for length in (16, 19):
        x, kept = X[:, :length], torch.ones(2, length, dtype=torch.bool)
        mask = None if real is None else real[:, :length]
        kept = kept if mask is None else mask
        given = {} if mask is None else {"attention_mask": mask.long()}
        expected = model(inputs_embeds=x, **given).last_hidden_state
        embedded = model.embeddings(inputs_embeds=x)
        found = with_our_layers(model, embedded, mask, causal)
        torch.testing.assert_close(found[kept], expected[kept], rtol=0, atol=1e6 * EPS)


def test_evaluation_has_one_output_and_training_many():
    module = layer()
    assert torch.equal(module(X), module(X))
    module.train()
    torch.manual_seed(0)
    first = module(X)
    assert float((first - module(X)).abs().max().detach()) > 1e-3
    torch.manual_seed(0)
    assert torch.equal(first, module(X))


def test_their_evaluation_is_random_without_a_seed():
    model = reformer(False)
    for block in model.encoder.layers:
        block.attention.self_attention.hash_seed = None
    first, second = (model(inputs_embeds=X[:, :16]).last_hidden_state for _ in range(2))
    assert float((first - second).abs().max().detach()) > 1e-3


@pytest.mark.parametrize("causal", [False, True])
def test_batch_is_single(causal):
    module = layer(causal=causal)
    batch = module(X, real=REAL)
    torch.testing.assert_close(module(X[1:, :13]), batch[1:, :13])
    torch.testing.assert_close(module(X[:1]), batch[:1])


def test_every_parameter_has_a_gradient():
    module = layer(causal=True)
    module(X).square().sum().backward()
    assert all(bool((each.grad != 0).any()) for each in module.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtypes(dtype):
    output = layer().to(dtype)(X.to(dtype))
    assert output.dtype == dtype
    assert bool(torch.isfinite(output).all())


@pytest.mark.plain_types
def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="num_buckets: expected an even number"):
        LshAttention(24, 3, num_buckets=5)
    with pytest.raises(ValueError, match="x: expected"):
        layer()(X[..., :5])
    with pytest.raises(TypeError, match="x: expected"):
        layer()(X.float())
    with pytest.raises(ValueError, match="real: expected"):
        layer()(X, real=REAL[:, :3])
    with pytest.raises(ValueError, match="form: expected"):
        layer(form="both")
