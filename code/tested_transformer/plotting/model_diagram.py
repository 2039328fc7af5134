"""The whole model as a drawing in which every box leads to its chapter and to its source."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

from ..functional.attention import attention
from ..functional.masks import masked_softmax
from ..functional.scaling import scaled_scores, softmax
from ..layers.blocks import Embedding
from ..layers.feed_forward import FeedForward
from ..layers.multi_head import MultiHeadAttention
from ..layers.residual import Residual
from ..models.transformer import Transformer
from ..positions.sinusoidal import SinusoidalPositions
from .diagram import STYLE, WIDTH, Diagram, arrow, note

CHAPTERS = {
    1: "01_self_attention", 3: "03_scaling", 4: "04_masks", 5: "05_multi_head", 6: "06_positions",
    7: "07_normalization", 8: "08_feed_forward", 9: "09_transformer",
}  # fmt: skip
SOURCES = "../_modules"  # where the site keeps the source, as seen from a chapter
HEIGHT = 672
BOX, TALL, PITCH, FLOOR = 164, 44, 60, 596  # a box, and the rows from the floor up
LEFT, RIGHT, GAP = 22, 214, 200  # the columns, and the lane between them
DESCRIPTION = (
    "Two columns, read from below. Left, the encoder: source tokens, embedding, positions, then "
    "six layers of self-attention and feed-forward network, each followed by add and normalize. "
    "Its output, the memory, goes to the cross-attention of every decoder layer. Right, the "
    "decoder: target tokens, embedding, positions, then six layers of causal self-attention, "
    "cross-attention and feed-forward network, each followed by add and normalize; then the output "
    "layer and, outside the model, the softmax. Above the encoder, what is inside every attention."
)
MODEL_STYLE = f"""{STYLE}
.tt-model text {{ font-size: 13.5px; }}
.tt-model .small {{ font-size: 12.8px; }}
.tt-model .outside {{ stroke-dasharray: 5 3; }}
.tt-model .hit {{ fill: transparent; stroke: none; }}
.tt-model .mark {{ fill: var(--tt-mark); stroke: none; }}
.tt-model .attention {{ --tt-mark: var(--tt-query); }}
.tt-model .network {{ --tt-mark: var(--tt-key); }}
.tt-model .norm {{ --tt-mark: var(--tt-value); }}
.tt-model .embed {{ --tt-mark: var(--tt-output); }}
.tt-model a:is(:link, :visited, :hover, :focus) {{ color: inherit; text-decoration: none; }}
.tt-model a.source text {{ fill: var(--pst-color-link, currentColor); }}
.tt-model a.source text, .tt-model a:hover text {{ text-decoration: underline; }}
.tt-model a:focus {{ outline: none; }}
.tt-model a:focus-visible .box, .tt-model a:focus-visible .hit {{
  stroke: var(--pst-color-accent, currentColor); stroke-width: 3; }}
"""


@dataclass(frozen=True)
class Box:
    """One part of the model: where it stands, and what makes it."""

    title: str
    left: int
    top: int
    kind: str
    chapter: int
    made_by: Any

    @property
    def chapter_link(self) -> str:
        """The page of the chapter, as seen from a chapter."""
        return f"{CHAPTERS[self.chapter]}.html"

    @property
    def source_link(self) -> str:
        """The page with the source, at the definition."""
        path = self.made_by.__module__.replace(".", "/")
        return f"{SOURCES}/{path}.html#{self.made_by.__qualname__}"

    @property
    def file(self) -> str:
        """The file of the source."""
        return f"{self.made_by.__module__.rpartition('.')[2]}.py"

    def draw(self) -> list[str]:
        """The box, the link to its chapter and, in its lower right, the one to its source."""
        x, y, name = self.left, self.top, escape(self.made_by.__qualname__)
        outside = " outside" if self.kind == "outside" else ""
        side = 8 + 7 * len(self.file)
        return [
            f'<g class="{self.kind}">',
            f'<a href="{self.chapter_link}" aria-label="{self.title}, ch. {self.chapter}">',
            f'<rect class="box{outside}" x="{x}" y="{y}" width="{BOX}" height="{TALL}" rx="5"/>',
            f'<rect class="mark" x="{x}" y="{y}" width="5" height="{TALL}" rx="2"/>'
            * (not outside),
            note(x + 13, y + 18, self.title, kind="") + " ",
            note(x + 13, y + 36, f"ch. {self.chapter}") + "</a>",
            f'<a class="source" href="{self.source_link}" aria-label="{self.file}, source of {name}">',
            f'<rect class="hit" x="{x + BOX - side}" y="{y + 22}" width="{side}" height="22"/>',
            note(x + BOX - 8, y + 36, self.file, at="end") + "</a></g>",
        ]


def row(number: int) -> int:
    """The top of a row of boxes, counted from below."""
    return FLOOR - PITCH * number


BOXES = (
    Box("Embedding × √D", LEFT, row(0), "embed", 9, Embedding),
    Box("+ positions", LEFT, row(1), "embed", 6, SinusoidalPositions),
    Box("Self-attention", LEFT, row(2), "attention", 5, MultiHeadAttention),
    Box("Add, normalize", LEFT, row(3), "norm", 7, Residual),
    Box("Feed-forward", LEFT, row(4), "network", 8, FeedForward),
    Box("Add, normalize", LEFT, row(5), "norm", 7, Residual),
    Box("Embedding × √D", RIGHT, row(0), "embed", 9, Embedding),
    Box("+ positions", RIGHT, row(1), "embed", 6, SinusoidalPositions),
    Box("Causal self-attention", RIGHT, row(2), "attention", 5, MultiHeadAttention),
    Box("Add, normalize", RIGHT, row(3), "norm", 7, Residual),
    Box("Cross-attention", RIGHT, row(4), "attention", 5, MultiHeadAttention),
    Box("Add, normalize", RIGHT, row(5), "norm", 7, Residual),
    Box("Feed-forward", RIGHT, row(6), "network", 8, FeedForward),
    Box("Add, normalize", RIGHT, row(7), "norm", 7, Residual),
    Box("Output layer", RIGHT, row(8), "embed", 9, Transformer),
    Box("Softmax", RIGHT, row(9), "outside", 3, softmax),
    Box("q · k / √d", LEFT, 166, "attention", 3, scaled_scores),
    Box("Masks, softmax", LEFT, 112, "attention", 4, masked_softmax),
    Box("Mean of the values", LEFT, 58, "attention", 1, attention),
)


class ModelDiagram(Diagram):
    """The whole model: a group of links, in which an image would hide them."""

    role, style, name = "group", MODEL_STYLE, "tt-diagram tt-model"

    def __init__(self) -> None:
        self.boxes = BOXES
        drawn = [part for box in self.boxes for part in box.draw()]
        parts = [*_stacks(), *_arrows(), *_words(), *drawn]
        super().__init__("The Transformer", DESCRIPTION, HEIGHT, filter(None, parts))

    def __repr__(self) -> str:
        return f"Diagram of the Transformer, {len(self.boxes)} boxes. {DESCRIPTION}"


def model_diagram() -> ModelDiagram:
    """Draw the Transformer; each box links to its chapter and its source on the site.

    Source: Vaswani et al. 2017, figure 1.
    """
    return ModelDiagram()


def _stacks() -> list[str]:
    """Frames around what is repeated, and around the inside of attention."""
    low = row(2) + TALL + 11
    lines = [
        f'<rect class="stack inner" x="{x}" y="{top}" width="186" height="{low - top}" rx="8"/>'
        for x, top in ((4, row(5) - 10), (210, row(7) - 8))
    ]
    return [*lines, '<rect class="stack inner" x="4" y="26" width="186" height="192" rx="8"/>']


def _arrows() -> list[str]:
    """Upwards from box to box, around each sublayer, and from the encoder to the decoder."""
    parts = []
    for left, last in ((LEFT, 5), (RIGHT, 9)):
        middle = left + BOX // 2
        parts += arrow((middle, row(0) + TALL + 12), (middle, row(0) + TALL))
        for n in range(last):
            parts += arrow((middle, row(n)), (middle, row(n + 1) + TALL))
    parts += arrow((RIGHT + BOX // 2, row(9)), (RIGHT + BOX // 2, row(9) - 13))
    for edge, lane, sublayers in ((LEFT, 14, (2, 4)), (RIGHT + BOX, 386, (2, 4, 6))):
        for first in sublayers:
            parts += _around(edge, lane, first)
    side, memory, asked = LEFT + BOX // 2, row(5) - 18, row(4) + TALL // 2
    parts += arrow((side, row(5)), (side, memory), (GAP, memory), (GAP, asked), (RIGHT, asked))
    return [*parts, *arrow((side, 166), (side, 156)), *arrow((side, 112), (side, 102))]


def _around(edge: int, lane: int, first: int) -> list[str]:
    """A residual connection: from under a sublayer to the side of the box that adds it."""
    middle = LEFT + BOX // 2 if edge == LEFT else RIGHT + BOX // 2
    below, added = row(first) + TALL + 6, row(first + 1) + TALL // 2
    return arrow((middle, below), (lane, below), (lane, added), (edge, added))


def _words() -> list[str]:
    """Names of what goes in and out."""
    left, right = LEFT + BOX // 2, RIGHT + BOX // 2
    return [
        note(left, HEIGHT - 5, "source tokens", at="middle", kind=""),
        note(right, HEIGHT - 5, "target tokens so far", at="middle", kind=""),
        note(left + 8, row(5) - 24, "memory"),
        note(left, 46, "inside every attention", at="middle", kind=""),
        note(right, row(9) - 18, "next token", at="middle", kind=""),
        note(0, row(1) + 10, "×6"),
        note(WIDTH, row(1) + 10, "×6", at="end"),
        note(right + 6, row(9) + TALL + 12, "logits"),
    ]
