"""Gated DeltaNet as a layer: a short convolution, the gated delta rule, a gated norm; and its cache of constant size."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from ..bounds import AtLeast, Below, Divides, NonNegativeInt, PositiveFloat, PositiveInt
from ..mixers.delta_rule import chunked_delta_rule
from ..shapes import checked
from .cache import check_no_gradient
from .gated_retention import RetentionState
from .multi_head import concat_heads, split_heads
from .short_convolution import short_convolution

__all__ = ["GatedDeltaNet", "GatedDeltaState", "l2_normalize"]


@checked
def l2_normalize(
    x: Float[Tensor, "*batch d"], *, eps: PositiveFloat = 1e-6
) -> Float[Tensor, "*batch d"]:
    """Divide a vector by its norm: x / sqrt(sum of squares + eps).

    Shapes: (*batch, d) -> the same.
    Raises: TypeError or ValueError that name the argument.
    Source: transformers, models/qwen3_next, l2norm.

    >>> l2_normalize(torch.tensor([3.0, 4.0]))
    tensor([0.6000, 0.8000])
    """
    return x * (x.square().sum(-1, keepdim=True) + eps).rsqrt()


class GatedDeltaState(RetentionState):
    """The cache of a `GatedDeltaNet`: the state of the delta rule, and the convolution's last w - 1 inputs.

    It never grows. What a token did to it cannot be undone; see `RetentionState`.

    Shapes: state (B, H, d, dv), in at least float32; inputs (B, C, w - 1); both None before the first call.
    Source: transformers, models/qwen3_next.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inputs: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the state and of the inputs."""
        return super().nbytes + (0 if self.inputs is None else self.inputs.nbytes)

    @checked(any_dtype="inputs")
    def keep(
        self, state: Float[Tensor, "B H d dv"], inputs: Float[Tensor, "B C K"], new: NonNegativeInt
    ) -> None:
        """Keep the state and the last inputs after `new` more tokens.

        Raises: TypeError or ValueError that name the argument; ValueError if a gradient would be lost.
        """
        check_no_gradient(inputs=inputs)
        self.update(state, new)
        self.inputs = inputs

    @checked(like="self.state")
    def reorder(self, rows: Annotated[Int[Tensor, " N"], AtLeast(0), Below("self.batch")]) -> None:
        """Keep these sequences of the batch, in this order; one may be named twice.

        Raises: TypeError or ValueError for rows that are no such numbers; RuntimeError before the first call.
        """
        super().reorder(rows)
        self.inputs = self.inputs[rows]

    @checked
    def truncate(self, length: NonNegativeInt) -> None:
        """Forget everything, with length 0, or nothing, with the present one.

        Raises: TypeError or ValueError for any other length.
        """
        super().truncate(length)
        self.inputs = self.inputs if self.length else None


class GatedDeltaNet(nn.Module):
    """The gated delta rule in the place of causal self-attention, as in Qwen3-Next.

    Queries, keys and values go through a short causal convolution and SiLU; queries and keys are then divided by
    their norms. A head of keys serves num_heads / num_key_heads consecutive heads of values. `beta` gives the
    logit of the written share; the logarithm of the decay is -exp(log_rate) softplus(decay(x) + decay_bias). Each
    head's output is divided by its root mean square, scaled, and multiplied by SiLU of the gate.

    Padding writes nothing and decays nothing, on either side; the convolution's cache has the last real inputs.

    Shapes: x (B, L, D), real (B, L), True for a token that is no padding -> (B, L, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Yang et al. 2025 (gated DeltaNet); transformers, models/qwen3_next, Qwen3NextGatedDeltaNet.
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        num_heads: PositiveInt,
        *,
        d_key: PositiveInt,
        d_value: PositiveInt,
        num_key_heads: Annotated[PositiveInt, Divides("num_heads")] | None = None,
        conv_width: PositiveInt = 4,
        norm_eps: PositiveFloat = 1e-6,
        chunk_size: PositiveInt = 64,
    ) -> None:
        super().__init__()
        self.num_heads, self.num_key_heads = num_heads, num_key_heads or num_heads
        keys, values = self.num_key_heads * d_key, num_heads * d_value
        self.query = nn.Linear(d_model, keys, bias=False)
        self.key = nn.Linear(d_model, keys, bias=False)
        self.value = nn.Linear(d_model, values, bias=False)
        self.gate = nn.Linear(d_model, values, bias=False)
        self.beta = nn.Linear(d_model, num_heads, bias=False)
        self.decay = nn.Linear(d_model, num_heads, bias=False)
        self.decay_bias = nn.Parameter(torch.ones(num_heads))
        self.log_rate = nn.Parameter(torch.empty(num_heads).uniform_(0.01, 16).log())
        bound = conv_width**-0.5
        self.conv = nn.Parameter(torch.empty(2 * keys + values, conv_width).uniform_(-bound, bound))
        self.norm_scale = nn.Parameter(torch.ones(d_value))
        self.output = nn.Linear(values, d_model, bias=False)
        self.widths, self.norm_eps, self.chunk_size = (keys, keys, values), norm_eps, chunk_size

    @checked(like="self.query.weight", D="self.query.in_features")
    def forward(
        self,
        x: Float[Tensor, "B L D"],
        *,
        real: Bool[Tensor, "B L"] | None = None,
        cache: GatedDeltaState | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Read the new tokens, after those that the cache has seen."""
        x = x if real is None else x.masked_fill(~real[..., None], 0.0)
        query, key, value, inputs = self._projected(
            x, real, None if cache is None else cache.inputs
        )
        beta, log_decay = self._gates(x, real)
        heads, state = chunked_delta_rule(
            query, key, value, beta, log_decay, state=None if cache is None else cache.state,
            chunk_size=self.chunk_size,
        )  # fmt: skip
        if cache is not None:
            cache.keep(state, inputs, x.shape[1])
        heads = self.norm_scale * functional.rms_norm(heads, heads.shape[-1:], eps=self.norm_eps)
        return self.output(concat_heads(heads) * functional.silu(self.gate(x)))  # B L D

    def _projected(
        self, x: Tensor, real: Tensor | None, past: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys and values (B, H, L, .) behind the convolution, and its last w - 1 inputs."""
        new = torch.cat((self.query(x), self.key(x), self.value(x)), -1)  # B L C
        mixed, inputs = short_convolution(new, self.conv, state=past, real=real)
        query, key, value = functional.silu(mixed).split(self.widths, -1)
        repeat = self.num_heads // self.num_key_heads
        query, key = (
            l2_normalize(split_heads(each, self.num_key_heads)).repeat_interleave(repeat, 1)
            for each in (query, key)
        )
        return query, key, split_heads(value, self.num_heads), inputs

    def _gates(self, x: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        """beta and the logarithm of the decay, (B, H, L); 0 where nothing is real."""
        rate = functional.softplus(self.decay(x).float() + self.decay_bias.float())
        beta, log_decay = self.beta(x).sigmoid().mT, (-self.log_rate.float().exp() * rate).mT
        if real is None:
            return beta, log_decay
        return tuple(each.masked_fill(~real[:, None], 0.0) for each in (beta, log_decay))
