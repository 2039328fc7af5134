"""Balance among experts: the package's, transformers' way, one-hot products."""

import torch
from torch.nn import functional

from answers import right, wrong
from tested_transformer.functional.balance import (
    balance_bias_step,
    balance_loss,
    router_z_loss,
    within_capacity,
)

right("balance_loss", "the package's")(balance_loss)
right("router_z_loss", "the package's")(router_z_loss)
right("balance_bias_step", "the package's")(balance_bias_step)
right("within_capacity", "the package's")(within_capacity)


@right("balance_loss", "by one-hot matrices and a mask")
def by_one_hot(logits, num_chosen, *, real=None):
    count, flat = logits.shape[-1], logits.reshape(-1, logits.shape[-1])
    weight = flat.new_ones(len(flat)) if real is None else real.reshape(-1).to(flat)
    scores = functional.softmax(flat, -1)
    chosen = functional.one_hot(scores.topk(num_chosen).indices, count).sum(1).to(flat)
    return count * ((weight @ chosen) @ (weight @ scores)) / weight.sum() ** 2


@right("balance_loss", "by a threshold at the k-th logit")
def by_threshold(logits, num_chosen, *, real=None):
    logits = logits.flatten(0, -2) if real is None else logits[real]
    least = logits.sort(descending=True).values[:, num_chosen - 1 : num_chosen]
    frequency = (logits >= least).to(logits).mean(0)
    return (
        logits.shape[-1] * frequency @ (logits - logits.logsumexp(-1, keepdim=True)).exp().mean(0)
    )


@wrong("balance_loss", "the square of the frequencies, with a gradient from nowhere")
def squared_frequencies(logits, num_chosen, *, real=None):
    return balance_loss(logits, num_chosen, real=real).detach() + 0 * logits.sum()


@wrong("balance_loss", "the choice of one expert, whatever k is")
def of_one(logits, num_chosen, *, real=None):
    return num_chosen * balance_loss(logits, 1, real=real)


@right("router_z_loss", "by a softmax's largest logit")
def by_largest(logits, *, real=None):
    logits = logits.flatten(0, -2) if real is None else logits[real]
    largest = logits.max(-1).values
    return ((logits - largest[:, None]).exp().sum(-1).log() + largest).pow(2).mean()


@wrong("router_z_loss", "the largest logit alone")
def largest_alone(logits, *, real=None):
    logits = logits.flatten(0, -2) if real is None else logits[real]
    return logits.max(-1).values.square().mean()


@right("balance_bias_step", "by comparisons")
def by_comparisons(bias, counts, rate):
    total, share = counts * len(counts), counts.sum()
    return bias + rate * ((total < share).to(bias) - (total > share).to(bias))


@wrong("balance_bias_step", "only the crowded experts move")
def only_down(bias, counts, rate):
    return torch.minimum(balance_bias_step(bias, counts, rate), bias)


@right("within_capacity", "by running counts of one-hot rows")
def by_running_counts(experts, capacity):
    ranked = experts.T.reshape(-1)
    rows = functional.one_hot(ranked, int(experts.max()) + 1 if experts.numel() else 1)
    number = (rows.cumsum(0) * rows).sum(-1)  # from 1
    return (number <= capacity).view(experts.shape[1], -1).T


@wrong("within_capacity", "the last ones in place of the first")
def last_ones(experts, capacity):
    return within_capacity(experts.flip(0), capacity).flip(0)
