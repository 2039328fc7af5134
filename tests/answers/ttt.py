"""TTT-Linear by autograd, by its matrices, and by the delta rule."""

import torch

from answers import right, wrong
from tested_transformer.mixers.ttt import dual_ttt, primal_ttt

right("ttt_linear", "the package's, primal")(primal_ttt)
right("ttt_linear", "the package's, dual")(dual_ttt)


@right("ttt_linear", "gradients of the loss by torch")
def by_autograd(query, key, value, step_size, *, state=None, batch_size=16):
    shape = (*query.shape[:2], query.shape[-1], value.shape[-1])
    state = value.new_zeros(shape) if state is None else state
    outputs = [value[:, :, :0]]
    for t in range(query.shape[2]):
        if t % batch_size == 0:
            start = state
        with torch.enable_grad():
            model = start if start.requires_grad else start.detach().requires_grad_()
            model = model + 0  # a tensor of its own: the step's gradient ends here
            error = key[:, :, t, None] @ model - value[:, :, t, None]
            loss = error.square().sum() / 2
            step = torch.autograd.grad(loss, model, create_graph=True)[0]
        state = state - step_size[:, :, t, None, None] * step
        outputs.append(query[:, :, t, None] @ state)
    return torch.cat(outputs, 2), state


@right("ttt_linear", "one matrix per token: W (I - eta k k^T) where a mini-batch is a token")
def by_delta_rule(query, key, value, step_size, *, state=None, batch_size=16):
    if batch_size != 1:
        return dual_ttt(query, key, value, step_size, state=state, batch_size=batch_size)
    shape = (*query.shape[:2], query.shape[-1], value.shape[-1])
    state = value.new_zeros(shape) if state is None else state
    outputs, one = [value[:, :, :0]], torch.eye(query.shape[-1], dtype=query.dtype)
    for t in range(query.shape[2]):
        k = step_size[:, :, t, None, None].sqrt() * key[:, :, t, :, None]  # B H d 1
        v = step_size[:, :, t, None, None].sqrt() * value[:, :, t, None]
        state = (one - k @ k.mT) @ state + k @ v
        outputs.append(query[:, :, t, None] @ state)
    return torch.cat(outputs, 2), state


@wrong("ttt_linear", "the batch is always 16")
def one_size(query, key, value, step_size, *, state=None, batch_size=16):
    return dual_ttt(query, key, value, step_size, state=state)


@wrong("ttt_linear", "the error has no gradient")
def frozen(query, key, value, step_size, *, state=None, batch_size=16):
    return dual_ttt(query, key.detach(), value, step_size, state=state, batch_size=batch_size)


@wrong("ttt_linear", "the mean of a mini-batch's gradients")
def mean(query, key, value, step_size, *, state=None, batch_size=16):
    return dual_ttt(query, key, value, step_size / batch_size, state=state, batch_size=batch_size)
