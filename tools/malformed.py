"""Call every public function and class with malformed arguments, and say what becomes of each call.

Usage: python tools/malformed.py [--only functional layers.cache attention ...] [--sample 300] [--seed 0]
    [--show inside silent hangs ...] [--json FILE]

One argument of a right call is wrong: its type, dtype, rank, size, value or device. What the
annotations allow is no malformed call, so jaxtyping is asked which shapes go together. The calls run in
other processes, each with a time limit.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import inspect
import json
import multiprocessing
import os
import random
import re
import sys
import time
import traceback
import typing
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import is_dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import jaxtyping
import torch
from torch import Tensor, nn
from tqdm import tqdm

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "code"))

from malformed_lenient import LENIENT, RECORDS, UNASKED
from malformed_values import ALSO, OBJECTS, fits, is_shape, value_of, within
from tested_transformer.reader.public_names import public_names

ROOT = "tested_transformer."
MORE = ("tested_transformer.plotting", "tested_transformer.plotting.interactive")
OUTCOMES = {
    "names": "names the argument, what came and what was expected",
    "other": "names another argument",
    "python": "Python's own TypeError for the signature",
    "told": "another sentence of the package, or the system's on a file",
    "lenient": "accepted, on the list of lenient ones",
    "inside": "comes from inside torch or NumPy",
    "exception": "another exception",
    "silent": "silently accepted",
    "hangs": "hangs, or ends the process",
}
WRONG = ("inside", "exception", "silent", "hangs")
LIMIT = 20.0  # seconds for one call
NEVER_EMPTY = set("d dq dk D V".split())
FREE = set("B L S N T".split())  # letters that a method's own object does not set
MEANT = re.compile(r"^(?P<who>[^\n]{1,120}?): .*\bexpected\b.+(got|found)\b", re.DOTALL)
SIGNATURE = re.compile(r"missing \d+ required|unexpected keyword|takes .* positional")


class Target(NamedTuple):
    """Something public that can be called; `make` gives it, bound to an object of its own."""

    label: str
    module: str
    make: Callable[[], Callable]
    hints: dict[str, Any]
    required: tuple[str, ...]
    positional: tuple[str, ...]  # those that come before *arguments
    star: str | None  # the parameter of *arguments
    owner: type | None  # of a method


class Call(NamedTuple):
    """One wrong argument: `attention.query`, of the kind "rank", "one axis more"."""

    label: str
    argument: str
    kind: str
    wrong: str

    def __str__(self) -> str:
        return f"{self.label}.{self.argument} = {self.wrong}"


class Result(NamedTuple):
    """What became of a call, and what was said."""

    call: Call
    outcome: str
    said: str


# --- What is called -------------------------------------------------------------------------------


def targets(only: Sequence[str] = ()) -> dict[str, Target]:
    """Every public function, class and method that `only` names, or that lies in a module it names."""
    names = {**public_names()}
    names |= {module: importlib.import_module(module).__all__ for module in MORE}
    found = {}
    asked = [module for module in names if not is_within(module.removeprefix(ROOT), UNASKED)]
    for module in asked:
        home = importlib.import_module(module)
        for name in names[module]:
            for target in _targets_of(getattr(home, name), name, module.removeprefix(ROOT)):
                if not only or any(_is_named(target, each) for each in only):
                    found[target.label] = target
    return found


def is_within(module: str, folders: Sequence[str]) -> bool:
    """Whether a module is one of these, or lies in one."""
    return any(f"{module}.".startswith(f"{folder}.") for folder in folders)


def _is_named(target: Target, name: str) -> bool:
    return is_within(target.module, [name]) or name in (target.label, target.label.split(".")[0])


def _targets_of(thing: Any, name: str, module: str) -> Iterator[Target]:
    if inspect.isfunction(thing):
        yield _target(name, module, lambda: thing, thing)
    if not inspect.isclass(thing) or issubclass(thing, BaseException):
        return
    if getattr(thing, "_is_protocol", False):
        return
    is_own = getattr(thing.__init__, "__module__", "").startswith(ROOT[:-1]) or is_dataclass(thing)
    if name not in RECORDS and is_own:
        yield _target(name, module, lambda: thing, thing)
    for key, member in vars(thing).items():
        if key.startswith("_") or not callable(getattr(thing, key)) or key == "extra_repr":
            continue
        label = f"{name}.{key}"
        if isinstance(member, classmethod | staticmethod):
            yield _target(label, module, lambda key=key: getattr(thing, key), getattr(thing, key))
        elif inspect.isfunction(member):
            make = lambda key=key: getattr(_object(thing, name), key)  # noqa: E731
            yield _target(label, module, make, member, owner=thing)


def _object(cls: type, name: str) -> Any:
    return OBJECTS[cls]() if cls in OBJECTS else cls(**right_call(_target(name, "", None, cls)))


def _target(label: str, module: str, make: Any, thing: Any, owner: type | None = None) -> Target:
    kinds = inspect.signature(thing).parameters
    function = thing.__init__ if inspect.isclass(thing) else thing
    hints = typing.get_type_hints(thing if is_dataclass(thing) else function, include_extras=True)
    named = [p for p in kinds.values() if p.name != "self" and p.kind != p.VAR_KEYWORD]
    star = next((p.name for p in named if p.kind == p.VAR_POSITIONAL), None)
    required = tuple(p.name for p in named if p.default is p.empty and p.name != star)
    hints = {p.name: hints.get(p.name, Any) for p in named}
    positional = tuple(p.name for p in named if p.kind < p.VAR_POSITIONAL)
    return Target(label, module, make, hints, required, positional, star, owner)


def right_call(target: Target, *more: str) -> dict[str, Any]:
    """Right values for all that must be given, and for these."""
    given = (*target.required, *ALSO.get(target.label, ()), *more)
    names = [name for name in target.hints if name in given]
    return {name: value_of(target.label, name, target.hints[name]) for name in names}


def run(target: Target, arguments: dict[str, Any]) -> Any:
    """Call it."""
    torch.manual_seed(0)
    arguments = dict(arguments)
    first = []
    if target.star in arguments:
        names = (*target.positional, target.star)
        first = [arguments.pop(name) for name in names if name in arguments]
    with torch.set_grad_enabled(
        not {"cache", "caches"} & arguments.keys()
    ):  # a cache is for generating
        return target.make()(*first, **arguments)


# --- What is wrong --------------------------------------------------------------------------------


def calls_of(target: Target) -> list[Call]:
    """All malformed calls of a target."""
    found = []
    for name, hint in target.hints.items():
        arguments = right_call(target, name)
        if name in target.required:
            found.append(Call(target.label, name, "left out", "nothing"))
        for kind, wrong, value in mutations(arguments[name], hint):
            if is_malformed(target, {**arguments, name: value}, name, kind):
                found.append(Call(target.label, name, kind, wrong))
    return found


def mutations(right: Any, hint: Any) -> Iterator[tuple[str, str, Any]]:
    """Wrong values in place of a right one: the kind, the value in words, the value."""
    if isinstance(right, Tensor):
        yield from _wrong_tensors(right)
    else:
        yield from (("type", repr(v), v) for v in (torch.tensor(3), torch.float16))
    for value in (None, "x", "False", 3, 2.5, True, [None], ["x"], [[]], {}):
        yield "type", repr(value), value
    yield "type", "object()", object()
    for value in (0, -1, 2**63, -1.5, float("nan"), float("inf")):
        if fits(value, hint):
            yield "value", repr(value), value


def _wrong_tensors(right: Tensor) -> Iterator[tuple[str, str, Any]]:
    yield "type", "its list", right.tolist()
    yield "type", "its array", right.numpy()
    for dtype in (torch.float64, torch.float16, torch.int64, torch.bool, torch.complex64):
        if dtype != right.dtype:
            yield "dtype", str(dtype), right.to(dtype)
    yield "rank", "a scalar", right.flatten()[0]
    yield "rank", "one axis more", right[None]
    yield "rank", "two axes more", right[None, None]
    if right.ndim > 1:
        yield "rank", "one axis less", right[0]
    for axis in range(right.ndim):
        more = torch.cat([right, right.narrow(axis, 0, 1)], axis)
        yield "size", f"axis {axis}: one more", more
        yield "size", f"axis {axis}: 0", right.narrow(axis, 0, 0)
    if not right.is_floating_point() and right.dtype != torch.bool:
        yield "value", "-7 throughout", torch.full_like(right, -7)
        yield "value", "10**6 throughout", torch.full_like(right, 10**6)
    yield "device", "meta", right.to("meta")


def is_malformed(target: Target, arguments: dict[str, Any], name: str, kind: str) -> bool:
    """Whether the signature, read by jaxtyping and by the bounds, does not allow the call."""
    value, hint = arguments[name], target.hints[name]
    if kind == "type":
        return not fits(value, hint)
    if kind == "value":
        if isinstance(value, Tensor) or _bounds_of(hint):
            return isinstance(value, Tensor) or not within(value, _bounds_of(hint))
        return value != 0 if not fits(0.5, hint) else value - value != 0  # NaN and the infinities
    tensors = {key: each for key, each in arguments.items() if isinstance(each, Tensor)}
    has_state = target.owner is not None and (
        issubclass(target.owner, nn.Module) or target.owner.__name__.endswith(("Cache", "State"))
    )
    if kind == "dtype" and fits(value, hint):
        return sum(each.is_floating_point() for each in tensors.values()) > 1 or has_state
    if kind == "device":
        return len(tensors) > 1 or has_state
    if kind == "dtype":
        return True
    changed = _letters_changed(value, hint)
    empty = {letter for letter in changed & NEVER_EMPTY if 0 in value.shape}
    return bool(empty or (has_state and changed - FREE)) or not _go_together(target, tensors)


def _bounds_of(hint: Any) -> list[Any]:
    """The bounds of an annotation, of its option other than None too."""
    inner = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Annotated:
        return list(inner[1:])
    return [bound for one in inner for bound in _bounds_of(one)] if inner else []


def _shapes(hint: Any) -> list[Any]:
    if is_shape(hint):
        return [hint]
    return [shape for one in typing.get_args(hint) for shape in _shapes(one)]


def _letters_changed(value: Tensor, hint: Any) -> set[str]:
    """The letters of axes that have another size than those that the right value has."""
    found = set()
    for shape in _shapes(hint):
        axes = shape.dim_str.split()
        if "..." in axes or any(axis.startswith("*") for axis in axes):
            axes, sizes = axes[-1:], value.shape[-1:]
        else:
            sizes = value.shape
        right = value_of("", "", shape).shape[-len(axes) :]
        pairs = zip(axes, sizes, right, strict=False)
        found |= {axis.lstrip("#*") for axis, size, was in pairs if size != was}
    return found


def _go_together(target: Target, tensors: dict[str, Tensor]) -> bool:
    """Whether jaxtyping finds one size for every letter."""
    with jaxtyping.jaxtyped("context"):
        for name, tensor in tensors.items():
            shapes = _shapes(target.hints[name])
            if shapes and not any(isinstance(tensor, shape) for shape in shapes):
                return False
    return True


# --- What becomes of it ---------------------------------------------------------------------------


def outcome(target: Target, call: Call) -> Result:
    """Make the call, and say what became of it."""
    arguments = right_call(target, call.argument)
    right = arguments.pop(call.argument)
    for kind, wrong, value in mutations(right, target.hints[call.argument]):
        if (kind, wrong) == (call.kind, call.wrong):
            arguments[call.argument] = value
    try:
        answer = run(target, arguments)
    except Exception as error:
        return Result(call, _kind_of(error, call), f"{type(error).__name__}: {error}"[:300])
    except BaseException as error:  # a panic of Rust, SystemExit
        return Result(call, "exception", f"{type(error).__name__}: {error}"[:300])
    said = f"{type(answer).__name__} {getattr(answer, 'shape', '')} {str(answer)[:80]}"
    return Result(call, "lenient" if reason_for(call) else "silent", said)


def _kind_of(error: Exception, call: Call) -> str:
    text = str(error)
    meant = MEANT.match(text)
    if meant and isinstance(error, TypeError | ValueError):
        return "names" if call.argument in re.findall(r"\w+", text) else "other"
    if isinstance(error, TypeError) and SIGNATURE.search(text):
        return "python"
    last = traceback.extract_tb(error.__traceback__)[-1]
    of_package = "tested_transformer" in last.filename
    if isinstance(error, OSError) or (of_package and (last.line or "").startswith("raise ")):
        return "told"
    foreign = isinstance(error, RuntimeError | IndexError | OverflowError | NotImplementedError)
    return "inside" if foreign or not of_package else "exception"


def reason_for(call: Call) -> str | None:
    """Why the call may be accepted."""
    return next((why for rule, why in LENIENT.items() if fnmatch.fnmatch(str(call), rule)), None)


def work(pipe: Connection, calls: list[Call], only: list[str]) -> None:
    """In a process of its own: make the calls, telling before each that it begins."""
    warnings.simplefilter("ignore")
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    torch.set_num_threads(1)
    known = targets(only)
    for call in calls:
        pipe.send("begins")
        pipe.send(outcome(known[call.label], call))
    pipe.close()


class Worker:
    """A process with some calls; begun anew after a call that hangs."""

    def __init__(self, calls: list[Call], only: list[str]) -> None:
        self.calls, self.only, self.process = calls, only, None
        self.start()

    def start(self) -> None:
        """Begin with the first of the calls that are left."""
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=work, args=(theirs, self.calls, self.only))
        self.process.start()
        theirs.close()
        self.busy, self.since = False, time.monotonic()

    def read(self) -> Result | None:
        """What the process tells next, if that is a result."""
        try:
            told = self.pipe.recv()
        except EOFError:
            if not self.busy:
                raise
            return self.lost()
        self.since = time.monotonic()
        self.busy = told == "begins"
        if self.busy:
            return None
        self.calls = self.calls[1:]
        return told

    def lost(self) -> Result:
        """The call that never came back; go on after it."""
        self.process.kill()
        call, self.calls = self.calls[0], self.calls[1:]
        if self.calls:
            self.start()
        return Result(call, "hangs", "")


def results(calls: list[Call], only: list[str]) -> Iterator[Result]:
    """Make all calls, in as many processes as there are cores."""
    cores = min(os.cpu_count() or 1, max(1, len(calls) // 200))
    workers = [Worker(calls[first::cores], only) for first in range(cores)]
    while workers := [worker for worker in workers if worker.calls]:
        ready = wait([worker.pipe for worker in workers], timeout=1)
        for worker in workers:
            late = worker.busy and time.monotonic() - worker.since > LIMIT
            found = worker.read() if worker.pipe in ready else worker.lost() if late else None
            if found:
                yield found


def malformed_calls(
    only: Sequence[str] = (), sample: int | None = None, seed: int = 0
) -> list[Call]:
    """The calls to make, or a sample of them, in order."""
    calls = [call for target in targets(only).values() for call in calls_of(target)]
    if sample is None or sample >= len(calls):
        return calls
    chosen = set(random.Random(seed).sample(range(len(calls)), sample))
    return [call for number, call in enumerate(calls) if number in chosen]


# --- The report -----------------------------------------------------------------------------------


def table(found: list[Result]) -> str:
    """Calls by outcome, and by what was wrong."""
    kinds = ("left out", "type", "dtype", "rank", "size", "value", "device")
    count = Counter((result.outcome, result.call.kind) for result in found)
    lines = [f"{'':62}{'all':>7}" + "".join(f"{kind:>9}" for kind in kinds)]
    for name, words in OUTCOMES.items():
        row = [count[name, kind] for kind in kinds]
        lines.append(f"{name + ': ' + words:62}{sum(row):>7}" + "".join(f"{n:>9}" for n in row))
    callables = len({result.call.label for result in found})
    return "\n".join([f"{len(found):,} malformed calls of {callables} callables", *lines])


def main() -> int:
    """Make the calls and report; 1 if one is answered as none may be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="modules, functions or classes")
    parser.add_argument("--sample", type=int, help="that many calls, chosen by the seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", nargs="*", default=list(WRONG), choices=list(OUTCOMES))
    parser.add_argument("--json", help="write each call and its outcome there")
    asked = parser.parse_args()
    calls = malformed_calls(asked.only, asked.sample, asked.seed)
    found = list(tqdm(results(calls, asked.only), total=len(calls), unit="call"))
    found.sort(key=lambda result: (list(OUTCOMES).index(result.outcome), calls.index(result.call)))
    for result in found:
        if result.outcome in asked.show:
            print(f"{result.outcome:10}{result.call}\n          {result.said}")
    print(table(found))
    if asked.json:
        rows = [{**r.call._asdict(), "outcome": r.outcome, "said": r.said} for r in found]
        with open(asked.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    return int(any(result.outcome in WRONG for result in found))


if __name__ == "__main__":
    sys.exit(main())
