"""Which tests share something slow to make: `pytest -n 2 --dist loadgroup` gives them to one process.

The marks of pytest-xdist 3.8 do nothing under pytest 9.2, without a word
(https://github.com/pytest-dev/pytest-xdist/issues/1386), so the scheduler goes by the tests' names.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

# A class is graded once; what the reference answers to a Spec's cases is remembered.
FILES, PARAMETERS = ("homework/test_grading.py",), ("specs/test_answers.py",)


def group(test: str) -> str:
    """The group of a test, which may be itself alone."""
    file, _, function = test.partition("::")
    if file.endswith(FILES):
        return file
    if file.endswith(PARAMETERS) and "[" in function:
        return f"{file}::{function.partition('[')[2]}"
    return test


class BySharing(LoadScopeScheduling):
    """Hand out the tests group by group, the largest first."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)
