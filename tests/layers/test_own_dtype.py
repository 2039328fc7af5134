"""A layer is given another dtype, device or width than its own: it says so, by its argument's name."""

import pytest
import torch
from torch import nn

from tested_transformer import (
    AdditiveAttention,
    BatchNorm,
    BilinearAttention,
    ConvFeedForward,
    FeedForward,
    HeadByHead,
    LanguageModel,
    LanguageModelConfig,
    LayerNorm,
    LearnedPositions,
    MultiHeadAttention,
    RelativePositions,
    RMSNorm,
    SegmentedEmbedding,
    SelfAttention,
    Transformer,
    TransformerConfig,
)
from tested_transformer.layers.blocks import DecoderLayer, Embedding, EncoderLayer
from tested_transformer.models.transformer import Decoder, Encoder

pytestmark = pytest.mark.plain_types

X, MEMORY, IDS = torch.randn(2, 3, 8), torch.randn(2, 5, 8), torch.ones(2, 3, dtype=torch.long)
SMALL = {"d_model": 8, "num_heads": 2, "dropout": 0.0}
POST = TransformerConfig(9, num_encoder_layers=1, num_decoder_layers=1, **SMALL)
PRE = TransformerConfig(
    9, num_encoder_layers=1, num_decoder_layers=1, norm_placement="pre", **SMALL
)
TEXT = LanguageModelConfig(9, num_layers=1, **SMALL)

# name: (a layer, right arguments by name, the argument that will be wrong)
LAYERS = {
    "self-attention": (lambda: SelfAttention(8, 4), {"x": X}),
    "multi-head": (lambda: MultiHeadAttention(8, 2), {"x": X}),
    "multi-head, context": (lambda: MultiHeadAttention(8, 2), {"context": MEMORY, "x": X}),
    "head by head": (lambda: HeadByHead(MultiHeadAttention(8, 2)), {"x": X}),
    "head by head, context": (
        lambda: HeadByHead(MultiHeadAttention(8, 2)), {"context": MEMORY, "x": X},
    ),
    "additive, key": (
        lambda: AdditiveAttention(8, 8, 4), {"key": MEMORY, "query": X, "value": MEMORY},
    ),
    "bilinear": (lambda: BilinearAttention(8, 8), {"query": X, "key": MEMORY, "value": MEMORY}),
    "feed-forward": (lambda: FeedForward(8, 16), {"x": X}),
    "convolutions": (lambda: ConvFeedForward(8, 16), {"x": X}),
    "layer norm": (lambda: LayerNorm(8), {"x": X}),
    "layer norm, plain": (lambda: LayerNorm(8, backend="plain"), {"x": X}),
    "RMS norm": (lambda: RMSNorm(8), {"x": X}),
    "batch norm": (lambda: BatchNorm(8), {"x": X}),
    "encoder layer": (lambda: EncoderLayer(POST), {"x": X}),
    "encoder layer, pre": (lambda: EncoderLayer(PRE), {"x": X}),
    "decoder layer": (lambda: DecoderLayer(POST), {"x": X, "memory": MEMORY}),
    "decoder layer, memory": (lambda: DecoderLayer(PRE), {"memory": MEMORY, "x": X}),
    "encoder": (lambda: Encoder(POST), {"x": X}),
    "decoder": (lambda: Decoder(PRE), {"x": X, "memory": MEMORY}),
    "decoder, memory": (lambda: Decoder(POST), {"memory": MEMORY, "x": X}),
    "model, memory": (lambda: Transformer(POST).decode, {"memory": MEMORY, "target": IDS}),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_another_dtype_is_told(name):
    make, given = LAYERS[name]
    layer, wrong = make(), next(iter(given))
    layer(**given)
    expected = rf"^{wrong}: expected \w+'s dtype torch\.float32, got torch\.float64"
    with pytest.raises(TypeError, match=expected):
        layer(**{**given, wrong: given[wrong].double()})


@pytest.mark.parametrize("name", LAYERS)
def test_another_device_is_told(name):
    make, given = LAYERS[name]
    wrong = next(iter(given))
    with pytest.raises(ValueError, match=rf"^{wrong}: expected \w+'s device cpu, got meta"):
        make()(**{**given, wrong: given[wrong].to("meta")})


@pytest.mark.parametrize("name", LAYERS)
def test_another_width_is_told(name):
    make, given = LAYERS[name]
    wrong = next(iter(given))
    with pytest.raises(ValueError, match=rf"^{wrong}: expected .* got shape \(2, [35], 7\)"):
        make()(**{**given, wrong: given[wrong][..., :7]})


def runs_in(output, *dtypes):
    """Whether an output is finite, and in one of these dtypes."""
    return output.dtype in dtypes and bool(output.isfinite().all())


@pytest.mark.parametrize("name", LAYERS)
def test_under_autocast_any_floating_point_dtype_fits(name):
    """A linear layer casts there; a residual stream and a sublayer's output then differ in dtype."""
    make, given = LAYERS[name]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer = make()
        assert runs_in(layer(**given), torch.bfloat16, torch.float32)
        if "norm" in name or ("encoder" not in name and "decoder" not in name):
            wrong = next(iter(given))
            if not name.startswith(("additive", "bilinear")):
                rounded = {**given, wrong: given[wrong].bfloat16()}
                assert runs_in(layer(**rounded), torch.bfloat16, torch.float32)


def test_a_layer_that_was_cast_wants_its_new_dtype():
    layer = FeedForward(8, 16)
    layer(X)
    layer.double()
    with pytest.raises(
        TypeError, match=r"x: expected FeedForward's dtype torch\.float64, got torch\.float32"
    ):
        layer(X)
    assert layer(X.double()).dtype == torch.float64


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda ids: LearnedPositions(9, 8)(ids), "position_ids"),
        (lambda ids: Embedding(9, POST)(ids, IDS - 1, 3), "ids"),
        (lambda ids: SegmentedEmbedding(9, 8)(ids), "tokens"),
        (lambda ids: Transformer(POST)(ids, IDS), "source"),
        (lambda ids: Transformer(POST).encode(ids), "source"),
        (lambda ids: LanguageModel(TEXT)(ids), "ids"),
        (lambda ids: RelativePositions(4, 1).bias(ids[0], IDS[0], X[:, None, :, :4]), "query_ids"),
    ],
)
def test_ids_elsewhere_are_told(make, name):
    make(IDS)
    with pytest.raises(ValueError, match=rf"^{name}: expected \w+'s device cpu, got meta"):
        make(IDS.to("meta"))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Embedding("x", POST), TypeError, "vocab: expected an int, got str"),
        (lambda: Embedding(9, POST, table="x"), TypeError, "table: expected an nn.Embedding or None"),
        (lambda: Embedding(9, POST, table=nn.Embedding(9, 4)), ValueError,
         r"table: expected a weight of shape \(9, 8\), got shape \(9, 4\)"),
        (lambda: Embedding(9, POST)(IDS, IDS, 1), ValueError, "position_ids: .*num_positions = 1"),
        (lambda: Embedding(9, POST)(IDS + 8, IDS, 3), ValueError, "ids: .*num_embeddings = 9"),
        (lambda: MultiHeadAttention(8, 2, backend="nope"), ValueError, "backend: expected one of"),
        (lambda: MultiHeadAttention(8, 2)(X, MEMORY[:1]), ValueError, "context: expected shape"),
        (lambda: MultiHeadAttention(8, 2)(X, cache=3), TypeError,
         "cache: expected an AttentionCache or None, got int"),
        (lambda: HeadByHead(MultiHeadAttention(8, 2))([1.0]), TypeError, "x: expected a torch.Tensor"),
        (lambda: HeadByHead(MultiHeadAttention(8, 2))(X.long()), TypeError, "x: expected a floating"),
        (lambda: DecoderLayer(POST)(X, MEMORY, memory_mask=MEMORY), TypeError, "memory_mask: expected"),
        (lambda: Transformer(POST)(IDS, IDS, source_mask=torch.ones(2, 3, dtype=torch.bool)),
         ValueError, r"source_mask: expected shape \(S, S\) = \(3, 3\)"),
        (lambda: Transformer(POST).decode(IDS, X, cache=3), TypeError, "cache: expected a DecoderCache"),
    ],
)  # fmt: skip
def test_malformed(make, error, message):
    with pytest.raises(error, match=f"^{message}"):
        make()
