"""The famous mistakes in LayerNorm and RMSNorm: the right formula with one step gone wrong."""

from __future__ import annotations

import torch
from torch import nn

from ..mistakes import mistake
from ..rounding import in_at_least


def plain_layer_norm(x, weight, bias, *, eps=1e-5):
    """The baseline: the formula in float32 at least, rounded once at the end."""
    with in_at_least(torch.float32):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        centered = wide - wide.mean(-1, keepdim=True)
        variance = centered.square().mean(-1, keepdim=True)
        return (centered / (variance + eps).sqrt() * weight + bias).to(x.dtype)


def plain_rms_norm(x, weight, *, eps=1e-6):
    """The baseline: the formula in float32 at least, rounded once at the end."""
    with in_at_least(torch.float32):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return (wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight).to(x.dtype)


@mistake(
    "LayerNorm with unbiased std, and eps outside",
    rejected_by="the variance is 1",
    symptom="Every output is too small by sqrt((D-1)/D): 0.935 at D = 8, 0.999 at D = 512.",
    cause="x.std() divides by D - 1 and eps is added to the std: use var(correction=0) + eps.",
    seen="source notes, 001:996; harvardnlp/annotated-transformer issue 122",
    of="layer_norm",
)
def unbiased_and_eps_outside(x, weight, bias, *, eps=1e-5):
    mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
    return weight * (x - mean) / (std + eps) + bias


@mistake(
    "eps outside the square root",
    rejected_by="eps is inside the root",
    symptom="Right to five digits, until a token is nearly constant: then twice too large or more.",
    cause="sqrt(var) + eps where sqrt(var + eps) is right.",
    seen="hkproj/pytorch-transformer pull request 31",
    of="layer_norm",
)
def eps_outside_the_root(x, weight, bias, *, eps=1e-5):
    mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True, correction=0)
    return weight * (x - mean) / (std + eps) + bias


@mistake(
    "LayerNorm made inside forward, over (L, D)",
    rejected_by="a token sees only itself",
    symptom="Scale and shift never learn, and a later token changes the first: a leak.",
    cause="nn.LayerNorm(x.size()[1:]) in forward: made anew each call, mean over all tokens.",
    seen="source notes, 001:1603",
    of="layer_norm",
)
def made_inside_forward(x, weight, bias, *, eps=1e-5):
    norm = nn.LayerNorm(x.size()[1:] or x.size(), eps=eps, dtype=x.dtype)
    return norm(x)


@mistake(
    "statistics over the batch",
    rejected_by="a token sees only itself",
    symptom="A token's answer depends on who else is in the batch, padding included.",
    cause="Mean and variance over samples and places: that is BatchNorm.",
    of="layer_norm",
)
def over_the_batch(x, weight, bias, *, eps=1e-5):
    axes = tuple(range(x.ndim - 1))
    if not axes:
        return plain_layer_norm(x, weight, bias, eps=eps)
    centered = x - x.mean(axes, keepdim=True)
    return centered * (centered.square().mean(axes, keepdim=True) + eps).rsqrt() * weight + bias


@mistake(
    "a LayerNorm that keeps the mean",
    rejected_by="the mean is 0",
    symptom="A common offset of all features survives.",
    cause="The mean is not subtracted: that is RMSNorm.",
    of="layer_norm",
)
def mean_left_in(x, weight, bias, *, eps=1e-5):
    return plain_rms_norm(x, weight, eps=eps) + bias


@mistake(
    "a LayerNorm without scale and shift",
    rejected_by="scale and shift come last",
    symptom="Nothing to see at the start, where they are 1 and 0; later they have no effect.",
    cause="The answer is not multiplied by weight and nothing is added.",
    of="layer_norm",
)
def never_scaled(x, weight, bias, *, eps=1e-5):
    return plain_layer_norm(x, torch.ones_like(weight), torch.zeros_like(bias), eps=eps)


@mistake(
    "eps forgotten",
    rejected_by="no division by zero",
    symptom="NaN for a token whose numbers are equal, a padded row of zeros for example.",
    cause="0 / sqrt(0): eps keeps the root above zero.",
    of="layer_norm",
)
def eps_forgotten(x, weight, bias, *, eps=1e-5):
    return plain_layer_norm(x, weight, bias, eps=0.0)


@mistake(
    "the mean of squares less the squared mean",
    rejected_by="a shift changes nothing",
    symptom="Right for numbers around 0; in float32 any number at all for a token far from 0.",
    cause="Two large numbers cancel: at a mean of 3000 the squares keep no digit of the spread.",
    seen="pytorch issue 51102; objax issue 182",
    of="layer_norm",
)
def squares_first(x, weight, bias, *, eps=1e-5):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    mean = wide.mean(-1, keepdim=True)
    variance = (wide.square().mean(-1, keepdim=True) - mean.square()).clamp(min=0)
    return ((wide - mean) * (variance + eps).rsqrt() * weight + bias).to(x.dtype)


@mistake(
    "squared in half precision",
    rejected_by="float16 does not overflow",
    symptom="Zeros for tokens with numbers above 256: their squares pass 65504.",
    cause="The sum of squares belongs in float32, whatever the dtype of x.",
    of="layer_norm",
)
def squared_in_half_precision(x, weight, bias, *, eps=1e-5):
    centered = x - x.mean(-1, keepdim=True)
    variance = centered.square().mean(-1, keepdim=True)
    return centered * (variance + eps).rsqrt() * weight + bias


@mistake(
    "an RMSNorm that subtracts the mean",
    rejected_by="the direction stays",
    symptom="A token of equal numbers becomes zero: its answer is LayerNorm's.",
    cause="RMSNorm divides by one number and subtracts nothing.",
    of="rms_norm",
)
def mean_subtracted(x, weight, *, eps=1e-6):
    return plain_layer_norm(x, weight, torch.zeros_like(weight), eps=eps)


@mistake(
    "the sum of squares in place of their mean",
    rejected_by="the mean square is 1",
    symptom="Every number is too small by sqrt(D).",
    cause="x / |x| gives length 1; RMSNorm gives length sqrt(D).",
    of="rms_norm",
)
def sum_of_squares(x, weight, *, eps=1e-6):
    return x / (x.square().sum(-1, keepdim=True) + eps).sqrt() * weight


@mistake(
    "eps beside RMSNorm's root",
    rejected_by="eps is inside the root",
    symptom="Right to six digits, until a token is nearly zero.",
    cause="sqrt(mean of squares) + eps where sqrt(mean of squares + eps) is right.",
    of="rms_norm",
)
def eps_beside_the_root(x, weight, *, eps=1e-6):
    return x / (x.square().mean(-1, keepdim=True).sqrt() + eps) * weight


@mistake(
    "an RMSNorm without scale",
    rejected_by="the scale comes last",
    symptom="Nothing to see at the start, where it is 1; later it has no effect.",
    cause="The answer is not multiplied by weight.",
    of="rms_norm",
)
def rms_never_scaled(x, weight, *, eps=1e-6):
    return plain_rms_norm(x, torch.ones_like(weight), eps=eps)


@mistake(
    "one size for the whole batch",
    rejected_by="a token sees only itself",
    symptom="A loud token makes all others quiet.",
    cause="x.square().mean() without an axis: mean(-1, keepdim=True).",
    of="rms_norm",
)
def rms_over_all(x, weight, *, eps=1e-6):
    if not x.numel():
        return x
    return x * (x.square().mean() + eps).rsqrt() * weight


@mistake(
    "RMSNorm squared in half precision",
    rejected_by="float16 does not overflow",
    symptom="Zeros for tokens with numbers above 256: their squares pass 65504.",
    cause="The sum of squares belongs in float32, whatever the dtype of x.",
    of="rms_norm",
)
def rms_in_half_precision(x, weight, *, eps=1e-6):
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight
