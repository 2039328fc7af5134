"""The parts of a model that a reader can write: which exercise writes which part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..models.transformer import TransformerConfig


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
    """A part of the model, the exercise that fills it, and another that can, if that is not written.

    serves: why a configuration has no such part, or none that the exercise fits; None if it has.
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
# A new part is a line here, and its exercise's name where own_layers or own_model asks `own` for it.
PARTS = (
    Part("cross-attention", "ch01.attention", serves=_unless("dropout", 0)),
    Part("scores", "ch03.scaled_scores"),
    Part("attention weights", "ch04.masked_softmax", instead="ch03.softmax"),
    Part("causal mask", "ch04.causal_mask"),
    Part("padding mask", "ch04.padding_mask", serves=lambda c: c.pad_id is None and "no padding"),
    Part("splitting heads", "ch05.split_heads"),
    Part("output projection", "ch05.contributions"),
    Part("encoder self-attention", "ch05.multi_head", serves=_unless("dropout", 0)),
    Part(
        "positional encoding", "ch06.sinusoids",
        serves=_both(_unless("positions", "sinusoidal"), _unless("position_layout", "interleaved")),
    ),
    Part("position IDs", "ch06.places"),
    Part("layer norm", "ch07.layer_norm", serves=_unless("norm", "layer")),
    Part(
        "feed-forward network", "ch08.feed_forward",
        serves=_both(_unless("activation", "relu"), _unless("dropout", 0)),
    ),
    Part("embedding", "ch09.embed", serves=_unless("scale_embedding", True)),
    Part("decoder layer", "ch09.decoder_layer", serves=_unless("norm_placement", "post")),
)  # fmt: skip
PART_EXERCISES = {exercise: part for part in PARTS for exercise in part.exercises}
