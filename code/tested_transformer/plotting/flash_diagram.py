"""FlashAttention as a diagram: who visits which tile, what is in shared memory, what is kept."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from ..bounds import PositiveInt
from ..errors import argument_error
from ..functional.backends import tiled
from ..functional.inputs import AttentionInputs
from ..functional.online_softmax import empty_state, merge, partial_softmax, tiles
from ..shapes import checked
from .diagram import LINE, TINT, Diagram, Matrix, Place, arrow, note, notes

MOST = 4  # blocks, and tiles: more do not fit


class Visit(NamedTuple):
    """A tile that a block of queries meets: its keys, and whether some of them are hidden."""

    columns: slice
    masked: bool


@checked
def tiles_visited(
    call: AttentionInputs, rows: PositiveInt, columns: PositiveInt
) -> list[tuple[slice, list[Visit]]]:
    """The blocks of queries of the backend "tiled", each with the tiles that it visits, in order.

    Raises: TypeError or ValueError for sizes that are no counts.
    """
    grid = tiled.Grid(call, tiled.Tiling(queries=rows, keys=columns), 0)
    return [
        (
            block.rows,
            [Visit(tile.columns, any(True for _ in tile.hidden())) for tile in grid.tiles(block)],
        )
        for block in grid.blocks()
    ]


def flash_tiles(
    query: Float[Tensor, "1 L d"],
    key: Float[Tensor, "1 S d"],
    value: Float[Tensor, "1 S dv"],
    *,
    rows: int,
    columns: int,
    block: int,
) -> Diagram:
    """Draw causal attention in tiles: who visits which, what is in shared memory, what is kept.

    The blocks and tiles are those of the backend "tiled". The running maximum and sum are those of
    the last query of one block.

    Shapes: query (1, L, d), key (1, S, d), value (1, S, dv), with up to 4 blocks and 4 tiles.
    Raises: ValueError for more than fits, or a block that there is not.
    Source: Dao 2023, algorithm 1.
    """
    scale = query.shape[-1] ** -0.5
    call = AttentionInputs(query, key, value, scale, causal=True)
    visits, visited = tiles_visited(call, rows, columns), list(tiles(key.shape[1], columns))
    if max(len(visits), len(visited)) > MOST:
        came = f"{len(visits)} blocks and {len(visited)} tiles"
        raise argument_error(
            ValueError, "rows and columns", came, f"sizes that make {MOST} at most"
        )
    if block not in range(len(visits)):
        raise argument_error(ValueError, "block", block, f"a number from 0 to {len(visits) - 1}")
    grid, y = _score_tiles(visits, visited, block)
    memory, y = _fast_memory(y + 14, call, visits[block][0], columns)
    states = running(call, *visits[block])
    last = visits[block][0].stop - 1
    parts = [*grid, *memory, *_table(y + 24, last, states)]
    told = _told([len(seen) for _, seen in visits], rows, columns, last, states)
    return Diagram("The tiles of FlashAttention", told, y + 36 + LINE * len(states), parts)


def _told(
    counts: list[int], rows: int, columns: int, last: int, states: list[tuple[int, float, float]]
) -> str:
    """The picture in words."""
    kept = "; ".join(f"after tile {n}, m is {m:.2f} and ℓ is {total:.2f}" for n, m, total in states)
    return (
        f"Each row of tiles is a block of {rows} queries, each column a tile of {columns} keys and "
        f"values. From left to right the blocks visit {', '.join(map(str, counts))} tiles, up to the "
        "diagonal, and skip the rest. In shared memory are the block of queries, one tile of keys, of "
        "values and of scores, and for each query the output so far o, the maximum m and the sum ℓ. "
        f"For query {last}: {kept}."
    )


def _score_tiles(
    visits: list[tuple[slice, list[Visit]]], tiles: list[slice], block: int
) -> tuple[list[str], float]:
    """Blocks of queries on the left, tiles of keys and values above, and the scores between them."""
    parts = [note(112, 16, "inner loop: tiles of keys, values →")]
    parts += notes(2, 30, "outer loop:", "blocks of", "queries ↓")
    for y, name in ((26, "key"), (48, "value")):
        at = Matrix(112, y, (1, len(tiles)), name, cell=(46, 20))
        parts += at.draw(words=[[between(tile) for tile in tiles]] if name == "key" else None)
        parts.append(note(at.right + 8, at.middle + 5, name, kind=f"word {name}"))
    queries = Matrix(56, 76, (len(visits), 1), "query", cell=(50, 36))
    parts += queries.draw(words=[[between(at)] for at, _ in visits])
    scores = Matrix(112, 76, (len(visits), len(tiles)), "plain", cell=(46, 36))
    for n, (_, visited) in enumerate(visits):
        for m in range(len(tiles)):
            place = scores.part(slice(n, n + 1), slice(m, m + 1))
            parts += _score_tile(place, visited[m : m + 1], str(m) if n == block else "")
    parts.append(queries.part(slice(block, block + 1)).frame("chosen edge query"))
    parts.append(note(scores.right + 8, scores.top + 36 * block + 22, f"block {block}"))
    legend = "shaded: computed; with a stroke: some keys hidden;", "dashed: skipped, all are hidden"
    return [*parts, *notes(4, scores.bottom + 20, *legend)], scores.bottom + 42


def _score_tile(place: Place, visited: list[Visit], number: str) -> list[str]:
    """A tile of the scores: skipped, or computed, with its number for the block that is shown."""
    if not visited:
        return [place.frame("dashed")]
    parts = [place.shade("plain", 0.3 if number else TINT), place.frame()]
    if visited[0].masked:
        parts += arrow((place.left, place.top), (place.right, place.bottom), head=False)
    return [*parts, note(place.left + 8, place.bottom - 6, number)] if number else parts


def between(places: slice) -> str:
    """The first and the last of some places.

    >>> between(slice(8, 16))
    '8–15'
    """
    return f"{places.start}–{places.stop - 1}"


def _fast_memory(
    top: float, call: AttentionInputs, rows: slice, columns: int
) -> tuple[list[str], float]:
    """What is in shared memory while a block of queries meets a tile."""
    length, d, dv = rows.stop - rows.start, call.query.shape[-1], call.value.shape[-1]
    held = [
        ("query", "query", (length, d)), ("key", "key", (columns, d)), ("value", "value", (columns, dv)),
        ("scores", "plain", (length, columns)), ("o", "output", (length, dv)),
        ("m", "plain", (length, 1)), ("ℓ", "plain", (length, 1)),
    ]  # fmt: skip
    parts = [
        Place(2, top, 396, 144).frame("dashed"),
        note(12, top + 20, "in shared memory", kind="strong"),
    ]
    for n, (name, kind, size) in enumerate(held):
        center = (36, 92, 148, 212, 272, 322, 368)[n]
        at = Matrix(center - 3 * size[1], top + 52, size, kind, cell=6)
        parts += at.draw()
        word = f"word {kind}"
        parts.append(note(center, top + 118, name, at="middle", kind=word))
        parts.append(note(center, top + 136, "×".join(map(str, size)), at="middle"))
    for center, text in ((36, "once"), (120, "each tile"), (212, "forgotten"), (320, "kept")):
        parts.append(note(center, top + 44, text, at="middle"))
    return parts, top + 144


def running(
    call: AttentionInputs, rows: slice, visited: list[Visit]
) -> list[tuple[int, float, float]]:
    """After each tile: its number, and the maximum and the sum of the block's last query so far.

    Under a causal mask that query sees every key of the tiles that its block visits.
    """
    last = slice(rows.stop - 1, rows.stop)
    scores = call.query[0, last] @ call.key[0].mT * call.scale
    state, states = empty_state(scores, call.value.shape[-1]), []
    for n, visit in enumerate(visited):
        state = merge(
            state, partial_softmax(scores[:, visit.columns], call.value[0, visit.columns])
        )
        states.append((n, state.maximum.item(), state.total.item()))
    return states


def _table(y: float, query: int, states: list[tuple[int, float, float]]) -> list[str]:
    """The running maximum and sum, a line for each tile."""
    parts = [note(12, y, f"query {query}"), note(200, y, "maximum m", at="end"),
             note(310, y, "sum ℓ", at="end")]  # fmt: skip
    for line, (n, maximum, total) in enumerate(states, start=1):
        parts.append(note(12, y + LINE * line, f"after tile {n}"))
        for x, number in ((200, maximum), (310, total)):
            parts.append(note(x, y + LINE * line, f"{number:.2f}", at="end"))
    return parts
