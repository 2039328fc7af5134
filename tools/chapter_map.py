"""The map of the chapters: what depends on what, as a drawing of links and as a list in words.

The table of contents names the chapters, book/chapters.yml says what each needs. On a wide page a chapter
stands to the right of all that it needs; on a phone the chapters stand in order, with arcs beside them.
"""

import textwrap
from dataclasses import dataclass
from html import escape
from itertools import pairwise

import yaml

from chapters import ROOT, heading, number

NODE, TALL, AIR, GAP = 168, 48, 14, 36  # a chapter's box in the wide map, and the space around it
LANE = 10  # height that a line takes where it passes between boxes
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
            needs = tuple(need for need in wanted[mine] if isinstance(need, int))
            unknown = set(needs) - {chapter.number for chapter in found}
            if unknown:
                raise ValueError(f"chapter {mine} needs {sorted(unknown)}, not before it")
            title = heading(path).removeprefix(f"{mine}. ")
            words = tuple(need for need in wanted[mine] if isinstance(need, str))
            found.append(Chapter(mine, title, path.stem, part["caption"], needs, words))
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
    return f"````{{raw}} html\n{wide(book)}\n{down_proj(book)}\n````\n"


def node(chapter: Chapter, x: float, y: float, width: float, tall: float, lines: list[str]) -> str:
    """A box that leads to a chapter."""
    label = f"{chapter.name}, needs {needed(chapter)}"
    rows = [y + tall / 2 + 5 + 17 * (k - (len(lines) - 1) / 2) for k in range(len(lines))]
    spans = " ".join(  # a space between them, so that a voice parts the words
        f'<tspan x="{x + 38:g}" y="{row:g}">{escape(line)}</tspan>'
        for row, line in zip(rows, lines, strict=True)
    )
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


def down_proj(book: list[Chapter]) -> str:
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
    return svg("down_proj", PHONE, ROW * len(book), edges + nodes)


def wide(book: list[Chapter]) -> str:
    """Columns of chapters, each to the right of all that it needs."""
    layers = order(columns(book), steps(book))
    heights = levels(layers, steps(book))
    column = {place: k for k, layer in enumerate(layers) for place in layer}
    known = {chapter.number: chapter for chapter in book}

    def left(place):
        return 1 + column[place] * (NODE + GAP)

    edges = []
    for chapter in book:
        for need in chapter.needs:
            stops = way_stations(need, chapter.number, depth(known))
            way = f"M{left(need) + NODE:g} {heights[need]:g}"
            for here, there in pairwise(stops):
                x, y, to, low = left(here) + NODE, heights[here], left(there), heights[there]
                last = 5 if there == chapter.number else 0
                way += f"C{x + GAP / 2:g} {y:g} {to - GAP / 2:g} {low:g} {to - last:g} {low:g}"
                way += "" if last else f"H{to + NODE:g}"
            goal = chapter.number
            edges.append(edge(need, goal, way, left(goal), heights[goal]))
    nodes = [
        node(chapter, left(n), heights[n] - TALL / 2, NODE, TALL, textwrap.wrap(chapter.title, 16))
        for n, chapter in known.items()
    ]
    height = max(heights.values()) + TALL / 2 + 1
    return svg("wide", 2 + len(layers) * (NODE + GAP) - GAP, height, edges + nodes)


# --------------------------------------------------------------------------- where the boxes stand


def depth(known: dict[int, Chapter]) -> dict[int, int]:
    """The column of each chapter: one more than the last of those that it needs."""
    found: dict[int, int] = {}
    for n, chapter in known.items():  # what a chapter needs stands before it
        found[n] = max((found[need] + 1 for need in chapter.needs), default=0)
    return found


def way_stations(source: int, target: int, deep: dict[int, int]) -> list:
    """A line from source to target, with a place in every column that it passes.

    The lines from one chapter share their places, and so part only where they must.
    """
    passed = [(source, k) for k in range(deep[source] + 1, deep[target])]
    return [source, *passed, target]


def steps(book: list[Chapter]) -> set[tuple]:
    """The pieces of all lines, each from one column to the next."""
    deep = depth({chapter.number: chapter for chapter in book})
    return {
        step
        for chapter in book
        for need in chapter.needs
        for step in pairwise(way_stations(need, chapter.number, deep))
    }


def columns(book: list[Chapter]) -> list[list]:
    """Chapters and passing lines by column, in the order of the book."""
    deep = depth({chapter.number: chapter for chapter in book})
    layers: list[list] = [[] for _ in range(max(deep.values()) + 1)]
    for n, k in deep.items():
        layers[k].append(n)
    for place in sorted({p for step in steps(book) for p in step if isinstance(p, tuple)}):
        layers[place[1]].append(place)
    return layers


def order(layers: list[list], pieces: set[tuple]) -> list[list]:
    """Sort each column by where its neighbors stand, back and forth, and keep what crosses least."""
    best, fewest = layers, crossings(layers, pieces)
    for sweep in range(12):
        forth = sweep % 2 == 0
        layers = [list(layer) for layer in layers]
        for k in range(1, len(layers)) if forth else range(len(layers) - 2, -1, -1):
            beside = layers[k - 1 if forth else k + 1]
            around = neighbors(pieces, forth)
            layers[k].sort(key=lambda place: mean_place(around.get(place, []), beside))
        count = crossings(layers, pieces)
        if count < fewest:
            best, fewest = layers, count
    return best


def neighbors(pieces: set[tuple], before: bool) -> dict:
    """The places that each is joined with in the column before it, or after it."""
    found: dict = {}
    for source, target in pieces:
        here, there = (target, source) if before else (source, target)
        found.setdefault(here, []).append(there)
    return found


def mean_place(joined_with: list, beside: list) -> float:
    """Where the neighbors stand on average; at the top for none."""
    return sum(map(beside.index, joined_with)) / len(joined_with) if joined_with else -1


def crossings(layers: list[list], pieces: set[tuple]) -> int:
    """How many pairs of lines cross."""
    place = {name: k for layer in layers for k, name in enumerate(layer)}
    column = {name: k for k, layer in enumerate(layers) for name in layer}
    ends = [(column[a], place[a], place[b]) for a, b in pieces]
    return sum(
        a[0] == b[0] and a[1] < b[1] and a[2] > b[2] for a in ends for b in ends
    )  # each pair is met in both orders, and counts in one


def levels(layers: list[list], pieces: set[tuple]) -> dict:
    """The height of the middle of each place: near its neighbors, and no two too near."""
    heights = {name: float(k * (TALL + AIR)) for layer in layers for k, name in enumerate(layer)}
    around = neighbors(pieces, True)
    for name, others in neighbors(pieces, False).items():
        around.setdefault(name, []).extend(others)
    for _ in range(30):
        for layer in layers:
            wished = [
                sum(heights[n] for n in around[name]) / len(around[name]) if name in around else 0.0
                for name in layer
            ]
            heights.update(zip(layer, apart(wished, layer), strict=True))
    top = min(heights[name] - half(name) for name in heights)
    return {name: round(height - top + 1, 1) for name, height in heights.items()}


def half(name) -> float:
    """Half the height that a place takes."""
    return (LANE if isinstance(name, tuple) else TALL) / 2


def apart(wished: list[float], layer: list) -> list[float]:
    """The heights nearest to those wished for that keep the order and the distances.

    Least squares under an order: neighbors that would come too near move together to their mean.
    """
    offsets = [0.0]
    for above, below in pairwise(layer):
        offsets.append(offsets[-1] + half(above) + AIR + half(below))
    groups: list[list[float]] = []
    for wish, offset in zip(wished, offsets, strict=True):
        groups.append([wish - offset])
        while len(groups) > 1 and mean(groups[-2]) > mean(groups[-1]):
            last = groups.pop()
            groups[-1] += last
    flat = [mean(group) for group in groups for _ in group]
    return [value + offset for value, offset in zip(flat, offsets, strict=True)]


def mean(values: list[float]) -> float:
    """The mean."""
    return sum(values) / len(values)
