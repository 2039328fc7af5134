"""The diagrams in Chromium: the page's colors in light and dark, legible on a phone, without scripts."""

from pathlib import Path

import pytest
from matplotlib.colors import to_rgb
from test_site import FLAGS, SITE, find_chromium

from tested_transformer.plotting.diagram import MARKS
from tested_transformer.plotting.diagrams import norm_places
from tested_transformer.plotting.style import ON_PAGE

PAGES = sorted(
    path
    for path in SITE.glob("chapters/**/*.html")
    if "tt-diagram" in path.read_text(encoding="utf-8")
)
COLORS = {
    mode: {name: ON_PAGE[name][i] for name in MARKS} for i, mode in enumerate(("light", "dark"))
}
pytestmark = pytest.mark.skipif(not PAGES, reason="the site is not built: run make book")

# Of each diagram: its width, its smallest letters as seen, what leaves it, and its colors.
LOOK = """() => [...document.querySelectorAll('svg.tt-diagram')].map(svg => {
    const ground = element => {
        while (element && getComputedStyle(element).backgroundColor === 'rgba(0, 0, 0, 0)') element = element.parentElement;
        return element && getComputedStyle(element).backgroundColor;
    };
    const box = svg.viewBox.baseVal, seen = svg.getBoundingClientRect(), scale = seen.width / box.width;
    const texts = [...svg.querySelectorAll('text')];
    const color = (kind, of) => {
        const found = svg.querySelector(kind);
        return found && getComputedStyle(found)[of];
    };
    return {
        width: seen.width,
        letters: Math.min(...texts.map(text => parseFloat(getComputedStyle(text).fontSize))) * scale,
        outside: texts.filter(text => {
            const at = text.getBBox();
            return at.x < 0 || at.y < 0 || at.x + at.width > box.width || at.y + at.height > box.height;
        }).map(text => text.textContent),
        plain: color('text:not(.word):not(a *)', 'fill'), page: getComputedStyle(document.body).color,
        ground: ground(svg), paper: ground(document.body),
        marks: Object.fromEntries(['query', 'key', 'value', 'output'].map(
            kind => [kind, color(`.word.${kind}`, 'fill') || color(`.edge.${kind}`, 'stroke')])),
    };
})"""


@pytest.fixture(scope="module")
def chrome():
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium here: install it, or name it in the variable CHROMIUM")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chrome = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield chrome
        chrome.close()


def looks(chrome, address: str, **options) -> dict[str, list[dict]]:
    """What is seen in light and in dark, on one visit."""
    context = chrome.new_context(**options)
    page, seen = context.new_page(), {}
    page.goto(address)
    for scheme in COLORS:
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        if options.get(
            "java_script_enabled", True
        ):  # else the style sheet goes by the reader's wish at once
            page.wait_for_function(f"document.documentElement.dataset.theme === '{scheme}'")
        seen[scheme] = page.evaluate(LOOK)
    context.close()
    return seen


def as_css(color: str) -> str:
    return f"rgb({', '.join(str(round(255 * part)) for part in to_rgb(color))})"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_diagrams_take_the_pages_colors_and_fit_a_phone(chrome, path):
    seen = looks(chrome, path.as_uri(), viewport={"width": 360, "height": 800})
    for scheme, diagrams in seen.items():
        assert diagrams
        fit_a_phone(diagrams, path, scheme)


def fit_a_phone(diagrams: list[dict], path: Path, scheme: str) -> None:
    for diagram in diagrams:
        assert 300 <= diagram["width"] <= 330
        assert diagram["letters"] >= 9.9
        assert diagram["outside"] == []
        assert diagram["plain"] == diagram["page"]
        assert diagram["ground"] == diagram["paper"]
        marks = {kind: color for kind, color in diagram["marks"].items() if color}
        assert marks.items() <= {k: as_css(c) for k, c in COLORS[scheme].items()}.items()
    uncolored = {
        "04_more_masks",
        "09_transformer",
        "16_yoco",
    }  # nothing there is a query, a key or a value
    assert any(diagram["marks"]["query"] for diagram in diagrams) == (path.stem not in uncolored)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_diagrams_are_there_without_scripts(chrome, path):
    """Playwright can still ask; the page itself runs nothing, and is as the reader's machine is."""
    for scheme, diagrams in looks(chrome, path.as_uri(), java_script_enabled=False).items():
        assert diagrams, scheme
        for diagram in diagrams:
            assert diagram["width"] == 480
            assert diagram["plain"] == diagram["page"]
            assert diagram["ground"] == diagram["paper"]
            assert diagram["marks"]["query"] in (None, as_css(COLORS[scheme]["query"])), scheme


@pytest.mark.parametrize("scheme", COLORS)
def test_jupyterlab_has_its_own_word_for_dark(chrome, scheme):
    """The machine's own wish does not count there."""
    html = f'<body data-jp-theme-light="{str(scheme == "light").lower()}">{norm_places().svg}'
    page = chrome.new_page(color_scheme="dark")
    page.set_content(html)
    (diagram,) = page.evaluate(LOOK)
    page.close()
    assert diagram["marks"]["query"] == as_css(COLORS[scheme]["query"])
