"""The tiled backend: any tile size gives the formula's numbers, and nothing as large as L x S exists."""

import contextlib
import itertools
import math

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from tested_transformer import BackendError, attention, reference
from tested_transformer.functional.backends import plain, tiled
from tested_transformer.functional.backends.tiled import Grid, Tiling
from tested_transformer.functional.inputs import AttentionInputs

TILINGS = [Tiling(2, 3, 1), Tiling(5, 2, 60), Tiling(3, 5, 10**6)]


def call_of(query, key, value, **options):
    return AttentionInputs(query, key, value, **{"scale": query.shape[-1] ** -0.5, **options})


def random(generator, *shape, dtype=torch.float64):
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def gradients(function, inputs):
    """The output, and the gradients of a loss that gives every output a weight of its own."""
    output = function()
    for t in inputs:
        t.grad = None
    (output * torch.linspace(-1, 1, output.numel()).view(output.shape)).sum().backward()
    return [output.detach(), *(t.grad for t in inputs)]


def assert_gradients_agree(call, tiling):
    """In float64, output and every gradient, with the plain formula's by autograd."""
    inputs = [call.query, call.key, call.value, call.bias, call.alibi_slopes]
    inputs = [t.requires_grad_() for t in inputs if t is not None]
    right = gradients(lambda: plain.run(call)[0], inputs)
    got = gradients(lambda: tiled.tiled(call, tiling), inputs)
    for ours, theirs in zip(got, right, strict=True):
        torch.testing.assert_close(ours, theirs)


@st.composite
def calls(draw, dtype=torch.float64):
    """Any shape, mask, bias and options; the broadcast axes of mask and bias are drawn as well."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    small = st.integers(0, 8)
    length, keys, size, width = draw(small), draw(small), draw(st.integers(1, 4)), draw(small)
    rank = draw(st.integers(2, 5))
    batch = [draw(st.integers(0, 3)) for _ in range(rank - 2)]
    batch_kv = list(batch)
    if rank == 4:
        batch[1] = batch_kv[1] * (share := draw(st.integers(1, 3)))
        hypothesis.event(f"{share} query heads a KV head")

    def broadcast(flags):
        full = [*batch, length, keys]
        if draw(st.booleans()):
            full = full[-2:]
        return [n if draw(flags) else 1 for n in full]

    options = {"causal": draw(st.booleans()), "window": draw(st.none() | st.integers(1, 9))}
    if draw(st.booleans()):
        shape = broadcast(st.booleans())
        options["mask"] = torch.rand(shape, generator=generator) < 0.7
    if draw(st.booleans()):
        options["bias"] = random(generator, *broadcast(st.booleans()), dtype=dtype)
        holes = torch.rand(options["bias"].shape, generator=generator) < 0.1
        options["bias"] = options["bias"].masked_fill(holes, -math.inf)
    if rank > 2 and draw(st.booleans()):
        options["key_lengths"] = torch.randint(0, keys + 2, batch[:1], generator=generator)
    if rank > 2 and draw(st.booleans()):
        options["alibi_slopes"] = random(generator, batch[-1], dtype=dtype).abs()
    query = random(generator, *batch, length, size, dtype=dtype)
    key, value = (random(generator, *batch_kv, keys, n, dtype=dtype) for n in (size, width))
    return call_of(query, key, value, **options)


tilings = st.builds(Tiling, st.integers(1, 5), st.integers(1, 5), st.integers(1, 200))


@hypothesis.given(call=calls(), tiling=tilings)
@hypothesis.settings(max_examples=150)
def test_any_call_in_any_tiles_has_the_plain_formula_s_numbers_and_gradients(call, tiling):
    assert_gradients_agree(call, tiling)


@hypothesis.given(call=calls(dtype=torch.float32), tiling=tilings)
@hypothesis.settings(max_examples=40)
def test_float32_is_as_exact_as_the_plain_formula(call, tiling):
    """error <= 2 x (the plain formula's error) + 4 eps x max |reference|."""
    given = vars(call).copy()
    for name in ("dropout_p", "return_weights"):
        del given[name]
    arrays = {
        name: t.double().numpy() if t.is_floating_point() else t.numpy()
        for name, t in given.items()
        if torch.is_tensor(t)
    }
    truth = reference.attention(**{**given, **arrays})
    got, rough = tiled.tiled(call, tiling), plain.run(call)[0]
    assert got.dtype == torch.float32
    if truth.size:
        error, plain_error = (np.abs(x.double().numpy() - truth).max() for x in (got, rough))
        bound = 2 * plain_error + 4 * torch.finfo(torch.float32).eps * np.abs(truth).max()
        assert error <= bound


def everything(generator, *, heads=4, groups=2, queries=7, keys=9):
    """Query, key, value and one of everything, with a fully masked row."""
    mask = torch.rand(2, 1, queries, keys, generator=generator) < 0.8
    mask[:, :, 3] = False
    query = random(generator, 2, heads, queries, 3)
    key, value = (random(generator, 2, groups, keys, n) for n in (3, 2))
    return call_of(
        query, key, value, mask=mask, bias=random(generator, 1, heads, queries, keys), causal=True,
        window=6, key_lengths=torch.tensor([9, 4]),
        alibi_slopes=torch.rand(heads, generator=generator, dtype=torch.float64),
    )  # fmt: skip


@pytest.mark.parametrize("tiling", TILINGS, ids=str)
@pytest.mark.parametrize("shape", [(7, 9), (1, 1, 7, 9), (2, 1, 1, 9), (2, 4, 7, 1), (2, 4, 7, 9)])
def test_the_gradient_of_a_bias_is_summed_over_what_it_stands_for(tiling, shape):
    generator = torch.Generator().manual_seed(0)
    inputs = [random(generator, *s) for s in ((2, 4, 7, 3), (2, 2, 9, 3), (2, 2, 9, 2))]
    call = call_of(*inputs, bias=random(generator, *shape), causal=True)
    assert_gradients_agree(call, tiling)
    assert call.bias.grad.shape == shape
    assert call.bias.grad.abs().max() > 0


@pytest.mark.parametrize("tiling", TILINGS, ids=str)
def test_everything_together_by_finite_differences(tiling):
    """float64; the derivative of every input, bias and slopes too, against differences."""
    call = everything(torch.Generator().manual_seed(1), heads=2, groups=1, queries=5, keys=6)
    given = [call.query, call.key, call.value, call.bias, call.alibi_slopes]

    def function(query, key, value, bias, alibi_slopes):
        options = {"mask": call.mask, "causal": True, "window": 4}
        options["key_lengths"] = torch.tensor([6, 3])
        return tiled.tiled(
            call_of(query, key, value, bias=bias, alibi_slopes=alibi_slopes, **options), tiling
        )

    assert torch.autograd.gradcheck(function, [t.requires_grad_() for t in given])


def test_an_empty_row_has_no_gradient_in_any_input():
    call = everything(torch.Generator().manual_seed(2))
    inputs = [call.query, call.key, call.value, call.bias, call.alibi_slopes]
    inputs = [t.requires_grad_() for t in inputs]
    output = tiled.tiled(call, TILINGS[0])
    assert output[:, :, 3].eq(0).all()
    output[:, :, 3].sum().backward()
    assert all(t.grad.eq(0).all() for t in inputs)


def visited(call, tiling):
    """(sample, first query, first key) of every tile."""
    grid = Grid(call, tiling, 0)
    return [
        (block.batch[0].start, block.rows.start, tile.columns.start)
        for block in grid.blocks()
        for tile in grid.tiles(block)
    ]


def test_tiles_in_which_nothing_can_be_seen_are_skipped():
    """Without a mask: a tile is visited if and only if some query sees some key in it."""
    tiling, queries, keys = Tiling(4, 4, 1), 16, 20
    inputs = [torch.zeros(2, n, 1) for n in (queries, keys, keys)]
    for causal, window, lengths in itertools.product(
        (False, True), (None, 1, 5), (None, torch.tensor([20, 6]))
    ):
        call = call_of(*inputs, causal=causal, window=window, key_lengths=lengths)
        allowed = call.allowed()
        allowed = torch.ones(1, 1, 1, dtype=torch.bool) if allowed is None else allowed
        allowed = allowed.expand(2, queries, keys)
        seen = {
            (b, i, j) for b in range(2) for i in range(0, queries, 4) for j in range(0, keys, 4)
            if allowed[b, i : i + 4, j : j + 4].any()
        }  # fmt: skip
        places = visited(call, tiling)
        if window is None:
            assert sorted(places) == sorted(seen)
        else:  # tiles start where the window does
            needed = {(b, i, j) for b, i, j in allowed.nonzero().tolist()}
            reached = {
                (b, i, j) for b, first, start in places for i in range(first, first + 4)
                for j in range(start, min(start + 4, keys))
            }  # fmt: skip
            assert needed <= reached
            assert len(places) <= len(seen) + queries // 4 * 2


class Largest(TorchDispatchMode):
    """The most numbers that any operation made anew; views of what is there are not counted."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for t in result if isinstance(result, tuple | list) else [result]:
            if torch.is_tensor(t):
                self.numbers = max(self.numbers, t.untyped_storage().nbytes() // t.element_size())
        return result


@pytest.mark.parametrize("name", ["none", "causal", "mask", "bias", "slopes", "dropout"])
def test_nothing_as_large_as_queries_times_keys_is_formed(name):
    """Neither forward nor backward; the mask of padding stays one row a sample."""
    queries, keys, heads = 300, 301, 2
    generator = torch.Generator().manual_seed(0)
    inputs = [random(generator, 2, heads, n, 4).requires_grad_() for n in (queries, keys, keys)]
    options = {
        "none": {}, "causal": {"causal": True, "window": 200}, "dropout": {"dropout_p": 0.5},
        "mask": {"mask": torch.rand(2, 1, 1, keys, generator=generator) < 0.9},
        "bias": {"bias": random(generator, 1, 1, 1, keys).requires_grad_()},
        "slopes": {"alibi_slopes": torch.ones(heads, requires_grad=True)},
    }[name]  # fmt: skip
    with Largest() as largest:
        tiled.tiled(call_of(*inputs, **options), Tiling(32, 48, 2**13)).sum().backward()
    assert largest.numbers <= 2**13  # 300 x 301 is 11 times as much
    with Largest() as of_the_formula:
        plain.run(call_of(*inputs, **options))
    assert of_the_formula.numbers >= queries * keys  # the measure sees what it looks for


def test_what_is_kept_for_the_backward_pass_grows_with_the_length_alone():
    kept = []

    def keep(t):
        kept.append(t)
        return t

    inputs = [torch.randn(1, 2, 400, 4, requires_grad=True) for _ in range(3)]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        tiled.tiled(call_of(*inputs, causal=True), Tiling(64, 64))
    shapes = sorted(tuple(t.shape) for t in kept)
    assert shapes == [(1, 2, 400, 1)] + [(1, 2, 400, 4)] * 4  # log-sum-exp; q, k, v, output


def test_dropout_is_drawn_again_in_the_backward_pass():
    """With one weight matrix drawn, the output is linear in the values: so is its gradient."""
    generator = torch.Generator().manual_seed(0)
    call = everything(generator)
    call.value.requires_grad_()
    torch.manual_seed(5)
    dropped = call_of(call.query, call.key, call.value, dropout_p=0.4)
    output = tiled.tiled(dropped, Tiling(2, 4))
    given = random(generator, *output.shape)
    output.backward(given)
    # sum(output x given) = sum(value x its gradient), for the same zeros only
    torch.testing.assert_close(
        (output.detach() * given).sum(), (call.value.detach() * call.value.grad).sum()
    )
    torch.manual_seed(5)
    assert torch.equal(tiled.tiled(dropped, Tiling(2, 4)), output)
    assert not torch.equal(tiled.tiled(dropped, Tiling(2, 4)), output)


def test_gradients_with_dropout_by_finite_differences():
    generator = torch.Generator().manual_seed(3)
    inputs = [random(generator, *s).requires_grad_() for s in ((4, 2), (5, 2), (5, 2))]

    def function(*inputs):
        torch.manual_seed(1)
        return tiled.tiled(call_of(*inputs, dropout_p=0.3), Tiling(3, 2))

    assert torch.autograd.gradcheck(function, inputs)


def test_the_zeros_of_dropout_differ_from_tile_to_tile():
    """Equal scores and identity values: the output is the weights, and shows what fell."""
    size = 24
    query, key, value = torch.zeros(size, 1), torch.zeros(size, 1), torch.eye(size)
    torch.manual_seed(0)
    weights = tiled.tiled(call_of(query, key, value, dropout_p=0.5), Tiling(8, 8)) * size
    assert set(weights.unique().round(decimals=4).tolist()) == {0.0, 2.0}
    tiles = weights.view(3, 8, 3, 8).transpose(1, 2).reshape(9, 64)
    assert len(tiles.unique(dim=0)) == 9
    # 576 fair coins: within five standard deviations, 5 x 12, of 288
    assert abs(int((weights > 0).sum()) - 288) <= 60


def test_the_gradient_has_none_of_its_own():
    inputs = [torch.randn(3, 2, requires_grad=True) for _ in range(3)]
    output = attention(*inputs, backend="tiled")
    with pytest.raises(BackendError, match=r'"tiled".*differentiated again'):
        torch.autograd.grad(output.sum(), inputs, create_graph=True)


def test_weights_are_refused():
    inputs = [torch.ones(3, 2) for _ in range(3)]
    with pytest.raises(BackendError, match=r'"tiled".*forgets.*weights'):
        attention(*inputs, return_weights=True, backend="tiled")


def test_a_changed_input_is_noticed_before_the_backward_pass():
    """What is saved is saved with PyTorch, which counts changes: no gradient of other numbers."""
    inputs = [torch.randn(3, 2, requires_grad=True) for _ in range(3)]
    mask = torch.ones(3, 3, dtype=torch.bool)
    output = attention(*inputs, mask=mask, backend="tiled")
    mask[0, 0] = False
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_autocast_computes_in_float32_all_the_same():
    inputs = [torch.randn(2, 5, 4, requires_grad=True) for _ in range(3)]
    results = []
    for context in (contextlib.nullcontext(), torch.autocast("cpu", dtype=torch.bfloat16)):
        with context:
            results.append(gradients(lambda: attention(*inputs, backend="tiled"), inputs))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
