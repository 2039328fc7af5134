"""The Spec of multi-head attention: a function of x and four matrices, or a module of four layers."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from ... import reference
from ...errors import BackendError
from ..compare import Problem, compare
from ..mistakes import mistakes_in
from ..self_attention.spec import layer
from ..spec import EQUAL, Case, Check, Run, Spec
from . import mutants
from .mutants import HeadsFormula

STATEMENT = """H attentions side by side, head h with columns h d to (h + 1) d, joined, times w_output.
x (B, L, D), w_query and w_output (D, D), w_key and w_value (d_context, D) -> (B, L, D).
A function of (x, w_query, w_key, w_value, w_output, num_heads, *, context=None, mask=None, causal=False),
or a module class(d_model, num_heads) whose layers `query`, `key`, `value` and `output` are nn.Linear;
forward takes x and the options. A mask is True where a query may attend; it broadcasts with (B, H, L, S)."""
LAYERS = ("query", "key", "value", "output")
MATRICES = tuple(f"w_{name}" for name in LAYERS)
ROUNDING = 1e-9  # between two answers in float64 that should be the same


def build(candidate: Any, arguments: dict[str, Any]) -> Any:
    """A function of x and four matrices; a module gets the matrices as its layers' weights."""
    if not (isinstance(candidate, type) and issubclass(candidate, nn.Module)):
        return candidate
    return partial(_with_weights, _made(candidate, arguments))


def _made(candidate: type, arguments: dict[str, Any]) -> nn.Module:
    """The module, with the sizes of the case."""
    d_model, d_context = arguments["w_query"].shape[0], arguments["w_key"].shape[0]
    sizes = {"d_model": d_model, "num_heads": arguments["num_heads"]}
    if arguments.get("num_kv_heads") is not None:
        sizes["num_kv_heads"] = arguments["num_kv_heads"]
    if d_context != d_model:
        if "d_context" not in inspect.signature(candidate).parameters:
            raise BackendError("takes no `d_context`")
        sizes["d_context"] = d_context
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return candidate(**sizes)


def _with_weights(
    module: nn.Module, x: Tensor, *given: Any, context: Tensor | None = None, **options: Any
) -> Tensor:
    """Call the module with these weights in place of its own, and biases of 0."""
    weights = {}
    for name, matrix in zip(LAYERS, given[:4], strict=True):
        weights[f"{name}.weight"] = matrix.T
        if layer(module, name).bias is not None:
            weights[f"{name}.bias"] = torch.zeros_like(matrix[0])
    options = {n: o for n, o in options.items() if n in ("mask", "causal")}
    inputs = (x,) if context is None else (x, context)
    return functional_call(module, weights, inputs, options, strict=True)


def slow(x, w_query, w_key, w_value, w_output, num_heads, d_model=None, **options):
    """The reference, without the argument that only a module takes."""
    return reference.multi_head(x, w_query, w_key, w_value, w_output, num_heads, **options)


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, tokens, num_heads, *, context=None, kv=None, dtype=torch.float64, **options):
        """tokens (B, L, D), context (B, S, d_context), kv key/value heads."""
        width, source = tokens[-1], context or tokens
        kv_width = width // num_heads * (kv or num_heads)
        columns = {"w_query": width, "w_key": kv_width, "w_value": kv_width, "w_output": width}
        rows = {"w_query": width, "w_key": source[-1], "w_value": source[-1], "w_output": width}
        arguments: dict[str, Any] = {"x": rng.normal(size=tokens)}
        for name in MATRICES:
            size = (rows[name], columns[name])
            arguments[name] = 1.5 * rng.normal(size=size) * rows[name] ** -0.5
        arguments["num_heads"] = num_heads
        if context is not None:
            options["context"] = rng.normal(size=context)
        if kv is not None:
            options["num_kv_heads"] = kv
        return Case(label, arguments | options, dtype)

    def padding(lengths, keys):
        return (np.arange(keys) < np.array(lengths)[:, None])[:, None, None]

    def random_mask(*shape):
        mask = rng.random(shape) < 0.6
        mask[..., 0] = True
        return mask

    return [
        case("one head", (1, 3, 4), 1),
        case("two heads", (1, 3, 4), 2),
        case("three heads, narrow ones", (1, 4, 6), 3),
        case("a batch", (2, 4, 6), 2),
        case("more tokens than their width", (3, 7, 4), 2),
        case("one token", (2, 1, 6), 2),
        case("one padded sentence", (1, 5, 8), 2, mask=padding([3], 5)),
        case("a mask for each head", (1, 4, 6), 2, mask=random_mask(1, 2, 4, 4)),
        case("a padded batch", (3, 5, 8), 4, mask=padding([2, 5, 3], 5)),
        case("padded on the left", (2, 6, 9), 3, mask=padding([4, 1], 6)[..., ::-1].copy()),
        case("causal", (2, 6, 9), 3, causal=True),
        case("causal and padded", (2, 5, 6), 2, causal=True, mask=padding([3, 5], 5)),
        case("a context", (2, 3, 6), 2, context=(2, 5, 6)),
        case("a padded context", (3, 4, 6), 3, context=(3, 5, 6), mask=padding([5, 2, 4], 5)),
        case("a context of another width", (2, 4, 6), 2, context=(2, 3, 5)),
        case("grouped heads", (2, 3, 12), 6, kv=2),
        case("one key head for all", (2, 4, 6), 3, kv=1),
        case("float32", (2, 5, 8), 2, dtype=torch.float32, mask=padding([5, 2], 5)),
        case("bfloat16", (2, 4, 6), 3, dtype=torch.bfloat16, causal=True),
        case("freshly made", (2, 4, 6), 2, d_model=6),
    ]


def _exact(case: Case) -> bool:
    return case.dtype == torch.float64


def _fresh(case: Case) -> bool:
    """Is this the case of a module with weights of its own?"""
    return "d_model" in case.arguments


def _with(case: Case, *options: str) -> bool:
    """Does the case use these options and no others, in float64?"""
    every = ("context", "mask", "causal", "num_kv_heads")
    used = {name for name in every if case.arguments.get(name) is not None}
    return _exact(case) and not _fresh(case) and used == set(options)


def _source(case: Case) -> str:
    """Where keys and values come from."""
    return "context" if case.arguments.get("context") is not None else "x"


def _readable(case: Case) -> bool:
    """Can the weights be read off the output: one sample, independent tokens, a head of its own?"""
    batch, tokens, width = case.arguments[_source(case)].shape
    return (_with(case) or _with(case, "mask")) and batch == 1 and 1 < tokens <= width


def weights_of(run: Run, case: Case) -> np.ndarray:
    """The candidate's weights (H, L, S): key by key, its value is 1 in each head, the others' 0."""
    source = case.arguments[_source(case)][0]
    width, heads = case.arguments["w_query"].shape[1], case.arguments["num_heads"]
    columns = []
    for reader in np.linalg.pinv(source).T:
        w_value = np.zeros_like(case.arguments["w_value"])
        w_value[:, :: width // heads] = reader[:, None]
        output = run.value(case, w_value=w_value, w_output=np.eye(width))
        columns.append(output[0, :, :: width // heads].T)
    return np.stack(columns, axis=-1)


def _apart(run: Run, case: Case) -> Problem | None:
    module = run.candidate(case.arguments["d_model"], case.arguments["num_heads"])
    weights = {name: layer(module, name).weight for name in LAYERS}
    for i, first in enumerate(LAYERS):
        for second in LAYERS[i + 1 :]:
            if torch.equal(weights[first], weights[second]):
                return Problem(
                    "four different matrices", f"the same numbers in `{first}` and `{second}`"
                )
    return None


def _samples(run: Run, case: Case) -> Problem | None:
    x = case.arguments["x"].copy()
    x[0] = -x[0]
    return compare(run.value(case)[1:], run.value(case, x=x)[1:], ROUNDING)


def _reach(run: Run, case: Case) -> Problem | None:
    """Change one token: every output must move."""
    x, before = case.arguments["x"], run.value(case)
    for token in (0, x.shape[1] - 1):
        tokens = x.copy()
        tokens[:, token] += 1
        moved = np.abs(run.value(case, x=tokens) - before).max(axis=(0, 2)) > ROUNDING
        if not moved.all():
            places = np.flatnonzero(moved).tolist()
            return Problem(
                f"token {token} changed: all {len(moved)} outputs move",
                f"only those of places {places} move",
            )
    return None


def _blind(run: Run, case: Case) -> Problem | None:
    """With the identity as w_output, column block h is head h: change head 0's matrices."""
    a = case.arguments
    width, d = a["w_query"].shape[1], a["w_query"].shape[1] // a["num_heads"]
    before = run.value(case, w_output=np.eye(width))
    for name in ("w_value", "w_query"):
        matrix = a[name].copy()
        matrix[:, :d] += 1
        after = run.value(case, w_output=np.eye(width), **{name: matrix})
        problem = compare(before[..., d:], after[..., d:], ROUNDING, "the other heads")
        if problem is not None:
            return problem
    return None


def _distribution(run: Run, case: Case) -> Problem | None:
    weights = weights_of(run, case)
    if weights.min() < -ROUNDING:
        return Problem("weights of at least 0", f"a weight of {weights.min():.4g}")
    return compare(np.ones(weights.shape[:-1]), weights.sum(-1), ROUNDING, "sums of the weights")


def _hidden(run: Run, case: Case) -> Problem | None:
    weights = weights_of(run, case)
    allowed = np.broadcast_to(case.arguments["mask"][0], weights.shape)
    return compare(allowed, weights > ROUNDING, 0.0, "which keys have weight")


def _padding(run: Run, case: Case) -> Problem | None:
    """What stands in padded places must not reach the outputs of real ones."""
    name = _source(case)
    real = case.arguments["mask"][:, 0, 0]
    tokens = np.where(real[..., None], case.arguments[name], 50.0)
    before, after = run.value(case), run.value(case, **{name: tokens})
    kept = real if name == "x" else np.ones(before.shape[:2], dtype=bool)
    return compare(before[kept], after[kept], ROUNDING, "outputs of real tokens")


def _future(run: Run, case: Case) -> Problem | None:
    x = case.arguments["x"].copy()
    x[:, -1] = -x[:, -1]
    return compare(run.value(case)[:, :-1], run.value(case, x=x)[:, :-1], ROUNDING)


def _scale(run: Run, case: Case) -> Problem | None:
    """From the weights alone: log(w_0 / w_j) is the scaled difference of two products."""
    a = case.arguments
    heads, d = a["num_heads"], a["w_query"].shape[1] // a["num_heads"]
    query, key = (
        (a[source][0] @ a[name]).reshape(-1, heads, d).transpose(1, 0, 2)
        for source, name in (("x", "w_query"), (_source(case), "w_key"))
    )
    products = query @ key.transpose(0, 2, 1) * d**-0.5
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(weights_of(run, case))
        got = logs[..., :1] - logs
    return compare(products[..., :1] - products, got, 1e-6, "ln(w_0 / w_j)")


def _order(run: Run, case: Case) -> Problem | None:
    turned = run.value(case, x=np.flip(case.arguments["x"], 1).copy())
    return compare(np.flip(run.value(case), 1), turned, ROUNDING)


def _context(run: Run, case: Case) -> Problem | None:
    """Another context gives other outputs; the same one in another order gives the same."""
    context = case.arguments["context"]
    before = run.value(case)
    if not np.abs(run.value(case, context=-context) - before).max() > ROUNDING:
        return Problem("other outputs for another context", "the same ones")
    return compare(before, run.value(case, context=np.flip(context, 1).copy()), ROUNDING)


def _mixes(run: Run, case: Case) -> Problem | None:
    doubled = run.value(case, w_output=2 * case.arguments["w_output"])
    return compare(2 * run.value(case), doubled, ROUNDING, "the output for w_output doubled")


def _lone_head(run: Run, case: Case) -> Problem | None:
    a = case.arrays()
    alone = reference.self_attention(a["x"][0], a["w_query"], a["w_key"], a["w_value"])
    expected = reference.matmul(alone, a["w_output"])[None]
    return compare(np.asarray(expected, dtype=np.float64), run.value(case), ROUNDING)


def _several(case: Case) -> bool:
    return _with(case) and case.arguments["num_heads"] > 1


CHECKS = (
    Check(
        "the layers start apart",
        "Layers that start equal give symmetric scores: each must be made anew, not copied.",
        _apart,
        needs=("d_model",),
    ),
    Check(
        "a sample sees only itself",
        "Changing the first sample of a batch must leave the others alone.",
        _samples,
        when=lambda case: _with(case) and len(case.arguments["x"]) > 1,
    ),
    Check(
        "every token reaches every token",
        "Without a mask each output depends on each token. Heads cut the width, not the sequence.",
        _reach,
        when=_with,
    ),
    Check(
        "a head is blind to the others",
        "Columns h d to (h + 1) d of w_query and w_value concern head h alone, at every place.",
        _blind,
        when=_several,
    ),
    Check(
        "the context answers",
        "Keys and values are made from the context, as a set: its order does not matter.",
        _context,
        needs=("context",),
        when=lambda case: _with(case, "context"),
    ),
    Check(
        "each head spends 1",
        "In every head the weights of a query are at least 0 and sum to 1.",
        _distribution,
        when=_readable,
    ),
    Check(
        "the mask decides",
        "Where the mask is True a query may attend; where it is False the weight is 0.",
        _hidden,
        needs=("mask",),
        when=_readable,
    ),
    Check(
        "padding changes nothing",
        "What stands in padded places must not reach the outputs of real tokens, in any sample.",
        _padding,
        needs=("mask",),
        when=lambda case: _exact(case) and case.arguments["mask"].shape[1:3] == (1, 1),
    ),
    Check(
        "the future stays hidden",
        "With causal=True, changing the last token must leave all earlier outputs alone.",
        _future,
        needs=("causal",),
        when=lambda case: _with(case, "causal"),
    ),
    Check(
        "each head has its own scale",
        "Scores are divided by sqrt(d), where d = D / H is the width of a head.",
        _scale,
        when=lambda case: _with(case) and _readable(case),
    ),
    Check(
        "reordered tokens, reordered outputs",
        "Attention does not know the order of tokens: turned round, the outputs turn round.",
        _order,
        when=_with,
    ),
    Check(
        "the output layer mixes the heads",
        "The joined heads are multiplied by w_output: doubled, it doubles the output.",
        _mixes,
        when=_several,
    ),
    Check(
        "a lone head is attention",
        "With one head this is the self-attention of chapter 1, times w_output.",
        _lone_head,
        when=lambda case: _with(case) and case.arguments["num_heads"] == 1,
    ),
    replace(EQUAL, when=lambda case: not _fresh(case)),
)


def _baseline(x, w_query, w_key, w_value, w_output, num_heads, d_model=None, **options):
    return HeadsFormula()(x, w_query, w_key, w_value, w_output, num_heads, **options)


MULTI_HEAD = Spec(
    name="multi_head",
    statement=STATEMENT,
    required=("x", *MATRICES, "num_heads"),
    reference=slow,
    baseline=_baseline,
    cases=_cases,
    checks=CHECKS,
    mutants=mistakes_in(mutants),
    build=build,
    chapter=5,
)
