"""The Specs of WordPiece: BERT's words, the tokens of a word, and the vocabulary that is learned."""

from __future__ import annotations

import unicodedata
from collections import Counter
from itertools import pairwise

import numpy as np

from ... import reference
from ..compare import Problem
from ..mistakes import mistakes_in
from ..spec import UNTOUCHED, Case, Check, Run, Spec
from ..texts import SAME, as_strings, read_strings
from . import mutants

TEXTS = [
    "The lowest towers", "Él est naïve, Ångström!", "a–b “quoted” ¿que?", "$5 < 6 = a+b ~ `x`", "中国的 AI",
    "zero\u200bwidth\x00 and\ttab\x0b\n\u3000wide", "ΑΣ Σ İstanbul ß ẞ", "isn't it?!",
]  # fmt: skip


def _word(rng: np.random.Generator, longest: int) -> str:
    return "".join(rng.choice([*"abrs"], size=rng.integers(1, longest + 1)))


# --- BERT's words ---------------------------------------------------------------------------------


def _texts(rng: np.random.Generator) -> list[Case]:
    cases = [Case("a word", {"text": "low"}), Case("no text", {"text": ""})]
    for text in [*TEXTS, " ".join(rng.choice(TEXTS, size=3))]:
        cases += [
            Case(text[:9], {"text": text}),
            Case(text[:9], {"text": text, "lowercase": False}),
        ]
    return cases


def _letters_stay(run: Run, case: Case) -> Problem | None:
    """Of letters with accents the letter counts."""
    words = (run.expected(case)[0], run.value(case))
    wanted, got = (unicodedata.normalize("NFD", "".join(each)).lower() for each in words)
    missing = [c for c in wanted if c.isascii() and got.count(c) < wanted.count(c)]
    return Problem(f"{missing[0]!r} in {wanted}", got) if missing else None


def _alone(test):
    def check(run: Run, case: Case) -> Problem | None:
        for word in run.value(case):
            if len(word) > 1 and any(map(test, word)):
                return Problem("words of their own", repr(word))
        return None

    return check


def _no_accents(run: Run, case: Case) -> Problem | None:
    got = "".join(run.value(case))
    expected = "".join(run.expected(case)[0])
    strange = [c for c in got if c not in expected and not c.isascii() and c.isalpha()]
    return Problem("letters without accents, in lower case", repr(strange[0])) if strange else None


WORDS = Spec(
    name="bert_words",
    statement="bert_words(text, lowercase=True) -> the words of BERT's basic tokenizer: without control "
    "characters, split at spaces, each ideograph and each punctuation mark by itself; in lower case also "
    "without accents",
    required=("text",),
    reference=lambda **given: as_strings(reference.bert_words(**given)),
    read=read_strings,
    cases=_texts,
    usual=(UNTOUCHED,),
    checks=(
        Check(
            "no word is lost",
            "Every letter, number and symbol of the text is in some word.",
            _letters_stay,
        ),
        Check(
            "an ideograph stands by itself",
            "Chinese has no spaces: each of its characters is a word.",
            _alone(reference.is_ideograph),
        ),
        Check(
            "punctuation stands by itself",
            "Each mark is a word: those of Unicode, and all of ASCII that is no letter and no number.",
            _alone(reference.is_punctuation),
        ),
        Check(
            "lower case has no accents",
            "Uncased vocabularies hold letters without accents.",
            _no_accents,
            when=lambda case: case.arguments.get("lowercase", True),
        ),
    ),
    last=(SAME,),
    mutants=mistakes_in(mutants, of="bert_words"),
    chapter=12,
)


# --- Tokens of a word -----------------------------------------------------------------------------


def _vocabularies(rng: np.random.Generator) -> list[Case]:
    drawn = {_word(rng, 3) for _ in range(6)} | {"##" + _word(rng, 3) for _ in range(8)}
    cases = {
        "unable": ["u", "un", "##able", "##ab", "##le", "##a"],
        "gpt": ["g", "gp", "##pt", "##t"],
        "vegan": ["v", "vega", "##egan", "##n"],
        "unwantedX": ["un", "##want", "##ed"],
        "xun": ["un", "##un"],
        "low": ["low", "##low", "lo", "##w"],
        "a" * 100: ["a", "##a", "##aa"],
        "a" * 101: ["a", "##a", "##aa"],
        _word(rng, 9): ["a", "b", "##a", "##b", "##r", "##s", "r", "s", *drawn],
        _word(rng, 9) + "b": [*drawn],
    }
    return [Case(word[:12], {"word": word, "vocabulary": {"[UNK]", *known}})
            for word, known in cases.items()]  # fmt: skip


def _whole(run: Run, case: Case) -> Problem | None:
    tokens = [*run.value(case)]
    joined = "".join(
        token if i == 0 else token.removeprefix("##") for i, token in enumerate(tokens)
    )
    if tokens == ["[UNK]"] or joined == case.arguments["word"]:
        return None
    return Problem("[UNK] alone or all of the word", " ".join(tokens))


def _longest(run: Run, case: Case) -> Problem | None:
    tokens, start = [*run.value(case)], 0
    word, vocabulary = case.arguments["word"], case.arguments["vocabulary"]
    for token in tokens if tokens != ["[UNK]"] else []:
        prefix = "##" if start else ""
        known = [word[start:end] for end in range(start + 1, len(word) + 1)
                 if prefix + word[start:end] in vocabulary]  # fmt: skip
        if known and prefix + known[-1] != token:
            return Problem(prefix + known[-1], token)
        start += len(token) - len(prefix)
    return None


PIECES = Spec(
    name="word_pieces",
    statement="word_pieces(word, vocabulary) -> the tokens of a word, from the left always the longest in the "
    'vocabulary, ## before all but the first; ["[UNK]"] if they do not reach the end of the word, or it has '
    "more than 100 characters",
    required=("word", "vocabulary"),
    reference=lambda **given: as_strings(reference.word_pieces(**given)),
    read=read_strings,
    cases=_vocabularies,
    usual=(UNTOUCHED,),
    checks=(
        Check(
            "the whole word or [UNK]",
            "A word is known as a whole or not at all.",
            _whole,
        ),
        Check(
            "always the longest",
            "From the left, no longer token of the vocabulary fits.",
            _longest,
        ),
    ),
    last=(SAME,),
    mutants=mistakes_in(mutants, of="word_pieces"),
    chapter=12,
)


# --- Vocabulary -----------------------------------------------------------------------------------


def _corpora(rng: np.random.Generator) -> list[Case]:
    def case(label: str, texts: list[str], merges: int, **options) -> Case:
        least = len(reference.word_piece_vocabulary(texts, 0, **options))
        return Case(label, {"texts": texts, "size": least + merges, **options})

    words = " ".join(_word(rng, 5) for _ in range(12))
    return [
        case("one word", ["low"], 1),
        case("words and how often", ["low low low lower", "newest newest widest"], 5),
        case("letters that only meet", ["ab ab ab ac ac xy"], 2),
        case("a tie", ["cd cd ab ab"], 2),
        case("nothing left to merge", ["ab"], 40),
        case("no merges", ["ab ab"], 0),
        case("cased", ["Low lOw LOW low"], 3, lowercase=False),
        case("random words", [words, words[::-1]], 8),
        case("all kinds", TEXTS, 4),
    ]


def _in_front(run: Run, case: Case) -> Problem | None:
    within = [token for token in run.value(case) if "##" in token[1:]]
    return Problem("## in front of a token, or nowhere", within[0]) if within else None


def _most_frequent(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    options = {n: a[n] for n in a if n == "lowercase"}
    words = [w for text in a["texts"] for w in reference.bert_words(text, **options)]
    start = len(reference.word_piece_vocabulary(a["texts"], 0, **options))
    counts = Counter(pair for w in words for pair in pairwise([w[0], *("##" + c for c in w[1:])]))
    got = run.value(case)[start]
    made = {left + right[2:]: count for (left, right), count in counts.items()}
    if made.get(got) == max(made.values()):
        return None
    return Problem(f"first a pair that occurs {max(made.values())} times", got)


VOCABULARY = Spec(
    name="word_piece_vocabulary",
    statement="learn(texts, size, lowercase=True) -> the vocabulary, a list: [PAD], [UNK], [CLS], [SEP], [MASK], "
    "the characters of BERT's words in order, those that go on with a word with ## before them, and what "
    "byte-pair encoding makes of them, of equally frequent pairs the one with the lowest IDs",
    required=("texts", "size"),
    reference=lambda **given: as_strings(reference.word_piece_vocabulary(**given)),
    read=read_strings,
    cases=_corpora,
    usual=(UNTOUCHED,),
    checks=(
        Check(
            "## only in front",
            "Two tokens that are merged make one, with at most one ##.",
            _in_front,
        ),
        Check(
            "the most frequent pair first",
            "The pair that occurs most is merged, however frequent its tokens are.",
            _most_frequent,
            when=lambda case: case.label not in ("no merges", "one word"),
        ),
    ),
    last=(SAME,),
    mutants=mistakes_in(mutants, of="word_piece_vocabulary"),
    chapter=12,
)
