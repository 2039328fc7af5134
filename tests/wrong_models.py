"""A small decoder that keeps the contract, and wrong ones: each differs by a few lines and names what it breaks.

The right one has what today's decoders have: grouped-query attention, rotary positions, a sliding window
and a cache for it, a learned sink, RMS norms, a gated feed-forward network, padding masks and a tied
output. A wrong one replaces one method. Where a mistake was seen in public, `seen` says where.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tested_transformer.models.transformer import Transformer, TransformerConfig
from tested_transformer.specs.adapters import Model, OwnTransformer

VOCAB, WIDTH, HEADS, GROUPS, LAYERS, WINDOW = 23, 16, 4, 2, 2, 4


class Cache:
    """Keys and values of each layer, as far as the window reaches, and how many tokens were read."""

    def __init__(self) -> None:
        self.layers: list[tuple[Tensor, Tensor] | None] = [None] * LAYERS
        self.seen = 0


class Layer(nn.Module):
    """Attention and feed-forward network, pre-norm."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, size = number, WIDTH // HEADS
        self.query, self.output = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.key, self.value = nn.Linear(WIDTH, GROUPS * size), nn.Linear(WIDTH, GROUPS * size)
        self.sink = nn.Parameter(torch.randn(HEADS))
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH, eps=1e-6) for _ in range(2))
        self.up, self.gate, self.down = (
            nn.Linear(*s) for s in ((WIDTH, 24), (WIDTH, 24), (24, WIDTH))
        )
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor, cache: Cache | None) -> Tensor:
        x = x + self.dropout(self.attend(self.normalize(x, 0), positions, mask, cache))
        return x + self.dropout(self.think(self.normalize(x, 1)))

    def normalize(self, x: Tensor, which: int) -> Tensor:
        return self.norms[which](x)

    def think(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))

    def attend(self, x: Tensor, positions: Tensor, mask: Tensor, cache: Cache | None) -> Tensor:
        query, key, value = (self.heads(part(x)) for part in (self.query, self.key, self.value))
        query, key = self.rotate(query, positions), self.rotate(key, positions)
        if cache is not None:
            key, value = self.remember(cache, key, value)
        scores = query @ self.spread(key).mT * query.shape[-1] ** -0.5  # B H L S
        allowed = self.allowed(*scores.shape[-2:], mask)
        weights = self.weights(scores.masked_fill(~allowed, -torch.inf))
        return self.output((weights @ self.spread(value)).transpose(1, 2).flatten(2))

    def heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)

    def spread(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(HEADS // GROUPS, dim=1)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        angles = self.angles(positions, x.shape[-1] // 2, x.dtype)  # B L d/2
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def angles(self, positions: Tensor, pairs: int, dtype: torch.dtype) -> Tensor:
        rates = 100.0 ** -(torch.arange(pairs) / pairs)
        return (positions[..., None].float() * rates)[:, None]

    def remember(self, cache: Cache, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        old = cache.layers[self.number]
        if old is not None:
            key, value = (torch.cat(pair, dim=2) for pair in zip(old, (key, value), strict=True))
        cache.layers[self.number] = self.kept(key), self.kept(value)
        return key, value

    def kept(self, past: Tensor) -> Tensor:
        return past[:, :, -(WINDOW - 1) :]  # a later token sees so many, and itself

    def allowed(self, length: int, keys: int, mask: Tensor) -> Tensor:
        back = torch.arange(length)[:, None] + keys - length - torch.arange(keys)
        return ((back >= 0) & (back < WINDOW)) & mask[..., -keys:]

    def weights(self, scores: Tensor) -> Tensor:
        sink = self.sink[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1]


class Decoder(nn.Module):
    """The right one."""

    layer, recompute = Layer, False

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(self.layer(number) for number in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH, eps=1e-6)
        self.output = nn.Linear(WIDTH, VOCAB, bias=False)
        self.output.weight = self.table.weight

    def forward(
        self, ids: Tensor, mask: Tensor | None = None, positions: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:  # fmt: skip
        seen = 0 if cache is None else cache.seen
        if mask is None:
            mask = torch.ones(len(ids), seen + ids.shape[1], dtype=torch.bool)
        visible = mask[:, None, None]  # B 1 1 S
        if positions is None:
            positions = self.positions(mask, ids.shape[1], cache)
        else:
            visible = visible & self.same_text(positions)
        x = self.embed(ids)
        for layer in self.layers:
            x = self.run(layer, x, positions, visible, cache)
        if cache is not None:
            cache.seen += ids.shape[1]
        return self.output(self.norm(x))

    def embed(self, ids: Tensor) -> Tensor:
        return self.table(ids)

    def same_text(self, positions: Tensor) -> Tensor:
        """Packed texts: each begins at position 0."""
        texts = (positions == 0).cumsum(1)
        return (texts[:, :, None] == texts[:, None])[:, None]

    def run(self, layer: Layer, *inputs: Tensor | Cache | None) -> Tensor:
        return checkpoint(layer, *inputs, use_reentrant=False) if self.recompute else layer(*inputs)

    def positions(self, mask: Tensor, length: int, cache: Cache | None) -> Tensor:
        return (mask.long().cumsum(1) - 1).clamp(min=0)[:, -length:]


class Adapter(Model):
    """How the contract calls it."""

    window = WINDOW

    def __init__(self, module: Decoder) -> None:
        super().__init__(module, VOCAB)

    def logits(
        self, ids: Tensor, mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Tensor:
        return self.module(ids, mask, position_ids)

    def packed(self, texts: Sequence[Tensor]) -> Tensor:
        positions = torch.cat([torch.arange(text.shape[1]) for text in texts])[None]
        return self.module(torch.cat(list(texts), dim=1), None, positions)

    def checkpointed(self) -> Model:
        return self.copied(lambda module: setattr(module, "recompute", True))

    def new_cache(self) -> Cache:
        return Cache()

    def step(self, ids: Tensor, cache: Cache, mask: Tensor | None = None) -> tuple[Tensor, Cache]:
        return self.module(ids, mask, None, cache), cache

    def reorder(self, cache: Cache, rows: Tensor) -> Cache:
        cache.layers = [(key[rows], value[rows]) for key, value in cache.layers]
        return cache

    @torch.no_grad()
    def generate(self, ids: Tensor, mask: Tensor, max_new: int, eos: int | None) -> Tensor:
        new, done = ids[:, :0], torch.zeros(len(ids), dtype=torch.bool)
        cache, chunk = self.new_cache(), ids
        for _ in range(max_new):
            logits, cache = self.step(chunk, cache)
            chunk = self.choose(logits[:, -1]).masked_fill(done, int(eos == 0))[:, None]
            new = torch.cat([new, chunk], dim=1)
            done = done | (chunk[:, 0] == eos) if eos is not None else done
        return new

    def choose(self, logits: Tensor) -> Tensor:
        return logits.argmax(-1)


class Wrong(NamedTuple):
    """A wrong model: what it breaks, and where it was seen."""

    name: str
    breaks: str
    make: Callable[[], Model]
    seen: str


WRONG: list[Wrong] = []


def right_model() -> Model:
    """The right one, with the numbers of a fixed seed."""
    return _seeded(lambda: Adapter(Decoder()))


class DropsByFunction(Layer):
    """Dropout as nanoGPT has it: by a function, with a float that is called otherwise."""

    rate = 0.3

    def weights(self, scores: Tensor) -> Tensor:
        return functional.dropout(super().weights(scores), self.rate, self.training)

    def think(self, x: Tensor) -> Tensor:
        rows = x[:, None]
        drop = self.rate if self.training else 0.0
        near = functional.scaled_dot_product_attention(rows, rows, rows, None, drop, True)
        return super().think(
            x
            + functional.scaled_dot_product_attention(
                rows, rows, near, dropout_p=drop, is_causal=True
            )[:, 0]
        )


def model_that_drops_by_function() -> Model:
    """A right one in all that is asked of training."""
    return _seeded(lambda: Adapter(type("Decoder", (Decoder,), {"layer": DropsByFunction})()))


def _seeded(make: Callable[[], Model]) -> Model:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = make()
        with torch.no_grad():  # far enough from zero for every part to count
            for parameter in model.module.parameters():
                parameter.mul_(1.5).add_(0.1 * torch.randn_like(parameter))
    return model


def wrong(name: str, breaks: str, seen: str = "") -> Callable[[type], type]:
    """Say what the class below breaks; it is a layer, a decoder or an adapter."""

    def note(part: type) -> type:
        def make() -> Model:
            if issubclass(part, Layer):
                return Adapter(type("Decoder", (Decoder,), {"layer": part})())
            return Adapter(part()) if issubclass(part, Decoder) else part(Decoder())

        WRONG.append(Wrong(name, breaks, lambda: _seeded(make), seen))
        return part

    return note


CACHED, ROWS, PADDED = (
    "cached = uncached",
    "the cache follows its rows",
    "cached = uncached, with padding",
)
SINGLE, MASKED, LEAK = "batch = single", "masked tokens do not matter", "no future leak"
LEARNS, ORDER, EFFECT = "every parameter learns", "order matters", "the mask has an effect"
LARGE, EVAL, TRAIN = (
    "large values stay finite",
    "evaluation is deterministic",
    "training differs by dropout alone",
)
LOW, SAVED, WAYS = "low precision agrees", "saved and loaded", "all ways to compute agree"
GREEDY, INPUTS = "greedy generation is argmax", "inputs stay"
PACKED, SOURCE = "packed = separate", "padding of the source does not matter"
GIVEN, RECOMPUTED = "position IDs have an effect", "checkpointing changes no gradient"

# --- The cache ------------------------------------------------------------------------------------


@wrong("the offset counts the prompt twice", CACHED, "skyzh/tiny-llm PR 46")
class OffsetTwice(Decoder):
    def positions(self, mask, length, cache):
        seen = 0 if cache is None else 2 * cache.seen
        return (seen + torch.arange(length)).expand(len(mask), -1)


@wrong("every decoded token stands at position 0", CACHED, "Blaizzy/mlx-vlm 1983")
class AlwaysZero(Decoder):
    def positions(self, mask, length, cache):
        return super().positions(mask[:, -length:], length, cache)


@wrong("the counter moves in the first layer", CACHED, "fla-org/flash-linear-attention 766")
class CounterMoves(Layer):
    def rotate(self, x, positions):
        return super().rotate(x, positions + (self.number > 0) * (positions > 0))

    def attend(self, x, positions, mask, cache):
        if self.number and cache is not None and cache.seen:
            return super().attend(x, positions + 1, mask, cache)
        return Layer.attend(self, x, positions, mask, cache)


@wrong("the query is rotated before the cache is joined", CACHED, "RobertCsordas/moeut PR 6")
class QueryEarly(Layer):
    def attend(self, x, positions, mask, cache):
        self.start = positions[:, :1] if cache is not None else 0
        return super().attend(x, positions, mask, cache)

    def rotate(self, x, positions):
        return super().rotate(x, positions - self.start if x.shape[1] == HEADS else positions)


@wrong(
    "after eviction the position is the number of keys kept", CACHED, "rajveer43/VeloxQuant-MLX 171"
)
class PositionKept(Decoder):
    def positions(self, mask, length, cache):
        kept = 0 if cache is None else min(cache.seen, WINDOW - 1)
        return (kept + torch.arange(length)).expand(len(mask), -1)


@wrong("the sliding cache rolls one step early", CACHED, "huggingface/transformers 37574")
class RollsEarly(Layer):
    def kept(self, past):
        return past[:, :, -(WINDOW - 2) :]


@wrong("a chunk longer than the window loses keys", CACHED, "lablup/mlxcel 413")
class LongChunk(Layer):
    def remember(self, cache, key, value):
        key, value = super().remember(cache, key, value)
        return key[:, :, -WINDOW:], value[:, :, -WINDOW:]

    def allowed(self, length, keys, mask):
        if keys < length:
            return super().allowed(length, length, mask)[..., -keys:]
        return super().allowed(length, keys, mask)


@wrong("a wrapped ring buffer is read unwrapped", CACHED, "ollama/ollama PR 14912")
class Unwrapped(Layer):
    def kept(self, past):
        kept = super().kept(past)
        return kept.roll(1, dims=2) if past.shape[2] > WINDOW else kept


@wrong("the window never evicts and the mask relies on it", CACHED, "rajveer43/VeloxQuant-MLX 274")
class NeverEvicts(Layer):
    def kept(self, past):
        return past

    def allowed(self, length, keys, mask):
        if keys > length:
            back = torch.arange(length)[:, None] + keys - length - torch.arange(keys)
            return (back >= 0) & mask[..., -keys:]
        return super().allowed(length, keys, mask)


@wrong("the buffer of the first text is still there", CACHED, "rasbt/LLMs-from-scratch PR 925")
class NotReset(Adapter):
    shared: Cache | None = None

    def new_cache(self):
        self.shared = self.shared or Cache()
        return self.shared


@wrong("the causal mask is aligned top-left", CACHED)
class TopLeft(Layer):
    def allowed(self, length, keys, mask):
        back = torch.arange(length)[:, None] - torch.arange(keys)
        return (back >= 0) & (back < WINDOW) & mask[..., -keys:]


@wrong("keys are cached, values are not", CACHED)
class OldValues(Layer):
    def remember(self, cache, key, value):
        key, joined = super().remember(cache, key, value)
        return key, functional.pad(value, (0, 0, joined.shape[2] - value.shape[2], 0))


@wrong(
    "a cached convolution starts anew with every chunk",
    CACHED,
    "fla-org/flash-linear-attention 1140",
)
class ConvolutionAnew(Decoder):
    def embed(self, ids):
        x = super().embed(ids)
        return x + 0.5 * functional.pad(x, (0, 0, 1, 0))[:, :-1]


@wrong("reordering moves the keys alone", ROWS)
class KeysAlone(Adapter):
    def reorder(self, cache, rows):
        cache.layers = [(key[rows], value) for key, value in cache.layers]
        return cache


@wrong("reordering moves the last layer alone", ROWS)
class LastLayerAlone(Adapter):
    def reorder(self, cache, rows):
        key, value = cache.layers[-1]
        cache.layers[-1] = key[rows], value[rows]
        return cache


@wrong("padding of earlier chunks is forgotten", PADDED)
class PaddingForgotten(Adapter):
    def step(self, ids, cache, mask=None):
        if mask is not None:
            mask = torch.cat([torch.ones_like(mask[:, : cache.seen]), mask[:, cache.seen :]], dim=1)
        return super().step(ids, cache, mask)


@wrong("a decoded token's position counts padding", PADDED, "huggingface/transformers 21080")
class CountsPaddingLater(Decoder):
    def positions(self, mask, length, cache):
        if cache is not None and cache.seen:
            return torch.arange(cache.seen, cache.seen + length).expand(len(mask), -1)
        return super().positions(mask, length, cache)


# --- Padding --------------------------------------------------------------------------------------


@wrong("positions count padding, in a learned way", SINGLE, "huggingface/transformers 3167")
class CountsPadding(Decoder):
    def embed(self, ids):
        places = torch.arange(ids.shape[1]).float()[:, None] * 0.1
        return super().embed(ids) + places.to(self.table.weight.dtype)


@wrong("one row's positions serve the whole batch", SINGLE, "unslothai/unsloth PR 4078")
class SharedPositions(Decoder):
    def positions(self, mask, length, cache):
        own = super().positions(mask, length, cache)
        stretch = 1.0 + 0.5 * torch.arange(own.shape[1])
        return (own[:1] * stretch).expand_as(own)


@wrong("the mask argument is not used", EFFECT, "facebookresearch/pytext 1436")
class MaskUnused(Layer):
    def allowed(self, length, keys, mask):
        return super().allowed(length, keys, torch.ones_like(mask))


@wrong("the second layer drops the mask", SINGLE)
class SecondDrops(Layer):
    def allowed(self, length, keys, mask):
        return super().allowed(length, keys, torch.ones_like(mask) if self.number else mask)


@wrong("the mask is inverted", SINGLE, "allenai/longformer 254")
class Inverted(Layer):
    def allowed(self, length, keys, mask):
        inverted = ~mask if not bool(mask.all()) else mask
        return super().allowed(length, keys, inverted)


@wrong("masked scores get a number that is not small enough", MASKED)
class NotSmallEnough(Layer):
    def weights(self, scores):
        keep = torch.isneginf(scores)
        causal = torch.ones_like(keep[0, 0]).triu(keep.shape[-1] - keep.shape[-2] + 1)
        return super().weights(scores.masked_fill(keep & ~causal, -8.0))


@wrong("a query whose keys are all masked is NaN", SINGLE)
class NaNRow(Layer):
    def weights(self, scores):
        return scores.softmax(-1) + 0 * super().weights(scores)


@wrong("a scale is taken over the whole batch", SINGLE, "mlpen/Nystromformer 3")
class BatchScale(Layer):
    def weights(self, scores):
        finite = scores.masked_fill(torch.isneginf(scores), 0.0)
        return super().weights(scores / (1 + 0.1 * finite.abs().amax()))


@wrong("a row's answer depends on its neighbor's length", SINGLE, "ml-explore/mlx-lm PR 1736")
class NeighborLength(Decoder):
    def embed(self, ids):
        return super().embed(ids) * (1 + ids.shape[1] / 100)


@wrong("experts have room for so many tokens of the batch", SINGLE)
class Capacity(Layer):
    def think(self, x):
        flat = x.flatten(0, 1)
        room = torch.arange(len(flat)) < 10
        return (super().think(flat) * room[:, None]).view_as(x)


# --- The future -----------------------------------------------------------------------------------


@wrong("causal is skipped when no mask is passed", LEAK, "facebookresearch/xformers 103")
class SkippedWithoutMask(Layer):
    def allowed(self, length, keys, mask):
        if bool(mask.all()):
            return torch.ones(length, keys, dtype=torch.bool) & mask[..., -keys:]
        return super().allowed(length, keys, mask)


@wrong("keys are projected along time under a causal mask", LEAK, "tatp22/linformer-pytorch 16")
class ProjectedKeys(Layer):
    def spread(self, x):
        wide = super().spread(x)
        return wide + 0.2 * wide.mean(2, keepdim=True)


@wrong("landmarks are pooled over the whole text", LEAK, "facebookresearch/xformers 751")
class Landmarks(Layer):
    def think(self, x):
        return super().think(x + 0.1 * x.amax(1, keepdim=True))


@wrong("the memory is written before it is read", LEAK, "dingo-actual/infini-transformer 4")
class WrittenFirst(Layer):
    def think(self, x):
        segments = functional.pad(x, (0, 0, 0, -x.shape[1] % 4)).unflatten(1, (-1, 4)).sum(2)
        memory = segments.cumsum(1).repeat_interleave(4, dim=1)[:, : x.shape[1]]
        return super().think(x + 0.1 * memory)


@wrong("the mask is off by one", LEAK)
class OffByOne(Layer):
    def allowed(self, length, keys, mask):
        back = torch.arange(length)[:, None] + keys - length - torch.arange(keys)
        return (back >= -1) & (back < WINDOW) & mask[..., -keys:]


@wrong("a norm runs along time", LEAK)
class NormAlongTime(Layer):
    def normalize(self, x, which):
        return super().normalize(x / (1 + x.std(1, keepdim=True, correction=0)), which)


@wrong("a convolution is padded on both sides", LEAK)
class BothSides(Decoder):
    def embed(self, ids):
        x = super().embed(ids)
        return x + 0.3 * functional.pad(x, (0, 0, 0, 1))[:, 1:]


@wrong("only a gradient leaks", LEAK)
class GradientLeak(Decoder):
    def embed(self, ids):
        x = super().embed(ids)
        ahead = functional.pad(x, (0, 0, 0, 1))[:, 1:]
        return x + ahead - ahead.detach()


# --- What must count ------------------------------------------------------------------------------


@wrong("the sink is dropped", LEARNS, "NVIDIA/TransformerEngine PR 3551")
class SinkDropped(Layer):
    def weights(self, scores):
        empty = torch.isneginf(scores).all(-1, keepdim=True)
        return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)


@wrong("keys are detached", LEARNS)
class DetachedKeys(Layer):
    def spread(self, x):
        return super().spread(x.detach())


@wrong("a part is made and never called", LEARNS, "allenai/longformer 28")
class NeverCalled(Layer):
    def __init__(self, number):
        super().__init__(number)
        self.query_global = nn.Linear(WIDTH, WIDTH)


@wrong("where() hides the root of 0, and its gradient is NaN", LEARNS)
class RootOfZero(Layer):
    def think(self, x):
        up = self.up(x)
        return self.down(torch.where(up > 0, up.clamp(min=0).sqrt(), 0.0))


@wrong("no positions reach the model", ORDER)
class NoPositions(Layer):
    def rotate(self, x, positions):
        return x

    def allowed(self, length, keys, mask):  # the window would tell the order, too
        back = torch.arange(length)[:, None] + keys - length - torch.arange(keys)
        return (back >= 0) & mask[..., -keys:]

    def attend(self, x, positions, mask, cache):  # one layer alone looks back: sets stay sets
        return super().attend(x, positions, mask, cache) if not self.number else 0 * x


# --- Numbers --------------------------------------------------------------------------------------


@wrong("the exponential has no maximum subtracted", LARGE, "pytorch/executorch PR 18407")
class NoMaximum(Layer):
    def weights(self, scores):
        return scores.exp() / (scores.exp().sum(-1, keepdim=True) + self.sink[:, None, None].exp())


@wrong("a sum that can be zero is divided by", LARGE)
class ZeroSum(Layer):
    def weights(self, scores):
        bound = scores.clamp(min=-80.0).amax((0, 1, 2, 3), keepdim=True)
        powers = (scores - bound).exp()
        return powers / (powers.sum(-1, keepdim=True) + 0 * self.sink[:, None, None])


@wrong("random blocks are drawn in evaluation, too", EVAL, "huggingface/transformers 23055")
class RandomInEval(Layer):
    def weights(self, scores):
        return super().weights(scores + 0.01 * torch.randn(scores.shape[-1]))


@wrong("dropout ignores the mode", EVAL)
class AlwaysDrops(Layer):
    def think(self, x):
        return functional.dropout(super().think(x), 0.1)


@wrong("a branch is skipped in training", TRAIN)
class SkippedInTraining(Layer):
    def think(self, x):
        return 0 * x if self.training and self.number else super().think(x)


@wrong("statistics of the batch in training", TRAIN)
class BatchStatistics(Layer):
    def normalize(self, x, which):
        scale = x.std((0, 1), correction=0) + 0.1 if self.training else 1.0
        return super().normalize(x / scale, which)


@wrong("angles are computed in the model's dtype", LOW, "huggingface/transformers PR 29285")
class AnglesLow(Layer):
    def angles(self, positions, pairs, dtype):
        rates = 100.0 ** -(torch.arange(pairs) / pairs)
        return (positions[..., None].to(dtype) * rates.to(dtype))[:, None]


@wrong("embeddings are rounded to whole numbers in low precision", LOW)
class WholeNumbers(Decoder):
    def embed(self, ids):
        x = super().embed(ids)
        return x if x.dtype != torch.bfloat16 else x.round()


# --- Around the model -----------------------------------------------------------------------------


@wrong("a learned tensor is no parameter", SAVED)
class Unregistered(Decoder):
    def __init__(self):
        super().__init__()
        self.scale = [torch.randn(WIDTH)]

    def __deepcopy__(self, memo):
        other = super().__reduce_ex__(4)
        made = type(self)()
        made.load_state_dict(self.state_dict())
        made.train(self.training).to(self.table.weight.dtype)
        del other
        return made

    def embed(self, ids):
        return super().embed(ids) * self.scale[0].to(self.table.weight.dtype)


@wrong("loading unties the output", SAVED)
class Untied(Adapter):
    def saved_and_loaded(self):
        other = super().saved_and_loaded()
        other.module.output.weight = nn.Parameter(other.module.output.weight.detach().clone())
        return other


@wrong("another kernel scales otherwise", WAYS)
class OtherScale(Adapter):
    def variants(self):
        def change(module):
            for layer in module.layers:
                layer.query.weight.data *= 1.1

        yield "fused", self.copied(change)


@wrong("it goes on after the end", GREEDY)
class GoesOn(Adapter):
    def generate(self, ids, mask, max_new, eos):
        return super().generate(ids, mask, max_new, None)


@wrong("it samples where greedy was asked", GREEDY)
class Samples(Adapter):
    def choose(self, logits):
        return torch.multinomial((0.1 * logits).softmax(-1), 1)[:, 0]


@wrong("one token too few", GREEDY)
class TooFew(Adapter):
    def generate(self, ids, mask, max_new, eos):
        return super().generate(ids, mask, max_new - 1, eos)


@wrong("ids are clamped in place", INPUTS)
class Clamped(Decoder):
    def embed(self, ids):
        return super().embed(ids.clamp_(max=VOCAB // 2))


# --- Several texts in a row, a source, recomputation ----------------------------------------------


@wrong("packed texts attend to each other", PACKED)
class OneText(Decoder):
    def same_text(self, positions):
        return torch.ones(1, dtype=torch.bool)


@wrong("a convolution runs over the border of packed texts", PACKED)
class OverTheBorder(Decoder):
    def embed(self, ids):
        x = super().embed(ids)
        return x + 0.5 * functional.pad(x, (0, 0, 1, 0))[:, :-1]


@wrong("position IDs are accepted and not used", GIVEN)
class IdsUnused(Decoder):
    def same_text(self, positions):
        return torch.ones(1, dtype=torch.bool)

    def run(self, layer, x, positions, *others):
        return super().run(layer, x, torch.arange(x.shape[1])[None], *others)


@wrong("what is recomputed gets other positions", RECOMPUTED)
class OtherPositions(Decoder):
    def run(self, layer, x, positions, *others):
        return super().run(layer, x, 0 * positions if self.recompute else positions, *others)


@wrong("a layer counts its calls, and recomputation is one", RECOMPUTED)
class CountsCalls(Layer):
    calls = 0

    def think(self, x):
        self.calls += 1
        return super().think(x / self.calls)


@wrong("recomputation detaches what goes in", RECOMPUTED)
class Detaches(Decoder):
    def run(self, layer, x, *others):
        return super().run(layer, x.detach() if self.recompute else x, *others)


SMALL = TransformerConfig(
    source_vocab=VOCAB, target_vocab=VOCAB, d_model=WIDTH, num_heads=HEADS, d_ff=24, num_encoder_layers=LAYERS,
    num_decoder_layers=LAYERS, pad_id=0,
)  # fmt: skip


def right_translator() -> Model:
    """The package's Transformer, which reads a source."""
    return _seeded(lambda: OwnTransformer(Transformer(SMALL)))


@wrong("padding of the source is no padding to anybody", SOURCE)
class PaddingRead(OwnTransformer):
    def __init__(self, _):
        super().__init__(Transformer(SMALL))

    def from_source(self, ids, source, mask):
        return self.module(source, ids)


@wrong("cross-attention gets no mask of the source", SOURCE)
class CrossWithoutMask(OwnTransformer):
    def __init__(self, _):
        super().__init__(Transformer(SMALL))

    def from_source(self, ids, source, mask):
        memory = self.module.encode(source.masked_fill(~mask, 0))
        return self.module.decode(ids, memory)
