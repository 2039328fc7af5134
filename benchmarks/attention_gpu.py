"""How fast is the flash backend on a GPU, beside the other kernels that PyTorch has?

At each problem the methods are called in turns, three rounds; stored are the median of TFLOP/s, its
spread (largest less smallest) and the peak of memory above the inputs. Nothing is timed before its
output and gradients are right; a method that refuses, fails or is wrong stands under "refused" with
its reason. The most important rows come first, so that a deadline loses the least.

Usage: python benchmarks/attention_gpu.py [--deadline SECONDS] [--smoke] [--results FOLDER]
"""

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import gpu
from gpu import PASSES, Problem, Results
from tested_transformer import attention, packed_attention
from tested_transformer.functional.masks import causal_mask, window_mask

WHAT = (
    "attention on a GPU, bf16, 16k tokens of width 2048: TFLOP/s (4 H d for a visible pair forward, "
    "causal half; backward 2.5 times that) and peak bytes above the inputs, methods in turns"
)
KEYS = ("method", "pass", "features", "d", "causal", "length")
OURS = "flash"
Run = Callable[[Tensor, Tensor, Tensor], Tensor]


# --- The methods ----------------------------------------------------------------------------------


def ours(problem: Problem) -> Run:
    """The Triton kernels of this package, by the front door."""
    if problem.documents:
        longest = max(problem.documents)
        return lambda q, k, v: packed_attention(
            q, k, v, cu_seqlens=starts_of(problem), max_length=longest, causal=problem.causal,
            backend="flash",
        )  # fmt: skip
    hidden = {"causal": problem.causal, "window": problem.window}
    return lambda q, k, v: attention(q, k, v, **hidden, backend="flash")


def starts_of(problem: Problem) -> Tensor:
    """Where packed documents begin, and where the last ends."""
    starts = torch.tensor([0, *problem.documents], device=gpu.DEVICE)
    return starts.cumsum(0, dtype=torch.int32)


def sdpa(problem: Problem) -> Run:
    """PyTorch's own; which of its kernels says the context in which it is called."""
    mask = None
    if problem.window is not None:
        square = (problem.length, problem.length)
        near = window_mask(*square, window=problem.window, device=gpu.DEVICE)
        mask = near & causal_mask(*square, device=gpu.DEVICE)
    return lambda q, k, v: scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=problem.causal and mask is None,
        enable_gqa=problem.group > 1,
    )  # fmt: skip


def varlen(problem: Problem) -> Run:
    """PyTorch's flash kernel for packed documents."""
    from torch.nn.attention.varlen import varlen_attn

    starts, longest = starts_of(problem), max(problem.documents)
    order = {"window_size": (-1, 0 if problem.causal else -1)}  # left, right; -1 is without end
    if "is_causal" in inspect.signature(varlen_attn).parameters:  # in older versions
        order = {"is_causal": problem.causal}
    return lambda q, k, v: varlen_attn(q, k, v, starts, starts, longest, longest, **order)


def flex(problem: Problem) -> Run:
    """FlexAttention, compiled for the one shape, with its block mask made beforehand."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch.compiler.reset()  # or the ninth shape would run uncompiled
    on_gpu = gpu.DEVICE == "cuda"
    call = torch.compile(flex_attention, dynamic=False) if on_gpu else flex_attention
    visible, side = visible_of(problem), problem.length
    if problem.documents:
        side = problem.tokens
    block_mask = visible and create_block_mask(visible, None, None, side, side, device=gpu.DEVICE)

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        tensors = (query, key, value)
        if problem.documents:
            tensors = tuple(t.transpose(0, 1)[None] for t in tensors)
        output = call(*tensors, block_mask=block_mask, enable_gqa=problem.group > 1)
        return output[0].transpose(0, 1) if problem.documents else output

    return run


def visible_of(problem: Problem) -> Callable[..., Tensor] | None:
    """Who may see whom, as FlexAttention asks it; None: everyone."""
    if problem.documents:
        numbers = torch.arange(problem.batch, device=gpu.DEVICE)
        lengths = torch.tensor(problem.documents, device=gpu.DEVICE)
        of = numbers.repeat_interleave(lengths)
        if problem.causal:
            return lambda b, h, row, col: (of[row] == of[col]) & (row >= col)
        return lambda b, h, row, col: of[row] == of[col]
    window = problem.window
    if window is not None:
        return lambda b, h, row, col: (row >= col) & (row - col < window)
    return (lambda b, h, row, col: row >= col) if problem.causal else None


def plain(problem: Problem) -> Run:
    """The plain backend, where its score matrices fit."""
    scores = 4 * problem.batch * problem.heads * problem.length**2  # bytes, float32
    free = torch.cuda.mem_get_info()[0] if gpu.DEVICE == "cuda" else math.inf
    if 6 * scores > free:  # scores, filled, weights and the gradients of each
        raise MemoryError(
            f"six float32 matrices of scores, {6 * scores / 2**30:.0f} GiB, do not fit"
        )
    return lambda q, k, v: attention(q, k, v, causal=problem.causal, backend="plain")


def small(problem: Problem) -> Run:
    """The kernel of chapter 15, forward only."""
    from tested_transformer.functional.backends.flash_small import small_flash

    return partial(small_flash, causal=problem.causal)


@contextmanager
def deterministic_flash() -> Iterator[None]:
    """SDPA's flash kernel, its sums in one order; without filling memory, which would take time."""
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.use_deterministic_algorithms(True)
    try:
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
            yield
    finally:
        torch.use_deterministic_algorithms(False)


@dataclass(frozen=True)
class Method:
    """How a method is made ready for a problem, what it runs in, and for which passes."""

    prepare: Callable[[Problem], Run]
    context: Callable[[], AbstractContextManager] = nullcontext
    passes: tuple[str, ...] = PASSES


def of_sdpa(backend: SDPBackend) -> Method:
    """One of SDPA's kernels, by name."""
    return Method(sdpa, partial(sdpa_kernel, [backend]))


METHODS = {
    OURS: Method(ours),
    "sdpa flash": of_sdpa(SDPBackend.FLASH_ATTENTION),
    "sdpa cudnn": of_sdpa(SDPBackend.CUDNN_ATTENTION),
    "flex attention": Method(flex),
    "sdpa flash, deterministic": Method(sdpa, deterministic_flash, PASSES[1:]),
    "varlen_attn": Method(varlen),
    "sdpa efficient": of_sdpa(SDPBackend.EFFICIENT_ATTENTION),
    "plain": Method(plain),
    "flash_small": Method(small, passes=PASSES[:1]),
}


# --- What is measured, in this order ----------------------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """How large the problems are."""

    sizes: tuple[int, ...] = (128, 64)
    lengths: tuple[int, ...] = (4096, 16_384, 2048, 8192)  # of the aims
    short: tuple[int, ...] = (1024, 512)
    special: tuple[int, ...] = (4096, 16_384)
    tokens: int = 16_384
    width: int = 2048
    group: int = 4
    window: int = 1024
    documents: tuple[int, ...] = (
        4096, 3000, 2048, 1500, 1365, 1024, 900, 777, 512, 400, 333, 200, 129, 64, 35, 1,
    )  # fmt: skip
    rounds: int = 3


TOY = Scale((16,), (32,), (), (32,), 32, 32, 2, 12, (1, 11, 20), 1)


def stages(scale: Scale) -> Iterator[tuple[Problem, list[str]]]:
    """Problems and methods, the most important first."""
    aims = list(problems(scale, scale.lengths))
    short = list(problems(scale, scale.short))
    special = [p for p in problems(scale, scale.special) if p.causal]
    for problem in aims:
        yield problem, [OURS, "sdpa flash", "sdpa cudnn"]
    for method in ("flex attention", "sdpa flash, deterministic"):
        for problem in aims:
            yield problem, [method]
    rivals = ["sdpa flash", "sdpa cudnn", "flex attention"]
    for problem in special:
        yield replace(problem, group=scale.group), [OURS, *rivals]
    for problem in special:
        yield replace(problem, window=scale.window), [OURS, *rivals, "sdpa efficient"]
    longest, total = max(scale.documents), sum(scale.documents)
    for size in scale.sizes:
        packed = Problem(size, True, longest, total, scale.width, documents=scale.documents)
        yield packed, [OURS, "varlen_attn", "flex attention"]
    for problem in short:
        yield problem, [OURS, "sdpa flash", "sdpa cudnn"]
    for problem in (*aims, *short):
        yield problem, ["sdpa efficient", "plain", "flash_small"]


def problems(scale: Scale, lengths: tuple[int, ...]) -> Iterator[Problem]:
    """Each length with each head size, full and causal."""
    for length in lengths:
        for size in scale.sizes:
            for causal in (False, True):
                yield Problem(size, causal, length, scale.tokens, scale.width)


# --- Measuring ------------------------------------------------------------------------------------


def measure(problem: Problem, names: list[str], results: Results, rounds: int) -> None:
    """Measure what of the methods is not stored, in turns with ours."""
    rows = {(n, p): row_of(problem, n, p) for n in {OURS, *names} for p in METHODS[n].passes}
    todo = [n for n in names if not all(results.has(rows[n, p]) for p in METHODS[n].passes)]
    if not todo:
        return
    tensors = problem.tensors()
    truth = gpu.truth_of(problem, tensors)
    runs = {}
    for name in dict.fromkeys([OURS, *todo]):
        run, reason = ready(METHODS[name], problem, tensors, truth)
        if reason is None:
            runs[name] = run
            continue
        for direction in METHODS[name].passes:
            results.refuse(rows[name, direction], reason)
    for direction in PASSES:
        chosen = {n: run for n, run in runs.items() if direction in METHODS[n].passes}
        if set(chosen) - {OURS} or OURS in todo:
            time_pass(problem, direction, chosen, tensors, results, rounds)


def row_of(problem: Problem, name: str, direction: str) -> dict[str, Any]:
    """What a row holds before anything is measured."""
    return {
        "method": name,
        "pass": direction,
        **problem.row,
        "variant": variant(problem, direction),
    }


def variant(problem: Problem, direction: str) -> str:
    """Problem and pass in one word, for people."""
    order = "causal" if problem.causal else "full"
    parts = [direction, f"d{problem.size}", f"n{problem.length}", order, problem.features]
    return "/".join(filter(None, parts))


def ready(
    method: Method, problem: Problem, tensors: list[Tensor], truth: gpu.Truth
) -> tuple[Run | None, str | None]:
    """The method made ready and found right, or why it cannot be timed."""

    def checked() -> tuple[Run, str | None]:
        with method.context():
            run = method.prepare(problem)
            if method.passes == PASSES[:1]:
                return run, truth.fault([run(*tensors[:3])])
            return run, truth.fault(gpu.with_gradients(run, tensors))

    answer, reason = gpu.attempt(checked)
    return answer or (None, reason)


def time_pass(
    problem: Problem, direction: str, runs: dict[str, Run], tensors: list[Tensor],
    results: Results, rounds: int,
) -> None:  # fmt: skip
    """Time the methods in turns, take their peaks, store a row of each."""
    inputs = [t.detach().requires_grad_() for t in tensors[:3]]

    def call(run: Run) -> None:
        output = run(*inputs)  # with what a backward pass needs, as in training
        if direction != "forward":
            torch.autograd.grad(output, inputs, tensors[3])

    def timed(name: str, measured: Callable[..., Any]) -> Any:
        with METHODS[name].context():
            return measured(lambda: call(runs[name]))

    turns = gpu.in_turns({n: partial(timed, n, gpu.milliseconds) for n in runs}, rounds)
    operations = gpu.flops(problem, direction)
    own = turns.get(OURS)
    beside = {} if not own or isinstance(own, str) else gpu.summary(own, operations)
    for name, times in turns.items():
        row = row_of(problem, name, direction)
        if isinstance(times, str):
            results.refuse(row, times)
            continue
        peak, reason = gpu.attempt(partial(timed, name, gpu.peak_bytes))
        if reason:
            results.refuse(row, reason)
            continue
        row |= gpu.summary(times, operations) | {"peak_bytes": peak}
        if beside:
            row["flash_tflops"] = beside["tflops"]  # ours in the same turns
        results.add(row)


# --- What came of it --------------------------------------------------------------------------------

AIMS = (  # pass, rival, head size, aim: how many times as fast, geometric mean over the lengths
    ("forward", "sdpa flash", 64, "1.20"), ("forward", "sdpa flash", 128, "1.20"),
    ("forward", "sdpa cudnn", 64, "0.85"), ("forward", "sdpa cudnn", 128, "0.80 (stretch 0.85)"),
    ("forward+backward", "sdpa flash", 64, "1.05"),
    ("forward+backward", "sdpa flash", 128, "0.95 (stretch 1.05)"),
    ("forward", "flex attention", 64, "1.00"), ("forward", "flex attention", 128, "1.00"),
    ("forward+backward", "flex attention", 64, "1.00"),
    ("forward+backward", "flex attention", 128, "1.00"),
)  # fmt: skip
MEMORY_AIM = "1.10"


def aim_lines(rows: list[dict[str, Any]], lengths: tuple[int, ...]) -> list[str]:
    """Each aim and what was measured, in the words "aim 1.20, measured 1.13"."""
    lines = []
    for direction, rival, size, aim in AIMS:
        both = [ratios(rows, direction, rival, size, causal, lengths) for causal in (False, True)]
        found = (both[0] + both[1], *both)
        measured, full, causal = (f"{geometric_mean(r):.2f}" if r else "nothing" for r in found)
        lines.append(
            f"{direction}, d {size}, over {rival}: aim {aim}, measured {measured} (full {full}, "
            f"causal {causal}; {len(found[0])} of {2 * len(lengths)} problems)"
        )
    most = memory_ratio(rows, lengths)
    measured = "nothing" if most is None else f"{most:.2f}"
    return [*lines, f"memory over sdpa flash: aim at most {MEMORY_AIM}, measured {measured}"]


def ratios(
    rows: list[dict[str, Any]], direction: str, rival: str, size: int, causal: bool,
    lengths: tuple[int, ...],
) -> list[float]:  # fmt: skip
    """Ours over a rival's, each from the same turns."""
    wanted = (direction, rival, size, causal, "")
    return [
        r["flash_tflops"] / r["tflops"]
        for r in rows
        if tuple(r[k] for k in ("pass", "method", "d", "causal", "features")) == wanted
        and r["length"] in lengths
        and "flash_tflops" in r
    ]


def geometric_mean(numbers: list[float]) -> float:
    """The mean for ratios."""
    return math.exp(sum(map(math.log, numbers)) / len(numbers))


def memory_ratio(rows: list[dict[str, Any]], lengths: tuple[int, ...]) -> float | None:
    """The largest ratio of our peak to that of SDPA's flash kernel; None if there is none."""
    peaks = {
        (r["method"], r["variant"]): r["peak_bytes"]
        for r in rows
        if not r["features"] and r["length"] in lengths and r["peak_bytes"]
    }
    theirs = {name: peak for (method, name), peak in peaks.items() if method == "sdpa flash"}
    found = [peaks[OURS, name] / peak for name, peak in theirs.items() if (OURS, name) in peaks]
    return max(found, default=None)


def table(rows: list[dict[str, Any]]) -> str:
    """TFLOP/s, spread and MiB of every row, a block for each pass and kind of problem."""
    blocks: dict[tuple, dict[str, dict[int, str]]] = {}
    for row in rows:
        block = blocks.setdefault(tuple(row[k] for k in KEYS[1:5]), {})
        cell = f"{row['tflops']:.0f} ±{row['spread'] / 2:.0f} {row['peak_bytes'] / 2**20:.0f}M"
        block.setdefault(row["method"], {})[row["length"]] = cell
    lines = []
    for (direction, features, size, causal), block in sorted(blocks.items()):
        lengths = sorted({n for cells in block.values() for n in cells})
        order = "causal" if causal else "full"
        head = ", ".join(filter(None, (direction, features, f"d {size}", order)))
        lines += ["", f"{head:42}" + "".join(f"{n:>16}" for n in lengths)]
        for method, cells in block.items():
            lines.append(f"  {method:40}" + "".join(f"{cells.get(n, '-'):>16}" for n in lengths))
    return "\n".join(lines)


def main() -> None:
    """Measure until all is done or the deadline is near; print table and aims."""
    given = gpu.options(__doc__.splitlines()[0])
    gpu.check_gpu(given.smoke)
    scale, clock = TOY if given.smoke else Scale(), gpu.Clock(given.deadline)
    with gpu.results_in(given):
        results = Results("attention_gpu", WHAT, KEYS, gpu.made())
        if not results.ceilings and not clock.over():
            results.ceilings = gpu.ceilings()
        todo = list(stages(scale))
        for done, (problem, names) in enumerate(todo):
            if clock.over():
                print(f"the deadline: {len(todo) - done} of {len(todo)} steps were not begun")
                break
            measure(problem, names, results, scale.rounds)
        print(results.machine, results.ceilings, table(results.rows), "", sep="\n")
        print(*aim_lines(results.rows, scale.lengths), sep="\n")


if __name__ == "__main__":
    main()
