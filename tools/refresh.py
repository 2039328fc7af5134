"""Execute chapters and store their outputs, so that a second run changes no byte.

A chapter in which a cell raises, writes to stderr or shows a memory address is left as it was.

Usage: python tools/refresh.py [NUMBER or NAME ...]    of chapters; without one, all
"""

import os
import re
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from chapters import UnknownChapterError, chapter_paths, chosen, read

SECONDS_A_CELL = 600
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


class Refused(Exception):
    """A chapter that must not be stored, and why."""


def refresh(path: Path) -> bool:
    """Execute one chapter and store it; return whether the file changed.

    Raises: Refused, and the file is as it was.
    """
    notebook = read(path)
    prepare(notebook)
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=SECONDS_A_CELL,
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(path.parent)}},
        on_cell_start=lambda cell, cell_index: _progress(path, cell_index + 1, len(notebook.cells)),
    )
    try:
        client.execute()
    except CellExecutionError as error:
        raise Refused(str(error)) from None
    notebook.metadata["kernelspec"] = dict(KERNEL)
    notebook.metadata["language_info"] = {"name": "python"}
    for place, cell in enumerate(notebook.cells, start=1):
        refuse_bad_outputs(cell, place)
    nbformat.validate(notebook)
    return _replace(path, nbformat.writes(notebook) + "\n")


def prepare(notebook: nbformat.NotebookNode) -> None:
    """Clear what another run or another editor left: outputs, timings, random ids."""
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for place, cell in enumerate(notebook.cells, start=1):
        cell.id = f"cell-{place:02d}"
        for key in ("execution", "collapsed", "scrolled", "ExecuteTime"):
            cell.metadata.pop(key, None)
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            fold(cell)


def fold(cell: nbformat.NotebookNode) -> None:
    """Close in JupyterLab what the site folds by a tag: it does not know the tags."""
    tags = cell.metadata.get("tags", [])
    closed = {
        key: True
        for key, part in {"source_hidden": "input", "outputs_hidden": "output"}.items()
        if {"hide-cell", f"hide-{part}"}.intersection(tags)
    }
    cell.metadata.pop("jupyter", None)
    if closed:
        cell.metadata["jupyter"] = closed


def refuse_bad_outputs(cell: nbformat.NotebookNode, place: int) -> None:
    """Raise Refused if a cell shows an error, a warning or a memory address."""
    for output in cell.get("outputs", []):
        if output.output_type == "error":
            raise Refused(f"cell {place} raises {output.ename}: {output.evalue}")
        if output.get("name") == "stderr":
            raise Refused(f"cell {place} writes to stderr:\n{output.text}")
        text = output.get("text", "") + str(output.get("data", {}).get("text/plain", ""))
        address = re.search(r"0x[0-9a-f]{6,}", text)
        if address:
            raise Refused(f"cell {place} shows a memory address, {address[0]}, new in every run")


def _replace(path: Path, text: str) -> bool:
    """Put the text in place of the file in one step, if it differs."""
    if path.read_text(encoding="utf-8") == text:
        return False
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", newline="\n", dir=path.parent, suffix=".tmp", delete=False
    ) as file:
        file.write(text)
    os.chmod(file.name, path.stat().st_mode)
    os.replace(file.name, path)
    return True


def _progress(path: Path, place: int, total: int) -> None:
    end = "" if sys.stdout.isatty() else "\n"
    print(f"\r{path.name}: cell {place} of {total} ", end=end, flush=True)


def main(arguments: list[str]) -> int:
    """Refresh the chapters named, or all."""
    # The tests run the cells with one thread too: sums in another order differ in the last digit.
    # What a chapter shows is the package's, not that of a reader who keeps parts of their own here.
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", TESTED_TRANSFORMER_PARTS="")
    try:
        paths = chosen(arguments, chapter_paths())
    except UnknownChapterError as reason:
        print(reason, file=sys.stderr)
        return 1
    failed = 0
    for path in paths:
        start = time.monotonic()
        try:
            verdict = "stored" if refresh(path) else "unchanged"
        except Refused as reason:
            failed += 1
            verdict = f"REFUSED, the file is as it was\n{reason}"
        print(f"\r{path.name}: {verdict} ({time.monotonic() - start:.0f} s)        ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
