"""The map of the chapters says what the table of contents and book/chapters.yml say, and can be read."""

import random
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

import chapter_map

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("wide", "narrow")
both = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def book():
    return chapter_map.chapters()


def drawn(book, kind: str) -> ElementTree.Element:
    return ElementTree.fromstring(getattr(chapter_map, kind)(book))


def of_class(root, name: str) -> list:
    return [one for one in root.iter() if name in one.get("class", "").split()]


def boxes(root) -> dict[int, tuple[float, float, float, float]]:
    """Left, top, right and bottom of each chapter's box."""
    found = {}
    for link in of_class(root, "map-node"):
        x, y, width, height = (
            float(link.find("rect").get(name)) for name in ("x", "y", "width", "height")
        )
        found[int(link.get("data-chapter"))] = (x, y, x + width, y + height)
    return found


def points(way: str) -> list[tuple[float, float]]:
    """Points along a path of M, C and H, close to each other."""
    found, here = [], (0.0, 0.0)
    for letter, text in re.findall(r"([MCH])([^MCH]*)", way):
        numbers = [float(number) for number in text.split()]
        if letter == "M":
            here = (numbers[0], numbers[1])
            found.append(here)
        elif letter == "H":
            steps = [k / 20 for k in range(1, 21)]
            found += [(here[0] + (numbers[0] - here[0]) * t, here[1]) for t in steps]
            here = found[-1]
        else:
            corners = [here, *zip(numbers[::2], numbers[1::2], strict=True)]
            for t in (k / 40 for k in range(1, 41)):
                parts = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
                found.append(
                    tuple(
                        sum(p * c[k] for p, c in zip(parts, corners, strict=True)) for k in (0, 1)
                    )
                )
            here = corners[-1]
    return found


def ends(root) -> set[tuple[int, int]]:
    return {(int(e.get("data-from")), int(e.get("data-to"))) for e in of_class(root, "map-edge")}


def misdrawn(root) -> list[str]:
    """Boxes that overlap, lines that begin or end elsewhere, lines under other boxes, what leaves the drawing."""
    wrong, places = [], boxes(root)
    _, _, width, height = map(float, root.get("viewBox").split())
    for n, (left, top, right, bottom) in places.items():
        if not (left >= 0 and top >= 0 and right <= width and bottom <= height):
            wrong.append(f"{n} leaves the drawing")
        for other, (x, y, to, low) in places.items():
            if n < other and left < to and x < right and top < low and y < bottom:
                wrong.append(f"{n} and {other} overlap")
    for edge in of_class(root, "map-edge"):
        source, target = int(edge.get("data-from")), int(edge.get("data-to"))
        line = points(edge.find("path").get("d"))
        side = 2 if root.get("class").endswith("wide") else 0  # where lines leave a box
        (x, y), (to, low) = line[0], line[-1]
        left, top, right, bottom = places[source]
        if abs(x - (left, top, right, bottom)[side]) > 1 or not top < y < bottom:
            wrong.append(f"{source} to {target} does not begin at {source}")
        left, top, right, bottom = places[target]
        if not (left - 8 < to <= left and top < low < bottom):
            wrong.append(f"{source} to {target} does not end at {target}")
        for n, (left, top, right, bottom) in places.items():
            if any(left + 1 < x < right - 1 and top < y < bottom for x, y in line):
                wrong.append(f"{source} to {target} runs under {n}")
        if any(not (0 <= x <= width and 0 <= y <= height) for x, y in line):
            wrong.append(f"{source} to {target} leaves the drawing")
    return wrong


# ------------------------------------------------------------------------------------- this book


@both
def test_a_node_for_every_chapter_of_the_contents(book, kind):
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    files = [entry["file"] for part in toc["parts"] for entry in part["chapters"]]
    links = [link.get("href") for link in of_class(drawn(book, kind), "map-node")]
    assert links == [f"../{file}.html" for file in files if file.startswith("chapters/")]


@both
def test_an_edge_for_every_need_and_no_other(book, kind):
    table = yaml.safe_load((ROOT / "book" / "chapters.yml").read_text(encoding="utf-8"))
    needs = {n: facts["needs"] for n, facts in table.items()}
    wanted = {(need, n) for n, all_ in needs.items() for need in all_ if isinstance(need, int)}
    root = drawn(book, kind)
    assert ends(root) == wanted
    assert len(of_class(root, "map-edge")) == len(wanted)


@both
def test_it_can_be_read(book, kind):
    root = drawn(book, kind)
    assert misdrawn(root) == []
    assert root.get("aria-label")
    for chapter, link in zip(book, of_class(root, "map-node"), strict=True):
        words = "".join(link.find("text[last()]").itertext()).split()
        assert "".join(words) == chapter.title.replace(" ", "")  # a line may end with a hyphen
        assert max(len("".join(line.itertext())) for line in link.iter("tspan")) < 30
        label = link.get("aria-label")
        assert label.startswith(chapter.name)
        said = [int(n) for n in re.findall(r"\d+", label.partition(", needs ")[2])]
        assert tuple(said) == chapter.needs


def test_what_a_chapter_needs_stands_left_of_it(book):
    places = boxes(drawn(book, "wide"))
    for source, target in ends(drawn(book, "wide")):
        assert places[source][2] < places[target][0]


def test_the_list_says_the_same(book):
    page = chapter_map.listed(book)
    assert re.findall(r"\]\(\.\./chapters/(\w+)\.ipynb\)", page) == [c.stem for c in book]
    said = [[int(n) for n in re.findall(r"\d+", line)] for line in re.findall("needs (.*)", page)]
    assert said == [list(chapter.needs) for chapter in book]
    assert re.findall("^## (.*)", page, re.MULTILINE) == list(dict.fromkeys(c.part for c in book))


# ------------------------------------------------------------------------------------ other books


def made_up(edges: dict[int, list[int]]) -> list[chapter_map.Chapter]:
    """A book in which each chapter has a row of its own."""
    column, book = {}, []
    for n, needs in edges.items():
        column[n] = max((column[need] + 1 for need in needs), default=0)
        book.append(placed(n, needs, (column[n], n - 1)))
    return book


def placed(n: int, needs: list[int], at: tuple[int, int]) -> chapter_map.Chapter:
    return chapter_map.Chapter(n, f"Title {n}", f"{n:02}_a", "Part", tuple(needs), (), at)


@both
@pytest.mark.parametrize("seed", range(20))
def test_books_that_are_not_written_yet(kind, seed):
    rng = random.Random(seed)
    size = rng.randint(1, 30)
    edges = {
        n: sorted(rng.sample(range(1, n), rng.randint(0, min(4, n - 1))))
        for n in range(1, size + 1)
    }
    root = drawn(made_up(edges), kind)
    assert misdrawn(root) == []
    assert ends(root) == {(need, n) for n, needs in edges.items() for need in needs}


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ([(0, 0), (1, 0), (2, 0), (1, 0)], "2 and 4 stand in one place"),
        ([(0, 0), (0, 1), (2, 0), (3, 1)], "1 to 2: .* in a column to its right"),
        ([(1, 0), (0, 1), (2, 0), (3, 1)], "1 to 2: .* in a column to its right"),
        ([(0, 0), (1, 0), (2, 0), (3, 0)], "1 to 4: boxes stand between them in both rows"),
    ],
)
def test_a_grid_that_can_not_be_drawn_is_refused(places, said):
    needs = {1: [], 2: [1], 3: [2], 4: [1]}
    book = [placed(n, needs[n], at) for n, at in enumerate(places, start=1)]
    with pytest.raises(ValueError, match=said):
        chapter_map.wide(book)


def test_a_line_takes_the_row_that_is_free():
    first, under, last = placed(1, [], (0, 0)), placed(2, [], (1, 0)), placed(3, [1], (2, 1))
    (low,) = {
        y
        for x, y in points(chapter_map.way(first, last, {(1, 0)}))
        if x > chapter_map.left(under) + 5
    }
    assert low == chapter_map.middle(last)
    middle = points(chapter_map.way(first, last, {(1, 1)}))
    assert {y for x, y in middle if x < chapter_map.left(last) - chapter_map.GAP - 3} == {
        chapter_map.middle(under)
    }


def test_a_chapter_can_not_need_a_later_one(tmp_path, monkeypatch):
    (tmp_path / "book").mkdir()
    (tmp_path / "_toc.yml").write_text("parts: [{caption: P, chapters: [{file: chapters/01_a}]}]")
    (tmp_path / "book" / "chapters.yml").write_text("1: {needs: [2], at: [0, 0]}\n")
    monkeypatch.setattr(chapter_map, "ROOT", tmp_path)
    with pytest.raises(ValueError, match=r"chapter 1 needs \[2\], not before it"):
        chapter_map.chapters()
