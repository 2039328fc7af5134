"""The picture that answers, as a reader uses it: by keyboard, by mouse, by touch, without scripts."""

import pytest
import test_site as site

from tested_transformer import german_words
from tested_transformer.data import number_pair
from tested_transformer.experiments.ch10_number_models import first_numbers, load_first_model
from tested_transformer.plotting.interactive import number_picture, translate_numbers
from tested_transformer.plotting.style import contrast

NAME = "chapters/00_first_ten_minutes.html"
SOME = (1, 17, 42, 302, 999)
browser, address, page = site.browser, site.address, site.page

pytestmark = pytest.mark.skipif(
    not (site.SITE / NAME).exists(), reason="the site is not built: run make book"
)


@pytest.fixture(scope="module")
def looks():
    return {look.number: look for look in translate_numbers(*load_first_model(), SOME)}


@pytest.fixture
def visit(browser, address):
    with site.Visit(browser, address, NAME) as visit:
        yield visit


def words(page, side: str) -> list[str]:
    return page.locator(f".tt-{side} text:not(.tt-weight)").all_text_contents()


def numbers(page) -> list[list[float]]:
    """The table of weights."""
    rows = page.locator(".tt-scroll tbody tr").all()
    return [list(map(float, row.locator("td").all_text_contents())) for row in rows]


def type_number(page, text: str) -> None:
    """As a reader does: click into the field, which selects what is there, and type."""
    page.locator(".tt-number").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type(text)


def test_it_begins_with_24(page):
    assert page.locator(".tt-controls").is_visible()
    assert words(page, "read") == ["vier", "und", "zwanzig", "EOS"]
    assert words(page, "said") == ["twenty", "four", "EOS"]
    assert page.locator(".tt-headline").inner_text() == "24vierundzwanzig"
    assert "✓ right" in page.locator(".tt-verdict").inner_text()
    assert "four attends most to vier (1.00)" in page.locator(".tt-words").text_content()


@pytest.mark.parametrize("number", SOME)
def test_typed_numbers_show_what_the_package_computes(page, looks, number):
    type_number(page, str(number))
    look = looks[number]
    assert words(page, "read") == list(look.source)
    assert words(page, "said") == list(look.generated)
    assert numbers(page) == [[level / 100 for level in row] for row in look.levels.tolist()]
    never = number in unseen()
    assert ("held out" in page.locator(".tt-training").inner_text()) == never
    assert page.locator(".tt-slider").input_value() == str(number)


def unseen() -> set[int]:
    hidden = set(first_numbers().test)
    return {number for number in SOME if number_pair([number]) in hidden}


def test_every_number_reads_as_german_writes_it(page):
    """The script joins the parts; the package knows the words."""
    seen = page.evaluate("""() => {
        const field = document.querySelector('.tt-number'), found = [];
        for (let n = 1; n < 1000; n++) {
            field.value = n;
            field.dispatchEvent(new Event('input'));
            found.push(document.querySelector('.tt-headline span').textContent);
        }
        return found;
    }""")
    assert seen == ["".join(german_words(n, segmentation="coarse")) for n in range(1, 1000)]


def test_slider_and_arrow_keys_change_the_picture(page):
    before = page.locator(".tt-picture").inner_html()
    page.locator(".tt-slider").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".tt-number").input_value() == "25"
    assert words(page, "said") == ["twenty", "five", "EOS"]
    assert page.locator(".tt-picture").inner_html() != before
    page.locator(".tt-number").focus()
    page.keyboard.press("ArrowDown")
    assert words(page, "said") == ["twenty", "four", "EOS"]
    box = page.locator(".tt-slider").bounding_box()
    page.mouse.click(box["x"] + box["width"] - 9, box["y"] + box["height"] / 2)
    assert int(page.locator(".tt-number").input_value()) > 950


def test_examples(page):
    for button in page.locator(".tt-examples button").all():
        button.click()
        wanted = button.get_attribute("value")
        got = page.locator(".tt-headline strong").inner_text()
        assert got == wanted or (wanted == "0" and 1 <= int(got) <= 999)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("0", "0 is outside 1 to 999. The picture still shows 24."),
        ("1000", "1000 is outside 1 to 999."),
        ("-3", "-3 is not a whole number from 1 to 999."),
        ("2.5", "2.5 is not a whole number from 1 to 999."),
        ("vier", "“vier” is not a number in digits: type one from 1 to 999."),
        ("<b>7", "“<b>7” is not a number in digits"),
        ("", "Type a number from 1 to 999."),
    ],
)
def test_bad_input_gets_a_sentence_and_leaves_the_picture(page, text, sentence):
    type_number(page, text)
    if not text:
        page.keyboard.press("Delete")
    assert sentence in page.locator(".tt-problem").inner_text()
    assert page.locator(".tt-number").get_attribute("aria-invalid") == "true"
    assert page.locator(".tt-said").count() >= 2
    type_number(page, "7")
    assert page.locator(".tt-problem").inner_text() == ""
    assert words(page, "said") == ["seven", "EOS"]


def test_pointing_at_a_token_shows_its_weights(page):
    four = page.locator(".tt-said").nth(1)
    four.hover()
    assert page.locator(".tt-words").inner_text() == "four attends to vier (1.00)."
    assert page.locator(".tt-weight").all_text_contents() == ["1.00", "0.00", "0.00", "0.00"]
    assert page.locator(".tt-links path:not(.tt-faint)").count() == 1
    page.mouse.move(2, 2)
    assert page.locator(".tt-links path.tt-faint").count() == 0


def test_words_are_reached_with_the_tab_key(page):
    page.locator(".tt-examples button").last.focus()
    for sentence in ("twenty attends to und", "four attends to vier", "EOS attends to"):
        page.keyboard.press("Tab")
        assert page.locator(".tt-words").inner_text().startswith(sentence)
    page.keyboard.press("Escape")
    assert page.locator(".tt-chosen").count() == 0
    page.locator(".tt-look summary").click()  # nothing moves away under the pointer
    assert page.locator(".tt-scroll table").is_visible()


def test_touch(browser, address):
    phone = browser.browser.new_context(
        viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True
    )
    visit = site.Visit(phone, address, NAME)
    visit.page.locator(".tt-said").nth(0).tap()
    assert visit.page.locator(".tt-words").inner_text().startswith("twenty attends to und")
    visit.page.locator(".tt-said").nth(1).tap()
    assert visit.page.locator(".tt-words").inner_text().startswith("four attends to vier")
    assert visit.errors == []
    phone.close()


@pytest.mark.parametrize("scheme", site.SCHEMES)
def test_nothing_is_wider_than_the_page(page, scheme):
    page.emulate_media(color_scheme=scheme)
    type_number(page, "777")  # the longest of all
    page.locator(".tt-look summary").click()
    page.locator(".tt-said").nth(2).focus()
    for width in site.WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        drawing = page.locator(".tt-drawing").bounding_box()
        assert drawing["x"] >= 0
        assert drawing["x"] + drawing["width"] <= width
        assert 300 <= drawing["width"] <= 480


def readable(page) -> bool:
    """Whether words stand out from their boxes and from what is behind the picture."""
    colors = page.evaluate("""() => {
        const color = (query, key) => getComputedStyle(document.querySelector(query))[key];
        let behind = document.querySelector('.tt-look');
        while (getComputedStyle(behind).backgroundColor === 'rgba(0, 0, 0, 0)') behind = behind.parentElement;
        return [color('.tt-said text', 'fill'), color('.tt-said rect', 'fill'),
                color('.tt-words', 'color'), getComputedStyle(behind).backgroundColor];
    }""")
    parts = [[int(part) / 255 for part in color[4:-1].split(",")] for color in colors]
    return all(contrast(ink, ground) >= 7 for ink, ground in (parts[:2], parts[2:]))


def test_text_is_readable_in_both_themes(page):
    """Contrast of the words with what is behind them, as the accessibility guidelines define it."""
    for scheme in site.SCHEMES:
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function(f"document.documentElement.dataset.theme === '{scheme}'")
        assert readable(page)


@pytest.mark.parametrize("scheme", site.SCHEMES)
def test_without_scripts_the_still_figure_stands(browser, address, scheme):
    plain = browser.browser.new_context(java_script_enabled=False, color_scheme=scheme)
    page = plain.new_page()
    page.goto(f"{address}/{NAME}")
    assert page.locator(".tt-drawing").is_visible()
    assert page.locator(".tt-controls").is_hidden()
    assert words(page, "said") == ["twenty", "four", "EOS"]
    assert page.locator(".tt-words").inner_text().startswith("twenty attends most to und")
    page.locator(".tt-look summary").click()
    assert len(numbers(page)) == 3
    assert readable(page)
    plain.close()


def test_in_a_notebook_and_twice_on_a_page(browser):
    """A notebook puts the output into its page and runs the script anew; each picture is its own."""
    html = number_picture(translate_numbers(*load_first_model(), range(1, 51)), examples=()).html
    page = browser.new_page()
    page.set_content("<body></body>")
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.evaluate(
        """html => {
            for (let copy = 0; copy < 2; copy++) {
                const host = document.body.appendChild(document.createElement('div'));
                host.innerHTML = html;
                const old = host.querySelector('script'), script = document.createElement('script');
                script.textContent = old.textContent;
                old.replaceWith(script);
            }
        }""",
        html,
    )
    page.locator(".tt-number").nth(1).fill("7")
    assert page.locator(".tt-headline strong").all_text_contents() == ["24", "7"]
    page.locator(".tt-said").first.focus()
    assert page.locator(".tt-words").first.inner_text() == "twenty attends to und (1.00)."
    assert page.locator(".tt-chosen").count() == 1
    assert errors == []
    page.close()
