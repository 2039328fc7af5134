"""How fast are our tokenizers beside the library tokenizers, which is written in Rust?

Byte-level BPE and WordPiece learn a vocabulary from the prose that Python brings along, and encode what
was held out. That both give the same tokens is asserted: of BPE the merges too, of WordPiece with our
vocabulary in both (the library's trainer orders the characters in another way). They work in turns on one
thread; a number is the median of the ratios of neighboring turns, ours over theirs: how many times longer
ours takes. About 3 minutes of one processor.

Usage: OMP_NUM_THREADS=1 python benchmarks/subword_tokenizers.py [--rounds 5] [--tiny]
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

import tokenizers
from record import write_rows
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from tested_transformer.data.byte_bpe import ByteBPE
from tested_transformer.data.prose import python_prose
from tested_transformer.data.word_piece import WordPiece

SIZES = {"byte-level BPE": (500, 1000), "WordPiece": (500, 1000)}
WHAT = (
    "ours over the library's, processor time: training on the prose of Python's help() ({characters} "
    "characters) up to a vocabulary of that size, and encoding what was held out ({held_out} characters)"
)


# --- The library's --------------------------------------------------------------------------------


def library_bpe(bpe: ByteBPE | None = None) -> Tokenizer:
    """The library's byte-level BPE, empty or with our merges."""
    known = {} if bpe is None else {"vocab": bpe.ids, "merges": bpe.merges}
    tokenizer = Tokenizer(models.BPE(**known))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def library_word_piece(ours: WordPiece | None = None) -> Tokenizer:
    """The library's WordPiece, empty or with our vocabulary."""
    known = {} if ours is None else {"vocab": ours.ids, "unk_token": "[UNK]"}
    tokenizer = Tokenizer(models.WordPiece(**known))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def train_library(kind: str, texts: list[str], size: int) -> Tokenizer:
    """A vocabulary learned by the library."""
    options = {"vocab_size": size, "show_progress": False}
    if kind == "WordPiece":
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        tokenizer = library_word_piece()
        trainer = trainers.WordPieceTrainer(special_tokens=special, **options)
    else:
        tokenizer = library_bpe()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(initial_alphabet=alphabet, **options)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


# --- Measuring ------------------------------------------------------------------------------------


def seconds(job: Callable[[], object]) -> float:
    """Processor time of all threads."""
    start = time.process_time()
    job()
    return time.process_time() - start


def compare(ours: Callable[[], object], theirs: Callable[[], object], rounds: int) -> dict:
    """In turns, after one to warm up; each goes first in every other one."""
    pairs = []
    for number in range(rounds + 1):
        order = (0, 1) if number % 2 else (1, 0)
        taken = {which: seconds((ours, theirs)[which]) for which in order}
        pairs.append((taken[0], taken[1]))
    found = sorted(mine / max(library, 1e-9) for mine, library in pairs[1:])
    return {
        "ratio": round(statistics.median(found), 1),
        "range": [round(found[0], 1), round(found[-1], 1)],
        "milliseconds": round(1000 * statistics.median(mine for mine, _ in pairs[1:]), 1),
    }


def rows_of(kind: str, size: int, texts: list[str], held_out: list[str], rounds: int) -> list[dict]:
    """Training and encoding, after asking whether both give the same tokens."""
    train = (ByteBPE if kind == "byte-level BPE" else WordPiece).train
    ours, theirs = train(texts, size), train_library(kind, texts, size)
    assert len(ours) == theirs.get_vocab_size() == size
    twin = library_bpe(ours) if kind == "byte-level BPE" else library_word_piece(ours)
    if kind == "byte-level BPE":
        assert {*ours.vocabulary} == {*theirs.get_vocab()}
    for text in held_out:
        assert ours.encode(text) == twin.encode(text, add_special_tokens=False).ids, text

    def encode_all(tokenizer: ByteBPE | WordPiece | Tokenizer) -> None:
        for text in held_out:
            tokenizer.encode(text)

    jobs = {
        "training": (lambda: train(texts, size), lambda: train_library(kind, texts, size)),
        "encoding": (lambda: encode_all(ours), lambda: encode_all(twin)),
    }
    return [{"family": kind, "variant": f"{size} tokens", "method": name} | compare(*pair, rounds)
            for name, pair in jobs.items()]  # fmt: skip


def main() -> None:
    """Measure each, print a table and store it; a tiny run stores nothing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="little text, to see that all runs")
    given = parser.parse_args()
    texts, held_out = python_prose(any_version=True)
    if given.tiny:
        texts, held_out = texts[:40], held_out[:5]
    count = {"characters": sum(map(len, texts)), "held_out": sum(map(len, held_out))}
    rows = []
    for kind, sizes in SIZES.items():
        for size in (300,) if given.tiny else sizes:
            rows += rows_of(kind, size, texts, held_out, given.rounds)
            for row in rows[-2:]:
                print(*row.values(), sep="\t", flush=True)
            if not given.tiny:
                load = (
                    f"{os.cpu_count()} processors, load {os.getloadavg()[2]:.1f} (1: nothing else)"
                )
                more = {"tokenizers": tokenizers.__version__, "machine": load}
                write_rows("subword_tokenizers", WHAT.format(**count), rows, **more)


if __name__ == "__main__":
    main()
