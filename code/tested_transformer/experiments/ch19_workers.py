"""What the four workers of chapter 19 do: a module of its own, because a process has to import its function."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector

from ..analysis.parallel_costs import Messages
from ..data import Vocabulary, make_batch, number_pair
from ..minimal import Transformer
from ..special_tokens import PAD

EQUAL = (21, 32, 43, 54, 65, 76, 87, 98)  # "twenty one", ...: three target tokens each, with EOS
RAGGED = (7, 20, 84, 5, 61, 342, 765, 123_456)  # two per worker: 2 target tokens to 12
PAIRS = [
    number_pair([number]) for number in (*range(1, 100), 999_999)
]  # every word of every number
SOURCE = Vocabulary.of(pair.source for pair in PAIRS)
TARGET = Vocabulary.of(pair.target for pair in PAIRS)


# --- The model and its loss -----------------------------------------------------------------------


def new_model(seed):
    """Chapter 9's Transformer, small, in float64."""
    torch.manual_seed(seed)
    return Transformer(
        len(SOURCE), len(TARGET), d_model=16, num_heads=2, num_layers=1, d_ff=32, dropout=0.0
    ).double()


def batch(numbers):
    """The German words of some numbers and the English ones to predict, padded."""
    return make_batch([number_pair([number]) for number in numbers], SOURCE, TARGET)


def summed_loss(model, numbers):
    """The sum of the losses of all target tokens, and how many tokens there are."""
    ids = batch(numbers)
    logits = model(ids.source, ids.target)  # B L V
    loss = cross_entropy(logits.mT, ids.expected, ignore_index=PAD, reduction="sum")
    return loss, ids.num_tokens


def mean_loss(model, numbers):
    """The mean over the target tokens."""
    loss, tokens = summed_loss(model, numbers)
    return loss / tokens


# --- All-reduce, and training with it -------------------------------------------------------------


def all_reduce(x):
    """Replace x, in place, by the sum of all workers' x: a ring."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = x.view(-1).tensor_split(world_size)
    for step in range(2 * (world_size - 1)):
        outgoing = chunks[(rank - step) % world_size]
        incoming = chunks[(rank - step - 1) % world_size]
        received = torch.empty_like(incoming)
        sending = dist.isend(outgoing, (rank + 1) % world_size)
        dist.recv(received, (rank - 1) % world_size)
        sending.wait()
        if step < world_size - 1:
            incoming += received  # reduce-scatter: a sum grows
        else:
            incoming.copy_(received)  # all-gather: a complete sum is passed on


def sum_gradients(model):
    """Afterward each worker's gradients are the sum of all workers' gradients."""
    gradients = [parameter.grad for parameter in model.parameters()]
    bucket = torch.cat([gradient.flatten() for gradient in gradients])  # one long message
    all_reduce(bucket)
    sizes = [gradient.numel() for gradient in gradients]
    for gradient, total in zip(gradients, bucket.split(sizes), strict=True):
        gradient.copy_(total.view_as(gradient))


def average_gradients(model):
    """Afterward each worker's gradients are the mean of all workers' gradients."""
    sum_gradients(model)
    for parameter in model.parameters():
        parameter.grad /= dist.get_world_size()


def broadcast_parameters(model):
    """All workers get the parameters of worker 0."""
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)


def train_by_hand(steps):
    """This worker's parameters after some steps on its part of the batch."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = new_model(seed=rank)
    broadcast_parameters(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        mean_loss(model, EQUAL[rank::world_size]).backward()
        average_gradients(model)
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def train_with_ddp(steps):
    """The same with PyTorch's DistributedDataParallel."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(new_model(seed=rank))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        mean_loss(model, EQUAL[rank::world_size]).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def train_alone(steps, numbers=EQUAL):
    """One process, the whole batch."""
    model = new_model(seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        mean_loss(model, numbers).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def bytes_sent():
    """What this worker sends in one step of `train_by_hand`, counted."""
    model = new_model(seed=0)
    mean_loss(model, EQUAL).backward()
    with Messages() as messages:
        average_gradients(model)
    return messages.total


# --- Examples of different lengths ----------------------------------------------------------------


def version_a(model, numbers):
    """The sum of the workers' gradients."""
    mean_loss(model, numbers).backward()
    sum_gradients(model)


def version_b(model, numbers):
    """The mean of the workers' gradients."""
    mean_loss(model, numbers).backward()
    average_gradients(model)


def correct_backward(model, micro_batches):
    """The gradient of the mean over the tokens of all micro-batches of all workers."""
    own = sum(batch(numbers).num_tokens for numbers in micro_batches)
    tokens = torch.tensor(float(own))
    dist.all_reduce(tokens)  # PyTorch's: now the tokens of all workers
    for numbers in micro_batches:
        loss, _ = summed_loss(model, numbers)
        (dist.get_world_size() * loss / tokens).backward()  # adds to the gradients
    average_gradients(model)


def version_c(model, numbers):
    """The same, with one number per micro-batch."""
    correct_backward(model, [[number] for number in numbers])


def train_step(model, optimizer, micro_batches):
    """One step of this worker, on micro-batches of any lengths."""
    optimizer.zero_grad()
    correct_backward(model, micro_batches)
    optimizer.step()


def train_ragged(steps):
    """This worker's parameters after some steps on its two numbers, each a micro-batch."""
    rank = dist.get_rank()
    model = new_model(seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(steps):
        train_step(model, optimizer, [[n] for n in RAGGED[2 * rank : 2 * rank + 2]])
    return [parameter.detach() for parameter in model.parameters()]


def gradient_of(version, numbers):
    """Every worker runs a version on its two numbers; the gradient, in one vector."""
    rank = dist.get_rank()
    model = new_model(seed=0)
    version(model, numbers[2 * rank : 2 * rank + 2])
    return parameters_to_vector(parameter.grad for parameter in model.parameters())


def gradients_of(versions, numbers):
    """Of several versions, one after the other."""
    return [gradient_of(version, numbers) for version in versions]


def gradient_alone(numbers):
    """One process, all numbers in one batch."""
    model = new_model(seed=0)
    mean_loss(model, numbers).backward()
    return parameters_to_vector(parameter.grad for parameter in model.parameters())
