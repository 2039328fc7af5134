"""Every number that the source notes print for chapters 1 to 6, computed again with this package.

tests/data/printed_values.json has them: the file and line of the notes, the seed, the decimals
printed, and, where the notes are wrong, the true value.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tested_transformer import (
    SelfAttention,
    attention,
    causal_mask,
    integer_positions,
    masked_softmax,
    padding_mask,
    pitfall,
    self_attention,
    unit_positions,
)
from tested_transformer.layers.scoring import AdditiveAttention

DATA = Path(__file__).parents[1] / "data" / "printed_values.json"
VALUES = {value["id"]: value for value in json.loads(DATA.read_text(encoding="utf-8"))["values"]}
COMPUTE = {}


def computes(*names):
    """The function returns the values of these names, in order; of one name the value itself."""

    def register(function):
        for place, name in enumerate(names):
            COMPUTE[name] = (function, place if len(names) > 1 else None)
        return function

    return register


def computed(name):
    function, place = COMPUTE[name]
    result = function() if place is None else function()[place]
    return np.asarray(torch.as_tensor(result).detach().double())


def shape_of(tensor):
    return torch.tensor(tensor.shape)


# --- 004: the six-word sentence ------------------------------------------------------------------

INPUTS = torch.tensor(
    [
        [0.43, 0.15, 0.89],
        [0.55, 0.87, 0.66],
        [0.57, 0.85, 0.64],
        [0.22, 0.58, 0.33],
        [0.77, 0.25, 0.10],
        [0.05, 0.80, 0.55],
    ]
)


@computes("004.in2", "004.in3", "004.in4", "004.in5")
def sentence_without_weights():
    query = INPUTS[1:2]
    options = {"scale": 1.0, "return_weights": True}
    context, weights = attention(query, INPUTS, INPUTS, **options)
    all_contexts, _ = attention(INPUTS, INPUTS, INPUTS, **options)
    return INPUTS @ INPUTS[1], weights[0], context[0], all_contexts


@computes("004.in7", "004.in8.keys", "004.in8.values", "004.in9", "004.in10", "004.in11")
def sentence_with_random_matrices():
    torch.manual_seed(123)
    w_query, w_key, w_value = (torch.rand(3, 2) for _ in range(3))
    query, key, value = INPUTS[1] @ w_query, INPUTS @ w_key, INPUTS @ w_value
    context, weights = self_attention(INPUTS, w_query, w_key, w_value, return_weights=True)
    return query, key, value, key @ query, weights[1], context[1]


def the_layer():
    torch.manual_seed(123)
    return SelfAttention(3, 2)


@computes("004.in13")
def sentence_through_the_module():
    return the_layer()(INPUTS)


@computes("004.in14")
def causal_by_renormalizing():
    weights = the_layer()(INPUTS, return_weights=True)[1] * causal_mask(6)
    return weights / weights.sum(-1, keepdim=True)


@computes("004.in15")
def causal_by_hiding():
    return the_layer()(INPUTS, causal=True, return_weights=True)[1]


@computes("004.in16")
def causal_with_dropout():
    layer = the_layer()
    query, key, value = layer.query(INPUTS), layer.key(INPUTS), layer.value(INPUTS)
    torch.manual_seed(123)
    return attention(query, key, value, causal=True, dropout_p=0.5, return_weights=True)[1]


@computes("004.in19.shape")
def causal_module_on_a_batch():
    batch = torch.stack((INPUTS, INPUTS))
    return torch.cat((shape_of(batch), shape_of(the_layer()(batch, causal=True))))


@computes("004.in20.shape")
def two_heads_side_by_side():
    batch = torch.stack((INPUTS, INPUTS))
    torch.manual_seed(123)
    heads = [SelfAttention(3, 2) for _ in range(2)]
    return shape_of(torch.cat([head(batch, causal=True) for head in heads], dim=-1))


# --- 002: integers, in float64 -------------------------------------------------------------------

LARGE = [[1501, 502, 503], [2502, 501, 503], [503, 501, 502], [503, 502, 501], [501, 503, 5020]]
SMALL = [[1, 2, 3], [2, 2, 4], [5, 9, 7], [6, 6, 6], [8, 1, 4]]
W_QUERY = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 1, 2, 3]]
W_KEY = [[9, 8, 7, 6], [5, 4, 3, 2], [1, 9, 8, 7]]
W_VALUE = [[3, 6, 9, 7], [1, 8, 3, 6], [4, 5, 2, 2]]


def wide(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def below_the_maximum(scores):
    return scores - scores.amax(-1, keepdim=True)


@computes("002.scores1", "002.aw1", "002.out1", "002.sum1")
def large_numbers_without_weights():
    x = wide(LARGE)
    output, weights = attention(x, x, x, return_weights=True)
    return below_the_maximum(x @ x.T / math.sqrt(3)), weights, output, weights.sum()[None]


@computes(
    "002.Q", "002.K", "002.V", "002.scores2", "002.scores2c", "002.aw2", "002.out2"
)  # fmt: skip
def small_numbers_with_weights():
    x, matrices = wide(SMALL), [wide(m) for m in (W_QUERY, W_KEY, W_VALUE)]
    query, key, value = (x @ matrix for matrix in matrices)
    scores = query @ key.T / 2
    output, weights = self_attention(x, *matrices, return_weights=True)
    return query, key, value, scores, below_the_maximum(scores), weights, output


# --- 001: the nine-word sentence, the filing cabinet, sizes --------------------------------------

SENTENCE = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog"]


@computes("001.dict", "001.ids")
def words_to_ids():
    ids = {word: place for place, word in enumerate(sorted(SENTENCE))}
    return list(ids.values()), [ids[word] for word in SENTENCE]


@computes("001.emb", "001.cv.shape", "001.cv")
def nine_words():
    torch.manual_seed(123)
    x = nn.Embedding(50_000, 3)(torch.tensor(words_to_ids()[1])).detach()
    w_query, w_key, w_value = torch.rand(3, 2), torch.rand(3, 2), torch.rand(3, 4)
    output = self_attention(x, w_query, w_key, w_value)
    return x, shape_of(output), output


@computes("001.weights.sum")
def filing_cabinet():
    return wide([0.30, 0.50, 0.001, 0.001]).sum()[None]


@computes("001.pos6", "001.pos9", "001.pos9int")
def naive_positions():
    short, long = "我喜欢吃洋葱", "我真的不喜欢吃洋葱"
    shares = [
        unit_positions(torch.arange(1, 3), len(text), dtype=torch.float64)[:, 0]
        for text in (short, long)
    ]
    return *shares, integer_positions(torch.tensor([len(long)]))[:, 0]


@computes("001.dk")
def width_of_a_head():
    return [512 // 8]


@computes("001.mhaparams")
def parameters_of_multi_head_attention():
    return [sum(p.numel() for p in nn.MultiheadAttention(512, 8).parameters())]


# --- 003: lengths, additive and scaled dot-product scores ----------------------------------------

KEYS = torch.ones(2, 10, 2)
TABLE = torch.arange(40.0).reshape(1, 10, 4).repeat(2, 1, 1)
LENGTHS = torch.tensor([2, 6])


@computes("003.additive")
def additive():
    torch.manual_seed(0)
    layer = AdditiveAttention(20, 2, 8, dropout=0.1).eval()
    return layer(torch.randn(2, 1, 20), KEYS, TABLE, key_lengths=LENGTHS)


@computes("003.dot")
def scaled_dot_product():
    torch.manual_seed(0)
    return attention(torch.randn(2, 1, 2), KEYS, TABLE, key_lengths=LENGTHS)


def zeros_in(allowed):
    torch.manual_seed(0)
    return [int((masked_softmax(torch.rand(2, 2, 4), allowed) == 0).sum())]


@computes("003.mask1")
def zeros_past_a_length_for_each_sample():
    return zeros_in(padding_mask(torch.tensor([2, 3]), 4, heads=False))


@computes("003.mask2")
def zeros_past_a_length_for_each_row():
    return zeros_in(torch.arange(4) < torch.tensor([[1, 3], [2, 4]])[..., None])


def empty_row(function):
    """The weights of one query over four keys, none allowed; the scores are all equal."""
    query, key = torch.zeros(1, 2), torch.zeros(4, 2)
    return function(query, key, torch.eye(4), mask=torch.zeros(1, 4, dtype=torch.bool))[0]


@computes("003.mask0")
def empty_row_with_a_finite_fill():
    return empty_row(pitfall("a finite constant for hidden scores").candidate)


# --- 000: two heads ------------------------------------------------------------------------------


@computes("000.shape")
def two_heads():
    torch.manual_seed(0)
    x = torch.rand(6, 3, 8)
    heads = x.view(6, 3, 2, 4).transpose(1, 2)  # B H L d
    output = attention(heads, heads, heads, causal=True)
    return shape_of(output.transpose(1, 2).reshape(6, 3, 8))


COMPUTE["000.run"] = COMPUTE["000.shape"]


# --- The tests -----------------------------------------------------------------------------------


def test_every_printed_value_is_computed_here():
    assert set(COMPUTE) == set(VALUES)


@pytest.mark.parametrize("name", [name for name, value in VALUES.items() if value["reproduces"]])
def test_reproduces_to_the_printed_precision(name):
    entry, got = VALUES[name], computed(name)
    printed = np.array(entry["printed"])
    assert got.shape == printed.shape
    # NumPy prints 002's weights with nine digits, from 1 down to 1e-312.
    relative = 5e-9 if name == "002.aw2" else 0.0
    half_a_digit = 0.0 if name == "002.aw2" else 0.5 * 10.0 ** -entry["decimals"]
    np.testing.assert_allclose(got, printed, rtol=relative, atol=half_a_digit)


@pytest.mark.parametrize(
    "name", [name for name, value in VALUES.items() if not value["reproduces"]]
)
def test_what_the_notes_get_wrong(name):
    entry, got = VALUES[name], computed(name)
    np.testing.assert_allclose(got, entry["true"], rtol=1e-9)
    assert np.abs(got - entry["printed"]).max() > 0.5 * 10.0 ** -entry["decimals"]


def test_a_wrong_number_would_be_noticed():
    printed = np.array(VALUES["004.in4"]["printed"])
    assert np.abs(computed("004.in4") + 1e-4 - printed).max() > 0.5e-4


def test_what_the_notes_do_to_an_empty_row_this_package_does_not():
    printed = VALUES["003.mask0"]["printed"]
    assert empty_row(attention).tolist() == [0.0] * len(printed)


def test_the_runner_up_is_lost_in_float32():
    x, *matrices = (wide(m).float() for m in (SMALL, W_QUERY, W_KEY, W_VALUE))
    weights = self_attention(x, *matrices, return_weights=True)[1]
    assert weights[0].tolist() == [0, 0, 1, 0, 0]
    assert computed("002.aw2")[0, 3] > 0


def test_the_vocabulary_of_the_notes_has_a_hole():
    ids, _ = words_to_ids()
    assert set(range(9)) - set(ids) == {7}
    assert SENTENCE.count("the") == 2
