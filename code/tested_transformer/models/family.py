"""What is known of a family of models on disk: its options in our words, and where each weight goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..bounds import one_of
from ..errors import argument_error
from ..layers.blocks import Embedding
from ..layers.feed_forward import FeedForward
from ..layers.latent_attention import LatentAttention
from ..layers.multi_head import MultiHeadAttention
from ..layers.residual import Residual
from ..layers.segmented_embedding import SegmentedEmbedding
from ..layers.two_stream_attention import TwoStreamAttention
from .language_model import LanguageModel, LanguageModelConfig
from .vit import PatchEmbedding
from .whisper import AudioStem
from .xlnet import XLNet

Options = Mapping[str, Any]

# Options of config.json that change no number that a model computes: where it came from, which tokens
# mean what, how it was initialized, what its class returns beside the logits, and how to generate.
IGNORED = frozenset(
    """
    model_type transformers_version _name_or_path name_or_path _commit_hash torch_dtype dtype
    attn_implementation _attn_implementation_autoset torchscript use_bfloat16 tokenizer_class prefix
    bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id
    initializer_range use_cache return_dict output_attentions output_hidden_states is_decoder
    id2label label2id num_labels problem_type finetuning_task task_specific_params
    chunk_size_feed_forward tie_encoder_decoder
    max_length min_length do_sample early_stopping num_beams temperature top_k top_p typical_p
    repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
    num_return_sequences output_scores return_dict_in_generate forced_bos_token_id forced_eos_token_id
    remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
    epsilon_cutoff eta_cutoff encoder_repetition_penalty num_assistant_tokens
    num_assistant_tokens_schedule assistant_confidence_threshold assistant_lookbehind
    target_lookbehind num_beam_groups diversity_penalty
    """.split()
)
FIXED = {"is_encoder_decoder": (False,), "add_cross_attention": (False,), "pruned_heads": ({},)}


class Weight(NamedTuple):
    """A tensor on disk: its name, ours that it holds, stacked, and whether it is stored (in, out).

    groups: how often the stack is repeated, with as many equal shares of each of ours.
    """

    name: str
    ours: tuple[str, ...]
    transposed: bool
    groups: int = 1

    def from_disk(self, tensor: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The parameters that the tensor holds, by name; like: parameters of their shapes."""
        tensor = tensor.T if self.transposed else tensor
        rows = [like[name].shape[0] // self.groups for name in self.ours]
        pieces = tensor.contiguous().unflatten(0, (self.groups, -1)).split(rows, dim=1)
        pieces = pieces if len(pieces) == 1 else [piece.clone() for piece in pieces]
        return {name: each.flatten(0, 1) for name, each in zip(self.ours, pieces, strict=True)}

    def to_disk(self, state: Mapping[str, Tensor]) -> Tensor:
        """The way back."""
        pieces = [state[name].detach().unflatten(0, (self.groups, -1)) for name in self.ours]
        tensor = torch.cat(pieces, dim=1).flatten(0, 1)
        return (tensor.T if self.transposed else tensor).contiguous()


class Stack(NamedTuple):
    """A list of layers: its name in our model, in theirs, and our module -> theirs in each layer."""

    ours: str
    theirs: str
    modules: Mapping[str, str]


@dataclass(frozen=True)
class Family:
    """How one `model_type` of transformers is read and written.

    architectures: their classes that we have, the first where config.json names none; `read` gets the
        name among the options, and `write` may return it. headless: the one whose files leave out
        `base`, with which the names of all other files' weights begin.
    defaults: the options that matter, with transformers' values where config.json has none. fixed:
        options of which this package has some values only. ignored: options that change no number,
        besides IGNORED.
    read: all options that matter -> our configuration, a `config`, from which `build` makes the
        model. write: the way back.
    dropout: option -> where it acts, one or several names of DROPOUT.
    modules: our module, parameter or buffer -> theirs; several of ours in one key are stacked in
        theirs, and one that a model does not have is left out. stacks: the same in lists of layers, or a
        function of our configuration where names depend on it; a * there stands for 0, 1, 2 ... in a list that a layer has.
        transposed: whether matrices in layers are stored (in, out). by_group: whether what is stacked
        there comes KV head by KV head: the queries of a group, its key, its value, and so on.
    float32: a pattern of tensors that may be of float32 beside weights of half precision.
    aliases: tensors that repeat another one of theirs under a name of their own.
    may_be_missing: tensors of theirs that old files do not have, where they are zero.
    renamed: patterns of names in old files -> what they are called now.
    leftovers: a pattern of tensors that a file may have beside those of its model.
    frozen_padding: our embeddings in which the row of pad_token_id gets no gradient.
    """

    model_type: str
    architectures: tuple[str, ...]
    defaults: Options
    read: Callable[[Options], Any]
    write: Callable[[Any], dict[str, Any]]
    dropout: Mapping[str, str]
    modules: Mapping[str, str]
    stacks: tuple[Stack, ...] | Callable[[Any], tuple[Stack, ...]]
    base: str
    headless: str | None = None
    config: type = LanguageModelConfig
    build: Callable[[Any], nn.Module] = LanguageModel
    fixed: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    transposed: bool = False
    by_group: bool = False
    aliases: Mapping[str, str] = field(default_factory=dict)
    may_be_missing: frozenset[str] = frozenset()
    renamed: Mapping[str, str] = field(default_factory=dict)
    leftovers: str = r"(?!)"  # nothing
    float32: str = r"(?!)"
    frozen_padding: tuple[str, ...] = ()

    def options(self, theirs: Options) -> dict[str, Any]:
        """All options that matter. Raises: ValueError for one that is unknown or not supported."""
        known = (None, *([name] for name in self.architectures))
        fixed = FIXED | dict(self.fixed) | {"architectures": known}
        for name, value in theirs.items():
            if name in fixed and value not in fixed[name]:
                raise option_error(name, value, one_of(fixed[name]))
            if name not in {*fixed, *self.defaults, *self.dropout, *self.ignored, *IGNORED}:
                wanted = f"no such option of {self.model_type}, or one that changes no number"
                raise option_error(name, value, wanted)
        known = {*self.defaults, *self.dropout}
        options = dict.fromkeys(self.dropout, 0.0) | dict(self.defaults)
        options["architectures"] = (theirs.get("architectures") or self.architectures)[0]
        return options | {name: value for name, value in theirs.items() if name in known}

    def has_head(self, options: Options) -> bool:
        """Whether the options are those of a model with an output layer."""
        return options["architectures"] != self.headless

    def architecture(self, config: Any) -> dict[str, list[str]]:
        """Their class for our configuration, which says whether there is a head."""
        return {"architectures": [self.architectures[0] if config.head else self.headless]}

    def weights(self, model: nn.Module) -> list[Weight]:
        """Every tensor on disk, one that the model uses in several places under its first name."""
        return self.stored(model)[0]

    def stored(self, model: nn.Module) -> tuple[list[Weight], dict[str, str]]:
        """`weights`, and the names under which one of them may stand on disk once more -> its name."""
        state = model.state_dict(keep_vars=True)
        weights, repeated, names = [], dict(self.aliases), {}
        for weight in self._entries(model, state):
            tensors = [id(state[name]) for name in weight.ours]
            first = names.get(tensors[0])
            if first is None:
                weights.append(weight)
            elif first != weight.name:
                repeated.setdefault(weight.name, first)
            for tensor in tensors:
                names.setdefault(tensor, weight.name)
        return weights, repeated

    def _entries(self, model: nn.Module, state: Mapping[str, Tensor]) -> Iterator[Weight]:
        for ours, theirs in self.modules.items():
            yield from tensors(state, ours, theirs, False)
        groups = model.config.num_kv_heads if self.by_group else 1
        stacks = self.stacks(model.config) if callable(self.stacks) else self.stacks
        for stack in stacks:
            for number in range(len(model.get_submodule(stack.ours))):
                for ours, theirs in stack.modules.items():
                    names = " ".join(f"{stack.ours}.{number}.{name}" for name in ours.split())
                    place = f"{stack.theirs}.{number}.{theirs}"
                    yield from listed(state, names, place, self.transposed, groups)


def listed(state: Mapping[str, Tensor], ours: str, theirs: str, *stored: Any) -> Iterator[Weight]:
    """The tensors of a module, or with a * in its name, those of a whole list of modules."""
    if "*" not in ours:
        yield from tensors(state, ours, theirs, *stored)
        return
    for number in count():
        names = [name.replace("*", str(number)) for name in (ours, theirs)]
        found = list(tensors(state, *names, *stored))
        if not found:
            return
        yield from found


def tensors(
    state: Mapping[str, Tensor], ours: str, theirs: str, transposed: bool, groups: int = 1
) -> Iterator[Weight]:
    """The tensors of a module, or of several that are stacked; or the one that has this very name."""
    names = ours.split()
    for kind in ("", ".weight", ".bias"):
        whole = tuple(name + kind for name in names)
        if whole[0] in state:
            is_matrix, own = state[whole[0]].ndim == 2, groups if len(whole) > 1 else 1
            yield Weight(theirs + kind, whole, transposed and is_matrix, own)


def option_error(name: str, value: Any, wanted: str) -> Exception:
    """The exception for an option of config.json."""
    return argument_error(ValueError, f"config.json, {name}", repr(value), wanted)


def named(name: str, value: Any, known: Mapping[str, str]) -> str:
    """Our name of one of their activations. Raises: ValueError for one that we do not have."""
    if value not in known:
        raise option_error(name, value, one_of(known))
    return known[value]


def name_of(ours: str, known: Mapping[str, str]) -> str:
    """Their name of one of ours, the first of several; ours, where they have none."""
    return next((theirs for theirs, mine in known.items() if mine == ours), ours)


# --- Dropout, which they have one number each for -------------------------------------------------

DROPOUT = {  # where it acts: the kind of module, the part of it that drops out, the name of p there
    "embedding": (
        (Embedding, SegmentedEmbedding, PatchEmbedding, AudioStem, XLNet),
        "dropout",
        "p",
    ),
    "attention": ((MultiHeadAttention, LatentAttention, TwoStreamAttention), "", "dropout"),
    "residual": (Residual, "dropout", "p"),
    "feed_forward": (FeedForward, "dropout", "p"),
}


def dropout_at(model: nn.Module, where: str) -> list[tuple[nn.Module, str]]:
    """The modules that drop out there, and the name of the probability in each."""
    kinds = [DROPOUT[name] for name in where.split()]
    return [
        (module.get_submodule(part), attribute)
        for module in model.modules() for kind, part, attribute in kinds if isinstance(module, kind)
    ]  # fmt: skip


def set_dropout(model: nn.Module, family: Family, options: Options) -> None:
    """Set every dropout as the options say, and all others to zero."""
    for module, attribute in dropout_at(model, " ".join(DROPOUT)):
        setattr(module, attribute, 0.0)
    for name, where in family.dropout.items():
        value = 0.0 if options[name] is None else options[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise option_error(name, value, "a probability in [0, 1)")
        for module, attribute in dropout_at(model, where):
            setattr(module, attribute, float(value))


def dropout_options(model: nn.Module, family: Family) -> dict[str, float]:
    """The dropout that is set, in their words."""
    found = {name: dropout_at(model, where) for name, where in family.dropout.items()}
    return {name: getattr(*places[0]) for name, places in found.items() if places}
