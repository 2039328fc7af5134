"""The homework's commands: `python -m tested_transformer.homework grade`, `collect` and `self-check`."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from .assignments import assignment, assignment_names
from .jail.bubblewrap import JailError, JailMissing, Limits
from .marking.manual_import import read_manual
from .marking.manual_store import keep_manual, kept_manual, marked_again
from .marking.mark_class import FAILED, grade
from .marking.mark_submission import mark
from .marking.points import Manual, by_flag
from .marking.students import missing, read_students, unlisted
from .reports.terminal import self_check_report
from .reports.write import write_reports
from .submissions.collecting import collect
from .submissions.finding import Submission, find_submissions, passed_over
from .submissions.reading import defines, read_submission
from .tasks import Assignment
from .words import count, some

BARE = "--without-jail-for-my-own-code"
TYPED = {  # arguments of the functions, by what stands for them on the command line
    "path": "SUBMISSIONS", "submissions": "SUBMISSIONS", "wall_seconds": "--seconds", "jobs": "--jobs",
    "manual": "--manual", "out": "--out", "seed": "--seed", "students": "--students", "course": "COURSE",
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run a command; 2 and a sentence for bad input, 130 if interrupted."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except JailMissing as error:
        print(f"{error}\nOnly for code that you wrote yourself: {BARE}.", file=sys.stderr)
    except (JailError, OSError, ValueError, ImportError) as error:
        print(f"homework: {_as_typed(str(error))}", file=sys.stderr)
    except KeyboardInterrupt:
        print("\nStopped. What is marked stays marked: the same command goes on.", file=sys.stderr)
        return 130
    return 2


def _as_typed(sentence: str) -> str:
    """What is wrong with an argument, by the name that was typed."""
    argument, colon, rest = sentence.partition(": ")
    return f"{TYPED.get(argument, argument)}{colon}{rest}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tested_transformer.homework", description=__doc__
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    one = commands.add_parser("self-check", help="check every task of a notebook of your own")
    one.add_argument("notebook", type=Path, metavar="FILE.ipynb")
    one.add_argument("--assignment", type=_name, metavar="NN", help="default: by what it defines")
    one.set_defaults(run=_self_check)
    many = commands.add_parser("grade", help="mark a folder or zip of notebooks")
    many.add_argument("submissions", type=Path, metavar="SUBMISSIONS", help="a folder or a zip")
    many.add_argument(
        "--assignment", type=_name, required=True, metavar="NN", help=", ".join(assignment_names())
    )
    many.add_argument("--out", type=Path, required=True, metavar="DIR", help="where results go")
    many.add_argument("--manual", type=Path, metavar="FILE",
                      help="points given by hand: a table (.csv) or nbgrader's gradebook (.db)")  # fmt: skip
    many.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N",
                      help="submissions at a time (default: one for each processor)")  # fmt: skip
    many.add_argument("--seed", type=int, metavar="S", help="of the inputs (default: drawn once)")
    many.add_argument("--seconds", type=float, default=Limits.wall_seconds, metavar="T",
                      help="that one task may take, waiting for a processor not counted "
                      "(default: %(default)g)")  # fmt: skip
    many.add_argument("--students", type=Path, metavar="FILE",
                      help="ids, one to a line: who handed in nothing is told, and gets 0 points")  # fmt: skip
    many.add_argument("--no-answer-zero", action="store_true", dest="zero",
                      help="questions to which no answer was found count 0 points, without a person's")  # fmt: skip
    many.add_argument(BARE, action="store_true", dest="bare",
                      help="DANGEROUS: run the notebooks as you, able to read, change and send away "
                      "all that you can; never for what others wrote")  # fmt: skip
    many.set_defaults(run=_grade)
    copy = commands.add_parser("collect", help="copy the notebooks that nbgrader collected")
    copy.add_argument("course", type=Path, metavar="COURSE", help="nbgrader's course folder")
    copy.add_argument("--assignment", type=_name, required=True, metavar="NN")
    copy.add_argument("--out", type=Path, required=True, metavar="DIR", help="where they go")
    copy.set_defaults(run=_collect)
    return parser


def _name(word: str) -> str:
    """The name of an assignment from how people write it: 3, 03, hw03, project."""
    name = f"hw{int(word):02}" if word.isdigit() else word.lower()
    if name not in assignment_names():
        expected = f"one of {', '.join(assignment_names())}"
        raise argparse.ArgumentTypeError(f"{word!r}: expected {expected}")
    return name


# ------------------------------------------------------------------------------------------- grade


def _grade(options: argparse.Namespace) -> int:
    homework = assignment(options.assignment)
    if options.bare:
        print("WITHOUT A JAIL: this code can do on this machine all that you can.", file=sys.stderr)
    manual, given = kept_manual(options.out), None
    students = read_students(options.students) if options.students else []
    if options.manual:  # before the marking, so that a slip in the table shows at once
        ids = [one.id for one in find_submissions(options.submissions)]
        given = read_manual(options.manual, homework, ids)
    marks = grade(
        options.submissions, homework, options.out, jobs=options.jobs, seed=options.seed,
        limits=Limits(wall_seconds=options.seconds), without_jail_for_my_own_code=options.bare,
    )  # fmt: skip
    if given:
        before, manual = manual, keep_manual(options.out, homework, marks, given)
        print(f"{options.manual}: {_manual_summary(given, marked_again(before, manual))}")
    if manual.points:
        print(f"points by hand: {count(len(manual.points), 'submission')}")
    manual, ids = replace(manual, zero_without_answer=options.zero), [one.id for one in marks]
    nothing = missing(students, ids)
    for line in write_reports(options.out, homework, marks, manual, nothing):
        print(line)
    if students:
        print(f"handed in nothing: {count(len(nothing), 'student')}" + _listed(nothing))
        if strangers := unlisted(students, ids):
            print(f"on no list: {count(len(strangers), 'submission')}" + _listed(strangers))
    others = [name for name in passed_over(options.submissions)
              if not _is_below(options.submissions / name, options.out)]  # fmt: skip
    if others:
        are = "is no notebook and was" if len(others) == 1 else "are no notebooks and were"
        print(f"{count(len(others), 'file')} {are} passed over: {some(others)}")
    failed = sum(FAILED in one.flags for one in marks)
    print(
        f"{len(marks) - failed} marked." + (f" {failed} not, by a fault of ours." if failed else "")
    )
    for flag, ids in by_flag(homework, marks, manual).items():
        print(f"  {len(ids)} x {flag}: {some(ids)}")
    for one in marks:
        for fault in one.faults:
            print(f"  the grader's own error, {one.id}: {fault}", file=sys.stderr)
    return 1 if failed else 0


def _listed(names: list[str]) -> str:
    return f": {', '.join(names)}" if names else ""


def _collect(options: argparse.Namespace) -> int:
    copied, without = collect(options.course, options.assignment, options.out)
    print(f"{options.out}/  {count(len(copied), 'notebook')} of {options.assignment}")
    if without:
        print(f"no notebook: {count(len(without), 'student')}" + _listed(without))
    name = options.assignment
    print(
        f"Next: python -m tested_transformer.homework grade {options.out} --assignment {name} --out DIR"
    )
    return 0


def _manual_summary(given: Manual, again: list[str]) -> str:
    """What a table of points by hand did."""
    cells = [number for parts in given.points.values() for number in parts.values()]
    back = cells.count(None)
    comments = sum(map(len, given.comments.values()))
    sentences = [
        f"points in {count(len(cells) - back, 'cell')} merged",
        f"in {count(back, 'cell')} taken back" if back else "",
        f"{count(comments, 'comment')} merged" if comments else "",
        f"marked again after a change: {some(again)}" if again else "",
    ]
    return ", ".join(filter(None, sentences))


def _is_below(file: Path, folder: Path) -> bool:
    return file.resolve().is_relative_to(folder.resolve())


# -------------------------------------------------------------------------------------- self-check


def _self_check(options: argparse.Namespace) -> int:
    if not options.notebook.is_file():
        raise FileNotFoundError(f"there is no notebook {options.notebook}")
    homework = assignment(options.assignment) if options.assignment else _guess(options.notebook)
    submission = Submission("yours", options.notebook.resolve())
    marks = mark(
        submission, homework, seed=0, without_jail_for_my_own_code=True,
        watched=lambda parts: tqdm(parts, unit="task", desc="checking", leave=False),
    )  # fmt: skip
    print(self_check_report(homework, marks))
    return 0


def _guess(notebook: Path) -> Assignment:
    """The assignment of which a notebook defines most functions.

    Raises: ValueError if it defines none of any.
    """
    source = read_submission(notebook)
    counts = {}
    for name in assignment_names():
        homework = assignment(name)
        counts[name] = sum(defines(source, part.function) for part in homework.coded)
    best = max(counts, key=counts.__getitem__)
    if not source.code:
        raise ValueError(f"{notebook}: {source.sentence}")
    if not counts[best]:
        why = "It defines no function of any assignment. Name the assignment: --assignment NN."
        raise ValueError(f"{notebook}: {why}")
    return assignment(best)


if __name__ == "__main__":
    sys.exit(main())
