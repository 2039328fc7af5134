"""Rotary positions: against the loops, transformers' Llama, GPT-J, GPT-NeoX and RoFormer, and themselves."""

import copy
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tested_transformer import (
    KeyValueCache,
    MultiHeadAttention,
    RotaryPositions,
    apply_rotary,
    judge,
    reference,
    shift_matrix,
)
from tested_transformer.specs.rotary.mutants import RotaryDecoder, RotaryFormula
from tested_transformer.specs.rotary.spec import ROTARY, ROTARY_ATTENTION
from tested_transformer.specs.spec import GRADIENTS

LAYOUTS = ["interleaved", "halves"]
EPS32 = torch.finfo(torch.float32).eps


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# --- The Specs ------------------------------------------------------------------------------------


def the_scheme(x, position_ids, *, base=10000.0, layout="interleaved", rotary_dim=None):
    scheme = RotaryPositions(x.shape[-1], base=base, layout=layout, rotary_dim=rotary_dim)
    query, key = scheme.rotate(x, x[:, :1], position_ids)
    assert torch.equal(key, query[:, :1])
    return query


# What stands in a cache has no gradient.
WITHOUT_GRADIENTS = replace(
    ROTARY_ATTENTION,
    checks=[check for check in ROTARY_ATTENTION.checks if check.name != GRADIENTS.name],
    differentiable=False,
)


class TheLayer:
    """MultiHeadAttention with a cache, whose matrices pass on queries, keys and values as they come."""

    def __init__(self):
        self.cache = KeyValueCache(capacity=2)

    def __call__(self, query, key, value):
        heads, d = query.shape[1], query.shape[3]
        layer = MultiHeadAttention(
            3 * heads * d, heads, d_head=d, bias=False, positions=RotaryPositions(d)
        ).to(query.dtype)
        with torch.no_grad():
            eye = torch.eye(3 * heads * d).split(heads * d)
            for part, rows in zip((layer.query, layer.key, layer.value), eye, strict=True):
                part.weight.copy_(rows)
            layer.output.weight.copy_(eye[0].T)
            x = torch.cat([t.transpose(1, 2).flatten(2) for t in (query, key, value)], -1)
            output = layer(x, causal=True, cache=self.cache)[..., : heads * d]
        return output.unflatten(-1, (heads, d)).transpose(1, 2)


@pytest.mark.parametrize(
    ("spec", "right"),
    [
        (ROTARY, apply_rotary),
        (ROTARY, the_scheme),
        (ROTARY, RotaryFormula()),
        (WITHOUT_GRADIENTS, TheLayer),
        (ROTARY_ATTENTION, RotaryDecoder),
    ],
)
def test_right_implementations_pass(spec, right):
    verdict = judge(spec, right)
    assert verdict.passed, verdict
    assert not verdict.skipped


# --- transformers ---------------------------------------------------------------------------------


def bound(x, positions, base=10000.0):
    """How far a rotation whose angles are made in float32 may be from one in float64.

    A frequency is a power (its exponent, rounded, times log base; the power itself), a division and a
    product with the position: (log(base) + 3) eps / 2 of the angle, at most that of the first pair, which
    is the position. Sine and cosine add an eps. Each result is a sum of two such products.
    """
    angle = float(positions.abs().max()) * (math.log(base) + 3) / 2 * EPS32
    return 2 * float(x.abs().max()) * (angle + EPS32)


@pytest.mark.parametrize("base", [10000.0, 500000.0])
def test_llamas_rotation_is_ours_in_halves(base):
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=24, num_attention_heads=3, num_key_value_heads=1,
        rope_parameters={"rope_type": "default", "rope_theta": base},
    )  # fmt: skip
    query, key = normal(2, 3, 5, 8), normal(2, 1, 5, 8, seed=1)
    position_ids = torch.tensor([[0, 1, 2, 3, 4], [0, 0, 0, 1, 700]])
    cos, sin = llama.LlamaRotaryEmbedding(config)(query, position_ids)
    theirs = llama.apply_rotary_pos_emb(query, key, cos, sin)
    ours = RotaryPositions(8, base=base, layout="halves").rotate(query, key, position_ids)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=bound(query, position_ids, base))


def test_gpt_j_rotates_neighbors_of_a_part_of_the_head():
    gptj = pytest.importorskip("transformers.models.gptj.modeling_gptj")
    x, position_ids = normal(2, 3, 5, 10), torch.tensor([0, 1, 2, 30, 511])
    sin, cos = gptj.create_sinusoidal_positions(512, 6)[position_ids][None].chunk(2, -1)
    turned = x.transpose(1, 2)  # theirs has heads after the length
    turned = torch.cat((gptj.apply_rotary_pos_emb(turned[..., :6], sin, cos), turned[..., 6:]), -1)
    ours = apply_rotary(x, position_ids, rotary_dim=6)
    torch.testing.assert_close(ours, turned.transpose(1, 2), rtol=0, atol=bound(x, position_ids))


def test_gpt_neox_rotates_halves_of_a_part_of_the_head():
    neox = pytest.importorskip("transformers.models.gpt_neox.modeling_gpt_neox")
    transformers = pytest.importorskip("transformers")
    config = transformers.GPTNeoXConfig(
        hidden_size=32, num_attention_heads=2,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    )  # fmt: skip
    x, position_ids = normal(2, 2, 4, 16), torch.tensor([[0, 1, 2, 3], [0, 0, 90, 400]])
    cos, sin = neox.GPTNeoXRotaryEmbedding(config)(x, position_ids)
    assert cos.shape[-1] == 4
    theirs, _ = neox.apply_rotary_pos_emb(x, x, cos, sin)
    ours = apply_rotary(x, position_ids, layout="halves", rotary_dim=4)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=bound(x, position_ids))


def test_roformer_rotates_neighbors():
    roformer = pytest.importorskip("transformers.models.roformer.modeling_roformer")
    table = roformer.RoFormerSinusoidalPositionalEmbedding(40, 8)
    if hasattr(table, "create_weight"):
        table.weight.data.copy_(table.create_weight())
    x, position_ids = normal(2, 3, 4, 8), torch.tensor([0, 1, 17, 39])
    theirs, _ = roformer.RoFormerSelfAttention.apply_rotary_position_embeddings(
        table.weight.data[position_ids][None, None], x, x
    )
    torch.testing.assert_close(
        apply_rotary(x, position_ids), theirs, rtol=0, atol=bound(x, position_ids)
    )


# --- Properties -----------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rotary_dim", [None, 2, 6])
def test_against_complex_numbers(layout, rotary_dim):
    x, position_ids = normal(2, 3, 4, 8), torch.tensor([[0, 3, 9, 4096], [-2, 0, 1, 70]])
    options = {"base": 777.0, "layout": layout, "rotary_dim": rotary_dim}
    expected = reference.apply_rotary(x.numpy(), position_ids.numpy(), **options)
    np.testing.assert_allclose(apply_rotary(x, position_ids, **options), expected, atol=1e-11)


@given(
    here=st.integers(0, 10**5), distance=st.integers(0, 4000), moved=st.integers(-(10**4), 10**5),
    pairs=st.integers(1, 8), layout=st.sampled_from(LAYOUTS), base=st.floats(2.0, 1e6),
)  # fmt: skip
@settings(max_examples=60)
def test_a_score_depends_on_the_distance_alone(here, distance, moved, pairs, layout, base):
    query, key = normal(1, 1, 1, 2 * pairs), normal(1, 1, 1, 2 * pairs, seed=1)
    turn = partial(apply_rotary, base=base, layout=layout)
    scores = [
        turn(query, torch.tensor([start + distance])) @ turn(key, torch.tensor([start])).mT
        for start in (here, here + moved)
    ]
    torch.testing.assert_close(*scores, atol=1e-8, rtol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rotations_add_up_and_turn_back(layout):
    x, ids = normal(2, 3, 4, 6), torch.tensor([0, 5, 9, 30])
    turn = partial(apply_rotary, layout=layout)
    torch.testing.assert_close(turn(turn(x, ids), 2 * ids), turn(x, 3 * ids))
    torch.testing.assert_close(turn(turn(x, ids), -ids), x)
    assert torch.equal(turn(x, torch.zeros_like(ids)), x)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_is_the_transpose_of_the_sinusoids_shift(layout):
    """The shift of a position vector turns (sine, cosine) by the same angles, the other way around."""
    x = normal(1, 1, 1, 6)
    turn = shift_matrix(5, 6, layout=layout, dtype=torch.float64)
    torch.testing.assert_close(apply_rotary(x, torch.tensor([5]), layout=layout), x @ turn)


def test_the_layouts_differ_by_one_permutation_of_the_features():
    """Which is why a converter permutes the rows of `query` and `key`, and of nothing else."""
    x, ids = normal(2, 3, 4, 8), torch.tensor([0, 1, 7, 50])
    evens_then_odds = [0, 2, 4, 6, 1, 3, 5, 7]
    halves = apply_rotary(x[..., evens_then_odds], ids, layout="halves")
    torch.testing.assert_close(halves, apply_rotary(x, ids)[..., evens_then_odds])


def test_a_row_of_position_ids_for_each_sequence():
    x, ids = normal(2, 3, 4, 6), torch.tensor([[0, 1, 2, 3], [0, 0, 0, 1]])
    both = apply_rotary(x, ids)
    for b in range(2):
        assert torch.equal(both[b : b + 1], apply_rotary(x[b : b + 1], ids[b]))
    assert torch.equal(apply_rotary(x, ids[:1]), apply_rotary(x, ids[0]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("position", [0, 8191, 131_071])
def test_far_positions_in_small_dtypes(dtype, position):
    """As exact as the dtype can be: the rotation in float32, then one rounding."""
    x, ids = normal(1, 2, 1, 16).to(dtype), torch.tensor([position])
    exact = apply_rotary(x.double(), ids)
    got = apply_rotary(x, ids)
    assert got.dtype == dtype
    rounding = torch.finfo(dtype).eps / 2 * exact.abs() + 4 * EPS32 * x.double().abs().max()
    assert ((got.double() - exact).abs() <= rounding).all()


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 2, 0, 4), (2, 0, 3, 4)])
def test_nothing_to_rotate(shape):
    assert apply_rotary(torch.ones(shape), torch.arange(shape[2])).shape == shape


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients(layout):
    x, ids = normal(2, 1, 3, 6).requires_grad_(), torch.tensor([[0, 2, 5], [7, 1, 1]])
    turn = partial(apply_rotary, position_ids=ids, layout=layout, rotary_dim=4)
    assert torch.autograd.gradcheck(turn, (x,))


@pytest.mark.plain_types
def test_it_compiles():
    x, ids = normal(2, 3, 4, 6), torch.arange(4)
    compiled = torch.compile(apply_rotary, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x, ids), apply_rotary(x, ids))


def test_the_scheme_has_nothing_to_learn_or_store_and_embeds_nothing():
    scheme, x = RotaryPositions(6, layout="halves", rotary_dim=4), normal(2, 3, 5)
    assert not list(scheme.parameters())
    assert not scheme.state_dict()
    assert scheme.embed(x, torch.arange(3)) is x
    assert scheme.bias(torch.arange(3), torch.arange(3)) is None
    assert "layout='halves', rotary_dim=4" in repr(scheme)


# --- Malformed calls ------------------------------------------------------------------------------

X, P = torch.ones(2, 1, 3, 4), torch.arange(3)


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: apply_rotary([1.0], P), TypeError, ["x", "list"]),
        (lambda: apply_rotary(X.int(), P), TypeError, ["x", "int32"]),
        (lambda: apply_rotary(X[0], P), ValueError, ["x", "(1, 3, 4)", "4 axes"]),
        (lambda: apply_rotary(X, P.float()), TypeError, ["position_ids", "float32"]),
        (lambda: apply_rotary(X, P[:2]), ValueError, ["position_ids", "(2,)", "(3,)", "(2, 3)"]),
        (lambda: apply_rotary(X, P.expand(3, 3)), ValueError, ["position_ids", "(3, 3)", "(2, 3)"]),
        (lambda: apply_rotary(X[..., :3], P), ValueError, ["rotary_dim", "got 3", "even"]),
        (lambda: apply_rotary(X, P, rotary_dim=3), ValueError, ["rotary_dim", "got 3", "even"]),
        (lambda: apply_rotary(X, P, rotary_dim=6), ValueError, ["rotary_dim", "got 6", "at most"]),
        (lambda: apply_rotary(X, P, rotary_dim=2.0), TypeError, ["rotary_dim", "float"]),
        (lambda: apply_rotary(X, P, base=0.0), ValueError, ["base", "above 0"]),
        (lambda: apply_rotary(X, P, layout="half"), ValueError, ["layout", "'half'", "halves"]),
        (lambda: RotaryPositions(0), ValueError, ["d_head", "at least 1"]),
        (lambda: RotaryPositions(5), ValueError, ["rotary_dim", "got 5"]),
        (lambda: RotaryPositions(4, base=-1.0), ValueError, ["base"]),
        (lambda: RotaryPositions(4, layout="x"), ValueError, ["layout", "'x'"]),
        (lambda: RotaryPositions(6).rotate(X, X, P), ValueError, ["query", "(B, H, L, 6)"]),
        (lambda: RotaryPositions(4).rotate(X, X[..., :2], P), ValueError, ["key", "(2, G, 3, 4)"]),
        (lambda: RotaryPositions(4).rotate(None, X, P), TypeError, ["query", "NoneType"]),
    ],
)
def test_malformed_calls(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value


def test_kept_angles_follow_the_positions():
    """The angles of the last call are kept: not for other positions, other ones in the same tensor, or in copies."""
    scheme, ids = RotaryPositions(4), torch.arange(5)
    query = torch.randn(2, 3, 5, 4, dtype=torch.float64)

    def rotated(ids, like=query):
        found, fresh = (each.rotate(like, like, ids) for each in (scheme, RotaryPositions(4)))
        assert torch.equal(torch.stack(found), torch.stack(fresh))
        return found[0]

    first = rotated(ids)
    assert torch.equal(rotated(ids), first)
    assert rotated(ids, query.float()).dtype == torch.float32
    assert torch.equal(rotated(ids.clone()), first)
    assert torch.equal(rotated(ids), first)
    ids += 1
    assert not torch.allclose(rotated(ids), first)
    with torch.inference_mode():
        own = torch.arange(5)
        assert torch.equal(rotated(own), first)
        own += 1
        assert torch.equal(rotated(own), rotated(ids))
        rotated(ids)
    wanted = torch.randn(2, 3, 5, 4, requires_grad=True)
    scheme.rotate(wanted, wanted, ids)[0].sum().backward()  # no angle from inference mode is kept
    assert copy.deepcopy(scheme)._kept == (None, None, None)
