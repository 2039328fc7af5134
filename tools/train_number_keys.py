"""Train the encoder that makes the keys of chapter 22's database, and write it where the package looks.

Twenty seconds of one processor core. Fails, and writes nothing, unless each question finds the statement of its
number first, for the numbers that it never saw, too.

Usage: python tools/train_number_keys.py
"""

import sys

import torch
from safetensors.torch import save_file

from tested_transformer.experiments.ch22_facts import (
    KEY_MODEL,
    NUMBERS,
    QUESTIONS,
    STATEMENTS,
    keys_by,
    train_key_model,
)
from tested_transformer.functional.retrieval import nearest_neighbors


def main() -> int:
    """Train, test, write; 1 if a question finds another number."""
    torch.set_num_threads(1)  # sums in one order
    bert = train_key_model()
    encode = keys_by(bert)
    found = nearest_neighbors(encode(QUESTIONS), encode(STATEMENTS), 1)[:, 0]
    right = int((found == torch.arange(len(NUMBERS))).sum())
    print(f"{right} of {len(NUMBERS)} questions find their statement")
    if right < len(NUMBERS):
        print("not written: all are wanted", file=sys.stderr)
        return 1
    KEY_MODEL.mkdir(exist_ok=True)
    save_file(bert.state_dict(), KEY_MODEL / "model.safetensors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
