"""The mistakes with xPos: the right formula with one step gone wrong."""

from __future__ import annotations

import torch

from ..mistakes import Formula, mistake
from ..rounding import in_at_least


class XPosFormula(Formula):
    """The right scaled rotation, cut into the steps that the mutants replace one at a time."""

    def __call__(
        self, x, position_ids, *, of_keys=False, base=10000.0, scale_base=512.0, center=0,
        layout="interleaved",
    ):  # fmt: skip
        """(a cos - b sin, a sin + b cos) times the pair's decay."""
        size = x.shape[-1]
        places = position_ids.double()[..., None]  # *B L 1
        with in_at_least(torch.float32):
            angles = places * base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
            exponents = self.sign(self.centered(places, center) / self.unit(scale_base), of_keys)
            decay = self.rates(size) ** exponents  # *B L d/2
            cos, sin = (
                angles.unsqueeze(-3).cos().to(x.dtype),
                angles.unsqueeze(-3).sin().to(x.dtype),
            )
        a, b = (x[..., 0::2], x[..., 1::2]) if layout == "interleaved" else x.chunk(2, -1)
        rotated = self.join(a * cos - b * sin, a * sin + b * cos, layout)
        return rotated * self.spread(decay, layout).unsqueeze(-3).to(x.dtype)

    def centered(self, places, center):
        """Counted from the center."""
        return places - center

    def unit(self, scale_base):
        """How many positions a whole rate takes."""
        return scale_base

    def sign(self, exponents, of_keys):
        """Keys get the inverse of what queries get."""
        return -exponents if of_keys else exponents

    def rates(self, size):
        """(2i/d + 0.4) / 1.4."""
        return (torch.arange(0, size, 2, dtype=torch.float64) / size + 0.4) / 1.4

    def spread(self, decay, layout):
        """A pair's decay for both of its features."""
        return self.join(decay, decay, layout)

    def join(self, a, b, layout):
        """The members of each pair back where they were."""
        if layout == "interleaved":
            return torch.stack((a, b), -1).flatten(-2)
        return torch.cat((a, b), -1)


@mistake(
    "keys that decay as queries do",
    rejected_by="scores depend on the distance alone",
    symptom="Scores fade with the position in the text, not with the distance.",
    cause="The same sign in both exponents: z^(p + q) in place of z^(p - q).",
)
class SameSign(XPosFormula):
    def sign(self, exponents, of_keys):
        return exponents


@mistake(
    "a decay that is not centered",
    rejected_by="at the center nothing is scaled",
    symptom="The same scores in float32; in float16, keys overflow at half the length.",
    cause="Positions are counted from 0, so that all factors of keys are above 1.",
)
class NotCentered(XPosFormula):
    def centered(self, places, center):
        return places


@mistake(
    "keys that grow as queries should",
    rejected_by="each pair decays at its own rate",
    symptom="Far tokens count more than near ones.",
    cause="Query and key are exchanged: the query gets the inverse.",
)
class Exchanged(XPosFormula):
    def sign(self, exponents, of_keys):
        return exponents if of_keys else -exponents


@mistake(
    "rates in the opposite order",
    rejected_by="each pair decays at its own rate",
    symptom="The slow pairs, made for far tokens, decay first.",
    cause="The pair that rotates fastest must decay fastest, and here it keeps its magnitude.",
)
class RatesReversed(XPosFormula):
    def rates(self, size):
        return super().rates(size).flip(0)


@mistake(
    "rates without gamma",
    rejected_by="scores depend on the distance alone",
    symptom="The first pair of every key is infinite.",
    cause="z_i = 2i/d, which is 0 for the first pair.",
)
class NoGamma(XPosFormula):
    def rates(self, size):
        return torch.arange(0, size, 2, dtype=torch.float64) / size


@mistake(
    "a whole rate for every position",
    rejected_by="each pair decays at its own rate",
    symptom="A few tokens away nothing is left.",
    cause="Exponents are positions, not positions / scale_base.",
)
class NoScaleBase(XPosFormula):
    def unit(self, scale_base):
        return 1.0


@mistake(
    "decays in the other layout",
    rejected_by="scores depend on the distance alone",
    symptom="The two features of a pair decay differently: an ellipse, which no longer rotates into itself.",
    cause="Rates repeated twice over where each should stand twice in a row, or the other way round.",
)
class OtherLayout(XPosFormula):
    def spread(self, decay, layout):
        return super().spread(decay, "halves" if layout == "interleaved" else "interleaved")
