"""Heat maps, masks, arrows, curves and bars in one style, as SVG that is the same on every run.

Numbers are rounded before they are drawn, so that the last bits of a float change no picture. Each
picture brings its own light panel, since an SVG on a page does not see the page's dark mode.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import matplotlib.style
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyBboxPatch, PathPatch
from matplotlib.path import Path
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullFormatter, NullLocator

from .errors import complain, need_count

__all__ = [
    "ALLOWED",
    "HIDDEN",
    "KEY",
    "OUTPUT",
    "QUERY",
    "VALUE",
    "Picture",
    "arrows",
    "bars",
    "curves",
    "heat_map",
    "heat_maps",
    "mask_picture",
    "mask_pictures",
]

# Okabe and Ito's hues, darkened until they can be read as text on the panel.
QUERY, KEY, VALUE, OUTPUT = "#0060B5", "#BF4F00", "#00825A", "#A0407E"
PANEL, INK, SOFT, EDGE = "#FAFAF7", "#222222", "#595959", "#C9C9C2"
ALLOWED, HIDDEN = "#1B6E85", "#ECECE6"
CYCLE = (  # colour and dashes: no line is told by its colour alone
    (INK, "solid"),
    ("#AA3377", (0, (5, 1.5))),
    ("#1A7696", (0, (1.2, 1.2))),
    ("#7A6A00", (0, (6, 1.5, 1.2, 1.5))),
    ("#555555", (0, (3, 1, 1, 1, 1, 1))),
    ("#5B2C83", (0, (9, 2))),
)
HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----")
ROLES = {"queries": QUERY, "keys": KEY, "values": VALUE, "outputs": OUTPUT}
SEQUENTIAL = LinearSegmentedColormap.from_list(
    "sea", ["#F5F6D6", "#C7E9B4", "#6DC0BC", "#2C7FB0", "#23488F", "#081D58"]
)
DIVERGING = LinearSegmentedColormap.from_list(
    "sand and sky", ["#7F3B08", "#D8841B", "#FCD9A6", "#F7F7F4", "#B9D3EA", "#4A8CC2", "#0A3A6B"]
)
TEXT, SMALL, NUMBER = 10.5, 9.5, 9.0  # points
CELL, PAD = 0.36, 0.13  # inches
MAX_WIDTH, MAX_PAIR, MAX_MANY = 4.2, 2.1, 1.3  # inches of cells: one, two to four, more
MAX_ROW = 5.9  # inches: several pictures in a row, labels included
MAX_CELLS, MAX_PRINTED, MAX_NUMBERED = 16_384, 64, 12
STYLE = {
    "axes.edgecolor": EDGE,
    "axes.facecolor": "none",
    "axes.labelcolor": INK,
    "axes.labelsize": TEXT,
    "axes.linewidth": 0.8,
    "axes.titlecolor": INK,
    "axes.titlepad": 9,
    "axes.titlesize": TEXT + 0.5,
    "axes.titleweight": "bold",
    "figure.dpi": 72,
    "font.family": "DejaVu Sans",
    "font.size": TEXT,
    "grid.color": "#E2E2DC",
    "hatch.linewidth": 0.8,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "lines.linewidth": 2.0,
    "svg.fonttype": "path",
    "svg.hashsalt": "tested transformer",
    "text.color": INK,
    "xtick.color": EDGE,
    "xtick.labelcolor": INK,
    "xtick.labelsize": SMALL,
    "ytick.color": EDGE,
    "ytick.labelcolor": INK,
    "ytick.labelsize": SMALL,
}
Numbers = torch.Tensor | np.ndarray | Sequence


class Picture:
    """A figure with the arrays it shows, rounded, in `data`; a notebook displays it as SVG."""

    def __init__(self, figure: Figure, kind: str, data: dict[str, Any]) -> None:
        self.figure, self.kind, self.data = figure, kind, data
        with style():
            add_panel(figure)

    @cached_property
    def svg(self) -> str:
        """The figure as SVG text, without date, program version or random names."""
        out = io.StringIO()
        metadata = {"Date": None, "Creator": None, "Title": self.kind}
        with style():
            self.figure.savefig(out, format="svg", metadata=metadata)
        return fewer_digits(out.getvalue())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"image/svg+xml": self.svg, "text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"Picture({self.kind})"


# --- Heat maps and masks --------------------------------------------------------------------------


def heat_map(
    weights: Numbers,
    *,
    rows: Iterable | None = None,
    columns: Iterable | None = None,
    row_title: str = "queries",
    column_title: str = "keys",
    title: str | None = None,
    values: bool | None = None,
    decimals: int = 2,
    vmin: float | int | None = None,
    vmax: float | int | None = None,
    mask: Numbers | None = None,
    color_bar: str | bool | None = None,
) -> Picture:
    """Draw a matrix as coloured cells, a row for each query and a column for each key.

    Numbers are printed in the cells when there are at most 64, else a colour bar stands below;
    `values` and `color_bar` (True, False or its label) overrule that. The scale starts at 0, or is
    symmetric about 0 with two-sided colours when there are negative entries. Cells that the mask
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


def heat_maps(
    weights: Numbers,
    *,
    titles: Iterable | None = None,
    rows: Iterable | None = None,
    columns: Iterable | None = None,
    row_title: str = "queries",
    column_title: str = "keys",
    values: bool | None = None,
    decimals: int = 2,
    vmin: float | int | None = None,
    vmax: float | int | None = None,
    masks: Numbers | None = None,
    color_bar: str | bool | None = None,
) -> Picture:
    """Draw several matrices of one shape beside each other, with one colour scale for all.

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


def mask_picture(
    mask: Numbers,
    *,
    rows: Iterable | None = None,
    columns: Iterable | None = None,
    row_title: str = "queries",
    column_title: str = "keys",
    title: str | None = None,
) -> Picture:
    """Draw a mask: a dark cell with a dot where row i may attend to column j, a pale one elsewhere.

    Shapes: mask (L, S), boolean or 0 and 1.
    Raises: TypeError and ValueError as `heat_map`; ValueError for entries other than 0 and 1.
    """
    array = mask_matrix("mask", mask)
    labels = Labels.of(array.shape, rows, columns, row_title, column_title)
    figure = draw_masks([array], labels, None if title is None else [title])
    data = {"mask": array, "rows": labels.rows, "columns": labels.columns}
    return Picture(figure, f"mask, {size(array)}", data)


def mask_pictures(
    masks: Numbers,
    *,
    titles: Iterable | None = None,
    rows: Iterable | None = None,
    columns: Iterable | None = None,
    row_title: str = "queries",
    column_title: str = "keys",
) -> Picture:
    """Draw several masks of one shape beside each other.

    Shapes: masks (N, L, S) or N masks (L, S).
    Raises: as `mask_picture`.
    """
    matrices("masks", masks)  # for its complaints about number and shape
    arrays = [mask_matrix(f"masks[{n}]", mask) for n, mask in enumerate(masks)]
    labels = Labels.of(arrays[0].shape, rows, columns, row_title, column_title)
    data = {"masks": np.stack(arrays), "rows": labels.rows, "columns": labels.columns}
    kind = f"{len(arrays)} masks, {size(arrays[0])}"
    return Picture(draw_masks(arrays, labels, titles), kind, data)


# --- Arrows, curves and bars ----------------------------------------------------------------------


def arrows(
    weights: Numbers,
    *,
    sources: Iterable,
    targets: Iterable,
    source_title: str = "keys",
    target_title: str = "queries",
    title: str | None = None,
    threshold: float | int = 0.02,
    highlight: int | None = None,
) -> Picture:
    """Draw which word looks at which: sources above, targets below, a line as thick as its weight.

    Lines below `threshold` times the largest weight are left out. `highlight` names one target
    whose lines stand out.

    Shapes: weights (len(targets), len(sources)), none negative: row i is what target i looks at.
    Raises: TypeError and ValueError as `heat_map`; ValueError for negative or infinite weights and
        for a highlight that is no target.
    """
    array = matrix("weights", weights)
    rows = texts("targets", targets, array.shape[0])
    columns = texts("sources", sources, array.shape[1])
    if not (np.isfinite(array) & (array >= 0)).all():
        raise complain(ValueError, "weights", "a negative, infinite or NaN one", "weights >= 0")
    if highlight is not None:
        need_count("highlight", highlight, least=0)
        if highlight >= len(rows):
            raise complain(ValueError, "highlight", highlight, f"a target, below {len(rows)}")
    array = settle(array, sensible_decimals(array))
    with style():
        figure = new_figure()
        axes = word_rows(figure, columns, rows, source_title, target_title)
        draw_lines(axes, array, threshold, highlight)
        if title is not None:
            axes.set_title(title, pad=26)
    data = {"weights": array, "sources": columns, "targets": rows}
    return Picture(figure, f"arrows, {len(columns)} to {len(rows)}", data)


def curves(
    x: Numbers,
    lines: Mapping[str, Numbers],
    *,
    x_label: str,
    y_label: str,
    title: str | None = None,
    log_x: bool = False,
    log_y: bool = False,
    marks: Mapping[str, Any] | None = None,
    bands: Mapping[str, Sequence] | None = None,
    colors: Mapping[str, str] | None = None,
) -> Picture:
    """Draw lines over one x axis, each with its name at its end, or in a legend if names collide.

    `marks` are vertical lines with a text, {text: x}; `bands` shade from low to high around a
    line, {name: (low, high)}; `colors` gives a line a colour of its own, such as QUERY.

    Shapes: x (N,), each line (N,), NaN for a gap; each band two of (N,).
    Raises: TypeError and ValueError for bad arrays, names without a line, and entries that are not
        above 0 on a logarithmic axis.
    """
    data = curve_data(x, lines, marks or {}, bands or {}, (log_x, log_y))
    known("colors", colors or {}, data["curves"])
    with style():
        figure = new_figure()
        axes = figure.add_axes((0, 0, 3.7, 2.4))
        axes.set(xlabel=x_label, ylabel=y_label)
        if log_x:
            log_axis(axes.xaxis, [data["x"]], at_points=True)
        if log_y:
            log_axis(axes.yaxis, [*data["curves"].values(), *data["bands"].values()])
        open_frame(axes)
        handles = draw_curves(axes, data, colors or {})
        levels = draw_marks(axes, data["marks"])
        name_curves(axes, data, handles)
        if title is not None:
            axes.set_title(title, pad=9 + 13 * levels)
    many = f"{len(handles)} curve" + "s" * (len(handles) != 1)
    return Picture(figure, f"{many}, {data['x'].size} points", data)


def bars(
    labels: Iterable,
    heights: Mapping[str, Numbers] | Numbers,
    *,
    y_label: str,
    title: str | None = None,
    colors: Mapping[str, str] | None = None,
) -> Picture:
    """Draw a bar for each label, or a group of bars when heights is {name: heights}.

    Shapes: heights (len(labels),), for each name.
    Raises: TypeError and ValueError for bad arrays and for colours without a name.
    """
    names = texts("labels", labels)
    series = heights if isinstance(heights, Mapping) else {"": heights}
    known("colors", colors or {}, series)
    data = {name: finite_row(f"heights {name}".strip(), ys, names) for name, ys in series.items()}
    if not data:
        raise complain(ValueError, "heights", "an empty mapping", "at least one name")
    decimals = sensible_decimals(np.concatenate(list(data.values())))
    data = {name: settle(ys, decimals) for name, ys in data.items()}
    with style():
        figure = new_figure()
        written = [list(map(short, ys)) for ys in data.values()]
        axes = bar_axes(figure, names, written)
        levels = draw_bars(axes, data, written, colors or {})
        axes.set_ylabel(y_label)
        if title is not None:
            axes.set_title(title, pad=9 + 16 * levels)
    kind = f"{len(data)} x {len(names)} bars" if len(data) > 1 else f"{len(names)} bars"
    plotted = data if isinstance(heights, Mapping) else data[""]
    return Picture(figure, kind, {"labels": names, "heights": plotted})


# --- Rounding and colours -------------------------------------------------------------------------


def settle(values: Any, decimals: int) -> np.ndarray | np.float64:
    """Round so that float noise does not show: ties lie beside the numbers that people meet.

    Ordinary rounding sends 0.125 up or down by its last bit; here 1/2, 1/3, 1/8, 1/16 and the
    like are far from any boundary. Infinite and NaN entries stay.

    Shapes: any, kept.

    >>> settle([0.125, 0.12499999, 1 / 3], 2).tolist()
    [0.13, 0.13, 0.33]
    """
    unit = 10.0**decimals
    steps = np.floor(np.asarray(values, dtype=np.float64) * unit + 0.5123)
    return np.round(steps / unit, decimals)


def sensible_decimals(values: np.ndarray) -> int:
    """How many decimals keep about three digits of the spread; none where all numbers are whole.

    Shapes: any.

    >>> [sensible_decimals(np.array(x)) for x in ([0, 0.5], [0.5, 2000.0], [3.0, 16384.0])]
    [4, 0, 0]
    """
    finite = values[np.isfinite(values)]
    largest = np.abs(finite).max(initial=0.0)
    whole = np.abs(finite - np.round(finite)).max(initial=0.0) < 1e-6
    if largest == 0 or (whole and largest > 0.5):
        return 0
    return 3 - math.floor(math.log10(1.0123 * max(np.ptp(finite), 1e-3 * largest)))


def luminance(color: Any) -> float:
    """Relative luminance of a colour as the Web Content Accessibility Guidelines define it."""
    channels = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    return float(np.dot(channels, [0.2126, 0.7152, 0.0722]))


def contrast(first: Any, second: Any) -> float:
    """Contrast of two colours, from 1 to 21; text needs 4.5.

    >>> contrast("white", "black")
    21.0
    """
    low, high = sorted([luminance(first), luminance(second)])
    return round((high + 0.05) / (low + 0.05), 2)


def text_color(background: Any) -> str:
    """Black or white, whichever reads better on the background."""
    return max(["#000000", "#FFFFFF"], key=lambda color: contrast(color, background))


# --- Checks of what came in -----------------------------------------------------------------------


def numbers(name: str, value: Any) -> np.ndarray:
    """Turn a tensor, array or nested list into a float64 array of its own.

    Raises: TypeError if it holds no real numbers.
    """
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = value.to(torch.float64) if value.is_floating_point() else value
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"dtype {array.dtype}")
    except (TypeError, ValueError) as error:
        expected = "a tensor, array or nested list of real numbers"
        raise complain(TypeError, name, type(value).__name__, expected) from error
    return array.astype(np.float64)


def matrix(name: str, value: Any) -> np.ndarray:
    """Like `numbers`, but with two axes and at least one cell."""
    array = numbers(name, value)
    if array.ndim != 2 or array.size == 0:
        raise complain(ValueError, name, f"shape {array.shape}", "a matrix (rows, columns)")
    if array.size > MAX_CELLS:
        raise complain(ValueError, name, f"{array.size} cells", f"at most {MAX_CELLS}: show a part")
    return array


def matrices(name: str, values: Any) -> list[np.ndarray]:
    """Like `matrix`, for several of one shape."""
    if not isinstance(values, torch.Tensor | np.ndarray | list | tuple):
        raise complain(TypeError, name, type(values).__name__, "several matrices")
    arrays = [matrix(f"{name}[{n}]", value) for n, value in enumerate(values)]
    shapes = {array.shape for array in arrays}
    if len(shapes) != 1:
        came = f"shapes {sorted(shapes)}" if shapes else "none"
        raise complain(ValueError, name, came, "at least one matrix, all of one shape")
    return arrays


def mask_matrix(name: str, value: Any) -> np.ndarray:
    """Like `matrix`, for a mask."""
    array = matrix(name, value)
    if not np.isin(array, (0.0, 1.0)).all():
        raise complain(ValueError, name, "other entries", "True and False, or 0 and 1")
    return array.astype(bool)


def of_shape(name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Like `numbers`, for a given shape."""
    array = numbers(name, value)
    if array.shape != shape:
        raise complain(ValueError, name, f"shape {array.shape}", f"shape {shape}")
    return array


def finite_row(name: str, value: Any, names: Sequence) -> np.ndarray:
    """Like `numbers`, for as many finite numbers as there are names."""
    array = of_shape(name, value, (len(names),))
    if not np.isfinite(array).all():
        raise complain(ValueError, name, "an infinite or NaN one", "finite numbers")
    return array


def texts(name: str, values: Any, length: int | None = None) -> list[str]:
    """Turn labels into texts.

    Raises: TypeError if they are no list, ValueError if their number is wrong.
    """
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise complain(TypeError, name, type(values).__name__, "a list of labels")
    labels = [str(value) for value in values]
    if not labels or length not in (None, len(labels)):
        expected = "at least one label" if length is None else f"{length} labels"
        raise complain(ValueError, name, len(labels), expected)
    return labels


def known(name: str, mapping: Any, names: Iterable) -> None:
    """Raise unless a mapping speaks only of the names that are drawn."""
    if not isinstance(mapping, Mapping):
        raise complain(TypeError, name, type(mapping).__name__, "a dict")
    if odd := [key for key in mapping if not isinstance(key, str)]:
        raise complain(TypeError, name, f"the key {odd[0]!r}", "names as keys")
    if strange := [key for key in mapping if key not in names]:
        raise complain(ValueError, name, strange, f"names among {list(names)}")


def curve_data(
    x: Any, lines: Any, marks: Any, bands: Any, logs: tuple[bool, bool]
) -> dict[str, Any]:
    """Check and round all that `curves` draws."""
    xs = numbers("x", x)
    if xs.ndim != 1 or not xs.size or not np.isfinite(xs).all():
        raise complain(ValueError, "x", f"shape {xs.shape}", "one axis of finite numbers")
    for name, mapping in (("lines", lines), ("bands", bands), ("marks", marks)):
        known(name, mapping, marks if name == "marks" else lines)
    if not lines:
        raise complain(ValueError, "lines", "an empty dict", "at least one {name: y}")
    ys = {name: of_shape(f"lines[{name!r}]", y, xs.shape) for name, y in lines.items()}
    around = {n: of_shape(f"bands[{n!r}]", band, (2, xs.size)) for n, band in bands.items()}
    spots = finite_row("marks", list(marks.values()), list(marks))
    xs, spots = rounded("x", [xs, spots], xs, logs[0])
    drawn = [*ys.values(), *around.values()]
    drawn = rounded("lines", drawn, np.concatenate(drawn, axis=None), logs[1])
    return {
        "x": xs,
        "curves": dict(zip(ys, drawn[: len(ys)], strict=True)),
        "bands": dict(zip(around, drawn[len(ys) :], strict=True)),
        "marks": dict(zip(marks, spots.tolist(), strict=True)),
    }


def rounded(name: str, arrays: list, level: np.ndarray, log: bool) -> list[np.ndarray]:
    """Round arrays for one axis: by the spread of all, or each entry by itself if logarithmic."""
    if not log:
        return [settle(array, sensible_decimals(level)) for array in arrays]
    if any((array <= 0).any() for array in arrays):
        raise complain(ValueError, name, "0 or less", "numbers above 0 on a logarithmic axis")

    def each(value: float) -> float:
        return float(settle(value, sensible_decimals(np.array([0.0, value]))))

    return [np.vectorize(each, otypes=[float])(array) for array in arrays]


# --- Layout ---------------------------------------------------------------------------------------


def style() -> AbstractContextManager:
    """The book's style, whatever the reader's own matplotlib settings are."""
    return matplotlib.style.context(STYLE, after_reset=True)


def new_figure() -> Figure:
    """A figure of 1 x 1 inch, so that positions are inches until `add_panel` sets its size."""
    figure = Figure(figsize=(1, 1))
    FigureCanvasSVG(figure)
    return figure


def size(array: np.ndarray) -> str:
    """A shape as people say it: 5 x 5."""
    return " x ".join(map(str, array.shape))


def text_width(text: str, points: float) -> float:
    """How wide a text is, in inches."""
    font = FontProperties(family="DejaVu Sans", size=points)
    width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return width / 72


@dataclass(frozen=True)
class Labels:
    """What stands at the sides of a matrix."""

    rows: list[str]
    columns: list[str]
    row_title: str
    column_title: str

    @classmethod
    def of(
        cls, shape: tuple[int, ...], rows: Any, columns: Any, row_title: str, column_title: str
    ) -> Labels:
        """Check the labels against the shape; without labels, count from 0."""
        rows = range(shape[0]) if rows is None else rows
        columns = range(shape[1]) if columns is None else columns
        return cls(
            texts("rows", rows, shape[0]),
            texts("columns", columns, shape[1]),
            row_title,
            column_title,
        )

    def draw(self, axes: Axes, cell: tuple[float, float]) -> None:
        """Write labels and titles, every so many where all would not fit."""
        down, along = max(1, math.ceil(0.15 / cell[1])), max(1, math.ceil(0.15 / cell[0]))
        wide = max(text_width(text, SMALL) for text in self.columns)
        if all(text.isdecimal() for text in self.columns):
            along = max(1, math.ceil((wide + 0.06) / cell[0]))
        turn = 0 if wide + 0.04 <= along * cell[0] else 45 if along * cell[0] >= 0.2 else 90
        axes.set_yticks(np.arange(0.5, len(self.rows), down), self.rows[::down])
        axes.set_xticks(np.arange(0.5, len(self.columns), along), self.columns[::along])
        axes.tick_params(length=0, labelleft=True, labeltop=True, labelbottom=False)
        axes.tick_params(axis="y", labelcolor=ROLES.get(self.row_title, INK))
        axes.tick_params(axis="x", labelcolor=ROLES.get(self.column_title, INK), labelrotation=turn)
        for text in axes.get_xticklabels() + axes.get_yticklabels():
            text.set_parse_math(False)
        if turn == 45:
            for text in axes.get_xticklabels():
                text.set(ha="left", va="bottom", rotation_mode="anchor")
        axes.xaxis.set_label_position("top")
        axes.set_ylabel(self.row_title, color=ROLES.get(self.row_title, INK))
        axes.set_xlabel(self.column_title, color=ROLES.get(self.column_title, INK), labelpad=5)


def cell_axes(
    figure: Figure, shape: tuple[int, ...], labels: Labels, cell: tuple[float, float]
) -> Axes:
    """Axes for a matrix: row 0 above, every cell of the given width and height in inches."""
    axes = figure.add_axes((0, 0, shape[1] * cell[0], shape[0] * cell[1]))
    axes.set(xlim=(0, shape[1]), ylim=(shape[0], 0))
    axes.spines[:].set_visible(False)
    labels.draw(axes, cell)
    return axes


def cell_size(shape: tuple[int, ...], panels: int, number: float = 0.0) -> tuple[float, float]:
    """Width and height of a cell in inches, with room for a number of the given width."""
    if number:
        return max(CELL, number), CELL
    most = MAX_WIDTH if panels == 1 else MAX_PAIR if panels <= 4 else MAX_MANY
    width, height = min(CELL, most / shape[1]), min(CELL, most / shape[0])
    return min(width, 4 * height), min(height, 4 * width)


def set_titles(panels: list[Axes], titles: Any) -> None:
    """Write a title over each panel."""
    if titles is not None:
        for axes, title in zip(panels, texts("titles", titles, len(panels)), strict=True):
            axes.set_title(title)


def arrange(panels: list[Axes]) -> None:
    """Set panels into rows, as many in a row as fit; the first of a row keeps its row labels."""
    frame = panels[0].get_window_extent()
    boxes = [axes.get_tightbbox() for axes in panels]
    left = max(frame.x0 - box.x0 for box in boxes)
    wide = max(max(box.x1 for box in boxes) - frame.x0, frame.width) + 16
    fit = max(1, int((72 * MAX_ROW - left + 16) // wide))
    across = math.ceil(len(panels) / math.ceil(len(panels) / fit))
    for n, axes in enumerate(panels):
        if n % across:
            axes.set_ylabel("")
            axes.tick_params(labelleft=False)
        if n >= across:
            axes.set_xlabel("")
    over = max(axes.get_tightbbox().y1 for axes in panels[across:] or panels) - frame.y1
    for n, axes in enumerate(panels):
        down, along = divmod(n, across)
        x, y = left + along * wide, -down * (frame.height + over + 14)
        axes.set_position((x / 72, y / 72, frame.width / 72, frame.height / 72))


def below(figure: Figure, panels: list[Axes], width: float, height: float) -> Axes:
    """Empty axes under everything that has been drawn, flush with the first panel."""
    lowest = figure.get_tightbbox().y0
    left = panels[0].get_position().x0
    return figure.add_axes((left, lowest - 0.16 - height, width, height))


def add_panel(figure: Figure) -> None:
    """Fit a figure of 1 x 1 inch around what was drawn, and lay a light panel under it."""
    box = figure.get_tightbbox()
    left, low = box.x0 - PAD, box.y0 - PAD
    width, height = (math.ceil(100 * (side + 2 * PAD)) / 100 for side in (box.width, box.height))
    for axes in figure.axes:
        x, y, w, h = axes.get_position().bounds  # in inches as long as the figure is one inch
        axes.set_position(((x - left) / width, (y - low) / height, w / width, h / height))
    figure.set_size_inches(width, height)
    figure.patch.set_visible(False)
    panel = FancyBboxPatch(
        (0.01, 0.01),
        width - 0.02,
        height - 0.02,
        boxstyle="round,pad=0,rounding_size=0.08",
        transform=figure.dpi_scale_trans,
        facecolor=PANEL,
        edgecolor=EDGE,
        linewidth=0.8,
        zorder=-10,
    )
    figure.add_artist(panel)


def fewer_digits(svg: str) -> str:
    """Keep two decimals of a point in all positions: a third of the size, and no float noise."""

    def trim(found: re.Match) -> str:
        return re.sub(r"-?\d+\.\d{3,}", lambda digits: f"{float(digits[0]):.2f}", found[0])

    return re.sub(r' (?:d|x|y)="[^"]*"', trim, svg)


def open_frame(axes: Axes) -> None:
    """Leave only the left and lower side of the frame, and a faint grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, linewidth=0.7)
    axes.set_axisbelow(True)


# --- Drawing --------------------------------------------------------------------------------------


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
    """Draw matrices with one colour scale; also return them as drawn."""
    need_count("decimals", decimals, least=0)
    shown = shown_cells(arrays, masks)
    printed = [cell_texts(array, keep, decimals) for array, keep in zip(arrays, shown, strict=True)]
    number = 0.12 + max(text_width(text, NUMBER) for grid in printed for text in grid.flat)
    fits = labels.columns and number * len(labels.columns) <= MAX_WIDTH
    values = fits and arrays[0].size <= MAX_PRINTED if values is None else values
    places = sensible_decimals(np.stack(arrays)[np.stack(shown)])
    arrays = [settle(array, places) for array in arrays]
    norm, colors = color_scale(np.stack(arrays)[np.stack(shown)], limits)
    cell = cell_size(arrays[0].shape, len(arrays), number if values else 0.0)
    with style():
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
    """Which cells get a colour: finite ones that no mask hides."""
    if masks is None:
        return [np.isfinite(array) for array in arrays]
    if len(masks) != len(arrays):
        raise complain(ValueError, "masks", len(masks), f"{len(arrays)}, one for each matrix")
    keeps = [mask_matrix("mask", mask) for mask in masks]
    for keep, array in zip(keeps, arrays, strict=True):
        if keep.shape != array.shape:
            raise complain(ValueError, "mask", f"shape {keep.shape}", f"shape {array.shape}")
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
    """The range of the colours, and the colours: two-sided if it starts below 0."""
    largest = float(np.abs(values).max(initial=0)) or 1.0
    low = -largest if (values < 0).any() else 0.0
    vmin, vmax = (low if limits[0] is None else limits[0]), limits[1]
    vmax = (
        max(largest if low else float(values.max(initial=0)) or 1.0, vmin) if vmax is None else vmax
    )
    for name, bound, cut in (("vmin", vmin, values < vmin), ("vmax", vmax, values > vmax)):
        if cut.any():
            raise complain(ValueError, name, bound, "a bound that cuts off no entry, or None")
    if vmin >= vmax:
        raise complain(ValueError, "vmax", vmax, f"more than vmin, which is {vmin}")
    return Normalize(vmin, vmax), DIVERGING if vmin < 0 else SEQUENTIAL


def draw_cells(
    axes: Axes, array: np.ma.MaskedArray, norm: Normalize, colors: Any, cell: float
) -> None:
    """Colour the cells that are shown, and hatch the others."""
    down, along = (np.arange(length + 1) for length in array.shape)
    edges, width = (PANEL, 1.0) if cell > 0.12 else ("face", 0.6)
    mesh = axes.pcolormesh(along, down, array, norm=norm, cmap=colors, clip_on=False)
    mesh.set(edgecolor=edges, linewidth=width)
    if np.ma.getmaskarray(array).any():
        path = squares(np.ma.getmaskarray(array), 0.04 if cell > 0.12 else 0.0)
        look = {"facecolor": HIDDEN, "edgecolor": "#A8A8A0", "linewidth": 0, "hatch": "/////"}
        axes.add_patch(PathPatch(path, **look))


def squares(array: np.ndarray, inset: float) -> Path:
    """One path around the true cells of a matrix; without inset, neighbours in a row are joined."""
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
    """Draw the colour scale under the panels."""
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
    with style():
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


def word_rows(
    figure: Figure, above: list[str], under: list[str], above_title: str, under_title: str
) -> Axes:
    """Axes of one unit height, with a row of words over it and one under it."""
    wide = max(text_width(word, TEXT) for word in above + under) + 0.22
    most = max(len(above), len(under))
    turn = 0 if wide * most <= 1.15 * MAX_WIDTH else 55
    slot = max(0.5, wide) if not turn else max(0.26, min(0.5, MAX_WIDTH / most))
    axes = figure.add_axes((0, 0, slot * most, 1.5))
    axes.set(xlim=(0, most), ylim=(0, 1))
    axes.axis("off")
    for words, title, y, align in (
        (above, above_title, 1, "bottom"),
        (under, under_title, 0, "top"),
    ):
        color = ROLES.get(title, INK)
        side = {"ha": "center"} if not turn else {"ha": "left" if y else "right"}
        for x, word in zip(centres(len(words), most), words, strict=True):
            text = axes.annotate(word, (x, y), (0, 5 if y else -5), textcoords="offset points")
            text.set(color=color, va=align, rotation=turn, rotation_mode="anchor", **side)
            text.set_parse_math(False)
        place = {"textcoords": "offset points", "ha": "right", "va": align, "color": color}
        axes.annotate(title, (0, y), (-6, 5 if y else -5), size=SMALL, style="italic", **place)
    return axes


def centres(count: int, most: int) -> np.ndarray:
    """Where the words of a row stand, the shorter row in the middle of the longer."""
    return np.arange(count) + 0.5 + (most - count) / 2


def draw_lines(axes: Axes, array: np.ndarray, threshold: float, highlight: int | None) -> None:
    """Draw a bent line from source to target for each weight, the thick ones on top."""
    most = max(array.shape)
    tops, bottoms = centres(array.shape[1], most), centres(array.shape[0], most)
    largest = array.max()
    for i, j in np.argwhere(array >= max(threshold * largest, 1e-12)):
        share = array[i, j] / max(largest, 1.0)
        color = mixed(INK if highlight is None else QUERY, 0.25 + 0.75 * share)
        if highlight not in (None, i):
            color = HIDDEN
        bends = [(tops[j], 1), (tops[j], 0.5), (bottoms[i], 0.5), (bottoms[i], 0)]
        path = Path(bends, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])
        look = {"edgecolor": color, "linewidth": 0.6 + 6 * share, "capstyle": "round"}
        axes.add_patch(PathPatch(path, fill=False, zorder=2 + share + 2 * (highlight == i), **look))


def mixed(color: str, share: float) -> tuple[float, ...]:
    """A share of a colour on the panel, without transparency."""
    mix = share * np.array(to_rgb(color)) + (1 - share) * np.array(to_rgb(PANEL))
    return tuple(np.clip(mix, 0, 1).tolist())


def log_axis(axis: Axis, values: list[np.ndarray], at_points: bool = False) -> None:
    """Make an axis logarithmic, with ticks at the points if they are few and far apart."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    places = np.unique(np.concatenate(values, axis=None))
    places = places[np.isfinite(places)]
    axis.set_minor_formatter(NullFormatter())
    if at_points and 2 <= places.size <= 8 and (places[1:] / places[:-1]).min() >= 1.5:
        axis.set_major_locator(FixedLocator(places))
        axis.set_minor_locator(NullLocator())
    elif places.size and places[-1] / places[0] < 100:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    else:
        return
    axis.set_major_formatter(
        lambda value, _: f"{value:.0f}" if value.is_integer() and value < 1e5 else short(value)
    )


def draw_curves(axes: Axes, data: dict[str, Any], colors: Mapping[str, str]) -> dict[str, Any]:
    """Draw lines and bands, each line with a colour and dashes of its own."""
    handles = {}
    for n, (name, y) in enumerate(data["curves"].items()):
        color, dashes = CYCLE[n % len(CYCLE)]
        color = colors.get(name, color)
        marker = {"marker": "o", "markersize": 4} if y.size <= 12 else {}
        (handles[name],) = axes.plot(data["x"], y, color=color, linestyle=dashes, **marker)
        if name in data["bands"]:
            pale = {"color": color, "alpha": 0.18, "linewidth": 0}
            axes.fill_between(data["x"], *data["bands"][name], **pale)
    return handles


def draw_marks(axes: Axes, marks: Mapping[str, float]) -> int:
    """Draw vertical lines with their texts above the frame; return how many rows the texts take."""
    ends: list[float] = []  # how far each row of texts is filled, in points
    for name, x in sorted(marks.items(), key=lambda mark: mark[1]):
        axes.axvline(x, color=SOFT, linewidth=1, linestyle=(0, (3, 2)), zorder=1)
        middle, half = axes.transData.transform((x, 1))[0], 36 * text_width(name, SMALL)
        level = next((n for n, end in enumerate(ends) if middle - half > end + 6), len(ends))
        ends[level : level + 1] = [middle + half]
        spot = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points"}
        axes.annotate(
            name, (x, 1), (0, 3 + 13 * level), ha="center", size=SMALL, color=SOFT, **spot
        )
    return len(ends)


def name_curves(axes: Axes, data: dict[str, Any], handles: dict[str, Any]) -> None:
    """Write each name at the end of its line, or all into a legend if that does not fit."""
    names = list(handles)
    ends = np.array([data["curves"][name][-1] for name in names])
    wide = max(text_width(name, SMALL) for name in names)
    heights = axes.transData.transform([(data["x"][-1], y) for y in ends])[:, 1]
    spots = spread(heights, 13) if np.isfinite(heights).all() else heights
    if not np.isfinite(heights).all() or wide > 1.3 or np.abs(spots - heights).max() > 14:
        below_label = (-0.02, -0.2)
        columns = 2 if len(names) > 1 and wide < 1.4 else 1
        look = {"loc": "upper left", "bbox_to_anchor": below_label, "handlelength": 2.8}
        axes.legend(handles.values(), names, ncols=columns, borderpad=0, **look)
        return
    for name, y, spot, height in zip(names, ends, spots, heights, strict=True):
        place = {"xytext": (6, spot - height), "textcoords": "offset points", "va": "center"}
        color = handles[name].get_color()
        axes.annotate(name, (data["x"][-1], y), size=SMALL, color=color, **place)


def spread(wanted: np.ndarray, gap: float | int) -> np.ndarray:
    """Move places apart to at least `gap`, each as little as possible (least squares).

    >>> spread(np.array([0.0, 20.0, 0.0]), 10).tolist()
    [-5.0, 20.0, 5.0]
    """
    order = np.argsort(wanted, kind="stable")
    blocks: list[list[float]] = []
    for place, y in enumerate(wanted[order]):
        blocks.append([float(y) - gap * place])
        while len(blocks) > 1 and np.mean(blocks[-2]) > np.mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    means = [np.mean(block) for block in blocks for _ in block]
    spots = np.empty(len(wanted))
    spots[order] = np.array(means) + gap * np.arange(len(wanted))
    return spots


def bar_axes(figure: Figure, names: list[str], written: list[list[str]]) -> Axes:
    """Axes with a place for each label, wide enough for it or with the labels turned."""
    series = len(written)
    number = max(text_width(text, NUMBER) for group in written for text in group) + 0.05
    bar = max(0.3, number / 0.9) if series * len(names) <= MAX_NUMBERED else 0.3
    wide = max(text_width(name, SMALL) for name in names) + 0.12
    slot = max(0.5, bar * series + 0.12)
    turn = 0 if max(slot, wide) * len(names) <= 4.4 else 35
    slot = min(slot, 4.4 / len(names)) if turn else max(slot, wide)
    axes = figure.add_axes((0, 0, max(1.6, slot * len(names)), 2.2))
    axes.set(xlim=(-0.5, len(names) - 0.5))
    side = {"rotation": turn, "ha": "right", "rotation_mode": "anchor"} if turn else {}
    axes.set_xticks(range(len(names)), names, **side)
    for text in axes.get_xticklabels():
        text.set_parse_math(False)
    open_frame(axes)
    axes.grid(False, axis="x")
    axes.tick_params(axis="x", length=0)
    axes.yaxis.set_major_formatter(lambda value, _: short(value))
    return axes


def draw_bars(
    axes: Axes, data: dict[str, np.ndarray], written: list, colors: Mapping[str, str]
) -> int:
    """Draw the bars of each name, hatched apart; return how many rows the legend above takes."""
    width = 0.8 / len(data)
    tones = (ALLOWED, *(tone for tone, _ in CYCLE[1:]))
    axes.axhline(0, color=EDGE, linewidth=0.8)
    for n, (name, heights) in enumerate(data.items()):
        places = np.arange(len(heights)) + (n - (len(data) - 1) / 2) * width
        look = {"hatch": HATCHES[n % len(HATCHES)], "edgecolor": PANEL, "linewidth": 1}
        look["color"] = colors.get(name, tones[n % len(tones)])
        drawn = axes.bar(places, heights, width, label=name, **look)
        if len(data) * len(heights) <= MAX_NUMBERED:
            axes.bar_label(drawn, written[n], padding=2, size=NUMBER)
    axes.margins(y=0.12)
    if len(data) == 1:
        return 0
    columns = min(3, len(data))
    look = {"loc": "lower left", "bbox_to_anchor": (-0.02, 1.0), "handleheight": 1.2}
    axes.legend(ncols=columns, columnspacing=1.2, borderpad=0.2, **look)
    return math.ceil(len(data) / columns)


def short(value: float) -> str:
    """A number as people write it: three digits, k for thousands, M for millions and so on.

    >>> short(0.12512), short(12345.6), short(-2.0), short(1.3e6)
    ('0.125', '12.3k', '\u22122', '1.3M')
    """
    value = float(f"{value:.3g}")
    for unit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= max(unit, 1e4):
            return f"{value / unit:.3g}{letter}".replace("-", "\u2212")
    return (f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}").replace("-", "\u2212")
