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
from ...specs.judge import Verdict, drawn, judge
from ...specs.spec import Run, Spec, describe
from ..bug_hunts import HuntVerdict, judge_hunt
from ..jail.bubblewrap import Limits
from ..jail.remote import RemoteFunction
from ..jail.session import Ended, JailSession
from ..submissions.finding import Submission
from ..submissions.forbidden import not_allowed
from ..submissions.reading import Source, defined_names, defines, is_stub, read_submission
from ..submissions.slicing import named_by, needed_for
from ..tasks import Assignment, Hunt, Task
from .marks import Marks, PartMarks, digest

__all__ = ["mark"]

# What stands in a cell for an answer in words when it is handed out, below a line that begins in bold.
HANDED_OUT = "*Your answer here.*"
# Of waiting for a task's answers: a right function takes a few hundredths of it.
SLOW_SECONDS = 4.0


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
    parts = {
        p.name: replace(mark_part(p, source, seed, open_session), code=_code_of(p, source))
        for p in watched(assignment.coded)
    }
    lost = ("cell left out",) if source.problems else ()
    flag = (source.flag,) if source.flag else ()
    return Marks(
        id=submission.id,
        assignment=assignment.name,
        digest=submission.digest,
        flags=(*flag, *lost),
        notes=tuple(_notes(source, assignment)),
        parts=parts,
        written=_written(source, assignment),
        experiments=_experiments(source, assignment),
        key=key,
    )


def _written(source: Source, assignment: Assignment) -> dict[str, str]:
    """The answers in words, without those that are still as they were handed out."""
    answers = {part.name: source.answers.get(part.name, "") for part in assignment.written}
    return {name: text for name, text in answers.items() if is_written(text)}


def _experiments(source: Source, assignment: Assignment) -> dict[str, str]:
    """The code that was written for the experiments."""
    names = [part.name for part in assignment.written if part.kind == "experiment"]
    return {name: source.beside[name] for name in names if name in source.beside}


def is_written(answer: str) -> bool:
    """Whether a cell holds more than what was handed out, or than its bold title."""
    title = r"^\*\*.*$" if HANDED_OUT in answer else r"^\*\*[^*]+\*\*$"
    return bool(re.sub(title, "", answer.replace(HANDED_OUT, ""), flags=re.MULTILINE).strip())


def _code_of(part: Task | Hunt, source: Source) -> str:
    """A digest of what a part's function needs; empty where it is not defined."""
    there = defines(source, part.function)
    return digest(needed_for(source.code, part.function)) if there else ""


def _notes(source: Source, assignment: Assignment) -> list[str]:
    """Sentences about the file: what could not be read, and names that are nearly right."""
    notes = [source.sentence] if source.sentence else []
    notes += [f"Cell {p.cell}: {p.message}." for p in source.problems]
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
        return none(verdict="not written")
    code = needed_for(source.code, part.function)
    forbidden = getattr(part, "forbidden", ())
    if used := not_allowed(named_by(source.code, part.function), forbidden):
        return none(verdict="forbidden", flags=("forbidden",), got=f"`{used}`")
    try:
        with open_session(code, forbidden=forbidden) as session:
            before = session.seconds
            given = (part, session, seed)
            marks = _mark_hunt(*given) if isinstance(part, Hunt) else _mark_task(*given)
            slow = ("slow",) if session.seconds - before > SLOW_SECONDS else ()
            flags = dict.fromkeys((*marks.flags, *session.flags, *slow))
            return PartMarks(**{**vars(marks), "flags": tuple(flags)})
    except Ended as end:
        if end.flag == "forbidden":
            return none(verdict="forbidden", flags=("forbidden",), got=end.text)
        return none(verdict="stopped", flags=(end.flag,), got=end.text)
    except Exception as error:  # the definitions themselves raised, before any call
        text = f"{type(error).__name__}: {error}"
        why = "The cells that define this function raised an exception."
        return none(
            verdict="wrong", flags=("raised",), check="the definitions run", why=why, got=text
        )


def _mark_task(task: Task, session: JailSession, seed: int) -> PartMarks:
    remote = RemoteFunction(session, task.function)
    verdict = judge(task.spec, remote, seed=seed)
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
    run, case = Run(spec, remote), drawn(spec, seed)[0][0]
    first, second = run.call(case), run.call(case)
    if first.error is not None or second.error is not None:
        return type(first.error) is not type(second.error)
    floats = first.value.dtype.kind == "f"
    return not np.array_equal(first.value, second.value, equal_nan=floats)


def _mark_hunt(hunt: Hunt, session: JailSession, seed: int) -> PartMarks:
    def test(implementation: Any) -> Any:
        return session.call(hunt.function, [session.serve(implementation)], {})[0]

    return hunt_marks(judge_hunt(hunt, test, seed=seed))


def hunt_marks(verdict: HuntVerdict) -> PartMarks:
    """What a bug hunt brought, in words."""
    done = "right" if verdict else "wrong"
    hint = verdict.missed[0].symptom if verdict.missed else ""
    why = "A right implementation was refused." if verdict.refused else ""
    if verdict.missed and verdict.returned and not why:
        why = "The test returns a value, which nobody looks at: assert what must hold."
    return PartMarks(
        verdict.points, verdict.hunt.points, done, why=why, got=verdict.refused, hint=hint,
        caught=tuple(mutant.name for mutant in verdict.caught),
        missed=tuple(mutant.name for mutant in verdict.missed),
    )  # fmt: skip
