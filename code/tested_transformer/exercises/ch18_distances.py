"""Exercises of chapter 18: ALiBi with one number per key, how far back a text in segments reaches, memory tokens."""

from __future__ import annotations

import numpy as np
import torch

from ..specs.compare import Problem, compare
from ..specs.mistakes import mistake, mistakes
from ..specs.recurrent_memory.spec import READ_BY_SEGMENTS
from ..specs.spec import SHAPE, Case, Check, Run, Spec

# --- ALiBi with one number per key ----------------------------------------------------------------


def bias_by_key(length, num_heads):
    """The slope times the position, less that of the last key."""
    slopes = 2.0 ** (-8 / num_heads * torch.arange(1, num_heads + 1))  # H
    return slopes[:, None, None] * (torch.arange(length) - (length - 1))  # H 1 L


def _bias_reference(length: int, num_heads: int) -> np.ndarray:
    """Head by head, key by key."""
    bias = np.empty((num_heads, 1, length))
    for head in range(num_heads):
        for key in range(length):
            bias[head, 0, key] = -(2.0 ** (-8 * (head + 1) / num_heads)) * (length - 1 - key)
    return bias


@mistake(
    "a bias of the key that falls",
    rejected_by="attention weights are ALiBi's",
    symptom="Of two keys with equal dot products, the more distant one gets more weight.",
    cause="The distance falls as the key's position grows, so what is added for the key has to rise with it.",
)
def falls(length, num_heads):
    """The distance to the last key, added."""
    return -bias_by_key(length, num_heads)


@mistake(
    "a bias of the key that counts from the first key",
    rejected_by="the last key gets 0",
    symptom="Attention weights are right; the numbers in the scores grow with the length of the text.",
    cause="The constant is free under a softmax, and was asked to make the last key's bias 0.",
)
def from_the_first(length, num_heads):
    """The slope times the position."""
    bias = bias_by_key(length, num_heads)
    return bias - bias[..., :1]


@mistake(
    "a bias of the key with one slope for all heads",
    rejected_by="attention weights are ALiBi's",
    symptom="Every head forgets at the same rate.",
    cause="Each head has a slope of its own.",
)
def one_slope(length, num_heads):
    """The first head's."""
    return bias_by_key(length, num_heads)[:1].expand(num_heads, 1, length)


def _bias_cases(rng: np.random.Generator) -> list[Case]:
    sizes = [(3, 2), (1, 1), (5, 4), (8, 1), (12, 8), (30, 16), (int(rng.integers(6, 25)), 4)]
    return [
        Case(f"{length} tokens, {heads} heads", {"length": length, "num_heads": heads}, torch.float32)
        for length, heads in sizes
    ]  # fmt: skip


def _causal_weights(bias: np.ndarray) -> np.ndarray:
    """Attention weights under a causal mask where all dot products are equal."""
    length = bias.shape[-1]
    scores = np.where(np.tri(length, dtype=bool), bias, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def _weights_of_alibi(run: Run, case: Case) -> Problem | None:
    """A score that is off by e at most changes a weight by a factor of exp(2 e) at most."""
    length, num_heads = case.arguments["length"], case.arguments["num_heads"]
    slopes = 2.0 ** (-8 / num_heads * np.arange(1, num_heads + 1))
    ids = np.arange(length)
    wanted = _causal_weights(-slopes[:, None, None] * np.abs(ids[:, None] - ids))
    off = (
        4 * float(np.finfo(np.float32).eps) * length
    )  # 2^x, its exponent, a product; slopes are below 1
    got = _causal_weights(run.value(case))
    return compare(wanted, got, float(np.expm1(2 * off)), "causal attention weights")


def _last_is_zero(run: Run, case: Case) -> Problem | None:
    got = run.value(case)[..., -1]
    return compare(np.zeros_like(got), got, 0.0, "the bias of the last key")


BIAS_BY_KEY = Spec(
    name="ch18.bias_by_key",
    statement="bias_by_key(length, num_heads): a bias (H, 1, L) that does not depend on the query. Under a causal mask it "
    "gives the attention weights of ALiBi with the slopes 2^(-8/H), 2^(-16/H), ..., 2^-8, H = num_heads a power of two. "
    "The bias of the last key is 0. float32",
    required=("length", "num_heads"),
    reference=_bias_reference,
    baseline=bias_by_key,
    differentiable=False,
    usual=(SHAPE,),
    cases=_bias_cases,
    checks=(
        Check(
            "attention weights are ALiBi's",
            "-m (p - s) = m s - m p, and m p is the same for all keys of the query at p.",
            _weights_of_alibi,
        ),
        Check("the last key gets 0", "Choose the constant so that it does.", _last_is_zero),
    ),
    mutants=mistakes(falls, from_the_first, one_slope),
    chapter=18,
    points=1,
)

# --- How far back a text in segments reaches ------------------------------------------------------


def oldest_token(position, segment_length, memory_length, num_layers):
    """Layer by layer: to the beginning of the segment, and a memory farther back."""
    for _ in range(num_layers):
        first = position - position % segment_length
        position = max(first - memory_length, 0)
    return position


def _oldest_reference(
    position: int, segment_length: int, memory_length: int, num_layers: int
) -> np.ndarray:
    """Token by token: what each output depends on, as sets."""
    reach = {p: {p} for p in range(position + 1)}
    for _ in range(num_layers):
        attended = {
            p: range(max(p // segment_length * segment_length - memory_length, 0), p + 1)
            for p in reach
        }
        reach = {p: set().union(*(reach[s] for s in attended[p])) for p in reach}
    return np.asarray(min(reach[position]))


@mistake(
    "a memory counted back from the token",
    rejected_by="one layer reaches a memory before the segment",
    symptom="Less is promised than the layer reads: the tokens of the segment before the query are left out.",
    cause="The memory ends where the segment begins, not at the query.",
)
def from_the_token(position, segment_length, memory_length, num_layers):
    """As if it were a window."""
    return max(position - num_layers * memory_length, 0)


@mistake(
    "M tokens for each layer",
    rejected_by="equals the reference",
    symptom="Right where M is a multiple of the segment's length, too little elsewhere.",
    cause="A state in the memory attended to its own segment from the beginning, and to the memory before that.",
)
def memory_times_layers(position, segment_length, memory_length, num_layers):
    """N M tokens before the segment."""
    first = position // segment_length * segment_length
    return max(first - num_layers * memory_length, 0)


@mistake(
    "a reach below 0",
    rejected_by="nothing comes before token 0",
    symptom="A negative position, which Python would count from the end.",
    cause="The text begins at 0, however long the memory is.",
)
def below_zero(position, segment_length, memory_length, num_layers):
    """Without an end."""
    for _ in range(num_layers):
        position = position // segment_length * segment_length - memory_length
    return position


def _oldest_cases(rng: np.random.Generator) -> list[Case]:
    names = ("position", "segment_length", "memory_length", "num_layers")
    sizes = [
        (13, 5, 4, 1), (0, 5, 5, 1), (3, 5, 5, 2), (22, 4, 4, 3), (22, 4, 2, 3), (22, 4, 1, 3), (30, 4, 6, 3),
        (19, 5, 14, 1), (11, 3, 0, 4), (17, 1, 2, 3),
    ]  # fmt: skip
    sizes += [
        tuple(int(rng.integers(low, high)) for low, high in ((8, 40), (2, 7), (1, 9), (1, 5)))
        for _ in range(4)
    ]
    return [Case(f"position {s[0]}, segments of {s[1]}, a memory of {s[2]}, {s[3]} layers",
                 dict(zip(names, s, strict=True))) for s in sizes]  # fmt: skip


def _one_layer(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    wanted = max(a["position"] // a["segment_length"] * a["segment_length"] - a["memory_length"], 0)
    return compare(
        np.asarray(wanted), run.value(case, num_layers=1), 0.0, "with one layer, the oldest token"
    )


def _not_negative(run: Run, case: Case) -> Problem | None:
    got = run.value(case)
    return None if got >= 0 else Problem("a position of at least 0", str(int(got)))


OLDEST_TOKEN = Spec(
    name="ch18.oldest_token",
    statement="oldest_token(position, segment_length, memory_length, num_layers): the position of the oldest token on which "
    "the output at `position` can depend. Segments begin at multiples of segment_length; in each layer a query attends to its "
    "own segment up to itself, and to the memory_length tokens before the segment. An integer",
    required=("position", "segment_length", "memory_length", "num_layers"),
    reference=_oldest_reference,
    differentiable=False,
    cases=_oldest_cases,
    checks=(
        Check(
            "nothing comes before token 0", "The first token of the text is token 0.", _not_negative
        ),
        Check(
            "one layer reaches a memory before the segment",
            "The memory ends where the segment of the query begins.",
            _one_layer,
        ),
    ),
    mutants=mistakes(from_the_token, memory_times_layers, below_zero),
    chapter=18,
    points=1,
)

# --- Memory tokens --------------------------------------------------------------------------------

BY_SEGMENTS = READ_BY_SEGMENTS.narrowed(
    lambda case: not case.is_empty and "backprop_segments" not in case.arguments,
    name="ch18.by_segments",
    statement="by_segments(body, x, memory, *, segment_length) -> (outputs, memory). x (B, L, D) is split into segments, the "
    "last of which may be shorter. body gets the memory (B, M, D), the segment and the memory once more, one after the "
    "other; its outputs for the segment are the outputs, those for the second copy are the memory for the next segment. "
    "-> (B, L, D), (B, M, D)",
    chapter=18,
    points=2,
)

EXERCISES = (BIAS_BY_KEY, OLDEST_TOKEN, BY_SEGMENTS)
