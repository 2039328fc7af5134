"""New names for numbers: the task, the keys that ship with the package, and what is stored of the runs."""

import json
from pathlib import Path

import torch

from tested_transformer.experiments.ch22_facts import (
    ANSWERS,
    FILL,
    KEY_MODEL,
    MODELS,
    NUMBERS,
    QUESTIONS,
    STATEMENTS,
    WORDS,
    Facts,
    build,
    keys_by,
    load_key_model,
    new_names,
    right_names,
    sample_rows,
    split_numbers,
    text_of,
    train,
    word_counts,
)
from tested_transformer.functional.retrieval import nearest_neighbors

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
ALL = torch.arange(len(NUMBERS))


def test_a_sequence_is_two_questions_with_their_names():
    known, _ = split_numbers()
    facts = Facts(new_names(1), known, word_counts)
    ids, neighbors = facts.batch(torch.tensor([[23, 323]]))
    assert (ids.shape, neighbors.shape) == ((1, 32), (1, 4, 1, 16))
    assert text_of(ids[0, :8]) == "wie heißt vier und zwanzig ?"
    assert text_of(ids[0, 16:24]) == "wie heißt drei hundert vier und zwanzig ?"
    for number, at in zip((23, 323), ANSWERS, strict=True):
        assert torch.equal(ids[0, at + 1], new_names(1)[number, :3])
        assert WORDS[ids[0, at[0]]] == "?"


def test_nothing_of_later_facts_is_in_the_database_of_training():
    known, later = split_numbers()
    assert sorted((*known.tolist(), *later.tolist())) == ALL.tolist()
    facts = Facts(new_names(1), known, word_counts)
    stored = {tuple(row) for row in facts.database.texts[:, :8].tolist()}
    assert not stored & {tuple(row) for row in STATEMENTS[later].tolist()}
    assert all(tuple(row) in stored for row in STATEMENTS[known].tolist())


def test_the_keys_know_the_order_of_the_words_and_counts_do_not():
    """324 and 423 have the same words; the shipped encoder has not seen the later numbers."""
    encode, (_, later) = keys_by(load_key_model()), split_numbers()
    found = nearest_neighbors(encode(QUESTIONS), encode(STATEMENTS), 1)[:, 0]
    assert torch.equal(found, ALL)
    counted = nearest_neighbors(word_counts(QUESTIONS), word_counts(STATEMENTS), 2)
    assert {323, 422} == set(counted[422].tolist())
    assert 0.6 < (counted[later, 0] == later).double().mean() < 0.75
    assert sum(path.stat().st_size for path in KEY_MODEL.iterdir()) < 200_000
    assert not bool((QUESTIONS == FILL).all(1).any())


def test_a_few_steps_of_training_change_every_parameter():
    known, _ = split_numbers()
    facts = Facts(new_names(1), known, word_counts)
    model = build("small, with retrieval", 0)
    before = {name: w.detach().clone() for name, w in model.named_parameters()}
    train(model, facts, known, 0, steps=3, rate=1e-2)
    assert all(bool((before[name] != w).any()) for name, w in model.named_parameters())
    assert right_names(model, facts, known) <= 0.01
    pairs = sample_rows(known, 50, torch.Generator().manual_seed(0))
    assert bool((pairs[:, 0] != pairs[:, 1]).all())


def stored():
    return json.loads((RESULTS / "retrieval.json").read_text(encoding="utf-8"))["rows"]


def test_three_seeds_of_every_model_are_stored():
    assert sorted((row["model"], row["seed"]) for row in stored()) == sorted(
        (model, seed) for model in MODELS for seed in range(3)
    )
    for row in stored():
        assert row["parameters"] == sum(w.numel() for w in build(row["model"], 0).parameters())


def test_what_the_page_says_of_the_stored_runs():
    for row in stored():
        right = row["right"]
        assert right["facts of training"] > 0.9
        looks_up = row["model"] == "small, with retrieval"
        for later in ("facts added later", "facts changed later"):
            assert right[later] > 0.9 if looks_up else right[later] < 0.01
        if looks_up:
            assert right["others' neighbors"] < 0.01
