"""The answers to LayerNorm and RMSNorm."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional

from tested_transformer.layers import norms
from tested_transformer.specs.norms.mutants import plain_layer_norm, plain_rms_norm

from . import right, wrong

# --- Right ----------------------------------------------------------------------------------------


def wide(x):
    return x.to(torch.promote_types(x.dtype, torch.float32))


for spec in ("layer_norm", "ch07.layer_norm"):
    right(spec, "the package's layer")(norms.LayerNorm)
    right(spec, "the package's formula")(norms.layer_norm)
    right(spec, "torch's layer")(nn.LayerNorm)
    right(spec, "partial")(partial(plain_layer_norm, eps=1e-5))
right("rms_norm", "the package's layer")(norms.RMSNorm)
right("rms_norm", "the package's formula")(norms.rms_norm)
right("rms_norm", "torch's layer")(nn.RMSNorm)


@right("layer_norm", "torch's function")
def fused(x, weight, bias, *, eps=1e-5):
    return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


@right("layer_norm", "anything else by name")
def with_options(x, weight, bias, **options):
    return functional.layer_norm(x, x.shape[-1:], weight, bias, **options)


@right("layer_norm")
@torch.jit.script
def scripted_layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5
):
    y = x if x.dtype == torch.float64 else x.float()
    y = y - y.mean(-1, keepdim=True)
    return (y / torch.sqrt(y.pow(2).mean(-1, keepdim=True) + eps) * weight + bias).to(x.dtype)


@right("layer_norm")
def of_var_mean(x, weight, bias, *, eps=1e-5):
    variance, mean = torch.var_mean(wide(x), -1, correction=0, keepdim=True)
    return torch.addcmul(bias, (wide(x) - mean) * (variance + eps).rsqrt(), weight).to(x.dtype)


@right("layer_norm")
def by_einsum(x, weight, bias, *, eps=1e-5):
    d = x.shape[-1]
    centered = wide(x) - torch.einsum("...d->...", wide(x))[..., None] / d
    variance = torch.einsum("...d,...d->...", centered, centered)[..., None] / d
    return (centered * (weight * (variance + eps) ** -0.5) + bias).to(x.dtype)


@right("layer_norm")
def token_by_token(x, weight, bias, *, eps=1e-5):
    tokens = wide(x).reshape(-1, x.shape[-1])
    rows = [(t - t.mean()) / ((t - t.mean()) ** 2).mean().add(eps).sqrt() for t in tokens]
    answer = torch.stack(rows) if rows else tokens
    return (answer.reshape(x.shape) * weight + bias).to(x.dtype)


@right("layer_norm")
def length_by_a_norm(x, weight, bias, *, eps=1e-5):
    """sqrt(D) x centered / |(centered, sqrt(D eps))|."""
    d = x.shape[-1]
    centered = wide(x) @ (torch.eye(d, dtype=wide(x).dtype) - 1 / d)
    size = (centered.square().sum(-1, keepdim=True) + d * eps).sqrt()
    return (d**0.5 * centered / size * weight + bias).to(x.dtype)


@right("layer_norm")
class RenamedLayerNorm(nn.Module):
    """As a student writes it, with its parameters made empty and filled."""

    def __init__(self, d_model, eps=1e-5):
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.empty(d_model)),
            nn.Parameter(torch.empty(d_model)),
        )
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)
        self.eps = eps

    def forward(self, x):
        return fused(x, self.weight, self.bias, eps=self.eps)


@right("rms_norm", "torch's function")
def fused_rms(x, weight, *, eps=1e-6):
    return functional.rms_norm(x, x.shape[-1:], weight, eps)


@right("rms_norm", "Llama's")
def of_llama(x, weight, *, eps=1e-6):
    hidden = wide(x)
    hidden = hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + eps)
    return weight * hidden.to(x.dtype)


@right("rms_norm")
def by_dot_products(x, weight, *, eps=1e-6):
    y = wide(x)
    square = (y[..., None, :] @ y[..., :, None])[..., 0] / x.shape[-1]
    return (y * weight * (square + eps) ** -0.5).to(x.dtype)


@right("rms_norm")
def rms_by_einsum(x, weight, **options):
    y, eps = wide(x), options.get("eps", 1e-6)
    square = torch.einsum("...d,...d->...", y, y) / x.shape[-1]
    return torch.einsum("...d,...,d->...d", y, 1 / torch.sqrt(square + eps), weight.to(y)).to(
        x.dtype
    )


@right("rms_norm")
@torch.jit.script
def scripted_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6):
    y = x if x.dtype == torch.float64 else x.float()
    return (y / torch.sqrt(y.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


right("rms_norm", "partial")(partial(plain_rms_norm, eps=1e-6))


# --- Wrong in both --------------------------------------------------------------------------------


def parts(x, subtract=True):
    y = wide(x)
    centered = y - y.mean(-1, keepdim=True) if subtract else y
    return centered, centered.square().mean(-1, keepdim=True)


def both(what):
    """Say it of a function of (x, weight, bias, eps, subtract): of LayerNorm and of RMSNorm."""

    def note(function):
        @wrong("layer_norm", what)
        def layer(x, weight, bias, *, eps=1e-5):
            return function(x, weight, bias, eps, True)

        @wrong("rms_norm", what)
        def rms(x, weight, *, eps=1e-6):
            return function(x, weight, 0.0, eps, False)

        return function

    return note


@both("the statistics are detached")
def detached(x, weight, bias, eps, subtract):
    with torch.no_grad():
        centered, square = parts(x, subtract)
        mean = wide(x) - centered
    return ((wide(x) - mean) / (square + eps).sqrt() * weight + bias).to(x.dtype)


@both("the root is detached")
def root_detached(x, weight, bias, eps, subtract):
    centered, square = parts(x, subtract)
    return (centered / (square + eps).sqrt().detach() * weight + bias).to(x.dtype)


@both("the gradient goes straight through")
def straight_through(x, weight, bias, eps, subtract):
    centered, square = parts(x, subtract)
    y = centered / (square + eps).sqrt()
    y = wide(x) + (y - wide(x)).detach()
    return (y * weight + bias).to(x.dtype)


@both("the gradient of float32 is detached")
def float32_detached(x, weight, bias, eps, subtract):
    centered, square = parts(x, subtract)
    square = square.detach() if x.dtype == torch.float32 else square
    return (centered / (square + eps).sqrt() * weight + bias).to(x.dtype)


@both("the scale never learns")
def scale_detached(x, weight, bias, eps, subtract):
    centered, square = parts(x, subtract)
    return (centered / (square + eps).sqrt() * weight.detach() + bias).to(x.dtype)


@both("eps is the default whatever was asked")
def eps_fixed(x, weight, bias, eps, subtract):
    centered, square = parts(x, subtract)
    eps = 1e-5 if subtract else 1e-6
    return (centered / (square + eps).sqrt() * weight + bias).to(x.dtype)


@both("eps is a floor")
def eps_as_a_floor(x, weight, bias, eps, subtract):
    centered, square = parts(x, subtract)
    return (centered / square.clamp(min=eps).sqrt() * weight + bias).to(x.dtype)


@both("eps is 1e-8 by default")
def another_default(x, weight, bias, eps, subtract):
    centered, square = parts(x, subtract)
    eps = 1e-8 if eps in (1e-5, 1e-6) else eps
    return (centered / (square + eps).sqrt() * weight + bias).to(x.dtype)


@both("the answer stays in float32")
def never_cast_back(x, weight, bias, eps, subtract):
    centered, square = parts(x, subtract)
    return centered / (square + eps).sqrt() * weight + bias


@both("float64 is cut to float32")
def always_float32(x, weight, bias, eps, subtract):
    centered, square = parts(x.float(), subtract)
    return (centered / (square + eps).sqrt() * weight + bias).to(x.dtype)


@both("three axes are normalized over two")
def two_axes_of_three(x, weight, bias, eps, subtract):
    y, axes = wide(x), (-2, -1) if x.ndim == 3 else (-1,)
    y = y - y.mean(axes, keepdim=True) if subtract else y
    return (y / (y.square().mean(axes, keepdim=True) + eps).sqrt() * weight + bias).to(x.dtype)


@both("axis 1 in place of the last")
def axis_one(x, weight, bias, eps, subtract):
    axis = min(1, x.ndim - 1)
    y = wide(x)
    y = y - y.mean(axis, keepdim=True) if subtract else y
    return (y / (y.square().mean(axis, keepdim=True) + eps).sqrt() * weight + bias).to(x.dtype)


@both("four axes raise")
def three_axes_at_most(x, weight, bias, eps, subtract):
    assert x.ndim < 4, "x has too many axes"
    return eps_right(x, weight, bias, eps, subtract)


def eps_right(x, weight, bias, eps, subtract):
    centered, square = parts(x, subtract)
    return (centered / (square + eps).sqrt() * weight + bias).to(x.dtype)


@both("a scale is never negative")
def scale_without_sign(x, weight, bias, eps, subtract):
    return eps_right(x, weight.abs(), bias, eps, subtract)


@both("a scale of 0 counts as 1")
def zero_scale(x, weight, bias, eps, subtract):
    return eps_right(x, torch.where(weight == 0, 1.0, weight), bias, eps, subtract)


@both("a view of x")
def viewed(x, weight, bias, eps, subtract):
    return eps_right(x.view(-1, x.shape[-1]), weight, bias, eps, subtract).view(x.shape)


@both("512 features at most")
def first_512(x, weight, bias, eps, subtract):
    _, square = parts(x[..., :512], subtract)
    return (parts(x, subtract)[0] / (square + eps).sqrt() * weight + bias).to(x.dtype)


@both("one feature stays as it is")
def one_feature_kept(x, weight, bias, eps, subtract):
    return x * 1.0 if x.shape[-1] == 1 else eps_right(x, weight, bias, eps, subtract)


@both("x is written over")
def in_place(x, weight, bias, eps, subtract):
    answer = eps_right(x, weight, bias, eps, subtract)
    x.data.mul_(1.5)
    return answer


@both("gradients are switched off for good")
def switched_off(x, weight, bias, eps, subtract):
    torch.set_grad_enabled(False)
    return eps_right(x, weight, bias, eps, subtract)


@both("x is scaled by its largest number first")
def scaled_first(x, weight, bias, eps, subtract):
    """No overflow, and eps is another."""
    top = x.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    return eps_right(x / top, weight, bias, eps, subtract)


@both("float16 is squared as it is")
def half_squared(x, weight, bias, eps, subtract):
    y = x if x.dtype == torch.float16 else wide(x)
    y = y - y.mean(-1, keepdim=True) if subtract else y
    return (y / (y.square().mean(-1, keepdim=True) + eps).sqrt() * weight + bias).to(x.dtype)


@both("a token without features' spread is NaN in the gradient")
def nan_gradient(x, weight, bias, eps, subtract):
    """The root of the squares at 0 has no slope; the values are right."""
    centered, square = parts(x, subtract)
    return (centered / (square.sqrt() ** 2 + eps).sqrt() * weight + bias).to(x.dtype)


# --- Wrong in LayerNorm alone ---------------------------------------------------------------------


@wrong("layer_norm", "squares in bfloat16")
def bfloat16_squares(x, weight, bias, *, eps=1e-5):
    y = x.float() if x.dtype == torch.float16 else x
    y = y - y.mean(-1, keepdim=True)
    return (y * (y.square().mean(-1, keepdim=True) + eps).rsqrt() * weight + bias).to(x.dtype)


@wrong("layer_norm", "the shift never learns")
def shift_detached(x, weight, bias, *, eps=1e-5):
    return plain_layer_norm(x, weight, bias.detach(), eps=eps)


@wrong("layer_norm", "the shift is scaled")
def shift_scaled(x, weight, bias, *, eps=1e-5):
    centered, square = parts(x)
    return ((centered / (square + eps).sqrt() + bias) * weight).to(x.dtype)


@wrong("layer_norm", "the variance over D - 1 for small D")
def unbiased_if_small(x, weight, bias, *, eps=1e-5):
    y = wide(x)
    variance = y.var(-1, keepdim=True, correction=1 if 1 < x.shape[-1] < 4 else 0)
    return ((y - y.mean(-1, keepdim=True)) / (variance + eps).sqrt() * weight + bias).to(x.dtype)


class Own(nn.Module):
    def __init__(self, d_model, eps=1e-5):
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.ones(d_model)),
            nn.Parameter(torch.zeros(d_model)),
        )
        self.eps = eps

    def forward(self, x):
        return plain_layer_norm(x, self.weight, self.bias, eps=self.eps)


@wrong("layer_norm", "scale and shift start the wrong way round")
class StartsSwapped(Own):
    def __init__(self, d_model, eps=1e-5):
        super().__init__(d_model, eps)
        self.weight, self.bias = self.bias, self.weight


@wrong("layer_norm", "the scale starts at 0")
class StartsAtZero(Own):
    def __init__(self, d_model, eps=1e-5):
        super().__init__(d_model, eps)
        nn.init.zeros_(self.weight)


@wrong("layer_norm", "the scale starts by chance")
class StartsByChance(Own):
    def __init__(self, d_model, eps=1e-5):
        super().__init__(d_model, eps)
        nn.init.normal_(self.weight)


@wrong("layer_norm", "running statistics in evaluation")
class Running(Own):
    def forward(self, x):
        if self.training:
            return super().forward(x)
        return (x - 0.1) / 1.1 * self.weight + self.bias


@wrong("layer_norm", "a mean that is kept")
class KeepsTheMean(Own):
    mean = None

    def forward(self, x):
        if self.mean is None or self.mean.shape[:-1] != x.shape[:-1]:
            self.mean = x.detach().mean(-1, keepdim=True)
        y = super().forward(x)
        shift = (x.mean(-1, keepdim=True) - self.mean).detach()
        return y + shift


@wrong("layer_norm", "a module that ignores eps")
class IgnoresEps(Own):
    def __init__(self, d_model, eps=1e-5):
        super().__init__(d_model)


@wrong("layer_norm", "a module without gradients")
class NoGradients(Own):
    @torch.no_grad()
    def forward(self, x):
        return super().forward(x)


@wrong("layer_norm", "dropout in training")
class Drops(Own):
    def forward(self, x):
        return functional.dropout(super().forward(x), 0.1, self.training)


class OwnRMS(nn.Module):
    def __init__(self, d_model, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d_model)), eps

    def forward(self, x):
        return plain_rms_norm(x, self.weight, eps=self.eps)


@wrong("rms_norm", "the scale starts at 0, as if 1 were added")
class ScaleLessOne(OwnRMS):
    def __init__(self, d_model, eps=1e-6):
        super().__init__(d_model, eps)
        nn.init.zeros_(self.weight)


@wrong("rms_norm", "1 is added to the scale")
def gemma(x, weight, *, eps=1e-6):
    return plain_rms_norm(x, 1 + weight, eps=eps)


@wrong("rms_norm", "the size is not the scale's")
class KeepsTheSize(OwnRMS):
    size = None

    def forward(self, x):
        new = wide(x.detach()).square().mean(-1, keepdim=True)
        if self.size is None or self.size.shape != new.shape:
            self.size = new
        return (wide(x) * (self.size + self.eps).rsqrt() * self.weight).to(x.dtype)


@wrong("rms_norm", "only half of the features count")
def partial_rms(x, weight, *, eps=1e-6):
    y = wide(x)
    half = y[..., : max(1, x.shape[-1] // 2)]
    return (y / (half.square().mean(-1, keepdim=True) + eps).sqrt() * weight).to(x.dtype)
