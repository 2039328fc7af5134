"""What all pictures that answer share: how their parts stand in the output of a cell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..style import page_colors

HERE = Path(__file__).parent
COLORS = ("query", "key", "deep", "soft")


class PagePicture:
    """Controls, picture, words and a table as HTML for a page; a terminal gets `repr`.

    A subclass has `styles` and `script`, files of this folder, `parts`, the HTML of the start, and
    `data`, which the script gets from page.js. Controls stay hidden until the script shows them.
    """

    styles: tuple[str, ...]
    script: str
    parts: list[str]
    data: dict[str, Any]

    @property
    def html(self) -> str:
        """The style, the parts, and the script with its data."""
        files = (read(f"{name}.css") for name in self.styles)
        style = "\n".join([page_colors(".tt-look", *COLORS), *files])
        scripts = f"({read('page.js')})({read(f'{self.script}.js')})"
        data = json.dumps(self.data, ensure_ascii=False, separators=(",", ":"))
        data = data.replace("</", r"<\/")  # a word must not end the script
        return "\n".join(
            [
                f'<div class="tt-look"><style>{style}</style>',
                *self.parts,
                f"<script>{scripts}({data})</script></div>",
            ]
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": repr(self)}


def read(name: str) -> str:
    """A style or script of this folder."""
    return (HERE / name).read_text(encoding="utf-8").strip()


def details(title: str, table: str) -> str:
    """A table that a reader opens."""
    return f'<details><summary>{title}</summary><div class="tt-scroll">{table}</div></details>'
