"""The exercises of chapter 21 on its pages about CRATE."""

from __future__ import annotations

import numpy as np

from ..specs.coding_rate.spec import CODING_RATE_GRADIENT, ISTA_STEP

GRADIENT = CODING_RATE_GRADIENT.narrowed(
    lambda case: np.ndim(case.arguments["x"]) == 2, name="ch21.coding_rate_gradient", points=2
)
ISTA = ISTA_STEP.narrowed(lambda case: not case.is_empty, name="ch21.ista_step", points=3)

EXERCISES = (GRADIENT, ISTA)
