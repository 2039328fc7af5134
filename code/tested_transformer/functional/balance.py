"""Balance among experts: what a collapsed router costs, a bias that needs no loss, and a limit per expert."""

from __future__ import annotations

from typing import Annotated

from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..bounds import AtLeast, Below, PositiveFloat, PositiveInt
from ..shapes import checked
from .routing import at_least_float32, check_choice

__all__ = ["balance_bias_step", "balance_loss", "expert_counts", "router_z_loss", "within_capacity"]


@checked
def expert_counts(
    experts: Annotated[Int[Tensor, "*tokens k"], AtLeast(0), Below("num_experts")],
    num_experts: PositiveInt,
) -> Int[Tensor, " E"]:
    """How many tokens chose each expert.

    Shapes: experts (*tokens, k) -> (E).
    Raises: TypeError or ValueError that name the argument.
    Source: Wang et al. 2024.

    >>> import torch
    >>> expert_counts(torch.tensor([[0, 2], [2, 3]]), 4)
    tensor([1, 0, 2, 1])
    """
    return experts.flatten().bincount(minlength=num_experts)


@checked
def balance_loss(
    logits: Float[Tensor, "*tokens E"],
    num_chosen: PositiveInt,
    *,
    real: Bool[Tensor, "*tokens"] | None = None,
) -> Float[Tensor, ""]:
    """E times the sum over the experts of f_i P_i: k at balance, and E where every token agrees.

    f_i is the fraction of the tokens that chose expert i, so that all f_i sum to k; P_i is the mean of its
    probability. Only P_i has a gradient. real: which tokens are no padding.

    Shapes: logits (*tokens, E), real (*tokens) -> (), in at least float32.
    Raises: TypeError or ValueError that name the argument.
    Source: Fedus et al. 2022 (Switch Transformer), equations 4 to 6, with k of 1; transformers'
        load_balancing_loss_func, with any k.

    >>> import torch
    >>> balance_loss(torch.tensor([[9.0, 0.0], [0.0, 9.0]]), 1)
    tensor(1.)
    >>> balance_loss(torch.tensor([[9.0, 0.0], [9.0, 0.0]]), 1)
    tensor(1.9998)
    """
    num_experts = logits.shape[-1]
    check_choice(num_experts, num_chosen, 1, 1)
    probabilities = _real(at_least_float32(logits).softmax(-1), real)  # T E
    chosen = probabilities.topk(num_chosen, -1).indices  # T k
    counts = expert_counts(chosen, num_experts).to(probabilities)  # E
    frequencies = counts / len(probabilities)  # E, sums to k
    return num_experts * (frequencies * probabilities.mean(0)).sum()


@checked
def router_z_loss(
    logits: Float[Tensor, "*tokens E"], *, real: Bool[Tensor, "*tokens"] | None = None
) -> Float[Tensor, ""]:
    """The mean square of each token's log-sum-exp: it keeps a router's logits small.

    Shapes: logits (*tokens, E), real (*tokens) -> (), in at least float32.
    Raises: TypeError or ValueError that name the argument.
    Source: Zoph et al. 2022 (ST-MoE).

    >>> import torch
    >>> router_z_loss(torch.zeros(3, 8))  # (ln 8) squared
    tensor(4.3241)
    """
    return _real(at_least_float32(logits), real).logsumexp(-1).square().mean()


@checked
def balance_bias_step(
    bias: Float[Tensor, " E"], counts: Int[Tensor, " E"], rate: PositiveFloat
) -> Float[Tensor, " E"]:
    """One step of balancing without a loss: raise the bias of idle experts, lower that of crowded ones.

    Every expert moves by the same rate, however far it is from the mean. The bias is for the choice alone,
    see `sigmoid_routing`.

    Shapes: bias and counts (E) -> (E).
    Raises: TypeError or ValueError that name the argument.
    Source: Wang et al. 2024; DeepSeek-AI 2024 (DeepSeek-V3), section 2.1.2.

    >>> import torch
    >>> balance_bias_step(torch.zeros(3), torch.tensor([9, 0, 3]), 0.1)
    tensor([-0.1000,  0.1000,  0.1000])
    """
    counts = counts.to(bias.dtype)
    return bias + rate * (counts.mean() - counts).sign()


@checked
def within_capacity(
    experts: Annotated[Int[Tensor, "T k"], AtLeast(0)], capacity: PositiveInt
) -> Bool[Tensor, "T k"]:
    """Which choices an expert has room for: at most `capacity` of them, others are dropped.

    All first choices come before any second one; among those of a rank the order is that of the tokens.

    Shapes: experts (T, k) -> (T, k), True where the expert has room.
    Raises: TypeError or ValueError that name the argument.
    Source: Lepikhin et al. 2021 (GShard); Fedus et al. 2022 (Switch Transformer).

    >>> import torch
    >>> within_capacity(torch.tensor([[0, 1], [0, 1], [1, 0]]), 2)
    tensor([[ True,  True],
            [ True, False],
            [ True, False]])
    """
    by_rank = experts.T.flatten()  # all first choices, then all second ones
    earlier = (by_rank[:, None] == by_rank).tril(-1).sum(-1)  # how many came before for that expert
    return (earlier < capacity).view(experts.T.shape).T


def _real(tokens: Tensor, real: Tensor | None) -> Tensor:
    """The tokens that are no padding, in one list."""
    return tokens.flatten(0, -2) if real is None else tokens[real]
