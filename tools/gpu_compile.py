"""Compile every flash kernel for a Hopper GPU, without having one, and look at what came out.

The operators of backends/flash.py are called with real tensors on the CPU, but a kernel is compiled
in place of being run. What must hold: shared memory fits; 16-bit products use the tensor cores
(wgmma); 16-bit kernels with head size 64 and 128 spill no register. About two minutes on two cores.

With --plan it compiles what `make tune-gpu` will measure instead: about five minutes.

Usage: python tools/gpu_compile.py [--only forward] [--jobs 2] [--json FILE] [--plan]
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from tested_transformer.functional.backends import flash, flash_configs
from tested_transformer.functional.backends.flash_configs import Config

# Of compute capability 9.0: bytes that a program may have, and what an SM has for all.
SHARED_LIMIT = 232_448
SHARED, RESERVED, REGISTERS, WARPS = 233_472, 1024, 65_536, 64
BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
KERNELS = ("forward", "key_value", "query")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class Hopper:
    """As much of a driver as the compiler asks for."""

    def get_current_target(self) -> GPUTarget:
        """A GPU of compute capability 9.0, 32 threads a warp."""
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        """The first."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """None is ever used."""
        return 0


@dataclass(frozen=True)
class Job:
    """One kernel to compile, and whether it must be free of spills."""

    kernel: str
    dtype: str
    size: int
    causal: bool
    feature: str = ""
    config: Config | None = None  # None: what `choose` would take
    tuned: bool = True

    @property
    def name(self) -> str:
        """In one word."""
        parts = [self.kernel, self.dtype, f"d{self.size}", "causal" if self.causal else "full"]
        return "/".join([*parts, self.feature] if self.feature else parts)


@dataclass
class Compiled:
    """What came out."""

    name: str
    config: Config
    registers: int = 0
    spilled: int = 0
    shared: int = 0
    wgmma: int = 0
    tma: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)

    @property
    def in_flight(self) -> int:
        """Warps that fit on an SM at a time: registers are handed out in eights."""
        warps = self.config.warps
        by_registers = REGISTERS // (-(-max(1, self.registers) // 8) * 8 * 32 * warps)
        return warps * min(by_registers, SHARED // (self.shared + RESERVED), WARPS // warps)


def jobs() -> list[Job]:
    """Tuned features with both 16-bit dtypes and head sizes; the others once."""
    calls = [(False, ""), (True, ""), (True, "window"), (True, "packed")]
    found = [
        Job(kernel, "bf16", size, *call)
        for kernel in KERNELS
        for size in (64, 128)
        for call in calls
    ]
    found += [Job(kernel, "fp16", 128, True, "gqa") for kernel in KERNELS]
    others = [("bf16", 64, f) for f in ("mask", "bias", "dropout", "alibi", "lengths")]
    others += [("bf16", 80, ""), ("bf16", 256, ""), ("fp32", 64, ""), ("fp32", 128, "")]
    found += [
        Job(kernel, dtype, size, True, feature, tuned=False)
        for kernel in KERNELS
        for dtype, size, feature in others
    ]
    return found + [job_of(key, config) for key, config in flash_configs.measured().items()]


def planned() -> list[Job]:
    """Every configuration that `make tune-gpu` measures."""
    sys.path.insert(0, str(BENCHMARKS))
    from flash_tuning import plan

    return [Job(e.kernel, "bf16", e.size, e.causal, "", e.config) for e in plan()]


def job_of(key: str, config: Config) -> Job:
    """A row of the table of measured configurations, to be compiled as it stands."""
    _, _, kernel, size, dtype, _, order, *features = key.split("/")
    short = next(name for name, known in DTYPES.items() if str(known) == f"torch.{dtype}")
    return Job(kernel, short, int(size[1:]), order == "causal", "+".join(features), config)


def compile_job(job: Job) -> Compiled:
    """Compile one kernel by calling its operator."""
    driver.set_active(Hopper())
    heads, length, size, dtype = 4, 4096, job.size, DTYPES[job.dtype]
    groups = 1 if "gqa" in job.feature else heads
    query = torch.empty(1, heads, length, size, dtype=dtype)
    key = torch.empty(1, groups, length, size, dtype=dtype)
    config = job.config or flash_configs.rule(
        job.kernel, "sm90", dtype, size, job.feature.split("+")
    )
    result = Compiled(job.name, config)
    recorder = Recorder(job.kernel, result)
    flash._kernels, flash.choose = (lambda: recorder), (lambda *_: config)
    mask, slopes, lengths, starts, seed = (None,) * 5
    if "mask" in job.feature:
        mask = torch.ones(1, 1, 1, length, dtype=torch.bool).expand(1, heads, length, length)
    if "bias" in job.feature:
        mask = torch.zeros(1, 1, length, length, dtype=dtype).expand(1, heads, length, length)
    slopes = torch.ones(heads) if "alibi" in job.feature else None
    lengths = torch.tensor([length]) if "lengths" in job.feature else None
    starts = torch.tensor([0, length], dtype=torch.int32) if "packed" in job.feature else None
    seed = torch.tensor([1]) if "dropout" in job.feature else None
    options = (
        mask, slopes, lengths, starts, starts, seed, job.causal,
        1024 if "window" in job.feature else None, 0.125, 0.1 if seed is not None else 0.0,
        length, length,
    )  # fmt: skip
    start = time.monotonic()
    if job.kernel == "forward":
        flash.flash_forward(query, key, key.clone(), *options)
    else:
        lse = torch.empty(1, heads, length)
        flash.flash_backward(query.clone(), query, key, key.clone(), query.clone(), lse, *options)
    result.seconds = time.monotonic() - start
    judge(job, result)
    return result


class Recorder:
    """Stands where the kernels' module stands: the wanted kernel is compiled, the others are not."""

    def __init__(self, wanted: str, result: Compiled) -> None:
        self.wanted, self.result = f"{wanted}_kernel", result

    def __getattr__(self, name: str) -> Any:
        return self if name == self.wanted else Nothing()

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        from tested_transformer.functional.backends import flash_kernels

        return partial(self.compile, getattr(flash_kernels, self.wanted), grid)

    def compile(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        """Note registers, spills, shared memory and instructions of the compiled kernel."""
        made = kernel.warmup(*arguments, grid=grid, **options)
        ptx = made.asm["ptx"]
        self.result.shared = made.metadata.shared
        self.result.wgmma = ptx.count("wgmma.mma_async")
        self.result.tma = ptx.count("cp.async.bulk.tensor")
        self.result.registers, self.result.spilled = usage(made.asm["cubin"])


class Nothing:
    """A kernel that is not wanted."""

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *arguments, **options: None


def usage(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread, and bytes that do not fit into them."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [TOOLS / "cuobjdump", "-res-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers = max(map(int, re.findall(r"REG:(\d+)", said)))
    return registers, max(map(int, re.findall(r"(?:STACK|LOCAL):(\d+)", said)))


def judge(job: Job, result: Compiled) -> None:
    """Note what must not be."""
    if result.shared > SHARED_LIMIT:
        result.faults.append(f"{result.shared} bytes of shared memory, {SHARED_LIMIT} fit")
    if job.dtype != "fp32" and job.size <= 128 and not result.wgmma:
        result.faults.append("no tensor-core instruction (wgmma)")
    if job.tuned and result.spilled:
        result.faults.append(f"{result.spilled} bytes of registers are spilled")
    if result.config.tma and not result.tma:
        result.faults.append("no TMA instruction, though the configuration asks for it")


def main() -> int:
    """Compile all, print a table; 1 if something must not be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="a part of the names to compile")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plan", action="store_true", help="what make tune-gpu will measure")
    options = parser.parse_args()
    todo = [job for job in (planned() if options.plan else jobs()) if options.only in job.name]
    print(f"Triton {triton.__version__}, sm_90, {len(todo)} kernels")
    print(
        f"{'kernel':42} {'rows':>4} {'cols':>4} warps stages tma  regs spill shared flight wgmma  s"
    )
    done = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for found in pool.map(compile_job, todo):
            c = found.config
            print(
                f"{found.name:42} {c.rows:4} {c.cols:4} {c.warps:5} {c.stages:6} {int(c.tma):3}"
                f" {found.registers:5} {found.spilled:5} {found.shared:6} {found.in_flight:6}"
                f" {found.wgmma:5} {found.seconds:4.1f} {'; '.join(found.faults)}",
                flush=True,
            )
            done.append(found)
    if options.json:
        text = json.dumps([{**vars(f), "config": vars(f.config)} for f in done], indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")
    faulty = [found.name for found in done if found.faults]
    print(f"{len(done) - len(faulty)} of {len(done)} compile as they should")
    return int(bool(faulty) or not done)


if __name__ == "__main__":
    sys.exit(main())
