"""`check` in a notebook and the grader say the same of what is unusual: how an answer is made and handed over."""

from __future__ import annotations

import itertools

import pytest
from jails import SMALL, needs_jail

from tested_transformer.homework.assignments import part
from tested_transformer.homework.jail.remote import RemoteFunction
from tested_transformer.homework.jail.session import JailSession
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
# What is done to a right answer `a`: whether it stays right is the judge's to say.
NUMBERS = """
Int(a) | Float(a) | float(a) | bool(a) | str(a) | [a] | (a,) | Pair(a) | {"a": a} | a + 0j
np.int64(a) | np.uint64(a) | np.int32(a) | np.float64(a) | np.longdouble(a) | np.array(a) | np.array([a])
np.array(a, dtype=object) | np.array(a, dtype=">i8") | torch.tensor(a) | torch.tensor([a])
torch.tensor(float(a)) | torch.tensor(a).as_subclass(Own) | fractions.Fraction(a) | decimal.Decimal(a)
enum.IntEnum("E", {"A": a}).A | 2**100 | -(2**63) | torch.tensor(a).expand(1, 1)[0, 0] | (a for a in [a])
"""
TENSORS = """
a.clone() | holds(a) | a.mT.contiguous().mT | a.flip(-1).flip(-1) | a[..., None].expand(*a.shape, 3)[..., 1]
a.as_subclass(Own) | a.numpy() | backwards(a) | np.asfortranarray(a.numpy()) | a.numpy().view(Array)
np.ma.masked_array(a.numpy()) | a.tolist() | a.int() | a.to(torch.uint8) | a.float() | a.to_sparse()
a.squeeze(1) | a.unsqueeze(0) | [a] | (a,) | list(a) | a.numpy().astype(np.int8) | a.numpy().tolist()
torch.nn.Parameter(a, requires_grad=False)
"""
FLOATS = """
a | holds(a) | a.detach() | a.mT.contiguous().mT | a.as_subclass(Own) | a.detach().numpy() | a.double()
backwards(a) | torch.nn.Parameter(a) | a.half() | a * 1.0 | a.numpy() | a.to(torch.complex64) | a.clone()
a.detach().numpy().astype(np.float64) | a.detach().numpy().astype(np.longdouble)
a.detach().numpy().astype(">f4") | a.detach().clone().requires_grad_() | a.neg().neg_() | torch.conj(a)
a.detach().numpy().astype(np.float16)
"""


def forms(text):
    return [form.strip() for line in text.strip().splitlines() for form in line.split(" | ")]


ANSWERS = {
    f"{function}{number}": (f"hw03.{function}", form)
    for function, text in {
        "count_pairs": NUMBERS, "chunk_mask": TENSORS, "mean_of_words": FLOATS,
    }.items() for number, form in enumerate(forms(text))
}  # fmt: skip
CODE = RIGHT + "".join(
    f"\ndef {name}(*given):\n    a = {task.partition('.')[2]}(*given)\n    return {form}\n"
    for name, (task, form) in ANSWERS.items()
)


@pytest.fixture(scope="module")
def notebook():
    names = {}
    exec(compile(CODE, "notebook", "exec"), names)
    return names


@pytest.fixture(scope="module")
def student():
    with JailSession(CODE, limits=SMALL) as session:
        yield session


def test_there_are_sixty():
    assert len(ANSWERS) >= 60


@needs_jail
@pytest.mark.parametrize("name", ANSWERS)
def test_check_and_the_grader_agree(notebook, student, name):
    spec = part(ANSWERS[name][0]).spec
    here = judge(spec, notebook[name], seed=1)
    there = judge(spec, RemoteFunction(student, name), seed=1)
    assert (here.passed, here.unwritten) == (there.passed, there.unwritten), (here, there)
    assert here.failed == there.failed, (here, there)


DTYPE = (
    "import torch\ntorch.set_default_dtype(torch.float64)\ndef f(): return str(torch.ones(1).dtype)"
)


@needs_jail
def test_a_default_dtype_that_a_notebook_sets_holds_for_the_grader():
    from tested_transformer.homework.submissions.slicing import needed_for

    with JailSession(needed_for(DTYPE, "f"), limits=SMALL) as session:
        answers = [session.call("f", [], {})[0] for _ in range(2)]
    assert answers == list(itertools.repeat("torch.float64", 2))
