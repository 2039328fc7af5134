"""Attention over packed documents: of different lengths, one behind the other, without padding."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import (
    BackendError,
    argument_error,
    check_count,
    check_float_tensor,
    check_integer_tensor,
    check_rank,
)
from .attention import attention
from .backends import flash
from .inputs import AttentionInputs, check_call

__all__ = ["packed_attention"]


def packed_attention(
    query: Float[Tensor, "T H d"],
    key: Float[Tensor, "T_keys G d"],
    value: Float[Tensor, "T_keys G d"],
    *,
    cu_seqlens: Int[Tensor, " N+1"],
    cu_seqlens_k: Int[Tensor, " N+1"] | None = None,
    max_length: int | None = None,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    backend: str = "auto",
) -> Float[Tensor, "T H d"]:
    """Attend within each document: what `document_mask` allows, without computing what it hides.

    cu_seqlens: where each document begins, and at last where all end: 0, n_1, n_1 + n_2, ...
    cu_seqlens_k: the same for the keys, if they are other tokens. max_length: of the longest
    document; on a GPU it saves reading cu_seqlens back. The rest as in `attention`.

    backend: "flash" is one kernel for all documents; every other answers document by document.
    "auto" is "flash" where it serves the call.

    Shapes: query (T, H, d), key and value (T_keys, G, d), G divides H -> (T, H, d).
    Raises: TypeError or ValueError that name the argument; BackendError as `attention`.
    Source: Dao 2023, for variable lengths; Krell et al. 2021, for packing.
    """
    cu_seqlens_k = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check_float_tensor(name, tensor)
        check_rank(name, tensor, 3)
    options = {"causal": causal, "window": window, "scale": scale, "dropout_p": dropout_p}
    batched = [t.transpose(0, 1)[None] for t in (query, key, value)]  # 1 H T d
    call = check_call(
        *batched, mask=None, bias=None, key_lengths=None, alibi_slopes=None, return_weights=False,
        **options,
    )  # fmt: skip
    _check_starts("cu_seqlens", cu_seqlens, query)
    _check_starts("cu_seqlens_k", cu_seqlens_k, key)
    if len(cu_seqlens) != len(cu_seqlens_k):
        wanted = f"as many documents as cu_seqlens, {len(cu_seqlens) - 1}"
        raise argument_error(ValueError, "cu_seqlens_k", f"{len(cu_seqlens_k) - 1}", wanted)
    if max_length is not None:
        check_count("max_length", max_length, least=0)
    reason = flash.missing() or flash.unsupported_tensors(query, value)
    if backend == "flash" and reason:
        raise BackendError(f'backend "flash": {reason}')
    if backend == "flash" or (backend == "auto" and reason is None):
        return _by_flash(call, cu_seqlens, cu_seqlens_k, max_length)
    starts = cu_seqlens, cu_seqlens_k
    return _by_document(query, key, value, *starts, backend=backend, **options)


def _by_document(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, key_starts: Tensor, **options: Any
) -> Tensor:
    """One call of attention() for each document."""
    lengths, key_lengths = (s.diff().tolist() for s in (starts, key_starts))
    parts = [
        attention(*(t.transpose(0, 1)[None] for t in document), **options)[0].transpose(0, 1)
        for document in zip(
            query.split(lengths), key.split(key_lengths), value.split(key_lengths), strict=True
        )
    ]
    return torch.cat(parts) if parts else torch.empty_like(query)


def _by_flash(
    call: AttentionInputs, starts: Tensor, key_starts: Tensor, max_length: int | None
) -> Tensor:
    """One kernel for all documents."""
    longest = [max_length or int(s.diff().max()) if len(s) > 1 else 0 for s in (starts, key_starts)]
    output = flash.flash(
        call.query, call.key, call.value, causal=call.causal, window=call.window, scale=call.scale,
        dropout_p=call.dropout_p, row_starts=starts, col_starts=key_starts, longest=tuple(longest),
    )  # fmt: skip
    return output[0].transpose(0, 1)


def _check_starts(name: str, starts: Tensor, packed: Tensor) -> None:
    check_integer_tensor(name, starts)
    check_rank(name, starts, 1)
    if starts.numel() == 0:
        raise argument_error(ValueError, name, "no number", "0, and where each document ends")
    if starts.device.type != "cpu" or torch.compiler.is_compiling():
        return  # reading values on a GPU would wait for it
    numbers = starts.tolist()
    if numbers[0] != 0 or numbers[-1] != len(packed) or sorted(numbers) != numbers:
        wanted = f"rising numbers from 0 to {len(packed)}"
        raise argument_error(ValueError, name, numbers, wanted)
