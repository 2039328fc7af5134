"""Scoring functions: the reference, gradients, identities, and calls that must be refused."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tested_transformer import attention, reference
from tested_transformer.functional.masks import masked_softmax
from tested_transformer.functional.scoring import (
    additive_scores,
    attend,
    bilinear_scores,
    content_scores,
    dot_scores,
    gaussian_scores,
    hard_attention,
    kernel_regression,
    local_weights,
    local_window,
    location_scores,
    predicted_centers,
    reinforce_loss,
)
from tested_transformer.layers.scoring import AdditiveAttention, BilinearAttention
from tested_transformer.specs import judge
from tested_transformer.specs.scoring import spec as scoring_spec
from tested_transformer.specs.spec import specs_in

IMPLEMENTATIONS = {
    "additive scores": additive_scores,
    "bilinear scores": bilinear_scores,
    "location scores": location_scores,
    "content scores": content_scores,
    "kernel regression": lambda q, k, v, b: kernel_regression(q, k, v, bandwidth=b),
    "local weights": local_weights,
}
GRADCHECK = {"eps": 1e-6, "atol": 1e-6}


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# --- The Specs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("spec", specs_in(scoring_spec), ids=lambda spec: spec.name)
def test_implementations_and_baselines_pass(spec, seed):
    for candidate in (IMPLEMENTATIONS[spec.name], spec.baseline):
        verdict = judge(spec, candidate, seed=seed)
        assert verdict.passed, verdict
        assert not verdict.skipped


def test_the_seed_at_which_kernel_regression_was_once_rejected():
    spec = scoring_spec.KERNEL
    verdict = judge(spec, IMPLEMENTATIONS[spec.name], seed=65)
    assert verdict.passed, verdict


# --- Against the reference ------------------------------------------------------------------------


def against_reference(got, expected):
    np.testing.assert_allclose(got.detach().numpy(), expected, rtol=1e-12, atol=1e-12)


def test_dot_scores_and_attend_make_attention():
    query, key, value = normal(2, 3, 4), normal(2, 5, 4, seed=1), normal(2, 5, 6, seed=2)
    torch.testing.assert_close(attend(dot_scores(query, key), value), attention(query, key, value))
    unscaled = attention(query, key, value, scale=1.0)
    torch.testing.assert_close(attend(dot_scores(query, key, scale=1.0), value), unscaled)


def test_gaussian_scores_equal_the_reference():
    query, key = normal(2, 3, 4), normal(2, 5, 4, seed=1)
    expected = reference.gaussian_scores(query.numpy(), key.numpy(), 0.7)
    against_reference(gaussian_scores(query, key, 0.7), expected)
    against_reference(gaussian_scores(query, key, torch.tensor(0.7, dtype=query.dtype)), expected)


def test_predicted_centers_equal_the_reference():
    query, w_p, v_p = normal(2, 3, 4), normal(5, 4, seed=1), normal(5, seed=2)
    expected = reference.predicted_centers(query.numpy(), w_p.numpy(), v_p.numpy(), 9)
    centers = predicted_centers(query, w_p, v_p, 9)
    against_reference(centers, expected)
    assert ((centers >= 0) & (centers <= 9)).all()


def test_content_scores_take_a_sharpness_for_each_query():
    query, key = normal(2, 3, 4), normal(2, 5, 4, seed=1)
    sharpness = normal(2, 3, seed=2).exp()
    expected = reference.content_scores(query.numpy(), key.numpy(), sharpness.numpy())
    against_reference(content_scores(query, key, sharpness), expected)
    cosine = torch.nn.functional.cosine_similarity(query[:, :, None], key[:, None], dim=-1)
    torch.testing.assert_close(content_scores(query, key), cosine)


@pytest.mark.parametrize("sizes", [(2, 3, 4, 5), (1, 1, 1, 1), (3, 2, 6, 1)])
def test_additive_attention_equals_the_reference(sizes):
    length, keys, query_size, key_size = sizes
    module = AdditiveAttention(query_size, key_size, 7).double()
    query, key = normal(2, length, query_size), normal(2, keys, key_size, seed=1)
    value, lengths = normal(2, keys, 3, seed=2), torch.tensor([1, keys])
    output, weights = module(query, key, value, key_lengths=lengths, return_weights=True)
    parts = [module.w_query.weight, module.w_key.weight, module.w_v.weight[0]]
    scores = reference.additive_scores(query, key, *(part.detach().numpy() for part in parts))
    allowed = np.arange(keys) < lengths.numpy()[:, None, None]
    expected = reference.masked_softmax(scores, allowed)
    against_reference(weights, expected)
    against_reference(output, reference.weighted_sum(expected, value.numpy()))


def test_modules_have_no_biases_and_the_parameters_that_the_formula_has():
    def shapes(module):
        return sorted(tuple(p.shape) for p in module.parameters())

    assert shapes(AdditiveAttention(20, 2, 8)) == [(1, 8), (8, 2), (8, 20)]
    assert shapes(BilinearAttention(20, 2)) == [(20, 2)]


def test_bilinear_attention_is_its_scores():
    module = BilinearAttention(4, 3).double()
    query, key, value = normal(2, 5, 4), normal(2, 6, 3, seed=1), normal(2, 6, 2, seed=2)
    expected = attend(bilinear_scores(query, key, module.w_score.weight), value)
    torch.testing.assert_close(module(query, key, value), expected)


# --- The notes' example, and masks ----------------------------------------------------------------


@pytest.mark.parametrize("lengths", [[2, 6], [[2], [6]]], ids=["one a sample", "one a query"])
@pytest.mark.parametrize("kind", ["additive", "bilinear"])
def test_equal_keys_give_the_mean_of_the_valid_values(kind, lengths):
    module = (
        AdditiveAttention(20, 2, 8, dropout=0.1) if kind == "additive" else BilinearAttention(20, 2)
    )
    value = torch.arange(40, dtype=torch.float32).reshape(1, 10, 4).repeat(2, 1, 1)
    query, key = normal(2, 1, 20, dtype=torch.float32), torch.ones(2, 10, 2)
    output = module.eval()(query, key, value, key_lengths=torch.tensor(lengths))
    expected = torch.tensor([[[2.0, 3.0, 4.0, 5.0]], [[10.0, 11.0, 12.0, 13.0]]])
    torch.testing.assert_close(output, expected)


def test_lengths_and_mask_hide_together():
    module = AdditiveAttention(3, 3, 4).double()
    query, key, value = normal(2, 2, 3), normal(2, 5, 3, seed=1), normal(2, 5, 2, seed=2)
    lengths, mask = torch.tensor([[5, 2], [3, 0]]), torch.ones(2, 5, dtype=torch.bool).tril(2)
    output, weights = module(query, key, value, key_lengths=lengths, mask=mask, return_weights=True)
    allowed = (torch.arange(5) < lengths[..., None]) & mask
    assert torch.equal(weights > 0, allowed)
    assert torch.equal(output[1, 1], torch.zeros(2, dtype=output.dtype))


@pytest.mark.parametrize(
    "make", [lambda: AdditiveAttention(3, 3, 4), lambda: BilinearAttention(3, 3)]
)
def test_an_empty_row_gives_zeros_and_zero_gradients(make):
    module = make().double()
    query, key, value = (normal(1, 2, 3, seed=s).requires_grad_() for s in range(3))
    output = module(query, key, value, key_lengths=torch.tensor([0]))
    output.sum().backward()
    for tensor in (
        output,
        query.grad,
        key.grad,
        value.grad,
        *(p.grad for p in module.parameters()),
    ):
        assert torch.equal(tensor, torch.zeros_like(tensor))


@pytest.mark.parametrize("shape", [(0, 2, 3), (2, 0, 3), (2, 2, 0)], ids=["B", "L", "S"])
def test_empty_axes(shape):
    batch, length, keys = shape
    query, key, value = normal(batch, length, 4), normal(batch, keys, 4), normal(batch, keys, 5)
    for module in (AdditiveAttention(4, 4, 6).double(), BilinearAttention(4, 4).double()):
        assert module(query, key, value).shape == (batch, length, 5)
    assert kernel_regression(query, key, value, bandwidth=1.0).shape == (batch, length, 5)
    scores = dot_scores(query, key)
    for sample in (False, True):
        output, choice = hard_attention(scores, value, sample=sample)
        assert output.shape == (batch, length, 5)
        assert choice.shape == (batch, length)
        assert (choice == -1).all()
    cost = torch.zeros(batch, length, dtype=torch.float64)
    assert torch.equal(reinforce_loss(scores, choice, cost), cost)
    assert local_weights(scores, cost, 2, gaussian=True).shape == (batch, length, keys)


def test_dropout_only_in_training():
    module = AdditiveAttention(3, 3, 4, dropout=0.5)
    query, key, value = (normal(2, 8, 3, seed=s, dtype=torch.float32) for s in range(3))
    _, weights = module(query, key, value, return_weights=True)
    assert (weights == 0).any()
    output, weights = module(query, key, value, return_weights=True)
    torch.testing.assert_close(output, weights @ value)
    _, weights = module.eval()(query, key, value, return_weights=True)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 8))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_is_computed_in_float32(dtype):
    query, key, value = (
        3 * normal(2, 4, 64, seed=s, dtype=torch.float32).to(dtype) for s in range(3)
    )
    exact = [t.double() for t in (query, key, value)]
    expected = attend(dot_scores(*exact[:2]), exact[2])
    scores = dot_scores(query * 16, key * 16, scale=1.0)  # far above 65504, float16's largest
    assert scores.dtype == torch.float32
    assert scores.isfinite().all()
    output = attend(dot_scores(query, key), value)
    assert output.dtype == dtype
    plain = (query @ key.mT / 8).softmax(-1) @ value
    error, allowed = ((o.double() - expected).abs().max() for o in (output, plain))
    assert error <= 2 * allowed + 4 * torch.finfo(dtype).eps * expected.abs().max()


# --- Gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (dot_scores, [(2, 3, 4), (2, 5, 4)]),
        (bilinear_scores, [(2, 3, 4), (2, 5, 2), (4, 2)]),
        (additive_scores, [(2, 3, 4), (2, 5, 2), (6, 4), (6, 2), (6,)]),
        (location_scores, [(2, 3, 4), (5, 4)]),
        (content_scores, [(2, 3, 4), (2, 5, 4)]),
        (gaussian_scores, [(2, 3, 4), (2, 5, 4), ()]),
        (lambda w, v, q: predicted_centers(q, w, v, 7), [(5, 4), (5,), (2, 3, 4)]),
    ],
)
def test_gradcheck_of_the_scores(function, shapes):
    inputs = [normal(*shape, seed=s).requires_grad_() for s, shape in enumerate(shapes)]
    assert torch.autograd.gradcheck(function, inputs, **GRADCHECK)


def test_gradcheck_of_local_weights_and_kernel_regression():
    scores = normal(3, 6).requires_grad_()
    centers = torch.tensor([0.3, 2.6, 5.4], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda s, c: local_weights(s, c, 2, gaussian=True), (scores, centers), **GRADCHECK
    )
    inputs = [normal(*shape, seed=1).requires_grad_() for shape in [(3, 2), (5, 2), (5, 1), ()]]
    assert torch.autograd.gradcheck(
        lambda q, k, v, b: kernel_regression(q, k, v, bandwidth=b), inputs, **GRADCHECK
    )


def test_a_zero_vector_has_a_finite_gradient():
    query, key = normal(2, 3).requires_grad_(), torch.zeros(2, 3, dtype=torch.float64)
    key.requires_grad_()
    content_scores(query, key).sum().backward()
    assert query.grad.isfinite().all()
    assert key.grad.isfinite().all()


# --- Identities, as properties --------------------------------------------------------------------

SEEDS = st.integers(0, 2**31)
SIZES = st.integers(1, 6)


@settings(max_examples=25)
@given(SEEDS, SIZES, SIZES, SIZES)
def test_bilinear_is_a_dot_product_of_projections(seed, length, keys, rank):
    query, key = normal(length, 4, seed=seed), normal(keys, 3, seed=seed + 1)
    w_query, w_key = normal(rank, 4, seed=seed + 2), normal(rank, 3, seed=seed + 3)
    projected = dot_scores(query @ w_query.T, key @ w_key.T, scale=1.0)
    torch.testing.assert_close(bilinear_scores(query, key, w_query.T @ w_key), projected)


@settings(max_examples=25)
@given(SEEDS, SIZES, SIZES, st.floats(0.3, 3.0))
def test_gaussian_weights_are_those_of_a_dot_product(seed, length, keys, bandwidth):
    query, key = normal(length, 3, seed=seed), normal(keys, 3, seed=seed + 1)
    products = (query @ key.T - key.square().sum(-1) / 2) / bandwidth**2
    gaussian = gaussian_scores(query, key, bandwidth)
    torch.testing.assert_close(gaussian.softmax(-1), products.softmax(-1))


@settings(max_examples=25)
@given(SEEDS, SIZES, SIZES)
def test_concatenating_and_projecting_is_the_sum_of_two_projections(seed, length, keys):
    query, key = normal(length, 4, seed=seed), normal(keys, 3, seed=seed + 1)
    weight, w_v = normal(5, 7, seed=seed + 2), normal(5, seed=seed + 3)
    pairs = torch.cat(
        [query[:, None].expand(-1, keys, -1), key[None].expand(length, -1, -1)], dim=-1
    )
    concatenated = torch.tanh(pairs @ weight.T) @ w_v
    added = additive_scores(query, key, weight[:, :4].contiguous(), weight[:, 4:].contiguous(), w_v)
    torch.testing.assert_close(concatenated, added)


@settings(max_examples=25)
@given(SEEDS, st.integers(1, 9), st.integers(1, 4))
def test_local_p_windows_are_never_empty(seed, keys, half_width):
    centers = predicted_centers(normal(5, 3, seed=seed), normal(4, 3, seed=1), 9 * normal(4), keys)
    assert local_window(centers, keys, half_width).any(-1).all()


# --- Hard attention and REINFORCE -----------------------------------------------------------------


def test_hard_attention_takes_the_best_value():
    scores, value = normal(2, 3, 5), normal(2, 5, 4, seed=1)
    output, choice = hard_attention(scores, value)
    assert torch.equal(choice, scores.argmax(-1))
    against_reference(output, reference.hard_attention(scores.numpy(), value.numpy()))


def test_hard_attention_leaves_hidden_and_unchosen_values_alone():
    scores = torch.tensor([[5.0, 1.0, 2.0]]).expand(2, 3)
    value = torch.tensor([[math.nan], [3.0], [4.0]])
    allowed = torch.tensor([[False, True, True], [False, False, False]])
    output, choice = hard_attention(scores, value, allowed=allowed)
    assert choice.tolist() == [2, -1]
    assert output.tolist() == [[4.0], [0.0]]


def test_samples_follow_the_softmax():
    scores = torch.tensor([[0.0, 1.0, 2.0, -1.0]]).expand(20_000, 4)
    allowed = torch.tensor([[True, True, True, False]]).expand(20_000, 4)
    generator = torch.Generator().manual_seed(0)
    _, choice = hard_attention(
        scores, torch.eye(4), sample=True, generator=generator, allowed=allowed
    )
    shares = torch.bincount(choice, minlength=4) / len(choice)
    expected = masked_softmax(scores[:1], allowed[:1])[0]
    assert shares[3] == 0
    assert (shares - expected).abs().max() < 4 * math.sqrt(0.25 / 20_000)


@pytest.mark.parametrize("baseline", [0.0, 1.7])
@pytest.mark.parametrize("masked", [False, True])
def test_reinforce_is_right_on_average_over_all_choices(baseline, masked):
    """Enumerate every pair of choices of two queries; compare with the exact gradient."""
    target = normal(2, 3, seed=5)
    allowed = torch.tensor([[True] * 4, [True, False, True, True]]) if masked else None
    scores, value = normal(2, 4).requires_grad_(), normal(4, 3, seed=1).requires_grad_()
    p = masked_softmax(scores, allowed)
    costs = (value[None] - target[:, None]).square().sum(-1)  # cost of query i taking value j
    exact = torch.autograd.grad((p * costs).sum(), (scores, value))

    mean = [torch.zeros_like(scores), torch.zeros_like(value)]
    for choices in itertools.product(range(4), repeat=2):
        choice = torch.tensor(choices)
        probability = p[0, choices[0]] * p[1, choices[1]]
        if probability == 0:
            continue
        cost = (value[choice] - target).square().sum(-1)
        loss = reinforce_loss(scores, choice, cost, baseline=baseline, allowed=allowed)
        torch.testing.assert_close(loss, cost)
        for total, part in zip(mean, torch.autograd.grad(loss.sum(), (scores, value)), strict=True):
            total += probability.detach() * part
    torch.testing.assert_close(mean[0], exact[0])
    torch.testing.assert_close(mean[1], exact[1])
    if not masked:
        for row in range(2):
            slow = reference.expected_cost_gradient(
                scores[row].detach().numpy(), costs[row].detach().numpy(), baseline
            )
            against_reference(exact[0][row], slow)


def test_reinforce_of_an_empty_row_adds_nothing():
    scores = normal(2, 3).requires_grad_()
    allowed = torch.tensor([[True, True, True], [False, False, False]])
    cost = torch.tensor([1.0, 2.0], dtype=torch.float64)
    loss = reinforce_loss(scores, torch.tensor([0, -1]), cost, allowed=allowed)
    loss.sum().backward()
    assert torch.equal(scores.grad[1], torch.zeros(3, dtype=torch.float64))
    assert (scores.grad[0] != 0).all()


# --- Calls that must be refused -------------------------------------------------------------------

Q, K, V = torch.ones(2, 3, 4), torch.ones(2, 5, 4), torch.ones(2, 5, 6)
S = torch.ones(2, 3, 5)
ADDITIVE = AdditiveAttention(4, 4, 6)


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: dot_scores([1.0], K), TypeError, "query: expected a torch.Tensor, got list"),
        (lambda: dot_scores(Q.long(), K), TypeError, "query: expected a floating point dtype"),
        (lambda: dot_scores(Q[0, 0], K), ValueError, "query: expected at least 2 axes"),
        (lambda: dot_scores(Q, K.double()), TypeError, "key: expected query's dtype"),
        (lambda: dot_scores(Q, K[:1]), ValueError, "key: expected shape (*batch, S, d) = (2, S, 4) as in query, got shape (1, 5, 4)"),
        (lambda: dot_scores(Q, K[..., :3]), ValueError, "= (2, S, 4) as in query, got shape (2, 5, 3)"),
        (lambda: dot_scores(Q[..., :0], K[..., :0]), ValueError, "query: expected d of at least 1"),
        (lambda: dot_scores(Q, K, scale="1"), TypeError, "scale: expected a number"),
        (lambda: dot_scores(Q, K, scale=math.nan), ValueError, "scale: expected a finite number"),
        (lambda: dot_scores(Q.to("meta"), K), ValueError, "key: expected query's device meta"),
        (lambda: bilinear_scores(Q, K, torch.ones(3, 4)), ValueError, "weight: expected shape (dq, dk) = (4, 4)"),
        (lambda: bilinear_scores(Q, K, None), TypeError, "weight: expected a torch.Tensor"),
        (
            lambda: additive_scores(Q, K, torch.ones(7, 4), torch.ones(6, 4), torch.ones(6)),
            ValueError,
            "w_key: expected shape (hidden, dk) = (7, 4) as in w_query and key, got shape (6, 4)",
        ),
        (
            lambda: additive_scores(Q, K, torch.ones(6, 4), torch.ones(6, 4), torch.ones(6, 1)),
            ValueError,
            "w_v: expected 1 axis",
        ),
        (lambda: location_scores(Q, torch.ones(5, 3)), ValueError, "weight: expected shape (S, d) = (S, 4)"),
        (lambda: location_scores(Q, torch.ones(5)), ValueError, "weight: expected 2 axes"),
        (lambda: content_scores(Q, K, 0.0), ValueError, "sharpness: expected a number above 0"),
        (lambda: content_scores(Q, K, torch.ones(2)), ValueError, "sharpness: expected shape (*batch, L) = (2"),
        (lambda: gaussian_scores(Q, K, -1.0), ValueError, "bandwidth: expected a number above 0"),
        (lambda: gaussian_scores(Q, K, torch.ones(2)), ValueError, "bandwidth: expected 0 axes ()"),
        (lambda: kernel_regression(Q, K, V[:, :4], bandwidth=1.0), ValueError, "value: expected"),
        (lambda: attend(S, V, dropout_p=1.0), ValueError, "dropout_p: expected a probability"),
        (lambda: attend(S, V, allowed=S), TypeError, "allowed: expected torch.bool"),
        (lambda: attend(S, V, allowed=S[0, 0] > 0), ValueError, "allowed: expected shape (L, S)"),
        (lambda: attend(S, V, return_weights=1), TypeError, "return_weights: expected True"),
        (lambda: hard_attention(S, V, sample="yes"), TypeError, "sample: expected True or False"),
        (lambda: hard_attention(S[0, 0], V), ValueError, "scores: expected at least 2 axes"),
        (lambda: reinforce_loss(S, S[..., 0], S[..., 0]), TypeError, "choice: expected an integer"),
        (
            lambda: reinforce_loss(S, torch.zeros(2, dtype=torch.long), S[..., 0]),
            ValueError,
            "choice: expected shape (*batch, L) = (2, 3) as in scores",
        ),
        (
            lambda: reinforce_loss(S, torch.zeros(2, 3).long(), S[..., 0], baseline=S),
            ValueError,
            "baseline: expected shape (*batch, L) = (2, 3)",
        ),
        (lambda: predicted_centers(Q, torch.ones(5, 3), torch.ones(5), 7), ValueError, "w_p: "),
        (lambda: predicted_centers(Q, torch.ones(5, 4), torch.ones(5), -1), ValueError, "num_keys"),
        (lambda: local_window(S[..., 0], 5, 0), ValueError, "half_width: expected at least 1"),
        (lambda: local_window(S[..., 0], 5, 1.5), TypeError, "half_width: expected an int"),
        (lambda: local_weights(S, S, 1), ValueError, "centers: expected shape (*batch, L) = (2, 3)"),
        (lambda: local_weights(S, S[..., 0], 1, gaussian=2), TypeError, "gaussian: expected True"),
        (lambda: AdditiveAttention(0, 4, 6), ValueError, "query_size: expected at least 1"),
        (lambda: AdditiveAttention(4, 4, 6.0), TypeError, "hidden_size: expected an int"),
        (lambda: BilinearAttention(4, 4, dropout=1), ValueError, "dropout: expected a probability"),
        (lambda: ADDITIVE(Q[..., :3], K, V), ValueError, "query: expected shape (B, L, dq) = (B, L, 4)"),
        (lambda: ADDITIVE(Q[0], K[0], V[0]), ValueError, "query: expected 3 axes"),
        (lambda: ADDITIVE(Q, K, V[:, :4]), ValueError, "value: expected shape (B, S, dv) = (2, 5, dv) as in query and key"),
        (
            lambda: ADDITIVE(Q, K, V, key_lengths=torch.tensor([1, 2, 3])),
            ValueError,
            "key_lengths: expected shape (B,) = (2,) or (B, L) = (2, 3)",
        ),
        (
            lambda: ADDITIVE(Q, K, V, key_lengths=torch.tensor([1, -2])),
            ValueError,
            "key_lengths: expected at least 0, got -2 to 1",
        ),
        (
            lambda: ADDITIVE(Q, K, V, key_lengths=torch.tensor([1.0, 2.0])),
            TypeError,
            "key_lengths: expected an integer dtype",
        ),
        (lambda: ADDITIVE(Q, K, V, mask=torch.ones(3, 5)), TypeError, "mask: expected torch.bool"),
    ],
)  # fmt: skip
def test_malformed_calls(call, kind, words):
    with pytest.raises(kind) as caught:
        call()
    assert words in str(caught.value)
