"""Sparse attention by parts equals dense attention under the pattern's mask, and computes no other scores."""

import pytest
import torch

from tested_transformer.functional.attention import attention
from tested_transformer.mixers.fixed_patterns import Local
from tested_transformer.mixers.global_patterns import BigBird, LocalGlobal
from tested_transformer.mixers.patterns import Part, sparse_attention

PATTERNS = [Local(3), Local(3, causal=True), Local(1), Local(20), Local(20, causal=True)]
PATTERNS += [LocalGlobal(3, (0, 5)), LocalGlobal(2, (1, 6), causal=True), LocalGlobal(1, ())]
PATTERNS += [BigBird(2, 1), BigBird(3, 2, seed=1), BigBird(1, 0), BigBird(2, 9)]


def tensors(length, dtype=torch.float64, widths=(4, 4, 3)):
    made = torch.Generator().manual_seed(length)
    return [torch.randn(2, 3, length, d, generator=made, dtype=dtype) for d in widths]


@pytest.mark.parametrize("length", [0, 1, 2, 7, 12])
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_parts_list_each_pair_of_the_mask_once(pattern, length):
    counts = torch.zeros(length, length, dtype=torch.int64)
    for part in pattern.parts(length):
        for queries, keys, mask in zip(*part, strict=True):
            i, j = mask.nonzero(as_tuple=True)
            counts.index_put_((queries[i], keys[j]), torch.tensor(1), accumulate=True)
    assert torch.equal(counts, pattern.mask(length).long())


@pytest.mark.parametrize("length", [0, 1, 2, 7, 12])
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_parts_give_what_the_mask_gives(pattern, length):
    query, key, value = (each.requires_grad_() for each in tensors(length))
    real = torch.arange(length).expand(2, -1) < torch.tensor([[length], [length - 2]])
    allowed = pattern.mask(length) & real[:, None, None, :]
    dense = attention(query, key, value, mask=allowed)
    sparse = sparse_attention(query, key, value, pattern, key_mask=real)
    torch.testing.assert_close(sparse, dense)
    towards = torch.randn_like(dense)
    gradients = (
        torch.autograd.grad(each, (query, key, value), towards) for each in (sparse, dense)
    )
    torch.testing.assert_close(*gradients)


def test_a_pair_in_two_parts_counts_twice():
    class Twice(Local):
        def parts(self, length: int) -> list[Part]:
            return 2 * super().parts(length)[:1] + Local(1).parts(length)

    query, key, value = tensors(5)
    counts = 2 * Local(2).mask(5) + Local(1).mask(5)
    expected = attention(query, key, value, bias=counts.double().log())
    torch.testing.assert_close(sparse_attention(query, key, value, Twice(2)), expected)


def test_a_window_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="window"):
        Local(0)


def test_half_precision_keeps_its_dtype_and_scale_its_meaning():
    query, key, value = tensors(6, torch.bfloat16)
    sparse = sparse_attention(query, key, value, Local(2), scale=0.1)
    dense = attention(query, key, value, mask=Local(2).mask(6), scale=0.1)
    assert sparse.dtype == torch.bfloat16
    torch.testing.assert_close(sparse, dense)
