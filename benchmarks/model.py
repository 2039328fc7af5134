"""How fast is our Transformer beside nn.Transformer, and our MultiHeadAttention beside torch's?

Both models have the same weights, embeddings, masks and batches. They work in turns on one thread; a
number is the ratio of the medians of their processor times, theirs over ours, so above 1 ours is
faster. Tokens per second of ours stand beside it: they hold for the machine of the results alone.

Usage: OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE python benchmarks/model.py [--rounds 15]
"""

import argparse
import datetime
import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

from tested_transformer.layers.multi_head import MultiHeadAttention
from tested_transformer.models.convert_torch import transformer_from_torch, transformer_to_torch
from tested_transformer.positions.sinusoidal import sinusoidal_positions

RESULTS = Path(__file__).parent / "results" / "model.json"
WORDS = 1000
MODELS = {  # d_model, heads, layers a stack, batch, source length, target length
    "chapter 10": (128, 4, 2, 64, 14, 12),
    "middle": (256, 8, 3, 16, 48, 40),
    "base": (512, 8, 6, 4, 64, 56),
}
LAYERS = {  # d_model, heads, batch, length
    "short, many": (128, 4, 64, 14),
    "middle": (256, 8, 16, 64),
    "long": (512, 8, 2, 512),
}


class Peer(nn.Module):
    """nn.Transformer with what it lacks: embedding, positions from a table, masks, output layer."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.stacks = nn.Transformer(
            width, heads, layers, layers, 4 * width, dropout=0.0, batch_first=True
        )
        self.embedding = nn.Embedding(WORDS, width, padding_idx=0)
        nn.init.normal_(self.embedding.weight[1:].detach(), std=width**-0.5)
        self.output = nn.Linear(width, WORDS, bias=False)
        self.output.weight = self.embedding.weight
        self.register_buffer("table", sinusoidal_positions(torch.arange(512), width))

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Logits, with the masks that torch's documentation asks for."""
        padding, length = source == 0, target.shape[1]
        return self.output(
            self.stacks(
                self._embed(source),
                self._embed(target),
                tgt_mask=nn.Transformer.generate_square_subsequent_mask(length, dtype=torch.bool),
                src_key_padding_mask=padding,
                memory_key_padding_mask=padding,
                tgt_key_padding_mask=target == 0,
                tgt_is_causal=True,
            )
        )

    def _embed(self, ids: torch.Tensor) -> torch.Tensor:
        return self.embedding(ids) * self.embedding.embedding_dim**0.5 + self.table[: ids.shape[1]]


def median_times(work: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median processor seconds of each piece of work, done in turns after one round to warm up."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for number in range(rounds + 1):
        for name, job in work.items():
            start = time.process_time()
            job()
            if number:
                times[name].append(time.process_time() - start)
    return {name: statistics.median(measured) for name, measured in times.items()}


def train(module: nn.Module, *inputs: torch.Tensor) -> None:
    """Forward and backward."""
    answer = module(*inputs)
    (answer[0] if isinstance(answer, tuple) else answer).square().mean().backward()
    module.zero_grad(set_to_none=True)


def infer(module: nn.Module, *inputs: torch.Tensor) -> None:
    """Forward alone."""
    with torch.no_grad():
        module(*inputs)


def compare(ours: nn.Module, theirs: nn.Module, inputs: tuple, rounds: int) -> dict:
    """Training and inference: theirs over ours, and tokens per second of ours."""
    tokens, row = sum(i.shape[0] * i.shape[1] for i in inputs), {}
    for name, job in (("train", train), ("infer", infer)):
        work = {"ours": partial(job, ours, *inputs), "theirs": partial(job, theirs, *inputs)}
        for module in (ours, theirs):
            module.train(name == "train")
        times = median_times(work, rounds)
        row[name] = round(times["theirs"] / times["ours"], 2)
        row[f"{name} tokens/s"] = round(tokens / times["ours"])
    return row


def model_row(shape: tuple[int, ...], rounds: int) -> dict:
    """One size of model, on a batch in which most sentences end early."""
    width, heads, layers, batch, source, target = shape
    torch.manual_seed(0)
    theirs = Peer(width, heads, layers)
    ours = transformer_from_torch(theirs.stacks, embedding=theirs.embedding)
    ids = [torch.randint(1, WORDS, (batch, length)) for length in (source, target)]
    for row in range(1, batch):
        for sentence in ids:
            sentence[row, sentence.shape[1] - row % (sentence.shape[1] // 2) :] = 0
    real = ids[1] != 0
    torch.testing.assert_close(
        ours.eval()(*ids)[real], theirs.eval()(*ids)[real], rtol=1e-3, atol=1e-3
    )
    return compare(ours, theirs, tuple(ids), rounds)


def layer_row(shape: tuple[int, ...], rounds: int) -> dict:
    """One size of attention layer, attending to itself."""
    width, heads, batch, length = shape
    torch.manual_seed(0)
    ours = MultiHeadAttention(width, heads)
    x = torch.randn(batch, length, width)
    theirs = transformer_to_torch(ours)

    class Quiet(nn.Module):  # torch's layer returns weights unless told not to
        def __init__(self) -> None:
            super().__init__()
            self.layer = theirs

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x, x, x, need_weights=False)[0]

    return compare(ours, Quiet(), (x,), rounds)


def main() -> None:
    """Measure every size, print a table and store it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="enable_nested_tensor|The PyTorch API of nested")
    columns = ("train", "infer", "train tokens/s", "infer tokens/s")
    table = {}
    for title, shapes, measure in (
        ("Transformer", MODELS, model_row), ("MultiHeadAttention", LAYERS, layer_row),
    ):  # fmt: skip
        print(f"{title + ' (theirs / ours)':38}", *(f"{name:>15}" for name in columns))
        table[title] = {}
        for name, shape in shapes.items():
            row = table[title][name] = measure(shape, rounds)
            print(f"{name:38}", *(f"{row[column]:15}" for column in columns), flush=True)
    report = {
        "what": "torch's processor time over ours, medians, in turns; tokens per second of ours",
        "device": f"{platform.machine()} processor, one thread",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
        "rounds": rounds,
        "shapes": {"Transformer": MODELS, "MultiHeadAttention": LAYERS},
        "results": table,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
