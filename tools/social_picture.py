"""Draw the picture that stands beside a link to the book: book/_static/social.png.

The lines are what the shipped model looks at while it translates 24. Chromium turns the drawing into a
PNG, which keeps the drawing's hash: a test says when the picture is older than the drawing.

Usage: python tools/social_picture.py
"""

import hashlib
import io
import sys

from chapters import ROOT
from chromium import FLAGS, MISSING, find_chromium

PICTURE = ROOT / "book" / "_static" / "social.png"
WIDTH, HEIGHT = 1200, 630
PAPER, INK, SOFT, BOX = "#14181e", "#f4f4ef", "#b9c2cc", "#23303f"
GERMAN, ENGLISH, LINE = "#f2a65a", "#7cc4ff", "#7cc4ff"
NUMBER, TOP, BOTTOM = 24, 405, 545  # heights of the two rows of words
FONT = "font-family='DejaVu Sans, Verdana, sans-serif'"


def drawing() -> str:
    """The picture as SVG, with the weights of the trained model."""
    from tested_transformer.experiments.ch10_number_models import load_first_model
    from tested_transformer.plotting.interactive import translate_numbers

    (look,) = translate_numbers(*load_first_model(), [NUMBER])
    read, said = places(len(look.source)), places(len(look.generated))
    lines = [
        line(read[j], said[i], level / 100)
        for i, row in enumerate(look.levels.tolist())
        for j, level in enumerate(row)
        if level
    ]
    words = [word(x, TOP, text, GERMAN) for x, text in zip(read, look.source, strict=True)]
    words += [word(x, BOTTOM, text, ENGLISH) for x, text in zip(said, look.generated, strict=True)]
    return "\n".join([
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' {FONT}>",
        f"<rect width='{WIDTH}' height='{HEIGHT}' fill='{PAPER}'/>",
        text_at(80, 150, 76, INK, "The Tested Transformer", "font-weight='bold'"),
        text_at(80, 218, 33, SOFT, "A book about attention in which everything"),
        text_at(80, 264, 33, SOFT, "on the page is tested"),
        *lines, *words, "</svg>",
    ]) + "\n"  # fmt: skip


def places(count: int) -> list[float]:
    """Spread words over the width of the picture."""
    step = 1040 / count
    return [80 + step * (k + 0.5) for k in range(count)]


def word(x: float, y: float, text: str, color: str) -> str:
    """A word in a box."""
    return (
        f"<rect x='{x - 105:.1f}' y='{y - 38}' width='210' height='76' rx='14' fill='{BOX}' "
        f"stroke='{color}' stroke-width='3'/>"
        f"<text x='{x:.1f}' y='{y + 12}' font-size='36' fill='{color}' text-anchor='middle'>{text}</text>"
    )


def line(above: float, below: float, weight: float) -> str:
    """A line between two words, as thick as the weight."""
    return (
        f"<path d='M{above:.1f} {TOP + 38}L{below:.1f} {BOTTOM - 38}' stroke='{LINE}' "
        f"stroke-width='{1 + 9 * weight:.2f}' opacity='{0.25 + 0.75 * weight:.2f}'/>"
    )


def text_at(x: float, y: float, size: int, color: str, text: str, more: str = "") -> str:
    """A line of text."""
    return f"<text x='{x}' y='{y}' font-size='{size}' fill='{color}' {more}>{text}</text>"


def fingerprint(svg: str) -> str:
    """What the PNG remembers of the drawing that it was made from."""
    return hashlib.sha256(svg.encode()).hexdigest()


def photograph(svg: str) -> bytes:
    """The drawing as PNG, by Chromium.

    Raises: RuntimeError if there is none.
    """
    from playwright.sync_api import sync_playwright

    chromium = find_chromium()
    if chromium is None:
        raise RuntimeError(MISSING)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_content(f"<body style='margin:0'>{svg}</body>")
        picture = page.screenshot()
        browser.close()
    return picture


def main() -> int:
    """Draw, photograph, and store with few colors and the drawing's hash."""
    from PIL import Image, PngImagePlugin

    svg = drawing()
    image = Image.open(io.BytesIO(photograph(svg))).convert("RGB").quantize(64)
    notes = PngImagePlugin.PngInfo()
    notes.add_text("drawing", fingerprint(svg))
    image.save(PICTURE, optimize=True, pnginfo=notes)
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
