"""Texts of every kind for the tests of tokenizers, and the characters on which two Unicode versions differ."""

from __future__ import annotations

from hypothesis import strategies as st

CHARACTERS = [chr(c) for c in (*range(0xD800), *range(0xE000, 0x110000))]
SNIPPETS = [
    "The lowest, newest tower isn't THEIR'S; they'll we've I'D he'd. ", "naïve café Ångström ǅ İ ΑΣ ",
    "vierundzwanzig = twenty-four, 24 ½ ² ٣ Ⅷ 1,000.5 ", "def f(x_1):\n\treturn {**x, 'a': [0]}  # ok\r\n",
    "if (a!=b&&c<=d) {\n    x->y += 0x1F; // ünïcode\n}\n\n\n", "中国的人工智能，以及“引号”。 東京タワー 한국어 ",
    "👩‍👩‍👧‍👦🇩🇪👍🏽❤️ 😀😀", "  two   three\u00a0nbsp\u3000wide\u2003em\u2028line\u2029paragraph\x85nel\x0b\x0c \t ",
    "\x00\x01\x1b[0m\x7f\x9f\u200b\u200d\u2060\ufeff\ufffd\ue000 ", "e\u0301 a\u0300\u0316 \u0300 ﬁ ß ẞ ꙮ ", "नमस्ते مرحبا שלום ไทย ",
    "[UNK] [MASK] ## ##a #b <|endoftext|> Ġthe Ċ ", "aaaa abab aaab baaa ", "x" * 99 + "y", "x" * 100 + "y", " ", "\n",
]  # fmt: skip


def texts_without(characters: set[str]) -> st.SearchStrategy[str]:
    """Snippets and characters of any kind, but for those."""
    any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
    pieces = st.sampled_from(SNIPPETS) | any_text | st.text("ab '\n中é", max_size=8)
    joined = st.lists(pieces, max_size=5).map("".join)
    return joined.map(lambda text: "".join(c for c in text if c not in characters))
