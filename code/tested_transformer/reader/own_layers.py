"""The layers of a model with a reader's functions in place of the package's formulas."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from ..functional.masks import causal_mask, combine_masks, masked_softmax
from ..functional.scaling import scaled_scores
from ..layers.blocks import DecoderLayer, Embedding
from ..layers.cache import DecoderCache, KeyValueCache, LayerCache
from ..layers.feed_forward import FeedForward
from ..layers.multi_head import MultiHeadAttention, concat_heads, split_heads
from ..layers.norms import LayerNorm
from ..models.transformer import Decoder, Transformer
from ..positions.sinusoidal import SinusoidalPositions


def swap_layers(model: Transformer, own: dict[str, Callable[..., Any]]) -> None:
    """Let the reader's functions work in the layers of a model, on the weights that it has.

    Names and order of the weights stay, so that checkpoints fit.
    """
    for module in list(model.modules()):
        kind, exercise = OWN.get(type(module), (None, None))
        if exercise in own:
            _become(module, kind, own)
    if own.keys() & IN_ATTENTION:
        for layer in (*model.encoder.layers, *model.decoder.layers):
            _become(layer.attention, OwnAttention, own)
        for layer in model.decoder.layers:
            _become(layer.cross_attention, OwnAttention, own)
    if "ch05.multi_head" in own:
        for layer in model.encoder.layers:
            _become(layer.attention, OwnWholeAttention, own)
    if "ch01.attention" in own:
        for layer in model.decoder.layers:
            _become(layer.cross_attention, OwnCrossAttention, own)


def _become(module: nn.Module, kind: type, own: dict[str, Callable[..., Any]]) -> None:
    """The same layer with the same weights, but another forward."""
    module.__class__, module.own = kind, own


def _or_zeros(bias: Tensor | None, like: Tensor) -> Tensor:
    return like.new_zeros(len(like)) if bias is None else bias


class OwnPositions(SinusoidalPositions):
    """Sinusoids by the reader's function. Shapes: (*batch, L) -> (*batch, L, D)."""

    def forward(self, positions: Int[Tensor, "*batch L"]) -> Float[Tensor, "*batch L D"]:
        """The vectors of these positions."""
        vectors = self.own["ch06.sinusoids"](positions.cpu(), self.d_model)
        return vectors.to(device=positions.device, dtype=self.like.dtype)


class OwnNorm(LayerNorm):
    """A layer norm by the reader's function. Shapes: (*batch, D) -> (*batch, D)."""

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """Normalize each token."""
        bias = _or_zeros(self.bias, self.weight)
        return self.own["ch07.layer_norm"](x, self.weight, bias, eps=self.eps)


class OwnFeedForward(FeedForward):
    """The network by the reader's function, which multiplies from the right: the matrices are transposed.

    Shapes: (*batch, D) -> (*batch, D).
    """

    def transform(self, x: Tensor) -> Tensor:
        """Up-projection, activation, down-projection."""
        up, down = self.up_proj, self.down_proj
        return self.own["ch08.feed_forward"](
            x, up.weight.T, _or_zeros(up.bias, up.weight),
            down.weight.T, _or_zeros(down.bias, down.weight),
        )  # fmt: skip


class OwnEmbedding(Embedding):
    """Embeddings by the reader's function, which takes the same positions for each sequence.

    Sequences of a batch whose tokens have the same positions are embedded together.

    Shapes: ids and places (B, L) -> (B, L, D).
    """

    def forward(
        self, ids: Int[Tensor, "B L"], places: Int[Tensor, "B L"], num_positions: int
    ) -> Float[Tensor, "B L D"]:
        """Look the tokens up."""
        table = self.table.weight
        vectors = table.new_zeros(max(num_positions, 1), table.shape[1])
        if self.positions is not None:
            vectors = self.positions(torch.arange(len(vectors), device=ids.device)).to(table.dtype)
        x = table.new_zeros(*ids.shape, table.shape[1])
        patterns, which = places.unique(dim=0, return_inverse=True)
        for number, pattern in enumerate(patterns):
            rows = which == number
            x[rows] = self.own["ch09.embed"](ids[rows], table, vectors[pattern])
        x = x if self.norm is None else self.norm(x)
        return self.dropout(x)


class OwnDecoderLayer(DecoderLayer):
    """A decoder layer wired by the reader's function. Shapes: as DecoderLayer."""

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        memory: Float[Tensor, "B S D"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        memory_mask: Bool[Tensor, "..."] | None = None,
        causal: bool = True,
        cache: LayerCache | None = None,
        return_weights: bool = False,
    ) -> Tensor | tuple[Tensor, ...]:
        """One layer; the norm that the reader calls is that of the sublayer called last."""
        past, source = (None, None) if cache is None else (cache.own, cache.cross)
        weights: list[Tensor] = []  # the reader's function takes and returns x alone
        last = 0

        def run(index: int, function: Callable[[Tensor], Any], x: Tensor) -> Tensor:
            nonlocal last
            last = index
            answer = function(x)
            output, *new = answer if isinstance(answer, tuple) else (answer,)
            weights.extend(new)
            return self.residuals[index].dropout(output)

        def look_back(x: Tensor) -> Tensor:
            options = {"mask": mask, "causal": causal, "cache": past}
            return run(0, partial(self.attention, return_weights=return_weights, **options), x)

        def consult(x: Tensor, memory: Tensor) -> Tensor:
            options = {"context": memory, "mask": memory_mask, "cache": source}
            attend = partial(self.cross_attention, return_weights=return_weights, **options)
            return run(1, attend, x)

        def norm(x: Tensor) -> Tensor:
            return self.residuals[last].norm(x)

        think = partial(run, 2, self.feed_forward)
        wired = self.own["ch09.decoder_layer"](x, memory, look_back, consult, think, norm)
        return (wired, *weights) if return_weights else wired


class OwnDecoder(Decoder):
    """A decoder with the reader's causal mask, made once for all layers. Shapes: as Decoder."""

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        memory: Float[Tensor, "B S D"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        causal: bool = True,
        cache: DecoderCache | None = None,
        **options: Any,
    ) -> Tensor | tuple[Tensor, list[Tensor], list[Tensor]]:
        """Combine the causal mask with the mask that came."""
        if causal:
            length = x.shape[1]
            past = 0 if cache is None else cache.layers[0].own.length
            order = self.own["ch04.causal_mask"](length, past + length).to(x.device)
            mask = combine_masks(mask, order)
        return super().forward(x, memory, mask=mask, causal=False, cache=cache, **options)


# --- The attentions -------------------------------------------------------------------------------

IN_ATTENTION = {
    "ch03.scaled_scores", "ch03.softmax", "ch04.masked_softmax", "ch05.split_heads",
    "ch05.contributions",
}  # fmt: skip


class OwnAttention(MultiHeadAttention):
    """Multi-head attention step by step, each step the reader's where there is one.

    Shapes: as MultiHeadAttention, with as many KV heads as query heads and no bias.
    """

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        context: Float[Tensor, "B S D"] | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
        causal: bool = False,
        cache: KeyValueCache | None = None,
        return_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Split into heads, score, weigh, sum the values, project."""
        query = self._split(self.query(x))  # B H L d
        key, value = self._keys_and_values(x if context is None else context, cache)  # B H S d
        if causal:
            order = causal_mask(query.shape[2], key.shape[2], device=x.device)
            mask = combine_masks(mask, order)
        heads, weights = self.attend_in_heads(query, key, value, mask, return_weights)
        output = self._project(heads)
        return (output, weights) if return_weights else output

    def attend_in_heads(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, return_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Each head's weighted sum of the values, and the attention weights."""
        scores = self.own.get("ch03.scaled_scores", scaled_scores)(query, key)  # B H L S
        weights = functional.dropout(self._weigh(scores, mask), self.dropout, self.training)
        return weights @ value, weights

    def _weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        if "ch04.masked_softmax" in self.own:
            return self.own["ch04.masked_softmax"](scores, mask)
        softmax = self.own.get("ch03.softmax")
        if softmax is None or mask is None:
            return masked_softmax(scores, mask) if softmax is None else softmax(scores)
        fully_masked = ~mask.any(-1, keepdim=True)
        filled = scores.masked_fill(~mask, float("-inf")).masked_fill(fully_masked, 0.0)
        return softmax(filled).masked_fill(fully_masked, 0.0)

    def _split(self, x: Tensor) -> Tensor:
        return self.own.get("ch05.split_heads", split_heads)(x, self.num_heads)

    def _project(self, heads: Tensor) -> Tensor:
        if "ch05.contributions" not in self.own:
            return self.output(concat_heads(heads))
        each = self.own["ch05.contributions"](heads, self.output.weight.T)  # B H L D
        return each.sum(1) + _or_zeros(self.output.bias, self.output.weight)

    def _keys_and_values(
        self, context: Tensor, cache: KeyValueCache | None
    ) -> tuple[Tensor, Tensor]:
        if cache is not None and cache.fixed and cache.length:
            return cache.keys, cache.values
        key, value = self._split(self.key(context)), self._split(self.value(context))
        return (key, value) if cache is None else cache.append(key, value)


class OwnCrossAttention(OwnAttention):
    """The heads attend by the reader's attention of chapter 1, which knows no mask.

    Masked keys are left out: queries with the same visible keys go into one call, with those keys and
    no others. The weights are what the function makes of an identity matrix of values.
    """

    def attend_in_heads(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, return_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Each head's weighted sum of the visible values, and the weights if they are wanted."""
        found = self._among_visible(query, key, value, mask)
        if not return_weights:
            return found, None
        identity = torch.eye(key.shape[2], dtype=key.dtype, device=key.device)
        return found, self._among_visible(query, key, identity.expand(*key.shape[:3], -1), mask)

    def _among_visible(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None):
        attend = self.own["ch01.attention"]
        if mask is None:
            return attend(query, key, value)
        mask = mask if mask.ndim == 4 else mask[None, None]
        mask = mask.expand(len(query), -1, -1, key.shape[2])
        if mask.shape[1:3] != (1, 1):  # not one mask for a whole example: query by query
            shape = (*query.shape[:3], key.shape[2])
            mask = mask.expand(shape).reshape(-1, 1, 1, shape[-1])
            key, value = (
                t[:, :, None].expand(-1, -1, shape[2], -1, -1).reshape(-1, 1, *t.shape[2:])
                for t in (key, value)
            )
            query = query.reshape(-1, 1, 1, query.shape[-1])
            return self._among_visible(query, key, value, mask).reshape(*shape[:3], -1)
        found = query.new_zeros(*query.shape[:3], value.shape[-1])
        patterns, which = mask[:, 0, 0].unique(dim=0, return_inverse=True)
        for number, visible in enumerate(patterns):
            rows = which == number
            if visible.any():
                found[rows] = attend(
                    query[rows], key[rows][:, :, visible], value[rows][:, :, visible]
                )
        return found


class OwnWholeAttention(OwnAttention):
    """The encoder's layer by the reader's multi_head of chapter 5, which knows no biases.

    The biases become weights of a feature that is always 1. So that H still divides the dimension,
    each head gets one more dimension, which is always 0; the queries make up for the larger root in
    the scale. Weights for pictures are the package's: the function does not return them.
    """

    def forward(
        self, x: Float[Tensor, "B L D"], *, mask: Bool[Tensor, "..."] | None = None,
        return_weights: bool = False, **options: Any,
    ) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
        """Attend from x to x."""
        masked = torch.zeros((), dtype=torch.bool, device=x.device)
        if mask is not None:  # the function is not defined for fully masked rows
            masked = ~mask.any(-1, keepdim=True)
            mask = mask | masked
            masked = masked[:, 0] if masked.ndim == 4 else masked
        output = self._multi_head(x, mask).masked_fill(masked, 0.0)
        output = output + _or_zeros(self.output.bias, self.output.weight)
        if not return_weights:
            return output
        return output, super().forward(x, mask=mask, return_weights=True)[1]

    def _multi_head(self, x: Tensor, mask: Tensor | None) -> Tensor:
        heads, width = self.num_heads, x.shape[-1]
        d = width // heads
        x = functional.pad(torch.cat([x, x.new_ones(*x.shape[:-1], 1)], -1), (0, heads - 1))
        query, key, value = map(self._with_bias, (self.query, self.key, self.value))
        output = functional.pad(self.output.weight.T.unflatten(0, (heads, d)), (0, heads, 0, 1))
        multi_head = self.own["ch05.multi_head"]
        query = query * ((d + 1) / d) ** 0.5
        answer = multi_head(x, query, key, value, output.flatten(0, 1), heads, mask=mask)
        return answer[..., :width]

    def _with_bias(self, layer: nn.Linear) -> Tensor:
        """Matrix and bias in one, with a column of zeros for each head: (D + H, D + H)."""
        matrix = torch.cat([layer.weight.T, _or_zeros(layer.bias, layer.weight)[None]])  # D+1 D
        matrix = functional.pad(matrix.unflatten(-1, (self.num_heads, -1)), (0, 1)).flatten(1)
        return functional.pad(matrix, (0, 0, 0, self.num_heads - 1))


OWN = {  # layers that one function fills: what they are, what they become, and by which exercise
    SinusoidalPositions: (OwnPositions, "ch06.sinusoids"),
    LayerNorm: (OwnNorm, "ch07.layer_norm"),
    FeedForward: (OwnFeedForward, "ch08.feed_forward"),
    Embedding: (OwnEmbedding, "ch09.embed"),
    DecoderLayer: (OwnDecoderLayer, "ch09.decoder_layer"),
    Decoder: (OwnDecoder, "ch04.causal_mask"),
}
