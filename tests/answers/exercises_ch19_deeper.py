"""Chapter 19's deeper pages: merging, zigzag, the true norm, the order of an epoch, a pipeline's timetable,
a part of a layer, tokens that hide communication."""

import math

import torch
from torch.nn.functional import logsigmoid
from torch.utils.data import DistributedSampler

from tested_transformer.distributed.data_parallel import indices_of_worker
from tested_transformer.distributed.ring_attention import zigzag_shard

from . import right, wrong

# --- Merging --------------------------------------------------------------------------------------


@right("ch19.merge_outputs", "by a softmax over the two")
def by_softmax(output, lse, other_output, other_lse):
    both = torch.stack((lse, other_lse))
    weights = both.softmax(0).nan_to_num(0.0)[..., None]
    return weights[0] * output + weights[1] * other_output, both.logsumexp(0)


@right("ch19.merge_outputs", "by a sigmoid")
def by_sigmoid(output, lse, other_output, other_lse):
    nothing = (lse == -math.inf) & (other_lse == -math.inf)
    difference = (other_lse - lse).masked_fill(nothing, 0.0)
    merged = output + torch.sigmoid(difference)[..., None] * (other_output - output)
    new = torch.where(difference > 0, other_lse - logsigmoid(difference.abs()),
                      lse - logsigmoid(difference.abs()))  # fmt: skip
    return merged, new


@right("ch19.merge_outputs", "relative to the larger one")
def by_maximum(output, lse, other_output, other_lse):
    top = torch.maximum(lse, other_lse)
    safe = top.masked_fill(top == -math.inf, 0.0)
    one, two = (lse - safe).exp(), (other_lse - safe).exp()
    total = one + two
    divisor = total.masked_fill(total == 0, 1.0)
    merged = (one[..., None] * output + two[..., None] * other_output) / divisor[..., None]
    return merged, safe + total.log()


@wrong("ch19.merge_outputs", "weights by the log-sum-exps themselves")
def by_logs(output, lse, other_output, other_lse):
    share = (lse / (lse + other_lse))[..., None]
    return share * output + (1 - share) * other_output, torch.logaddexp(lse, other_lse)


@wrong("ch19.merge_outputs", "not normalized again")
def summed(output, lse, other_output, other_lse):
    return output + other_output, torch.logaddexp(lse, other_lse)


@wrong("ch19.merge_outputs", "the larger log-sum-exp")
def larger(output, lse, other_output, other_lse):
    return by_softmax(output, lse, other_output, other_lse)[0], torch.maximum(lse, other_lse)


# --- Zigzag ---------------------------------------------------------------------------------------


@right("ch19.zigzag_positions", "the package's")
def zigzag_of_package(length, rank, world_size):
    return zigzag_shard(length, rank=rank, world_size=world_size)


@right("ch19.zigzag_positions", "padded and chunked")
def zigzag_chunked(length, rank, world_size):
    size = -(-length // (2 * world_size))
    ids = torch.full((2 * world_size * size,), -1)
    ids[:length] = torch.arange(length)
    chunks = ids.view(2 * world_size, size)
    return torch.cat((chunks[rank], chunks[-1 - rank]))


@right("ch19.zigzag_positions", "by a condition")
def zigzag_listed(length, rank, world_size):
    size = math.ceil(length / world_size / 2)
    numbers = (rank, 2 * world_size - rank - 1)
    ids = [number * size + n for number in numbers for n in range(size)]
    return torch.tensor([i if i < length else -1 for i in ids], dtype=torch.long)


@wrong("ch19.zigzag_positions", "striped")
def striped(length, rank, world_size):
    size = 2 * -(-length // (2 * world_size))
    ids = torch.arange(size) * world_size + rank
    return ids.where(ids < length, -1)


@wrong("ch19.zigzag_positions", "the late chunk first")
def late_first(length, rank, world_size):
    return zigzag_of_package(length, rank, world_size).view(2, -1).flip(0).flatten()


@wrong("ch19.zigzag_positions", "the late chunk backward")
def mirrored(length, rank, world_size):
    early, late = zigzag_of_package(length, rank, world_size).view(2, -1)
    return torch.cat((early, late.flip(0)))


# --- A sharded linear layer -------------------------------------------------------------------------


@right("ch19.fsdp_linear", "worker by worker, lists")
def fsdp_lists(shards, x, y):
    whole = torch.cat([*shards])
    gradients = [(own @ whole.T - target).T @ own for own, target in zip(x, y, strict=True)]
    return [*(sum(gradients) / len(gradients)).chunk(len(shards))]


@right("ch19.fsdp_linear", "by autograd")
def fsdp_autograd(shards, x, y):
    weight = shards.detach().flatten(0, 1).requires_grad_()
    loss = (x @ weight.T - y).square().sum() / 2 / len(shards)
    return torch.autograd.grad(loss, weight)[0].unflatten(0, shards.shape[:2])


@right("ch19.fsdp_linear", "by einsum")
def fsdp_einsum(shards, x, y):
    errors = torch.einsum("nbi,msi->nbms", x, shards) - y.unflatten(-1, shards.shape[:2])
    return torch.einsum("nbms,nbi->msi", errors, x) / len(shards)


@wrong("ch19.fsdp_linear", "the loss without its half")
def fsdp_doubled(shards, x, y):
    return 2 * fsdp_einsum(shards, x, y)


@wrong("ch19.fsdp_linear", "averaged over the examples, too")
def fsdp_mean(shards, x, y):
    return fsdp_einsum(shards, x, y) / x.shape[1] / 2


@wrong("ch19.fsdp_linear", "the wrong sign")
def fsdp_downhill(shards, x, y):
    return -fsdp_einsum(shards, x, y)


# --- The true norm --------------------------------------------------------------------------------


@right("ch19.global_norm", "one long vector")
def norm_of_all(sharded, replicated):
    return torch.cat((sharded.flatten(), replicated)).norm()


@right("ch19.global_norm", "from the norms")
def norm_of_norms(sharded, replicated):
    norms = torch.cat((sharded.norm(dim=1), replicated.norm()[None]))
    return norms.norm()


@right("ch19.global_norm", "by hypot")
def norm_hypot(sharded, replicated):
    return torch.hypot(sharded.norm(), replicated.norm())


@wrong("ch19.global_norm", "without the root")
def squares(sharded, replicated):
    return sharded.square().sum() + replicated.square().sum()


@wrong("ch19.global_norm", "the norm of the mean gradient")
def norm_of_mean(sharded, replicated):
    return torch.cat((sharded.mean(0), replicated)).norm()


@wrong("ch19.global_norm", "the largest norm")
def largest(sharded, replicated):
    return torch.maximum(sharded.norm(dim=1).amax(), replicated.norm())


# --- The order of an epoch ------------------------------------------------------------------------


@right("ch19.epoch_indices", "the package's")
def epoch_of_package(length, rank, world_size, epoch, seed):
    return indices_of_worker(length, rank=rank, world_size=world_size, epoch=epoch, seed=seed)


@right("ch19.epoch_indices", "torch's DistributedSampler")
def epoch_of_torch(length, rank, world_size, epoch, seed):
    sampler = DistributedSampler(range(length), world_size, rank, seed=seed)
    sampler.set_epoch(epoch)
    return torch.tensor(list(sampler))


@right("ch19.epoch_indices", "filled up and dealt out")
def epoch_dealt(length, rank, world_size, epoch, seed):
    order = torch.randperm(length, generator=torch.Generator().manual_seed(seed + epoch))
    order = torch.cat((order, order[: -length % world_size]))
    return order.view(-1, world_size)[:, rank]


@wrong("ch19.epoch_indices", "DistributedSampler without set_epoch")
def epoch_forgotten(length, rank, world_size, epoch, seed):
    return torch.tensor(list(DistributedSampler(range(length), world_size, rank, seed=seed)))


@wrong("ch19.epoch_indices", "one stretch of the order per worker")
def epoch_stretch(length, rank, world_size, epoch, seed):
    order = torch.randperm(length, generator=torch.Generator().manual_seed(seed + epoch))
    order = torch.cat((order, order[: -length % world_size]))
    return order.view(world_size, -1)[rank]


# --- A pipeline -----------------------------------------------------------------------------------


@right("ch19.timetable", "row by row")
def by_rows(stages, micro_batches):
    table = torch.full((stages, micro_batches + stages - 1), -1)
    for stage in range(stages):
        table[stage, stage : stage + micro_batches] = torch.arange(micro_batches)
    return table


@right("ch19.timetable", "cell by cell")
def by_cells(stages, micro_batches):
    times = range(micro_batches + stages - 1)
    return torch.tensor(
        [[t - s if 0 <= t - s < micro_batches else -1 for t in times] for s in range(stages)]
    )


@right("ch19.timetable", "rolled")
def rolled(stages, micro_batches):
    first = torch.cat((torch.arange(micro_batches), torch.full((stages - 1,), -1)))
    return torch.stack([first.roll(stage) for stage in range(stages)])


@wrong("ch19.timetable", "waits are 0")
def zeros(stages, micro_batches):
    return by_rows(stages, micro_batches).clamp(min=0)


@wrong("ch19.timetable", "two steps per stage")
def twice(stages, micro_batches):
    table = torch.full((stages, micro_batches + 2 * (stages - 1)), -1)
    for stage in range(stages):
        table[stage, 2 * stage : 2 * stage + micro_batches] = torch.arange(micro_batches)
    return table


@wrong("ch19.timetable", "the last micro-batch first")
def reversed_batches(stages, micro_batches):
    table = by_rows(stages, micro_batches)
    return torch.where(table >= 0, micro_batches - 1 - table, -1)


# --- A part of a layer ----------------------------------------------------------------------------


@right("ch19.feed_forward_part", "by slices")
def part_by_slices(x, w_up, b_up, w_down, b_down, rank, world_size):
    size = len(b_up) // world_size
    own = slice(rank * size, (rank + 1) * size)
    hidden = torch.nn.functional.linear(x, w_up[own], b_up[own]).relu()
    return torch.nn.functional.linear(hidden, w_down[:, own], b_down if rank == 0 else None)


@right("ch19.feed_forward_part", "by views")
def part_by_views(x, w_up, b_up, w_down, b_down, rank, world_size):
    rows = w_up.view(world_size, -1, w_up.shape[1])[rank]
    hidden = (x @ rows.T + b_up.view(world_size, -1)[rank]).clamp(min=0)
    columns = w_down.view(len(b_down), world_size, -1)[:, rank]
    return hidden @ columns.T + (rank == 0) * b_down


@wrong("ch19.feed_forward_part", "no hidden bias")
def part_without_bias(x, w_up, b_up, w_down, b_down, rank, world_size):
    return part_by_slices(x, w_up, torch.zeros_like(b_up), w_down, b_down, rank, world_size)


@wrong("ch19.feed_forward_part", "the last worker adds the bias")
def part_last_bias(x, w_up, b_up, w_down, b_down, rank, world_size):
    own = part_by_slices(x, w_up, b_up, w_down, torch.zeros_like(b_down), rank, world_size)
    return own + b_down if rank == world_size - 1 else own


# --- How many GPUs a batch can use -----------------------------------------------------------------


@right("ch19.useful_gpus", "two limits for GPUs")
def gpus_by_two_limits(sequences, length, tensor, least_tokens):
    by_tokens = sequences * length // least_tokens
    return min(by_tokens - by_tokens % tensor, sequences * tensor)


@right("ch19.useful_gpus", "counted down")
def gpus_counted_down(sequences, length, tensor, least_tokens):
    gpus = sequences * tensor
    while gpus * least_tokens > sequences * length:
        gpus -= tensor
    return torch.tensor(gpus)


@wrong("ch19.useful_gpus", "rounded up")
def gpus_rounded_up(sequences, length, tensor, least_tokens):
    groups = min(-(-sequences * length // (least_tokens * tensor)), sequences)
    return groups * tensor


@wrong("ch19.useful_gpus", "groups in place of GPUs")
def groups_only(sequences, length, tensor, least_tokens):
    return min(sequences * length // (least_tokens * tensor), sequences)
