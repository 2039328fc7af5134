"""The search of the built site, as a reader types: what comes first, in English and Chinese, served and from disk.

And the links that the search leads through: chapters, API reference, gallery and glossary, both ways.
"""

import re
from functools import cache
from urllib.parse import quote, unquote

import pytest
import test_site as site
from test_site import address, browser  # noqa: F401  fixtures

pytestmark = pytest.mark.skipif(not site.PAGES, reason="the site is not built: run make book")

API, GALLERY, GLOSSARY = (
    "book/generated/api",
    "book/generated/gallery",
    "book/glossary.html",
)
FIRST = {
    # functions: their entries
    "masked_softmax": f"{API}_functional.html#api-masked_softmax",
    "masked_softmax()": f"{API}_functional.html#api-masked_softmax",
    "softmax_jacobian": f"{API}_functional.html#api-softmax_jacobian",
    "split_heads": f"{API}_layers.html#api-split_heads",
    "splitheads": f"{API}_layers.html#api-split_heads",
    "MultiHeadAttention.forward": f"{API}_layers.html#api-MultiHeadAttention.forward",
    # terms and symbols: where they are explained
    "label smoothing": f"{GLOSSARY}#term-label-smoothing",
    "Masking": f"{GLOSSARY}#term-mask",
    "KV cache": f"{GLOSSARY}#term-key-value-cache",
    "RoPE": f"{GLOSSARY}#term-rotary-positions",
    "d_k": "book/notation.html#symbols-of-the-papers",
    "d": "book/notation.html#shape-letters",
    "缩放": "chapters/03_scaling.html",
    "注意力": f"{GLOSSARY}#term-attention",
    "多头": f"{GLOSSARY}#term-multi-head-attention",
    "掩码": f"{GLOSSARY}#term-mask",
    "位置编码": f"{GLOSSARY}#term-positional-encoding",
    "自注意力": f"{GLOSSARY}#term-self-attention",
    # mistakes: their boxes in a chapter, else in the gallery
    "softmax before the scale": "chapters/deeper/03_other_scales.html#pitfall-softmax-before-the-scale",
    "a fully masked row": "chapters/deeper/04_fully_masked_rows.html#pitfall-a-fully-masked-row",
    "heads cut straight": "chapters/05_multi_head.html#pitfall-heads-cut-straight",
    "K.T": "chapters/deeper/01_three_bugs.html#pitfall-k-t-with-a-batch",
    "divided by d": f"{GALLERY}_03.html#pitfall-divided-by-d",
    # questions
    "why divide by the root of d": "book/generated/interview.html#why-does-attention-divide-by-the-root-of-d-d",
    "how large is a dot product": "chapters/03_scaling.html#how-large-is-a-dot-product",
    # misspelled
    "attendion": f"{GLOSSARY}#term-attention",
    "sofmax jacobian": f"{API}_functional.html#api-softmax_jacobian",
}


@pytest.fixture(params=["served", "from disk"])
def base(request, address):  # noqa: F811
    return address if request.param == "served" else site.SITE.as_uri()


@pytest.fixture
def visit(browser, base):  # noqa: F811
    """The search page, without a question."""
    with site.Visit(browser, base, "search.html") as opened:
        yield opened


def ask(page, query: str, answer: str = r"\S") -> list[str]:
    """Type a question; the addresses that come, the first first."""
    page.locator("article input[name=q]").fill("")
    page.wait_for_function("!document.getElementById('search-status').textContent")
    page.locator("article input[name=q]").fill(query)
    page.wait_for_function(
        f"/{answer}/u.test(document.getElementById('search-status').textContent)"
    )
    links = page.locator("#search-results a").all()
    return [unquote(link.get_attribute("href")) for link in links]


def test_what_a_reader_wants_comes_first(visit):
    seen = {query: (ask(visit.page, query) or [""])[0] for query in FIRST}
    assert seen == FIRST


@pytest.mark.parametrize("base", ["served"], indirect=True)  # from disk by the same scripts
def test_every_public_name_term_and_mistake_is_found_by_its_name(visit):
    """The entry, term or mistake of just that name is among the first five, for all of them."""
    lost = visit.page.evaluate("""async () => {
        await BookSearch.addText();
        const own = BookSearch.places.filter(place => /term|function|class|data|pitfall|mistake/.test(place.kind));
        const lost = own.flatMap(place => [place.name, place.chinese].filter(Boolean).map(name => [name, place]))
            .filter(([name, place]) => !BookSearch.find(name).found.slice(0, 5).includes(place))
            .map(([name, place]) => name + ' ' + place.url);
        return own.length > 700 ? lost : ['only ' + own.length];
    }""")
    assert lost == []


def test_words_are_split_alike_in_both_scripts(visit):
    split = "query => BookSearch.split(query)"
    assert visit.page.evaluate(split, "Masked_softmax(x), K.T!") == [
        "masked_softmax",
        "x",
        "k",
        "t",
    ]
    assert visit.page.evaluate(split, "掩码softmax 与 KV缓存") == [
        "掩码",
        "softmax",
        "与",
        "kv",
        "缓存",
    ]
    assert visit.page.evaluate(split, "ＫＶ ５") == ["kv", "5"]  # as a Chinese keyboard types them
    assert visit.page.evaluate(split, " .,() ") == []


def test_a_chinese_phrase_that_stands_nowhere_is_found_by_its_parts(visit):
    found = ask(visit.page, "多头注意力机制")
    assert f"{GLOSSARY}#term-multi-head-attention" in found[:3]
    assert "No place has all of “多头注意力机制”" in visit.page.inner_text("#search-status")
    middle = ask(visit.page, "置编码")  # no word of its own: the middle of one
    assert middle[0].startswith(f"{GLOSSARY}#term-") or middle[0] == "chapters/06_positions.html"
    assert f"{GLOSSARY}#term-positional-encoding" in middle


def test_a_wrong_spelling_is_said_and_mended(visit):
    assert ask(visit.page, "attendion")
    assert "Nothing fits “attendion”." in visit.page.inner_text("#search-status")
    assert "for “attention”" in visit.page.inner_text("#search-status")


def test_nothing_found_says_so_and_leads_on(visit):
    assert ask(visit.page, "zzzz") == []
    assert visit.page.inner_text("#search-status") == "Nothing in the book fits “zzzz”."
    targets = [link.get_attribute("href") for link in visit.page.locator("#search-help a").all()]
    assert targets == [
        GLOSSARY,
        "book/notation.html",
        f"{API}.html",
        "genindex.html",
        f"{GALLERY}.html",
    ]
    assert visit.page.locator("#search-help").is_visible()
    ask(visit.page, "mask")
    assert visit.page.locator("#search-help").is_hidden()


def test_no_question_is_no_mistake(visit):
    assert visit.page.inner_text("#search-status") == ""
    assert visit.page.locator("#search-help").is_visible()
    assert ask(visit.page, "...") == []
    assert visit.page.inner_text("#search-status") == "Type a word, a name or a term."


def test_the_count_is_told_and_all_can_be_shown(visit):
    status = visit.page.locator("#search-status")
    assert (status.get_attribute("role"), status.get_attribute("aria-live")) == ("status", "polite")
    first = ask(visit.page, "attention")
    count = int(re.match(r"(\d+) places for “attention”", status.inner_text())[1])
    assert len(first) == 20 < count
    visit.page.get_by_role("button", name=f"Show all {count}").click()
    assert visit.page.locator("#search-results li").count() == count
    assert visit.page.evaluate(
        "document.activeElement.closest('li') === document.querySelectorAll('#search-results li')[20]"
    )
    one = ask(visit.page, "majority-class baseline")
    assert len(one) == int(re.match(r"(\d+) place", status.inner_text())[1])


def test_excerpts_have_the_words_and_no_latex(visit):
    for query in ("d_k", "√", "softmax", "variance", "缩放", "e"):
        ask(visit.page, query)
        if visit.page.locator("#search-more").is_visible():
            visit.page.click("#search-more")
        text = visit.page.inner_text("#search-results")
        assert not re.search(r"\\[a-zA-Z]+|\$|[_^]\{", text), query
    ask(visit.page, "temperature")
    marked = {mark.lower() for mark in visit.page.locator("mark").all_inner_texts()}
    assert {"temperature"} <= marked <= {"temperature", "temperatures"}


def test_all_results_lead_to_places_that_exist(browser):  # noqa: F811
    visit = site.Visit(browser, site.SITE.as_uri(), "search.html")
    places = visit.page.evaluate("BookSearch.places.map(place => place.url)")
    visit.page.close()
    lost = [
        place
        for place in places
        if unquote(place.partition("#")[2]) not in anchors_of(place.partition("#")[0])
    ]
    assert lost == []
    assert len(places) > 1200
    twice = {place for place in places if places.count(place) > 1}
    assert twice == set()


@cache
def anchors_of(name: str) -> set[str]:
    return site.Links(site.SITE / name).anchors


def test_by_keyboard_from_any_page(browser, base):  # noqa: F811
    visit = site.Visit(browser, base, "chapters/03_scaling.html")
    page = visit.page
    page.set_viewport_size({"width": 1440, "height": 900})
    page.keyboard.press("Control+k")
    page.keyboard.type("heads cut straight")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/search.html?q={quote('heads cut straight').replace('%20', '+')}")
    page.wait_for_selector("#search-results a")
    for _ in range(2):
        page.keyboard.press("Tab")
        if page.evaluate("Boolean(document.activeElement.closest('#search-results'))"):
            break
    page.keyboard.press("Enter")
    page.wait_for_url("**/chapters/05_multi_head.html#pitfall-heads-cut-straight")
    box = page.locator("#pitfall-heads-cut-straight")
    page.wait_for_function(
        "element => element.getBoundingClientRect().top < innerHeight", arg=box.element_handle()
    )
    assert visit.errors == []
    page.close()


def test_the_address_keeps_the_question(visit):
    ask(visit.page, "多头")
    visit.page.reload()
    visit.page.wait_for_selector("#search-results a")
    assert visit.page.locator("article input[name=q]").input_value() == "多头"
    assert (
        visit.page.locator("#search-results a").first.inner_text()
        == "multi-head attention 多头注意力"
    )


def test_without_the_running_text_names_are_found(browser, address):  # noqa: F811
    page = browser.new_page()
    page.route("**/search_text.js", lambda route: route.abort())
    page.goto(f"{address}/search.html?q=masked_softmax")
    page.wait_for_selector("#search-results a")
    assert page.locator("#search-results a").first.inner_text() == "masked_softmax"
    page.close()


def test_the_list_is_light_and_only_the_search_page_loads_it(browser, address):  # noqa: F811
    """Compressed: the names with the page, the running text with the first question."""
    context = browser.browser.new_context()
    chapter = site.transferred(browser, context, f"{address}/chapters/03_scaling.html")
    assert [url for url in chapter if re.search("search_|searchtools|searchindex", url)] == []
    idle = site.transferred(browser, context, f"{address}/search.html")
    assert sum(idle.values()) < 190_000, idle
    assert not any(url.endswith("search_text.js") for url in idle)
    context.close()
    context = browser.browser.new_context()
    asked = site.transferred(browser, context, f"{address}/search.html?q=softmax")
    own = {url: size for url, size in asked.items() if "search_" in url}
    assert sorted(url.rpartition("/")[2].partition("?")[0] for url in own) == [
        "search_page.js",
        "search_places.js",
        "search_text.js",
    ]
    assert sum(own.values()) < 820_000, own
    context.close()


def test_without_scripts_the_search_page_leads_on(browser, address):  # noqa: F811
    context = browser.browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{address}/search.html")
    assert "The search needs scripts" in page.locator("article noscript:visible").inner_text()
    assert page.locator("#search-help").is_visible()
    context.close()


# ------------------------------------------------------------------------------ links both ways


def text(name: str) -> str:
    return (site.SITE / name).read_text(encoding="utf-8")


def chapters() -> list[str]:
    return [name for name in site.PAGES if name.startswith("chapters/")]


def entries() -> dict[str, list[str]]:
    """The chapters that each entry of the reference names beneath it: page#section."""
    import package_links

    pages = [name for name in site.PAGES if name.startswith(f"{API}_")]
    page, found = "".join(map(text, pages)), {}
    full = {package_links.anchor(name): name for name in package_links.public()}
    parts = re.split(r'<p class="way used-in">(.*?)</p>', page)
    for before, line in zip(parts[::2], parts[1::2], strict=False):
        names = [
            full[name]
            for name in re.findall(r'<dt class="sig[^>]* id="([^"]+)"', before)
            if name in full
        ]
        assert len(names) == 1, names
        found[names[0]] = [unquote(way) for way in re.findall(r'href="\.\./\.\./([^"]+)"', line)]
        assert found[names[0]] or line == "Used in no chapter."
    assert sorted(found) == sorted(package_links.public())
    return found


def test_every_entry_names_its_chapters_and_they_lead_back():
    import package_links

    named = entries()
    goals = {
        f"{package_links.page_of(full)}.html#{package_links.anchor(full)}": full for full in named
    }
    there = set()
    for chapter in chapters():
        up = "../" * chapter.count("/")
        links = re.findall(rf'"{up}([^."][^"]*)"', text(chapter))
        there |= {(chapter, goals[link]) for link in links if link in goals}
    back = {(way.partition("#")[0], full) for full, ways in named.items() for way in ways}
    assert there == back
    assert len(there) > 150
    unused = [full for full, ways in named.items() if not ways]
    assert "tested_transformer.functional.packed.packed_attention" in unused


def test_a_source_on_the_page_leads_to_its_entry():
    page = text("chapters/deeper/03_saturation.html")
    shown = page.partition('<span class="nf">softmax_jacobian</span>')[2]
    line = re.search(r'<p class="way in-reference">(.*?)</p>', shown)[1]
    targets = re.findall(r'#([^"]+)"', line)
    assert targets == ["api-softmax", "api-softmax_jacobian"]
    assert shown.index(line) < shown.index('class="cell ')  # in the same cell's output
    assert (
        f"{API}_functional.html#api-softmax_jacobian" not in page.partition('id="the-jacobian"')[0]
    )


def test_boxes_and_gallery_lead_to_each_other():
    there, back = set(), set()
    for chapter in chapters():
        for box in re.split(r'(?=<div class="pitfall admonition")', text(chapter))[1:]:
            place = re.match(r'<div class="pitfall admonition" id="(pitfall-[\w-]+)">', box)[1]
            line = re.search(
                r'<p class="way in-gallery">(.*?)</p>', box
            )  # a diff may stand before it
            if not line:
                assert place.removeprefix("pitfall-") in {
                    "a-point-that-sees-itself", "orthogonal-directions-without-their-signs",
                    "padding-counts-in-the-mean-of-a-text",
                }  # fmt: skip
                continue
            there |= {
                (chapter, place, mistake) for mistake in re.findall(r'#(pitfall-[\w-]+)"', line[1])
            }
    pages = [name for name in site.PAGES if name.startswith(f"{GALLERY}_")]
    for section in re.split(r"(?=<section )", "".join(map(text, pages))):
        mistake = re.search(r'<span id="(pitfall-[\w-]+)"', section)
        for line in re.findall(r'<p class="way shown-in">(.*?)</p>', section):
            ways = re.findall(r'href="\.\./\.\./([^"#]+)#([^"]+)"', line)
            back |= {(chapter, place, mistake[1]) for chapter, place in ways}
    assert there == back
    assert len(there) > 60


def test_terms_in_bold_and_glossary_lead_to_each_other():
    page = text("chapters/deeper/03_other_scales.html")
    assert (
        f'<a class="reference internal" href="../../{GLOSSARY}#term-perplexity"><strong>perplexity</strong></a>'
        in page
    )
    entry = text(GLOSSARY).partition('id="term-perplexity"')[2].partition("</dd>")[0]
    assert 'href="../chapters/deeper/03_other_scales.html#an-untrained-layer"' in entry


def test_no_anchor_of_the_glossary_is_counted():
    found = re.findall(r'<dt id="([^"]+)"', text(GLOSSARY))
    assert len(found) > 240
    assert len(set(found)) == len(found)
    assert [name for name in found if re.fullmatch(r"term-\d+", name)] == []
    assert {"term-mask", "term-掩码", "term-键值缓存-KV-缓存"} <= set(found)
    index = text("genindex.html")
    assert f'href="{GLOSSARY}#term-掩码"' in index
    assert not re.search(r"glossary\.html#term-\d+\"", index)
