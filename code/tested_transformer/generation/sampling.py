"""Choosing the next token: penalty, temperature, top-k and top-p."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..bounds import Above, AtLeast, AtMost, Below, PositiveFloat, PositiveInt
from ..shapes import check_fields, checked

TokenIDs = Annotated[Int[Tensor, "B L"], AtLeast(0), Below("V")]
Share = Annotated[float, Above(0), AtMost(1)]

__all__ = ["Sampling", "repetition_penalty", "top_k_filter", "top_p_filter"]


@checked
def repetition_penalty(
    logits: Float[Tensor, "B V"],
    prefix_ids: TokenIDs,
    penalty: PositiveFloat,
) -> Float[Tensor, "B V"]:
    """Make tokens of the prefix less probable: divide a positive logit, multiply a negative one.

    Shapes: logits (B, V), prefix_ids (B, L) -> (B, V). A penalty of 1 changes nothing.
    Raises: TypeError or ValueError that name the argument.
    Source: Keskar et al. 2019 (CTRL), section 4.1.

    >>> repetition_penalty(torch.tensor([[2.0, -1.0, 3.0]]), torch.tensor([[0, 1]]), 2.0).tolist()
    [[1.0, -2.0, 3.0]]
    """
    repeated = logits.gather(1, prefix_ids)  # B L
    penalized = torch.where(repeated > 0, repeated / penalty, repeated * penalty)
    return logits.scatter(1, prefix_ids, penalized)


@checked
def top_k_filter(logits: Float[Tensor, "B V"], k: PositiveInt) -> Float[Tensor, "B V"]:
    """Filter out all but the k most probable tokens; ties with the k-th stay.

    Shapes: (B, V) -> (B, V), filtered out is -inf.
    Raises: TypeError or ValueError that name the argument.
    Source: Fan et al. 2018, section 5.4.

    >>> top_k_filter(torch.tensor([[1.0, 3.0, 2.0]]), 2).tolist()
    [[-inf, 3.0, 2.0]]
    """
    least = logits.topk(min(k, logits.shape[-1])).values[:, -1:]  # B 1
    return logits.masked_fill(logits < least, float("-inf"))


@checked
def top_p_filter(logits: Float[Tensor, "B V"], p: Share) -> Float[Tensor, "B V"]:
    """Filter out all but the smallest set of most probable tokens with probability p together.

    The most probable token always stays, and with p = 1 every token.

    Shapes: (B, V) -> (B, V), filtered out is -inf.
    Raises: TypeError or ValueError that name the argument.
    Source: Holtzman et al. 2020, section 3.1.

    >>> (top_p_filter(torch.tensor([[0.5, 0.3, 0.2]]).log(), 0.6) > -9).int().tolist()
    [[1, 1, 0]]
    """
    if p == 1:  # the sum itself can come out as more than 1
        return logits
    ordered, tokens = logits.sort(dim=-1, descending=True, stable=True)
    probability = ordered.double().softmax(-1)
    before = probability.cumsum(-1) - probability  # of all more probable tokens together
    removed = before >= p
    removed[:, 0] = False
    return logits.masked_fill(removed.scatter(1, tokens, removed), float("-inf"))


@dataclass(frozen=True)
class Sampling:
    """How the next token is sampled: penalty, temperature, top-k, top-p, in this order.

    A temperature of 0 takes the most probable token. The generator makes the samples repeatable.

    Raises: TypeError or ValueError that name the field.
    Source: chapter 11.
    """

    temperature: Annotated[float, AtLeast(0)] = 1.0
    top_k: PositiveInt | None = None
    top_p: Share | None = None
    repetition_penalty: PositiveFloat = 1.0
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    @checked
    def shape(self, logits: Float[Tensor, "B V"], prefix_ids: TokenIDs) -> Float[Tensor, "B V"]:
        """The logits after penalty, temperature and filters."""
        if self.repetition_penalty != 1.0:
            logits = repetition_penalty(logits, prefix_ids, self.repetition_penalty)
        if self.temperature not in (0.0, 1.0):
            logits = logits / self.temperature
        if self.top_k is not None:
            logits = top_k_filter(logits, self.top_k)
        return logits if self.top_p is None else top_p_filter(logits, self.top_p)

    def choose(self, logits: Float[Tensor, "B V"], prefix_ids: TokenIDs) -> Int[Tensor, " B"]:
        """One token for each sequence."""
        shaped = self.shape(logits, prefix_ids)
        if self.temperature == 0:
            return shaped.argmax(-1)
        return torch.multinomial(shaped.softmax(-1), 1, generator=self.generator)[:, 0]


GREEDY = Sampling(temperature=0.0)
