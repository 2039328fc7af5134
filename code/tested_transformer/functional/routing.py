"""Routing: which few experts of a mixture transform a token, and with what weights."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..bounds import PositiveFloat, PositiveInt
from ..errors import argument_error
from ..shapes import checked

__all__ = ["Routed", "keep_best_groups", "route", "sigmoid_routing", "softmax_routing"]


class Routed(NamedTuple):
    """The experts of each token, numbered from 0, in no order that means anything, and their weights.

    Shapes: experts (*batch, k), weights (*batch, k).
    """

    experts: Int[Tensor, "*batch k"]
    weights: Float[Tensor, "*batch k"]


@checked
def softmax_routing(
    logits: Float[Tensor, "*batch E"],
    num_chosen: PositiveInt,
    *,
    normalize: bool = False,
    scale: PositiveFloat = 1.0,
    num_groups: PositiveInt = 1,
    num_kept_groups: PositiveInt = 1,
) -> Routed:
    """Choose the k experts of the largest probability; the probabilities are their weights.

    The softmax is over all experts, so that the weights of the chosen ones sum to less than 1. normalize:
    divide by that sum, which is the same as a softmax over the chosen logits alone. scale: multiply the
    weights, normalized or not. num_groups: see `keep_best_groups`; here a group is as good as its best expert.

    Shapes: logits (*batch, E) -> experts (*batch, k) and weights (*batch, k), in at least float32.
    Raises: TypeError or ValueError that name the argument.
    Source: Shazeer et al. 2017, section 2.1; Jiang et al. 2024 (Mixtral), section 2.1, with normalize;
        DeepSeek-AI 2024 (DeepSeek-V2), section 2.2, with groups.

    >>> softmax_routing(torch.tensor([0.0, 2.0, 1.0]), 2).weights
    tensor([0.6652, 0.2447])
    >>> softmax_routing(torch.tensor([0.0, 2.0, 1.0]), 2, normalize=True).weights
    tensor([0.7311, 0.2689])
    """
    check_choice(logits.shape[-1], num_chosen, num_groups, num_kept_groups)
    scores = at_least_float32(logits).softmax(-1)  # *batch E
    preference = keep_best_groups(scores, num_groups, num_kept_groups)
    return choose(scores, preference, num_chosen, normalize, scale)


@checked(any_dtype="bias")
def sigmoid_routing(
    logits: Float[Tensor, "*batch E"],
    bias: Float[Tensor, " E"],
    num_chosen: PositiveInt,
    *,
    normalize: bool = True,
    scale: PositiveFloat = 1.0,
    num_groups: PositiveInt = 1,
    num_kept_groups: PositiveInt = 1,
) -> Routed:
    """Choose by sigmoid plus bias; weigh by the sigmoid alone.

    Training raises the bias of an expert with too few tokens and lowers that of one with too many, without
    a loss and without a gradient. It may change who is chosen, never the weights. Here a group is as
    good as the sum of its two best experts, bias included.

    Shapes: logits (*batch, E), bias (E) -> experts (*batch, k) and weights (*batch, k), in at least float32.
    Raises: TypeError or ValueError that name the argument.
    Source: DeepSeek-AI 2024 (DeepSeek-V3), section 2.1.2, equations 12 to 16; Wang et al. 2024.

    >>> routed = sigmoid_routing(torch.zeros(3), torch.tensor([0.0, 0.3, 0.1]), 2)
    >>> routed.experts, routed.weights
    (tensor([1, 2]), tensor([0.5000, 0.5000]))
    """
    check_choice(logits.shape[-1], num_chosen, num_groups, num_kept_groups)
    scores = at_least_float32(logits).sigmoid()  # *batch E
    preference = keep_best_groups(scores + bias, num_groups, num_kept_groups, num_best=2)
    return choose(scores, preference, num_chosen, normalize, scale)


@checked
def route(
    logits: Float[Tensor, "*batch E"],
    num_chosen: PositiveInt,
    *,
    scoring: Literal["softmax", "sigmoid"] = "softmax",
    bias: Float[Tensor, " E"] | None = None,
    normalize: bool = False,
    scale: PositiveFloat = 1.0,
    num_groups: PositiveInt = 1,
    num_kept_groups: PositiveInt = 1,
) -> Float[Tensor, "*batch E"]:
    """The weights of all experts, zero for those that are not chosen: either routing, as one matrix.

    Shapes: logits (*batch, E), bias (E), for the sigmoid alone -> (*batch, E).
    Raises: TypeError or ValueError that name the argument.
    Source: as `softmax_routing` and `sigmoid_routing`.
    """
    options = {"normalize": normalize, "scale": scale}
    options |= {"num_groups": num_groups, "num_kept_groups": num_kept_groups}
    if scoring == "sigmoid":
        bias = logits.new_zeros(logits.shape[-1]) if bias is None else bias
        routed = sigmoid_routing(logits, bias, num_chosen, **options)
    elif bias is None:
        routed = softmax_routing(logits, num_chosen, **options)
    else:
        raise argument_error(ValueError, "bias", "one", 'None, with scoring="softmax"')
    zeros = routed.weights.new_zeros(logits.shape)
    return zeros.scatter(-1, routed.experts, routed.weights).to(logits.dtype)


@checked
def keep_best_groups(
    scores: Float[Tensor, "*batch E"],
    num_groups: PositiveInt,
    num_kept: PositiveInt,
    *,
    num_best: PositiveInt = 1,
) -> Float[Tensor, "*batch E"]:
    """Scores of -inf for all experts outside the best groups of neighbors.

    Experts of one group live on one device: fewer groups per token, less to send. A group is as good as
    the sum of its num_best best experts.

    Shapes: scores (*batch, E) -> (*batch, E).
    Raises: TypeError or ValueError that name the argument.
    Source: DeepSeek-AI 2024 (DeepSeek-V2), section 2.2.2, with the maximum; (DeepSeek-V3), section 2.1.2.

    >>> keep_best_groups(torch.tensor([0.9, 0.0, 0.5, 0.5]), 2, 1)
    tensor([0.9000, 0.0000,   -inf,   -inf])
    >>> keep_best_groups(torch.tensor([0.9, 0.0, 0.5, 0.5]), 2, 1, num_best=2)
    tensor([  -inf,   -inf, 0.5000, 0.5000])
    """
    check_groups(scores.shape[-1], num_groups, num_kept)
    if num_kept == num_groups:
        return scores
    grouped = scores.unflatten(-1, (num_groups, -1))  # *batch groups E/groups
    best = grouped.topk(min(num_best, grouped.shape[-1]), -1).values.sum(-1)  # *batch groups
    kept = torch.zeros_like(best, dtype=torch.bool).scatter(
        -1, best.topk(num_kept, -1).indices, True
    )
    return grouped.masked_fill(~kept.unsqueeze(-1), float("-inf")).flatten(-2)


def choose(
    scores: Float[Tensor, "*batch E"],
    preference: Float[Tensor, "*batch E"],
    num_chosen: int,
    normalize: bool,
    scale: float,
) -> Routed:
    """The experts of the largest preference, weighted by their scores."""
    experts = preference.topk(num_chosen, -1).indices  # *batch k
    weights = scores.gather(-1, experts)  # *batch k
    if normalize:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)  # all sigmoids may be 0
    return Routed(experts, scale * weights)


def at_least_float32(logits: Tensor) -> Tensor:
    """Probabilities of half precision tie: 256 experts share a range of 1 / 128."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


# --- Checks ---------------------------------------------------------------------------------------


def check_groups(num_experts: int, num_groups: int, num_kept: int) -> None:
    """Raise ValueError unless the groups have one size, and there are so many."""
    if num_experts % num_groups:
        wanted = f"a number that divides the {num_experts} experts"
        raise argument_error(ValueError, "num_groups", num_groups, wanted)
    if num_kept > num_groups:
        raise argument_error(ValueError, "num_kept_groups", num_kept, f"at most {num_groups}")


def check_choice(num_experts: int, num_chosen: int, num_groups: int, num_kept: int) -> None:
    """Raise ValueError unless the groups that are kept have that many experts."""
    check_groups(num_experts, num_groups, num_kept)
    left = num_experts // num_groups * num_kept
    if num_chosen > left:
        wanted = f"at most {left}, as many experts as the groups have that are kept"
        raise argument_error(ValueError, "num_chosen", num_chosen, wanted)
