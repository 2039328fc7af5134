"""What a mask is: causal, padding, a window, a prefix, documents, or a mistake of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

import torch
from jaxtyping import Bool
from torch import Tensor

from ..functional.masks import causal_mask, document_mask, offsets, window_mask

MOST_NAMED = 6
# Masks that people intend. If the opposite of a mask is one of these, it was probably inverted.
INTENDED = {
    "causal", "causal window", "window", "documents", "causal documents", "causal and padding",
    "prefix", "causal without the diagonal",
}  # fmt: skip


@dataclass(frozen=True)
class Pattern:
    """What a mask is: a short name, and a sentence that says which query attends to which keys."""

    kind: str
    sentence: str


def recognize(mask: Bool[Tensor, "L S"]) -> Pattern:
    """The first pattern that fits a mask exactly; counts if none does."""
    for attempt in RECOGNIZERS:
        pattern = attempt(mask)
        if pattern is not None:
            return pattern
    visible = mask.sum(-1)
    counts = f"{int(mask.sum())} of {mask.numel()} pairs are allowed; a query attends to "
    return Pattern("irregular", counts + f"{_span(int(visible.min()), int(visible.max()))} keys.")


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


def _whole(mask: Tensor) -> Pattern | None:
    length, keys = mask.shape
    if 0 in mask.shape:
        return Pattern("empty", f"There are {length} queries and {keys} keys.")
    if mask.all():
        return Pattern("everything", "Every query attends to every key.")
    return None if mask.any() else Pattern("nothing", "No query attends to any key.")


def _causal(mask: Tensor) -> Pattern | None:
    length, keys = mask.shape
    if length == 1 or not torch.equal(mask, causal_mask(length, keys)):
        return None
    shift = f"i {'+-'[keys < length]} {abs(keys - length)}"
    moved = (
        "" if length == keys else f", aligned bottom-right: query i attends to keys 0 to {shift}"
    )
    return Pattern("causal", f"A query attends to its own position and the past{moved}.")


def _top_left(mask: Tensor) -> Pattern | None:
    if mask.shape[0] == 1 or not torch.equal(mask, torch.ones_like(mask).tril()):
        return None
    return Pattern(
        "causal, top-left", "Query i attends to keys 0 to i, counted from the first key."
    )


def _strict(mask: Tensor) -> Pattern | None:
    if mask.shape[0] == 1:
        return None
    if torch.equal(mask, offsets(*mask.shape) > 0):
        return Pattern(
            "causal without the diagonal", "A query attends to the past, not its own position."
        )
    if torch.equal(mask, offsets(*mask.shape) < 0):
        return Pattern("the future", "A query attends only to what comes after it.")
    return None


def _window(mask: Tensor) -> Pattern | None:
    if not mask.diagonal(mask.shape[1] - mask.shape[0]).any() or mask.shape[0] == 1:
        return None
    width = int(offsets(*mask.shape)[mask].abs().max()) + 1
    band = window_mask(*mask.shape, window=width)
    if torch.equal(mask, band & causal_mask(*mask.shape)):
        last = "no key but its own" if width == 1 else f"the last {width} keys, its own included"
        return Pattern("causal window", f"A query attends to {last}.")
    if torch.equal(mask, band):
        return Pattern(
            "window", f"A query attends to keys fewer than {width} steps away, on both sides."
        )
    return None


def _padding(mask: Tensor) -> Pattern | None:
    if not torch.equal(mask, mask[:1].expand_as(mask)):
        return None
    visible, keys = int(mask[0].sum()), mask.shape[1]
    sentence = f"Every query attends to {visible} of {keys} keys: {_ranges(mask[0])}."
    if not mask[0, 0] and mask[0].int().diff().ge(0).all():
        return Pattern("the last keys", sentence)
    return Pattern("padding", sentence)


def _transposed(mask: Tensor) -> Pattern | None:
    if not torch.equal(mask, mask[:, :1].expand_as(mask)):
        return None
    return Pattern(
        "whole rows", f"Queries {_ranges(mask[:, 0])} attend to every key, the others to none."
    )


def _causal_padding(mask: Tensor) -> Pattern | None:
    kept = mask.any(0)
    if not torch.equal(mask, causal_mask(*mask.shape) & kept):
        return None
    sentence = (
        f"A query attends to its own position and the past, and of these to keys {_ranges(kept)}."
    )
    return Pattern("causal and padding", sentence)


def _prefix(mask: Tensor) -> Pattern | None:
    length, keys = mask.shape
    prefix = int(mask[0].sum())
    inside = torch.arange(keys) < prefix
    if length != keys or not torch.equal(mask, causal_mask(length) | inside):
        return None
    return Pattern(
        "prefix", f"Every query attends to keys 0 to {prefix - 1}, and to the past beyond them."
    )


def _documents(mask: Tensor) -> Pattern | None:
    if mask.shape[0] != mask.shape[1] or not mask.diagonal().all():
        return None
    starts = mask.int().argmax(-1)  # the first key of each query's document
    same = document_mask(starts[None])[0, 0]
    sizes = [len(list(group)) for _, group in groupby(starts.tolist())]
    listed = ", ".join(map(str, sizes[:MOST_NAMED])) + (" ..." if len(sizes) > MOST_NAMED else "")
    whole = len(sizes) == len(starts.unique())
    blocks = (
        f"{len(sizes)} blocks of {listed} tokens" if whole else f"{len(starts.unique())} groups"
    )
    if torch.equal(mask, same):
        return Pattern("documents", f"A query attends to its own document only: {blocks}.")
    if torch.equal(mask, same & causal_mask(len(same))):
        return Pattern(
            "causal documents", f"A query attends to the past of its own document: {blocks}."
        )
    return None


RECOGNIZERS: tuple[Callable[[Tensor], Pattern | None], ...] = (
    _whole, _causal, _top_left, _strict, _padding, _transposed, _window, _prefix, _documents,
    _causal_padding,
)  # fmt: skip


def _ranges(kept: Tensor) -> str:
    """The indices of True as people write them: 0 to 3, 6."""
    indices = kept.nonzero().flatten().tolist()
    runs = []
    for _, run in groupby(enumerate(indices), key=lambda pair: pair[1] - pair[0]):
        ends = [index for _, index in run]
        runs.append(str(ends[0]) if len(ends) == 1 else f"{ends[0]} to {ends[-1]}")
    more = " ..." if len(runs) > MOST_NAMED else ""
    return ", ".join(runs[:MOST_NAMED]) + more if runs else "none"
