"""Hyper-connections in place of residual connections, and the stack that opens and closes the streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..bounds import NonNegativeInt, PositiveInt, Probability
from ..errors import argument_error
from ..functional.hyper_connections import connection_weights, read_streams, write_streams
from ..shapes import checked
from .residual import Residual, check_output
from .stack import Stack

__all__ = ["HyperConnection", "HyperStack", "use_hyper_connections"]


class HyperConnection(Residual):
    """A residual connection with n streams, for pre-norm: the sublayer reads norm(a weighted sum of them).

    At first sublayer k reads stream k mod n alone, the streams go on as they are, and the output is added to
    each. As the streams begin as copies, this is pre-norm. dynamic: the weights depend on the token, too.

    Shapes: x (*batch, n, D); sublayer: a function (*batch, D) -> (*batch, D). Returns (*batch, n, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Zhu et al. 2025 (hyper-connections).
    """

    @checked
    def __init__(
        self,
        norm: nn.Module,
        d_model: PositiveInt,
        num_streams: PositiveInt,
        *,
        number: NonNegativeInt = 0,
        dynamic: bool = True,
        dropout: Probability = 0.0,
    ) -> None:
        super().__init__(norm, norm_placement="pre", dropout=dropout)
        self.d_model, self.num_streams, self.dynamic = d_model, num_streams, dynamic
        read = torch.zeros(num_streams, 1)
        read[number % num_streams] = 1.0
        self.alpha_static = nn.Parameter(torch.cat((read, torch.eye(num_streams)), 1))
        self.beta_static = nn.Parameter(torch.ones(num_streams, 1))
        if dynamic:
            self.weight_norm = nn.LayerNorm(d_model)
            for name, columns in (("alpha", 1 + num_streams), ("beta", 1)):
                setattr(self, f"{name}_dynamic", nn.Parameter(torch.zeros(d_model, columns)))
                setattr(self, f"{name}_scale", nn.Parameter(torch.tensor(0.01)))

    @checked(like="self.beta_static", n="self.num_streams", D="self.d_model")
    def forward(
        self, x: Float[Tensor, "*batch n D"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "*batch n D"]:
        """One step of the stack."""
        own = self.inputs(x)
        output = sublayer(own)
        check_output("sublayer", output, own)
        return self.add(x, output)

    @checked(like="self.beta_static", n="self.num_streams", D="self.d_model")
    def inputs(self, x: Float[Tensor, "*batch n D"]) -> Float[Tensor, "*batch D"]:
        """What the sublayer gets."""
        return self.norm(read_streams(x, self._weights("alpha", x))[0])

    @checked(like="self.beta_static", n="self.num_streams", D="self.d_model")
    def add(
        self, x: Float[Tensor, "*batch n D"], output: Float[Tensor, "*batch D"]
    ) -> Float[Tensor, "*batch n D"]:
        """The mixed streams, each with its part of the output."""
        check_output("output", output, x[..., 0, :])
        _, mixed = read_streams(x, self._weights("alpha", x))
        beta = self._weights("beta", x)[..., 0]
        return write_streams(mixed, self.dropout(output), beta)

    def _weights(self, name: str, x: Float[Tensor, "*batch n D"]) -> Float[Tensor, "*rows n m"]:
        """alpha or beta: for each token where dynamic, else one for all."""
        static = getattr(self, f"{name}_static")
        if not self.dynamic:
            return static
        parts = getattr(self, f"{name}_dynamic"), getattr(self, f"{name}_scale")
        return connection_weights(static, self.weight_norm(x), *parts)


class HyperStack(Stack):
    """A stack of layers with hyper-connections: n copies of x begin, and their mean ends.

    The paper ends in the sum. A norm follows, which makes the same of both but for its eps.

    Shapes, Raises: as `Stack`.
    Source: Zhu et al. 2025 (hyper-connections).
    """

    num_streams = 1

    @checked(like="x")
    def forward(
        self,
        x: Float[Tensor, "*batch D"],
        *inputs: Float[Tensor, "..."],
        norm: nn.Module,
        **options: Any,
    ) -> tuple[Float[Tensor, "*batch D"], list[list[Tensor]]]:
        """Every layer in turn, between the copies and their mean."""
        streams = x.unsqueeze(-2).expand(*x.shape[:-1], self.num_streams, x.shape[-1])
        streams, weights = super().forward(streams, *inputs, **options)
        return norm(streams.mean(-2)), weights


@checked
def use_hyper_connections(stack: Stack, num_streams: PositiveInt, **options: Any) -> HyperStack:
    """The layers of a pre-norm stack, each `Residual` replaced by a `HyperConnection` with its norm.

    Raises: TypeError or ValueError that name the argument; ValueError for a stack that is not pre-norm.
    Source: Zhu et al. 2025 (hyper-connections).
    """
    number = 0
    for layer in stack:
        for place, residual in enumerate(layer.residuals):
            if getattr(residual, "norm_placement", None) != "pre":
                came = f"a {type(residual).__name__} of another placement"
                raise argument_error(ValueError, "stack", came, "pre-norm layers")
            width = residual.norm.weight.shape[0]
            layer.residuals[place] = HyperConnection(
                residual.norm,
                width,
                num_streams,
                number=number,
                dropout=residual.dropout.p,
                **options,
            )
            number += 1
    made = HyperStack(stack)
    made.num_streams = num_streams
    return made
