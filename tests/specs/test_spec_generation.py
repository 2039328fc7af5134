"""The Specs of generating: the package does what they ask, and they ask for no more than is right."""

import pytest
import torch

import tested_transformer as generation
from tested_transformer.generation import decoding_state
from tested_transformer.specs.generation import mutants as plain
from tested_transformer.specs.generation.spec import (
    BEAM_SEARCH,
    DECODING,
    GREEDY_DECODING,
    REPETITION,
    TEMPERATURE,
    TOP_K,
    TOP_P,
)
from tested_transformer.specs.judge import judge


class Asked:
    """A session that asks a function for the scores of all that was said."""

    def __init__(self, next_scores):
        self.next_scores, self.prefix_ids = next_scores, None

    def feed(self, tokens):
        self.prefix_ids = (
            tokens if self.prefix_ids is None else torch.cat([self.prefix_ids, tokens], dim=1)
        )
        return self.next_scores(self.prefix_ids)

    def reorder(self, rows):
        self.prefix_ids = self.prefix_ids[rows]


def temperature(logits, temperature):
    prefix_ids = torch.zeros(len(logits), 1, dtype=torch.long)
    return generation.Sampling(temperature=temperature).shape(logits, prefix_ids).softmax(-1)


def greedy(next_scores, start, max_new, eos, padding):
    if max_new == 0:  # the package refuses to generate nothing
        return start[:, :0]
    options = {"max_new": max_new, "eos": eos, "padding": padding}
    return generation.generate(Asked(next_scores), start, **options).tokens


def greedy_to_the_full_length(next_scores, start, max_new, eos, padding):
    tokens = greedy(next_scores, start, max_new, eos, padding)
    return torch.nn.functional.pad(tokens, (0, max_new - tokens.shape[1]), value=padding)


def beam_search(next_scores, start, num_beams, max_new, length_penalty):
    found = generation.beam_search(
        Asked(next_scores), torch.tensor([[start]]), num_beams=num_beams, max_new=max_new,
        length_penalty=length_penalty,
    )  # fmt: skip
    return found.tokens[0], found.scores[0]


def state(model, source=None, **options):
    if source is None:
        return decoding_state.CausalState(model, **options)
    return decoding_state.Seq2SeqState(model, source, **options)


def without_cache(model, source=None):
    return state(model, source, cache=False)


def ties_the_other_way(logits, p):
    return generation.top_p_filter(logits.flip(-1), p).flip(-1)


RIGHT = [
    (TEMPERATURE, temperature),
    (TOP_K, generation.top_k_filter),
    (TOP_P, generation.top_p_filter),
    (TOP_P, ties_the_other_way),
    (REPETITION, generation.repetition_penalty),
    (GREEDY_DECODING, greedy),
    (GREEDY_DECODING, greedy_to_the_full_length),
    (GREEDY_DECODING, plain.Greedy),
    (BEAM_SEARCH, beam_search),
    (BEAM_SEARCH, plain.Beams),
    (DECODING, state),
    (DECODING, without_cache),
    (DECODING, plain.Remembering),
]


@pytest.mark.parametrize(("spec", "candidate"), RIGHT, ids=lambda x: getattr(x, "__name__", ""))
def test_what_is_right_passes(spec, candidate):
    verdict = judge(spec, candidate)
    assert verdict.passed, verdict
    assert not verdict.skipped


@pytest.mark.parametrize("seed", range(20))
def test_the_greedy_cases_end_at_different_lengths(seed):
    """Without this no mutant that stops too early or too late could be told apart."""
    for case in GREEDY_DECODING.draw(seed):
        tokens = GREEDY_DECODING.expected(case)
        lengths = set((tokens != case.arguments["padding"]).sum(1).tolist())
        assert len(lengths) > 1 or len(tokens) == 1 or tokens.shape[1] <= 1, case.label


@pytest.mark.parametrize("seed", range(3))
def test_no_beam_case_has_two_best_sentences(seed):
    """Where two scores were equal, rounding would decide which sentence is right."""
    for case in BEAM_SEARCH.draw(seed):
        kept = []

        class Remembers(plain.Beams):
            def final(self, score, length, length_penalty, kept=kept):
                kept.append(super().final(score, length, length_penalty))
                return kept[-1]

        BEAM_SEARCH.build(Remembers, {})(**case.tensors())
        first, second = sorted(kept, reverse=True)[:2] if len(kept) > 1 else (0.0, -1.0)
        assert first - second > 1e-5, case.label
