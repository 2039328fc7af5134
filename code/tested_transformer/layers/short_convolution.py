"""A short causal convolution of each feature by itself, and the tokens that the next call needs of this one."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from ..bounds import PositiveInt
from ..errors import argument_error
from ..shapes import checked

__all__ = ["ShortConvolution", "short_convolution"]


@checked
def short_convolution(
    x: Float[Tensor, "B L D"],
    weight: Float[Tensor, "D W"],
    bias: Float[Tensor, " D"] | None = None,
    *,
    state: Float[Tensor, "B D K"] | None = None,
    real: Bool[Tensor, "B L"] | None = None,
) -> tuple[Float[Tensor, "B L D"], Float[Tensor, "B D K"]]:
    """y[t] = bias + sum over k of weight[k] x[t - (W - 1) + k]: a token and the W - 1 before it.

    The state holds the K = W - 1 tokens before the first; they are 0 by default. `real` says which tokens are no
    padding: a real token reads real tokens alone, wherever the padding stands, and padding gives 0.

    Shapes: x (B, L, D), weight (D, W), bias (D), state (B, D, K), real (B, L) -> (B, L, D), and the state
        after the last real token.
    Raises: TypeError or ValueError that name the argument.
    Source: Gu and Dao 2023 (Mamba); Dao-AILab/causal-conv1d.

    >>> x = torch.tensor([[[1.0], [2.0], [3.0]]])
    >>> y, state = short_convolution(x, torch.tensor([[10.0, 1.0]]))
    >>> y.flatten().tolist(), state.flatten().tolist()
    ([1.0, 12.0, 23.0], [3.0])
    """
    (batch, length, features), width = x.shape, weight.shape[1]
    if state is None:
        state = x.new_zeros(batch, features, width - 1)
    if state.shape[2] != width - 1:
        wanted = f"{width - 1} tokens, one less than the width"
        raise argument_error(ValueError, "state", f"{state.shape[2]} tokens", wanted)
    if length == 0:
        return x, state
    order = None if real is None else real_first(real)
    x = x if order is None else take(x, order)
    tokens = torch.cat([state, x.mT], dim=-1)  # B D (W-1+L)
    y = functional.conv1d(tokens, weight[:, None], bias, groups=features).mT  # B L D
    if order is None:
        return y, tokens[..., length:]
    y = take(y, order.argsort(1)).masked_fill(~real[..., None], 0.0)
    return y, last_tokens(tokens, real, width - 1)


def real_first(real: Bool[Tensor, "B L"]) -> Int[Tensor, "B L"]:
    """The order in which all real tokens come before the padding, each kind in its own order."""
    return (~real).int().argsort(dim=1, stable=True)


def take(x: Float[Tensor, "B L D"], order: Int[Tensor, "B L"]) -> Float[Tensor, "B L D"]:
    """The tokens of each sequence in another order."""
    return x.gather(1, order[..., None].expand_as(x))


def last_tokens(
    tokens: Float[Tensor, "B D T"], real: Bool[Tensor, "B L"], number: int
) -> Float[Tensor, "B D N"]:
    """The last `number` tokens before the padding, where `tokens` are as many, then L with the real ones first."""
    first = real.sum(1)[:, None]  # B 1
    places = first + torch.arange(number, device=tokens.device)  # B N
    return tokens.gather(-1, places[:, None].expand(-1, tokens.shape[1], -1))


class ShortConvolution(nn.Module):
    """`short_convolution` with its weights: a causal depthwise convolution, as in front of a recurrent mixer.

    The weight has shape (D, 1, width), as nn.Conv1d with groups=D has it.

    Shapes: x (B, L, D), state (B, D, width - 1), real (B, L) -> (B, L, D) and the new state.
    Raises: TypeError or ValueError that name the argument.
    Source: Gu and Dao 2023 (Mamba).

    >>> y, state = ShortConvolution(6, width=4)(torch.zeros(2, 5, 6))
    >>> tuple(y.shape), tuple(state.shape)
    ((2, 5, 6), (2, 6, 3))
    """

    @checked
    def __init__(
        self, num_features: PositiveInt, *, width: PositiveInt = 4, bias: bool = True
    ) -> None:
        super().__init__()
        self.num_features, self.width = num_features, width
        self.weight = nn.Parameter(torch.empty(num_features, 1, width))
        self.bias = nn.Parameter(torch.empty(num_features)) if bias else None
        self.reset_parameters()

    @checked(like="self.weight", D="self.num_features")
    def forward(
        self,
        x: Float[Tensor, "B L D"],
        *,
        state: Float[Tensor, "B D K"] | None = None,
        real: Bool[Tensor, "B L"] | None = None,
    ) -> tuple[Float[Tensor, "B L D"], Float[Tensor, "B D K"]]:
        """The convolution of a chunk that follows the state, and the state after it."""
        return short_convolution(x, self.weight[:, 0], self.bias, state=state, real=real)

    def reset_parameters(self) -> None:
        """Initialize the weights, as nn.Conv1d does."""
        bound = self.width**-0.5
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)
