"""Residual connections: where the norm stands, and DeepNorm's constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import (
    argument_error,
    check_count,
    check_positive,
    check_probability,
    shape_of,
)

__all__ = ["DeepNormConstants", "Residual", "deepnorm_constants", "deepnorm_init"]

NORM_PLACEMENTS = ("post", "pre", "deepnorm", "resi_dual")


class Residual(nn.Module):
    """Add what a sublayer finds to what was there, with the norm in one of four places.

    post: norm(x + f(x)), the paper of 2017.
    pre: x + f(norm(x)), so that nothing stands on the direct way through.
    deep: norm(alpha x + f(x)), DeepNorm.
    dual: post, and beside it a sum of all f(x) that is never normalized, `total`; the stack ends in
        x + norm(total), ResiDual.

    Dropout acts on f(x) alone, while training: the direct way always carries everything.

    Shapes: x and total (*batch, D); sublayer: a function (*batch, D) -> (*batch, D). The answer is
        (x, total); total comes back as it came unless the norm_placement is "resi_dual".
    Raises: TypeError or ValueError that name the argument.
    Source: post: Vaswani et al. 2017, section 3.1; pre: Xiong et al. 2020; deep: Wang et al. 2022,
        DeepNorm; dual: Xie et al. 2023, ResiDual.
    """

    def __init__(
        self,
        norm: nn.Module,
        *,
        norm_placement: Literal["post", "pre", "deepnorm", "resi_dual"] = "post",
        dropout: float = 0.0,
        alpha: float = 1.0,
    ) -> None:
        super().__init__()
        if norm_placement not in NORM_PLACEMENTS:
            raise argument_error(
                ValueError,
                "norm_placement",
                repr(norm_placement),
                f"one of {', '.join(NORM_PLACEMENTS)}",
            )
        check_probability("dropout", dropout)
        check_positive("alpha", alpha)
        if not callable(norm):
            raise argument_error(TypeError, "norm", type(norm).__name__, "a module or a function")
        if alpha != 1.0 and norm_placement != "deepnorm":
            raise argument_error(
                ValueError,
                "alpha",
                alpha,
                f'1 unless the norm_placement is "deepnorm" ({norm_placement})',
            )
        self.norm, self.norm_placement, self.alpha = norm, norm_placement, alpha
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "*batch D"],
        sublayer: Callable[[Tensor], Tensor],
        total: Float[Tensor, "*batch D"] | None = None,
    ) -> tuple[Float[Tensor, "*batch D"], Float[Tensor, "*batch D"] | None]:
        """One step of the stack."""
        if self.norm_placement == "pre":
            return x + self._change(x, sublayer(self.norm(x))), total
        change = self._change(x, sublayer(x))
        if self.norm_placement == "resi_dual":
            check_total(total, x)
            total = total + change
        stream = x if self.alpha == 1.0 else self.alpha * x
        return self.norm(stream + change), total

    def _change(self, x: Tensor, found: Tensor) -> Tensor:
        """What is added, after dropout; the sum must not broadcast."""
        if found.shape != x.shape:
            wanted = f"an answer of x's shape {shape_of(x)}"
            raise argument_error(ValueError, "sublayer", f"shape {shape_of(found)}", wanted)
        return self.dropout(found)


class DeepNormConstants(NamedTuple):
    """DeepNorm's two numbers for a stack: alpha multiplies the stream, beta the initial weights."""

    alpha: float
    beta: float


def deepnorm_constants(
    num_encoder_layers: int = 0, num_decoder_layers: int = 0
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
    check_count("num_encoder_layers", num_encoder_layers, least=0)
    check_count("num_decoder_layers", num_decoder_layers, least=0)
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
def deepnorm_init(sublayers: nn.Module, beta: float) -> None:
    """Draw every linear map inside anew by Xavier's normal rule, with gain beta and no bias.

    Those called `query` or `key` get gain 1: they set the weights of the attention, not the size of
    what it returns.

    Raises: TypeError or ValueError that name the argument.
    Source: Wang et al. 2022 (DeepNet), figure 2.
    """
    check_positive("beta", beta)
    for name, module in sublayers.named_modules():
        if isinstance(module, nn.Linear):
            gain = 1.0 if name.rpartition(".")[2] in ("query", "key") else float(beta)
            nn.init.xavier_normal_(module.weight, gain=gain)
            if module.bias is not None:
                module.bias.zero_()


def check_total(total: Tensor | None, x: Tensor) -> None:
    """Raise unless the sum of the norm_placement "resi_dual" is there and has the shape of x."""
    if total is None:
        raise argument_error(
            ValueError, "total", None, 'a tensor like x for the norm_placement "resi_dual"'
        )
    if total.shape != x.shape:
        wanted = f"the shape of x, {shape_of(x)}"
        raise argument_error(ValueError, "total", f"shape {shape_of(total)}", wanted)
