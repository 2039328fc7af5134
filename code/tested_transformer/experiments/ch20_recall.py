"""How many pairs a d x d matrix holds: written and read without training, and by small trained models (chapter 20)."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from ..functional.attention import attention
from ..mixers.delta_rule import chunked_delta_rule, recurrent_delta_rule
from ..mixers.linear_attention import chunked_linear_attention
from ..mixers.retention import chunked_retention, gated_log_decay, recurrent_retention

# --- Without training: random keys of norm 1 ------------------------------------------------------

MEMORIES = ("linear", "decayed", "delta", "least squares", "softmax")
DECAY, SHARPNESS = 0.97, 60.0  # of "decayed", and the factor of the scores of "softmax"


def random_pairs(
    trials: int, pairs: int, d: int, rng: torch.Generator
) -> tuple[Float[Tensor, "T 1 n d"], Float[Tensor, "T 1 n d"]]:
    """Keys and values of norm 1 in random directions, in float64."""
    sampled = torch.randn(2, trials, 1, pairs, d, generator=rng, dtype=torch.float64)
    keys, values = functional.normalize(sampled, dim=-1)
    return keys, values


def read_back(
    memory: str, keys: Float[Tensor, "T 1 n d"], values: Float[Tensor, "T 1 n d"]
) -> Float[Tensor, "T 1 n d"]:
    """Write all pairs in order into one matrix (softmax keeps them all), then read with each key."""
    ones = keys.new_ones(keys.shape[:3])
    if memory == "softmax":
        return attention(keys, keys, values, scale=SHARPNESS)
    if memory == "least squares":
        return keys @ torch.linalg.pinv(keys) @ values
    if memory == "delta":
        _, state = recurrent_delta_rule(keys, keys, values, ones)
    else:
        logarithm = math.log(DECAY) if memory == "decayed" else 0.0
        _, state = recurrent_retention(keys, keys, values, logarithm * ones)
    return keys @ state


def read_errors(found: Tensor, values: Tensor) -> Float[Tensor, " n"]:
    """Mean squared error of each pair, the oldest first; the values have norm 1."""
    return (found - values).square().sum(-1).mean((0, 1))


def recalled(found: Tensor, values: Tensor) -> float:
    """Share of pairs whose reading is closest to the right one of the n values."""
    nearest = (found @ values.mT).argmax(-1)  # T 1 n
    return (nearest == torch.arange(values.shape[2])).double().mean().item()


def expected_errors(memory: str, pairs: int, d: int) -> Float[Tensor, " n"]:
    """The mean of the squared errors over random keys and values, the oldest pair first.

    Linear: each of the other pairs adds 1 / d, the mean of (k_i . k_j)^2. Decayed: with weights of decay^age, and
    the pair's own is missing 1 - decay^age. Delta: a later write keeps q = 1 - 1/d of what a key's reading was,
    on average; see the derivation in the tests. Least squares: exact up to d pairs, then 1 - d / n.
    """
    age = torch.arange(pairs, dtype=torch.float64).flip(0)  # writes after each pair
    if memory == "linear":
        return torch.full_like(age, (pairs - 1) / d)
    if memory == "decayed":
        weights = DECAY**age
        others = weights.square().sum() - weights.square()
        return (1 - weights).square() + others / d
    if memory == "least squares":
        return torch.full_like(age, max(0.0, 1 - d / pairs))
    if memory != "delta":
        raise ValueError(f"memory: expected one of {MEMORIES[:4]}, got {memory!r}")
    q, before = 1 - 1 / d, pairs - 1 - age  # writes before each pair
    return 2 * (1 - q**age) - q**before * (q**age - _squared_overlap(pairs, d).flip(0))


def _squared_overlap(pairs: int, d: int) -> Float[Tensor, " n"]:
    """E[(k . M k)^2] where M erases 0, 1, 2, ... random keys: what a key still finds of itself."""
    found, kept, overlaps = 1.0, 1.0, []
    for _ in range(pairs):
        overlaps.append(found)
        found = found * (1 - 2 / d + 2 / (d * (d + 2))) + kept / (d * (d + 2))
        kept *= 1 - 1 / d
    return torch.tensor(overlaps, dtype=torch.float64)


# --- Trained: one layer that writes pairs, then reads them ------------------------------------------

MIXERS = (
    "softmax attention", "linear attention", "no feature map", "gated retention", "delta rule",
    "gated delta rule",
)  # fmt: skip
NUM_KEYS, NUM_VALUES, D_MODEL, D_HEAD = 64, 64, 64, 16
COUNTS = (4, 8, 16, 24, 32, 48)  # of pairs
STEPS, BATCH, RATE = 800, 64, 1e-2


def recall_task(
    count: int, pairs: int, rng: torch.Generator, *, rewrites: bool = False
) -> tuple[Int[Tensor, "B n"], Int[Tensor, "B n"], Int[Tensor, "B n"]]:
    """Sample pairs of a key and a value to write, and for the key of each pair the value that holds at the end.

    Keys differ from each other. With `rewrites` the second half of the pairs writes other values under the keys
    of the first half, and a key's newest value holds.
    """
    different = pairs - pairs // 2 if rewrites else pairs
    keys = torch.rand(count, NUM_KEYS, generator=rng).argsort(-1)[:, :different]
    if rewrites:
        again = torch.rand(count, different, generator=rng).argsort(-1)[:, : pairs // 2]
        keys = torch.cat((keys, keys.gather(1, again)), 1)
    values = torch.randint(NUM_VALUES, (count, pairs), generator=rng)
    same = keys[:, :, None] == keys[:, None]  # B n n
    newest = pairs - 1 - same.flip(-1).int().argmax(-1)
    return keys, values, values.gather(1, newest)


class RecallModel(nn.Module):
    """One head of a mixer over written pairs, read by their keys; logits of the values.

    A pair is one token, the sum of the embeddings of its key and its value, so that nothing has to be bound
    together first. The parameters are the same for every mixer; it may leave some of them unused.
    """

    def __init__(self, mixer: str) -> None:
        super().__init__()
        self.mixer = mixer
        self.keys = nn.Embedding(NUM_KEYS, D_MODEL)
        self.values = nn.Embedding(NUM_VALUES, D_MODEL)
        self.query = nn.Linear(D_MODEL, D_HEAD, bias=False)
        self.key = nn.Linear(D_MODEL, D_HEAD, bias=False)
        self.value = nn.Linear(D_MODEL, D_HEAD, bias=False)
        self.gates = nn.Linear(D_MODEL, 2)  # logits of beta and of the decay
        self.log_factor = nn.Parameter(
            torch.tensor(2.0)
        )  # of queries and keys, before a softmax or features
        self.recency = nn.Parameter(torch.tensor(0.0))  # of softmax attention: a bias per position
        self.norm, self.output = nn.RMSNorm(D_HEAD), nn.Linear(D_HEAD, NUM_VALUES)

    def forward(
        self, keys: Int[Tensor, "B n"], values: Int[Tensor, "B n"]
    ) -> Float[Tensor, "B n V"]:
        """Write all pairs, then read with the key of each."""
        asked = self.keys(keys)  # B n D
        written = asked + self.values(values)
        q, k = (
            functional.normalize(layer(x), dim=-1)[:, None]  # B 1 n d
            for layer, x in ((self.query, asked), (self.key, written))
        )
        read = self.read(q, k, self.value(written)[:, None], self.gates(written).mT)
        return self.output(self.norm(read[:, 0]))

    def read(self, q: Tensor, k: Tensor, v: Tensor, gates: Tensor) -> Tensor:
        """What the mixer returns for the queries after all pairs are written, (B, 1, n, d)."""
        factor = self.log_factor.exp()
        if self.mixer == "softmax attention":
            position = torch.arange(k.shape[2], dtype=k.dtype)
            return attention(factor * q, k, v, scale=1.0, bias=self.recency * position[None])
        if self.mixer == "linear attention":
            _, state = chunked_linear_attention(k, factor * k, v)
            none = torch.zeros(
                q.shape[0], q.shape[2], dtype=torch.bool
            )  # queries alone, nothing is written
            return chunked_linear_attention(factor * q, k, v, real=none, state=state)[0]
        beta, log_decay = gates[:, :1].sigmoid(), gated_log_decay(gates[:, 1:])  # B 1 n
        if self.mixer == "delta rule":
            return q @ chunked_delta_rule(k, k, v, beta)[1]
        if self.mixer == "gated delta rule":
            return q @ chunked_delta_rule(k, k, v, beta, log_decay)[1]
        log_decay = log_decay if self.mixer == "gated retention" else 0 * log_decay
        return q @ chunked_retention(k, k, v, log_decay)[1]


def train_recall_model(model: RecallModel, seed: int, steps: int, *, rewrites: bool) -> None:
    """Train with Adam on new sequences of every step, each step with another number of pairs."""
    rng = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    for step in range(steps):
        pairs = COUNTS[step % len(COUNTS)]
        keys, values, answers = recall_task(BATCH, pairs, rng, rewrites=rewrites)
        loss = functional.cross_entropy(model(keys, values).flatten(0, 1), answers.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


@torch.no_grad()
def recall_accuracy(model: RecallModel, pairs: int, *, rewrites: bool, count: int = 500) -> float:
    """Share of right values on `count` sequences that no training has seen."""
    rng = torch.Generator().manual_seed(10**6)
    keys, values, answers = recall_task(count, pairs, rng, rewrites=rewrites)
    return (model(keys, values).argmax(-1) == answers).double().mean().item()
