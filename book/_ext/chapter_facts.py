"""The facts under the title of a chapter: what it needs, how long it takes, the notebook, what comes next.

Reading is counted as book/how_to_use.md says; running is what the last recorded test run measured.
"""

import json
import os
import re
from collections import Counter
from html import escape
from pathlib import Path

import yaml
from docutils import nodes
from furniture import launch_links
from sphinx.util.osutil import relative_uri

HERE = Path(__file__).resolve().parents[1]
PLACES = Path(  # what others may link to
    os.environ.get("TESTED_TRANSFORMER_PLACES", HERE.parent / "tests" / "data" / "anchors.txt")
)
ID = re.compile(r'\bid="([^"]+)"')
INTERVIEW = "book/generated/interview"
MINUTES = {  # as book/how_to_use.md says
    "words": 1 / 200, "lines of code": 1 / 8, "lines of output": 1 / 20, "figures": 1 / 2, "predictions": 2,
}  # fmt: skip
FOLDED = {
    "dropdown",
    "toggle",
    "zh",
}  # classes of what a reader need not open, and of Chinese beside English


def add_facts(app, doctree, docname):
    """Put the facts of a chapter under its title."""
    if not docname.startswith("chapters/") or app.builder.format != "html":
        return
    section = next(doctree.findall(nodes.section))
    html = facts_html(app, docname, reading_minutes(section))
    section.insert(1, nodes.raw("", html, format="html"))


def facts_html(app, docname: str, minutes: int) -> str:
    """A list of terms and what is said of each."""
    facts = {
        "You need": ", ".join(needed(app.env, docname)),
        "Deeper": deeper_links(app.env, docname),
        "To read": f'{minutes} minutes<span class="of-a-screen"> without exercises and folded parts</span>',
        "To run": running(docname),
        "Notebook": ", ".join(notebook_links(app, docname)),
        "Next": next_chapter(app.env, docname),
    }
    rows = "".join(f"<div><dt>{k}</dt><dd>{v}</dd></div>" for k, v in facts.items() if v)
    return f'<dl class="chapter-facts">{rows}</dl>'


# ------------------------------------------------------------------------------------- reading


def reading_minutes(section) -> int:
    """Minutes for what is open on the page, exercises left out."""
    return max(1, round(sum(MINUTES[kind] * number for kind, number in count(section).items())))


def count(node) -> Counter[str]:
    """Count what MINUTES has a time for in a node, with all that is in it."""
    classes = set(node.get("classes", [])) if isinstance(node, nodes.Element) else set()
    if FOLDED & classes or type(node).__name__ == "HideCodeCellNode" or is_exercise(node):
        return Counter()
    if isinstance(node, nodes.literal_block):
        lines = node.astext().rstrip().count("\n") + 1
        return Counter({"lines of output" if "output" in classes else "lines of code": lines})
    if isinstance(node, nodes.math | nodes.math_block):
        return Counter(words=1)
    if isinstance(node, nodes.image):
        return Counter(figures=1)
    if isinstance(node, nodes.raw | nodes.comment | nodes.target):
        return Counter()
    if isinstance(node, nodes.Text):
        return Counter(words=len(node.astext().split()))
    own = Counter(predictions=1) if "predict" in classes else Counter()
    return sum((count(child) for child in node.children), own)


def is_exercise(node) -> bool:
    """Whether a node is the section of an exercise."""
    return isinstance(node, nodes.section) and node.next_node(nodes.title).astext().startswith(
        "Exercise"
    )


# -------------------------------------------------------------------------- the other facts


def number(docname: str) -> int:
    """The number of a chapter, which its file name begins with, and those of its deeper pages."""
    return int(re.match(r"chapters/(?:deeper/)?(\d+)", docname)[1])


def chapters(env) -> dict[int, str]:
    """The chapters of the book by number."""
    return {number(name): name for name in sorted(env.found_docs) if re.match(r"chapters/\d", name)}


def deeper(env, docname: str) -> list[str]:
    """The deeper pages of a chapter, as the table of contents has them below it; of such a page none."""
    return [name for name in env.toctree_includes.get(docname, []) if is_deeper(name)]


def deeper_links(env, docname: str) -> str:
    """Links to the deeper pages of a chapter; here stand the names of all places that moved from it."""
    links = [link(env, docname, page) for page in deeper(env, docname)]
    return ", ".join(links) + moved(env, docname) if links else ""


def moved(env, docname: str) -> str:
    """The promised names of places that are now on a deeper page or the page of interview questions, which the
    script of the site follows there: a place that others may link to is never lost."""
    promised = {
        name
        for page, _, name in (line.partition("#") for line in PLACES.read_text("utf-8").split())
        if page == docname
    } - names(env.get_doctree(docname))
    spans = []
    for page in filter(env.found_docs.__contains__, [*deeper(env, docname), INTERVIEW]):
        found = promised & names(env.get_doctree(page))
        address = relative_uri(f"{docname}.html", f"{page}.html")
        spans += [f'<span id="{n}" data-moved="{address}#{n}"></span>' for n in sorted(found)]
        promised -= found
    return "".join(spans)


def names(doctree) -> set[str]:
    """The ids on a page, those of HTML in its text too: `<span id="an-older-name"></span>`."""
    written = (ID.findall(node.astext()) for node in doctree.findall(nodes.raw))
    named = (node.get("ids", []) for node in doctree.findall(nodes.Element))
    return {name for found in (*written, *named) for name in found}


def is_deeper(docname: str) -> bool:
    """Whether a page is a chapter's deeper page."""
    return docname.startswith("chapters/deeper/")


def link(env, docname: str, to: str) -> str:
    """A link from a chapter to another."""
    title = escape(env.titles[to].astext()).replace(". ", ".&nbsp;", 1)
    return f'<a href="{relative_uri(f"{docname}.html", f"{to}.html")}">{title}</a>'


def needed(env, docname: str) -> list[str]:
    """What book/chapters.yml says that a reader needs; of a deeper page, its chapter.

    Raises: ValueError for a chapter that it does not name, or that needs a later one.
    """
    table = yaml.safe_load((HERE / "chapters.yml").read_text(encoding="utf-8"))
    mine, known = number(docname), chapters(env)
    if is_deeper(docname):
        return [link(env, docname, known[mine])]
    if mine not in table:
        raise ValueError(f"book/chapters.yml does not say what chapter {mine} needs")
    needs = table[mine]["needs"]
    later = [need for need in needs if isinstance(need, int) and not need < mine]
    if later:
        raise ValueError(
            f"book/chapters.yml: chapter {mine} cannot need {later}, which is not before it"
        )
    return [
        link(env, docname, known[need]) if isinstance(need, int) else escape(need) for need in needs
    ]


def running(docname: str) -> str:
    """How long the notebook ran in the last recorded test run, if there is one."""
    record = HERE / "tested.json"
    if not record.exists():
        return ""
    chapters = json.loads(record.read_text(encoding="utf-8"))["chapters"]
    seconds = chapters.get(docname.removeprefix("chapters/"))
    return f"{seconds:.0f} seconds on one processor core" if seconds else ""


def notebook_links(app, docname: str) -> list[str]:
    """Where to get the chapter as a notebook, and where to run it."""
    name = f"{Path(docname).name}.ipynb"
    source = relative_uri(f"{docname}.html", f"_sources/{docname}.ipynb")
    links = [f'<a href="{source}" download="{name}">download</a>']
    return links + [
        f'<a href="{escape(url)}">{place}</a>'
        for place, url in launch_links(app.addresses, docname)
    ]


def next_chapter(env, docname: str) -> str:
    """A link to the chapter after this one, if there is one; a deeper page has none."""
    later = [name for n, name in sorted(chapters(env).items()) if n > number(docname)]
    return link(env, docname, later[0]) if later and not is_deeper(docname) else ""


def setup(app):
    """Register the hook, before folds are renamed."""
    app.connect("doctree-resolved", add_facts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
