"""Where the parts of a picture stand: cells and their labels, panels, axes, names. In inches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter, NullLocator

from .checks import short, texts
from .style import INK, KEY, MAX_WIDTH, QUERY, SMALL, text_width

ROLES = {"queries": QUERY, "keys": KEY}
CELL = 0.36
MAX_PAIR, MAX_MANY = 2.1, 1.3  # the cells of one picture of two to four, of more
MAX_ROW = 5.9  # several pictures in a row, labels included


@dataclass(frozen=True)
class Labels:
    """What stands at the sides of a matrix."""

    rows: list[str]
    columns: list[str]
    row_title: str
    column_title: str

    @classmethod
    def of(
        cls,
        shape: tuple[int, ...],
        rows: Any,
        columns: Any,
        row_title: str = "queries",
        column_title: str = "keys",
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


def open_frame(axes: Axes) -> None:
    """Leave only the left and lower side of the frame, and a faint grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, linewidth=0.7)
    axes.set_axisbelow(True)


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
    large = places[-1] >= 1e5  # then 50000 is 50k, as 200000 is 200k; 16384 stays what it is

    def name(value: float, _: int) -> str:
        in_full = value.is_integer() and value < 1e5 and (value % 1000 or not large)
        return f"{value:.0f}" if in_full else short(value)

    axis.set_major_formatter(name)


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
