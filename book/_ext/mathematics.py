"""Mathematics is set when the book is built: each formula is MathML, and the page needs no script for it.

A formula that cannot be set is a warning with its place, and so no book. The LaTeX source stays inside
the MathML as its annotation, for whoever copies it or has a browser without MathML.
"""

import re

from docutils import nodes
from math_core import LatexError, LatexToMathML
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number

SPACE = re.compile(r"^\[[\d.]+ *(pt|em|ex|mm)\]")
STARLESS = re.compile(r"\\(begin|end)\{(equation|align|gather|alignat|multline|eqnarray)\}")
APART = "\0"  # before such a row
logger = logging.getLogger(__name__)
convert = LatexToMathML(annotation=True, fancy_error=False).convert_with_local_state


def to_mathml(latex: str, display: bool = False) -> str:
    """Set one formula.

    Raises: ValueError when the source is not LaTeX that a browser's MathML can show.
    """
    rows = latex.strip().split(r"\\")
    apart = [place for place, row in enumerate(rows) if SPACE.match(row)]  # \\[4pt] before them
    source = r"\\".join(SPACE.sub("", row) for row in rows)
    if display and r"\\" in source and not source.startswith(r"\begin"):
        source = rf"\begin{{aligned}}{source}\end{{aligned}}"
    if not source:
        raise ValueError("the formula is empty")
    if STARLESS.search(source):  # it would count by itself, beside the numbers of the book
        raise ValueError("a numbered environment: write $$...$$ (label), or the starred form")
    try:
        mathml = convert(source, displaystyle=display)
    except LatexError as error:
        raise ValueError(str(error)) from None
    pieces = mathml.split("<mtr>")
    if apart and len(pieces) != len(rows) + 1:
        raise ValueError("space between rows is for a formula that is one table")
    for place in apart:
        pieces[place] += APART
    return "<mtr>".join(pieces).replace(f"{APART}<mtr>", '<mtr class="apart">')


def visit_inline(translator, node):
    """A formula in the line."""
    translator.body.append(translator.starttag(node, "span", "", CLASS=CLASSES))
    translator.body.append(_set(translator, node, display=False) + "</span>")
    raise nodes.SkipNode


def visit_display(translator, node):
    """A formula on its own: it scrolls in its box, which the keyboard reaches; its number stands beside it."""
    number = get_node_equation_number(translator, node) if node["number"] else ""
    name = f"Equation {number}".strip()
    translator.body += [
        translator.starttag(node, "div", "", CLASS=CLASSES),
        f'<div class="formula" tabindex="0" role="group" aria-label="{name}">',
        _set(translator, node, display=True),
        "</div>",
    ]
    if number:
        translator.body.append(f'<span class="eqno">({number})')
        translator.add_permalink_ref(node, "Link to this equation")
        translator.body.append("</span>")
    translator.body.append("</div>\n")
    raise nodes.SkipNode


def _set(translator, node, display):
    latex = node.astext()
    try:
        return to_mathml(latex, display)
    except ValueError as error:
        logger.warning("formula not set: %s\n%s", error, latex, location=node, type="mathematics")
        return f"<code>{translator.encode(latex)}</code>"


CLASSES = "math notranslate nohighlight"


def setup(app):
    """Register the renderer."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_display, None))
    app.add_css_file("math/mathematics.css")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
