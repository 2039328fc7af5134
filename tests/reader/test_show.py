"""show.py: what it prints is the package's own source, and nothing of the machine it runs on."""

import ast
import functools
import importlib
import importlib.util
import inspect
import linecache
import os
import pkgutil
import subprocess
import sys
import textwrap
import types
from collections import Counter
from pathlib import Path

import pytest
import torch
from markdown_it import MarkdownIt

import tested_transformer
from tested_transformer.functional import masks
from tested_transformer.reader.show import (
    Listing,
    first_sentence,
    first_sentences,
    show,
    without_labels,
)
from tested_transformer.specs import pitfall

PACKAGE = Path(tested_transformer.__file__).parent
MARKDOWN = MarkdownIt()
CELL = '''\
import functools, math

def keep(function):
    @functools.wraps(function)
    def wrapped(*args):
        return function(*args)
    return wrapped

@keep
def decorated(x):
    """Add 1 to ``x``.

    Long story: ```fences``` in it.
    """
    return x + 1  # größer

class Box:
    """A box.

    Shapes: none.
    """

    size = 3

    def get(self):
        """Its size.

        More.
        """

        return self.size

    @property
    def twice(self):
        return 2 * self.size

    @staticmethod
    def still():
        return 0

    @classmethod
    def make(cls):
        return cls()

class Bare:
    size = 3

@functools.lru_cache
def cached(x):
    return x

def outer():
    def inner():
        return 1
    return inner
'''


@pytest.fixture
def cell():
    """The names of a notebook cell, run as IPython does: linecache has the source."""
    name = "<a cell of a notebook>"
    linecache.cache[name] = (len(CELL), None, CELL.splitlines(keepends=True), name)
    names = {"__name__": "__main__"}
    exec(compile(CELL, name, "exec"), names)
    yield names
    del linecache.cache[name]


RARELY_SHOWN = ("specs", "exercises", "homework")  # two thirds of all objects, in a few forms


def package_objects():
    """The functions and classes of the package, each in the module that it is written in.

    Of mistakes, exercises and homework every tenth: to show all of them takes a minute.
    """
    count = Counter()
    for info in pkgutil.walk_packages([str(PACKAGE)], "tested_transformer."):
        folder = info.name.split(".")[1]
        try:
            module = importlib.import_module(info.name)
        except ImportError:  # an optional backend that this machine lacks
            continue
        for name, thing in vars(module).items():
            written_here = getattr(thing, "__module__", None) == info.name
            plain = inspect.isfunction(thing) or inspect.isclass(thing)
            if plain and written_here and thing.__name__ == name:
                count[folder] += 1
                if folder not in RARELY_SHOWN or count[folder] % 10 == 1:
                    yield thing


def code_of(listing: Listing) -> list[str]:
    """The fenced blocks as a Markdown reader sees them."""
    return [token.content for token in MARKDOWN.parse(listing.markdown) if token.tag == "code"]


def without_docstrings(source: str) -> str:
    tree = ast.parse(textwrap.dedent(source))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body[0].value = ast.Constant("")
    return ast.dump(tree)


def is_subsequence(lines: list[str], longer: list[str]) -> bool:
    rest = iter(longer)
    return all(line in rest for line in lines)


@pytest.mark.slow
def test_every_object_of_the_package_is_shown_as_it_runs(monkeypatch):
    sources = functools.cache(inspect.getsource)  # each is asked for three times
    monkeypatch.setattr(inspect, "getsource", sources)
    shown = 0
    for thing in package_objects():
        if "__init__" in vars(thing) and "<string>" in str(vars(thing)["__init__"]):
            continue
        source = inspect.getsource(thing)
        short, full = show(thing), show(thing, doc=True)
        assert code_of(full) == [source.rstrip() + "\n"]
        assert without_docstrings(code_of(short)[0]) == without_docstrings(without_labels(source))
        kept = [line for line in code_of(short)[0].splitlines() if not line.endswith('"""')]
        assert is_subsequence(kept, source.splitlines())
        for text in (short.markdown, short.text):
            assert str(PACKAGE.parent) not in text
            assert text.splitlines()[0].strip("#* `").startswith("code/tested_transformer/")
        shown += 1
    assert shown > 1000


def test_place_and_fence():
    lines = show(masks.causal_mask).markdown.splitlines()
    assert lines[:4] == [
        "**`code/tested_transformer/functional/masks.py`**",
        "",
        "```python",
        "def causal_mask(",
    ]
    assert lines[-1] == "```"
    assert show(masks.causal_mask).text.startswith(
        "# code/tested_transformer/functional/masks.py\ndef causal"
    )


def test_docstring_is_cut_to_its_first_sentence_and_all_else_stays():
    source = without_labels(inspect.getsource(masks.causal_mask)).rstrip("\n")
    docstring = masks.causal_mask.__doc__
    first = docstring.split("\n")[0]
    assert len(docstring) > len(first)
    (short,) = code_of(show(masks.causal_mask))
    assert short == source.replace(docstring, first) + "\n"


def test_checks_are_left_out_and_other_decorators_stay():
    source = textwrap.dedent("""
        @keep
        class Layer:
            @classmethod
            @checked(
                D="self.d_model",
                nonempty="L",
            )
            def one(cls): ...

            @checked
            def two(self):
                checked = 3

                @shapes.checked
                def inner(): ...
    """)
    kept = textwrap.dedent("""
        @keep
        class Layer:
            @classmethod
            def one(cls): ...

            def two(self):
                checked = 3

                @shapes.checked
                def inner(): ...
    """)
    assert without_labels(source) == kept
    assert without_labels("x: x + 1)") == "x: x + 1)"


def test_what_is_said_of_a_mistake_is_no_part_of_its_code():
    wrong = pitfall("divided by d").candidate
    (short,), (full,) = code_of(show(wrong)), code_of(show(wrong, doc=True))
    assert short.startswith("def divided_by_d(")
    assert full.startswith('@mistake(\n    "divided by d",')
    assert full.endswith(short)


def test_neighbours_from_one_file_share_its_line():
    listing = show(masks.causal_mask, masks.window_mask, tested_transformer.attention)
    assert listing.markdown.count("masks.py") == 1
    assert listing.markdown.count("/attention.py`**") == 1
    assert listing.text.count("# code/") == 2
    assert len(code_of(listing)) == 3


def test_mime_bundle_is_the_same_every_time():
    bundle = show(masks.causal_mask)._repr_mimebundle_()
    assert set(bundle) == {"text/markdown", "text/plain"}
    assert bundle == show(masks.causal_mask)._repr_mimebundle_()
    assert bundle["text/plain"] == repr(show(masks.causal_mask))


def test_methods_stand_at_the_left_with_their_class(cell):
    for method in (cell["Box"].get, cell["Box"]().get):
        listing = show(method)
        assert listing.markdown.startswith("**this notebook**, class `Box`\n")
        assert code_of(listing) == ['def get(self):\n    """Its size."""\n\n    return self.size\n']


@pytest.mark.parametrize(
    ("name", "first"),
    [("twice", "@property"), ("still", "@staticmethod"), ("make", "@classmethod")],
)
def test_properties_and_the_like(cell, name, first):
    for thing in (vars(cell["Box"])[name], inspect.getattr_static(cell["Box"](), name)):
        assert code_of(show(thing))[0].startswith(f"{first}\ndef {name}(")


def test_decorated_functions(cell):
    (code,) = code_of(show(cell["decorated"]))
    assert (
        code == '@keep\ndef decorated(x):\n    """Add 1 to ``x``."""\n    return x + 1  # größer\n'
    )
    assert code_of(show(cell["cached"]))[0].startswith("@functools.lru_cache\ndef cached")
    assert show(functools.partial(cell["decorated"], 1)).text == show(cell["decorated"]).text


def test_compiled_kernels_show_their_function(cell):
    kernel = types.SimpleNamespace(fn=cell["outer"])
    assert show(kernel).text == show(cell["outer"]).text


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
@pytest.mark.parametrize("interpret", ["0", "1"], ids=["compiled", "interpreted"])
def test_a_triton_kernel_is_shown_as_it_is_written(interpret):
    """In a process of its own: Triton reads the switch once, when it is imported."""
    script = """
from tested_transformer.functional.backends.flash_small import small_kernel
from tested_transformer.reader.show import show
print(type(small_kernel).__name__)
print(show(small_kernel, doc=True).text)
"""
    environment = {**os.environ, "TRITON_INTERPRET": interpret, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    kind, place, *lines = done.stdout.splitlines()
    assert kind == ("InterpretedFunction" if interpret == "1" else "JITFunction")
    assert place == "# code/tested_transformer/functional/backends/flash_small.py"
    assert lines[:2] == ["@triton.jit", "def small_kernel("]
    written = (PACKAGE / "functional" / "backends" / "flash_small.py").read_text(encoding="utf-8")
    assert "\n".join(lines).strip() in written


def test_classes_of_a_notebook(cell):
    listing = show(cell["Box"])
    assert listing.markdown.startswith("**this notebook**\n")
    (code,) = code_of(listing)
    assert code.startswith('class Box:\n    """A box."""\n\n    size = 3\n')
    assert code.endswith("    def make(cls):\n        return cls()\n")


def test_inner_functions_stand_at_the_left(cell):
    listing = show(cell["outer"]())
    assert listing.markdown.startswith("**this notebook**\n")
    assert code_of(listing) == ["def inner():\n    return 1\n"]


def test_backticks_in_the_source_do_not_end_the_fence(cell):
    listing = show(cell["decorated"], doc=True)
    assert "````python" in listing.markdown
    assert "```fences``` in it." in code_of(listing)[0]


@pytest.mark.parametrize(
    ("literal", "short"),
    [
        ('"""One."""', '"""One."""'),
        ('"""One. Two."""', '"""One. Two."""'),
        ('"""One.\n\n    Two.\n    """', '"""One."""'),
        ('"""One.\n    Two.\n    """', '"""One."""'),
        ('"""One sentence over\n    two lines.\n\n    Two.\n    """', None),
        ('"""No stop\n\n    Two.\n    """', '"""No stop"""'),
        ('"""\n    One.\n\n    Two.\n    """', '"""\n    One."""'),
        ('"""Say "yes"\n\n    Two.\n    """', '"""Say "yes" """'),
        ("'''One.\n\n    Two.\n    '''", "'''One.'''"),
        ('r"""One \\d.\n\n    Two.\n    """', 'r"""One \\d."""'),
        ('"One.\\n\\nTwo."', '"One.\\n\\nTwo."'),
    ],
)
def test_first_sentence(literal, short):
    short = '"""One sentence over\n    two lines."""' if short is None else short
    assert first_sentence(literal) == short
    assert ast.parse(short).body


def test_docstrings_inside_are_cut_too_and_offsets_hold():
    source = (
        'class Ä:\n    """Ö.\n\n    Ü.\n    """  # ß\n'
        '    def f(self):\n        "One line."\n'
        '    async def g(self): """A.\n\n        B."""; x = """not\n\n a docstring"""\n'
    )
    assert first_sentences(source) == (
        'class Ä:\n    """Ö."""  # ß\n'
        '    def f(self):\n        "One line."\n'
        '    async def g(self): """A."""; x = """not\n\n a docstring"""\n'
    )


def test_what_is_no_complete_statement_is_left_alone():
    assert first_sentences("key=lambda x: x),") == "key=lambda x: x),"


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("thing", "kind", "message"),
    [
        (masks, TypeError, "the module tested_transformer.functional.masks"),
        (len, TypeError, "len, which is not written in Python"),
        (3, TypeError, "an instance of int"),
        (torch.nn.Linear(1, 1), TypeError, "an instance of Linear"),
        (int, ValueError, "int, which has none"),
        (torch.nn.Linear, ValueError, "Linear from torch"),
        (torch.nn.functional.linear, TypeError, "linear, which is not written in Python"),
        (textwrap.dedent, ValueError, "dedent from textwrap"),
    ],
)
def test_refused(thing, kind, message):
    with pytest.raises(kind, match=message):
        show(thing)


@pytest.mark.plain_types
def test_refused_without_source(cell):
    with pytest.raises(ValueError, match="Bare, which has none"):
        show(cell["Bare"])
    lost = {"__name__": "__main__"}
    exec("def f(): pass", lost)
    with pytest.raises(ValueError, match="f, which has none"):
        show(lost["f"])


@pytest.mark.plain_types
def test_refused_calls():
    with pytest.raises(TypeError, match="objects: expected at least one"):
        show()
    with pytest.raises(TypeError, match="doc: expected True or False, got int"):
        show(masks.causal_mask, doc=1)
