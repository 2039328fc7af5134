"""The Specs of images as tokens: patches with a class token, and positions for another grid."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from ... import reference
from ..checks import any_dtype, transposed
from ..compare import Problem, compare
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants
from .mutants import Embedded, Interpolated

# --- Patches, a class token, positions ------------------------------------------------------------


def _arguments(rng: np.random.Generator, batch, channels, size, patch, width) -> dict:
    tokens = 1 + (size[0] // patch[0]) * (size[1] // patch[1])
    shapes = {
        "images": (batch, channels, *size), "weight": (width, channels, *patch), "bias": (width,),
        "cls_token": (width,), "positions": (tokens, width),
    }  # fmt: skip
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}


def _embedding_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64) -> Case:
        return Case(label, _arguments(rng, *sizes), dtype)

    small = (2, 3, (4, 6), (2, 2), 5)
    return [
        case("four patches of one color", 1, 1, (4, 4), (2, 2), 3),
        case("two images of three colors", *small),
        case("one patch", 1, 2, (3, 2), (3, 2), 4),
        case("patches of one pixel", 2, 2, (2, 3), (1, 1), 4),
        case("patches that are not square", 2, 3, (4, 9), (2, 3), 7),
        case("float32", 2, 3, (6, 8), (3, 2), 6, dtype=torch.float32),
        case("bfloat16", 2, 2, (4, 6), (2, 2), 4, dtype=torch.bfloat16),
        Case("transposed tensors", transposed(_arguments(rng, *small))),
        case("no images", 0, 3, (4, 6), (2, 2), 5),
    ]


def _embedding_by_chance(draw: Draw) -> Case:
    grid = draw.one_of(1, 2, 3), draw.one_of(2, 1, 4)
    patch = draw.one_of(1, 2), draw.one_of(1, 2, 3)
    size = grid[0] * patch[0], grid[1] * patch[1]
    sizes = draw.one_of(1, 3), draw.one_of(1, 2, 3), size, patch, draw.one_of(3, 1, 6)
    return Case("sizes by chance", _arguments(draw.numbers, *sizes), any_dtype(draw))


def _positions_count(run: Run, case: Case) -> Problem | None:
    """The answer without positions, and the positions, are the answer."""
    positions = case.arguments["positions"]
    without = run.value(case, positions=np.zeros_like(positions))
    far = 4 * run.expected(case)[1]
    wanted = without + case.tensors()["positions"].double().numpy()
    if problem := compare(wanted, run.value(case), far, "the tokens"):
        return problem
    nothing = {name: np.zeros_like(case.arguments[name]) for name in ("images", "bias")}
    first = run.value(case, positions=np.zeros_like(positions), **nothing)[:, 0]
    token = np.broadcast_to(case.tensors()["cls_token"].double().numpy(), first.shape)
    return compare(token, first, far, "of a black image the first token")


def changed_by_patches(run: Run, case: Case, high: int, wide: int) -> Iterator[list[int]]:
    """Patch by patch, row by row: which vectors change with the pixels of that patch."""
    images, before = case.arguments["images"], run.value(case)
    for top in range(0, images.shape[2], high):
        for left in range(0, images.shape[3], wide):
            changed = images.copy()
            changed[:, :, top : top + high, left : left + wide] += 1.0
            after = run.value(case, images=changed)
            yield (np.abs(after - before).max((0, 2)) > 0).nonzero()[0].tolist()


def _own_pixels(run: Run, case: Case) -> Problem | None:
    """Change one patch after the other: one token changes, and it is the patch's."""
    size = case.arguments["weight"].shape[2:]
    for patch, moved in enumerate(changed_by_patches(run, case, *size)):
        if moved != [1 + patch]:
            return Problem(f"patch {patch} changes token {1 + patch}", f"it changes {moved}")
    return None


PATCH_EMBEDDING = Spec(
    name="patch_embedding",
    statement="""patch_embedding(images, weight, bias, cls_token, positions): the input of a Vision
Transformer. Each patch of h x w pixels, row by row, goes through a linear layer, the convolution with
weight (D, C, h, w) and bias (D) whose stride is its kernel size; the class token (D) comes first; every
token has a position. images (B, C, H, W), positions (1 + N, D) -> (B, 1 + N, D).""",
    required=("images", "weight", "bias", "cls_token", "positions"),
    reference=reference.patch_embedding,
    baseline=Embedded(),
    cases=_embedding_cases,
    combine=_embedding_by_chance,
    num_drawn=4,
    checks=(
        Check(
            "every token has a position",
            "The class token has one as well, the first, and stands before the patches.",
            _positions_count,
            when=lambda case: not case.is_empty and case.dtype == torch.float64,
        ),
        Check(
            "a patch has its own pixels",
            "Changing the pixels of patch n, row by row, changes token 1 + n and no other.",
            _own_pixels,
            when=lambda case: not case.is_empty and case.dtype == torch.float64,
        ),
    ),
    mutants=mistakes_in(mutants, of="patch_embedding"),
    chapter=14,
)

# --- Positions for another grid -------------------------------------------------------------------


def _position_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, own, grid, size, width=2, dtype=torch.float64) -> Case:
        table = rng.normal(size=(own + grid[0] * grid[1], width))
        return Case(label, {"positions": table, "grid": grid, "size": size}, dtype)

    return [
        case("the same grid", 1, (4, 4), (4, 4)),
        case("twice as many", 1, (3, 3), (6, 6)),
        case("fewer", 1, (6, 5), (3, 4)),
        case("rows and columns by other factors", 1, (5, 6), (9, 7)),
        case("16 patches in another grid", 1, (4, 4), (2, 8)),
        case("from 14 to 61 in a row", 1, (2, 14), (2, 61), width=1),
        case("14 x 14 without a class token", 0, (14, 14), (7, 7), width=1),
        case("four registers", 5, (4, 6), (6, 4), width=3),
        case("one patch", 1, (1, 1), (2, 3)),
        case("float32", 1, (5, 4), (7, 9), dtype=torch.float32),
    ]


def _positions_by_chance(draw: Draw) -> Case:
    grid = draw.one_of(4, 1, 7), draw.one_of(4, 2, 5)
    size = draw.one_of(5, 3, 11), draw.one_of(6, 1, 9)
    table = draw.numbers.normal(size=(draw.one_of(1, 0, 2) + grid[0] * grid[1], 2))
    return Case(
        "grids by chance", {"positions": table, "grid": grid, "size": size}, any_dtype(draw)
    )


def _own(case: Case) -> int:
    grid = case.arguments["grid"]
    return len(case.arguments["positions"]) - grid[0] * grid[1]


def _unchanged(run: Run, case: Case) -> Problem | None:
    """Asked for the grid that they belong to."""
    wanted = case.tensors()["positions"].double().numpy()
    return compare(wanted, run.value(case, size=case.arguments["grid"]), 0.0, "the positions")


def _ramps(run: Run, case: Case) -> Problem | None:
    """Where each position is the number of its row, then of its column."""
    grid, shape = case.arguments["grid"], case.arguments["positions"].shape
    for axis in (0, 1):
        ramp = np.zeros(shape)
        ramp[_own(case) :] = np.indices(grid)[axis].reshape(-1, 1)
        expected, far = run.expected(case, positions=ramp)
        if problem := compare(expected, run.value(case, positions=ramp), far, "of a ramp"):
            return problem
    return None


INTERPOLATE_POSITIONS = Spec(
    name="interpolate_positions",
    statement="""interpolate_positions(positions, grid, size): learned positions of a Vision Transformer for
another number of patches. The last grid[0] x grid[1] of them belong to patches, row by row; they are
interpolated to size[0] x size[1], bicubic with a = -0.75, centers between centers (align_corners=False);
those before stay. (k + rows x columns, D) -> (k + new rows x new columns, D).""",
    required=("positions", "grid", "size"),
    reference=reference.interpolate_positions,
    baseline=Interpolated(),
    cases=_position_cases,
    combine=_positions_by_chance,
    num_drawn=4,
    checks=(
        Check(
            "the same grid changes nothing",
            "Asked for the grid that they were learned for, positions come back as they are.",
            _unchanged,
        ),
        Check(
            "new centers lie between old ones",
            "The i-th of n new centers lies at (i + 1/2) x old / n - 1/2: there a ramp is read, bicubically.",
            _ramps,
        ),
    ),
    mutants=mistakes_in(mutants, of="interpolate_positions"),
    chapter=14,
)
