"""English prose that every Python brings along: the paragraphs of its language reference."""

from __future__ import annotations

import hashlib
import re
from pydoc_data.topics import topics
from textwrap import dedent

from ..errors import argument_error
from ..shapes import checked

__all__ = ["PROSE_HASH", "python_prose"]

PROSE_HASH = "30cea92179063b988163cda3211e2e4b57483d26584b647411353355dfa03f9e"  # Python 3.11.7
SHORTEST = 80  # characters


@checked
def python_prose(*, any_version: bool = False) -> tuple[list[str], list[str]]:
    """The paragraphs of the topics of `help()`, without code, tables and grammar; every tenth is held out.

    Another version of Python has other words. What was trained on these belongs to these, so another text
    is an error, unless `any_version`.

    Returns: the paragraphs to learn from, and those held out.
    Raises: ValueError if this Python's text is another one.
    """
    found = dict.fromkeys(  # each once, in this order
        " ".join(paragraph.split())
        for name in sorted(topics)
        for paragraph in re.split(r"\n\s*\n", dedent(topics[name]))
        if is_prose(paragraph)
    )
    paragraphs = list(found)
    digest = hashlib.sha256("\n".join(paragraphs).encode()).hexdigest()
    if digest != PROSE_HASH and not any_version:
        wanted = f"the text with the SHA-256 {PROSE_HASH[:8]}..., of Python 3.11"
        raise argument_error(ValueError, "pydoc_data.topics", f"{digest[:8]}...", wanted)
    held_out = paragraphs[::10]
    return [paragraph for i, paragraph in enumerate(paragraphs) if i % 10], held_out


def is_prose(paragraph: str) -> bool:
    """Whether it is long enough, begins with a capital letter, ends as a sentence, and is no code or grammar."""
    text = " ".join(paragraph.split())
    code = re.search(r"::=|>>>|\+--|\| ", text) or re.search(r"\S {3,}\S", paragraph)
    return len(text) >= SHORTEST and text[0].isupper() and text[-1] in ".:)" and not code
