"""Solutions of the exercise on the delta rule with a decay per channel."""

import torch

from answers import right, wrong
from tested_transformer.mixers.delta_rule import parallel_delta_rule, recurrent_delta_rule

right("ch20.kimi_delta_rule", "the package's, parallel")(parallel_delta_rule)


@right("ch20.kimi_delta_rule", "a diagonal matrix per token")
def by_matrices(query, key, value, beta, log_decay, state=None):
    if state is None:
        state = key.new_zeros(*key.shape[:2], key.shape[-1], value.shape[-1])
    one, outputs = torch.eye(key.shape[-1], dtype=key.dtype), []
    for t in range(query.shape[2]):
        k, b = key[:, :, t, :, None], beta[:, :, t, None, None]
        forget = torch.diag_embed(log_decay[:, :, t].exp())
        state = (one - b * k @ k.mT) @ forget @ state + b * k @ value[:, :, t, None]
        outputs.append(query[:, :, t, None] @ state / query.shape[-1] ** 0.5)
    return torch.cat(outputs, 2), state


@wrong("ch20.kimi_delta_rule", "the mean of the decays")
def mean_decay(query, key, value, beta, log_decay, state=None):
    return recurrent_delta_rule(query, key, value, beta, log_decay.mean(-1), state=state)


@wrong("ch20.kimi_delta_rule", "no gradient by the decays")
def frozen_decays(query, key, value, beta, log_decay, state=None):
    return recurrent_delta_rule(query, key, value, beta, log_decay.detach(), state=state)
