"""The delta rule: a state that writes the difference between a value and what it already returns for the key."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..bounds import PositiveInt
from ..shapes import checked

__all__ = ["chunked_delta_rule", "parallel_delta_rule", "recurrent_delta_rule"]

Outputs = tuple[Float[Tensor, "B H L dv"], Float[Tensor, "B H d dv"]]
Decays = Float[Tensor, "#B #H #L"] | Float[Tensor, "#B #H #L d"]


@checked(any_dtype="log_decay state")
def recurrent_delta_rule(
    query: Float[Tensor, "B H L d"],
    key: Float[Tensor, "B H L d"],
    value: Float[Tensor, "B H L dv"],
    beta: Float[Tensor, "B H L"],
    log_decay: Decays | None = None,
    *,
    state: Float[Tensor, "B H d dv"] | None = None,
    scale: float | None = None,
) -> Outputs:
    """Token by token: the state decays, returns its value for the key, and writes beta x the difference.

    With a key of norm 1 and a beta of 1 the new value replaces the old one; a beta of 0 writes nothing. Keys are
    taken as they are: a layer normalizes them. Without `log_decay` nothing is forgotten (DeltaNet). It has one
    decay per head and token (gated DeltaNet), or one for each of the d features of a key (Kimi Delta Attention).

    beta: from 0 to 1, as a rule. log_decay: logarithms of the decays, at most 0. scale: of the queries,
        1 / sqrt(d) by default.

    Shapes: query and key (B, H, L, d), value (B, H, L, dv), beta (B, H, L), log_decay (B, H, L), broadcast, or
        (B, H, L, d), state (B, H, d, dv) -> the output (B, H, L, dv) and the state after the last token, in at
        least float32.
    Raises: TypeError or ValueError that name the argument.
    Source: Schlag et al. 2021 (the delta rule in linear attention); Yang et al. 2025 (gated DeltaNet); Kimi Team
        2025 (Kimi Linear).
    """
    q, k, v, beta, log_decay, state = _widened(query, key, value, beta, log_decay, state, scale)
    outputs = [v[:, :, :0]]  # so that there is something to join without any token
    for t in range(query.shape[2]):
        state = log_decay[:, :, t, :, None].exp() * state  # B H d dv: forget first
        stored = (k[:, :, t, None] @ state)[:, :, 0]  # B H dv
        change = beta[:, :, t, None] * (v[:, :, t] - stored)
        state = state + k[:, :, t, :, None] * change[:, :, None, :]
        outputs.append(q[:, :, t, None] @ state)  # B H 1 dv
    return torch.cat(outputs, 2).to(query.dtype), state


@checked(any_dtype="log_decay state")
def parallel_delta_rule(
    query: Float[Tensor, "B H L d"],
    key: Float[Tensor, "B H L d"],
    value: Float[Tensor, "B H L dv"],
    beta: Float[Tensor, "B H L"],
    log_decay: Decays | None = None,
    *,
    state: Float[Tensor, "B H d dv"] | None = None,
    scale: float | None = None,
) -> Outputs:
    """All tokens at once: the changes that all tokens write are the solution of one triangular system.

    The change of token i is beta_i (v_i - what the state before the call returns - what the changes of
    tokens j < i return), where token j counts (k_i . k_j) x the decay from j to i. This is the UT transform
    of the WY form: its T is the inverse of the system's matrix, times beta. With the changes as values the
    output is that of retention.

    Shapes, arguments: those of `recurrent_delta_rule`, which gives the same numbers.
    Raises: TypeError or ValueError that name the argument.
    Source: Yang et al. 2024 (DeltaNet over the sequence length); Yang et al. 2025 (gated DeltaNet), section 3.3.
    """
    q, k, v, beta, log_decay, state = _widened(query, key, value, beta, log_decay, state, scale)
    since_start = log_decay.cumsum(2).exp()  # B H L c
    decay = _decay_between(log_decay)  # B H c L L
    error = v - (since_start * k) @ state  # B H L dv: before the changes of this call
    system = beta[..., None] * _decayed_scores(k, k, decay)  # B H L L, its diagonal is taken as 1
    change = torch.linalg.solve_triangular(
        system, beta[..., None] * error, upper=False, unitriangular=True
    )
    output = (since_start * q) @ state + _decayed_scores(q, k, decay) @ change
    to_end = decay[..., -1:, :].sum(-2).mT  # B H L c: the last row, if there is one
    state = log_decay.sum(2).exp()[..., None] * state + (to_end * k).mT @ change
    return output.to(query.dtype), state


@checked(any_dtype="log_decay state")
def chunked_delta_rule(
    query: Float[Tensor, "B H L d"],
    key: Float[Tensor, "B H L d"],
    value: Float[Tensor, "B H L dv"],
    beta: Float[Tensor, "B H L"],
    log_decay: Decays | None = None,
    *,
    state: Float[Tensor, "B H d dv"] | None = None,
    scale: float | None = None,
    chunk_size: PositiveInt = 64,
) -> Outputs:
    """Parallel within a chunk, recurrent from chunk to chunk; the last chunk may be shorter.

    Shapes, arguments: those of `recurrent_delta_rule`, which gives the same numbers.
    Raises: TypeError or ValueError that name the argument.
    Source: Yang et al. 2024 (DeltaNet over the sequence length); Yang et al. 2025 (gated DeltaNet), section 3.3.
    """
    log_decay = beta.new_zeros(1, 1, 1) if log_decay is None else log_decay
    log_decay = log_decay.expand(*query.shape[:3], *log_decay.shape[3:])
    parts = (each.split(chunk_size, 2) for each in (query, key, value, beta, log_decay))
    outputs = []
    for chunk in zip(*parts, strict=True):
        output, state = parallel_delta_rule(*chunk, state=state, scale=scale)
        outputs.append(output)
    return torch.cat(outputs, 2), state


def _widened(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, log_decay: Tensor | None,
    state: Tensor | None, scale: float | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The scaled queries and all others in at least float32; decays (B, H, L, c), c = 1 or d."""
    wide = torch.promote_types(query.dtype, torch.float32)
    q, k, v, beta = (each.to(wide) for each in (query, key, value, beta))
    log_decay = beta.new_zeros(1, 1, 1) if log_decay is None else log_decay.to(wide)
    log_decay = log_decay[..., None] if log_decay.ndim == 3 else log_decay
    log_decay = log_decay.expand(*q.shape[:3], -1)
    if state is None:
        state = v.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return scale * q, k, v, beta, log_decay, state.to(wide)


def _decay_between(log_decay: Tensor) -> Tensor:
    """Row i, column j: the product of the decays of tokens j+1 to i; 0 above the diagonal. (B, H, c, L, L)

    Each entry sums only the logarithms between j and i: a difference of two sums from the beginning would
    lose digits, and be NaN after a decay of 0.
    """
    length, steps = log_decay.shape[2], log_decay.mT  # B H c L
    steps = steps[..., None].expand(*steps.shape, length).tril(-1)  # row i: that of token i
    past = torch.ones(length, length, dtype=torch.bool, device=log_decay.device).tril()
    return steps.cumsum(-2).masked_fill(~past, -torch.inf).exp()


def _decayed_scores(query: Tensor, key: Tensor, decay: Tensor) -> Tensor:
    """The sum over the features of query x key x decay, (B, H, L, L): one decay for all features, or each its own."""
    if decay.shape[2] == 1:
        return (query @ key.mT) * decay[:, :, 0]
    return torch.einsum("bhic,bhjc,bhcij->bhij", query, key, decay)
