"""Linformer: equal to torch's kernel on projected keys, to full attention with identities, and never causal."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from same_numbers import assert_same_numbers
from tested_transformer.functional.attention import attention
from tested_transformer.layers.linformer import LinformerAttention
from tested_transformer.mixers.linformer import linformer_attention
from tested_transformer.specs import pitfall
from tested_transformer.specs.judge import judge
from tested_transformer.specs.linformer.spec import LINFORMER_ATTENTION

EPS = torch.finfo(torch.float64).eps


def numbers(*shape, seed=1):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


QUERY, KEY, VALUE = numbers(2, 3, 9, 4), numbers(2, 3, 9, 4, seed=2), numbers(2, 3, 9, 5, seed=3)
E, F = numbers(3, 4, 9, seed=4) / 3, numbers(3, 4, 9, seed=5) / 3


def test_the_spec():
    verdict = judge(LINFORMER_ATTENTION, linformer_attention)
    assert verdict.passed, verdict


def runs(function, *inputs):
    """Output and every gradient, as a function of a dtype."""

    def run(dtype):
        given = [each.clone().to(dtype).detach().requires_grad_() for each in inputs]
        output = function(*given)
        (output * numbers(*output.shape, seed=7).to(dtype)).sum().backward()
        return {"output": [output], "gradients": [each.grad for each in given]}

    return run


def test_torchs_kernel_on_projected_keys():
    inputs = (QUERY, KEY, VALUE, E, F)
    theirs = runs(lambda q, k, v, e, f: scaled_dot_product_attention(q, e @ k, f @ v), *inputs)
    assert_same_numbers(runs(linformer_attention, *inputs), theirs)


def test_with_identities_it_is_full_attention():
    one = torch.eye(9, dtype=torch.float64)[None]
    found = linformer_attention(QUERY, KEY, VALUE, one, one)
    torch.testing.assert_close(found, scaled_dot_product_attention(QUERY, KEY, VALUE))


def test_a_padded_text_is_the_text_alone():
    real = torch.ones(2, 9, dtype=torch.bool)
    real[1, 6:] = False
    together = linformer_attention(QUERY, KEY, VALUE, E, F, key_mask=real)
    short = [each[1:, :, :6] for each in (QUERY, KEY, VALUE)]
    alone = linformer_attention(*short, E[..., :6], F[..., :6])
    torch.testing.assert_close(together[1:, :, :6], alone)


def test_nothing_but_padding_gives_zeros():
    real = torch.zeros(2, 9, dtype=torch.bool)
    assert linformer_attention(QUERY, KEY, VALUE, E, F, key_mask=real).abs().max() == 0


@pytest.mark.parametrize("causal", [None, "a causal mask over the projected keys"])
def test_the_last_token_reaches_the_first_query(causal):
    """No causal form: the mask of the pitfall hides projected keys, and the last token is in the first of them."""
    function = linformer_attention if causal is None else pitfall(causal).candidate
    changed = VALUE.clone()
    changed[:, :, -1] += 1.0
    before, after = (function(QUERY, KEY, value, E, F) for value in (VALUE, changed))
    right = attention(QUERY, KEY, changed, causal=True) - attention(QUERY, KEY, VALUE, causal=True)
    assert right[:, :, :-1].abs().max() == 0
    assert (after - before)[:, :, 0].abs().amin((-1, -2)).min() > 1e-3


def test_another_length_raises():
    with pytest.raises(ValueError, match=r"key_projection.*9"):
        linformer_attention(QUERY, KEY[:, :, :8], VALUE[:, :, :8], E, F)


def test_half_precision_keeps_its_dtype():
    given = [each.half() for each in (QUERY, KEY, VALUE, E, F)]
    found = linformer_attention(*given)
    assert found.dtype == torch.float16
    wide = linformer_attention(*(each.double() for each in given))
    torch.testing.assert_close(found.double(), wide, rtol=0, atol=4e-3)


def test_memory_grows_with_the_length():
    """No tensor that autograd keeps has L x L numbers."""
    length, saved = 512, []
    query = torch.randn(1, 1, length, 8, requires_grad=True)
    e = torch.randn(1, 16, length)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: saved.append(t.numel()) or t, lambda t: t
    ):
        linformer_attention(query, query, query, e, e).sum()
    assert max(saved) <= 16 * length


# --- As a layer -----------------------------------------------------------------------------------


def test_the_layer():
    layer = LinformerAttention(12, 3, 9, 4).double()
    x = numbers(2, 9, 12, seed=6)
    output = layer(x)
    output.sum().backward()
    assert output.shape == x.shape
    assert all(
        weight.grad.abs().max() > 0 for weight in layer.parameters() if weight is not layer.key.bias
    )
    q, k, v = (
        getattr(layer, name)(x).unflatten(-1, (3, 4)).transpose(1, 2)
        for name in ("query", "key", "value")
    )
    heads = scaled_dot_product_attention(q, layer.key_projection @ k, layer.value_projection @ v)
    expected = layer.output(heads.transpose(1, 2).flatten(2))
    torch.testing.assert_close(output, expected)


def test_the_layer_has_one_length():
    layer = LinformerAttention(12, 3, 9, 4)
    with pytest.raises(ValueError, match=r"x: expected .*9"):
        layer(torch.randn(2, 10, 12))
