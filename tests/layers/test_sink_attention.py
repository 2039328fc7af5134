"""Learned sinks: equal to transformers' GPT-OSS, to plain attention without them, and in chunks."""

import numpy as np
import pytest
import torch

from same_numbers import assert_float32_same, assert_same_numbers, in_dtype, shake
from tested_transformer import reference
from tested_transformer.functional.attention import attention
from tested_transformer.functional.sinks import sink_attention
from tested_transformer.layers.cache import KeyValueCache, WindowCache
from tested_transformer.layers.sink_attention import SinkAttention
from tested_transformer.positions.rotary import RotaryPositions
from tested_transformer.positions.scaled_rotary import ScaledRotaryPositions, YarnScaling
from tested_transformer.specs.judge import judge
from tested_transformer.specs.sinks.spec import SINK_ATTENTION

EPS = torch.finfo(torch.float64).eps
YARN = {"factor": 4.0, "beta_fast": 2.0, "beta_slow": 0.2, "truncate": False}


def numbers(*shape, seed=1):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


X = numbers(2, 9, 24)
QUERY, KEY, VALUE = numbers(2, 6, 5, 4), numbers(2, 2, 7, 4, seed=2), numbers(2, 2, 7, 3, seed=3)
SINKS = numbers(6, seed=4)


def layer(window=None, positions=None, seed=0):
    made = SinkAttention(
        24, 6, num_kv_heads=2, d_head=8, window=window,
        positions=RotaryPositions(8, layout="halves") if positions is None else positions,
    )  # fmt: skip
    return shake(made, seed).double().eval()


def test_the_spec():
    verdict = judge(SINK_ATTENTION, sink_attention)
    assert verdict.passed, verdict


# --- GPT-OSS --------------------------------------------------------------------------------------


def theirs_and_ours(window, rope, positions, seed):
    """An attention layer of transformers, ours with its weights, and their masks and angles."""
    gpt_oss = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss")
    config = gpt_oss.GptOssConfig(
        hidden_size=24, num_attention_heads=6, num_key_value_heads=2, head_dim=8,
        num_hidden_layers=2, sliding_window=window or 3, max_position_embeddings=120,
        rope_parameters=rope, attn_implementation="eager",
    )  # fmt: skip
    which = config.layer_types.index("full_attention" if window is None else "sliding_attention")
    theirs = gpt_oss.GptOssAttention(config, which).eval()
    ours = layer(window, positions, seed)
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}
    state = {}
    for name, weight in ours.state_dict().items():
        module, dot, kind = name.rpartition(".")
        state[names.get(module, "") + dot + kind] = weight
    theirs.double().load_state_dict(state)
    return theirs, ours, gpt_oss.GptOssRotaryEmbedding(config), config


def runs(theirs, ours, angles, config, window):
    """Both layers as functions of a dtype: outputs, weights, and the gradient of every parameter."""
    from transformers import masking_utils

    make = masking_utils.create_causal_mask
    if window is not None:
        make = masking_utils.create_sliding_window_causal_mask

    def mask(x):
        return make(config=config, inputs_embeds=x, attention_mask=None, past_key_values=None)

    def both(module, dtype):
        twin, x = in_dtype(module, dtype), X.clone().to(dtype).requires_grad_()
        if module is ours:
            output, weights = twin(x, causal=True, return_weights=True)
        else:
            output, weights = twin(x, angles(x), mask(x))
        (output * numbers(*output.shape, seed=7).to(dtype)).sum().backward()
        gradients = [twin.get_parameter(name).grad for name in names[module is ours]]
        return {"output": [output], "weights": [weights], "gradients": [*gradients, x.grad]}

    own = [name for name, _ in ours.named_parameters()]
    words = {"query.": "q_proj.", "key.": "k_proj.", "value.": "v_proj.", "output.": "o_proj."}
    renamed = [next((n.replace(a, b) for a, b in words.items() if a in n), n) for n in own]
    names = {True: own, False: renamed}
    return lambda dtype: both(ours, dtype), lambda dtype: both(theirs, dtype)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("seed", range(2))
def test_equal_to_transformers_in_float64(window, seed):
    """With angles of float64, which their own class does not make."""
    rope = {"rope_type": "default", "rope_theta": 100.0}
    positions = RotaryPositions(8, base=100.0, layout="halves")
    theirs, ours, _, config = theirs_and_ours(window, rope, positions, seed)

    def angles(x):
        turned = torch.arange(9)[None, :, None] * 100.0 ** (-torch.arange(4).double() / 4)
        return turned.cos().to(x.dtype), turned.sin().to(x.dtype)

    assert_same_numbers(*runs(theirs, ours, angles, config, window))


@pytest.mark.parametrize("window", [None, 3])
def test_equal_to_transformers_with_yarn(window):
    rope = {"rope_type": "yarn", "rope_theta": 100.0, "original_max_position_embeddings": 30}
    scaling = YarnScaling(4.0, 30, fast_turns=2.0, slow_turns=0.2, truncate=False)
    positions = ScaledRotaryPositions(8, scaling, base=100.0, layout="halves")
    theirs, ours, rotary, config = theirs_and_ours(window, rope | YARN, positions, 5)

    def angles(x):
        return rotary(x, torch.arange(9)[None])

    assert_float32_same(*runs(theirs, ours, angles, config, window))


# --- The function ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True, "window": 2},
        {"key_lengths": torch.tensor([4, 0])},
        {"alibi_slopes": numbers(6, seed=5).abs()},
        {"mask": numbers(2, 1, 1, 7) > 0, "bias": numbers(5, 1), "scale": 0.3},
        {"mask": numbers(5, 1) > 0, "bias": numbers(2, 6, 1, 7), "causal": True},
    ],
)
def test_every_option(options):
    output, weights = sink_attention(QUERY, KEY, VALUE, SINKS, return_weights=True, **options)
    arrays = {n: v.numpy() if torch.is_tensor(v) else v for n, v in options.items()}
    given = [each.numpy() for each in (QUERY, KEY, VALUE, SINKS)]
    expected = reference.sink_attention(*given, return_weights=True, **arrays)
    for found, wanted in zip((output, weights), expected, strict=True):
        bound = 64 * EPS * max(1.0, float(np.abs(wanted).max()))  # scores below 8, sums of 7
        np.testing.assert_allclose(found.numpy(), wanted, rtol=0, atol=bound)
    assert bool((weights.sum(-1) < 1).all())


def test_a_sink_of_minus_infinity_is_none():
    none = torch.full((6,), -torch.inf, dtype=torch.float64)
    for options in ({}, {"causal": True, "window": 3}, {"mask": numbers(5, 7) > 1}):
        found = sink_attention(QUERY, KEY, VALUE, none, **options)
        torch.testing.assert_close(found, attention(QUERY, KEY, VALUE, **options))


def test_the_output_is_that_of_attention_times_a_gate():
    _, weights = sink_attention(QUERY, KEY, VALUE, SINKS, return_weights=True)
    scores = QUERY @ KEY.repeat_interleave(3, 1).mT / 2  # d is 4
    gate = (scores.logsumexp(-1, keepdim=True) - SINKS[:, None, None]).sigmoid()
    torch.testing.assert_close(weights.sum(-1, keepdim=True), gate)
    torch.testing.assert_close(
        sink_attention(QUERY, KEY, VALUE, SINKS), gate * attention(QUERY, KEY, VALUE)
    )


def test_a_query_that_may_attend_to_nothing_has_no_gradient():
    sinks, query = SINKS.clone().requires_grad_(), QUERY.clone().requires_grad_()
    output = sink_attention(query, KEY, VALUE, sinks, mask=torch.zeros(5, 7, dtype=torch.bool))
    output.sum().backward()
    for each in (output, sinks.grad, query.grad):
        assert torch.equal(each, torch.zeros_like(each))


def test_a_sink_of_zero_can_hide_a_bug_and_one_of_20_cannot():
    """Among many large scores in bfloat16 a sink of 0 changes the last bit at most; see pull request 3551 of
    TransformerEngine."""
    query, key, value = (numbers(1, 2, 64, 16, seed=s).bfloat16() for s in range(3))
    query, key = 2 * query.abs(), 2 * key.abs()  # scores near 10
    plain = attention(query, key, value, backend="plain")

    def with_sinks(logit):
        return sink_attention(query, key, value, torch.full((2,), logit), backend="plain")

    off = (with_sinks(0.0).double() - plain.double()).abs()
    assert bool((off <= torch.finfo(torch.bfloat16).eps * plain.double().abs()).all())
    assert not torch.allclose(with_sinks(20.0), plain, rtol=0.2, atol=0.2)


def test_dropout_acts_on_the_weights():
    torch.manual_seed(0)
    _, weights = sink_attention(
        QUERY, KEY, VALUE, SINKS, dropout_p=0.5, return_weights=True, backend="plain"
    )
    _, whole = sink_attention(QUERY, KEY, VALUE, SINKS, return_weights=True)
    kept = weights > 0
    assert 0 < kept.double().mean() < 1
    torch.testing.assert_close(weights[kept], 2 * whole[kept])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_dtype_of_the_query_and_sinks_of_another(dtype):
    made = [each.to(dtype) for each in (QUERY, KEY, VALUE)]
    output, weights = sink_attention(*made, SINKS.float(), return_weights=True, causal=True)
    assert output.dtype == weights.dtype == dtype


# --- The layer ------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("chunk", [1, 3, 4, 8])
@pytest.mark.parametrize("window", [None, 3])
def test_in_chunks(chunk, window):
    ours = layer(window)
    for cache in [KeyValueCache()] + ([] if window is None else [WindowCache(window)]):
        outputs = [ours(piece, causal=True, cache=cache) for piece in X.split(chunk, dim=1)]
        torch.testing.assert_close(torch.cat(outputs, dim=1), ours(X, causal=True))


def test_every_parameter_counts():
    ours = layer(3)
    ours(X, causal=True).square().sum().backward()
    for name, parameter in ours.named_parameters():
        assert bool((parameter.grad != 0).any()), name
    assert bool((ours.sinks.grad != 0).all())


def test_padding_on_the_left():
    ours, real = layer(), torch.ones(2, 9, dtype=torch.bool)
    real[1, :4] = False
    places = (real.cumsum(1) - 1).clamp(min=0)
    padded = ours(X, mask=real[:, None, None], causal=True, position_ids=places)
    torch.testing.assert_close(padded[1:, 4:], ours(X[1:, 4:], causal=True))


@torch.no_grad()
def test_a_context_is_projected_once_with_a_fixed_cache():
    ours, context, cache = (
        shake(SinkAttention(24, 6), 0).double(),
        torch.randn_like(X),
        KeyValueCache(fixed=True),
    )
    whole = ours(X, context)
    torch.testing.assert_close(ours(X[:, :3], context, cache=cache), whole[:, :3])
    torch.testing.assert_close(ours(X[:, 3:], X, cache=cache), whole[:, 3:])


@pytest.mark.plain_types
def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"sinks: expected shape .*= \(6,\) as in query, got"):
        sink_attention(QUERY, KEY, VALUE, SINKS[:3])
    with pytest.raises(ValueError, match="query: expected"):
        sink_attention(QUERY[0], KEY[0], VALUE[0], SINKS)
    with pytest.raises(ValueError, match="key: expected .*4"):
        sink_attention(QUERY, KEY[..., :3], VALUE, SINKS)
    with pytest.raises(ValueError, match="mask: expected"):
        sink_attention(QUERY, KEY, VALUE, SINKS, mask=torch.ones(4, 7, dtype=torch.bool))
    with pytest.raises(ValueError, match="x: expected"):
        layer()(X[..., :7])
    with pytest.raises(ValueError, match="num_kv_heads: expected"):
        SinkAttention(24, 6, num_kv_heads=4)
