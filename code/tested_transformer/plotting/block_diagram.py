"""A block of GPT-2 beside a block of Llama: the same drawing, and five things in it that differ (chapter 13)."""

from __future__ import annotations

from typing import NamedTuple

from ..bounds import PositiveInt
from ..shapes import checked
from .diagram import LINE, Diagram, Place, arrow, note


class Parts(NamedTuple):
    """What a model is made of, in words."""

    name: str
    embeddings: str
    norm: str
    attention: tuple[str, ...]
    feed_forward: tuple[str, ...]
    biases: str


@checked
def gpt2_and_llama(num_heads: PositiveInt, num_kv_heads: PositiveInt) -> Diagram:
    """Draw one block of each model; what the second changes is in a color of its own.

    Raises: TypeError or ValueError for numbers of heads that are no counts.
    Source: Radford et al. 2019, section 2.3; Touvron et al. 2023, section 2.2.
    """
    both = (
        Parts("GPT-2", "tokens + positions", "LayerNorm",
              ("no rotation", f"{num_heads} KV heads"), ("GELU",), "biases"),
        Parts("Llama", "tokens", "RMSNorm",
              ("rotated q and k", f"{num_kv_heads} KV heads"), ("SwiGLU",), "no biases"),
    )  # fmt: skip
    columns = [_column(left, model) for left, model in zip((8, 212), both, strict=True)]
    told = " ".join(
        f"{m.name}: {m.embeddings} go into the residual stream; {m.norm}, attention with {' and '.join(m.attention)}, and a "
        f"sum; {m.norm}, a feed-forward network with {m.feed_forward[0]}, and a sum; at the end of the stack one more "
        f"{m.norm}; the linear layers have {m.biases}."
        for m in both
    )
    return Diagram(
        "A block of GPT-2 and a block of Llama", told, columns[0][1] + 8, columns[0][0] + columns[1][0]
    )  # fmt: skip


def _column(left: float, model: Parts) -> tuple[list[str], float]:
    """A model from its embeddings down to its last norm, and where that ends."""
    lane, top = left + 18, Place(left, 28, 180, 30)
    parts = [note(top.center, 16, model.name, at="middle", kind="strong"), top.frame("box")]
    parts.append(_changed(top.center, top.middle + 5, model.embeddings))
    y = top.bottom
    for name, details, color in (
        ("attention", model.attention, "query"),
        ("feed-forward", model.feed_forward, "key"),
    ):
        more, y = _sublayer(lane, y, name, details, model.norm, color)
        parts += more
    last = Place(left, y + 22, 108, 30)
    parts += [*arrow((lane, y), (lane, last.top), kind="line thick"), last.frame("box edge value")]
    parts.append(_changed(last.center, last.middle + 5, model.norm))
    parts += [note(last.left, last.bottom + LINE, "linear layers:"),
              _changed(last.left + 92, last.bottom + LINE, model.biases, at="start")]  # fmt: skip
    return parts, last.bottom + LINE + 4


def _sublayer(
    lane: float, y: float, name: str, details: tuple[str, ...], norm: str, color: str
) -> tuple[list[str], float]:
    """A norm and what it feeds beside the residual stream, and the sum where that comes back."""
    first = Place(lane + 30, y + 26, 132, 30)
    second = Place(first.left, first.bottom + 16, 132, 28 + LINE * len(details))
    plus = second.bottom + 24
    parts = arrow((lane, y), (lane, plus - 9), kind="line thick")
    parts += arrow((lane, y + 12), (first.center, y + 12), (first.center, first.top))
    parts += [first.frame("box edge value"), _changed(first.center, first.middle + 5, norm)]
    parts += arrow((first.center, first.bottom), (first.center, second.top))
    parts.append(second.frame(f"box edge {color}"))
    parts.append(note(second.center, second.top + 18, name, at="middle", kind=""))
    for n, detail in enumerate(details, start=1):
        parts.append(_changed(second.center, second.top + 18 + LINE * n, detail))
    parts += arrow((second.center, second.bottom), (second.center, plus), (lane + 9, plus))
    parts.append(f'<circle class="line" cx="{lane:g}" cy="{plus:g}" r="9"/>')
    parts += arrow((lane - 5, plus), (lane + 5, plus), head=False)
    parts += arrow((lane, plus - 5), (lane, plus + 5), head=False)
    return parts, plus + 9


def _changed(x: float, y: float, text: str, at: str = "middle") -> str:
    """Words in which the two models differ."""
    return note(x, y, text, at=at, kind="word output small strong")
