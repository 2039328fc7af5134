"""The slow truth of subword tokenizers: lists, one character and one pair after the other."""

from __future__ import annotations

import unicodedata
from itertools import pairwise

CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
IDEOGRAPHS = [(0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
              (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)]  # fmt: skip


# --- Byte-level BPE -------------------------------------------------------------------------------


def byte_character(byte):
    """GPT-2's character for a byte: printable ones of Latin-1 are their own, the others count from 256.

    >>> byte_character(ord("a")), byte_character(0), byte_character(ord(" "))
    ('a', 'Ā', 'Ġ')
    """
    own = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    return chr(byte) if byte in own else chr(256 + sum(b not in own for b in range(byte)))


def kind(character):
    """What GPT-2's words are made of: letters, numbers, spaces, and the rest."""
    category = unicodedata.category(character)
    if category[0] == "Z" or character in "\t\n\v\f\r\x85":
        return "space"
    return {"L": "letter", "N": "number"}.get(category[0], "other")


def gpt2_words(text):
    """The words of a text: a contraction; letters, numbers or others, with a space before; spaces.

    Of several spaces the last is left for the word that follows. Source: Radford et al. 2019.

    >>> gpt2_words("it's  24!?")
    ['it', "'s", ' ', ' 24', '!?']
    """
    words, i = [], 0
    while i < len(text):
        end = next((i + len(c) for c in CONTRACTIONS if text.startswith(c, i)), None)
        if end is None:
            first = i + (text[i] == " " and i + 1 < len(text) and kind(text[i + 1]) != "space")
            end = first
            while end < len(text) and kind(text[end]) == kind(text[first]):
                end += 1
            if kind(text[first]) == "space" and end < len(text) and end > i + 1:
                end -= 1
        words.append(text[i:end])
        i = end
    return words


def merge_in(tokens, pair):
    """Merge a pair wherever it occurs in a list, from the left, in place."""
    i = 0
    while i < len(tokens) - 1:
        if (tokens[i], tokens[i + 1]) == pair:
            tokens[i : i + 2] = [pair[0] + pair[1].removeprefix("##")]
        i += 1


def merges_of(words, vocabulary, size):
    """The most frequent pair is merged, and again; of several the one with the lowest IDs.

    words: lists of tokens, which are merged in place; vocabulary: a list, which grows.
    Source: Sennrich et al. 2016, algorithm 1.
    """
    merges = []
    while len(vocabulary) < size:
        pairs = [pair for word in words for pair in pairwise(word)]
        if not pairs:
            break
        most = max(pairs.count(pair) for pair in set(pairs))
        often = [pair for pair in set(pairs) if pairs.count(pair) == most]
        best = min(often, key=lambda pair: [vocabulary.index(token) for token in pair])
        for word in words:
            merge_in(word, best)
        merges.append(best)
        vocabulary.append(best[0] + best[1].removeprefix("##"))
    return merges


def byte_bpe_merges(texts, size):
    """The merges that byte-level BPE learns from texts for a vocabulary of `size` tokens.

    >>> byte_bpe_merges(["low low lower"], 258)
    [('l', 'o'), ('lo', 'w')]
    """
    words = [[byte_character(b) for b in word.encode()] for t in texts for word in gpt2_words(t)]
    return merges_of(words, sorted(map(byte_character, range(256))), size)


def byte_bpe_tokens(text, merges):
    """The tokens of a text: all merges of a word, one after the other, as they were learned."""
    tokens = []
    for word in gpt2_words(text):
        parts = [byte_character(byte) for byte in word.encode()]
        for pair in merges:
            merge_in(parts, pair)
        tokens += parts
    return tokens


def byte_bpe_text(ids, merges):
    """The text of token IDs; what is no UTF-8 becomes U+FFFD."""
    characters = sorted(map(byte_character, range(256)))
    vocabulary = characters + [left + right for left, right in merges]
    byte_of = {byte_character(byte): byte for byte in range(256)}
    data = bytes([byte_of[character] for i in ids for character in vocabulary[i]])
    return data.decode("utf-8", errors="replace")


# --- WordPiece ------------------------------------------------------------------------------------


def is_ideograph(character):
    """Whether BERT sets the character apart as Chinese."""
    return any(first <= ord(character) <= last for first, last in IDEOGRAPHS)


def is_punctuation(character):
    """What Unicode says, and all of ASCII that is no letter, number, space or control character."""
    printable = "!" <= character <= "~" and not character.isalnum()
    return printable or unicodedata.category(character)[0] == "P"


def bert_words(text, lowercase=True):
    """The words of BERT's basic tokenizer.

    Source: Devlin et al. 2018, the authors' tokenization.py.

    >>> bert_words("Él's 中国")
    ['el', "'", 's', '中', '国']
    """
    kept = ""
    for c in text:
        control = unicodedata.category(c) in ("Cc", "Cf", "Co") and c not in "\t\n\r"
        kept += "" if control or c == "\ufffd" else f" {c} " if is_ideograph(c) else c
    if lowercase:
        parts = unicodedata.normalize("NFD", kept)
        kept = "".join(c.lower() for c in parts if unicodedata.category(c) != "Mn")
    return "".join(f" {c} " if is_punctuation(c) else c for c in kept).split()


def word_pieces(word, vocabulary):
    """The tokens of one word: [UNK], or from the left always the longest of the vocabulary.

    Source: Wu et al. 2016, section 4.1.
    """
    if len(word) > 100:
        return ["[UNK]"]
    pieces, start = [], 0
    while start < len(word):
        known = [end for end in range(start + 1, len(word) + 1)
                 if ("##" if start else "") + word[start:end] in vocabulary]  # fmt: skip
        if not known:
            return ["[UNK]"]
        pieces.append(("##" if start else "") + word[start : max(known)])
        start = max(known)
    return pieces


def word_piece_vocabulary(texts, size, lowercase=True):
    """Special tokens, characters, characters with ##, and what byte-pair encoding makes of them."""
    words = [word for text in texts for word in bert_words(text, lowercase)]
    pieces = [[c if i == 0 else f"##{c}" for i, c in enumerate(word)] for word in words]
    vocabulary = SPECIAL + sorted({c for word in words for c in word})
    vocabulary += sorted({piece for word in pieces for piece in word[1:]})
    merges_of(pieces, vocabulary, size)
    return vocabulary
