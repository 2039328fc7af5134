"""Make the virtual environment, or say in one sentence why this Python cannot.

Usage: python tools/make_venv.py .venv

Runs under any Python, 2.7 included, because its work is to say that the Python is the wrong one.
"""

from __future__ import print_function

import os
import subprocess
import sys

OLDEST, NEWEST = (3, 11), (3, 14)  # PyTorch 2.13.0 has wheels for these, and for none after


def obstacle():
    """Say why no environment can be made with this Python, or return None."""
    here = "%d.%d" % sys.version_info[:2]
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        return (
            "This book needs Python 3.11 to 3.14, and this is Python %s: "
            "name another one, as in `make book PYTHON=python3.12`." % here
        )
    try:
        import ensurepip
        import venv
    except ImportError:
        return (
            "This Python has no venv module: install it (Debian and Ubuntu: "
            "`apt install python%s-venv`) or name another Python, as in "
            "`make book PYTHON=python3.12`." % here
        )
    del ensurepip, venv
    return None


def works(folder):
    """Is there an environment in the folder whose Python runs and is new enough?"""
    scripts = "Scripts" if os.name == "nt" else "bin"
    python = os.path.join(folder, scripts, "python")
    code = "import pip, sys; sys.exit(not %r <= sys.version_info[:2] <= %r)" % (OLDEST, NEWEST)
    try:
        return subprocess.call([python, "-c", code]) == 0
    except OSError:
        return False


def main():
    """Make the environment, or check the one that is there."""
    folder = sys.argv[1]
    if os.path.exists(folder):
        if works(folder):
            return None
        return "The environment in %s does not work: delete that folder and try again." % folder
    reason = obstacle()
    if reason:
        return reason
    print("Making %s with Python %d.%d.%d" % ((folder,) + sys.version_info[:3]))
    return subprocess.call([sys.executable, "-m", "venv", folder])


if __name__ == "__main__":
    sys.exit(main())
