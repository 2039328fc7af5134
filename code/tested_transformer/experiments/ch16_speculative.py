"""How many tokens one call of the prose model gives when its tokens are drafted (chapter 16)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path

import torch
from safetensors.torch import load_model
from torch import Tensor

from ..analysis.every_outcome import every_outcome
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


def table_model(vocab: int, longest: int, *, seed: int) -> Callable[[list[int], int], Tensor]:
    """A model with random logits after each prefix of at most `longest` tokens, and nothing to compute."""
    generator = torch.Generator().manual_seed(seed)
    prefixes = [ids for n in range(longest + 1) for ids in product(range(vocab), repeat=n)]
    rows = {ids: torch.randn(vocab, generator=generator, dtype=torch.float64) for ids in prefixes}

    def logits(ids: list[int], count: int) -> Tensor:
        ends = range(len(ids) - count + 1, len(ids) + 1)
        return torch.stack([rows[tuple(ids[:end])] for end in ends])  # count V

    return logits


def round_distribution(
    one_round: Callable[..., list[int]],
    target: Callable[[list[int], int], Tensor],
    draft: Callable[[list[int], int], Tensor],
    probabilities: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """The distribution of the next three tokens, by a round with two drafted ones, and by the target.

    Where the round gives fewer than three tokens, the target's distribution of the others is taken.

    Returns: two tensors of shape (V, V, V).
    """
    first = probabilities(target([], 1))[0]  # V
    wanted = torch.zeros((len(first),) * 3, dtype=first.dtype)
    for ids in product(range(len(first)), repeat=2):
        after_one, after_two = probabilities(target(list(ids), 2))
        wanted[ids] = first[ids[0]] * after_one[ids[1]] * after_two
    found = torch.zeros_like(wanted)
    for tokens, chance in every_outcome(
        lambda choose: one_round(target, draft, [], 2, probabilities, choose)
    ):
        rest = wanted[tuple(tokens)]
        possible = float(rest.sum()) > 0  # or else the target never begins with these tokens
        found[tuple(tokens)] += chance * (rest / rest.sum() if possible else 1 / rest.numel())
    return found, wanted


def expected_tokens(acceptance: float, length: int) -> float:
    """Tokens per call if every draft token is accepted with this probability, independently.

    Source: Leviathan et al. 2023, equation 1.
    """
    return sum(acceptance**n for n in range(length + 1))
