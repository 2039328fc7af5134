"""The colors of the book can be told apart: contrasts as the Web Content Accessibility Guidelines ask for them."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from tested_transformer.plotting.style import contrast

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "book" / "_ext"))
accessible = pytest.importorskip("accessible")
STYLE = (ROOT / "book" / "_static" / "custom.css").read_text(encoding="utf-8")
BLOCKS = {"light": r"^html \{(.*?)^\}", "dark": r'^html\[data-theme="dark"\] \{(.*?)^\}'}
COLOR = re.compile(r"--book-([\w-]+): (#[0-9a-f]{6})")
TEXT, SIGN = 4.5, 3.0  # text, and what is told by its shape: WCAG 2.2, 1.4.3 and 1.4.11
GROUNDS = ("paper", "panel", "query-bg", "predict-bg", "pitfall-bg")
themes = pytest.mark.parametrize("theme", BLOCKS)


def palette(theme: str) -> dict[str, str]:
    """The colors of a theme, by name."""
    block = re.search(BLOCKS[theme], STYLE, re.MULTILINE | re.DOTALL)[1]
    return dict(COLOR.findall(block))


@themes
@pytest.mark.parametrize("ground", GROUNDS)
def test_text_can_be_read_on_every_ground(theme, ground):
    colors = palette(theme)
    weak = {}
    for name in ("ink", "soft", "query", "key"):  # text, captions, links, links under the mouse
        weak[name] = contrast(colors[name], colors[ground])
    assert {name: ratio for name, ratio in weak.items() if ratio < TEXT} == {}


@themes
def test_titles_of_boxes_can_be_read(theme):
    colors = palette(theme)
    grounds = {
        "value": ("paper",),
        "predict": ("paper", "predict-bg"),
        "pitfall": ("paper", "pitfall-bg"),
    }
    for name, on in grounds.items():
        for ground in on:
            assert contrast(colors[name], colors[ground]) >= TEXT, (name, ground)


@themes
def test_a_button_can_be_read_and_a_focus_ring_seen(theme):
    colors = palette(theme)
    for name in ("query", "key"):
        assert contrast(colors["paper"], colors[name]) >= TEXT
    for ground in GROUNDS:
        assert contrast(colors["key"], colors[ground]) >= SIGN


@themes
def test_words_of_the_picture_can_be_read_when_shaded(theme):
    colors = palette(theme)
    share = float(re.search(r"--weight, 0\) \* (\d+)%", STYLE)[1]) / 100
    for name in ("key", "query"):
        mix = share * np.array(to_rgb(colors[name])) + (1 - share) * np.array(
            to_rgb(colors["panel"])
        )
        assert contrast(colors["ink"], tuple(mix)) >= TEXT


def test_both_themes_name_the_same_colors():
    light, dark = palette("light"), palette("dark")
    assert set(light) == set(dark)
    assert len(light) >= 13
    used = set(re.findall(r"var\(--book-([\w-]+)", STYLE)) - {"serif", "sans", "measure"}
    assert used <= set(light)


def test_it_is_dark_without_scripts_too():
    """The build makes a sheet of the dark rules for a page on which no script has set the theme."""
    rules = accessible._theme_rules(STYLE, "dark")
    assert rules.startswith("html[data-theme=auto]")
    assert dict(COLOR.findall(rules)) == palette("dark")


def test_colors_have_a_name():
    rules = re.sub(r"/\*.*?\*/", "", STYLE, flags=re.DOTALL)
    for pattern in BLOCKS.values():
        rules = re.sub(pattern, "", rules, count=1, flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"#[0-9a-f]{3,8}\b(?=[^{]*;)|rgba?\(", rules) == []


def test_the_style_is_small():
    assert len(STYLE.encode()) < 24_000
