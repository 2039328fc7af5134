"""Copy what nbgrader collected, a notebook for each student, to where the grader looks."""

from __future__ import annotations

from pathlib import Path

from ...errors import argument_error
from ...reader.saved_parts import replace_whole
from .finding import MAX_NOTEBOOK, Refused


def collect(course: str | Path, assignment: str, out: str | Path) -> tuple[list[str], list[str]]:
    """Copy COURSE/submitted/STUDENT/ASSIGNMENT/*.ipynb to OUT/STUDENT.ipynb; links are not followed.

    Of several notebooks in a folder the one with the assignment's name is taken, and none if there is none.
    Returns the students whose notebook was copied, and those of whom there is none.

    Raises: FileNotFoundError if nothing was collected there; ValueError if `out` has other notebooks.
    """
    submitted, out = Path(course) / "submitted", Path(out)
    folders = sorted(
        path for path in submitted.glob("*") if path.is_dir() and not path.is_symlink()
    )
    if not folders:
        wanted = "nbgrader's course folder after `nbgrader collect` or `nbgrader zip_collect`"
        raise argument_error(FileNotFoundError, "course", course, wanted)
    names = {folder.name for folder in folders}
    if others := [file.name for file in out.glob("*.ipynb") if file.stem not in names]:
        came = f"{out}, with {others[0]}"
        raise argument_error(ValueError, "out", came, "an empty folder, or one of this command")
    copied, without = [], []
    for folder in folders:
        try:
            data = _notebook(folder / assignment, assignment)
        except (OSError, Refused):
            without.append(folder.name)
            continue
        out.mkdir(parents=True, exist_ok=True)
        replace_whole(out / f"{folder.name}.ipynb", data, mode=0o644)
        copied.append(folder.name)
    return copied, without


def _notebook(folder: Path, assignment: str) -> bytes:
    """The bytes of a student's notebook. Raises OSError, Refused."""
    found = [path for path in sorted(folder.glob("*.ipynb")) if not path.is_symlink()]
    named = [path for path in found if path.stem == assignment] or (
        found if len(found) == 1 else []
    )
    if not named or folder.is_symlink():
        raise FileNotFoundError(folder)
    if named[0].stat().st_size > MAX_NOTEBOOK:
        raise Refused("too large", "The file is too large.")
    return named[0].read_bytes()
