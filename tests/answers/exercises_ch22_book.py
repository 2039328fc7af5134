"""The answers to the exercise on chapter 22's page about a search of this book."""

import torch

from tested_transformer.experiments.ch22_book import masked_mean

from . import right, wrong

right("ch22.masked_mean", "the page's")(masked_mean)


@right("ch22.masked_mean", "a matrix product with shares")
def by_shares(hidden, real):
    shares = real.to(hidden.dtype) / real.sum(1, keepdim=True).clamp(min=1)
    return torch.einsum("bl,bld->bd", shares, hidden)


@wrong("ch22.masked_mean", "the mean over the batch")
def over_batch(hidden, real):
    return masked_mean(hidden.flatten(0, 1)[None], real.flatten()[None]).expand(len(hidden), -1)


@wrong("ch22.masked_mean", "padding is averaged alone")
def only_padding(hidden, real):
    return masked_mean(hidden, ~real)
