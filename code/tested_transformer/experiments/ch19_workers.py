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
RAGGED = (7, 20, 84, 5, 61, 342, 765, 123_456)  # two per worker, of 2 to 12 target tokens
PAIRS = [
    number_pair([number]) for number in (*range(1, 100), 999_999)
]  # every word of every number
SOURCE = Vocabulary.of(pair.source for pair in PAIRS)
TARGET = Vocabulary.of(pair.target for pair in PAIRS)


# --- The model and its loss -----------------------------------------------------------------------


def new_model(seed=0):
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


def own_examples(numbers):
    """The two examples of this worker."""
    rank = dist.get_rank()
    return numbers[2 * rank : 2 * rank + 2]


# --- All-reduce -----------------------------------------------------------------------------------


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
    vector = parameters_to_vector(p.grad for p in model.parameters())
    all_reduce(vector)
    vector_to_parameters(vector, [p.grad for p in model.parameters()])


def divide_gradients(model, number):
    """All gradients, divided by one number."""
    for parameter in model.parameters():
        parameter.grad /= number


def tokens_of_all(own):
    """The number of target tokens of all workers, from this worker's own."""
    total = torch.tensor(own)
    dist.all_reduce(total)  # PyTorch's, of one number
    return total


# --- Three gradients ------------------------------------------------------------------------------


def version_a(model, examples):
    """The sum of the gradients of the workers' mean losses."""
    mean_loss(model, examples).backward()
    sum_gradients(model)


def version_b(model, examples):
    """The same sum, divided by the number of workers."""
    mean_loss(model, examples).backward()
    sum_gradients(model)
    divide_gradients(model, dist.get_world_size())


def version_c(model, examples):
    """The sum of the gradients of the workers' summed losses, divided by all tokens."""
    loss, own = summed_loss(model, examples)
    loss.backward()
    sum_gradients(model)
    divide_gradients(model, tokens_of_all(own))


def accumulated(model, examples):
    """Version C with one example per micro-batch."""
    own = 0
    for example in examples:
        loss, tokens = summed_loss(model, [example])
        loss.backward()  # adds to the gradients
        own += tokens
    sum_gradients(model)
    divide_gradients(model, tokens_of_all(own))


def gradient_of(version, numbers):
    """This worker's gradient after one version of the program, as one vector."""
    model = new_model()
    version(model, own_examples(numbers))
    return parameters_to_vector(p.grad for p in model.parameters())


def gradient_alone(numbers):
    """The gradient of one process with all numbers in one batch."""
    model = new_model()
    mean_loss(model, numbers).backward()
    return parameters_to_vector(p.grad for p in model.parameters())


# --- Training -------------------------------------------------------------------------------------


def train_by_hand(steps):
    """This worker's parameters after some steps of version C."""
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        version_c(model, own_examples(RAGGED))
        optimizer.step()
    return parameters_to_vector(model.parameters()).detach()


def train_with_ddp(steps):
    """The same with PyTorch's DistributedDataParallel."""
    model = DistributedDataParallel(new_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss, own = summed_loss(model, own_examples(RAGGED))
        (dist.get_world_size() * loss / tokens_of_all(own)).backward()  # all-reduce, and / N
        optimizer.step()
    return parameters_to_vector(model.parameters()).detach()


def train_alone(steps):
    """One process, the whole batch."""
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        mean_loss(model, RAGGED).backward()
        optimizer.step()
    return parameters_to_vector(model.parameters()).detach()


def bytes_sent():
    """What this worker sends to sum the gradients of one step, counted."""
    model = new_model()
    mean_loss(model, EQUAL).backward()
    with Messages() as messages:
        sum_gradients(model)
    return messages.total
