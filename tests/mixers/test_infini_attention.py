"""Infini-attention: read before write, a state handed on at any segment, stable features, the delta rule."""

import pytest
import torch

from tested_transformer.functional.attention import attention
from tested_transformer.mixers.infini_attention import _positive, infini_attention
from tested_transformer.specs.infini_attention.spec import INFINI_ATTENTION
from tested_transformer.specs.judge import judge


def numbers(*shape, seed=1):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


QUERY, KEY, VALUE = numbers(2, 3, 7, 4), numbers(2, 3, 7, 4, seed=2), numbers(2, 3, 7, 5, seed=3)
GATE = numbers(3, seed=4)
ALWAYS, NEVER = torch.full((3,), 60.0).double(), torch.full((3,), -60.0).double()
DELTA = pytest.mark.parametrize("delta", [False, True])


def test_the_spec():
    verdict = judge(INFINI_ATTENTION, infini_attention)
    assert verdict.passed, verdict


@DELTA
@pytest.mark.parametrize("segment_length", [1, 2, 3, 7, 9])
def test_no_gradient_comes_from_a_later_token(delta, segment_length):
    """The leak test: not an output's number, and not a gradient, of a token before."""
    key, value = KEY.clone().requires_grad_(), VALUE.clone().requires_grad_()
    output, _, _ = infini_attention(
        QUERY, key, value, GATE, segment_length=segment_length, delta=delta
    )
    for token in range(7):
        found = torch.autograd.grad(output[:, :, token].sum(), (key, value), retain_graph=True)
        for each in found:
            assert not each[:, :, token + 1 :].any()
            assert bool(each[:, :, : token + 1].any()) or each is found[0]  # one key: no choice


@DELTA
@pytest.mark.parametrize("cut", [2, 4, 6])
def test_a_state_is_handed_on_with_its_gradients(delta, cut):
    options = {"segment_length": 2, "delta": delta}
    results = []
    for parts in ((7,), (cut, 7 - cut)):
        given = [each.clone().requires_grad_() for each in (QUERY, KEY, VALUE, GATE)]
        memory = normalizer = None
        outputs = []
        for q, k, v in zip(*(x.split(parts, 2) for x in given[:3]), strict=True):
            output, memory, normalizer = infini_attention(
                q, k, v, given[3], memory=memory, normalizer=normalizer, **options
            )
            outputs.append(output)
        output = torch.cat(outputs, 2)
        (output.square().sum() + memory.sum()).backward()
        results.append([output, memory, normalizer, *(each.grad for each in given)])
    torch.testing.assert_close(*results)


def test_gates_choose_between_both():
    local, _, _ = infini_attention(QUERY, KEY, VALUE, NEVER, segment_length=3)
    for start in (0, 3, 6):
        part = slice(start, start + 3)
        alone = attention(QUERY[:, :, part], KEY[:, :, part], VALUE[:, :, part], causal=True)
        torch.testing.assert_close(local[:, :, part], alone)
    recalled, _, _ = infini_attention(QUERY, KEY, VALUE, ALWAYS, segment_length=3)
    assert float(recalled[:, :, :3].abs().max()) < 1e-20  # an empty memory returns 0
    past = _positive(QUERY[:, :, 6:]) @ _positive(KEY[:, :, :6]).mT
    wanted = past / past.sum(-1, keepdim=True) @ VALUE[:, :, :6]
    torch.testing.assert_close(recalled[:, :, 6:], wanted)


def test_the_state_does_not_grow():
    for length in (2, 7):
        part = (each[:, :, :length] for each in (QUERY, KEY, VALUE))
        _, memory, normalizer = infini_attention(*part, GATE, segment_length=2)
        assert (memory.shape, normalizer.shape) == ((2, 3, 4, 5), (2, 3, 4))


def test_the_delta_rule_does_not_write_what_is_known():
    """The same segment twice: without the rule it counts twice, with it the recalled values stay."""
    repeated = [torch.cat((each[:, :, :1], each[:, :, :1]), 2) for each in (QUERY, KEY, VALUE)]
    _, once, _ = infini_attention(*(x[:, :, :1] for x in repeated), GATE, segment_length=1)
    _, plain, _ = infini_attention(*repeated, GATE, segment_length=1)
    _, delta, total = infini_attention(*repeated, GATE, segment_length=1, delta=True)
    torch.testing.assert_close(plain, 2 * once)
    torch.testing.assert_close(delta, once)
    features = _positive(KEY[:, :, 0])
    torch.testing.assert_close(total, 2 * features)  # so that it is recalled by half, from then on


def test_features_are_above_zero():
    """elu(x) + 1 rounds to 0 in float32; the exponential does not until it has no number any more."""
    x = torch.tensor([-90.0, -17.4, -1.0, 0.0, 2.0])
    found = _positive(x)
    assert bool((found > 0).all())
    assert float((torch.nn.functional.elu(x) + 1)[1]) == 0.0
    torch.testing.assert_close(found[2:], torch.tensor([0.36787944, 1.0, 3.0]))
    output, memory, _ = infini_attention(
        -1e4 * QUERY.abs(), -1e4 * KEY.abs(), VALUE, GATE, segment_length=2
    )
    assert bool(torch.isfinite(output).all())
    assert bool(torch.isfinite(memory).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_keeps_its_dtype_and_a_wide_memory(dtype):
    given = [each.to(dtype) for each in (QUERY, KEY, VALUE, GATE)]
    output, memory, normalizer = infini_attention(*given, segment_length=2)
    assert (output.dtype, memory.dtype, normalizer.dtype) == (dtype, *2 * (torch.float32,))
    exact = infini_attention(*(each.double() for each in given), segment_length=2)
    far = (output.double() - exact[0]).abs().max()
    assert float(far) < 8 * torch.finfo(dtype).eps * float(exact[0].abs().max())


@pytest.mark.plain_types
def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="segment_length: expected at least 1"):
        infini_attention(QUERY, KEY, VALUE, GATE, segment_length=0)
    with pytest.raises(ValueError, match="gate: expected"):
        infini_attention(QUERY, KEY, VALUE, GATE[:2], segment_length=2)
    with pytest.raises(ValueError, match="normalizer: expected a tensor: memory and normalizer"):
        infini_attention(QUERY, KEY, VALUE, GATE, segment_length=2, memory=numbers(2, 3, 4, 5))
    with pytest.raises(ValueError, match="memory: expected"):
        infini_attention(
            QUERY, KEY, VALUE, GATE, segment_length=2, memory=numbers(2, 3, 5, 4), normalizer=KEY[:, :, 0]
        )  # fmt: skip
