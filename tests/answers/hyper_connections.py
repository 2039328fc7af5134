"""Hyper-connections by loops over streams and by one matrix; gates by torch's linear layers."""

import torch
from torch.nn import functional

from answers import right, wrong
from tested_transformer.functional.gated_heads import gated_heads
from tested_transformer.functional.hyper_connections import hyper_connection

right("hyper_connection", "the package's")(hyper_connection)
right("gated_heads", "the package's")(gated_heads)


@right("hyper_connection", "stream by stream")
def by_streams(streams, sublayer, alpha, beta):
    count = streams.shape[-2]

    def weighted(column):
        return sum(alpha[..., i, column, None] * streams[..., i, :] for i in range(count))

    output = sublayer(weighted(0))
    new = [weighted(1 + j) + beta[..., j, None] * output for j in range(count)]
    return torch.stack(new, -2)


@right("hyper_connection", "one product for reading and mixing")
def by_einsum(streams, sublayer, alpha, beta):
    alpha = alpha.expand(*streams.shape[:-1], alpha.shape[-1])
    mixed = torch.einsum("...nm,...nd->...md", alpha, streams)
    return mixed[..., 1:, :] + torch.einsum(
        "...n,...d->...nd", beta.expand(streams.shape[:-1]), sublayer(mixed[..., 0, :])
    )


@wrong("hyper_connection", "the sublayer's output twice")
def twice(streams, sublayer, alpha, beta):
    return hyper_connection(streams, sublayer, alpha, 2 * beta)


@wrong("hyper_connection", "weights that get no gradient")
def detached(streams, sublayer, alpha, beta):
    return hyper_connection(streams, sublayer, alpha.detach(), beta)


@right("gated_heads", "torch's linear, the sigmoid written out")
def by_linear(heads, x, gate, output):
    closed = 1 + torch.exp(-functional.linear(x, gate))
    return functional.linear(heads / closed, output)


@wrong("gated_heads", "a gate that lets through as well")
def open_gate(heads, x, gate, output):
    return gated_heads(heads, x, gate, output) + heads @ output.mT


@wrong("gated_heads", "a gate without a gradient")
def gate_detached(heads, x, gate, output):
    return gated_heads(heads, x, gate.detach(), output)
