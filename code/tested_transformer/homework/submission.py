"""What students handed in: find the notebooks, read their definitions as text, run none of it."""

from __future__ import annotations

import ast
import hashlib
import io
import json
import os
import re
import stat
import unicodedata
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import complain

MB = 2**20
MAX_NOTEBOOK = 20 * MB  # a notebook with its outputs
MAX_CODE = 500_000  # the Python in it: its syntax tree takes about 200 times as much memory
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
            Refused: it holds more than `most` bytes, or can not be read.
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


def find_submissions(path: str | Path) -> list[Submission]:
    """Every notebook in a folder or zip, sorted by id; what can not be read is listed with a flag.

    Folders and zips may be nested. Files that are neither notebook nor archive are passed over,
    and so is what macOS and Jupyter leave behind. Nothing is unpacked to disk, and no symbolic
    link is followed, except `path` itself. A zip at `path` is taken for a class's and may be large;
    any zip below it for one student's.

    Raises:
        FileNotFoundError: there is nothing at `path`.
        ValueError: `path` is neither folder, zip nor notebook, or the whole zip can not be read.
    """
    root = Path(os.path.realpath(path))
    if not root.exists():
        raise complain(FileNotFoundError, "path", path, "a folder or a zip of notebooks")
    if root.is_dir():
        return _with_ids(list(_in_folder(root)))
    if not (ZIP.search(root.name) or NOTEBOOK.search(root.name)):
        raise complain(ValueError, "path", path, "a folder, a zip or a notebook")
    if NOTEBOOK.search(root.name):
        return _with_ids(_in_file(root, root.name))
    budget = Budget(MAX_CLASS_ZIP, 10 * MAX_FILES, whole_class=True)
    try:
        with _open(root) as stream:
            return _with_ids(_in_zip(stream, "", root, (), budget))
    except Refused as trouble:
        raise complain(ValueError, "path", f"{path} ({trouble})", "a zip of notebooks") from None


def _in_folder(root: Path) -> Iterator[Submission]:
    """All submissions below a folder, level by level: a stack, since folders may nest deeply."""
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            place = folder.relative_to(root).as_posix()
            yield Submission(place, folder, (), "", "unreadable", _why(error))
            continue
        for entry in entries:
            file = Path(entry.path)
            place = file.relative_to(root).as_posix()
            if DEBRIS.search(place):
                continue
            if entry.is_dir(follow_symlinks=False):
                waiting.append(file)
            elif _is_wanted(place) or (entry.is_symlink() and os.path.isdir(file)):
                yield from _in_file(file, place)


def _in_file(file: Path, place: str) -> list[Submission]:
    """The submissions in one file of a folder: itself, or what its zip holds."""
    try:
        with _open(file) as stream:
            return _in_stream(stream, place, file, (), Budget())
    except Refused as trouble:
        return [Submission(place, file, (), "", trouble.flag, str(trouble))]


def _in_stream(
    stream: Any, place: str, file: Path, inside: tuple[str, ...], budget: Budget
) -> list[Submission]:
    """The submissions in an open notebook or zip. Raises Refused."""
    if OTHER_ARCHIVE.search(place):
        raise Refused("unreadable", "The file is an archive of another kind than zip.")
    if not ZIP.search(place):
        data = budget.read(stream, MAX_NOTEBOOK)
        return [Submission(place, file, inside, hashlib.sha256(data).hexdigest())]
    if len(inside) > MAX_DEPTH:
        raise Refused("unreadable", f"More than {MAX_DEPTH} zips lie in one another.")
    if inside:  # a compressed stream can not be searched: unpack it first
        stream, budget = io.BytesIO(budget.read(stream, MAX_ZIP)), budget.inner()
    found = _in_zip(stream, f"{place}/", file, inside, budget)
    if not found:
        raise Refused("no notebook", "The zip holds no notebook.")
    return found


def _in_zip(
    stream: Any, place: str, file: Path, inside: tuple[str, ...], budget: Budget
) -> list[Submission]:
    """The submissions in a zip; trouble with one entry is that entry's alone. Raises Refused."""
    found = []
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
                found += _in_stream(opened, place + name, file, path, budget)
        except Refused as trouble:
            if isinstance(trouble, OverBudget) and trouble.budget is budget:
                raise
            found.append(Submission(place + name, file, path, "", trouble.flag, str(trouble)))
    return found


def _is_wanted(name: str) -> bool:
    return any(kind.search(name) for kind in (NOTEBOOK, ZIP, OTHER_ARCHIVE))


def _safe_name(name: str) -> str:
    """A name from a zip as a relative path: no drive, no root, no step upward."""
    parts = re.sub(r"^[A-Za-z]:", "", name.replace("\\", "/")).split("/")
    return "/".join(part for part in parts if part not in ("", ".", ".."))


def _with_ids(found: list[Submission]) -> list[Submission]:
    """The same with ids: paths without extension, or with it where two would share an id."""
    found = sorted(found, key=lambda one: (one.id, one.inside, one.sentence))
    counts = Counter(_short(one.id) for one in found)
    used: Counter[str] = Counter()
    named = []
    for one in found:
        name = short = _short(one.id)
        if counts[short] > 1:
            name = full = _printable(one.id)
            while used[name]:  # names that differ only in what can not be printed
                name = f"{full}~{used[full]}"
                used[full] += 1
        used[name] += 1
        named.append(replace(one, id=name))
    return sorted(named, key=lambda one: one.id)


def _short(place: str) -> str:
    """A path without the extensions of the notebook and of the zips on the way to it."""
    *folders, name = [ZIP.sub("", part) or part for part in place.split("/")]
    return _printable("/".join([*folders, NOTEBOOK.sub("", name) or name]))


def _printable(name: str) -> str:
    """A name that can be compared and written to a table: composed accents, nothing invisible."""
    name = unicodedata.normalize("NFC", _text(name))
    return "".join(letter if letter.isprintable() else "_" for letter in name)


# ------------------------------------------------------------------------------- opening files, zips


def _why(error: OSError) -> str:
    """What the system says, without the path: students read it."""
    return f"The file can not be opened: {error.strerror or type(error).__name__}."


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


# ------------------------------------------------------------------------------------------ reading


@dataclass(frozen=True)
class CellProblem:
    """Something that was left out of a notebook, and why."""

    cell: int  # from 1, counting cells of all kinds
    message: str


@dataclass(frozen=True)
class Source:
    """What a notebook defines, as text.

    `flag` is empty for a sound notebook. "encoding" means: read all the same. With any other flag
    there is no code: "empty", "too large", "not a notebook", "no notebook", "unreadable", "no code".
    """

    code: str = ""  # definitions alone, in the order of the notebook: of one name the last one wins
    answers: dict[str, str] = field(default_factory=dict)  # markdown, by nbgrader id or by heading
    problems: tuple[CellProblem, ...] = ()
    flag: str = ""
    sentence: str = ""


def read_submission(file: Submission | str | Path) -> Source:
    """The definitions and written answers of a submission, or of a notebook on disk.

    Whatever the file holds, this returns: trouble is in `flag`, `sentence` and `problems`.
    """
    if not isinstance(file, Submission):
        file = Submission("", Path(os.path.realpath(file)))
    if file.flag:
        return Source(flag=file.flag, sentence=file.sentence)
    try:
        return read_notebook(file.read())
    except Refused as trouble:
        return Source(flag=trouble.flag, sentence=str(trouble))


def read_notebook(data: bytes) -> Source:
    """The definitions and written answers in the bytes of a notebook; never raises for bad bytes."""
    try:
        cells, encoding = _cells(data)
        if sum(len(_cell_text(cell) or "") for cell in cells if _is_code(cell)) > MAX_CODE:
            raise Refused(
                "too large", f"The notebook holds more than {MAX_CODE // 1000} kB of code."
            )
    except Refused as trouble:
        return Source(flag=trouble.flag, sentence=str(trouble))
    code, problems = _code(cells)
    answers = _answers(cells)
    if not code:
        sentence = "No cell defines anything."
        return Source("", answers, problems, "no code", sentence)
    if encoding != "utf-8":
        sentence = f"The file is not in UTF-8: it was read as {encoding}."
        return Source(code, answers, problems, "encoding", sentence)
    return Source(code, answers, problems)


def _cells(data: bytes) -> tuple[list[Any], str]:
    """The cells of a notebook in format 3 or 4, and its encoding. Raises Refused."""
    if not data.strip():
        raise Refused("empty", "The file is empty.")
    if len(data) > MAX_NOTEBOOK:
        raise Refused("too large", f"The file is larger than {MAX_NOTEBOOK // MB} MB.")
    text, encoding = _decode(data)
    try:
        notebook = json.loads(text)
    except RecursionError:
        raise Refused("not a notebook", "The file is nested too deeply.") from None
    except ValueError:
        raise Refused("not a notebook", "The file is no JSON, which a notebook is.") from None
    cells = _listed_cells(notebook)
    if cells is None:
        raise Refused("not a notebook", "The file is JSON, but not of a notebook.")
    return cells, encoding


def _decode(data: bytes) -> tuple[str, str]:
    """Bytes as text, with the name of the encoding: UTF-8 as it should be, or the likeliest."""
    encoding = json.detect_encoding(data)  # by its first bytes: UTF-8, 16 or 32, mark or none
    try:
        return data.decode(encoding), encoding
    except UnicodeDecodeError:
        return data.decode("latin-1"), "latin-1"


def _listed_cells(notebook: Any) -> list[Any] | None:
    """The list of cells, which format 3 keeps in worksheets; None if this is not a notebook."""
    if not isinstance(notebook, dict):
        return None
    if isinstance(notebook.get("cells"), list):
        return notebook["cells"]
    sheets = notebook.get("worksheets")
    if not isinstance(sheets, list) or not sheets:
        return None
    lists = [sheet.get("cells") if isinstance(sheet, dict) else None for sheet in sheets]
    if not all(isinstance(cells, list) for cells in lists):
        return None
    return [cell for cells in lists for cell in cells]


def _is_code(cell: Any) -> bool:
    return isinstance(cell, dict) and cell.get("cell_type") == "code"


def _cell_text(cell: Any) -> str | None:
    """What is written in a cell, with \\n for every end of line; None if it holds no text."""
    if not isinstance(cell, dict):
        return None
    text = cell.get("source", cell.get("input"))  # format 3 calls code "input"
    if isinstance(text, list) and all(isinstance(line, str) for line in text):
        text = "".join(text)
    if not isinstance(text, str):
        return None
    return _text(text).replace("\r\n", "\n").replace("\r", "\n")


def _text(text: str) -> str:
    """Text that can be written in UTF-8: half a surrogate pair becomes a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")


# --------------------------------------------------------------------------------------- definitions

DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
PYTHON_CELL = re.compile(r"%%(time|capture)\b.*")  # cell magics around Python of the notebook
MAGIC = re.compile(
    r"""(?: [%!]                          # %matplotlib inline, !pip install
    |  [\w.,\ ]+ = \s* (?: ! | % \s* [a-z])  # files = !ls
    |  \?{1,2} [%!\w.*]+ $               # ?softmax
    |  [%\w.*]+ \?{1,2} $                # softmax??
    )""",
    re.VERBOSE,
)
MAX_MAGICS = 50  # lines in a cell: each costs a parse


def _code(cells: list[Any]) -> tuple[str, tuple[CellProblem, ...]]:
    """The definitions of all code cells in one text, and what was left out of them."""
    future, parts, problems = [], [], []
    for number, cell in enumerate(cells, start=1):
        if not _is_code(cell):
            continue
        text = _cell_text(cell)
        if text is None:
            problems.append(CellProblem(number, "the cell holds no text"))
            continue
        try:
            kept, lost = _definitions(text)
        except SyntaxError as error:
            place = f"line {error.lineno}: " if error.lineno else ""
            problems.append(CellProblem(number, _text(f"{place}{error.msg}")))
            continue
        problems += [CellProblem(number, message) for message in lost]
        # A notebook may import from __future__ in any cell, a module only at its top.
        future += [part for part in kept if part.startswith("from __future__")]
        kept = [part for part in kept if not part.startswith("from __future__")]
        if kept:
            parts.append("\n".join([f"# cell {number}", *kept]))
    text = "\n\n".join(["\n".join(dict.fromkeys(future)), *parts])
    return (f"{text.strip()}\n" if parts else ""), tuple(problems)


def _definitions(text: str) -> tuple[list[str], list[str]]:
    """The text of each definition in a cell, and a message for each that can not be kept.

    Raises:
        SyntaxError: the cell is not Python, or has what no module may have.
    """
    text, tree = _parse(text)
    lines = [line.encode() for line in text.split("\n")]
    kept = [_statement(lines, node) for node in tree.body if _is_definition(node)]
    try:
        _compile("\n".join(kept), whole=True)
    except SyntaxError as error:
        raise SyntaxError(error.msg) from None  # its line is not one of the cell
    lost = [message for node in tree.body if (message := _lost(node))]
    return kept, lost


def _is_definition(node: ast.stmt) -> bool:
    """An import, a function, a class, or an assignment to plain names (not `a.b = 1`, `a[0] = 1`)."""
    if isinstance(node, (*DEFINITIONS, *([ast.TypeAlias] if hasattr(ast, "TypeAlias") else []))):
        return True
    if isinstance(node, ast.AnnAssign):
        return isinstance(node.target, ast.Name)
    if not isinstance(node, ast.Assign):
        return False
    names = (ast.Name, ast.Tuple, ast.List, ast.Starred, ast.expr_context)
    return all(isinstance(part, names) for target in node.targets for part in ast.walk(target))


def _lost(node: ast.stmt) -> str:
    """A message if a statement that is left out, such as an `if`, would have defined something."""
    if _is_definition(node):
        return ""
    names = []
    for part in ast.walk(node):
        if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.append(part.name)
        elif isinstance(part, (ast.Import, ast.ImportFrom)):
            names += [alias.asname or alias.name for alias in part.names]
    kind = type(node).__name__.lower()
    listed = ", ".join(names[:5])
    return f"line {node.lineno}: left out, being inside `{kind}`: {listed}" if names else ""


def _statement(lines: list[bytes], node: Any) -> str:
    """A statement of a cell as it was written, from its first decorator on."""
    if isinstance(node, ast.ImportFrom) and node.module == "__future__":
        return ast.unparse(node)  # in one spelling, by which it is known later
    first, start = node.lineno - 1, node.col_offset
    if getattr(node, "decorator_list", None):
        first, start = node.decorator_list[0].lineno - 1, 0
        while not lines[first].lstrip().startswith(b"@"):
            first -= 1
    last = node.end_lineno - 1
    taken = lines[first : last + 1]
    taken[-1] = taken[-1][: node.end_col_offset]
    taken[0] = taken[0][start:]
    return b"\n".join(taken).decode()


def _parse(text: str) -> tuple[str, ast.Module]:
    """The tree of a cell and the text it is of, in which each IPython line became `pass`.

    A line is taken for IPython's only where Python stumbles: `% b` may go on from a line before.

    Raises:
        SyntaxError: the cell is not Python.
    """
    first = text.lstrip().partition("\n")[0]
    if first.startswith("%%"):
        if not PYTHON_CELL.fullmatch(first):
            return "", ast.parse("")
        text = text.replace(first, "", 1)
    lines = text.split("\n")
    for _ in range(MAX_MAGICS):
        try:
            return "\n".join(lines), _compile("\n".join(lines))
        except SyntaxError as error:
            at = (error.lineno or 0) - 1
            if not 0 <= at < len(lines) or not MAGIC.match(lines[at].strip()[:1000]):
                raise
            _pass_over(lines, at)
    raise SyntaxError(f"more than {MAX_MAGICS} lines are not Python")


def _pass_over(lines: list[str], at: int) -> None:
    """Put `pass` in the place of a line, and nothing in that of the lines that continue it."""
    goes_on = lines[at].endswith("\\")
    lines[at] = lines[at][: len(lines[at]) - len(lines[at].lstrip())] + "pass"
    while goes_on and at + 1 < len(lines):
        at += 1
        goes_on = lines[at].endswith("\\")
        lines[at] = ""


def _compile(text: str, whole: bool = False) -> Any:
    """The syntax tree of a text; `whole` also checks what only shows later, such as a stray yield.

    Raises:
        SyntaxError: whatever is wrong, depth and null bytes included.
    """
    flags = 0 if whole else ast.PyCF_ONLY_AST
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\d" in a student's string is not our warning
            return compile(text, "notebook", "exec", flags=flags, dont_inherit=True)
    except (RecursionError, MemoryError):
        raise SyntaxError("the code is nested too deeply") from None
    except ValueError as error:  # of null bytes, before Python 3.11.4
        raise SyntaxError(str(error)) from None


# ------------------------------------------------------------------------------------------- answers

HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(.*)")
FENCE = re.compile(r" {0,3}(```|~~~)")


def _answers(cells: list[Any]) -> dict[str, str]:
    """The markdown of a notebook: by nbgrader's id where there is one, else by the heading above."""
    found: dict[str, list[str]] = {}
    heading = ""
    for cell in cells:
        text = _cell_text(cell)
        if text is None or cell.get("cell_type") not in ("markdown", "heading"):
            continue
        if cell["cell_type"] == "heading":  # format 3
            heading = text.strip()
            continue
        sections = _sections(text, heading)
        heading = sections[-1][0]
        name = _nbgrader_id(cell)
        if name is not None:  # one answer as a whole, or with no name the words of a question
            sections = [(name, [text])] if name else []
        for title, lines in sections:
            found.setdefault(title, []).append("\n".join(lines).strip())
    joined = {name: "\n\n".join(filter(None, parts)) for name, parts in found.items()}
    return {name: text for name, text in joined.items() if text}


def _nbgrader_id(cell: dict) -> str | None:
    """The id of a cell to fill in, "" for another cell that nbgrader marked, None for the rest."""
    metadata = cell.get("metadata")
    nbgrader = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    if not isinstance(nbgrader, dict):
        return None
    if not nbgrader.get("solution"):
        return ""
    name = nbgrader.get("grade_id")
    return _text(name) if isinstance(name, str) and name else None


def _sections(text: str, heading: str) -> list[tuple[str, list[str]]]:
    """The lines of a markdown cell under each of its headings; `heading` is the one above it."""
    sections: list[tuple[str, list[str]]] = [(heading, [])]
    fenced = False
    for line in text.split("\n"):
        fenced ^= bool(FENCE.match(line))
        if not fenced and (match := HEADING.match(line)):
            sections.append((match[1].strip(), []))
        else:
            sections[-1][1].append(line)
    return sections


# ----------------------------------------------------------------------------------- forbidden calls

MAX_ROUNDS = 10  # over all assignments: an alias may be written above the name that it stands for
CUSTOM = {"F": "torch.nn.functional", "nn": "torch.nn", "np": "numpy"}


def uses(source: Source, name: str) -> bool:
    """Whether the code refers to a library function by its dotted name, under whatever alias.

    `name` may begin with F, nn or np in their usual sense. Seen are imports and their aliases,
    `from ... import *`, names given by assignment, getattr with a literal, and import_module and
    __import__ with a literal, anywhere in the code; importing alone is no use.

    Not seen: eval and exec, names put together at run time, `vars(F)[...]`, modules kept in lists,
    tuples or attributes, a module handed to a function as an argument, the same function under
    another of the library's names (such as torch._C._nn), and a library function that calls it
    inside. Where one name means two things in different places, both are assumed: a True deserves
    a look by a person.

    Raises:
        ValueError: `name` is not a dotted name.
        SyntaxError: the code of `source` is not Python, which no source read from a notebook is.
    """
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", name):
        raise complain(ValueError, "name", repr(name), "a dotted name such as F.softmax")
    first, _, rest = name.partition(".")
    names = _Names(f"{CUSTOM.get(first, first)}.{rest}")
    nodes = list(ast.walk(_compile(source.code)))
    for node in nodes:
        names.add_import(node)
    for _ in range(MAX_ROUNDS):
        if not sum(names.add_assignment(node) for node in nodes):
            break
    read = [node for node in nodes if isinstance(getattr(node, "ctx", ast.Load()), ast.Load)]
    return any(names.target in names.meanings(node) for node in read)


class _Names:
    """What each name in a code may mean, as far as it matters for one target."""

    def __init__(self, target: str):
        self.target = target
        self.known: dict[str, set[str]] = {"__import__": {"__import__"}, "getattr": {"getattr"}}
        self.stars: set[str] = set()

    def matters(self, path: str) -> bool:
        """Whether a dotted path may lead to the target."""
        ends = (self.target, "importlib.import_module", "__import__", "getattr")
        return any(f"{end}.".startswith(f"{path}.") for end in ends)

    def add_import(self, node: ast.AST) -> None:
        """Note what an import binds."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                path = alias.name if alias.asname else alias.name.partition(".")[0]
                self.add(alias.asname or path, {path})
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if alias.name == "*" and self.matters(node.module):
                    self.stars.add(node.module)
                elif alias.name != "*":
                    self.add(alias.asname or alias.name, {f"{node.module}.{alias.name}"})

    def add_assignment(self, node: ast.AST) -> bool:
        """Note what an assignment binds; True if that was news."""
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value:
            targets = [node.target]
        else:
            return False
        meanings = self.meanings(node.value)
        return sum(self.add(t.id, meanings) for t in targets if isinstance(t, ast.Name)) > 0

    def add(self, name: str, paths: set[str]) -> bool:
        """Add meanings of a name; True if one was new. Paths that lead nowhere are dropped."""
        known = self.known.setdefault(name, set())
        new = {path for path in paths if self.matters(path)} - known
        known |= new
        return bool(new)

    def meanings(self, node: ast.AST | None, depth: int = 0) -> set[str]:
        """The dotted paths that an expression may stand for."""
        if depth > 20:  # longer than any path that matters: a tree may be deeper than our stack
            return set()
        if isinstance(node, ast.Name):
            return self.known.get(node.id, set()) | {f"{star}.{node.id}" for star in self.stars}
        if isinstance(node, ast.NamedExpr):
            return self.meanings(node.value, depth + 1)
        if isinstance(node, ast.Attribute):
            return {f"{path}.{node.attr}" for path in self.meanings(node.value, depth + 1)}
        return self.of_call(node, depth) if isinstance(node, ast.Call) else set()

    def of_call(self, node: ast.Call, depth: int) -> set[str]:
        """The paths that getattr, import_module or __import__ gives, where literals say so."""
        words = [arg.value if isinstance(arg, ast.Constant) else None for arg in node.args]
        function = self.meanings(node.func, depth + 1)
        if "getattr" in function and len(words) > 1 and isinstance(words[1], str):
            return {f"{path}.{words[1]}" for path in self.meanings(node.args[0], depth + 1)}
        if words and isinstance(words[0], str):
            if "importlib.import_module" in function:
                return {words[0]}
            if "__import__" in function:
                return {words[0].partition(".")[0]}
        return set()
