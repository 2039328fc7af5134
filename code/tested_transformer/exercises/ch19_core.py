"""Exercises of chapter 19's main page: a step of the all-reduce, and how much each micro-batch counts."""

from __future__ import annotations

import numpy as np
import torch

from ..specs.compare import Problem, compare
from ..specs.mistakes import mistake, mistakes
from ..specs.spec import UNTOUCHED, Case, Check, Run, Spec

# --- A ring ---------------------------------------------------------------------------------------


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


def ring_step(chunks, step):
    """One step of all workers at once."""
    ranks = torch.arange(len(chunks))
    numbers = (ranks - 1 - step) % len(chunks)
    received = chunks[ranks - 1, numbers]  # workers, c
    summing = step < len(chunks) - 1
    new = chunks[ranks, numbers] + received if summing else received
    return chunks.index_put((ranks, numbers), new)


@mistake(
    "what arrives is always added",
    rejected_by="in the second half a sum replaces what is there",
    symptom="The workers' gradients differ, and some are too large: chunks count twice.",
    cause="From step N - 1 on, finished sums travel. They replace the old chunk.",
)
def _always_added(chunks, step):
    ranks = torch.arange(len(chunks))
    numbers = (ranks - 1 - step) % len(chunks)
    return chunks.index_put((ranks, numbers), chunks[ranks, numbers] + chunks[ranks - 1, numbers])


@mistake(
    "each worker sends the chunk of its own number",
    rejected_by="equals the reference",
    symptom="After N - 1 steps no chunk is complete.",
    cause="A worker passes on the chunk that has just arrived: in step s that is chunk rank - s.",
)
def _same_chunk(chunks, step):
    ranks = torch.arange(len(chunks))
    numbers = (ranks - 1) % len(chunks)
    received = chunks[ranks - 1, numbers]
    new = chunks[ranks, numbers] + received if step < len(chunks) - 1 else received
    return chunks.index_put((ranks, numbers), new)


@mistake(
    "the ring the other way around",
    rejected_by="worker r receives from worker r - 1",
    cause="Worker r sends to worker r + 1. So what worker r receives comes from worker r - 1.",
)
def _other_way(chunks, step):
    ranks = torch.arange(len(chunks))
    right = (ranks + 1) % len(chunks)
    numbers = (right - step) % len(chunks)
    received = chunks[right, numbers]
    new = chunks[ranks, numbers] + received if step < len(chunks) - 1 else received
    return chunks.index_put((ranks, numbers), new)


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
    name="ch19.ring_step",
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
    mutants=mistakes(_always_added, _same_chunk, _other_way),
    chapter=19,
    points=3,
)

# --- How much a micro-batch counts ----------------------------------------------------------------


def _scales_reference(counts: np.ndarray) -> np.ndarray:
    """Undo the mean over the micro-batch and the mean over the workers; divide by all tokens."""
    scales = np.zeros(counts.shape, np.longdouble)
    for index in np.ndindex(counts.shape):
        scales[index] = counts[index] * len(counts) / np.longdouble(counts.sum())
    return scales.astype(np.float64)


def micro_batch_scales(counts):
    """Tokens, times workers, over all tokens."""
    return counts.double() * len(counts) / counts.sum()


def _wrong_scales(name: str, formula, **record):
    """A mistake that is one formula."""
    return mistake(name, rejected_by="ragged micro-batches are one batch", **record)(formula)


_means_of_steps = _wrong_scales(
    "every micro-batch counts the same",
    lambda counts: torch.full(counts.shape, 1 / counts.shape[1], dtype=torch.float64),
    symptom="Loss curves with and without accumulation differ wherever lengths differ.",
    cause="An average of averages: a token of a short micro-batch counts more than one of a long one.",
    seen="huggingface/transformers PR 34191; meta-pytorch/torchtune PR 1917",
)
_means_of_workers = _wrong_scales(
    "every worker counts the same",
    lambda counts: counts.double() / counts.sum(1, keepdim=True),
    symptom="Accumulation is right now, and four workers still differ from one.",
    cause="Each worker divides by its own tokens. Sum the token counts over the workers, too.",
    seen="huggingface/transformers issue 34242",
)
_means_of_columns = _wrong_scales(
    "every step of the accumulation counts the same",
    lambda counts: (
        counts.double() * len(counts) / counts.sum(0, keepdim=True) / counts.shape[1]
    ),
    symptom="Right without accumulation, wrong with it.",
    cause="The tokens are summed over the workers micro-batch by micro-batch, not over the whole step.",
)
_forgets_the_average = mistake(
    "the average over the workers is forgotten",
    rejected_by="equal micro-batches have the scale 1 / M",
    symptom="The gradient is as many times too small as there are workers.",
    cause="Dividing by all tokens is the whole mean; DDP then divides by the number of workers again.",
)(lambda counts: counts.double() / counts.sum())
_times_workers = mistake(
    "a local mean times the number of workers",
    rejected_by="equal micro-batches have the scale 1 / M",
    symptom="With four workers and two micro-batches the gradient is 8 times too large.",
    cause="The factor undoes DDP's average. It belongs to a sum that is divided by all tokens, not to a mean.",
    seen="NVIDIA-NeMo/Automodel issue 3846",
)(lambda counts: torch.full(counts.shape, float(len(counts)), dtype=torch.float64))
_not_divided = mistake(
    "the accumulation is not divided",
    rejected_by="equal micro-batches have the scale 1 / M",
    symptom="The gradient grows with the number of micro-batches.",
    cause="backward() adds up. The mean over the tokens of all micro-batches needs one division.",
)(lambda counts: torch.ones(counts.shape, dtype=torch.float64))


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
    name="ch19.micro_batch_scales",
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
    mutants=mistakes(
        _means_of_steps, _means_of_workers, _means_of_columns, _forgets_the_average, _times_workers,
        _not_divided,
    ),
    chapter=19,
    points=2,
)  # fmt: skip

EXERCISES = (RING_STEP, MICRO_BATCH_SCALES)
