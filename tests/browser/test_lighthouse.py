"""Lighthouse on one page of each kind, as a phone gets it: accessibility, good practice, what search engines ask.

Its score for speed depends on the machine, so it is measured in benchmarks/site.py and asserted nowhere.
"""

import pytest
import test_site as site

from lighthouse import find_lighthouse, judge

address = site.address
LEAST = 95  # of 100
CATEGORIES = ("accessibility", "best-practices", "seo")
# What it asks of structure, axe asks of every page in test_site.py, and descriptions are in test_site_furniture.py.
KINDS = [
    "book/index.html",
    "chapters/04_masks.html",
    "search.html",
]

pytestmark = pytest.mark.skipif(not site.PAGES, reason="the site is not built: run make book")


@pytest.fixture(scope="module")
def chromium():
    """The browser, where everything else that Lighthouse needs is here too."""
    try:
        find_lighthouse()
    except LookupError as missing:
        pytest.skip(str(missing))
    return site.find_chromium() or pytest.skip(
        "no Chromium here: install it, or name it in the variable CHROMIUM"
    )


@pytest.mark.parametrize("name", KINDS)
def test_lighthouse(chromium, address, name):
    report = judge(
        f"{address}/{name}",
        f"--only-categories={','.join(CATEGORIES)}",
        "--throttling-method=provided",  # the speed of this machine: none of the three asks for another
        "--disable-full-page-screenshot",
        chromium=chromium,
    )
    assert "runtimeError" not in report
    scores = {key: round(100 * report["categories"][key]["score"]) for key in CATEGORIES}
    below = {
        key: (scores[key], [
            report["audits"][audit["id"]]["title"]
            for audit in report["categories"][key]["auditRefs"]
            if audit["weight"] and (report["audits"][audit["id"]]["score"] or 0) < 1
            and report["audits"][audit["id"]]["scoreDisplayMode"] not in ("notApplicable", "manual")
        ])
        for key in CATEGORIES if scores[key] < LEAST
    }  # fmt: skip
    assert below == {}
