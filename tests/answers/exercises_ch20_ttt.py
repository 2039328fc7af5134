"""Solutions of the exercise on TTT's dual form."""

from answers import right, wrong
from answers.ttt import by_autograd
from tested_transformer.mixers.ttt import primal_ttt

right("ch20.ttt_batch", "gradients of the loss by torch")(by_autograd)
right("ch20.ttt_batch", "the package's, primal")(primal_ttt)


@right("ch20.ttt_batch", "one triangle of scores")
def dual(query, key, value, step_size, state=None):
    if state is None:
        state = key.new_zeros(*key.shape[:2], key.shape[-1], value.shape[-1])
    step = step_size[..., None] * (key @ state - value)  # B H L dv
    return query @ state - (query @ key.mT).tril() @ step, state - key.mT @ step


@wrong("ch20.ttt_batch", "the state before is forgotten")
def forgotten(query, key, value, step_size, state=None):
    return dual(query, key, value, step_size)


@wrong("ch20.ttt_batch", "all tokens read the last W")
def last_state(query, key, value, step_size, state=None):
    _, new = dual(query, key, value, step_size, state)
    return query @ new, new


@wrong("ch20.ttt_batch", "each token begins with the W of the token before")
def online(query, key, value, step_size, state=None):
    return primal_ttt(query, key, value, step_size, state=state, batch_size=1)


@wrong("ch20.ttt_batch", "no gradient through the state")
def frozen(query, key, value, step_size, state=None):
    return dual(query, key, value, step_size, None if state is None else state.detach())
