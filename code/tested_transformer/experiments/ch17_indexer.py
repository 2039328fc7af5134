"""An indexer learns what the trained model of prose attends to (chapter 17)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..functional.masks import causal_mask
from ..layers.indexed_latent_attention import IndexerConfig, LightningIndexer
from ..mixers.indexed_attention import indexer_loss, indexer_scores, select_keys, selection_mask
from .ch13_prose import LENGTH

D_ROTARY = 8
FIRST = 0  # the token that ends a text, after which the next one begins


@torch.no_grad()
def own_texts(model: nn.Module, count: int, seed: int) -> Int[Tensor, "N L"]:
    """Texts that the model itself generates, LENGTH tokens each, sampled at a temperature of 1."""
    generator = torch.Generator().manual_seed(seed)
    ids, cache = torch.full((count, 1), FIRST), model.new_cache(capacity=LENGTH)
    while ids.shape[1] < LENGTH:
        probabilities = model(ids[:, -1:], cache=cache)[:, -1].softmax(-1)
        ids = torch.cat((ids, torch.multinomial(probabilities, 1, generator=generator)), 1)
    return ids


@torch.no_grad()
def attention_of(
    model: nn.Module, ids: Int[Tensor, "B L"], layer: int
) -> tuple[Float[Tensor, "B L D"], Float[Tensor, "B H L L"]]:
    """What the attention of a layer is given, and its weights."""
    inputs = []
    attention = model.layers[layer].attention
    handle = attention.register_forward_pre_hook(lambda module, given: inputs.append(given[0]))
    _, weights = model(ids, return_weights=True)
    handle.remove()
    return inputs[0], weights[layer]


def scores_of(indexer: LightningIndexer, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L L"]:
    """The scores of an indexer whose queries come from the token, as its keys do."""
    query, key, weights = indexer(x, x, torch.arange(x.shape[1]))
    return indexer_scores(query, key[:, 0], weights)


def make_indexer(d_model: int, num_keys: int, seed: int) -> LightningIndexer:
    """Four heads of 16 features."""
    torch.manual_seed(seed)
    config = IndexerConfig(num_heads=4, d_head=16, num_keys=num_keys)
    return LightningIndexer(d_model, d_model, D_ROTARY, config)


def train_indexer(
    indexer: LightningIndexer, x: Float[Tensor, "N L D"], weights: Float[Tensor, "N H L L"],
    steps: int, *, batch: int = 16, lr: float = 0.01,
) -> list[float]:  # fmt: skip
    """The dense warm-up: only the indexer learns, from the attention to all keys. Return the losses."""
    optimizer, losses = torch.optim.Adam(indexer.parameters(), lr=lr), []
    past = causal_mask(x.shape[1])[None]
    for _ in range(steps):
        rows = torch.randint(len(x), (batch,))
        loss = indexer_loss(scores_of(indexer, x[rows]), weights[rows], mask=past)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def best_keys(scores: Float[Tensor, "B L L"], num_keys: int) -> Bool[Tensor, "B L L"]:
    """The num_keys best keys of each query, as a mask."""
    past = causal_mask(scores.shape[1])[None]
    return selection_mask(*select_keys(scores, num_keys, mask=past), scores.shape[1])


@torch.no_grad()
def recall_and_mass(
    selected: Bool[Tensor, "B L L"], weights: Float[Tensor, "B H L L"], num_keys: int
) -> tuple[float, float]:
    """Of queries with more than num_keys keys: which share of the true best keys is selected, and how much of
    the attention goes to the selected ones."""
    target = weights.mean(1)  # B L L
    true = best_keys(target, num_keys)
    found = (selected & true).sum(-1)[:, num_keys:] / num_keys
    return float(found.mean()), float((target * selected).sum(-1)[:, num_keys:].mean())
