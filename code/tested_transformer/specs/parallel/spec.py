"""What is right in training on many devices, as far as one process can judge it."""

from __future__ import annotations

import math

import numpy as np
import torch

from ..compare import Problem, compare
from ..mistakes import mistakes
from ..spec import UNTOUCHED, Case, Check, Run, Spec
from . import mutants
from .right import (
    epoch_order,
    feed_forward_part,
    fsdp_linear,
    global_norm,
    merge_outputs,
    ring_step,
)

# --- A ring, and how much a micro-batch counts ------------------------------------------------------


def _ring_reference(chunks: np.ndarray, step: int) -> np.ndarray:
    """Worker by worker: what the neighbor on the left sends, by a copy of what it had."""
    workers, after = len(chunks), chunks.copy()
    for rank in range(workers):
        left = (rank - 1) % workers
        number = (left - step) % workers
        if step < workers - 1:
            after[rank, number] = chunks[rank, number] + chunks[left, number]
        else:
            after[rank, number] = chunks[left, number]
    return after


def _ring_cases(rng: np.random.Generator) -> list[Case]:

    def case(label: str, workers: int, size: int, step: int, dtype=torch.float64) -> Case:
        chunks = rng.normal(size=(workers, workers, size))
        return Case(label, {"chunks": chunks, "step": step}, dtype)

    return [
        case("two workers, the first step", 2, 1, 0),
        case("two workers, the last step", 2, 1, 1),
        *(case(f"four workers, step {step}", 4, 2, step) for step in range(6)),
        case("three workers", 3, 4, 1),
        case("float32", 3, 2, 3, torch.float32),
    ]


def _replaces(run: Run, case: Case) -> Problem | None:
    """Where all workers have equal chunks, a step of the second half changes nothing."""
    chunks = np.broadcast_to(case.arguments["chunks"][:1], case.arguments["chunks"].shape).copy()
    alike = case.changed(chunks=chunks)
    return compare(alike.arrays()["chunks"], run.value(alike), 0.0, "with equal chunks, the result")


def _from_the_left(run: Run, case: Case) -> Problem | None:
    """Chunks that only worker 0 has reach worker 1, and no other."""
    chunks = np.zeros_like(case.arguments["chunks"])
    chunks[0] = 1.0
    far = run.value(case.changed(chunks=chunks))[2:]
    return compare(np.zeros_like(far), far, 0.0, "what workers 2 and later have of worker 0")


RING_STEP = Spec(
    name="ring_step",
    statement="ring_step(chunks, step): what N workers have after one step of a ring all-reduce. Each worker's vector "
    "is split into N chunks: chunks (N, N, c), chunks[r, k] is chunk k of worker r. In step s, counted from 0, worker r "
    "sends its chunk r - s to worker r + 1 (all numbers modulo N), and all workers send at once. Before step N - 1 the "
    "receiver adds what arrives to its own chunk; from then on it replaces its own. -> (N, N, c)",
    required=("chunks", "step"),
    reference=_ring_reference,
    baseline=ring_step,
    cases=_ring_cases,
    checks=(
        Check(
            "in the second half a sum replaces what is there",
            "From step N - 1 on, what travels are finished sums.",
            _replaces,
            when=lambda case: case.arguments["step"] >= len(case.arguments["chunks"]) - 1,
        ),
        Check(
            "worker r receives from worker r - 1",
            "The ring has one direction: what worker r receives comes from worker r - 1, for worker 0 the last one.",
            _from_the_left,
            when=lambda case: len(case.arguments["chunks"]) > 2,
        ),
    ),
    mutants=mistakes(mutants.always_added, mutants.same_chunk, mutants.other_way),
    chapter=19,
)


def _scales_reference(counts: np.ndarray) -> np.ndarray:
    """Undo the mean over the micro-batch and the mean over the workers; divide by all tokens."""
    scales = np.zeros(counts.shape, np.longdouble)
    for index in np.ndindex(counts.shape):
        scales[index] = counts[index] * len(counts) / np.longdouble(counts.sum())
    return scales.astype(np.float64)


def _scales_cases(rng: np.random.Generator) -> list[Case]:

    def case(label: str, counts) -> Case:
        return Case(label, {"counts": np.asarray(counts)})

    return [
        case("two workers, one micro-batch", [[1], [3]]),
        case("one worker, two micro-batches", [[1, 3]]),
        case("all alike", [[3, 3], [3, 3], [3, 3], [3, 3]]),
        case("the page's example", [[2, 2], [3, 2], [3, 6], [6, 12]]),
        case("one without tokens", [[0, 4, 1], [2, 5, 7]]),
        case("by chance", rng.integers(1, 60, size=(3, 4))),
        case("many tokens", rng.integers(1000, 5000, size=(8, 2))),
    ]


def _alike(run: Run, case: Case) -> Problem | None:
    workers, steps = case.arguments["counts"].shape
    found = run.value(case, counts=np.full((workers, steps), 7))
    expected = np.full((workers, steps), 1 / steps)
    tolerance = 3 * float(np.finfo(np.float32).eps)
    return compare(expected, found, tolerance, "with 7 tokens in each micro-batch, the scales")


def _one_batch(run: Run, case: Case) -> Problem | None:
    """The gradient of each token is a number of its own: accumulated and averaged they give their mean."""
    counts, scales = case.arguments["counts"], run.value(case)
    if scales.shape != counts.shape:
        return None  # equality will say so
    ends = np.cumsum(counts).reshape(counts.shape)
    tokens = np.random.default_rng(0).normal(size=counts.sum())
    means = np.zeros(counts.shape)
    for index in np.ndindex(counts.shape):
        if counts[index]:
            means[index] = tokens[ends[index] - counts[index] : ends[index]].mean()
    found = (scales * means).sum(1).mean(0)
    size = np.abs(means * counts).sum() / counts.sum()
    tolerance = 3 * float(np.finfo(np.float32).eps) * size  # scales in float32 are welcome
    return compare(tokens.mean(), found, tolerance, "the accumulated and averaged gradient")


def _float32_quotients(case: Case) -> float:
    """Integers divided by integers are float32 in torch: three roundings of the largest scale."""
    counts = case.arguments["counts"]
    largest = counts.max() * len(counts) / counts.sum()
    return 3 * float(np.finfo(np.float32).eps * largest)


MICRO_BATCH_SCALES = Spec(
    name="micro_batch_scales",
    statement="micro_batch_scales(counts): by what to multiply the mean loss of each micro-batch, so that the gradient is "
    "that of the mean over all tokens. N workers accumulate M micro-batches each (backward() adds up), and then the "
    "gradients are averaged over the workers. counts (N, M): the tokens of each micro-batch -> (N, M), floating point",
    required=("counts",),
    reference=_scales_reference,
    differentiable=False,
    slack=_float32_quotients,
    usual=(UNTOUCHED,),
    cases=_scales_cases,
    checks=(
        Check(
            "equal micro-batches have the scale 1 / M",
            "With equal counts it is the mean over the micro-batches: the average over the workers comes by itself.",
            _alike,
        ),
        Check(
            "ragged micro-batches are one batch",
            "A token counts the same in every micro-batch and on every worker: divide by the tokens of all.",
            _one_batch,
        ),
    ),
    mutants=mistakes(mutants.means_of_steps, mutants.means_of_workers, mutants.means_of_columns, mutants.forgets_the_average, mutants.times_workers, mutants.not_divided),
    chapter=19,
)  # fmt: skip


# --- Merging by log-sum-exp, and who has which tokens ------------------------------------------------


def _merge_reference(output, lse, other_output, other_lse):
    """Each log-sum-exp is that of a set of keys: weights by the sums, relative to the larger one."""
    top = np.maximum(lse, other_lse)
    top = np.where(np.isfinite(top), top, 0.0)
    one, two = np.exp(lse - top), np.exp(other_lse - top)
    total = one + two
    safe = np.where(total > 0, total, 1.0)
    merged = (output * one[..., None] + other_output * two[..., None]) / safe[..., None]
    with np.errstate(divide="ignore"):
        return np.concatenate([merged, (top + np.log(total))[..., None]], -1)


def _merge_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, length, width, *, size=1.0, empty=(0, 0), dtype=torch.float64) -> Case:
        arguments = {}
        for name, none in zip(("", "other_"), empty, strict=True):
            output, lse = rng.normal(size=(length, width)), size * rng.normal(size=length)
            output[:none], lse[:none] = 0.0, -np.inf
            arguments |= {f"{name}output": output, f"{name}lse": lse}
        return Case(label, arguments, dtype)

    return [
        case("one query", 1, 1),
        case("three queries", 3, 2),
        case("one has no keys for the first query", 3, 2, empty=(1, 0)),
        case("neither has keys for the first query", 4, 3, empty=(2, 1)),
        case("large scores", 5, 2, size=300.0),
        case("float32", 4, 3, dtype=torch.float32),
    ]


def _nothing(run: Run, case: Case) -> Problem | None:
    """Rows in which both log-sum-exps are -inf: output 0, log-sum-exp -inf."""
    shape = case.arguments["output"].shape
    empty = {"output": np.zeros(shape), "lse": np.full(shape[0], -np.inf)}
    found = run.value(case, **empty, **{f"other_{name}": a for name, a in empty.items()})
    expected = np.concatenate([np.zeros(shape), np.full((shape[0], 1), -np.inf)], -1)
    return compare(expected, found, 0.0, "without any key, output and log-sum-exp")


def _huge(run: Run, case: Case) -> Problem | None:
    lse = np.full(len(case.arguments["lse"]), 1000.0)
    found = run.value(case, lse=lse, other_lse=lse)
    return None if np.isfinite(found).all() else Problem("finite numbers", "NaN or inf")


def _wins(run: Run, case: Case) -> Problem | None:
    """Against a log-sum-exp 50 below, the other output has a weight of 2e-22."""
    output, zeros = case.arrays()["output"], np.zeros(len(case.arguments["lse"]))
    found = run.value(case, lse=zeros, other_lse=zeros - 50)[:, :-1]
    eps = 8 * torch.finfo(case.dtype).eps * float(np.abs(case.arguments["output"]).max() + 1)
    return compare(output, found, eps, "where the other scores are far lower, the output")


def _halves(run: Run, case: Case) -> Problem | None:
    """The same keys once more: the same output, twice the sum."""
    given, lse = case.arguments, np.ones(len(case.arguments["lse"]))
    found = run.value(case, other_output=given["output"], lse=lse, other_lse=lse)[:, -1]
    eps = 8 * torch.finfo(case.dtype).eps
    return compare(lse + np.log(2), found, eps, "with two equal parts, the log-sum-exp")


MERGE_OUTPUTS = Spec(
    name="merge_outputs",
    statement="merge_outputs(output, lse, other_output, other_lse): attention to two sets of keys, from the attention "
    "to each. output (L, dv) is normalized, lse (L) is the log-sum-exp of its scores; without keys they are 0 and -inf. "
    "-> the output (L, dv) and the log-sum-exp (L) of both sets together",
    required=("output", "lse", "other_output", "other_lse"),
    reference=_merge_reference,
    baseline=merge_outputs,
    differentiable=False,
    read=lambda answer, arguments: torch.cat([answer[0], answer[1][..., None]], -1),
    usual=(UNTOUCHED,),
    cases=_merge_cases,
    checks=(
        Check(
            "scores of a thousand give finite numbers",
            "exp(1000) overflows: take the exponential of differences only.",
            _huge,
        ),
        Check(
            "an output of far larger scores wins",
            "The weight of an output is its sum of exponentials, exp(lse), over both sums.",
            _wins,
        ),
        Check(
            "two equal halves: ln 2 more",
            "The new log-sum-exp is log(exp(a) + exp(b)), computed by logaddexp.",
            _halves,
        ),
        Check(
            "nothing and nothing is nothing",
            "Where both log-sum-exps are -inf, the output is 0 and the log-sum-exp -inf, not NaN.",
            _nothing,
        ),
    ),
    mutants=mistakes(
        mutants.merge_overflows,
        mutants.merge_adds,
        mutants.merge_means,
        mutants.merge_exchanged,
        mutants.merge_keeps,
        mutants.merge_nothing,
    ),
    chapter=19,
)


def _zigzag_reference(length: int, rank: int, world_size: int) -> np.ndarray:
    """Chunk by chunk: number `rank` from the front, and as many from the back."""
    size = math.ceil(length / (2 * world_size))
    padded = [*range(length), *([-1] * (2 * world_size * size - length))]
    chunks = [padded[n * size : (n + 1) * size] for n in range(2 * world_size)]
    return np.asarray(chunks[rank] + chunks[2 * world_size - 1 - rank])


def _zigzag_cases(rng: np.random.Generator) -> list[Case]:
    sizes = [
        (8, 0, 2),
        (8, 1, 2),
        (16, 2, 4),
        (13, 3, 4),
        (13, 0, 4),
        (3, 1, 4),
        (7, 2, 3),
        (6, 0, 1),
    ]
    sizes += [(int(rng.integers(20, 60)), int(rng.integers(3)), 3) for _ in range(3)]
    return [
        Case(f"{length} tokens, worker {rank} of {world}",
             {"length": length, "rank": rank, "world_size": world})
        for length, rank, world in sizes
    ]  # fmt: skip


def _all_workers(run: Run, case: Case) -> list[np.ndarray]:
    return [run.value(case, rank=rank) for rank in range(case.arguments["world_size"])]


def _alike_many(run: Run, case: Case) -> Problem | None:
    sizes = [len(ids) for ids in _all_workers(run, case)]
    return None if len(set(sizes)) == 1 else Problem("equally many per worker", f"{sizes}")


def _minus_one(run: Run, case: Case) -> Problem | None:
    largest = max((int(ids.max(initial=-1)) for ids in _all_workers(run, case)), default=-1)
    last = case.arguments["length"] - 1
    return None if largest <= last else Problem(f"positions up to {last}", f"position {largest}")


def _each_once(run: Run, case: Case) -> Problem | None:
    ids = np.concatenate(_all_workers(run, case))
    expected = np.arange(case.arguments["length"])
    return compare(expected, np.sort(ids[ids >= 0]), 0.0, "the tokens of all workers, sorted,")


def _balanced(run: Run, case: Case) -> Problem | None:
    """Where the length divides: query i has i + 1 causal scores."""
    work = np.asarray([int((ids + 1).sum()) for ids in _all_workers(run, case)])
    return compare(np.full_like(work, work[0]), work, 0.0, "causal scores per worker")


ZIGZAG_POSITIONS = Spec(
    name="zigzag_positions",
    statement="zigzag_positions(length, rank, world_size): the positions of a worker's tokens. The text is split into "
    "2N chunks of equal size, N = world_size, the last ones filled up with -1; worker r has chunk r and chunk "
    "2N - 1 - r, in this order -> (n), integers",
    required=("length", "rank", "world_size"),
    reference=_zigzag_reference,
    differentiable=False,
    cases=_zigzag_cases,
    usual=(UNTOUCHED,),
    checks=(
        Check(
            "all workers have equally many",
            "Every worker sends and receives tensors of one size: fill up with -1.",
            _alike_many,
        ),
        Check("padding is -1", "What lies behind the text is no token: -1.", _minus_one),
        Check(
            "every token has one worker",
            "Together the workers have each position from 0 to length - 1 once.",
            _each_once,
        ),
        Check(
            "the workers have equally many causal scores",
            "An early chunk has few visible keys, a late one many: one of each gives all workers the same work.",
            _balanced,
            when=lambda case: case.arguments["length"] % (2 * case.arguments["world_size"]) == 0,
        ),
    ),
    mutants=mistakes(
        mutants.contiguous, mutants.last_chunk, mutants.unequal, mutants.dropped, mutants.beyond
    ),
    chapter=19,
)


# --- The true norm, and who reads what in an epoch ---------------------------------------------------


def _fsdp_reference(shards: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Example by example: error times input, averaged over the workers, split by rows."""
    whole = np.concatenate([*shards])
    total = np.zeros(whole.shape, np.longdouble)
    for inputs, targets in zip(x, y, strict=True):
        for one, target in zip(inputs, targets, strict=True):
            total += np.outer(whole @ one - target, one)
    return (total / len(shards)).reshape(shards.shape)


def _fsdp_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, workers, rows, inputs, examples, dtype=torch.float64) -> Case:
        sizes = {
            "shards": (workers, rows, inputs),
            "x": (workers, examples, inputs),
            "y": (workers, examples, workers * rows),
        }
        return Case(label, {name: rng.normal(size=size) for name, size in sizes.items()}, dtype)

    return [
        case("two workers, one row each", 2, 1, 2, 1),
        case("two workers, three rows each", 2, 3, 2, 4),
        case("four workers", 4, 2, 3, 2),
        case("float32", 3, 2, 4, 5, torch.float32),
    ]


def _whole_numbers(case: Case) -> dict[str, np.ndarray]:
    """The case in small integers, all different from 0, and what the layer predicts there."""
    shards, x = (np.rint(3 * case.arguments[name]) + 0.0 for name in ("shards", "x"))
    x[x == 0] = 1.0
    return {"shards": shards, "x": x, "y": x @ np.concatenate([*shards]).T}


def _perfect(run: Run, case: Case) -> Problem | None:
    found = run.value(case, **_whole_numbers(case))
    return compare(
        np.zeros_like(found), found, 0.0, "where y is what the layer predicts, the gradient"
    )


def _own_rows(run: Run, case: Case) -> Problem | None:
    """Only the first output is wrong: only worker 0 has a gradient."""
    given = _whole_numbers(case)
    given["y"][..., 0] += 1.0
    others = run.value(case, **given)[1:]
    return compare(
        np.zeros_like(others),
        others,
        0.0,
        "with an error in worker 0's first row only, the gradient of the others",
    )


def _all_count(run: Run, case: Case) -> Problem | None:
    """Worker 0's examples are 0: what its rows learn comes from the others."""
    x = case.arguments["x"].copy()
    x[0] = 0.0
    if np.any(run.value(case, x=x)[0]):
        return None
    return Problem(
        "a gradient from the other workers' examples", "0 on worker 0, whose own inputs are 0"
    )


def _equal_examples(run: Run, case: Case) -> Problem | None:
    same = {
        name: np.repeat(case.arguments[name][:1], len(case.arguments[name]), 0) for name in "xy"
    }
    expected, slack = run.expected(case, **same)
    found = run.value(case, **same)
    return compare(expected, found, slack, "with worker 0's examples on every worker, the gradient")


FSDP_LINEAR = Spec(
    name="fsdp_linear",
    statement="fsdp_linear(shards, x, y): the gradients of a sharded linear layer without bias. Of its weight W, worker r "
    "stores the rows shards[r]: shards (N, rows, in). It has the examples x[r] (B, in) with the targets y[r] (B, N * rows), "
    "and its loss is half the sum of the squared errors of x[r] @ W.T. The gradients are averaged over the workers "
    "-> for each worker the gradient of its own rows: a list of N tensors (rows, in), or one tensor (N, rows, in)",
    required=("shards", "x", "y"),
    reference=_fsdp_reference,
    baseline=fsdp_linear,
    differentiable=False,
    read=lambda answer, arguments: torch.stack([*answer]),
    cases=_fsdp_cases,
    checks=(
        Check(
            "perfect predictions have the gradient 0",
            "To compute its outputs a worker needs the rows of all workers: gather them.",
            _perfect,
        ),
        Check(
            "worker r keeps the gradient of its own rows",
            "The gradient is split by rows, as the weight is.",
            _own_rows,
        ),
        Check(
            "the examples of all workers count",
            "Average the whole gradients over the workers, then split.",
            _all_count,
        ),
        Check(
            "equal examples on all workers: the gradient of one",
            "The workers' gradients are averaged, not summed.",
            _equal_examples,
        ),
    ),
    mutants=mistakes(mutants.not_gathered, mutants.other_part, mutants.not_reduced, mutants.summed_over_workers),
    chapter=19,
)  # fmt: skip


def _norm_reference(sharded: np.ndarray, replicated: np.ndarray) -> np.ndarray:
    """Number by number."""
    total = np.longdouble(0)
    for number in [*sharded.flatten(), *replicated.flatten()]:
        total += np.longdouble(number) ** 2
    return np.sqrt(total)


def _norm_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, workers, size, copies, dtype=torch.float64) -> Case:
        sharded, replicated = rng.normal(size=(workers, size)), rng.normal(size=copies)
        return Case(label, {"sharded": sharded, "replicated": replicated}, dtype)

    return [
        case("two workers, one number each", 2, 1, 1),
        case("four workers", 4, 3, 2),
        case("three workers, nothing else", 3, 4, 0),
        case("float32", 4, 5, 3, torch.float32),
    ]


def _shards_count(run: Run, case: Case) -> Problem | None:
    """Ones on the last worker, nothing else: the root of their number."""
    sharded = np.zeros_like(case.arguments["sharded"])
    sharded[-1] = 1.0
    nothing = np.zeros_like(case.arguments["replicated"])
    expected, slack = run.expected(case, sharded=sharded, replicated=nothing)
    found = run.value(case, sharded=sharded, replicated=nothing)
    return compare(expected, found, slack, "with ones on the last worker only, the norm")


def _copy_once(run: Run, case: Case) -> Problem | None:
    sharded = np.zeros_like(case.arguments["sharded"])
    replicated = np.ones_like(case.arguments["replicated"])
    expected, slack = run.expected(case, sharded=sharded, replicated=replicated)
    found = run.value(case, sharded=sharded, replicated=replicated)
    return compare(expected, found, slack, "with replicated ones only, the norm")


def _three_four_five(run: Run, case: Case) -> Problem | None:
    sharded = np.zeros_like(case.arguments["sharded"])
    sharded[0, 0], sharded[1, 0] = 3.0, 4.0
    nothing = np.zeros_like(case.arguments["replicated"])
    found = run.value(case, sharded=sharded, replicated=nothing)
    slack = run.expected(case, sharded=sharded, replicated=nothing)[1]
    return compare(np.asarray(5.0), found, slack, "with 3 on one worker and 4 on another, the norm")


GLOBAL_NORM = Spec(
    name="global_norm",
    statement="global_norm(sharded, replicated): the norm of a whole gradient. sharded (N, p): the parts of N workers; "
    "replicated (q): the gradients of parameters of which every worker has a copy, q may be 0 -> ()",
    required=("sharded", "replicated"),
    reference=_norm_reference,
    baseline=global_norm,
    differentiable=False,
    cases=_norm_cases,
    checks=(
        Check(
            "every shard counts", "The squares of all workers' shards are summed.", _shards_count
        ),
        Check(
            "a copy counts once",
            "A parameter that all workers have is one parameter.",
            _copy_once,
            when=lambda case: case.arguments["replicated"].size > 0,
        ),
        Check(
            "a norm of 3 and one of 4 make 5",
            "Norms of parts combine as the sides of a right triangle.",
            _three_four_five,
        ),
    ),
    mutants=mistakes(
        mutants.norm_local,
        mutants.norm_added,
        mutants.norm_copies,
        mutants.norm_mean,
        mutants.norm_sharded,
    ),
    chapter=19,
)


def _epoch_reference(length, rank, world_size, epoch, seed):
    """One by one: fill up from the front, then deal out like cards."""
    order = epoch_order(length, seed + epoch)
    filled = list(order)
    while len(filled) % world_size:
        filled.append(order[len(filled) % length])
    return np.asarray([each for n, each in enumerate(filled) if n % world_size == rank])


def _epoch_cases(rng: np.random.Generator) -> list[Case]:
    sizes = [(12, 0, 4, 0), (12, 3, 4, 1), (13, 1, 4, 2), (13, 3, 4, 0), (9, 0, 2, 3), (7, 0, 1, 5)]
    return [
        Case(
            f"{length} examples, worker {rank} of {world}, epoch {epoch}",
            {
                "length": length,
                "rank": rank,
                "world_size": world,
                "epoch": epoch,
                "seed": int(rng.integers(100)),
            },
        )
        for length, rank, world, epoch in sizes
    ]


def _of_all(run: Run, case: Case, **changes) -> list[np.ndarray]:
    workers = range(case.arguments["world_size"])
    return [run.value(case, rank=rank, **changes) for rank in workers]


def _equally_many(run: Run, case: Case) -> Problem | None:
    sizes = [len(each) for each in _of_all(run, case)]
    return None if len(set(sizes)) == 1 else Problem("equally many per worker", f"{sizes}")


def _all_read(run: Run, case: Case) -> Problem | None:
    read = np.unique(np.concatenate(_of_all(run, case)))
    return compare(np.arange(case.arguments["length"]), read, 0.0, "the examples that are read")


def _epochs_differ(run: Run, case: Case) -> Problem | None:
    """Of four epochs, not all have the order of the first."""
    first, *others = (np.stack(_of_all(run, case, epoch=epoch)) for epoch in range(4))
    if any(not np.array_equal(first, other) for other in others):
        return None
    return Problem("another order in another epoch", "the same order in four epochs")


EPOCH_INDICES = Spec(
    name="epoch_indices",
    statement="epoch_indices(length, rank, world_size, epoch, seed): the examples that a worker reads in an epoch. The "
    "order of all is torch.randperm(length) with a generator of its own, seeded with seed + epoch; where the workers do "
    "not divide the length, the first ones of the order are repeated at its end; worker r takes every N-th, "
    "beginning with number r -> (n), integers",
    required=("length", "rank", "world_size", "epoch", "seed"),
    reference=_epoch_reference,
    differentiable=False,
    usual=(UNTOUCHED,),
    cases=_epoch_cases,
    checks=(
        Check(
            "all workers have equally many",
            "All workers do the same number of steps: repeat examples, do not leave a worker short.",
            _equally_many,
        ),
        Check(
            "every example is read",
            "One order for all workers; together they read all of it.",
            _all_read,
        ),
        Check(
            "two epochs have different orders",
            "The epoch belongs into the seed: set_epoch, in PyTorch.",
            _epochs_differ,
        ),
    ),
    mutants=mistakes(
        mutants.no_epoch,
        mutants.own_order,
        mutants.rest_left_out,
        mutants.unequal_epoch,
        mutants.not_shuffled,
    ),
    chapter=19,
)


# --- A pipeline -------------------------------------------------------------------------------------


def _times_reference(stages: int, micro_batches: int) -> np.ndarray:
    """A simulation: a stage takes the next micro-batch that the stage before it has finished."""
    done = [0] * stages  # how many each stage has finished
    table = []
    while done[-1] < micro_batches:
        ready = [micro_batches, *done[:-1]]
        column = [done[s] if done[s] < ready[s] else -1 for s in range(stages)]
        done = [n + (now >= 0) for n, now in zip(done, column, strict=True)]
        table.append(column)
    return np.asarray(table).T


def _times_cases(rng: np.random.Generator) -> list[Case]:
    sizes = [(2, 1), (2, 3), (3, 2), (4, 8), (1, 3), (5, int(rng.integers(2, 9)))]
    return [
        Case(f"{p} stages, {m} micro-batches", {"stages": p, "micro_batches": m}) for p, m in sizes
    ]


def _steps(run: Run, case: Case) -> Problem | None:
    p, m = case.arguments["stages"], case.arguments["micro_batches"]
    shape = run.value(case).shape
    if len(shape) == 2 and shape[1] > m + p - 1:
        return Problem(f"{m + p - 1} steps", f"{shape[1]} steps")
    return None


def _waits(run: Run, case: Case) -> Problem | None:
    """No stage has a micro-batch before the stage above it has finished it."""
    for above, below in zip(run.value(case), run.value(case)[1:], strict=False):
        for number in set(below.tolist()) - {-1}:
            began = list(below).index(number)
            if number not in list(above)[:began]:
                return Problem(
                    f"micro-batch {number} finished by the stage before", f"begun at time {began}"
                )
    return None


def _each(run: Run, case: Case) -> Problem | None:
    found = np.asarray([np.sort(row[row >= 0]) for row in run.value(case)], dtype=object)
    expected = list(range(case.arguments["micro_batches"]))
    short = next((list(row) for row in found if list(row) != expected), None)
    return None if short is None else Problem(f"micro-batches {expected}", f"{short}")


TIMETABLE = Spec(
    name="timetable",
    statement="timetable(stages, micro_batches): which micro-batch each stage computes at each time, in the forward pass of "
    "a pipeline in which every stage takes one unit of time per micro-batch and begins as early as it can; -1 where it "
    "waits -> (stages, micro_batches + stages - 1), integers",
    required=("stages", "micro_batches"),
    reference=_times_reference,
    differentiable=False,
    usual=(),
    cases=_times_cases,
    checks=(
        Check("m + p - 1 steps", "The micro-batches follow each other without a gap.", _steps),
        Check(
            "a stage waits for the one before",
            "Stage s can begin with a micro-batch when stage s - 1 has finished it.",
            _waits,
        ),
        Check(
            "every stage computes every micro-batch",
            "All micro-batches pass through all stages, and in order.",
            _each,
        ),
    ),
    mutants=mistakes(mutants.at_once, mutants.one_at_a_time, mutants.not_emptied, mutants.backward),
    chapter=19,
)


# --- A part of a layer ------------------------------------------------------------------------------


def _part_reference(x, w_up, b_up, w_down, b_down, rank, world_size):
    """Feature by feature."""
    own = len(b_up) // world_size
    output = np.zeros((len(x), len(b_down)), x.dtype)
    for feature in range(rank * own, (rank + 1) * own):
        hidden = np.maximum(x @ w_up[feature] + b_up[feature], 0)
        output += hidden[:, None] * w_down[:, feature]
    return output + b_down if rank == 0 else output


def _part_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, length, width, hidden, rank, workers, dtype=torch.float64) -> Case:
        shapes = {"x": (length, width), "w_up": (hidden, width), "b_up": (hidden,)}
        shapes |= {"w_down": (width, hidden), "b_down": (width,)}
        arguments = {name: rng.normal(size=shape) for name, shape in shapes.items()}
        return Case(label, {**arguments, "rank": rank, "world_size": workers}, dtype)

    return [
        case("two workers, the first", 3, 2, 4, 0, 2),
        case("two workers, the second", 3, 2, 4, 1, 2),
        case("four workers", 2, 3, 8, 2, 4),
        case("one worker", 2, 3, 4, 0, 1),
        case("float32", 3, 4, 6, 1, 3, torch.float32),
    ]


def _parts_add_up(run: Run, case: Case) -> Problem | None:
    workers = range(case.arguments["world_size"])
    parts = [run.value(case, rank=rank) for rank in workers]
    expected, slack = run.expected(case, rank=0, world_size=1)
    scale = (
        4 * len(workers) * torch.finfo(case.dtype).eps * max(np.abs(each).max() for each in parts)
    )
    return compare(
        expected,
        sum(parts),
        (len(workers) + 1) * float(slack) + scale,
        "the sum of all workers' parts",
    )


def _own_features(run: Run, case: Case) -> Problem | None:
    """Other numbers in the rows and columns of the other workers change nothing."""
    own = len(case.arguments["b_up"]) // case.arguments["world_size"]
    others = np.arange(len(case.arguments["b_up"])) // own != case.arguments["rank"]
    changed = {name: case.arguments[name].copy() for name in ("w_up", "b_up", "w_down")}
    changed["w_up"][others] += 1
    changed["b_up"][others] += 1
    changed["w_down"][:, others] += 1
    before, after = run.value(case), run.value(case, **changed)
    return compare(
        before, after, 0.0, "with other numbers in the other workers' features, the part"
    )


FEED_FORWARD_PART = Spec(
    name="feed_forward_part",
    statement="feed_forward_part(x, w_up, b_up, w_down, b_down, rank, world_size): what one of N = world_size workers "
    "contributes to the feed-forward network relu(x w_up^T + b_up) w_down^T + b_down. x (L, D), w_up (F, D), b_up (F), "
    "w_down (D, F), b_down (D), F a multiple of N. Worker r has hidden features r F/N to (r + 1) F/N - 1, and worker 0 "
    "adds b_down; the sum over all workers is the network's output -> (L, D)",
    required=("x", "w_up", "b_up", "w_down", "b_down", "rank", "world_size"),
    reference=_part_reference,
    baseline=feed_forward_part,
    cases=_part_cases,
    checks=(
        Check(
            "the parts add up to the layer",
            "The sum over the workers is the output of the whole network, biases included, once each.",
            _parts_add_up,
        ),
        Check(
            "a worker needs its own features only",
            "The rows and columns of other workers are not there on this one.",
            _own_features,
            when=lambda case: case.arguments["world_size"] > 1,
        ),
    ),
    mutants=mistakes(
        mutants.bias_everywhere, mutants.whole_layer, mutants.first_features, mutants.strided_rows
    ),
    chapter=19,
)


# --- How many GPUs a batch can use -------------------------------------------------------------------


def _gpus_reference(sequences, length, tensor, least_tokens):
    """The number of groups: no more than there are sequences, and no more than the tokens suffice for."""
    groups = 0
    while groups < sequences and (groups + 1) * tensor * least_tokens <= sequences * length:
        groups += 1
    return np.float64(groups * tensor)


def _gpus_cases(rng: np.random.Generator) -> list[Case]:
    names = ("sequences", "length", "tensor", "least_tokens")
    rows = [
        ("a whole sequence on each GPU", 1024, 4096, 1, 1000),
        ("eight GPUs share sequences", 1024, 4096, 8, 1000),
        ("short sequences", 1000, 8, 4, 16),
        ("both limits are equal", 6, 40, 2, 20),
        ("at random", *(int(n) for n in rng.integers(2, 60, size=4))),
    ]
    return [Case(label, dict(zip(names, numbers, strict=True))) for label, *numbers in rows]


def _gpus_of(run: Run, case: Case) -> int:
    return round(float(run.value(case)))


def _whole_groups(run: Run, case: Case) -> Problem | None:
    rest = _gpus_of(run, case) % case.arguments["tensor"]
    return compare(np.float64(0.0), np.float64(rest), 0.0, "the GPUs outside a whole group")


def _enough_sequences(run: Run, case: Case) -> Problem | None:
    lacking = _gpus_of(run, case) // case.arguments["tensor"] - case.arguments["sequences"]
    return compare(
        np.float64(0.0), np.float64(max(lacking, 0)), 0.0, "the groups without a sequence"
    )


def _enough_tokens(run: Run, case: Case) -> Problem | None:
    given = case.arguments
    lacking = _gpus_of(run, case) * given["least_tokens"] - given["sequences"] * given["length"]
    return compare(np.float64(0.0), np.float64(max(lacking, 0)), 0.0, "the tokens that are lacking")


def _no_more_groups(run: Run, case: Case) -> Problem | None:
    given = case.arguments
    groups = _gpus_of(run, case) // given["tensor"] + 1
    needed = groups * given["tensor"] * given["least_tokens"]
    fits = groups <= given["sequences"] and needed <= given["sequences"] * given["length"]
    return compare(np.float64(0.0), np.float64(fits), 0.0, "the groups that could be added")


USEFUL_GPUS = Spec(
    name="useful_gpus",
    statement="useful_gpus(sequences, length, tensor, least_tokens): the largest number of GPUs for a batch of `sequences` "
    "sequences of `length` tokens each. Groups of `tensor` GPUs share their sequences. Every group has at least one "
    "whole sequence, and the batch has at least least_tokens tokens for each GPU -> an integer, a multiple of tensor",
    required=("sequences", "length", "tensor", "least_tokens"),
    reference=_gpus_reference,
    differentiable=False,
    read=lambda answer, arguments: torch.tensor(float(answer), dtype=torch.float64),
    usual=(),
    cases=_gpus_cases,
    checks=(
        Check("whole groups", "A group has `tensor` GPUs, all or none.", _whole_groups),
        Check(
            "every group has a sequence",
            "The GPUs of a group share sequences; two groups do not.",
            _enough_sequences,
        ),
        Check(
            "every GPU has enough tokens",
            "With fewer than least_tokens, communication takes longer than compute.",
            _enough_tokens,
        ),
        Check(
            "no more groups fit",
            "The largest number: with one more group, sequences or tokens are lacking.",
            _no_more_groups,
        ),
    ),
    mutants=mistakes(
        mutants.tokens_only,
        mutants.sequences_only,
        mutants.a_sequence_for_each_gpu,
        mutants.parts_of_groups,
    ),
    chapter=19,
)
