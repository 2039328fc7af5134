"""The famous mistakes in norm_placement a stack: the right steps with one gone wrong."""

from __future__ import annotations

import torch
from torch.nn import functional

from ..mistakes import Formula, mistake


def norm(x, gain):
    """LayerNorm with a scale alone."""
    return functional.layer_norm(x, gain.shape, gain)


class Wiring(Formula):
    """The right stack, cut into the steps that the mutants replace one at a time."""

    def __call__(self, x, w, gain, norm_placement, *, alpha=1.0, dropout=0.0):
        """Shapes: x (L, D), w (N, D, D), gain (N + 1, D) -> (L, D)."""
        total = self.first_total(x)
        for matrix, g in zip(w, gain, strict=False):  # the last gain is the final norm's

            def find(y, matrix=matrix):
                return torch.tanh(y @ matrix)

            x, total = getattr(self, norm_placement)(x, total, g, find, alpha, dropout)
        if norm_placement == "pre":
            return self.end_of_pre(x, gain[-1])
        return self.end_of_dual(x, total, gain[-1]) if norm_placement == "resi_dual" else x

    def add(self, x, change, dropout):
        """Dropout acts on what was found, never on the stream."""
        return x + functional.dropout(change, dropout)

    def post(self, x, total, gain, find, alpha, dropout):
        """norm(x + f(x))."""
        return norm(self.add(x, find(x), dropout), gain), total

    def pre(self, x, total, gain, find, alpha, dropout):
        """x + f(norm(x))."""
        return self.add(x, find(norm(x, gain)), dropout), total

    def deepnorm(self, x, total, gain, find, alpha, dropout):
        """norm(alpha x + f(x))."""
        return norm(self.add(alpha * x, find(x), dropout), gain), total

    def resi_dual(self, x, total, gain, find, alpha, dropout):
        """Post, and the sum beside it; the dropout is the same in both."""
        change = self.add(torch.zeros_like(x), find(x), dropout)
        return norm(x + change, gain), self.next_total(x, total, change)

    def first_total(self, x):
        """The sum starts with the embedding."""
        return x

    def next_total(self, x, total, change):
        """Everything that was found, as it was found."""
        return total + change

    def end_of_pre(self, x, gain):
        """The sum is as long as the stack is deep: normalize it."""
        return norm(x, gain)

    def end_of_dual(self, x, total, gain):
        """Both streams meet."""
        return x + norm(total, gain)


@mistake(
    "dropout on the residual stream",
    rejected_by="the skip path is never dropped",
    symptom="In training the stream itself has holes; after twelve sublayers little is whole.",
    cause="dropout(x + f(x)) where x + dropout(f(x)) is right.",
    seen="source notes, 001:1602",
)
class DropoutOnTheStream(Wiring):
    def add(self, x, change, dropout):
        return functional.dropout(x + change, dropout)


@mistake(
    "the residual takes the normed input",
    rejected_by="where f(x) = 0, nothing is added",
    symptom="A pre-norm stack trains like a post-norm one: the direct way passes every norm.",
    cause="x = norm(x); x + f(x). The sum needs the x from before the norm.",
    seen="pytorch issue 61165, tracel-ai/burn issue 1056",
)
class ResidualOfTheNormed(Wiring):
    def pre(self, x, total, gain, find, alpha, dropout):
        x = norm(x, gain)
        return self.add(x, find(x), dropout), total


@mistake(
    "post-norm where pre-norm was asked for",
    rejected_by="where f(x) = 0, nothing is added",
    symptom="The same parameters and shapes, so weights load; every number differs.",
    cause="norm(x + f(x)) for x + f(norm(x)): the two are not the same function.",
)
class PreIsPost(Wiring):
    pre = Wiring.post

    def end_of_pre(self, x, gain):
        return x


@mistake(
    "the norm after the sublayer, on the branch",
    rejected_by="equals the reference",
    symptom="Each sublayer adds a vector of fixed length, however little it found.",
    cause="x + norm(f(x)), as OLMo 2 has it on purpose, for x + f(norm(x)).",
)
class NormOnTheBranch(Wiring):
    def pre(self, x, total, gain, find, alpha, dropout):
        return self.add(x, norm(find(x), gain), dropout), total


@mistake(
    "the residual forgotten",
    rejected_by="where f(x) = 0, nothing is added",
    symptom="Depth destroys the input: a sublayer that finds nothing erases all.",
    cause="norm(f(x)) in place of norm(x + f(x)).",
)
class NoResidual(Wiring):
    def post(self, x, total, gain, find, alpha, dropout):
        return norm(self.add(torch.zeros_like(x), find(x), dropout), gain), total


@mistake(
    "no norm at the end of a pre-norm stack",
    rejected_by="the end is normalized",
    symptom="The output grows with the depth, and so do the logits.",
    cause="In pre-norm nothing normalizes the sum itself: the stack needs a norm of its own.",
)
class NoFinalNorm(Wiring):
    def end_of_pre(self, x, gain):
        return x


@mistake(
    "alpha on the sublayer",
    rejected_by="a large alpha silences the sublayers",
    symptom="The deeper the stack, the louder the sublayers: the opposite of DeepNorm.",
    cause="norm(x + alpha f(x)) for norm(alpha x + f(x)).",
)
class AlphaOnTheSublayer(Wiring):
    def deepnorm(self, x, total, gain, find, alpha, dropout):
        return norm(self.add(x, alpha * find(x), dropout), gain), total


@mistake(
    "alpha forgotten",
    rejected_by="a large alpha silences the sublayers",
    symptom="DeepNorm in name, post-norm in fact.",
    cause="norm(x + f(x)): alpha is read from the configuration and not used.",
)
class AlphaForgotten(Wiring):
    deepnorm = Wiring.post


@mistake(
    "the sum of ResiDual adds the stream",
    rejected_by="where f(x) = 0, nothing is added",
    symptom="The second stream grows even when no sublayer finds anything.",
    cause="total + x where total + f(x) is right.",
)
class TotalOfTheStream(Wiring):
    def next_total(self, x, total, change):
        return total + x


@mistake(
    "the sum of ResiDual starts at zero",
    rejected_by="where f(x) = 0, nothing is added",
    symptom="The embedding reaches the end by the normalized stream alone.",
    cause="The second stream starts with the embedding, not with zeros.",
)
class TotalFromZero(Wiring):
    def first_total(self, x):
        return torch.zeros_like(x)


@mistake(
    "the sum of ResiDual not normalized",
    rejected_by="where f(x) = 0, nothing is added",
    symptom="The output grows with the depth.",
    cause="x + total where x + norm(total) is right.",
)
class TotalAsItIs(Wiring):
    def end_of_dual(self, x, total, gain):
        return x + total
