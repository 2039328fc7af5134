"""The answers to homework 5."""

import math

import numpy as np
import torch

from . import right, wrong


def speeds_of(d_model, base=10000.0):
    return base ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)


def sinusoids(places, d_model):
    angles = places[..., None].double() * speeds_of(d_model)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)


# --- similarity -----------------------------------------------------------------------------------


@right("hw05.similarity")
def similarity_of_rows(distances, d_model):
    here, there = sinusoids(torch.zeros_like(distances), d_model), sinusoids(distances, d_model)
    return ((here * there).sum(-1) / (d_model / 2)).float()


@right("hw05.similarity")
def similarity_by_norms(distances, d_model):
    here, there = sinusoids(distances + 100, d_model), sinusoids(torch.tensor(100), d_model)
    return (here @ there / (here.norm(dim=-1) * there.norm())).float()


@right("hw05.similarity")
def similarity_in_numpy(distances, d_model):
    turned = np.multiply.outer(distances.numpy(), speeds_of(d_model).numpy())
    return np.cos(turned).mean(-1).astype(np.float32)


@right("hw05.similarity")
def similarity_in_a_loop(distances, d_model):
    found = [sum(math.cos(k * s) for s in speeds_of(d_model).tolist()) / (d_model // 2)
             for k in distances.flatten().tolist()]  # fmt: skip
    return torch.tensor(found, dtype=torch.float32).reshape(distances.shape)


@wrong("hw05.similarity", "the distance itself for near ones alone")
def similarity_clamped(distances, d_model):
    return similarity_of_rows(distances.clamp(-4096, 4096), d_model)


@wrong("hw05.similarity", "base 1000")
def similarity_of_another_base(distances, d_model):
    return (distances[..., None] * speeds_of(d_model, 1000.0)).cos().mean(-1).float()


@wrong("hw05.similarity", "float64")
def similarity_in_double(distances, d_model):
    return (distances[..., None] * speeds_of(d_model)).cos().mean(-1)


@wrong("hw05.similarity", "the angle, not its cosine")
def similarity_as_an_angle(distances, d_model):
    return similarity_of_rows(distances, d_model).clamp(-1, 1).acos()


@wrong("hw05.similarity", "the speeds in float32")
def similarity_single_speeds(distances, d_model):
    speeds = speeds_of(d_model).float().double()
    return (distances[..., None] * speeds).cos().mean(-1).float()


# --- stretch --------------------------------------------------------------------------------------


def places_of(table, length):
    return np.arange(length) * (len(table) - 1) / max(length - 1, 1)


@right("hw05.stretch")
def stretch_by_a_matrix(table, length):
    """Each new row is a hat function of the old ones."""
    steps = np.abs(places_of(table, length)[:, None] - np.arange(len(table)))
    hats = torch.from_numpy(np.maximum(0.0, 1 - steps))
    return (hats @ table.double()).to(table.dtype)


@right("hw05.stretch")
def stretch_in_numpy(table, length):
    rows = table.double().numpy()
    columns = [np.interp(places_of(table, length), np.arange(len(rows)), c) for c in rows.T]
    return torch.from_numpy(np.stack(columns, 1)).to(table.dtype)


@right("hw05.stretch")
def stretch_row_by_row(table, length):
    rows = []
    for r in range(length):
        below, rest = divmod(r * (len(table) - 1), max(length - 1, 1))
        above, part = min(below + 1, len(table) - 1), rest / max(length - 1, 1)
        rows.append((1 - part) * table[below].double() + part * table[above].double())
    return torch.stack(rows).to(table.dtype)


@right("hw05.stretch")
def stretch_by_lerp(table, length):
    place = torch.linspace(0, len(table) - 1, length, dtype=torch.float64)
    below = place.long()
    above = (below + 1).clamp(max=len(table) - 1)
    return torch.lerp(table[below], table[above], (place - below).to(table.dtype)[:, None])


@wrong("hw05.stretch", "the last row for length 1")
def stretch_last(table, length):
    return stretch_by_matrix_or(table, length, table[-1:])


@wrong("hw05.stretch", "the mean for length 1")
def stretch_mean(table, length):
    return stretch_by_matrix_or(table, length, table.mean(0, keepdim=True))


def stretch_by_matrix_or(table, length, other):
    return other if length == 1 else stretch_by_a_matrix(table, length)


@wrong("hw05.stretch", "float64 comes back")
def stretch_in_double(table, length):
    return stretch_by_a_matrix(table.double(), length)


@wrong("hw05.stretch", "cosines between the rows")
def stretch_by_cosines(table, length):
    place = torch.from_numpy(places_of(table, length))
    below = place.long()
    part = (1 - ((place - below) * math.pi).cos()) / 2
    above = (below + 1).clamp(max=len(table) - 1)
    return table[below].lerp(table[above], part.to(table.dtype)[:, None])


@wrong("hw05.stretch", "through float32")
def stretch_single(table, length):
    return stretch_by_a_matrix(table.float(), length).to(table.dtype)


# --- table_gradient -------------------------------------------------------------------------------


def rows_read(length, keys, clip):
    steps = torch.arange(keys) - torch.arange(keys - length, keys)[:, None]
    return steps.clamp(-clip, clip) + clip


@right("hw05.table_gradient")
def table_by_masks(gradient, max_distance):
    rows = rows_read(*gradient.shape[2:], max_distance)
    columns = [(gradient * (rows == r)).sum((0, 2, 3)) for r in range(2 * max_distance + 1)]
    return torch.stack(columns, -1)


@right("hw05.table_gradient")
def table_by_autograd(gradient, max_distance):
    table = torch.zeros(
        gradient.shape[1], 2 * max_distance + 1, dtype=gradient.dtype, requires_grad=True
    )
    rows = rows_read(*gradient.shape[2:], max_distance)
    table[:, rows].expand_as(gradient).backward(gradient)
    return table.grad


@right("hw05.table_gradient")
def table_in_numpy(gradient, max_distance):
    rows = rows_read(*gradient.shape[2:], max_distance).numpy()
    found = np.zeros((gradient.shape[1], 2 * max_distance + 1))
    for b, h, i, j in np.ndindex(*gradient.shape):
        found[h, rows[i, j]] += float(gradient[b, h, i, j])
    return torch.from_numpy(found).to(gradient.dtype)


@right("hw05.table_gradient")
def table_by_diagonals(gradient, max_distance):
    gradient, found = gradient.sum(0), gradient.new_zeros(gradient.shape[1], 2 * max_distance + 1)
    length, keys = gradient.shape[1:]
    for offset in range(-length + 1, keys):
        step = min(max(offset - (keys - length), -max_distance), max_distance)
        found[:, step + max_distance] += gradient.diagonal(offset, 1, 2).sum(-1)
    return found


@wrong("hw05.table_gradient", "index_add without the sum: the last one stays")
def table_overwritten(gradient, max_distance):
    rows = rows_read(*gradient.shape[2:], max_distance)
    found = gradient.new_zeros(gradient.shape[1], 2 * max_distance + 1)
    found[:, rows.flatten()] = gradient.sum(0).flatten(1)
    return found


@wrong("hw05.table_gradient", "right for as many queries as keys")
def table_square(gradient, max_distance):
    length, keys = gradient.shape[2:]
    rows = rows_read(max(length, keys), max(length, keys), max_distance)[:length, :keys]
    return table_of(gradient, rows, max_distance)


def table_of(gradient, rows, max_distance):
    found = gradient.new_zeros(gradient.shape[1], 2 * max_distance + 1)
    return found.index_add(1, rows.flatten(), gradient.sum(0).flatten(1))


@wrong("hw05.table_gradient", "in float32")
def table_single(gradient, max_distance):
    return table_by_diagonals(gradient.float(), max_distance).to(gradient.dtype)


@wrong("hw05.table_gradient", "clipped one short")
def table_clipped_short(gradient, max_distance):
    clip = max(max_distance - 1, 0)
    rows = rows_read(*gradient.shape[2:], clip) - clip + max_distance
    return table_of(gradient, rows, max_distance)


@wrong("hw05.table_gradient", "the mean over the samples")
def table_mean(gradient, max_distance):
    return table_by_diagonals(gradient, max_distance) / len(gradient)


# --- read_positions -------------------------------------------------------------------------------


@right("hw05.read_positions")
def read_by_complex_numbers(vectors, base):
    wide = vectors.double()
    angle = torch.view_as_complex(wide.unflatten(-1, (-1, 2)).flip(-1).contiguous()).angle()
    turns = 2 * math.pi / speeds_of(vectors.shape[-1], base)
    place = angle[..., -1] / (2 * math.pi) * turns[-1]
    for i in reversed(range(len(turns) - 1)):
        shown = angle[..., i] / (2 * math.pi) * turns[i]
        place = shown + turns[i] * torch.round((place - shown) / turns[i])
    return place.round().long()


@right("hw05.read_positions")
def read_in_a_loop(vectors, base):
    width, found = vectors.shape[-1], []
    for row in vectors.reshape(-1, width).tolist():
        place = None
        for i in reversed(range(width // 2)):
            speed = base ** (-2 * i / width)
            shown = math.atan2(row[2 * i], row[2 * i + 1]) / speed
            turn = 2 * math.pi / speed
            place = shown if place is None else shown + turn * round((place - shown) / turn)
        found.append(round(place))
    return torch.tensor(found).reshape(vectors.shape[:-1])


@right("hw05.read_positions")
def read_by_rest(vectors, base):
    """What the estimate is off by is an angle between -pi and pi."""
    wide = vectors.double().numpy()
    angles = np.arctan2(wide[..., 0::2], wide[..., 1::2])
    speeds = speeds_of(vectors.shape[-1], base).numpy()
    place = angles[..., -1] / speeds[-1]
    for i in reversed(range(len(speeds) - 1)):
        off = angles[..., i] - place * speeds[i]
        place = place + np.arctan2(np.sin(off), np.cos(off)) / speeds[i]
    return np.rint(place).astype(np.int64)


@wrong("hw05.read_positions", "base 10000, whatever is given")
def read_fixed_base(vectors, base):
    return read_by_complex_numbers(vectors, 10000.0)


@wrong("hw05.read_positions", "int32")
def read_as_int32(vectors, base):
    return read_by_complex_numbers(vectors, base).int()


@wrong("hw05.read_positions", "no position beyond a million")
def read_up_to_a_million(vectors, base):
    return read_by_complex_numbers(vectors, base).clamp(max=10**6)


@wrong("hw05.read_positions", "the nearest of the first 20,000 rows")
def read_by_search(vectors, base):
    width = vectors.shape[-1]
    angles = torch.arange(20000)[:, None] * speeds_of(width, base)
    rows = torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)
    return (vectors.reshape(-1, width).double() @ rows.T).argmax(-1).reshape(vectors.shape[:-1])


@wrong("hw05.read_positions", "the mean of all hands")
def read_mean(vectors, base):
    return read_by_complex_numbers(vectors, base) + (vectors.shape[-1] > 20)
