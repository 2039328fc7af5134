"""A retrieval database: the chunks of documents, found by keys, each with what comes after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional

from ..bounds import NonNegativeInt, PositiveInt
from ..errors import argument_error, shape_of
from ..functional.retrieval import nearest_neighbors
from ..shapes import checked

__all__ = ["ChunkDatabase"]


class ChunkDatabase:
    """Documents in chunks; a chunk is found by its key, and returned with its continuation.

    A document that does not fill its last chunk is padded.

    documents: the token IDs of each, one axis. encode: chunks (N, m) -> keys (N, d), frozen; it also makes the
        keys of what is searched for.

    Raises: TypeError or ValueError that name the argument.
    Source: Borgeaud et al. 2022 (RETRO).

    >>> database = ChunkDatabase([torch.arange(1, 9)], lambda ids: ids.float(), chunk_size=2)
    >>> database.search(torch.tensor([[3, 5]]), num_neighbors=1).tolist()
    [[[3, 4, 5, 6]]]
    """

    @checked
    def __init__(
        self,
        documents: Sequence[Int[Tensor, "..."]],
        encode: Callable[[Tensor], Tensor],
        *,
        chunk_size: PositiveInt,
        pad_id: NonNegativeInt = 0,
    ) -> None:
        if not len(documents):
            raise argument_error(ValueError, "documents", "none", "at least one")
        chunks, following, owners = [], [], []
        for number, document in enumerate(documents):
            if document.ndim != 1:
                wanted = "one axis of token IDs"
                raise argument_error(ValueError, f"documents[{number}]", shape_of(document), wanted)
            missing = -len(document) % chunk_size
            own = functional.pad(document, (0, missing), value=pad_id).view(-1, chunk_size)
            end = torch.full_like(own[:1], pad_id)  # nothing comes after the last chunk
            chunks.append(own)
            following.append(torch.cat((own[1:], end[: len(own)])))
            owners += [number] * len(own)
        self.texts = torch.cat((torch.cat(chunks), torch.cat(following)), 1)  # S 2m
        self.owners = torch.tensor(owners)  # S: the document of each chunk
        self.keys, self.encode = encode(torch.cat(chunks)), encode  # S d
        self.chunk_size, self.pad_id = chunk_size, pad_id

    @checked(m="self.chunk_size")
    @torch.no_grad()
    def search(
        self,
        chunks: Int[Tensor, "N m"],
        *,
        num_neighbors: PositiveInt,
        document: Int[Tensor, " N"] | None = None,
    ) -> Int[Tensor, "N k r"]:
        """The nearest chunks and their continuations, r = 2m tokens each; padding where there are too few.

        document: the number of the document that each chunk comes from; its own chunks are not returned.
        """
        allowed = None if document is None else document[:, None] != self.owners  # N S
        found = nearest_neighbors(
            self.encode(chunks), self.keys, num_neighbors, allowed=allowed
        )  # N k
        nothing = torch.full_like(self.texts[:1], self.pad_id)
        return torch.cat((self.texts, nothing))[found]  # -1 is the last row

    @checked(m="self.chunk_size")
    def neighbors_of(
        self,
        chunks: Int[Tensor, "B N m"],
        *,
        num_neighbors: PositiveInt,
        document: Int[Tensor, " B"] | None = None,
    ) -> Int[Tensor, "B N k r"]:
        """`search` for the chunks of a batch of sequences, each of which may be a document of the database."""
        batch, count, _ = chunks.shape
        owner = None if document is None else document.repeat_interleave(count)
        found = self.search(chunks.flatten(0, 1), num_neighbors=num_neighbors, document=owner)
        return found.unflatten(0, (batch, count))
