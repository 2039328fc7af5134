"""Exercises of chapter 19, on its page about ring attention: merging partial results, and who has which tokens."""

from __future__ import annotations

import math

import numpy as np
import torch

from ..distributed.ring_attention import contiguous_shard, zigzag_shard
from ..specs.compare import Problem, compare
from ..specs.mistakes import mistake, mistakes
from ..specs.spec import UNTOUCHED, Case, Check, Run, Spec

# --- Merging by log-sum-exp -----------------------------------------------------------------------


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


def merge_outputs(output, lse, other_output, other_lse):
    """By logaddexp."""
    merged = torch.logaddexp(lse, other_lse)
    base = merged.masked_fill(merged == -math.inf, 0.0)
    one, two = (torch.exp(each - base)[..., None] for each in (lse, other_lse))
    return output * one + other_output * two, merged


@mistake(
    "exponentials of the log-sum-exps",
    rejected_by="scores of a thousand give finite numbers",
    symptom="NaN as soon as a score is above 709, in float32 above 88.",
    cause="exp(lse) overflows. Only differences of log-sum-exps may go into an exponential.",
    seen="NVIDIA/TransformerEngine PR 716",
)
def _merge_overflows(output, lse, other_output, other_lse):
    one, two = lse.exp()[..., None], other_lse.exp()[..., None]
    total = one + two
    merged = (output * one + other_output * two) / total.where(total > 0, 1.0)
    return merged, total[..., 0].log()


@mistake(
    "the log-sum-exps are added",
    rejected_by="two equal halves: ln 2 more",
    symptom="The first merge looks right; the third block already gets a wrong weight.",
    cause="log(a) + log(b) is the logarithm of the product. The new one is log(a + b): logaddexp.",
    seen="zhuzilin/ring-flash-attention issue 20",
)
def _merge_adds(output, lse, other_output, other_lse):
    return merge_outputs(output, lse, other_output, other_lse)[0], lse + other_lse


@mistake(
    "the mean of the outputs",
    rejected_by="an output of far larger scores wins",
    symptom="A block of low scores counts as much as one with the best keys.",
    cause="Each output is normalized by its own sum. The sums are the weights.",
)
def _merge_means(output, lse, other_output, other_lse):
    return (output + other_output) / 2, torch.logaddexp(lse, other_lse)


@mistake(
    "the weights exchanged",
    rejected_by="an output of far larger scores wins",
    symptom="Worse than a mean: the block of the lowest scores gets nearly all the weight.",
    cause="A sign: sigmoid(other - own) is the weight of the other output.",
    seen="zhuzilin/ring-flash-attention PR 34 has the right form",
)
def _merge_exchanged(output, lse, other_output, other_lse):
    share = torch.sigmoid(lse - other_lse).nan_to_num(0.5)[..., None]
    return output + share * (other_output - output), torch.logaddexp(lse, other_lse)


@mistake(
    "the log-sum-exp is not updated",
    rejected_by="two equal halves: ln 2 more",
    symptom="Right for two blocks, wrong for three.",
    cause="The result stands for the keys of both: its log-sum-exp does, too.",
)
def _merge_keeps(output, lse, other_output, other_lse):
    return merge_outputs(output, lse, other_output, other_lse)[0], lse.clone()


@mistake(
    "two empty blocks give NaN",
    rejected_by="nothing and nothing is nothing",
    symptom="NaN in the first rows of a causal text, or in padding.",
    cause="-inf - (-inf) is NaN: where both are -inf, subtract 0.",
)
def _merge_nothing(output, lse, other_output, other_lse):
    merged = torch.logaddexp(lse, other_lse)
    one, two = (torch.exp(each - merged)[..., None] for each in (lse, other_lse))
    return output * one + other_output * two, merged


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
    name="ch19.merge_outputs",
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
        _merge_overflows, _merge_adds, _merge_means, _merge_exchanged, _merge_keeps, _merge_nothing
    ),
    chapter=19,
    points=3,
)

# --- Who has which tokens -------------------------------------------------------------------------


def _zigzag_reference(length: int, rank: int, world_size: int) -> np.ndarray:
    """Chunk by chunk: number `rank` from the front, and as many from the back."""
    size = math.ceil(length / (2 * world_size))
    padded = [*range(length), *([-1] * (2 * world_size * size - length))]
    chunks = [padded[n * size : (n + 1) * size] for n in range(2 * world_size)]
    return np.asarray(chunks[rank] + chunks[2 * world_size - 1 - rank])


def zigzag_positions(length, rank, world_size):
    """The package's."""
    return zigzag_shard(length, rank=rank, world_size=world_size)


@mistake(
    "one stretch per worker",
    rejected_by="the workers have equally many causal scores",
    symptom="Under a causal mask worker 0 waits for the last worker nearly all the time.",
    cause="The tokens in order: the last worker's queries see nearly all keys, the first one's nearly none.",
    seen="zhuzilin/ring-flash-attention issue 2",
)
def _contiguous(length, rank, world_size):
    return contiguous_shard(length, rank=rank, world_size=world_size)


@mistake(
    "the last chunk for everybody",
    rejected_by="every token has one worker",
    cause="Worker r has chunk 2N - 1 - r from the back: another one for each worker.",
)
def _last_chunk(length, rank, world_size):
    size = -(-length // (2 * world_size))
    own, last = (n * size + torch.arange(size) for n in (rank, 2 * world_size - 1))
    ids = torch.cat((own, last))
    return ids.where(ids < length, -1)


@mistake(
    "chunks of unequal length",
    rejected_by="all workers have equally many",
    symptom="A size mismatch in the backward pass, or a worker that waits for messages that never come.",
    cause="torch.chunk gives a shorter last chunk where the length does not divide. Pad to 2N equal chunks.",
    seen="jzhang38/EasyContext issue 47",
)
def _unequal(length, rank, world_size):
    chunks = torch.arange(length).tensor_split(2 * world_size)
    return torch.cat((chunks[rank], chunks[2 * world_size - 1 - rank]))


@mistake(
    "the rest is dropped",
    rejected_by="every token has one worker",
    symptom="The last tokens of a text are never trained on.",
    cause="The chunk size is rounded down. Round up, and mark what is too much as padding, -1.",
)
def _dropped(length, rank, world_size):
    size = length // (2 * world_size)
    chunks = torch.tensor([[rank], [2 * world_size - 1 - rank]])
    return (chunks * size + torch.arange(size)).flatten()


@mistake(
    "padding gets positions behind the text",
    rejected_by="padding is -1",
    symptom="Padding attends and is attended to, without a causal mask.",
    cause="The last chunk ends behind the text. Positions there are no tokens.",
)
def _beyond(length, rank, world_size):
    size = -(-length // (2 * world_size))
    chunks = torch.tensor([[rank], [2 * world_size - 1 - rank]])
    return (chunks * size + torch.arange(size)).flatten()


def _zigzag_cases(rng: np.random.Generator) -> list[Case]:
    sizes = [(8, 0, 2), (8, 1, 2), (16, 2, 4), (13, 3, 4), (13, 0, 4), (3, 1, 4), (7, 2, 3), (6, 0, 1)]
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
    name="ch19.zigzag_positions",
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
    mutants=mistakes(_contiguous, _last_chunk, _unequal, _dropped, _beyond),
    chapter=19,
    points=2,
)

EXERCISES = (MERGE_OUTPUTS, ZIGZAG_POSITIONS)
