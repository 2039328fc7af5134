"""Hyper-connections: n residual streams, and learned weights for what is read, mixed and written."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import argument_error, shape_of
from ..shapes import checked

Alpha = Float[Tensor, "n m"] | Float[Tensor, "*#batch n m"]
Beta = Float[Tensor, " n"] | Float[Tensor, "*#batch n"]

__all__ = ["connection_weights", "hyper_connection", "read_streams", "write_streams"]


@checked
def connection_weights(
    static: Float[Tensor, "n m"],
    normed: Float[Tensor, "*batch n D"],
    dynamic: Float[Tensor, "D m"],
    scale: Float[Tensor, ""],
) -> Float[Tensor, "*batch n m"]:
    """Weights that depend on the token: static + scale tanh(normed dynamic).

    Shapes: static (n, m), normed (*batch, n, D), dynamic (D, m), scale () -> (*batch, n, m).
    Raises: TypeError or ValueError that name the argument.
    Source: Zhu et al. 2025 (hyper-connections), dynamic hyper-connections.
    """
    return static + scale * torch.tanh(normed @ dynamic)


@checked
def read_streams(
    streams: Float[Tensor, "*batch n D"], alpha: Alpha
) -> tuple[Float[Tensor, "*batch D"], Float[Tensor, "*batch n D"]]:
    """What a sublayer gets, and the streams that go on: weighted sums of the streams.

    Column 0 of alpha weighs the streams for the sublayer, columns 1 to n for the n streams after it.

    Shapes: streams (*batch, n, D), alpha (n, 1 + n) or (*batch, n, 1 + n) -> (*batch, D), (*batch, n, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Zhu et al. 2025 (hyper-connections), width-connections.
    """
    if alpha.shape[-1] != 1 + streams.shape[-2]:
        wanted = f"{1 + streams.shape[-2]} columns, one more than there are streams"
        raise argument_error(ValueError, "alpha", f"shape {shape_of(alpha)}", wanted)
    mixed = alpha.mT @ streams  # *batch 1+n D
    return mixed[..., 0, :], mixed[..., 1:, :]


@checked
def write_streams(
    streams: Float[Tensor, "*batch n D"],
    output: Float[Tensor, "*batch D"],
    beta: Beta,
) -> Float[Tensor, "*batch n D"]:
    """The sublayer's output, added to every stream with a weight of its own.

    Shapes: streams (*batch, n, D), output (*batch, D), beta (n) or (*batch, n) -> (*batch, n, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Zhu et al. 2025 (hyper-connections), depth-connections.
    """
    return streams + beta[..., None] * output[..., None, :]


@checked
def hyper_connection(
    streams: Float[Tensor, "*batch n D"],
    sublayer: Callable[[Tensor], Tensor],
    alpha: Alpha,
    beta: Beta,
) -> Float[Tensor, "*batch n D"]:
    """n streams around one sublayer. With n = 1 and weights of 1 this is x + sublayer(x).

    Shapes: streams (*batch, n, D), sublayer (*batch, D) -> (*batch, D), alpha (n, 1 + n) or (*batch, n, 1 + n),
        beta (n) or (*batch, n) -> (*batch, n, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Zhu et al. 2025 (hyper-connections).
    """
    own, mixed = read_streams(streams, alpha)
    return write_streams(mixed, sublayer(own), beta)
