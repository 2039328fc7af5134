"""The built site as search engines, other sites and lost readers meet it."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import test_site as site
from test_site import address, browser  # noqa: F401  fixtures

from anchors import built, listed

PAGES = [name for name in site.PAGES if name != "index.html"]
pytestmark = pytest.mark.skipif(not PAGES, reason="the site is not built: run make book")


def text(name: str) -> str:
    return (site.SITE / name).read_text(encoding="utf-8")


def test_every_page_has_a_description_of_its_own():
    seen = {}
    for name in PAGES:
        found = re.findall(r'<meta name="description" content="([^"]+)"', text(name))
        assert len(found) == 1, name
        assert 20 <= len(found[0]) <= 230, name
        assert found[0] not in seen, f"{name} and {seen.get(found[0])}"
        assert not re.search(r"\\|\$|\{", found[0]), name  # no formula that nothing sets
        seen[found[0]] = name


def test_the_front_door_says_what_the_book_is():
    page = text("index.html")
    assert '<html lang="en">' in page
    assert "&#8212; The Tested Transformer</title>" in page
    assert '<meta name="description" content="A book about attention' in page
    assert '<link rel="icon" href="data:,">' in page  # nothing to ask for


def test_a_fold_is_called_a_solution_below_an_exercise_alone():
    page = text("chapters/deeper/22_graph_network.html")  # two proofs, and one solution
    assert page.count("Show the code and its output") == 2
    assert page.count("Show the solution") == 1


@pytest.mark.parametrize("scheme", site.SCHEMES)
def test_theme_color_is_the_color_of_the_page(browser, address, scheme):  # noqa: F811
    visit = site.Visit(browser, address, "book/notation.html")
    visit.page.emulate_media(color_scheme=scheme)
    visit.page.wait_for_function(f"document.documentElement.dataset.theme === '{scheme}'")
    named, seen = visit.page.evaluate("""scheme => {
        const tag = document.querySelector(`meta[name=theme-color][media*=${scheme}]`);
        const rgb = getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3);
        return [tag.content, '#' + rgb.map(n => (+n).toString(16).padStart(2, '0')).join('')];
    }""", scheme)  # fmt: skip
    visit.page.close()
    assert named == seen


@pytest.mark.parametrize("lost", ["nothing.html", "chapters/99_nothing.html", "a/b/c/d"])
def test_lost_reader_finds_the_way_from_any_depth(browser, address, lost):  # noqa: F811
    page = browser.new_page()
    failed = []
    page.on("requestfailed", lambda request: failed.append(request.url))
    page.on("response", lambda got: failed.append(got.url) if got.status >= 400 else None)
    page.goto(f"{address}/{lost}", wait_until="load")
    assert failed == [f"{address}/{lost}"]  # only what was asked for
    assert page.locator("h1:visible").inner_text() == "No such page"
    page.set_viewport_size({"width": 1440, "height": 900})
    page.get_by_role("link", name="The first page").click()
    page.wait_for_url("**/book/index.html")
    page.close()


def number(name: str) -> int:
    return int(re.match(r"(?:chapters/)?(?:deeper/)?(\d+)_", name)[1])


def test_facts_of_every_chapter():
    chapters = [name for name in PAGES if re.match(r"chapters/\d", name)]
    deeper = [name for name in PAGES if name.startswith("chapters/deeper/")]
    for name, after in [
        *zip(chapters, [*chapters[1:], None], strict=True),
        *((d, None) for d in deeper),
    ]:
        facts = re.search(r'<dl class="chapter-facts">.*?</dl>', text(name), re.DOTALL)[0]
        minutes = int(re.search(r"<dt>To read</dt><dd>(\d+) minutes", facts)[1])
        assert (2 if name in deeper else 5) <= minutes <= 150, name
        assert "<dt>You need</dt>" in facts
        below = [d for d in deeper if number(d) == number(name) and name in chapters]
        assert sorted(re.findall(r'href="(deeper/[^"]+)"', facts)) == [d[9:] for d in below]
        if name in deeper:
            assert number(
                re.search(r'<dt>You need</dt><dd><a href="\.\./([^"]+)"', facts)[1]
            ) == number(name)
        assert (f'<dt>Next</dt><dd><a href="{after and after[9:]}">' in facts) == bool(after)


def test_chapters_can_be_downloaded(browser, address):  # noqa: F811
    visit = site.Visit(browser, address, "chapters/01_self_attention.html")
    with visit.page.expect_download() as waiting:
        visit.page.locator(".chapter-facts a[download]").click()
    assert waiting.value.suggested_filename == "01_self_attention.ipynb"
    stored = json.loads(Path(waiting.value.path()).read_text(encoding="utf-8"))
    assert len(stored["cells"]) > 20
    visit.page.close()


def test_places_that_others_may_link_to_only_grow():
    gone, new = sorted(listed() - built()), sorted(built() - listed())
    assert listed()
    assert gone == [], (
        'keep the old name above what took its place, there or on a deeper page: <span id="name"></span>'
    )
    assert new == [], "add them: python tools/anchors.py"


def test_a_place_that_moved_to_a_deeper_page_is_found_by_its_old_address(browser, address):  # noqa: F811
    moved = [
        (name, *found)
        for name in PAGES
        for found in re.findall(r'<span id="([^"]+)" data-moved="([^"]+)"', text(name))
    ]
    if not moved:
        pytest.skip("no place has moved")
    for name, place, there in moved:
        goal = (site.SITE / name).parent / there.removesuffix(f"#{place}")
        assert f'id="{place}"' in goal.read_text(encoding="utf-8"), there
    # One script leads there from all of them: tried once for each folder.
    page = browser.new_page()
    for name, place, there in {one[2].partition("/")[0]: one for one in moved}.values():
        page.goto(f"{address}/{name}#{place}")
        page.wait_for_url(f"**/{there.removeprefix('../')}")
        assert page.locator(f"[id='{place}']").count() == 1, f"{name}#{place}"
    page.close()


def test_files_for_robots():
    robots = text("robots.txt")
    assert robots.startswith("User-agent: *\nAllow: /\n")
    where = site.read_addresses()
    if not where.site:
        assert not (site.SITE / "sitemap.xml").exists()
        assert "Sitemap" not in robots
        return
    places = [
        place.text for place in ElementTree.fromstring(text("sitemap.xml")).iter() if place.text
    ]
    named = {place.removeprefix(where.site) for place in places if place.strip()}
    assert named <= set(PAGES)
    assert {name for name in PAGES if name.startswith("chapters/")} <= named
