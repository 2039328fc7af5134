"""Train the language model of English prose that chapter 13 samples from, and store it in the package.

The text is that of Python 3.11, and is not stored. About five minutes of one processor.

Usage: OMP_NUM_THREADS=1 python tools/train_prose.py
"""

import torch
from safetensors.torch import save_model

from tested_transformer.data.prose import python_prose
from tested_transformer.experiments.ch13_prose import (
    SHIPPED,
    SHIPPED_SIZES,
    measure_prose,
    prose_config,
    prose_ids,
    train_prose,
    train_tokenizer,
)
from tested_transformer.models.language_model import LanguageModel

STEPS = 1200


def main() -> None:
    """Train, store, and say how good it is."""
    learned, held_out = python_prose()
    tokenizer = train_tokenizer(learned)
    torch.manual_seed(0)
    model = LanguageModel(prose_config(**SHIPPED_SIZES))
    losses = train_prose(model, prose_ids(learned, tokenizer), 0, STEPS)
    loss = measure_prose(model.eval(), prose_ids(held_out, tokenizer))
    print(f"loss of the last step {losses[-1]:.2f}, held out {loss:.3f} nats per token")
    SHIPPED.mkdir(exist_ok=True)
    tokenizer.save(str(SHIPPED / "tokenizer.json"))
    save_model(model, str(SHIPPED / "model.safetensors"))


if __name__ == "__main__":
    main()
