"""The Specs of training: the package's own parts pass them, others that are right do too."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from answers.training import in_one_batch
from tested_transformer.data import Pair, Vocabulary
from tested_transformer.specs import pitfall
from tested_transformer.specs.judge import judge
from tested_transformer.specs.spec import specs_in
from tested_transformer.specs.training import spec as spec_of_training
from tested_transformer.specs.training.spec import (
    EVALUATION,
    ONE_CYCLE_RATE,
    PAPER_RATE,
    TEACHER_FORCING,
    TRAINING_STEP,
    TinyModel,
    slow_gradient,
)
from tested_transformer.training.schedules import one_cycle_rate, paper_rate
from tested_transformer.training.trainer import Recipe, Trainer, evaluate

WORDS = Vocabulary([str(number) for number in range(4, 30)])
A_PAIR = Pair(("4",), ("4",))


def cut_after_padding(sentences):
    rows = [torch.tensor([1, *words, 2]) for words in sentences]
    whole = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return whole[:, :-1], whole[:, 1:]


def trainer_step(model, optimizer, batches, clip):
    """The package's step, with another optimizer, on a model that knows its width."""
    model.config = SimpleNamespace(d_model=model.output.shape[0])
    rate = optimizer.param_groups[0]["lr"]
    recipe = Recipe(steps=1, accumulate=len(batches), clip=clip, schedule="constant", rate=rate)
    work = Trainer(model, [A_PAIR], WORDS, WORDS, recipe)
    work.optimizer = optimizer
    work._take_step(batches)


def weighted_means(model, optimizer, batches, clip):
    """The mean of each batch, weighted by its words; cleared first."""
    optimizer.zero_grad(set_to_none=False)
    counts = [(batch.expected != 0).sum() for batch in batches]
    for batch, count in zip(batches, counts, strict=True):
        logits = model(batch.source, batch.target)
        loss = functional.cross_entropy(logits.mT, batch.expected, ignore_index=0)
        (loss * count / sum(counts)).backward()
    if clip is not None:
        norm = math.sqrt(sum(p.grad.square().sum() for p in model.parameters()))
        for parameter in model.parameters():
            parameter.grad *= min(1.0, clip / norm)
    optimizer.step()


@torch.inference_mode()
def evaluated_word_by_word(model, batches):
    was_training = model.training
    model.eval()
    losses, hits = [], []
    for batch in batches:
        counts = batch.expected != 0
        logits, words = model(batch.source, batch.target)[counts], batch.expected[counts]
        losses += functional.cross_entropy(logits, words, reduction="none").tolist()
        hits += (logits.argmax(-1) == words).tolist()
    model.train(was_training)
    return sum(losses) / len(losses), sum(hits) / len(hits)


def torch_cycle(step, *, total, peak, warmup=0.3, start_ratio=25.0, end_ratio=1e4):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=peak, total_steps=total, pct_start=warmup, div_factor=start_ratio,
        final_div_factor=end_ratio, cycle_momentum=False,
    )  # fmt: skip
    for _ in range(step - 1):
        optimizer.step()
        schedule.step()
    return optimizer.param_groups[0]["lr"]


def piecewise(step, *, d_model, warmup=4000, factor=1.0):
    peak = factor / math.sqrt(d_model * warmup)
    return peak * (step / warmup if step < warmup else math.sqrt(warmup / step))


RIGHT = {
    "make_batch": (TEACHER_FORCING, in_one_batch),
    "cut after padding": (TEACHER_FORCING, cut_after_padding),
    "the trainer's step": (TRAINING_STEP, trainer_step),
    "weighted means": (TRAINING_STEP, weighted_means),
    "evaluate": (EVALUATION, evaluate),
    "word by word": (EVALUATION, evaluated_word_by_word),
    "paper_rate": (PAPER_RATE, paper_rate),
    "piecewise": (PAPER_RATE, piecewise),
    "one_cycle_rate": (ONE_CYCLE_RATE, one_cycle_rate),
    "torch's one cycle": (ONE_CYCLE_RATE, torch_cycle),
}


@pytest.mark.parametrize(("spec", "right"), RIGHT.values(), ids=RIGHT)
def test_right_implementations_pass(spec, right):
    verdict = judge(spec, right)
    assert verdict.passed, verdict
    assert dict(verdict.skipped) == {}


def test_the_gradient_on_paper_is_autograd_s():
    for case in TRAINING_STEP.draw(0)[:5]:
        a, given = case.arguments, case.tensors()
        tables = [a[name] for name in ("source_table", "target_table", "output")]
        model = TinyModel(*(torch.from_numpy(table) for table in tables), dropout=0.0)
        logits = model(given["source"], given["target"])
        functional.cross_entropy(logits.mT, given["expected"], ignore_index=0).backward()
        slopes = slow_gradient(a["source"], a["target"], a["expected"], *tables)
        for parameter, slope in zip(model.parameters(), slopes, strict=True):
            torch.testing.assert_close(parameter.grad, torch.from_numpy(slope))


def test_clipping_is_put_to_the_test():
    """The limits of the cases are below the norms that they must bound, or far above."""
    for case in TRAINING_STEP.draw(0):
        a = case.arguments
        if a["clip"] is None:
            continue
        tables = [a[name] for name in ("source_table", "target_table", "output")]
        slopes = slow_gradient(a["source"], a["target"], a["expected"], *tables)
        norm = math.sqrt(sum((slope**2).sum() for slope in slopes))
        assert norm > 2 * a["clip"] or norm < a["clip"] / 2, case.label


def test_a_pitfall_of_every_part_has_its_name():
    """The names that chapter 10 refers to."""
    names = [
        "loss over padding", "softmax before the loss", "mean of means",
        "accumulation not normalized", "evaluation with the future visible",
        "evaluation with dropout", "smoothing without the right word's share",
        "eval without no_grad",
    ]  # fmt: skip
    assert all(pitfall(name).chapter == 10 for name in names)
    assert all(spec.chapter == 10 for spec in specs_in(spec_of_training))


def test_the_root_of_512():
    """The symptom of a rate with d_model in place of its root."""
    rate = pitfall("d_model in place of its root").candidate
    assert paper_rate(9, d_model=512) / rate(9, d_model=512) == pytest.approx(22, abs=1)
