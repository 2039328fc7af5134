"""How the grader's HTML pages are made: one file each from a template, no script, nothing asked of anybody."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ..marking.files import file_stem
from ..words import count, plain_number

# What no file of text should hold.
UNSHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
MOST_SENTENCE = 4_000  # bytes of one sentence or value
# A path from the root, of two steps or more; not a fraction, not a web address.
PATH = re.compile(r"(?<![\w.:/~)\]])~?(?:/[\w.+@~-]+){2,}/?|\b[A-Za-z]:[\\/][^\s'\",;)]+")


def printable(value: Any) -> Any:
    """Any text without what no file of text should hold; HTML and all else as it is."""
    return UNSHOWN.sub("\ufffd", value) if type(value) is str else value


def size(text: str) -> int:
    """The bytes that a text takes in a page: a quotation mark is written with five."""
    return len(escape(printable(text)).encode())


def cut(text: str, most: int = MOST_SENTENCE, elsewhere: str = "") -> str:
    """As much of a text as takes no more than so many bytes in a page, and how much is missing."""
    begin = text[: most + 1]
    if size(begin) <= most:
        return text
    end = bisect_right(range(len(begin)), most, key=lambda end: size(begin[:end])) - 1
    return f"{text[:end]}\n[... {len(text) - end:,} more characters{elsewhere}]"


def without_paths(text: str) -> str:
    """What a program said, less where files lie on the grader's machine: that is nobody's business."""
    return PATH.sub("(a file)", text)


def prose(text: str) -> Markup:
    """A sentence as HTML, with `code` in it set as code."""
    return _with_tags(r"`([^`\n]+)`", r"<code>\1</code>", without_paths(cut(text)))


def _with_tags(pattern: str, html: str, text: str) -> Markup:
    """Any text as HTML, with tags where a pattern is."""
    shown = str(escape(printable(text)))  # re.sub would escape what it puts into Markup
    return Markup(re.sub(pattern, html, shown))


def breakable(name: str, after: str = "._-") -> Markup:
    """A name as HTML, which may break after these characters."""
    return _with_tags(f"([{after}])", r"\1<wbr>", name)


def code(name: str) -> Markup:
    """The name of a part or a function."""
    return Markup("<code>{}</code>").format(breakable(name))


def identity(name: str) -> Markup:
    """An id, which breaks anywhere if a part of it is too long."""
    return Markup('<span class="id">{}</span>').format(breakable(name, "/._-"))


def items(cells: Iterable[Markup]) -> Markup:
    """A list, of HTML."""
    return Markup("<ul>\n{}</ul>").format(Markup().join(map(Markup("<li>{}</li>\n").format, cells)))


PAGES = Environment(
    loader=PackageLoader(__package__), autoescape=True, finalize=printable, undefined=StrictUndefined,
    trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip
PAGES.filters |= {
    "code": code, "count": count, "cut": cut, "file_stem": file_stem, "identity": identity, "items": items,
    "points": plain_number, "prose": prose, "without_paths": without_paths,
}  # fmt: skip


def render(template: str, **values: Any) -> str:
    """A page, or a part of one; every value is shown as text, unless it is HTML already."""
    return PAGES.get_template(template).render(values)
