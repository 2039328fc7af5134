"""The drawing of the model: its links lead somewhere, its text fits, and it never changes."""

import xml.etree.ElementTree as ET
from pathlib import Path

from tested_transformer.plotting.diagram import WIDTH
from tested_transformer.plotting.model_diagram import BOX, BOXES, CHAPTERS, model_diagram
from tested_transformer.plotting.style import text_width
from tested_transformer.reader.public_names import public_names

CHAPTER_FILES = Path(__file__).resolve().parents[2] / "chapters"
SVG = "{http://www.w3.org/2000/svg}"


def test_it_is_a_group_and_no_image():
    """An image has no links inside for those who cannot see it."""
    assert ET.fromstring(model_diagram().svg).get("role") == "group"


def test_every_box_has_two_links_with_a_name():
    links = list(ET.fromstring(model_diagram().svg).iter(f"{SVG}a"))
    assert len(links) == 2 * len(BOXES)
    assert all(link.get("href") and link.get("aria-label") for link in links)


def test_chapters_exist():
    """A box may lead to a chapter that is being written, but only under the name it will have."""
    toc = (CHAPTER_FILES.parent / "_toc.yml").read_text(encoding="utf-8")
    assert all(f"chapters/{name}\n" in toc for name in CHAPTERS.values())
    assert {box.chapter for box in BOXES} <= CHAPTERS.keys()


def test_sources_are_the_public_definitions():
    public = {f"{module}.{n}" for module, names in public_names().items() for n in names}
    for box in BOXES:
        assert f"{box.made_by.__module__}.{box.made_by.__qualname__}" in public, box.title
        page, anchor = box.source_link.split("#")
        assert page == f"../_modules/{box.made_by.__module__.replace('.', '/')}.html"
        assert anchor == box.made_by.__name__


def test_text_stays_in_its_box():
    for box in BOXES:
        assert text_width(box.title, 13.5) * 72 < BOX - 15, box.title
        both = text_width(f"ch. {box.chapter}", 12.0) + text_width(box.file, 12.0)
        assert 72 * both < BOX - 22, box.file
        assert 0 <= box.left <= WIDTH - BOX


def test_no_two_boxes_overlap():
    places = {(box.left, box.top) for box in BOXES}
    assert len(places) == len(BOXES)
    for left, top in places:
        others = [y for x, y in places if x == left and y != top]
        assert min(abs(top - y) for y in others) >= 50


def test_a_terminal_gets_words():
    bundle = model_diagram()._repr_mimebundle_()
    assert bundle["text/plain"] == repr(model_diagram())
    assert "cross-attention of every decoder layer" in bundle["text/plain"]
