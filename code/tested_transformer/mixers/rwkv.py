"""The WKV of RWKV-4: for each feature a softmax over all tokens so far, whose scores fade with the distance."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..bounds import PositiveInt
from ..shapes import checked

__all__ = ["chunked_wkv", "parallel_wkv", "recurrent_wkv"]

Outputs = tuple[Float[Tensor, "B L D"], Float[Tensor, "B 3 D"]]


@checked(any_dtype="log_decay bonus state")
def recurrent_wkv(
    key: Float[Tensor, "B L D"],
    value: Float[Tensor, "B L D"],
    log_decay: Float[Tensor, " D"],
    bonus: Float[Tensor, " D"],
    *,
    state: Float[Tensor, "B 3 D"] | None = None,
    real: Bool[Tensor, "B L"] | None = None,
) -> Outputs:
    """Token by token: a weighted mean of all values so far, kept as numerator, denominator and maximum.

    The score of a token is its key, plus log_decay (negative) for each token since; that of the newest is its key
    plus bonus, for the output alone. All exponentials are of scores minus the largest one so far, the maximum:
    keys of any size stay finite. Padding, where `real` is False, enters no state.

    Shapes: key and value (B, L, D), log_decay and bonus (D), state (B, 3, D): numerator, denominator, maximum;
        real (B, L) -> (B, L, D), and the state after the last token, in at least float32.
    Raises: TypeError or ValueError that name the argument.
    Source: Peng et al. 2023 (RWKV).
    """
    k, v, log_decay, bonus, state = _widened(key, value, log_decay, bonus, state)
    outputs, real = [v[:, :0]], _all_real(key) if real is None else real
    for t in range(key.shape[1]):
        newest = _one_token(k[:, t] + bonus, v[:, t])
        numerator, denominator, _ = _added(state, newest).unbind(1)
        outputs.append((numerator / denominator)[:, None])  # B 1 D
        faded = torch.stack([state[:, 0], state[:, 1], state[:, 2] + log_decay], 1)
        state = torch.where(
            real[:, t, None, None], _added(faded, _one_token(k[:, t], v[:, t])), state
        )
    return torch.cat(outputs, 1).to(value.dtype), state


def _added(one: Float[Tensor, "B 3 D"], other: Float[Tensor, "B 3 D"]) -> Float[Tensor, "B 3 D"]:
    """Two sums, each times exp(its maximum), as one sum with the larger maximum."""
    top = torch.maximum(one[:, 2], other[:, 2])[:, None]  # B 1 D
    sums = (one[:, 2:] - top).exp() * one[:, :2] + (other[:, 2:] - top).exp() * other[:, :2]
    return torch.cat([sums, top], 1)


def _one_token(score: Float[Tensor, "B D"], value: Float[Tensor, "B D"]) -> Float[Tensor, "B 3 D"]:
    """The sums over one token: its value, 1, and its score as the maximum."""
    return torch.stack([value, torch.ones_like(value), score], 1)


@checked(any_dtype="log_decay bonus state")
def parallel_wkv(
    key: Float[Tensor, "B L D"],
    value: Float[Tensor, "B L D"],
    log_decay: Float[Tensor, " D"],
    bonus: Float[Tensor, " D"],
    *,
    state: Float[Tensor, "B 3 D"] | None = None,
    real: Bool[Tensor, "B L"] | None = None,
) -> Outputs:
    """All tokens at once: attention whose scores are keys, one softmax per feature; the state is one more key.

    Shapes, arguments: those of `recurrent_wkv`, which gives the same numbers. In memory: B L L D scores.
    Raises: TypeError or ValueError that name the argument.
    Source: Peng et al. 2023 (RWKV); Zhai et al. 2021 (AFT).
    """
    k, v, log_decay, bonus, state = _widened(key, value, log_decay, bonus, state)
    real = _all_real(key) if real is None else real
    length, counted = key.shape[1], real.cumsum(1)  # real tokens up to each, itself included
    before, after = counted - real.int(), counted[:, -1:] - counted
    between = before[:, :, None] - counted[:, None]  # B L L: real tokens after j, before i
    past = real[:, None] & torch.ones_like(between, dtype=torch.bool).tril(-1)
    scores = k[:, None] + between[..., None] * log_decay  # B L L D: row i, column j
    scores = scores.masked_fill(~past[..., None], -torch.inf)
    own = torch.eye(length, dtype=torch.bool, device=key.device)[..., None]
    scores = torch.where(own, (k + bonus)[:, None], scores)
    numerator, denominator, maximum = state[:, None].unbind(2)  # B 1 D
    tiny = torch.finfo(v.dtype).tiny  # an empty state has a maximum of -inf: its weight is 0
    first = maximum + denominator.clamp(min=tiny).log() + before[..., None] * log_decay  # B L D
    weights = torch.cat([first[:, :, None], scores], 2).softmax(2)  # B L 1+L D
    values = torch.cat([numerator / denominator.clamp(min=tiny), v], 1)  # B 1+L D
    output = (weights * values[:, None]).sum(2)
    return output.to(value.dtype), _end_state(
        k + after[..., None] * log_decay, v, state, real, log_decay
    )


def _end_state(
    scores: Tensor, value: Tensor, state: Tensor, real: Tensor, log_decay: Tensor
) -> Float[Tensor, "B 3 D"]:
    """The sums over the old state and all real tokens, whose scores have faded to the end."""
    scores = scores.masked_fill(~real[..., None], -torch.inf)  # B L D
    faded = (state[:, 2] + real.sum(1)[:, None] * log_decay)[:, None]  # B 1 D
    top = torch.cat([faded, scores], 1).amax(1, keepdim=True)
    safe = top.masked_fill(top == -torch.inf, 0.0)  # nothing yet, and nothing new
    weights, old = (scores - safe).exp(), (faded - safe).exp()[:, 0]
    numerator = old * state[:, 0] + (weights * value).sum(1)
    return torch.stack([numerator, old * state[:, 1] + weights.sum(1), top[:, 0]], 1)


@checked(any_dtype="log_decay bonus state")
def chunked_wkv(
    key: Float[Tensor, "B L D"],
    value: Float[Tensor, "B L D"],
    log_decay: Float[Tensor, " D"],
    bonus: Float[Tensor, " D"],
    *,
    state: Float[Tensor, "B 3 D"] | None = None,
    real: Bool[Tensor, "B L"] | None = None,
    chunk_size: PositiveInt = 32,
) -> Outputs:
    """Parallel within a chunk, recurrent from chunk to chunk.

    Shapes, arguments: those of `recurrent_wkv`, which gives the same numbers.
    Raises: TypeError or ValueError that name the argument.
    Source: Peng et al. 2023 (RWKV).
    """
    real = _all_real(key) if real is None else real
    outputs, options = [], {"log_decay": log_decay, "bonus": bonus}
    for k, v, own in zip(*(each.split(chunk_size, 1) for each in (key, value, real)), strict=True):
        output, state = parallel_wkv(k, v, **options, state=state, real=own)
        outputs.append(output)
    return torch.cat(outputs, 1), state


def _all_real(key: Tensor) -> Bool[Tensor, "B L"]:
    """No padding."""
    return torch.ones_like(key[..., 0], dtype=torch.bool)


def _widened(
    key: Tensor, value: Tensor, log_decay: Tensor, bonus: Tensor, state: Tensor | None
) -> tuple[Tensor, ...]:
    """All in at least float32; an empty state has sums of 0 and a maximum of -inf."""
    wide = torch.promote_types(key.dtype, torch.float32)
    key, value, log_decay, bonus = (each.to(wide) for each in (key, value, log_decay, bonus))
    if state is None:
        sums = key.new_zeros(len(key), 2, key.shape[-1])
        state = torch.cat([sums, torch.full_like(sums[:, :1], -torch.inf)], 1)
    return key, value, log_decay, bonus, state.to(wide)
