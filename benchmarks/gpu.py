"""What the two GPU scripts share: the machine, the clock, problems, what is right, and how time is taken.

They run where torch, Triton and NumPy are and nothing else: tools/bare.py stands in for jaxtyping,
which the package imports beside them. With --smoke they run in Triton's interpreter, on toy problems.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

BEGAN = time.monotonic()  # before the imports, which take seconds: the deadline counts them
if "--smoke" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("benchmarks", "code", "tools")]

import bare  # noqa: E402

bare.stand_in()
import record  # noqa: E402
import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from tested_transformer import attention  # noqa: E402
from tested_transformer.functional.backends import flash  # noqa: E402
from tested_transformer.specs.attention.spec import textbook  # noqa: E402

DEVICE = "cpu" if flash.INTERPRETED else "cuda"
DTYPE = torch.float16 if flash.INTERPRETED else torch.bfloat16  # the interpreter lacks bfloat16
PASSES = ("forward", "forward+backward")
NAMES = ("output", "query's gradient", "key's gradient", "value's gradient")
MOST_SCORES = 2**28  # that are held at once while the truth is computed: 1 GiB in float32
RESERVE = 60  # seconds before the deadline in which nothing begins


# --- The start ------------------------------------------------------------------------------------


def options(description: str, *flags: str) -> argparse.Namespace:
    """Read the command line that both scripts have, and the flags of one of them."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--deadline", type=float, help="seconds; nothing begins in the last 60")
    parser.add_argument("--smoke", action="store_true", help="toy problems, in the interpreter")
    parser.add_argument("--results", type=Path, help="another folder than benchmarks/results")
    for flag in flags:
        parser.add_argument(flag, action="store_true")
    return parser.parse_args()


@contextmanager
def results_in(given: argparse.Namespace) -> Iterator[Path]:
    """Where rows are kept: the folder asked for; for --smoke a temporary one."""
    usual = record.RESULTS
    with tempfile.TemporaryDirectory() as temporary:
        record.RESULTS = given.results or (Path(temporary) if given.smoke else usual)
        record.RESULTS.mkdir(parents=True, exist_ok=True)
        try:
            yield record.RESULTS
        finally:
            record.RESULTS = usual


def check_gpu(smoke: bool) -> None:
    """Leave with the reason if there is nothing to measure on."""
    reason = flash.missing()
    if reason is None and flash.INTERPRETED and not smoke:
        reason = "TRITON_INTERPRET=1 is set: only --smoke runs in the interpreter"
    if reason:
        raise SystemExit(reason)


class Clock:
    """How long there is still to work: a machine is lent by the minute."""

    def __init__(self, deadline: float | None) -> None:
        self.end = None if deadline is None else BEGAN + deadline - RESERVE

    def left(self) -> float | None:
        """Seconds until nothing may begin any more; None: no deadline."""
        return None if self.end is None else max(0.0, self.end - time.monotonic())

    def over(self) -> bool:
        """May nothing begin any more?"""
        return self.left() == 0.0


# --- What is kept ---------------------------------------------------------------------------------


def made() -> dict[str, str]:
    """The machine and the versions: what the numbers hold for."""
    on_gpu = DEVICE == "cuda"
    return {
        "device": torch.cuda.get_device_name() if on_gpu else f"{platform.machine()}, interpreter",
        "torch": torch.__version__,
        "triton": installed("triton"),
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),
        "driver": driver() if on_gpu else "none",
        "processor": platform.machine(),
        "python": platform.python_version(),
    }


SAME = ("device", "torch", "triton", "cuda", "cudnn")


def installed(package: str) -> str:
    """The version of a package, or "none"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def driver() -> str:
    """The GPU driver's version, if its tool is there to say it."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return said.split("\n")[0].strip() or "unknown"


class Results:
    """Rows on disk, each written as it comes. A second start goes on where the first stopped."""

    def __init__(
        self, name: str, what: str, keys: tuple[str, ...], machine: dict[str, str]
    ) -> None:
        self.name, self.what, self.keys = name, what, keys
        path = record.RESULTS / f"{name}.json"
        stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        others = [k for k in SAME if stored and stored["made"].get(k) != machine[k]]
        if others:
            was, now = (
                ", ".join(f"{k} {m.get(k)}" for k in others) for m in (stored["made"], machine)
            )
            raise SystemExit(f"{path} was measured with {was}; this is {now}. Move the file away.")
        self.machine = machine
        self.rows: list[dict[str, Any]] = stored.get("rows", [])
        self.refused: list[dict[str, Any]] = stored.get("refused", [])
        self.ceilings: dict[str, float] = stored.get("ceilings", {})

    def has(self, row: dict[str, Any]) -> bool:
        """Has this been measured, or refused with a reason?"""
        wanted = [row[key] for key in self.keys]
        return any([r[k] for k in self.keys] == wanted for r in (*self.rows, *self.refused))

    def add(self, row: dict[str, Any]) -> None:
        """Keep a row and print it, unless it is there."""
        if not self.has(row):
            self.rows.append(row)
            self.write()
            numbers = [f"{row[k]:.4g}" for k in ("milliseconds", "tflops", "spread") if k in row]
            print(*[row[k] for k in self.keys], "| ms, TFLOP/s, spread:", *numbers, flush=True)

    def refuse(self, row: dict[str, Any], reason: str) -> None:
        """Keep why there is no row; leave if the device no longer works, since nothing would."""
        if not self.has(row):
            self.refused.append({**row, "reason": reason})
            self.write()
            print(*[row[k] for k in self.keys], "|", reason, flush=True)
        if not device_works():
            raise SystemExit("The device fails since then. Start again: what is stored is kept.")

    def write(self) -> None:
        """Put everything on disk."""
        from datetime import date

        dated = {"date": date.today().isoformat(), **self.machine}
        record.write_rows(
            self.name,
            self.what,
            self.rows,
            made=dated,
            ceilings=self.ceilings,
            refused=self.refused,
        )


def ceilings() -> dict[str, float]:
    """What the device reaches where nothing is in the way: copying, and a large product."""
    small = DEVICE == "cpu"
    numbers = torch.empty(2**16 if small else 2**29, dtype=DTYPE, device=DEVICE)
    copied = torch.empty_like(numbers)
    side = 64 if small else 8192
    a, b = (torch.randn(side, side, device=DEVICE).to(DTYPE) for _ in range(2))
    copy, product = milliseconds(lambda: copied.copy_(numbers)), milliseconds(lambda: a @ b)
    return {
        "copy_gb_per_s": 2 * numbers.nbytes / copy / 1e6,
        "matmul_tflops": 2 * side**3 / product / 1e9,
    }


# --- Problems -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """A batch for attention: `tokens` in sequences of `length`, `width` numbers each."""

    size: int
    causal: bool
    length: int
    tokens: int
    width: int
    group: int = 1  # query heads to a key/value head
    window: int | None = None
    documents: tuple[int, ...] = ()  # packed: their lengths

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.width // self.size

    @property
    def batch(self) -> int:
        """Sequences, or packed documents."""
        return len(self.documents) or self.tokens // self.length

    @property
    def features(self) -> str:
        """What it has beside causal or full, in one word."""
        named = {"gqa": self.group > 1, "window": self.window, "packed": self.documents}
        return "+".join(name for name, there in named.items() if there)

    @property
    def row(self) -> dict[str, Any]:
        """What of it stands in a row."""
        return {
            "d": self.size, "causal": self.causal, "length": self.length, "batch": self.batch,
            "features": self.features,
        }  # fmt: skip

    def tensors(self) -> list[Tensor]:
        """Random query, key, value and gradient of the output: (B, H, L, d), packed (T, H, d)."""
        generator = torch.Generator(DEVICE).manual_seed(0)
        found = []
        for heads in (self.heads, self.heads // self.group, self.heads // self.group, self.heads):
            shape = (self.tokens, heads, self.size)
            if not self.documents:
                shape = (self.batch, heads, self.length, self.size)
            found.append(torch.randn(shape, generator=generator, device=DEVICE).to(DTYPE))
        return found

    def parts(self, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Views with four axes, small enough for the plain formula, that together are everything."""
        if self.documents:
            for document in zip(*(t.split(self.documents) for t in tensors), strict=True):
                yield tuple(t.transpose(0, 1)[None] for t in document)
            return
        several = max(1, MOST_SCORES // (self.group * self.length**2))
        by_head = [  # (B G, H / G or 1, L, d)
            t.view(-1, t.shape[1] * self.group // self.heads, self.length, self.size)
            for t in tensors
        ]
        yield from zip(*(t.split(several) for t in by_head), strict=True)


def visible_pairs(length: int, causal: bool, window: int | None) -> float:
    """Pairs of query and key in a sequence; causal counts half, as everyone does."""
    if window is not None:  # causal too: the first rows see fewer keys
        near = min(window, length)
        return near * (near + 1) / 2 + (length - near) * near
    return length**2 / 2 if causal else length**2


def flops(problem: Problem, direction: str) -> float:
    """Operations as everyone counts them: 4 H d for a pair forward, 2.5 times that backward."""
    lengths = problem.documents or [problem.length] * problem.batch
    pairs = sum(visible_pairs(n, problem.causal, problem.window) for n in lengths)
    return 4 * problem.heads * problem.size * pairs * (1 if direction == "forward" else 3.5)


# --- What is right --------------------------------------------------------------------------------


@dataclass
class Truth:
    """Output and gradients of query, key and value in float32, and how far off each may be."""

    numbers: list[Tensor]
    allowed: list[float]

    def fault(self, found: list[Tensor], first: int = 0) -> str | None:
        """What is wrong with some of the four, from the `first` on; None if nothing is."""
        known = list(zip(NAMES, self.numbers, self.allowed, strict=True))[first:]
        for (name, right, most), got in zip(known, found, strict=False):
            if not bool(got.isfinite().all()):
                return f"wrong: {name} is not finite"
            error = float((got.float() - right).abs().max())
            if error > most:
                return f"wrong: {name} is off by {error:.3g}, allowed {most:.3g}"
        return None


def truth_of(problem: Problem, tensors: list[Tensor]) -> Truth:
    """The plain backend in float32; allowed: 2 x the textbook formula's error + 4 eps x the largest."""
    query, key, value, _ = tensors
    numbers = [torch.empty_like(t, dtype=torch.float32) for t in (query, query, key, value)]
    errors, largest = [0.0] * 4, [0.0] * 4
    hidden = {"causal": problem.causal, "window": problem.window}

    def formula(*inputs: Tensor) -> Tensor:
        with torch.device(DEVICE):  # it makes tensors of its own
            return textbook(*inputs, **hidden)

    for *part, o, dq, dk, dv in problem.parts(*tensors, *numbers):
        exact = with_gradients(
            lambda *a: attention(*a, backend="plain", **hidden), [t.float() for t in part]
        )
        rough = with_gradients(formula, part)
        for i, place in enumerate((o, dq, dk, dv)):
            place.copy_(exact[i])
            errors[i] = max(errors[i], float((rough[i].float() - exact[i]).abs().max()))
            largest[i] = max(largest[i], float(exact[i].abs().max()))
    eps = torch.finfo(DTYPE).eps
    return Truth(numbers, [2 * e + 4 * eps * m for e, m in zip(errors, largest, strict=True)])


def with_gradients(function: Callable[..., Tensor], tensors: list[Tensor]) -> list[Tensor]:
    """The output, and the gradients of query, key and value for the gradient that comes last."""
    *inputs, gradient = tensors
    inputs = [t.detach().requires_grad_() for t in inputs]
    output = function(*inputs)
    return [output.detach(), *torch.autograd.grad(output, inputs, gradient)]


@contextmanager
def poisoned() -> Iterator[None]:
    """New memory is full of NaN: what a kernel does not write cannot be right by chance."""
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def attempt(function: Callable[[], Any]) -> tuple[Any, str | None]:
    """What the function returns, and None; or None, and why it failed."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            return function(), None
        except Exception as error:  # whatever a rival raises: the run goes on
            return None, reason_of(error, [str(w.message) for w in said])


def reason_of(error: Exception, said: list[str] | None = None) -> str:
    """Why something failed, in a line: the error, and for "no kernel" the warnings that explain it."""
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
    if said and any(words in reason for words in ("No available kernel", "No viable backend")):
        reason += "; " + "; ".join(dict.fromkeys(text.split(" (Triggered")[0] for text in said))
    return reason[:300]


def device_works() -> bool:
    """After some errors a GPU answers nothing any more until the process ends."""
    try:
        if DEVICE == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
    except Exception:
        return False
    return True


# --- Time and memory ------------------------------------------------------------------------------


def milliseconds(call: Callable[[], Any], rep: int = 100) -> float:
    """The median time of a call; in the interpreter, of one."""
    if DEVICE == "cpu":
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e3
    from triton.testing import do_bench

    return do_bench(call, warmup=25, rep=rep, return_mode="median")


def in_turns(calls: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float] | str]:
    """Measure one after the other, so often; the times of each, or why it failed."""
    found: dict[str, list[float] | str] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times = found[name]
            if isinstance(times, str):
                continue
            once, reason = attempt(call)
            if reason and not device_works():
                return {name: reason}  # the others cannot help it
            if reason:
                found[name] = reason
            else:
                times.append(once)
    return found


def summary(times: list[float], operations: float) -> dict[str, float]:
    """What of its times stands in a row; the spread is the largest less the smallest, in TFLOP/s."""
    middle = statistics.median(times)
    speeds = [operations / t / 1e9 for t in times]
    found = {
        "tflops": operations / middle / 1e9, "spread": max(speeds) - min(speeds),
        "milliseconds": middle, "spread_milliseconds": max(times) - min(times),
    }  # fmt: skip
    return {k: float(f"{v:.5g}") for k, v in found.items()} | {"rounds": len(times)}


def peak_bytes(call: Callable[[], Any]) -> int:
    """The most that a call allocates above what was there; 0 in the interpreter."""
    if DEVICE == "cpu":
        call()
        return 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
