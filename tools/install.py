"""Install what requirements files list. pip's words go to a log, one line stays on the terminal.

Usage: python tools/install.py requirements.txt [another.txt ...] [--target FOLDER]

It installs into the environment whose Python runs it, or into a folder of its own, without what that would need.
With requirements.txt comes the package of this repository.
"""

import argparse
import contextlib
import re
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PIP = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
LOG = Path(sys.prefix) / "install.log"
TAIL = 15  # lines of the log that a failure shows
# On Linux the PyTorch of PyPI brings the CUDA libraries, gigabytes that only an NVIDIA GPU can use.
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
ONE_QUICK_TRY = ["--timeout", "15", "--retries", "1"]


def main(words: list[str] | None = None) -> int:
    """Install, and say in the end what went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--target")
    asked = parser.parse_args(words)
    book = any(Path(name).name == "requirements.txt" for name in asked.files)
    listed = [word for name in asked.files for word in ("-r", name)]
    if asked.target:
        listed += ["--no-deps", "--upgrade", "--target", asked.target]
    elif book:
        take_cpu_build(pinned_torch())
    done = install(f"Installing {' '.join(asked.files)}", listed)
    if done and book:
        done = install("Installing the package", ["--no-deps", "-e", "."])
    if not done:
        print(f"{tail()}\npip failed: these are the last lines of {LOG}.", file=sys.stderr)
    return int(not done)


# ----------------------------------------------------------------------------------- PyTorch


def take_cpu_build(version: str) -> None:
    """On Linux without an NVIDIA GPU, get the small PyTorch from its own index, if that can be reached."""
    if sys.platform != "linux" or installed("torch") == version or has_gpu():
        return
    words = ["--no-deps", f"torch=={version}", "--index-url", CPU_INDEX, *ONE_QUICK_TRY]
    if not install("Installing PyTorch for the processor", words):
        print(
            f"PyTorch's own index ({CPU_INDEX}) did not give it: pip takes the larger build of its usual index."
        )


def pinned_torch() -> str:
    """The version of PyTorch that requirements.txt asks for."""
    text = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    return re.search(r"^torch==([\d.]+)", text, re.MULTILINE)[1]


def installed(name: str) -> str:
    """The version of a package in this environment, without the name of its build; nothing for none."""
    try:
        return metadata.version(name).partition("+")[0]
    except metadata.PackageNotFoundError:
        return ""


def has_gpu() -> bool:
    """Does NVIDIA's own tool list a GPU?"""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listed.stdout.startswith(b"GPU ")


# ------------------------------------------------------------------------- a line, and a log


def install(label: str, words: list[str]) -> bool:
    """Run pip with its words in the log, and the label with the seconds on the terminal."""
    began = time.monotonic()
    line = Line(label)
    with LOG.open("a", encoding="utf-8") as log:
        print("$ pip install", *words, file=log, flush=True)
        with subprocess.Popen([*PIP, *words], cwd=ROOT, stdout=log, stderr=log) as pip:
            while pip.poll() is None:
                line.show(f"{label} ({time.monotonic() - began:.0f} s): {tail(1)}")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    pip.wait(timeout=0.5)
    line.end(f"{label}: {'failed after ' * bool(pip.returncode)}{time.monotonic() - began:.0f} s")
    return pip.returncode == 0


def tail(lines: int = TAIL) -> str:
    """The last lines of the log."""
    text = LOG.read_text(encoding="utf-8", errors="replace")
    return "\n".join(text.strip().splitlines()[-lines:])


class Line:
    """One line, written over itself on a terminal; elsewhere its beginning and its end."""

    def __init__(self, label: str):
        self.alive = sys.stdout.isatty()
        if not self.alive:
            print(f"{label} (pip's log: {LOG})", flush=True)

    def show(self, text: str) -> None:
        """Put a text in the place of the one before."""
        if self.alive:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r{text[:width]:{width}}", end="", flush=True)

    def end(self, text: str) -> None:
        """Leave a text that stays."""
        self.show(text)
        print("" if self.alive else text, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nStopped.")
