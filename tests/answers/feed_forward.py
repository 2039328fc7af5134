"""The answers to the feed-forward network and to SwiGLU."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional

from tested_transformer.layers import feed_forward as layers
from tested_transformer.specs.feed_forward.mutants import SwigluFormula

from . import right, wrong

ACTIVATIONS = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
}

# --- Right ----------------------------------------------------------------------------------------

for spec in ("feed_forward", "swiglu"):
    right(spec, "the package's layer")(layers.FeedForward)
    right(spec, "the package's convolutions")(layers.ConvFeedForward)


@right("feed_forward", "torch's functions")
def of_linear(x, w_up, b_up, w_down, b_down, activation="relu"):
    wide = ACTIVATIONS[activation](functional.linear(x, w_up.mT, b_up))
    return functional.linear(wide, w_down.mT, b_down)


@right("feed_forward", "einsum, and any option")
def by_einsum(x, w_up, b_up, w_down, b_down, **options):
    wide = torch.einsum("...d,df->...f", x, w_up) + b_up
    wide = ACTIVATIONS[options.get("activation", "relu")](wide)
    return torch.einsum("...f,fd->...d", wide, w_down) + b_down


@right("feed_forward", "activations by hand, a sum over units")
def by_units(x, w_up, b_up, w_down, b_down, activation="relu"):
    wide = x @ w_up + b_up
    if activation == "relu":
        wide = wide * (wide > 0)
    elif activation == "silu":
        wide = wide / (1 + torch.exp(-wide.clamp(min=-80)))
    elif activation == "gelu":
        wide = (
            wide * torch.distributions.Normal(0, 1).cdf(wide)
            if wide.dtype == torch.float64
            else functional.gelu(wide)
        )
    else:
        wide = functional.gelu(wide, approximate="tanh")
    return b_down + torch.stack([wide[..., f, None] * w_down[f] for f in range(len(w_down))]).sum(0)


right("feed_forward", "partial")(partial(of_linear))


@right("ch08.feed_forward")
@torch.jit.script
def scripted_feed_forward(
    x: torch.Tensor,
    w_up: torch.Tensor,
    b_up: torch.Tensor,
    w_down: torch.Tensor,
    b_down: torch.Tensor,
) -> torch.Tensor:
    return (x @ w_up + b_up).clamp(min=0) @ w_down + b_down


@right("feed_forward")
class Sequential(nn.Module):
    def __init__(self, d_model, d_ff, activation="relu", dropout=0.0):
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.activate, self.dropout = ACTIVATIONS[activation], nn.Dropout(dropout)

    def forward(self, x):
        return self.down_proj(self.dropout(self.activate(self.up_proj(x))))


for spec in ("swiglu", "ch08.swiglu"):

    @right(spec, "torch's functions")
    def of_silu(x, w_gate, w_up, w_down):
        return (functional.silu(x @ w_gate) * (x @ w_up)) @ w_down

    @right(spec, "einsum")
    def gated_by_einsum(x, w_gate, w_up, w_down):
        gate, value = (
            torch.einsum("...d,df->...f", x, w_gate),
            torch.einsum("...d,df->...f", x, w_up),
        )
        return torch.einsum("...f,...f,fd->...d", gate * gate.sigmoid(), value, w_down)

    @right(spec, "both layers in one product")
    def gated_in_one(x, w_gate, w_up, w_down, **options):
        gate, value = (x @ torch.cat([w_gate, w_up], 1)).chunk(2, -1)
        return functional.linear(value * gate * gate.sigmoid(), w_down.mT)

    right(spec, "partial")(partial(SwigluFormula()))


# --- Wrong ----------------------------------------------------------------------------------------


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.relu()

    @staticmethod
    def backward(context, gradient):
        return gradient


def naive_tanh(u):
    return ((2 * u).exp() - 1) / ((2 * u).exp() + 1)


def naive_gelu_tanh(x):
    return 0.5 * x * (1 + naive_tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


def naive_silu(x):
    return x * x.exp() / (1 + x.exp())


def with_activation(what, **others):
    """A network with some other activations."""

    @wrong("feed_forward", what)
    def network(x, w_up, b_up, w_down, b_down, activation="relu"):
        activate = (ACTIVATIONS | others)[activation]
        return activate(x @ w_up + b_up) @ w_down + b_down


with_activation("ReLU with a straight-through gradient", relu=Straight.apply)
with_activation("GELU by a tanh that overflows", gelu_tanh=naive_gelu_tanh)
with_activation("SiLU that overflows", silu=naive_silu)
with_activation("a leaky ReLU", relu=partial(functional.leaky_relu, negative_slope=1e-3))
with_activation("ReLU6", relu=functional.relu6)
with_activation("ELU", relu=functional.elu)
with_activation("SiLU is GELU", silu=functional.gelu)
with_activation("GELU by 1.702 x", gelu=lambda x: x * torch.sigmoid(1.702 * x))
with_activation(
    "GELU rounded to four decimals", gelu=lambda x: functional.gelu(x).round(decimals=4)
)
with_activation("the sigmoid of SiLU is detached", silu=lambda x: x * x.sigmoid().detach())
with_activation("GELU in float32", gelu=lambda x: functional.gelu(x.float()).to(x.dtype))
with_activation(
    "the activation is detached in float32",
    relu=lambda x: x.relu().detach() if x.dtype == torch.float32 else x.relu(),
)
with_activation("the activation is in place", relu=lambda x: x.relu_().clamp(max=10.0))


@wrong("feed_forward", "x is detached")
def x_detached(x, w_up, b_up, w_down, b_down, activation="relu"):
    return of_linear(x.detach(), w_up, b_up, w_down, b_down, activation)


@wrong("feed_forward", "the first bias never learns")
def bias_detached(x, w_up, b_up, w_down, b_down, activation="relu"):
    return of_linear(x, w_up, b_up.detach(), w_down, b_down, activation)


@wrong("feed_forward", "half precision goes through ReLU twice")
def half_twice(x, w_up, b_up, w_down, b_down, activation="relu"):
    answer = of_linear(x, w_up, b_up, w_down, b_down, activation)
    return answer.relu() if x.dtype in (torch.bfloat16, torch.float16) else answer


@wrong("feed_forward", "a view of x")
def viewed(x, w_up, b_up, w_down, b_down, activation="relu"):
    answer = of_linear(x.view(-1, x.shape[-1]), w_up, b_up, w_down, b_down, activation)
    return answer.view(x.shape)


@wrong("feed_forward", "four axes: the first two are mixed")
def four_axes_mixed(x, w_up, b_up, w_down, b_down, activation="relu"):
    x = x.mean(0, keepdim=True).expand_as(x) if x.ndim == 4 else x
    return of_linear(x, w_up, b_up, w_down, b_down, activation)


@wrong("feed_forward", "512 tokens at most")
def at_most_512(x, w_up, b_up, w_down, b_down, activation="relu"):
    answer = of_linear(x, w_up, b_up, w_down, b_down, activation)
    return torch.cat([answer[:512], x[512:] * 0]) if x.ndim == 2 and len(x) > 512 else answer


@wrong("feed_forward", "512 hidden units at most")
def units_at_most_512(x, w_up, b_up, w_down, b_down, activation="relu"):
    return of_linear(x, w_up[:, :512], b_up[:512], w_down[:512], b_down, activation)


class Own(nn.Module):
    def __init__(self, d_model, d_ff, activation="relu", dropout=0.0):
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.activation, self.p = activation, dropout

    def activate(self, x):
        return ACTIVATIONS[self.activation](x)

    def drop(self, x):
        return functional.dropout(x, self.p, self.training)

    def forward(self, x):
        return self.down_proj(self.drop(self.activate(self.up_proj(x))))


@wrong("feed_forward", "dropout is read and not used")
class NoDropout(Own):
    def drop(self, x):
        return x


@wrong("feed_forward", "dropout of the keep probability")
class KeepProbability(Own):
    def drop(self, x):
        return functional.dropout(x, 1 - self.p, self.training)


@wrong("feed_forward", "dropout of 0.1 in training whatever was asked")
class AlwaysDrops(Own):
    def drop(self, x):
        return functional.dropout(x, self.p or 0.1, self.training)


@wrong("feed_forward", "all weights start at zero")
class StartsAtZero(Own):
    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)


@wrong("feed_forward", "the first answer's size is kept")
class KeepsTheSize(Own):
    offset = None

    def forward(self, x):
        if self.offset is None:
            self.offset = torch.zeros_like(x.detach())
        return super().forward(x) + self.offset


@wrong("feed_forward", "the last call counts a little")
class Remembers(Own):
    last = 0.0

    def forward(self, x):
        answer = super().forward(x) + 1e-3 * self.last
        self.last = x.detach().mean()
        return answer


@wrong("feed_forward", "no bias in the module")
class NoBias(nn.Module):
    def __init__(self, d_model, d_ff, activation="relu"):
        super().__init__()
        self.up_proj = nn.Linear(d_model, d_ff, bias=False)
        self.down_proj = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x):
        return self.down_proj(self.up_proj(x).relu())


def gating(what, join):
    """A gated network whose gate and value meet in another way."""

    @wrong("swiglu", what)
    def network(x, w_gate, w_up, w_down):
        return join(x @ w_gate, x @ w_up) @ w_down


gating("the gate is detached", lambda gate, value: functional.silu(gate).detach() * value)
gating("the value is detached", lambda gate, value: functional.silu(gate) * value.detach())
gating("SiLU that overflows", lambda gate, value: naive_silu(gate) * value)
gating("GELU for SiLU", lambda gate, value: functional.gelu(gate) * value)
gating("the sigmoid alone is detached", lambda gate, value: gate * gate.sigmoid().detach() * value)
gating("tanh for the sigmoid", lambda gate, value: gate * gate.tanh() * value)
gating(
    "the value is normalized",
    lambda gate, value: functional.silu(gate) * value / value.norm(dim=-1, keepdim=True),
)
gating("the gate is clipped at 20", lambda gate, value: functional.silu(gate.clamp(max=20)) * value)
gating("the gate in float32", lambda gate, value: functional.silu(gate.float()).to(value) * value)


@wrong("swiglu", "x never learns in float32")
def gated_float32(x, w_gate, w_up, w_down):
    x = x.detach() if x.dtype == torch.float32 else x
    return (functional.silu(x @ w_gate) * (x @ w_up)) @ w_down


@wrong("swiglu", "a view of x")
def gated_view(x, w_gate, w_up, w_down):
    tokens = x.view(-1, x.shape[-1])
    return ((functional.silu(tokens @ w_gate) * (tokens @ w_up)) @ w_down).view(x.shape)
