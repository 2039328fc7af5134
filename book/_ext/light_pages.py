"""What a page loads, and no more: one style sheet, one script that waits, pictures when they come into view.

The theme brings an icon font with a program of 1.5 MB, the style of every part of a large framework, and a
dozen scripts that block the page. When the pages are written, their style sheets become one, without
the rules that no page can use; their scripts become one, which runs when the page stands. A page that does
not look as expected here stops the build, so that a new version of the theme cannot undo this unseen.
"""

import hashlib
import re
import shutil
from pathlib import Path

import tinycss2
from sphinx.errors import ExtensionError

STYLE = re.compile(r'\s*<link\b[^>]*\brel="stylesheet"[^>]*>')
SCRIPT = re.compile(r'\s*<script\b[^>]*\bsrc="([^"]+)"[^>]*></script>')
PRELOAD = re.compile(r'\s*<link\b[^>]*\bas="script"[^>]*>')
INLINE_SCRIPT = re.compile(r"<script(?![^>]*\bsrc=)[^>]*>(.*?)</script>", re.DOTALL)
# For announcements and old versions, which this book has not; its script would lay the page out twice.
BANNER = re.compile(r'\s*<div class="pst-async-banner-revealer.*?</div>', re.DOTALL)
IMAGE = re.compile(r'<img\b[^>]*\bsrc="([^"]+)"[^>]*>')
HREF = re.compile(r'\bhref="([^"]+)"')
SRC = re.compile(r'\bsrc="([^"]+)"')
NAMES = re.compile(r'\b(?:class|id)="([^"]*)"')
ICON = re.compile(r"\bfa-(?!solid\b|regular\b|brands\b|lg\b|fw\b)[\w-]+")
COLLAPSED = re.compile(r"\([^()]*\)")
PART = re.compile(r"[.#]((?:[\w-]|[^\x00-\x7f])+)")
URL = re.compile(r"""url\(\s*(["']?)(?!data:|https?:|#|%23)([^)"']+)\1\s*\)""")

# Sphinx's search, in whose place find_places.py puts the book's, is asked for by every page of the theme.
SPHINX_SEARCH = ("searchtools.js", "language_data.js", "searchindex.js")
DROPPED = ("fontawesome.js", "sphinx-thebe.js", "sphinx-thebe.css", *SPHINX_SEARCH)
TABS = "design-tabs.js"  # for tab sets, which no page may have
SEARCH = ("search_places.js", "search_page.js")  # for the search page alone
# Classes that scripts put together from pieces.
MADE_BY_SCRIPTS = re.compile(r"^(bs-|tooltip|popover|dropdown|modal|collaps|show$|fade$)")
ICON_RULES = re.compile(r"^\.?(fa|fas|far|fab)\b|^\.fa-")


def lighten(app, exception):
    """Rewrite every page of the finished site."""
    if exception or app.builder.format != "html":
        return
    site = Path(app.outdir)
    pages = {
        path: path.read_text(encoding="utf-8")
        for path in sorted(site.rglob("*.html"))
        if "_static" not in path.relative_to(site).parts
    }
    full = {path: text for path, text in pages.items() if STYLE.search(text)}  # others only lead on
    styles, scripts = _in_order(full, site, STYLE), _in_order(full, site, SCRIPT)
    options = next(path for path in scripts if path.name == "documentation_options.js")
    wanted = [
        path for path in scripts if path != options and path.name not in (*DROPPED, TABS, *SEARCH)
    ]
    code = "".join(f"\n;{path.read_text(encoding='utf-8')}" for path in wanted)
    code = re.sub(r"(?m)^//# sourceMappingURL=.*$", "", code)
    words = _words(full.values(), code)
    css = "\n".join(
        _purge(_read_css(path, site), words, path.name != "icons.css")
        for path in styles
        if path.name not in DROPPED
    )
    _check_icons(full, css)
    prepared = options.read_text(encoding="utf-8").strip()
    links = {
        "css": _write(site / "_static" / "book.css", css),
        "js": _write(site / "_static" / "book.js", code),
    }
    sizes: dict[Path, str] = {}
    for path, text in full.items():
        text = _lighter(text, prepared, links)
        text = _pictures(text, path, sizes)
        path.write_text(text, encoding="utf-8")
    _remove(site, [*styles, *wanted, options, *(site / "_static").rglob("*.map")])


def _in_order(pages, site, pattern):
    """The files that the pages load, in the order of the page; each is loaded by every page, or added."""
    files = []
    for path, text in pages.items():
        for found in pattern.finditer(text):
            target = (HREF if pattern is STYLE else SRC).search(found[0])[1]
            if target.partition("?")[0].endswith(SPHINX_SEARCH):
                continue
            file = _file(site, path, target)
            if file not in files:
                files.append(file)
    return files


def _file(site, page, target):
    """The file that a page means by an address, which may be absolute (on the page for lost readers)."""
    target = target.partition("?")[0]
    place = target.rfind("_static/")
    file = site / target[place:] if place >= 0 else (page.parent / target).resolve()
    if not file.is_file():
        raise ExtensionError(f"{page.relative_to(site)} loads {target}, which is not in the site")
    return file


def _words(pages, code):
    """Every name that an element of a page has, or that a script may give to one."""
    words = set(re.findall(r"[\w-]+", code))
    for text in pages:
        for names in NAMES.findall(text):
            words.update(names.split())
        for inline in INLINE_SCRIPT.findall(text):
            words.update(re.findall(r"[\w-]+", inline))
    return words


# ---------------------------------------------------------------------------------------------- styles


def _read_css(path, site):
    """A style sheet with what it imports, its addresses as seen from _static/."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"/\*# sourceMappingURL=.*?\*/", "", text)

    def imported(found):
        return _read_css((path.parent / found[1]).resolve(), site)

    def moved(found):
        file = (path.parent / found[2].partition("?")[0].partition("#")[0]).resolve()
        return f'url("{file.relative_to(site / "_static").as_posix()}")'

    text = re.sub(r"""@import\s+["']([^"']+)["'];?""", imported, text)
    return URL.sub(moved, text) if path.parent != site / "_static" else text


def _purge(css, words, theme):
    """The style sheet without the rules that match no element of any page, nor the theme's icons."""
    kept = []
    for rule in tinycss2.parse_stylesheet(css, skip_whitespace=True):
        if rule.type == "comment":
            kept.append(rule.serialize() if rule.value.startswith("!") else "")
        elif rule.type == "qualified-rule":
            selectors = _selectors(tinycss2.serialize(rule.prelude), words, theme)
            if selectors:
                kept.append(f"{','.join(selectors)}{{{_tight(tinycss2.serialize(rule.content))}}}")
        elif rule.type == "at-rule" and rule.lower_at_keyword in ("media", "supports", "layer"):
            inner = _purge(tinycss2.serialize(rule.content or []), words, theme)
            if inner:
                kept.append(
                    f"@{rule.at_keyword} {tinycss2.serialize(rule.prelude).strip()}{{{inner}}}"
                )
        elif rule.type == "at-rule":
            if not (rule.lower_at_keyword == "font-face" and "Font Awesome" in rule.serialize()):
                kept.append(rule.serialize())
        elif rule.type == "error":
            raise ExtensionError(f"a style sheet cannot be read: {rule.message}")
    return "\n".join(filter(None, kept))


def _selectors(prelude, words, theme):
    """Those of the selectors of a rule that an element may match."""
    return [
        selector.strip()
        for selector in _split(prelude)
        if not (theme and ICON_RULES.search(selector.strip())) and _may_match(selector, words)
    ]


def _split(prelude):
    parts, depth = [""], 0
    for char in prelude:
        depth += (char in "([") - (char in ")]")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def _may_match(selector, words):
    if "\\" in selector:
        return True
    while COLLAPSED.search(selector):  # what stands in :not(...) or :is(...) decides nothing
        selector = COLLAPSED.sub("", selector)
    selector = re.sub(r"\[[^\]]*\]", "", selector)
    return all(name in words or MADE_BY_SCRIPTS.search(name) for name in PART.findall(selector))


def _tight(declarations):
    return re.sub(r"\s*\n\s*", " ", declarations).strip()


def _check_icons(pages, css):
    """Every icon that a page names is drawn in icons.css."""
    drawn = set(re.findall(r"\.(fa-[\w-]+)\b", css))
    for path, text in pages.items():
        for names in NAMES.findall(text):
            for icon in ICON.findall(names):
                if icon not in drawn:
                    raise ExtensionError(f"{path.name} has the icon {icon}: draw it in icons.css")


# ----------------------------------------------------------------------------------------------- pages


def _lighter(text, options, links):
    """One page: its style sheet, its script, and what must be there before them."""
    place = STYLE.search(text).start()
    base = HREF.search(STYLE.search(text)[0])[1].rpartition("_static/")[0]
    search = [
        found[0].strip()
        for found in SCRIPT.finditer(text)
        if found[1].partition("?")[0].endswith(SEARCH)
    ]
    needs_search = 'id="search-results"' in text
    head = (
        f'\n    <link rel="stylesheet" href="{base}_static/{links["css"]}" />'
        f"\n    <script>{options}</script>"
        f'\n    <script defer src="{base}_static/{links["js"]}"></script>'
    )
    if needs_search:
        head += "".join(f"\n    {script.replace('<script', '<script defer')}" for script in search)
    text = text[:place] + "<!-- styles -->" + text[place:]
    for pattern in (STYLE, SCRIPT, PRELOAD, BANNER):
        text = pattern.sub("", text)
    text = re.sub(r'\s*<script type="text/x-thebe-config">.*?</script>', "", text, flags=re.DOTALL)
    text = re.sub(r"\s*<script>[^<]*thebe[^<]*</script>", "", text)
    return text.replace("<!-- styles -->", head, 1)


def _pictures(text, page, sizes):
    """Every picture but the first waits until it comes near, in a place that has its size already."""
    seen = 0

    def waiting(found):
        nonlocal seen
        seen += 1
        tag = found[0]
        file = (page.parent / found[1].partition("?")[0]).resolve()
        more = "" if seen == 1 or "loading=" in tag else ' loading="lazy"'
        if file.suffix == ".svg" and not re.search(r"\b(width|height|style)=", tag):
            more += sizes.setdefault(file, _size(file))
        return f"<img{more}{tag[4:]}"

    return IMAGE.sub(waiting, text)


def _size(file):
    """The size that a drawing asks for, as attributes of its element."""
    root = re.search(r"<svg\b[^>]*>", file.read_text(encoding="utf-8"))[0]
    sides = []
    for side in ("width", "height"):
        found = re.search(rf'\b{side}="([\d.]+)(pt|px)?"', root)
        if not found:
            return ""
        sides.append(f' {side}="{float(found[1]) * (4 / 3 if found[2] == "pt" else 1):.0f}"')
    return "".join(sides)


def _write(path, text):
    """Write a file of the site and return its name with a version, so that browsers may keep it."""
    path.write_text(text, encoding="utf-8")
    return f"{path.name}?v={hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _remove(site, files):
    """Delete what no page loads any more."""
    static = site / "_static"
    shutil.rmtree(static / "vendor", ignore_errors=True)
    for file in {
        *files,
        *(path for name in (*DROPPED, TABS) for path in static.rglob(name)),
        *static.rglob("*.html"),
    }:
        file.unlink(missing_ok=True)


def setup(app):
    """Register the step."""
    app.connect("build-finished", lighten, priority=800)  # furniture.py rewrites a page after it
    return {"parallel_read_safe": True, "parallel_write_safe": True}
