"""What the grader's HTML pages have in common: one file each, no script, nothing asked of anybody."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

from ..words import plain_number

# Even if a text got through unescaped, a browser would run and load nothing.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
STYLE = """
:root { color-scheme: light dark; --page: #fafaf7; --panel: #ffffff; --ink: #222222; --soft: #595959;
  --edge: #d6d6cf; --track: #e6e6df; --accent: #0060b5; --right: #00694a; --wrong: #a8261c;
  --stopped: #7a5200; }
@media (prefers-color-scheme: dark) { :root { --page: #17191c; --panel: #202327; --ink: #e8e8e4;
  --soft: #b0b0ab; --edge: #3d4147; --track: #3a3e44; --accent: #74b6f5; --right: #62cfa2;
  --wrong: #ff9a90; --stopped: #efbd66; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); line-height: 1.5;
  font: 1rem/1.5 system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif; overflow-wrap: anywhere; }
main { max-width: 52rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
main.broad { max-width: 76rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.25rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1.05rem; margin: 0 0 .2rem; }
p, ul, pre, dl { margin: .4rem 0; }
ul { padding-left: 1.3rem; }
a { color: var(--accent); }
a:focus-visible, [tabindex]:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
.lines { white-space: pre-line; }
.soft { color: var(--soft); }
.total { font-size: 1.15rem; }
.total b { font-size: 1.7rem; }
section.part { background: var(--panel); border: 1px solid var(--edge); border-radius: .5rem;
  padding: .8rem 1rem; margin: .8rem 0; }
.verdict { font-weight: 600; }
.right { color: var(--right); } .wrong { color: var(--wrong); } .stopped { color: var(--stopped); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1rem; }
dt { color: var(--soft); } dd { margin: 0; min-width: 0; }
code, pre { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: .9em; }
pre { white-space: pre-wrap; margin: 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding-bottom: .3rem; }
th, td { text-align: left; vertical-align: top; padding: .4rem .8rem .4rem 0;
  border-bottom: 1px solid var(--edge); overflow-wrap: break-word; }
.id { overflow-wrap: anywhere; }
th { font-weight: 600; } thead th { color: var(--soft); vertical-align: bottom; }
tbody th { font-weight: 400; }
tfoot th, tfoot td { font-weight: 600; border-bottom: 0; }
.number { text-align: right; } td.number { white-space: nowrap; }
.say { display: block; min-width: 11rem; color: var(--soft); }
.bar { display: block; width: 8rem; max-width: 100%; height: .5rem; margin-top: .3rem; background: var(--track);
  border-radius: .25rem; overflow: hidden; }
.bar span { display: block; height: 100%; background: var(--accent); }
svg { display: block; width: 100%; max-width: 30rem; height: auto; }
svg text { fill: var(--ink); font-size: 11px; text-anchor: middle; }
svg .column { fill: var(--accent); } svg line { stroke: var(--soft); }
.question { display: grid; grid-template-columns: 1fr; gap: 1rem 2rem; }
@media (min-width: 60rem) {
  .question { grid-template-columns: 3fr 2fr; }
  .rubric { order: 2; } .rubric > div { position: sticky; top: 1rem; } }
.rubric > div { border-left: 4px solid var(--accent); padding-left: 1rem; }
.rubric h3, .answer h4 { margin: 0 0 .3rem; font-size: 1rem; }
.answer { background: var(--panel); border: 1px solid var(--edge); border-radius: .5rem;
  padding: .7rem 1rem; margin: 0 0 .8rem; scroll-margin-top: 1rem; }
.answer:target { border-color: var(--accent); }
details { margin-top: .6rem; }
summary { cursor: pointer; }
summary:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
@media (max-width: 34rem) {
  .stack thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  .stack tr { display: block; border-bottom: 1px solid var(--edge); padding: .4rem 0; }
  .stack th[scope=row] { display: block; border: 0; padding: 0 0 .2rem; }
  .stack td { display: inline-block; border: 0; padding: 0 1.2rem .2rem 0; text-align: left; }
  .stack td::before { content: attr(data-name); color: var(--soft); margin-right: .5rem; } }
@media (max-width: 34rem) { dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; }
  .bar { width: 4.5rem; } th, td { padding-right: .5rem; } }
@media print { :root { color-scheme: light; --page: #fff; --panel: #fff; --ink: #000; --soft: #444;
  --edge: #999; --track: #ddd; --accent: #004a8f; --right: #004d36; --wrong: #8a1810; --stopped: #5c3d00; }
  main { max-width: none; padding: 0; } .wide { overflow: visible; } section.part { break-inside: avoid; }
  h2, h3 { break-after: avoid; } .bar, svg { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""


def page(title: str, body: str, *, broad: bool = False) -> str:
    """A whole page around a body of HTML; the title is text."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>{said(title)}</title>
<link rel="icon" href="data:,">
<style>{STYLE}</style>
</head>
<body>
<main{' class="broad"' if broad else ""}>
{body}
</main>
</body>
</html>
"""


# ----------------------------------------------------------------------------------------------- text

UNSHOWN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]"
)  # what no file of text should hold
# A path from the root, of two steps or more; not a fraction, not a web address.
PATH = re.compile(r"(?<![\w.:/~)\]])~?(?:/[\w.+@~-]+){2,}/?|\b[A-Za-z]:[\\/][^\s'\",;)]+")


def said(text: str) -> str:
    """Any text as HTML that shows it and does nothing else."""
    return escape(UNSHOWN.sub("\ufffd", text))


def without_paths(text: str) -> str:
    """What a program said, less where files lie on the grader's machine: that is nobody's business."""
    return PATH.sub("(a file)", text)


def prose(text: str) -> str:
    """A sentence as HTML, with `code` in it set as code."""
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", said(without_paths(text)))


def code(name: str) -> str:
    """A name as HTML, which may break after its dots, dashes and underscores."""
    return "<code>" + re.sub(r"([._-])", r"\1<wbr>", said(name)) + "</code>"


def identity(name: str) -> str:
    """An id as HTML, which may break after what joins its parts, and anywhere if a part is too long."""
    return '<span class="id">' + re.sub(r"([/._-])", r"\1<wbr>", said(name)) + "</span>"


def points(number: float) -> str:
    """Points as people write them: 2, 1.33."""
    return str(plain_number(number))


def of_points(reached: float | None, most: int) -> str:
    """Points of what could be had, with a bar; a dash and no bar where nobody has given any."""
    if reached is None:
        return f"–\u00a0/\u00a0{most}"
    return f"{points(reached)}\u00a0/\u00a0{most}{bar(reached / most)}"


def count(number: int, thing: str) -> str:
    """1 submission, 2 submissions."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


# ---------------------------------------------------------------------------------------- of HTML made


def bar(share: float) -> str:
    """A bar that is full at 1; the number that it shows stands beside it."""
    width = round(100 * min(max(share, 0.0), 1.0), 1)
    return f'<span class="bar" aria-hidden="true"><span style="width:{width:g}%"></span></span>'


def items(cells: Iterable[str]) -> str:
    """A list, of HTML."""
    return "<ul>\n" + "".join(f"<li>{cell}</li>\n" for cell in cells) + "</ul>"


def table(
    caption: str, header: Sequence[str], rows: Iterable[Sequence[str]], *, foot: Sequence[str] = ()
) -> str:
    """A table of HTML cells, the first of each row its header.

    Columns whose header begins with # hold numbers. A table that is too wide scrolls by itself; on a
    narrow screen one of more than three columns shows its rows as blocks, each cell with its column's name.
    """
    names = [said(name.lstrip("#")) for name in header]
    stack = ' class="stack"' if len(header) > 3 else ""
    classes = [' class="number"' if name.startswith("#") else "" for name in header]

    def line(cells: Sequence[str]) -> str:
        first, *rest = zip(cells, classes, names, strict=True)
        others = "".join(f'<td{kind} data-name="{name}">{cell}</td>' for cell, kind, name in rest)
        return f'<tr><th scope="row"{first[1]}>{first[0]}</th>{others}</tr>\n'

    heads = "".join(
        f'<th scope="col"{kind}>{name}</th>' for name, kind in zip(names, classes, strict=True)
    )
    end = f"<tfoot>\n{line(foot)}</tfoot>\n" if foot else ""
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{said(caption)}">\n<table{stack}>\n'
        f"<caption>{said(caption)}</caption>\n<thead><tr>{heads}</tr></thead>\n"
        f"<tbody>\n{''.join(line(row) for row in rows)}</tbody>\n{end}</table>\n</div>"
    )
