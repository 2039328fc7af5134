"""How the contract calls a model: one's own by a short class, the package's, and Hugging Face's.

    class Mine(Model):                       # what `logits` alone cannot show does not apply
        def logits(self, ids, mask=None, position_ids=None):
            return self.module(ids)

Masks are boolean, (B, L), True for real tokens.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..errors import argument_error
from ..generation.decoding_state import CausalState, Seq2SeqState
from ..generation.generate import generate
from ..generation.masked_state import MaskedCausalState
from ..layers.multi_head import MultiHeadAttention
from ..layers.shared_attention import SharedAttention
from ..models.bert import Bert
from ..models.language_model import LanguageModel
from ..models.recurrent_language_model import RecurrentLanguageModel
from ..models.transformer import Transformer
from .own_code import name_of

__all__ = ["Model", "NotApplicable", "adapted"]


class NotApplicable(Exception):
    """Why something cannot be asked of a model, as the end of a sentence."""


class Model:
    """A model with the calls that the contract makes; subclass it and write `logits`.

    module: what has the parameters, or None. causal: whether a token may depend on later ones.
    vocab_size: ids are below it. max_length: the longest text. window: how far back a token attends.
    pad_id: an id that is padding by itself. filler: the id under a mask, which no text has.
    without_gradient: part of a parameter's name -> why it gets no gradient.
    """

    causal = True
    max_length = 64
    window: int | None = None
    pad_id: int | None = None
    filler = 0
    without_gradient: ClassVar[Mapping[str, str]] = {}

    def __init__(self, module: Any, vocab_size: int) -> None:
        self.module, self.vocab_size = module, vocab_size

    def logits(
        self, ids: Tensor, mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Tensor:
        """ids (B, L) -> (B, L, V), or any features of each token; mask (B, L), True for real tokens."""
        raise NotImplementedError

    def new_cache(self) -> Any:
        """An empty cache."""
        raise NotApplicable("the adapter defines no `new_cache` and `step`")

    def step(self, ids: Tensor, cache: Any, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        """The logits of the next chunk, and the cache with it; the mask is for all tokens so far."""
        raise NotApplicable("the adapter defines no `step`")

    def reorder(self, cache: Any, rows: Tensor) -> Any:
        """The cache whose text i is what text rows[i] was; rows (B)."""
        raise NotApplicable("the adapter defines no `reorder`")

    def generate(self, ids: Tensor, mask: Tensor, max_new: int, eos: int | None) -> Tensor:
        """The new tokens alone, greedily, (B, N); after `eos`, padding."""
        raise NotApplicable("the adapter defines no `generate`")

    def packed(self, texts: Sequence[Tensor]) -> Tensor:
        """The logits of texts (1, L_i) that stand one after the other in one row: (1, sum of L_i, V)."""
        raise NotApplicable("the adapter defines no `packed`")

    def from_source(self, ids: Tensor, source: Tensor, mask: Tensor) -> Tensor:
        """The logits of ids after a source (B, S) whose mask is True for real tokens."""
        raise NotApplicable("the adapter defines no `from_source`")

    def checkpointed(self) -> Model:
        """A copy that recomputes activations in the backward pass, in training mode."""
        raise NotApplicable("the adapter defines no `checkpointed`")

    def variants(self) -> Iterator[tuple[str, Model]]:
        """The same model computed in other ways: other kernels."""
        return iter(())

    def saved_and_loaded(self) -> Model:
        """The model written to memory and read into one with other numbers."""
        if self.networks == []:
            raise NotApplicable("there are no parameters to save")
        state = {name: tensor.clone() for name, tensor in self.network.state_dict().items()}
        other = self.copied()
        with torch.no_grad():
            for parameter in other.network.parameters():
                parameter.normal_()
        other.network.load_state_dict(state)
        return other

    # --- What follows from the module -------------------------------------------------------------

    @property
    def networks(self) -> list[nn.Module]:
        """The module in a list, or none where the model is a plain function."""
        return [self.module] if isinstance(self.module, nn.Module) else []

    @property
    def network(self) -> nn.Module:
        """The module; NotApplicable where there is none."""
        if not self.networks:
            raise NotApplicable("it is a function, whose parameters cannot be seen")
        return self.module

    def copied(self, change: Callable[[nn.Module], Any] = lambda module: None) -> Model:
        """The model with a copy of its module, changed."""
        other = copy.copy(self)
        other.module = copy.deepcopy(self.network)
        change(other.module)
        return other

    def in_float64(self) -> Model:
        """A copy that computes in float64, step by step, from which the tolerance is derived."""
        return self.copied(lambda module: module.double())

    @property
    def takes_mask(self) -> bool:
        """Whether `logits` uses a mask: its signature says so, unless a class overrides this."""
        return "mask" in inspect.signature(self.logits).parameters

    @property
    def takes_positions(self) -> bool:
        """Whether positions can be given."""
        return "position_ids" in inspect.signature(self.logits).parameters


class Function(Model):
    """A plain callable of ids: a function, or a module whose forward takes nothing else."""

    takes_mask = takes_positions = False

    def logits(
        self, ids: Tensor, mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Tensor:
        """What the callable returns; the first of several, or what it calls logits."""
        answer = self.module(ids)
        return getattr(answer, "logits", answer[0] if isinstance(answer, tuple | list) else answer)


class OwnLanguageModel(Model):
    """The package's LanguageModel: padding is an id, or what the mask says."""

    def __init__(self, module: LanguageModel) -> None:
        super().__init__(module, module.config.vocab_size)
        self.pad_id, self.window = module.config.pad_id, module.config.window
        self.filler = self.pad_id or 0
        if module.config.positions == "learned":
            self.max_length = module.config.max_length
        if module.config.experts is not None:
            self.without_gradient = {".experts.": "no token of the text chose this expert"}
        if module.config.indexer is not None:
            reason = "a selection has no gradient: a loss of its own trains it"
            self.without_gradient = {**self.without_gradient, ".indexer.": reason}

    @property
    def takes_positions(self) -> bool:
        """Whether it has positions that can be given."""
        return self.module.takes_positions

    def logits(
        self, ids: Tensor, mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Tensor:
        """With a padding id, masked tokens become padding."""
        return self._answer(ids, mask, position_ids)

    def _answer(
        self, ids: Tensor, mask: Tensor | None, position_ids: Tensor | None = None, **options: Any
    ) -> Tensor:
        if mask is not None and self.pad_id is not None:
            ids, mask = ids.masked_fill(~mask[:, -ids.shape[1] :], self.pad_id), None
        if mask is not None and position_ids is None and self.takes_positions:
            position_ids = _counted(mask)[:, -ids.shape[1] :]
        return self.module(ids, mask, position_ids=position_ids, **options)

    def new_cache(self) -> Any:
        """The model's own."""
        return self.module.new_cache()

    def step(self, ids: Tensor, cache: Any, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        """The cache is changed in place."""
        return self._answer(ids, mask, cache=cache), cache

    def reorder(self, cache: Any, rows: Tensor) -> Any:
        """In place."""
        cache.reorder(rows)
        return cache

    def generate(self, ids: Tensor, mask: Tensor, max_new: int, eos: int | None) -> Tensor:
        """By the package's `generate`."""
        if not self.module.config.head:
            raise NotApplicable("it has no output layer")
        if self.pad_id is None:
            state, pad = MaskedCausalState(self.module, mask), 0
        else:
            state, pad = CausalState(self.module), self.pad_id
            ids = ids.masked_fill(~mask, pad)
        return generate(state, ids, max_new=max_new, eos=eos, padding=pad).tokens

    def variants(self) -> Iterator[tuple[str, Model]]:
        """Every layer by each backend that the CPU has."""
        return _by_backend(self)


class OwnRecurrentModel(OwnLanguageModel):
    """A language model of the package without attention: padding is what the mask says."""

    def __init__(self, module: RecurrentLanguageModel) -> None:
        Model.__init__(self, module, module.config.vocab_size)

    @property
    def takes_positions(self) -> bool:
        """It has none."""
        return False

    def _answer(
        self, ids: Tensor, mask: Tensor | None, position_ids: Tensor | None = None, **options: Any
    ) -> Tensor:
        return self.module(ids, mask, **options)

    def variants(self) -> Iterator[tuple[str, Model]]:
        """There is one way to compute it."""
        return iter(())


class OwnBert(Model):
    """The package's Bert: padding is what the mask says; a head for texts is asked of each token.

    A text's own logits are its first token's, and that is padding where a text is padded on the left.
    """

    causal = False

    def __init__(self, module: Bert) -> None:
        super().__init__(module, module.config.vocab_size)
        self.max_length, self.filler = min(64, module.config.max_length), module.config.pad_id or 0
        if module.config.head is None:
            self.without_gradient = {"pooler.": "it is called on the last hidden states"}

    def logits(
        self, ids: Tensor, mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Tensor:
        """Positions count the real tokens; the logits of two heads stand side by side."""
        if mask is not None and position_ids is None:
            position_ids = _counted(mask)
        if self.module.config.head in (None, "masked_lm"):
            return self.module(ids, mask, position_ids=position_ids)
        hidden = self.module.encode(ids, mask, position_ids=position_ids)
        answer = self.module.logits(hidden.flatten(0, 1)[:, None])  # each token as a text of one
        parts = answer if isinstance(answer, tuple) else (answer,)
        return torch.cat([part.reshape(*ids.shape, -1) for part in parts], dim=-1)

    def variants(self) -> Iterator[tuple[str, Model]]:
        """Every layer by each backend that the CPU has."""
        return _by_backend(self)


class OwnTransformer(Model):
    """The decoder of the package's Transformer, which answers one source."""

    takes_positions = False

    def __init__(self, module: Transformer) -> None:
        super().__init__(module, module.config.output_vocab)
        self.pad_id, self.filler = module.config.pad_id, module.config.pad_id or 0
        self.source = torch.arange(1, 6)[None] % module.config.source_vocab
        if module.config.positions == "learned":
            self.max_length = module.config.max_length

    @property
    def takes_mask(self) -> bool:
        """With a padding id, by that id. Without one, positions count padding, and a text would move."""
        return self.pad_id is not None

    def _padded(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        return ids if mask is None else ids.masked_fill(~mask[:, -ids.shape[1] :], self.pad_id)

    def logits(
        self, ids: Tensor, mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Tensor:
        """The logits after each prefix of the target."""
        return self.module(self.source.expand(len(ids), -1), self._padded(ids, mask))

    def new_cache(self) -> Any:
        """The model's own."""
        return self.module.new_cache()

    def step(self, ids: Tensor, cache: Any, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        """The cache is changed in place."""
        source = self.source.expand(len(ids), -1)
        memory, visible = self.module.encode(source), self.module.padding(source)
        ids = self._padded(ids, mask)
        return self.module.decode(ids, memory, memory_mask=visible, cache=cache), cache

    def reorder(self, cache: Any, rows: Tensor) -> Any:
        """In place; all texts have the same source."""
        cache.reorder(rows)
        return cache

    def generate(self, ids: Tensor, mask: Tensor, max_new: int, eos: int | None) -> Tensor:
        """By the package's `generate`."""
        if not self.module.config.head:
            raise NotApplicable("it has no output layer")
        state = Seq2SeqState(self.module, self.source.expand(len(ids), -1))
        ids, pad = self._padded(ids, mask if self.takes_mask else None), self.filler
        return generate(state, ids, max_new=max_new, eos=eos, padding=pad).tokens

    def from_source(self, ids: Tensor, source: Tensor, mask: Tensor) -> Tensor:
        """Padding is an id, or what attention_mask says."""
        filled = source.masked_fill(~mask, self.filler)
        return self.module(filled, ids, attention_mask=None if self.takes_mask else mask)


class HuggingFace(Model):
    """A PreTrainedModel of transformers: causal, masked or encoder-decoder."""

    without_gradient: ClassVar[dict[str, str]] = {
        ".indexer.": "which keys to read is learned by a loss of its own",
        "_global.": "no token has global attention here",
    }

    def __init__(self, module: nn.Module) -> None:
        config = module.config.get_text_config(decoder=True)
        super().__init__(module, config.vocab_size)
        self.is_seq2seq = bool(module.config.is_encoder_decoder)
        self.causal = self.is_seq2seq or bool(module.can_generate())
        window = getattr(config, "sliding_window", None)
        self.filler = module.config.pad_token_id or 0
        self.window = window if getattr(config, "use_sliding_window", True) else None
        longest = getattr(config, "max_position_embeddings", None) or 64
        self.max_length = min(64, longest) if longest > 0 else 64  # -1: without end
        parameters = inspect.signature(module.forward).parameters
        self.names = set(parameters)
        self.cache_name = next(
            (n for n in ("past_key_values", "cache_params", "state") if n in parameters), None
        )

    @property
    def takes_mask(self) -> bool:
        """By `attention_mask`."""
        return "attention_mask" in self.names and not self.is_seq2seq

    @property
    def takes_positions(self) -> bool:
        """By `position_ids`."""
        return "position_ids" in self.names

    @cached_property
    @torch.no_grad()
    def first_position(self) -> int:
        """The id of the first position: RoBERTa counts from after padding's, Nystromformer from 2."""
        ids = (self.filler + torch.arange(1, 4))[None] % self.vocab_size
        wanted = self.logits(ids)
        for first in (0, self.filler + 1, 2):
            if torch.equal(self.logits(ids, position_ids=first + torch.arange(3)[None]), wanted):
                return first
        return 0

    def _answer(self, ids: Tensor, mask: Tensor | None, **options: Any) -> Any:
        if self.is_seq2seq:
            source = torch.arange(3, 9)[None].expand(len(ids), -1) % self.vocab_size
            options = {"input_ids": source, "decoder_input_ids": ids} | options
        else:
            options["input_ids"] = ids
        if mask is not None:
            options["attention_mask"] = mask.long()
        return self.module(**options)

    def logits(
        self, ids: Tensor, mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Tensor:
        """Without a cache."""
        options: dict[str, Any] = {"use_cache": False} if "use_cache" in self.names else {}
        if position_ids is not None:
            options["position_ids"] = position_ids
        elif mask is not None and self.takes_positions:
            options["position_ids"] = _counted(mask) + self.first_position
        answer = self._answer(ids, mask, **options)
        return getattr(answer, "logits", answer[0])

    def new_cache(self) -> Any:
        """None: the first step makes one."""
        if self.cache_name is None or not self.causal:
            raise NotApplicable("the model has no cache")

    def step(self, ids: Tensor, cache: Any, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        """What the model returns as its cache is handed on; a recurrent state wants the chunk's mask."""
        options = {"use_cache": True, self.cache_name: cache}
        if self.cache_name != "past_key_values" and mask is not None:
            mask = mask[:, -ids.shape[1] :]
        if mask is not None and self.takes_positions:
            options["position_ids"] = self.first_position + _counted(mask)[:, -ids.shape[1] :]
        answer = self._answer(ids, mask, **options)
        cache = getattr(answer, self.cache_name, cache)
        if cache is None:  # its forward makes none, its `generate` does
            from transformers import DynamicCache

            return self.step(ids, DynamicCache(config=self.module.config), mask)
        return answer.logits, cache

    def reorder(self, cache: Any, rows: Tensor) -> Any:
        """By the cache's own method."""
        if not hasattr(cache, "reorder_cache"):
            raise NotApplicable("its cache cannot be reordered")
        cache.reorder_cache(rows)
        return cache

    def generate(self, ids: Tensor, mask: Tensor, max_new: int, eos: int | None) -> Tensor:
        """By its own `generate`."""
        if not self.causal or self.is_seq2seq:
            raise NotApplicable("it completes no text")
        # Of what from_pretrained may have brought along nothing is wanted: plain greedy decoding.
        output = self.module.generate(
            ids, attention_mask=mask.long(), max_new_tokens=max_new, do_sample=False, num_beams=1,
            eos_token_id=eos, pad_token_id=int(eos == 0),
        )  # fmt: skip
        return output[:, ids.shape[1] :]

    def packed(self, texts: Sequence[Tensor]) -> Tensor:
        """Positions that begin anew tell the texts apart, in one row and without a mask."""
        if not self.takes_positions or not self.causal or self.is_seq2seq:
            raise NotApplicable("it packs no texts into one row")
        counted = torch.cat([torch.arange(text.shape[1]) for text in texts])[None]
        return self.logits(torch.cat(list(texts), dim=1), position_ids=counted)

    def from_source(self, ids: Tensor, source: Tensor, mask: Tensor) -> Tensor:
        """By `attention_mask`, which is the encoder's."""
        if not self.is_seq2seq:
            raise NotApplicable("it reads no source")
        filled = source.masked_fill(~mask, self.filler)
        return self._answer(ids, mask, input_ids=filled, use_cache=False).logits

    def checkpointed(self) -> Model:
        """By `gradient_checkpointing_enable`."""
        if not self.module.supports_gradient_checkpointing:
            raise NotApplicable("it checkpoints no gradients")

        def checkpoint(module: nn.Module) -> None:
            module.train()
            module.gradient_checkpointing_enable({"use_reentrant": False})

        return self.copied(checkpoint)

    def in_float64(self) -> Model:
        """With each expert by itself: the grouped kernels count tokens in floating point."""

        def widen(module: nn.Module) -> None:
            module.double()
            if hasattr(module, "set_experts_implementation"):
                module.set_experts_implementation("eager")

        return self.copied(widen)

    def variants(self) -> Iterator[tuple[str, Model]]:
        """Eager attention and SDPA, where the model has both."""
        if getattr(self.module, "_supports_sdpa", False):
            for kind in ("eager", "sdpa"):
                yield (
                    f"{kind} attention",
                    self.copied(lambda m, kind=kind: m.set_attn_implementation(kind)),
                )


def _by_backend(model: Model) -> Iterator[tuple[str, Model]]:
    """The model with every attention of the package by each backend that the CPU has."""
    for backend in ("plain", "fused", "tiled"):

        def choose(module: nn.Module, backend: str = backend) -> None:
            for part in module.modules():
                if isinstance(part, MultiHeadAttention | SharedAttention):
                    part.backend = backend

        yield f'backend="{backend}"', model.copied(choose)


def _counted(mask: Tensor) -> Tensor:
    """Positions: how many real tokens stand before each."""
    return (mask.long().cumsum(1) - 1).clamp(min=0)


def adapted(model: Any, *, vocab_size: int | None = None) -> Model:
    """The adapter for a model: one of the package, of transformers, a Model, or a callable of ids.

    vocab_size is needed where no embedding tells it.

    Raises: TypeError or ValueError that name the argument.
    """
    if isinstance(model, Model):
        return model
    if isinstance(model, LanguageModel):
        return OwnLanguageModel(model)
    if isinstance(model, RecurrentLanguageModel):
        return OwnRecurrentModel(model)
    if isinstance(model, Bert):
        return OwnBert(model)
    if isinstance(model, Transformer):
        return OwnTransformer(model)
    if isinstance(model, nn.Module) and hasattr(model, "config") and hasattr(model, "can_generate"):
        return HuggingFace(model)
    if not callable(model):
        wanted = "a model: a module, a function of ids, or a Model of specs.adapters"
        raise argument_error(TypeError, "model", f"a {name_of(model)}", wanted)
    size = vocab_size or _smallest_embedding(model)
    if size is None:
        wanted = "the number of ids, where no nn.Embedding tells it"
        raise argument_error(ValueError, "vocab_size", "None", wanted)
    return Function(model, size)


def _smallest_embedding(model: Any) -> int | None:
    """How many ids the first embedding has."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    return next((m.num_embeddings for m in modules if isinstance(m, nn.Embedding)), None)
