"""The Spec of attention over the flash kernels, and combinations of features that nobody thought of."""

from dataclasses import replace

import pytest
import torch
from test_flash import LENGTHS, SIZES, assert_right, bounds, options_for, tensors
from torch.nn.functional import pad

from tested_transformer import attention
from tested_transformer.functional.backends import flash
from tested_transformer.specs import judge
from tested_transformer.specs.attention.spec import ATTENTION
from tested_transformer.specs.spec import GRADIENTS

triton = pytest.importorskip("triton", reason="Triton is not installed")
tl = pytest.importorskip("triton.language")
from tested_transformer.functional.backends.flash_kernels import tile_range  # noqa: E402

ROWS, WIDTH = flash.FEWEST_ROWS, 16


def by_flash(
    query, key, value, *, mask=None, bias=None, key_lengths=None, alibi_slopes=None, **options
):
    """Any call, brought into the form that the kernels serve.

    Rows of zeros in front (the alignment is bottom-right), columns of zeros, four axes.
    """
    rows, size, width = query.shape[-2], query.shape[-1], value.shape[-1]
    options["scale"] = size**-0.5 if options.get("scale") is None else options["scale"]
    more = max(0, ROWS - rows)
    if mask is not None:
        mask = _in_front(four(mask, query.ndim), rows, more, True)
    if bias is not None:
        bias = _in_front(four(bias, query.ndim), rows, more, 0.0)
    if query.ndim == 2 and key_lengths is None:
        query, key, value = query[None], key[None], value[None]
    if query.ndim == 3:
        query, key, value = query[:, None], key[:, None], value[:, None]
    query = pad(query, (0, WIDTH - size, more, 0))
    key, value = pad(key, (0, WIDTH - size)), pad(value, (0, WIDTH - width))
    output = attention(
        query, key, value, mask=mask, bias=bias, key_lengths=key_lengths,
        alibi_slopes=alibi_slopes, backend="flash", **options,
    )  # fmt: skip
    return output[..., more:, :width]


def four(tensor, axes):
    """A mask or bias of (L, S) as it is, one of the scores' rank with four axes."""
    return tensor[:, None] if tensor.ndim == axes == 3 else tensor


def _in_front(tensor, rows, more, fill):
    """More rows in front, unless one row stands for all."""
    return (
        tensor
        if tensor.shape[-2] != rows or rows == 1
        else pad(tensor, (0, 0, more, 0), value=fill)
    )


def served(rng):
    """The Spec's listed cases, those in float64 brought to float32; long ones are asked elsewhere."""
    cases = [case for case in ATTENTION.cases(rng) if case.arguments["key"].shape[-2] < 100]
    return [replace(c, dtype=torch.float32) if c.dtype == torch.float64 else c for c in cases]


def squeezed(query, key, value, **options):
    """As `by_flash`, with the axes that the call had."""
    output = by_flash(query, key, value, **options)
    return output.view(*query.shape[:-1], value.shape[-1])


@pytest.mark.parametrize("seed", [0] if flash.INTERPRETED else [0, 1, 2])
def test_the_spec_of_attention(seed, device):
    def there_and_back(*tensors, **options):
        moved = {k: v.to(device) if torch.is_tensor(v) else v for k, v in options.items()}
        return squeezed(*(t.to(device) for t in tensors), **moved).cpu()

    checks = [check for check in ATTENTION.checks if check.name != GRADIENTS.name]  # none of a bias
    asked = replace(ATTENTION, cases=served, combine=None, checks=checks, differentiable=False)
    verdict = judge(asked, there_and_back, seed=seed)
    assert verdict.passed, verdict
    assert not verdict.skipped


@triton.jit
def range_kernel(out, start, size, limit, shift, window, STEP: tl.constexpr, CAUSAL: tl.constexpr,
                 WINDOW: tl.constexpr, OF_KEYS: tl.constexpr):  # fmt: skip
    """Write down what tile_range says."""
    bounds = tile_range(start, size, limit, shift, window, STEP, CAUSAL, WINDOW, OF_KEYS)
    for n in tl.static_range(4):
        tl.store(out + n, bounds[n])


@pytest.mark.parametrize("of_keys", [True, False])
@pytest.mark.parametrize(
    ("causal", "window"), [(False, 0), (True, 0), (False, 5), (True, 5), (True, 1)]
)
@pytest.mark.parametrize(("rows", "cols"), [(16, 16), (13, 22), (22, 13), (40, 9)])
def test_tile_range_is_what_the_mask_says(rows, cols, causal, window, of_keys, device):
    """low to high holds all that is visible, first to last nothing else, and no tile is for nothing."""
    back = torch.arange(rows)[:, None] + cols - rows - torch.arange(cols)
    seen = torch.ones(rows, cols, dtype=torch.bool)
    seen &= (back >= 0) | (not causal)
    seen &= (back.abs() < window) | (not window)
    table, size, step = (seen, 8, 4) if of_keys else (seen.T, 4, 8)
    shift = cols - rows if of_keys else rows - cols
    for start in range(0, len(table), size):
        out = torch.zeros(4, dtype=torch.int32, device=device)
        range_kernel[(1,)](
            out, start, size, table.shape[1], shift, window, STEP=step, CAUSAL=causal,
            WINDOW=bool(window), OF_KEYS=of_keys,
        )  # fmt: skip
        low, first, last, high = out.tolist()
        tile = table[start : start + size]
        assert not tile[:, :low].any()
        assert not tile[:, max(high, last) :].any()
        assert tile[:, first:last].all()
        assert low % step == first % step == last % step == 0
        assert low <= first <= last
        for at in [*range(low, first, step), *range(last, high, step)]:
            whole = len(tile) == size and at + step <= table.shape[1]
            partly = tile[:, at : at + step]
            assert not (whole and partly.all()), "a full tile is masked"


def test_combinations(device):
    """Options drawn at random, with the shapes."""
    hypothesis = pytest.importorskip("hypothesis")
    from hypothesis import strategies as st

    names = ("causal", "window", "key_lengths", "alibi_slopes", "mask", "key mask", "bias")

    @hypothesis.settings(
        max_examples=8 if flash.INTERPRETED else 150, derandomize=True,
        phases=[hypothesis.Phase.generate],  # an example takes seconds here: none to make it smaller
    )  # fmt: skip
    @hypothesis.given(
        rows=st.integers(16, 50 if flash.INTERPRETED else 300),
        cols=st.integers(2, 50 if flash.INTERPRETED else 300),
        size=st.sampled_from(SIZES),
        chosen=st.sets(st.sampled_from(names)),
        heads=st.sampled_from([(2, 1), (2, 2), (3, 1)]),
        dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
        seed=st.integers(0, 99),
    )
    def right(rows, cols, size, chosen, heads, dtype, seed):
        if {"mask", "key mask"} <= chosen:
            chosen = chosen - {"mask"}
        heads, groups = heads
        inputs = tensors(
            (rows, cols), size, heads=heads, groups=groups, dtype=dtype, device=device, seed=seed
        )
        options = options_for(sorted(chosen), (rows, cols), heads=heads, device=device, seed=seed)
        # Where a row sees one key, its weight is 1 whatever the scores: all terms of the gradient
        # cancel, and there is no number left to measure an error by. Nearly so where a row sees two
        # keys and one of them has all the weight, so a few such rows alone are no measure either.
        seen = attention(*(torch.ones_like(t) for t in inputs), return_weights=True, **options)[1]
        hypothesis.assume(int(((seen > 0).sum(-1) > 1).sum()) >= 16)
        assert_right(inputs, options)

    right()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_the_small_kernel(dtype, causal, device):
    from tested_transformer.functional.backends.flash_small import small_flash

    tile = 16 if flash.INTERPRETED else 64
    for lengths in LENGTHS:
        inputs = tensors(lengths, SIZES[0], groups=2, dtype=dtype, device=device)
        with torch.no_grad():
            got = small_flash(*inputs, causal=causal, tile=tile)
        gradient = torch.zeros_like(inputs[0])
        truth, allowed = bounds(inputs, gradient, {"causal": causal})
        assert float((got.double() - truth[0]).abs().max()) <= allowed[0]


def test_the_small_kernel_refuses_what_it_would_read_wrongly(device):
    from tested_transformer.functional.backends.flash_small import small_flash

    query, key, value = (torch.randn(1, 4, 8, 16, device=device) for _ in range(3))
    heads = torch.randn(1, 8, 4, 16, device=device).transpose(1, 2)  # a view, as a layer makes it
    for number in range(3):
        mixed = [query, key, value]
        mixed[number] = heads
        with pytest.raises(ValueError, match="contiguous"):
            small_flash(*mixed, tile=16)
    for wrong in (
        (query, key[:, :2].contiguous(), value[:, :2].contiguous()),  # fewer KV heads
        (query, key, torch.randn(1, 4, 8, 32, device=device)),  # wider values
        (query, key, value[:, :, :7].contiguous()),  # fewer values than keys
        (query, key[..., :8].contiguous(), value[..., :8].contiguous()),
    ):
        with pytest.raises(ValueError, match="the same heads"):
            small_flash(*wrong, tile=16)
