"""Where the flash kernels run: on a GPU at real sizes, or in Triton's interpreter at small ones.

A GPU machine may have torch, Triton, NumPy and pytest, and nothing else: tools/bare.py stands in for
jaxtyping, which the package imports beside them.
"""

import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "code"), str(ROOT / "tools")]
import bare  # noqa: E402

bare.stand_in()
from tested_transformer.functional.backends import flash  # noqa: E402

BEGAN = time.monotonic()


def pytest_addoption(parser):
    """A GPU is lent by the minute."""
    parser.addoption("--deadline", type=float, help="seconds after which no more tests begin")


def pytest_runtest_setup(item):
    """Skip by name what the deadline leaves no time for."""
    deadline = item.config.getoption("--deadline")
    if deadline is not None and time.monotonic() - BEGAN > deadline:
        pytest.skip(f"not begun: {deadline:g} seconds were over")


def pytest_collection_modifyitems(items):
    """Skip by name what this machine cannot run."""
    reason = flash.missing()
    for item in items:
        if reason:
            item.add_marker(pytest.mark.skip(reason=f"GPU tests: {reason}"))
        elif flash.INTERPRETED and item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU, not the interpreter"))


@pytest.fixture(scope="session")
def device():
    """Where the tensors live."""
    return "cpu" if flash.INTERPRETED else "cuda"
