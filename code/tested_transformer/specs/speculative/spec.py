"""The Specs of speculative decoding: one round by enumeration, and the cache that forgets rejected tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import reference
from ...analysis.every_outcome import every_outcome
from ...errors import argument_error
from ...generation.sampling import Sampling
from ...generation.speculative import distributions
from ...models.language_model import LanguageModel, LanguageModelConfig
from ...reference.speculative import row_of
from ..compare import Problem, compare
from ..draw import Draw
from ..generation.spec import tiny_model
from ..mistakes import mistakes_in
from ..spec import EQUAL, Case, Check, Run, Spec
from . import mutants

# --- One round ------------------------------------------------------------------------------------


class Table:
    """A model whose logits after each prefix stand in a table; it counts its calls."""

    def __init__(self, logits: Tensor, prefix_ids: list[int]) -> None:
        self.logits, self.prefix_ids, self.calls = logits, prefix_ids, 0

    def __call__(self, ids: Any, count: int) -> Tensor:
        """The logits (count, V) after each of the last `count` prefixes of the IDs."""
        start, ids = len(self.prefix_ids), [int(token) for token in ids]
        if ids[:start] != self.prefix_ids or not 1 <= count <= len(ids) - start + 1:
            raise argument_error(
                ValueError, "ids", f"{ids}, count {count}", f"{self.prefix_ids} and new"
            )
        self.calls += 1
        vocab, ends = self.logits.shape[1], range(len(ids) - count + 1, len(ids) + 1)
        return self.logits[[row_of(ids[start:end], vocab) for end in ends]]


def _remembered(probabilities: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The same function; the hundreds of calls of an enumeration are about a few rows."""
    known: dict[tuple, Tensor] = {}

    def remembered(logits: Tensor) -> Tensor:
        key = logits.dtype, logits.shape, *logits.flatten().tolist()
        if key not in known:
            known[key] = probabilities(logits)
        return known[key].clone()

    return remembered


def _build_round(candidate: Any, arguments: dict[str, Any]) -> Callable[..., np.ndarray | None]:
    """The candidate as a function of the tables: its output's distribution, mean length, calls."""

    def call(target_logits, draft_logits, prefix_ids, length, temperature, top_k):
        probabilities = _remembered(distributions(Sampling(temperature=temperature, top_k=top_k)))
        target, draft = (Table(each, list(prefix_ids)) for each in (target_logits, draft_logits))

        def run(choose):
            target.calls = 0
            given = target, draft, list(prefix_ids), length, probabilities, choose
            tokens = candidate(*given)
            return tokens, target.calls

        found = list(every_outcome(run))
        if any(tokens is None for (tokens, _), _ in found):
            return None  # an exercise not written yet
        every = [
            (tuple(int(t) for t in tokens), calls, chance) for (tokens, calls), chance in found
        ]
        return _summary(every, target_logits.double().numpy(), length, (temperature, top_k))

    return call


def _summary(every, logits: np.ndarray, length: int, choices: tuple) -> np.ndarray:
    """The probability of each sequence of length + 1 tokens, the mean number of tokens, and of calls.

    Where a round gives fewer tokens, the target's own distribution gives the others.
    """
    vocab = logits.shape[1]
    found = np.zeros((vocab,) * (length + 1))
    tokens_and_calls = np.zeros(2)
    for tokens, calls, chance in every:
        if not 1 <= len(tokens) <= length + 1:
            raise argument_error(ValueError, "tokens", f"{len(tokens)}", f"1 to {length + 1}")
        found[tokens] += chance * _rest(logits, tokens, length, choices)
        tokens_and_calls += chance * np.array([len(tokens), calls])
    return np.concatenate([found.ravel(), tokens_and_calls])


def _rest(logits: np.ndarray, tokens: tuple[int, ...], length: int, choices: tuple) -> np.ndarray:
    """The target's distribution of what follows the tokens, up to length + 1 in all."""
    vocab, missing = logits.shape[1], length + 1 - len(tokens)
    if not missing:
        return np.ones(())
    p = reference.sampled_from(logits[row_of(tokens, vocab)], *choices).astype(float)
    later = [_rest(logits, (*tokens, token), length, choices) for token in range(vocab)]
    return np.stack([part * rest for part, rest in zip(p, later, strict=True)])


def _expected(target_logits, draft_logits, prefix_ids, length, temperature, top_k) -> np.ndarray:
    """The target's distribution, the mean number of tokens in a round, and one call."""
    choices = (length, temperature, top_k)
    wanted = reference.target_distribution(target_logits, *choices)
    tokens = reference.mean_tokens(target_logits, draft_logits, *choices)
    return np.concatenate([wanted.ravel(), [tokens, 1.0]])


def _rounding(case: Case) -> float:
    """A softmax of V terms is off by (V + 4 + largest logit) eps, relative; a position takes two of them.

    The probability of accepting and that of each replacement are then off by at most 8 times that in
    all: the residual's own error is divided by the probability of a rejection, and multiplied by it
    again. There are length + 1 positions, and as many in the mean number of tokens.
    """
    a = case.arguments
    largest = max(float(np.abs(a[name]).max()) for name in ("target_logits", "draft_logits"))
    terms = a["target_logits"].shape[1] + 4 + largest / (a["temperature"] or 1.0)
    return 8 * (a["length"] + 1) ** 2 * terms * torch.finfo(case.dtype).eps


def _round_case(label: str, rng: np.random.Generator, vocab: int, length: int, **changes) -> Case:
    """Tables by chance; `like`: the draft's logits are the target's with this much noise."""
    temperature, top_k = changes.get("temperature", 1.0), changes.get("top_k", vocab)
    rows = [sum(vocab**n for n in range(size)) for size in (length + 1, max(length, 1))]
    target, draft = (1.5 * rng.normal(size=(count, vocab)) for count in rows)
    if "like" in changes:
        draft = target[: len(draft)] + changes["like"] * draft
    arguments = {
        "target_logits": target, "draft_logits": _with_end(draft, target, vocab),
        "prefix_ids": changes.get("prefix_ids", (2, 0)), "length": length,
        "temperature": temperature, "top_k": top_k,
    }  # fmt: skip
    return Case(label, arguments, changes.get("dtype", torch.float64))


def _with_end(draft: np.ndarray, target: np.ndarray, vocab: int) -> np.ndarray:
    """The draft's table with rows for whole drafts as well: who asks for them gets an answer."""
    return np.concatenate([draft, -target[len(draft) :]])


def _round_cases(rng: np.random.Generator) -> list[Case]:
    def case(label: str, *sizes: int, **changes: Any) -> Case:
        return _round_case(label, rng, *sizes, **changes)

    return [
        case("one draft token", 3, 1),
        case("two draft tokens", 3, 2),
        case("five tokens in the vocabulary", 5, 2),
        case("three draft tokens, two in the vocabulary", 2, 3),
        case("top-k", 5, 2, top_k=2),
        case("a low temperature", 3, 2, temperature=0.6),
        case("temperature 0", 4, 2, temperature=0.0),
        case("temperature 0, a similar draft", 4, 3, temperature=0.0, like=0.3),
        case("a draft equal to the target", 3, 2, like=0.0),
        case("a draft equal to the target, top-k", 4, 2, like=0.0, top_k=3),
        case("a similar draft", 3, 2, like=0.2),
        case("no draft", 4, 0),
        case("float32", 3, 2, dtype=torch.float32),
        case("float32, top-k", 4, 1, top_k=2, temperature=1.7, dtype=torch.float32),
    ]


def _drawn_round(draw: Draw) -> Case:
    sizes = draw.one_of((3, 1), (3, 2), (2, 3), (5, 1), (4, 2))
    return _round_case(
        "drawn", draw.numbers, *sizes, like=draw.one_of(1.0, 0.2, 4.0),
        temperature=draw.one_of(1.0, 0.0, 0.5, 2.0), top_k=draw.one_of(sizes[0], 2, 1),
        dtype=draw.one_of(torch.float64, torch.float32), prefix_ids=draw.one_of((1,), (0, 1, 1)),
    )  # fmt: skip


def _one_call(run: Run, case: Case) -> Problem | None:
    calls, tolerance = float(run.value(case)[-1]), run.expected(case)[1]
    return compare(np.array(1.0), np.array(calls), tolerance, "the mean number of calls")


def _same_distribution(run: Run, case: Case) -> Problem | None:
    """The distance of two distributions is the probability that has moved from one token to another."""
    expected, tolerance = run.expected(case)
    difference = run.value(case)[:-2] - expected[:-2]
    if np.abs(difference).max() <= tolerance:
        return None
    moved = float(np.abs(difference).sum() / 2)
    return Problem("the target's distribution", f"one at a total variation distance of {moved:.3g}")


def _accepted_whole(run: Run, case: Case) -> Problem | None:
    wanted, tokens = case.arguments["length"] + 1, float(run.value(case)[-2])
    name = "the mean number of tokens in a round"
    return compare(np.array(float(wanted)), np.array(tokens), run.expected(case)[1], name)


def _equal_models(case: Case) -> bool:
    a = case.arguments
    rows = sum(a["target_logits"].shape[1] ** n for n in range(a["length"]))
    return rows > 0 and np.array_equal(a["draft_logits"][:rows], a["target_logits"][:rows])


SPECULATIVE_ROUND = Spec(
    name="speculative_round",
    statement="speculative_round(target, draft, prefix_ids, length, probabilities, choose): the new tokens of "
    "one round of speculative decoding, 1 to length + 1 token IDs. target(ids, count) and draft(ids, count) "
    "return the logits (count, V) that follow each of the last count prefixes of ids; the target is called "
    "once. probabilities(logits) is what is sampled from, for both. All chance is in choose(probabilities), "
    "which returns index i with probability probabilities[i], and the last possible one if they sum to less. A token "
    "x is accepted with probability min(1, p(x)/q(x))",
    required=("target_logits", "draft_logits", "prefix_ids", "length", "temperature", "top_k"),
    reference=_expected,
    differentiable=False,
    slack=_rounding,
    cases=_round_cases,
    combine=_drawn_round,
    num_drawn=4,
    build=_build_round,
    checks=(
        Check(
            "one call of the target",
            "The target is called once for a whole draft, or nothing is won.",
            _one_call,
        ),
        Check(
            "the output has the target's distribution",
            "All that can happen, each with its probability, must sum to what the target would generate.",
            _same_distribution,
        ),
        Check(
            "a draft equal to the target is accepted whole",
            "Where q equals p, min(1, p/q) is 1.",
            _accepted_whole,
            when=_equal_models,
        ),
    ),
    last=(EQUAL,),
    mutants=mistakes_in(mutants, of="speculative_round"),
    chapter=16,
)  # fmt: skip

# --- The cache ------------------------------------------------------------------------------------


def _build_cached(candidate: Any, arguments: dict[str, Any]) -> Callable[..., Tensor | None]:
    """Make it with the model, call it again and again, put the logits together."""

    def call(config: LanguageModelConfig, seed: int, calls: tuple) -> Tensor | None:
        cached = candidate(tiny_model(LanguageModel, config, seed))
        found = [cached(list(ids), count) for ids, count in calls]
        return None if any(each is None for each in found) else torch.cat(found)

    return call


@torch.no_grad()
def uncached(config: LanguageModelConfig, seed: int, calls: tuple) -> Tensor:
    """The model without a cache, asked anew each time."""
    model = tiny_model(LanguageModel, config, seed)
    return torch.cat([model(torch.tensor([ids]))[0, -count:] for ids, count in calls])


def _cached_cases(rng: np.random.Generator) -> list[Case]:
    seed = int(rng.integers(2**31))

    def case(label: str, start: int, rounds: tuple[tuple[int, int], ...], **changes: Any) -> Case:
        """rounds: of each, how many tokens are drafted and how many of them accepted."""
        small = {"d_model": 6, "num_heads": 2, "d_ff": 8, "dropout": 0.2, "max_length": 32}
        config = LanguageModelConfig(11, num_layers=2, **small | changes)
        calls = tuple(_calls(rng, start, rounds))
        return Case(label, {"config": config, "seed": seed, "calls": calls})

    learned = {"positions": "learned", "norm_placement": "pre"}
    return [
        case("one round", 3, ((2, 2),)),
        case("all accepted", 2, ((2, 2), (3, 3), (1, 1)), **learned),
        case("all rejected", 3, ((2, 0), (2, 0)), **learned),
        case("some rejected", 2, ((3, 1), (2, 0), (3, 2)), **learned),
        case("a window", 4, ((3, 1), (3, 0), (2, 1)), window=3),
        case("a prompt of one token", 1, ((1, 0), (4, 2))),
        Case("another text", {
            "config": LanguageModelConfig(11, num_layers=2, d_model=6, num_heads=2, d_ff=8, max_length=32),
            "seed": seed, "calls": (((3, 4, 5, 6), 2), ((3, 7, 5, 6, 8), 2), ((9, 3), 1)),
        }),
    ]  # fmt: skip


def _calls(rng: np.random.Generator, start: int, rounds: tuple) -> Iterator[tuple]:
    """What the target is asked in some rounds of speculative decoding."""
    ids = rng.integers(3, 11, size=start).tolist()
    for drafted, accepted in rounds:
        draft = rng.integers(3, 11, size=drafted).tolist()
        yield (*ids, *draft), drafted + 1
        rejected = draft[accepted] if accepted < drafted else 3
        ids = [*ids, *draft[:accepted], 3 + (rejected - 2) % 8]  # another token


def _rejects(case: Case) -> bool:
    """Whether a later call lacks tokens of an earlier one."""
    every = [ids for ids, _ in case.arguments["calls"]]
    return any(after[: len(before)] != before for before, after in pairwise(every))


CACHED_LOGITS = Spec(
    name="cached_logits",
    statement="A class Cached(model): called with token IDs and a count, it returns the logits (count, V) that "
    "follow each of the last count prefixes of the IDs. What it has read before it need not compute again; "
    "IDs that lack tokens which it has read, such as rejected ones, get what a new model would give them",
    required=("config", "seed", "calls"),
    reference=lambda **arguments: uncached(**arguments).numpy(),
    baseline=uncached,
    differentiable=False,
    cases=_cached_cases,
    build=_build_cached,
    checks=(
        Check(
            "what is accepted stays right",
            "The logits are those of one pass over the IDs.",
            EQUAL.test,
            when=lambda case: not _rejects(case),
        ),
        Check(
            "a rejected token leaves no trace",
            "Keys and values of rejected tokens must leave the cache, in every layer.",
            EQUAL.test,
            when=_rejects,
        ),
    ),
    last=(EQUAL,),
    mutants=mistakes_in(mutants, of="cached_logits"),
    chapter=16,
)
