"""Same weights, same numbers: DESIGN.md's tolerance for whole models, where torch's module is "plain"."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

Groups = Mapping[str, Sequence[Tensor]]
_draw: int | None = None  # set by `rounded`
EPS = {dtype: torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64)}


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """All numbers in one row, in float64."""
    return torch.cat([t.detach().double().flatten() for t in tensors])


def largest(x: Tensor) -> float:
    """The size of the largest number; NaN if there is one."""
    return float(x.abs().max()) if x.numel() else 0.0


def assert_same_numbers(
    ours: Callable[[torch.dtype], Groups], theirs: Callable[[torch.dtype], Groups]
) -> dict[str, dict[str, float]]:
    """Both run in float32 and float64; ours errs at most 2 x theirs + 4 eps x the largest number.

    The truth is theirs in float64, and each group of numbers (outputs, gradients) is held to it by
    itself. "Theirs" is the worst error of a group in float32, relative to its largest number, in three
    runs: one run is one draw from what rounding can do, and on some processors torch's own numbers
    would fail against another draw. In the other two every weight of a module from `in_dtype` is
    moved by at most one rounding. In float64 the truth errs too, by as much in units of eps: there
    it counts a third time.
    Returns the errors of each group, in units of eps x the largest number.
    """
    right, rough = theirs(torch.float64), [rounded(theirs, draw) for draw in (None, 0, 1)]
    truth = {name: flat(group) for name, group in right.items()}
    size = {name: largest(numbers) for name, numbers in truth.items()}
    assert all(0 < s < float("inf") for s in size.values()), size
    errors = [largest(flat(run[n]) - truth[n]) / size[n] for run in rough for n in truth]
    plain = max(errors) / EPS[torch.float32]
    report = {name: {"plain": plain} for name in truth}
    for dtype, times in ((torch.float32, 2), (torch.float64, 3)):
        got = ours(dtype)
        assert got.keys() == truth.keys()
        for name, group in got.items():
            numbers, unit = flat(group), EPS[dtype] * size[name]
            assert numbers.shape == truth[name].shape, f"{name}: {len(numbers)} numbers"
            error, allowed = largest(numbers - truth[name]) / unit, times * plain + 4
            assert error <= allowed, f"{name}, {dtype}: off by {error:.3g}, allowed {allowed:.3g}"
            report[name][str(dtype).removeprefix("torch.")] = error
    return report


def assert_float32_same(
    ours: Callable[[torch.dtype], Groups], theirs: Callable[[torch.dtype], Groups]
) -> None:
    """For models that go through float32 whatever they are given (norms, softmax, angles of Llama).

    The truth is ours in float64, whose formulas others are held to; theirs in float32 errs at most
    2 x ours + 4 eps x the largest number, "ours" being the worst of three runs as above.
    """
    right, runs = ours(torch.float64), [rounded(ours, draw) for draw in (None, 0, 1)]
    truth = {name: flat(group) for name, group in right.items()}
    size = {name: largest(numbers) for name, numbers in truth.items()}
    plain = max(largest(flat(run[n]) - truth[n]) / size[n] for run in runs for n in truth)
    for name, group in theirs(torch.float32).items():
        error = largest(flat(group) - truth[name]) / size[name]
        allowed = 2 * plain + 4 * EPS[torch.float32]
        assert error <= allowed, f"{name}: off by {error:.3g} of the largest, allowed {allowed:.3g}"


def rounded(run: Callable[[torch.dtype], Groups], draw: int | None) -> Groups:
    """A run in float32, its weights moved by at most one rounding (None: not moved)."""
    global _draw
    _draw = draw
    try:
        return run(torch.float32)
    finally:
        _draw = None


def in_dtype(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy with the same numbers in that dtype, and no gradients; inside `rounded`, nearly the same."""
    twin = copy.deepcopy(module).to(dtype)
    twin.zero_grad(set_to_none=True)
    if _draw is not None:
        generator = torch.Generator().manual_seed(_draw)
        with torch.no_grad():
            for weight in twin.parameters():
                moved = 2 * torch.rand(weight.shape, generator=generator, dtype=dtype) - 1
                weight.mul_(1 + torch.finfo(dtype).eps * moved)
    return twin


def gradients_as_weights(module: nn.Module) -> nn.Module:
    """A copy in which every weight is replaced by its gradient, so that pairs of weights pair them."""
    twin = copy.deepcopy(module)
    with torch.no_grad():
        for weight, source in zip(twin.parameters(), module.parameters(), strict=True):
            weight.copy_(torch.zeros_like(source) if source.grad is None else source.grad)
    return twin


def shake(module: nn.Module, seed: int) -> nn.Module:
    """Draw every weight, scales and shifts too: at the start they are 1 and 0, which hides mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in filter(lambda p: p.requires_grad, module.parameters()):
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            if parameter.ndim > 1:
                parameter.copy_(noise / parameter.shape[-1] ** 0.5)
            else:
                parameter.add_(0.3 * noise)
    return module
