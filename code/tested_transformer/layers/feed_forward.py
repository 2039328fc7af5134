"""The feed-forward network: for each token alone, an up-projection, an activation, a down-projection."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from ..bounds import AtLeast, OneOf, PositiveInt, Probability
from ..shapes import checked

__all__ = ["ConvFeedForward", "FeedForward", "gated_width", "gelu", "gelu_tanh", "relu", "silu"]

# --- Activations ----------------------------------------------------------------------------------


@checked
def relu(x: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """Clamp at 0 from below: max(0, x), with slope 0 at 0.

    Shapes: any -> the same.
    Raises: TypeError if x is no floating point tensor.
    Source: Nair and Hinton 2010.

    >>> relu(torch.tensor([-2.0, 0.0, 3.0]))
    tensor([0., 0., 3.])
    """
    return x.masked_fill(x <= 0, 0.0)


@checked
def gelu(x: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """Weight x by the probability that a standard normal variable is below it: x Phi(x).

    Shapes: any -> the same.
    Raises: TypeError if x is no floating point tensor.
    Source: Hendrycks and Gimpel 2016, section 2.

    >>> gelu(torch.tensor([-1.0, 0.0, 1.0])).round(decimals=4)
    tensor([-0.1587,  0.0000,  0.8413])
    """
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


@checked
def gelu_tanh(x: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """GELU with a tanh in place of the normal distribution, off by less than 0.0005: what GPT-2 uses.

    Shapes: any -> the same.
    Raises: TypeError if x is no floating point tensor.
    Source: Hendrycks and Gimpel 2016, section 2.
    """
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@checked
def silu(x: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """Weight x by its own sigmoid: x / (1 + exp(-x)), also called Swish.

    Shapes: any -> the same.
    Raises: TypeError if x is no floating point tensor.
    Source: Hendrycks and Gimpel 2016, section 4; Ramachandran et al. 2017.

    >>> silu(torch.tensor([-1.0, 0.0, 1.0])).round(decimals=4)
    tensor([-0.2689,  0.0000,  0.7311])
    """
    return x * torch.sigmoid(x)


# The same functions as torch's kernels, which the layers call.
ACTIVATIONS = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "swiglu": functional.silu,  # the gate is what makes it SwiGLU
}

# --- The network ----------------------------------------------------------------------------------


class FeedForward(nn.Module):
    """Two linear layers with a nonlinearity between: down_proj(activation(up_proj(x))), for every token.

    With "swiglu" a third linear layer, `gate_proj`, decides how much of each hidden feature passes:
    down_proj(silu(gate_proj(x)) x up_proj(x)). Dropout acts on the hidden features, in training only.

    Shapes: (*batch, D) -> (*batch, D), by way of (*batch, d_ff).
    Raises: TypeError or ValueError that name the argument.
    Source: Vaswani et al. 2017, equation 2; GELU: Hendrycks and Gimpel 2016; SwiGLU: Shazeer 2020,
        equation 6.
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        d_ff: PositiveInt,
        *,
        activation: Annotated[str, OneOf(ACTIVATIONS)] = "relu",
        bias: bool = True,
        dropout: Probability = 0.0,
    ) -> None:
        super().__init__()
        self.up_proj = self.linear_map(d_model, d_ff, bias)
        self.gate_proj = self.linear_map(d_model, d_ff, bias) if activation == "swiglu" else None
        self.down_proj = self.linear_map(d_ff, d_model, bias)
        self.dropout = nn.Dropout(dropout)
        self.d_model, self.d_ff, self.activation = d_model, d_ff, activation

    @staticmethod
    @checked
    def linear_map(d_in: PositiveInt, d_out: PositiveInt, bias: bool) -> nn.Module:
        """A linear layer from d_in features per token to d_out."""
        return nn.Linear(d_in, d_out, bias=bias)

    @checked(D="self.d_model")
    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """Transform each token alone."""
        return self.transform(x)

    @checked(like="self.up_proj.weight")
    def transform(self, x: Float[Tensor, "..."]) -> Tensor:
        """Up-projection, activation, down-projection, once the shape is known to fit."""
        activation = ACTIVATIONS[self.activation]
        if self.gate_proj is None:
            hidden = activation(self.up_proj(x))  # *batch d_ff
        else:
            hidden = activation(self.gate_proj(x)) * self.up_proj(x)  # *batch d_ff
        return self.down_proj(self.dropout(hidden))  # *batch D


class ConvFeedForward(FeedForward):
    """The same network as convolutions with a kernel of one token, which reaches no neighbor.

    The layers are nn.Conv1d, which wants a token's features in the last axis but one. All tokens of
    all sequences are one sequence to it, since no kernel reaches from one to the next.

    Shapes: (*batch, D) -> (*batch, D), by way of (d_ff, tokens).
    Raises: TypeError or ValueError that name the argument.
    Source: Vaswani et al. 2017, section 3.3, "two convolutions with kernel size 1".
    """

    @staticmethod
    @checked
    def linear_map(d_in: PositiveInt, d_out: PositiveInt, bias: bool) -> nn.Module:
        """A linear layer from d_in features per token to d_out."""
        return nn.Conv1d(d_in, d_out, kernel_size=1, bias=bias)

    @checked(like="self.up_proj.weight")
    def transform(self, x: Float[Tensor, "..."]) -> Tensor:
        """The same, with the tokens in the last axis."""
        if not x.numel():
            return x.clone()  # nn.Conv1d rejects a sequence without tokens
        tokens = x.reshape(-1, self.d_model).T  # D tokens
        return super().transform(tokens).T.reshape(x.shape)  # *batch D

    @classmethod
    @checked
    def from_linear(cls, theirs: FeedForward) -> ConvFeedForward:
        """The same weights, each matrix with a third axis of size 1.

        Raises: TypeError if `theirs` is no FeedForward.
        """
        options = {"activation": theirs.activation, "bias": theirs.down_proj.bias is not None}
        ours = cls(theirs.d_model, theirs.d_ff, **options, dropout=theirs.dropout.p)
        ours.to(theirs.down_proj.weight).train(theirs.training)
        with torch.no_grad():
            for parameter, weight in zip(ours.parameters(), theirs.parameters(), strict=True):
                parameter.copy_(weight.view_as(parameter))
        return ours


@checked
def gated_width(d_ff: Annotated[int, AtLeast(2)], *, multiple: PositiveInt = 1) -> int:
    """The hidden dimension at which three matrices have no more parameters than two of d_ff.

    That is 2/3 of d_ff, rounded down, then up to a multiple (which may exceed it a little).

    Raises: TypeError or ValueError that name the argument.
    Source: Shazeer 2020, section 3; the rounding: Touvron et al. 2023, Llama.

    >>> gated_width(2048), gated_width(4 * 4096, multiple=256)
    (1365, 11008)
    """
    return -(-(2 * d_ff // 3) // multiple) * multiple
