"""Train the draft model of chapter 16, a small partner of the prose model, and store it in the package.

It reads the same text in the same tokens. About half a minute of one processor.

Usage: OMP_NUM_THREADS=1 python tools/train_prose_draft.py
"""

import torch
from safetensors.torch import save_model

from tested_transformer.data.prose import python_prose
from tested_transformer.experiments.ch13_prose import (
    load_prose_model,
    measure_prose,
    prose_config,
    prose_ids,
    train_prose,
)
from tested_transformer.experiments.ch16_speculative import DRAFT_SIZES, SHIPPED
from tested_transformer.models.language_model import LanguageModel

STEPS = 400


def main() -> None:
    """Train, store, and say how good it is."""
    learned, held_out = python_prose()
    _, tokenizer = load_prose_model()
    torch.manual_seed(0)
    model = LanguageModel(prose_config(**DRAFT_SIZES))
    train_prose(model, prose_ids(learned, tokenizer), 0, STEPS, lr=0.01)
    loss = measure_prose(model.eval(), prose_ids(held_out, tokenizer))
    print(f"held out {loss:.3f} nats per token")
    SHIPPED.mkdir(exist_ok=True)
    save_model(model, str(SHIPPED / "model.safetensors"))


if __name__ == "__main__":
    main()
