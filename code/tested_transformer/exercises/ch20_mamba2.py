"""The exercise of chapter 20 on its page about Mamba-2: one chunk, with the state that comes in and goes out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..specs.spec import Case
from ..specs.state_spaces.spec import SSD

OTHER_TOPICS = {"groups repeated, not interleaved", "the skip path is scaled by the step"}


def _cases(rng: np.random.Generator) -> list[Case]:
    """Those of Mamba-2, with a group for each head, and no skip path."""
    found = []
    for case in SSD.cases(rng):
        arguments = {n: a for n, a in case.arguments.items() if n != "skip"}
        if case.is_empty or arguments.keys() & {"real", "chunk_size"}:
            continue
        shared = arguments["x"].shape[1] // arguments["b"].shape[1]
        arguments |= {n: np.repeat(arguments[n], shared, axis=1) for n in ("b", "c")}
        found.append(Case(case.label, arguments, case.dtype))
    return found


CHECKS = [check for check in SSD.checks if check.name != "neighboring heads share a group"]
SSD_CHUNK = replace(SSD, cases=_cases, checks=CHECKS).narrowed(
    lambda case: True,
    name="ch20.ssd_chunk",
    statement="ssd_chunk(x, delta, a, b, c, state=None) -> (output, new state). For each head: h = exp(delta a) h + "
    "delta b x^T, then y = c^T h, from the state h that is given, 0 if it is None. x (B, H, L, d), delta (B, H, L), "
    "a (H), b and c (B, H, L, N), state (B, H, N, d) -> (B, H, L, d) and (B, H, N, d)",
    mutants=[mutant for mutant in SSD.mutants if mutant.name not in OTHER_TOPICS],
    points=3,
)

EXERCISES = (SSD_CHUNK,)
