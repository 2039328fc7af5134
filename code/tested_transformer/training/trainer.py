"""Training: one loop that a reader can follow, resume and repeat."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from tqdm import tqdm

from ..bounds import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Probability,
    Seed,
    Where,
)
from ..data import Batch, Pair, Vocabulary, make_batches
from ..data.pairs import Pairs
from ..errors import argument_error
from ..shapes import check_fields, checked
from .losses import cross_entropy, token_accuracy
from .schedules import one_cycle_rate, paper_rate

__all__ = ["Evaluation", "History", "Recipe", "Trainer", "evaluate"]

Schedule = Literal["one_cycle", "paper", "constant"]
Batches = Annotated[Sequence[Batch], Where("at least one", len)]


@dataclass(frozen=True)
class Recipe:
    """Everything that decides how a model is trained, besides the model and the data.

    Raises: TypeError or ValueError that name the field.
    Source: AdamW: Loshchilov and Hutter 2019; betas: Vaswani et al. 2017, section 5.3.
    """

    steps: PositiveInt = 600
    batch_size: PositiveInt = 64
    schedule: Schedule = "one_cycle"
    rate: PositiveFloat = 2e-3  # the peak; for "paper" the factor
    warmup: Probability = 0.15  # a share of all steps
    betas: tuple[Probability, Probability] = (0.9, 0.98)
    weight_decay: NonNegativeFloat = 0.01
    label_smoothing: Probability = 0.0
    clip: PositiveFloat | None = (
        1.0  # the largest norm of all gradients together; None: as they are
    )
    accumulate: PositiveInt = 1  # batches whose gradients are added up before a step
    evaluate_every: PositiveInt | None = None  # steps
    patience: PositiveInt | None = (
        None  # evaluations without a better one before stopping; None: never
    )
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.patience is not None and self.evaluate_every is None:
            wanted = "a number of steps, because patience counts evaluations"
            raise argument_error(ValueError, "evaluate_every", None, wanted)

    @checked
    def rate_at(self, step: PositiveInt, d_model: PositiveInt) -> float:
        """The learning rate of a step; the first is 1."""
        if self.schedule == "constant":
            return self.rate
        if self.schedule == "paper":
            warmup = max(1, round(self.warmup * self.steps))
            return paper_rate(step, d_model=d_model, warmup=warmup, factor=self.rate)
        return one_cycle_rate(step, total=self.steps, peak=self.rate, warmup=self.warmup)


@dataclass(frozen=True)
class Evaluation:
    """How well a model knows sentences that it was not trained on."""

    step: int
    loss: float  # per word
    accuracy: float  # share of words that are likeliest, teacher-forced


@dataclass
class History:
    """What happened: the loss and the learning rate of every step, and the evaluations."""

    losses: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)

    @property
    def best(self) -> Evaluation | None:
        """The evaluation with the smallest loss, the first of several."""
        return min(self.evaluations, key=lambda e: e.loss, default=None)


@checked
def evaluate(model: nn.Module, batches: Batches, *, step: NonNegativeInt = 0) -> Evaluation:
    """Loss and accuracy per word, without dropout, without gradients and without the future.

    The model is left in the mode in which it came.

    Raises: TypeError or ValueError that name the argument.
    Source: chapter 10.
    """
    was_training, device = model.training, device_of(model)
    model.eval()
    loss = right = words = 0.0
    try:
        with torch.no_grad():
            for batch in batches:
                batch = batch.to(device)
                logits, count = model(batch.source, batch.target), batch.num_tokens
                loss += cross_entropy(logits, batch.expected, reduction="sum").item()
                right += token_accuracy(logits, batch.expected) * count
                words += count
    finally:
        model.train(was_training)
    return Evaluation(step, loss / words, right / words)


class Trainer:
    """A model on its way: call `run` for all steps of the recipe, or for some and again for the rest.

    The same model, pairs and recipe give the same losses, in one run or in several, also when a
    checkpoint lies between them. On a GPU the products are computed in bfloat16.

    Raises: TypeError or ValueError that name the argument.
    Source: chapter 10.
    """

    @checked
    def __init__(
        self,
        model: nn.Module,
        pairs: Pairs,
        source: Vocabulary,
        target: Vocabulary,
        recipe: Recipe | None = None,
        *,
        held_out: Sequence[Pair] = (),
    ) -> None:
        self.recipe = Recipe() if recipe is None else recipe
        if self.recipe.evaluate_every is not None and not held_out:
            raise argument_error(ValueError, "held_out", "none", "pairs to evaluate on")
        self.model, self.pairs, self.source, self.target = model, list(pairs), source, target
        self.history, self.step = History(), 0
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=self.recipe.rate, betas=self.recipe.betas,
            weight_decay=self.recipe.weight_decay,
        )  # fmt: skip
        size = self.recipe.batch_size
        self.held_out = make_batches(held_out, source, target, batch_size=size) if held_out else []
        self.best_weights: dict[str, Tensor] | None = None

    @checked
    def run(self, steps: NonNegativeInt | None = None, *, progress: bool = True) -> History:
        """Take so many steps, or all that are left; stop early when patience runs out.

        With patience the model ends with the weights of its best evaluation.

        Raises: TypeError or ValueError that name the argument.
        """
        left = self.recipe.steps - self.step
        count = left if steps is None else min(steps, left)
        batches = self._batches_from(self.step * self.recipe.accumulate)
        with tqdm(total=count, disable=not progress, unit="step") as bar:
            for _ in range(count):
                if self.out_of_patience:
                    break
                with self._own_randomness():
                    self._take_step([next(batches) for _ in range(self.recipe.accumulate)])
                self._maybe_evaluate()
                bar.update()
                bar.set_postfix_str(self._summary(), refresh=False)
        if self.best_weights is not None and (
            self.out_of_patience or self.step == self.recipe.steps
        ):
            self.model.load_state_dict(self.best_weights)
        return self.history

    @property
    def out_of_patience(self) -> bool:
        """Have the last evaluations all been worse than the best?"""
        best, patience = self.history.best, self.recipe.patience
        if best is None or patience is None:
            return False
        since = [e for e in self.history.evaluations if e.step > best.step]
        return len(since) >= patience

    def _take_step(self, batches: list[Batch]) -> None:
        """One step: the mean is over all words of all batches, however they are spread."""
        self.model.train()
        device, words = device_of(self.model), sum(batch.num_tokens for batch in batches)
        rate = self.recipe.rate_at(self.step + 1, self.model.config.d_model)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        total = 0.0
        for batch in batches:
            batch = batch.to(device)
            with _low_precision(device):
                logits = self.model(batch.source, batch.target)
            loss = cross_entropy(
                logits, batch.expected, label_smoothing=self.recipe.label_smoothing,
                reduction="sum",
            ) / words  # fmt: skip
            loss.backward()
            total += loss.item()
        if self.recipe.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.history.losses.append(total)
        self.history.rates.append(rate)

    def _maybe_evaluate(self) -> None:
        every = self.recipe.evaluate_every
        if every is None or (self.step % every and self.step != self.recipe.steps):
            return
        self.history.evaluations.append(evaluate(self.model, self.held_out, step=self.step))
        if self.recipe.patience is not None and self.history.best.step == self.step:
            state = self.model.state_dict()
            self.best_weights = {name: tensor.clone() for name, tensor in state.items()}

    def _batches_from(self, skip: int) -> Iterator[Batch]:
        """Batches without end, each epoch in an order of its own, from the skip-th on."""
        size = self.recipe.batch_size
        an_epoch = -(-len(self.pairs) // size)
        epoch, first = divmod(skip, an_epoch)
        while True:
            yield from make_batches(
                self.pairs, self.source, self.target, batch_size=size,
                seed=_mixed(self.recipe.seed, epoch),
            )[first:]  # fmt: skip
            epoch, first = epoch + 1, 0

    @contextlib.contextmanager
    def _own_randomness(self) -> Iterator[None]:
        """Dropout of a step depends on the seed and the step alone: a later start repeats it."""
        device = device_of(self.model)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(_mixed(self.recipe.seed, self.step))
            yield

    def _summary(self) -> str:
        text = f"loss {self.history.losses[-1]:.4f}"
        if self.history.evaluations:
            last = self.history.evaluations[-1]
            text += f", held out {last.loss:.4f}, {last.accuracy:.2%} of words"
        return text


def device_of(model: nn.Module) -> torch.device:
    """Where a model's weights are."""
    return next(model.parameters()).device


def _mixed(seed: int, number: int) -> int:
    """A seed for each step or epoch, far from those of neighboring seeds."""
    return seed * 1_000_003 + number


def _low_precision(device: torch.device) -> Any:
    """bfloat16 products on a GPU; elsewhere nothing changes."""
    if device.type != "cuda":
        return contextlib.nullcontext()
    return torch.autocast("cuda", dtype=torch.bfloat16)
