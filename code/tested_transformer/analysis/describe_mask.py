"""describe_mask(): a mask in words, with a warning where it looks wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Shaped
from torch import Tensor

from ..errors import argument_error
from ..shapes import checked
from .mask_patterns import INTENDED, MOST_NAMED, Pattern, recognize

__all__ = ["MaskReport", "describe_mask"]

VISIBLE, MASKED = "■", "·"
MOST_CELLS, MOST_PARTS, MOST_WIDTH = 16, 6, 88


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


@checked
def describe_mask(
    mask: AnyMask,
    *,
    rows: Iterable[Any] | None = None,
    columns: Iterable[Any] | None = None,
) -> MaskReport:
    """Say in words which query may attend to which keys, and warn where the mask looks wrong.

    Recognizes masks that allow everything or nothing, causal masks (bottom-right; top-left, which
    is a mistake when the lengths differ), padding, windows, prefixes and documents, and causal
    versions of these; of others it gives the counts. It warns of fully masked rows and of a mask
    that looks inverted or transposed. `rows` and `columns` are names for queries and keys.

    Shapes: (L, S), (B, L, S) or (B, H, L, S), where an axis of size 1 stands for all.
    Raises: TypeError for a mask that is not boolean, with the way to convert it; ValueError for
        another rank, or names that do not fit.

    >>> describe_mask(torch.ones(2, 3, dtype=torch.bool).tril()).warnings[0]
    'aligned top-left although 2 queries meet 3 keys: the last query attends to 2 of them'
    """
    _check_keep_mask(mask)
    rows, columns = _labels(rows), _labels(columns)
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


def _check_keep_mask(mask: Tensor) -> None:
    if mask.dtype != torch.bool:
        boolean = "torch.bool (True = may attend)"
        if mask.is_floating_point() and bool((mask == float("-inf")).any()):
            how = "this looks like a penalty to add: `mask == 0` keeps what it does not penalize"
        else:
            how = 'if 1 means "may attend" convert it with `mask != 0`, if 1 means "masked" with '
            how += "`mask == 0`: which of the two is it?"
        raise argument_error(TypeError, "mask", f"{mask.dtype}; {how}", boolean)


def _labels(labels: Iterable | None) -> tuple[str, ...]:
    return () if labels is None else tuple(map(str, labels))


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
    for index in np.ndindex(
        *(n if a in differing else 1 for a, n in zip(axes, mask.shape[:-2], strict=True))
    ):
        who = [f"{a} {i}" for a, i in zip(axes, index, strict=True) if a in differing]
        alike = f"every {' and '.join(axes)} alike: " if axes else ""
        names.append(", ".join(who) + ": " if who else alike)
        parts.append(mask[index])
    return tuple(names), tuple(parts)


# --- Warning --------------------------------------------------------------------------------------


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
            f"the last query attends to {min(length, keys)} of them"
        )
    if _looks_inverted(mask, kind):
        opposite = recognize(~mask).kind
        found.append(f"looks inverted: its opposite is {opposite}; True must mean may attend")
    elif kind == "the last keys":
        found.append(
            "only the last keys are visible: right for left padding or a window, else inverted"
        )
    elif kind == "whole rows":
        found.append("looks like a transposed padding mask: it masks queries, not keys")
    elif (
        kind != "causal, top-left"
        and length > 1
        and not mask.diagonal(keys - length).any()
        and mask.any()
    ):
        found.append("no query may attend to its own position: the diagonal is masked throughout")
    masked = (~mask.any(-1)).nonzero().flatten().tolist()
    if masked:
        which = _few([rows[i] for i in masked])
        found.append(
            f"fully masked rows, queries that may attend to nothing ({len(masked)}): {which}"
        )
    return found


def _looks_inverted(mask: Tensor, kind: str) -> bool:
    return kind in ("irregular", "the future") and recognize(~mask).kind in INTENDED


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
            f"{VISIBLE if visible else MASKED:>{len(c)}}"
            for visible, c in zip(row, columns, strict=True)
        )
        lines.append(f"    {name:>{side}} {' '.join(marks)}")
    if part.numel() < mask.numel():
        lines.append(f"    (the first {part.shape[0]} x {part.shape[1]} of {tuple(mask.shape)})")
    return lines
