"""Lighthouse over every chapter of the built site, as a phone on a slow line sees it, served by tools/serve.py.

    python benchmarks/site.py    after `make test`, which installs Lighthouse; see tools/lighthouse.py

Where Chromium has another name than usual, CHROME_PATH says it.
Each page is visited some times; the row is the visit of median performance. Lighthouse multiplies the time
that this machine needs by four, so a busy machine makes slow pages: `benchmark_index` is what Lighthouse
found the machine to do (over 1500 on an idle desktop), and a row with a low one says little.
"""

import argparse
import sys
from pathlib import Path

from record import read_rows, write_rows

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tools"))
import serve  # noqa: E402
from lighthouse import find_lighthouse, judge  # noqa: E402

WHAT = (
    "Lighthouse's scores (0 to 100) and times for each chapter: phone profile, simulated slow line"
)
SCORES = {
    "performance": "performance", "accessibility": "accessibility",
    "best_practices": "best-practices", "seo": "seo",
}  # fmt: skip
TIMES = {
    "first_paint_ms": "first-contentful-paint", "largest_paint_ms": "largest-contentful-paint",
    "blocked_ms": "total-blocking-time", "bytes": "total-byte-weight",
}  # fmt: skip
SHOWN = ("task", *SCORES, *TIMES, "benchmark_index")


def visit(url: str) -> dict:
    """One report of Lighthouse, as numbers."""
    found = judge(url)
    audits = found["audits"]
    return {
        **{name: round(100 * found["categories"][key]["score"]) for name, key in SCORES.items()},
        **{name: round(audits[key]["numericValue"]) for name, key in TIMES.items()},
        "layout_shift": round(audits["cumulative-layout-shift"]["numericValue"], 4),
        "benchmark_index": round(found["environment"]["benchmarkIndex"]),
    }


def main() -> int:
    """Measure the pages named, or every chapter, and store a row for each at once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--visits", type=int, default=5)
    parser.add_argument("pages", nargs="*", help="as chapters/03_scaling.html")
    options = parser.parse_args()
    chapters = sorted(
        path.relative_to(serve.SITE) for path in serve.SITE.glob("chapters/**/*.html")
    )
    pages = options.pages or [path.as_posix() for path in chapters]
    if not pages:
        print("There is no site yet: run make book first.", file=sys.stderr)
        return 1
    try:
        find_lighthouse()
    except LookupError as missing:
        print(missing, file=sys.stderr)
        return 1
    server = serve.start()
    print(*SHOWN, sep="\t")
    for page in pages:
        url = f"http://127.0.0.1:{server.server_port}/{page}"
        visits = sorted(
            (visit(url) for _ in range(options.visits)),
            key=lambda row: row["performance"],
        )
        row = {"task": page, "visits": options.visits, **visits[len(visits) // 2]}
        others = [old for old in read_rows("site") if old["task"] != page]
        write_rows("site", WHAT, sorted([*others, row], key=lambda row: row["task"]))
        print(*(row[key] for key in SHOWN), sep="\t", flush=True)
    server.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
