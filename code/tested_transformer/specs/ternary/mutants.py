"""The famous mistakes with ternary weights: other scales, gradients that vanish, bits in another order."""

from __future__ import annotations

import torch
from torch.nn import functional

from ..mistakes import Formula, mistake

# --- The layer ------------------------------------------------------------------------------------


class BitLinearFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(self, x, weight, *, bias=None):
        """Quantized inputs times quantized weights."""
        return functional.linear(self.inputs(x), self.weights(weight), bias)

    def weights(self, weight):
        """Ternary times their scale."""
        mean = self.mean(weight).clamp(min=1e-5)
        ternary = self.ternary(weight / mean)
        return self.through(weight, ternary * self.of_values(mean, ternary), mean)

    def mean(self, weight):
        """Of the absolute weights, one for the matrix."""
        return weight.abs().mean()

    def ternary(self, scaled):
        """The nearest of -1, 0 and 1."""
        return scaled.round().clamp(-1, 1)

    def of_values(self, mean, ternary):
        """What the whole numbers are multiplied by."""
        return mean

    def inputs(self, x):
        """Of 8 bits."""
        step = self.largest(x).clamp(min=1e-5) / self.levels
        return self.through(x, (x / step).round() * step, None)

    levels = 127

    def largest(self, x):
        """Of each token."""
        return x.abs().amax(-1, keepdim=True)

    def through(self, x, quantized, mean):
        """The gradient passes."""
        return quantized.detach() + (x - x.detach())


@mistake(
    "the scale of the quantized weights",
    rejected_by="an outlier among the weights is cut to one",
    symptom="The layer's output is too large or too small by a constant factor of its own.",
    cause="The mean is taken once more, of the ternary weights, when they are scaled back.",
    seen="tomsanbear/bitnet-rs issue 1",
    of="bit_linear",
)
class ScaledAgain(BitLinearFormula):
    def of_values(self, mean, ternary):
        return mean * ternary.abs().mean()


@mistake(
    "ternary weights without their scale",
    rejected_by="twice the weights, twice the output",
    symptom="Outputs of another magnitude; a norm that follows may hide it.",
    cause="Whole numbers are multiplied, and the scale of the weights is never divided out.",
    of="bit_linear",
)
class ScaleForgotten(BitLinearFormula):
    def of_values(self, mean, ternary):
        return 1.0


@mistake(
    "the largest weight for the mean",
    rejected_by="an outlier among the weights is cut to one",
    symptom="Nearly all weights become 0: one outlier decides.",
    cause="Weights are scaled by the maximum, as activations are.",
    of="bit_linear",
)
class LargestWeight(BitLinearFormula):
    def mean(self, weight):
        return weight.abs().max()


@mistake(
    "a scale per output feature",
    rejected_by="an outlier among the weights is cut to one",
    symptom="Slightly better, and no checkpoint's numbers: each matrix has one scale.",
    cause="The mean runs over each row alone.",
    of="bit_linear",
)
class ScalePerRow(BitLinearFormula):
    def mean(self, weight):
        return weight.abs().mean(1, keepdim=True)


@mistake(
    "weights rounded and not clamped",
    rejected_by="an outlier among the weights is cut to one",
    symptom="Weights of 2 and 3 appear: they do not fit into two bits.",
    cause="Large weights are several times the mean; rounding alone leaves them so.",
    of="bit_linear",
)
class NotClamped(BitLinearFormula):
    def ternary(self, scaled):
        return scaled.round()


@mistake(
    "signs instead of three values",
    rejected_by="equals the reference",
    symptom="No weight is 0: this is the older BitNet, of one bit.",
    cause="The sign of each weight, where b1.58 rounds the small ones to 0.",
    seen="kyegomez/BitNet issue 52",
    of="bit_linear",
)
class SignsAlone(BitLinearFormula):
    def ternary(self, scaled):
        return scaled.sign()


@mistake(
    "one scale for all tokens",
    rejected_by="each token alone",
    symptom="An outlier in one text coarsens all texts of its batch.",
    cause="The largest activation of the whole batch is taken, where each token has its own.",
    of="bit_linear",
)
class ScaleOfBatch(BitLinearFormula):
    def largest(self, x):
        return x.abs().max() if x.numel() else x.sum()


@mistake(
    "activations of 7 bits",
    rejected_by="equals the reference",
    symptom="Twice the rounding error.",
    cause="63 levels on each side, where 8 bits have 127.",
    of="bit_linear",
)
class SevenBits(BitLinearFormula):
    levels = 63


@mistake(
    "the gradient of rounding",
    rejected_by="the gradients are right",
    symptom="The loss does not fall: every gradient of the weights is 0.",
    cause="round is constant almost everywhere. The straight-through estimator replaces its gradient by 1.",
    seen="kyegomez/BitNet issue 46",
    of="bit_linear",
)
class NoGradient(BitLinearFormula):
    def through(self, x, quantized, mean):
        return quantized.detach() + 0 * x


# --- Packed weights -------------------------------------------------------------------------------


def pack_formula(values):
    """Quarters of the rows, each two bits further up."""
    parts = (values + 1).to(torch.uint8).chunk(4)
    return parts[0] | parts[1] << 2 | parts[2] << 4 | parts[3] << 6


@mistake(
    "neighbors share a byte",
    rejected_by="equals the reference",
    symptom="A checkpoint loads, and its rows are shuffled: noise comes out.",
    cause="Rows 4 i to 4 i + 3 in row i, where the format takes rows a quarter of the matrix apart.",
    of="pack_ternary",
)
def neighbors(values):
    return pack_formula(values.unflatten(0, (-1, 4)).transpose(0, 1).flatten(0, 1))


@mistake(
    "the first row in the highest bits",
    rejected_by="equals the reference",
    symptom="The four quarters of each matrix come back in reverse order.",
    cause="The first quarter belongs into the two lowest bits.",
    of="pack_ternary",
)
def highest_first(values):
    return pack_formula(torch.cat(values.chunk(4)[::-1]))


@mistake(
    "two's complement in two bits",
    rejected_by="zeros are bytes of 85",
    symptom="-1 comes back as 2, and 0 as -1.",
    cause="-1, 0 and 1 are stored as 3, 0 and 1; the format adds 1 first: 0, 1 and 2.",
    of="pack_ternary",
)
def two_complement(values):
    return pack_formula((values & 3) - 1)
