"""Every page of the built site in Chromium, served and from disk.

Whoever opens a page sees what was meant: nothing is asked of another host, no script fails, all
mathematics is set, every link leads somewhere, every picture has words, and nothing is wider than
the screen, on a phone or a desktop, in light or dark.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

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
FIRST_VISIT, NEXT_VISIT, PICTURE = 700_000, 150_000, 100_000  # bytes, as they travel
SCHEMES = ("light", "dark")

pytestmark = pytest.mark.skipif(not PAGES, reason="the site is not built: run make book")


@pytest.fixture(scope="module")
def browser():
    chromium = find_chromium()
    if chromium is None:
        pytest.skip(MISSING)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chrome = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield chrome.new_context()  # one for all pages, so that scripts and styles are cached
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

    def __init__(self, browser, base: str, name: str):
        url = f"{base}/{name}"
        self.page = browser.new_page()
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
            assert self.elsewhere == []
            assert self.errors == []

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


def too_wide(page) -> list[str]:
    """The widths and color schemes at which the page scrolls sideways."""
    wide = []
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function(
            f"(document.documentElement.dataset.theme ?? '{scheme}') === '{scheme}'", timeout=20_000
        )
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            seen = page.evaluate("document.documentElement.scrollWidth")
            if seen > width:
                wide.append(f"{scheme}, {width} px: the page is {seen} px wide")
    return wide


@pytest.mark.parametrize("name", PAGES)
def test_page_served(browser, address, name):
    with Visit(browser, address, name) as visit:
        assert wrong_with(visit.page) == []
        assert too_wide(visit.page) == []


# A host shows the 404 page in place of any other, so its links begin at the host, and from disk nothing asks for it.
@pytest.mark.parametrize("name", [name for name in PAGES if name != "404.html"])
def test_page_from_disk(browser, name):
    with Visit(browser, SITE.as_uri(), name) as visit:
        assert wrong_with(visit.page) == []


@pytest.mark.parametrize("name", [n for n in PAGES if "<math" in (SITE / n).read_text("utf-8")])
def test_mathematics_needs_no_font_of_the_machine(browser, address, name):
    """A letter that the book's part of the font lacks is one more in tools/math_font.py."""
    visit = Visit(browser, address, name)
    seen = browser.new_cdp_session(visit.page)
    for domain in ("DOM", "CSS"):
        seen.send(f"{domain}.enable")
    root = seen.send("DOM.getDocument", {"depth": 0})["root"]["nodeId"]
    letters = {"nodeId": root, "selector": "math :is(mi, mn, mo, mtext)"}
    used = {}
    for node in seen.send("DOM.querySelectorAll", letters)["nodeIds"]:
        for font in seen.send("CSS.getPlatformFontsForNode", {"nodeId": node})["fonts"]:
            used[font["familyName"], font["isCustomFont"]] = node
    strange = {
        family: seen.send("DOM.getOuterHTML", {"nodeId": node})["outerHTML"]
        for (family, ours), node in used.items()
        if not ours
    }
    visit.page.close()
    assert strange == {}
    assert used


def transferred(browser, context, url: str) -> dict[str, float]:
    """What a visit to a page brings over the network, in bytes: each address with its headers."""
    page = context.new_page()
    network = context.new_cdp_session(page)
    network.send("Network.enable")
    asked, sizes = {}, {}
    network.on(
        "Network.requestWillBeSent", lambda e: asked.update({e["requestId"]: e["request"]["url"]})
    )
    network.on(
        "Network.loadingFinished",
        lambda e: sizes.update({asked.get(e["requestId"], ""): e["encodedDataLength"]}),
    )
    page.goto(url, wait_until="load")
    page.evaluate(NOTHING_WAITS)
    page.wait_for_timeout(100)
    page.close()
    return {address: size for address, size in sizes.items() if address.startswith("http")}


STANDING = [name for name in PAGES if name != "index.html"]  # which only leads on


@pytest.mark.parametrize("place", range(len(STANDING)), ids=STANDING.__getitem__)
def test_weight(browser, address, place):
    """Little on the first visit, and less on the next page, for which style, script and font are there."""
    context = browser.browser.new_context()
    first, then = (
        transferred(browser, context, f"{address}/{STANDING[(place + step) % len(STANDING)]}")
        for step in (0, 1)
    )
    context.close()
    assert sum(first.values()) < FIRST_VISIT, first
    assert sum(then.values()) < NEXT_VISIT, then
    pictures = {url: size for url, size in first.items() if "/_images/" in url}
    assert all(url.endswith((".svg", ".webp")) for url in pictures), pictures
    assert all(size < PICTURE for size in pictures.values()), pictures
    assert f"{address}/{STANDING[place]}" in first


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
            start = SITE if way.startswith("/") else path.parent  # only the 404 page has such
            way = way.removeprefix(BASE) if way.startswith("/") else way
            there = (start / unquote(way)).resolve() if way else path
            if not there.is_file():
                broken.append(f"{path.relative_to(SITE)}: {target}")
            elif there in pages and unquote(parts.fragment) not in pages[there].anchors:
                broken.append(f"{path.relative_to(SITE)}: {target} (no such anchor)")
    assert broken == []
