"""Patterns that know positions alone: local windows, and windows with holes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from ..bounds import PositiveInt
from ..shapes import check_fields
from .patterns import Part, make_part

__all__ = ["Local"]


@dataclass(frozen=True)
class Local:
    """Each query attends to the keys fewer than `window` steps away; with `causal`, to its last `window` keys.

    Raises: TypeError or ValueError that name the field.
    Source: Parmar et al. 2018 (Image Transformer), section 3; Beltagy et al. 2020 (Longformer), section 3.1.
    """

    window: PositiveInt
    causal: bool = False

    def __post_init__(self) -> None:
        check_fields(self)

    def rule(self, query_ids: Tensor, key_ids: Tensor) -> Tensor:
        """True where the key is near enough, and not in the future of a causal query."""
        steps = query_ids - key_ids
        return (steps < self.window) & (steps >= (0 if self.causal else 1 - self.window))

    def mask(self, length: int) -> Bool[Tensor, "L L"]:
        """The picture of the pattern."""
        ids = torch.arange(length)
        return self.rule(ids[:, None], ids)

    def parts(self, length: int) -> list[Part]:
        """Blocks of `window` queries; their keys lie in the same block and in those beside it."""
        starts = torch.arange(0, length, self.window)[:, None]
        queries = starts + torch.arange(self.window)
        after = 1 if self.causal else 2  # blocks
        keys = starts + torch.arange(-self.window, after * self.window)
        return [make_part(queries, keys, self.rule, length)]
