"""describe_mask(): a mask in words and as a picture, with a warning where it looks wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from ..errors import argument_error, check_rank, check_tensor
from ..functional.masks import causal_mask, document_mask, offsets, window_mask
from . import Picture, mask_picture, mask_pictures

__all__ = ["MaskReport", "describe_mask"]

SEEN, UNSEEN = "■", "·"
MOST_CELLS, MOST_NAMED, MOST_PARTS, MOST_WIDTH = 16, 6, 6, 88


@dataclass(frozen=True)
class Pattern:
    """What a mask is: a short name, and a sentence that says who attends to whom."""

    kind: str
    sentence: str


@dataclass(frozen=True, eq=False)
class MaskReport:
    """A mask in words. Printed, it gives the sentence, a small picture and the warnings."""

    shape: tuple[int, ...]
    patterns: tuple[Pattern, ...]  # one, or one for each sample or head that differs
    names: tuple[str, ...]  # whose they are: "sample 0: ", or "" where all are alike
    parts: tuple[Tensor, ...]  # L S each
    warnings: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def kind(self) -> str:
        """The kind of the mask, or "mixed" if samples or heads have several."""
        kinds = {pattern.kind for pattern in self.patterns}
        for special, general in (("everything", "padding"), ("causal", "prefix")):
            if general in kinds:  # a sample without padding, or without a prefix
                kinds.discard(special)
        return kinds.pop() if len(kinds) == 1 else "mixed"

    def picture(self) -> Picture:
        """The mask as a figure: one panel, or one for each sample or head that differs."""
        labels = {"rows": self.rows, "columns": self.columns}
        if len(self.parts) == 1:
            return mask_picture(self.parts[0], **labels)
        shown = self.parts[:MOST_PARTS]
        titles = [name.removesuffix(": ") for name in self.names[: len(shown)]]
        return mask_pictures(list(shown), titles=titles, **labels)

    def __repr__(self) -> str:
        lines = [f"mask {self.shape}, {self.kind}"]
        for name, pattern in zip(self.names[:MOST_PARTS], self.patterns, strict=False):
            lines.append(f"  {name}{pattern.sentence}")
        if len(self.names) > MOST_PARTS:
            lines.append(f"  ... and {len(self.names) - MOST_PARTS} more that differ")
        if len(self.names) > 1:
            lines.append(f"  {self.names[0].removesuffix(': ')}, drawn:")
        lines += _drawing(self.parts[0], self.rows, self.columns)
        lines += [f"  warning: {warning}" for warning in self.warnings]
        return "\n".join(lines)


def describe_mask(
    mask: Bool[Tensor, "..."],
    *,
    rows: Iterable | None = None,
    columns: Iterable | None = None,
) -> MaskReport:
    """Say in words who may attend to whom, and warn where the mask looks wrong.

    Recognizes masks that allow everything or nothing, causal masks (bottom-right; top-left, which
    is a mistake when the lengths differ), padding, windows, prefixes and documents, and causal
    versions of these; of others it gives the counts. It warns of empty rows and of a mask that
    looks inverted or transposed. `rows` and `columns` are names for queries and keys.

    Shapes: (L, S), (B, L, S) or (B, H, L, S), where an axis of size 1 stands for all.
    Raises: TypeError for a mask that is not boolean, with the way to convert it; ValueError for
        another rank, or names that do not fit.

    >>> describe_mask(torch.ones(2, 3, dtype=torch.bool).tril()).warnings[0]
    'aligned top-left although 2 queries meet 3 keys: the last query sees 2 of them'
    """
    _check_keep_mask(mask)
    rows, columns = _labels("rows", rows), _labels("columns", columns)
    mask = mask.cpu()
    if mask.shape[-2] == 1 and rows:
        mask = mask.expand(*mask.shape[:-2], len(rows), mask.shape[-1])
    rows = rows or _numbers(mask.shape[-2])
    columns = columns or _numbers(mask.shape[-1])
    for name, labels, size in (("rows", rows, -2), ("columns", columns, -1)):
        if len(labels) != mask.shape[size]:
            raise argument_error(ValueError, name, f"{len(labels)} labels", f"{mask.shape[size]}")
    names, parts = _parts(mask)
    return MaskReport(
        shape=tuple(mask.shape),
        patterns=tuple(map(recognize, parts)),
        names=names,
        parts=parts,
        warnings=_all_warnings(names, parts, rows),
        rows=rows,
        columns=columns,
    )


def _check_keep_mask(mask: object) -> None:
    check_tensor("mask", mask)
    if mask.dtype != torch.bool:
        boolean = "torch.bool (True = may attend)"
        if mask.is_floating_point() and bool((mask == float("-inf")).any()):
            how = "this looks like a penalty to add: `mask == 0` keeps what it does not punish"
        else:
            how = 'if 1 means "may attend" convert it with `mask != 0`, if 1 means "hide" with '
            how += "`mask == 0`: which of the two is it?"
        raise argument_error(TypeError, "mask", f"{mask.dtype}; {how}", boolean)
    check_rank("mask", mask, 2, 3, 4)


def _labels(name: str, labels: Iterable | None) -> tuple[str, ...]:
    if labels is None:
        return ()
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        raise argument_error(TypeError, name, type(labels).__name__, "a list of names")
    return tuple(map(str, labels))


def _numbers(size: int) -> tuple[str, ...]:
    return tuple(map(str, range(size)))


def _parts(mask: Tensor) -> tuple[tuple[str, ...], tuple[Tensor, ...]]:
    """The different L x S masks inside, each with the name of those that have it."""
    axes = ["sample", "head"][: mask.ndim - 2]
    differing = []
    for axis, name in enumerate(axes):
        if bool((mask != mask.narrow(axis, 0, min(1, mask.shape[axis]))).any()):
            differing.append(name)
    if mask.numel() == 0:
        return ("",), (torch.ones(mask.shape[-2:], dtype=torch.bool),)
    names, parts = [], []
    for place in np.ndindex(
        *(n if a in differing else 1 for a, n in zip(axes, mask.shape[:-2], strict=True))
    ):
        who = [f"{a} {i}" for a, i in zip(axes, place, strict=True) if a in differing]
        alike = f"every {' and '.join(axes)} alike: " if axes else ""
        names.append(", ".join(who) + ": " if who else alike)
        parts.append(mask[place])
    return tuple(names), tuple(parts)


# --- Recognizing ----------------------------------------------------------------------------------


def recognize(mask: Bool[Tensor, "L S"]) -> Pattern:
    """The first pattern that fits a mask exactly; counts if none does."""
    for attempt in RECOGNIZERS:
        pattern = attempt(mask)
        if pattern is not None:
            return pattern
    seen = mask.sum(-1)
    counts = f"{int(mask.sum())} of {mask.numel()} pairs are allowed; a query sees "
    return Pattern("irregular", counts + f"{_span(int(seen.min()), int(seen.max()))} keys.")


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


def _whole(mask: Tensor) -> Pattern | None:
    length, keys = mask.shape
    if 0 in mask.shape:
        return Pattern("empty", f"There are {length} queries and {keys} keys.")
    if mask.all():
        return Pattern("everything", "Every query sees every key.")
    return None if mask.any() else Pattern("nothing", "No query sees any key.")


def _causal(mask: Tensor) -> Pattern | None:
    length, keys = mask.shape
    if length == 1 or not torch.equal(mask, causal_mask(length, keys)):
        return None
    shift = f"i {'+-'[keys < length]} {abs(keys - length)}"
    moved = "" if length == keys else f", aligned bottom-right: query i sees keys 0 to {shift}"
    return Pattern("causal", f"A query sees its own place and the past{moved}.")


def _top_left(mask: Tensor) -> Pattern | None:
    if mask.shape[0] == 1 or not torch.equal(mask, torch.ones_like(mask).tril()):
        return None
    return Pattern("causal, top-left", "Query i sees keys 0 to i, counted from the first key.")


def _strict(mask: Tensor) -> Pattern | None:
    if mask.shape[0] == 1:
        return None
    if torch.equal(mask, offsets(*mask.shape) > 0):
        return Pattern("causal without the diagonal", "A query sees the past, not its own place.")
    if torch.equal(mask, offsets(*mask.shape) < 0):
        return Pattern("the future", "A query sees only what comes after it.")
    return None


def _window(mask: Tensor) -> Pattern | None:
    if not mask.diagonal(mask.shape[1] - mask.shape[0]).any() or mask.shape[0] == 1:
        return None
    width = int(offsets(*mask.shape)[mask].abs().max()) + 1
    band = window_mask(*mask.shape, window=width)
    if torch.equal(mask, band & causal_mask(*mask.shape)):
        last = "no key but its own" if width == 1 else f"the last {width} keys, its own included"
        return Pattern("causal window", f"A query sees {last}.")
    if torch.equal(mask, band):
        return Pattern("window", f"A query sees keys fewer than {width} steps away, on both sides.")
    return None


def _padding(mask: Tensor) -> Pattern | None:
    if not torch.equal(mask, mask[:1].expand_as(mask)):
        return None
    sentence = f"Every query sees {int(mask[0].sum())} of {mask.shape[1]} keys: {_ranges(mask[0])}."
    if not mask[0, 0] and mask[0].int().diff().ge(0).all():
        return Pattern("the last keys", sentence)
    return Pattern("padding", sentence)


def _transposed(mask: Tensor) -> Pattern | None:
    if not torch.equal(mask, mask[:, :1].expand_as(mask)):
        return None
    return Pattern("whole rows", f"Queries {_ranges(mask[:, 0])} see every key, the others none.")


def _causal_padding(mask: Tensor) -> Pattern | None:
    kept = mask.any(0)
    if not torch.equal(mask, causal_mask(*mask.shape) & kept):
        return None
    sentence = f"A query sees its own place and the past, and of these keys {_ranges(kept)}."
    return Pattern("causal and padding", sentence)


def _prefix(mask: Tensor) -> Pattern | None:
    length, keys = mask.shape
    prefix = int(mask[0].sum())
    inside = torch.arange(keys) < prefix
    if length != keys or not torch.equal(mask, causal_mask(length) | inside):
        return None
    return Pattern("prefix", f"Every query sees keys 0 to {prefix - 1}, and the past beyond them.")


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
        return Pattern("documents", f"A query sees its own document only: {blocks}.")
    if torch.equal(mask, same & causal_mask(len(same))):
        return Pattern("causal documents", f"A query sees the past of its own document: {blocks}.")
    return None


RECOGNIZERS: tuple[Callable[[Tensor], Pattern | None], ...] = (
    _whole, _causal, _top_left, _strict, _padding, _transposed, _window, _prefix, _documents,
    _causal_padding,
)  # fmt: skip


def _ranges(kept: Tensor) -> str:
    """The places of True as people write them: 0 to 3, 6."""
    places = kept.nonzero().flatten().tolist()
    runs = []
    for _, run in groupby(enumerate(places), key=lambda pair: pair[1] - pair[0]):
        ends = [place for _, place in run]
        runs.append(str(ends[0]) if len(ends) == 1 else f"{ends[0]} to {ends[-1]}")
    more = " ..." if len(runs) > MOST_NAMED else ""
    return ", ".join(runs[:MOST_NAMED]) + more if runs else "none"


# --- Warning --------------------------------------------------------------------------------------

# Masks that people mean. If the opposite of a mask is one of these, it was probably inverted.
MEANT = {
    "causal", "causal window", "window", "documents", "causal documents", "causal and padding",
    "prefix", "causal without the diagonal",
}  # fmt: skip


def _all_warnings(
    names: tuple[str, ...], parts: tuple[Tensor, ...], rows: tuple[str, ...]
) -> tuple[str, ...]:
    found: dict[str, list[str]] = {}
    for name, part in zip(names, parts, strict=True):
        for warning in warnings_of(part, rows):
            found.setdefault(warning, []).append(name)
    if len(parts) == 1:
        return tuple(found)
    names = {name: name.removesuffix(": ") for name in names}
    return tuple(f"{_few([names[n] for n in who])}: {said}" for said, who in found.items())


def _few(names: list[str]) -> str:
    return ", ".join(names[:MOST_NAMED]) + (" ..." if len(names) > MOST_NAMED else "")


def warnings_of(mask: Bool[Tensor, "L S"], rows: tuple[str, ...]) -> list[str]:
    """What looks wrong with one L x S mask."""
    if 0 in mask.shape:
        return []
    kind, (length, keys) = recognize(mask).kind, mask.shape
    found = []
    if kind == "causal, top-left":
        found.append(
            f"aligned top-left although {length} queries meet {keys} keys: "
            f"the last query sees {min(length, keys)} of them"
        )
    if _looks_inverted(mask, kind):
        opposite = recognize(~mask).kind
        found.append(f"looks inverted: its opposite is {opposite}; True must mean may attend")
    elif kind == "the last keys":
        found.append(
            "only the last keys are seen: right for left padding or a window, else inverted"
        )
    elif kind == "whole rows":
        found.append("looks like a transposed padding mask: it cuts queries, not keys")
    elif (
        kind != "causal, top-left"
        and length > 1
        and not mask.diagonal(keys - length).any()
        and mask.any()
    ):
        found.append("no query may attend to its own place: the diagonal is hidden throughout")
    empty = (~mask.any(-1)).nonzero().flatten().tolist()
    if empty:
        which = _few([rows[i] for i in empty])
        found.append(f"empty rows, queries that may attend to nothing ({len(empty)}): {which}")
    return found


def _looks_inverted(mask: Tensor, kind: str) -> bool:
    return kind in ("irregular", "the future") and recognize(~mask).kind in MEANT


# --- Drawing --------------------------------------------------------------------------------------


def _drawing(mask: Tensor, rows: tuple[str, ...], columns: tuple[str, ...]) -> list[str]:
    """The mask in letters, at most 16 x 16 of it."""
    if 0 in mask.shape:
        return []
    part, rows, columns = mask[:MOST_CELLS, :MOST_CELLS], rows[:MOST_CELLS], columns[:MOST_CELLS]
    side = max(map(len, rows))
    if side + sum(len(c) + 1 for c in columns) > MOST_WIDTH:
        columns = _numbers(len(columns))
    lines = [f"    {'':{side}} {' '.join(columns)}"]
    for name, row in zip(rows, part.tolist(), strict=True):
        marks = (
            f"{SEEN if seen else UNSEEN:>{len(c)}}" for seen, c in zip(row, columns, strict=True)
        )
        lines.append(f"    {name:>{side}} {' '.join(marks)}")
    if part.numel() < mask.numel():
        lines.append(f"    (the first {part.shape[0]} x {part.shape[1]} of {tuple(mask.shape)})")
    return lines
