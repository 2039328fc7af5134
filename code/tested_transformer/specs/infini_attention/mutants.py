"""The famous mistakes with Infini-attention: a memory that is written before it is read, weights below 0, a gate."""

from __future__ import annotations

import torch

from ..masks.spec import textbook as masked_softmax
from ..mistakes import Formula, mistake


class InfiniFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(
        self, query, key, value, gate, *, segment_length, delta=False, memory=None, normalizer=None,
        scale=None,
    ):  # fmt: skip
        """One segment after the other."""
        if memory is None:
            memory = value.new_zeros(*key.shape[:2], key.shape[-1], value.shape[-1])
            normalizer = key.new_zeros(*key.shape[:2], key.shape[-1])
        outputs = []
        for q, k, v in zip(*(x.split(segment_length, 2) for x in (query, key, value)), strict=True):
            before = memory, normalizer
            after = self.written(k, v, *before, delta)
            recalled = self.recall(q, *self.which(before, after))
            outputs.append(self.mixed(recalled, self.local(q, k, v, scale), gate))
            memory, normalizer = after
        return torch.cat(outputs, 2), memory, normalizer

    def local(self, query, key, value, scale):
        """Causal attention within the segment."""
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        scores = query @ key.mT * scale
        return masked_softmax(scores, torch.ones_like(scores, dtype=torch.bool).tril()) @ value

    def features(self, x):
        """Above 0, whatever x is."""
        return torch.where(x > 0, x + 1, x.clamp(max=0).exp())

    def recall(self, query, memory, normalizer):
        """What the memory returns, 0 if it is empty."""
        features = self.features(query)
        total = features @ normalizer[..., None]
        return torch.where(total == 0, 0.0, features @ memory / torch.where(total == 0, 1.0, total))

    def which(self, before, after):
        """The memory that a segment reads: the one from before it."""
        return before

    def written(self, key, value, memory, normalizer, delta):
        """The memory after a segment."""
        value = self.new(key, value, memory, normalizer) if delta else value
        features = self.features(key)
        return memory + features.mT @ value, self.total(normalizer, features.sum(2))

    def new(self, key, value, memory, normalizer):
        """What the delta rule writes."""
        return value - self.recall(key, memory, normalizer)

    def total(self, before, new):
        """The sum of all keys so far."""
        return before + new

    def mixed(self, recalled, local, gate):
        """Both, by the gate of each head."""
        share = self.share(gate)
        return share * recalled + (1 - share) * local

    def share(self, gate):
        """How much of the memory there is in each head."""
        return gate.sigmoid()[:, None, None]


@mistake(
    "the memory is written before it is read",
    rejected_by="a token does not depend on later ones",
    symptom="Training looks too good and generation is poor: each token sees the rest of its segment.",
    cause="The segment's keys and values are in the memory already when its queries read it.",
    seen="dingo-actual/infini-transformer issue 4, which takes it for unavoidable",
    of="infini_attention",
)
class WrittenFirst(InfiniFormula):
    def which(self, before, after):
        return after


@mistake(
    "no ELU + 1",
    rejected_by="what is recalled lies among the values",
    symptom="Now and then an output is huge, or has the wrong sign: the normalizer passes through 0.",
    cause="Queries and keys enter the memory as they are, so that weights may be negative and cancel.",
    seen="Beomi/InfiniTransformer issue 4",
    of="infini_attention",
)
class NoFeatures(InfiniFormula):
    def features(self, x):
        return x


@mistake(
    "the gate is turned around",
    rejected_by="a closed gate leaves the segment alone",
    symptom="A loaded model gives other numbers.",
    cause="sigmoid(gate) is the share of the local attention, where it should be that of the memory.",
    of="infini_attention",
)
class GateTurned(InfiniFormula):
    def share(self, gate):
        return 1 - super().share(gate)


@mistake(
    "one gate for all heads",
    rejected_by="a head has a gate of its own",
    symptom="No head specializes in the memory, none in the segment.",
    cause="One number instead of one per head.",
    of="infini_attention",
)
class OneGate(InfiniFormula):
    def share(self, gate):
        return super().share(gate[:1])


@mistake(
    "the normalizer is that of the last segment",
    rejected_by="what is recalled lies among the values",
    symptom="The more segments, the larger the outputs.",
    cause="The values of all segments are summed, and divided by the keys of one.",
    of="infini_attention",
)
class LastNormalizer(InfiniFormula):
    def total(self, before, new):
        return new


@mistake(
    "an empty memory is divided by 0",
    rejected_by="nothing is divided by 0",
    symptom="NaN from the first segment on.",
    cause="0 / 0: before the first segment the sum of all keys is 0.",
    of="infini_attention",
)
class EmptyDivided(InfiniFormula):
    def recall(self, query, memory, normalizer):
        features = self.features(query)
        return features @ memory / (features @ normalizer[..., None])


@mistake(
    "the delta rule subtracts an unnormalized value",
    rejected_by="what is known is not written again",
    symptom="With the delta rule the memory swings ever farther, up to infinity.",
    cause="The product of key and memory is subtracted, not divided by the product of key and normalizer.",
    of="infini_attention",
)
class UnnormalizedDelta(InfiniFormula):
    def new(self, key, value, memory, normalizer):
        return value - self.features(key) @ memory
