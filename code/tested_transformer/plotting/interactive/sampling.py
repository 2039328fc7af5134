"""Sampling: what temperature, top-k and top-p make of one distribution over words."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import torch
from jaxtyping import Float
from torch import Tensor

from ...bounds import PositiveInt
from ...errors import argument_error
from ...generation.sampling import Sampling
from ...shapes import checked
from .settings import Choice, Setting, SettingsPicture, Slots

TEMPERATURES = (0.0, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 4.0)
TOP_K = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, None)
TOP_P = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, None)
LEFT, ROOM, PITCH, TOP = 70, 236, 22, 4  # of the bars


@checked
def sampling_sliders(
    logits: Float[Tensor, " V"],
    words: Sequence[str],
    *,
    shown: PositiveInt = 12,
    start: tuple[int, int, int] = (4, 10, 11),
) -> SettingsPicture:
    """Slide temperature, top-k and top-p: what `Sampling` leaves of one distribution.

    The likeliest words have a row each; the others share one. A word that is ruled out keeps a
    hatched bar: what it has at that temperature without filters. A temperature of 0 takes the
    likeliest word. Computed in float64.

    shown: how many words have a row of their own. start: the places among TEMPERATURES, TOP_K and
    TOP_P; by default a temperature of 1 and no filter.

    Shapes: logits (V), a word for each.
    Raises: TypeError or ValueError that name the argument.
    Source: chapter 11.
    """
    if len(words) != len(logits):
        raise argument_error(
            ValueError, "words", f"{len(words)} words", f"{len(logits)}, one a score"
        )
    if shown >= len(logits):
        raise argument_error(ValueError, "shown", shown, f"fewer than the {len(logits)} words")
    order = logits.double().argsort(descending=True, stable=True)
    ordered, names = logits.double()[order], [words[n] for n in order[:shown].tolist()]

    def fill(choice: Choice) -> dict[str, str]:
        temperature, top_k, top_p = (
            values[place]
            for values, place in zip((TEMPERATURES, TOP_K, TOP_P), choice, strict=True)
        )
        before = chances(Sampling(temperature), ordered)
        after = chances(Sampling(temperature, top_k=top_k, top_p=top_p), ordered)
        stays = after > 0
        filled = {
            "stay": str(int(stays.sum())),
            "had": f"{before[stays].sum().item():.3f}",
            "top": f"{after[0].item():.3f}",
        }
        for j in range(shown + 1):
            some = slice(j, j + 1 if j < shown else None)
            filled[f"before {j}"] = f"{before[some].sum().item():.3f}"
            filled[f"after {j}"] = f"{after[some].sum().item():.3f}" if stays[some].any() else "cut"
        return filled

    rest = f"{len(words) - shown} others"
    return SettingsPicture(
        "The probability of each next word",
        [
            Setting("temperature", labels(TEMPERATURES), start=start[0]),
            Setting("top-k", labels(TOP_K), start=start[1]),
            Setting("top-p", labels(TOP_P), start=start[2]),
        ],
        fill,
        name="sampling",
        size=(360, TOP + PITCH * (shown + 1) + 2),
        draw=lambda slots: bars(slots, [*names, rest]),
        words=lambda slots: (
            f"Words that stay: {slots.text('stay', 'span')} of {len(words)}. Their share of the "
            f"probability was {slots.text('had', 'span')}; now it is all, and "
            f"“{escape(names[0])}” has {slots.text('top', 'span')}."
        ),
        table=lambda slots: rows(slots, [*names, rest]),
    )


def chances(sampling: Sampling, logits: Float[Tensor, " V"]) -> Float[Tensor, " V"]:
    """The probability with which each word is drawn; exactly 0 if it is ruled out."""
    nothing = torch.zeros(1, 0, dtype=torch.long)
    if sampling.temperature == 0:
        word = sampling.choose(logits[None], nothing)
        return torch.nn.functional.one_hot(word, len(logits))[0].to(logits)
    return sampling.shape(logits[None], nothing).softmax(-1)[0]


def labels(values: Sequence[float | None]) -> tuple[str, ...]:
    """How a slider calls its values; None rules nothing out."""
    return tuple("off" if value is None else f"{value:g}" for value in values)


def bars(slots: Slots, names: Sequence[str]) -> str:
    """A row for each word: its bar, or a hatched one for what it had before it was ruled out."""
    parts = []
    for j, word in enumerate(names):
        y = TOP + PITCH * j
        parts += [
            f'<g transform="translate({LEFT} {y + 9})"><text x="{-LEFT}" y="5">{escape(word)}</text>',
            slots.shape(f"before {j}", "line", "x2", ROOM, kind="hatch"),
            slots.shape(f"after {j}", "rect", "width", ROOM, y=-7, height=14, kind="b"),
            slots.text(f"after {j}", kind="end", x=ROOM + 52, y=5) + "</g>",
        ]
    return "".join(parts)


def rows(slots: Slots, names: Sequence[str]) -> str:
    """What each word has before and after words are ruled out."""
    body = "".join(
        f'<tr><th scope="row">{escape(word)}</th>'
        + slots.text(f"before {j}", "td")
        + slots.text(f"after {j}", "td")
        + "</tr>"
        for j, word in enumerate(names)
    )
    head = (
        '<td></td><th scope="col">at this temperature</th><th scope="col">after top-k, top-p</th>'
    )
    return f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
