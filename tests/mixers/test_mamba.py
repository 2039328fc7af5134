"""Selective state spaces: forms that are one function, both discretizations, transformers' scans, padding."""

import numpy as np
import pytest
import torch

from same_numbers import assert_float32_same, assert_same_numbers
from tested_transformer.mixers.mamba import (
    associative_scan,
    chunked_selective_scan,
    parallel_selective_scan,
    recurrent_selective_scan,
)
from tested_transformer.mixers.mamba2 import chunked_ssd, parallel_ssd, recurrent_ssd
from tested_transformer.mixers.state_space import discretize
from tested_transformer.specs.judge import judge
from tested_transformer.specs.state_spaces.spec import SELECTIVE_SCAN
from tested_transformer.specs.state_spaces.spec import SSD as SSD_SPEC

SCANS = {
    "parallel": parallel_selective_scan,
    "recurrent": recurrent_selective_scan,
    "chunked": chunked_selective_scan,
}
SSD = {"parallel": parallel_ssd, "recurrent": recurrent_ssd, "chunked": chunked_ssd}
EACH_SCAN = pytest.mark.parametrize("form", SCANS.values(), ids=SCANS)
EACH_SSD = pytest.mark.parametrize("form", SSD.values(), ids=SSD)
EACH_METHOD = pytest.mark.parametrize("method", ["zoh", "euler"])


def numbers(*shape, seed=1):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def scan_arguments(batch=2, length=7, features=3, states=4):
    """x, delta, a, b, c, skip, state: all sizes different."""
    return {
        "x": numbers(batch, length, features),
        "delta": numbers(batch, length, features, seed=2).exp() / 2,
        "a": -numbers(features, states, seed=3).exp(),
        "b": numbers(batch, length, states, seed=4),
        "c": numbers(batch, length, states, seed=5),
        "skip": numbers(features, seed=6),
        "state": numbers(batch, features, states, seed=7),
    }


def ssd_arguments(batch=2, heads=6, groups=3, length=7, width=5, states=4):
    return {
        "x": numbers(batch, heads, length, width),
        "delta": numbers(batch, heads, length, seed=2).exp() / 2,
        "a": -numbers(heads, seed=3).exp(),
        "b": numbers(batch, groups, length, states, seed=4),
        "c": numbers(batch, groups, length, states, seed=5),
        "skip": numbers(heads, seed=6),
        "state": numbers(batch, heads, states, width, seed=7),
    }


def runs(form, arguments, **options):
    """Output, state and every gradient, as a function of a dtype."""

    def run(dtype):
        given = {name: each.clone().to(dtype).requires_grad_() for name, each in arguments.items()}
        output, state = form(**given, **options)
        total = (output * numbers(*output.shape, seed=8).to(dtype)).sum()
        total = total + (state * numbers(*state.shape, seed=9).to(dtype)).sum()
        total.backward()
        gradients = [each.grad for each in given.values()]
        return {"output": [output], "state": [state], "gradients": gradients}

    return run


@EACH_SCAN
def test_the_spec_of_the_scan(form):
    verdict = judge(SELECTIVE_SCAN, form, seed=1)
    assert verdict.passed, verdict


@EACH_SSD
def test_the_spec_of_ssd(form):
    verdict = judge(SSD_SPEC, form, seed=1)
    assert verdict.passed, verdict


# --- Discretization -------------------------------------------------------------------------------


def test_zero_order_hold_is_the_exact_solution():
    """Against many small steps of the differential equation, by the midpoint rule: error O(step^2)."""
    a, b, delta, steps = -0.7, 1.3, 0.9, 20_000
    h, step = 0.0, delta / steps
    for _ in range(steps):
        middle = h + step / 2 * (a * h + b)
        h += step * (a * middle + b)
    given = torch.tensor([delta, a, b], dtype=torch.float64)
    assert float(discretize(*given)[1]) == pytest.approx(h, abs=step**2)
    assert float(discretize(*given, method="euler")[1]) == delta * b


def test_the_two_differ_by_half_of_delta_squared():
    """b_bar: delta b (1 + delta a / 2 + ...) against delta b. Half of delta gives a quarter of the difference."""
    a, b = torch.tensor([-0.7, 1.3], dtype=torch.float64)
    for delta in (2.0**-6, 2.0**-12):
        given = torch.tensor([delta, delta / 2], dtype=torch.float64)
        far = discretize(given, a, b, method="zoh")[1] - discretize(given, a, b, method="euler")[1]
        assert float(far[0]) == pytest.approx(float(a * b) * delta**2 / 2, rel=delta)
        assert float(far[0] / far[1]) == pytest.approx(4.0, rel=delta)


@pytest.mark.parametrize("z", [0.0, 1e-18, -1e-12, -1e-4, -0.0999, -0.1001, 0.1, -3.0, -50.0])
def test_the_hold_has_exact_gradients_near_zero(z):
    """d/dz of (exp(z) - 1) / z, against a quotient in 60 digits; 1/2 at 0."""
    import mpmath

    mpmath.mp.dps = 60
    delta = torch.tensor(z, dtype=torch.float64, requires_grad=True)
    one = torch.ones((), dtype=torch.float64)
    value = discretize(one, delta, one)[1]
    value.backward()
    x = mpmath.mpf(z)
    wanted = (mpmath.expm1(x) / x, (x * mpmath.exp(x) - mpmath.expm1(x)) / x**2) if z else (1, 0.5)
    eps = torch.finfo(torch.float64).eps  # the quotient cancels by a factor of at most 1 / 0.1
    assert float(value.detach()) == pytest.approx(float(wanted[0]), rel=16 * eps)
    assert float(delta.grad) == pytest.approx(float(wanted[1]), rel=200 * eps)


# --- Equal forms ----------------------------------------------------------------------------------


@EACH_METHOD
@pytest.mark.parametrize("chunk_size", [1, 2, 3, 6, 7, 8, 100])
def test_scans_in_chunks_of_any_size_and_their_gradients(chunk_size, method):
    given = scan_arguments()
    chunked = runs(chunked_selective_scan, given, chunk_size=chunk_size, method=method)
    for other in (recurrent_selective_scan, parallel_selective_scan):
        assert_same_numbers(chunked, runs(other, given, method=method))
        assert_float32_same(chunked, runs(other, given, method=method))


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 6, 7, 8, 100])
def test_ssd_in_chunks_of_any_size_and_its_gradients(chunk_size):
    given = ssd_arguments()
    chunked = runs(chunked_ssd, given, chunk_size=chunk_size)
    for other in (recurrent_ssd, parallel_ssd):
        assert_same_numbers(chunked, runs(other, given))
        assert_float32_same(chunked, runs(other, given))


@pytest.mark.parametrize("length", [0, 1, 2, 5, 8, 13])
def test_the_scan_composes_every_prefix(length):
    decay, update = numbers(2, length, 3).tanh(), numbers(2, length, 3, seed=2)
    decay = torch.where(decay.abs() < 0.3, torch.zeros_like(decay), decay)  # nothing is divided
    found = associative_scan(decay, update)
    h, start = [], numbers(2, 3, seed=3)
    for t in range(length):
        h.append(decay[:, t] * (h[-1] if h else start) + update[:, t])
    if h:
        torch.testing.assert_close(found[0] * start[:, None] + found[1], torch.stack(h, 1))
    assert found[0].shape == decay.shape


@EACH_SCAN
def test_a_scan_hands_on_its_state(form):
    given = scan_arguments()
    whole, last = form(**given)
    state, outputs = given["state"], []
    for places in (slice(0, 3), slice(3, 4), slice(4, 7)):
        part = {n: e[:, places] if n in ("x", "delta", "b", "c") else e for n, e in given.items()}
        output, state = form(**part | {"state": state})
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs, 1), whole)
    torch.testing.assert_close(state, last)


@EACH_SSD
def test_ssd_hands_on_its_state(form):
    given = ssd_arguments()
    whole, last = form(**given)
    state, outputs = given["state"], []
    for places in (slice(0, 3), slice(3, 4), slice(4, 7)):
        cut = ("x", "delta", "b", "c")
        part = {n: e[:, :, places] if n in cut else e for n, e in given.items()}
        output, state = form(**part | {"state": state})
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs, 2), whole)
    torch.testing.assert_close(state, last)


@EACH_SSD
def test_one_decay_per_head_is_a_selective_scan_with_equal_decays(form):
    """Mamba-2 is Mamba whose a is one number per head and whose delta is one per head and token."""
    given = ssd_arguments()
    output, state = form(**given)
    for head in range(6):
        x, group = given["x"][:, head], head // 2  # B L d
        scanned, last = recurrent_selective_scan(
            x, given["delta"][:, head, :, None].expand_as(x), given["a"][head].expand(5, 4),
            given["b"][:, group], given["c"][:, group], skip=given["skip"][head].expand(5),
            state=given["state"][:, head].mT,
        )  # fmt: skip
        torch.testing.assert_close(output[:, head], scanned)
        torch.testing.assert_close(state[:, head].mT, last)


def test_ssd_is_attention_with_a_semiseparable_mask():
    """The matrix itself, entry by entry: c_i . b_j times the decays between times delta_j."""
    given = ssd_arguments()
    given.pop("state")
    output, _ = parallel_ssd(**given | {"skip": None})
    for head in range(6):
        matrix = torch.zeros(2, 7, 7, dtype=torch.float64)
        delta, c, b = given["delta"][:, head], given["c"][:, head // 2], given["b"][:, head // 2]
        for i in range(7):
            for j in range(i + 1):
                between = (delta[:, j + 1 : i + 1].sum(1) * given["a"][head]).exp()
                matrix[:, i, j] = (c[:, i] * b[:, j]).sum(-1) * between * delta[:, j]
        torch.testing.assert_close(output[:, head], matrix @ given["x"][:, head])
        for i in range(
            1, 7
        ):  # every block below the diagonal has rank N at most; without c and b, 1
            decays = (matrix / (c @ b.mT))[:, i:, :i]
            assert int(torch.linalg.matrix_rank(decays, rtol=1e-9).max()) == 1


# --- Equal to transformers ------------------------------------------------------------------------


@EACH_SCAN
@pytest.mark.parametrize("seed", range(2))
def test_equal_to_transformers_selective_scan(form, seed):
    """In float32, which theirs goes through, and with its gradients: euler, not the paper's zoh."""
    hf = pytest.importorskip("transformers.models.mamba.modeling_mamba")
    given = scan_arguments(length=9 + seed)
    given.pop("state")

    def theirs(x, delta, a, b, c, skip):
        y, state = hf.mamba_selective_scan(
            x.mT, delta.mT, a, b.mT, c.mT, D=skip, return_last_state=True
        )
        return y.mT, state

    assert_float32_same(runs(form, given), runs(theirs, given))


@EACH_SSD
@pytest.mark.parametrize("chunk", [4, 16])
def test_equal_to_transformers_chunk_scan(form, chunk):
    hf = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")
    given = ssd_arguments(length=9)

    def theirs(x, delta, a, b, c, skip, state):
        y, last = hf.mamba2_chunk_scan(
            x.transpose(1, 2), delta.transpose(1, 2), a, b.transpose(1, 2), c.transpose(1, 2),
            chunk_size=chunk, D=skip, initial_states=state.mT, return_final_states=True,
        )  # fmt: skip
        return y.transpose(1, 2), last.mT

    assert_float32_same(runs(form, given), runs(theirs, given))


# --- Padding, numbers of any size, bad input ------------------------------------------------------


@EACH_SCAN
@pytest.mark.parametrize("places", [slice(0, 3), slice(4, None), slice(2, 5)])
def test_padding_takes_no_step(form, places):
    given, real = scan_arguments(), torch.ones(2, 7, dtype=torch.bool)
    real[1, places] = False
    output, state = form(**given, real=real)
    one = {n: e[1:] if n not in ("a", "skip") else e for n, e in given.items()}
    kept = {n: e[:, real[1]] if n in ("x", "delta", "b", "c") else e for n, e in one.items()}
    alone, last = form(**kept)
    torch.testing.assert_close(output[1:, real[1]], alone)
    torch.testing.assert_close(state[1:], last)


@EACH_SSD
@pytest.mark.parametrize("places", [slice(0, 3), slice(4, None), slice(2, 5)])
def test_padding_takes_no_step_in_ssd(form, places):
    given, real = ssd_arguments(), torch.ones(2, 7, dtype=torch.bool)
    real[1, places] = False
    output, state = form(**given, real=real)
    one = {n: e[1:] if n not in ("a", "skip") else e for n, e in given.items()}
    kept = {n: e[:, :, real[1]] if n in ("x", "delta", "b", "c") else e for n, e in one.items()}
    alone, last = form(**kept)
    torch.testing.assert_close(output[1:, :, real[1]], alone)
    torch.testing.assert_close(state[1:], last)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-30, 100.0, 1e4, 1e10])
def test_steps_of_any_size_stay_finite(dtype, size):
    for forms, given in ((SCANS, scan_arguments()), (SSD, ssd_arguments())):
        given["a"], given["delta"] = -torch.ones_like(given["a"]), given["delta"] * size
        given["x"] = given["x"] / max(1.0, size)
        results = []
        for form in forms.values():
            for method in ("zoh", "euler") if forms is SCANS else ("",):
                run = runs(form, given, **{"method": method} if method else {})(dtype)
                assert all(bool(e.isfinite().all()) for group in run.values() for e in group)
                results.append(run["output"][0]) if method != "zoh" else None
        for other in results[1:]:
            torch.testing.assert_close(other, results[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_keeps_its_dtype_and_a_wide_state(dtype):
    for forms, given in ((SCANS, scan_arguments()), (SSD, ssd_arguments())):
        low = {n: e.to(dtype) for n, e in given.items()}
        wide = {n: e.float() for n, e in low.items()}
        for form in forms.values():
            output, state = form(**low)
            assert (output.dtype, state.dtype) == (dtype, torch.float32)
            torch.testing.assert_close(output, form(**wide)[0].to(dtype))


@pytest.mark.parametrize("length", [0, 1])
def test_short_texts(length):
    for forms, make in ((SCANS, scan_arguments), (SSD, ssd_arguments)):
        given = make(length=length)
        wanted = None
        for form in forms.values():
            output, state = form(**given)
            assert output.shape == given["x"].shape
            assert length or torch.equal(state, given["state"])
            wanted = state if wanted is None else wanted
            np.testing.assert_allclose(state, wanted, rtol=1e-14)


@pytest.mark.plain_types
def test_bad_input_is_refused():
    given = scan_arguments()
    with pytest.raises(ValueError, match="delta: expected"):
        recurrent_selective_scan(**given | {"delta": given["delta"][:, :2]})
    with pytest.raises(ValueError, match="c: expected"):
        parallel_selective_scan(**given | {"c": given["c"][..., :2]})
    with pytest.raises(ValueError, match="chunk_size: expected at least 1"):
        chunked_selective_scan(**given, chunk_size=0)
    with pytest.raises(ValueError, match=r"method: expected \"zoh\" or \"euler\""):
        recurrent_selective_scan(**given, method="bilinear")
    given = ssd_arguments()
    for form in SSD.values():
        with pytest.raises(ValueError, match="b: expected a divisor of 6 heads, got 4 groups"):
            form(**given | {n: numbers(2, 4, 7, 4) for n in ("b", "c")})
    with pytest.raises(TypeError, match="b: expected"):
        parallel_ssd(**given | {"b": given["b"].float()})
