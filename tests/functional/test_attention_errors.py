"""Bad input gets a clear error: the type, the argument's name, what came, what was expected."""

import pytest
import torch

from tested_transformer import BackendError, attention

pytestmark = pytest.mark.plain_types

Q, K, V = torch.zeros(2, 4, 5, 8), torch.zeros(2, 2, 7, 8), torch.zeros(2, 2, 7, 6)
BOOL = torch.ones(5, 7, dtype=torch.bool)

# id: (changes to a right call, exception, words that the message must contain)
MALFORMED = {
    "query is a list": ({"query": [[1.0]]}, TypeError, ["query", "list", "torch.Tensor"]),
    "key is a NumPy array": ({"key": K.numpy()}, TypeError, ["key", "ndarray", "torch.Tensor"]),
    "value is None": ({"value": None}, TypeError, ["value", "NoneType"]),
    "query of integers": ({"query": Q.long()}, TypeError, ["query", "int64", "floating"]),
    "key of booleans": ({"key": K.bool()}, TypeError, ["key", "bool", "floating"]),
    "value is complex": ({"value": V.cfloat()}, TypeError, ["value", "complex64", "floating"]),
    "query is a vector": ({"query": Q[0, 0, 0]}, ValueError, ["query", "(8,)", "2 axes"]),
    "value is a scalar": ({"value": V[0, 0, 0, 0]}, ValueError, ["value", "()", "2 axes"]),
    "key lacks an axis": ({"key": K[0]}, ValueError, ["value", "(2, 2, 7, 6)", "as in key"]),
    "key and value lack an axis": (
        {"key": K[0], "value": V[0]}, ValueError, ["key", "(2, 7, 8)", "(2, 4)"],
    ),
    "value has one more": ({"value": V[None]}, ValueError, ["value", "(1, 2, 2, 7, 6)", "(2, 2, 7, dv)"]),
    "mixed dtypes, key": ({"key": K.double()}, TypeError, ["key", "float64", "float32"]),
    "mixed dtypes, value": ({"value": V.half()}, TypeError, ["value", "float16", "float32"]),
    "mixed devices, key": ({"key": K.to("meta")}, ValueError, ["key", "meta", "cpu"]),
    "mixed devices, value": ({"value": V.to("meta")}, ValueError, ["value", "meta", "cpu"]),
    "mixed devices, mask": ({"mask": BOOL.to("meta")}, ValueError, ["mask", "meta", "cpu"]),
    "head size 0": (
        {"query": Q[..., :0], "key": K[..., :0]}, ValueError, ["query", "(2, 4, 5, 0)", "at least 1"],
    ),
    "head sizes differ": ({"key": K[..., :3]}, ValueError, ["key", "(2, 2, 7, 3)", "S, 8) as in query"]),
    "lengths of key and value differ": (
        {"value": V[:, :, :6]}, ValueError, ["value", "(2, 2, 6, 6)", "(2, 2, 7, dv) as in key"],
    ),
    "heads of key and value differ": (
        {"value": V[:, :1]}, ValueError, ["value", "(2, 1, 7, 6)", "(2, 2, 7, dv) as in key"],
    ),
    "heads that do not divide": (
        {"query": Q[:, :3]}, ValueError, ["key", "(2, 2, 7, 8)", "divides the 3 query heads"],
    ),
    "no KV heads": (
        {"key": K[:, :0], "value": V[:, :0]}, ValueError, ["key", "(2, 0, 7, 8)", "divides the 4"],
    ),
    "batches differ": ({"query": Q[:1]}, ValueError, ["key", "(2, 2, 7, 8)", "(1, 4)"]),
    "batches differ in 3 axes": (
        {"query": Q[0], "key": K[0], "value": V[0]}, ValueError, ["key", "(2, 7, 8)", "(4,)"],
    ),
    "mask is a list": ({"mask": [[True]]}, TypeError, ["mask", "list", "torch.Tensor"]),
    "mask of floats": ({"mask": BOOL.float()}, TypeError, ["mask", "float32", "may attend"]),
    "mask of uint8": ({"mask": BOOL.byte()}, TypeError, ["mask", "uint8", "torch.bool"]),
    "mask of integers": ({"mask": BOOL.long()}, TypeError, ["mask", "int64", "torch.bool"]),
    "mask turned round": ({"mask": BOOL.T}, ValueError, ["mask", "(7, 5)", "(5, 7)"]),
    "mask of rank 1": ({"mask": BOOL[0]}, ValueError, ["mask", "(7,)", "(L, S) = (5, 7)"]),
    "mask of rank 3 beside four axes": (
        {"mask": BOOL.expand(2, 5, 7)}, ValueError, ["mask", "(2, 5, 7)", "(2, 4, 5, 7)"],
    ),
    "mask with another batch": (
        {"mask": BOOL.expand(3, 1, 5, 7)}, ValueError, ["mask", "(3, 1, 5, 7)", "(2, 4, 5, 7)"],
    ),
    "mask per KV head": (
        {"mask": BOOL.expand(2, 2, 5, 7)}, ValueError, ["mask", "(2, 2, 5, 7)", "(2, 4, 5, 7)"],
    ),
    "bias of booleans": ({"bias": BOOL}, TypeError, ["bias", "bool", "floating"]),
    "bias is a number": ({"bias": 1.0}, TypeError, ["bias", "float", "torch.Tensor"]),
    "bias of the wrong shape": ({"bias": Q[0, 0]}, ValueError, ["bias", "(5, 8)", "(5, 7)"]),
    "causal is a mask": ({"causal": BOOL}, TypeError, ["causal", "Tensor", "True or False"]),
    "causal is 1": ({"causal": 1}, TypeError, ["causal", "int", "True or False"]),
    "window 0": ({"window": 0}, ValueError, ["window", "0", "at least 1"]),
    "window negative": ({"window": -2}, ValueError, ["window", "-2", "at least 1"]),
    "window is a float": ({"window": 2.0}, TypeError, ["window", "float", "int"]),
    "window is True": ({"window": True}, TypeError, ["window", "bool", "int"]),
    "lengths negative": (
        {"key_lengths": torch.tensor([3, -1])}, ValueError, ["key_lengths", "-1 to 3", "at least 0"],
    ),
    "lengths are a list": ({"key_lengths": [3, 4]}, TypeError, ["key_lengths", "list"]),
    "lengths of floats": (
        {"key_lengths": torch.tensor([3.0, 4.0])}, TypeError, ["key_lengths", "float32", "integer"],
    ),
    "too many lengths": (
        {"key_lengths": torch.tensor([3, 4, 5])}, ValueError, ["key_lengths", "(3,)", "(2,)"],
    ),
    "lengths of rank 2": (
        {"key_lengths": torch.ones(2, 5).long()}, ValueError, ["key_lengths", "(2, 5)", "1 axis"],
    ),
    "lengths without batch": (
        {"query": Q[0, 0], "key": K[0, 0], "value": V[0, 0], "key_lengths": torch.tensor([3])},
        ValueError, ["key_lengths", "batch axis"],
    ),
    "slopes per KV head": (
        {"alibi_slopes": torch.ones(2)}, ValueError, ["alibi_slopes", "(2,)", "(4,)"],
    ),
    "slopes of integers": (
        {"alibi_slopes": torch.ones(4).long()}, TypeError, ["alibi_slopes", "int64", "floating"],
    ),
    "slopes without heads": (
        {"query": Q[0, 0], "key": K[0, 0], "value": V[0, 0], "alibi_slopes": torch.ones(4)},
        ValueError, ["alibi_slopes", "(4,)", "head axis"],
    ),
    "scale is NaN": ({"scale": float("nan")}, ValueError, ["scale", "nan", "finite"]),
    "scale is a string": ({"scale": "sqrt"}, TypeError, ["scale", "str", "number"]),
    "scale is a tensor": ({"scale": torch.ones(1)}, TypeError, ["scale", "Tensor", "number"]),
    "dropout 1": ({"dropout_p": 1.0}, ValueError, ["dropout_p", "1.0", "[0, 1)"]),
    "dropout negative": ({"dropout_p": -0.1}, ValueError, ["dropout_p", "-0.1", "[0, 1)"]),
    "dropout in percent": ({"dropout_p": 10}, ValueError, ["dropout_p", "10", "[0, 1)"]),
    "dropout is a module": (
        {"dropout_p": torch.nn.Dropout(0.1)}, TypeError, ["dropout_p", "Dropout", "number"],
    ),
    "return_weights is a string": ({"return_weights": "yes"}, TypeError, ["return_weights", "str"]),
    "unknown backend": (
        {"backend": "cuda"}, ValueError, ["backend", "'cuda'", '"auto", "plain", "tiled", "fused", "flash"'],
    ),
    "backend is None": ({"backend": None}, ValueError, ["backend", "None", '"plain"']),
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_calls(name):
    changes, error, words = MALFORMED[name]
    with pytest.raises(error) as caught:
        attention(**{"query": Q, "key": K, "value": V, **changes})
    assert type(caught.value) is error
    for word in words:
        assert word in str(caught.value), f"{word!r} is not in: {caught.value}"


def test_the_call_that_they_change_is_right():
    assert attention(Q, K, V).shape == (2, 4, 5, 6)
    assert len(MALFORMED) >= 40


def test_options_are_keywords():
    with pytest.raises(TypeError, match="positional"):
        attention(Q, K, V, BOOL)


def test_a_backend_that_can_not_serve_says_why():
    with pytest.raises(BackendError, match=r'"fused".*weights'):
        attention(Q, K, V, return_weights=True, backend="fused")
    assert attention(Q, K, V, return_weights=True)[1].shape == (2, 4, 5, 7)
