"""The famous mistakes in the input of a Vision Transformer."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from ..mistakes import Formula, mistake

# --- The embedding --------------------------------------------------------------------------------


class Embedded(Formula):
    """The baseline: a class token, a linear layer over each patch, a position for each."""

    def __call__(self, images, weight, bias, cls_token, positions):
        """The steps in their order."""
        tokens = self.patches(images, weight.shape[2:]) @ weight.flatten(1).T + bias  # B N D
        return self.tokens(cls_token.expand(len(images), 1, -1), tokens, positions)

    def patches(self, images: Tensor, size: tuple[int, int]) -> Tensor:
        """Each patch as a vector, row by row; in it channel by channel."""
        batch, channels, height, width = images.shape
        high, wide = size
        cut = images.reshape(batch, channels, height // high, high, width // wide, wide)
        return cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)

    def tokens(self, first: Tensor, patches: Tensor, positions: Tensor) -> Tensor:
        """The class token first, and a position for each."""
        return torch.cat([first, patches], dim=1) + positions


@mistake(
    "the class token without a position",
    rejected_by="every token has a position",
    symptom="Loaded weights give other logits; the first position is never trained.",
    cause="Positions are added to the patches before the class token is put in front of them.",
    seen="labmlai/annotated_deep_learning_paper_implementations pull request 221",
    of="patch_embedding",
)
class ClassWithoutPosition(Embedded):
    def tokens(self, first, patches, positions):
        return torch.cat([first, patches + positions[1:]], dim=1)


@mistake(
    "the class token last",
    rejected_by="every token has a position",
    symptom="The head reads the first patch, and every position belongs to its neighbor.",
    cause="torch.cat([patches, cls]) in place of torch.cat([cls, patches]).",
    of="patch_embedding",
)
class ClassLast(Embedded):
    def tokens(self, first, patches, positions):
        return torch.cat([patches, first], dim=1) + positions


@mistake(
    "patches by reshape alone",
    rejected_by="a patch has its own pixels",
    symptom="Each token gets some rows of the whole image: shapes fit, and training still works a little.",
    cause="images.reshape(B, N, -1) cuts memory, not squares: split both axes, then transpose.",
    seen="duoan/TorchCode issue 21: the tests of an exercise accepted it",
    of="patch_embedding",
)
class ReshapedPatches(Embedded):
    def patches(self, images, size):
        return images.flatten(1).unflatten(1, (-1, images.shape[1] * size[0] * size[1]))


@mistake(
    "unfolded channels not moved",
    rejected_by="a patch has its own pixels",
    symptom="Right for gray images; with colors a token gets one channel of several patches.",
    cause="After unfold the axes are B C Y X h w, and C must stand behind Y and X before they are flattened.",
    seen="gupta-abhay/pytorch-vit issue 7",
    of="patch_embedding",
)
class ChannelsInFront(Embedded):
    def patches(self, images, size):
        high, wide = size
        cut = images.unfold(2, high, high).unfold(3, wide, wide)  # B C Y X h w
        return cut.reshape(len(images), -1, images.shape[1] * high * wide)


@mistake(
    "patches column by column",
    rejected_by="a patch has its own pixels",
    symptom="Right where all patches look alike; loaded positions belong to others.",
    cause="The axes of rows and columns are exchanged before they are flattened.",
    of="patch_embedding",
)
class ColumnByColumn(Embedded):
    def patches(self, images, size):
        batch, channels, height, width = images.shape
        high, wide = size
        cut = images.reshape(batch, channels, height // high, high, width // wide, wide)
        return cut.permute(0, 4, 2, 1, 3, 5).flatten(3).flatten(1, 2)


@mistake(
    "channels last in a patch",
    rejected_by="equals the reference",
    symptom="A model that is trained so works; weights of a convolution do not fit.",
    cause="(h w c), as einops examples write it, where a convolution's weight has (c h w).",
    of="patch_embedding",
)
class ChannelsLast(Embedded):
    def patches(self, images, size):
        batch, channels, height, width = images.shape
        high, wide = size
        cut = images.reshape(batch, channels, height // high, high, width // wide, wide)
        return cut.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)


@mistake(
    "features taken for patches",
    rejected_by="a patch has its own pixels",
    symptom="Every token mixes all patches.",
    cause="The convolution's (B, D, N) is reshaped to (B, N, D), not transposed.",
    of="patch_embedding",
)
def features_for_patches(images, weight, bias, cls_token, positions):
    tokens = functional.conv2d(images, weight, bias, stride=weight.shape[2:])
    tokens = tokens.flatten(1).unflatten(1, (-1, len(weight)))
    return torch.cat([cls_token.expand(len(images), 1, -1), tokens], dim=1) + positions


# --- Positions for another number of patches ------------------------------------------------------


class Interpolated(Formula):
    """The baseline: one matrix of weights for the rows, one for the columns."""

    def __call__(self, positions, grid, size):
        """What comes before the patches stays."""
        own = len(positions) - grid[0] * grid[1]
        table = positions[own:].unflatten(0, grid)  # Y X D
        rows, columns = (self.weights(*each, positions) for each in zip(grid, size, strict=True))
        table = torch.einsum("yi,xj,ijd->yxd", rows, columns, table)
        return torch.cat([positions[:own], table.flatten(0, 1)])

    def weights(self, count: int, new_count: int, like: Tensor) -> Tensor:
        """(new, old): how much each old center counts for each new one."""
        new = torch.arange(new_count, dtype=torch.float64)
        centers = (new + 0.5) * count / new_count - 0.5
        matrix = torch.zeros(new_count, count, dtype=torch.float64)
        for step in range(-1, 3):
            old = centers.floor() + step
            columns = old.clamp(0, count - 1).long()[:, None]
            matrix.scatter_add_(1, columns, cubic((centers - old).abs())[:, None])
        return matrix.to(like.dtype)


def cubic(far: Tensor, a: float = -0.75) -> Tensor:
    """Keys' weight of a center that lies so far away."""
    near = ((a + 2) * far - (a + 3)) * far**2 + 1
    return torch.where(far <= 1, near, a * (((far - 5) * far + 8) * far - 4))


def resized(positions: Tensor, own: int, grid: tuple[int, int], **options) -> Tensor:
    """By torch's own interpolation, with these options."""
    table = positions[own:].T.unflatten(1, grid)[None]
    table = functional.interpolate(table, **{"mode": "bicubic"} | options)
    return torch.cat([positions[:own], table[0].flatten(1).T])


@mistake(
    "a factor that rounds down",
    rejected_by="the right shape and dtype",
    symptom="Images of some sizes crash: 61, 115 and 122 patches in a row from a grid of 14.",
    cause="scale_factor=61 / 14, and 14 x (61 / 14) is 60.99...: give the size itself.",
    seen="facebookresearch/dinov2 pull request 378, issue 336; huggingface/transformers issue 32410",
    of="interpolate_positions",
)
def by_factor(positions, grid, size):
    own, factor = len(positions) - grid[0] * grid[1], (size[0] / grid[0], size[1] / grid[1])
    return resized(positions, own, grid, scale_factor=factor)


@mistake(
    "a factor with 0.1 added",
    rejected_by="the same grid changes nothing",
    symptom="No size crashes any more, and all positions are a little off.",
    cause="scale_factor=(61 + 0.1) / 14 to get past the rounding: also the centers move. "
    "Right only for a model that was made with it, such as DINOv2 without registers.",
    seen="facebookresearch/dinov2 pull request 378; facebookresearch/dino issue 8",
    of="interpolate_positions",
)
def by_factor_and_a_bit(positions, grid, size):
    own = len(positions) - grid[0] * grid[1]
    factor = tuple((new + 0.1) / old for new, old in zip(size, grid, strict=True))
    return resized(positions, own, grid, scale_factor=factor)


@mistake(
    "corners aligned",
    rejected_by="new centers lie between old ones",
    symptom="The outer patches get the outer positions exactly, and all others move inward.",
    cause="align_corners=True puts corner on corner, where patches have centers.",
    seen="facebookresearch/dinov2 issue 468, which proposes it; the other way round in "
    "ggml-org/llama.cpp pull request 25781",
    of="interpolate_positions",
)
def corners_aligned(positions, grid, size):
    own = len(positions) - grid[0] * grid[1]
    return resized(positions, own, grid, size=size, align_corners=True)


@mistake(
    "a class token guessed from the count",
    rejected_by="the right shape and dtype",
    symptom="196 positions of 14 x 14 patches are taken for a class token and 13 x 15 patches.",
    cause="(n - 1) % int(sqrt(n - 1)) == 0 is no test for a square: 195 = 13 x 15 passes it.",
    seen="google-research/vision_transformer pull request 317, the review",
    of="interpolate_positions",
)
def class_token_guessed(positions, grid, size):
    own, side = len(positions) - grid[0] * grid[1], math.isqrt(len(positions) - 1)
    if own == 0 and (len(positions) - 1) % side == 0:
        own, grid = 1, (side, (len(positions) - 1) // side)
    return resized(positions, own, grid, size=size)


@mistake(
    "as many patches taken for the same grid",
    rejected_by="new centers lie between old ones",
    symptom="An image of 2 x 8 patches gets the positions of 4 x 4.",
    cause="if npatch == N: return pos_embed, without a look at height and width.",
    seen="facebookresearch/dino issue 8, a comment's code; huggingface/pytorch-image-models pull request 2737",
    of="interpolate_positions",
)
def same_count(positions, grid, size):
    if grid[0] * grid[1] == size[0] * size[1]:
        return positions.clone()
    own = len(positions) - grid[0] * grid[1]
    return resized(positions, own, grid, size=size)


@mistake(
    "height and width exchanged",
    rejected_by="the same grid changes nothing",
    symptom="Right for squares; other images get the positions of the image turned on its side.",
    cause="size=(columns, rows).",
    seen="made for this book; the confusion about it: facebookresearch/dinov2 issue 456",
    of="interpolate_positions",
)
def sides_exchanged(positions, grid, size):
    own = len(positions) - grid[0] * grid[1]
    return resized(positions, own, grid, size=(size[1], size[0]))


@mistake(
    "the table reshaped, not transposed",
    rejected_by="new centers lie between old ones",
    symptom="Features of one position are interpolated as if they were neighbors.",
    cause="reshape(1, D, rows, columns) of (rows x columns, D): transpose first.",
    of="interpolate_positions",
)
def reshaped(positions, grid, size):
    own = len(positions) - grid[0] * grid[1]
    table = positions[own:].reshape(1, -1, *grid)
    table = functional.interpolate(table, size=size, mode="bicubic")
    return torch.cat([positions[:own], table.reshape(-1, positions.shape[1])])


@mistake(
    "antialiased positions",
    rejected_by="new centers lie between old ones",
    symptom="More patches: close to right. Fewer patches: each position is an average over many.",
    cause="antialias=True, as for pixels: torch then also takes another cubic, with a = -0.5.",
    seen="made for this book; timm resizes positions so by default, and the other way round it is "
    "in openvinotoolkit/openvino.genai pull request 4444, a review",
    of="interpolate_positions",
)
def antialiased(positions, grid, size):
    own = len(positions) - grid[0] * grid[1]
    return resized(positions, own, grid, size=size, antialias=True)


@mistake(
    "bilinear positions",
    rejected_by="new centers lie between old ones",
    symptom="Close to right: kinks where there were none.",
    cause='mode="bilinear", the default of many image libraries, where the model was made with bicubic.',
    of="interpolate_positions",
)
def bilinear(positions, grid, size):
    own = len(positions) - grid[0] * grid[1]
    return resized(positions, own, grid, size=size, mode="bilinear")
