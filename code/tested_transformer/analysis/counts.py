"""What a Transformer costs, part by part: parameters, FLOPs, bytes kept for the backward pass.

Each cost is counted twice: on paper from the sizes (`count_...`), and on a running model
(`measure_...`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from ..bounds import NonNegativeInt, check_known
from ..layers.multi_head import MultiHeadAttention
from ..models.transformer import Transformer, TransformerConfig
from ..shapes import checked

__all__ = [
    "Counts",
    "count_activations",
    "count_flops",
    "count_parameters",
    "measure_activations",
    "measure_flops",
    "measure_parameters",
    "side_by_side",
]

# Part of the model: the names of the modules that belong to it.
PARTS = {
    "embeddings": r"(source|target)_embedding",
    "encoder attention": r"encoder\.layers\.\d+\.attention",
    "encoder feed-forward": r"encoder\.layers\.\d+\.feed_forward",
    "encoder norms": r"encoder\.(layers\.\d+\.residuals\.\d+\.)?norm",
    "decoder self-attention": r"decoder\.layers\.\d+\.attention",
    "decoder cross-attention": r"decoder\.layers\.\d+\.cross_attention",
    "decoder feed-forward": r"decoder\.layers\.\d+\.feed_forward",
    "decoder norms": r"decoder\.(layers\.\d+\.residuals\.\d+\.)?norm",
    "output": r"output",
}


@dataclass(frozen=True)
class Counts:
    """A number for each part of a model, and their sum; printed as a table."""

    unit: str
    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        """The sum over the parts."""
        return sum(self.parts.values())

    def __getitem__(self, part: str) -> int:
        return self.parts[part]

    def __repr__(self) -> str:
        rows = [*self.parts.items(), ("total", self.total)]
        left, right = max(len(name) for name, _ in rows), max(len(f"{n:,}") for _, n in rows)
        shares = [f"{n / max(self.total, 1):6.1%}" for _, n in rows]
        cells = zip(rows, shares, strict=True)
        lines = [f"{name:{left}}  {n:>{right},}  {s}" for (name, n), s in cells]
        return "\n".join([f"{self.unit}:", *lines])


def part_of(name: str) -> str | None:
    """The part that a module or parameter of a Transformer belongs to, by its name.

    >>> part_of("decoder.layers.3.cross_attention.query.weight")
    'decoder cross-attention'
    """
    return next((p for p, names in PARTS.items() if re.match(rf"{names}(\.|$)", name)), None)


# --- Parameters -----------------------------------------------------------------------------------


@checked
def count_parameters(config: TransformerConfig) -> Counts:
    """How many numbers training may change, from the sizes alone; a shared table counts once.

    attention      4 D^2 + 4 D       query, key, value and output, each D x D with a bias
    feed-forward   2 D F + F + D     with a gate 3 D F + 2 F + D
    norm           2 D               scale and shift; D without a shift: RMSNorm, or without bias
    embeddings     V D               one table for both languages, or one each
    output         0                 tied to the table; else V D

    Shapes: a configuration -> Counts, the sum over all layers.
    Raises: TypeError if config is no TransformerConfig.
    Source: Vaswani et al. 2017, section 3 and table 3.

    >>> count_parameters(TransformerConfig()).total
    63082496
    """
    width, wide, vocab = config.d_model, config.d_ff, config.output_vocab
    attention = 4 * width**2 + 4 * width * config.bias
    maps = _maps(config)
    feed_forward = maps * width * wide + config.bias * ((maps - 1) * wide + width)
    norm = width * (1 + (config.norm == "layer" and config.bias))
    encoder, decoder = config.num_encoder_layers, config.num_decoder_layers
    tables = config.source_vocab + (0 if config.target_vocab is None else config.target_vocab)
    learned = 2 * width if config.positions == "learned" else 0
    places = learned and learned * (config.max_length + config.position_offset)
    last = norm * config.final_norm
    parts = {
        "embeddings": tables * width + places + 2 * norm * config.embedding_norm,
        "encoder attention": encoder * attention,
        "encoder feed-forward": encoder * feed_forward,
        "encoder norms": encoder * 2 * norm + last,
        "decoder self-attention": decoder * attention,
        "decoder cross-attention": decoder * attention,
        "decoder feed-forward": decoder * feed_forward,
        "decoder norms": decoder * 3 * norm + last,
        "output": config.head * vocab * (width * (not config.tied_output) + config.output_bias),
    }
    return Counts("parameters", parts)


@checked
def measure_parameters(model: Transformer) -> Counts:
    """The same, counted on a model, parameter by parameter; on the meta device it needs no memory.

    Shapes: a model -> Counts.
    Raises: TypeError if model is no Transformer.
    Source: torch's nn.Module.named_parameters, which names a shared parameter once.
    """
    parts = dict.fromkeys(PARTS, 0)
    for name, parameter in model.named_parameters():
        parts[part_of(name)] += parameter.numel()
    return Counts("parameters", parts)


# --- FLOPs ----------------------------------------------------------------------------------------


@checked
def count_flops(
    config: TransformerConfig,
    source_length: NonNegativeInt,
    target_length: NonNegativeInt,
    batch: NonNegativeInt = 1,
) -> Counts:
    """FLOPs of the matrix products of one forward pass: two, multiply and add, for each product.

    S and L are the lengths of source and target, F is d_ff. For one sample and one layer:

    self-attention    8 n D^2 + 4 n^2 D              n is S or L: four maps, then scores and mixing
    cross-attention   4 L D^2 + 4 S D^2 + 4 L S D    query and output map L tokens, key and value S
    feed-forward      4 n D F                        with a gate 6 n D F
    output            2 L D V

    What is no matrix product (softmax, norms, bends, sums) is left out, as torch's counter does. A
    causal mask saves nothing here: the formula multiplies first and hides afterwards. The backward
    pass takes about twice as many again.

    Shapes: sizes -> Counts, the sum over all layers and samples.
    Raises: TypeError or ValueError that name the argument.
    Source: Vaswani et al. 2017, table 1; Kaplan et al. 2020, section 2.1, for the factor of two.
    """
    s, l = source_length, target_length  # noqa: E741
    width, wide = config.d_model, config.d_ff
    encoder = batch * config.num_encoder_layers
    decoder = batch * config.num_decoder_layers
    square, maps = width**2, _maps(config)
    parts = dict.fromkeys(PARTS, 0) | {
        "encoder attention": encoder * (8 * s * square + 4 * s * s * width),
        "encoder feed-forward": encoder * 2 * maps * s * width * wide,
        "decoder self-attention": decoder * (8 * l * square + 4 * l * l * width),
        "decoder cross-attention": decoder * (4 * (l + s) * square + 4 * l * s * width),
        "decoder feed-forward": decoder * 2 * maps * l * width * wide,
        "output": config.head * batch * 2 * l * width * config.output_vocab,
    }
    return Counts("FLOPs", parts)


@checked
def measure_flops(
    model: Transformer, source: Int[Tensor, "B S"], target: Int[Tensor, "B L"]
) -> Counts:
    """The same by torch's counter, which watches a real forward pass.

    The attention runs by the plain backend meanwhile: the counter does not see into the fused
    kernel on a processor. Tensors on the meta device do, and cost nothing.

    Shapes: a model, ids (B, S) and (B, L) -> Counts.
    Raises: TypeError if model is no Transformer.
    Source: torch.utils.flop_counter.
    """
    with _backend(model, "plain"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(source, target)
    parts = dict.fromkeys(PARTS, 0)
    for name, counts in counter.get_flop_counts().items():
        path = name.partition(".")[2]
        part = part_of(path)
        if part is not None and part_of(path.rpartition(".")[0]) is None:  # the outermost of a part
            parts[part] += sum(counts.values())
    return Counts("FLOPs", parts)


# --- Activations ----------------------------------------------------------------------------------


@checked
def count_activations(
    config: TransformerConfig,
    source_length: NonNegativeInt,
    target_length: NonNegativeInt,
    batch: NonNegativeInt = 1,
) -> Counts:
    """Bytes of the float32 numbers that a training step keeps for the backward pass.

    A number counts once, with the part that first needs it again. F is d_ff. For each token:

    self-attention    5 D + H    its input, query, key, value, heads; from the kernel one a head
    cross-attention   3 D + H    its input, query, heads; and for each source token 2 D: key, value
    (first layer)     D          for each source token: what the encoder gives, once for all layers
    feed-forward      D + F      its input and the wide numbers (GELU: D + 2 F, gated: D + 4 F)
    norm              D + 2      its input, mean and root
    output            D + V      its input, and the log-probabilities that cross-entropy keeps
    embeddings        2          the token's id, 8 bytes

    Without dropout and masks, with the fused attention, which keeps no weights. Parameters, their
    gradients and the optimizer's numbers come on top and do not grow with the batch.

    Shapes: sizes -> Counts, in bytes.
    Raises: TypeError or ValueError that name the argument; ValueError for learned positions and
        RMSNorm, for which there is no formula here.
    Source: Korthikanti et al. 2023, section 4, in the same spirit for half precision.
    """
    s, l = source_length, target_length  # noqa: E741
    check_known("config", config, {"positions": ("sinusoidal", "none"), "norm": ("layer",)})
    width, heads = config.d_model, config.num_heads
    encoder, decoder = config.num_encoder_layers, config.num_decoder_layers
    wide = {"relu": 1, "swiglu": 4}.get(config.activation, 2) * config.d_ff
    norm, last = width + 2, config.final_norm
    parts = {
        "embeddings": (s + l) * (2 + norm * config.embedding_norm),
        "encoder attention": encoder * s * (5 * width + heads),
        "encoder feed-forward": encoder * s * (width + wide),
        "encoder norms": (encoder * 2 + last) * s * norm,
        "decoder self-attention": decoder * l * (5 * width + heads),
        "decoder cross-attention": decoder * (l * (3 * width + heads) + s * 2 * width) + s * width,
        "decoder feed-forward": decoder * l * (width + wide),
        "decoder norms": (decoder * 3 + last) * l * norm,
        "output": config.head * l * (width + config.output_vocab),
    }
    return Counts("bytes", {part: 4 * batch * count for part, count in parts.items()})


@checked
def measure_activations(
    model: Transformer, source: Int[Tensor, "B S"], target: Int[Tensor, "B L"]
) -> Counts:
    """The same by torch's hooks on what autograd saves, in one forward pass with cross-entropy.

    Dropout is off meanwhile. Memory that several tensors share counts once; parameters, which are
    there anyway, do not count, nor do the targets and single numbers.

    Shapes: a model, ids (B, S) and (B, L) -> Counts, in bytes.
    Raises: TypeError if model is no Transformer.
    Source: torch.autograd.graph.saved_tensors_hooks.
    """
    training, inside = model.training, ["output"]  # the loss belongs to the output
    known = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: list[Tensor] = []  # alive until the end, so that no memory is used twice
    parts = dict.fromkeys(PARTS, 0)

    def save(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if tensor.ndim and place not in known:
            known.add(place)
            kept.append(tensor)
            parts[inside[-1]] += tensor.untyped_storage().nbytes()
        return tensor

    answers = target.flatten().clone()
    known.add(answers.untyped_storage().data_ptr())
    hooks = torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor)
    with ExitStack() as stack:
        stack.callback(model.train, training)
        stack.enter_context(_watched(model.eval(), inside))
        stack.enter_context(hooks)
        loss = cross_entropy(model(source, target).flatten(0, 1), answers, reduction="sum")
    del loss
    return Counts("bytes", parts)


# --- Helpers --------------------------------------------------------------------------------------


def side_by_side(**columns: Counts) -> str:
    """Several counts as one table, a line for each part.

    >>> small = TransformerConfig(9, d_model=4, num_heads=1)
    >>> print(side_by_side(small=count_parameters(small)).splitlines()[1])
    embeddings                  36
    """
    counts = list(columns.values())
    rows = [["", *columns]]
    rows += [[part, *(f"{each[part]:,}" for each in counts)] for part in PARTS]
    rows += [["total", *(f"{each.total:,}" for each in counts)]]
    sides = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *cells in rows:
        cells = [f"{cell:>{side}}" for cell, side in zip(cells, sides[1:], strict=True)]
        lines.append("  ".join([f"{name:{sides[0]}}", *cells]))
    return "\n".join(lines)


def _maps(config: TransformerConfig) -> int:
    """How many matrices a feed-forward network has."""
    return 3 if config.activation == "swiglu" else 2


@contextmanager
def _backend(model: nn.Module, name: str) -> Iterator[None]:
    layers = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    before = [layer.backend for layer in layers]
    try:
        for layer in layers:
            layer.backend = name
        yield
    finally:
        for layer, backend in zip(layers, before, strict=True):
            layer.backend = backend


@contextmanager
def _watched(model: nn.Module, inside: list[str]) -> Iterator[None]:
    """While open, the last entry of `inside` is the part of the model that is at work."""
    handles = []
    for name, module in model.named_modules():
        part = part_of(name)
        if part is not None:
            enter = lambda *_, part=part: inside.append(part)  # noqa: E731
            handles.append(module.register_forward_pre_hook(enter))
            handles.append(module.register_forward_hook(lambda *_: inside.pop() and None))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
