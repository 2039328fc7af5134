"""Your own model: a Transformer of the parts that a reader wrote, the package's where none is."""

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

from ..errors import argument_error
from ..exercises import EXERCISES
from ..functional.masks import combine_masks
from ..layers.blocks import Embedding, real_tokens
from ..models.transformer import Transformer, TransformerConfig
from ..shapes import checked
from ..specs.judge import judge
from .own_layers import swap_layers
from .part_table import PART_EXERCISES, PARTS, UNWRITTEN, Part
from .saved_parts import parts_folder

__all__ = ["OwnTransformer", "Parts", "load_parts"]


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
    @checked
    def of(cls, functions: Mapping[str, Callable[..., Any]]) -> Parts:
        """Judge functions, by the names of their exercises, as `load_parts` judges files.

        Raises: TypeError if something cannot be called; ValueError for a name that is no part.
        """
        for name in functions:
            if name not in PART_EXERCISES:
                wanted = f"one of {', '.join(PART_EXERCISES)}"
                raise argument_error(ValueError, "functions", repr(name), wanted)
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

    @checked
    def within(self, config: TransformerConfig) -> Parts:
        """The parts that such a model uses; the others are the package's, and say why."""
        pieces = []
        for piece in self.pieces:
            reason = piece.part.serves(config)
            unused = piece.function is not None and reason
            pieces.append(replace(piece, function=None, reason=reason) if unused else piece)
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


@checked
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
        reason = f"right, but a model cannot use it: {_brief(error)}"
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
    """Logits and gradients of a small model, and its logits token by token with a cache."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Transformer(SMALL) if parts is None else OwnTransformer(SMALL, parts=parts)
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


# --- The model ------------------------------------------------------------------------------------


class OwnTransformer(Transformer):
    """A Transformer that calls the reader's function for each part that there is one for.

    parts: whose each part is, as `load_parts` says; None loads them. Weights, their names and their
    initial values are those of Transformer, so a checkpoint fits both. `model.parts` says which parts
    this configuration uses.

    Shapes: as Transformer.
    Raises: TypeError unless parts is a Parts.
    Source: chapter 10, "Your own model".
    """

    def __init__(self, config: TransformerConfig, *, parts: Parts | None = None) -> None:
        super().__init__(config)
        parts = load_parts() if parts is None else parts
        if not isinstance(parts, Parts):
            raise argument_error(
                TypeError, "parts", type(parts).__name__, "what load_parts() gives"
            )
        self.parts = parts.within(config)
        swap_layers(self, self.parts.own)

    def embed(
        self, embedding: Embedding, ids: Int[Tensor, "B L"], real: Bool[Tensor, "B S"]
    ) -> Float[Tensor, "B L D"]:
        """Embed tokens at the positions that the reader counts."""
        count = self.parts.own.get("ch06.places")
        if count is None:
            return super().embed(embedding, ids, real)
        positions = count(real.cpu()).to(real.device)  # B S
        return embedding(ids, positions[:, -ids.shape[1] :], real.shape[1])

    def padding(
        self, ids: Int[Tensor, "B S"], attention_mask: Tensor | None = None
    ) -> Bool[Tensor, "B 1 1 S"] | None:
        """The reader's padding mask, and what the caller masks."""
        function = self.parts.own.get("ch04.padding_mask")
        if function is None:
            return super().padding(ids, attention_mask)
        given = None if attention_mask is None else attention_mask[:, None, None, :].bool()
        return combine_masks(function(ids, self.config.pad_id), given)
