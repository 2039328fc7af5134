"""Sessions: the judge sees a function in a jail as it is, and what no function would do ends it."""

import math
import os

import numpy as np
import pytest
import torch
from jails import SMALL, needs_jail, outcome

from tested_transformer.homework.assignments import part
from tested_transformer.homework.jail import session as ours
from tested_transformer.homework.jail.remote import RemoteFunction
from tested_transformer.homework.jail.session import Ended, JailSession, StudentError
from tested_transformer.specs.compare import Problem
from tested_transformer.specs.judge import judge
from tested_transformer.specs.spec import Case, Check, Run, Spec
from tested_transformer.specs.surroundings import SEED

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="on Windows marking needs WSL2"),
    pytest.mark.usefixtures("nothing_is_left"),
]


# --------------------------------------------------------------------- a function as the judge sees it

FUNCTIONS = """
import torch
import numpy

def add_noise(x, eps=0.0):
    print("noise")
    return x / 3 + eps + torch.rand(x.shape, dtype=x.dtype)

def weigh(x, w, unused, *, b=None):
    y = torch.tanh(x @ w).cumsum(0)
    return y if b is None else y * b.exp()

def twice(x, y): return (x * y).sin()

def detached(x): return x.detach() * 2

def settle(x):
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(3)
    torch.set_grad_enabled(False)
    return x + torch.zeros(1)

def default_dtype(x): return torch.zeros(1) + torch.is_grad_enabled()

def fill(x, y=None):
    x[0] = 7.0
    if y is not None: y.resize_(1)
    return x.sum()

def to_whole(x):
    x.data = x.data.long() + 1
    return x

def fill_leaf(x):
    x.mul_(2)
    return x.sum()

def echo(x): return x

def both(x, named=None): return [x, (named, {"x": x})]

class Odd(Exception): pass

class Silent(Exception):
    def __str__(self): raise SystemExit

class Long(ValueError):
    def __str__(self): return "line\\n" * 10**5

class Nameless(type):
    __name__ = property(lambda self: 1 / 0)

def stop(which):
    kinds = {"exit": SystemExit(3), "odd": Odd("text"), "silent": Silent(), "long": Long(),
             "interrupt": KeyboardInterrupt(), "group": ExceptionGroup("g", [ValueError("v")]),
             "unicode": UnicodeDecodeError("utf8", b"", 0, 1, "why"), "generator": GeneratorExit()}
    if which in kinds: raise kinds[which]
    raise getattr(__builtins__, which, None) or __builtins__[which]("the text")

def deep(_): return deep(_)

class Everything:
    def __eq__(self, other): return True
    def __bool__(self): return True
    def __getattr__(self, name): return self
    def __call__(self, *a, **k): return self
    def __len__(self): return 3
    def __array__(self, *a, **k): return numpy.zeros(3)

class Liar(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *a, **k): raise SystemExit
    def __eq__(self, other): return True

class Stubborn(torch.Tensor):
    def detach(self): raise SystemExit

def give(which):
    x = torch.arange(3.0)
    knot = []
    knot.append(knot)
    return {
        "nothing": lambda: None, "dots": lambda: ..., "number": lambda: 1.5, "text": lambda: "ok",
        "array": lambda: numpy.arange(3), "NumPy's number": lambda: numpy.float32(2),
        "0-d array": lambda: numpy.array(True), "nested": lambda: [(x, 1), numpy.zeros(1)],
        "dict": lambda: {"a": x}, "strided": lambda: x[::2], "leaf": lambda: x.requires_grad_(),
        "parameter": lambda: torch.nn.Parameter(x), "subclass": lambda: x.as_subclass(Liar),
        "everything": lambda: Everything(), "class": lambda: Everything, "set": lambda: {1},
        "meta": lambda: x.to("meta"), "sparse": lambda: x.to_sparse(), "knot": lambda: knot,
        "stubborn": lambda: x.as_subclass(Stubborn), "huge number": lambda: 10**5000,
        "keys that are numbers": lambda: {1: 2}, "function": lambda: give,
        "uint16": lambda: x.to(torch.uint16),
        "objects": lambda: numpy.array([{}, None]), "strings": lambda: numpy.array(["a"]),
        "10 GB": lambda: x.new_zeros(1).expand(10**9, 10), "long text": lambda: "x" * (1 << 21),
    }[which]()

def hunt(implementation, attack="call"):
    x = torch.ones(2, 2)
    if attack == "call": return implementation(x, scale=2.0)
    if attack == "look": return [n for n in dir(implementation) if not n.startswith("__")]
    if attack == "large": return implementation(torch.zeros(65))
    if attack == "many": return implementation(torch.zeros(64, 64, 17))
    if attack == "axes": return implementation(torch.zeros([1] * 7))
    if attack == "hidden": return implementation([{"a": (torch.zeros(65),)}])
    if attack == "number": return implementation(1 << 13)
    if attack == "text": return implementation("x")
    if attack == "unsendable": return implementation(hunt)
    if attack == "filled":
        implementation(x)
        return x
    try:
        implementation(x)
    except Exception as error:
        return [type(error).__name__, str(error)]
"""

in_jail = pytest.param("jail", marks=needs_jail)


@pytest.fixture(scope="module", params=[in_jail, "no jail"])
def student(request):
    bare = request.param == "no jail"
    with JailSession(FUNCTIONS, limits=SMALL, without_jail_for_my_own_code=bare) as session:
        yield session


def here(name):
    """The same function in this process."""
    names = {"__builtins__": __builtins__}
    exec(compile(FUNCTIONS, "submission.py", "exec"), names)
    return names[name]


def seeded(function, *arguments, **named):
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(SEED)
        return function(*arguments, **named)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str
)
def test_a_right_answer_comes_back_bit_for_bit(student, dtype):
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 3))).to(dtype)
    expected = seeded(here("add_noise"), x, eps=1e-3)
    for _ in range(2):  # the seed is set at every call
        answer = RemoteFunction(student, "add_noise")(x, eps=1e-3)
        assert answer.dtype == dtype
        assert torch.equal(answer, expected)


@pytest.mark.parametrize("x", [
    torch.arange(4), torch.tensor([True, False]), torch.zeros(0, 3), torch.tensor(math.nan),
    torch.tensor([1 + 2j]), None, 2.5, "text", (1, [2, (3,)]), {"a": [None, -math.inf]},
], ids=str)  # fmt: skip
def test_any_argument_arrives_and_comes_back(student, x):
    answer = RemoteFunction(student, "both")(x, named=x)
    assert repr(answer) == repr([x, (x, {"x": x})])


def test_a_change_of_an_argument_is_done_here_too(student):
    x, y = torch.zeros(2, 2), torch.zeros(3)
    RemoteFunction(student, "fill")(x, y=y)
    assert (x[0].tolist(), x[1].tolist(), y.shape) == ([7.0, 7.0], [0.0, 0.0], (1,))
    unchanged = torch.full((2,), 7.0)
    RemoteFunction(student, "fill")(unchanged)
    assert unchanged.tolist() == [7.0, 7.0]


def test_a_change_of_the_dtype_is_an_error(student):
    with pytest.raises(TypeError, match="argument 0: its dtype was changed to torch.int64"):
        RemoteFunction(student, "to_whole")(torch.zeros(2))


def test_the_judge_sees_that_an_argument_was_changed(student):
    check = Check("inputs", "Leave x alone.", lambda run, case: (
        Problem("x as it was", run.outcome(case).changed) if run.outcome(case).changed else None))  # fmt: skip
    spec = Spec("sum", "sum", ("x",), lambda x: x.sum(), lambda seed: [
        Case("one", {"x": np.arange(3.0)})], [check], usual=())  # fmt: skip
    verdicts = [judge(spec, f) for f in (RemoteFunction(student, "fill"), here("fill"))]
    assert repr(verdicts[0]) == repr(verdicts[1])
    assert (verdicts[0].failed, verdicts[0].problem.got) == ("inputs", "x")


# -------------------------------------------------------------------------------------- gradients


def gradients(function, *arguments, **named):
    """The gradients that backward leaves, given one that is not all ones."""
    arguments = [a.clone().requires_grad_(a.is_floating_point()) for a in arguments]
    named = {n: a.clone().requires_grad_() for n, a in named.items()}
    answer = function(*arguments, **named)
    answer.backward(torch.arange(1, 1 + answer.numel(), dtype=answer.dtype).reshape(answer.shape))
    return [a.grad for a in [*arguments, *named.values()]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_gradients_are_those_of_this_process(student, dtype):
    draw = torch.Generator().manual_seed(1)
    x, w, unused, b = (
        torch.randn(s, generator=draw).to(dtype) for s in [(2, 3), (3, 4), (5,), (4,)]
    )
    for given in [(x, w, unused), (x, w, torch.arange(2))]:
        expected = gradients(here("weigh"), *given, b=b)
        found = gradients(RemoteFunction(student, "weigh"), *given, b=b)
        assert found[2] is None
        for one, other in zip(found, expected, strict=True):
            assert one is other or (one.dtype == other.dtype and torch.equal(one, other))


def test_one_tensor_in_two_places_gets_both_gradients(student):
    found = []
    for function in (RemoteFunction(student, "twice"), here("twice")):
        x = torch.arange(3.0, requires_grad=True)
        function(x, x).sum().backward()
        found.append(x.grad)
    assert torch.equal(*found)


def test_the_judge_gets_the_same_gradients(student):
    case = Case("one", {"x": np.arange(6.0).reshape(2, 3), "w": np.ones((3, 4)), "unused": 1})
    spec = Spec("weigh", "", ("x", "w", "unused"), None, lambda seed: [case], [])
    found, expected = (
        Run(spec, f).gradients(case, ["x", "w"])
        for f in (RemoteFunction(student, "weigh"), here("weigh"))
    )
    assert all(np.array_equal(found[name], expected[name]) for name in ("x", "w"))


def test_what_has_no_gradients_says_what_it_says_here(student):
    for function in (RemoteFunction(student, "fill_leaf"), here("fill_leaf")):
        with pytest.raises(RuntimeError, match="leaf Variable"):
            gradients(function, torch.ones(2))
    assert RemoteFunction(student, "echo")(1) == 1  # and it goes on


@pytest.mark.parametrize("name", ["detached", "settle"])
def test_a_detached_answer_is_told_to_be_one_as_it_is_here(student, name):
    case = Case("one", {"x": np.ones(2)})
    spec = Spec("no gradient", "", ("x",), None, lambda seed: [case], [])
    for function in (RemoteFunction(student, name), here(name)):
        with pytest.raises(TypeError, match="gradients reach them, got one without a gradient"):
            Run(spec, function).gradients(case, ["x"])


def test_what_a_function_sets_is_put_back_and_said_as_it_is_here(student):
    case = Case("one", {"x": np.ones(2)})
    spec = Spec("settings", "", ("x",), None, lambda seed: [case], [])
    for function in (RemoteFunction(student, "settle"), here("settle")):
        assert Run(spec, function).call(case).disturbed == "torch's grad mode"
    answer = RemoteFunction(student, "default_dtype")(torch.ones(1))
    assert answer.dtype == torch.float32
    assert answer.tolist() == [1.0]


def test_gradients_are_those_of_one_tensor(student):
    with pytest.raises(TypeError, match="expected a tensor, got a list"):
        gradients(RemoteFunction(student, "both"), torch.ones(2))


# -------------------------------------------------------------------------- exceptions and answers


@pytest.mark.parametrize("kind", [
    "ValueError", "TypeError", "IndexError", "KeyError", "NotImplementedError", "AssertionError",
    "ZeroDivisionError", "RuntimeError", "StopIteration", "RecursionError", "OSError", "NameError",
])  # fmt: skip
def test_an_exception_arrives_with_its_kind(student, kind):
    came, text = outcome(student, "stop", kind)
    assert came == kind
    assert "the text" in text


@pytest.mark.parametrize(("which", "text"), [
    ("exit", "SystemExit: 3"), ("odd", "Odd: text"), ("silent", "Silent: "),
    ("interrupt", "KeyboardInterrupt: "), ("group", "ExceptionGroup: g (1 sub-exception)"),
    ("unicode", "UnicodeDecodeError: 'utf8'"), ("generator", "GeneratorExit: "),
])  # fmt: skip
def test_an_exception_that_is_not_known_here_is_named(student, which, text):
    came, said = outcome(student, "stop", which)
    assert f"{came}: {said}".startswith(text)


def test_a_long_message_is_cut_and_on_one_line(student):
    came, text = outcome(student, "stop", "long")
    assert came == "Long"
    assert text.startswith("line line")
    assert len(text) < 400
    assert issubclass(StudentError, Exception)  # the judge reports it


def test_a_deep_recursion_is_an_exception(student):
    assert outcome(student, "deep", 1)[0] == "RecursionError"
    assert outcome(student, "give", "knot")[0] == "RecursionError"


@pytest.mark.parametrize("name", ["absent", "torch.nn", "__doc__"])
def test_a_function_that_is_not_there_is_named(student, name):
    with pytest.raises(NameError, match=f"no function `{name}`"):
        RemoteFunction(student, name)(1)


GIVEN = {
    "nothing": None, "dots": None, "number": 1.5, "text": "ok", "array": np.arange(3),
    "NumPy's number": np.array(2.0, np.float32), "0-d array": np.array(True),
    "nested": [(torch.arange(3.0), 1), np.zeros(1)],
    "dict": {"a": torch.arange(3.0)}, "strided": torch.tensor([0.0, 2.0]),
    "leaf": torch.arange(3.0), "parameter": torch.arange(3.0), "subclass": torch.arange(3.0),
}  # fmt: skip


@pytest.mark.parametrize("which", GIVEN)
def test_what_is_given_back_arrives(student, which):
    came, answer = outcome(student, "give", which)
    assert (came, repr(answer)) == ("answer", repr(GIVEN[which]))


@pytest.mark.parametrize(("which", "word"), [
    ("everything", "a Everything"), ("class", "a type"), ("set", "a set"), ("meta", "on meta"),
    ("sparse", "sparse"), ("huge number", "a int"), ("uint16", "a uint16"),
    ("keys that are numbers", "a dict"), ("function", "a function"),
    ("stubborn", "raises SystemExit"), ("objects", "NumPy array of object"), ("strings", "NumPy array of <U"),
])  # fmt: skip
def test_what_is_no_tensor_is_an_exception_and_a_flag(student, which, word):
    came, text = outcome(student, "give", which)
    assert came == "TypeError"
    assert word in text


def test_what_is_too_large_is_a_flag_and_each_flag_is_there_once(student):
    for which in ("10 GB", "long text", "set", "set", "10 GB"):
        assert outcome(student, "give", which)[0] == "TypeError"
    assert sorted(student.flags) == ["not a tensor", "too large"]


# -------------------------------------------------------------------------------------- bug hunts


def on_trial(*arguments, scale=1.0):
    if scale == 1.0:
        raise KeyError("the secret of the implementation")
    return arguments[0] * scale


@pytest.fixture(scope="module")
def implementation(student):
    return student.serve(on_trial)


def test_a_served_implementation_answers(student, implementation):
    came, answer = outcome(student, "hunt", implementation)
    assert came == "answer"
    assert torch.equal(answer, torch.full((2, 2), 2.0))


def test_what_an_implementation_changes_is_seen_by_the_test(student):
    filled = student.serve(lambda x: x.fill_(3.0).sum())
    came, answer = outcome(student, "hunt", filled, "filled")
    assert (came, answer.tolist()) == ("answer", [[3.0, 3.0], [3.0, 3.0]])


def test_what_an_implementation_raises_shows_its_kind_alone(student, implementation):
    answer = outcome(student, "hunt", implementation, "raise")
    assert answer == ("answer", ["KeyError", "'the implementation on trial raised this'"])
    odd = student.serve(lambda *_: (_ for _ in ()).throw(ours.wire.NotSendable("the secret")))
    came, (kind, text) = outcome(student, "hunt", odd, "raise")
    assert (came, kind, "secret" in text) == ("answer", "RuntimeError", False)
    unsendable = student.serve(lambda *_: object())
    assert outcome(student, "hunt", unsendable, "raise")[1][0] == "RuntimeError"


def test_an_implementation_shows_nothing_of_itself(student, implementation):
    assert outcome(student, "hunt", implementation, "look") == ("answer", ["_number", "_worker"])


@pytest.mark.parametrize("attack", ["large", "many", "axes", "hidden", "number", "text"])
def test_a_large_argument_is_refused_before_the_call(student, attack):
    called = []
    came, _ = outcome(student, "hunt", student.serve(called.append), attack)
    assert (came, called) == ("ValueError", [])


def test_an_argument_that_can_not_be_sent_is_an_exception(student, implementation):
    came, text = outcome(student, "hunt", implementation, "unsendable")
    assert (came, text) == ("NotSendable", "a function")


# ----------------------------------------------------------------------- forbidden, and not there

FORBIDDEN = """
import importlib, sys, torch
import torch.nn.functional as F
from torch.nn.functional import scaled_dot_product_attention as early
from torch import nn
taken = F.__dict__["scaled_dot_product_attention"]
class Own(nn.Module):
    def forward(self, x): return F.scaled_dot_product_attention(x, x, x)

def ways(x):
    name = "scaled_dot" + "_product_attention"
    return {
        "F": lambda: F.scaled_dot_product_attention(x, x, x),
        "early": lambda: early(x, x, x), "taken": lambda: taken(x, x, x),
        "getattr": lambda: getattr(F, name)(x, x, x),
        "C": lambda: torch._C._nn.scaled_dot_product_attention(x, x, x),
        "C by name": lambda: getattr(torch._C._nn, name)(x, x, x),
        "ops": lambda: torch.ops.aten.scaled_dot_product_attention(x, x, x),
        "vars": lambda: vars(F)[name](x, x, x), "module": lambda: Own()(x),
        "imported": lambda: getattr(importlib.import_module("torch.nn.functional"), name)(x, x, x),
        "modules": lambda: getattr(sys.modules["torch.nn.functional"], name)(x, x, x),
        "layer": lambda: nn.MultiheadAttention(4, 2),
        "grad": lambda: torch.autograd.grad(x.sum(), x), "eval": lambda: eval("F." + name)(x, x, x),
        "softmax": lambda: F.softmax(x, -1),
    }

def tried(x):
    found = {}
    for name, way in ways(x).items():
        try:
            way()
            found[name] = "allowed"
        except Exception as error:
            found[name] = type(error).__name__
    return found

def square(x): return x * x

def use(x): return ways(x)["F"]()
"""


@needs_jail
def test_what_is_forbidden_ends_the_submission_by_whatever_name():
    names = ("F.scaled_dot_product_attention", "nn.MultiheadAttention", "torch.autograd.grad")
    with JailSession(FORBIDDEN, forbidden=names, limits=SMALL) as student:
        tried = student.call("tried", [torch.ones(1, 2, 4)], {})[0]
        assert tried.pop("softmax") == "allowed"
        assert set(tried.values()) == {"Forbidden"}
        x = torch.arange(3.0, requires_grad=True)
        RemoteFunction(student, "square")(
            x
        ).sum().backward()  # the grader itself may take gradients
        assert x.grad.tolist() == [0.0, 2.0, 4.0]
        with pytest.raises(Ended, match="forbidden") as ended:
            RemoteFunction(student, "use")(torch.ones(1, 2, 4))
        assert ended.value.text == "F.scaled_dot_product_attention is not allowed in this task"
        with pytest.raises(Ended, match="forbidden"):  # it stays ended
            RemoteFunction(student, "square")(x)


DERIVED = """
import torch

def ways(x):
    return {
        "backward": lambda: f(x.requires_grad_()).backward(),
        "Tensor": lambda: torch.Tensor.backward(f(x.requires_grad_())),
        "autograd": lambda: torch.autograd.grad(f(x.requires_grad_()), x),
        "jacobian": lambda: torch.autograd.functional.jacobian(f, x),
        "grad": lambda: torch.func.grad(f)(x), "vjp": lambda: torch.func.vjp(f, x)[1](f(x)),
        "jacrev": lambda: torch.func.jacrev(f)(x), "jacfwd": lambda: torch.func.jacfwd(f)(x),
        "jvp": lambda: torch.func.jvp(f, (x,), (x,)),
    }

def f(x): return x.square().sum()

def tried(name, x):
    try: return str(ways(x)[name]())
    except Exception as error: return type(error).__name__
"""


@needs_jail
def test_a_task_to_derive_closes_every_door_to_automatic_differentiation():
    """`backward` is a method, which nobody sees in the code: it calls a function that is forbidden."""
    names = ("backward", "Tensor", "autograd", "jacobian", "grad", "vjp", "jacrev", "jacfwd", "jvp")
    forbidden = part("hw02.entropy_gradient").forbidden
    with JailSession(DERIVED, forbidden=forbidden, limits=SMALL) as student:
        tried = {name: student.call("tried", [name, torch.ones(3)], {})[0] for name in names}
    assert set(tried.values()) == {"Forbidden"}, tried


ABSENT = """
import tested_transformer
import tested_transformer.specs.judge as judge
import tested_transformer.homework.assignments.hw01
from tested_transformer import *
from tested_transformer import check
import tested_transformer.attention as attention
from tested_transformer.reference import anything
from tested_transformer.homework import check as again, Hunt

class Layer(attention.Layer): pass

def tried():
    found = {}
    for name, way in {
        "check": lambda: check("hw01.count", tried), "again": lambda: again("x"),
        "function": lambda: anything(1), "module": lambda: judge.judge(1, 2),
        "inherited": lambda: Layer(1), "deep": lambda: tested_transformer.a(),
    }.items():
        try: found[name] = repr(way())
        except Exception as error: found[name] = f"{type(error).__name__}: {error}"
    return found

def looked():
    return [hasattr(tested_transformer, "__file__"), isinstance(1, Layer), judge.__name__,
            Layer.__mro__[1].__name__]
"""


@pytest.mark.parametrize("bare", [pytest.param(False, marks=needs_jail), True])
def test_the_package_can_be_imported_and_nothing_of_it_called(bare):
    with JailSession(ABSENT, limits=SMALL, without_jail_for_my_own_code=bare) as student:
        tried = student.call("tried", [], {})[0]
        looked = student.call("looked", [], {})[0]
    assert looked == [False, False, "tested_transformer.specs.judge", "Layer"]
    assert len(tried) == 6
    for text in tried.values():
        assert text.startswith("RuntimeError: tested_transformer.")
        assert text.endswith(" is not there when homework is marked: write your own")
    assert "tested_transformer.reference.anything" in tried["function"]
