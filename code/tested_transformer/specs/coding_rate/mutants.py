"""The famous mistakes with CRATE: factors, signs, a projection too few, a threshold of the wrong size."""

from __future__ import annotations

import torch

from ..mistakes import Formula, mistake


class RateFormula(Formula):
    """The right rate, cut into the steps that the mutants replace one at a time."""

    def __call__(self, x, eps):
        """Half the log determinant of I + factor x^T x."""
        gram = torch.eye(x.shape[-1], dtype=x.dtype) + self.factor(x, eps) * x.mT @ x
        return self.log(torch.linalg.cholesky(gram).diagonal(dim1=-2, dim2=-1))

    def factor(self, x, eps):
        """D / (L eps^2)."""
        return x.shape[-1] / (max(x.shape[-2], 1) * eps**2)

    def log(self, diagonal):
        """The determinant is the product of the squares: half of its logarithm."""
        return diagonal.log().sum(-1)


@mistake(
    "tokens and features exchanged in the factor",
    rejected_by="a token that comes twice costs nothing more",
    symptom="The rate grows with the length of the sequence, whatever the tokens are.",
    cause="L / (D eps^2): with tokens as rows, the axes of a paper with tokens as columns.",
    of="coding_rate",
)
class FactorTurned(RateFormula):
    def factor(self, x, eps):
        return x.shape[-2] / (x.shape[-1] * eps**2)


@mistake(
    "the number of tokens left out of the rate",
    rejected_by="a token that comes twice costs nothing more",
    symptom="Longer texts seem harder to compress.",
    cause="D / eps^2: the sum over tokens is not divided by their number.",
    of="coding_rate",
)
class NoLength(RateFormula):
    def factor(self, x, eps):
        return x.shape[-1] / eps**2


@mistake(
    "the half left out of the rate",
    rejected_by="equals the reference",
    symptom="Rates and gradients twice too large.",
    cause="log det without 1/2: the determinant is that of a squared matrix.",
    of="coding_rate",
)
class NoHalf(RateFormula):
    def log(self, diagonal):
        return 2 * diagonal.log().sum(-1)


@mistake(
    "eps not squared",
    rejected_by="equals the reference",
    symptom="Right for eps of 1, and wrong for all others.",
    cause="The factor has eps in place of eps^2.",
    of="coding_rate",
)
class EpsNotSquared(RateFormula):
    def factor(self, x, eps):
        return super().factor(x, eps) * eps


# --- The gradient ---------------------------------------------------------------------------------


class GradientFormula(Formula):
    """The right gradient, cut into the steps that the mutants replace one at a time."""

    def __call__(self, x, bases, eps):
        """For each head a (I + a y y^T)^-1 y U^T."""
        y = x.unsqueeze(-3) @ bases
        a = self.factor(x, y) / (max(y.shape[-2], 1) * eps**2)
        identity = torch.eye(y.shape[-2], dtype=x.dtype)
        return (a * self.solved(identity, a * y @ y.mT, y) @ bases.mT).sum(-3)

    def factor(self, x, y):
        """The dimension of a subspace."""
        return y.shape[-1]

    def solved(self, identity, gram, y):
        """The inverse of I + gram, times y."""
        return torch.linalg.solve(identity + gram, y)


@mistake(
    "the first order taken for the inverse",
    rejected_by="the rate rises by it",
    symptom="Right for large eps; for small ones the step flies off.",
    cause="I - a y y^T is (I + a y y^T)^-1 only where a y y^T is small. CRATE's derivation says so.",
    of="coding_rate_gradient",
)
class FirstOrder(GradientFormula):
    def solved(self, identity, gram, y):
        return (identity - gram) @ y


@mistake(
    "the dimension of the model in a head's factor",
    rejected_by="the rate rises by it",
    symptom="Right with one head of all features.",
    cause="D / (L eps^2) where each subspace has its own d.",
    of="coding_rate_gradient",
)
class ModelDimension(GradientFormula):
    def factor(self, x, y):
        return x.shape[-1]


@mistake(
    "the inverse left out of the gradient",
    rejected_by="the rate rises by it",
    symptom="Tokens only shrink; nothing is compared with anything.",
    cause="The derivative of log det(M) is M^-1: without it no dot product of tokens is left.",
    of="coding_rate_gradient",
)
class NoInverse(GradientFormula):
    def solved(self, identity, gram, y):
        return y


# --- Attention in subspaces -----------------------------------------------------------------------


class AttentionFormula(Formula):
    """The right attention, cut into the steps that the mutants replace one at a time."""

    def __call__(self, x, bases, *, scale=None, causal=False):
        """One projection for query, key and value, and the way back by its transpose."""
        y = x.unsqueeze(-3) @ bases
        scale = bases.shape[-1] ** -0.5 if scale is None else scale
        scores = scale * y @ y.mT
        if causal:
            future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(future, -torch.inf)
        return self.back(scores.softmax(-1) @ self.values(x, y, bases), bases)

    def values(self, x, y, bases):
        """The projected tokens."""
        return y

    def back(self, heads, bases):
        """From every subspace, added up."""
        return (heads @ bases.mT).sum(-3)


@mistake(
    "the mean of the heads",
    rejected_by="one token attends to itself",
    symptom="With H heads the output is H times too small.",
    cause="The subspaces' parts are averaged. They are parts of one token: the sum is meant.",
    of="subspace_attention",
)
class MeanOfHeads(AttentionFormula):
    def back(self, heads, bases):
        return (heads @ bases.mT).mean(-3)


@mistake(
    "the first basis leads back from all heads",
    rejected_by="one token attends to itself",
    symptom="Right with one head; with more, subspaces are confused.",
    cause="A basis broadcasts over the heads: each has to go back by its own.",
    of="subspace_attention",
)
class FirstBasis(AttentionFormula):
    def back(self, heads, bases):
        return (heads @ bases[:1].mT).sum(-3)


@mistake(
    "values normalized to length 1",
    rejected_by="one token attends to itself",
    symptom="Large and small tokens move alike.",
    cause="The tokens that are compared and those that are summed are the same: no norm between.",
    of="subspace_attention",
)
class UnitValues(AttentionFormula):
    def values(self, x, y, bases):
        return torch.nn.functional.normalize(y, dim=-1)


# --- The step to sparse codes ---------------------------------------------------------------------


class StepFormula(Formula):
    """The right step, cut into the parts that the mutants replace one at a time."""

    def __call__(self, codes, x, dictionary, *, step_size=0.1, sparsity=0.1):
        """Against the gradient, minus the threshold, and nothing below 0."""
        residual = x - codes @ dictionary.T
        moved = codes + step_size * self.direction(residual @ dictionary)
        return self.shrunk(moved, self.threshold(step_size, sparsity))

    def direction(self, gradient):
        """Down."""
        return gradient

    def threshold(self, step_size, sparsity):
        """Both."""
        return step_size * sparsity

    def shrunk(self, moved, threshold):
        """Non-negative codes."""
        return torch.relu(moved - threshold)


@mistake(
    "the threshold without the step size",
    rejected_by="the best codes stay",
    symptom="Silent in CRATE, which takes one step: a few more zeros. Many steps end at the codes of a larger sparsity.",
    cause="The gradient is multiplied by the step size, the sparsity is not: at 0.1 it is ten times too large.",
    of="ista_step",
)
class ThresholdUnscaled(StepFormula):
    def threshold(self, step_size, sparsity):
        return sparsity


@mistake(
    "a step up the gradient",
    rejected_by="the objective does not rise",
    symptom="The reconstruction gets worse with every layer.",
    cause="Minus twice: the residual is already the negative of the gradient's direction.",
    of="ista_step",
)
class StepUp(StepFormula):
    def direction(self, gradient):
        return -gradient


@mistake(
    "no threshold in the step",
    rejected_by="the objective does not rise",
    symptom="Codes that are not sparse.",
    cause="ReLU alone: without the sparsity this is non-negative least squares.",
    of="ista_step",
)
class NoThreshold(StepFormula):
    def threshold(self, step_size, sparsity):
        return 0.0


@mistake(
    "the threshold added",
    rejected_by="zeros stay zeros",
    symptom="No code is 0: each is at least the threshold.",
    cause="Plus where minus is meant.",
    of="ista_step",
)
class ThresholdAdded(StepFormula):
    def shrunk(self, moved, threshold):
        return torch.relu(moved + threshold)


@mistake(
    "a soft threshold that keeps the sign",
    rejected_by="the best codes stay",
    symptom="Negative codes: half as sparse as CRATE's.",
    cause="The shrinkage of the LASSO without the constraint: sign(a) max(|a| - threshold, 0).",
    of="ista_step",
)
class BothSigns(StepFormula):
    def shrunk(self, moved, threshold):
        return torch.nn.functional.softshrink(moved, float(threshold))
