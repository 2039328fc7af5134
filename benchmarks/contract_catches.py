"""Which property of the contract catches which bug: every wrong model of the tests under every property.

Usage: python benchmarks/contract_catches.py    goes on where it stopped
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch
from record import measure_missing

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "code"), str(ROOT / "tests")]

from tested_transformer.specs.contract import contract  # noqa: E402
from wrong_models import WRONG  # noqa: E402

WHAT = (
    "the properties that each wrong model of tests/wrong_models.py breaks, and the seconds of the whole "
    "contract"
)
MODELS = {wrong.name: wrong for wrong in WRONG}


def measure(wrong: str) -> dict[str, Any]:
    """The whole contract of one wrong model."""
    start = time.process_time()
    report = contract(MODELS[wrong].make())
    return {
        "wrong": wrong,
        "seen": MODELS[wrong].seen,
        "breaks": MODELS[wrong].breaks,
        "broken": [each.name for each in report.broken],
        "cpu_seconds": round(time.process_time() - start, 1),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    wanted = [{"wrong": name} for name in MODELS]
    measure_missing("contract_catches", WHAT, wanted, measure, ("wrong", "broken", "cpu_seconds"))
