"""Training: repeatable, resumable, normalized by words; checkpoints are whole or refused."""

import json
import math

import pytest
import torch

from tested_transformer.data import Vocabulary, make_batches, single_numbers
from tested_transformer.models.transformer import Transformer, TransformerConfig
from tested_transformer.training.checkpoint import (
    CheckpointError,
    load_checkpoint,
    load_trained,
    save_checkpoint,
    save_trained,
)
from tested_transformer.training.trainer import Recipe, Trainer, evaluate

SPLIT = single_numbers(train=300, test=60)
SOURCE = Vocabulary.of(pair.source for pair in SPLIT.train)
TARGET = Vocabulary.of(pair.target for pair in SPLIT.train)
QUICK = Recipe(steps=12, batch_size=16, evaluate_every=4)


def small_model(dropout=0.1, seed=0, **changes):
    torch.manual_seed(seed)
    sizes = {"d_model": 16, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1}
    vocabularies = {"source_vocab": len(SOURCE), "target_vocab": len(TARGET)}
    return Transformer(TransformerConfig(**vocabularies, **sizes, dropout=dropout, **changes))


def trainer(recipe=QUICK, model=None, pairs=SPLIT.train):
    model = small_model() if model is None else model
    return Trainer(model, pairs, SOURCE, TARGET, recipe, held_out=SPLIT.test)


def test_a_model_learns():
    history = trainer(Recipe(steps=60, batch_size=32, rate=1e-2)).run(progress=False)
    assert len(history.losses) == len(history.rates) == 60
    assert history.losses[-1] < 0.6 * history.losses[0]


def test_two_runs_are_equal_and_the_seed_matters():
    first, second = (trainer().run(progress=False) for _ in range(2))
    assert first == second
    other = trainer(Recipe(steps=12, batch_size=16, evaluate_every=4, seed=1)).run(progress=False)
    assert other.losses != first.losses


def test_the_outside_randomness_is_left_alone():
    work = trainer()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    work.run(progress=False)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("stop", [1, 5, 11])
def test_going_on_equals_never_stopping(tmp_path, stop):
    whole = trainer()
    whole.run(progress=False)
    first = trainer()
    first.run(stop, progress=False)
    save_checkpoint(tmp_path, first)
    second = trainer(model=small_model(seed=9))
    load_checkpoint(tmp_path, second)
    assert second.step == stop
    second.run(progress=False)
    assert second.history == whole.history
    for mine, theirs in zip(second.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_accumulated_gradients_are_those_of_one_large_batch():
    """Batches of unequal numbers of words: a mean of means would differ."""
    recipe = {"steps": 1, "rate": 1e-3, "clip": None}
    small = trainer(
        Recipe(batch_size=8, accumulate=2, **recipe), small_model(0.0), SPLIT.train[:16]
    )
    large = trainer(Recipe(batch_size=16, **recipe), small_model(0.0), SPLIT.train[:16])
    counts = [b.num_tokens for b in make_batches(SPLIT.train[:16], SOURCE, TARGET, batch_size=8)]
    assert counts[0] != counts[1]
    losses = [each.run(progress=False).losses[0] for each in (small, large)]
    assert math.isclose(*losses, rel_tol=1e-6)
    pairs = zip(small.model.parameters(), large.model.parameters(), strict=True)
    assert max((a - b).abs().max().item() for a, b in pairs) < 1e-5


def test_the_rates_are_those_of_the_schedule():
    for schedule, rate in (("one_cycle", 3e-3), ("paper", 1.0), ("constant", 1e-3)):
        recipe = Recipe(steps=10, batch_size=16, schedule=schedule, rate=rate)
        history = trainer(recipe).run(progress=False)
        assert history.rates == [recipe.rate_at(step, 16) for step in range(1, 11)]


def test_clipping_bounds_the_step():
    """With plain gradient descent in place of AdamW the step is the clipped gradient."""
    work = trainer(Recipe(steps=1, batch_size=16, clip=0.01, schedule="constant", rate=1.0))
    work.optimizer = torch.optim.SGD(work.model.parameters(), lr=1.0)
    before = [p.detach().clone() for p in work.model.parameters()]
    work.run(progress=False)
    moved = sum(
        (a - b).square().sum() for a, b in zip(work.model.parameters(), before, strict=True)
    )
    assert math.isclose(moved.sqrt().item(), 0.01, rel_tol=1e-3)


def test_evaluation_is_quiet():
    """No dropout, no gradient, the same mode afterwards, and the mean is over words."""
    model = small_model(dropout=0.5).train()
    batches = make_batches(SPLIT.test, SOURCE, TARGET, batch_size=7)
    first, second = evaluate(model, batches), evaluate(model, batches)
    assert first == second
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    whole = evaluate(model, make_batches(SPLIT.test, SOURCE, TARGET, batch_size=60))
    assert math.isclose(first.loss, whole.loss, rel_tol=1e-5)
    assert math.isclose(first.accuracy, whole.accuracy, rel_tol=1e-5)


def test_patience_stops_and_the_best_weights_stay():
    recipe = Recipe(
        steps=400, batch_size=16, evaluate_every=2, patience=2, schedule="constant", rate=0.3
    )
    work = trainer(recipe)
    history = work.run(progress=False)
    assert len(history.losses) < 400
    assert history.evaluations[-1].step == history.best.step + 4
    assert evaluate(work.model, work.held_out, step=history.best.step) == history.best


def test_a_long_run_shows_a_bar(capsys):
    trainer(Recipe(steps=2, batch_size=16)).run()
    shown = capsys.readouterr().err
    assert "2/2" in shown
    assert "loss" in shown
    trainer(Recipe(steps=2, batch_size=16)).run(progress=False)
    assert capsys.readouterr().err == ""


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"steps": 0}, "steps: expected at least 1"),
        ({"schedule": "cosine"}, 'schedule: expected one of "one_cycle", "paper", "constant"'),
        ({"rate": -1.0}, "rate: expected a number above 0"),
        ({"label_smoothing": 1.0}, "label_smoothing: expected a probability"),
        ({"patience": 3}, "evaluate_every: expected a number of steps"),
        ({"clip": 0.0}, "clip: expected a number above 0"),
    ],
)
def test_bad_recipes(fields, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**fields)


def test_nothing_to_train_or_evaluate_on():
    with pytest.raises(ValueError, match="pairs: expected at least one pair"):
        trainer(pairs=[])
    with pytest.raises(ValueError, match="held_out: expected pairs to evaluate on"):
        Trainer(small_model(), SPLIT.train, SOURCE, TARGET, QUICK)
    with pytest.raises(ValueError, match="batches: expected at least one"):
        evaluate(small_model(), [])


# --- On disk --------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"tied_output": False, "output_bias": True}])
def test_a_trained_model_comes_back_whole(tmp_path, changes):
    model = small_model(**changes)
    save_trained(tmp_path / "model", model, SOURCE, TARGET)
    again, source, target = load_trained(tmp_path / "model")
    assert (source.words, target.words) == (SOURCE.words, TARGET.words)
    assert again.config == model.config
    assert not again.training
    batch = make_batches(SPLIT.test[:5], SOURCE, TARGET)[0]
    assert torch.equal(again(batch.source, batch.target), model.eval()(batch.source, batch.target))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model"]


def test_saving_again_replaces(tmp_path):
    for seed in (0, 1):
        save_trained(tmp_path / "model", small_model(seed=seed), SOURCE, TARGET)
    again, _, _ = load_trained(tmp_path / "model")
    table = small_model(seed=1).source_embedding.table.weight
    assert torch.equal(again.source_embedding.table.weight, table)


def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch):
    save_trained(tmp_path / "model", small_model(), SOURCE, TARGET)
    monkeypatch.setattr(json, "dumps", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save_trained(tmp_path / "model", small_model(seed=1), SOURCE, TARGET)
    monkeypatch.undo()
    again, _, _ = load_trained(tmp_path / "model")
    table = small_model(seed=0).source_embedding.table.weight
    assert torch.equal(again.source_embedding.table.weight, table)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model"]


def two_checkpoints(folder):
    work = trainer()
    for _ in range(3):
        work.run(2, progress=False)
        save_checkpoint(folder, work)
    assert sorted(each.name for each in folder.iterdir()) == ["step-000004", "step-000006"]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "model.json"])
def test_a_checkpoint_cut_short_is_refused(tmp_path, name):
    two_checkpoints(tmp_path)
    path = tmp_path / "step-000006" / name
    path.write_bytes(path.read_bytes()[:-100])
    work = trainer()
    table = work.model.source_embedding.table.weight.clone()
    with pytest.raises(CheckpointError, match=f"{name}: cut short .*step-000004 is still there"):
        load_checkpoint(tmp_path, work)
    assert work.step == 0
    assert torch.equal(work.model.source_embedding.table.weight, table)
    assert (tmp_path / "step-000004" / "model.json").exists()


def test_a_checkpoint_with_a_file_missing_is_refused(tmp_path):
    two_checkpoints(tmp_path)
    (tmp_path / "step-000006" / "optimizer.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"expected optimizer\.safetensors, found none"):
        load_checkpoint(tmp_path, trainer())


def test_a_folder_without_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="expected a checkpoint, step-..., found none"):
        load_checkpoint(tmp_path / "nowhere", trainer())
    with pytest.raises(CheckpointError, match=r"expected model\.json, found none"):
        load_trained(tmp_path)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: trainer(Recipe(steps=13, batch_size=16, evaluate_every=4)),
         "another recipe: steps = 12, here 13"),
        (lambda: trainer(model=small_model(norm_placement="pre")),
         "another config: final_norm = False, here True"),
    ],
)  # fmt: skip
def test_a_checkpoint_of_another_run_is_refused(tmp_path, other, message):
    two_checkpoints(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(tmp_path, other())


def test_a_checkpoint_keeps_the_best_weights(tmp_path):
    recipe = Recipe(
        steps=400, batch_size=16, evaluate_every=2, patience=2, schedule="constant", rate=0.3
    )
    whole = trainer(recipe)
    whole.run(progress=False)
    first = trainer(recipe)
    first.run(len(whole.history.losses) - 1, progress=False)
    save_checkpoint(tmp_path, first)
    second = trainer(recipe, small_model(seed=3))
    load_checkpoint(tmp_path, second)
    second.run(progress=False)
    assert second.history == whole.history
    assert evaluate(second.model, second.held_out, step=whole.history.best.step) == (
        whole.history.best
    )
