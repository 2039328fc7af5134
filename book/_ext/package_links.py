"""Links between the chapters and the API reference, both ways, for every public name of the package.

On a chapter's page, a source that show(...) printed and the first mention of a public name in a section
lead to its entry; an entry leads to the chapters that use it. Notebooks stay as they are stored.
"""

import ast
import functools
import inspect
import itertools
import re
from importlib import import_module

from docutils import nodes
from pitfall_links import line
from sphinx import addnodes

from tested_transformer.reader.public_names import folder_of, public_names

PACKAGE = "tested_transformer"
REFERENCE = "book/generated/api"  # and a page of entries for each folder: api_layers
UNLINKED = ("book/generated/gallery", "book/bibliography", "book/changelog")  # how names begin
FILE = re.compile(rf"code/({PACKAGE}[\w/]*)\.py")
DEFINED = re.compile(r"^(?:async )?(?:def|class) (\w+)", re.MULTILINE)
SHOWN, USED, NAMED = range(3)  # how a chapter uses a name, the best first


# ----------------------------------------------------------------------------------- public names


@functools.cache
def public() -> dict[str, object]:
    """Every public name with its module, as its entry has it."""
    return {
        f"{module}.{member}": getattr(import_module(module), member)
        for module, members in public_names().items()
        for member in members
    }


@functools.cache
def by_word() -> dict[str, str]:
    """The public names that one word means, without their modules."""
    words = [full.rpartition(".")[2] for full in public()]
    return {
        word: full for word, full in zip(words, public(), strict=True) if words.count(word) == 1
    }


def entry(module: str, name: str) -> str | None:
    """The public name of what a module calls so, wherever it was imported from."""
    try:
        thing = functools.reduce(getattr, name.split("."), import_module(module))
    except (ImportError, AttributeError):
        return None
    for full, candidate in public().items():
        of_same_name = full.endswith(f".{name}")
        if candidate is thing and (
            of_same_name or inspect.isroutine(thing) or inspect.isclass(thing)
        ):
            return full
    return None


def telling(word: str) -> bool:
    """Whether a word can hardly be anything but a name in code: masked_softmax, LayerNorm."""
    return "_" in word.strip("_") or (len(re.findall("[A-Z]", word)) > 1 and not word.isupper())


# ---------------------------------------------------------------------------------- what a chapter uses


class Names:
    """The public names that the code of a notebook uses, cell by cell; an import alone is no use."""

    def __init__(self):
        self.modules, self.things = {}, {}  # what the notebook calls modules and public names

    def read(self, source: str) -> list[str]:
        """The public names in one more cell."""
        lines = ["" if line.startswith(("%", "!")) else line for line in source.splitlines()]
        every = list(ast.walk(ast.parse("\n".join(lines))))
        for node in every:
            if isinstance(node, ast.Import):
                self._import(node)
            elif isinstance(node, ast.ImportFrom) and _ours(node.module or ""):
                self._import_from(node)
        found = [self._meant(node) for node in every]
        return [full for full in found if full]

    def _import(self, node):
        for alias in node.names:
            if _ours(alias.name):
                self.modules[alias.asname or PACKAGE] = alias.name if alias.asname else PACKAGE

    def _import_from(self, node):
        for alias in node.names:
            name, full = alias.asname or alias.name, entry(node.module, alias.name)
            if full:
                self.things[name] = full
            elif _is_module(f"{node.module}.{alias.name}"):
                self.modules[name] = f"{node.module}.{alias.name}"

    def _meant(self, node) -> str | None:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            return self.things.get(node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            first, _, rest = ast.unparse(node).partition(".")
            return entry(self.modules[first], rest) if first in self.modules else None
        return None


def _ours(module: str) -> bool:
    return module.split(".")[0] == PACKAGE


def _is_module(name: str) -> bool:
    try:
        import_module(name)
    except ImportError:
        return False
    return True


def note_uses(app, doctree):
    """Note which public names a chapter uses, and in which section first."""
    docname = app.env.docname
    if docname.startswith("chapters/"):
        _uses(app)[docname] = uses(doctree)


def _uses(app) -> dict[str, dict]:
    """What each chapter uses."""
    if not hasattr(app.env, "package_uses"):
        app.env.package_uses = {}
    return app.env.package_uses


def uses(doctree) -> dict[str, tuple[int, str]]:
    """For each public name how a chapter uses it, and the section: the best way, and of those the first."""
    names, found = Names(), {}

    def note(full, how, node):
        if full and how < found.get(full, (NAMED + 1, ""))[0]:
            found[full] = (how, _section(node)["ids"][0])

    for block in doctree.findall(nodes.literal_block):
        if "cell_input" in block.parent["classes"]:
            for full in names.read(block.astext()):
                note(full, USED, block)
    for blocks, shown in listings(doctree):
        for full in shown:
            note(full, SHOWN, blocks[-1])
    for literal in doctree.findall(nodes.literal):
        full = meant(literal.astext(), names.things.values())
        if full and not _is_output(literal):
            note(full, NAMED, literal)
    for link in doctree.findall(addnodes.pending_xref):  # written as a link in the notebook
        if link["reftarget"] in public():
            note(link["reftarget"], NAMED, link)
    return found


def listings(doctree):
    """What show(...) printed: the blocks of one file, and the public names that they define."""
    for paragraph in list(doctree.findall(nodes.paragraph)):
        path = FILE.match(paragraph.astext())
        if not (path and paragraph.next_node(nodes.strong) and _is_output(paragraph)):
            continue
        siblings = paragraph.parent.children[paragraph.parent.index(paragraph) + 1 :]
        blocks = list(
            itertools.takewhile(lambda each: isinstance(each, nodes.literal_block), siblings)
        )
        owner = re.search(r", class (\w+)", paragraph.astext())
        found = [_entry_of(path[1], owner and owner[1], block) for block in blocks]
        yield blocks, [full for full in dict.fromkeys(found) if full]


def _entry_of(path: str, owner: str | None, block) -> str | None:
    module = path.replace("/", ".").removesuffix(".__init__")
    name = owner or (DEFINED.search(block.astext()) or [None, ""])[1]
    return entry(module, name) if name else None


def meant(text: str, used) -> str | None:
    """The public name that inline code means: one that it can hardly mistake, or that the page uses."""
    word = text.removesuffix("()").removeprefix(f"{PACKAGE}.")
    full = by_word().get(word)
    return full if full and (telling(word) or full in used) else None


def _section(node):
    while not isinstance(node, nodes.section):
        node = node.parent
    return node


def _is_output(node) -> bool:
    while node.parent is not None:
        if "cell_output" in node.get("classes", []):
            return True
        node = node.parent
    return False


# -------------------------------------------------------------------------------------------- links


def link(app, doctree, docname):
    """Put the links on a page whose own are resolved."""
    if app.builder.format != "html":
        return
    if docname.startswith(REFERENCE):
        _link_entries(app, doctree, docname)
    elif not docname.startswith(UNLINKED):
        if docname.startswith("chapters/"):
            _link_sources(app, doctree, docname)
        _link_mentions(app, doctree, docname)
        if docname.startswith("chapters/"):
            _link_others(app, doctree, docname)


def _address(app, docname, full):
    return f"{app.builder.get_relative_uri(docname, page_of(full))}#{anchor(full)}"


def page_of(full: str) -> str:
    """The page with the entry of a public name: that of its folder."""
    return f"{REFERENCE}_{folder_of(full)}"


def anchor(full: str) -> str | None:
    """The anchor of an entry, by its public name alone: a link outlives a move to another module.

    A method's is that of its class and its own name: api-KeyValueCache.append.
    """
    modules = [module for module in public_names() if full.startswith(f"{module}.")]
    return f"api-{full.removeprefix(max(modules, key=len))[1:]}" if modules else None


def name_entries(app, doctree):
    """Put the anchor by public name before that by module, which Sphinx makes."""
    if app.env.docname.startswith(REFERENCE):
        for signature in doctree.findall(addnodes.desc_signature):
            for full in signature["ids"][:1]:
                signature["ids"].insert(0, anchor(full))


def _link_sources(app, doctree, docname):
    """Beneath each source that show(...) printed: its entry."""
    for blocks, shown in listings(doctree):
        if shown:
            around, last = blocks[-1].parent, blocks[-1]
            links = [_code_link(app, docname, full) for full in shown]
            around.insert(around.index(last) + 1, line("In the reference: ", links, "in-reference"))


def _code_link(app, docname, full):
    word = full.rpartition(".")[2]
    address = _address(app, docname, full)
    return nodes.reference("", "", nodes.literal(word, word), refuri=address, internal=True)


def _link_mentions(app, doctree, docname):
    """The first mention of a public name in a section leads to its entry."""
    used = _uses(app).get(docname, {})
    in_code = {full for full, (how, _) in used.items() if how != NAMED}
    seen = set()
    for literal in list(doctree.findall(nodes.literal)):
        full = meant(literal.astext(), in_code)
        if not full or _is_linked(literal) or _is_output(literal):
            continue
        section = _section(literal)["ids"][0]
        if (section, full) not in seen:
            seen.add((section, full))
            reference = nodes.reference("", "", refuri=_address(app, docname, full), internal=True)
            literal.replace_self(reference)
            reference += literal


def _link_others(app, doctree, docname):
    """At the end of a chapter: the names that only its code uses, and that nothing above leads to."""
    linked = {reference.get("refuri", "") for reference in doctree.findall(nodes.reference)}
    found = [full for full in _uses(app)[docname] if _address(app, docname, full) not in linked]
    if found:
        last = list(doctree.next_node(nodes.section).findall(nodes.section))[-1]
        links = [_code_link(app, docname, full) for full in found]
        last.append(line("Also from the package, in the reference: ", links, "in-reference"))


def _is_linked(node) -> bool:
    """Whether it is part of a link or of a title, which links and contents repeat."""
    while node.parent is not None:
        if isinstance(node, nodes.reference | nodes.title | nodes.term):
            return True
        node = node.parent
    return False


def _link_entries(app, doctree, docname):
    """Beneath each entry: the chapters that use it."""
    for described in list(doctree.findall(addnodes.desc)):
        signature = described.next_node(addnodes.desc_signature)
        full = signature["ids"][-1] if signature["ids"] else ""
        if full not in public():
            continue
        links = []
        for chapter, found in sorted(_uses(app).items()):
            if full in found:
                address = f"{app.builder.get_relative_uri(docname, chapter)}#{found[full][1]}"
                links.append(
                    nodes.reference(
                        "", app.env.titles[chapter].astext(), refuri=address, internal=True
                    )
                )
        used = (
            line("Used in ", links, "used-in")
            if links
            else line("Used in no chapter.", [], "used-in")
        )
        described.parent.insert(described.parent.index(described) + 1, used)


def setup(app):
    """Register the steps.

    All modules are imported first: some make a configuration, and autodoc later writes the annotations
    of its bases into a class as strings, whose names the class's own module need not have.
    """
    public_names()
    app.connect("doctree-read", note_uses)
    app.connect("doctree-read", name_entries)
    app.connect("doctree-resolved", link, priority=600)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
