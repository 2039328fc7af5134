"""The famous mistakes in WordPiece."""

from __future__ import annotations

import string
import unicodedata
from collections import Counter

import regex

from ...data.merges import count_pairs, learn_merges, merge_pair
from ...data.word_piece import CONTROL, IDEOGRAPH, SPECIAL, join, normalize_text, split_punctuation
from ..mistakes import mistake

# --- BERT's words ---------------------------------------------------------------------------------


@mistake(
    "accents stay in lower case",
    rejected_by="lower case has no accents",
    symptom="An uncased vocabulary has no é: words with accents become [UNK].",
    cause="strip_accents is None in the file, which means: as lowercase.",
    seen="huggingface/swift-transformers pull request 157",
    of="bert_words",
)
def accents_stay(text, lowercase=True):
    text = normalize_text(text, lowercase=False)
    return split_punctuation(text.lower() if lowercase else text)


@mistake(
    "letters with accents dropped",
    rejected_by="no word is lost",
    symptom="Kantō becomes kant, lǜshi becomes lshi.",
    cause="What is no ASCII is dropped: the letter is to be decomposed, and only its accent dropped.",
    seen="ggml-org/llama.cpp issue 5496",
    of="bert_words",
)
def letters_dropped(text, lowercase=True):
    text = normalize_text(text, lowercase=False)
    if lowercase:
        text = "".join(c for c in text if not unicodedata.decomposition(c)).lower()
    return split_punctuation(text)


@mistake(
    "punctuation of ASCII",
    rejected_by="punctuation stands by itself",
    symptom="A word before a long dash or a curly quote becomes [UNK].",
    cause="string.punctuation is ASCII; Unicode has hundreds of marks more.",
    seen="huggingface/tokenizers issue 115",
    of="bert_words",
)
def ascii_punctuation(text, lowercase=True):
    marks = regex.escape(string.punctuation)
    pattern = rf"[{marks}]|[^\s{marks}]+"
    return regex.findall(pattern, normalize_text(text, lowercase=lowercase))


@mistake(
    "symbols dropped",
    rejected_by="no word is lost",
    symptom="$5 < 6 and 5 6 have the same tokens.",
    cause="Symbols are neither words nor, for Unicode, punctuation: a pattern for both misses them.",
    seen="dotnet/machinelearning issue 7725",
    of="bert_words",
)
def symbols_dropped(text, lowercase=True):
    return regex.findall(r"\p{P}|[^\s\p{P}\p{S}]+", normalize_text(text, lowercase=lowercase))


@mistake(
    "ideographs in one word",
    rejected_by="an ideograph stands by itself",
    symptom="A Chinese sentence, which has no spaces, is one word, and that is [UNK].",
    cause="BERT sets spaces around every ideograph before it splits.",
    seen="deepjavalibrary/djl issue 2832",
    of="bert_words",
)
def ideographs_together(text, lowercase=True):
    return split_punctuation(regex.sub(rf" (?={IDEOGRAPH} )|(?<={IDEOGRAPH}) ", "",
                                 normalize_text(text, lowercase=lowercase)))  # fmt: skip


@mistake(
    "control characters stay",
    rejected_by="equals the reference",
    symptom="A zero-width space, which nobody sees, makes a word unknown.",
    cause="Control and format characters are dropped before anything else.",
    of="bert_words",
)
def controls_stay(text, lowercase=True):
    marked = regex.sub(CONTROL, "\u0d00", text)  # a letter that no case has
    return [
        w.replace("\u0d00", "\u200b")
        for w in split_punctuation(normalize_text(marked, lowercase=lowercase))
    ]


# --- Tokens of a word -----------------------------------------------------------------------------


def pieces_of(word, vocabulary, ends):
    """The tokens that come first by an order of ends; None stands for a rest without any."""
    pieces, start = [], 0
    while start < len(word):
        prefix = "##" if start else ""
        known = [end for end in ends(start) if prefix + word[start:end] in vocabulary]
        if not known:
            return [*pieces, None]
        pieces.append(prefix + word[start : known[0]])
        start = known[0]
    return pieces


@mistake(
    "[UNK] for a part",
    rejected_by="the whole word or [UNK]",
    symptom='"unwantedX" becomes un ##want ##ed [UNK], which BERT has never read.',
    cause="A word of which a part is unknown is unknown, and [UNK] its only token.",
    seen="google-research/bert issue 763, explosion/curated-transformers pull request 209",
    of="word_pieces",
)
def unknown_part(word, vocabulary):
    if len(word) > 100:
        return ["[UNK]"]
    pieces = pieces_of(word, vocabulary, lambda start: range(len(word), start, -1))
    return [piece or "[UNK]" for piece in pieces]


@mistake(
    "the shortest match",
    rejected_by="always the longest",
    symptom="gpt becomes g ##pt, not gp ##t.",
    cause="The search goes from short to long and stops at the first token.",
    seen="iamlemec/bert.cpp issue 6",
    of="word_pieces",
)
def shortest_match(word, vocabulary):
    pieces = pieces_of(word, vocabulary, lambda start: range(start + 1, len(word) + 1))
    return ["[UNK]"] if None in pieces or len(word) > 100 else pieces


@mistake(
    "the longest from the right",
    rejected_by="always the longest",
    symptom="vegan becomes v ##egan, not vega ##n.",
    cause="The longest token that ends the word is taken first; WordPiece begins on the left.",
    seen="axa-group/nlp.js issue 1192",
    of="word_pieces",
)
def from_the_right(word, vocabulary):
    pieces, end = [], len(word)
    while end and len(word) <= 100:
        starts = [s for s in range(end) if ("##" if s else "") + word[s:end] in vocabulary]
        if not starts:
            return ["[UNK]"]
        pieces.insert(0, ("##" if starts[0] else "") + word[starts[0] : end])
        end = starts[0]
    return pieces or ["[UNK]"] * bool(word)


@mistake(
    "words of any length",
    rejected_by="equals the reference",
    symptom="A long address is hundreds of tokens, where BERT has one [UNK].",
    cause="A word of more than 100 characters is unknown, whatever the vocabulary holds.",
    seen="huggingface/transformers.js pull request 398",
    of="word_pieces",
)
def any_length(word, vocabulary):
    pieces = pieces_of(word, vocabulary, lambda start: range(len(word), start, -1))
    return ["[UNK]"] if None in pieces else pieces


# --- Vocabulary -----------------------------------------------------------------------------------


def marked_words(texts, lowercase):
    """The characters of each word, ## before all but the first, and how often it occurs."""
    words = Counter(
        w for text in texts for w in split_punctuation(normalize_text(text, lowercase=lowercase))
    )
    return {(w[0], *("##" + c for c in w[1:])): count for w, count in words.items()}


def known_at_first(words):
    """The special tokens and the characters."""
    plain = sorted({token.removeprefix("##") if i else token
                    for word in words for i, token in enumerate(word)})  # fmt: skip
    return [*SPECIAL, *plain, *sorted({token for word in words for token in word[1:]})]


def merged(words, known, size, best_of):
    """Known tokens and those that merges make, by another choice of the best pair."""
    vocabulary = list(known)
    while len(vocabulary) < size and (counts := count_pairs(words)):
        best = best_of(counts, words, vocabulary)
        words = {merge_pair(word, best, join(*best)): n for word, n in words.items()}
        vocabulary.append(join(*best))
    return vocabulary


@mistake(
    "ties by chance",
    rejected_by="equals the reference",
    symptom="The same texts give another vocabulary in every run, and other tokens.",
    cause="IDs of ##-characters follow the order of a hash table, and ties follow the IDs. Here: the order "
    "in which pairs came.",
    seen="huggingface/tokenizers issue 1794",
    of="word_piece_vocabulary",
)
def ties_by_chance(texts, size, lowercase=True):
    words = marked_words(texts, lowercase)
    return merged(
        words, known_at_first(words), size, lambda counts, *_: max(counts, key=counts.get)
    )


@mistake(
    "pairs by likelihood",
    rejected_by="the most frequent pair first",
    symptom="Rare letters that only occur together are merged before the endings of words.",
    cause="WordPiece is said to divide a pair's count by those of its tokens; the library's training, for "
    "which this is often taken, is byte-pair encoding.",
    seen="huggingface/tokenizers issues 570 and 1777",
    of="word_piece_vocabulary",
)
def by_likelihood(texts, size, lowercase=True):
    def best_of(counts, words, vocabulary):
        single = Counter()
        for word, count in words.items():
            for token in word:
                single[token] += count
        score = {pair: counts[pair] / (single[pair[0]] * single[pair[1]]) for pair in counts}
        return min(counts, key=lambda p: (-score[p], *map(vocabulary.index, p)))

    words = marked_words(texts, lowercase)
    return merged(words, known_at_first(words), size, best_of)


@mistake(
    "## within a token",
    rejected_by="## only in front",
    symptom="Learned tokens such as l##o match no word.",
    cause="The strings are joined as they are; the second token's ## has to go.",
    of="word_piece_vocabulary",
)
def prefix_within(texts, size, lowercase=True):
    words = marked_words(texts, lowercase)
    known = known_at_first(words)
    return known + ["".join(pair) for pair in learn_merges(words, known, size)]
