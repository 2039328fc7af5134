"""What `make bench-gpu` measured, read for the page; nothing if nobody has measured yet."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal

from ..bounds import Where
from ..errors import argument_error
from ..shapes import checked

__all__ = ["read_gpu_results", "results_table", "tflops_by_length"]

DIRECTIONS = ("forward", "forward+backward")
Record = Annotated[dict[str, Any], Where("what read_gpu_results gives", lambda r: "rows" in r)]


@checked
def read_gpu_results(path: Path) -> dict[str, Any] | None:
    """The record of a benchmark on a GPU, or None if there is none.

    Raises: TypeError if `path` is no Path; ValueError for a file without rows.
    """
    if not path.exists():
        return None
    record = json.loads(path.read_text(encoding="utf-8"))
    if not record.get("rows"):
        raise argument_error(ValueError, "path", f"{path.name} without rows", "a record with rows")
    return record


@checked
def tflops_by_length(
    record: Record, *, d: int, causal: bool, direction: Literal[DIRECTIONS]
) -> tuple[list[int], dict[str, list[float]]]:
    """The lengths, and for each method its tera-operations a second there, NaN where it was not run.

    Rows with features (a window, grouped-query attention) are left out.

    Raises: ValueError for another direction, and if no row fits.
    """
    rows = [
        row for row in record["rows"]
        if (row["d"], row["causal"], row["pass"]) == (d, causal, direction) and not row["features"]
    ]  # fmt: skip
    if not rows:
        raise argument_error(
            ValueError, "record", "no row", f"one with d {d}, causal {causal}, {direction}"
        )
    lengths = sorted({row["length"] for row in rows})
    found = {(row["method"], row["length"]): float(row["tflops"]) for row in rows}
    methods = dict.fromkeys(row["method"] for row in rows)
    return lengths, {m: [found.get((m, n), math.nan) for n in lengths] for m in methods}


@checked
def results_table(record: Record, *, d: int, causal: bool) -> str:
    """Device, versions and date, then a line for each method and direction: TFLOP/s by length.

    Raises: as `tflops_by_length`.
    """
    lines = [", ".join(f"{name} {value}" for name, value in record["made"].items())]
    for direction in DIRECTIONS:
        lengths, found = tflops_by_length(record, d=d, causal=causal, direction=direction)
        lines += ["", f"{direction}, TFLOP/s".ljust(26) + "".join(f"{n:>9}" for n in lengths)]
        for method, speeds in found.items():
            cells = ("-" if math.isnan(speed) else f"{speed:.0f}" for speed in speeds)
            lines.append(f"{method:26}" + "".join(f"{cell:>9}" for cell in cells))
    return "\n".join(lines)
