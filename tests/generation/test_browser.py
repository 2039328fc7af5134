"""A text browser: what it finds, what it refuses, and quotes that stand on their page."""

import pytest

from tested_transformer.generation.browser import Browser, Page, Quote, words_of

PAGES = [
    Page("A", ("attention: a weighted sum", "atlas: maps", "axis: a direction", "array: numbers")),
    Page("B", ("bias: a constant that is added to attention",)),
    Page("C", ("cache: keys and values",)),
]


def opened(**options):
    browser = Browser(PAGES, **options)
    browser.search("attention")
    browser.open(0)
    return browser


def test_rare_words_decide_and_pages_that_tie_keep_their_order():
    browser = Browser(PAGES)
    browser.search("Attention!")
    assert browser.results == [0, 1]
    browser.search("attention constant")
    assert browser.results == [1, 0]
    browser.search("zebra")
    assert browser.results == []


def test_reading_and_quoting():
    browser = opened(window=2)
    assert browser.visible == PAGES[0].lines[:2]
    browser.quote("weighted sum\natlas")
    browser.scroll()
    assert (browser.visible, browser.at_end) == (PAGES[0].lines[2:], True)
    browser.quote("array: numbers")
    assert browser.answer() == [Quote("A", "weighted sum\natlas"), Quote("A", "array: numbers")]
    assert browser.finished


@pytest.mark.parametrize("text", ["a weighted Sum", "array: numbers", "keys and values", "", " \n"])
def test_a_quote_must_stand_in_the_visible_lines(text):
    browser = opened(window=2)
    with pytest.raises(ValueError, match="text: expected a text of the visible lines"):
        browser.quote(text)
    assert (browser.quotes, browser.actions_left) == ([], 10)


def test_after_the_last_action_everything_is_refused():
    browser = opened(max_actions=2)
    assert browser.finished
    for act in (
        browser.answer,
        browser.scroll,
        lambda: browser.search("x"),
        lambda: browser.open(0),
    ):
        with pytest.raises(RuntimeError, match="finished"):
            act()
    with pytest.raises(RuntimeError, match="finished"):
        browser.quote("atlas")


@pytest.mark.plain_types
def test_bad_input_is_refused():
    browser = Browser(PAGES)
    with pytest.raises(ValueError, match="result: expected the number of one of 0 results, got 0"):
        browser.open(0)
    with pytest.raises(ValueError, match="windows: expected an open page first"):
        browser.scroll()
    with pytest.raises(ValueError, match="text: expected an open page first"):
        browser.quote("atlas")
    with pytest.raises(TypeError, match="query: expected"):
        browser.search(None)
    with pytest.raises(ValueError, match="max_actions: expected at least 1"):
        Browser(PAGES, max_actions=0)
    with pytest.raises(TypeError, match="title: expected"):
        Page(3, ("a",))


def test_words():
    assert words_of("Top-k, 10 %") == ["top", "k", "10"]
