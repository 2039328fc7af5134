"""Performer: the softmax's exponential as a dot product of random features, so that keys can be summed first."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..bounds import PositiveFloat, PositiveInt
from ..errors import argument_error
from ..shapes import checked

__all__ = [
    "orthogonal_directions",
    "performer_attention",
    "positive_features",
    "trigonometric_features",
]


# --- Random features ------------------------------------------------------------------------------


@checked
def orthogonal_directions(
    num_features: PositiveInt, d: PositiveInt, *, generator: torch.Generator | None = None
) -> Float[Tensor, "m d"]:
    """Random directions of which each d neighbors are orthogonal; each alone is a Gaussian vector.

    The QR decomposition's factor Q is uniformly distributed only with the signs of R's diagonal. The
    norms are those of independent Gaussian vectors.

    Shapes: (m, d), m = num_features, in float32.
    Raises: TypeError or ValueError that name the argument.
    Source: Choromanski et al. 2021 (Performer); Mezzadri 2007 for the signs.
    """
    blocks = []
    for _ in range(-(-num_features // d)):
        gaussian = torch.randn(d, d, generator=generator, dtype=torch.float64)
        q, r = torch.linalg.qr(gaussian)
        blocks.append((q * r.diagonal().sign()).mT)  # d d, orthonormal rows
    norms = torch.randn(num_features, d, generator=generator, dtype=torch.float64).norm(dim=-1)
    return (norms[:, None] * torch.cat(blocks)[:num_features]).float()


@checked(nonempty="m", any_dtype="directions")
def positive_features(
    x: Float[Tensor, "*batch L d"], directions: Float[Tensor, "m d"]
) -> Float[Tensor, "*batch L m"]:
    """exp(w x - |x|^2 / 2) / sqrt(m) for each direction w: the features' mean dot product is exp(x y).

    Shapes: x (..., L, d), directions (m, d) -> (..., L, m), in at least float32.
    Raises: TypeError or ValueError that name the argument.
    Source: Choromanski et al. 2021 (Performer).
    """
    return log_features(x, directions).exp() / directions.shape[0] ** 0.5


@checked(nonempty="m", any_dtype="directions")
def trigonometric_features(
    x: Float[Tensor, "*batch L d"], directions: Float[Tensor, "m d"]
) -> Float[Tensor, "*batch L 2*m"]:
    """exp(|x|^2 / 2) (cos(w x), sin(w x)) / sqrt(m): the same mean, but products that may be negative.

    Shapes: x (..., L, d), directions (m, d) -> (..., L, 2 m), in at least float32.
    Raises: TypeError or ValueError that name the argument.
    Source: Choromanski et al. 2021 (Performer), where it is the unstable alternative.
    """
    x, directions = widened(x, directions)
    angles = x @ directions.mT  # ... L m
    size = (x.square().sum(-1, keepdim=True) / 2).exp() / directions.shape[0] ** 0.5
    return size * torch.cat((angles.cos(), angles.sin()), -1)


def log_features(x: Tensor, directions: Tensor) -> Tensor:
    """The logarithm of the positive features, without the factor 1 / sqrt(m)."""
    x, directions = widened(x, directions)
    return x @ directions.mT - x.square().sum(-1, keepdim=True) / 2


def widened(x: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the dtype of x, in float32 at least."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return x.to(wide), directions.to(wide)


# --- Attention ------------------------------------------------------------------------------------


@checked(nonempty="m", any_dtype="directions")
def performer_attention(
    query: Float[Tensor, "B H L d"],
    key: Float[Tensor, "B H S d"],
    value: Float[Tensor, "B H S dv"],
    directions: Float[Tensor, "m d"],
    *,
    causal: bool = False,
    key_mask: Bool[Tensor, "B S"] | None = None,
    scale: PositiveFloat | None = None,
    chunk_size: PositiveInt = 64,
) -> Float[Tensor, "B H L dv"]:
    """Attention whose exp(q k scale) is estimated by positive random features, in linear time and memory.

    Two stabilizers subtract from the logarithms of the features. A query may have one of its own: it
    cancels in the quotient. All keys of a sum need the same one: it weighs them against each other.

    key_mask: True for real tokens. causal asks for as many keys as queries, and goes chunk by chunk:
    chunk_size changes no number. scale: of the scores, 1 / sqrt(d) by default.

    Shapes: query (B, H, L, d), key (B, H, S, d), value (B, H, S, dv), directions (m, d), key_mask
        (B, S) -> (B, H, L, dv). A query without keys gets 0.
    Raises: TypeError or ValueError that name the argument.
    Source: Choromanski et al. 2021 (Performer), FAVOR+.
    """
    if causal and query.shape[2] != key.shape[2]:
        came, wanted = f"{key.shape[2]} keys", f"as many as queries, {query.shape[2]}: causal=True"
        raise argument_error(ValueError, "key", came, wanted)
    root = (query.shape[-1] ** -0.5 if scale is None else scale) ** 0.5
    wide = torch.promote_types(query.dtype, torch.float32)
    log_query, log_key = (log_features(root * x.to(wide), directions) for x in (query, key))
    if key_mask is not None:
        log_key = log_key.masked_fill(~key_mask[:, None, :, None], -torch.inf)
    query_features = (log_query - log_query.amax(-1, keepdim=True).detach()).exp()  # B H L m
    ones = value.new_ones(*value.shape[:-1], 1)  # what they sum to is the denominator
    value_and_one = torch.cat((value, ones), -1).to(wide)  # B H S dv+1
    sums = causal_sums if causal else all_sums
    total = sums(query_features, log_key, value_and_one, chunk_size)
    denominator = total[..., -1:]
    return (total[..., :-1] / denominator.masked_fill(denominator == 0, 1.0)).to(query.dtype)


def all_sums(query_features: Tensor, log_key: Tensor, value: Tensor, chunk_size: int) -> Tensor:
    """For each query the sum of all values, each weighted by its key's dot product of features."""
    top = log_key.detach().flatten(2).logsumexp(-1)[..., None, None]  # at least the largest
    key_features = (log_key - finite(top)).exp()  # B H S m
    return query_features @ (key_features.mT @ value)  # B H L dv: no matrix of L x S


def causal_sums(query_features: Tensor, log_key: Tensor, value: Tensor, chunk_size: int) -> Tensor:
    """The same over the keys up to each query's own: earlier chunks through one matrix (m, dv).

    A query's stabilizer is the largest entry of its own keys, so that no later key can change its output.
    """
    top = finite(log_key.new_full((*log_key.shape[:2], 1), -torch.inf))  # B H 1
    state = value.new_zeros(*value.shape[:2], log_key.shape[-1], value.shape[-1])  # B H m dv
    parts = (each.split(chunk_size, dim=2) for each in (query_features, log_key, value))
    outputs = []
    for queries, log_keys, values in zip(*parts, strict=True):
        own = finite(log_keys.detach().amax(-1))  # B H c: each key's largest
        tops = torch.cat((top, own), dim=-1).cummax(-1).values  # B H 1+c
        factors = (own[..., None, :] - tops[..., 1:, None]).tril().exp()  # at most 1
        keys = (log_keys - own[..., None]).exp()  # B H c m
        within = (queries @ keys.mT * factors).tril() @ values
        before = (top - tops[..., 1:]).exp()[..., None] * (queries @ state)
        outputs.append(within + before)
        last = tops[..., -1:]
        state = (top - last).exp()[..., None] * state
        state, top = state + ((own - last).exp()[..., None] * keys).mT @ values, last
    return torch.cat(outputs, dim=2)


def finite(top: Tensor) -> Tensor:
    """A stabilizer of no keys is -inf, which nothing can be subtracted from."""
    return top.clamp(min=torch.finfo(top.dtype).min)
