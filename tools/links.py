"""Ask every address outside the book, that a page links to, whether it still answers.

Usage: python tools/links.py

Sphinx's link check does it. The network decides, so this is no test: it runs every week, and by hand.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from build_book import RUN_JUPYTER_BOOK
from chapters import ROOT

FOLDER = ROOT / "_build" / "links"
NO_ROBOTS = ("403 ", "429 ")  # how hosts refuse a program, which says nothing of the link


def broken(book: Path, folder: Path) -> list[str] | None:
    """The links of a book that lead nowhere, each with its place; None where the check itself failed."""
    shutil.rmtree(folder, ignore_errors=True)
    words = ["build", "--all", "--builder", "linkcheck", "--path-output", str(folder), str(book)]
    environment = {**os.environ, "PYTHONUTF8": "1"}
    subprocess.run([sys.executable, "-c", RUN_JUPYTER_BOOK, *words], cwd=book, env=environment)
    report = folder / "_build" / "html" / "output.json"  # Jupyter Book's place for it
    if not report.exists():
        return None
    links = [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]
    return [
        f"{link['filename']}:{link['lineno']}: {link['uri']} ({link['info']})"
        for link in links
        if link["status"] == "broken" and not link["info"].startswith(NO_ROBOTS)
    ]


def main() -> int:
    """Write the pages that are generated, check, and list what is broken at the end."""
    if subprocess.run([sys.executable, "tools/generate.py"], cwd=ROOT).returncode:
        return 1
    found = broken(ROOT, FOLDER)
    if found is None:
        print("\nThe links were not checked, see above.")
        return 1
    print("", *found, f"{len(found)} broken links outside the book.", sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
