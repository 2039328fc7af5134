"""What stands around the text of a page, on a small book: with addresses, without, and with bad ones."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import nbformat
import pytest
import yaml
from docutils import nodes
from nbformat import v4

ROOT = Path(__file__).resolve().parents[2]
EXT = ROOT / "book" / "_ext"
sys.path.insert(0, str(EXT))

import chapter_facts  # noqa: E402
import furniture  # noqa: E402
import site_address  # noqa: E402

import anchors  # noqa: E402
import generate  # noqa: E402
import run_tests  # noqa: E402
from chapters import chapter_paths, core_paths  # noqa: E402

REPOSITORY, SITE = "https://github.com/someone/some-book", "https://someone.example/some-book/"
CONFIG = """
project, html_title, root_doc, language = "Not set", "Small", "book/index", "en"
extensions = ["myst_nb", "furniture", "chapter_facts"]
html_theme, nb_execution_mode = "sphinx_book_theme", "off"
html_context = {"default_mode": "auto"}
myst_enable_extensions = ["colon_fence", "dollarmath"]
html_theme_options = {"navbar_end": [], "navbar_start": [], "navbar_center": []}
"""
PAGES = {
    "book/index.md": "# Small\n\nA small book & its <pages>.\n\n```{toctree}\n../chapters/01_a\n../chapters/02_b\ngenerated/x\ngenerated/interview\n```\n",
    "book/generated/x.md": "# Made\n\nA page that a script writes.\n",
    "book/generated/interview.md": "# Interview questions\n\nThey are on a page of their own.\n\n## Why b\n",
}
SKILLS = "You will be able to\n\n- add NAME;\n- take $\\sqrt 2$;\n- divide.\n"


def build(folder: Path, repository: str, site: str, notebooks: str = "notebooks") -> Path:
    """Build a small book with the extension of the real one."""
    (folder / "chapters" / "deeper").mkdir(parents=True)
    (folder / "book" / "generated").mkdir(parents=True)
    (folder / "conf.py").write_text(CONFIG)
    for name, text in PAGES.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name in ("01_a", "02_b", "deeper/01_c"):
        text = f"# {Path(name).name[1]}. Title {name[-1]}\n\n:::{{admonition}} 摘要\n:class: zh\n中文\n:::\n\n{SKILLS.replace('NAME', name)}\n\n## More\n\nText."
        if name == "01_a":
            text += "\n\n```{toctree}\n:hidden:\ndeeper/01_c\n```\n"
        if name == "deeper/01_c":
            text += "\n\n## By hand\n\nThis stood in the chapter once.\n\n<span id='older-name'></span>\n".replace(
                "'", '"'
            )
        cells = [v4.new_markdown_cell(text), v4.new_code_cell("a = 1\n\nb = 2")]
        notebook = v4.new_notebook(cells=cells, metadata={"language_info": {"name": "python"}})
        nbformat.write(notebook, folder / "chapters" / f"{name}.ipynb")
    environment = {
        **os.environ,
        "PYTHONPATH": str(EXT),
        "TESTED_TRANSFORMER_REPOSITORY": repository,
        "TESTED_TRANSFORMER_SITE": site,
        "TESTED_TRANSFORMER_NOTEBOOKS": notebooks,
        "PYTHONUTF8": "1",
        "TESTED_TRANSFORMER_PLACES": str(folder / "anchors.txt"),
    }
    (folder / "anchors.txt").write_text(
        "".join(f"chapters/01_a#{n}\n" for n in ("by-hand", "more", "older-name", "why-b"))
    )
    command = [sys.executable, "-m", "sphinx", "-q", "-W", str(folder), str(folder / "out")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "out"


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    return build(tmp_path_factory.mktemp("bare"), "", "")


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    return build(tmp_path_factory.mktemp("known"), REPOSITORY, SITE)


def read(site: Path, name: str) -> str:
    return (site / name).read_text(encoding="utf-8")


def metas(page: str) -> dict[str, str]:
    return dict(re.findall(r'<meta (?:name|property)="([^"]+)" content="([^"]*)"', page))


def hrefs(page: str) -> list[str]:
    return re.findall(r'href="([^"]+)"', page)


slow = pytest.mark.slow


# ------------------------------------------------------------------------------ without addresses


@slow
def test_without_addresses_nothing_points_to_one(bare):
    for path in bare.rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        outside = {urlsplit(link).netloc for link in hrefs(page)} - {""}
        assert outside <= {"www.sphinx-doc.org"}, path
        assert not re.search(r'rel="canonical"|property="og:|launch-|source-\w+-button', page), path
    assert not (bare / "sitemap.xml").exists()
    assert read(bare, "robots.txt") == "User-agent: *\nAllow: /\n"
    stored = nbformat.read(bare / "_sources/chapters/01_a.ipynb", as_version=4)
    assert stored.cells[0].cell_type == "markdown"


@slow
def test_a_deeper_page_and_its_chapter_lead_to_each_other(bare):
    core, deeper = read(bare, "chapters/01_a.html"), read(bare, "chapters/deeper/01_c.html")
    facts = [
        re.search(r'<dl class="chapter-facts">.*?</dl>', p, re.DOTALL)[0] for p in (core, deeper)
    ]
    assert '<dt>Deeper</dt><dd><a href="deeper/01_c.html">1.&nbsp;Title c</a>' in facts[0]
    assert '<dt>You need</dt><dd><a href="../01_a.html">1.&nbsp;Title a</a>' in facts[1]
    assert 'href="../../_sources/chapters/deeper/01_c.ipynb" download="01_c.ipynb"' in facts[1]
    assert "<dt>Next</dt>" not in facts[1]
    assert '<dt>Next</dt><dd><a href="02_b.html">' in facts[0]


@slow
def test_a_place_that_moved_keeps_its_name(bare):
    core = read(bare, "chapters/01_a.html")
    assert '<span id="by-hand" data-moved="deeper/01_c.html#by-hand"></span>' in core
    assert '<span id="why-b" data-moved="../book/generated/interview.html#why-b"></span>' in core
    assert '<span id="older-name" data-moved="deeper/01_c.html#older-name"></span>' in core
    assert 'id="more" data-moved' not in core  # it is still here


@slow
def test_every_page_has_a_description_language_and_colors(bare):
    pages = {path.relative_to(bare).as_posix(): path for path in bare.rglob("*.html")}
    pages = {name: path for name, path in pages.items() if not name.startswith("_static/")}
    found = {name: metas(path.read_text(encoding="utf-8")) for name, path in pages.items()}
    descriptions = [facts["description"] for facts in found.values()]
    assert len(set(descriptions)) == len(pages)
    assert found["chapters/01_a.html"]["description"] == "You will be able to add 01_a; divide."
    assert found["book/index.html"]["description"] == "A small book &amp; its &lt;pages&gt;."
    assert all('<html lang="en"' in path.read_text(encoding="utf-8") for path in pages.values())
    assert all(facts["theme-color"] == "#14181e" for facts in found.values())


@slow
def test_facts_of_a_chapter(bare):
    first, last = read(bare, "chapters/01_a.html"), read(bare, "chapters/02_b.html")
    facts = re.search(r'<dl class="chapter-facts">.*?</dl>', first, re.DOTALL)[0]
    assert facts.index("Python, matrix products") < facts.index("1 minutes")
    assert '<a href="02_b.html">2.&nbsp;Title b</a>' in facts
    assert 'href="../_sources/chapters/01_a.ipynb" download' in facts
    assert '<a href="01_a.html">1.&nbsp;Title a</a>, derivatives' in last
    assert "<dt>Next</dt>" not in last
    assert first.rindex("</h1>") < first.index(facts) < first.index("中文")


@slow
def test_lost_page_works_at_any_depth(bare, known):
    for site, base in ((bare, "/"), (known, "/some-book/")):
        page = read(site, "404.html")
        links = re.findall(r'\b(?:href|src|action)="([^"]+)"', page)
        relative = [link for link in links if not link.startswith((base, "#", "http"))]
        assert relative == []
        assert f'data-content_root="{base}"' in page
        assert metas(page)["robots"] == "noindex"
        inside = [urlsplit(link).path for link in links if link.startswith(base)]
        assert f"{base}search.html" in inside
        assert all((site / path.removeprefix(base)).is_file() for path in inside)


# --------------------------------------------------------------------------------- with addresses


@slow
def test_with_addresses_pages_say_where_they_are(known):
    for name in ("book/index.html", "chapters/01_a.html"):
        page = read(known, name)
        facts = metas(page)
        assert f'<link rel="canonical" href="{SITE}{name}"' in page
        assert facts["og:url"] == SITE + name
        assert facts["og:image"] == f"{SITE}_static/social.png"
        assert facts["og:description"] == facts["description"]
        assert facts["og:site_name"] == "Small"
    assert facts["og:title"] == "1. Title a"
    assert 'rel="canonical"' not in read(known, "404.html")


@slow
def test_sitemap_lists_every_page_once(known):
    tree = ElementTree.fromstring(read(known, "sitemap.xml"))
    found = [place.text for place in tree.iter("{http://www.sitemaps.org/schemas/sitemap/0.9}loc")]
    pages = [
        *("book/generated/interview", "book/generated/x", "book/index"),
        *("chapters/01_a", "chapters/02_b", "chapters/deeper/01_c"),
    ]
    assert sorted(found) == [f"{SITE}{name}.html" for name in pages]
    assert f"Sitemap: {SITE}sitemap.xml" in read(known, "robots.txt")


@slow
def test_buttons_lead_to_the_file_of_the_page(known):
    links = [link.replace("&amp;", "&") for link in hrefs(read(known, "chapters/01_a.html"))]
    colab = "https://colab.research.google.com/github/someone/some-book/blob/notebooks/"
    assert links.count(f"{colab}chapters/01_a.ipynb") == 2  # under the title and in the bar
    binder = [unquote(link) for link in links if "mybinder" in link]
    assert set(binder) == {
        "https://mybinder.org/v2/gh/someone/some-book/main?urlpath=lab/tree/chapters/01_a.ipynb"
    }
    assert f"{REPOSITORY}/edit/main/chapters/01_a.ipynb" in links
    assert f"{REPOSITORY}/edit/main/book/index.md" in hrefs(read(known, "book/index.html"))
    made = hrefs(read(known, "book/generated/x.html"))
    assert not [link for link in made if "/edit/" in link or "/blob/" in link]


@slow
def test_without_a_branch_of_notebooks_there_is_binder_alone(tmp_path):
    site = build(tmp_path, REPOSITORY, SITE, notebooks="")
    links = hrefs(read(site, "chapters/01_a.html"))
    assert [link for link in links if "mybinder" in link]
    assert not [link for link in links if "colab" in link]


@slow
def test_downloaded_notebook_gets_the_book_first(known):
    stored = nbformat.read(known / "_sources/chapters/01_a.ipynb", as_version=4)
    nbformat.validate(stored)
    source = stored.cells[0].source
    assert f"git clone -q --depth 1 --branch main {REPOSITORY} tested-transformer" in source
    plain = re.sub(r"^( +)[!%].*$", r"\1pass", source, flags=re.MULTILINE)
    assert ast.parse(plain)
    assert stored.cells[1].source.startswith("# 1. Title a")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("repository", "https://example.org/someone/book"),
        ("repository", "github.com/someone/book"),
        ("site", "someone.example"),
        ("site", "https://someone.example/?page=1"),
    ],
)
def test_bad_addresses_are_refused(monkeypatch, name, value):
    monkeypatch.setenv(f"TESTED_TRANSFORMER_{name.upper()}", value)
    with pytest.raises(ValueError, match=f"{name} must be .*{re.escape(value)}"):
        site_address.read_addresses()


def test_the_file_of_addresses_has_its_keys(tmp_path):
    assert site_address.read_addresses().branch
    bad = tmp_path / "site.yml"
    bad.write_text("repo: ''\nsite: ''\n")
    with pytest.raises(ValueError, match="must have the keys"):
        site_address.read_addresses(bad)


def test_addresses_are_written_one_way(monkeypatch):
    monkeypatch.setenv("TESTED_TRANSFORMER_REPOSITORY", REPOSITORY + ".git")
    monkeypatch.setenv("TESTED_TRANSFORMER_SITE", SITE.rstrip("/"))
    where = site_address.read_addresses()
    assert (where.repository, where.site, where.base) == (REPOSITORY, SITE, "/some-book/")


# ------------------------------------------------------------------------------------- small parts


def test_a_description_is_cut_between_words():
    assert furniture.shorten(["All of it."]) == "All of it."
    long = furniture.shorten(["word " * 80])
    assert long.endswith("word…")
    assert len(long) <= furniture.LONGEST + 1
    many = furniture.shorten(["You can", *["x" * 60 + ";"] * 5])
    assert many == "You can " + "; ".join(["x" * 60] * 3) + "."


def test_reading_time_counts_what_is_open_on_the_page():
    text = nodes.paragraph("", "word " * 400)
    code = nodes.literal_block("", "line\n" * 40)
    folded = nodes.admonition("", nodes.paragraph("", "word " * 4000), classes=["dropdown"])
    output = nodes.literal_block("", "7\n" * 20, classes=["output", "stream"])
    formula = nodes.paragraph("", "", nodes.math("", "a b c d"))
    predict = nodes.admonition("", nodes.paragraph("", "Which?"), classes=["predict"])
    exercise = nodes.section("", nodes.title("", "Exercise 1.1: more"), text.deepcopy())
    title = nodes.title("", "Title")
    section = nodes.section("", title, text, code, folded, output, formula, predict, exercise)
    section += nodes.image()
    assert chapter_facts.count(section) == {
        "words": 403, "lines of code": 40, "lines of output": 20, "figures": 1, "predictions": 1
    }  # fmt: skip
    assert chapter_facts.reading_minutes(section) == 11


def test_every_chapter_says_what_it_needs():
    table = yaml.safe_load((ROOT / "book" / "chapters.yml").read_text(encoding="utf-8"))
    there = [int(path.name[:2]) for path in core_paths()]
    assert list(table) == there
    for chapter, facts in table.items():
        earlier = [need for need in facts["needs"] if isinstance(need, int)]
        assert facts["needs"]
        assert all(need in there and need < chapter for need in earlier)


def test_a_chapter_can_not_need_a_later_one(tmp_path, monkeypatch):
    (tmp_path / "chapters.yml").write_text("1: {needs: [2]}\n")
    monkeypatch.setattr(chapter_facts, "HERE", tmp_path)
    env = type("Env", (), {"found_docs": {"chapters/01_a", "chapters/02_b"}})
    with pytest.raises(ValueError, match=r"chapter 1 cannot need \[2\]"):
        chapter_facts.needed(env, "chapters/01_a")
    with pytest.raises(ValueError, match="does not say what chapter 2 needs"):
        chapter_facts.needed(env, "chapters/02_b")


@pytest.mark.parametrize("path", chapter_paths(), ids=lambda p: p.stem)
def test_every_chapter_begins_with_what_a_reader_will_be_able_to_do(path):
    first = json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"]
    first = "".join(first)
    assert re.search(r"^\**You will be able to\**\n\n- ", first, re.MULTILINE)


# -------------------------------------------------------------------- the picture, the citation


def test_the_picture_for_links_is_made_from_the_drawing():
    from PIL import Image

    import social_picture

    assert social_picture.PICTURE.stat().st_size < 100_000
    with Image.open(social_picture.PICTURE) as image:
        assert image.size == (social_picture.WIDTH, social_picture.HEIGHT) == (1200, 630)
        drawn = social_picture.fingerprint(social_picture.drawing())
        assert image.text["drawing"] == drawn, "run python tools/social_picture.py"


def test_citation_agrees_with_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == project["version"]
    assert citation["authors"] == citation["preferred-citation"]["authors"] == project["authors"]
    where = site_address.read_addresses()
    assert citation.get("repository-code", "") == where.repository
    assert citation.get("url", "") == where.site


def test_changelog_tells_of_the_version():
    version = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"]
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_contributing_names_what_is_there():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    names = re.findall(r"\b(?:tests|tools|chapters|code|benchmarks)/[\w./-]*", text)
    assert len(names) > 5
    assert [name for name in names if not (ROOT / name.rstrip(".")).exists()] == []


def test_bibtex_entry_has_an_address_only_if_there_is_one():
    book = {"title": "T: all of it", "authors": [{"name": "The Authors"}], "year": 2026}
    citation = {"preferred-citation": book, "version": "0.1.0"}
    entry = generate.cite(citation)
    assert "@book{tested-transformer,\n  title   = {T: all of it},\n" in entry
    assert "author  = {{The Authors}}" in entry
    assert "url" not in entry
    assert "  url     = {https://example.org/}," in generate.cite(
        {**citation, "url": "https://example.org/"}
    )


# ------------------------------------------------------------------------------ the recorded run


REPORT = """<testsuites><testsuite>
<testcase classname="chapters.04_masks.ipynb" name="Cell 0" time="1.5"/>
<testcase classname="chapters.04_masks.ipynb" name="Cell 1" time="2.1"/>
<testcase classname="tests.test_masks" name="a" time="0.1"><skipped message="no GPU here"/></testcase>
</testsuite></testsuites>"""


def test_every_file_with_a_test_that_wants_no_shape_checks_is_found():
    """The mark stands in the files themselves: none comes from a file that they share."""
    tests = ROOT / "tests"
    marked = [p for p in tests.rglob("*.py") if run_tests.PLAIN in p.read_text(encoding="utf-8")]
    found = {ROOT / name for name in run_tests.with_plain_types()}
    assert set(marked) == found
    assert tests / "specs" / "test_answers.py" in found
    assert tests / "conftest.py" not in found


def finished_step(**changes) -> run_tests.Step:
    step = run_tests.Step("chapters", [], seconds=7.4, **changes)
    step.read(ElementTree.ElementTree(ElementTree.fromstring(REPORT)))
    return step


def test_a_recorded_run_says_what_passed_and_what_each_chapter_took():
    record = run_tests.record([finished_step()], 61.0)
    assert record["steps"] == [{"name": "chapters", "seconds": 7, "passed": 2, "skipped": 1}]
    assert record["chapters"] == {"04_masks": 3.6}
    assert record["skipped"] == {"no GPU here": 1}
    assert record["python"] == ".".join(map(str, sys.version_info[:3]))
    assert json.loads(json.dumps(record)) == record
    page = generate.last_run(record)
    assert f"On {record['date']}, 2 tests passed in 1 minutes" in page
    assert "| chapters | 2 | 7 |" in page
    assert "- 1, because: no GPU here" in page
    assert "| [](../chapters/04_masks.ipynb) | 4 |" in page


def test_a_failed_run_is_not_recorded():
    with pytest.raises(ValueError, match="nothing is recorded, because of failures in: chapters"):
        run_tests.record([finished_step(failed=True)], 61.0)


def test_the_summary_names_a_file_that_is_skipped_as_a_whole(tmp_path):
    (tmp_path / "test_a.py").write_text(
        "import pytest\npytest.importorskip('no_such', reason='no \"such\"')\n"
    )
    report = tmp_path / "report.xml"
    command = [sys.executable, *run_tests.PYTEST, tmp_path, f"--junitxml={report}"]
    subprocess.run(command, cwd=tmp_path, capture_output=True)
    step = run_tests.Step("unit tests", [])
    step.read(ElementTree.parse(report))
    assert 'skipped, 1 test: no "such" (the whole file test_a)\n' in run_tests.summary(
        [step], True, 1
    )


def test_an_old_site_is_not_tested_when_the_new_one_did_not_build():
    book = run_tests.Step("book", [], failed=True)
    step = run_tests.Step("browser", ["-c", "raise SystemExit(1)"], after=book)
    step.run("[2/2]")
    assert not step.failed
    assert step.skipped == {"browser: book failed": 1}


def test_without_a_record_the_page_says_so():
    assert "No run is recorded" in generate.last_run(None)


def test_running_time_is_what_was_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(chapter_facts, "HERE", tmp_path)
    assert chapter_facts.running("chapters/04_masks") == ""
    (tmp_path / "tested.json").write_text('{"chapters": {"04_masks": 17.6}}')
    assert chapter_facts.running("chapters/04_masks").startswith("18 seconds")
    assert chapter_facts.running("chapters/05_multi_head") == ""


def test_places_in_an_article():
    page = """<span id="outside"></span><article><section id="by-hand"><span id="id3"></span>
    <figure id="fig-a"></figure><svg id="drawing"></svg></section></article><div id="after"></div>"""
    assert anchors.Article(page).names == {"by-hand", "fig-a"}
