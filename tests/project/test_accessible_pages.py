"""What book/_ext/accessible.py makes of pages, without building a book; tests/browser has the pages themselves."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from sphinx.errors import ExtensionError

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "book" / "_ext"))

import accessible  # noqa: E402

sys.path.insert(0, str(ROOT / "tools"))
import lighthouse  # noqa: E402

ZH = '<span lang="zh-Hans">{}</span>'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("<p>mask (掩码), key</p>", f"<p>mask ({ZH.format('掩码')}), key</p>"),
        # Words in Latin letters between Chinese ones belong to the sentence; others do not.
        ("<p>What? 在 softmax 之前填？</p>", f"<p>What? {ZH.format('在 softmax 之前填？')}</p>"),
        ("<p>查询 (query), 键</p>", f"<p>{ZH.format('查询')} (query), {ZH.format('键')}</p>"),
        # What says it already, and what is no text, stays.
        ('<div lang="zh-Hans"><p>掩码</p><div>码</div></div><p>a</p>',) * 2,
        ("<title>掩码</title><script>'掩码'</script><svg><text>掩</text></svg>",) * 2,
        ('<p title="掩码">a</p>',) * 2,
    ],
)
def test_chinese_words_say_so(before, after):
    assert accessible._mark_chinese(before) == after
    assert accessible._mark_chinese(after) == after


def test_after_chinese_paragraphs_the_marking_goes_on():
    page = '<div class="x" lang="zh-Hans"><div><p>掩码</p></div></div><p>键</p>'
    assert accessible._mark_chinese(page).endswith(f"<p>{ZH.format('键')}</p>")


def table(corner: str, cell: str = "<td>{}</td>") -> str:
    head = f"<thead>\n<tr><th>{corner}</th><th>value</th></tr></thead>"
    body = "".join(f"<tr>\n{cell.format(name)}<td>{name}1</td></tr>" for name in "ab")
    return f"<table>{head}<tbody>{body}</tbody></table>"


@pytest.mark.parametrize("corner", ["", "<p></p>", " "])
def test_an_empty_corner_means_that_the_first_column_names_the_rows(corner):
    found = accessible.TABLE.sub(accessible._name_rows, table(corner))
    assert found == table("", '<th scope="row">{}</th>').replace("<th></th>", "<td></td>")


def test_other_tables_stay():
    assert accessible.TABLE.sub(accessible._name_rows, table("name")) == table("name")


def test_a_repair_that_finds_nothing_stops_the_build(tmp_path):
    (tmp_path / "page.html").write_text("<p>nothing to mend</p>", encoding="utf-8")
    app = SimpleNamespace(outdir=tmp_path, builder=SimpleNamespace(format="html"))
    with pytest.raises(ExtensionError, match=r"nothing to mend any more: the colors before"):
        accessible.repair(app, None)


def test_rules_for_a_theme():
    css = """html[data-theme="dark"] a, b {color: red} html[data-theme=light] a {color: blue} p {top: 0}
        @media print {html[data-theme=dark] i {color: black}} @media print {i {top: 0}}"""
    dark = accessible._theme_rules(css, "dark")
    assert "html[data-theme=auto] a, b {color: red}" in dark
    assert "@media print{html[data-theme=auto] i {color: black}}" in dark
    assert "blue" not in dark
    assert "top" not in dark


def test_what_is_missing_for_lighthouse_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LookupError, match="needs node and npm"):
        lighthouse.find_lighthouse()


def put_node(folder: Path, version: str) -> None:
    for name, says in (("node", version), ("npm", "10")):
        (folder / name).write_text(f"#!/bin/sh\necho {says}\n", encoding="utf-8")
        (folder / name).chmod(0o755)


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for node is a shell script")
@pytest.mark.parametrize(
    ("version", "missing"),
    [("v16.1.0", "needs node 18 or later, and this is v16.1.0"), ("v18.2.0", "is not installed")],
)
def test_an_old_node_or_no_installation_is_said(monkeypatch, tmp_path, version, missing):
    put_node(tmp_path, version)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("LIGHTHOUSE", str(tmp_path / "none.js"))
    with pytest.raises(LookupError, match=missing):
        lighthouse.find_lighthouse()
