"""PyTorch's fused kernel, F.scaled_dot_product_attention, with this package's conventions."""

from __future__ import annotations

from contextlib import nullcontext

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from ..inputs import AttentionInputs, masked_bias

# On CUDA the kernels inside SDPA are named, in the order in which they are tried.
KERNELS = [
    SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]  # fmt: skip


def unsupported_reason(call: AttentionInputs) -> str | None:
    """Why this backend can not serve the call, or None if it can."""
    if call.return_weights:
        return "the fused kernel never forms the weights, so it can not return them"
    return None


def run(call: AttentionInputs) -> tuple[Tensor, None]:
    """Answer the call without forming the weights in Python.

    Shapes: -> output (*batch, L, dv), None.
    Source: Dao et al. 2022 for the kernel; PyTorch's documentation for its conventions.
    """
    # SDPA aligns `is_causal` top-left. Only with equal lengths is that the alignment meant here.
    square = call.query.shape[-2] == call.key.shape[-2]
    extras = (call.mask, call.bias, call.window, call.key_lengths, call.alibi_slopes)
    only_causal = call.causal and square and all(extra is None for extra in extras)
    named = sdpa_kernel(KERNELS, set_priority=True) if call.query.is_cuda else nullcontext()
    with named:
        return _sdpa(call, only_causal), None


def _sdpa(call: AttentionInputs, only_causal: bool) -> Tensor:
    return scaled_dot_product_attention(
        call.query,
        call.key,
        call.value,
        attn_mask=None if only_causal else _mask_or_bias(call),
        dropout_p=call.dropout_p,
        is_causal=only_causal,
        scale=call.scale,
        enable_gqa=call.groups > 1,
    )


def _mask_or_bias(call: AttentionInputs) -> Tensor | None:
    """SDPA takes one tensor: a boolean mask, or a bias in the query's dtype with -inf for hidden."""
    allowed, bias = call.allowed(), call.total_bias()
    if bias is None:
        return allowed
    return masked_bias(bias.to(call.query.dtype), allowed)
