"""Multi-head attention against torch's module, against loops and head by head; and its Spec."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from tested_transformer import (
    HeadByHead,
    KeyValueCache,
    MultiHeadAttention,
    SelfAttention,
    attention,
    causal_mask,
    concat_heads,
    judge,
    padding_mask,
    reference,
    split_heads,
)
from tested_transformer.models.convert_torch import (
    attention_from_torch,
    attention_to_torch,
    parts_of_torch,
)
from tested_transformer.specs.multi_head.mutants import HeadsFormula, Layers
from tested_transformer.specs.multi_head.spec import MULTI_HEAD

NO_D_MODEL = {"the layers start apart": "is no module class"}


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def pair(width, heads, *, dtype=torch.float64, seed=0, **options):
    """Torch's layer, its biases not zero, and ours with the same weights."""
    torch.manual_seed(seed)
    theirs = nn.MultiheadAttention(width, heads, batch_first=True, dtype=dtype, **options)
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.ndim == 1:
                parameter.normal_()
    return theirs, attention_from_torch(theirs)


def assert_within(got, exact, plain):
    """DESIGN.md's tolerance: twice the error of torch's module in this dtype, and some eps."""
    slack = 2 * (plain.double() - exact).abs().max()
    slack += 4 * torch.finfo(got.dtype).eps * exact.abs().max()
    assert (got.double() - exact).abs().max() <= slack


# --- The Spec ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("right", "skipped"),
    [(HeadsFormula(), NO_D_MODEL), (Layers, {}), (MultiHeadAttention, {})],
    ids=["the mutants' base", "a plain module", "the package's"],
)
def test_right_implementations_pass(right, skipped):
    verdict = judge(MULTI_HEAD, right)
    assert verdict.passed, verdict
    assert dict(verdict.skipped) == skipped


def test_a_function_of_four_lines_passes():
    def short(x, w_query, w_key, w_value, w_output, num_heads):
        query, key, value = (split_heads(x @ w, num_heads) for w in (w_query, w_key, w_value))
        return concat_heads(attention(query, key, value)) @ w_output

    verdict = judge(MULTI_HEAD, short)
    assert verdict.passed, verdict
    assert set(verdict.skipped) == {
        "the layers start apart", "the context answers", "the mask decides",
        "padding changes nothing", "the future stays hidden", "a fully masked row is zero",
    }  # fmt: skip


@pytest.mark.parametrize("heads", [2, 3, 4, 6])
def test_scrambled_heads_never_pass_whatever_their_number(heads):
    """By the shapes of other cases: no accident of sizes lets a wrong cut through."""
    x = torch.arange(2 * 5 * 12.0).view(2, 5, 12)
    assert not torch.equal(split_heads(x, heads), x.reshape(2, heads, 5, -1))
    assert torch.equal(split_heads(x, heads)[1, heads - 1, 3], x[1, 3, -12 // heads :])


# --- Splitting and joining -----------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 5, 12), (1, 1, 6), (3, 7, 18), (2, 0, 6), (0, 4, 6)])
def test_joining_undoes_splitting(shape):
    x = normal(*shape)
    for heads in (1, 2, 3, 6):
        split = split_heads(x, heads)
        assert split.shape == (shape[0], heads, shape[1], shape[2] // heads)
        assert torch.equal(concat_heads(split), x)


def test_split_by_loops():
    x, heads = normal(2, 4, 6), 3
    split = split_heads(x, heads)
    for b, h, i, j in np.ndindex(*split.shape):
        assert split[b, h, i, j] == x[b, i, h * 2 + j]


# --- Against torch's module ----------------------------------------------------------------------

SIZES = [(2, 5, 7, 12, 3), (3, 4, 6, 10, 5), (1, 6, 3, 8, 1), (2, 3, 5, 6, 6)]  # B L S D H


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 4, "vdim": 4}])
@pytest.mark.parametrize(("batch", "length", "keys", "width", "heads"), SIZES)
def test_equals_torchs_module(batch, length, keys, width, heads, options, dtype, seed):
    theirs, ours = pair(width, heads, dtype=dtype, seed=seed, **options)
    exact = attention_from_torch(theirs).double()
    x = normal(batch, length, width, seed=seed, dtype=dtype)
    context = normal(batch, keys, options.get("kdim", width), seed=seed + 9, dtype=dtype)
    plain, their_weights = theirs(x, context, context, average_attn_weights=False)
    output, weights = ours(x, context, return_weights=True)
    assert_within(output, exact(x.double(), context.double()), plain)
    assert_within(ours(x, context), exact(x.double(), context.double()), plain)
    torch.testing.assert_close(weights, their_weights)
    mean = theirs(x, context, context)[1]
    torch.testing.assert_close(weights.mean(1), mean)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_both_masks_of_both_polarities(seed):
    """attn_mask (L, S) or (B H, L, S) and key_padding_mask (B, S): True hides there, shows here."""
    theirs, ours = pair(12, 3, seed=seed)
    x = normal(4, 6, 12, seed=seed)
    lengths = torch.tensor([6, 2, 4, 5])
    real = padding_mask(lengths, 6)
    future = ~causal_mask(6)
    got = ours(x, mask=real, causal=True)
    wanted = theirs(x, x, x, attn_mask=future, key_padding_mask=~real[:, 0, 0])[0]
    torch.testing.assert_close(got, wanted)
    per_head = torch.rand(4, 3, 6, 6, generator=torch.Generator().manual_seed(seed)) < 0.6
    per_head |= torch.eye(6, dtype=torch.bool)
    wanted = theirs(x, x, x, attn_mask=~per_head.flatten(0, 1))[0]
    torch.testing.assert_close(ours(x, mask=per_head), wanted)
    additive = torch.zeros(6, 6, dtype=x.dtype).masked_fill(future, -math.inf)
    torch.testing.assert_close(ours(x, bias=additive), theirs(x, x, x, attn_mask=additive)[0])
    wrong = theirs(x, x, x, attn_mask=per_head.flatten(0, 1))[0]
    assert not torch.allclose(ours(x, mask=per_head), wrong, equal_nan=True)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_training_and_evaluation(training, need_weights):
    """With dropout 0 the two modes agree; torch takes a fused path in one of them."""
    theirs, ours = pair(8, 2)
    theirs, ours = theirs.train(training), ours.train(training)
    x = normal(3, 5, 8)
    with torch.no_grad():
        wanted = theirs(x, x, x, need_weights=need_weights)[0]
        torch.testing.assert_close(ours(x), wanted)


@pytest.mark.parametrize("context", [False, True])
def test_gradients_of_inputs_and_weights(context):
    theirs, ours = pair(6, 3)
    gradients = []
    for layer in (theirs, ours):
        x, other = normal(2, 4, 6).requires_grad_(), normal(2, 5, 6, seed=1).requires_grad_()
        source = other if context else x
        inputs = (x, source, source) if layer is theirs else (x, source)
        output = layer(*inputs)
        output = output[0] if layer is theirs else output
        (output * normal(2, 4, 6, seed=2)).sum().backward()
        gradients.append([x.grad, other.grad if context else x.grad])
    for wanted, got in zip(*gradients, strict=True):
        torch.testing.assert_close(got, wanted)
    d = 6
    wanted = [*theirs.in_proj_weight.grad.split(d), theirs.out_proj.weight.grad]
    wanted += [*theirs.in_proj_bias.grad.split(d), theirs.out_proj.bias.grad]
    layers = (ours.query, ours.key, ours.value, ours.output)
    got = [layer.weight.grad for layer in layers] + [layer.bias.grad for layer in layers]
    for theirs_grad, ours_grad in zip(wanted, got, strict=True):
        torch.testing.assert_close(ours_grad, theirs_grad)


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 4, "vdim": 4}])
def test_there_and_back(options):
    theirs, ours = pair(6, 2, dropout=0.25, **options)
    again = attention_to_torch(ours)
    assert again.dropout == 0.25
    assert again.batch_first
    for left, right in zip(*(parts_of_torch(layer) for layer in (theirs, again)), strict=True):
        for one, other in zip(left, right, strict=True):
            assert (one is None and other is None) or torch.equal(one, other)
    x, context = normal(2, 3, 6), normal(2, 4, options.get("kdim", 6))
    theirs, ours, again = theirs.eval(), ours.eval(), again.eval()
    torch.testing.assert_close(again(x, context, context)[0], theirs(x, context, context)[0])
    torch.testing.assert_close(ours(x, context), theirs(x, context, context)[0])
    assert attention_from_torch(again).state_dict().keys() == ours.state_dict().keys()


def test_a_copy_is_a_copy_and_keeps_the_mode():
    theirs, ours = pair(6, 2)
    before = ours(normal(2, 3, 6))
    with torch.no_grad():
        theirs.in_proj_weight.zero_()
    assert torch.equal(ours(normal(2, 3, 6)), before)
    assert not attention_from_torch(theirs.eval()).training
    assert not attention_to_torch(ours.eval()).training


def test_batch_second_is_turned():
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(6, 2, dtype=torch.float64)  # (L, B, D)
    x = normal(4, 3, 6)
    got = attention_from_torch(theirs)(x.transpose(0, 1)).transpose(0, 1)
    torch.testing.assert_close(got, theirs(x, x, x)[0])


# --- Head by head, groups, options ---------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("heads", "groups", "d_context"), [(1, 1, 12), (4, 4, 12), (6, 2, 5), (6, 3, 7), (3, 1, 12)]
)
def test_one_head_at_a_time(heads, groups, d_context, bias):
    torch.manual_seed(0)
    joined = MultiHeadAttention(12, heads, num_kv_heads=groups, d_context=d_context, bias=bias)
    joined = joined.double()
    apart = HeadByHead(joined)
    x, context = normal(2, 5, 12), normal(2, 7, d_context)
    torch.testing.assert_close(apart(x, context), joined(x, context))
    mask = torch.rand(2, 5, 7) < 0.6
    torch.testing.assert_close(apart(x, context, mask=mask), joined(x, context, mask=mask[:, None]))
    if d_context == 12:
        torch.testing.assert_close(apart(x, causal=True), joined(x, causal=True))
    if groups == heads:
        count = sum(p.numel() for p in apart.parameters())
        assert count == sum(p.numel() for p in joined.parameters())


def test_head_by_head_is_self_attention_of_chapter_1():
    torch.manual_seed(0)
    joined = MultiHeadAttention(6, 2, bias=False).double()
    apart, x = HeadByHead(joined), normal(2, 4, 6)
    small = SelfAttention(6, 3).double()
    small.load_state_dict(apart.heads[1].state_dict())
    assert torch.equal(small(x), apart.heads[1](x, x))


def test_grouped_heads_against_loops():
    torch.manual_seed(0)
    layer = MultiHeadAttention(12, 6, num_kv_heads=2, bias=False).double()
    x = normal(2, 4, 12)
    weights = [getattr(layer, n).weight.T.detach().numpy() for n in ("query", "key", "value")]
    output = layer.output.weight.T.detach().numpy()
    wanted = reference.multi_head(x.numpy(), *weights, output, 6, num_kv_heads=2)
    np.testing.assert_allclose(layer(x).detach().numpy(), wanted, atol=1e-12)


def test_dropout_acts_in_training_only():
    torch.manual_seed(0)
    layer = MultiHeadAttention(8, 2, dropout=0.5)
    x = normal(2, 9, 8, dtype=torch.float32)
    assert (layer(x, return_weights=True)[1] == 0).any()
    weights = layer.eval()(x, return_weights=True)[1]
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 9))


def test_a_row_that_may_see_nothing_gives_the_output_bias():
    layer = MultiHeadAttention(6, 2).double()
    output = layer(normal(2, 3, 6), mask=torch.zeros(3, 3, dtype=torch.bool))
    torch.testing.assert_close(output, layer.output.bias.expand(2, 3, 6))


def test_layers_are_made_in_order():
    torch.manual_seed(3)
    wanted = [nn.Linear(i, o).weight for i, o in ((6, 6), (5, 6), (5, 6), (6, 6))]
    torch.manual_seed(3)
    layer = MultiHeadAttention(6, 3, d_context=5)
    made = (layer.query, layer.key, layer.value, layer.output)
    for part, weight in zip(made, wanted, strict=True):
        assert torch.equal(part.weight, weight)


def test_parameters_of_the_formula():
    for width, heads in ((8, 1), (8, 4), (512, 8)):
        count = sum(p.numel() for p in MultiHeadAttention(width, heads).parameters())
        assert count == 4 * width**2 + 4 * width


@pytest.mark.parametrize("shape", [(0, 3, 6), (2, 0, 6)])
def test_empty_axes(shape):
    assert MultiHeadAttention(6, 2)(torch.zeros(shape)).shape == shape


def test_an_empty_context_gives_the_output_bias():
    layer = MultiHeadAttention(6, 2)
    output = layer(torch.ones(2, 3, 6), torch.zeros(2, 0, 6))
    torch.testing.assert_close(output, layer.output.bias.expand(2, 3, 6))


# --- Malformed calls -----------------------------------------------------------------------------

X = torch.ones(2, 3, 6)


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: MultiHeadAttention(6, 4), ValueError, ["num_heads", "4", "divides d_model = 6"]),
        (lambda: MultiHeadAttention(6, 0), ValueError, ["num_heads", "at least 1"]),
        (lambda: MultiHeadAttention(6.0, 2), TypeError, ["d_model", "float", "an int"]),
        (lambda: MultiHeadAttention(6, 2, num_kv_heads=4), ValueError, ["num_kv_heads", "4", "2"]),
        (lambda: MultiHeadAttention(6, 6, num_kv_heads=4), ValueError, ["num_kv_heads", "divides"]),
        (lambda: MultiHeadAttention(6, 2, d_context=0), ValueError, ["d_context", "at least 1"]),
        (lambda: MultiHeadAttention(6, 2, bias=1), TypeError, ["bias", "True or False"]),
        (lambda: MultiHeadAttention(6, 2, dropout=1.0), ValueError, ["dropout", "[0, 1)"]),
        (lambda: MultiHeadAttention(6, 2)(X[0]), ValueError, ["x", "(3, 6)", "3 axes"]),
        (lambda: MultiHeadAttention(6, 2)(X[..., :5]), ValueError, ["x", "(2, 3, 5)", "(B, L, 6)"]),
        (lambda: MultiHeadAttention(6, 2)(X.int()), TypeError, ["x", "int32"]),
        (lambda: MultiHeadAttention(6, 2)([1.0]), TypeError, ["x", "list"]),
        (
            lambda: MultiHeadAttention(6, 2)(X, X[..., :2]),
            ValueError,
            ["context", "(2, 3, 2)", "(2, S, 6)"],
        ),
        (
            lambda: MultiHeadAttention(6, 2)(X, X[:1]),
            ValueError,
            ["context", "(1, 3, 6)", "(2, S, 6)"],
        ),
        (lambda: MultiHeadAttention(6, 2)(X, mask=torch.ones(2, 3)), TypeError, ["mask", "bool"]),
        (lambda: MultiHeadAttention(6, 2)(X, mask=X[..., 0] > 0), ValueError, ["mask", "(2, 3)"]),
        (lambda: MultiHeadAttention(6, 2, backend="magic")(X), ValueError, ["backend", "magic"]),
        (lambda: split_heads(X, 4), ValueError, ["x", "(2, 3, 6)", "4 heads"]),
        (lambda: split_heads(X[0], 2), ValueError, ["x", "3 axes"]),
        (lambda: split_heads(X, 2.0), TypeError, ["num_heads", "float"]),
        (lambda: concat_heads(X), ValueError, ["x", "4 axes"]),
        (lambda: concat_heads(None), TypeError, ["x", "NoneType"]),
        (lambda: HeadByHead(nn.Linear(2, 2)), TypeError, ["joined", "Linear"]),
        (lambda: attention_from_torch(nn.Linear(2, 2)), TypeError, ["theirs", "Linear"]),
        (
            lambda: attention_to_torch(MultiHeadAttention(6, 2, num_kv_heads=1)),
            ValueError,
            ["num_kv_heads", "1", "2"],
        ),
    ],
)
def test_malformed(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.plain_types
@pytest.mark.parametrize(
    "options", [{"add_bias_kv": True}, {"add_zero_attn": True}, {"kdim": 3, "vdim": 4}]
)
def test_what_has_no_place_here_is_refused(options):
    with pytest.raises(ValueError, match="theirs"):
        attention_from_torch(nn.MultiheadAttention(6, 2, **options))


@pytest.mark.plain_types
def test_a_cache_refuses_what_would_lose_a_gradient():
    with pytest.raises(ValueError, match="no_grad"):
        MultiHeadAttention(6, 2)(X, cache=KeyValueCache())
