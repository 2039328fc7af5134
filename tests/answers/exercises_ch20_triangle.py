"""The answers to the exercise on factors of memory."""

from fractions import Fraction

from answers import right, wrong


@right("ch20.memory_factor")
def by_formula(weights, per_token, state, length, batch):
    return (weights + batch * length * per_token) / (weights + batch * state)


@right("ch20.memory_factor")
def by_fractions(weights, per_token, state, length, batch):
    caches, states = length * per_token * batch, state * batch
    return float(Fraction(weights + caches, weights + states))


@wrong("ch20.memory_factor", "whole numbers only")
def rounded(weights, per_token, state, length, batch):
    return (weights + batch * length * per_token) // (weights + batch * state)


@wrong("ch20.memory_factor", "one text whatever the batch")
def one_text(weights, per_token, state, length, batch):
    return (weights + length * per_token) / (weights + state)
