"""The famous mistakes in a cache of the last keys: one key too few or too many, and slots without a token."""

from __future__ import annotations

from ..mistakes import mistake


class Ring:
    """The right ring buffer, cut into the steps that the mutants replace one at a time."""

    def __init__(self, window):
        self.window, self.length = window, 0
        self.keys = self.values = None

    def append(self, key, value):
        """Write one token; return the keys and values of the last `window`, in any order."""
        if self.keys is None:
            self.keys, self.values = (
                each.new_zeros(*each.shape[:2], self.slots(), each.shape[-1])
                for each in (key, value)
            )
        slot = self.slot()
        self.keys[:, :, slot], self.values[:, :, slot] = key[:, :, 0], value[:, :, 0]
        self.length += 1
        return self.keys[:, :, : self.filled()], self.values[:, :, : self.filled()]

    def slots(self):
        """How many tokens there is room for."""
        return self.window

    def slot(self):
        """Where the next token is written."""
        return self.length % self.slots()

    def filled(self):
        """How many slots hold a token."""
        return min(self.length, self.slots())


@mistake(
    "a ring one slot too small",
    rejected_by="the oldest key of the window counts",
    symptom="Right for the first w - 1 tokens. From then on every query lacks one key.",
    cause="The window is taken for the number of earlier tokens less one: it includes the query's own.",
)
class OneSlotTooFew(Ring):
    def slots(self):
        return max(1, self.window - 1)


@mistake(
    "a ring one slot too large",
    rejected_by="a key that has left the window changes nothing",
    symptom="Right for the first w tokens. From then on every query has one key too many.",
    cause="Room for the window and for the new token, which is part of the window already.",
)
class OneSlotTooMany(Ring):
    def slots(self):
        return self.window + 1


@mistake(
    "the window cache full one step early",
    rejected_by="the oldest key of the window counts",
    symptom="w - 1 outputs are wrong from position w - 1 on; those of this layer are right afterward.",
    cause="The keys are shifted when one slot is still free: position >= window - 1 in place of window.",
    seen="huggingface/transformers issue 37574",
)
class FullTooEarly(Ring):
    def slot(self):
        if self.length >= self.window - 1:
            self.keys, self.values = (each.roll(-1, dims=2) for each in (self.keys, self.values))
        return min(self.length, self.window - 1)


@mistake(
    "empty slots take part",
    rejected_by="slots without a token take no part",
    symptom="The first outputs are too small: keys of zeros have a score of 0, not of minus infinity.",
    cause="The whole buffer is returned, including the slots that no token has been written to.",
)
class EmptySlots(Ring):
    def filled(self):
        return self.slots()


@mistake(
    "the last slot written again and again",
    rejected_by="a key that has left the window changes nothing",
    symptom="Right until the window is full. From then on the first keys stay forever.",
    cause="min(length, window - 1) in place of length % window, and nothing is shifted.",
)
class LastSlot(Ring):
    def slot(self):
        return min(self.length, self.window - 1)
