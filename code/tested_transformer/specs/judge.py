"""The judge: the one engine that decides whether an implementation is right, and says why not.

A Spec says what is right (a reference), on which cases, by which checks, and which famous mistakes
(mutants) must be told apart. `judge(spec, candidate)` runs the checks in order, properties first and
equality with the reference last, on the cases from small to large, and then on those without numbers
(no keys, no rows), and returns a Verdict. When the candidate fails, the judge compares its answers
with those of every mutant: if one gives the same wrong answer on every case, that is the mistake.
"""

from __future__ import annotations

import inspect
import itertools
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from ..errors import BackendError, argument_error
from .own_code import is_written, name_of, own_line

__all__ = ["Case", "Check", "Mutant", "Problem", "Spec", "Verdict", "judge"]


@dataclass(frozen=True, eq=False)
class Case:
    """One call: a label for people, the arguments as NumPy arrays or plain values, and a dtype.

    Floating point arrays reach the candidate as tensors of `dtype`; the reference gets the same
    rounded numbers in a wider one.
    """

    label: str
    arguments: Mapping[str, Any]
    dtype: torch.dtype = torch.float64

    def tensors(self, **changes: Any) -> dict[str, Any]:
        """Fresh tensors for the candidate, with some arguments replaced."""
        return {name: self._tensor(a) for name, a in {**self.arguments, **changes}.items()}

    def arrays(self, **changes: Any) -> dict[str, Any]:
        """The same numbers for the reference: float64, or longdouble where float64 is judged."""
        wide = np.longdouble if self.dtype == torch.float64 else np.float64
        return {name: _widen(a, wide) for name, a in self.tensors(**changes).items()}

    @property
    def is_empty(self) -> bool:
        """Whether an array has no numbers: no keys, no rows."""
        return any(isinstance(a, np.ndarray) and not a.size for a in self.arguments.values())

    def _tensor(self, argument: Any) -> Any:
        if not isinstance(argument, np.ndarray):
            return argument
        tensor = torch.from_numpy(argument.copy())
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor


def _widen(argument: Any, dtype: Any) -> Any:
    if not isinstance(argument, Tensor):
        return argument
    if argument.is_floating_point():
        return argument.double().numpy().astype(dtype)
    return argument.numpy()


@dataclass(frozen=True)
class Problem:
    """What a check found: what was expected and what came instead, in words or numbers."""

    expected: str
    got: str


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


@dataclass(frozen=True)
class Mutant:
    """A famous mistake: a wrong implementation, and what there is to know about it.

    `rejected_by` names the first check that must reject it, or the exception that it raises. A
    mistake that no judge can see (a test without an assertion) has no candidate, and says why.
    """

    name: str
    candidate: Any
    rejected_by: str
    symptom: str
    cause: str
    seen: str
    chapter: int


@dataclass(frozen=True, eq=False)
class Spec:
    """What is right for one idea.

    required: the arguments that every candidate takes, in order; a case may have others by name.
    reference: the slow truth, on NumPy arrays. baseline: the plain formula in torch, whose own rounding
    error in a dtype sets the tolerance there. slack: how much farther than rounding a right answer to
    a case may be from the reference; it must say why. cases: a seed -> the calls, from small to large.
    checks: in order, properties first. mutants: the famous mistakes. build: turns a candidate into a
    function of the arguments (a module class gets the weights of the case). read: turns the answer
    into one array.
    """

    name: str
    statement: str
    required: tuple[str, ...]
    reference: Callable[..., Any]
    cases: Callable[[int], Sequence[Case]]
    checks: Sequence[Check]
    mutants: Sequence[Mutant] = ()
    baseline: Callable[..., Any] | None = None
    slack: Callable[[Case], float] | None = None
    build: Callable[[Any, dict[str, Any]], Callable[..., Any]] = lambda candidate, arguments: (
        candidate
    )
    read: Callable[[Any, dict[str, Any]], Any] = lambda answer, arguments: answer
    chapter: int = 0
    points: int = 0

    def expected(self, case: Case, **changes: Any) -> np.ndarray:
        """The reference's answer."""
        return np.asarray(self.reference(**case.arrays(**changes)))

    def tolerance(self, case: Case, expected: np.ndarray) -> float:
        """2 x the plain formula's error + 4 eps x the largest expected number + the Spec's slack."""
        if expected.dtype.kind not in "fc" or not expected.size:
            return 0.0
        largest = float(np.max(np.abs(expected), initial=0.0, where=np.isfinite(expected)))
        rounding = 2 * self.error(case, expected) + 4 * torch.finfo(case.dtype).eps * largest
        return rounding if self.slack is None else rounding + self.slack(case)

    def error(self, case: Case, expected: np.ndarray) -> float:
        """How far the plain formula in the case's dtype is from the reference; 0 without a baseline."""
        if self.baseline is None:
            return 0.0
        arguments = case.tensors()
        plain = as_array(self.read(self.baseline(**arguments), arguments))
        with np.errstate(invalid="ignore"):  # inf - inf, which does not count
            far = np.abs(plain - expected)
        return float(np.max(far, initial=0.0, where=np.isfinite(expected)))


# The reference is slow, and every candidate and mutant is compared with it.
_EXPECTED: WeakKeyDictionary[Case, tuple[np.ndarray, float]] = WeakKeyDictionary()


@dataclass
class Outcome:
    """What a candidate did on one call: a value or an exception, and what it did to its inputs."""

    value: np.ndarray | None = None
    error: Exception | None = None
    dtype: Any = None
    changed: str | None = None


@dataclass
class Run:
    """One candidate at work on one Spec."""

    spec: Spec
    candidate: Any
    _outcomes: dict[Case, Outcome] = field(default_factory=dict)

    def refuses(self, case: Case) -> str | None:
        """Why the case does not apply to this candidate, or None if it does."""
        extra = [
            n for n, a in case.arguments.items() if n not in self.spec.required and a is not None
        ]
        takes = _keywords(self.candidate)
        missing = [name for name in extra if takes is not None and name not in takes]
        if missing:
            return "takes no " + ", ".join(f"`{name}`" for name in missing)
        error = self.outcome(case).error
        return str(error) if isinstance(error, BackendError) else None

    def outcome(self, case: Case) -> Outcome:
        """The candidate's answer to a case, remembered."""
        if case not in self._outcomes:
            self._outcomes[case] = self.call(case)
        return self._outcomes[case]

    def expected(self, case: Case) -> tuple[np.ndarray, float]:
        """The reference's answer and the tolerance that goes with it, remembered with the case."""
        if case not in _EXPECTED:
            expected = self.spec.expected(case)
            _EXPECTED[case] = expected, self.spec.tolerance(case, expected)
        return _EXPECTED[case]

    def call(self, case: Case, **changes: Any) -> Outcome:
        """Call the candidate on the case with some arguments replaced; exceptions are answers."""
        given, untouched = case.tensors(**changes), case.tensors(**changes)
        try:
            answer = self.answer(given)
            value = as_array(self.spec.read(answer, given))
        except Exception as error:  # whatever a reader's function raises is the verdict's to report
            return Outcome(error=error)
        changed = next((n for n in given if not _same(given[n], untouched[n])), None)
        return Outcome(value, dtype=getattr(answer, "dtype", None), changed=changed)

    def value(self, case: Case, **changes: Any) -> np.ndarray:
        """The candidate's value; an exception is raised for the judge to report."""
        outcome = self.call(case, **changes) if changes else self.outcome(case)
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def gradients(self, case: Case, names: Sequence[str], **changes: Any) -> dict[str, np.ndarray]:
        """Gradients of the sum of the answer by the named arguments."""
        given = case.tensors(**changes)
        for name in names:
            given[name].requires_grad_()
        self.answer(given).sum().backward()
        return {n: as_array(torch.zeros_like(g) if g.grad is None else g.grad)
                for n, g in given.items() if n in names}  # fmt: skip

    def answer(self, given: dict[str, Any]) -> Any:
        """Call the candidate: required arguments by place, the others by name, a fixed seed."""
        function = self.spec.build(self.candidate, given)
        placed = [given[name] for name in self.spec.required]
        named = {n: a for n, a in given.items() if n not in self.spec.required and a is not None}
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a warning from a wrong function belongs on no page
            torch.default_generator.manual_seed(0)  # torch.manual_seed asks every kind of device
            return function(*placed, **named)


def _keywords(candidate: Any) -> set[str] | None:
    """The names a candidate takes, a module class when made or when called; None if it takes any."""
    targets = [candidate.forward if isinstance(candidate, torch.nn.Module) else candidate]
    if isinstance(candidate, type) and issubclass(candidate, torch.nn.Module):
        targets.append(candidate.forward)
    parameters = [p for t in targets for p in inspect.signature(t).parameters.values()]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return {p.name for p in parameters}


def as_array(answer: Any) -> np.ndarray:
    """An answer as a NumPy array: tensors detached, floats widened to float64.

    Raises: TypeError for anything that is not a tensor, an array or a number.
    """
    if isinstance(answer, Tensor):
        answer = answer.detach().cpu()
        return (answer.double() if answer.is_floating_point() else answer).numpy()
    if isinstance(answer, np.ndarray | np.generic | bool | int | float):
        return np.asarray(answer)
    raise argument_error(TypeError, "the answer", f"a {type(answer).__name__}", "a tensor")


def _same(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor):
        return True
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())  # NaN stays NaN


RUNS, RETURNS = "it runs", "it returns an answer"  # what a Verdict names in place of a check


@dataclass(frozen=True)
class Verdict:
    """What the judge found. Printed, it is what a reader sees; as a condition, whether it passed.

    failed, why, case, problem, error: the first check that failed, its explanation, the smallest case
    on which it did, what was expected and came, and the exception if there was one. mistake: the
    famous mistake that explains every case, but for those that raise if this one did not, or None.
    elsewhere: if this one raised, the famous mistake that explains those that did not. skipped: checks
    that do not apply, and why.
    """

    spec: Spec
    passed: bool = False
    unwritten: bool = False
    failed: str | None = None  # the name of the check that failed
    why: str = ""
    case: Case | None = None
    problem: Problem | None = None
    error: Exception | None = None
    mistake: Mutant | None = None
    elsewhere: Mutant | None = None
    skipped: Mapping[str, str] = field(default_factory=dict)  # check -> why it does not apply
    num_cases: int = 0

    def __bool__(self) -> bool:
        return self.passed

    @property
    def heading(self) -> str:
        """What did not hold, for a reader: a call that raises does not run, whichever check made it."""
        return RUNS if self.error is not None and _raised_in_call(self.error) else self.failed

    def __repr__(self) -> str:
        if self.unwritten:
            return f"· {self.spec.name}: not written yet. Replace the ... and run the cell again."
        if self.passed:
            ran = len(self.spec.checks) - len(self.skipped)
            return f"✓ {self.spec.name}: right. {ran} checks on {self.num_cases} cases."
        lines = [f"✗ {self.spec.name}: not right yet.", f"  check     {self.heading}"]
        lines += [f"  why       {self.why}", f"  case      {describe(self.case)}"]
        lines += [f"  expected  {self.problem.expected}", f"  got       {self.problem.got}"]
        for words, mistake in (("", self.mistake), ("elsewhere it ", self.elsewhere)):
            if mistake is not None:
                lines.append(f"  {words}looks like  {mistake.name}: {mistake.cause}")
        return "\n".join(lines)


def judge(spec: Spec, candidate: Any, *, seed: int = 0) -> Verdict:
    """Decide whether the candidate is what the Spec asks for.

    The candidate is a function, or what the Spec's `build` takes. Nothing that it does is raised: an
    exception inside it is part of the Verdict. The seed draws other cases of the same shapes.

    Raises: TypeError if `spec` is no Spec or the candidate can not be called.
    """
    if not isinstance(spec, Spec):
        raise argument_error(TypeError, "spec", type(spec).__name__, "a Spec")
    if not callable(candidate):
        raise argument_error(
            TypeError, "candidate", type(candidate).__name__, "a function or a module"
        )
    run, (every, mutants) = Run(spec, candidate), drawn(spec, seed)
    if (unanswered := _unanswered(run, every[0])) is not None:
        return unanswered
    reasons = {case: run.refuses(case) for case in every}
    cases = [case for case in every if reasons[case] is None]
    if not cases:
        raise argument_error(
            TypeError, "candidate", f"one that {reasons[every[0]]}", "one that serves a case"
        )
    skipped = {
        check.name: next((reasons[case] for case in every if check.concerns(case)), "no case")
        for check in spec.checks
        if not any(check.concerns(case) for case in cases)
    }
    failure = first_failure(run, cases)
    if failure is None:
        return Verdict(spec, passed=True, skipped=skipped, num_cases=len(cases))
    check, case, problem, error = failure
    why = _raised(error, candidate) if error else check.explain
    mistake = diagnose(run, mutants, cases, check)
    beside = None if mistake else _beside_exceptions(run, mutants, cases)
    mistake, elsewhere = (mistake, beside) if error else (mistake or beside, None)
    return Verdict(spec, False, False, check.name, why, case, problem, error, mistake, elsewhere,
                   skipped, len(cases))  # fmt: skip


@lru_cache(maxsize=16)  # what the mutants answer is the same for every candidate
def drawn(spec: Spec, seed: int) -> tuple[list[Case], list[tuple[Mutant, Run]]]:
    """The cases of a seed, and every mutant at work, whose answers to them are remembered."""
    able = [mutant for mutant in spec.mutants if mutant.candidate is not None]
    return list(spec.cases(seed)), [(mutant, Run(spec, mutant.candidate)) for mutant in able]


def first_failure(
    run: Run, cases: Sequence[Case]
) -> tuple[Check, Case, Problem, Exception | None] | None:
    """The first check that fails, and the smallest case on which it does.

    A case without numbers comes after all checks of the others: what goes wrong there alone would
    hide the mistake that matters.
    """
    groups = [[c for c in cases if c.is_empty == empty] for empty in (False, True)]
    for group, check in itertools.product(groups, run.spec.checks):
        for case in group:
            failure = _try(check, run, case) if check.concerns(case) else None
            if failure is not None:
                return check, case, *failure
    return None


def _unanswered(run: Run, case: Case) -> Verdict | None:
    """The verdict on a candidate that returns nothing: not written, or without its `return`."""
    try:
        answer = run.answer(case.tensors())
    except NotImplementedError:
        answer = ...
    except Exception:  # a written function that fails: the checks will say how
        return None
    if answer is not None and answer is not ...:
        return None
    if answer is ... or not is_written(run.candidate):
        return Verdict(run.spec, unwritten=True)
    why = f"{name_of(run.candidate)} returned None: is a `return` missing?"
    problem = Problem("an answer", "None")
    return Verdict(run.spec, failed=RETURNS, why=why, case=case, problem=problem)


def _raised(error: Exception, candidate: Any) -> str:
    """Why a call that raised is wrong, and where it did."""
    line = own_line(error, candidate)
    return f"The call raised {type(error).__name__}{line and f', in your {line}'}."


def _raised_in_call(error: Exception) -> bool:
    """Whether the candidate itself raised, not the check that looked at its answer."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code is Run.answer.__code__ for frame, _ in frames)


def _try(check: Check, run: Run, case: Case) -> tuple[Problem, Exception | None] | None:
    """Run one check on one case; an exception is a problem too."""
    try:
        problem = check.test(run, case)
    except Exception as error:  # the reader's function raised: report it, do not crash the page
        text = " ".join(str(error).split())[:160]
        return Problem("an answer", f"{type(error).__name__}: {text}"), error
    return None if problem is None else (problem, None)


def diagnose(
    run: Run, mutants: Sequence[tuple[Mutant, Run]], cases: Sequence[Case], failed: Check
) -> Mutant | None:
    """The mutant that gives the candidate's answer on every case and fails the same check."""
    return next(_lookalikes(run, mutants, cases, failed), None)


def _beside_exceptions(
    run: Run, mutants: Sequence[tuple[Mutant, Run]], cases: Sequence[Case]
) -> Mutant | None:
    """If the candidate raised on some cases: the only mutant that is as wrong on all others."""
    answered = [case for case in cases if run.outcome(case).error is None]
    if len(answered) == len(cases) or not (failure := first_failure(run, answered)):
        return None
    found = list(_lookalikes(run, mutants, answered, failure[0]))
    return found[0] if len(found) == 1 else None


def _lookalikes(
    run: Run, mutants: Sequence[tuple[Mutant, Run]], cases: Sequence[Case], failed: Check
) -> Iterator[Mutant]:
    for mutant, other in mutants:
        if mutant.candidate is run.candidate:
            continue
        alike = all(same_outcome(run, c, run.outcome(c), other.outcome(c)) for c in cases)
        if alike and (failure := first_failure(other, cases)) and failure[0] is failed:
            yield mutant


def same_outcome(run: Run, case: Case, first: Outcome, second: Outcome) -> bool:
    """Do two candidates do the same on a case: the same exception, or equal values?"""
    if first.error is not None or second.error is not None:
        return type(first.error) is type(second.error)
    if first.value.shape != second.value.shape or first.changed != second.changed:
        return False
    slack = run.expected(case)[1] + 4 * _eps(case) * _largest(second.value)
    return difference(first.value, second.value, slack) is None


def _eps(case: Case) -> float:
    return torch.finfo(case.dtype).eps


def _largest(value: np.ndarray) -> float:
    if value.dtype.kind != "f":
        return 0.0
    return float(np.max(np.abs(value), initial=0.0, where=np.isfinite(value)))


def difference(expected: np.ndarray, got: np.ndarray, tolerance: float) -> tuple[int, ...] | None:
    """The first place where two arrays differ by more than the tolerance; NaN equals NaN."""
    if expected.dtype.kind != "f":
        wrong = expected != got
    else:
        with np.errstate(invalid="ignore"):  # inf - inf
            far = ~(np.abs(expected - got) <= tolerance)
        wrong = far & ~(np.isnan(expected) & np.isnan(got)) & ~(expected == got)
    places = np.argwhere(wrong)
    return tuple(int(i) for i in places[0]) if len(places) else None


def describe(case: Case) -> str:
    """A case in words: its label, dtype and the shapes or values of its arguments."""
    parts = []
    for name, argument in case.arguments.items():
        if argument is None:
            continue
        small = not isinstance(argument, np.ndarray) or argument.size <= 4
        parts.append(f"{name} {brief(argument)}" if small else f"{name} {argument.shape}")
    return f"{case.label} ({str(case.dtype).removeprefix('torch.')}): " + ", ".join(parts)


def brief(value: Any) -> str:
    """A value on one line, rounded to four decimals and cut to about 100 characters."""
    if isinstance(value, np.ndarray):
        value = value.astype(np.float64) if value.dtype.kind == "f" else value
        text = np.array2string(value, precision=4, threshold=12, edgeitems=3, separator=", ")
        value = " ".join(text.split())
    text = f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)
    return text if len(text) <= 100 else text[:97] + "..."


def compare(
    expected: np.ndarray, got: np.ndarray, tolerance: float, what: str = "", like: str = ""
) -> Problem | None:
    """A Problem that shows the first difference, or None if the arrays agree.

    `what` says what the numbers are, where they are not the answer itself. `like` says what was changed
    where the expected numbers are the candidate's own, of a changed call.
    """
    as_there = f", as {like}" if like else ""
    if expected.shape != got.shape:
        return Problem(f"shape {expected.shape}{as_there}", f"shape {got.shape}")
    place = difference(expected, got, tolerance)
    if place is None:
        return None
    where = f" at {list(place)}" if place else ""
    what = f"{what} = " if what else ""
    wanted, came = (
        f"{what}{brief(expected)}; {brief(expected[place])}{where}",
        f"{what}{brief(got)}; ",
    )
    came += f"{brief(got[place])}{where}"
    if came == wanted:  # the difference is beyond the digits that are shown
        came += f", which is off by {abs(float(expected[place]) - float(got[place])):.1g}"
    return Problem(wanted + as_there, came)


def _equal(run: Run, case: Case) -> Problem | None:
    expected, tolerance = run.expected(case)
    return compare(expected, run.value(case), tolerance)


def _untouched(run: Run, case: Case) -> Problem | None:
    changed = run.outcome(case).changed
    return changed and Problem(f"`{changed}` as it was", f"`{changed}` changed in place")


def _shape(run: Run, case: Case) -> Problem | None:
    expected, got = run.expected(case)[0], run.value(case)
    if expected.shape != got.shape:
        return Problem(f"shape {expected.shape}", f"shape {got.shape}")
    floats = expected.dtype.kind == "f"
    dtype = run.outcome(case).dtype
    if floats and isinstance(dtype, torch.dtype) and dtype != case.dtype:
        return Problem(str(case.dtype), str(dtype))
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
    "The function changes a tensor of its caller. Operations whose name ends in _ work in place.",
    _untouched,
)
EQUAL = Check(
    "equals the reference",
    "The numbers differ from the slow reference by more than rounding can explain.",
    _equal,
)
