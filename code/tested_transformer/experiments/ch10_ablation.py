"""What breaks when one part of the model or of its training is taken out?"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..data import Split
from ..errors import argument_error
from ..layers.multi_head import MultiHeadAttention
from ..layers.residual import Residual
from ..models.transformer import Transformer
from ..training.trainer import Recipe, Trainer
from .ch10_number_models import number_trainer

ABLATIONS = {
    "nothing": "The model and its training as they are.",
    "causal mask": "The decoder sees its own future in training; when it writes there is none.",
    "positions in the encoder": "The encoder sees a bag of words; the decoder keeps its positions.",
    "feed-forward network": "Attention alone: the sublayer finds nothing, its norm stays.",
    "warm-up": "The first step is the largest; the rate cools down as before.",
    "schedule": "The rate is its peak from the first step to the last: no warm-up, no cool-down.",
    "scale": "The scores are not divided by sqrt(d).",
    "positions": "Neither encoder nor decoder knows where a word stands.",
    "residual connections": "A sublayer's answer replaces what was there: norm(f(x)).",
    "layer norm": "The answers are added up and never normalized: x + f(x).",
    "more heads": "One head with all numbers of a token; the weights at the start are the same.",
    "padding mask": "Padding is a word like any other; batches of like length have little of it.",
    "cross-attention": "The decoder never attends to the source.",
    "embedding scale": "The rows of the table are not multiplied by sqrt(D) before positions are added.",
}

# --- The parts that are put in the place of others ------------------------------------------------


class Nothing(nn.Module):
    """A sublayer that finds nothing: what is added to the stream is 0.

    Shapes: x (B, L, D) -> zeros (B, L, D), and no weights with return_weights: zeros (B, 1, L, S).
    """

    key = None  # it takes a memory of any dimension

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        context: Float[Tensor, "B S D"] | None = None,
        *,
        return_weights: bool = False,
        **ignored: Any,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Zeros; neither the context nor any mask or cache is looked at."""
        keys = x.shape[1] if context is None else context.shape[1]
        zeros = torch.zeros_like(x)
        return (zeros, x.new_zeros(len(x), 1, x.shape[1], keys)) if return_weights else zeros


class Replace(Residual):
    """A residual connection without the connection: norm(f(x)) instead of norm(x + f(x))."""

    def __init__(self, residual: Residual) -> None:
        super().__init__(residual.norm, dropout=residual.dropout.p)

    def add(self, x: Tensor, output: Tensor) -> Tensor:
        """The sublayer's output is all that goes on."""
        return self.norm(self.dropout(output))


# --- What is done to a model ----------------------------------------------------------------------


def drop_scale(model: Transformer) -> None:
    """Multiply the queries by sqrt(d), by which attention() divides."""
    for layer in model.modules():
        if isinstance(layer, MultiHeadAttention):
            d = layer.query.out_features // layer.num_heads
            layer.query.register_forward_hook(partial(_times, d**0.5))


def drop_causal_mask(model: Transformer) -> None:
    """Call the decoder with causal=False."""
    model.decoder.forward = partial(model.decoder.forward, causal=False)


def drop_encoder_positions(model: Transformer) -> None:
    """Embed the source without positions."""
    model.source_embedding.positions = None


def drop_feed_forward(model: Transformer) -> None:
    """Put Nothing in the place of every feed-forward network."""
    for layer in (*model.encoder.layers, *model.decoder.layers):
        layer.feed_forward = Nothing()


def drop_cross_attention(model: Transformer) -> None:
    """Put Nothing in the place of every cross-attention."""
    for layer in model.decoder.layers:
        layer.cross_attention = Nothing()


def drop_residuals(model: Transformer) -> None:
    """Let each sublayer's answer replace what was there."""
    for layer in (*model.encoder.layers, *model.decoder.layers):
        layer.residuals = nn.ModuleList(Replace(residual) for residual in layer.residuals)


def drop_norms(model: Transformer) -> None:
    """Put the identity in the place of every norm."""
    for layer in (*model.encoder.layers, *model.decoder.layers):
        for residual in layer.residuals:
            residual.norm = nn.Identity()


def _times(factor: float, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """A forward hook: the layer's output times the factor."""
    return output * factor


CHANGES = {  # to the model, once it is made
    "scale": drop_scale,
    "causal mask": drop_causal_mask,
    "positions in the encoder": drop_encoder_positions,
    "feed-forward network": drop_feed_forward,
    "residual connections": drop_residuals,
    "layer norm": drop_norms,
    "cross-attention": drop_cross_attention,
}
CONFIGS = {  # fields of TransformerConfig
    "positions": {"positions": "none"},
    "more heads": {"num_heads": 1},
    "padding mask": {"pad_id": None},
    "embedding scale": {"scale_embedding": False},
}
RECIPES = {"warm-up": {"warmup": 0.0}, "schedule": {"schedule": "constant"}}  # fields of Recipe


def trainer_without(
    what: str, *, steps: int = 600, seed: int = 0, split: Split | None = None, **changes: Any
) -> Trainer:
    """The book's own model and its training with one part taken out, ready to `run()`.

    what: a key of ABLATIONS; "nothing" is `number_trainer` itself. The weights that stay are drawn as
    they would be anyway. changes: fields of TransformerConfig.

    Raises: TypeError or ValueError that name the argument.
    Source: chapter 10.
    """
    if what not in ABLATIONS:
        raise argument_error(ValueError, "what", repr(what), f"one of {', '.join(ABLATIONS)}")
    recipe = Recipe(steps=steps, seed=seed, **RECIPES.get(what, {}))
    trainer = number_trainer(recipe, split=split, **changes | CONFIGS.get(what, {}))
    if what in CHANGES:
        CHANGES[what](trainer.model)
    return trainer  # what is gone gets no gradient, so the optimizer leaves it alone
