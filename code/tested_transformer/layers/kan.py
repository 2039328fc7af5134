"""A KAN layer: a curve of its own on every connection, where a linear layer has a number."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..bounds import NonNegativeInt, PositiveInt
from ..functional.splines import bspline_basis, fit_spline, uniform_knots
from ..shapes import checked

__all__ = ["KANFeedForward", "KANLayer"]


class KANLayer(nn.Module):
    """Each output is a sum of curves, one per input: y_j = sum_i (w_ji silu(x_i) + spline_ji(x_i)).

    A spline has grid_size + degree coefficients. Outside [low, high] it falls to 0 within degree intervals;
    beyond them it is 0 and has no gradient, and only the SiLU is left.

    Shapes: (*batch, D) -> (*batch, F).
    Raises: TypeError or ValueError that name the argument.
    Source: Liu et al. 2024 (KAN); KindXiaoming/pykan.
    """

    @checked
    def __init__(
        self,
        in_features: PositiveInt,
        out_features: PositiveInt,
        *,
        grid_size: PositiveInt = 5,
        degree: NonNegativeInt = 3,
        low: float = -1.0,
        high: float = 1.0,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.degree = in_features, out_features, degree
        self.low, self.high = low, high
        knots = uniform_knots(grid_size, degree, low, high)
        self.register_buffer("knots", knots.to(torch.get_default_dtype()))
        self.base = nn.Linear(in_features, out_features, bias=False)
        count = grid_size + degree
        self.coefficients = nn.Parameter(torch.empty(out_features, in_features, count))
        nn.init.normal_(self.coefficients, std=0.1 / count)

    @checked(like="self.coefficients", D="self.in_features")
    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch F"]:
        """All curves at once: the basis functions at every input, times the coefficients."""
        basis = bspline_basis(x, self.knots, self.degree)  # *batch D G+k
        splines = basis.flatten(-2) @ self.coefficients.flatten(1).T  # *batch F
        return self.base(nn.functional.silu(x)) + splines

    @torch.no_grad()
    @checked
    def extend(self, grid_size: PositiveInt) -> KANLayer:
        """The same curves on a finer grid, nearest by least squares: exact if each interval is divided evenly."""
        options = {
            "grid_size": grid_size,
            "degree": self.degree,
            "low": self.low,
            "high": self.high,
        }
        finer = KANLayer(self.in_features, self.out_features, **options).to(self.coefficients)
        finer.base.load_state_dict(self.base.state_dict())
        count = 8 * (grid_size + self.degree)
        width = (self.high - self.low) / count
        x = self.low + width * (torch.arange(count, dtype=torch.float64) + 0.5)  # T
        basis = bspline_basis(x, self.knots.double(), self.degree)  # T G+k
        curves = basis @ self.coefficients.double().flatten(0, 1).T  # T F*D
        fitted = fit_spline(x, curves, finer.knots.double(), self.degree)
        finer.coefficients.copy_(fitted.T.unflatten(0, (self.out_features, self.in_features)))
        return finer


class KANFeedForward(nn.Sequential):
    """Two KAN layers where a Transformer has two linear ones and an activation.

    Shapes: (*batch, D) -> (*batch, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Liu et al. 2024 (KAN).
    """

    @checked
    def __init__(self, d_model: PositiveInt, d_hidden: PositiveInt, **options: float) -> None:
        super().__init__(
            KANLayer(d_model, d_hidden, **options), KANLayer(d_hidden, d_model, **options)
        )
