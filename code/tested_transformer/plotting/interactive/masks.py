"""Masks: switch padding, causal and window on and off, and see what the softmax makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import torch
from jaxtyping import Float
from torch import Tensor

from ...bounds import PositiveInt
from ...errors import argument_error, shape_of
from ...functional.masks import (
    causal_mask,
    combine_masks,
    masked_softmax,
    padding_mask,
    window_mask,
)
from ...shapes import checked
from .settings import Choice, Setting, SettingsPicture, Slots

LEFT, TOP, CELL = 62, 26, 42  # the grid's corner, and the side of a cell
SHADE = 0.6  # opacity of a weight of 1, so that its number stays readable


@checked
def mask_switches(
    scores: Float[Tensor, "L L"],
    words: Sequence[str],
    *,
    length: PositiveInt,
    start: tuple[int, int, int, int] = (0, 0, 0, 1),
) -> SettingsPicture:
    """Switch masks on and off: the weights that `masked_softmax` makes of the same scores.

    Every combination of padding (words from `length` on), causal and a window of each width;
    float64. Pointing at a row says which words the query may see. start: padding, causal, window
    (0 or 1 each) and the place of the window's width, which begins at 1.

    Shapes: scores (L, L), a word for each row.
    Raises: TypeError or ValueError that name the argument.
    Source: chapter 4.
    """
    size = len(words)
    if tuple(scores.shape) != (size, size) or size < 3:
        wanted = f"({size}, {size}), a row for each of at least 3 words"
        raise argument_error(ValueError, "scores", f"shape {shape_of(scores)}", wanted)
    if length > size:
        raise argument_error(ValueError, "length", length, f"at most {size}, the number of words")

    def fill(choice: Choice) -> dict[str, str]:
        allowed = allowed_by(choice, size, length)
        weights = masked_softmax(scores.double(), allowed)
        filled = {"pairs": str(int(allowed.sum())), "empty": empty_rows(allowed, words)}
        for i, (may, row) in enumerate(zip(allowed.tolist(), weights.tolist(), strict=True)):
            for j in range(size):
                filled[f"{i} {j}"] = f"{row[j]:.2f}" if may[j] else ""
            filled[f"sum {i}"] = f"{sum(row):.2f}" if any(may) else "0.00"
            filled[f"ring {i}"] = "tt-ring" if any(may) else "tt-ring tt-empty"
            filled[f"says {i}"] = sentence(words, i, may, row)
        return filled

    return SettingsPicture(
        "Weights of attention, a row for each query and a column for each key",
        [
            Setting("hide padding", ("off", "on"), kind="switch", start=start[0]),
            Setting("causal", ("off", "on"), kind="switch", start=start[1]),
            Setting("window", ("off", "on"), kind="switch", start=start[2]),
            Setting("window’s width", tuple(map(str, range(1, size))), start=start[3], needs=2),
        ],
        fill,
        name="masks",
        size=(LEFT + CELL * size + 46, TOP + CELL * size + 2),
        draw=lambda slots: grid(slots, words),
        words=lambda slots: (
            f"{slots.text('pairs', 'span')} of {size**2} pairs may attend. "
            f"{slots.text('empty', 'span')}"
        ),
        table=lambda slots: rows(slots, words),
    )


def allowed_by(choice: Choice, size: int, length: int) -> Tensor:
    """The masks that are switched on, joined; (L, L)."""
    padding, causal, window, width = choice
    joined = combine_masks(
        padding_mask(torch.tensor([length]), size, heads=False)[0] if padding else None,
        causal_mask(size) if causal else None,
        window_mask(size, window=width + 1) if window else None,
    )
    everything = torch.ones(size, size, dtype=torch.bool)
    return everything if joined is None else joined.expand(size, size)


def empty_rows(allowed: Tensor, words: Sequence[str]) -> str:
    """Which queries are fully masked."""
    count = int((~allowed.any(-1)).sum())
    if not count:
        return "Every query has a key left, and its weights sum to 1."
    rows = "One row is" if count == 1 else f"{count} rows are"
    return f"{rows} fully masked: the formula is 0/0 there, and the package gives zeros."


def sentence(words: Sequence[str], i: int, may: list[bool], row: list[float]) -> str:
    """What a query may attend to, in words."""
    who = f"{called(words, i)} may attend to "
    seen = [f"{called(words, j)} ({row[j]:.2f})" for j in range(len(words)) if may[j]]
    return who + (
        ", ".join(seen) + "." if seen else "nothing: a fully masked row, all weights are 0."
    )


def called(words: Sequence[str], place: int) -> str:
    """A word, with a number where it comes more than once."""
    word = words[place]
    return word if words.count(word) == 1 else f"{word} {words[: place + 1].count(word)}"


def grid(slots: Slots, words: Sequence[str]) -> str:
    """A row for each query: cells with their weights, crossed where hidden, and their sum."""
    end = LEFT + CELL * len(words)
    parts = [
        f'<text class="tt-small tt-mid" x="{LEFT + CELL * (j + 0.5):g}" y="18">'
        f"{escape(called(words, j))}</text>"
        for j in range(len(words))
    ]
    parts.append(f'<text class="tt-small tt-mid" x="{end + 24}" y="18">sum</text>')
    ring = {"x": 1, "y": 1, "width": end + 44, "height": CELL - 2, "rx": 3}
    for i in range(len(words)):
        cells = "".join(cell(slots, f"{i} {j}", LEFT + CELL * j) for j in range(len(words)))
        parts.append(
            f'<g class="tt-row" data-says="{slots.numbers[f"says {i}"]}" '
            f'transform="translate(0 {TOP + CELL * i})">'
            f"{slots.shape(f'ring {i}', 'rect', 'class', **ring)}"
            f'<text x="5" y="26">{escape(called(words, i))}</text>{cells}'
            f"{slots.text(f'sum {i}', kind='small tt-mid', x=end + 24, y=25)}</g>"
        )
    return "".join(parts)


def cell(slots: Slots, name: str, x: int) -> str:
    """One weight: its shade, its number, and a line across where it is hidden."""
    inside, far = CELL - 8, CELL - 4
    box = {"x": 4, "y": 4, "width": inside, "height": inside}
    return (
        f'<g transform="translate({x} 0)">'
        f"{slots.shape(name, 'rect', 'fill-opacity', SHADE, **box)}"
        f"{slots.text(name, x=CELL // 2, y=25)}"
        f'<path d="M4 {far}L{far} 4"/></g>'
    )


def rows(slots: Slots, words: Sequence[str]) -> str:
    """The weights; a hidden one is left out."""
    head = "".join(f'<th scope="col">{escape(called(words, j))}</th>' for j in range(len(words)))
    body = "".join(
        f'<tr><th scope="row">{escape(called(words, i))}</th>'
        + "".join(slots.text(f"{i} {j}", "td") for j in range(len(words)))
        + slots.text(f"sum {i}", "td")
        + "</tr>"
        for i in range(len(words))
    )
    head += '<th scope="col">sum</th>'
    return f"<thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody>"
