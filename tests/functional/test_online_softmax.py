"""Softmax and attention in pieces: against the formula, against autograd, and tiles against masks."""

import importlib.util
import json
import os
import subprocess
import sys
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tested_transformer import attention, causal_mask, window_mask
from tested_transformer.functional.online_softmax import (
    FULL,
    MASKED,
    SKIPPED,
    Partial,
    empty_state,
    merge,
    normalize,
    online_softmax,
    partial_softmax,
    tile_kinds,
    tiled_attention,
    tiled_gradients,
    tiles,
)

ROOT = Path(__file__).resolve().parents[2]
F64 = {"dtype": torch.float64}


def row(keys, seed=0, spread=1.0, shift=0.0):
    generator = torch.Generator().manual_seed(seed)
    scores = shift + spread * torch.randn(3, keys, generator=generator, **F64)
    return scores, torch.randn(keys, 2, generator=generator, **F64)


@pytest.mark.parametrize("tile", [1, 2, 3, 7, 20])
@pytest.mark.parametrize(("spread", "shift"), [(1.0, 0.0), (1000.0, 0.0), (1.0, -5000.0)])
def test_in_tiles_equals_at_once(tile, spread, shift):
    scores, value = row(7, spread=spread, shift=shift)
    output, lse = online_softmax(scores, value, tile=tile)
    assert torch.allclose(output, scores.softmax(-1) @ value, atol=1e-12)
    assert torch.allclose(lse, scores.logsumexp(-1), rtol=1e-12)


def test_merging_is_commutative_associative_and_has_a_neutral_element():
    scores, value = row(9, spread=20.0)
    parts = [partial_softmax(scores[:, at], value[at]) for at in tiles(9, 2)]
    whole = normalize(partial_softmax(scores, value))
    orders = [parts, parts[::-1], [parts[n] for n in (3, 0, 4, 1, 2)]]
    found = [normalize(reduce(merge, order)) for order in orders]
    found.append(normalize(merge(merge(parts[0], parts[1]), reduce(merge, parts[2:]))))
    found.append(normalize(reduce(merge, [empty_state(scores, 2), *parts, empty_state(scores, 2)])))
    for output, lse in found:
        assert torch.allclose(output, whole[0], atol=1e-13)
        assert torch.allclose(lse, whole[1], atol=1e-13)


def test_nothing_with_nothing_is_nothing():
    scores, _ = row(4)
    both = merge(empty_state(scores, 2), empty_state(scores, 2))
    for part, wanted in zip(both, empty_state(scores, 2), strict=True):
        assert torch.equal(part, wanted)
    output, lse = normalize(both)
    assert not output.any()
    assert (lse == torch.inf).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_is_summed_in_float32(dtype):
    scores, value = torch.zeros(1, 3000, dtype=dtype), torch.ones(3000, 1, dtype=dtype)
    output, lse = online_softmax(scores, value, tile=1)
    assert output.dtype == dtype
    assert output.item() == 1
    assert lse.dtype == torch.float32
    assert lse.item() == pytest.approx(np.log(3000), rel=1e-6)


SHAPES = [(7, 10, 3), (7, 7, 3), (4, 4, 2), (9, 4, 2), (5, 5, 8), (1, 6, 4), (0, 3, 2), (3, 0, 2)]


@pytest.mark.parametrize(("length", "keys", "tile"), SHAPES)
@pytest.mark.parametrize("causal", [False, True])
def test_forward_and_backward_equal_the_formula(length, keys, tile, causal):
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, n, 4, **F64) for n in (length, keys, keys))
    inputs = [t.clone().requires_grad_() for t in (query, key, value)]
    plain = attention(*inputs, causal=causal, backend="plain")
    output, lse = tiled_attention(query, key, value, tile=tile, causal=causal)
    assert torch.allclose(output, plain, atol=1e-13)
    gradient = torch.randn_like(plain)
    wanted = torch.autograd.grad(plain, inputs, gradient)
    found = tiled_gradients(query, key, value, output, lse, gradient, tile=tile, causal=causal)
    for got, want in zip(found, wanted, strict=True):
        assert torch.allclose(got, want, atol=1e-13)


sizes = st.integers(0, 13)


@settings(max_examples=200)
@given(
    sizes, sizes, st.integers(1, 6), st.integers(1, 6), st.booleans(), st.none() | st.integers(1, 9)
)
def test_kinds_of_tiles_are_what_the_mask_says(length, keys, rows, cols, causal, window):
    mask = torch.ones(length, keys, dtype=torch.bool)
    if causal:
        mask &= causal_mask(length, keys)
    if window is not None:
        mask &= window_mask(length, keys, window=window)
    kinds = tile_kinds(length, keys, rows=rows, cols=cols, causal=causal, window=window)
    for n, at in enumerate(tiles(length, rows)):
        for m, to in enumerate(tiles(keys, cols)):
            part = mask[at, to]
            whole = part.all() and part.shape[1] == cols
            assert kinds[n, m] == (FULL if whole else MASKED if part.any() else SKIPPED)


KERNEL = """
import json, torch, triton, triton.language as tl
from tested_transformer.functional.backends.flash_kernels import tile_range

@triton.jit
def write(out, start, size, limit, shift, window, STEP: tl.constexpr, CAUSAL: tl.constexpr,
          WINDOW: tl.constexpr):
    low, first, last, high = tile_range(start, size, limit, shift, window, STEP, CAUSAL, WINDOW, True)
    tl.store(out, low); tl.store(out + 1, first); tl.store(out + 2, last); tl.store(out + 3, high)

found = []
for length, keys, size, step, causal, window in json.loads(input()):
    for start in range(0, length, size):
        out = torch.zeros(4, dtype=torch.int32)
        write[(1,)](out, start, size, keys, keys - length, window or 0, STEP=step, CAUSAL=causal,
                    WINDOW=window is not None)
        found.append(out.tolist())
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_the_kernels_take_the_same_tiles(tmp_path):
    """The kernels' own tile_range, in Triton's interpreter, in a process of its own."""
    cases = [
        (length, keys, size, step, causal, window)
        for length, keys in ((8, 8), (12, 8), (4, 20), (8, 11), (4, 3))
        for size, step in ((4, 4), (4, 2), (2, 4))
        for causal in (False, True)
        for window in (None, 1, 5)
    ]
    script = tmp_path / "kernel.py"
    script.write_text(KERNEL, encoding="utf-8")  # Triton reads the source of a kernel from its file
    path = os.pathsep.join([str(ROOT / "code"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(script)], input=json.dumps(cases), capture_output=True, text=True,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ranges = iter(json.loads(done.stdout))
    for length, keys, size, step, causal, window in cases:
        kinds = tile_kinds(length, keys, rows=size, cols=step, causal=causal, window=window)
        for found in kinds:
            low, first, last, high = next(ranges)
            places = range(0, keys, step)
            phases = [
                FULL if first <= at < last else MASKED if low <= at < high else SKIPPED
                for at in places
            ]
            assert phases == found.tolist(), (length, keys, size, step, causal, window)


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda s, v: online_softmax([1.0], v, tile=1), TypeError, "scores: expected a torch.Tensor"),
        (lambda s, v: online_softmax(s, v.float(), tile=1), TypeError, "value: expected scores's dtype"),
        (lambda s, v: online_softmax(s, v[:3], tile=1), ValueError, r"value: expected shape \(\*batch, S, dv\) = \(4, dv\) as in scores"),
        (lambda s, v: online_softmax(s[0], v, tile=1), ValueError, "scores: expected at least 2 axes"),
        (lambda s, v: online_softmax(s, v, tile=0), ValueError, "tile: expected at least 1"),
        (lambda s, v: tiled_attention(v, v, v, tile=2.0), TypeError, "tile: expected an int"),
        (lambda s, v: tiled_attention(v, v, v, tile=2, causal=1), TypeError, "causal: expected True"),
        (lambda s, v: tiled_attention(s, v, v, tile=2), ValueError, r"key: expected shape .* = \(S, 4\) as in query"),
        (lambda s, v: tile_kinds(4, 4, rows=0, cols=1), ValueError, "rows: expected at least 1"),
        (lambda s, v: tile_kinds(4, 4, rows=1, cols=1, window=0), ValueError, "window: expected"),
        (lambda s, v: partial_softmax("x", v), TypeError, "scores: expected a torch.Tensor, got str"),
        (lambda s, v: partial_softmax(s[:, :0], v[:0]), ValueError, "scores: expected S of at least 1"),
        (lambda s, v: empty_state(s, -1), ValueError, "width: expected at least 0, got -1"),
        (lambda s, v: merge(partial_softmax(s, v), v), TypeError, "second: expected a Partial, got"),
        (lambda s, v: merge(partial_softmax(s, v), partial_softmax(s[:1], v)), ValueError,
         r"second.maximum: expected shape \(\*batch, L\) = \([3-9],\) as in first.maximum"),
        (lambda s, v: merge(partial_softmax(s, v), partial_softmax(s, v)._replace(accumulator=3)), TypeError,
         "second.accumulator: expected a torch.Tensor, got int"),
        (lambda s, v: normalize((s, s, v)), TypeError, "part: expected a Partial, got tuple"),
        (lambda s, v: tiled_gradients(v, v, v, v.sum(), s[:, 0], v, tile=2), ValueError,
         "output: expected at least 2 axes"),
        (lambda s, v: tiled_gradients(v, v, v, "x", s[:, 0], v, tile=2), TypeError, "output: expected"),
    ],
)  # fmt: skip
def test_refused(call, kind, message):
    with pytest.raises(kind, match=message):
        call(*row(4))


def test_partial_is_small():
    """What is kept does not grow with the number of keys."""
    kept = [sum(t.numel() for t in partial_softmax(*row(keys))) for keys in (5, 500)]
    assert kept[0] == kept[1]
    assert Partial._fields == ("maximum", "total", "accumulator")
