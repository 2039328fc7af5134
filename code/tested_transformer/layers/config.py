"""The base of every family's configuration: what embeddings and layers need to know."""

# Annotations stay objects here, and no strings: the fields are inherited by the configurations of
# models/, and a type checker would look for a string's names in their modules.

from dataclasses import dataclass
from typing import Annotated, Literal

from ..bounds import (
    AtLeast,
    Divides,
    NonNegativeInt,
    OneOf,
    PositiveFloat,
    PositiveInt,
    Probability,
)
from ..errors import argument_error
from ..positions.sinusoidal import LAYOUTS
from ..shapes import check_fields
from .feed_forward import ACTIVATIONS
from .norms import LayerNorm, RMSNorm
from .residual import NORM_PLACEMENTS

__all__ = ["BlockConfig", "EncoderDecoderConfig"]

NORMS = {"layer": LayerNorm, "rms": RMSNorm}


@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """What embeddings and layers need to know: the base of every family's configuration.

    Raises: TypeError or ValueError that name the field.
    Source: Vaswani et al. 2017, table 3, for the defaults.
    """

    d_model: PositiveInt = 512
    num_heads: PositiveInt = 8
    d_ff: PositiveInt | None = None  # None: 4 x d_model
    dropout: Probability = 0.1
    activation: Annotated[str, OneOf(ACTIVATIONS)] = "relu"
    bias: bool = True  # in every linear layer and norm of the stacks
    norm_placement: Annotated[str, OneOf(NORM_PLACEMENTS)] = "post"  # see Residual
    norm: Annotated[str, OneOf(NORMS)] = "layer"
    norm_eps: PositiveFloat = 1e-5
    positions: Literal["sinusoidal", "learned", "none"] = "sinusoidal"
    position_layout: Annotated[str, OneOf(LAYOUTS)] = (
        "interleaved"  # of sinusoidal and rotary positions
    )
    max_length: PositiveInt | None = None  # for learned positions, which end somewhere
    position_offset: NonNegativeInt = (
        0  # learned vectors before that of position 0, see OffsetPositions
    )
    scale_embedding: bool = True  # times sqrt(d_model)
    tied_output: bool = True  # the output layer's matrix is the embedding matrix
    pad_id: Annotated[int, AtLeast(0)] | None = 0  # None: no token is padding

    def __post_init__(self) -> None:
        check_fields(self)
        if self.positions == "learned" and self.max_length is None:
            raise argument_error(TypeError, "max_length", None, "an int, for learned positions")
        object.__setattr__(self, "d_ff", 4 * self.d_model if self.d_ff is None else self.d_ff)


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig(BlockConfig):
    """What the stacks of an encoder and a decoder need to know besides.

    Raises: TypeError or ValueError that name the field.
    Source: Vaswani et al. 2017, table 3, for the defaults.
    """

    num_heads: Annotated[int, AtLeast(1), Divides("d_model")] = 8
    num_encoder_layers: PositiveInt = 6
    num_decoder_layers: PositiveInt = 6
    final_norm: bool | None = None  # at the end of each stack; None: where the placement needs it

    def __post_init__(self) -> None:
        super().__post_init__()
        needs_norm = self.norm_placement in ("pre", "resi_dual")
        final_norm = needs_norm if self.final_norm is None else self.final_norm
        object.__setattr__(self, "final_norm", final_norm)
        if self.norm_placement == "resi_dual" and not self.final_norm:
            wanted = 'True: the norm_placement "resi_dual" ends in a norm'
            raise argument_error(ValueError, "final_norm", False, wanted)
