"""A simulated day of requests, and how much of the cache's memory holds tokens (chapter 16).

Lengths are lognormal, in tokens: prompts with a mean of about 160, outputs of about 340, cut so that the
two have at most MAX_LENGTH together. Requests arrive at random, most of them in the evening. A request
that runs gets RATE tokens per second. One that finds no memory waits, in the order of arrival; if those
that run outgrow the memory, the last one to have joined waits again, and keeps what it has got.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..bounds import PositiveInt, Seed
from ..shapes import checked

MAX_LENGTH = 2048
BLOCK = 16
RATE, STEP = 5, 4  # tokens per second, and seconds per step
BYTES_PER_TOKEN = 2 * 40 * 5120 * 2  # keys and values, layers, features, two bytes: a model of 13B
MEMORY = 40 * 10**9 // BYTES_PER_TOKEN  # tokens in 40 GB

POLICIES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "maximum length": lambda length: np.full_like(length, MAX_LENGTH),
    "power of two": lambda length: (
        2 ** np.ceil(np.log2(np.maximum(length, BLOCK))).astype(np.int64)
    ),
    "blocks of 16": lambda length: -(-length // BLOCK) * BLOCK,
}


@dataclass(frozen=True)
class Day:
    """Requests in the order of their arrival: the step, and how many tokens."""

    arrival: np.ndarray
    prompt: np.ndarray
    output: np.ndarray


@dataclass(frozen=True)
class Served:
    """At each step: requests that run and that wait, tokens held, tokens reserved; and who was served.

    num_done: requests with all of their tokens. waited: seconds from arrival to the first token's step,
    of those that have started.
    """

    running: np.ndarray
    waiting: np.ndarray
    held: np.ndarray
    reserved: np.ndarray
    num_done: int
    waited: np.ndarray

    @property
    def share(self) -> float:
        """Share of the reserved memory that holds tokens, over all steps."""
        return float(self.held.sum() / self.reserved.sum())


@checked
def simulated_day(seed: Seed, *, hours: PositiveInt = 24) -> Day:
    """Requests by chance, 1.2 per second on average over a day; hours: only the last ones of the day."""
    rng = np.random.default_rng(seed)
    steps = np.arange((24 - hours) * 3600 // STEP, 24 * 3600 // STEP)
    daytime = 1 - 0.8 * np.cos(2 * np.pi * (steps * STEP / 3600 - 8) / 24)  # least at 8, most at 20
    counts = rng.poisson(1.2 * STEP * daytime)
    arrival = np.repeat(steps - steps[0], counts)
    prompt = np.ceil(rng.lognormal(4.6, 1.0, size=len(arrival))).astype(np.int64)
    output = np.ceil(rng.lognormal(5.4, 0.9, size=len(arrival))).astype(np.int64)
    prompt = np.minimum(prompt, MAX_LENGTH // 2)
    return Day(arrival, prompt, np.minimum(output, MAX_LENGTH - prompt))


@checked
def serve(day: Day, policy: str, *, memory: PositiveInt = MEMORY) -> Served:
    """Serve the requests of a day with that many tokens of memory."""
    reserve = POLICIES[policy]
    steps = int(day.arrival[-1]) + 1
    rows = np.zeros((4, steps), dtype=np.int64)
    length, end = day.prompt.copy(), day.prompt + day.output
    first = np.full(len(length), -1)
    running, waiting, arrived, done = np.zeros(0, np.int64), deque(), 0, 0
    for step in range(steps):
        while arrived < len(length) and day.arrival[arrived] <= step:
            waiting.append(arrived)
            arrived += 1
        running, waiting = _fit(running, waiting, reserve, length, memory)
        first[running] = np.where(first[running] < 0, step, first[running])
        held, reserved = length[running].sum(), reserve(length[running]).sum()
        rows[:, step] = len(running), len(waiting), held, reserved
        length[running] = np.minimum(length[running] + RATE * STEP, end[running])
        ended = length[running] == end[running]
        running, done = running[~ended], done + int(ended.sum())
    waited = STEP * (first - day.arrival)[first >= 0]
    return Served(*rows, num_done=done, waited=waited)


def _fit(
    running: np.ndarray,
    waiting: deque[int],
    reserve: Callable[[np.ndarray], np.ndarray],
    length: np.ndarray,
    memory: int,
) -> tuple[np.ndarray, deque[int]]:
    """Send the last ones back while too much is reserved, then let those that wait join while they fit."""
    needed = np.cumsum(reserve(length[running]))
    fits = int(np.searchsorted(needed, memory, side="right"))
    for request in running[fits:][::-1]:
        waiting.appendleft(int(request))
    running, free = running[:fits], memory - (int(needed[fits - 1]) if fits else 0)
    joined = []
    while waiting and fits == len(needed):
        size = int(reserve(length[waiting[0] : waiting[0] + 1])[0])
        if size > free:
            break
        free -= size
        joined.append(waiting.popleft())
    return np.concatenate([running, np.array(joined, dtype=np.int64)]), waiting
