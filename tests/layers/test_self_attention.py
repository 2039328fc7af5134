"""Self-attention: the function, the module, and the Spec that judges both."""

import numpy as np
import pytest
import torch
from torch import nn

from tested_transformer import SelfAttention, attention, judge, reference, self_attention
from tested_transformer.specs.self_attention.mutants import SelfFormula
from tested_transformer.specs.self_attention.spec import SELF_ATTENTION

NO_MODULE = {"queries and keys start apart": "is no module class"}


def tensors(*shapes, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator, dtype=dtype) for shape in shapes]


@pytest.mark.parametrize(
    ("right", "skipped"),
    [(self_attention, NO_MODULE), (SelfFormula(), NO_MODULE), (SelfAttention, {})],
    ids=["function", "the mutants' base", "module"],
)
def test_right_implementations_pass(right, skipped):
    verdict = judge(SELF_ATTENTION, right)
    assert verdict.passed, verdict
    assert dict(verdict.skipped) == skipped


def test_a_module_without_the_named_layers_is_told_so():
    class Other(nn.Module):
        def __init__(self, d_in, d_out, d_value=None):
            super().__init__()
            self.query = nn.Linear(d_in, d_out, bias=False)

        def forward(self, x):
            return self.query(x)

    verdict = judge(SELF_ATTENTION, Other)
    assert not verdict.passed
    assert "an nn.Linear named `key`" in verdict.problem.got


def test_against_the_loops():
    x, w_query, w_key, w_value = tensors((4, 5), (5, 3), (5, 3), (5, 2))
    expected = reference.self_attention(*(t.numpy() for t in (x, w_query, w_key, w_value)))
    np.testing.assert_allclose(self_attention(x, w_query, w_key, w_value), expected, atol=1e-12)


def test_against_torchs_multi_head_attention_with_one_head():
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(6, 1, bias=False, batch_first=True, dtype=torch.float64)
    w_query, w_key, w_value = (w.T for w in theirs.in_proj_weight.detach().chunk(3))
    (x,) = tensors((2, 5, 6))
    expected, expected_weights = theirs(x, x, x)
    output, weights = self_attention(x, w_query, w_key, w_value, return_weights=True)
    torch.testing.assert_close(output @ theirs.out_proj.weight.T, expected)
    torch.testing.assert_close(weights, expected_weights)


def test_options_reach_attention():
    x, w_query, w_key, w_value = tensors((2, 6, 5), (5, 3), (5, 3), (5, 4))
    options = {"causal": True, "window": 3, "key_lengths": torch.tensor([6, 4]), "scale": 0.7}
    expected = attention(x @ w_query, x @ w_key, x @ w_value, **options)
    torch.testing.assert_close(self_attention(x, w_query, w_key, w_value, **options), expected)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"mask": torch.eye(6).bool()}])
def test_module_equals_function(options):
    torch.manual_seed(1)
    layer = SelfAttention(5, 3, d_value=4).double()
    (x,) = tensors((2, 6, 5))
    weights = [getattr(layer, name).weight.T for name in ("query", "key", "value")]
    torch.testing.assert_close(layer(x, **options), self_attention(x, *weights, **options))


def test_module_with_bias():
    layer = SelfAttention(5, 3, bias=True).double()
    (x,) = tensors((6, 5))
    expected = attention(layer.query(x), layer.key(x), layer.value(x))
    torch.testing.assert_close(layer(x), expected)


def test_order_of_the_layers_is_the_order_of_the_random_numbers():
    torch.manual_seed(5)
    expected = [nn.Linear(3, 2, bias=False).weight for _ in range(3)]
    torch.manual_seed(5)
    layer = SelfAttention(3, 2)
    assert [name for name, _ in layer.named_parameters()] == [
        "query.weight",
        "key.weight",
        "value.weight",
    ]
    for parameter, weight in zip(layer.parameters(), expected, strict=True):
        assert torch.equal(parameter, weight)


def test_dropout_acts_in_training_only():
    torch.manual_seed(0)
    layer = SelfAttention(4, 4, dropout=0.5)
    x = torch.randn(8, 4)
    output, weights = layer(x, return_weights=True)
    assert (weights == 0).any()
    torch.testing.assert_close(output, weights @ layer.value(x))
    weights = layer.eval()(x, return_weights=True)[1]
    torch.testing.assert_close(weights.sum(-1), torch.ones(8))


def test_gradients():
    inputs = [t.requires_grad_() for t in tensors((2, 3, 4), (4, 2), (4, 2), (4, 3))]
    assert torch.autograd.gradcheck(self_attention, inputs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtype_is_kept(dtype):
    x, w_query, w_key, w_value = tensors((3, 4), (4, 2), (4, 2), (4, 5), dtype=dtype)
    assert self_attention(x, w_query, w_key, w_value).dtype == dtype
    assert SelfAttention(4, 2).to(dtype)(x).dtype == dtype


@pytest.mark.parametrize("shape", [(0, 4), (0, 3, 4), (2, 0, 4)])
def test_empty_axes(shape):
    matrices = tensors((4, 2), (4, 2), (4, 5))
    assert self_attention(torch.zeros(shape).double(), *matrices).shape == (*shape[:-1], 5)


X, W = torch.ones(3, 4), torch.ones(4, 2)


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (([[1.0]], W, W, W), TypeError, ["x", "list", "torch.Tensor"]),
        ((X.int(), W, W, W), TypeError, ["x", "int32", "floating point"]),
        ((torch.ones(4), W, W, W), ValueError, ["x", "(4,)", "at least 2 axes"]),
        ((X, W.tolist(), W, W), TypeError, ["w_query", "list", "torch.Tensor"]),
        ((X, W, torch.ones(4), W), ValueError, ["w_key", "(4,)", "2 axes"]),
        ((X, W, W, torch.ones(2, 4)), ValueError, ["w_value", "(2, 4)", "(4, dv) as in x"]),
        ((X, W.double(), W, W), TypeError, ["w_query", "float64", "float32"]),
        ((X, W, torch.ones(4, 3), W), ValueError, ["w_key", "(4, 3)", "(4, 2)"]),
        (
            (X, torch.ones(4, 0), torch.ones(4, 0), W),
            ValueError,
            ["w_query", "(4, 0)", "d of at least 1"],
        ),
    ],
)
def test_malformed_calls_of_the_function(arguments, error, words):
    with pytest.raises(error) as caught:
        self_attention(*arguments)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("sizes", "options", "error", "words"),
    [
        ((0, 2), {}, ValueError, ["d_in", "at least 1"]),
        ((4, -1), {}, ValueError, ["d_out", "at least 1"]),
        ((4.0, 2), {}, TypeError, ["d_in", "float", "an int"]),
        ((4, 2), {"d_value": 0}, ValueError, ["d_value", "at least 1"]),
        ((4, 2), {"bias": 1}, TypeError, ["bias", "True or False"]),
        ((4, 2), {"dropout": 1.0}, ValueError, ["dropout", "[0, 1)"]),
        ((4, 2), {"dropout": "0.1"}, TypeError, ["dropout", "a number"]),
    ],
)
def test_malformed_modules(sizes, options, error, words):
    with pytest.raises(error) as caught:
        SelfAttention(*sizes, **options)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("x", "error", "words"),
    [
        (torch.ones(3, 5), ValueError, ["x", "(3, 5)", "(*batch, L, 4)"]),
        (torch.ones(4), ValueError, ["x", "at least 2 axes"]),
        (torch.ones(3, 4).long(), TypeError, ["x", "int64"]),
    ],
)
def test_malformed_calls_of_the_module(x, error, words):
    with pytest.raises(error) as caught:
        SelfAttention(4, 2)(x)
    assert all(word in str(caught.value) for word in words), caught.value
