"""What the book's diagrams are made of: boxes, matrices, arrows and notes, as SVG on the page.

A picture of matplotlib brings a light panel with it. A diagram takes its colors from the page, light
or dark, so it stands in the page itself and has neither ids, which two of them would share, nor a
script. It is 400 units wide: on a telephone its smallest letters are still 10 pixels high.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from .style import page_colors

WIDTH = 400  # of every diagram; the height is the picture's own
LARGE, SMALL = 14, 13  # letters
LINE = 18  # from one line of text to the next
MARKS = ("query", "key", "value", "output")  # the colors of the figures
TINT = 0.16  # how much of its color is in a cell that has text


STYLE = f"""
{page_colors("svg.tt-diagram", *MARKS)}
svg.tt-diagram {{ display: block; width: 100%; max-width: 480px; height: auto; margin: 0 auto;
  font-family: inherit; color: var(--pst-color-text-base, var(--jp-content-font-color1, currentColor)); }}
.tt-diagram text {{ fill: currentColor; font-size: {LARGE}px; }}
.tt-diagram .small {{ font-size: {SMALL}px; }}
.tt-diagram .strong {{ font-weight: 600; }}
.tt-diagram rect {{ fill: none; stroke: currentColor; stroke-width: 1; }}
.tt-diagram .box {{ fill: var(--pst-color-surface, transparent); }}
.tt-diagram .dashed {{ stroke-dasharray: 3 3; }}
.tt-diagram .chosen {{ stroke-width: 2.5; }}
.tt-diagram .line {{ fill: none; stroke: currentColor; stroke-width: 1.2; }}
.tt-diagram .thick {{ stroke-width: 3; }}
.tt-diagram .inner {{ fill: none; stroke: currentColor; stroke-width: 0.5; opacity: 0.5; }}
.tt-diagram .head {{ fill: currentColor; stroke: none; }}
.tt-diagram .fill {{ fill: var(--tt-mark); stroke: none; }}
.tt-diagram .edge {{ stroke: var(--tt-mark); }}
.tt-diagram .word {{ fill: var(--tt-mark); }}
.tt-diagram .plain {{ --tt-mark: currentColor; }}
""" + "".join(f".tt-diagram .{name} {{ --tt-mark: var(--tt-{name}); }}\n" for name in MARKS)


class Diagram:
    """A drawing as HTML for a page, and as words for a terminal and for those who cannot see it."""

    role = "img"  # one thing, called by its description
    style, name = STYLE, "tt-diagram"

    def __init__(self, title: str, description: str, height: float, parts: Iterable[str]) -> None:
        self.title, self.description = title, description
        self.height, self.parts = height, list(parts)

    @property
    def svg(self) -> str:
        """Inline SVG without ids, so that it may stand on a page any number of times."""
        return "\n".join(
            [
                f'<svg class="{self.name}" viewBox="0 0 {WIDTH} {self.height:g}" role="{self.role}" '
                f'aria-label="{escape(self.title)}. {escape(self.description)}" '
                'xmlns="http://www.w3.org/2000/svg">',
                f"<style>{self.style}</style>",
                *self.parts,
                "</svg>",
            ]
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.svg, "text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"Diagram: {self.title}. {self.description}"


class Place:
    """A rectangle: where something stands."""

    def __init__(self, left: float, top: float, width: float, height: float) -> None:
        self.left, self.top, self.width, self.height = left, top, width, height

    @property
    def right(self) -> float:
        """Its right edge."""
        return self.left + self.width

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.top + self.height

    @property
    def center(self) -> float:
        """Halfway from left to right."""
        return self.left + self.width / 2

    @property
    def middle(self) -> float:
        """Halfway from top to bottom."""
        return self.top + self.height / 2

    def frame(self, kind: str = "") -> str:
        """Its outline; kind: classes of the style."""
        rounded = ' rx="5"' if "box" in kind else ""
        return (
            f'<rect class="{kind}" x="{self.left:g}" y="{self.top:g}" width="{self.width:g}" '
            f'height="{self.height:g}"{rounded}/>'
        )

    def shade(self, kind: str, strength: float) -> str:
        """Its inside in the color of query, key, value or output, from 0 to 1."""
        return (
            f'<rect class="fill {kind}" x="{self.left:g}" y="{self.top:g}" width="{self.width:g}" '
            f'height="{self.height:g}" fill-opacity="{strength:.2f}"/>'
        )


class Matrix(Place):
    """Cells in rows and columns; its shape is a tensor's, so that no picture can tell another."""

    def __init__(
        self, left: float, top: float, shape: Sequence[int], kind: str,
        *, cell: float | tuple[float, float] = 20,
    ) -> None:  # fmt: skip
        self.rows, self.columns = shape
        self.cell = cell if isinstance(cell, tuple) else (cell, cell)
        self.kind = kind
        super().__init__(left, top, self.columns * self.cell[0], self.rows * self.cell[1])

    def part(self, rows: slice = slice(None), columns: slice = slice(None)) -> Place:
        """Where some of its rows and columns stand."""
        (w, h), down, across = self.cell, range(self.rows)[rows], range(self.columns)[columns]
        return Place(
            self.left + w * across.start, self.top + h * down.start, w * len(across), h * len(down)
        )

    def draw(self, strengths: Any = None, words: Any = None) -> list[str]:
        """The cells: all of one strength of color, or each of its own; with or without words."""
        cells = [
            (i, j, self.part(slice(i, i + 1), slice(j, j + 1)))
            for i in range(self.rows)
            for j in range(self.columns)
        ]
        if strengths is None:
            parts = [self.shade(self.kind, TINT)]
        else:
            parts = [at.shade(self.kind, strengths[i][j]) for i, j, at in cells]
        w, h = self.cell
        lines = [
            f"M{self.left + w * j:g} {self.top:g}v{self.height:g}" for j in range(1, self.columns)
        ]
        lines += [
            f"M{self.left:g} {self.top + h * i:g}h{self.width:g}" for i in range(1, self.rows)
        ]
        parts.append(f'<path class="inner" d="{"".join(lines)}"/>' if lines else "")
        parts.append(self.frame(f"edge {self.kind}"))
        if words is not None:
            parts += [
                note(at.center, at.middle + 5, words[i][j], at="middle") for i, j, at in cells
            ]
        return list(filter(None, parts))


def note(x: float, y: float, text: str, *, at: str = "start", kind: str = "small") -> str:
    """A line of text; at: what of it stands at x, its start, middle or end."""
    anchor = "" if at == "start" else f' text-anchor="{at}"'
    return f'<text class="{kind}" x="{x:g}" y="{y:g}"{anchor}>{escape(text)}</text>'


def notes(x: float, y: float, *lines: str, at: str = "start", kind: str = "small") -> list[str]:
    """Lines of text, one under the other, the first at y."""
    return [note(x, y + LINE * n, line, at=at, kind=kind) for n, line in enumerate(lines)]


def box(place: Place, text: str, kind: str = "box") -> list[str]:
    """A box with a word in its middle."""
    return [place.frame(kind), note(place.center, place.middle + 5, text, at="middle", kind="")]


def arrow(*points: tuple[float, float], kind: str = "line", head: bool = True) -> list[str]:
    """A line through some points, each straight above or beside the last, with a head at its end."""
    (x, y), *others = points
    path, step = f"M{x:g} {y:g}", (0.0, 0.0)
    for to_x, to_y in others:
        path += f"H{to_x:g}" if to_y == y else f"V{to_y:g}" if to_x == x else f"L{to_x:g} {to_y:g}"
        step, (x, y) = (to_x - x, to_y - y), (to_x, to_y)
    if not head:
        return [f'<path class="{kind}" d="{path}"/>']
    size = sum(part**2 for part in step) ** 0.5
    long = 12 if "thick" in kind else 7
    dx, dy = long * step[0] / size, long * step[1] / size  # along the last piece
    tip = (
        f"M{x:.4g} {y:.4g}L{x - dx + dy / 2:.4g} {y - dy - dx / 2:.4g}"
        f"L{x - dx - dy / 2:.4g} {y - dy + dx / 2:.4g}z"
    )
    return [f'<path class="{kind}" d="{path}"/>', f'<path class="head" d="{tip}"/>']


def sizes(shape: Sequence[int]) -> str:
    """A shape in numbers.

    >>> sizes((3, 4))
    '3 × 4'
    """
    return " × ".join(map(str, shape))


def shape(letters: str, numbers: Sequence[int]) -> str:
    """A shape in letters and in numbers.

    >>> shape("L d", (3, 4))
    'L × d = 3 × 4'
    """
    return f"{letters.replace(' ', ' × ')} = {sizes(numbers)}"
