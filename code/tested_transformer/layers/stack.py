"""A stack: layers, one after the other."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from ..errors import argument_error
from ..shapes import checked

__all__ = ["Stack"]


class Stack(nn.ModuleList):
    """Layers, one after the other, and the norm at the end where there is one.

    Shapes: x (B, L, D) -> (B, L, D), and for each layer a list of its attention weights (B, H, L, S),
        empty without return_weights.
    Raises: ValueError if there are more or fewer caches than layers.
    Source: Vaswani et al. 2017, section 3.1.
    """

    @checked(like="x")
    def forward(
        self,
        x: Float[Tensor, "*batch D"],
        *inputs: Float[Tensor, "..."],
        norm: nn.Module | None = None,
        caches: list[Any] | None = None,
        return_weights: bool = False,
        **options: Any,
    ) -> tuple[Float[Tensor, "*batch D"], list[list[Tensor]]]:
        """Every layer in turn; inputs and options go to each, and to each its own cache."""
        caches, weights = [None] * len(self) if caches is None else caches, []
        if len(caches) != len(self):
            raise argument_error(ValueError, "cache", f"{len(caches)} layers", f"{len(self)}")
        for layer, cache in zip(self, caches, strict=True):
            answer = layer(x, *inputs, cache=cache, return_weights=return_weights, **options)
            x, *found = answer if return_weights else (answer,)
            weights.append(found)
        return x if norm is None else norm(x), weights
