"""Kimi Delta Attention and OLMo Hybrid's gated DeltaNet: equal to transformers', cached = uncached, batch = single."""

import pytest
import torch
from transformers import DynamicCache, KimiLinearConfig, OlmoHybridConfig
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention
from transformers.models.olmo_hybrid.modeling_olmo_hybrid import OlmoHybridGatedDeltaNet

from same_numbers import assert_float32_same, in_dtype, shake
from tested_transformer.layers.gated_delta_net import GatedDeltaNet
from tested_transformer.layers.kimi_delta_attention import KimiDeltaAttention
from tested_transformer.layers.recurrent_state import RecurrentState

D, HEADS, D_HEAD = 12, 3, 4
X = torch.randn(2, 7, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
KIMI = KimiLinearConfig(
    hidden_size=D, linear_num_heads=HEADS, linear_head_dim=D_HEAD, linear_conv_kernel_dim=4,
    num_hidden_layers=2, layer_types=["linear_attention", "full_attention"], rms_norm_eps=1e-6,
)  # fmt: skip
OLMO = OlmoHybridConfig(
    hidden_size=D, linear_num_value_heads=HEADS, linear_num_key_heads=HEADS,
    linear_key_head_dim=D_HEAD, linear_value_head_dim=5, linear_allow_neg_eigval=True,
    num_hidden_layers=2, layer_types=["linear_attention", "full_attention"],
)  # fmt: skip

# Names of theirs in the words of ours; `conv` is (C, 1, w) there, and the rates of Kimi are (1, 1, H, 1).
SHARED = {
    "query.weight": "q_proj.weight", "key.weight": "k_proj.weight", "value.weight": "v_proj.weight",
    "beta.weight": "b_proj.weight", "output.weight": "o_proj.weight", "conv": "conv1d.weight",
    "norm_scale": "o_norm.weight",
}  # fmt: skip
NAMES = {
    "Kimi": SHARED | {
        "decay.0.weight": "forget_gate.f_a_proj.weight", "decay.1.weight": "forget_gate.f_b_proj.weight",
        "decay_bias": "forget_gate.dt_bias", "log_rate": "forget_gate.A_log",
        "gate.0.weight": "g_a_proj.weight", "gate.1.weight": "g_b_proj.weight",
    },
    "OLMo": SHARED | {
        "decay.weight": "a_proj.weight", "decay_bias": "dt_bias", "log_rate": "A_log",
        "gate.weight": "g_proj.weight",
    },
}  # fmt: skip
MAKE = {
    "Kimi": (
        lambda: KimiDeltaAttention(D, HEADS, D_HEAD, chunk_size=3),
        lambda: KimiLinearDeltaAttention(KIMI, 0),
        KIMI,
    ),
    "OLMo": (
        lambda: GatedDeltaNet(
            D, HEADS, d_key=D_HEAD, d_value=5, negative_eigenvalues=True, norm_eps=1e-5, chunk_size=3
        ),
        lambda: OlmoHybridGatedDeltaNet(OLMO, 0),
        OLMO,
    ),
}  # fmt: skip
EACH = pytest.mark.parametrize("kind", MAKE)


def layer(kind):
    torch.manual_seed(0)
    made = shake(MAKE[kind][0](), 1).double()
    with torch.no_grad():
        made.log_rate.sub_(1.5)  # slower forgetting, so that the state matters
    return made


def theirs_with_weights_of(kind, ours):
    theirs, weights = MAKE[kind][1]().double().eval(), dict(ours.named_parameters())
    assert weights.keys() == NAMES[kind].keys()
    parameters = dict(theirs.named_parameters())
    assert parameters.keys() == set(NAMES[kind].values())
    with torch.no_grad():
        for name, other in NAMES[kind].items():
            parameters[other].copy_(weights[name].view_as(parameters[other]))
    return theirs


def runs(module, names):
    """The output, and the gradients of the input and of all weights, in the order of ours."""

    def run(dtype):
        x, twin = X.to(dtype).detach().requires_grad_(), in_dtype(module, dtype)
        output = twin(x)
        output.square().sum().backward()
        weights = dict(twin.named_parameters())
        gradients = [weights[name].grad.squeeze() for name in names]
        return {"output": [output], "input": [x.grad], "weights": gradients}

    return run


@EACH
def test_outputs_and_gradients(kind):
    """Theirs computes in float32 whatever it is given."""
    ours = layer(kind)
    theirs = theirs_with_weights_of(kind, ours)
    names = NAMES[kind]
    assert_float32_same(runs(ours, names), runs(theirs, names.values()))


@torch.no_grad()
@EACH
@pytest.mark.parametrize("sizes", [[7], [5, 1, 1], [1] * 7, [3, 2, 2]])
def test_with_a_cache(kind, sizes):
    ours, states = layer(kind), RecurrentState()
    theirs, cache = theirs_with_weights_of(kind, ours), DynamicCache(config=MAKE[kind][2])
    for part in X.split(sizes, 1):
        expected = theirs(part, cache_params=cache)
        torch.testing.assert_close(ours(part, cache=states), expected, rtol=1e-4, atol=2e-5)
    expected = cache.layers[0].recurrent_states
    expected = expected[0] if isinstance(expected, (list, tuple, dict)) else expected
    torch.testing.assert_close(
        states.get("state"), expected.double(), rtol=1e-4, atol=2e-5
    )  # fmt: skip


@torch.no_grad()
@EACH
@pytest.mark.parametrize("sizes", [[1] * 7, [2, 2, 2, 1], [4, 3]])
def test_cached_is_uncached(kind, sizes):
    made, cache = layer(kind), RecurrentState()
    parts = [made(part, cache=cache) for part in X.split(sizes, 1)]
    torch.testing.assert_close(torch.cat(parts, 1), made(X))
    assert (cache.length, cache.batch) == (7, 2)


@torch.no_grad()
@EACH
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_sequence_is_the_sequence_alone(kind, side):
    made, real = layer(kind), torch.ones(2, 7, dtype=torch.bool)
    real[1, :3] = False
    real = real if side == "left" else real.flip(1)
    batched, alone = RecurrentState(), RecurrentState()
    found = made(X, real=real, cache=batched)[1, real[1]]
    torch.testing.assert_close(found, made(X[1:, real[1]], cache=alone)[0])
    more = X.flip(1)[:, :2]
    torch.testing.assert_close(made(more, cache=batched)[1:], made(more[1:], cache=alone))


def test_decays_differ_by_channel_and_beta_goes_up_to_two():
    """What each of the two adds to a gated DeltaNet."""
    log_decay = layer("Kimi")._log_decay(X).detach()
    assert log_decay.shape == (2, HEADS, 7, D_HEAD)
    assert float(log_decay.std(-1).min()) > 0.0
    beta = layer("OLMo")._beta(50 * X).detach()
    assert float(beta.max()) > 1.5


@EACH
def test_every_parameter_has_a_gradient(kind):
    made = layer(kind)
    made(X).square().sum().backward()
    for name, weight in made.named_parameters():
        assert bool((weight.grad != 0).any()), name


@pytest.mark.plain_types
def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="d_head: expected"):
        KimiDeltaAttention(12, 2, 0)
    with pytest.raises(ValueError, match="x: expected"):
        layer("Kimi")(X[..., :5])
    with pytest.raises(TypeError, match="negative_eigenvalues: expected"):
        GatedDeltaNet(12, 2, d_key=3, d_value=5, negative_eigenvalues=1.5)
