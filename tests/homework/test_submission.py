"""Whatever students hand in is found and read, or named with a reason; none of it is run."""

import ast
import io
import json
import os
import stat
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tested_transformer.homework import submission
from tested_transformer.homework.submission import (
    CellProblem,
    Source,
    Submission,
    find_submissions,
    read_notebook,
    read_submission,
    uses,
)


def code(*texts):
    """Code cells of format 4, as students' tools write them at the least."""
    return [{"cell_type": "code", "source": text} for text in texts]


def markdown(text, **nbgrader):
    metadata = {"metadata": {"nbgrader": nbgrader}} if nbgrader else {}
    return {"cell_type": "markdown", "source": text, **metadata}


def notebook(*cells, encoding="utf-8"):
    return json.dumps({"cells": cells, "nbformat": 4}, ensure_ascii=False).encode(encoding)


def read(*texts) -> Source:
    return read_notebook(notebook(*code(*texts)))


def run(source: Source) -> dict:
    """What the code defines. These texts are ours: a student's run in the jail alone."""
    names: dict = {}
    exec(source.code, names)
    return names


def zipped(files: dict) -> bytes:
    """A zip of names and bytes; a name may be a ZipInfo."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return stream.getvalue()


def write(root, files: dict):
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def ids(path):
    return [one.id for one in find_submissions(path)]


def flags(path):
    return {one.id: (one.flag, one.sentence) for one in find_submissions(path)}


GOOD = notebook(*code("def f(x):\n    return x"))
OTHER = notebook(*code("def f(x):\n    return 2 * x"))


# ------------------------------------------------------------------------------------------ finding


LAYOUTS = {
    "a folder a student": {"s01/hw1.ipynb": GOOD, "s02/hw1.ipynb": OTHER},
    "flat": {"Student One_123_hw1.ipynb": GOOD, "Student Two_124_assignment 1 (2).ipynb": OTHER},
    "deep": {"week 1/group a/s01/final/hw1.ipynb": GOOD, "week 1/s02.ipynb": OTHER},
    "extensions": {"s01.IPYNB": GOOD, "s02.ipynb.txt": OTHER, "s03.ipynb.json": GOOD},
}


@pytest.mark.parametrize("files", LAYOUTS.values(), ids=LAYOUTS)
def test_folder_and_zip_give_the_same_ids_sorted(tmp_path, files):
    wanted = sorted(name.split(".")[0] for name in files)
    assert ids(write(tmp_path / "folder", files)) == wanted
    (tmp_path / "class.zip").write_bytes(zipped(dict(reversed(files.items()))))
    assert ids(tmp_path / "class.zip") == wanted
    texts = {one.id: one.read() for one in find_submissions(tmp_path / "class.zip")}
    assert texts == {name.split(".")[0]: data for name, data in files.items()}


def test_zips_in_folders_and_in_zips_are_opened(tmp_path):
    inner = zipped({"hw1.ipynb": GOOD, "data.csv": b"1,2"})
    files = {"s01/work.zip": inner, "s02.zip": zipped({"again.zip": inner})}
    wanted = ["s01/work/hw1", "s02/again/hw1"]
    assert ids(write(tmp_path / "folder", files)) == wanted
    (tmp_path / "class.zip").write_bytes(zipped(files))
    found = find_submissions(tmp_path / "class.zip")
    assert [one.id for one in found] == wanted
    assert [read_submission(one).code for one in found] == [read_notebook(GOOD).code] * 2


def test_debris_and_other_files_are_passed_over(tmp_path):
    names = ["__MACOSX/s01/._hw1.ipynb", "s01/._hw1.ipynb", ".DS_Store", "s01/.DS_Store"]
    names += ["s01/.ipynb_checkpoints/hw1-checkpoint.ipynb", "s01/notes.txt", "__MACOSX/x.zip"]
    files = {**dict.fromkeys(names, GOOD), "s01/hw1.ipynb": GOOD}
    assert ids(write(tmp_path / "folder", files)) == ["s01/hw1"]
    (tmp_path / "class.zip").write_bytes(zipped(files))
    assert ids(tmp_path / "class.zip") == ["s01/hw1"]


def test_ids_that_would_collide_keep_their_extension(tmp_path):
    files = {"a.ipynb": GOOD, "a.ipynb.txt": OTHER, "b.zip": zipped({"c.ipynb": GOOD})}
    files |= {"b/c.ipynb": OTHER, "d.ipynb": GOOD, ".ipynb": GOOD}
    wanted = [".ipynb", "a.ipynb", "a.ipynb.txt", "b.zip/c.ipynb", "b/c.ipynb", "d"]
    assert ids(write(tmp_path, files)) == wanted


def test_ids_are_printable_and_composed(tmp_path):
    (tmp_path / "class.zip").write_bytes(
        zipped({"Zoe\u0308.ipynb": GOOD, "a\nb.ipynb": GOOD, "a\tb.ipynb": OTHER})
    )
    assert ids(tmp_path / "class.zip") == ["Zo\u00eb", "a_b.ipynb", "a_b.ipynb~1"]


def test_a_single_notebook_is_a_batch_of_one(tmp_path):
    write(tmp_path, {"hw1.ipynb": GOOD})
    assert ids(tmp_path / "hw1.ipynb") == ["hw1"]


def test_a_path_that_can_not_be_a_batch_is_an_error(tmp_path):
    write(tmp_path, {"list.csv": b"", "broken.zip": b"PK\3\4 and no more"})
    with pytest.raises(FileNotFoundError, match="path: expected a folder or a zip of notebooks"):
        find_submissions(tmp_path / "nothing")
    with pytest.raises(ValueError, match="path: expected a folder, a zip or a notebook"):
        find_submissions(tmp_path / "list.csv")
    with pytest.raises(ValueError, match="The zip is broken"):
        find_submissions(tmp_path / "broken.zip")


def test_digest_follows_the_bytes_alone(tmp_path):
    write(tmp_path / "one", {"s01.ipynb": GOOD, "s02.ipynb": GOOD})
    write(tmp_path / "two", {"s01.ipynb": GOOD, "s02.ipynb": OTHER})
    (s01, s02), (s01_again, s02_again) = map(find_submissions, (tmp_path / "one", tmp_path / "two"))
    assert s01.digest == s02.digest == s01_again.digest != s02_again.digest
    assert len(s01.digest) == 64


# -------------------------------------------------------------------------------- zips that do harm


def linked(name):
    entry = zipfile.ZipInfo(name)
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return entry


def encrypted(files):
    """A zip that says of each of its files that it is encrypted."""
    data = bytearray(zipped(files))
    for mark, offset in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        at = data.find(mark)
        while at >= 0:
            data[at + offset] |= 1
            at = data.find(mark, at + 4)
    return bytes(data)


def packed_oddly():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("hw1.ipynb", GOOD)
    return stream.getvalue()


def spoiled():
    """A zip whose list is whole and whose data is not."""
    data = bytearray(zipped({"hw1.ipynb": GOOD}))
    data[45:60] = b"\xff" * 15
    return bytes(data)


BAD_ZIPS = {
    "traversal": (zipped({"../../hw1.ipynb": GOOD}), "s03/hw1", "leads out"),
    "backslashes": (zipped({"..\\hw1.ipynb": GOOD}), "s03/hw1", "leads out"),
    "absolute": (zipped({"/etc/hw1.ipynb": GOOD}), "s03/etc/hw1", "leads out"),
    "drive": (zipped({"C:/hw1.ipynb": GOOD}), "s03/hw1", "leads out"),
    "link": (zipped({linked("hw1.ipynb"): b"/etc/passwd"}), "s03/hw1", "symbolic link"),
    "encrypted": (encrypted({"hw1.ipynb": GOOD}), "s03/hw1", "encrypted"),
    "compression": (packed_oddly(), "s03/hw1", "unusual"),
    "spoiled": (spoiled(), "s03/hw1", "broken"),
    "broken": (b"PK\3\4" + bytes(50), "s03", "broken"),
    "empty": (b"", "s03", "broken"),
    "no notebook": (zipped({"hw1.pdf": b"%PDF"}), "s03", "no notebook"),
}


@pytest.mark.parametrize(("data", "name", "words"), BAD_ZIPS.values(), ids=BAD_ZIPS)
@pytest.mark.parametrize("in_zip", [False, True], ids=["in a folder", "in a zip"])
def test_a_bad_zip_is_one_flagged_line_and_the_rest_is_unharmed(
    tmp_path, data, name, words, in_zip
):
    files = {"s01.ipynb": GOOD, "s03.zip": data, "z.zip": zipped({"hw1.ipynb": GOOD})}
    path = write(tmp_path / "in", files)
    if in_zip:
        path = tmp_path / "class.zip"
        path.write_bytes(zipped(files))
    before = sorted(tmp_path.rglob("*"))
    s01, s03, z = find_submissions(path)
    assert (s01.id, s01.flag, z.id, z.flag) == ("s01", "", "z/hw1", "")
    assert s03.id == name
    assert s03.flag in ("unreadable", "no notebook")
    assert words in s03.sentence
    assert s03.digest == ""
    assert read_submission(s03) == Source(flag=s03.flag, sentence=s03.sentence)
    assert sorted(tmp_path.rglob("*")) == before  # nothing was unpacked


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_files_of_one_name_in_a_zip_are_refused(tmp_path):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("hw1.ipynb", GOOD)
        archive.writestr("hw1.ipynb", OTHER)
    write(tmp_path, {"s03.zip": stream.getvalue()})
    words = "The zip holds two files of this name."
    assert flags(tmp_path) == {"s03/hw1": ("unreadable", words)}


def test_other_archives_are_named(tmp_path):
    write(tmp_path, {"s01.tar.gz": b"x", "s02.rar": b"x"})
    words = "The file is an archive of another kind than zip."
    assert flags(tmp_path) == dict.fromkeys(["s01.tar.gz", "s02.rar"], ("unreadable", words))


@pytest.mark.parametrize("in_zip", [False, True], ids=["in a folder", "in a zip"])
def test_a_bomb_harms_its_own_student_alone(tmp_path, monkeypatch, in_zip):
    monkeypatch.setattr(submission.Budget, "__init__", small_budget)
    monkeypatch.setattr(submission, "MAX_CLASS_ZIP", 10**9)
    size = zipped({f"{n}.ipynb": bytes(40_000) for n in range(3)})
    count = zipped({f"{n}.txt": b"" for n in range(9)})
    files = {"s01.ipynb": GOOD, "count.zip": count, "nested.zip": zipped({"in.zip": size})}
    files |= {"size.zip": size, "z.zip": zipped({"hw1.ipynb": GOOD})}
    path = write(tmp_path / "in", files)
    if in_zip:
        path = tmp_path / "class.zip"
        path.write_bytes(zipped(files))
    many, big = "The zip holds too many files.", "The zip unpacks to too many bytes."
    assert flags(path) == {
        "s01": ("", ""),
        "count": ("too large", many),
        "nested": ("too large", big),
        "size": ("too large", big),
        "z/hw1": ("", ""),
    }


def small_budget(self, size=100_000, files=8, whole_class=False):
    self.size, self.files, self.whole_class = size, files, whole_class


def test_the_class_has_a_budget_too(tmp_path, monkeypatch):
    monkeypatch.setattr(submission, "MAX_CLASS_ZIP", 1000)
    (tmp_path / "class.zip").write_bytes(zipped({"a.ipynb": bytes(600), "b.ipynb": bytes(600)}))
    with pytest.raises(ValueError, match="unpacks to too many bytes"):
        find_submissions(tmp_path / "class.zip")


def test_a_size_that_the_zip_claims_is_not_trusted(tmp_path, monkeypatch):
    monkeypatch.setattr(submission, "MAX_NOTEBOOK", 1000)
    data = zipped({"hw1.ipynb": bytes(5000)}).replace(
        (5000).to_bytes(4, "little"), (10).to_bytes(4, "little")
    )
    write(tmp_path, {"s03.zip": data, "big.ipynb": bytes(1001), "fits.ipynb": bytes(1000)})
    found = {name: flag for name, (flag, _) in flags(tmp_path).items()}
    assert found.pop("s03/hw1") in ("too large", "unreadable")
    assert found == {"big": "too large", "fits": ""}


def test_zips_do_not_nest_forever(tmp_path):
    data = zipped({"hw1.ipynb": GOOD})
    for _ in range(submission.MAX_DEPTH):
        data = zipped({"in.zip": data})
    write(tmp_path, {"fits.zip": data, "d03.zip": zipped({"in.zip": data})})
    (d03, (flag, words)), (fits, fine) = flags(tmp_path).items()
    assert d03 == "d03" + "/in" * 4
    assert (flag, words) == ("unreadable", "More than 3 zips lie in one another.")
    assert (fits, fine) == ("fits/in/in/in/hw1", ("", ""))


# ---------------------------------------------------------------------------------- links and pipes


def test_links_are_never_followed(tmp_path):
    secret = write(tmp_path / "secret", {"solution.ipynb": GOOD})
    folder = write(tmp_path / "in", {"s01/hw1.ipynb": GOOD})
    try:
        (folder / "s03.ipynb").symlink_to(secret / "solution.ipynb")
    except OSError:
        pytest.skip("this system makes no symbolic links")
    (folder / "folder").symlink_to(secret, target_is_directory=True)
    (folder / "loop.zip").symlink_to(folder / "loop.zip")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "up").symlink_to(folder, target_is_directory=True)
    words = "This is a symbolic link: the file itself is needed."
    wanted = dict.fromkeys(["s03", "folder", "loop", "up"], ("unreadable", words))
    assert flags(folder) == {"s01/hw1": ("", ""), **wanted}


def test_the_path_itself_may_be_a_link(tmp_path):
    write(tmp_path / "in", {"s01.ipynb": GOOD})
    try:
        (tmp_path / "link").symlink_to(tmp_path / "in", target_is_directory=True)
    except OSError:
        pytest.skip("this system makes no symbolic links")
    assert ids(tmp_path / "link") == ["s01"]
    assert read_submission(tmp_path / "link" / "s01.ipynb").flag == ""


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "s03.ipynb")
    assert flags(tmp_path) == {"s03": ("unreadable", "This is no regular file.")}


def test_a_file_replaced_by_a_link_after_it_was_found_is_refused(tmp_path):
    write(tmp_path, {"s01.ipynb": GOOD, "solution.txt": OTHER})
    (s01,) = find_submissions(tmp_path)
    (tmp_path / "s01.ipynb").unlink()
    try:
        (tmp_path / "s01.ipynb").symlink_to(tmp_path / "solution.txt")
    except OSError:
        pytest.skip("this system makes no symbolic links")
    assert read_submission(s01).flag == "unreadable"


def test_a_file_that_is_gone_is_a_flag_without_its_folder(tmp_path):
    source = read_submission(tmp_path / "gone.ipynb")
    assert source.flag == "unreadable"
    assert str(tmp_path) not in source.sentence


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read all")
def test_a_folder_that_may_not_be_read_is_one_line(tmp_path):
    write(tmp_path, {"s01/hw1.ipynb": GOOD, "s03/hw1.ipynb": GOOD})
    (tmp_path / "s03").chmod(0)
    try:
        assert [flag for flag, _ in flags(tmp_path).values()] == ["", "unreadable"]
    finally:
        (tmp_path / "s03").chmod(0o700)


# -------------------------------------------------------------------------------------- definitions


KEPT = {
    "import": "import math",
    "from": "from math import sqrt as root, pi",
    "function": "def f(x):\n    for n in range(3):\n        x += n\n    return x",
    "decorated": "@(\n    lambda f: f\n)\n@staticmethod\ndef f(): return 1",
    "async": "async def f():\n    return await g()",
    "class": "class A(int):\n    b = 1\n\n    def c(self): return self",
    "constant": "SIZE = 3",
    "call": "import math\nSCALE = math.sqrt(2)",
    "pair": "(a, [b, *c]) = d = (1, [2, 3])",
    "annotated": "a: int = 1\nb: int",
    "across lines": "a = (1\n     % 2)",
    "text in lines": 'a = """\n%time\n!ls\nwhat?\n"""',
    "not ASCII": "größe = 'ü'; länge = 2",
    "lambda": "f = lambda x: x",
}


@pytest.mark.parametrize("text", KEPT.values(), ids=KEPT)
def test_a_definition_is_kept_as_it_was_written(text):
    source = read(text)
    assert source.code.startswith("# cell 1\n")
    assert ast.dump(ast.parse(source.code)) == ast.dump(ast.parse(text))
    assert (source.flag, source.problems) == ("", ())


LEFT_OUT = {
    "expression": "print(1)",
    "loop": "for n in range(3): pass",
    "while": "while True: pass",
    "with": "with open('x', 'w') as f: f.write('x')",
    "if": "if True: a = 1",
    "main": "if __name__ == '__main__': main()",
    "delete": "del print",
    "attribute": "torch.allclose = print",
    "item": "a[0] = 1",
    "one of a pair": "a, b.c = 1, 2",
    "augmented": "a += 1",
    "try": "try: a = 1\nexcept ValueError: pass",
    "assert": "assert True",
    "raise": "raise SystemExit",
    "text": "'a text'",
    "return": "return 1",
    "await": "await f()",
    "match": "match 1:\n    case 1: a = 1",
    "magic": "%matplotlib inline",
    "shell": "!rm -rf x\n!echo it's \\\n   here",
    "shell answer": "files = !ls",
    "magic answer": "t = %timeit -o f()",
    "help": "print?\n?print\nmath.sqrt??\n%time?",
    "bash": "%%bash\ndef f(): pass",
    "timeit": "%%timeit\nf = 1",
    "blank": "  \n\n",
    "comment": "# def f(): pass",
}


@pytest.mark.parametrize("text", LEFT_OUT.values(), ids=LEFT_OUT)
def test_what_is_no_definition_is_left_out_and_the_rest_stays(text):
    source = read(f"before = 1\n{text}\nafter = 2" if "%%" not in text else text, "last = 3")
    names = {"last"} if "%%" in text else {"before", "after", "last"}
    assert set(run(source)) - {"__builtins__"} == names
    assert (source.flag, source.problems) == ("", ())


def test_statements_that_share_a_line_are_told_apart():
    source = read("a = 1; print(a); b = 2  # both")
    assert source.code == "# cell 1\na = 1\nb = 2\n"


def test_a_magic_inside_a_function_leaves_the_function():
    assert run(read("def f():\n    %time x = 1\n    return 2"))["f"]() == 2


def test_a_remainder_at_the_start_of_a_line_is_no_magic():
    source = read("%matplotlib inline\na = (7\n% 4)\n")
    assert run(source)["a"] == 3


@pytest.mark.parametrize("first", ["%%time", "\n%%capture out\n"])
def test_a_cell_magic_around_python_is_python(first):
    assert run(read(f"{first}\ndef f():\n    return 3"))["f"]() == 3


def test_the_last_definition_of_a_name_wins():
    source = read("def f(): return 1\nN = 1", "N = 2", "def f(): return 2")
    assert run(source)["f"]() == 2
    assert run(source)["N"] == 2


BROKEN = {
    "syntax": ("def f(:\n    pass", "line 1: "),
    "indent": ("a = 1\n  b = 2", "line 2: unexpected indent"),
    "question in a comment": ("a = = 1  # why?", "line 1: invalid syntax"),
    "unclosed": ("\na = (1", "line 2: '(' was never closed"),
    "null": ("a = 1\0", "null bytes"),
    "yield": ("a = yield 1", "'yield' outside function"),
    "await": ("a = await f()", "'await' outside function"),
    "arguments": ("def f(a, a): pass", "duplicate argument"),
    "deep": (f"a = {'-' * 10**5}1", "nested too deeply"),
    "parentheses": (f"a = {'(' * 10**5}1", "too many nested parentheses"),
    "a chain": (f"a = b{'.c' * 10**5}", "nested too deeply"),
    "no Python": ("%a\n" * 60, "more than 50 lines are not Python"),
    "R": ("x <- c(1, 2)\ny <- function(a) {", "line 2: "),
}


@pytest.mark.parametrize(("text", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_cell_is_named_and_the_others_stay(text, message):
    source = read("a = 1", text, "b = 2")
    assert {"a", "b"} < set(run(source))
    (problem,) = source.problems
    assert problem.cell == 2
    assert message in problem.message


def test_definitions_inside_other_statements_are_named():
    source = read("try:\n    import math as m\n    def f(): pass\nexcept ImportError: pass\na = 1")
    message = "line 1: left out, being inside `try`: m, f"
    assert source.problems == (CellProblem(1, message),)


def test_imports_from_the_future_move_to_the_top():
    source = read("a = 1", "from  __future__ import annotations\ndef f(x: Unknown): return x")
    assert source.code.startswith("from __future__ import annotations\n")
    assert run(source)["f"](3) == 3


def test_a_coding_line_changes_nothing():
    source = read("# coding: rot13\na = 'abc'")
    assert "coding" not in source.code
    assert run(source)["a"] == "abc"


def test_no_warning_of_a_students_code_is_ours(recwarn):
    read(r"a = '\d'", "b = 1 is 1")
    assert list(recwarn) == []


# --------------------------------------------------------------------------- notebooks of every kind


def test_format_3():
    cells = [
        {"cell_type": "heading", "level": 2, "source": ["Why"]},
        {"cell_type": "markdown", "source": ["Because ", "of it."]},
        {"cell_type": "code", "input": ["a = 1\n", "b = 2"], "language": "python"},
    ]
    data = json.dumps({"worksheets": [{"cells": cells[:2]}, {"cells": cells[2:]}], "nbformat": 3})
    source = read_notebook(data.encode())
    assert source.code == "# cell 3\na = 1\nb = 2\n"
    assert source.answers == {"Why": "Because of it."}


def test_lines_in_a_list_and_ends_of_line_of_other_systems():
    for text in (["a = 1\n", "b = 2"], "a = 1\r\nb = 2", "a = 1\rb = 2"):
        assert read(text).code == "# cell 1\na = 1\nb = 2\n"


def test_other_cells_and_cells_that_are_none():
    cells = [None, 3, [], {}, {"cell_type": "raw", "source": "c = 1"}, {"source": "d = 1"}]
    cells += [{"cell_type": ["code"], "source": "e = 1"}, {"cell_type": "markdown", "source": 5}]
    source = read_notebook(notebook(*cells, *code({}, ["x", 1], "a = 1")))
    assert source.code == "# cell 11\na = 1\n"
    assert source.problems == tuple(CellProblem(n, "the cell holds no text") for n in (9, 10))


BAD_FILES = {
    "nothing": (b"", "empty"),
    "blank": (b" \n\t", "empty"),
    "python": (b"def f(x):\n    return x\n", "not a notebook"),
    "pdf": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj", "not a notebook"),
    "picture": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "not a notebook"),
    "zip": (zipped({"hw1.ipynb": GOOD}), "not a notebook"),
    "a mark alone": (b"\xef\xbb\xbf", "not a notebook"),
    "half of it": (GOOD[:-5], "not a notebook"),
    "list": (b"[1, 2]", "not a notebook"),
    "number": (b"1", "not a notebook"),
    "long number": (b"9" * 5000, "not a notebook"),
    "other": (b'{"name": "s01"}', "not a notebook"),
    "cells": (b'{"cells": {"0": 1}}', "not a notebook"),
    "sheets": (b'{"worksheets": [1]}', "not a notebook"),
    "no sheets": (b'{"worksheets": []}', "not a notebook"),
    "deep": (b"[" * 100_000, "not a notebook"),
    "deep inside": (b'{"cells": ' + b"[" * 10**5 + b"]" * 10**5 + b"}", "not a notebook"),
    "large": (b" " * submission.MAX_NOTEBOOK + GOOD, "too large"),
    "much code": (notebook(*code("a = 1\n" * 50_000, "b = 1\n" * 50_000)), "too large"),
    "no cells": (notebook(), "no code"),
    "deleted cells": (notebook(markdown("# Task 1")), "no code"),
    "nothing defined": (notebook(*code("print(1)")), "no code"),
}


@pytest.mark.parametrize(("data", "flag"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_file_that_is_no_notebook_is_a_flag_and_a_sentence(tmp_path, data, flag):
    write(tmp_path, {"s03.ipynb": data})
    source = read_submission(tmp_path / "s03.ipynb")
    assert (source.flag, source.code) == (flag, "")
    assert source.sentence.endswith(".")
    assert read_notebook(data) == source


def test_much_text_is_not_much_code():
    assert read_notebook(notebook(markdown("words " * 10**5), *code("a = 1"))).flag == ""


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1"])
def test_another_encoding_is_read_and_flagged(encoding):
    source = read_notebook(notebook(*code("a = 'größe'"), encoding=encoding))
    assert run(source)["a"] == "größe"
    assert source.flag == "encoding"
    assert encoding in source.sentence


def test_half_a_surrogate_pair_can_still_be_written():
    data = b'{"cells": [{"cell_type": "code", "source": "a = \'\\ud800\'"},'
    data += b'{"cell_type": "code", "source": "b = \\udfff"},'
    data += b'{"cell_type": "markdown", "source": "# \\ud800\\nx \\ud800"}]}'
    source = read_notebook(data)
    assert run(source)["a"] == "?"
    assert source.answers == {"?": "x ?"}
    repr(source).encode()


# ------------------------------------------------------------------------------------------- answers


def test_answers_are_found_by_the_heading_above():
    text = "# One #x\n\nFirst.\n```\n# no heading\n```\n## Two\nSecond."
    cells = [
        markdown("Before."),
        markdown(text),
        *code("a = 1"),
        markdown("More."),
        markdown("#no"),
    ]
    wanted = {"": "Before.", "One #x": "First.\n```\n# no heading\n```"}
    wanted["Two"] = "Second.\n\nMore.\n\n#no"
    assert read_notebook(notebook(*cells)).answers == wanted


def test_answers_are_found_by_nbgraders_id_where_there_is_one():
    cells = [
        markdown("# Question\nWhy?", grade_id="words", solution=False, locked=True),
        markdown("Because.\n# Mine\nAnd so.", grade_id="why", solution=True),
        markdown("Loose."),
        markdown("No id.", solution=True),
        markdown("Odd.", grade_id=7, solution=True),
    ]
    wanted = {"why": "Because.\n# Mine\nAnd so.", "Mine": "Loose.\n\nNo id.\n\nOdd."}
    assert read_notebook(notebook(*cells)).answers == wanted


@pytest.mark.parametrize("metadata", [None, [], "x", {"nbgrader": None}, {"nbgrader": [1]}])
def test_odd_metadata_is_none(metadata):
    cell = {"cell_type": "markdown", "source": "# A\nb", "metadata": metadata}
    assert read_notebook(notebook(cell)).answers == {"A": "b"}


# ------------------------------------------------------------------------------------ forbidden calls


FORBIDDEN = "F.scaled_dot_product_attention"
USES = {
    "alias": "import torch.nn.functional as F\nF.{0}(1)",
    "long": "import torch\ntorch.nn.functional.{0}(1)",
    "submodule": "import torch.nn.functional\ntorch.nn.functional.{0}(1)",
    "from torch.nn": "from torch.nn import functional\nfunctional.{0}(1)",
    "nn": "from torch import nn as layers\nlayers.functional.{0}(1)",
    "name": "from torch.nn.functional import {0}\n{0}(1)",
    "name as": "from torch.nn.functional import {0} as s\ns(1)",
    "star": "from torch.nn.functional import *\n{0}(1)",
    "getattr": "import torch\ngetattr(torch.nn.functional, '{0}')(1)",
    "getattr twice": "import torch\ng = getattr\ng(g(torch, 'nn').functional, '{0}', None)(1)",
    "assigned": "import torch.nn.functional as F\ns = t = F.{0}\nt(1)",
    "module assigned": "import torch\nx = torch.nn\ny: object = x.functional\ny.{0}(1)",
    "walrus": "import torch\n(x := torch.nn.functional).{0}(1)",
    "written above": "import torch\ndef g(): return y.{0}\ny = x.functional\nx = torch.nn",
    "imported inside": "import torch.nn.functional as F\ndef g():\n  return F.{0}(1)",
    "import inside": "def g():\n  import torch.nn.functional as q\n  return q.{0}(1)",
    "import_module": "from importlib import import_module as i\ni('torch.nn.functional').{0}(1)",
    "importlib": "import importlib\nimportlib.import_module('torch').nn.functional.{0}(1)",
    "__import__": "__import__('torch.nn').nn.functional.{0}(1)",
    "passed on": "import torch.nn.functional as F\nmap(F.{0}, [])",
    "default": "import torch.nn.functional as F\ndef g(f=F.{0}): return f(1)",
    "a loop of names": "import torch.nn.functional as F\nF = F.x = G = F\nG.{0}",
}


def source_of(text):
    return Source(code=text.format(FORBIDDEN.partition(".")[2]))


@pytest.mark.parametrize("text", USES.values(), ids=USES)
def test_a_forbidden_function_is_seen_under_any_alias(text):
    assert uses(source_of(text), FORBIDDEN)
    assert uses(source_of(text), "torch.nn.functional.scaled_dot_product_attention")
    assert not uses(source_of(text), "F.softmax")


INNOCENT = {
    "another function": "import torch.nn.functional as F\nF.softmax(1)",
    "another library": "import other as F\nF.{0}(1)",
    "unknown": "F.{0}(1)",
    "own": "def {0}(q): return q\n{0}(1)",
    "method": "class A:\n  def g(self): return self.{0}(1)",
    "text": "a = 'F.{0}(1)'",
    "imported only": "from torch.nn.functional import {0}",
    "only bound": "from torch.nn.functional import {0}\n{0} = 1",
    "relative": "from .torch.nn.functional import {0}\n{0}(1)",
    "other star": "from math import *\n{0}(1)",
    "longer": "import torch.nn.functional as F\nF.{0}_x(1)\nF.x.{0}(1)",
    "run time": "import torch\ngetattr(torch.nn.functional, name)(1)",
    "deep": f"import torch\ntorch{'.nn' * 1500}",
}


@pytest.mark.parametrize("text", INNOCENT.values(), ids=INNOCENT)
def test_what_is_not_the_forbidden_function_is_not_seen(text):
    assert not uses(source_of(text), FORBIDDEN)


def test_use_is_read_from_a_whole_notebook():
    source = read(
        "import torch.nn.functional as F\n%time", "def f(q):\n    return F.softmax(q, -1)"
    )
    assert uses(source, "F.softmax")
    assert not uses(source, FORBIDDEN)


@pytest.mark.parametrize("name", ["", "softmax", "F.", ".F", "F.soft max", "F..x", "1.x"])
def test_a_name_that_is_not_dotted_is_an_error(name):
    with pytest.raises(ValueError, match="name: expected a dotted name"):
        uses(Source(), name)


# ------------------------------------------------------------------------------- whatever comes along


PIECES = [
    "def f(x):", "    return x", "a = 1", "%time a", "!ls \\", "b = !ls", "a?", "@d", "class A:", "(",
    ")", "'''", "%%time", "%%bash", "x = (1", "% 2)", "if a:", "\\", "from __future__ import division",
    "from __future__ import annotations", "c = yield", "\f", "é = 1; b = 2", "\u2028", "\0", "\ud800", "",
]  # fmt: skip
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=6).map("\n".join)
junk = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
cells = st.fixed_dictionaries(
    {"cell_type": st.sampled_from(["code", "code", "markdown", "heading", "raw"]) | junk},
    optional={"source": texts | st.lists(texts) | junk, "input": texts | junk, "metadata": junk},
)


def is_sound(source: Source):
    """A flag with a sentence or neither; code that Python takes; text that can be written."""
    assert bool(source.flag) == bool(source.sentence)
    assert bool(source.code) == (source.flag in ("", "encoding"))
    compile(source.code, "code", "exec", dont_inherit=True)
    statements = ast.parse(source.code).body
    assert all(submission._is_definition(node) for node in statements)
    repr(source).encode()


@given(st.binary(max_size=200))
@settings(max_examples=150, deadline=None)
def test_no_bytes_raise(data):
    is_sound(read_notebook(data))


@given(st.lists(cells | junk, max_size=5))
@settings(max_examples=300, deadline=None)
def test_no_cells_raise(found):
    data = json.dumps({"cells": found}).encode()
    source = read_notebook(data)
    is_sound(source)
    assert read_notebook(data) == source
    uses(source, FORBIDDEN)


@given(junk)
@settings(max_examples=60, deadline=None)
def test_no_json_raises(value):
    is_sound(read_notebook(json.dumps(value).encode()))
    is_sound(read_notebook(json.dumps({"worksheets": value}).encode()))


def test_a_file_without_a_name_is_passed_over(tmp_path):
    data = bytearray(zipped({"hw2.ipynb": OTHER, "hw1.ipynb": GOOD}))
    entry = data.index(b"PK\x01\x02")  # in the list of files: its name is made its comment
    data[entry + 28 : entry + 34] = bytes([0, 0, 0, 0, len("hw2.ipynb"), 0])
    write(tmp_path, {"s01.zip": bytes(data)})
    assert flags(tmp_path) == {"s01/hw1": ("", "")}


WHOLE_ZIP = zipped({"a/hw1.ipynb": GOOD, "in.zip": zipped({"b.ipynb": OTHER})})


@given(st.lists(st.tuples(st.integers(0, len(WHOLE_ZIP) - 1), st.integers(0, 255)), max_size=4))
@settings(max_examples=200, deadline=None)
def test_no_spoiled_zip_raises(tmp_path_factory, changes):
    data = bytearray(WHOLE_ZIP)
    for at, value in changes:
        data[at] = value
    folder = tmp_path_factory.mktemp("spoiled")
    write(folder, {"s03.zip": bytes(data), "z.ipynb": GOOD})
    found = find_submissions(folder)
    assert len({one.id for one in found}) == len(found) >= 2
    assert found[-1].id == "z"
    assert all(one.id and ".." not in one.id.split("/") and one.id[0] != "/" for one in found)
    for one in found:
        assert isinstance(one, Submission)
        is_sound(read_submission(one))
