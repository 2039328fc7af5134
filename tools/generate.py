"""Write the pages that are made from the package and the chapters.

    book/generated/gallery.md     the names of every famous mistake, each with a link to its entry
    book/generated/gallery_*.md   the entries, from the Specs, a page for each chapter
    book/generated/interview.md   book/interview, and the cells tagged `interview`, from the chapters
    book/generated/api.md         the public names, each with a link to its entry
    book/generated/api_*.md       the entries, a page for each folder of the package
    book/generated/contract.md    what a whole model is asked, for "Test your own model"
    book/generated/adapter.md     how the contract calls a model of one's own
    book/generated/catches.md     which of its properties catches which bug, from benchmarks/results
    book/generated/zoo.md         which model families keep it, from benchmarks/results and zoo_notes.yml
    book/generated/systems.md     every architecture of the book and where it is, from book/systems.yml
    book/generated/course.md      the assignments, for the page of the instructors
    book/generated/last_run.md    what the last recorded test run gave, from book/tested.json
    book/generated/cite.md        the entry for a bibliography, from CITATION.cff
    book/generated/front_picture.md, chapter_map.md, chapter_list.md    parts of the first page

Usage: python tools/generate.py
"""

import importlib
import inspect
import json
import re
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from types import ModuleType

import yaml

import anchors
import chapter_map
from chapters import ROOT, chapter_paths, core_paths, heading, number, read

PACKAGE = "tested_transformer"
QUESTIONS = ROOT / "book" / "interview"  # a file for each chapter, by the chapter's name
BENCHMARKS = ROOT / "benchmarks"
SYSTEMS = ROOT / "book" / "systems.yml"
RECORD = ROOT / "book" / "tested.json"  # written by tools/run_tests.py --record
CHAPTERS = "../../chapters"  # as seen from book/generated
LABEL = re.compile(r"^\(([\w:.-]+)\)=\n", re.MULTILINE)  # (name)= before a heading or paragraph
MADE_HERE = "made for this book"  # what a mutant says that was seen nowhere
PROJECTS = {  # as they are called for short
    "pytorch": "pytorch/pytorch", "tensorflow": "tensorflow/tensorflow", "d2l": "d2l-ai/d2l-en",
    "x-transformers": "lucidrains/x-transformers", "flashinfer": "flashinfer-ai/flashinfer",
    "ultralytics": "ultralytics/ultralytics", "objax": "google/objax",
}  # fmt: skip
ISSUES = re.compile(
    rf"(?<![\w/-])(?P<project>[\w.-]+/[\w.-]+|{'|'.join(PROJECTS)}) (?P<kind>issues?|pull requests?|PRs)"
    r" (?P<numbers>\d+(?:(?:, | and )\d+)*)"
)
THREAD = re.compile(r"([\w.-]+/[\w.-]+) (?:PR )?(\d+)")  # as tests/wrong_models.py names them
LINKED = r"[\1#\2](https://github.com/\1/issues/\2)"  # GitHub leads on to a pull request
OPTION = re.compile(r"^:(?:name|label): *([\w:.-]+)$", re.MULTILINE)  # of a directive


def link(path: Path) -> str:
    """Return a link to a chapter with the chapter's title as its text."""
    return f"[]({_place(path)})"


def _place(path: Path) -> str:
    """Where a chapter or a deeper page is, as seen from book/generated."""
    return f"{CHAPTERS}/{'deeper/' * (path.parent.name == 'deeper')}{path.name}"


# ------------------------------------------------------------------------------ the pitfall gallery


def by_chapter(specs: dict) -> dict[int, list[tuple]]:
    """Every mutant with its Spec, those of one chapter together.

    Raises: ValueError for two mutants of one name.
    """
    found = defaultdict(list)
    for spec in specs.values():
        for mutant in spec.mutants:
            found[mutant.chapter].append((spec, mutant))
    names = [mutant.name for pairs in found.values() for _, mutant in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"two mutants share a name, and so an anchor: {', '.join(twice)}")
    return dict(sorted(found.items()))


def gallery(mistakes: dict[int, list[tuple]], files: dict[int, Path], promised: set[str]) -> str:
    """Every mutant with a link to its entry.

    The entries stood on this page once: `promised` has the names by which others may link to them here.
    """
    every = [mutant for pairs in mistakes.values() for _, mutant in pairs]
    made = sum(mutant.seen == MADE_HERE for mutant in every)
    running = sum(mutant.candidate is not None for mutant in every)
    page = [
        "# The pitfall gallery",
        f"{len(every):,} mistakes: {len(every) - made:,} seen in public, with the place, and {made} made for this "
        f"book because the checks must tell them apart. {running:,} of them are small wrong implementations in "
        "the package, and the tests prove that the check named with each rejects it. When your own function "
        "fails an exercise, it is compared with the mistakes of that exercise.",
    ]
    lost = promised - {place for mutant in every for place in _places(mutant.name)}
    if lost:
        raise ValueError(f"the gallery promised places that are gone: {', '.join(sorted(lost))}")
    for chapter, pairs in mistakes.items():
        rows = [_listed(mutant.name, promised) for _, mutant in pairs]
        page.append(f"## [{_chapter_title(chapter, files)}](gallery_{chapter:02}.md)")
        page.append(f":::{{dropdown}} {len(rows)} mistakes\n{chr(10).join(rows)}\n:::")
    return "\n\n".join(page) + "\n"


def _listed(name: str, promised: set[str]) -> str:
    old = [f'<span id="{place}"></span>' for place in _places(name) if place in promised]
    return f"- {''.join(old)}[{_title(name)}](#{_anchor(name)})"


def _chapter_title(chapter: int, files: dict[int, Path]) -> str:
    return heading(files[chapter]) if chapter in files else f"Chapter {chapter}"


def mistakes_of(chapter: int, pairs: list[tuple], files: dict[int, Path]) -> str:
    """The entries of a chapter's mutants."""
    chapter_link = f" of {link(files[chapter])}" if chapter in files else ""
    page = [
        f"# Pitfalls: {_chapter_title(chapter, files)}",
        f"The {len(pairs)} mistakes{chapter_link} in the [gallery](gallery.md).",
        "*Seen* names a project and its issue, or the **source notes**: the Chinese study notes from "
        "which this book grew, as file and line (001:644 is line 644 of file 001).",
        *(_mutant(spec, mutant) for spec, mutant in pairs),
    ]
    return "\n\n".join(page) + "\n"


def _mutant(spec, mutant) -> str:
    labels = "".join(f"({place})=\n" for place in reversed(_places(mutant.name)))
    blocks = [
        f"{labels}## {_title(mutant.name)}",
        f"**Symptom.** {_sentence(mutant.symptom)}",
        f"**Cause.** {_sentence(mutant.cause)}",
        f"**Seen.** {_seen(mutant.seen)}",
        f"**Caught by.** {_caught(spec, mutant)}",
    ]
    source = _source(mutant.candidate)
    if source:
        blocks.append(f":::{{dropdown}} The wrong code\n```python\n{source}\n```\n:::")
    return "\n\n".join(blocks)


def _caught(spec, mutant) -> str:
    """The check and its explanation, or the exception, or why no judge sees it."""
    for check in spec.checks:
        if check.name == mutant.rejected_by:
            return f"*{check.name}*, a check of `{spec.name}`. {_sentence(check.explain)}"
    if re.fullmatch(r"\w+(Error|Exception)", mutant.rejected_by):
        return f"`{mutant.rejected_by}`, which it raises when the judge of `{spec.name}` calls it."
    return _sentence(mutant.rejected_by)


def _seen(places: str) -> str:
    """Where a mistake was seen, with links to the issues."""
    if places == MADE_HERE:
        return "Not in public: it was made for this book."
    return _sentence(ISSUES.sub(_linked, places))


def _linked(found: re.Match) -> str:
    """The numbers of issues as links; GitHub leads on from an issue to a pull request."""
    repository = PROJECTS.get(found["project"], found["project"])
    address = f"https://github.com/{repository}/issues/"
    numbers = re.sub(r"\d+", rf"[\g<0>]({address}\g<0>)", found["numbers"])
    return f"{found['project']} {found['kind']} {numbers}"


def _source(candidate) -> str:
    """The mutant's source code, or nothing for a mutant without code."""
    if candidate is None:
        return ""
    show = importlib.import_module(f"{PACKAGE}.reader.show")
    wrong = (
        candidate if inspect.isroutine(candidate) or inspect.isclass(candidate) else type(candidate)
    )
    return show.without_labels(show.source_of(wrong))


def _anchor(name: str) -> str:
    return "pitfall-" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _places(name: str) -> list[str]:
    """The anchor of a mistake, and those of the names that it had before."""
    return [_anchor(each) for each in (name, *_former_names().get(name, []))]


@cache
def _former_names() -> dict[str, list[str]]:
    return yaml.safe_load((ROOT / "book" / "pitfall_names.yml").read_text(encoding="utf-8"))


def _title(name: str) -> str:
    return name if re.search(r"\W\w*[.(_]|^\w+[.(_]", name) else name[:1].upper() + name[1:]


def _sentence(text: str) -> str:
    text = " ".join(text.split())  # not capitalized: it may begin with code or a project's name
    return text if text.endswith((".", "!", "?")) else text + "."


# ---------------------------------------------------------------------------- interview questions


def interview(paths: list[Path]) -> str:
    """The questions of book/interview and the cells tagged `interview`, chapter by chapter.

    A link in them is as in the chapter itself.
    """
    page = [
        "# Interview questions",
        "Collected from the chapters, in English and Chinese. Answer aloud before you open an answer; "
        "each links to the cell that proves it.",
    ]
    for path in paths:
        cells = read(path).cells
        labels = _labels(cells)
        tagged = [cell.source for cell in cells if "interview" in cell.metadata.get("tags", [])]
        written = QUESTIONS / f"{path.stem}.md"
        tagged += [written.read_text(encoding="utf-8")] if written.exists() else []
        if tagged:
            page.append(f"## {heading(path)}\n\nFrom {link(path)}.")
            page += [_moved(source, path, labels) for source in tagged]
    return "\n\n".join(page) + "\n"


def _moved(source: str, path: Path, labels: set[str]) -> str:
    """A cell as it reads on another page: links lead back, labels are not defined twice."""

    def back(found: re.Match) -> str:
        target = found[1]
        if target.startswith("#"):  # a label is known in the whole book, a heading only on its page
            return f"]({target if target[1:] in labels else f'{_place(path)}{target}'})"
        if target.startswith("../book/"):
            return f"](../{target.removeprefix('../book/')})"
        return f"]({CHAPTERS}/{target})"

    source = LABEL.sub("", source)
    source = re.sub(r"^#{1,2} ", "### ", source, flags=re.MULTILINE)
    return re.sub(r"\]\((?![a-z]+:)([^)\s]+)\)", back, source)


def _labels(cells: list) -> set[str]:
    """The names that the chapter gives to places, figures and equations."""
    labels = {cell.metadata.get("mystnb", {}).get("figure", {}).get("name") for cell in cells}
    for cell in cells:
        labels.update(LABEL.findall(cell.source), OPTION.findall(cell.source))
    return labels


# ------------------------------------------------------------------------------- the API reference


def api(modules: dict[str, list[str]], promised: set[str]) -> str:
    """Every public name with a link to its entry.

    The entries stood on this page once: `promised` has the names by which others may link to them here.
    """
    page = [
        "# API reference",
        "The public names of the companion package, module by module. Each function says "
        "its shapes, what it raises and where it comes from.",
    ]
    old = defaultdict(list)
    for place in sorted(promised):
        old[place.removeprefix("api-").split(".")[0]].append(place)
    for folder, inside in folders(modules).items():
        page.append(f"## [{folder}](api_{folder}.md)")
        for module, members in inside.items():
            links = ", ".join(_entry_link(folder, member, old[member]) for member in members)
            page.append(f"```{{raw}} html\n<p><code>{module}</code>: {links}</p>\n```")
    return "\n\n".join(page) + "\n"


def _promised(page: str) -> set[str]:
    """The names by which others may link to places of a page."""
    places = (place.split("#") for place in anchors.listed())
    return {name for there, name in places if there == page}


def folders(modules: dict[str, list[str]]) -> dict[str, dict[str, list[str]]]:
    """The modules by the folder of the package in which they stand, or their own name where in none."""
    found = defaultdict(dict)
    folder_of = importlib.import_module(f"{PACKAGE}.reader.public_names").folder_of
    for module, members in modules.items():
        found[folder_of(module)][module] = members
    return found


def _entry_link(folder: str, name: str, old: list[str]) -> str:
    places = "".join(f'<span id="{each}"></span>' for each in old)
    return f'{places}<a href="api_{folder}.html#api-{name}"><code>{name}</code></a>'


def entries(folder: str, modules: dict[str, list[str]]) -> str:
    """Autodoc for the public names of a folder; book/_ext/package_links.py adds the chapters that use each."""
    page = [f"# API: {folder}"]
    for name, members in modules.items():
        page.append(f"## {name}")
        page.append(f"```{{eval-rst}}\n.. automodule:: {name}\n   :no-members:\n```")
        page += [_autodoc(name, member) for member in members]
    return "\n\n".join(page) + "\n"


def _autodoc(module: str, member: str) -> str:
    thing = getattr(sys.modules[module], member)
    if inspect.isclass(thing):
        directive, options = "autoclass", "\n   :members:"
    elif callable(thing):
        directive, options = "autofunction", ""
    else:
        directive, options = "autodata", "\n   :no-value:"
    return f"```{{eval-rst}}\n.. {directive}:: {module}.{member}{options}\n```"


# -------------------------------------------------------------------------------------- the course


def course(assignments: list) -> str:
    """A table of the weeks, and one for each assignment with its parts."""
    rows = ["| week | assignment | chapters | points: code, hunt, words, experiment | minutes |",
            "|---|---|---|---|---|"]  # fmt: skip
    for each in assignments:
        chapters = ", ".join(map(str, each.chapters)) if len(each.chapters) < 9 else "1 to 11"
        kinds = ["code", "hunt", "explanation", "experiment"]
        sums = [sum(part.points for part in each.parts if _kind(part) == kind) for kind in kinds]
        said = f"{each.points}: {', '.join(map(str, sums))}"
        title = f"[{each.name}: {each.title}](course-{each.name})"
        rows.append(f"| {each.weeks} | {title} | {chapters} | {said} | {each.minutes} |")
    intro = "Each assignment with its parts, their points, and an estimate of the minutes that they take."
    page = ["# The assignments", intro, "\n".join(rows)]
    for each in assignments:
        page += [f"(course-{each.name})=\n## {each.name}: {each.title}", _parts(each)]
    return "\n\n".join(page) + "\n"


def _kind(part) -> str:
    """What a part of an assignment asks for."""
    return getattr(part, "kind", "hunt" if hasattr(part, "mutants") else "code")


def _parts(assignment) -> str:
    title = importlib.import_module(f"{PACKAGE}.homework.handout").handed_out(assignment).title
    rows = ["| part | kind | points | minutes |", "|---|---|---|---|"]
    for part in assignment.parts:
        kind = f"{_kind(part)}, {part.difficulty}" if hasattr(part, "difficulty") else _kind(part)
        rows.append(f"| {title(part.name)} | {kind} | {part.points} | {part.minutes} |")
    return "\n".join(rows)


# ------------------------------------------------------------------------- parts of other pages


def last_run(record: dict | None) -> str:
    """Tables of what a recorded test run gave; a sentence if there is none."""
    if record is None:
        return "No run is recorded in this copy of the book: `make test RECORD=1` records one.\n"
    versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    total = sum(step.get("passed", 0) for step in record["steps"])
    rows = ["| step | passed | seconds |", "|---|---|---|"]
    rows += [f"| {s['name']} | {s.get('passed', '')} | {s['seconds']} |" for s in record["steps"]]
    slow = ["| chapter | seconds |", "|---|---|"]
    slow += [
        f"| [](../chapters/{name}.ipynb) | {s:.0f} |" for name, s in record["chapters"].items()
    ]
    skipped = [f"- {n}, because: {reason}" for reason, n in record["skipped"].items()]
    return "\n\n".join([
        f"On {record['date']}, {total:,} tests passed in {record['seconds'] / 60:.0f} minutes "
        f"({record['system']}; Python {record['python']}, {versions}).",
        "\n".join(rows),
        "Lint, format, spelling, compiling the kernels and building the book are one test each: they pass or fail. "
        "The book is built while the chapters run.",
        "\n".join(["Skipped:", "", *skipped]) if skipped else "Nothing was skipped.",
        "Each chapter ran with one thread, beside another:",
        "\n".join(slow),
    ]) + "\n"  # fmt: skip


def cite(citation: dict) -> str:
    """The BibTeX entry that CITATION.cff describes."""
    book = citation["preferred-citation"]
    fields = {
        "title": book["title"],
        "author": "{" + " and ".join(author["name"] for author in book["authors"]) + "}",
        "year": book["year"],
        "version": citation["version"],
        "url": citation.get("url") or citation.get("repository-code"),
    }
    lines = [f"  {key:7} = {{{value}}}," for key, value in fields.items() if value]
    return "\n".join(["```bibtex", "@book{tested-transformer,", *lines, "}", "```"]) + "\n"


def contract(properties: tuple) -> str:
    """A table of the properties: what must hold, and where to look if it does not."""
    rows = [f"| {each.name} | {each.sentence} | {each.cure} |" for each in properties]
    return "\n".join(["| property | what must hold | where to look |", "|---|---|---|", *rows, ""])


def adapter(base: type) -> str:
    """A table of what a class for one's own model may define: how it is called, and what it returns."""
    lines = ["| method | what it gives |", "|---|---|"]
    for name, method in vars(base).items():
        if name.startswith("_") or not inspect.isfunction(method):
            continue
        words = [each for each in inspect.signature(method).parameters if each != "self"]
        text = " ".join(inspect.cleandoc(method.__doc__).split())
        lines.append(f"| `{name}({', '.join(words)})` | {text} |")
        if name == "variants":  # what follows is made of these
            break
    fields = inspect.cleandoc(base.__doc__).partition("\n\n")[2]
    return "\n".join([*lines, "", "As attributes of the class: " + " ".join(fields.split()), ""])


def catches(record: dict) -> str:
    """A table of the wrong models: where each was seen, and the properties that it breaks."""
    rows = [
        f"| {row['wrong']} | {THREAD.sub(LINKED, row['seen'])} | {', '.join(row['broken'])} |"
        for row in record["rows"]
    ]
    return "\n".join(["| the bug | seen in | what it breaks |", "|---|---|---|", *rows, ""])


def stored(name: str) -> dict:
    """What a benchmark stored."""
    return json.loads((BENCHMARKS / "results" / f"{name}.json").read_text(encoding="utf-8"))


def zoo(record: dict, notes: list[dict], reproductions: ModuleType) -> str:
    """The families that keep the contract, those that do not, and what was found of each failure."""
    right = [row["family"] for row in record["rows"] if not row["broken"]]
    wrong = [row for row in record["rows"] if row["broken"]]
    lines = [
        f"**{len(right)} of {len(record['rows'])} families keep the contract:** {', '.join(right)}.", "",
        f"**{len(wrong)} break a property:**", "", "| family | property | what was found |", "|---|---|---|",
    ]  # fmt: skip
    for row in wrong:
        for name in row["broken"]:
            lines.append(f"| {row['family']} | {name} | {row['properties'][name][1]} |")
    lines += ["", "## What is behind them", ""]
    for note in notes:
        lines += [
            f"**{', '.join(note['families'])}: {'; '.join(note['properties'])}** ({note['kind']}).",
            "",
        ]
        lines += [
            " ".join(note["what"].split()) + (f" See {note['seen']}." if "seen" in note else ""),
            "",
        ]
        for name in note.get("shown", []):
            show = getattr(reproductions, name)
            lines += [f"`{name}`: {inspect.cleandoc(show.__doc__)}", ""]
    return "\n".join(lines)


def systems(rows: list[dict], modules: dict[str, list[str]]) -> str:
    """A table of the architectures, chapter by chapter: page, code, Spec and tests of each.

    Code leads to its entry in the API reference where it has one: an experiment's has none.
    """
    lines = [
        "# Every architecture, and where it is", "",
        "What the chapters build, in their order. The name leads to the page that explains it. Beside it stand the function "
        "or class of the package, the Spec by which `judge` accepts or rejects an implementation of it, and the file of tests "
        "that compares it with something written independently. Where no Spec stands, it is judged as a part of something "
        "else, or is no function.", "",
        "| | in the package | Spec | tests |", "|---|---|---|---|",
    ]  # fmt: skip
    for row in rows:
        module, _, name = row["code"].rpartition(".")
        kind = "class" if name[0].isupper() else "func"
        public = name in modules.get(f"{PACKAGE}.{module}", [])
        place = _place(ROOT / "chapters" / f"{row['page']}.ipynb")
        spec = f"`{row['spec']}`" if "spec" in row else ""
        tests = row["tests"].rpartition("/")[2]
        code = f"{{py:{kind}}}`~{PACKAGE}.{row['code']}`" if public else f"`{row['code']}`"
        lines.append(f"| [{row['system']}]({place}) | {code} | {spec} | `{tests}` |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Write the pages."""
    modules = importlib.import_module(f"{PACKAGE}.reader.public_names").public_names()
    specs = importlib.import_module(f"{PACKAGE}.specs").SPECS
    sys.path.append(str(BENCHMARKS))
    homework = importlib.import_module(f"{PACKAGE}.homework.assignments")
    front_picture = importlib.import_module("front_picture")  # needs the package
    book = chapter_map.chapters()
    paths = chapter_paths()
    mistakes, files = by_chapter(specs), {number(path): path for path in core_paths()}
    pages = {
        "gallery": gallery(mistakes, files, _promised("book/generated/gallery")),
        **{f"gallery_{n:02}": mistakes_of(n, pairs, files) for n, pairs in mistakes.items()},
        "interview": interview(paths),
        "api": api(modules, _promised("book/generated/api")),
        **{f"api_{folder}": entries(folder, inside) for folder, inside in folders(modules).items()},
        "contract": contract(importlib.import_module(f"{PACKAGE}.specs.contract").PROPERTIES),
        "adapter": adapter(importlib.import_module(f"{PACKAGE}.specs.adapters").Model),
        "catches": catches(stored("contract_catches")),
        "zoo": zoo(
            stored("zoo"),
            yaml.safe_load((BENCHMARKS / "zoo_notes.yml").read_text(encoding="utf-8")),
            importlib.import_module("zoo_reproductions"),
        ),
        "systems": systems(yaml.safe_load(SYSTEMS.read_text(encoding="utf-8")), modules),
        "course": course([homework.assignment(name) for name in homework.assignment_names()]),
        "last_run": last_run(json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else None),
        "cite": cite(yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))),
        "front_picture": front_picture.page(front_picture.look()),
        "chapter_map": chapter_map.page(book),
        "chapter_list": chapter_map.listed(book),
    }
    folder = ROOT / "book" / "generated"
    folder.mkdir(exist_ok=True)
    for name, text in pages.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
