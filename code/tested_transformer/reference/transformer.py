"""The slow truth of the whole model."""

from __future__ import annotations

import numpy as np

from .attention import _wide, attention, matmul
from .feed_forward import feed_forward
from .masks import padding_mask_from_tokens
from .norms import layer_norm
from .positions import sinusoidal_positions


def transformer(source, target, weights, config):
    """Logits (B, L, V) of source (B, S) and target (B, L), with weights by name; post- or pre-norm.

    Names are those of `Transformer`, matrices (out, in). config: a TransformerConfig with sinusoidal
    positions or none, and LayerNorm. Source: Vaswani et al. 2017, section 3.
    """
    weights = {name: _wide(array) for name, array in weights.items()}
    seen, written = (_words_seen(ids, config.pad_id) for ids in (source, target))
    memory = embedded(source, weights["source_embedding.table.weight"], config)
    memory = stack(memory, weights, "encoder", config, seen)
    language = "source" if config.target_vocab is None else "target"
    table = weights[f"{language}_embedding.table.weight"]
    x = stack(embedded(target, table, config), weights, "decoder", config, written, memory, seen)
    output = {"w.weight": table, "w.bias": weights.get("output.bias", 0 * table[:, 0])}
    if not config.tied_output:
        output["w.weight"] = weights["output.weight"]
    return linear(x, output, "w")


def _words_seen(ids, pad_id):
    """The mask (B, 1, 1, S) that hides padding; True everywhere if no token is padding."""
    pad_id = np.iinfo(ids.dtype).min if pad_id is None else pad_id
    return padding_mask_from_tokens(ids, pad_id)


def embedded(ids, table, config):
    """Each id's row times sqrt(D), plus its position among the words. Shapes: (B, L) -> (B, L, D)."""
    table = _wide(table)
    width = table.shape[1]
    scale = np.sqrt(table.dtype.type(width)) if config.scale_embedding else 1
    x = np.zeros((*ids.shape, width), dtype=table.dtype)
    for b, row in enumerate(ids):
        place = 0
        for i, token in enumerate(row):
            x[b, i] = table[token] * scale
            if config.positions == "sinusoidal":
                x[b, i] += sinusoidal_positions(place, width, layout=config.position_layout)
            place += token != config.pad_id
    return x


def stack(x, weights, name, config, mask, memory=None, memory_mask=None):
    """All layers of the encoder, or of the decoder if there is a memory. Shapes: (B, L, D)."""
    layers = config.num_encoder_layers if memory is None else config.num_decoder_layers
    for number in range(layers):
        at = f"{name}.layers.{number}"
        own = (f"{at}.attention", config.num_heads, mask, memory is not None)
        sublayers = [lambda x, own=own: heads(x, x, weights, *own)]
        if memory is not None:
            cross = (f"{at}.cross_attention", config.num_heads, memory_mask, False)
            sublayers.append(lambda x, cross=cross: heads(x, memory, weights, *cross))
        sublayers.append(lambda x, at=at: network(x, weights, at, config.activation))
        for i, sublayer in enumerate(sublayers):
            norm = f"{at}.residuals.{i}.norm"
            if config.norm_placement == "pre":
                x = x + sublayer(normed(x, weights, norm, config.norm_eps))
            else:
                x = normed(x + sublayer(x), weights, norm, config.norm_eps)
    return normed(x, weights, f"{name}.norm", config.norm_eps) if config.final_norm else x


def heads(x, context, weights, name, num_heads, mask, causal):
    """Attention from x to the context, with biases, each head on its own columns. (B, L, D)."""
    parts = (("query", x), ("key", context), ("value", context))
    parts = [linear(a, weights, f"{name}.{part}") for part, a in parts]
    query, key, value = (np.stack(np.split(a, num_heads, axis=-1), axis=1) for a in parts)
    found = attention(query, key, value, mask=mask, causal=causal)  # B H L d
    return linear(np.concatenate(list(found.swapaxes(0, 1)), axis=-1), weights, f"{name}.output")


def network(x, weights, at, activation):
    """The feed-forward network of the layer at that place. Shapes: (B, L, D)."""
    up_proj, down_proj = (
        weights[f"{at}.feed_forward.{part}.weight"].T for part in ("up_proj", "down_proj")
    )
    biases = [weights.get(f"{at}.feed_forward.{part}.bias", 0 * w[0])
              for part, w in (("up_proj", up_proj), ("down_proj", down_proj))]  # fmt: skip
    return feed_forward(x, up_proj, biases[0], down_proj, biases[1], activation)


def normed(x, weights, name, eps):
    """LayerNorm with the weights of that name; without a shift if there is none."""
    weight = weights[f"{name}.weight"]
    return layer_norm(x, weight, weights.get(f"{name}.bias", 0 * weight), eps)


def linear(x, weights, name):
    """The map x W^T + b, with W (out, in); without b if there is none. Shapes: (*batch, in) -> (*batch, out)."""
    matrix = weights[f"{name}.weight"]
    found = matmul(x.reshape(-1, x.shape[-1]), matrix.T).reshape(*x.shape[:-1], len(matrix))
    return found + weights.get(f"{name}.bias", 0 * matrix[:, 0])
