"""The map of the chapters: what depends on what, as a drawing of links and as a list in words.

The table of contents names the chapters, book/chapters.yml says what each needs and where it stands on a wide
page: to the right of all that it needs. On a phone the chapters stand in order, with arcs beside them.
"""

import textwrap
from collections.abc import Collection
from dataclasses import dataclass
from html import escape

import yaml

from chapters import ROOT, heading, number

NODE, TALL, AIR, GAP = 156, 48, 14, 16  # a chapter's box in the wide map, and the space around it
GUTTER, ROW, LOW, PHONE = 92, 46, 38, 360  # the narrow map: room for arcs, rows, boxes, width
LABEL = "Map of the chapters: an arrow leads from each chapter to those that need it. The list below says it in words."


@dataclass(frozen=True)
class Chapter:
    """A chapter with its place in the book and what it needs."""

    number: int
    title: str  # without the number
    stem: str
    part: str
    needs: tuple[int, ...]  # chapters
    knowledge: tuple[str, ...]  # other things, in words
    at: tuple[int, int]  # column and row on a wide page

    @property
    def name(self) -> str:
        """The title with the number, as the page has it; the first chapter has none."""
        return f"{self.number}. {self.title}" if self.number else self.title


def chapters() -> list[Chapter]:
    """The chapters of the table of contents.

    Raises: ValueError if one needs a chapter that does not stand before it.
    """
    parts = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))["parts"]
    wanted = yaml.safe_load((ROOT / "book" / "chapters.yml").read_text(encoding="utf-8"))
    found: list[Chapter] = []
    for part in parts:
        for entry in part["chapters"]:
            path = ROOT / f"{entry['file']}.ipynb"
            if path.parent.name != "chapters":
                continue
            mine = number(path)
            all_ = wanted[mine]["needs"]
            needs = tuple(need for need in all_ if isinstance(need, int))
            unknown = set(needs) - {chapter.number for chapter in found}
            if unknown:
                raise ValueError(f"chapter {mine} needs {sorted(unknown)}, not before it")
            title = heading(path).removeprefix(f"{mine}. ")
            words = tuple(need for need in all_ if isinstance(need, str))
            at = tuple(wanted[mine]["at"])
            found.append(Chapter(mine, title, path.stem, part["caption"], needs, words, at))
    return found


# ------------------------------------------------------------------------------------ in words


def listed(book: list[Chapter]) -> str:
    """A heading for each part, and its chapters with what they need."""
    page = []
    for part in dict.fromkeys(chapter.part for chapter in book):
        page += [f"## {part}", ":::{container} chapters-in-words"]
        for chapter in book:
            if chapter.part == part:
                page.append(f"- [](../chapters/{chapter.stem}.ipynb)\n  needs {needed(chapter)}")
        page.append(":::")
    return "\n\n".join(page) + "\n"


def needed(chapter: Chapter) -> str:
    """What a chapter needs, in words."""
    return joined([*map(str, chapter.needs), *chapter.knowledge])


def joined(words: list[str]) -> str:
    """Words with commas and a last `and`."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


# ----------------------------------------------------------------------------------- the drawings


def page(book: list[Chapter]) -> str:
    """Both drawings as a part of a page; the style shows the one that fits."""
    return f"````{{raw}} html\n{wide(book)}\n{narrow(book)}\n````\n"


def node(chapter: Chapter, x: float, y: float, width: float, tall: float, lines: list[str]) -> str:
    """A box that leads to a chapter."""
    label = f"{chapter.name}, needs {needed(chapter)}"
    rows = [y + tall / 2 + 5 + 17 * (k - (len(lines) - 1) / 2) for k in range(len(lines))]
    spans = "".join(  # a space after a word that ends a line, so that a voice parts the words
        f'<tspan x="{x + 38:g}" y="{row:g}">{escape(line)}</tspan>{"" if line.endswith("-") else " "}'
        for row, line in zip(rows, lines, strict=True)
    ).strip()
    sign = chapter.number or "→"
    return (
        f'<a class="map-node" href="../chapters/{chapter.stem}.html" aria-label="{escape(label)}" '
        f'data-chapter="{chapter.number}" data-needs="{" ".join(map(str, chapter.needs))}">'
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{tall:g}" rx="8"/>'
        f'<text class="map-number" x="{x + 19:g}" y="{y + tall / 2 + 6:g}">{sign}</text> '
        f"<text>{spans}</text></a>"
    )


def edge(source: int, target: int, way: str, x: float, y: float) -> str:
    """A line to a chapter from one that it needs, with a tip that points to the right."""
    tip = f"M{x - 7:g} {y - 4:g}L{x:g} {y:g}L{x - 7:g} {y + 4:g}Z"
    return (
        f'<g class="map-edge" data-from="{source}" data-to="{target}">'
        f'<path d="{way}"/><path class="map-tip" d="{tip}"/></g>'
    )


def svg(kind: str, width: float, height: float, parts: list[str]) -> str:
    """A drawing with its text alternative."""
    return "\n".join([
        f'<svg class="map map-{kind}" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="group" aria-label="{LABEL}">', *parts, "</svg>",
    ])  # fmt: skip


def narrow(book: list[Chapter]) -> str:
    """Chapters one under the other, arcs at the left: the further, the wider."""
    middle = {chapter.number: ROW * row + LOW / 2 + 1 for row, chapter in enumerate(book)}
    edges = []
    for chapter in book:
        for need in chapter.needs:
            high, low = middle[need] + 5, middle[chapter.number] - 5
            reach = GUTTER - min(1.25 * GUTTER, 14 + 0.28 * (low - high))
            way = f"M{GUTTER} {high:g}C{reach:g} {high:g} {reach:g} {low:g} {GUTTER - 5} {low:g}"
            edges.append(edge(need, chapter.number, way, GUTTER, low))
    nodes = [
        node(chapter, GUTTER, middle[chapter.number] - LOW / 2, PHONE - GUTTER - 1, LOW, [chapter.title])
        for chapter in book
    ]  # fmt: skip
    return svg("narrow", PHONE, ROW * len(book), edges + nodes)


def wrapped(title: str) -> list[str]:
    """A title in lines that fit into a box: of 15 letters, or of 14 where few of them are narrow."""
    lines = textwrap.wrap(title, 15)
    widths = [len(line) - 0.4 * sum(letter in "fijlrtI- " for letter in line) for line in lines]
    return lines if max(widths) < 13.2 else textwrap.wrap(title, 14)


def wide(book: list[Chapter]) -> str:
    """Boxes on the grid of book/chapters.yml, each to the right of all that it needs.

    Raises: ValueError if the grid does not allow that, or a line would run under a box.
    """
    known = {chapter.number: chapter for chapter in book}
    taken = {chapter.at: chapter.number for chapter in book}
    for chapter in book:
        if taken[chapter.at] != chapter.number:
            raise ValueError(f"{chapter.number} and {taken[chapter.at]} stand in one place")
    edges = [
        edge(need, chapter.number, way(known[need], chapter, taken), left(chapter), middle(chapter))
        for chapter in book
        for need in chapter.needs
    ]
    nodes = [node(c, left(c), middle(c) - TALL / 2, NODE, TALL, wrapped(c.title)) for c in book]
    width = max(left(chapter) for chapter in book) + NODE + 1
    height = max(middle(chapter) for chapter in book) + TALL / 2 + 1
    return svg("wide", width, height, edges + nodes)


def left(chapter: Chapter) -> float:
    """The left side of a box in the wide map."""
    return 1 + chapter.at[0] * (NODE + GAP)


def middle(chapter: Chapter) -> float:
    """The height of the middle of a box in the wide map, where its lines begin and end."""
    return 1 + TALL / 2 + chapter.at[1] * (TALL + AIR)


def way(source: Chapter, target: Chapter, taken: Collection[tuple[int, int]]) -> str:
    """A line along the row of the source, or else of the target: one must be free between the two."""
    here, there = f"{source.number} to {target.number}", range(source.at[0] + 1, target.at[0])
    if source.at[0] >= target.at[0]:
        raise ValueError(f"{here}: what needs another chapter stands in a column to its right")
    free = [at[1] for at in (source.at, target.at) if not {(k, at[1]) for k in there} & set(taken)]
    if not free:
        raise ValueError(f"{here}: boxes stand between them in both rows")
    x, y, to, low = left(source) + NODE, middle(source), left(target), middle(target)
    turn = to - GAP if free[0] == source.at[1] else x  # where the line leaves its row
    bend = (
        f"{turn + GAP / 2:g} {y:g} {turn + GAP / 2:g} {low:g} {min(turn + GAP, to - 5):g} {low:g}"
    )
    return f"M{x:g} {y:g}H{turn:g}C{bend}H{to - 5:g}"
