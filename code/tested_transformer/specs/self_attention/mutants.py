"""The famous mistakes in self-attention: the right formula with one step gone wrong."""

from __future__ import annotations

import copy

from torch import nn

from ..mistakes import Formula, mistake


class SelfFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(self, x, w_query, w_key, w_value):
        """softmax(query key^T scale) value, the three made from x."""
        query, key, value = self.project(x, w_query, w_key, w_value)
        weights = self.weights(self.scores(query, key) * self.scale(x, query))
        return weights @ value

    def project(self, x, w_query, w_key, w_value):
        """Three views of one sequence."""
        return x @ w_query, x @ w_key, x @ w_value

    def scores(self, query, key):
        """All dot products."""
        return query @ key.transpose(-2, -1)

    def scale(self, x, query):
        """1/sqrt(d), d being the width of a query."""
        return query.shape[-1] ** -0.5

    def weights(self, scores):
        """Softmax over the keys."""
        return scores.softmax(-1)


@mistake(
    "projections made by deep copy",
    rejected_by="queries and keys start apart",
    symptom="At the start the scores are symmetric, and the strongest token looks at itself.",
    cause="copy.deepcopy copies the random numbers too: W_Q = W_K. Make each layer anew.",
    seen="source notes, 001:1366, 000:64",
)
class DeepCopies(nn.Module):
    def __init__(self, d_in, d_out, d_value=None):
        super().__init__()
        self.query = nn.Linear(d_in, d_out, bias=False)
        self.key = copy.deepcopy(self.query)
        self.value = nn.Linear(d_in, d_out if d_value is None else d_value, bias=False)

    def forward(self, x):
        query, key, value = self.query(x), self.key(x), self.value(x)
        scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
        return scores.softmax(-1) @ value


@mistake(
    "one matrix for queries and keys",
    rejected_by="rows ask, columns answer",
    symptom="Symmetric scores: before the softmax, i looks at j exactly as hard as j at i.",
    cause="W_Q is used where W_K belongs.",
)
class OneMatrixForBoth(SelfFormula):
    def project(self, x, w_query, w_key, w_value):
        return x @ w_query, x @ w_query, x @ w_value


@mistake(
    "keys ask, queries answer",
    rejected_by="rows ask, columns answer",
    symptom="Rows still sum to 1, but row i says who looks at token i, not at whom it looks.",
    cause="K Q^T in place of Q K^T.",
)
class KeysAsk(SelfFormula):
    def scores(self, query, key):
        return key @ query.transpose(-2, -1)


@mistake(
    "scores used as weights",
    rejected_by="each token spends 1",
    symptom="Some weights are negative, rows sum to anything, the output grows with length.",
    cause="The softmax is missing from the module.",
    seen="source notes, 001:1577",
)
class ScoresAsWeights(SelfFormula):
    def weights(self, scores):
        return scores


@mistake(
    "softmax over the first axis",
    rejected_by="each token spends 1",
    symptom="Columns sum to 1 in place of rows; in a batch, the samples share one weight.",
    cause="softmax(dim=0), where the keys are the last axis: dim=-1.",
)
class SoftmaxOverTheFirstAxis(SelfFormula):
    def weights(self, scores):
        return scores.softmax(0)


@mistake(
    "K.T in a module",
    rejected_by="RuntimeError",
    symptom="Right for one sequence; for a batch a deprecation warning, then RuntimeError.",
    cause="`.T` turns all axes round; only the last two may change: `.mT`.",
    seen="source notes, 001:748, 001:1314, 004:147",
)
class TransposesAll(SelfFormula):
    def scores(self, query, key):
        return query @ key.T


@mistake(
    "scaled by the width of the tokens",
    rejected_by="the width of a query sets the scale",
    symptom="Weights that are too flat where the queries are narrower than the tokens.",
    cause="1/sqrt(D) with D the width of x; d is the width of a query.",
    seen="source notes, 001:1562",
)
class WidthOfTheTokens(SelfFormula):
    def scale(self, x, query):
        return x.shape[-1] ** -0.5


@mistake(
    "values left unprojected",
    rejected_by="the right shape and dtype",
    symptom="The output is a mean of the inputs; the shape tells only where dv differs from D.",
    cause="The weights multiply x; they belong to x w_value.",
)
class ValuesLeftAlone(SelfFormula):
    def project(self, x, w_query, w_key, w_value):
        return x @ w_query, x @ w_key, x


@mistake(
    "a batch read as one sequence",
    rejected_by="a sample sees only itself",
    symptom="Each answer depends on who else is in the batch; alone it is another.",
    cause="The batch is flattened into the length before the scores are formed.",
)
class OneLongSequence(SelfFormula):
    def __call__(self, x, w_query, w_key, w_value):
        flat = super().__call__(x.reshape(-1, x.shape[-1]), w_query, w_key, w_value)
        return flat.reshape(*x.shape[:-1], -1)
