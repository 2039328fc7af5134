"""The scripts in tools/: what they write, and what they refuse."""

import gzip
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import nbformat
import pytest
from nbformat import v4

import generate
import make_venv
import refresh
import serve

ROOT = Path(__file__).resolve().parents[1]


def chapter(folder: Path, *cells) -> Path:
    path = folder / "04_masks.ipynb"
    nbformat.write(v4.new_notebook(cells=list(cells)), path)
    return path


# ---------------------------------------------------------------------------------------- refresh


@pytest.mark.slow
def test_refresh_twice_gives_the_same_bytes(tmp_path):
    cells = [v4.new_markdown_cell("# 4. Masks"), v4.new_code_cell("print('a')\nprint('b')\n1 + 1")]
    path = chapter(tmp_path, *cells)
    assert refresh.refresh(path)
    first = path.read_bytes()
    assert not refresh.refresh(path)
    assert path.read_bytes() == first
    stored = nbformat.read(path, as_version=4)
    assert [cell.id for cell in stored.cells] == ["cell-01", "cell-02"]
    assert stored.cells[1].execution_count == 1
    assert [output.output_type for output in stored.cells[1].outputs] == [
        "stream",
        "execute_result",
    ]
    assert "version" not in stored.metadata.language_info


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("import sys; print('oh', file=sys.stderr)", "stderr"),
        ("print(object())", "memory address"),
    ],
    ids=["raises", "stderr", "address"],
)
def test_refresh_refuses_and_leaves_the_file(tmp_path, source, words):
    path = chapter(tmp_path, v4.new_code_cell(source))
    before = path.read_bytes()
    with pytest.raises(refresh.Refused, match=words):
        refresh.refresh(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


# --------------------------------------------------------------------------------------- generate


def rows_that_sum_to_two(x):
    return 2 * x


def mutant(**changes):
    facts = {
        "name": "rows that sum to 2",
        "candidate": rows_that_sum_to_two,
        "rejected_by": "rows sum to 1",
        "symptom": "everything is twice as large",
        "cause": "a factor too many",
        "seen": "made for this test",
        "chapter": 4,
    }
    return SimpleNamespace(**{**facts, **changes})


def spec(*mutants):
    check = SimpleNamespace(name="rows sum to 1", explain="Weights are a distribution.")
    return SimpleNamespace(name="attention", checks=[check], mutants=mutants)


def test_gallery_shows_mistake_check_and_code(tmp_path):
    path = chapter(tmp_path, v4.new_markdown_cell("# 4. Masks"))
    page = generate.gallery({"attention": spec(mutant())}, [path])
    assert "(pitfall-rows-that-sum-to-2)=\n### Rows that sum to 2" in page
    assert "*rows sum to 1*, a check of `attention`. Weights are a distribution." in page
    assert "def rows_that_sum_to_two(x):\n    return 2 * x\n```" in page
    assert "[](../../chapters/04_masks.ipynb)" in page


def test_gallery_of_an_exception_and_of_a_mistake_without_code():
    raises = mutant(name="a", rejected_by="RuntimeError")
    unseen = mutant(name="b", candidate=None, rejected_by="gallery only: no call shows it")
    page = generate.gallery({"attention": spec(raises, unseen)}, [])
    assert "`RuntimeError`, which it raises when the judge of `attention` calls it." in page
    assert "gallery only: no call shows it." in page
    assert "2 mistakes" in page
    assert "1 of them are small wrong implementations" in page
    assert page.count("The wrong code") == 1


def test_gallery_refuses_two_mistakes_of_one_name():
    with pytest.raises(ValueError, match="rows that sum to 2"):
        generate.gallery({"a": spec(mutant()), "b": spec(mutant())}, [])


def test_interview_questions_move_with_their_links(tmp_path):
    cells = [
        v4.new_markdown_cell("(proof)=\n## The proof"),
        v4.new_markdown_cell("not a question"),
        v4.new_markdown_cell(
            "(asked)=\n## Why?\n[a](#proof) [b](#the-proof) [c](03_scaling.ipynb#x) "
            "[d](../book/glossary.md) [e](https://example.org/a)",
            metadata={"tags": ["interview"]},
        ),
    ]
    page = generate.interview([chapter(tmp_path, *cells)])
    chapters = "../../chapters"
    assert "### Why?" in page
    assert "(asked)=" not in page
    assert "not a question" not in page
    assert f"[a](#proof) [b]({chapters}/04_masks.ipynb#the-proof)" in page
    assert (
        f"[c]({chapters}/03_scaling.ipynb#x) [d](../glossary.md) [e](https://example.org/a)" in page
    )


# -------------------------------------------------------------------------------------- make_venv


@pytest.mark.parametrize("version", [(2, 7, 18), (3, 10, 13), (3, 15, 0)])
def test_a_wrong_python_is_named(monkeypatch, version):
    monkeypatch.setattr(sys, "version_info", version)
    reason = make_venv.obstacle()
    assert f"needs Python 3.11 to 3.14, and this is Python {version[0]}.{version[1]}:" in reason


def test_a_missing_venv_module_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    assert "This Python has no venv module: install it" in make_venv.obstacle()


def pretend_python(folder: Path, version: tuple) -> Path:
    """An executable that runs a script under this Python and calls itself another version."""
    script = folder / "pretend.py"
    script.write_text(
        textwrap.dedent(f"""
        import runpy, sys
        sys.version_info, sys.argv = {version}, sys.argv[1:]
        runpy.run_path(sys.argv[0], run_name="__main__")
        """)
    )
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
    python.chmod(0o755)
    return python


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
def test_make_says_one_sentence_about_the_python(tmp_path):
    for python, words in [
        (
            pretend_python(tmp_path, (3, 10, 4)),
            "This book needs Python 3.11 to 3.14, and this is Python 3.10",
        ),
        (
            tmp_path / "nowhere",
            f"There is no {tmp_path / 'nowhere'} here: install Python 3.11 to 3.14",
        ),
    ]:
        command = ["make", "venv", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode != 0
        said = [line for line in done.stderr.splitlines() if not line.startswith("make")]
        assert len(said) == 1, done.stderr
        assert said[0].startswith(words)


# ------------------------------------------------------------------------------------------ serve


@pytest.fixture
def served(tmp_path):
    (tmp_path / "index.html").write_text("<p>" + "attention " * 1000, encoding="utf-8")
    (tmp_path / "picture.png").write_bytes(bytes(range(256)))
    (tmp_path / "404.html").write_text("<p>Lost?", encoding="utf-8")
    server = serve.start(tmp_path)
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_text_is_served_compressed_and_may_be_kept(served):
    plain = urlopen(f"{served}/index.html")
    packed = urlopen(Request(f"{served}/", headers={"Accept-Encoding": "gzip"}))
    assert "Content-Encoding" not in plain.headers
    assert packed.headers["Content-Encoding"] == "gzip"
    assert packed.headers["Content-Type"] == "text/html; charset=utf-8"
    assert packed.headers["Cache-Control"] == "max-age=600"
    travelled, whole = packed.read(), plain.read()
    assert len(travelled) == int(packed.headers["Content-Length"]) < len(whole) / 10
    assert gzip.decompress(travelled) == whole


def test_pictures_are_served_as_they_are_and_the_lost_find_a_page(served):
    asked = Request(f"{served}/picture.png", headers={"Accept-Encoding": "gzip"})
    assert urlopen(asked).read() == bytes(range(256))
    with pytest.raises(HTTPError) as lost:
        urlopen(f"{served}/nowhere.html")
    assert lost.value.code == 404
    assert lost.value.read() == b"<p>Lost?"


def test_a_changed_page_is_served_changed(served, tmp_path):
    def read():
        return urlopen(Request(served, headers={"Accept-Encoding": "gzip"})).read()

    before = read()
    (tmp_path / "index.html").write_text("<p>new", encoding="utf-8")
    os.utime(tmp_path / "index.html", (1, 1))
    assert gzip.decompress(read()) == b"<p>new" != before


def test_a_taken_port_is_said(served, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(serve, "SITE", tmp_path)
    monkeypatch.setattr(sys, "argv", ["serve.py", "--port", served.rpartition(":")[2]])
    assert serve.main() == 1
    assert "something else uses it" in capsys.readouterr().err


def test_no_site_is_said(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(serve, "SITE", tmp_path)
    monkeypatch.setattr(sys, "argv", ["serve.py"])
    assert serve.main() == 1
    assert "make book" in capsys.readouterr().err
