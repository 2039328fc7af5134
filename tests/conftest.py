"""What every test run needs. GPU machines have no jaxtyping and no hypothesis, so they are imported where they are there."""

import os
from importlib.util import find_spec

import pytest


def pytest_configure(config):
    """Give property tests all the time they need, and let `--jaxtyping-packages` check each call once."""
    if find_spec("hypothesis"):
        from hypothesis import settings

        # A laptop that is busy is no mistake. The examples are the same in every run, but once a week.
        same = "OTHER_EXAMPLES" not in os.environ
        settings.register_profile("patient", deadline=None, derandomize=same)
        settings.load_profile("patient")
    if config.getoption("jaxtyping_packages", None):
        from check_shapes_once import install

        install()


@pytest.hookimpl(optionalhook=True)  # without xdist there is nothing to share out
def pytest_xdist_make_scheduler(config, log):
    """Tests that share something slow to make go to one process."""
    if config.getvalue("dist") == "loadgroup":
        from sharing import BySharing

        return BySharing(config, log)
