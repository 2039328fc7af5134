"""The built site for readers who see little, use a keyboard or large letters, or run no scripts.

axe-core judges every page in test_site.py; what it cannot see (the order of the tab key, whether the place
of the focus shows, what Enter and Escape do) is tried here.
"""

import re

import pytest
import test_site as site

from axe import AXE, OPEN_FOLDS, colors, everything, use_scheme

browser, address = site.browser, site.address
PAGES = [name for name in site.PAGES if name != "index.html"]  # which only leads on
CHAPTER = "chapters/04_masks.html"
MODULE = "_modules/tested_transformer/functional/masks.html"
KINDS = ["book/index.html", CHAPTER, "book/glossary.html", "book/generated/api_functional.html", MODULE,
         "genindex.html", "search.html", "404.html"]  # fmt: skip
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 360, "height": 740}
pytestmark = pytest.mark.skipif(not PAGES, reason="the site is not built: run make book")


@pytest.fixture
def visit(browser, address):
    """Open pages; each is closed in the end, and no script may have failed."""
    visits = []

    def open_page(name: str, size=DESKTOP):
        visits.append(site.Visit(browser, address, name))
        visits[-1].page.set_viewport_size(size)
        return visits[-1].page

    yield open_page
    for one in visits:
        one.page.close()
        assert one.errors == []


@pytest.mark.parametrize("scheme", site.SCHEMES)
@pytest.mark.parametrize("name", [CHAPTER, MODULE])
def test_colors_without_scripts(browser, address, name, scheme):
    """The system's choice of light or dark is respected without scripts too.

    axe is a script itself, so the page is made as a browser without scripts reads it.
    """
    html = (site.SITE / name).read_text(encoding="utf-8")
    html = re.sub(r"<script\b.*?</script>|</?noscript>", "", html, flags=re.DOTALL)
    page = browser.new_page()
    page.emulate_media(color_scheme=scheme)
    url = f"{address}/{name}"
    page.route(url, lambda route: route.fulfill(body=html, content_type="text/html; charset=utf-8"))
    page.goto(url, wait_until="load")
    page.evaluate(site.NOTHING_WAITS)
    page.evaluate(OPEN_FOLDS)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    level = sum(map(int, re.findall(r"\d+", background)[:3])) / 3 / 255
    keyword, string = page.evaluate(
        "['k', 's1, .s2'].map(kind => getComputedStyle(document.querySelector(`pre .${kind}`)).color)"
    )
    page.evaluate(AXE)
    wrong = colors(page)
    page.close()
    assert keyword != string  # code has its colors
    assert level < 0.2 if scheme == "dark" else level > 0.9
    assert wrong == []


# ------------------------------------------------------------------------------------------ keyboard

# What has the focus, and what could be wrong with it: it does not show, it is behind something, it is not
# where the reading goes on.
STOP = r"""async () => {
    await Promise.allSettled(document.getAnimations().map(one => one.finished));
    const wrong = [], here = document.activeElement, before = window.lastStop;
    if (here === document.body) return null;
    const rgb = color => (color.match(/[\d.]+/g) ?? []).map(Number);
    const light = color => rgb(color).slice(0, 3).map(part => part / 255)
        .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
        .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
    let back = here.parentElement;
    while (back && rgb(getComputedStyle(back).backgroundColor)[3] === 0) back = back.parentElement;
    const behind = light(back ? getComputedStyle(back).backgroundColor : 'rgb(255, 255, 255)');
    const style = getComputedStyle(here), ring = light(style.outlineColor);
    const contrast = (Math.max(ring, behind) + 0.05) / (Math.min(ring, behind) + 0.05);
    if (style.outlineStyle === 'none' || parseFloat(style.outlineWidth) < 2) wrong.push('no ring');
    else if (contrast < 3) wrong.push(`a ring of contrast ${contrast.toFixed(2)}`);
    const boxes = [...here.getClientRects()].filter(box => box.width > 1 && box.height > 1);
    const points = boxes.flatMap(box => [0.1, 0.5, 0.9].flatMap(
        x => [0.1, 0.5, 0.9].map(y => [box.left + x * box.width, box.top + y * box.height])));
    const seen = points.some(([x, y]) => {
        const top = document.elementFromPoint(x, y);
        return top && (here.contains(top) || (top.contains(here) && getComputedStyle(here).pointerEvents === 'none'));
    });
    if (!seen) wrong.push('hidden');
    if (before && !(before.compareDocumentPosition(here) & Node.DOCUMENT_POSITION_FOLLOWING))
        wrong.push('out of order');
    window.lastStop = here;
    here.dataset.stopped = '';
    const name = here.getAttribute('aria-label') || here.textContent.trim() || here.title || here.value;
    return {name: name.replace(/\s+/g, ' '), wrong, html: here.outerHTML.slice(0, 150)};
}"""
# What a mouse can use on the page, and the tab key did not come by.
MISSED = r"""() => [...document.querySelectorAll('a[href], button, input, select, textarea, summary, [onclick], .formula')]
    .filter(item => !('stopped' in item.dataset) && item.checkVisibility({visibilityProperty: true}))
    .filter(item => !item.disabled && (item.type !== 'radio' || item.checked))
    .filter(item => !item.matches('.formula') || item.scrollWidth > item.clientWidth)
    .map(item => item.outerHTML.slice(0, 150))"""


# The search page puts the focus into its field.
TO_THE_BEGINNING = """() => {
    const first = document.createElement('span');
    first.tabIndex = -1;
    document.body.prepend(first);
    first.focus();
    first.remove();
    window.lastStop = null;
    for (const stopped of document.querySelectorAll('[data-stopped]')) delete stopped.dataset.stopped;
}"""


def walk(page, most: int) -> list[dict]:
    """Press the tab key until the page ends, or often enough."""
    stops = []
    page.evaluate(TO_THE_BEGINNING)
    while len(stops) < most:
        page.keyboard.press("Tab")
        stop = page.evaluate(STOP)
        if stop is None:
            break
        stops.append(stop)
    return stops


@pytest.mark.parametrize("name", KINDS)
def test_tab_key(visit, name):
    """The skip link comes first and leads past the rest; then everything, in the order of the page, and one
    sees where one is."""
    page = visit(name)
    most = 600 if name in (CHAPTER, "book/index.html") else 100
    for scheme, size in (("light", DESKTOP), ("dark", PHONE)):
        page.set_viewport_size(size)
        use_scheme(page, scheme)
        stops = walk(page, most)
        assert stops[0]["name"] == "Skip to main content", scheme
        assert len(stops) > 5, scheme
        assert [stop for stop in stops if stop["wrong"]] == [], scheme
        if len(stops) < most:
            assert page.evaluate(MISSED) == [], scheme
    page.set_viewport_size(DESKTOP)
    page.evaluate(TO_THE_BEGINNING)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.querySelector('main').contains(document.activeElement)")


FOCUSED = "selector => document.activeElement.matches(selector)"


def focused(page, selector: str) -> bool:
    return page.evaluate(FOCUSED, selector)


@pytest.mark.parametrize("open_by", ["keys", "button"])
def test_search_by_keyboard(visit, open_by):
    page = visit(CHAPTER)
    if open_by == "keys":
        start = ".chapter-facts a"
        page.locator(start).first.focus()
        page.keyboard.press("Control+k")
    else:
        start = ".search-button-field"
        page.locator(start).focus()
        page.keyboard.press("Enter")
    assert focused(page, "#pst-search-dialog input")
    assert page.get_by_role("dialog", name="Search").is_visible()
    page.evaluate(AXE)
    assert everything(page) == []
    page.keyboard.type("mask")
    page.keyboard.press("Escape")
    assert not page.locator("#pst-search-dialog").is_visible()
    assert focused(page, start)
    page.keyboard.press("Control+k")
    page.keyboard.press("Control+a")
    page.keyboard.type("mask")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?q=mask*")
    page.wait_for_selector("#search-results li a")


def test_colors_by_keyboard(visit):
    page = visit(CHAPTER)
    use_scheme(page, "light")
    button = page.locator(".theme-switch-button:visible")
    button.focus()
    seen = []
    for _ in range(3):
        page.keyboard.press("Enter")
        mode = page.evaluate("document.documentElement.dataset.mode")
        assert button.get_attribute("aria-label") == f"Color mode: {mode}"
        seen.append(mode)
    assert sorted(seen) == ["auto", "dark", "light"]


@pytest.mark.parametrize(
    ("name", "dialog"),
    [("Contents of the book", "primary"), ("Contents of this page", "secondary")],
)
def test_sidebars_on_a_phone_by_keyboard(visit, name, dialog):
    page = visit(CHAPTER, PHONE)
    button = page.get_by_role("button", name=name)
    button.focus()
    page.keyboard.press("Enter")
    inside = f"#pst-{dialog}-sidebar-modal"
    page.wait_for_selector(f"{inside} a:visible")
    page.keyboard.press("Tab")
    assert focused(page, f"{inside} *")
    assert page.get_by_role("dialog", name=name).is_visible()
    page.evaluate(AXE)
    assert everything(page) == []
    page.keyboard.press("Escape")
    page.wait_for_selector(inside, state="hidden")
    page.wait_for_function(FOCUSED, arg=f".{dialog}-toggle", timeout=5000)


def test_the_drawer_gives_way_to_the_place_chosen_in_it(visit):
    page = visit(CHAPTER, PHONE)
    page.get_by_role("button", name="Contents of this page").click()
    drawer = "#pst-secondary-sidebar-modal"
    page.locator(drawer).get_by_role("link", name="What goes wrong").click()
    page.wait_for_selector(drawer, state="hidden")
    assert page.evaluate("location.hash") == "#what-goes-wrong"
    top = page.locator("#what-goes-wrong h2").first.evaluate("e => e.getBoundingClientRect().top")
    assert 0 <= top < PHONE["height"] / 2


def test_folds_by_keyboard(visit):
    page = visit(CHAPTER)
    for fold in page.locator("article details").all():
        summary = fold.locator("> summary")
        shown = fold.get_attribute("open") is not None
        for _ in range(2):
            summary.focus()
            page.keyboard.press("Enter")
            shown = not shown
            assert (fold.get_attribute("open") is not None) == shown


def test_copy_button_by_keyboard(browser, visit):
    browser.grant_permissions(["clipboard-read", "clipboard-write"])
    page = visit(CHAPTER)
    block = page.locator("div.highlight:visible:has(button.copybtn)").first
    block.locator("button.copybtn").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("button.copybtn.success")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.split() == block.locator("pre").inner_text().split()


def test_download_menu_by_keyboard(visit):
    page = visit(CHAPTER)
    button = page.get_by_role("button", name="Download this page")
    button.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowDown")
    assert focused(page, ".dropdown-menu .dropdown-item")
    page.keyboard.press("Escape")
    assert button.get_attribute("aria-expanded") == "false"
    assert button.evaluate("button => button === document.activeElement")


# --------------------------------------------------------------------------------- motion and letters

MOVING = r"""() => [document.documentElement, ...document.querySelectorAll('body *')].filter(element => {
    const style = getComputedStyle(element);
    const longest = times => Math.max(...times.split(',').map(parseFloat));
    return longest(style.transitionDuration) > 0.001 || longest(style.animationDuration) > 0.001
        || style.scrollBehavior === 'smooth';
}).length"""


def test_nothing_moves_for_who_asks_for_that(visit):
    page = visit(CHAPTER)
    page.emulate_media(reduced_motion="no-preference")
    assert page.evaluate(MOVING) > 0
    page.emulate_media(reduced_motion="reduce")
    assert page.evaluate(MOVING) == 0


# Text that is cut off: its box hides what does not fit, and something does not.
CUT_OFF = r"""() => [...document.querySelectorAll('body *')].filter(element => {
    const style = getComputedStyle(element);
    if (!/hidden|clip/.test(style.overflowX + style.overflowY) || !element.checkVisibility()) return false;
    if (!element.textContent.trim() || element.closest('svg, math, .visually-hidden')) return false;
    return element.scrollWidth > element.clientWidth + 2 && /hidden|clip/.test(style.overflowX)
        || element.scrollHeight > element.clientHeight + 2 && /hidden|clip/.test(style.overflowY);
}).map(element => element.outerHTML.slice(0, 150))"""
LETTERS = {
    "twice as large": "html { font-size: 200% !important }",
    # The distances that WCAG 1.4.12 names.
    "further apart": """* { line-height: 1.5 !important; letter-spacing: 0.12em !important;
        word-spacing: 0.16em !important } p { margin-bottom: 2em !important }""",
}


@pytest.mark.parametrize("name", KINDS)
def test_letters(visit, name):
    """Nothing is lost when a reader makes the letters larger or sets them further apart."""
    page = visit(name)
    page.evaluate(OPEN_FOLDS)
    for how, style in LETTERS.items():
        tag = page.add_style_tag(content=style)
        assert page.evaluate(CUT_OFF) == [], how
        assert page.evaluate("document.documentElement.scrollWidth") <= DESKTOP["width"], how
        tag.evaluate("tag => tag.remove()")


def test_what_goes_on_to_the_right_says_so(visit):
    """A number that is cut at the edge of a phone reads as another number."""
    page = visit(CHAPTER, PHONE)
    assert page.locator(".bd-article pre.goes-on").count() > 20
    wide = page.locator(".bd-article .cell_output pre.goes-on").first.element_handle()
    assert "inset" in wide.evaluate("pre => getComputedStyle(pre).boxShadow")
    wide.evaluate("pre => pre.scrollTo(pre.scrollWidth, 0)")
    page.wait_for_function("pre => !pre.classList.contains('goes-on')", arg=wide, timeout=5000)
    narrow = page.evaluate("""() => [...document.querySelectorAll('.bd-article pre')].filter(
        pre => pre.scrollWidth <= pre.clientWidth && pre.matches('.goes-on')).length""")
    assert narrow == 0
