"""The Specs of byte-level byte-pair encoding: what is learned, the tokens of a text, and the way back."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from ... import reference
from ..compare import Problem
from ..mistakes import mistakes_in
from ..spec import UNTOUCHED, Case, Check, Run, Spec
from ..texts import SAME, as_strings, read_pairs, read_strings, read_text
from . import mutants

TEXTS = [
    "thug hug aaa", "  two  spaces\n\tand a tab ", "Straße, naïve café", "中国 the 👩‍👩‍👧", "it's they'll 24x7",
]  # fmt: skip
MERGES = [("u", "g"), ("h", "ug"), ("h", "u"), ("a", "a"), ("t", "h"), ("th", "u"), ("Ġ", "t"),
          ("t", "w"), ("Ġt", "w"), ("Ã", "¯"), ("n", "a"), ("na", "Ã¯"), ("ä", "¸"),
          ("r", "a"), ("Ã", "Ł"), ("ra", "ÃŁ"), ("Ġ", "Ġ"), ("s", "p")]  # fmt: skip


def _words(rng: np.random.Generator, count: int) -> list[str]:
    """Short words of few letters, so that pairs tie and overlap."""
    return ["".join(rng.choice([*"aabenr"], size=rng.integers(1, 7))) for _ in range(count)]


def _byte_words(texts: list[str]) -> list[str]:
    """The words of texts, a character for each byte."""
    return ["".join(map(reference.byte_character, word.encode()))
            for text in texts for word in reference.gpt2_words(text)]  # fmt: skip


# --- Training -------------------------------------------------------------------------------------


def _corpora(rng: np.random.Generator) -> list[Case]:
    def case(label: str, texts: list[str], merges: int) -> Case:
        return Case(label, {"texts": texts, "size": 256 + merges})

    words = " ".join(_words(rng, 12))
    return [
        case("one word", ["low"], 1),
        case("words and how often", ["low low low lower", "newest newest widest"], 5),
        case("one word often", ["bb " + "ab " * 4, "xy xyz xw xv xu"], 2),
        case("a tie", ["cd cd ab ab"], 2),
        case("two words that often meet", ["of the, of the, of the of the"], 6),
        case("letters that repeat", ["aaaa aaab baaa"], 5),
        case("nothing left to merge", ["ab"], 40),
        case("no merges", ["ab ab"], 0),
        case("random words", [words, words[::-1]], 8),
        case("all kinds", TEXTS, 6),
    ]


def _as_many(run: Run, case: Case) -> Problem | None:
    wanted, got = len(run.expected(case)[0]), len(run.value(case))
    return None if got == wanted else Problem(f"{wanted} merges", f"{got}")


def _within(run: Run, case: Case) -> Problem | None:
    words = set(_byte_words(case.arguments["texts"]))
    for merge in run.value(case):
        if not any(merge.replace(" ", "") in word for word in words):
            return Problem("a merge within one of the words", merge)
    return None


def _most_frequent(run: Run, case: Case) -> Problem | None:
    counts = Counter(
        pair for word in _byte_words(case.arguments["texts"]) for pair in pairwise(word)
    )
    first = tuple(run.value(case)[0].split(" "))
    most = max(counts.values())
    if counts[first] == most:
        return None
    return Problem(f"first a pair that occurs {most} times", f"{first}, {counts[first]} times")


MERGES_SPEC = Spec(
    name="byte_bpe_merges",
    statement="learn_merges(texts, size) -> pairs of strings: the merges of a vocabulary of `size` tokens, "
    "256 bytes and one for each merge; within GPT-2's words; of equally frequent pairs the one with the "
    "lowest token IDs; fewer if nothing is left",
    required=("texts", "size"),
    reference=lambda **given: read_pairs(reference.byte_bpe_merges(**given), given),
    read=read_pairs,
    cases=_corpora,
    usual=(UNTOUCHED,),
    checks=(
        Check(
            "a merge is part of a word",
            "No token reaches from one word into the next: pairs are counted within words.",
            _within,
        ),
        Check(
            "as many tokens as asked for",
            "256 bytes and the merges are the vocabulary.",
            _as_many,
        ),
        Check(
            "the most frequent pair first",
            "Each occurrence of a word counts.",
            _most_frequent,
            when=lambda case: case.arguments["size"] > 256,
        ),
    ),
    last=(SAME,),
    mutants=mistakes_in(mutants, of="byte_bpe_merges"),
    chapter=13,
)


# --- Tokens ---------------------------------------------------------------------------------------


def _texts(rng: np.random.Generator) -> list[Case]:
    words = " ".join(_words(rng, 8))
    learned = reference.byte_bpe_merges([words], 262)
    named = {
        "a word of bytes": ("cab", []),
        "thug": ("thug", MERGES),
        "letters that repeat": ("aaa aaaa", MERGES),
        "Hello,": ("Hello,", [("l", "l"), ("H", "e"), ("e", "ll"), ("He", "ll"), ("Hell", "o")]),
        "many spaces": (TEXTS[1], MERGES),
        "accents": (TEXTS[2], MERGES),
        "Chinese and emoji": (TEXTS[3], MERGES),
        "contractions and numbers": (TEXTS[4], MERGES),
        "no text": ("", MERGES),
        "random words": (words, learned),
    }
    return [Case(label, {"text": t, "merges": m}) for label, (t, m) in named.items()]


def _spelled(run: Run, case: Case) -> Problem | None:
    wanted = "".join(map(reference.byte_character, case.arguments["text"].encode()))
    got = "".join(run.value(case))
    return None if got == wanted else Problem(f"tokens that make {wanted}", f"{got}")


def _in_words(run: Run, case: Case) -> Problem | None:
    ends = {*accumulate(map(len, _byte_words([case.arguments["text"]])))}
    missing = ends - {*accumulate(map(len, run.value(case)))}
    return (
        Problem("a token that ends where each word does", "one that goes on") if missing else None
    )


def _no_merge_left(run: Run, case: Case) -> Problem | None:
    ends = {*accumulate(map(len, _byte_words([case.arguments["text"]])))}
    tokens = [*run.value(case)]
    for end, pair in zip(accumulate(map(len, tokens)), pairwise(tokens), strict=False):
        if end not in ends and pair in case.arguments["merges"]:
            return Problem(f"{pair} merged", "two tokens")
    return None


TOKENS_SPEC = Spec(
    name="byte_bpe_tokens",
    statement="tokenize(text, merges) -> the tokens, strings with a character for each byte: within each of "
    "GPT-2's words the neighbors whose merge was learned first are merged, and again",
    required=("text", "merges"),
    reference=lambda **given: as_strings(reference.byte_bpe_tokens(**given)),
    read=read_strings,
    cases=_texts,
    usual=(UNTOUCHED,),
    checks=(
        Check(
            "the tokens are the text",
            "Nothing is added and nothing lost: together the tokens are the bytes of the text.",
            _spelled,
        ),
        Check(
            "a token is part of a word",
            "No token reaches from one word into the next; of several spaces the last begins a word.",
            _in_words,
        ),
        Check(
            "no merge is left",
            "As long as two neighbors in a word have a merge, one is to be done.",
            _no_merge_left,
        ),
    ),
    last=(SAME,),
    mutants=mistakes_in(mutants, of="byte_bpe_tokens"),
    chapter=13,
)


# --- Text -----------------------------------------------------------------------------------------


def _ids(rng: np.random.Generator) -> list[Case]:
    vocabulary = sorted(map(reference.byte_character, range(256)))
    vocabulary += [left + right for left, right in MERGES]

    def case(label: str, text: str) -> Case:
        tokens = reference.byte_bpe_tokens(text, MERGES)
        return Case(label, {"ids": list(map(vocabulary.index, tokens)), "merges": MERGES})

    found: list[Any] = [case(text[:9], text) for text in ["thug", "", *TEXTS]]
    cut = case("a character cut short", "a 中").arguments["ids"][:-1]
    any_ids = rng.integers(0, len(vocabulary), size=9).tolist()
    found += [Case("a character cut short", {"ids": cut, "merges": MERGES})]
    return [*found, Case("random tokens", {"ids": any_ids, "merges": MERGES})]


TEXT_SPEC = Spec(
    name="byte_bpe_text",
    statement="decode(ids, merges) -> the text of token IDs, of which 0 to 255 are the bytes in GPT-2's order "
    "and those from 256 on the merges; bytes that are no UTF-8 become U+FFFD",
    required=("ids", "merges"),
    reference=lambda **given: as_strings([reference.byte_bpe_text(**given)]),
    read=read_text,
    cases=_ids,
    usual=(UNTOUCHED,),
    last=(SAME,),
    mutants=mistakes_in(mutants, of="byte_bpe_text"),
    chapter=13,
)
