"""Does the grader stand mutated submissions? Model answers with one or two changes, in notebooks that were changed too.

For each: the batch goes on, a mark is given within bounded time, words are found wherever they stand, and a function or
a bug hunt that got full marks gets them with two more seeds as well. Those here run in this process with a clock that
stops them: a jail costs two seconds, and these functions are our own. One in ten is marked in jails, all of these as one
class by `grade`; every other one of them is one of the tests' stored submissions, attacks too. Resumable: what is
stored stays.

Usage: OMP_NUM_THREADS=1 nice python benchmarks/grading_fuzz.py [--number 500] [--seed 0] [--jobs 1]
"""

import argparse
import ast
import json
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "homework"))
from course import solution_cells, stored
from in_process import InProcess
from record import write_rows

from tested_transformer.homework.assignments import assignment, assignment_names
from tested_transformer.homework.handout import handed_out
from tested_transformer.homework.jail.bubblewrap import Limits
from tested_transformer.homework.marking import mark_submission
from tested_transformer.homework.marking.mark_class import grade
from tested_transformer.homework.marking.marks import FAILED
from tested_transformer.homework.reports.answers import answers_page
from tested_transformer.homework.reports.feedback import feedback_page
from tested_transformer.homework.submissions.finding import find_submissions

WHAT = (
    "mutated submissions: verdicts, seconds of a processor (without a jail's), and problems: crashes, faults of the "
    "grader, too much time, words that were lost, full marks that two more seeds do not confirm; `gained` are stored "
    "submissions without points that a change gave some, which is right where it mended them"
)
MOST_SECONDS = 30.0  # of a processor, for one submission in this process
IN_JAILS = 10  # one in so many
CLASS = "hw03"  # of which those are, as all stored submissions
LIMITS = Limits(wall_seconds=10.0, cpu_seconds=10)
MEMORY = 8 << 30
OPERATORS = [ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.MatMult, ast.Pow]
COMPARATORS = [ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq]
STATEMENTS = (ast.Assign, ast.AugAssign, ast.Expr, ast.Return, ast.If, ast.For)
BYTES = ("cut short", "a byte changed", "utf-16", "a mark at the start")


# --------------------------------------------------------------------------------- what is changed


def changed_code(code: str, draw: random.Random) -> tuple[str, str]:
    """A code with one node of its tree changed, and what was done to it."""
    tree = ast.parse(code)
    nodes = [node for node in ast.walk(tree) if _changes_of(node)]
    node = draw.choice(nodes)
    what = draw.choice(_changes_of(node))
    _CHANGES[what](node, tree, draw)
    most = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)  # ours: a deep sum is written down here
    try:
        return ast.unparse(ast.fix_missing_locations(tree)), what
    finally:
        sys.setrecursionlimit(most)


def _changes_of(node: ast.AST) -> list[str]:
    kinds = {
        "a constant": isinstance(node, ast.Constant) and isinstance(node.value, (int, float)),
        "an operator": isinstance(node, ast.BinOp),
        "a comparison": isinstance(node, ast.Compare),
        "a name": isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load),
        "a line less": isinstance(getattr(node, "body", None), list) and bool(_lines_in(node)),
        "a line twice": isinstance(getattr(node, "body", None), list) and bool(_lines_in(node)),
        "arguments swapped": isinstance(node, ast.Call) and len(node.args) > 1,
        "an exception": isinstance(node, ast.Return) and node.value is not None,
        "a deep sum": isinstance(node, ast.Return) and node.value is not None,
    }
    return [what for what, fits in kinds.items() if fits]


def _lines_in(node: ast.AST) -> list[ast.stmt]:
    return [line for line in node.body if isinstance(line, STATEMENTS)]


def _constant(node: ast.Constant, tree: ast.AST, draw: random.Random) -> None:
    node.value = draw.choice([0, 1, -1, 2, node.value + 1, node.value - 1, -node.value, 1e9, 2**70])


def _operator(node: ast.BinOp, tree: ast.AST, draw: random.Random) -> None:
    node.op = draw.choice(OPERATORS)()


def _comparison(node: ast.Compare, tree: ast.AST, draw: random.Random) -> None:
    node.ops = [draw.choice(COMPARATORS)() for _ in node.ops]


def _name(node: ast.Name, tree: ast.AST, draw: random.Random) -> None:
    node.id = draw.choice([n.id for n in ast.walk(tree) if isinstance(n, ast.Name)])


def _line_less(node: ast.AST, tree: ast.AST, draw: random.Random) -> None:
    node.body[node.body.index(draw.choice(_lines_in(node)))] = ast.Pass()


def _line_twice(node: ast.AST, tree: ast.AST, draw: random.Random) -> None:
    line = draw.choice(_lines_in(node))
    node.body.insert(node.body.index(line), line)


def _swapped(node: ast.Call, tree: ast.AST, draw: random.Random) -> None:
    node.args[0], node.args[1] = node.args[1], node.args[0]


def _exception(node: ast.Return, tree: ast.AST, draw: random.Random) -> None:
    kind = draw.choice(
        ["ValueError('no')", "SystemExit(3)", "KeyboardInterrupt()", "MemoryError()"]
    )
    node.value = ast.parse(f"(_ for _ in ()).throw({kind})", mode="eval").body


def _deep(node: ast.Return, tree: ast.AST, draw: random.Random) -> None:
    for _ in range(draw.choice([50, 900])):
        node.value = ast.BinOp(node.value, ast.Add(), ast.Constant(0))


_CHANGES = {
    "a constant": _constant, "an operator": _operator, "a comparison": _comparison, "a name": _name,
    "a line less": _line_less, "a line twice": _line_twice, "arguments swapped": _swapped,
    "an exception": _exception, "a deep sum": _deep,
}  # fmt: skip


def changed_notebook(cells: list[dict], draw: random.Random) -> tuple[bytes, str]:
    """The bytes of a notebook, changed in some way or in none."""
    what = draw.choice(
        ["as it is"] * 6 + ["backwards", "no metadata", "twice", "other types", *BYTES]
    )
    if what == "backwards":
        cells = cells[::-1]
    elif what == "no metadata":
        cells = [{**cell, "metadata": None} for cell in cells]
    elif what == "twice":
        cells = cells + cells
    elif what == "other types":
        cells = [
            *cells,
            7,
            None,
            {"cell_type": [], "source": {}},
            {"cell_type": "code", "source": 3},
        ]
    data = json.dumps({"cells": cells, "metadata": {}, "nbformat": 4}).encode()
    at = draw.randrange(len(data))
    return {
        "cut short": data[:at],
        "a byte changed": data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :],
        "utf-16": data.decode().encode("utf-16"),
        "a mark at the start": b"\xef\xbb\xbf" + data,
    }.get(what, data), what


# ---------------------------------------------------------------------------------- words


def changed_words(heading: str, answer: str, draw: random.Random) -> tuple[list[dict], str]:
    """The cells of a question and its answer, changed as students change them, and what was done."""
    ways = {
        "words": [_markdown(heading), _markdown(answer)],
        "words without a heading": [_markdown(answer)],
        "words in the question": [_markdown(f"{heading}\n\n{answer}")],
        "a heading of words": [_markdown(heading), _markdown(f"# {answer}")],
        "another heading": [_markdown(heading[: draw.randrange(len(heading))]), _markdown(answer)],
        "words in a raw cell": [_markdown(heading), {**_markdown(answer), "cell_type": "raw"}],
        "words in a string": [_markdown(heading), _code(f'''"""{answer}"""''')],
        "words in comments": [_markdown(heading), _code(f"# {answer}")],
        "an empty cell before words": [_markdown(heading), _markdown(""), _markdown(answer)],
        "an open fence": [_markdown(heading), _markdown(f"```\n{answer}")],
        "a long line": [_markdown(heading), _markdown(answer + ' "&<' * 50_000)],
    }
    what = draw.choice(list(ways))
    return ways[what], what


def _markdown(text: str) -> dict:
    return {"cell_type": "markdown", "metadata": {}, "source": text}


def _code(text: str) -> dict:
    return {"cell_type": "code", "metadata": {}, "source": text, "outputs": []}


# --------------------------------------------------------------------------------- one submission


def write_one(
    file: Path, name: str, texts: list[str], draw: random.Random
) -> tuple[list[str], list[str]]:
    """Write a notebook of code and of words, both changed; what was done, and words that must be found."""
    said, marker = [], f"Answer{draw.randrange(10**9)}"
    cells = [_code(text) for text in (_setup(name), *texts)]
    for part in assignment(name).written:
        heading = f"## {handed_out(assignment(name)).title(part.name)}"
        more, done = changed_words(heading, f"{marker} because of {part.points}.", draw)
        cells += more
        said.append(done)
    data, of_file = changed_notebook(cells, draw)
    file.write_bytes(data)
    damaged = of_file in ("cut short", "a byte changed")
    return [*said, of_file], [] if damaged else [marker]


def _setup(name: str) -> str:
    """The first code cell of an assignment, which imports what the others need."""
    path = Path(__file__).parents[1] / "homework" / "source" / name / f"{name}.ipynb"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return next("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def model_answer(name: str, draw: random.Random) -> tuple[str, str, list[str]]:
    """A part of an assignment, the model's code for it with a change or two, and what was done."""
    part = draw.choice(assignment(name).coded)
    text = next(t for t in solution_cells(name).values() if f"def {part.function}(" in t)
    what = []
    for _ in range(draw.choice([1, 1, 2])):
        text, done = changed_code(text, draw)
        what.append(done)
    return part.name, text, what


def try_one(number: int, seed: int, folder: Path) -> dict:
    """What became of one submission: verdict, points, what was changed, seconds; `problem` says what is wrong."""
    draw = random.Random(seed * 1_000_003 + number)
    name = draw.choice(assignment_names())
    homework = assignment(name)
    part, text, what = model_answer(name, draw)
    file = folder / f"s{number}.ipynb"
    of_file, words = write_one(file, name, [text], draw)
    start = time.process_time()
    (one,) = find_submissions(file)
    marks = mark_submission.mark(one, homework, seed=1 + number, limits=LIMITS)
    seconds = time.process_time() - start
    feedback_page(homework, marks)
    answers_page(homework, [marks])
    problem = _problem(marks, words)
    if seconds > MOST_SECONDS:
        problem = f"{seconds:.0f} seconds"
    elif marks.parts[part].verdict == "right":
        problem = problem or _differs(one, homework, part, number)
    got = marks.parts[part]
    return {
        "number": number, "part": part, "changed": [*what, *of_file], "verdict": got.verdict,
        "points": got.points, "why": f"{got.check}: {got.got}"[:80], "jailed": False, "processor_seconds": round(seconds, 1), "problem": problem,
    }  # fmt: skip


def _problem(marks, words: list[str]) -> str:
    """What is wrong with marks, whatever was handed in."""
    if FAILED in marks.flags:
        return f"the grader failed: {marks.faults}"
    found = " ".join([*marks.written.values(), *marks.stray, *marks.experiments.values()])
    lost = [word for word in words if word not in found]
    return f"words were lost: {lost}" if lost else ""


def _differs(one, homework, part: str, number: int) -> str:
    """Why full marks are wrong: with other seeds there are fewer."""
    for seed in (number + 10_000, number + 20_000):
        got = mark_submission.mark(one, homework, seed=seed, limits=LIMITS).parts[part]
        if got.verdict != "right":
            return f"full marks, and at seed {seed}: {got}"
    return ""


# -------------------------------------------------------------------------------------- one class


def try_class(numbers: list[int], seed: int, folder: Path, jobs: int) -> list[dict]:
    """What became of a class in one folder, marked in jails by `grade`; half of it are stored submissions."""
    homework, made = assignment(CLASS), {}
    files = folder / "files"
    files.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        draw = random.Random(seed * 1_000_003 + number)
        who, text, what, before = _of_class(number, draw)
        of_file, words = write_one(
            files / f"s{number}.ipynb", CLASS, text.split("# next cell\n"), draw
        )
        made[f"s{number}"] = (number, who, [*what, *of_file], words, before)
    marks = grade(files, homework, folder / "marks", jobs=jobs, seed=seed, limits=LIMITS)
    answers_page(homework, marks)
    one_of = {one.id: one for one in find_submissions(files)}
    return [_row_of_class(one, one_of[one.id], *made[one.id]) for one in marks]


def _of_class(number: int, draw: random.Random) -> tuple[str, str, list[str], dict[str, float]]:
    """Whose submission it is, its code, what was changed, and the points that it had before by part."""
    if number % (2 * IN_JAILS):
        part, text, what = model_answer(CLASS, draw)
        return part, text, what, {}
    name, (text, expected) = draw.choice(sorted(stored().items()))
    try:
        text, done = changed_code(text, draw)
    except (SyntaxError, RecursionError):  # one is no Python, and others are too deep for ours
        done = "as it is"
    return name, text, [done], expected.points


def _row_of_class(
    marks, one, number: int, who: str, what: list[str], words: list[str], before
) -> dict:
    feedback_page(assignment(CLASS), marks)
    problem = _problem(marks, words)
    right = [name for name, got in marks.parts.items() if got.verdict == "right"]
    for name in right:
        problem = problem or _differs(one, assignment(CLASS), name, number)
    verdicts = sorted({got.verdict for got in marks.parts.values()} - {"not found", "not written"})
    gained = [name for name, points in before.items() if marks.parts[name].points > points]
    return {
        "number": number, "part": who, "changed": what, "verdict": (verdicts or ["not found"])[0],
        "points": marks.points, "why": "", "jailed": True, "processor_seconds": 0.0, "problem": problem,
        "gained": gained,
    }  # fmt: skip


def main() -> None:
    """Try them all, going on where an earlier run stopped; store one line each, then a summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "grading_fuzz")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options.work.mkdir(exist_ok=True)
    numbers = range(options.number)
    rows = _one_by_one([n for n in numbers if n % IN_JAILS], options.seed, options.work)
    in_class = [n for n in numbers if n % IN_JAILS == 0]
    every = rows + try_class(in_class, options.seed, options.work, options.jobs)
    summary = {
        "submissions": len(every), "seed": options.seed,
        "in_a_jail": sum(row["jailed"] for row in every),
        "verdicts": dict(sorted(Counter(row["verdict"] for row in every).items())),
        "problems": [row for row in every if row["problem"]],
        "gained": [row for row in every if row.get("gained")],
        "largest_processor_seconds": max(row["processor_seconds"] for row in every),
        "mean_processor_seconds": round(sum(r["processor_seconds"] for r in rows) / len(rows), 2),
    }  # fmt: skip
    write_rows("grading_fuzz", WHAT, [summary])
    print(json.dumps(summary, indent=1))


def _one_by_one(numbers: list[int], seed: int, work: Path) -> list[dict]:
    """The rows of those that are marked in this process; what an earlier run stored is not tried again."""
    path, jails = work / "rows.jsonl", mark_submission.JailSession
    lines = path.read_text().splitlines() if path.exists() else []
    rows = {row["number"]: row for row in map(json.loads, lines)}
    mark_submission.JailSession = InProcess
    with tempfile.TemporaryDirectory() as folder, path.open("a") as log:
        for number in numbers:
            if number in rows:
                continue
            try:
                row = try_one(number, seed, Path(folder))
            except Exception as error:  # this is what must not happen
                row = {"number": number, "problem": f"{type(error).__name__}: {error}", "verdict": "crash",
                       "jailed": False, "processor_seconds": 0.0, "changed": []}  # fmt: skip
            rows[number] = row
            print(json.dumps(row), file=log, flush=True)
    mark_submission.JailSession = jails
    return [rows[number] for number in numbers]


if __name__ == "__main__":
    main()
