"""What does a token cost? Greedy decoding without a cache, with one, and by transformers' generate.

All write the same 1,000 tokens with the same weights: a GPT-2 of random ones, and our copy of it.
That the tokens are the same is asserted. They work in turns on one thread; the processor time is
read at every token, so that one run gives the cost of every length. Without a cache there is one
run, since it is long; of the others the medians count. About 4 minutes of one processor.

Usage: OMP_NUM_THREADS=1 python benchmarks/generation.py [--runs 3]
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers as hf
from torch import Tensor
from transformers.generation.streamers import BaseStreamer

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from record import write_rows

from hf_copies import loaded
from tested_transformer.generation.decoding_state import CausalState
from tested_transformer.generation.generate import generate

LAYERS, WIDTH, HEADS, VOCAB, NEW = 4, 256, 8, 4000, 1000
LENGTHS, BIN = (100, 300, 1000), 20  # tokens; neighbors of which the median is stored
OURS = {"no cache": False, "cache": True}
WHAT = (
    f"processor seconds of greedy decoding with a GPT-2 of {LAYERS} layers, width {WIDTH}, {HEADS} "
    f"heads, {VOCAB} words, batch 1; milliseconds_per_token are medians of {BIN} neighboring tokens"
)
THEIRS = {
    "transformers, DynamicCache": {},
    "transformers, StaticCache": {"cache_implementation": "static"},
}


def gpt2() -> hf.GPT2LMHeadModel:
    """Random weights, large enough that the model does not say one word for ever."""
    torch.manual_seed(0)
    config = hf.GPT2Config(
        vocab_size=VOCAB, n_positions=1024, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=None,
        pad_token_id=None, attn_implementation="sdpa",
    )  # fmt: skip
    model = hf.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=0.3 if "wte" in name or "wpe" in name else 0.08)
    return model


class Clock(BaseStreamer):
    """Reads the processor time whenever a token is there; transformers calls it a streamer."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Tensor) -> None:
        """A token came (the first call is the prompt)."""
        self.times.append(time.process_time())

    def end(self) -> None:
        """Nothing is left to do."""


class Timed:
    """A session that reads the processor time before each word it is asked for."""

    def __init__(self, session: CausalState) -> None:
        self.session, self.times = session, []

    def feed(self, tokens: Tensor) -> Tensor:
        """As the session."""
        self.times.append(time.process_time())
        return self.session.feed(tokens)


def run(name: str, theirs: hf.GPT2LMHeadModel, ours: torch.nn.Module) -> tuple[Tensor, Tensor]:
    """The tokens, and the seconds that each of them took."""
    start = torch.tensor([[1, 2, 3]])
    if name in OURS:
        timed = Timed(CausalState(ours, cache=OURS[name]))
        tokens = generate(timed, start, max_new=NEW, eos=None).tokens
        times = [*timed.times, time.process_time()]
    else:
        clock = Clock()
        tokens = theirs.generate(
            start, attention_mask=torch.ones_like(start), max_new_tokens=NEW, do_sample=False,
            streamer=clock, **THEIRS[name],
        )[:, start.shape[1] :]  # fmt: skip
        times = clock.times
    return tokens, torch.tensor(times).double().diff()


def row_of(name: str, runs: list[Tensor]) -> dict:
    """Medians over the runs."""
    totals = {n: statistics.median(float(run[:n].sum()) for run in runs) for n in LENGTHS}
    binned = torch.stack(runs).view(len(runs), -1, BIN).transpose(0, 1).flatten(1)
    milliseconds = [float(f"{1000 * m:.4g}") for m in binned.median(dim=1).values.tolist()]
    return {
        "method": name,
        "runs": len(runs),
        "seconds": {str(n): round(total, 3) for n, total in totals.items()},
        "tokens_per_second": {str(n): round(n / total, 1) for n, total in totals.items()},
        "milliseconds_per_token": milliseconds,
    }


def main() -> None:
    """Run all in turns, print a table and store it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    torch.set_num_threads(1)
    theirs = gpt2()
    ours, wanted = loaded(theirs), None
    seconds: dict[str, list[Tensor]] = {name: [] for name in (*OURS, *THEIRS)}
    for number in range(runs):
        for name in seconds:
            if name == "no cache" and number:
                continue
            tokens, taken = run(name, theirs, ours)
            wanted = tokens if wanted is None else wanted
            assert torch.equal(tokens, wanted), f"{name} says other words"
            seconds[name].append(taken)
            print(f"run {number}: {name:28}{taken.sum():8.1f} s", flush=True)
    rows = [row_of(name, measured) for name, measured in seconds.items()]
    print(f"{'tokens per second':28}", *(f"{n:>8}" for n in LENGTHS))
    for row in rows:
        print(f"{row['method']:28}", *(f"{n:8.1f}" for n in row["tokens_per_second"].values()))
    different = len(set(wanted[0].tolist()))
    what = f"{WHAT}; every method said the same {NEW} tokens, {different} different ones"
    write_rows("generation", what, rows, transformers=hf.__version__)


if __name__ == "__main__":
    main()
