"""Mark a folder or zip of submissions: side by side, resumable, and no submission can stop the others."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import secrets
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from pathlib import Path

import torch
from tqdm import tqdm

from ...bounds import PositiveInt, Seed
from ...errors import argument_error
from ...shapes import checked
from ...specs.judge import where
from ..assignments import assignment as load
from ..jail.bubblewrap import PACKAGE, JailError, Limits
from ..jail.session import JailSession
from ..submissions.finding import Submission, find_submissions
from ..tasks import Assignment
from .files import file_stem, write_whole
from .interrupts import Stop, begin_worker
from .mark_submission import mark
from .marks import FAILED, Marks, from_json

__all__ = ["grade"]

RUN = "run.json"  # the instructor's: it holds the seed


@checked
def grade(
    path: str | Path,
    assignment: Assignment,
    out: str | Path,
    *,
    jobs: PositiveInt = 1,
    seed: Seed | None = None,
    limits: Limits | None = None,
    without_jail_for_my_own_code: bool = False,
) -> list[Marks]:
    """Mark every notebook in a folder or zip, and keep the marks of each in `out`/marks.

    A submission that was marked with the same seed, limits and version of the tasks, and has not
    changed since, is not marked again. Without a seed the first run draws one and keeps it.

    Raises: FileNotFoundError or ValueError for a path without submissions, an `out` of another
        assignment, or jobs below 1; JailMissing or JailError, before any submission is marked;
        KeyboardInterrupt, when what was in hand is marked and kept.
    """
    submissions = find_submissions(path)
    if not submissions:
        raise argument_error(ValueError, "submissions", f"{path}, without a notebook", "notebooks")
    limits, bare = limits or Limits(), without_jail_for_my_own_code
    with JailSession("", limits=limits, without_jail_for_my_own_code=bare):
        pass  # a machine without a jail says so before the first submission
    folder = Path(out)
    _check_own_folder(folder, Path(path))
    seed = _open(folder, assignment, seed)
    key = run_key(assignment, seed, limits)
    kept = {one.id: marks for one in submissions if (marks := _kept(folder, one, key))}
    todo = [one for one in submissions if one.id not in kept]
    how = (assignment.name, seed, limits, bare, key)
    bar = tqdm(total=len(submissions), initial=len(kept), unit="submission", desc="marking")
    with Stop() as stop, bar:
        for marks in _mark_all(todo, how, jobs, stop, lambda ids: bar.set_postfix_str(_shown(ids))):
            write_whole(_marks_file(folder, marks.id), marks.to_json())
            kept[marks.id] = marks
            bar.update()
    if stop.asked:
        raise KeyboardInterrupt
    return [kept[one.id] for one in submissions]


def _shown(ids: Iterable[str]) -> str:
    """The submissions in hand, as far as they fit beside a bar."""
    text = f"in hand: {', '.join(ids)}"
    return text if len(text) <= 50 else f"{text[:49]}…"


def _check_own_folder(folder: Path, submissions: Path) -> None:
    """Raise ValueError unless results can go there without mixing with what was handed in."""
    if folder.exists() and not folder.is_dir():
        raise argument_error(ValueError, "out", f"the file {folder}", "a folder")
    if submissions.is_dir() and submissions.resolve() == folder.resolve():
        raise argument_error(
            ValueError, "out", f"the folder of submissions, {folder}", "another folder"
        )


def _open(folder: Path, assignment: Assignment, seed: int | None) -> int:
    """Make the folder of results, or go on in one; give the seed."""
    (folder / "marks").mkdir(parents=True, exist_ok=True)
    run = folder / RUN
    before = json.loads(run.read_text(encoding="utf-8")) if run.exists() else {}
    if before.get("assignment", assignment.name) != assignment.name:
        wanted = f"a folder of its own for {assignment.name}"
        raise argument_error(
            ValueError, "out", f"{folder}, with marks of {before['assignment']}", wanted
        )
    if seed is None:
        seed = before.get("seed", secrets.randbelow(2**31))
    elif seed != before.get("seed", seed):
        raise argument_error(
            ValueError, "seed", seed, f"{before['seed']}, with which {folder} was marked"
        )
    write_whole(run, json.dumps({"assignment": assignment.name, "seed": seed}) + "\n")
    return seed


def run_key(assignment: Assignment, seed: int, limits: Limits) -> str:
    """A word that changes with whatever could change marks: the seed, the limits, torch, our code."""
    code = hashlib.sha256()
    for file in sorted(PACKAGE.rglob("*.py")):
        code.update(file.read_bytes())
    settings = [assignment.name, seed, asdict(limits), torch.__version__, code.hexdigest()]
    return hashlib.sha256(json.dumps(settings).encode()).hexdigest()


def _marks_file(folder: Path, name: str) -> Path:
    return folder / "marks" / f"{file_stem(name)}.json"


def _kept(folder: Path, submission: Submission, key: str) -> Marks | None:
    """The marks of an earlier run, if they still hold."""
    try:
        marks = from_json(_marks_file(folder, submission.id).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    same = (marks.id, marks.digest, marks.key) == (submission.id, submission.digest, key)
    return marks if same and FAILED not in marks.flags else None


# ---------------------------------------------------------------------------------- side by side


Show = Callable[[Iterable[str]], object]  # sees the ids that are in hand


def _mark_all(
    todo: list[Submission], how: tuple, jobs: int, stop: Stop, show: Show
) -> Iterator[Marks]:
    """Marks as they come; a process of ours that dies costs one submission, and is named."""
    pending = {one.id: one for one in todo}
    for marks in _in_pool(list(pending.values()), how, jobs, stop, show):
        del pending[marks.id]
        yield marks
    for one in list(pending.values()):  # a process died: whose fault it was shows one by one
        marks = next(_in_pool([one], how, 1, stop, show), None)
        if marks is None and stop.asked:
            return
        yield marks or failed(one, how[0], "the grader's process died")


def _in_pool(
    todo: list[Submission], how: tuple, jobs: int, stop: Stop, show: Show
) -> Iterator[Marks]:
    """Marks from processes of our own; ends early if one of them dies, or when asked to stop."""
    spawn = multiprocessing.get_context("spawn")  # a fork with torch's threads may hang
    pool = ProcessPoolExecutor(jobs, spawn, begin_worker)
    waiting, in_hand = iter(todo), {}
    try:
        while True:
            while len(in_hand) < jobs and not stop.asked and (one := next(waiting, None)):
                with stop.unseen():
                    in_hand[pool.submit(_mark_one, one, *how)] = one.id
            if not in_hand:
                return
            show(in_hand.values())
            done, _ = wait(in_hand, return_when=FIRST_COMPLETED)
            if stop.asked > 1:
                return
            for future in done:
                del in_hand[future]
                yield future.result()
    except BrokenProcessPool:
        return
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _mark_one(one: Submission, name: str, seed: int, limits: Limits, bare: bool, key: str) -> Marks:
    """Mark a submission in a process of our own; an error of ours becomes a flag."""
    try:
        return mark(one, load(name), seed=seed, limits=limits, key=key,
                    without_jail_for_my_own_code=bare)  # fmt: skip
    except JailError as error:
        return failed(one, name, f"no jail: {error}")
    except Exception as error:
        return failed(one, name, where(error))


def failed(one: Submission, name: str, why: str) -> Marks:
    """Marks of nothing, that the next run does not keep; what went wrong is for the instructor."""
    note = "Not marked, by no fault of yours."
    return Marks(one.id, name, one.digest, (FAILED,), (note,), faults=(why,))
