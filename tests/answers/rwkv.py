"""WKV by sigmoids and logaddexp."""

import torch

from answers import right, wrong
from tested_transformer.mixers.rwkv import chunked_wkv, parallel_wkv, recurrent_wkv

right("wkv", "the package's, recurrent")(recurrent_wkv)
right("wkv", "the package's, parallel")(parallel_wkv)
right("wkv", "the package's, in chunks")(chunked_wkv)


@right("wkv", "the logarithm of the denominator is the maximum")
def by_logaddexp(key, value, log_decay, bonus, *, state=None, real=None):
    """The state is a mean and a logarithm: numerator / denominator, 1, log of the denominator."""
    if state is None:
        mean, log = torch.zeros_like(key[:, :1]).sum(1), key.new_full(key[:, 0].shape, -1e30)
    else:
        mean, log = state[:, 0] / state[:, 1], state[:, 2] + state[:, 1].log()
    outputs = [value[:, :0]]
    for t in range(key.shape[1]):
        share = torch.sigmoid(key[:, t] + bonus - log)
        outputs.append((mean + share * (value[:, t] - mean))[:, None])
        share = torch.sigmoid(key[:, t] - log - log_decay)
        new_mean = mean + share * (value[:, t] - mean)
        new_log = torch.logaddexp(log + log_decay, key[:, t])
        keep = None if real is None else real[:, t, None]
        mean = new_mean if keep is None else torch.where(keep, new_mean, mean)
        log = new_log if keep is None else torch.where(keep, new_log, log)
    state = torch.stack([mean, torch.ones_like(mean), log], 1)
    return torch.cat(outputs, 1), state


@wrong("wkv", "the decays get no gradient")
def fixed(key, value, log_decay, bonus, **options):
    return recurrent_wkv(key, value, log_decay.detach(), bonus, **options)


@wrong("wkv", "the rate is taken for the logarithm of the decay")
def rate(key, value, log_decay, bonus, **options):
    return recurrent_wkv(key, value, -log_decay.exp(), bonus, **options)


@wrong("wkv", "keys are clamped instead of being compared with a maximum")
def clamped(key, value, log_decay, bonus, **options):
    return recurrent_wkv(key.clamp(max=60.0), value, log_decay, bonus, **options)


@wrong("wkv", "the bonus is left out")
def no_bonus(key, value, log_decay, bonus, **options):
    return recurrent_wkv(key, value, log_decay, torch.zeros_like(bonus), **options)
