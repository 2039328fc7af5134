"""What every test run needs. GPU machines have no jaxtyping and no hypothesis, so they are imported where they are there."""

from importlib.util import find_spec


def pytest_configure(config):
    """Give property tests all the time they need, and let `--jaxtyping-packages` check each call once."""
    if find_spec("hypothesis"):
        from hypothesis import settings

        settings.register_profile("patient", deadline=None)  # a laptop that is busy is no mistake
        settings.load_profile("patient")
    if config.getoption("jaxtyping_packages", None):
        from check_shapes_once import install

        install()
