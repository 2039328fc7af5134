"""The language whose probabilities are known: against counting, and the model that was trained on it."""

import math
from collections import Counter

import pytest
import torch

from tested_transformer.data import BOS, EOS
from tested_transformer.data.number_words import english_words
from tested_transformer.experiments.ch11_spoken_numbers import (
    END,
    ExactModel,
    chance,
    load_spoken_model,
    number_of,
    sample_numbers,
    spoken_batch,
    spoken_vocabulary,
    true_chances,
)
from tested_transformer.generation.beam_search import beam_search
from tested_transformer.generation.decoding_state import CausalState
from tested_transformer.generation.generate import generate

BEGINNINGS = ["", "one", "twenty", "three hundred", "one hundred and", "five thousand"]
START = torch.tensor([[BOS]])


def test_chances_add_up():
    assert chance(1, 999_999) == pytest.approx(1.0)
    assert chance(1, 99) + chance(100, 999_999) == pytest.approx(1.0)


@pytest.mark.plain_types  # a million calls, and a check at each would take a minute
def test_true_chances_by_counting_every_number():
    """Every number below a million, one by one."""
    begun = [beginning.split() for beginning in BEGINNINGS]
    found = [Counter() for _ in begun]
    for number in range(1, 1_000_000):
        words = [*english_words(number), END]
        for beginning, counter in zip(begun, found, strict=True):
            if words[: len(beginning)] == beginning and len(words) > len(beginning):
                counter[words[len(beginning)]] += math.log10((number + 1) / number) / 6
    for beginning, counter in zip(begun, found, strict=True):
        true = true_chances(beginning)
        assert true.keys() == counter.keys()
        assert sum(true.values()) == pytest.approx(1.0)
        assert list(true.values()) == sorted(true.values(), reverse=True)
        for word, p in counter.items():
            assert true[word] == pytest.approx(p / counter.total(), abs=1e-9)


def test_draws_follow_the_chances():
    """20,000 draws: the first words within 5 standard deviations."""
    drawn = sample_numbers(20_000, torch.Generator().manual_seed(0))
    first = Counter(english_words(number)[0] for number in drawn)
    for word, p in true_chances().items():
        assert abs(first[word] / 20_000 - p) <= 5 * (p * (1 - p) / 20_000) ** 0.5
    assert drawn == sample_numbers(20_000, torch.Generator().manual_seed(0))


def test_numbers_are_read_back():
    for number in [
        *range(1, 1200),
        *sample_numbers(2000, torch.Generator().manual_seed(1)),
        999_999,
    ]:
        assert number_of(english_words(number)) == number


@pytest.mark.parametrize(
    "words",
    ["", "and", "one twenty", "one hundred one", "thousand", "twenty ten", "one one", "hundred",
     "one thousand thousand", "two and", "one thousand five hundred thousand"],
)  # fmt: skip
def test_what_is_no_number(words):
    assert number_of(words.split()) is None


def test_the_shipped_model_has_learned_the_chances():
    model, words = load_spoken_model()
    assert not model.training
    for beginning in map(str.split, BEGINNINGS):
        with torch.no_grad():
            said = model(torch.tensor([[BOS, *words.encode(beginning)]]))[0, -1].softmax(-1)
        for word, p in true_chances(beginning).items():
            assert abs(said[words.encode([word])[0]].item() - p) < 0.03


def test_the_likeliest_sentence_is_missed_by_greedy_and_found_by_beams():
    model, words = load_spoken_model()
    greedy = generate(CausalState(model), START, max_new=12)
    beams = beam_search(CausalState(model), START, num_beams=4, max_new=12, length_penalty=0.0)
    assert beams.decode(words) == [["one"]]
    assert beams.scores.exp().item() > 1000 * greedy.scores.exp().item()


def test_a_session_without_a_model():
    words = spoken_vocabulary()
    session = ExactModel(true_chances, words)
    session.feed(START.expand(2, 1))
    scores = session.feed(torch.tensor([words.encode(["one"]), words.encode(["ninety"])]))
    assert scores[0].softmax(-1)[EOS].item() == pytest.approx(0.25)
    session.reorder(torch.tensor([1, 1, 0]))
    assert session.prefix_ids.tolist() == [[BOS, 30], [BOS, 30], [BOS, 4]]
    impossible = session.feed(torch.tensor([words.encode(["and"])] * 3))
    assert impossible.argmax(-1).tolist() == [EOS] * 3


def test_a_batch_is_read_and_said():
    words = spoken_vocabulary()
    read, said = spoken_batch([21, 1], words)
    assert read.tolist() == [[BOS, *words.encode(["twenty", "one"])], [BOS, 4, 0]]
    assert said.tolist() == [[*words.encode(["twenty", "one"]), EOS], [4, EOS, 0]]


@pytest.mark.plain_types
def test_bad_questions():
    with pytest.raises(ValueError, match="first: expected at least 1"):
        chance(0, 3)
    with pytest.raises(ValueError, match="last: expected at least first = 1 and at most 999999"):
        chance(1, 1_000_000)
    with pytest.raises(ValueError, match="beginning: expected how a number begins, got and"):
        true_chances(["and"])
