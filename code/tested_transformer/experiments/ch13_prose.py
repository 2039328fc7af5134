"""A small language model of English prose: what Python's own reference says, in 512 tokens (chapter 13)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from safetensors.torch import load_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn

from ..models.language_model import LanguageModel, LanguageModelConfig
from ..training.losses import next_token_loss
from .ch13_counting import GPT2

SHIPPED = Path(__file__).parents[1] / "data" / "trained" / "prose"
VOCAB, LENGTH = 512, 64  # tokens in the vocabulary, tokens of a training sequence
SHIPPED_SIZES = {"d_model": 96, "num_heads": 6, "num_layers": 3, "dropout": 0.1}
END = "<|endoftext|>"  # GPT-2's one special token, after each paragraph


def train_tokenizer(paragraphs: list[str]) -> Tokenizer:
    """Byte-level BPE as GPT-2 has it, with 255 merges: 256 bytes and the end of a text beside them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(paragraphs, trainer)
    return tokenizer


def prose_ids(paragraphs: list[str], tokenizer: Tokenizer) -> Int[Tensor, " N"]:
    """All paragraphs in one row, END after each."""
    return torch.tensor(tokenizer.encode("".join(text + END for text in paragraphs)).ids)


def prose_config(**changes: Any) -> LanguageModelConfig:
    """A GPT-2 of two layers, or what the changes make of it."""
    return LanguageModelConfig(VOCAB, **{"max_length": LENGTH} | GPT2 | changes)


def train_prose(
    model: nn.Module, ids: Int[Tensor, " N"], seed: int, steps: int, *, lr: float = 0.003
) -> list[float]:
    """Train with Adam on 32 random pieces of the text in every step; return the losses.

    The learning rate rises to `lr` in the first 30 % of the steps and falls to 0 by a cosine.
    """
    rng = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps)
    losses = []
    for _ in range(steps):
        starts = torch.randint(len(ids) - LENGTH, (32, 1), generator=rng)
        rows = ids[starts + torch.arange(LENGTH)]  # B L
        loss = next_token_loss(model(rows), rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def measure_prose(model: nn.Module, ids: Int[Tensor, " N"]) -> float:
    """The loss per token of a text, cut into pieces of LENGTH tokens, each predicted from its own start."""
    rows = ids[: len(ids) // LENGTH * LENGTH].view(-1, LENGTH)  # N L
    return next_token_loss(model(rows), rows).item()


def load_prose_model() -> tuple[LanguageModel, Tokenizer]:
    """The trained model that comes with the package, in eval mode, and its tokenizer.

    tools/train_prose.py made both.
    """
    model = LanguageModel(prose_config(**SHIPPED_SIZES))
    load_model(model, SHIPPED / "model.safetensors")
    return model.eval(), Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))
