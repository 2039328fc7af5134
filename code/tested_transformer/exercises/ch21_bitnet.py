"""An exercise of chapter 21, on its page about ternary weights."""

from __future__ import annotations

from ..specs.ternary.spec import BIT_LINEAR

TERNARY_LINEAR = BIT_LINEAR.narrowed(
    lambda case: "bias" not in case.arguments and not case.is_empty,
    name="ch21.bit_linear",
    statement="bit_linear(x, weight): inputs times the transposed weights, both quantized. A weight is m times -1, 0 or "
    "1, whichever is nearest to w / m, where m is the mean of |w| over the matrix; an input is s / 127 times the "
    "nearest whole number, where s is the largest |x| of its token. Gradients pass as if quantizing were the identity. "
    "x (*batch, D), weight (F, D) -> (*batch, F)",
    points=3,
)

EXERCISES = (TERNARY_LINEAR,)
