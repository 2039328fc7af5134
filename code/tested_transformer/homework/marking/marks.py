"""What the grader found out about a submission: plain values, kept as one JSON file each."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any

from ...shapes import checked

__all__ = ["Marks", "PartMarks"]

FAILED = "grader failed"  # a flag: by no fault of the student's; the next run marks it again


@dataclass(frozen=True)
class PartMarks:
    """The marks of one code task or bug hunt.

    verdict: "right", "wrong", "not written" (a stub), "not found" (nothing of that name), "not read" (the
    file could not be), "stopped" (by a limit, or it ended itself), "forbidden" (a library function that
    the task forbids) or "not marked" (an error of the grader's own).
    """

    points: float | int
    of: float | int
    verdict: str
    flags: tuple[str, ...] = ()  # words for the table, such as "timeout", "memory", "slow"
    check: str = ""  # the check that failed...
    why: str = ""  # ...and the sentence that explains it
    case: str = ""  # the smallest case that shows it
    expected: str = ""
    got: str = ""
    mistake: str = ""  # the name of the famous mistake that explains every case
    cause: str = ""
    caught: tuple[str, ...] = ()  # of a hunt: the wrong implementations, by name
    missed: tuple[str, ...] = ()
    hint: str = ""  # of a hunt: the symptom of one that got away
    code: str = ""  # digest of the code that the function needs


@dataclass(frozen=True)
class Marks:
    """All that is known about one submission."""

    id: str
    assignment: str
    digest: str = ""  # of the notebook's bytes, by which a second run knows it again
    flags: tuple[str, ...] = ()  # about the file as a whole
    notes: tuple[str, ...] = ()  # sentences for the student about the file and its cells
    parts: dict[str, PartMarks] = field(default_factory=dict)  # by the part's name
    written: dict[str, str] = field(default_factory=dict)  # answers in words, by the part's name
    experiments: dict[str, str] = field(default_factory=dict)  # their code, by the part's name
    stray: tuple[str, ...] = ()  # words of the student's that stand under no question for words
    pictures: dict[str, list[str]] = field(default_factory=dict)  # of answers, as data: addresses
    faults: tuple[str, ...] = ()  # errors of the grader's own, for the instructor
    key: str = ""  # of the run: seed, limits and the version of the tasks

    @property
    def points(self) -> float:
        """The sum over what the grader marks."""
        return round(sum(part.points for part in self.parts.values()), 2)

    def every_flag(self) -> tuple[str, ...]:
        """The flags of the file, and those of the parts with the part's name."""
        of_parts = [f"{name}: {flag}" for name, part in self.parts.items() for flag in part.flags]
        return (*self.flags, *of_parts)

    @checked
    def answer(self, part: str) -> str:
        """A digest of what answers a part, by which a person's points know it again; empty for nothing."""
        return self.parts[part].code if part in self.parts else digest(self.written.get(part, ""))

    def to_json(self) -> str:
        """As text that `from_json` reads."""
        return json.dumps(asdict(self), ensure_ascii=False, indent=1) + "\n"


def digest(text: str) -> str:
    """A word that changes with the text; empty for an empty one."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32] if text else ""


def from_json(text: str) -> Marks:
    """Marks as `to_json` wrote them.

    Raises: ValueError if it is anything else.
    """
    try:
        values: dict[str, Any] = json.loads(text)
        values["parts"] = {
            name: PartMarks(**_tuples(part)) for name, part in values["parts"].items()
        }
        return Marks(**_tuples(values))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"these are no marks: {error}") from None


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no tuples."""
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
