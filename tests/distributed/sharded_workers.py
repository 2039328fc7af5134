"""What the workers of test_sharded and test_tensor_parallel do."""

import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from tested_transformer.distributed.data_parallel import clip_gradients
from tested_transformer.distributed.sharded import load_sharded, save_sharded, shard_model
from tested_transformer.distributed.tensor_parallel import HeadParallelAttention
from tested_transformer.experiments import ch19_checkpoints as checkpoints
from tested_transformer.layers.multi_head import MultiHeadAttention


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def batch(step):
    made = torch.Generator().manual_seed(step)
    return torch.randn(12, 3, generator=made), torch.randn(12, 2, generator=made)


def gradients_of(net, step, rank, world):
    x, y = (each[rank::world] for each in batch(step))
    net.zero_grad()
    (net(x) - y).square().mean().backward()


def resumed(folder, steps, last):
    """Steps `steps` to `last`, from what is stored if anything is; parameters, norms, bytes of this worker."""
    net = model()
    shard_model(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    if steps:
        load_sharded(Path(folder) / "checkpoint", net, optimizer)
    norms = []
    for step in range(steps, last):
        gradients_of(net, step, dist.get_rank(), dist.get_world_size())
        norms.append(clip_gradients([p.grad.to_local() for p in net.parameters()], 0.5))
        optimizer.step()
        save_sharded(Path(folder) / "checkpoint", net, optimizer)
    own = sum(parameter.to_local().numel() for parameter in net.parameters())
    return [parameter.full_tensor().detach() for parameter in net.parameters()], norms, own


def dies_in_step(folder, killed_step, rank):
    """As `resumed` from the beginning, but one worker is killed inside a step."""
    net = model()
    shard_model(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for step in range(5):
        gradients_of(net, step, dist.get_rank(), dist.get_world_size())
        clip_gradients([p.grad.to_local() for p in net.parameters()], 0.5)
        if step == killed_step and dist.get_rank() == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        save_sharded(Path(folder) / "checkpoint", net, optimizer)


def nothing_stored(folder):
    load_sharded(folder, *made())


def made():
    net = model()
    shard_model(net)
    return net, torch.optim.AdamW(net.parameters())


def heads(kv_heads, bias):
    """Output and gradients of attention whose heads are on several workers."""
    whole, x, towards = attention(kv_heads, bias)
    net = HeadParallelAttention(whole)
    x = x.requires_grad_()
    output = net(x, causal=True)
    output.backward(towards)
    own = net.attention
    found = [own.query.weight.grad, own.key.weight.grad, own.output.weight.grad.mT]
    return output.detach(), x.grad, found, None if net.bias is None else net.bias.grad


def attention(kv_heads, bias):
    torch.manual_seed(2)
    whole = MultiHeadAttention(8, 4, num_kv_heads=kv_heads, bias=bias).double()
    for parameter in whole.parameters():
        nn.init.normal_(parameter, std=0.5)
    return whole, torch.randn(2, 5, 8).double(), torch.randn(2, 5, 8).double()


def from_step_0(folder, last):
    """The page's training with the bug: it forgets how many steps are done."""
    load = checkpoints.load
    checkpoints.load = lambda *args: 0 * load(*args)
    return checkpoints.train(folder, last)
