"""A stack: layers, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
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
        layers, weights = list(self.in_order()), []
        caches = [None] * len(layers) if caches is None else caches
        if len(caches) != len(layers):
            raise argument_error(ValueError, "cache", f"{len(caches)} layers", f"{len(layers)}")
        for layer, cache in zip(layers, caches, strict=True):
            answer = layer(x, *inputs, cache=cache, return_weights=return_weights, **options)
            x, *found = answer if return_weights else (answer,)
            weights.append(found)
        return x if norm is None else norm(x), weights

    def in_order(self) -> Iterator[nn.Module]:
        """Every layer as often as it runs: once."""
        return iter(self)
