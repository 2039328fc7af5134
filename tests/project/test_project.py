"""The project itself: folders, pins, commands, and what every chapter must be."""

import re
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from chapters import chapter_paths, core_paths, number

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = chapter_paths()
# Folders of one machine. A web address may have such words in its path, after a letter.
REQUIREMENT = r'[\w.-]+==[\w.]+(; sys_platform == "linux")? +# \S.*'
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:root|home|work|tmp|opt|Users)/\w|[A-Z]:\\\\?Users\\")
KNOWN_TAGS = {
    "interview",  # a question with its answer, collected on a page of its own
    "hide-input", "hide-output", "hide-cell",  # folded, the reader can open it
    "remove-input", "remove-output", "remove-cell",  # not on the page
    "nbval-ignore-output",  # run but not compared; needs one of the three reasons below
    "timing", "progress", "log",
    "exercise", "solution",
}  # fmt: skip
REASONS = {"timing", "progress", "log"}

each_chapter = pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)


def cells(path: Path) -> list[tuple[int, nbformat.NotebookNode]]:
    """The cells with their place in the chapter, from 1."""
    return list(enumerate(nbformat.read(path, as_version=4).cells, start=1))


def code_cells(path: Path) -> list[tuple[int, nbformat.NotebookNode]]:
    return [(n, c) for n, c in cells(path) if c.cell_type == "code" and c.source.strip()]


def outputs(path: Path):
    return [(n, output) for n, cell in code_cells(path) for output in cell.outputs]


def text_of(output: nbformat.NotebookNode) -> str:
    data = {k: v for k, v in output.get("data", {}).items() if not k.startswith("image/")}
    return "\n".join(map(str, [output.get("text", ""), *data.values()]))


# ---------------------------------------------------------------------------------------- folders


def test_code_is_no_package():
    assert sorted(path.name for path in (ROOT / "code").glob("*.py")) == []


@pytest.mark.parametrize("options", [[], ["-m", "pytest", "--version"]], ids=["plain", "pytest"])
def test_standard_code_module_is_not_shadowed(options):
    script = "import code, pdb; print(code.InteractiveConsole.__module__)"
    command = [sys.executable, *(options or ["-c", script])]
    done = subprocess.run(
        command, cwd=ROOT, env={"PYTHONPATH": "."}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert options or done.stdout.strip() == "code"


def test_makefile_has_the_targets_of_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"make ([a-z-]+)(?= |`|$)", readme, flags=re.MULTILINE))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    wanted = {"book", "test", "test-fast", "lab", "serve", "refresh", "clean"}
    assert wanted <= named
    assert wanted <= targets


@pytest.mark.parametrize(
    "name", [f"requirements{kind}.txt" for kind in ("", "-dev", "-gpu", "-next")]
)
def test_requirements_are_exact_and_say_why(name):
    lines = (ROOT / name).read_text().splitlines()
    lines = [line for line in lines if line.strip() and not line.startswith("#")]
    assert lines
    assert [line for line in lines if not re.fullmatch(REQUIREMENT, line)] == []


def test_one_version_of_pytorch_is_named_everywhere():
    named = {
        path: re.findall(r"torch==([\d.]+\d)", path.read_text(encoding="utf-8"))
        for name in ("*.md", "*.txt", "book/*.md", "binder/*", ".github/workflows/*")
        for path in ROOT.glob(name)
    }
    places = {path.relative_to(ROOT).as_posix(): found for path, found in named.items() if found}
    version = places["requirements.txt"]
    assert places == {"requirements.txt": version, "binder/requirements.txt": version}


def in_git(*options: str) -> list[str]:
    """The names of the files that git knows, by the options of its command."""
    command = ["git", "ls-files", "-z", *options]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout: its files cannot be listed")
    return listed.stdout.split("\0")[:-1]


def test_no_file_names_a_machine_path():
    found = []
    for name in in_git("-co", "--exclude-standard"):
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
        found += [f"{name}: {match[0]}" for match in MACHINE_PATH.finditer(text)]
    assert found == []


@given(st.just(0.25))
def test_a_slow_machine_fails_no_property(seconds):
    """Longer than the 200 ms that hypothesis gives an example by itself: DeadlineExceeded is not raised."""
    assert settings().deadline is None
    time.sleep(seconds)


# --------------------------------------------------------------------------------------- chapters


def test_every_chapter_is_in_the_table_of_contents():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    entries = [entry for part in toc["parts"] for entry in part["chapters"]]
    every = [each for entry in entries for each in (entry, *entry.get("sections", []))]
    listed = [each["file"] for each in every if "file" in each]
    assert CHAPTERS
    assert [f"{f}.ipynb" for f in listed if f.startswith("chapters/")] == in_repository(CHAPTERS)


def in_repository(paths: list[Path]) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in paths]


def test_a_deeper_page_stands_below_its_chapter():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    entries = [entry for part in toc["parts"] for entry in part["chapters"]]
    entries = [entry for entry in entries if entry["file"].startswith("chapters/")]
    assert [path for path in CHAPTERS if path.parent.name == "deeper"] == [
        ROOT / f"{page['file']}.ipynb" for entry in entries for page in entry.get("sections", [])
    ]
    for entry in entries:
        for page in entry.get("sections", []):
            assert re.fullmatch(r"chapters/deeper/\d\d_\w+", page["file"])
            assert number(Path(page["file"])) == number(Path(entry["file"]))


def test_each_number_has_one_core():
    numbers = [number(path) for path in core_paths()]
    assert numbers == sorted(set(numbers))
    assert {number(path) for path in CHAPTERS} == set(numbers)


def test_no_chapter_in_git_is_forgotten():
    assert sorted(in_git("chapters/*.ipynb")) == sorted(in_repository(CHAPTERS))


def test_git_ignores_what_jupyterlab_makes_beside_the_chapters():
    made = ["Untitled.ipynb", "Untitled1.ipynb", "01_self_attention-Copy1.ipynb", "Untitled Folder"]
    made += ["deeper/Untitled.ipynb", "deeper/01_cost-Copy1.ipynb"]
    command = ["git", "check-ignore", *(f"chapters/{name}" for name in made)]
    in_git()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines() == command[2:]


@each_chapter
def test_executed_top_to_bottom_in_one_go(path):
    counts = [cell.execution_count for _, cell in code_cells(path)]
    assert counts == list(range(1, len(counts) + 1))


@each_chapter
def test_no_error_and_no_warning_is_stored(path):
    bad = [(n, "error") for n, o in outputs(path) if o.output_type == "error"]
    bad += [(n, "stderr") for n, o in outputs(path) if o.get("name") == "stderr"]
    bad += [(n, "warning") for n, o in outputs(path) if re.search(r"[a-z]Warning:", text_of(o))]
    assert bad == []


@each_chapter
def test_no_absolute_path(path):
    texts = [(n, cell.source) for n, cell in cells(path)]
    texts += [(n, text_of(output)) for n, output in outputs(path)]
    assert [(n, found[0]) for n, text in texts if (found := MACHINE_PATH.search(text))] == []


@each_chapter
def test_every_figure_has_alt_text_and_a_caption(path):
    bare = []
    for n, cell in code_cells(path):
        if not any(kind.startswith("image/") for o in cell.outputs for kind in o.get("data", {})):
            continue
        settings = cell.metadata.get("mystnb", {})
        if len(settings.get("image", {}).get("alt", "").strip()) < 30:
            bare.append((n, "alt text of at least 30 characters"))
        if not settings.get("figure", {}).get("caption", "").strip():
            bare.append((n, "a caption"))
    assert bare == []


@each_chapter
def test_tags_are_known(path):
    tags = [(n, tag) for n, cell in cells(path) for tag in cell.metadata.get("tags", [])]
    assert [(n, tag) for n, tag in tags if tag not in KNOWN_TAGS] == []


@each_chapter
def test_jupyterlab_folds_what_the_site_folds(path):
    """A solution that stands open under its exercise is read."""
    for place, cell in code_cells(path):
        tags, closed = set(cell.metadata.get("tags", [])), cell.metadata.get("jupyter", {})
        assert closed.get("source_hidden", False) == bool(tags & {"hide-cell", "hide-input"}), place
        assert closed.get("outputs_hidden", False) == bool(tags & {"hide-cell", "hide-output"}), (
            place
        )


def ignored(path: Path) -> list[tuple[int, nbformat.NotebookNode]]:
    """Code cells whose output nbval does not compare, by tag or by comment."""
    return [
        (n, cell)
        for n, cell in code_cells(path)
        if "nbval-ignore-output" in cell.metadata.get("tags", [])
        or re.search(r"NBVAL_(IGNORE_OUTPUT|SKIP)|PYTEST_VALIDATE_IGNORE", cell.source)
    ]


@each_chapter
def test_an_ignored_output_says_why(path):
    assert [
        n for n, cell in ignored(path) if not REASONS & set(cell.metadata.get("tags", []))
    ] == []


def test_under_five_per_cent_of_outputs_are_ignored():
    every = sum(len(code_cells(path)) for path in CHAPTERS)
    assert sum(len(ignored(path)) for path in CHAPTERS) < 0.05 * every
