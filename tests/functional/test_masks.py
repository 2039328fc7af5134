"""Masks and the masked softmax: against their Specs, torch's own attention, and by properties."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from tested_transformer import SelfAttention, attention
from tested_transformer.functional import masks
from tested_transformer.specs import SPECS, judge, pitfall
from tested_transformer.specs.masks.spec import MASK_SPECS, MASKED_SOFTMAX, textbook

SIZES = st.integers(0, 7)
FEW = settings(max_examples=30)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("spec", MASK_SPECS, ids=lambda spec: spec.name)
def test_the_package_passes(spec, seed):
    verdict = judge(spec, getattr(masks, spec.name), seed=seed)
    assert verdict.passed, verdict
    assert not verdict.skipped
    assert verdict.num_cases == len(spec.draw(seed))


def test_the_baseline_has_the_right_numbers():
    for case in MASKED_SOFTMAX.draw(0):
        if case.dtype == torch.float64:
            np.testing.assert_allclose(
                textbook(**case.tensors()).numpy(),
                MASKED_SOFTMAX.expected(case).astype(float),
                atol=1e-12,
            )


def test_what_no_judge_can_see_is_for_the_gallery_only():
    silent = [
        mutant for mutant in SPECS["padding_mask_from_tokens"].mutants if mutant.candidate is None
    ]
    assert [mutant.rejected_by for mutant in silent] == ["gallery only"]
    assert pitfall("padded with the unknown word") is silent[0]


# --- Against torch --------------------------------------------------------------------------------


def qkv(length, keys, heads=2, width=4, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(3, heads, n, width, generator=generator, dtype=dtype)
        for n in (length, keys, keys)
    ]


def every_mask(length, keys):
    lengths = torch.tensor([keys, 1, max(1, keys - 1)])
    both = masks.combine_masks(masks.causal_mask(length, keys), masks.padding_mask(lengths, keys))
    return {
        "causal": masks.causal_mask(length, keys),
        "window": masks.window_mask(length, keys, window=2),
        "padding": masks.padding_mask(lengths, keys),
        "causal and padding": both,
    }


@pytest.mark.parametrize(("length", "keys"), [(4, 4), (2, 5), (1, 6), (5, 3)])
@pytest.mark.parametrize("name", ["causal", "window", "padding", "causal and padding"])
def test_sdpa_reads_the_masks_as_we_do(name, length, keys):
    query, key, value = qkv(length, keys)
    mask = every_mask(length, keys)[name]
    expected = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    scores = query @ key.mT / 2
    ours = masks.masked_softmax(scores, mask) @ value
    torch.testing.assert_close(ours, expected)


def test_is_causal_of_sdpa_is_ours_only_for_equal_lengths():
    query, key, value = qkv(4, 4)
    theirs = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.testing.assert_close(attention(query, key, value, causal=True), theirs)
    query, key, value = qkv(2, 5)
    theirs = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    top_left = torch.ones(2, 5, dtype=torch.bool).tril()
    torch.testing.assert_close(attention(query, key, value, mask=top_left), theirs)
    assert not torch.allclose(attention(query, key, value, causal=True), theirs)


def mirror(width, heads):
    """nn.MultiheadAttention with identity projections: the formula and nothing else."""
    module = torch.nn.MultiheadAttention(
        width, heads, bias=False, batch_first=True, dtype=torch.float64
    )
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.eye(width).repeat(3, 1))
        module.out_proj.weight.copy_(torch.eye(width))
    return module


@pytest.mark.parametrize("weights", [True, False])
def test_multihead_attention_takes_the_opposite(weights):
    module, (query, key, value) = mirror(4, 1), (t[:, 0] for t in qkv(3, 5, heads=1))
    mask = masks.causal_mask(3, 5)
    theirs, _ = module(query, key, value, attn_mask=~mask, need_weights=weights)
    torch.testing.assert_close(attention(query, key, value, mask=mask), theirs)
    lengths = torch.tensor([5, 2, 3])
    kept = masks.padding_mask(lengths, 5, heads=False)
    theirs, _ = module(query, key, value, key_padding_mask=~kept[:, 0], need_weights=weights)
    torch.testing.assert_close(attention(query, key, value, mask=kept), theirs)


def test_multihead_attention_drops_a_cached_mask_that_is_called_causal():
    """A right mask, all visible, with is_causal=True and no weights: it sees key 0 alone."""
    module = mirror(4, 1)
    query, key = torch.zeros(1, 1, 4).double(), torch.zeros(1, 4, 4).double()
    value, hide = torch.eye(4).double()[None], ~masks.causal_mask(1, 4)
    options = {"attn_mask": hide, "is_causal": True}
    with_weights, _ = module(query, key, value, need_weights=True, **options)
    without, _ = module(query, key, value, need_weights=False, **options)
    assert with_weights.flatten().tolist() == [0.25] * 4
    assert without.flatten().tolist() == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_on_a_cpu():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    lengths, ids = torch.tensor([3, 5]), torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 2, 2]])
    rules = {
        "causal": (lambda b, h, i, j: j <= i, masks.causal_mask(5)),
        "padding": (lambda b, h, i, j: j < lengths[b], masks.padding_mask(lengths, 5)),
        "documents": (lambda b, h, i, j: ids[b, i] == ids[b, j], masks.document_mask(ids)),
        "prefix": (lambda b, h, i, j: (j < lengths[b]) | (j <= i), masks.prefix_mask(lengths, 5)),
        "window": (lambda b, h, i, j: (i - j).abs() < 2, masks.window_mask(5, window=2)),
    }
    for name, (rule, ours) in rules.items():
        theirs = flex.create_mask(rule, 2, 1, 5, 5, device="cpu")
        assert torch.equal(ours.expand(2, 1, 5, 5), theirs), name
    empty = flex.create_block_mask(lambda b, h, i, j: (j <= i) & (i != 1), 2, 1, 5, 5, device="cpu")
    query = torch.randn(2, 1, 5, 16)
    ours = attention(
        query, query, query, mask=masks.causal_mask(5) & (torch.arange(5) != 1)[:, None]
    )
    torch.testing.assert_close(flex.flex_attention(query, query, query, block_mask=empty), ours)
    assert not ours[:, :, 1].any()


# --- The source notes' printed numbers ------------------------------------------------------------

PRINTED = Path(__file__).parents[1] / "data" / "printed_values.json"
SENTENCE = [[0.43, 0.15, 0.89], [0.55, 0.87, 0.66], [0.57, 0.85, 0.64],
            [0.22, 0.58, 0.33], [0.77, 0.25, 0.10], [0.05, 0.80, 0.55]]  # fmt: skip


def test_causal_weights_and_dropout_as_printed():
    values = {each["id"]: each for each in json.loads(PRINTED.read_text("utf-8"))["values"]}
    torch.manual_seed(123)
    layer, x = SelfAttention(3, 2), torch.tensor(SENTENCE)
    _, free = layer(x, return_weights=True)
    _, weights = layer(x, causal=True, return_weights=True)
    kept = free * masks.causal_mask(6)
    torch.manual_seed(123)
    found = {
        "004.in14": kept / kept.sum(-1, keepdim=True),
        "004.in15": weights,
        "004.in16": functional.dropout(weights, 0.5),
    }
    for name, tensor in found.items():
        printed = torch.tensor(values[name]["printed"])
        half_a_unit = 0.5 * 10.0 ** -values[name]["decimals"]
        assert (tensor - printed).abs().max() <= half_a_unit + 1e-7, name


# --- Properties -----------------------------------------------------------------------------------


@FEW
@given(SIZES, SIZES)
def test_causal_rows_grow_by_one_and_end_full(length, keys):
    mask = masks.causal_mask(length, keys)
    expected = [max(0, keys - length + 1 + i) for i in range(length)]
    assert mask.sum(-1).tolist() == expected
    if length:
        assert mask[-1].all()


@FEW
@given(st.integers(1, 6), st.integers(0, 6), st.integers(1, 5))
def test_rows_of_a_bigger_mask_are_the_masks_of_a_cache(length, cached, window):
    keys = length + cached
    for make in (masks.causal_mask, lambda *n: masks.window_mask(*n, window=window)):
        assert torch.equal(make(keys, keys)[cached:], make(length, keys))


@FEW
@given(st.lists(st.integers(0, 6), max_size=4))
def test_padding_by_lengths_and_by_tokens_agree(lengths):
    lengths = torch.tensor(lengths, dtype=torch.int64)
    tokens = torch.where(torch.arange(6) < lengths[:, None], 5, 9)
    for heads in (True, False):
        by_length = masks.padding_mask(lengths, 6, heads=heads)
        assert torch.equal(by_length, masks.padding_mask_from_tokens(tokens, 9, heads=heads))
        assert by_length.shape == ((len(lengths), 1, 1, 6) if heads else (len(lengths), 1, 6))
        assert torch.equal(by_length.flatten(1).sum(1), lengths)


@FEW
@given(st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_documents_are_an_equivalence(ids):
    mask = masks.document_mask(torch.tensor([ids]))[0, 0]
    assert mask.diagonal().all()
    assert torch.equal(mask, mask.mT)
    assert torch.equal((mask.int() @ mask.int()) > 0, mask)


@FEW
@given(st.integers(0, 2**31), st.integers(1, 4), st.integers(1, 6), st.floats(-50, 50))
def test_masked_softmax_properties(seed, length, keys, shift):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(2, length, keys, generator=generator, dtype=torch.float64)
    allowed = torch.rand(length, keys, generator=generator) < 0.6
    weights = masks.masked_softmax(scores, allowed)
    assert not weights[..., ~allowed].any()
    torch.testing.assert_close(weights.sum(-1), allowed.any(-1).double().expand(2, -1))
    torch.testing.assert_close(weights, masks.masked_softmax(scores + shift, allowed))
    loud = scores.masked_fill(~allowed, 1e30)  # what stands in hidden places is never read
    assert torch.equal(weights, masks.masked_softmax(loud, allowed))


@pytest.mark.parametrize("allowed", [
    [[True, False, True], [False, False, False]],
    [[False, False, False], [False, False, False]],
    [[True, True, True], [False, True, False]],
])  # fmt: skip
def test_masked_softmax_gradcheck(allowed):
    scores = torch.randn(2, 2, 3, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor(allowed)
    assert torch.autograd.gradcheck(lambda s: masks.masked_softmax(s, mask), (scores,))
    assert torch.autograd.gradgradcheck(lambda s: masks.masked_softmax(s, mask), (scores,))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_masked_softmax_keeps_dtype_and_exact_zeros(dtype):
    scores = (torch.randn(2, 3, 5) * 30).to(dtype).requires_grad_()
    allowed = torch.tensor([[True] * 5, [False] * 5, [True, False, True, False, False]])
    weights = masks.masked_softmax(scores, allowed)
    assert weights.dtype == dtype
    assert not weights[:, 1].any()
    assert not weights[:, 2][:, [1, 3, 4]].any()
    (weights * torch.arange(5)).sum().backward()
    assert scores.grad.isfinite().all()
    assert not scores.grad[:, 1].any()


def test_combining_nothing_is_nothing():
    assert masks.combine_masks() is None
    assert masks.combine_masks(None, None) is None


def test_prefix_of_nothing_is_causal_and_of_everything_is_everything():
    mask = masks.prefix_mask(torch.tensor([0, 4]), 4)
    assert torch.equal(mask[0, 0], masks.causal_mask(4))
    assert mask[1].all()


# --- Complaints -----------------------------------------------------------------------------------

LENGTHS, TOKENS = torch.tensor([1, 2]), torch.tensor([[1, 2, 0]])
KEEP = torch.ones(2, 3, dtype=torch.bool)
BAD = {
    "a negative size": (lambda: masks.causal_mask(-1), ValueError, "num_queries.*at least 0.*-1"),
    "a size of True": (lambda: masks.causal_mask(True), TypeError, "num_queries.*int.*bool"),
    "a float size": (lambda: masks.causal_mask(3, 2.0), TypeError, "num_keys.*int.*float"),
    "a window of 0": (lambda: masks.window_mask(3, window=0), ValueError, "window.*at least 1.*0"),
    "a window of half": (lambda: masks.window_mask(3, window=1.5), TypeError, "window.*float"),
    "float lengths": (lambda: masks.padding_mask(LENGTHS.float(), 3), TypeError,
                      "lengths.*integer.*float32"),
    "a list of lengths": (lambda: masks.padding_mask([1, 2], 3), TypeError, "lengths.*Tensor.*list"),
    "lengths of rank 2": (lambda: masks.padding_mask(LENGTHS[None], 3), ValueError,
                          r"lengths.*1 axis \(B,\).*\(1, 2\)"),
    "negative lengths": (lambda: masks.padding_mask(-LENGTHS, 3), ValueError, "lengths.*at least 0 and at most num_keys = 3, got -2 to -1"),
    "lengths above S": (lambda: masks.padding_mask(LENGTHS, 1), ValueError, "lengths.*at least 0 and at most num_keys = 1, got 1 to 2"),
    "float tokens": (lambda: masks.padding_mask_from_tokens(TOKENS / 1, 0), TypeError, "tokens"),
    "tokens of rank 1": (lambda: masks.padding_mask_from_tokens(TOKENS[0], 0), ValueError, "2 axes"),
    "a padding id of None": (lambda: masks.padding_mask_from_tokens(TOKENS, None), TypeError,
                             "pad_id.*NoneType"),
    "a prefix too long": (lambda: masks.prefix_mask(LENGTHS, 1), ValueError, "prefix|lengths"),
    "float documents": (lambda: masks.document_mask(TOKENS / 1), TypeError, "document_ids"),
    "documents of rank 1": (lambda: masks.document_mask(TOKENS[0]), ValueError, "document_ids"),
    "a uint8 mask joined": (lambda: masks.combine_masks(KEEP, KEEP.byte()), TypeError,
                            r"masks\[1\].*torch.bool.*uint8"),
    "ranks 3 and 4 joined": (lambda: masks.combine_masks(KEEP[None], KEEP[None, None]), ValueError,
                             r"masks\[1\].*\(L, S\) = \(2, 3\) or .*= \(1, 2, 3\).*masks\[0\]"),
    "shapes that do not fit": (lambda: masks.combine_masks(KEEP, KEEP.mT), ValueError,
                               r"masks\[1\].*\(L, S\) = \(2, 3\) or .*masks\[0\].*\(3, 2\)"),
    "integer scores": (lambda: masks.masked_softmax(TOKENS, None), TypeError, "scores.*floating"),
    "a float mask": (lambda: masks.masked_softmax(KEEP / 1, KEEP / 1), TypeError,
                     "allowed.*torch.bool"),
    "a mask between the ranks": (lambda: masks.masked_softmax(torch.ones(2, 2, 2, 3), KEEP[None]),
                                 ValueError, r"allowed.*\(1, 2, 3\)"),
    "a mask of another size": (lambda: masks.masked_softmax(torch.ones(2, 4), KEEP), ValueError,
                               r"allowed.*\(2, 4\)"),
}  # fmt: skip


@pytest.mark.plain_types
@pytest.mark.parametrize("name", BAD)
def test_complaints(name):
    call, kind, words = BAD[name]
    with pytest.raises(kind, match=words):
        call()
