"""Exercises of chapter 22, on its pages about a browser and the best of n."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from ..generation.browser import Page
from ..specs.browsing.spec import BRADLEY_TERRY, BROWSE, build


def build_written(candidate: Any, arguments: dict[str, Any]) -> Callable[..., Tensor | None]:
    """As BROWSE does, but a class whose `open` opens nothing is not written yet."""
    browser = candidate([Page("", ("key",))])
    try:
        browser.search("key")
        browser.open(0)
        written = browser.page is not None
    except Exception as error:  # what else it raises is judged
        written = not isinstance(error, AttributeError)
    return build(candidate, arguments) if written else lambda *_, **__: None


EXERCISES = (
    replace(BRADLEY_TERRY, name="ch22.bradley_terry_loss", points=2),
    replace(BROWSE, name="ch22.browser", points=2, build=build_written),
)
