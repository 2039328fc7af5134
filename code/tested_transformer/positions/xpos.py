"""xPos: rotary positions whose scores also decay with the distance, each pair of features at its own rate."""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..bounds import NonNegativeInt, PositiveFloat, PositiveInt
from ..shapes import checked
from .rotary import RotaryPositions, apply_rotary

__all__ = ["XPos", "apply_xpos"]

GAMMA = (
    0.4  # section 2.2: the slowest pair keeps its magnitude, the fastest has a rate of 0.4 / 1.4
)


@checked
def apply_xpos(
    x: Float[Tensor, "B H L d"],
    position_ids: Int[Tensor, " L"] | Int[Tensor, "#B L"],
    *,
    of_keys: bool = False,
    base: PositiveFloat = 10000.0,
    scale_base: PositiveFloat = 512.0,
    center: NonNegativeInt = 0,
    layout: Literal["interleaved", "halves"] = "interleaved",
) -> Float[Tensor, "B H L d"]:
    """Rotate each pair of features, and multiply queries by a decay of which keys get the inverse.

    Pair i of d / 2 has the rate z_i = (2i/d + 0.4) / 1.4. A query at position p is multiplied by z_i^e, where
    e = (p - center) / scale_base, and a key by z_i^-e, so that pair i of a score is multiplied by
    z_i^((p - q) / scale_base): less, the longer ago the key. The center cancels in a score. In the middle of the
    text it doubles the length at which a key overflows: in float16, with a scale_base of 512, to about 9,000 tokens.

    Shapes: x (B, H, L, d), position_ids (L) or (B, L) -> (B, H, L, d).
    Raises: TypeError or ValueError that name the argument.
    Source: Sun et al. 2022 (A Length-Extrapolatable Transformer); microsoft/torchscale,
        xpos_relative_position.py, whose center is the middle of what came so far.

    >>> x = torch.ones(1, 1, 1, 2)
    >>> apply_xpos(x, torch.tensor([0])).tolist()
    [[[[1.0, 1.0]]]]
    >>> round(apply_xpos(x, torch.tensor([512])).norm().item() / 2**0.5, 4)  # 0.4 / 1.4 of it is left
    0.2857
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    rotated = apply_rotary(x.to(wide), position_ids, base=base, layout=layout)  # B H L d
    decay = decays(position_ids, x.shape[-1], scale_base, center, layout).to(wide)  # *B 1 L d
    return (rotated / decay if of_keys else rotated * decay).to(x.dtype)


def decays(
    position_ids: Int[Tensor, "*B L"], d_head: int, scale_base: float, center: int, layout: str
) -> Float[Tensor, "*B 1 L d"]:
    """What multiplies each feature of a query at each position, the same for all heads, in float64."""
    pairs = torch.arange(0, d_head, 2, device=position_ids.device).double() / d_head  # d/2
    rates = (pairs + GAMMA) / (1 + GAMMA)
    rates = rates.repeat_interleave(2) if layout == "interleaved" else rates.repeat(2)  # d
    exponents = (position_ids.double() - center) / scale_base  # *B L
    return (rates ** exponents.unsqueeze(-1)).unsqueeze(-3)


class XPos(RotaryPositions):
    """`apply_xpos` as a scheme: `rotate` acts on queries and keys, never on values. No parameters.

    For causal attention alone: a key after its query would count more, the farther away it is.

    Shapes: query (B, H, L, d), key (B, G, L, d), position_ids (L) or (B, L) -> query and key.
    Raises: TypeError or ValueError that name the argument.
    Source: Sun et al. 2022.
    """

    @checked
    def __init__(
        self,
        d_head: PositiveInt,
        *,
        scale_base: PositiveFloat = 512.0,
        center: NonNegativeInt = 0,
        base: PositiveFloat = 10000.0,
        layout: Literal["interleaved", "halves"] = "interleaved",
    ) -> None:
        super().__init__(d_head, base=base, layout=layout)
        self.options: dict[str, Any] = {
            "base": base, "layout": layout, "scale_base": scale_base, "center": center,
        }  # fmt: skip

    @checked(d="self.d_head")
    def rotate(
        self,
        query: Float[Tensor, "B H L d"],
        key: Float[Tensor, "B G L d"],
        position_ids: Int[Tensor, " L"] | Int[Tensor, "#B L"],
    ) -> tuple[Float[Tensor, "B H L d"], Float[Tensor, "B G L d"]]:
        """Both rotated; queries decay with their position, and keys grow."""
        query = apply_xpos(query, position_ids, **self.options)
        return query, apply_xpos(key, position_ids, of_keys=True, **self.options)

    def extra_repr(self) -> str:
        """What a printed model says of it."""
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"{self.d_head}, {options}"
