"""The first page as a reader meets it: by mouse, by touch, by keyboard, without scripts, at rest."""

import pytest
import test_site as site

import chapter_map
import front_picture

NAME = "book/index.html"
browser, address, page = site.browser, site.address, site.page

pytestmark = pytest.mark.skipif(
    not (site.SITE / NAME).exists(), reason="the site is not built: run make book"
)


@pytest.fixture(scope="module")
def look():
    return front_picture.look()


@pytest.fixture
def visit(browser, address):
    with site.Visit(browser, address, NAME) as visit:
        visit.page.set_viewport_size({"width": 1440, "height": 900})
        yield visit


def word(page, row: str, place: int):
    return page.locator(f".front-word[data-row={row}][data-place='{place}']")


def says(page) -> str:
    return page.locator(".front-says").inner_text()


def shown(page, row: str) -> list[str]:
    """The weights that stand beside the words of a row."""
    return page.locator(f".front-{row} .front-weight").all_text_contents()


def lit(page) -> set[tuple[int, int]]:
    """The lines that stand out: their words by place, said and read. Others are faint."""
    seen = page.eval_on_selector_all(
        ".front-link",
        """links => links.map(link => [
            +link.dataset.said, +link.dataset.read, link.getAnimations().length,
            +getComputedStyle(link).opacity])""",
    )
    assert all(opacity in (0.12, 1) for *_, opacity in seen), seen
    return {(said, read) for said, read, _, opacity in seen if opacity == 1}


def settled(page) -> None:
    """Wait until nothing fades in or out any more."""
    page.wait_for_function(
        """() => document.querySelector('.front-look').getAnimations({subtree: true})
            .every(one => !(one instanceof CSSTransition))"""
    )


def expect(page, look, row: str, place: int) -> None:
    """One word is chosen: the right lines, numbers and sentence."""
    settled(page)
    levels = look.levels if row == "said" else look.levels.T
    tell = front_picture.said_looks if row == "said" else front_picture.read_seen
    assert says(page) == tell(look, place) + "."
    assert page.locator(".front-word.front-chosen").count() == 1
    assert "front-chosen" in word(page, row, place).get_attribute("class")
    other = "read" if row == "said" else "said"
    assert shown(page, other) == [f"{level / 100:.2f}" for level in levels[place]]
    assert shown(page, row) == [""] * len(levels)
    pairs = {(place, k) for k, level in enumerate(levels[place]) if level}
    assert lit(page) == (pairs if row == "said" else {(b, a) for a, b in pairs})


def at_rest(page) -> None:
    settled(page)
    assert says(page) == front_picture.HINT
    assert page.locator(".front-chosen").count() == 0
    assert set(shown(page, "read") + shown(page, "said")) == {""}
    assert len(lit(page)) == page.locator(".front-link").count()


def words_of(look) -> list[tuple[str, int]]:
    tokens = {"read": look.source, "said": look.generated}
    return [(row, k) for row in tokens for k in range(len(tokens[row]))]


# --------------------------------------------------------------------------------- the picture


def test_pointing_shows_what_a_word_looks_at(page, look):
    at_rest(page)
    for row, place in words_of(look):
        word(page, row, place).hover()
        expect(page, look, row, place)
    page.mouse.move(5, 5)
    at_rest(page)


def test_it_follows_the_mouse_between_the_words(page, look):
    """The nearest word of the nearer row, wherever in the picture."""
    box = page.locator(".front-look svg").bounding_box()
    for x, y, row, place in [
        (0.02, 0.48, "read", 0), (0.98, 0.02, "read", 3), (0.02, 0.98, "said", 0), (0.55, 0.6, "said", 1),
    ]:  # fmt: skip
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
        expect(page, look, row, place)


def test_the_keys_have_their_say_while_the_mouse_rests_on_the_picture(page, look):
    word(page, "read", 1).hover()
    word(page, "said", 0).focus()
    expect(page, look, "said", 0)
    word(page, "read", 2).hover()
    expect(page, look, "read", 2)


def test_the_tab_key_reaches_every_word(page, look):
    word(page, "read", 0).focus()
    page.keyboard.press("Shift+Tab")
    at_rest(page)
    for row, place in words_of(look):
        page.keyboard.press("Tab")
        expect(page, look, row, place)
        focused = page.evaluate("document.activeElement.getAttribute('aria-label')")
        assert focused == says(page)
        stroke = word(page, row, place).locator("rect").evaluate("e => getComputedStyle(e).stroke")
        assert stroke == page.evaluate("getComputedStyle(document.body).color")
    page.keyboard.press("Escape")
    at_rest(page)


def test_a_finger(browser, address, look):
    context = browser.browser.new_context(
        has_touch=True, is_mobile=True, viewport={"width": 360, "height": 740}
    )
    page = context.new_page()
    page.goto(f"{address}/{NAME}", wait_until="load")
    for row, place in words_of(look):
        target = word(page, row, place)
        target.tap()
        expect(page, look, row, place)
        assert target.locator("rect").bounding_box()["height"] >= 24  # WCAG 2.2, 2.5.8
    context.close()


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_nothing_moves_for_those_who_asked(page, motion):
    page.emulate_media(reduced_motion=motion)
    word(page, "said", 1).hover()
    moving = page.evaluate(
        "document.querySelector('.front-look').getAnimations({subtree: true}).length"
    )
    assert (moving > 0) == (motion == "no-preference")


def test_without_scripts_it_stands_still_and_says_all(browser, address, look):
    context = browser.browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{address}/{NAME}", wait_until="load")
    drawing = page.locator(".front-look svg")
    assert drawing.get_attribute("role") == "img"
    assert drawing.bounding_box()["height"] > 150
    assert all(front_picture.said_looks(look, i) in says(page) for i in range(len(look.generated)))
    assert page.locator(".map-wide a:visible").count() == len(chapter_map.chapters())
    context.close()


@pytest.mark.parametrize("scheme", site.SCHEMES)
def test_without_scripts_a_page_is_light_or_dark_as_the_reader_is(browser, address, scheme):
    context = browser.browser.new_context(java_script_enabled=False, color_scheme=scheme)
    page = context.new_page()
    page.goto(f"{address}/chapters/02_scoring.html", wait_until="load")
    paper, code, ink = page.evaluate("""() => [
        getComputedStyle(document.body).backgroundColor,
        getComputedStyle(document.querySelector('.cell:not([class*=tag_]) .cell_input')).backgroundColor,
        getComputedStyle(document.querySelector('.cell:not([class*=tag_]) .cell_input pre')).color,
    ].map(color => color.match(/\\d+/g).map(Number))""")
    context.close()
    assert (max(paper) < 50) == (max(code) < 60) == (min(ink) > 180) == (scheme == "dark")
    assert (min(paper) > 240) == (min(code) > 230) == (max(ink) < 60) == (scheme == "light")


# ------------------------------------------------------------------------------------ the map


def test_pointing_at_a_chapter_shows_all_that_leads_to_it(page):
    book = {chapter.number: chapter for chapter in chapter_map.chapters()}

    def way(n: int) -> set[int]:
        return {n}.union(*(way(need) for need in book[n].needs))

    for n in book:
        page.locator(f".map-wide [data-chapter='{n}']").hover()
        lit = page.locator(".map-wide a.map-way").evaluate_all(
            "links => links.map(link => +link.dataset.chapter)"
        )
        assert set(lit) == way(n)
        edges = page.locator(".map-wide .map-edge.map-way").evaluate_all(
            "edges => edges.map(edge => [+edge.dataset.from, +edge.dataset.to])"
        )
        assert sorted(map(tuple, edges)) == sorted(
            (need, m) for m in way(n) for need in book[m].needs
        )
    page.mouse.move(5, 5)
    assert page.locator(".map-way").count() == 0


def test_the_map_works_by_keyboard(page):
    chapters = chapter_map.chapters()
    page.locator(".map-wide a").first.focus()
    for chapter in chapters[1:]:
        page.keyboard.press("Tab")
        label = page.evaluate("document.activeElement.getAttribute('aria-label')")
        assert label.startswith(chapter.name)
        assert page.locator(".map-wide a.map-way").count() > len(chapter.needs)
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/{chapters[-1].stem}.html")


@pytest.mark.parametrize(("width", "kind"), [(360, "narrow"), (768, "wide"), (1440, "wide")])
def test_one_map_fits(page, width, kind):
    page.set_viewport_size({"width": width, "height": 900})
    seen = page.locator(".map:visible")
    assert seen.count() == 1
    assert f"map-{kind}" in seen.get_attribute("class")
    sizes = seen.locator("text").evaluate_all(
        "texts => texts.map(t => t.getBoundingClientRect().height)"
    )
    assert min(sizes) >= 10  # of the letters, in pixels
    assert seen.locator("a").first.bounding_box()["height"] >= 24
    # No title leaves its box.
    assert seen.locator("a").evaluate_all("""links => links.filter(link => {
        const box = link.querySelector('rect').getBoundingClientRect();
        return [...link.querySelectorAll('tspan')].some(
            line => line.getBoundingClientRect().right > box.right - 2);
    }).map(link => link.ariaLabel)""") == []  # fmt: skip


# ----------------------------------------------------------------------------------- the page


@pytest.mark.parametrize("scheme", site.SCHEMES)
def test_the_first_screen_says_what_the_book_is(page, scheme):
    page.emulate_media(color_scheme=scheme)
    for part in ("article h1", "#the-tested-transformer > p", ".front-look", ".front-claims"):
        box = page.locator(part).first.bounding_box()
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= 900, part
    ways = page.locator(".front-way")
    assert ways.count() == 4
    for way in ways.all():
        assert way.get_by_role("link").count() == 1
        box = way.bounding_box()
        assert box["y"] + box["height"] <= 900, way.inner_text()


def test_a_phone_shows_the_claim_and_the_picture_first(page):
    page.set_viewport_size({"width": 360, "height": 740})
    box = page.locator(".front-look svg").bounding_box()
    assert box["y"] + box["height"] <= 740
    assert page.locator("#the-tested-transformer > p").first.bounding_box()["y"] < box["y"]


def test_no_button_leads_to_nothing(page):
    """The page has no contents at its side, so none to open."""
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.locator("#pst-secondary-sidebar").count() == 0
    assert page.locator(".secondary-toggle").is_hidden()


def test_no_scroll_sideways(page):
    assert site.too_wide(page) == []


# ---------------------------------------------------------------------------------- the design


READ = """paragraphs => {
    const lengths = [];
    for (const p of paragraphs) {
        if (p.querySelector('math, br')) continue;
        const texts = document.createTreeWalker(p, NodeFilter.SHOW_TEXT), rows = new Map();
        while (texts.nextNode())
            for (let k = 0; k < texts.currentNode.length; k++) {
                const range = document.createRange();
                range.setStart(texts.currentNode, k);
                range.setEnd(texts.currentNode, k + 1);
                const row = Math.round(range.getBoundingClientRect().bottom / 12);
                rows.set(row, (rows.get(row) ?? 0) + 1);
            }
        lengths.push(...[...rows.values()].slice(0, -1));
    }
    return lengths;
}"""


def test_lines_are_65_to_75_letters_long(browser, address):
    """On average, in paragraphs on a wide screen; the last line of each may be short."""
    lengths = []
    for name in ("chapters/04_masks.html", "book/how_to_use.html"):
        visit = site.Visit(browser, address, name)
        visit.page.set_viewport_size({"width": 1440, "height": 900})
        lengths += visit.page.eval_on_selector_all("article section > p", READ)
        visit.page.close()
    assert len(lengths) > 30
    assert 65 <= sum(lengths) / len(lengths) <= 75
    assert max(lengths) <= 85


@pytest.mark.parametrize("scheme", site.SCHEMES)
def test_every_kind_of_box_looks_like_itself(browser, address, scheme):
    visit = site.Visit(browser, address, "chapters/06_positions.html")
    page = visit.page
    page.emulate_media(color_scheme=scheme)
    page.wait_for_function(f"document.documentElement.dataset.theme === '{scheme}'")
    kinds = {
        "pitfall": ".admonition.pitfall",
        "predict": ".admonition.predict",
        "abstract": ".admonition.zh",
        "hint": "section[id^='exercise-'] details.sd-dropdown",
        "answer": "section:not([id^='exercise-']) > details.sd-dropdown",
        "code": ".cell_input",
    }
    looks = {
        name: page.locator(selector).first.evaluate("""box => {
            const style = getComputedStyle(box);
            return [style.backgroundColor, style.borderLeft, style.borderTop,
                    getComputedStyle(box, '::before').backgroundImage].join(' | ');
        }""")
        for name, selector in kinds.items()
    }
    striped = [name for name, look in looks.items() if "repeating-linear-gradient" in look]
    page.close()
    assert striped == ["pitfall"]
    assert len(set(looks.values())) == len(kinds), looks


@pytest.mark.parametrize("scheme", site.SCHEMES)
def test_focus_is_seen(browser, address, scheme):
    """Whatever the tab key reaches on a page has a ring, or a box of its own, in a color of the book."""
    visit = site.Visit(browser, address, "book/notation.html")
    page = visit.page
    page.set_viewport_size({"width": 1440, "height": 900})
    page.emulate_media(color_scheme=scheme)
    page.wait_for_function(f"document.documentElement.dataset.theme === '{scheme}'")
    plain, reached = [], 0
    for _ in range(45):
        page.keyboard.press("Tab")
        seen = page.evaluate("""() => {
            const at = document.activeElement, style = getComputedStyle(at);
            if (at === document.body) return null;
            const ring = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2;
            return [at.outerHTML.slice(0, 80), ring || style.boxShadow !== 'none'];
        }""")
        if seen:
            reached += 1
            plain += [] if seen[1] else [seen[0]]
    page.close()
    assert reached > 20
    assert plain == []
