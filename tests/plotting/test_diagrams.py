"""The book's diagrams: what they tell is what the package computes, and everybody can read it."""

import functools
import json
import math
import re
import xml.etree.ElementTree as ET
from itertools import combinations, pairwise
from typing import NamedTuple

import nbformat
import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb

from chapters import chapter_paths
from tested_transformer import (
    KeyValueCache,
    LayerNorm,
    MultiHeadAttention,
    attention,
    causal_mask,
    padding_mask,
    self_attention,
)
from tested_transformer.functional.inputs import AttentionInputs
from tested_transformer.functional.online_softmax import FULL, MASKED, SKIPPED, tile_kinds
from tested_transformer.layers.residual import Residual
from tested_transformer.plotting import diagrams, flash_diagram
from tested_transformer.plotting.block_diagram import gpt2_and_llama
from tested_transformer.plotting.diagram import (
    LARGE,
    MARKS,
    SMALL,
    STYLE,
    WIDTH,
    Matrix,
    arrow,
)
from tested_transformer.plotting.kv_heads import kv_heads
from tested_transformer.plotting.model_diagram import model_diagram
from tested_transformer.plotting.style import ON_PAGE, contrast, text_width

CHAPTERS = chapter_paths()
PHONE = 312  # pixels that a page of 360 has for a diagram
SVG = "{http://www.w3.org/2000/svg}"


def drawn(seed: int):
    return torch.Generator().manual_seed(seed)


def qkv(words="vier und zwanzig", width=4, head=3):
    words = words.split()
    numbers = [(len(words), width), (width, head), (width, head), (width, 1)]
    x, *weights = (torch.randint(-9, 10, size, generator=drawn(1)).double() for size in numbers)
    return diagrams.queries_keys_values(x, *weights, words=words)


def products(length=3, keys=5, d=4, dv=2):
    sizes = (length, d), (keys, d), (keys, dv)
    return diagrams.scaled_dot_product(*(torch.randn(size, generator=drawn(2)) for size in sizes))


def heads(length=4, width=8):
    torch.manual_seed(0)
    return diagrams.heads_split_and_joined(
        MultiHeadAttention(width, 2), torch.randn(1, length, width)
    )


def masks(source="vier und zwanzig (pad)", target="<start> twenty"):
    source, target = source.split(), target.split()
    padded = padding_mask(torch.tensor([len(source) - 1]), len(source))
    uses = {
        "encoder": padded,
        "decoder": causal_mask(len(target))[None, None],
        "cross": padded.expand(-1, -1, len(target), -1),
    }
    return diagrams.masks_by_use(uses, source=source, target=target)


def cache(chunks=(("one", "hundred", "and"), ("thirty",), ("one",)), capacity=4):
    return diagrams.cache_steps(chunks, capacity=capacity)


def tiles(length=32, keys=32, rows=8, columns=8, block=2, d=4, dv=4):
    sizes = (1, length, d), (1, keys, d), (1, keys, dv)
    inputs = (torch.randn(size, generator=drawn(3), dtype=torch.float64) for size in sizes)
    return flash_diagram.flash_tiles(*inputs, rows=rows, columns=columns, block=block)


MAKERS = {
    "queries, keys, values": qkv,
    "products": products,
    "smallest products": functools.partial(products, 2, 4, 2, 1),
    "largest products": functools.partial(products, 4, 5, 4, 2),
    "heads": heads,
    "five tokens in heads of one": functools.partial(heads, 5, 2),
    "masks": masks,
    "long masks": functools.partial(masks, target="<start> twenty four (pad)"),
    "norms": diagrams.norm_places,
    "cache": cache,
    "long cache": functools.partial(cache, [["a"], ["b", "c"], ["d"], ["e"]], capacity=1),
    "tiles": tiles,
    "uneven tiles": functools.partial(tiles, 20, 26, 6, 8, 3, 2, 3),
    "model": model_diagram,
    "GPT-2 and Llama": functools.partial(gpt2_and_llama, 4, 2),
    "GPT-2 and Llama, many heads": functools.partial(gpt2_and_llama, 64, 64),
    "KV heads": functools.partial(kv_heads, 4, 2),
    "KV heads, sixteen": functools.partial(kv_heads, 16, 4),
}
COLORS = {
    mode: {name: ON_PAGE[name][i] for name in MARKS} for i, mode in enumerate(("light", "dark"))
}
each_diagram = pytest.mark.parametrize("name", MAKERS)


# ------------------------------------------------------------------------- what stands in a drawing


class Area(NamedTuple):
    """A rectangle by its edges."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: "Area") -> bool:
        return (
            self.left < other.right and other.left < self.right
            and self.top < other.bottom and other.top < self.bottom
        )  # fmt: skip

    def holds(self, other: "Area") -> bool:
        return (
            self.left <= other.left and other.right <= self.right
            and self.top <= other.top and other.bottom <= self.bottom
        )  # fmt: skip


@functools.cache
def tree(name: str) -> ET.Element:
    return ET.fromstring(MAKERS[name]().svg)


def classes(node: ET.Element) -> set[str]:
    return set(node.get("class", "").split())


def letters(name: str, node: ET.Element) -> float:
    """The size of the letters of a text."""
    sizes = (13.5, 12.8) if name == "model" else (LARGE, SMALL)
    return sizes["small" in classes(node)]


def area(name: str, node: ET.Element) -> Area:
    """Where a text stands, in DejaVu Sans, which is wider than most."""
    size = letters(name, node)
    width = 72 * text_width(node.text, size) * (1.1 if "strong" in classes(node) else 1)
    start = {None: 0, "middle": -width / 2, "end": -width}[node.get("text-anchor")]
    x, y = float(node.get("x")) + start, float(node.get("y"))
    return Area(x, y - 0.72 * size, x + width, y + 0.2 * size)


@functools.cache
def texts(name: str) -> list[tuple[str, Area]]:
    return [(node.text, area(name, node)) for node in tree(name).iter(f"{SVG}text")]


def rects(name: str, *kinds: str) -> list[tuple[ET.Element, Area]]:
    """The rectangles that have one of these classes."""
    found = []
    for node in tree(name).iter(f"{SVG}rect"):
        x, y, w, h = (float(node.get(key)) for key in ("x", "y", "width", "height"))
        if not kinds or classes(node) & set(kinds):
            found.append((node, Area(x, y, x + w, y + h)))
    return found


@functools.cache
def strokes(name: str) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """Every straight piece of every line, and the edges of what is framed."""
    pieces = []
    for node in tree(name).iter(f"{SVG}path"):
        if "head" not in classes(node):
            pieces += list(pieces_of(node.get("d")))
    for node, (left, top, right, bottom) in rects(name):
        if not classes(node) & {"fill", "hit", "mark"}:
            corners = (left, top), (right, top), (right, bottom), (left, bottom), (left, top)
            pieces += list(pairwise(corners))
    return pieces


def pieces_of(path: str):
    x = y = 0.0
    for letter, rest in re.findall(r"([A-Za-z])([^A-Za-z]*)", path):
        numbers = [float(number) for number in rest.split()]
        old = (x, y)
        if letter in "ML":
            x, y = numbers
        elif letter in "Hh":
            x = numbers[0] + (x if letter == "h" else 0)
        elif letter in "Vv":
            y = numbers[0] + (y if letter == "v" else 0)
        else:
            raise AssertionError(f"a command that this test does not know: {letter}")
        if letter != "M":
            yield old, (x, y)


def crosses(piece, box: Area) -> bool:
    """Whether a straight piece has a point inside a rectangle (of a slanted one some are tried)."""
    (x, y), (u, v) = piece
    if not box.meets(Area(min(x, u), min(y, v), max(x, u), max(y, v))):
        return False
    if x == u or y == v:
        return True
    steps = np.linspace(0, 1, 400)
    xs, ys = x + steps * (u - x), y + steps * (v - y)
    return bool(((box.left < xs) & (xs < box.right) & (box.top < ys) & (ys < box.bottom)).any())


# ---------------------------------------------------------------------------------- to be read by all


@each_diagram
def test_it_is_wellformed_named_and_always_the_same(name):
    one = MAKERS[name]()
    assert one.svg == MAKERS[name]().svg
    root = ET.fromstring(one.svg)
    label = root.get("aria-label")
    assert label == f"{one.title}. {one.description}"
    assert len(label) > 100
    assert root.get("role") == ("group" if name == "model" else "img")
    assert one._repr_mimebundle_() == {"text/html": one.svg, "text/plain": repr(one)}
    assert one.description in repr(one)
    assert len(one.svg) < 40_000


@each_diagram
def test_two_on_a_page_have_nothing_to_share(name):
    svg = MAKERS[name]().svg
    assert not re.search(r"\bid=|url\(|<script|<image|href=\"#", svg)


@each_diagram
def test_every_text_is_inside_and_none_covers_another(name):
    height = float(tree(name).get("viewBox").split()[3])
    page = Area(0, 0, WIDTH, height)
    assert [text for text, at in texts(name) if not page.holds(at)] == []
    pairs = combinations(texts(name), 2)
    assert [(one, two) for (one, at), (two, other) in pairs if at.meets(other)] == []
    assert [at for _, at in rects(name) if not page.holds(at)] == []
    ends = [Area(*point, *point) for piece in strokes(name) for point in piece]
    assert [point for point in ends if not page.holds(point)] == []


@each_diagram
def test_no_line_runs_through_a_text(name):
    crossed = [
        (text, piece) for piece in strokes(name) for text, at in texts(name) if crosses(piece, at)
    ]
    assert crossed == []


@each_diagram
def test_letters_can_be_read_on_a_phone(name):
    width = float(tree(name).get("viewBox").split()[2])
    assert width == WIDTH
    smallest = min(letters(name, node) for node in tree(name).iter(f"{SVG}text"))
    assert round(smallest * PHONE / width) >= 10
    sizes = {float(size) for size in re.findall(r"font-size: ([\d.]+)px", MAKERS[name]().svg)}
    assert smallest == min(sizes)


# --------------------------------------------------------------------------------------------- colors


@functools.cache
def theme(mode: str) -> dict[str, str]:
    """The colors of the page: paper, panels and ink, as the book's style sheet names them."""
    sheet = (CHAPTERS[0].parents[1] / "book/_static/custom.css").read_text(encoding="utf-8")
    start = {"light": r"html", "dark": r'html\[data-theme="dark"\]'}[mode]
    block = re.search(rf"^{start} \{{(.*?)^\}}", sheet, re.MULTILINE | re.DOTALL)[1]
    return dict(re.findall(r"--book-(paper|panel|ink): (#\w+);", block))


def mark(node: ET.Element, colors: dict[str, str], ink: str) -> str:
    """The color that a rectangle or a word has by its classes."""
    named = classes(node) & colors.keys()
    return colors[named.pop()] if named else ink


@each_diagram
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_every_text_reads_on_what_is_behind_it(name, mode):
    page, colors = theme(mode), COLORS[mode]
    ink, weak = page["ink"], []
    for node in tree(name).iter(f"{SVG}text"):
        at = area(name, node)
        behind = np.array(to_rgb(page["paper"]))
        for rect, place in rects(name, "box", "fill"):
            if not place.meets(at):
                continue
            if "box" in classes(rect):
                behind = np.array(to_rgb(page["panel"]))
            else:
                share = float(rect.get("fill-opacity"))
                behind = share * np.array(to_rgb(mark(rect, colors, ink))) + (1 - share) * behind
        color = mark(node, colors, ink) if "word" in classes(node) else ink
        if contrast(color, behind) < 4.5:
            weak.append((node.text, color, contrast(color, behind)))
    assert weak == []


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_edges_and_marks_stand_out_from_the_page(mode):
    """Graphics need 3 (WCAG 2.2, 1.4.11)."""
    for color in COLORS[mode].values():
        assert contrast(color, theme(mode)["paper"]) >= 3
        assert contrast(color, theme(mode)["panel"]) >= 3


@each_diagram
def test_colors_are_variables(name):
    svg = MAKERS[name]().svg
    style, parts = re.search(r"<style>(.*)</style>(.*)", svg, re.DOTALL).groups()
    assert not re.search(r"#[0-9A-Fa-f]{3,6}\b|rgb|fill=\"|stroke=\"|style=\"", parts)
    given = re.findall(r"([\w-]+): (#\w+);", style)
    assert {variable for variable, _ in given} == {f"--tt-{name}" for name in MARKS}
    assert len(given) == 3 * len(MARKS)  # light, dark, and dark without scripts
    assert "html[data-theme=dark] svg.tt-diagram" in STYLE


# ------------------------------------------------------------------------------ what the pictures tell


def words_of(picture) -> list[str]:
    return [node.text for node in ET.fromstring(picture.svg).iter(f"{SVG}text")]


def shaded(name: str, kind: str) -> list[float]:
    """How strong the cells of one color are."""
    return [float(n.get("fill-opacity")) for n, _ in rects(name, "fill") if kind in classes(n)]


def test_queries_keys_and_values_are_the_layers():
    table = torch.tensor([[1.0, 0, 0, 4], [0, 0, 0, 0], [0, 1, 0, 20]])
    weights = 30 * torch.tensor([[0.0, 1, 2], [0, 1, 0], [1, 0, 0], [0, 0, 0]]), torch.eye(4, 3)
    value = torch.tensor([[7.0], [3], [100], [0]])
    picture = diagrams.queries_keys_values(table, *weights, value, words=["a", "b", "c"])
    output, shares = self_attention(table, *weights, value, return_weights=True)
    said = words_of(picture)
    place = said.index("weights")
    assert said[place - 3 : place] == [f"{share:.2f}" for share in shares[0].tolist()]
    assert f"{output[0].item():.2f}" in said
    assert f"{30 / 3**0.5:.1f}" in said  # the query (0, 30, 60) and the key (0, 1, 0)
    for matrix in (table, table @ weights[0], table @ weights[1], table @ value):
        flat = [f"{number:.0f}" for number in matrix.flatten().tolist()]
        assert any(said[n : n + len(flat)] == flat for n in range(len(said)))


@pytest.mark.parametrize(("length", "keys", "d", "dv"), [(3, 5, 4, 2), (2, 4, 3, 1)])
def test_products_have_the_shapes_of_attention(length, keys, d, dv):
    said = words_of(products(length, keys, d, dv))
    shapes = {
        "queries": f"L × d = {length} × {d}", "keysᵀ": f"d × S = {d} × {keys}",
        "values": f"S × dv = {keys} × {dv}", "scores": f"L × S = {length} × {keys}",
        "weights": f"L × S = {length} × {keys}", "output": f"L × dv = {length} × {dv}",
    }  # fmt: skip
    assert {name: said[said.index(name) + 1] for name in shapes} == shapes
    assert f"/ √{d}" in said


def test_weights_are_as_dark_as_they_are_large():
    sizes = (3, 4), (5, 4), (5, 2)
    query, key, value = (torch.randn(size, generator=drawn(2)) for size in sizes)
    _, weights = attention(query, key, value, return_weights=True)
    shades = shaded("products", "plain")[-15:]
    assert shades == pytest.approx(weights.flatten().tolist(), abs=0.0051)


@pytest.mark.parametrize(("length", "width"), [(4, 8), (3, 6), (5, 2)])
def test_shapes_of_heads_are_those_of_the_functions(length, width):
    said = words_of(heads(length, width))
    assert f"x through three matrices: B × L × D = 1 × {length} × {width}" in said
    assert f"split_heads: B × H × L × d = 1 × 2 × {length} × {width // 2}" in said
    assert f"weights: B × H × L × S = 1 × 2 × {length} × {length}" in said
    assert f"concat_heads: B × L × D = 1 × {length} × {width}" in said


def test_columns_go_where_split_heads_sends_them(monkeypatch):
    """If the function dealt out the columns in turn, the picture would show it."""

    def shades():
        at = Matrix(0, 0, (2, 4), "query", cell=10)
        return re.findall(r'fill-opacity="([\d.]+)"', "".join(diagrams._by_head(at)))

    assert diagrams.owners(4).tolist() == [[0, 1], [2, 3]]
    assert shades() == ["0.50", "0.50", "0.16", "0.16"] * 2
    in_turn = lambda x, n: x.unflatten(-1, (-1, n)).permute(0, 3, 1, 2)  # noqa: E731
    monkeypatch.setattr(diagrams, "split_heads", in_turn)
    assert diagrams.owners(4).tolist() == [[0, 2], [1, 3]]
    assert shades() == ["0.50", "0.16"] * 4


def test_masks_are_filled_where_they_are_true():
    shades = shaded("masks", "plain")
    expected = [True, True, True, False] * 4 + [True, False, True, True] + [True] * 3 + [False]
    expected += [True] * 3 + [False]
    assert shades == [0.5 * seen for seen in expected]
    told = masks().description
    assert "twenty sees <start> twenty" in told
    assert "<start> sees vier und zwanzig, twenty" in told


@pytest.mark.parametrize("norm_placement", ["post", "pre", "deepnorm"])
def test_norm_first_is_what_the_layer_computes(norm_placement):
    """With a sublayer that finds nothing the stream comes through unnormed, or it does not."""
    x = torch.tensor([[1.0, 2.0, 4.0]])
    answer = Residual(LayerNorm(3), norm_placement=norm_placement)(x, torch.zeros_like)
    assert diagrams.norm_first(norm_placement) == torch.equal(answer, x)


def test_norms_stand_on_the_direct_way_or_beside_it():
    boxes = [
        (at.left < 30 or 206 <= at.left < 240) for node, at in rects("norms", "box")
        if "value" in classes(node)
    ]  # fmt: skip
    assert boxes == [True, True, False, False, True]
    assert words_of(diagrams.norm_places()).count("norm") == 5


def test_gpt2_and_llama_are_drawn_alike_and_differ_in_five_lines():
    said = words_of(gpt2_and_llama(4, 2))
    pairs = zip(said[: len(said) // 2], said[len(said) // 2 :], strict=True)
    assert [(ours, theirs) for ours, theirs in pairs if ours != theirs] == [
        ("GPT-2", "Llama"), ("tokens + positions", "tokens"), ("LayerNorm", "RMSNorm"),
        ("no rotation", "rotated q and k"), ("4 KV heads", "2 KV heads"), ("LayerNorm", "RMSNorm"),
        ("GELU", "SwiGLU"), ("LayerNorm", "RMSNorm"), ("biases", "no biases"),
    ]  # fmt: skip


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 2), (6, 3), (16, 4)])
def test_kv_heads_are_counted_and_joined(num_heads, num_kv_heads):
    picture = kv_heads(num_heads, num_kv_heads)
    root = ET.fromstring(picture.svg)
    kinds = [set(node.get("class").split()) for node in root.iter(f"{SVG}rect")]
    drawn = {
        name: sum({name, "edge"} <= kind for kind in kinds) for name in ("query", "key", "value")
    }
    read = 2 * num_heads + num_kv_heads + 1  # MHA and MLA, GQA, MQA
    assert drawn == {"query": 4 * num_heads, "key": read, "value": read}
    assert sum("dashed" in kind for kind in kinds) == 2 * num_heads
    lines = [node.get("d") for node in root.iter(f"{SVG}path")]
    assert len(lines) == 5 * num_heads  # from every query of four layers, and from MLA's latent
    assert f"{num_kv_heads} keys, {num_kv_heads} values" in words_of(picture)


def test_cache_steps_are_those_of_a_cache():
    chunks = [["a", "b", "c"], ["d"], ["e"]]
    kept, seen = KeyValueCache(capacity=4), 0
    said, told = words_of(cache(chunks)), cache(chunks).description
    for step, words in enumerate(chunks, start=1):
        part = torch.zeros(1, 1, len(words), 2)
        kept.append(part, part)
        place = said.index(f"step {step}: “{' '.join(words)}”")
        lines = said[place + 4 : place + 7]
        assert lines == [
            f"projected: {len(words)}", f"from the cache: {seen}", f"scores {len(words)} × {kept.length}",
        ]  # fmt: skip
        assert f"room for {kept.capacity}, scores" in told.split(f"Step {step}")[1]
        seen += len(words)
    dashed = len(rects("cache", "dashed"))
    assert dashed == 2 * (1 + 0 + 3)
    assert shaded("cache", "key") == [0.6] * 3 + [0.16] * 3 + [0.6] + [0.16] * 4 + [0.6]


@pytest.mark.parametrize(
    ("length", "keys", "rows", "columns"),
    [(32, 32, 8, 8), (20, 26, 6, 8), (24, 32, 8, 8), (16, 12, 4, 3)],
)
def test_tiles_are_those_that_the_masks_corners_leave(length, keys, rows, columns):
    """Against `tile_kinds`, which looks at corners and knows nothing of the backend."""
    query, key = torch.zeros(1, length, 2), torch.zeros(1, keys, 2)
    call = AttentionInputs(query, key, key, 1.0, causal=True)
    visits = flash_diagram.tiles_visited(call, rows, columns)
    kinds = tile_kinds(length, keys, rows=rows, cols=columns, causal=True)
    assert [(at.start, at.stop) for at, _ in visits] == [
        (n, min(n + rows, length)) for n in range(0, length, rows)
    ]
    for (at, visited), row in zip(visits, kinds, strict=True):
        assert len(visited) == (row != SKIPPED).sum()
        for n, visit in enumerate(visited):
            assert visit.columns.start == n * columns
            hidden = ~causal_mask(length, keys)[at, visit.columns]
            assert visit.masked == bool(hidden.any())
            assert visit.masked or row[n] in (FULL, MASKED)


def test_running_maximum_and_sum_are_those_of_the_keys_so_far():
    sizes = (1, 20, 4), (1, 26, 4), (1, 26, 3)
    query, key, value = (
        torch.randn(size, generator=drawn(5), dtype=torch.float64) for size in sizes
    )
    call = AttentionInputs(query, key, value, 0.5, causal=True)
    (rows, visited) = flash_diagram.tiles_visited(call, 6, 8)[2]
    states = flash_diagram.running(call, rows, visited)
    seen = (key[0, : rows.stop + 6] @ query[0, rows.stop - 1] / 2).tolist()  # 6 = S - L
    assert len(states) == 3
    for n, maximum, total in states:
        part = seen[: 8 * (n + 1)]
        assert maximum == pytest.approx(max(part), abs=1e-12)
        assert total == pytest.approx(sum(math.exp(s - max(part)) for s in part), abs=1e-12)
    assert 8 * len(states) >= len(seen) > 16  # the last tile is the last that may be seen


def test_tiles_shown_are_counted():
    assert len(rects("tiles", "dashed")) == 6 + 1  # skipped tiles, and the frame of shared memory
    said = words_of(tiles())
    assert [
        said[said.index("queries ↓") + 1 :][n] for n in range(4)
    ] == "0–7 8–15 16–23 24–31".split()
    assert "8×4" in said
    assert "block 2" in said


def test_arrows_end_where_they_are_told():
    line, tip = arrow((0, 0), (0, 10), (20, 10))
    assert 'd="M0 0V10H20"' in line
    assert re.search(r'd="M20 10L13 6\.5L13 13\.5z"', tip)
    assert len(arrow((0, 0), (5, 5), head=False)) == 1


def test_parts_of_a_matrix():
    at = Matrix(10, 20, (3, 4), "key", cell=(5, 2))
    part = at.part(slice(1, None), slice(-1, None))
    assert (part.left, part.top, part.right, part.bottom) == (25, 22, 30, 26)
    assert (at.center, at.middle, at.right, at.bottom) == (20, 23, 30, 26)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: qkv("a b c d"), "x: expected .*got shape"),
        (lambda: qkv(width=6), "x: expected .*got shape"),
        (lambda: qkv(head=4), "w_query: expected .*got shape"),
        (
            lambda: diagrams.queries_keys_values(*torch.ones(4, 1, 1), words=["a", "b"]),
            "words: expected .*got 2",
        ),
        (lambda: products(1), "query: expected .*got shape"),
        (lambda: products(5), "query: expected .*got shape"),
        (lambda: products(keys=6), "key: expected .*got shape"),
        (lambda: products(dv=3), "value: expected .*got shape"),
        (lambda: heads(6), "x: expected .*got shape"),
        (
            lambda: diagrams.heads_split_and_joined(MultiHeadAttention(8, 4), torch.ones(1, 4, 8)),
            "layer: expected .*got 4 heads",
        ),
        (lambda: masks("a b c d e"), "encoder: expected .*got shape"),
        (lambda: diagrams.masks_by_use({}, source=["a"], target=["b"]), "masks: expected .*got"),
        (lambda: cache([["a"]] * 5), "chunks: expected .*got 5"),
        (lambda: cache([["a"] * 9]), "capacity: expected .*got 9"),
        (lambda: tiles(40), "rows and columns: expected .*got 5 blocks"),
        (lambda: tiles(block=4), "block: expected .*got 4"),
        (lambda: tiles(rows=0), "rows: expected .*got 0"),
    ],
)
def test_what_can_not_be_drawn_is_refused(make, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        make()


# ------------------------------------------------------------------------------------ in the chapters


def stored():
    """Every diagram of every chapter, with its cell."""
    for path in CHAPTERS:
        for n, cell in enumerate(nbformat.read(path, as_version=4).cells):
            for output in cell.get("outputs", []):
                html = output.get("data", {}).get("text/html", "")
                if "tt-diagram" in html:
                    yield path, n, cell, html


def test_chapters_show_each_diagram_with_a_caption_and_a_label():
    found = {}
    for path, n, cell, html in stored():
        root, chapter = ET.fromstring(html), path.stem
        assert root.get("aria-label"), (chapter, n)
        figure = cell.metadata.mystnb.figure
        assert figure.caption
        assert figure.name.startswith(f"fig-ch{chapter[:2]}-")
        text = json.dumps(nbformat.read(path, as_version=4))
        assert f"{{numref}}`{figure.name}`" in text, f"nothing in {chapter} names {figure.name}"
        found.setdefault(chapter[:2], []).append(root.get("aria-label").split(".")[0])
    assert found == {
        "01": ["Queries, keys and values", "Scaled dot product attention"],
        "04": ["Three masks of a translator"],
        "05": ["Heads split and joined"],
        "07": ["Post-norm and pre-norm"],
        "09": ["The Transformer", "Three masks of a translator"],
        "11": ["The key/value cache, step by step"],
        "13": ["A block of GPT-2 and a block of Llama"],
        "15": ["The tiles of FlashAttention"],
        "16": ["Four ways to cache keys and values", "A YOCO of 32 layers"],
    }
