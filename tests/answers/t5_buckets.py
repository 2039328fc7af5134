"""The answers to T5's relative positions."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch.nn import functional

from tested_transformer.positions.t5_buckets import T5Positions

from . import right, wrong
from .spoiled import spoil


def edges(num_buckets, max_distance):
    """The first distance of each shared bucket after the first."""
    exact = num_buckets // 2
    steps = num_buckets - exact
    powers = [exact * (max_distance / exact) ** (k / steps) for k in range(1, steps)]
    return torch.tensor([math.ceil(power - 1e-9) for power in powers], dtype=torch.int64)


def side(distance, num_buckets, max_distance):
    """Count the edges that a distance has passed."""
    exact = num_buckets // 2
    passed = torch.bucketize(distance, edges(num_buckets, max_distance), right=True)
    return distance.clamp(max=exact) + passed


def t5(query_ids, key_ids, table, bidirectional=True, max_distance=128):
    """The table's rows, found by edges in place of logarithms."""
    distance = key_ids.unsqueeze(-2) - query_ids.unsqueeze(-1)
    size = len(table) // 2 if bidirectional else len(table)
    back = side((-distance).clamp(min=0), size, max_distance)
    rows = back
    if bidirectional:
        rows = torch.where(
            distance > 0, size + side(distance.clamp(min=0), size, max_distance), back
        )
    bias = table[rows].movedim(-1, -3)
    return bias if bias.ndim == 4 else bias[None]


right("t5_bias", "the library's class")(T5Positions)
right("t5_bias", "the formula")(t5)
right("t5_bias", "a partial function")(partial(t5))
spoil("t5_bias", t5, "table")


@right("t5_bias")
def one_hot_rows(query_ids, key_ids, table, bidirectional=True, max_distance=128):
    """A matrix product with one-hot rows."""
    query_ids, key_ids = torch.atleast_2d(query_ids), torch.atleast_2d(key_ids)
    numbered = torch.arange(len(table), dtype=torch.float64)[:, None]
    rows = t5(query_ids, key_ids, numbered, bidirectional, max_distance)[:, 0].long()
    hot = functional.one_hot(rows, len(table)).to(table.dtype)
    return torch.einsum("blsn,nh->bhls", hot, table)


def t5_of(change):
    """The right bias, changed: by a function of it and of all arguments."""

    def changed(query_ids, key_ids, table, bidirectional=True, max_distance=128):
        return change(query_ids, key_ids, table, bidirectional, max_distance)

    return changed


for name, change in {
    "always bidirectional": lambda q, k, t, b, m: t5(q, k, t, True, m),
    "never bidirectional": lambda q, k, t, b, m: t5(q, k, t, False, m),
    "a max_distance of 128": lambda q, k, t, b, m: t5(q, k, t, b, 128),
    "scaled by 1/sqrt(H)": lambda q, k, t, b, m: t5(q, k, t, b, m) / t.shape[1] ** 0.5,
    "heads last": lambda q, k, t, b, m: t5(q, k, t, b, m).permute(0, 2, 3, 1),
    "no batch axis": lambda q, k, t, b, m: (
        t5(q, k, t, b, m) if q.ndim == 2 else t5(q, k, t, b, m)[0]
    ),
    "the first sequence's positions": lambda q, k, t, b, m: t5(
        q[:1].expand_as(q) if q.ndim == 2 else q, k[:1].expand_as(k) if k.ndim == 2 else k, t, b, m
    ),
    "transposed": lambda q, k, t, b, m: t5(q, k, t, b, m).mT,
    "the first head's numbers": lambda q, k, t, b, m: t5(q, k, t[:, :1].expand_as(t), b, m),
    "counted along the sequence": lambda q, k, t, b, m: t5(
        torch.arange(q.shape[-1]).expand(q.shape),
        torch.arange(k.shape[-1]).expand(k.shape),
        t,
        b,
        m,
    ),
    "one bucket later": lambda q, k, t, b, m: t5(q, k, t.roll(1, 0), b, m),
    "-inf for the future of a decoder": lambda q, k, t, b, m: t5(q, k, t, b, m).masked_fill(
        (k.unsqueeze(-2) > q.unsqueeze(-1)).unsqueeze(-3) & torch.tensor(not b), -math.inf
    ),
}.items():
    wrong("t5_bias", name)(t5_of(change))
