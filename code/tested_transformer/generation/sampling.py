"""Choosing the next token: penalty, temperature, top-k and top-p."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import (
    complain,
    need_count,
    need_float_tensor,
    need_integer_tensor,
    need_number,
    need_positive,
    need_rank,
    shape_of,
)

__all__ = ["Sampling", "keep_top_k", "keep_top_p", "repeat_penalty"]


def repeat_penalty(
    logits: Float[Tensor, "B V"], said: Int[Tensor, "B L"], penalty: float
) -> Float[Tensor, "B V"]:
    """Make words that were said already less likely: divide a positive score, multiply a negative one.

    Shapes: logits (B, V), said (B, L) -> (B, V). A penalty of 1 changes nothing.
    Raises: TypeError or ValueError that name the argument.
    Source: Keskar et al. 2019 (CTRL), section 4.1.

    >>> repeat_penalty(torch.tensor([[2.0, -1.0, 3.0]]), torch.tensor([[0, 1]]), 2.0).tolist()
    [[1.0, -2.0, 3.0]]
    """
    need_logits(logits)
    need_integer_tensor("said", said)
    need_positive("penalty", penalty)
    found = logits.gather(1, said)  # B L
    return logits.scatter(1, said, torch.where(found > 0, found / penalty, found * penalty))


def keep_top_k(logits: Float[Tensor, "B V"], k: int) -> Float[Tensor, "B V"]:
    """Rule out all but the k likeliest words; ties with the k-th stay.

    Shapes: (B, V) -> (B, V), ruled out is -inf.
    Raises: TypeError or ValueError that name the argument.
    Source: Fan et al. 2018, section 5.4.

    >>> keep_top_k(torch.tensor([[1.0, 3.0, 2.0]]), 2).tolist()
    [[-inf, 3.0, 2.0]]
    """
    need_logits(logits)
    need_count("k", k)
    least = logits.topk(min(k, logits.shape[-1])).values[:, -1:]  # B 1
    return logits.masked_fill(logits < least, float("-inf"))


def keep_top_p(logits: Float[Tensor, "B V"], p: float) -> Float[Tensor, "B V"]:
    """Rule out all but the smallest set of likeliest words that together have probability p.

    The likeliest word always stays.

    Shapes: (B, V) -> (B, V), ruled out is -inf.
    Raises: TypeError or ValueError that name the argument.
    Source: Holtzman et al. 2020, section 3.1.

    >>> (keep_top_p(torch.tensor([[0.5, 0.3, 0.2]]).log(), 0.6) > -9).int().tolist()
    [[1, 1, 0]]
    """
    need_logits(logits)
    need_number("p", p)
    if not 0 < p <= 1:
        raise complain(ValueError, "p", p, "a probability above 0, at most 1")
    ordered, words = logits.sort(dim=-1, descending=True, stable=True)
    probability = ordered.softmax(-1)
    before = probability.cumsum(-1) - probability  # what the likelier words have together
    ruled_out = before >= p
    ruled_out[:, 0] = False
    return logits.masked_fill(ruled_out.scatter(1, words, ruled_out), float("-inf"))


@dataclass(frozen=True)
class Sampling:
    """How the next word is drawn: penalty, temperature, top-k, top-p, in this order, then chance.

    A temperature of 0 takes the likeliest word. The generator makes the draws repeatable.

    Raises: TypeError or ValueError that name the field.
    Source: chapter 11.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        need_number("temperature", self.temperature)
        if self.temperature < 0:
            raise complain(ValueError, "temperature", self.temperature, "at least 0")
        need_positive("repetition_penalty", self.repetition_penalty)
        if self.top_k is not None:
            need_count("top_k", self.top_k)
        if self.top_p is not None:
            need_number("top_p", self.top_p)
            if not 0 < self.top_p <= 1:
                wanted = "a probability above 0, at most 1"
                raise complain(ValueError, "top_p", self.top_p, wanted)

    def shape(self, logits: Float[Tensor, "B V"], said: Int[Tensor, "B L"]) -> Float[Tensor, "B V"]:
        """The scores after penalty, temperature and what is ruled out."""
        if self.repetition_penalty != 1.0:
            logits = repeat_penalty(logits, said, self.repetition_penalty)
        if self.temperature not in (0.0, 1.0):
            logits = logits / self.temperature
        if self.top_k is not None:
            logits = keep_top_k(logits, self.top_k)
        return logits if self.top_p is None else keep_top_p(logits, self.top_p)

    def choose(self, logits: Float[Tensor, "B V"], said: Int[Tensor, "B L"]) -> Int[Tensor, " B"]:
        """One word for each row."""
        shaped = self.shape(logits, said)
        if self.temperature == 0:
            return shaped.argmax(-1)
        return torch.multinomial(shaped.softmax(-1), 1, generator=self.generator)[:, 0]


GREEDY = Sampling(temperature=0.0)


def need_logits(logits: Any) -> None:
    """Raise unless logits are floating point scores (B, V) of at least one word."""
    need_float_tensor("logits", logits)
    need_rank("logits", logits, 2)
    if logits.shape[-1] == 0:
        raise complain(ValueError, "logits", f"shape {shape_of(logits)}", "at least one word")
