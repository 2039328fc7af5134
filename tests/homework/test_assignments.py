"""Every assignment, in one process: solutions get full marks, mistakes lose theirs, stubs get none."""

import ast
import copy
import json
import re
import sys
import time

import pytest
import torch
from course import ROOT, solution_cells

import homework as tool
from answers import RIGHT, WRONG
from solutions import assignment_solutions
from spec_tools import assert_spec_is_sound
from tested_transformer.homework import check, checks
from tested_transformer.homework.assignments import assignment, assignment_names, part
from tested_transformer.homework.bug_hunts import judge_hunt
from tested_transformer.homework.handout import HANDED_OUT
from tested_transformer.homework.jail.session import _check_small
from tested_transformer.homework.marking.mark_submission import hunt_marks
from tested_transformer.homework.submissions.answers import is_written
from tested_transformer.homework.submissions.forbidden import uses
from tested_transformer.homework.submissions.reading import (
    Source,
    is_stub,
    read_notebook,
    read_submission,
)
from tested_transformer.homework.submissions.slicing import needed_for
from tested_transformer.homework.tasks import DIFFICULTIES, Hunt, Task
from tested_transformer.specs.compare import compare
from tested_transformer.specs.judge import judge
from tested_transformer.specs.spec import Run

pytestmark = pytest.mark.plain_types
NAMES = assignment_names()
EVERY = [each for name in NAMES for each in assignment(name).coded]
TASKS = [each for each in EVERY if isinstance(each, Task)]
HUNTS = [each for each in EVERY if isinstance(each, Hunt)]
NOTEBOOKS = {name: json.loads(tool.notebook(name).read_text(encoding="utf-8")) for name in NAMES}
SOLUTIONS = {name: assignment_solutions(name) for name in NAMES}
HEADINGS = re.compile(
    r"^## \S+ (.+)\n\n\*(\S+) points? · (\d+) minutes · ([\w-]+)\*$", re.MULTILINE
)


def named(each):
    return each.name


def solution(each):
    return SOLUTIONS[each.name.partition(".")[0]][each.function]


def text_of(name):
    return "\n\n".join("".join(cell["source"]) for cell in NOTEBOOKS[name]["cells"])


# ------------------------------------------------------------------------------------- the course


def test_the_assignments_fill_the_weeks_one_after_the_other():
    weeks = [[int(week) for week in assignment(name).weeks.split("-")] for name in NAMES]
    assert [week for each in weeks for week in each] == list(range(1, weeks[-1][-1] + 1))
    chapters = {chapter for name in NAMES for chapter in assignment(name).chapters}
    assert chapters >= set(range(1, 12))


@pytest.mark.parametrize("name", NAMES)
def test_an_assignment_has_the_parts_of_one(name):
    homework = assignment(name)
    assert homework.name == name
    assert homework.points == (40 if name == "project" else 20)
    assert 3 <= sum(isinstance(each, Task) for each in homework.parts) <= 6
    assert sum(isinstance(each, Hunt) for each in homework.parts) == 1
    assert {each.kind for each in homework.written} == {"explanation", "experiment"}
    assert 3 * sum(each.points for each in homework.written) >= homework.points
    assert all(each.difficulty in DIFFICULTIES for each in homework.coded)
    assert len({each.difficulty for each in homework.coded}) >= 2
    for each in homework.coded:
        assert each.name.startswith(f"{name}.")
        assert part(each.name) is each
    assert all(each.name.startswith(f"{name}-") and each.rubric for each in homework.written)


@pytest.mark.parametrize("name", NAMES)
def test_the_notebook_says_points_and_minutes_as_the_module(name):
    homework = assignment(name)
    said = [(float(points), int(minutes), word)
            for _, points, minutes, word in HEADINGS.findall(text_of(name))]  # fmt: skip
    wanted = [(float(each.points), each.minutes, getattr(each, "difficulty", None) or each.kind)
              for each in homework.parts]  # fmt: skip
    assert said == wanted


@pytest.mark.parametrize("name", NAMES)
def test_the_notebook_asks_for_every_part(name):
    homework = assignment(name)
    cells = {cell["metadata"]["nbgrader"]["grade_id"]: cell for cell in NOTEBOOKS[name]["cells"]}
    assert len(cells) == len(NOTEBOOKS[name]["cells"])
    for each in homework.coded:
        assert f'check("{each.name}", {each.function})' in text_of(name)
    for each in homework.written:
        marked = cells[each.name]["metadata"]["nbgrader"]
        assert (marked["grade"], marked["points"]) == (True, each.points)
    graded = [c for c in cells.values() if c["metadata"]["nbgrader"]["grade"]]
    assert len(graded) == len(homework.written)  # nbgrader must never mark code by itself
    assert not any(cell.get("outputs") for cell in cells.values())


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_alone_has_no_dead_link(name):
    """A student may get the notebook and nothing else."""
    assert not re.findall(r"\]\((?!https?://|#)[^)]*\)", text_of(name))


@pytest.mark.parametrize("name", NAMES)
def test_students_get_stubs_and_no_solution(name):
    for cell in NOTEBOOKS[name]["cells"]:
        marked, text = cell["metadata"]["nbgrader"], "".join(cell["source"])
        if not marked["solution"]:
            assert "SOLUTION" not in text
            continue
        assert len(tool.MARKER.findall(text)) == 2, marked["grade_id"]
        left = re.sub(r"### BEGIN SOLUTION.*### END SOLUTION", "...", text, flags=re.DOTALL)
        if cell["cell_type"] == "markdown":
            handed_out = left.replace("...", HANDED_OUT)
            assert not is_written(handed_out), marked["grade_id"]
            assert is_written(handed_out.replace(HANDED_OUT, "Because.")), marked["grade_id"]
            assert is_written(f"{handed_out} Because."), marked["grade_id"]
            assert is_written(tool.MARKER.sub("", text)), marked["grade_id"]
        if cell["cell_type"] == "code" and (found := re.search(r"^def (\w+)", left, re.MULTILINE)):
            assert is_stub(Source(left), found[1]), marked["grade_id"]


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_has_code_beside_it_once_it_is_written_and_not_before(name):
    experiments = {each.name for each in assignment(name).written if each.kind == "experiment"}
    written = read_notebook(tool.notebook(name).read_bytes()).beside
    assert experiments <= set(written)
    handed_out = copy.deepcopy(NOTEBOOKS[name])
    for cell in handed_out["cells"]:
        text = "".join(cell["source"])
        cell["source"] = re.sub(
            r"### BEGIN SOLUTION.*### END SOLUTION", "...", text, flags=re.DOTALL
        )
    assert not experiments & set(read_notebook(json.dumps(handed_out).encode()).beside)


# ------------------------------------------------------------------------------------------- tasks


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("task", TASKS, ids=named)
def test_the_solution_gets_full_marks(task, seed):
    verdict = judge(task.spec, solution(task), seed=seed)
    assert verdict.passed, verdict
    assert not verdict.skipped


# Seeds that the grader could draw, at which rounding once cost a right answer its points.
ONCE_FAILED = {
    "hw04.next_token": (1593976971, 13233831, 1478065209),
    "hw06.shares": (2239039009,),
}


@pytest.mark.parametrize(
    ("name", "seed"), [(name, seed) for name, seeds in ONCE_FAILED.items() for seed in seeds]
)
def test_no_right_answer_fails_at_a_seed_that_once_failed(name, seed):
    answers = [answer for answer in RIGHT if answer.spec == name]
    assert len(answers) >= 4
    for answer in answers:
        verdict = judge(part(name).spec, answer.candidate, seed=seed)
        assert verdict.passed, f"{answer.name}: {verdict}"


@pytest.mark.parametrize("task", TASKS, ids=named)
def test_three_other_answers_are_right_and_three_wrong_ones_known(task):
    for answers in (RIGHT, WRONG):
        others = [answer for answer in answers if answer.spec == task.name]
        assert len(others) - (answers is RIGHT) >= 3, task.name


@pytest.mark.parametrize("task", TASKS, ids=named)
def test_a_notebook_may_set_the_default_dtype(task):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        verdict = judge(task.spec, solution(task), seed=3)
    finally:
        torch.set_default_dtype(before)
    assert verdict.passed, verdict


@pytest.mark.parametrize("task", TASKS, ids=named)
def test_a_stub_gets_none(task):
    assert check(task.name, lambda *arguments: ...).unwritten


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS, ids=named)
def test_every_mistake_is_rejected_with_a_message_of_its_own(task):
    assert_spec_is_sound(task.spec)
    assert len(task.spec.mutants) >= 3
    messages = [(mutant.name, mutant.cause) for mutant in task.spec.mutants]
    assert len(set(messages)) == len(messages)


@pytest.mark.parametrize("task", TASKS, ids=named)
def test_an_unchanged_call_is_not_said_to_be_with_a_change(task, monkeypatch):
    """`with -7.5 as padding, the means = NaN` is untrue of a call in which the padding was NaN."""
    run, module = Run(task.spec, solution(task)), sys.modules[task.spec.cases.__module__]
    changes = []

    def watched(expected, got, tolerance, what=""):
        words = "with " if got is run.value(case) else ""
        if words and what.startswith(words):
            changes.append(what)
        return compare(expected, got, tolerance, what)

    for each in (module, checks):
        monkeypatch.setattr(each, "compare", watched, raising=False)
    for case in task.spec.draw(1):
        for check_ in task.spec.checks:
            if check_.concerns(case):
                check_.test(run, case)
    assert changes == []


def test_the_words_of_a_check_that_changes_the_padding_are_true():
    """A student whose means are NaN with NaN as padding reads that, and of -7.5 only what is so."""
    task = part("hw03.mean_of_words")
    (wrong,) = (m for m in task.spec.mutants if m.name == "zero times NaN")
    problem = judge(task.spec, wrong.candidate, seed=1).problem
    assert (problem.expected, problem.got) == ("the mean in numbers", "NaN")


@pytest.mark.parametrize("task", TASKS, ids=named)
def test_a_task_can_go_to_a_jail(task):
    """Every argument by place, no weights to put in, and the answer is read here."""
    assert task.spec.build(solution(task), {}) is solution(task)
    for case in task.spec.draw(1):
        assert set(case.arguments) == set(task.spec.required)
        _check_small(
            [value for value in case.tensors().values() if not isinstance(value, (str, int))]
        )


@pytest.mark.parametrize("task", TASKS, ids=named)
def test_a_solution_uses_nothing_forbidden_and_nothing_of_the_book(task):
    name = task.name.partition(".")[0]
    code = needed_for(read_submission(tool.notebook(name)).code, task.function)
    assert not [word for word in task.forbidden if uses(Source(code), word)]
    imports = [
        node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom | ast.Import)
    ]
    assert not [node for node in imports if "tested_transformer" in ast.unparse(node)]


def test_a_check_takes_less_than_a_second():
    for each in EVERY:
        check(each.name, solution(each))  # the mutants' answers are drawn once
        start = time.process_time()
        check(each.name, solution(each))
        assert time.process_time() - start < 5, (
            each.name
        )  # a bound against hanging, not a benchmark


# ------------------------------------------------------------------------------------------- hunts


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("hunt", HUNTS, ids=named)
def test_the_model_test_catches_all(hunt, seed):
    verdict = judge_hunt(hunt, solution(hunt), seed=seed)
    assert verdict, verdict
    assert hunt_marks(verdict).points == hunt.points


@pytest.mark.parametrize("hunt", HUNTS, ids=named)
def test_each_wrong_implementation_costs_its_share(hunt):
    """A test that knows what each mutant does, but for one, gets all but its share."""
    raised = judge_hunt(hunt, solution(hunt))
    assert len(raised.caught) == len(hunt.mutants) >= 6
    assert len(hunt.right) >= 2
    assert len({mutant.symptom for mutant in hunt.mutants}) == len(hunt.mutants)
    for mutant in hunt.mutants:
        alone = Hunt(hunt.name, hunt.function, "", {}, (mutant,), 1, 1, "core", 1)
        assert judge_hunt(alone, solution(hunt)).points == 1
        assert judge_hunt(alone, lambda implementation: None).points == 0


@pytest.mark.parametrize("hunt", HUNTS, ids=named)
def test_no_test_at_all_gets_nothing(hunt):
    assert judge_hunt(hunt, lambda implementation: None).points == 0

    def refuses(implementation):
        raise AssertionError

    assert judge_hunt(hunt, refuses).points == 0


def test_every_solution_cell_is_read():
    for name in NAMES:
        assert solution_cells(name)
        assert (ROOT / "homework" / "source" / name).is_dir()
