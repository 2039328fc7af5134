"""Chapter 19's main page: a step of the ring, and the scales of micro-batches."""

import torch

from . import right, wrong


@right("ch19.ring_step", "a loop over the workers")
def ring_loop(chunks, step):
    workers = len(chunks)
    rows = []
    for rank in range(workers):
        row = list(chunks[rank])
        number = (rank - step - 1) % workers
        received = chunks[(rank - 1) % workers][number]
        row[number] = row[number] + received if step < workers - 1 else received
        rows.append(torch.stack(row))
    return torch.stack(rows)


@right("ch19.ring_step", "by a mask")
def ring_mask(chunks, step):
    workers = len(chunks)
    ranks = torch.arange(workers)
    arrives = (ranks[:, None] - step - 1) % workers == ranks  # N N
    left = chunks.roll(1, 0)
    new = chunks + left if step < workers - 1 else left
    return torch.where(arrives[..., None], new, chunks)


@right("ch19.ring_step", "worker by worker, in place of a copy")
def ring_in_turns(chunks, step):
    chunks = chunks.clone()
    for rank in range(len(chunks)):
        number = (rank - step - 1) % len(chunks)
        received = chunks[rank - 1, number].clone()
        chunks[rank, number] = chunks[rank, number] + received * (step < len(chunks) - 1)
        if step >= len(chunks) - 1:
            chunks[rank, number] = received
    return chunks


@wrong("ch19.ring_step", "only copies")
def ring_copies(chunks, step):
    return ring_mask(chunks, len(chunks) - 1)


@wrong("ch19.ring_step", "sums one step too long")
def ring_late(chunks, step):
    workers = len(chunks)
    ranks = torch.arange(workers)
    arrives = (ranks[:, None] - step - 1) % workers == ranks
    left = chunks.roll(1, 0)
    return torch.where(arrives[..., None], chunks + left if step < workers else left, chunks)


@wrong("ch19.ring_step", "all at the end")
def ring_done(chunks, step):
    return chunks.sum(0, keepdim=True).expand_as(chunks)


@right("ch19.micro_batch_scales", "tokens over the mean per worker")
def scales_by_mean(counts):
    return counts / (counts.sum() / counts.shape[0])


@right("ch19.micro_batch_scales", "undone one by one")
def scales_undone(counts):
    workers = counts.shape[0]
    share = counts / counts.sum()  # of all tokens
    return share * workers  # the average over the workers undone


@right("ch19.micro_batch_scales", "as a list")
def scales_listed(counts):
    total = sum(map(sum, counts.tolist()))
    return torch.tensor([[len(counts) * n / total for n in row] for row in counts.tolist()])


@wrong("ch19.micro_batch_scales", "times the number of all micro-batches")
def scales_all(counts):
    return counts * counts.numel() / counts.sum()


@wrong("ch19.micro_batch_scales", "inversely by tokens")
def scales_inverse(counts):
    return counts.sum() / (counts.clamp_min(1) * counts.numel() * counts.shape[1])


@wrong("ch19.micro_batch_scales", "divided by the largest")
def scales_largest(counts):
    return counts / counts.max() / counts.shape[1]
