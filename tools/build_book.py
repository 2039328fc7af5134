"""Build the site clean, with every warning an error, and say where to open it.

It grows beside the one that is there, and takes its place when it is whole.

Usage: python tools/build_book.py [--since SECONDS]    seconds since 1970 when the work began
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from chapters import ROOT, left_out

SITE = ROOT / "_build" / "html"
RUN_JUPYTER_BOOK = "from jupyter_book.cli.main import main; main()"


def commands(folder: Path) -> list[list[str]]:
    """What Python runs to write the pages and to build the site, which Jupyter Book puts into _build/html of the folder."""
    book = ["build", "--all", "-W", "-n", "--keep-going", "--path-output", str(folder), "."]
    return [["tools/generate.py"], ["-c", RUN_JUPYTER_BOOK, *book]]


def build(folder: Path) -> bool:
    """Build a site in an empty folder; False if a command fails."""
    environment = {**os.environ, "PYTHONUTF8": "1"}
    shutil.rmtree(ROOT / "book" / "generated", ignore_errors=True)
    for command in commands(folder):
        if subprocess.run([sys.executable, *command], cwd=ROOT, env=environment).returncode:
            return False
    write_front_door(folder / "_build" / "html")
    return True


def swap(built: Path, site: Path, aside: Path) -> None:
    """Put a folder in the place of another, which is moved aside; after an interruption it is back."""
    try:
        if site.exists():
            site.rename(aside)
        built.rename(site)
    except BaseException:
        if aside.exists() and not site.exists():
            aside.rename(site)
        raise


def write_front_door(site: Path) -> None:
    """Give the page that only leads on to the first page what its head says, for search and previews."""
    first = (site / "book" / "index.html").read_text(encoding="utf-8")
    kept = r'<title>.*?</title>|<meta (?:name|property)="(?:description|og:|twitter:)[^>]*>|<link rel="canonical"[^>]*>'
    head = "\n".join(re.findall(kept, first, re.DOTALL))
    (site / "index.html").write_text(
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n{head}\n'
        '<link rel="icon" href="data:,">\n'  # else a browser asks the host for one, in vain, or stops half way
        '<meta http-equiv="refresh" content="0; url=book/index.html">\n</head>\n'
        '<body><p><a href="book/index.html">The Tested Transformer</a></p></body>\n</html>\n',
        encoding="utf-8",
    )


def replace_site(folder: Path) -> str:
    """Build in a folder of its own and swap; return what went wrong, or nothing."""
    shutil.rmtree(folder, ignore_errors=True)  # what a killed build left
    try:
        if not build(folder):
            return "The book did not build, see above; a warning counts as an error"
        swap(folder / "_build" / "html", SITE, folder / "before")
    except KeyboardInterrupt:
        return "The build was stopped"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return ""


def main() -> int:
    """Build, put the site in its place, and print the address of the front page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--since", type=float, default=time.time())
    began = parser.parse_args().since
    # An incremental build hides warnings, so there is none.
    wrong = replace_site(SITE.with_name("new"))
    seconds = f"{time.time() - began:.0f} s"
    if wrong:
        kept = " The site from before is as it was." if SITE.exists() else ""
        print(f"\n{wrong} ({seconds}).{kept}")
        return 1
    for path in left_out():
        print(f"left out: {path.relative_to(ROOT).as_posix()} (not in _toc.yml)")
    print(f"\nBuilt in {seconds}. Open {(SITE / 'index.html').as_uri()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
