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

import build_book
import chapters
import generate
import make_venv
import refresh
import serve

ROOT = Path(__file__).resolve().parents[2]


def chapter(folder: Path, *cells) -> Path:
    path = folder / "04_masks.ipynb"
    nbformat.write(v4.new_notebook(cells=list(cells)), path)
    return path


# --------------------------------------------------------------------------------------- chapters

CONTENTS = """
parts:
  - caption: One
    chapters:
      - file: chapters/00_hello
      - file: chapters/01_a
      - file: chapters/02_b
  - caption: Two
    chapters:
      - file: chapters/04_masks
      # - file: chapters/05_not_yet
      - file: book/glossary
"""


@pytest.fixture
def small_book(tmp_path):
    """A table of contents with four chapters, and two notebooks of a reader's beside them."""
    (tmp_path / "_toc.yml").write_text(CONTENTS, encoding="utf-8")
    (tmp_path / "chapters").mkdir()
    for name in ("00_hello", "01_a", "01_a-Copy1", "02_b", "04_masks", "my01"):
        (tmp_path / "chapters" / f"{name}.ipynb").write_text("{}", encoding="utf-8")
    return tmp_path


def test_a_readers_notebooks_are_no_chapters(small_book):
    paths = chapters.chapter_paths(small_book)
    assert [path.stem for path in paths] == ["00_hello", "01_a", "02_b", "04_masks"]
    assert [path.name for path in chapters.left_out(small_book)] == [
        "01_a-Copy1.ipynb",
        "my01.ipynb",
    ]


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        ([], ["00_hello", "01_a", "02_b", "04_masks"]),
        (["4", "00"], ["00_hello", "04_masks"]),
        (["chapters/02_b.ipynb", "01_a"], ["01_a", "02_b"]),
    ],
)
def test_chapters_by_number_and_by_name(small_book, names, wanted):
    paths = chapters.chosen(names, chapters.chapter_paths(small_book))
    assert [path.stem for path in paths] == wanted


def test_a_deeper_page_is_found_with_its_chapter(small_book):
    below = CONTENTS.replace(
        "chapters/01_a\n",
        "chapters/01_a\n        sections:\n          - file: chapters/deeper/01_c\n",
    )
    (small_book / "_toc.yml").write_text(below, encoding="utf-8")
    (small_book / "chapters" / "deeper").mkdir()
    for name in ("01_c", "01_mine"):
        (small_book / "chapters" / "deeper" / f"{name}.ipynb").write_text("{}", encoding="utf-8")
    paths = chapters.chapter_paths(small_book)
    assert [path.stem for path in paths] == ["00_hello", "01_a", "01_c", "02_b", "04_masks"]
    assert [path.stem for path in chapters.core_paths(small_book)] == [
        "00_hello", "01_a", "02_b", "04_masks",
    ]  # fmt: skip
    assert [path.stem for path in chapters.chosen(["1"], paths)] == ["01_a", "01_c"]
    assert chapters.chosen(["deeper/01_c.ipynb"], paths) == [
        small_book / "chapters/deeper/01_c.ipynb"
    ]
    assert "01_mine.ipynb" in [path.name for path in chapters.left_out(small_book)]
    with pytest.raises(chapters.UnknownChapterError, match=r"Take a number \(0 to 2, 4\)"):
        chapters.chosen(["3"], paths)


@pytest.mark.parametrize("name", ["3", "99", "nothing", "my01", "01_a-Copy1"])
def test_what_is_no_chapter(small_book, name):
    with pytest.raises(chapters.UnknownChapterError) as error:
        chapters.chosen(["1", name], chapters.chapter_paths(small_book), ", or a song")
    assert str(error.value) == (
        f"There is no chapter {name}. Take a number (0 to 2, 4), or a name such as 04_masks, or a song."
    )


# -------------------------------------------------------------------------------------- build_book

GROWS = """
import pathlib, sys
site = pathlib.Path(sys.argv[1], "_build", "html")
(site / "book").mkdir(parents=True)
(site / "book" / "index.html").write_text("<title>New</title>", encoding="utf-8")
"""
FAILS = f"{GROWS}sys.exit(1)"
STOPPED = f"{GROWS}import os, signal, time; os.kill(os.getppid(), signal.SIGINT); time.sleep(60)"
BUILD = """
import pathlib, signal, sys
import build_book, chapters
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in two processes ignore it
root, script = pathlib.Path(sys.argv.pop(1)), sys.argv.pop(1)
build_book.ROOT, build_book.SITE = root, root / "_build" / "html"
build_book.left_out = lambda: chapters.left_out(root)
build_book.commands = lambda folder: [["-c", script, str(folder)]]
sys.exit(build_book.main())
"""


def build(book: Path, script: str) -> subprocess.CompletedProcess:
    """Build a small book with a script in place of Jupyter Book."""
    command = [sys.executable, "-c", BUILD, str(book), script]
    return subprocess.run(command, cwd=ROOT / "tools", capture_output=True, text=True, timeout=50)


def old_site(book: Path) -> Path:
    """A page of a site that was built before."""
    page = book / "_build" / "html" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text("Old", encoding="utf-8")
    return page


def test_a_new_site_takes_the_place_of_the_old(small_book):
    page = old_site(small_book)
    for _ in range(2):
        done = build(small_book, GROWS)
        assert done.returncode == 0, done.stderr
        assert "<title>New</title>" in page.read_text(encoding="utf-8")
        assert [path.name for path in (small_book / "_build").iterdir()] == ["html"]
    said = "left out: chapters/01_a-Copy1.ipynb (not in _toc.yml)\nleft out: chapters/my01.ipynb ("
    assert said in done.stdout


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (FAILS, "The book did not build, see above; a warning counts as an error ("),
        pytest.param(
            STOPPED, "The build was stopped (",
            marks=pytest.mark.skipif(sys.platform == "win32", reason="no such signal there"),
        ),
    ],
    ids=["fails", "stopped"],
)  # fmt: skip
def test_a_site_outlives_a_build_that_comes_to_nothing(small_book, script, words):
    page = old_site(small_book)
    done = build(small_book, script)
    assert done.returncode == 1
    assert words in done.stdout
    assert "The site from before is as it was." in done.stdout
    assert page.read_text(encoding="utf-8") == "Old"
    assert [path.name for path in (small_book / "_build").iterdir()] == ["html"]


def test_a_swap_that_fails_is_undone(small_book):
    page = old_site(small_book)
    with pytest.raises(FileNotFoundError):
        build_book.swap(small_book / "nothing", page.parent, small_book / "aside")
    assert page.read_text(encoding="utf-8") == "Old"


# ---------------------------------------------------------------------------------------- refresh


@pytest.mark.parametrize("name", ["nothing", "99"])
def test_refresh_names_what_is_no_chapter(name, capsys):
    assert refresh.main([name]) == 1
    assert capsys.readouterr().err.startswith(f"There is no chapter {name}. ")


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


def gallery_pages(*specs, paths=(), promised=()):
    """The gallery's first page, and those of its chapters."""
    mistakes = generate.by_chapter({each.name: each for each in specs})
    files = {generate.number(path): path for path in paths}
    first = generate.gallery(mistakes, files, set(promised))
    return first, *(generate.mistakes_of(n, pairs, files) for n, pairs in mistakes.items())


def test_gallery_shows_mistake_check_and_code(tmp_path):
    path = chapter(tmp_path, v4.new_markdown_cell("# 4. Masks"))
    first, page = gallery_pages(spec(mutant()), paths=[path])
    assert "## [4. Masks](gallery_04.md)" in first
    assert "\n- [Rows that sum to 2](#pitfall-rows-that-sum-to-2)\n" in first
    assert page.startswith("# Pitfalls: 4. Masks\n")
    assert "(pitfall-rows-that-sum-to-2)=\n## Rows that sum to 2" in page
    assert "*rows sum to 1*, a check of `attention`. Weights are a distribution." in page
    assert "def rows_that_sum_to_two(x):\n    return 2 * x\n```" in page
    assert "[](../../chapters/04_masks.ipynb)" in page


def test_gallery_of_an_exception_and_of_a_mistake_without_code():
    raises = mutant(name="a", rejected_by="RuntimeError")
    unseen = mutant(name="b", candidate=None, rejected_by="gallery only: no call shows it")
    first, page = gallery_pages(spec(raises, unseen))
    assert "`RuntimeError`, which it raises when the judge of `attention` calls it." in page
    assert "gallery only: no call shows it." in page
    assert "2 mistakes" in first
    assert "1 of them are small wrong implementations" in first
    assert page.count("The wrong code") == 1


def test_gallery_has_a_page_for_each_chapter():
    first, fourth, eleventh = gallery_pages(spec(mutant(chapter=11), mutant(name="b")))
    assert first.index("(#pitfall-b)") < first.index("(#pitfall-rows-that")
    assert ("## B" in fourth, "## Rows" in fourth) == (True, False)
    assert ("## B" in eleventh, "## Rows" in eleventh) == (False, True)


def test_gallery_keeps_the_places_that_it_promised():
    first, _ = gallery_pages(spec(mutant(), mutant(name="b")), promised=["pitfall-b"])
    assert '- <span id="pitfall-b"></span>[B](#pitfall-b)' in first
    assert first.count("<span") == 1
    with pytest.raises(ValueError, match=r"places that are gone: pitfall-c, pitfall-d$"):
        gallery_pages(spec(mutant()), promised=["pitfall-d", "pitfall-c"])


def test_gallery_keeps_the_places_of_a_name_that_changed(monkeypatch):
    monkeypatch.setattr(generate, "_former_names", lambda: {"rows that sum to 2": ["twice"]})
    first, page = gallery_pages(spec(mutant()), promised=["pitfall-twice"])
    assert (
        '- <span id="pitfall-twice"></span>[Rows that sum to 2](#pitfall-rows-that-sum-to-2)'
        in first
    )
    assert "(pitfall-twice)=\n(pitfall-rows-that-sum-to-2)=\n## Rows that sum to 2" in page


def test_gallery_refuses_two_mistakes_of_one_name():
    with pytest.raises(ValueError, match="rows that sum to 2"):
        gallery_pages(spec(mutant(), mutant()))


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


def test_interview_questions_of_a_file_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(generate, "QUESTIONS", tmp_path)
    (tmp_path / "04_masks.md").write_text("### Why?\n\n[a](#x) [b](deeper/04_more.ipynb#y)\n")
    cells = [v4.new_markdown_cell("## X"), v4.new_markdown_cell("text")]
    page = generate.interview([chapter(tmp_path, *cells)])
    chapters = "../../chapters"
    assert "### Why?" in page
    assert f"[a]({chapters}/04_masks.ipynb#x) [b]({chapters}/deeper/04_more.ipynb#y)" in page


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
    python.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] || exec "{sys.executable}" "{script}" "$@"\nexec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o755)
    return python


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
def test_make_says_one_sentence_about_the_python(tmp_path):
    shim = tmp_path / "python3.8"  # as pyenv has one for each Python that it could install
    shim.write_text('#!/bin/sh\necho "pyenv: python3.8: command not found" >&2\nexit 127\n')
    shim.chmod(0o755)
    for python, words in [
        (
            pretend_python(tmp_path, (3, 10, 4)),
            "This book needs Python 3.11 to 3.14, and this is Python 3.10",
        ),
        (
            shim,
            f"There is no {shim} here: install Python 3.11 to 3.14",
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


@pytest.mark.parametrize("port", ["abc", "70000", "-1"])
def test_a_port_that_is_none_is_said(port, monkeypatch, tmp_path, capsys):
    (tmp_path / "index.html").write_text("a site", encoding="utf-8")
    monkeypatch.setattr(serve, "SITE", tmp_path)
    monkeypatch.setattr(sys, "argv", ["serve.py", f"--port={port}"])
    assert serve.main() == 1
    assert capsys.readouterr().err.startswith(f"PORT is a number from 0 to 65535, not {port}:")


def test_no_site_is_said(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(serve, "SITE", tmp_path)
    monkeypatch.setattr(sys, "argv", ["serve.py"])
    assert serve.main() == 1
    assert "make book" in capsys.readouterr().err
