"""Exercises of chapter 16: bytes, tokens per second, KV heads, the absorbed form; windows, sinks, blocks, drafts, gates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import reference
from ..analysis.every_outcome import every_outcome
from ..layers.block_manager import BlockManager
from ..specs.compare import Problem, compare, unchanged
from ..specs.latent.spec import LATENT_ATTENTION
from ..specs.mistakes import mistake, mistakes
from ..specs.paged.spec import BLOCK_TABLES, play
from ..specs.retention.spec import GATED_RETENTION
from ..specs.ring_buffer.spec import RING_BUFFER
from ..specs.sinks.spec import SINK_ATTENTION
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

# --- Tokens per second ----------------------------------------------------------------------------

BUDGET = ("memory", "bandwidth", "weights", "cache")


def _speed_reference(memory: int, bandwidth: int, weights: int, cache: int) -> np.ndarray:
    """Sequences are added one by one while there is room; then a step reads what is in memory."""
    read, sequences = weights, 0
    while read + cache <= memory:
        read, sequences = read + cache, sequences + 1
    return np.asarray(sequences * bandwidth / read)


@mistake(
    "one cache read for all sequences",
    rejected_by="sequences share the weights, not a cache",
    cause="Every sequence has a cache of its own, and a step reads all of them.",
)
def cache_shared(memory, bandwidth, weights, cache):
    """The weights and a single cache per step."""
    return (memory - weights) // cache * bandwidth / (weights + cache)


@mistake(
    "the weights read for every sequence",
    rejected_by="sequences share the weights, not a cache",
    cause="In a batch a weight is read once, and used for all sequences.",
)
def weights_for_each(memory, bandwidth, weights, cache):
    """As if the sequences were decoded one after the other."""
    sequences = (memory - weights) // cache
    return sequences * bandwidth / max(1, sequences * (weights + cache))


@mistake(
    "a part of a sequence served",
    rejected_by="room for half a cache serves nobody",
    cause="The number of sequences is rounded down: (memory - weights) // cache.",
)
def part_served(memory, bandwidth, weights, cache):
    """The memory is always full."""
    return (memory - weights) / cache * bandwidth / memory


@mistake(
    "sequences in the place of the weights",
    rejected_by="one sequence reads the weights and its cache",
    cause="The weights take memory, too: there is room for (memory - weights) // cache sequences.",
)
def no_weights(memory, bandwidth, weights, cache):
    """All of the memory for caches."""
    sequences = memory // cache
    return sequences * bandwidth / (weights + sequences * cache)


def _speed_cases(rng: np.random.Generator) -> list[Case]:
    gigabyte, llama = 10**9, 819_200 * 2048
    sizes = [
        (80 * gigabyte, 3350 * gigabyte, 26 * gigabyte, llama),
        (80 * gigabyte, 3350 * gigabyte, 26 * gigabyte, llama // 8),
        (20, 6, 8, 4),
        (11, 60, 8, 4),  # no room for a cache
    ]
    for _ in range(3):
        weights, cache = int(rng.integers(20, 60)), int(rng.integers(4, 20))
        more = int(rng.integers(1, 9)) * cache + int(rng.integers(1, cache))
        sizes.append((weights + more, int(rng.integers(50, 90)), weights, cache))
    return [Case(f"{row}", dict(zip(BUDGET, row, strict=True))) for row in sizes]


def _room_for(sequences: int, half: bool, what: str) -> Callable[[Run, Case], Problem | None]:
    """The test of a GPU with room for so many sequences, and for half a cache more."""

    def test(run: Run, case: Case) -> Problem | None:
        bandwidth, weights, cache = (case.arguments[name] for name in BUDGET[1:])
        read = weights + sequences * cache
        wanted = np.asarray(sequences * bandwidth / read)
        memory = read + half * (cache // 2)
        slack = 4 * np.finfo(float).eps * float(wanted)  # a product and two quotients at most
        return compare(wanted, run.value(case, memory=memory), slack, what)

    return test


TOKENS_PER_SECOND = Spec(
    name="ch16.tokens_per_second",
    statement="tokens_per_second(memory, bandwidth, weights, cache): the tokens per second that all sequences of a "
    "batch get together in decoding, if reading `bandwidth` bytes per second is all that takes time. The batch "
    "has as many whole sequences, with a cache of `cache` bytes each, as fit into `memory` beside the `weights`; "
    "a step reads the weights once and all caches, and gives each sequence one token",
    required=BUDGET,
    reference=_speed_reference,
    differentiable=False,
    cases=_speed_cases,
    checks=(
        Check(
            "one sequence reads the weights and its cache",
            "With room for one sequence, a step takes (weights + cache) / bandwidth seconds.",
            _room_for(1, False, "tokens per second of one sequence"),
        ),
        Check(
            "sequences share the weights, not a cache",
            "With room for two sequences, a step reads the weights once, and two caches.",
            _room_for(2, False, "tokens per second of two sequences"),
        ),
        Check(
            "room for half a cache serves nobody",
            "With room for two and a half caches, the batch has two sequences.",
            _room_for(2, True, "tokens per second of two sequences"),
        ),
    ),
    mutants=mistakes(cache_shared, weights_for_each, part_served, no_weights),
    chapter=16,
    points=2,
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

# --- On the deeper pages: a ring buffer, a sink ----------------------------------------------------

RING = replace(RING_BUFFER, name="ch16.ring_buffer", points=2)

OPTIONS = {"mask", "bias", "causal", "window", "scale"}


def _plain_sinks(case: Case) -> bool:
    """Whether a case has no option, and as many KV heads as query heads."""
    given = case.arguments
    same = given["query"].shape[1] == given["key"].shape[1]
    return same and not given.keys() & OPTIONS and not case.is_empty


SINKS = SINK_ATTENTION.narrowed(
    _plain_sinks,
    name="ch16.sink_attention",
    statement="sink_attention(query, key, value, sinks): attention without a mask, with one learned logit per "
    "head in the denominator of its softmax. The weight of a key is exp(score) / (exp(sink) + the sum of all "
    "exp(score)), with the scale 1 / sqrt(d). query (B, H, L, d), key (B, H, S, d), value (B, H, S, dv), sinks "
    "(H) -> (B, H, L, dv)",
    mutants=[
        mutant for mutant in SINK_ATTENTION.mutants
        if mutant.name not in {"the window hides the sink", "the sink is scaled"}
    ],
    points=2,
)  # fmt: skip
SINKS = replace(
    SINKS,
    checks=[check for check in SINKS.checks if not check.name.startswith("a constant on all")],
)  # which gives a bias

# --- Copy on write --------------------------------------------------------------------------------


class NotWrittenYet(Exception):
    """A part of an exercise returned nothing."""


def _manager(block_to_write: Callable[..., Any], *given: Any, copy: Callable) -> BlockManager:
    """A BlockManager that asks the candidate for the block that may be written."""

    class Manager(BlockManager):
        def _own(self, block: int) -> int:
            if self.pool.references[block] == 1:
                self._forget(block)  # other tokens will stand in it
            pool = self.pool
            mine = block_to_write(block, pool.references, pool.free, self.copy)
            if mine is None or mine is ...:
                raise NotWrittenYet(mine)
            return mine

    return Manager(*given, copy=copy)


def _build_tables(candidate: Any, arguments: dict[str, Any]) -> Callable[..., Any]:
    def call(num_blocks: int, block_size: int, steps: tuple) -> Any:
        try:
            return play(partial(_manager, candidate), num_blocks, block_size, steps)
        except NotWrittenYet as nothing:
            return nothing.args[0]

    return call


def _copied(block, references, free, copy):
    """A free block with the same tokens, which counts its new reader."""
    new = free.pop()
    references[new] = 1
    copy(block, new)
    return new


def _moved(block, references, free, copy):
    """The block of a single reader; one of several moves to a copy, and the old block loses a reader."""
    if references[block] == 1:
        return block
    references[block] -= 1
    return _copied(block, references, free, copy)


@mistake(
    "appended to a shared block",
    rejected_by="a sequence reads what was written for it",
    symptom="Two requests with the same prompt go on with each other's words, mid-block.",
    cause="A block that is not full has two readers, and one of them appends to it in place.",
    seen="Avarok-Cybersecurity/atlas issue 1193",
)
def no_copy(block, references, free, copy):
    """The same block for both."""
    return block


@mistake(
    "the old block keeps its reader",
    rejected_by="blocks that nobody reads are free",
    symptom="The pool fills up over hours.",
    cause="Who moves to a copy reads the old block no longer: its count must go down by one.",
)
def old_reader_stays(block, references, free, copy):
    """The count of the old block stays."""
    return block if references[block] == 1 else _copied(block, references, free, copy)


@mistake(
    "a new block without its tokens",
    rejected_by="a sequence reads what was written for it",
    symptom="A sequence that forks in the middle of a block loses the tokens of that block.",
    cause="The new block is taken and never gets what stood in the old one.",
)
def no_tokens(block, references, free, copy):
    """Nothing is copied."""
    return _moved(block, references, free, lambda old, new: None)


@mistake(
    "copied the wrong way",
    rejected_by="a sequence reads what was written for it",
    symptom="After a fork both sequences have lost the tokens of the shared block.",
    cause="copy(old, new) copies from the old block to the new one; the arguments are exchanged.",
)
def copied_back(block, references, free, copy):
    """From the new block to the old one."""
    return _moved(block, references, free, lambda old, new: copy(new, old))


@mistake(
    "the copy counts no reader",
    rejected_by="ValueError",
    symptom="An error when the sequence that made the copy ends: its block is said to be in use by nobody.",
    cause="A block from the free list has 0 readers, and its new reader is not counted.",
)
def no_reader(block, references, free, copy):
    """The count of the new block stays 0."""
    shared = references[block] > 1
    block = _moved(block, references, free, copy)
    if shared:
        references[block] = 0
    return block


def _cow_cases(rng: np.random.Generator) -> list[Case]:
    """Those of the tables, and one in which a sequence with a copy ends."""
    steps = (("start", (5, 6, 7)), ("fork", 0), ("write", 1, (3,)), ("truncate", 1, 0))
    more = {"num_blocks": 6, "block_size": 4, "steps": (*steps, ("start", (2, 2)))}
    return [*BLOCK_TABLES.cases(rng), Case("a sequence with a copy ends", more)]


COPY_ON_WRITE = replace(
    BLOCK_TABLES,
    cases=_cow_cases,
    name="ch16.copy_on_write",
    statement="block_to_write(block, references, free, copy): a sequence that reads `block` will write to it; return the "
    "block that it may write. That is `block` if no other sequence reads it, else a free one, taken from the "
    "end of the list `free`, with the same tokens: copy(old, new) copies them. references[b] counts the sequences "
    "that read block b; keep it right",
    build=_build_tables,
    mutants=mistakes(no_copy, old_reader_stays, no_tokens, copied_back, no_reader),
    points=2,
)

# --- Accept or replace ----------------------------------------------------------------------------


def _build_checked(candidate: Any, arguments: dict[str, Any]) -> Callable[..., Any]:
    """The candidate as the joint distribution of the drafted token and of its output."""

    def call(q: Tensor, p: Tensor) -> Any:
        joint = np.zeros((len(q), len(q)))

        def run(choose):
            drafted = choose(q)
            return drafted, candidate(drafted, q, p, choose)

        for (drafted, output), chance in every_outcome(run):
            if output is None or output is ...:  # not written yet
                return output
            joint[drafted, int(output)] += chance
        return joint

    return call


def _joint_reference(q: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Accepted tokens on the diagonal; what is rejected is divided as the residual is."""
    joint = np.zeros((len(q), len(q)))
    missing = [max(0.0, float(p[y] - q[y])) for y in range(len(q))]
    for x in range(len(q)):
        joint[x, x] += min(q[x], p[x])
        rejected = max(0.0, float(q[x] - p[x]))
        for y in range(len(q)):
            joint[x, y] += rejected * missing[y] / (sum(missing) or 1.0)
    return joint


def _accepts(token, q, p, choose):
    chance = (p[token] / q[token]).clamp(max=1)
    return choose(torch.stack([1 - chance, chance])) == 1


@mistake(
    "a rejected token replaced by a sample of p",
    rejected_by="the output has the target's distribution",
    symptom="Tokens that the draft favors are too frequent: each has a second chance.",
    cause="What was accepted already has to be subtracted: max(0, p - q).",
    seen="ShopeeLLM/Spec-RL issue 14",
)
def from_p(token, q, p, choose):
    """The whole target distribution after a rejection."""
    return token if _accepts(token, q, p, choose) else choose(p)


@mistake(
    "accepted with q / p",
    rejected_by="the output has the target's distribution",
    cause="The ratio is upside down: what the draft proposes too often must be rejected at times.",
)
def upside_down(token, q, p, choose):
    """The models exchanged in the ratio."""
    return token if _accepts(token, p, q, choose) else choose(_missing(q, p))


@mistake(
    "rejected and sampled from q again",
    rejected_by="the output has the target's distribution",
    cause="A second draft token is not checked: the replacement comes from max(0, p - q).",
)
def drafted_again(token, q, p, choose):
    """Another sample of the draft."""
    return token if _accepts(token, q, p, choose) else choose(q)


@mistake(
    "accepted if a sample of p agrees",
    rejected_by="as many drafts as possible are accepted",
    symptom="The distribution is right, and few tokens are accepted.",
    cause="Two samples agree with probability sum(p q), and sum(min(p, q)) is possible.",
    seen="ml-explore/mlx-lm pull request 1709",
)
def two_samples(token, q, p, choose):
    """The draft is not used at all."""
    return choose(p)


def _missing(q, p):
    rest = (p - q).clamp(min=0)
    return rest / rest.sum() if rest.sum() > 0 else p


def _checked_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, q, p, dtype=torch.float64) -> Case:
        q, p = (np.asarray(each, dtype=float) / np.sum(each) for each in (q, p))
        return Case(label, {"q": q, "p": p}, dtype)

    def some(vocab: int) -> np.ndarray:
        return rng.random(vocab) + 0.1

    return [
        case("two tokens", (3, 1), (1, 1)),
        case("the example by hand", (6, 3, 1), (3, 5, 2)),
        case("a token that the target never generates", (2, 1, 1), (0, 1, 3)),
        case("equal distributions", (4, 2, 2), (4, 2, 2)),
        case("five tokens", some(5), some(5)),
        case("seven tokens", some(7), some(7)),
        case("float32", some(4), some(4), torch.float32),
    ]


def _rounding(case: Case) -> float:
    """Differences and a sum of V probabilities up to 1, and as many products in each of them."""
    return 8 * len(case.arguments["q"]) * torch.finfo(case.dtype).eps


def _output(run: Run, case: Case) -> Problem | None:
    slack = len(case.arguments["p"]) * run.expected(case)[1]
    got, wanted = run.value(case).sum(0), case.arrays()["p"]
    return compare(wanted, got, slack, "the distribution of the output")


def _accepted(run: Run, case: Case) -> Problem | None:
    given = case.arrays()
    wanted = np.minimum(given["q"], given["p"])
    got = np.diag(run.value(case))
    return compare(wanted, got, run.expected(case)[1], "drafted and accepted, for each token")


CHECKED = Spec(
    name="ch16.checked_token",
    statement="checked_token(token, q, p, choose): the token that follows, where `token` was sampled from q. It is "
    "accepted with probability min(1, p[token] / q[token]), else replaced by a sample of max(0, p - q), divided "
    "by its sum. q and p (V) are the distributions of the draft and of the target. All chance is in "
    "choose(probabilities), which returns index i with probability probabilities[i]",
    required=("q", "p"),
    reference=_joint_reference,
    differentiable=False,
    slack=_rounding,
    cases=_checked_cases,
    build=_build_checked,
    checks=(
        Check(
            "the output has the target's distribution",
            "Whatever was drafted: all outcomes together must have the distribution p.",
            _output,
        ),
        Check(
            "as many drafts as possible are accepted",
            "A token x is drafted and accepted with probability min(q(x), p(x)).",
            _accepted,
        ),
    ),
    mutants=mistakes(from_p, upside_down, drafted_again, two_samples),
    chapter=16,
    points=2,
)

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

EXERCISES = (
    CACHE_BYTES, TOKENS_PER_SECOND, GROUPED, POOLED, ABSORBED,
    RING, SINKS, COPY_ON_WRITE, CHECKED, GATED,
)  # fmt: skip
