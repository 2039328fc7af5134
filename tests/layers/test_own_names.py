"""What once named an inner function's argument, ended inside torch or passed in silence."""

import numpy as np
import pytest
import torch

from tested_transformer import (
    DecoderCache,
    LanguageModel,
    LanguageModelConfig,
    RecurrentConfig,
    RecurrentTranslator,
    ResiDual,
    Residual,
    RotaryPositions,
    SinusoidalPositions,
    Transformer,
    TransformerConfig,
    attention,
    batch_norm,
    combine_masks,
    entropy,
    kernel_regression,
    masked_softmax,
    padding_mask,
    perplexity,
    prefix_mask,
    reinforce_loss,
    relative_attention,
    self_attention,
    unit_positions,
    window_mask,
)
from tested_transformer.positions.relative import relative_distances

pytestmark = pytest.mark.plain_types

X, IDS, MASK = torch.randn(2, 3, 4), torch.ones(2, 3, dtype=torch.long), torch.ones(3, 5) > 0
HEADS, LENGTHS = torch.randn(2, 2, 3, 4), torch.tensor([1, 2])
TEXT = LanguageModelConfig(9, d_model=8, num_heads=2, num_layers=1)
POST = TransformerConfig(9, d_model=8, num_heads=2, num_encoder_layers=1, num_decoder_layers=1)
WORDS = RecurrentConfig(9, 9, d_model=8)


def filled():
    cache = DecoderCache(1)
    cache.extend(IDS > 0)
    return cache


CALLS = {
    "scores of rank 1": (lambda: masked_softmax(torch.zeros(5), MASK), ValueError, "scores: expected at least 2 axes"),
    "scores of rank 0": (lambda: masked_softmax(torch.tensor(0.0)), ValueError, "scores: expected at least 2 axes"),
    "heads is a string": (lambda: padding_mask(LENGTHS, 3, heads="False"), TypeError, "heads: expected True or False"),
    "a mask elsewhere": (lambda: combine_masks(MASK, MASK.to("meta")), ValueError, r"masks\[1\]: expected masks\[0\]'s device cpu"),
    "a mask of rank 1": (lambda: combine_masks(MASK[0], MASK), ValueError, r"masks\[0\]: expected shape .* got shape \(5,\)"),
    "a mask of rank 0": (lambda: combine_masks(MASK[0, 0]), ValueError, r"masks\[0\]: expected shape .* got shape \(\)"),
    "prefixes in a list": (lambda: prefix_mask([1], 3), TypeError, "prefix_lengths: expected a torch.Tensor, got list"),
    "a number in a string": (lambda: prefix_mask(LENGTHS, "3"), TypeError, "num_tokens: expected an int, got str"),
    "weights of other widths": (lambda: self_attention(X, torch.ones(4, 2), torch.ones(4, 3), torch.ones(4, 2)), ValueError, "w_key: expected shape"),
    "backends in a list": (lambda: attention(X, X, X, backend=["auto"]), ValueError, "backend: expected one of"),
    "a bool of numpy": (lambda: attention(X, X, X, causal=np.bool_(True)), TypeError, r"causal: expected True or False, got numpy\.bool"),
    "weights as a string": (lambda: relative_attention(X, X, X, torch.ones(3, 4), return_weights="False"), TypeError, "return_weights: expected True"),
    "no such device": (lambda: relative_distances(2, 2, 1, device="x"), ValueError, "device: expected a device of this machine"),
    "no such device, masks": (lambda: window_mask(2, window=1, device="x"), ValueError, "device: expected a device of this machine"),
    "a negative variance": (lambda: batch_norm(X, mean=X[0, 0], variance=-X[0, 0].abs()), ValueError, "variance: expected at least 0"),
    "a negative weight": (lambda: entropy(torch.tensor([-0.5, 1.5])), ValueError, r"weights: expected at least 0, got -0\.5 to 1\.5"),
    "a negative weight, perplexity": (lambda: perplexity(torch.tensor([-0.5, 1.5])), ValueError, "weights: expected at least 0"),
    "past the end": (lambda: unit_positions(torch.tensor([9]), 3), ValueError, "positions: expected at least 0 and a number below length = 3"),
    "no such choice": (lambda: reinforce_loss(X, IDS + 3, X[..., 0]), ValueError, "choice: expected at least -1 and a number below S = 4, got 4 to 4"),
    "keys of another width": (lambda: kernel_regression(X, X[..., :3], X, bandwidth=1.0), ValueError, "key: expected shape"),
    "keys and values": (lambda: kernel_regression(X, X, X[:, :2], bandwidth=1.0), ValueError, r"value: expected shape .* as in query and key"),
    "heads without features": (lambda: RotaryPositions(4).rotate(HEADS, torch.tensor(1.0), IDS), ValueError, "key: expected 4 axes"),
    "positions in a list": (lambda: SinusoidalPositions(4)([1]), TypeError, "position_ids: expected a torch.Tensor"),
    "more positions than tokens": (lambda: SinusoidalPositions(4).embed(X, torch.arange(4)), ValueError, "position_ids: expected shape"),
    "a sublayer that is none": (lambda: Residual(torch.nn.LayerNorm(4))(X, 3), TypeError, "sublayer: expected a function"),
    "a sublayer's list": (lambda: Residual(torch.nn.LayerNorm(4))(X, lambda x: [x]), ValueError, "sublayer: expected an output of x's shape"),
    "an output of another shape": (lambda: Residual(torch.nn.LayerNorm(4)).add(X, X[:1]), ValueError, "output: expected shape"),
    "an output for one stream": (lambda: ResiDual(torch.nn.LayerNorm(2)).add(X, X), ValueError, "output: expected an output of x's shape"),
    "rows out of range": (lambda: filled().reorder(torch.tensor([5])), ValueError, r"rows: expected at least 0 and a number below self\.batch = 2"),
    "rows of booleans": (lambda: filled().reorder(torch.tensor([True, False])), TypeError, "rows: expected an integer dtype"),
    "nothing to forget": (lambda: DecoderCache(1).truncate(1), ValueError, "length: expected at least 0 and at most self.length = 0"),
    "real tokens as numbers": (lambda: DecoderCache(1).extend(X[..., 0]), TypeError, r"real: expected torch\.bool"),
    "padding of a list": (lambda: Transformer(POST).padding([[1]]), TypeError, "ids: expected a torch.Tensor, got list"),
    "padding of a row": (lambda: RecurrentTranslator(WORDS).padding(IDS[0]), ValueError, "ids: expected 2 axes"),
    "a state of other rows": (lambda: RecurrentTranslator(WORDS).decode(IDS, torch.ones(2, 0, 8)), ValueError, "memory: expected S of at least 1"),
    "a cache that is none": (lambda: LanguageModel(TEXT)(IDS, cache=torch.tensor(3)), TypeError, "cache: expected a DecoderCache or None, got Tensor"),
    "capacity of nothing": (lambda: LanguageModel(TEXT).new_cache(capacity=0), ValueError, "capacity: expected at least 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_the_argument_is_named(name):
    call, error, message = CALLS[name]
    with pytest.raises(error, match=f"^{message}") as caught:
        call()
    assert type(caught.value) is error


def test_right_calls_at_the_edge_of_these_bounds():
    assert entropy(torch.tensor([0.0, 1.0])).item() == 0.0
    assert entropy(torch.tensor([float("nan"), 1.0])).isnan()  # NaN propagates, as everywhere
    assert unit_positions(torch.tensor([2]), 3).item() == 1.0
    assert reinforce_loss(X, IDS - 2, X[..., 0]).equal(X[..., 0])
    cache = DecoderCache(1)
    cache.truncate(0)
    assert cache.length == 0
    assert batch_norm(X, mean=X[0, 0], variance=torch.zeros(4)).isfinite().all()
