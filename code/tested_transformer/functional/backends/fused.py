"""PyTorch's fused kernel, F.scaled_dot_product_attention, with this package's conventions."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from ..inputs import AttentionInputs, masked_bias, once_differentiable, transforms

# On CUDA the kernels inside SDPA are named, in the order in which they are tried.
KERNELS = [
    SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]  # fmt: skip


def unsupported_reason(call: AttentionInputs) -> str | None:
    """Why this backend cannot serve the call, or None if it can."""
    if call.return_weights:
        return "the fused kernel never forms the weights, so it cannot return them"
    modes = transforms()
    if "jvp" in modes or modes.count("grad") > 1:
        return "the fused kernel has one derivative, in reverse mode: no jvp and no second one"
    return None


def run(call: AttentionInputs) -> tuple[Tensor, None]:
    """Answer the call without forming the weights in Python.

    Shapes: -> output (*batch, L, dv), None.
    Source: Dao et al. 2022 for the kernel; PyTorch's documentation for its conventions.
    """
    named = sdpa_kernel(KERNELS, set_priority=True) if call.query.is_cuda else nullcontext()
    with named:
        output = _sdpa(call)
    return once_differentiable("fused", output), None


def _sdpa(call: AttentionInputs) -> Tensor:
    only_causal, bias, dtype = is_only_causal(call), call.total_bias(), call.query.dtype
    mask = None if only_causal else call.allowed()
    if bias is not None:  # SDPA takes one tensor for both, in the query's dtype, -inf for hidden
        if bias.dtype != dtype:  # it would round the bias
            call, bias = call.wide(), bias.to(call.dtype)
        mask = masked_bias(bias, mask)
    output = scaled_dot_product_attention(
        call.query, call.key, call.value, attn_mask=mask, dropout_p=call.dropout_p,
        is_causal=only_causal, scale=call.scale,
        enable_gqa=call.query.shape[:-2] != call.key.shape[:-2],
    )  # fmt: skip
    return output if output.dtype == dtype else output.to(dtype)


def is_only_causal(call: AttentionInputs) -> bool:
    """Is SDPA's own `is_causal` enough? It is aligned top-left, which is ours for equal lengths."""
    # An exported program may get other lengths than those that it was traced with.
    if not call.causal or torch.compiler.is_exporting():
        return False
    if call.query.shape[-2] != call.key.shape[-2]:
        return False
    extras = (call.mask, call.bias, call.window, call.key_lengths, call.alibi_slopes)
    return all(extra is None for extra in extras)
