"""Best of n: sample n answers, keep the one with the highest score."""

from __future__ import annotations

import math

from jaxtyping import Float
from torch import Tensor

from ..bounds import PositiveInt
from ..errors import argument_error
from ..shapes import checked

__all__ = ["best_of_n_mean"]


@checked(nonempty="N")
def best_of_n_mean(
    scores: Float[Tensor, "*batch N"],
    utilities: Float[Tensor, "*batch N"],
    n: PositiveInt,
) -> Float[Tensor, " *batch"]:
    """The mean utility of the answer with the highest score, over all ways to take n of N answers.

    Exact, without sampling: sorted by score, the answer of rank r (0 is the best) is kept by C(N - 1 - r,
    n - 1) of the C(N, n) choices. Among equal scores the earlier answer ranks higher. n = 1 is the mean of
    all, n = N the utility of the best.

    Shapes: scores and utilities (*batch, N) -> (*batch).
    Raises: TypeError or ValueError that name the argument.
    Source: best-of-n as in Nakano et al. 2021 (WebGPT); the count as in Chen et al. 2021 (pass@k).

    >>> import torch
    >>> best_of_n_mean(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([0.0, 1.0, 1.0]), 2)
    tensor(0.3333)
    """
    total = scores.shape[-1]
    if n > total:
        raise argument_error(ValueError, "n", n, f"at most {total}, the number of answers")
    order = scores.argsort(dim=-1, descending=True, stable=True)
    chances = [math.comb(total - 1 - rank, n - 1) / math.comb(total, n) for rank in range(total)]
    return utilities.gather(-1, order) @ utilities.new_tensor(chances)
