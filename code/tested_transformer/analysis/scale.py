"""A step of training on thousands of GPUs, simulated by what each of them keeps, computes and sends.

The counts are those of `parallel_costs`, which tests compare with running workers. What a simulation by counts leaves out:
waiting, latency, activations, and that real matrix products are slower than a GPU's peak.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..bounds import NonNegativeInt, PositiveInt
from ..errors import argument_error
from ..shapes import check_fields, checked
from .parallel_costs import head_parallel_bytes, ring_attention_bytes, sharded_memory

__all__ = ["Layout", "ModelSize", "StepCost", "step_cost", "training_flops"]


@dataclass(frozen=True)
class ModelSize:
    """What the counts need to know of a model; d_kv: features of all KV heads of a layer."""

    parameters: NonNegativeInt
    layers: NonNegativeInt
    d_model: PositiveInt
    d_kv: PositiveInt

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Layout:
    """How many GPUs share what: `tensor` a layer, `ring` a text; `data` groups of them share the batch."""

    data: PositiveInt = 1
    tensor: PositiveInt = 1
    ring: PositiveInt = 1

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def gpus(self) -> int:
        """All together."""
        return self.data * self.tensor * self.ring


@dataclass(frozen=True)
class StepCost:
    """Of one GPU in one step: FLOPs, bytes of parameters and optimizer, and bytes sent for each purpose."""

    flops: float
    memory: int
    sharding: int
    heads: int
    ring: int


@checked
def training_flops(model: ModelSize, tokens: PositiveInt, length: PositiveInt) -> float:
    """FLOPs of a step, forward and backward: 6 per parameter and token, and causal attention.

    Source: chapter 1 for attention; 2 FLOPs per parameter and token forward, twice as many backward.

    >>> training_flops(ModelSize(parameters=1000, layers=1, d_model=10, d_kv=10), tokens=2, length=1)
    12120.0
    """
    attention = (
        6 * model.layers * model.d_model * length
    )  # per token; half of the scores are masked
    return float(tokens * (6 * model.parameters + attention))


@checked
def step_cost(
    model: ModelSize, layout: Layout, *, tokens: PositiveInt, length: PositiveInt
) -> StepCost:
    """What one GPU computes, keeps and sends in a step of `tokens` tokens, in texts of `length` tokens.

    Parameters are sharded over data and ring; they are gathered in 2 bytes, twice, and gradients are reduced in 4.
    Attention and the feed-forward network are split over tensor. Optimizer and all, 16 bytes per parameter stay.

    Raises: TypeError or ValueError that name the argument.
    Source: `parallel_costs`, whose counts these are.
    """
    shards = layout.data * layout.ring
    if tokens % shards:
        raise argument_error(ValueError, "tokens", tokens, f"a multiple of data * ring, {shards}")
    own = tokens // shards  # of one group of tensor workers
    parameters = model.parameters // layout.tensor
    unit = parameters // model.layers
    return StepCost(
        training_flops(model, tokens, length) / layout.gpus,
        sharded_memory(parameters, workers=shards, largest_unit=unit),
        round((2 * 2 + 4) * (shards - 1) / shards * parameters),
        2 * head_parallel_bytes(
            own, model.d_model, layers=model.layers, workers=layout.tensor, width=2
        ),
        model.layers * ring_attention_bytes(
            own, -(-model.d_kv // layout.tensor), workers=layout.ring, width=2
        ),
    )  # fmt: skip
