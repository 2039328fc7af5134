"""Beam search: the most probable prefixes, extended side by side."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch
from jaxtyping import Int
from torch import Tensor

from ..bounds import AtLeast, AtMost, PositiveInt, TokenID
from ..errors import argument_error
from ..shapes import checked
from ..special_tokens import EOS, PAD, pad
from .decoding_state import DecodingState
from .generate import Generated

__all__ = ["beam_search"]


@dataclass
class _Beams:
    """The search for one sequence: running hypotheses, finished ones, can anything better come?"""

    size: int
    max_new: int
    length_penalty: float
    eos: int
    running: list[list[int]] = field(default_factory=lambda: [[]])  # best first, like the rest
    scores: list[float] = field(default_factory=lambda: [0.0])  # their log-probabilities
    came_from: list[int] = field(default_factory=lambda: [0])  # the beams that they extend
    ended: list[tuple[float, list[int]]] = field(default_factory=list)  # score, tokens
    done: bool = False

    def grow(self, steps: list[tuple[float, int, int]]) -> None:
        """Take twice as many steps (score, beam, token) as beams, best first, since half may end."""
        length, kept = len(self.running[0]) + 1, []
        for rank, (score, beam, token) in enumerate(steps):
            hypothesis = [*self.running[beam], token]
            ends = token == self.eos or length == self.max_new
            if ends and rank < self.size and not self.done:
                self.ended.append((score / length**self.length_penalty, hypothesis))
            if token != self.eos and len(kept) < self.size:
                kept.append((hypothesis, score, beam))
        self.running, self.scores, self.came_from = map(list, zip(*kept, strict=True))
        self.ended = sorted(self.ended, key=lambda found: -found[0])[: self.size]
        self.done = self.done or self._settled(length)

    def _settled(self, length: int) -> bool:
        """Have enough ended, and is the best that runs unable to catch up?"""
        longest = self.max_new if self.length_penalty > 0 else length
        best_possible = self.scores[0] / longest**self.length_penalty
        return len(self.ended) == self.size and best_possible <= self.ended[-1][0]


@torch.no_grad()
@checked(nonempty="B L")
def beam_search(
    state: DecodingState,
    start: Int[Tensor, "B L"],
    *,
    num_beams: PositiveInt,
    max_new: PositiveInt,
    length_penalty: Annotated[float, AtLeast(-100), AtMost(100)] = 1.0,
    eos: TokenID = EOS,
    padding: TokenID = PAD,
) -> Generated:
    """Keep the num_beams most probable prefixes at each length; return the best that ended.

    A hypothesis of n tokens (EOS counts) is scored by its log-probability / n^length_penalty: 0
    favors short ones, a large penalty long ones. The search ends when no running prefix can still
    beat the num_beams that ended, or at max_new tokens, where what runs ends as it is.

    Shapes: start (B, L) -> tokens (B, N), scores (B).
    Raises: TypeError or ValueError that name the argument.
    Source: Wu et al. 2016, section 7, with the length penalty of transformers.
    """
    logits = state.feed(start)  # B V
    if 2 * num_beams > logits.shape[-1]:
        wanted = f"at most half of the {logits.shape[-1]} words"
        raise argument_error(ValueError, "num_beams", num_beams, wanted)
    searches = [_Beams(num_beams, max_new, length_penalty, eos) for _ in start]
    scores = torch.zeros(len(start), 1, device=start.device)  # B K: log-probabilities
    for length in range(1, max_new + 1):
        steps = _best_steps(logits, scores, 2 * num_beams)
        for search, found in zip(searches, steps, strict=True):
            search.grow(found)
        if length == max_new or all(search.done for search in searches):
            break
        rows, tokens = _rows_and_tokens(searches, scores.shape[1])
        state.reorder(torch.tensor(rows, device=start.device))
        logits = state.feed(torch.tensor(tokens, device=start.device))
        scores = torch.tensor([search.scores for search in searches], device=start.device)
    best = [search.ended[0] for search in searches]
    tokens = pad([hypothesis for _, hypothesis in best], value=padding).to(start.device)
    return Generated(tokens, torch.tensor([score for score, _ in best], device=start.device))


def _rows_and_tokens(searches: list[_Beams], beams: int) -> tuple[list[int], list[list[int]]]:
    """Of each running hypothesis the row of the batch that it extends, and its last token."""
    rows = [n * beams + beam for n, search in enumerate(searches) for beam in search.came_from]
    return rows, [[running[-1]] for search in searches for running in search.running]


def _best_steps(logits: Tensor, scores: Tensor, count: int) -> list[list[tuple[float, int, int]]]:
    """For each example the most probable (log-probability, beam, token), best first."""
    vocab = logits.shape[-1]
    total = logits.float().log_softmax(-1).view(*scores.shape, vocab) + scores[..., None]
    best, indices = total.flatten(1).topk(count)
    return [
        [(score, *divmod(index, vocab)) for score, index in zip(*row, strict=True)]
        for row in zip(best.tolist(), indices.tolist(), strict=True)
    ]
