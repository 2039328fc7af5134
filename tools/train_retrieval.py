"""Train the two small models of chapter 22, and write them where the package looks.

One minute of one processor core: the encoder that makes the keys of the database, and the first model of
benchmarks/retrieval.py. Fails, and writes nothing more, unless each question finds the statement of its number, and
the model has at least 97 % of the names right in each of its tests.

Usage: python tools/train_retrieval.py [keys] [model]
"""

import sys

import torch
from safetensors.torch import save_file

from tested_transformer.experiments.ch22_facts import (
    FACT_MODEL,
    KEY_MODEL,
    NUMBERS,
    QUESTIONS,
    RATES,
    STATEMENTS,
    STEPS,
    build,
    fact_sets,
    keys_by,
    right_names,
    train,
    train_key_model,
)
from tested_transformer.functional.retrieval import nearest_neighbors

LOOKS_UP = "small, with retrieval"


def make_keys() -> torch.nn.Module | None:
    """The encoder, if every question finds its statement."""
    bert = train_key_model()
    encode = keys_by(bert)
    found = nearest_neighbors(encode(QUESTIONS), encode(STATEMENTS), 1)[:, 0]
    right = int((found == torch.arange(len(NUMBERS))).sum())
    print(f"{right} of {len(NUMBERS)} questions find their statement")
    return bert if right == len(NUMBERS) else None


def make_model() -> torch.nn.Module | None:
    """The model that looks names up, seed 0, if it is as good as the page says."""
    sets, model = fact_sets(), build(LOOKS_UP, 0)
    train(model, *sets["facts of training"], 0, steps=STEPS, rate=RATES[LOOKS_UP])
    right = {name: right_names(model, *given) for name, given in sets.items()}
    print(right)
    return model if min(right.values()) >= 0.97 else None


def main(names: list[str]) -> int:
    """Train, test, write what is named; 1 if it is not good enough."""
    torch.set_num_threads(1)  # sums in one order
    kinds = {"keys": (make_keys, KEY_MODEL), "model": (make_model, FACT_MODEL)}
    for name in names or kinds:
        make, folder = kinds[name]
        model = make()
        if model is None:
            print(f"{name}: not written", file=sys.stderr)
            return 1
        folder.mkdir(exist_ok=True)
        save_file(model.state_dict(), folder / "model.safetensors")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
