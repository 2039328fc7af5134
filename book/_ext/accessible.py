"""What the theme's pages lack for readers with a keyboard, a screen reader, or no scripts.

Each repair names what it looks for. One that finds nothing on any page stops the build: either the theme
has mended the fault, and the repair goes, or it has changed, and the fault may be back.
"""

import re
from pathlib import Path

import tinycss2
from sphinx.errors import ExtensionError

# Before anything is drawn: a page that waits for its script to know its colors flashes.
FIRST_SCRIPT = """<script>
    (() => {
      const page = document.documentElement.dataset;
      page.mode = "auto";
      try { page.mode = localStorage.getItem("mode") || "auto"; } catch { /* the browser keeps nothing */ }
      const dark = matchMedia("(prefers-color-scheme: dark)").matches;
      page.theme = page.mode === "auto" ? (dark ? "dark" : "light") : page.mode;
    })();
  </script>"""
SEARCH_FIELD = '<button class="btn search-button-field search-button__button pst-js-only"'
SIDEBAR = '<div id="pst-primary-sidebar" class="bd-sidebar-primary bd-sidebar"'
VIEWPORT = r'<meta name="viewport" content="width=device-width, initial-scale=1(?:\.0)?" ?/>'
REPAIRS = [
    ("the colors before the first drawing",
     r'<script data-cfasync="false">.*?</script>', FIRST_SCRIPT),
    ("one viewport, not three", rf"({VIEWPORT})(.*?){VIEWPORT}(.*?){VIEWPORT}", r"\1\2\3"),
    # What can be read on a button is its name; the keys beside it are said another way.
    ("the search button is called what it says",
     f"{SEARCH_FIELD}[^>]*>", f'{SEARCH_FIELD} aria-keyshortcuts="Control+K">'),
    ("keys beside the search button", r'<span class="search-button__kbd-shortcut">',
     '<span class="search-button__kbd-shortcut" aria-hidden="true">'),
    ("a fold is called what it says", r'<summary aria-label="Toggle hidden content">', "<summary>"),
    ("deeper pages stand below their chapter without a fold",
     r'<details[^>]*><summary><span class="toctree-toggle".*?</summary>(.*?)</details>', r"\1"),
    ("the contents of the book are a place of the page", SIDEBAR,
     f'{SIDEBAR} role="region" aria-label="Book"'),
    ("the button of the first sidebar says what it shows", r'title="Toggle primary sidebar"',
     'title="Contents of the book" aria-label="Contents of the book"'),
    ("the button of the second sidebar says what it shows", r'title="Toggle secondary sidebar"',
     'title="Contents of this page" aria-label="Contents of this page"'),
    ("what opens over the page has a name: search", '<dialog id="pst-search-dialog"',
     '<dialog id="pst-search-dialog" aria-label="Search"'),
    ("what opens over the page has a name: the book", '<dialog id="pst-primary-sidebar-modal"',
     '<dialog id="pst-primary-sidebar-modal" aria-label="Contents of the book"'),
    ("what opens over the page has a name: the page", '<dialog id="pst-secondary-sidebar-modal"',
     '<dialog id="pst-secondary-sidebar-modal" aria-label="Contents of this page"'),
    ("the download says what it is", r'(<span class="btn__text-container">)\.ipynb(</span>)', r"\1Notebook (.ipynb)\2"),
    ("the source of a page says what it is", r'(<span class="btn__text-container">)\.md(</span>)', r"\1Text (.md)\2"),
    ("printing is called printing", r'(<span class="btn__text-container">)\.pdf(</span>)', r"\1Print, or save as PDF\2"),
    # It stands at the foot of the window, and so at the end of the tab order.
    ("the way back to the top comes last",
     r'(<button[^>]*id="pst-back-to-top".*?</button>)(.*?)(</main>)', r"\2\1\3"),
    ("entries of the bibliography are items of a list", r' role="doc-biblioentry"',
     ' role="listitem"'),
    ("a module's parts are inside its item", r"</li>\s*<ul>((?:(?!</?ul>).)*)</ul>", r"<ul>\1</ul></li>"),
    ("the tables of the indexes are columns of names", r'<table([^>]*class="indextable)',
     r'<table role="presentation"\1'),
    ("an abstract in Chinese says so", r'(<div class="(?:zh admonition|admonition zh)")', r'\1 lang="zh-Hans"'),
]  # fmt: skip
PARAMETERS = re.compile(r'<dl>(\s*<dd><em class="sig-param">.*?)</dl>', re.DOTALL)
TABLE = re.compile(r"<table\b.*?</table>", re.DOTALL)
# The corner of a table over a column of names.
CORNER = re.compile(r"(<thead>\s*<tr[^>]*>\s*)<th[^>]*>\s*(?:<p>\s*</p>)?\s*</th>")
FIRST_CELL = re.compile(r"(<tr[^>]*>\s*)<td([^>]*)>(.*?)</td>", re.DOTALL)
TAG = re.compile(r"(<[^>]*>)")
# Chinese, with the few words in Latin letters that stand between.
CHINESE = re.compile(
    r"[\u2e80-\u9fff\uf900-\ufaff\uff01-\uff5e]+(?:[ \w.,%+:\u2014-]{0,30}[\u2e80-\u9fff\uf900-\ufaff\uff01-\uff5e]+)*"
)
BOOK_SHEET = re.compile(r'(<link rel="stylesheet" href="([^"]*)_static/book\.css)')
UNTOUCHED = ("script", "style", "title", "svg", "math", "textarea")


def repair(app, exception):
    """Mend every page of the finished site."""
    if exception or app.builder.format != "html":
        return
    found = dict.fromkeys([name for name, _, _ in REPAIRS], 0)
    for path in _pages(app):
        text = path.read_text(encoding="utf-8")
        for name, pattern, put in REPAIRS:
            text, times = re.subn(pattern, put, text, flags=re.DOTALL)
            found[name] += times
        text = PARAMETERS.sub(_as_list, text)
        text = TABLE.sub(_name_rows, text)
        path.write_text(_mark_chinese(text), encoding="utf-8")
    for name, times in found.items():
        if not times:
            raise ExtensionError(f"accessible.py: nothing to mend any more: {name}")


def _pages(app):
    site = Path(app.outdir)
    return [
        path
        for path in sorted(site.rglob("*.html"))
        if "_static" not in path.relative_to(site).parts
    ]


def _as_list(found):
    """The parameters of a signature, which are no definitions: nothing is defined."""
    inside = found[1].replace("<dd>", "<li>").replace("</dd>", "</li>")
    return f'<ul class="parameters">{inside}</ul>'


def _name_rows(found):
    """A table whose first column has no name at its head: its cells name the rows."""
    table, corners = CORNER.subn(r"\1<td></td>", found[0], count=1)
    if not corners:
        return table
    head, body = table.split("<tbody>", 1)
    return f"{head}<tbody>{FIRST_CELL.sub(_row_name, body)}"


def _row_name(found):
    return f'{found[1]}<th scope="row"{found[2]}>{found[3]}</th>'


def _mark_chinese(text):
    """Say of Chinese words that they are, for the voice that reads them and the font that draws them."""
    parts, inside, foreign = TAG.split(text), "", 0
    for place, part in enumerate(parts):
        if place % 2:
            tag = re.match(r"</?([\w-]+)", part)
            if not tag:
                continue
            name, closes = tag[1], part[1] == "/"
            if inside:
                inside = "" if closes and name == inside else inside
            elif foreign:
                foreign += 0 if name not in ("div", "span", "p") else -1 if closes else 1
            elif 'lang="zh' in part:
                foreign = 1
            elif name in UNTOUCHED and not closes:
                inside = name
        elif part and not inside and not foreign:
            parts[place] = CHINESE.sub(r'<span lang="zh-Hans">\g<0></span>', part)
    return "".join(parts)


# ------------------------------------------------------------------------------------- without scripts


def without_scripts(app, exception):
    """Give readers without scripts the colors that their system asks for: a sheet for them alone."""
    if exception or app.builder.format != "html":
        return
    static = Path(app.outdir) / "_static"
    css = (static / "book.css").read_text(encoding="utf-8")
    sheet = "".join(
        f"@media {query}{{\n{_theme_rules(css, theme)}\n}}\n"
        for theme, query in (
            ("light", "not screen and (prefers-color-scheme: dark)"),  # paper is light
            ("dark", "screen and (prefers-color-scheme: dark)"),
        )
    )
    (static / "no_scripts.css").write_text(sheet, encoding="utf-8")
    for path in _pages(app):
        text = path.read_text(encoding="utf-8")
        # Before the book's own sheet, whose later rules keep the last word.
        text = BOOK_SHEET.sub(
            r'<noscript><link rel="stylesheet" href="\2_static/no_scripts.css" /></noscript>\n    \1',
            text,
        )
        path.write_text(text, encoding="utf-8")


def _theme_rules(css, theme):
    """The rules of a style sheet for one of the themes, as rules for a page that no script has given one."""
    asked = re.compile(rf"""\[data-theme=["']?{theme}["']?\]""")
    kept = []
    for rule in tinycss2.parse_stylesheet(css, skip_comments=True, skip_whitespace=True):
        if rule.type == "qualified-rule":
            prelude = tinycss2.serialize(rule.prelude)
            if asked.search(prelude):
                content = tinycss2.serialize(rule.content)
                kept.append(f"{asked.sub('[data-theme=auto]', prelude)}{{{content}}}")
        elif rule.type == "at-rule" and rule.lower_at_keyword in ("media", "supports"):
            inner = _theme_rules(tinycss2.serialize(rule.content or []), theme)
            if inner:
                query = tinycss2.serialize(rule.prelude).strip()
                kept.append(f"@{rule.at_keyword} {query}{{{inner}}}")
    return "\n".join(kept)


def setup(app):
    """Register the steps: before light_pages.py joins the style sheets, and after it."""
    app.connect("build-finished", repair, priority=790)
    app.connect("build-finished", without_scripts, priority=850)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
