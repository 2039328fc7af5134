"""Nystrom attention: the softmax matrix rebuilt from a few of its columns and rows, through landmarks."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..bounds import PositiveFloat, PositiveInt
from ..functional.masks import masked_softmax
from ..shapes import checked

__all__ = ["iterative_pinv", "landmark_weights", "nystrom_attention"]


@checked
def landmark_weights(
    real: Bool[Tensor, "B L"], num_landmarks: PositiveInt
) -> Float[Tensor, "B m L"]:
    """The matrix whose product with L vectors gives the means of m segments of nearly equal length.

    Real token number r of n belongs to segment floor(r m / n): no token is left out, segments differ by
    at most one token, and padding belongs to none. With fewer tokens than landmarks some rows are 0.

    Shapes: real (B, L), True for a token that is no padding -> (B, m, L), in float64.
    Raises: TypeError or ValueError that name the argument.
    Source: Xiong et al. 2021 (Nystromformer), segment-means, for segments of equal length.
    """
    number = real.cumsum(-1) - 1  # B L: of each token among the real ones
    count = real.sum(-1, keepdim=True).clamp(min=1)  # B 1
    segment = number * num_landmarks // count  # B L
    landmarks = torch.arange(num_landmarks, device=real.device)[:, None]  # m 1
    member = ((segment[:, None] == landmarks) & real[:, None]).double()  # B m L
    return member / member.sum(-1, keepdim=True).clamp(min=1.0)


@checked
def iterative_pinv(
    matrix: Float[Tensor, "*batch m m"], iterations: PositiveInt = 6
) -> Float[Tensor, "*batch m m"]:
    """Approach the pseudo-inverse of each matrix by matrix products alone.

    It starts from the transpose, divided by the largest sum of a column and that of a row, of each
    matrix by itself. A residual e of I - A Z then becomes e^3 (3 + e) / 4.

    Shapes: (..., m, m) -> (..., m, m).
    Raises: TypeError or ValueError that name the argument.
    Source: Razavi et al. 2014, in Xiong et al. 2021 (Nystromformer).
    """
    sizes = matrix.abs()
    norms = sizes.sum(-2).amax(-1) * sizes.sum(-1).amax(-1)  # of each matrix
    smallest = torch.finfo(matrix.dtype).tiny  # for a matrix of zeros
    inverse = matrix.mT / norms.clamp(min=smallest)[..., None, None]
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    for _ in range(iterations):
        product = matrix @ inverse
        inner = 15 * identity - product @ (7 * identity - product)
        inverse = inverse @ (13 * identity - product @ inner) / 4
    return inverse


@checked
def nystrom_attention(
    query: Float[Tensor, "B H L d"],
    key: Float[Tensor, "B H L d"],
    value: Float[Tensor, "B H L dv"],
    num_landmarks: PositiveInt,
    *,
    iterations: PositiveInt = 6,
    key_mask: Bool[Tensor, "B L"] | None = None,
    scale: PositiveFloat | None = None,
) -> Float[Tensor, "B H L dv"]:
    """softmax(Q Kl^T) pinv(softmax(Ql Kl^T)) softmax(Ql K^T) V, with the landmarks Ql and Kl.

    A landmark is the mean of the queries, or keys, of a segment: see `landmark_weights`. It is not
    causal: a landmark contains later tokens than some of those that read it. key_mask is True for
    real tokens; padding is in no mean and no sum.

    iterations: of `iterative_pinv`. scale: of the scores, 1 / sqrt(d) by default.

    Shapes: query and key (B, H, L, d), value (B, H, L, dv), key_mask (B, L) -> (B, H, L, dv).
    Raises: TypeError or ValueError that name the argument.
    Source: Xiong et al. 2021 (Nystromformer).
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    q, k, v = scale * query.to(wide), key.to(wide), value.to(wide)
    if key_mask is None:
        key_mask = torch.ones(q.shape[0], q.shape[2], dtype=torch.bool, device=q.device)
    means = landmark_weights(key_mask, num_landmarks).to(wide)[:, None]  # B 1 m L
    real, used = key_mask[:, None, None], (means > 0).any(-1)[..., None, :]  # B 1 1 L, B 1 1 m
    query_landmarks, key_landmarks = means @ q, means @ k  # B H m d
    columns = masked_softmax(q @ key_landmarks.mT, used)  # B H L m
    core = masked_softmax(query_landmarks @ key_landmarks.mT, used & used.mT)  # B H m m
    rows = masked_softmax(query_landmarks @ k.mT, real & used.mT)  # B H m L
    return (columns @ (iterative_pinv(core, iterations) @ (rows @ v))).to(query.dtype)
