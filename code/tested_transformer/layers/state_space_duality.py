"""The block of Mamba-2: one projection for everything, a short convolution, heads with one decay each, a norm."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from ..bounds import NonNegativeFloat, PositiveFloat, PositiveInt
from ..errors import argument_error
from ..mixers.mamba2 import chunked_ssd
from ..shapes import checked
from .multi_head import concat_heads, split_heads
from .recurrent_state import RecurrentState
from .selective_state_space import init_steps
from .short_convolution import ShortConvolution

__all__ = ["StateSpaceDuality"]


class StateSpaceDuality(nn.Module):
    """Mamba-2's mixer: attention whose mask is a product of decays, computed in chunks with one state per head.

    `in_proj` gives gate, values, b (keys), c (queries) and step sizes at once; the convolution runs over
    values, b and c. The heads' outputs are gated, and then normalized in num_groups groups.

    step_min, step_max: bounds to which the step sizes are clamped.

    Shapes: x (B, L, D), real (B, L), True for a token that is no padding -> (B, L, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Dao and Gu 2024 (Mamba-2); transformers' Mamba2Mixer.
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        num_heads: PositiveInt,
        d_head: PositiveInt,
        *,
        num_states: PositiveInt = 128,
        num_groups: PositiveInt = 1,
        width: PositiveInt = 4,
        bias: bool = False,
        conv_bias: bool = True,
        step_min: NonNegativeFloat = 0.0,
        step_max: PositiveFloat | None = None,
        norm_eps: PositiveFloat = 1e-5,
        chunk_size: PositiveInt = 64,
    ) -> None:
        super().__init__()
        if num_heads % num_groups:
            wanted = f"a divisor of num_heads = {num_heads}"
            raise argument_error(ValueError, "num_groups", num_groups, wanted)
        d_inner, d_states = num_heads * d_head, num_groups * num_states
        convolved = d_inner + 2 * d_states
        self.in_proj = nn.Linear(d_model, d_inner + convolved + num_heads, bias=bias)
        self.convolution = ShortConvolution(convolved, width=width, bias=conv_bias)
        self.step_bias = nn.Parameter(torch.empty(num_heads))
        self.a_log = nn.Parameter(torch.empty(num_heads))
        self.skip = nn.Parameter(torch.empty(num_heads))
        self.norm_weight = nn.Parameter(torch.empty(d_inner))
        self.output = nn.Linear(d_inner, d_model, bias=bias)
        self.num_heads, self.num_groups = num_heads, num_groups
        self.sizes = ((d_inner, convolved, num_heads), (d_inner, d_states, d_states))
        self.step_min, self.step_max = step_min, step_max
        self.norm_eps, self.chunk_size = norm_eps, chunk_size
        self.reset_parameters()

    @checked(like="self.output.weight", D="self.in_proj.in_features")
    def forward(
        self,
        x: Float[Tensor, "B L D"],
        *,
        real: Bool[Tensor, "B L"] | None = None,
        cache: RecurrentState | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Read the tokens; with a cache they are the chunk that follows what it has seen."""
        before = RecurrentState() if cache is None else cache
        gate, x, step = self.in_proj(x).split(self.sizes[0], dim=-1)
        x, last = self.convolution(x, state=before.get("convolution"), real=real)
        x, b, c = functional.silu(x).split(self.sizes[1], dim=-1)
        delta = functional.softplus(step + self.step_bias)  # B L H
        delta = delta.clamp(self.step_min, self.step_max).mT  # B H L
        b, c = (split_heads(each, self.num_groups) for each in (b, c))  # B G L N
        y, state = chunked_ssd(
            split_heads(x, self.num_heads), delta, -self.a_log.exp(), b, c, skip=self.skip,
            state=before.get("scan"), real=real, chunk_size=self.chunk_size,
        )  # fmt: skip
        if cache is not None:
            cache.update(x.shape[1], convolution=last, scan=state)
        return self.output(self._gated_norm(concat_heads(y), gate))

    def _gated_norm(
        self, y: Float[Tensor, "B L D"], gate: Float[Tensor, "B L D"]
    ) -> Float[Tensor, "B L D"]:
        """The gated features, each group divided by its root mean square."""
        groups = (y * functional.silu(gate)).unflatten(-1, (self.num_groups, -1))
        normalized = functional.rms_norm(groups, groups.shape[-1:], eps=self.norm_eps)
        return self.norm_weight * normalized.flatten(-2)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialize a as -1 to -H, and the biases of the steps: their softplus is between 0.001 and 0.1."""
        self.a_log.copy_(torch.arange(1, self.num_heads + 1).log())
        self.skip.fill_(1.0)
        self.norm_weight.fill_(1.0)
        init_steps(self.step_bias)
