"""A text browser: search, open, scroll, quote, answer, each of them counted, and no quote that is not there."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..bounds import PositiveInt
from ..errors import argument_error
from ..shapes import check_fields, checked

__all__ = ["Browser", "Page", "Quote", "words_of"]


@checked
def words_of(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation.

    Raises: TypeError that names the argument.

    >>> words_of("KV cache: keys, values.")
    ['kv', 'cache', 'keys', 'values']
    """
    return re.findall(r"[a-z0-9]+", text.lower())


@dataclass(frozen=True)
class Page:
    """A title and lines of text.

    Raises: TypeError that names the field.
    """

    title: str
    lines: tuple[str, ...]

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Quote:
    """A text that stands on the page of that title.

    Raises: TypeError that names the field.
    """

    title: str
    text: str

    def __post_init__(self) -> None:
        check_fields(self)


class Browser:
    """Some pages, of which `window` lines are visible at a time; `max_actions` actions, then it is finished.

    results: numbers of the pages found by the last search. page: the number of the open page, or None.
    first: the number of its first visible line. quotes: what was quoted. An action that is refused
    changes nothing and is not counted.

    Raises: TypeError or ValueError that name the argument; RuntimeError for actions when it is finished.
    Source: Nakano et al. 2021 (WebGPT), in miniature.

    >>> browser = Browser([Page("A", ("attention: a weighted sum",)), Page("B", ("bias: a constant",))])
    >>> browser.search("what is bias")
    >>> browser.open(0)
    >>> browser.quote("a constant")
    >>> browser.quotes
    [Quote(title='B', text='a constant')]
    """

    @checked
    def __init__(
        self,
        pages: Sequence[Page],
        *,
        window: PositiveInt = 3,
        max_actions: PositiveInt = 12,
        num_results: PositiveInt = 4,
    ) -> None:
        self.pages = tuple(pages)
        self.window, self.num_results = window, num_results
        self.actions_left, self.finished = max_actions, False
        self.results: list[int] = []
        self.page: int | None = None
        self.first = 0
        self.quotes: list[Quote] = []
        self._words = [set(words_of("\n".join((p.title, *p.lines)))) for p in self.pages]

    @property
    def visible(self) -> tuple[str, ...]:
        """The lines that can be read and quoted now."""
        if self.page is None:
            return ()
        return self.pages[self.page].lines[self.first : self.first + self.window]

    @property
    def at_end(self) -> bool:
        """Whether the last line of the open page is visible."""
        return self.page is None or self.first >= self._last_first()

    @checked
    def search(self, query: str) -> None:
        """Find the pages with the rarest words of the query; pages that tie keep their order."""
        self._check_unfinished()
        scores = [self._score(set(words_of(query)), words) for words in self._words]
        ranked = sorted(range(len(scores)), key=lambda number: -scores[number])
        self.results = [number for number in ranked if scores[number] > 0][: self.num_results]
        self.page, self.first = None, 0
        self._count()

    @checked
    def open(self, result: int) -> None:
        """Open a result of the last search by its number, from 0; its first lines are visible."""
        self._check_unfinished()
        if not 0 <= result < len(self.results):
            wanted = f"the number of one of {len(self.results)} results"
            raise argument_error(ValueError, "result", result, wanted)
        self.page, self.first = self.results[result], 0
        self._count()

    @checked
    def scroll(self, windows: int = 1) -> None:
        """Move down by that many windows, or up where it is negative, but not beyond the page."""
        self._check_unfinished()
        self._check_open("windows", windows)
        moved = self.first + windows * self.window
        self.first = min(max(moved, 0), self._last_first())
        self._count()

    @checked
    def quote(self, text: str) -> None:
        """Quote a text that stands in the visible lines, letter by letter."""
        self._check_unfinished()
        self._check_open("text", repr(text))
        if not text.strip() or text not in "\n".join(self.visible):
            raise argument_error(ValueError, "text", repr(text), "a text of the visible lines")
        self.quotes.append(Quote(self.pages[self.page].title, text))
        self._count()

    def answer(self) -> list[Quote]:
        """Finish, and return the quotes."""
        self._check_unfinished()
        self._count()
        self.finished = True
        return list(self.quotes)

    def _last_first(self) -> int:
        return max(len(self.pages[self.page].lines) - self.window, 0)

    def _score(self, query: set[str], words: set[str]) -> float:
        """The sum over the common words of log(1 + pages / pages with the word)."""
        total = 0.0
        for word in sorted(query & words):
            total += math.log1p(len(self.pages) / sum(word in other for other in self._words))
        return total

    def _check_unfinished(self) -> None:
        if self.finished:
            raise RuntimeError("the browser is finished: no more actions")

    def _check_open(self, argument: str, came: object) -> None:
        if self.page is None:
            raise argument_error(ValueError, argument, came, "an open page first")

    def _count(self) -> None:
        self.actions_left -= 1
        self.finished = self.actions_left == 0
