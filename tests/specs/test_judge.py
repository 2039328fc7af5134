"""The judge is judged: right passes, wrong fails for the right reason, and the page never crashes."""

import linecache
import math
import random
import sys
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch.func import functional_call
from torch.nn import functional

from tested_transformer import BackendError, attention, check, pitfall, self_attention
from tested_transformer.exercises import EXERCISES
from tested_transformer.homework.jail.wire import same as same_on_the_wire
from tested_transformer.layers.message_passing import max_messages
from tested_transformer.specs import SPECS, Case, Mutant, Spec, judge
from tested_transformer.specs import case as case_module
from tested_transformer.specs import draw as draw_module
from tested_transformer.specs import spec as spec_module
from tested_transformer.specs.attention.spec import ATTENTION, narrowed, textbook
from tested_transformer.specs.compare import (
    as_array,
    brief,
    compare,
    difference,
    relations,
    same_argument,
    unchanged,
)
from tested_transformer.specs.draw import Draw, attempts, drawn_case, smallest
from tested_transformer.specs.judge import RUNS
from tested_transformer.specs.positions.spec import SINUSOIDAL_POSITIONS
from tested_transformer.specs.rounding import OTHER_FORMULAS, rounding
from tested_transformer.specs.run import Run, keywords
from tested_transformer.specs.spec import AGAIN, EQUAL, GRADIENTS, SHAPE, UNTOUCHED
from tested_transformer.specs.surroundings import SETTINGS

NARROW = narrowed("dot-product attention", "softmax(QK^T/sqrt(d))V", chapter=1)


def right(query, key, value):
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    return scores.softmax(-1) @ value


@pytest.mark.parametrize("kind", [float, np.float32, np.float64, np.longdouble])
def test_numbers_are_rounded_whatever_their_kind(kind):
    """The last digits of the reference's longdouble depend on the processor: a page would too."""
    assert brief(kind(2) / kind(3)) == "0.6667"


def test_a_right_function_passes():
    verdict = judge(NARROW, right)
    assert verdict
    assert str(verdict).startswith("✓ dot-product attention: right. 13 checks on 16 cases.")
    assert verdict.skipped == {}


class Cell:
    """A cell of a notebook: its text in linecache, as IPython puts it."""

    def __init__(self, text, name="cell", **scope):
        self.scope = {"__name__": "__main__", "torch": torch, **scope}
        place = f"<{name} {id(self)}>"
        linecache.cache[place] = (len(text), None, text.splitlines(keepends=True), place)
        exec(compile(text, place, "exec", dont_inherit=True), self.scope)

    def __getitem__(self, name):
        return self.scope[name]


UNWRITTEN = {
    "dots": "...",
    "a docstring": '"""Weights."""',
    "a docstring and dots": '"""Weights."""\n    ...',
    "pass": "pass",
    "dots after lines": "scores = query @ key.mT\n    ...",
    "dots for a value": "scores = ...",
    "dots returned": "return ...",
    "an error": "scores = query @ key.mT\n    raise NotImplementedError",
    "a function inside": "def inner(x):\n        pass",
}


@pytest.mark.parametrize("body", UNWRITTEN.values(), ids=UNWRITTEN)
def test_an_unwritten_function_is_not_wrong(body):
    verdict = judge(NARROW, Cell(f"def mine(query, key, value):\n    {body}\n")["mine"])
    assert verdict.unwritten
    assert not verdict
    assert "not written yet" in str(verdict)


FORGOTTEN = {
    "a function": 'def mine(query, key, value):\n    """Mine."""\n    scores = query @ key.mT\n',
    "dots as an index": "def mine(query, key, value):\n    query[..., 0] = 1.0\n",
    "an empty return": "def mine(query, key, value):\n    return\n",
    "an object of a class": "class Mine:\n    def __call__(self, *tensors):\n"
    "        self.tensors = tensors\n\nmine = Mine()\n",
}


@pytest.mark.parametrize("text", FORGOTTEN.values(), ids=FORGOTTEN)
def test_a_forgotten_return_is_named(text):
    verdict = judge(NARROW, Cell(text)["mine"])
    assert not verdict.unwritten
    assert not verdict
    lines = str(verdict).splitlines()
    assert lines[:2] == [
        "✗ dot-product attention: not right yet.",
        "  check     it returns an answer",
    ]
    assert lines[2].lower() == "  why       mine returned none: is a `return` missing?"
    assert lines[4:] == ["  expected  an answer", "  got       None"]


@pytest.mark.parametrize(
    "candidate", [lambda q, k, v: None, Mock(return_value=None), partial(lambda *t: None)]
)
def test_what_has_no_source_to_look_at_is_not_written(candidate):
    """So is a function behind the grader's pipe."""
    assert judge(NARROW, candidate).unwritten


def test_a_text_at_the_left_edge_does_not_hide_what_is_written():
    """Inside another function, with a text that begins at the left edge."""
    made = "def make():\n    def mine(q, k, v):\n        text = '''\nleft'''\n    return mine\n"
    verdict = judge(NARROW, Cell(made)["make"]())
    assert not verdict.unwritten
    assert "mine returned None: is a `return` missing?" in verdict.why


def test_a_written_function_that_raises_is_not_unwritten():
    def function(query, key, value):
        return query + nonsense  # noqa: F821

    verdict = judge(NARROW, function)
    assert not verdict.unwritten
    assert isinstance(verdict.error, NameError)
    assert "NameError: name 'nonsense' is not defined" in str(verdict)
    assert "  check     it runs\n  why       The call raised NameError, in your line" in str(
        verdict
    )


RAISES = '''\
def helper(scores):
    return torch.lgo(scores)

def mine(query, key, value):
    """Mine."""
    scores = query @ key.mT
    return helper(scores)

def softmax_solution(scores):
    return helper(scores)

def asks(query, key, value):
    return softmax_solution(query @ key.mT)

def attention_solution(query, key, value):
    return helper(query)

def hands_over(query, key, value):
    return attention(query, key, value, backend="secret")

def elsewhere(query, key, value):
    return given(query)

class Kind:
    def __call__(self, query, key, value):
        return query.lgo()

an_object = Kind()
'''
LINES = {
    "mine": ", in your line 2: `return torch.lgo(scores)`.",
    "asks": ", in your line 13: `return softmax_solution(query @ key.mT)`.",
    "attention_solution": ".",
    "hands_over": ', in your line 19: `return attention(query, key, value, backend="secret")`.',
    "elsewhere": ", in your line 22: `return given(query)`.",
    "an_object": ", in your line 26: `return query.lgo()`.",
}


@pytest.mark.parametrize("name", LINES)
def test_the_readers_own_line_that_raised_is_shown(name):
    """The last of its own: none of another cell, of a solution, of a library or of this package."""
    given = Cell("def given(query):\n    return query.secret\n", "other")["given"]
    verdict = judge(NARROW, Cell(RAISES, given=given, attention=attention)[name])
    assert verdict.why == f"The call raised {type(verdict.error).__name__}{LINES[name]}"
    assert verdict.heading == "it runs"


@pytest.mark.parametrize(
    ("spec", "candidate"),
    [
        (SINUSOIDAL_POSITIONS, pitfall("even widths only").candidate),
        (NARROW, torch.nn.functional.layer_norm),
        (NARROW, torch.nn.Linear(2, 2)),
    ],
)
def test_no_line_of_a_library_or_of_this_package_is_shown(spec, candidate):
    verdict = judge(spec, candidate)
    assert verdict.why == f"The call raised {type(verdict.error).__name__}."


def test_a_long_line_is_cut():
    text = f"def mine(query, key, value):\n    return query.lgo({', '.join(['query'] * 40)})\n"
    assert judge(NARROW, Cell(text)["mine"]).why.endswith("query, query, ...`.")


def test_an_answer_that_can_not_be_read_is_not_a_call_that_raised():
    verdict = judge(NARROW, lambda q, k, v: (q, k))
    assert verdict.heading == verdict.failed == "the right shape and dtype"


def test_the_smallest_failing_case_is_shown():
    def wrong_with_a_batch(query, key, value):
        return right(query, key, value) * (1.5 if query.ndim == 3 else 1)

    verdict = judge(NARROW, wrong_with_a_batch)
    assert verdict.case.label == "a batch"
    assert verdict.failed == "weights are a distribution"
    for words in ("expected", "got", "1.5", "query (2, 3, 4)", "float64"):
        assert words in str(verdict)


def test_the_first_difference_is_shown():
    def wrong_at_the_end(query, key, value):
        output = right(query, key, value)
        output[..., -1, -1] += 0.01 * value.abs().max()
        return output

    verdict = judge(NARROW, wrong_at_the_end)
    assert verdict.failed in {"weights are a distribution", "equals the reference"}
    assert " at [" in verdict.problem.got


def test_changed_inputs_are_noticed():
    def careless(query, key, value):
        output = right(query, key, value)
        key.zero_()
        return output

    verdict = judge(NARROW, careless)
    assert verdict.failed == "the inputs stay as they were"
    assert "`key` changed in place" in str(verdict)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bool])
def test_nan_is_an_input_like_others(dtype):
    """A NaN that became 0 was changed; one that stayed was not."""
    before = torch.tensor([0.0, 1.0]).to(dtype)
    assert same_argument(before, before.clone())
    assert not same_argument(before, before.flip(0))
    assert not same_argument(before, before[:1])
    nan = torch.tensor([torch.nan, 1.0])
    assert same_argument(nan, nan.clone())
    assert not same_argument(nan, nan.nan_to_num())
    assert same_on_the_wire(nan, nan.clone())
    assert not same_on_the_wire(nan, nan.nan_to_num())


def test_wrong_shape_and_dtype_are_named():
    assert "shape (1, 4)" in str(judge(NARROW, lambda q, k, v: right(q, k, v)[0]))
    verdict = judge(NARROW, lambda q, k, v: right(q, k, v).float())
    assert verdict.failed == "the right shape and dtype"
    assert "torch.float32" in str(verdict)


def test_an_answer_that_is_no_tensor():
    verdict = judge(NARROW, lambda q, k, v: (right(q, k, v), None))
    assert "a tuple" in str(verdict)
    assert judge(NARROW, lambda q, k, v: right(q, k, v).double().numpy())


@pytest.mark.parametrize("kind", [object, str, complex])
def test_an_array_that_holds_no_real_numbers(kind):
    verdict = judge(ATTENTION, lambda q, k, v: right(q, k, v).double().numpy().astype(kind))
    assert verdict.failed == "the right shape and dtype"
    assert verdict.problem.expected == "real numbers"


def test_what_is_no_array_is_likened_to_no_call_that_raised():
    verdict = judge(ATTENTION, lambda q, k, v: "words")
    assert verdict.why == "What the call returned cannot be compared."
    assert verdict.mistake is None  # some of its mutants raise a TypeError


@pytest.mark.parametrize("name", ["attention", "log_mel", "document_mask"])
def test_a_right_answer_is_one_that_equals_the_reference(name):
    found = set()
    for mutant in SPECS[name].mutants[::3]:
        run = Run(SPECS[name], mutant.candidate)
        for case in SPECS[name].draw(0)[::2]:
            try:
                equal = EQUAL.test(run, case) is None
            except Exception:
                equal = False
            assert run.is_right(case) == equal
            found.add(equal)
    assert found == {True, False}


def test_nan_is_not_equal_to_a_number_nor_to_any_nan():
    numbers = np.array([1.0, np.nan, np.inf, -np.inf])
    assert difference(numbers, numbers, 0.0) is None
    for place, other in ((0, np.nan), (1, 1.0), (2, -np.inf), (3, np.nan)):
        changed = numbers.copy()
        changed[place] = other
        assert difference(numbers, changed, 1e9) == (place,)
    assert compare(np.ones(2), np.ones(3), 1e9).got == "shape (3,)"


@pytest.mark.parametrize("name", ["no scale", "softmax before the scale", "no softmax"])
def test_a_famous_mistake_is_recognized(name):
    mistakes = {
        "no scale": lambda q, k, v: (q @ k.mT).softmax(-1) @ v,
        "softmax before the scale": lambda q, k, v: (q @ k.mT).softmax(-1) / q.shape[-1] ** 0.5 @ v,
        "no softmax": lambda q, k, v: q @ k.mT / q.shape[-1] ** 0.5 @ v,
    }
    verdict = judge(NARROW, mistakes[name])
    assert verdict.mistake.name == name
    assert f"looks like  {name}" in str(verdict)


def one_maximum(scores):
    exponentials = (scores - scores.max()).exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


def right_but_for_nothing(scores):
    return (scores - scores.amax(-1, keepdim=True)).softmax(-1)


def test_a_case_without_numbers_does_not_hide_the_mistake():
    """The maximum of nothing raises: that is told when all else is right."""
    verdict = judge(EXERCISES["ch03.softmax"], one_maximum)
    assert verdict.failed == "no overflow"
    assert not verdict.case.is_empty
    assert verdict.mistake.name == "the maximum of the whole batch"
    verdict = judge(EXERCISES["ch03.softmax"], right_but_for_nothing)
    assert verdict.case.label == "no scores at all"
    assert isinstance(verdict.error, IndexError)
    assert verdict.mistake is None


def no_half_precision(function):
    def candidate(scores):
        if scores.dtype == torch.float16:
            raise KeyError("no half")
        return function(scores)

    return candidate


def test_a_mistake_beside_an_exception_is_named():
    verdict = judge(EXERCISES["ch03.softmax"], no_half_precision(lambda s: s.softmax(0)))
    assert isinstance(verdict.error, KeyError)
    assert verdict.mistake is None  # of what is told here, which is the exception
    assert "\n  elsewhere it looks like  columns that sum to 1: dim=0" in str(verdict)
    verdict = judge(EXERCISES["ch03.softmax"], no_half_precision(lambda s: s.softmax(-1)))
    assert isinstance(verdict.error, KeyError)
    assert verdict.mistake is verdict.elsewhere is None


def test_a_mistake_that_fits_under_two_names_gets_none():
    """Mistakes differ on all cases together: some that were answered may not tell them apart."""
    spec = EXERCISES["ch03.softmax"]
    columns = next(m for m in spec.mutants if m.name == "columns that sum to 1")
    again = replace(columns, name="again", candidate=lambda scores: scores.softmax(0))
    verdict = judge(
        replace(spec, mutants=[columns, again]), no_half_precision(lambda s: s.softmax(0))
    )
    assert isinstance(verdict.error, KeyError)
    assert verdict.mistake is verdict.elsewhere is None


def test_a_mistake_that_raises_explains_the_exception():
    mutant = pitfall("even widths only")
    verdict = judge(SINUSOIDAL_POSITIONS, lambda *t, **o: mutant.candidate(*t, **o))
    assert "\n  looks like  even widths only: " in str(verdict)


def test_a_mistake_of_the_readers_own_gets_no_name():
    assert judge(NARROW, lambda q, k, v: right(q, k, v) * 1.001).mistake is None
    assert judge(NARROW, lambda q, k, v: right(q, k, v + 1)).mistake is None


def test_a_mistake_in_the_gradient_alone_is_found_but_explains_nothing_else():
    class Detached:
        """Right numbers, and a gradient that is NaN throughout."""

        def __call__(self, *tensors, **options):
            output = attention(*tensors, **options)
            return output + (tensors[0].sum() * 0).sqrt() * 0

    verdict = judge(ATTENTION, Detached())
    assert verdict.failed == "a fully masked row has no gradient"


def test_checks_that_do_not_apply_say_why():
    def no_window(query, key, value, *, mask=None, bias=None, causal=False, key_lengths=None,
                  alibi_slopes=None, scale=None):  # fmt: skip
        return attention(query, key, value, mask=mask, bias=bias, causal=causal, scale=scale,
                         key_lengths=key_lengths, alibi_slopes=alibi_slopes)  # fmt: skip

    verdict = judge(ATTENTION, no_window)
    assert verdict.passed
    assert dict(verdict.skipped) == {"the window decides": "takes no `window`"}

    def no_masks(query, key, value, **options):
        if options.get("mask") is not None:
            raise BackendError("this kernel takes no mask")
        return attention(query, key, value, **options)

    verdict = judge(ATTENTION, no_masks)
    assert dict(verdict.skipped) == {"the mask decides": "this kernel takes no mask"}
    assert verdict.num_cases < len(ATTENTION.draw(0))


def test_refusing_everything_is_not_passing():
    def refuses(query, key, value, **options):
        raise BackendError("not today")

    with pytest.raises(TypeError, match="not today"):
        judge(ATTENTION, refuses)


def test_an_exercise_asks_for_all_of_its_options():
    spec = EXERCISES["ch22.max_messages"]

    def no_padding(sender, receiver, edge, adjacency):
        return max_messages(sender, receiver, edge, adjacency)

    verdict = judge(spec, no_padding)
    assert verdict.heading == RUNS
    assert "unexpected keyword argument 'real'" in verdict.problem.got
    library = judge(replace(spec, points=0), no_padding)
    assert library.passed
    assert "takes no `real`" in library.skipped.values()


def test_refusing_is_for_specs_that_say_so():
    def refuses_large(*placed, **options):
        if placed[0].numel() > 9:
            raise BackendError("too large")
        return max_messages(*placed, **options)

    assert isinstance(judge(SPECS["max_messages"], refuses_large).error, BackendError)


def test_what_went_wrong_in_another_call_is_named():
    def without_gradients(scores):
        return scores.softmax(-1) * (1 if torch.is_grad_enabled() else 2)

    def buffered(scores, buffers={}):  # noqa: B006
        answer = scores.softmax(-1)
        if scores.requires_grad:
            return answer
        buffer = buffers.setdefault((scores.shape, scores.dtype), answer.clone())
        return (buffer.copy_(answer),)

    def keeps(scores, kept=[]):  # noqa: B006
        kept.append(scores)
        return scores.softmax(-1)

    spec = replace(SPECS["softmax"], mutants=())
    assert "torch.no_grad()" in judge(spec, without_gradients).problem.expected
    first = replace(spec, read=lambda answer, given: 1 * _first(answer))
    assert "an earlier answer" in judge(first, buffered).problem.expected
    assert judge(spec, keeps).problem.expected == "`scores` free once the call is over"


def _first(answer):
    return answer[0] if isinstance(answer, tuple) else answer


def test_low_precision_may_round_but_not_more():
    assert judge(ATTENTION, partial(attention, backend="plain")).passed

    def loose(query, key, value, **options):
        noise = 1 + 64 * torch.finfo(query.dtype).eps
        return attention(query, key, value, **options) * noise

    verdict = judge(ATTENTION, loose)
    assert verdict.failed in {"weights are a distribution", "equals the reference"}


MOVES = 16  # operands and results between an argument and its score: groups, product, scale, biases, fill


@pytest.mark.parametrize("seed", range(5))
def test_the_baseline_is_short(seed):
    """The tolerance of a case is a few units of rounding, in every dtype: it cannot hide a bug.

    Each of the MOVES is off by half an eps of the sum of absolute terms, and so is the log-sum-exp, which
    adds the logarithm of the number of keys; a weight changes by twice that of itself. Then come the
    exponential and the sum of the values.
    """
    for case in ATTENTION.draw(seed):
        expected = ATTENTION.expected(case)
        largest = np.abs(case.arguments["value"]).max(initial=0.0)
        steps = 4 + OTHER_FORMULAS * (MOVES * largest_score(case) + MOVES)
        bound = steps * torch.finfo(case.dtype).eps * largest
        assert ATTENTION.tolerance(case, expected) <= bound, case.label


def largest_score(case):
    """The largest sum of absolute terms of a score, and of a log-sum-exp."""
    a = case.arguments
    query, key = np.abs(a["query"]), np.abs(a["key"])
    if query.ndim == 4:
        key = key.repeat(query.shape[1] // key.shape[1], 1)
    length, keys = query.shape[-2], key.shape[-2]
    scale = query.shape[-1] ** -0.5 if a.get("scale") is None else abs(a["scale"])
    found = (query @ key.swapaxes(-1, -2) * scale).max(initial=0.0) + np.log(max(keys, 1))
    for name, times in (("bias", 1), ("alibi_slopes", max(length, keys))):
        terms = np.abs(a[name]) if a.get(name) is not None else np.zeros(1)
        found += times * terms.max(initial=0.0, where=np.isfinite(terms))
    return found


def test_a_seed_changes_the_numbers_and_nothing_else():
    first, again, other = ATTENTION.draw(0), ATTENTION.draw(0), ATTENTION.draw(1)
    assert [c.label for c in first] == [c.label for c in other]
    same = [
        np.array_equal(a.arguments["query"], b.arguments["query"])
        for a, b in zip(first, again, strict=True)
    ]
    assert all(same)
    assert not np.array_equal(first[0].arguments["query"], other[0].arguments["query"])


def test_the_judge_leaves_the_random_state_alone():
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    judge(NARROW, lambda q, k, v: right(q, k, v) + torch.rand(()))
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_module_is_built_with_the_weights_of_the_case():
    def build(candidate, arguments):
        module = candidate(3, 2, bias=False).to(arguments["weight"].dtype)
        return lambda x, weight: functional_call(module, {"weight": weight}, x)

    def cases(seed):
        rng = np.random.default_rng(seed)
        return [
            Case(f"{n} rows", {"x": rng.normal(size=(n, 3)), "weight": rng.normal(size=(2, 3))})
            for n in (1, 2, 4)
        ]

    spec = Spec(
        "linear", "x W^T", ("x", "weight"), lambda x, weight: x @ weight.T, cases,
        (SHAPE, UNTOUCHED, EQUAL), build=build, baseline=torch.nn.functional.linear,
    )  # fmt: skip
    assert judge(spec, torch.nn.Linear)

    class Negated(torch.nn.Linear):
        def forward(self, x):
            return -super().forward(x)

    assert judge(spec, Negated).failed == "equals the reference"


# --- The tolerance --------------------------------------------------------------------------------


def scores_and_softmax(query, key):
    return {"": as_array(torch.softmax(query @ key.mT * 0.5, -1))}


HALF = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_the_bound_covers_what_torch_rounds_and_nothing_wrong(dtype):
    """Fifty seeds of scores and softmax in a dtype, and the same with 64 eps too much."""
    worst, eps = 0.0, torch.finfo(dtype).eps
    for seed in range(50):
        generator = torch.Generator().manual_seed(seed)
        query, key = (torch.randn(5, 4, generator=generator).to(dtype) for _ in range(2))
        wide = query.double(), key.double()
        bound = rounding(lambda wide=wide: scores_and_softmax(*wide), dtype)[""]
        exact, got = scores_and_softmax(*wide)[""], scores_and_softmax(query, key)[""]
        if dtype == torch.float64:  # both sides round as much
            bound *= 2
        worst = max(worst, np.abs(got - exact).max() / bound)
        assert np.abs(exact * (1 + 64 * eps) - exact).max() > bound, seed
    assert worst < 0.5


def test_the_bound_grows_with_the_scores_and_is_the_same_again():
    query, key = torch.ones(1, 2).double(), torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double()
    small = rounding(lambda: scores_and_softmax(query, key), torch.float32)[""]
    large = rounding(lambda: scores_and_softmax(100 * query, key), torch.float32)[""]
    assert 10 * small < large
    assert small == rounding(lambda: scores_and_softmax(query, key), torch.float32)[""]


def by_logarithms(query, key, value):
    scores = query @ key.mT * 0.5
    return (scores - scores.logsumexp(-1, keepdim=True)).exp() @ value


def sums_and_gradient(formula, query, key):
    """Weighted sums of ones, and the gradient of their sum: exactly 1 and 0."""
    query, value = query.clone().requires_grad_(), torch.ones_like(key)
    sums = formula(query, key, value)
    (gradient,) = torch.autograd.grad(sums.sum(), query)
    return {"sums": as_array(sums), "gradient": as_array(gradient)}


@pytest.mark.parametrize(
    "formula",
    [
        lambda query, key, value: torch.softmax(query @ key.mT * 0.5, -1) @ value,
        partial(functional.scaled_dot_product_attention, scale=0.5),
    ],
    ids=["softmax", "one operation"],
)
def test_the_bound_covers_a_softmax_by_logarithms_of_large_scores(formula):
    """Its rows sum to 1 only as well as a logarithm in the hundreds is known."""
    worst = dict.fromkeys(("sums", "gradient"), 0.0)
    for seed in range(50):
        generator = torch.Generator().manual_seed(seed)
        query, key = (20 * torch.randn(1, 1, 5, 4, generator=generator) for _ in range(2))
        wide = query.double(), key.double()
        bound = rounding(lambda wide=wide: sums_and_gradient(formula, *wide), torch.float32)
        got, exact = sums_and_gradient(by_logarithms, query, key), {"sums": 1.0, "gradient": 0.0}
        for name in worst:
            worst[name] = max(worst[name], np.abs(got[name] - exact[name]).max() / bound[name])
    assert max(worst.values()) < 0.5
    assert min(worst.values()) > 0.01, "the bound says nothing"


def test_what_is_not_finite_counts_for_nothing_in_the_bound():
    numbers = torch.tensor([1.0, 2.0]).double()
    plain = rounding(lambda: {"": as_array(numbers * numbers)}, torch.float32)[""]

    def with_infinity():
        squares = numbers * numbers
        return {"": np.append(as_array(squares), [np.inf, np.nan])}

    assert rounding(with_infinity, torch.float32)[""] == plain


def test_a_reference_no_wider_than_float64_doubles_the_tolerance(monkeypatch):
    """As on Apple silicon and on Windows."""
    wide = {case.label: float(NARROW.expected_of(case)[1]) for case in NARROW.draw(0)}
    monkeypatch.setattr(case_module, "WIDEST", np.float64)
    monkeypatch.setattr(spec_module, "WIDEST", np.float64)
    for case in NARROW.draw(0):
        expected, tolerance = NARROW.expected_of(case)
        assert expected.dtype == np.float64
        if expected.size:
            twice = 2 if case.dtype == torch.float64 else 1
            assert float(tolerance) == pytest.approx(twice * wide[case.label], rel=1e-6)
    for seed in range(3):
        assert judge(NARROW, right, seed=seed).passed
    assert not judge(NARROW, lambda q, k, v: right(q, k, v) * (1 + 1e-9))


# --- What a call leaves behind --------------------------------------------------------------------

SET_BY_A_CALL = {
    "torch's grad mode": lambda: torch.set_grad_enabled(False),
    "torch's default dtype": lambda: torch.set_default_dtype(torch.float64),
    "torch's default device": lambda: torch.set_default_device("meta"),
    "torch's number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "torch's deterministic algorithms": lambda: torch.use_deterministic_algorithms(True),
    "autocast for the CPU": lambda: torch.set_autocast_enabled("cpu", True),
    "the precision of float32 matmuls": lambda: torch.set_float32_matmul_precision("medium"),
    "anomaly detection": lambda: torch.autograd.set_detect_anomaly(True),
    "flushing of denormal numbers": lambda: torch.set_flush_denormal(True),
    "NumPy's handling of errors": lambda: np.seterr(under="raise"),
    "torch's random seed": lambda: torch.manual_seed(0),
    "Python's recursion limit": lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 1),
}


def test_every_setting_has_a_test():
    assert set(SET_BY_A_CALL) == {setting.words for setting in SETTINGS}


@pytest.mark.parametrize("words", SET_BY_A_CALL)
def test_a_setting_that_a_call_changes_is_named_and_put_back(words):
    before = [setting.read() for setting in SETTINGS]

    def careless(query, key, value):
        output = right(query, key, value)
        SET_BY_A_CALL[words]()
        return output

    verdict = judge(NARROW, careless)
    assert verdict.failed == "the inputs stay as they were"
    assert verdict.problem.got == f"{words} set by the call"
    assert [setting.read() for setting in SETTINGS] == before
    assert judge(NARROW, right).passed


@pytest.mark.parametrize(("whose", "seed"), [("NumPy", np.random.seed), ("Python", random.seed)])
def test_a_seed_that_a_call_sets_is_named(whose, seed):
    def careless(query, key, value):
        seed(0)
        return right(query, key, value)

    verdict = judge(NARROW, careless)
    assert verdict.problem.got == f"{whose}'s random seed set by the call"


def test_an_argument_that_must_not_ask_for_a_gradient():
    def careless(query, key, value):
        return right(query.requires_grad_() if query.is_leaf else query, key, value)

    assert judge(NARROW, careless).problem.got == "`query` changed in place"


def test_what_is_kept_by_the_tensor_is_noticed_too():
    """A table of results that goes by the tensor: an optimizer changes its numbers in place."""
    kept = {}

    def careless(query, key, value):
        if key.requires_grad:
            return right(query, key, value)
        if id(key) not in kept:
            kept[id(key)] = key, key.clone()
        return right(query, kept[id(key)][1], value)

    assert judge(NARROW, careless).failed == "a call leaves nothing behind"


def test_a_setting_is_put_back_after_an_exception_too():
    def careless(query, key, value):
        torch.set_grad_enabled(False)
        raise KeyError("gone")

    assert isinstance(judge(NARROW, careless).error, KeyError)
    assert torch.is_grad_enabled()


def test_random_numbers_are_no_setting_and_everybodys_are_put_back():
    states = torch.random.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002

    def draws(query, key, value):
        torch.rand(3), np.random.rand(2000), random.randbytes(9000)  # noqa: NPY002
        return right(query, key, value)

    assert judge(NARROW, draws).passed
    assert torch.equal(states[0], torch.random.get_rng_state())
    assert states[1] == np.random.get_state()[1].tolist()  # noqa: NPY002
    assert states[2] == random.getstate()


def test_a_normal_number_that_numpy_drew_ahead_is_put_back():
    """To take it changes no word of the generator."""
    kept_by_numpy = np.random.get_state()  # noqa: NPY002
    np.random.randn()  # noqa: NPY002
    before = np.random.get_state()  # noqa: NPY002

    def draws(query, key, value):
        np.random.randn()  # noqa: NPY002
        return right(query, key, value)

    assert before[3] == 1
    assert judge(NARROW, draws).passed
    assert np.random.get_state()[2:] == before[2:]  # noqa: NPY002
    np.random.set_state(kept_by_numpy)  # noqa: NPY002


def test_a_generator_of_numpy_that_a_call_replaces_is_named_and_put_back():
    before = np.random.get_bit_generator()

    def careless(query, key, value):
        np.random.set_bit_generator(np.random.PCG64(0))
        return right(query, key, value)

    assert judge(NARROW, careless).problem.got == "NumPy's random generator set by the call"
    assert np.random.get_bit_generator() is before


def test_another_generator_of_numpy_goes_on_where_it_was():
    """Its state is no Mersenne Twister's, whose words the judge reads."""
    own = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(0))
    before = np.random.get_bit_generator().state

    def draws(query, key, value):
        np.random.rand()  # noqa: NPY002
        return right(query, key, value)

    try:
        assert judge(NARROW, draws).passed
        assert np.random.get_bit_generator().state == before
    finally:
        np.random.set_bit_generator(own)


# --- Cases by chance ------------------------------------------------------------------------------


def option_case(draw):
    options = {"by": draw.one_of(0, 1, 2), "also": draw.maybe(lambda: draw.one_of(3, 4))}
    return Case("options", {"x": draw.numbers.normal(size=draw.one_of(1, 2, 4)), **options})


OPTIONS = Spec(
    "options", "x + by + also", ("x", "by", "also"),
    reference=lambda x, by, also: x + by + (also or 0),
    baseline=lambda x, by, also: x + by + (also or 0),
    cases=lambda rng: [Case("one", {"x": rng.normal(size=1), "by": 0, "also": None})],
    combine=option_case, num_drawn=30,
)  # fmt: skip


def test_choices_are_made_again():
    for seed in range(10):
        first = Draw(seed)
        case, again = option_case(first), option_case(Draw(seed, first.choices))
        assert {n: a for n, a in case.arguments.items() if n != "x"} == {
            n: a for n, a in again.arguments.items() if n != "x"
        }
        assert np.array_equal(case.arguments["x"], again.arguments["x"])
    assert len({Draw(seed).one_of(*range(50)) for seed in range(20)}) > 5


def test_a_changed_case_is_made_once_and_is_nobody_elses():
    case, zeros = Case("a case", {"x": np.ones(3), "scale": 2.0}), np.zeros(3)
    changed = case.changed(x=zeros)
    zeros += 1  # by the check that made it
    changed.tensors()["x"].fill_(7)  # by a candidate
    assert case.changed(x=np.zeros(3)) is changed
    assert changed.arguments["x"].tolist() == [0, 0, 0]
    assert case.changed(x=np.ones(3)) is not changed
    assert case.changed(scale=None).arguments.keys() == {"x"}
    assert case.arguments["scale"] == 2.0


def test_the_simpler_cases_of_a_case_are_drawn_once():
    case = drawn_case(option_case, 0, (2, 1, 1, 2))
    first, again = list(case.simpler()), list(case.simpler())
    assert len(first) > 2
    assert all(one is other for one, other in zip(first, again, strict=True))


def test_choices_that_do_not_fit_are_the_simplest_or_the_last():
    assert Draw(0, ()).one_of("simple", "hard") == "simple"
    assert Draw(0, (7,)).one_of("simple", "hard") == "hard"
    assert Draw(0, (0,)).maybe(lambda: 1) is None


def test_a_case_that_never_fits_is_an_error_and_no_endless_loop():
    assert [*islice(attempts(limit=7), 7)] == [*range(7)]
    with pytest.raises(RuntimeError, match="a case that fits among 7 draws, got none"):
        list(attempts(limit=7))
    files = (Path(draw_module.__file__).parent).rglob("*.py")
    assert [path for path in files if "while True" in path.read_text("utf-8")] == []


def test_a_drawn_case_that_fails_is_shown_as_small_as_it_can_be():
    verdict = judge(OPTIONS, lambda x, by, also: x + by + (also or 0) * (by < 2))
    assert verdict.failed == "equals the reference"
    assert verdict.case.arguments["by"] == 2
    assert verdict.case.arguments["also"] == 3  # 4 fails as well
    assert len(verdict.case.arguments["x"]) == 1
    found = drawn_case(option_case, 0, (2, 1, 1, 2))
    assert smallest(found, lambda case: True).arguments.keys() == found.arguments.keys()
    assert smallest(found, lambda case: True).arguments["also"] is None


# --- Gradients, and calls after calls -------------------------------------------------------------


def straight_through(query, key, value):
    """Right numbers, and the gradient of the values alone."""
    output = right(query, key, value)
    return output.detach() + (value - value.detach()).sum()


WRONG_GRADIENTS = {
    "detached weights": lambda q, k, v: (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1).detach() @ v,
    "a detached answer": lambda q, k, v: right(q, k, v).detach(),
    "straight through": straight_through,
    "wrong in float32 only": lambda q, k, v: right(
        q.detach() if q.dtype == torch.float32 else q, k, v
    ),
    "wrong in float16 only": lambda q, k, v: right(
        q, k, v if q.dtype != torch.float16 else 2 * v - v.detach()
    ),
}


@pytest.mark.parametrize("name", WRONG_GRADIENTS)
def test_right_numbers_with_a_wrong_gradient_are_rejected(name):
    verdict = judge(NARROW, WRONG_GRADIENTS[name])
    assert verdict.failed == GRADIENTS.name
    if "only" in name:
        assert str(verdict.case.dtype).endswith(name.split()[2])


def test_a_spec_of_integers_or_without_gradients_has_no_such_check():
    assert GRADIENTS.name in [check.name for check in NARROW.checks]
    without = replace(NARROW, differentiable=False, checks=())
    assert GRADIENTS.name not in [check.name for check in without.checks]
    assert not any(GRADIENTS.concerns(case) for case in SPECS["causal_mask"].draw(0))


def test_what_a_module_keeps_from_another_call_is_noticed():
    class Keeps:
        kept = None

        def __call__(self, query, key, value):
            if self.kept is None or self.kept.shape != key.shape or self.kept.dtype != key.dtype:
                self.kept = key
            return right(query, self.kept, value)

    class Made(torch.nn.Module):
        """Made anew for each case: only a second call can show what it keeps."""

        def forward(self, query, key, value):
            self.kept = getattr(self, "kept", key.detach())
            return right(query, self.kept + key - key.detach(), value)

    spec = replace(NARROW, build=lambda candidate, arguments: candidate())
    assert judge(spec, Made).failed == AGAIN.name
    assert judge(spec, lambda: right).passed
    assert not judge(NARROW, Keeps())


def test_two_answers_of_one_candidate_are_never_expected():
    one, two, nan = np.ones(2), np.array([1.0, 3.0]), np.array([1.0, np.nan])
    assert unchanged(one, one, 0.0, "nothing happens") is None
    problem = unchanged(one, two, 1e-9, "the keys are reversed")
    assert problem.expected == "the answer stays the same when the keys are reversed"
    assert problem.got == "1 became 3 at [1]"
    for before, after in ((nan, nan), (one, nan), (nan, one)):
        assert unchanged(before, after, 1e9, "nothing happens").got == "NaN"
    assert unchanged(one, np.ones(3), 1.0, "longer").got == "(2,) became (3,)"


# --- What a verdict says --------------------------------------------------------------------------


FORGETS = {
    "by forgotten": lambda x, by, also: x + (also or 0),
    "also forgotten": lambda x, by, also: x + by,
    "x doubled": lambda x, by, also: 2 * x + by + (also or 0),
}


def test_two_mistakes_at_once_are_both_named():
    mutants = tuple(
        Mutant(name, wrong, rejected_by="equals the reference", cause="")
        for name, wrong in FORGETS.items()
    )
    spec = replace(OPTIONS, mutants=mutants)
    verdict = judge(spec, lambda x, by, also: x + 0)
    assert [mutant.name for mutant in verdict.two] == ["by forgotten", "also forgotten"]
    assert "looks like two mistakes: by forgotten; also forgotten" in str(verdict)
    assert judge(spec, lambda x, by, also: 3 * x).two == ()


SOME = (
    "a batch", "heads", "causal", "a window", "a causal window", "float32", "float16, masked"
)  # fmt: skip


RIGHT_NUMBERS = np.array([[1.0, 2, 4], [3, -5, 6], [0.5, 7, -8], [9, 2.5, 1]])
ONE_WRONG = RIGHT_NUMBERS.copy()
ONE_WRONG[-1, 0] += 1


@pytest.mark.parametrize(
    ("got", "words"),
    [
        (0 * RIGHT_NUMBERS, "all of them are 0"),
        (-RIGHT_NUMBERS, "the signs are flipped"),
        (RIGHT_NUMBERS[::-1], "the rows stand in reverse order"),
        (RIGHT_NUMBERS[:, ::-1], "the last axis is reversed"),
        (np.roll(RIGHT_NUMBERS, 1, 0), "each row stands one row too low"),
        (np.roll(RIGHT_NUMBERS, -1, 0), "each row stands one row too high"),
        (np.roll(RIGHT_NUMBERS, 1, 1), "each column stands one too far to the right"),
        (np.roll(RIGHT_NUMBERS, -1, 1), "each column stands one too far to the left"),
        (RIGHT_NUMBERS / 8, "every number is 0.125 times the right one"),
        (RIGHT_NUMBERS + 3, "every number is off by 3"),
        (RIGHT_NUMBERS * [[1], [2], [3], [4]], "each row is the right one times a factor"),
    ],
)
def test_what_wrong_numbers_have_to_do_with_the_right_ones(got, words):
    assert any(one.startswith(words) for one in relations(RIGHT_NUMBERS, np.array(got), 1e-9))


def test_one_wrong_row_is_placed():
    last, first = RIGHT_NUMBERS, RIGHT_NUMBERS[::-1]
    assert relations(last, ONE_WRONG, 1e-9)[0] == "only the last row is wrong"
    assert relations(first, ONE_WRONG[::-1], 1e-9)[0] == "only the first row is wrong"
    assert "only the last row is wrong" not in relations(last, ONE_WRONG + last, 1e-9)


def test_swapped_axes_are_seen():
    square = RIGHT_NUMBERS[:3]
    assert relations(square, square.T.copy(), 1e-9) == ["the last two axes are swapped"]


def test_what_has_no_simple_relation_gets_no_words():
    strange = RIGHT_NUMBERS**2 + RIGHT_NUMBERS[::-1]
    assert relations(RIGHT_NUMBERS, strange, 1e-9) == []
    assert relations(RIGHT_NUMBERS, RIGHT_NUMBERS[:2], 1e-9) == []
    assert relations(RIGHT_NUMBERS, RIGHT_NUMBERS * np.nan, 1e-9) == []
    assert relations(RIGHT_NUMBERS[0], -RIGHT_NUMBERS[0], 1e-9) == []


def test_a_relation_is_named_where_it_holds_on_every_wrong_case():
    some = replace(
        ATTENTION, checks=(), usual=(), last=(EQUAL,), combine=None, mutants=(),
        cases=lambda rng: [case for case in ATTENTION.cases(rng) if case.label in SOME],
    )  # fmt: skip
    doubled = judge(some, lambda q, k, v, **options: 2 * attention(q, k, v, **options))
    assert doubled.why.endswith(" There every number is 2 times the right one.")

    def by_length(query, key, value, **options):
        return key.shape[-2] * attention(query, key, value, **options)

    assert judge(some, by_length).why.endswith(" There all have one factor.")
    strange = judge(some, lambda q, k, v, **options: attention(q, k, v, **options).sin())
    assert strange.why.endswith(" tolerances.")


def test_where_numbers_differ_is_said():
    some = replace(
        ATTENTION, checks=(), usual=(), last=(EQUAL,), combine=None,
        cases=lambda rng: [case for case in ATTENTION.cases(rng) if case.label in SOME],
    )  # fmt: skip

    def off(when):
        return judge(
            some,
            lambda q, k, v, **options: (
                attention(q, k, v, **options) * (1.5 if when(q, options) else 1)
            ),
        ).why

    low = off(lambda q, options: q.dtype == torch.float16)
    assert "Only in float16: off by up to " in low
    assert low.endswith(" tolerances. There every number is 1.5 times the right one.")
    assert "Only with `window`: " in off(lambda q, options: options.get("window"))
    both = off(lambda q, options: options.get("window") and options.get("causal"))
    assert "On 1 of 7 cases" in both


# --- Who may be judged ----------------------------------------------------------------------------


@torch.jit.script
def scripted(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor):
    scores = query @ key.transpose(-2, -1) / (query.shape[-1] ** 0.5)
    return scores.softmax(-1) @ value


SERVED = {
    "a builtin": torch.nn.functional.scaled_dot_product_attention,
    "TorchScript": scripted,
    "a partial": partial(attention, backend="plain"),
    "any options": lambda query, key, value, **options: attention(query, key, value, **options),
    "an object": type("Mine", (), {"__call__": lambda self, q, k, v: right(q, k, v)})(),
}


@pytest.mark.parametrize("name", SERVED)
def test_whatever_can_be_called_is_served(name):
    assert judge(NARROW, SERVED[name]).passed


def test_a_builtin_is_asked_for_no_options():
    assert keywords(torch.softmax) == set()
    assert keywords(scripted) == {"query", "key", "value"}
    assert keywords(SERVED["any options"]) is None
    assert keywords(SERVED["a partial"]) >= {"mask", "window", "scale"}


def test_a_function_of_any_options_is_not_asked_what_is_for_modules():
    asked = set()

    def forwards(x, w_query, w_key, w_value, **options):
        asked.update(options)
        return self_attention(x, w_query, w_key, w_value)

    assert judge(SPECS["self_attention"], forwards).passed
    assert asked == set()


@pytest.mark.parametrize(
    ("stop", "words"),
    [
        (lambda: sys.exit(3), "RuntimeError: it called sys.exit(3)"),
        (lambda: (_ for _ in ()).throw(MemoryError("full")), "MemoryError: full"),
    ],
)
def test_a_candidate_cannot_end_the_judge(stop, words):
    verdict = judge(NARROW, lambda q, k, v: stop())
    assert verdict.heading == "it runs"
    assert verdict.problem.got == words


def test_a_recursion_without_an_end_is_an_exception_like_others():
    def forever(query, key, value):
        return forever(query, key, value)

    assert isinstance(judge(NARROW, forever).error, RecursionError)
    assert judge(NARROW, right).passed


# --- Bad input, and the exercises -----------------------------------------------------------------


@pytest.mark.plain_types
def test_bad_input_gets_a_clear_error():
    with pytest.raises(TypeError, match="spec: expected a Spec, got str"):
        judge("attention", right)
    with pytest.raises(TypeError, match="candidate: expected a function or a module, got int"):
        judge(NARROW, 3)
    with pytest.raises(ValueError, match=r"name: expected an exercise, such as .*ch01.attention"):
        check("ch01.attend", right)
    with pytest.raises(TypeError, match="name: expected the name of an exercise, got function"):
        check(right, "ch01.attention")
    with pytest.raises(ValueError, match="name: expected one of .*no scale.*, got 'no mask'"):
        pitfall("no mask")


def test_check_judges_an_exercise():
    assert check("ch01.attention", right).passed
    assert check("ch01.attention", textbook).passed
    assert check("ch01.attention", lambda q, k, v: None).unwritten


def test_every_exercise_names_its_chapter_and_has_points():
    for name, spec in EXERCISES.items():
        assert name.startswith(f"ch{spec.chapter:02d}."), name
        assert spec.points > 0, name
        assert spec.statement, name


def test_pitfall_names_are_unique_across_specs():
    names = [mutant.name for spec in SPECS.values() for mutant in spec.mutants]
    assert len(names) == len(set(names))
    assert pitfall("no scale").chapter == 3


def test_every_pitfall_says_what_there_is_to_know():
    for spec in SPECS.values():
        for mutant in spec.mutants:
            for text in (mutant.symptom, mutant.cause, mutant.seen):
                assert len(text) > 10, mutant.name
            assert 1 <= mutant.chapter <= 22
            assert (mutant.candidate is None) == (mutant.rejected_by == "gallery only")
