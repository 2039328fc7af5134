"""Generating: from the scores of the next word to whole sentences, with and without a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from .cache import DecoderCache
from .data import BOS, EOS, PAD, Pair, Vocabulary, pad
from .errors import (
    complain,
    need_count,
    need_float_tensor,
    need_integer_tensor,
    need_number,
    need_positive,
    need_rank,
    shape_of,
)
from .language_model import LanguageModel
from .training import device_of

# --- Choosing a word ------------------------------------------------------------------------------


def repeat_penalty(
    logits: Float[Tensor, "B V"], said: Int[Tensor, "B L"], penalty: float
) -> Float[Tensor, "B V"]:
    """Make words that were said already less likely: divide a positive score, multiply a negative one.

    Shapes: logits (B, V), said (B, L) -> (B, V). A penalty of 1 changes nothing.
    Raises: TypeError or ValueError that name the argument.
    Source: Keskar et al. 2019 (CTRL), section 4.1.

    >>> repeat_penalty(torch.tensor([[2.0, -1.0, 3.0]]), torch.tensor([[0, 1]]), 2.0).tolist()
    [[1.0, -2.0, 3.0]]
    """
    need_logits(logits)
    need_integer_tensor("said", said)
    need_positive("penalty", penalty)
    found = logits.gather(1, said)  # B L
    return logits.scatter(1, said, torch.where(found > 0, found / penalty, found * penalty))


def keep_top_k(logits: Float[Tensor, "B V"], k: int) -> Float[Tensor, "B V"]:
    """Rule out all but the k likeliest words; ties with the k-th stay.

    Shapes: (B, V) -> (B, V), ruled out is -inf.
    Raises: TypeError or ValueError that name the argument.
    Source: Fan et al. 2018, section 5.4.

    >>> keep_top_k(torch.tensor([[1.0, 3.0, 2.0]]), 2).tolist()
    [[-inf, 3.0, 2.0]]
    """
    need_logits(logits)
    need_count("k", k)
    least = logits.topk(min(k, logits.shape[-1])).values[:, -1:]  # B 1
    return logits.masked_fill(logits < least, float("-inf"))


def keep_top_p(logits: Float[Tensor, "B V"], p: float) -> Float[Tensor, "B V"]:
    """Rule out all but the smallest set of likeliest words that together have probability p.

    The likeliest word always stays.

    Shapes: (B, V) -> (B, V), ruled out is -inf.
    Raises: TypeError or ValueError that name the argument.
    Source: Holtzman et al. 2020, section 3.1.

    >>> (keep_top_p(torch.tensor([[0.5, 0.3, 0.2]]).log(), 0.6) > -9).int().tolist()
    [[1, 1, 0]]
    """
    need_logits(logits)
    need_number("p", p)
    if not 0 < p <= 1:
        raise complain(ValueError, "p", p, "a probability above 0, at most 1")
    ordered, words = logits.sort(dim=-1, descending=True, stable=True)
    probability = ordered.softmax(-1)
    before = probability.cumsum(-1) - probability  # what the likelier words have together
    ruled_out = before >= p
    ruled_out[:, 0] = False
    return logits.masked_fill(ruled_out.scatter(1, words, ruled_out), float("-inf"))


@dataclass(frozen=True)
class Sampling:
    """How the next word is drawn: penalty, temperature, top-k, top-p, in this order, then chance.

    A temperature of 0 takes the likeliest word. The generator makes the draws repeatable.

    Raises: TypeError or ValueError that name the field.
    Source: chapter 11.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        need_number("temperature", self.temperature)
        if self.temperature < 0:
            raise complain(ValueError, "temperature", self.temperature, "at least 0")
        need_positive("repetition_penalty", self.repetition_penalty)
        if self.top_k is not None:
            need_count("top_k", self.top_k)
        if self.top_p is not None:
            need_number("top_p", self.top_p)
            if not 0 < self.top_p <= 1:
                wanted = "a probability above 0, at most 1"
                raise complain(ValueError, "top_p", self.top_p, wanted)

    def shape(self, logits: Float[Tensor, "B V"], said: Int[Tensor, "B L"]) -> Float[Tensor, "B V"]:
        """The scores after penalty, temperature and what is ruled out."""
        if self.repetition_penalty != 1.0:
            logits = repeat_penalty(logits, said, self.repetition_penalty)
        if self.temperature not in (0.0, 1.0):
            logits = logits / self.temperature
        if self.top_k is not None:
            logits = keep_top_k(logits, self.top_k)
        return logits if self.top_p is None else keep_top_p(logits, self.top_p)

    def choose(self, logits: Float[Tensor, "B V"], said: Int[Tensor, "B L"]) -> Int[Tensor, " B"]:
        """One word for each row."""
        shaped = self.shape(logits, said)
        if self.temperature == 0:
            return shaped.argmax(-1)
        return torch.multinomial(shaped.softmax(-1), 1, generator=self.generator)[:, 0]


GREEDY = Sampling(temperature=0.0)

# --- A model that is asked word by word -----------------------------------------------------------


@runtime_checkable
class Session(Protocol):
    """What `generate` and `beam_search` talk to: any model with a memory of what was said."""

    def feed(self, tokens: Int[Tensor, "B L"]) -> Float[Tensor, "B V"]:
        """Take the next tokens; give the scores of the word after the last."""

    def select(self, rows: Int[Tensor, " N"]) -> None:
        """Keep these rows, in this order; a row may come twice."""


class Translation:
    """A session of an encoder-decoder model: the source is read once, then the target grows.

    The model is a Transformer, or whatever has its `encode`, `padding`, `decode` and `new_cache`.

    With a cache each word is computed once, and the keys and values of the source once; without one
    the whole target is computed again for each word. The words are the same.

    Shapes: source (B, S).
    Raises: TypeError or ValueError that name the argument.
    Source: chapters 5 and 11.
    """

    def __init__(self, model: nn.Module, source: Int[Tensor, "B S"], *, cache: bool = True) -> None:
        self.model = model
        with torch.no_grad():
            self.memory = model.encode(source)  # B S D
        self.visible = model.padding(source)  # B 1 1 S, or None
        self.cache = model.new_cache() if cache else None
        self.said: Tensor | None = None

    @torch.no_grad()
    def feed(self, tokens: Int[Tensor, "B L"]) -> Float[Tensor, "B V"]:
        """Take the next tokens of the target; give the scores of the word after the last."""
        if self.cache is None:
            self.said = tokens if self.said is None else torch.cat([self.said, tokens], dim=1)
            tokens = self.said
        logits = self.model.decode(
            tokens, self.memory, memory_mask=self.visible, cache=self.cache
        )  # B L V
        return logits[:, -1]

    def select(self, rows: Int[Tensor, " N"]) -> None:
        """Keep these rows, in this order."""
        self.memory = self.memory[rows]
        self.visible = None if self.visible is None else self.visible[rows]
        if self.cache is not None:
            self.cache.select(rows)
        self.said = None if self.said is None else self.said[rows]


class Continuation:
    """A session of a language model: the prompt is fed first, then word after word.

    Rows of different lengths are padded on the left, so that every row goes on at the same place.

    Raises: TypeError or ValueError that name the argument.
    Source: chapter 11.
    """

    def __init__(self, model: LanguageModel, *, cache: bool = True) -> None:
        self.model = model
        self.cache: DecoderCache | None = model.new_cache() if cache else None
        self.said: Tensor | None = None

    @torch.no_grad()
    def feed(self, tokens: Int[Tensor, "B L"]) -> Float[Tensor, "B V"]:
        """Take the next tokens; give the scores of the word after the last."""
        if self.cache is None:
            self.said = tokens if self.said is None else torch.cat([self.said, tokens], dim=1)
            tokens = self.said
        return self.model(tokens, cache=self.cache)[:, -1]

    def select(self, rows: Int[Tensor, " N"]) -> None:
        """Keep these rows, in this order."""
        if self.cache is not None:
            self.cache.select(rows)
        self.said = None if self.said is None else self.said[rows]


# --- Whole sentences ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Generated:
    """New words, without the start: PAD follows a row's EOS. score: log-probability of a row's words.

    Shapes: tokens (B, N), scores (B). Scores of beam search are divided by length^penalty.
    """

    tokens: Int[Tensor, "B N"]
    scores: Float[Tensor, " B"]

    def decode(self, vocabulary: Vocabulary) -> list[list[str]]:
        """Each row as words."""
        return [vocabulary.decode(row) for row in self.tokens]


@torch.no_grad()
def generate(
    session: Session,
    start: Int[Tensor, "B L"],
    *,
    max_new: int,
    sampling: Sampling = GREEDY,
    eos: int | None = EOS,
    padding: int = PAD,
) -> Generated:
    """Say one word after the other until EOS, each row for itself, at most max_new words.

    Shapes: start (B, L), L at least 1: what has been said before, such as BOS.
    Raises: TypeError or ValueError that name the argument.
    Source: chapter 11.
    """
    need_start(start)
    need_count("max_new", max_new)
    said, logits = start, session.feed(start)
    scores = logits.new_zeros(len(start), dtype=torch.float32)
    done = torch.zeros(len(start), dtype=torch.bool, device=start.device)
    for count in range(1, max_new + 1):
        word = sampling.choose(logits, said)  # B
        gained = logits.float().log_softmax(-1).gather(1, word[:, None])[:, 0]
        scores = scores + gained.masked_fill(done, 0.0)
        word = word.masked_fill(done, padding)
        said = torch.cat([said, word[:, None]], dim=1)
        done = done if eos is None else done | (word == eos)
        if count == max_new or bool(done.all()):
            break
        logits = session.feed(word[:, None])
    return Generated(said[:, start.shape[1] :], scores)


@dataclass
class _Beams:
    """The search for one sentence: what is running, what has ended, can anything better come?"""

    size: int
    max_new: int
    length_penalty: float
    eos: int
    running: list[list[int]] = field(default_factory=lambda: [[]])  # best first, like the rest
    scores: list[float] = field(default_factory=lambda: [0.0])  # their log-probabilities
    came_from: list[int] = field(default_factory=lambda: [0])  # the beams they go on from
    ended: list[tuple[float, list[int]]] = field(default_factory=list)  # score, words
    done: bool = False

    def grow(self, steps: list[tuple[float, int, int]]) -> None:
        """Take twice as many steps (score, beam, word) as beams, best first, since half may end."""
        length, kept = len(self.running[0]) + 1, []
        for rank, (score, beam, word) in enumerate(steps):
            sentence = [*self.running[beam], word]
            ends = word == self.eos or length == self.max_new
            if ends and rank < self.size and not self.done:
                self.ended.append((score / length**self.length_penalty, sentence))
            if word != self.eos and len(kept) < self.size:
                kept.append((sentence, score, beam))
        self.running, self.scores, self.came_from = map(list, zip(*kept, strict=True))
        self.ended = sorted(self.ended, key=lambda found: -found[0])[: self.size]
        self.done = self.done or self._settled(length)

    def _settled(self, length: int) -> bool:
        """Have enough ended, and is the best that runs unable to catch up?"""
        longest = self.max_new if self.length_penalty > 0 else length
        best_possible = self.scores[0] / longest**self.length_penalty
        return len(self.ended) == self.size and best_possible <= self.ended[-1][0]


@torch.no_grad()
def beam_search(
    session: Session,
    start: Int[Tensor, "B L"],
    *,
    num_beams: int,
    max_new: int,
    length_penalty: float = 1.0,
    eos: int = EOS,
    padding: int = PAD,
) -> Generated:
    """Keep the num_beams likeliest beginnings at each length; give the best sentence that ended.

    A sentence of n words (EOS counts) is scored by its log-probability / n^length_penalty: 0 favors
    short ones, a large penalty long ones. The search ends when no running beginning can still beat
    the num_beams sentences that ended, or at max_new words, where what runs ends as it is.

    Shapes: start (B, L) -> tokens (B, N), scores (B).
    Raises: TypeError or ValueError that name the argument.
    Source: Wu et al. 2016, section 7, with the length penalty of transformers.
    """
    need_start(start)
    for name, count in (("num_beams", num_beams), ("max_new", max_new)):
        need_count(name, count)
    need_number("length_penalty", length_penalty)
    logits = session.feed(start)  # B V
    if 2 * num_beams > logits.shape[-1]:
        wanted = f"at most half of the {logits.shape[-1]} words"
        raise complain(ValueError, "num_beams", num_beams, wanted)
    searches = [_Beams(num_beams, max_new, length_penalty, eos) for _ in start]
    scores = torch.zeros(len(start), 1, device=start.device)  # B K: log-probabilities
    for length in range(1, max_new + 1):
        steps = _best_steps(logits, scores, 2 * num_beams)
        for search, found in zip(searches, steps, strict=True):
            search.grow(found)
        if length == max_new or all(search.done for search in searches):
            break
        rows, words = _rows_and_words(searches, scores.shape[1])
        session.select(torch.tensor(rows, device=start.device))
        logits = session.feed(torch.tensor(words, device=start.device))
        scores = torch.tensor([search.scores for search in searches], device=start.device)
    best = [search.ended[0] for search in searches]
    tokens = pad([words for _, words in best], value=padding).to(start.device)
    return Generated(tokens, torch.tensor([score for score, _ in best], device=start.device))


def _rows_and_words(searches: list[_Beams], width: int) -> tuple[list[int], list[list[int]]]:
    """Of each running beginning the row of the batch it goes on from, and its last word."""
    rows = [n * width + beam for n, search in enumerate(searches) for beam in search.came_from]
    return rows, [[words[-1]] for search in searches for words in search.running]


def _best_steps(logits: Tensor, scores: Tensor, count: int) -> list[list[tuple[float, int, int]]]:
    """For each row the likeliest (log-probability, beam, word), best first."""
    vocab = logits.shape[-1]
    total = logits.float().log_softmax(-1).view(*scores.shape, vocab) + scores[..., None]
    best, places = total.flatten(1).topk(count)
    return [
        [(score, *divmod(place, vocab)) for score, place in zip(*row, strict=True)]
        for row in zip(best.tolist(), places.tolist(), strict=True)
    ]


def translate(
    model: nn.Module,
    sentences: Sequence[Sequence[str]],
    source: Vocabulary,
    target: Vocabulary,
    *,
    max_new: int = 64,
    num_beams: int = 1,
    sampling: Sampling = GREEDY,
    cache: bool = True,
) -> list[list[str]]:
    """Translate sentences, given as words, in one batch.

    Raises: TypeError or ValueError that name the argument.
    Source: chapter 11.
    """
    if not sentences:
        return []
    was_training, device = model.training, device_of(model)
    model.eval()
    try:
        ids = pad([[*source.encode(words), EOS] for words in sentences]).to(device)
        start = torch.full((len(sentences), 1), BOS, device=device)
        session = Translation(model, ids, cache=cache)
        if num_beams > 1:
            found = beam_search(session, start, num_beams=num_beams, max_new=max_new)
        else:
            found = generate(session, start, max_new=max_new, sampling=sampling)
    finally:
        model.train(was_training)
    return found.decode(target)


class Mistake(NamedTuple):
    """A sentence that a model did not translate word for word, and what it said."""

    pair: Pair
    said: tuple[str, ...]


def find_mistakes(
    model: nn.Module,
    pairs: Sequence[Pair],
    source: Vocabulary,
    target: Vocabulary,
    *,
    batch_size: int = 500,
    **options: Any,
) -> list[Mistake]:
    """Translate every pair's source and give back those that are not its target, word for word.

    1 - len(mistakes) / len(pairs) is the exact match. Options are those of `translate`.

    Raises: TypeError or ValueError that name the argument.
    Source: chapter 10.
    """
    need_count("batch_size", batch_size)
    mistakes = []
    by_length = sorted(pairs, key=lambda pair: len(pair.target))
    for first in range(0, len(by_length), batch_size):
        some = by_length[first : first + batch_size]
        said = translate(model, [pair.source for pair in some], source, target, **options)
        both = zip(some, map(tuple, said), strict=True)
        mistakes += [Mistake(pair, words) for pair, words in both if words != pair.target]
    return mistakes


# --- Checks ---------------------------------------------------------------------------------------


def need_logits(logits: Any) -> None:
    """Raise unless logits are floating point scores (B, V) of at least one word."""
    need_float_tensor("logits", logits)
    need_rank("logits", logits, 2)
    if logits.shape[-1] == 0:
        raise complain(ValueError, "logits", f"shape {shape_of(logits)}", "at least one word")


def need_start(start: Any) -> None:
    """Raise unless start is word numbers (B, L) with at least one row and one word."""
    need_integer_tensor("start", start)
    need_rank("start", start, 2)
    if 0 in start.shape:
        raise complain(ValueError, "start", f"shape {shape_of(start)}", "at least a row and a word")
