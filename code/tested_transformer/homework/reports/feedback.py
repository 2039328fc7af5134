"""The page that a student reads: points, and why one was lost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from ..handout import handed_out
from ..marking.marks import Marks
from ..marking.points import (
    NOT_MARKED,
    Manual,
    is_changed,
    is_marked,
    is_replaced,
    points_of,
    total,
)
from ..tasks import Assignment, Hunt, Task, Written
from .page import render

VERDICTS = {  # sign, words, color
    "right": ("✓", "Right", "right"),
    "wrong": ("✗", "Not right yet", "wrong"),
    "not written": ("·", "Not written", "soft"),
    "not found": ("·", "Not found", "soft"),
    "not read": ("·", "File not readable", "soft"),
    "stopped": ("■", "Stopped before it had answered", "stopped"),
    "forbidden": ("✗", "Uses what the task forbids", "wrong"),
    "not marked": ("·", "Not marked yet", "soft"),
}
OF_FILE = {  # what a flag of the whole file means; what was found there stands in the notes
    "cell left out": "What was left out was not marked; all the rest was.",
    "damaged": "What stands below the damage could not be marked. Save the notebook and hand it in again.",
    "empty": "The file is empty.",
    "encoding": "Save the notebook as UTF-8: letters may have been misread.",
    "grader failed": "The instructor was told, and will have it marked again.",
    "no code": "No cell defines anything.",
    "no notebook": "Hand in the file whose name ends in .ipynb.",
    "not a notebook": "Download it again, and hand it in again.",
    "too large": "Clear the outputs, save the notebook and hand it in again.",
    "unreadable": "The file could not be read.",
}  # fmt: skip
UNREAD = {"empty", "no code", "no notebook", "not a notebook", "too large", "unreadable"}
OF_PART = {  # what a flag of one part means
    "by hand": "A person gave these points in place of the grader's.",
    "ended itself": "The program ended itself in the middle of your function, as exit() does.",
    "forbidden": "The code uses a library function, or a part of the system, that is not allowed here.",
    "grader failed": "The grader itself failed here. The instructor was told; nothing is wrong with your code.",
    "garbled": "What came back from your function had not the agreed form.",
    "killed": "The system ended the program in the middle of your function.",
    "memory": "Your function asked for more memory than there was.",
    "missing function": "No function of this name was found. Was it renamed, or deleted?",
    "not a tensor": "Your function returned something that is neither a tensor nor a number.",
    "not deterministic": "Called twice with the same input, your function answered differently.",
    "raised": "The code raised an exception.",
    "slow": "It took far more time on the processor than a plain solution does.",
    "timeout": "It took longer than there was time. Does a loop never end?",
    "too large": "The answer was larger than the grader takes.",
    "two definitions": "The function is defined more than once: the last definition counts.",
}  # fmt: skip
LEFT_OUT = re.compile(r"Cell [0-9]+: .*left out")  # how such a note begins
MISSING_WITH_A_CELL = (
    "No function of this name was found. Its cell may be one that was left out, see above."
)


def feedback_page(assignment: Assignment, marks: Marks, manual: Manual = NOT_MARKED) -> str:
    """One student's page, whole in itself. It names no other student, no solution, no hidden case's seed."""
    given = {"marks": marks, "manual": manual}
    by_person = any(manual.of(marks).values()) or manual.comments_on(marks)
    return render(
        "feedback.html", assignment=assignment, title=handed_out(assignment).title, **given,
        about_file=list(dict.fromkeys([*marks.notes, *(OF_FILE.get(f, f) for f in marks.flags)])),
        nothing_to_mark=nothing_read(marks) and not by_person, total=total(assignment, **given),
        unmarked=[part.points for part in assignment.parts if not is_marked(part, **given)],
        reached=partial(points_of, **given), verdict=partial(_verdict, **given),
        remarks=partial(_remarks, **given), flags=partial(_flags, marks=marks),
        by_hand=partial(is_replaced, **given),
    )  # fmt: skip


def nothing_read(marks: Marks) -> bool:
    """Whether the file gave neither code nor answers in words, and a flag says why."""
    return bool(UNREAD.intersection(marks.flags)) and not marks.written


def _verdict(part: Task | Hunt | Written, marks: Marks, manual: Manual) -> tuple[str, str]:
    """The verdict on a part in words, with a sign, and the class of its style."""
    if isinstance(part, Written):
        if is_changed(part, marks, manual):
            return "Marked by a person, before the answer changed", "soft"
        marked = points_of(part, marks, manual) is not None
        return "Marked by a person" + ("" if marked else ", not yet"), "soft"
    if is_replaced(part, marks, manual):
        return "By hand", "verdict"
    got = marks.parts.get(part.name)
    if got is None:
        return "Not marked", "soft"
    sign, words, color = VERDICTS.get(got.verdict, ("", got.verdict, "soft"))
    if got.missed and not got.got:  # a hunt that refused no right implementation
        words = f"{len(got.caught)} of {len(got.caught) + len(got.missed)} caught"
        sign, color = ("◐", "stopped") if got.caught else (sign, color)
    return f"{sign} {words}", f"verdict {color}"


def _remarks(part: Task | Hunt | Written, marks: Marks, manual: Manual) -> Iterator[str]:
    """That a person gave the points; that no answer in words was found, whatever its points."""
    if isinstance(part, Written):
        if not marks.written.get(part.name):
            deleted = "was its cell deleted, or left as it was?"
            why = "the file could not be read." if nothing_read(marks) else deleted
            yield f"No answer of yours was found: {why}"
    elif is_replaced(part, marks, manual):
        yield OF_PART["by hand"]


def _flags(part: Task | Hunt, marks: Marks) -> list[str]:
    """What the flags of a part mean, each once."""
    meanings = dict(OF_PART)
    if any(map(LEFT_OUT.match, marks.notes)):
        meanings["missing function"] = MISSING_WITH_A_CELL
    return [meanings.get(flag, flag) for flag in dict.fromkeys(marks.parts[part.name].flags)]
