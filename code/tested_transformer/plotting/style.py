"""The look of every picture: colors, sizes, and the light panel, as SVG of the same bytes.

An SVG on a page does not see the page's dark mode, so each picture brings its own panel.
"""

from __future__ import annotations

import io
import math
import re
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyBboxPatch
from matplotlib.textpath import text_to_path

# Okabe and Ito's hues, darkened until they can be read as text on the panel.
QUERY, KEY, VALUE, OUTPUT = "#0060B5", "#BF4F00", "#00825A", "#A0407E"
PANEL, INK, SOFT, EDGE = "#FAFAF7", "#222222", "#595959", "#C9C9C2"
ALLOWED, HIDDEN = "#1B6E85", "#ECECE6"
ON_PAGE = {  # colors of what is drawn in the page itself: on a light one, on a dark one
    "query": (QUERY, "#6DB3F8"),
    "key": (KEY, "#F2A25C"),
    "value": (VALUE, "#4CC59A"),
    "output": (OUTPUT, "#E08FC3"),
    "deep": (QUERY, "#2F7CC4"),
    "soft": ("#6B6B6B", "#A3A9B0"),
}
CYCLE = (  # color and dashes: no line is told by its color alone
    (INK, "solid"),
    ("#AA3377", (0, (5, 1.5))),
    ("#1A7696", (0, (1.2, 1.2))),
    ("#7A6A00", (0, (6, 1.5, 1.2, 1.5))),
    ("#555555", (0, (3, 1, 1, 1, 1, 1))),
    ("#5B2C83", (0, (9, 2))),
)
SEQUENTIAL = LinearSegmentedColormap.from_list(
    "sea", ["#F5F6D6", "#C7E9B4", "#6DC0BC", "#2C7FB0", "#23488F", "#081D58"]
)
DIVERGING = LinearSegmentedColormap.from_list(
    "sand and sky", ["#7F3B08", "#D8841B", "#FCD9A6", "#F7F7F4", "#B9D3EA", "#4A8CC2", "#0A3A6B"]
)
TEXT, SMALL, NUMBER = 10.5, 9.5, 9.0  # points
PAD, MAX_WIDTH = 0.13, 4.2  # inches: around the drawing, and for cells or words in a row
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


def page_colors(selector: str, *names: str) -> str:
    """CSS that gives what a selector finds these colors, as variables, on a light and a dark page."""
    light, dark = (" ".join(f"--tt-{n}: {ON_PAGE[n][i]};" for n in names) for i in (0, 1))
    return f"""{selector} {{ {light} }}
html[data-theme=dark] {selector}, body[data-jp-theme-light=false] {selector} {{
  {dark} }}
@media screen and (prefers-color-scheme: dark) {{
  html:not([data-theme=light], [data-theme=dark]) .bd-content {selector} {{ {dark} }} }}"""


def in_style() -> AbstractContextManager:
    """The book's style, whatever the reader's own matplotlib settings are."""
    return matplotlib.style.context(STYLE, after_reset=True)


class Picture:
    """A figure with the arrays it shows, rounded, in `data`; a notebook displays it as SVG."""

    def __init__(self, figure: Figure, kind: str, data: dict[str, Any]) -> None:
        self.figure, self.kind, self.data = figure, kind, data
        with in_style():
            add_panel(figure)

    @cached_property
    def svg(self) -> str:
        """The figure as SVG text, without date, program version or random names."""
        out = io.StringIO()
        metadata = {"Date": None, "Creator": None, "Title": self.kind}
        with in_style():
            self.figure.savefig(out, format="svg", dpi=216, metadata=metadata)  # of what is no path
        return fewer_digits(out.getvalue())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"image/svg+xml": self.svg, "text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"Picture({self.kind})"


def new_figure() -> Figure:
    """A figure of 1 x 1 inch, so that positions are inches until `add_panel` sets its size."""
    figure = Figure(figsize=(1, 1))
    FigureCanvasSVG(figure)
    return figure


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


def text_width(text: str, points: float) -> float:
    """How wide a text is, in inches."""
    font = FontProperties(family="DejaVu Sans", size=points)
    width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return width / 72


def luminance(color: Any) -> float:
    """Relative luminance of a color as the Web Content Accessibility Guidelines define it."""
    channels = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    return float(np.dot(channels, [0.2126, 0.7152, 0.0722]))


def contrast(first: Any, second: Any) -> float:
    """Contrast of two colors, from 1 to 21; text needs 4.5.

    >>> contrast("white", "black")
    21.0
    """
    low, high = sorted([luminance(first), luminance(second)])
    return round((high + 0.05) / (low + 0.05), 2)


def text_color(background: Any) -> str:
    """Black or white, whichever reads better on the background."""
    return max(["#000000", "#FFFFFF"], key=lambda color: contrast(color, background))


def mixed(color: str, share: float) -> tuple[float, ...]:
    """A share of a color on the panel, without transparency."""
    mix = share * np.array(to_rgb(color)) + (1 - share) * np.array(to_rgb(PANEL))
    return tuple(np.clip(mix, 0, 1).tolist())
