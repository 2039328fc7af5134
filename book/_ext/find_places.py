"""The search of the book: a list of its places, each with its names and words, and a page that looks through it.

Sphinx's own search knows pages and English words. A reader of this book looks for a function, a term in
English or Chinese, a mistake, or a sentence, and wants the place itself. So each heading, public name,
term and mistake is a place of its own here; book/_static/search_page.js ranks them. Scripts hold the list,
so that it works from disk: the names come with the search page, the running text with the first question.
"""

import json
import re
import unicodedata
from collections import Counter
from pathlib import Path

from docutils import nodes
from sphinx import addnodes

NAMES_FILE, TEXT_FILE = "search_places.js", "search_text.js"
COMMON = 12  # a name in the code of more places than this tells none of them apart
# What a place is; search_page.js knows the same words, and shows them.
KINDS = ("term", "function", "class", "method", "data", "pitfall", "mistake", "page", "section")
RUNNING = ("page", "section")  # their words are running text
OBJECTS = {"function": "function", "class": "class", "exception": "class", "method": "method",
           "property": "method", "attribute": "data", "data": "data"}  # fmt: skip
UNSEEN = (
    nodes.section,
    nodes.title,
    nodes.raw,
    nodes.comment,
    nodes.target,
    nodes.image,
    addnodes.index,
    addnodes.toctree,
)
GALLERY = "book/generated/gallery_"  # how the names of its pages begin
WORDLESS = {"book/bibliography", "book/generated/gallery"}  # lists of what stands elsewhere too
MISTAKE = (
    "Symptom.",
    "Cause.",
)  # the parts of a mistake in the gallery that are read for its words
NAME = re.compile(r"[^\W\d]\w{2,}")
HAN = re.compile(r"[\u3400-\u9fff]")


def collect(app, doctree, docname):
    """Note the places of a page, when its links are known."""
    if app.builder.format == "html":
        # Sphinx writes a page's links in its own words: what stands there now is what a reader sees.
        app.places[docname] = places(doctree, docname)


def places(doctree, docname: str) -> list[dict]:
    """The places of a page, in its order; the page itself is the first."""
    found = []
    for section in doctree.findall(nodes.section):
        if not (found and docname in WORDLESS):
            found += _section(section, docname, first=not found)
    return found


def _section(section, docname: str, first: bool) -> list[dict]:
    """A section's place and the places that stand in it, but not those of its subsections."""
    title = clean(section.next_node(nodes.title).astext())
    others = [_chinese_title(section)] if first else []
    mistake = docname.startswith(GALLERY) and [
        name for name in section["ids"] if name.startswith("pitfall-")
    ]
    kind = "page" if first else "mistake" if mistake else "section"
    anchor = "" if first else (mistake or section["ids"])[0]
    place = {"kind": kind, "anchor": anchor, "names": [title, *filter(None, others)]}
    text, code, inner = [], set(), []
    for child in section.children:
        if docname not in WORDLESS and (not mistake or child.astext().startswith(MISTAKE)):
            _read(child, text, code, inner)
    words = clean(" ".join(text))
    return [place | {"text": words, "code": _only_in_code(code, words)}, *inner]


def _read(node, text: list[str], code: set[str], inner: list[dict]) -> None:
    """Gather the words of a node, the names in its code, and the places in it."""
    if isinstance(node, UNSEEN):
        return
    if isinstance(node, addnodes.desc):
        inner += _described(node)
    elif isinstance(node, nodes.definition_list_item) and node.next_node(nodes.term)["ids"]:
        inner.append(_term(node))
    elif isinstance(node, nodes.Element) and "pitfall" in node.get("classes", []) and node["ids"]:
        inner.append(_pitfall(node))
    elif isinstance(node, nodes.Element) and "way" in node.get("classes", []):
        return  # a line of links, which stands at every mistake
    elif isinstance(node, nodes.literal_block):
        if "output" not in node.parent.get("classes", []) + node["classes"]:
            code.update(NAME.findall(node.astext()))
    elif isinstance(node, nodes.math):
        text.append(plain_formula(node.astext()))
    elif isinstance(node, nodes.math_block):
        text.append(" … ")
    elif isinstance(node, nodes.Text):
        text.append(node.astext())
    else:
        for child in node.children:
            _read(child, text, code, inner)
        if not isinstance(node, nodes.Inline):
            text.append(" ")


def _words(*children) -> str:
    text: list[str] = []
    for child in children:
        _read(child, text, set(), [])
    return clean("".join(text))


def _described(desc) -> list[dict]:
    """A public name with the first paragraph of what is said of it, and the names in it."""
    signature = desc.next_node(addnodes.desc_signature)
    if desc["objtype"] not in OBJECTS or not signature["ids"]:
        return []
    content = desc.next_node(addnodes.desc_content)
    said = next((child for child in content if isinstance(child, nodes.paragraph)), None)
    full = signature["fullname"]
    names = [full, full.rpartition(".")[2]] if "." in full else [full]
    place = {
        "kind": OBJECTS[desc["objtype"]], "anchor": signature["ids"][0], "names": names,
        "text": _words(said) if said else "", "code": "",
    }  # fmt: skip
    inner = [child for child in content if isinstance(child, addnodes.desc)]
    return [place, *(found for child in inner for found in _described(child))]


def _term(item) -> dict:
    """A term of the glossary: its names, the Chinese one too, and what it means."""
    terms = [child for child in item if isinstance(child, nodes.term)]
    names = [name for term in terms for name in [clean(_first_words(term))] if name]
    return {
        "kind": "term", "anchor": terms[0]["ids"][0], "names": names + inside(names),
        "text": _words(item.next_node(nodes.definition)), "code": "",
    }  # fmt: skip


def inside(names: list[str]) -> list[str]:
    """What stands in parentheses in a name, and the name without it: both are what people call it."""
    found = (re.fullmatch(r"(.+?) ?[(（](.+)[)）](.*)", name) for name in names)
    return [part.strip() for hit in found if hit for part in (hit[1] + hit[3], hit[2])]


def _first_words(term) -> str:
    return "".join(child.astext() for child in term if not isinstance(child, addnodes.index))


def _pitfall(box) -> dict:
    """The box of a mistake in a chapter."""
    title, *rest = box.children
    name = clean(title.astext()).removeprefix("Pitfall: ")
    return {
        "kind": "pitfall",
        "anchor": box["ids"][0],
        "names": [name],
        "text": _words(*rest),
        "code": "",
    }


def _chinese_title(section) -> str:
    """The title of the abstract in Chinese, without the number: 缩放."""
    for box in section.findall(nodes.admonition):
        if "zh" in box["classes"]:
            return re.sub(r"^第\d+章 *", "", box.next_node(nodes.title).astext())
    return ""


# ---------------------------------------------------------------------------------------- words


def clean(text: str) -> str:
    """Text with single spaces, and none before a stop."""
    return re.sub(r" +([,.;:?!)])(?!\w)", r"\1", " ".join(text.split()))


def _only_in_code(code: set[str], words: str) -> str:
    """The names that only the code of a place has."""
    said = set(NAME.findall(words))
    return " ".join(sorted(code - said))


SIGNS = {
    "cdot": "·", "times": "×", "le": "≤", "leq": "≤", "ge": "≥", "geq": "≥", "ne": "≠", "neq": "≠", "approx": "≈",
    "infty": "∞", "sum": "∑", "prod": "∏", "int": "∫", "partial": "∂", "nabla": "∇", "in": "∈", "to": "→", "mid": "|",
    "top": "T", "odot": "⊙", "pm": "±", "dots": "…", "ldots": "…", "cdots": "…", "equiv": "≡", "sim": "~", "ell": "ℓ",
    "rightarrow": "→", "Rightarrow": "⇒", "propto": "∝", "lvert": "|", "rvert": "|", "Vert": "‖", "lVert": "‖", "rVert": "‖", "ast": "*",
    "varepsilon": "ε", "varphi": "φ", "vartheta": "ϑ", "lfloor": "⌊", "rfloor": "⌋", "lceil": "⌈", "rceil": "⌉",
}  # fmt: skip
UNTYPED = re.compile(
    r"\\(?:(?:left|right|[Bb]igg?[lr]?|displaystyle|limits|quad|qquad)(?![a-zA-Z])|[,;:!])"
)
OPEN, CLOSE = "\x01", "\x02"  # braces that are to be seen, meanwhile
GROUP = r" *\{([^{}]*)\}"
STYLES = r"operatorname\*?|text\w*|math\w+|boldsymbol|hat|bar|tilde|vec|overline|underline"
TEXT, ROOT = re.compile(rf"\\(?:{STYLES}){GROUP}"), re.compile(rf"\\sqrt{GROUP}")
FRACTION, INDEX = re.compile(rf"\\[dt]?frac{GROUP}{GROUP}"), re.compile(rf"([_^]){GROUP}")


def plain_formula(latex: str) -> str:
    r"""A short formula as people type it: \frac{1}{\sqrt{d_k}} is 1/√d_k."""
    text = UNTYPED.sub(" ", latex).replace(r"\{", OPEN).replace(r"\}", CLOSE)
    text = re.sub(r"\\(?:begin|end)\{\w+\*?\}", " ", text).replace(r"\\", "; ")
    text = re.sub(r"\\[dt]?frac *(\d)(\d)", r"\1/\2", text)
    text = re.sub(r"\\sqrt *(\w|\\[a-z]+)", r"√\1", text)
    before = ""
    while text != before:  # from inside out: no group has another in it
        before = text
        text = TEXT.sub(r"\1", text)
        text = ROOT.sub(lambda hit: f"√{_grouped(hit[1])}", text)
        text = FRACTION.sub(lambda hit: f"{_grouped(hit[1])}/{_grouped(hit[2])}", text)
        text = INDEX.sub(lambda hit: hit[1] + _grouped(hit[2]), text)
    text = re.sub(r"\\([a-zA-Z]+)( ?)", _sign, text)
    text = re.sub(r"\\(.)|[{}$&]", lambda hit: hit[1] or "", text)
    return " ".join(text.replace(OPEN, "{").replace(CLOSE, "}").split())


def _grouped(part: str) -> str:
    """A part of a formula that stood in braces: in parentheses, if it is more than one thing."""
    part = part.strip()
    return part if re.fullmatch(r"√?\\?[\w.]+|\W", part) else f"({part})"


def _sign(hit: re.Match) -> str:
    """One command of LaTeX: its sign, its Greek letter, or its name."""
    name, space = hit.groups()
    size = "CAPITAL" if name[0].isupper() else "SMALL"
    greek = f"GREEK {size} LETTER {name.upper().replace('LAMBDA', 'LAMDA')}"
    try:
        return (SIGNS.get(name) or unicodedata.lookup(greek)) + space
    except KeyError:
        return name + space


# ---------------------------------------------------------------------------------------- files


def write(app, exception):
    """Write the places and the running text."""
    if exception or app.builder.format != "html":
        return
    order = sorted(app.places, key=lambda docname: _order(app, docname))
    pages = [(app.builder.get_target_uri(docname), app.places[docname]) for docname in order]
    for name, text in zip((NAMES_FILE, TEXT_FILE), rows(pages), strict=True):
        Path(app.outdir, name).write_text(text, encoding="utf-8")


def rows(pages: list[tuple[str, list[dict]]]) -> tuple[str, str]:
    """The scripts with the places by page, and with the text of pages and sections in the same order."""
    often = Counter(name for _, found in pages for place in found for name in place["code"].split())
    listed, text = [], []
    for address, found in pages:
        listed.append([address, []])
        for place in found:
            row = [KINDS.index(place["kind"]), place["anchor"], place["names"]]
            if place["kind"] in RUNNING:
                rare = [name for name in place["code"].split() if often[name] <= COMMON]
                text.append([place["text"], " ".join(rare)])
            else:
                row.append(place["text"])
            listed[-1][1].append(row)
    return _script("PLACES", listed), _script("PLACES_TEXT", text)


def _script(name: str, value: list) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return f"const {name}={text};\n"


def _order(app, docname: str) -> tuple:
    """Where a page stands in the book: of places that fit alike, the first comes first."""
    order = app.env.toctree_includes.get(app.config.root_doc, [])
    return (order.index(docname) if docname in order else -1, docname)


def prepare(app):
    """Turn off the search of Sphinx, whose page and index are then not written."""
    app.places = {}
    if app.builder.format == "html":
        app.builder.search = False


def add_page(app, config):
    """The search page is ours."""
    config.html_additional_pages = {**config.html_additional_pages, "search": "search.html"}


def setup(app):
    """Register the steps: places are noted after all other changes to a page."""
    app.connect("config-inited", add_page)
    app.connect("builder-inited", prepare)
    app.connect("doctree-resolved", collect, priority=950)
    app.connect("build-finished", write, priority=700)  # before light_pages.py, which looks for it
    return {"parallel_read_safe": True, "parallel_write_safe": False}
