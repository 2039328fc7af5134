"""State spaces with a diagonal matrix (S4D): a linear recurrence whose steps are all alike is a convolution."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from ..bounds import PositiveInt
from ..shapes import checked

__all__ = [
    "convolved_state_space",
    "discretize",
    "recurrent_state_space",
    "s4d_lin",
    "state_space_kernel",
]

Method = Literal["zoh", "euler"]
Outputs = tuple[Float[Tensor, "B L D"], Complex[Tensor, "B D N"]]


@checked
def discretize(
    delta: Tensor, a: Tensor, b: Tensor, *, method: Method = "zoh"
) -> tuple[Tensor, Tensor]:
    """One step of size delta of dh/dt = a h + b x, for an x that is constant during the step.

    Both methods have exp(delta a) for the old state. For the input, "zoh" (zero-order hold) is exact:
    b (exp(delta a) - 1) / a. "euler" is delta b, its first term: larger by -delta^2 a b / 2 and smaller terms.

    Shapes: any that broadcast; a and b may be complex -> the factor of the state, and that of the input.
    Raises: TypeError or ValueError that name the argument.
    Source: Gu and Dao 2023 (Mamba), equation 4 for "zoh"; state-spaces/mamba, selective_scan_ref for "euler".

    >>> zoh, euler = (discretize(*torch.tensor([0.5, -1.0, 1.0]), method=m)[1] for m in ("zoh", "euler"))
    >>> round(float(zoh), 4), float(euler)
    (0.3935, 0.5)
    """
    z = delta * a
    b_bar = delta * b
    return z.exp(), b_bar * exp_ratio(z) if method == "zoh" else b_bar


def exp_ratio(z: Tensor) -> Tensor:
    """(exp(z) - 1) / z, which is 1 at 0. Near 0, where the quotient's gradient would cancel, by its series."""
    near, one = z.abs() < 0.1, torch.ones_like(z)
    small, series = torch.where(near, z, one), one  # each branch gets numbers that suit it: no NaN
    for n in range(11, 1, -1):
        series = 1 + small / n * series  # 1 + z/2 + z^2/6 + ...; what is left out is below 1e-17
    far = torch.where(near, one, z)
    return torch.where(near, series, (far.exp() - 1) / far)


@checked
def s4d_lin(num_features: PositiveInt, num_states: PositiveInt) -> Complex[Tensor, "D N"]:
    """The initial a of S4D-Lin: -1/2 + i pi n, decaying oscillations of rising frequency.

    Shapes: (D, N), complex64.
    Raises: TypeError or ValueError that name the argument.
    Source: Gu et al. 2022 (S4D).
    """
    frequencies = math.pi * torch.arange(num_states)
    return torch.complex(torch.full((num_states,), -0.5), frequencies).repeat(num_features, 1)


# --- Two forms of one function --------------------------------------------------------------------


@checked
def recurrent_state_space(
    x: Float[Tensor, "B L D"],
    delta: Float[Tensor, " D"],
    a: Complex[Tensor, "D N"],
    b: Complex[Tensor, "D N"],
    c: Complex[Tensor, "D N"],
    *,
    skip: Float[Tensor, " D"] | None = None,
    state: Complex[Tensor, "B D N"] | None = None,
    method: Method = "zoh",
) -> Outputs:
    """Token by token: h = exp(delta a) h + b_bar x, and y = 2 Re(c . h) + skip x, each feature by itself.

    Of each pair of conjugate states one is kept: the other would add the same real part, hence the 2.

    Shapes: x (B, L, D), delta and skip (D), a, b and c (D, N), state (B, D, N) -> (B, L, D), and the state after
        the last token.
    Raises: TypeError or ValueError that name the argument.
    Source: Gu et al. 2022 (S4D); Gu et al. 2021 (S4).
    """
    a_bar, b_bar = discretize(delta[:, None], a, b, method=method)  # D N
    state = _zeros(x, a) if state is None else state
    outputs = [x[:, :0]]  # so that there is something to join without any token
    for token in x.unbind(1):
        state = a_bar * state + b_bar * token[..., None]  # B D N
        outputs.append(2 * (c * state).sum(-1).real[:, None])  # B 1 D
    return _skipped(torch.cat(outputs, 1), x, skip), state


@checked
def convolved_state_space(
    x: Float[Tensor, "B L D"],
    delta: Float[Tensor, " D"],
    a: Complex[Tensor, "D N"],
    b: Complex[Tensor, "D N"],
    c: Complex[Tensor, "D N"],
    *,
    skip: Float[Tensor, " D"] | None = None,
    state: Complex[Tensor, "B D N"] | None = None,
    method: Method = "zoh",
) -> Outputs:
    """All tokens at once: unrolled, the recurrence is a convolution with a kernel as long as the text, done by FFT.

    Shapes, arguments: those of `recurrent_state_space`, which gives the same numbers.
    Raises: TypeError or ValueError that name the argument.
    Source: Gu et al. 2022 (S4D); Gu et al. 2021 (S4).
    """
    length, state = x.shape[1], _zeros(x, a) if state is None else state
    if length == 0:
        return x, state
    kernel = state_space_kernel(length, delta, a, b, c, method=method)  # D L
    spectrum = torch.fft.rfft(x.mT, n=2 * length) * torch.fft.rfft(kernel, n=2 * length)
    y = torch.fft.irfft(spectrum, n=2 * length)[
        ..., :length
    ].mT  # B L D: twice as long, or it would wrap
    powers = _powers(delta[:, None] * a, length + 1)  # D N L+1
    y = y + 2 * torch.einsum("dn,dnl,bdn->bld", c, powers[..., 1:], state).real
    b_bar = discretize(delta[:, None], a, b, method=method)[1]
    new = torch.einsum("dn,dnl,bld->bdn", b_bar, powers[..., :-1].flip(-1), x.to(a.dtype))
    return _skipped(y, x, skip), powers[..., -1] * state + new


@checked
def state_space_kernel(
    length: PositiveInt,
    delta: Float[Tensor, " D"],
    a: Complex[Tensor, "D N"],
    b: Complex[Tensor, "D N"],
    c: Complex[Tensor, "D N"],
    *,
    method: Method = "zoh",
) -> Float[Tensor, "D L"]:
    """What one token adds to the outputs from its own on: K[l] = 2 Re(sum over n of c b_bar exp(delta a l)).

    Shapes: delta (D), a, b and c (D, N) -> (D, length).
    Raises: TypeError or ValueError that name the argument.
    Source: Gu et al. 2022 (S4D); state-spaces/s4, models/s4/s4d.py.
    """
    b_bar = discretize(delta[:, None], a, b, method=method)[1]
    powers = _powers(delta[:, None] * a, length)  # D N L
    return 2 * torch.einsum("dn,dnl->dl", c * b_bar, powers).real


def _powers(logarithm: Tensor, number: int) -> Tensor:
    """exp(0), exp(z), exp(2 z) ... along a new last axis."""
    return (logarithm[..., None] * torch.arange(number, device=logarithm.device)).exp()


def _zeros(x: Tensor, a: Tensor) -> Tensor:
    """The state that nothing came before."""
    return a.new_zeros(len(x), *a.shape)


def _skipped(y: Tensor, x: Tensor, skip: Tensor | None) -> Tensor:
    """The output with the input that goes around the state."""
    return y if skip is None else y + skip * x
