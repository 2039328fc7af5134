"""One candidate at work on one Spec: its answers, its gradients, and what it did to its surroundings."""

from __future__ import annotations

import gc
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..errors import BackendError, argument_error
from .case import Case
from .compare import agree, as_array, same_argument
from .surroundings import kept
from .tolerance import Tolerance

if TYPE_CHECKING:
    from .spec import Spec


@dataclass
class Outcome:
    """What a candidate did on one call: a value or an exception, and what else it changed."""

    value: np.ndarray | None = None
    error: Exception | None = None
    dtype: Any = None
    is_tensor: bool = False  # what the judge compares: one without is a NumPy array, a number
    changed: str | None = None  # one of its arguments
    disturbed: str | None = None  # something global: torch's grad mode


@dataclass
class Run:
    """One candidate at work on one Spec."""

    spec: Spec
    candidate: Any
    _outcomes: dict[Case, Outcome] = field(default_factory=dict)
    _right: dict[Case, bool] = field(default_factory=dict)
    _alone: set[str] = field(
        default_factory=set
    )  # the arguments by which alone a gradient was taken

    _in_cycles: bool = False  # whether only cycles held what it was given: those are no leak

    @cached_property
    def takes(self) -> set[str] | None:
        """The names that the candidate takes; None if it takes any."""
        return keywords(self.candidate)

    def refuses(self, case: Case) -> str | None:
        """Why the case does not apply to this candidate, or None if it does."""
        given = [name for name, argument in case.arguments.items() if argument is not None]
        if not _is_module_class(self.candidate) and any(n in self.spec.of_modules for n in given):
            return "is no module class"
        takes = self.takes
        known = (*self.spec.required, *self.spec.of_modules)  # `build` looks after the latter
        extra = [name for name in given if name not in known]
        missing = [name for name in extra if takes is not None and name not in takes]
        if missing and not self.spec.points:  # an exercise asks for all of its options
            return "takes no " + ", ".join(f"`{name}`" for name in missing)
        if not self.spec.may_refuse:
            return None
        error = self.outcome(case).error
        return str(error) if isinstance(error, BackendError) else None

    def outcome(self, case: Case) -> Outcome:
        """The candidate's answer to a case, remembered."""
        if case not in self._outcomes:
            self._outcomes[case] = self.call(case)
        return self._outcomes[case]

    def expected(self, case: Case, **changes: Any) -> tuple[np.ndarray, float | Tolerance]:
        """The reference's answer, with some arguments replaced, and the tolerance that goes with it."""
        return self.spec.expected_of(case.changed(**changes) if changes else case)

    def is_right(self, case: Case) -> bool:
        """Whether the answer equals the reference's, remembered: mutants are asked at every failure."""
        if case not in self._right:
            outcome, (expected, tolerance) = self.outcome(case), self.expected(case)
            self._right[case] = outcome.error is None and agree(expected, outcome.value, tolerance)
        return self._right[case]

    def call(self, case: Case, **changes: Any) -> Outcome:
        """Call the candidate on the case with some arguments replaced; exceptions are answers."""
        given, untouched = case.tensors(**changes), case.tensors(**changes)
        disturbed: Sequence[str] = ()
        try:
            with kept() as disturbed:
                answer = self._called(self.built(given), given)
            read = self.spec.read(answer, given)
            value = as_array(read)
        except Exception as error:  # whatever a reader's function raises is the verdict's to report
            return Outcome(error=error, disturbed=next(iter(disturbed), None))
        changed = next((n for n in given if not same_argument(given[n], untouched[n])), None)
        dtype = getattr(answer, "dtype", None)
        is_tensor = isinstance(read, Tensor) and read.is_floating_point()
        return Outcome(value, None, dtype, is_tensor, changed, next(iter(disturbed), None))

    def value(self, case: Case, **changes: Any) -> np.ndarray:
        """The candidate's value; an exception is raised for the judge to report."""
        outcome = self.call(case, **changes) if changes else self.outcome(case)
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def gradients(self, case: Case, names: Sequence[str], **changes: Any) -> dict[str, np.ndarray]:
        """Gradients of the sum of the answer by the named arguments."""
        return self._gradients(case.tensors(**changes), names, torch.ones_like)

    def all_gradients(self, case: Case) -> dict[str, np.ndarray] | None:
        """Gradients by every floating point argument, as `Spec.gradients_of` has them.

        None for an answer that is no tensor: a NumPy array can have no gradient.
        """
        return self.graded(case)[0] if self.outcome(case).is_tensor else None

    def graded(self, case: Case) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """These gradients, and the answer that they were taken of."""
        given, answers = case.tensors(), []
        return self._gradients(given, float_names(given), probe, answers), answers[0]

    def gradient_alone(self, case: Case, names: Sequence[str]) -> dict[str, np.ndarray]:
        """The gradient by the first of the names whose turn it is, where no other argument asks for one.

        Each name has its turn once, whatever the case.
        """
        name = next((name for name in names if name not in self._alone), None)
        if name is None:
            return {}
        self._alone.add(name)
        return self._gradients(case.tensors(), [name], probe)

    def _gradients(
        self, given: dict[str, Any], names: Sequence[str], weights: Callable[[Tensor], Tensor],
        answers: list[np.ndarray] | None = None,
    ) -> dict[str, np.ndarray]:  # fmt: skip
        with kept():
            called = self.built(given)
            return gradients(
                lambda given: self.spec.read(self._called(called, given), given),
                given, names, weights, answers,
            )  # fmt: skip

    def after_another_call(
        self, case: Case, *, transposed: bool = False, learns: bool = True, **others: Any
    ) -> np.ndarray:
        """The value that a candidate built once gives after a call with these other arguments.

        Those of the same sizes then stand in the case's own tensors for one more call: what is kept
        may go by the tensor, whose numbers an optimizer or a buffer changes in place. transposed: whether
        these are laid out in memory as views of transposed tensors are. learns: whether torch's grad
        mode is on in the last call.

        Raises: AnswerChanged if the last call changes what the first one returned, Held if its arguments are
        not free in the end.
        """
        own = case.arguments if transposed else {}
        own = {
            n: np.asfortranarray(a)
            for n, a in own.items()
            if isinstance(a, np.ndarray) and a.ndim > 1
        }
        given, earlier = case.tensors(**own), case.tensors(**others)
        first = before = None
        with kept():
            called = self.built(given)
            with suppress(Exception):  # these may be arguments that it may refuse
                first = self._called(called, earlier)
                before = as_array(self.spec.read(first, earlier)).copy()
                with holding(given, earlier):
                    self._called(called, given)
            answer = self._last(called, given, learns)
        if before is not None:
            after = as_array(self.spec.read(first, earlier))
            if after.shape != before.shape or not np.array_equal(before, after, equal_nan=True):
                raise AnswerChanged(before, after)
        value = as_array(self.spec.read(answer, given))
        tensors = [name for name, given in earlier.items() if isinstance(given, Tensor)]
        refs = {name: weakref.ref(earlier.pop(name)) for name in tensors}
        del first, answer, called
        if self._in_cycles or all(ref() is None for ref in refs.values()):
            return value
        gc.collect()  # slow: once for all cases
        held = next((name for name, ref in refs.items() if ref() is not None), None)
        if held is not None:
            raise Held(held)
        self._in_cycles = True
        return value

    def _last(self, called: Callable[..., Any], given: dict[str, Any], learns: bool) -> Any:
        """Call it, in a grad mode; an answer that takes a gradient itself may need it on, and says so."""
        try:
            with torch.set_grad_enabled(learns):
                return self._called(called, given)
        except RuntimeError as error:
            if learns or "require grad" not in str(error):
                raise
        return self._called(called, given)

    def built(self, given: dict[str, Any]) -> Callable[..., Any]:
        """The candidate as a function of the arguments: a module class is made with its weights."""
        return self.spec.build(self.candidate, given)

    def answer(self, given: dict[str, Any]) -> Any:
        """Call the candidate: required arguments by place, the others by name, a fixed seed."""
        with kept():
            return self._called(self.built(given), given)

    def _called(self, function: Callable[..., Any], given: dict[str, Any]) -> Any:
        placed = [given[name] for name in self.spec.required]
        named = {n: a for n, a in given.items() if n not in self.spec.required and a is not None}
        try:
            return function(*placed, **named)
        except SystemExit as stop:
            if type(stop) is not SystemExit:  # somebody else's: the grader's worker is asked to end
                raise
            raise RuntimeError(f"it called sys.exit({stop.code!r})") from stop


class AnswerChanged(Exception):
    """A later call wrote into the answer of an earlier one."""


class NoGradient(TypeError):
    """The answer hangs on none of the arguments: nothing flows back."""


class Held(Exception):
    """An argument is still held after the call."""


@contextmanager
def holding(tensors: dict[str, Any], others: dict[str, Any]) -> Iterator[None]:
    """Let tensors hold the numbers of others of the same shape for a while."""
    own = {name: tensor.clone() for name, tensor in tensors.items() if isinstance(tensor, Tensor)}
    fitting = {
        name: others[name]
        for name, numbers in own.items()
        if isinstance(others[name], Tensor) and others[name].shape == numbers.shape
    }
    _write(tensors, fitting)
    try:
        yield
    finally:
        _write(tensors, own)


@torch.no_grad()
def _write(tensors: Mapping[str, Any], numbers: Mapping[str, Tensor]) -> None:
    for name, given in numbers.items():
        tensors[name].copy_(given)


def float_names(given: Mapping[str, Any]) -> list[str]:
    """The arguments by which there is a gradient."""
    return [n for n, a in given.items() if isinstance(a, Tensor) and a.is_floating_point()]


def probe(answer: Tensor) -> Tensor:
    """The same random direction for every answer of one shape, in which its gradient is taken."""
    numbers = np.random.default_rng(0).normal(size=tuple(answer.shape))
    sixteenths = np.round(16 * numbers) / 16  # exact in every dtype
    return torch.from_numpy(np.asarray(sixteenths)).to(answer.dtype)


def gradients(
    function: Callable[[dict[str, Any]], Any],
    given: dict[str, Any],
    names: Sequence[str],
    weights: Callable[[Tensor], Tensor],
    answers: list[np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Gradients of the weighted sum of a function's answer by the named arguments; 0 where unused.

    The answer itself is put on the list.

    Raises: NoGradient if the answer does not depend on them.
    """
    inputs = [given[name].requires_grad_() for name in names]
    answer = function(given)
    if not isinstance(answer, Tensor) or not answer.requires_grad:
        wanted = "one that depends on the arguments, so that gradients reach them"
        raise argument_error(NoGradient, "the answer", "one without a gradient", wanted)
    if answers is not None:
        answers.append(as_array(answer).copy())
    found = torch.autograd.grad(answer, inputs, weights(answer), allow_unused=True)
    return {
        name: as_array(torch.zeros_like(tensor) if gradient is None else gradient)
        for name, tensor, gradient in zip(names, inputs, found, strict=True)
    }


def _is_module_class(candidate: Any) -> bool:
    return isinstance(candidate, type) and issubclass(candidate, torch.nn.Module)


def keywords(candidate: Any) -> set[str] | None:
    """The names a candidate takes, a module class when made or when called; None if it takes any.

    What does not tell its names (a function written in C) is taken to have no options.
    """
    targets = [candidate.forward if isinstance(candidate, torch.nn.Module) else candidate]
    if _is_module_class(candidate):
        targets.append(candidate.forward)
    try:
        parameters = [p for t in targets for p in inspect.signature(t).parameters.values()]
    except ValueError:
        schema = getattr(candidate, "schema", None)  # of TorchScript
        return {argument.name for argument in schema.arguments} if schema else set()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return {p.name for p in parameters}
