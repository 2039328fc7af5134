"""Right answers before the judge at many seeds: `python tools/judge_soak.py --seeds 500 --minutes 60`.

Seeds begin at `--first`, so that several processes, or nights, can share them.

Every implementation that tests/answers, the chapters' solution cells and the assignments' own
solutions hold is judged, seed after seed, until the deadline. Printed: what failed and at which seed,
and the largest share of a tolerance that a right answer used, by Spec. Ends with 1 if any failed or
used half of a tolerance. `--only attention` takes the Specs whose name holds that word.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
for folder in ("code", "tools", "tests"):
    sys.path.insert(0, str(ROOT / folder))

from answers import EVERY, RIGHT, Answer, spec_named  # noqa: E402
from solutions import chapter_solutions  # noqa: E402
from tested_transformer.specs.compare import shares  # noqa: E402
from tested_transformer.specs.judge import judge  # noqa: E402

ENOUGH = 0.5  # of a tolerance


def right_answers(only: str = "") -> list[Answer]:
    """All that must pass: of the tests, of the chapters, and the baselines themselves."""
    found = [*RIGHT]
    found += [
        Answer(name, "the chapter's", solution) for name, solution in chapter_solutions().items()
    ]
    return [answer for answer in found if only in answer.spec]


def soak(answers: list[Answer], seeds: range, deadline: float) -> tuple[dict, list[str], int]:
    """The largest share by Spec, what failed, and how many seeds all answers were judged at."""
    largest: dict[str, float] = {}
    failed: list[str] = []
    for done, seed in enumerate(tqdm(seeds, unit="seed", disable=not sys.stderr.isatty())):
        for answer in answers:
            if time.monotonic() > deadline:
                return largest, failed, done
            with shares(exactly=True) as used:
                verdict = judge(spec_named(answer.spec), answer.candidate, seed=seed)
            if not verdict.passed:
                failed.append(f"seed {seed}: {answer.name}: {verdict}")
            largest[answer.spec] = max([largest.get(answer.spec, 0.0), *used])
    return largest, failed, len(seeds)


def main() -> int:
    """Read the arguments, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    answers = right_answers(options.only)
    if not answers:
        parser.error(f"--only: no Spec's name holds {options.only!r}; there are {', '.join(EVERY)}")
    deadline = time.monotonic() + 60 * options.minutes
    asked = range(options.first, options.first + options.seeds)
    largest, failed, seeds = soak(answers, asked, deadline)
    for name, share in sorted(largest.items(), key=lambda pair: -pair[1]):
        print(f"{share:8.3f}  {name}")
    print(*failed, sep="\n\n")
    close = [name for name, share in largest.items() if share >= ENOUGH]
    print(
        f"{len(answers)} right answers, {seeds} of {options.seeds} seeds from {options.first}: "
        f"{len(failed)} rejected,"
    )
    print(f"{len(close)} Specs of which half a tolerance was used: {', '.join(close) or 'none'}.")
    return int(bool(failed or close))


if __name__ == "__main__":
    sys.exit(main())
