"""The selective state space of Mamba (S6): a recurrence whose step size, input and output each token chooses."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..bounds import PositiveInt
from ..shapes import checked
from .state_space import Method, discretize

__all__ = [
    "associative_scan",
    "chunked_selective_scan",
    "parallel_selective_scan",
    "recurrent_selective_scan",
]

Outputs = tuple[Float[Tensor, "B L D"], Float[Tensor, "B D N"]]


@checked(any_dtype="delta a skip state")
def recurrent_selective_scan(
    x: Float[Tensor, "B L D"],
    delta: Float[Tensor, "B L D"],
    a: Float[Tensor, "D N"],
    b: Float[Tensor, "B L N"],
    c: Float[Tensor, "B L N"],
    *,
    skip: Float[Tensor, " D"] | None = None,
    state: Float[Tensor, "B D N"] | None = None,
    real: Bool[Tensor, "B L"] | None = None,
    method: Method = "euler",
) -> Outputs:
    """Token by token: h = exp(delta a) h + b_bar x, then y = c . h + skip x, each of the D features by itself.

    delta, b and c are the token's own; a is not, and negative. A delta of 0 skips a token: h stays. That is
    what padding gets, where `real` is False. method: see `discretize`; released models have "euler".

    Shapes: x and delta (B, L, D), a (D, N), b and c (B, L, N), skip (D), state (B, D, N), real (B, L) ->
        (B, L, D), and the state after the last token, in at least float32.
    Raises: TypeError or ValueError that name the argument.
    Source: Gu and Dao 2023 (Mamba); state-spaces/mamba, selective_scan_ref.
    """
    wide, delta, a, b, c, state = _widened(x, delta, a, b, c, state, real)
    outputs = [wide[:, :0]]  # so that there is something to join without any token
    for t in range(x.shape[1]):
        a_bar, b_bar = discretize(delta[:, t, :, None], a, b[:, t, None], method=method)  # B D N
        state = a_bar * state + b_bar * wide[:, t, :, None]
        outputs.append((state @ c[:, t, :, None]).mT)  # B 1 D
    return _skipped(torch.cat(outputs, 1), wide, skip).to(x.dtype), state


@checked(any_dtype="delta a skip state")
def parallel_selective_scan(
    x: Float[Tensor, "B L D"],
    delta: Float[Tensor, "B L D"],
    a: Float[Tensor, "D N"],
    b: Float[Tensor, "B L N"],
    c: Float[Tensor, "B L N"],
    *,
    skip: Float[Tensor, " D"] | None = None,
    state: Float[Tensor, "B D N"] | None = None,
    real: Bool[Tensor, "B L"] | None = None,
    method: Method = "euler",
) -> Outputs:
    """All tokens at once: an associative scan makes every state, B L D N numbers of them, in log2(L) steps.

    Shapes, arguments: those of `recurrent_selective_scan`, which gives the same numbers.
    Raises: TypeError or ValueError that name the argument.
    Source: Gu and Dao 2023 (Mamba); Blelloch 1990.
    """
    wide, delta, a, b, c, state = _widened(x, delta, a, b, c, state, real)
    a_bar, b_bar = discretize(delta[..., None], a, b[:, :, None], method=method)  # B L D N
    decay, update = associative_scan(a_bar, b_bar * wide[..., None])
    states = decay * state[:, None] + update  # B L D N
    y = (states @ c[..., None])[..., 0]  # B L D
    state = torch.cat([state[:, None], states], 1)[:, -1]  # the first, if there is no token
    return _skipped(y, wide, skip).to(x.dtype), state


@checked(any_dtype="delta a skip state")
def chunked_selective_scan(
    x: Float[Tensor, "B L D"],
    delta: Float[Tensor, "B L D"],
    a: Float[Tensor, "D N"],
    b: Float[Tensor, "B L N"],
    c: Float[Tensor, "B L N"],
    *,
    skip: Float[Tensor, " D"] | None = None,
    state: Float[Tensor, "B D N"] | None = None,
    real: Bool[Tensor, "B L"] | None = None,
    method: Method = "euler",
    chunk_size: PositiveInt = 8,
) -> Outputs:
    """A scan within each chunk, the state from chunk to chunk: the states of one chunk at a time are in memory.

    A scan of n tokens passes over its states log2(n) times: short chunks are cheap, and fewer steps than tokens.

    Shapes, arguments: those of `recurrent_selective_scan`, which gives the same numbers.
    Raises: TypeError or ValueError that name the argument.
    Source: Gu and Dao 2023 (Mamba).
    """
    outputs, options = [], {"skip": skip, "method": method}
    real = torch.ones_like(x[..., 0], dtype=torch.bool) if real is None else real
    parts = (each.split(chunk_size, 1) for each in (x, delta, b, c, real))
    for x_part, delta_part, b_part, c_part, real_part in zip(*parts, strict=True):
        y, state = parallel_selective_scan(
            x_part, delta_part, a, b_part, c_part, state=state, real=real_part, **options
        )
        outputs.append(y)
    return torch.cat(outputs, 1), state


@checked
def associative_scan(
    decay: Float[Tensor, "B L *rest"], update: Float[Tensor, "B L *rest"]
) -> tuple[Float[Tensor, "B L *rest"], Float[Tensor, "B L *rest"]]:
    """All steps so far as one: the pairs (decay, update) of h -> decay h + update, composed from the first on.

    Two steps are one step again: (d1, u1), then (d2, u2), is (d2 d1, d2 u1 + u2). So each pass doubles how many
    steps an entry stands for. Nothing is divided: a decay of 0 does no harm.

    Shapes: (B, L, ...) twice -> (B, L, ...) twice.
    Raises: TypeError or ValueError that name the argument.
    Source: Hillis and Steele 1986; Blelloch 1990.

    >>> decay, update = torch.full((1, 3), 0.5), torch.tensor([[8.0, 4.0, 2.0]])
    >>> [each.tolist() for each in associative_scan(decay, update)]
    [[[0.5, 0.25, 0.125]], [[8.0, 8.0, 6.0]]]
    """
    step = 1
    while step < decay.shape[1]:
        new, old = slice(step, None), slice(None, -step)
        update = torch.cat([update[:, :step], decay[:, new] * update[:, old] + update[:, new]], 1)
        decay = torch.cat([decay[:, :step], decay[:, new] * decay[:, old]], 1)
        step *= 2
    return decay, update


def _widened(
    x: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor | None,
    real: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """All in at least float32; no step where there is padding; the state that nothing came before is 0."""
    wide = torch.promote_types(x.dtype, torch.float32)
    x, delta, a, b, c = (each.to(wide) for each in (x, delta, a, b, c))
    if real is not None:
        delta = delta.masked_fill(~real[..., None], 0.0)
    state = x.new_zeros(len(x), *a.shape) if state is None else state.to(wide)
    return x, delta, a, b, c, state


def _skipped(y: Tensor, x: Tensor, skip: Tensor | None) -> Tensor:
    """The output with the input that goes around the state."""
    return y if skip is None else y + skip.to(x.dtype) * x
