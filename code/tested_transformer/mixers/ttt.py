"""TTT-Linear: the state is a linear model, and reading a token is a step of gradient descent on it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from ..bounds import PositiveFloat, PositiveInt
from ..errors import argument_error
from ..shapes import checked

__all__ = ["InnerNorm", "dual_ttt", "primal_ttt"]

Outputs = tuple[Float[Tensor, "B H L dv"], Float[Tensor, "B H d dv"]]


class InnerNorm(NamedTuple):
    """The layer norm inside the model of `primal_ttt`: f(x) = x + LN(x W), which wants dv = d.

    Shapes: weight and bias (H, dv).
    Source: Sun et al. 2024 (TTT).
    """

    weight: Float[Tensor, "H dv"]
    bias: Float[Tensor, "H dv"]
    eps: PositiveFloat = 1e-6


@checked
def primal_ttt(
    query: Float[Tensor, "B H L d"],
    key: Float[Tensor, "B H L d"],
    value: Float[Tensor, "B H L dv"],
    step_size: Float[Tensor, "B H L"],
    *,
    norm: InnerNorm | None = None,
    state: Float[Tensor, "B H d dv"] | None = None,
    batch_size: PositiveInt = 16,
) -> Outputs:
    """Token by token: W = W - step_size k^T error, and the output is f(q), q W by the model so far.

    The loss of a token is |f(k) - v|^2 / 2, with f(x) = x W, or x + LN(x W) with a norm. Its error, the
    gradient by k W, is taken where the token's mini-batch of batch_size tokens began: so they can be computed side
    by side. A call ends its last mini-batch; a text in several calls is one call if all but the last have
    multiples of batch_size. These are the equations of the paper: its released code also multiplies what token i of a
    mini-batch reads by 1/i plus a learned number, a mean of the steps in place of their sum.

    Shapes: query and key (B, H, L, d), value (B, H, L, dv), step_size (B, H, L), state (B, H, d, dv), the W
        before the first token, 0 by default -> (B, H, L, dv), and W after the last token.
    Raises: TypeError or ValueError that name the argument.
    Source: Sun et al. 2024 (TTT).
    """
    state, outputs = _first(query, value, norm, state), [value[:, :, :0]]
    for t in range(query.shape[2]):
        if t % batch_size == 0:
            start = state
        q, k, v, eta = (each[:, :, t, None] for each in (query, key, value, step_size[..., None]))
        error = inner_error(k, k @ start, v, norm)  # B H 1 dv
        state = state - eta * k.mT @ error  # B H d dv
        outputs.append(inner_output(q, q @ state, norm))
    return torch.cat(outputs, 2), state


@checked
def dual_ttt(
    query: Float[Tensor, "B H L d"],
    key: Float[Tensor, "B H L d"],
    value: Float[Tensor, "B H L dv"],
    step_size: Float[Tensor, "B H L"],
    *,
    norm: InnerNorm | None = None,
    state: Float[Tensor, "B H d dv"] | None = None,
    batch_size: PositiveInt = 16,
) -> Outputs:
    """A mini-batch at once, without any W inside it: q W_t = q W - (causal part of Q K^T) (step_size error).

    Shapes, arguments: those of `primal_ttt`, which gives the same numbers.
    Raises: TypeError or ValueError that name the argument.
    Source: Sun et al. 2024 (TTT).
    """
    state, outputs = _first(query, value, norm, state), [value[:, :, :0]]
    parts = (each.split(batch_size, 2) for each in (query, key, value, step_size))
    for q, k, v, eta in zip(*parts, strict=True):
        step = eta[..., None] * inner_error(k, k @ state, v, norm)  # B H b dv
        outputs.append(inner_output(q, q @ state - (q @ k.mT).tril() @ step, norm))
        state = state - k.mT @ step
    return torch.cat(outputs, 2), state


def inner_output(x: Tensor, product: Tensor, norm: InnerNorm | None) -> Tensor:
    """f(x), where x W is known."""
    if norm is None:
        return product
    normalized = functional.layer_norm(product, product.shape[-1:], eps=norm.eps)
    return x + normalized * norm.weight[:, None] + norm.bias[:, None]


def inner_error(key: Tensor, product: Tensor, value: Tensor, norm: InnerNorm | None) -> Tensor:
    """The gradient of |f(k) - v|^2 / 2 by k W: the difference, led back through the norm if there is one."""
    error = inner_output(key, product, norm) - value
    if norm is None:
        return error
    error = error * norm.weight[:, None]
    centered = product - product.mean(-1, keepdim=True)
    scale = (centered.square().mean(-1, keepdim=True) + norm.eps).rsqrt()
    normalized = centered * scale
    along = normalized * (error * normalized).mean(-1, keepdim=True)
    return scale * (error - error.mean(-1, keepdim=True) - along)


def _first(query: Tensor, value: Tensor, norm: InnerNorm | None, state: Tensor | None) -> Tensor:
    """The W before the first token."""
    if norm is not None and value.shape[-1] != query.shape[-1]:
        wanted = f"{query.shape[-1]} features, as the keys have, with a norm: f adds x to LN(x W)"
        raise argument_error(ValueError, "value", f"{value.shape[-1]} features", wanted)
    shape = (*query.shape[:2], query.shape[-1], value.shape[-1])
    return value.new_zeros(shape) if state is None else state
