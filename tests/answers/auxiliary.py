"""Auxiliary losses: the package's, loss by loss with torch's cross-entropy, and two wrong schedules."""

import torch
from torch.nn import functional

from answers import right, wrong
from tested_transformer.training.auxiliary import auxiliary_loss, layer_weights

for name in ("layer_weights", "ch18.layer_weights"):
    right(name, "the package's")(layer_weights)


@right("ch18.layer_weights", "layer by layer, a list")
def by_layer(num_layers, progress):
    ends = [layer / (2 * num_layers) for layer in range(1, num_layers)]
    return torch.tensor([float(progress < end) for end in ends] + [1.0])


@right("layer_weights", "by where, in float64")
def by_where(num_layers, progress):
    layer = torch.arange(1, num_layers + 1).double()
    weights = torch.where(progress * 2 * num_layers < layer, 1.0, 0.0).double()
    weights[-1] = 1.0
    return weights


@wrong("ch18.layer_weights", "the layers that have stopped")
def stopped(num_layers, progress):
    return 1.0 - layer_weights(num_layers, progress)


@wrong("layer_weights", "one layer more per step of 1/n, from the bottom")
def rising(num_layers, progress):
    return (torch.arange(num_layers) <= progress * 2 * num_layers).float()


right("auxiliary_loss", "the package's")(auxiliary_loss)


@right("auxiliary_loss", "with torch's cross-entropy")
def with_torch(logits, ids, *, progress, extra_weight=0.5):
    num_layers, num_targets, _, length, _ = logits.shape
    total = (0.0 * logits).sum()
    for layer in range(num_layers):
        if layer + 1 < num_layers and progress >= (layer + 1) / (2 * num_layers):
            continue
        for k in range(min(num_targets, length - 1)):
            predicted = logits[layer, k, :, : length - k - 1].flatten(0, 1)
            loss = functional.cross_entropy(predicted, ids[:, k + 1 :].flatten())
            total = total + loss * (extra_weight if k else 1)
    return total


@wrong("auxiliary_loss", "a sum over the positions")
def summed(logits, ids, *, progress, extra_weight=0.5):
    return auxiliary_loss(logits, ids, progress=progress, extra_weight=extra_weight) * (
        ids.shape[1] - 1
    )
