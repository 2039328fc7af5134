"""The famous mistakes with splines: a basis function too few, sides exchanged, edges that end too early."""

from __future__ import annotations

import torch
from torch.nn import functional

from ..mistakes import Formula, mistake


class BasisFormula(Formula):
    """The right recursion, cut into the steps that the mutants replace one at a time."""

    def __call__(self, x, knots, degree):
        """From intervals to basis functions."""
        basis = self.intervals(x[..., None], knots)
        for p in range(1, self.steps(degree) + 1):
            rising, falling = self.sides(x[..., None], knots, p)
            basis = rising * basis[..., :-1] + falling * basis[..., 1:]
        return basis

    def intervals(self, x, knots):
        """1 where x lies."""
        return ((x >= knots[:-1]) & (x < knots[1:])).to(x)

    def steps(self, degree):
        """Of the recursion."""
        return degree

    def sides(self, x, knots, p):
        """What the left and the right basis function are multiplied by."""
        rising = (x - knots[: -p - 1]) / (knots[p:-1] - knots[: -p - 1])
        falling = (knots[p + 1 :] - x) / (knots[p + 1 :] - knots[1:-p])
        return rising, falling


@mistake(
    "the order taken for the degree",
    rejected_by="the right shape and dtype",
    symptom="G + k - 1 coefficients per curve, and curves with kinks.",
    cause="A spline of order k has degree k - 1. KAN's k is the degree.",
    seen="KindXiaoming/pykan issue 361",
    of="bspline_basis",
)
class OrderForDegree(BasisFormula):
    def __call__(self, x, knots, degree):
        return super().__call__(x, knots, max(degree - 1, 0))


@mistake(
    "the two sides exchanged",
    rejected_by="the basis functions sum to 1",
    symptom="Basis functions turned inside out: large at their ends.",
    cause="The left basis function falls and the right one rises, where the opposite is meant.",
    of="bspline_basis",
)
class SidesExchanged(BasisFormula):
    def sides(self, x, knots, p):
        return super().sides(x, knots, p)[::-1]


@mistake(
    "x clamped to the grid",
    rejected_by="beyond all knots there is nothing",
    symptom="Curves go on flat outside of the grid; pykan's fall to 0 there.",
    cause="x is clamped to the ends of the grid before the recursion.",
    of="bspline_basis",
)
class Clamped(BasisFormula):
    def __call__(self, x, knots, degree):
        low, high = knots[degree], knots[-degree - 1]
        inside = x.clamp(low, high - 1e-6 * (high - low))
        return super().__call__(inside, knots, degree)


@mistake(
    "a knot belongs to both intervals",
    rejected_by="the basis functions sum to 1",
    symptom="Spikes exactly at the grid points: both intervals count.",
    cause="Less or equal on both sides; an interval has its left end alone.",
    of="bspline_basis",
)
class BothEnds(BasisFormula):
    def intervals(self, x, knots):
        return ((x >= knots[:-1]) & (x <= knots[1:])).to(x)


@mistake(
    "the width of one interval at every step",
    rejected_by="the basis functions sum to 1",
    symptom="Basis functions too large by the factorial of the degree.",
    cause="At step p a basis function rises over p intervals, not over one.",
    of="bspline_basis",
)
class OneInterval(BasisFormula):
    def sides(self, x, knots, p):
        rising = (x - knots[: -p - 1]) / (knots[1:-p] - knots[: -p - 1])
        falling = (knots[p + 1 :] - x) / (knots[p + 1 :] - knots[p:-1])
        return rising, falling


# --- The layer ------------------------------------------------------------------------------------


class LayerFormula(Formula):
    """The right layer, cut into the steps that the mutants replace one at a time."""

    def __call__(self, x, base, coefficients, knots, degree):
        """SiLU and splines."""
        basis = BasisFormula()(x, knots, degree)  # *batch D m
        return self.silu(x) @ base.T + self.splines(basis, coefficients)

    def silu(self, x):
        """The part without a grid."""
        return functional.silu(x)

    def splines(self, basis, coefficients):
        """Each input has curves of its own."""
        return torch.einsum("...im,jim->...j", basis, coefficients)


@mistake(
    "no SiLU beside the splines",
    rejected_by="outside the grid the SiLU is left",
    symptom="A token beyond the grid gives 0 and gets no gradient: it never comes back.",
    cause="The residual activation is left out.",
    of="kan_layer",
)
class NoBase(LayerFormula):
    def silu(self, x):
        return 0 * x


@mistake(
    "x itself in place of SiLU",
    rejected_by="outside the grid the SiLU is left",
    symptom="Other numbers than pykan's, the more the more negative x is.",
    cause="The part without a grid is w silu(x).",
    of="kan_layer",
)
class IdentityBase(LayerFormula):
    def silu(self, x):
        return x


@mistake(
    "one curve for all inputs of an output",
    rejected_by="equals the reference",
    symptom="Far fewer functions can be learned: this is a sum of one curve.",
    cause="The coefficients are averaged over the inputs by a wrong einsum.",
    of="kan_layer",
)
class SharedCurve(LayerFormula):
    def splines(self, basis, coefficients):
        return torch.einsum("...im,jm->...j", basis, coefficients.mean(1))
