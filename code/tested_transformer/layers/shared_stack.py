"""A stack whose layers run more than once: ALBERT's, in which all layers are one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import nn

from ..bounds import PositiveInt
from ..shapes import checked
from .stack import Stack

__all__ = ["SharedStack"]


class SharedStack(Stack):
    """Groups of layers, one after the other; each group runs `repeats` times before the next one.

    One group of one layer, repeated 12 times, has the parameters of one layer and the computation of
    12. Every run of a layer has attention weights and a cache of its own.

    Shapes: as `Stack`.
    Raises: as `Stack`, and TypeError or ValueError that name the argument.
    Source: Lan et al. 2020 (ALBERT), section 3.1.

    >>> first, second = (nn.ModuleList([nn.Linear(2, 2)]) for _ in range(2))
    >>> order = SharedStack([first, second], repeats=2).in_order()
    >>> [layer in second for layer in order]
    [False, False, True, True]
    """

    @checked
    def __init__(self, groups: Iterable[nn.ModuleList], *, repeats: PositiveInt) -> None:
        super().__init__(groups)
        self.repeats = repeats

    def in_order(self) -> Iterator[nn.Module]:
        """Every layer as often as it runs."""
        for group in self:
            yield from [*group] * self.repeats
