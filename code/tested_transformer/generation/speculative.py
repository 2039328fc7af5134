"""Speculative decoding: a draft model proposes tokens, one call of the target model checks them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..bounds import AtLeast, Below, NonNegativeInt, PositiveInt, TokenID
from ..errors import argument_error
from ..layers.cache import DecoderCache
from ..models.language_model import LanguageModel
from ..shapes import checked
from ..special_tokens import EOS
from .decoding_state import CausalModel
from .sampling import GREEDY, Sampling

__all__ = [
    "CachedLogits",
    "Speculated",
    "accept",
    "residual",
    "speculative_generate",
    "speculative_round",
]

NextLogits = Callable[[list[int], int], Tensor]  # IDs, count -> logits (count, V)
Choose = Callable[[Tensor], int]  # probabilities (V) -> a token: the only source of chance


@checked
def residual(p: Float[Tensor, " V"], q: Float[Tensor, " V"]) -> Float[Tensor, " V"]:
    """The distribution of the token that replaces a rejected one: max(0, p - q), divided by its sum.

    Shapes: (V), (V) -> (V).
    Raises: TypeError or ValueError that name the argument.
    Source: Leviathan et al. 2023, section 2.3.

    >>> residual(torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.5, 0.25])).tolist()
    [1.0, 0.0, 0.0]
    """
    missing = (p - q).clamp(min=0)
    total = missing.sum()
    return missing / total if total > 0 else p  # p equals q up to rounding


@checked(nonempty="V")
def accept(
    draft_ids: Annotated[Int[Tensor, " K"], AtLeast(0), Below("q.shape.1")],
    q: Float[Tensor, "K V"],
    p: Float[Tensor, "N V"],
    choose: Choose,
) -> list[int]:
    """Check drafted tokens by speculative sampling; return those accepted and one token more.

    Row n of q is the distribution that draft_ids[n] was sampled from, row n of p the target's at the
    same position; the last row of p follows the whole draft. `choose` returns index i with probability
    probabilities[i], independently at each call. Without any other randomness, all that can happen
    may be enumerated.

    Shapes: draft_ids (K), q (K, V), p (K + 1, V) -> 1 to K + 1 tokens.
    Raises: TypeError or ValueError that name the argument.
    Source: Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2.
    """
    check_rows(q, p)
    tokens = draft_ids.tolist()
    for n, token in enumerate(tokens):
        accepted = (p[n, token] / q[n, token]).clamp(max=1)
        if not choose(torch.stack([1 - accepted, accepted])):
            return [*tokens[:n], choose(residual(p[n], q[n]))]
    return [*tokens, choose(p[-1])]


def check_rows(q: Tensor, p: Tensor) -> None:
    """Raise unless p has one row more than q."""
    if len(p) != len(q) + 1:
        wanted = f"{len(q) + 1} rows, one more than q has"
        raise argument_error(ValueError, "p", f"{len(p)}", wanted)


@checked
def speculative_round(
    target: NextLogits,
    draft: NextLogits,
    prefix_ids: list[int],
    length: NonNegativeInt,
    probabilities: Callable[[Tensor], Tensor],
    choose: Choose,
) -> list[int]:
    """Draft `length` tokens, check them with one call of the target, return 1 to length + 1 tokens.

    target and draft map token IDs and a count to the logits (count, V) that follow each of the last
    `count` prefixes. `probabilities` makes the distributions (count, V) that are sampled from, for both:
    a temperature, a filter.

    Raises: TypeError or ValueError that name the argument.
    Source: Leviathan et al. 2023, algorithm 1.
    """
    ids, q = list(prefix_ids), []
    for _ in range(length):
        q.append(probabilities(draft(ids, 1)))  # 1 V
        ids.append(choose(q[-1][0]))
    p = probabilities(target(ids, length + 1))  # K+1 V
    drafted = torch.tensor(ids[len(prefix_ids) :], dtype=torch.long, device=p.device)
    return accept(drafted, torch.cat(q) if q else p[:0], p, choose)


class CachedLogits:
    """A language model as a function of token IDs, with a cache: what it has read is not computed again.

    Called with token IDs and a count, it returns the logits that follow each of the last `count`
    prefixes. What it has read and the IDs no longer have, rejected tokens, leaves the cache first. The
    cache keeps every token, also for a model with a window: what is left behind a window cannot come
    back after a rejection.

    calls: how often the model was called.

    Shapes: L token IDs -> (count, V).
    Raises: TypeError or ValueError that name the argument.
    Source: chapter 16.
    """

    @checked
    def __init__(self, model: CausalModel) -> None:
        self.model, self.calls = model, 0
        self.cache = DecoderCache(len(model.layers))
        self.read: list[int] = []

    @torch.no_grad()
    @checked
    def __call__(self, ids: list[int], count: PositiveInt) -> Float[Tensor, "N V"]:
        """The logits that follow each of the last `count` prefixes of the IDs."""
        if count > len(ids):
            raise argument_error(ValueError, "count", count, f"at most the {len(ids)} token IDs")
        kept = min(common_length(self.read, ids), len(ids) - count)
        self.cache.truncate(kept)
        device = next(self.model.parameters()).device
        logits = self.model(torch.tensor([ids[kept:]], device=device), cache=self.cache)[0]
        self.read, self.calls = list(ids), self.calls + 1
        return logits[-count:]


def common_length(one: list[int], other: list[int]) -> int:
    """How many tokens two sequences begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


@dataclass(frozen=True)
class Speculated:
    """New tokens, without the prompt, and how many were drafted and accepted for each call of the target.

    Shapes: tokens (1, N).
    """

    tokens: Int[Tensor, "1 N"]
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]


@torch.no_grad()
@checked(nonempty="L")
def speculative_generate(
    target: CausalModel,
    draft: CausalModel | NextLogits,
    start: Int[Tensor, "1 L"],
    *,
    length: PositiveInt,
    max_new: PositiveInt,
    sampling: Sampling = GREEDY,
    eos: TokenID | None = EOS,
) -> Speculated:
    """Generate as the target model would, with fewer calls of it: `length` tokens are drafted for each.

    The tokens have exactly the distribution of `generate` with the target model and the same sampling;
    at temperature 0 they are the same tokens. The draft is a language model with the same vocabulary, or
    a function of token IDs and a count, such as a table of pairs. One sequence; no repetition penalty.

    Raises: TypeError or ValueError that name the argument.
    Source: Leviathan et al. 2023, section 2; Chen et al. 2023, section 2.
    """
    check_pair(target, draft, sampling)
    drafts = CachedLogits(draft) if isinstance(draft, LanguageModel) else draft
    checks, choose = CachedLogits(target), chooser(sampling)
    prompt = start[0].tolist()
    new, drafted, accepted = [], [], []
    while len(new) < max_new and (not new or new[-1] != eos):
        size = min(length, max_new - len(new) - 1)
        ids = [*prompt, *new]
        tokens = speculative_round(checks, drafts, ids, size, distributions(sampling), choose)
        drafted.append(size)
        accepted.append(len(tokens) - 1)
        new += tokens[: tokens.index(eos) + 1] if eos in tokens else tokens
    return Speculated(torch.tensor([new], device=start.device), tuple(drafted), tuple(accepted))


def distributions(sampling: Sampling) -> Callable[[Tensor], Tensor]:
    """From logits (N, V) to the distributions that are sampled from, in at least float32."""

    def probabilities(logits: Float[Tensor, "N V"]) -> Float[Tensor, "N V"]:
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        shaped = sampling.shape(logits, torch.zeros(len(logits), 1, dtype=torch.long))
        if sampling.temperature == 0:
            return torch.nn.functional.one_hot(shaped.argmax(-1), shaped.shape[-1]).to(shaped)
        return shaped.softmax(-1)

    return probabilities


def chooser(sampling: Sampling) -> Choose:
    """Sample by the generator of a Sampling."""
    return lambda probabilities: int(
        torch.multinomial(probabilities, 1, generator=sampling.generator)
    )


def check_pair(target: LanguageModel, draft: object, sampling: Sampling) -> None:
    """Raise if draft and target have different vocabularies, or the sampling depends on the prefix."""
    if isinstance(draft, LanguageModel) and draft.config.vocab_size != target.config.vocab_size:
        wanted = f"the target's vocabulary of {target.config.vocab_size}"
        raise argument_error(ValueError, "draft", f"one of {draft.config.vocab_size}", wanted)
    if sampling.repetition_penalty != 1.0:
        wanted = "a repetition penalty of 1"
        raise argument_error(ValueError, "sampling", f"{sampling.repetition_penalty}", wanted)
