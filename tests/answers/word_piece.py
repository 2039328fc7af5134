"""WordPiece in other ways: a trie, a regular expression, a table of all ends, the library."""

import re
import string
import unicodedata
from collections import Counter
from functools import cache
from itertools import pairwise

import regex
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from answers import right, wrong
from tested_transformer import reference
from tested_transformer.data.word_piece import (
    WordPiece,
    longest_matches,
    normalize_text,
    split_punctuation,
)

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

# --- BERT's words ---------------------------------------------------------------------------------


@right("bert_words", "the package")
def words_by_package(text, lowercase=True):
    return split_punctuation(normalize_text(text, lowercase=lowercase))


@right("bert_words", "the library")
def words_by_library(text, lowercase=True):
    normal = normalizers.BertNormalizer(lowercase=lowercase).normalize_str(text)
    return [word for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(normal)]


@right("bert_words", "character by character")
def words_by_character(text, lowercase=True):
    """A word grows until a space or something that stands by itself ends it."""
    words, ends = [], True
    if lowercase:
        parts = unicodedata.normalize("NFD", text)
        text = "".join(c.lower() for c in parts if unicodedata.category(c) != "Mn")
    for c in text:
        if c.isspace() and (unicodedata.category(c) != "Cc" or c in "\t\n\r"):
            ends = True
        elif c == "\ufffd" or unicodedata.category(c) in ("Cc", "Cf", "Co"):
            continue
        elif reference.is_ideograph(c) or reference.is_punctuation(c):
            words.append(c)
            ends = True
        elif ends:
            words.append(c)
            ends = False
        else:
            words[-1] += c
    return words


@right("bert_words", "one expression")
def words_by_expression(text, lowercase=True):
    text = regex.sub(r"(?![\t\n\r])[\p{Cc}\p{Cf}\p{Co}\uFFFD]", "", text)
    if lowercase:
        text = regex.sub(r"\p{Mn}", "", unicodedata.normalize("NFD", text))
        text = "".join(map(str.lower, text))
    alone = rf"[{re.escape(string.punctuation)}\p{{P}}{ideographs()}]"
    return regex.findall(rf"{alone}|(?:(?!{alone})\S)+", text)


def ideographs():
    """All of them, as a class of characters has them."""
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in reference.subwords.IDEOGRAPHS)


@wrong("bert_words", "letters and accents put together again")
def composed(text, lowercase=True):
    """In lower case the accents have gone; in upper case they stay as they were written."""
    text = unicodedata.normalize("NFC" if lowercase else "NFD", text)
    return words_by_package(text, lowercase)


@wrong("bert_words", "the lower case of whole words")
def lower_case_of_words(text, lowercase=True):
    """A capital sigma at the end of a word becomes another letter than within it."""
    words = words_by_package(text, lowercase=False)
    if not lowercase:
        return words
    bare = (unicodedata.normalize("NFD", word.lower()) for word in words)
    return ["".join(c for c in word if unicodedata.category(c) != "Mn") for word in bare]


# --- Tokens of a word -----------------------------------------------------------------------------

right("word_pieces", "the package")(longest_matches)


@right("word_pieces", "the library")
def pieces_by_library(word, vocabulary):
    ids = {token: i for i, token in enumerate(sorted(vocabulary))}
    return [token.value for token in models.WordPiece(ids, unk_token="[UNK]").tokenize(word)]


@right("word_pieces", "one expression, the longest first")
def pieces_by_expression(word, vocabulary):
    known = sorted(vocabulary, key=len, reverse=True)
    first = "|".join(re.escape(token) for token in known if not token.startswith("##"))
    later = "|".join(re.escape(token[2:]) for token in known if token.startswith("##"))
    if len(word) > 100:
        return ["[UNK]"]
    found, pieces = re.match(first, word), []
    while found:
        pieces.append("##" * bool(pieces) + found[0])
        if found.end() == len(word):
            return pieces
        found = re.compile(later).match(word, found.end()) if later else None
        found = found if found and found[0] else None
    return ["[UNK]"] if word else []


@right("word_pieces", "a trie")
def pieces_by_trie(word, vocabulary):
    """Two of them: of what begins a word, and of what goes on with it."""
    tries = {"": {}, "##": {}}
    for token in vocabulary:
        prefix = "##" if token.startswith("##") else ""
        node = tries[prefix]
        for character in token.removeprefix(prefix):
            node = node.setdefault(character, {})
        node["end"] = True
    pieces, start = [], 0
    while start < len(word) <= 100:
        prefix = "##" if start else ""
        node, last = tries[prefix], None
        for place in range(start, len(word)):
            node = node.get(word[place])
            if node is None:
                break
            last = place + 1 if "end" in node else last
        if last is None:
            return ["[UNK]"]
        pieces.append(prefix + word[start:last])
        start = last
    return pieces if len(word) <= 100 else ["[UNK]"]


@right("word_pieces", "by recursion")
def pieces_by_recursion(word, vocabulary):
    @cache
    def rest(start):
        if start == len(word):
            return ()
        prefix = "##" if start else ""
        known = [e for e in range(start + 1, len(word) + 1) if prefix + word[start:e] in vocabulary]
        following = rest(known[-1]) if known else None
        return None if following is None else (prefix + word[start : known[-1]], *following)

    pieces = rest(0) if len(word) <= 100 else None
    return ["[UNK]"] if pieces is None else [*pieces]


@wrong("word_pieces", "as few tokens as possible")
def fewest(word, vocabulary):
    """A word that the longest match does not get through, another way may: BERT says [UNK]."""
    best = {0: []}
    for end in range(1, len(word) + 1):
        ways = [[*best[s], "##" * (s > 0) + word[s:end]] for s in range(end)
                if s in best and "##" * (s > 0) + word[s:end] in vocabulary]  # fmt: skip
        if ways:
            best[end] = min(ways, key=len)
    return best.get(len(word), ["[UNK]"]) if len(word) <= 100 else ["[UNK]"]


@wrong("word_pieces", "words of 100 characters are too long")
def one_less(word, vocabulary):
    return ["[UNK]"] if len(word) >= 100 else longest_matches(word, vocabulary)


# --- Vocabulary -----------------------------------------------------------------------------------


def pieces_of(texts, lowercase):
    """Each word as characters, with ## before all but the first."""
    words = [word for text in texts for word in words_by_expression(text, lowercase)]
    return [[word[0], *("##" + c for c in word[1:])] for word in words]


def alphabet(pieces):
    """What a vocabulary begins with."""
    first = {c.removeprefix("##") for word in pieces for c in word}
    return [*SPECIAL, *sorted(first), *sorted({c for word in pieces for c in word[1:]})]


@right("word_piece_vocabulary", "the package")
def learned_by_package(texts, size, lowercase=True):
    return WordPiece.train(texts, size, lowercase=lowercase).vocabulary


@right("word_piece_vocabulary", "the library's byte-pair encoding")
def learned_by_library(texts, size, lowercase=True):
    """Given special tokens and characters in order, which by itself it has in another one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=alphabet(pieces_of(texts, lowercase)),
        continuing_subword_prefix="##", show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    vocabulary = tokenizer.get_vocab()
    return sorted(vocabulary, key=vocabulary.get)


@right("word_piece_vocabulary", "regular expressions over words with spaces")
def learned_by_expressions(texts, size, lowercase=True):
    pieces = pieces_of(texts, lowercase)
    vocabulary, words = alphabet(pieces), Counter(map(" ".join, pieces))
    while len(vocabulary) < size:
        counts = Counter()
        for word, count in words.items():
            counts.update({p: count * n for p, n in Counter(pairwise(word.split(" "))).items()})
        if not counts:
            break
        place = {token: i for i, token in enumerate(vocabulary)}
        left, right_ = max(counts, key=lambda p: (counts[p], -place[p[0]], -place[p[1]]))
        new = left + right_[2:]
        found = re.compile(rf"(?<!\S){re.escape(left)} {re.escape(right_)}(?!\S)")
        words = Counter({found.sub(lambda _, new=new: new, w): c for w, c in words.items()})
        vocabulary.append(new)
    return vocabulary


@right("word_piece_vocabulary", "numbers and spans")
def learned_by_spans(texts, size, lowercase=True):
    """A token is where it begins and ends in its word; pairs are counted by their IDs."""
    pieces = pieces_of(texts, lowercase)
    vocabulary = alphabet(pieces)
    ids = {token: i for i, token in enumerate(vocabulary)}
    words = [[ids[token] for token in word] for word in pieces]
    while len(vocabulary) < size:
        counts = Counter(pair for word in words for pair in pairwise(word))
        if not counts:
            break
        most = max(counts.values())
        best = min(pair for pair, count in counts.items() if count == most)
        for word in words:
            place = 0
            while place < len(word) - 1:
                if (word[place], word[place + 1]) == best:
                    word[place : place + 2] = [len(vocabulary)]
                place += 1
        vocabulary.append(vocabulary[best[0]] + vocabulary[best[1]].removeprefix("##"))
    return vocabulary


@wrong("word_piece_vocabulary", "characters in the order of the text")
def order_of_text(texts, size, lowercase=True):
    learned = learned_by_package(texts, size, lowercase)
    pieces = pieces_of(texts, lowercase)
    start = len(alphabet(pieces))
    seen = dict.fromkeys(c.removeprefix("##") for word in pieces for c in word)
    later = dict.fromkeys(c for word in pieces for c in word[1:])
    return [*SPECIAL, *seen, *later, *learned[start:]]


@wrong("word_piece_vocabulary", "no character with ## that only begins words is missing")
def every_character_twice(texts, size, lowercase=True):
    learned = learned_by_package(texts, size, lowercase)
    pieces = pieces_of(texts, lowercase)
    first = sorted({c.removeprefix("##") for word in pieces for c in word})
    return [*SPECIAL, *first, *("##" + c for c in first), *learned[len(alphabet(pieces)) :]]
