"""Points by hand in the folder of results: a later run changes what its table names, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from ...errors import argument_error
from ..tasks import Assignment, Written
from .files import write_whole
from .marks import Marks
from .points import Manual, is_replaced, without_empty

KEPT = "manual.json"
SHOWN = "shown.json"  # digests of the answers that answers.html showed last

ByPart = Mapping[str, Mapping[str, str]]


def kept_manual(out: str | Path) -> Manual:
    """The points that earlier runs were given.

    Raises: ValueError if what was kept cannot be read.
    """
    path = Path(out) / KEPT
    try:
        return Manual(**_read(path))
    except TypeError as error:
        raise argument_error(
            ValueError, str(path), error, "points that an earlier run kept"
        ) from None


def keep_manual(
    out: str | Path, assignment: Assignment, marks: Sequence[Marks], given: Manual
) -> Manual:
    """Merge points that a person gave into those that are kept, cell by cell, and keep them.

    They are for the answers that the page showed last: one that changed meanwhile is still to be marked.

    Raises: ValueError if what was kept cannot be read.
    """
    kept, shown = kept_manual(out), _read(Path(out) / SHOWN)
    manual = merged(kept, given, assignment, marks, shown)
    write_whole(Path(out) / KEPT, _text(asdict(manual)))
    return manual


def keep_shown(out: str | Path, assignment: Assignment, marks: Sequence[Marks]) -> None:
    """Keep which answers a person can see by now, in addition to those of earlier runs."""
    path = Path(out) / SHOWN
    now = {one.id: {part.name: one.answer(part.name) for part in assignment.parts} for one in marks}
    write_whole(path, _text({**_read(path), **now}))


def merged(
    kept: Manual, given: Manual, assignment: Assignment, marks: Sequence[Marks], shown: ByPart
) -> Manual:
    """Points given in place of those kept; None, and points that are the grader's anyhow, take them back."""
    points = {who: dict(parts) for who, parts in kept.points.items()}
    answers = {who: dict(parts) for who, parts in kept.answers.items()}
    for one in marks:
        for part in assignment.parts:
            if part.name not in given.of(one):
                continue
            number = given.of(one)[part.name]
            for values in (points, answers):
                values.setdefault(one.id, {}).pop(part.name, None)
            if number is not None and (isinstance(part, Written) or is_replaced(part, one, given)):
                points[one.id][part.name] = number
                seen = shown.get(one.id, {}).get(part.name, one.answer(part.name))
                answers[one.id][part.name] = seen
    comments = _merged_comments(kept.comments, given.comments)
    return Manual(without_empty(points), without_empty(answers), comments)


def _merged_comments(kept: ByPart, given: Mapping[str, Mapping[str, str | None]]) -> ByPart:
    every = {who: {**kept.get(who, {}), **given.get(who, {})} for who in {**kept, **given}}
    return without_empty({
        who: {part: text for part, text in parts.items() if text is not None}
        for who, parts in every.items()
    })  # fmt: skip


def marked_again(before: Manual, after: Manual) -> list[str]:
    """The answers that had changed since they were marked, and were given points now."""
    return [
        f"{who} {part}"
        for who, parts in after.answers.items()
        for part, answer in parts.items()
        if before.answers.get(who, {}).get(part, answer) != answer
    ]


def _read(path: Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise argument_error(ValueError, str(path), error, "what an earlier run kept") from None


def _text(values: Mapping) -> str:
    return json.dumps(values, ensure_ascii=False, indent=1) + "\n"
