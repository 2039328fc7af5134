"""B-splines and KAN layers: the package's, the recursion by hand, the layer as a loop of curves."""

import torch
from torch.nn import functional

from answers import right, wrong
from tested_transformer.functional.splines import bspline_basis
from tested_transformer.layers.kan import KANLayer

right("bspline_basis", "the package's")(bspline_basis)


@right("bspline_basis", "one basis function after the other")
def one_by_one(x, knots, degree):
    def bump(i, p):
        if p == 0:
            return ((x >= knots[i]) & (x < knots[i + 1])).to(x)
        rising = (x - knots[i]) / (knots[i + p] - knots[i])
        falling = (knots[i + p + 1] - x) / (knots[i + p + 1] - knots[i + 1])
        return rising * bump(i, p - 1) + falling * bump(i + 1, p - 1)

    return torch.stack([bump(i, degree) for i in range(len(knots) - 1 - degree)], -1)


@wrong("bspline_basis", "basis functions divided by their sum, also beyond the grid")
def divided(x, knots, degree):
    basis = bspline_basis(x, knots, degree)
    return basis / basis.sum(-1, keepdim=True).clamp(min=1e-3)


@wrong("bspline_basis", "the mirror image of the grid")
def mirrored(x, knots, degree):
    return bspline_basis(-x, -knots.flip(0), degree)


@right("kan_layer", "the package's layer")
def by_the_package(x, base, coefficients, knots, degree):
    layer = KANLayer(base.shape[1], len(base), grid_size=len(knots) - 1 - 2 * degree, degree=degree)
    layer.to(x.dtype)
    layer.knots = knots
    state = {"base.weight": base, "coefficients": coefficients, "knots": knots}
    return torch.func.functional_call(layer, state, (x,))


@right("kan_layer", "input after input")
def by_inputs(x, base, coefficients, knots, degree):
    output = functional.linear(functional.silu(x), base)
    for i in range(x.shape[-1]):
        output = output + bspline_basis(x[..., i], knots, degree) @ coefficients[:, i].T
    return output


@wrong("kan_layer", "splines of SiLU")
def splines_of_silu(x, base, coefficients, knots, degree):
    return by_inputs(functional.silu(x), base, coefficients, knots, degree)
