"""Normalization and residual connections: what keeps a deep stack of layers trainable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from .errors import (
    complain,
    need_bool,
    need_count,
    need_float_tensor,
    need_positive,
    need_probability,
    shape_of,
)

WIRINGS = ("post", "pre", "deep", "dual")

# --- The formulas ---------------------------------------------------------------------------------


def layer_norm(
    x: Float[Tensor, "*batch D"],
    weight: Float[Tensor, " D"] | None = None,
    bias: Float[Tensor, " D"] | None = None,
    *,
    eps: float = 1e-5,
) -> Float[Tensor, "*batch D"]:
    """Give each token mean 0 and variance 1 over its own numbers, then scale and shift each feature.

    (x - mean) / sqrt(var + eps) x weight + bias, with the variance of the D numbers themselves
    (divided by D, not D - 1) and eps inside the root. Computed in at least float32.

    Shapes: x (*batch, D), weight and bias (D) -> (*batch, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Ba et al. 2016, equations 3 and 4.

    >>> layer_norm(torch.tensor([1.0, 3.0]), eps=1e-12)
    tensor([-1.,  1.])
    """
    need_features(x, weight, bias)
    need_positive("eps", eps)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    centered = wide - wide.mean(-1, keepdim=True)
    variance = centered.square().mean(-1, keepdim=True)
    return _affine(centered * torch.rsqrt(variance + eps), weight, bias).to(x.dtype)


def rms_norm(
    x: Float[Tensor, "*batch D"], weight: Float[Tensor, " D"] | None = None, *, eps: float = 1e-6
) -> Float[Tensor, "*batch D"]:
    """Give each token a root mean square of 1, then scale each feature; the mean stays where it is.

    x / sqrt(mean(x^2) + eps) x weight, in at least float32.

    Shapes: x (*batch, D), weight (D) -> (*batch, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Zhang and Sennrich 2019, equation 4.

    >>> rms_norm(torch.tensor([3.0, 3.0]), eps=1e-12)
    tensor([1., 1.])
    """
    need_features(x, weight)
    need_positive("eps", eps)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    size = wide.square().mean(-1, keepdim=True)
    return _affine(wide * torch.rsqrt(size + eps), weight, None).to(x.dtype)


def batch_norm(
    x: Float[Tensor, "*batch D"],
    weight: Float[Tensor, " D"] | None = None,
    bias: Float[Tensor, " D"] | None = None,
    *,
    mean: Float[Tensor, " D"] | None = None,
    variance: Float[Tensor, " D"] | None = None,
    eps: float = 1e-5,
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
    need_features(x, weight, bias, mean=mean, variance=variance)
    need_positive("eps", eps)
    if (mean is None) != (variance is None):
        missing = "mean" if mean is None else "variance"
        raise complain(ValueError, missing, None, "both mean and variance, or neither")
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

    def __init__(
        self, d_model: int, *, eps: float = 1e-5, bias: bool = True, backend: str = "fused"
    ) -> None:
        super().__init__()
        need_count("d_model", d_model)
        need_positive("eps", eps)
        need_bool("bias", bias)
        need_backend(backend)
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model)) if bias else None
        self.eps, self.backend = eps, backend

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """Normalize each token."""
        if self.backend == "plain":
            return layer_norm(x, self.weight, self.bias, eps=self.eps)
        need_features(x, self.weight, self.bias)
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """`rms_norm` with a learned scale, 1 at the start.

    Shapes: (*batch, D) -> (*batch, D). backend as in `LayerNorm`.
    Raises: TypeError or ValueError that name the argument.
    Source: Zhang and Sennrich 2019, equation 4.
    """

    def __init__(self, d_model: int, *, eps: float = 1e-6, backend: str = "fused") -> None:
        super().__init__()
        need_count("d_model", d_model)
        need_positive("eps", eps)
        need_backend(backend)
        self.weight = nn.Parameter(torch.ones(d_model))
        self.eps, self.backend = eps, backend

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """Normalize each token."""
        if self.backend == "plain":
            return rms_norm(x, self.weight, eps=self.eps)
        need_features(x, self.weight)
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

    def __init__(self, d_model: int, *, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        need_count("d_model", d_model)
        need_positive("eps", eps)
        need_positive("momentum", momentum)
        if momentum > 1:
            raise complain(ValueError, "momentum", momentum, "a share of at most 1")
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))
        self.register_buffer("running_mean", torch.zeros(d_model))
        self.register_buffer("running_var", torch.ones(d_model))
        self.register_buffer("num_batches_tracked", torch.tensor(0))
        self.eps, self.momentum = eps, momentum

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """Normalize each feature."""
        need_features(x, self.weight, self.bias)
        if self.training:
            self._track(x.detach())
            return batch_norm(x, self.weight, self.bias, eps=self.eps)
        running = {"mean": self.running_mean, "variance": self.running_var}
        return batch_norm(x, self.weight, self.bias, **running, eps=self.eps)

    def _track(self, x: Tensor) -> None:
        count = x.numel() // x.shape[-1]
        if count < 2:
            raise complain(ValueError, "x", f"{count} tokens", "at least 2 tokens while training")
        mean, variance = batch_statistics(x.to(torch.promote_types(x.dtype, torch.float32)))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
        unbiased = variance * (count / (count - 1))
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
        self.num_batches_tracked += 1


# --- Residual connections -------------------------------------------------------------------------


class Residual(nn.Module):
    """Add what a sublayer finds to what was there, with the norm in one of four places.

    post: norm(x + f(x)), the paper of 2017.
    pre: x + f(norm(x)), so that nothing stands on the direct way through.
    deep: norm(alpha x + f(x)), DeepNorm.
    dual: post, and beside it a sum of all f(x) that is never normalized, `total`; the stack ends in
        x + norm(total), ResiDual.

    Dropout acts on f(x) alone, while training: the direct way always carries everything.

    Shapes: x and total (*batch, D); sublayer: a function (*batch, D) -> (*batch, D). The answer is
        (x, total); total comes back as it came unless the wiring is "dual".
    Raises: TypeError or ValueError that name the argument.
    Source: post: Vaswani et al. 2017, section 3.1; pre: Xiong et al. 2020; deep: Wang et al. 2022,
        DeepNorm; dual: Xie et al. 2023, ResiDual.
    """

    def __init__(
        self,
        norm: nn.Module,
        *,
        wiring: Literal["post", "pre", "deep", "dual"] = "post",
        dropout: float = 0.0,
        alpha: float = 1.0,
    ) -> None:
        super().__init__()
        if wiring not in WIRINGS:
            raise complain(ValueError, "wiring", repr(wiring), f"one of {', '.join(WIRINGS)}")
        need_probability("dropout", dropout)
        need_positive("alpha", alpha)
        if not callable(norm):
            raise complain(TypeError, "norm", type(norm).__name__, "a module or a function")
        if alpha != 1.0 and wiring != "deep":
            raise complain(ValueError, "alpha", alpha, f'1 unless the wiring is "deep" ({wiring})')
        self.norm, self.wiring, self.alpha = norm, wiring, alpha
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "*batch D"],
        sublayer: Callable[[Tensor], Tensor],
        total: Float[Tensor, "*batch D"] | None = None,
    ) -> tuple[Float[Tensor, "*batch D"], Float[Tensor, "*batch D"] | None]:
        """One step of the stack."""
        if self.wiring == "pre":
            return x + self._change(x, sublayer(self.norm(x))), total
        change = self._change(x, sublayer(x))
        if self.wiring == "dual":
            need_total(total, x)
            total = total + change
        stream = x if self.alpha == 1.0 else self.alpha * x
        return self.norm(stream + change), total

    def _change(self, x: Tensor, found: Tensor) -> Tensor:
        """What is added, after dropout; the sum must not broadcast."""
        if found.shape != x.shape:
            wanted = f"an answer of x's shape {shape_of(x)}"
            raise complain(ValueError, "sublayer", f"shape {shape_of(found)}", wanted)
        return self.dropout(found)


class DeepNormConstants(NamedTuple):
    """DeepNorm's two numbers for a stack: alpha multiplies the stream, beta the initial weights."""

    alpha: float
    beta: float


def deepnorm_constants(
    num_encoder_layers: int = 0, num_decoder_layers: int = 0
) -> tuple[DeepNormConstants | None, DeepNormConstants | None]:
    """DeepNorm's alpha and beta for the encoder and for the decoder; None for one without layers.

    With N encoder and M decoder layers: encoder alone (2N)^(1/4) and (8N)^(-1/4); decoder alone
    (2M)^(1/4) and (8M)^(-1/4); both: encoder 0.81 (N^4 M)^(1/16) and 0.87 (N^4 M)^(-1/16), decoder
    (3M)^(1/4) and (12M)^(-1/4).

    Raises: TypeError or ValueError that name the argument.
    Source: Wang et al. 2022 (DeepNet), figure 2.

    >>> deepnorm_constants(8)
    (DeepNormConstants(alpha=2.0, beta=0.3535533905932738), None)
    """
    need_count("num_encoder_layers", num_encoder_layers, least=0)
    need_count("num_decoder_layers", num_decoder_layers, least=0)
    n, m = num_encoder_layers, num_decoder_layers
    if n == m == 0:
        raise complain(ValueError, "num_encoder_layers", 0, "a layer in one of the stacks")
    if n and m:
        both = (n**4 * m) ** (1 / 16)
        decoder = DeepNormConstants((3 * m) ** 0.25, (12 * m) ** -0.25)
        return DeepNormConstants(0.81 * both, 0.87 / both), decoder
    alone = DeepNormConstants((2 * (n or m)) ** 0.25, (8 * (n or m)) ** -0.25)
    return (alone, None) if n else (None, alone)


@torch.no_grad()
def deepnorm_init(sublayers: nn.Module, beta: float) -> None:
    """Draw every linear map inside anew by Xavier's normal rule, with gain beta and no bias.

    Those called `query` or `key` get gain 1: they set the weights of the attention, not the size of
    what it returns.

    Raises: TypeError or ValueError that name the argument.
    Source: Wang et al. 2022 (DeepNet), figure 2.
    """
    need_positive("beta", beta)
    for name, module in sublayers.named_modules():
        if isinstance(module, nn.Linear):
            gain = 1.0 if name.rpartition(".")[2] in ("query", "key") else float(beta)
            nn.init.xavier_normal_(module.weight, gain=gain)
            if module.bias is not None:
                module.bias.zero_()


# --- Checks ---------------------------------------------------------------------------------------


def need_features(x: object, weight: object = None, bias: object = None, **others: object) -> None:
    """Raise unless x is floating point with a last axis that fits weight, bias and the others."""
    need_float_tensor("x", x)
    if x.ndim < 1 or x.shape[-1] == 0:
        raise complain(ValueError, "x", f"shape {shape_of(x)}", "a last axis of at least 1 number")
    for name, tensor in {"weight": weight, "bias": bias, **others}.items():
        if tensor is None:
            continue
        need_float_tensor(name, tensor)
        if x.shape[-1:] != tensor.shape:
            wanted = f"one number a feature of x, ({x.shape[-1]},)"
            raise complain(ValueError, name, f"shape {shape_of(tensor)}", wanted)


def need_total(total: Tensor | None, x: Tensor) -> None:
    """Raise unless the sum of the wiring "dual" is there and has the shape of x."""
    if total is None:
        raise complain(ValueError, "total", None, 'a tensor like x for the wiring "dual"')
    if total.shape != x.shape:
        wanted = f"the shape of x, {shape_of(x)}"
        raise complain(ValueError, "total", f"shape {shape_of(total)}", wanted)


def need_backend(backend: object) -> None:
    """Raise unless the backend of a norm is known."""
    if backend not in ("fused", "plain"):
        raise complain(ValueError, "backend", repr(backend), '"fused" or "plain"')
