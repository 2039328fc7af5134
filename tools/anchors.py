"""Keep the list of places that others may link to, tests/data/anchors.txt: it only grows.

A place is a heading, label, figure, equation, mistake, term or public name on a built chapter, in the
gallery, the glossary or the API reference, as page#name. The browser tests fail when a listed place is gone, or a new one is not listed.

Usage: python tools/anchors.py    adds what `make book` built; removes nothing
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

from chapters import ROOT

SITE = ROOT / "_build" / "html"
LIST = ROOT / "tests" / "data" / "anchors.txt"
PLACES = {"section", "span", "figure", "div", "p", "dt"}
REFERENCE = ("gallery", "glossary", "api")  # how the names of such pages begin
NAMED = (
    "pitfall-",
    "term-",
    "api-",
)  # what is kept of them; a heading may be reworded


class Article(HTMLParser):
    """The ids of what stands in the article of a page, without those that are made up by counting."""

    def __init__(self, text: str):
        super().__init__()
        self.inside, self.names = 0, set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        """Enter the article, and keep the names in it."""
        named = dict(attributes)
        if tag == "article":
            self.inside += 1
        name = named.get("id")
        if self.inside and tag in PLACES and name and not counted(name):
            self.names.add(name)

    def handle_endtag(self, tag):
        """Leave the article."""
        if tag == "article":
            self.inside -= 1


def counted(name: str) -> bool:
    """Whether a name was made by counting, and so may change with the text before it."""
    return re.fullmatch(r"(id|codecell|footnote-|fn|cb|term-)\d+", name) is not None


def pages(site: Path = SITE) -> list[Path]:
    """The pages whose places are kept."""
    return [
        *sorted((site / "chapters").rglob("*.html")),
        *sorted((site / "book" / "generated").glob("gallery*.html")),
        *sorted((site / "book" / "generated").glob("api*.html")),
        site / "book" / "glossary.html",
    ]


def built(site: Path = SITE) -> set[str]:
    """The places of the built site."""
    found = set()
    for path in pages(site):
        page = path.relative_to(site).with_suffix("").as_posix()
        names = Article(path.read_text(encoding="utf-8")).names
        if path.stem.startswith(REFERENCE):
            names = {name for name in names if name.startswith(NAMED)}
        found |= {f"{page}#{name}" for name in names}
    return found


def listed(file: Path = LIST) -> set[str]:
    """The places that the list promises."""
    return set(file.read_text(encoding="utf-8").split()) if file.exists() else set()


def main() -> int:
    """Add the new places to the list."""
    if not (SITE / "chapters").exists():
        print("There is no site yet: run make book first.", file=sys.stderr)
        return 1
    before = listed()
    after = before | built()
    LIST.write_text("\n".join(sorted(after)) + "\n", encoding="utf-8")
    print(f"{len(after) - len(before)} places added, {len(after)} listed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
