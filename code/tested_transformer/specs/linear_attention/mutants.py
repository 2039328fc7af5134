"""The famous mistakes with linear attention: the normalizer, the feature map, the state."""

from __future__ import annotations

import torch
from torch.nn import functional

from ..mistakes import Formula, mistake


class LinearFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(
        self, query, key, value, *, feature_map="elu+1", normalize=True, real=None, state=None,
        chunk_size=None,
    ):  # fmt: skip
        """All tokens at once: sums of scores, the state before them and the state after."""
        q, k = self.features(query, feature_map), self.key_features(key, real, feature_map)
        if normalize:
            value = torch.cat((value, torch.ones_like(value[..., :1])), -1)
        if state is None:
            state = value.new_zeros(*q.shape[:2], q.shape[-1], value.shape[-1])
        output = self.scores(q, k) @ value + q @ self.read_state(state, normalize)
        return self.divided(output, q, k, normalize), self.new_state(state, k, value)

    def features(self, x, feature_map):
        """What a query and a key are compared by."""
        return functional.elu(x) + 1 if feature_map == "elu+1" else x

    def key_features(self, key, real, feature_map):
        """Those of padding are 0."""
        k = self.features(key, feature_map)
        return k if real is None else k * real[:, None, :, None]

    def scores(self, q, k):
        """Of the keys up to the query's own token."""
        return (q @ k.mT).tril()

    def read_state(self, state, normalize):
        """The state that the queries of a call read."""
        return state

    def divided(self, output, q, k, normalize):
        """The sums of the values by the sum of the scores, which is their last column."""
        if not normalize:
            return output
        total = output[..., -1:]
        return output[..., :-1] / total.masked_fill(total == 0, 1.0)

    def new_state(self, state, k, value):
        """The state before, and each key with its value."""
        return state + k.mT @ value


@mistake(
    "no normalizer",
    rejected_by="the weights sum to 1",
    symptom="Outputs grow with the number of tokens.",
    cause="phi(q)^T S is returned as it is; it must be divided by phi(q) . z, the sum of the scores.",
)
class NoNormalizer(LinearFormula):
    def divided(self, output, q, k, normalize):
        return output[..., :-1] if normalize else output


@mistake(
    "divided by the number of tokens",
    rejected_by="the weights sum to 1",
    symptom="Outputs are too large or too small by a factor that depends on the query.",
    cause="The sum of the scores is not the number of keys: scores are not 1 on average.",
)
class DividedByCount(LinearFormula):
    def divided(self, output, q, k, normalize):
        count = torch.arange(1, q.shape[2] + 1, dtype=q.dtype)[:, None]
        return output[..., :-1] / count if normalize else output


@mistake(
    "the query does not attend to its own token",
    rejected_by="the weights sum to 1",
    symptom="The first token has an output of 0, or NaN.",
    cause="The state is read before the token's key and value come in.",
)
class ReadBeforeWrite(LinearFormula):
    def scores(self, q, k):
        return (q @ k.mT).tril(-1)


@mistake(
    "elu without the 1",
    rejected_by="no weight is negative",
    symptom="Now and then a huge output: the sum of the scores is close to 0.",
    cause="elu goes down to -1: scores may be negative, and their sum may vanish.",
)
class EluWithoutOne(LinearFormula):
    def features(self, x, feature_map):
        return functional.elu(x) if feature_map == "elu+1" else x


@mistake(
    "the normalizer sums over all tokens",
    rejected_by="a token does not depend on later ones",
    symptom="Training looks right, generation token by token gives other numbers.",
    cause="The numerator is causal, and the denominator is phi(q) times the sum of all keys.",
)
class NormalizerOfAll(LinearFormula):
    def divided(self, output, q, k, normalize):
        if not normalize:
            return output
        later = (q @ k.mT).triu(1).sum(-1, keepdim=True)
        return output[..., :-1] / (output[..., -1:] + later)


@mistake(
    "padding has the features of 0",
    rejected_by="padding does nothing",
    symptom="A sequence has other outputs in a padded batch than alone.",
    cause="The keys of padding are set to 0 before the feature map, and elu(0) + 1 is 1.",
)
class PaddingHasFeatures(LinearFormula):
    def key_features(self, key, real, feature_map):
        key = key if real is None else key * real[:, None, :, None]
        return self.features(key, feature_map)


@mistake(
    "the normalizer starts anew in each call",
    rejected_by="a call in two parts is one call",
    symptom="Right in one call; too large from the second call on.",
    cause="The cache has the matrix S, and the vector z of the normalizer was forgotten.",
)
class NormalizerStartsAnew(LinearFormula):
    def read_state(self, state, normalize):
        if not normalize:
            return state
        return torch.cat((state[..., :-1], torch.zeros_like(state[..., -1:])), -1)


@mistake(
    "the state is not read",
    rejected_by="a call in two parts is one call",
    symptom="A model that generates knows nothing of its prompt.",
    cause="Each call attends to its own tokens alone; the state is updated all the same.",
)
class StateNotRead(LinearFormula):
    def read_state(self, state, normalize):
        return torch.zeros_like(state)


@mistake(
    "the state is not handed on",
    rejected_by="a call in two parts is one call",
    symptom="Two chunks are right; the third has forgotten the first.",
    cause="What is returned is the sum of the call's own tokens, without the state before them.",
    seen="fla-org/flash-linear-attention issues 157 and 211: no state on the first call (RWKV-7)",
)
class StateNotHandedOn(LinearFormula):
    def new_state(self, state, k, value):
        return k.mT @ value


@mistake(
    "the softmax's scale before the feature map",
    rejected_by="equals the reference",
    symptom="Loaded weights give slightly other numbers.",
    cause="The query is divided by sqrt(d). Behind the feature map that would cancel in the quotient; before it "
    "the features change.",
)
class ScaledBeforeFeatures(LinearFormula):
    def __call__(self, query, key, value, **options):
        return super().__call__(query * query.shape[-1] ** -0.5, key, value, **options)
