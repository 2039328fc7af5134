"""The Spec of multi-head attention: a function of x and four matrices, or a module of four layers."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from ... import reference
from ...errors import BackendError
from ..attention.spec import log_slack, same_direction
from ..attention.spec import textbook as plain_attention
from ..compare import Problem, compare, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..self_attention.spec import layer
from ..spec import Case, Check, Run, Spec, finite
from ..surroundings import seeded
from . import mutants

STATEMENT = """H attentions side by side, head h with columns h d to (h + 1) d, joined, times w_output.
x (B, L, D), w_query and w_output (D, D), w_key and w_value (d_context, D) -> (B, L, D).
A function of (x, w_query, w_key, w_value, w_output, num_heads, *, context=None, mask=None, causal=False),
or a module class(d_model, num_heads) whose layers `query`, `key`, `value` and `output` are nn.Linear;
forward takes x and the options. A mask is True where a query may attend; it broadcasts with (B, H, L, S)."""
LAYERS = ("query", "key", "value", "output")
MATRICES = tuple(f"w_{name}" for name in LAYERS)


def build(candidate: Any, arguments: dict[str, Any]) -> Any:
    """A function of x and four matrices; a module gets the matrices as its layers' weights."""
    if not (isinstance(candidate, type) and issubclass(candidate, nn.Module)):
        return candidate
    module = _made(candidate, arguments)
    return partial(_with_weights, module.eval() if arguments.get("evaluation") else module)


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
    with seeded(0):
        return candidate(**sizes)


def _with_weights(
    module: nn.Module,
    x: Tensor,
    *given: Any,
    context: Tensor | None = None,
    biases: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """Call the module with these weights and biases in place of its own; no biases are 0."""
    weights = {}
    for place, (name, matrix) in enumerate(zip(LAYERS, given[:4], strict=True)):
        weights[f"{name}.weight"] = matrix.T
        if layer(module, name).bias is not None:
            bias = torch.zeros_like(matrix[0]) if biases is None else biases[place]
            weights[f"{name}.bias"] = bias
        elif biases is not None:
            raise BackendError("has no biases")
    options = {n: o for n, o in options.items() if n in ("mask", "causal")}
    inputs = (x,) if context is None else (x, context)
    return functional_call(module, weights, inputs, options, strict=True)


def slow(x, w_query, w_key, w_value, w_output, num_heads, *, context=None, biases=None, d_model=None,
         evaluation=False, **options):  # fmt: skip
    """The reference; a bias is one more row of a matrix, for a feature that is 1 in every token."""
    if biases is None:
        weights = (w_query, w_key, w_value)
        return reference.multi_head(x, *weights, w_output, num_heads, context=context, **options)
    pairs = zip((w_query, w_key, w_value), biases, strict=False)
    weights = [np.concatenate([matrix, bias[None]]) for matrix, bias in pairs]
    x, context = (
        None if t is None else np.concatenate([t, np.ones_like(t[..., :1])], -1)
        for t in (x, context)
    )
    return (
        reference.multi_head(x, *weights, w_output, num_heads, context=context, **options)
        + biases[3]
    )


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, tokens, num_heads, *, context=None, kv=None, dtype=torch.float64, spread=1.0,
             turned=False, biases=False, **options):  # fmt: skip
        """tokens (B, L, D), context (B, S, d_context), kv key/value heads; turned: as (L, B, D)."""
        width, source = tokens[-1], context or tokens
        kv_width = width // num_heads * (kv or num_heads)
        columns = {"w_query": width, "w_key": kv_width, "w_value": kv_width, "w_output": width}
        rows = {"w_query": width, "w_key": source[-1], "w_value": source[-1], "w_output": width}
        arguments: dict[str, Any] = {"x": spread * rng.normal(size=tokens)}
        if turned:
            arguments["x"] = arguments["x"].swapaxes(0, 1).copy().swapaxes(0, 1)
        for name in MATRICES:
            size = (rows[name], columns[name])
            arguments[name] = 1.5 * rng.normal(size=size) * rows[name] ** -0.5
        arguments["num_heads"] = num_heads
        if context is not None:
            options["context"] = rng.normal(size=context)
        if kv is not None:
            options["num_kv_heads"] = kv
        if biases:
            options["biases"] = rng.normal(size=(4, width))
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
        case("grouped-query attention", (2, 3, 12), 6, kv=2),
        case("one KV head for all", (2, 4, 6), 3, kv=1),
        case("float32", (2, 5, 8), 2, dtype=torch.float32, mask=padding([5, 2], 5)),
        case("bfloat16", (2, 4, 6), 3, dtype=torch.bfloat16, causal=True),
        case("freshly made", (2, 4, 6), 2, d_model=6),
        case("float16", (2, 4, 6), 2, dtype=torch.float16, mask=padding([4, 2], 4)),
        case("one number per head", (1, 3, 2), 2),
        case("tokens of large magnitude", (2, 4, 6), 2, spread=40.0),
        case("scores above 88 in float32", (2, 4, 6), 2, spread=12.0, dtype=torch.float32),
        case("transposed in memory", (2, 4, 6), 3, turned=True),
        case("causal with a context", (2, 3, 6), 2, context=(2, 5, 6), causal=True),
        case("a mask of rank 2", (2, 4, 6), 2, mask=random_mask(4, 4)),
        case("a mask for each sample and head", (2, 4, 6), 3, mask=random_mask(2, 3, 4, 4)),
        case("nothing but padding", (3, 4, 6), 2, mask=padding([2, 0, 4], 4)),
        case("causal, padded on the left", (2, 5, 6), 2, causal=True,
             mask=padding([3, 4], 5)[..., ::-1].copy()),
        case("grouped-query attention, causal", (2, 4, 8), 4, kv=2, causal=True),
        case("grouped-query attention, a mask for each", (2, 4, 8), 4, kv=2, mask=random_mask(2, 4, 4, 4)),
        case("grouped-query attention and a context", (2, 3, 8), 4, kv=2, context=(2, 5, 6)),
        case("biases", (2, 4, 6), 2, biases=True),
        case("biases and a context", (2, 3, 6), 3, biases=True, context=(2, 4, 5)),
        case("in evaluation", (2, 4, 6), 2, evaluation=True),
        case("in evaluation, causal", (2, 4, 6), 2, evaluation=True, causal=True),
        case("causal, past 64 tokens", (1, 70, 2), 2, causal=True),
    ]  # fmt: skip


def _drawn(draw: Draw) -> Case:
    """Any options together, in any dtype."""
    rng = draw.numbers
    batch, length, width = draw.one_of((2, 3, 6), (1, 5, 6), (3, 2, 6))
    heads, kv = draw.one_of((2, None), (3, None), (6, 2), (6, None))
    source = draw.one_of(None, (batch, 4, width), (batch, length, width))
    keys = source[1] if source else length
    ranks = ((length, keys), (batch, 1, 1, keys), (batch, heads, length, keys))
    columns = width if kv is None else width // heads * kv
    sizes = {"w_query": width, "w_key": columns, "w_value": columns, "w_output": width}
    arguments = {"x": rng.normal(size=(batch, length, width))}
    arguments |= {name: rng.normal(size=(width, size)) * 0.6 for name, size in sizes.items()}
    options = {
        "context": None if source is None else rng.normal(size=source),
        "mask": draw.maybe(lambda: rng.random(draw.one_of(*ranks)) < 0.7),
        "causal": draw.one_of(None, True),
        "num_kv_heads": kv,
    }
    dtype = draw.one_of(torch.float64, torch.float32, torch.bfloat16, torch.float16)
    return Case("options drawn at random", arguments | {"num_heads": heads} | options, dtype)


def _exact(case: Case) -> bool:
    return case.dtype == torch.float64


def _with(case: Case, *options: str) -> bool:
    """Does the case use these options and no others, in float64?"""
    every = ("context", "mask", "causal", "num_kv_heads")
    used = {name for name in every if case.arguments.get(name) is not None}
    return _exact(case) and used == set(options)


def _not_large(case: Case) -> bool:
    """No option, and no score so large that a weight vanishes."""
    return _with(case) and case.arguments["x"].size > 0 and np.abs(case.arguments["x"]).max() < 10


def _source(case: Case) -> str:
    """Where keys and values come from."""
    return "context" if case.arguments.get("context") is not None else "x"


def _readable(case: Case) -> bool:
    """Can the weights be read off the output: one sample, independent tokens, a head of its own?"""
    batch, tokens, width = case.arguments[_source(case)].shape
    return (_with(case) or _with(case, "mask")) and batch == 1 and 1 < tokens <= width


# Cases made from others, each once, with how far a right answer to them may be off.
_READABLE: WeakKeyDictionary[Case, tuple[list[Case], float]] = WeakKeyDictionary()
_BY_HEADS: WeakKeyDictionary[Case, tuple[Case, float]] = WeakKeyDictionary()


def readable(run: Run, case: Case) -> tuple[list[Case], float]:
    """The same call for every d keys: in each head number c of the output is the weight of the c-th.

    They are off by rounding, twice because the values are found with as much of it.
    """
    if case not in _READABLE:
        a, source = case.arguments, case.arguments[_source(case)][0]
        width, heads = a["w_query"].shape[1], a["num_heads"]
        d, readers = width // heads, np.linalg.pinv(source)  # of D numbers for each key
        cases = []
        for start in range(0, len(source), d):
            w_value = np.zeros((width, heads, d))
            some = readers[:, None, start : start + d]
            w_value[..., : some.shape[-1]] = some
            weights = {"w_value": w_value.reshape(width, width), "w_output": np.eye(width)}
            cases.append(case.changed(**weights))
        slack = max(run.spec.tolerance(each, np.ones(1)) for each in cases)
        _READABLE[case] = cases, 2 * slack
    return _READABLE[case]


def by_heads(run: Run, case: Case) -> tuple[Case, float]:
    """The same call with the identity as w_output: column block h is head h."""
    if case not in _BY_HEADS:
        identity = {"w_output": np.eye(len(case.arguments["w_output"]))}
        other = case.changed(**identity)
        _BY_HEADS[case] = other, run.spec.tolerance(other, run.expected(case)[0])
    return _BY_HEADS[case]


def weights_of(run: Run, case: Case) -> tuple[np.ndarray, float]:
    """The candidate's weights (H, L, S), and how far each may be off."""
    cases, slack = readable(run, case)
    x, heads = case.arguments["x"][0], case.arguments["num_heads"]
    outputs = [run.value(each)[0].reshape(len(x), heads, -1) for each in cases]  # L H d
    weights = np.concatenate(outputs, axis=-1).transpose(1, 0, 2)
    return weights[..., : case.arguments[_source(case)].shape[1]], slack


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
    after, when = run.value(case, x=x), "the first sample changes"
    return unchanged(run.value(case)[1:], after[1:], _slack(run, case), when, "what others get")


def _slack(run: Run, case: Case) -> float:
    """How far two answers may be apart that are the same but for rounding."""
    return 2 * run.expected(case)[1]


def _reach(run: Run, case: Case) -> Problem | None:
    """Change one token: every output must move."""
    x, before = case.arguments["x"], run.value(case)
    for token in (0, x.shape[1] - 1):
        tokens = x.copy()
        tokens[:, token] += 1
        moved = np.abs(run.value(case, x=tokens) - before).max(axis=(0, 2)) > _slack(run, case)
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
    d, (blocks, slack) = a["w_query"].shape[1] // a["num_heads"], by_heads(run, case)
    before = run.value(blocks)
    for name in ("w_value", "w_query"):
        matrix = a[name].copy()
        matrix[:, :d] += 1
        after, when = run.value(blocks, **{name: matrix}), f"`{name}` changes for head 0"
        what = "what the other heads return"
        problem = unchanged(before[..., d:], after[..., d:], 2 * slack, when, what)
        if problem is not None:
            return problem
    return None


def _distribution(run: Run, case: Case) -> Problem | None:
    weights, slack = weights_of(run, case)
    if weights.min() < 0 and weights.min() < -slack:
        return Problem("weights of at least 0", f"a weight of {weights.min():.4g}")
    sums = weights.sum(-1)
    return compare(np.ones_like(sums), sums, slack * weights.shape[-1], "sums of the weights")


def _hidden(run: Run, case: Case) -> Problem | None:
    weights, slack = weights_of(run, case)
    mask = case.arguments["mask"]
    allowed = np.broadcast_to(mask[0] if mask.ndim == 4 else mask, weights.shape)
    return compare(allowed, weights > slack, 0.0, "which keys have weight")


def _padding(run: Run, case: Case) -> Problem | None:
    """What stands in padded places must not reach the outputs of real ones."""
    name = _source(case)
    real = case.arguments["mask"][:, 0, 0]
    tokens = np.where(real[..., None], case.arguments[name], 50.0)
    before, after = run.value(case), run.value(case, **{name: tokens})
    kept = real if name == "x" else np.ones(before.shape[:2], dtype=bool)
    slack, when = _slack(run, case), "padding holds other numbers"
    return unchanged(before[kept], after[kept], slack, when, "every output at a real token")


def _future(run: Run, case: Case) -> Problem | None:
    name = _source(case)
    tokens = case.arguments[name].copy()
    tokens[:, -1] = -tokens[:, -1]
    before, after = run.value(case), run.value(case, **{name: tokens})
    seen = np.abs(after - before)[:, -1].max(axis=-1) > _slack(run, case)
    if case.arguments.get("mask") is None and not seen.all():
        return Problem("a last output that depends on the last key", "one that does not")
    when, what = "the last token changes", "what earlier queries get"
    return unchanged(before[:, :-1], after[:, :-1], _slack(run, case), when, what)


def _fully_masked(case: Case) -> np.ndarray:
    """Which queries (B, L) no head allows any key."""
    a = case.arguments
    shape = (len(a["x"]), a["num_heads"], a["x"].shape[1], a[_source(case)].shape[1])
    allowed = np.broadcast_to(True if a.get("mask") is None else a["mask"], shape)
    if a.get("causal"):
        allowed = allowed & np.tri(*shape[2:], k=shape[3] - shape[2], dtype=bool)
    return ~allowed.any(axis=(1, 3))


def _zero(run: Run, case: Case) -> Problem | None:
    output = run.value(case)[_fully_masked(case)]
    return compare(np.zeros_like(output), output, 0.0)


def _roles(run: Run, case: Case) -> Problem | None:
    """Up to one factor for all (the next check's), log weights are the products q.k."""
    return same_direction(_products(case), *_logs(run, case))


def _scale(run: Run, case: Case) -> Problem | None:
    """From the weights alone: log(w_0 / w_j) is the scaled difference of two products."""
    products, (logs, slack) = _products(case), _logs(run, case)
    return compare(products[..., :1] - products, logs[..., :1] - logs, slack, "ln(w_0 / w_j)")


def _logs(run: Run, case: Case) -> tuple[np.ndarray, float]:
    """Logarithms of the weights, and how far the difference of two may be off."""
    weights, slack = weights_of(run, case)
    exact = torch.from_numpy(_products(case)).softmax(-1).numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(weights), log_slack(exact, slack)


def _products(case: Case) -> np.ndarray:
    """The scaled q.k of every head."""
    a = case.arguments
    heads, d = a["num_heads"], a["w_query"].shape[1] // a["num_heads"]
    query, key = (
        (a[source][0] @ a[name]).reshape(-1, heads, d).transpose(1, 0, 2)
        for source, name in (("x", "w_query"), (_source(case), "w_key"))
    )
    return query @ key.transpose(0, 2, 1) * d**-0.5


def _order(run: Run, case: Case) -> Problem | None:
    after = np.flip(run.value(case, x=np.flip(case.arguments["x"], 1).copy()), 1)
    when, what = "the tokens are reversed", "the output of each token"
    return unchanged(run.value(case), after, _slack(run, case), when, what)


def _context(run: Run, case: Case) -> Problem | None:
    """Another context gives other outputs; the same one in another order gives the same."""
    context = case.arguments["context"]
    before = run.value(case)
    if not np.abs(run.value(case, context=-context) - before).max() > _slack(run, case):
        return Problem("other outputs for another context", "the same ones")
    after, when = run.value(case, context=np.flip(context, 1).copy()), "the context is reversed"
    return unchanged(before, after, _slack(run, case), when)


def _mixes(run: Run, case: Case) -> Problem | None:
    changes = {"w_output": 2 * case.arguments["w_output"]}
    biases = case.arguments.get("biases")
    if biases is not None:
        changes["biases"] = biases * np.array([1, 1, 1, 2])[:, None]
    half, slack = run.value(case, **changes) / 2, _slack(run, case)
    when, what = "w_output doubles", "half of the output"
    return unchanged(run.value(case), half, slack, when, what)


def _lone_head(run: Run, case: Case) -> Problem | None:
    a = case.arrays()
    alone = reference.self_attention(a["x"][0], a["w_query"], a["w_key"], a["w_value"])
    expected = reference.matmul(alone, a["w_output"])[None]
    return compare(np.asarray(expected, dtype=np.float64), run.value(case), run.expected(case)[1])


def _other_length(run: Run, case: Case) -> Problem | None:
    """Called first with fewer tokens, and with causal the other way round."""
    a = case.arguments
    others = {"x": a["x"][:, 1:], "causal": None if a.get("causal") else True}
    if a.get("mask") is not None:
        others["mask"] = None
    after = run.after_another_call(case, **others)
    when = "a call with fewer tokens came before"
    return unchanged(run.value(case), after, 2 * run.expected(case)[1], when)


def _several(case: Case) -> bool:
    return _not_large(case) and case.arguments["num_heads"] > 1


CHECKS = (
    Check(
        "no overflow",
        "The softmax overflows. Subtract the row's maximum before the exponential.",
        finite,
        when=lambda case: np.abs(case.arguments["x"]).max(initial=0.0) > 10,
    ),
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
        when=lambda case: _not_large(case) and len(case.arguments["x"]) > 1,
    ),
    Check(
        "every token reaches every token",
        "Without a mask each output depends on each token. Heads cut the width, not the sequence.",
        _reach,
        when=_not_large,
    ),
    Check(
        "a head is blind to the others",
        "Columns h d to (h + 1) d of w_query and w_value concern head h alone, at every position.",
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
        "With causal=True only the last query sees the last key: earlier outputs do not depend on it.",
        _future,
        needs=("causal",),
        when=_exact,
    ),
    Check(
        "a fully masked row is zero",
        "A query that may attend to nothing gets nothing: no mean of the values, and no NaN.",
        _zero,
        when=lambda case: case.arguments.get("biases") is None and bool(_fully_masked(case).any()),
    ),
    Check(
        "rows ask, columns answer",
        "In each head score (i, j) is query i times key j, not the other way round.",
        _roles,
        when=lambda case: _with(case) and _readable(case),
    ),
    Check(
        "each head has its own scale",
        "Scores are divided by sqrt(d), where d = D / H is the dimension of a head.",
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
    Check(
        "any length, call after call",
        "What one call leaves behind must not reach the next, which may be longer and have a mask.",
        _other_length,
        when=lambda case: _exact(case) and case.arguments["x"].shape[1] > 1,
    ),
)


def _baseline(x, w_query, w_key, w_value, w_output, num_heads, *, context=None, num_kv_heads=None,
              biases=None, d_model=None, evaluation=False, **options):  # fmt: skip
    context = x if context is None else context
    biases = x.new_zeros(4, 1) if biases is None else biases
    kv = num_heads if num_kv_heads is None else num_kv_heads
    query, key, value = (
        (tokens @ matrix + bias).unflatten(-1, (count, -1)).transpose(1, 2)
        for tokens, matrix, bias, count in (
            (x, w_query, biases[0], num_heads),
            (context, w_key, biases[1], kv),
            (context, w_value, biases[2], kv),
        )
    )
    heads = plain_attention(
        query, key, value, **{n: o for n, o in options.items() if o is not None}
    )
    return heads.transpose(1, 2).flatten(2) @ w_output + biases[3]


MULTI_HEAD = Spec(
    name="multi_head",
    may_refuse=True,
    statement=STATEMENT,
    required=("x", *MATRICES, "num_heads"),
    reference=slow,
    baseline=_baseline,
    cases=_cases,
    combine=_drawn,
    num_drawn=6,
    of_modules=("d_model", "biases", "evaluation"),
    checks=CHECKS,
    mutants=mistakes_in(mutants),
    build=build,
    chapter=5,
)
