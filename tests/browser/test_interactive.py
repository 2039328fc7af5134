"""The figures with settings, as a reader uses them: keyboard, mouse, touch, paper, without scripts."""

import pytest
import test_site as site

import interactive_figures as figures
from tested_transformer.plotting.style import contrast

NAMES = list(figures.FIGURES)
browser, address, page = site.browser, site.address, site.page

pytestmark = pytest.mark.skipif(
    any(not (site.SITE / f"chapters/{name}.html").exists() for name in NAMES),
    reason="the site is not built: run make book",
)


@pytest.fixture(scope="module")
def made():
    return {name: figure() for name, figure in figures.FIGURES.items()}


@pytest.fixture
def visit(browser, address, request):
    """The page of a figure: the test's own, or that of each figure in turn."""
    with site.Visit(browser, address, f"chapters/{request.param}.html") as visit:
        yield visit


each = pytest.mark.parametrize(("visit", "name"), [(n, n) for n in NAMES], indirect=["visit"])
scale, masks, sampling = (pytest.mark.parametrize("visit", [n], indirect=True) for n in NAMES)


def control(page, place: int):
    return page.locator(f'.tt-look [data-axis="{place}"]')


def click_at(page, slider, share: float) -> dict:
    """Click on a slider's track where the middle of the thumb is to come."""
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    thumb = 16
    x = box["x"] + thumb / 2 + (box["width"] - thumb) * share
    page.mouse.click(x, box["y"] + box["height"] / 2)
    return box


SHOWN = """root => [...root.querySelectorAll('[data-slot]')].map(part => [
    Number(part.dataset.slot), part.dataset.by ?? null,
    part.dataset.to ? part.getAttribute(part.dataset.to) : part.textContent])"""


def wrong(page, figure, *choice: int, root: str = ".tt-look") -> list:
    """The parts that do not show what the package computes for the choice; all must be there."""
    wanted = list(figure.at(*choice).values())
    found = page.locator(root).first.evaluate(SHOWN)
    bad = []
    for slot, by, text in found:
        right = wanted[slot]
        if by is not None:
            wide = float(by) * (float(right) if right[:1].isdigit() else 0)
            bad += [] if abs(float(text) - wide) < 0.006 else [(slot, text, wide)]
        elif text != right:
            bad.append((slot, text, right))
    missing = set(range(len(wanted))) - {slot for slot, *_ in found}
    says = {
        int(n)
        for n in page.locator(f"{root} [data-says]").evaluate_all(
            "rows => rows.map(row => row.dataset.says)"
        )
    }
    return bad + sorted(missing - says)


@each
def test_it_begins_with_the_still_picture(page, made, name):
    figure = made[name]
    assert page.locator(".tt-controls").is_visible()
    assert page.locator(".tt-setting").is_hidden()
    assert wrong(page, figure, *figure.start) == []
    assert page.locator(".tt-words").inner_text() == figure.said
    assert (
        page.locator(".tt-drawing").get_attribute("aria-label") == f"{figure.title}. {figure.said}"
    )
    for place in range(len(figure.settings)):
        assert control(page, place).evaluate("input => input.labels.length") == 1


# --- The scale


@scale
def test_scale_by_keyboard(page, made):
    figure, slider = made["deeper/03_saturation"], control(page, 0)
    slider.focus()
    at = figure.start[0]
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "Home", "ArrowUp", "End"):
        page.keyboard.press(key)
        at = {"Home": 0, "End": 9, "ArrowLeft": at - 1}.get(key, at + 1)
        assert wrong(page, figure, at, 3) == []
        assert slider.get_attribute("aria-valuetext") == str(2**at)
        assert page.locator(".tt-slide b").inner_text() == str(2**at)
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    assert wrong(page, figure, 9, 4) == []
    page.keyboard.type("zwei")
    assert wrong(page, figure, 9, 8) == []
    assert (
        page.locator(".tt-words")
        .inner_text()
        .startswith("Head dimension 512, query zwei. Unscaled: 1.0")
    )


@scale
def test_scale_by_mouse(page, made):
    figure, slider = made["deeper/03_saturation"], control(page, 0)
    for at in (0, 9, 4):
        box = click_at(page, slider, at / 9)
        assert wrong(page, figure, at, 3) == []
    page.mouse.down()  # and dragged
    page.mouse.move(box["x"] + box["width"] * 0.999, box["y"] + box["height"] / 2, steps=5)
    page.mouse.up()
    assert wrong(page, figure, 9, 3) == []
    control(page, 1).select_option("vier")
    assert wrong(page, figure, 9, 0) == []


# --- Masks


@masks
def test_masks_by_keyboard(page, made):
    figure = made["deeper/04_more_masks"]
    assert control(page, 3).is_disabled()
    control(page, 0).focus()
    page.keyboard.press("Space")
    assert wrong(page, figure, 1, 0, 0, 1) == []
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    assert wrong(page, figure, 1, 1, 0, 1) == []
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    assert wrong(page, figure, 1, 1, 1, 1) == []
    page.keyboard.press("Tab")  # only now there is a width to choose
    for key, width in (("ArrowLeft", 0), ("End", 4), ("ArrowDown", 3)):
        page.keyboard.press(key)
        assert wrong(page, figure, 1, 1, 1, width) == []
        assert control(page, 3).get_attribute("aria-valuetext") == str(width + 1)


@masks
def test_rows_by_keyboard(page, made):
    shown = made["deeper/04_more_masks"].at(1, 0, 1, 1)
    for place in (0, 2):
        control(page, place).check()
    page.mouse.move(2, 2)
    control(page, 3).focus()
    for row in range(6):
        page.keyboard.press("Tab")
        assert page.locator(".tt-words").inner_text() == shown[f"says {row}"]
        assert page.locator(".tt-chosen").count() == 1
        label = page.evaluate("document.activeElement.getAttribute('aria-label')")
        assert label == shown[f"says {row}"]
    assert "nothing: a fully masked row" in label
    assert page.locator(".tt-empty").count() == 1
    page.keyboard.press("Escape")
    assert page.locator(".tt-words").inner_text().startswith("11 of 36 pairs may attend. One row")


@masks
def test_masks_by_mouse(page, made):
    figure = made["deeper/04_more_masks"]
    page.locator(".tt-switch", has_text="causal").click()
    assert wrong(page, figure, 0, 1, 0, 1) == []
    row = page.locator(".tt-row").nth(2)
    row.hover()
    assert page.locator(".tt-words").inner_text() == figure.at(0, 1, 0, 1)["says 2"]
    row.click()
    page.mouse.move(2, 2)  # a click holds the row
    assert (
        page.locator(".tt-words")
        .inner_text()
        .startswith("zwanzig may attend to vier (0.00), und (0.92)")
    )
    page.locator(".tt-row").nth(4).dispatch_event("click")  # not every browser gives it the focus
    assert page.locator(".tt-words").inner_text().startswith("pad 1 may attend to vier")
    control(page, 1).click()
    assert wrong(page, figure, 0, 0, 0, 1) == []
    assert page.locator(".tt-chosen").count() == 0
    control(page, 2).click()
    for width in (0, 3):
        click_at(page, control(page, 3), width / 4)
        assert wrong(page, figure, 0, 0, 1, width) == []


# --- Sampling


@sampling
def test_sampling_by_keyboard(page, made):
    figure = made["11_generating"]
    control(page, 0).focus()
    page.keyboard.press("ArrowLeft")
    assert wrong(page, figure, 3, 10, 5) == []
    page.keyboard.press("Tab")
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    assert wrong(page, figure, 3, 7, 5) == []
    page.keyboard.press("Tab")
    page.keyboard.press("Home")
    assert wrong(page, figure, 3, 7, 0) == []
    assert page.locator(".tt-words").inner_text().startswith("Words that stay: 1 of 34.")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Home")
    assert wrong(page, figure, 0, 7, 0) == []
    assert page.locator(".tt-slide b").all_inner_texts() == ["0", "10", "0.1"]


@sampling
def test_sampling_by_mouse(page, made):
    figure = made["11_generating"]
    for place, share, choice in (
        (2, 8 / 11, (4, 10, 8)),  # top-p 0.9
        (0, 1, (7, 10, 8)),  # temperature 4
        (1, 4 / 10, (7, 4, 8)),  # top-k 5
        (2, 1, (7, 4, 11)),
    ):
        click_at(page, control(page, place), share)
        assert wrong(page, figure, *choice) == []
    assert page.locator(".tt-drawing text", has_text="cut").count() == 8


# --- All of them


@pytest.mark.parametrize("name", NAMES)
def test_touch(browser, address, made, name):
    phone = browser.browser.new_context(
        viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True
    )
    visit, figure = site.Visit(phone, address, f"chapters/{name}.html"), made[name]
    page, choice = visit.page, list(figure.start)
    for place, setting in enumerate(figure.settings):
        if setting.kind == "switch":
            control(page, place).tap()
            choice[place] = 1 - choice[place]
        elif setting.kind == "slider":
            control(page, place).scroll_into_view_if_needed()
            box = control(page, place).bounding_box()
            assert box["height"] >= 40
            page.touchscreen.tap(box["x"] + 4, box["y"] + box["height"] / 2)
            choice[place] = 0
        assert wrong(page, figure, *choice) == []
    if name == "deeper/04_more_masks":
        page.locator(".tt-row").nth(1).tap()
        assert page.locator(".tt-words").inner_text() == figure.at(*choice)["says 1"]
    assert visit.errors == []
    phone.close()


@each
def test_nothing_is_wider_than_the_page(page, name):
    page.locator(".tt-look summary").click()
    for scheme in site.SCHEMES:
        page.emulate_media(color_scheme=scheme)
        for width in site.WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            for part in page.locator(".tt-look :is(.tt-drawing, input, select)").all():
                box = part.bounding_box()
                assert box["x"] >= 0
                assert box["x"] + box["width"] <= width
            assert 300 <= page.locator(".tt-drawing").bounding_box()["width"] <= 480


# Every visible color of the figure with what lies behind it, blended: the page, and a cell's shade.
COLORS = """() => {
    const root = document.querySelector('.tt-look'), found = [];
    const parts = (color) => color.match(/[\\d.]+/g).map(Number);
    let behind = root;
    while (parts(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
    const page = parts(getComputedStyle(behind).backgroundColor).slice(0, 3);
    const seen = (part) => part.checkVisibility({ visibilityProperty: true }) && getComputedStyle(part).visibility === 'visible';
    const painted = (color) => color.startsWith('rgb') && parts(color)[3] !== 0;
    for (const part of root.querySelectorAll('.tt-drawing :is(text, rect, path, line, polyline, circle)')) {
        const style = getComputedStyle(part), kind = part.tagName + '.' + part.getAttribute('class');
        if (!seen(part)) continue;
        if (part.tagName === 'text') {
            const cell = part.previousElementSibling, over = cell?.dataset.to === 'fill-opacity';
            const share = over ? Number(cell.getAttribute('fill-opacity')) : 0;
            const fill = over ? parts(getComputedStyle(cell).fill) : page;
            if (part.textContent) found.push([kind, 4.5, parts(style.fill).slice(0, 3), page.map((c, i) => (1 - share) * c + share * fill[i])]);
        } else if (painted(style.stroke)) found.push([kind, 3, parts(style.stroke).slice(0, 3), page]);
        else if (painted(style.fill)) found.push([kind, 3, parts(style.fill).slice(0, 3), page]);
    }
    for (const part of root.querySelectorAll('label, label b, .tt-words, .tt-setting, td, th, summary'))
        found.push([part.tagName, 4.5, parts(getComputedStyle(part).color).slice(0, 3), page]);
    return found;
}"""
BUSY = {
    "deeper/03_saturation": (6, 3),
    "deeper/04_more_masks": (1, 1, 1, 1),
    "11_generating": (2, 5, 11),
}


def set_all(page, figure, choice) -> None:
    for place, (setting, value) in enumerate(zip(figure.settings, choice, strict=True)):
        if setting.kind == "switch":
            control(page, place).set_checked(bool(value))
        elif setting.kind == "slider":
            control(page, place).fill(str(value))
    assert wrong(page, figure, *choice) == []


def faint(page) -> list:
    """What has too little contrast."""
    colors = page.evaluate(COLORS)
    assert len(colors) > 50
    found = []
    for kind, least, *pair in colors:
        ratio = contrast(*([part / 255 for part in color] for color in pair))
        if ratio < least:
            found.append((kind, ratio, *pair))
    return found


@each
def test_everything_is_readable_in_both_themes(page, made, name):
    set_all(page, made[name], BUSY[name])
    if name == "deeper/04_more_masks":
        page.locator(".tt-row").nth(1).focus()
    for scheme in site.SCHEMES:
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function(f"document.documentElement.dataset.theme === '{scheme}'")
        assert faint(page) == []


@pytest.mark.parametrize("scheme", site.SCHEMES)
@pytest.mark.parametrize("name", NAMES)
def test_without_scripts_the_still_figure_stands(browser, address, made, name, scheme):
    plain = browser.browser.new_context(java_script_enabled=False, color_scheme=scheme)
    page, figure = plain.new_page(), made[name]
    page.goto(f"{address}/chapters/{name}.html")
    page.evaluate(site.NOTHING_WAITS)
    assert page.locator(".tt-drawing").is_visible()
    assert page.locator(".tt-controls").is_hidden()
    assert page.locator(".tt-setting").is_visible()
    assert page.locator(".tt-setting").text_content() == figure.chosen
    assert wrong(page, figure, *figure.start) == []
    page.locator(".tt-look summary").click()
    assert page.locator(".tt-scroll table").is_visible()
    assert faint(page) == []
    page.set_content(figure.html)  # and without the style of the book
    assert page.locator(".tt-drawing").is_visible()
    assert page.locator(".tt-controls").is_hidden()
    plain.close()


@each
def test_on_paper_there_are_no_controls(page, made, name):
    figure = made[name]
    set_all(page, figure, BUSY[name])
    page.emulate_media(media="print")
    assert page.locator(".tt-controls").is_hidden()
    labels = (f"{s.name}: {s.labels[n]}" for s, n in zip(figure.settings, BUSY[name], strict=True))
    assert page.locator(".tt-setting").inner_text() == "; ".join(labels)
    assert page.locator(".tt-drawing").is_visible()


@pytest.mark.parametrize("dark", [False, True])
def test_in_a_notebook_and_twice_on_a_page(browser, made, dark):
    """A notebook puts the output into its page and runs the script anew; each figure is its own."""
    page, errors = browser.new_page(), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    back, ink = ("#111111", "#FFFFFFDD") if dark else ("#FFFFFF", "#000000DD")
    page.set_content(
        f'<!doctype html><body data-jp-theme-light="{str(not dark).lower()}" style="background:{back};'
        f'--jp-layout-color1:{back};--jp-content-font-color1:{ink}"></body>'
    )
    before = page.evaluate("Object.keys(window)")
    page.evaluate(
        """pages => pages.forEach(html => {
            const host = document.body.appendChild(document.createElement('div'));
            host.innerHTML = html;
            const old = host.querySelector('script'), script = document.createElement('script');
            script.textContent = old.textContent;
            old.replaceWith(script);
        })""",
        [made[name].html for name in (*NAMES, NAMES[0])],
    )
    assert page.evaluate("Object.keys(window)") == before  # no global variables
    looks = page.locator(".tt-look")
    looks.nth(3).locator("[data-axis='0']").fill("2")
    for place, (name, choice) in enumerate(
        zip((*NAMES, NAMES[0]), (*(made[n].start for n in NAMES), (2, 3)), strict=True)
    ):
        page.evaluate(
            "n => document.querySelectorAll('.tt-look').forEach((look, i) => look.dataset.n = i)"
        )
        assert wrong(page, made[name], *choice, root=f'[data-n="{place}"]') == []
    assert faint(page) == []
    assert errors == []
    page.close()
