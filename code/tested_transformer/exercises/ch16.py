"""Exercises of chapter 16: bytes of a cache, grouped-query attention, fewer KV heads, the absorbed form, gates."""

from __future__ import annotations

import math

import numpy as np
import torch

from .. import reference
from ..specs.compare import Problem, compare, unchanged
from ..specs.latent.spec import LATENT_ATTENTION
from ..specs.mistakes import mistake, mistakes
from ..specs.retention.spec import GATED_RETENTION
from ..specs.spec import Case, Check, Run, Spec

# --- Bytes of a cache -----------------------------------------------------------------------------

SIZES = ("layers", "kv_heads", "d_head", "tokens", "item")


def _bytes_reference(layers: int, kv_heads: int, d_head: int, tokens: int, item: int) -> np.ndarray:
    """A key and a value for each token, KV head and layer."""
    total = 0
    for _ in ("key", "value"):
        total += layers * kv_heads * d_head * tokens * item
    return np.asarray(total)


@mistake(
    "keys cached without values",
    rejected_by="equals the reference",
    cause="A token leaves a key and a value in each layer: the factor 2 is missing.",
)
def keys_alone(layers, kv_heads, d_head, tokens, item):
    """Half of it."""
    return layers * kv_heads * d_head * tokens * item


@mistake(
    "a cache of one layer",
    rejected_by="twice the layers, twice the bytes",
    cause="Every layer has keys and values of its own.",
)
def one_layer(layers, kv_heads, d_head, tokens, item):
    """As if all layers had the same keys."""
    return 2 * kv_heads * d_head * tokens * item


@mistake(
    "numbers counted as bytes",
    rejected_by="twice the item, twice the bytes",
    cause="A number in float16 or bfloat16 takes two bytes, one in float32 four.",
)
def numbers_only(layers, kv_heads, d_head, tokens, item):
    """Without the bytes of a number."""
    return 2 * layers * kv_heads * d_head * tokens


def _bytes_cases(rng: np.random.Generator) -> list[Case]:
    sizes = [(40, 40, 128, 2048, 2), (32, 8, 128, 8192, 2), (32, 1, 64, 2048, 2), (3, 2, 5, 7, 4)]
    sizes += [tuple(int(n) for n in rng.integers(1, 30, size=5)) for _ in range(3)]
    return [Case(f"{row}", dict(zip(SIZES, row, strict=True))) for row in sizes]


def _twice(name: str) -> Check:
    """The check that the bytes grow in proportion to one of the sizes."""

    def test(run: Run, case: Case) -> Problem | None:
        more = run.value(case, **{name: 2 * case.arguments[name]})
        return compare(2 * run.value(case), more, 0.0, f"with {name} doubled")

    why = f"The bytes are in proportion to {name}."
    return Check(f"twice the {name}, twice the bytes", why, test)


CACHE_BYTES = Spec(
    name="ch16.cache_bytes",
    statement="cache_bytes(layers, kv_heads, d_head, tokens, item): the bytes of the key-value cache of one "
    "sequence of `tokens` tokens, if a number takes `item` bytes",
    required=SIZES,
    reference=_bytes_reference,
    differentiable=False,
    cases=_bytes_cases,
    checks=tuple(map(_twice, SIZES)),
    mutants=mistakes(keys_alone, one_layer, numbers_only),
    chapter=16,
    points=1,
)

# --- Grouped-query attention ----------------------------------------------------------------------


def _grouped(query, key, value):
    """The baseline: each KV head is repeated for its neighbors, then plain causal attention."""
    group = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(group, dim=1) for each in (key, value))
    scores = query @ key.mT / math.sqrt(query.shape[-1])  # B H L L
    future = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -math.inf).softmax(-1) @ value


def _grouped_reference(query, key, value):
    """Query head h with KV head h // (H / G)."""
    group = query.shape[1] // key.shape[1]
    heads = [
        reference.attention(query[:, h], key[:, h // group], value[:, h // group], causal=True)
        for h in range(query.shape[1])
    ]
    return np.stack(heads, axis=1)


@mistake(
    "KV heads tiled",
    rejected_by="query heads read their group's KV head",
    symptom="Right shapes; a model trained with it is fine, converted weights give nonsense.",
    cause="Tiled KV heads stand in the order 0 1 0 1; their query heads are in the order 0 0 1 1.",
    seen="onnx/onnx pull request 7274; ekzhang/jax-js pull request 180; apple/axlearn pull request 842",
)
def tiled(query, key, value):
    """repeat in place of repeat_interleave."""
    group = query.shape[1] // key.shape[1]
    key, value = (each.repeat(1, group, 1, 1) for each in (key, value))
    return _grouped(query, key, value)


@mistake(
    "the first KV head for all",
    rejected_by="a KV head concerns its own group alone",
    cause="key[:, :1] broadcasts over all query heads: that is multi-query attention.",
)
def first_for_all(query, key, value):
    """The other KV heads are not read."""
    return _grouped(query, key[:, :1], value[:, :1])


@mistake(
    "tokens repeated in place of heads",
    rejected_by="query heads read their group's KV head",
    cause="repeat_interleave along the axis of the tokens (2), not of the heads (1).",
    seen="PrimeIntellect-ai/prime-rl pull request 2681 (review)",
)
def tokens_repeated(query, key, value):
    """The wrong axis."""
    group = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(group, dim=2) for each in (key, value))
    return _grouped(query, key, value)


def _grouped_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, batch, heads, groups, length, d, d_value, dtype=torch.float64) -> Case:
        shapes = ((heads, d), (groups, d), (groups, d_value))
        made = [rng.normal(size=(batch, n, length, width)) for n, width in shapes]
        return Case(label, dict(zip(("query", "key", "value"), made, strict=True)), dtype)

    return [
        case("four heads, two KV heads", 1, 4, 2, 3, 2, 2),
        case("six heads, two KV heads", 2, 6, 2, 4, 5, 3),
        case("six heads, three KV heads", 2, 6, 3, 4, 3, 5),
        case("one KV head", 2, 3, 1, 4, 2, 5),
        case("as many KV heads", 1, 3, 3, 2, 4, 4),
        case("float32", 2, 4, 2, 5, 3, 3, torch.float32),
    ]


def _own_group(run: Run, case: Case) -> Problem | None:
    """The last query heads do not change with the first KV head."""
    given = case.arguments
    heads, groups = given["query"].shape[1], given["key"].shape[1]
    other = given["value"].copy()
    other[:, 0] += 1.0
    others = slice(heads // groups, None)
    return unchanged(
        run.value(case)[:, others], run.value(case, value=other)[:, others],
        2 * run.expected(case)[1], "KV head 0 changes", "a query head of another group",
    )  # fmt: skip


def _first_group(run: Run, case: Case) -> Problem | None:
    """The first H / G query heads, alone with the first KV head, give the same."""
    given = case.arrays()
    group = given["query"].shape[1] // given["key"].shape[1]
    slack = run.expected(case)[1]
    alone = _grouped_reference(
        given["query"][:, :group], given["key"][:, :1], given["value"][:, :1]
    )
    return compare(alone, run.value(case)[:, :group], slack, "the first group of query heads")


GROUPED = Spec(
    name="ch16.grouped_attention",
    statement="grouped_attention(query, key, value): causal attention in which every H / G neighboring query "
    "heads share a KV head, scale 1 / sqrt(d). query (B, H, L, d), key (B, G, L, d), value (B, G, L, dv) -> "
    "(B, H, L, dv)",
    required=("query", "key", "value"),
    reference=_grouped_reference,
    baseline=_grouped,
    cases=_grouped_cases,
    checks=(
        Check(
            "query heads read their group's KV head",
            "With H / G = 2, query heads 0 and 1 share KV head 0, heads 2 and 3 share KV head 1.",
            _first_group,
        ),
        Check(
            "a KV head concerns its own group alone",
            "Query heads of another group do not change when a KV head does.",
            _own_group,
            when=lambda case: case.arguments["key"].shape[1] > 1,
        ),
    ),
    mutants=mistakes(tiled, first_for_all, tokens_repeated),
    chapter=16,
    points=2,
)

# --- Fewer heads from many ------------------------------------------------------------------------


def _pool(weight, num_heads, groups):
    """The baseline: the mean of the heads of each group."""
    return weight.unflatten(0, (groups, num_heads // groups, -1)).mean(1).flatten(0, 1)


def _pool_reference(weight: np.ndarray, num_heads: int, groups: int) -> np.ndarray:
    """Row by row: the mean over the heads of a group."""
    d, group = weight.shape[0] // num_heads, num_heads // groups
    pooled = np.zeros((groups * d, weight.shape[1]), weight.dtype)
    for g, i in np.ndindex(groups, d):
        rows = [weight[(g * group + n) * d + i] for n in range(group)]
        pooled[g * d + i] = sum(rows) / group
    return pooled


@mistake(
    "the first head of each group kept",
    rejected_by="every head counts",
    cause="The other heads of a group are thrown away, not averaged.",
)
def first_kept(weight, num_heads, groups):
    """One head in place of a mean."""
    return weight.unflatten(0, (groups, num_heads // groups, -1))[:, 0].flatten(0, 1)


@mistake(
    "heads summed, not averaged",
    rejected_by="equal heads stay as they are",
    cause="A sum makes the keys H / G times as large.",
)
def summed(weight, num_heads, groups):
    """A sum in place of a mean."""
    return _pool(weight, num_heads, groups) * (num_heads // groups)


@mistake(
    "every G-th head pooled",
    rejected_by="equal heads stay as they are",
    cause="Heads g, g + G, g + 2 G are averaged; those that will share a KV head are neighbors.",
)
def strided(weight, num_heads, groups):
    """Heads that are not neighbors."""
    return weight.unflatten(0, (num_heads // groups, groups, -1)).mean(0).flatten(0, 1)


def _pool_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, heads, groups, d, width, dtype=torch.float64) -> Case:
        weight = rng.normal(size=(heads * d, width))
        return Case(label, {"weight": weight, "num_heads": heads, "groups": groups}, dtype)

    return [
        case("four heads to two", 4, 2, 2, 3),
        case("six heads to two", 6, 2, 3, 5),
        case("six heads to three", 6, 3, 2, 7),
        case("three heads to one", 3, 1, 4, 5),
        case("as many as before", 2, 2, 3, 4),
        case("float32", 6, 3, 4, 5, torch.float32),
    ]


def _equal_heads(run: Run, case: Case) -> Problem | None:
    """If the heads of each group are equal, the pooled heads are these."""
    given = case.arguments
    heads, groups, width = given["num_heads"], given["groups"], given["weight"].shape[1]
    one = given["weight"].reshape(heads, -1, width)[:groups]  # G d D
    every = one.repeat(heads // groups, axis=0).reshape(given["weight"].shape)
    read = case.arrays(weight=every)["weight"].reshape(groups, heads // groups, -1, width)
    slack = run.expected(case)[1] * heads
    got = run.value(case, weight=every)
    return compare(read[:, 0].reshape(-1, width), got, slack, "one head of each group")


def _every_head(run: Run, case: Case) -> Problem | None:
    """A number more in the last head raises the mean of its group by G / H."""
    given = case.arguments
    more = given["weight"].copy()
    more[-1, -1] += given["num_heads"]
    risen = run.value(case, weight=more)[-1, -1] - run.value(case)[-1, -1]
    slack = 4 * given["num_heads"] * run.expected(case)[1]
    return compare(np.asarray(float(given["groups"])), risen, slack, "the rise of the last number")


POOLED = Spec(
    name="ch16.pool_heads",
    statement="pool_heads(weight, num_heads, groups): from the weight of a key or value projection with H heads, "
    "(H d, D), that of a projection with G heads, (G d, D): each is the mean of H / G neighboring heads",
    required=("weight", "num_heads", "groups"),
    reference=_pool_reference,
    baseline=_pool,
    cases=_pool_cases,
    checks=(
        Check(
            "equal heads stay as they are",
            "If the heads of a group are equal, their mean is any of them.",
            _equal_heads,
        ),
        Check("every head counts", "Each head is a part of its group's mean.", _every_head),
    ),
    mutants=mistakes(first_kept, summed, strided),
    chapter=16,
    points=2,
)

# --- The absorbed form ----------------------------------------------------------------------------

ABSORBED = LATENT_ATTENTION.narrowed(
    lambda case: not case.arguments.keys() & {"causal", "mask"},
    name="ch16.absorbed_attention",
    statement="absorbed_attention(query, rotary_query, latent, rotary_key, up_key, up_value): latent attention "
    "without a mask. A score is (query . (up_key latent) + rotary_query . rotary_key) / sqrt(d + r), a value "
    "up_value latent. query (B, H, L, d), rotary_query (B, H, L, r), latent (B, S, c), rotary_key (B, S, r), "
    "up_key (H, d, c), up_value (H, dv, c) -> (B, H, L, dv)",
    mutants=[
        mutant for mutant in LATENT_ATTENTION.mutants
        if mutant.name != "latents masked from the top left"
    ],
    points=3,
)  # fmt: skip

# --- Gated retention ------------------------------------------------------------------------------

GATED = GATED_RETENTION.narrowed(
    lambda case: not case.is_empty
    and not case.arguments.keys() & {"real", "scale", "norm_eps", "chunk_size"},
    name="ch16.gated_retention",
    statement="gated_retention(query, key, value, gate_logits, *, temperature=16.0, state=None) -> (output, new "
    "state). The decays are sigmoid(gate_logits)^(1 / temperature); at each token the state is multiplied by its "
    "decay, takes in key value^T, and the output is query^T state / sqrt(d). Then each head's dv features are "
    "divided, token by token, by the root of their mean square + 1e-5. query and key (B, H, L, d), value "
    "(B, H, L, dv), gate_logits (B, H, L), state (B, H, d, dv), 0 if None -> (B, H, L, dv) and (B, H, d, dv)",
    mutants=[
        mutant for mutant in GATED_RETENTION.mutants if mutant.name != "padding decays the state"
    ],
    points=3,
)  # fmt: skip

EXERCISES = (CACHE_BYTES, GROUPED, POOLED, ABSORBED, GATED)
