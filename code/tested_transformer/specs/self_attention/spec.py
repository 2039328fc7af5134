"""The Spec of self-attention: a function of x and three matrices, or a module of three layers."""

from __future__ import annotations

from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from ... import reference
from ...errors import argument_error
from ..attention.spec import log_slack, same_direction
from ..attention.spec import textbook as plain_attention
from ..compare import Problem, compare, unchanged
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec, finite
from ..surroundings import seeded
from . import mutants

STATEMENT = """softmax((x w_query) (x w_key)^T / sqrt(d)) (x w_value), with or without batch axes.
x (*batch, L, D), w_query and w_key (D, d), w_value (D, dv) -> (*batch, L, dv).
A function of (x, w_query, w_key, w_value), or a module class(d_in, d_out, d_value=None) whose
layers `query`, `key` and `value` are nn.Linear without bias; forward takes x."""
LAYERS = ("query", "key", "value")


def build(candidate: Any, arguments: dict[str, Any]) -> Any:
    """A function of x and three matrices; a module gets the matrices as its layers' weights."""
    if not (isinstance(candidate, type) and issubclass(candidate, nn.Module)):
        return candidate
    d_in, d_out = arguments["w_query"].shape
    with seeded(0):
        module = candidate(d_in, d_out, d_value=arguments["w_value"].shape[1])
    return partial(_with_weights, module.eval() if "evaluation" in arguments else module)


def _with_weights(
    module: nn.Module, x: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor, **of_modules: Any
) -> Tensor:
    """Call the module with these weights in place of its own."""
    matrices = dict(zip(LAYERS, (w_query, w_key, w_value), strict=True))
    weights = {f"{name}.weight": matrices[name].T for name in LAYERS if layer(module, name)}
    return functional_call(module, weights, (x,), strict=True)


def layer(module: nn.Module, name: str) -> nn.Module:
    """The layer of that name. Raises: TypeError if the module has none."""
    found = getattr(module, name, None)
    if not isinstance(found, nn.Module) or not hasattr(found, "weight"):
        raise argument_error(
            TypeError, "the module", f"no layer `{name}`", f"an nn.Linear named `{name}`"
        )
    return found


def slow(x, w_query, w_key, w_value, **of_modules):
    """The reference, sample by sample."""
    if x.ndim == 2:  # L D
        return reference.self_attention(x, w_query, w_key, w_value)
    answers = [slow(sample, w_query, w_key, w_value) for sample in x]
    return np.stack(answers) if answers else np.zeros((*x.shape[:-1], w_value.shape[1]))


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(
        label, tokens, d, width, dtype=torch.float64, spread=1.0, turned=False, **of_modules
    ) -> Case:
        """tokens (*batch, L, D). Turned: in memory the last two axes are exchanged."""
        depth = tokens[-1]
        arguments = {"x": spread * rng.normal(size=tokens)}
        for name, columns in (("w_query", d), ("w_key", d), ("w_value", width)):
            arguments[name] = rng.normal(size=(depth, columns)) * depth**-0.5
        if turned:
            arguments = {
                n: a.swapaxes(-1, -2).copy().swapaxes(-1, -2) for n, a in arguments.items()
            }
        return Case(label, arguments | of_modules, dtype)

    return [
        case("two tokens", (2, 3), 2, 4),
        case("one token", (1, 4), 3, 2),
        case("three tokens", (3, 5), 2, 4),
        case("wide queries", (4, 5), 7, 3),
        case("one number a query", (3, 4), 1, 2),
        case("more tokens than their width", (6, 4), 3, 5),
        case("a batch", (2, 4, 5), 3, 6),
        case("two batch axes", (2, 3, 4, 5), 6, 2),
        case("float32", (3, 4, 6), 5, 2, torch.float32),
        case("bfloat16", (5, 6), 3, 4, torch.bfloat16),
        case("float16", (4, 6), 2, 3, torch.float16),
        case("tokens of large magnitude", (2, 4, 3), 4, 2, spread=40.0),
        case("scores above 88 in float32", (5, 4), 3, 2, torch.float32, spread=20.0),
        case("one number per token", (1, 3, 1), 1, 1),
        case("no tokens", (0, 3), 2, 4),
        case("no samples", (0, 2, 3), 2, 4),
        case("transposed in memory", (2, 3, 5), 4, 2, turned=True),
        case("in evaluation", (2, 4, 5), 3, 6, evaluation=True),
        case("freshly made", (3, 5), 4, 4, d_in=5, d_out=4),
        case("past 128 tokens", (130, 2), 1, 2),
    ]


def _made(case: Case) -> bool:
    """Is this the case of a module with weights of its own?"""
    return "d_in" in case.arguments


def _readable(case: Case) -> bool:
    """Can the weights be read off the output: independent tokens, no batch, little rounding?"""
    tokens = case.arguments["x"].shape
    exact = case.dtype == torch.float64
    return exact and not _made(case) and len(tokens) == 2 and 1 < tokens[0] <= tokens[1]


# If x w_value is the identity matrix, the output is the weights; each case is made once.
_READABLE: WeakKeyDictionary[Case, Case] = WeakKeyDictionary()


def readable(case: Case) -> Case:
    """The same call with the inverse of x for w_value: what it returns are the weights."""
    if case not in _READABLE:
        inverse = {"w_value": np.linalg.pinv(case.arguments["x"])}
        _READABLE[case] = case.changed(**inverse)
    return _READABLE[case]


def weights_of(run: Run, case: Case) -> np.ndarray:
    """The candidate's weights."""
    return run.value(readable(case))


def _products(case: Case) -> np.ndarray:
    """All q.k: what the softmax looks at."""
    a = case.arguments
    return (a["x"] @ a["w_query"]) @ (a["x"] @ a["w_key"]).T


def _logs(run: Run, case: Case) -> tuple[np.ndarray, float]:
    """Logarithms of the weights, and how far the difference of two may be off."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(weights_of(run, case))
    weights, slack = run.expected(readable(case))
    return logs, log_slack(weights, 2 * slack)  # the inverse of x is off by as much


def _apart(run: Run, case: Case) -> Problem | None:
    module = run.candidate(case.arguments["d_in"], case.arguments["d_out"])
    query, key = (layer(module, name).weight for name in ("query", "key"))
    alike = torch.equal(query, key)
    return (
        Problem("two different matrices", "the same numbers in `query` and `key`")
        if alike
        else None
    )


def _distribution(run: Run, case: Case) -> Problem | None:
    weights, (expected, slack) = weights_of(run, case), run.expected(readable(case))
    if weights.min() < 0 and weights.min() < -slack:
        return Problem("weights of at least 0", f"a weight of {weights.min():.4g}")
    slack = slack * len(weights)  # that of each weight
    return compare(expected.sum(-1), weights.sum(-1), slack, "sums of the weights")


def _roles(run: Run, case: Case) -> Problem | None:
    """Up to one factor for all (the next check's), log weights are the products q.k."""
    return same_direction(_products(case), *_logs(run, case))


def _scale(run: Run, case: Case) -> Problem | None:
    wanted = _products(case) * case.arguments["w_query"].shape[1] ** -0.5
    got, slack = _logs(run, case)
    first = wanted[:, :1] - wanted
    return compare(first, got[:, :1] - got, slack, "ln(w_0 / w_j)")


def _order(run: Run, case: Case) -> Problem | None:
    reversed_ = run.value(case, x=np.flip(case.arguments["x"], -2).copy())
    slack = 2 * run.expected(case)[1]
    return unchanged(
        np.flip(run.value(case), -2), reversed_, slack, "the tokens are reversed",
        "the output of each token",
    )  # fmt: skip


def _samples(run: Run, case: Case) -> Problem | None:
    x = case.arguments["x"].copy()
    x[0] = -x[0]
    slack, when = 2 * run.expected(case)[1], "the first sample changes"
    after = run.value(case, x=x)
    return unchanged(run.value(case)[1:], after[1:], slack, when, "the answer of the others")


def _other_length(run: Run, case: Case) -> Problem | None:
    """Called with fewer tokens first."""
    after = run.after_another_call(case, x=case.arguments["x"][..., 1:, :])
    when = "a call with fewer tokens came before"
    return unchanged(run.value(case), after, 2 * run.expected(case)[1], when)


CHECKS = (
    Check(
        "no overflow",
        "The softmax overflows. Subtract the row's maximum before the exponential.",
        finite,
        when=lambda case: np.abs(case.arguments["x"]).max(initial=0.0) > 10,
    ),
    Check(
        "queries and keys start apart",
        "Equal matrices give symmetric scores: token i is drawn to j exactly as j is to i.",
        _apart,
        needs=("d_in",),
    ),
    Check(
        "each token spends 1",
        "The weights of a token are at least 0 and sum to 1: softmax over the keys, the last axis.",
        _distribution,
        when=_readable,
    ),
    Check(
        "rows ask, columns answer",
        "Score (i, j) is the query of token i times the key of token j, not the other way round.",
        _roles,
        when=_readable,
    ),
    Check(
        "the width of a query sets the scale",
        "Scores are divided by sqrt(d), where d is the width of a query, not that of a token.",
        _scale,
        when=_readable,
    ),
    Check(
        "reordered tokens, reordered outputs",
        "Self-attention does not know the order of tokens: turned round, the outputs turn round.",
        _order,
    ),
    Check(
        "a sample sees only itself",
        "Changing the first sample of a batch must leave the others alone.",
        _samples,
        when=lambda case: case.arguments["x"].ndim > 2 and len(case.arguments["x"]) > 1,
    ),
    Check(
        "any length, call after call",
        "What one call leaves behind must not reach the next, which may have more tokens.",
        _other_length,
        when=lambda case: (
            case.dtype == torch.float64 and not _made(case) and case.arguments["x"].shape[-2] > 1
        ),
    ),
)


def _baseline(x, w_query, w_key, w_value, **of_modules):
    return plain_attention(x @ w_query, x @ w_key, x @ w_value)


SELF_ATTENTION = Spec(
    name="self_attention",
    statement=STATEMENT,
    required=("x", "w_query", "w_key", "w_value"),
    reference=slow,
    baseline=_baseline,
    cases=_cases,
    of_modules=("d_in", "d_out", "evaluation"),
    checks=CHECKS,
    mutants=mistakes_in(mutants),
    build=build,
    chapter=1,
)
