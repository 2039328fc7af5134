"""The page that a student reads: points, and why one was lost."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ..marking.marks import Marks, PartMarks
from ..marking.points import (
    NOT_MARKED,
    Manual,
    is_changed,
    is_complete,
    is_marked,
    is_replaced,
    points_of,
    total,
)
from ..tasks import Assignment, Hunt, Task, Written
from ..words import count
from .page import code, identity, items, of_points, page, points, prose, said, table, without_paths

VERDICTS = {  # sign, words, color
    "right": ("✓", "Right", "right"),
    "wrong": ("✗", "Not right yet", "wrong"),
    "not written": ("·", "Not written", "soft"),
    "not found": ("·", "Not found", "soft"),
    "not read": ("·", "File not readable", "soft"),
    "stopped": ("■", "Stopped before it had answered", "stopped"),
    "forbidden": ("✗", "Uses what the task forbids", "wrong"),
}
OF_FILE = {  # what a flag of the whole file means; what was found there stands in the notes
    "cell left out": "What was left out was not marked; all the rest was.",
    "empty": "The file is empty.",
    "encoding": "Save the notebook as UTF-8: letters may have been misread.",
    "grader failed": "The instructor was told, and will have it marked again.",
    "no code": "No cell defines anything.",
    "no notebook": "Hand in the file whose name ends in .ipynb.",
    "not a notebook": "Download it again, and hand it in again.",
    "syntax error": "A cell is not Python, and was left out.",
    "too large": "Clear the outputs, save the notebook and hand it in again.",
    "unreadable": "The file could not be read.",
}  # fmt: skip
UNREAD = {"empty", "no code", "no notebook", "not a notebook", "too large", "unreadable"}
OF_PART = {  # what a flag of one part means
    "by hand": "A person gave these points in place of the grader's.",
    "ended itself": "The program ended itself in the middle of your function, as exit() does.",
    "forbidden": "The code uses a library function, or a part of the system, that is not allowed here.",
    "garbled": "What came back from your function had not the agreed form.",
    "killed": "The system ended the program in the middle of your function.",
    "memory": "Your function asked for more memory than there was.",
    "missing function": "No function of this name was found. Was it renamed, or deleted?",
    "no answer": "The program ended before your function had answered.",
    "not a tensor": "Your function returned something that is neither a tensor nor a number.",
    "not deterministic": "Called twice with the same input, your function answered differently.",
    "raised": "The code raised an exception.",
    "slow": "It took far longer than a plain solution does.",
    "syntax error": "The code is not Python.",
    "timeout": "It took longer than there was time. Does a loop never end?",
    "too large": "The answer was larger than the grader takes.",
    "wrong type": "Your function returned values that are no plain numbers.",
}  # fmt: skip
LEFT_OUT = re.compile(r"Cell [0-9]+: .*left out")  # how such a note begins
MISSING_WITH_A_CELL = (
    "No function of this name was found. Its cell may be one that was left out, see above."
)


def feedback_page(assignment: Assignment, marks: Marks, manual: Manual = NOT_MARKED) -> str:
    """One student's page, whole in itself. It names no other student, no solution, no hidden case's seed."""
    title = f"{assignment.name}: {assignment.title}"
    about_file = [*marks.notes, *(OF_FILE.get(flag, flag) for flag in marks.flags)]
    body = [f"<h1>{said(title)}</h1>", f"<p>Submission <b>{identity(marks.id)}</b></p>"]
    by_person = any(manual.of(marks).values()) or manual.comments_on(marks)
    if nothing_read(marks) and not by_person:
        body += [_nothing(assignment, about_file)]
    else:
        parts = "\n".join(_section(part, marks, manual) for part in assignment.parts)
        body += [
            _total(assignment, marks, manual),
            _about_file(about_file),
            "<h2>Points</h2>",
            _overview(assignment, marks, manual),
            f"<h2>Part by part</h2>\n{parts}",
        ]
    return page(f"{title} · {marks.id}", "\n".join(filter(None, body)))


def nothing_read(marks: Marks) -> bool:
    """Whether the file gave neither code nor answers in words, and a flag says why."""
    return bool(UNREAD.intersection(marks.flags)) and not marks.written


def _nothing(assignment: Assignment, why: list[str]) -> str:
    """What stands in place of all points where there was nothing to mark."""
    reason = " ".join(map(prose, dict.fromkeys(why)))
    return (
        f'<p class="total"><b>0</b> of {assignment.points} points</p>\n'
        f"<p>Nothing in this file could be marked. {reason}</p>"
    )


def _total(assignment: Assignment, marks: Marks, manual: Manual) -> str:
    reached, most = points(total(assignment, marks, manual)), assignment.points
    open_points = sum(
        part.points for part in assignment.parts if not is_marked(part, marks, manual)
    )
    rest = ""
    if not is_complete(assignment, marks, manual):
        rest = f' <span class="soft">so far; a person has yet to mark {count(open_points, "point")}</span>'
    return f'<p class="total"><b>{reached}</b> of {most} points{rest}</p>'


def _about_file(sentences: list[str]) -> str:
    """What is to be said of the notebook as a whole, each once."""
    if not sentences:
        return ""
    once = map(prose, dict.fromkeys(sentences))
    return f"<h2>About the notebook</h2>\n{items(once)}"


def _overview(assignment: Assignment, marks: Marks, manual: Manual) -> str:
    """Every part in a line, with a bar."""
    rows = []
    for part in assignment.parts:
        reached = points_of(part, marks, manual)
        rows.append(
            [code(part.name), of_points(reached, part.points), _verdict(part, marks, manual)]
        )
    reached = points(total(assignment, marks, manual))
    foot = ["Total", f"{reached}\u00a0/\u00a0{assignment.points}", ""]
    return table("Points of each part", ["Part", "Points", "Verdict"], rows, foot=foot)


def _verdict(part: Task | Hunt | Written, marks: Marks, manual: Manual) -> str:
    """The verdict on a part in words, with a sign and a color."""
    if isinstance(part, Written):
        marked = points_of(part, marks, manual) is not None
        words = "Marked by a person" if marked else "Marked by a person, not yet"
        if is_changed(part, marks, manual):
            words = "Marked by a person, before the answer changed"
        return f'<span class="soft">{words}</span>'
    if is_replaced(part, marks, manual):
        return '<span class="verdict">By hand</span>'
    got = marks.parts.get(part.name)
    if got is None:
        return '<span class="soft">Not looked at</span>'
    sign, words, color = VERDICTS.get(got.verdict, ("", got.verdict, "soft"))
    if got.missed and not got.got:  # a hunt that refused no right implementation
        words = f"{len(got.caught)} of {len(got.caught) + len(got.missed)} caught"
        sign, color = ("◐", "stopped") if got.caught else (sign, color)
    return f'<span class="verdict {color}">{sign} {said(words)}</span>'


# ------------------------------------------------------------------------------------------- one part


def _section(part: Task | Hunt | Written, marks: Marks, manual: Manual) -> str:
    """All that is known about one part."""
    reached = points_of(part, marks, manual)
    shown = "" if reached is None else f"{points(reached)} of "
    lines = [
        f"<h3>{code(part.name)}</h3>",
        f'<p class="soft">{_kind(part)} · {shown}{count(part.points, "point")}</p>',
        f"<p>{_verdict(part, marks, manual)}</p>",
    ]
    if isinstance(part, Written):
        lines += [] if marks.written.get(part.name) else [_no_answer(marks)]
    else:
        by_hand = is_replaced(part, marks, manual)
        lines += [f"<p>{OF_PART['by hand']}</p>"] if by_hand else []
        if part.name in marks.parts:
            lines += _of_code(marks.parts[part.name], by_hand, marks.notes)
    if comment := manual.comments_on(marks).get(part.name):
        lines += [f'<dl><dt>Comment</dt><dd class="lines">{said(comment)}</dd></dl>']
    return '<section class="part">\n' + "\n".join(filter(None, lines)) + "\n</section>"


def _kind(part: Task | Hunt | Written) -> str:
    if isinstance(part, Written):
        return said(part.kind.capitalize())
    kind = "Bug hunt" if isinstance(part, Hunt) else "Function"
    return f"{kind} {code(part.function)}"


def _no_answer(marks: Marks) -> str:
    """What the student is told where there is no answer in words, whatever points a person gave."""
    if nothing_read(marks):
        return "<p>No answer of yours was found: the file could not be read.</p>"
    return "<p>No answer of yours was found: was its cell deleted, or left as it was?</p>"


def _of_code(got: PartMarks, by_hand: bool, notes: Iterable[str]) -> list[str]:
    """The diagnosis, what a hunt caught, and the flags."""
    meanings = dict(OF_PART)
    if any(map(LEFT_OUT.match, notes)):
        meanings["missing function"] = MISSING_WITH_A_CELL
    sentences = [prose(meanings.get(flag, flag)) for flag in dict.fromkeys(got.flags)]
    return [_diagnosis(got), _caught(got, by_hand), items(sentences) if sentences else ""]


def _caught(got: PartMarks, by_hand: bool) -> str:
    """How many wrong implementations a test caught; which, is what the next student would ask."""
    every = len(got.caught) + len(got.missed)
    if not every:
        return ""
    hint = f" One that got away: {prose(got.hint)}" if got.hint else ""
    if got.got:
        until = "" if by_hand else ": until then it brings no points"
        hint = f" But it must also let every right one pass{until}."
    return f"<p>Your test caught {len(got.caught)} of {count(every, 'wrong implementation')}.{hint}</p>"


def _diagnosis(got: PartMarks) -> str:
    lines = "".join(f"<dt>{name}</dt><dd>{text}</dd>\n" for name, text in _findings(got))
    return f"<dl>\n{lines}</dl>" if lines else ""


def _findings(got: PartMarks) -> Iterator[tuple[str, str]]:
    """What the judge found, name and HTML, as far as there is something."""
    if got.check:
        yield "Check", prose(got.check)
    if got.why:
        yield "Why", prose(got.why)
    came = ("Got", got.got)
    if got.verdict == "forbidden":
        came = ("Used", got.got.replace("`", ""))  # it is set as code anyhow
    for name, text in (("Smallest case", got.case), ("Expected", got.expected), came):
        if text:
            yield name, f"<pre>{said(without_paths(text))}</pre>"
    if got.mistake or got.cause:
        name = f"<b>{prose(got.mistake)}</b>" if got.mistake else ""
        yield "Looks like", ": ".join(filter(None, [name, prose(got.cause)]))
