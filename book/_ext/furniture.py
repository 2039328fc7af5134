"""What stands around the text of a page: its description, previews, links to its source, and files for robots.

Addresses come from book/site.yml. Without them a page has neither buttons nor links that would need one.
"""

import re
from html import escape, unescape
from pathlib import Path
from urllib.parse import quote, urljoin

import nbformat
from docutils import nodes
from site_address import read_addresses
from sphinx.errors import ExtensionError

HERE = Path(__file__).resolve().parent
PICTURE = "_static/social.png"
PICTURE_ALT = (
    "vier, und, zwanzig and EOS above, twenty, four and EOS below. Lines, as thick as the "
    "attention weights of a trained model, lead from four to vier and from twenty to und, and cross."
)
PAGE_COLORS = {"light": "#fdfdfb", "dark": "#14181e"}  # of the theme, behind the text
FRONT_TITLE = "Attention, with everything on the page tested"
LONGEST = 200  # characters of a description
# Pages that Sphinx makes itself.
DESCRIPTIONS = {
    "404": "There is no page at this address. The contents, the search and the index lead on.",
    "genindex": "Every name of the companion package and every term of the glossary, from A to Z.",
    "py-modindex": "The modules of the companion package tested_transformer, with a sentence on each.",
    "search": "Search the chapters, the glossary, the pitfalls and the reference of the companion package.",
    "_modules/index": "The source files of the companion package tested_transformer, as the book shows them.",
}
LOGOS = {"Colab": "png", "Binder": "svg"}  # how the theme keeps them
COLAB, BINDER = "https://colab.research.google.com", "https://mybinder.org"
# The first cell of a notebook that leaves the repository. The chapters read what benchmarks/ measured, so
# the package alone would not be enough.
INSTALL = """# Where the book is not installed, as on Colab, this gets it: the package, and what the chapter reads.
import importlib.util

if importlib.util.find_spec("tested_transformer") is None:
    !git clone -q --depth 1 --branch {branch} {repository} tested-transformer
    %pip install -q ./tested-transformer
    %cd -q tested-transformer/chapters"""


def set_addresses(app, config):
    """Hand the addresses to the theme, and to Sphinx for canonical links."""
    try:
        where = app.addresses = read_addresses()
    except ValueError as error:
        raise ExtensionError(str(error)) from None
    config.html_baseurl = where.site
    config.html_additional_pages = {**config.html_additional_pages, "404": "404.html"}
    config.templates_path.append(str(HERE.parent / "_templates"))
    if where.repository:
        config.html_theme_options |= {
            "repository_url": where.repository,
            "repository_branch": where.branch,
            "use_repository_button": True,
            "use_source_button": True,
            "use_edit_page_button": True,
            "use_issues_button": True,
        }


# ------------------------------------------------------------------------------- descriptions


def describe(doctree) -> str:
    """The first paragraph of a page, or the beginning of its list of what a reader will be able to do."""
    for paragraph in doctree.findall(nodes.paragraph):
        if not isinstance(paragraph.parent, nodes.section | nodes.document):
            continue  # an abstract in Chinese, a table, a list
        after = paragraph.next_node(descend=False, siblings=True)
        if isinstance(after, nodes.bullet_list) and not paragraph.astext().endswith((".", ":")):
            items = [item.astext() for item in after if not list(item.findall(nodes.math))]
            return shorten([paragraph.astext(), *items])
        return shorten([paragraph.astext()])
    return ""


def shorten(parts: list[str]) -> str:
    """Join a beginning and its items to a sentence, with as many items as there is room for."""
    beginning, *items = (" ".join(part.split()).rstrip(";.:,") for part in parts)
    text = " ".join([beginning, *items[:1]])
    for item in items[1:]:
        if len(text) + len(item) + 2 > LONGEST:
            break
        text += f"; {item}"
    if len(text) >= LONGEST:
        text = text[:LONGEST].rsplit(" ", 1)[0].rstrip(";.:,") + "…"
    return text if text.endswith("…") else text + "."


def page_description(pagename: str, doctree) -> str:
    """A description for any page, of its own."""
    if doctree is not None:
        return describe(doctree)
    if pagename.startswith("_modules/") and pagename not in DESCRIPTIONS:
        return f"The source of {pagename.removeprefix('_modules/').replace('/', '.')}, a module of the companion package."
    return DESCRIPTIONS.get(pagename, "")


def fill_head(app, pagename, templatename, context, doctree):
    """Say in the head what the page is, for searching and sharing."""
    where, tags = app.addresses, [context.get("metatags") or ""]
    description = page_description(pagename, doctree)
    if pagename == app.config.root_doc:
        context["title"] = FRONT_TITLE  # else it would be the book's name twice
    if description:
        tags.append(meta("name", "description", description))
    for scheme, color in PAGE_COLORS.items():
        tags.append(
            f'<meta name="theme-color" content="{color}" media="(prefers-color-scheme: {scheme})"/>'
        )
    if pagename == "404":
        tags.append(meta("name", "robots", "noindex"))
        context["pageurl"] = None
        context["lost_issue_url"] = where.repository and f"{where.repository}/issues/new"
    elif where.site:
        tags += previews(app, pagename, context, description)
    context["metatags"] = "\n    ".join(filter(None, tags))


def previews(app, pagename: str, context: dict, description: str) -> list[str]:
    """Open Graph's tags, which ask for absolute addresses."""
    where, builder = app.addresses, app.builder
    front = pagename == app.config.root_doc
    facts = {
        "og:title": app.config.html_title if front else context.get("title", app.config.html_title),
        "og:description": description,
        "og:type": "website" if front else "article",
        "og:url": urljoin(where.site, builder.get_target_uri(pagename)),
        "og:site_name": app.config.html_title,
        "og:locale": "en_US",
        "og:image": urljoin(where.site, PICTURE),
        "og:image:width": "1200",
        "og:image:height": "630",
        "og:image:alt": PICTURE_ALT,
    }
    # A title comes from Sphinx as HTML.
    facts["og:title"] = unescape(re.sub(r"<[^>]+>", "", facts["og:title"]))
    return [
        *(meta("property", key, value) for key, value in facts.items()),
        meta("name", "twitter:card", "summary_large_image"),
    ]


def meta(kind: str, name: str, content: str) -> str:
    """One tag of the head."""
    return f'<meta {kind}="{name}" content="{escape(content)}"/>'


# ------------------------------------------------------------------------------------- buttons


def launch_links(where, pagename: str) -> list[tuple[str, str]]:
    """Where a chapter runs without being installed: a name and an address each."""
    if not (where.repository and pagename.startswith("chapters/")):
        return []
    path = f"{pagename}.ipynb"
    binder = f"{BINDER}/v2/gh/{where.project}/{where.branch}?urlpath={quote(f'lab/tree/{path}')}"
    links = [("Binder", binder)]
    if where.notebooks:  # Colab needs chapters whose first cell installs the package
        links.insert(0, ("Colab", f"{COLAB}/github/{where.project}/blob/{where.notebooks}/{path}"))
    return links


def fill_buttons(app, pagename, templatename, context, doctree):
    """Add buttons that run a chapter; leave out those that would lead to a file that is not in the repository."""
    where, buttons = app.addresses, context.get("header_buttons", [])
    if pagename.startswith("book/generated/"):
        for group in (button for button in buttons if button["type"] == "group"):
            group["buttons"] = [b for b in group["buttons"] if not _about_file(b)]
    links = launch_links(where, pagename)
    if links:
        run = [
            {
                "type": "link", "text": name, "url": url, "label": f"launch-{name.lower()}-button",
                "tooltip": f"Run this chapter on {name}", "icon": f"_static/images/logo_{name.lower()}.{LOGOS[name]}",
            }
            for name, url in links
        ]  # fmt: skip
        buttons.insert(0, {
            "type": "group", "tooltip": "Run this chapter", "icon": "fas fa-rocket",
            "buttons": run, "label": "launch-buttons",
        })  # fmt: skip


def _about_file(button: dict) -> bool:
    return button.get("label") in ("source-file-button", "source-edit-button")


# --------------------------------------------------------------------------------------- files


def write_files(app, exception):
    """Write what stands beside the pages, when they are done."""
    if exception or app.builder.format != "html":
        return
    where, site = app.addresses, Path(app.outdir)
    pages = sorted(app.env.found_docs)
    robots = "User-agent: *\nAllow: /\n"
    if where.site:
        robots += f"\nSitemap: {urljoin(where.site, 'sitemap.xml')}\n"
        urls = [urljoin(where.site, app.builder.get_target_uri(name)) for name in pages]
        (site / "sitemap.xml").write_text(sitemap(urls), encoding="utf-8")
    (site / "robots.txt").write_text(robots, encoding="utf-8")
    lost = site / "404.html"
    lost.write_text(from_anywhere(lost.read_text(encoding="utf-8"), where.base), encoding="utf-8")
    if where.repository:
        for path in sorted((site / "_sources" / "chapters").rglob("*.ipynb")):
            add_install_cell(path, where)


def sitemap(urls: list[str]) -> str:
    """The addresses of all pages, for search engines."""
    rows = "".join(f"  <url><loc>{escape(url)}</loc></url>\n" for url in urls)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{rows}</urlset>\n'
    )


def from_anywhere(page: str, base: str) -> str:
    """Make the links of a page at the root absolute: a host shows it in place of a page at any depth."""

    def absolute(found: re.Match) -> str:
        key, target = found.groups()
        return f'{key}="{urljoin(base, target)}"'

    page = re.sub(r'data-content_root="[^"]*"', f'data-content_root="{base}"', page)
    return re.sub(r'\b(href|src|action)="([^"#][^"]*)"', absolute, page)


def add_install_cell(path: Path, where) -> None:
    """Put a cell first that gets the book where it is missing."""
    notebook = nbformat.read(path, as_version=4)
    source = INSTALL.format(repository=where.repository, branch=where.branch)
    cell = nbformat.v4.new_code_cell(source, id="get-the-book")
    notebook.cells.insert(0, cell)
    nbformat.write(notebook, path)


def setup(app):
    """Register the hooks."""
    app.connect("config-inited", set_addresses)
    app.connect("html-page-context", fill_head, priority=900)
    app.connect("html-page-context", fill_buttons, priority=900)
    app.connect("build-finished", write_files, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
