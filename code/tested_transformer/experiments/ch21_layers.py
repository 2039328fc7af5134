"""The small Llama of chapter 13 with more than its feed-forward network rebuilt (chapter 21's deeper pages)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..layers.composed_attention import ComposedAttention
from ..layers.crate import CrateLayer
from ..layers.differential_attention import DifferentialAttention
from ..layers.gated_attention import GatedAttention
from ..layers.hyper_connections import use_hyper_connections
from ..layers.multi_head import MultiHeadAttention
from ..layers.stack import Stack
from ..models.language_model import LanguageModel
from .ch13_counting import LLAMA, counting_config, train_counting

STREAMS = 4


def rebuilt_model(name: str) -> LanguageModel:
    """The Llama of chapter 13 with all of its key and value heads, rebuilt as REBUILT says."""
    model = LanguageModel(counting_config(**LLAMA | {"num_kv_heads": 4}))
    REBUILT[name](model)
    return model


def replace_attention(kind: type[nn.Module], model: LanguageModel, **per_layer: Callable) -> None:
    """An attention of another class in every layer, with new weights."""
    config = model.config
    for number, layer in enumerate(model.layers):
        options = {name: make(number) for name, make in per_layer.items()}
        options |= {"bias": False, "positions": layer.attention.positions}
        layer.attention = kind(config.d_model, config.num_heads, **options)
        for part in ("query", "key", "value", "output"):
            nn.init.xavier_uniform_(getattr(layer.attention, part).weight)


class ResidualCrate(CrateLayer):
    """CRATE's layer with a residual connection around the ISTA step, too."""

    def forward(self, x: Tensor, **options: Any) -> Tensor:
        """One layer. Shapes: (B, L, D) -> (B, L, D)."""
        x = x + self.attention(self.norms[0](x), **options)
        return x + self.sparsify(self.norms[1](x))


def use_crate(
    model: LanguageModel, kind: type[CrateLayer] = CrateLayer, *, times_layers: int = 1
) -> None:
    """CRATE's layers, so many times as many, with the positions of the model."""
    config, positions = model.config, model.layers[0].attention.positions
    model.layers = Stack(
        kind(config.d_model, config.num_heads, positions=positions)
        for _ in range(times_layers * config.num_layers)
    )


def use_streams(dynamic: bool, model: LanguageModel) -> None:
    """Hyper-connections in the place of residual connections."""
    model.layers = use_hyper_connections(model.layers, STREAMS, dynamic=dynamic)


REBUILT: dict[str, Callable[[LanguageModel], None]] = {
    "Llama": lambda model: replace_attention(MultiHeadAttention, model),
    "CRATE": use_crate,
    "CRATE, residual": lambda model: use_crate(model, ResidualCrate),
    "CRATE, residual, four times the layers": lambda model: use_crate(
        model, ResidualCrate, times_layers=4
    ),
    "DCMHA": lambda model: replace_attention(ComposedAttention, model),
    "differential attention": lambda model: replace_attention(
        DifferentialAttention, model, layer=lambda number: number
    ),
    "gated attention": lambda model: replace_attention(GatedAttention, model),
    "hyper-connections, static": lambda model: use_streams(False, model),
    "hyper-connections, dynamic": lambda model: use_streams(True, model),
}


def train_rebuilt(name: str, seed: int, steps: int, *, lr: float) -> LanguageModel:
    """One model, from a seed that sets the weights and the sequences."""
    torch.manual_seed(seed)
    model = rebuilt_model(name)
    train_counting(model, seed, steps, lr=lr)
    return model


def layer_bytes(model: LanguageModel) -> int:
    """Bytes of the weights of all layers."""
    return sum(weight.nbytes for weight in model.layers.parameters())
