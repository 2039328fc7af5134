"""Before the Transformer: recurrent networks that translate, without attention and with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ..bounds import AtLeast, Below, PositiveInt, Where
from ..errors import argument_error
from ..functional.masks import padding_mask_from_tokens
from ..functional.scoring import attend
from ..layers.blocks import real_tokens
from ..layers.scoring import AdditiveAttention
from ..shapes import check_fields, checked

__all__ = ["RecurrentCache", "RecurrentConfig", "RecurrentTranslator"]


SourceIDs = Annotated[Int[Tensor, "B S"], AtLeast(0), Below("self.config.source_vocab")]
TargetIDs = Annotated[Int[Tensor, "B L"], AtLeast(0), Below("self.config.target_vocab")]
EVEN = Where("an even number: half for each direction of reading", lambda size: size % 2 == 0)


@dataclass(frozen=True)
class RecurrentConfig:
    """The sizes of a recurrent translator, and whether it has attention.

    Raises: TypeError or ValueError that name the field.
    Source: chapter 10.
    """

    source_vocab: PositiveInt
    target_vocab: PositiveInt
    d_model: Annotated[int, AtLeast(1), EVEN] = 256  # of the embeddings, the memory and the state
    attention: bool = True
    attention_size: PositiveInt | None = (
        None  # hidden units of the additive scores; None: d_model / 2
    )
    pad_id: Annotated[int, AtLeast(0), Below("source_vocab"), Below("target_vocab")] | None = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.attention_size is None:
            object.__setattr__(self, "attention_size", self.d_model // 2)


class RecurrentCache:
    """All that a recurrent decoder keeps between words: one state, however long the sentence.

    Shapes: state (B, D); keys (B, S, A), the projected memory, with attention; None before the first
        call.
    Source: chapter 10.
    """

    def __init__(self) -> None:
        self.state: Float[Tensor, "B D"] | None = None
        self.keys: Float[Tensor, "B S A"] | None = None

    @checked(like="self.state")
    def reorder(
        self, rows: Annotated[Int[Tensor, " N"], AtLeast(0), Below("self.state.shape.0")]
    ) -> None:
        """Keep these rows of the batch, in this order; a row may be named twice (beam search)."""
        if self.state is None:
            raise RuntimeError("the cache is empty: decode something first")
        self.state = self.state[rows]
        self.keys = None if self.keys is None else self.keys[rows]


class RecurrentTranslator(nn.Module):
    """Read with a GRU in both directions, write with another: the model before the Transformer.

    The decoder starts from the encoder's last states. Without attention it never learns more about
    the source than this one vector. With attention it looks at all states before each word, and
    what it finds goes into the state and into the word's score.

    It is used as a Transformer is: the same `forward`, `encode`, `padding`, `decode` and `new_cache`.

    Shapes: source (B, S), padded on the right, target (B, L) -> logits (B, L, V), and the weights
        (B, L, S) with return_weights. L and every row's source are at least one token long.
    Raises: TypeError or ValueError that name the argument.
    Source: Cho et al. 2014; Sutskever et al. 2014; with attention: Bahdanau et al. 2015, appendix A,
        here with a linear output layer.

    >>> model = RecurrentTranslator(RecurrentConfig(9, 7, d_model=4))
    >>> tuple(model(torch.tensor([[3, 4, 5]]), torch.tensor([[1, 6]])).shape)
    (1, 2, 7)
    """

    @checked
    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        width = config.d_model
        both = 2 * width if config.attention else width  # with attention, a context goes along
        self.source_embedding = nn.Embedding(config.source_vocab, width, config.pad_id)
        self.target_embedding = nn.Embedding(config.target_vocab, width, config.pad_id)
        self.encoder = nn.GRU(width, width // 2, batch_first=True, bidirectional=True)
        self.decoder = nn.GRUCell(both, width)
        self.attention = None
        if config.attention:
            self.attention = AdditiveAttention(width, width, config.attention_size)
        self.output = nn.Linear(both, config.target_vocab)

    @checked(like="self.output.weight")
    def forward(
        self,
        source: Int[Tensor, "B S"],
        target: Int[Tensor, "B L"],
        *,
        return_weights: bool = False,
    ) -> Float[Tensor, "B L V"] | tuple[Float[Tensor, "B L V"], Float[Tensor, "B L S"]]:
        """Score every next token of every prefix of the target."""
        return self.decode(
            target, self.encode(source), memory_mask=self.padding(source),
            return_weights=return_weights,
        )  # fmt: skip

    @checked(like="self.output.weight")
    def encode(self, source: SourceIDs) -> Float[Tensor, "B S D"]:
        """Read the source: both directions' states at each position, zeros where there is padding."""
        lengths = _lengths(real_tokens(source, self.config.pad_id))
        words = self.source_embedding(source)  # B S D
        packed = pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False)
        states, _ = self.encoder(packed)
        return pad_packed_sequence(states, batch_first=True, total_length=source.shape[1])[0]

    @checked
    def padding(self, ids: Int[Tensor, "B S"]) -> Bool[Tensor, "B 1 1 S"] | None:
        """The mask that hides padding; None if no token is padding."""
        pad_id = self.config.pad_id
        return None if pad_id is None else padding_mask_from_tokens(ids, pad_id)

    @checked(
        nonempty="L S", like="self.output.weight", B="cache.state.shape.0", D="self.config.d_model"
    )
    def decode(
        self,
        target: TargetIDs,
        memory: Float[Tensor, "B S D"],
        *,
        memory_mask: Bool[Tensor, "B 1 1 S"] | None = None,
        cache: RecurrentCache | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B L V"] | tuple[Float[Tensor, "B L V"], Float[Tensor, "B L S"]]:
        """Score the next tokens, one after the other; padding of the target leaves the state alone.

        With a cache, target is the chunk that follows what the cache has seen.
        """
        if return_weights and self.attention is None:
            wanted = "False: the model has no attention"
            raise argument_error(ValueError, "return_weights", True, wanted)
        cache = RecurrentCache() if cache is None else cache
        if memory_mask is None:
            memory_mask = memory.new_ones(memory.shape[0], 1, 1, memory.shape[1], dtype=torch.bool)
        if cache.state is None:
            cache.state = first_state(memory, memory_mask[:, 0, 0])
            cache.keys = None if self.attention is None else self.attention.w_key(memory)
        words = self.target_embedding(target).unbind(1)
        real = real_tokens(target, self.config.pad_id).unbind(1)
        seen, weights = [], []
        for word, is_real in zip(words, real, strict=True):
            found = []
            if self.attention is not None:
                context, weight = self._look(cache, memory, memory_mask[:, 0])
                found, weights = [context], [*weights, weight]
            new = self.decoder(torch.cat([word, *found], dim=-1), cache.state)
            cache.state = torch.where(is_real[:, None], new, cache.state)  # B D
            seen.append(torch.cat([cache.state, *found], dim=-1))
        logits = self.output(torch.stack(seen, dim=1))  # B L V
        return (logits, torch.stack(weights, dim=1)) if return_weights else logits

    def new_cache(self) -> RecurrentCache:
        """An empty cache for `decode`."""
        return RecurrentCache()

    def _look(
        self, cache: RecurrentCache, memory: Tensor, allowed: Tensor
    ) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B S"]]:
        """Additive attention from the state to the memory, whose keys are projected once for all words."""
        hidden = torch.tanh(self.attention.w_query(cache.state)[:, None] + cache.keys)  # B S A
        scores = self.attention.w_v(hidden).mT  # B 1 S
        context, weights = attend(scores, memory, allowed=allowed, return_weights=True)
        return context[:, 0], weights[:, 0]


def first_state(memory: Float[Tensor, "B S D"], real: Bool[Tensor, "B S"]) -> Float[Tensor, "B D"]:
    """What each direction of the encoder knew when it had read everything.

    The first half of D read forward and ends at the last real token; the second half read backward
    and ends at the first one.

    Shapes: memory (B, S, D), real (B, S) -> (B, D).
    Source: Sutskever et al. 2014, section 2.
    """
    rows, half = torch.arange(len(memory), device=memory.device), memory.shape[-1] // 2
    places = torch.arange(memory.shape[1], device=memory.device)
    first, last = real.int().argmax(1), (real * places).argmax(1)
    return torch.cat([memory[rows, last, :half], memory[rows, first, half:]], dim=-1)


def _lengths(real: Bool[Tensor, "B S"]) -> Int[Tensor, " B"]:
    """How many tokens each row has, where the packing wants it: on the processor."""
    lengths = real.sum(1)
    if real.numel() == 0 or not bool(lengths.all()):
        raise argument_error(
            ValueError, "source", "a row without tokens", "at least one token in each"
        )
    if bool((real[:, 1:] & ~real[:, :-1]).any()):
        raise argument_error(
            ValueError, "source", "a token after padding", "padding on the right only"
        )
    return lengths.cpu()
