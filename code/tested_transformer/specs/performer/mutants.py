"""The famous mistakes with Performer: stabilizers, normalizers, padding, and sums that run too far."""

from __future__ import annotations

import torch

from ...functional.masks import masked_softmax
from ..mistakes import Formula, mistake
from ..rounding import in_at_least


class PerformerFormula(Formula):
    """The right formula in logarithms, with its whole matrix, cut into the steps that the mutants replace."""

    def __call__(
        self, query, key, value, directions, *, causal=False, key_mask=None, scale=None, chunk_size=None
    ):  # fmt: skip
        """Features of queries and keys, their dot products, the normalized sum."""
        with in_at_least(torch.float32):
            dtype, wide = query.dtype, self.dtype(query.dtype)
            query, key, value, directions = (
                each.to(wide) for each in (query, key, value, directions)
            )
            scale = query.shape[-1] ** -0.5 if scale is None else scale
            query, key = self.scaled(query, key, scale)
            logs = [x @ directions.mT - self.half_norm(x) for x in (query, key)]
            allowed = self.past(query.shape[2], key.shape[2], causal)
            if key_mask is not None:
                allowed, value = self.padded(allowed, value, key_mask[:, None, None])
            return self.output(logs[0], self.of_keys(logs[1]), value, allowed).to(dtype)

    def dtype(self, dtype):
        """In float32 at least."""
        return torch.promote_types(dtype, torch.float32)

    def scaled(self, query, key, scale):
        """Each by the root of the scale."""
        return scale**0.5 * query, scale**0.5 * key

    def half_norm(self, x):
        """What is subtracted from w x."""
        return x.square().sum(-1, keepdim=True) / 2

    def of_keys(self, logs):
        """The logarithms of the keys' features."""
        return logs

    def past(self, length, keys, causal):
        """Which keys each query reads."""
        every = torch.ones(length, keys, dtype=torch.bool)
        return every.tril() if causal else every

    def padded(self, allowed, value, real):
        """No query reads padding."""
        return allowed & real, value

    def output(self, queries, keys, value, allowed):
        """The weights are a softmax of the logarithms of the estimated kernel."""
        return masked_softmax(kernel(queries, keys), allowed) @ value


def kernel(queries, keys):
    """The logarithm of the sum of the products of features: B H L S."""
    return (queries[..., :, None, :] + keys[..., None, :, :]).logsumexp(-1)


@mistake(
    "a stabilizer for each key",
    rejected_by="keys are weighed against each other",
    symptom="No overflow, right shapes, weights that sum to 1, and the wrong weights.",
    cause="Each key's features are divided by their own maximum, which no denominator takes back: only what is "
    "the same for all keys of a query cancels. A query may have a maximum of its own.",
    of="performer_attention",
)
class StabilizerPerKey(PerformerFormula):
    def of_keys(self, logs):
        return logs - logs.detach().amax(-1, keepdim=True)


@mistake(
    "no stabilizer",
    rejected_by="large queries and keys have their weights, too",
    symptom="Zeros or NaN after some steps of training, as soon as a query or a key has grown.",
    cause="exp(w x - |x|^2 / 2) becomes 0 for every direction, or overflows: 0 over 0, or infinity over infinity.",
    of="performer_attention",
)
class NoStabilizer(PerformerFormula):
    def output(self, queries, keys, value, allowed):
        weights = (queries.exp() @ keys.exp().mT) * allowed
        return weights @ value / safe(weights.sum(-1, keepdim=True))


@mistake(
    "the features in half precision",
    rejected_by="equals the reference",
    symptom="Works in float32; in float16 the output is infinite or NaN, or coarse.",
    cause="The exponentials and their sums need the range of float32, whatever the inputs are.",
    seen="facebookresearch/xformers issue 96, pull request 98",
    of="performer_attention",
)
class HalfPrecision(PerformerFormula):
    def dtype(self, dtype):
        return dtype


@mistake(
    "the norms are left out",
    rejected_by="keys are weighed against each other",
    symptom="Long keys get too much weight.",
    cause="exp(w x) without |x|^2 / 2: the mean of exp(w (q + k)) is exp(|q + k|^2 / 2), not exp(q k).",
    of="performer_attention",
)
class NoNorms(PerformerFormula):
    def half_norm(self, x):
        return torch.zeros_like(x[..., :1])


@mistake(
    "the whole scale on queries and keys",
    rejected_by="keys are weighed against each other",
    symptom="Attention is nearly uniform.",
    cause="Both are multiplied by 1 / sqrt(d), so that scores are divided by d. Each gets its fourth root.",
    of="performer_attention",
)
class ScaledTwice(PerformerFormula):
    def scaled(self, query, key, scale):
        return scale * query, scale * key


@mistake(
    "each feature is normalized by itself",
    rejected_by="keys are weighed against each other",
    symptom="The bidirectional form is right, the causal one is not, though its weights sum to 1.",
    cause="The running sum of each feature's values is divided by that feature's running sum, before the query "
    "weighs them. The denominator is one number per query: its features times the sums.",
    seen="lucidrains/performer-pytorch issue 21",
    of="performer_attention",
)
class FeatureByItself(PerformerFormula):
    def output(self, queries, keys, value, allowed):
        if bool((allowed == allowed[..., :1, :]).all()):  # the bidirectional form
            return super().output(queries, keys, value, allowed)
        queries, keys, read = queries.softmax(-1), keys.exp(), allowed.to(keys.dtype)
        sums = safe(read @ keys)  # B H L m: running sums of each feature
        return (
            torch.einsum(
                "bhlm,bhlms->bhls", queries / sums, keys.mT[..., None, :, :] * read[..., None, :]
            )
            @ value
        )


def safe(total):
    """Without zeros, for division."""
    return total.masked_fill(total == 0, 1.0)


@mistake(
    "no denominator",
    rejected_by="weights sum to 1",
    symptom="Outputs grow with the text.",
    cause="The sums over keys are returned as they are; they must be divided by the sum of the weights.",
    of="performer_attention",
)
class NoDenominator(PerformerFormula):
    def output(self, queries, keys, value, allowed):
        return kernel(queries, keys).exp() * allowed @ value


@mistake(
    "padding counts in the denominator",
    rejected_by="padding is no key",
    symptom="A text in a padded batch has smaller outputs than alone.",
    cause="Padding's values are set to 0, and its keys have features all the same: a feature of 0 needs a "
    "logarithm of -inf.",
    seen="lucidrains/performer-pytorch, performer_pytorch.py, Attention.forward",
    of="performer_attention",
)
class PaddingInDenominator(PerformerFormula):
    def padded(self, allowed, value, real):
        return allowed, value * real.mT


@mistake(
    "the sums without the query's own key",
    rejected_by="the first query reads its own key",
    symptom="The first token's output is 0 or NaN, and every other one is that of a token that cannot see itself.",
    cause="The running sum is read before the token's key is added.",
    of="performer_attention",
)
class WithoutOwnKey(PerformerFormula):
    def past(self, length, keys, causal):
        every = torch.ones(length, keys, dtype=torch.bool)
        return every.tril(-1) if causal else every


@mistake(
    "the causal flag has no effect",
    rejected_by="a query does not depend on later keys",
    symptom="A language model whose loss is too good to be true.",
    cause="The sums run over all keys, whatever the flag says.",
    seen="facebookresearch/xformers issue 103, pull request 104",
    of="performer_attention",
)
class FlagWithoutEffect(PerformerFormula):
    def past(self, length, keys, causal):
        return torch.ones(length, keys, dtype=torch.bool)
