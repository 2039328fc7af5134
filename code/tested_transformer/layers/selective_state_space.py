"""The block of Mamba: a short convolution, a selective scan, and a gate beside them."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from ..bounds import PositiveInt
from ..mixers.mamba import chunked_selective_scan
from ..mixers.state_space import Method
from ..shapes import checked
from .recurrent_state import RecurrentState
from .short_convolution import ShortConvolution

__all__ = ["SelectiveStateSpace"]


class SelectiveStateSpace(nn.Module):
    """Mamba's mixer: what a token writes to its state, how fast it forgets and what it reads depend on the token.

    `in_proj` gives the features and a gate; `select` makes a low-rank step size, b and c of the convolved
    features; `step` makes the step sizes from the first. Padding enters neither the convolution nor the scan.

    d_inner: features inside, 2 d_model by default. rank: of the step sizes, d_model / 16 rounded up by default.

    Shapes: x (B, L, D), real (B, L), True for a token that is no padding -> (B, L, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Gu and Dao 2023 (Mamba); transformers' MambaMixer.
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        *,
        num_states: PositiveInt = 16,
        d_inner: PositiveInt | None = None,
        rank: PositiveInt | None = None,
        width: PositiveInt = 4,
        bias: bool = False,
        conv_bias: bool = True,
        method: Method = "euler",
        chunk_size: PositiveInt = 8,
    ) -> None:
        super().__init__()
        d_inner = 2 * d_model if d_inner is None else d_inner
        rank = math.ceil(d_model / 16) if rank is None else rank
        self.in_proj = nn.Linear(d_model, 2 * d_inner, bias=bias)
        self.convolution = ShortConvolution(d_inner, width=width, bias=conv_bias)
        self.select = nn.Linear(d_inner, rank + 2 * num_states, bias=False)
        self.step = nn.Linear(rank, d_inner)
        self.a_log = nn.Parameter(torch.empty(d_inner, num_states))
        self.skip = nn.Parameter(torch.empty(d_inner))
        self.output = nn.Linear(d_inner, d_model, bias=bias)
        self.sizes = (rank, num_states, num_states)
        self.method, self.chunk_size = method, chunk_size
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
        x, gate = self.in_proj(x).chunk(2, dim=-1)  # B L d_inner
        x, last = self.convolution(x, state=before.get("convolution"), real=real)
        x = functional.silu(x)
        step, b, c = self.select(x).split(self.sizes, dim=-1)
        delta = functional.softplus(self.step(step))  # B L d_inner
        y, state = chunked_selective_scan(
            x, delta, -self.a_log.exp(), b, c, skip=self.skip, state=before.get("scan"), real=real,
            method=self.method, chunk_size=self.chunk_size,
        )  # fmt: skip
        if cache is not None:
            cache.update(x.shape[1], convolution=last, scan=state)
        return self.output(y * functional.silu(gate))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialize a as -1 to -N, and the biases of the steps: their softplus is between 0.001 and 0.1."""
        self.a_log.copy_(torch.arange(1, self.a_log.shape[1] + 1).log().expand_as(self.a_log))
        self.skip.fill_(1.0)
        init_steps(self.step.bias)


def init_steps(bias: Tensor) -> None:
    """Biases whose softplus is between 0.001 and 0.1, each order of magnitude as probable."""
    step = torch.empty_like(bias).uniform_(math.log(0.001), math.log(0.1)).exp()
    bias.copy_(step + (-torch.expm1(-step)).log())  # the inverse of softplus
