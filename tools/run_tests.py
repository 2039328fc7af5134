"""Run every test, go on after a failure, and end with a summary that names what was skipped.

Usage: python tools/run_tests.py [--fast | --record]

--fast leaves out the chapters, the site and the tests marked `slow`. --record stores what a whole run
gave in book/tested.json, from which the page "How this book is tested" is made.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

from chapters import ROOT, chapter_paths

REPORTS = ROOT / "_build" / "reports"
RECORD = ROOT / "book" / "tested.json"
PYTEST = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
# Loaded by itself in every process of pytest, nbval takes seconds: for its notebooks only.
NO_NOTEBOOKS = ["-p", "no:nbval"]
TWO = ["-n", "2", "--dist", "loadgroup"]  # what shares something slow to make is one group
UNIT = [*PYTEST, *NO_NOTEBOOKS, *TWO, "--ignore=tests/browser", "--ignore=tests/gpu"]
ALL = ["tests"]
PLAIN = "plain_types"  # the mark of the tests that run without checks of shapes
# Modules whose signatures are not checked while the tests run. The first three check the others' and have
# no shape in a signature of their own. The reference, the Specs and the exercises work on NumPy arrays in
# Python loops, where a check at every call would multiply the time.
UNCHECKED = (
    "shapes", "bounds", "errors", "reference", "specs", "exercises", "plotting", "reader.show",
)  # fmt: skip
# The contracts of .importlinter; its command is no module that Python could run with -m.
LINT_IMPORTS = "from importlinter.cli import lint_imports_command as run; run()"
NBVAL = [
    "-p",
    "tests.forked_kernels",
    "--nbval",
    "--nbval-current-env",
    "--nbval-cell-timeout=600",
    "--nbval-sanitize-with=tests/nbval_sanitize.cfg",
]
# The version that GPU machines have, beside that of the interpreter.
TRITON = ROOT / ".venv" / "triton"
LONGEST = "10_training"  # begun first, so that no process waits for it at the end


@dataclass
class Step:
    """One command, and what came of it."""

    name: str
    command: list[str]
    settings: dict[str, str] = field(default_factory=dict)  # of the environment
    lacking: str = ""  # what this machine lacks for it
    counts: Counter = field(default_factory=Counter)
    skipped: Counter = field(default_factory=Counter)
    files: Counter = field(default_factory=Counter)  # seconds of the tests of each file
    failed: bool = False
    beside: Step | None = None  # begun with this one, on the core that it leaves
    after: Step | None = None  # without which there is nothing to test, or something old
    process: subprocess.Popen | None = None
    began: float = 0.0
    seconds: float = 0.0

    @property
    def report(self) -> Path | None:
        """Where pytest says what came of each test; None for another command."""
        tested = self.command[:2] == PYTEST[:2]
        return REPORTS / f"{self.name.replace(' ', '-')}.xml" if tested else None

    def begin(self, output: IO | None = None) -> None:
        """Start the command, with its output on the terminal or in a file."""
        report = [f"--junitxml={self.report}"] if self.report else []
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, *self.command, *report], cwd=ROOT, env=environment() | self.settings,
            stdout=output, stderr=output,
        )  # fmt: skip

    def run(self, place: str) -> None:
        """Run the command, or wait for one that began beside another, and read its report."""
        print(f"\n==== {place} {self.name}", flush=True)
        lacking = f"{self.after.name} failed" if self.after and self.after.failed else self.lacking
        if lacking:
            self.skipped[f"{self.name}: {lacking}"] += 1
            return
        log = REPORTS / f"{self.name}.log"  # of what began beside another
        if self.process is None:
            self.begin()
        if self.beside:
            with (REPORTS / f"{self.beside.name}.log").open("wb") as output:
                self.beside.begin(output)
        self.failed = self.process.wait() != 0
        self.seconds = time.monotonic() - self.began
        if log.exists():
            print(log.read_text(encoding="utf-8", errors="replace"), end="", flush=True)
        if self.report and self.report.exists():
            self.read(ElementTree.parse(self.report))

    def read(self, report: ElementTree.ElementTree) -> None:
        """Count passed, failed and skipped tests, and the reasons for skipping."""
        for case in report.iter("testcase"):
            verdict = "passed"
            if case.find("failure") is not None or case.find("error") is not None:
                verdict = "failed"
            elif (skip := case.find("skipped")) is not None:
                verdict = "xfailed" if skip.get("type") == "pytest.xfail" else "skipped"
                self.skipped[reason(case, skip)] += 1
            self.counts[verdict] += 1
            self.files[case.get("classname", "")] += float(case.get("time", 0))


def reason(case: ElementTree.Element, skip: ElementTree.Element) -> str:
    """Why a test was skipped. Of a file skipped as a whole, pytest's message does not say it: its text does."""
    message = skip.get("message") or "no reason given"
    if message != "collection skipped":
        return message
    _, _, said = ast.literal_eval(skip.text)
    return f"{said.removeprefix('Skipped: ')} (the whole file {case.get('name')})"


def shapes_checked() -> str:
    """Give pytest's option that checks the shapes in the signatures of the package."""
    package = ROOT / "code" / "tested_transformer"
    names = [
        path.relative_to(package.parent).with_suffix("").parts for path in package.rglob("*.py")
    ]
    skipped = tuple(f"tested_transformer.{name}" for name in UNCHECKED)
    modules = (".".join(name) for name in names if name[-1] != "__init__")
    checked = sorted(name for name in modules if not name.startswith(skipped))
    return f"--jaxtyping-packages={','.join(checked)},beartype.beartype"


def with_plain_types() -> list[str]:
    """The files that hold a test of plain types: the others need not be read again to find none."""
    files = (ROOT / "tests").rglob("test_*.py")
    found = [path for path in files if PLAIN in path.read_text(encoding="utf-8")]
    return [path.relative_to(ROOT).as_posix() for path in sorted(found)]


def steps(fast: bool) -> list[Step]:
    """List the steps in the order in which a mistake is cheapest to hear of."""
    tests = [
        Step("lint", ["-m", "ruff", "check", "."]),
        Step("format", ["-m", "ruff", "format", "--check", "."]),
        Step("spelling", ["-m", "codespell_lib"]),
        Step("who may import whom", ["-c", LINT_IMPORTS, "--no-cache"]),
        Step("doctests", [*PYTEST, *NO_NOTEBOOKS, "--doctest-modules", "code"]),
    ]
    if fast:
        return [*tests, Step("unit tests", [*UNIT, *ALL, "-m", "not slow"])]
    tests += [
        Step("unit tests, shapes checked",
             [*UNIT, *ALL, shapes_checked(), "-m", f"not {PLAIN}"]),
        Step("unit tests, plain types", [*UNIT, *with_plain_types(), "-m", PLAIN]),
    ]  # fmt: skip
    tests += [
        Step("flash kernels, interpreted", [*PYTEST, *NO_NOTEBOOKS, *TWO, "tests/gpu"],
             {"TRITON_INTERPRET": "1"}),
        Step("flash kernels, compiled", ["tools/gpu_compile.py"], {"PYTHONPATH": str(TRITON)},
             "" if (TRITON / "triton").exists() else "Triton 3.6 exists for Linux only"),
    ]  # fmt: skip
    chapters = sorted(chapter_paths(), key=lambda path: path.stem != LONGEST)
    by_file = [*TWO, "--dist", "loadfile", "--no-loadscope-reorder"]
    book = Step("book", ["tools/build_book.py"])  # one process: it takes what the chapters leave
    return [
        *tests,
        Step("chapters", [*PYTEST, *by_file, *NBVAL, *map(str, chapters)], beside=book),
        book,
        # Neighbors share their browser; whoever is done first takes over some of the other's.
        Step(
            "browser",
            [*PYTEST, *NO_NOTEBOOKS, "-n", "2", "--dist", "worksteal", "tests/browser"],
            after=book,
        ),
    ]


def environment() -> dict[str, str]:
    """One thread a process: two processes share two cores, and sums keep one order.

    And no folder of a reader's own parts: what the chapters print must not depend on it. Hundreds of
    processes import the package, so each may use what another has compiled.
    """
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    ours = {"PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "", "TESTED_TRANSFORMER_PARTS": ""}
    return {**os.environ, **threads, **ours}


def summary(done: list[Step], fast: bool, seconds: float) -> str:
    """Say what each step gave, what was skipped and why, and the counts in pytest's words."""
    lines = ["", "==== summary"]
    for step in done:
        counts = ", ".join(f"{n} {verdict}" for verdict, n in sorted(step.counts.items()))
        lines.append(
            f"{'FAILED' if step.failed else 'ok':6} {step.name:28} {step.seconds:6.1f} s  {counts}"
        )
    reasons = Counter()
    for step in done:
        reasons.update(step.skipped)
    lines += [f"skipped, {n} test{'s' * (n > 1)}: {why}" for why, n in reasons.items()]
    if fast:
        lines.append("left out by test-fast: the chapters, the site, the tests marked slow")
    elif not reasons:
        lines.append("nothing was skipped")
    total = sum((step.counts for step in done), Counter())
    total["failed"] += sum(step.failed and not step.counts["failed"] for step in done)
    words = [f"{total[w]} {w}" for w in ("failed", "passed", "skipped", "xfailed") if total[w]]
    lines.append(f"===== {', '.join(words)} in {seconds:.2f}s =====")
    return "\n".join(lines)


def record(done: list[Step], seconds: float) -> dict:
    """What a whole run gave, for a page of the book.

    Raises: ValueError after a failure: only what passed is recorded.
    """
    failed = [step.name for step in done if step.failed or step.counts["failed"]]
    if failed:
        raise ValueError(f"nothing is recorded, because of failures in: {', '.join(failed)}")
    chapters = {
        found[1].replace(".", "/"): round(seconds, 1)
        for step in done
        for name, seconds in sorted(step.files.items())
        if (found := re.fullmatch(r"chapters\.((?:deeper\.)?\w+)\.ipynb", name))
    }
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("torch", "numpy", "transformers")},
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processor cores",
        "seconds": round(seconds),
        "steps": [
            {"name": step.name, "seconds": round(step.seconds), **dict(sorted(step.counts.items()))}
            for step in done
        ],
        "skipped": dict(sorted(sum((step.skipped for step in done), Counter()).items())),
        "chapters": chapters,
    }


def main() -> int:
    """Run the steps and print the summary; 1 if any failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--fast", action="store_true")
    which.add_argument("--record", action="store_true")
    options = parser.parse_args()
    fast = options.fast
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir(parents=True)
    start = time.monotonic()
    todo = steps(fast)
    for place, step in enumerate(todo, start=1):
        step.run(f"[{place}/{len(todo)}]")
    seconds = time.monotonic() - start
    print(summary(todo, fast, seconds))
    if options.record:
        try:
            text = json.dumps(record(todo, seconds), indent=1, ensure_ascii=False) + "\n"
        except ValueError as reason:
            print(reason)
        else:
            RECORD.write_text(text, encoding="utf-8")
            print(f"recorded in {RECORD.relative_to(ROOT)}")
    return int(any(step.failed for step in todo))


if __name__ == "__main__":
    sys.exit(main())
