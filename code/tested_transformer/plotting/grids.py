"""Heat maps and masks: a cell for each pair of row and column."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

from ..bounds import AtLeast, AtMost
from ..errors import argument_error
from ..shapes import checked
from .checks import Numbers, mask_matrix, matrices, matrix, sensible_decimals, settle, short
from .layout import Labels, arrange, below, cell_axes, cell_size, set_titles
from .style import (
    ALLOWED,
    DIVERGING,
    HIDDEN,
    INK,
    MAX_WIDTH,
    NUMBER,
    PANEL,
    SEQUENTIAL,
    SMALL,
    SOFT,
    Picture,
    in_style,
    new_figure,
    text_color,
    text_width,
)

MAX_PRINTED = 64  # cells with their numbers in them


Decimals = Annotated[int, AtLeast(0), AtMost(15)]  # a float has no more


@checked
def heat_map(
    weights: Numbers,
    *,
    rows: Iterable | None = None,
    columns: Iterable | None = None,
    row_title: str = "queries",
    column_title: str = "keys",
    title: str | None = None,
    values: bool | None = None,
    decimals: Decimals = 2,
    vmin: float | None = None,
    vmax: float | None = None,
    mask: Numbers | None = None,
    color_bar: str | bool | None = None,
) -> Picture:
    """Draw a matrix as colored cells, a row for each query and a column for each key.

    Numbers are printed in the cells when there are at most 64, else a color bar stands below;
    `values` and `color_bar` (True, False or its label) overrule that. The scale starts at 0, or is
    symmetric about 0 with two-sided colors when there are negative entries. Cells that the mask
    hides, and infinite or NaN entries, are hatched.

    Shapes: weights (L, S), mask (L, S) with True = may attend.
    Raises: TypeError for what is no array of numbers; ValueError for another shape, a number of
        labels that does not fit, or a vmin or vmax that would cut off entries.
    """
    array = matrix("weights", weights)
    labels = Labels.of(array.shape, rows, columns, row_title, column_title)
    masks = None if mask is None else [mask]
    titles = None if title is None else [title]
    figure, drawn = draw_heat_maps(
        [array], labels, titles, values, decimals, (vmin, vmax), masks, color_bar
    )
    data = {"weights": drawn[0], "rows": labels.rows, "columns": labels.columns}
    return Picture(figure, f"heat map, {size(array)}", data)


@checked
def heat_maps(
    weights: Numbers,
    *,
    titles: Iterable | None = None,
    rows: Iterable | None = None,
    columns: Iterable | None = None,
    row_title: str = "queries",
    column_title: str = "keys",
    values: bool | None = None,
    decimals: Decimals = 2,
    vmin: float | None = None,
    vmax: float | None = None,
    masks: Numbers | None = None,
    color_bar: str | bool | None = None,
) -> Picture:
    """Draw several matrices of one shape beside each other, with one color scale for all.

    Shapes: weights (N, L, S) or N matrices (L, S), such as one for each head; masks likewise.
    Raises: as `heat_map`.
    """
    arrays = matrices("weights", weights)
    labels = Labels.of(arrays[0].shape, rows, columns, row_title, column_title)
    figure, drawn = draw_heat_maps(
        arrays, labels, titles, values, decimals, (vmin, vmax), masks, color_bar
    )
    data = {"weights": np.stack(drawn), "rows": labels.rows, "columns": labels.columns}
    return Picture(figure, f"{len(arrays)} heat maps, {size(arrays[0])}", data)


@checked
def mask_picture(
    mask: Numbers,
    *,
    rows: Iterable | None = None,
    columns: Iterable | None = None,
    title: str | None = None,
) -> Picture:
    """Draw a mask: a dark cell with a dot where row i may attend to column j, a pale one elsewhere.

    Shapes: mask (L, S), boolean or 0 and 1.
    Raises: TypeError and ValueError as `heat_map`; ValueError for entries other than 0 and 1.
    """
    array = mask_matrix("mask", mask)
    labels = Labels.of(array.shape, rows, columns)
    figure = draw_masks([array], labels, None if title is None else [title])
    data = {"mask": array, "rows": labels.rows, "columns": labels.columns}
    return Picture(figure, f"mask, {size(array)}", data)


@checked
def mask_pictures(
    masks: Numbers,
    *,
    titles: Iterable | None = None,
    rows: Iterable | None = None,
    columns: Iterable | None = None,
) -> Picture:
    """Draw several masks of one shape beside each other.

    Shapes: masks (N, L, S) or N masks (L, S).
    Raises: as `mask_picture`.
    """
    matrices("masks", masks)  # for its complaints about number and shape
    arrays = [mask_matrix(f"masks[{n}]", mask) for n, mask in enumerate(masks)]
    labels = Labels.of(arrays[0].shape, rows, columns)
    data = {"masks": np.stack(arrays), "rows": labels.rows, "columns": labels.columns}
    kind = f"{len(arrays)} masks, {size(arrays[0])}"
    return Picture(draw_masks(arrays, labels, titles), kind, data)


def size(array: np.ndarray) -> str:
    """A shape as people say it: 5 x 5."""
    return " x ".join(map(str, array.shape))


def draw_heat_maps(
    arrays: list[np.ndarray],
    labels: Labels,
    titles: Any,
    values: bool | None,
    decimals: int,
    limits: tuple[Any, Any],
    masks: Any,
    color_bar: str | bool | None,
) -> tuple[Figure, list[np.ndarray]]:
    """Draw matrices with one color scale; also return them as drawn."""
    shown = shown_cells(arrays, masks)
    printed = [cell_texts(array, keep, decimals) for array, keep in zip(arrays, shown, strict=True)]
    number = 0.12 + max(text_width(text, NUMBER) for grid in printed for text in grid.flat)
    if values is None:
        values = number * len(labels.columns) <= MAX_WIDTH and arrays[0].size <= MAX_PRINTED
    places = sensible_decimals(np.stack(arrays)[np.stack(shown)])
    arrays = [settle(array, places) for array in arrays]
    norm, colors = color_scale(np.stack(arrays)[np.stack(shown)], limits)
    cell = cell_size(arrays[0].shape, len(arrays), number if values else 0.0)
    with in_style():
        figure = new_figure()
        panels = [cell_axes(figure, array.shape, labels, cell) for array in arrays]
        for axes, array, keep, grid in zip(panels, arrays, shown, printed, strict=True):
            draw_cells(axes, np.ma.array(array, mask=~keep), norm, colors, min(cell))
            if values:
                print_cells(axes, array, keep, grid, lambda value: colors(norm(value)))
        set_titles(panels, titles)
        arrange(panels)
        if color_bar or (color_bar is None and not values):
            unit = "weight" if labels.column_title == "keys" else "value"
            label = color_bar if isinstance(color_bar, str) else unit
            draw_color_bar(figure, panels, norm, colors, label)
    return figure, arrays


def shown_cells(arrays: list[np.ndarray], masks: Any) -> list[np.ndarray]:
    """Which cells get a color: finite ones that no mask hides."""
    if masks is None:
        return [np.isfinite(array) for array in arrays]
    if len(masks) != len(arrays):
        raise argument_error(ValueError, "masks", len(masks), f"{len(arrays)}, one for each matrix")
    keeps = [mask_matrix("mask", mask) for mask in masks]
    for keep, array in zip(keeps, arrays, strict=True):
        if keep.shape != array.shape:
            raise argument_error(ValueError, "mask", f"shape {keep.shape}", f"shape {array.shape}")
    return [keep & np.isfinite(array) for keep, array in zip(keeps, arrays, strict=True)]


def cell_texts(array: np.ndarray, shown: np.ndarray, decimals: int) -> np.ndarray:
    """What to print in each cell; a hidden cell stays empty only if it holds 0."""

    def text(value: float, keep: bool) -> str:
        if np.isnan(value):
            return "NaN"
        if np.isinf(value):
            return "\u2212\u221e" if value < 0 else "\u221e"
        return f"{value:.{decimals}f}".replace("-", "\u2212") if keep or value else ""

    return np.vectorize(text, otypes=[object])(settle(array, decimals), shown)


def color_scale(
    values: np.ndarray, limits: tuple[Any, Any]
) -> tuple[Normalize, LinearSegmentedColormap]:
    """The range of the colors, and the colors: two-sided if it starts below 0."""
    largest = float(np.abs(values).max(initial=0)) or 1.0
    low = -largest if (values < 0).any() else 0.0
    vmin, vmax = limits
    vmin = low if vmin is None else vmin
    if vmax is None:
        vmax = max(largest if low else float(values.max(initial=0)) or 1.0, vmin)
    for name, bound, cut in (("vmin", vmin, values < vmin), ("vmax", vmax, values > vmax)):
        if cut.any():
            raise argument_error(ValueError, name, bound, "a bound that cuts off no entry, or None")
    if vmin >= vmax:
        raise argument_error(ValueError, "vmax", vmax, f"more than vmin, which is {vmin}")
    return Normalize(vmin, vmax), DIVERGING if vmin < 0 else SEQUENTIAL


def draw_cells(
    axes: Axes, array: np.ma.MaskedArray, norm: Normalize, colors: Any, cell: float
) -> None:
    """Color the cells that are shown, and hatch the others."""
    down, along = (np.arange(length + 1) for length in array.shape)
    mesh = axes.pcolormesh(along, down, array, norm=norm, cmap=colors, clip_on=False)
    if cell > 0.12:
        mesh.set(edgecolor=PANEL, linewidth=1.0)
    else:  # a thousand paths weigh more than a picture
        mesh.set_rasterized(True)
    if np.ma.getmaskarray(array).any():
        path = squares(np.ma.getmaskarray(array), 0.04 if cell > 0.12 else 0.0)
        look = {"facecolor": HIDDEN, "edgecolor": "#A8A8A0", "linewidth": 0, "hatch": "/////"}
        axes.add_patch(PathPatch(path, **look))


def squares(array: np.ndarray, inset: float) -> Path:
    """One path around the true cells of a matrix; without inset, neighbors in a row are joined."""
    steps = np.diff(np.pad(array.astype(int), ((0, 0), (1, 1))))
    starts, ends = np.argwhere(steps == 1), np.argwhere(steps == -1) - (0, 1)
    if inset:
        starts = ends = np.argwhere(array)
    corners = np.array([[0, 0], [0, 1], [1, 1], [1, 0], [0, 0]]) * (1 - 2 * inset) + inset
    reach = np.stack([ends[:, 0] - starts[:, 0] + 1, ends[:, 1] - starts[:, 1] + 1], axis=1)
    vertices = (starts[:, None] + corners * reach[:, None])[..., ::-1].reshape(-1, 2)
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(starts)
    return Path(vertices, codes)


def print_cells(
    axes: Axes, array: np.ndarray, shown: np.ndarray, grid: np.ndarray, color_of: Any
) -> None:
    """Write the numbers into the cells."""
    for (i, j), text in np.ndenumerate(grid):
        if text:
            label = axes.text(j + 0.5, i + 0.5, text, ha="center", va="center_baseline")
            label.set(fontsize=NUMBER, color=text_color(color_of(array[i, j])))
            if not shown[i, j]:
                label.set(color=INK, bbox={"facecolor": HIDDEN, "linewidth": 0, "pad": 1})


def draw_color_bar(
    figure: Figure, panels: list[Axes], norm: Normalize, colors: Any, label: str
) -> None:
    """Draw the color scale under the panels."""
    axes = below(figure, panels, max(1.6, min(2.6, panels[0].get_position().width)), 0.11)
    edges = np.linspace(norm.vmin, norm.vmax, 65)
    middles = (edges[1:] + edges[:-1])[None] / 2
    mesh = axes.pcolormesh(edges, [0, 1], middles, norm=norm, cmap=colors)
    mesh.set(edgecolor="face", linewidth=0.6)
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    axes.set_xlabel(label)


def draw_masks(arrays: list[np.ndarray], labels: Labels, titles: Any) -> Figure:
    """Draw masks side by side, with the key to their signs underneath."""
    cell = cell_size(arrays[0].shape, len(arrays))
    with in_style():
        figure = new_figure()
        panels = [cell_axes(figure, array.shape, labels, cell) for array in arrays]
        for axes, array in zip(panels, arrays, strict=True):
            draw_mask(axes, array, min(cell))
        set_titles(panels, titles)
        arrange(panels)
        axes = below(figure, panels, 0.15, 0.15)
        axes.set(xlim=(0, 1), ylim=(1, 0))
        axes.axis("off")
        draw_mask(axes, np.ones((1, 1), dtype=bool), 0.18)
        axes.text(1.5, 0.5, "row may attend to column", va="center", size=SMALL, color=SOFT)
    return figure


def draw_mask(axes: Axes, array: np.ndarray, cell: float) -> None:
    """Fill allowed cells and put a dot into each; leave hidden ones pale."""
    inset = 0.04 if cell > 0.1 else 0.0
    axes.add_patch(PathPatch(squares(~array, inset), facecolor=HIDDEN, linewidth=0))
    axes.add_patch(PathPatch(squares(array, inset), facecolor=ALLOWED, linewidth=0))
    rows, columns = np.nonzero(array if cell > 0.1 else array * 0)
    dots = {"color": PANEL, "markersize": 72 * cell * 0.3, "markeredgewidth": 0}
    axes.plot(columns + 0.5, rows + 0.5, linestyle="none", marker="o", **dots)
