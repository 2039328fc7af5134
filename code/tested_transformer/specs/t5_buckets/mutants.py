"""The famous mistakes with T5's buckets: the right formula with one step gone wrong."""

from __future__ import annotations

import math

import torch

from ..mistakes import Formula, mistake


class T5Formula(Formula):
    """The right bias, cut into the steps that the mutants replace one at a time."""

    def __call__(self, query_ids, key_ids, table, bidirectional=True, max_distance=128):
        """The table's row of each pair's bucket, heads before positions."""
        query_ids, key_ids = self.places(query_ids, key_ids)
        distance = self.distance(query_ids[..., :, None], key_ids[..., None, :])  # *B L S
        rows = self.buckets(distance, len(table), max_distance, bidirectional)
        return self.heads_first(table[rows if rows.ndim == 3 else rows[None]])

    def places(self, query_ids, key_ids):
        """The positions."""
        return query_ids, key_ids

    def distance(self, query_ids, key_ids):
        """How far the key is after the query."""
        return key_ids - query_ids

    def buckets(self, distance, num_buckets, max_distance, bidirectional):
        """Keys after the query have half of the buckets, or count as distance 0."""
        if not bidirectional:
            return self.one_side((-distance).clamp(min=0), num_buckets, max_distance)
        half = num_buckets // 2
        return half * (distance > 0) + self.one_side(distance.abs(), half, max_distance)

    def one_side(self, distance, num_buckets, max_distance):
        """Distances one by one, then on a logarithmic scale, then all in the last bucket."""
        exact = num_buckets // 2
        shared = exact + self.steps(distance.clamp(min=1), exact, num_buckets, max_distance).long()
        return torch.where(distance < exact, distance, self.last(shared, num_buckets))

    def steps(self, distance, exact, num_buckets, max_distance):
        """How many buckets beyond the exact ones, from 0 at exact to all at max_distance."""
        share = (distance.double() / exact).log() / math.log(max_distance / exact)
        return share * (num_buckets - exact)

    def last(self, shared, num_buckets):
        """The last bucket has everything beyond."""
        return shared.clamp(max=num_buckets - 1)

    def heads_first(self, bias):
        """(B, L, S, H) -> (B, H, L, S)."""
        return bias.permute(0, 3, 1, 2)


@mistake(
    "T5's distances from the top left",
    rejected_by="the last query alone has the last row",
    symptom="With a cache each new query counts as the first: the whole past is its future.",
    cause="Queries and keys are both counted from 0; the bias does not know the cache's length.",
    seen="huggingface/candle pull request 899",
)
class FromTheTopLeft(T5Formula):
    def places(self, query_ids, key_ids):
        return query_ids - query_ids[..., :1], key_ids - key_ids[..., :1]


@mistake(
    "past and future exchanged",
    rejected_by="past and future are told apart",
    symptom="Fine from scratch in an encoder; loaded weights read the text backward.",
    cause="The distance is query - key; T5's is key - query.",
)
class Exchanged(T5Formula):
    def distance(self, query_ids, key_ids):
        return query_ids - key_ids


@mistake(
    "no buckets for the future",
    rejected_by="past and future are told apart",
    symptom="An encoder that cannot tell the previous token from the next.",
    cause="`bidirectional` halves the buckets, and nothing adds the half to keys after the query.",
)
class NoFuture(T5Formula):
    def buckets(self, distance, num_buckets, max_distance, bidirectional):
        if not bidirectional:
            return super().buckets(distance, num_buckets, max_distance, False)
        return self.one_side(distance.abs(), num_buckets // 2, max_distance)


@mistake(
    "the future mirrored in a decoder",
    rejected_by="past and future are told apart",
    symptom="Nothing under a causal mask; without one, keys after the query have the past's buckets.",
    cause="The absolute distance in both stacks; causal buckets clamp it at 0.",
)
class Mirrored(T5Formula):
    def buckets(self, distance, num_buckets, max_distance, bidirectional):
        distance = distance if bidirectional else -distance.abs()
        return super().buckets(distance, num_buckets, max_distance, bidirectional)


@mistake(
    "a bucket for every distance, then clipped",
    rejected_by="equals the reference",
    symptom="Right for neighbors; all distances beyond the number of buckets are one.",
    cause="Clipped distances as in Shaw et al.: the logarithmic half is missing.",
)
class Clipped(T5Formula):
    def steps(self, distance, exact, num_buckets, max_distance):
        return distance - exact


@mistake(
    "no last bucket",
    rejected_by="far distances share the last bucket",
    symptom="Beyond max_distance the past gets the future's buckets, or the lookup is out of range.",
    cause="The logarithm goes on beyond max_distance, where the bucket is not clamped.",
)
class NoLast(T5Formula):
    def last(self, shared, num_buckets):
        return shared

    def buckets(self, distance, num_buckets, max_distance, bidirectional):
        rows = super().buckets(distance, num_buckets, max_distance, bidirectional)
        return rows % num_buckets


@mistake(
    "the logarithm of the distance itself",
    rejected_by="equals the reference",
    symptom="Near and far are right, and every distance between is in another bucket.",
    cause="log(distance) / log(max_distance), without dividing both by the exact half.",
)
class WholeLogarithm(T5Formula):
    def steps(self, distance, exact, num_buckets, max_distance):
        return distance.double().log() / math.log(max_distance) * (num_buckets - exact)


@mistake(
    "heads read as positions",
    rejected_by="the last query alone has the last row",
    symptom="The right shape; every head has numbers of all heads.",
    cause="`reshape` in place of `permute`: the lookup has the heads last.",
)
class HeadsAsPositions(T5Formula):
    def heads_first(self, bias):
        return bias.reshape(len(bias), bias.shape[-1], *bias.shape[1:3])
