"""Cut the font of the mathematics down to what a course on attention writes.

The whole font is 400 kB, and a page would wait for it. Run by hand when a chapter needs a letter that
is missing (the browser tests name it): add it below, then

    pip install brotli
    npm pack @fontsource/stix-two-math@5.3.0        (or any other copy of STIX Two Math 2.12)
    python tools/math_font.py files/stix-two-math-latin-400-normal.woff2

Usage: python tools/math_font.py FONT
"""

import argparse
import string
import sys
from pathlib import Path

from chapters import ROOT

OUT = ROOT / "book" / "_static" / "math" / "stix_two_math.woff2"
LETTERS = string.ascii_letters
GREEK = "ΓΔΘΛΞΠΣΦΨΩ∇αβγδεζηθικλμνξοπρςστυφχψω∂ϵϑϰϕϱϖ"
OPERATORS = "±×÷¬·∀∂∃∅∇∈∉∋∏∑−∓∖∗∘∙√∝∞∠∣∤∥∧∨∩∪∫∴∼≃≅≈≔≜≝≠≡≢≤≥≪≫≺≻⊂⊃⊆⊇⊕⊖⊗⊘⊙⊢⊤⊥⋀⋁⋂⋃⋅⋆⋮⋯⋱"
ARROWS = "←↑→↓↔↦⇐⇒⇔⟵⟶⟷⟸⟹⟺⟼"
FENCES = "‖|⌈⌉⌊⌋⟨⟩⎴⎵⏞⏟"
MARKS = "`´¨¯ˆˇ˘˙˜′″‴…°ℏℓ℘ℜℑℵ†‡§\u00a0\u2061\u2062\u2063\u2064\u200b\u2009\u200a"
ACCENTS = "\u0302\u0303\u0304\u0305\u0306\u0307\u0308\u030c\u20d7"
CHOICE = "\ufe00\ufe01"  # chooses between two forms of the script letters


def alphabet(first: int, letters: str, elsewhere: dict[str, str]) -> str:
    """The letters as one of Unicode's mathematical alphabets, some of which stand in an older place."""
    return "".join(elsewhere.get(letter, chr(first + i)) for i, letter in enumerate(letters))


def characters() -> set[str]:
    """Everything that the font keeps."""
    capitals = string.ascii_uppercase
    latin = capitals + string.ascii_lowercase
    older_script = dict(zip("BEFHILMR", "ℬℰℱℋℐℒℳℛ", strict=True))
    older_double = dict(zip("CHNPQRZ", "ℂℍℕℙℚℝℤ", strict=True))
    return set(
        string.printable.strip()
        + " "
        + GREEK + OPERATORS + ARROWS + FENCES + MARKS + ACCENTS + CHOICE
        + alphabet(0x1D434, latin, {"h": "ℎ"})  # italic, what a variable is set in
        + "".join(map(chr, range(0x1D6E2, 0x1D71C)))  # Greek italic
        + alphabet(0x1D400, latin, {})  # bold
        + alphabet(0x1D7CE, string.digits, {})
        + alphabet(0x1D49C, capitals, older_script)
        + alphabet(0x1D538, capitals, older_double)
        + "𝟙"
    )  # fmt: skip


def narrow_roots(font) -> None:
    """Make the tall root signs as wide as the small one.

    Chromium keeps room for the widest form of a sign, whichever it draws: a blank after each root in the line.
    """
    variants, sizes = font["MATH"].table.MathVariants, font["hmtx"]
    root = font.getBestCmap()[ord("√")]
    forms = variants.VertGlyphConstruction[variants.VertGlyphCoverage.glyphs.index(root)]
    names = {form.VariantGlyph for form in forms.MathGlyphVariantRecord}
    names |= {part.glyph for part in forms.GlyphAssembly.PartRecords}
    width = sizes[root][0]
    for name in names - {root}:
        glyph, factor = font["glyf"][name], width / sizes[name][0]
        glyph.coordinates.scale((factor, 1))
        glyph.coordinates.toInt()
        glyph.recalcBounds(font["glyf"])
        sizes[name] = (width, glyph.xMin)


def main() -> int:
    """Write the small font beside its license."""
    from fontTools import subset

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("font", type=Path)
    options = subset.Options(flavor="woff2", hinting=False, desubroutinize=True)
    options.layout_features = ["ssty", "rtlm"]  # the forms of letters in exponents
    options.name_IDs = [0, 1, 2, 3, 4, 5, 6, 13, 14]
    font = subset.load_font(parser.parse_args().font, options)
    cutter = subset.Subsetter(options)
    cutter.populate(unicodes=map(ord, characters()))
    cutter.subset(font)
    narrow_roots(font)
    missing = sorted(characters() - set(map(chr, font.getBestCmap())) - set(CHOICE))
    if missing:
        print(f"The font has no {' '.join(map(ascii, missing))}.", file=sys.stderr)
        return 1
    subset.save_font(font, OUT, options)
    print(
        f"{OUT.relative_to(ROOT)}: {OUT.stat().st_size:,} bytes, {len(font.getGlyphOrder())} glyphs"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
