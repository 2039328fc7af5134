"""The two blocks of RWKV-4: time mix, in the place of attention, and channel mix, in that of the feed-forward network."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..bounds import PositiveInt
from ..mixers.rwkv import chunked_wkv
from ..shapes import checked
from .short_convolution import short_convolution

__all__ = ["ChannelMix", "TimeMix", "token_shift"]

State = dict[str, Tensor]


@checked
def token_shift(
    x: Float[Tensor, "B L D"],
    *,
    state: Float[Tensor, "B D 1"] | None = None,
    real: Bool[Tensor, "B L"] | None = None,
) -> tuple[Float[Tensor, "B L D"], Float[Tensor, "B D 1"]]:
    """The real token before each: a convolution of width 2 whose weights are 1 and 0.

    Shapes: x (B, L, D), state (B, D, 1), the token before the first -> (B, L, D), and the last real token.
    Raises: TypeError or ValueError that name the argument.
    Source: Peng et al. 2023 (RWKV).

    >>> token_shift(torch.tensor([[[1.0], [2.0], [3.0]]]))[0].flatten().tolist()
    [0.0, 1.0, 2.0]
    """
    weight = x.new_tensor([1.0, 0.0]).expand(x.shape[-1], 2)
    return short_convolution(x, weight, state=state, real=real)


class TimeMix(nn.Module):
    """WKV with a receptance that gates its output; each projection reads its own mix of a token and the one before.

    log_rate: the logarithm of how fast a feature forgets; log_decay is -exp(log_rate).

    Shapes: x (B, L, D), real (B, L), True for a token that is no padding -> (B, L, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Peng et al. 2023 (RWKV); transformers' RwkvSelfAttention.
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        *,
        d_inner: PositiveInt | None = None,
        chunk_size: PositiveInt = 32,
    ) -> None:
        super().__init__()
        d_inner = d_model if d_inner is None else d_inner
        self.log_rate = nn.Parameter(torch.linspace(-5.0, 3.0, d_inner))
        self.bonus = nn.Parameter(torch.zeros(d_inner))
        self.mix_key, self.mix_value, self.mix_receptance = (_mix(d_model) for _ in range(3))
        self.key = nn.Linear(d_model, d_inner, bias=False)
        self.value = nn.Linear(d_model, d_inner, bias=False)
        self.receptance = nn.Linear(d_model, d_inner, bias=False)
        self.output = nn.Linear(d_inner, d_model, bias=False)
        self.chunk_size = chunk_size

    @checked(like="self.output.weight", D="self.key.in_features")
    def forward(
        self,
        x: Float[Tensor, "B L D"],
        *,
        real: Bool[Tensor, "B L"] | None = None,
        shift: Float[Tensor, "B D 1"] | None = None,
        state: Tensor | None = None,
    ) -> tuple[Float[Tensor, "B L D"], State]:
        """The output, and what the next call needs: the last token (shift) and the WKV's state."""
        previous, shift = token_shift(x, state=shift, real=real)
        key = self.key(previous.lerp(x, self.mix_key))
        value = self.value(previous.lerp(x, self.mix_value))
        receptance = self.receptance(previous.lerp(x, self.mix_receptance)).sigmoid()
        wkv, state = chunked_wkv(
            key, value, -self.log_rate.exp(), self.bonus, state=state, real=real,
            chunk_size=self.chunk_size,
        )  # fmt: skip
        return self.output(receptance * wkv), {"shift": shift, "state": state}


class ChannelMix(nn.Module):
    """A feed-forward network with a squared ReLU and a gate, which reads a mix of a token and the one before.

    Shapes: x (B, L, D), real (B, L) -> (B, L, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Peng et al. 2023 (RWKV); transformers' RwkvFeedForward.
    """

    @checked
    def __init__(self, d_model: PositiveInt, *, d_ff: PositiveInt | None = None) -> None:
        super().__init__()
        d_ff = 4 * d_model if d_ff is None else d_ff
        self.mix_key, self.mix_receptance = _mix(d_model), _mix(d_model)
        self.key = nn.Linear(d_model, d_ff, bias=False)
        self.receptance = nn.Linear(d_model, d_model, bias=False)
        self.value = nn.Linear(d_ff, d_model, bias=False)

    @checked(like="self.value.weight", D="self.key.in_features")
    def forward(
        self,
        x: Float[Tensor, "B L D"],
        *,
        real: Bool[Tensor, "B L"] | None = None,
        shift: Float[Tensor, "B D 1"] | None = None,
    ) -> tuple[Float[Tensor, "B L D"], State]:
        """The output, and the last token, which the next call needs."""
        previous, shift = token_shift(x, state=shift, real=real)
        hidden = self.key(previous.lerp(x, self.mix_key)).relu().square()
        gate = self.receptance(previous.lerp(x, self.mix_receptance)).sigmoid()
        return gate * self.value(hidden), {"shift": shift}


def _mix(d_model: int) -> nn.Parameter:
    """How much of a token itself each feature takes, from 0 to 1."""
    return nn.Parameter((torch.arange(d_model) / d_model)[None, None])
