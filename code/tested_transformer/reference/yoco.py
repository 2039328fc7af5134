"""The slow truth of YOCO: the lower layers one after the other, one set of keys and values, the upper layers."""

from __future__ import annotations

import numpy as np

from .attention import _wide, attention, matmul
from .feed_forward import swiglu
from .norms import rms_norm
from .positions import apply_rotary
from .retention import gated_retention


def yoco(ids, weights, config):
    """Logits (B, L, V) of ids (B, L), with weights by name, matrices (out, in); those of padding mean nothing.

    config: a YocoConfig with RMSNorm, SwiGLU, rotary positions, a tied output and no biases. Positions count
    the real tokens. Source: Sun et al. 2024 (YOCO), sections 2 and 3.
    """
    weights = {name: _wide(array) for name, array in weights.items()}
    table = weights["embedding.table.weight"]
    real = np.ones(ids.shape, bool) if config.pad_id is None else ids != config.pad_id
    places = np.maximum(real.cumsum(1) - 1, 0)
    x = table[ids] * np.sqrt(table.dtype.type(config.d_model))
    for number in range(config.num_layers):
        at = f"layers.{number}"
        if number == config.num_layers // 2:
            own = rms_norm(x, weights["shared.norm.weight"], config.norm_eps)
            shared = [_heads(own, weights, f"shared.{name}", config) for name in ("key", "value")]
            shared[0] = apply_rotary(shared[0], places)
        own = rms_norm(x, weights[f"{at}.residuals.0.norm.weight"], config.norm_eps)
        if number >= config.num_layers // 2:
            query = apply_rotary(_heads(own, weights, f"{at}.attention.query", config), places)
            mixed = attention(query, *shared, mask=real[:, None, None], causal=True)
            mixed = _joined(mixed) @ weights[f"{at}.attention.output.weight"].T
        elif config.window is None:
            mixed = _retained(own, weights, f"{at}.retention", config, places, real)
        else:
            mixed = _windowed(own, weights, f"{at}.attention", config, places, real)
        x = x + mixed
        own = rms_norm(x, weights[f"{at}.residuals.1.norm.weight"], config.norm_eps)
        parts = ("gate_proj", "up_proj", "down_proj")
        x = x + swiglu(own, *(weights[f"{at}.feed_forward.{part}.weight"].T for part in parts))
    return rms_norm(x, weights["norm.weight"], config.norm_eps) @ table.T


def _heads(x, weights, name, config):
    """A linear layer, then its heads: (B, L, D) -> (B, H, L, d)."""
    flat = np.stack([matmul(sample, weights[f"{name}.weight"].T) for sample in x])
    heads = flat.shape[-1] // config.d_head
    return np.stack(np.split(flat, heads, axis=-1), axis=1)


def _joined(heads):
    """Heads side by side: (B, H, L, d) -> (B, L, H d)."""
    return np.concatenate(list(heads.transpose(1, 0, 2, 3)), axis=-1)


def _retained(x, weights, name, config, places, real):
    """A layer of gated retention. Shapes: (B, L, D) -> (B, L, D)."""
    query, key, value = (
        _heads(x, weights, f"{name}.{part}", config) for part in ("query", "key", "value")
    )
    query, key = apply_rotary(query, places), apply_rotary(key, places)
    logits = (x @ weights[f"{name}.decay.weight"].T).transpose(0, 2, 1)  # B H L
    output, _ = gated_retention(
        query, key, value, logits,
        temperature=config.temperature, real=real, norm_eps=config.norm_eps,
    )  # fmt: skip
    gate = x @ weights[f"{name}.gate.weight"].T
    return (gate / (1 + np.exp(-gate)) * _joined(output)) @ weights[f"{name}.output.weight"].T


def _windowed(x, weights, name, config, places, real):
    """A layer of causal attention with a window. Shapes: (B, L, D) -> (B, L, D)."""
    query, key, value = (
        _heads(x, weights, f"{name}.{part}", config) for part in ("query", "key", "value")
    )
    query, key = apply_rotary(query, places), apply_rotary(key, places)
    mixed = attention(
        query, key, value, mask=real[:, None, None], causal=True, window=config.window
    )
    return _joined(mixed) @ weights[f"{name}.output.weight"].T
