"""How tensors and plain values travel between the grader and a jail: frames of JSON and raw numbers.

Used on both sides, and inside the jail without the rest of the package. What comes out of a jail is read
as a stranger's bytes: no pickle, no file, no name that is looked up, and nothing larger than agreed.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from io import BufferedIOBase
from typing import Any

import numpy as np
import torch
from torch import Tensor

LENGTHS = struct.Struct(">IQ")  # bytes of JSON, bytes of numbers
MOST_JSON = 1 << 20
MOST_NUMBERS = 1 << 24
MOST_AXES = 16
MOST_BITS = 4096  # of an int: Python neither writes nor reads more than 4300 digits
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
        torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128,
    )
}  # fmt: skip

ARRAYS = {
    name: np.dtype(name)
    for name in (
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
        "float32", "float64", "complex64", "complex128",
    )
}  # fmt: skip


class TooLarge(ValueError):
    """A frame that holds more than agreed: it is not read."""


class NotSendable(TypeError):
    """A value that is neither a tensor nor plain."""


def pack(value: Any) -> bytes:
    """A frame: tensors, arrays, None, bools, numbers, strings, and lists, tuples and dicts of them.

    Raises: NotSendable for anything else; TooLarge if it is larger than a frame may be.
    """
    numbers: list[bytes] = []
    try:
        text = json.dumps(_to_json(value, numbers)).encode()
    except (RecursionError, OverflowError, RuntimeError) as error:
        raise NotSendable(f"a value that cannot be written: {error}") from None
    size = sum(map(len, numbers))
    if len(text) > MOST_JSON or size > MOST_NUMBERS:
        raise TooLarge(f"{len(text)} bytes of text and {size} of numbers")
    return b"".join([LENGTHS.pack(len(text), size), text, *numbers])


def _to_json(value: Any, numbers: list[bytes]) -> Any:
    if value is None or type(value) in (bool, float, str):
        return value
    if type(value) is int and value.bit_length() <= MOST_BITS:
        return value
    if type(value) is list:
        return [_to_json(item, numbers) for item in value]
    if type(value) is tuple:
        return {"tuple": [_to_json(item, numbers) for item in value]}
    if type(value) is dict and all(type(key) is str for key in value):
        return {"dict": {key: _to_json(item, numbers) for key, item in value.items()}}
    if isinstance(value, Tensor):
        with torch._C.DisableTorchFunctionSubclass():  # a subclass may answer anything
            return _tensor_to_json(value.detach(), numbers)
    if type(value) is np.ndarray:
        return _array_to_json(value, numbers)
    raise NotSendable(f"a {type(value).__name__}")


def _array_to_json(array: np.ndarray, numbers: list[bytes]) -> dict[str, Any]:
    if array.dtype.name not in ARRAYS:
        raise NotSendable(f"a NumPy array of {array.dtype}")
    if _extent(array.shape) * array.itemsize > MOST_NUMBERS or array.ndim > MOST_AXES:
        raise TooLarge(f"an array of shape {array.shape}")
    numbers.append(array.tobytes())
    return {"array": [array.dtype.name, list(array.shape)]}


def _tensor_to_json(tensor: Tensor, numbers: list[bytes]) -> dict[str, Any]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in DTYPES or tensor.layout != torch.strided or tensor.device.type != "cpu":
        raise NotSendable(f"a {dtype} tensor, {tensor.layout}, on {tensor.device}")
    if _extent(tensor.shape) * tensor.itemsize > MOST_NUMBERS or tensor.ndim > MOST_AXES:
        raise TooLarge(f"a tensor of shape {tuple(tensor.shape)}")
    if tensor.numel():
        own = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)  # whatever its strides
        numbers.append(own.reshape(-1).view(torch.uint8).numpy().tobytes())
    return {"tensor": [dtype, list(tensor.shape)]}


def _extent(shape: Sequence[int]) -> int:
    """The number of elements, as if no axis had none: a tensor of (2**31, 0) has rows to loop over."""
    return math.prod(max(n, 1) for n in shape)


def read(stream: BufferedIOBase, most: int = MOST_NUMBERS) -> Any:
    """The value of the next frame, never trusting a size that it claims.

    Raises: EOFError at the end of the stream; TooLarge if the frame holds more than `most` bytes of
        numbers; ValueError if it is garbled.
    """
    json_size, size = LENGTHS.unpack(_exactly(stream, LENGTHS.size))
    if json_size > MOST_JSON or size > most:
        raise TooLarge(f"a frame of {json_size} and {size} bytes")
    text, numbers = _exactly(stream, json_size), memoryview(_exactly(stream, size))
    try:
        value, rest = _from_json(json.loads(text), numbers)
    except (TypeError, KeyError, RecursionError, RuntimeError, OverflowError) as error:
        raise ValueError(f"a garbled frame: {error}") from None
    if len(rest):
        raise ValueError(f"a frame with {len(rest)} bytes too many")
    return value


def _exactly(stream: BufferedIOBase, count: int) -> bytearray:
    parts = bytearray()
    while len(parts) < count:
        part = stream.read(count - len(parts))
        if not part:
            raise EOFError("the stream has ended")
        parts += part
    return parts


def _from_json(encoded: Any, numbers: memoryview) -> tuple[Any, memoryview]:
    """A value, and the bytes of numbers that it leaves."""
    if isinstance(encoded, list):
        values = []
        for item in encoded:
            value, numbers = _from_json(item, numbers)
            values.append(value)
        return values, numbers
    if not isinstance(encoded, dict):
        return encoded, numbers
    (kind, inside), *others = encoded.items()
    if others or kind not in ("tensor", "array", "tuple", "dict"):
        raise ValueError("a garbled frame: no such kind of value")
    if kind == "tensor":
        return _tensor_from_json(*inside, numbers)
    if kind == "array":
        return _array_from_json(*inside, numbers)
    if type(inside) is not (list if kind == "tuple" else dict):
        raise ValueError(f"a garbled frame: no {kind}")  # tuple(tensor) would be a million tensors
    keys, items = (None, inside) if kind == "tuple" else (list(inside), list(inside.values()))
    values, numbers = _from_json(items, numbers)
    return (tuple(values) if keys is None else dict(zip(keys, values, strict=True))), numbers


def _size(shape: Any, itemsize: int, numbers: memoryview) -> int:
    """The bytes that an array of this shape takes, which are there. Raises ValueError."""
    if not all(type(n) is int and n >= 0 for n in shape) or len(shape) > MOST_AXES:
        raise ValueError("a garbled frame: no such shape")
    if _extent(shape) * itemsize > MOST_NUMBERS:
        raise ValueError("a garbled frame: no tensor of such a shape is sent")
    size = math.prod(shape) * itemsize
    if size > len(numbers):
        raise ValueError(f"a frame that promises {size} bytes and holds {len(numbers)}")
    return size


def _array_from_json(name: Any, shape: Any, numbers: memoryview) -> tuple[np.ndarray, memoryview]:
    dtype = ARRAYS[name]
    size = _size(shape, dtype.itemsize, numbers)
    own = np.frombuffer(bytearray(numbers[:size]), np.uint8 if name == "bool" else dtype)
    return (own != 0 if name == "bool" else own).reshape(shape), numbers[size:]


def _tensor_from_json(name: Any, shape: Any, numbers: memoryview) -> tuple[Tensor, memoryview]:
    dtype = DTYPES[name]
    size = _size(shape, dtype.itemsize, numbers)
    if size == 0:
        return torch.empty(shape, dtype=dtype), numbers
    if dtype == torch.bool:  # a byte of 2 would be a third kind of truth
        tensor = torch.frombuffer(bytearray(numbers[:size]), dtype=torch.uint8) != 0
    else:
        tensor = torch.frombuffer(bytearray(numbers[:size]), dtype=dtype)
    return tensor.reshape(shape), numbers[size:]


def same(before: Tensor, after: Tensor) -> bool:
    """Is a tensor what it was? NaN at the same positions is the same."""
    if before.shape != after.shape or before.dtype != after.dtype:
        return False
    still = (before == after) | ((before != before) & (after != after))
    return bool(still.all())
