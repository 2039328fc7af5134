"""Longformer's layer: equal to transformers', alone and in their model, and every weight gets a gradient."""

import copy

import pytest
import torch
from torch import nn

from same_numbers import assert_float32_same, in_dtype, shake
from tested_transformer.layers.longformer_attention import LongformerAttention
from tested_transformer.layers.multi_head import MultiHeadAttention

NAMES = ("query", "key", "value", "query_global", "key_global", "value_global")


def numbers(*shape, seed=1):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


X = numbers(2, 16, 12)
GLOBAL = torch.zeros(2, 16, dtype=torch.bool)
GLOBAL[0, [0, 5, 6]] = GLOBAL[1, 9] = True
REAL = torch.arange(16) < torch.tensor([[16], [11]])


def layer(window=3, seed=0):
    return shake(LongformerAttention(12, 3, window=window), seed).double().eval()


def their_config(longformer, **options):
    return longformer.LongformerConfig(
        hidden_size=12, num_attention_heads=3, num_hidden_layers=2, intermediate_size=20,
        attention_window=[4, 4], attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0,
        vocab_size=30, max_position_embeddings=40, pad_token_id=1, **options,
    )  # fmt: skip


def longformer_of_transformers():
    return pytest.importorskip("transformers.models.longformer.modeling_longformer")


# --- The layer ------------------------------------------------------------------------------------


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("is_global", [GLOBAL, torch.zeros_like(GLOBAL)], ids=["some", "none"])
def test_equal_to_transformers(is_global, padded):
    """Their attention_window of 4, two keys on each side, is our window of 3."""
    longformer = longformer_of_transformers()
    theirs = longformer.LongformerSelfAttention(their_config(longformer), 0).double()
    ours = layer()
    ours.output = nn.Identity()  # which they have in another class
    theirs.load_state_dict(ours.state_dict())
    real = REAL if padded else torch.ones_like(REAL)
    marks = (is_global.long() + 1) * real - 1  # 1 for global tokens, 0, and -1 for padding
    rows = real[..., None]

    def run(module, dtype):
        twin, x = in_dtype(module, dtype), X.clone().to(dtype).requires_grad_()
        if module is ours:
            output = twin(x, is_global, key_mask=real)
        else:
            given = marks * torch.finfo(dtype).max
            output = twin(
                x, given.to(dtype), is_index_masked=marks < 0, is_index_global_attn=marks > 0,
                is_global_attn=bool((marks > 0).any()),
            )[0]  # fmt: skip
        output = output * rows  # what stands at padding is nobody's
        (output * numbers(*output.shape, seed=7).to(dtype)).sum().backward()
        used = NAMES if is_global.any() else NAMES[:3]
        gradients = [
            grad
            for name in used
            for grad in (twin.get_submodule(name).weight.grad, twin.get_submodule(name).bias.grad)
        ]
        return {"output": [output], "gradients": [*gradients, x.grad]}

    assert_float32_same(lambda dtype: run(ours, dtype), lambda dtype: run(theirs, dtype))


class Ours(nn.Module):
    """Our attention in their model: the six projections are theirs, moved here."""

    def __init__(self, theirs):
        super().__init__()
        self.attend = LongformerAttention(12, 3, window=theirs.one_sided_attn_window_size + 1)
        self.attend.output = nn.Identity()
        self.attend.load_state_dict(theirs.state_dict())

    def forward(self, x, is_index_masked, is_index_global_attn, **rest):
        return (self.attend(x, is_index_global_attn, key_mask=~is_index_masked),)


def test_equal_in_their_model():
    """Two layers, a length that their window does not divide, and the mask's values 0, 1 and 2."""
    longformer = longformer_of_transformers()
    torch.manual_seed(0)
    theirs = longformer.LongformerModel(their_config(longformer), add_pooling_layer=False)
    theirs = shake(theirs, 3).double().eval()
    ours = copy.deepcopy(theirs)
    for each in ours.encoder.layer:
        each.attention.self = Ours(each.attention.self).double()
    real, is_global = REAL[:, :14].long(), GLOBAL[:, :14].long()
    ids = torch.randint(2, 30, (2, 14), generator=torch.Generator().manual_seed(2))
    ids = ids.where(real.bool(), 1)

    def run(module, dtype):
        twin = in_dtype(module, dtype)
        output = (
            twin(ids, attention_mask=real, global_attention_mask=is_global)[0] * real[..., None]
        )
        (output * numbers(*output.shape, seed=7).to(dtype)).sum().backward()
        gradients = [w.grad for n, w in sorted(twin.named_parameters()) if ".self." not in n]
        inner = [w.grad for n, w in twin.named_parameters() if ".self." in n]
        assert all(w is None or w.abs().max() > 0 for w in inner)
        return {
            "output": [output],
            "gradients": [w for w in gradients if w is not None],
            "attention": inner,
        }

    assert_float32_same(lambda dtype: run(ours, dtype), lambda dtype: run(theirs, dtype))
    merged = theirs(ids, attention_mask=real * (1 + is_global))[0]
    given = theirs(ids, attention_mask=real, global_attention_mask=is_global)[0]
    torch.testing.assert_close(merged, given)


# --- By itself ------------------------------------------------------------------------------------


def test_every_weight_gets_a_gradient_once_a_token_is_global():
    """But the biases of keys: the same number on all scores of a query changes no softmax."""
    made = layer()
    made(X, GLOBAL).square().sum().backward()
    without = {name for name, each in made.named_parameters() if each.grad.abs().max() < 1e-12}
    assert without == {"key.bias", "key_global.bias"}
    made.zero_grad()
    made(X, torch.zeros_like(GLOBAL)).square().sum().backward()
    unused = {name for name, each in made.named_parameters() if each.grad.abs().max() == 0}
    assert unused == {f"{name}.{kind}" for name in NAMES[3:] for kind in ("weight", "bias")}


def test_a_batch_is_its_sequences():
    """With different numbers of global tokens, and padding."""
    made = layer()
    together = made(X, GLOBAL, key_mask=REAL)
    for b, length in enumerate(REAL.sum(-1).tolist()):
        alone = made(X[b : b + 1, :length], GLOBAL[b : b + 1, :length])
        torch.testing.assert_close(together[b : b + 1, :length], alone)


def test_a_wide_window_is_multi_head_attention():
    made, full = layer(window=16), MultiHeadAttention(12, 3).double()
    state = {name: each for name, each in made.state_dict().items() if "global" not in name}
    full.load_state_dict(state)
    torch.testing.assert_close(made(X, torch.zeros_like(GLOBAL)), full(X))


@pytest.mark.plain_types
def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="window: expected at least 1"):
        LongformerAttention(12, 3, window=0)
    with pytest.raises(ValueError, match="num_heads: expected a number that divides d_model = 12"):
        LongformerAttention(12, 5, window=2)
    with pytest.raises(ValueError, match="is_global: expected"):
        layer()(X, GLOBAL[:1])
    with pytest.raises(TypeError, match="is_global: expected"):
        layer()(X, GLOBAL.long())
