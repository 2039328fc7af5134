"""B-splines: piecewise polynomials that overlap, and curves that are weighted sums of them."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..bounds import NonNegativeInt, PositiveInt
from ..errors import argument_error
from ..shapes import checked

__all__ = ["bspline_basis", "fit_spline", "uniform_knots"]


@checked
def uniform_knots(
    grid_size: PositiveInt, degree: NonNegativeInt, low: float = -1.0, high: float = 1.0
) -> Float[Tensor, " n"]:
    """The knots of grid_size equal intervals between low and high, with `degree` more on each side.

    They carry grid_size + degree basis functions.

    Shapes: (grid_size + 2 degree + 1), float64.
    Raises: TypeError or ValueError that name the argument.
    Source: Liu et al. 2024 (KAN).

    >>> uniform_knots(2, 1).tolist()
    [-2.0, -1.0, 0.0, 1.0, 2.0]
    """
    if not low < high:
        raise argument_error(ValueError, "high", high, f"more than low = {low}")
    places = torch.arange(-degree, grid_size + degree + 1, dtype=torch.float64)
    return low + (high - low) / grid_size * places


@checked(any_dtype="knots")
def bspline_basis(
    x: Float[Tensor, "*batch"], knots: Float[Tensor, " n"], degree: NonNegativeInt
) -> Float[Tensor, "*batch m"]:
    """The value of each basis function at x, by the recursion of Cox and de Boor.

    A basis function is not 0 on degree + 1 intervals. Between the outermost `degree` knots of each side all of them
    sum to 1; beyond all knots they are 0. An interval has its left end and not its right one.

    Shapes: x (*batch), knots (n), in rising order -> (*batch, n - 1 - degree).
    Raises: TypeError or ValueError that name the argument.
    Source: de Boor 1978; Liu et al. 2024 (KAN).

    >>> import torch
    >>> bspline_basis(torch.tensor([0.25]), torch.tensor([0.0, 1.0, 2.0, 3.0]), 1)
    tensor([[0.2500, 0.0000]])
    """
    if len(knots) < degree + 2:
        wanted = f"at least {degree + 2} knots, with degree = {degree}"
        raise argument_error(ValueError, "knots", f"{len(knots)}", wanted)
    knots, x = knots.to(x), x[..., None]
    basis = ((x >= knots[:-1]) & (x < knots[1:])).to(x)  # *batch n-1: in which interval x lies
    for p in range(1, degree + 1):
        rising = (x - knots[: -p - 1]) / (knots[p:-1] - knots[: -p - 1])
        falling = (knots[p + 1 :] - x) / (knots[p + 1 :] - knots[1:-p])
        basis = rising * basis[..., :-1] + falling * basis[..., 1:]  # *batch n-1-p
    return basis


@checked(any_dtype="knots")
def fit_spline(
    x: Float[Tensor, " T"],
    y: Float[Tensor, "T F"],
    knots: Float[Tensor, " n"],
    degree: NonNegativeInt,
) -> Float[Tensor, "m F"]:
    """The coefficients of the spline that is nearest to the points, by least squares.

    Shapes: x (T), y (T, F), knots (n) -> (n - 1 - degree, F).
    Raises: TypeError or ValueError that name the argument.
    Source: Liu et al. 2024 (KAN), grid extension.
    """
    basis = bspline_basis(x.double(), knots.double(), degree)  # T m
    return torch.linalg.lstsq(basis, y.double(), driver="gelsd").solution.to(y)
