"""Long-short range attention: each branch equal to torch's own, no leak, no mixing of the branches."""

import pytest
import torch
from torch.nn import functional

from same_numbers import shake
from tested_transformer.layers.long_short_attention import ConvolutionBranch, LongShortAttention
from tested_transformer.layers.multi_head import MultiHeadAttention
from tested_transformer.mixers.dynamic_convolution import dynamic_convolution
from tested_transformer.specs.dynamic_convolution.spec import DYNAMIC_CONVOLUTION
from tested_transformer.specs.judge import judge


def numbers(*shape, seed=1):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


X = numbers(2, 7, 12)
REAL = torch.arange(7) < torch.tensor([[7], [4]])


def layer(**options):
    return shake(LongShortAttention(12, 2, **options), 0).double().eval()


def test_the_spec():
    verdict = judge(DYNAMIC_CONVOLUTION, dynamic_convolution)
    assert verdict.passed, verdict


# --- The convolution ------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 3, 4, 9])
@pytest.mark.parametrize("causal", [False, True])
def test_equal_weights_for_all_tokens_are_a_depthwise_convolution(width, causal):
    logits = numbers(1, 1, 3, width, seed=2)
    before = width - 1 if causal else (width - 1) // 2
    kernels = logits[0, 0].softmax(-1).repeat_interleave(4, 0)[:, None]  # D 1 K
    padded = functional.pad(X.mT, (before, width - 1 - before))
    theirs = functional.conv1d(padded, kernels, groups=12).mT
    torch.testing.assert_close(dynamic_convolution(X, logits, causal=causal), theirs)


def test_half_precision_keeps_its_dtype():
    logits = numbers(2, 7, 3, 3)
    narrow = dynamic_convolution(X.bfloat16(), logits.bfloat16())
    assert narrow.dtype == torch.bfloat16
    wide = dynamic_convolution(X.bfloat16().float(), logits.bfloat16().float())
    assert (narrow - wide).abs().max() <= torch.finfo(torch.bfloat16).eps * wide.abs().max()


# --- The layer ------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
def test_two_branches_side_by_side(causal):
    """The first channels equal torch's attention, the last ones a loop over tokens."""
    made = layer(kernel_size=4)
    long, short = made(X, causal=causal).split(6, -1)
    attention = torch.nn.MultiheadAttention(6, 2, batch_first=True).double()
    own = made.long
    with torch.no_grad():
        stacked = [own.query, own.key, own.value]
        attention.in_proj_weight.copy_(torch.cat([each.weight for each in stacked]))
        attention.in_proj_bias.copy_(torch.cat([each.bias for each in stacked]))
        attention.out_proj.load_state_dict(own.output.state_dict())
    future = torch.ones(7, 7, dtype=torch.bool).triu(1) if causal else None
    theirs, _ = attention(*[X[..., :6]] * 3, attn_mask=future, need_weights=False)
    torch.testing.assert_close(long, theirs)
    value, gate = made.short.value_and_gate(X[..., 6:]).chunk(2, -1)
    x = value * gate.sigmoid()
    for i in range(7):
        weights = made.short.kernel(x[:, i]).view(2, 2, 4).softmax(-1)
        found = torch.zeros(2, 2, 3, dtype=torch.float64)
        for tap in range(4):
            j = i + tap - (3 if causal else 1)
            if 0 <= j < 7:
                found += weights[:, :, tap, None] * x[:, j].view(2, 2, 3)
        torch.testing.assert_close(short[:, i], made.short.output(found.flatten(1)))


def test_no_branch_reads_the_other():
    made, changed = layer(), X.clone()
    changed[..., 6:] += 1.0
    before, after = made(X), made(changed)
    torch.testing.assert_close(after[..., :6], before[..., :6], rtol=0, atol=0)
    assert (after - before)[..., 6:].abs().min() > 0


def test_without_short_channels_it_is_multi_head_attention():
    made, full = layer(d_short=0), MultiHeadAttention(12, 2).double()
    full.load_state_dict(
        {name.removeprefix("long."): each for name, each in made.state_dict().items()}
    )
    torch.testing.assert_close(made(X, causal=True), full(X, causal=True))


@pytest.mark.parametrize("width", [3, 4, 9])
def test_a_causal_layer_does_not_leak(width):
    made, changed = layer(kernel_size=width), X.clone()
    changed[:, -1] += 1.0
    difference = made(changed, causal=True) - made(X, causal=True)
    torch.testing.assert_close(difference[:, :-1], torch.zeros_like(difference[:, :-1]))
    assert (made(changed) - made(X))[:, -2].abs().max() > 0.01


def test_padding_does_nothing():
    made = layer()
    torch.testing.assert_close(made(X, key_mask=REAL)[1:, :4], made(X[1:, :4]))


def test_every_weight_gets_a_gradient():
    """But the bias of the keys: the same number on all scores of a query changes no softmax."""
    made = layer()
    made(X).square().sum().backward()
    without = {name for name, each in made.named_parameters() if each.grad.abs().max() < 1e-12}
    assert without == {"long.key.bias"}


@pytest.mark.plain_types
def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="x: expected a number of channels that 5 heads divide"):
        dynamic_convolution(X, numbers(2, 7, 5, 3))
    with pytest.raises(ValueError, match="logits: expected"):
        dynamic_convolution(X, numbers(2, 6, 3, 3))
    with pytest.raises(ValueError, match="kernel_size: expected at least 1"):
        ConvolutionBranch(6, 2, kernel_size=0)
    with pytest.raises(
        ValueError, match="d_short: expected at least 0 and a number below d_model = 12"
    ):
        LongShortAttention(12, 2, d_short=12)
