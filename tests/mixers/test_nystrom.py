"""Nystrom attention: equal to transformers', to full attention with a landmark per token, and never causal."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import NystromformerConfig
from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention

from same_numbers import assert_same_numbers, in_dtype
from tested_transformer.layers.nystrom import NystromAttention
from tested_transformer.mixers.nystrom import iterative_pinv, landmark_weights, nystrom_attention
from tested_transformer.specs import pitfall
from tested_transformer.specs.judge import judge
from tested_transformer.specs.nystrom.spec import NYSTROM_ATTENTION

EPS = torch.finfo(torch.float64).eps


def numbers(*shape, seed=1):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


QUERY, KEY, VALUE = numbers(2, 3, 9, 4), numbers(2, 3, 9, 4, seed=2), numbers(2, 3, 9, 5, seed=3)


@pytest.mark.parametrize("seed", range(1))
def test_the_spec(seed):
    verdict = judge(NYSTROM_ATTENTION, nystrom_attention, seed=seed)
    assert verdict.passed, verdict


# --- Equal to transformers ------------------------------------------------------------------------


def pair(kernel, length=8, landmarks=4):
    """Theirs and ours with the same weights; ours ends in the identity, which theirs leaves to another module."""
    torch.manual_seed(3)
    config = NystromformerConfig(
        hidden_size=12, num_attention_heads=3, num_landmarks=landmarks, segment_means_seq_len=length,
        conv_kernel_size=kernel, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    theirs = NystromformerSelfAttention(config)
    theirs.init_option = "exact"  # each matrix by itself; their own option for it raises, see below
    ours = NystromAttention(12, 3, landmarks, conv_kernel=kernel)
    state = theirs.state_dict() | {"output.weight": torch.eye(12), "output.bias": torch.zeros(12)}
    ours.load_state_dict(state)
    return theirs.double(), ours.double()


def runs(module, names, call):
    """The output and the gradients of the named weights, as a function of a dtype."""

    def run(dtype):
        copy = in_dtype(module, dtype)
        x = numbers(2, 8, 12, seed=5).to(dtype).requires_grad_()
        output = call(copy, x)
        (output * numbers(*output.shape, seed=6).to(dtype)).sum().backward()
        weights = dict(copy.named_parameters())
        return {"output": [output], "gradients": [x.grad, *(weights[name].grad for name in names)]}

    return run


@pytest.mark.parametrize("kernel", [3, 7])
def test_transformers(kernel):
    theirs, ours = pair(kernel)
    names = [name for name, _ in theirs.named_parameters()]
    assert_same_numbers(
        runs(ours, names, lambda m, x: m(x)), runs(theirs, names, lambda m, x: m(x)[0])
    )


def test_transformers_mask_the_keys_of_padding_and_average_it():
    """Theirs masks one of three softmaxes: what padding holds changes the outputs of real tokens. Not ours."""
    theirs, ours = pair(3)
    x, real = numbers(1, 8, 12, seed=5), torch.tensor([[True] * 6 + [False] * 2])
    other = torch.where(real[..., None], x, 5.0)
    hidden = torch.zeros(real.shape).double().masked_fill(~real, -torch.inf)[:, None, None]
    far = (
        (theirs(x, hidden)[0] - theirs(other, hidden)[0])[:, :5].abs().max()
    )  # out of the kernel's reach
    near = (ours(x, key_mask=real) - ours(other, key_mask=real))[:, :6].abs().max()
    assert far.item() > 1e-3
    assert near.item() == 0


def test_transformers_start_of_the_inverse_mixes_samples():
    """By default theirs takes one norm over batch and heads; the option for one each raises."""
    theirs, ours = pair(3)
    theirs.init_option = "original"
    x = numbers(2, 8, 12, seed=5)
    x[1] *= 4
    far = (theirs(x)[0][:1] - theirs(x[:1])[0]).abs().max()
    assert far.item() > 1e-6
    torch.testing.assert_close(ours(x)[:1], ours(x[:1]), rtol=0, atol=256 * EPS)
    config = NystromformerConfig(hidden_size=12, num_attention_heads=3, inv_coeff_init_option=True)
    with pytest.raises(TypeError, match="not subscriptable"):
        NystromformerSelfAttention(config)


def test_transformers_default_is_full_attention():
    """Issue 21755: 64 landmarks, and 64 for the length, whatever the length is."""
    config = NystromformerConfig(hidden_size=12, num_attention_heads=3)
    assert config.num_landmarks == config.segment_means_seq_len == 64
    torch.manual_seed(3)
    theirs = NystromformerSelfAttention(config).double().eval()
    theirs.conv_kernel_size = None
    x = numbers(1, 100, 12, seed=5)
    q, k, v = (
        getattr(theirs, n)(x).unflatten(-1, (3, 4)).transpose(1, 2)
        for n in ("query", "key", "value")
    )
    full = scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(theirs(x)[0], full)


# --- The pseudo-inverse ---------------------------------------------------------------------------


def residuals(matrix, iterations):
    """What I - A Z does to each left singular vector, from the start on, in exact arithmetic."""
    left, sizes, right = torch.linalg.svd(matrix)
    e = 1 - sizes**2 / (matrix.abs().sum(-2).max() * matrix.abs().sum(-1).max())
    for _ in range(iterations):
        e = e**3 * (3 + e) / 4
    return left, sizes, right, e


@pytest.mark.parametrize("iterations", [1, 3, 6])
@pytest.mark.parametrize("size", [2, 5, 16])
def test_the_residual_is_the_one_of_theory(size, iterations):
    """A Z A - A = -U diag(e s) V^T, with e from the recursion e <- e^3 (3 + e) / 4."""
    matrix = numbers(size, size, seed=size).softmax(-1)
    left, sizes, right, e = residuals(matrix, iterations)
    found = matrix @ iterative_pinv(matrix, iterations) @ matrix - matrix
    torch.testing.assert_close(found, -left @ torch.diag(e * sizes) @ right, rtol=0, atol=1e4 * EPS)


@pytest.mark.parametrize("size", [4, 16, 64])
def test_it_converges_to_the_pseudo_inverse(size):
    matrix = (2 * numbers(size, size, seed=size)).softmax(-1)
    condition = torch.linalg.cond(matrix)
    found, exact = iterative_pinv(matrix, 40), torch.linalg.pinv(matrix)
    bound = 64 * size * EPS * float(condition) ** 2
    torch.testing.assert_close(found, exact, rtol=0, atol=bound * float(exact.abs().max()))


def test_a_matrix_of_zeros_has_the_inverse_zero():
    assert iterative_pinv(torch.zeros(3, 3)).abs().max() == 0


# --- Landmarks ------------------------------------------------------------------------------------


def test_segments_of_seven_tokens():
    found = landmark_weights(torch.ones(1, 7, dtype=torch.bool), 3)[0]
    assert (found > 0).int().tolist() == [
        [1, 1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 1, 1],
    ]  # fmt: skip
    torch.testing.assert_close(found.sum(-1), torch.ones(3).double())


def test_padding_is_in_no_segment():
    real = torch.tensor([[False, True, True, False, True, True, False]])
    found = landmark_weights(real, 2)[0]
    assert found.tolist() == [[0, 0.5, 0.5, 0, 0, 0, 0], [0, 0, 0, 0, 0.5, 0.5, 0]]


def test_fewer_tokens_than_landmarks_leave_rows_of_zeros():
    found = landmark_weights(torch.ones(1, 2, dtype=torch.bool), 5)[0]
    assert found.sum(-1).sort().values.tolist() == [0, 0, 0, 1, 1]


# --- Attention ------------------------------------------------------------------------------------


def test_a_landmark_per_token_is_full_attention():
    """Up to the residual of the iteration, whose size is known: max(s e) |V|."""
    for iterations in (6, 9, 12):
        found = nystrom_attention(QUERY, KEY, VALUE, 9, iterations=iterations)
        expected = scaled_dot_product_attention(QUERY, KEY, VALUE)
        weights = (QUERY @ KEY.mT / 2).softmax(-1)
        for b in range(2):
            for h in range(3):
                _, sizes, _, e = residuals(weights[b, h], iterations)
                bound = (e * sizes).max() * torch.linalg.matrix_norm(VALUE[b, h], 2)
                error = torch.linalg.matrix_norm(found[b, h] - expected[b, h], 2)
                assert error <= bound + 1e4 * EPS


@pytest.mark.parametrize("causal", [None, "causal masks over the landmarks"])
def test_the_last_token_reaches_an_earlier_query(causal):
    """No causal form: the mean of a segment holds its last token, and the segment's first one reads the mean."""
    function = nystrom_attention if causal is None else pitfall(causal).candidate
    changed = KEY.clone()
    changed[:, :, -1] += 1.0
    before, after = (function(QUERY, key, VALUE, 3) for key in (KEY, changed))
    assert (after - before)[:, :, 6].abs().amax(-1).min() > 1e-3


@pytest.mark.parametrize("length", [1, 2, 5, 7])
def test_a_padded_text_is_the_text_alone(length):
    real = torch.ones(2, 9, dtype=torch.bool)
    real[1, length:] = False
    together = nystrom_attention(QUERY, KEY, VALUE, 3, key_mask=real)
    alone = nystrom_attention(*(each[1:, :, :length] for each in (QUERY, KEY, VALUE)), 3)
    torch.testing.assert_close(together[1:, :, :length], alone, rtol=0, atol=1e3 * EPS)


def test_nothing_but_padding_and_no_tokens():
    real = torch.zeros(2, 9, dtype=torch.bool)
    inputs = [each.clone().requires_grad_() for each in (QUERY, KEY, VALUE)]
    output = nystrom_attention(*inputs, 3, key_mask=real)
    output.sum().backward()
    assert output.abs().max() == 0
    assert all(bool(torch.isfinite(each.grad).all()) for each in inputs)
    assert nystrom_attention(*(each[:, :, :0] for each in inputs), 3).shape == (2, 3, 0, 5)


def test_half_precision_keeps_its_dtype():
    given = [each.half() for each in (QUERY, KEY, VALUE)]
    wide = nystrom_attention(*(each.float() for each in given), 3)
    found = nystrom_attention(*given, 3)
    assert found.dtype == torch.float16
    torch.testing.assert_close(found, wide.half())


def test_memory_grows_with_the_length():
    """No tensor that autograd keeps has L x L numbers."""
    length, saved = 512, []
    query = torch.randn(1, 1, length, 8, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: saved.append(t.numel()) or t, lambda t: t
    ):
        nystrom_attention(query, query, query, 16).sum()
    assert max(saved) <= 16 * length


def test_the_layer_leaves_padding_out_of_its_convolution():
    layer = NystromAttention(12, 3, 2, conv_kernel=5).double()
    x, real = numbers(2, 9, 12, seed=6), torch.ones(2, 9, dtype=torch.bool)
    real[1, 6:] = False
    together = layer(x, key_mask=real)
    torch.testing.assert_close(together[1:, :6], layer(x[1:, :6]), rtol=0, atol=1e3 * EPS)
    together[real].sum().backward()
    assert all(weight.grad is not None for weight in layer.parameters())


def test_an_even_kernel_raises():
    with pytest.raises(ValueError, match=r"conv_kernel.*odd"):
        NystromAttention(12, 3, 2, conv_kernel=4)
