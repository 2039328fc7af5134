"""How many operations and bytes attention takes, and which of the two a device waits for.

Counts on paper, for one call of attention; `Counted` and `measure_traffic` count the same by
watching a function at work. FLOPs: a multiplication with its addition is two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..bounds import AtLeast, Divides, NonNegativeFloat, PositiveInt
from ..functional.online_softmax import SKIPPED, tile_kinds
from ..shapes import checked

__all__ = [
    "Counted",
    "Device",
    "attainable",
    "attention_flops",
    "decoding_cost",
    "least_seconds",
    "measure_traffic",
    "plain_bytes",
    "tiled_bytes",
]


@dataclass(frozen=True)
class Device:
    """What a data sheet says: most operations in a second, most bytes to and from memory in a second.

    flops: bfloat16 products on tensor cores, without sparsity. tile_bytes: the shared memory of one
    SM that a program may use. l2_bytes: the cache between that and HBM.
    """

    name: str
    flops: float
    bandwidth: float
    tile_bytes: int
    l2_bytes: int
    multiprocessors: int
    source: str

    @property
    def ridge(self) -> float:
        """Operations for each byte from which on the computing, not the memory, is the limit.

        >>> round(DEVICES["H100 SXM"].ridge)
        295
        """
        return self.flops / self.bandwidth


AMPERE = "NVIDIA A100 data sheet; NVIDIA Ampere Architecture In-Depth; CUDA programming guide"
HOPPER = "data sheet; NVIDIA Hopper Architecture In-Depth; CUDA programming guide"

DEVICES = {
    device.name: device
    for device in (
        Device("A100 SXM 40 GB", 312e12, 1.555e12, 163 * 2**10, 40 * 2**20, 108, AMPERE),
        Device("A100 SXM 80 GB", 312e12, 2.039e12, 163 * 2**10, 40 * 2**20, 108, AMPERE),
        # The sheet's 1,979 TFLOP/s are with sparsity: half of it without.
        Device("H100 SXM", 989e12, 3.35e12, 227 * 2**10, 50 * 2**20, 132, f"NVIDIA H100 {HOPPER}"),
        # The chip of an H100 with a faster memory.
        Device("H200 SXM", 989e12, 4.8e12, 227 * 2**10, 50 * 2**20, 132, f"NVIDIA H200 {HOPPER}"),
    )
}


@checked
def attention_flops(
    length: PositiveInt,
    keys: PositiveInt,
    d: PositiveInt,
    *,
    heads: PositiveInt = 1,
    causal: bool = False,
    backward: bool = False,
) -> int:
    """Operations of the two products, query by key and weights by value; the softmax is not counted.

    Causal counts the pairs that may be seen. Backward: five products more.

    Shapes: heads stands for all heads of all samples.
    Raises: TypeError and ValueError for sizes that are no counts.
    Source: Dao 2023, section 4.1 (which takes half of all pairs for causal).

    >>> attention_flops(4, 4, 2)
    128
    >>> attention_flops(4, 4, 2, causal=True)
    80
    """
    pairs = length * keys
    if causal:
        pairs = sum(max(0, min(keys, i + keys - length + 1)) for i in range(length))
    return 2 * d * pairs * heads * (2 + 5 * backward)


@checked
def plain_bytes(
    length: PositiveInt,
    keys: PositiveInt,
    d: PositiveInt,
    *,
    heads: PositiveInt = 1,
    item: PositiveInt = 2,
) -> int:
    """Bytes to and from memory of the plain formula, each step a pass of its own.

    Scale the query, multiply by the keys, softmax, multiply by the values: each reads what it needs
    and writes what it makes, and three of them meet all L x S scores. item: bytes of a number.

    Raises: as `attention_flops`.
    Source: Dao et al. 2022, algorithm 0.

    >>> plain_bytes(4, 4, 2, item=1)
    112
    """
    scale = 2 * length * d
    scores = length * d + keys * d + length * keys
    softmax = 2 * length * keys
    mix = length * keys + keys * d + length * d
    return heads * item * (scale + scores + softmax + mix)


@checked
def tiled_bytes(
    length: PositiveInt, keys: PositiveInt, d: PositiveInt, *, rows: PositiveInt, cols: PositiveInt, heads: PositiveInt = 1, causal: bool = False,
    item: PositiveInt = 2,
) -> int:  # fmt: skip
    """Bytes to and from memory of the tiled version: for each block of queries all keys it may see.

    The query is read once and the output written once, with a log-sum-exp of four bytes a row. An
    L2 cache can only make it less.

    Raises: as `attention_flops`.
    Source: Dao et al. 2022, theorem 2; the order of loops: Dao 2023, algorithm 1.

    >>> tiled_bytes(4, 4, 2, rows=2, cols=2, item=1)
    64
    """
    kinds = tile_kinds(length, keys, rows=rows, cols=cols, causal=causal)
    widths = [min(keys - m * cols, cols) for m in range(kinds.shape[1])]
    loaded = sum(
        width for row in kinds for kind, width in zip(row, widths, strict=True) if kind != SKIPPED
    )
    return heads * (item * (2 * length * d + 2 * loaded * d) + 4 * length)


@checked
def decoding_cost(
    keys: PositiveInt,
    d: PositiveInt,
    *,
    heads: PositiveInt,
    groups: Annotated[int, AtLeast(1), Divides("heads")],
    item: PositiveInt = 2,
) -> tuple[int, int]:
    """Operations and bytes of one new query per head that reads a cache: (FLOPs, bytes).

    Each of the G key and value heads is read once and serves H / G query heads.

    Raises: as `attention_flops`; ValueError if `groups` does not divide `heads`.
    Source: Shazeer 2019; Ainslie et al. 2023.

    >>> decoding_cost(1000, 128, heads=32, groups=8, item=2)
    (16384000, 4112384)
    """
    return 4 * heads * keys * d, item * (2 * groups * keys * d + 2 * heads * d)


@checked
def attainable(intensity: Annotated[float, AtLeast(0)], device: Device) -> float:
    """The roofline: the most operations a second at so many operations for each byte.

    Raises: TypeError and ValueError for what is no number from 0 on; TypeError for no Device.
    Source: Williams et al. 2009.

    >>> attainable(1, DEVICES["H100 SXM"]) == DEVICES["H100 SXM"].bandwidth
    True
    """
    return min(device.flops, intensity * device.bandwidth)


@checked
def least_seconds(flops: NonNegativeFloat, num_bytes: NonNegativeFloat, device: Device) -> float:
    """No program can be faster: the operations at the peak, or the bytes at the bandwidth.

    Raises: as `attainable`.
    Source: Williams et al. 2009.
    """
    return max(flops / device.flops, num_bytes / device.bandwidth)


class Counted(Tensor):
    """A tensor that notes how many bytes are read from it by slices: what a loop loads."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # what is made of it does not count

    @classmethod
    @checked
    def of(cls, tensor: Tensor) -> Counted:
        """The same numbers, nothing read yet."""
        counted = tensor.as_subclass(cls)
        counted.bytes_read = 0
        return counted

    def __getitem__(self, place: Any) -> Tensor:
        part = self.as_subclass(Tensor)[place]
        self.bytes_read += part.numel() * part.element_size()
        return part


class _Traffic(TorchDispatchMode):
    """Adds up what every operation reads and writes; a view does neither."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        answer = function(*args, **(kwargs or {}))
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        made = [t for t in tree_leaves(answer) if isinstance(t, Tensor)]
        memory = {t.untyped_storage().data_ptr() for t in given}
        if not all(t.untyped_storage().data_ptr() in memory for t in made):
            self.bytes += sum(t.numel() * t.element_size() for t in given + made)
        return answer


@checked
def measure_traffic(function: Callable[..., Any], *tensors: Tensor) -> int:
    """Bytes that a function's operations read and write, if each one goes to memory and back.

    So does PyTorch on a GPU without a fused kernel or a compiler. Operations in place are not counted.

    Raises: TypeError if `function` cannot be called.
    """
    with torch.no_grad(), _Traffic() as traffic:
        function(*tensors)
    return traffic.bytes
