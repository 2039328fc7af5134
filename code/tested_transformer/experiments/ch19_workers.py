"""What the four workers of chapter 19 do: a module of its own, because a process has to import its function."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

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
    rank, world = dist.get_rank(), dist.get_world_size()
    chunks = x.view(-1).tensor_split(world)
    for step in range(2 * (world - 1)):
        mine, next_one = chunks[(rank - step) % world], chunks[(rank - step - 1) % world]
        received = torch.empty_like(next_one)
        sending = dist.isend(mine, (rank + 1) % world)
        dist.recv(received, (rank - 1) % world)
        sending.wait()
        next_one.copy_(next_one + received if step < world - 1 else received)


def average_gradients(model):
    """Afterward each worker's gradients are the mean of all workers' gradients."""
    gradients = [parameter.grad for parameter in model.parameters()]
    bucket = parameters_to_vector(gradients)  # one long message instead of many short ones
    all_reduce(bucket)
    vector_to_parameters(bucket / dist.get_world_size(), gradients)


def train_by_hand(steps):
    """This worker's parameters after some steps on its part of the batch."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model = new_model(seed=rank)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)  # all begin with the parameters of worker 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        mean_loss(model, EQUAL[rank::world]).backward()
        average_gradients(model)
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def train_with_ddp(steps):
    """The same with PyTorch's DistributedDataParallel."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(new_model(seed=rank))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        mean_loss(model, EQUAL[rank::world]).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def train_alone(steps, scale=1.0, optimizer=torch.optim.AdamW, lr=0.01):
    """One process, the whole batch; scale: of the loss."""
    model = new_model(seed=0)
    optimizer = optimizer(model.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        (scale * mean_loss(model, EQUAL)).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def bytes_sent():
    """What this worker sends in one step of `train_by_hand`, counted."""
    model = new_model(seed=0)
    mean_loss(model, EQUAL).backward()
    with Messages() as messages:
        average_gradients(model)
    return messages.total


# --- Micro-batches of different lengths -----------------------------------------------------------


def accumulated_gradient(numbers, scales):
    """The averaged gradient, in one vector: two micro-batches per worker, one number in each.

    Shapes: scales (workers, 2), by which the mean loss of each micro-batch is multiplied.
    """
    rank = dist.get_rank()
    model = new_model(seed=0)
    for number, scale in zip(numbers[2 * rank : 2 * rank + 2], scales[rank], strict=True):
        (scale * mean_loss(model, [number])).backward()  # adds to the gradients that are there
    average_gradients(model)
    return parameters_to_vector(parameter.grad for parameter in model.parameters())


def accumulated_gradients(numbers, tables):
    """The same for several tables of scales, one after the other."""
    return [accumulated_gradient(numbers, scales) for scales in tables]


def gradient_alone(numbers):
    """One process, all numbers in one batch."""
    model = new_model(seed=0)
    mean_loss(model, numbers).backward()
    return parameters_to_vector(parameter.grad for parameter in model.parameters())
