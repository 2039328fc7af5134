"""Diagonal state spaces: the recurrence is the convolution, and both are an integral of the exact kernel."""

import math

import pytest
import torch

from same_numbers import EPS, flat, largest
from tested_transformer.mixers.state_space import (
    convolved_state_space,
    recurrent_state_space,
    s4d_lin,
    state_space_kernel,
)

FORMS = {"recurrent": recurrent_state_space, "convolved": convolved_state_space}
EACH = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
EACH_METHOD = pytest.mark.parametrize("method", ["zoh", "euler"])


def numbers(*shape, seed=1, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def arguments(batch=2, length=7, features=3, states=4):
    wide = torch.complex128
    return {
        "x": numbers(batch, length, features),
        "delta": numbers(features, seed=2).exp() / 4,
        "a": s4d_lin(features, states).to(wide),
        "b": numbers(features, states, seed=3, dtype=wide),
        "c": numbers(features, states, seed=4, dtype=wide),
        "skip": numbers(features, seed=5),
        "state": numbers(batch, features, states, seed=6, dtype=wide),
    }


def answers(form, given, **options):
    """Output, state, gradients by everything."""
    given = {name: each.clone().requires_grad_() for name, each in given.items()}
    output, state = form(**given, **options)
    total = (output * numbers(*output.shape, seed=7)).sum()
    total = total + (state * numbers(*state.shape, seed=8, dtype=state.dtype)).real.sum()
    return [output, state, *torch.autograd.grad(total, given.values())]


@EACH_METHOD
@pytest.mark.parametrize("length", [1, 2, 7, 64])
def test_the_recurrence_is_a_convolution(length, method):
    given = arguments(length=length)
    ours, theirs = (answers(form, given, method=method) for form in FORMS.values())
    for found, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


@EACH
def test_a_state_is_handed_on(form):
    given = arguments()
    whole, last = form(**given)
    state, outputs = given["state"], []
    for part in given["x"].split(3, 1):
        output, state = form(**given | {"x": part, "state": state})
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs, 1), whole)
    torch.testing.assert_close(state, last)
    output, state = form(**given | {"x": given["x"][:, :0]})
    assert output.shape == (2, 0, 3)
    assert torch.equal(state, given["state"])


@EACH
def test_a_held_input_is_solved_exactly(form):
    """y(t) of a constant input of 1: the integral of 2 Re(c b exp(a s)) over s from 0 to t, in closed form."""
    given = arguments(length=5, states=2)
    given |= {"x": torch.ones_like(given["x"]), "skip": None, "state": None}
    output, _ = form(**given)
    for feature in range(3):
        a, b, c = (given[n][feature] for n in ("a", "b", "c"))
        for step in range(1, 6):
            time = step * given["delta"][feature]
            wanted = 2 * (c * b * ((a * time).exp() - 1) / a).sum().real
            torch.testing.assert_close(output[:, step - 1, feature], wanted.expand(2))


def test_the_kernel_is_the_answer_to_one_token():
    given = arguments(length=9) | {"skip": None, "state": None}
    given["x"] = torch.zeros_like(given["x"])
    given["x"][:, 0] = 1.0
    kernel = state_space_kernel(9, *(given[n] for n in ("delta", "a", "b", "c")))
    for form in FORMS.values():
        torch.testing.assert_close(form(**given)[0], kernel.mT.expand(2, -1, -1))


def test_the_end_does_not_wrap_around_to_the_beginning():
    """Without the doubled length the FFT convolves in a circle: the last token would reach the first."""
    given = arguments(length=8) | {"state": None}
    before = convolved_state_space(**given)[0]
    given["x"] = given["x"].clone()
    given["x"][:, -1] += 100.0
    after = convolved_state_space(**given)[0]
    rounded = 64 * math.log2(16) * EPS[torch.float64] * largest(flat([after]))
    assert largest(flat([after[:, :-1] - before[:, :-1]])) <= rounded


def test_the_initial_frequencies():
    found = s4d_lin(2, 3)
    assert torch.equal(found.real, torch.full((2, 3), -0.5))
    torch.testing.assert_close(found.imag[1], math.pi * torch.arange(3.0))


@pytest.mark.plain_types
def test_bad_input_is_refused():
    given = arguments()
    with pytest.raises(TypeError, match="a: expected a complex dtype"):
        recurrent_state_space(**given | {"a": given["a"].real})
    with pytest.raises(ValueError, match="delta: expected"):
        convolved_state_space(**given | {"delta": given["delta"][:2]})
    with pytest.raises(ValueError, match="length: expected at least 1"):
        state_space_kernel(0, *(given[n] for n in ("delta", "a", "b", "c")))
    with pytest.raises(ValueError, match="num_states: expected at least 1"):
        s4d_lin(2, 0)
