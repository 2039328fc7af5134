"""What is special to the exercises of chapter 11."""

import pytest
import torch

from solutions import chapter_solutions
from tested_transformer import LanguageModel, LanguageModelConfig, check

SOLUTIONS = chapter_solutions()
top_p = SOLUTIONS["ch11.top_p"]
greedy_fails = SOLUTIONS["ch11.greedy_fails"]
cache_bytes = SOLUTIONS["ch11.cache_bytes"]


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
