"""The Specs of DCMHA: five branches that mix heads, and an attention that masks between two compositions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ... import reference
from ...functional.composed_heads import Composition, HeadMixing
from ..checks import any_dtype
from ..compare import Problem, compare, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants

SIDES = ("down", "up", "gate")


def _sides(rng: np.random.Generator, batch, heads, length, keys, rank) -> dict[str, Any]:
    found = {}
    for side, count in (("query", length), ("key", keys)):
        found[f"{side}_down"] = rng.normal(size=(batch, count, rank, heads))
        found[f"{side}_up"] = 0.5 * rng.normal(size=(batch, count, rank, heads))
        found[f"{side}_gate"] = np.tanh(rng.normal(size=(batch, count, heads)))
    return found


def _composition(rng: np.random.Generator, batch, heads, length, keys, rank) -> dict[str, Any]:
    base = np.eye(heads) + 0.3 * rng.normal(size=(heads, heads))
    return {"base": base} | _sides(rng, batch, heads, length, keys, rank)


def _compose_arguments(rng: np.random.Generator, *sizes) -> dict[str, Any]:
    batch, heads, length, keys, _ = sizes
    return {"scores": rng.normal(size=(batch, heads, length, keys))} | _composition(rng, *sizes)


def _compose_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64) -> Case:
        return Case(label, _compose_arguments(rng, *sizes), dtype)

    return [
        case("two heads, one pair", 1, 2, 1, 1, 1),
        case("more keys than queries", 1, 2, 2, 3, 1),
        case("rank 2", 2, 3, 3, 3, 2),
        case("one head", 2, 1, 3, 2, 1),
        case("float32", 2, 4, 3, 4, 2, dtype=torch.float32),
        case("no keys", 1, 2, 2, 0, 1),
    ]


def _compose_by_chance(draw: Draw) -> Case:
    sizes = (
        draw.one_of(1, 2),
        draw.one_of(2, 3),
        draw.one_of(2, 1, 4),
        draw.one_of(3, 2),
        draw.one_of(1, 2),
    )
    return Case("sizes by chance", _compose_arguments(draw.numbers, *sizes), any_dtype(draw))


def _off(case: Case, *names: str) -> dict[str, np.ndarray]:
    return {name: np.zeros_like(case.arguments[name]) for name in names}


def _bound(case: Case) -> float:
    arrays = case.arguments
    heads, rank = arrays["scores"].shape[1], arrays["query_down"].shape[2]
    largest = {name: float(np.abs(a).max(initial=0.0)) for name, a in arrays.items()}
    low = rank * (
        largest["query_down"] * largest["query_up"] + largest["key_down"] * largest["key_up"]
    )
    size = heads * (largest["base"] + low + largest["query_gate"] + largest["key_gate"])
    return 4 * case.rounding(heads * rank + 8) * largest["scores"] * max(size, 1.0)


def _only_base(run: Run, case: Case) -> Problem | None:
    """With all dynamic branches off, one matrix mixes the heads of every pair."""
    names = [f"{side}_{part}" for side in ("query", "key") for part in ("up", "gate")]
    got = run.value(case, **_off(case, *names))
    arrays = case.arrays()
    wanted = np.einsum("bmls,mn->bnls", arrays["scores"], arrays["base"]).astype(np.float64)
    return compare(wanted, got, _bound(case), "with the base alone, the scores")


def _only_gates(run: Run, case: Case) -> Problem | None:
    """With the base and the low ranks off, every head is multiplied by its own two gates."""
    got = run.value(case, **_off(case, "base", "query_up", "key_up"))
    arrays = case.arrays()
    query, key = (np.swapaxes(arrays[f"{side}_gate"], 1, 2) for side in ("query", "key"))
    wanted = arrays["scores"] * (query[..., :, None] + key[..., None, :])
    return compare(wanted.astype(np.float64), got, _bound(case), "with the gates alone, the scores")


def _sides_are_alike(run: Run, case: Case) -> Problem | None:
    """Transposed scores, with queries and keys exchanged: the transposed answer."""
    arguments = case.arguments
    changes = {"scores": np.swapaxes(arguments["scores"], 2, 3).copy()}
    for part in SIDES:
        changes |= {
            f"query_{part}": arguments[f"key_{part}"],
            f"key_{part}": arguments[f"query_{part}"],
        }
    before, after = run.value(case), run.value(case, **changes)
    return unchanged(
        before, np.swapaxes(after, 2, 3), 2 * _bound(case), "queries and keys are exchanged"
    )


COMPOSE_HEADS = Spec(
    name="compose_heads",
    statement="compose_heads(scores, base, query_down, query_up, query_gate, key_down, key_up, key_gate): for each pair (i, "
    "j) with the vector a of its H scores: a base + (a . down) up + a * gate, the last two for the query i and for the key "
    "j; with R > 1 the products (a . down) up of all r are added. scores (B, H, L, S), base (H, H), query_down and "
    "query_up (B, L, R, H), query_gate (B, L, H), key_down and key_up (B, S, R, H), key_gate (B, S, H) -> (B, H, L, S)",
    required=("scores", "base", *(f"{side}_{part}" for side in ("query", "key") for part in SIDES)),
    reference=reference.compose_heads,
    baseline=mutants.ComposeFormula(),
    cases=_compose_cases,
    combine=_compose_by_chance,
    num_drawn=4,
    checks=(
        Check("the base mixes the heads of all pairs", "Heads are a row vector: a base.", _only_base),
        Check("gates act on their own head", "A gate multiplies, it mixes nothing.", _only_gates),
        Check(
            "queries and keys do the same",
            "Both sides have the same branches, each by its own token.",
            _sides_are_alike,
        ),
    ),
    mutants=mistakes_in(mutants, "compose_heads"),
    chapter=21,
)  # fmt: skip

# --- The attention --------------------------------------------------------------------------------


def _attention_arguments(rng: np.random.Generator, *sizes, d=2, d_value=3) -> dict[str, Any]:
    batch, heads, length, keys, _ = sizes
    found = {
        "query": rng.normal(size=(batch, heads, length, d)),
        "key": rng.normal(size=(batch, heads, keys, d)),
        "value": rng.normal(size=(batch, heads, keys, d_value)),
    }
    for where in ("before", "after"):
        parts = _composition(rng, *sizes)
        found |= {f"{where}_{name}": array for name, array in parts.items()}
    return found


NAMES = ("base", *(f"{side}_{part}" for side in ("query", "key") for part in SIDES))
ALL = ("query", "key", "value", *(f"{w}_{n}" for w in ("before", "after") for n in NAMES))


def _split(given: dict[str, Any]) -> dict[str, Any]:
    """before and after as tuples, from the arrays of a case."""
    rest = {name: a for name, a in given.items() if not name.startswith(("before_", "after_"))}
    return rest | {w: tuple(given[f"{w}_{name}"] for name in NAMES) for w in ("before", "after")}


def _by_reference(**given: Any) -> np.ndarray:
    return reference.composed_attention(**_split(given))


def _build(candidate: Any, arguments: dict[str, Any]) -> Any:
    """The candidate with its compositions as `Composition`."""

    def call(*given: Any, **options: Any) -> Any:
        parts = _split(dict(zip(ALL, given, strict=True)))
        for where in ("before", "after"):
            base, *sides = parts[where]
            parts[where] = Composition(base, HeadMixing(*sides[:3]), HeadMixing(*sides[3:]))
        return candidate(*parts.values(), **options)

    return call


def _attention_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64, **options) -> Case:
        return Case(label, _attention_arguments(rng, *sizes) | options, dtype)

    return [
        case("two heads", 1, 2, 2, 2, 1),
        case("causal", 1, 2, 4, 4, 1, causal=True),
        case("causal, after a cache", 2, 2, 2, 4, 2, causal=True),
        case("rank 2", 2, 3, 3, 2, 2),
        case("float32", 1, 2, 3, 3, 2, dtype=torch.float32, causal=True),
    ]


def _no_future(run: Run, case: Case) -> Problem | None:
    """The last key, its value and its mixing weights: no earlier query may change with them."""
    changes = {}
    for name, array in case.arguments.items():
        if name in ("key", "value") or "_key_" in name:
            axis = 2 if name in ("key", "value") else 1
            last = [slice(None)] * array.ndim
            last[axis] = slice(-1, None)
            changes[name] = array.copy()
            changes[name][tuple(last)] = -3 * array[tuple(last)] + 1
    before, after = run.value(case), run.value(case, **changes)
    far = 2 * run.expected(case)[1]
    return unchanged(
        before[:, :, :-1], after[:, :, :-1], far, "the last key and what it mixes change"
    )


def _plain(run: Run, case: Case) -> Problem | None:
    """Identities for bases, and nothing dynamic: the softmax of each head by itself."""
    changes = {
        name: np.zeros_like(a)
        for name, a in case.arguments.items()
        if "_gate" in name or "_up" in name
    }
    heads = case.arguments["query"].shape[1]
    changes |= {f"{where}_base": np.eye(heads) for where in ("before", "after")}
    arrays = case.arrays(**changes)
    wanted = reference.attention(
        arrays["query"], arrays["key"], arrays["value"], causal=bool(case.arguments.get("causal"))
    )
    got = run.value(case, **changes)
    largest = float(np.abs(arrays["value"]).max())
    slack = 16 * largest * case.rounding(case.arguments["key"].shape[2] + 8)
    return compare(np.asarray(wanted, np.float64), got, slack, "with nothing composed, the output")


COMPOSED_ATTENTION = Spec(
    name="composed_attention",
    statement="composed_attention(query, key, value, before, after, *, causal): scores query key^T / sqrt(d), composed by "
    "`before` as in compose_heads, softmax over the allowed keys, the weights composed by `after`, times the values",
    required=ALL,
    reference=_by_reference,
    baseline=mutants.composed_plainly,
    build=_build,
    cases=_attention_cases,
    checks=(
        Check("with nothing composed it is multi-head attention", "Identity bases, no branches.", _plain),
        Check(
            "nothing flows back from the future",
            "A later key, and the mixing weights of a later key, change no earlier output.",
            _no_future,
            when=lambda case: bool(case.arguments.get("causal")),
        ),
    ),
    mutants=mistakes_in(mutants, "composed_attention"),
    chapter=21,
)  # fmt: skip
