"""What does a longer text cost? Layers that keep a state of fixed size against causal attention with a key/value cache.

Every layer reads texts of 1,024 to 32,768 tokens, batch 1, width 256, in float32 on one thread: all tokens at once
(its chunked form; attention's fused kernel), then 16 more tokens one by one, with what it keeps from the text. The
layers take turns, and medians of the runs are stored: processor seconds of the text, milliseconds per new token,
bytes that are kept. It says nothing about quality, nor about a GPU. About 10 minutes of one processor. With --only
one layer is measured, and the stored rows of the others stay.

Usage: OMP_NUM_THREADS=1 python benchmarks/recurrent.py [--runs 3] [--only LAYER]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from record import read_rows, write_rows
from torch import Tensor, nn

from tested_transformer.layers.cache import KeyValueCache
from tested_transformer.layers.gated_delta_net import GatedDeltaNet
from tested_transformer.layers.gated_retention import GatedRetention, RetentionState
from tested_transformer.layers.multi_head import MultiHeadAttention
from tested_transformer.layers.recurrent_state import RecurrentState
from tested_transformer.layers.rwkv import TimeMix
from tested_transformer.layers.selective_state_space import SelectiveStateSpace
from tested_transformer.layers.state_space_duality import StateSpaceDuality

WIDTH, HEADS, NEW = 256, 4, 16
LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)
WHAT = (
    f"one layer of width {WIDTH}, {HEADS} heads where it has any, batch 1, float32, one thread: processor "
    f"seconds for all tokens at once, milliseconds for each of {NEW} tokens after them, and bytes kept"
)


class Keeping(nn.Module):
    """A time mix, which returns what it keeps, called like the others."""

    def __init__(self, layer: TimeMix) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, cache: RecurrentState) -> Tensor:
        """The output; the cache keeps the shift and the state."""
        y, kept = self.layer(x, shift=cache.get("shift"), state=cache.get("state"))
        cache.update(x.shape[1], **kept)
        return y


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any], dict]] = {
    "attention": (lambda: MultiHeadAttention(WIDTH, HEADS), KeyValueCache, {"causal": True}),
    "gated retention": (lambda: GatedRetention(WIDTH, HEADS), RetentionState, {}),
    "gated DeltaNet": (
        lambda: GatedDeltaNet(WIDTH, HEADS, d_key=WIDTH // HEADS, d_value=WIDTH // HEADS),
        RecurrentState, {},
    ),
    "RWKV-4": (lambda: Keeping(TimeMix(WIDTH)), RecurrentState, {}),
    "Mamba": (lambda: SelectiveStateSpace(WIDTH), RecurrentState, {}),
    "Mamba-2": (
        lambda: StateSpaceDuality(WIDTH, 2 * HEADS, 64, num_states=64), RecurrentState, {},
    ),
}  # fmt: skip


@torch.no_grad()
def run(name: str, length: int) -> dict[str, float]:
    """One text and the tokens after it."""
    make, empty, options = LAYERS[name]
    torch.manual_seed(0)
    layer, cache = make().eval(), empty()
    x = torch.randn(1, length + NEW, WIDTH)
    start = time.process_time()
    layer(x[:, :length], cache=cache, **options)
    seconds, steps = time.process_time() - start, []
    kept = 2 * 4 * WIDTH * length if name == "attention" else cache.nbytes  # not what is set aside
    for token in x[:, length:].split(1, 1):
        start = time.process_time()
        layer(token, cache=cache, **options)
        steps.append(1000 * (time.process_time() - start))
    return {"seconds": seconds, "milliseconds": statistics.median(steps), "bytes": kept}


def row_of(name: str, length: int, runs: list[dict[str, float]]) -> dict[str, Any]:
    """Medians over the runs."""
    medians = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    return {
        "method": name,
        "length": length,
        "runs": len(runs),
        "seconds_of_text": float(f"{medians['seconds']:.4g}"),
        "milliseconds_per_new_token": float(f"{medians['milliseconds']:.4g}"),
        "bytes_kept": int(medians["bytes"]),
    }


def main() -> None:
    """Run all in turns, print a table and store it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", choices=LAYERS)
    given = parser.parse_args()
    number, names = given.runs, [given.only] if given.only else list(LAYERS)
    torch.set_num_threads(1)
    rows = []
    if given.only:
        stored = read_rows("recurrent")
        rows = [row for row in stored if row["method"] != given.only]
    for name in names:
        run(name, 256)  # the first call is slower
    for length in LENGTHS:
        found: dict[str, list] = {name: [] for name in names}
        for _ in range(number):
            for name in names:
                found[name].append(run(name, length))
        for name, runs in found.items():
            rows.append(row_of(name, length, runs))
            print(*rows[-1].values(), sep="\t", flush=True)
        write_rows("recurrent", WHAT, rows)


if __name__ == "__main__":
    main()
