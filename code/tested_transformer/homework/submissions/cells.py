"""The cells of a notebook, from its bytes."""

from __future__ import annotations

import json
import re
from typing import Any

from .finding import MAX_NOTEBOOK, MB, Refused, writable

BEGIN = re.compile(r'"cells"\s*:\s*\[\s*')
BETWEEN = re.compile(r"\s*,?\s*")
DECODER = json.JSONDecoder()
NO_NOTEBOOK = "This file is damaged or is not a notebook: Jupyter could not open it."


def notebook_cells(data: bytes) -> tuple[list[Any], str, bool]:
    """The cells of a notebook in format 3 or 4, its encoding, and whether it is whole. Raises Refused.

    Of a damaged notebook, such as one that was cut short, there are the cells above the damage.
    """
    if not data.strip():
        raise Refused("empty", "The file is empty.")
    if len(data) > MAX_NOTEBOOK:
        raise Refused("too large", f"The file is larger than {MAX_NOTEBOOK // MB} MB.")
    text, encoding = _decode(data)
    try:
        notebook = json.loads(text)
    except RecursionError:
        raise Refused("not a notebook", "The file is nested too deeply.") from None
    except ValueError:
        if cells := _cells_above_damage(text):
            return cells, encoding, False
        raise Refused("not a notebook", NO_NOTEBOOK) from None
    cells = _listed_cells(notebook)
    if cells is None:
        raise Refused("not a notebook", "This file is not a notebook: it has no cells.")
    return cells, encoding, True


def _cells_above_damage(text: str) -> list[Any]:
    """The cells that can be read from the beginning of a damaged notebook."""
    cells: list[Any] = []
    begin = BEGIN.search(text)
    at = begin.end() if begin else len(text)
    while at < len(text):
        try:
            cell, at = DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        cells.append(cell)
        at = BETWEEN.match(text, at).end()
    return [cell for cell in cells if isinstance(cell, dict) and "cell_type" in cell]


def _decode(data: bytes) -> tuple[str, str]:
    """Bytes as text, with the name of the encoding: UTF-8 as it should be, or the likeliest."""
    encoding = json.detect_encoding(data)  # by its first bytes: UTF-8, 16 or 32, mark or none
    try:
        return data.decode(encoding), encoding
    except UnicodeDecodeError:
        return data.decode("latin-1"), "latin-1"


def _listed_cells(notebook: Any) -> list[Any] | None:
    """The list of cells, which format 3 keeps in worksheets; None if this is not a notebook."""
    if not isinstance(notebook, dict):
        return None
    if isinstance(notebook.get("cells"), list):
        return notebook["cells"]
    sheets = notebook.get("worksheets")
    if not isinstance(sheets, list) or not sheets:
        return None
    lists = [sheet.get("cells") if isinstance(sheet, dict) else None for sheet in sheets]
    if not all(isinstance(cells, list) for cells in lists):
        return None
    return [cell for cells in lists for cell in cells]


def is_code(cell: Any) -> bool:
    """Whether a cell holds code."""
    return isinstance(cell, dict) and cell.get("cell_type") == "code"


def cell_text(cell: Any) -> str | None:
    """What is written in a cell, with \\n for every end of line; None if it holds no text."""
    if not isinstance(cell, dict):
        return None
    text = cell.get("source", cell.get("input"))  # format 3 calls code "input"
    if isinstance(text, list) and all(isinstance(line, str) for line in text):
        text = "".join(text)
    if not isinstance(text, str):
        return None
    return writable(text).replace("\r\n", "\n").replace("\r", "\n")
