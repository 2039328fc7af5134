"""Rotary positions (RoPE): queries and keys turn by an angle that grows with the position."""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..bounds import PositiveFloat, PositiveInt
from ..errors import argument_error
from ..shapes import checked
from .protocol import PositionScheme
from .sinusoidal import frequencies

__all__ = ["RotaryPositions", "apply_rotary"]


@checked
def apply_rotary(
    x: Float[Tensor, "B H L d"],
    position_ids: Int[Tensor, " L"] | Int[Tensor, "#B L"],
    *,
    base: PositiveFloat = 10000.0,
    layout: Literal["interleaved", "halves"] = "interleaved",
    rotary_dim: PositiveInt | None = None,
) -> Float[Tensor, "B H L d"]:
    """Rotate each pair of features in its plane: pair i at position p by p / base^(2i/r) radians.

    (a, b) becomes (a cos - b sin, a sin + b cos). Of the first r = rotary_dim features (default: all
    d), pair i = 0 ... r/2 - 1 is, by layout,

        "interleaved"  features 2i and 2i + 1    (the paper, Meta's Llama, GPT-J)
        "halves"       features i and i + r/2    (GPT-NeoX, and Llama as transformers stores it)

    The other d - r features stay as they are. A dot product of a query at p and a key at q then
    depends on p - q alone. Angles are made in float64 (see `sinusoidal_positions`), the rotation in at
    least float32.

    Shapes: x (B, H, L, d), position_ids (L) or (B, L) -> (B, H, L, d).
    Raises: TypeError or ValueError that name the argument.
    Source: Su et al. 2021, equation 34; partial rotation: Wang and Komatsuzaki 2021 (GPT-J).

    >>> x = torch.tensor([[[[1.0, 0.0, 1.0, 0.0]]]])
    >>> apply_rotary(x, torch.tensor([1]))
    tensor([[[[0.5403, 0.8415, 0.9999, 0.0100]]]])
    """
    r = check_rotary_dim(rotary_dim, x.shape[-1])
    angles = position_ids.double().unsqueeze(-1) * frequencies(r, base).to(x.device)  # *ids L r/2
    return rotate_pairs(x, *cos_sin(angles, x.dtype), layout)


def cos_sin(
    angles: Float[Tensor, "*B L half"], dtype: torch.dtype
) -> tuple[Float[Tensor, "*B 1 L half"], Float[Tensor, "*B 1 L half"]]:
    """Cosine and sine of each angle, the same for all heads, in at least float32."""
    wide = torch.promote_types(dtype, torch.float32)
    return angles.cos().unsqueeze(-3).to(wide), angles.sin().unsqueeze(-3).to(wide)


def rotate_pairs(
    x: Float[Tensor, "B H L d"], cos: Float[Tensor, "... L half"], sin: Float[Tensor, "... L half"],
    layout: str,
) -> Float[Tensor, "B H L d"]:  # fmt: skip
    """Rotate pair i of each token's features by its angle i; features beyond the last pair stay."""
    r = 2 * cos.shape[-1]
    axis, pairs = (-1, (r // 2, 2)) if layout == "interleaved" else (-2, (2, r // 2))
    a, b = x[..., :r].unflatten(-1, pairs).unbind(axis)  # B H L r/2
    rotated = torch.stack((a * cos - b * sin, a * sin + b * cos), axis).flatten(-2)  # B H L r
    rotated = rotated.to(x.dtype)
    return rotated if r == x.shape[-1] else torch.cat((rotated, x[..., r:]), -1)


class RotaryPositions(PositionScheme):
    """`apply_rotary` as a scheme: `rotate` turns queries and keys, never values. No parameters.

    Shapes: query (B, H, L, d), key (B, G, L, d), position_ids (L) or (B, L) -> query and key.
    Raises: TypeError or ValueError that name the argument.
    Source: Su et al. 2021, section 3.2.
    """

    @checked
    def __init__(
        self,
        d_head: PositiveInt,
        *,
        base: PositiveFloat = 10000.0,
        layout: Literal["interleaved", "halves"] = "interleaved",
        rotary_dim: PositiveInt | None = None,
    ) -> None:
        super().__init__()
        self.rotary_dim = check_rotary_dim(rotary_dim, d_head)
        self.d_head, self.base, self.layout = d_head, base, layout
        self._kept: tuple = (None, None, None)  # the last call's position IDs, a key, cos and sin

    @checked(d="self.d_head")
    def rotate(
        self,
        query: Float[Tensor, "B H L d"],
        key: Float[Tensor, "B G L d"],
        position_ids: Int[Tensor, " L"] | Int[Tensor, "#B L"],
    ) -> tuple[Float[Tensor, "B H L d"], Float[Tensor, "B G L d"]]:
        """Both rotated, each token by its own position."""
        turns = self._turns(position_ids, query)
        return rotate_pairs(query, *turns, self.layout), rotate_pairs(key, *turns, self.layout)

    def _turns(self, position_ids: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of every angle: kept, since all layers of a model ask for the same ones."""
        fixed = not (torch.compiler.is_compiling() or torch.is_inference_mode_enabled())
        fixed = fixed and not position_ids.is_inference()  # it does not count how often it changed
        key = (position_ids._version, like.dtype, like.device) if fixed else None
        kept_ids, kept_key, turns = self._kept
        if fixed and kept_ids is position_ids and kept_key == key:
            return turns
        angles = position_ids.double().unsqueeze(-1) * self._frequencies().to(like.device)
        turns = cos_sin(angles, like.dtype)
        if fixed:
            self._kept = (position_ids, key, turns)
        return turns

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_kept": (None, None, None)}

    def _frequencies(self) -> Float[Tensor, " half"]:
        """How far each pair turns from one position to the next, in radians."""
        return frequencies(self.rotary_dim, self.base)

    def extra_repr(self) -> str:
        """What a printed model says of it."""
        return (
            f"{self.d_head}, base={self.base}, layout={self.layout!r}, rotary_dim={self.rotary_dim}"
        )


# --- Checks ---------------------------------------------------------------------------------------


def check_rotary_dim(rotary_dim: int | None, d_head: int) -> int:
    """The number of features that rotate. Raises: TypeError or ValueError unless even and at most d."""
    rotary_dim = d_head if rotary_dim is None else rotary_dim
    if rotary_dim % 2 or rotary_dim > d_head:
        wanted = f"an even number, at most the head's {d_head} features"
        raise argument_error(ValueError, "rotary_dim", rotary_dim, wanted)
    return rotary_dim
