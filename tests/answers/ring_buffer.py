"""Caches of the last keys: by a list, by shifting, by concatenation; and wrong ones."""

from collections import deque

import torch

from tested_transformer.layers.cache import WindowCache
from tested_transformer.specs.ring_buffer.mutants import Ring

from . import right, wrong

right("ring_buffer")(Ring)


@right("ring_buffer")
class Queue:
    """A queue that forgets by itself."""

    def __init__(self, window):
        self.tokens = deque(maxlen=window)

    def append(self, key, value):
        self.tokens.append((key, value))
        return tuple(torch.cat(all_of, dim=2) for all_of in zip(*self.tokens, strict=True))


@right("ring_buffer")
class Cut(WindowCache):
    """The package's cache, whose return is the window before the chunk and the chunk."""

    def append(self, key, value):
        super().append(key, value)
        return self.keys, self.values


@right("ring_buffer")
class Backward(Queue):
    """The newest key first: the order does not matter."""

    def append(self, key, value):
        return tuple(each.flip(2) for each in super().append(key, value))


@wrong("ring_buffer", "the window before the chunk is returned as well")
class NotCut(WindowCache):
    pass


@wrong("ring_buffer", "keys and values in different orders")
class KeysBackward(Queue):
    def append(self, key, value):
        keys, values = super().append(key, value)
        return keys.flip(2), values


@wrong("ring_buffer", "all objects share their tokens")
class Shared(Queue):
    tokens = deque(maxlen=3)  # noqa: RUF012

    def __init__(self, window):
        pass


@wrong("ring_buffer", "the new token is written after the answer")
class Late(Queue):
    def append(self, key, value):
        before = list(self.tokens) or [(key, value)]
        super().append(key, value)
        return tuple(torch.cat(all_of, dim=2) for all_of in zip(*before, strict=True))


@wrong("ring_buffer", "emptied when it is full")
class Emptied(Queue):
    def append(self, key, value):
        if len(self.tokens) == self.tokens.maxlen:
            self.tokens.clear()
        return super().append(key, value)
