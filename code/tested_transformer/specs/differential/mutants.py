"""The famous mistakes with differential attention: another pairing, one softmax for two, values of one head."""

from __future__ import annotations

import torch

from ..mistakes import Formula, mistake


class DifferentialFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(self, query, key, value, lambda_, *, causal=False):
        """Two softmaxes, their difference, the values of both KV heads."""
        repeat = query.shape[1] // key.shape[1]
        scores = query @ key.repeat_interleave(repeat, 1).mT * query.shape[-1] ** -0.5
        if causal:
            future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(
                1 + scores.shape[-1] - scores.shape[-2]
            )
            scores = scores.masked_fill(future, -torch.inf)
        weights = self.difference(*self.pairs(scores), lambda_)
        return weights @ self.values(value).repeat_interleave(repeat, 1)[:, : weights.shape[1]]

    def pairs(self, scores):
        """Head i and head i + H/2."""
        return scores.chunk(2, 1)

    def difference(self, first, second, lambda_):
        """Of two softmaxes."""
        return first.softmax(-1) - lambda_ * second.softmax(-1)

    def values(self, value):
        """Two KV heads side by side, the same for both halves of the heads."""
        return torch.cat(value.chunk(2, 1), -1).repeat(1, 2, 1, 1)


@mistake(
    "neighboring heads are paired",
    rejected_by="the second half of the heads is taken off",
    symptom="A converted checkpoint generates noise.",
    cause="Heads 2 i and 2 i + 1, as in the code of the paper, in place of i and i + H/2.",
    of="differential_attention",
)
class NeighborsPaired(DifferentialFormula):
    def pairs(self, scores):
        return scores[:, ::2], scores[:, 1::2]


@mistake(
    "the second softmax added",
    rejected_by="weights sum to 1 - lambda",
    symptom="Noise is doubled where it should cancel.",
    cause="Plus lambda where the difference is meant.",
    of="differential_attention",
)
class Added(DifferentialFormula):
    def difference(self, first, second, lambda_):
        return first.softmax(-1) + lambda_ * second.softmax(-1)


@mistake(
    "one softmax over the difference",
    rejected_by="weights sum to 1 - lambda",
    symptom="No weight can be negative, and nothing cancels.",
    cause="Scores are subtracted before the softmax. The difference is of two softmaxes.",
    of="differential_attention",
)
class OneSoftmax(DifferentialFormula):
    def difference(self, first, second, lambda_):
        scores = first - lambda_ * second
        return scores.masked_fill(first == -torch.inf, -torch.inf).softmax(-1)


@mistake(
    "values of neighboring KV heads",
    rejected_by="equals the reference",
    symptom="Right with two KV heads; with more, pairs read each other's values.",
    cause="The values of KV heads 2 g and 2 g + 1 are joined in place of g and g + G/2.",
    of="differential_attention",
)
class NeighborValues(DifferentialFormula):
    def values(self, value):
        return torch.cat((value[:, ::2], value[:, 1::2]), -1).repeat(1, 2, 1, 1)
