"""Generating token by token: greedy or sampled, with and without a cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..bounds import PositiveInt, TokenID, Where
from ..shapes import checked
from ..special_tokens import EOS, PAD
from .decoding_state import DecodingState
from .sampling import GREEDY, Sampling

__all__ = ["Generated", "generate"]


Decodes = Annotated[
    Any, Where("what has `decode`", lambda words: hasattr(words, "decode"), TypeError)
]


@dataclass(frozen=True)
class Generated:
    """New tokens, without the prompt: PAD follows EOS. scores: log-probabilities of the sequences.

    Shapes: tokens (B, N), scores (B). Scores of beam search are divided by length^penalty.
    """

    tokens: Int[Tensor, "B N"]
    scores: Float[Tensor, " B"]

    @checked
    def decode(self, vocabulary: Decodes) -> list[list[str]]:
        """Each sequence in words, by anything that has `decode`, such as a Vocabulary."""
        return [vocabulary.decode(row) for row in self.tokens]


@torch.no_grad()
@checked(nonempty="B L")
def generate(
    state: DecodingState,
    start: Int[Tensor, "B L"],
    *,
    max_new: PositiveInt,
    sampling: Sampling = GREEDY,
    eos: TokenID | None = EOS,
    padding: TokenID = PAD,
) -> Generated:
    """Generate token after token until EOS, each sequence for itself, at most max_new tokens.

    Shapes: start (B, L), L at least 1: the prompt, such as BOS -> tokens (B, N), scores (B).
    Raises: TypeError or ValueError that name the argument.
    Source: chapter 11.
    """
    prefix_ids, logits = start, state.feed(start)
    scores = logits.new_zeros(len(start), dtype=torch.float32)
    done = torch.zeros(len(start), dtype=torch.bool, device=start.device)
    for count in range(1, max_new + 1):
        token = sampling.choose(logits, prefix_ids)  # B
        log_p = logits.float().log_softmax(-1).gather(1, token[:, None])[:, 0]
        scores = scores + log_p.masked_fill(done, 0.0)
        token = token.masked_fill(done, padding)
        prefix_ids = torch.cat([prefix_ids, token[:, None]], dim=1)
        done = done if eos is None else done | (token == eos)
        if count == max_new or bool(done.all()):
            break
        logits = state.feed(token[:, None])
    return Generated(prefix_ids[:, start.shape[1] :], scores)
