"""The objective behind CRATE: what a token costs to code, attention that lowers it, and a step to sparse codes."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from ..bounds import AtLeast, PositiveFloat
from ..shapes import checked
from .attention import attention

__all__ = [
    "coding_rate",
    "coding_rate_gradient",
    "ista_step",
    "lasso_objective",
    "subspace_attention",
    "subspace_coding_rate",
]

NonNegativeFloat = Annotated[float, AtLeast(0.0)]


@checked
def coding_rate(x: Float[Tensor, "*batch L D"], eps: PositiveFloat) -> Float[Tensor, "*batch"]:
    """What one of L tokens costs to code up to an error of eps: 1/2 log det(I + D / (L eps^2) x^T x), in nats.

    Large for tokens that point in all directions, small for tokens in few.

    Shapes: (*batch, L, D) -> (*batch). In at least float32.
    Raises: TypeError or ValueError that name the argument.
    Source: Yu et al. 2023 (CRATE); Ma et al. 2007.

    >>> import torch
    >>> coding_rate(torch.eye(2), eps=1.0)  # twice log(1 + 1), halved
    tensor(0.6931)
    """
    length, width = x.shape[-2:]
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    smaller = wide if length < width else wide.mT  # both Gram matrices have the same determinant
    gram = smaller @ smaller.mT * (width / (max(length, 1) * eps**2))
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    factor = torch.linalg.cholesky(identity + gram)
    return factor.diagonal(dim1=-2, dim2=-1).log().sum(-1).to(x.dtype)


@checked
def subspace_coding_rate(
    x: Float[Tensor, "*batch L D"], bases: Float[Tensor, "H D d"], eps: PositiveFloat
) -> Float[Tensor, "*batch"]:
    """What a token costs if H coders share the work: the coding rates of x U_h, added up.

    Shapes: x (*batch, L, D), bases U (H, D, d) -> (*batch).
    Raises: TypeError or ValueError that name the argument.
    Source: Yu et al. 2023 (CRATE).
    """
    return coding_rate(_heads(x, bases), eps).sum(-1)


@checked
def coding_rate_gradient(
    x: Float[Tensor, "*batch L D"], bases: Float[Tensor, "H D d"], eps: PositiveFloat
) -> Float[Tensor, "*batch L D"]:
    """The gradient of `subspace_coding_rate` with respect to x, in closed form.

    With y = x U_h and a = d / (L eps^2) a head contributes a (I + a y y^T)^-1 y U_h^T. Without the
    inverse it would only scale x; the inverse holds the dot products of tokens that attention has.

    Shapes: x (*batch, L, D), bases (H, D, d) -> (*batch, L, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Yu et al. 2023 (CRATE).
    """
    heads = _heads(x, bases)  # *batch H L d
    wide = heads.to(torch.promote_types(x.dtype, torch.float32))
    length, size = wide.shape[-2:]
    factor = size / (max(length, 1) * eps**2)
    identity = torch.eye(length, dtype=wide.dtype, device=wide.device)
    solved = torch.linalg.solve(identity + factor * wide @ wide.mT, factor * wide)
    return (solved.to(x.dtype) @ bases.mT).sum(-3)  # *batch L D


@checked
def subspace_attention(
    x: Float[Tensor, "*batch L D"],
    bases: Float[Tensor, "H D d"],
    *,
    scale: float | None = None,
    causal: bool = False,
) -> Float[Tensor, "*batch L D"]:
    """Attention whose queries, keys and values are the same projection: the sum of softmax(y y^T) y U_h^T.

    y is x U_h. scale multiplies the dot products, 1 / sqrt(d) by default, as in CRATE's code; the paper
    has 1.

    Shapes: x (*batch, L, D), bases (H, D, d) -> (*batch, L, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Yu et al. 2023 (CRATE), MSSA; Ma-Lab-Berkeley/CRATE, model/crate.py.
    """
    heads = _heads(x, bases)  # *batch H L d
    attended = attention(heads, heads, heads, scale=scale, causal=causal)
    return (attended @ bases.mT).sum(-3)


@checked
def ista_step(
    codes: Float[Tensor, "*batch F"],
    x: Float[Tensor, "*batch D"],
    dictionary: Float[Tensor, "D F"],
    *,
    step_size: PositiveFloat = 0.1,
    sparsity: NonNegativeFloat = 0.1,
) -> Float[Tensor, "*batch F"]:
    """One step of ISTA towards non-negative sparse codes: a gradient step, then shrink and clamp at 0.

    codes of no negative number cost less afterwards, by `lasso_objective`, or the same, if step_size is
    at most 1 / the largest eigenvalue of dictionary^T dictionary.

    Shapes: codes (*batch, F), x (*batch, D), dictionary (D, F) -> (*batch, F).
    Raises: TypeError or ValueError that name the argument.
    Source: Beck and Teboulle 2009; Yu et al. 2023 (CRATE).

    >>> import torch
    >>> ista_step(torch.zeros(2), torch.tensor([3.0, 0.5]), torch.eye(2), step_size=0.5, sparsity=1.0)
    tensor([1., 0.])
    """
    residual = x - codes @ dictionary.mT  # *batch D: what the codes leave unexplained
    moved = codes + step_size * residual @ dictionary  # *batch F
    return torch.relu(moved - step_size * sparsity)


@checked
def lasso_objective(
    codes: Float[Tensor, "*batch F"],
    x: Float[Tensor, "*batch D"],
    dictionary: Float[Tensor, "D F"],
    *,
    sparsity: NonNegativeFloat = 0.1,
) -> Float[Tensor, "*batch"]:
    """Half the squared error of x, plus sparsity times the sum of |codes|.

    Shapes: codes (*batch, F), x (*batch, D), dictionary (D, F) -> (*batch).
    Raises: TypeError or ValueError that name the argument.
    Source: Tibshirani 1996.
    """
    residual = x - codes @ dictionary.mT
    return residual.square().sum(-1) / 2 + sparsity * codes.abs().sum(-1)


def _heads(x: Float[Tensor, "*batch L D"], bases: Float[Tensor, "H D d"]) -> Tensor:
    """x in each subspace. Shapes: (*batch, H, L, d)."""
    return x.unsqueeze(-3) @ bases
