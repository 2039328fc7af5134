"""The loss and the schedules, against torch and the formulas."""

import math

import pytest
import torch
from torch.nn import functional

from tested_transformer.training.losses import cross_entropy, token_accuracy
from tested_transformer.training.schedules import one_cycle_rate, paper_rate


def words(*shape, size=7, seed=0, dtype=torch.float64):
    rng = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(*shape, size, generator=rng, dtype=dtype)
    return logits, torch.randint(0, size, shape, generator=rng)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("ignore", [0, 3, None])
def test_against_torch(seed, smoothing, reduction, ignore):
    logits, expected = words(4, 5, seed=seed)
    theirs = logits.clone().requires_grad_()
    wanted = functional.cross_entropy(
        theirs.flatten(0, 1), expected.flatten(), label_smoothing=smoothing, reduction=reduction,
        ignore_index=-100 if ignore is None else ignore,
    )  # fmt: skip
    wanted.backward()
    logits.requires_grad_()
    loss = cross_entropy(
        logits, expected, ignore=ignore, label_smoothing=smoothing, reduction=reduction
    )
    loss.backward()
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(logits.grad, theirs.grad)


def test_low_precision_is_summed_in_float32():
    logits, expected = words(64, 50, dtype=torch.float16)
    wanted = cross_entropy(logits.double(), expected)
    loss = cross_entropy(logits, expected)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-5, atol=0)


def test_padding_changes_nothing():
    logits, expected = words(3, 4)
    expected = expected.clamp(min=1)
    wider = torch.cat([logits, 100 * torch.randn(3, 2, 7, dtype=torch.float64)], dim=1)
    padded = functional.pad(expected, (0, 2))
    torch.testing.assert_close(cross_entropy(wider, padded), cross_entropy(logits, expected))
    assert token_accuracy(wider, padded) == token_accuracy(logits, expected)


def test_nothing_but_padding_is_no_loss():
    logits, _ = words(2, 3)
    nothing = torch.zeros(2, 3, dtype=torch.long)
    logits.requires_grad_()
    loss = cross_entropy(logits, nothing)
    loss.backward()
    assert loss.item() == 0
    assert not logits.grad.any()
    assert token_accuracy(logits, nothing) == 1


def test_scores_of_minus_infinity_elsewhere_are_fine():
    logits = torch.tensor([[0.0, 1.0, float("-inf")]])
    assert math.isclose(
        cross_entropy(logits, torch.tensor([1])).item(), math.log(1 + math.exp(-1)), rel_tol=1e-6
    )


def test_accuracy_counts_words():
    logits = torch.eye(4)[torch.tensor([[1, 2, 3], [1, 1, 0]])]
    assert token_accuracy(logits, torch.tensor([[1, 2, 2], [1, 0, 0]])) == 0.75


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("arguments", "options", "kind", "message"),
    [
        ((torch.zeros(2, 3), torch.zeros(3).long()), {}, ValueError, "expected: expected shape"),
        ((torch.zeros(2, 3), torch.zeros(2)), {}, TypeError, "expected: .* integer"),
        ((torch.zeros(2, 3).long(), torch.zeros(2).long()), {}, TypeError, "logits: .* floating"),
        ((torch.zeros(2, 3), torch.zeros(2).long()), {"label_smoothing": 1.0}, ValueError,
         "label_smoothing: expected a probability"),
        ((torch.zeros(2, 3), torch.zeros(2).long()), {"reduction": "none"}, ValueError,
         'reduction: expected "mean" or "sum"'),
    ],
)  # fmt: skip
def test_bad_arguments(arguments, options, kind, message):
    with pytest.raises(kind, match=message):
        cross_entropy(*arguments, **options)


# --- Schedules ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("warmup", "d_model", "factor"), [(4000, 512, 1.0), (7, 32, 2.5)])
def test_the_papers_schedule_is_a_line_and_a_root(warmup, d_model, factor):
    rates = [paper_rate(s, d_model=d_model, warmup=warmup, factor=factor) for s in range(1, 9000)]
    peak = factor / math.sqrt(d_model * warmup)
    assert max(rates) == rates[warmup - 1]
    assert math.isclose(rates[warmup - 1], peak, rel_tol=1e-12)
    assert math.isclose(rates[0], peak / warmup, rel_tol=1e-12)
    assert math.isclose(rates[4 * warmup - 1] if 4 * warmup < 9000 else peak / 2, peak / 2,
                        rel_tol=1e-12)  # fmt: skip


@pytest.mark.parametrize(("total", "warmup"), [(100, 0.3), (37, 0.15), (10, 0.5), (800, 0.01)])
def test_one_cycle_against_torch(total, warmup):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.02, total_steps=total, pct_start=warmup, cycle_momentum=False
    )
    for step in range(1, total + 1):
        rate = one_cycle_rate(step, total=total, peak=0.02, warmup=warmup)
        assert math.isclose(rate, optimizer.param_groups[0]["lr"], rel_tol=1e-9, abs_tol=1e-15)
        optimizer.step()
        if step < total:
            theirs.step()


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: paper_rate(0, d_model=8), "step: expected at least 1, got 0"),
        (lambda: paper_rate(1, d_model=8, factor=0), "factor: expected a number above 0"),
        (
            lambda: one_cycle_rate(11, total=10, peak=1.0),
            "step: expected at least 1 and at most total = 10",
        ),
        (
            lambda: one_cycle_rate(1, total=10, peak=1.0, warmup=1.5),
            "warmup: expected at least 0 and at most 1",
        ),
        (lambda: one_cycle_rate(1, total=10, peak=-1.0), "peak: expected a number above 0"),
    ],
)
def test_bad_schedules(call, message):
    with pytest.raises(ValueError, match=message):
        call()
