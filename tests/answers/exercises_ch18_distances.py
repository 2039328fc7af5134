"""The answers to the exercises of chapter 18 on distances and segments."""

import torch

from tested_transformer.exercises.ch18_distances import bias_by_key, oldest_token
from tested_transformer.layers.recurrent_memory import read_by_segments
from tested_transformer.positions.alibi import ALiBi

from . import right, wrong

# --- ALiBi with one number per key ----------------------------------------------------------------

right("ch18.bias_by_key", "slope times position, less the last")(bias_by_key)


@right("ch18.bias_by_key", "the last row of ALiBi's own bias")
def last_row(length, num_heads):
    ids = torch.arange(length)
    return ALiBi(num_heads).bias(ids, ids)[0, :, -1:]


@right("ch18.bias_by_key", "written head by head")
def head_by_head(length, num_heads):
    rows = [
        -(2.0 ** (-8 * h / num_heads)) * torch.arange(length - 1, -1, -1)
        for h in range(1, num_heads + 1)
    ]
    return torch.stack(rows)[:, None]


@wrong("ch18.bias_by_key", "the whole bias")
def whole_bias(length, num_heads):
    ids = torch.arange(length)
    return ALiBi(num_heads).bias(ids, ids)[0]


@wrong("ch18.bias_by_key", "slopes from 2^-0 on")
def from_one(length, num_heads):
    slopes = 2.0 ** (-8 / num_heads * torch.arange(num_heads))
    return slopes[:, None, None] * (torch.arange(length) - (length - 1))


# --- How far back a text in segments reaches ------------------------------------------------------

right("ch18.oldest_token", "layer by layer")(oldest_token)


@right("ch18.oldest_token", "a closed formula")
def closed_formula(position, segment_length, memory_length, num_layers):
    first = position // segment_length * segment_length
    step = (
        -(-memory_length // segment_length) * segment_length
    )  # whole segments that the memory touches
    return max(first - memory_length - (num_layers - 1) * step, 0)


@wrong("ch18.oldest_token", "whole segments in every layer")
def whole_segments(position, segment_length, memory_length, num_layers):
    first = position // segment_length * segment_length
    step = -(-memory_length // segment_length) * segment_length
    return max(first - num_layers * step, 0)


@wrong("ch18.oldest_token", "one layer alone")
def one_layer(position, segment_length, memory_length, num_layers):
    return max(position // segment_length * segment_length - memory_length, 0)


# --- Memory tokens --------------------------------------------------------------------------------

right("ch18.by_segments", "the package's")(read_by_segments)


@right("ch18.by_segments", "by index")
def by_index(body, x, memory, *, segment_length):
    outputs, m = [], memory.shape[1]
    for first in range(0, x.shape[1], segment_length):
        segment = x[:, first : first + segment_length]
        states = body(torch.cat([memory, segment, memory], dim=1))
        outputs.append(states[:, m : states.shape[1] - m])
        memory = states[:, states.shape[1] - m :]
    return torch.cat(outputs, dim=1), memory


@wrong("ch18.by_segments", "no copy in front")
def no_copy_in_front(body, x, memory, *, segment_length):
    outputs = []
    for segment in x.split(segment_length, dim=1):
        states = body(torch.cat([segment, memory], dim=1))
        outputs.append(states[:, : segment.shape[1]])
        memory = states[:, segment.shape[1] :]
    return torch.cat(outputs, dim=1), memory
