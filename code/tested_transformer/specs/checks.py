"""What the checks of several families have in common."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from .case import Case, no_simpler
from .compare import Problem, as_array, brief, compare, unchanged
from .draw import Draw
from .run import Run, float_names
from .spec import GRADIENTS, Check, Spec
from .surroundings import kept

Make = Callable[[np.random.Generator], dict[str, Any]]  # draws the arguments of a case

SIZES = (1, 2, 3, 5, 4, 8)  # of axes that are drawn
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

_VARIED: WeakKeyDictionary[Case, dict[str, Case]] = WeakKeyDictionary()


def varied(case: Case, name: str, **changes: Any) -> Case:
    """The case with some arguments replaced: the same object for the same name, so that what is expected
    of it is computed once."""
    known = _VARIED.setdefault(case, {})
    if name not in known:
        known[name] = replace(case, arguments={**case.arguments, **changes}, simpler=no_simpler)
    return known[name]


def as_expected(run: Run, case: Case, what: str = "") -> Problem | None:
    """The candidate's answer to a case against the reference's."""
    expected, tolerance = run.expected(case)
    return compare(expected, run.value(case), tolerance, what)


def stays(run: Run, case: Case, other: Case, when: str, what: str = "the answer") -> Problem | None:
    """The candidate's answers to two cases that must have the same one: both of them round."""
    tolerance = run.expected(case)[1] + run.expected(other)[1]
    return unchanged(run.value(case), run.value(other), tolerance, when, what)


def any_batch(draw: Draw) -> tuple[int, ...]:
    """Batch axes: none, one, several, and axes of length 1."""
    return draw.one_of((), (2,), (1,), (2, 3), (1, 2, 2))


def any_dtype(draw: Draw) -> torch.dtype:
    """The two dtypes in which every formula is asked."""
    return draw.one_of(torch.float64, torch.float32)


def transposed(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same numbers, laid out in memory as views of a transposed tensor are."""
    return {
        name: np.asfortranarray(a) if isinstance(a, np.ndarray) else a
        for name, a in arguments.items()
    }


def larger(case: Case, **by: float) -> Case:
    """The case with some numbers larger by so much: a softmax is the same, and its exponentials overflow."""
    moved = {name: case.arguments[name] + amount for name, amount in by.items()}
    return replace(case, arguments=case.arguments | moved)


def scaled_up(make: Make, **factors: float) -> Make:
    """The arguments that `make` draws, some of them so many times as large."""

    def larger(rng: np.random.Generator) -> dict[str, Any]:
        drawn = make(rng)
        return drawn | {name: factor * drawn[name] for name, factor in factors.items()}

    return larger


def changed(case: Case, **changes: Any) -> Case:
    """The case with some arguments replaced; None takes one away."""
    arguments = {n: a for n, a in {**case.arguments, **changes}.items() if a is not None}
    return replace(case, arguments=arguments)


def tolerance(run: Run, case: Case, answer: np.ndarray, **changes: Any) -> float:
    """That of the case with some arguments replaced, of which `answer` is the size."""
    return run.spec.tolerance(case.changed(**changes), answer)


def largest(array: np.ndarray) -> float:
    """The largest of the finite numbers of an array, by size."""
    return float(np.max(np.abs(array), initial=0.0, where=np.isfinite(array)))


def is_module_class(candidate: Any) -> bool:
    """A class of modules: it may have a mode, and weights of its own making."""
    return isinstance(candidate, type) and issubclass(candidate, nn.Module)


def same_after(
    what: str, others: Callable[[Case], dict[str, Any]], when: Callable[[Case], bool]
) -> Check:
    """A candidate that is built once answers a call of another size as one that is built for it."""

    def test(run: Run, case: Case) -> Problem | None:
        built, arguments = run.built(case.tensors()), others(case)
        once = Run(replace(run.spec, build=lambda candidate, given: built), run.candidate)
        once.value(case)
        before, after = run.value(case, **arguments), once.value(case, **arguments)
        far = 2 * tolerance(run, case, before, **arguments)
        return unchanged(before, after, far, "a call of another size came before")

    return Check(
        what,
        "What is right in a first call fails in a second one of another size: something was kept.",
        test,
        when=when,
    )


def _either_mode(run: Run, case: Case) -> Problem | None:
    if not is_module_class(run.candidate):
        return None
    training, evaluation = (
        Run(replace(run.spec, build=partial(run.spec.build, training=mode)), run.candidate)
        for mode in (True, False)
    )
    before, after = evaluation.value(case), training.value(case)
    far, when = 2 * run.expected(case)[1], "module.train() is called"
    if problem := unchanged(before, after, far, when):
        return problem
    if not any(c.name == GRADIENTS.name and c.concerns(case) for c in run.spec.checks):
        return None
    first, second = (each.all_gradients(case) for each in (evaluation, training))
    for name, (_, far) in run.spec.gradients_of(case).items():
        what = f"the gradient by `{name}`"
        if problem := unchanged(first[name], second[name], 2 * far, when, what):
            return problem
    return None


def either_mode(when: Callable[[Case], bool]) -> Check:
    """A module class answers the same in training and in evaluation.

    The Spec's `build` takes `training`, the mode of the module that it makes.
    """
    return Check(
        "training and evaluation agree",
        "Without dropout module.train() and module.eval() change nothing, and no gradient: no statistics "
        "are kept, nothing is dropped or detached.",
        _either_mode,
        when=when,
    )


def _lets_go(run: Run, case: Case) -> Problem | None:
    if not is_module_class(run.candidate):
        return None
    given = case.tensors()
    with kept():
        module = run.built(given)
        run._called(module, given)
    inputs = {name: weakref.ref(given.pop(name)) for name in float_names(given)}
    held = next((name for name, tensor in inputs.items() if tensor() is not None), None)
    return held and Problem(f"`{held}` free once the call is over", "the module still holds it")


def lets_go(when: Callable[[Case], bool]) -> Check:
    """A module class holds none of its inputs after a call: their memory would never be free."""
    return Check(
        "a call keeps none of its inputs",
        "What a module stores in itself stays as long as it does: after some steps memory is full.",
        _lets_go,
        when=when,
    )


def nan_stays(when: Callable[[Case], bool]) -> Check:
    """Where the first number of x is NaN its token's answer is, and no other token's."""

    def test(run: Run, case: Case) -> Problem | None:
        x = case.arguments["x"].copy()
        x[(0,) * x.ndim] = np.nan
        got = run.value(case, x=x).reshape(-1, x.shape[-1])
        others = run.value(case).reshape(got.shape)[1:]
        if not np.isnan(got[0]).all():
            return Problem("NaN for a token with a NaN", brief(got[0]))
        far = 2 * run.expected(case)[1]
        return unchanged(others, got[1:], far, "another token has a NaN") if len(others) else None

    return Check(
        "a NaN is not hidden",
        "A token with a NaN has no right answer: whoever looks for where it came from must see it.",
        test,
        when=when,
    )


HAIR = 2.0**-30  # a dropout by which, but once in millions, nothing is dropped and all is scaled


def scaled_by_dropout(
    run: Run, case: Case, hair: Case, training: Spec, baseline: Callable[..., Any]
) -> Problem | None:
    """With a hair of dropout the answer is the baseline's: only what dropout acts on is scaled.

    hair: the case with it. training: the Spec whose `build` makes modules that train.
    """
    given = hair.wide_tensors()
    with kept():
        expected = as_array(run.spec.read(baseline(**given), given))
    got = Run(training, run.candidate).value(hair)
    return compare(expected, got, 2 * run.expected(case)[1], "with dropout 2^-30, the answer")
