"""The answers to the exercise on chapter 22's page about a browser."""

import torch

from tested_transformer.training.preferences import bradley_terry_loss

from . import right, wrong

right("ch22.bradley_terry_loss", "the package's")(bradley_terry_loss)


@right("ch22.bradley_terry_loss", "logaddexp")
def by_logaddexp(first, second, preference=None):
    both = torch.logaddexp(first, second)
    preference = torch.ones_like(first) if preference is None else preference
    return (both - preference * first - (1 - preference) * second).mean()


@wrong("ch22.bradley_terry_loss", "the preference is turned round")
def turned(first, second, preference=None):
    return bradley_terry_loss(first, second, None if preference is None else 1 - preference)
