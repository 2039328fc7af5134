"""Frames: what is sent comes back as it was, and a garbled frame gives an error of three kinds only."""

import io
import json
import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tested_transformer.homework.jail import wire
from tested_transformer.homework.jail.wire import NotSendable, TooLarge, pack, read

DTYPES = list(wire.DTYPES.values())


def sent(value):
    """What arrives, from a stream that holds nothing else."""
    stream = io.BytesIO(pack(value))
    arrived = read(stream)
    assert stream.read() == b""
    return arrived


def bits(tensor):
    """A tensor's numbers as bytes: NaN equals NaN, and -0 is not 0."""
    own = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
    return own.reshape(-1).view(torch.uint8).tolist() if tensor.numel() else []


def assert_same(a, b):
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert bits(a) == bits(b)
    elif isinstance(a, np.ndarray):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_same(one, other)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        assert_same(list(a.values()), list(b.values()))
    else:
        assert repr(a) == repr(b)


# ------------------------------------------------------------------------------------- round trips

shapes = npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3)


@st.composite
def tensors(draw):
    """Any bits of any dtype, as numbers that lie in a row, or backwards, or on a diagonal."""
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(shapes)
    seed = draw(st.integers(0, 2**32 - 1))
    count = math.prod(shape)
    most = 2 if dtype == torch.bool else 256
    raw = np.random.default_rng(seed).integers(0, most, count * dtype.itemsize, dtype=np.uint8)
    row = torch.from_numpy(raw).view(dtype) if count else torch.empty(0, dtype=dtype)
    tensor = row.reshape(shape)
    view = draw(st.sampled_from(["as it is", "transposed", "every other", "expanded", "complex"]))
    if view == "transposed":
        return tensor.movedim(0, -1) if tensor.ndim else tensor
    if view == "every other" and tensor.ndim:
        return tensor[::2]
    if view == "expanded":
        return tensor.expand(2, *shape)
    if view == "complex" and dtype.is_complex:
        return draw(st.sampled_from([tensor.conj(), tensor.conj().imag]))
    return tensor


plain = (
    st.none() | st.booleans() | st.floats() | st.integers() | st.text()
    | st.text(st.characters(categories=["Cs"]), max_size=1)
)  # fmt: skip
values = st.recursive(
    plain | tensors(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.sampled_from(["tensor", "tuple", "dict"]), inner)
    ),
    max_leaves=6,
)  # fmt: skip


@given(npst.arrays(st.sampled_from(sorted(wire.ARRAYS)), shapes))
def test_an_array_of_numpys_comes_back_as_one(array):
    assert_same(sent(array), array)


@given(values)
def test_what_is_sent_comes_back(value):
    assert_same(sent(value), value)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back(dtype):
    tensor = torch.arange(6).reshape(2, 3).to(dtype)
    assert_same(sent(tensor), tensor)
    assert_same(sent(tensor.mT), tensor.mT)
    assert_same(sent(tensor[1, 2]), tensor[1, 2])
    assert_same(sent(tensor[:, :0]), tensor[:, :0])


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str
)
def test_every_kind_of_float_comes_back(dtype):
    tensor = torch.tensor(
        [math.nan, math.inf, -math.inf, -0.0, torch.finfo(dtype).tiny], dtype=dtype
    )
    assert_same(sent(tensor), tensor)


def test_a_tensor_comes_back_detached_and_can_be_written():
    tensor = sent(torch.ones(2, requires_grad=True))
    assert not tensor.requires_grad
    tensor[0] = 2.0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strides_of_what_has_one_element_or_none_do_not_matter(dtype):
    """backward gives expanded gradients: one element, and a stride of 0."""
    for tensor in (torch.ones((), dtype=dtype).expand(1), torch.ones(4, dtype=dtype)[:0:2]):
        assert_same(sent(tensor), tensor)


def test_frames_follow_each_other():
    stream = io.BytesIO(pack(1) + pack([torch.zeros(2)]) + pack("end"))
    assert (read(stream), read(stream)[0].tolist(), read(stream)) == (1, [0.0, 0.0], "end")
    with pytest.raises(EOFError):
        read(stream)


def test_a_stream_that_gives_a_byte_at_a_time_is_read():
    class Slow(io.BytesIO):
        def read(self, size=-1):
            return super().read(min(size, 1))

    assert_same(read(Slow(pack([torch.arange(3), "x"]))), [torch.arange(3), "x"])


def test_a_subclass_travels_as_the_tensor_that_it_is():
    class Liar(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *arguments, **named):
            raise SystemExit

    liar = torch.arange(3.0).as_subclass(Liar)
    assert type(arrived := sent(liar)) is torch.Tensor
    assert arrived.tolist() == [0.0, 1.0, 2.0]


def _knot():
    knot = []
    knot.append(knot)
    return knot


@pytest.mark.parametrize("value", [
    object(), {1, 2}, b"bytes", 1j, {1: 2}, np.float64(1.0), np.array(["a"]), range(3), torch.Size([1]),
    [1, (object(),)], torch.zeros(2, device="meta"), torch.zeros(2).to_sparse(), _knot(), 10**5000,
    torch.zeros(2, dtype=torch.uint16), torch.float32,
], ids=lambda value: type(value).__name__)  # fmt: skip
def test_what_is_not_plain_is_refused(value):
    with pytest.raises(NotSendable):
        pack(value)


@pytest.mark.parametrize("value", [
    torch.zeros(1).expand(10**9, 10), torch.zeros(wire.MOST_NUMBERS + 1, dtype=torch.uint8),
    [torch.zeros(wire.MOST_NUMBERS // 2 + 1, dtype=torch.uint8)] * 2, "x" * (wire.MOST_JSON + 1),
    torch.zeros(2**31, 0), torch.zeros((1,) * (wire.MOST_AXES + 1)),
], ids=["10 GB", "one byte more", "two halves", "text", "2**31 rows of nothing", "17 axes"])  # fmt: skip
def test_what_is_too_large_is_refused(value):
    with pytest.raises(TooLarge):
        pack(value)


def test_the_largest_numbers_and_shapes_are_sent():
    most = torch.ones(wire.MOST_NUMBERS, dtype=torch.uint8)
    assert torch.equal(sent(most), most)
    assert sent(torch.zeros((1,) * wire.MOST_AXES)).ndim == wire.MOST_AXES
    assert sent(2**wire.MOST_BITS - 1) == 2**wire.MOST_BITS - 1


# ----------------------------------------------------------------------------------- garbled frames


def frame(text, numbers=b"", sizes=None):
    """A frame by hand; `text` is JSON or what becomes JSON."""
    text = text if isinstance(text, bytes) else json.dumps(text).encode()
    return struct.pack(">IQ", *(sizes or (len(text), len(numbers)))) + text + numbers


def tensor_frame(dtype, shape, numbers=b""):
    return frame({"tensor": [dtype, shape]}, numbers)


GARBLED = {
    "no JSON": frame(b"{"), "nothing": frame(b""), "no text": frame(b"\xff\xfe\xff"),
    "two values": frame(b"1 2"), "nested": frame(b"[" * 100_000 + b"]" * 100_000),
    "nested dicts": frame(b'{"tuple":[' * 50_000 + b"]}" * 50_000),
    "nested a little": frame(b"[" * 990 + b"]" * 990),
    "long number": frame(b"1" * 5000), "unknown kind": frame({"pickle": "gASVAAAA"}),
    "no kind": frame({}), "two kinds": frame({"tuple": [], "dict": {}}),
    "no tensor": frame({"tensor": None}), "half a tensor": frame({"tensor": ["int8"]}),
    "more than a tensor": frame({"tensor": ["int8", [], 0]}),
    "unknown dtype": tensor_frame("object", [1], bytes(8)),
    "dtype by path": tensor_frame("torch.float32", [1], bytes(4)),
    "dtype that is a list": tensor_frame(["int8"], [1], bytes(1)),
    "shape that is a number": tensor_frame("int8", 1, bytes(1)),
    "shape that is a text": tensor_frame("int8", "1", bytes(1)),
    "shape that is an empty text": tensor_frame("int8", "", bytes(1)),
    "shape that is a dict": tensor_frame("int8", {}, bytes(1)),
    "negative": tensor_frame("int8", [-1], bytes(1)),
    "two negatives": tensor_frame("int8", [-1, -1], bytes(1)),
    "half an element": tensor_frame("int8", [0.5], bytes(1)),
    "true elements": tensor_frame("int8", [True], bytes(1)),
    "huge": tensor_frame("int8", [2**40], bytes(1)), "huger": tensor_frame("int8", [10**40] * 9),
    "2**31 rows of nothing": tensor_frame("int8", [2**31 - 1, 0]),
    "strides that overflow": tensor_frame("int8", [0, *[2**31 - 1] * 15]),
    "many axes": tensor_frame("int8", [1] * 17, bytes(1)),
    "lack of numbers": tensor_frame("float64", [2], bytes(15)),
    "numbers for one of two": frame([{"tensor": ["int8", [1]]}] * 2, bytes(1)),
    "too many numbers": tensor_frame("float64", [2], bytes(17)),
    "numbers of nobody": frame(None, bytes(1)),
    "a tensor as a tuple": frame({"tuple": {"tensor": ["uint8", [1 << 20]]}}, bytes(1 << 20)),
    "a text as a tuple": frame({"tuple": "abc"}), "a number as a tuple": frame({"tuple": 5}),
    "a list as a dict": frame({"dict": [[1, 2]]}), "a text as a dict": frame({"dict": "ab"}),
}  # fmt: skip


@pytest.mark.parametrize("name", GARBLED)
def test_a_garbled_frame_is_a_value_error(name):
    with pytest.raises(ValueError, match=".") as caught:
        read(io.BytesIO(GARBLED[name]))
    assert not isinstance(caught.value, TooLarge)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("sizes", [
    (wire.MOST_JSON + 1, 0), (2**32 - 1, 0), (4, 10 * 2**30), (4, 2**64 - 1), (4, 101),
])  # fmt: skip
def test_a_frame_that_promises_too_much_is_not_read(sizes):
    stream = io.BytesIO(frame(None, b"rest", sizes=sizes))
    with pytest.raises(TooLarge):
        read(stream, most=100)
    assert stream.tell() == wire.LENGTHS.size  # not a byte of it


def test_a_frame_that_ends_early_is_the_end_of_the_stream():
    whole = pack([torch.arange(3), "text"])
    for length in range(len(whole)):
        with pytest.raises(EOFError):
            read(io.BytesIO(whole[:length]))


def test_a_bool_is_true_or_false_whatever_its_byte():
    tensor = read(io.BytesIO(tensor_frame("bool", [3], b"\x00\x02\xff")))
    assert tensor.view(torch.uint8).tolist() == [0, 1, 1]


def reads_or_complains(data, most=wire.MOST_NUMBERS):
    """Whether a frame has a value that can be sent, or is refused by one of the errors that are told."""
    try:
        value = read(io.BytesIO(data), most)
    except (EOFError, ValueError):  # TooLarge is a ValueError
        return True
    return bool(pack(value))


@given(st.binary(max_size=60))
def test_random_bytes_raise_nothing_else(data):
    assert reads_or_complains(data)


@given(st.binary(max_size=60), st.binary(max_size=30))
def test_random_bytes_of_the_right_sizes_raise_nothing_else(text, numbers):
    assert reads_or_complains(frame(text, numbers))


words = st.sampled_from(["tensor", "tuple", "dict", "int8", "bool", "float64"]) | st.text(
    max_size=3
)
junk = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.integers() | st.floats() | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=2),
    max_leaves=12,
)
tensor_like = st.tuples(words | junk, st.lists(st.integers(-1, 3), max_size=3) | junk)


@given(junk | tensor_like.map(lambda two: {"tensor": list(two)}), st.binary(max_size=30))
def test_any_json_raises_nothing_else(said, numbers):
    assert reads_or_complains(frame(said, numbers))


@given(values, st.data())
def test_a_changed_byte_raises_nothing_else(value, data):
    whole = bytearray(pack(value))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    assert reads_or_complains(bytes(whole), most=10_000)
