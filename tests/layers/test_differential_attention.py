"""Differential attention: equal to DiffLlama's with copied weights, in values and gradients; caches; errors."""

import pytest
import torch

from tested_transformer.functional.differential import (
    differential_attention,
    differential_lambda_init,
)
from tested_transformer.layers.cache import KeyValueCache
from tested_transformer.layers.differential_attention import DifferentialAttention
from tested_transformer.positions.rotary import RotaryPositions

EPS = torch.finfo(torch.float32).eps
NAMES = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}


def layer(heads=4, groups=2, number=3, seed=0, **options):
    torch.manual_seed(seed)
    return DifferentialAttention(
        12, heads, num_kv_heads=groups, d_head=6, bias=False, layer=number, **options
    )


@pytest.mark.parametrize(("heads", "groups"), [(4, 2), (4, 4), (8, 4)])
@pytest.mark.parametrize("number", [0, 3])
def test_equal_to_diffllama_in_values_and_gradients(heads, groups, number):
    modeling = pytest.importorskip("transformers.models.diffllama.modeling_diffllama")
    config = modeling.DiffLlamaConfig(
        hidden_size=12, num_attention_heads=heads, num_key_value_heads=groups, head_dim=6,
        max_position_embeddings=20, attn_implementation="eager",
    )  # fmt: skip
    ours = layer(heads, groups, number, positions=RotaryPositions(6, layout="halves"))
    theirs = modeling.DiffLlamaAttention(config, number)
    state = {}
    for name, weight in ours.state_dict().items():
        first, dot, last = name.partition(".")
        state[NAMES.get(first, first) + dot + last] = weight
    theirs.load_state_dict(state)
    assert theirs.lambda_init == ours.lambda_init
    x = torch.randn(2, 7, 12, generator=torch.Generator().manual_seed(1))
    mask = torch.full((7, 7), -torch.inf).triu(1)[None, None]
    rotation = modeling.DiffLlamaRotaryEmbedding(config)(x, torch.arange(7)[None])
    ours.norm_eps = config.rms_norm_eps
    found = []
    for module, call in (
        (ours, lambda x: ours(x, causal=True)),
        (theirs, lambda x: theirs(x, rotation, mask)[0]),
    ):
        own = x.clone().requires_grad_()
        output = call(own)
        output.square().sum().backward()
        first = module.query if module is ours else module.q_proj
        found.append([output.detach(), own.grad, first.weight.grad, module.lambda_q1.grad])
    for got, wanted in zip(*found, strict=True):
        largest = float(wanted.abs().max())
        assert largest > 0
        torch.testing.assert_close(got, wanted, rtol=0, atol=2 * 80 * EPS * largest)


@torch.no_grad()
@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_with_a_cache_in_chunks_as_in_one_pass(chunk):
    ours = layer(positions=RotaryPositions(6)).double().eval()
    x = torch.randn(2, 7, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    cache = KeyValueCache()
    pieces = [ours(piece, causal=True, cache=cache) for piece in x.split(chunk, 1)]
    torch.testing.assert_close(torch.cat(pieces, 1), ours(x, causal=True))


@torch.no_grad()
def test_the_weights_are_the_difference_and_some_are_negative():
    ours = layer()
    x = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(3))
    _, weights = ours(x, causal=True, return_weights=True)
    assert weights.shape == (2, 2, 5, 5)
    assert (weights < 0).any()
    torch.testing.assert_close(weights.sum(-1), (1 - ours.lambda_).expand(2, 2, 5))


def test_lambda_starts_near_its_initial_value_and_learns():
    ours = layer(number=0)
    assert abs(float(ours.lambda_.detach()) - 0.2) < 0.2
    ours(torch.randn(1, 4, 12)).square().sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in ours.parameters())
    assert [round(differential_lambda_init(n), 3) for n in (0, 1, 100)] == [0.2, 0.356, 0.8]


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: differential_attention(*torch.zeros(3, 1, 3, 4, 2), torch.tensor(0.5)),
            "query: expected an even number, got 3 heads",
        ),
        (lambda: differential_lambda_init(-1), "layer: expected at least 0"),
        (lambda: layer()(torch.zeros(1, 2, 11)), "x: expected"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
