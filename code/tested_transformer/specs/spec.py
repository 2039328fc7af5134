"""A Spec: what is right for one idea, on which cases, by which checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch

from .case import WIDEST, Case, describe
from .compare import Problem, as_array, compare, unchanged
from .draw import Draw, drawn_case
from .mistakes import Mutant
from .rounding import rounding
from .run import AnswerChanged, Held, NoGradient, Run, float_names, gradients, probe
from .surroundings import kept, reseed
from .tolerance import Tolerance

__all__ = ["Case", "Check", "Run", "Spec", "describe"]

EXACT_EPS = 1e-18  # a wider dtype than float64 has a smaller eps


@dataclass(frozen=True)
class Check:
    """One thing that must hold: a name, the sentence that explains a failure, and a test.

    `test(run, case)` returns None or a Problem. The check looks at the cases that give every
    argument in `needs` and for which `when` is true.
    """

    name: str
    explain: str
    test: Callable[[Run, Case], Problem | None]
    needs: tuple[str, ...] = ()
    when: Callable[[Case], bool] = lambda case: True

    def concerns(self, case: Case) -> bool:
        """Does this check look at this case?"""
        return all(case.arguments.get(n) is not None for n in self.needs) and self.when(case)


@dataclass(frozen=True, eq=False)
class Spec:
    """What is right for one idea.

    required: the arguments that every candidate takes, in order; a case may have others by name.
    of_modules: those by which a module class is made; a function is not asked such cases.
    reference: the slow truth, on NumPy arrays. baseline: the plain formula in torch, from whose operations
    the tolerance is derived (see rounding.py) and whose gradients must be the candidate's, unless
    `differentiable` is False. slack: how much farther than rounding a right answer to a case may be
    from the reference; it must say why. cases: a random generator -> the calls, from small to large.
    combine: a Draw -> one more call; `num_drawn` of them are drawn. checks: what must hold, properties
    first; the `usual` ones come before them and `last` after them, unless one of their name is there.
    mutants: the famous mistakes. build: turns a candidate into a function of the arguments (a module
    class gets the weights of the case). may_refuse: whether a BackendError takes a case from the judge: a
    kernel serves some options alone. read: turns the answer into one array, or one tensor.
    """

    name: str
    statement: str
    required: tuple[str, ...]
    reference: Callable[..., Any]
    cases: Callable[[int], Sequence[Case]]
    checks: Sequence[Check] = ()
    usual: Sequence[Check] = field(default_factory=lambda: (SHAPE, UNTOUCHED))
    last: Sequence[Check] = field(default_factory=lambda: (EQUAL, GRADIENTS, AGAIN))
    combine: Callable[[Draw], Case] | None = None
    num_drawn: int = 10
    of_modules: tuple[str, ...] = ()
    differentiable: bool = True
    may_refuse: bool = False
    mutants: Sequence[Mutant] = ()
    baseline: Callable[..., Any] | None = None
    slack: Callable[[Case], float] | None = None
    build: Callable[[Any, dict[str, Any]], Callable[..., Any]] = lambda candidate, arguments: (
        candidate
    )
    read: Callable[[Any, dict[str, Any]], Any] = lambda answer, arguments: answer
    chapter: int = 0
    points: int = 0

    def __post_init__(self) -> None:
        named = {check.name for check in self.checks}
        before, after = (
            [check for check in some if check.name not in named] for some in (self.usual, self.last)
        )
        if self.baseline is None or not self.differentiable:
            after = [check for check in after if check is not GRADIENTS]
        object.__setattr__(self, "checks", (*before, *self.checks, *after))
        of_spec = (m if m.chapter else replace(m, chapter=self.chapter) for m in self.mutants)
        object.__setattr__(self, "mutants", tuple(of_spec))

    def draw(self, seed: int) -> list[Case]:
        """The cases of a seed; another seed draws other numbers, and other combinations of options."""
        listed = list(self.cases(np.random.default_rng(seed)))
        if self.combine is None:
            return listed
        seeds = range(seed * self.num_drawn, (seed + 1) * self.num_drawn)
        return listed + [drawn_case(self.combine, each) for each in seeds]

    def narrowed(self, keep: Callable[[Case], bool], **changes: Any) -> Spec:
        """The same Spec on some of its cases, with the checks that look at one of them."""

        def cases(rng: np.random.Generator) -> list[Case]:
            return [case for case in self.cases(rng) if keep(case)]

        given = cases(np.random.default_rng(0))
        checks = [check for check in self.checks if any(map(check.concerns, given))]
        return replace(self, **{"cases": cases, "checks": checks, "combine": None} | changes)

    def expected(self, case: Case, **changes: Any) -> np.ndarray:
        """The reference's answer."""
        return np.asarray(self.reference(**case.arrays(**changes)))

    def expected_of(self, case: Case) -> tuple[np.ndarray, float | Tolerance]:
        """The reference's answer and the tolerance that goes with it, remembered with the case."""

        def find() -> tuple[np.ndarray, float | Tolerance]:
            expected = self.expected(case)
            return expected, self.tolerance(case, expected)

        return case.remembered("expected", find)

    def tolerance(self, case: Case, expected: np.ndarray) -> float | Tolerance:
        """What rounding does to the plain formula + 4 eps x the largest expected number + the slack.

        Where the reference is no wider than the candidate, its own rounding counts as well. The first part
        is worked out when it is needed.
        """
        if expected.dtype.kind not in "fc" or not expected.size:
            return 0.0
        sides = 2 if case.dtype == torch.float64 and np.finfo(WIDEST).eps > EXACT_EPS else 1
        about = torch.finfo(case.dtype)
        least = sides * 4 * about.eps * _largest(expected)
        if expected.any():  # a wider type's 1e-337 is 0 in this one
            least += about.eps * about.tiny
        least += 0.0 if self.slack is None else self.slack(case)
        if self.baseline is None:
            return least
        return Tolerance(least, lambda: least + sides * self._rounding(case))

    def _rounding(self, case: Case) -> float:
        """What rounding does to the plain formula, remembered with the case."""

        def find() -> float:
            given = case.wide_tensors()  # exact: only what the formula does with them is shaken
            with kept():
                return rounding(lambda: {"": self._plain(given)}, case.dtype)[""]

        return case.remembered(("rounding", self.baseline), find)

    def gradients_of(self, case: Case) -> dict[str, tuple[np.ndarray, Tolerance]]:
        """The plain formula's gradients by every floating point argument, and their tolerances.

        They are computed in float64, so that where this is the case's own dtype both sides round. What cancels
        to nothing is as large, before it cancels, as the largest gradient of the call.
        """

        def find() -> dict[str, tuple[np.ndarray, Tolerance]]:
            with kept():
                found = self._plain_gradients(case.wide_tensors())
            sides = 2 if case.dtype == torch.float64 else 1
            largest = max(map(_largest, found.values()), default=0.0)
            least = sides * 4 * torch.finfo(case.dtype).eps * largest
            return {
                name: (gradient, Tolerance(least, partial(whole, name, least, sides)))
                for name, gradient in found.items()
            }

        def whole(name: str, least: float, sides: int) -> float:
            return least + sides * self._rounding_of_gradients(case)[name]

        return case.remembered("gradients", find)

    def _rounding_of_gradients(self, case: Case) -> dict[str, float]:
        """What rounding does to the plain formula's gradients, remembered with the case."""

        def find() -> dict[str, float]:
            given = case.wide_tensors()
            with kept():
                return rounding(lambda: self._plain_gradients(given), case.dtype)

        return case.remembered("rounding of gradients", find)

    def _plain(self, given: dict[str, Any]) -> np.ndarray:
        reseed()
        return as_array(self.read(self.baseline(**given), given))

    def _plain_gradients(self, given: dict[str, Any]) -> dict[str, np.ndarray]:
        reseed()
        return gradients(
            lambda given: self.read(self.baseline(**given), given),
            given, float_names(given), probe,
        )  # fmt: skip


def _largest(array: np.ndarray) -> float:
    return float(np.max(np.abs(array), initial=0.0, where=np.isfinite(array)))


def specs_in(module: ModuleType) -> list[Spec]:
    """The Specs that a module defines, in its order."""
    return [each for each in vars(module).values() if isinstance(each, Spec)]


def _equal(run: Run, case: Case) -> Problem | None:
    expected, tolerance = run.expected(case)
    return compare(expected, run.value(case), tolerance)


def _untouched(run: Run, case: Case) -> Problem | None:
    outcome = run.outcome(case)
    if outcome.changed is not None:
        return Problem(f"`{outcome.changed}` as it was", f"`{outcome.changed}` changed in place")
    if outcome.disturbed is not None:
        return Problem(f"{outcome.disturbed} as it was", f"{outcome.disturbed} set by the call")
    return None


def _gradients(run: Run, case: Case) -> Problem | None:
    if not run.outcome(case).is_tensor:
        return None
    wanted = run.spec.gradients_of(case)
    try:
        got, answer = run.graded(case)
    except NoGradient:
        if any(expected.any() for expected, _ in wanted.values()):
            raise
        return None  # zeros for what is all masked need not depend on anything
    for name, (expected, tolerance) in wanted.items():
        problem = compare(expected, got[name], tolerance, f"gradient by `{name}`")
        if problem is not None:
            return problem
    slack = 2 * run.expected(case)[1]
    if problem := unchanged(run.value(case), answer, slack, "its arguments ask for a gradient"):
        return problem
    alone = run.gradient_alone(case, [name for name, (each, _) in wanted.items() if each.any()])
    for name, gradient in alone.items():
        what = f"where only `{name}` asks for one, the gradient by it"
        if problem := compare(wanted[name][0], gradient, wanted[name][1], what):
            return problem
    return None


def _again(run: Run, case: Case) -> Problem | None:
    """Build it once, call it with other numbers of the same sizes, then with those of the case.

    The last call is without gradients, on tensors that are laid out in another way.
    """
    others = {
        name: -a if a.dtype.kind == "f" and (a < 0).any() else np.flip(a).copy()
        for name, a in case.arguments.items()
        if isinstance(a, np.ndarray)  # probabilities stay ones: they are reversed
    }
    before, tolerance, found = run.value(case), 2 * run.expected(case)[1], None
    for when, how in (
        ("", {"transposed": True, "learns": False}),  # all at once; if that goes wrong, one by one
        ("another call came before", {}),
        ("the call is under torch.no_grad()", {"learns": False}),
        ("the tensors are views of transposed ones", {"transposed": True}),
    ):
        try:
            after = run.after_another_call(case, **how, **others)
        except AnswerChanged as error:
            before, after = error.args
            return unchanged(before, after, 0.0, "another call comes after", "an earlier answer")
        except Held as error:
            return Problem(f"`{error}` free once the call is over", "something still holds it")
        problem = unchanged(before, after, tolerance, when or "it is called again")
        found = found or problem
        if problem is None and not when:
            return None
        if problem is not None and when:
            return problem
    return found


def _has_numbers(case: Case) -> bool:
    """Whether there is a floating point array, by which a gradient can be taken."""
    arrays = [a for a in case.arguments.values() if isinstance(a, np.ndarray)]
    return any(a.dtype.kind == "f" and a.size for a in arrays)


def finite(run: Run, case: Case) -> Problem | None:
    """The test of a check that no number is NaN or infinite."""
    return None if np.isfinite(run.value(case)).all() else Problem("finite numbers", "NaN or inf")


def _shape(run: Run, case: Case) -> Problem | None:
    expected, got = run.expected(case)[0], run.value(case)
    if expected.shape != got.shape:
        return Problem(f"shape {expected.shape}", f"shape {got.shape}")
    floats = expected.dtype.kind == "f"
    dtype = run.outcome(case).dtype
    if floats and isinstance(dtype, torch.dtype) and dtype != case.dtype:
        return Problem(str(case.dtype), str(dtype))
    if floats and got.dtype.kind not in "fiub":
        return Problem("real numbers", f"dtype {got.dtype}")
    if not floats and expected.dtype.kind != got.dtype.kind:
        return Problem(f"dtype {expected.dtype}", f"dtype {got.dtype}")
    return None


SHAPE = Check(
    "the right shape and dtype",
    "The answer must have the shape and the dtype that the statement names.",
    _shape,
)


UNTOUCHED = Check(
    "the inputs stay as they were",
    "The function changes what belongs to its caller. Operations whose name ends in _ work in place.",
    _untouched,
)


EQUAL = Check(
    "equals the reference",
    "The numbers differ from the slow reference by more than rounding can explain.",
    _equal,
)


GRADIENTS = Check(
    "the gradients are right",
    "The numbers are right, and what flows back is not: something is detached, cast, or cut off.",
    _gradients,
    when=_has_numbers,
)


AGAIN = Check(
    "a call leaves nothing behind",
    "The same call gives another answer after a call with other numbers: something was kept.",
    _again,
)
