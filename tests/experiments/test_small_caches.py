"""The small models of chapter 16: how many bytes they cache, and what is stored of their training."""

import json
from pathlib import Path

import pytest
import torch

from tested_transformer.experiments.ch16_small_caches import (
    CACHES,
    D_HEAD,
    HEADS,
    cache_bytes_measured,
    small_cache_model,
)

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


def rows(name):
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["rows"]


@pytest.mark.parametrize("cache", CACHES)
def test_the_bytes_are_those_of_the_formula(cache):
    sizes = CACHES[cache]
    kept = sum(sizes.values()) if "d_latent" in sizes else 2 * sizes["num_kv_heads"] * D_HEAD
    assert cache_bytes_measured(small_cache_model(cache)) == 2 * 4 * kept  # layers, float32


@torch.no_grad()
@pytest.mark.parametrize("cache", ["MQA", "MLA, 24 + 8"])
def test_decoding_with_the_cache_is_one_pass(cache):
    model = small_cache_model(cache).eval()
    ids, state = torch.randint(len(model.embedding.table.weight), (2, 7)), model.new_cache()
    chunks = [model(chunk, cache=state) for chunk in ids.split(3, dim=1)]
    torch.testing.assert_close(torch.cat(chunks, dim=1), model(ids))


def test_three_seeds_of_every_cache_are_stored():
    stored = rows("small_caches")
    assert {(row["variant"], row["seed"]) for row in stored} == {
        (c, s) for c in CACHES for s in range(3)
    }
    for row in stored:
        torch.manual_seed(row["seed"])
        model = small_cache_model(row["variant"])
        assert row["parameters"] == sum(weight.numel() for weight in model.parameters())
        assert row["bytes"] == cache_bytes_measured(model)


def test_two_kv_heads_are_the_llama_of_chapter_13():
    """It was measured there too, on the same unseen sequences."""
    before = {
        row["seed"]: row["unseen"]
        for row in rows("five_lines")
        if (row["variant"], row["lr"]) == ("Llama", 0.01)
    }
    now = {
        row["seed"]: row["right"]
        for row in rows("small_caches")
        if row["variant"] == "GQA, 2 KV heads"
    }
    assert now == before


def test_the_heads_are_those_of_chapter_13():
    config = small_cache_model("MHA").config
    assert (config.num_heads, config.d_head, config.num_kv_heads) == (HEADS, D_HEAD, HEADS)


def test_the_short_rotary_key_is_slow_to_learn_and_not_too_short():
    found = {
        (row["base"], row["steps"], row["seed"]): row["right"]
        for row in rows("small_caches_longer")
        if row["variant"] == "MLA, 24 + 8"
    }
    assert min(found[100, 400, seed] for seed in range(3)) > 0.85
    assert min(found[10_000, 1200, seed] for seed in range(3)) > 0.93
