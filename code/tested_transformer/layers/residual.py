"""Residual connections: where the norm stands, and DeepNorm's constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..bounds import NonNegativeInt, PositiveFloat, Probability, Where
from ..errors import argument_error, shape_of, type_of
from ..shapes import checked

__all__ = ["DeepNormConstants", "Residual", "deepnorm_constants", "deepnorm_init"]

NORM_PLACEMENTS = ("post", "pre", "deepnorm", "resi_dual")  # the last has a class of its own
KNOWN = "one of post, pre, deepnorm; for resi_dual the class ResiDual"
Placement = Annotated[str, Where(KNOWN, lambda placement: placement in NORM_PLACEMENTS[:3])]


class Residual(nn.Module):
    """Add a sublayer's output to its input, with the norm in one of three places.

    post: norm(x + f(x)), the paper of 2017.
    pre: x + f(norm(x)), so that no norm stands on the skip path.
    deepnorm: norm(alpha x + f(x)), DeepNorm.

    Dropout acts on f(x) alone, while training: the skip path always carries everything. `inputs` and
    `add` are the two halves, for a sublayer that returns more than its output.

    Shapes: x (*batch, D); sublayer: a function (*batch, D) -> (*batch, D). Returns (*batch, D).
    Raises: TypeError or ValueError that name the argument.
    Source: post: Vaswani et al. 2017, section 3.1; pre: Xiong et al. 2020; deepnorm: Wang et al. 2022.
    """

    @checked
    def __init__(
        self,
        norm: Callable[[Tensor], Tensor],
        *,
        norm_placement: Placement = "post",
        dropout: Probability = 0.0,
        alpha: PositiveFloat = 1.0,
    ) -> None:
        super().__init__()
        if alpha != 1.0 and norm_placement != "deepnorm":
            wanted = f'1 unless the norm_placement is "deepnorm" ({norm_placement})'
            raise argument_error(ValueError, "alpha", alpha, wanted)
        self.norm, self.norm_placement, self.alpha = norm, norm_placement, alpha
        self.dropout = nn.Dropout(dropout)

    @checked
    def forward(
        self, x: Float[Tensor, "*batch D"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "*batch D"]:
        """One step of the stack."""
        own = self.inputs(x)
        output = sublayer(own)
        check_output("sublayer", output, own)
        return self.add(x, output)

    @checked
    def inputs(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """What the sublayer gets."""
        return self.norm(x) if self.norm_placement == "pre" else x

    @checked(like="x")
    def add(
        self, x: Float[Tensor, "*batch D"], output: Float[Tensor, "*batch D"]
    ) -> Float[Tensor, "*batch D"]:
        """The sum of x and the sublayer's output, normalized unless that was done before."""
        skip = x if self.alpha == 1.0 else self.alpha * x
        total = skip + self.dropout(output)
        return total if self.norm_placement == "pre" else self.norm(total)


def check_output(argument: str, output: Any, x: Tensor) -> None:
    """Raise unless the sublayer's output has the shape of x: the sum must not broadcast."""
    if not isinstance(output, Tensor) or output.shape != x.shape:
        came = f"shape {shape_of(output)}" if isinstance(output, Tensor) else type_of(output)
        raise argument_error(ValueError, argument, came, f"an output of x's shape {shape_of(x)}")


class DeepNormConstants(NamedTuple):
    """DeepNorm's two numbers for a stack: alpha multiplies the stream, beta the initial weights."""

    alpha: float
    beta: float


@checked
def deepnorm_constants(
    num_encoder_layers: NonNegativeInt = 0, num_decoder_layers: NonNegativeInt = 0
) -> tuple[DeepNormConstants | None, DeepNormConstants | None]:
    """DeepNorm's alpha and beta for the encoder and for the decoder; None for one without layers.

    With N encoder and M decoder layers: encoder alone (2N)^(1/4) and (8N)^(-1/4); decoder alone
    (2M)^(1/4) and (8M)^(-1/4); both: encoder 0.81 (N^4 M)^(1/16) and 0.87 (N^4 M)^(-1/16), decoder
    (3M)^(1/4) and (12M)^(-1/4).

    Raises: TypeError or ValueError that name the argument.
    Source: Wang et al. 2022 (DeepNet), figure 2.

    >>> deepnorm_constants(8)
    (DeepNormConstants(alpha=2.0, beta=0.3535533905932738), None)
    """
    n, m = num_encoder_layers, num_decoder_layers
    if n == m == 0:
        raise argument_error(ValueError, "num_encoder_layers", 0, "a layer in one of the stacks")
    if n and m:
        both = (n**4 * m) ** (1 / 16)
        decoder = DeepNormConstants((3 * m) ** 0.25, (12 * m) ** -0.25)
        return DeepNormConstants(0.81 * both, 0.87 / both), decoder
    alone = DeepNormConstants((2 * (n or m)) ** 0.25, (8 * (n or m)) ** -0.25)
    return (alone, None) if n else (None, alone)


@torch.no_grad()
@checked
def deepnorm_init(sublayers: nn.Module, beta: PositiveFloat) -> None:
    """Initialize every linear layer inside by Xavier's normal rule, with gain beta and zero biases.

    Those called `query` or `key` get gain 1: they set the attention weights, not the magnitude of
    what attention returns.

    Raises: TypeError or ValueError that name the argument.
    Source: Wang et al. 2022 (DeepNet), figure 2.
    """
    for name, module in sublayers.named_modules():
        if isinstance(module, nn.Linear):
            gain = 1.0 if name.rpartition(".")[2] in ("query", "key") else float(beta)
            nn.init.xavier_normal_(module.weight, gain=gain)
            if module.bias is not None:
                module.bias.zero_()
