"""tools/install.py, with a stand-in for pip that writes down what it is asked for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import install

ROOT = Path(__file__).resolve().parents[2]
PIP = """
import pathlib, sys
asked = " ".join(sys.argv[1:])
with open("asked.txt", "a") as file:
    print(asked, file=file)
print("Collecting what is asked", *[f"line {n}" for n in range(40)], sep="\\n")
print("oh dear", file=sys.stderr)
sys.exit(any(word in asked for word in pathlib.Path("fails.txt").read_text().split()))
"""
FROM_ITS_INDEX = f"--no-deps torch==2.13.0 --index-url {install.CPU_INDEX} --timeout 15 --retries 1"
THE_BOOK = ["-r requirements.txt", "--no-deps -e ."]


class Machine:
    """A folder in which the stand-in runs, and what it was asked for."""

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "requirements.txt").write_text("# pins\nnumpy==2\ntorch==2.13.0  # the models\n")
        self.fails_at("nothing")

    def fails_at(self, words: str) -> None:
        (self.folder / "fails.txt").write_text(words)

    def asked(self) -> list[str]:
        return (self.folder / "asked.txt").read_text().splitlines()


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Linux without a GPU and without torch."""
    monkeypatch.setattr(install, "ROOT", tmp_path)
    monkeypatch.setattr(install, "LOG", tmp_path / "install.log")
    monkeypatch.setattr(install, "PIP", [sys.executable, "-c", PIP])
    monkeypatch.setattr(install, "installed", lambda name: "")
    monkeypatch.setattr(install, "has_gpu", lambda: False)
    monkeypatch.setattr(sys, "platform", "linux")
    return Machine(tmp_path)


def test_linux_takes_pytorch_from_its_own_index_first(machine, capsys):
    assert install.main(["requirements.txt"]) == 0
    assert machine.asked() == [FROM_ITS_INDEX, *THE_BOOK]
    said = capsys.readouterr().out
    assert "Collecting" not in said, "pip's words belong into the log"
    assert "oh dear" not in said
    assert len(said.splitlines()) == 6, "two lines for each of three, where there is no terminal"
    assert "Collecting" in (machine.folder / "install.log").read_text()


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("has_gpu", lambda: True),
        ("installed", lambda name: "2.13.0"),
        ("sys.platform", "darwin"),
        ("sys.platform", "win32"),
    ],
    ids=["gpu", "installed", "macos", "windows"],
)
def test_other_machines_keep_what_they_have(machine, monkeypatch, what, value):
    monkeypatch.setattr(f"install.{what}", value)
    assert install.main(["requirements.txt"]) == 0
    assert machine.asked() == THE_BOOK


def test_another_version_is_replaced_by_the_small_build(machine, monkeypatch):
    monkeypatch.setattr(install, "installed", lambda name: "2.12.0")
    assert install.main(["requirements.txt"]) == 0
    assert machine.asked()[0] == FROM_ITS_INDEX


def test_an_index_that_can_not_be_reached_is_one_sentence_and_no_failure(machine, capsys):
    machine.fails_at(install.CPU_INDEX)
    assert install.main(["requirements.txt"]) == 0
    assert machine.asked() == [FROM_ITS_INDEX, *THE_BOOK]
    told = capsys.readouterr()
    assert f"PyTorch's own index ({install.CPU_INDEX}) did not give it: " in told.out
    assert told.err == ""


@pytest.mark.parametrize("fails", ["requirements.txt", "-e"])
def test_a_failure_shows_the_end_of_the_log_and_where_it_is(machine, capsys, fails):
    machine.fails_at(fails)
    assert install.main(["requirements.txt"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == install.TAIL + 1
    assert {"oh dear", "line 39"} <= set(lines)
    assert lines[-1] == f"pip failed: these are the last lines of {machine.folder / 'install.log'}."


def test_what_is_not_the_book_brings_neither_pytorch_nor_the_package(machine):
    assert install.main(["requirements-dev.txt", "requirements-homework.txt"]) == 0
    assert install.main(["requirements-gpu.txt", "--target", "there"]) == 0
    assert machine.asked() == [
        "-r requirements-dev.txt -r requirements-homework.txt",
        "-r requirements-gpu.txt --no-deps --upgrade --target there",
    ]


def test_a_terminal_has_one_line_that_is_written_over(machine, monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    assert install.main(["requirements-dev.txt"]) == 0
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    states = said.strip("\r\n").split("\r")
    assert [len(state) for state in states] == [59] * len(states)
    assert states[0].startswith("Installing requirements-dev.txt (0 s): $ pip install -r ")
    assert states[-1].strip().startswith("Installing requirements-dev.txt: ")


@pytest.mark.skipif(sys.platform == "win32", reason="no such signal there")
def test_who_stops_it_reads_one_word(tmp_path):
    script = f"""
import runpy, signal, subprocess, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in two processes ignore it
sys.prefix, sys.argv = {str(tmp_path)!r}, ["install.py", "requirements-dev.txt"]
stops = f"import os, signal, time; os.kill({{os.getpid()}}, signal.SIGINT); time.sleep(2)"
start = subprocess.Popen.__init__
subprocess.Popen.__init__ = lambda self, words, **more: start(self, [sys.executable, "-c", stops], **more)
runpy.run_path({str(ROOT / "tools" / "install.py")!r}, run_name="__main__")
"""
    command = [sys.executable, "-c", f"import os{script}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.returncode == 1
    assert done.stderr == "\nStopped.\n"


def test_the_version_of_this_book_and_of_this_environment():
    assert install.pinned_torch() == "2.13.0"
    assert install.installed("pytest") == pytest.__version__
    assert install.installed("no-such-package") == ""


@pytest.mark.skipif(sys.platform == "win32", reason="a stand-in that is a shell script")
@pytest.mark.parametrize(
    ("script", "gpu"),
    [("echo 'GPU 0: NVIDIA H100'", True), ("echo 'no devices'; exit 9", False), (None, False)],
    ids=["gpu", "no driver", "no tool"],
)
def test_a_gpu_is_what_nvidias_tool_lists(tmp_path, monkeypatch, script, gpu):
    if script:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    assert install.has_gpu() is gpu
