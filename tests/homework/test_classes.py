"""What a class is set up with: the course folder of nbgrader, the settings of a hub, the grader's container."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from course import ROOT, filled, solution_cells
from traitlets.config import Config

import course_folder
import homework as tool
from tested_transformer.homework.submissions.collecting import collect
from tested_transformer.homework.submissions.finding import find_submissions

CLASSES = ROOT / "homework" / "classes"
PIN = re.compile(r"^([\w.-]+)==([\w.]+)", re.MULTILINE)
PINS = {
    name: version
    for path in ROOT.glob("requirements*.txt")
    if path.name in ("requirements.txt", "requirements-homework.txt")
    for name, version in PIN.findall(path.read_text(encoding="utf-8"))
}


def settings(path: Path) -> Config:
    """What a configuration file sets."""
    c = Config()
    exec(compile(path.read_text(encoding="utf-8"), path, "exec"), {"get_config": lambda: c})
    return c


# ------------------------------------------------------------------------------------------ the hub


def test_the_hubs_requirements_are_exact_and_agree_with_the_books():
    text = (CLASSES / "jupyterhub" / "requirements.txt").read_text(encoding="utf-8")
    named = {line.split("#")[0].strip() for line in text.splitlines() if line[:1].isalpha()}
    pins = dict(PIN.findall(text))
    assert named == {f"{name}=={version}" for name, version in pins.items()}
    assert not [name for name in pins if PINS.get(name, pins[name]) != pins[name]]
    for path in re.findall(r"\.\./[\w./-]+\.txt", text):
        assert (CLASSES / "jupyterhub" / path).resolve().is_file(), path


def test_the_hub_starts_a_lab_with_one_thread_for_each_student():
    c = settings(CLASSES / "jupyterhub" / "jupyterhub_config.py")
    assert c.Spawner.default_url == "/lab"
    assert c.Spawner.environment["OMP_NUM_THREADS"] == "1"
    first = c.Spawner.environment["PATH"].split(os.pathsep)[0]
    assert first == str(Path(sys.executable).parent)  # where nbgrader is
    assert Path(c.Spawner.cmd[0]).name == "jupyterhub-singleuser"
    assert c.Authenticator.allow_all is True  # otherwise JupyterHub lets nobody in


def test_the_hub_and_the_course_folder_name_one_course():
    everybody = settings(CLASSES / "jupyterhub" / "nbgrader_config.py")
    course = settings(ROOT / "homework" / "nbgrader_config.py")
    assert everybody.CourseDirectory.course_id == course.CourseDirectory.course_id
    assert everybody.Exchange.root in (ROOT / "book/for-instructors.md").read_text(encoding="utf-8")


def test_every_file_that_the_list_of_them_names_is_there():
    text = (CLASSES / "README.md").read_text(encoding="utf-8")
    named = [word.split()[0] for word in re.findall(r"`([\w./-]+/[\w./-]+)", text)]
    paths = [CLASSES / name if (CLASSES / name).exists() else ROOT / name for name in named]
    assert len(paths) > 5
    assert not [path for path in paths if not path.is_file()]
    listed = {path.resolve() for path in paths}
    assert {p for p in CLASSES.rglob("*") if p.is_file() and p.name != "README.md"} <= listed


# ------------------------------------------------------------------------------------ the container


def test_the_container_is_made_of_what_the_book_has():
    text = (CLASSES / "container" / "Containerfile").read_text(encoding="utf-8")
    copied = [
        name for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE) for name in line.split()
    ]
    assert not [name for name in copied if not (ROOT / name).exists()]
    asked = re.search(r"install\.py (.+)", text)[1].split()
    assert {"requirements.txt", "requirements-homework.txt"} == set(asked) <= set(copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {project["readme"], *project["license-files"]} <= set(copied)
    version = tuple(map(int, re.search(r"FROM \S*python:(\d+)\.(\d+)-", text).groups()))
    assert (3, 11) <= version <= (3, 14)
    module = json.loads(re.search(r"^ENTRYPOINT (.+)$", text, re.MULTILINE)[1])[2]
    assert (ROOT / "code" / module.replace(".", "/") / "__main__.py").is_file()
    assert "bubblewrap" in text


def test_the_engine_gets_what_the_container_copies_and_nothing_else():
    file = CLASSES / "container" / "Containerfile"
    listed = file.with_name("Containerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    copied = re.findall(r"^COPY (.+) \S+$", file.read_text(encoding="utf-8"), re.MULTILINE)
    patterns = [line for line in listed if not line.startswith("#")]
    assert patterns[0] == "*"
    kept = {line[1:] for line in patterns if line.startswith("!")}
    assert kept == {"homework", *(name for line in copied for name in line.split())}
    assert (
        patterns.index("!homework")
        < patterns.index("homework/*")
        < patterns.index("!homework/source")
    )


ENGINE = """#!/bin/sh
printf '%s\\n' "$*" >> "$CALLS"
case $1 in
  image) test -e "$CALLS.built" ;;
  build) : > "$CALLS.built" ;;
esac
"""


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script")
@pytest.mark.parametrize(
    ("name", "opened"),
    [("docker", "--security-opt systempaths=unconfined"), ("podman", "--security-opt unmask=ALL")],
)
def test_the_container_gets_this_folder_and_no_network(name, opened, tmp_path):
    engine = tmp_path / name
    engine.write_text(ENGINE, encoding="utf-8")
    engine.chmod(0o755)
    calls, here = tmp_path / "calls", tmp_path / "a class"
    here.mkdir()
    environment = {**os.environ, "ENGINE": str(engine), "CALLS": str(calls)}
    words = ["class.zip", "--assignment", "03", "--out", "marks03"]
    for _ in range(2):
        subprocess.run(
            [CLASSES / "container" / "grade", *words], cwd=here, env=environment, check=True
        )
    asked, built, first, again, second = calls.read_text(encoding="utf-8").splitlines()
    assert asked == again == "image inspect tested-transformer-grader"
    assert built.startswith("build ")
    assert (f"--ignorefile {CLASSES}/container/Containerfile.dockerignore" in built) == (
        name == "podman"
    )
    assert built.endswith(f"/Containerfile {ROOT}")
    assert first == second
    assert first.startswith("run --rm --security-opt seccomp=unconfined ")
    assert opened in first
    assert f"--network none --volume {here.resolve()}:/work " in first
    assert first.endswith(" grade class.zip --assignment 03 --out marks03")
    assert "--privileged" not in first


# ------------------------------------------------------------------------------------ the course folder


@pytest.mark.slow
def test_a_student_fetches_and_submits_and_what_is_collected_can_be_marked(tmp_path):
    """The whole way of nbgrader's exchange, with the hub's settings; the instructor collects a notebook."""
    pytest.importorskip("nbgrader", reason="nbgrader is not installed: requirements-homework.txt")
    exchange, home, etc = tmp_path / "exchange", tmp_path / "home", tmp_path / "etc"
    for folder in (exchange, home, etc):
        folder.mkdir()
    exchange.chmod(0o777)
    text = (CLASSES / "jupyterhub" / "nbgrader_config.py").read_text(encoding="utf-8")
    root = settings(CLASSES / "jupyterhub" / "nbgrader_config.py").Exchange.root
    (etc / "nbgrader_config.py").write_text(text.replace(root, str(exchange)), encoding="utf-8")

    def nbgrader(folder: Path, *words: str) -> None:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        environment = {**os.environ, "PATH": path, "JUPYTER_CONFIG_PATH": str(etc), "USER": "ada"}
        command = [sys.executable, "-m", "nbgrader", *words]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    course = tmp_path / "course"
    assert course_folder.main([str(course), "hw01"]) == 0
    assert settings(course / "nbgrader_config.py") == settings(tool.COURSE / "nbgrader_config.py")
    released = (course / "release" / "hw01" / "hw01.ipynb").read_text(encoding="utf-8")
    assert "SOLUTION" not in released
    assert course.stat().st_mode & 0o007 == 0  # the solutions are no student's
    nbgrader(course, "release_assignment", "hw01")
    nbgrader(home, "fetch_assignment", "hw01")
    notebook = home / "hw01" / "hw01.ipynb"
    assert notebook.read_text(encoding="utf-8") == released
    written = json.dumps(filled(json.loads(released), solution_cells("hw01")))
    notebook.write_text(written, encoding="utf-8")
    nbgrader(home, "submit", "hw01")
    nbgrader(course, "collect", "hw01")
    (student,), without = collect(course, "hw01", tmp_path / "collected")
    assert without == []
    (one,) = find_submissions(tmp_path / "collected")
    assert one.id == student
    assert (tmp_path / "collected" / f"{student}.ipynb").read_text(encoding="utf-8") == written


def test_an_unknown_assignment_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit):
        course_folder.main([str(tmp_path / "course"), "hw99"])
    assert "no assignment hw99" in capsys.readouterr().err
    assert not (tmp_path / "course").exists()
