"""The judge: the one engine that decides whether an implementation is right, and says why not.

A Spec says what is right (a reference), on which cases, by which checks, and which famous mistakes
(mutants) must be told apart. `judge(spec, candidate)` runs the checks in order, properties first and
equality with the reference last, on the cases from small to large, and then on those without numbers
(no keys, no rows), and returns a Verdict. When the candidate fails, the judge compares its answers
with those of every mutant: if one gives the same wrong answer on every case, that is the mistake.
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ..errors import argument_error
from . import run as running
from .case import Case, describe
from .compare import NoNumbers, Problem, agree, relations
from .draw import smallest
from .mistakes import Mutant
from .own_code import is_written, name_of, own_line
from .run import Outcome, Run
from .spec import EQUAL, GRADIENTS, Check, Spec

__all__ = ["Verdict", "judge"]


CALLS = (Run._called.__code__, Run.built.__code__)  # where the candidate's own code runs
RUNS, RETURNS = "it runs", "it returns an answer"  # what a Verdict names in place of a check


@dataclass(frozen=True)
class Verdict:
    """What the judge found. Printed, it is what a reader sees; as a condition, whether it passed.

    failed, why, case, problem, error: the first check that failed, its explanation, the smallest case
    on which it did, what was expected and came, and the exception if there was one. mistake: the
    famous mistake that explains every case, but for those that raise if this one did not, or None.
    elsewhere: if this one raised, the famous mistake that explains those that did not. two: two famous
    mistakes that explain every case on which one of them alone shows. skipped: checks that do not apply,
    and why.
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
    two: tuple[Mutant, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)  # check -> why it does not apply
    num_cases: int = 0

    def __bool__(self) -> bool:
        return self.passed

    @property
    def broken(self) -> bool:
        """Whether the check raised by itself: it is wrong, or the answer's form is none that it knows."""
        return self.error is not None and checker_failed(self.error)

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
        if self.broken:
            return (
                f"✗ {self.spec.name}: could not be checked.\n  check     {self.failed}\n"
                "  why       The check raised an error, and not your function. Has the answer the form that was "
                f"asked for? Then the check is wrong.\n  raised    {where(self.error)}\n"
                f"  case      {describe(self.case)}"
            )
        lines = [f"✗ {self.spec.name}: not right yet.", f"  check     {self.heading}"]
        lines += [f"  why       {self.why}", f"  case      {describe(self.case)}"]
        lines += [f"  expected  {self.problem.expected}", f"  got       {self.problem.got}"]
        for words, mistake in (("", self.mistake), ("elsewhere it ", self.elsewhere)):
            if mistake is not None:
                lines.append(f"  {words}looks like  {mistake.name}: {mistake.cause}")
        if self.two:
            first, second = self.two
            lines.append(f"  looks like two mistakes: {first.name}; {second.name}")
        return "\n".join(lines)


def judge(spec: Spec, candidate: Any, *, seed: int = 0) -> Verdict:
    """Decide whether the candidate is what the Spec asks for.

    The candidate is a function, or what the Spec's `build` takes. Nothing that it does is raised: an
    exception inside it is part of the Verdict. The seed draws other cases of the same shapes.

    Raises: TypeError if `spec` is no Spec or the candidate cannot be called.
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
    two = () if mistake or error else _two_at_once(run, mutants, cases)
    if check.name == EQUAL.name and not error:
        why = f"{why} {where_it_differs(run, cases)}"
    case, problem, error = _smallest(run, check, case, problem, error)
    return Verdict(spec, False, False, check.name, why, case, problem, error, mistake, elsewhere,
                   two, skipped, len(cases))  # fmt: skip


@lru_cache(maxsize=16)  # what the mutants answer is the same for every candidate
def drawn(spec: Spec, seed: int) -> tuple[list[Case], list[tuple[Mutant, Run]]]:
    """The cases of a seed, and every mutant at work, whose answers to them are remembered."""
    able = [mutant for mutant in spec.mutants if mutant.candidate is not None]
    return spec.draw(seed), [(mutant, Run(spec, mutant.candidate)) for mutant in able]


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


def _smallest(
    run: Run, check: Check, case: Case, problem: Problem, error: Exception | None
) -> tuple[Case, Problem, Exception | None]:
    """The failure on the simplest case like this one, where the case was drawn."""

    def fails(other: Case) -> bool:
        return (
            check.concerns(other)
            and run.refuses(other) is None
            and _try(check, run, other) is not None
        )

    found = smallest(case, fails)
    return (case, problem, error) if found is case else (found, *_try(check, run, found))


def where_it_differs(run: Run, cases: Sequence[Case]) -> str:
    """What the cases with wrong numbers have in common and no others have, and how wrong they are."""
    wrong = [case for case in cases if not run.is_right(case)]
    right = [case for case in cases if case not in wrong]
    common = set.intersection(*(_traits(run.spec, case) for case in wrong))
    alone = sorted(common - set().union(*(_traits(run.spec, case) for case in right)))
    found = alone[:1] or sorted(common)[:2]
    where = f"Only {found[0]}" if alone else f"On {len(wrong)} of {len(cases)} cases"
    where += f", all {' and '.join(found)}" if found and right and not alone else ""
    far = max((_tolerances(run, case) for case in wrong), default=0.0)
    where += f": off by up to {far:.2g} tolerances" if 0 < far < np.inf else ""
    alike = how_they_relate(run, wrong)
    return f"{where}. There {alike}." if alike else f"{where}."


def how_they_relate(run: Run, cases: Sequence[Case]) -> str | None:
    """What the wrong numbers of all these cases have to do with the right ones, if it is simple."""
    found = []
    for case in cases:
        expected, tolerance = run.expected(case)
        outcome = run.outcome(case)
        if outcome.error:
            return None
        if expected.ndim > 1 and expected.size > 3:
            found.append(relations(expected, outcome.value, float(tolerance)))
    return (
        next((words for words in found[0] if all(words in f for f in found)), None)
        if found
        else None
    )


def _traits(spec: Spec, case: Case) -> set[str]:
    """What can be said of a case: its dtype, its options, its rank."""
    arrays = [a for a in case.arguments.values() if isinstance(a, np.ndarray)]
    options = [n for n, a in case.arguments.items() if n not in spec.required and a is not None]
    found = {f"with `{name}`" for name in options}
    found.add(f"in {str(case.dtype).removeprefix('torch.')}")
    if arrays:
        found.add(f"with {arrays[0].ndim} axes")
    return found | ({"where an array is empty"} if case.is_empty else set())


def _tolerances(run: Run, case: Case) -> float:
    """How many tolerances the answer is off by at its worst place; 0 where that cannot be said."""
    expected, tolerance = run.expected(case)
    outcome = run.outcome(case)
    if outcome.error or outcome.value.shape != expected.shape or tolerance <= 0:
        return 0.0
    if float(tolerance) < torch.finfo(case.dtype).tiny:  # the right numbers are all 0
        return 0.0
    with np.errstate(invalid="ignore"):
        far = np.abs(outcome.value - expected)
    return float(np.max(far, initial=0.0, where=np.isfinite(far))) / float(tolerance)


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
    if isinstance(error, NoNumbers):
        return "What the call returned cannot be compared."
    line = own_line(error, candidate)
    return f"The call raised {type(error).__name__}{line and f', in your {line}'}."


def checker_failed(error: Exception) -> bool:
    """Whether a check raised by itself: neither the candidate did, nor the reading of its answer.

    What a check raises by a `raise` of its own says that the answer has not the form that was asked for.
    """
    frames = traceback.extract_tb(error.__traceback__)
    says_so = isinstance(error, (TypeError, ValueError)) and frames[-1].line.startswith("raise ")
    read = any(frame.filename == running.__file__ for frame in frames)
    return not (says_so or read or _raised_in_call(error))


def where(error: Exception) -> str:
    """An exception of ours, with the line that raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return f"{text} ({frame.filename.rpartition('/')[2]}, line {frame.lineno})"


def _raised_in_call(error: Exception) -> bool:
    """Whether the candidate itself raised, not the check that looked at its answer."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code in CALLS for frame, _ in frames)


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


def _two_at_once(
    run: Run, mutants: Sequence[tuple[Mutant, Run]], cases: Sequence[Case]
) -> tuple[Mutant, ...]:
    """The only two mutants that explain every case on which at most one of them is wrong."""
    wrong = {case for case in cases if not run.is_right(case)}
    shown = [
        (mutant, other, {case for case in cases if not other.is_right(case)})
        for mutant, other in mutants
        if mutant.candidate is not run.candidate
    ]
    found = []
    for (first, one, ones), (second, two, twos) in itertools.combinations(shown, 2):
        apart = dict.fromkeys(ones - twos, one) | dict.fromkeys(twos - ones, two)
        if ones <= twos or twos <= ones or not wrong <= ones | twos:
            continue
        if all(same_outcome(run, c, run.outcome(c), r.outcome(c)) for c, r in apart.items()):
            found.append((first, second))
    return found[0] if len(found) == 1 else ()


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
        if not alike or not (failure := first_failure(other, cases)) or failure[0] is not failed:
            continue
        if failed.name != GRADIENTS.name or _same_gradients(run, other, cases):
            yield mutant


def _same_gradients(run: Run, other: Run, cases: Sequence[Case]) -> bool:
    """Whether two candidates have the same gradients on every case."""
    for case in filter(GRADIENTS.concerns, cases):
        first, second = run.all_gradients(case), other.all_gradients(case)
        wanted = run.spec.gradients_of(case)
        if (first is None) != (second is None):
            return False
        for name, (_, tolerance) in wanted.items() if first else ():
            if not agree(first[name], second[name], tolerance):
                return False
    return True


def same_outcome(run: Run, case: Case, first: Outcome, second: Outcome) -> bool:
    """Do two candidates do the same on a case: the same exception, or equal values?"""
    if first.error is not None or second.error is not None:
        return type(first.error) is type(second.error)
    if first.value.shape != second.value.shape or (
        first.changed,
        first.disturbed,
    ) != (second.changed, second.disturbed):
        return False
    slack = run.expected(case)[1] + 4 * _eps(case) * _largest(second.value)
    return agree(first.value, second.value, slack)


def _eps(case: Case) -> float:
    return torch.finfo(case.dtype).eps


def _largest(value: np.ndarray) -> float:
    if value.dtype.kind != "f":
        return 0.0
    return float(np.max(np.abs(value), initial=0.0, where=np.isfinite(value)))
