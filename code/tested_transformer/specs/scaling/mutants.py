"""The famous mistakes of chapter 3: the softmax, its Jacobian and scaled scores, one step gone wrong."""

from __future__ import annotations

import torch
from torch import Tensor

from ..mistakes import mistake

# --- The softmax ----------------------------------------------------------------------------------


def plain_softmax(scores: Tensor, *, temperature: float = 1.0) -> Tensor:
    """The baseline: the formula in the scores' own dtype, by the logarithm of the sum, which rounds most."""
    scores = scores / temperature
    return (scores - scores.logsumexp(-1, keepdim=True)).exp()


@mistake(
    "exponentials that overflow",
    rejected_by="no overflow",
    symptom="NaN for scores above 709 in float64, above 88 in float32.",
    cause="exp(s) is taken before anything is subtracted: inf / inf is NaN.",
    seen="source notes, 002:28",
    of="softmax",
)
def exponentials_that_overflow(scores, *, temperature=1.0):
    exponentials = (scores / temperature).exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


@mistake(
    "the maximum of the whole batch",
    rejected_by="no overflow",
    symptom="Rows that lie far below the highest row of the batch become NaN: 0/0.",
    cause="scores.max() in place of scores.amax(-1, keepdim=True): each row needs its own.",
    of="softmax",
)
def the_maximum_of_the_batch(scores, *, temperature=1.0):
    top = scores.max() if scores.numel() else 0.0
    exponentials = ((scores - top) / temperature).exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


@mistake(
    "a softmax without exponentials",
    rejected_by="weights are a distribution",
    symptom="Negative weights as soon as a score is negative; adding a constant changes them.",
    cause="z_i / sum(z) in place of exp(z_i) / sum(exp(z)).",
    seen="source notes, 000:22 and 000:26 (in the formula, not in the code)",
    of="softmax",
)
def no_exponentials(scores, *, temperature=1.0):
    return (scores / temperature) / (scores / temperature).sum(-1, keepdim=True)


@mistake(
    "columns that sum to 1",
    rejected_by="weights are a distribution",
    symptom="Columns sum to 1, rows do not.",
    cause="dim=0 in place of dim=-1; with a single row nobody notices.",
    of="softmax",
)
def the_first_axis(scores, *, temperature=1.0):
    return (scores / temperature).softmax(0)


@mistake(
    "the temperature after the softmax",
    rejected_by="weights are a distribution",
    symptom="Rows sum to 1/temperature, and no weight has moved towards another.",
    cause="The weights are divided; the scores should be.",
    seen="source notes, 001:1292 (where the temperature is sqrt(d))",
    of="softmax",
)
def the_temperature_after(scores, *, temperature=1.0):
    return scores.softmax(-1) / temperature


@mistake(
    "the temperature multiplied",
    rejected_by="the temperature divides the scores",
    symptom="A higher temperature makes the weights sharper.",
    cause="scores * temperature; it is the scale, 1/temperature, that multiplies.",
    of="softmax",
)
def the_temperature_multiplied(scores, *, temperature=1.0):
    return (scores * temperature).softmax(-1)


# --- Its Jacobian ---------------------------------------------------------------------------------


def plain_jacobian(weights: Tensor) -> Tensor:
    """The baseline."""
    return torch.diag_embed(weights) - weights[..., :, None] * weights[..., None, :]


@mistake(
    "only the diagonal of the Jacobian",
    rejected_by="rows sum to 0",
    symptom="Raising one score leaves all other weights where they are.",
    cause="p(1 - p) is a sigmoid's derivative; in a softmax every score moves every weight.",
    of="softmax_jacobian",
)
def only_the_diagonal(weights):
    return torch.diag_embed(weights * (1 - weights))


@mistake(
    "the sign of the other derivatives",
    rejected_by="a score lifts its own weight and lowers the others",
    symptom="Raising one score raises every weight.",
    cause="+ p_i p_j where - p_i p_j is right.",
    of="softmax_jacobian",
)
def the_sign_of_the_others(weights):
    return torch.diag_embed(weights) + weights[..., :, None] * weights[..., None, :]


@mistake(
    "the square on the diagonal forgotten",
    rejected_by="rows sum to 0",
    symptom="A saturated winner still seems to answer: its derivative is 1 in place of 0.",
    cause="p_i on the diagonal where p_i - p_i^2 is right.",
    of="softmax_jacobian",
)
def the_square_forgotten(weights):
    others = 1 - torch.eye(weights.shape[-1], dtype=weights.dtype)
    return torch.diag_embed(weights) - others * weights[..., :, None] * weights[..., None, :]


# --- Scaled scores --------------------------------------------------------------------------------


def plain_scores(query: Tensor, key: Tensor, *, scale: float | None = None) -> Tensor:
    """The baseline: scaled before the product, in the query's own dtype."""
    return (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.mT


@mistake(
    "scaled after the product",
    rejected_by="no overflow",
    symptom="inf in float16, then NaN, where the scaled score is an ordinary number.",
    cause="The product is formed first: it is sqrt(d) times larger and passes 65504.",
    seen="PaddlePaddle/Paddle pull request 41933; ultralytics pull request 24990",
    of="scaled_scores",
)
def scaled_after_the_product(query, key, *, scale=None):
    return query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)


@mistake(
    "divided by d",
    rejected_by="the scale is 1/sqrt(d)",
    symptom="Nearly even weights, the more so the larger the head.",
    cause="1/d where the standard deviation of q.k, sqrt(d), is meant.",
    seen="source notes, 001:582 and 001:592 (in the text)",
    of="scaled_scores",
)
def divided_by_d(query, key, *, scale=None):
    return (query * (1 / query.shape[-1] if scale is None else scale)) @ key.mT


@mistake(
    "the root of the number of keys",
    rejected_by="the scale is 1/sqrt(d)",
    symptom="The same text is attended to differently once it is padded.",
    cause="The key is transposed before its last size is read: that is S and no longer d.",
    of="scaled_scores",
)
def the_number_of_keys(query, key, *, scale=None):
    turned = key.mT
    keys = max(turned.shape[-1], 1)
    return (query * (keys**-0.5 if scale is None else scale)) @ turned
