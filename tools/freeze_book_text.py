"""Copy the prose of the book's pages into the package, for the search of chapter 22.

The copy is made once and then stays as it is: keys, weights and measured numbers belong to it, and every edit of any page
would change them. It holds paragraphs of the chapters and their deeper pages in the order of the table of contents, with
the title of the page and the nearest heading; without code, tables, exercises, displayed formulas and lists of sources.
The same pages give the same bytes, and the first line says from which day they are.

Usage: python tools/freeze_book_text.py DATE      (as in 2026-11-28)
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tested_transformer.data.book_text import PASSAGES

ROOT = Path(__file__).parents[1]
SHORTEST = 80  # characters
LEFT_OUT = re.compile(r"Exercise|Sources|Where to go next|Interview|Another|第")


def pages() -> list[str]:
    """The chapters and their deeper pages, in the order of the table of contents."""
    toc = (ROOT / "_toc.yml").read_text(encoding="utf-8")
    return re.findall(r"file: (chapters/\S+)", toc)


def formula_text(formula: str) -> str:
    r"""A formula in a line without its markup.

    >>> formula_text(r"\\tfrac{1}{\\sqrt{d_k}} \\cdot QK^\\top")
    '1/sqrt d_k * QK^T'
    """
    formula = re.sub(r"\\[td]?frac\s*(\d)(\d)", r"\1/\2", formula)
    formula = re.sub(r"\\[td]?frac\s*\{([^{}]*)\}", r"\1/", formula)
    for sign, plain in ((r"\cdot", "*"), (r"\top", "T"), (r"\times", "x"), (r"\le", "<=")):
        formula = re.sub(re.escape(sign) + r"(?![a-z])", lambda _, p=plain: p, formula)
    formula = re.sub(
        r"\\(operatorname|text|mathrm|mathcal|mathbb|left|right)(?![a-z])", "", formula
    )
    formula = re.sub(r"\\([a-zA-Z]+)", r"\1", formula)
    return " ".join(re.sub(r"\\.|[{}~]", " ", formula).split())


def plain(text: str) -> str:
    """Markdown in a line without its markup.

    >>> plain("The **mean** of `keys`, see [here](x.md).")
    'The mean of keys, see here.'
    """
    text = re.sub(r"<[^>\n]*>", "", text)
    text = re.sub(
        r"\{cite:[pt]\}`([a-z]+)(\d{4})\w*`", lambda m: f"{m[1].capitalize()} {m[2]}", text
    )
    text = re.sub(r"\{[\w:]+\}`~?(?:[\w.]*\.)?([^`<]*?)(?:\s*<[^`]*>)?`", r"\1", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"(?<!\\)\$([^$]+)\$", lambda m: formula_text(m[1]), text)
    return " ".join(re.sub(r"\*\*|`|(?<!\w)\*(?=\w)|(?<=\w)\*(?!\w)|\\(?=\$)", "", text).split())


def without_blocks(text: str) -> str:
    """Without code, displayed formulas, the Chinese summary, and the fences of boxes."""
    text = re.sub(r"^(`{3,}).*?^\1\s*$", "\n", text, flags=re.S | re.M)
    text = re.sub(r"\$\$.*?\$\$[^\n]*", "\n", text, flags=re.S)
    text = re.sub(r"^::::\{dropdown\} 第.*?^::::\s*$", "\n", text, flags=re.S | re.M)
    text = re.sub(
        r"^:::\{dropdown\} (?:Hint|Another hint).*?^:::\s*$", "\n", text, flags=re.S | re.M
    )
    return re.sub(r"^:.*$", "\n", text, flags=re.M)


def passages_of(cells: list[dict]) -> Iterator[dict[str, str]]:
    """The passages of a page in their order."""
    title = heading = ""
    for cell in cells:
        if cell["cell_type"] != "markdown":
            continue
        for block in re.split(
            r"\n\s*\n|\n(?=#+ |\d+\. |- )", without_blocks("".join(cell["source"]))
        ):
            found = re.match(r"(#+) +(.*)", block.strip())
            if found:
                heading = plain(found[2]).split(" / ")[0]  # without a translation
                title = heading if len(found[1]) == 1 else title
                continue
            text = re.sub(r"^(\d+\.|-) ", "", plain(block))
            other = re.match(r"\||Terms:|Next:", text) or re.search(r"[\u4e00-\u9fff]{5}", text)
            if len(text) >= SHORTEST and not (other or LEFT_OUT.match(heading)):
                yield {"page": title, "heading": heading, "text": text}


def main(arguments: list[str]) -> int:
    """Write the file, and say how large it is."""
    (date,) = arguments
    passages = []
    for page in pages():
        cells = json.loads((ROOT / f"{page}.ipynb").read_text(encoding="utf-8"))["cells"]
        passages += passages_of(cells)
    first = {"what": "The prose of this book's pages, frozen for its chapter 22.", "date": date}
    lines = [json.dumps(line, ensure_ascii=False) for line in (first, *passages)]
    PASSAGES.parent.mkdir(exist_ok=True)
    PASSAGES.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    print(f"{len(passages)} passages, {PASSAGES.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
