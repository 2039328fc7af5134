"""The famous mistakes of training on many devices."""

from __future__ import annotations

import torch

from ...distributed.ring_attention import contiguous_shard
from ..mistakes import mistake
from .right import (
    epoch_indices,
    epoch_order,
    feed_forward_part,
    fsdp_linear,
    merge_outputs,
    timetable,
)


@mistake(
    "what arrives is always added",
    rejected_by="in the second half a sum replaces what is there",
    symptom="The workers' gradients differ, and some are too large: chunks count twice.",
    cause="From step N - 1 on, finished sums travel. They replace the old chunk.",
)
def always_added(chunks, step):
    ranks = torch.arange(len(chunks))
    numbers = (ranks - 1 - step) % len(chunks)
    return chunks.index_put((ranks, numbers), chunks[ranks, numbers] + chunks[ranks - 1, numbers])


@mistake(
    "each worker sends the chunk of its own number",
    rejected_by="equals the reference",
    symptom="After N - 1 steps no chunk is complete.",
    cause="A worker passes on the chunk that has just arrived: in step s that is chunk rank - s.",
)
def same_chunk(chunks, step):
    ranks = torch.arange(len(chunks))
    numbers = (ranks - 1) % len(chunks)
    received = chunks[ranks - 1, numbers]
    new = chunks[ranks, numbers] + received if step < len(chunks) - 1 else received
    return chunks.index_put((ranks, numbers), new)


@mistake(
    "the ring the other way around",
    rejected_by="worker r receives from worker r - 1",
    symptom="Every worker waits for a chunk that nobody sends, or sums the wrong one.",
    cause="Worker r sends to worker r + 1. So what worker r receives comes from worker r - 1.",
)
def other_way(chunks, step):
    ranks = torch.arange(len(chunks))
    right = (ranks + 1) % len(chunks)
    numbers = (right - step) % len(chunks)
    received = chunks[right, numbers]
    new = chunks[ranks, numbers] + received if step < len(chunks) - 1 else received
    return chunks.index_put((ranks, numbers), new)


def wrong_scales(name: str, formula, **record):
    """A mistake that is one formula."""
    return mistake(name, rejected_by="ragged micro-batches are one batch", **record)(formula)


means_of_steps = wrong_scales(
    "every micro-batch counts the same",
    lambda counts: torch.full(counts.shape, 1 / counts.shape[1], dtype=torch.float64),
    symptom="Loss curves with and without accumulation differ wherever lengths differ.",
    cause="An average of averages: a token of a short micro-batch counts more than one of a long one.",
    seen="huggingface/transformers PR 34191; meta-pytorch/torchtune PR 1917",
)


means_of_workers = wrong_scales(
    "every worker counts the same",
    lambda counts: counts.double() / counts.sum(1, keepdim=True),
    symptom="Accumulation is right now, and four workers still differ from one.",
    cause="Each worker divides by its own tokens. Sum the token counts over the workers, too.",
    seen="huggingface/transformers issue 34242",
)


means_of_columns = wrong_scales(
    "every step of the accumulation counts the same",
    lambda counts: counts.double() * len(counts) / counts.sum(0, keepdim=True) / counts.shape[1],
    symptom="Right without accumulation, wrong with it.",
    cause="The tokens are summed over the workers micro-batch by micro-batch, not over the whole step.",
)


forgets_the_average = mistake(
    "the average over the workers is forgotten",
    rejected_by="equal micro-batches have the scale 1 / M",
    symptom="The gradient is as many times too small as there are workers.",
    cause="Dividing by all tokens is the whole mean; DDP then divides by the number of workers again.",
)(lambda counts: counts.double() / counts.sum())


times_workers = mistake(
    "a local mean times the number of workers",
    rejected_by="equal micro-batches have the scale 1 / M",
    symptom="With four workers and two micro-batches the gradient is 8 times too large.",
    cause="The factor undoes DDP's average. It belongs to a sum that is divided by all tokens, not to a mean.",
    seen="NVIDIA-NeMo/Automodel issue 3846",
)(lambda counts: torch.full(counts.shape, float(len(counts)), dtype=torch.float64))


not_divided = mistake(
    "the accumulation is not divided",
    rejected_by="equal micro-batches have the scale 1 / M",
    symptom="The gradient grows with the number of micro-batches.",
    cause="backward() adds up. The mean over the tokens of all micro-batches needs one division.",
)(lambda counts: torch.ones(counts.shape, dtype=torch.float64))


@mistake(
    "exponentials of the log-sum-exps",
    rejected_by="scores of a thousand give finite numbers",
    symptom="NaN as soon as a score is above 709, in float32 above 88.",
    cause="exp(lse) overflows. Only differences of log-sum-exps may go into an exponential.",
    seen="NVIDIA/TransformerEngine PR 716",
)
def merge_overflows(output, lse, other_output, other_lse):
    one, two = lse.exp()[..., None], other_lse.exp()[..., None]
    total = one + two
    merged = (output * one + other_output * two) / total.where(total > 0, 1.0)
    return merged, total[..., 0].log()


@mistake(
    "the log-sum-exps are added",
    rejected_by="two equal halves: ln 2 more",
    symptom="With weights by a sigmoid the first merge looks right; the third block gets a wrong weight.",
    cause="log(a) + log(b) is the logarithm of the product. The new one is log(a + b): logaddexp.",
    seen="zhuzilin/ring-flash-attention issue 20",
)
def merge_adds(output, lse, other_output, other_lse):
    return merge_outputs(output, lse, other_output, other_lse)[0], lse + other_lse


@mistake(
    "the mean of the outputs",
    rejected_by="an output of far larger scores wins",
    symptom="A block of low scores counts as much as one with the best keys.",
    cause="Each output is normalized by its own sum. The sums are the weights.",
)
def merge_means(output, lse, other_output, other_lse):
    return (output + other_output) / 2, torch.logaddexp(lse, other_lse)


@mistake(
    "the weights exchanged",
    rejected_by="an output of far larger scores wins",
    symptom="Worse than a mean: the block of the lowest scores gets nearly all the weight.",
    cause="A sign: sigmoid(other - own) is the weight of the other output.",
    seen="zhuzilin/ring-flash-attention PR 34 has the right form",
)
def merge_exchanged(output, lse, other_output, other_lse):
    share = torch.sigmoid(lse - other_lse).nan_to_num(0.5)[..., None]
    return output + share * (other_output - output), torch.logaddexp(lse, other_lse)


@mistake(
    "the log-sum-exp is not updated",
    rejected_by="two equal halves: ln 2 more",
    symptom="Right for two blocks, wrong for three.",
    cause="The result stands for the keys of both: its log-sum-exp does, too.",
)
def merge_keeps(output, lse, other_output, other_lse):
    return merge_outputs(output, lse, other_output, other_lse)[0], lse.clone()


@mistake(
    "two empty blocks give NaN",
    rejected_by="nothing and nothing is nothing",
    symptom="NaN in the first rows of a causal text, or in padding.",
    cause="-inf - (-inf) is NaN: where both are -inf, subtract 0.",
)
def merge_nothing(output, lse, other_output, other_lse):
    merged = torch.logaddexp(lse, other_lse)
    one, two = (torch.exp(each - merged)[..., None] for each in (lse, other_lse))
    return output * one + other_output * two, merged


@mistake(
    "one stretch per worker",
    rejected_by="the workers have equally many causal scores",
    symptom="Under a causal mask most workers wait in every step; a step takes up to twice as long as with zigzag.",
    cause="The tokens in order: in each step some worker's queries see all keys, and others' see none.",
    seen="zhuzilin/ring-flash-attention issue 2",
)
def contiguous(length, rank, world_size):
    return contiguous_shard(length, rank=rank, world_size=world_size)


@mistake(
    "the last chunk for everybody",
    rejected_by="every token has one worker",
    symptom="All workers compute the same late tokens; other tokens are missing.",
    cause="Worker r has chunk 2N - 1 - r from the back: another one for each worker.",
)
def last_chunk(length, rank, world_size):
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
def unequal(length, rank, world_size):
    chunks = torch.arange(length).tensor_split(2 * world_size)
    return torch.cat((chunks[rank], chunks[2 * world_size - 1 - rank]))


@mistake(
    "the rest is dropped",
    rejected_by="every token has one worker",
    symptom="The last tokens of a text are never trained on.",
    cause="The chunk size is rounded down. Round up, and mark what is too much as padding, -1.",
)
def dropped(length, rank, world_size):
    size = length // (2 * world_size)
    chunks = torch.tensor([[rank], [2 * world_size - 1 - rank]])
    return (chunks * size + torch.arange(size)).flatten()


@mistake(
    "padding gets positions behind the text",
    rejected_by="padding is -1",
    symptom="Padding attends and is attended to, without a causal mask.",
    cause="The last chunk ends behind the text. Positions there are no tokens.",
)
def beyond(length, rank, world_size):
    size = -(-length // (2 * world_size))
    chunks = torch.tensor([[rank], [2 * world_size - 1 - rank]])
    return (chunks * size + torch.arange(size)).flatten()


def linear_gradients(weights, x, y):
    """The gradient of each worker's loss with respect to its whole layer, (N, out, in)."""
    return (x @ weights.mT - y).mT @ x


@mistake(
    "each worker computes with its own rows alone",
    rejected_by="perfect predictions have the gradient 0",
    symptom="The outputs are those of another layer; nothing is raised where the shapes fit.",
    cause="Nothing was gathered: a worker needs the rows of all workers to compute its outputs.",
)
def not_gathered(shards, x, y):
    workers = len(shards)
    own = shards.repeat(1, workers, 1)  # the own rows in place of all others
    return linear_gradients(own, x, y).mean(0).view_as(shards)


@mistake(
    "the part of the gradient that belongs to another worker",
    rejected_by="worker r keeps the gradient of its own rows",
    symptom="Training goes on, and each worker updates its rows by the gradient of other rows.",
    cause="A reduce-scatter gives part r to worker r: split it as the parameters were split.",
)
def other_part(shards, x, y):
    return fsdp_linear(shards, x, y).roll(1, 0)


@mistake(
    "each worker keeps the gradient of its own examples",
    rejected_by="the examples of all workers count",
    symptom="Every worker trains its rows on its own examples only: most of the batch is lost.",
    cause="The gradients were split, but not reduced: the workers' gradients must be averaged first.",
)
def not_reduced(shards, x, y):
    workers = len(shards)
    whole = shards.flatten(0, 1).expand(workers, -1, -1)
    each = linear_gradients(whole, x, y).view(workers, *shards.shape)
    return each[torch.arange(workers), torch.arange(workers)]


@mistake(
    "the sum of the workers' gradients",
    rejected_by="equal examples on all workers: the gradient of one",
    symptom="With four workers the gradient is four times too large.",
    cause="Each worker's loss is that of its own examples: FSDP averages the gradients.",
)
def summed_over_workers(shards, x, y):
    return len(shards) * fsdp_linear(shards, x, y)


@mistake(
    "the norm of the own shard",
    rejected_by="every shard counts",
    symptom="Each worker clips by a norm of its own: too little, and each by another factor.",
    cause="A worker's gradients are a part. Add up the squares of all workers, then take the root.",
    seen="pytorch/pytorch issue 72548; areal-project/AReaL issue 312",
)
def norm_local(sharded, replicated):
    return (sharded[0].square().sum() + replicated.square().sum()).sqrt()


@mistake(
    "the norms are added",
    rejected_by="a norm of 3 and one of 4 make 5",
    symptom="The norm is too large, and gradients are clipped too hard.",
    cause="Squares add up, norms do not: sum the squares, then take the root.",
)
def norm_added(sharded, replicated):
    return sharded.norm(dim=-1).sum() + replicated.norm()


@mistake(
    "what every worker has is counted every time",
    rejected_by="a copy counts once",
    symptom="The norm is too large, and grows with the number of workers.",
    cause="Replicated gradients are one gradient, not N. Only shards are summed over the workers.",
    seen="pytorch/pytorch PR 88955; ByteDance-Seed/VeOmni issue 184",
)
def norm_copies(sharded, replicated):
    squares = sharded.square().sum() + len(sharded) * replicated.square().sum()
    return squares.sqrt()


@mistake(
    "the mean over the workers",
    rejected_by="every shard counts",
    symptom="The logged norm is too low by the root of the number of workers.",
    cause="Squares of shards are summed over the workers, not averaged.",
    seen="radixark/miles_diffusion PR 35 logs a norm that is too low by this factor",
)
def norm_mean(sharded, replicated):
    return (sharded.square().sum() / len(sharded) + replicated.square().sum()).sqrt()


@mistake(
    "what is not sharded is forgotten",
    rejected_by="a copy counts once",
    symptom="The norm is too small, and gradients are clipped too late.",
    cause="The norm is that of the whole gradient, replicated parameters included.",
)
def norm_sharded(sharded, replicated):
    return sharded.square().sum().sqrt() + 0 * replicated.sum()


@mistake(
    "the same order in every epoch",
    rejected_by="two epochs have different orders",
    symptom="No error and no warning; the model meets the same batches in every epoch.",
    cause="The epoch is not part of the seed: DistributedSampler.set_epoch was not called.",
    seen="NVIDIA/tacotron2 issue 241; kan-bayashi/ParallelWaveGAN issue 177; lucidrains/DALLE-pytorch PR 230",
)
def no_epoch(length, rank, world_size, epoch, seed):
    return epoch_indices(length, rank, world_size, 0, seed)


@mistake(
    "every worker shuffles for itself",
    rejected_by="every example is read",
    symptom="Some examples are read twice in an epoch, others not at all.",
    cause="The rank is part of the seed. All workers must agree on one order.",
)
def own_order(length, rank, world_size, epoch, seed):
    return epoch_indices(length, rank, world_size, epoch, seed + 1000 * rank)


@mistake(
    "the rest is left out",
    rejected_by="every example is read",
    symptom="Some examples are never seen in an epoch.",
    cause="The number per worker is rounded down: the last examples of the order are lost.",
)
def rest_left_out(length, rank, world_size, epoch, seed):
    order = torch.tensor(epoch_order(length, seed + epoch))
    return order[: length // world_size * world_size][rank::world_size]


@mistake(
    "workers with different numbers of examples",
    rejected_by="all workers have equally many",
    symptom="At the end of the epoch one worker waits for the others forever.",
    cause="Where the length does not divide, some workers do a step that the others do not.",
)
def unequal_epoch(length, rank, world_size, epoch, seed):
    return torch.tensor(epoch_order(length, seed + epoch)[rank::world_size], dtype=torch.long)


@mistake(
    "no order at all",
    rejected_by="two epochs have different orders",
    symptom="Every epoch goes through the examples in the same order.",
    cause="The examples are dealt out as they lie: not shuffled.",
)
def not_shuffled(length, rank, world_size, epoch, seed):
    each = -(-length // world_size)
    return (torch.arange(each * world_size) % length)[rank::world_size]


@mistake(
    "all stages begin at once",
    rejected_by="a stage waits for the one before",
    symptom="The estimate promises a pipeline without a bubble.",
    cause="Stage s needs the output of stage s - 1: it begins s steps later.",
)
def at_once(stages, micro_batches):
    return torch.arange(micro_batches).repeat(stages, 1)


@mistake(
    "one stage at a time",
    rejected_by="m + p - 1 steps",
    symptom="All other devices wait: p devices do the work of one.",
    cause="Split the batch into micro-batches, and let a stage begin the next one while the first moves on.",
)
def one_at_a_time(stages, micro_batches):
    table = torch.full((stages, stages * micro_batches), -1)
    for stage in range(stages):
        table[stage, stage * micro_batches : (stage + 1) * micro_batches] = torch.arange(
            micro_batches
        )
    return table


@mistake(
    "the pipeline is not emptied",
    rejected_by="every stage computes every micro-batch",
    symptom="The last micro-batches are missing from the timetable.",
    cause="After the first stage has finished, the last micro-batch still passes through p - 1 others.",
)
def not_emptied(stages, micro_batches):
    table = timetable(stages, micro_batches)
    table[:, micro_batches:] = -1
    return table


@mistake(
    "the last stage begins",
    rejected_by="a stage waits for the one before",
    symptom="Stages compute before their input exists.",
    cause="In the forward pass data moves from stage 0 on. The backward pass runs the other way.",
)
def backward(stages, micro_batches):
    return timetable(stages, micro_batches).flip(0)


@mistake(
    "the output bias on every worker",
    rejected_by="the parts add up to the layer",
    symptom="The output is off by the bias, as many times as there are further workers. Without biases all is right.",
    cause="The sum over the workers adds every part's bias. Add it once, or after the sum.",
    seen="huggingface/text-generation-inference issue 1036; awslabs/slapo issue 10",
)
def bias_everywhere(x, w_up, b_up, w_down, b_down, rank, world_size):
    part = feed_forward_part(x, w_up, b_up, w_down, b_down, rank, world_size)
    return part if rank == 0 else part + b_down


@mistake(
    "the whole layer on every worker",
    rejected_by="the parts add up to the layer",
    symptom="The output is as many times too large as there are workers, and no worker computes less.",
    cause="Each worker has some of the hidden features: its rows of the first matrix, its columns of the second.",
)
def whole_layer(x, w_up, b_up, w_down, b_down, rank, world_size):
    return feed_forward_part(x, w_up, b_up, w_down, b_down, 0, 1)


@mistake(
    "every worker the first features",
    rejected_by="the parts add up to the layer",
    symptom="All workers compute the same part; other features are missing.",
    cause="The part depends on the rank.",
)
def first_features(x, w_up, b_up, w_down, b_down, rank, world_size):
    part = feed_forward_part(x, w_up, b_up, w_down, b_down, 0, world_size)
    return part if rank == 0 else part - b_down


@mistake(
    "rows and columns of different features",
    rejected_by="the parts add up to the layer",
    symptom="All shapes fit, and the output is wrong.",
    cause="The columns of the second matrix must be those of the features that the worker has computed.",
)
def strided_rows(x, w_up, b_up, w_down, b_down, rank, world_size):
    hidden = (x @ w_up[rank::world_size].mT + b_up[rank::world_size]).relu()
    output = hidden @ w_down.chunk(world_size, dim=1)[rank].mT
    return output + b_down if rank == 0 else output


@mistake(
    "only tokens counted",
    rejected_by="every group has a sequence",
    symptom="Some GPUs would have no sequence.",
    cause="FSDP splits a batch into sequences, and not into tokens.",
)
def tokens_only(sequences, length, tensor, least_tokens):
    return sequences * length // (least_tokens * tensor) * tensor


@mistake(
    "only sequences counted",
    rejected_by="every GPU has enough tokens",
    symptom="The last GPUs make the step hardly shorter.",
    cause="Below a number of tokens per GPU the communication takes longer than compute.",
)
def sequences_only(sequences, length, tensor, least_tokens):
    return sequences * tensor


@mistake(
    "a sequence for each GPU",
    rejected_by="no more groups fit",
    symptom="Tensor parallelism seems to allow no more GPUs.",
    cause="The GPUs of a group share their sequences: a group needs one, not a GPU.",
)
def a_sequence_for_each_gpu(sequences, length, tensor, least_tokens):
    groups = min(sequences * length // (least_tokens * tensor), sequences // tensor)
    return groups * tensor


@mistake(
    "a part of a group",
    rejected_by="whole groups",
    symptom="The launcher refuses the number of GPUs.",
    cause="The number of GPUs must be a multiple of the size of a group.",
)
def parts_of_groups(sequences, length, tensor, least_tokens):
    return min(sequences * length // least_tokens, sequences * tensor)
