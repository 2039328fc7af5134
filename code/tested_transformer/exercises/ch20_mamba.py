"""The exercise of chapter 20 on its page about Mamba: the short convolution, without padding."""

from __future__ import annotations

from ..specs.state_spaces.spec import SHORT_CONVOLUTION

PADDING = ("padding does nothing", "padding is skipped")
EXERCISES = (
    SHORT_CONVOLUTION.narrowed(
        lambda case: "real" not in case.arguments,
        name="ch20.short_convolution",
        mutants=tuple(m for m in SHORT_CONVOLUTION.mutants if m.rejected_by not in PADDING),
        points=2,
    ),
)
