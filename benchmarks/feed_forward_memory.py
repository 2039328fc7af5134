"""Which part holds the facts: attention, the feed-forward network, or both together?

Four hundred facts of two kinds, small models, several seeds; frozen embeddings and no layer
normalization, and for one kind of facts each condition lifted. Chapter 8 prints what this stores and
trains two runs again. About ten minutes of one processor for 5 seeds.

Usage: OMP_NUM_THREADS=1 python benchmarks/feed_forward_memory.py [--seeds 5]
"""

import argparse
from itertools import product
from pathlib import Path
from statistics import median

import torch
from norm_placement import store
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tested_transformer import FeedForward, MultiHeadAttention

RESULTS = Path(__file__).parent / "results" / "feed_forward_memory.json"
WIDTH, ANSWERS, STEPS, RATE = 16, 20, (200, 2000), 0.01
WHAT = (
    f"facts held, of 400, each with one of {ANSWERS} random answers, after `steps` "
    f"steps of Adam, width {WIDTH}, float64; held_without: the same with one part left out; condition: "
    "embeddings frozen and nothing normalized, or a LayerNorm before each part, or embeddings trained"
)
FACTS = {  # the words of each of 400 facts
    "words": torch.arange(400)[:, None],
    "pairs": torch.cartesian_prod(torch.arange(20), torch.arange(20, 40)),
}
ROWS = [  # kind of facts, parts: "attention", or the inner width of a feed-forward network; condition
    ("words", ["attention"], "frozen"),
    ("words", ["attention"] * 3, "frozen"),
    ("words", [32], "frozen"),
    ("words", [128], "frozen"),
    ("pairs", [32], "frozen"),
    ("pairs", ["attention"], "frozen"),
    ("pairs", ["attention", 32], "frozen"),
    ("pairs", ["attention"] * 2, "frozen"),
    ("pairs", ["attention", 128], "frozen"),
    ("words", ["attention"], "norm"),
    ("words", ["attention"] * 3, "norm"),
    ("words", [32], "norm"),
    ("words", ["attention"], "trained"),
]


class Model(nn.Module):
    """Trained parts with residual connections between embeddings and a frozen output matrix.

    The embeddings are frozen and nothing is normalized; "norm" puts a LayerNorm before each part,
    "trained" trains the embeddings.
    """

    def __init__(self, parts: list, vocabulary: int, condition: str = "frozen") -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, WIDTH).requires_grad_(condition == "trained")
        self.parts = nn.ModuleList(
            MultiHeadAttention(WIDTH, 2, backend="plain")
            if part == "attention"
            else FeedForward(WIDTH, part)
            for part in parts
        )
        norm = nn.LayerNorm if condition == "norm" else nn.Identity
        self.norms = nn.ModuleList(norm(WIDTH) for _ in parts)
        self.output = nn.Parameter(torch.randn(WIDTH, ANSWERS), requires_grad=False)

    def forward(self, words: Tensor, without: int | None = None) -> Tensor:
        """Scores of the answers, (N, 20), from words (N, L); one part may be left out."""
        x = self.embed(words)  # N L D
        for n, part in enumerate(self.parts):
            if n != without:
                x = x + part(self.norms[n](x))
        return x[:, -1] @ self.output


def memorize(kind: str, parts: list, condition: str, seed: int, steps: int) -> dict:
    """Train one model; count the facts that it answers right, whole and without each part."""
    torch.manual_seed(seed)
    words, answers = FACTS[kind], torch.randint(ANSWERS, (len(FACTS[kind]),))
    model = Model(parts, int(words.max()) + 1, condition).double()
    learned = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(learned, lr=RATE)
    decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    for _ in range(steps):
        loss = cross_entropy(model(words), answers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay.step()

    @torch.no_grad()
    def held(without: int | None = None) -> int:
        return int((model(words, without).argmax(-1) == answers).sum())

    without = [held(n) for n in range(len(parts))]
    what = {"facts": kind, "parts": parts, "condition": condition, "steps": steps, "seed": seed}
    return what | {"held": held(), "held_without": without}


def main() -> None:
    """Train every row from every seed, print a table and store the runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    runs = []
    for (kind, parts, condition), steps in product(ROWS, STEPS):
        same = [memorize(kind, parts, condition, seed, steps) for seed in range(seeds)]
        held = [run["held"] for run in same]
        without = [
            median(numbers) for numbers in zip(*(run["held_without"] for run in same), strict=True)
        ]
        print(
            f"{kind}  {parts!s:40}{condition:8}{steps:5}{min(held):5}{median(held):5.0f}{max(held):5}"
            f"  {without}"
        )
        runs += same
    store(RESULTS, {"what": WHAT}, runs, seeds)


if __name__ == "__main__":
    main()
