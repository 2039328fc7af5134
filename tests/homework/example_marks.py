"""A small assignment, and marks of a class that met with everything a grader can say."""

from dataclasses import replace

from tested_transformer.homework.marking.marks import Marks, PartMarks
from tested_transformer.homework.marking.points import Manual
from tested_transformer.homework.tasks import Assignment, Hunt, Task, Written
from tested_transformer.specs.mistakes import Mutant
from tested_transformer.specs.spec import Spec

HOSTILE = '<script>alert("1")</script><img src=x onerror=alert(2)>&\'"</pre></style>'


def task(name: str, points: int) -> Task:
    spec = Spec(
        name=f"hw09.{name}",
        statement="",
        required=("x",),
        reference=None,
        cases=lambda seed: [],
        checks=(),
        points=points,
    )
    return Task(spec, function=name, minutes=5, difficulty="core")


def mutant(name: str, symptom: str) -> Mutant:
    return Mutant(name, None, "equal", "its cause", symptom, chapter=3)


MUTANTS = (
    mutant("softmax over the queries", "Columns sum to 1, rows do not."),
    mutant("mask after the softmax", "Rows sum to less than 1 wherever something is masked."),
    mutant("scale squared", "The weights are too flat."),
)
HUNT = Hunt(
    name="hw09.hunt",
    function="test_attention",
    statement="",
    right={},
    mutants=MUTANTS,
    points=4,
    minutes=20,
    difficulty="core",
    chapter=3,
)
RUBRIC = "2 points: the variance of a dot product is d.\n1 point: what a large score does to the softmax."
ASSIGNMENT = Assignment(
    name="hw09",
    title="Scores & weights",
    weeks="3",
    chapters=(3,),
    parts=(
        task("temperature", 2),
        Written("hw09-why-scale", "explanation", 3, 15, RUBRIC),
        task("softmax_of_rows", 4),
        HUNT,
        Written("hw09-found", "experiment", 2, 15, "2 points: a number, and what it means."),
    ),
)
NAMES = tuple(part.name for part in ASSIGNMENT.parts)
TEMPERATURE, WHY, ROWS, _, FOUND = NAMES

RIGHT = {
    TEMPERATURE: PartMarks(2.0, 2, "right"),
    ROWS: PartMarks(4.0, 4, "right"),
    HUNT.name: PartMarks(4.0, 4, "right", caught=tuple(m.name for m in MUTANTS)),
}
WRONG_AXIS = PartMarks(
    0.0,
    4,
    "wrong",
    check="rows sum to 1",
    why="Each query shares out exactly 1 among its keys.",
    case="two queries, three keys (float64): scores (2, 3)",
    expected="1.0 in every row",
    got="0.731 in row 0",
    mistake="softmax over the queries",
    cause="The softmax runs over the wrong axis: dim=-2 in place of dim=-1.",
)
TWO_CAUGHT = PartMarks(
    2.67,
    4,
    "wrong",
    caught=(MUTANTS[0].name, MUTANTS[2].name),
    missed=(MUTANTS[1].name,),
    hint=MUTANTS[1].symptom,
)
REFUSED = replace(
    TWO_CAUGHT,
    points=0.0,
    why="A right implementation was rejected.",
    got="AssertionError: off by 1e-17",
)


def marks(name: str, **changes) -> Marks:
    """A perfect submission, but for what is said."""
    digest = f"d1ge57 of {name}"
    whole = Marks(name, "hw09", digest, parts=RIGHT, written=ANSWERS, key="5eed" * 16)
    return replace(whole, **changes)


def stopped(flag: str, text: str = "") -> PartMarks:
    return PartMarks(0.0, 4, "stopped", (flag,), got=text)


ANSWERS = {
    WHY: "**Your answer.** The sum of $d$ products has variance $d$.\n\n- so the softmax saturates",
    FOUND: "At d = 64 the largest weight was 0.98.",
}
CLASS = [
    marks("s01"),
    marks(
        "s02", parts={**RIGHT, ROWS: WRONG_AXIS, HUNT.name: TWO_CAUGHT}, written={WHY: "No idea."}
    ),
    marks(
        "s03",
        flags=("encoding",),
        notes=("The file is not in UTF-8: it was read as latin-1.",),
        parts={**RIGHT, ROWS: stopped("timeout"), HUNT.name: REFUSED},
    ),
    marks("s04", flags=("not a notebook",), notes=("The file is no JSON.",), parts={}, written={}),
    marks(
        "s05",
        parts={
            TEMPERATURE: PartMarks(0.0, 2, "not found", ("missing function",)),
            ROWS: PartMarks(0.0, 4, "forbidden", ("forbidden",), got="`F.softmax`"),
            HUNT.name: PartMarks(0.0, 4, "not written"),
        },
    ),
    marks("s06/hw09", parts={**RIGHT, ROWS: replace(WRONG_AXIS, flags=("slow", "new flag"))}),
]
BY_HAND = Manual({"s01": {WHY: 3.0, FOUND: 1.5}, "s03": {WHY: 1.0, ROWS: 4.0}})
