"""What all pictures that answer share: how their parts stand in the output of a cell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class PagePicture:
    """Controls, picture, words and a table as HTML for a page; a terminal gets `repr`.

    A subclass has `styles` and `script`, files of this folder, `parts`, the HTML of the start, and
    `data`, which the script gets. Controls stay hidden until the script shows them. page.js starts the
    script once for each picture.
    """

    styles: tuple[str, ...]
    script: str
    parts: list[str]
    data: dict[str, Any]

    @property
    def html(self) -> str:
        """The style, the parts, and the script with its data."""
        style = "\n".join(read(f"{name}.css") for name in self.styles)
        data = json.dumps(self.data, ensure_ascii=False, separators=(",", ":"))
        data = data.replace("</", r"<\/")  # a word must not end the script
        return "\n".join(
            [
                f'<div class="tt-look"><style>{style}</style>',
                *self.parts,
                f"<script>({read('page.js')})({read(f'{self.script}.js')})({data})</script></div>",
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
