"""The slow truth of the Vision Transformer's input."""

from __future__ import annotations

import numpy as np

from .attention import _wide


def patch_embedding(images, weight, bias, cls_token, positions):
    """The class token and a linear layer over each patch, plus a position each, one feature at a time.

    Shapes: (B, C, H, W), (D, C, h, w), (D), (D), (1 + N, D) -> (B, 1 + N, D).
    Source: Dosovitskiy et al. 2021, equation 1.
    """
    images, weight, bias, cls_token, positions = map(
        _wide, (images, weight, bias, cls_token, positions)
    )
    high, wide = weight.shape[2:]
    columns = images.shape[3] // wide
    output = np.zeros((len(images), *positions.shape), dtype=images.dtype)
    for b, token, d in np.ndindex(output.shape):
        output[b, token, d] = positions[token, d]
        if token == 0:
            output[b, token, d] += cls_token[d]
            continue
        top, left = (token - 1) // columns * high, (token - 1) % columns * wide
        patch = images[b, :, top : top + high, left : left + wide]
        output[b, token, d] += bias[d] + np.sum(patch * weight[d])
    return output


def interpolate_positions(positions, grid, size):
    """Bicubic, patch by patch: each new center lies between 4 x 4 old ones; what comes before stays.

    Shapes: (k + grid rows x columns, D) -> (k + size rows x columns, D). Source: Keys 1981, equation 15.
    """
    positions = _wide(positions)
    own = len(positions) - grid[0] * grid[1]
    output = np.zeros((own + size[0] * size[1], positions.shape[1]), dtype=positions.dtype)
    output[:own] = positions[:own]
    for row, column in np.ndindex(*size):
        for y, of_row in neighbors(row, grid[0], size[0], positions.dtype.type):
            for x, of_column in neighbors(column, grid[1], size[1], positions.dtype.type):
                weight = of_row * of_column
                output[own + row * size[1] + column] += weight * positions[own + y * grid[1] + x]
    return output


def neighbors(index, count, new_count, kind):
    """Of `count` old centers the four around a new one with their weights; past the border the last."""
    center = (kind(index) + kind(0.5)) * count / new_count - kind(0.5)
    first = int(np.floor(center)) - 1
    for old in range(first, first + 4):
        yield min(max(old, 0), count - 1), cubic(abs(center - old))


def cubic(distance):
    """The weight of a center that lies so far away; 1 at 0, 0 at 1 and from 2 on."""
    a = distance.dtype.type(-0.75)
    if distance <= 1:
        return ((a + 2) * distance - (a + 3)) * distance**2 + 1
    return a * (((distance - 5) * distance + 8) * distance - 4) if distance < 2 else 0 * a
