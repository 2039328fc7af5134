"""Memory tokens by recursion, and with a list of segments; a memory that is averaged, and one that is detached late."""

import torch

from answers import right, wrong
from tested_transformer.layers.recurrent_memory import read_by_segments

right("read_by_segments", "the package's")(read_by_segments)


@right("read_by_segments", "the last segment after all others, by recursion")
def by_recursion(body, x, memory, *, segment_length, backprop_segments=None):
    segments = x.split(segment_length, 1)
    if len(segments) > 1:
        rest = torch.cat(segments[:-1], 1)
        options = {"segment_length": segment_length, "backprop_segments": backprop_segments}
        before, memory = by_recursion(body, rest, memory, **options)
        if backprop_segments is not None and (len(segments) - 1) % backprop_segments == 0:
            memory = memory.detach()
    size, new = memory.shape[1], segments[-1].shape[1]
    _, output, memory = body(torch.cat((memory, segments[-1], memory), 1)).split(
        (size, new, size), 1
    )
    return (output if len(segments) == 1 else torch.cat((before, output), 1)), memory


@wrong("read_by_segments", "the memory is the mean of the old and the new one")
def averaged(body, x, memory, *, segment_length, backprop_segments=None):
    outputs = []
    for segment in x.split(segment_length, 1):
        output, new = read_by_segments(body, segment, memory, segment_length=segment_length)
        memory = (memory + new) / 2
        outputs.append(output)
    return torch.cat(outputs, 1), memory


@wrong("read_by_segments", "no gradient is cut")
def whole_gradient(body, x, memory, *, segment_length, backprop_segments=None):
    return read_by_segments(body, x, memory, segment_length=segment_length)
