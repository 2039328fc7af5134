"""What every family of models is built from: the embedding, the two kinds of layers, the first weights."""

from collections.abc import Iterable
from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..bounds import AtLeast, AtMost, Below, NonNegativeInt, PositiveInt
from ..errors import argument_error, shape_of
from ..positions.learned import LearnedPositions, OffsetPositions
from ..positions.protocol import PositionScheme
from ..positions.sinusoidal import SinusoidalPositions
from ..shapes import checked
from .cache import DecoderCache, LayerCache
from .config import NORMS, BlockConfig
from .feed_forward import FeedForward
from .multi_head import MultiHeadAttention
from .resi_dual import ResiDual, ResiDualStack
from .residual import Residual, deepnorm_init
from .stack import Stack

__all__ = ["DecoderLayer", "Embedding", "EncoderLayer"]

RealTokens = Annotated[Bool[Tensor, "B T"] | Int[Tensor, "B T"], AtLeast(0), AtMost(1)]


# --- The parts ------------------------------------------------------------------------------------


class Embedding(nn.Module):
    """Token IDs to vectors: the token's embedding times sqrt(D), plus its position, then dropout.

    The embedding of the padding token is zero and gets no gradient here. norm: BERT and BART normalize
    the sum. table: an embedding matrix to share.

    Shapes: ids (B, L), position_ids (B, L) or (1, L) -> (B, L, D).
    Raises: TypeError or ValueError for ids that are no token IDs.
    Source: Vaswani et al. 2017, sections 3.4 and 3.5.
    """

    @checked
    def __init__(
        self,
        vocab: PositiveInt,
        config: BlockConfig,
        *,
        table: nn.Embedding | None = None,
        norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        width = config.d_model
        if table is not None and table.weight.shape != (vocab, width):
            wanted = f"a weight of shape {(vocab, width)}"
            raise argument_error(ValueError, "table", f"shape {shape_of(table.weight)}", wanted)
        self.table = nn.Embedding(vocab, width, config.pad_id) if table is None else table
        self.positions = make_positions(config)
        self.norm = norm
        self.dropout = nn.Dropout(config.dropout)
        self.scale = width**0.5 if config.scale_embedding else 1.0

    @checked(like="self.table.weight")
    def forward(
        self,
        ids: Annotated[Int[Tensor, "B L"], AtLeast(0), Below("self.table.num_embeddings")],
        position_ids: Annotated[Int[Tensor, "#B L"], AtLeast(0), Below("num_positions")],
        num_positions: NonNegativeInt,
    ) -> Float[Tensor, "B L D"]:
        """Look the tokens up; position_ids are all below num_positions."""
        x = self.table(ids) * self.scale  # B L D
        if self.positions is not None:
            x = x + self._encode(position_ids, num_positions).to(x.dtype)
        x = x if self.norm is None else self.norm(x)
        return self.dropout(x)

    def _encode(self, position_ids: Tensor, num_positions: int) -> Tensor:
        if isinstance(self.positions, LearnedPositions) or position_ids.numel() <= num_positions:
            return self.positions(position_ids)
        every = torch.arange(num_positions, device=position_ids.device)
        return self.positions(every)[position_ids]  # each sinusoid once, then looked up


class EncoderLayer(nn.Module):
    """Self-attention over the whole sequence, then the feed-forward network for each token alone.

    With causal=True a token attends to the tokens so far: the layer of a model without an encoder.
    alpha: DeepNorm's. feed_forward: one of another kind than the configuration's. attention: more options
    of `MultiHeadAttention`, or of the class that `kind` names.

    Shapes: x (B, S, D) -> (B, S, D), and the attention weights (B, H, S, S) with return_weights.
    Source: Vaswani et al. 2017, section 3.1.
    """

    @checked
    def __init__(
        self,
        config: BlockConfig,
        alpha: float = 1.0,
        *,
        feed_forward: nn.Module | None = None,
        **attention: Any,
    ) -> None:
        super().__init__()
        self.attention = make_attention(config, **attention)
        self.feed_forward = make_feed_forward(config) if feed_forward is None else feed_forward
        self.residuals = nn.ModuleList(make_residual(config, alpha) for _ in range(2))

    def forward(
        self, x: Float[Tensor, "B S D"], *, return_weights: bool = False, **options: Any
    ) -> Float[Tensor, "B S D"] | tuple[Float[Tensor, "B S D"], Float[Tensor, "B H S T"]]:
        """One layer; options: mask, causal and cache of `MultiHeadAttention`."""
        x, weights = attention_sublayer(
            self.residuals[0], self.attention, x, return_weights=return_weights, **options
        )
        x = self.residuals[1](x, self.feed_forward)
        return (x, *weights) if return_weights else x


class DecoderLayer(nn.Module):
    """Self-attention over the tokens so far, cross-attention to the source, then the feed-forward network.

    Shapes: x (B, L, D), memory (B, S, D) -> (B, L, D), and the attention weights (B, H, L, L) and
        (B, H, L, S) with return_weights.
    Source: Vaswani et al. 2017, section 3.1; the three uses of attention: section 3.2.3.
    """

    @checked
    def __init__(self, config: BlockConfig, alpha: float = 1.0) -> None:
        super().__init__()
        self.attention = make_attention(config)
        self.cross_attention = make_attention(config)
        self.feed_forward = make_feed_forward(config)
        self.residuals = nn.ModuleList(make_residual(config, alpha) for _ in range(3))

    @checked(
        like="self.cross_attention.key.weight",
        H="self.attention.num_heads",
        D_memory="self.cross_attention.key.in_features",
    )
    def forward(
        self,
        x: Float[Tensor, "B L D"],
        memory: Float[Tensor, "B S D_memory"],
        *,
        mask: Bool[Tensor, "#L #T"] | Bool[Tensor, "#B #H #L #T"] | None = None,
        memory_mask: Bool[Tensor, "#L #S"] | Bool[Tensor, "#B #H #L #S"] | None = None,
        causal: bool = True,
        cache: LayerCache | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B L D"] | tuple[Float[Tensor, "B L D"], Tensor, Tensor]:
        """One layer."""
        own, cross = (None, None) if cache is None else (cache.own, cache.cross)
        x, weights = attention_sublayer(
            self.residuals[0], self.attention, x, mask=mask, causal=causal, cache=own,
            return_weights=return_weights,
        )  # fmt: skip
        x, cross_weights = attention_sublayer(
            self.residuals[1], self.cross_attention, x, memory, mask=memory_mask, cache=cross,
            return_weights=return_weights,
        )  # fmt: skip
        x = self.residuals[2](x, self.feed_forward)
        return (x, *weights, *cross_weights) if return_weights else x


def attention_sublayer(
    residual: Residual, attention: nn.Module, x: Tensor, *context: Tensor, return_weights: bool,
    **options: Any,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    """x after an attention with its residual connection; the weights in a list, empty if not wanted."""
    answer = attention(residual.inputs(x), *context, return_weights=return_weights, **options)
    output, *weights = answer if return_weights else (answer,)
    return residual.add(x, output), weights


# --- From a configuration to parts ----------------------------------------------------------------


def make_attention(
    config: BlockConfig, *, kind: type[nn.Module] = MultiHeadAttention, **options: Any
) -> nn.Module:
    """Multi-head attention of the configuration's size; kind: a class of its own."""
    options = {"bias": config.bias, "dropout": config.dropout} | options
    return kind(config.d_model, config.num_heads, **options)


def remove_biases(stack: nn.Module, *layers: str) -> None:
    """Take the biases out of these linear layers of every attention in a stack: "key" in Whisper."""
    for module in stack.modules():
        if isinstance(module, MultiHeadAttention):
            for name in layers:
                getattr(module, name).bias = None


def make_feed_forward(config: BlockConfig) -> FeedForward:
    """A feed-forward network as the configuration asks for it."""
    return FeedForward(
        config.d_model, config.d_ff, activation=config.activation, bias=config.bias,
        dropout=config.dropout,
    )  # fmt: skip


def make_norm(config: BlockConfig) -> nn.Module:
    """A norm as the configuration asks for it."""
    options = {"bias": config.bias} if config.norm == "layer" else {}  # RMSNorm has no shift
    return NORMS[config.norm](config.d_model, eps=config.norm_eps, **options)


def make_residual(config: BlockConfig, alpha: float) -> Residual:
    """A residual connection with its norm; alpha is DeepNorm's."""
    if config.norm_placement == "resi_dual":
        return ResiDual(make_norm(config), dropout=config.dropout)
    return Residual(
        make_norm(config), norm_placement=config.norm_placement, dropout=config.dropout, alpha=alpha
    )


def make_stack(config: BlockConfig, layers: Iterable[nn.Module]) -> Stack:
    """The layers as a stack, with the second stream if the norm placement has one."""
    return ResiDualStack(layers) if config.norm_placement == "resi_dual" else Stack(layers)


def make_positions(config: BlockConfig) -> PositionScheme | None:
    """The scheme that acts on the embeddings, if there is one."""
    if config.positions == "sinusoidal":
        return SinusoidalPositions(config.d_model, layout=config.position_layout)
    if config.positions == "learned" and config.position_offset:
        offset = config.position_offset
        return OffsetPositions(config.max_length, config.d_model, offset=offset)
    if config.positions == "learned":
        return LearnedPositions(config.max_length, config.d_model)
    return None


# --- The first weights ----------------------------------------------------------------------------


def init_linear_layers(stack: nn.Module, norm_placement: str, beta: float) -> None:
    """Initialize the matrices of a stack, and its biases to zero; beta is DeepNorm's."""
    if norm_placement == "deepnorm":
        deepnorm_init(stack, beta)
        return
    for module in stack.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


@torch.no_grad()
def init_embedding(table: nn.Embedding, config: BlockConfig) -> None:
    """Initialize an embedding matrix: times sqrt(D) it has unit variance; padding is zero."""
    nn.init.normal_(table.weight, std=config.d_model**-0.5)
    if config.pad_id is not None:
        nn.init.zeros_(table.weight[config.pad_id])


def init_output(output: nn.Linear, config: BlockConfig) -> None:
    """Initialize the output layer, unless its matrix is the embedding matrix."""
    if not config.tied_output:
        nn.init.xavier_uniform_(output.weight)
    if output.bias is not None:
        nn.init.zeros_(output.bias)


# --- Tokens and their positions -------------------------------------------------------------------


def real_tokens(ids: Int[Tensor, "B S"], pad_id: int | None) -> Bool[Tensor, "B S"]:
    """True for a token that is no padding."""
    return torch.ones_like(ids, dtype=torch.bool) if pad_id is None else ids != pad_id


def tokens_so_far(
    ids: Int[Tensor, "B L"],
    pad_id: int | None,
    attention_mask: Tensor | None,
    cache: DecoderCache | None = None,
    *,
    name: str = "attention_mask",
) -> tuple[Bool[Tensor, "B S"], bool]:
    """Which of all tokens so far are real, and whether any of them may be padding; name: the mask's.

    The cache remembers both: of the mask, which is for all tokens so far, the last L columns count.
    """
    real, padded = real_tokens(ids, pad_id), pad_id is not None
    if attention_mask is not None:
        seen = 0 if cache is None else cache.length
        if attention_mask.shape[1] != seen + ids.shape[1]:
            wanted = f"{seen + ids.shape[1]} columns, for every token so far"
            raise argument_error(ValueError, name, f"shape {shape_of(attention_mask)}", wanted)
        real, padded = real & attention_mask[:, seen:].bool(), True
    if cache is not None:
        padded = cache.padded = cache.padded or padded
        real = cache.extend(real)
    return real, padded


def position_ids(real: Bool[Tensor, "B S"]) -> Int[Tensor, "B S"]:
    """A token's position: how many real ones come before it. Padding, anywhere, is masked anyway."""
    return (real.cumsum(1) - 1).clamp(min=0)


def counted_positions(real: Bool[Tensor, "B S"], pad_id: int | None) -> Int[Tensor, "#B S"]:
    """All positions so far: without a padding token, every token counts, as in transformers."""
    if pad_id is not None:
        return position_ids(real)
    return torch.arange(real.shape[1], device=real.device)[None]
