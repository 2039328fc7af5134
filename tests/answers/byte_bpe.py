"""Byte-level byte-pair encoding in other ways: counts kept up to date, regular expressions, numbers, a library."""

import heapq
import re
from collections import Counter
from functools import reduce
from itertools import groupby, pairwise

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from answers import right, wrong
from tested_transformer import reference
from tested_transformer.data.byte_bpe import ByteBPE

CHARACTERS = [reference.byte_character(byte) for byte in range(256)]
ALPHABET = sorted(CHARACTERS)
LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)


def byte_words(text):
    """The words of a text by the library's own pattern, a character for each byte."""
    return [word for word, _ in LEVEL.pre_tokenize_str(text)]


# --- Training -------------------------------------------------------------------------------------


@right("byte_bpe_merges", "the package")
def by_package(texts, size):
    return ByteBPE.train(texts, size).merges


@right("byte_bpe_merges", "the library")
def by_library(texts, size):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = LEVEL
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    vocabulary, learned = sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1]), []
    known = dict(vocabulary)
    for token, i in vocabulary[256:]:
        parts = as_learned(token, learned)
        assert len(parts) == 2
        assert max(known[part] for part in parts) < i
        learned.append(tuple(parts))
    return learned


def as_learned(token, merges):
    """The tokens of a string after all these merges."""
    return reduce(merged_in, merges, [*token])


def merged_in(tokens, pair):
    """The tokens after one merge, from the left."""
    result = []
    for token in tokens:
        if result and (result[-1], token) == pair and not isinstance(result[-1], Done):
            result[-1] = Done(result[-1] + token)
        else:
            result.append(token)
    return [*map(str, result)]


class Done(str):
    """A token that this merge has made, which it does not touch again."""

    __slots__ = ()


@right("byte_bpe_merges", "regular expressions over words with spaces")
def by_expressions(texts, size):
    """Sennrich's own program: a word is a string of tokens with spaces between."""
    words = Counter(" ".join(word) for text in texts for word in byte_words(text))
    vocabulary = [*ALPHABET]
    merges = []
    while len(vocabulary) < size:
        counts = Counter()
        for word, count in words.items():
            for pair in pairwise(word.split(" ")):
                counts[pair] += count
        if not counts:
            break
        most = max(counts.values())
        ties = [pair for pair, count in counts.items() if count == most]
        best = min(ties, key=lambda pair: [*map(vocabulary.index, pair)])
        found = re.compile(rf"(?<!\S){re.escape(' '.join(best))}(?!\S)")
        words = Counter(
            {found.sub(lambda _, new=best: "".join(new), w): c for w, c in words.items()}
        )
        vocabulary.append("".join(best))
        merges.append(best)
    return merges


@right("byte_bpe_merges", "numbers, and counts kept up to date")
def by_updates(texts, size):
    """Only words that hold the pair are counted again."""
    ids = {token: i for i, token in enumerate(ALPHABET)}
    names, counted = [*ALPHABET], Counter(word for text in texts for word in byte_words(text))
    words = [([ids[c] for c in word], count) for word, count in counted.items()]
    counts, merges = Counter(), []
    for tokens, count in words:
        counts.update(dict.fromkeys(pairwise(tokens), 0))
        for pair in pairwise(tokens):
            counts[pair] += count
    while len(names) < size and any(counts.values()):
        queue = [(-count, *pair) for pair, count in counts.items() if count]
        _, left, right_ = heapq.nsmallest(1, queue)[0]
        for tokens, count in words:
            if (left, right_) not in pairwise(tokens):
                continue
            counts.subtract({pair: count * n for pair, n in Counter(pairwise(tokens)).items()})
            for i in range(len(tokens) - 1):
                if tokens[i : i + 2] == [left, right_]:
                    tokens[i : i + 2] = [len(names)]
            counts.update({pair: count * n for pair, n in Counter(pairwise(tokens)).items()})
        merges.append((names[left], names[right_]))
        names.append(names[left] + names[right_])
    return merges


@wrong("byte_bpe_merges", "of equal counts the pair that sorts first as strings")
def by_strings(texts, size):
    """Which is not that of the lowest IDs, once merges have made tokens."""
    words = [[*word] for text in texts for word in byte_words(text)]
    merges = []
    while len(merges) < size - 256:
        counts = Counter(pair for word in words for pair in pairwise(word))
        if not counts:
            break
        best = min(counts, key=lambda pair: (-counts[pair], "".join(pair)))
        words = [merged_in(word, best) for word in words]
        merges.append(best)
    return merges


# --- Tokens ---------------------------------------------------------------------------------------


@right("byte_bpe_tokens", "the package")
def tokens_by_package(text, merges):
    return ByteBPE(merges).tokenize(text)


@right("byte_bpe_tokens", "the library")
def tokens_by_library(text, merges):
    tokenizer = Tokenizer(models.BPE(vocab=ByteBPE(merges).ids, merges=merges))
    tokenizer.pre_tokenizer = LEVEL
    return tokenizer.encode(text).tokens


@right("byte_bpe_tokens", "every merge in turn")
def tokens_in_turn(text, merges):
    return [token for word in byte_words(text) for token in as_learned(word, merges)]


@right("byte_bpe_tokens", "a queue of ranks")
def tokens_by_queue(text, merges):
    """Neighbors in a queue by rank and place; what a merge has changed is passed over."""
    ranks, tokens = {pair: rank for rank, pair in enumerate(merges)}, []
    for word in byte_words(text):
        parts, queue = dict(enumerate(word)), []

        def ask(left, right_, parts=parts, queue=queue):
            if left in parts and right_ in parts and (parts[left], parts[right_]) in ranks:
                pair = (parts[left], parts[right_])
                heapq.heappush(queue, (ranks[pair], left, right_, pair))

        for place in range(len(word) - 1):
            ask(place, place + 1)
        while queue:
            _, left, right_, pair = heapq.heappop(queue)
            if (parts.get(left), parts.get(right_)) != pair:
                continue
            parts[left] += parts.pop(right_)
            before = max((place for place in parts if place < left), default=-1)
            after = min((place for place in parts if place > left), default=-1)
            ask(before, left)
            ask(left, after)
        tokens += [parts[place] for place in sorted(parts)]
    return tokens


@right("byte_bpe_tokens", "regular expressions")
def tokens_by_expressions(text, merges):
    tokens = []
    for word in byte_words(text):
        spaced = " ".join(word)
        for pair in merges:
            found = rf"(?<!\S){re.escape(pair[0])} {re.escape(pair[1])}(?!\S)"
            spaced = re.sub(found, lambda _, new=pair: "".join(new), spaced)
        tokens += spaced.split(" ")
    return tokens


@wrong("byte_bpe_tokens", "always the longest token")
def longest(text, merges):
    """WordPiece's way, with BPE's vocabulary."""
    known, tokens = {*ALPHABET, *map("".join, merges)}, []
    for word in byte_words(text):
        while word:
            end = next(end for end in range(len(word), 0, -1) if word[:end] in known)
            tokens.append(word[:end])
            word = word[end:]
    return tokens


@wrong("byte_bpe_tokens", "all spaces go with the word that follows")
def spaces_go_along(text, merges):
    words = re.findall(r"\s*\S+|\s+$", text)
    parts = ["".join(CHARACTERS[byte] for byte in word.encode()) for word in words]
    return [token for part in parts for token in as_learned(part, merges)]


# --- Text -----------------------------------------------------------------------------------------


@right("byte_bpe_text", "the package")
def text_by_package(ids, merges):
    return ByteBPE(merges).decode(ids)


@right("byte_bpe_text", "the library")
def text_by_library(ids, merges):
    tokenizer = Tokenizer(models.BPE(vocab=ByteBPE(merges).ids, merges=merges))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer.decode(ids)


@right("byte_bpe_text", "bytes of bytes")
def text_of_bytes(ids, merges):
    """No characters in between: a merge joins the bytes of its two tokens."""
    of_character = {character: bytes([byte]) for byte, character in enumerate(CHARACTERS)}
    pieces = [of_character[character] for character in ALPHABET]
    pieces += [b"".join(of_character[c] for c in left + right_) for left, right_ in merges]
    return b"".join(pieces[i] for i in ids).decode("utf-8", "replace")


@right("byte_bpe_text", "an array of bytes")
def text_by_array(ids, merges):
    order = np.array(sorted(range(256), key=CHARACTERS.__getitem__), dtype=np.uint8)
    place = {character: i for i, character in enumerate(ALPHABET)}
    rows = [[i] for i in range(256)] + [[place[c] for c in "".join(pair)] for pair in merges]
    flat = np.array([part for i in ids for part in rows[i]], dtype=int)
    return order[flat].tobytes().decode(errors="replace")


@right("byte_bpe_text", "merges undone one after the other")
def text_undone(ids, merges):
    vocabulary = {token: i for i, token in enumerate([*ALPHABET, *map("".join, merges)])}
    ids = [*ids]
    for i in reversed(range(len(merges))):
        parts = [vocabulary[part] for part in merges[i]]
        ids = [each for own in ids for each in (parts if own == 256 + i else [own])]
    return bytes(CHARACTERS.index(ALPHABET[i]) for i in ids).decode(errors="replace")


@wrong("byte_bpe_text", "token IDs below 256 are the bytes themselves")
def ids_are_bytes(ids, merges):
    return text_by_package([ALPHABET.index(CHARACTERS[i]) if i < 256 else i for i in ids], merges)


@wrong("byte_bpe_text", "broken characters are left out")
def left_out(ids, merges):
    return text_of_bytes(ids, merges).replace("\ufffd", "")


@wrong("byte_bpe_text", "one U+FFFD for a run of broken bytes")
def one_for_all(ids, merges):
    text = text_of_bytes(ids, merges)
    return "".join(c if c == "\ufffd" else "".join(run) for c, run in groupby(text))
