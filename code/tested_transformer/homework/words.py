"""Numbers, and lists of names, as people write them."""

from __future__ import annotations

from collections.abc import Sequence


def plain_number(number: float | None) -> int | float | None:
    """Points as people write them: 2, not 2.0; 1.33, not 1.3333."""
    if number is None:
        return None
    return int(number) if number == int(number) else round(number, 2)


def count(number: int, thing: str) -> str:
    """1 submission, 2 submissions."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def some(names: Sequence[str]) -> str:
    """Three names, and how many more there are."""
    more = f" and {len(names) - 3} more" if names[3:] else ""
    return ", ".join(names[:3]) + more
