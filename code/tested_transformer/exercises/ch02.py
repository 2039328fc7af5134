"""Exercises of chapter 2: scoring functions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch

from .. import reference
from ..specs.checks import as_expected, varied
from ..specs.compare import Problem, unchanged
from ..specs.mistakes import Mutant, mistake, mistakes
from ..specs.scoring.mutants import LocalFormula, squared_distances
from ..specs.scoring.spec import (
    ADDITIVE,
    KERNEL,
    LOCAL,
    cases_of,
    kernel_arguments,
)
from ..specs.spec import EQUAL, SHAPE, UNTOUCHED, Case, Check, Run, Spec

ADDITIVE_SCORES = replace(ADDITIVE, name="ch02.additive_scores", points=3)
KERNEL_REGRESSION = replace(KERNEL, name="ch02.kernel_regression", points=2)


# --- A Gaussian kernel as a dot product -----------------------------------------------------------


def weights_of_features(answer, arguments):
    """What the features are for: the softmax of their dot products.

    Raises: TypeError or ValueError that say what is wrong with the pair.
    """
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        raise TypeError("return two tensors: the features of the queries and of the keys")
    of_query, of_key = answer
    if of_query.shape[-1] != of_key.shape[-1]:
        sizes = f"{of_query.shape[-1]} and {of_key.shape[-1]}"
        raise ValueError(f"the features of queries and keys have {sizes} numbers: no dot product")
    return torch.softmax(of_query @ of_key.mT, -1)


def plain_features(query, key, bandwidth):
    """(q, 1), divided by the bandwidth twice, and (k, -|k|^2/2)."""
    ones, squares = torch.ones_like(query[..., :1]), key.square().sum(-1, keepdim=True)
    of_query = torch.cat([query, ones], -1) / bandwidth**2
    return of_query, torch.cat([key, -squares / 2], -1)


@mistake(
    "features without squares",
    rejected_by="equally near means equal weight",
    cause="-|k|^2 / 2 is missing: it depends on the key, so it does not cancel.",
)
def features_without_squares(query, key, bandwidth):
    return query / bandwidth**2, key


@mistake(
    "features with the wrong sign",
    rejected_by="equally near means equal weight",
    cause="+|k|^2 / 2: the square is subtracted in -|q - k|^2 / 2.",
)
def features_with_the_wrong_sign(query, key, bandwidth):
    ones, squares = torch.ones_like(query[..., :1]), key.square().sum(-1, keepdim=True)
    return torch.cat([query, ones], -1) / bandwidth**2, torch.cat([key, squares / 2], -1)


@mistake(
    "features with the whole square",
    rejected_by="equally near means equal weight",
    cause="-|k|^2 for -|k|^2 / 2: the exponent is (q.k - |k|^2 / 2 - |q|^2 / 2) / s^2.",
)
def features_with_the_whole_square(query, key, bandwidth):
    ones, squares = torch.ones_like(query[..., :1]), key.square().sum(-1, keepdim=True)
    return torch.cat([query, ones], -1) / bandwidth**2, torch.cat([key, -squares], -1)


@mistake(
    "features with one bandwidth",
    rejected_by="equals the reference",
    cause="Divided by the bandwidth once in all; the exponent has its square.",
)
def features_with_one_bandwidth(query, key, bandwidth):
    of_query, of_key = plain_features(query, key, 1.0)
    return of_query / bandwidth, of_key


@mistake(
    "features that saw it all",
    rejected_by="each side knows only itself",
    cause="The scores are passed off as features of the queries.",
)
def features_that_saw_it_all(query, key, bandwidth):
    scores = -squared_distances(query, key) / (2 * bandwidth**2)
    return scores, torch.eye(key.shape[-2], dtype=key.dtype).expand(*key.shape[:-1], -1)


def gaussian_weights(query, key, bandwidth):
    """The reference: the softmax of the Gaussian scores."""
    return reference.masked_softmax(reference.gaussian_scores(query, key, bandwidth))


def feature_arguments(query, keys):
    """A maker of arguments: query (*batch, L, d)."""
    make = kernel_arguments(query, keys)
    return lambda rng: {n: a for n, a in make(rng).items() if n != "value"}


def _apart(run: Run, case: Case) -> Problem | None:
    """The queries' features must not change with the keys, nor the keys' with the queries."""
    a = case.arguments
    pair = run.answer(case.tensors())
    moved_key = run.answer(case.tensors(key=a["key"] + 0.5))
    moved_query = run.answer(case.tensors(query=a["query"] + 0.5))
    for own, other, name in ((0, moved_key, "queries"), (1, moved_query, "keys")):
        if not torch.equal(pair[own], other[own]):
            return Problem(
                f"features of the {name} that know nothing of the others", "they changed"
            )
    return None


def _alone(run: Run, case: Case) -> Problem | None:
    """Two keys mirrored about the query are equally near."""
    a = case.arguments
    query, key = a["query"][..., :1, :], a["key"].copy()
    key[..., 1:2, :] = 2 * query - key[..., :1, :]
    mirrored = varied(case, "mirrored", query=query, key=key)
    got = run.value(mirrored)
    alike = 2 * run.expected(mirrored)[1]
    return unchanged(
        got[..., 0], got[..., 1], alike, "the key is mirrored about the query", "the weight"
    )


FEATURES = Spec(
    name="ch02.gaussian_features",
    statement="""gaussian_features(query, key, bandwidth) -> (of_query, of_key): features whose dot
products, after a softmax, are the weights of Gaussian kernel regression.
query (*batch, L, d), key (*batch, S, d) -> (*batch, L, m), (*batch, S, m), any m""",
    required=("query", "key", "bandwidth"),
    reference=gaussian_weights,
    baseline=plain_features,
    read=weights_of_features,
    cases=cases_of(
        ("one query, two points", feature_arguments((1, 1), 2)),
        ("numbers", feature_arguments((3, 1), 5)),
        ("vectors in a batch", feature_arguments((2, 3, 4), 5)),
    ),
    checks=(
        Check(
            "each side knows only itself",
            "A feature of a query must not depend on the keys, nor the other way round.",
            _apart,
        ),
        Check(
            "equally near means equal weight",
            "Two keys at the same distance from the query share alike: the longer must not win.",
            _alone,
        ),
    ),
    mutants=mistakes(
        features_without_squares, features_with_the_wrong_sign, features_with_the_whole_square,
        features_with_one_bandwidth, features_that_saw_it_all
    ),
    chapter=2,
    points=3,
)  # fmt: skip


# --- Local-p --------------------------------------------------------------------------------------


def _local_p_cases(rng: np.random.Generator) -> list[Case]:
    """Those with a Gaussian, whose centers lie in the sequence, as the paper's do."""
    kept = [c for c in LOCAL.cases(rng) if c.arguments["gaussian"] and "past" not in c.label]
    return [Case(c.label, {n: a for n, a in c.arguments.items() if n != "gaussian"}, c.dtype)
            for c in kept]  # fmt: skip


class _WindowAfter(LocalFormula):
    def weights(self, scores, window):
        return scores.softmax(-1) * window


def _always(formula):
    return partial(formula, gaussian=True)


LOCAL_P = Spec(
    name="ch02.local_p_weights",
    statement="""local_p_weights(scores, centers, half_width): a softmax over the places s with
|s - p| <= D, times exp(-(s - p)^2 / (2 sigma^2)), sigma = D/2.
scores (*batch, L, S), centers (*batch, L) -> (*batch, L, S)""",
    required=("scores", "centers", "half_width"),
    reference=partial(reference.local_weights, gaussian=True),
    baseline=_always(LocalFormula()),
    cases=_local_p_cases,
    checks=[replace(check, needs=()) for check in LOCAL.checks if check.needs or check.name in (
        SHAPE.name, UNTOUCHED.name, EQUAL.name, "the window reaches D places")],
    mutants=[
        *(replace(mutant, candidate=_always(mutant.candidate)) for mutant in LOCAL.mutants
          if mutant.name not in ("window after the softmax", "window like a slice")),
        Mutant(
            "window after the softmax", _always(_WindowAfter()), rejected_by="equals the reference",
            cause="The softmax ran over all keys before the window cut them off.",
        ),
    ],
    chapter=2,
    points=2,
)  # fmt: skip


# --- A bilinear form as two projections -----------------------------------------------------------


def product_of(answer, arguments):
    """What the two projections make together: W_q^T W_k.

    Raises: TypeError or ValueError that say what is wrong with the pair.
    """
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        raise TypeError("return two tensors: w_query and w_key")
    w_query, w_key = answer
    if w_query.shape[0] != arguments["rank"] or w_key.shape[0] != arguments["rank"]:
        shapes = f"{tuple(w_query.shape)} and {tuple(w_key.shape)}"
        raise ValueError(f"w_query and w_key need {arguments['rank']} rows each, got {shapes}")
    return w_query.mT @ w_key


def plain_split(weight, rank):
    """The baseline: the first `rank` singular vectors, the singular values on the left."""
    u, s, v = torch.linalg.svd(weight)
    return (u[:, :rank] * s[:rank]).mT, v[:rank]


@mistake(
    "split without singular values",
    rejected_by="full rank gives W back",
    cause="U and V alone: the singular values are left out.",
)
def split_without_singular_values(weight, rank):
    u, _, v = torch.linalg.svd(weight)
    return u[:, :rank].mT, v[:rank]


@mistake(
    "split with the values twice",
    rejected_by="full rank gives W back",
    cause="Both sides get the singular values; give each the square root, or one side all.",
)
def split_with_singular_values_twice(weight, rank):
    u, s, v = torch.linalg.svd(weight)
    return (u[:, :rank] * s[:rank]).mT, s[:rank, None] * v[:rank]


@mistake(
    "split of the first rows",
    rejected_by="full rank gives W back",
    cause="The first rows of W are kept, not its strongest directions.",
)
def split_of_the_first_rows(weight, rank):
    return torch.eye(len(weight), dtype=weight.dtype)[:rank], weight[:rank]


@mistake(
    "split with the last values",
    rejected_by="the nearest of its rank",
    cause="torch.linalg.svd sorts the singular values from large to small.",
)
def split_with_the_last(weight, rank):
    u, s, v = torch.linalg.svd(weight, full_matrices=False)
    return (u[:, -rank:] * s[-rank:]).mT, v[-rank:]


def best_of_rank(weight, rank):
    """The reference: the sum of the `rank` largest singular values' rank-one matrices."""
    left, values, right = np.linalg.svd(np.asarray(weight, dtype=np.float64))
    best = np.zeros(weight.shape)
    for n in range(rank):
        best += values[n] * np.outer(left[:, n], right[n])
    return best


def split_arguments(rows, columns, rank):
    """A maker of arguments whose singular values s, 2s, 3s, ... are well apart."""

    def make(rng: np.random.Generator) -> dict:
        left, _ = np.linalg.qr(rng.normal(size=(rows, rows)))
        right, _ = np.linalg.qr(rng.normal(size=(columns, columns)))
        middle = np.zeros((rows, columns))
        np.fill_diagonal(middle, rng.uniform(0.5, 2) * (1.0 + np.arange(min(rows, columns))))
        return {"weight": left @ middle @ right, "rank": rank}

    return make


def _whole(run: Run, case: Case) -> Problem | None:
    return as_expected(run, varied(case, "full rank", rank=min(case.arguments["weight"].shape)))


def _best(run: Run, case: Case) -> Problem | None:
    """The squared error of the best is the sum of the squares of the values left out."""
    weight, tolerance = case.arguments["weight"], run.expected(case)[1]
    error = np.linalg.norm(run.value(case) - weight)
    least = np.linalg.norm(np.linalg.svd(weight, compute_uv=False)[case.arguments["rank"] :])
    if error <= least + tolerance * weight.size**0.5:
        return None
    return Problem(f"squared error {least**2:.4g}, the least at this rank", f"{error**2:.4g}")


def _by_eigenvectors(case: Case) -> float:
    """Singular vectors are also the eigenvectors of W W^T: its product and its decomposition are each
    right up to n eps |W|_F^2, and the vectors turn by twice that over the distance of the eigenvalues."""
    weight, rank = case.arguments["weight"], case.arguments["rank"]
    values = np.append(np.linalg.svd(weight, compute_uv=False), 0.0)
    gap = values[rank - 1] ** 2 - values[rank] ** 2
    return (
        4
        * max(weight.shape)
        * torch.finfo(case.dtype).eps
        * float((values**2).sum() * values[0] / gap)
    )


SPLIT = Spec(
    name="ch02.split",
    statement="""split(weight, rank) -> (w_query, w_key): two projections whose product W_q^T W_k is
the matrix of that rank nearest to the weight.
weight (dq, dk) -> (rank, dq), (rank, dk)""",
    required=("weight", "rank"),
    reference=best_of_rank,
    baseline=plain_split,
    slack=_by_eigenvectors,
    differentiable=False,  # the factors of a given weight: nobody learns through them
    read=product_of,
    cases=cases_of(
        ("rank 1", split_arguments(3, 3, 1)),
        ("a square weight", split_arguments(4, 4, 2)),
        ("more rows than columns", split_arguments(5, 3, 2)),
        ("more columns than rows", split_arguments(3, 6, 2)),
    ),
    checks=(
        Check(
            "full rank gives W back",
            "With as many rows as W's smaller side the product is W itself.",
            _whole,
        ),
        Check(
            "the nearest of its rank",
            "Keep the largest singular values (torch.linalg.svd): nothing of that rank is nearer.",
            _best,
        ),
    ),
    mutants=mistakes(
        split_without_singular_values, split_with_singular_values_twice, split_of_the_first_rows,
        split_with_the_last
    ),
    chapter=2,
    points=3,
)  # fmt: skip

EXERCISES = (ADDITIVE_SCORES, KERNEL_REGRESSION, FEATURES, LOCAL_P, SPLIT)
