"""Where does the norm go? The stack, the task and the measurements of chapter 7.

`benchmarks/norm_placement.py` runs the whole grid with them, and the chapter one row. Everything is
in float64, so that a run ends alike on every machine.
"""

from __future__ import annotations

import itertools
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from ..data.number_words import TENS, UNITS, german_words
from ..layers.feed_forward import FeedForward
from ..layers.multi_head import MultiHeadAttention
from ..layers.norms import LayerNorm
from ..layers.resi_dual import ResiDual, split_streams
from ..layers.residual import Residual, deepnorm_constants, deepnorm_init

D_MODEL, NUM_HEADS, D_FF = 32, 4, 64
BATCH, STEPS, RATE, WARMUP = 32, 400, 1e-3, 120

# --- The task: read a German number, predict its three digits ---------------------------------------

ASK = ["?1", "?2", "?3"]  # at these three positions the model must predict the three digits
WORDS = ["", *ASK, *UNITS[1:], "eins", "zehn", "elf", "zwölf", "sech", "sieb", *TENS[2:]]
WORDS += ["und", "hundert"]
LENGTH = len(ASK) + 5  # "drei hundert vier und zwanzig"


def morphemes(number: int) -> list[str]:
    """The morphemes of a German number word from 1 to 999: teens are two, tens are one.

    >>> morphemes(324), morphemes(316)
    (['drei', 'hundert', 'vier', 'und', 'zwanzig'], ['drei', 'hundert', 'sech', 'zehn'])
    """
    *words, last = german_words(number, segmentation="coarse")
    teen = last.removesuffix("zehn")
    return [*words, teen, "zehn"] if teen and teen != last else [*words, last]


def task(numbers: Int[Tensor, " N"]) -> tuple[Int[Tensor, "N L"], Int[Tensor, "N 3"]]:
    """Token IDs, three question tokens first, padded with 0; and the digits to predict."""
    token_id = {word: token for token, word in enumerate(WORDS)}
    rows = [[token_id[word] for word in ASK + morphemes(int(n))] for n in numbers]
    tokens = torch.tensor([row + [0] * (LENGTH - len(row)) for row in rows])
    return tokens, torch.stack([numbers // 100, numbers // 10 % 10, numbers % 10], dim=1)


def split(seed: int = 0) -> tuple[Int[Tensor, " N"], Int[Tensor, " M"]]:
    """The numbers from 1 to 999, 799 to learn from and 200 held out."""
    order = 1 + torch.randperm(999, generator=torch.Generator().manual_seed(seed))
    return order[200:], order[:200]


# --- The stack ------------------------------------------------------------------------------------


class Stack(nn.Module):
    """An encoder of `depth` layers, each an attention and a feed-forward network, with one norm placement.

    Every matrix is initialized by Xavier's rule, as in the Transformer of 2017; for "deepnorm" with DeepNorm's
    gain. "pre" ends with a norm, "resi_dual" with the norm of its sum.
    """

    def __init__(self, norm_placement: str, depth: int, *, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.tokens = nn.Embedding(len(WORDS), D_MODEL)
        self.positions = nn.Embedding(LENGTH, D_MODEL)
        (alpha, beta), _ = deepnorm_constants(depth)
        self.attentions = nn.ModuleList(
            MultiHeadAttention(D_MODEL, NUM_HEADS) for _ in range(depth)
        )
        self.networks = nn.ModuleList(FeedForward(D_MODEL, D_FF) for _ in range(depth))
        wire = ResiDual
        if norm_placement != "resi_dual":
            alpha = alpha if norm_placement == "deepnorm" else 1.0
            wire = partial(Residual, norm_placement=norm_placement, alpha=alpha)
        self.residuals = nn.ModuleList(wire(LayerNorm(D_MODEL)) for _ in range(2 * depth))
        self.final_norm = LayerNorm(D_MODEL) if norm_placement in ("pre", "resi_dual") else None
        self.digits = nn.Linear(D_MODEL, 10)
        deepnorm_init(self.attentions, beta if norm_placement == "deepnorm" else 1.0)
        deepnorm_init(self.networks, beta if norm_placement == "deepnorm" else 1.0)
        self.norm_placement = norm_placement
        self.double()

    def forward(self, tokens: Int[Tensor, "B L"]) -> Float[Tensor, "B 3 10"]:
        """Logits for the three digits."""
        return self.digits(self.streams(tokens)[-1][:, : len(ASK)])

    def streams(
        self, tokens: Int[Tensor, "B L"], *, without: int | None = None
    ) -> list[Float[Tensor, "B L D"]]:
        """The residual stream before every layer, and last the stack's output; a layer may be left out."""
        mask = (tokens != 0)[:, None, None, :]
        x = self.tokens(tokens) + self.positions.weight
        dual = self.norm_placement == "resi_dual"
        x, before = torch.cat([x, x], dim=-1) if dual else x, []
        for n, (attend, network) in enumerate(zip(self.attentions, self.networks, strict=True)):
            before.append(split_streams(x)[0] if dual else x)
            if n == without:
                continue
            first, second = self.residuals[2 * n], self.residuals[2 * n + 1]
            x = first(x, partial(attend, mask=mask))
            x = second(x, network)
        if dual:
            x, total = split_streams(x)
            return [*before, x + self.final_norm(total)]
        return [*before, x if self.final_norm is None else self.final_norm(x)]


def loss_of(model: Stack, numbers: Int[Tensor, " N"]) -> Float[Tensor, ""]:
    """Mean cross-entropy of a digit."""
    return cross_entropy(model, *task(numbers))


def cross_entropy(
    model: Stack, tokens: Int[Tensor, "B L"], digits: Int[Tensor, "B 3"]
) -> Float[Tensor, ""]:
    """The same for token IDs."""
    return functional.cross_entropy(model(tokens).flatten(0, 1), digits.flatten())


# --- What is measured -----------------------------------------------------------------------------


def gradient_norms(norm_placement: str, depth: int, *, seed: int = 0) -> list[float]:
    """Before any training: for each layer the norm of the gradient of its last matrix, `down_proj`."""
    model = Stack(norm_placement, depth, seed=seed)
    loss_of(model, split()[0][:BATCH]).backward()
    return [float(network.down_proj.weight.grad.norm()) for network in model.networks]


@torch.no_grad()
def relative_changes(norm_placement: str, depth: int, *, seed: int = 0) -> list[float]:
    """Before any training: for each layer the norm of its change, relative to the stream's."""
    model = Stack(norm_placement, depth, seed=seed)
    streams = model.streams(task(split()[0][:BATCH])[0])
    pairs = itertools.pairwise(streams[:depth])
    return [float((after - x).norm() / x.norm()) for x, after in pairs]


def train(
    norm_placement: str,
    depth: int,
    *,
    warmup: int = 0,
    seed: int = 0,
    rate: float = RATE,
    steps: int = STEPS,
    stop: int | None = None,
    model: Stack | None = None,
) -> tuple[Stack, list[float]]:
    """Train a stack by Adam, or the given model; return it and the loss of every step.

    The learning rate climbs to `rate` over `warmup` steps (0: it starts there) and falls to 0 in a line.
    `stop` ends earlier on the same schedule.
    """
    model = Stack(norm_placement, depth, seed=seed) if model is None else model
    tokens, digits = task(split()[0])
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, betas=(0.9, 0.98), fused=True)
    draw, losses = torch.Generator().manual_seed(seed), []
    for step in range(steps if stop is None else stop):
        climb, fall = (step + 1) / max(warmup, 1), (steps - step) / (steps - warmup)
        optimizer.param_groups[0]["lr"] = rate * min(climb, fall, 1.0)
        batch = torch.randint(len(tokens), (BATCH,), generator=draw)
        loss = cross_entropy(model, tokens[batch], digits[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model, losses


@torch.no_grad()
def held_out_loss(model: Stack) -> float:
    """Mean cross-entropy of a digit of the 200 numbers held out."""
    return loss_of(model, split()[1]).item()


@torch.no_grad()
def share_right(model: Stack, *, without: int | None = None) -> float:
    """How many held-out numbers are read right, all three digits; a layer may be left out."""
    tokens, digits = task(split()[1])
    found = model.digits(model.streams(tokens, without=without)[-1][:, : len(ASK)])
    return float((found.argmax(-1) == digits).all(1).double().mean())
