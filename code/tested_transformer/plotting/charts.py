"""Arrows between words, curves and bars."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from ..bounds import NonNegativeFloat, NonNegativeInt
from ..errors import argument_error
from ..shapes import checked
from .checks import (
    Numbers,
    curve_data,
    finite_row,
    known,
    matrix,
    sensible_decimals,
    settle,
    short,
    texts,
)
from .layout import log_axis, open_frame, spread
from .style import (
    ALLOWED,
    CYCLE,
    EDGE,
    HIDDEN,
    INK,
    KEY,
    MAX_WIDTH,
    NUMBER,
    PANEL,
    QUERY,
    SMALL,
    SOFT,
    TEXT,
    Picture,
    in_style,
    mixed,
    new_figure,
    text_width,
)

MAX_NUMBERED = 12  # bars with their numbers on them
HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----")


@checked
def arrows(
    weights: Numbers,
    *,
    sources: Iterable,
    targets: Iterable,
    title: str | None = None,
    threshold: NonNegativeFloat = 0.02,
    highlight: NonNegativeInt | None = None,
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
        raise argument_error(
            ValueError, "weights", "a negative, infinite or NaN one", "weights >= 0"
        )
    if highlight is not None and highlight >= len(rows):
        raise argument_error(ValueError, "highlight", highlight, f"a target, below {len(rows)}")
    array = settle(array, sensible_decimals(array))
    with in_style():
        figure = new_figure()
        axes = word_rows(figure, columns, rows)
        draw_lines(axes, array, threshold, highlight)
        if title is not None:
            axes.set_title(title, pad=26)
    data = {"weights": array, "sources": columns, "targets": rows}
    return Picture(figure, f"arrows, {len(columns)} to {len(rows)}", data)


def word_rows(figure: Figure, above: list[str], under: list[str]) -> Axes:
    """Axes of one unit height, with the keys' row of words over it and the queries' under it."""
    wide = max(text_width(word, TEXT) for word in above + under) + 0.22
    most = max(len(above), len(under))
    turn = 0 if wide * most <= 1.15 * MAX_WIDTH else 55
    slot = max(0.5, wide) if not turn else max(0.26, min(0.5, MAX_WIDTH / most))
    axes = figure.add_axes((0, 0, slot * most, 1.5))
    axes.set(xlim=(0, most), ylim=(0, 1))
    axes.axis("off")
    for words, title, color, y, align in (
        (above, "keys", KEY, 1, "bottom"),
        (under, "queries", QUERY, 0, "top"),
    ):
        side = {"ha": "center"} if not turn else {"ha": "left" if y else "right"}
        for x, word in zip(centers(len(words), most), words, strict=True):
            text = axes.annotate(word, (x, y), (0, 5 if y else -5), textcoords="offset points")
            text.set(color=color, va=align, rotation=turn, rotation_mode="anchor", **side)
            text.set_parse_math(False)
        place = {"textcoords": "offset points", "ha": "right", "va": align, "color": color}
        axes.annotate(title, (0, y), (-6, 5 if y else -5), size=SMALL, style="italic", **place)
    return axes


def centers(count: int, most: int) -> np.ndarray:
    """Where the words of a row stand, the shorter row in the middle of the longer."""
    return np.arange(count) + 0.5 + (most - count) / 2


def draw_lines(axes: Axes, array: np.ndarray, threshold: float, highlight: int | None) -> None:
    """Draw a bent line from source to target for each weight, the thick ones on top."""
    most = max(array.shape)
    tops, bottoms = centers(array.shape[1], most), centers(array.shape[0], most)
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


@checked
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
    line, {name: (low, high)}; `colors` gives a line a color of its own, such as QUERY.

    Shapes: x (N,), each line (N,), NaN for a gap; each band two of (N,).
    Raises: TypeError and ValueError for bad arrays, names without a line, and entries that are not
        above 0 on a logarithmic axis.
    """
    data = curve_data(x, lines, marks or {}, bands or {}, (log_x, log_y))
    known("colors", colors or {}, data["curves"])
    with in_style():
        figure = new_figure()
        axes = figure.add_axes((0, 0, 3.7, 2.4))
        axes.set(xlabel=x_label, ylabel=y_label)
        if log_x:
            log_axis(axes.xaxis, [data["x"]], at_points=True)
        elif (data["x"] == data["x"].round()).all():  # no 2.5 steps
            axes.xaxis.get_major_locator().set_params(integer=True)
        if log_y:
            log_axis(axes.yaxis, [*data["curves"].values(), *data["bands"].values()])
        open_frame(axes)
        handles = draw_curves(axes, data, colors or {})
        axes.autoscale_view()  # the limits are final from here on, so that places can be measured
        levels = name_marks(axes, data["marks"])
        name_curves(axes, data, handles)
        if title is not None:
            axes.set_title(title, pad=9 + 13 * levels)
    many = f"{len(handles)} curve" + "s" * (len(handles) != 1)
    return Picture(figure, f"{many}, {data['x'].size} points", data)


def draw_curves(axes: Axes, data: dict[str, Any], colors: Mapping[str, str]) -> dict[str, Any]:
    """Draw lines, bands and marks, each line with a color and dashes of its own."""
    handles = {}
    for n, (name, y) in enumerate(data["curves"].items()):
        color, dashes = CYCLE[n % len(CYCLE)]
        color = colors.get(name, color)
        marker = {"marker": "o", "markersize": 4} if y.size <= 12 else {}
        (handles[name],) = axes.plot(data["x"], y, color=color, linestyle=dashes, **marker)
        if name in data["bands"]:
            pale = {"color": color, "alpha": 0.18, "linewidth": 0}
            axes.fill_between(data["x"], *data["bands"][name], **pale)
    for x in sorted(data["marks"].values()):
        axes.axvline(x, color=SOFT, linewidth=1, linestyle=(0, (3, 2)), zorder=1)
    return handles


def name_marks(axes: Axes, marks: Mapping[str, float]) -> int:
    """Write the texts of the marks above the frame; return how many rows they take."""
    ends: list[float] = []  # how far each row of texts is filled, in points
    for name, x in sorted(marks.items(), key=lambda mark: mark[1]):
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
    inside = (spots >= 0) & (spots <= axes.bbox.height)  # no name stands among ticks or marks
    if wide > 1.3 or not (inside & (np.abs(spots - heights) <= 14)).all():
        columns = 2 if len(names) > 1 and wide < 1.4 else 1
        look = {"loc": "upper left", "bbox_to_anchor": (-0.02, -0.2), "handlelength": 2.8}
        axes.legend(handles.values(), names, ncols=columns, borderpad=0, **look)
        return
    for name, y, spot, height in zip(names, ends, spots, heights, strict=True):
        place = {"xytext": (6, spot - height), "textcoords": "offset points", "va": "center"}
        color = handles[name].get_color()
        axes.annotate(name, (data["x"][-1], y), size=SMALL, color=color, **place)


@checked
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
    Raises: TypeError and ValueError for bad arrays and for colors without a name.
    """
    names = texts("labels", labels)
    series = heights if isinstance(heights, Mapping) else {"": heights}
    known("colors", colors or {}, series)
    data = {name: finite_row(f"heights {name}".strip(), ys, names) for name, ys in series.items()}
    if not data:
        raise argument_error(ValueError, "heights", "an empty mapping", "at least one name")
    decimals = sensible_decimals(np.concatenate(list(data.values())))
    data = {name: settle(ys, decimals) for name, ys in data.items()}
    with in_style():
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
