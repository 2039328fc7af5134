"""Mark one submission: every part in a jail of its own, judged by the same Spec as in the notebook."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...bounds import Seed
from ...shapes import checked
from ...specs.judge import Verdict, drawn, judge, where
from ...specs.run import Run
from ...specs.spec import Spec, describe
from ..bug_hunts import HuntVerdict, judge_hunt
from ..handout import handed_out
from ..jail.bubblewrap import JailError, Limits
from ..jail.remote import RemoteFunction
from ..jail.session import Ended, JailSession
from ..submissions.answers import is_written
from ..submissions.by_question import Found, answers_to
from ..submissions.cells import cell_text, is_code
from ..submissions.finding import Submission
from ..submissions.forbidden import not_allowed
from ..submissions.reading import Source, defined_names, defines, is_stub, read_submission
from ..submissions.slicing import named_by, needed_for
from ..tasks import Assignment, Hunt, Task
from ..words import count
from .marks import FAILED, Marks, PartMarks, digest

__all__ = ["mark"]

# Of a processor, for a task's answers: a right function takes a few hundredths of it.
SLOW_SECONDS = 4.0
MOST_NOTES = 40  # about cells: a page is for reading


@checked
def mark(
    submission: Submission,
    assignment: Assignment,
    *,
    seed: Seed,
    limits: Limits | None = None,
    without_jail_for_my_own_code: bool = False,
    key: str = "",
    watched: Callable[[Sequence], Iterable] = iter,
) -> Marks:
    """The marks of one submission; nothing that it holds or does is raised.

    `watched` sees the parts go by, as a progress bar does.

    Raises: JailError if the jail fails.
    """
    source = read_submission(submission)
    open_session = partial(
        JailSession,
        limits=limits,
        without_jail_for_my_own_code=without_jail_for_my_own_code,
    )
    parts, faults = _marked_parts(watched(assignment.coded), source, seed, open_session)
    found = _found(source, assignment)
    failed = (FAILED,) if faults else ()
    lost = ("cell left out",) if source.problems else ()
    flag = (source.flag,) if source.flag else ()
    return Marks(
        id=submission.id,
        assignment=assignment.name,
        digest=submission.digest,
        flags=(*flag, *lost, *failed),
        notes=tuple(_notes(source, assignment)),
        parts=parts,
        written={name: text for name, text in found.words.items() if is_written(text)},
        experiments=found.code,
        stray=tuple(text for text in found.stray if is_written(text)),
        pictures={name: list(some) for name, some in found.pictures.items() if some},
        faults=tuple(faults),
        key=key,
    )


def _marked_parts(
    parts: Iterable, source: Source, seed: int, open_session: Callable[[], JailSession]
) -> tuple[dict[str, PartMarks], list[str]]:
    """The marks by the part's name, and what failed of ours: the other parts are marked all the same."""
    marks, faults = {}, []
    for part in parts:
        try:
            marked = mark_part(part, source, seed, open_session)
            marked = replace(marked, code=_code_of(part, source))
        except JailError:
            raise
        except Exception as error:
            faults.append(f"{part.name}: {where(error)}")
            marked = PartMarks(0.0, part.points, "not marked", (FAILED,))
        marks[part.name] = marked
    return marks, faults


def _found(source: Source, assignment: Assignment) -> Found:
    """What is for a person to mark: by question, or by nbgrader's ids where the notebook is not known."""
    names = {part.name for part in assignment.written}
    handout = handed_out(assignment)
    if names <= set(handout.questions):
        return answers_to(handout, source.cells, names)
    words = {name: text for name, text in source.answers.items() if name in names}
    return Found(words, {name: text for name, text in source.beside.items() if name in names})


def _code_of(part: Task | Hunt, source: Source) -> str:
    """A digest of what a part's function needs; empty where it is not defined."""
    there = defines(source, part.function)
    return digest(needed_for(source.code, part.function)) if there else ""


def _notes(source: Source, assignment: Assignment) -> list[str]:
    """Sentences about the file: what could not be read, and names that are nearly right."""
    notes = [source.sentence] if source.sentence else []
    notes += [f"Cell {p.cell}: {p.message}." for p in source.problems[:MOST_NOTES]]
    if more := source.problems[MOST_NOTES:]:
        notes.append(f"{count(len(more), 'more cell')} of this kind.")
    if not source.code:
        return notes
    wanted = {part.function for part in assignment.coded}
    for name in sorted(wanted):
        if not defines(source, name):
            near = difflib.get_close_matches(name, defined_names(source) - wanted, n=1, cutoff=0.7)
            hint = f" Was `{near[0]}` meant?" if near else ""
            notes.append(f"The notebook defines no `{name}`.{hint}")
    return notes


# ------------------------------------------------------------------------------------------- a part


def mark_part(
    part: Task | Hunt, source: Source, seed: int, open_session: Callable[..., JailSession]
) -> PartMarks:
    """The marks of one code task or bug hunt."""
    none = partial(PartMarks, points=0.0, of=part.points)
    if not source.code and source.flag != "no code":
        return none(verdict="not read")
    if not defines(source, part.function):
        return none(verdict="not found", flags=("missing function",) if source.code else ())
    if is_stub(source, part.function):
        return none(verdict="not written", **_hidden_by_a_stub(part.function, source))
    code, named = needed_for(source.code, part.function), named_by(source.code, part.function)
    forbidden = getattr(part, "forbidden", ())
    if used := not_allowed(named, forbidden):
        return none(verdict="forbidden", flags=("forbidden",), got=f"`{used}`")
    options = {"forbidden": forbidden, "forks": isinstance(part, Hunt)}
    started = _start(partial(open_session, **options), code, named, none)
    if isinstance(started, PartMarks):
        return started
    with started as session:
        try:
            marks = (_mark_hunt if isinstance(part, Hunt) else _mark_task)(part, session, seed)
        except Ended as end:
            return _stopped(end, none)
        slow = ("slow",) if session.processor_seconds > SLOW_SECONDS else ()
        flags = dict.fromkeys((*marks.flags, *session.flags, *slow))
        return replace(marks, flags=tuple(flags))


def _start(
    open_session: Callable[[str], JailSession],
    code: str,
    named: str,
    none: Callable[..., PartMarks],
) -> JailSession | PartMarks:
    """The jail with the definitions in it, or why they could not be executed.

    If more was executed than the function names, since it reads names in a way that cannot be seen, what
    went wrong may be an experiment's: then it gets what it names alone.
    """
    try:
        return open_session(code)
    except JailError:
        raise
    except (Ended, Exception) as error:
        if code != named:
            return _start(open_session, named, named, none)
        if isinstance(error, Ended):
            return _stopped(error, none)
        why = "The cells that define this function raised an exception."
        return none(verdict="wrong", flags=("raised",), check="the definitions run", why=why,
                    got=f"{type(error).__name__}: {error}")  # fmt: skip


def _stopped(end: Ended, none: Callable[..., PartMarks]) -> PartMarks:
    verdict = "forbidden" if end.flag == "forbidden" else "stopped"
    return none(verdict=verdict, flags=(end.flag,), got=end.text)


def _hidden_by_a_stub(function: str, source: Source) -> dict[str, Any]:
    """What is said of a function that is defined, and defined again below as it was handed out."""
    begins = re.compile(rf"^(?:async )?def {re.escape(function)}\b")
    places = [
        f"cell {number}, line {line}"
        for number, cell in enumerate(source.cells, start=1)
        if is_code(cell)
        for line, text in enumerate((cell_text(cell) or "").split("\n"), start=1)
        if begins.match(text)
    ]
    if len(places) < 2:
        return {}
    why = f"`{function}` is defined in {' and in '.join(places)}. The last definition counts, and it is empty."
    return {"why": why, "flags": ("two definitions",)}


class GraderError(RuntimeError):
    """A check of ours failed by itself: no fault of the answer's."""


def _mark_task(task: Task, session: JailSession, seed: int) -> PartMarks:
    remote = RemoteFunction(session, task.function)
    verdict = judge(task.spec, remote, seed=seed)
    if verdict.broken:
        raise GraderError(where(verdict.error)) from verdict.error
    if verdict.unwritten:
        return PartMarks(0.0, task.points, "not written")
    changing = ("not deterministic",) if _changes(task.spec, remote, seed) else ()
    if verdict.passed:
        return PartMarks(float(task.points), task.points, "right", changing)
    return PartMarks(0.0, task.points, "wrong", changing, **explain(verdict))


def explain(verdict: Verdict) -> dict[str, Any]:
    """What a failed verdict says, in words."""
    mistake = verdict.mistake
    return {
        "check": verdict.failed,
        "why": verdict.why,
        "case": describe(verdict.case),
        "expected": verdict.problem.expected,
        "got": verdict.problem.got,
        "mistake": mistake.name if mistake else "",
        "cause": mistake.cause if mistake else "",
    }


def _changes(spec: Spec, remote: RemoteFunction, seed: int) -> bool:
    """Does the function answer the same case in two ways?"""
    once, case = Run(spec, remote), drawn(spec, seed)[0][0]
    first, second = once.call(case), once.call(case)
    if first.error is not None or second.error is not None:
        return type(first.error) is not type(second.error)
    floats = first.value.dtype.kind == "f"
    return not np.array_equal(first.value, second.value, equal_nan=floats)


def _mark_hunt(hunt: Hunt, session: JailSession, seed: int) -> PartMarks:
    def test(implementation: Any) -> Any:
        if session.served:  # what it kept of the others would be an answer to this one
            _renew(session)
        return session.call(hunt.function, [session.serve(implementation)], {})[0]

    return hunt_marks(judge_hunt(hunt, test, seed=seed))


def _renew(session: JailSession) -> None:
    try:
        session.renew()
    except Exception as error:
        text = f"executed again, the definitions raised {type(error).__name__}: {error}"
        raise Ended("raised", text) from None


def hunt_marks(verdict: HuntVerdict) -> PartMarks:
    """What a bug hunt brought, in words."""
    done = "right" if verdict else "wrong"
    hint = verdict.missed[0].symptom if verdict.missed else ""
    why = "A right implementation was rejected." if verdict.refused else ""
    if verdict.missed and verdict.returned and not why:
        why = "The test returns a value, which nobody looks at: assert what must hold."
    return PartMarks(
        verdict.points, verdict.hunt.points, done, why=why, got=verdict.refused, hint=hint,
        caught=tuple(mutant.name for mutant in verdict.caught),
        missed=tuple(mutant.name for mutant in verdict.missed),
    )  # fmt: skip
