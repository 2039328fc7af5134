"""The marks of one notebook as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from ..handout import handed_out
from ..marking.marks import Marks, PartMarks
from ..marking.points import NOT_MARKED, total
from ..tasks import Assignment

SIGNS = {"right": "✓", "not written": "·", "not found": "·", "not read": "·"}


def self_check_report(assignment: Assignment, marks: Marks) -> str:
    """What a student sees: a line for each part, and the diagnosis where something is wrong."""
    lines = [f"{assignment.name}: {assignment.title}", *(f"  note: {note}" for note in marks.notes)]
    titles = {part.name: handed_out(assignment).title(part.name) for part in assignment.parts}
    longest = max(map(len, titles.values()))
    for part in assignment.parts:
        title = titles[part.name].ljust(longest)
        if part.name in marks.parts:
            lines += _of_code(title, marks.parts[part.name])
        else:
            state = "written" if marks.written.get(part.name) else "not written yet"
            lines.append(f"  · {title} {part.points:5g} points, marked by a person: {state}")
    of_code = sum(part.points for part in assignment.coded)
    of_words = sum(part.points for part in assignment.written)
    reached = total(assignment, marks, NOT_MARKED)
    lines.append(
        f"{reached:g} of {of_code} points for code; {of_words} more are marked by a person"
    )
    return "\n".join(lines)


def _of_code(title: str, got: PartMarks) -> Iterator[str]:
    """The verdict on a code task or a bug hunt, and what explains it."""
    sign = SIGNS.get(got.verdict, "✗")
    yield f"  {sign} {title} {got.points:5g} of {got.of:g}  {got.verdict}"
    mistake = " ".join(filter(None, [got.mistake and f"{got.mistake}:", got.cause]))
    rows = {
        "check": got.check, "why": got.why, "case": got.case, "expected": got.expected, "got": got.got,
        "looks like": mistake, "one that your test missed": got.hint, "flags": ", ".join(got.flags),
    }  # fmt: skip
    yield from (f"      {name}: {text}" for name, text in rows.items() if text)
    if got.caught or got.missed:
        every = len(got.caught) + len(got.missed)
        yield f"      {len(got.caught)} of {every} wrong implementations caught"
