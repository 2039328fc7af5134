"""The Vision Transformer: an image as a sequence of patches, read by an encoder."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from ..bounds import AtLeast, Divides, PositiveFloat, PositiveInt, Probability
from ..errors import argument_error
from ..layers.blocks import (
    EncoderLayer,
    init_linear_layers,
    make_norm,
    make_stack,
    remove_biases,
)
from ..layers.config import BlockConfig
from ..layers.pooler import Pooler
from ..shapes import check_fields, checked

__all__ = [
    "PatchEmbedding",
    "VisionTransformer",
    "VisionTransformerConfig",
    "image_patches",
    "interpolate_positions",
]

Pair = tuple[PositiveInt, PositiveInt]

# --- Configuration --------------------------------------------------------------------------------


@dataclass(frozen=True)
class VisionTransformerConfig(BlockConfig):
    """Every size and choice of a Vision Transformer. Without arguments: ViT-Base without a head.

    image_size and patch_size are (height, width). num_labels: classes of the head; None: no head.
    pooler: a linear layer and a tanh over the class token's last hidden state, see `pool`.

    Raises: TypeError or ValueError that name the field.
    Source: Dosovitskiy et al. 2021, table 1.
    """

    image_size: Pair = (224, 224)
    patch_size: Pair = (16, 16)
    _: KW_ONLY
    num_channels: PositiveInt = 3
    num_labels: PositiveInt | None = None
    pooler: bool = False
    num_layers: PositiveInt = 12
    d_model: PositiveInt = 768
    num_heads: Annotated[int, AtLeast(1), Divides("d_model")] = 12
    dropout: Probability = 0.0
    activation: str = "gelu"
    qkv_bias: bool = True  # in the layers of query, key and value; the others have one anyway
    norm_placement: Literal["pre"] = "pre"
    norm_eps: PositiveFloat = 1e-12
    positions: Literal["learned"] = "learned"

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "max_length", 1 + self.grid[0] * self.grid[1])
        super().__post_init__()

    @property
    def grid(self) -> tuple[int, int]:
        """How many patches lie above each other, and side by side."""
        return patch_grid("image_size", self.image_size, self.patch_size)


def patch_grid(name: str, size: Pair, patch: Pair) -> tuple[int, int]:
    """How many patches fit into an image; ValueError that names `name` if they leave something out."""
    (height, width), (high, wide) = size, patch
    if height % high or width % wide or not height * width:
        wanted = f"multiples of the patch size {(high, wide)}"
        raise argument_error(ValueError, name, f"{height} x {width} pixels", wanted)
    return height // high, width // wide


# --- From an image to tokens ----------------------------------------------------------------------


@checked
def image_patches(images: Float[Tensor, "B C H W"], patch: Pair) -> Float[Tensor, "B N D"]:
    """Cut images into patches, row by row: each a vector of its pixels, channel by channel.

    A convolution whose stride is its kernel size is a linear layer over these vectors.

    Shapes: (B, C, H, W) -> (B, N, C h w), N = H / h x W / w patches of h x w pixels.
    Raises: TypeError or ValueError that name the argument.
    Source: Dosovitskiy et al. 2021, section 3.1, x_p.

    >>> image_patches(torch.arange(16.0).view(1, 1, 4, 4), (2, 2))[0].int()
    tensor([[ 0,  1,  4,  5],
            [ 2,  3,  6,  7],
            [ 8,  9, 12, 13],
            [10, 11, 14, 15]], dtype=torch.int32)
    """
    patch_grid("images", images.shape[2:], patch)
    rows = images.unfold(2, patch[0], patch[0]).unfold(3, patch[1], patch[1])  # B C Y X h w
    return rows.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)  # B N (C h w)


@checked
def interpolate_positions(
    positions: Float[Tensor, "T D"], grid: Pair, size: Pair
) -> Float[Tensor, "N D"]:
    """Learned positions for another number of patches, by bicubic interpolation between patch centers.

    grid: rows and columns of patches that the positions belong to, as their last vectors; those before
    them, such as the class token's, stay. size: rows and columns that are asked for. The size is given
    to the interpolation, never a factor, whose product with the grid may round down.

    Shapes: (k + grid rows x columns, D) -> (k + size rows x columns, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Dosovitskiy et al. 2021, section 3.2; Keys 1981, with a = -0.75.
    """
    own = len(positions) - grid[0] * grid[1]
    if own < 0:
        wanted = f"{grid[0]} x {grid[1]} patches and what comes before them"
        raise argument_error(ValueError, "positions", f"{len(positions)} positions", wanted)
    table = positions[own:].T.unflatten(1, grid)[None]  # 1 D Y X
    table = functional.interpolate(table, size=size, mode="bicubic", align_corners=False)
    return torch.cat([positions[:own], table[0].flatten(1).T])


class PatchEmbedding(nn.Module):
    """A class token, then a token per patch: a linear layer over its pixels, plus a learned position.

    The class token has a position as well. Its vector and all positions are parameters, `cls_token`
    (1, 1, D) and `positions` (1, 1 + N, D); `projection` is a convolution whose stride is its kernel size.

    Shapes: images (B, C, H, W) -> (B, 1 + N, D).
    Raises: TypeError or ValueError that name the argument; ValueError for an image of another size,
        unless interpolation is asked for, and for one that patches do not fill.
    Source: Dosovitskiy et al. 2021, equation 1.
    """

    @checked
    def __init__(self, config: VisionTransformerConfig) -> None:
        super().__init__()
        self.config, width = config, config.d_model
        size = config.patch_size
        self.projection = nn.Conv2d(config.num_channels, width, size, stride=size)
        self.cls_token = nn.Parameter(torch.empty(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, config.max_length, width))
        self.dropout = nn.Dropout(config.dropout)
        self.reset_parameters()

    @checked(like="self.projection.weight", C="self.config.num_channels")
    def forward(
        self, images: Float[Tensor, "B C H W"], *, interpolate_pos_encoding: bool = False
    ) -> Float[Tensor, "B T D"]:
        """Embed the patches; interpolate_pos_encoding: images of any size, with positions in between."""
        positions = self._positions(tuple(images.shape[2:]), interpolate_pos_encoding)
        patches = self.projection(images).flatten(2).transpose(1, 2)  # B N D
        tokens = torch.cat([self.cls_token.expand(len(images), -1, -1), patches], dim=1)
        return self.dropout(tokens + positions)

    def _positions(self, size: tuple[int, int], interpolate: bool) -> Float[Tensor, "1 T D"]:
        """The learned positions, or for another size those between them."""
        config = self.config
        if size == config.image_size:
            return self.positions
        if not interpolate:
            wanted = "{} x {} pixels, or interpolate_pos_encoding=True".format(*config.image_size)
            raise argument_error(ValueError, "images", "{} x {} pixels".format(*size), wanted)
        grid = patch_grid("images", size, config.patch_size)
        return interpolate_positions(self.positions[0], config.grid, grid)[None]

    def reset_parameters(self) -> None:
        """Initialize: the projection as a linear layer over a patch; small noise for the others."""
        nn.init.xavier_uniform_(self.projection.weight.flatten(1))
        nn.init.zeros_(self.projection.bias)
        for each in (self.cls_token, self.positions):
            nn.init.normal_(each, std=0.02)


# --- The model ------------------------------------------------------------------------------------


class VisionTransformer(nn.Module):
    """Classify images: encoder layers over a class token and the patches, and a layer over the first.

    Without a head it returns the last hidden states; `pool` makes one vector of an image from them.

    Shapes: images (B, C, H, W) -> logits (B, num_labels), or (B, 1 + N, D) without a head; and the
        attention weights of every layer, each (B, heads, 1 + N, 1 + N), with return_weights.
    Raises: TypeError or ValueError that name the argument.
    Source: Dosovitskiy et al. 2021, section 3.1.

    >>> config = VisionTransformerConfig((8, 12), (4, 4), d_model=6, num_heads=2, num_labels=3)
    >>> tuple(VisionTransformer(config)(torch.zeros(2, 3, 8, 12)).shape)
    (2, 3)
    """

    @checked
    def __init__(self, config: VisionTransformerConfig) -> None:
        super().__init__()
        self.config, width = config, config.d_model
        self.embedding = PatchEmbedding(config)
        self.layers = make_stack(config, (EncoderLayer(config) for _ in range(config.num_layers)))
        if not config.qkv_bias:
            remove_biases(self.layers, "query", "key", "value")
        self.norm = make_norm(config)
        self.pooler = Pooler(width) if config.pooler else None
        labels = config.num_labels
        self.output = None if labels is None else nn.Linear(width, labels)
        init_linear_layers(self, config.norm_placement, 1.0)

    def forward(
        self,
        images: Float[Tensor, "B C H W"],
        *,
        interpolate_pos_encoding: bool = False,
        return_weights: bool = False,
    ) -> Float[Tensor, "B ..."] | tuple[Float[Tensor, "B ..."], list[Tensor]]:
        """The logits, or the last hidden states; interpolate_pos_encoding: images of any size."""
        x = self.embedding(images, interpolate_pos_encoding=interpolate_pos_encoding)
        x, weights = self.layers(x, norm=self.norm, return_weights=return_weights)  # B T D
        x = x if self.output is None else self.output(x[:, 0])
        return (x, [own for (own,) in weights]) if return_weights else x

    @checked(like="self.norm.weight", D="self.config.d_model", nonempty="T")
    def pool(self, hidden: Float[Tensor, "B T D"]) -> Float[Tensor, "B D"]:
        """One vector for an image: tanh(W h + b) of the class token's last hidden state.

        Raises: ValueError for a model without a pooler.
        """
        if self.pooler is None:
            raise argument_error(ValueError, "self.config.pooler", False, "True")
        return self.pooler(hidden)
