"""Normalization: LayerNorm, RMSNorm and BatchNorm."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from ..bounds import Above, AtLeast, AtMost, PositiveFloat, PositiveInt
from ..errors import argument_error
from ..shapes import checked

__all__ = ["BatchNorm", "LayerNorm", "RMSNorm", "batch_norm", "layer_norm", "rms_norm"]

# --- The formulas ---------------------------------------------------------------------------------


@checked(any_dtype="weight bias")
def layer_norm(
    x: Float[Tensor, "*batch D"],
    weight: Float[Tensor, " D"] | None = None,
    bias: Float[Tensor, " D"] | None = None,
    *,
    eps: PositiveFloat = 1e-5,
) -> Float[Tensor, "*batch D"]:
    """Give each token mean 0 and variance 1 over its own features, then scale and shift each feature.

    (x - mean) / sqrt(var + eps) x weight + bias, with the variance of the D features themselves
    (divided by D, not D - 1) and eps inside the root. Computed in at least float32.

    Shapes: x (*batch, D), weight and bias (D) -> (*batch, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Ba et al. 2016, equations 3 and 4.

    >>> layer_norm(torch.tensor([1.0, 3.0]), eps=1e-12)
    tensor([-1.,  1.])
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    centered = wide - wide.mean(-1, keepdim=True)
    variance = centered.square().mean(-1, keepdim=True)
    return _affine(centered * torch.rsqrt(variance + eps), weight, bias).to(x.dtype)


@checked(any_dtype="weight")
def rms_norm(
    x: Float[Tensor, "*batch D"],
    weight: Float[Tensor, " D"] | None = None,
    *,
    eps: PositiveFloat = 1e-6,
) -> Float[Tensor, "*batch D"]:
    """Give each token a root mean square of 1, then scale each feature; the mean stays where it is.

    x / sqrt(mean(x^2) + eps) x weight, in at least float32.

    Shapes: x (*batch, D), weight (D) -> (*batch, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Zhang and Sennrich 2019, equation 4.

    >>> rms_norm(torch.tensor([3.0, 3.0]), eps=1e-12)
    tensor([1., 1.])
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    size = wide.square().mean(-1, keepdim=True)
    return _affine(wide * torch.rsqrt(size + eps), weight, None).to(x.dtype)


@checked(any_dtype="weight bias mean variance")
def batch_norm(
    x: Float[Tensor, "*batch D"],
    weight: Float[Tensor, " D"] | None = None,
    bias: Float[Tensor, " D"] | None = None,
    *,
    mean: Float[Tensor, " D"] | None = None,
    variance: Annotated[Float[Tensor, " D"], AtLeast(0)] | None = None,
    eps: PositiveFloat = 1e-5,
) -> Float[Tensor, "*batch D"]:
    """Give each feature mean 0 and variance 1 over all tokens of the batch, then scale and shift it.

    All axes but the last are averaged over: samples and positions alike, padding included. With
    `mean` and `variance` (both or neither) these stand in for the batch's own, as in evaluation.

    Shapes: x (*batch, D), all others (D) -> (*batch, D). At least float32 inside.
    Raises: TypeError or ValueError that name the argument.
    Source: Ioffe and Szegedy 2015, algorithms 1 and 2.

    >>> batch_norm(torch.tensor([[1.0, 5.0], [3.0, 9.0]]), eps=1e-12)
    tensor([[-1., -1.],
            [ 1.,  1.]])
    """
    if (mean is None) != (variance is None):
        missing = "mean" if mean is None else "variance"
        raise argument_error(ValueError, missing, None, "both mean and variance, or neither")
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    if mean is None:
        mean, variance = batch_statistics(wide)
    return _affine((wide - mean) * torch.rsqrt(variance + eps), weight, bias).to(x.dtype)


def batch_statistics(x: Float[Tensor, "*batch D"]) -> tuple[Float[Tensor, " D"], ...]:
    """Mean and variance of each feature over all tokens (the variance divided by their number)."""
    tokens = x.flatten(0, -2) if x.ndim > 1 else x[None]
    mean = tokens.mean(0)
    return mean, (tokens - mean).square().mean(0)


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


# --- The same as layers ---------------------------------------------------------------------------


class LayerNorm(nn.Module):
    """`layer_norm` with a learned scale and shift, 1 and 0 at the start.

    backend: "fused" is PyTorch's kernel, "plain" the formula; they agree up to rounding.

    Shapes: (*batch, D) -> (*batch, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Ba et al. 2016, equations 3 and 4.
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        *,
        eps: PositiveFloat = 1e-5,
        bias: bool = True,
        backend: Literal["fused", "plain"] = "fused",
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model)) if bias else None
        self.d_model, self.eps, self.backend = d_model, eps, backend

    @checked(like="self.weight", D="self.d_model")
    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """Normalize each token."""
        if self.backend == "plain":
            return layer_norm(x, self.weight, self.bias, eps=self.eps)
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """`rms_norm` with a learned scale, 1 at the start.

    Shapes: (*batch, D) -> (*batch, D). backend as in `LayerNorm`.
    Raises: TypeError or ValueError that name the argument.
    Source: Zhang and Sennrich 2019, equation 4.
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        *,
        eps: PositiveFloat = 1e-6,
        backend: Literal["fused", "plain"] = "fused",
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.d_model, self.eps, self.backend = d_model, eps, backend

    @checked(like="self.weight", D="self.d_model")
    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """Normalize each token."""
        if self.backend == "plain":
            return rms_norm(x, self.weight, eps=self.eps)
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


class BatchNorm(nn.Module):
    """`batch_norm` with a learned scale and shift, and running statistics for evaluation.

    While training, the batch's own mean and variance normalize, and the running ones move towards
    them: running = (1 - momentum) running + momentum new, the new variance divided by N - 1.
    In evaluation the running ones normalize, so that a token no longer sees its neighbors.

    Shapes: (*batch, D) -> (*batch, D). The buffers have the names of nn.BatchNorm1d.
    Raises: TypeError or ValueError that name the argument; ValueError for training on one token.
    Source: Ioffe and Szegedy 2015, algorithm 2.
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        *,
        eps: PositiveFloat = 1e-5,
        momentum: Annotated[float, Above(0), AtMost(1)] = 0.1,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))
        self.register_buffer("running_mean", torch.zeros(d_model))
        self.register_buffer("running_var", torch.ones(d_model))
        self.register_buffer("num_batches_tracked", torch.tensor(0))
        self.d_model, self.eps, self.momentum = d_model, eps, momentum

    @checked(like="self.weight", D="self.d_model")
    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """Normalize each feature."""
        if self.training:
            self._track(x.detach())
            return batch_norm(x, self.weight, self.bias, eps=self.eps)
        running = {"mean": self.running_mean, "variance": self.running_var}
        return batch_norm(x, self.weight, self.bias, **running, eps=self.eps)

    def _track(self, x: Tensor) -> None:
        count = x.numel() // x.shape[-1]
        if count < 2:
            raise argument_error(ValueError, "x", f"{count} tokens", "at least 2 while training")
        mean, variance = batch_statistics(x.to(torch.promote_types(x.dtype, torch.float32)))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
        unbiased = variance * (count / (count - 1))
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
        self.num_batches_tracked += 1
