"""The Specs of state spaces: the short convolution, the selective scan, and that of Mamba-2."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ... import reference
from ..checks import any_dtype, transposed
from ..compare import Problem, compare, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..recurrences import (
    both_slacks,
    causal,
    is_long,
    length_of,
    of_candidate,
    read,
    stacked,
    two_parts,
)  # fmt: skip
from ..spec import Case, Check, Run, Spec
from . import mutants


def read_features(answer: Any, arguments: dict[str, Any]) -> torch.Tensor | None:
    """The output (B, L, D), and below it the state, transposed: one tensor to compare."""
    return None if answer is None else torch.cat([answer[0], answer[1].mT], 1)


def stacked_features(formula: Any) -> Any:
    """The reference's answer, put together in the same way."""

    def answer(**arguments: Any) -> np.ndarray:
        y, state = formula(**arguments)
        return np.concatenate((y, state.swapaxes(1, 2)), 1)

    return answer


CAUSAL = causal("Whatever is computed for a token reads that token and those before it.", "x")


def _own_state(run: Run, case: Case, first: dict[str, Any], cut: int) -> np.ndarray:
    """What the candidate returns after the first part, as it is handed on: the answer has it transposed."""
    return of_candidate(run, case, first, cut).swapaxes(1, 2)


# --- The short convolution ------------------------------------------------------------------------


def _convolution(rng: np.random.Generator, batch, length, features, width) -> dict[str, Any]:
    shapes = {"x": (batch, length, features), "weight": (features, width)}
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}


def _window_state(rng: np.random.Generator, batch, length, features, width) -> np.ndarray:
    return rng.normal(size=(batch, features, width - 1))


LEFT = np.array([[True] * 6, [False, False, True, True, True, True]])
INSIDE = np.array([[True, True, False, False, True, True], [True, False, True, True, True, False]])


def _convolution_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64, state=False, bias=False, **options) -> Case:
        given = _convolution(rng, *sizes) | options
        given |= {"bias": rng.normal(size=sizes[2])} if bias else {}
        return Case(label, given | ({"state": _window_state(rng, *sizes)} if state else {}), dtype)

    small = (2, 6, 3, 4)
    return [
        case("one token", 1, 1, 1, 3),
        case("two tokens", 1, 2, 1, 2),
        case("a bias", *small, bias=True),
        case("after a state", *small, state=True, bias=True),
        case("a window longer than the text", 2, 3, 2, 6, state=True),
        case("a width of 1", 2, 4, 3, 1, bias=True),
        case("padding on the left", *small, real=LEFT, bias=True),
        case("padding on the right, after a state", *small, real=LEFT[:, ::-1], state=True),
        case("padding inside", *small, real=INSIDE, state=True, bias=True),
        case("float32", 2, 6, 2, 3, state=True, dtype=torch.float32),
        Case("transposed tensors", transposed(_convolution(rng, *small))),
        case("no tokens", 2, 0, 3, 4, state=True),
    ]


def _convolution_by_chance(draw: Draw) -> Case:
    sizes = (
        draw.one_of(2, 1), draw.one_of(5, 1, 8), draw.one_of(2, 1, 3), draw.one_of(4, 1, 2, 7),
    )  # fmt: skip
    given = _convolution(draw.numbers, *sizes)
    if draw.one_of(False, True):
        given["state"] = _window_state(draw.numbers, *sizes)
    if draw.one_of(False, True):
        given["real"] = draw.numbers.random(sizes[:2]) < 0.7
    return Case("sizes by chance", given, any_dtype(draw))


def _itself(run: Run, case: Case) -> Problem | None:
    """With weights of 0 but the last, a token is itself times that weight."""
    weight = np.zeros_like(case.arguments["weight"])
    weight[:, -1] = 2.0
    got = run.value(case, weight=weight)[:, : length_of(case)]
    expected = 2.0 * case.arguments["x"] + case.arguments.get("bias", 0.0)
    slack = run.expected(case, weight=weight)[1]
    return compare(expected, got, slack, "with all weights but the last at 0, the output")


def _masked(run: Run, case: Case) -> Problem | None:
    """Other numbers where there is padding."""
    real = case.arguments["real"][..., None]
    x = np.where(real, case.arguments["x"], 5.0)
    before, after = run.value(case), run.value(case, x=x)
    slack = both_slacks(run, case, x=x)
    return unchanged(
        before, after, slack, "padding has other numbers", "a real token's output, or the state,"
    )


def _skipped(run: Run, case: Case) -> Problem | None:
    """A row without its padding."""
    row = int(case.arguments["real"].sum(1).argmin())
    keep = case.arguments["real"][row]
    alone = {"x": case.arguments["x"][row : row + 1, keep], "real": None}
    if "state" in case.arguments:
        alone["state"] = case.arguments["state"][row : row + 1]
    rows = np.concatenate((keep, np.ones(case.arguments["weight"].shape[1] - 1, bool)))
    expected, slack = run.expected(case, **alone)
    got = run.value(case)[row : row + 1, rows]
    return compare(expected, got, slack + run.expected(case)[1], "a padded text against it alone,")


def _has_padding(case: Case) -> bool:
    real = case.arguments.get("real")
    return (
        real is not None and not case.is_empty and bool((~real).any()) and bool(real.any(1).all())
    )


SHORT_CONVOLUTION = Spec(
    name="short_convolution",
    statement="short_convolution(x, weight, bias, *, state, real) -> (output, new state). y[t] = bias + the sum over k "
    "of weight[:, k] x[t - (W - 1) + k], where the state holds the W - 1 tokens before the first, 0 by default. Tokens "
    "where real is False are skipped: no window holds them, and their output is 0. x (B, L, D), weight (D, W), bias "
    "(D), state (B, D, W - 1), real (B, L) -> (B, L, D) and (B, D, W - 1)",
    required=("x", "weight"),
    reference=stacked_features(reference.short_convolution),
    baseline=mutants.ConvolutionFormula(),
    cases=_convolution_cases,
    combine=_convolution_by_chance,
    num_drawn=5,
    read=read_features,
    checks=(
        CAUSAL,
        Check(
            "the last weight is that of the token itself",
            "The kernel is in the order of the text: its last weight belongs to the newest token.",
            _itself,
            when=lambda case: not case.is_empty and "real" not in case.arguments,
        ),
        Check(
            "padding does nothing",
            "No window and no state holds a token of padding.",
            _masked,
            when=_has_padding,
        ),
        Check(
            "padding is skipped",
            "The window of a real token holds real tokens alone, however much padding lies between them.",
            _skipped,
            when=_has_padding,
        ),
        Check(
            "a call in two parts is one call",
            "The state is the last W - 1 tokens of all so far, not of the last chunk.",
            lambda run, case: two_parts(run, case, ("x",), state=_own_state),
            when=is_long,
        ),
    ),
    mutants=mistakes_in(mutants, of="short_convolution"),
    chapter=20,
)  # fmt: skip


# --- The selective scan ---------------------------------------------------------------------------

SCANNED = ("x", "delta", "a", "b", "c")
TOKENS = ("x", "delta", "b", "c")
LARGE_STEP = 900.0  # exp(900) is more than float64 has
WIDE_STEP = 50.0  # exp(-50) is below any rounding


def _scan(rng: np.random.Generator, batch, length, features, number) -> dict[str, Any]:
    tokens = (batch, length)
    return {
        "x": rng.normal(size=(*tokens, features)),
        "delta": rng.exponential(0.5, (*tokens, features)),
        "a": -0.3 - rng.exponential(1.0, (features, number)),
        "b": rng.normal(size=(*tokens, number)),
        "c": rng.normal(size=(*tokens, number)),
    }


def _scan_state(rng: np.random.Generator, batch, length, features, number) -> np.ndarray:
    return rng.normal(size=(batch, features, number))


def _scan_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64, state=False, skip=False, **options) -> Case:
        given = _scan(rng, *sizes) | options
        given |= {"skip": rng.normal(size=sizes[2])} if skip else {}
        return Case(label, given | ({"state": _scan_state(rng, *sizes)} if state else {}), dtype)

    small, slow = (2, 6, 3, 4), _scan(rng, 1, 3, 2, 1)
    return [
        case("one token", 1, 1, 1, 2),
        case("two tokens, one feature", 1, 2, 1, 2),
        case("with a skip path", *small, skip=True),
        case("after a state", *small, state=True, skip=True),
        case("zero-order hold", *small, method="zoh", state=True),
        Case(
            "zero-order hold, steps of nearly 0",
            slow | {"delta": 1e-7 * slow["delta"], "method": "zoh"},
        ),
        case("padding on the left", *small, real=LEFT, skip=True),
        case("padding on the right, after a state", *small, real=LEFT[:, ::-1], state=True),
        case("padding inside", *small, real=INSIDE, state=True, chunk_size=2),
        case("chunks of two", *small, chunk_size=2, state=True),
        case("chunks that do not divide the text", 1, 7, 2, 3, chunk_size=3, method="zoh"),
        case("float32", 2, 5, 3, 2, state=True, dtype=torch.float32),
        Case(
            "all options at once, transposed tensors",
            transposed(_scan(rng, *small))
            | {
                "skip": rng.normal(size=3),
                "state": _scan_state(rng, *small),
                "real": INSIDE,
                "method": "zoh",
            },
        ),
        case("no tokens", 2, 0, 3, 2, state=True),
    ]


def _scan_by_chance(draw: Draw) -> Case:
    sizes = (
        draw.one_of(2, 1), draw.one_of(5, 1, 8), draw.one_of(2, 1, 3), draw.one_of(3, 1, 4),
    )  # fmt: skip
    given = _scan(draw.numbers, *sizes)
    if draw.one_of(False, True):
        given["state"] = _scan_state(draw.numbers, *sizes)
    if draw.one_of(False, True):
        given["real"] = draw.numbers.random(sizes[:2]) < 0.7
    if draw.one_of(False, True):
        given["method"] = "zoh"
    return Case("sizes by chance", given, any_dtype(draw))


def _finite(run: Run, case: Case) -> Problem | None:
    delta = np.full_like(case.arguments["delta"], LARGE_STEP)
    if not np.isfinite(run.value(case, delta=delta)).all():
        return Problem(f"finite numbers with steps of {LARGE_STEP:g}", "NaN or infinity")
    return None


def _forgets(run: Run, case: Case) -> Problem | None:
    """Where each step is large, nothing is left of the state before the call."""
    delta = np.full_like(case.arguments["delta"], WIDE_STEP)
    given = {"delta": delta, "x": np.zeros_like(case.arguments["x"])}
    a = np.full_like(case.arguments["a"], -1.0)
    got = run.value(case, **given, a=a)[:, length_of(case) :]
    return compare(np.zeros_like(got), got, case.rounding(8), "after large steps, an old state")


def _held(run: Run, case: Case) -> Problem | None:
    """Every token twice with half of the step: for an input that is held, the same as once."""
    a, length = case.arguments, length_of(case)
    twice = {n: np.repeat(a[n], 2, axis=1) for n in TOKENS}
    twice["delta"] = twice["delta"] / 2
    if "real" in a:
        twice["real"] = np.repeat(a["real"], 2, axis=1)
    once, halves = run.value(case)[:, length:], run.value(case, **twice)[:, 2 * length :]
    slack = run.expected(case)[1] + run.expected(case, **twice)[1]
    return compare(once, halves, slack, "the state after two steps of half the size")


def _newest(run: Run, case: Case) -> Problem | None:
    """After a large step a token's output is c . b delta x of that token alone."""
    a = case.arguments
    delta, decay = np.full_like(a["delta"], WIDE_STEP), np.full_like(a["a"], -1.0)
    own = WIDE_STEP * (a["b"] * a["c"]).sum(-1, keepdims=True) * a["x"]
    own = own + (a["skip"] * a["x"] if "skip" in a else 0.0)
    changes = {"delta": delta, "a": decay}
    got = run.value(case, **changes)[:, : length_of(case)]
    slack = 2 * run.expected(case, **changes)[1] + case.rounding(8) * WIDE_STEP
    return compare(own, got, slack, "after a large step, the output")


def _scan_padding(run: Run, case: Case) -> Problem | None:
    """A row without its padding: its outputs, and the state after it."""
    row = int(case.arguments["real"].sum(1).argmin())
    keep = case.arguments["real"][row]
    alone = {n: case.arguments[n][row : row + 1, keep] for n in TOKENS} | {"real": None}
    if "state" in case.arguments:
        alone["state"] = case.arguments["state"][row : row + 1]
    rows = np.concatenate((keep, np.ones(case.arguments["a"].shape[1], bool)))
    expected, slack = run.expected(case, **alone)
    got = run.value(case)[row : row + 1, rows]
    return compare(expected, got, slack + run.expected(case)[1], "a padded text against it alone,")


SELECTIVE_SCAN = Spec(
    name="selective_scan",
    statement="selective_scan(x, delta, a, b, c, *, skip, state, real, method, chunk_size) -> (output, new state). For "
    "each of D features with N states: h = exp(delta a) h + b_bar x, then y = c . h + skip x. b_bar is delta b "
    '(method="euler", the default) or b (exp(delta a) - 1) / a ("zoh"). Where real is False the step is 0. chunk_size '
    "may change how it is computed, and no number. x and delta (B, L, D), a (D, N), b and c (B, L, N), skip (D), state "
    "(B, D, N), real (B, L) -> (B, L, D) and (B, D, N)",
    required=SCANNED,
    reference=stacked_features(reference.selective_scan),
    baseline=mutants.ScanFormula(),
    cases=_scan_cases,
    combine=_scan_by_chance,
    num_drawn=5,
    read=read_features,
    checks=(
        CAUSAL,
        Check(
            "strong decays stay finite",
            "Nothing is divided by a product of decays, which goes to 0.",
            _finite,
            when=is_long,
        ),
        Check(
            "a large step forgets",
            "The old state is multiplied by exp(delta a), which is never negative and never above 1.",
            _forgets,
            when=lambda case: "state" in case.arguments and is_long(case) and "real" not in case.arguments,
        ),
        Check(
            "the newest token counts",
            "A token's output reads the state after the token was written.",
            _newest,
            when=lambda case: not case.is_empty
            and "real" not in case.arguments
            and "method" not in case.arguments,
        ),
        Check(
            "a held input is solved exactly",
            "Zero-order hold solves the differential equation for an input that is constant during a step: two steps of "
            "half the size are one.",
            _held,
            when=lambda case: case.arguments.get("method") == "zoh" and not case.is_empty
            and "chunk_size" not in case.arguments,
        ),
        Check(
            "padding does nothing",
            "Padding takes a step of 0: the state stays, it does not decay.",
            _scan_padding,
            when=_has_padding,
        ),
        Check(
            "a call in two parts is one call",
            "The second call begins with the state after the first.",
            lambda run, case: two_parts(run, case, TOKENS, state=_own_state),
            when=is_long,
        ),
    ),
    mutants=mistakes_in(mutants, of="selective_scan"),
    chapter=20,
)  # fmt: skip


# --- Mamba-2 --------------------------------------------------------------------------------------


def _ssd(rng: np.random.Generator, batch, heads, groups, length, width, number) -> dict[str, Any]:
    return {
        "x": rng.normal(size=(batch, heads, length, width)),
        "delta": rng.exponential(0.5, (batch, heads, length)),
        "a": -0.3 - rng.exponential(1.0, heads),
        "b": rng.normal(size=(batch, groups, length, number)),
        "c": rng.normal(size=(batch, groups, length, number)),
    }


def _ssd_state(rng: np.random.Generator, batch, heads, groups, length, width, number) -> np.ndarray:
    return rng.normal(size=(batch, heads, number, width))


def _ssd_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64, state=False, skip=False, **options) -> Case:
        given = _ssd(rng, *sizes) | options
        given |= {"skip": rng.normal(size=sizes[1])} if skip else {}
        return Case(label, given | ({"state": _ssd_state(rng, *sizes)} if state else {}), dtype)

    small = (2, 4, 2, 6, 3, 5)
    return [
        case("one token, one head", 1, 1, 1, 1, 2, 3),
        case("two tokens, two heads", 1, 2, 1, 2, 2, 1),
        case("four heads in two groups", *small, skip=True),
        case("after a state", *small, state=True),
        case("a group per head", 1, 3, 3, 4, 2, 2, state=True, skip=True),
        case("all options at once, padding on the left", *small, real=LEFT, skip=True, state=True),
        case(
            "padding on the right, after a state",
            *small,
            real=LEFT[:, ::-1],
            state=True,
            chunk_size=4,
        ),
        case("chunks of two", *small, chunk_size=2, state=True),
        case("chunks that do not divide the text", 1, 2, 1, 7, 2, 3, chunk_size=3, skip=True),
        case("float32", *small, state=True, dtype=torch.float32),
        Case("transposed tensors", transposed(_ssd(rng, *small))),
        case("no tokens", 2, 2, 1, 0, 3, 2, state=True),
    ]


def _ssd_by_chance(draw: Draw) -> Case:
    groups = draw.one_of(2, 1)
    sizes = (
        draw.one_of(2, 1), groups * draw.one_of(2, 1, 3), groups, draw.one_of(5, 1, 8),
        draw.one_of(2, 1, 3), draw.one_of(3, 1, 4),
    )  # fmt: skip
    given = _ssd(draw.numbers, *sizes)
    if draw.one_of(False, True):
        given["state"] = _ssd_state(draw.numbers, *sizes)
    if draw.one_of(False, True):
        given["real"] = draw.numbers.random((sizes[0], sizes[3])) < 0.7
    return Case("sizes by chance", given, any_dtype(draw))


def _no_step(run: Run, case: Case) -> Problem | None:
    """The first token has a step of 0, and then another input."""
    delta, x = case.arguments["delta"].copy(), case.arguments["x"].copy()
    delta[:, :, 0] = 0.0
    x[:, :, 0] += 1.0
    rows = slice(1, None)
    before = run.value(case, delta=delta)[:, :, rows]
    after = run.value(case, delta=delta, x=x)[:, :, rows]
    slack = run.expected(case, delta=delta)[1] + run.expected(case, delta=delta, x=x)[1]
    return unchanged(before, after, slack, "a token of step 0 changes", "what follows")


def _ssd_newest(run: Run, case: Case) -> Problem | None:
    """With decays of nearly 0 an output is (c . b) delta x of its own token."""
    a = case.arguments
    shared = a["x"].shape[1] // a["b"].shape[1]
    changes = {"a": np.full_like(a["a"], -1e4), "delta": np.maximum(a["delta"], 0.1)}
    products = np.repeat((a["b"] * a["c"]).sum(-1), shared, axis=1) * changes["delta"]
    own = products[..., None] * a["x"]
    own = own + (a["skip"][:, None, None] * a["x"] if "skip" in a else 0.0)
    got = run.value(case, **changes)[:, :, : length_of(case)]
    slack = 2 * run.expected(case, **changes)[1] + case.rounding(8)
    return compare(own, got, slack, "with decays of nearly 0, the output")


def _ssd_finite(run: Run, case: Case) -> Problem | None:
    a = np.full_like(case.arguments["a"], -1e4)
    if not np.isfinite(run.value(case, a=a)).all():
        return Problem("finite numbers with a of -10,000", "NaN or infinity")
    return None


def _own_group(run: Run, case: Case) -> Problem | None:
    """Other keys of the first group: the heads of the others stay."""
    b = case.arguments["b"].copy()
    shared = case.arguments["x"].shape[1] // b.shape[1]
    b[:, 0] += 1.0
    before, after = run.value(case)[:, shared:], run.value(case, b=b)[:, shared:]
    slack = both_slacks(run, case, b=b)
    return unchanged(before, after, slack, "the first group's b changes", "a head of another group")


def _around(run: Run, case: Case) -> Problem | None:
    """With c of 0 only the skip path is left."""
    a = case.arguments
    c = np.zeros_like(a["c"])
    got = run.value(case, c=c)[:, :, : length_of(case)]
    expected = a["skip"][:, None, None] * a["x"]
    return compare(expected, got, run.expected(case, c=c)[1], "with c of 0, the output")


SSD = Spec(
    name="ssd",
    statement="ssd(x, delta, a, b, c, *, skip, state, real, chunk_size) -> (output, new state). For each head: h = "
    "exp(delta a) h + delta b x^T, then y = c^T h + skip x. b and c have G groups, each of H / G neighboring heads. "
    "Where real is False the step is 0. chunk_size may change how it is computed, and no number. x (B, H, L, d), delta "
    "(B, H, L), a and skip (H), b and c (B, G, L, N), state (B, H, N, d), real (B, L) -> (B, H, L, d) and (B, H, N, d)",
    required=SCANNED,
    reference=stacked(reference.ssd),
    baseline=mutants.SsdFormula(),
    cases=_ssd_cases,
    combine=_ssd_by_chance,
    num_drawn=5,
    read=read,
    checks=(
        CAUSAL,
        Check(
            "strong decays stay finite",
            "Mask the logarithms above the diagonal, then take the exponential.",
            _ssd_finite,
            when=is_long,
        ),
        Check(
            "neighboring heads share a group",
            "Head h reads group h // (H / G): repeat_interleave, not repeat.",
            _own_group,
            when=lambda case: case.arguments["b"].shape[1] > 1 and not case.is_empty,
        ),
        Check(
            "a step of 0 skips a token",
            "delta is in the decay and in what is written: a token of step 0 neither forgets nor writes.",
            _no_step,
            when=is_long,
        ),
        Check(
            "the skip path carries the input itself",
            "skip multiplies x, not delta x.",
            _around,
            needs=("skip",),
            when=lambda case: not case.is_empty,
        ),
        Check(
            "the newest token counts in full",
            "A token is decayed by the tokens after it, not by its own step.",
            _ssd_newest,
            when=lambda case: not case.is_empty and "real" not in case.arguments,
        ),
        Check(
            "a call in two parts is one call",
            "The old state is decayed by the whole second call.",
            lambda run, case: two_parts(run, case, TOKENS, state=of_candidate),
            when=is_long,
        ),
    ),
    mutants=mistakes_in(mutants, of="ssd"),
    chapter=20,
)  # fmt: skip
