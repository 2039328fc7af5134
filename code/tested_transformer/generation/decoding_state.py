"""A model in the middle of generating: what it has read, and its cache."""

from __future__ import annotations

from typing import Annotated, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..bounds import AtLeast, Below, Where
from ..layers.cache import DecoderCache
from ..models.language_model import LanguageModel
from ..models.recurrent_language_model import RecurrentLanguageModel
from ..shapes import checked

__all__ = ["CausalState", "DecodingState", "Seq2SeqState"]


@runtime_checkable
class DecodingState(Protocol):
    """What `generate` and `beam_search` call: any model that keeps the prefix that it was fed."""

    def feed(self, tokens: Int[Tensor, "B L"]) -> Float[Tensor, "B V"]:
        """Take the next tokens; return the logits of the token after the last."""

    def reorder(self, rows: Int[Tensor, " N"]) -> None:
        """Keep these sequences, in this order; one may come twice."""


SEQ2SEQ = "a model with encode, padding, decode and new_cache"


def has_output(model: nn.Module) -> bool:
    """Whether a model has an output layer; one that we do not know has."""
    return getattr(model, "output", model) is not None


Seq2SeqModel = Annotated[
    nn.Module,
    Where(SEQ2SEQ, lambda model: hasattr(model, "decode"), TypeError),
    Where("an output layer", has_output),
]
CausalModel = Annotated[
    LanguageModel | RecurrentLanguageModel, Where("a model with an output layer", has_output)
]


class Seq2SeqState:
    """The decoding state of an encoder-decoder model: the source is read once, the target grows.

    The model is a Transformer, or whatever has its `encode`, `padding`, `decode` and `new_cache`, such as
    a Whisper, whose source is a spectrogram.

    With a cache each token is computed once, and the keys and values of the source once; without one
    the whole target is recomputed for each token. The tokens are the same.

    attention_mask says which tokens of the source are real, for a model without a padding token; all
    tokens of the target are.

    Shapes: source (B, S), or (B, M, F) for a Whisper, attention_mask (B, S), True for a real token.
    Raises: TypeError or ValueError that name the argument.
    Source: chapters 5 and 11.
    """

    @checked
    def __init__(
        self,
        model: Seq2SeqModel,
        source: Int[Tensor, "B S"] | Float[Tensor, "B M F"],
        *,
        attention_mask: Bool[Tensor, "B S"] | None = None,
        cache: bool = True,
    ) -> None:
        self.model = model
        options = {} if attention_mask is None else {"attention_mask": attention_mask}
        with torch.no_grad():
            self.memory = model.encode(source, **options)  # B S D
        self.visible = model.padding(source, **options)  # B 1 1 S, or None
        self.cache = model.new_cache() if cache else None
        self.prefix_ids: Tensor | None = None

    @property
    def batch(self) -> int:
        """How many sequences there are."""
        return len(self.memory)

    @torch.no_grad()
    @checked(like="self.memory")
    def feed(self, tokens: Int[Tensor, "B L"]) -> Float[Tensor, "B V"]:
        """Take the next tokens of the target; return the logits of the token after the last."""
        if self.cache is None:
            tokens = self.prefix_ids = _append(self.prefix_ids, tokens)
        logits = self.model.decode(
            tokens, self.memory, memory_mask=self.visible, cache=self.cache
        )  # B L V
        return logits[:, -1]

    @checked(like="self.memory")
    def reorder(self, rows: Annotated[Int[Tensor, " N"], AtLeast(0), Below("self.batch")]) -> None:
        """Keep these sequences, in this order."""
        self.memory = self.memory[rows]
        self.visible = None if self.visible is None else self.visible[rows]
        if self.cache is not None:
            self.cache.reorder(rows)
        self.prefix_ids = None if self.prefix_ids is None else self.prefix_ids[rows]


class CausalState:
    """The decoding state of a language model: the prompt is fed first, then token after token.

    Prompts of different lengths are padded on the left, so that all continue at the same index.

    Raises: TypeError or ValueError that name the argument.
    Source: chapter 11.
    """

    @checked
    def __init__(self, model: CausalModel, *, cache: bool = True) -> None:
        self.model = model
        self.cache: DecoderCache | None = model.new_cache() if cache else None
        self.prefix_ids: Tensor | None = None

    @property
    def batch(self) -> int | None:
        """How many sequences there are; None before the first call."""
        if self.cache is not None:
            return self.cache.batch
        return None if self.prefix_ids is None else len(self.prefix_ids)

    @torch.no_grad()
    @checked
    def feed(self, tokens: Int[Tensor, "B L"]) -> Float[Tensor, "B V"]:
        """Take the next tokens; return the logits of the token after the last."""
        if self.cache is None:
            tokens = self.prefix_ids = _append(self.prefix_ids, tokens)
        return self.model(tokens, cache=self.cache)[:, -1]

    @checked(like="self.prefix_ids")
    def reorder(self, rows: Annotated[Int[Tensor, " N"], AtLeast(0), Below("self.batch")]) -> None:
        """Keep these sequences, in this order."""
        if self.cache is not None:
            self.cache.reorder(rows)
        self.prefix_ids = None if self.prefix_ids is None else self.prefix_ids[rows]


def _append(prefix_ids: Tensor | None, tokens: Tensor) -> Tensor:
    return tokens if prefix_ids is None else torch.cat([prefix_ids, tokens], dim=1)
