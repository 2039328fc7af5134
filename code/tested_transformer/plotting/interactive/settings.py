"""A picture with settings: whatever a reader chooses, every text and length in it is looked up.

A picture is a drawing and a table with *slots*, each of which shows a string. Python makes the
strings of all slots for every combination of settings; the script puts them in their places.
"""

from __future__ import annotations

import itertools
import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape, unescape
from typing import Any, Literal

from ...bounds import NonNegativeInt
from ...errors import argument_error
from ...shapes import check_fields, checked
from .page import PagePicture, details

DIGITS = string.ascii_letters + string.digits + "-_"  # two of them are a number below 4096
Choice = tuple[int, ...]  # for each setting, which of its labels


@dataclass(frozen=True)
class Setting:
    """Something to choose: a slider or a list over labels, or a switch, which has two.

    start: the label that stands there first. needs: the switch, by its place among the settings,
    that must be on for this to matter.

    Raises: TypeError or ValueError that name the field.
    """

    name: str
    labels: tuple[str, ...]
    kind: Literal["slider", "list", "switch"] = "slider"
    start: NonNegativeInt = 0
    needs: NonNegativeInt | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if len(self.labels) < 2 or (self.kind == "switch" and len(self.labels) != 2):
            wanted = "2 labels" if self.kind == "switch" else "at least 2 labels"
            raise argument_error(ValueError, "labels", len(self.labels), wanted)
        if self.start >= len(self.labels):
            raise argument_error(
                ValueError, "start", self.start, f"a number below {len(self.labels)}"
            )


class Slots:
    """What the slots show at the start, for whoever draws; a slot has a name and a number."""

    def __init__(self, values: dict[str, str]) -> None:
        self.values = values
        self.numbers = {name: number for number, name in enumerate(values)}

    def text(self, name: str, tag: str = "text", **attributes: Any) -> str:
        """An element that shows the slot's string."""
        start = f"<{tag} {self._written(attributes)}".rstrip()
        return f'{start} data-slot="{self.numbers[name]}">{escape(self.values[name])}</{tag}>'

    def shape(
        self, name: str, tag: str, to: str, by: float | None = None, **attributes: Any
    ) -> str:
        """An element of which one attribute is the slot's string, or `by` times its number."""
        value = self.values[name]
        factor = "" if by is None else f' data-by="{by:g}"'
        shown = value if by is None else f"{number(value) * by:.2f}"
        return (
            f"<{tag} {self._written(attributes)} "
            f'data-slot="{self.numbers[name]}" data-to="{to}"{factor} {to}="{escape(shown)}"/>'
        )

    def _written(self, attributes: dict[str, Any]) -> str:
        """Attributes as they stand in a page; kind is the class, and _ stands for -."""
        if "kind" in attributes:
            attributes["class"] = f"tt-{attributes.pop('kind')}"
        return " ".join(f'{key.replace("_", "-")}="{value}"' for key, value in attributes.items())


class SettingsPicture(PagePicture):
    """A drawing, words and a table in which everything follows the settings.

    fill gives the strings of all slots for a choice, always under the same names. draw, words and
    table make what stands inside an svg of this size, a paragraph and a table, from the slots of
    the start. title: what the drawing shows, for those who do not see it. name: of its own style.
    """

    script = "settings"

    def __init__(
        self,
        title: str,
        settings: Sequence[Setting],
        fill: Callable[[Choice], dict[str, str]],
        *,
        name: str,
        size: tuple[int, int],
        draw: Callable[[Slots], str],
        words: Callable[[Slots], str],
        table: Callable[[Slots], str],
    ) -> None:
        self.title, self.settings = title, list(settings)
        self.styles = ("page", "settings", name)
        sizes = [range(len(setting.labels)) for setting in self.settings]
        self.filled = {choice: fill(choice) for choice in itertools.product(*sizes)}
        self.start = tuple(setting.start for setting in self.settings)
        slots = Slots(self.filled[self.start])
        self.size, self.drawn = size, draw(slots)
        self.words, self.table = words(slots), table(slots)

    @checked
    def at(self, *choice: int) -> dict[str, str]:
        """What the slots show for a choice.

        Raises: ValueError for a choice that is none.
        """
        if choice not in self.filled:
            wanted = f"a place in each of {[len(s.labels) for s in self.settings]} labels"
            raise argument_error(ValueError, "choice", choice, wanted)
        return self.filled[choice]

    @property
    def data(self) -> dict[str, Any]:
        """What the script gets: all strings, and which of them each slot shows when."""
        return {
            "title": self.title,
            "digits": DIGITS,
            "names": [setting.name for setting in self.settings],
            "labels": [setting.labels for setting in self.settings],
            **packed(self.filled),
        }

    @property
    def parts(self) -> list[str]:
        """The controls, the settings in words, the picture of the start, its words and its table."""
        controls = "".join(control(n, setting) for n, setting in enumerate(self.settings))
        width, height = self.size
        return [
            f'<div class="tt-controls" hidden>{controls}</div>',
            f'<p class="tt-setting">{escape(self.chosen)}</p>',
            f'<div class="tt-picture"><svg class="tt-drawing" viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="{escape(f"{self.title}. {self.said}")}">{self.drawn}</svg></div>',
            '<p class="tt-words" aria-live="polite" aria-atomic="true">'
            f'<span class="tt-all">{self.words}</span><span class="tt-one"></span></p>',
            details("The numbers as a table", f"<table>{self.table}</table>"),
        ]

    @property
    def chosen(self) -> str:
        """The settings of the start."""
        return "; ".join(f"{s.name}: {s.labels[s.start]}" for s in self.settings)

    @property
    def said(self) -> str:
        """The words of the start, without tags."""
        return unescape(re.sub(r"<[^>]*>", "", self.words))

    def __repr__(self) -> str:
        return f"{self.title} ({self.chosen})\n{self.said}"


def control(place: int, setting: Setting) -> str:
    """A native input with its label."""
    common = f'data-axis="{place}"'
    common += "" if setting.needs is None else f' data-needs="{setting.needs}"'
    name, shown = escape(setting.name), escape(setting.labels[setting.start])
    if setting.kind == "switch":
        on = " checked" if setting.start else ""
        return f'<label class="tt-switch"><input type="checkbox" {common}{on}> {name}</label>'
    if setting.kind == "list":
        options = "".join(
            f'<option value="{i}"{" selected" if i == setting.start else ""}>{escape(label)}</option>'
            for i, label in enumerate(setting.labels)
        )
        return f'<label class="tt-list">{name} <select {common}>{options}</select></label>'
    return (
        f'<label class="tt-slide">{name} <b aria-hidden="true">{shown}</b><input type="range" {common} '
        f'min="0" max="{len(setting.labels) - 1}" value="{setting.start}" '
        f'aria-valuetext="{shown}"></label>'
    )


def number(text: str) -> float:
    """The number that a string is; 0 if it is none, as in the script."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def packed(filled: dict[Choice, dict[str, str]]) -> dict[str, Any]:
    """Every string once, and groups of slots that depend on the same settings, each filling once.

    A group has the settings it depends on (`axes`), its slots, its different fillings, and for each
    choice of those settings the filling (`which`); strings and fillings are numbers of two digits.
    """
    texts: dict[str, int] = {}
    groups: dict[tuple[int, ...], list[str]] = {}
    names = list(next(iter(filled.values())))
    for name in names:
        groups.setdefault(depends_on(filled, name), []).append(name)
    packs = []
    for axes, members in groups.items():
        fillings: dict[str, int] = {}
        which = {}
        for choice, values in filled.items():
            text = "".join(two(texts.setdefault(values[name], len(texts))) for name in members)
            which[tuple(choice[a] for a in axes)] = two(fillings.setdefault(text, len(fillings)))
        packs.append(
            {
                "axes": axes,
                "slots": [names.index(name) for name in members],
                "fillings": "".join(fillings),
                "which": "".join(which.values()),
            }
        )
    return {"texts": list(texts), "groups": packs}


def depends_on(filled: dict[Choice, dict[str, str]], name: str) -> tuple[int, ...]:
    """The settings that change what a slot shows."""
    count = len(next(iter(filled)))
    return tuple(
        axis
        for axis in range(count)
        if any(
            values[name] != filled[(*choice[:axis], 0, *choice[axis + 1 :])][name]
            for choice, values in filled.items()
        )
    )


def two(number: int) -> str:
    """A number as two digits."""
    if number >= len(DIGITS) ** 2:
        raise argument_error(
            ValueError, "fill", f"{number + 1} strings", f"at most {len(DIGITS) ** 2}"
        )
    return DIGITS[number // len(DIGITS)] + DIGITS[number % len(DIGITS)]
