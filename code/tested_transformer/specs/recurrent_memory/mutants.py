"""The famous mistakes with memory tokens: the wrong copy is passed on, no copy is, or no gradient."""

from __future__ import annotations

import torch

from ..mistakes import Formula, mistake


class MemoryTokensFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(self, body, x, memory, *, segment_length, backprop_segments=None):
        """One segment after the other."""
        first, size, outputs = memory, memory.shape[1], []
        for number, segment in enumerate(x.split(segment_length, 1)):
            if number and backprop_segments and number % backprop_segments == 0:
                memory = memory.detach()
            states = body(torch.cat((self.read(memory, first), segment, memory), 1))
            outputs.append(self.output(states, size, segment.shape[1]))
            memory = self.passed_on(self.written(states, size, segment.shape[1]), first)
        return torch.cat(outputs, 1), memory

    def read(self, memory, first):
        """The copy before the segment."""
        return memory

    def output(self, states, size, length):
        """What is left of the segment."""
        return states[:, size : size + length]

    def written(self, states, size, length):
        """The next memory."""
        return states[:, size + length :]

    def passed_on(self, memory, first):
        """What the next segment gets."""
        return memory


@mistake(
    "the memory before the segment is passed on",
    rejected_by="a later segment depends on an earlier one",
    symptom="Under a causal mask the memory never learns anything of the text.",
    cause="The outputs of the first copy are the next memory; that copy attends to no token of the segment.",
)
class FirstCopy(MemoryTokensFormula):
    def written(self, states, size, length):
        return states[:, :size]


@mistake(
    "every segment begins with the first memory",
    rejected_by="a later segment depends on an earlier one",
    symptom="A long text is read as many short ones.",
    cause="What a segment has written is returned, and never handed to the next one.",
)
class NotPassedOn(MemoryTokensFormula):
    def passed_on(self, memory, first):
        return first


@mistake(
    "the reading copy stays as it was",
    rejected_by="a later segment depends on an earlier one",
    symptom="The memory collects the text, and the tokens of a segment cannot read it: only the writing copy "
    "carries it on.",
    cause="The copy before the segment is the first memory, every time.",
)
class StaleRead(MemoryTokensFormula):
    def read(self, memory, first):
        return first


@mistake(
    "the memory is not cut off the outputs",
    rejected_by="the first tokens do not depend on later ones",
    symptom="Every token's loss is that of the token num_memory places before it.",
    cause="The outputs are taken from the end, where the writing copy stands, which has seen the whole segment.",
)
class OutputsFromEnd(MemoryTokensFormula):
    def output(self, states, size, length):
        return states[:, states.shape[1] - length :]


@mistake(
    "the memory is detached after every segment",
    rejected_by="the gradients are right",
    symptom="The loss falls as without a memory: no segment learns what later ones will need.",
    cause="The memory is treated as the one of a Transformer-XL, which gets no gradient.",
)
class Detached(MemoryTokensFormula):
    def passed_on(self, memory, first):
        return memory.detach()
