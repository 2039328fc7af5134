"""Generating: from the logits of the next token to whole sequences, with and without a cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..data import EOS, PAD, Vocabulary
from ..errors import (
    argument_error,
    check_count,
    check_integer_tensor,
    check_rank,
    shape_of,
)
from .decoding_state import DecodingState
from .sampling import GREEDY, Sampling

__all__ = ["Generated", "generate"]

# --- Whole sentences ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Generated:
    """New words, without the start: PAD follows a row's EOS. score: log-probability of a row's words.

    Shapes: tokens (B, N), scores (B). Scores of beam search are divided by length^penalty.
    """

    tokens: Int[Tensor, "B N"]
    scores: Float[Tensor, " B"]

    def decode(self, vocabulary: Vocabulary) -> list[list[str]]:
        """Each row as words."""
        return [vocabulary.decode(row) for row in self.tokens]


@torch.no_grad()
def generate(
    state: DecodingState,
    start: Int[Tensor, "B L"],
    *,
    max_new: int,
    sampling: Sampling = GREEDY,
    eos: int | None = EOS,
    padding: int = PAD,
) -> Generated:
    """Say one word after the other until EOS, each row for itself, at most max_new words.

    Shapes: start (B, L), L at least 1: what has been said before, such as BOS.
    Raises: TypeError or ValueError that name the argument.
    Source: chapter 11.
    """
    check_start(start)
    check_count("max_new", max_new)
    prefix_ids, logits = start, state.feed(start)
    scores = logits.new_zeros(len(start), dtype=torch.float32)
    done = torch.zeros(len(start), dtype=torch.bool, device=start.device)
    for count in range(1, max_new + 1):
        word = sampling.choose(logits, prefix_ids)  # B
        gained = logits.float().log_softmax(-1).gather(1, word[:, None])[:, 0]
        scores = scores + gained.masked_fill(done, 0.0)
        word = word.masked_fill(done, padding)
        prefix_ids = torch.cat([prefix_ids, word[:, None]], dim=1)
        done = done if eos is None else done | (word == eos)
        if count == max_new or bool(done.all()):
            break
        logits = state.feed(word[:, None])
    return Generated(prefix_ids[:, start.shape[1] :], scores)


def check_start(start: Any) -> None:
    """Raise unless start is word numbers (B, L) with at least one row and one word."""
    check_integer_tensor("start", start)
    check_rank("start", start, 2)
    if 0 in start.shape:
        raise argument_error(
            ValueError, "start", f"shape {shape_of(start)}", "at least a row and a word"
        )
