"""What a model is graded by: the cross-entropy of the words that it should have said."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..bounds import AtLeast, Below, Int64, Probability
from ..shapes import checked

__all__ = ["cross_entropy", "next_token_loss", "token_accuracy"]


@checked
def cross_entropy(
    logits: Float[Tensor, "*batch V"],
    expected: Int[Tensor, "*batch"],
    *,
    ignore: Int64 | None = 0,
    label_smoothing: Probability = 0.0,
    reduction: Literal["mean", "sum"] = "mean",
) -> Float[Tensor, ""]:
    """The mean surprise at the expected words, -log p(word), padding left out.

    With label smoothing e the expected word keeps 1 - e + e/V of the target and every other word
    gets e/V. The mean is over the words that count, not over places; without any it is 0. Computed
    in at least float32.

    Shapes: logits (*batch, V), expected (*batch), token IDs -> ().
    Raises: TypeError or ValueError that name the argument.
    Source: Vaswani et al. 2017, section 5.4; label smoothing: Szegedy et al. 2016, section 7.

    >>> cross_entropy(torch.zeros(1, 2, 4), torch.tensor([[3, 0]])).item()  # log 4; 0 is padding
    1.3862943649291992
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    counts = _counts(expected, ignore)
    logits, expected = logits[counts], expected[counts]  # N V, N: padding is gone
    log_p = logits - logits.logsumexp(-1, keepdim=True)
    surprise = _surprise(log_p, expected)  # N
    if label_smoothing > 0:
        surprise = (1 - label_smoothing) * surprise - label_smoothing * log_p.mean(-1)
    total = surprise.sum()
    return total if reduction == "sum" else total / max(expected.numel(), 1)


@checked
def next_token_loss(
    logits: Float[Tensor, "B L V"], labels: Int[Tensor, "B L"], *, ignore: Int64 | None = -100
) -> Float[Tensor, ""]:
    """The mean negative log-likelihood of each sequence's next tokens; the labels are not shifted before.

    The logits at position t predict label t + 1, so the first label of a sequence and its last logits
    play no part. Where a label is `ignore`, nothing is predicted.

    Shapes: logits (B, L, V), labels (B, L), the token IDs that were read -> ().
    Raises: TypeError or ValueError that name the argument.
    Source: Radford et al. 2018, equation 1.

    >>> next_token_loss(torch.zeros(1, 3, 4), torch.tensor([[3, 0, 2]])).item()  # log 4
    1.3862943649291992
    """
    return cross_entropy(logits[:, :-1], labels[:, 1:], ignore=ignore)


@checked
def token_accuracy(
    logits: Float[Tensor, "*batch V"], expected: Int[Tensor, "*batch"], *, ignore: Int64 | None = 0
) -> float:
    """The share of expected words that the model finds likeliest, padding left out.

    Shapes: logits (*batch, V), expected (*batch). Without any word that counts, 1.
    Raises: TypeError or ValueError that name the argument.
    Source: chapter 10.
    """
    counts = _counts(expected, ignore)
    right = _is_best(logits[counts], expected[counts])
    return right.double().mean().item() if right.numel() else 1.0


TokenIDs = Annotated[Int[Tensor, " N"], AtLeast(0), Below("V")]


@checked
def _surprise(log_p: Float[Tensor, "N V"], expected: TokenIDs) -> Float[Tensor, " N"]:
    return -log_p.gather(-1, expected[:, None])[:, 0]


@checked
def _is_best(logits: Float[Tensor, "N V"], expected: TokenIDs) -> Bool[Tensor, " N"]:
    return logits.argmax(-1) == expected


def _counts(expected: Tensor, ignore: int | None) -> Tensor:
    """True for a word that counts."""
    return torch.ones_like(expected, dtype=torch.bool) if ignore is None else expected != ignore
