"""The right ones, from which mistakes depart: no processes, one tensor for all workers."""

from __future__ import annotations

import torch

from ...distributed.data_parallel import indices_of_worker
from ...distributed.ring_attention import zigzag_shard


def ring_step(chunks, step):
    """One step of all workers at once."""
    ranks = torch.arange(len(chunks))
    numbers = (ranks - 1 - step) % len(chunks)
    received = chunks[ranks - 1, numbers]  # workers, c
    summing = step < len(chunks) - 1
    new = chunks[ranks, numbers] + received if summing else received
    return chunks.index_put((ranks, numbers), new)


def micro_batch_scales(counts):
    """Tokens, times workers, over all tokens."""
    return counts.double() * len(counts) / counts.sum()


def merge_outputs(output, lse, other_output, other_lse):
    """By logaddexp."""
    merged = torch.logaddexp(lse, other_lse)
    base = merged.masked_fill(merged == -torch.inf, 0.0)
    one, two = (torch.exp(each - base)[..., None] for each in (lse, other_lse))
    return output * one + other_output * two, merged


def zigzag_positions(length, rank, world_size):
    """The package's."""
    return zigzag_shard(length, rank=rank, world_size=world_size)


def fsdp_linear(shards, x, y):
    """The whole layer on each worker, the mean of all gradients, and each worker's part of it."""
    errors = x @ shards.flatten(0, 1).mT - y  # N B out
    return (errors.mT @ x).mean(0).view_as(shards)


def global_norm(sharded, replicated):
    """The root of all squares."""
    return (sharded.square().sum() + replicated.square().sum()).sqrt()


def epoch_order(length: int, seed: int) -> list[int]:
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed)).tolist()


def epoch_indices(length, rank, world_size, epoch, seed):
    """The package's."""
    return indices_of_worker(length, rank=rank, world_size=world_size, epoch=epoch, seed=seed)


def timetable(stages, micro_batches):
    """Stage s computes micro-batch t - s at time t."""
    numbers = torch.arange(micro_batches + stages - 1) - torch.arange(stages)[:, None]
    return numbers.where((numbers >= 0) & (numbers < micro_batches), -1)


def feed_forward_part(x, w_up, b_up, w_down, b_down, rank, world_size):
    """Some of the hidden features; worker 0 adds the output's bias."""
    rows, bias = w_up.chunk(world_size)[rank], b_up.chunk(world_size)[rank]
    output = (x @ rows.mT + bias).relu() @ w_down.chunk(world_size, dim=1)[rank].mT
    return output + b_down if rank == 0 else output


def useful_gpus(sequences, length, tensor, least_tokens):
    """Two limits for the number of groups: tokens and sequences."""
    groups = min(sequences * length // (least_tokens * tensor), sequences)
    return groups * tensor
