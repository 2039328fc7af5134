"""What the search of the book keeps of a page: its places, their names, their words."""

import json
import re
import sys
from pathlib import Path

import pytest

from chapters import chapter_paths

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "book" / "_ext"))
find_places = pytest.importorskip("find_places")
nodes = pytest.importorskip("docutils.nodes")

# ------------------------------------------------------------------------------------- formulas


@pytest.mark.parametrize(
    ("latex", "typed"),
    [
        ("d_k", "d_k"),
        (r"\sqrt{d_k}", "√d_k"),
        (r"\frac{1}{\sqrt{d_k}}", "1/√d_k"),
        (r"1/\sqrt{d_\text{model}}", "1/√d_model"),
        (r"\sqrt 2", "√2"),
        (r"\frac{q \cdot k}{\sqrt d}", "(q · k)/√d"),
        (r"x_{ij}^{2}", "x_ij^2"),
        (r"e^{s_i - m}", "e^(s_i - m)"),
        (r"\alpha\beta^\top", "αβ^T"),
        (r"\Lambda", "Λ"),
        (r"\operatorname{softmax}(QK^\top)V", "softmax(QK^T)V"),
        (r"\left( a \right)", "( a )"),
        (r"j \le i + S - L", "j ≤ i + S - L"),
        (r"\{0, 1\}", "{0, 1}"),
        (r"\tfrac12", "1/2"),
        (r"\sqrt{\frac{D-1}{D}}", "√((D-1)/D)"),
        (r"\frac{a_{1}}{\sqrt{d_{model}}}", "a_1/√d_model"),
    ],
)
def test_a_formula_as_people_type_it(latex, typed):
    assert find_places.plain_formula(latex) == typed


def test_no_formula_of_the_book_leaves_latex():
    """Commands become signs or their names; what a reader sees has neither braces of LaTeX nor backslashes."""
    formulas = set()
    for path in chapter_paths():
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            text = "".join(cell["source"]) if cell["cell_type"] == "markdown" else ""
            formulas.update(
                re.findall(r"(?<![\$\\])\$([^\$\n]+)\$(?!\$)", re.sub(r"`[^`]*`", "", text))
            )
    assert len(formulas) > 300
    typed = {formula: find_places.plain_formula(formula) for formula in formulas}
    left = [f for f, seen in typed.items() if "\\" in seen or ("{" in seen and r"\{" not in f)]
    assert left == []


def test_spaces_and_stops():
    assert find_places.clean(" a  b ,\n c . Then .T and ( d )") == "a b, c. Then .T and ( d)"


# --------------------------------------------------------------------------------------- places


def section(title: str, *children, names=("here",)):
    return nodes.section("", nodes.title("", title), *children, ids=list(names))


def page(*sections):
    doctree = nodes.document(None, None)
    doctree += sections
    return doctree


def paragraph(text: str, **attributes):
    return nodes.paragraph("", text, **attributes)


def test_a_section_has_its_own_words_and_not_those_of_the_sections_in_it():
    inner = section("Inside", paragraph("deep words"), names=["inside"])
    found = find_places.places(
        page(section("Title", paragraph("top words"), inner)), "chapters/01_x"
    )
    assert [(p["kind"], p["anchor"], p["names"], p["text"]) for p in found] == [
        ("page", "", ["Title"], "top words"),
        ("section", "inside", ["Inside"], "deep words"),
    ]


def test_formulas_are_typed_code_gives_names_and_outputs_nothing():
    code = nodes.literal_block("", "scores = query @ key.mT  # shapes")
    output = nodes.literal_block("", "tensor(secret)", classes=["output"])
    text = nodes.paragraph(
        "", "", nodes.Text("divide by "), nodes.math("", r"\sqrt{d_k}"), nodes.Text(" the scores")
    )
    display = nodes.math_block("", r"\int_0^1 x")
    [found] = find_places.places(page(section("T", text, display, code, output)), "chapters/01_x")
    assert found["text"] == "divide by √d_k the scores …"
    assert found["code"].split() == ["key", "query", "shapes"]  # scores is in the text already


def test_a_chapter_is_found_by_its_chinese_title():
    box = nodes.admonition("", nodes.title("", "第3章 缩放"), paragraph("为什么"), classes=["zh"])
    [found] = find_places.places(page(section("3. Scaling", box)), "chapters/03_scaling")
    assert found["names"] == ["3. Scaling", "缩放"]
    assert "为什么" in found["text"]


def test_a_box_is_a_place_and_its_line_of_links_is_not_text():
    way = paragraph("In the gallery: No scale", classes=["way"])
    box = nodes.admonition(
        "",
        nodes.title("", "Pitfall: no scale"),
        paragraph("too sharp"),
        way,
        classes=["pitfall"],
        ids=["pitfall-no-scale"],
    )
    outer, found = find_places.places(
        page(section("T", paragraph("a"), box)), "chapters/03_scaling"
    )
    assert found == {
        "kind": "pitfall",
        "anchor": "pitfall-no-scale",
        "names": ["no scale"],
        "text": "too sharp",
        "code": "",
    }
    assert outer["text"] == "a"


def test_a_mistake_of_the_gallery_has_its_permanent_anchor():
    mistake = section(
        "Rows that sum to 2",
        paragraph("Symptom. odd"),
        paragraph("Seen. elsewhere"),
        names=["rows", "pitfall-rows"],
    )
    _, found = find_places.places(page(section("Gallery", mistake)), "book/generated/gallery_04")
    assert (found["kind"], found["anchor"], found["text"]) == (
        "mistake",
        "pitfall-rows",
        "Symptom. odd",
    )


def test_a_term_has_all_its_names():
    from sphinx import addnodes

    english = nodes.term(
        "", "key/value cache", addnodes.index(entries=[]), ids=["term-key-value-cache"]
    )
    chinese = nodes.term("", "键值缓存（KV 缓存）", ids=["term-键值缓存"])
    item = nodes.definition_list_item(
        "", english, chinese, nodes.definition("", paragraph("What is kept."))
    )
    glossary = addnodes.glossary("", nodes.definition_list("", item))
    _, found = find_places.places(page(section("Glossary", glossary)), "book/glossary")
    assert found["anchor"] == "term-key-value-cache"
    assert found["names"] == ["key/value cache", "键值缓存（KV 缓存）", "键值缓存", "KV 缓存"]
    assert found["text"] == "What is kept."


def test_a_method_has_its_class_before_it_and_stands_alone_too():
    from sphinx import addnodes

    def described(kind, name, text, *inner):
        signature = addnodes.desc_signature("", "", ids=[f"m.{name}"], fullname=name)
        return addnodes.desc(
            "", signature, addnodes.desc_content("", paragraph(text), *inner), objtype=kind
        )

    whole = described("class", "Heads", "Several.", described("method", "Heads.forward", "Attend."))
    _, outer, inner = find_places.places(page(section("API", whole)), "book/generated/api")
    assert (outer["kind"], outer["anchor"], outer["names"], outer["text"]) == (
        "class",
        "m.Heads",
        ["Heads"],
        "Several.",
    )
    assert (inner["kind"], inner["names"], inner["text"]) == (
        "method",
        ["Heads.forward", "forward"],
        "Attend.",
    )


def test_lists_of_what_stands_elsewhere_are_one_place():
    asked = section("Why? / 为什么？", paragraph("because"), names=["why"])
    found = find_places.places(page(section("Interview questions", asked)), "book/bibliography")
    assert [place["names"] for place in found] == [["Interview questions"]]


# ---------------------------------------------------------------------------------------- files


def test_names_and_running_text_go_to_two_files():
    common = [
        {
            "kind": "section",
            "anchor": f"s{n}",
            "names": [f"S{n}"],
            "text": f"t{n}",
            "code": f"torch rare{n}",
        }
        for n in range(20)
    ]
    term = {
        "kind": "term",
        "anchor": "term-x",
        "names": ["x", "甲"],
        "text": "what x is",
        "code": "",
    }
    names, text = find_places.rows([("a.html", [*common, term])])
    listed = json.loads(names.removeprefix("const PLACES=").removesuffix(";\n"))
    running = json.loads(text.removeprefix("const PLACES_TEXT=").removesuffix(";\n"))
    assert listed[0][0] == "a.html"
    assert listed[0][1][-1] == [find_places.KINDS.index("term"), "term-x", ["x", "甲"], "what x is"]
    assert running == [
        [f"t{n}", f"rare{n}"] for n in range(20)
    ]  # torch is everywhere, and tells nothing
    assert listed[0][1][3] == [find_places.KINDS.index("section"), "s3", ["S3"]]


def test_the_script_of_the_page_knows_the_same_kinds():
    script = (ROOT / "book" / "_static" / "search_page.js").read_text(encoding="utf-8")
    kinds = json.loads(re.search(r"const KINDS = (\[.*?\]);", script)[1])
    assert tuple(kinds) == find_places.KINDS
    for table in ("LABELS", "BONUS"):
        named = re.search(rf"const {table} = \{{(.*?)\}};", script, re.DOTALL)[1]
        assert set(re.findall(r"(\w+):", named)) == set(find_places.KINDS)
