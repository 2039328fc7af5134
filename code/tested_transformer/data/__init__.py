"""Sentences to learn from: made here or read from a file, never downloaded.

Subwords stand in `data.subwords`, which needs the package tokenizers.
"""

from ..special_tokens import BOS, EOS, PAD, UNK, pad
from .batches import Batch, make_batch, make_batches
from .pairs import Pair, Split, number_pair, number_rows, read_pairs, single_numbers
from .vocabulary import Vocabulary, lengths

__all__ = [
    "BOS",
    "EOS",
    "PAD",
    "UNK",
    "Batch",
    "Pair",
    "Split",
    "Vocabulary",
    "lengths",
    "make_batch",
    "make_batches",
    "number_pair",
    "number_rows",
    "pad",
    "read_pairs",
    "single_numbers",
]
