"""The browsing policy: its pages, the rule, cloning, judges, and what the page says of the stored runs."""

import hashlib
import json
from importlib.resources import files
from pathlib import Path

import pytest
import torch

from tested_transformer.experiments import ch22_browser as web
from tested_transformer.generation.browser import Quote

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
DIGEST = "1dff18d882a17adbe58bf980c420b8abb650674e94ca3d6ef776583b19f13edb"
PAGES = web.glossary_pages()
TRAIN, TEST = web.questions(PAGES)


def test_the_snapshot_is_the_one_that_was_measured():
    stored = (files("tested_transformer") / "data/trained/glossary/pages.json").read_bytes()
    assert hashlib.sha256(stored).hexdigest() == DIGEST
    assert len(PAGES) == 24
    assert (len(TRAIN), len(TEST)) == (141, 48)
    assert not set(TRAIN) & set(TEST)


def test_the_rule_finds_nearly_all_definitions():
    """All that stand among the four results of a search."""
    right = 0
    for term in TEST:
        episode, _ = web.run_episode(term, PAGES, web.rule)
        quotes = episode.browser.quotes
        assert web.quotes_stand(quotes, PAGES)
        assert len(quotes) <= 1
        right += web.is_right(term, quotes)
    assert right == 45  # of 48; the others stand below the fourth result


def test_quotes_that_do_not_stand():
    line = PAGES[0].lines[0]
    assert web.quotes_stand([Quote("A", line)], PAGES)
    for title, text in (("B", line), ("A", f"{line} "), ("A", "invented"), ("?", line), ("A", "")):
        assert not web.quotes_stand([Quote(title, text)], PAGES)


def test_every_action_of_a_sampled_episode_was_possible():
    policy = web.clone(web.demonstrations(PAGES, TRAIN[:5]), updates=5)
    choose = web.sampled(policy, torch.Generator().manual_seed(0))
    for term in TEST[:5]:
        episode, steps = web.run_episode(term, PAGES, choose)
        assert episode.browser.finished
        assert len(steps) <= web.MAX_ACTIONS
        assert web.quotes_stand(episode.browser.quotes, PAGES)


def test_cloning_learns_the_demonstrated_actions():
    torch.manual_seed(0)
    steps = web.demonstrations(PAGES, TRAIN[:12])
    policy = web.clone(steps, updates=100)
    with torch.no_grad():
        same = [int(policy(features)[:, 0].argmax()) == taken for features, taken in steps]
    assert sum(same) > 0.85 * len(same)


def test_the_judges():
    right, long = [Quote("A", "bias: a constant")], [Quote("A", "word " * 40)]
    assert web.compare_by_facts("bias", right) > web.compare_by_facts("bias", long)
    assert web.compare_by_length("bias", right) < web.compare_by_length("bias", long)
    first, second, preference = web.compared(
        ["bias"], [[right, right]], web.compare_by_facts, torch.Generator().manual_seed(0)
    )
    assert torch.equal(first, second)
    assert preference.tolist() == [0.5]


@pytest.mark.parametrize("n", ["2", "4", "8", "16"])
def test_what_the_page_says_of_the_stored_runs(n):
    rows = json.loads((RESULTS / "browser_best_of.json").read_text(encoding="utf-8"))["rows"]
    facts, length = ([r for r in rows if r["variant"] == v] for v in ("facts", "length"))
    assert [r["seed"] for r in facts] == [r["seed"] for r in length] == [0, 1, 2]
    assert all(r["right"][n] > r["right"]["1"] + 0.1 for r in facts)
    if n in ("8", "16"):
        assert sum(r["right"][n] for r in length) < sum(r["right"]["1"] for r in length)
    assert all(r["right"]["16"] < r["right"]["1"] for r in length)
