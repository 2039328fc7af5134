"""How a benchmark keeps what it measured: one JSON file of rows, written after each of them."""

import datetime
import json
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def read_rows(name: str) -> list[dict[str, Any]]:
    """What earlier runs have measured; nothing for a first run."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []


def write_rows(name: str, what: str, rows: list[dict[str, Any]], **more: Any) -> None:
    """Write everything measured so far, with versions and date; a file is replaced when it is whole."""
    made = {
        "date": datetime.date.today().isoformat(), "python": platform.python_version(),
        "torch": torch.__version__.split("+")[0], "processor": f"{platform.machine()}, one thread",
    }  # fmt: skip
    record = {"what": what, "command": f"python benchmarks/{name}.py", "made": made, **more}
    text = json.dumps({**record, "rows": rows}, indent=1, ensure_ascii=False, allow_nan=False)
    path = RESULTS / f"{name}.json"
    temporary = path.with_suffix(".part")
    temporary.write_text(text + "\n", encoding="utf-8")
    os.replace(temporary, path)


def measure_missing(
    name: str,
    what: str,
    wanted: Iterable[dict[str, Any]],
    measure: Callable[..., dict[str, Any]],
    shown: Sequence[str],
) -> None:
    """Measure each wanted run that no stored row answers, store it at once and print what is shown."""
    for run in wanted:
        if any(run.items() <= row.items() for row in read_rows(name)):
            continue
        new = measure(**run)
        write_rows(name, what, [*read_rows(name), new])  # another process may have added rows
        print(*(new[key] for key in shown if key in new), sep="\t", flush=True)
