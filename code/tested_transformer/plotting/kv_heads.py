"""Four layers side by side: which keys and values their query heads read, and what is cached (chapter 16)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from ..bounds import AtMost, Divides, PositiveInt
from ..shapes import checked
from .diagram import LINE, Diagram, Place, arrow, box, note

WIDTH = 180  # of a panel
SECOND = 138  # where the second row of panels begins


@checked
def kv_heads(
    num_heads: Annotated[PositiveInt, AtMost(16)],
    num_kv_heads: Annotated[PositiveInt, Divides("num_heads")],
) -> Diagram:
    """Draw the heads of MHA, GQA, MQA and MLA. What is cached has a solid edge, what is computed a dashed one.

    Raises: TypeError or ValueError that name the argument.
    Source: Ainslie et al. 2023 for the first three; DeepSeek-AI 2024 (DeepSeek-V2), section 2.1, for MLA.
    """
    parts, told = [], []
    layers = (("MHA", num_heads), ("GQA", num_kv_heads), ("MQA", 1), ("MLA", num_heads))
    for n, (name, count) in enumerate(layers):
        left, top = 10 + n % 2 * 200, n // 2 * SECOND
        latent = name == "MLA"
        cached = "1 latent, 1 rotary key" if latent else _counted(count)
        parts += _panel(left, top, name, cached, num_heads, count, latent)
        told.append(
            f"{name}: {num_heads} query heads, {count} KV head{'s' * (count > 1)}; cached: {cached}."
        )
    bottom = SECOND + 160
    parts.append(note(10, bottom + 14, "Dashed: not cached, but computed from the latent."))
    return Diagram("Four ways to cache keys and values", " ".join(told), bottom + 22, parts)


def _counted(count: int) -> str:
    """How many keys and values.

    >>> _counted(1)
    '1 key, 1 value'
    """
    s = "s" * (count > 1)
    return f"{count} key{s}, {count} value{s}"


def _panel(
    left: float, top: float, name: str, cached: str, num_heads: int, count: int, latent: bool
) -> list[str]:
    """One layer: its query heads above, its KV heads below, and in MLA the latent below those."""
    queries = _row(left, top + 24, 20, num_heads)
    keys, values = _row(left, top + 76, 18, count), _row(left, top + 96, 18, count)
    edge = "box dashed edge" if latent else "box edge"
    parts = [note(left, top + 14, name, kind="strong")]
    parts.append(note(left + WIDTH, top + 14, cached, at="end"))
    parts += [place.frame("box edge query") for place in queries]
    for h, query in enumerate(queries):
        key = keys[h * count // num_heads]
        parts += arrow((query.center, query.bottom), (key.center, key.top), head=False)
    parts += [place.frame(f"{edge} key") for place in keys]
    parts += [place.frame(f"{edge} value") for place in values]
    if latent:
        one = Place(left + 30, top + 134, WIDTH - 60, 2 + LINE)
        parts += box(one, "latent", "box edge output")
        for value in values:
            parts += arrow((one.center, one.top), (value.center, value.bottom), head=False)
    return parts


def _row(left: float, top: float, height: float, count: int) -> Sequence[Place]:
    """Boxes side by side, together as wide as a panel."""
    gap = 6
    width = min(32.0, (WIDTH - gap * (count - 1)) / count)
    start = left + (WIDTH - count * width - gap * (count - 1)) / 2
    return [Place(start + n * (width + gap), top, width, height) for n in range(count)]
