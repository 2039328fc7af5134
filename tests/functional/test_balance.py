"""Balance among experts: transformers' auxiliary loss, its two ends, a bias that balances, dropped tokens."""

import math

import pytest
import torch

from hf_copies import loaded
from same_numbers import shake
from tested_transformer.functional.balance import (
    balance_bias_step,
    balance_loss,
    expert_counts,
    router_z_loss,
    within_capacity,
)
from tested_transformer.functional.routing import sigmoid_routing
from tested_transformer.layers.moe import (
    ExpertsConfig,
    MixtureOfExperts,
    mix_experts,
    record_router_logits,
)

EPS = torch.finfo(torch.float32).eps
MASK = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]], dtype=torch.bool)


def logits_of(*shape, seed=0):
    return 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("chosen", [1, 2, 4])
@pytest.mark.parametrize("masked", [False, True])
def test_equal_to_transformers(seed, chosen, masked):
    """Three layers in one list there, one more axis here; values and gradients."""
    modeling = pytest.importorskip("transformers.models.mixtral.modeling_mixtral")
    ours = logits_of(3, 2, 5, 6, seed=seed).requires_grad_()
    theirs = ours.detach().clone().requires_grad_()
    real = MASK.expand(3, 2, 5) if masked else None
    got = balance_loss(ours, chosen, real=real)
    layers = tuple(layer.flatten(0, 1) for layer in theirs)
    mask = MASK.long() if masked else None
    wanted = modeling.load_balancing_loss_func(layers, 6, chosen, mask)
    got.backward()
    wanted.backward()
    torch.testing.assert_close(got, wanted, rtol=2 * 30 * EPS, atol=0)  # sums of 30 tokens
    largest = float(theirs.grad.abs().max())
    assert largest > 0
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=2 * 30 * EPS * largest)


@pytest.mark.parametrize("masked", [False, True])
def test_the_auxiliary_loss_of_a_whole_mixtral(masked):
    hf = pytest.importorskip("transformers")
    sizes = {
        "vocab_size": 17, "hidden_size": 12, "intermediate_size": 8, "num_hidden_layers": 3,
        "num_attention_heads": 6, "num_key_value_heads": 3, "num_local_experts": 5,
        "experts_implementation": "eager",
    }  # fmt: skip
    theirs = shake(hf.MixtralForCausalLM(hf.MixtralConfig(**sizes)), 3).eval()
    ours, ids = loaded(theirs), torch.arange(10).view(2, 5)
    mask = MASK if masked else torch.ones_like(MASK)
    with record_router_logits(ours) as recorded, torch.no_grad():
        ours(ids, mask)
    assert len(recorded) == 3
    with torch.no_grad():
        wanted = theirs(ids, attention_mask=mask.long(), output_router_logits=True).aux_loss
    got = balance_loss(torch.stack(recorded), 2, real=mask.expand(3, 2, 5))
    torch.testing.assert_close(got, wanted)
    ours(ids)
    assert len(recorded) == 3  # outside the block nothing is recorded


@pytest.mark.parametrize(("experts", "chosen"), [(4, 1), (8, 2), (6, 3)])
def test_the_two_ends_of_the_loss(experts, chosen):
    """k where every expert is chosen equally often; N, whatever k is, where all agree on one expert."""
    turns = torch.eye(experts, dtype=torch.float64)
    balanced = 9 * sum(turns.roll(shift, 1) * (1 - 0.01 * shift) for shift in range(chosen))
    assert float(balance_loss(balanced, chosen)) == pytest.approx(chosen, abs=1e-12)
    assert expert_counts(balanced.topk(chosen).indices, experts).tolist() == [chosen] * experts
    collapsed = torch.zeros(7, experts, dtype=torch.float64)
    collapsed[:, 2] = 60.0
    assert float(balance_loss(collapsed, chosen)) == pytest.approx(experts, abs=1e-12)


def test_a_gradient_step_on_the_loss_lowers_the_crowded_expert():
    logits = torch.tensor([[2.0, 0.0, 0.0, 0.0]]).repeat(5, 1).requires_grad_()
    balance_loss(logits, 1).backward()
    assert (logits.grad[:, 0] > 0).all()  # descent lowers it
    assert (logits.grad[:, 1:] < 0).all()


def test_the_bias_balances_a_router_that_collapsed():
    """Tokens that all prefer expert 0: after enough steps each expert has its share, to 2 of 64."""
    logits = logits_of(64, 4, seed=1).double()
    logits[:, 0] += 3.0
    bias = torch.zeros(4, dtype=torch.float64)
    first = expert_counts(sigmoid_routing(logits, bias, 1).experts, 4)
    assert first.max() > 50
    for _ in range(400):
        counts = expert_counts(sigmoid_routing(logits, bias, 1).experts, 4)
        bias = balance_bias_step(bias, counts, 0.005)
    assert (counts - 16).abs().max() <= 2


@torch.no_grad()
def test_a_dropped_token_gets_nothing_from_its_expert():
    layer = shake(
        MixtureOfExperts(6, ExpertsConfig(num_experts=3, num_chosen=2, d_expert=5, normalize=True)),
        2,
    )
    x = torch.randn(9, 6, generator=torch.Generator().manual_seed(4))
    routed = layer.route(x)
    kept = within_capacity(routed.experts, 4)
    assert 0 < int((~kept).sum()) < kept.numel()
    got = mix_experts(x, routed.experts, routed.weights * kept, layer.experts)
    for token in range(9):
        pairs = zip(routed.experts[token], routed.weights[token], kept[token], strict=True)
        parts = [w * layer.experts[int(e)](x[token]) for e, w, stays in pairs if stays]
        wanted = sum(parts, torch.zeros(6))
        torch.testing.assert_close(got[token], wanted)
    assert within_capacity(routed.experts, 9).all()  # room for all


def test_the_z_loss_pulls_the_log_sum_exp_to_zero():
    logits = torch.tensor([[3.0, 1.0], [-4.0, -5.0]], requires_grad=True)
    router_z_loss(logits).backward()
    assert (logits.grad[0] > 0).all()
    assert (logits.grad[1] < 0).all()
    assert math.isclose(float(router_z_loss(torch.zeros(2, 8))), math.log(8) ** 2, rel_tol=1e-6)


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: balance_loss(logits_of(3, 4), 5), ValueError, "num_chosen: expected at most 4"),
        (lambda: balance_loss(logits_of(3, 4), 0), ValueError, "num_chosen: expected at least 1"),
        (
            lambda: balance_loss(logits_of(3, 4), 1, real=torch.ones(4, dtype=torch.bool)),
            ValueError,
            "real: expected shape",
        ),
        (
            lambda: expert_counts(torch.full((3, 1), 4), 4),
            ValueError,
            "experts: expected at least 0 and a number below num_experts = 4",
        ),
        (lambda: router_z_loss(torch.ones(3, 2).long()), TypeError, "logits: expected a floating"),
        (
            lambda: balance_bias_step(torch.zeros(3), torch.ones(2).long(), 0.1),
            ValueError,
            "counts: expected shape",
        ),
        (
            lambda: balance_bias_step(torch.zeros(3), torch.ones(3).long(), 0.0),
            ValueError,
            "rate: expected",
        ),
        (
            lambda: within_capacity(torch.zeros(3, 2).long(), 0),
            ValueError,
            "capacity: expected at least 1",
        ),
        (
            lambda: within_capacity(torch.zeros(3, 2).long() - 1, 2),
            ValueError,
            "experts: expected at least 0",
        ),
    ],
)
def test_bad_input_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
