"""Gated DeltaNet as a layer: a short convolution, the gated delta rule, a gated norm."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from ..bounds import Divides, PositiveFloat, PositiveInt
from ..mixers.delta_rule import chunked_delta_rule
from ..shapes import checked
from .multi_head import concat_heads, split_heads
from .recurrent_state import RecurrentState
from .short_convolution import short_convolution

__all__ = ["GatedDeltaNet", "l2_normalize"]


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


class GatedDeltaNet(nn.Module):
    """The gated delta rule in the place of causal self-attention, as in Qwen3-Next.

    Queries, keys and values go through a short causal convolution and SiLU; queries and keys are then divided by
    their norms. A head of keys serves num_heads / num_key_heads consecutive heads of values. `beta` gives the
    logit of the written share; the logarithm of the decay is -exp(log_rate) softplus(decay(x) + decay_bias). Each
    head's output is divided by its root mean square, scaled, and multiplied by SiLU of the gate.

    Padding writes nothing and decays nothing, on either side. The cache has the rule's `state` (B, H, d, dv), in at
    least float32, and the convolution's last real `inputs` (B, C, w - 1).

    negative_eigenvalues: double beta, up to 2, so that a write may turn what is stored under a key around, as in
        OLMo Hybrid.

    Shapes: x (B, L, D), real (B, L), True for a token that is no padding -> (B, L, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Yang et al. 2025 (gated DeltaNet); transformers, models/qwen3_next, Qwen3NextGatedDeltaNet, and
        models/olmo_hybrid, OlmoHybridGatedDeltaNet.
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
        negative_eigenvalues: bool = False,
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
        self.most = 2.0 if negative_eigenvalues else 1.0

    @checked(like="self.query.weight", D="self.query.in_features")
    def forward(
        self,
        x: Float[Tensor, "B L D"],
        *,
        real: Bool[Tensor, "B L"] | None = None,
        cache: RecurrentState | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Read the new tokens, after those that the cache has seen."""
        x = x if real is None else x.masked_fill(~real[..., None], 0.0)
        before = RecurrentState() if cache is None else cache
        query, key, value, inputs = self._projected(x, real, before.get("inputs"))
        beta, log_decay = self._beta(x), self._log_decay(x)
        if real is not None:
            beta = beta.masked_fill(~real[:, None], 0.0)
            rows = real[:, None] if log_decay.ndim == 3 else real[:, None, :, None]
            log_decay = log_decay.masked_fill(~rows, 0.0)
        heads, state = chunked_delta_rule(
            query, key, value, beta, log_decay, state=before.get("state"),
            chunk_size=self.chunk_size,
        )  # fmt: skip
        if cache is not None:
            cache.update(x.shape[1], state=state, inputs=inputs)
        heads = self.norm_scale * functional.rms_norm(heads, heads.shape[-1:], eps=self.norm_eps)
        return self.output(concat_heads(heads) * self._gate(x))  # B L D

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

    def _beta(self, x: Tensor) -> Float[Tensor, "B H L"]:
        """The written share."""
        return self.most * self.beta(x).sigmoid().mT

    def _log_decay(self, x: Tensor) -> Tensor:
        """The logarithm of the decay, (B, H, L)."""
        rate = functional.softplus(self.decay(x).float() + self.decay_bias.float())
        return (-self.log_rate.float().exp() * rate).mT

    def _gate(self, x: Tensor) -> Float[Tensor, "B L C"]:
        """What the normalized heads are multiplied by."""
        return functional.silu(self.gate(x))
