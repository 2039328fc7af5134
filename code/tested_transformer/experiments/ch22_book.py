"""Searching this book's own text: a trained encoder beside word counts and BM25 (chapter 22)."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable
from itertools import chain

import torch
from jaxtyping import Bool, Float, Int
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from .. import minimal
from ..data.book_text import FOLDER, Passage, Question, book_questions
from ..data.word_piece import WordPiece
from ..generation.browser import words_of
from ..special_tokens import pad
from . import ch12_masked

VOCABULARY, WEIGHTS = FOLDER / "vocabulary.json", FOLDER / "model.safetensors"
VOCAB_SIZE, LENGTH, D_MODEL, NUM_LAYERS = 3000, 64, 96, 1
STEPS, BATCH, RATE, TEMPERATURE = 700, 96, 2e-3, 0.05
EVERY = 5  # each fifth page is held out
CUTOFFS = (1, 2, 3, 5, 10, 20, 50)

# --- Questions and answers ------------------------------------------------------------------------


def held_out_pages(passages: list[Passage]) -> set[str]:
    """Titles of the pages whose headings test the search, and that no training reads."""
    return set(list(dict.fromkeys(p.page for p in passages))[::EVERY])


def heading_questions(passages: list[Passage], pages: set[str]) -> list[Question]:
    """For each section of the pages a question: its page's title and its heading.

    "In short" and other headings that many pages have are left out.
    """
    sections = list(dict.fromkeys((p.page, p.heading) for p in passages))
    headings = [heading for _, heading in sections]
    return [
        Question(f"{page}: {heading}", [(page, heading)])
        for page, heading in sections
        if page in pages and page != heading and headings.count(heading) < 4
    ]


def answers(questions: list[Question], passages: list[Passage]) -> Bool[Tensor, "Q S"]:
    """Which passages answer which question: all of its sections, or of a page where the heading is None."""
    return torch.tensor(
        [
            [(p.page, p.heading) in q.sections or (p.page, None) in q.sections for p in passages]
            for q in questions
        ]
    )


# --- Searches -------------------------------------------------------------------------------------


def count_words(texts: Iterable[str], vocabulary: dict[str, int]) -> Float[Tensor, "N V"]:
    """How often each word of the vocabulary occurs in each text."""
    rows = [[vocabulary[w] for w in words_of(text) if w in vocabulary] for text in texts]
    counts = torch.zeros(len(rows), len(vocabulary))
    for row, ids in zip(counts, rows, strict=True):
        row += torch.bincount(torch.tensor(ids, dtype=torch.long), minlength=len(vocabulary))
    return counts


def bm25(
    query: Float[Tensor, "Q V"], counts: Float[Tensor, "S V"], k1: float = 1.2, b: float = 0.75
) -> Float[Tensor, "Q S"]:
    """Scores of texts for queries, both as counts of words; the larger, the better.

    Source: Robertson and Zaragoza 2009, section 3.4; the logarithm is Lucene's, which is never negative.
    """
    containing, length = (counts > 0).sum(0), counts.sum(1, keepdim=True)
    idf = torch.log1p((len(counts) - containing + 0.5) / (containing + 0.5))  # V
    norm = 1 - b + b * length / length.mean()  # S 1
    return query @ (idf * counts * (k1 + 1) / (counts + k1 * norm)).T


def cosine(query: Float[Tensor, "Q V"], counts: Float[Tensor, "S V"]) -> Float[Tensor, "Q S"]:
    """Cosine similarities of counts."""
    return functional.normalize(query, dim=1) @ functional.normalize(counts, dim=1).T


def ranks(scores: Float[Tensor, "Q S"]) -> Int[Tensor, "Q S"]:
    """1 for the largest score of each row; of equal ones the first is first."""
    return scores.argsort(dim=1, descending=True, stable=True).argsort(dim=1) + 1


def combined(*scores: Float[Tensor, "Q S"]) -> Float[Tensor, "Q S"]:
    """Reciprocal rank fusion: the sum of 1 / (60 + rank).

    Source: Cormack, Clarke and Büttcher 2009.
    """
    return sum(1 / (60 + ranks(score)) for score in scores)


# --- The encoder ----------------------------------------------------------------------------------


def masked_mean(hidden: Float[Tensor, "B L D"], real: Bool[Tensor, "B L"]) -> Float[Tensor, "B D"]:
    """The mean of the vectors of real tokens; zeros where there is none."""
    total = hidden.masked_fill(~real[..., None], 0.0).sum(1)
    return total / real.sum(1, keepdim=True).clamp(min=1)


def load_tokenizer() -> WordPiece:
    """The vocabulary that was learned from the pages of training."""
    return WordPiece(json.loads(VOCABULARY.read_text(encoding="utf-8")))


def token_ids(texts: Iterable[str], tokenizer: WordPiece) -> Int[Tensor, "N L"]:
    """The first 64 tokens of each text, padded with 0 on the right."""
    return pad([tokenizer.encode(text[: 8 * LENGTH])[:LENGTH] for text in texts])


def new_encoder(seed: int) -> ch12_masked.Bert:
    """An untrained encoder; positions begin small, so that at first a key depends on the tokens alone."""
    torch.manual_seed(seed)
    bert = ch12_masked.Bert(VOCAB_SIZE, LENGTH, d_model=D_MODEL, num_layers=NUM_LAYERS)
    nn.init.normal_(bert.positions.weight, std=0.02)
    return bert


def keys_by(bert: ch12_masked.Bert) -> Callable[[Tensor], Float[Tensor, "N D"]]:
    """Token IDs (N, L), padded with 0 -> vectors of norm 1: means of the encoder's outputs."""

    def encode(ids: Int[Tensor, "N L"]) -> Float[Tensor, "N D"]:
        hidden = bert(ids, minimal.padding_mask(ids))
        return functional.normalize(masked_mean(hidden, ids != minimal.PAD), dim=1)

    return encode


def encode_all(encode: Callable[[Tensor], Tensor], ids: Int[Tensor, "N L"]) -> Tensor:
    """Vectors of many texts, 256 at a time."""
    with torch.no_grad():
        return torch.cat([encode(part) for part in ids.split(256)])


def contrastive_loss(
    queries: Float[Tensor, "B D"], keys: Float[Tensor, "B D"], temperature: float = TEMPERATURE
) -> Tensor:
    """InfoNCE: the key with the same index is the class, the others of the batch are the wrong ones."""
    return functional.cross_entropy(queries @ keys.T / temperature, torch.arange(len(queries)))


class Pairs:
    """Pairs of texts that belong together, as token IDs: headings and passages, sentences and the rest.

    A heading, after its page's title, belongs to a passage under it. Only the pages of training have headings. A
    sentence belongs to the rest of its passage: for that, all passages of the database serve, without headings.

    Source: for the second kind, the inverse cloze task of Lee et al. 2019.
    """

    def __init__(self, passages: list[Passage], tokenizer: WordPiece, seed: int) -> None:
        self.rng, held_out = random.Random(seed), held_out_pages(passages)
        self.sections: dict[str, list[list[int]]] = {}
        self.sentences = []
        for p in passages:
            parts = [tokenizer.encode(sentence) for sentence in re.split(r"(?<=[.?!:]) ", p.text)]
            if len(parts) > 1:
                self.sentences.append(parts)
            if p.page not in held_out:
                self.sections.setdefault(f"{p.page}: {p.heading}", []).append(list(chain(*parts)))
        self.headings = {heading: tokenizer.encode(heading) for heading in self.sections}

    def batch(self) -> tuple[Int[Tensor, "B K"], Int[Tensor, "B L"]]:
        """Queries and their texts, half of each kind."""
        headings = self.rng.sample(list(self.sections), BATCH // 2)
        queries = [self.headings[heading] for heading in headings]
        texts = [self.rng.choice(self.sections[heading]) for heading in headings]
        for sentences in self.rng.sample(self.sentences, BATCH // 2):
            i = self.rng.randrange(len(sentences))
            queries.append(sentences[i])
            texts.append(list(chain(*sentences[:i], *sentences[i + 1 :])))
        return pad([ids[:LENGTH] for ids in queries]), pad([ids[:LENGTH] for ids in texts])


def train_encoder(
    passages: list[Passage], tokenizer: WordPiece, seed: int, steps: int = STEPS
) -> ch12_masked.Bert:
    """An encoder that brings the texts of a pair together, the other texts of the batch being the wrong ones."""
    bert, pairs = new_encoder(seed), Pairs(passages, tokenizer, seed)
    encode = keys_by(bert)

    def loss() -> Tensor:
        return contrastive_loss(*(encode(ids) for ids in pairs.batch()))

    ch12_masked.train(bert, loss, steps, lr=RATE)
    return bert.eval().requires_grad_(False)


def save_encoder(bert: ch12_masked.Bert) -> None:
    """Write the weights where the package looks, in float16."""
    save_file({name: w.half() for name, w in bert.state_dict().items()}, WEIGHTS)


def load_encoder() -> ch12_masked.Bert:
    """The encoder with seed 0, which ships with the package in float16."""
    bert = new_encoder(0)
    bert.load_state_dict({name: w.float() for name, w in load_file(WEIGHTS).items()})
    return bert.eval().requires_grad_(False)


# --- Measuring ------------------------------------------------------------------------------------


def best_ranks(scores: Float[Tensor, "Q S"], right: Bool[Tensor, "Q S"]) -> Int[Tensor, " Q"]:
    """The rank of the first passage that answers each question."""
    return ranks(scores).masked_fill(~right, scores.shape[1] + 1).amin(1)


def measures(rank: Int[Tensor, " Q"]) -> dict[str, float]:
    """Recall at each cutoff, and the mean reciprocal rank."""
    recall = {str(k): (rank <= k).float().mean().item() for k in CUTOFFS}
    return {**recall, "MRR": (1 / rank).mean().item()}


def question_sets(passages: list[Passage]) -> dict[str, list[Question]]:
    """Headings of the held-out pages, and a reader's questions."""
    headings = heading_questions(passages, held_out_pages(passages))
    return {"headings": headings, "reader": book_questions()}


def scores_of_words(questions: list[Question], passages: list[Passage]) -> dict[str, Tensor]:
    """Of word counts and of BM25."""
    words = sorted({word for p in passages for word in words_of(p.text)})
    vocabulary = {word: number for number, word in enumerate(words)}
    counts = count_words((p.text for p in passages), vocabulary)
    asked = count_words((q.text for q in questions), vocabulary)
    return {"word counts": cosine(asked, counts), "BM25": bm25(asked, counts)}


def scores_of_keys(
    bert: ch12_masked.Bert, questions: list[Question], passages: list[Passage], tokenizer: WordPiece
) -> Float[Tensor, "Q S"]:
    """Cosine similarities of the encoder's vectors."""
    encode = keys_by(bert)
    asked, keys = (
        encode_all(encode, token_ids((x.text for x in texts), tokenizer))
        for texts in (questions, passages)
    )
    return asked @ keys.T
