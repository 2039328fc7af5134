"""The slow truth of B-splines: the recursion, number by number."""

from __future__ import annotations

import numpy as np

from .attention import _wide


def bump(x, knots, number, degree):
    """The value of one basis function at one x. Source: de Boor 1978."""
    if degree == 0:
        return 1.0 * (knots[number] <= x < knots[number + 1])
    left, right = knots[number], knots[number + degree + 1]
    rising = (x - left) / (knots[number + degree] - left)
    falling = (right - x) / (right - knots[number + 1])
    before, after = bump(x, knots, number, degree - 1), bump(x, knots, number + 1, degree - 1)
    return rising * before + falling * after


def bspline_basis(x, knots, degree):
    """Every basis function at every x. Shapes: x (*batch), knots (n) -> (*batch, n - 1 - degree)."""
    x, knots = _wide(x), _wide(knots)
    values = np.zeros((*x.shape, len(knots) - 1 - degree), x.dtype)
    for *place, number in np.ndindex(values.shape):
        values[(*place, number)] = bump(x[tuple(place)], knots, number, degree)
    return values


def kan_layer(x, base, coefficients, knots, degree):
    """For each output the sum over the inputs of w silu(x) and of a spline. Shapes: x (*batch, D), base (F, D),
    coefficients (F, D, m), knots (n) -> (*batch, F). Source: KAN."""
    x, base, coefficients, knots = map(_wide, (x, base, coefficients, knots))
    output = np.zeros((*x.shape[:-1], len(base)), x.dtype)
    for *token, j in np.ndindex(output.shape):
        for i, number in enumerate(x[tuple(token)]):
            basis = [bump(number, knots, m, degree) for m in range(coefficients.shape[-1])]
            spline = sum(c * b for c, b in zip(coefficients[j, i], basis, strict=True))
            output[(*token, j)] += base[j, i] * number / (1 + np.exp(-number)) + spline
    return output
