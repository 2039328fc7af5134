"""Train chapter 9's Transformer with FSDP2 and sharded checkpoints, under torchrun: on a laptop as on a cluster.

It continues from the checkpoint in --folder if there is one; the number of processes may have changed.

Usage: torchrun --standalone --nproc-per-node 2 benchmarks/train_sharded.py --folder run --steps 10
On a cluster: torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 benchmarks/train_sharded.py ...
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from tested_transformer.data import Vocabulary, make_batch, single_numbers
from tested_transformer.distributed.data_parallel import indices_of_worker
from tested_transformer.distributed.sharded import load_sharded, save_sharded
from tested_transformer.minimal import DecoderLayer, EncoderLayer, Transformer
from tested_transformer.special_tokens import PAD

BATCH = 32  # examples of a step, of all workers together


def sharded_model(source_vocab: int, target_vocab: int) -> nn.Module:
    """The model, each layer a unit that is gathered at once."""
    torch.manual_seed(0)
    model = Transformer(
        source_vocab, target_vocab, d_model=32, num_heads=2, num_layers=2, d_ff=64, dropout=0.0
    )
    for module in model.modules():
        if isinstance(module, EncoderLayer | DecoderLayer):
            fully_shard(module)
    fully_shard(model)
    return model.cuda() if torch.cuda.is_available() else model


def loss_of(model: nn.Module, batch) -> torch.Tensor:
    """Over the tokens of all workers: the average that FSDP takes is undone, see chapter 19."""
    logits = model(batch.source, batch.target)
    total = nn.functional.cross_entropy(
        logits.mT, batch.expected, ignore_index=PAD, reduction="sum"
    )
    tokens = torch.tensor(float(batch.num_tokens), device=logits.device)
    dist.all_reduce(tokens)
    return total * dist.get_world_size() / tokens


def train(folder: Path, steps: int) -> None:
    """Go on from the last checkpoint to `steps` steps, with a checkpoint after each."""
    rank, world = dist.get_rank(), dist.get_world_size()
    pairs = single_numbers().train[:1024]
    source = Vocabulary.of(pair.source for pair in pairs)
    target = Vocabulary.of(pair.target for pair in pairs)
    model = sharded_model(len(source), len(target))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    done = folder / "steps"  # written after the checkpoint: how many steps it has
    first = int(done.read_text()) if done.exists() else 0
    if first:
        load_sharded(folder / "checkpoint", model, optimizer)
    for step in range(first, steps):
        epoch, number = divmod(step, len(pairs) // BATCH)
        order = indices_of_worker(len(pairs), rank=rank, world_size=world, epoch=epoch)
        own = order[number * BATCH // world :][: BATCH // world].tolist()
        batch = make_batch([pairs[i] for i in own], source, target)
        loss = loss_of(model, batch.to("cuda") if torch.cuda.is_available() else batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        save_sharded(folder / "checkpoint", model, optimizer)
        total = loss.detach() / world
        dist.all_reduce(total)
        if rank == 0:
            done.write_text(str(step + 1))
            print(f"step {step + 1} loss {total.item():.4f}", flush=True)
        dist.barrier()


def main() -> None:
    """Join the processes that torchrun has started."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=10)
    given = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if torch.cuda.is_available():
        torch.cuda.set_device(dist.get_node_local_rank())
    if dist.get_rank() == 0:
        given.folder.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    try:
        train(given.folder, given.steps)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
