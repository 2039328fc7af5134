"""Your own model: the parts of a Transformer that a reader wrote, in the places of the package's."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from ..errors import argument_error
from ..exercises import EXERCISES
from ..functional.masks import causal_mask, combine_masks, masked_softmax
from ..functional.scaling import scaled_scores
from ..layers.cache import KeyValueCache, LayerCache
from ..layers.feed_forward import FeedForward
from ..layers.multi_head import MultiHeadAttention, concat_heads, split_heads
from ..layers.norms import LayerNorm
from ..models.transformer import (
    DecoderLayer,
    Embedding,
    Transformer,
    TransformerConfig,
    _sublayer,
    real_tokens,
)
from ..positions.sinusoidal import SinusoidalPositions
from ..specs.judge import judge
from .saved_parts import parts_folder

__all__ = ["Parts", "load_parts"]

# --- What can be a reader's -----------------------------------------------------------------------


def _always(config: TransformerConfig) -> str | None:
    return None


def _unless(field: str, *wanted: Any) -> Callable[[TransformerConfig], str | None]:
    """Serve a configuration whose field has the wanted value; else say what is in the way."""

    def serves(config: TransformerConfig) -> str | None:
        value = getattr(config, field)
        return None if value in wanted else f"not with {field}={value!r}"

    return serves


def _both(*conditions: Callable[[TransformerConfig], str | None]):
    return lambda config: next(filter(None, (serves(config) for serves in conditions)), None)


@dataclass(frozen=True)
class Part:
    """A place in the model, the exercise that fills it, and another that can, if that is not written.

    serves: why this place is not there, or not to be filled, in a configuration; None if it is.
    """

    name: str
    exercise: str
    instead: str | None = None
    serves: Callable[[TransformerConfig], str | None] = _always

    @property
    def exercises(self) -> tuple[str, ...]:
        """Both, the first choice first."""
        return (self.exercise,) if self.instead is None else (self.exercise, self.instead)


UNWRITTEN = "not written yet"
# A new part is a line here, and its exercise's name where the model asks `own` for it, further down.
PARTS = (
    Part("cross-attention", "ch01.attention", serves=_unless("dropout", 0)),
    Part("scores", "ch03.scaled_scores"),
    Part("weights", "ch04.masked_softmax", instead="ch03.softmax"),
    Part("causal mask", "ch04.causal_mask"),
    Part("padding mask", "ch04.padding_mask", serves=lambda c: c.pad_id is None and "no padding"),
    Part("splitting heads", "ch05.split_heads"),
    Part("joining heads", "ch05.contributions"),
    Part("encoder's attention", "ch05.multi_head", serves=_unless("dropout", 0)),
    Part(
        "position vectors", "ch06.sinusoids",
        serves=_both(_unless("positions", "sinusoidal"), _unless("position_layout", "interleaved")),
    ),
    Part("places", "ch06.places"),
    Part("layer norm", "ch07.layer_norm", serves=_unless("norm", "layer")),
    Part(
        "feed-forward network", "ch08.feed_forward",
        serves=_both(_unless("activation", "relu"), _unless("dropout", 0)),
    ),
    Part("embedding", "ch09.embed", serves=_unless("scale_embedding", True)),
    Part("decoder layer", "ch09.decoder_layer", serves=_unless("norm_placement", "post")),
)  # fmt: skip
PART_EXERCISES = {exercise: part for part in PARTS for exercise in part.exercises}


@dataclass(frozen=True)
class Piece:
    """A part and whose it is: the reader's function, or None and the reason for the package's."""

    part: Part
    exercise: str
    function: Callable[..., Any] | None = None
    reason: str = UNWRITTEN
    lost: bool = False  # it was kept, and is of no use now


@dataclass(frozen=True)
class Parts:
    """Whose each part of a model is. Printed, it is a table.

    Made by `load_parts` from the files that `check` kept, or by `Parts.of` from functions at hand.

    Source: chapter 10, "Your own model".
    """

    pieces: tuple[Piece, ...]
    ignored: tuple[str, ...] = ()  # files in the folder that are no parts

    @classmethod
    def of(cls, functions: Mapping[str, Callable[..., Any]]) -> Parts:
        """Judge functions, by the names of their exercises, as `load_parts` judges files.

        Raises: TypeError if something can not be called; ValueError for a name that is no part.
        """
        if not isinstance(functions, Mapping):
            wanted = "a dictionary, exercise: function"
            raise argument_error(TypeError, "functions", type(functions).__name__, wanted)
        for name, function in functions.items():
            if name not in PART_EXERCISES:
                wanted = f"one of {', '.join(PART_EXERCISES)}"
                raise argument_error(ValueError, "functions", repr(name), wanted)
            if not callable(function):
                raise argument_error(TypeError, name, type(function).__name__, "a function")
        return _sorted_out({name: _tried(name, f) for name, f in functions.items()})

    @property
    def own(self) -> dict[str, Callable[..., Any]]:
        """The reader's functions, by exercise."""
        return {p.exercise: p.function for p in self.pieces if p.function is not None}

    @property
    def lost(self) -> dict[str, str]:
        """Exercises that were kept and are replaced by the package's, and why."""
        return {p.exercise: p.reason for p in self.pieces if p.lost}

    @property
    def summary(self) -> str:
        """One line: "7 of 14 parts are yours"."""
        verb = "is" if len(self.own) == 1 else "are"
        return f"{len(self.own)} of {len(self.pieces)} parts {verb} yours"

    def within(self, config: TransformerConfig) -> Parts:
        """The parts that such a model has a place for; the others are the package's, and say why."""
        pieces = []
        for piece in self.pieces:
            reason = piece.part.serves(config)
            no_place = piece.function is not None and reason
            pieces.append(replace(piece, function=None, reason=reason) if no_place else piece)
        return replace(self, pieces=tuple(pieces))

    def __repr__(self) -> str:
        rows = [("part", "exercise", "whose")]
        for p in self.pieces:
            whose = "the package's" if p.function is None else "yours"
            rows.append((p.part.name, p.exercise, whose))
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        lines = [f"{a:{widths[0]}}  {b:{widths[1]}}  {c}" for a, b, c in rows]
        lines.append(f"{self.summary}.")
        named = [p for p in self.pieces if p.function is None and p.reason != UNWRITTEN]
        lines += [f"{p.exercise}: {p.reason}" for p in named]
        lines += [f"{name}: the name of no part, so it was not run" for name in self.ignored]
        return "\n".join(lines)


# --- From files to parts --------------------------------------------------------------------------


def load_parts(folder: str | Path | None = None) -> Parts:
    """Run the files of the reader's folder, judge each function again, and say whose each part is.

    folder: None is the one in which `check` keeps what passes; without any, all parts are the
    package's. A file runs in a namespace of its own, and only if its name is that of a part. One
    that raises, that is damaged, whose function no longer passes or gives other numbers or gradients
    inside a small model, is named, and the package's part stands in. The code that runs is the
    reader's: one that never ends is not stopped.

    Raises: TypeError if the folder is no path; ValueError if the folder named is not there.
    Source: chapter 10, "Your own model".
    """
    if folder is not None and not isinstance(folder, str | Path):
        raise argument_error(TypeError, "folder", type(folder).__name__, "a path")
    place = parts_folder() if folder is None else Path(folder)
    if folder is not None and not place.is_dir():
        raise argument_error(ValueError, "folder", repr(str(folder)), "a folder that is there")
    if place is None or not place.is_dir():
        return _sorted_out({})
    files = sorted(path for path in place.iterdir() if not path.name.startswith("."))
    parts = {path.stem: path for path in files if _is_part(path)}
    ignored = tuple(p.name for p in files if not _is_part(p) and p.suffix != ".old")
    return _sorted_out({name: _loaded(name, path) for name, path in parts.items()}, ignored)


def _is_part(path: Path) -> bool:
    return path.suffix == ".py" and path.stem in PART_EXERCISES and path.is_file()


def _sorted_out(tried: Mapping[str, Piece], ignored: tuple[str, ...] = ()) -> Parts:
    """For each part the first of its exercises that is the reader's, else the first that was tried."""
    pieces = []
    for part in PARTS:
        found = [tried[name] for name in part.exercises if name in tried]
        good = [piece for piece in found if piece.function is not None]
        pieces.append((good + found + [Piece(part, part.exercise)])[0])
    return Parts(tuple(pieces), ignored)


def _loaded(name: str, path: Path) -> Piece:
    """Run one file; its last function or class is the part."""
    namespace: dict[str, Any] = {"__name__": f"my_transformer.{name.replace('.', '_')}"}
    try:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text, str(path))
        kinds = ast.FunctionDef | ast.ClassDef
        names = [node.name for node in tree.body if isinstance(node, kinds)]
        if not names:
            return _lost(name, "its file holds no function")
        linecache.checkcache(str(path))  # a verdict shows a line: of this text, not of an older one
        exec(compile(text, str(path), "exec", dont_inherit=True), namespace)
        return _tried(name, namespace[names[-1]])
    except (Exception, SystemExit) as error:  # a file may be cut short, or edited half way
        return _lost(name, f"its file fails with {_brief(error)}")


def _tried(name: str, function: Callable[..., Any]) -> Piece:
    """Judge a function as its exercise does, then inside a small model."""
    verdict = judge(EXERCISES[name], function)
    if not verdict.passed:
        why = "not written" if verdict.unwritten else f"{verdict.heading}. {verdict.why}"
        return _lost(name, f"no longer passes: {why}")
    if isinstance(function, type):
        return _lost(name, "right, but a class; a part is a function")
    piece = Piece(PART_EXERCISES[name], name, function, reason="")
    try:
        reason = _misfit(piece)
    except Exception as error:
        reason = f"right, but a model can not use it: {_brief(error)}"
    return piece if reason is None else _lost(name, reason)


def _lost(name: str, reason: str) -> Piece:
    return Piece(PART_EXERCISES[name], name, reason=reason, lost=True)


def _brief(error: BaseException) -> str:
    """An exception in one line."""
    text = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {text}"[:120]


# --- Does it work inside a model? -----------------------------------------------------------------

SMALL = TransformerConfig(
    11, d_model=8, num_heads=2, num_encoder_layers=1, num_decoder_layers=1, dropout=0.0
)
READ = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 0, 0]])  # 0 is padding
WRITTEN = torch.tensor([[1, 3, 4, 5], [0, 1, 6, 7]])


def _misfit(piece: Piece) -> str | None:
    """What is wrong in a small model with this part alone in place: numbers or gradients; or None."""
    wanted, steps = _package_behavior()
    found, own_steps = _behavior(Parts((piece,)))
    if not (_near(wanted[0], found[0]) and _near(wanted[0], own_steps) and _near(steps, own_steps)):
        return "right, but in a model its numbers are not the package's"
    for theirs, mine in zip(wanted[1:], found[1:], strict=True):
        if not _near(theirs, mine):
            return "right, but in a model its gradients are not the package's"
    return None


@cache
def _package_behavior() -> tuple[list[Tensor], Tensor]:
    return _behavior(None)


def _behavior(parts: Parts | None) -> tuple[list[Tensor], Tensor]:
    """Logits and gradients of a small model, and its logits word by word with a cache."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Transformer(SMALL, parts=parts)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape))
    real = real_tokens(WRITTEN, SMALL.pad_id)
    logits = model(READ, WRITTEN)[real]
    total, weights = logits.square().sum(), list(model.parameters())
    gradients = torch.autograd.grad(total, weights, materialize_grads=True)  # 0 where none flows
    with torch.no_grad():
        memory, visible, cache = model.encode(READ), model.padding(READ), model.new_cache()
        ask = partial(model.decode, memory=memory, memory_mask=visible, cache=cache)
        steps = torch.cat([ask(chunk) for chunk in WRITTEN.split(2, dim=1)], dim=1)
    return [logits.detach(), *gradients], steps[real]


def _near(wanted: Tensor, found: Tensor) -> bool:
    """Equal but for the rounding of float32 sums in another order; tests are stricter."""
    slack = 1e-3 * float(wanted.abs().max()) + 1e-5
    return wanted.shape == found.shape and bool(((wanted - found).abs() <= slack).all())


# --- Into the places of the model -----------------------------------------------------------------


def install(model: Transformer, parts: Parts) -> None:
    """Let the reader's functions work in a model that is made, on the weights that it has.

    Names and order of the weights stay, so that checkpoints fit. `model.parts` says what is whose.

    Raises: TypeError unless parts is a Parts.
    """
    if not isinstance(parts, Parts):
        raise argument_error(TypeError, "parts", type(parts).__name__, "what load_parts() gives")
    parts = model.parts = parts.within(model.config)
    own = parts.own
    if "ch04.padding_mask" in own:
        model.padding_mask = partial(_padding_mask, own["ch04.padding_mask"])
    if "ch06.places" in own:
        model.position_ids = partial(_places, own["ch06.places"])
    if "ch04.causal_mask" in own:
        model.decoder.causal_mask = partial(_causal_mask, own["ch04.causal_mask"])
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


def _become(module: torch.nn.Module, kind: type, own: dict[str, Callable[..., Any]]) -> None:
    """The same layer with the same weights, but another forward."""
    module.__class__, module.own = kind, own


def _padding_mask(function: Callable, ids: Tensor, pad_id: int) -> Tensor:
    return function(ids, pad_id)


def _places(function: Callable, real: Tensor) -> Tensor:
    return function(real.cpu()).to(real.device)


def _causal_mask(function: Callable, queries: int, keys: int, *, device: Any = None) -> Tensor:
    return function(queries, keys).to(device)


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
    """The network by the reader's function, which multiplies from the right: the matrices are turned.

    Shapes: (*batch, D) -> (*batch, D).
    """

    def transform(self, x: Tensor) -> Tensor:
        """Widen, bend, narrow."""
        wide, down_proj = self.up_proj, self.down_proj
        return self.own["ch08.feed_forward"](
            x, wide.weight.T, _or_zeros(wide.bias, wide.weight),
            down_proj.weight.T, _or_zeros(down_proj.bias, down_proj.weight),
        )  # fmt: skip


class OwnEmbedding(Embedding):
    """Rows and positions by the reader's function, which takes the same positions for each row.

    Rows of a batch whose tokens stand at the same places are asked for together.

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
        total: Float[Tensor, "B L D"] | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
        memory_mask: Bool[Tensor, "..."] | None = None,
        causal: bool = True,
        cache: LayerCache | None = None,
        return_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        """One layer; the norm that the reader calls is that of the sublayer called last."""
        found: list[Tensor] = []
        past, source = (None, None) if cache is None else (cache.own, cache.cross)
        ask = partial(_sublayer, found=found, return_weights=return_weights)
        last = 0

        def run(place: int, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
            nonlocal last
            last = place
            return self.residuals[place].dropout(function(x))

        def look_back(x: Tensor) -> Tensor:
            return run(0, ask(self.attention, mask=mask, causal=causal, cache=past), x)

        def consult(x: Tensor, memory: Tensor) -> Tensor:
            options = {"context": memory, "mask": memory_mask, "cache": source}
            return run(1, ask(self.cross_attention, **options), x)

        def norm(x: Tensor) -> Tensor:
            return self.residuals[last].norm(x)

        think = partial(run, 2, self.feed_forward)
        wired = self.own["ch09.decoder_layer"](x, memory, look_back, consult, think, norm)
        return wired, total, found


# --- The attentions -------------------------------------------------------------------------------

IN_ATTENTION = {
    "ch03.scaled_scores", "ch03.softmax", "ch04.causal_mask", "ch04.masked_softmax",
    "ch05.split_heads", "ch05.contributions",
}  # fmt: skip


class OwnAttention(MultiHeadAttention):
    """Multi-head attention step by step, each step the reader's where there is one.

    Shapes: as MultiHeadAttention, with as many key heads as query heads and no bias.
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
        """Split, score, weigh, mix, join."""
        query = self._split(self.query(x))  # B H L d
        key, value = self._keys_and_values(x if context is None else context, cache)  # B H S d
        if causal:
            allowed = self.own.get("ch04.causal_mask", causal_mask)
            mask = combine_masks(mask, allowed(query.shape[2], key.shape[2]).to(x.device))
        heads, weights = self.look_up(query, key, value, mask, return_weights)
        output = self._join(heads)
        return (output, weights) if return_weights else output

    def look_up(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, return_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Each head's mean of the values, and the weights."""
        scores = self.own.get("ch03.scaled_scores", scaled_scores)(query, key)  # B H L S
        weights = functional.dropout(self._weigh(scores, mask), self.dropout, self.training)
        return weights @ value, weights

    def _weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        if "ch04.masked_softmax" in self.own:
            return self.own["ch04.masked_softmax"](scores, mask)
        softmax = self.own.get("ch03.softmax")
        if softmax is None or mask is None:
            return masked_softmax(scores, mask) if softmax is None else softmax(scores)
        empty = ~mask.any(-1, keepdim=True)
        filled = scores.masked_fill(~mask, float("-inf")).masked_fill(empty, 0.0)
        return softmax(filled).masked_fill(empty, 0.0)

    def _split(self, x: Tensor) -> Tensor:
        return self.own.get("ch05.split_heads", split_heads)(x, self.num_heads)

    def _join(self, heads: Tensor) -> Tensor:
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
    """The heads look up by the reader's attention of chapter 1, which knows no mask.

    What is hidden is left out: queries that may see the same keys are asked together, with those keys
    and no others. The weights are what the function makes of an identity matrix of values.
    """

    def look_up(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, return_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Each head's mean of the values it may see, and the weights if they are wanted."""
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
        if mask.shape[1:3] != (1, 1):  # not one row for a whole sample: query by query
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

    The biases become weights of a feature that is always 1. So that H still divides the width, each
    head gets one more number, which is always 0; the queries make up for the longer root in the
    scale. Weights for pictures are the package's: the function does not give them.
    """

    def forward(
        self, x: Float[Tensor, "B L D"], *, mask: Bool[Tensor, "..."] | None = None,
        return_weights: bool = False, **options: Any,
    ) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
        """Attend from x to x."""
        empty = torch.zeros((), dtype=torch.bool, device=x.device)
        if mask is not None:  # the function has no answer for a token that sees nothing
            empty = ~mask.any(-1, keepdim=True)
            mask = mask | empty
            empty = empty[:, 0] if empty.ndim == 4 else empty
        output = self._multi_head(x, mask).masked_fill(empty, 0.0)
        output = output + _or_zeros(self.output.bias, self.output.weight)
        if not return_weights:
            return output
        return output, super().forward(x, mask=mask, return_weights=True)[1]

    def _multi_head(self, x: Tensor, mask: Tensor | None) -> Tensor:
        heads, width = self.num_heads, x.shape[-1]
        d = width // heads
        x = functional.pad(torch.cat([x, x.new_ones(*x.shape[:-1], 1)], -1), (0, heads - 1))
        query, key, value = map(self._widened, (self.query, self.key, self.value))
        output = functional.pad(self.output.weight.T.unflatten(0, (heads, d)), (0, heads, 0, 1))
        multi_head = self.own["ch05.multi_head"]
        query = query * ((d + 1) / d) ** 0.5
        answer = multi_head(x, query, key, value, output.flatten(0, 1), heads, mask=mask)
        return answer[..., :width]

    def _widened(self, layer: torch.nn.Linear) -> Tensor:
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
}
