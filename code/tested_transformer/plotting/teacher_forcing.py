"""Teacher forcing as a drawing: what the decoder reads, and what it has to predict, one position apart."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from .checks import texts
from .style import (
    EDGE,
    INK,
    MAX_WIDTH,
    OUTPUT,
    PANEL,
    SMALL,
    SOFT,
    TEXT,
    Picture,
    in_style,
    new_figure,
    text_width,
)

SAYS, TOP, BOTTOM, READS = (
    2.05,
    1.62,
    1.22,
    0.79,
)  # heights in inches: words, and the decoder's sides
ENCODER = 0.25  # the middle of its box


def teacher_forcing(
    source: Iterable, target: Iterable, *, start: str = "<bos>", end: str = "<eos>"
) -> Picture:
    """Draw a sentence pair as the decoder meets it in training.

    Above stands what it has to predict at each position, below what it reads there. A dashed line leads
    from each right word to the next place, where it is read, whatever the model would have said.

    Raises: TypeError for what are no words; ValueError for none.
    """
    given, words = texts("source", source), texts("target", target)
    reads, says = [start, *words], [*words, end]
    slot = min(0.18 + max(text_width(word, TEXT) for word in reads + says), 1.1)
    width = max(slot * len(reads), 2.4)
    slot = width / len(reads)
    with in_style():
        figure = new_figure()
        axes = figure.add_axes((0, 0, width, SAYS + 0.15))
        axes.set(xlim=(0, width), ylim=(0, SAYS + 0.15))
        axes.axis("off")
        centers = [(n + 0.5) * slot for n in range(len(reads))]
        for here, there in itertools.pairwise(centers):  # under the decoder's box
            arrow(axes, (here + 0.06, SAYS - 0.13), (there - 0.02, READS + 0.13), again=True)
        box(axes, 0.02, BOTTOM, width - 0.04, TOP - BOTTOM, "decoder")
        for x, read, say in zip(centers, reads, says, strict=True):
            arrow(axes, (x, READS + 0.13), (x, BOTTOM))
            arrow(axes, (x, TOP), (x, SAYS - 0.13))
            word(axes, x, READS, read, INK)
            word(axes, x, SAYS, say, OUTPUT)
        encoder(axes, given, width)
        for y, label in ((SAYS, "predicts"), (READS, "reads")):
            place = {"textcoords": "offset points", "ha": "right", "va": "center"}
            axes.annotate(label, (0, y), (-4, 0), size=SMALL, style="italic", color=SOFT, **place)
    data = {"source": given, "reads": reads, "says": says}
    return Picture(figure, f"teacher forcing, {len(reads)} places", data)


def encoder(axes: Axes, given: list[str], width: float) -> None:
    """The source in its box, and the way from there to the decoder, left of all words."""
    text = "encoder reads: " + " ".join(given)
    wide = text_width(text, SMALL) + 0.2
    size = SMALL if wide <= MAX_WIDTH + 0.6 else SMALL * (MAX_WIDTH + 0.6) / wide
    box(axes, 0.02, ENCODER - 0.15, max(width - 0.04, min(wide, MAX_WIDTH + 0.6)), 0.3, text, size)
    arrow(axes, (0.1, ENCODER + 0.15), (0.1, BOTTOM))


def box(
    axes: Axes, x: float, y: float, wide: float, high: float, text: str, size: float = TEXT
) -> None:
    """A box with a text in its middle."""
    look = {"boxstyle": "round,pad=0,rounding_size=0.06", "facecolor": PANEL, "edgecolor": EDGE}
    axes.add_patch(FancyBboxPatch((x, y), wide, high, linewidth=1.2, clip_on=False, **look))
    label = axes.text(x + wide / 2, y + high / 2, text, ha="center", va="center_baseline")
    label.set(size=size, color=INK, parse_math=False)


def arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], *, again: bool = False
) -> None:
    """An arrow; `again`: dashed, for a word that is used again."""
    look = {"color": OUTPUT if again else SOFT, "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0}
    style = {"arrowstyle": "-|>", "mutation_scale": 7, "clip_on": False}
    dashes = {"linestyle": (0, (3, 2))} if again else {}
    axes.add_patch(
        FancyArrowPatch(start, end, zorder=0.5 if again else 2, **look, **style, **dashes)
    )


def word(axes: Axes, x: float, y: float, text: str, color: str) -> None:
    """One word, centered."""
    axes.text(x, y, text, ha="center", va="center_baseline", size=TEXT, color=color).set_parse_math(
        False
    )
