"""What the scripts here know about chapters: where they are, their numbers and their titles."""

import re
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent


def chapter_paths(root: Path = ROOT) -> list[Path]:
    """All chapters in order."""
    return sorted((root / "chapters").glob("*.ipynb"))


def read(path: Path) -> nbformat.NotebookNode:
    """Read a chapter as a version 4 notebook."""
    return nbformat.read(path, as_version=4)


def heading(path: Path) -> str:
    """Return the title of a chapter as its page has it, with the number if it has one."""
    return read(path).cells[0].source.partition("\n")[0].removeprefix("# ")


def number(path: Path) -> int:
    """Return the chapter's number, which its file name begins with."""
    found = re.match(r"\d+", path.name)
    if not found:
        raise ValueError(
            f"{path.name} does not begin with the chapter's number, as in 04_masks.ipynb"
        )
    return int(found[0])
