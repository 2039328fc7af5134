"""A mixture of experts: equal to transformers' of five families, and none of its tokens is lost."""

import pytest
import torch

from same_numbers import shake
from tested_transformer.functional.routing import (
    keep_best_groups,
    route,
    sigmoid_routing,
    softmax_routing,
)
from tested_transformer.layers.clamped_experts import ClampedExperts, clamped_swiglu
from tested_transformer.layers.moe import ExpertsConfig, MixtureOfExperts, mix_experts

EPS = torch.finfo(torch.float32).eps
X = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(1))
SIZES = {"num_experts": 6, "num_chosen": 3, "d_expert": 8}
GROUPS = {"num_groups": 3, "num_kept_groups": 2}


def mixture(seed=0, **options):
    """A layer of ours, every weight random, the bias of the choice of both signs."""
    ours = shake(MixtureOfExperts(12, ExpertsConfig(**SIZES | options)), seed)
    if ours.choice_bias is not None:
        ours.choice_bias.normal_(std=0.5, generator=torch.Generator().manual_seed(seed))
    return ours


def theirs_of(family, name, **options):
    """A layer of transformers, with its loop over experts."""
    modeling = pytest.importorskip(f"transformers.models.{family}.modeling_{family}")
    prefix = {"deepseek_v2": "DeepseekV2", "deepseek_v3": "DeepseekV3"}
    prefix |= {"mixtral": "Mixtral", "gpt_oss": "GptOss"}
    config = getattr(modeling, f"{prefix[family]}Config")
    sizes = {
        "hidden_size": 12, "num_attention_heads": 3, "num_experts_per_tok": 3,
        "experts_implementation": "eager",
    }  # fmt: skip
    return getattr(modeling, prefix[family] + name)(config(**sizes | options))


DEEPSEEK = {"n_routed_experts": 6, "moe_intermediate_size": 8, "n_shared_experts": 2}
GROUPED = {"n_group": 3, "topk_group": 2}
LIKE = {  # their layer, its options, ours
    "DeepSeek-V2": ("deepseek_v2", "Moe", DEEPSEEK, {"d_shared": 16}),
    "DeepSeek-V2 with groups": (
        "deepseek_v2",
        "Moe",
        DEEPSEEK | GROUPED | {"topk_method": "group_limited_greedy", "routed_scaling_factor": 16.0},
        {"d_shared": 16, "scale": 16.0} | GROUPS,
    ),
    "DeepSeek-V3": (
        "deepseek_v3",
        "MoE",
        DEEPSEEK | GROUPED,
        {"d_shared": 16, "scoring": "sigmoid", "normalize": True, "scale": 2.5} | GROUPS,
    ),
    "DeepSeek-V3, not normalized": (
        "deepseek_v3",
        "MoE",
        DEEPSEEK | GROUPED | {"norm_topk_prob": False, "n_shared_experts": 1},
        {"d_shared": 8, "scoring": "sigmoid", "scale": 2.5} | GROUPS,
    ),
    "Mixtral": (
        "mixtral",
        "SparseMoeBlock",
        {"num_local_experts": 6, "intermediate_size": 8},
        {"normalize": True},
    ),
}


def copied(theirs, ours):
    """Our weights in their layer."""
    experts = ours.experts
    stacked = [torch.cat((each.gate_proj.weight, each.up_proj.weight)) for each in experts]
    state = {
        "gate.weight": ours.router.weight,
        "experts.gate_up_proj": torch.stack(stacked),
        "experts.down_proj": torch.stack([each.down_proj.weight for each in experts]),
    }
    if ours.choice_bias is not None:
        state["gate.e_score_correction_bias"] = ours.choice_bias
    if ours.shared is not None:
        state |= {f"shared_experts.{name}": each for name, each in ours.shared.state_dict().items()}
    theirs.load_state_dict(state)
    return theirs


def assert_equal_layers(ours, theirs):
    """Outputs, gradients of the input and of the router: sums of fewer than 12 + 2 x 8 products of float32."""
    found = []
    for layer in (theirs, ours):
        x = X.clone().requires_grad_()
        output = layer(x)
        output = output[0] if isinstance(output, tuple) else output
        output.square().sum().backward()
        router = getattr(layer, "gate", None) or layer.router
        found.append((output.detach(), x.grad, router.weight.grad))
    for wanted, got, terms in zip(*found, (28, 56, 80), strict=True):
        largest = float(wanted.abs().max())
        assert largest > 0
        torch.testing.assert_close(got, wanted, rtol=0, atol=2 * terms * EPS * largest)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", LIKE)
def test_equal_to_transformers(name, seed):
    family, layer, options, own = LIKE[name]
    ours = mixture(seed, **own)
    assert_equal_layers(ours, copied(theirs_of(family, layer, **options), ours))


@pytest.mark.parametrize("seed", range(2))
def test_equal_to_transformers_gpt_oss(seed):
    """Biases everywhere, and numbers on both sides of the limit."""
    ours = shake(ClampedExperts(12, 6, 3, 8, limit=0.7), seed)
    options = {"num_local_experts": 6, "intermediate_size": 8, "swiglu_limit": 0.7}
    theirs = theirs_of("gpt_oss", "MLP", **options)
    names = {name: f"experts.{name}" for name, _ in ours.named_parameters(recurse=False)}
    names |= {"router.weight": "router.weight", "router.bias": "router.bias"}
    theirs.load_state_dict({names[name]: each for name, each in ours.state_dict().items()})
    assert_equal_layers(ours, theirs)


@pytest.mark.parametrize("scale", [1.0, 16.0])
def test_the_softmax_over_the_chosen_is_the_normalized_one(scale):
    logits = torch.randn(7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    routed = softmax_routing(logits, 3, normalize=True, scale=scale)
    chosen = scale * logits.gather(-1, routed.experts).softmax(-1)
    torch.testing.assert_close(routed.weights, chosen)


def test_a_single_expert_that_is_normalized_teaches_its_router_nothing():
    """Its weight is 1 whatever the logit: with one expert per token, do not normalize."""
    for normalize in (False, True):
        ours = mixture(num_chosen=1, normalize=normalize).double()
        ours(X.double()).square().sum().backward()
        largest = float(ours.router.weight.grad.abs().max())
        assert (largest < 1e-12) == normalize


def test_every_expert_that_a_token_chose_gets_a_gradient():
    ours = mixture(scoring="sigmoid")
    ours(X).square().sum().backward()
    chosen = set(ours.route(X).experts.flatten().tolist())
    assert 3 <= len(chosen) < 6  # or this test says nothing
    for number, expert in enumerate(ours.experts):
        assert all(bool(p.grad.any()) == (number in chosen) for p in expert.parameters())
    assert not ours.choice_bias.requires_grad


def test_the_bias_decides_who_and_nothing_else():
    ours = mixture(scoring="sigmoid", num_chosen=2)
    with torch.no_grad():
        ours.choice_bias.zero_()[[1, 4]] = 2.0
        experts, weights = ours.route(X)
        scores = ours.router(X).sigmoid()
    assert experts.sort(-1).values.unique(dim=-2).shape == (2, 1, 2)
    torch.testing.assert_close(weights, scores.gather(-1, experts))


@torch.no_grad()
def test_no_token_is_lost_and_none_knows_the_others():
    """All tokens choose the same experts: at most a capacity would stop them."""
    ours = mixture(scoring="sigmoid")
    ours.choice_bias.zero_()[:3] = 9.0
    together = ours(X)
    for batch, place in ((0, 0), (1, 4)):
        torch.testing.assert_close(ours(X[batch, place]), together[batch, place])
    assert ours(X[:, :0]).shape == (2, 0, 12)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_routed_in_float32(dtype):
    """Two of 256 logits that differ by less than an eps of the dtype: the larger one is chosen."""
    ours = MixtureOfExperts(2, ExpertsConfig(num_experts=256, num_chosen=1, d_expert=2)).to(dtype)
    eps = torch.finfo(dtype).eps
    ours.router.weight.zero_()[[7, 200]] = torch.tensor([[1.0, 0.0], [1.0, eps / 2]], dtype=dtype)
    experts, weights = ours.route(torch.ones(1, 2, dtype=dtype))
    assert experts.item() == 200
    assert weights.dtype == torch.float32


def test_route_is_both_routings_as_a_matrix():
    logits, bias = X[0], torch.linspace(-1, 1, 12)
    for options, routed in (
        ({"scoring": "sigmoid", "bias": bias}, sigmoid_routing(logits, bias, 4, normalize=False)),
        ({}, softmax_routing(logits, 4)),
    ):
        matrix = route(logits, 4, **options)
        assert ((matrix != 0).sum(-1) == 4).all()
        torch.testing.assert_close(matrix.gather(-1, routed.experts), routed.weights)
    plain = route(logits, 4, scoring="sigmoid")
    torch.testing.assert_close(plain, route(logits, 4, scoring="sigmoid", bias=torch.zeros(12)))


def test_sigmoids_that_are_all_zero_have_weights_of_zero():
    routed = sigmoid_routing(torch.full((1, 4), -200.0), torch.zeros(4), 2)
    assert torch.equal(routed.weights, torch.zeros(1, 2))


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: softmax_routing(X, 13), "num_chosen: expected at most 12, as many .*, got 13"),
        (lambda: softmax_routing(X, 0), "num_chosen: expected at least 1, got 0"),
        (
            lambda: softmax_routing(X, 7, num_groups=4, num_kept_groups=2),
            "num_chosen: expected at most 6, as many experts as the groups have that are kept, got 7",
        ),
        (lambda: keep_best_groups(X, 5, 1), "num_groups: expected a number that divides the 12"),
        (lambda: keep_best_groups(X, 3, 4), "num_kept_groups: expected at most 3, got 4"),
        (lambda: route(X, 2, bias=torch.zeros(12)), 'bias: expected None, with scoring="softmax"'),
        (lambda: sigmoid_routing(X, torch.zeros(7), 2), "bias: expected shape"),
        (lambda: ExpertsConfig(**SIZES | {"num_chosen": 7}), "num_chosen: expected at most 6"),
        (lambda: ExpertsConfig(**SIZES, d_shared=0), "d_shared: expected at least 1"),
        (lambda: ClampedExperts(12, 3, 4, 8), "num_chosen: expected at most 3"),
        (lambda: clamped_swiglu(X[..., :7]), "gate_up: expected an even number of features"),
        (lambda: mixture()(X[..., :7]), "x: expected"),
        (
            lambda: mix_experts(X[0], torch.zeros(5, 2).long() - 1, torch.ones(5, 2), []),
            "experts: expected at least 0, got -1",
        ),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
