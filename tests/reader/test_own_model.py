"""Your own model: what is kept, what is loaded again, and that it is the reader's code that runs."""

from __future__ import annotations

import copy
import linecache
import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import nbformat
import pytest
import torch

from chapters import chapter_paths
from same_numbers import assert_same_numbers, gradients_as_weights, in_dtype, shake
from solutions import chapter_solutions
from tested_transformer import (
    OwnTransformer,
    Parts,
    Transformer,
    TransformerConfig,
    check,
    load_parts,
    open_folder,
)
from tested_transformer.analysis.translation import translate
from tested_transformer.data import number_pair
from tested_transformer.exercises import EXERCISES
from tested_transformer.experiments.ch10_number_models import load_number_model, number_trainer
from tested_transformer.reader.part_table import PART_EXERCISES, PARTS
from tested_transformer.reader.saved_parts import NotKept, source_of
from tested_transformer.specs.own_code import is_books
from tested_transformer.training.trainer import Recipe

ROOT = Path(__file__).resolve().parents[2]
SOLUTIONS = {n: s for n, s in chapter_solutions().items() if n in PART_EXERCISES}
FIRST_CHOICES = [part.exercise for part in PARTS]


def precise_sinusoids(positions, d_model):
    """The vectors in float64, so that a model in float64 has them too."""
    columns = torch.arange(d_model)
    angles = positions[..., None] / 10000 ** (columns.double() // 2 * 2 / d_model)
    return torch.where(columns % 2 == 0, angles.sin(), angles.cos())


RIGHT = {**SOLUTIONS, "ch06.sinusoids": precise_sinusoids}


@pytest.fixture(autouse=True)
def own_directory(tmp_path, monkeypatch):
    """Each test in a folder of its own, where no part is kept unless the test asks for it."""
    monkeypatch.delenv("TESTED_TRANSFORMER_PARTS", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def every():
    """All parts of a reader's own. `precise_sinusoids` is wider than its exercise asks: not judged."""
    parts = Parts.of(SOLUTIONS)
    return with_function(parts, "ch06.sinusoids", precise_sinusoids)


def with_function(parts, exercise, function):
    """The same parts with one function in another's place, unjudged."""
    pieces = [
        replace(p, exercise=exercise, function=function, lost=False, reason="")
        if exercise in p.part.exercises
        else p
        for p in parts.pieces
    ]
    return replace(parts, pieces=tuple(pieces))


def config(**changes):
    sizes = {"d_model": 12, "num_heads": 3, "num_encoder_layers": 2, "num_decoder_layers": 2}
    return TransformerConfig(23, 19, **{**sizes, "d_ff": 20, "dropout": 0.0, **changes})


def pair(parts, seed=0, **changes):
    """A model of the package's parts and one of the reader's, with the same weights."""
    plain, own = Transformer(config(**changes)), OwnTransformer(config(**changes), parts=parts)
    own.load_state_dict(shake(plain, seed).state_dict())
    return plain, own


def sentences(seed=0, source=(4, 7), target=(4, 6)):
    """Random ids; padding stands right in the source, left and right in the target."""
    generator = torch.Generator().manual_seed(seed)
    read = torch.randint(1, 23, source, generator=generator)
    written = torch.randint(1, 19, target, generator=generator)
    read[1, -2:], written[1, -1:], written[2, :2] = 0, 0, 0
    return read, written


# --- The parts in a model -------------------------------------------------------------------------


def test_right_functions_are_all_the_readers_own():
    parts = Parts.of(SOLUTIONS)
    assert parts.lost == {}
    assert list(parts.own) == FIRST_CHOICES
    assert parts.summary == f"{len(PARTS)} of {len(PARTS)} parts are yours"
    assert len(PARTS) >= 9
    assert set(PART_EXERCISES) <= set(EXERCISES)


def groups_of(model, dtype):
    twin = in_dtype(model, dtype)
    read, written = sentences()
    logits, real = twin(read, written), written != 0
    twin.zero_grad()
    weights = torch.randn(logits[real].shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    (logits[real] * weights).sum().backward()
    gradients = dict(gradients_as_weights(twin).named_parameters())
    # The keys' biases move no weight: what is found there is rounding alone.
    kept = [g for n, g in gradients.items() if not n.endswith("key.bias")]
    return {"logits": [logits[real]], "gradients": kept}


@pytest.mark.parametrize("exercise", [*PART_EXERCISES, "all"])
def test_logits_and_gradients_are_the_packages(every, exercise):
    parts = every if exercise == "all" else with_function(Parts.of({}), exercise, RIGHT[exercise])
    plain, own = pair(parts)
    assert_same_numbers(lambda dtype: groups_of(own, dtype), lambda dtype: groups_of(plain, dtype))


@pytest.mark.parametrize(
    "changes",
    [{"norm_placement": "pre"}, {"norm": "rms"}, {"bias": False}, {"pad_id": None}, {"target_vocab": None},
     {"positions": "learned", "max_length": 9}, {"positions": "none"}, {"activation": "gelu"},
     {"scale_embedding": False}, {"position_layout": "halves"}, {"embedding_norm": True},
     {"num_heads": 1}, {"norm_placement": "resi_dual"}],
    ids=lambda changes: ",".join(f"{n}={v}" for n, v in changes.items()),
)  # fmt: skip
def test_every_configuration_gives_the_packages_logits(every, changes):
    if "target_vocab" in changes:
        sizes = {"d_model": 12, "num_heads": 3, "num_encoder_layers": 2, "num_decoder_layers": 2}
        plain = Transformer(TransformerConfig(23, dropout=0.0, **sizes))
        own = OwnTransformer(plain.config, parts=every)
        own.load_state_dict(shake(plain, 0).state_dict())
    else:
        plain, own = pair(every, **changes)
    read, written = sentences()
    real = written != 0 if own.config.pad_id is not None else torch.ones_like(written).bool()
    torch.testing.assert_close(plain(read, written)[real], own(read, written)[real])


@pytest.mark.parametrize("exercise", PART_EXERCISES)
def test_it_is_the_readers_function_that_runs(exercise):
    """It is called; and what it gives, changed, changes the logits."""
    calls, factor = [], 1.0

    def counted(*arguments, **options):
        calls.append(exercise)
        return changed(RIGHT[exercise](*arguments, **options), factor)

    _, own = pair(with_function(Parts.of({}), exercise, counted))
    read, written = sentences()
    real = written != 0
    before, called = own(read, written)[real], len(calls)
    assert called > 0
    factor = 0.5
    after = own(read, written)[real]
    assert len(calls) == 2 * called
    assert (before - after).abs().max() > 1e-3


def changed(answer, factor):
    """An answer that is wrong: half of a number, a mask that hides nothing, the first place."""
    if factor == 1.0:
        return answer
    if answer.dtype == torch.bool:
        return torch.ones_like(answer)
    return 0 * answer if answer.dtype == torch.int64 else factor * answer


def test_each_of_all_is_called_in_one_pass(every):
    """No part takes another's place away."""
    counts = dict.fromkeys(every.own, 0)

    def count(name, function):
        def counted(*arguments, **options):
            counts[name] += 1
            return function(*arguments, **options)

        return counted

    parts = every
    for name, function in every.own.items():
        parts = with_function(parts, name, count(name, function))
    _, own = pair(parts)
    own(*sentences())
    assert min(counts.values()) > 0, counts


def test_gradients_reach_every_weight(every):
    _, own = pair(every)
    read, written = sentences()
    own(read, written)[written != 0].square().sum().backward()
    assert [n for n, p in own.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_a_training_gives_the_same_losses(every):
    recipe = Recipe(steps=5, batch_size=8)
    small = {"d_model": 32, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1}
    plain = number_trainer(recipe, **small).run(progress=False).losses
    trainer = number_trainer(recipe, build=partial(OwnTransformer, parts=every), **small)
    assert trainer.model.parts.summary == "14 of 14 parts are yours"
    assert trainer.run(progress=False).losses == pytest.approx(plain, rel=1e-4)
    assert plain[-1] < plain[0]


def test_generating_is_the_same_with_and_without_a_cache_and_with_beams(every):
    shipped, source, target = load_number_model()
    own = OwnTransformer(shipped.config, parts=every)
    own.load_state_dict(shipped.state_dict())
    own.eval()
    words = [number_pair([n]).source for n in (324, 345_678, 90_017)]
    right = [list(number_pair([n]).target) for n in (324, 345_678, 90_017)]
    for options in ({}, {"cache": False}, {"num_beams": 3}):
        assert translate(own, words, source, target, **options) == right


def test_the_names_of_the_weights_stay(every):
    plain, own = pair(every)
    assert list(plain.state_dict()) == list(own.state_dict())
    assert [n for n, _ in plain.named_parameters()] == [n for n, _ in own.named_parameters()]


def test_the_initial_weights_are_the_same(every):
    torch.manual_seed(5)
    plain = Transformer(config())
    torch.manual_seed(5)
    own = OwnTransformer(config(), parts=every)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), own.parameters(), strict=True))


def test_a_deep_copy_has_its_own_weights(every):
    _, own = pair(every)
    read, written = sentences()
    before, twin = own(read, written), copy.deepcopy(own)
    with torch.no_grad():
        for weight in own.parameters():
            weight.zero_()
    assert torch.equal(twin(read, written), before)


def test_weights_for_pictures(every):
    plain, own = pair(every)
    read, written = sentences()
    real = written != 0
    _, right = plain(read, written, return_weights=True)
    _, found = own(read, written, return_weights=True)
    for name in ("encoder", "decoder", "cross"):
        for theirs, mine in zip(getattr(right, name), getattr(found, name), strict=True):
            if name != "encoder":  # padding asks too, and nobody hears the answer
                theirs, mine = theirs.transpose(1, 2)[real], mine.transpose(1, 2)[real]
            else:
                theirs, mine = theirs.transpose(1, 2)[read != 0], mine.transpose(1, 2)[read != 0]
            torch.testing.assert_close(theirs, mine)


def test_masks_from_outside(every):
    """Rank 2, four axes, one for each head: cross-attention asks query by query where it must."""
    plain, own = pair(every)
    read, written = sentences()
    real = written != 0
    generator = torch.Generator().manual_seed(1)
    for shape in ((6, 7), (4, 1, 6, 7), (4, 3, 6, 7), (1, 3, 1, 7)):
        mask = torch.rand(shape, generator=generator) < 0.7
        mask[..., 0] = True
        outside = {"memory_mask": mask, "target_mask": mask.new_ones(6, 6).tril(2)}
        torch.testing.assert_close(
            plain(read, written, **outside)[real], own(read, written, **outside)[real]
        )


def test_a_source_of_nothing_but_padding(every):
    plain, own = pair(every)
    read, written = sentences()
    read[0] = 0
    torch.testing.assert_close(plain(read, written)[written != 0], own(read, written)[written != 0])


def test_a_part_without_a_place_is_named_and_left_out(every):
    model = OwnTransformer(config(dropout=0.1, norm_placement="pre"), parts=every)
    assert model.parts.summary == "10 of 14 parts are yours"
    text = repr(model.parts)
    assert "ch05.multi_head: not with dropout=0.1" in text
    assert "ch09.decoder_layer: not with norm_placement='pre'" in text
    assert every.summary == "14 of 14 parts are yours"  # the parts themselves are as they were


def test_dropout_acts_on_the_weights_of_the_readers_steps():
    parts = Parts.of({n: SOLUTIONS[n] for n in ("ch04.masked_softmax", "ch05.split_heads")})
    plain, own = pair(parts, dropout=0.4)
    read, written = sentences()
    assert not torch.equal(own(read, written), own(read, written))
    own.eval()
    torch.testing.assert_close(own(read, written), plain.eval()(read, written))


def test_without_parts_the_model_is_as_ever():
    torch.manual_seed(0)
    plain = Transformer(config())
    torch.manual_seed(0)
    none = OwnTransformer(config())
    assert none.parts.summary == "0 of 14 parts are yours"
    assert [type(m) for m in none.modules()][1:] == [type(m) for m in plain.modules()][1:]
    assert torch.equal(none(*sentences()), plain(*sentences()))


def test_the_softmax_of_chapter_3_serves_until_chapter_4s_is_written():
    both = {n: SOLUTIONS[n] for n in ("ch03.softmax", "ch04.masked_softmax")}
    assert list(Parts.of({"ch03.softmax": both["ch03.softmax"]}).own) == ["ch03.softmax"]
    assert list(Parts.of(both).own) == ["ch04.masked_softmax"]
    broken = {**both, "ch04.masked_softmax": lambda scores, allowed: scores}
    assert list(Parts.of(broken).own) == ["ch03.softmax"]


# --- What passes and yet is of no use -------------------------------------------------------------


def test_a_function_without_gradients_is_named():
    def through_a_list(scores):
        return torch.tensor(scores.softmax(-1).tolist(), dtype=scores.dtype).reshape(scores.shape)

    assert check("ch03.softmax", through_a_list).failed == "the gradients are right"
    parts = Parts.of({"ch03.softmax": through_a_list})
    assert parts.own == {}
    assert "gradients" in parts.lost["ch03.softmax"]


def test_a_function_that_a_model_can_not_call_is_named():
    def without_mask(x, w_query, w_key, w_value, w_output, num_heads):
        return SOLUTIONS["ch05.multi_head"](x, w_query, w_key, w_value, w_output, num_heads)

    parts = Parts.of({"ch05.multi_head": without_mask})
    assert parts.own == {}
    assert parts.lost


def test_a_class_is_no_part():
    class Norm(torch.nn.Module):
        def __init__(self, d_model, *, eps=1e-5):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(d_model))
            self.bias = torch.nn.Parameter(torch.zeros(d_model))
            self.eps = eps

        def forward(self, x):
            return torch.nn.functional.layer_norm(
                x, self.weight.shape, self.weight, self.bias, self.eps
            )

    assert check("ch07.layer_norm", Norm)
    assert "a class" in Parts.of({"ch07.layer_norm": Norm}).lost["ch07.layer_norm"]


@pytest.mark.parametrize("exercise", PART_EXERCISES)
def test_each_famous_mistake_is_replaced(exercise):
    mutant = EXERCISES[exercise].mutants[0]
    parts = Parts.of({exercise: mutant.candidate})
    assert parts.own == {}
    assert parts.lost[exercise].startswith("no longer passes: ")


# --- A notebook -----------------------------------------------------------------------------------


class Notebook:
    """Cells that run in one namespace called __main__, their text in linecache: as IPython does it."""

    def __init__(self):
        self.scope, self.count = {"__name__": "__main__"}, 0

    def run(self, source):
        self.count += 1
        name = f"<ipython-input-{self.count}-{id(self)}>"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        exec(compile(source, name, "exec", dont_inherit=True), self.scope)


@pytest.fixture
def notebook():
    book = Notebook()
    book.run("import math, torch\nfrom torch.nn import functional as F\n")
    book.run("from tested_transformer import check, attention\n")
    return book


SPLIT = """
def my_split(x, num_heads):
    return {body}

verdict = check("ch05.split_heads", my_split)
"""
RIGHT_SPLIT = SPLIT.format(body="x.unflatten(-1, (num_heads, -1)).transpose(1, 2)")


def files(folder="my_transformer"):
    return sorted(path.name for path in Path(folder).iterdir())


def test_without_a_folder_nothing_is_written(notebook, tmp_path, capsys):
    notebook.run(RIGHT_SPLIT)
    assert notebook.scope["verdict"].passed
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out == ""


def test_an_empty_variable_closes_the_folder(notebook, monkeypatch, capsys):
    open_folder()
    monkeypatch.setenv("TESTED_TRANSFORMER_PARTS", "")
    notebook.run(RIGHT_SPLIT)
    assert files() == []
    assert capsys.readouterr().out == ""
    assert load_parts().own == {}


def test_the_variable_names_another_folder(notebook, monkeypatch, tmp_path):
    monkeypatch.setenv("TESTED_TRANSFORMER_PARTS", str(tmp_path / "elsewhere"))
    notebook.run(RIGHT_SPLIT)  # not open yet
    assert list(tmp_path.iterdir()) == []
    assert open_folder() == tmp_path / "elsewhere"
    notebook.run(RIGHT_SPLIT)
    assert files("elsewhere") == ["ch05.split_heads.py"]
    assert list(load_parts().own) == ["ch05.split_heads"]


def test_what_passes_is_kept_and_loaded_again(notebook, capsys):
    open_folder()
    open_folder()  # a second time is no mistake
    notebook.run(RIGHT_SPLIT)
    assert capsys.readouterr().out == "Kept in my_transformer/ch05.split_heads.py.\n"
    assert files() == ["ch05.split_heads.py"]
    text = Path("my_transformer/ch05.split_heads.py").read_text(encoding="utf-8")
    assert text.startswith("# Exercise ch05.split_heads: my_split, kept because it passed.\n")
    assert text.endswith("    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)\n")
    assert "check(" not in text
    mine = load_parts()
    assert mine.summary == "1 of 14 parts is yours"
    assert "splitting heads         ch05.split_heads     yours" in repr(mine)


def test_a_verdict_looks_the_same_kept_or_not(notebook):
    notebook.run(RIGHT_SPLIT)
    before = repr(notebook.scope["verdict"])
    open_folder()
    notebook.run(RIGHT_SPLIT)
    assert repr(notebook.scope["verdict"]) == before


def test_what_fails_or_is_no_part_is_not_kept(notebook, capsys):
    open_folder()
    notebook.run(SPLIT.format(body="x.reshape(x.shape[0], num_heads, x.shape[1], -1)"))
    notebook.run(SPLIT.format(body="..."))
    notebook.run('def gap(weight, num_keys):\n    return (weight * (num_keys - 1) / (1 - weight)).log()\n'
                 'verdict = check("ch03.score_gap", gap)\n')  # fmt: skip
    assert notebook.scope["verdict"].passed
    assert files() == []
    assert capsys.readouterr().out == ""


def test_helpers_constants_and_imports_go_along(notebook):
    open_folder()
    notebook.run(
        "import numpy as np\nBIG = -math.inf\nAXES = (-1, [2, {'a': 1.5}])\nscores = torch.ones(3)\n"
    )
    notebook.run(
        'def at_end(x):\n    """Over the last axis."""\n    return x.amax(AXES[0], keepdim=True)\n'
    )
    notebook.run("def shifted(x):\n    return (x - at_end(x)) * float(one())\n")
    notebook.run("""
from torch import Tensor
from math import sqrt as root
from tested_transformer import masked_softmax as package_softmax
from functools import lru_cache

class Filled:
    def __init__(self, allowed):
        self.allowed = allowed

    def __call__(self, scores):
        return scores.masked_fill(~self.allowed, BIG)

@lru_cache
def one():
    return np.float64(1.0)

def mine(scores: Tensor, allowed, *, unused=root) -> Tensor:
    if allowed is None:
        allowed = torch.ones_like(scores, dtype=torch.bool)
    if not scores.shape[-1]:
        return package_softmax(scores, allowed)
    empty = ~allowed.any(-1, keepdim=True)
    scores = Filled(allowed | empty)(scores)
    e = shifted(scores).exp() * float(one())
    return (e / e.sum(-1, keepdim=True)).masked_fill(empty, 0.0)

helper = mine  # another name for it
verdict = check("ch04.masked_softmax", mine)
""")
    assert notebook.scope["verdict"].passed, notebook.scope["verdict"]
    text = Path("my_transformer/ch04.masked_softmax.py").read_text(encoding="utf-8")
    lines = text.splitlines()
    assert lines[3:10] == [
        "from functools import lru_cache",
        "from math import sqrt as root",
        "from tested_transformer.functional.masks import masked_softmax as package_softmax",
        "from torch import Tensor",
        "import numpy as np",
        "import torch",
        "",
    ]
    assert 'BIG = float("-inf")' in lines
    assert "AXES = (-1, [2, {'a': 1.5}])" in lines
    assert text.count("def at_end") == text.count("def shifted") == text.count("class Filled") == 1
    assert "@lru_cache\ndef one():" in text
    assert text.index("def at_end") < text.index("def shifted") < text.index("def mine")
    assert "scores = torch" not in text  # a local name of the function, not the notebook's tensor
    assert "helper" not in text
    assert list(load_parts().own) == ["ch04.masked_softmax"]


def test_a_helper_under_another_name_and_one_that_calls_itself(notebook):
    open_folder()
    notebook.run("def inner(x, n):\n    return x if n == 0 else inner(x, n - 1)\nalias = inner\n")
    notebook.run(RIGHT_SPLIT.replace("return x.", "return alias(x, 2)."))
    text = Path("my_transformer/ch05.split_heads.py").read_text(encoding="utf-8")
    assert "\nalias = inner\n" in text
    assert list(load_parts().own) == ["ch05.split_heads"]


def test_late_annotations_stay_late(notebook):
    open_folder()
    notebook.run("from __future__ import annotations\n" + RIGHT_SPLIT.replace("x,", "x: Nothing,"))
    text = Path("my_transformer/ch05.split_heads.py").read_text(encoding="utf-8")
    assert "from __future__ import annotations\n" in text.split("def")[0]


REFUSED = {
    "a lambda": ("mine = lambda x, n: x.unflatten(-1, (n, -1)).transpose(1, 2)", "a lambda"),
    "a tensor": (
        "zero = torch.zeros(1, dtype=torch.float64)\n"
        "def mine(x, n):\n    return x.unflatten(-1, (n, -1)).transpose(1, 2) + zero.to(x.dtype)",
        "it uses `zero`, a Tensor of the notebook",
    ),
    "a closure": (
        "def make(axis):\n    def mine(x, n):\n"
        "        return x.unflatten(-1, (n, -1)).transpose(axis, 2)\n    return mine\nmine = make(1)",
        "mine uses `axis` of the function in which it was defined",
    ),
    "a partial": (
        "import functools\ndef f(x, n, axis):\n    return x.unflatten(-1, (n, -1)).transpose(axis, 2)\n"
        "mine = functools.partial(f, axis=1)",
        "partial is no function written with def",
    ),
    "an object": (
        "class Splitter:\n    def __call__(self, x, n):\n"
        "        return x.unflatten(-1, (n, -1)).transpose(1, 2)\nmine = Splitter()",
        "Splitter is no function written with def",
    ),
    "the package's": (
        "from tested_transformer import split_heads as mine", "comes from tested_transformer",
    ),
    "a lambda of the notebook": (
        "turn = lambda x: x.transpose(1, 2)\n"
        "def mine(x, n):\n    return turn(x.unflatten(-1, (n, -1)))",
        "it uses `turn`, a lambda; write it with def",
    ),
    "two of a name": (
        "def f(x):\n    return x\ng = f\ndef f(x):\n    return x\n"
        "def mine(x, n):\n    return f(g(x)).unflatten(-1, (n, -1)).transpose(1, 2)",
        "two different things are called `f`",
    ),
    "a missing name": (
        "def mine(x, n):\n    if n < 0: return missing\n"
        "    return x.unflatten(-1, (n, -1)).transpose(1, 2)",
        "mine uses `missing`, which is not defined",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("source", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_can_not_be_kept_is_said_and_no_error(notebook, capsys, source, reason):
    open_folder()
    notebook.run(source + '\nverdict = check("ch05.split_heads", mine)\n')
    assert notebook.scope["verdict"].passed
    out = capsys.readouterr().out
    assert out.startswith("Not kept: ")
    assert reason in out
    assert "kept before" not in out
    assert files() == []


def test_what_was_kept_before_stays_and_is_named(notebook, capsys):
    open_folder()
    notebook.run(RIGHT_SPLIT)
    before = Path("my_transformer/ch05.split_heads.py").read_bytes()
    notebook.run("turn = lambda x: x.transpose(1, 2)\n")
    notebook.run(SPLIT.format(body="turn(x.unflatten(-1, (num_heads, -1)))"))
    assert notebook.scope["verdict"].passed
    said = capsys.readouterr().out.splitlines()[1]
    assert said == (
        "Not kept: it uses `turn`, a lambda; write it with def. The version kept before stays."
    )
    assert Path("my_transformer/ch05.split_heads.py").read_bytes() == before


@pytest.mark.parametrize("name", ["split_solution", "solved_split", "SplitSolution"])
def test_a_solution_of_the_book_is_not_kept_and_nothing_is_said(notebook, capsys, name):
    open_folder()
    notebook.run(RIGHT_SPLIT.replace("my_split", name))
    assert notebook.scope["verdict"].passed
    assert capsys.readouterr().out == ""
    assert files() == []


@pytest.mark.parametrize("name", ["my_solution", "MySolution", "solution", "resolved_split"])
def test_a_solution_of_the_readers_own_is_kept(notebook, name):
    open_folder()
    notebook.run(RIGHT_SPLIT.replace("my_split", name))
    assert files() == ["ch05.split_heads.py"]


def test_a_function_without_source_is_said(capsys):
    """As typed at a plain prompt."""
    open_folder()
    scope = {"__name__": "__main__", "torch": torch}
    text = "def mine(x, n):\n    return x.unflatten(-1, (n, -1)).transpose(1, 2)"
    exec(compile(text, "<stdin>", "exec"), scope)
    assert check("ch05.split_heads", scope["mine"])
    assert "the source of mine is not to be found" in capsys.readouterr().out
    assert files() == []


@pytest.mark.parametrize("odd", [None, 3, torch.softmax, "text", torch.nn.Linear(2, 2)])
def test_source_of_an_odd_thing(odd):
    with pytest.raises(NotKept):
        source_of("ch03.softmax", odd)


def test_kept_again_the_file_is_replaced_and_the_one_before_is_old(notebook):
    open_folder()
    notebook.run(RIGHT_SPLIT)
    first = Path("my_transformer/ch05.split_heads.py").read_bytes()
    notebook.run(RIGHT_SPLIT)  # the same: nothing is old
    assert files() == ["ch05.split_heads.py"]
    notebook.run(SPLIT.format(body="x.view(*x.shape[:2], num_heads, -1).transpose(1, 2)"))
    assert files() == ["ch05.split_heads.py", "ch05.split_heads.py.old"]
    assert Path("my_transformer/ch05.split_heads.py.old").read_bytes() == first
    assert load_parts().ignored == ()


def test_a_file_is_written_whole_or_not_at_all(notebook, monkeypatch, capsys):
    open_folder()
    notebook.run(RIGHT_SPLIT)
    first = Path("my_transformer/ch05.split_heads.py").read_bytes()

    def full(*arguments):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    notebook.run(SPLIT.format(body="x.view(*x.shape[:2], num_heads, -1).transpose(1, 2)"))
    assert notebook.scope["verdict"].passed
    assert "Not kept: OSError: no space left" in capsys.readouterr().out
    assert files() == ["ch05.split_heads.py"]
    assert Path("my_transformer/ch05.split_heads.py").read_bytes() == first


@pytest.mark.slow
def test_in_a_real_notebook(tmp_path):
    """IPython's own cells, by a kernel."""
    cells = [
        "import torch\nfrom tested_transformer import check, load_parts, open_folder\nopen_folder();",
        "def helper(x, n):\n    return x.unflatten(-1, (n, -1))",
        "%time x = 1\ndef mine(x, n):\n    return helper(x, n).transpose(1, 2)\n\n\n"
        'check("ch05.split_heads", mine)',
        "class Turned:\n    def __call__(self, x):\n        return x.transpose(1, 2)",
        'def other(x, n):\n    return Turned()(helper(x, n))\n\n\ncheck("ch05.split_heads", other)',
        "print(load_parts().summary)",
        '# not yet\ndef typo(x, n):\n    return x.lgo(n)\n\n\ncheck("ch05.split_heads", typo)',
        'def silent(x, n):\n    x = helper(x, n)\n\n\ncheck("ch05.split_heads", silent)',
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    path = tmp_path / "book.ipynb"
    nbformat.write(book, path)
    script = (
        "import nbformat, sys; from nbclient import NotebookClient; "
        "b = nbformat.read(sys.argv[1], 4); "
        "NotebookClient(b, resources={'metadata': {'path': sys.argv[2]}}).execute(); "
        "nbformat.write(b, sys.argv[1])"
    )
    subprocess.run(
        [sys.executable, "-c", script, str(path), str(tmp_path)], check=True, timeout=300
    )
    outputs = [
        "".join(o.get("text", "") + o.get("data", {}).get("text/plain", "") for o in cell.outputs)
        for cell in nbformat.read(path, 4).cells
    ]
    for cell in (2, 4):
        assert "Kept in my_transformer/ch05.split_heads.py.\n" in outputs[cell]
        assert "✓ ch05.split_heads: right." in outputs[cell]
    assert outputs[5] == "1 of 14 parts is yours\n"
    assert "in your line 3: `return x.lgo(n)`." in outputs[6]
    assert "silent returned None: is a `return` missing?" in outputs[7]
    text = (tmp_path / "my_transformer" / "ch05.split_heads.py").read_text(encoding="utf-8")
    assert "class Turned" in text
    assert "def helper" in text


# --- Files that are not what they were ------------------------------------------------------------


@pytest.fixture
def folder():
    """Two kept parts."""
    place = Path("some folder")
    place.mkdir()
    write = {
        "ch05.split_heads": "def split(x, num_heads):\n"
        "    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)\n",
        "ch04.causal_mask": "import torch\n\n\ndef causal(num_queries, num_keys):\n"
        "    every = torch.ones(num_queries, num_keys, dtype=torch.bool)\n"
        "    return every.tril(num_keys - num_queries)\n",
    }
    for name, text in write.items():
        (place / f"{name}.py").write_text(text, encoding="utf-8")
    return place


def test_both_are_found(folder):
    mine = load_parts(folder)
    assert set(mine.own) == {"ch05.split_heads", "ch04.causal_mask"}
    assert mine.lost == {}
    assert load_parts(str(folder)).own.keys() == mine.own.keys()


def test_an_edited_part_that_no_longer_passes_is_named_and_replaced(folder):
    path = folder / "ch05.split_heads.py"
    path.write_text(path.read_text().replace(".transpose(1, 2)", ""), encoding="utf-8")
    mine = load_parts(folder)
    assert mine.summary == "1 of 14 parts is yours"
    assert mine.lost["ch05.split_heads"].startswith("no longer passes: the right shape and dtype. ")
    assert "\nch05.split_heads: no longer passes: " in repr(mine)
    plain, own = pair(mine)
    torch.testing.assert_close(plain(*sentences()), own(*sentences()))
    assert list(own.parts.own) == ["ch04.causal_mask"]


def test_an_edited_part_that_raises_says_in_which_line(folder):
    path = folder / "ch05.split_heads.py"
    for name in ("unflat", "unfold_it"):  # edited again, it is the new line
        path.write_text(f"def split(x, num_heads):\n    return x.{name}()\n", encoding="utf-8")
        assert load_parts(folder).lost["ch05.split_heads"] == (
            "no longer passes: it runs. The call raised AttributeError, in your line 2: "
            f"`return x.{name}()`."
        )


BROKEN = {
    "cut short": (b"def split(x, num_heads):\n    return x.unflatten(-1, (num_",
                  "(ch05.split_heads.py, line 2)"),
    "no text": (b"\xff\xfe\x00def split", "UnicodeDecodeError"),
    "zero bytes": (b"\x00\x00\x00\x00", ""),
    "raises": (b"def split(x, n):\n    ...\n\nraise RuntimeError('edited half way')\n", "edited half way"),
    "exits": (b"def split(x, n):\n    ...\n\nraise SystemExit(3)\n", "SystemExit"),
    "an import that is gone": (b"import no_such_module\n\ndef split(x, n):\n    ...\n", "no_such_module"),
    "unwritten": (b"def split(x, n):\n    ...\n", "not written"),
    "empty": (b"", "holds no function"),
    "only a number": (b"split = 3\n", "holds no function"),
    "a function undone": (b"def split(x, n):\n    ...\n\n\nsplit = 3\n", "fails"),
    "deleted again": (b"def split(x, n):\n    ...\n\n\ndel split\n", "KeyError"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_damaged_file_does_not_break_the_others(folder, content, reason):
    (folder / "ch05.split_heads.py").write_bytes(content)
    mine = load_parts(folder)
    assert list(mine.own) == ["ch04.causal_mask"]
    assert reason in mine.lost["ch05.split_heads"]
    assert "\n" not in mine.lost["ch05.split_heads"]


def test_files_of_other_names_are_named_and_not_run(folder):
    for name in ("notes.py", "ch05.nothing.py", "ch03.score_gap.py", "ch05.split_heads.txt"):
        (folder / name).write_text("raise SystemExit('this ran')\n")
    (folder / "ch01.attention.py").mkdir()
    mine = load_parts(folder)
    assert len(mine.own) == 2
    assert mine.ignored == (
        "ch01.attention.py", "ch03.score_gap.py", "ch05.nothing.py", "ch05.split_heads.txt", "notes.py",
    )  # fmt: skip
    assert "notes.py: the name of no part, so it was not run" in repr(mine)


def test_each_file_has_a_namespace_of_its_own(folder):
    (folder / "ch06.places.py").write_text(
        "def places(real):\n    return (real.cumsum(1) - 1).clamp(min=0) * real\n"
    )
    path = folder / "ch05.split_heads.py"
    path.write_text("secret = 3\n" + path.read_text())
    path = folder / "ch04.causal_mask.py"
    path.write_text(path.read_text() + "    return secret\n")
    mine = load_parts(folder)
    assert len(mine.own) == 3
    scopes = [function.__globals__ for function in mine.own.values()]
    assert sum("secret" in scope for scope in scopes) == 1


def test_loading_leaves_randomness_alone(folder):
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    load_parts(folder)
    assert torch.equal(torch.rand(3), expected)


# --- The book -------------------------------------------------------------------------------------


def test_the_books_solutions_are_not_taken_for_the_readers():
    """Every function and class of a solution cell is named so; nothing that an exercise cell checks is."""
    solutions = exercises = 0
    for path in chapter_paths():
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type != "code" or 'check("ch' not in cell.source:
                continue
            is_solution = "solution" in cell.metadata.get("tags", [])
            for name in re.findall(r"^(?:def|class) (\w+)", cell.source, flags=re.MULTILINE):
                assert is_books(name) == is_solution, f"{path.name}: {name}"
                solutions, exercises = solutions + is_solution, exercises + (not is_solution)
    assert solutions >= len(PART_EXERCISES)
    assert exercises >= len(PART_EXERCISES)


def test_importing_and_loading_write_nothing(tmp_path):
    script = "from tested_transformer import load_parts; print(load_parts().summary)"
    done = subprocess.run(
        [sys.executable, "-B", "-c", script], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "code")},
    )  # fmt: skip
    assert done.stdout == "0 of 14 parts are yours\n", done.stderr
    assert list(tmp_path.iterdir()) == []


# --- Malformed calls ------------------------------------------------------------------------------


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: load_parts(3), TypeError, "folder: expected a string or a Path or None, got int"),
        (lambda: load_parts("nowhere"), ValueError, "folder: expected a folder that is there"),
        (lambda: Parts.of([1]), TypeError, "functions: expected a mapping, got list"),
        (lambda: Parts.of({"ch05.split": len}), ValueError, "ch05.split_heads"),
        (
            lambda: Parts.of({"ch05.split_heads": 3}),
            TypeError,
            "functions['ch05.split_heads']: expected a function",
        ),
        (
            lambda: OwnTransformer(config(), parts={}),
            TypeError,
            "parts: expected what load_parts()",
        ),
        (
            lambda: number_trainer(build=partial(OwnTransformer, parts=1)),
            TypeError,
            "parts: expected what load_parts()",
        ),
    ],
)
def test_malformed_calls(call, kind, words):
    with pytest.raises(kind) as error:
        call()
    assert words in str(error.value)


@pytest.mark.plain_types
def test_open_folder_without_a_name(monkeypatch):
    monkeypatch.setenv("TESTED_TRANSFORMER_PARTS", "")
    with pytest.raises(ValueError, match="TESTED_TRANSFORMER_PARTS"):
        open_folder()
