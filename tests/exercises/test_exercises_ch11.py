"""The exercises of chapter 11: a right answer passes, the usual mistakes are named."""

import math

import pytest
import torch

from tested_transformer import LanguageModel, LanguageModelConfig, check


def temperature_for(gap, p):
    return gap / math.log(p / (1 - p))


def top_p(logits, p):
    kept = torch.full_like(logits, -torch.inf)
    for row, scores in enumerate(logits):
        probability = scores.softmax(-1)
        order = probability.argsort(descending=True)
        count = int((probability[order].cumsum(0) < p).sum()) + 1
        kept[row, order[:count]] = scores[order[:count]]
    return kept


def log_probability(logits, words):
    gained = torch.gather(logits - logits.logsumexp(-1, keepdim=True), 2, words[..., None])
    return (gained.squeeze(-1) * (words != 0)).sum(1)


def greedy_fails(vocab, ratio):
    gap = (vocab / ratio - 1) / (2 * vocab)
    first = torch.full((vocab,), 1 / vocab - gap / vocab, dtype=torch.float64)
    first[0] += gap
    second = torch.full((vocab, vocab), 1 / vocab, dtype=torch.float64)
    second[1] = torch.eye(vocab, dtype=torch.float64)[0]
    return first, second


def beam_step(scores, logits):
    total = scores.unsqueeze(1) + logits.log_softmax(1)
    best, places = total.view(-1).topk(len(scores))
    beams = torch.div(places, logits.shape[1], rounding_mode="floor")
    return beams, places - beams * logits.shape[1], best


def cache_bytes(num_layers, d_model, num_heads, num_kv_heads, tokens, batch, bits):
    width = d_model // num_heads * num_kv_heads
    return num_layers * 2 * width * tokens * batch * bits // 8


SOLUTIONS = {
    "ch11.temperature_for": temperature_for,
    "ch11.top_p": top_p,
    "ch11.log_probability": log_probability,
    "ch11.greedy_fails": greedy_fails,
    "ch11.beam_step": beam_step,
    "ch11.cache_bytes": cache_bytes,
}


def test_equally_likely_words_may_stay_in_any_order():
    assert check("ch11.top_p", lambda logits, p: top_p(logits.flip(-1), p).flip(-1)).passed


def test_greedy_may_fail_in_more_than_one_way():
    """With two words any gap will do, if the likelier first word is followed by even chances."""

    def other(vocab, ratio):
        first, second = greedy_fails(vocab, ratio)
        turned = list(reversed(range(vocab)))
        return first[turned], second[turned][:, turned]

    assert check("ch11.greedy_fails", other).passed


def test_no_table_reaches_the_number_of_words():
    """Greedy's first word has at least 1 / V, and so has its second: a ratio of V is out of reach."""
    for seed in range(200):
        rng = torch.Generator().manual_seed(seed)
        first, second = (torch.rand(s, generator=rng).pow(9) for s in ((3,), (3, 3)))
        first, second = first / first.sum(), second / second.sum(-1, keepdim=True)
        word = first.argmax()
        assert (first[:, None] * second).max() < 3 * first[word] * second[word].max()


def test_a_known_cache():
    assert cache_bytes(40, 5120, 40, 40, 2048, 1, 16) == pytest.approx(1.68e9, rel=2e-3)


@pytest.mark.parametrize("tokens", [3, 64])
def test_the_bytes_are_what_a_cache_takes(tokens):
    config = LanguageModelConfig(9, d_model=12, num_heads=3, num_layers=2)
    model = LanguageModel(config).eval()
    cache = model.new_cache(capacity=tokens)
    with torch.no_grad():
        model(torch.full((2, tokens), 3), cache=cache)
    assert cache.nbytes == cache_bytes(2, 12, 3, 3, tokens, 2, 32)
