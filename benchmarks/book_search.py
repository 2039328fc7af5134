"""Which search finds the passage of this book that answers a question: word counts, BM25, or a trained encoder?

The passages are a frozen copy of the book's prose. One set of questions are headings of pages that gave no headings to
training; the other are a reader's questions, written before any search was tried. Every row is one search, or one
training run of the encoder with its combination with BM25. "recall" is the share of questions with a right passage among
the first k, "MRR" the mean of 1 / rank of the first right passage. About six minutes of one processor.

Usage: OMP_NUM_THREADS=1 python benchmarks/book_search.py
"""

import time

import torch
from record import measure_missing

from tested_transformer.data.book_text import book_passages
from tested_transformer.experiments import ch22_book as book

NAME = "book_search"
WHAT = (
    "recall at k and mean reciprocal rank of searches in the frozen text of this book; the encoder after "
    f"{book.STEPS} steps of Adam with {book.BATCH} pairs each, peak learning rate {book.RATE}; seconds are those of one "
    "processor, beside other work"
)
PASSAGES = book_passages()
SETS = book.question_sets(PASSAGES)


def measured(scores: dict[str, torch.Tensor]) -> dict:
    """Recall and MRR for both sets of questions."""
    ranks = {
        name: book.best_ranks(scores[name], book.answers(questions, PASSAGES))
        for name, questions in SETS.items()
    }
    return {
        name: {key: round(value, 4) for key, value in book.measures(rank).items()}
        for name, rank in ranks.items()
    }


def measure(method: str, seed: int | None) -> dict:
    """The words of both sets, or an encoder from a seed that sets its weights and its batches."""
    words = {name: book.scores_of_words(given, PASSAGES) for name, given in SETS.items()}
    if seed is None:
        result = measured({name: scores[method] for name, scores in words.items()})
        return {"method": method, "seed": seed, **result}
    tokenizer, begin = book.load_tokenizer(), time.process_time()
    bert = book.train_encoder(PASSAGES, tokenizer, seed)
    seconds = round(time.process_time() - begin, 1)
    if seed == 0:
        book.save_encoder(bert)
        bert = book.load_encoder()  # as it ships, in float16
    keys = {
        name: book.scores_of_keys(bert, given, PASSAGES, tokenizer) for name, given in SETS.items()
    }
    both = {name: book.combined(keys[name], words[name]["BM25"]) for name in SETS}
    parameters = sum(w.numel() for w in bert.parameters())
    return {
        "method": method, "seed": seed, "parameters": parameters, "seconds": seconds,
        **measured(keys), "with BM25": measured(both),
    }  # fmt: skip


def main() -> None:
    """Measure the runs that are missing."""
    wanted = [{"method": method, "seed": None} for method in ("word counts", "BM25")]
    wanted += [{"method": "encoder", "seed": seed} for seed in range(3)]
    measure_missing(NAME, WHAT, wanted, measure, ["method", "seed", "headings", "reader"])


if __name__ == "__main__":
    main()
