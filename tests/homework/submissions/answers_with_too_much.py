# marks: hw03.mean_of_words 0 wrong; too large

import torch


def mean_of_words(x, real):
    return torch.zeros(20_000_000)
