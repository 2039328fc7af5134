"""What training on N workers costs each of them: bytes kept, bytes sent, and the seconds that these make at least.

Each count stands twice: on paper from the sizes, and measured on running workers by `Messages`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..bounds import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from ..shapes import checked

__all__ = [
    "Messages", "bubble_share", "data_parallel_bytes", "data_parallel_memory", "head_parallel_bytes",
    "ring_attention_bytes", "sharded_bytes", "sharded_memory", "step_seconds",
]  # fmt: skip

# What a collective sends, for each byte that a worker passes to it, by the ring algorithm; N workers.
SENT = {
    "allreduce_": lambda n: 2 * (n - 1) / n,
    "_allgather_base_": lambda n: (n - 1) / n,  # of what is gathered
    "_reduce_scatter_base_": lambda n: (n - 1) / n,  # of what is reduced
    "send": lambda n: 1.0,
}


class Messages(TorchDispatchMode):
    """Count the bytes that this worker sends in all-reduces, all-gathers, reduce-scatters and to its neighbor.

    `sent`: bytes by operation, as a ring sends them. Used as a context: `with Messages() as messages: ...`.

    Source: Patarasuk and Yuan 2009, for the ring.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sent: Counter = Counter()

    @property
    def total(self) -> float:
        """All bytes sent."""
        return sum(self.sent.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, and count what it sends if it is one of torch.distributed's."""
        name = func.overloadpacket.__name__
        if func.namespace == "c10d" and name in SENT:
            sizes = [each.nbytes for each in tree_leaves(args) if isinstance(each, Tensor)]
            self.sent[name] += round(SENT[name](dist.get_world_size()) * max(sizes, default=0))
        return func(*args, **(kwargs or {}))


# --- On paper -------------------------------------------------------------------------------------


@checked
def data_parallel_memory(num_parameters: NonNegativeInt, *, width: PositiveInt = 4) -> int:
    """Bytes for parameters, gradients and Adam's two states, each of `width` bytes: the same on each worker.

    >>> data_parallel_memory(1_000_000)
    16000000
    """
    return 4 * width * num_parameters


@checked
def data_parallel_bytes(
    num_parameters: NonNegativeInt, *, workers: PositiveInt, width: PositiveInt = 4
) -> int:
    """Bytes that a worker sends in a step: one all-reduce of all gradients.

    Source: Patarasuk and Yuan 2009.

    >>> data_parallel_bytes(1_000_000, workers=4)
    6000000
    """
    return round(SENT["allreduce_"](workers) * width * num_parameters)


@checked
def sharded_memory(
    num_parameters: NonNegativeInt, *, workers: PositiveInt, largest_unit: NonNegativeInt,
    width: PositiveInt = 4,
) -> int:  # fmt: skip
    """Bytes of FSDP: a share of everything, and one unit's parameters and gradients whole.

    largest_unit: parameters of the largest layer that is gathered at once.

    Source: Zhao et al. 2023 (PyTorch FSDP); Rajbhandari et al. 2020 (ZeRO), stage 3.
    """
    return -(-4 * width * num_parameters // workers) + 2 * width * largest_unit


@checked
def sharded_bytes(
    num_parameters: NonNegativeInt, *, workers: PositiveInt, width: PositiveInt = 4
) -> int:
    """Bytes that a worker sends in a step of FSDP: two all-gathers of the parameters, a reduce-scatter of gradients.

    Source: Rajbhandari et al. 2020 (ZeRO), on communication: 1.5 times data parallelism.

    >>> sharded_bytes(1_000_000, workers=4) / data_parallel_bytes(1_000_000, workers=4)
    1.5
    """
    return round(3 * SENT["_allgather_base_"](workers) * width * num_parameters)


@checked
def head_parallel_bytes(
    tokens: NonNegativeInt, d_model: PositiveInt, *, layers: PositiveInt, workers: PositiveInt,
    width: PositiveInt = 4,
) -> int:  # fmt: skip
    """Bytes that a worker sends in a step whose attention is split by heads: two all-reduces of x per attention layer.

    One of the output in the forward pass, one of the gradient of the input in the backward pass; a feed-forward
    network split in the same way takes as many again.

    Source: Shoeybi et al. 2019 (Megatron-LM), section 3.
    """
    return round(2 * layers * SENT["allreduce_"](workers) * width * tokens * d_model)


@checked
def ring_attention_bytes(
    shard: NonNegativeInt, d_model: PositiveInt, *, workers: PositiveInt, width: PositiveInt = 4
) -> int:
    """Bytes that a worker sends in one layer of ring attention, forward and backward.

    Keys and values go to N - 1 others in the forward pass; in the backward pass they go around once, with their
    gradients. The 8-byte positions go along.

    shard: tokens of one worker, of all sequences in the batch, which share their positions if there are several.
    """
    if workers == 1:
        return 0
    forward = (workers - 1) * (2 * d_model * width + 8)
    backward = workers * (4 * d_model * width + 8)
    return shard * (forward + backward)


@checked
def bubble_share(stages: PositiveInt, micro_batches: PositiveInt) -> float:
    """The share of a pipeline's time in which a stage waits: (p - 1) / (m + p - 1).

    Source: Huang et al. 2019 (GPipe), section 2.3.

    >>> bubble_share(4, 12)
    0.2
    """
    return (stages - 1) / (micro_batches + stages - 1)


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step: of the computing, of the messages, and of both, one after the other or at once."""

    compute: float
    messages: float

    @property
    def apart(self) -> float:
        """Nothing overlaps."""
        return self.compute + self.messages

    @property
    def overlapped(self) -> float:
        """All messages are sent while something is computed, as far as that goes."""
        return max(self.compute, self.messages)


@checked
def step_seconds(
    flops: NonNegativeFloat, sent: NonNegativeFloat, *, flops_per_second: PositiveFloat,
    bytes_per_second: PositiveFloat,
) -> StepTime:  # fmt: skip
    """The least that a worker needs for a step, by what it computes and what it sends.

    >>> step_seconds(6e12, 1e9, flops_per_second=3e14, bytes_per_second=5e10).overlapped
    0.02
    """
    return StepTime(flops / flops_per_second, sent / bytes_per_second)
