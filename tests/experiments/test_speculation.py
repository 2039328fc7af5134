"""The experiment of chapter 16: its drafts, its counts, and the helpers of its page."""

import pytest
import torch

from tested_transformer.analysis.every_outcome import every_outcome
from tested_transformer.experiments.ch13_prose import load_prose_model
from tested_transformer.experiments.ch16_speculative import (
    DRAFTS,
    SHIPPED,
    draft_named,
    expected_tokens,
    load_draft_model,
    measure_speculation,
    round_distribution,
    table_model,
)
from tested_transformer.generation.speculative import speculative_round


def test_the_draft_is_small_and_has_the_target_s_vocabulary():
    target, draft = load_prose_model()[0], load_draft_model()
    sizes = [sum(weight.numel() for weight in model.parameters()) for model in (target, draft)]
    assert draft.config.vocab_size == target.config.vocab_size
    assert sizes[0] > 10 * sizes[1]
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 200_000


def test_the_table_is_what_the_target_predicts_after_one_token():
    target, _ = load_prose_model()
    with torch.no_grad():
        wanted = target(torch.tensor([[17]]))[0]
    found = draft_named("a table of pairs")([5, 300, 17], 1)
    torch.testing.assert_close(found, wanted)
    assert draft_named("a table of pairs")([5, 300, 17], 2).shape == (2, 512)


@pytest.mark.parametrize("draft", DRAFTS)
def test_greedy_counts_are_whole_numbers_of_rounds(draft):
    found = measure_speculation(draft, 2, 0, max_new=7, temperature=0.0)
    assert found["calls"] <= found["tokens"] <= 3 * found["calls"]
    assert found["tokens_per_call"] == found["tokens"] / found["calls"]
    assert 0 <= found["accepted"] <= 1
    assert 0 <= found["overlap"] <= 1


def test_the_formula_is_the_closed_one():
    for a in (0.0, 0.3, 0.9):
        for length in range(6):
            closed = (1 - a ** (length + 1)) / (1 - a)
            assert expected_tokens(a, length) == pytest.approx(closed, rel=1e-14)
    assert expected_tokens(1.0, 4) == 5


def test_the_page_s_distribution_is_that_of_the_target():
    def probabilities(logits):
        return logits.softmax(-1)

    target, draft = table_model(3, 2, seed=0), table_model(3, 2, seed=1)
    found, wanted = round_distribution(speculative_round, target, draft, probabilities)
    assert (found - wanted).abs().max() < 1e-15  # of at most 36 terms of 8 factors
    assert float(wanted.sum()) == pytest.approx(1, abs=1e-15)
    texts = list(
        every_outcome(lambda choose: speculative_round(target, draft, [], 2, probabilities, choose))
    )
    assert {len(tokens) for tokens, _ in texts} == {1, 2, 3}
