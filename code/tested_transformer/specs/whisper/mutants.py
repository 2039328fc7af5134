"""The famous mistakes at the beginning of Whisper's encoder."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from ..mistakes import Formula, mistake

# --- Positions ------------------------------------------------------------------------------------


class Sinusoids(Formula):
    """The baseline: OpenAI's lines."""

    def __call__(self, length, d_model):
        """The steps in their order."""
        angles = self.positions(length)[:, None] * self.speeds(d_model // 2)  # L D/2
        return self.joined(angles.sin(), angles.cos()).float()

    def positions(self, length: int) -> Tensor:
        """Counted from 0."""
        return torch.arange(length, dtype=torch.float64)

    def speeds(self, half: int) -> Tensor:
        """From 1 to 1/10,000 radians for each position."""
        return (-math.log(10000) / (half - 1) * torch.arange(half, dtype=torch.float64)).exp()

    def joined(self, sines: Tensor, cosines: Tensor) -> Tensor:
        """All sines, then all cosines."""
        return torch.cat([sines, cosines], dim=1)


@mistake(
    "the sinusoids of 2017 for Whisper",
    rejected_by="position 0 is zeros, then ones",
    symptom="Published weights are loaded without an error, and the encoder's states are others.",
    cause="Sines and cosines take turns, and 2i is divided by D, as in the paper's formula. "
    "Whisper has all sines first and divides i by D/2 - 1.",
    seen="wenet-e2e/wenet pull request 2141",
    of="audio_positions",
)
class OfTheFirstTransformer(Sinusoids):
    def speeds(self, half):
        return 10000 ** (-torch.arange(half, dtype=torch.float64) / half)

    def joined(self, sines, cosines):
        return torch.stack([sines, cosines], dim=-1).flatten(1)


@mistake(
    "the exponent divided by D/2",
    rejected_by="the slowest pair turns by 1/10,000",
    symptom="Right in the first pair, and the others are a little too fast.",
    cause="i / (D/2) is Marian's exponent. Whisper divides by D/2 - 1, so that the last one is 1.",
    of="audio_positions",
)
class DividedByHalf(Sinusoids):
    def speeds(self, half):
        return 10000 ** (-torch.arange(half, dtype=torch.float64) / half)


@mistake(
    "cosines before sines",
    rejected_by="position 0 is zeros, then ones",
    symptom="The same numbers in other columns: a model that is trained with them is as good.",
    cause="The halves are swapped; published weights expect the sines first.",
    of="audio_positions",
)
class CosinesFirst(Sinusoids):
    def joined(self, sines, cosines):
        return torch.cat([cosines, sines], dim=1)


@mistake(
    "audio positions counted from 1",
    rejected_by="position 0 is zeros, then ones",
    symptom="Every state stands 20 ms too late.",
    cause="The first encoder state has position 0.",
    of="audio_positions",
)
class FromOne(Sinusoids):
    def positions(self, length):
        return torch.arange(1, length + 1, dtype=torch.float64)


# --- The two convolutions -------------------------------------------------------------------------


class Stem(Formula):
    """The baseline: each convolution as three matrix products."""

    def __call__(self, features, first_weight, first_bias, second_weight, second_bias, positions):
        """The steps in their order."""
        x = self.bent(self.first(features, first_weight, first_bias))
        x = self.bent_again(self.second(x, second_weight, second_bias))
        return self.placed(x, positions)

    def convolved(self, x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
        """A zero at each end, and three neighbors for each output."""
        length = x.shape[-1]
        around = self.padded(x)
        parts = (weight[:, :, k] @ around[:, :, k : k + length : stride] for k in range(3))
        return sum(parts) + bias[:, None]

    def padded(self, x: Tensor) -> Tensor:
        """Zeros before and after."""
        return functional.pad(x, (1, 1))

    def first(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """As many as there are frames."""
        return self.convolved(x, weight, bias, 1)

    def second(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Half as many."""
        return self.convolved(x, weight, bias, 2)

    def bent(self, x: Tensor) -> Tensor:
        """GELU with the error function."""
        return functional.gelu(x)

    def bent_again(self, x: Tensor) -> Tensor:
        """The same after the second convolution."""
        return self.bent(x)

    def placed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Channels become features, and every state gets its position."""
        return x.transpose(1, 2) + positions


@mistake(
    "the stride in the first convolution",
    rejected_by="a state hears five frames",
    symptom="The shapes are right, the states are others: each hears seven frames.",
    cause="Stride 2 belongs to the second convolution; the first reads every frame.",
    of="audio_stem",
)
class StrideTooEarly(Stem):
    def first(self, x, weight, bias):
        return self.convolved(x, weight, bias, 2)

    def second(self, x, weight, bias):
        return self.convolved(x, weight, bias, 1)


@mistake(
    "the odd half is kept",
    rejected_by="a state hears five frames",
    symptom="Every state is heard 10 ms too late.",
    cause="After a convolution without a stride x[..., 1::2] is taken in place of x[..., ::2].",
    of="audio_stem",
)
class OddHalf(Stem):
    def second(self, x, weight, bias):
        return self.convolved(x, weight, bias, 1)[:, :, 1::2]


@mistake(
    "convolutions that look back alone",
    rejected_by="a state hears five frames",
    symptom="The encoder hears 10 to 30 ms too late.",
    cause="Both zeros stand before the first frame. An encoder may hear what follows: one at each end.",
    of="audio_stem",
)
class LooksBack(Stem):
    def padded(self, x):
        return functional.pad(x, (2, 0))


@mistake(
    "channels and states reshaped, not transposed",
    rejected_by="a state hears five frames",
    symptom="Each state is a mixture of all times in one channel; the shape is right.",
    cause="A convolution returns B D S: reshape(B, S, D) cuts it in the order of memory.",
    of="audio_stem",
)
class Reshaped(Stem):
    def placed(self, x, positions):
        return x.reshape(len(x), *positions.shape) + positions


@mistake(
    "GELU by its tanh formula in Whisper",
    rejected_by="equals the reference",
    symptom="States differ in the third or fourth digit.",
    cause='Whisper has the exact GELU, by the error function; GPT-2 has the one by tanh: both are "gelu".',
    seen="nurl-lang/nurl pull request 475 lists it among what a port must not mix up",
    of="audio_stem",
)
class TanhGELU(Stem):
    def bent(self, x):
        return functional.gelu(x, approximate="tanh")


@mistake(
    "one GELU in place of two",
    rejected_by="equals the reference",
    symptom="The states are too large where they should be near 0.",
    cause="There is an activation after each of the two convolutions.",
    of="audio_stem",
)
class OneGELU(Stem):
    def bent_again(self, x):
        return x


@mistake(
    "no positions for sound",
    rejected_by="every state has its position",
    symptom="States of equal sounds are equal, whenever they are heard.",
    cause="The sinusoids are never added; attention alone cannot tell times apart.",
    of="audio_stem",
)
class WithoutPositions(Stem):
    def placed(self, x, positions):
        return x.transpose(1, 2) + 0 * positions
