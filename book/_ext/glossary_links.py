"""The glossary's anchors are made of its terms, and a chapter that sets a term in bold leads to it, and back."""

import re

from docutils import nodes
from pitfall_links import line
from sphinx import addnodes

GLOSSARY = "book/glossary"
COUNTED = re.compile(r"term-\d+")


def anchor(term: str) -> str:
    """The permanent anchor of a term in any script: term-缩放因子."""
    return "term-" + re.sub(r"\W+", "-", term).strip("-")


def name_terms(app, doctree):
    """Name the anchors that Sphinx counts or makes of the Latin letters in a Chinese term.

    A new term would rename those after it, and two terms can have the same letters.
    """
    if app.env.docname != GLOSSARY:
        return
    standard = app.env.get_domain("std")
    for term in doctree.findall(nodes.term):
        text, old = term.astext().strip(), term["ids"][0]
        if text.isascii() and not COUNTED.fullmatch(old):
            continue
        new = term["ids"][0] = anchor(text)
        for index in term.findall(addnodes.index):
            index["entries"] = [
                tuple(new if part == old else part for part in each) for each in index["entries"]
            ]
        standard.objects["term", text] = standard._terms[text.lower()] = (GLOSSARY, new)
    entries = [each for index in doctree.findall(addnodes.index) for each in index["entries"]]
    app.env.get_domain("index").entries[GLOSSARY] = entries


def note_bold(app, doctree):
    """Note what a chapter sets in bold, as it does where a term first appears, each with its section."""
    if app.env.docname.startswith("chapters/"):
        if not hasattr(app.env, "bold_words"):
            app.env.bold_words = {}
        found = {}
        for bold in doctree.findall(nodes.strong):
            section = bold
            while section is not None and not isinstance(section, nodes.section):
                section = section.parent
            if section is not None:
                found.setdefault(bold.astext().lower(), section["ids"][0])
        app.env.bold_words[app.env.docname] = found


def places(app) -> dict[str, str]:
    """The anchors of the glossary by term, in small letters."""
    objects = app.env.get_domain("std").objects
    return {name.lower(): place for (kind, name), (_, place) in objects.items() if kind == "term"}


def look_up(word: str, known: dict[str, str]) -> str | None:
    """The anchor of a term that stands in a text, in the plural too."""
    word = " ".join(word.lower().split())
    return known.get(word) or known.get(word.removesuffix("s"))


def link(app, doctree, docname):
    """Chapters lead to the glossary at a term in bold, the glossary to the first chapter that has it so."""
    known = places(app)
    if docname.startswith("chapters/"):
        seen = set()
        for bold in list(doctree.findall(nodes.strong)):
            place = look_up(bold.astext(), known)
            if place and place not in seen and isinstance(bold.children[0], nodes.Text):
                seen.add(place)
                address = f"{app.builder.get_relative_uri(docname, GLOSSARY)}#{place}"
                reference = nodes.reference("", "", refuri=address, internal=True)
                bold.replace_self(reference)
                reference += bold
    elif docname == GLOSSARY:
        _link_back(app, doctree, known)


def _link_back(app, doctree, known):
    first = {}
    for chapter, words in sorted(getattr(app.env, "bold_words", {}).items()):
        for word, section in words.items():
            place = look_up(word, known)
            if place:
                first.setdefault(place, (chapter, section))
    for item in doctree.findall(nodes.definition_list_item):
        for term in item.findall(nodes.term):
            for place in first.keys() & set(term["ids"]):
                chapter, section = first[place]
                address = f"{app.builder.get_relative_uri(GLOSSARY, chapter)}#{section}"
                text = app.env.titles[chapter].astext()
                way = line(
                    "In ", [nodes.reference("", text, refuri=address, internal=True)], "defined-in"
                )
                item.next_node(nodes.definition).append(way)


def setup(app):
    """Register the steps."""
    app.connect("doctree-read", name_terms)
    app.connect("doctree-read", note_bold)
    app.connect("doctree-resolved", link, priority=600)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
