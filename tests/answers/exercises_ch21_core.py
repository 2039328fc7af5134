"""The answers to the exercises of chapter 21's main page."""

import torch
from torch.nn import functional

from tested_transformer.exercises.ch21_core import top_k_weights
from tested_transformer.functional.balance import balance_bias_step, balance_loss
from tested_transformer.functional.routing import route

from . import right, wrong

right("ch21.top_k_weights", "masked logits")(top_k_weights)


@right("ch21.top_k_weights", "the package's")
def by_package(logits, num_chosen):
    return route(logits, num_chosen, normalize=True)


@right("ch21.top_k_weights", "values scattered back")
def scattered(logits, num_chosen):
    values, experts = logits.topk(num_chosen)
    return torch.zeros_like(logits).scatter(-1, experts, values.softmax(-1))


@wrong("ch21.top_k_weights", "the softmax of probabilities")
def twice(logits, num_chosen):
    return top_k_weights(logits.softmax(-1), num_chosen)


@wrong("ch21.top_k_weights", "one choice for the whole batch")
def one_choice(logits, num_chosen):
    return top_k_weights(logits, num_chosen) * (top_k_weights(logits.sum(0), num_chosen) > 0)


right("ch21.balance_loss", "the package's")(balance_loss)


@right("ch21.balance_loss", "by one-hot rows")
def by_one_hot(logits, num_chosen):
    scores = logits.softmax(-1)
    chosen = functional.one_hot(scores.topk(num_chosen).indices, logits.shape[-1]).sum(1)
    return logits.shape[-1] * (chosen.to(scores).mean(0) * scores.mean(0)).sum()


@wrong("ch21.balance_loss", "the squared coefficient of variation")
def variation(logits, num_chosen):
    scores = logits.softmax(-1).mean(0)
    return num_chosen * (scores.var(correction=0) / scores.mean() ** 2 + 1)


right("ch21.bias_step", "the package's")(balance_bias_step)


@right("ch21.bias_step", "by where")
def by_where(bias, counts, rate):
    mean = counts.double().mean()
    up = torch.where(counts < mean, rate, 0.0)
    return bias + (up - torch.where(counts > mean, rate, 0.0)).to(bias)


@wrong("ch21.bias_step", "experts at the mean move, too")
def all_move(bias, counts, rate):
    return torch.where(counts < counts.double().mean(), bias + rate, bias - rate)
