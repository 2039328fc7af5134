"""The pages: all that a student needs and nothing that is another's; whatever was typed stays text."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from example_marks import (
    ASSIGNMENT,
    BY_HAND,
    CLASS,
    FOUND,
    HOSTILE,
    HUNT,
    MUTANTS,
    REFUSED,
    RIGHT,
    ROWS,
    RUBRIC,
    TEMPERATURE,
    TWO_CAUGHT,
    WHY,
    WRONG_AXIS,
    marks,
    stopped,
)  # fmt: skip
from handed_in import code, notebook
from hypothesis import given
from hypothesis import strategies as st

from tested_transformer.homework import submissions
from tested_transformer.homework.assignments import assignment
from tested_transformer.homework.handout import handed_out
from tested_transformer.homework.marking.files import page_name
from tested_transformer.homework.marking.marks import Marks, PartMarks
from tested_transformer.homework.marking.points import Manual
from tested_transformer.homework.reports.answers import answers_page
from tested_transformer.homework.reports.class_summary import class_summary, histogram
from tested_transformer.homework.reports.feedback import (
    OF_FILE,
    OF_PART,
    UNREAD,
    VERDICTS,
    feedback_page,
)
from tested_transformer.homework.reports.page import prose, without_paths
from tested_transformer.homework.submissions.reading import read_notebook

VOID = {"meta", "link", "br"}
BY_ID = {one.id: one for one in CLASS}


class Page(HTMLParser):
    """What a browser sees: text, tags and attributes; unbalanced tags are an error."""

    def __init__(self, text: str):
        super().__init__()
        self.text, self.tags, self.found, self.open = "", [], [], []
        self.feed(text.replace("<wbr>", ""))  # the word goes on
        self.close()
        assert self.open == []
        self.text = " ".join(self.text.replace("\u00a0", " ").split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.found += [(name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.found += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data if self.open[-1:] in (["code"], ["b"], ["pre"]) else f" {data} "


def seen(text: str) -> str:
    return Page(text).text


EVERY_PAGE = {
    **{f"feedback {one.id}": feedback_page(ASSIGNMENT, one, BY_HAND) for one in CLASS},
    "written": answers_page(ASSIGNMENT, CLASS),
    "class": class_summary(ASSIGNMENT, CLASS, BY_HAND),
    "written, nobody": answers_page(ASSIGNMENT, []),
    "class, nobody": class_summary(ASSIGNMENT, []),
}
each_page = pytest.mark.parametrize("text", EVERY_PAGE.values(), ids=EVERY_PAGE)


# ------------------------------------------------------------------------------------- every page


@each_page
def test_a_page_is_whole_in_itself(text):
    page = Page(text)
    assert page.tags[:2] == ["html", "head"]
    assert ("lang", "en") in page.found
    assert page.tags.count("title") == page.tags.count("h1") == page.tags.count("main") == 1
    assert not {"script", "img", "iframe", "object", "base", "form"} & set(page.tags)
    assert not [name for name, _ in page.found if name.startswith("on") or name == "src"]
    links = [value for name, value in page.found if name == "href"]
    assert all(value == "data:," or value.startswith("#") for value in links)
    assert "url(" not in text
    assert "@import" not in text


@each_page
def test_headings_tables_and_anchors(text):
    page = Page(text)
    levels = [int(tag[1]) for tag in page.tags if re.fullmatch("h[1-6]", tag)]
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert page.tags.count("caption") == page.tags.count("thead") == page.tags.count("table")
    ids = [value for name, value in page.found if name == "id"]
    assert len(set(ids)) == len(ids)
    targets = {value[1:] for name, value in page.found if name == "href" and value[0] == "#"}
    assert targets <= set(ids)


@each_page
def test_nothing_of_the_run_is_on_a_page(text):
    for secret in ("d1ge57", "5eed"):
        assert secret not in text


def untouched(verdict="not written"):
    """The parts of a notebook in which nothing was written, or that could not be read."""
    return {name: PartMarks(0.0, part.of, verdict) for name, part in RIGHT.items()}


def hostile():
    """Marks in which every text that is not ours tries to break out of the page."""
    part = PartMarks(
        0.0, 4, HOSTILE, (HOSTILE,), HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE,
        (HOSTILE,), (HOSTILE, "x"), HOSTILE,
    )  # fmt: skip
    wrong = replace(part, verdict="wrong")
    return marks(
        HOSTILE,
        flags=(HOSTILE,),
        notes=(HOSTILE,),
        parts={**RIGHT, ROWS: wrong, HUNT.name: part},
        written={WHY: HOSTILE, FOUND: HOSTILE},
        experiments={FOUND: HOSTILE},
    )


@pytest.mark.parametrize("make", [feedback_page, answers_page, class_summary])
def test_what_is_typed_stays_text(make):
    one = hostile()
    page = Page(make(ASSIGNMENT, one if make is feedback_page else [one, CLASS[0]]))
    assert not {"script", "img"} & set(page.tags)
    assert not [name for name, _ in page.found if name.startswith("on")]
    assert '<script>alert("1")</script>' in page.text
    assert page.tags.count("style") == page.tags.count("main") == 1


def test_code_in_a_sentence_is_set_as_code_and_a_tag_in_it_stays_text():
    assert prose("use `a<b>` & `c`") == "use <code>a&lt;b&gt;</code> &amp; <code>c</code>"


def test_what_no_file_should_hold_is_replaced():
    assert prose("a\0b\x1b[31m\ud800\t\n") == "a\ufffdb\ufffd[31m\ufffd\t\n"


@given(st.text(st.characters(codec="utf-8")))
def test_any_text_is_shown(text):
    shown = prose(text)
    tags = re.findall("<[^>]*>", shown)
    assert set(tags) <= {"<code>", "</code>"}
    assert Page(f"<p>{shown}</p>").tags[0] == "p"


# ----------------------------------------------------------------------------------- one student's


def test_a_student_reads_why_a_point_was_lost():
    text = seen(feedback_page(ASSIGNMENT, BY_ID["s02"]))
    assert "hw09: Scores & weights" in text
    assert "4.67 of 15 points so far; a person has yet to mark 5 points" in text
    for words in (
        WRONG_AXIS.check, WRONG_AXIS.why, WRONG_AXIS.case, WRONG_AXIS.expected, WRONG_AXIS.got,
        f"{WRONG_AXIS.mistake} : {WRONG_AXIS.cause}", "Not right yet", "0 / 4", "2 / 2",
    ):  # fmt: skip
        assert words in text
    assert "Experiment · 2 points Marked by a person, not yet No answer of yours was found" in text


def test_a_hunter_learns_how_many_and_one_symptom_but_no_name():
    text = seen(feedback_page(ASSIGNMENT, marks("s02", parts={**RIGHT, HUNT.name: TWO_CAUGHT})))
    assert "Your test caught 2 of 3 wrong implementations. One that it missed: Rows sum" in text
    for mutant in MUTANTS:
        assert mutant.name not in text
    refused = seen(feedback_page(ASSIGNMENT, marks("s02", parts={**RIGHT, HUNT.name: REFUSED})))
    assert "A right implementation was rejected. Got AssertionError: off by 1e-17" in refused
    assert "until then it brings no points" in refused
    assert "One that it missed" not in refused
    assert "2 of 3 caught" not in refused


def test_points_by_hand():
    text = seen(feedback_page(ASSIGNMENT, BY_ID["s01"], BY_HAND))
    assert "14.5 of 15 points Points" in text
    assert "Explanation · 3 of 3 points Marked by a person hw09" in text
    replaced = seen(feedback_page(ASSIGNMENT, BY_ID["s03"], BY_HAND))
    assert "4 of 4 points" in replaced
    assert replaced.count("By hand") == 2
    assert f"By hand {OF_PART['by hand']} {OF_PART['timeout']}" in replaced
    assert VERDICTS["stopped"][1] not in replaced
    none = Manual({"s02": {WHY: 0.0, FOUND: 0.0}})
    assert "4.67 of 15 points Points" in seen(feedback_page(ASSIGNMENT, BY_ID["s02"], none))


def test_a_hunt_that_was_marked_by_hand_brings_points():
    by_hand = Manual({"s03": {HUNT.name: 3.0}})
    text = seen(feedback_page(ASSIGNMENT, BY_ID["s03"], by_hand))
    assert "But it must also let every right one pass." in text
    assert "no points" not in text


def test_why_there_are_no_points_is_said_after_a_person_gave_none():
    nothing = marks("s02", written={})
    for by_hand in (Manual(), Manual({"s02": {WHY: 0.0, FOUND: 0.0}})):
        assert seen(feedback_page(ASSIGNMENT, nothing, by_hand)).count("No answer of yours") == 2
    assert "No answer of yours" not in seen(feedback_page(ASSIGNMENT, BY_ID["s01"], BY_HAND))
    unread = marks("s02", flags=("unreadable",), parts=untouched("not read"), written={})
    text = seen(feedback_page(ASSIGNMENT, unread, Manual({"s02": {WHY: 3.0}})))
    assert text.count("No answer of yours was found: the file could not be read.") == 2
    assert text.count("File not readable") == 2 * 3
    assert "Not written" not in text


@pytest.mark.parametrize("flag", OF_PART)
def test_a_flag_of_a_part_is_a_sentence(flag):
    text = seen(feedback_page(ASSIGNMENT, marks("s01", parts={**RIGHT, ROWS: stopped(flag)})))
    assert OF_PART[flag].replace("`", " ").split("  ")[0].strip()[:40] in text
    assert OF_PART[flag][-1] in ".?"


@pytest.mark.parametrize("flag", OF_FILE)
def test_a_flag_of_the_file_is_a_sentence_said_once(flag):
    text = seen(feedback_page(ASSIGNMENT, marks("s01", flags=(flag,), notes=(OF_FILE[flag],))))
    assert text.count(OF_FILE[flag]) == 1


def test_every_flag_that_the_grader_gives_to_a_file_has_a_sentence():
    """The words are in the code that reads files: a new one must not be forgotten here."""
    from tested_transformer.homework.submissions import cells, finding, reading

    given = set()
    for module in (cells, finding, reading):
        with open(module.__file__, encoding="utf-8") as file:
            given |= set(re.findall(r'Refused\(\s*"([^"]+)"', file.read()))
    assert {"unreadable", "empty"} <= given <= UNREAD <= set(OF_FILE)


def test_every_text_is_for_a_flag_that_something_gives():
    """The grader's folders hold every flag as a literal, or as the end of one."""
    folder = Path(submissions.__file__).parents[1]
    files = [
        file for name in ("submissions", "jail", "marking") for file in (folder / name).glob("*.py")
    ]
    code = "".join(file.read_text(encoding="utf-8") for file in files)
    assert [flag for flag in (*OF_FILE, *OF_PART) if not re.search(f'[" ]{flag}"', code)] == []


def test_an_unknown_flag_and_an_unknown_verdict_are_shown_as_they_are():
    text = seen(feedback_page(ASSIGNMENT, BY_ID["s06/hw09"]))
    assert OF_PART["slow"] in text
    assert "new flag" in text
    odd = marks("s01", flags=("odd file",), parts={**RIGHT, ROWS: PartMarks(0.0, 4, "odd verdict")})
    assert "odd file" in seen(feedback_page(ASSIGNMENT, odd))
    assert "odd verdict" in seen(feedback_page(ASSIGNMENT, odd))


@pytest.mark.parametrize("verdict", VERDICTS)
def test_every_verdict_has_words(verdict):
    part = PartMarks(0.0, 4, verdict)
    text = seen(feedback_page(ASSIGNMENT, marks("s01", parts={**RIGHT, ROWS: part})))
    assert text.count(VERDICTS[verdict][1]) == (2 if verdict != "right" else 6)


def test_a_missing_function_may_stand_in_a_cell_that_was_left_out():
    one = BY_ID["s05"]
    assert OF_PART["missing function"] in seen(feedback_page(ASSIGNMENT, one))
    note = "Cell 4: left out, since it is not valid Python (line 2: invalid syntax)."
    left_out = replace(one, flags=("cell left out",), notes=(note,))
    text = seen(feedback_page(ASSIGNMENT, left_out))
    place = text.index("Its cell may be one that was left out, see above.")
    assert text.index(note) < place
    assert "renamed" not in text
    assert "kernel" not in text


def test_a_note_of_a_cell_left_out_is_known_as_the_grader_writes_it():
    from tested_transformer.homework.marking.mark_submission import _notes

    for cell in ("def f(x)", "match 1:\n    case 1:\n        def f(): pass", 5):
        source = replace(read_notebook(notebook(*code(cell))), code="")
        (note,) = _notes(source, ASSIGNMENT)[-1:]
        text = seen(feedback_page(ASSIGNMENT, replace(BY_ID["s05"], notes=(note,))))
        assert "Its cell may be one that was left out" in text, note


def test_a_student_reads_what_is_wrong_with_a_cell_and_a_file_in_plain_words():
    from tested_transformer.homework.marking.mark_submission import _notes

    source = read_notebook(notebook(*code("a = 1", "def f(x)\n    return x")))
    note = _notes(source, ASSIGNMENT)[0]
    assert note == "Cell 2: left out, since it is not valid Python (line 1: expected ':')."
    one = marks("s01", flags=("cell left out",), notes=(note,))
    assert f"{note} {OF_FILE['cell left out']}" in seen(feedback_page(ASSIGNMENT, one))
    broken = read_notebook(b"%PDF-1.7")
    one = marks("s01", flags=(broken.flag,), notes=(broken.sentence,), parts={}, written={})
    told = "Jupyter could not open it. Download it again, and hand it in again."
    text = seen(feedback_page(ASSIGNMENT, one))
    assert f"This file is damaged or is not a notebook: {told}" in text
    assert "JSON" not in text


def test_no_backticks_where_code_is_set_as_code():
    text = seen(feedback_page(ASSIGNMENT, BY_ID["s05"]))
    assert "Used F.softmax" in text
    assert "`" not in text


@pytest.mark.parametrize("flag", sorted(UNREAD))
def test_a_file_that_could_not_be_read(flag):
    none = untouched("not read")
    one = marks("s04", flags=(flag,), notes=("The file is no JSON.",), parts=none, written={})
    page = Page(feedback_page(ASSIGNMENT, one))
    why = f"could be marked. The file is no JSON. {OF_FILE[flag]}"
    assert page.text.endswith(f"0 of 15 points Nothing in this file {why}")
    assert "table" not in page.tags
    assert page.text == seen(feedback_page(ASSIGNMENT, one, Manual({"s04": {WHY: 0.0}})))
    by_hand = feedback_page(ASSIGNMENT, one, Manual({"s04": {WHY: 3.0}}))  # it came by mail
    assert "3 of 15 points" in seen(by_hand)
    assert "table" in Page(by_hand).tags
    words = feedback_page(ASSIGNMENT, replace(one, written=BY_ID["s01"].written))
    assert "table" in Page(words).tags


PATHS = [
    "/srv/course/run.json", "/jail/inputs/source.py", "~/course/points.csv", "C:\\course\\points.csv",
    "D:/course/x", "/var/lib/", "/srv/name+with-dash.py",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_no_path_is_shown(path):
    for before, after in (("", ""), ("open '", "'"), ("File ", ", line 3"), ("(", ")")):
        assert without_paths(before + path + after) == f"{before}(a file){after}"
    one = marks(
        "s01",
        notes=(path,),
        parts={**RIGHT, ROWS: replace(WRONG_AXIS, got=f"FileNotFoundError: '{path}'", why=path)},
    )
    assert path not in seen(feedback_page(ASSIGNMENT, one))


@pytest.mark.parametrize(
    "text",
    ["1/2", "1/sqrt(d)", "a/b/c", "(2, 3) / 4", "and/or", "https://pytorch.org/docs/stable", "x /= 2", "/2",
     "exp(x)/sum/n", "\\frac{a}{b}", "d_model//heads//2"],
)  # fmt: skip
def test_what_is_no_path_is_left(text):
    assert without_paths(text) == text


# ------------------------------------------------------------------------------------ the class's


def test_answers_question_by_question_with_the_rubric():
    text = answers_page(ASSIGNMENT, CLASS[::-1])
    for line in RUBRIC.split("\n"):
        assert line in text
    heads = [text.index(f'<h4><span class="id">{name}</span></h4>') for name in ("s01", "s02")]
    assert [text.index(RUBRIC[:9]), *heads] == sorted([text.index(RUBRIC[:9]), *heads])
    assert '<pre dir="auto">\nThe sum of $d$ products has variance $d$.\n\n- so the' in text
    assert "Your answer" not in text
    assert f'<article class="answer" id="{WHY}--{page_name("s06/hw09")[:-5]}">' in text
    assert re.findall(r"No answer was found:((?: s0\d)*)", seen(text)) == [" s04", " s02 s04"]
    assert text.count('<article class="answer"') == 2 * 6 - 3
    assert text == answers_page(ASSIGNMENT, CLASS)


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("**Your answer.**\n\n  4 heads", "  4 heads"),
        ("**What you found.**\n**Refuted.** It is 3.", "**Refuted.** It is 3."),
        ("\n**Your report.** \n\nRoman numerals", "Roman numerals"),
        ("**Refuted.**\nIt is 3.", "**Refuted.**\nIt is 3."),
        ("It is 3.\n\n**Your answer.**", "It is 3.\n\n**Your answer.**"),
    ],
)
def test_what_was_handed_out_above_an_answer_is_not_shown(typed, shown):
    text = answers_page(ASSIGNMENT, [marks("s01", written={WHY: typed})])
    assert f'<pre dir="auto">\n{shown}</pre>' in text
    only = answers_page(ASSIGNMENT, [marks("s01", written={WHY: "**What you found.**\n"})])
    assert "<article" not in only


def test_each_points_of_a_rubric_begin_a_line():
    rubric = (
        "1 point: x is 1 (half a point for y). 2 points: z, of 3 points in the plane. 1\npoint: w."
    )
    why = replace(ASSIGNMENT.written[0], rubric=rubric)
    text = answers_page(replace(ASSIGNMENT, parts=(why,)), CLASS)
    shown = re.search(r'<p class="lines">(.*?)</p>', text, re.DOTALL)[1]
    assert shown == (
        "1 point: x is 1 (half a point for y).\n2 points: z, of 3 points in the plane. 1\npoint: w."
    )


def test_the_code_of_an_experiment_stands_beside_its_words():
    typed = "for n in (1, 2):\n    print(n <  2)"
    one = marks("s01", experiments={FOUND: typed})
    shown = "<details><summary>Code, 2 lines</summary>\n<pre>\nfor n in (1, 2):\n    print(n &lt;  2)</pre>"
    text = answers_page(ASSIGNMENT, [one])
    assert text.count(shown) == text.count("<details>") == 1
    assert text.index("At d = 64") < text.index(shown)
    alone = answers_page(ASSIGNMENT, [replace(one, written={})])
    assert seen(alone).count("code alone") == 1
    assert "No answer in words. Code, 2 lines" in seen(alone)
    assert seen(alone).endswith("No answer was found: s01")


def test_answers_say_how_they_are_to_be_read():
    text = seen(answers_page(ASSIGNMENT, CLASS))
    assert "leave empty what is not marked yet, and write 0 where there is no answer." in text
    assert "as they were typed, formulas too" in text
    assert "run none of its cells" in text


def test_an_id_may_break_and_is_one_line_otherwise():
    name = "Jörg Müller_1002_assignsubmission_file_/hw03"
    broken = "Jörg Müller_<wbr>1002_<wbr>assignsubmission_<wbr>file_<wbr>/<wbr>hw03"
    one = marks(name, flags=("encoding",))
    for text in (
        answers_page(ASSIGNMENT, [one]), class_summary(ASSIGNMENT, [one]), feedback_page(ASSIGNMENT, one)
    ):  # fmt: skip
        assert f'<span class="id">{broken}</span>' in text
        assert name in seen(text)


def test_the_summary_counts():
    text = seen(class_summary(ASSIGNMENT, CLASS, BY_HAND))
    assert "6 submissions." in text
    # totals: 14.5, 4.67, 2 + 1 + 4, 0, 0, 6
    assert "Mean 5.36, median 5.33 of 15 points. 1 of 6 complete." in text
    assert f"{ROWS} 1.33 / 4 1 2 0 0 1 1 1" in text
    assert f"{TEMPERATURE} 1.33 / 2 4 0 0 1 0 0 1" in text
    assert "softmax over the queries hw09.softmax_of_rows The softmax runs" in text
    assert "dim=-2 in place of dim=-1. 2 Wrong answers that match no known mistake: 0." in text
    assert f"mask after the softmax hw09.hunt {MUTANTS[1].symptom} 2 of 4" in text
    assert "new flag 1: s06/hw09" in text
    assert f"{ROWS}: by hand {OF_PART['by hand']} 1: s03" in text


def test_the_summary_groups_those_with_the_same_file_and_no_student_reads_of_another():
    copies = [marks(name, digest="of them all") for name in ("s09", "s07", "s08")]
    unread = [marks(name, digest="") for name in ("s10", "s11")]
    text = seen(class_summary(ASSIGNMENT, [BY_ID["s01"], *copies, *unread]))
    row = "same file These notebooks are the same, byte for byte. 3: s07 s08 s09"
    assert text.endswith(row)
    assert text.count("same file") == 1
    assert "same file" not in feedback_page(ASSIGNMENT, copies[0])


def test_the_summary_is_the_same_from_marks_in_any_order():
    twice = [*CLASS, marks("s07", flags=("encoding",))]
    text = class_summary(ASSIGNMENT, twice[::-1])
    assert text == class_summary(ASSIGNMENT, twice)
    assert "2: s03 s07" in seen(text)


def test_parts_go_by_number_and_title():
    homework = assignment("hw03")
    task, hunt, words = homework.parts[0], homework.coded[-1], homework.written[0]
    titles = {part.name: handed_out(homework).title(part.name) for part in homework.parts}
    parts = {
        task.name: replace(WRONG_AXIS, flags=("slow",)),
        hunt.name: PartMarks(0.0, 4, "wrong", caught=("a",), missed=("b",)),
    }
    one = Marks(
        "s01", "hw03", parts=parts, written={words.name: "Yes."}, faults=(f"{task.name}: no",)
    )
    page = seen(class_summary(homework, [one]))
    assert f"{WRONG_AXIS.mistake} {titles[task.name]} {WRONG_AXIS.cause}" in page
    assert f"b {titles[hunt.name]} 1 of 1" in page
    assert f"{titles[task.name]}: slow" in page
    assert f"s01 : {titles[task.name]}: no" in page
    marked = Manual({"s01": {words.name: 1.0}}, answers={"s01": {words.name: "another"}})
    answers = seen(answers_page(homework, [one], marked))
    columns = " ".join(titles[part.name] for part in homework.written)
    assert f"Where the answers are id {columns} s01" in answers
    assert f"s01 {titles[words.name]} {words.name} answer" in answers
    legend = answers.partition("The parts as columns of grades.csv and written.csv Part Column ")[2]
    assert legend.startswith(" ".join(f"{title} {name}" for name, title in titles.items()))


def test_the_most_frequent_mistake_comes_first():
    names = ("b", "c", "c", "c", "a", "b", "a", "")
    wrong = [replace(WRONG_AXIS, mistake=name, cause="") for name in names]
    made = [marks(f"s{n}", parts={**RIGHT, ROWS: part}) for n, part in enumerate(wrong)]
    text = seen(class_summary(ASSIGNMENT, made))
    assert f"c {ROWS} 3 a {ROWS} 2 b {ROWS} 2 Wrong answers that match no known mistake: 1." in text


def test_before_anything_is_marked_by_hand_the_histogram_ends_at_the_code():
    text = seen(class_summary(ASSIGNMENT, CLASS))
    assert "of 10 points. 0 of 6 complete. Points are of the 10 that the grader gives; " in text
    assert "the 5 points for words are not marked yet." in text
    one = seen(class_summary(ASSIGNMENT, CLASS, Manual({"s01": {WHY: 3.0}})))
    assert "Points are of the 13 that the grader and a person gave; the 2 points for words" in one
    some = seen(class_summary(ASSIGNMENT, CLASS, BY_HAND))
    assert (
        "Words of 5 submissions are not all marked yet; without points they count 0 so far." in some
    )
    every = {name: {WHY: 3.0, FOUND: 2.0} for name in BY_ID}
    assert "not marked yet" not in seen(class_summary(ASSIGNMENT, CLASS, Manual(every)))


def test_the_summary_says_who_pulls_the_mean_down():
    as_handed_out = [marks(name, parts=untouched(), written={}) for name in ("s07", "s08")]
    tried = marks("s09", parts=untouched())  # answers in words: not untouched
    text = seen(class_summary(ASSIGNMENT, [BY_ID["s01"], BY_ID["s04"], *as_handed_out, tried]))
    assert "5 submissions. Totals Mean 2, median 0" in text
    assert "1 file could not be read. In 2 files nothing is written." in text
    assert "The mean without them is 5." in text  # 10 and 0
    assert "without them" not in seen(class_summary(ASSIGNMENT, [BY_ID["s01"], tried]))
    one = seen(class_summary(ASSIGNMENT, as_handed_out[:1]))
    assert "1 submission. Totals" in one
    assert "read" not in one
    assert "In 1 file nothing is written." in one


def counts(drawing: str) -> list[tuple[float, float, int]]:
    """Left edge, height and number of each column."""
    root = ElementTree.fromstring(drawing)
    columns = [one for one in root if one.tag == "rect"]
    numbers = [int(one.text) for one in root if one.tag == "text" and "." in one.get("y")]
    return [
        (float(one.get("x")), float(one.get("height")), number)
        for one, number in zip(columns, numbers, strict=True)
    ]


@given(most=st.integers(1, 60), shares=st.lists(st.integers(0, 100), max_size=40))
def test_a_histogram_holds_everybody_and_is_as_high_as_many(most, shares):
    totals = [most * share / 100 for share in shares]
    columns = counts(histogram(totals, most))
    assert sum(number for *_, number in columns) == len(totals)
    for x, height, number in columns:
        assert 8 <= x < 332
        assert height == pytest.approx(130 * number / max(n for *_, n in columns), abs=0.06)


def test_a_histogram_puts_totals_where_they_belong():
    columns = counts(histogram([0.0, 1.99, 2.0, 20.0], 20))
    assert [number for *_, number in columns] == [2, 1, 1]
    assert [round((x - 9.5) / 32.4) for x, *_ in columns] == [0, 1, 9]
    words = histogram([0.0, 1.99, 2.0, 20.0], 20)
    assert 'aria-label="Submissions by total. 0 to 2: 2, 2 to 4: 1, 18 to 20: 1"' in words


def test_names_of_pages():
    names = [page_name(one) for one in ("s01", "S01", "s01/hw09", "../s01", "")]
    assert len(set(names)) == 5
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9-]*\.html", name) for name in names)
