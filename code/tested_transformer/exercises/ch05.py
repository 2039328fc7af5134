"""Exercises of chapter 5: multi-head attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from .. import reference
from ..specs.cache.spec import CACHE
from ..specs.checks import as_expected, transposed, varied
from ..specs.compare import Problem, compare
from ..specs.mistakes import mistake, mistakes
from ..specs.multi_head.spec import MULTI_HEAD
from ..specs.spec import SHAPE, Case, Check, Run, Spec

# --- Splitting ------------------------------------------------------------------------------------


def _split_reference(x, num_heads):
    """Number j of head h of token i is number h d + j of the token."""
    batch, length, width = x.shape
    d = width // num_heads
    heads = np.zeros((batch, num_heads, length, d), dtype=x.dtype)
    for b, h, i, j in np.ndindex(heads.shape):
        heads[b, h, i, j] = x[b, i, h * d + j]
    return heads


@mistake(
    "cut without turning",
    rejected_by="a head holds a part of every token",
    cause="reshape straight to (B, H, L, d): memory runs through a token before the next.",
)
def cut_straight(x, num_heads):
    """To the right shape in one step."""
    return x.reshape(x.shape[0], num_heads, x.shape[1], -1)


@mistake(
    "numbers dealt out like cards",
    rejected_by="equals the reference",
    cause="The width is cut into (d, H) where (H, d) is meant.",
)
def numbers_dealt_out(x, num_heads):
    """Every H-th number."""
    return x.unflatten(-1, (-1, num_heads)).permute(0, 3, 1, 2)


@mistake(
    "heads behind the tokens",
    rejected_by="the right shape and dtype",
    cause="The axes are (B, L, H, d): transpose(1, 2) is missing.",
)
def not_turned(x, num_heads):
    """Heads behind the tokens."""
    return x.unflatten(-1, (num_heads, -1))


def _split_cases(rng: np.random.Generator) -> list[Case]:
    sizes = [((1, 2, 4), 2), ((1, 3, 4), 1), ((2, 5, 6), 3), ((3, 4, 12), 4), ((2, 7, 6), 6)]
    label = "B {}, L {}, D {}, H {}"

    def arguments() -> dict[str, Any]:
        return {"x": rng.normal(size=(2, 3, 6)), "num_heads": 2}

    return [
        *(Case(label.format(*shape, h), {"x": rng.normal(size=shape), "num_heads": h})
          for shape, h in sizes),
        Case("float32", arguments(), torch.float32),
        Case("transposed tensors", transposed(arguments())),
    ]  # fmt: skip


def _own_tokens(run: Run, case: Case) -> Problem | None:
    """Fill each token with its own number: row i of every head must be i."""
    tokens = np.broadcast_to(np.arange(case.arguments["x"].shape[1])[:, None], _shape(case))
    heads = run.value(case, x=tokens.astype(np.float64))
    wanted = np.broadcast_to(np.arange(heads.shape[2])[:, None], heads.shape).astype(np.float64)
    return compare(wanted, heads, 0.0, "with every token filled with its own number, the heads")


def _shape(case: Case) -> tuple[int, ...]:
    return case.arguments["x"].shape


SPLIT_HEADS = Spec(
    name="ch05.split_heads",
    statement="split_heads(x, num_heads): from x (B, L, D) the heads (B, H, L, d), D = H d; head h gets "
    "the numbers h d to (h + 1) d of every token",
    required=("x", "num_heads"),
    reference=_split_reference,
    baseline=lambda x, num_heads: x.unflatten(-1, (num_heads, -1)).transpose(1, 2),
    cases=_split_cases,
    checks=(
        Check(
            "a head holds a part of every token",
            "Row i of each head comes from token i: cut the last axis, then turn two axes.",
            _own_tokens,
        ),
    ),
    mutants=mistakes(cut_straight, numbers_dealt_out, not_turned),
    chapter=5,
    points=2,
)  # fmt: skip

# --- The whole layer ------------------------------------------------------------------------------

OTHER_OPTIONS = ("context", "causal", "num_kv_heads", *MULTI_HEAD.of_modules)


def _has_keys(case: Case) -> bool:
    """Does the mask leave every query something? The statement says of no other what it gets."""
    mask = case.arguments.get("mask")
    return mask is None or bool(mask.any(-1).all())


WHOLE_LAYER = MULTI_HEAD.narrowed(
    lambda case: (
        all(case.arguments.get(name) is None for name in OTHER_OPTIONS) and _has_keys(case)
    ),
    name="ch05.multi_head",
    statement="multi_head(x, w_query, w_key, w_value, w_output, num_heads, mask=None): x (B, L, D), four "
    "matrices (D, D), a mask that broadcasts with (B, H, L, L), True = may attend -> (B, L, D)",
    mutants=[
        mutant
        for mutant in MULTI_HEAD.mutants
        if not isinstance(mutant.candidate, type) and mutant.rejected_by != "RuntimeError"
    ],
    points=4,
)

# --- What each head adds --------------------------------------------------------------------------


def _contributions_reference(heads, w_output):
    """Head h times its own d rows of w_output."""
    batch, count, length, d = heads.shape
    parts = np.zeros((batch, count, length, w_output.shape[1]), dtype=heads.dtype)
    for b, h in np.ndindex(batch, count):
        parts[b, h] = reference.matmul(heads[b, h], w_output[h * d : (h + 1) * d])
    return parts


def contributed(heads, w_output):
    """The baseline."""
    return heads @ w_output.unflatten(0, heads.shape[1:4:2])


@mistake(
    "the output in equal shares",
    rejected_by="a silent head adds nothing",
    cause="The whole output is divided by H.",
)
def equal_shares(heads, w_output):
    """The output, divided by the number of heads."""
    output = heads.transpose(1, 2).flatten(2) @ w_output
    return (output / heads.shape[1])[:, None].expand(-1, heads.shape[1], -1, -1)


@mistake(
    "every H-th row for a head",
    rejected_by="together they are the output",
    cause="w_output is cut into (d, H, D) where (H, d, D) is meant.",
)
def every_hth_row(heads, w_output):
    """Rows h, h + H, h + 2 H ... for head h."""
    return heads @ w_output.unflatten(0, (-1, heads.shape[1])).transpose(0, 1)


@mistake(
    "columns for rows",
    rejected_by="together they are the output",
    cause="nn.Linear keeps its matrix transposed; here w_output multiplies from the right.",
)
def columns_for_rows(heads, w_output):
    """Columns of the matrix where rows are meant."""
    return heads @ w_output.T.unflatten(0, (heads.shape[1], -1))


def _contribution_cases(rng: np.random.Generator) -> list[Case]:
    sizes = [(1, 2, 1, 1), (1, 2, 3, 2), (2, 3, 4, 2), (2, 1, 3, 5), (3, 4, 5, 3)]
    label = "B {}, H {}, L {}, d {}"

    def arguments(size, width=None) -> dict[str, np.ndarray]:
        joined = size[1] * size[3]
        w_output = rng.normal(size=(joined, width or joined))
        return {"heads": rng.normal(size=size), "w_output": w_output}

    return [
        *(Case(label.format(*size), arguments(size)) for size in sizes),
        Case("a model narrower than its heads together", arguments((2, 3, 4, 2), 5)),
        Case("float32", arguments((2, 3, 4, 2)), torch.float32),
        Case("transposed tensors", transposed(arguments((2, 3, 4, 2)))),
    ]


def _sum_is_output(run: Run, case: Case) -> Problem | None:
    a = case.arrays()  # in the reference's dtype, where what follows does not round
    joined = a["heads"].transpose(0, 2, 1, 3).reshape(len(a["heads"]), a["heads"].shape[2], -1)
    wanted = joined @ a["w_output"]
    found = run.value(case).astype(wanted.dtype).sum(1)
    far = a["heads"].shape[1] * run.expected(case)[1]
    return compare(wanted, found, far, "the sum over the heads")


def _silent(run: Run, case: Case) -> Problem | None:
    heads = case.arguments["heads"].copy()
    heads[:, 0] = 0
    return as_expected(run, varied(case, "silent", heads=heads), "with head 0 silent, the answer")


CONTRIBUTIONS = Spec(
    name="ch05.contributions",
    statement="contributions(heads, w_output): what each head adds to the output; heads (B, H, L, d), "
    "w_output (H d, D) -> (B, H, L, D)",
    required=("heads", "w_output"),
    reference=_contributions_reference,
    baseline=contributed,
    cases=_contribution_cases,
    checks=(
        Check(
            "together they are the output",
            "Added up over the heads, the contributions are Concat(heads) w_output.",
            _sum_is_output,
        ),
        Check(
            "a silent head adds nothing",
            "If a head is zero its contribution is zero, and those of the others stay.",
            _silent,
        ),
        SHAPE,
    ),
    mutants=mistakes(equal_shares, every_hth_row, columns_for_rows),
    chapter=5,
    points=3,
)  # fmt: skip

# --- A head as one matrix -------------------------------------------------------------------------


def _head_forms_reference(w_query, w_key, num_heads):
    """W_q^h (W_k^h)^T / sqrt(d), head by head."""
    d = w_query.shape[1] // num_heads
    root = w_query.dtype.type(d) ** w_query.dtype.type(0.5)
    forms = []
    for h in range(num_heads):
        own = slice(h * d, (h + 1) * d)
        forms.append(reference.matmul(w_query[:, own], w_key[:, own].T) / root)
    return np.stack(forms)


def _head_forms(w_query, w_key, num_heads, scale):
    queries, keys = (w.unflatten(-1, (num_heads, -1)).transpose(0, 1) for w in (w_query, w_key))
    return queries @ keys.mT * scale(queries.shape[-1])


@mistake(
    "forms without the scale",
    rejected_by="equals the reference",
    cause="1/sqrt(d) is part of the scaled scores.",
)
def forms_without_scale(w_query, w_key, num_heads):
    """The product alone."""
    return _head_forms(w_query, w_key, num_heads, lambda d: 1.0)


@mistake(
    "forms with the scale of the width",
    rejected_by="equals the reference",
    cause="1/sqrt(D), where a head sums d = D / H products.",
)
def forms_of_the_whole(w_query, w_key, num_heads):
    """The scale of the whole width."""
    return _head_forms(w_query, w_key, num_heads, lambda d: (d * num_heads) ** -0.5)


@mistake(
    "one form for all heads",
    rejected_by="a head has rank d",
    cause="The columns are not split among the heads.",
)
def one_form_for_all(w_query, w_key, num_heads):
    """Never split."""
    whole = w_query @ w_key.T * (w_query.shape[1] // num_heads) ** -0.5
    return whole.expand(num_heads, -1, -1)


def _form_cases(rng: np.random.Generator) -> list[Case]:

    def case(width, heads) -> Case:
        matrices = {n: rng.normal(size=(width, width)) for n in ("w_query", "w_key")}
        return Case(f"D {width}, H {heads}", {**matrices, "num_heads": heads})

    return [case(2, 2), case(4, 2), case(3, 1), case(6, 3), case(12, 4),
            replace(case(6, 2), label="float32", dtype=torch.float32)]  # fmt: skip


def _rank(run: Run, case: Case) -> Problem | None:
    forms = run.value(case)
    d = forms.shape[-1] // case.arguments["num_heads"]
    ranks = np.linalg.matrix_rank(forms)
    return None if (ranks <= d).all() else Problem(f"ranks of at most {d}", str(ranks.tolist()))


HEAD_FORMS = Spec(
    name="ch05.head_forms",
    statement="head_forms(w_query, w_key, num_heads): one matrix M for each head, (H, D, D), such that its "
    "scaled scores are x M x^T; w_query and w_key (D, D)",
    required=("w_query", "w_key", "num_heads"),
    reference=_head_forms_reference,
    baseline=lambda w_query, w_key, num_heads: _head_forms(
        w_query, w_key, num_heads, lambda d: d**-0.5
    ),
    cases=_form_cases,
    checks=(
        Check(
            "a head has rank d",
            "A head sees d numbers of each query and key: its D x D matrix has at most rank d.",
            _rank,
            when=lambda case: case.dtype == torch.float64,
        ),
    ),
    mutants=mistakes(forms_without_scale, forms_of_the_whole, one_form_for_all),
    chapter=5,
    points=3,
)  # fmt: skip

# --- Decoding with a cache ------------------------------------------------------------------------

CACHED = CACHE.narrowed(
    lambda case: case.arguments["rows"] is None,
    name="ch05.cached",
    statement="a class; each object, called with (query, key, value, mask), all (B, H, L, d), appends the "
    "chunk and returns the causal attention of its queries to everything so far; mask (B, 1, 1, S) or None",
    mutants=[m for m in CACHE.mutants if m.rejected_by != "a row takes its keys along"],
    points=4,
)

EXERCISES = (SPLIT_HEADS, WHOLE_LAYER, CONTRIBUTIONS, HEAD_FORMS, CACHED)
