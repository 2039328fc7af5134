"""How a class did, for its instructor: totals, verdicts, famous mistakes, mutants that got away, flags."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import compress
from statistics import mean, median
from typing import Any

from ..handout import handed_out
from ..marking.marks import Marks, PartMarks
from ..marking.points import (
    NOT_MARKED,
    Manual,
    by_flag,
    is_complete,
    points_of,
    same_file,
    total,
)
from ..tasks import Assignment, Hunt
from .answers import own_words
from .feedback import OF_FILE, OF_PART, nothing_read
from .page import render

VERDICTS = ("right", "wrong", "not written", "not found", "stopped", "forbidden")
MOST_COLUMNS = 12


def class_summary(
    assignment: Assignment,
    marks: Sequence[Marks],
    manual: Manual = NOT_MARKED,
    missing: Sequence[str] = (),
) -> str:
    """The page; the same from marks in any order. `missing` are students who handed in nothing."""
    marks = sorted(marks, key=lambda one: one.id)
    sections = (_totals, _verdicts, _marked, _mistakes, _got_away, _flags) if marks else ()
    values = {name: value for make in sections
              for name, value in make(assignment, marks, manual).items()}  # fmt: skip
    return render(
        "class_summary.html",
        assignment=assignment,
        title=handed_out(assignment).title,
        missing=sorted(missing),
        faults=[(one.id, _titled(fault, assignment)) for one in marks for fault in one.faults],
        submissions=len(marks),
        verdicts=[f"#{verdict}" for verdict in VERDICTS],
        **values,
    )


Section = dict[str, Any]  # what the template shows, by name


def _totals(assignment: Assignment, marks: Sequence[Marks], manual: Manual) -> Section:
    """A histogram over what can be reached with the parts that are marked for anybody."""
    totals = [total(assignment, one, manual) for one in marks]
    most = sum(
        part.points
        for part in assignment.parts
        if any(points_of(part, one, manual) is not None for one in marks)
    )
    tried = [not (nothing_read(one) or _is_untouched(one)) for one in marks]
    others = list(compress(totals, tried))
    return {
        "mean": mean(totals),
        "median": median(totals),
        "most": most,
        "by_grader": sum(part.points for part in assignment.coded),
        "complete": sum(is_complete(assignment, one, manual) for one in marks),
        "unread": sum(map(nothing_read, marks)),
        "untouched": sum(map(_is_untouched, marks)),
        "mean_of_others": mean(others) if others else None,
        **_columns(totals, most),
    }


def _is_untouched(one: Marks) -> bool:
    """Whether a file was read, and every part of it is as it was handed out."""
    nothing = all(part.verdict == "not written" for part in one.parts.values())
    return bool(one.parts) and nothing and not one.written and not nothing_read(one)


def histogram(totals: Sequence[float], most: int) -> str:
    """How many totals lie in each range, as SVG."""
    return render("histogram.svg", **_columns(totals, most))


def _columns(totals: Sequence[float], most: int) -> Section:
    """The columns of a histogram; ranges hold their lower end, the last one both ends."""
    step = max(1, math.ceil(most / MOST_COLUMNS))
    ranges = max(1, math.ceil(most / step))
    counts = Counter(min(int(one / step), ranges - 1) for one in totals)
    highest = max(1, *counts.values()) if counts else 1
    columns = [(number * step, counts[number]) for number in range(ranges)]
    return {"columns": columns, "step": step, "width": 324 / ranges, "unit": 130 / highest}


def _verdicts(assignment: Assignment, marks: Sequence[Marks], manual: Manual) -> Section:
    """How many were right, wrong and so on; what was not read at all has no verdict."""
    rows = []
    for part in assignment.coded:
        verdicts = Counter(got.verdict for got in _got(marks, part.name))
        counts = [verdicts[verdict] for verdict in VERDICTS]
        reached = mean(points_of(part, one, manual) or 0.0 for one in marks)
        rows.append((part, reached, [*counts, len(marks) - sum(counts)]))
    return {"coded": rows}


def _got(marks: Sequence[Marks], part: str) -> list[PartMarks]:
    """What the submissions that have it got for a part."""
    return [one.parts[part] for one in marks if part in one.parts]


def _marked(assignment: Assignment, marks: Sequence[Marks], manual: Manual) -> Section:
    rows = []
    for part in assignment.written:
        reached = [points_of(part, one, manual) for one in marks]
        marked = [one for one in reached if one is not None]
        answered = sum(bool(own_words(one.written.get(part.name, ""))) for one in marks)
        rows.append((part, mean(marked) if marked else None, [answered, len(marked)]))
    return {"written": rows}


def _mistakes(assignment: Assignment, marks: Sequence[Marks], manual: Manual) -> Section:
    """The famous mistakes that explain wrong answers, most frequent first."""
    wrong = [
        (got.mistake, got.cause, part.name)
        for part in assignment.coded
        if not isinstance(part, Hunt)
        for got in _got(marks, part.name)
        if got.verdict == "wrong"
    ]
    famous = Counter(each for each in wrong if each[0])
    return {"mistakes": _by_count(famous), "in_another_way": len(wrong) - famous.total()}


def _by_count(counts: Counter[tuple[str, ...]]) -> list[tuple[tuple[str, ...], int]]:
    """Most frequent first, then by name: the same page from the same marks in any order."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _got_away(assignment: Assignment, marks: Sequence[Marks], manual: Manual) -> Section:
    """The mutants that tests missed, most frequent first, and of how many tests."""
    hunts = [part for part in assignment.coded if isinstance(part, Hunt)]
    ran = {
        hunt.name: [got for got in _got(marks, hunt.name) if got.caught or got.missed]
        for hunt in hunts
    }
    missed = Counter((name, hunt) for hunt in ran for got in ran[hunt] for name in got.missed)
    symptoms = {(m.name, hunt.name): m.symptom for hunt in hunts for m in hunt.mutants}
    rows = [
        ((name, symptoms.get((name, hunt), ""), hunt), often, len(ran[hunt]))
        for (name, hunt), often in _by_count(missed)
    ]
    return {"got_away": rows}


def _flags(assignment: Assignment, marks: Sequence[Marks], manual: Manual) -> Section:
    """Every flag with its meaning and the ids that have it, and the ids that share a file."""
    groups = {tuple(sorted([name, *others])) for name, others in same_file(marks).items()}
    flags = [*by_flag(assignment, marks, manual).items()]
    flags += [("same file", ids) for ids in sorted(groups)]
    return {"flags": [(_titled(flag, assignment), _meaning(flag), ids) for flag, ids in flags]}


def _titled(about: str, assignment: Assignment) -> str:
    """What is said about a part, "hw03.rows: slow", with the part's title for its name."""
    name, separator, said = about.partition(": ")
    return f"{handed_out(assignment).title(name)}: {said}" if separator else about


def _meaning(flag: str) -> str:
    """What a flag means, as the student reads it; nothing for an unknown one."""
    if flag == "same file":
        return "These notebooks are the same, byte for byte."
    _, separator, of_part = flag.partition(": ")
    return OF_PART.get(of_part, "") if separator else OF_FILE.get(flag, "")
