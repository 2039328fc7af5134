"""The answers to norm placement."""

import torch
from torch.nn import functional

from tested_transformer.specs.block.mutants import Wiring, norm
from tested_transformer.specs.block.spec import with_residual

from . import right, wrong

right("block", "the package's")(with_residual)
right("block", "the mutants' base")(Wiring())


def plain_norm(x, gain):
    centered = x - x.mean(-1, keepdim=True)
    return centered * (centered.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * gain


@right("block", "one loop")
def in_one_loop(x, w, gain, norm_placement, *, alpha=1.0, dropout=0.0):
    total, scale = x, alpha if norm_placement == "deepnorm" else 1.0
    for n in range(len(w)):
        y = plain_norm(x, gain[n]) if norm_placement == "pre" else x
        change = functional.dropout(torch.tanh(torch.einsum("ld,de->le", y, w[n])), dropout)
        total = total + change
        x = x + change if norm_placement == "pre" else plain_norm(scale * x + change, gain[n])
    if norm_placement == "pre":
        return plain_norm(x, gain[-1])
    return x + plain_norm(total, gain[-1]) if norm_placement == "resi_dual" else x


@right("block", "any option, tanh by sigmoid")
def by_sigmoid(x, w, gain, norm_placement, **options):
    dropout, total = options.get("dropout", 0.0), x
    for matrix, g in zip(w, gain[:-1], strict=True):
        y = norm(x, g) if norm_placement == "pre" else x
        change = functional.dropout(2 * torch.sigmoid(2 * (y @ matrix)) - 1, dropout)
        total = total + change
        x = options.get("alpha", 1.0) * x + change
        x = x if norm_placement == "pre" else norm(x, g)
    last = {"pre": lambda: norm(x, gain[-1]), "resi_dual": lambda: x + norm(total, gain[-1])}
    return last.get(norm_placement, lambda: x)()


@right("ch07.pre_stack")
def running_sum(x, w, gain):
    for n, matrix in enumerate(w):
        x = torch.addmm(torch.zeros_like(x), plain_norm(x, gain[n]), matrix).tanh() + x
    return plain_norm(x, gain[len(w)])


@right("ch07.pre_stack")
@torch.jit.script
def scripted_stack(x: torch.Tensor, w: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    for n in range(w.shape[0]):
        x = x + torch.tanh(torch.layer_norm(x, [x.shape[1]], gain[n]) @ w[n])
    return torch.layer_norm(x, [x.shape[1]], gain[w.shape[0]])


@right("ch07.pre_stack", "recursive")
def recursive(x, w, gain):
    if not len(w):
        return plain_norm(x, gain[0])
    return recursive(x + torch.tanh(plain_norm(x, gain[0]) @ w[0]), w[1:], gain[1:])


# --- Wrong ----------------------------------------------------------------------------------------


def stack(what, **steps):
    """The right stack with some steps replaced."""
    wrong("block", what)(type("Wrong", (Wiring,), steps)())


def drop(rule):
    return {"add": lambda self, x, change, dropout: x + rule(change, dropout)}


stack("dropout takes the keep probability", **drop(lambda f, p: functional.dropout(f, 1 - p)))
stack("dropout is never applied", **drop(lambda f, p: f))
stack(
    "what is kept is not scaled",
    **drop(lambda f, p: f * functional.dropout(torch.ones_like(f), p) * (1 - p)),
)
stack("dropout of whole tokens, unscaled", **drop(lambda f, p: f * (torch.rand(len(f), 1) >= p)))
stack("what is found is detached", **drop(lambda f, p: functional.dropout(f.detach(), p)))
stack(
    "detached in float32",
    **drop(lambda f, p: functional.dropout(f.detach() if f.dtype == torch.float32 else f, p)),
)
stack(
    "the stream is detached",
    add=lambda self, x, change, dropout: x.detach() + functional.dropout(change, dropout),
)
stack("the norm at the end is detached", end_of_pre=lambda self, x, gain: norm(x, gain).detach())
stack("the last gain never learns", end_of_pre=lambda self, x, gain: norm(x, gain.detach()))
stack(
    "the first gain at the end",
    end_of_dual=lambda self, x, total, gain: x + norm(total, torch.ones_like(gain)),
)
stack("both streams normalized", end_of_dual=lambda self, x, total, gain: norm(x + total, gain))
stack(
    "the sum of ResiDual is detached",
    next_total=lambda self, x, total, change: total.detach() + change,
)
stack(
    "deepnorm with alpha squared",
    deepnorm=lambda self, x, total, g, find, alpha, p: (
        norm(self.add(alpha**2 * x, find(x), p), g),
        total,
    ),
)
stack(
    "deepnorm finds from alpha x",
    deepnorm=lambda self, x, total, g, find, alpha, p: (
        norm(self.add(alpha * x, find(alpha * x), p), g),
        total,
    ),
)
stack(
    "a norm before and after",
    pre=lambda self, x, total, g, find, alpha, p: (
        norm(self.add(x, find(norm(x, g)), p), g),
        total,
    ),
)


@wrong("block", "dropout acts on the matrices")
def matrices_dropped(x, w, gain, norm_placement, *, alpha=1.0, dropout=0.0):
    return Wiring()(x, functional.dropout(w, dropout), gain, norm_placement, alpha=alpha)


@wrong("block", "alpha counts in post-norm's first layer only")
def alpha_once(x, w, gain, norm_placement, *, alpha=1.0, dropout=0.0):
    if norm_placement != "deepnorm" or len(w) < 2:
        return Wiring()(x, w, gain, norm_placement, alpha=alpha, dropout=dropout)
    x = Wiring()(x, w[:1], gain[:2], "deepnorm", alpha=alpha, dropout=dropout)
    return Wiring()(x, w[1:], gain[1:], "post", dropout=dropout)


@wrong("block", "three layers at most")
def three_layers(x, w, gain, norm_placement, *, alpha=1.0, dropout=0.0):
    gain = torch.cat([gain[:-1][:3], gain[-1:]])
    return Wiring()(x, w[:3], gain, norm_placement, alpha=alpha, dropout=dropout)


@wrong("block", "a seed is set")
def seeded(x, w, gain, norm_placement, *, alpha=1.0, dropout=0.0):
    torch.manual_seed(0)
    return Wiring()(x, w, gain, norm_placement, alpha=alpha, dropout=dropout)


@wrong("block", "x is changed in place")
def in_place(x, w, gain, norm_placement, *, alpha=1.0, dropout=0.0):
    answer = Wiring()(x, w, gain, norm_placement, alpha=alpha, dropout=dropout)
    x.data.add_(1.0)
    return answer


@wrong("ch07.pre_stack", "what is found is detached")
def pre_detached(x, w, gain):
    for matrix, g in zip(w, gain[:-1], strict=True):
        x = x + torch.tanh(norm(x, g) @ matrix).detach()
    return norm(x, gain[-1])


@wrong("ch07.pre_stack", "the gains never learn")
def gains_detached(x, w, gain):
    return running_sum(x, w, gain.detach())


@wrong("ch07.pre_stack", "the gains in reverse order")
def gains_reversed(x, w, gain):
    return running_sum(x, w, gain.flip(0))


@wrong("ch07.pre_stack", "the last gain for all")
def one_gain(x, w, gain):
    return running_sum(x, w, gain[-1:].expand_as(gain))


@wrong("ch07.pre_stack", "the norm found once")
def one_norm(x, w, gain):
    y = norm(x, gain[0])
    for matrix in w:
        x = x + torch.tanh(y @ matrix)
    return norm(x, gain[-1])


@wrong("ch07.pre_stack", "parallel sublayers")
def parallel(x, w, gain):
    return norm(
        x + sum(torch.tanh(norm(x, g) @ m) for m, g in zip(w, gain, strict=False)), gain[-1]
    )
