"""Links between the box of a mistake in a chapter and its entry in the gallery, both ways."""

import re
from pathlib import Path

import yaml
from docutils import nodes
from sphinx.errors import ExtensionError

GALLERY = "book/generated/gallery_"  # how the names of its pages begin
BOOK = Path(__file__).resolve().parents[1]
OTHER_NAMES = BOOK / "pitfall_boxes.yml"
FORMER_NAMES = BOOK / "pitfall_names.yml"


def anchor(name: str) -> str:
    """The permanent anchor of a mistake, as tools/generate.py writes it too."""
    return "pitfall-" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def boxes(doctree):
    """The boxes of mistakes on a page, each with the name in its title."""
    for box in doctree.findall(nodes.admonition):
        if "pitfall" in box["classes"]:
            title = " ".join(box.next_node(nodes.title).astext().split())
            yield box, title.removeprefix("Pitfall: ").replace("’", "'")


def name_boxes(app, doctree):
    """Give each box a permanent anchor, and note which mistakes it tells of.

    Raises: ExtensionError for a box twice on a page.
    """
    docname = app.env.docname
    if not docname.startswith("chapters/"):
        return
    other = yaml.safe_load(OTHER_NAMES.read_text(encoding="utf-8"))
    former = yaml.safe_load(FORMER_NAMES.read_text(encoding="utf-8"))
    noted = {}
    for box, name in boxes(doctree):
        place = anchor(name)
        if place in noted:
            raise ExtensionError(f"{docname} has two boxes of the mistake {name!r}")
        box["ids"][:0] = [place, *map(anchor, former.get(name, []))]
        noted[place] = [anchor(mistake) for mistake in other.get(name, [name])]
    _noted(app.env)[docname] = noted


def _noted(env) -> dict[str, dict[str, list[str]]]:
    """For each chapter its boxes, and the mistakes of each: all by their anchors."""
    if not hasattr(env, "pitfall_boxes"):
        env.pitfall_boxes = {}
    return env.pitfall_boxes


def link(app, doctree, docname):
    """Add a line with links to each box and to each entry that has one."""
    known = _noted(app.env)
    if docname in known:
        for box, _ in boxes(doctree):
            _add_to_box(app, box, docname, known[docname][box["ids"][0]])
    elif docname.startswith(GALLERY):
        told = [
            (mistake, chapter, box)
            for chapter, found in sorted(known.items())
            for box, its in found.items()
            for mistake in its
        ]
        for section in doctree.findall(nodes.section):
            places = [(chapter, box) for mistake, chapter, box in told if mistake in section["ids"]]
            if places:
                links = [
                    _link(app, docname, chapter, box, app.env.titles[chapter].astext())
                    for chapter, box in places
                ]
                section.insert(1, line("With an example in ", links, "shown-in"))


def _add_to_box(app, box, docname, mistakes):
    labels = app.env.get_domain("std").anonlabels
    titles = app.env.get_domain("std").labels
    links = []
    for mistake in mistakes:
        if mistake not in labels:
            raise ExtensionError(
                f"{docname}#{box['ids'][0]}: the gallery has no {mistake}: name it in {OTHER_NAMES.name}"
            )
        page, _, title = titles[mistake]
        links.append(_link(app, docname, page, mistake, title))
    if links:
        box.append(line("In the gallery: ", links, "in-gallery"))


def _link(app, docname, there, place, text):
    address = f"{app.builder.get_relative_uri(docname, there)}#{place}"
    return nodes.reference("", text, refuri=address, internal=True)


def line(beginning: str, links: list, name: str):
    """A small line of links beneath something."""
    paragraph = nodes.paragraph("", "", nodes.Text(beginning), classes=["way", name])
    for number, each in enumerate(links):
        paragraph += [nodes.Text("; ")] * bool(number) + [each]
    return paragraph


def setup(app):
    """Register the steps."""
    app.connect("doctree-read", name_boxes)
    app.connect("doctree-resolved", link, priority=600)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
