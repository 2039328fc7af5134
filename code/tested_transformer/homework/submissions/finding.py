"""What students handed in: every notebook in a folder or zip, or the reason why it is not read."""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from ...errors import argument_error
from ...shapes import checked

__all__ = ["Submission", "find_submissions"]

MB = 2**20
MAX_NOTEBOOK = 20 * MB  # a notebook with its outputs
MAX_ZIP = 200 * MB  # what is unpacked from one student's zip
MAX_CLASS_ZIP = 20_000 * MB  # from the zip that the instructor names
MAX_FILES = 10_000  # listed in one student's zip; ten times as many in the instructor's
MAX_DEPTH = 3  # zips in zips

NOTEBOOK = re.compile(r"\.ipynb(\.(txt|json))?$", re.IGNORECASE)  # some browsers add .txt
ZIP = re.compile(r"\.zip$", re.IGNORECASE)
OTHER_ARCHIVE = re.compile(r"\.(rar|7z|tar|gz|tgz|bz2|xz)$", re.IGNORECASE)
DEBRIS = re.compile(r"(^|/)(__MACOSX|\.ipynb_checkpoints|\.DS_Store|\._[^/]*)(/|$)")


class Refused(ValueError):
    """A file that is not read; `flag` is a word for a table, the message a sentence for people."""

    def __init__(self, flag: str, sentence: str):
        super().__init__(sentence)
        self.flag = flag


class OverBudget(Refused):
    """A zip that unpacks to more than its budget: nothing of it is read."""

    def __init__(self, budget: Budget, sentence: str):
        super().__init__("too large", sentence)
        self.budget = budget


@dataclass
class Budget:
    """What may still be unpacked from one zip and from the zips in it."""

    size: int = MAX_ZIP
    files: int = MAX_FILES
    whole_class: bool = False

    def inner(self) -> Budget:
        """The budget of a zip inside: a student's own, so that one bomb harms no other student."""
        return Budget() if self.whole_class else self

    def list_files(self, count: int) -> None:
        """Count the files that a zip lists. Raises OverBudget."""
        self.files -= count
        if self.files < 0:
            raise OverBudget(self, "The zip holds too many files.")

    def read(self, stream: Any, most: int) -> bytes:
        """All of a stream, never trusting a size that its header claims.

        Raises:
            Refused: it holds more than `most` bytes, or cannot be read.
            OverBudget: it holds more than the budget has left.
        """
        try:
            data = stream.read(min(most, self.size) + 1)
        except Exception:  # a disk's error, or one of the many of a hostile zip
            raise Refused("unreadable", "The file is broken, or the zip around it.") from None
        if len(data) > self.size:
            raise OverBudget(self, "The zip unpacks to too many bytes.")
        if len(data) > most:
            raise Refused("too large", f"The file is larger than {most // MB} MB.")
        self.size -= len(data)
        return data


@dataclass(frozen=True)
class Submission:
    """One notebook that was handed in, or one file that should have been one."""

    id: str  # its path inside the folder or zip, without the extension
    file: Path  # on disk: the notebook, or the zip that holds it
    inside: tuple[str, ...] = ()  # names within that zip, and within zips in it
    digest: str = ""  # SHA-256 of the notebook's bytes; empty where it could not be read
    flag: str = ""  # why it could not be read, in a word...
    sentence: str = ""  # ...and in a sentence; both empty where all is well

    def read(self) -> bytes:
        """The bytes of the notebook. Raises Refused."""
        budget = Budget(MAX_CLASS_ZIP)
        with _open(self.file) as stream:
            if not self.inside:
                return budget.read(stream, MAX_NOTEBOOK)
            for name in self.inside[:-1]:
                stream = io.BytesIO(_unpack(_zip(stream), name, budget, MAX_ZIP))
            return _unpack(_zip(stream), self.inside[-1], budget, MAX_NOTEBOOK)


# ------------------------------------------------------------------------------------------ finding


@checked
def find_submissions(path: str | Path) -> list[Submission]:
    """Every notebook in a folder or zip, sorted by id; what cannot be read is listed with a flag.

    Folders and zips may be nested. Files that are neither notebook nor archive are passed over,
    and so is what macOS and Jupyter leave behind. Nothing is unpacked to disk, and no symbolic
    link is followed, except `path` itself. A zip at `path` is taken for a class's and may be large;
    any zip below it for one student's.

    Raises:
        FileNotFoundError: there is nothing at `path`.
        ValueError: `path` is neither folder, zip nor notebook, or the whole zip cannot be read.
    """
    root = Path(os.path.realpath(path))
    if not root.exists():
        raise argument_error(FileNotFoundError, "path", path, "a folder or a zip of notebooks")
    if root.is_dir():
        return _with_ids(list(_in_folder(root)))
    if not (ZIP.search(root.name) or NOTEBOOK.search(root.name)):
        raise argument_error(ValueError, "path", path, "a folder, a zip or a notebook")
    if NOTEBOOK.search(root.name):
        return _with_ids(_in_file(root, root.name))
    budget = Budget(MAX_CLASS_ZIP, 10 * MAX_FILES, whole_class=True)
    try:
        with _open(root) as stream:
            return _with_ids(_in_zip(stream, "", root, (), budget))
    except Refused as trouble:
        raise argument_error(
            ValueError, "path", f"{path} ({trouble})", "a zip of notebooks"
        ) from None


def passed_over(path: str | Path) -> list[str]:
    """The files in a folder or zip that are neither notebook nor archive: handed in, and not marked.

    What is in zips inside is not listed.
    """
    root = Path(os.path.realpath(path))
    if root.is_dir():
        names = [file.relative_to(root).as_posix() for file in root.rglob("*") if file.is_file()]
    elif ZIP.search(root.name):
        with _open(root) as stream:
            names = [name for name in _zip(stream).namelist() if not name.endswith("/")]
    else:
        names = []
    return sorted(_printable(n) for n in names if not _is_wanted(n) and not DEBRIS.search(n))


def _in_folder(root: Path) -> Iterator[Submission]:
    """All submissions below a folder, level by level: a stack, since folders may nest deeply."""
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            path = folder.relative_to(root).as_posix()
            yield Submission(path, folder, (), "", "unreadable", _why(error))
            continue
        for entry in entries:
            file = Path(entry.path)
            path = file.relative_to(root).as_posix()
            if DEBRIS.search(path):
                continue
            if entry.is_dir(follow_symlinks=False):
                waiting.append(file)
            elif _is_wanted(path) or (entry.is_symlink() and os.path.isdir(file)):
                yield from _in_file(file, path)


def _in_file(file: Path, path: str) -> list[Submission]:
    """The submissions in one file of a folder: itself, or what its zip holds."""
    try:
        with _open(file) as stream:
            return _in_stream(stream, path, file, (), Budget())
    except Refused as trouble:
        return [Submission(path, file, (), "", trouble.flag, str(trouble))]


def _in_stream(
    stream: Any, path: str, file: Path, inside: tuple[str, ...], budget: Budget
) -> list[Submission]:
    """The submissions in an open notebook or zip. Raises Refused."""
    if OTHER_ARCHIVE.search(path):
        raise Refused("unreadable", "The file is an archive of another kind than zip.")
    if not ZIP.search(path):
        data = budget.read(stream, MAX_NOTEBOOK)
        return [Submission(path, file, inside, hashlib.sha256(data).hexdigest())]
    if len(inside) > MAX_DEPTH:
        raise Refused("unreadable", f"More than {MAX_DEPTH} zips lie in one another.")
    if inside:  # a compressed stream cannot be searched: unpack it first
        stream, budget = io.BytesIO(budget.read(stream, MAX_ZIP)), budget.inner()
    submissions = _in_zip(stream, f"{path}/", file, inside, budget)
    if not submissions:
        raise Refused("no notebook", "The zip holds no notebook.")
    return submissions


def _in_zip(
    stream: Any, parent: str, file: Path, inside: tuple[str, ...], budget: Budget
) -> list[Submission]:
    """The submissions in a zip; trouble with one entry is that entry's alone. Raises Refused."""
    submissions = []
    archive = _zip(stream)
    entries = archive.infolist()
    budget.list_files(len(entries))
    twice = {name for name, count in Counter(e.filename for e in entries).items() if count > 1}
    for entry in {entry.filename: entry for entry in entries}.values():
        name = _safe_name(entry.filename)
        is_folder = entry.filename.endswith("/")  # is_dir() of an empty name is an IndexError
        if is_folder or DEBRIS.search(name) or not _is_wanted(name):
            continue
        path = (*inside, entry.filename)
        try:
            if entry.filename in twice:
                raise Refused("unreadable", "The zip holds two files of this name.")
            with _open_entry(archive, entry) as opened:
                submissions += _in_stream(opened, parent + name, file, path, budget)
        except Refused as trouble:
            if isinstance(trouble, OverBudget) and trouble.budget is budget:
                raise
            submissions.append(
                Submission(parent + name, file, path, "", trouble.flag, str(trouble))
            )
    return submissions


def _is_wanted(name: str) -> bool:
    return any(kind.search(name) for kind in (NOTEBOOK, ZIP, OTHER_ARCHIVE))


def _safe_name(name: str) -> str:
    """A name from a zip as a relative path: no drive, no root, no step upward."""
    parts = re.sub(r"^[A-Za-z]:", "", name.replace("\\", "/")).split("/")
    return "/".join(part for part in parts if part not in ("", ".", ".."))


def _with_ids(submissions: list[Submission]) -> list[Submission]:
    """The same with ids: paths without extension, or with it where two would share an id."""
    submissions = sorted(submissions, key=lambda one: (one.id, one.inside, one.sentence))
    counts = Counter(_short(one.id) for one in submissions)
    used: Counter[str] = Counter()
    named = []
    for one in submissions:
        name = short = _short(one.id)
        if counts[short] > 1:
            name = full = _printable(one.id)
            while used[name]:  # names that differ only in what cannot be printed
                name = f"{full}~{used[full]}"
                used[full] += 1
        used[name] += 1
        named.append(replace(one, id=name))
    return sorted(named, key=lambda one: one.id)


def _short(path: str) -> str:
    """A path without the extensions of the notebook and of the zips on the way to it."""
    *folders, name = [ZIP.sub("", part) or part for part in path.split("/")]
    return _printable("/".join([*folders, NOTEBOOK.sub("", name) or name]))


def _printable(name: str) -> str:
    """A name that can be compared and written to a table: composed accents, nothing invisible."""
    name = unicodedata.normalize("NFC", writable(name))
    return "".join(letter if letter.isprintable() else "_" for letter in name)


def writable(text: str) -> str:
    """Text that can be written in UTF-8: half a surrogate pair becomes a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")


# ------------------------------------------------------------------------------- opening files, zips


def _why(error: OSError) -> str:
    """What the system says, without the path: students read it."""
    return f"The file cannot be opened: {error.strerror or type(error).__name__}."


def _open(file: Path) -> BinaryIO:
    """Open a regular file, never a link and never a pipe that waits. Raises Refused."""
    if file.is_symlink():  # Windows has no O_NOFOLLOW
        raise Refused("unreadable", "This is a symbolic link: the file itself is needed.")
    flags = os.O_RDONLY
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):
        flags |= getattr(os, name, 0)
    try:
        descriptor = os.open(file, flags)
    except OSError as error:
        raise Refused("unreadable", _why(error)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Refused("unreadable", "This is no regular file.")
    return os.fdopen(descriptor, "rb")


def _zip(stream: Any) -> zipfile.ZipFile:
    """Open a zip. Raises Refused."""
    try:
        return zipfile.ZipFile(stream)
    except Exception:  # hostile bytes reach many corners of zipfile, each with an error of its own
        raise Refused("unreadable", "The zip is broken.") from None


def _open_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Any:
    """Open a file in a zip. Raises Refused."""
    name = entry.filename.replace("\\", "/")
    if name.startswith("/") or re.match("[A-Za-z]:", name) or ".." in name.split("/"):
        raise Refused("unreadable", "Its name in the zip leads out of the folder.")
    if stat.S_ISLNK(entry.external_attr >> 16):
        raise Refused("unreadable", "This is a symbolic link: the file itself is needed.")
    if entry.flag_bits & 1:
        raise Refused("unreadable", "The zip is encrypted.")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise Refused("unreadable", "The zip is compressed in an unusual way.")
    try:
        return archive.open(entry)
    except Exception:  # as in _zip
        raise Refused("unreadable", "The zip is broken.") from None


def _unpack(archive: zipfile.ZipFile, name: str, budget: Budget, most: int) -> bytes:
    """The bytes of a file in a zip. Raises Refused."""
    try:
        entry = archive.getinfo(name)
    except KeyError:
        raise Refused("unreadable", "The zip has changed while it was read.") from None
    with _open_entry(archive, entry) as opened:
        return budget.read(opened, most)
