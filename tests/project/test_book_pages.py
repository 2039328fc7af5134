"""What the book does to its pages when it is built: mathematics is set, and style that no page uses goes."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "book" / "_ext"), str(ROOT / "tools")]
from chapters import chapter_paths, heading  # noqa: E402

light_pages = pytest.importorskip("light_pages")
mathematics = pytest.importorskip("mathematics")

# ------------------------------------------------------------------------------------ mathematics


@pytest.mark.parametrize(
    ("latex", "pieces"),
    [
        (r"\frac{a}{b}", ["<mfrac><mi>a</mi><mi>b</mi></mfrac>"]),
        (r"x_{ij}^2", ["<msubsup>"]),
        (r"\mathbb{R}^{L \times D}", ["ℝ", "×"]),
        (r"\mathbf{1}", ["𝟏"]),
        (r"\text{if } x > 0", ["<mtext>", "&gt;"]),
        (r"\begin{cases} 0 & a \\ 1 & b \end{cases}", ["{", "<mtable"]),
        (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", ["<mtable", "<mn>4</mn>"]),
        (r"\color{red} x", ["<mi", "color"]),
        (r"\operatorname{softmax}(a)", ["softmax"]),
    ],
)
def test_what_the_chapters_write_is_set(latex, pieces):
    for display in (False, True):
        mathml = mathematics.to_mathml(latex, display)
        shown, _, source = mathml.partition("<annotation")
        assert all(piece in shown for piece in pieces), mathml
        assert "\\" not in shown
        assert ("display=" in mathml) == display
        assert source


def test_rows_are_aligned_and_may_stand_apart():
    mathml = mathematics.to_mathml(r"a &= b \\ c &= d \\[4pt] e &= f", display=True)
    assert mathml.count("<mtr") == 3
    assert (
        mathml.index("<mi>d</mi>")
        < mathml.index('<mtr class="apart">')
        < mathml.index("<mi>e</mi>")
    )
    assert "4" not in mathml.partition("<annotation")[0].replace("0.1667em", "")


@pytest.mark.parametrize(
    ("latex", "words"),
    [
        (r"\nosuchcommand", "nosuchcommand"),
        (r"\frac{1}", "argument"),
        (r"x_1_2", "subscript"),
        (r"\sqrt{2", "}"),
        (" ", "empty"),
        (r"\begin{align} a &= b \end{align}", "numbered"),
    ],
)
def test_what_can_not_be_set_is_refused(latex, words):
    with pytest.raises(ValueError, match=words):
        mathematics.to_mathml(latex, display=True)


# ------------------------------------------------------------------------------------------ styles


def test_no_title_has_a_formula():
    """Titles stand in every page's list of pages, where large letters would cut a formula off."""
    titles = [heading(path) for path in chapter_paths()]
    assert len(titles) > 100
    assert [title for title in titles if "$" in title] == []


def test_rules_that_match_nothing_go_and_others_stay():
    css = """
    /* a comment */
    .used, .unused { color: red }
    .unused { color: blue }
    .used .inside:not(.unused) > a { color: green }
    #place { color: black }
    [data-theme="dark"] .used { color: white }
    @media (max-width: 500px) { .used { margin: 0 } .unused { margin: 1px } }
    @media print { .unused { margin: 2px } }
    .icon::before { content: "},{" }
    @font-face { font-family: "Font Awesome 6 Free"; src: url(a.woff2) }
    @font-face { font-family: Other; src: url(b.woff2) }
    .fa-bars::before { content: "x" }
    """
    words = {"used", "inside", "place", "icon", "fa-bars"}
    kept = light_pages._purge(css, words, theme=True)
    for piece in ("red", "green", "black", "white", "margin: 0", '"},{"', "b.woff2"):
        assert piece in kept
    for piece in (
        "comment",
        ".unused {",
        ", .unused",
        "blue",
        "print",
        "1px",
        "Awesome",
        "fa-bars",
    ):
        assert piece not in kept
    assert "fa-bars" in light_pages._purge(css, words, theme=False)


def test_pictures_wait_in_a_place_of_their_size(tmp_path):
    (tmp_path / "a.svg").write_text('<svg width="72pt" height="36pt"></svg>', encoding="utf-8")
    page = '<img alt="one" src="a.svg" /><img alt="two" src="a.svg" />'
    first, second = light_pages._pictures(page, tmp_path / "page.html", {}).split("/><")
    assert 'width="96" height="48"' in first
    assert "lazy" not in first
    assert 'loading="lazy"' in second


def test_an_icon_that_nobody_drew_stops_the_build():
    page = {Path("page.html"): '<i class="fa-solid fa-bars fa-lg"></i>'}
    light_pages._check_icons(page, ".fa-bars { --icon: url() }")
    with pytest.raises(light_pages.ExtensionError, match="fa-bars"):
        light_pages._check_icons(page, "")
