"""What is the student's is the student's, and what is the grader's is told to the instructor alone."""

import bisect
import dataclasses
import gc
import json
import sys
import time

import numpy as np
import pytest
import torch
from in_process import InProcess
from jails import SMALL, needs_jail

from tested_transformer.homework import __main__ as command
from tested_transformer.homework.assignments import assignment
from tested_transformer.homework.jail.bubblewrap import Limits
from tested_transformer.homework.jail.remote import RemoteFunction
from tested_transformer.homework.jail.session import Ended, JailSession
from tested_transformer.homework.marking import mark_class, mark_submission
from tested_transformer.homework.marking.marks import FAILED
from tested_transformer.homework.reports.feedback import feedback_page
from tested_transformer.homework.submissions import definitions, slicing
from tested_transformer.homework.submissions.definitions import MOST_DEPTH, TOO_DEEP, compile_text
from tested_transformer.homework.submissions.finding import find_submissions
from tested_transformer.homework.submissions.forbidden import not_allowed
from tested_transformer.homework.submissions.reading import read_notebook, read_submission
from tested_transformer.homework.submissions.slicing import named_by, needed_for
from tested_transformer.specs.case import Case
from tested_transformer.specs.judge import judge
from tested_transformer.specs.spec import Check, Spec

pytestmark = pytest.mark.plain_types
HOMEWORK = assignment("hw03")
CODE = """
import torch

def count_pairs(num_queries, num_keys, window):
    counts = [i + num_keys - num_queries + 1 for i in range(num_queries)]
    return sum(min(max(count, 0), window) for count in counts)

def mean_of_words(x, real):
    words = x.masked_fill(~real[:, :, None], 0.0)
    return (words / real.sum(1).clamp(min=1)[:, None, None]).sum(1)
"""


@pytest.fixture
def submission(tmp_path):
    cell = {"cell_type": "code", "metadata": {}, "source": CODE, "outputs": []}
    (tmp_path / "s01.ipynb").write_text(json.dumps({"cells": [cell], "nbformat": 4}))
    return find_submissions(tmp_path)[0]


def breaks(*_):
    np.isnan(np.array(["a"]))


def complains(*_):
    raise ValueError("not one row of whole numbers")


def test_a_part_that_the_grader_fails_at_costs_no_other_part(submission, monkeypatch):
    def judge(spec, remote, seed):
        return breaks() if spec.name == "hw03.mean_of_words" else real(spec, remote, seed=seed)

    real = mark_submission.judge
    monkeypatch.setattr(mark_submission, "judge", judge)
    monkeypatch.setattr(mark_submission, "JailSession", InProcess)
    marks = mark_submission.mark(submission, HOMEWORK, seed=1)
    verdicts = {name: (part.verdict, part.points) for name, part in marks.parts.items()}
    assert verdicts["hw03.count_pairs"] == ("right", 2.0)
    assert verdicts["hw03.mean_of_words"] == ("not marked", 0.0)
    assert FAILED in marks.flags
    (fault,) = marks.faults
    assert fault.startswith("hw03.mean_of_words: TypeError: ufunc 'isnan' not supported")
    page = feedback_page(HOMEWORK, marks)
    assert "isnan" not in page
    assert "nothing is wrong with your code" in page


def test_a_check_that_raises_by_itself_is_no_wrong_answer(monkeypatch):
    def of_spec(test):
        return Spec("a", "", ("x",), lambda x: x, lambda _: [Case("one", {"x": np.ones(2)})],
                    [Check("ours", "It holds.", test)], points=1)  # fmt: skip

    task = dataclasses.replace(HOMEWORK.coded[0], spec=of_spec(breaks), function="f")
    with InProcess("def f(x): return x") as session:
        with pytest.raises(mark_submission.GraderError, match="isnan"):
            mark_submission._mark_task(task, session, 0)
        theirs = dataclasses.replace(task, spec=of_spec(lambda run, case: run.value(case, x=3.0)))
        form = dataclasses.replace(task, spec=of_spec(complains))
        assert mark_submission._mark_task(form, session, 0).verdict == "wrong"
    with InProcess("def f(x): return x.sum(7)") as session:
        assert mark_submission._mark_task(theirs, session, 0).verdict == "wrong"


def test_a_notebooks_check_says_that_it_failed_itself():
    def verdict(test, function=lambda x: x):
        case = Case("one", {"x": np.ones(2)})
        return judge(Spec("a", "", ("x",), lambda x: x, lambda _: [case], [Check("ours", "It holds.", test)]), function)  # fmt: skip

    told = repr(verdict(breaks))
    assert told.startswith("✗ a: could not be checked.")
    assert "The check raised an error, and not your function." in told
    assert "isnan" in told
    assert "in your" not in told
    assert verdict(breaks).broken
    assert not verdict(breaks).passed
    theirs = verdict(lambda run, case: run.value(case), lambda x: x.sum(7))
    assert not theirs.broken
    assert repr(theirs).startswith("✗ a: not right yet.")
    assert not verdict(complains).broken


def test_an_error_of_ours_is_not_in_the_students_notes(submission):
    marks = mark_class.failed(submission, "hw03", "TypeError: ufunc isnan (compare.py, line 3)")
    assert marks.notes == ("Not marked, by no fault of yours.",)
    assert marks.faults == ("TypeError: ufunc isnan (compare.py, line 3)",)


# ------------------------------------------------------------------------------------ whose time it is

OWN = """
import sys, time
def modules(): return len(sys.modules)
def twice(x): return 2 * x
def work(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end: pass
def ask(implementation, times):
    for _ in range(times): implementation()
"""


@needs_jail
def test_the_first_gradient_costs_a_student_nothing():
    with JailSession(OWN, limits=SMALL) as session:
        before, _ = session.call("modules", [], {})
        RemoteFunction(session, "twice")(torch.ones(2, requires_grad=True)).sum().backward()
        assert session.call("modules", [], {})[0] == before


@needs_jail
@pytest.mark.skipif(sys.platform != "linux", reason="nobody counts processor time elsewhere")
def test_a_processors_time_is_counted_and_waiting_is_not():
    with JailSession(OWN, limits=SMALL) as session:
        assert session.processor_seconds < 0.2
        session.call("work", [0.5], {})
        time.sleep(0.3)
        assert 0.4 < session.processor_seconds < 0.8


def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_the_implementations_on_trial_work_on_the_students_time():
    calls = []

    def slow():
        calls.append(1)
        burn(0.1)

    with (
        JailSession(
            OWN, limits=Limits(wall_seconds=0.35), without_jail_for_my_own_code=True
        ) as session,
        pytest.raises(Ended, match="timeout") as ended,
    ):
        session.call("ask", [session.serve(slow), 50], {})
    assert len(calls) == 4
    assert (
        ended.value.text == "the implementations that the test calls took 0.35 seconds in 4 calls"
    )


# ----------------------------------------------------------------------------- large and deep notebooks


FORMS = {  # of a function that is as deep as it is told
    "a sum": lambda depth: "return " + "+".join("0" * depth),
    "attributes": lambda depth: "return x" + ".c" * depth,
    "signs": lambda depth: "return " + "-" * depth + "1",
    "elifs": lambda depth: "if 0: 0" + "".join("\n    elif 1: 1" for _ in range(depth)),
}
MEAN = "def mean_of_words(x, real):\n    {}\n"
PAIRS = CODE[: CODE.index("def mean_of_words")]


@pytest.fixture
def deep(tmp_path):
    """A notebook with a function as deep as it is told, and a right one in another cell."""

    def make(form, depth):
        texts = (MEAN.format(FORMS[form](depth)), PAIRS)
        cells = [{"cell_type": "code", "metadata": {}, "source": t, "outputs": []} for t in texts]
        (tmp_path / "s01.ipynb").write_text(json.dumps({"cells": cells, "nbformat": 4}))
        return tmp_path / "s01.ipynb"

    return make


def deepest(form):
    """The depth at which Python itself gives up here, which depends on who calls it."""

    def is_too_deep(depth):
        try:
            compile_text(MEAN.format(FORMS[form](depth)), whole=True)
        except SyntaxError:
            return True
        return False

    return bisect.bisect_left(range(4000), True, lo=1500, key=is_too_deep)


@pytest.mark.parametrize("form", FORMS)
def test_a_function_near_the_depth_that_python_takes_costs_itself_alone(form, deep, monkeypatch):
    monkeypatch.setattr(mark_submission, "JailSession", InProcess)
    edge = deepest(form)
    for depth in range(edge - 25, edge + 1):
        (submission,) = find_submissions(deep(form, depth))
        marks = mark_submission.mark(submission, HOMEWORK, seed=1)
        verdicts = {
            name: marks.parts[f"hw03.{name}"].verdict for name in ("count_pairs", "mean_of_words")
        }
        assert verdicts == {"mean_of_words": "not found", "count_pairs": "right"}
        assert marks.flags == ("cell left out",)
        assert marks.notes[0].startswith(
            f"Cell 1: left out, since it is not valid Python ({TOO_DEEP}"
        )


def inside(frames, call):
    """The same call, by a caller that stands deeper."""
    return inside(frames - 1, call) if frames else call()


@pytest.mark.parametrize("form", FORMS)
def test_the_depth_that_is_read_depends_on_nobody_and_is_looked_through(form, deep):
    assert not read_submission(deep(form, MOST_DEPTH + 2)).code.count("mean_of_words")
    code = read_submission(deep(form, MOST_DEPTH - 9)).code
    assert code.count("mean_of_words") == 1

    def search():
        slicing._statements.cache_clear()
        definitions.tree.cache_clear()
        return not_allowed(named_by(code, "mean_of_words"), ["F.softmax"])

    assert inside(200, search) == ""


def test_self_check_of_a_deep_function_ends_with_its_sentence(deep, monkeypatch, capsys):
    monkeypatch.setattr(mark_submission, "JailSession", InProcess)
    edge = deepest("a sum")
    for depth in range(edge - 25, edge + 1):
        path = str(deep("a sum", depth))
        assert command.main(["self-check", path, "--assignment", "3"]) == 0
        assert TOO_DEEP in capsys.readouterr().out


@pytest.fixture
def no_collector():
    """Python's garbage collector, which looks at all that pytest holds, stays away."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_what_is_read_of_a_notebook_costs_in_proportion_to_its_size():
    def seconds(links):
        chain = "\n".join(f"a{n + 1} = a{n}" for n in range(links))
        text = json.dumps({"cells": [{"cell_type": "code", "source": f"a0 = 0\n{chain}"}]}).encode()
        start = time.process_time()
        code = read_notebook(text).code
        assert not not_allowed(named_by(code, f"a{links}"), ["F.softmax", "np.exp"])
        assert needed_for(code, f"a{links}").count("\n") == links + 1
        return time.process_time() - start

    pairs = [(seconds(3000), seconds(6000)) for _ in range(3)]  # neither finds the other's cache
    small, large = map(min, zip(*pairs, strict=True))
    assert large < 3 * small


def test_every_name_of_a_long_chain_is_followed_once():
    chain = "a0 = 1\n" + "".join(f"a{n + 1} = a{n}\n" for n in range(3000))
    assert needed_for(chain, "a3000") == chain
    assert len(needed_for(chain, "a1500").splitlines()) == 1501
