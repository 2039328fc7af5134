"""attention(): the one front door. It packs the call, picks a backend and hands over."""

from __future__ import annotations

from types import ModuleType
from typing import Annotated, Literal

from jaxtyping import Float, Int
from torch import Tensor

from ..bounds import AtLeast, PositiveInt, Probability
from ..errors import BackendError
from ..shapes import checked
from .backends import BACKENDS, flash
from .inputs import AttentionInputs, no_autocast
from .masks import Mask

Bias = Float[Tensor, "#L #S"] | Float[Tensor, "*#batch #L #S"]
Backend = Literal[("auto", *BACKENDS)]

__all__ = ["attention"]


@checked(any_dtype="bias alibi_slopes")
def attention(
    query: Float[Tensor, "*batch L d"],
    key: Float[Tensor, "*batch_kv S d"],
    value: Float[Tensor, "*batch_kv S dv"],
    *,
    mask: Mask | None = None,
    bias: Bias | None = None,
    causal: bool = False,
    window: PositiveInt | None = None,
    key_lengths: Annotated[Int[Tensor, " B"], AtLeast(0)] | None = None,
    alibi_slopes: Float[Tensor, " H"] | None = None,
    scale: float | None = None,
    dropout_p: Probability = 0.0,
    return_weights: bool = False,
    backend: Backend = "auto",
) -> (
    Float[Tensor, "*batch L dv"] | tuple[Float[Tensor, "*batch L dv"], Float[Tensor, "*batch L S"]]
):
    """Look up values: each query takes the mean of the values, weighted by how well each key matches.

    output = softmax(query key^T x scale + bias, over the allowed keys) value

    Shapes:
        query (*batch, L, d), key (*batch, S, d), value (*batch, S, dv) -> (*batch, L, dv), and the
        weights (*batch, L, S) with return_weights. With four axes, key and value may have fewer
        heads: (B, G, S, d) beside (B, H, L, d), where G divides H; query head h uses KV head
        h // (H / G). L, S and the batch may be 0.
        mask, bias: (L, S), or the rank of the scores (*batch, L, S), broadcastable.

    A key is allowed where all of these agree; a query with no allowed key gets zeros, in the output
    and in every gradient:
        mask: boolean, True = query i may attend to key j.
        causal: j <= i + S - L, aligned bottom-right: the last query sees every key.
        window: |i + S - L - j| < window; with causal, the last `window` keys.
        key_lengths: j < key_lengths[b]. The alignment of causal and window does not move.
        bias: entries of -inf hide; the rest is added to the scaled scores.

    alibi_slopes adds -slope x |i + S - L - j|, a slope for each query head. scale defaults to
    1 / sqrt(d). dropout_p acts on the weights whenever it is above 0; the weights that are returned
    are those after dropout. Query, key and value share a dtype, which the output has too, under
    torch.autocast as well; the softmax runs in at least float32. NaN and inf in allowed places
    propagate; hidden places must hold finite numbers (0 x NaN is NaN).

    backend: "auto" takes the fastest that serves the call, "plain" is the formula written out,
    "tiled" is FlashAttention in plain PyTorch (no memory of size L x S), "fused" is PyTorch's kernel,
    "flash" is the book's own, in Triton, for CUDA. On CUDA "auto" takes it for float16 and bfloat16
    with head sizes to 128, unless a mask, bias, ALiBi, lengths or dropout is in the call. Only "plain"
    can be differentiated twice; "auto" takes it where forward mode or torch.func asks for that, but
    for backward(create_graph=True) it must be named.

    Raises: TypeError for a wrong type or dtype, ValueError for a wrong shape, size, probability or
        unknown backend, BackendError (a ValueError) if the backend named cannot serve the call.
    Source: Vaswani et al. 2017, equation 1; ALiBi: Press et al. 2022; grouped-query attention: Ainslie et al.
        2023.
    """
    inputs = AttentionInputs(
        query, key, value, scale=query.shape[-1] ** -0.5 if scale is None else scale,
        mask=mask, bias=bias, causal=causal, window=window, key_lengths=key_lengths,
        alibi_slopes=alibi_slopes, dropout_p=dropout_p, return_weights=return_weights,
    )  # fmt: skip
    output, weights = answer(backend, inputs)
    return (output, weights) if return_weights else output


def answer(backend: str, inputs: AttentionInputs) -> tuple[Tensor, Tensor | None]:
    """Output and weights (None unless asked for), with autocast off: the output has the query's dtype.

    Raises: BackendError if the backend named cannot serve the call.
    """
    chosen = pick(backend, inputs)
    with no_autocast(inputs.query.device.type):
        return chosen.run(inputs)


def pick(name: str, inputs: AttentionInputs) -> ModuleType:
    """The backend of that name; for "auto" the first, fastest first, that serves the call.

    Raises: BackendError if the backend named cannot serve the call.
    """
    if name == "auto":
        for one in ("flash", "fused") if flash.is_tuned_for(inputs) else ("fused",):
            if not BACKENDS[one].unsupported_reason(inputs):
                return BACKENDS[one]
        return BACKENDS["plain"]  # which serves every call
    reason = BACKENDS[name].unsupported_reason(inputs)
    if reason:
        raise BackendError(f'backend "{name}": {reason}')
    return BACKENDS[name]
