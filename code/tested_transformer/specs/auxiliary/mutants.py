"""The mistakes in a schedule of intermediate losses, and in their weighted sum: the right formula with one step gone wrong."""

from __future__ import annotations

import torch

from ...training.losses import cross_entropy
from ..mistakes import Formula, mistake


def layer_weights(num_layers, progress):
    """The schedule in one line."""
    layer = torch.arange(1, num_layers + 1)
    return ((2 * num_layers * progress < layer) | (layer == num_layers)).float()


@mistake(
    "the last layer's loss stops, too",
    rejected_by="the last layer always counts",
    symptom="After half of the training the loss is 0 and nothing is learned any more.",
    cause="The schedule is for intermediate layers: the last layer is the one that makes the predictions.",
    of="layer_weights",
)
def all_stop(num_layers, progress):
    """Without the exception."""
    return (2 * num_layers * progress < torch.arange(1, num_layers + 1)).float()


@mistake(
    "the highest layers stop first",
    rejected_by="lower layers stop first",
    symptom="Late in the first half, the lowest layers are still trained to predict by themselves.",
    cause="The layers are counted from the top: layer l of n stops after l/2n.",
    of="layer_weights",
)
def from_the_top(num_layers, progress):
    """Counted down."""
    return torch.cat((layer_weights(num_layers, progress)[:-1].flip(0), torch.ones(1)))


@mistake(
    "intermediate losses to the end of the training",
    rejected_by="after half of the training one layer counts",
    symptom="Intermediate layers are trained to predict during all of the training.",
    cause="The schedule divides by n, where layer l stops after l/2n: all have stopped at half.",
    of="layer_weights",
)
def to_the_end(num_layers, progress):
    """Twice as slow."""
    return layer_weights(num_layers, progress / 2)


@mistake(
    "layers counted from 0 in the schedule",
    rejected_by="at the beginning every layer counts",
    symptom="The lowest layer never has a loss of its own, and each other one stops too early.",
    cause="arange begins at 0: layer 0 stops after 0/2n. The paper counts from 1.",
    of="layer_weights",
)
def from_zero(num_layers, progress):
    """One layer off."""
    layer = torch.arange(num_layers)
    return ((2 * num_layers * progress < layer) | (layer == num_layers - 1)).float()


@mistake(
    "intermediate layers that stop together",
    rejected_by="lower layers stop first",
    symptom="All intermediate losses count until half of the training, and then vanish in one step.",
    cause="Each layer has its own end, l/2n of the training; only the highest reach nearly to the half.",
    of="layer_weights",
)
def together(num_layers, progress):
    """One end for all."""
    counts = torch.full((num_layers,), float(progress < 0.5))
    counts[-1] = 1.0
    return counts


class LossFormula(Formula):
    """The right sum, cut into the steps that the mutants replace one at a time."""

    def weights(self, num_layers, progress):
        """Of the layers."""
        return layer_weights(num_layers, progress).tolist()

    def target_weight(self, k, extra_weight):
        """Of target k."""
        return 1.0 if k == 0 else extra_weight

    def one(self, logits, ids, k):
        """The mean over the positions that have target k. Shapes: logits (B, L, V), ids (B, L)."""
        known = max(ids.shape[1] - k - 1, 0)
        return cross_entropy(logits[:, :known], ids[:, k + 1 :], ignore=None)

    def combine(self, losses):
        """Of all layers and targets."""
        return torch.stack(losses).sum()

    def __call__(self, logits, ids, *, progress, extra_weight=0.5):
        losses = [
            weight * self.target_weight(k, extra_weight) * self.one(logits[layer, k], ids, k)
            for layer, weight in enumerate(self.weights(len(logits), progress))
            for k in range(logits.shape[1])
        ]
        return self.combine(losses)


@mistake(
    "all targets are the next character",
    rejected_by="target k is k + 1 characters further",
    symptom="The second classifier learns what the first one does.",
    cause="Every target is shifted by one. Target k is the character k + 1 positions later.",
    of="auxiliary_loss",
)
class AllTheNext(LossFormula):
    def one(self, logits, ids, k):
        return super().one(logits, ids, 0)


@mistake(
    "extra targets that count in full",
    rejected_by="an extra target has its own weight",
    symptom="The model spends as much on the character after the next as on the next one.",
    cause="The losses of extra targets are multiplied by 0.5 before they are added.",
    of="auxiliary_loss",
)
class InFull(LossFormula):
    def target_weight(self, k, extra_weight):
        return 1.0


@mistake(
    "targets that wrap around",
    rejected_by="positions without a target do not count",
    symptom="The last positions are trained to predict the first characters of their own sequence.",
    cause="The IDs were shifted by roll, which moves the first ones to the end.",
    of="auxiliary_loss",
)
class Rolled(LossFormula):
    def one(self, logits, ids, k):
        return cross_entropy(logits, ids.roll(-k - 1, dims=1), ignore=None)


@mistake(
    "the last position alone",
    rejected_by="every position predicts",
    symptom="A sequence of 512 characters gives one prediction where it could give 511.",
    cause="Only the last character of a sequence is predicted: no intermediate positions.",
    of="auxiliary_loss",
)
class LastPosition(LossFormula):
    def one(self, logits, ids, k):
        known = max(ids.shape[1] - k - 1, 0)
        return cross_entropy(
            logits[:, max(known - 1, 0) : known], ids[:, k + 1 :][:, -1:], ignore=None
        )


@mistake(
    "the mean over the layers",
    rejected_by="at the end the last layer's loss is the loss",
    symptom="With n layers, the last layer's loss counts one nth even when it is the only one left.",
    cause="The weighted losses are added, not averaged.",
    of="auxiliary_loss",
)
class MeanOverLayers(LossFormula):
    def __call__(self, logits, ids, *, progress, extra_weight=0.5):
        options = {"progress": progress, "extra_weight": extra_weight}
        return super().__call__(logits, ids, **options) / len(logits)


@mistake(
    "intermediate losses without a schedule",
    rejected_by="at the end the last layer's loss is the loss",
    symptom="Lower layers are trained to predict until the end, where the last one alone should count.",
    cause="The progress of the training is ignored.",
    of="auxiliary_loss",
)
class NoSchedule(LossFormula):
    def weights(self, num_layers, progress):
        return [1.0] * num_layers
