"""The scale: what dividing by the root of d does to the weights, and to the softmax's derivative."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from jaxtyping import Float
from torch import Tensor

from ...errors import argument_error, shape_of
from ...functional.scaling import perplexity, scaled_scores, softmax, softmax_jacobian
from ...shapes import checked
from .settings import Choice, Setting, SettingsPicture, Slots

WAYS = {"bare": "a", "scaled": "b"}  # and the class of its color
LEFT, ROOM = {"bare": 68, "scaled": 222}, 92  # of the bars
TOP, PITCH = 40, 19  # of the rows
PLOT, TALL = 296, 84  # width and height of the curves; they stand 46 below the rows
HIGHEST = 0.5  # the largest norm that a softmax's Jacobian can have: two weights of one half


@checked
def scale_slider(
    query: Float[Tensor, "L d"],
    key: Float[Tensor, "S d"],
    queries: Sequence[str],
    keys: Sequence[str],
    *,
    start: tuple[int, int] = (0, 0),
) -> SettingsPicture:
    """Slide the head dimension from 1 to d: the weights of a query, and how far they answer to scores.

    For a head dimension of n the first n entries of query and keys count. Beside the weights stand the
    effective number of keys (`perplexity`) and the norm of `softmax_jacobian`, both unscaled and divided by the
    root of n; all in float64. queries, keys: the words. start: the power of 2 and the query.

    Shapes: query (L, d), key (S, d); head dimensions are the powers of 2 up to d.
    Raises: TypeError or ValueError that name the argument.
    Source: chapter 3.
    """
    for name, tensor, words in (("query", query, queries), ("key", key, keys)):
        if len(words) != len(tensor) or not words:
            names = {"query": "queries", "key": "keys"}[name]
            raise argument_error(
                ValueError, names, f"{len(words)} words", f"{len(tensor)}, at least 1"
            )
    if query.shape[1] < 2:
        raise argument_error(ValueError, "query", f"shape {shape_of(query)}", "d of at least 2")
    sizes = [2**n for n in range(query.shape[1].bit_length())]
    found = {
        way: [weights_of(query[:, :d], key[:, :d], way) for d in sizes] for way in WAYS
    }  # for each way and size: L S

    def fill(choice: Choice) -> dict[str, str]:
        at, row = choice
        filled = {"root": root(sizes[at]), "size": str(sizes[at]), "query": queries[row]}
        for way, grids in found.items():
            weights = grids[at][row]
            filled |= {f"{way} {j}": f"{w:.2f}" for j, w in enumerate(weights.tolist())}
            filled[f"{way} seen"] = f"{perplexity(weights).item():.1f}"
            filled[f"{way} norm"] = f"{norm_of(weights):.3f}"
            norms = [norm_of(grid[row]) for grid in grids]
            filled[f"{way} curve"] = " ".join(map(point, range(len(sizes)), norms))
            filled[f"{way} dot"] = f"translate({point(at, norms[at])})"
        return filled

    def point(place: int, norm: float) -> str:
        x = 40 + place * PLOT / (len(sizes) - 1)
        return f"{x:.0f} {TOP + PITCH * len(keys) + 46 + TALL * (1 - norm / HIGHEST):.1f}"

    def draw(slots: Slots) -> str:
        return bars(slots, keys) + curves(slots, sizes, TOP + PITCH * len(keys) + 46)

    return SettingsPicture(
        "The weights of a query, and the norm of the softmax's Jacobian, by head dimension",
        [
            Setting("head dimension d", tuple(map(str, sizes)), start=start[0]),
            Setting("query", tuple(queries), kind="list", start=start[1]),
        ],
        fill,
        name="scale",
        size=(360, TOP + PITCH * len(keys) + 46 + TALL + 34),
        draw=draw,
        words=sentence,
        table=lambda slots: rows(slots, keys),
    )


def weights_of(query: Tensor, key: Tensor, way: str) -> Tensor:
    """The weights in float64, of bare or of scaled products."""
    scale = 1.0 if way == "bare" else None
    return softmax(scaled_scores(query.double(), key.double(), scale=scale))


def norm_of(weights: Tensor) -> float:
    """The Frobenius norm of the softmax's Jacobian."""
    return softmax_jacobian(weights).norm().item()


def root(size: int) -> str:
    """√64 = 8."""
    exact = math.isqrt(size) ** 2 == size
    return f"√{size} {'=' if exact else '≈'} {math.sqrt(size):.{0 if exact else 1}f}"


def bars(slots: Slots, keys: Sequence[str]) -> str:
    """A row for each key, with a bar and a number for each way."""
    parts = [
        '<text class="tt-a tt-strong" x="68" y="14">unscaled</text>'
        '<text class="tt-b tt-strong" x="222" y="14">divided by</text>',
        slots.text("root", kind="b tt-strong", x=222, y=30),
    ]
    for j, word in enumerate(keys):
        y = TOP + PITCH * j
        parts.append(f'<text x="0" y="{y + 12}">{escape(word)}</text>')
        for way, color in WAYS.items():
            place = {"x": LEFT[way], "y": y + 2, "height": 12, "kind": color}
            parts.append(slots.shape(f"{way} {j}", "rect", "width", ROOM, **place))
            end = {"x": LEFT[way] + ROOM + 40, "y": y + 12, "kind": "end"}
            parts.append(slots.text(f"{way} {j}", **end))
    return "".join(parts)


def curves(slots: Slots, sizes: Sequence[int], top: int) -> str:
    """The norm of the Jacobian over the head dimension, with a mark at the size that is chosen."""
    low = top + TALL
    parts = [
        f'<text class="tt-strong" x="0" y="{top - 18}">Norm of the Jacobian</text>',
        f'<path class="tt-line" d="M34 {top}V{low}H344"/>',
        *(
            f'<text class="tt-small tt-end" x="30" y="{low - TALL * share + 4:g}">{share / 2:g}</text>'
            for share in (0, 1)
        ),
        *(
            f'<text class="tt-small tt-mid" x="{40 + n * PLOT / (len(sizes) - 1):.0f}" '
            f'y="{low + 14}">{size}</text>'
            for n, size in enumerate(sizes)
        ),
        f'<text class="tt-small tt-mid" x="188" y="{low + 29}">head dimension d</text>',
    ]
    marks = {
        "bare": ("rect", 'x="-5" y="-5" width="10" height="10"'),
        "scaled": ("circle", 'r="6"'),
    }
    for way, color in WAYS.items():
        dashes = ' stroke-dasharray="5 3"' if way == "bare" else ""
        line = slots.shape(f"{way} curve", "polyline", "points", kind=f"curve tt-{color}")
        parts.append(line.replace("<polyline", f"<polyline{dashes}"))
        tag, shape = marks[way]
        mark = f'<{tag} class="tt-{color}" {shape}/></g>'
        parts.append(f"{slots.shape(f'{way} dot', 'g', 'transform')[:-2]}>{mark}")
        x = {"bare": 200, "scaled": 288}[way]
        parts.append(f'<g transform="translate({x} {top - 22})">{mark}')
        parts.append(slots.text(f"{way} norm", kind=f"{color} tt-strong", x=x + 12, y=top - 18))
    return "".join(parts)


def sentence(slots: Slots) -> str:
    """What the picture shows, in words."""

    def part(way: str) -> str:
        seen, norm = (slots.text(f"{way} {name}", "span") for name in ("seen", "norm"))
        return f"{seen} effective keys, norm of the Jacobian {norm}"

    size, query, by = (slots.text(name, "span") for name in ("size", "query", "root"))
    return (
        f"Head dimension {size}, query {query}. Unscaled: {part('bare')}. "
        f"Divided by {by}: {part('scaled')}."
    )


def rows(slots: Slots, keys: Sequence[str]) -> str:
    """The weights, the effective keys and the norms."""
    names = [(escape(word), str(j)) for j, word in enumerate(keys)]
    names += [("effective keys", "seen"), ("norm of the Jacobian", "norm")]
    body = "".join(
        f'<tr><th scope="row">{word}</th>'
        + "".join(slots.text(f"{way} {name}", "td") for way in WAYS)
        + "</tr>"
        for word, name in names
    )
    head = '<td></td><th scope="col">unscaled</th><th scope="col">divided</th>'
    return f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
