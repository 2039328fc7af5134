"""Norms and residual connections: against the loops, against torch, and what they refuse."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from tested_transformer import (
    BatchNorm,
    FeedForward,
    LayerNorm,
    MultiHeadAttention,
    ResiDual,
    Residual,
    RMSNorm,
    batch_norm,
    deepnorm_constants,
    deepnorm_init,
    judge,
    layer_norm,
    reference,
    rms_norm,
)
from tested_transformer.layers.resi_dual import ResiDualStack
from tested_transformer.layers.residual import NORM_PLACEMENTS
from tested_transformer.models.convert_torch import attention_from_torch
from tested_transformer.specs.block.mutants import Wiring
from tested_transformer.specs.block.spec import BLOCK, with_residual
from tested_transformer.specs.norms.spec import LAYER_NORM, RMS_NORM

SHAPES = [(5,), (3, 4), (2, 3, 7), (2, 3, 4, 6)]


class PlainLayerNorm(LayerNorm):
    def __init__(self, d_model, **options):
        super().__init__(d_model, backend="plain", **options)


class PlainRMSNorm(RMSNorm):
    def __init__(self, d_model, **options):
        super().__init__(d_model, backend="plain", **options)


def tensors(*shapes, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator, dtype=dtype) for shape in shapes]


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("spec", "right"),
    [
        (LAYER_NORM, layer_norm), (LAYER_NORM, LayerNorm), (LAYER_NORM, PlainLayerNorm),
        (LAYER_NORM, nn.LayerNorm), (RMS_NORM, rms_norm), (RMS_NORM, RMSNorm),
        (RMS_NORM, PlainRMSNorm), (RMS_NORM, nn.RMSNorm), (BLOCK, with_residual), (BLOCK, Wiring()),
    ],
    ids=lambda given: getattr(given, "name", getattr(given, "__name__", "steps")),
)  # fmt: skip
def test_right_implementations_pass(spec, right, seed):
    verdict = judge(spec, right, seed=seed)
    assert verdict.passed, verdict
    assert not verdict.skipped


def test_a_module_without_a_scale_of_its_own_is_told_so():
    class MadeInForward(nn.Module):
        def __init__(self, d_model, eps=1e-5):
            super().__init__()

        def forward(self, x):
            return nn.LayerNorm(x.size()[1:])(x)

    verdict = judge(LAYER_NORM, MadeInForward)
    assert not verdict.passed
    assert "an nn.Parameter named `weight`" in verdict.problem.got


# --- Against torch --------------------------------------------------------------------------------


def answer_and_gradients(function, x, parameters, seed=9):
    """The answer, and the gradients of a random weighting of it by x and by the parameters."""
    x = x.detach().clone().requires_grad_()
    answer = function(x)
    (direction,) = tensors(answer.shape, dtype=answer.dtype, seed=seed)
    return answer, torch.autograd.grad((answer * direction).sum(), [x, *parameters])


def pairs():
    """Ours and torch's, with the same random scale and shift."""
    for shape in SHAPES:
        d = shape[-1]
        weight, bias = tensors((d,), (d,), seed=d)
        ours = [LayerNorm(d, eps=1e-3), LayerNorm(d, eps=1e-3, backend="plain"), RMSNorm(d)]
        ours += [RMSNorm(d, backend="plain"), LayerNorm(d, bias=False, backend="plain")]
        theirs = [nn.LayerNorm(d, eps=1e-3)] * 2 + [nn.RMSNorm(d, eps=1e-6)] * 2
        theirs += [nn.LayerNorm(d, bias=False)]
        for mine, other in zip(ours, map(copy.deepcopy, theirs), strict=True):
            state = {"weight": weight} | (
                {"bias": bias} if mine.state_dict().get("bias") is not None else {}
            )
            mine.double().load_state_dict(state)
            other.double().load_state_dict(state)
            yield pytest.param(shape, mine, other, id=f"{type(mine).__name__} {shape}")


@pytest.mark.parametrize(("shape", "ours", "theirs"), list(pairs()))
def test_equals_torch_and_so_do_the_gradients(shape, ours, theirs):
    (x,) = tensors(shape, seed=3)
    mine = answer_and_gradients(ours, x, list(ours.parameters()))
    other = answer_and_gradients(theirs, x, list(theirs.parameters()))
    torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    x, weight, bias = tensors((4, 64), (64,), (64,), dtype=dtype)
    x = x * 300
    wide = layer_norm(x.float(), weight.float(), bias.float()).to(dtype)
    assert torch.equal(layer_norm(x, weight, bias), wide)
    assert torch.equal(rms_norm(x, weight), rms_norm(x.float(), weight.float()).to(dtype))
    assert batch_norm(x, weight, bias).dtype == dtype


@pytest.mark.parametrize("shape", [(6, 5), (4, 3, 5), (2, 3, 4, 5)])
def test_batch_norm_equals_torch_in_training_and_evaluation(shape):
    torch.manual_seed(0)
    ours, theirs = BatchNorm(5).double(), nn.BatchNorm1d(5).double()
    weight, bias = tensors((5,), (5,))
    for norm in (ours, theirs):
        norm.load_state_dict({"weight": weight, "bias": bias}, strict=False)
    for step in range(4):
        (x,) = tensors(shape, seed=step)
        x = x * (step + 1) + step
        flat = x.flatten(0, -2)
        mine = answer_and_gradients(lambda x: ours(x.view(shape)), flat, list(ours.parameters()))
        other = answer_and_gradients(
            lambda x: theirs(x).view(shape), flat, list(theirs.parameters())
        )
        torch.testing.assert_close(mine, other)
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
    ours.eval(), theirs.eval()
    torch.testing.assert_close(ours(x), theirs(x.flatten(0, -2)).view(shape))


def test_batch_norm_takes_torchs_weights():
    theirs = nn.BatchNorm1d(4)
    theirs(torch.randn(7, 4))
    ours = BatchNorm(4)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(3, 4)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))


def test_batch_norm_against_the_loops():
    x, weight, bias = tensors((2, 3, 4), (4,), (4,))
    expected = reference.batch_norm(x.numpy(), weight.numpy(), bias.numpy())
    np.testing.assert_allclose(batch_norm(x, weight, bias), expected, atol=1e-12)


def test_batch_norm_with_given_statistics_is_a_function_of_the_token_alone():
    x, mean, variance = tensors((4, 3), (3,), (3,))
    variance = variance.square()
    together = batch_norm(x, mean=mean, variance=variance)
    alone = torch.stack([batch_norm(token, mean=mean, variance=variance) for token in x])
    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("momentum", [0.5, 1.0])
def test_batch_norm_momentum(momentum):
    ours, theirs = BatchNorm(3, momentum=momentum), nn.BatchNorm1d(3, momentum=momentum)
    for seed in range(3):
        (x,) = tensors((5, 3), dtype=torch.float32, seed=seed)
        ours(x), theirs(x)
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)


def test_layer_norm_does_not_see_its_neighbors_and_batch_norm_does():
    (x,) = tensors((2, 3, 4))
    jacobian = torch.autograd.functional.jacobian
    for norm, blind in ((layer_norm, True), (rms_norm, True), (batch_norm, False)):
        first = jacobian(lambda t, norm=norm: norm(t)[0, 0].square().sum(), x)
        assert (first[0, 1:].abs().max() < 1e-12) == blind
        assert (first[1].abs().max() < 1e-12) == blind


# --- Residual -------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_residual_around_torchs_sublayers_is_torchs_layer(norm_first, dropout):
    """Their attention and linear maps, our norm_placement; with dropout the same random numbers too."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        8, 2, 16, dropout=dropout, batch_first=True, norm_first=norm_first, dtype=torch.float64
    )
    with torch.no_grad():
        for norm in (layer.norm1, layer.norm2):
            norm.weight.uniform_(0.5, 1.5), norm.bias.normal_()
    norm_placement = "pre" if norm_first else "post"
    first = Residual(layer.norm1, norm_placement=norm_placement, dropout=dropout)
    second = Residual(layer.norm2, norm_placement=norm_placement, dropout=dropout)

    def ours(x):
        x = first(x, lambda y: layer.self_attn(y, y, y, need_weights=False)[0])
        inner = lambda y: layer.linear2(layer.dropout(layer.linear1(y).relu()))  # noqa: E731
        return second(x, inner)

    (x,) = tensors((3, 5, 8))
    found = []
    for function in (ours, layer):
        torch.manual_seed(7)
        found.append(answer_and_gradients(function, x, list(layer.parameters())))
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
def test_our_sublayers_with_torchs_weights_are_torchs_layer(norm_first):
    torch.manual_seed(0)
    theirs = nn.TransformerEncoderLayer(
        8, 2, 16, dropout=0.0, batch_first=True, norm_first=norm_first, dtype=torch.float64
    )
    attention = attention_from_torch(theirs.self_attn)
    network = FeedForward(8, 16).double()
    network.up_proj.load_state_dict(theirs.linear1.state_dict())
    network.down_proj.load_state_dict(theirs.linear2.state_dict())
    (x,) = tensors((3, 5, 8))
    expected, norm_placement = theirs(x), "pre" if norm_first else "post"
    for sublayer, norm in ((attention, theirs.norm1), (network, theirs.norm2)):
        own = LayerNorm(8).double()
        own.load_state_dict(norm.state_dict())
        x = Residual(own, norm_placement=norm_placement)(x, sublayer)
    torch.testing.assert_close(x, expected)


ONE_STREAM = NORM_PLACEMENTS[:3]


@pytest.mark.parametrize("norm_placement", ONE_STREAM)
def test_residual_in_one_line_each(norm_placement):
    x, w = tensors((3, 4), (4, 4))
    norm = LayerNorm(4).double()
    alpha = 2.0 if norm_placement == "deepnorm" else 1.0
    residual = Residual(norm, norm_placement=norm_placement, alpha=alpha)
    expected = {
        "post": norm(x + x @ w),
        "pre": x + norm(x) @ w,
        "deepnorm": norm(2 * x + x @ w),
    }[norm_placement]
    torch.testing.assert_close(residual(x, lambda y: y @ w), expected)
    halves = residual.add(x, residual.inputs(x) @ w)
    assert torch.equal(halves, residual(x, lambda y: y @ w))


def test_resi_dual_in_one_line():
    x, total, w = tensors((3, 4), (3, 4), (4, 4))
    norm = LayerNorm(4).double()
    streams = ResiDual(norm)(torch.cat([x, total], dim=-1), lambda y: y @ w)
    torch.testing.assert_close(streams, torch.cat([norm(x + x @ w), total + x @ w], dim=-1))


@pytest.mark.parametrize("norm_placement", ONE_STREAM)
def test_dropout_acts_on_what_was_found_while_training_only(norm_placement):
    torch.manual_seed(0)
    residual = Residual(nn.Identity(), norm_placement=norm_placement, dropout=0.5)
    x = torch.zeros(1000)
    assert set(residual(x, lambda y: y + 1).tolist()) == {0.0, 2.0}
    assert (residual(x + 3, lambda y: 0 * y) == 3).all()
    assert (residual.eval()(x, lambda y: y + 1) == 1).all()


def test_dropout_is_the_same_in_both_streams_of_resi_dual():
    torch.manual_seed(0)
    residual, x = ResiDual(nn.Identity(), dropout=0.5), torch.zeros(2000)
    found, total = residual(x, lambda y: y + 1).chunk(2)
    assert set(found.tolist()) == {0.0, 2.0}
    assert torch.equal(total, found)
    found, _ = residual(x + 3, lambda y: 0 * y).chunk(2)
    assert (found == 3).all()
    found, _ = residual.eval()(x, lambda y: y + 1).chunk(2)
    assert (found == 1).all()


@pytest.mark.parametrize("norm_placement", NORM_PLACEMENTS)
def test_wired_stack_against_the_loops(norm_placement):
    x, w, gain = tensors((4, 5), (6, 5, 5), (7, 5))
    alpha = 1.7 if norm_placement == "deepnorm" else 1.0
    expected = reference.residual_stack(x.numpy(), w.numpy(), gain.numpy(), norm_placement, alpha)
    found = with_residual(x, w, gain, norm_placement, alpha=alpha).detach()
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_pre_norm_leaves_a_way_on_which_the_gradient_is_one():
    """d out / d x = 1 + (something small) for pre; for post every norm is in the way."""
    x = torch.randn(1, 6, dtype=torch.float64, requires_grad=True)
    quiet = lambda y: 1e-6 * y  # noqa: E731
    for norm_placement, far in (("pre", 1e-4), ("post", None)):
        y = x * 10
        for _ in range(12):
            y = Residual(LayerNorm(6).double(), norm_placement=norm_placement)(y, quiet)
        jacobian = torch.stack([torch.autograd.grad(n, x, retain_graph=True)[0][0] for n in y[0]])
        distance = (jacobian - 10 * torch.eye(6)).abs().max()
        assert (distance < far) if far else (distance > 1)


# --- DeepNorm -------------------------------------------------------------------------------------


def test_deepnorm_constants_are_the_papers_table():
    """Wang et al. 2022, figure 2, worked out with a pocket calculator for N = 18 and M = 6."""
    (alpha, beta), nothing = deepnorm_constants(18)
    assert nothing is None
    assert math.isclose(alpha, 2.4495, abs_tol=1e-4)  # 36^(1/4)
    assert math.isclose(beta, 0.2887, abs_tol=1e-4)  # 144^(-1/4)
    nothing, (alpha, beta) = deepnorm_constants(0, 6)
    assert nothing is None
    assert math.isclose(alpha, 1.8612, abs_tol=1e-4)  # 12^(1/4)
    assert math.isclose(beta, 0.3799, abs_tol=1e-4)  # 48^(-1/4)
    (alpha, beta), (decoder_alpha, decoder_beta) = deepnorm_constants(18, 6)
    assert math.isclose(alpha, 1.8661, abs_tol=1e-4)  # 0.81 (18^4 6)^(1/16)
    assert math.isclose(beta, 0.3776, abs_tol=1e-4)  # 0.87 (18^4 6)^(-1/16)
    assert math.isclose(decoder_alpha, 2.0598, abs_tol=1e-4)  # 18^(1/4)
    assert math.isclose(decoder_beta, 0.3433, abs_tol=1e-4)  # 72^(-1/4)


def test_deepnorm_init_scales_what_carries_values_and_not_what_scores():
    torch.manual_seed(0)
    layers = nn.ModuleDict({"attend": MultiHeadAttention(64, 4), "think": FeedForward(64, 256)})
    deepnorm_init(layers, 0.25)
    for name, gain in (("query", 1), ("key", 1), ("value", 0.25), ("output", 0.25)):
        layer = getattr(layers["attend"], name)
        assert math.isclose(layer.weight.detach().std(), gain * (2 / 128) ** 0.5, rel_tol=0.05)
        assert not layer.bias.any()
    for name in ("up_proj", "down_proj"):
        weight = getattr(layers["think"], name).weight.detach()
        assert math.isclose(weight.std(), 0.25 * (2 / 320) ** 0.5, rel_tol=0.05)


# --- Edges and complaints -------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(0, 4), (2, 0, 4)])
def test_no_tokens(shape):
    x = torch.zeros(shape)
    for norm in (layer_norm, rms_norm, LayerNorm(4), RMSNorm(4), BatchNorm(4).eval()):
        assert norm(x).shape == shape


X, W = torch.ones(3, 4), torch.ones(4)


@pytest.mark.plain_types
@pytest.mark.parametrize("function", [layer_norm, rms_norm, batch_norm])
@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        (([1.0],), {}, TypeError, ["x", "list", "torch.Tensor"]),
        ((X.int(),), {}, TypeError, ["x", "int32", "floating point"]),
        ((torch.tensor(1.0),), {}, ValueError, ["x", "()", "at least 1 axis (*batch, D)"]),
        ((torch.ones(3, 0),), {}, ValueError, ["x", "(3, 0)", "at least 1"]),
        ((X, W[:3]), {}, ValueError, ["weight", "(3,)", "(4,)"]),
        ((X, W[None]), {}, ValueError, ["weight", "(1, 4)"]),
        ((X, 1.0), {}, TypeError, ["weight", "float"]),
        ((X,), {"eps": 0}, ValueError, ["eps", "above 0"]),
        ((X,), {"eps": "1e-5"}, TypeError, ["eps", "a number"]),
    ],
)
def test_malformed_calls(function, arguments, options, error, words):
    with pytest.raises(error) as caught:
        function(*arguments, **options)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: LayerNorm(0), ValueError, ["d_model", "at least 1"]),
        (lambda: RMSNorm(4.0), TypeError, ["d_model", "float"]),
        (lambda: LayerNorm(4, bias=1), TypeError, ["bias", "True or False"]),
        (lambda: RMSNorm(4, eps=-1), ValueError, ["eps", "above 0"]),
        (lambda: LayerNorm(4, backend="fast"), ValueError, ["backend", "fast", "plain"]),
        (lambda: BatchNorm(4, momentum=1.5), ValueError, ["momentum", "at most 1"]),
        (lambda: BatchNorm(4, momentum=0), ValueError, ["momentum", "above 0"]),
        (lambda: BatchNorm(4)(torch.ones(1, 4)), ValueError, ["x", "1 tokens", "at least 2"]),
        (lambda: LayerNorm(4)(torch.ones(3, 5)), ValueError, ["x", "(3, 5)", "(*batch, 4)"]),
        (lambda: RMSNorm(4)(X.long()), TypeError, ["x", "int64"]),
        (lambda: batch_norm(X, mean=W), ValueError, ["variance", "None", "both"]),
        (lambda: batch_norm(X, variance=W), ValueError, ["mean", "None", "both"]),
        (lambda: batch_norm(X, mean=W, variance=W[:2]), ValueError, ["variance", "(2,)"]),
        (
            lambda: Residual(LayerNorm(4), norm_placement="both"),
            ValueError,
            ["norm_placement", "both", "resi_dual"],
        ),
        (lambda: Residual(LayerNorm(4), alpha=2.0), ValueError, ["alpha", "2.0", "deepnorm"]),
        (lambda: Residual(LayerNorm(4), norm_placement="deepnorm", alpha=0), ValueError, ["alpha"]),
        (lambda: Residual(LayerNorm(4), dropout=1.0), ValueError, ["dropout", "[0, 1)"]),
        (lambda: Residual("layer"), TypeError, ["norm", "str"]),
        (lambda: deepnorm_constants(), ValueError, ["num_encoder_layers", "a layer"]),
        (lambda: deepnorm_constants(-1, 2), ValueError, ["num_encoder_layers", "-1"]),
        (lambda: deepnorm_constants(2, 1.5), TypeError, ["num_decoder_layers", "float"]),
        (lambda: deepnorm_init(nn.Linear(2, 2), 0), ValueError, ["beta", "above 0"]),
    ],
)
def test_malformed_modules(make, error, words):
    with pytest.raises(error) as caught:
        make()
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.plain_types
def test_a_sublayer_that_would_broadcast_is_refused():
    for norm_placement in ONE_STREAM:
        with pytest.raises(ValueError, match=r"sublayer: .*\(3, 4\), got shape \(1, 4\)"):
            Residual(LayerNorm(4), norm_placement=norm_placement)(X, lambda y: y[:1])
    with pytest.raises(ValueError, match=r"sublayer: .*\(3, 4\), got shape \(1, 4\)"):
        ResiDual(LayerNorm(4))(torch.cat([X, X], dim=-1), lambda y: y[:1])


@pytest.mark.plain_types
def test_resi_dual_wants_two_streams_and_a_norm_at_the_end():
    residual = ResiDual(LayerNorm(4))
    with pytest.raises(ValueError, match=r"x: expected two streams.*got shape \(3, 5\)"):
        residual(torch.zeros(3, 5), torch.sin)
    with pytest.raises(ValueError, match=r"x: expected at least 1 axis .*got shape \(\)"):
        residual(torch.tensor(1.0), torch.sin)
    with pytest.raises(TypeError, match="norm"):
        ResiDualStack([])(X)
    with pytest.raises(ValueError, match="norm_placement: .*the class ResiDual"):
        Residual(LayerNorm(4), norm_placement="resi_dual")
