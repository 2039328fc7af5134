"""Transformer-XL's attention: content and position terms, and the shift that gives each pair its distance."""

from __future__ import annotations

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from ..bounds import NonNegativeInt, PositiveInt, Probability
from ..errors import argument_error, shape_of
from ..shapes import checked
from .attention import Backend, attention

__all__ = ["relative_shift", "transformer_xl_attention"]


@checked
def relative_shift(
    by_distance: Float[Tensor, "*batch L R"], num_keys: NonNegativeInt
) -> Float[Tensor, "*batch L S"]:
    """From one score per distance to one score per key: row i moves L - 1 - i columns to the left.

    Column r of the input belongs to distance S - 1 - r, where S is num_keys, so that distances fall from left
    to right: with R = S + L - 1 columns from S - 1 to -(L - 1), with R = S columns to 0, which is
    enough for causal attention; there the future gets 0. Entry (i, j) of the output is row i at the distance of key
    j from query i, i + S - L - j: the last query is at the last key, and keys before the first query
    are memory. One column of padding and two reshapes do it: padded rows are one entry longer, so that each
    row of the flat tensor slips by one against the row before.

    Shapes: (*batch, L, R) -> (*batch, L, S), R = S + L - 1 or S.
    Raises: TypeError or ValueError that name the argument.
    Source: Dai et al. 2019 (Transformer-XL), appendix B.

    >>> import torch
    >>> distances = torch.tensor([[3.0, 2.0, 1.0, 0.0]] * 2)
    >>> relative_shift(distances, 4).int().tolist()
    [[2, 1, 0, 0], [3, 2, 1, 0]]
    """
    *batch, length, columns = by_distance.shape
    if columns not in (num_keys, num_keys + length - 1):
        wanted = f"{num_keys} columns, or {num_keys + length - 1} for both directions"
        came = f"shape {shape_of(by_distance)}"
        raise argument_error(ValueError, "by_distance", came, wanted)
    padded = functional.pad(by_distance, (1, 0))  # *batch L R+1
    slipped = padded.reshape(*batch, columns + 1, length)[..., 1:, :]  # *batch R L
    shifted = slipped.reshape(*batch, length, columns)[..., :num_keys]  # *batch L S
    return shifted.tril(num_keys - length) if columns == num_keys else shifted


@checked(any_dtype="bias")
def transformer_xl_attention(
    query: Float[Tensor, "B H L d"],
    key: Float[Tensor, "B H S d"],
    value: Float[Tensor, "B H S dv"],
    position_key: Float[Tensor, "H R d"],
    content_bias: Float[Tensor, "H d"],
    position_bias: Float[Tensor, "H d"],
    *,
    mask: Bool[Tensor, "#L #S"] | Bool[Tensor, "#B #H #L #S"] | None = None,
    bias: Float[Tensor, "#L #S"] | Float[Tensor, "#B #H #L #S"] | None = None,
    causal: bool = False,
    window: PositiveInt | None = None,
    dropout_p: Probability = 0.0,
    return_weights: bool = False,
    backend: Backend = "auto",
) -> Any:
    """Attention whose scores have a term for the content and one for the distance of a key.

    The score of query i and key j is ((q_i + u) . k_j + (q_i + v) . p_ij) / sqrt(d): u is content_bias, v is
    position_bias, and p_ij is the row of position_key for their distance, in the order of
    `relative_shift`. With R = S rows the call must be causal. Keys and values may begin with those of a
    memory; queries do not. The other options are those of `attention`.

    Shapes: query (B, H, L, d), key (B, H, S, d), value (B, H, S, dv), position_key (H, R, d), both biases
        (H, d) -> (B, H, L, dv) [, weights (B, H, L, S)].
    Raises: TypeError or ValueError that name the argument.
    Source: Dai et al. 2019 (Transformer-XL), section 3.3.
    """
    length, num_keys = query.shape[2], key.shape[2]
    if length > 1 and position_key.shape[1] == num_keys and not causal:
        wanted = f"{num_keys + length - 1} rows: the call is not causal, and keys after a query have a distance, too"
        raise argument_error(ValueError, "position_key", f"shape {shape_of(position_key)}", wanted)
    by_distance = (query + position_bias[:, None]) @ position_key.mT  # B H L R
    by_position = relative_shift(by_distance, num_keys) * query.shape[-1] ** -0.5  # B H L S
    bias = by_position if bias is None else by_position + bias
    return attention(
        query + content_bias[:, None], key, value, mask=mask, bias=bias, causal=causal, window=window,
        dropout_p=dropout_p, return_weights=return_weights, backend=backend,
    )  # fmt: skip
