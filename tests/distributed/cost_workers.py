"""What the workers of test_costs do: some work, and the bytes that it sent."""

import ring_workers
import sharded_workers
import torch
from torch import nn

from tested_transformer.analysis.parallel_costs import Messages
from tested_transformer.distributed.data_parallel import average_gradients
from tested_transformer.distributed.sharded import shard_model


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))


def backward(net):
    net(torch.randn(3, 8)).sum().backward()


def data_parallel():
    net = network()
    backward(net)
    with Messages() as messages:
        average_gradients(net)
    return messages.sent


def sharded():
    net = network()
    shard_model(net)
    with Messages() as messages:
        backward(net)
    return messages.sent


def heads():
    with Messages() as messages:
        sharded_workers.heads(4, False)
    return messages.sent


def ring():
    with Messages() as messages:
        ring_workers.attend(16, "zigzag", True, torch.float32)
    return messages.sent
