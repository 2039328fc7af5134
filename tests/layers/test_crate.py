"""CRATE: the gradient of its rate by autograd, torch's attention with one projection, caches, a layer by hand."""

import pytest
import torch
from torch import nn

from tested_transformer.functional.coding_rate import (
    coding_rate,
    coding_rate_gradient,
    ista_step,
    lasso_objective,
    subspace_attention,
    subspace_coding_rate,
)
from tested_transformer.layers.cache import KeyValueCache
from tested_transformer.layers.crate import CrateLayer, IstaStep, SubspaceAttention
from tested_transformer.positions.rotary import RotaryPositions

F64 = torch.float64
EPS = torch.finfo(F64).eps


def tokens(*shape, seed=0):
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("length", [2, 5, 9])
@pytest.mark.parametrize("eps", [0.3, 1.0, 3.0])
def test_the_closed_form_is_what_autograd_finds(length, eps):
    x, bases = tokens(2, length, 6, seed=length), tokens(3, 6, 2, seed=1)
    x.requires_grad_()
    (wanted,) = torch.autograd.grad(subspace_coding_rate(x, bases, eps).sum(), x)
    got = coding_rate_gradient(x.detach(), bases, eps)
    y = x.detach().unsqueeze(-3) @ bases
    condition = 1 + 2 / (length * eps**2) * float(torch.linalg.matrix_norm(y, 2).max()) ** 2
    bound = 8 * (length + 6) * EPS * condition * float(wanted.abs().max())
    torch.testing.assert_close(got, wanted, rtol=0, atol=bound)


@pytest.mark.parametrize("shape", [(3, 7), (7, 3)])
def test_the_rate_is_the_same_in_tokens_and_in_features_and_for_a_rotated_sequence(shape):
    x = tokens(*shape)
    rotation = torch.linalg.qr(tokens(shape[1], shape[1], seed=2)).Q
    length, width = shape
    features = torch.eye(width, dtype=F64) + width / (length * 0.25) * x.mT @ x
    wanted = torch.linalg.slogdet(features).logabsdet / 2
    bound = 64 * (length + width) * EPS * float(wanted)
    torch.testing.assert_close(coding_rate(x, 0.5), wanted, rtol=0, atol=bound)
    torch.testing.assert_close(coding_rate(x @ rotation, 0.5), wanted, rtol=0, atol=bound)


def test_equal_tokens_cost_less_than_different_ones():
    x = tokens(6, 4)
    same = x[:1].expand(6, 4) * (x.norm() / (6**0.5 * x[0].norm()))  # as large together
    assert coding_rate(same, 0.5) < coding_rate(x, 0.5)


@pytest.mark.parametrize("causal", [False, True])
def test_equal_to_torch_with_one_projection_for_three(causal):
    """nn.MultiheadAttention with U for query, key and value, and U^T at the end: values and gradients."""
    heads, width = 2, 6
    bases = tokens(heads, width, width // heads, seed=3)
    stacked = bases.permute(0, 2, 1).reshape(width, width)  # H d, D
    theirs = nn.MultiheadAttention(width, heads, bias=False, batch_first=True, dtype=F64)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(stacked.repeat(3, 1))
        theirs.out_proj.weight.copy_(stacked.T)
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else None
    found = []
    for call in (
        lambda x: subspace_attention(x, bases, causal=causal),
        lambda x: theirs(x, x, x, attn_mask=mask, need_weights=False)[0],
    ):
        x = tokens(2, 5, width, seed=4).requires_grad_()
        output = call(x)
        output.square().sum().backward()
        found.append((output.detach(), x.grad))
    for got, wanted in zip(*found, strict=True):
        bound = 64 * (width + 5) * EPS * float(wanted.abs().max())
        torch.testing.assert_close(got, wanted, rtol=0, atol=bound)


def test_steps_lower_the_objective_until_the_conditions_of_a_minimum_hold():
    """Where a code is above 0 its slope is 0; where it is 0 the slope is not negative (Karush, Kuhn, Tucker)."""
    dictionary, x = tokens(4, 6), tokens(3, 4, seed=1)
    step = 1 / float(torch.linalg.matrix_norm(dictionary, 2)) ** 2
    codes = torch.zeros(3, 6, dtype=F64)
    before = lasso_objective(codes, x, dictionary, sparsity=0.3)
    for _ in range(3000):
        codes = ista_step(codes, x, dictionary, step_size=step, sparsity=0.3)
        after = lasso_objective(codes, x, dictionary, sparsity=0.3)
        assert (after <= before + 64 * EPS * before).all()
        before = after
    slope = (codes @ dictionary.T - x) @ dictionary + 0.3
    small = 1e-6  # 3000 steps of linear convergence: far above rounding, far below the sparsity
    assert (slope[codes > 0].abs() < small).all()
    assert (slope[codes == 0] > -small).all()
    assert (codes == 0).any()
    assert (codes > 0).any()


def layer(seed=0, **options):
    torch.manual_seed(seed)
    return CrateLayer(8, 2, **options).double().eval()


@torch.no_grad()
@pytest.mark.parametrize("chunk", [1, 2, 3])
@pytest.mark.parametrize("rotary", [False, True])
def test_with_a_cache_in_chunks_as_in_one_pass(chunk, rotary):
    made = layer(positions=RotaryPositions(4) if rotary else None)
    x, cache = tokens(2, 7, 8), KeyValueCache()
    pieces = [made(piece, causal=True, cache=cache) for piece in x.split(chunk, 1)]
    torch.testing.assert_close(torch.cat(pieces, 1), made(x, causal=True))


@torch.no_grad()
def test_the_layer_is_attention_then_a_step_without_a_residual_connection():
    made, x = layer(), tokens(2, 5, 8)
    bases = made.attention.subspaces.weight.unflatten(0, (2, 4)).mT  # H D d
    normed = made.norms[0](x)
    heads = [normed @ basis for basis in bases]
    weights = [(y @ y.mT / 4**0.5).softmax(-1) for y in heads]
    joined = torch.cat([w @ y for w, y in zip(weights, heads, strict=True)], -1)
    z = made.norms[1](x + made.attention.output(joined))
    d = made.sparsify.dictionary
    wanted = torch.relu(z + 0.1 * (z - z @ d.T) @ d - 0.01)
    torch.testing.assert_close(made(x), wanted)
    assert (made(x) >= 0).all()
    output, found = made(x, return_weights=True)
    torch.testing.assert_close(found, torch.stack(weights, 1))
    torch.testing.assert_close(output, wanted)


@torch.no_grad()
def test_padding_left_and_right_and_the_future_change_nothing():
    made, x = layer(), tokens(1, 4, 8)
    filled = tokens(1, 2, 8, seed=5)
    alone = made(x, causal=True)
    left = torch.tensor([False] * 2 + [True] * 4)[None, None, None]
    right = torch.tensor([True] * 4 + [False] * 2)[None, None, None]
    torch.testing.assert_close(
        made(torch.cat((filled, x), 1), causal=True, mask=left)[:, 2:], alone
    )
    torch.testing.assert_close(
        made(torch.cat((x, filled), 1), causal=True, mask=right)[:, :4], alone
    )
    torch.testing.assert_close(made(torch.cat((x, filled), 1), causal=True)[:, :4], alone)


def test_one_projection_where_multi_head_attention_has_three_and_all_of_it_learns():
    made = layer().train()
    assert made.attention.subspaces.weight.shape == (8, 8)
    assert sum(p.numel() for p in SubspaceAttention(8, 2, bias=False).parameters()) == 2 * 64
    made(tokens(2, 5, 8)).square().sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in made.parameters())


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: coding_rate(torch.zeros(2, 3), 0.0), "eps: expected a number above 0"),
        (
            lambda: SubspaceAttention(8, 3),
            "num_heads: expected at least 1 and a number that divides",
        ),
        (lambda: IstaStep(4, step_size=0.0), "step_size: expected a number above 0"),
        (lambda: IstaStep(4, sparsity=-0.1), "sparsity: expected at least 0"),
        (lambda: IstaStep(4)(torch.zeros(2, 3)), "x: expected"),
        (
            lambda: subspace_coding_rate(torch.zeros(2, 3), torch.zeros(1, 3, 0), 1.0),
            "bases: expected d of at least 1",
        ),
        (
            lambda: ista_step(torch.zeros(3), torch.zeros(2), torch.zeros(3, 2)),
            "dictionary: expected",
        ),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
