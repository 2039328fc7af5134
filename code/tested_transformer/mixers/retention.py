"""Retention: attention without a softmax, whose weights decay with the distance; one state stands for all keys."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from ..bounds import PositiveFloat, PositiveInt
from ..shapes import checked

__all__ = [
    "chunked_retention",
    "gated_log_decay",
    "gated_retention",
    "parallel_retention",
    "recurrent_retention",
    "retnet_log_decay",
]

Outputs = tuple[Float[Tensor, "B H L dv"], Float[Tensor, "B H d dv"]]


# --- Decays, as logarithms ------------------------------------------------------------------------


@checked
def retnet_log_decay(num_heads: PositiveInt) -> Float[Tensor, " H"]:
    """The fixed decay of each head in a RetNet, as a logarithm: gamma = 1 - 2^(-5 - h).

    Shapes: (H), float32.
    Raises: TypeError or ValueError that name the argument.
    Source: Sun et al. 2023 (RetNet), equation 8.
    """
    return torch.log1p(-(2.0 ** (-5 - torch.arange(num_heads))))


@checked
def gated_log_decay(
    gate_logits: Float[Tensor, "*batch"], *, temperature: PositiveFloat = 16.0
) -> Float[Tensor, "*batch"]:
    """The decay that each token chooses, as a logarithm: gamma = sigmoid(logit)^(1 / temperature).

    The logarithm of a power is a product, so nothing is raised to it. In at least float32.

    Shapes: any.
    Raises: TypeError or ValueError that name the argument.
    Source: Sun et al. 2024 (YOCO), section 3.1.
    """
    wide = torch.promote_types(gate_logits.dtype, torch.float32)
    return functional.logsigmoid(gate_logits.to(wide)) / temperature


# --- Three forms of one function ------------------------------------------------------------------


@checked(any_dtype="log_decay state")
def parallel_retention(
    query: Float[Tensor, "B H L d"],
    key: Float[Tensor, "B H L d"],
    value: Float[Tensor, "B H L dv"],
    log_decay: Float[Tensor, "#B #H #L"],
    *,
    state: Float[Tensor, "B H d dv"] | None = None,
    scale: float | None = None,
) -> Outputs:
    """All tokens at once: (Q K^T * D) V, where D[i, j] is the product of the decays of tokens j+1 to i.

    A token is not decayed by its own decay, and there is no softmax. What came before the first token
    is in `state`, which every token of the call reads decayed by all decays up to its own.

    log_decay: logarithms of the decays, at most 0. scale: of the scores, 1 / sqrt(d) by default.

    Shapes: query and key (B, H, L, d), value (B, H, L, dv), log_decay (B, H, L), broadcast, state
        (B, H, d, dv) -> the output (B, H, L, dv) and the state after the last token, in at least float32.
    Raises: TypeError or ValueError that name the argument.
    Source: Sun et al. 2023 (RetNet), equations 5 and 7; Sun et al. 2024 (YOCO), section 3.1.
    """
    q, k, v, log_decay, state = _widened(query, key, value, log_decay, state, scale)
    decay = _decay_matrix(log_decay)  # B H L L
    output = (q @ k.mT * decay) @ v  # B H L dv
    output = output + log_decay.cumsum(-1).exp()[..., None] * (q @ state)
    to_end = decay[..., -1:, :].sum(-2)[..., None]  # B H L 1: the last row, if there is one
    state = log_decay.sum(-1).exp()[..., None, None] * state + (to_end * k).mT @ v  # B H d dv
    return output.to(query.dtype), state


@checked(any_dtype="log_decay state")
def recurrent_retention(
    query: Float[Tensor, "B H L d"],
    key: Float[Tensor, "B H L d"],
    value: Float[Tensor, "B H L dv"],
    log_decay: Float[Tensor, "#B #H #L"],
    *,
    state: Float[Tensor, "B H d dv"] | None = None,
    scale: float | None = None,
) -> Outputs:
    """Token by token: the state decays, takes in k v^T, and is read by q. Memory does not grow.

    Shapes, arguments: those of `parallel_retention`, which gives the same numbers.
    Raises: TypeError or ValueError that name the argument.
    Source: Sun et al. 2023 (RetNet), equation 6; Sun et al. 2024 (YOCO), section 3.1.
    """
    q, k, v, log_decay, state = _widened(query, key, value, log_decay, state, scale)
    outputs = [v[:, :, :0]]  # so that there is something to join without any token
    for t in range(query.shape[2]):
        state = log_decay[:, :, t, None, None].exp() * state  # B H d dv
        state = state + k[:, :, t, :, None] * v[:, :, t, None, :]
        outputs.append(q[:, :, t, None] @ state)  # B H 1 dv
    return torch.cat(outputs, 2).to(query.dtype), state


@checked(any_dtype="log_decay state")
def chunked_retention(
    query: Float[Tensor, "B H L d"],
    key: Float[Tensor, "B H L d"],
    value: Float[Tensor, "B H L dv"],
    log_decay: Float[Tensor, "#B #H #L"],
    *,
    state: Float[Tensor, "B H d dv"] | None = None,
    scale: float | None = None,
    chunk_size: PositiveInt = 64,
) -> Outputs:
    """Parallel within a chunk, recurrent from chunk to chunk: memory for chunk_size^2 scores, not L^2.

    The last chunk may be shorter.

    Shapes, arguments: those of `parallel_retention`, which gives the same numbers.
    Raises: TypeError or ValueError that name the argument.
    Source: Sun et al. 2023 (RetNet), equation 7; Sun et al. 2024 (YOCO), section 3.1.
    """
    log_decay = log_decay.expand(query.shape[:3])
    parts = (each.split(chunk_size, 2) for each in (query, key, value, log_decay))
    outputs = []
    for chunk in zip(*parts, strict=True):
        output, state = parallel_retention(*chunk, state=state, scale=scale)
        outputs.append(output)
    return torch.cat(outputs, 2), state


def _decay_matrix(log_decay: Tensor) -> Tensor:
    """Row i, column j: the product of the decays of tokens j+1 to i; 0 above the diagonal.

    Each entry sums only the logarithms between j and i. A difference of two sums from the beginning would lose
    digits, and be NaN after a decay of 0, whose logarithm is -inf.
    """
    length = log_decay.shape[-1]
    steps = log_decay[..., None].expand(*log_decay.shape, length).tril(-1)  # row i: that of token i
    past = torch.ones(length, length, dtype=torch.bool, device=log_decay.device).tril()
    return steps.cumsum(-2).masked_fill(~past, -torch.inf).exp()


def _widened(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, state: Tensor | None,
    scale: float | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The scaled queries and all others in at least float32; the state that nothing came before is 0."""
    wide = torch.promote_types(query.dtype, torch.float32)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    q, k, v = (each.to(wide) for each in (query, key, value))
    if state is None:
        state = v.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
    log_decay = log_decay.expand(query.shape[:3])
    return scale * q, k, v, log_decay.to(wide), state.to(wide)


# --- With gates and a norm ------------------------------------------------------------------------


@checked(any_dtype="gate_logits state")
def gated_retention(
    query: Float[Tensor, "B H L d"],
    key: Float[Tensor, "B H L d"],
    value: Float[Tensor, "B H L dv"],
    gate_logits: Float[Tensor, "B H L"],
    *,
    temperature: PositiveFloat = 16.0,
    real: Bool[Tensor, "B L"] | None = None,
    state: Float[Tensor, "B H d dv"] | None = None,
    scale: float | None = None,
    norm_eps: PositiveFloat = 1e-5,
    chunk_size: PositiveInt = 64,
) -> Outputs:
    """Retention whose decays the tokens choose, and a norm of each head's output by itself (a group norm).

    The norm divides each head's dv features by their root mean square, token by token, and learns
    nothing. `real` says which tokens are no padding: padding neither decays the state nor enters it.

    Shapes: query and key (B, H, L, d), value (B, H, L, dv), gate_logits (B, H, L), real (B, L), state
        (B, H, d, dv) -> the normalized output (B, H, L, dv) and the state after the last token.
    Raises: TypeError or ValueError that name the argument.
    Source: Sun et al. 2024 (YOCO), section 3.1; microsoft/unilm,
        YOCO/yoco/models/decoder/gate_retention.py.
    """
    log_decay = gated_log_decay(gate_logits, temperature=temperature)  # B H L
    if real is not None:
        log_decay = log_decay.masked_fill(~real[:, None], 0.0)
        key = key.masked_fill(~real[:, None, :, None], 0.0)
    output, state = chunked_retention(
        query, key, value, log_decay, state=state, scale=scale, chunk_size=chunk_size
    )
    return functional.rms_norm(output, output.shape[-1:], eps=norm_eps), state
