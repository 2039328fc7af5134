"""The search of this book: the frozen text, BM25, the encoder, and what the page says of the stored runs."""

import hashlib
import json
import math
from pathlib import Path

import pytest
import torch
from sklearn.feature_extraction.text import CountVectorizer

import freeze_book_text
from tested_transformer.data import book_text
from tested_transformer.experiments import ch22_book as book

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "book_search.json"
ROWS = json.loads(RESULTS.read_text("utf-8"))["rows"]
DIGEST = "a9d12b5da77b7952f3fd216550093cbef7325214fb7470158f4f5373391491d4"
PASSAGES = book_text.book_passages()
SETS = book.question_sets(PASSAGES)


def test_the_copy_is_the_one_that_was_measured():
    """Whoever freezes the text again must train and measure again."""
    assert hashlib.sha256(book_text.PASSAGES.read_bytes()).hexdigest() == DIGEST
    assert book_text.PASSAGES.stat().st_size < 400_000
    assert all(len(p.text) >= 80 for p in PASSAGES)


def test_every_section_that_answers_is_there():
    known = {(p.page, p.heading) for p in PASSAGES} | {(p.page, None) for p in PASSAGES}
    for question in book_text.book_questions():
        assert set(question.sections) <= known, question.text


def test_what_a_page_gives():
    source = (
        "# A page\n\nToo short.\n\n## Part\n\n| a | table |\n\n```python\ncode = 1\n```\n\n"
        + "The **mean** of `keys`, $\\sqrt{d}$, as in [a page](x.ipynb), " * 3
        + "\n\n## Sources\n\n"
        + "left out " * 20
    )
    cells = [{"cell_type": "markdown", "source": [source]}, {"cell_type": "code", "source": ["x"]}]
    (passage,) = freeze_book_text.passages_of(cells)
    assert (passage["page"], passage["heading"]) == ("A page", "Part")
    assert passage["text"].startswith("The mean of keys, sqrt d, as in a page,")


def bm25_by_loops(question: list[str], passages: list[list[str]], k1=1.2, b=0.75) -> list[float]:
    mean = sum(map(len, passages)) / len(passages)
    scores = []
    for words in passages:
        score = 0.0
        for word in question:
            with_it = sum(word in other for other in passages)
            rarity = math.log(1 + (len(passages) - with_it + 0.5) / (with_it + 0.5))
            count = words.count(word)
            score += rarity * count * (k1 + 1) / (count + k1 * (1 - b + b * len(words) / mean))
        scores.append(score)
    return scores


def test_bm25_is_the_formula_in_loops():
    texts = [p.text for p in PASSAGES[:60]]
    vocabulary = {w: i for i, w in enumerate(sorted({w for t in texts for w in book.words_of(t)}))}
    question = "how does the model attend to the last token of the last sentence"
    counts = book.count_words([question, *texts], vocabulary).double()
    known = [w for w in book.words_of(question) if w in vocabulary]
    expected = bm25_by_loops(known, [book.words_of(text) for text in texts])
    torch.testing.assert_close(book.bm25(counts[:1], counts[1:])[0].tolist(), expected)


def test_words_are_counted_as_by_scikit_learn():
    texts = [p.text for p in PASSAGES[:50]]
    theirs = CountVectorizer(token_pattern=r"[a-z0-9]+")
    expected = theirs.fit_transform(texts).toarray()
    vocabulary = {word: int(i) for word, i in theirs.vocabulary_.items()}
    assert book.count_words(texts, vocabulary).int().tolist() == expected.tolist()


def test_ranks_and_measures_by_hand():
    scores = torch.tensor([[3.0, 1.0, 2.0], [1.0, 1.0, 5.0]])
    assert book.ranks(scores).tolist() == [[1, 3, 2], [2, 3, 1]]
    right = torch.tensor([[False, True, True], [False, True, False]])
    rank = book.best_ranks(scores, right)
    assert rank.tolist() == [2, 3]
    measures = book.measures(rank)
    assert (measures["1"], measures["2"], measures["3"]) == (0, 0.5, 1)
    assert measures["MRR"] == pytest.approx((1 / 2 + 1 / 3) / 2)
    expected = [[1 / 61 + 1 / 63, 1 / 63 + 1 / 61, 2 / 62]]
    torch.testing.assert_close(book.combined(scores[:1], -scores[:1]).tolist(), expected)


def test_no_heading_of_a_held_out_page_is_trained_on():
    held_out = book.held_out_pages(PASSAGES)
    pairs = book.Pairs(PASSAGES, book.load_tokenizer(), seed=0)
    assert not any(query.startswith(f"{page}: ") for page in held_out for query in pairs.sections)
    assert all(page in held_out for q in SETS["headings"] for page, _ in q.sections)
    queries, texts = pairs.batch()
    assert len(queries) == len(texts) == book.BATCH


@torch.no_grad()
def test_keys_do_not_depend_on_the_batch():
    tokenizer, encode = book.load_tokenizer(), book.keys_by(book.load_encoder())
    texts = [p.text for p in PASSAGES[:5]]
    together = encode(book.token_ids(texts, tokenizer))
    alone = torch.cat([encode(book.token_ids([text], tokenizer)) for text in texts])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_weights_are_those_of_the_stored_run():
    (row,) = (r for r in ROWS if r["method"] == "encoder" and r["seed"] == 0)
    questions = SETS["reader"]
    scores = book.scores_of_keys(book.load_encoder(), questions, PASSAGES, book.load_tokenizer())
    measures = book.measures(book.best_ranks(scores, book.answers(questions, PASSAGES)))
    assert {k: round(v, 2) for k, v in measures.items()} == {
        k: pytest.approx(v, abs=0.03) for k, v in row["reader"].items()
    }


def test_training_lowers_the_loss():
    tokenizer = book.load_tokenizer()
    ids = book.Pairs(PASSAGES, tokenizer, seed=9).batch()
    losses = []
    for steps in (1, 12):
        encode = book.keys_by(book.train_encoder(PASSAGES, tokenizer, 0, steps))
        losses.append(book.contrastive_loss(*(encode(part) for part in ids)).item())
    assert losses[1] < losses[0] - 0.1


def test_what_the_page_says():
    """Three seeds; BM25 is ahead of every trained encoder on both sets."""
    encoders = [row for row in ROWS if row["method"] == "encoder"]
    (words,) = (row for row in ROWS if row["method"] == "BM25")
    assert sorted(row["seed"] for row in encoders) == [0, 1, 2]
    for name in SETS:
        assert all(row[name][key] < words[name][key] for row in encoders for key in ("5", "MRR"))
