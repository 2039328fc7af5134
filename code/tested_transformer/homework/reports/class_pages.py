"""The pages that an instructor reads: the answers in words to mark, and how the class did."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import mean, median

from ..marking.files import file_stem
from ..marking.marks import Marks
from ..marking.points import (
    NOT_MARKED,
    Manual,
    by_flag,
    is_changed,
    is_complete,
    points_of,
    same_file,
    total,
)
from ..tasks import Assignment, Hunt, Written
from ..words import count
from .feedback import OF_FILE, OF_PART, nothing_read
from .page import bar, code, identity, items, of_points, page, points, prose, said, table

VERDICTS = ("right", "wrong", "not written", "not found", "stopped", "forbidden")
MOST_COLUMNS = 12
# What the handed out notebook says above an answer: **Your answer.**, **What you found.**
HANDED_OUT = re.compile(r"\s*\*\*(?:Your|What you) [a-z ]+\.\*\*[ \t]*")

# Where the next line of a rubric begins: "1 point: ...", "2 points: ...".
RUBRIC_LINE = re.compile(r"\s+(?=[0-9]+ points?:)")
HOW_TO_READ = (
    "In the table of points leave empty what is not marked yet, and write 0 where there is no answer.",
    "Words and code stand here as they were typed, formulas too: they are a stranger's, so they are only shown.",
    "Plots are in the notebook alone. An id is its path in what was handed in, less `.ipynb` and `.zip`: open it "
    "in a viewer, and run none of its cells.",
)


# ------------------------------------------------------------------------------------ answers in words


def written_page(
    assignment: Assignment, marks: Sequence[Marks], manual: Manual = NOT_MARKED
) -> str:
    """All answers in words, question by question, with the rubric beside them.

    An answer is shown as it was typed, less the words above it that were handed out, and with an
    experiment's its code. Each has an anchor: the part's name, then `file_stem` of the id.
    """
    title = f"{assignment.name}: answers in words"
    marks = sorted(marks, key=lambda one: one.id)
    body = [f"<h1>{said(title)}</h1>", f"<p>{count(len(marks), 'submission')}.</p>"]
    if marks and assignment.written:
        body += [items(map(prose, HOW_TO_READ)), "<h2>Submissions</h2>", _index(assignment, marks)]
        body += [_to_mark_again(assignment, marks, manual)]
    body += [_question(part, marks) for part in assignment.written]
    return page(title, "\n".join(body), broad=True)


def _anchor(part: Written, one: Marks) -> str:
    return said(f"{part.name}--{file_stem(one.id)}")


def _index(assignment: Assignment, marks: Sequence[Marks]) -> str:
    """Links from each id to its answers."""
    rows = [[identity(one.id), *(_link(part, one) for part in assignment.written)] for one in marks]
    return table("Where the answers are", ["id", *(part.name for part in assignment.written)], rows)


def _to_mark_again(assignment: Assignment, marks: Sequence[Marks], manual: Manual) -> str:
    """The answers that are others than those a person marked, if there are any."""
    rows = [
        [identity(one.id), code(part.name), _link(part, one)]
        for part in assignment.written
        for one in marks
        if is_changed(part, one, manual)
    ]
    caption = "Until points are given again, the old ones count"
    shown = table(caption, ["id", "Part", "Now"], rows) if rows else ""
    return f"<h2>Changed since they were marked</h2>\n{shown}" if rows else ""


def _text(part: Written, one: Marks) -> str:
    """What was answered, without what was handed out above it; empty if that is nothing."""
    text = one.written.get(part.name, "")
    if above := HANDED_OUT.match(text):
        text = text[above.end() :]
    return text.strip("\n") if text.strip() else ""


def _link(part: Written, one: Marks) -> str:
    if not _is_shown(part, one):
        return '<span class="soft">no answer</span>'
    words = "answer" if _text(part, one) else "code alone"
    label = said(f"{words}: {part.name} of {one.id}")
    return f'<a href="#{_anchor(part, one)}" aria-label="{label}">{words}</a>'


def _is_shown(part: Written, one: Marks) -> bool:
    """Whether there is something to read: words, or an experiment's code."""
    return bool(_text(part, one) or one.experiments.get(part.name))


def _question(part: Written, marks: Sequence[Marks]) -> str:
    answers = "\n".join(_answer(part, one) for one in marks if _is_shown(part, one))
    without = [identity(one.id) for one in marks if not _text(part, one)]
    nobody = f'<p class="soft">No answer was found:</p>\n{items(without)}' if without else ""
    return f"""<h2>{code(part.name)}</h2>
<p class="soft">{said(part.kind.capitalize())} · {count(part.points, "point")}</p>
<div class="question">
<aside class="rubric" aria-label="Rubric of {said(part.name)}"><div>
<h3>Rubric</h3>
<p class="lines">{prose(RUBRIC_LINE.sub(chr(10), part.rubric))}</p>
</div></aside>
<div>
{answers}
{nobody}
</div>
</div>"""


def _answer(part: Written, one: Marks) -> str:
    text, typed = _text(part, one), one.experiments.get(part.name, "")
    shown = f'<pre dir="auto">\n{said(text)}</pre>'  # HTML drops the first end of line
    lines = [
        f'<article class="answer" id="{_anchor(part, one)}">',
        f"<h4>{identity(one.id)}</h4>",
        shown if text else '<p class="soft">No answer in words.</p>',
        _code_typed(typed) if typed else "",
        "</article>",
    ]
    return "\n".join(filter(None, lines))


def _code_typed(text: str) -> str:
    """The code of an experiment, to be unfolded."""
    length = count(text.count("\n") + 1, "line")
    return f"<details><summary>Code, {length}</summary>\n<pre>\n{said(text)}</pre></details>"


# ------------------------------------------------------------------------------------- how the class did


def class_summary(
    assignment: Assignment, marks: Sequence[Marks], manual: Manual = NOT_MARKED
) -> str:
    """How a class did: totals, verdicts by part, famous mistakes, mutants that got away, flags."""
    title = f"{assignment.name}: {assignment.title}"
    marks = sorted(marks, key=lambda one: one.id)
    body = [f"<h1>{said(title)}</h1>", f"<p>{count(len(marks), 'submission')}.</p>"]
    if marks:
        sections = (
            ("Totals", _totals), ("Code, part by part", _verdicts), ("Answers in words", _marked),
            ("Mistakes", _mistakes), ("What got away from the bug hunts", _got_away),
            ("Flags", _flags),
        )  # fmt: skip
        body += [f"<h2>{name}</h2>\n{make(assignment, marks, manual)}" for name, make in sections]
    return page(f"{title} · the class", "\n".join(body))


Section = Callable[[Assignment, Sequence[Marks], Manual], str]


def _totals(assignment: Assignment, marks: Sequence[Marks], manual: Manual) -> str:
    """A histogram over what can be reached with the parts that are marked for anybody."""
    totals = [total(assignment, one, manual) for one in marks]
    most = sum(
        part.points
        for part in assignment.parts
        if any(points_of(part, one, manual) is not None for one in marks)
    )
    whole = sum(is_complete(assignment, one, manual) for one in marks)
    rest = _not_marked(assignment, most, len(marks) - whole)
    return (
        f"<p>Mean {points(mean(totals))}, median {points(median(totals))} of {count(most, 'point')}. "
        f"{whole} of {len(marks)} complete.{rest}</p>\n"
        f"{_pulling_down(marks, totals)}{histogram(totals, most)}"
    )


def _not_marked(assignment: Assignment, most: int, waiting: int) -> str:
    """What the points are of, while answers in words of so many submissions wait for a person."""
    if not waiting:
        return ""
    unmarked = assignment.points - most
    if not unmarked:
        return (
            f" Words of {count(waiting, 'submission')} are not all marked yet; without points they "
            "count 0 so far."
        )
    by_grader = sum(part.points for part in assignment.coded)
    giver = "that the grader gives" if most == by_grader else "that the grader and a person gave"
    are = "is" if unmarked == 1 else "are"
    return (
        f" Points are of the {most} {giver}; the {count(unmarked, 'point')} for words {are} "
        "not marked yet."
    )


def _pulling_down(marks: Sequence[Marks], totals: Sequence[float]) -> str:
    """How many gave nothing that could be marked, and the mean of all others."""
    unread = sum(map(nothing_read, marks))
    untouched = sum(map(_is_untouched, marks))
    if not unread + untouched:
        return ""
    others = [
        reached
        for reached, one in zip(totals, marks, strict=True)
        if not (nothing_read(one) or _is_untouched(one))
    ]
    sentences = [
        f"{count(unread, 'file')} could not be read." if unread else "",
        f"In {count(untouched, 'file')} nothing is written." if untouched else "",
        f"The mean without them is {points(mean(others))}." if others else "",
    ]
    return f"<p>{' '.join(filter(None, sentences))}</p>\n"


def _is_untouched(one: Marks) -> bool:
    """Whether a file was read, and every part of it is as it was handed out."""
    nothing = all(part.verdict == "not written" for part in one.parts.values())
    return bool(one.parts) and nothing and not one.written and not nothing_read(one)


def histogram(totals: Sequence[float], most: int) -> str:
    """How many totals lie in each range, as SVG; ranges hold their lower end, the last one both ends."""
    step = max(1, math.ceil(most / MOST_COLUMNS))
    ranges = max(1, math.ceil(most / step))
    found = Counter(min(int(one / step), ranges - 1) for one in totals)
    counts = [found[number] for number in range(ranges)]
    wide, tall, base, left = 324 / ranges, 130 / max(1, *counts), 150, 8
    drawn = []
    for number, high in enumerate(counts):
        x = left + number * wide
        drawn.append(f'<text x="{x:.1f}" y="{base + 14}">{number * step}</text>')
        if high:
            drawn.append(
                f'<rect class="column" x="{x + 1.5:.1f}" y="{base - high * tall:.1f}" '
                f'width="{wide - 3:.1f}" height="{high * tall:.1f}"/>'
                f'<text x="{x + wide / 2:.1f}" y="{base - high * tall - 4:.1f}">{high}</text>'
            )
    words = ", ".join(f"{number * step} to {(number + 1) * step}: {high}"
                      for number, high in enumerate(counts) if high)  # fmt: skip
    return (
        f'<svg viewBox="0 0 340 186" role="img" aria-label="Submissions by total. {words}">\n'
        + "\n".join(drawn)
        + f'\n<text x="{left + ranges * wide:.1f}" y="{base + 14}">{ranges * step}</text>'
        f'\n<line x1="{left}" y1="{base}" x2="{left + ranges * wide:.1f}" y2="{base}"/>'
        '\n<text x="170" y="182">points</text>\n</svg>'
    )


def _verdicts(assignment: Assignment, marks: Sequence[Marks], manual: Manual) -> str:
    """How many were right, wrong and so on; what was not read at all has no verdict."""
    rows = []
    for part in assignment.coded:
        found = Counter(one.parts[part.name].verdict for one in marks if part.name in one.parts)
        missing = len(marks) - sum(found[verdict] for verdict in VERDICTS)
        reached = mean(points_of(part, one, manual) or 0.0 for one in marks)
        shares = [str(found[verdict]) for verdict in VERDICTS]
        rows.append([code(part.name), of_points(reached, part.points), *shares, str(missing)])
    header = ["Part", "Mean points", *(f"#{verdict}" for verdict in VERDICTS), "#no verdict"]
    return table("Submissions by verdict", header, rows)


def _marked(assignment: Assignment, marks: Sequence[Marks], manual: Manual) -> str:
    rows = []
    for part in assignment.written:
        reached = [points_of(part, one, manual) for one in marks]
        marked = [one for one in reached if one is not None]
        average = mean(marked) if marked else None
        answered = sum(bool(_text(part, one)) for one in marks)
        of = of_points(average, part.points)
        rows.append([code(part.name), of, str(answered), str(len(marked))])
    header = ["Part", "Mean points", "#answered", "#marked"]
    return table("Answers that a person marks", header, rows) if rows else "<p>None.</p>"


def _mistakes(assignment: Assignment, marks: Sequence[Marks], manual: Manual) -> str:
    """The famous mistakes that explain wrong answers, most frequent first."""
    found = [
        (got.mistake, got.cause, part.name)
        for part in assignment.coded
        if not isinstance(part, Hunt)
        for one in marks
        if (got := one.parts.get(part.name)) and got.verdict == "wrong"
    ]
    made = Counter(mistake for mistake in found if mistake[0])
    rows = [
        [_named(name, cause, part), f"{often}{bar(often / max(made.values()))}"]
        for (name, cause, part), often in _by_count(made)
    ]
    caption = "Famous mistakes, by how many made them"
    shown = table(caption, ["Mistake", "Submissions"], rows) if rows else ""
    return f"{shown}\n<p>Wrong in another way: {len(found) - made.total()}.</p>"


def _named(name: str, sentence: str, part: str = "") -> str:
    """A name, the part that it is about, and what there is to say of it."""
    of_part = f' <span class="soft">{code(part)}</span>' if part else ""
    said_of = f'<span class="say">{prose(sentence)}</span>' if sentence else ""
    return said(name) + of_part + said_of


def _by_count(made: Counter[tuple[str, ...]]) -> list[tuple[tuple[str, ...], int]]:
    """Most frequent first, then by name: the same page from the same marks in any order."""
    return sorted(made.items(), key=lambda item: (-item[1], item[0]))


def _got_away(assignment: Assignment, marks: Sequence[Marks], manual: Manual) -> str:
    """The mutants that tests missed, most frequent first."""
    hunts = [part for part in assignment.coded if isinstance(part, Hunt)]
    symptoms = {(m.name, hunt.name): m.symptom for hunt in hunts for m in hunt.mutants}
    ran = [
        (got, hunt.name)
        for hunt in hunts
        for one in marks
        if (got := one.parts.get(hunt.name)) and (got.caught or got.missed)
    ]
    tests = Counter(hunt for _, hunt in ran)
    missed = Counter((name, hunt) for got, hunt in ran for name in got.missed)
    rows = []
    for (name, hunt), often in _by_count(missed):
        of = f"{often} of {tests[hunt]}{bar(often / tests[hunt])}"
        rows.append([_named(name, symptoms.get((name, hunt), ""), hunt), of])
    caption = "Wrong implementations, by how many tests let them pass"
    return table(caption, ["Mistake", "Tests"], rows) if rows else "<p>Nothing.</p>"


def _flags(assignment: Assignment, marks: Sequence[Marks], manual: Manual) -> str:
    """Every flag with the ids that have it, and the ids that share a file."""
    groups = {tuple(sorted([name, *others])) for name, others in same_file(marks).items()}
    found = by_flag(assignment, marks, manual)
    flagged = [*found.items(), *(("same file", ids) for ids in sorted(groups))]
    rows = [
        [_named(flag, _meaning(flag)), f"{len(ids)}:{items(map(identity, ids))}"]
        for flag, ids in flagged
    ]
    caption = "Flags, and the submissions that have them"
    return table(caption, ["Flag", "Submissions"], rows) if rows else "<p>None.</p>"


def _meaning(flag: str) -> str:
    """What a flag means, as the student reads it; nothing for an unknown one."""
    if flag == "same file":
        return "These notebooks are the same, byte for byte."
    _, separator, of_part = flag.partition(": ")
    return OF_PART.get(of_part, "") if separator else OF_FILE.get(flag, "")
