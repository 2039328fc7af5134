"""Does the grader stand mutated submissions? Model answers with one or two changes, in notebooks that were changed too.

For each: the batch goes on, a mark is given within bounded time, and a function that got full marks gives the
reference's answers on two more seeds as well. One in ten runs in a jail, the others in this process with a clock
that stops them: a jail costs two seconds, and these functions are our own. Resumable: what is stored stays.

Usage: OMP_NUM_THREADS=1 nice python benchmarks/grading_fuzz.py [--number 500] [--seed 0]
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
from course import solution_cells
from in_process import InProcess
from record import write_rows

from tested_transformer.homework.assignments import assignment, assignment_names
from tested_transformer.homework.jail.bubblewrap import Limits
from tested_transformer.homework.jail.remote import RemoteFunction
from tested_transformer.homework.jail.session import JailSession
from tested_transformer.homework.marking import mark_submission
from tested_transformer.homework.marking.marks import FAILED
from tested_transformer.homework.reports.feedback import feedback_page
from tested_transformer.homework.submissions.finding import find_submissions
from tested_transformer.homework.submissions.reading import read_submission
from tested_transformer.homework.submissions.slicing import needed_for
from tested_transformer.homework.tasks import Hunt
from tested_transformer.specs.judge import judge

WHAT = (
    "mutated submissions: verdicts, seconds of a processor (without a jail's), and problems: crashes, faults of the "
    "grader, full marks where two more seeds find a difference"
)
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


# --------------------------------------------------------------------------------- one submission


def try_one(number: int, seed: int, folder: Path) -> dict:
    """What became of one submission: verdict, points, what was changed, seconds; `problem` says what is wrong."""
    draw = random.Random(seed * 1_000_003 + number)
    name = draw.choice(assignment_names())
    homework, solved = assignment(name), solution_cells(name)
    part = draw.choice(homework.coded)
    text = next(t for t in solved.values() if f"def {part.function}(" in t)
    what = []
    for _ in range(draw.choice([1, 1, 2])):
        text, done = changed_code(text, draw)
        what.append(done)
    first = _setup(name)[0]
    cells = [
        {"cell_type": "code", "metadata": {}, "source": t, "outputs": []} for t in (first, text)
    ]
    data, of_file = changed_notebook(cells, draw)
    file = folder / f"s{number}.ipynb"
    file.write_bytes(data)
    jailed = number % 10 == 0
    mark_submission.JailSession = JailSession if jailed else InProcess
    start, problem = time.process_time(), ""
    (one,) = find_submissions(file)
    marks = mark_submission.mark(one, homework, seed=1 + number, limits=LIMITS)
    seconds = time.process_time() - start
    feedback_page(homework, marks)
    got = marks.parts[part.name]
    if FAILED in marks.flags:
        problem = f"the grader failed: {marks.faults}"
    elif got.verdict == "right" and not isinstance(part, Hunt):
        problem = _differs(part, file, number)
    return {
        "number": number, "part": part.name, "changed": [*what, of_file], "verdict": got.verdict,
        "points": got.points, "why": f"{got.check}: {got.got}"[:80], "jailed": jailed, "processor_seconds": round(seconds, 1), "problem": problem,
    }  # fmt: skip


def _setup(name: str) -> list[str]:
    """The first code cell of an assignment, which imports what the others need."""
    path = Path(__file__).parents[1] / "homework" / "source" / name / f"{name}.ipynb"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def _differs(part, file: Path, number: int) -> str:
    """Why full marks are wrong: the answers differ from the reference's on other seeds."""
    code = needed_for(read_submission(file).code, part.function)
    with InProcess(code, limits=LIMITS) as session:
        for seed in (number + 10_000, number + 20_000):
            verdict = judge(part.spec, RemoteFunction(session, part.function), seed=seed)
            if not verdict.passed:
                return f"full marks, and at seed {seed}: {verdict!r}"
    return ""


def main() -> None:
    """Try them all, going on where an earlier run stopped; store one line each, then a summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--log", type=Path, default=Path(tempfile.gettempdir()) / "grading_fuzz.jsonl"
    )
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    lines = options.log.read_text().splitlines() if options.log.exists() else []
    rows = {row["number"]: row for row in map(json.loads, lines)}
    with tempfile.TemporaryDirectory() as folder, options.log.open("a") as log:
        for number in range(options.number):
            if number in rows:
                continue
            try:
                row = try_one(number, options.seed, Path(folder))
            except Exception as error:  # this is what must not happen
                row = {"number": number, "problem": f"{type(error).__name__}: {error}", "verdict": "crash",
                       "jailed": False, "processor_seconds": 0.0, "changed": []}  # fmt: skip
            rows[number] = row
            print(json.dumps(row), file=log, flush=True)
    every = [rows[number] for number in range(options.number)]
    summary = {
        "submissions": len(every), "seed": options.seed,
        "in_a_jail": sum(row["jailed"] for row in every),
        "verdicts": dict(sorted(Counter(row["verdict"] for row in every).items())),
        "problems": [row for row in every if row["problem"]],
        "largest_processor_seconds": max(row["processor_seconds"] for row in every),
        "mean_processor_seconds": round(sum(r["processor_seconds"] for r in every) / len(every), 2),
    }  # fmt: skip
    write_rows("grading_fuzz", WHAT, [summary])
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
