"""Permutation masks by sorting a causal mask, and by comparing turns; targets by scatter."""

import torch

from answers import right, wrong
from tested_transformer.functional.permutation_masks import permutation_masks, target_mapping

right("permutation_masks", "the package's")(permutation_masks)
right("target_mapping", "the package's")(target_mapping)


@right("permutation_masks", "a causal mask whose rows and columns change places")
def by_sorting(order, predicted=None, functional=None):
    batch, length = order.shape
    hidden = torch.ones_like(order, dtype=torch.bool) if predicted is None else predicted
    hidden = hidden if functional is None else hidden | functional
    masks = []
    for diagonal in (0, -1):
        causal = torch.ones(length, length, dtype=torch.bool).tril(diagonal)
        mask = torch.zeros(batch, length, length, dtype=torch.bool)
        for b in range(batch):
            mask[b][order[b][:, None], order[b]] = causal
        mask = torch.where(hidden[:, :, None], mask, False)
        masks.append(torch.where(hidden[:, None, :], mask, True))
    own = torch.eye(length, dtype=torch.bool)
    return (masks[0] | own)[:, None], masks[1][:, None]


@right("target_mapping", "by scatter")
def by_scatter(targets, length):
    return torch.zeros(*targets.shape, length).scatter_(-1, targets[..., None], 1.0)


@right("target_mapping", "rows of an identity matrix")
def by_rows(targets, length):
    return torch.eye(length)[targets]


@wrong("permutation_masks", "the order of the first sequence for all")
def one_order(order, predicted=None, functional=None):
    return permutation_masks(order[:1].expand_as(order).contiguous(), predicted, functional)


@wrong("permutation_masks", "rows and columns are exchanged")
def transposed(order, predicted=None, functional=None):
    content, query = permutation_masks(order, predicted, functional)
    return content.mT, query.mT


@wrong("target_mapping", "targets and positions are exchanged")
def exchanged(targets, length):
    return target_mapping(targets, length).roll(1, -2)
