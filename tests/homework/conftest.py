"""The fixtures that several files of these tests use."""

import sys

import pytest
from jails import held, more_than, soon


@pytest.fixture
def nothing_is_left():
    """No thread and no open file of ours outlives a test."""
    if sys.platform != "linux":
        yield
        return
    before = held()
    yield
    assert soon(lambda: not more_than(before)), more_than(before)
