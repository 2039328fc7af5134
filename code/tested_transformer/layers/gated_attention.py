"""Attention with a gate on its output: a sigmoid of the token for each number of each head."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..bounds import PositiveInt
from ..shapes import checked
from .multi_head import concat_heads
from .qk_norm import QKNormAttention

__all__ = ["GatedAttention"]
