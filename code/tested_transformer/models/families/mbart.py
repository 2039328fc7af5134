"""mBART: BART with the norms before each sublayer, and one more at the end of each stack.

Source: Liu et al. 2020; transformers' MBartForConditionalGeneration and MBartModel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..family import Options
from ..transformer import TransformerConfig
from . import bart


def read(options: Options) -> TransformerConfig:
    """Their options in our words."""
    return bart.read_shared(options, FAMILY, **bart.LEARNED, norm_placement="pre")


def write(config: TransformerConfig) -> dict[str, Any]:
    """Our configuration in their words."""
    return bart.write_shared(config, FAMILY)


OLD = {"normalize_before": (True,), "add_final_layer_norm": (True,)}
FAMILY = replace(
    bart.FAMILY,
    model_type="mbart",
    architectures=("MBartForConditionalGeneration", "MBartModel"),
    headless="MBartModel",
    read=read,
    write=write,
    fixed=dict(bart.FAMILY.fixed) | OLD,
)
