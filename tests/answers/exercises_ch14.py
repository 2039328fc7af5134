"""The answers to the exercises of chapter 14."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tested_transformer.models.vit import image_patches, interpolate_positions

from . import right, wrong
from .vision import by_patches, by_reshape, by_unfold

# --- Where a pixel goes ---------------------------------------------------------------------------


@right("ch14.patch_of_pixel")
def by_division(row, column, width, patch):
    down, y = divmod(row, patch)
    right_of, x = divmod(column, patch)
    return down * (width // patch) + right_of, y * patch + x


@right("ch14.patch_of_pixel", "looked up in an image of numbers")
def looked_up(row, column, width, patch):
    height = (row // patch + 1) * patch
    pixels = torch.arange(height * width, dtype=torch.float64).view(1, 1, height, width)
    patches = image_patches(pixels, (patch, patch))[0]
    n, i = (patches == row * width + column).nonzero()[0].tolist()
    return n, i


@wrong("ch14.patch_of_pixel", "the pair is exchanged")
def exchanged(row, column, width, patch):
    return by_division(row, column, width, patch)[::-1]


@wrong("ch14.patch_of_pixel", "rounded up")
def rounded_up(row, column, width, patch):
    n, i = by_division(row, column, width + patch - 1, patch)
    return -(-row // patch) * (width // patch) + column // patch if row else n, i


# --- Patches --------------------------------------------------------------------------------------

right("ch14.image_patches", "the package's")(image_patches)


@right("ch14.image_patches", "torch's unfold")
def by_torch(images, patch):
    return functional.unfold(images, patch, stride=patch).transpose(1, 2)


@right("ch14.image_patches", "slices in two loops")
def by_slices(images, patch):
    high, wide = patch
    rows = range(0, images.shape[2], high)
    columns = range(0, images.shape[3], wide)
    every = [images[:, :, y : y + high, x : x + wide].flatten(1) for y in rows for x in columns]
    return torch.stack(every, 1)


@right("ch14.image_patches", "a convolution with the identity for a kernel")
def by_convolution(images, patch):
    size = images.shape[1] * patch[0] * patch[1]
    kernel = torch.eye(size, dtype=images.dtype).view(size, images.shape[1], *patch)
    return functional.conv2d(images, kernel, stride=patch).flatten(2).transpose(1, 2)


@wrong("ch14.image_patches", "height and width of a patch exchanged")
def sides_exchanged(images, patch):
    if patch[0] == patch[1]:
        return by_slices(images, patch)
    return by_slices(images.transpose(2, 3), patch)


@wrong("ch14.image_patches", "features before patches")
def features_first(images, patch):
    return functional.unfold(images, patch, stride=patch)


@wrong("ch14.image_patches", "overlapping patches")
def overlapping(images, patch):
    return functional.unfold(images, patch).transpose(1, 2)


@wrong("ch14.image_patches", "unfold's features reshaped")
def reshaped(images, patch):
    columns = functional.unfold(images, patch, stride=patch)
    return columns.reshape(len(images), columns.shape[2], columns.shape[1])


right("ch14.patch_embedding", "the package's patches")(by_patches)
right("ch14.patch_embedding", "unfold")(by_unfold)


@right("ch14.patch_embedding", "a convolution")
def embedded(images, weight, bias, cls_token, positions):
    tokens = functional.conv2d(images, weight, bias, stride=weight.shape[2:])
    first = cls_token.expand(len(images), 1, -1)
    return torch.cat([first, tokens.flatten(2).transpose(1, 2)], 1) + positions


@wrong("ch14.patch_embedding", "no bias")
def without_bias(images, weight, bias, cls_token, positions):
    return embedded(images, weight, 0 * bias, cls_token, positions)


@wrong("ch14.patch_embedding", "the positions twice")
def twice(images, weight, bias, cls_token, positions):
    return embedded(images, weight, bias, cls_token, positions) + positions


# --- Back into order ------------------------------------------------------------------------------


@right("ch14.restore_order")
def by_scatter(patches, order):
    return torch.zeros_like(patches).scatter(1, order.unsqueeze(-1).expand_as(patches), patches)


@right("ch14.restore_order", "image by image")
def in_a_loop(patches, order):
    return torch.stack([own[each.argsort()] for own, each in zip(patches, order, strict=True)])


@wrong("ch14.restore_order", "turned around")
def turned(patches, order):
    return patches.flip(1)


@wrong("ch14.restore_order", "not at all")
def untouched(patches, order):
    return patches.clone()


# --- Another grid ---------------------------------------------------------------------------------


@right("ch14.new_centers")
def by_edges(count, new_count):
    edges = torch.linspace(0, count, new_count + 1, dtype=torch.float64)
    return (edges[1:] + edges[:-1]) / 2 - 0.5


@right("ch14.new_centers", "NumPy")
def by_numpy(count, new_count):
    return torch.from_numpy((np.arange(new_count) * 2 + 1) * (count / new_count / 2) - 0.5)


@wrong("ch14.new_centers", "the edges of the patches")
def edges(count, new_count):
    return torch.linspace(-0.5, count - 0.5, new_count, dtype=torch.float64)


@wrong("ch14.new_centers", "counted from the left edge")
def from_the_edge(count, new_count):
    return by_edges(count, new_count) + 0.5


right("ch14.interpolate_positions", "the package's")(interpolate_positions)
right("ch14.interpolate_positions", "transformers' lines")(by_reshape)


@wrong("ch14.interpolate_positions", "the nearest position")
def nearest(positions, grid, size):
    own = len(positions) - grid[0] * grid[1]
    table = positions[own:].T.unflatten(1, grid)[None]
    table = nn.functional.interpolate(table, size=size, mode="nearest-exact")
    return torch.cat([positions[:own], table[0].flatten(1).T])


@wrong("ch14.interpolate_positions", "the first positions are interpolated too")
def first_ones_too(positions, grid, size):
    own = len(positions) - grid[0] * grid[1]
    found = interpolate_positions(positions, grid, size)
    return torch.cat([found[:own] + found[own:].mean(0), found[own:]])
