"""Solutions of the exercise on a chunk of Mamba-2."""

import torch

from answers import right, wrong
from tested_transformer.mixers.mamba2 import parallel_ssd

right("ch20.ssd_chunk", "the package's")(parallel_ssd)


@right("ch20.ssd_chunk", "a mask, and the state decayed up to each token")
def by_mask(x, delta, a, b, c, state=None):
    length, log_decay = x.shape[2], delta * a[:, None]  # B H L
    steps = log_decay[..., None].expand(*log_decay.shape, length).tril(-1).cumsum(-2)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    mask = steps.masked_fill(future, -torch.inf).exp()  # B H L L
    from_start = log_decay.cumsum(-1).exp()[..., None]  # B H L 1
    values = delta[..., None] * x
    y = (c @ b.mT * mask) @ values
    new = (mask[..., -1, :, None] * b).mT @ values
    if state is None:
        return y, new
    return y + from_start * (c @ state), new + from_start[..., -1:, :] * state


@right("ch20.ssd_chunk", "token by token")
def by_tokens(x, delta, a, b, c, state=None):
    state = x.new_zeros(*x.shape[:2], b.shape[-1], x.shape[-1]) if state is None else state
    outputs = []
    for t in range(x.shape[2]):
        step = delta[:, :, t, None, None]
        state = (step * a[:, None, None]).exp() * state
        state = state + step * b[:, :, t, :, None] * x[:, :, t, None]
        outputs.append(c[:, :, t, None] @ state)
    return torch.cat(outputs, 2), state


@wrong("ch20.ssd_chunk", "the state before is read without its decay")
def undecayed(x, delta, a, b, c, state=None):
    y, new = parallel_ssd(x, delta, a, b, c, state=state)
    if state is not None:
        fresh, _ = parallel_ssd(x, delta, a, b, c)
        y = fresh + c @ state
    return y, new


@wrong("ch20.ssd_chunk", "the state before is forgotten")
def forgotten(x, delta, a, b, c, state=None):
    return parallel_ssd(x, delta, a, b, c)
