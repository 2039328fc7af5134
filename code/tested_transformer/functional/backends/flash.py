"""FlashAttention on a GPU: attention() by the Triton kernels of `flash_kernels.py`.

Two custom operators, forward and backward, so that torch.compile and autograd know them. Triton is
imported when the first call needs it. With TRITON_INTERPRET=1 the kernels run on the CPU, slowly.
"""

from __future__ import annotations

import importlib.util
import os
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ..inputs import AttentionInputs, masked_bias, once_differentiable, transforms
from .flash_configs import Config, choose

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
FEWEST_ROWS, WIDEST = 16, 256
HAS_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton reads it when it is imported


def missing() -> str | None:
    """What this machine lacks for the kernels, or None."""
    if not HAS_TRITON:
        return "Triton is not installed (pip install triton; it exists for Linux only)"
    if not INTERPRETED and not torch.cuda.is_available():
        return "there is no CUDA device (TRITON_INTERPRET=1 runs the kernels on the CPU, slowly)"
    return None


def unsupported_reason(call: AttentionInputs) -> str | None:
    """Why this backend cannot serve the call, or None if it can."""
    reason = missing() or unsupported_tensors(call.query, call.value)
    if reason is not None:
        return reason
    if call.return_weights:
        return "the kernels never form the weights, so they cannot return them"
    if call.query.ndim != 4:
        return f"{call.query.ndim} axes, not 4: (B, H, L, d)"
    if call.query.shape[-2] < FEWEST_ROWS:
        return f"fewer than {FEWEST_ROWS} queries"
    for name, tensor in (("bias", call.bias), ("alibi_slopes", call.alibi_slopes)):
        if tensor is not None and tensor.requires_grad and torch.is_grad_enabled():
            return f"the gradient of {name} is not computed"
    modes = transforms()
    if {"jvp", "vmap"} & {*modes} or modes.count("grad") > 1:
        return f"the kernels cannot run inside torch.func's transforms ({', '.join(modes)})"
    return None


def unsupported_tensors(query: Tensor, value: Tensor) -> str | None:
    """What of device, dtype and head size the kernels cannot serve, or None."""
    if not query.is_cuda and not INTERPRETED:
        return f"the tensors are on {query.device}, not on a CUDA device"
    if query.dtype not in DTYPES:
        return f"{query.dtype} is none of float16, bfloat16, float32"
    if query.shape[-1] > WIDEST:
        return f"head size {query.shape[-1]} is above {WIDEST}"
    if value.shape[-1] != query.shape[-1]:
        return "key and value have different head sizes"
    return None


def is_tuned_for(call: AttentionInputs) -> bool:
    """Is the call of the kind that the kernels are tuned for? "auto" leaves all others to SDPA."""
    if not call.query.is_cuda:
        return False
    others = (call.mask, call.bias, call.key_lengths, call.alibi_slopes)
    return (
        call.query.dtype in (torch.float16, torch.bfloat16)
        and call.query.shape[-1] <= 128
        and call.dropout_p == 0
        and all(other is None for other in others)
    )


def run(call: AttentionInputs) -> tuple[Tensor, None]:
    """Answer the call by the kernels.

    Shapes: -> output (B, H, L, d), None.
    Source: Dao 2023; chapter 15.
    """
    mask = call.mask if call.bias is None else masked_bias(call.bias, call.mask)
    output = flash(
        call.query, call.key, call.value, mask=mask, causal=call.causal, window=call.window,
        key_lengths=call.key_lengths, alibi_slopes=call.alibi_slopes, scale=call.scale,
        dropout_p=call.dropout_p,
    )  # fmt: skip
    return once_differentiable("flash", output), None


def flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    key_lengths: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    row_starts: Tensor | None = None,
    col_starts: Tensor | None = None,
    longest: tuple[int, int] | None = None,
    scale: float,
    dropout_p: float = 0.0,
) -> Tensor:
    """Attention of valid arguments, batched or packed; mask: boolean, or a bias to add.

    Shapes: query (B, H, L, d), key and value (B, G, S, d) -> (B, H, L, d). Packed: B is 1, L and S
        are sums over the documents, which begin at row_starts and col_starts (N + 1), of at most
        `longest` rows and columns.
    Source: Dao 2023.
    """
    if scale < 0:  # the kernels take the largest product for the largest score
        query, scale = -query, -scale
    if scale == 0:  # and a masked product is -inf, which times 0 would be NaN
        query, scale = 0.0 * query, 1.0
    if window is not None:  # wider than all places hides nothing, and may not fit into an int64
        window = min(window, query.shape[2] + key.shape[2])
    if mask is not None:
        mask = mask.expand(*query.shape[:3], key.shape[2])
    seed = torch.randint(2**62, (1,)) if dropout_p > 0 else None  # on the CPU: nothing waits
    rows, cols = longest or (query.shape[2], key.shape[2])
    output, _ = flash_forward(
        query, key, value, mask, alibi_slopes, key_lengths, row_starts,
        col_starts, seed, causal, window, scale, dropout_p, rows, cols,
    )  # fmt: skip
    return output


# --- Operators ------------------------------------------------------------------------------------


@torch.library.custom_op("tested_transformer::flash_forward", mutates_args=())
def flash_forward(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, slopes: Tensor | None,
    key_lengths: Tensor | None, row_starts: Tensor | None, col_starts: Tensor | None,
    seed: Tensor | None, causal: bool, window: int | None, scale: float, dropout_p: float,
    rows: int, cols: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The output, and the log-sum-exp of every row (float32, +inf for a row that sees nothing)."""
    output = torch.empty_like(query)
    lse = query.new_empty(query.shape[:-1], dtype=torch.float32)  # B H L
    if not key.numel() or not query.numel():
        return output.zero_(), lse.fill_(float("inf"))
    options = _Options(query, key, mask, slopes, key_lengths, row_starts, col_starts, seed, causal,
                       window, scale, dropout_p, rows, cols)  # fmt: skip
    config = options.config("forward")
    sizes = (config.rows, config.cols, config.cols)
    inputs, constants = options.inputs(config, (query, key, value), sizes)
    _kernels().forward_kernel[(options.programs("forward", config),)](
        *inputs, output, lse, *map(options.strides, (query, key, value, output, lse)),
        *options.arguments, **constants,
    )  # fmt: skip
    return output, lse


@torch.library.custom_op("tested_transformer::flash_backward", mutates_args=())
def flash_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, lse: Tensor,
    mask: Tensor | None, slopes: Tensor | None, key_lengths: Tensor | None,
    row_starts: Tensor | None, col_starts: Tensor | None, seed: Tensor | None, causal: bool,
    window: int | None, scale: float, dropout_p: float, rows: int, cols: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of query, key and value."""
    found = tuple(torch.empty_like(t) for t in (query, key, value))
    if not key.numel() or not query.numel():
        return tuple(t.zero_() for t in found)
    options = _Options(query, key, mask, slopes, key_lengths, row_starts, col_starts, seed, causal,
                       window, scale, dropout_p, rows, cols)  # fmt: skip
    delta = _delta(options, output, gradient, lse)
    tensors = (query, key, value, gradient)
    for kernel, gradients in (("key_value", found[1:]), ("query", found[:1])):
        config = options.config(kernel)
        sizes = (config.rows, config.cols, config.cols, config.rows)
        inputs, constants = options.inputs(config, tensors, sizes)
        getattr(_kernels(), f"{kernel}_kernel")[(options.programs(kernel, config),)](
            *inputs, *gradients, lse, delta, *map(options.strides, (*tensors, *gradients, lse)),
            *options.arguments, **constants,
        )  # fmt: skip
    return found


def _delta(options: _Options, output: Tensor, gradient: Tensor, lse: Tensor) -> Tensor:
    delta, tile = torch.empty_like(lse), 64
    tiles = -(-options.rows // tile)
    _kernels().delta_kernel[(tiles * options.heads * options.documents,)](
        output, gradient, delta, *map(options.strides, (output, gradient, lse)),
        options.pointer(options.row_starts), options.heads, options.rows, D=output.shape[-1],
        BLOCK_D=block_of(output.shape[-1]), ROWS=tile, PACKED=options.row_starts is not None,
    )  # fmt: skip
    return delta


@flash_forward.register_fake
def _(query, *rest):
    return torch.empty_like(query), query.new_empty(query.shape[:-1], dtype=torch.float32)


@flash_backward.register_fake
def _(gradient, query, key, value, *rest):
    return tuple(torch.empty_like(t) for t in (query, key, value))


def _keep_for_backward(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:3], *output, *inputs[3:9])
    ctx.options = inputs[9:]


def _backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    query, key, value, output, lse, *rest = ctx.saved_tensors
    found = flash_backward(gradient, query, key, value, output, lse, *rest, *ctx.options)
    return *found, *[None] * 12


flash_forward.register_autograd(_backward, setup_context=_keep_for_backward)


# --- From tensors to a launch ---------------------------------------------------------------------


class _Options:
    """What forward and backward hand to every kernel alike."""

    def __init__(
        self, query, key, mask, slopes, key_lengths, row_starts, col_starts, seed, causal, window,
        scale, dropout_p, rows, cols,
    ) -> None:  # fmt: skip
        self.query, self.key, self.row_starts = query, key, row_starts
        self.heads, self.group = query.shape[1], query.shape[1] // key.shape[1]
        self.documents = query.shape[0] if row_starts is None else len(row_starts) - 1
        self.rows, self.cols, self.causal = rows, cols, causal
        bias = 0 if mask is None else 1 if mask.dtype == torch.bool else 2
        self.flags = {
            "CAUSAL": causal, "WINDOW": window is not None, "PACKED": row_starts is not None,
            "LENGTHS": key_lengths is not None, "ALIBI": slopes is not None, "BIAS": bias,
            "DROPOUT": dropout_p > 0,
        }  # fmt: skip
        bias_strides = (0, 0, 0, 0) if mask is None else mask.stride()
        self.arguments = (
            self.pointer(mask), bias_strides, self.pointer(slopes), self.pointer(key_lengths),
            self.pointer(row_starts), self.pointer(col_starts), self.heads, self.group, rows, cols,
            scale, window or 0, dropout_p, 0 if seed is None else int(seed),
        )  # fmt: skip

    def pointer(self, tensor: Tensor | None) -> Tensor:
        """A tensor for an argument that must be one; what is not there is never read."""
        return self.query if tensor is None else tensor

    def strides(self, tensor: Tensor) -> tuple[int, ...]:
        """A document of packed tensors begins where `starts` says, not a stride further."""
        first, *rest = tensor.stride()
        return (first if self.row_starts is None else 0, *rest)

    def config(self, kernel: str) -> Config:
        """Tile sizes, warps and stages for a kernel."""
        features = [n.lower() for n in ("WINDOW", "PACKED") if self.flags[n]]
        features += ["gqa"] if self.group > 1 else []
        return choose(kernel, self.query, max(self.rows, self.cols), self.causal, features)

    def inputs(
        self, config: Config, tensors: tuple[Tensor, ...], sizes: tuple[int, ...]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The tensors, or TMA descriptors of tiles with so many rows of them; and the constants."""
        if not (config.tma and self.row_starts is None and all(map(can_be_described, tensors))):
            return list(tensors), self.constants(config, tma=False)
        from triton.tools.tensor_descriptor import TensorDescriptor

        width = block_of(self.query.shape[-1])
        described = [
            TensorDescriptor(t, list(t.shape), list(t.stride()), [1, 1, rows, width])
            for t, rows in zip(tensors, sizes, strict=True)
        ]
        return described, self.constants(config, tma=True)

    def programs(self, kernel: str, config: Config) -> int:
        """How many programs a kernel has: one for each tile of each head and document."""
        if kernel == "key_value":
            return -(-self.cols // config.cols) * (self.heads // self.group) * self.documents
        return -(-self.rows // config.rows) * self.heads * self.documents

    def constants(self, config: Config, *, tma: bool) -> dict[str, Any]:
        """The constexpr arguments, and how the kernel is launched."""
        size, dtype = self.query.shape[-1], self.query.dtype
        return self.flags | {
            "D": size, "BLOCK_D": block_of(size), "ROWS": config.rows, "COLS": config.cols,
            "TMA": tma, "UPCAST": INTERPRETED and dtype == torch.bfloat16,
            "PRECISION": config.precision, "num_warps": config.warps, "num_stages": config.stages,
        }  # fmt: skip


def can_be_described(tensor: Tensor) -> bool:
    """TMA wants neighbors in the last axis, and every row to begin at a multiple of 16 bytes."""
    *outer, inner = tensor.stride()
    bytes_apart = [stride * tensor.element_size() for stride in outer]
    aligned = tensor.data_ptr() % 16 == 0 and all(n % 16 == 0 and n > 0 for n in bytes_apart)
    return aligned and inner == 1


def block_of(size: int) -> int:
    """The head size as the kernels hold it: a power of two, at least 16."""
    return max(16, 1 << (size - 1).bit_length())


def _kernels() -> ModuleType:
    from . import flash_kernels

    return flash_kernels
