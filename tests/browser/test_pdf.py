"""The chapters and the book on paper: what a reader of the PDF sees, and what a screen reader is told of it."""

import re
import subprocess
import sys
from io import BytesIO
from itertools import pairwise

import pikepdf
import pypdfium2
import pytest
import test_site as site

import chapters
import pdf
from tested_transformer.plotting import style

POINTS = 72 / 25.4  # in a millimeter
SMALL, BIG = "00_first_ten_minutes", "01_self_attention"
# A book of three pages that link to each other.
MINIATURE = [
    pdf.Part("Part I. Two chapters", (f"chapters/{SMALL}.html", f"chapters/{BIG}.html")),
    pdf.Part("Part II. What they speak of", ("book/notation.html",)),
]
browser, address = site.browser, site.address
built = pytest.mark.skipif(not site.PAGES, reason="the site is not built: run make book")


# What stands on a page of the site, told by the browser and not by the printing tool. Of texts only the letters
# count: spaces differ where lines break. A text with Chinese depends on the fonts of the machine.
FACTS = r"""() => {
    const article = document.querySelector('article.bd-article');
    for (const element of article.querySelectorAll('script, style, noscript, .headerlink')) element.remove();
    const sources = [...article.querySelectorAll('annotation')].map(
        source => source.textContent.trim().replace(/\s+/g, ' '));
    const letters = element => element.textContent.replace(/\s+/g, '');
    const links = [...article.querySelectorAll('a[href]')].map(link => link.href);
    const texts = [...article.querySelectorAll('p, pre, td, th, dt, figcaption')].filter(element =>
        !element.matches(':has(math), summary *, .chapter-facts *, [hidden] *, svg *') && letters(element)
        && !/[\u3000-\u9fff]/.test(element.textContent));
    for (const source of article.querySelectorAll('annotation')) source.remove();
    const headings = [...article.querySelectorAll('h1, h2, h3, h4, h5, h6')].map(heading =>
        [Number(heading.tagName[1]), heading.textContent.trim().replace(/\s+/g, ' ')]);
    const alts = [...article.querySelectorAll('img')].map(image => image.alt);
    const folded = article.querySelectorAll('details').length;
    return {sources, links, headings, alts, folded, texts: texts.map(letters)};
}"""


def facts(browser, address: str, name: str) -> dict:
    context = browser.browser.new_context(java_script_enabled=False)  # paper has the stills
    page = context.new_page()
    page.goto(f"{address}/{name}")
    found = page.evaluate(FACTS)
    context.close()
    return found


@pytest.fixture
def press(browser):
    """The printing tool before the whole site, and a way to give it another book or paper."""
    server = pdf.serve.start(pdf.SITE)
    where = f"http://127.0.0.1:{server.server_port}"
    yield lambda paper="A4", book=None: pdf.Press(
        browser.browser, where, paper, book or pdf.parts()
    )
    server.shutdown()


class Paper:
    """A printed file, read with two libraries that Chromium knows nothing of."""

    def __init__(self, data: bytes):
        self.file = pikepdf.open(BytesIO(data))
        self.root = self.file.Root
        self.numbers = {page.objgen: n for n, page in enumerate(self.file.pages)}
        self.drawn = pypdfium2.PdfDocument(data)
        self.texts = [self._inside(page) for page in self.drawn]
        self.letters = [re.sub(r"\s+", "", text) for text in self.texts]
        things = [thing for thing in self.file.objects if isinstance(thing, pikepdf.Dictionary)]
        self.links = [thing for thing in things if thing.get("/Subtype") == "/Link"]

    def _inside(self, page) -> str:
        """The text between header and footer."""
        width, height = page.get_size()
        edge = 19 * POINTS
        words = page.get_textpage().get_text_bounded(0, edge, width, height - edge)
        return words.replace("\ufffe", "")

    def outline(self):
        """Level, title and page of each entry."""
        with self.file.open_outline() as outline:
            return list(self._entries(outline.root, 1))

    def _entries(self, items, level):
        for item in items:
            yield level, item.title, self.numbers[item.destination[0].objgen]
            yield from self._entries(item.children, level + 1)

    def words_of(self, kind: str) -> list[str]:
        """What a screen reader says for the tags of a kind, in the order of reading."""
        return [
            str(tag.get("/Alt", ""))
            for tag in self._tags(self.root.StructTreeRoot.K)
            if kind == tag.S
        ]

    def _tags(self, place):
        for tag in place if isinstance(place, pikepdf.Array) else [place]:
            if isinstance(tag, pikepdf.Dictionary) and "/S" in tag:
                yield tag
                if "/K" in tag:
                    yield from self._tags(tag.K)

    def goals(self) -> set[str]:
        """The names of the places in this file that links lead to."""
        return {str(link.Dest).removeprefix("/") for link in self.links if "/Dest" in link}


def wrong_with(paper: Paper, title: str, seen: list[dict], size: tuple[float, float]) -> list[str]:
    """What a reader of the file would miss, of these pages of the site."""
    root, wrong = paper.root, []
    if not (root.MarkInfo.Marked and "/StructTreeRoot" in root and root.Lang == "en"):
        wrong.append("not tagged, or of no language")
    info = {key: str(paper.file.docinfo.get(key, "")) for key in ("/Title", "/Author", "/Subject")}
    if (
        info["/Title"] != title
        or not all(info.values())
        or not root.ViewerPreferences.DisplayDocTitle
    ):
        wrong.append(f"properties: {info}")
    sheets = {
        tuple(round(float(side) / POINTS) for side in page.MediaBox[2:])
        for page in paper.file.pages
    }
    if sheets != {tuple(map(round, size))}:
        wrong.append(f"sheets of {sheets} mm")
    for number, text in enumerate(paper.letters, start=1):
        if len(text) < 15:
            wrong.append(f"page {number} is empty: {text}")
    whole = "".join(paper.letters)
    for page in seen:
        wrong += [
            f"missing: {text[:80]}"
            for text in page["texts"]
            if text not in whole and not _across(text, paper.letters)
        ]
    for what, key, kind in (("pictures", "alts", "/Figure"), ("formulas", "sources", "/Formula")):
        wanted = [words for page in seen for words in page[key]]
        words = [w.removeprefix("$").removesuffix("$") for w in paper.words_of(kind)]
        if [w for w in words if w in set(wanted)] != wanted or not all(words):
            wrong.append(f"{what}: {len(wanted)} in the site, tagged are {len(words)}")
    return wrong + _beyond(paper) + _lost(paper)


def _across(text: str, pages: list[str]) -> bool:
    """Whether a text ends on the page after the one where it begins. Boxes are painted after the text around them."""
    return any(
        text[:cut] in one and text[cut:] in other
        for one, other in pairwise(pages)
        for cut in range(1, len(text))
        if text[:20][:cut] in one
    )


def _beyond(paper: Paper) -> list[str]:
    """Texts that leave the space between the margins."""
    wrong = []
    for number, page in enumerate(paper.drawn, start=1):
        text, (width, height) = page.get_textpage(), page.get_size()
        side = (pdf.MARGIN - 0.5) * POINTS
        for place in range(text.count_rects()):
            left, bottom, right, top = text.get_rect(place)
            if left < side or right > width - side or bottom < 0 or top > height:
                wrong.append(
                    f"page {number}, cut off: {text.get_text_bounded(left, bottom, right, top)}"
                )
    return wrong


def _lost(paper: Paper) -> list[str]:
    """Links that lead nowhere."""
    places = set(paper.root.get("/Dests", pikepdf.Dictionary()))
    wrong = [
        f"no such place: {goal}" for goal in paper.goals() - {n.removeprefix("/") for n in places}
    ]
    for link in paper.links:
        action = link.get("/A", pikepdf.Dictionary())
        outside = re.match(r"https?://(?!127\.|localhost)", str(action.get("/URI", "")))
        if not ("/Dest" in link or outside or action.get("/S") == "/GoToR"):
            wrong.append(f"a link to {action}")
    return wrong


def wrong_outline(paper: Paper, wanted: list[tuple[int, str]]) -> list[str]:
    """The outline has these levels and titles, and each leads to a page where its words are."""
    entries = paper.outline()
    if [(level, title) for level, title, _ in entries] != wanted:
        return [f"the outline is {[entry[:2] for entry in entries]}, not {wanted}"]
    pages = [page for *_, page in entries]
    wrong = [] if pages == sorted(pages) else [f"pages {pages}"]
    for _, title, page in entries:
        letters = re.sub(r"\s+", "", title)
        if letters.isascii() and letters not in paper.letters[page]:
            wrong.append(f"{title} is not on page {page + 1}")
    return wrong


@built
def test_a_chapter(browser, address, tmp_path):
    """As `make pdf` prints it, for a reader with another paper."""
    command = [
        sys.executable,
        "tools/pdf.py",
        "--only",
        SMALL,
        "--paper",
        "letter",
        "--out",
        tmp_path,
    ]
    done = subprocess.run(command, cwd=site.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.iterdir()
    assert file.name == f"{SMALL}.pdf"
    paper = Paper(file.read_bytes())
    size = f"{len(paper.texts)} pages, {file.stat().st_size / 1e6:.1f} MB"
    assert f"[1/1] {file.name} {size}" in done.stdout

    page = facts(browser, address, f"chapters/{SMALL}.html")
    title = f"{page['headings'][0][1]} \u2014 The Tested Transformer"
    assert wrong_with(paper, title, [page], pdf.PAPERS["letter"]) == []
    assert wrong_outline(paper, list(map(tuple, page["headings"]))) == []
    assert page["folded"] > 5  # their texts are among those that were found
    assert "Reveal" in "".join(paper.texts)
    # Without an address of the site, links to other pages lead into the file of the whole book.
    away = [link.A for link in paper.links if "/A" in link and link.A.S == "/GoToR"]
    assert {str(action.F) for action in away} == {f"{pdf.BOOK}.pdf"}
    assert {"/01_self_attention", "/how_to_use"} <= {str(action.D) for action in away}


@built
def test_a_miniature_book(browser, address, press):
    names = [name for part in MINIATURE for name in part.pages]
    pages = [facts(browser, address, name) for name in names]
    paper = Paper(press(book=MINIATURE).whole())
    assert wrong_with(paper, "The Tested Transformer", pages, pdf.PAPERS["A4"]) == []
    below = dict(
        zip(
            names,
            ([(n + 1, title) for n, title in page["headings"]] for page in pages),
            strict=True,
        )
    )
    wanted = [(1, "The Tested Transformer"), (1, "Contents")]
    for part in MINIATURE:
        wanted += [(1, part.title), *(entry for name in part.pages for entry in below[name])]
    assert wrong_outline(paper, wanted) == []

    # Links from page to page lead to their places in this file; to what is not in it, there are none.
    place = re.compile(rf"{re.escape(address)}/((?:.*/)?([^/]+)\.html)(?:#(.*))?$")
    found = [place.match(link) for page in pages for link in page["links"]]
    goals = {
        f"{match[2]}--{match[3]}" if match[3] else match[2]
        for match in found
        if match and match[1] in names
    }
    assert BIG in goals
    assert any(goal.startswith(f"{BIG}--") for goal in goals)
    assert goals <= paper.goals()
    assert not any("/A" in link for link in paper.links)

    # The contents name the pages where the parts, the chapters and their sections begin.
    entries = paper.outline()
    ends = next(page for level, title, page in entries if title == MINIATURE[0].title)
    contents = re.sub(r"\s+", " ", " ".join(paper.texts[1:ends]))
    listed = [
        (title, page) for level, title, page in entries[2:] if level < 3 or title == "Sources"
    ]
    assert len(listed) == len(MINIATURE) + len(names) + 1
    for title, page in listed:
        assert f"{title} {page + 1} " in f"{contents} ", (title, page + 1)


WIDE = """() => {
    const edge = document.documentElement.clientWidth + 1, boxes = '.bd-article :is(pre, table, td, th, .formula, figure)';
    const said = element => `${element.closest('article').id} ${element.localName}: ${element.textContent.trim().slice(0, 60)}`;
    return [
        ...[...document.querySelectorAll('.bd-article *:not(svg *)')].filter(e => e.getBoundingClientRect().right > edge),
        ...[...document.querySelectorAll(boxes)].filter(e => e.scrollWidth > e.clientWidth + 1 && e.clientWidth),
    ].map(said);
}"""


@built
def test_nothing_is_wider_than_the_paper(press):
    """The sheets of A4 are the narrower ones."""
    names = [name for part in pdf.parts() for name in part.pages]
    with press().sheets(names, whole=True) as (page, _):
        assert page.evaluate(WIDE) == []


@built
def test_a_formula_that_is_too_wide_becomes_smaller(press):
    with press().sheets(["chapters/06_positions.html"]) as (page, _):
        page.evaluate("""() => {
            const row = document.querySelector('.formula mrow');
            row.append(...Array.from({length: 6}, () => row.cloneNode(true)));
        }""")
        assert page.evaluate(WIDE) != []
        page.evaluate(pdf.READY)
        assert page.evaluate(WIDE) == []


@built
def test_links_lead_to_the_site_when_it_has_an_address(press, monkeypatch):
    monkeypatch.setenv("TESTED_TRANSFORMER_SITE", "https://somebody.github.io/book/")
    with press().sheets([f"chapters/{SMALL}.html"]) as (page, _):
        links = page.evaluate("[...document.links].map(link => link.href)")
    assert "https://somebody.github.io/book/chapters/01_self_attention.html" in links
    assert not [link for link in links if link.startswith("book:")]


SEEN = """() => {
    const all = names => [...document.querySelectorAll(names)], away = '.bd-sidebar-primary, .bd-sidebar-secondary, '
        + '.bd-header-article, .prev-next-footer, .bd-footer, #jb-print-docs-body, .copybtn, .headerlink';
    return {
        open: all('details .sd-summary-content, details.hide > div').map(fold =>
            fold.checkVisibility({contentVisibilityAuto: true}) && fold.getBoundingClientRect().height > 8),
        beside: all(away).filter(place => place.checkVisibility()).map(place => place.className),
        title: document.querySelector('article h1').checkVisibility(),
        text: getComputedStyle(document.querySelector('article section > p')).color,
        paper: getComputedStyle(document.body).backgroundColor,
        theme: document.documentElement.dataset.theme,
    };
}"""


@built
@pytest.mark.parametrize("scripts", [True, False])
def test_printed_from_a_browser_in_the_dark(browser, address, scripts):
    context = browser.browser.new_context(color_scheme="dark", java_script_enabled=scripts)
    page = context.new_page()
    page.goto(f"{address}/chapters/{SMALL}.html")
    theme = "document.documentElement.dataset.theme"
    before = page.evaluate(theme)
    page.emulate_media(media="print")
    for _ in range(100):  # until the next picture of the page is made
        seen = page.evaluate(SEEN)
        if all(seen["open"]) and seen["theme"] != "dark":
            break
        page.wait_for_timeout(100)
    assert len(seen["open"]) > 5
    assert all(seen["open"])
    assert seen["beside"] == []
    assert seen["title"]
    assert seen["paper"] == "rgb(255, 255, 255)"
    assert contrast(seen["text"], seen["paper"]) > 7
    page.emulate_media(media="screen")
    if scripts:
        assert before == "dark"
        page.wait_for_function(f"{theme} === 'dark'")
    context.close()


def contrast(*colors: str) -> float:
    return style.contrast(
        *("#" + "".join(f"{int(n):02x}" for n in re.findall(r"\d+", color)[:3]) for color in colors)
    )


@built
def test_the_button_that_prints(browser, address):
    page = browser.new_page()
    page.goto(f"{address}/chapters/{SMALL}.html")
    page.evaluate("window.print = () => { document.title = 'printing'; }")
    page.click(".dropdown-download-buttons > button")
    page.click(".btn-download-pdf-button")
    assert page.title() == "printing"
    page.close()


@built
def test_letters_that_no_font_has(press):
    assert press().draws("ab")
    assert not press().draws("\ue123\ue124")  # of nobody


PAIRS = """() => [...document.querySelectorAll('.cell:has(> .cell_output > figure:first-child)')].map(cell => [
    cell.querySelector('pre').textContent.trim().split('\\n').at(-1), cell.querySelector('.caption-text').textContent])"""
MARKERS = """() => [...document.querySelectorAll('summary')].map(summary => getComputedStyle(summary).listStyleType)"""


@built
def test_a_sheet_ends_where_it_may(press):
    """Code stays with its figure, the line of links into the reference with what is before it."""
    print_ = press()
    with print_.sheets(["chapters/11_generating.html"]) as (page, _):
        pairs = [[re.sub(r"\s+", "", text) for text in pair] for pair in page.evaluate(PAIRS)]
        assert {*page.evaluate(MARKERS)} == {"none"}  # no triangle says that it could be opened
    paper = Paper(print_.chapter("11_generating"))
    assert pairs
    for code, caption in pairs:
        begin = caption[:25]  # before a line can end in a hyphen
        assert not begin.isascii() or any(code in t and begin in t for t in paper.letters), begin
    assert not any(text.startswith("Alsofromthepackage") for text in paper.letters)
    assert "minutes" in paper.texts[0]
    assert "left closed" not in paper.texts[0]  # on paper nothing is


def test_names_of_what_to_print():
    every = [path.stem for path in chapters.chapter_paths()]
    assert pdf.wanted([]) == [*every, pdf.BOOK]
    sixth = [name for name in every if name.startswith("06_")]
    assert sixth[0] == "06_positions"
    assert len(sixth) > 5  # and its deeper pages
    assert pdf.wanted(["book", "05_multi_head", "6"]) == ["05_multi_head", *sixth, pdf.BOOK]
    assert pdf.wanted(["06_positions"]) == ["06_positions"]
    assert pdf.wanted(["book"]) == [pdf.BOOK]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--only", "99"], "There is no chapter 99. Take a number (0 to "),
        (["--paper", "foo"], "The paper is A4 or letter, not foo."),
    ],
)
def test_what_can_not_be_printed(options, words, tmp_path, monkeypatch, capsys):
    (tmp_path / "index.html").write_text("a site", encoding="utf-8")
    monkeypatch.setattr(pdf, "SITE", tmp_path)
    assert pdf.main(options) == 1
    said = capsys.readouterr().err
    assert said.startswith(words)
    assert len(said.splitlines()) == 1


def test_what_is_left_out_is_in_the_book():
    table = (pdf.ROOT / "_toc.yml").read_text(encoding="utf-8")
    assert f"file: {pdf.LEFT_OUT}\n" in table
    assert f"glob: {pdf.LEFT_OUT}_*\n" in table


def test_without_a_site(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pdf, "SITE", tmp_path)
    assert pdf.main(["--only", "0"]) == 1
    assert "There is no site yet: run make book first." in capsys.readouterr().err


@built
def test_without_chromium(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CHROMIUM", raising=False)
    assert pdf.main(["--only", "0", "--out", str(tmp_path)]) == 1
    assert "apt-get install chromium" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
