"""Tensor parallelism: every worker computes some of the heads, and their outputs are added up."""

from __future__ import annotations

from typing import Annotated, Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from ..bounds import Where
from ..errors import argument_error
from ..layers.multi_head import MultiHeadAttention
from ..shapes import checked

__all__ = ["HeadParallelAttention", "copy_to_workers", "sum_over_workers"]

Connected = Where("a call in a worker of a process group", lambda _: dist.is_initialized())


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


@checked
def copy_to_workers(x: Annotated[Float[Tensor, "*shape"], Connected]) -> Float[Tensor, "*shape"]:
    """The same numbers, which all workers read: backward adds up the gradients of all.

    Shapes: any -> the same.
    Source: Shoeybi et al. 2019 (Megatron-LM), section 3, operator f.
    """
    return _Copy.apply(x)


@checked
def sum_over_workers(x: Annotated[Float[Tensor, "*shape"], Connected]) -> Float[Tensor, "*shape"]:
    """The sum of all workers' tensors, on every worker: backward hands the gradient to each as it is.

    Shapes: any -> the same.
    Source: Shoeybi et al. 2019 (Megatron-LM), section 3, operator g.
    """
    return _Sum.apply(x)


class HeadParallelAttention(nn.Module):
    """A part of the heads of a `MultiHeadAttention`: those of this worker.

    Queries, keys and values of other heads are never needed; the output matrix is split by its columns, so that
    the sum over the workers is the whole output. Its bias is added once, after the sum.

    Shapes: x (B, L, D) -> (B, L, D), the same on every worker.
    Raises: TypeError or ValueError that name the argument.
    Source: Shoeybi et al. 2019 (Megatron-LM), section 3.
    """

    @checked
    def __init__(self, whole: Annotated[MultiHeadAttention, Connected]) -> None:
        super().__init__()
        rank, world = dist.get_rank(), dist.get_world_size()
        if whole.num_kv_heads % world:
            came, wanted = whole.num_kv_heads, f"a number that the {world} workers divide"
            raise argument_error(ValueError, "whole.num_kv_heads", came, wanted)
        self.attention = MultiHeadAttention(
            whole.query.in_features, whole.num_heads // world, d_head=whole.d_head,
            num_kv_heads=whole.num_kv_heads // world, bias=whole.query.bias is not None,
            positions=whole.positions, window=whole.window,
        )  # fmt: skip
        own = self.attention
        own.output = nn.Linear(whole.output.in_features // world, whole.output.out_features, False)
        self.bias = None if whole.output.bias is None else nn.Parameter(whole.output.bias.detach())
        own.to(whole.output.weight)  # its dtype and device
        with torch.no_grad():
            for name in ("query", "key", "value"):
                for kind, tensor in getattr(whole, name).named_parameters():
                    getattr(getattr(own, name), kind).copy_(tensor.chunk(world)[rank])
            own.output.weight.copy_(whole.output.weight.chunk(world, dim=1)[rank])

    def forward(self, x: Float[Tensor, "B L D"], **options: Any) -> Float[Tensor, "B L D"]:
        """Attend with the worker's own heads; options are those of `MultiHeadAttention` but weights."""
        output = sum_over_workers(self.attention(copy_to_workers(x), **options))
        return output if self.bias is None else output + self.bias
