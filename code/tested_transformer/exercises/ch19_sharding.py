"""Exercises of chapter 19, on its page about sharding: the norm of what is spread out, and the order of an epoch."""

from __future__ import annotations

import numpy as np
import torch

from ..distributed.data_parallel import indices_of_worker
from ..specs.compare import Problem, compare
from ..specs.mistakes import mistake, mistakes
from ..specs.spec import UNTOUCHED, Case, Check, Run, Spec

# --- The true norm --------------------------------------------------------------------------------


def _norm_reference(sharded: np.ndarray, replicated: np.ndarray) -> np.ndarray:
    """Number by number."""
    total = np.longdouble(0)
    for number in [*sharded.flatten(), *replicated.flatten()]:
        total += np.longdouble(number) ** 2
    return np.sqrt(total)


def global_norm(sharded, replicated):
    """The root of all squares."""
    return (sharded.square().sum() + replicated.square().sum()).sqrt()


@mistake(
    "the norm of the own shard",
    rejected_by="every shard counts",
    symptom="Each worker clips by a norm of its own: too little, and each by another factor.",
    cause="A worker's gradients are a part. Add up the squares of all workers, then take the root.",
    seen="pytorch/pytorch issue 72548; areal-project/AReaL issue 312",
)
def _norm_local(sharded, replicated):
    return (sharded[0].square().sum() + replicated.square().sum()).sqrt()


@mistake(
    "the norms are added",
    rejected_by="a norm of 3 and one of 4 make 5",
    cause="Squares add up, norms do not: sum the squares, then take the root.",
)
def _norm_added(sharded, replicated):
    return sharded.norm(dim=-1).sum() + replicated.norm()


@mistake(
    "what every worker has is counted every time",
    rejected_by="a copy counts once",
    symptom="The norm is too large, and grows with the number of workers.",
    cause="Replicated gradients are one gradient, not N. Only shards are summed over the workers.",
    seen="pytorch/pytorch PR 88955; ByteDance-Seed/VeOmni issue 184",
)
def _norm_copies(sharded, replicated):
    squares = sharded.square().sum() + len(sharded) * replicated.square().sum()
    return squares.sqrt()


@mistake(
    "the mean over the workers",
    rejected_by="every shard counts",
    symptom="The logged norm is too low by the root of the number of workers.",
    cause="Squares of shards are summed over the workers, not averaged.",
    seen="radixark/miles_diffusion PR 35 logs a norm that is too low by this factor",
)
def _norm_mean(sharded, replicated):
    return (sharded.square().sum() / len(sharded) + replicated.square().sum()).sqrt()


@mistake(
    "what is not sharded is forgotten",
    rejected_by="a copy counts once",
    cause="The norm is that of the whole gradient, replicated parameters included.",
)
def _norm_sharded(sharded, replicated):
    return sharded.square().sum().sqrt() + 0 * replicated.sum()


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
    name="ch19.global_norm",
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
    mutants=mistakes(_norm_local, _norm_added, _norm_copies, _norm_mean, _norm_sharded),
    chapter=19,
    points=2,
)

# --- Who reads what in an epoch -------------------------------------------------------------------


def _order(length: int, seed: int) -> list[int]:
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed)).tolist()


def _epoch_reference(length, rank, world_size, epoch, seed):
    """One by one: fill up from the front, then deal out like cards."""
    order = _order(length, seed + epoch)
    filled = list(order)
    while len(filled) % world_size:
        filled.append(order[len(filled) % length])
    return np.asarray([each for n, each in enumerate(filled) if n % world_size == rank])


def epoch_indices(length, rank, world_size, epoch, seed):
    """The package's."""
    return indices_of_worker(length, rank=rank, world_size=world_size, epoch=epoch, seed=seed)


@mistake(
    "the same order in every epoch",
    rejected_by="two epochs have different orders",
    symptom="No error and no warning; the model meets the same batches in every epoch.",
    cause="The epoch is not part of the seed: DistributedSampler.set_epoch was not called.",
    seen="NVIDIA/tacotron2 issue 241; kan-bayashi/ParallelWaveGAN issue 177; lucidrains/DALLE-pytorch PR 230",
)
def _no_epoch(length, rank, world_size, epoch, seed):
    return epoch_indices(length, rank, world_size, 0, seed)


@mistake(
    "every worker shuffles for itself",
    rejected_by="every example is read",
    symptom="Some examples are read twice in an epoch, others not at all.",
    cause="The rank is part of the seed. All workers must agree on one order.",
)
def _own_order(length, rank, world_size, epoch, seed):
    return epoch_indices(length, rank, world_size, epoch, seed + 1000 * rank)


@mistake(
    "the rest is left out",
    rejected_by="every example is read",
    cause="The number per worker is rounded down: the last examples of the order are lost.",
)
def _rest_left_out(length, rank, world_size, epoch, seed):
    order = torch.tensor(_order(length, seed + epoch))
    return order[: length // world_size * world_size][rank::world_size]


@mistake(
    "workers with different numbers of examples",
    rejected_by="all workers have equally many",
    symptom="At the end of the epoch one worker waits for the others forever.",
    cause="Where the length does not divide, some workers do a step that the others do not.",
)
def _unequal_epoch(length, rank, world_size, epoch, seed):
    return torch.tensor(_order(length, seed + epoch)[rank::world_size], dtype=torch.long)


@mistake(
    "no order at all",
    rejected_by="two epochs have different orders",
    cause="The examples are dealt out as they lie: not shuffled.",
)
def _not_shuffled(length, rank, world_size, epoch, seed):
    each = -(-length // world_size)
    return (torch.arange(each * world_size) % length)[rank::world_size]


def _epoch_cases(rng: np.random.Generator) -> list[Case]:
    sizes = [(12, 0, 4, 0), (12, 3, 4, 1), (13, 1, 4, 2), (13, 3, 4, 0), (9, 0, 2, 3), (7, 0, 1, 5)]
    return [
        Case(
            f"{length} examples, worker {rank} of {world}, epoch {epoch}",
            {"length": length, "rank": rank, "world_size": world, "epoch": epoch,
             "seed": int(rng.integers(100))},
        )  # fmt: skip
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
    name="ch19.epoch_indices",
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
    mutants=mistakes(_no_epoch, _own_order, _rest_left_out, _unequal_epoch, _not_shuffled),
    chapter=19,
    points=2,
)

EXERCISES = (GLOBAL_NORM, EPOCH_INDICES)
