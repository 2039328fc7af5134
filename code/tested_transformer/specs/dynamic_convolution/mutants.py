"""The famous mistakes with a convolution in the place of attention: a leak, a flipped kernel, heads mixed up."""

from __future__ import annotations

import torch

from ..mistakes import Formula, mistake


class ConvolutionFormula(Formula):
    """The right formula as a matrix over tokens, cut into the steps that the mutants replace one at a time."""

    def __call__(self, x, logits, *, causal=False, key_mask=None):
        """Row i of the matrix has the weights of token i where its neighbors are, and zeros elsewhere."""
        length, (heads, width) = x.shape[1], logits.shape[-2:]
        x = self.masked(x, key_mask)
        weights = self.weights(logits).expand(*x.shape[:2], heads, width)  # B L H K
        steps = torch.arange(length) - torch.arange(length)[:, None]  # row i, column j: j - i
        tap = self.tap(steps + self.before(width, causal), width)  # L L
        inside = (tap >= 0) & (tap < width)
        tap = tap.clamp(0, width - 1).expand(*x.shape[:1], heads, length, length)
        matrix = weights.transpose(1, 2).gather(-1, tap) * inside  # B H L L
        return self.concat(self.normalized(matrix) @ self.split(x, heads))

    def masked(self, x, key_mask):
        """Zeros where there is padding."""
        return x if key_mask is None else x * key_mask[..., None]

    def weights(self, logits):
        """A softmax over the K neighbors."""
        return logits.softmax(-1)

    def normalized(self, matrix):
        """The weights as they are: what lies beyond the ends is lost."""
        return matrix

    def before(self, width, causal):
        """How many neighbors lie before a token."""
        return width - 1 if causal else (width - 1) // 2

    def tap(self, tap, width):
        """Weight 0 is that of the earliest neighbor."""
        return tap

    def split(self, x, heads):
        """Runs of neighboring channels share a head's weights."""
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)  # B H L c

    def concat(self, heads):
        """The way back."""
        return heads.transpose(1, 2).flatten(2)


@mistake(
    "a causal convolution padded on both sides",
    rejected_by="a token does not depend on later ones",
    symptom="The training loss is far too good; generated text is bad.",
    cause="Half of the padding stands on the right, as in a convolution over an image: half of the kernel reads "
    "the future.",
    of="dynamic_convolution",
)
class PaddedOnBothSides(ConvolutionFormula):
    def before(self, width, causal):
        return (width - 1) // 2


@mistake(
    "the kernel is flipped",
    rejected_by="the last weight is that of the token itself",
    symptom="Right while all weights are equal, as at the start of training; converted weights give nonsense.",
    cause="A convolution in mathematics runs backwards through the kernel, one in a deep-learning library does not.",
    of="dynamic_convolution",
)
class Flipped(ConvolutionFormula):
    def tap(self, tap, width):
        return width - 1 - tap


@mistake(
    "no softmax over the kernel",
    rejected_by="a constant on all logits changes nothing",
    symptom="Outputs grow from layer to layer.",
    cause="The logits are used as weights. That is a plain depthwise convolution.",
    of="dynamic_convolution",
)
class NoSoftmax(ConvolutionFormula):
    def weights(self, logits):
        return logits


@mistake(
    "the softmax over the heads",
    rejected_by="the last weight is that of the token itself",
    symptom="Heads compete with each other; with one head all weights are 1.",
    cause="The logits have axes for heads and for neighbors, and the softmax is taken along the wrong one.",
    of="dynamic_convolution",
)
class SoftmaxOverHeads(ConvolutionFormula):
    def weights(self, logits):
        return logits.softmax(-2)


@mistake(
    "channels dealt out to the heads in turn",
    rejected_by="neighboring channels share a head",
    symptom="Right with one head, or with one channel per head.",
    cause="Channel c gets the weights of head c mod H, where it should get those of head c // (D / H).",
    of="dynamic_convolution",
)
class DealtOut(ConvolutionFormula):
    def split(self, x, heads):
        return x.unflatten(-1, (-1, heads)).permute(0, 3, 1, 2)

    def concat(self, heads):
        return heads.permute(0, 2, 3, 1).flatten(2)


@mistake(
    "padding is convolved",
    rejected_by="padding does nothing",
    symptom="Attention masks the padding, the convolution beside it does not: the last tokens of a sequence change "
    "with what stands behind them.",
    cause="A convolution takes no mask: padding has to be zeroed before it.",
    of="dynamic_convolution",
)
class PaddingConvolved(ConvolutionFormula):
    def masked(self, x, key_mask):
        return x


@mistake(
    "weights at the ends made to sum to 1",
    rejected_by="equals the reference",
    symptom="The first and last tokens differ.",
    cause="Attention in a window normalizes over the keys that exist. A convolution has zeros beyond the ends, "
    "which take their weight with them.",
    of="dynamic_convolution",
)
class EndsNormalized(ConvolutionFormula):
    def normalized(self, matrix):
        return matrix / matrix.sum(-1, keepdim=True)
