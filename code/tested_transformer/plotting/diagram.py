"""The whole model as a drawing in which every box leads to its chapter and to its source."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

from ..attention import attention
from ..feed_forward import FeedForward
from ..layers import Residual
from ..masks import masked_softmax
from ..multi_head import MultiHeadAttention
from ..positions import SinusoidalPositions
from ..scaling import scaled_scores, softmax
from ..transformer import Embedding, Transformer

CHAPTERS = {
    1: "01_self_attention", 3: "03_scaling", 4: "04_masks", 5: "05_multi_head", 6: "06_positions",
    7: "07_normalization", 8: "08_feed_forward", 9: "09_transformer",
}  # fmt: skip
SOURCES = "../_modules"  # where the site keeps the source, as seen from a chapter
WIDTH, HEIGHT = 400, 672
BOX, TALL, PITCH, FLOOR = 160, 44, 60, 596  # a box, and the rows from the floor up
LEFT, RIGHT, GAP = 24, 216, 200  # the columns, and the lane between them
DESCRIPTION = (
    "Two columns, read from below. Left, the encoder: source tokens, embedding, positions, then "
    "six layers of self-attention and feed-forward network, each followed by add and normalize. "
    "Its output, the memory, goes to the cross-attention of every decoder layer. Right, the "
    "decoder: target tokens, embedding, positions, then six layers of causal self-attention, "
    "cross-attention and feed-forward network, each followed by add and normalize; then the output "
    "layer and, outside the model, the softmax. Above the encoder, what is inside every attention."
)
STYLE = """
svg.tt-model.tt-model { display: block; width: 100%; max-width: 480px; height: auto;
  margin: 0 auto; font-family: inherit; color: var(--pst-color-text-base, currentColor); }
html[data-theme=dark] .bd-content div.cell_output .text_html.text_html:has(svg.tt-model) {
  background: none; padding: 0; }
.tt-model text { fill: currentColor; font-size: 13.5px; }
.tt-model .small { font-size: 12px; }
.tt-model rect { fill: none; stroke: currentColor; stroke-width: 1; }
.tt-model .box { fill: var(--pst-color-surface, transparent); }
.tt-model .stack { stroke-dasharray: 2 3; }
.tt-model .outside { stroke-dasharray: 5 3; }
.tt-model .hit { fill: transparent; stroke: none; }
.tt-model .mark { fill: var(--tt-mark); stroke: none; }
.tt-model .line { fill: none; stroke: currentColor; stroke-width: 1.2; }
.tt-model .attention { --tt-mark: #0072B2; }
.tt-model .network { --tt-mark: #D55E00; }
.tt-model .norm { --tt-mark: #009E73; }
.tt-model .embed { --tt-mark: #AA6F9E; }
.tt-model a:is(:link, :visited, :hover, :focus) { color: inherit; text-decoration: none; }
.tt-model a.source text { fill: var(--pst-color-link, currentColor); }
.tt-model a.source text, .tt-model a:hover text { text-decoration: underline; }
.tt-model a:focus { outline: none; }
.tt-model a:focus-visible .box, .tt-model a:focus-visible .hit {
  stroke: var(--pst-color-accent, currentColor); stroke-width: 3; }
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
            f'<a href="{self.chapter_link}" aria-label="{self.title}, chapter {self.chapter}">',
            f'<rect class="box{outside}" x="{x}" y="{y}" width="{BOX}" height="{TALL}" rx="5"/>',
            f'<rect class="mark" x="{x}" y="{y}" width="5" height="{TALL}" rx="2"/>'
            * (not outside),
            f'<text x="{x + 13}" y="{y + 18}">{self.title}</text>',
            f'<text class="small" x="{x + 13}" y="{y + 36}">ch. {self.chapter}</text></a>',
            f'<a class="source" href="{self.source_link}" aria-label="source of {name}">',
            f'<rect class="hit" x="{x + BOX - side}" y="{y + 22}" width="{side}" height="22"/>',
            f'<text class="small" x="{x + BOX - 8}" y="{y + 36}" text-anchor="end">',
            f"{self.file}</text></a></g>",
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


class Diagram:
    """The drawing as HTML for a page, and as a sentence for a terminal."""

    def __init__(self) -> None:
        self.boxes = BOXES

    @property
    def svg(self) -> str:
        """Inline SVG: it takes its colors from the page, and its links work."""
        lines = [
            f'<svg class="tt-model" viewBox="0 0 {WIDTH} {HEIGHT}" role="group" '
            'aria-labelledby="tt-model-title tt-model-text" xmlns="http://www.w3.org/2000/svg">',
            '<title id="tt-model-title">The Transformer</title>',
            f'<desc id="tt-model-text">{DESCRIPTION}</desc>',
            f"<style>{STYLE}</style>",
            '<defs><marker id="tt-model-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" fill="currentColor"/>',
            "</marker></defs>",
            *_stacks(),
            *_arrows(),
            *_words(),
        ]
        for box in self.boxes:
            lines += box.draw()
        return "\n".join(filter(None, [*lines, "</svg>"]))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.svg, "text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"Diagram of the Transformer, {len(self.boxes)} boxes. {DESCRIPTION}"


def model_diagram() -> Diagram:
    """Draw the Transformer; each box links to its chapter and its source on the site.

    Source: Vaswani et al. 2017, figure 1.
    """
    return Diagram()


def _stacks() -> list[str]:
    """Frames around what is repeated, and around the inside of attention."""
    low = row(2) + TALL + 11
    lines = [
        f'<rect class="stack" x="{x}" y="{top}" width="186" height="{low - top}" rx="8"/>'
        for x, top in ((4, row(5) - 10), (210, row(7) - 8))
    ]
    return [*lines, '<rect class="stack" x="4" y="26" width="186" height="192" rx="8"/>']


def _arrows() -> list[str]:
    """Upwards from box to box, around each sublayer, and from the encoder to the decoder."""
    paths = []
    for left, last in ((LEFT, 5), (RIGHT, 9)):
        middle = left + BOX // 2
        paths += [f"M{middle} {row(0) + TALL + 12}V{row(0) + TALL}"]
        paths += [f"M{middle} {row(n)}V{row(n + 1) + TALL}" for n in range(last)]
    paths += [f"M{RIGHT + BOX // 2} {row(9)}v-13"]
    for first in (2, 4):
        paths.append(_around(LEFT, 14, first))
    for first in (2, 4, 6):
        paths.append(_around(RIGHT + BOX, 386, first))
    side, memory = LEFT + BOX // 2, row(5) - 18
    paths.append(f"M{side} {row(5)}V{memory}H{GAP}V{row(4) + TALL // 2}H{RIGHT}")
    paths += [f"M{side} 166V156", f"M{side} 112V102"]
    end = 'marker-end="url(#tt-model-arrow)"'
    return [f'<path class="line" d="{path}" {end}/>' for path in paths]


def _around(edge: int, lane: int, first: int) -> str:
    """A residual connection: from under a sublayer to the side of the box that adds it."""
    middle = LEFT + BOX // 2 if edge == LEFT else RIGHT + BOX // 2
    return f"M{middle} {row(first) + TALL + 6}H{lane}V{row(first + 1) + TALL // 2}H{edge}"


def _words() -> list[str]:
    """Names of what goes in and out."""
    left, right = LEFT + BOX // 2, RIGHT + BOX // 2
    middle = 'text-anchor="middle"'
    return [
        f'<text x="{left}" y="{HEIGHT - 5}" {middle}>source tokens</text>',
        f'<text x="{right}" y="{HEIGHT - 5}" {middle}>target tokens so far</text>',
        f'<text class="small" x="{left + 8}" y="{row(5) - 24}">memory</text>',
        f'<text x="{left}" y="46" {middle}>inside every attention</text>',
        f'<text x="{right}" y="{row(9) - 18}" {middle}>next token</text>',
        f'<text class="small" x="1" y="{row(1) + 10}">×6</text>',
        f'<text class="small" x="399" y="{row(1) + 10}" text-anchor="end">×6</text>',
        f'<text class="small" x="{right + 6}" y="{row(9) + TALL + 12}">logits</text>',
    ]
