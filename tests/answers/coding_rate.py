"""CRATE's parts: the package's, by autograd and eigenvalues, by torch's attention, by its own threshold."""

import torch

from answers import right, wrong
from tested_transformer.functional.coding_rate import (
    coding_rate,
    coding_rate_gradient,
    ista_step,
    subspace_attention,
)

right("coding_rate", "the package's")(coding_rate)
right("coding_rate_gradient", "the package's")(coding_rate_gradient)
right("subspace_attention", "the package's")(subspace_attention)
right("ista_step", "the package's")(ista_step)


@right("coding_rate", "a determinant of tokens by tokens")
def by_tokens(x, eps):
    factor = x.shape[-1] / (x.shape[-2] * eps**2)
    identity = torch.eye(x.shape[-2], dtype=x.dtype)
    return torch.linalg.slogdet(identity + factor * x @ x.mT).logabsdet / 2


@wrong("coding_rate", "the logarithm of base 2")
def in_bits(x, eps):
    return coding_rate(x, eps) / torch.log(torch.tensor(2.0, dtype=x.dtype))


@wrong("coding_rate", "the tokens' mean taken off")
def centered(x, eps):
    return coding_rate(x - x.mean(-2, keepdim=True), eps)


@right("coding_rate_gradient", "the inverse on the other side, features by features")
def by_features(x, bases, eps):
    total = torch.zeros_like(x)
    for basis in bases:
        y = x @ basis
        a = y.shape[-1] / (x.shape[-2] * eps**2)
        inverse = torch.linalg.inv(torch.eye(y.shape[-1], dtype=x.dtype) + a * y.mT @ y)
        total = total + a * y @ inverse @ basis.T
    return total


@wrong("coding_rate_gradient", "detached bases")
def bases_detached(x, bases, eps):
    return coding_rate_gradient(x, bases.detach(), eps)


@right("subspace_attention", "exponentials divided by their sum, one einsum")
def by_exponentials(x, bases, *, scale=None, causal=False):
    y = torch.einsum("...ld,hdk->...hlk", x, bases)
    scale = bases.shape[-1] ** -0.5 if scale is None else scale
    scores = scale * torch.einsum("...lk,...sk->...ls", y, y)
    powers = (scores - scores.amax(-1, keepdim=True).detach()).exp()
    powers = powers.tril() if causal else powers
    weights = powers / powers.sum(-1, keepdim=True)
    return torch.einsum("...hls,...hsk,hdk->...ld", weights, y, bases)


@wrong("subspace_attention", "a token does not attend to itself unless it must")
def without_itself(x, bases, *, scale=None, causal=False):
    found = subspace_attention(x, bases, scale=scale, causal=causal)
    return found - 0.1 * torch.einsum("...ld,hdk,hek->...le", x, bases, bases)


@right("ista_step", "a threshold by clamping")
def by_clamp(codes, x, dictionary, *, step_size=0.1, sparsity=0.1):
    slope = codes @ (dictionary.T @ dictionary) - x @ dictionary + sparsity
    return (codes - step_size * slope).clamp(min=0)


@wrong("ista_step", "the step starts from zero")
def from_zero(codes, x, dictionary, *, step_size=0.1, sparsity=0.1):
    return ista_step(0 * codes, x, dictionary, step_size=step_size, sparsity=sparsity)


@wrong("ista_step", "an absolute value in place of the clamp")
def folded(codes, x, dictionary, *, step_size=0.1, sparsity=0.1):
    slope = codes @ (dictionary.T @ dictionary) - x @ dictionary + sparsity
    return (codes - step_size * slope).abs()
