"""The Specs of browsing and choosing: the Bradley-Terry loss, the best of n, a browser's bookkeeping."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import reference
from ...generation.browser import Page
from ..checks import any_dtype, stays, transposed
from ..compare import Problem, compare
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants

# --- Comparisons ----------------------------------------------------------------------------------


def _pair(rng: np.random.Generator, count: int, *, ties: bool = False, spread: float = 1.0) -> dict:
    """Scores of both answers; preferences of 0, 0.5 and 1."""
    arguments = {name: spread * rng.normal(size=count) for name in ("first", "second")}
    return arguments | (
        {"preference": rng.permutation([0.0, 0.5, 1.0] * count)[:count]} if ties else {}
    )


def _pair_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, count, dtype=torch.float64, **options) -> Case:
        return Case(label, _pair(rng, count, **options), dtype)

    return [
        case("one comparison", 1),
        case("three comparisons", 3),
        case("with ties", 6, ties=True),
        case("clear preferences", 5, ties=True, spread=30.0),
        case("float32", 7, torch.float32, ties=True),
    ]


def _pair_by_chance(draw: Draw) -> Case:
    arguments = _pair(draw.numbers, draw.one_of(1, 2, 5, 9), ties=draw.one_of(False, True))
    return Case("sizes by chance", arguments, any_dtype(draw))


def _loss_of(run: Run, case: Case, what: str, **changes: Any) -> Problem | None:
    wanted, slack = run.expected(case, **changes)
    return compare(wanted, run.value(case, **changes), slack, what)


def _equal(run: Run, case: Case) -> Problem | None:
    second = case.arguments["first"]
    return _loss_of(run, case, "the loss of equal scores", second=second, preference=None)


def _clear(run: Run, case: Case, gap: float = 30.0) -> Problem | None:
    first = np.full_like(case.arguments["first"], gap)
    second = np.zeros_like(first)
    what = f"where the preferred score is {abs(gap):g} {'higher' if gap > 0 else 'lower'}, the loss"
    return _loss_of(run, case, what, first=first, second=second, preference=None)


def _tie(run: Run, case: Case) -> Problem | None:
    first = case.arguments["first"]
    half = np.full_like(first, 0.5)
    what = "where all comparisons are ties, the loss"
    return _loss_of(run, case, what, first=first + 1.0, second=first, preference=half)


def _shifted(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    other = case.changed(first=a["first"] - 4.0, second=a["second"] - 4.0)
    sizes = max(np.abs(a["first"]).max(), np.abs(a["second"]).max()) + 4.0
    tolerance = (
        run.expected(case)[1] + run.expected(other)[1] + 4 * torch.finfo(case.dtype).eps * sizes
    )
    found = compare(
        run.value(case), run.value(other), tolerance, "with all scores 4 lower, the loss"
    )
    return found


BRADLEY_TERRY = Spec(
    name="bradley_terry_loss",
    statement="bradley_terry_loss(first, second, preference): the mean of -(p log sigmoid(first - second) + (1 - p) log "
    "sigmoid(second - first)), where p is the preference: 1 the first answer, 0 the second, 0.5 a tie; 1 if there is "
    "none. first, second and preference (B) -> ()",
    required=("first", "second"),
    reference=reference.bradley_terry_loss,
    baseline=mutants.bradley_terry,
    cases=_pair_cases,
    combine=_pair_by_chance,
    num_drawn=4,
    checks=(
        Check("equal scores cost ln 2", "Each wins with a probability of 1/2.", _equal),
        Check("scores have no zero", "Only differences of scores count.", _shifted),
        Check(
            "a clear winner costs nothing",
            "The higher the preferred answer's score is, the smaller the loss.",
            _clear,
        ),
        Check(
            "a clear loser stays finite",
            "Use logsigmoid: the sigmoid of -800 is 0, and its logarithm infinite.",
            partial(_clear, gap=-800.0),
        ),
        Check(
            "a tie pulls scores together",
            "A preference of 0.5 is half a comparison each way.",
            _tie,
        ),
    ),
    mutants=mistakes_in(mutants, "bradley_terry_loss"),
    chapter=22,
)

# --- The best of n --------------------------------------------------------------------------------


def _answers(rng: np.random.Generator, shape: tuple[int, ...], n: int) -> dict[str, Any]:
    """Scores that do not tie, utilities without a relation to them."""
    scores = rng.permuted(np.broadcast_to(np.arange(shape[-1]) / 2.0, shape), axis=-1)
    return {"scores": scores - 1.0, "utilities": rng.normal(size=shape), "n": n}


def _answer_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, shape, n, dtype=torch.float64) -> Case:
        return Case(label, _answers(rng, shape, n), dtype)

    tied = _answers(rng, (5,), 2) | {"scores": np.array([1.0, 2.0, 1.0, 2.0, 0.0])}
    many = _answers(rng, (32,), 2) | {"scores": np.zeros(32)}  # an unstable sort shows here
    return [
        case("one answer", (1,), 1),
        case("two of three", (3,), 2),
        case("one of four", (4,), 1),
        case("all of four", (2, 4), 4),
        case("three of seven", (2, 7), 3),
        case("two batch axes", (2, 3, 5), 2),
        Case("equal scores", tied),
        case("float32", (3, 6), 4, torch.float32),
        Case("transposed tensors", transposed(_answers(rng, (3, 5), 3))),
        Case("many equal scores", many),
    ]


def _best_by_chance(draw: Draw) -> Case:
    count = draw.one_of(1, 2, 4, 7)
    n = int(draw.numbers.integers(1, count + 1))
    shape = (*draw.one_of((), (2,), (2, 3)), count)
    return Case("sizes by chance", _answers(draw.numbers, shape, n), any_dtype(draw))


def _one_answer(run: Run, case: Case) -> Problem | None:
    wanted, slack = run.expected(case, n=1)
    return compare(wanted, run.value(case, n=1), slack, "with n = 1, the result")


def _all_answers(run: Run, case: Case) -> Problem | None:
    count = case.arguments["scores"].shape[-1]
    wanted, slack = run.expected(case, n=count)
    return compare(wanted, run.value(case, n=count), slack, "with n = N, the result")


def _useless(run: Run, case: Case) -> Problem | None:
    """Each utility once at each rank: on average that of any answer."""
    count = case.arguments["scores"].shape[-1]
    utilities = np.stack([np.roll(np.arange(count) + 1.0, shift) for shift in range(count)])
    scores = np.broadcast_to(np.arange(count, dtype=float), utilities.shape)
    changes = {"scores": scores, "utilities": utilities}
    slack = count * float(run.expected(case, **changes)[1])
    found = run.value(case, **changes).mean(keepdims=True)
    wanted = np.full_like(found, utilities.mean())
    return compare(wanted, found, slack, "averaged over scores that know nothing, the result")


def _any_order(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    other = case.changed(scores=a["scores"][..., ::-1], utilities=a["utilities"][..., ::-1])
    return stays(run, case, other, "the answers come in the opposite order", "the result")


BEST_OF_N = Spec(
    name="best_of_n_mean",
    statement="best_of_n_mean(scores, utilities, n): the mean, over all ways to choose n of the N answers, of the utility "
    "of the chosen answer with the highest score (the earlier one among equals). scores and utilities (*batch, N) -> "
    "(*batch)",
    required=("scores", "utilities", "n"),
    reference=reference.best_of_n_mean,
    baseline=mutants.best_of,
    cases=_answer_cases,
    combine=_best_by_chance,
    num_drawn=4,
    checks=(
        Check(
            "the order of the answers does not matter",
            "All choices of n answers are alike.",
            _any_order,
            when=lambda case: "equal scores" not in case.label,
        ),
        Check(
            "one of N answers: their mean", "With n = 1 there is nothing to choose.", _one_answer
        ),
        Check(
            "a useless score is no better than chance",
            "The score chooses, not the utility.",
            _useless,
            when=lambda case: case.dtype == torch.float64,
        ),
        Check(
            "all N answers: the best score is kept",
            "With n = N the result is the utility of the answer with the highest score.",
            _all_answers,
        ),
    ),
    mutants=mistakes_in(mutants, "best_of_n_mean"),
    chapter=22,
)

# --- A browser --------------------------------------------------------------------------------------

LINES = [
    ["mask: hides keys", "mean: a sum, divided"],
    [
        "bias: a constant",
        "beam: several prefixes",
        "batch: several texts",
        "bit: 0 or 1",
        "byte: 8 bits",
    ],
    [
        "key: compared with a query",
        "kernel: a function",
        "knot: where pieces meet",
        "keys and mask",
    ],
]


def build(candidate: Any, arguments: dict[str, Any]) -> Callable[..., Tensor]:
    """A function that runs a script on a new browser and reads its state after each action."""
    return partial(run_script, candidate)


def run_script(candidate: Any, lines, script, window, max_actions) -> Tensor:
    """Rows of the open page or -1, the first visible line, quotes, actions left, finished."""
    pages = [Page("", tuple(page)) for page in lines]
    browser, rows = candidate(pages, window=window, max_actions=max_actions), []
    for action, argument in script:
        with contextlib.suppress(ValueError, RuntimeError):  # refused: the state must be as before
            getattr(browser, action)(*(() if argument is None else (argument,)))
        page = -1 if browser.page is None else browser.page
        state = (page, browser.first, len(browser.quotes), browser.actions_left, browser.finished)
        rows.append([int(each) for each in state])
    return torch.tensor(rows)


def _script(*actions: tuple[str, Any], window: int = 2, max_actions: int = 20) -> dict[str, Any]:
    script = [list(action) for action in actions]
    return {"lines": LINES, "script": script, "window": window, "max_actions": max_actions}


SEARCH, DOWN, ANSWER = ("search", "keys"), ("scroll", 1), ("answer", None)


def _script_cases(rng: np.random.Generator) -> list[Case]:
    window = int(rng.integers(1, 4))
    scripts = {
        "a search": _script(SEARCH),
        "open and scroll": _script(("search", "several bits"), ("open", 0), DOWN, DOWN, DOWN),
        "nothing open": _script(DOWN, ("quote", "mask"), ("open", 0), SEARCH),
        "an answer, then more": _script(SEARCH, ("open", 0), ANSWER, DOWN, SEARCH),
        "quotes of what is not visible": _script(
            ("search", "bias"), ("open", 0), ("quote", "byte"), ("quote", "a variable"), ANSWER
        ),
        "a second page": _script(
            ("search", "several keys"), ("open", 0), DOWN, ("open", 1), SEARCH, window=1
        ),
        "three actions": _script(
            ("search", "bits"), ("open", 0), DOWN, DOWN, ANSWER, max_actions=3
        ),
        "words that are nowhere": _script(("search", "zebra"), ("open", 0)),
        "windows by chance": _script(
            ("search", "bias"),
            ("open", 0),
            DOWN,
            ("scroll", -1),
            ("quote", "beam"),
            ANSWER,
            window=window,
        ),
    }
    return [Case(label, arguments) for label, arguments in scripts.items()]


def _column(run: Run, case: Case, column: int, what: str, *actions, **limits) -> Problem | None:
    """One number of the state after each action of another script."""
    changes = _script(*actions, **limits)
    wanted, _ = run.expected(case, **changes)
    return compare(wanted[:, column], run.value(case, **changes)[:, column], 0.0, what)


def _opens(run: Run, case: Case) -> Problem | None:
    actions = (("search", "beam prefixes"), ("open", 0), SEARCH, ("open", 1))
    return _column(
        run, case, 0, "after a search for words of the second page, the open page", *actions
    )


def _top(run: Run, case: Case) -> Problem | None:
    search = ("search", "mean several")
    actions = (search, ("open", 0), DOWN, search, ("open", 1), DOWN, ("open", 1), ("open", 0))
    return _column(run, case, 1, "after each action, the first visible line", *actions, window=1)


def _end(run: Run, case: Case) -> Problem | None:
    actions = (("search", "bias"), ("open", 0), DOWN, DOWN, DOWN, ("scroll", -9))
    return _column(run, case, 1, "scrolling down, the first visible line", *actions)


def _invented(run: Run, case: Case) -> Problem | None:
    actions = (("search", "bias"), ("open", 0), ("quote", "bias: a variable"), ("quote", " "))
    return _column(run, case, 2, "after quotes that stand nowhere, their number", *actions)


def _unread(run: Run, case: Case) -> Problem | None:
    actions = (
        ("search", "bias"),
        ("open", 0),
        ("quote", "byte: 8 bits"),
        DOWN,
        DOWN,
        ("quote", "byte: 8"),
    )
    return _column(run, case, 2, "the number of quotes", *actions)


def _not_counted(run: Run, case: Case) -> Problem | None:
    actions = (("search", "bias"), ("open", 7), ("open", 0), ("quote", "no such text"), DOWN)
    return _column(run, case, 3, "after each action, the actions left", *actions)


def _limit(run: Run, case: Case) -> Problem | None:
    actions = (("search", "bias"), ("open", 0), DOWN, DOWN, ("quote", "byte"))
    problem = _column(run, case, 4, "after each action, finished or not", *actions, max_actions=3)
    return problem or _column(run, case, 1, "the first visible line", *actions, max_actions=3)


BROWSE = Spec(
    name="browse",
    statement="Browser(pages, window=, max_actions=) with search(query), open(result), scroll(windows), quote(text) and "
    "answer(). Rows of the open page's number (-1 for none), its first visible line, the number of quotes, the "
    "actions left, and whether it is finished, after each action of a script. A refused action raises, changes "
    "nothing and is not counted; after the last action, or an answer, all are refused",
    required=("lines", "script", "window", "max_actions"),
    reference=reference.browse,
    differentiable=False,
    usual=(),
    cases=_script_cases,
    build=build,
    checks=(
        Check("open opens a result", "open(i) opens the i-th page that was found.", _opens),
        Check(
            "a page opens at its top", "open() and search() set the first visible line to 0.", _top
        ),
        Check("a page has an end", "The last lines stay visible, and nothing beyond.", _end),
        Check(
            "an invented quote is refused", "A quote must stand in the visible lines.", _invented
        ),
        Check(
            "only visible lines can be quoted",
            "What stands further down has not been read.",
            _unread,
        ),
        Check("a refused action costs nothing", "Check first, then count.", _not_counted),
        Check(
            "after the last action nothing happens",
            "At 0 actions left the browser is finished, and refuses everything.",
            _limit,
        ),
    ),
    mutants=mistakes_in(mutants, "browse"),
    chapter=22,
)
