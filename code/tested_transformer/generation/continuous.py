"""Continuous batching: requests join the batch and leave it at every step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..bounds import NonNegativeInt, PositiveInt, TokenID, Where
from ..layers.paged_cache import PagedCache
from ..shapes import check_fields, checked
from ..special_tokens import EOS, pad
from .decoding_state import CausalModel
from .sampling import GREEDY, Sampling

__all__ = ["ContinuousBatch", "Request"]

Prompt = Annotated[Sequence[TokenID], Where("at least one token", len)]


@dataclass(eq=False)
class Request:
    """A prompt, how many tokens it wants at most, and what it has got so far: `tokens`.

    arrival: the first step at which it is there.

    Raises: TypeError or ValueError that name the field.
    """

    prompt: Prompt
    max_new: PositiveInt
    arrival: NonNegativeInt = 0
    sampling: Sampling = GREEDY
    tokens: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def text(self) -> list[int]:
        """The prompt and what follows it."""
        return [*self.prompt, *self.tokens]


class ContinuousBatch:
    """Generate for many requests in one batch, which they join and leave at every step.

    A step feeds each request what the cache lacks of it: the prompt when it joins, then its last token.
    Requests join in the order of their arrival while there are free rows and free blocks. If the pool
    is exhausted, the last one to have joined goes back to wait, and is computed again later.

    Raises: TypeError or ValueError that name the argument; PoolExhausted if one request alone needs more
        blocks than there are.
    Source: Yu et al. 2022 (Orca), section 3; Kwon et al. 2023, section 4.5.
    """

    @checked
    def __init__(
        self,
        model: CausalModel,
        cache: PagedCache,
        *,
        max_batch: PositiveInt,
        eos: TokenID | None = EOS,
    ) -> None:
        self.model, self.cache, self.max_batch, self.eos = model, cache, max_batch, eos
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.num_steps = 0

    @checked
    def run(self, requests: Sequence[Request]) -> list[list[int]]:
        """Serve all of these; return the new tokens of each."""
        self.waiting = deque(sorted(requests, key=lambda request: request.arrival))
        while self.waiting or self.running:
            self.step()
        return [request.tokens for request in requests]

    @torch.no_grad()
    def step(self) -> None:
        """Let requests join, generate a token of each that runs, let those that are done leave."""
        self._admit()
        self._preempt()
        self.num_steps += 1
        if not self.running:  # none has arrived
            return
        ids, real, position_ids = self._chunk()
        options = {"position_ids": position_ids} if self.model.takes_positions else {}
        logits = self.model(ids, real, cache=self.cache, **options)[:, -1]  # B V
        for row, request in enumerate(self.running):
            text = torch.tensor([request.text], device=logits.device)
            token = int(request.sampling.choose(logits[row : row + 1], text))
            self.cache.manager.remember(self.cache.tables[row], request.text)
            request.tokens.append(token)
        self._keep([row for row, request in enumerate(self.running) if not self._is_done(request)])

    def _admit(self) -> None:
        """Let those that wait join, while there is a row, and free blocks for what they bring."""
        while self.waiting and self.waiting[0].arrival <= self.num_steps:
            if len(self.running) == self.max_batch:
                break
            self.cache.add(self.waiting[0].text)
            self.running.append(self.waiting.popleft())
            if len(self.running) > 1 and self._lacks_blocks():
                self._send_back()
                break

    def _preempt(self) -> None:
        """Send back the last to have joined until there are blocks for this step's tokens."""
        while len(self.running) > 1 and self._lacks_blocks():
            self._send_back()

    def _send_back(self) -> None:
        self.waiting.appendleft(self.running[-1])
        self._keep(range(len(self.running) - 1))

    def _lacks_blocks(self) -> bool:
        manager = self.cache.manager
        return manager.num_needed(self.cache.tables, self._new()) > len(manager.pool.free)

    def _new(self) -> list[int]:
        """How many tokens of each request the cache lacks."""
        pairs = zip(self.running, self.cache.lengths, strict=True)
        return [len(request.text) - length for request, length in pairs]

    def _chunk(self) -> tuple[Int[Tensor, "B L"], Bool[Tensor, "B T"], Int[Tensor, "B L"]]:
        """What to feed: token IDs, padded on the left, which are real, and their positions."""
        new, lengths, past = self._new(), torch.tensor(self.cache.lengths), self.cache.length
        ids = pad(
            [request.text[-n:] for request, n in zip(self.running, new, strict=True)], left=True
        )
        from_end = torch.arange(ids.shape[1]) - ids.shape[1]  # -L to -1
        real = from_end >= -torch.tensor(new)[:, None]  # B L
        positions = (from_end + torch.tensor(new)[:, None] + lengths[:, None]).clamp(min=0)
        before = torch.ones(len(new), past, dtype=torch.bool)  # the cache knows it better
        device = next(self.model.parameters()).device
        chunk = ids, torch.cat([before, real], 1), positions
        return tuple(part.to(device) for part in chunk)

    def _is_done(self, request: Request) -> bool:
        return len(request.tokens) == request.max_new or request.tokens[-1] == self.eos

    def _keep(self, rows: Iterable[int]) -> None:
        """Only these rows stay; the blocks of the others are free."""
        rows = list(rows)
        self.running = [self.running[row] for row in rows]
        self.cache.reorder(torch.tensor(rows, dtype=torch.long, device=self.cache.real.device))
