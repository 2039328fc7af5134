"""The cache of a recurrent layer: a few tensors of fixed size that stand for all tokens so far."""

from __future__ import annotations

from typing import Annotated

from jaxtyping import Int
from torch import Tensor

from ..bounds import AtLeast, Below, NonNegativeInt
from ..errors import argument_error
from ..shapes import checked
from .cache import check_no_gradient

__all__ = ["RecurrentState"]


class RecurrentState:
    """What a recurrent layer hands from call to call, by name: states of a scan, last tokens of a convolution.

    It never grows. What a token did to it cannot be undone: `truncate` takes back everything or nothing. A cache is
    for generation, not for training: gradients do not flow through it.

    Shapes: tensors that begin with the batch, (B, ...); none before the first call.
    Source: chapter 20.

    >>> import torch
    >>> cache = RecurrentState()
    >>> cache.get("scan") is None
    True
    >>> cache.update(3, scan=torch.zeros(2, 4))
    >>> cache.length, cache.batch, cache.nbytes
    (3, 2, 32)
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.length = 0

    @checked
    def get(self, name: str) -> Tensor | None:
        """The tensor of that name; None before the first call.

        Raises: TypeError if the name is no string.
        """
        return self.tensors.get(name)

    @property
    def batch(self) -> int | None:
        """How many sequences there are; None before the first call."""
        return next((len(tensor) for tensor in self.tensors.values()), None)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @checked
    def update(self, new: NonNegativeInt, **tensors: Tensor) -> None:
        """Keep these tensors after `new` more tokens.

        Raises: TypeError or ValueError that name the argument; ValueError if a gradient would be lost.
        """
        check_no_gradient(**tensors)
        self.tensors, self.length = tensors, self.length + new

    @checked
    def reorder(self, rows: Annotated[Int[Tensor, " N"], AtLeast(0), Below("self.batch")]) -> None:
        """Keep these sequences of the batch, in this order; one may be named twice.

        Raises: TypeError or ValueError for rows that are no such numbers.
        """
        if not self.tensors:
            raise RuntimeError("the cache is empty: update it first")
        self.tensors = {name: tensor[rows] for name, tensor in self.tensors.items()}

    @checked
    def truncate(self, length: NonNegativeInt) -> None:
        """Forget everything, with length 0, or nothing, with the present one.

        Raises: TypeError or ValueError for any other length.
        """
        if length not in (0, self.length):
            wanted = f"0 or {self.length}: one state stands for all tokens so far"
            raise argument_error(ValueError, "length", length, wanted)
        if length == 0:
            self.tensors, self.length = {}, 0
