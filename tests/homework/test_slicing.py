"""The part of a notebook that a function needs: all of it, in order, and no experiment."""

import ast
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tested_transformer.homework.submissions.slicing import named_by, needed_for


def run(code, function="f"):
    """The function that the code defines."""
    names = {"__name__": "submission"}
    exec(compile(code, "submission.py", "exec"), names)
    return names[function]


def kept(code, function="f", by=needed_for):
    """The first lines of the statements that stay."""
    sliced = by(code, function)
    assert by(sliced, function) == sliced  # what is needed needs nothing else
    return [ast.get_source_segment(sliced, s).splitlines()[0] for s in ast.parse(sliced).body]


BOOM = 'raise SystemExit("an experiment was run")\n'
NOTEBOOK = {  # a notebook with experiments, and what f(2) gives
    "alone": ("def f(x): return x + 1", 3),
    "step by step": ("a = 1\nb = a + 1\ndef g(x): return x * b\ndef h(x): return g(x)\n"
                     "def f(x): return h(x)", 4),
    "defined below": ("def f(x): return g(x) + c\ndef g(x): return x\nc = 4", 6),
    "decorator": ("import functools\ndef d(g): return lambda x: g(x) + 1\n"
                  "@d\n@functools.lru_cache(\n    maxsize=None\n)\ndef f(x): return x", 3),
    "decorator in brackets": ("def d(g): return g\n@(\n    d\n)\ndef f(x): return x", 2),
    "class": ("class A:\n    k = 3\nclass B(A):\n    def __call__(self, x): return x * self.k\n"
              "f = B()", 6),
    "class with a mangled name": ("__k = 1\n_A__k = 5\nclass A:\n    def g(self): return __k\n"
                                  "def f(x): return A().g()", 5),
    "class that reads its own name": ("k = 7\nclass A:\n    k = k\ndef f(x): return A.k", 7),
    "several definitions": ("def f(x): return 1\ndef f(x): return 2", 2),
    "a definition that keeps the old": ("def f(x): return 1\ng = f\ndef f(x): return g(x) + 4", 5),
    "star": ("from math import *\ndef f(x): return floor(pi) + x", 5),
    "import as": ("import os.path as p\ndef f(x): return len(p.join('a', 'b'))", 3),
    "import of a part": ("import os.path\ndef f(x): return len(os.path.join('a', 'b'))", 3),
    "future": ("from __future__ import annotations\ndef f(x: Unknown) -> Unknown: return x", 2),
    "default": ("k = 5\ndef f(x, y=k): return y", 5),
    "annotation": ("T = int\ndef f(x: T): return x", 2),
    "in an if": ("if True:\n    def g(x): return x + 5\ndef f(x): return g(x)", 7),
    "in a try": ("try:\n    import no_such_module as m\nexcept ImportError:\n    import math as m\n"
                 "def f(x): return m.floor(x)", 2),
    "in a with": ("import contextlib\nwith contextlib.nullcontext(5) as k:\n    pass\n"
                  "def f(x): return k", 5),
    "in a loop": ("for k in range(4):\n    pass\ndef f(x): return k", 3),
    "in a match": ("match [1, 2]:\n    case [1, *rest]: pass\ndef f(x): return rest[0]", 2),
    "walrus": ("[k := i for i in range(4)]\ndef f(x): return k", 3),
    "unpacked": ("(a, (b, *c)) = 1, (2, 3, 4)\ndef f(x): return c[1]", 4),
    "augmented": ("k = 1\nk += 1\ndef f(x): return k + x", 4),
    "filled": ("t = {}\nt['a'] = 1\nt.update(b=2)\ndef f(x): return t['a'] + t['b'] + x", 5),
    "filled deep": ("class A: pass\na = A()\na.t = [0]\na.t[0] = 9\ndef f(x): return a.t[0]", 9),
    "filled in a loop": ("t = []\nfor i in range(3):\n    t.append(i)\ndef f(x): return len(t)", 3),
    "emptied": ("t = [1, 2]\ndel t[0]\ndef f(x): return len(t)", 1),
    "attribute of the function": ("def f(x): return f.k\nf.k = 6", 6),
    "lambda": ("k = 1\nf = lambda x: (lambda y: y + k)(x)", 3),
    "global": ("n = 0\ndef f(x):\n    global n\n    n += 1\n    return n", 1),
    "nested": ("k = 4\ndef f(x):\n    def g():\n        return k\n    return g()", 4),
    "comprehension": ("k = 4\ndef f(x): return sum(k for _ in range(x))", 8),
    "Unicode": ("π = 3; größe = '‡𝕏'; λ = 1\ndef f(x): return x * λ + len(größe)", 4),
    "semicolons": ("a = 1; boom = 1 / 1; b = (2,\n 3); c = 4\ndef f(x): return a + b[1] + c", 8),
    "a string of lines": ("s = '''one\n  two'''; t = 1\ndef f(x): return len(s)", 9),
    "form feed": ("a = 1\n\x0c\nb = 2\ndef f(x): return a + b", 3),
    "line continued": ("a = 1 + \\\n    2\ndef f(x): return a", 3),
    "async": ("async def g(): return 8\ndef f(x):\n    try: g().send(None)\n"
              "    except StopIteration as e: return e.value", 8),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTEBOOK)
def test_the_slice_gives_the_same_function_and_no_experiment_runs(name):
    code, expected = NOTEBOOK[name]
    assert run(code)(2) == expected
    sliced = needed_for(code + "\n" + BOOM + "while True: pass\n", "f")
    assert run(sliced)(2) == expected
    if name != "future":  # which must be first
        assert run(needed_for(BOOM + code, "f"))(2) == expected


STAYS_OUT = {
    "a call": "f(1)", "a failure": "1 / 0", "a loop": "while True: pass",
    "a check": 'check("hw01", f)', "a variable like an argument": "x = train()",
    "a variable like a local": "out = F.softmax(train(), -1)",
    "a variable like a comprehension's": "i = train()", "a comprehension": "a = [g for g in train()]",
    "a variable like an inner function's": "inner = train()",
    "an argument like a helper": "def other(g): return train(g)",
    "a method of a module": "math.fsum(train())",
    "a seed": "math.manual_seed(0)", "a picture": "plt.plot(f(train()))",
    "a change of something else": "other[0] = f(1)",
    "an effect in a function": "def never():\n    g.append(1)",
}  # fmt: skip


@pytest.mark.parametrize("name", STAYS_OUT)
def test_an_experiment_stays_out(name):
    code = """import math
def g(x): return math.floor(x)
def f(x):
    out = [g(i) for i in x]
    def inner(): return out
    return inner()
"""
    experiment = STAYS_OUT[name] + "\n"
    for notebook in (code + experiment, experiment + code):
        assert kept(notebook) == ["import math", "def g(x): return math.floor(x)", "def f(x):"]


def test_a_star_import_and_a_future_stay_whatever_they_are_for():
    code = "from __future__ import annotations\nfrom math import *\nimport os\ndef f(x): return x"
    assert kept(code) == [*code.splitlines()[:2], "def f(x): return x"]


@pytest.mark.parametrize("word", ["globals()['g']", "eval('g')", "vars()['g']"])
def test_with_names_that_can_not_be_seen_all_stays(word):
    code = f"def g(x): return 5\nother = 1\n\ndef f(x):\n    return {word} if x else {word}(0)\n"
    assert needed_for(code, "f") == code


def test_a_string_may_be_a_name_where_names_can_not_be_seen():
    code = "k = 'g'\ndef g(): return 5\nother = 1\ntrain = 2\n"
    visible = code + "def f(x):\n    'other'\n    return globals()[k]()"
    assert kept(visible, by=named_by) == ["k = 'g'", "def g(): return 5", "other = 1", "def f(x):"]
    assert kept(code + "def f(x): return x == 'train'") == ["def f(x): return x == 'train'"]


def test_a_variable_called_vars_hides_nothing():
    assert kept("g = 1\ndef f(x):\n    vars = x\n    return vars") == ["def f(x):"]


def test_a_function_that_is_not_there_needs_nothing():
    assert needed_for("a = 1\ndef g(x): return x", "f").strip() == ""
    assert needed_for("", "f").strip() == ""


def test_what_is_no_python_is_a_syntax_error():
    with pytest.raises(SyntaxError):
        needed_for("def f(x:", "f")


@given(st.integers(0, 10**9), st.integers(1, 12))
def test_a_slice_of_any_graph_of_functions_gives_what_all_gives(seed, count):
    """Functions g0, g1, ... that call those before them, in any order, with experiments between."""
    draw = random.Random(seed)
    calls = [draw.sample(range(i), draw.randint(0, min(i, 3))) for i in range(count)]
    functions = [
        f"def g{i}(x): return {i} + x" + "".join(f" + g{j}(x)" for j in calls[i])
        for i in range(count)
    ]
    draw.shuffle(functions)
    experiments = ["1 / 0", "x = [1 / 0]", "x: int = 1 / 0", "assert not g0(0), 1 / 0"]
    code = "\n".join(f"{function}\n{draw.choice(experiments)}" for function in functions)
    for i in range(count):
        whole = run("\n".join(functions), f"g{i}")
        sliced = needed_for(code, f"g{i}")
        assert run(sliced, f"g{i}")(3) == whole(3)
        needs, stack = set(), [i]
        while stack:
            needs.add(stack[-1])
            stack += calls[stack.pop()]
        assert sliced.count("def ") == len(needs)
