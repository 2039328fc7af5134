"""What the scripts here know about chapters: where they are, their numbers and their titles.

Usage: python tools/chapters.py [--or-book] [NUMBER or NAME ...]    says which of them is no chapter

The Makefile asks that before it installs anything, so nothing but Python itself is imported at first.
"""

import re
import sys
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OR_BOOK = ", or book for the whole"  # what a printer of chapters takes besides


class UnknownChapterError(Exception):
    """A name that is no chapter's."""


def chapter_paths(root: Path = ROOT) -> list[Path]:
    """The chapters of the table of contents, each before its deeper pages; a reader's own notebooks are none."""
    contents = (root / "_toc.yml").read_text(encoding="utf-8")
    stems = re.findall(r"^ *- file: chapters/(\S+)", contents, re.MULTILINE)
    return [root / "chapters" / f"{stem}.ipynb" for stem in stems]


def core_paths(root: Path = ROOT) -> list[Path]:
    """The chapters alone: one for each number, without the pages of chapters/deeper."""
    return [path for path in chapter_paths(root) if path.parent.name == "chapters"]


def left_out(root: Path = ROOT) -> list[Path]:
    """The notebooks beside the chapters that the table of contents does not name."""
    there = {*(root / "chapters").glob("*.ipynb"), *(root / "chapters/deeper").glob("*.ipynb")}
    return sorted(there - {*chapter_paths(root)})


def chosen(names: list[str], paths: list[Path], besides: str = "") -> list[Path]:
    """The chapters that numbers or names stand for, in the order of the book; without names, all.

    A number stands for the chapter and its deeper pages.
    Raises: UnknownChapterError for a name that stands for none; it says what else there is (besides).
    """
    wanted = set()
    for name in names:
        stem = Path(name).name.removesuffix(".ipynb")
        fitting = {
            path
            for path in paths
            if path.stem == stem or (stem.isdigit() and number(path) == int(stem))
        }
        if not fitting:
            raise UnknownChapterError(
                f"There is no chapter {name}. Take a number ({_spans(paths)}), or a name such as {paths[-1].stem}{besides}."
            )
        wanted |= fitting
    return [path for path in paths if not names or path in wanted]


def _spans(paths: list[Path]) -> str:
    """The numbers of chapters in a few words, such as 0 to 11, 15."""
    numbers = sorted({*map(number, paths)})
    rows = [list(row) for _, row in groupby(numbers, lambda n: n - numbers.index(n))]
    return ", ".join(f"{row[0]} to {row[-1]}" if row[1:] else f"{row[0]}" for row in rows)


def read(path: Path):
    """Read a chapter as a version 4 notebook."""
    import nbformat

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


def main(names: list[str]) -> int:
    """Say which name is no chapter's, if one is not."""
    whole = names[:1] == ["--or-book"]
    chapters = [name for name in names[whole:] if not (whole and name == "book")]
    try:
        chosen(chapters, chapter_paths(), OR_BOOK if whole else "")
    except UnknownChapterError as reason:
        print(reason, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
