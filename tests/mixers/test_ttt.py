"""TTT-Linear: the dual form equals gradient descent by autograd; with one token at a time it is the delta rule."""

import pytest
import torch
from torch.nn import functional

from same_numbers import assert_float32_same, assert_same_numbers
from tested_transformer.mixers.ttt import InnerNorm, dual_ttt, primal_ttt
from tested_transformer.specs.judge import judge
from tested_transformer.specs.ttt.spec import TTT_LINEAR

FORMS = {"primal": primal_ttt, "dual": dual_ttt}
EACH = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
EACH_NORM = pytest.mark.parametrize("normed", [False, True])
TOKENS = ("query", "key", "value", "step_size")


def numbers(*shape, seed=1):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def arguments(normed=False, batch=2, heads=3, length=11):
    """Sizes that differ; keys and values have as many features where there is a norm."""
    width = 4 if normed else 5
    given = {
        "query": numbers(batch, heads, length, 4),
        "key": numbers(batch, heads, length, 4, seed=2) / 2,
        "value": numbers(batch, heads, length, width, seed=3),
        "step_size": numbers(batch, heads, length, seed=4).sigmoid() / 2,
        "state": numbers(batch, heads, 4, width, seed=5) / 2,
    }
    if normed:
        given |= {"weight": 1 + numbers(heads, 4, seed=6) / 3, "bias": numbers(heads, 4, seed=7)}
    return given


def call(form, given, **options):
    """With the norm's weights put together."""
    given = dict(given)
    norm = InnerNorm(given.pop("weight"), given.pop("bias")) if "weight" in given else None
    return form(**given, norm=norm, **options)


def runs(form, given, **options):
    """Output, state and every gradient, as a function of a dtype."""

    def run(dtype):
        own = {name: each.clone().to(dtype).requires_grad_() for name, each in given.items()}
        output, state = call(form, own, **options)
        total = (output * numbers(*output.shape, seed=8).to(dtype)).sum()
        total = total + (state * numbers(*state.shape, seed=9).to(dtype)).sum()
        total.backward()
        gradients = [each.grad for each in own.values()]
        return {"output": [output], "state": [state], "gradients": gradients}

    return run


@EACH
def test_the_spec(form):
    verdict = judge(TTT_LINEAR, form, seed=1)
    assert verdict.passed, verdict


@EACH_NORM
@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 11, 16])
def test_the_dual_form_is_the_primal_one(batch_size, normed):
    """Mini-batches that do not divide the length, too; values, states and gradients."""
    given = arguments(normed)
    dual, primal = (runs(form, given, batch_size=batch_size) for form in (dual_ttt, primal_ttt))
    assert_same_numbers(dual, primal)
    assert_float32_same(dual, primal)


@EACH
@EACH_NORM
@pytest.mark.parametrize("batch_size", [1, 4, 16])
def test_it_is_gradient_descent(form, normed, batch_size):
    """Each step by torch.autograd, on the loss as the paper writes it: nothing of the package."""
    given = arguments(normed)
    output, last = call(form, given, batch_size=batch_size)
    weight, bias = given.get("weight"), given.get("bias")

    def model(x, w, h):
        z = x @ w
        if not normed:
            return z
        return x + functional.layer_norm(z, (4,), eps=1e-6) * weight[h] + bias[h]

    for b in range(2):
        for h in range(3):
            w = given["state"][b, h]
            for t in range(11):
                if t % batch_size == 0:
                    start = w.detach().requires_grad_()
                k, v, q, eta = (given[n][b, h, t] for n in ("key", "value", "query", "step_size"))
                loss = (model(k, start, h) - v).square().sum() / 2
                w = w - eta * torch.autograd.grad(loss, start)[0]
                torch.testing.assert_close(output[b, h, t], model(q, w, h))
            torch.testing.assert_close(last[b, h], w)


@EACH
def test_one_token_at_a_time_without_a_norm_is_the_delta_rule(form):
    """S = S + beta k (v - S^T k)^T, in the words of DeltaNet: step_size is beta. Read after the write."""
    given = arguments()
    output, last = call(form, given, batch_size=1)
    state = given["state"]
    for t in range(11):
        k, v, q = (given[n][:, :, t] for n in ("key", "value", "query"))
        old = torch.einsum("bhd,bhdv->bhv", k, state)
        new = given["step_size"][:, :, t, None] * (v - old)
        state = state + torch.einsum("bhd,bhv->bhdv", k, new)
        torch.testing.assert_close(output[:, :, t], torch.einsum("bhd,bhdv->bhv", q, state))
    torch.testing.assert_close(last, state)


@EACH
def test_one_batch_from_nothing_is_linear_attention(form):
    """From W = 0 all errors are -v: the sum of step_size v k^T, as without any correction."""
    given = arguments() | {"state": None}
    output, last = call(form, given, batch_size=11)
    update = (
        given["step_size"][..., None, None] * given["key"][..., None] * given["value"][..., None, :]
    )
    sums = update.cumsum(2)
    torch.testing.assert_close(output, (given["query"][..., None, :] @ sums)[..., 0, :])
    torch.testing.assert_close(last, sums[:, :, -1])


def test_a_key_that_is_read_again_gives_its_new_value():
    """With keys of norm 1 and a step of 1 the delta rule replaces what it remembers; a sum would add."""
    key = torch.tensor([[[[0.6, 0.8], [0.6, 0.8]]]])
    value = torch.tensor([[[[1.0], [5.0]]]])
    ones = torch.ones(1, 1, 2)
    for form in FORMS.values():
        output, _ = form(key, key, value, ones, batch_size=1)
        torch.testing.assert_close(output.flatten(), torch.tensor([1.0, 5.0]))
        together, _ = form(key, key, value, ones, batch_size=2)
        torch.testing.assert_close(together.flatten(), torch.tensor([1.0, 6.0]))


@EACH
@EACH_NORM
def test_a_state_is_handed_on_between_mini_batches(form, normed):
    given = arguments(normed)
    whole, last = call(form, given, batch_size=3)
    state, outputs = given["state"], []
    for part in zip(*(given[n].split(6, 2) for n in TOKENS), strict=True):
        own = given | dict(zip(TOKENS, part, strict=True)) | {"state": state}
        output, state = call(form, own, batch_size=3)
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs, 2), whole)
    torch.testing.assert_close(state, last)


@EACH
def test_a_step_of_zero_skips_a_token(form):
    """Padding on the left, on the right or inside gets a step size of 0; mini-batches count it."""
    given = arguments()
    given["step_size"] = given["step_size"].clone()
    given["step_size"][:, :, 3:5] = 0.0
    other = given | {"key": given["key"].clone(), "value": given["value"].clone()}
    other["key"][:, :, 3:5], other["value"][:, :, 3:5] = 7.0, -7.0
    (found, last), (wanted, state) = (call(form, each, batch_size=4) for each in (other, given))
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(last, state)


@EACH
def test_short_texts(form):
    for length in (0, 1):
        given = arguments(length=length)
        output, state = call(form, given)
        assert output.shape == (2, 3, length, 5)
        assert length or torch.equal(state, given["state"])


@pytest.mark.plain_types
def test_bad_input_is_refused():
    given = arguments()
    norm = InnerNorm(torch.ones(3, 5, dtype=torch.float64), torch.zeros(3, 5, dtype=torch.float64))
    for form in FORMS.values():
        with pytest.raises(ValueError, match="value: expected 4 features, as the keys have"):
            form(**given, norm=norm)
        with pytest.raises(ValueError, match="step_size: expected"):
            form(**given | {"step_size": given["step_size"][..., :3]})
        with pytest.raises(ValueError, match="batch_size: expected at least 1"):
            form(**given, batch_size=0)
        with pytest.raises(ValueError, match="state: expected"):
            form(**given | {"state": given["state"][..., :2]})
