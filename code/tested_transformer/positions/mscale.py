"""YaRN as DeepSeek's configurations have it: two coefficients sharpen two parts of the scores."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Annotated  # noqa: F401  (inherited annotations are read in this module, too)

from ..bounds import AtLeast, PositiveFloat, PositiveInt  # noqa: F401
from .scaled_rotary import Factor, YarnScaling  # noqa: F401

__all__ = ["MscaleYarnScaling"]


@dataclass(frozen=True)
class MscaleYarnScaling(YarnScaling):
    """YarnScaling whose attention_factor comes from two coefficients, and a factor for whole scores.

    With s(m) = 0.1 m ln(factor) + 1, rotary queries and keys are multiplied by
    attention_factor = s(mscale) / s(mscale_all_dim), and every score, its part without positions
    included, by score_factor = s(mscale_all_dim)^2. Equal coefficients, as in all released checkpoints,
    leave the rotary part as it is: the whole effect is in the scale of the scores.

    Raises: TypeError or ValueError that name the field.
    Source: Peng et al. 2023 (YaRN), section 3.4; deepseek-ai/DeepSeek-V3, `MLA` of inference/model.py;
        transformers, `yarn_apply_mscale`.

    >>> scaling = MscaleYarnScaling(40.0, 4096, mscale=0.707, mscale_all_dim=0.707)
    >>> scaling.attention_factor, round(scaling.score_factor, 4)
    (1.0, 1.5896)
    """

    _: KW_ONLY
    mscale: PositiveFloat
    mscale_all_dim: PositiveFloat

    def _usual_attention_factor(self) -> float:
        return self._sharpening(self.mscale) / self._sharpening(self.mscale_all_dim)

    @property
    def score_factor(self) -> float:
        """By what a latent attention multiplies all of its scores."""
        return self._sharpening(self.mscale_all_dim) ** 2

    def _sharpening(self, coefficient: float) -> float:
        """0.1 m ln(factor) + 1."""
        return 0.1 * coefficient * math.log(self.factor) + 1.0
