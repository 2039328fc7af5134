"""After how many layers a position can depend on another: closed forms and gradients agree."""

import math

import pytest
import torch

from tested_transformer.analysis.reach import layers_to_reach
from tested_transformer.functional.attention import attention
from tested_transformer.mixers.fixed_patterns import Atrous, Local, fixed_pattern, strided_pattern
from tested_transformer.mixers.longnet import LongNet


def union_of_heads(segments, dilations, heads, length):
    masks = [LongNet(segments, dilations, head).mask(length) for head in range(heads)]
    return torch.stack(masks).any(0)


@pytest.mark.parametrize(("length", "window"), [(2, 2), (12, 2), (12, 4), (13, 4), (30, 8)])
def test_a_causal_window_moves_window_minus_1_tokens_per_layer(length, window):
    layers = layers_to_reach(Local(window, causal=True).mask(length))
    assert layers[-1, 0] == math.ceil((length - 1) / (window - 1))
    assert layers[0, -1] == -1


def test_a_window_of_one_reaches_nothing():
    layers = layers_to_reach(Local(1).mask(5))
    assert torch.equal(layers, torch.eye(5).long() - 1)


def test_atrous_alone_never_leaves_its_remainder():
    layers = layers_to_reach(Atrous(3).mask(12))
    ids = torch.arange(12)
    other = (ids[:, None] - ids) % 3 != 0
    assert (layers[other] == -1).all()
    assert layers[~other].max() == 1
    assert layers[~other].min() == 0


@pytest.mark.parametrize("pattern", [strided_pattern(4), fixed_pattern(4)], ids=str)
def test_strided_and_fixed_reach_every_earlier_token_in_two_layers(pattern):
    layers = layers_to_reach(pattern.mask(30))
    assert layers.max() == 2
    assert (layers[torch.ones(30, 30).tril().bool()] >= 0).all()


def test_two_kinds_of_layers_in_turn():
    local, atrous = Local(4, causal=True).mask(30), Atrous(4, causal=True).mask(30)
    assert layers_to_reach(local, atrous).max() == 2
    masks = (Local(1).mask(3), Local(3).mask(3))  # the first layer attends to itself alone
    assert layers_to_reach(*masks).tolist() == [[0, 2, 2], [2, 0, 2], [2, 2, 0]]


def test_a_position_that_attends_to_nothing_keeps_what_it_knows():
    nothing, one_back = torch.zeros(3, 3).bool(), torch.ones(2).diag(-1).bool()
    assert layers_to_reach(nothing, one_back).tolist() == [[0, -1, -1], [2, 0, -1], [4, 2, 0]]


@pytest.mark.parametrize("doublings", range(1, 5))
def test_longnet_reaches_everything_from_the_last_token_in_logarithmically_many_layers(doublings):
    segments = tuple(4 * 2**n for n in range(doublings + 1))
    dilations = tuple(2**n for n in range(doublings + 1))
    length = segments[-1]
    layers = layers_to_reach(union_of_heads(segments, dilations, dilations[-1], length))
    assert (layers[-1] >= 0).all()
    assert layers[-1, 0] <= doublings + 1


def test_the_first_token_of_a_segment_of_longnet_never_hears_of_the_token_before_it():
    layers = layers_to_reach(union_of_heads((4, 8, 16), (1, 2, 4), 4, 16))
    assert layers[4, 3] == -1  # 4 reads the even positions of the wider segment, 3 is odd
    assert layers[8, 7] == -1


def test_without_the_offset_later_segments_never_hear_of_some_tokens():
    one, all_heads = (union_of_heads((4, 8, 16), (1, 2, 4), heads, 16) for heads in (1, 4))
    assert (layers_to_reach(all_heads)[-1] >= 0).all()
    never = (layers_to_reach(one)[-1] == -1).nonzero().flatten()
    # 3, 7 and 11 end a short segment at an odd position; from 5 a path leads to 6 and 7 alone, and then the segment of 8 ends
    assert never.tolist() == [3, 5, 6, 7, 11]


def test_reach_is_what_gradients_flow_through():
    length, mask = 9, strided_pattern(3).mask(9)
    layers = layers_to_reach(mask)
    torch.manual_seed(0)
    x = torch.randn(1, 1, length, 4, dtype=torch.float64, requires_grad=True)
    hidden = x
    for layer in range(1, 4):
        hidden = hidden + attention(hidden, hidden, hidden, mask=mask)
        for i in range(length):
            (gradient,) = torch.autograd.grad(hidden[0, 0, i].sum(), x, retain_graph=True)
            reached = gradient[0, 0].abs().sum(-1) > 0
            assert torch.equal(reached, (layers[i] >= 0) & (layers[i] <= layer))


def test_masks_of_no_tokens_and_no_masks():
    assert layers_to_reach(torch.ones(0, 0, dtype=torch.bool)).shape == (0, 0)
    with pytest.raises(ValueError, match="masks"):
        layers_to_reach()
