"""Splines and KAN layers: scipy's values and derivatives, the grid's count, extension, and what lies outside."""

from itertools import pairwise

import pytest
import torch

from tested_transformer.functional.splines import bspline_basis, fit_spline, uniform_knots
from tested_transformer.layers.kan import KANFeedForward, KANLayer

F64 = torch.float64
EPS = torch.finfo(F64).eps


def layer(seed=0, **options):
    torch.manual_seed(seed)
    made = KANLayer(3, 2, **options).double()
    made.knots = uniform_knots(
        made.coefficients.shape[-1] - made.degree, made.degree, made.low, made.high
    )
    torch.nn.init.normal_(made.coefficients)
    return made


@pytest.mark.parametrize("degree", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("grid_size", [1, 4, 7])
def test_equal_to_scipy_in_values_and_derivatives(degree, grid_size):
    interpolate = pytest.importorskip("scipy.interpolate")
    knots = uniform_knots(grid_size, degree, -1.0, 2.0)
    x = torch.linspace(-0.999, 1.998, 41, dtype=F64).requires_grad_()
    coefficients = torch.randn(
        grid_size + degree, dtype=F64, generator=torch.Generator().manual_seed(degree)
    )
    ours = bspline_basis(x, knots, degree) @ coefficients
    theirs = interpolate.BSpline(knots.numpy(), coefficients.numpy(), degree, extrapolate=False)
    inside = x.detach().numpy()
    size = float(coefficients.abs().sum())
    bound = 8 * (degree + 1) ** 2 * EPS * size
    torch.testing.assert_close(ours.detach(), torch.from_numpy(theirs(inside)), rtol=0, atol=bound)
    if degree:
        (slope,) = torch.autograd.grad(ours.sum(), x)
        steep = (
            2 * degree * grid_size / 3
        )  # the largest slope of a basis function, in units of its height
        wanted = torch.from_numpy(theirs.derivative()(inside))
        torch.testing.assert_close(slope, wanted, rtol=0, atol=2 * steep * bound)


@pytest.mark.parametrize(("grid_size", "degree"), [(5, 3), (1, 0), (10, 2)])
def test_a_curve_has_grid_size_plus_degree_coefficients(grid_size, degree):
    made = KANLayer(3, 2, grid_size=grid_size, degree=degree)
    assert made.coefficients.shape == (2, 3, grid_size + degree)
    basis = bspline_basis(torch.zeros(1), made.knots, degree)
    assert basis.shape == (1, grid_size + degree)


def test_outside_the_grid_the_spline_ends():
    """At 1.25 of a grid on [-1, 1] some basis functions of degree 3 are left; beyond degree intervals none."""
    made = layer(grid_size=5, degree=3)
    last = float(made.knots[-1])
    assert last == pytest.approx(1 + 3 * 0.4)
    far = torch.full((1, 3), last + 0.1, dtype=F64)
    silu = torch.nn.functional.silu(far) @ made.base.weight.T
    assert torch.equal(made(far), silu)
    near = torch.full((1, 3), 1.25, dtype=F64)
    basis = bspline_basis(near, made.knots, 3)
    assert 0 < float(basis[0, 0].sum().detach()) < 1
    plain = layer(grid_size=5, degree=0)
    assert not bspline_basis(near, plain.knots, 0).any()


@pytest.mark.parametrize("factor", [2, 3])
def test_extending_the_grid_evenly_changes_nothing_inside(factor):
    """A spline on a grid is one on every grid that divides it."""
    made = layer(1, grid_size=4, degree=3)
    finer = made.extend(4 * factor)
    finer.knots = uniform_knots(4 * factor, 3)
    x = 2 * torch.rand(50, 3, dtype=F64, generator=torch.Generator().manual_seed(2)) - 1
    torch.testing.assert_close(
        finer(x), made(x), rtol=0, atol=1e-7
    )  # the condition of least squares
    assert finer.coefficients.shape == (2, 3, 4 * factor + 3)


def test_a_finer_grid_fits_better():
    """The error of cubic splines falls by nearly 16 where intervals are halved."""
    x = torch.linspace(-0.999, 0.999, 400, dtype=F64)
    y = torch.sin(3 * x)[:, None]
    errors = []
    for grid_size in (4, 8, 16):
        knots = uniform_knots(grid_size, 3)
        fitted = bspline_basis(x, knots, 3) @ fit_spline(x, y, knots, 3)
        errors.append(float((fitted - y).abs().max()))
    for coarse, fine in pairwise(errors):
        assert 10 < coarse / fine < 24


def test_every_parameter_gets_a_gradient():
    torch.manual_seed(0)
    network = KANFeedForward(4, 6, grid_size=3, degree=2)
    network(torch.rand(200, 4) * 2 - 1).square().sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in network.parameters())


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: uniform_knots(0, 3), "grid_size: expected at least 1"),
        (lambda: uniform_knots(3, -1), "degree: expected at least 0"),
        (lambda: uniform_knots(3, 1, 1.0, 1.0), "high: expected more than low"),
        (lambda: bspline_basis(torch.zeros(2), torch.zeros(4), 3), "knots: expected at least 5"),
        (lambda: KANLayer(3, 2)(torch.zeros(2, 4)), "x: expected"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
