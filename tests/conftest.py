"""What every test run needs. GPU machines have no jaxtyping, so it is imported only when asked for."""


def pytest_configure(config):
    """Let `--jaxtyping-packages` check each call once."""
    if config.getoption("jaxtyping_packages", None):
        from check_shapes_once import install

        install()
