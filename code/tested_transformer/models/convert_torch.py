"""Copies between this package's layers and torch's: nn.MultiheadAttention and nn.Transformer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..bounds import Where, check_known
from ..errors import argument_error, shape_of
from ..layers.multi_head import MultiHeadAttention
from ..shapes import checked
from .transformer import Transformer, TransformerConfig

__all__ = [
    "attention_from_torch",
    "attention_to_torch",
    "transformer_from_torch",
    "transformer_to_torch",
]

ACTIVATIONS = {"relu": functional.relu, "gelu": functional.gelu}


# --- Multi-head attention -------------------------------------------------------------------------

SERVED = Where(
    "a layer without add_bias_kv and add_zero_attn, and with kdim equal to vdim",
    lambda layer: layer.bias_k is None and not layer.add_zero_attn and layer.kdim == layer.vdim,
)


@checked
def attention_from_torch(theirs: Annotated[nn.MultiheadAttention, SERVED]) -> MultiHeadAttention:
    """A copy of torch's layer, weights and all, batch first whatever theirs is.

    Raises: TypeError for another class; ValueError for what this layer has no place for: bias_k and
        bias_v, a zero key, keys and values of different widths.
    Source: torch.nn.MultiheadAttention.
    """
    ours = MultiHeadAttention(
        theirs.embed_dim, theirs.num_heads, d_context=theirs.kdim,
        bias=theirs.in_proj_bias is not None, dropout=theirs.dropout,
    )  # fmt: skip
    ours = ours.to(theirs.out_proj.weight).train(theirs.training)
    copy_pairs(attention_pairs(ours, theirs))
    return ours


@checked
def attention_to_torch(ours: MultiHeadAttention) -> nn.MultiheadAttention:
    """A copy as torch's layer, batch first.

    Raises: ValueError with grouped-query attention, heads of another size than D / H, positions or a window,
        which torch's layer does not have.
    Source: torch.nn.MultiheadAttention.
    """
    width, context = ours.query.in_features, ours.key.in_features
    known = {"num_kv_heads": (ours.num_heads,), "d_head": (width / ours.num_heads,)}
    check_known("ours", ours, known | {"positions": (None,), "window": (None,)})
    theirs = nn.MultiheadAttention(
        width, ours.num_heads, dropout=ours.dropout, batch_first=True,
        bias=ours.query.bias is not None, kdim=context, vdim=context,
    )  # fmt: skip
    theirs = theirs.to(ours.query.weight).train(ours.training)
    copy_pairs((yours, mine) for mine, yours in attention_pairs(ours, theirs))
    return theirs


def attention_pairs(
    ours: MultiHeadAttention, theirs: nn.MultiheadAttention
) -> Iterator[tuple[Tensor, Tensor]]:
    """Every weight and bias beside its twin in torch's layer, as views of the parameters."""
    layers = ours.query, ours.key, ours.value, ours.output
    for layer, weight, bias in zip(layers, *parts_of_torch(theirs), strict=True):
        yield layer.weight, weight
        if bias is not None:
            yield layer.bias, bias


def parts_of_torch(theirs: nn.MultiheadAttention) -> tuple[list[Tensor], list[Tensor | None]]:
    """The four matrices and four biases of torch's layer, as views of its parameters."""
    if theirs.in_proj_weight is None:  # keys and values of another width have matrices of their own
        weights = [theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight]
    else:
        weights = list(theirs.in_proj_weight.chunk(3))
    biases = [None] * 3 if theirs.in_proj_bias is None else list(theirs.in_proj_bias.chunk(3))
    return [*weights, theirs.out_proj.weight], [*biases, theirs.out_proj.bias]


@torch.no_grad()
def copy_pairs(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copy the second of each pair into the first."""
    for into, source in pairs:
        into.copy_(source)


# --- The Transformer ------------------------------------------------------------------------------

ALIKE = Where(
    "stacks that both have a final norm, or neither",
    lambda stacks: (stacks.encoder.norm is None) == (stacks.decoder.norm is None),
)


@checked
def transformer_from_torch(
    theirs: Annotated[nn.Transformer, ALIKE],
    *,
    embedding: nn.Embedding | tuple[nn.Embedding, nn.Embedding],
    generator: nn.Linear | None = None,
    **changes: Any,
) -> Transformer:
    """A copy of torch's two stacks, with the embedding and output layer that they lack.

    embedding: one for both languages, or (source, target). generator: the output layer; None ties it
    to the target embedding. changes: fields of TransformerConfig that torch's class says nothing
    about, such as pad_id and positions.

    Raises: TypeError or ValueError for what has no counterpart here; Python's own TypeError for
        changes that are no fields, or that torch's class fixes.
    Source: torch.nn.Transformer.
    """
    tables = _tables(theirs, embedding)
    if generator is not None and generator.weight.shape != tables[-1].weight.shape:
        came = f"a weight of shape {shape_of(generator.weight)}"
        wanted = f"the target embedding's shape {shape_of(tables[-1].weight)}"
        raise argument_error(ValueError, "generator", came, wanted)
    config = _config(theirs, tables, generator, changes)
    ours = Transformer(config).to(tables[0].weight).train(theirs.training)
    copy_pairs(stack_pairs(ours, theirs))
    with torch.no_grad():
        ours.source_embedding.table.weight.copy_(tables[0].weight)
        ours.target_embedding.table.weight.copy_(tables[-1].weight)
        if generator is not None:
            ours.output.weight.copy_(generator.weight)
            if generator.bias is not None:
                ours.output.bias.copy_(generator.bias)
    return ours


def _tables(
    theirs: nn.Transformer, embedding: nn.Embedding | tuple[nn.Embedding, nn.Embedding]
) -> tuple[nn.Embedding, ...]:
    """The tables as a tuple: one for both languages, or two."""
    tables = embedding if isinstance(embedding, tuple) else (embedding,)
    for table in tables:
        if table.embedding_dim != theirs.d_model:
            came, wanted = f"shape {shape_of(table.weight)}", f"width {theirs.d_model}, as theirs"
            raise argument_error(ValueError, "embedding", came, wanted)
    return tables[:1] if tables[0] is tables[-1] else tables


@checked
def transformer_to_torch(ours: Transformer) -> nn.Transformer:
    """A copy of the two stacks as torch's class, batch first; embeddings stay behind.

    Raises: TypeError if ours is no Transformer; ValueError for a norm_placement, norm or activation that
        torch's class does not have.
    Source: torch.nn.Transformer.
    """
    known = {"norm_placement": ("post", "pre"), "norm": ("layer",), "activation": (*ACTIVATIONS,)}
    check_known("ours.config", ours.config, known)
    theirs = _torch_stacks(ours.config)
    theirs = theirs.to(ours.source_embedding.table.weight).train(ours.training)
    copy_pairs((yours, mine) for mine, yours in stack_pairs(ours, theirs))
    return theirs


def _torch_stacks(config: TransformerConfig) -> nn.Transformer:
    """torch's class with stacks of that configuration, its weights not ours yet."""
    sizes = {"d_model": config.d_model, "nhead": config.num_heads}
    options = {
        "dim_feedforward": config.d_ff, "dropout": config.dropout, "bias": config.bias,
        "activation": ACTIVATIONS[config.activation], "layer_norm_eps": config.norm_eps,
        "batch_first": True, "norm_first": config.norm_placement == "pre",
    }  # fmt: skip
    encoder = nn.TransformerEncoder(  # torch's own would warn of nested tensors that it cannot use
        nn.TransformerEncoderLayer(**sizes, **options), config.num_encoder_layers,
        _torch_norm(config), enable_nested_tensor=False,
    )  # fmt: skip
    decoder = nn.TransformerDecoder(
        nn.TransformerDecoderLayer(**sizes, **options), config.num_decoder_layers,
        _torch_norm(config),
    )  # fmt: skip
    return nn.Transformer(**sizes, custom_encoder=encoder, custom_decoder=decoder, batch_first=True)


def _config(
    theirs: nn.Transformer, tables: tuple, generator: nn.Linear | None, changes: dict
) -> TransformerConfig:
    """The configuration that torch's modules show, with the changes."""
    first = theirs.encoder.layers[0]
    return TransformerConfig(
        source_vocab=tables[0].num_embeddings,
        target_vocab=None if len(tables) == 1 else tables[1].num_embeddings,
        d_model=theirs.d_model,
        num_heads=theirs.nhead,
        num_encoder_layers=len(theirs.encoder.layers),
        num_decoder_layers=len(theirs.decoder.layers),
        d_ff=first.linear1.out_features,
        dropout=first.dropout.p,
        activation=_activation(first.activation),
        bias=first.linear1.bias is not None,
        norm_placement="pre" if first.norm_first else "post",
        norm="layer",
        norm_eps=first.norm1.eps,
        final_norm=theirs.encoder.norm is not None,
        tied_output=generator is None or generator.weight is tables[-1].weight,
        output_bias=generator is not None and generator.bias is not None,
        **{"pad_id": tables[0].padding_idx} | changes,
    )


def _activation(function: Any) -> str:
    """The name of torch's activation function."""
    for name, known in ACTIVATIONS.items():
        if function is known:
            return name
    wanted = " or ".join(ACTIVATIONS)
    raise argument_error(ValueError, "theirs", f"the activation {function}", wanted)


def _torch_norm(config: Any) -> nn.LayerNorm | None:
    """The norm at the end of a stack, which torch's own constructor always makes."""
    if not config.final_norm:
        return None
    return nn.LayerNorm(config.d_model, eps=config.norm_eps, bias=config.bias)


def stack_pairs(ours: nn.Module, theirs: nn.Transformer) -> Iterator[tuple[Tensor, Tensor]]:
    """Every parameter of the two stacks beside its twin in torch's."""
    for mine, yours in ((ours.encoder, theirs.encoder), (ours.decoder, theirs.decoder)):
        for layer, twin in zip(mine.layers, yours.layers, strict=True):
            yield from layer_pairs(layer, twin)
        if mine.norm is not None:
            yield from _same(mine.norm, yours.norm)


def layer_pairs(layer: nn.Module, twin: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """Every parameter of an encoder or decoder layer beside its twin in torch's."""
    yield from attention_pairs(layer.attention, twin.self_attn)
    if hasattr(layer, "cross_attention"):
        yield from attention_pairs(layer.cross_attention, twin.multihead_attn)
    yield from _same(layer.feed_forward.up_proj, twin.linear1)
    yield from _same(layer.feed_forward.down_proj, twin.linear2)
    for number, residual in enumerate(layer.residuals, start=1):
        yield from _same(residual.norm, getattr(twin, f"norm{number}"))


def _same(mine: nn.Module, yours: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    yield mine.weight, yours.weight
    if mine.bias is not None:
        yield mine.bias, yours.bias
