"""A Vision Transformer's input, by convolutions, unfold and matrices of interpolation."""

import torch
from torch.nn import functional

from answers import right, wrong
from tested_transformer.models.vit import (
    PatchEmbedding,
    VisionTransformerConfig,
    image_patches,
    interpolate_positions,
)

right("interpolate_positions")(interpolate_positions)


@right("patch_embedding", "the package's module")
def by_module(images, weight, bias, cls_token, positions):
    width, channels, *patch = weight.shape
    config = VisionTransformerConfig(
        tuple(images.shape[2:]), tuple(patch), num_channels=channels, d_model=width, num_heads=1
    )
    weights = {
        "projection.weight": weight, "projection.bias": bias,
        "cls_token": cls_token[None, None], "positions": positions[None],
    }  # fmt: skip
    module = PatchEmbedding(config).to(images)
    return torch.func.functional_call(module, weights, images, strict=True)


@right("patch_embedding", "the package's patches and a matrix")
def by_patches(images, weight, bias, cls_token, positions):
    tokens = image_patches(images, tuple(weight.shape[2:])) @ weight.flatten(1).T + bias
    return torch.cat([cls_token.expand(len(images), 1, -1), tokens], 1) + positions


@right("patch_embedding", "unfold and a linear layer")
def by_unfold(images, weight, bias, cls_token, positions):
    if not len(images):
        return positions.expand(0, -1, -1)  # unfold wants an image
    size = weight.shape[2:]
    patches = functional.unfold(images, size, stride=size).transpose(1, 2)
    tokens = functional.linear(patches, weight.flatten(1), bias)
    first = cls_token.repeat(len(images), 1, 1)
    return torch.cat((first, tokens), dim=1) + positions[None]


@wrong("patch_embedding", "the class token gets the last position")
def rolled(images, weight, bias, cls_token, positions):
    return by_patches(images, weight, bias, cls_token, positions.roll(-1, 0))


@wrong("patch_embedding", "a correlation with the kernel turned around")
def turned(images, weight, bias, cls_token, positions):
    return by_patches(images, weight.flip(2, 3), bias, cls_token, positions)


@wrong("patch_embedding", "the bias for the class token too")
def bias_for_all(images, weight, bias, cls_token, positions):
    return by_patches(images, weight, bias, cls_token + bias, positions)


@wrong("patch_embedding", "positions for the first image alone")
def first_image(images, weight, bias, cls_token, positions):
    tokens = by_patches(images, weight, bias, cls_token, 0 * positions)
    return torch.cat([tokens[:1] + positions, tokens[1:]])


@right("interpolate_positions", "transformers' lines")
def by_reshape(positions, grid, size):
    own = len(positions) - grid[0] * grid[1]
    first, patches = positions[:own], positions[own:]
    patches = patches.reshape(1, *grid, -1).permute(0, 3, 1, 2)
    patches = functional.interpolate(patches, size=size, mode="bicubic", align_corners=False)
    patches = patches.permute(0, 2, 3, 1).reshape(-1, positions.shape[1])
    return torch.cat((first, patches), dim=0)


@right("interpolate_positions", "rows, then columns")
def in_two_steps(positions, grid, size):
    own = len(positions) - grid[0] * grid[1]
    table = positions[own:].T.unflatten(1, grid)[None]
    for step in ((size[0], grid[1]), size):
        table = functional.interpolate(table, size=step, mode="bicubic")
    return torch.cat([positions[:own], table[0].flatten(1).T])


@wrong("interpolate_positions", "antialiased")
def antialiased(positions, grid, size):
    own = len(positions) - grid[0] * grid[1]
    table = positions[own:].T.unflatten(1, grid)[None]
    table = functional.interpolate(table, size=size, mode="bicubic", antialias=True)
    return torch.cat([positions[:own], table[0].flatten(1).T])


@wrong("interpolate_positions", "one row of the class token interpolated with the others")
def all_of_them(positions, grid, size):
    own = len(positions) - grid[0] * grid[1]
    table = functional.interpolate(positions.T[None], size=own + size[0] * size[1], mode="linear")
    return table[0].T


@wrong("interpolate_positions", "nearest")
def nearest(positions, grid, size):
    own = len(positions) - grid[0] * grid[1]
    table = positions[own:].T.unflatten(1, grid)[None]
    table = functional.interpolate(table, size=size, mode="nearest")
    return torch.cat([positions[:own], table[0].flatten(1).T])


@wrong("interpolate_positions", "the first patches of the grid")
def cut(positions, grid, size):
    own = len(positions) - grid[0] * grid[1]
    table = positions[own:].unflatten(0, grid)
    rows = torch.arange(size[0]).clamp(max=grid[0] - 1)
    columns = torch.arange(size[1]).clamp(max=grid[1] - 1)
    return torch.cat([positions[:own], table[rows][:, columns].flatten(0, 1)])
