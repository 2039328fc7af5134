"""Sparse attention by parts equals dense attention under the pattern's mask, and computes no other scores."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from tested_transformer import reference
from tested_transformer.functional.attention import attention
from tested_transformer.mixers.fixed_patterns import (
    Atrous,
    Blocks,
    Local,
    Merged,
    Summaries,
    attention_per_head,
    fixed_pattern,
    strided_pattern,
)
from tested_transformer.mixers.global_patterns import BigBird, LocalGlobal
from tested_transformer.mixers.longnet import DilatedBranch
from tested_transformer.mixers.patterns import Part, Pattern, sparse_attention

PATTERNS = [
    Local(3),
    Local(3, causal=True),
    Local(1),
    Local(20),
    Local(20, causal=True),
    Atrous(3),
    Atrous(3, causal=True),
    Atrous(20),
    Blocks(3),
    Blocks(3, causal=True),
    Summaries(3, 2),
    Summaries(3, 1, causal=True),
    strided_pattern(3),
    strided_pattern(3, causal=False),
    strided_pattern(1),
    fixed_pattern(3),
    fixed_pattern(4, 2, causal=False),
    DilatedBranch(4, 2, 1),
    DilatedBranch(5, 3, 2, causal=False),
    LocalGlobal(3, (0, 5)),
    LocalGlobal(2, (1, 6), causal=True),
    LocalGlobal(1, ()),
    BigBird(2, 1),
    BigBird(3, 2, seed=1),
    BigBird(1, 0),
    BigBird(2, 9),
]
CAUSAL = [each for each in PATTERNS if not each.mask(24).triu(1).any()]
LENGTHS = [0, 1, 2, 7, 12]


def tensors(length, dtype=torch.float64, widths=(4, 4, 3)):
    made = torch.Generator().manual_seed(length)
    return [torch.randn(2, 3, length, d, generator=made, dtype=dtype) for d in widths]


def pairs_of(parts, length):
    """How many times the parts have each pair."""
    counts = torch.zeros(length, length, dtype=torch.int64)
    for part in parts:
        for queries, keys, mask in zip(*part, strict=True):
            i, j = mask.nonzero(as_tuple=True)
            counts.index_put_((queries[i], keys[j]), torch.tensor(1), accumulate=True)
    return counts


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_parts_list_each_pair_of_the_mask_once(pattern, length):
    assert isinstance(pattern, Pattern)
    assert torch.equal(pairs_of(pattern.parts(length), length), pattern.mask(length).long())


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_parts_give_what_the_mask_gives(pattern, length):
    query, key, value = (each.requires_grad_() for each in tensors(length))
    real = torch.arange(length).expand(2, -1) < torch.tensor([[length], [length - 2]])
    allowed = pattern.mask(length) & real[:, None, None, :]
    dense = attention(query, key, value, mask=allowed)
    sparse = sparse_attention(query, key, value, pattern, key_mask=real)
    torch.testing.assert_close(sparse, dense)
    towards = torch.randn_like(dense)
    inputs = query, key, value
    expected = torch.autograd.grad(dense, inputs, towards)
    if not sparse.requires_grad:  # no pairs at all: zeros
        assert not any(gradient.any() for gradient in expected)
        return
    torch.testing.assert_close(torch.autograd.grad(sparse, inputs, towards), expected)


@pytest.mark.parametrize(
    "pattern", [Local(8), Atrous(1), Blocks(8), Summaries(8, 8), DilatedBranch(8, 1)], ids=str
)
def test_the_dense_limit_is_full_attention(pattern):
    query, key, value = tensors(8)
    full = attention(query, key, value, causal=pattern.causal)
    torch.testing.assert_close(sparse_attention(query, key, value, pattern), full)


@pytest.mark.parametrize("pattern", CAUSAL, ids=str)
def test_a_causal_pattern_reads_no_later_token(pattern):
    query, key, value = tensors(12)
    before = sparse_attention(query, key, value, pattern)[:, :, :7]
    key[:, :, 7:], value[:, :, 7:] = 3.0, -2.0
    after = sparse_attention(query, key, value, pattern)[:, :, :7]
    torch.testing.assert_close(after, before, rtol=0, atol=0)


@pytest.mark.parametrize("pattern", [p for p in PATTERNS if p not in CAUSAL], ids=str)
def test_a_pattern_that_is_not_causal_does_not_say_so(pattern):
    assert not getattr(pattern, "causal", False)


def test_the_masks_are_those_of_the_reference():
    for length, block in ((0, 2), (1, 3), (11, 3), (12, 4)):
        strided = strided_pattern(block).mask(length).numpy()
        assert (strided == reference.strided_mask(length, block)).all()
        fixed = fixed_pattern(block, 2).mask(length).numpy()
        assert (fixed == reference.fixed_mask(length, block, 2)).all()


@pytest.mark.plain_types  # FlexAttention traces the rule
@pytest.mark.parametrize("length", [97, 130])
@pytest.mark.parametrize(
    "pattern", [Local(20, causal=True), strided_pattern(16), fixed_pattern(16, 2)], ids=str
)
def test_flex_attention_takes_the_same_rule(pattern, length):
    query, key, value = tensors(length, torch.float32, widths=(16, 16, 16))

    def mask_mod(batch, head, query_id, key_id):
        return pattern.rule(query_id, key_id)

    mask = create_block_mask(mask_mod, None, None, length, length, device="cpu")
    flex = flex_attention(query, key, value, block_mask=mask)
    torch.testing.assert_close(sparse_attention(query, key, value, pattern), flex)


def test_a_pattern_per_head():
    query, key, value = tensors(7)
    patterns = [Local(2, causal=True), Atrous(2, causal=True), strided_pattern(3)]
    masks = torch.stack([each.mask(7) for each in patterns])[None].expand(2, -1, -1, -1)
    dense = attention(query, key, value, mask=masks)
    torch.testing.assert_close(attention_per_head(query, key, value, patterns), dense)


def test_a_pair_in_two_parts_counts_twice():
    class Twice(Local):
        def parts(self, length: int) -> list[Part]:
            return 2 * super().parts(length)[:1] + Local(1).parts(length)

    query, key, value = tensors(5)
    counts = 2 * Local(2).mask(5) + Local(1).mask(5)
    expected = attention(query, key, value, bias=counts.double().log())
    torch.testing.assert_close(sparse_attention(query, key, value, Twice(2)), expected)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("window", lambda: Local(0)),
        ("dilation", lambda: Atrous(0)),
        ("block", lambda: Blocks(0)),
        ("summary", lambda: Summaries(3, 4)),
        ("summary", lambda: fixed_pattern(3, 0)),
        ("stride", lambda: strided_pattern(0)),
        ("dilation", lambda: DilatedBranch(4, 5)),
        ("offset", lambda: DilatedBranch(4, 2, 2)),
        ("patterns", lambda: attention_per_head(*tensors(3), [Local(2)])),
        ("patterns", lambda: Merged(())),
    ],
)
def test_sizes_that_cannot_be_are_errors_that_name_the_argument(name, make):
    with pytest.raises(ValueError, match=rf"^{name}"):
        make()


def test_half_precision_keeps_its_dtype_and_scale_its_meaning():
    query, key, value = tensors(6, torch.bfloat16)
    sparse = sparse_attention(query, key, value, Local(2), scale=0.1)
    dense = attention(query, key, value, mask=Local(2).mask(6), scale=0.1)
    assert sparse.dtype == torch.bfloat16
    torch.testing.assert_close(sparse, dense)
