"""A decoder alone: it reads what is there and scores what comes next. GPT's shape."""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..errors import argument_error
from ..functional.masks import causal_mask, combine_masks
from ..layers.cache import DecoderCache
from ..layers.residual import deepnorm_constants
from .transformer import (
    Embedding,
    EncoderLayer,
    TransformerConfig,
    check_config,
    check_ids,
    final_norm,
    init_embedding,
    init_linear_layers,
    init_output,
    make_norm,
    position_ids,
    real_tokens,
)

__all__ = ["LanguageModel"]


class LanguageModel(nn.Module):
    """Score every next token of a text: encoder layers under a causal mask.

    Of the configuration it uses source_vocab, num_decoder_layers and what says how a layer is made.
    Padding may stand left or right: it is hidden, and a token's position counts the real tokens
    before it. GPT-2 is norm_placement="pre", positions="learned", activation="gelu_tanh",
    scale_embedding=False, pad_id=None.

    Shapes: ids (B, L) -> logits (B, L, V), and the weights of every layer, each (B, H, L, S), with
        return_weights.
    Raises: TypeError or ValueError that name the argument.
    Source: Radford et al. 2018, section 3.1; Radford et al. 2019, section 2.3.

    >>> import torch
    >>> config = TransformerConfig(9, d_model=4, num_heads=2, num_decoder_layers=1, norm_placement="pre")
    >>> tuple(LanguageModel(config)(torch.tensor([[3, 4, 5]])).shape)
    (1, 3, 9)
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        check_config(config)
        if config.target_vocab is not None:
            wanted = "None: what it reads and what it writes is one language"
            raise argument_error(ValueError, "target_vocab", config.target_vocab, wanted)
        self.config, layers = config, config.num_decoder_layers
        _, self._depth = deepnorm_constants(0, layers)  # alpha and beta
        alpha = self._depth.alpha if config.norm_placement == "deepnorm" else 1.0
        self.embedding = Embedding(config.source_vocab, config)
        self.layers = nn.ModuleList(EncoderLayer(config, alpha) for _ in range(layers))
        self.norm = make_norm(config) if config.final_norm else None
        self.output = nn.Linear(config.d_model, config.source_vocab, bias=config.output_bias)
        if config.tied_output:
            self.output.weight = self.embedding.table.weight
        self.reset_parameters()

    def forward(
        self,
        ids: Int[Tensor, "B L"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        cache: DecoderCache | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B L V"] | tuple[Float[Tensor, "B L V"], list[Tensor]]:
        """Score the next tokens; with a cache, ids are the chunk that follows what it has seen.

        The mask hides more than the future and padding: (L, everything so far), or four axes.
        """
        check_ids("ids", ids, self.config.source_vocab)
        caches = [None] * len(self.layers) if cache is None else [c.own for c in cache.layers]
        if len(caches) != len(self.layers):
            raise argument_error(
                ValueError, "cache", f"{len(caches)} layers", f"{len(self.layers)}"
            )
        length, real = ids.shape[1], real_tokens(ids, self.config.pad_id)
        real = real if cache is None else cache.extend(real)  # B S: everything so far
        x = self.embedding(ids, position_ids(real)[:, -length:], real.shape[1])
        if self.config.pad_id is not None:
            mask = combine_masks(real[:, None, None, :], mask)
        causal = mask is None and length > 1  # a single token is the last one: all is past
        if mask is not None and length > 1:  # one mask for all layers, made once
            mask = combine_masks(mask, causal_mask(length, real.shape[1], device=ids.device))
        total, weights = x if self.config.norm_placement == "resi_dual" else None, []
        for layer, kept in zip(self.layers, caches, strict=True):
            x, total, found = layer(
                x, total, mask=mask, causal=causal, cache=kept, return_weights=return_weights
            )
            weights += found
        logits = self.output(final_norm(self.norm, x, total))  # B L V
        return (logits, weights) if return_weights else logits

    def new_cache(self, *, capacity: int = 64) -> DecoderCache:
        """An empty cache for `forward`."""
        return DecoderCache(len(self.layers), capacity=capacity)

    def reset_parameters(self) -> None:
        """Draw the weights again, as Transformer does."""
        init_linear_layers(self.layers, self.config.norm_placement, self._depth.beta)
        init_embedding(self.embedding.table, self.config)
        init_output(self.output, self.config)
