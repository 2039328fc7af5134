"""The Specs of fixed sparse patterns: OpenAI's two masks, local windows, LongNet's dilated branches."""

from __future__ import annotations

import numpy as np
import torch

from ... import reference
from ..checks import any_dtype, transposed
from ..compare import Problem, compare, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec, finite
from . import mutants

# --- Two masks ------------------------------------------------------------------------------------


def _first_wrong(wrong: np.ndarray, expected: str) -> Problem | None:
    """A Problem that names the first pair that is wrong."""
    pairs = np.argwhere(wrong)
    if not len(pairs):
        return None
    i, j = (int(n) for n in pairs[0])
    return Problem(expected.format(i=i, j=j), f"the other value at [{i}, {j}]")


def _itself(run: Run, case: Case) -> Problem | None:
    mask = run.value(case)
    return _first_wrong(np.diag(~np.diag(mask)), "True on the diagonal: query {i} has key {j}")


def _future(run: Run, case: Case) -> Problem | None:
    later = np.triu(run.value(case), 1)
    return _first_wrong(later, "False for query {i} and key {j}, which comes later")


def _shifted(run: Run, case: Case) -> Problem | None:
    mask = run.value(case)
    wrong = np.zeros_like(mask)
    wrong[1:, 1:] = mask[1:, 1:] != mask[:-1, :-1]
    return _first_wrong(wrong, "the same for [{i}, {j}] and for the pair one position before")


def _two_layers(run: Run, case: Case) -> Problem | None:
    mask = run.value(case).astype(int) | np.eye(case.arguments["length"], dtype=int)
    missing = np.tril(mask @ mask == 0)
    return _first_wrong(missing, "a path of two steps from query {i} to key {j}")


def _by_rule(run: Run, case: Case) -> Problem | None:
    """The definition, pair by pair."""
    return _first_wrong(
        run.value(case) != run.expected(case)[0], "the rule's value for query {i} and key {j}"
    )


ITSELF = Check("a query attends to itself", "Distance 0 is in the window.", _itself)
PAST = Check("no key is in the future", "Both rules of the pattern are causal: j <= i.", _future)
REACH = Check(
    "two layers reach every earlier token",
    "A step in one rule and a step in the other bridge every distance.",
    _two_layers,
)


def _mask_cases(names: tuple[str, ...], sizes: list[tuple[int, ...]]):
    def cases(rng: np.random.Generator) -> list[Case]:
        return [Case(", ".join(map(str, row)), dict(zip(names, row, strict=True))) for row in sizes]

    return cases


def _any_stride(draw: Draw) -> Case:
    length, stride = draw.one_of(5, 1, 2, 8, 17), draw.one_of(2, 1, 3, 4, 6)
    return Case("sizes by chance", {"length": length, "stride": stride})


def _any_fixed(draw: Draw) -> Case:
    length, block = draw.one_of(5, 1, 2, 8, 17), draw.one_of(2, 1, 3, 4, 6)
    summary = min(block, draw.one_of(1, 2, 3))
    return Case("sizes by chance", {"length": length, "block": block, "summary": summary})


STRIDED_MASK = Spec(
    name="strided_mask",
    statement="strided_mask(length, stride): OpenAI's strided pattern, merged into one head. Entry (i, j) is True "
    "where j <= i, and i - j is below the stride or a multiple of it. -> bool (length, length)",
    required=("length", "stride"),
    reference=reference.strided_mask,
    differentiable=False,
    cases=_mask_cases(("length", "stride"), [(4, 2), (7, 3), (12, 4), (3, 5), (1, 1), (0, 2)]),
    combine=_any_stride,
    num_drawn=4,
    checks=(
        ITSELF,
        PAST,
        Check(
            "a pair depends on the distance alone",
            "The stride is counted back from the query: one position later everything moves by one.",
            _shifted,
        ),
        REACH,
    ),
    mutants=mistakes_in(mutants, of="strided_mask"),
    chapter=17,
)

FIXED_MASK = Spec(
    name="fixed_mask",
    statement="fixed_mask(length, block, summary): OpenAI's fixed pattern, merged into one head. Entry (i, j) is "
    "True where j <= i, and j is in the block of i or one of the last `summary` positions of its block. "
    "Blocks are counted from position 0. -> bool (length, length)",
    required=("length", "block", "summary"),
    reference=reference.fixed_mask,
    differentiable=False,
    cases=_mask_cases(
        ("length", "block", "summary"),
        [(4, 2, 1), (7, 3, 1), (12, 4, 2), (3, 5, 1), (9, 3, 3), (1, 1, 1), (0, 2, 1)],
    ),
    combine=_any_fixed,
    num_drawn=4,
    checks=(
        ITSELF,
        PAST,
        REACH,
        Check(
            "a query reads its block and the summaries",
            "The residue is that of the key: j % block >= block - summary.",
            _by_rule,
        ),
    ),
    mutants=mistakes_in(mutants, of="fixed_mask"),
    chapter=17,
)


# --- Local attention ------------------------------------------------------------------------------

NAMES = ("query", "key", "value")


def _arguments(rng: np.random.Generator, batch, heads, length, widths) -> dict:
    return {
        name: rng.normal(size=(batch, heads, length, width))
        for name, width in zip(NAMES, (widths[0], *widths), strict=True)
    }


def _length(case: Case) -> int:
    return case.arguments["query"].shape[2]


def _is_long(case: Case) -> bool:
    return _length(case) > 1 and not case.is_empty


def _local_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64, **options) -> Case:
        return Case(label, _arguments(rng, *sizes) | options, dtype)

    small = (2, 3, 7, (4, 2))
    return [
        case("one head, three tokens", 1, 1, 3, (2, 3), window=2, causal=True),
        case("causal", *small, window=3, causal=True),
        case("both sides", *small, window=3),
        case("a window of one", *small, window=1, causal=True),
        case("a window longer than the sequence", *small, window=20, causal=True),
        case("a window longer than the sequence, both sides", *small, window=20),
        case("whole blocks", 1, 2, 8, (3, 5), window=4, causal=True),
        case("float32", 2, 2, 9, (6, 3), window=4, causal=True, dtype=torch.float32),
        Case("transposed tensors", transposed(_arguments(rng, *small)) | {"window": 2}),
        case("one token", 2, 2, 1, (3, 4), window=3, causal=True),
        case("no tokens", 2, 2, 0, (3, 4), window=3),
    ]


def _any_local(draw: Draw) -> Case:
    sizes = draw.one_of(1, 2), draw.one_of(1, 2, 3), draw.one_of(3, 1, 6, 11)
    widths = draw.one_of(3, 1, 6), draw.one_of(2, 1, 5)
    options = {"window": draw.one_of(2, 1, 4, 7)}
    options |= {"causal": True} if draw.one_of(True, False) else {}
    return Case(
        "sizes by chance", _arguments(draw.numbers, *sizes, widths) | options, any_dtype(draw)
    )


def _no_future(run: Run, case: Case) -> Problem | None:
    """Other last tokens: the outputs before stay."""
    changed = {n: case.arguments[n].copy() for n in ("key", "value")}
    for each in changed.values():
        each[:, :, -1] += 1.0
    last = _length(case) - 1
    before, after = run.value(case)[:, :, :last], run.value(case, **changed)[:, :, :last]
    slack = run.expected(case)[1] + run.expected(case, **changed)[1]
    return unchanged(before, after, slack, "the last token changes", "an earlier output")


def _own_softmax(run: Run, case: Case) -> Problem | None:
    """The first head by itself."""
    first = {name: case.arguments[name][:, :1] for name in NAMES}
    before, after = run.value(case)[:, :1], run.value(case, **first)
    when, slack = "the other heads are taken away", 2 * run.expected(case)[1]
    return unchanged(before, after, slack, when, "the output of the first head")


def _window_keys(run: Run, case: Case) -> Problem | None:
    """Queries of 0: the output is the mean of the values in the window."""
    zeros = np.zeros_like(case.arguments["query"])
    expected = run.spec.expected(case, query=zeros)
    got, terms = run.value(case, query=zeros), case.rounding(_length(case))
    largest = float(np.abs(case.arguments["value"]).max())
    return compare(
        np.float64(expected), got, terms * largest, "the mean of the values in the window"
    )


def _huge(run: Run, case: Case) -> Problem | None:
    """Scores of a thousand and more: the arguments are finite, and so is the answer."""
    scaled = {n: 60.0 * case.arguments[n] for n in ("query", "key")}
    got = run.value(case, **scaled)
    return None if np.isfinite(got).all() else Problem("finite numbers", "NaN or inf")


CAUSAL = "a causal query has no later keys"
LOCAL_ATTENTION = Spec(
    name="local_attention",
    statement="local_attention(query, key, value, *, window, causal=False): attention in which query i attends to "
    "the keys j with |i - j| < window; with `causal`, to those with 0 <= i - j < window. query and key "
    "(B, H, L, d), value (B, H, L, dv) -> (B, H, L, dv)",
    required=NAMES,
    reference=reference.local_attention,
    baseline=mutants.LocalFormula(),
    cases=_local_cases,
    combine=_any_local,
    num_drawn=5,
    checks=(
        Check(
            CAUSAL,
            "The window ends with the query itself: a later token changes no earlier output.",
            _no_future,
            when=lambda case: case.arguments.get("causal", False) and _is_long(case),
        ),
        Check(
            "a head has a softmax of its own",
            "The weights of each head and query sum to 1, whatever the other heads do.",
            _own_softmax,
            when=lambda case: case.arguments["query"].shape[1] > 1 and not case.is_empty,
        ),
        Check(
            "scores of a thousand stay finite",
            "Subtract the largest score before the exponential, also when sums of blocks are merged.",
            _huge,
            when=lambda case: not case.is_empty,
        ),
        Check(
            "the window has exactly its keys",
            "With queries of 0 all keys of the window have the same weight, and no other key has any.",
            _window_keys,
            when=lambda case: not case.is_empty,
        ),
    ),
    mutants=mistakes_in(mutants, of="local_attention"),
    chapter=17,
)


# --- LongNet --------------------------------------------------------------------------------------


def _longnet_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64, **options) -> Case:
        return Case(label, _arguments(rng, *sizes) | options, dtype)

    two = {"segments": (2, 4), "dilations": (1, 2)}
    three = {"segments": (2, 4, 8), "dilations": (1, 2, 4)}
    real = np.array([[True] * 7, [True] * 4 + [False] * 3])
    loud = _arguments(rng, 1, 2, 8, (4, 2))
    loud |= {name: 60.0 * loud[name] for name in ("query", "key")}
    return [
        case("one head, four tokens", 1, 1, 4, (2, 3), **two),
        case("one branch is blocks", 1, 2, 5, (3, 2), segments=(2,), dilations=(1,)),
        case("two branches", 2, 3, 8, (4, 2), **two),
        case("three branches", 1, 4, 16, (3, 2), **three),
        Case("scores of a thousand", loud | two),
        case("both directions", 1, 3, 7, (4, 2), **two, causal=False),
        case(
            "a dilation that does not divide", 1, 3, 11, (3, 2), segments=(2, 5), dilations=(1, 3)
        ),
        case(
            "neither of two dilations divides", 1, 4, 13, (3, 2), segments=(3, 6), dilations=(2, 4)
        ),
        case("queries without keys", 1, 2, 6, (3, 2), segments=(4,), dilations=(2,)),
        case("padding", 2, 3, 7, (4, 2), **two, key_mask=real),
        case("a scale of its own", 1, 2, 6, (4, 2), **two, scale=0.3),
        case("float32", 2, 2, 9, (6, 3), **three, dtype=torch.float32),
        Case(
            "all options at once, transposed tensors",
            transposed(_arguments(rng, 2, 3, 7, (4, 2)))
            | two
            | {"causal": False, "key_mask": real, "scale": 0.3},
        ),
        case("one token", 2, 2, 1, (3, 4), **two),
        case("no tokens", 2, 2, 0, (3, 4), **two),
    ]


def _any_longnet(draw: Draw) -> Case:
    sizes = draw.one_of(1, 2), draw.one_of(2, 1, 5), draw.one_of(4, 1, 7, 13)
    widths = draw.one_of(3, 1, 6), draw.one_of(2, 1, 5)
    segments, dilations = draw.one_of(
        ((2, 4), (1, 2)), ((3,), (1,)), ((2, 6), (1, 3)), ((5, 10), (2, 4)), ((2, 4, 8), (1, 2, 4))
    )
    options = {"segments": segments, "dilations": dilations}
    options |= {} if draw.one_of(True, False) else {"causal": False}
    return Case(
        "sizes by chance", _arguments(draw.numbers, *sizes, widths) | options, any_dtype(draw)
    )


def _equal_scores(run: Run, case: Case) -> Problem | None:
    """Queries of 0: the mean of the values, each counted once for every branch that it is in."""
    zeros = np.zeros_like(case.arguments["query"])
    return compare(
        np.float64(run.spec.expected(case, query=zeros)),
        run.value(case, query=zeros),
        case.rounding(2 * _length(case)) * float(np.abs(case.arguments["value"]).max()),
        "with equal scores, the mean of the values",
    )


def _support(run: Run, case: Case) -> Problem | None:
    """Values that are one-hot: entry j of an output is the attention weight of key j."""
    batch, heads, length = case.arguments["value"].shape[:3]
    one_hot = np.broadcast_to(np.eye(length), (batch, heads, length, length)).copy()
    zeros = np.zeros_like(case.arguments["query"])
    got = run.value(case, query=zeros, value=one_hot) > 0
    expected = np.asarray(run.spec.expected(case, query=zeros, value=one_hot)) > 0
    if got.shape != expected.shape or np.array_equal(got, expected):
        return None
    _, head, i, j = (int(n) for n in np.argwhere(got != expected)[0])
    attends = "attends" if expected[0, head, i, j] else "does not attend"
    return Problem(f"head {head}: query {i} {attends} to key {j}", "the opposite")


def _later_segment(run: Run, case: Case) -> Problem | None:
    """All segments but the first of the longest branch, by themselves and in the sequence."""
    start = max(case.arguments["segments"])
    later = {name: case.arguments[name][:, :, start:] for name in NAMES}
    before, after = run.value(case, **later), run.value(case)[:, :, start:]
    when, slack = "another segment stands before it", 2 * run.expected(case)[1]
    return unchanged(before, after, slack, when, "the output of a segment")


def _may_be_without(case: Case) -> bool:
    """Whether there are queries that no branch selects."""
    padded = "key_mask" in case.arguments
    return not case.is_empty and (padded or min(case.arguments["dilations"]) > 1)


def _has_two_equal_segments(case: Case) -> bool:
    longest = max(case.arguments["segments"])
    whole = all(longest % w == 0 for w in case.arguments["segments"])
    return whole and _length(case) > longest and "key_mask" not in case.arguments


LONGNET_ATTENTION = Spec(
    name="longnet_attention",
    statement="longnet_attention(query, key, value, segments, dilations, *, causal=True, key_mask, scale): "
    "LongNet's dilated attention. For each branch (w, r) the sequence is cut into segments of w positions; head h "
    "selects the positions h mod r, h mod r + r, ... of each segment, which attend to each other. The branches' "
    "outputs are mixed in proportion to their softmax denominators. key_mask (B, L): True for a key that is no "
    "padding. query and key (B, H, L, d), value (B, H, L, dv) -> (B, H, L, dv)",
    required=(*NAMES, "segments", "dilations"),
    reference=reference.longnet_attention,
    baseline=mutants.LongNetFormula(),
    cases=_longnet_cases,
    combine=_any_longnet,
    num_drawn=5,
    checks=(
        Check(
            "a query without keys gives no NaN",
            "The log-sum-exp of no keys is -inf, and -inf - (-inf) is NaN. Such a query gets zeros.",
            finite,
            when=_may_be_without,
        ),
        Check(
            "scores of a thousand stay finite",
            "Subtract the largest log-sum-exp of the branches before the exponential.",
            _huge,
            when=lambda case: not case.is_empty and not _may_be_without(case),
        ),
        Check(
            "a token does not depend on later ones",
            "Inside a segment, too, a query attends to its own and earlier positions.",
            _no_future,
            when=lambda case: case.arguments.get("causal", True) and _is_long(case),
        ),
        Check(
            "a segment does not know where it stands",
            "The positions of a branch are counted from the start of the segment.",
            _later_segment,
            when=_has_two_equal_segments,
        ),
        Check(
            "head h begins at position h",
            "Head h selects h mod r, h mod r + r, ... in each segment: together the heads select all.",
            _support,
            when=lambda case: not case.is_empty,
        ),
        Check(
            "equal scores: every key counts once per branch",
            "Mixed by their denominators, the branches are one softmax: a branch with more keys weighs more, and "
            "a key of two branches counts twice.",
            _equal_scores,
            when=lambda case: not case.is_empty,
        ),
    ),
    mutants=mistakes_in(mutants, of="longnet_attention"),
    chapter=17,
)
