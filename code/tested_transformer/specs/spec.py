"""A Spec: what is right for one idea, on which cases, by which checks; and a candidate at work on it."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from ..errors import BackendError
from .compare import Problem, as_array, brief, compare, same_tensor
from .mistakes import Mutant

__all__ = ["Case", "Check", "Spec"]


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
    reference: the slow truth, on NumPy arrays. baseline: the plain formula in torch, whose own rounding
    error in a dtype sets the tolerance there. slack: how much farther than rounding a right answer to
    a case may be from the reference; it must say why. cases: a random generator -> the calls, from small
    to large. checks: what must hold, properties first; the `usual` ones come before them and EQUAL
    after them, unless one of their name is there. mutants: the famous mistakes. build: turns a
    candidate into a function of the arguments (a module class gets the weights of the case). read:
    turns the answer into one array.
    """

    name: str
    statement: str
    required: tuple[str, ...]
    reference: Callable[..., Any]
    cases: Callable[[int], Sequence[Case]]
    checks: Sequence[Check] = ()
    usual: Sequence[Check] = field(default_factory=lambda: (SHAPE, UNTOUCHED))
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
            [check for check in some if check.name not in named] for some in (self.usual, (EQUAL,))
        )
        object.__setattr__(self, "checks", (*before, *self.checks, *after))
        of_spec = (m if m.chapter else replace(m, chapter=self.chapter) for m in self.mutants)
        object.__setattr__(self, "mutants", tuple(of_spec))

    def draw(self, seed: int) -> list[Case]:
        """The cases of a seed; another seed draws other numbers in the same shapes."""
        return list(self.cases(np.random.default_rng(seed)))

    def narrowed(self, keep: Callable[[Case], bool], **changes: Any) -> Spec:
        """The same Spec on some of its cases, with the checks that look at one of them."""

        def cases(rng: np.random.Generator) -> list[Case]:
            return [case for case in self.cases(rng) if keep(case)]

        given = cases(np.random.default_rng(0))
        checks = [check for check in self.checks if any(map(check.concerns, given))]
        return replace(self, **{"cases": cases, "checks": checks} | changes)

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
        changed = next((n for n in given if not same_tensor(given[n], untouched[n])), None)
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


def describe(case: Case) -> str:
    """A case in words: its label, dtype and the shapes or values of its arguments."""
    parts = []
    for name, argument in case.arguments.items():
        if argument is None:
            continue
        small = not isinstance(argument, np.ndarray) or argument.size <= 4
        parts.append(f"{name} {brief(argument)}" if small else f"{name} {argument.shape}")
    return f"{case.label} ({str(case.dtype).removeprefix('torch.')}): " + ", ".join(parts)
