"""Longformer's and BigBird's attention: equal to dense attention, with costs that grow with the length."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tested_transformer.functional.attention import attention
from tested_transformer.mixers.global_patterns import BigBird, LocalGlobal, big_bird_attention
from tested_transformer.mixers.longformer import longformer_attention
from tested_transformer.mixers.patterns import sparse_attention
from tested_transformer.specs.global_patterns.spec import BIG_BIRD_ATTENTION, LONGFORMER_ATTENTION
from tested_transformer.specs.judge import judge


def heads(length, number=6, seed=1, batch=2, dtype=torch.float64):
    made = torch.Generator().manual_seed(seed)
    return torch.randn(number, batch, 3, length, 4, generator=made, dtype=dtype).unbind()


def chosen(length, *ids):
    """Global tokens of two sequences."""
    is_global = torch.zeros(2, length, dtype=torch.bool)
    for row, each in zip(is_global, ids, strict=True):
        row[list(each)] = True
    return is_global


def test_the_spec_of_longformer():
    verdict = judge(LONGFORMER_ATTENTION, longformer_attention)
    assert verdict.passed, verdict


def test_the_spec_of_big_bird():
    verdict = judge(BIG_BIRD_ATTENTION, big_bird_attention)
    assert verdict.passed, verdict


# --- Dense limits ---------------------------------------------------------------------------------


def test_a_window_of_everything_is_full_attention():
    query, key, value, *of_global = heads(9)
    full = attention(query, key, value)
    for pattern in (LocalGlobal(9, (3,)), LocalGlobal(1, tuple(range(9))), BigBird(2, 5)):
        torch.testing.assert_close(sparse_attention(query, key, value, pattern), full)
    nobody = chosen(9, (), ())
    local = longformer_attention(query, key, value, *of_global, nobody, window=9)
    torch.testing.assert_close(local, full)
    same = longformer_attention(query, key, value, query, key, value, ~nobody, window=1)
    torch.testing.assert_close(same, full)


def test_one_set_of_projections_is_a_pattern():
    query, key, value, *_ = heads(11)
    is_global = chosen(11, (0, 4), (0, 4))
    one_set = longformer_attention(query, key, value, query, key, value, is_global, window=2)
    pattern = sparse_attention(query, key, value, LocalGlobal(2, (0, 4)))
    torch.testing.assert_close(one_set, pattern)


# --- Leaks ----------------------------------------------------------------------------------------


def leaks(pattern, length=13):
    """The largest change of an earlier output when the last key and value change."""
    query, key, value, *_ = heads(length)
    before = sparse_attention(query, key, value, pattern)
    for each in (key, value):
        each[:, :, -1] += 1.0
    return float((sparse_attention(query, key, value, pattern) - before)[:, :, :-1].abs().max())


def test_a_causal_window_with_global_tokens_does_not_leak():
    assert leaks(LocalGlobal(3, (0, 7, 12), causal=True)) == 0
    assert leaks(LocalGlobal(3, (0, 7))) > 0.01


def test_big_bird_leaks():
    """The last block is read by all: there is no causal version of this pattern."""
    assert leaks(BigBird(2, 1)) > 0.01


# --- Longformer -----------------------------------------------------------------------------------


def test_every_input_gets_a_gradient_and_only_through_its_own_queries():
    given = [each.requires_grad_() for each in heads(8)]
    is_global = chosen(8, (1, 6), (3,))
    output = longformer_attention(*given, is_global, window=2)
    of_rows = torch.autograd.grad(output[0, :, 1].sum(), given, retain_graph=True)
    assert all(each.abs().max() == 0 for each in of_rows[:3])
    assert all(each.abs().max() > 0 for each in of_rows[3:])
    of_local = torch.autograd.grad(output[0, :, 2].sum(), given, retain_graph=True)
    assert all(each.abs().max() > 0 for each in of_local[:3])
    assert all(each.abs().max() == 0 for each in of_local[3:])


def test_half_precision_keeps_its_dtype():
    given = heads(9, dtype=torch.bfloat16)
    is_global = chosen(9, (0,), (2, 5))
    output = longformer_attention(*given, is_global, window=3)
    wide = longformer_attention(*(each.float() for each in given), is_global, window=3)
    assert output.dtype == torch.bfloat16
    assert (output - wide).abs().max() <= 4 * torch.finfo(torch.bfloat16).eps * wide.abs().max()


def test_scores_without_a_square_of_the_length():
    """Twice as long a text, twice the multiplications: 2 d (3 w + g) for local queries, 2 d L for global ones."""
    made = {}
    for length in (64, 128, 256):
        given = heads(length, batch=1)
        is_global = torch.zeros(1, length, dtype=torch.bool)
        is_global[:, :2] = True
        math = sdpa_kernel(SDPBackend.MATH)  # whose matrix products the counter sees
        with math, FlopCounterMode(display=False) as counter:
            longformer_attention(*given, is_global, window=8)
        made[length] = counter.get_total_flops()
        pairs = length * (3 * 8 + 2) + 2 * length
        assert made[length] == 2 * 2 * 4 * 3 * pairs
    assert made[256] == 2 * made[128] == 4 * made[64]


# --- BigBird --------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_blocks", [3, 4, 6, 9, 20])
def test_random_blocks_are_far_and_differ(num_blocks):
    for i, row in enumerate(BigBird(2, 3, seed=5)._random_blocks(num_blocks).tolist(), start=1):
        blocks = [j for j in row if j >= 0]
        others = {j for j in range(1, num_blocks - 1) if abs(i - j) > 1}
        assert len(set(blocks)) == len(blocks) == min(3, len(others))
        assert set(blocks) <= others


def test_every_other_block_is_as_probable():
    """Each of the 7 blocks that row 1 may read, in 3 of 7 patterns; 5 standard deviations are allowed."""
    counts = torch.zeros(10)
    for seed in range(700):
        counts[BigBird(2, 3, seed=seed)._random_blocks(10)[0]] += 1
    assert counts[[0, 1, 2, 9]].sum() == 0
    assert (counts[3:9] - 350).abs().max() <= 5 * (700 * 0.25) ** 0.5


def test_a_seed_gives_the_same_pattern():
    first, again, other = (BigBird(2, 2, seed=seed).mask(40) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_cost_of_big_bird_is_linear():
    made = []
    for length in (64, 128, 256):
        given = heads(length, number=3, batch=1)
        with FlopCounterMode(display=False) as counter:
            sparse_attention(*given, BigBird(4, 2))
        blocks = length // 4
        pairs = 2 * 4 * length + (blocks - 2) * 4 * (5 + 2) * 4
        assert counter.get_total_flops() == 2 * 2 * 4 * 3 * pairs
        made.append(counter.get_total_flops() / length)
    assert made[2] < 1.1 * made[0]


@pytest.mark.plain_types
def test_bad_input_is_refused():
    query, key, value, *of_global = heads(8)
    is_global = chosen(8, (0,), (1,))
    with pytest.raises(ValueError, match="window: expected at least 1"):
        longformer_attention(query, key, value, *of_global, is_global, window=0)
    with pytest.raises(ValueError, match="is_global: expected"):
        longformer_attention(query, key, value, *of_global, is_global[:, :7], window=2)
    with pytest.raises(ValueError, match=r"global_ids\[0\]: expected at least 0"):
        LocalGlobal(2, (-1,))
    with pytest.raises(ValueError, match="length: expected at least 0"):
        BigBird(2, 1).mask(-1)
    with pytest.raises(TypeError, match="length: expected an int"):
        LocalGlobal(2, (1,)).parts(2.5)
    with pytest.raises(ValueError, match="num_random_blocks: expected at least 0"):
        BigBird(2, -1)
    blocks = torch.zeros(3, 2, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match="random_blocks: expected 2 rows"):
        big_bird_attention(query, key, value, blocks[:, :1], block_size=2)
    with pytest.raises(ValueError, match="random_blocks: expected below 4"):
        big_bird_attention(query, key, value, blocks + 4, block_size=2)
    with pytest.raises(ValueError, match="random_blocks: expected"):
        big_bird_attention(query, key, value, blocks[:2], block_size=2)
