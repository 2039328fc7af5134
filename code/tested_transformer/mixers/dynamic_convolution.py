"""Dynamic convolution: each token averages its neighbors with weights that it computes from itself alone."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from ..errors import argument_error, shape_of
from ..shapes import checked

__all__ = ["dynamic_convolution"]


@checked
def dynamic_convolution(
    x: Float[Tensor, "B L D"],
    logits: Float[Tensor, "#B #L H K"],
    *,
    causal: bool = False,
    key_mask: Bool[Tensor, "B L"] | None = None,
) -> Float[Tensor, "B L D"]:
    """A weighted mean of K neighboring tokens: the weights are a softmax of the token's own logits.

    The D channels are split into H heads, runs of D / H neighbors that share their weights. With `causal` the
    last weight is that of the token itself, without it the middle one (of an even number, the left of the
    two). Beyond the ends, and where `key_mask` is False, there are zeros: weights there count and add nothing.
    Logits that are the same for all tokens, (1, 1, H, K), make it a lightweight convolution.

    Shapes: x (B, L, D), logits (B, L, H, K), broadcast over B and L, key_mask (B, L) -> (B, L, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Wu et al. 2019 (Pay Less Attention); mit-han-lab/lite-transformer,
        fairseq/modules/lightweight_convolution.py.
    """
    heads, width = logits.shape[-2:]
    if x.shape[-1] % heads:
        wanted = f"a number of channels that {heads} heads divide"
        raise argument_error(ValueError, "x", f"shape {shape_of(x)}", wanted)
    if key_mask is not None:
        x = x.masked_fill(~key_mask[..., None], 0.0)
    wide = torch.promote_types(x.dtype, torch.float32)
    before = width - 1 if causal else (width - 1) // 2
    padded = functional.pad(x.to(wide), (0, 0, before, width - before))  # one more than is needed
    near = padded.unfold(1, width, 1)[:, :-1].unflatten(2, (heads, -1))  # B L H D/H K
    weights = logits.to(wide).softmax(-1)  # B L H K
    return (near @ weights[..., None])[..., 0].flatten(2).to(x.dtype)
