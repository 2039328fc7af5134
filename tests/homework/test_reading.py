"""A notebook's definitions and answers are read whatever else it holds; none of it is run."""

import ast
import dis
import json
import re

import pytest
from handed_in import (
    GOOD,
    cells,
    code,
    is_sound,
    junk,
    markdown,
    notebook,
    read,
    texts,
    write,
    zipped,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tested_transformer.homework.submissions.definitions import CellProblem
from tested_transformer.homework.submissions.finding import MAX_NOTEBOOK
from tested_transformer.homework.submissions.reading import (
    Source,
    defines,
    read_notebook,
    read_submission,
)
from tested_transformer.homework.submissions.slicing import needed_for


def run(source: Source) -> dict:
    """What the code defines. These texts are ours: a student's run in the jail alone."""
    names: dict = {}
    exec(source.code, names)
    return names


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
    "delete": "del print",
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

# It may fill what a function needs: kept, and run where that is so.
FILLS = {
    "loop": "for n in range(3): pass",
    "while": "while True: pass",
    "with": "with open('x', 'w') as f: f.write('x')",
    "if": "if True: a = 1",
    "main": "if __name__ == '__main__': main()",
    "attribute": "torch.allclose = print",
    "item": "a[0] = 1",
    "one of a pair": "a, b.c = 1, 2",
    "augmented": "a += 1",
    "try": "try: a = 1\nexcept ValueError: pass",
}


@pytest.mark.parametrize("text", LEFT_OUT.values(), ids=LEFT_OUT)
def test_what_is_no_definition_is_left_out_and_the_rest_stays(text):
    source = read(f"before = 1\n{text}\nafter = 2" if "%%" not in text else text, "last = 3")
    names = {"last"} if "%%" in text else {"before", "after", "last"}
    assert set(run(source)) - {"__builtins__"} == names
    assert (source.flag, source.problems) == ("", ())


@pytest.mark.parametrize("text", FILLS.values(), ids=FILLS)
def test_what_may_fill_a_table_is_kept_and_run_where_it_is_needed(text):
    source = read(f"before = 1\n{text}\nafter = 2")
    assert text in source.code
    assert needed_for(source.code, "after") == "after = 2\n"
    assert (source.flag, source.problems) == ("", ())


def test_a_loop_that_fills_a_table_belongs_to_the_function():
    source = read(
        "table = {}\nfor n in range(3):\n    table[n] = n * n", "def f(n): return table[n]"
    )
    names: dict = {}
    exec(needed_for(source.code, "f"), names)
    assert names["f"](2) == 4


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


def test_definitions_inside_a_match_are_named():
    source = read("match 1:\n    case 1:\n        def f(): pass\na = 1")
    message = (
        "line 1 was left out, since it defines `f` inside a `match`, where the grader does not look"
    )
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


DEFINED = {
    "function": ("def f(x):\n    y = x\n    def z(): pass", "f", "x y z"),
    "async": ("async def f(): pass", "f", "async"),
    "decorated": ("import functools as t\n@t.cache\ndef f(): pass", "t f", "functools cache"),
    "class": ("class A(int):\n    b = 1\n    def c(self): pass", "A", "int b c"),
    "assigned": ("import math\nf = math.sqrt", "f math", "sqrt"),
    "pairs": ("(a, [b, *c]) = d = (1, [2])", "a b c d", "e"),
    "annotated": ("a: int = b\nc: int", "a", "b c int"),
    "in a comprehension": ("a = [n for n in range(3)]", "a", "n range"),
    "from": ("from math import sqrt as root, pi", "root pi", "sqrt math"),
    "import": ("import os.path\nimport numpy as np", "os np", "path numpy"),
    "star": ("from math import *", "", "sqrt math"),
    "used alone": ("def f(): return g()\na.b = 1\na[0] = 1\nprint(1)", "f", "g a b print"),
    "inside another statement": ("try:\n    def f(): pass\nfinally: pass\na = 1", "a f", "pass"),
    "in a loop": (
        "for i, j in ():\n    with a as b:\n        c, d[0] = 1, 2\n    e += 1",
        "i j b c e",
        "a d",
    ),
    "nothing": ("print(1)", "", "print"),
}


@pytest.mark.parametrize(("text", "names", "others"), DEFINED.values(), ids=DEFINED)
def test_a_name_is_defined_at_the_top_or_it_is_not(text, names, others):
    source = read(text)
    for name in names.split():
        assert defines(source, name), name
    for name in others.split():
        assert not defines(source, name), name


@pytest.mark.skipif(not hasattr(ast, "TypeAlias"), reason="Python 3.12 brought `type X = ...`")
def test_a_type_alias_is_a_definition():
    source = read("type X[T] = list[T]")
    assert defines(source, "X")
    assert not defines(source, "T")


def test_a_name_is_defined_in_any_cell_and_beside_a_broken_one():
    source = read("%time\nimport math", "def f(:", "def g(): pass")
    assert [defines(source, name) for name in ("math", "f", "g")] == [True, False, True]
    assert not defines(read_notebook(b""), "f")


def test_a_source_made_by_hand_may_hold_other_statements():
    assert defines(Source(code="print(1)\nf().a: int = 1\nb = 2"), "b")


@given(st.lists(st.sampled_from(list(KEPT.values())) | texts, min_size=1, max_size=5))
@settings(max_examples=200)
def test_a_name_is_defined_where_pythons_compiler_stores_it(found):
    source = read_notebook(json.dumps({"cells": code(*found)}).encode())
    steps = dis.get_instructions(compile(source.code, "code", "exec", dont_inherit=True))
    stored = {step.argval for step in steps if step.opname == "STORE_NAME"}
    names = {name for name in re.findall(r"\w+", source.code) if name.isidentifier()}
    assert {name for name in names if defines(source, name)} == stored & names


@pytest.mark.parametrize("name", ["", "F.softmax", "a b", "1x", "*"])
def test_a_name_that_is_not_single_is_an_error(name):
    with pytest.raises(ValueError, match="name: expected a name without dots"):
        defines(Source(), name)


# --------------------------------------------------------------------------- notebooks of every kind


def test_code_is_found_beside_the_answer_to_the_same_question():
    def own(text, **nbgrader):
        return {**code(text)[0], "metadata": {"nbgrader": {"solution": True, **nbgrader}}}

    handed_out = {"metadata": {"nbgrader": {"solution": False, "grade_id": "code-1"}}}
    cells = [
        markdown("## 1 Why", solution=False),
        own("def f(x): return x", grade_id="f"),
        markdown("Because.", solution=True, grade_id="why"),
        markdown("## 2 How far\n\nMeasure.", solution=False),
        {**code("import data")[0], **handed_out},
        own("SEED, STEPS = 0, 20\n...", grade_id="far-code"),
        *code("print(f(1))"),
        markdown("### A heading of my own"),
        *code("", "%%bash\nls"),
        markdown("Write down what you found.", solution=False),
        markdown("16 steps.", solution=True, grade_id="far"),
        *code("plot()"),
        markdown("## 3 Last", solution=False),
        markdown("Nothing.", solution=True, grade_id="last"),
    ]
    beside = read_notebook(notebook(*cells)).beside
    assert beside == {
        "why": "def f(x): return x",
        "far": "print(f(1))\n\n\n%%bash\nls\n\n\nplot()",
    }


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
    assert source.problems == tuple(
        CellProblem(n, "left out, since it holds no text") for n in (9, 10)
    )


BAD_FILES = {
    "nothing": (b"", "empty"),
    "blank": (b" \n\t", "empty"),
    "python": (b"def f(x):\n    return x\n", "not a notebook"),
    "pdf": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj", "not a notebook"),
    "picture": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "not a notebook"),
    "zip": (zipped({"hw1.ipynb": GOOD}), "not a notebook"),
    "a mark alone": (b"\xef\xbb\xbf", "not a notebook"),
    "half of it": (GOOD[: len(GOOD) // 2], "not a notebook"),
    "list": (b"[1, 2]", "not a notebook"),
    "number": (b"1", "not a notebook"),
    "long number": (b"9" * 5000, "not a notebook"),
    "other": (b'{"name": "s01"}', "not a notebook"),
    "cells": (b'{"cells": {"0": 1}}', "not a notebook"),
    "sheets": (b'{"worksheets": [1]}', "not a notebook"),
    "no sheets": (b'{"worksheets": []}', "not a notebook"),
    "deep": (b"[" * 100_000, "not a notebook"),
    "deep inside": (b'{"cells": ' + b"[" * 10**5 + b"]" * 10**5 + b"}", "not a notebook"),
    "large": (b" " * MAX_NOTEBOOK + GOOD, "too large"),
    "much code": (notebook(*code("a = 1\n" * 90_000, "b = 1\n" * 90_000)), "no code"),
    "no cells": (notebook(), "no code"),
    "deleted cells": (notebook(markdown("# Task 1")), "no code"),
    "nothing defined": (notebook(*code("print(1)")), "no code"),
}


def test_of_a_damaged_notebook_what_stands_above_the_damage_is_read():
    data = notebook(*code("def f(x):\n    return x", "def g(x):\n    return x"))
    for at in (data.index(b"def g"), data.index(b"def g") + 3):
        source = read_notebook(data[:at])
        assert set(run(source)) >= {"f"}
        assert source.flag == "damaged"
        assert source.sentence.endswith("above the damage was read, 1 cell.")
    assert read_notebook(data[:-2]).flag == "damaged"
    assert read_notebook(data[: data.index(b"def f")]).flag == "not a notebook"


def test_of_more_code_than_is_read_the_largest_cells_are_left_out_and_named():
    source = read("a = 1\n" * 50_000, "def f(x):\n    return x", "b = 1\n" * 60_000)
    assert set(run(source)) >= {"a", "f"}
    (problem,) = source.problems
    assert problem.cell == 3
    assert "it holds 360 kB of code, and of a notebook 500 kB are read" in problem.message


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


def test_a_file_that_is_gone_is_a_flag_without_its_folder(tmp_path):
    source = read_submission(tmp_path / "gone.ipynb")
    assert source.flag == "unreadable"
    assert str(tmp_path) not in source.sentence


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


# ------------------------------------------------------------------------------- whatever comes along


@given(st.binary(max_size=200))
@settings(max_examples=150)
def test_no_bytes_raise(data):
    is_sound(read_notebook(data))


@given(st.lists(cells | junk, max_size=5))
@settings(max_examples=300)
def test_no_cells_raise(found):
    data = json.dumps({"cells": found}).encode()
    source = read_notebook(data)
    is_sound(source)
    assert read_notebook(data) == source


@given(junk)
@settings(max_examples=60)
def test_no_json_raises(value):
    is_sound(read_notebook(json.dumps(value).encode()))
    is_sound(read_notebook(json.dumps({"worksheets": value}).encode()))
