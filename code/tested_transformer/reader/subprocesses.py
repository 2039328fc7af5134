"""The judge and the contract in a process of their own, which may hang or die."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from torch import nn

from ..specs.adapters import Model, adapted
from ..specs.contract import Result, results_of
from ..specs.judge import judge
from .assertions import spec_named
from .targets import load_target

READY = "ready"  # what the child sends when the target is loaded
LOADING = 120.0  # seconds that this may take


def results_apart(
    target: str, names: Sequence[str], *, limit: float, vocab_size: int | None = None, seed: int = 0
) -> Iterator[Result]:
    """The results of the named properties, from a child that is started again after it was stopped.

    A model that hangs for more than `limit` seconds, or takes its process down, costs one property.
    """
    left = list(names)
    while left:
        answered = 0
        for result in _from_child(_check_all, (target, left, vocab_size, seed), limit):
            yield result if isinstance(result, Result) else Result(left[0], "stopped", result)
            answered += 1
            left.pop(0)
        if not answered:
            raise RuntimeError(f"the child ended without an answer about {left[0]}")


def verdict_apart(target: str, spec: str, *, limit: float, seed: int = 0) -> dict[str, Any]:
    """The verdict on a function, as plain values, from a child."""
    (answer,) = _from_child(_judge_one, (target, spec, seed), limit)
    return answer if isinstance(answer, dict) else {"passed": False, "text": answer}


def _from_child(work: Any, arguments: tuple, limit: float) -> Iterator[Any]:
    """What the child sends, and a sentence instead of the next answer if it had to be stopped."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=work, args=(there, *arguments), daemon=True)
    child.start()
    there.close()
    patience = LOADING + limit
    try:
        while True:
            if not here.poll(patience):
                yield f"it took more than {limit:g} seconds."
                return
            try:
                answer = here.recv()
            except EOFError:
                child.join()
                yield _how_it_ended(child.exitcode)
                return
            if answer is None:
                return
            patience = limit
            if answer == READY:
                continue
            if isinstance(answer, Exception):
                raise answer
            yield answer
    finally:
        child.kill()
        child.join()


def _how_it_ended(code: int) -> str:
    if code < 0:
        return f"its process died of {signal.Signals(-code).name}."
    return f"its process ended with exit status {code}."


def _check_all(
    there: Connection, target: str, names: Sequence[str], vocab_size: int | None, seed: int
) -> None:
    """In the child: one result after the other."""
    model = _loaded(there, lambda: made_model(load_target(target), vocab_size))
    if model is not None:
        for result in results_of(model, names, seed):
            there.send(result)
        there.send(None)


def _judge_one(there: Connection, target: str, spec: str, seed: int) -> None:
    candidate = _loaded(there, lambda: load_target(target))
    if candidate is not None:
        there.send(as_values(judge(spec_named(spec), candidate, seed=seed)))
        there.send(None)


def _loaded(there: Connection, load: Any) -> Any:
    """What `load` returns; an exception is sent instead, as a ValueError with its sentence."""
    try:
        found = load()
        there.send(READY)
        return found
    except Exception as error:
        said = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        there.send(ValueError(said))
        return None


def made_model(found: Any, vocab_size: int | None = None) -> Model:
    """The adapter for what a target is: a model, or a function without arguments that makes one."""
    is_maker = callable(found) and not isinstance(found, nn.Module | Model)
    return adapted(found() if is_maker else found, vocab_size=vocab_size)


def as_values(verdict: Any) -> dict[str, Any]:
    """A verdict in plain values, for JSON."""
    mistake = verdict.mistake
    return {
        "spec": verdict.spec.name,
        "passed": verdict.passed,
        "check": verdict.failed,
        "why": verdict.why,
        "mistake": mistake.name if mistake else None,
        "text": str(verdict),
    }
