"""The feed-forward network: the bends, the layers, and the Specs that judge them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from tested_transformer import (
    ConvFeedForward,
    FeedForward,
    gated_width,
    gelu,
    gelu_tanh,
    judge,
    reference,
    relu,
    silu,
)
from tested_transformer.layers.feed_forward import ACTIVATIONS
from tested_transformer.specs.feed_forward.mutants import FeedForwardFormula, SwigluFormula
from tested_transformer.specs.feed_forward.spec import FEED_FORWARD, SWIGLU

KERNELS = {
    relu: functional.relu,
    gelu: functional.gelu,
    gelu_tanh: lambda x: functional.gelu(x, approximate="tanh"),
    silu: functional.silu,
}
LAYERS = [FeedForward, ConvFeedForward]
each_layer = pytest.mark.parametrize("layer", LAYERS)
each_bend = pytest.mark.parametrize("bend", KERNELS, ids=lambda bend: bend.__name__)


def tokens(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def network(layer=FeedForward, d_model=6, d_ff=10, seed=0, **options):
    torch.manual_seed(seed)
    return layer(d_model, d_ff, **options).double()


# ------------------------------------------------------------------------------------- the judge


DROPOUT = (
    "no dropout in evaluation",
    "dropout acts in training",
    "dropout scales what it keeps",
)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("right", "skipped"),
    [
        (FeedForwardFormula(), dict.fromkeys(DROPOUT, "takes no `dropout`")),
        (FeedForward, {}),
        (ConvFeedForward, {}),
    ],
    ids=["the mutants' base", "linear", "convolutions"],
)
def test_right_networks_pass(right, skipped, seed):
    verdict = judge(FEED_FORWARD, right, seed=seed)
    assert verdict.passed, verdict
    assert dict(verdict.skipped) == skipped


@pytest.mark.parametrize("right", [SwigluFormula(), *LAYERS])
def test_right_gated_networks_pass(right):
    verdict = judge(SWIGLU, right)
    assert verdict.passed, verdict
    assert dict(verdict.skipped) == {}


def test_a_module_without_the_named_layers_is_told_so():
    class Other(nn.Module):
        def __init__(self, d_model, d_ff):
            super().__init__()
            self.up_proj = nn.Linear(d_model, d_ff)

        def forward(self, x):
            return self.up_proj(x)

    verdict = judge(FEED_FORWARD, Other)
    assert not verdict.passed
    assert "no layer `down_proj`" in verdict.problem.got


# ------------------------------------------------------------------------------------- the bends


@each_bend
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bends_by_hand_equal_torchs_kernels(bend, dtype):
    x = torch.cat([torch.linspace(-8, 8, 321), torch.tensor([-50.0, 0.0, 50.0])]).to(dtype)
    slack = 16 * torch.finfo(dtype).eps * x.abs().max()
    assert (bend(x) - KERNELS[bend](x)).abs().max() <= slack
    assert bend(x).dtype == dtype


@each_bend
def test_bends_have_torchs_slopes(bend):
    x = torch.linspace(-4, 4, 33, dtype=torch.float64)  # 0 is among them
    slopes = [
        torch.autograd.grad(f(y).sum(), y)[0]
        for f in (bend, KERNELS[bend])
        for y in [x.clone().requires_grad_()]
    ]
    torch.testing.assert_close(*slopes)


@each_bend
def test_bends_against_the_reference(bend):
    x = np.linspace(-9, 9, 61)
    expected = [reference.bend(number, bend.__name__) for number in x.astype(np.longdouble)]
    got = bend(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(got, np.array(expected).astype(float), atol=1e-15, rtol=1e-14)


@each_bend
def test_bends_pass_nan_on(bend):
    assert bend(torch.tensor([math.nan])).isnan().all()


def test_the_error_function_of_the_reference():
    for z in np.linspace(-9, 9, 73):
        assert reference.error_function(z) == pytest.approx(math.erf(z), abs=1e-14)


def test_the_two_gelus_differ_by_less_than_half_a_thousandth():
    x = torch.linspace(-8, 8, 160001, dtype=torch.float64)
    worst = (gelu(x) - gelu_tanh(x)).abs().max()
    assert 4.7e-4 < worst < 4.8e-4


@pytest.mark.plain_types
@each_bend
@pytest.mark.parametrize("x", [[1.0], torch.ones(3).long()])
def test_bends_refuse_what_is_no_float_tensor(bend, x):
    with pytest.raises(TypeError, match="x: expected"):
        bend(x)


# ------------------------------------------------------------------------------- against others


@pytest.mark.parametrize(
    ("activation", "bend"),
    [("relu", nn.ReLU()), ("gelu", nn.GELU()), ("gelu_tanh", nn.GELU("tanh")), ("silu", nn.SiLU())],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_equals_a_sequence_of_torchs_layers(activation, bend, seed):
    ours = network(activation=activation, seed=seed)
    theirs = nn.Sequential(nn.Linear(6, 10), bend, nn.Linear(10, 6)).double()
    theirs[0].load_state_dict(ours.up_proj.state_dict())
    theirs[2].load_state_dict(ours.down_proj.state_dict())
    x = tokens(3, 5, 6, seed=seed).requires_grad_()
    torch.testing.assert_close(ours(x), theirs(x))
    for a, b in zip(gradients(ours, x), gradients(theirs, x), strict=True):
        torch.testing.assert_close(a, b)


def gradients(module, x):
    loss = module(x).square().sum()
    return torch.autograd.grad(loss, [x, *module.parameters()])


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_two_convolutions_are_the_two_linear_maps(activation, bias):
    ours = network(activation=activation, bias=bias)
    theirs = ConvFeedForward.from_linear(ours)
    assert isinstance(theirs.up_proj, nn.Conv1d)
    x = tokens(2, 7, 6).requires_grad_()
    torch.testing.assert_close(ours(x), theirs(x))
    for a, b in zip(gradients(ours, x), gradients(theirs, x), strict=True):
        torch.testing.assert_close(a, b.view_as(a))


def test_torchs_own_convolutions_with_the_same_weights():
    ours = network()
    up_proj, down_proj = nn.Conv1d(6, 10, 1).double(), nn.Conv1d(10, 6, 1).double()
    with torch.no_grad():
        for theirs, layer in ((up_proj, ours.up_proj), (down_proj, ours.down_proj)):
            theirs.weight.copy_(layer.weight[..., None])
            theirs.bias.copy_(layer.bias)
    x = tokens(2, 7, 6)
    torch.testing.assert_close(ours(x), down_proj(up_proj(x.mT).relu()).mT)


def test_from_linear_keeps_dtype_mode_and_dropout():
    ours = network(dropout=0.25).eval()
    theirs = ConvFeedForward.from_linear(ours)
    assert theirs.up_proj.weight.dtype == torch.float64
    assert not theirs.training
    assert theirs.dropout.p == 0.25
    theirs.up_proj.weight.data.zero_()
    assert ours.up_proj.weight.abs().min() > 0  # a copy, not a view


def test_linear_and_convolution_draw_the_same_random_numbers():
    a, b = network(FeedForward, seed=3), network(ConvFeedForward, seed=3)
    for ours, theirs in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.equal(ours, theirs.view_as(ours))


def test_inside_torchs_encoder_layer():
    torch.manual_seed(0)
    theirs = nn.TransformerEncoderLayer(
        6, 2, 10, dropout=0.0, norm_first=True, batch_first=True, dtype=torch.float64
    )
    ours = network()
    ours.up_proj.load_state_dict(theirs.linear1.state_dict())
    ours.down_proj.load_state_dict(theirs.linear2.state_dict())
    with torch.no_grad():  # attention that adds nothing
        theirs.self_attn.out_proj.weight.zero_()
        theirs.self_attn.out_proj.bias.zero_()
    x = tokens(2, 5, 6)
    torch.testing.assert_close(theirs(x), x + ours(theirs.norm2(x)))


@pytest.mark.parametrize(("d_model", "d_ff"), [(6, 10), (8, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_swiglu_equals_llamas(d_model, d_ff, bias):
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = llama.LlamaConfig(
        hidden_size=d_model, intermediate_size=d_ff, num_attention_heads=2, mlp_bias=bias
    )
    theirs = llama.LlamaMLP(config).double()
    ours = network(d_model=d_model, d_ff=d_ff, activation="swiglu", bias=bias)
    for name in ("gate_proj", "up_proj", "down_proj"):
        getattr(theirs, name).load_state_dict(getattr(ours, name).state_dict())
    x = tokens(2, 5, d_model).requires_grad_()
    torch.testing.assert_close(ours(x), theirs(x))
    for name in ("gate_proj", "up_proj", "down_proj"):
        weights = [getattr(ours, name).weight, getattr(theirs, name).weight]
        (a,) = torch.autograd.grad(ours(x).square().sum(), weights[0])
        (b,) = torch.autograd.grad(theirs(x).square().sum(), weights[1])
        torch.testing.assert_close(a, b)


# --------------------------------------------------------------------------------------- the rest


def test_order_of_the_layers():
    def names(activation):
        return [name for name, _ in network(activation=activation).named_parameters()]

    two = ["up_proj.weight", "up_proj.bias", "down_proj.weight", "down_proj.bias"]
    assert names("relu") == two
    assert names("swiglu") == [*two[:2], "gate_proj.weight", "gate_proj.bias", *two[2:]]


@each_layer
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients(layer, activation):
    module = network(layer, 3, 4, activation=activation)
    assert torch.autograd.gradcheck(module, tokens(2, 3, 3).requires_grad_())


@each_layer
def test_dropout_acts_on_the_wide_numbers_and_in_training_only(layer):
    module = network(layer, 3, 400, dropout=0.25)
    x = tokens(2, 4, 3)
    torch.manual_seed(1)
    first, second = module(x), module(x)
    assert not torch.equal(first, second)
    module.eval()
    assert torch.equal(module(x), module(x))
    module.train()
    mean = torch.stack([module(x) for _ in range(400)]).mean(0)
    torch.testing.assert_close(mean, module.eval()(x), atol=0.03, rtol=0)
    seen = []
    module.down_proj.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    module.train()(x)
    wide = module.up_proj(x.reshape(-1, 3).T).T if layer is ConvFeedForward else module.up_proj(x)
    dropped = ((seen[0] == 0).sum() - (wide <= 0).sum()) / (wide > 0).sum()
    assert abs(dropped - 0.25) < 0.05


@each_layer
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtype_is_kept(layer, dtype):
    assert network(layer).to(dtype)(tokens(2, 3, 6).to(dtype)).dtype == dtype


@each_layer
@pytest.mark.parametrize("shape", [(0, 6), (0, 3, 6), (2, 0, 6), (2, 3, 0, 6), (6,), (2, 3, 4, 6)])
def test_any_batch_axes_and_empty_ones(layer, shape):
    assert network(layer)(torch.zeros(shape).double()).shape == shape


@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    d_ff=st.integers(1, 9),
    place=st.integers(0, 99),
    activation=st.sampled_from(list(ACTIVATIONS)),
)
@settings(max_examples=30)
def test_a_token_alone_is_a_token_in_company(shape, d_ff, place, activation):
    module = network(d_model=3, d_ff=d_ff, activation=activation)
    x = tokens(*shape, 3)
    place %= math.prod(shape)
    alone = module(x.reshape(-1, 3)[place])
    torch.testing.assert_close(module(x).reshape(-1, 3)[place], alone, atol=1e-12, rtol=0)


@pytest.mark.parametrize("d_ff", [6, 64, 2048, 16384])
def test_gated_width_matches_the_number_of_weights(d_ff):
    width = gated_width(d_ff)
    assert 3 * width <= 2 * d_ff < 3 * (width + 1)


def test_gated_widths_of_llama():
    assert gated_width(4 * 4096, multiple=256) == 11008  # 7B
    assert gated_width(4 * 5120, multiple=256) == 13824  # 13B
    assert gated_width(4 * 8192, multiple=256) == 22016  # 65B


def test_the_papers_number_of_parameters():
    assert sum(p.numel() for p in FeedForward(512, 2048).parameters()) == 2_099_712
    typo = sum(p.numel() for p in FeedForward(512, 2018).parameters())
    assert 2_099_712 - typo == 30_750


@pytest.mark.plain_types
@each_layer
@pytest.mark.parametrize(
    ("sizes", "options", "error", "words"),
    [
        ((0, 2), {}, ValueError, ["d_model", "at least 1"]),
        ((4, -1), {}, ValueError, ["d_ff", "at least 1"]),
        ((4.0, 2), {}, TypeError, ["d_model", "float", "an int"]),
        ((4, 2), {"activation": "tanh"}, ValueError, ["activation", "'tanh'", '"relu", "gelu"']),
        ((4, 2), {"activation": None}, TypeError, ["activation", "NoneType", "a string"]),
        ((4, 2), {"activation": ["relu"]}, TypeError, ["activation", "list", "a string"]),
        ((4, 2), {"bias": 1}, TypeError, ["bias", "True or False"]),
        ((4, 2), {"dropout": 1.0}, ValueError, ["dropout", "[0, 1)"]),
        ((4, 2), {"dropout": "0.1"}, TypeError, ["dropout", "a number"]),
    ],
)
def test_malformed_modules(layer, sizes, options, error, words):
    with pytest.raises(error) as caught:
        layer(*sizes, **options)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.plain_types
@each_layer
@pytest.mark.parametrize(
    ("x", "error", "words"),
    [
        ([[1.0]], TypeError, ["x", "list", "torch.Tensor"]),
        (torch.ones(3, 5), ValueError, ["x", "(3, 5)", "(*batch, 4)"]),
        (torch.ones(4, 3), ValueError, ["x", "(4, 3)", "(*batch, 4)"]),
        (torch.tensor(1.0), ValueError, ["x", "()", "at least 1 axis"]),
        (torch.ones(3, 4).long(), TypeError, ["x", "int64"]),
    ],
)
def test_malformed_calls(layer, x, error, words):
    with pytest.raises(error) as caught:
        layer(4, 2)(x)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: gated_width(1), ValueError, ["d_ff", "at least 2"]),
        (lambda: gated_width(8.0), TypeError, ["d_ff", "an int"]),
        (lambda: gated_width(8, multiple=0), ValueError, ["multiple", "at least 1"]),
        (lambda: ConvFeedForward.from_linear(nn.Linear(2, 2)), TypeError, ["theirs", "Linear"]),
    ],
)
def test_malformed_calls_of_the_others(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value
