"""The pages in a browser: contrast, nothing asked of anybody, nothing cut off on a narrow screen."""

from dataclasses import replace

import pytest
from example_marks import (
    ASSIGNMENT,
    BY_HAND,
    CLASS,
    RIGHT,
    ROWS,
    WHY,
    WRONG_AXIS,
    marks,
)  # fmt: skip
from test_feedback import hostile

from chromium import FLAGS, MISSING, find_chromium
from tested_transformer.homework.reports.answers import answers_page
from tested_transformer.homework.reports.class_summary import class_summary
from tested_transformer.homework.reports.feedback import (
    feedback_page,
)

LONG = "x" * 400
SHOWN = {
    "feedback": feedback_page(ASSIGNMENT, hostile(), BY_HAND),
    "long words": feedback_page(
        ASSIGNMENT,
        marks(LONG, notes=(LONG,), parts={**RIGHT, ROWS: replace(WRONG_AXIS, got=LONG, why=LONG)}),
    ),
    "class": class_summary(ASSIGNMENT, [*CLASS, hostile(), marks(LONG, flags=(LONG,))], BY_HAND),
    "written": answers_page(ASSIGNMENT, [*CLASS, hostile(), marks(LONG, written={WHY: LONG})]),
}
CONTRAST = """() => {
  const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).map(Number).map(v => v / 255)
    .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b; };
  const ground = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (!/, 0\\)$/.test(c)) return c; } };
  const low = [];
  for (const e of document.querySelectorAll('main *')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
    const style = getComputedStyle(e), ink = e.closest('svg') ? style.fill : style.color;
    const [a, b] = [light(ink), light(ground(e))].sort((x, y) => y - x);
    if ((a + .05) / (b + .05) < 4.5) low.push(e.outerHTML.slice(0, 80)); }
  return low; }"""


@pytest.fixture(scope="module")
def chrome():
    found = find_chromium()
    if found is None:
        pytest.skip(MISSING)
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()


@pytest.mark.parametrize("name", SHOWN)
def test_in_a_browser(chrome, tmp_path, name):
    path = tmp_path / "page.html"
    path.write_text(SHOWN[name], encoding="utf-8")
    page, asked, said = chrome.new_page(), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    page.goto(path.as_uri())
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(CONTRAST) == []
        for width in (360, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert said == []
    page.close()


AWKWARD = (
    "Jörg Müller_1002_assignsubmission_file_/hw03",
    "Jörg Müller_1002_assignsubmission_file_/Homework 3 FINAL (2)/hw03-Copy1",
    "王小明_1005_assignsubmission_file_/hw03",
)
AWKWARD_CLASS = [replace(one, id=name) for name, one in zip(AWKWARD, CLASS[:3], strict=True)]
NOT_CUT_OFF = {
    "feedback": feedback_page(ASSIGNMENT, AWKWARD_CLASS[1], BY_HAND),
    "class": class_summary(ASSIGNMENT, AWKWARD_CLASS),
    "written": answers_page(ASSIGNMENT, AWKWARD_CLASS),
}
CUT_OFF = """() => [...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth)
  .map(e => e.getAttribute('aria-label'))"""
ON_SCREEN = """() => [...document.querySelectorAll('td')].filter(e => {
  const box = e.getBoundingClientRect(); return box.left < 0 || box.right > innerWidth || !box.width;
}).map(e => e.textContent)"""
BROKEN_IN_TWO = """() => [...document.querySelectorAll('.id')].filter(e =>
  getComputedStyle(e).display !== 'inline').length"""


@pytest.mark.parametrize("width", [360, 390, 1280])
@pytest.mark.parametrize("name", NOT_CUT_OFF)
def test_no_table_is_cut_off_and_no_id_stands_apart(chrome, tmp_path, name, width):
    path = tmp_path / "page.html"
    path.write_text(NOT_CUT_OFF[name], encoding="utf-8")
    page = chrome.new_page(viewport={"width": width, "height": 800})
    page.goto(path.as_uri())
    for looked_for in (CUT_OFF, ON_SCREEN):
        assert page.evaluate(looked_for) == []
    assert page.evaluate(BROKEN_IN_TWO) == 0
    page.close()


def test_a_narrow_table_names_each_number(chrome, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(NOT_CUT_OFF["class"], encoding="utf-8")
    page = chrome.new_page(viewport={"width": 390, "height": 800})
    page.goto(path.as_uri())
    named = "e => getComputedStyle(e, '::before').content"
    cells = [page.evaluate(named, cell) for cell in page.query_selector_all(".stack td")]
    assert cells[:4] == ['"Mean points"', '"right"', '"wrong"', '"not written"']
    page.set_viewport_size({"width": 1280, "height": 800})
    assert page.evaluate(named, page.query_selector(".stack td")) == "none"
    page.close()
