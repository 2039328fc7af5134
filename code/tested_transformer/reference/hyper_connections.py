"""The slow truth of hyper-connections, and of a gate on attention's output."""

from __future__ import annotations

import numpy as np

from .attention import _wide, dot


def hyper_connection(streams, weight, alpha, beta):
    """n streams around the sublayer h weight^T. Shapes: streams (*batch, n, D), weight (D, D), alpha (*batch, n, 1 + n) or
    (n, 1 + n), beta (*batch, n) or (n) -> (*batch, n, D). Source: Zhu et al. 2025."""
    streams, weight, alpha, beta = map(_wide, (streams, weight, alpha, beta))
    alpha = np.broadcast_to(alpha, (*streams.shape[:-1], alpha.shape[-1]))
    beta = np.broadcast_to(beta, streams.shape[:-1])
    new = np.zeros_like(streams)
    for *place, n in np.ndindex(streams.shape[:-1]):
        token = streams[tuple(place)]
        own = [dot(alpha[tuple(place)][:, 0], column) for column in token.T]
        output = [dot(row, np.array(own)) for row in weight]
        for d in range(streams.shape[-1]):
            mixed = dot(alpha[tuple(place)][:, 1 + n], token[:, d])
            new[(*place, n, d)] = mixed + beta[(*place, n)] * output[d]
    return new


def gated_heads(heads, x, gate, output):
    """(heads x sigmoid(x gate^T)) output^T. Shapes: heads (*batch, n), x (*batch, D), gate (n, D), output (E, n) -> (*batch,
    E). Source: Qiu et al. 2025."""
    heads, x, gate, output = map(_wide, (heads, x, gate, output))
    result = np.zeros((*heads.shape[:-1], len(output)), heads.dtype)
    for place in np.ndindex(heads.shape[:-1]):
        gated = [
            h / (1 + np.exp(-dot(x[place], row))) for h, row in zip(heads[place], gate, strict=True)
        ]
        result[place] = [dot(np.array(gated), row) for row in output]
    return result
