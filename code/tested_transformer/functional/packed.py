"""Attention over packed documents: of different lengths, one behind the other, without padding."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..bounds import NonNegativeInt, PositiveInt, Probability
from ..errors import BackendError, argument_error
from ..shapes import checked
from .attention import Backend, answer
from .backends import flash
from .inputs import AttentionInputs

__all__ = ["packed_attention"]


@checked(nonempty="ends")
def packed_attention(
    query: Float[Tensor, "T H d"],
    key: Float[Tensor, "T_keys G d"],
    value: Float[Tensor, "T_keys G dv"],
    *,
    cu_seqlens: Int[Tensor, " ends"],
    cu_seqlens_k: Int[Tensor, " ends"] | None = None,
    max_length: NonNegativeInt | None = None,
    causal: bool = False,
    window: PositiveInt | None = None,
    scale: float | None = None,
    dropout_p: Probability = 0.0,
    backend: Backend = "auto",
) -> Float[Tensor, "T H dv"]:
    """Attend within each document: what `document_mask` allows, without computing what it hides.

    cu_seqlens: where each document begins, and at last where all end: 0, n_1, n_1 + n_2, ...
    cu_seqlens_k: the same for the keys, if they are other tokens. max_length: of the longest
    document; on a GPU it saves reading cu_seqlens back. The rest as in `attention`.

    backend: "flash" is one kernel for all documents; every other answers document by document.
    "auto" is "flash" where it serves the call.

    Shapes: query (T, H, d), key (T_keys, G, d), value (T_keys, G, dv), G divides H -> (T, H, dv);
        cu_seqlens (N + 1) for N documents.
    Raises: TypeError or ValueError that name the argument; BackendError as `attention`.
    Source: Dao 2023, for variable lengths; Krell et al. 2021, for packing.
    """
    starts, key_starts = cu_seqlens, cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
    check_starts("cu_seqlens", starts, query)
    check_starts("cu_seqlens_k", key_starts, key)
    query, key, value = (tensor.transpose(0, 1)[None] for tensor in (query, key, value))  # 1 H T d
    inputs = AttentionInputs(
        query, key, value, scale=query.shape[-1] ** -0.5 if scale is None else scale,
        causal=causal, window=window, dropout_p=dropout_p,
    )  # fmt: skip
    reason = flash.missing() or flash.unsupported_tensors(query, value)
    if backend == "flash" and reason:
        raise BackendError(f'backend "flash": {reason}')
    if backend in ("flash", "auto") and not reason:
        return _by_flash(inputs, starts, key_starts, max_length)
    return _by_document(inputs, starts, key_starts, backend)


def _by_document(
    inputs: AttentionInputs, starts: Tensor, key_starts: Tensor, backend: str
) -> Tensor:
    """One answer for each document."""
    lengths, key_lengths = (s.diff().tolist() for s in (starts, key_starts))
    parts = [inputs.query.new_empty(1, inputs.query.shape[1], 0, inputs.value.shape[-1])]
    for query, key, value in zip(
        inputs.query.split(lengths, 2), inputs.key.split(key_lengths, 2),
        inputs.value.split(key_lengths, 2), strict=True,
    ):  # fmt: skip
        document = replace(inputs, query=query, key=key, value=value)
        parts.append(answer(backend, document)[0])  # 1 H T d
    return torch.cat(parts, dim=2)[0].transpose(0, 1)


def _by_flash(
    inputs: AttentionInputs, starts: Tensor, key_starts: Tensor, max_length: int | None
) -> Tensor:
    """One kernel for all documents."""
    longest = [max_length or int(s.diff().max()) if len(s) > 1 else 0 for s in (starts, key_starts)]
    output = flash.flash(
        inputs.query, inputs.key, inputs.value, causal=inputs.causal, window=inputs.window,
        scale=inputs.scale, dropout_p=inputs.dropout_p, row_starts=starts, col_starts=key_starts, longest=tuple(longest),
    )  # fmt: skip
    return output[0].transpose(0, 1)


def check_starts(name: str, starts: Tensor, packed: Tensor) -> None:
    """Raise ValueError unless the starts rise from 0 to the end of the tokens (read on the CPU only)."""
    if starts.device.type == "cpu" and not torch.compiler.is_compiling():
        numbers = starts.tolist()
        if numbers[0] != 0 or numbers[-1] != len(packed) or sorted(numbers) != numbers:
            raise argument_error(
                ValueError, name, numbers, f"rising numbers from 0 to {len(packed)}"
            )
