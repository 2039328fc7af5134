"""Every page of the built site in Chromium, served and from disk.

Whoever opens a page sees what was meant: nothing is asked of another host, no script fails, all
mathematics is set, every link leads somewhere, every picture has words, nothing is wider than the screen,
on a phone or a desktop, in light or dark, axe finds nothing wrong, and no page is heavier than its kind may be.
Each page is loaded once for all of this, and one of each kind once more from disk. Of the pages that show a module's
source, one for each folder is.
"""

import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import axe
import serve
from chromium import FLAGS, MISSING, find_chromium

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "_build" / "html"
sys.path.insert(0, str(ROOT / "book" / "_ext"))

from site_address import read_addresses  # noqa: E402

BASE = read_addresses().base  # the path of the site on its host: / if it is not known
PAGES = sorted(
    path.relative_to(SITE).as_posix()
    for path in SITE.rglob("*.html")
    if path.relative_to(SITE).parts[0] != "_static"
)
WIDTHS = (360, 768, 1440)
NEXT_VISIT, PICTURE = 305_000, 100_000  # bytes, as they travel
SCHEMES = ("light", "dark")


def one_of_each_folder(names: list[str]) -> list[str]:
    """All pages but those that show a module's source, of which the largest of each folder stands for the rest.

    One template makes them all, from code that the linter keeps within its width.
    """
    size = {name: (SITE / name).stat().st_size for name in names}
    sources = sorted((name for name in names if name.startswith(SOURCES)), key=size.get)
    largest = {name.removeprefix(SOURCES).partition("/")[0]: name for name in sources}
    modules = {name for key, name in largest.items() if not key.endswith(".html")}
    return [name for name in names if name in modules or not name.startswith(SOURCES)]


SOURCES = "_modules/tested_transformer/"
SEEN = one_of_each_folder(PAGES)
STANDING = [name for name in SEEN if name != "index.html"]  # which only leads on
LANDING, CHAPTER, OTHER = "book/index.html", "chapters/04_masks.html", "chapters/03_scaling.html"
# axe judges every page in light, and one of each kind in dark; these are opened from disk as well.
OF_EACH_KIND = {
    LANDING, CHAPTER, "chapters/deeper/01_other_views.html", "book/glossary.html", "book/notation.html",
    "book/for-instructors.html", "book/generated/api_functional.html", "book/generated/course.html",
    "book/generated/gallery_04.html", "book/generated/interview.html", "genindex.html", "search.html", "404.html",
    *(name for name in SEEN if name.startswith(SOURCES + "functional/")),
}  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """What a page of one kind may cost a reader."""

    names: str  # a pattern
    bytes: int  # over the network, on the first visit to the book
    nodes: int  # elements and texts of the document
    blocking: int  # styles and scripts that the browser waits for before it paints


# What the heaviest page of a kind has now (November 2026), rounded up by a tenth at most. No deeper page may be
# heavier than a core. Nothing but the one style sheet blocks the first paint.
LIMITS = {
    "landing page": Limits(r"book/index", 95_000, 3_150, 1),
    "core chapter": Limits(r"chapters/\d.*", 215_000, 15_500, 1),
    "deeper page": Limits(r"chapters/deeper/.*", 200_000, 12_700, 1),
    "generated page": Limits(r"book/generated/.*", 240_000, 48_000, 1),
    "page of the book": Limits(r"book/[\w-]+", 167_000, 6_400, 1),
    "source": Limits(r"_modules/tested_transformer/.*", 103_000, 15_500, 1),
    "list": Limits(r"genindex|py-modindex|search|404|_modules/index", 278_000, 17_000, 1),
}


def kind_of(name: str) -> str:
    """The kind of a page, the first that fits."""
    page = name.removesuffix(".html")
    return next(kind for kind, limits in LIMITS.items() if re.fullmatch(limits.names, page))


pytestmark = pytest.mark.skipif(not PAGES, reason="the site is not built: run make book")


@pytest.fixture(scope="module")
def browser():
    chromium = find_chromium()
    if chromium is None:
        pytest.skip(MISSING)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chrome = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        # One for all pages, so that scripts and styles are cached; nobody waits for what moves.
        yield chrome.new_context(reduced_motion="reduce")
        chrome.close()


@pytest.fixture(scope="module")
def address():
    server = serve.start(SITE, base=BASE)
    yield f"http://127.0.0.1:{server.server_port}{BASE.rstrip('/')}"
    server.shutdown()


# Pictures and sections that wait until a reader comes near.
NOTHING_WAITS = """async () => {
    for (const section of document.querySelectorAll('section')) section.style.contentVisibility = 'visible';
    for (const image of document.images) image.loading = 'eager';
    await Promise.all([...document.images].map(image => image.decode().catch(() => 0)));
    await document.fonts.ready;
}"""


class Visit:
    """One page, opened, with everything that went wrong on the way.

    As a context it closes the page, and by then nothing may have gone wrong.
    """

    def __init__(self, browser, base: str, name: str, *, weighed: bool = False):
        url = f"{base}/{name}"
        self.page = browser.new_page()
        self.traffic = Traffic(self.page) if weighed else None
        self.elsewhere, self.errors = [], []
        self.home = urlsplit(url).netloc
        self.page.on("request", self._request)
        self.page.on("requestfailed", lambda r: self.errors.append(f"failed: {r.url} {r.failure}"))
        self.page.on("response", self._response)
        self.page.on("pageerror", lambda error: self.errors.append(f"script: {error}"))
        self.page.on("console", self._console)
        self.page.goto(url, wait_until="load")
        if name == "index.html":  # it only leads on
            self.page.wait_for_url("**/book/index.html", wait_until="load")
        self.page.evaluate(NOTHING_WAITS)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.page.close()
        if kind is None:
            assert self.wrong() == []

    def wrong(self) -> list[str]:
        """What went wrong until now."""
        return [f"asked of another host: {url}" for url in self.elsewhere] + self.errors

    def _request(self, request):
        parts = urlsplit(request.url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.netloc != self.home:
            self.elsewhere.append(request.url)

    def _response(self, response):
        if response.status >= 400:
            self.errors.append(f"{response.status}: {response.url}")

    def _console(self, message):
        if message.type == "error":
            self.errors.append(f"console: {message.text}")


@pytest.fixture
def page(visit):
    """The page of the module's own fixture `visit`."""
    return visit.page


def wrong_with(page) -> list[str]:
    """What a reader would miss on the page: unset formulas, pictures without words."""
    return page.evaluate(r"""() => {
        const wrong = [];
        for (const place of document.querySelectorAll('.math')) {
            const math = place.querySelector('math'), box = math?.getBoundingClientRect();
            if (!math?.querySelector('annotation')?.textContent.trim())
                wrong.push('not set: ' + place.textContent.trim());
            else if (place.checkVisibility() && !(box.width > 1 && box.height > 1))
                wrong.push('set, and nothing to see: ' + place.textContent.trim());
        }
        for (const bad of document.querySelectorAll('merror')) wrong.push('merror: ' + bad.textContent);
        const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        while (texts.nextNode()) {
            const text = texts.currentNode, code = 'code, pre, script, style, annotation, .sig, svg';
            if (/\\[(\[]|\\[a-zA-Z]+\{|\$\$/.test(text.data) && !text.parentElement.closest(code))
                wrong.push('raw TeX: ' + text.data.trim().slice(0, 80));
        }
        for (const image of document.querySelectorAll('img'))
            if (!image.alt.trim()) wrong.push('no alt: ' + image.src);
            else if (image.complete && !image.naturalWidth) wrong.push('no picture: ' + image.src);
        const inline = 'article svg:not([aria-hidden="true"])';
        for (const drawing of document.querySelectorAll(inline))
            if (!drawing.getAttribute('aria-label') && !drawing.querySelector('title'))
                wrong.push('no label: ' + drawing.outerHTML.slice(0, 80));
        return wrong;
    }""")


def too_wide(page, everywhere: bool = True) -> list[str]:
    """The widths and color schemes at which the page scrolls sideways.

    The dark changes colors, and a few drawings: not everywhere, the least width is tried there, and another in light.
    """
    wide = []
    for scheme, least in zip(SCHEMES, (WIDTHS[1:2], WIDTHS[:1]), strict=True):
        widths = WIDTHS if everywhere else least
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function(
            f"(document.documentElement.dataset.theme ?? '{scheme}') === '{scheme}'",
            timeout=20_000,
        )
        for width in widths:
            page.set_viewport_size({"width": width, "height": 900})
            seen = page.evaluate("document.documentElement.scrollWidth")
            if seen > width:
                wide.append(f"{scheme}, {width} px: the page is {seen} px wide")
    return wide


# Letters that may look different, the first of each: one character in one font, one size or weight apart.
MARK_LETTERS = """() => {
    const seen = new Set();
    for (const letter of document.querySelectorAll('math :is(mi, mn, mo, mtext)')) {
        if (!letter.checkVisibility()) continue;
        const {fontFamily, fontWeight, fontStyle, mathStyle} = getComputedStyle(letter);
        const look = [letter.textContent, letter.localName, fontFamily, fontWeight, fontStyle, mathStyle].join();
        if (!seen.has(look)) letter.setAttribute('data-letter', '');
        seen.add(look);
    }
    return seen.size;
}"""


def strange_letters(page) -> list[str]:
    """Formulas need no font of the machine. A letter that the book's part of the font lacks is one more in
    tools/math_font.py."""
    if not page.evaluate(MARK_LETTERS):
        return []
    seen = page.context.new_cdp_session(page)
    for domain in ("DOM", "CSS"):
        seen.send(f"{domain}.enable")
    root = seen.send("DOM.getDocument", {"depth": 0})["root"]["nodeId"]
    letters = {"nodeId": root, "selector": "[data-letter]"}
    used, ours = {}, False
    for node in seen.send("DOM.querySelectorAll", letters)["nodeIds"]:
        for font in seen.send("CSS.getPlatformFontsForNode", {"nodeId": node})["fonts"]:
            ours = ours or font["isCustomFont"]
            if not font["isCustomFont"]:
                used[font["familyName"]] = node
    seen_in = {
        family: seen.send("DOM.getOuterHTML", {"nodeId": node})["outerHTML"]
        for family, node in used.items()
    }
    seen.detach()
    return [f"{family}: {html}" for family, html in seen_in.items()] + (
        [] if ours else ["no formula in the book's font"]
    )


class Traffic:
    """What a page brings over the network, in bytes: each address with its headers."""

    def __init__(self, page):
        self.page, self.asked, self.sizes, self.open = page, {}, {}, set()
        network = page.context.new_cdp_session(page)
        network.send("Network.enable")
        network.on("Network.requestWillBeSent", self._asked)
        network.on("Network.loadingFinished", self._finished)
        network.on("Network.loadingFailed", lambda e: self.open.discard(e["requestId"]))

    def _asked(self, event):
        self.asked[event["requestId"]] = event["request"]["url"]
        self.open.add(event["requestId"])

    def _finished(self, event):
        self.open.discard(event["requestId"])
        address = self.asked.get(event["requestId"], "")
        if address.startswith("http"):
            self.sizes[address] = event["encodedDataLength"]

    def all(self) -> dict[str, float]:
        """The sizes, once everything that was asked for is there."""
        end = time.monotonic() + 10
        while self.open and time.monotonic() < end:
            self.page.wait_for_timeout(10)
        assert not self.open, [self.asked[each] for each in self.open]
        return self.sizes


def transferred(browser, context, url: str) -> dict[str, float]:
    """The traffic of a page of its own."""
    page = context.new_page()
    traffic = Traffic(page)
    page.goto(url, wait_until="load")
    page.evaluate(NOTHING_WAITS)
    sizes = traffic.all()
    page.close()
    return sizes


COST = """() => {
    const texts = document.createTreeWalker(document.documentElement, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT);
    let nodes = 1;
    while (texts.nextNode()) nodes++;
    const blocking = performance.getEntriesByType('resource').filter(one => one.renderBlockingStatus === 'blocking');
    return [nodes, blocking.map(one => one.name)];
}"""


@dataclass(frozen=True)
class Weight:
    """What one page costs a reader."""

    name: str
    sizes: dict[str, float]
    nodes: int
    blocking: list[str]

    def too_much(self, known: Iterable[str]) -> list[str]:
        """What is beyond the limits of the page's kind; `known` stands in the browser's cache on the next visit."""
        kind = kind_of(self.name)
        limits = LIMITS[kind]
        known = set(known)
        then = {url: size for url, size in self.sizes.items() if url not in known}
        largest = dict(sorted(self.sizes.items(), key=lambda item: -item[1])[:6])
        wrong = [
            f"{what}: {seen:,.0f}, a {kind} may have {most:,}: {details}"
            for what, seen, most, details in (
                ("bytes", sum(self.sizes.values()), limits.bytes, largest),
                ("bytes on the next visit", sum(then.values()), NEXT_VISIT, then),
                ("nodes", self.nodes, limits.nodes, ""),
                ("blocking requests", len(self.blocking), limits.blocking, self.blocking),
            )
            if seen > most
        ]
        pictures = {url: size for url, size in self.sizes.items() if "/_images/" in url}
        wrong += [
            f"picture of {size} bytes: {url}"
            for url, size in pictures.items()
            if size >= PICTURE or not url.endswith((".svg", ".webp"))
        ]
        return wrong


@pytest.fixture(scope="module")
def before(browser, address):
    """What two chapters leave in the browser's cache."""
    found = {}
    for name in (OTHER, CHAPTER):
        context = browser.browser.new_context()
        found[name] = transferred(browser, context, f"{address}/{name}")
        context.close()
    return found


def test_what_pages_share_comes_once(browser, address, before):
    """Style, scripts and fonts of one page are there for the next: only its own files are asked for."""
    context = browser.browser.new_context()
    transferred(browser, context, f"{address}/{OTHER}")
    then = transferred(browser, context, f"{address}/{CHAPTER}")
    context.close()
    own = {url: size for url, size in before[CHAPTER].items() if url not in before[OTHER]}
    assert {url for url, size in then.items() if size} == set(own)
    assert f"{address}/{CHAPTER}" in own
    shared = {urlsplit(url).path.rpartition(".")[2] for url in before[CHAPTER] if url not in own}
    assert shared >= {"css", "js", "woff2"}


@contextmanager
def unfolded(page) -> Iterator[None]:
    """The page with every fold open, for a while."""
    closed = page.locator("details:not([open])").element_handles()
    page.evaluate(axe.OPEN_FOLDS)
    yield
    page.evaluate("folds => { for (const fold of folds) fold.open = false; }", closed)


def judged_by_axe(page, name: str) -> list[str]:
    """What axe finds, and whether the page enlarged to 400 % scrolls sideways.

    At the width at which the page was loaded: after another one the theme takes a while to make what
    scrolls a stop for the tab key.
    """
    page.evaluate(axe.AXE)
    wrong = []
    axe.use_scheme(page, "light")
    wrong += [f"axe, light: {found}" for found in axe.everything(page)]
    if name in OF_EACH_KIND:
        axe.use_scheme(page, "dark")
        wrong += [f"axe, dark: {found}" for found in axe.colors(page)]
    page.set_viewport_size({"width": 320, "height": 640})  # 1280 px, enlarged to 400 %
    seen = page.evaluate("document.documentElement.scrollWidth")
    return wrong + ([f"at 400 %: {seen} px wide"] if seen > 320 else [])


@pytest.mark.parametrize("name", STANDING)
def test_page(browser, address, before, name):
    """All that is asked of a page, on one visit."""
    size = {"width": 1280, "height": 800}
    context = browser.browser.new_context(
        reduced_motion="reduce", viewport=size
    )  # nothing is cached
    visit = Visit(context, address, name, weighed=True)
    page, sizes = visit.page, visit.traffic.all()
    weight = Weight(name, sizes, *page.evaluate(COST))
    known = before[CHAPTER if name != CHAPTER else OTHER]
    wrong = weight.too_much(known) + wrong_with(page)
    with unfolded(page):
        wrong += strange_letters(page) + judged_by_axe(page, name)
    wrong += too_wide(page, name in OF_EACH_KIND) + visit.wrong()
    context.close()
    assert f"{address}/{name}" in sizes
    assert wrong == [], name


FAULTS = r"""() => document.querySelector('article').insertAdjacentHTML('beforeend', `
    <p>\\(x\\)</p> <img src="data:,"> <math><mtext>Ж</mtext></math> <button></button>
    <div style="width: 1600px; height: 1em"></div>`)"""


def test_what_is_wrong_with_a_page_is_told(browser, address):
    """Each of the checks finds its fault."""
    context = browser.browser.new_context(reduced_motion="reduce")
    visit = Visit(context, address, "book/notation.html", weighed=True)
    page = visit.page
    assert wrong_with(page) + strange_letters(page) == []
    page.evaluate(FAULTS)
    found = wrong_with(page)
    assert [one.partition(":")[0] for one in found] == ["raw TeX", "no alt"]
    assert len(strange_letters(page)) == 1
    judged = " ".join(judged_by_axe(page, "book/notation.html"))
    assert "axe, light: button-name" in judged
    assert "at 400 %: 16" in judged
    assert len(too_wide(page)) == 2 * len(WIDTHS)
    context.close()


def test_what_is_too_heavy_is_told():
    limits = LIMITS["list"]
    sizes = {"404.html": limits.bytes, "/_images/a.png": PICTURE}
    weight = Weight("404.html", sizes, limits.nodes + 1, ["a.css"] * (limits.blocking + 1))
    told = weight.too_much(known=())
    assert [one.partition(":")[0] for one in told] == [
        "bytes", "bytes on the next visit", "nodes", "blocking requests", "picture of 100000 bytes",
    ]  # fmt: skip
    assert Weight("404.html", {"404.html": 1}, 1, []).too_much(known=()) == []


def test_the_front_door_leads_on(browser, address):
    with Visit(browser, address, "index.html") as visit:
        assert wrong_with(visit.page) == []


# A host shows the 404 page in place of any other, so its links begin at the host, and from disk nothing asks for it.
@pytest.mark.parametrize("name", sorted(OF_EACH_KIND - {"404.html"}))
def test_page_from_disk(browser, name):
    with Visit(browser, SITE.as_uri(), name) as visit:
        assert wrong_with(visit.page) == []


@pytest.mark.parametrize("name", [n for n in PAGES if n.startswith(("chapters/0", "book/no"))])
def test_without_scripts(browser, address, name):
    """Text, formulas and still figures need none."""
    context = browser.browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{address}/{name}", wait_until="load")
    page.evaluate(NOTHING_WAITS)
    assert len(page.inner_text(".bd-content")) > 2000  # what is hidden is no inner text
    assert wrong_with(page) == []
    assert page.evaluate(
        "[...document.images].every(image => image.complete && image.naturalWidth)"
    )
    context.close()


def test_search_from_disk(browser):
    with Visit(browser, SITE.as_uri(), "search.html?q=attention") as visit:
        visit.page.wait_for_selector("#search-results li a")
        assert "attention" in visit.page.locator("#search-results li a").first.inner_text()


class Links(HTMLParser):
    """The anchors that a page has, and the places that it points to."""

    def __init__(self, path: Path):
        super().__init__()
        self.anchors, self.targets = {"", "top"}, []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        self.anchors.update(named[key] for key in ("id", "name") if named.get(key))
        for key in ("href", "src"):
            if named.get(key):
                self.targets.append(named[key])


def test_no_broken_link():
    pages = {SITE / name: Links(SITE / name) for name in PAGES}
    broken = []
    for path, links in pages.items():
        for target in links.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            way = parts.path
            if way.startswith("/") and path.name != "404.html":  # which nobody opens from disk
                broken.append(f"{path.relative_to(SITE)}: {target} (from the root)")
            start = SITE if way.startswith("/") else path.parent
            way = way.removeprefix(BASE) if way.startswith("/") else way
            there = (start / unquote(way)).resolve() if way else path
            if not there.is_file():
                broken.append(f"{path.relative_to(SITE)}: {target}")
            elif there in pages and unquote(parts.fragment) not in pages[there].anchors:
                broken.append(f"{path.relative_to(SITE)}: {target} (no such anchor)")
    assert broken == []
