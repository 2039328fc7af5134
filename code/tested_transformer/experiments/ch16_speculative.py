"""How many tokens one call of the prose model gives when its tokens are drafted (chapter 16)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_model
from torch import Tensor

from ..generation.sampling import Sampling
from ..generation.speculative import CachedLogits, distributions, speculative_generate
from ..models.language_model import LanguageModel
from .ch13_prose import load_prose_model, prose_config

SHIPPED = Path(__file__).parents[1] / "data" / "trained" / "prose_draft"
DRAFT_SIZES = {"d_model": 32, "num_heads": 2, "num_layers": 1, "dropout": 0.0}
PROMPTS = (
    "When a class", "The value of the", "If an object", "This method", "A module is", "Note that",
)  # fmt: skip
DRAFTS = ("a table of pairs", "a small model")


def load_draft_model() -> LanguageModel:
    """The trained draft model that comes with the package; tools/train_prose_draft.py made it."""
    model = LanguageModel(prose_config(**DRAFT_SIZES))
    load_model(model, SHIPPED / "model.safetensors")
    return model.eval()


@cache
def pair_table() -> Tensor:
    """The target's logits after each token alone, (V, V): a draft that is a look-up."""
    model, tokenizer = load_prose_model()
    with torch.no_grad():
        return model(torch.arange(tokenizer.get_vocab_size())[:, None])[:, 0]


def draft_named(name: str) -> Callable[[list[int], int], Tensor]:
    """One of DRAFTS as a function of token IDs and a count."""
    if name == "a table of pairs":
        return lambda ids, count: pair_table()[ids[len(ids) - count :]]
    return CachedLogits(load_draft_model())


def measure_speculation(
    draft: str, length: int, seed: int, *, max_new: int = 40, temperature: float = 1.0
) -> dict[str, float]:
    """Generate a text for each prompt; return the tokens per call of the target, and how often drafts pass.

    accepted: the share of the checked draft tokens that were accepted; overlap: the mean of
    sum(min(p, q)) over the texts, the acceptance rate of Leviathan et al. 2023, definition 3.1.
    """
    model, tokenizer = load_prose_model()
    sampling = Sampling(temperature=temperature, generator=torch.Generator().manual_seed(seed))
    new, calls, accepted, checked, overlaps = 0, 0, 0, 0, []
    for prompt in PROMPTS:
        start = torch.tensor([tokenizer.encode(prompt).ids])
        found = speculative_generate(
            model, draft_named(draft), start, length=length, max_new=max_new,
            sampling=sampling, eos=None,
        )  # fmt: skip
        whole = [
            n for n, size in enumerate(found.drafted) if size == length
        ]  # rounds not cut short
        calls += len(whole)
        new += sum(found.accepted[n] + 1 for n in whole)
        accepted += sum(found.accepted[n] for n in whole)
        checked += sum(min(found.accepted[n] + 1, length) for n in whole)
        ids = torch.cat([start, found.tokens], dim=1)[0].tolist()
        overlaps.append(overlap(ids, start.shape[1], draft, sampling))
    return {
        "tokens_per_call": new / calls, "accepted": accepted / checked,
        "overlap": float(torch.cat(overlaps).mean()), "calls": calls, "tokens": new,
    }  # fmt: skip


def overlap(ids: list[int], start: int, draft: str, sampling: Sampling) -> Tensor:
    """sum(min(p, q)) at each position of a text after its first `start` tokens."""
    probabilities, count = distributions(sampling), len(ids) - start
    p = probabilities(CachedLogits(load_prose_model()[0])(ids, count))
    q = probabilities(draft_named(draft)(ids, count))
    return torch.minimum(p, q).sum(-1)


def expected_tokens(acceptance: float, length: int) -> float:
    """Tokens per call if every draft token is accepted with this probability, independently.

    Source: Leviathan et al. 2023, equation 1.
    """
    return sum(acceptance**n for n in range(length + 1))
