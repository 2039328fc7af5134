"""DeepSeek sparse attention: full attention in its limit, no future, no padding, no matrix of L x S; its loss."""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from same_numbers import assert_float32_same, assert_same_numbers
from tested_transformer.functional.attention import attention
from tested_transformer.functional.masks import causal_mask
from tested_transformer.mixers.indexed_attention import (
    attend_to_selected,
    indexed_attention,
    indexer_loss,
    indexer_scores,
    lightning_indexer,
    masked_indexed_attention,
    select_keys,
    selection_mask,
)
from tested_transformer.specs.indexed.spec import (
    INDEXED_ATTENTION,
    INDEXER_LOSS,
    LIGHTNING_INDEXER,
)
from tested_transformer.specs.judge import judge


def numbers(*shape, seed=1):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


LENGTH, HEADS, GROUPS, VOTERS = 11, 4, 2, 3
QUERY = numbers(2, HEADS, LENGTH, 6)
KEY, VALUE = numbers(2, GROUPS, LENGTH, 6, seed=2), numbers(2, GROUPS, LENGTH, 5, seed=3)
INDEX = (
    numbers(2, VOTERS, LENGTH, 4, seed=4),
    numbers(2, LENGTH, 4, seed=5),
    numbers(2, VOTERS, LENGTH, seed=6),
)
SIX = (QUERY, KEY, VALUE, *INDEX)
LEFT = torch.arange(LENGTH) >= torch.tensor([[0], [4]])
EACH = pytest.mark.parametrize("form", [indexed_attention, masked_indexed_attention])


@pytest.mark.parametrize(
    ("spec", "function"),
    [
        (INDEXED_ATTENTION, indexed_attention),
        (LIGHTNING_INDEXER, lightning_indexer),
        (INDEXER_LOSS, indexer_loss),
    ],
)
def test_the_spec(spec, function):
    verdict = judge(spec, function)
    assert verdict.passed, verdict


def runs(form, **options):
    """Output and gradients, as a function of a dtype."""

    def run(dtype):
        inputs = [each.to(dtype, copy=True).requires_grad_() for each in SIX[:3]]
        output = form(*inputs, *(each.to(dtype) for each in INDEX), **options)
        (output * numbers(*output.shape, seed=9).to(dtype)).sum().backward()
        return {"output": [output], "gradients": [each.grad for each in inputs]}

    return run


@pytest.mark.parametrize("chunk_size", [1, 3, 64])
@pytest.mark.parametrize(
    "options", [{}, {"key_mask": LEFT}, {"causal": False}, {"mask": LEFT[:, None]}, {"scale": 0.3}]
)
def test_gathered_and_masked_are_one_function(options, chunk_size):
    """Output and gradients, in float32 and float64."""
    options = {"num_keys": 4, **options}
    gathered = runs(indexed_attention, chunk_size=chunk_size, **options)
    assert_same_numbers(gathered, runs(masked_indexed_attention, **options))


@EACH
@pytest.mark.parametrize("num_keys", [LENGTH, LENGTH + 1, 2048])
def test_as_many_keys_as_there_are_is_full_attention(form, num_keys):
    def full(*inputs, **_):
        return attention(*inputs[:3], causal=True)

    assert_float32_same(runs(form, num_keys=num_keys), runs(full))


@EACH
def test_no_future(form):
    """Later tokens change nothing, neither by what they are nor by what the indexer makes of them."""
    before = form(*SIX, num_keys=3)
    for cut in (1, 5, 10):
        for factor in (5.0, -5.0):
            changed = [each.clone() for each in SIX]
            for each in changed[:5]:
                each[..., cut:, :] *= factor
            changed[5][..., cut:] *= factor
            torch.testing.assert_close(form(*changed, num_keys=3)[:, :, :cut], before[:, :, :cut])


@EACH
def test_padding_is_as_if_it_were_not_there(form):
    whole = form(*SIX, num_keys=3, key_mask=LEFT)
    alone = [each[1:, ..., 4:, :] for each in SIX[:5]] + [INDEX[2][1:, :, 4:]]
    torch.testing.assert_close(whole[1:, :, 4:], form(*alone, num_keys=3))
    torch.testing.assert_close(whole[1, :, :4], torch.zeros_like(whole[1, :, :4]))
    single = [each[:1] for each in SIX]
    torch.testing.assert_close(whole[:1], form(*single, num_keys=3))


@EACH
def test_the_indexer_gets_no_gradient(form):
    index = [each.clone().requires_grad_() for each in INDEX]
    query = QUERY.clone().requires_grad_()
    form(query, KEY, VALUE, *index, num_keys=3).sum().backward()
    assert query.grad is not None
    assert all(each.grad is None for each in index)


def test_a_head_that_weighs_less_than_nothing():
    """By hand: ReLU(2) - 0.5 ReLU(-2), and so on."""
    query = torch.tensor([[[[1.0]], [[-1.0]]]])
    key, weights = torch.tensor([[[2.0], [-4.0], [1.0]]]), torch.tensor([[[1.0], [-0.5]]])
    assert indexer_scores(query, key, weights).tolist() == [[[2.0, -2.0, 1.0]]]
    indices, visible = select_keys(indexer_scores(query, key, weights), 2)
    assert indices.tolist() == [[[0, 2]]]
    assert visible.all()


def test_a_positive_factor_selects_the_same_keys():
    """ReLU(a x) = a ReLU(x) for a > 0: a scale of the scores changes the loss, not the choice."""
    scores = indexer_scores(*INDEX)
    scaled = indexer_scores(0.25 * INDEX[0], INDEX[1], INDEX[2] / 3**0.5)
    torch.testing.assert_close(scaled, 0.25 / 3**0.5 * scores)
    past = causal_mask(LENGTH)[None]
    for one, other in zip(
        select_keys(scores, 3, mask=past), select_keys(scaled, 3, mask=past), strict=True
    ):
        assert torch.equal(one, other)
    weights = numbers(2, HEADS, LENGTH, LENGTH).softmax(-1)
    assert not torch.allclose(indexer_loss(scores, weights), indexer_loss(scaled, weights))


def test_equal_scores_give_num_keys_keys_that_are_visible():
    """Which of the equal ones is left open; a masked key is never among them."""
    past = causal_mask(6)[None]
    indices, visible = select_keys(torch.zeros(1, 6, 6), 3, mask=past)
    assert visible.sum(-1).tolist() == [[1, 2, 3, 3, 3, 3]]
    selected = selection_mask(indices, visible, 6)
    assert torch.equal(selected.sum(-1), visible.sum(-1))
    assert not (selected & ~past).any()


def test_a_masked_key_loses_against_any_visible_one():
    scores = torch.tensor([[[9.0, -9.0, 5.0, -8.0]]])
    indices, visible = select_keys(scores, 2, mask=torch.tensor([[[False, True, False, True]]]))
    assert indices.tolist() == [[[3, 1]]]
    assert visible.all()


def test_bfloat16_keeps_its_dtype_and_scores_in_float32():
    half = [each.bfloat16() for each in SIX]
    assert indexed_attention(*half, num_keys=3).dtype == torch.bfloat16
    assert indexer_scores(*half[3:]).dtype == torch.float32
    wider = indexer_scores(*half[3:5], half[5].float())  # as the released weights are stored
    assert torch.equal(wider, indexer_scores(*half[3:]))


# --- Its cost -------------------------------------------------------------------------------------


def counted(function):
    """FLOPs of the matrix products."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        function()
    return counter.get_total_flops()


@pytest.mark.parametrize("length", [64, 128])
def test_flops_are_as_counted(length):
    """Indexer: 2 I e, and 2 I of the sum over heads, for each pair; attention: 2 H (d + dv) for each of L k."""
    heads, width, wide, voters, small, num_keys = 4, 6, 5, 3, 4, 8
    index = [
        numbers(1, voters, length, small), numbers(1, length, small), numbers(1, voters, length),
    ]  # fmt: skip
    six = (
        numbers(1, heads, length, width), numbers(1, 1, length, width),
        numbers(1, 1, length, wide), *index,
    )  # fmt: skip
    scored = counted(lambda: indexer_scores(*index))
    assert scored == length**2 * 2 * voters * (small + 1)
    whole = counted(lambda: indexed_attention(*six, num_keys=num_keys, backend="plain"))
    assert whole == scored + length * num_keys * 2 * heads * (width + wide)


def largest_tensor(function):
    """The most elements that an intermediate tensor has."""
    most = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal most
            found = func(*args, **(kwargs or {}))
            for each in found if isinstance(found, tuple | list) else [found]:
                if isinstance(each, torch.Tensor):
                    most = max(most, each.untyped_storage().nbytes())
            return found

    with Watch(), torch.no_grad():
        function()
    return most


def test_no_matrix_of_all_queries_and_keys():
    """Four times the length: four times the largest tensor, not sixteen times."""

    def most(length):
        torch.manual_seed(0)
        six = (
            torch.randn(1, 2, length, 4), torch.randn(1, 1, length, 4), torch.randn(1, 1, length, 4),
            torch.randn(1, 2, length, 4), torch.randn(1, length, 4), torch.randn(1, 2, length),
        )  # fmt: skip
        return largest_tensor(lambda: indexed_attention(*six, num_keys=8, chunk_size=32))

    assert most(1024) <= 4 * most(256)


# --- How the indexer is trained -------------------------------------------------------------------


def test_the_loss_reaches_the_indexer_alone():
    """And only the scores of keys in the mask."""
    index = [each.clone().requires_grad_() for each in INDEX]
    query = QUERY.clone().requires_grad_()
    _, weights = attention(query, KEY, VALUE, causal=True, return_weights=True)
    scores = indexer_scores(*index)
    scores.retain_grad()
    past = causal_mask(LENGTH)[None]
    indexer_loss(scores, weights, mask=past).backward()
    assert query.grad is None
    assert all(each.grad.abs().sum() > 0 for each in index)
    assert (scores.grad[:, ~past[0]] == 0).all()


def test_its_gradient_is_the_difference_of_the_two_distributions():
    """q - p, divided by the number of queries."""
    scores = numbers(2, 5, 5, seed=7).requires_grad_()
    weights = numbers(2, 3, 5, 5, seed=8).softmax(-1)
    indexer_loss(scores, weights).backward()
    torch.testing.assert_close(scores.grad, (scores.softmax(-1) - weights.mean(1)).detach() / 10)


def test_a_target_that_the_scores_can_match_has_a_loss_of_0():
    weights = numbers(2, 3, 5, 5).softmax(-1)
    assert abs(float(indexer_loss(weights.mean(1).log() + 3.0, weights))) < 1e-14
    one = torch.eye(5, dtype=torch.float64).expand(2, 3, 5, 5)
    assert math.isclose(indexer_loss(torch.zeros(2, 5, 5).double(), one), math.log(5))


def test_a_batch_without_a_single_key_has_a_loss_of_0():
    scores = numbers(1, 3, 3).requires_grad_()
    loss = indexer_loss(scores, torch.zeros(1, 2, 3, 3, dtype=torch.float64))
    loss.backward()
    assert loss == 0
    assert (scores.grad == 0).all()


@pytest.mark.plain_types
def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="num_keys: expected at least 1, got 0"):
        indexed_attention(*SIX, num_keys=0)
    with pytest.raises(ValueError, match="key: expected a number of heads that divides the 4"):
        indexed_attention(QUERY, *numbers(2, 2, 3, LENGTH, 6), *INDEX, num_keys=3)
    with pytest.raises(ValueError, match="index_key: expected"):
        indexed_attention(*SIX[:4], INDEX[1][..., :3], INDEX[2], num_keys=3)
    with pytest.raises(TypeError, match="index_key: expected"):
        indexed_attention(*SIX[:4], INDEX[1].float(), INDEX[2], num_keys=3)
    with pytest.raises(TypeError, match="index_weights: expected"):
        indexed_attention(*SIX[:5], INDEX[2].long(), num_keys=3)
    with pytest.raises(ValueError, match="key_mask: expected"):
        indexed_attention(*SIX, num_keys=3, key_mask=LEFT[:, 1:])
    with pytest.raises(ValueError, match="chunk_size: expected at least 1"):
        indexed_attention(*SIX, num_keys=3, chunk_size=0)
    with pytest.raises(ValueError, match="rotary_dim: expected an even number"):
        lightning_indexer(*INDEX, num_keys=3, rotary_dim=3)
    with pytest.raises(ValueError, match="attention_weights: expected"):
        indexer_loss(numbers(2, 5, 5), numbers(2, 3, 5, 4))
    indices, visible = select_keys(indexer_scores(*INDEX), 3)
    with pytest.raises(ValueError, match="indices: expected"):
        attend_to_selected(QUERY, KEY, VALUE, indices[:, 1:], visible)
    with pytest.raises(ValueError, match="indices: expected at least 0 and .*, got -1"):
        attend_to_selected(QUERY, KEY, VALUE, indices - 1 - indices, visible)
    with pytest.raises(ValueError, match="indices: expected at least 0 and a number below"):
        attend_to_selected(QUERY, KEY, VALUE, indices + LENGTH, visible)
    with pytest.raises(ValueError, match="indices: expected at least 0 and a number below"):
        selection_mask(indices, visible, 2)
