"""LongNet: one softmax over all branches, heads that begin at different positions, no later token."""

import pytest
import torch

from mixers.test_patterns import LENGTHS, pairs_of, tensors
from tested_transformer.functional.attention import attention
from tested_transformer.mixers.longnet import LongNet, longnet_attention

SIZES = (3, 6), (1, 2)  # segments, dilations


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("head", range(3))
def test_the_parts_list_each_pair_as_often_as_it_counts(head, length):
    pattern = LongNet(*SIZES, head=head)
    assert torch.equal(pairs_of(pattern.parts(length), length), pattern.counts(length))
    assert torch.equal(pattern.counts(length) > 0, pattern.mask(length))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 5, 6, 13])
def test_it_is_dense_attention_with_log_counts(length, causal):
    query, key, value = (each.requires_grad_() for each in tensors(length))
    counts = torch.stack([LongNet(*SIZES, head, causal).counts(length) for head in range(3)])
    dense = attention(query, key, value, bias=counts[None].double().log())
    sparse = longnet_attention(query, key, value, *SIZES, causal=causal)
    torch.testing.assert_close(sparse, dense)
    towards = torch.randn_like(dense)
    gradients = (
        torch.autograd.grad(each, (query, key, value), towards) for each in (sparse, dense)
    )
    torch.testing.assert_close(*gradients)


def test_the_weights_sum_to_1_and_a_key_of_two_branches_has_twice_the_weight():
    query, key = torch.zeros(2, 1, 1, 6, 4)
    weights = longnet_attention(query, key, torch.eye(6)[None, None], *SIZES)[0, 0]
    torch.testing.assert_close(weights.sum(-1), torch.ones(6))
    # query 4: 3 and 4 in its segment of three; 0, 2 and 4 in the branch with holes
    torch.testing.assert_close(weights[4], torch.tensor([1, 0, 1, 1, 2, 0]) / 5)


@pytest.mark.parametrize("causal", [True, False])
def test_one_branch_of_the_whole_length_is_full_attention(causal):
    query, key, value = tensors(9)
    full = attention(query, key, value, causal=causal)
    found = longnet_attention(query, key, value, (9,), (1,), causal=causal)
    torch.testing.assert_close(found, full)


def test_no_token_depends_on_a_later_one():
    query, key, value = tensors(13)
    before = longnet_attention(query, key, value, *SIZES)[:, :, :7]
    key[:, :, 7:], value[:, :, 7:] = 3.0, -2.0
    after = longnet_attention(query, key, value, *SIZES)[:, :, :7]
    torch.testing.assert_close(after, before, rtol=0, atol=0)


def test_a_padded_batch_is_its_sequences_one_by_one():
    query, key, value = tensors(13)
    lengths = torch.tensor([13, 8])
    real = torch.arange(13) < lengths[:, None]
    together = longnet_attention(query, key, value, *SIZES, key_mask=real, causal=False)
    for b, length in enumerate(lengths.tolist()):
        alone = [each[b : b + 1, :, :length] for each in (query, key, value)]
        expected = longnet_attention(*alone, *SIZES, causal=False)
        torch.testing.assert_close(together[b : b + 1, :, :length], expected)


def test_a_query_that_no_branch_selects_gets_zeros():
    query, key, value = tensors(4)
    output = longnet_attention(query, key, value, (4,), (2,))
    assert (output[:, 0, 1::2] == 0).all()  # head 0 selects positions 0 and 2
    assert (output[:, 1, 0::2] == 0).all()
    assert (output[:, 0, 0::2] != 0).all()


@pytest.mark.parametrize("sizes", [((2, 4), (1,)), ((), ()), ((2,), (3,)), ((0,), (1,))], ids=str)
def test_sizes_that_cannot_be_are_errors_that_name_them(sizes):
    with pytest.raises(ValueError, match=r"^(dilation|segment)"):
        longnet_attention(*tensors(4), *sizes)
