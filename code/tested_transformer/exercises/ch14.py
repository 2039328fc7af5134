"""Exercises of chapter 14: images and sound."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..specs.compare import Problem, compare
from ..specs.mistakes import mistake, mistakes
from ..specs.spec import SHAPE, UNTOUCHED, Case, Check, Run, Spec
from ..specs.vision.mutants import Embedded
from ..specs.vision.spec import INTERPOLATE_POSITIONS, PATCH_EMBEDDING, changed_by_patches

# --- Where a pixel goes ---------------------------------------------------------------------------


def _pixel_reference(row: int, column: int, width: int, patch: int) -> np.ndarray:
    """By cutting an image whose pixels say where they stand, patch by patch."""
    number = 0
    for top in range(0, row + patch, patch):
        for left in range(0, width, patch):
            for place, (y, x) in enumerate(np.ndindex(patch, patch)):
                if (top + y, left + x) == (row, column):
                    return np.array([number, place])
            number += 1
    raise AssertionError("a pixel outside of the image")


@mistake(
    "patches counted down the columns",
    rejected_by="the first pixel of each patch",
    cause="Patches are numbered row by row: a step down is width // patch patches further.",
)
def _pixel_columns_first(row, column, width, patch):
    n = column // patch * (width // patch) + row // patch
    return n, row % patch * patch + column % patch


@mistake(
    "a row of patches as long as a row of pixels",
    rejected_by="the first pixel of each patch",
    cause="A row has width // patch patches, not width.",
)
def _pixel_row_of_pixels(row, column, width, patch):
    return row // patch * width + column // patch, row % patch * patch + column % patch


@mistake(
    "counted with the class token",
    rejected_by="the first pixel of each patch",
    cause="The first patch has the number 0 here; as a token it would be number 1, behind the class token.",
)
def _pixel_after_class(row, column, width, patch):
    n = 1 + row // patch * (width // patch) + column // patch
    return n, row % patch * patch + column % patch


@mistake(
    "columns first in a patch",
    rejected_by="equals the reference",
    cause="Inside a patch, too, pixels come row by row.",
)
def _pixel_transposed_patch(row, column, width, patch):
    n = row // patch * (width // patch) + column // patch
    return n, column % patch * patch + row % patch


@mistake(
    "a pixel's place in memory",
    rejected_by="the first pixel of each patch",
    cause="row x width + column, divided by the pixels of a patch: that cuts memory, not squares.",
)
def _pixel_in_memory(row, column, width, patch):
    return divmod(row * width + column, patch * patch)


def _pixel_cases(rng: np.random.Generator) -> list[Case]:
    listed = [(0, 0, 4, 2), (1, 2, 4, 2), (2, 0, 4, 2), (3, 1, 4, 2), (5, 7, 12, 3), (2, 3, 4, 1)]
    for _ in range(4):
        patch, wide = int(rng.integers(2, 6)), int(rng.integers(2, 5))
        pixel = rng.integers(0, (3 * patch, wide * patch))
        listed.append((int(pixel[0]), int(pixel[1]), wide * patch, patch))
    names = ("row", "column", "width", "patch")
    return [Case(f"{each}", dict(zip(names, each, strict=True))) for each in listed]


def _first_pixels(run: Run, case: Case) -> Problem | None:
    """The upper left pixel of the patch that the pixel lies in has place 0."""
    patch = case.arguments["patch"]
    corner = {name: case.arguments[name] // patch * patch for name in ("row", "column")}
    expected, _ = run.expected(case, **corner)
    return compare(expected, run.value(case, **corner), 0.0, "of the patch's first pixel")


def as_pair(answer: Any, _arguments: dict[str, Any]) -> Any:
    """A tuple of two numbers as an array of two."""
    return np.array([int(each) for each in answer]) if isinstance(answer, tuple) else answer


PATCH_OF_PIXEL = Spec(
    name="ch14.patch_of_pixel",
    statement="patch_of_pixel(row, column, width, patch): of an image with one channel that is `width` pixels "
    "wide, cut into squares of patch x patch pixels, the number of the patch that a pixel lies in and its "
    "place in that patch, (n, i). Patches are numbered row by row, pixels in a patch too, both from 0",
    required=("row", "column", "width", "patch"),
    reference=_pixel_reference,
    differentiable=False,
    read=as_pair,
    cases=_pixel_cases,
    checks=(
        Check(
            "the first pixel of each patch",
            "The upper left pixel of patch n has place 0, and n counts patches row by row.",
            _first_pixels,
        ),
    ),
    mutants=mistakes(
        _pixel_columns_first, _pixel_row_of_pixels, _pixel_after_class, _pixel_transposed_patch,
        _pixel_in_memory,
    ),
    chapter=14,
    points=1,
)  # fmt: skip

# --- Patches --------------------------------------------------------------------------------------


def image_patches(images: Tensor, patch: tuple[int, int]) -> Tensor:
    """The plain formula."""
    return Embedded().patches(images, patch)


def _patches_reference(images: np.ndarray, patch: tuple[int, int]) -> np.ndarray:
    """Patch by patch, in it channel by channel, row by row."""
    (high, wide), (batch, channels, height, width) = patch, images.shape
    corners = [(top, left) for top in range(0, height, high) for left in range(0, width, wide)]
    output = np.zeros((batch, len(corners), channels * high * wide), dtype=images.dtype)
    for n, (top, left) in enumerate(corners):
        places = np.ndindex(channels, high, wide)
        for i, (c, y, x) in enumerate(places):
            output[:, n, i] = images[:, c, top + y, left + x]
    return output


def _cut(images: Tensor, patch: tuple[int, int], *axes: int) -> Tensor:
    """Both axes split, the six axes in this order, patches and pixels flattened."""
    (batch, channels, height, width), (high, wide) = images.shape, patch
    split = images.reshape(batch, channels, height // high, high, width // wide, wide)
    return split.permute(*axes).reshape(batch, -1, channels * high * wide)


@mistake(
    "pixels in the order of memory",
    rejected_by="a patch is a rectangle",
    cause="A reshape alone cuts memory into equal pieces: split both axes, then permute.",
    seen="duoan/TorchCode issue 21: the tests of an exercise accepted it",
)
def _patches_from_memory(images, patch):
    return images.reshape(len(images), -1, images.shape[1] * patch[0] * patch[1])


@mistake(
    "channels left in front of the patches",
    rejected_by="a patch is a rectangle",
    cause="After unfold the axes are B C Y X h w: move C behind Y and X before you flatten. "
    "Images with one channel hide it.",
    seen="gupta-abhay/pytorch-vit issue 7",
)
def _patches_channels_in_front(images, patch):
    return _cut(images, patch, 0, 1, 2, 4, 3, 5)


@mistake(
    "columns of patches first",
    rejected_by="a patch is a rectangle",
    cause="Patches are numbered row by row: the axis of rows comes before that of columns.",
)
def _patches_columns_first(images, patch):
    return _cut(images, patch, 0, 4, 2, 1, 3, 5)


@mistake(
    "channels last in each vector",
    rejected_by="equals the reference",
    cause="A convolution's weight is (D, C, h, w): in the vector the channel comes first.",
)
def _patches_channels_last(images, patch):
    return _cut(images, patch, 0, 2, 4, 3, 5, 1)


@mistake(
    "each patch transposed",
    rejected_by="equals the reference",
    cause="Inside a patch the axis of rows comes before that of columns, too.",
)
def _patches_transposed(images, patch):
    return _cut(images, patch, 0, 2, 4, 1, 5, 3)


def _patches_cases(rng: np.random.Generator) -> list[Case]:

    def case(label: str, shape: tuple[int, ...], patch: tuple[int, int], **options) -> Case:
        return Case(label, {"images": rng.normal(size=shape), "patch": patch}, **options)

    sixteen = {"images": np.arange(16.0).reshape(1, 1, 4, 4), "patch": (2, 2)}
    return [
        Case("the numbers 0 to 15", sixteen),
        case("two images of three channels", (2, 3, 4, 6), (2, 2)),
        case("patches that are not square", (2, 2, 4, 9), (2, 3)),
        case("one patch", (1, 2, 3, 2), (3, 2)),
        case("patches of one pixel", (2, 3, 2, 3), (1, 1)),
        case("float32", (1, 3, 6, 4), (3, 2), dtype=torch.float32),
    ]


def _rectangles(run: Run, case: Case) -> Problem | None:
    """Change the pixels of one rectangle: only that vector changes."""
    for n, moved in enumerate(changed_by_patches(run, case, *case.arguments["patch"])):
        if moved != [n]:
            return Problem(f"the pixels of patch {n} stand in vector {n}", f"in {moved}")
    return None


IMAGE_PATCHES = Spec(
    name="ch14.image_patches",
    statement="image_patches(images, patch): cut images (B, C, H, W) into patches of patch = (h, w) pixels, "
    "row by row, each a vector of its pixels, channel by channel, in a channel row by row -> (B, N, C h w)",
    required=("images", "patch"),
    reference=_patches_reference,
    baseline=image_patches,
    cases=_patches_cases,
    usual=(SHAPE, UNTOUCHED),
    checks=(
        Check(
            "a patch is a rectangle",
            "Vector n holds the pixels of patch n, h rows and w columns, and no others.",
            _rectangles,
        ),
    ),
    mutants=mistakes(
        _patches_from_memory, _patches_channels_in_front, _patches_columns_first,
        _patches_channels_last, _patches_transposed,
    ),
    chapter=14,
    points=2,
)  # fmt: skip

# --- The patches put back into order --------------------------------------------------------------


def _restore_reference(patches: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Each patch to where it came from."""
    output = np.zeros_like(patches)
    for b, n in np.ndindex(order.shape):
        output[b, order[b, n]] = patches[b, n]
    return output


def restore_order(patches: Tensor, order: Tensor) -> Tensor:
    """The plain formula."""
    return patches.take_along_dim(order.argsort(1).unsqueeze(-1), 1)


@mistake(
    "shuffled once more",
    rejected_by="shuffled and restored is unchanged",
    cause="The same order is applied again: what is needed is the inverse, its argsort.",
)
def _restore_again(patches, order):
    return patches.take_along_dim(order.unsqueeze(-1), 1)


@mistake(
    "the first image's order for all",
    rejected_by="shuffled and restored is unchanged",
    cause="patches[:, order[0].argsort()]: every image has an order of its own.",
)
def _restore_by_first(patches, order):
    return patches[:, order[0].argsort()]


@mistake(
    "sorted down the batch",
    rejected_by="shuffled and restored is unchanged",
    cause="argsort(0) sorts over the images: the patches are axis 1.",
)
def _restore_wrong_axis(patches, order):
    return patches.take_along_dim((order.argsort(0) % order.shape[1]).unsqueeze(-1), 1)


def _restore_cases(rng: np.random.Generator) -> list[Case]:

    def case(label: str, batch: int, count: int, width: int, **options) -> Case:
        order = np.argsort(rng.random((batch, count)), 1)
        order[0] = np.roll(np.arange(count), 1)  # no order that is its own inverse
        patches = rng.normal(size=(batch, count, width))
        return Case(label, {"patches": patches, "order": order}, **options)

    return [
        case("one image, three patches", 1, 3, 2),
        case("two images", 2, 5, 3),
        case("16 patches", 3, 16, 4),
        case("as many images as patches", 4, 4, 1, dtype=torch.float32),
    ]


def _restored(run: Run, case: Case) -> Problem | None:
    given = case.arguments
    shuffled = np.take_along_axis(given["patches"], given["order"][..., None], 1)
    wanted = run.expected(case, patches=shuffled)[0]
    return compare(wanted, run.value(case, patches=shuffled), 0.0, "the patches")


RESTORE_ORDER = Spec(
    name="ch14.restore_order",
    statement="restore_order(patches, order): the patches before they were shuffled. patches (B, N, D) with "
    "patches[b, n] = before[b, order[b, n]]; order (B, N), integers -> before (B, N, D)",
    required=("patches", "order"),
    reference=_restore_reference,
    baseline=restore_order,
    cases=_restore_cases,
    checks=(
        Check(
            "shuffled and restored is unchanged",
            "Shuffle the patches by `order`, restore them: each is where it was.",
            _restored,
        ),
    ),
    mutants=mistakes(_restore_again, _restore_by_first, _restore_wrong_axis),
    chapter=14,
    points=1,
)

# --- Where new patches have their centers ---------------------------------------------------------


def _centers_reference(count: int, new_count: int) -> np.ndarray:
    """Over a length of 1: old patch k has its center at (k + 1/2) / count."""
    centers = [((i + 0.5) / new_count) * count - 0.5 for i in range(new_count)]
    return np.array(centers, dtype=np.float64)


def new_centers(count: int, new_count: int) -> Tensor:
    """The plain formula."""
    new = torch.arange(new_count, dtype=torch.float64)
    return (new + 0.5) * count / new_count - 0.5


@mistake(
    "first on first, last on last",
    rejected_by="the middle stays the middle, and neighbors are old / new apart",
    cause="linspace(0, count - 1, new_count) is align_corners=True: it puts the outer centers onto each other.",
)
def _centers_corners(count, new_count):
    return torch.linspace(0, count - 1, new_count, dtype=torch.float64)


@mistake(
    "left edges for centers",
    rejected_by="the middle stays the middle, and neighbors are old / new apart",
    cause="i x old / new puts left edge on left edge: a center lies half a patch further.",
)
def _centers_of_edges(count, new_count):
    return torch.arange(new_count, dtype=torch.float64) * count / new_count


@mistake(
    "new / old for old / new",
    rejected_by="the middle stays the middle, and neighbors are old / new apart",
    cause="Twice as many patches are half as far apart.",
)
def _centers_inverse(count, new_count):
    new = torch.arange(new_count, dtype=torch.float64)
    return (new + 0.5) * new_count / count - 0.5


def _centers_cases(rng: np.random.Generator) -> list[Case]:
    listed = [(4, 2), (2, 4), (14, 24), (3, 5), (7, 7), (1, 3)]
    listed.append(tuple(int(each) for each in rng.integers(2, 30, size=2)))
    return [Case(f"from {a} to {b}", {"count": a, "new_count": b}) for a, b in listed]


def _even_centers(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    found = run.value(case)
    tolerance = 64 * np.finfo(np.float64).eps * max(a.values())
    steps = np.full(a["new_count"] - 1, a["count"] / a["new_count"])
    if problem := compare(steps, np.diff(found), tolerance, "the distances between neighbors"):
        return problem
    return compare(
        np.array((a["count"] - 1) / 2), np.array(found.mean()), tolerance, "the mean center"
    )


NEW_CENTERS = Spec(
    name="ch14.new_centers",
    statement="new_centers(count, new_count) -> float64 (new_count): `count` old patches and `new_count` new "
    "ones fill the same length. Where do the centers of the new ones lie, when those of the old ones are 0, "
    "1, ..., count - 1?",
    required=("count", "new_count"),
    reference=_centers_reference,
    baseline=new_centers,
    differentiable=False,
    cases=_centers_cases,
    checks=(
        Check(
            "the middle stays the middle, and neighbors are old / new apart",
            "Both rows of patches fill the same length: (i + 1/2) / new of it is (x + 1/2) / old of it.",
            _even_centers,
        ),
    ),
    mutants=mistakes(_centers_corners, _centers_of_edges, _centers_inverse),
    chapter=14,
    points=1,
)

# --- Tokens, and positions for another grid -------------------------------------------------------

EXERCISES = (
    PATCH_OF_PIXEL,
    IMAGE_PATCHES,
    PATCH_EMBEDDING.narrowed(lambda case: not case.is_empty, name="ch14.patch_embedding", points=3),
    RESTORE_ORDER,
    NEW_CENTERS,
    replace(INTERPOLATE_POSITIONS, name="ch14.interpolate_positions", points=2),
)
