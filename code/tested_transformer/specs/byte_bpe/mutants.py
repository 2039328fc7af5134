"""The famous mistakes in byte-pair encoding."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

import regex

from ...data.byte_bpe import CHARACTERS, ByteBPE, split_words
from ...data.merges import count_pairs, learn_merges, merge_pair
from ..mistakes import mistake

# --- Training -------------------------------------------------------------------------------------


def counted(words):
    """Words and how often they occur."""
    return {tuple(word): count for word, count in Counter(words).items()}


@mistake(
    "merges across words",
    rejected_by="a merge is part of a word",
    symptom='Tokens such as "Ġof Ġthe" are learned that encoding, which splits words first, never makes.',
    cause="Pairs are counted in the whole text, not within its words.",
    seen="rasbt/LLMs-from-scratch pull request 975",
    of="byte_bpe_merges",
)
def across_words(texts, size):
    whole = ["".join(CHARACTERS[byte] for byte in text.encode()) for text in texts]
    return learn_merges(counted(whole), CHARACTERS.values(), size)


@mistake(
    "each word counted once",
    rejected_by="the most frequent pair first",
    symptom='Rare words weigh as much as "the".',
    cause="Pairs are counted over the set of words, without how often each occurs.",
    of="byte_bpe_merges",
)
def each_word_once(texts, size):
    words = {tuple(word): 1 for text in texts for word in split_words(text)}
    return learn_merges(words, CHARACTERS.values(), size)


@mistake(
    "ties by order of appearance",
    rejected_by="equals the reference",
    symptom="The same sentences in another order give another vocabulary.",
    cause="max takes the first of equal counts, and a dictionary keeps the order in which pairs came.",
    seen="karpathy/minbpe pull request 90",
    of="byte_bpe_merges",
)
def ties_by_appearance(texts, size):
    words, merges = counted(word for text in texts for word in split_words(text)), []
    while len(merges) < size - 256 and (counts := count_pairs(words)):
        best = max(counts, key=counts.get)
        words = {merge_pair(word, best, "".join(best)): n for word, n in words.items()}
        merges.append(best)
    return merges


@mistake(
    "a size that counts merges",
    rejected_by="as many tokens as asked for",
    symptom="The vocabulary is 256 tokens larger than the embedding matrix.",
    cause="The 256 bytes are tokens too: size - 256 merges are to be learned.",
    of="byte_bpe_merges",
)
def without_the_bytes(texts, size):
    return ByteBPE.train(texts, 256 + size).merges


# --- Tokens ---------------------------------------------------------------------------------------


def merged(text, merges, merge):
    """The tokens of each word, by another way to merge."""
    return [token for word in split_words(text) for token in merge(list(word), merges)]


def from_the_left(tokens, merges):
    """Whatever has a merge is merged as it comes, round after round."""
    found = True
    while found:
        found, i, result = False, 0, []
        while i < len(tokens):
            take = 2 if tuple(tokens[i : i + 2]) in merges else 1
            found |= take == 2
            result.append("".join(tokens[i : i + take]))
            i += take
        tokens = result
    return tokens


@mistake(
    "merged from left to right",
    rejected_by="equals the reference",
    symptom='With GPT-2\'s merges "Hello," becomes [1544, 18798, 11], not [15496, 11]: half of all words '
    "are split in another way than the model has learned.",
    cause="Any pair that has a merge is merged as it comes; the merge that was learned first must be.",
    seen="rasbt/LLMs-from-scratch issue 558, ztxz16/fastllm pull request 715, "
    "huggingface/course issue 608 (by hand, in prose)",
    of="byte_bpe_tokens",
)
def merges_from_the_left(text, merges):
    return merged(text, merges, from_the_left)


def at_once(tokens, merges):
    """Every place of a pair is found, then every second token dropped."""
    for pair in merges:
        starts = {i for i, each in enumerate(pairwise(tokens)) if each == pair}
        tokens = ["".join(pair) if i in starts else token
                  for i, token in enumerate(tokens) if i - 1 not in starts]  # fmt: skip
    return tokens


@mistake(
    "overlapping pairs",
    rejected_by="the tokens are the text",
    symptom="aaa becomes the one token aa: a letter is lost.",
    cause="All occurrences are found at once; of two that overlap only the first is one.",
    seen="karpathy/minbpe pull request 38",
    of="byte_bpe_tokens",
)
def merges_overlapping(text, merges):
    return merged(text, merges, at_once)


@mistake(
    "a space before the first word",
    rejected_by="the tokens are the text",
    symptom="Decoded text begins with a space that nobody wrote, and the first token is another.",
    cause="add_prefix_space, the library's default, which GPT-2 was trained without.",
    seen="huggingface/tokenizers issue 608",
    of="byte_bpe_tokens",
)
def with_prefix_space(text, merges):
    return ByteBPE(merges).tokenize(text if text.startswith(" ") else " " + text)


@mistake(
    "spaces collapse",
    rejected_by="the tokens are the text",
    symptom="Code loses its indentation, and what is decoded is not what was written.",
    cause="The text is split at whitespace, whose length is forgotten; its tokens begin with it.",
    seen="rasbt/LLMs-from-scratch pull request 945",
    of="byte_bpe_tokens",
)
def spaces_collapse(text, merges):
    kept = " " * text.startswith(" ") + " ".join(text.split())
    return ByteBPE(merges).tokenize(kept)


@mistake(
    "the last space stays with the others",
    rejected_by="a token is part of a word",
    symptom="After two spaces or more a word has no space before it, and is split as if it began a text.",
    cause=r"The pattern lacks \s+(?!\S), which leaves the last space for the word.",
    of="byte_bpe_tokens",
)
def without_lookahead(text, merges):
    words = regex.findall(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+", text)
    tokens = []
    for word in words:
        bpe = ByteBPE(merges)
        tokens += bpe._merge([CHARACTERS[byte] for byte in word.encode()])
    return tokens


@mistake(
    "letters of ASCII",
    rejected_by="no merge is left",
    symptom="Every accent splits a word: German and Chinese cost more tokens than they must.",
    cause="Python's re has no class for the letters of all scripts, and [a-zA-Z] took its place.",
    of="byte_bpe_tokens",
)
def ascii_letters(text, merges):
    pattern = r"'s|'t|'re|'ve|'m|'ll|'d| ?[a-zA-Z]+| ?[0-9]+| ?[^\sa-zA-Z0-9]+|\s+(?!\S)|\s+"
    bpe, tokens = ByteBPE(merges), []
    for word in re.findall(pattern, text):
        tokens += bpe._merge([CHARACTERS[byte] for byte in word.encode()])
    return tokens


# --- Text -----------------------------------------------------------------------------------------


@mistake(
    "decoded token by token",
    rejected_by="equals the reference",
    symptom="Chinese characters and emoji become several U+FFFD.",
    cause="A token may end within a character: bytes are put together first, then decoded.",
    seen="huanglizhuo/QwenASR pull request 12",
    of="byte_bpe_text",
)
def token_by_token(ids, merges):
    bpe = ByteBPE(merges)
    return "".join(bpe.decode([i]) for i in ids)


@mistake(
    "only UTF-8 is decoded",
    rejected_by="UnicodeDecodeError",
    symptom="Once in thousands of samples the model stops within a character, and the program with it.",
    cause='Generated bytes need not be UTF-8: decode(errors="replace").',
    seen="guillaume-be/rust-bert issue 27",
    of="byte_bpe_text",
)
def decoded_strictly(ids, merges):
    bpe = ByteBPE(merges)
    byte_of = {character: byte for byte, character in CHARACTERS.items()}
    return bytes(byte_of[c] for i in ids for c in bpe.vocabulary[i]).decode()


@mistake(
    "only the space translated back",
    rejected_by="equals the reference",
    symptom="Newlines read Ċ, an é reads Ã©.",
    cause="Ġ is replaced by a space, and all other bytes keep the characters that stand for them.",
    of="byte_bpe_text",
)
def only_the_space(ids, merges):
    vocabulary = ByteBPE(merges).vocabulary
    return "".join(vocabulary[i] for i in ids).replace("Ġ", " ")
