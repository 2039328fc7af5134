"""`check` in a notebook and the grader say the same of what is unusual: how an answer is made and handed over."""

from __future__ import annotations

import ast
import inspect
from dataclasses import replace

import pytest
import torch
from jails import SMALL, needs_jail

import answers
from tested_transformer.homework.assignments import part
from tested_transformer.homework.jail.remote import RemoteFunction
from tested_transformer.homework.jail.session import JailSession
from tested_transformer.homework.submissions.slicing import needed_for
from tested_transformer.specs.judge import judge

pytestmark = pytest.mark.plain_types

RIGHT = """
import collections, enum, fractions, functools, decimal
import numpy as np
import torch

def count_pairs(num_queries, num_keys, window):
    counts = [i + num_keys - num_queries + 1 for i in range(num_queries)]
    return sum(min(max(count, 0), window) for count in counts)

def chunk_mask(pads, num_cached, num_new):
    key = torch.arange(num_cached + num_new)
    place = key[num_cached:, None]
    words = (key <= place) & (key >= pads[:, None, None])
    return (words | (key == place))[:, None]

def mean_of_words(x, real):
    words = x.masked_fill(~real[:, :, None], 0.0)
    return (words / real.sum(1).clamp(min=1)[:, None, None]).sum(1)

class Int(int): pass
class Float(float): pass
class Array(np.ndarray): pass
class Own(torch.Tensor): pass
Pair = collections.namedtuple("Pair", "first")

def holds(a):
    larger = torch.zeros(*a.shape[:-1], 2 * a.shape[-1], dtype=a.dtype)
    larger[..., ::2] = a
    return larger[..., ::2]

def backwards(a):
    return np.ascontiguousarray(a.detach().numpy()[..., ::-1])[..., ::-1]
"""
# What is done to a right answer `a` and leaves it right, by the function that gives `a`.
STAYS_RIGHT = {
    "count_pairs": """
a | Int(a) | np.int64(a) | np.int32(a) | np.array(a) | np.array(a, dtype=">i8") | torch.tensor(a)
torch.tensor(a).as_subclass(Own) | enum.IntEnum("E", {"A": a}).A | torch.tensor(a).expand(1, 1)[0, 0]
""",
    "chunk_mask": """
a.clone() | holds(a) | a.mT.contiguous().mT | a.flip(-1).flip(-1) | a[..., None].expand(*a.shape, 3)[..., 1]
a.as_subclass(Own) | a.numpy() | backwards(a) | np.asfortranarray(a.numpy()) | a.numpy().view(Array)
np.ma.masked_array(a.numpy()) | torch.nn.Parameter(a, requires_grad=False)
""",
    "mean_of_words": """
a | holds(a) | a.mT.contiguous().mT | a.as_subclass(Own) | a * 1.0 | a.clone() | a.neg().neg_() | torch.conj(a)
""",
    # of other assignments: the functions are in tests/answers
    "look_up_by_logarithms": "holds(a)",
    "look_up_by_counting": "np.asfortranarray(a.numpy())",
    "look_up_in_numpy": "a.transpose(0, *range(1, a.ndim)[::-1]).copy().transpose(0, *range(1, a.ndim)[::-1])",
    "unshuffle_by_writing": "a.mT.contiguous().mT",
    "unshuffle_by_scatter": "a.contiguous().view(-1).view(a.shape)",
    "one_way_by_norms": "a.tolist()",
    "who_by_normal_equations": "a.as_subclass(Own) | np.asfortranarray(a.numpy())",
    "who_in_numpy": "a.tolist()",
    "windowed_expanded": "a | a.detach().clone().requires_grad_()",
    "level_by_factors": "a.mT.contiguous().mT",
    "scale_by_logarithms": "np.float64(a) | Float(a)",
    "scale_as_a_tensor": "a[..., None].expand(*a.shape, 3)[..., 1]",
    "entropy_from_scores": "backwards(a)",
    "mean_step_by_step": "a.flip(-1).flip(-1)",
    "buffer_divided_last": "a.mT.contiguous().mT",
    "repack_by_chunks": "torch.nn.Parameter(a)",
    "repack_in_numpy": "torch.tensor(a).as_subclass(Own)",
    "group_by_einsum": "a.mT.contiguous().mT",
    "group_in_numpy": "np.asfortranarray(a)",
    "bias_summed_first": "a.double()",
    "next_written_into_copies": "holds(a)",
    "similarity_by_norms": 'a.detach().numpy().astype(">f4")',
    "stretch_by_lerp": "a.as_subclass(Own)",
    "table_by_autograd": "np.ma.masked_array(a.numpy())",
    "read_in_a_loop": "a.numpy().view(Array)",
    "shares_by_logarithms": "backwards(a)",
    "merge_by_where": "list(a)",
    "fold_by_sorting": "a.detach().numpy().astype(np.longdouble)",
    "lightest_by_matrices": "list(a)",
    "reads_in_lists": "a.numpy().astype(np.int8) | holds(a)",
    "gradient_with_one_hot": "a.clone()",
    "fewest_in_numpy": "Int(a)",
    "min_p_by_ratios": "a[..., None].expand(*a.shape, 3)[..., 1]",
    "slots_in_torch": "a.tolist() | backwards(a)",
    "guesses_by_products": "a.neg().neg_()",
    "likeliest_from_the_end": "a.to(torch.uint8)",
}
# The same with what most often makes it wrong. Whether it does is the judge's to say.
OTHERS = {
    "count_pairs": """
Float(a) | float(a) | bool(a) | str(a) | [a] | (a,) | Pair(a) | {"a": a} | a + 0j | np.uint64(a) | np.float64(a)
np.longdouble(a) | np.array([a]) | np.array(a, dtype=object) | torch.tensor([a]) | torch.tensor(float(a))
fractions.Fraction(a) | decimal.Decimal(a) | 2**100 | -(2**63) | (a for a in [a])
""",
    "chunk_mask": """
a.tolist() | a.int() | a.to(torch.uint8) | a.float() | a.to_sparse() | a.squeeze(1) | a.unsqueeze(0) | [a] | (a,)
list(a) | a.numpy().astype(np.int8) | a.numpy().tolist()
""",
    "mean_of_words": """
a.detach() | a.detach().numpy() | a.double() | backwards(a) | torch.nn.Parameter(a) | a.half() | a.numpy()
a.to(torch.complex64) | a.detach().numpy().astype(np.float64) | a.detach().numpy().astype(np.longdouble)
a.detach().numpy().astype(">f4") | a.detach().clone().requires_grad_() | a.detach().numpy().astype(np.float16)
""",
}
# Right, in a notebook that begins with torch.set_default_dtype(torch.float64).
IN_DOUBLE = [
    "look_up_by_counting", "one_way_rounded", "scale_as_a_tensor", "bias_head_by_head", "shares_step_by_step",
    "fold_unit_by_unit", "guesses_with_a_row_of_zeros",
]  # fmt: skip
HW03 = ("count_pairs", "chunk_mask", "mean_of_words")
STORED = {answer.candidate.__name__: answer for answer in answers.RIGHT
          if answer.spec.startswith("hw") and answer.name != "the assignment's"}  # fmt: skip


def task_of(function):
    return f"hw03.{function}" if function in HW03 else STORED[function].spec


def forms(tables):
    """A name for every form, with the function that it takes its answer from."""
    return {
        f"{function}_form_{number}": (function, form.strip())
        for function, table in tables.items()
        for number, form in enumerate(table.strip().replace("\n", " | ").split(" | "))
    }


def as_typed(function):
    """A stored answer as a notebook holds it: with all that it needs, and without its label."""
    tree = ast.parse(inspect.getsource(inspect.getmodule(STORED[function].candidate)))
    tree.body = [line for line in tree.body if not getattr(line, "level", 0)]
    for line in tree.body:
        line.decorator_list = []
    return needed_for(ast.unparse(tree), function)


UNUSUAL = forms(STAYS_RIGHT)
ANSWERS = {**UNUSUAL, **{f"other_{name}": form for name, form in forms(OTHERS).items()}}
CODE = RIGHT + "".join(as_typed(function) for function in STAYS_RIGHT if function not in HW03)
CODE += "".join(
    f"\ndef {name}(*given):\n    a = {function}(*given)\n    return {form}\n"
    for name, (function, form) in ANSWERS.items()
)
SET = "import torch\ntorch.set_default_dtype(torch.float64)\n"
DOUBLE = SET + "".join(map(as_typed, IN_DOUBLE)) + "def dtype(): return str(torch.ones(1).dtype)\n"


@pytest.fixture(scope="module")
def notebook():
    names = {}
    exec(compile(CODE, "notebook", "exec"), names)
    return names


@pytest.fixture(scope="module")
def student():
    # One session for all answers, where a student's has one task: it may take longer.
    limits = replace(SMALL, wall_seconds=300.0, cpu_seconds=120)
    with JailSession(CODE, limits=limits) as session:
        yield session


def test_there_are_sixty():
    assert len(UNUSUAL) + len(IN_DOUBLE) >= 60
    assert len({task_of(function) for function, _ in UNUSUAL.values()}) >= 30
    assert len({task_of(function)[:4] for function, _ in UNUSUAL.values()}) == 8


def agreed(name, task, function, session):
    """The verdict that `check` gives in a notebook and the grader through a jail."""
    spec = part(task).spec
    here = judge(spec, function, seed=1)
    there = judge(spec, RemoteFunction(session, name), seed=1)
    assert (here.passed, here.unwritten) == (there.passed, there.unwritten), (here, there)
    assert here.failed == there.failed, (here, there)
    return here


@needs_jail
@pytest.mark.parametrize("name", ANSWERS)
def test_check_and_the_grader_agree(notebook, student, name):
    verdict = agreed(name, task_of(ANSWERS[name][0]), notebook[name], student)
    assert verdict.passed or name not in UNUSUAL, verdict


@pytest.fixture
def default_dtype():
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


@needs_jail
def test_a_default_dtype_that_a_notebook_sets_holds_for_check_and_the_grader(default_dtype):
    code = "".join(needed_for(DOUBLE, name) for name in ("dtype", *IN_DOUBLE))
    here = {}
    with JailSession(code, limits=SMALL) as session:
        assert [session.call("dtype", [], {})[0] for _ in range(2)] == ["torch.float64"] * 2
        exec(compile(DOUBLE, "notebook", "exec"), here)
        for name in IN_DOUBLE:
            assert agreed(name, task_of(name), here[name], session).passed, name
