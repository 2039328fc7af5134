"""attention() beyond its Spec: gradients, dtypes, empty axes, NaN, dropout, torch itself, compile."""

import math

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from tested_transformer import attention, reference
from tested_transformer.functional.backends import BACKENDS
from tested_transformer.specs.attention.spec import textbook

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
ON_CPU = sorted({*BACKENDS} - {"flash"})  # tests/gpu has flash
both = pytest.mark.parametrize("backend", ON_CPU)


def tensors(*, heads=4, groups=2, queries=5, keys=7, size=3, width=6, dtype=torch.float64, seed=0):
    """Random query (2 H L d), key (2 G S d), value (2 G S dv)."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (2, heads, queries, size), (2, groups, keys, size), (2, groups, keys, width)
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes]


def options(heads=4, queries=5, keys=7, seed=0):
    """One of everything."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(2, 1, queries, keys, generator=generator) < 0.7
    return {
        "mask": mask,
        "bias": torch.randn(queries, keys, generator=generator, dtype=torch.float64),
        "causal": True,
        "window": 4,
        "key_lengths": torch.tensor([0, 3]),
        "alibi_slopes": torch.rand(heads, generator=generator, dtype=torch.float64),
    }


@both
@pytest.mark.parametrize("name", [None, *options()])
def test_gradients_by_finite_differences(backend, name):
    sizes = {"heads": 2, "queries": 3, "keys": 4}
    chosen = {} if name is None else {name: options(**sizes)[name]}
    inputs = [t.requires_grad_() for t in tensors(**sizes, groups=1, size=2, width=2)]
    bias = chosen.pop("bias", None)
    if bias is not None:
        inputs.append(bias.requires_grad_())

    def call(query, key, value, bias=None):
        return attention(query, key, value, bias=bias, backend=backend, **chosen)

    assert torch.autograd.gradcheck(call, inputs)


@both
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chosen", [{}, {"causal": True}, options()], ids=["none", "causal", "all"])
def test_gradients_in_every_dtype(backend, dtype, chosen):
    """error <= 2 x (the plain formula's error in that dtype) + 4 eps x max |reference|."""
    exact = _exact_gradients(dtype, chosen)
    baseline = _gradients(textbook, dtype, chosen)
    ours = _gradients(lambda *a, **k: attention(*a, backend=backend, **k), dtype, chosen)
    for truth, plain, got in zip(exact, baseline, ours, strict=True):
        assert got.isfinite().all()
        error, plain_error = (np.abs(x.double().numpy() - truth).max() for x in (got, plain))
        bound = 2 * plain_error + 4 * torch.finfo(dtype).eps * np.abs(truth).max()
        assert error <= bound


def _rounded(dtype, chosen):
    """The inputs and options in a dtype, and no fully masked row: there the textbook's gradients are NaN."""
    chosen = {
        name: each.to(dtype) if torch.is_tensor(each) and each.is_floating_point() else each
        for name, each in chosen.items()
    }
    if "mask" in chosen:
        chosen |= {"mask": torch.ones_like(chosen["mask"]), "key_lengths": torch.tensor([7, 5])}
    return [t.to(dtype) for t in tensors()], chosen


def _gradients(function, dtype, chosen):
    inputs, chosen = _rounded(dtype, chosen)
    inputs = [t.requires_grad_() for t in inputs]
    function(*inputs, **chosen).square().sum().backward()
    return [t.grad for t in inputs]


def _exact_gradients(dtype, chosen):
    """The same by hand in longdouble, from the reference's weights."""
    inputs, chosen = _rounded(dtype, chosen)
    query, key, value = (t.double().numpy().astype(np.longdouble) for t in inputs)
    arrays = {
        name: each.double().numpy().astype(np.longdouble)
        if torch.is_tensor(each) and each.is_floating_point()
        else getattr(each, "numpy", lambda each=each: each)()
        for name, each in chosen.items()
    }
    samples, heads, _, size = query.shape
    groups = key.shape[1]
    _, weights = reference.attention(query, key, value, return_weights=True, **arrays)  # B H L S
    each_key, each_value = (np.repeat(a, heads // groups, axis=1) for a in (key, value))
    grad_output = 2 * weights @ each_value
    grad_weights = grad_output @ each_value.swapaxes(-1, -2)
    mean = (weights * grad_weights).sum(-1, keepdims=True)
    grad_scores = weights * (grad_weights - mean) / np.sqrt(np.longdouble(size))
    shared = (samples, groups, heads // groups, key.shape[2], -1)
    grad_key = (grad_scores.swapaxes(-1, -2) @ query).reshape(shared).sum(2)
    grad_value = (weights.swapaxes(-1, -2) @ grad_output).reshape(shared).sum(2)
    return grad_scores @ each_key, grad_key, grad_value


@both
def test_empty_rows_are_zero_with_zero_gradients_in_every_dtype(backend):
    for dtype in DTYPES:
        query, key, value = (t.requires_grad_() for t in tensors(dtype=dtype))
        mask = torch.ones(5, 7, dtype=torch.bool)
        mask[2] = False
        output = attention(query, key, value, mask=mask, backend=backend)
        output.sum().backward()
        assert output[:, :, 2].eq(0).all()
        assert query.grad[:, :, 2].eq(0).all()
        assert all(t.grad.isfinite().all() for t in (query, key, value))


@both
def test_a_bias_can_empty_a_row_too(backend):
    query, key, value = (t.requires_grad_() for t in tensors())
    bias = torch.zeros(5, 7, dtype=torch.float64)
    bias[2] = -math.inf
    output = attention(query, key, value, bias=bias, backend=backend)
    output.sum().backward()
    assert output[:, :, 2].eq(0).all()
    assert query.grad[:, :, 2].eq(0).all()
    assert all(t.grad.isfinite().all() for t in (query, key, value))


@both
def test_no_nan_is_ever_formed_at_an_empty_row(backend):
    query, key, value = (t.requires_grad_() for t in tensors())
    mask = torch.zeros(5, 7, dtype=torch.bool)
    with pytest.warns(UserWarning, match="Anomaly"), torch.autograd.detect_anomaly(check_nan=True):
        attention(query, key, value, mask=mask, backend="plain").sum().backward()
    assert attention(query, key, value, mask=mask, backend=backend).eq(0).all()


@both
@pytest.mark.parametrize(
    ("batch", "queries", "keys"), [(0, 3, 4), (2, 0, 4), (2, 3, 0), (2, 0, 0), (0, 0, 0)]
)
@pytest.mark.parametrize("chosen", [{}, {"causal": True}, {"window": 2}], ids=str)
def test_empty_axes(backend, batch, queries, keys, chosen):
    query = torch.ones(batch, 2, queries, 3, requires_grad=True)
    key, value = torch.ones(batch, 2, keys, 3), torch.ones(batch, 2, keys, 5)
    lengths = torch.zeros(batch, dtype=torch.long)
    output = attention(query, key, value, backend=backend, key_lengths=lengths, **chosen)
    assert output.shape == (batch, 2, queries, 5)
    assert output.eq(0).all()
    output.sum().backward()
    assert query.grad.eq(0).all()


@both
def test_no_keys_at_all_gives_zeros(backend):
    query, key, value = torch.ones(3, 4), torch.ones(0, 4), torch.ones(0, 2)
    assert attention(query, key, value, backend=backend).eq(torch.zeros(3, 2)).all()


@both
@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 1])
def test_nan_and_inf_propagate_from_where_they_are_seen(backend, poison, place):
    inputs = [t.abs() for t in tensors()]  # all products positive: inf stays +inf
    inputs[place][0, 0, 0, 0] = poison
    output = attention(*inputs, backend=backend)
    assert not output[0, 0, 0].isfinite().any()
    assert output[1].isfinite().all()


@both
def test_finite_garbage_in_hidden_places_does_not_count(backend):
    query, key, value = tensors()
    clean = attention(query, key, value, key_lengths=torch.tensor([4, 4]), backend=backend)
    key[:, :, 4:], value[:, :, 4:] = 1e30, -1e30
    soiled = attention(query, key, value, key_lengths=torch.tensor([4, 4]), backend=backend)
    assert torch.equal(clean, soiled)


def test_weights_are_those_after_dropout():
    query, key, value = tensors()
    torch.manual_seed(0)
    output, weights = attention(query, key, value, dropout_p=0.5, return_weights=True)
    assert weights.shape == (2, 4, 5, 7)
    assert (weights == 0).any()
    torch.testing.assert_close(output, weights @ value.repeat_interleave(2, dim=1))


@both
def test_dropout_keeps_the_mean(backend):
    """Each weight is 0 or doubled with probability 1/2: the mean of n runs has variance 1/n of one."""
    runs = 2000
    query, key, value = (t[:1] for t in tensors(groups=4, queries=2, keys=3))
    exact = attention(query, key, value)[0]
    torch.manual_seed(0)
    many = [t.expand(runs, -1, -1, -1) for t in (query, key, value)]
    samples = attention(*many, dropout_p=0.5, backend=backend)
    standard_error = samples.std(0) / math.sqrt(runs)
    assert ((samples.mean(0) - exact).abs() <= 5 * standard_error).all()
    assert samples.std(0).max() > 0.1


def test_dropout_applies_also_without_gradients():
    query, key, value = tensors()
    with torch.no_grad():
        assert not torch.equal(
            attention(query, key, value, dropout_p=0.5), attention(query, key, value)
        )


@both
def test_output_dtype_and_float32_softmax(backend):
    """In float16 the products of these inputs overflow 65504; in float32 they do not."""
    for dtype in DTYPES:
        assert attention(*tensors(dtype=dtype), backend=backend).dtype == dtype
    query, key, value = (100 * torch.ones(3, 128, dtype=torch.float16) for _ in range(3))
    assert attention(query, key, value, backend="plain").isfinite().all()


def test_the_plain_backend_says_what_torch_says():
    query, key, value = tensors(groups=4)
    mask = torch.rand(2, 4, 5, 7, generator=torch.Generator().manual_seed(1)) < 0.5
    for ours, theirs in (
        ({}, {}),
        ({"mask": mask}, {"attn_mask": mask}),
        ({"scale": 0.2}, {"scale": 0.2}),
        ({"bias": mask.double()}, {"attn_mask": mask.double()}),
    ):
        expected = scaled_dot_product_attention(query, key, value, **theirs)
        torch.testing.assert_close(attention(query, key, value, backend="plain", **ours), expected)


def test_causal_is_bottom_right_where_torch_is_top_left():
    query, key, value = tensors(groups=4)
    expected = scaled_dot_product_attention(query, key, value, is_causal=True)
    assert not torch.allclose(attention(query, key, value, causal=True), expected)
    square = (query, key[:, :, :5], value[:, :, :5])
    expected = scaled_dot_product_attention(*square, is_causal=True)
    torch.testing.assert_close(attention(*square, causal=True), expected)


@hypothesis.given(
    batch=st.integers(1, 3), groups=st.integers(1, 3), share=st.integers(1, 3),
    queries=st.integers(0, 6), keys=st.integers(0, 6), size=st.integers(1, 5),
    width=st.integers(0, 4), causal=st.booleans(), window=st.none() | st.integers(1, 7),
    seed=st.integers(0, 2**31), backend=st.sampled_from(ON_CPU),
)  # fmt: skip
@hypothesis.settings(max_examples=60)
def test_any_shape_and_options_equal_the_reference(
    batch, groups, share, queries, keys, size, width, causal, window, seed, backend
):
    rng = np.random.default_rng(seed)
    heads = groups * share
    shapes = {"query": (batch, heads, queries, size), "key": (batch, groups, keys, size),
              "value": (batch, groups, keys, width)}  # fmt: skip
    arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    arrays["mask"] = rng.random((batch, 1, queries, keys)) < 0.7
    arrays["key_lengths"] = rng.integers(0, keys + 1, size=batch)
    chosen = {"causal": causal, "window": window}
    expected = reference.attention(**arrays, **chosen)
    got = attention(
        **{n: torch.from_numpy(a) for n, a in arrays.items()}, **chosen, backend=backend
    )
    torch.testing.assert_close(got, torch.from_numpy(expected))


@pytest.mark.plain_types
@both
def test_compiles_to_the_same_numbers(backend):
    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
    chosen = {"causal": True, "window": 3, "key_lengths": torch.tensor([4, 7]), "backend": backend}
    torch.testing.assert_close(compiled(*tensors(), **chosen), attention(*tensors(), **chosen))


@both
def test_autocast_and_views(backend):
    query, key, value = tensors(dtype=torch.float32)
    turned = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (query, key, value)]
    expected = attention(query, key, value, backend=backend)
    torch.testing.assert_close(attention(*turned, backend=backend), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loose = attention(query, key, value, backend=backend)
    torch.testing.assert_close(loose.float(), expected, rtol=0.05, atol=0.05)
