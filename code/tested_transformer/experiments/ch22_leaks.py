"""Two leak tests of a model with retrieval, and two pipelines that fail one or both of them (chapter 22)."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from ..functional.attention import attention
from ..functional.retrieval import split_chunks
from ..layers.chunk_database import ChunkDatabase
from ..layers.chunked_cross_attention import ChunkedCrossAttention
from ..models.retro import Retro

LogitsOf = Callable[[Tensor, Tensor], Tensor]  # of a text, and of the text as the database holds it


class OwnNeighbors(ChunkedCrossAttention):
    """The bug: no shift, so every chunk reads its own neighbors."""

    def _read(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        length, num_chunks = query.shape[2], key.shape[2]
        whole = num_chunks * self.chunk_size
        chunks = query[:, :, :whole].unflatten(2, (num_chunks, self.chunk_size))
        read = attention(chunks, key, value, mask=mask[:, None, :, None]).flatten(2, 3)
        return functional.pad(read, (0, 0, 0, length - whole))


def without_shift(model: Retro) -> Retro:
    """A copy whose chunks read their own neighbors."""
    model = copy.deepcopy(model)
    for layer in model.layers:
        if layer.reads is not None:
            right = layer.reads
            layer.reads = OwnNeighbors(model.config.d_model, right.num_heads, right.chunk_size)
            layer.reads.load_state_dict(right.state_dict())
            layer.reads.to(right.query.weight.dtype)
    return model


def logits_with_search(
    model: Retro,
    others: list[Tensor],
    encode: Callable[[Tensor], Tensor],
    *,
    exclude_own: bool = True,
) -> LogitsOf:
    """The whole pipeline: build the database, search it for the text's chunks, predict.

    The text itself is document 0 of the database, as in training; `exclude_own` leaves its chunks out of
    the search.
    """
    size = model.config.chunk_size

    @torch.no_grad()
    def logits_of(ids: Int[Tensor, " L"], stored: Int[Tensor, " L"]) -> Float[Tensor, "L V"]:
        database = ChunkDatabase([stored, *others], encode, chunk_size=size)
        own = torch.tensor([0]) if exclude_own else None
        chunks = split_chunks(ids[None], size)
        neighbors = database.neighbors_of(chunks, num_neighbors=1, document=own)
        return model(ids[None], neighbors)[0]

    return logits_of


def leaks(
    logits_of: LogitsOf, ids: Int[Tensor, " L"], replace: Int[Tensor, " L"], *, rebuild: bool
) -> Float[Tensor, " N"]:
    """For each token, how far outputs up to it move when all tokens after it are replaced.

    The search runs again. With `rebuild` the text changes in the database, too.
    """
    before, moved = logits_of(ids, ids), []
    for t in range(len(ids) - 1):
        changed = torch.cat((ids[: t + 1], replace[t + 1 :]))
        after = logits_of(changed, changed if rebuild else ids)
        moved.append((after - before)[: t + 1].abs().max())
    return torch.stack(moved)
