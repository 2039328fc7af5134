"""Residual connections: where the norm stands, and DeepNorm's constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import (
    complain,
    need_count,
    need_positive,
    need_probability,
    shape_of,
)

__all__ = ["DeepNormConstants", "Residual", "deepnorm_constants", "deepnorm_init"]

WIRINGS = ("post", "pre", "deep", "dual")


class Residual(nn.Module):
    """Add what a sublayer finds to what was there, with the norm in one of four places.

    post: norm(x + f(x)), the paper of 2017.
    pre: x + f(norm(x)), so that nothing stands on the direct way through.
    deep: norm(alpha x + f(x)), DeepNorm.
    dual: post, and beside it a sum of all f(x) that is never normalized, `total`; the stack ends in
        x + norm(total), ResiDual.

    Dropout acts on f(x) alone, while training: the direct way always carries everything.

    Shapes: x and total (*batch, D); sublayer: a function (*batch, D) -> (*batch, D). The answer is
        (x, total); total comes back as it came unless the wiring is "dual".
    Raises: TypeError or ValueError that name the argument.
    Source: post: Vaswani et al. 2017, section 3.1; pre: Xiong et al. 2020; deep: Wang et al. 2022,
        DeepNorm; dual: Xie et al. 2023, ResiDual.
    """

    def __init__(
        self,
        norm: nn.Module,
        *,
        wiring: Literal["post", "pre", "deep", "dual"] = "post",
        dropout: float = 0.0,
        alpha: float = 1.0,
    ) -> None:
        super().__init__()
        if wiring not in WIRINGS:
            raise complain(ValueError, "wiring", repr(wiring), f"one of {', '.join(WIRINGS)}")
        need_probability("dropout", dropout)
        need_positive("alpha", alpha)
        if not callable(norm):
            raise complain(TypeError, "norm", type(norm).__name__, "a module or a function")
        if alpha != 1.0 and wiring != "deep":
            raise complain(ValueError, "alpha", alpha, f'1 unless the wiring is "deep" ({wiring})')
        self.norm, self.wiring, self.alpha = norm, wiring, alpha
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "*batch D"],
        sublayer: Callable[[Tensor], Tensor],
        total: Float[Tensor, "*batch D"] | None = None,
    ) -> tuple[Float[Tensor, "*batch D"], Float[Tensor, "*batch D"] | None]:
        """One step of the stack."""
        if self.wiring == "pre":
            return x + self._change(x, sublayer(self.norm(x))), total
        change = self._change(x, sublayer(x))
        if self.wiring == "dual":
            need_total(total, x)
            total = total + change
        stream = x if self.alpha == 1.0 else self.alpha * x
        return self.norm(stream + change), total

    def _change(self, x: Tensor, found: Tensor) -> Tensor:
        """What is added, after dropout; the sum must not broadcast."""
        if found.shape != x.shape:
            wanted = f"an answer of x's shape {shape_of(x)}"
            raise complain(ValueError, "sublayer", f"shape {shape_of(found)}", wanted)
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
    need_count("num_encoder_layers", num_encoder_layers, least=0)
    need_count("num_decoder_layers", num_decoder_layers, least=0)
    n, m = num_encoder_layers, num_decoder_layers
    if n == m == 0:
        raise complain(ValueError, "num_encoder_layers", 0, "a layer in one of the stacks")
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
    need_positive("beta", beta)
    for name, module in sublayers.named_modules():
        if isinstance(module, nn.Linear):
            gain = 1.0 if name.rpartition(".")[2] in ("query", "key") else float(beta)
            nn.init.xavier_normal_(module.weight, gain=gain)
            if module.bias is not None:
                module.bias.zero_()


def need_total(total: Tensor | None, x: Tensor) -> None:
    """Raise unless the sum of the wiring "dual" is there and has the shape of x."""
    if total is None:
        raise complain(ValueError, "total", None, 'a tensor like x for the wiring "dual"')
    if total.shape != x.shape:
        wanted = f"the shape of x, {shape_of(x)}"
        raise complain(ValueError, "total", f"shape {shape_of(total)}", wanted)
