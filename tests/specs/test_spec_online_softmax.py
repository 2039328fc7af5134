"""The Specs of chapter 15: what they accept, and that the symptoms they tell of are true."""

import math

import pytest
import torch

from tested_transformer.functional.backends import tiled
from tested_transformer.functional.inputs import AttentionInputs
from tested_transformer.functional.online_softmax import online_softmax, tiled_attention
from tested_transformer.specs import pitfall
from tested_transformer.specs.judge import judge
from tested_transformer.specs.online_softmax.mutants import Online, Tiled
from tested_transformer.specs.online_softmax.spec import (
    ONLINE_SOFTMAX,
    TILED_ATTENTION,
    plain_attention,
    plain_rows,
)


def of_package(scores, value, tile):
    return online_softmax(scores, value, tile=tile)


def tiles_of_package(query, key, value, tile, causal):
    return tiled_attention(query, key, value, tile=tile, causal=causal)


def by_the_backend(query, key, value, tile, causal):
    """backends/tiled.py, with its own loop; the log-sum-exp from the formula."""
    call = AttentionInputs(query, key, value, query.shape[-1] ** -0.5, causal=causal)
    _, lse = tiles_of_package(query, key, value, tile, causal)
    return tiled.tiled(call, tiled.Tiling(tile, tile)), lse


RIGHT = [
    (ONLINE_SOFTMAX, of_package), (ONLINE_SOFTMAX, Online()),
    (TILED_ATTENTION, tiles_of_package), (TILED_ATTENTION, Tiled()),
    (TILED_ATTENTION, by_the_backend),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "right"), RIGHT)
def test_right_implementations_pass(spec, right):
    verdict = judge(spec, right)
    assert verdict.passed, verdict
    assert dict(verdict.skipped) == {}


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("spec", "formula"), [(ONLINE_SOFTMAX, plain_rows), (TILED_ATTENTION, plain_attention)]
)
def test_the_formula_itself_has_everything_there_at_once(spec, formula, seed):
    """Its numbers are right, its memory is not."""
    verdict = judge(spec, formula, seed=seed)
    assert verdict.failed.startswith("at most")


def test_the_reference_is_what_torch_computes():
    """A wrong reference would widen its own tolerance: it is compared without one."""
    for spec in (ONLINE_SOFTMAX, TILED_ATTENTION):
        for case in spec.draw(0):
            if case.dtype != torch.float64:
                continue
            arguments = case.tensors()
            wanted = spec.read(spec.baseline(**arguments), arguments)
            found = torch.from_numpy(spec.expected(case).astype("float64"))
            assert torch.allclose(found, wanted, rtol=1e-11, atol=1e-11), case.label


def wrong(name, *arguments):
    return pitfall(name).candidate(*arguments)


def test_the_symptoms_of_the_softmax():
    one = torch.ones(1, 1)
    assert wrong("no running maximum", torch.tensor([[89.0]]), one, 1)[0].isnan()
    assert wrong("no running maximum", torch.tensor([[88.0]]), one, 1)[0].isfinite()
    falling = torch.tensor([[800.0, 0.0]], dtype=torch.float64)
    two = torch.ones(2, 1, dtype=torch.float64)
    assert not wrong("the maximum of the tile alone", falling, two, 1)[0].isfinite()
    low = torch.full((1, 2), -900.0)
    assert (
        wrong("a running maximum that starts at a finite number", low, torch.ones(2, 1), 1)[0] == 0
    )
    rising = torch.tensor([[0.0, 2.0]])
    output, _ = wrong("the sum is not rescaled", rising, torch.ones(2, 1), 1)
    assert output.item() == pytest.approx((math.exp(-2) + 1) / 2)
    hidden = torch.tensor([[-math.inf, 0.0]])
    assert wrong("minus infinity minus minus infinity", hidden, torch.ones(2, 1), 1)[0].isnan()
    padded, _ = wrong("the last tile's padding is counted", torch.zeros(1, 3), torch.ones(3, 1), 2)
    assert padded.item() == pytest.approx(3 / 4)


def test_the_symptoms_of_tiles():
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 4, 8).unbind()
    right = plain_attention(query, key, value)[0]
    small = [t[:, :4] for t in (query, key)]
    written = "the head size is written into the kernel"
    assert torch.allclose(
        wrong(written, *small, value, 2, False)[0], plain_attention(*small, value)[0]
    )
    assert not torch.allclose(wrong(written, query, key, value, 2, False)[0], right, atol=0.01)
    square = plain_attention(query, key, value, causal=True)[0]
    for name in ("tiles aligned top-left", "only the diagonal tile is masked"):
        assert torch.allclose(wrong(name, query, key, value, 2, True)[0], square, atol=1e-6)
    ones = torch.ones(400, 1, dtype=torch.bfloat16)
    output, lse = wrong("sums kept in 16 bits", ones[:1] * 0, ones, ones, 1, False)
    assert lse.exp().item() == pytest.approx(256, rel=0.02)
    assert output.item() == 1
