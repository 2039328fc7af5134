"""Print the built site: each chapter as a PDF, and the whole book as one.

Usage: python tools/pdf.py [--only NAME ...] [--paper A4|letter] [--out FOLDER]

    --only     chapters by number or name, and `book` for the whole; without it, all of them
    --paper    the size of the sheets
    --out      where the files go, if not to _build/pdf

Each is tagged, so that a screen reader finds headings, lists, tables, figures with
their words and formulas with their LaTeX; it has an outline, and links that lead to their places.
"""

import argparse
import re
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from io import BytesIO
from pathlib import Path
from urllib.parse import unquote

import pikepdf
import yaml
from playwright.sync_api import Error, sync_playwright

import serve
from chapters import OR_BOOK, ROOT, UnknownChapterError, chapter_paths, chosen
from chromium import FLAGS, MISSING, find_chromium

sys.path.insert(0, str(ROOT / "book" / "_ext"))

from site_address import read_addresses

SITE = ROOT / "_build" / "html"
OUT = ROOT / "_build" / "pdf"
BOOK = "the_tested_transformer"
PAPERS = {"A4": (210, 297), "letter": (215.9, 279.4)}  # mm
MARGIN = 18  # mm at the sides, as in print.css
LEFT_OUT = (
    "book/generated/api"  # for looking up by its links; chapters print the source they speak of
)
CHINESE = "缩放"  # of the abstract of chapter 3
NO_CHINESE = (
    "No font of this machine has Chinese letters, so boxes stand in the abstracts and the glossary. Debian and "
    "Ubuntu: apt-get install fonts-noto-cjk"
)
ASSEMBLE = Path(__file__).with_name("pdf_pages.js")
STYLE = Path(__file__).with_name("pdf.css")


class CanNotPrintError(Exception):
    """What a reader can do something about."""


# ------------------------------------------------------------------------------------ what is printed


@dataclass(frozen=True)
class Part:
    """A part of the book: its title and its pages, as addresses in the site."""

    title: str
    pages: tuple[str, ...]


def parts() -> list[Part]:
    """The book as _toc.yml has it, without its front page."""
    table = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    return [
        Part(
            part["caption"],
            tuple(
                f"{page['file']}.html"
                for chapter in part["chapters"]
                for page in (chapter, *chapter.get("sections", []))
                if not page.get("file", LEFT_OUT).startswith(LEFT_OUT)
            ),
        )
        for part in table["parts"]
    ]


def wanted(names: list[str]) -> list[str]:
    """The names of the files to print, in the order of the book.

    Raises: CanNotPrintError for a name that is none of a chapter's.
    """
    chapters = [name for name in names if name != "book"]
    if names and not chapters:
        return [BOOK]
    try:
        stems = [path.stem for path in chosen(chapters, chapter_paths(), OR_BOOK)]
    except UnknownChapterError as reason:
        raise CanNotPrintError(str(reason)) from None
    return stems if names and "book" not in names else [*stems, BOOK]


# ------------------------------------------------------------------------------------------ printing


@contextmanager
def chromium():
    """A browser.

    Raises: CanNotPrintError if there is none, or it cannot start.
    """
    program = find_chromium()
    if program is None:
        raise CanNotPrintError(f"Nothing is printed: {MISSING}.")
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        except Error as error:
            raise CanNotPrintError(
                f"Nothing is printed: {program} does not start: {error.message}"
            ) from None
        yield browser
        browser.close()


class Press:
    """A browser before the served site, with sheets of one size."""

    def __init__(self, browser, address: str, paper: str, book: list[Part]):
        self.address, self.paper, self.book = address, paper, book
        self.site = read_addresses().site
        width = round((PAPERS[paper][0] - 2 * MARGIN) / 25.4 * 96)  # of the text
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="light"
        )

    def draws(self, letters: str) -> bool:
        """Whether the fonts of this machine have two letters: those that they lack are boxes, one like the other."""
        page = self.context.new_page()
        one, other = page.evaluate(DRAW, letters)
        page.close()
        return one != other

    @contextmanager
    def sheets(self, names: list[str], whole: bool = False):
        """A document of these pages of the site, and what is known of each.

        Raises: CanNotPrintError if a page is not in the site.
        """
        for name in names:
            if not (SITE / name).is_file():
                raise CanNotPrintError(f"The built site has no {name}: run make book first.")
        page = self.context.new_page()
        empty = SKELETON.format(paper=self.paper, style=STYLE.read_text(encoding="utf-8"))
        page.route(
            f"{self.address}/pdf.html",
            lambda route: route.fulfill(body=empty, content_type="text/html; charset=utf-8"),
        )
        page.goto(f"{self.address}/pdf.html")
        page.emulate_media(media="print")
        every = [name for part in self.book for name in part.pages]
        job = {"names": names, "whole": whole, "site": self.site, "book": every}
        try:
            chapters = page.evaluate(ASSEMBLE.read_text(encoding="utf-8"), job)
            page.evaluate(READY)
            yield page, chapters
        finally:
            page.close()

    def chapter(self, stem: str) -> bytes:
        """One chapter, or one of its deeper pages."""
        every = [name for part in self.book for name in part.pages]
        name = next((n for n in every if Path(n).stem == stem), f"chapters/{stem}.html")
        with self.sheets([name]) as (page, (chapter,)):
            data = printed(page, f"{chapter['title']} \u2014 {book_facts()['title']}")
            return finished(data, chapter["about"], page.evaluate(HEADINGS))

    def whole(self) -> bytes:
        """Title, contents and every page of the book. The contents learn the numbers of their pages from a first print."""
        facts = book_facts()
        names = [name for part in self.book for name in part.pages]
        with self.sheets(names, whole=True) as (page, chapters):
            page.evaluate(FRONT, front_matter(self.book, chapters, self.site))
            shown: dict[str, int] = {}
            for _ in range(3):
                data = printed(page, facts["title"])
                places, before = destinations(data), shown
                shown = page.evaluate(NUMBERS, places)
                if shown == before:
                    about = " ".join(facts["abstract"].split())
                    return finished(data, about, page.evaluate(HEADINGS))
        raise CanNotPrintError("The numbers of the pages move with every print.")  # never seen


def book_facts() -> dict:
    """Title, authors, version and more, from CITATION.cff."""
    return yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))


def authors() -> str:
    """Who wrote the book."""
    return ", ".join(author["name"] for author in book_facts()["authors"])


SKELETON = """<!DOCTYPE html>
<html lang="en" data-theme="light" data-mode="light">
<head><meta charset="utf-8"><title></title><link rel="stylesheet" href="_static/book.css">
<style>@page {{ size: {paper}; }}
{style}</style></head>
<body><div class="bd-container"><div class="bd-container__inner"><main class="bd-main"><div class="bd-content">
<div class="bd-article-container"></div></div></main></div></div></body></html>"""

DRAW = """letters => [...letters].map(letter => {
    const canvas = Object.assign(document.createElement('canvas'), {width: 40, height: 40});
    const pen = canvas.getContext('2d');
    pen.font = '30px sans-serif';
    pen.fillText(letter, 4, 32);
    return canvas.toDataURL();
})"""

# Everything that the sheets show is there. What is too wide, after lines of code and cells of tables have been wrapped,
# becomes smaller.
READY = """async () => {
    await Promise.all([...document.images].map(image => image.decode()));
    await document.fonts.ready;
    const wide = '.formula, .pst-scrollable-table-container, .cell_output > div';
    for (const box of document.querySelectorAll(wide))
        if (box.scrollWidth > box.clientWidth)
            for (const child of box.children) child.style.zoom = box.clientWidth / box.scrollWidth;
}"""


HEADINGS = """() => [...document.querySelectorAll('h1, h2, h3, h4, h5, h6')]
    .filter(heading => heading.checkVisibility())
    .map(heading => {
        const copy = heading.cloneNode(true);
        for (const source of copy.querySelectorAll('annotation')) source.remove();
        return copy.textContent.trim().replace(/\\s+/g, ' ');
    })"""


def printed(page, title: str) -> bytes:
    """The document as a PDF."""
    page.evaluate("title => { document.title = title; }", title)
    return page.pdf(prefer_css_page_size=True, print_background=True, tagged=True, outline=True)


# ------------------------------------------------------------------------------------- the whole book

FRONT = """({cover, contents, parts}) => {
    const place = document.querySelector('.bd-article-container');
    for (const {before, html} of parts) document.getElementById(before).insertAdjacentHTML('beforebegin', html);
    place.insertAdjacentHTML('afterbegin', cover + contents);
}"""
NUMBERS = """places => Object.fromEntries([...document.querySelectorAll('.contents a')].map(link => {
    const mark = decodeURIComponent(link.hash.slice(1));
    link.dataset.page = places[mark];
    return [mark, places[mark]];
}))"""


def front_matter(book: list[Part], chapters: list[dict], site: str) -> dict:
    """The title page, the contents, and a title before each part, as HTML."""
    facts, by_name = book_facts(), {chapter["name"]: chapter for chapter in chapters}
    address = f'<p><a href="{escape(site)}">{escape(site)}</a></p>' if site else ""
    year = facts["preferred-citation"]["year"]
    cover = (
        f'<section class="cover bd-article"><h1>{escape(facts["title"])}</h1>'
        f'<p class="about">{escape(facts["abstract"])}</p><p>{escape(authors())}</p>{address}'
        f'<p class="small">Version {facts["version"]}, {year}. Code under the MIT license, text and figures under CC BY 4.0.</p></section>'
    )
    rows, titles = [], []
    for place, part in enumerate(book):
        inside = [by_name[name] for name in part.pages]
        rows.append(_row(f"part-{place}", part.title, "".join(map(_chapter_row, inside))))
        html = f'<section class="part bd-article" id="part-{place}"><h1>{escape(part.title)}</h1></section>'
        titles.append({"before": inside[0]["mark"], "html": html})
    contents = f'<nav class="contents bd-article"><h1>Contents</h1><ol>{"".join(rows)}</ol></nav>'
    return {"cover": cover, "contents": contents, "parts": titles}


def _chapter_row(chapter: dict) -> str:
    # The other pages have many headings, and few need to be found here.
    sections = chapter["sections"] if chapter["name"].startswith("chapters/") else []
    below = "".join(_row(section["mark"], section["title"]) for section in sections)
    return _row(chapter["mark"], chapter["title"], below)


def _row(mark: str, title: str, below: str = "") -> str:
    more = f"<ol>{below}</ol>" if below else ""
    return f'<li><a href="#{escape(mark)}"><span>{escape(title)}</span></a>{more}</li>'


def destinations(data: bytes) -> dict[str, int]:
    """The number of the page on which each place is that a link leads to."""
    with pikepdf.open(BytesIO(data)) as pdf:
        numbers = {page.objgen: number for number, page in enumerate(pdf.pages, start=1)}
        return {
            name.removeprefix("/"): numbers[place[0].objgen]
            for name, place in pdf.Root.Dests.items()
        }


# ------------------------------------------------------------------------------------------- the file


def finished(data: bytes, about: str, headings: list[str]) -> bytes:
    """The PDF with what Chromium does not write: who and what in its properties, formulas, links into the book."""
    with pikepdf.open(BytesIO(data)) as pdf:
        _name_outline(pdf, headings)
        for thing in pdf.objects:
            if isinstance(thing, pikepdf.Dictionary):
                _mark_formula(thing)
                _link_into_book(thing)
        facts = book_facts()
        with pdf.open_metadata() as properties:
            properties["dc:title"] = str(pdf.docinfo["/Title"])
            properties["dc:creator"] = [author["name"] for author in facts["authors"]]
            properties["dc:description"] = about
            properties["dc:language"] = {"en"}
            properties["dc:subject"] = set(facts["keywords"])
            properties["pdf:Keywords"] = ", ".join(facts["keywords"])
            properties["xmp:CreatorTool"] = f"{facts['title']}, tools/pdf.py"
        pdf.Root.PageMode = pikepdf.Name.UseOutlines
        file = BytesIO()
        pdf.save(file, object_stream_mode=pikepdf.ObjectStreamMode.generate)
    return file.getvalue()


def _name_outline(pdf, headings: list[str]):
    """Chromium says a heading twice where a page breaks before it, and joins words where a line does."""
    with pdf.open_outline() as outline:
        for item, heading in zip(_flat(outline.root), headings, strict=True):
            item.title = heading


def _flat(items):
    for item in items:
        yield item
        yield from _flat(item.children)


def _mark_formula(thing):
    """A picture whose words are LaTeX between dollars is a formula, see pdf_pages.js."""
    if thing.get("/S") == pikepdf.Name.Figure and re.fullmatch(
        r"\$.*\$", str(thing.get("/Alt", "")), re.DOTALL
    ):
        thing.S = pikepdf.Name.Formula


def _link_into_book(thing):
    """A link of the scheme book: leads to a place in the file of the whole book, see pdf_pages.js."""
    action = thing.get("/A") if thing.get("/Subtype") == pikepdf.Name.Link else None
    if action is not None and str(action.get("/URI", "")).startswith("book:"):
        goal = unquote(str(action.URI).removeprefix("book:"))
        thing.A = pikepdf.Dictionary(
            S=pikepdf.Name.GoToR, F=pikepdf.String(f"{BOOK}.pdf"), D=pikepdf.Name(f"/{goal}")
        )


def main(arguments: list[str] | None = None) -> int:
    """Print what was asked for, with a line for each file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--paper", default="A4")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FOLDER")
    options = parser.parse_args(arguments)
    try:
        print_files(options.only, options.paper, options.out)
    except CanNotPrintError as reason:
        print(reason, file=sys.stderr)
        return 1
    return 0


def print_files(names: list[str], paper: str, out: Path) -> None:
    """Write the files, one after another.

    Raises: CanNotPrintError if a name, the paper, the site or Chromium is missing.
    """
    if paper not in PAPERS:
        raise CanNotPrintError(f"The paper is {' or '.join(PAPERS)}, not {paper}.")
    if not (SITE / "index.html").is_file():
        raise CanNotPrintError("There is no site yet: run make book first.")
    book = parts()
    stems = wanted(names)
    out.mkdir(parents=True, exist_ok=True)
    server = serve.start(SITE)
    try:
        with chromium() as browser:
            press = Press(browser, f"http://127.0.0.1:{server.server_port}", paper, book)
            if not press.draws(CHINESE):
                print(NO_CHINESE)
            for place, stem in enumerate(stems, start=1):
                began = time.monotonic()
                print(f"[{place}/{len(stems)}] {stem}.pdf", end=" ", flush=True)
                data = press.whole() if stem == BOOK else press.chapter(stem)
                (out / f"{stem}.pdf").write_bytes(data)
                with pikepdf.open(BytesIO(data)) as pdf:
                    pages = len(pdf.pages)
                seconds = time.monotonic() - began
                print(f"{pages} pages, {len(data) / 1e6:.1f} MB, {seconds:.0f} s", flush=True)
    finally:
        server.shutdown()
    print(f"They are in {out}")


if __name__ == "__main__":
    sys.exit(main())
