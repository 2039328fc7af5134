"""What is known of a family of models on disk: its options in our words, and where each weight goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..bounds import one_of
from ..errors import argument_error
from .language_model import LanguageModel, LanguageModelConfig

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
    """A tensor on disk: its name, ours that it holds, stacked, and whether it is stored (in, out)."""

    name: str
    ours: tuple[str, ...]
    transposed: bool

    def from_disk(self, tensor: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The parameters that the tensor holds, by name; like: parameters of their shapes."""
        tensor = tensor.T if self.transposed else tensor
        rows = [like[name].shape[0] for name in self.ours]
        pieces = tensor.contiguous().split(rows)
        pieces = pieces if len(pieces) == 1 else [piece.clone() for piece in pieces]
        return dict(zip(self.ours, pieces, strict=True))

    def to_disk(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """The way back."""
        tensor = torch.cat([parameters[name].detach() for name in self.ours])
        return (tensor.T if self.transposed else tensor).contiguous()


@dataclass(frozen=True)
class Family:
    """How one `model_type` of transformers is read and written.

    defaults: the options that matter, with transformers' values where config.json has none. fixed:
        options of which this package has some values only. ignored: options that change no number,
        besides IGNORED.
    read: all options that matter -> our configuration. write: the way back.
    dropout: option -> where it acts: "embedding", "attention" or "residual".
    modules, layer: our module -> theirs, in the model and in each layer; several of ours in one key
        are stacked in theirs. transposed: whether matrices in layers are stored (in, out).
    leftovers: a pattern of tensors in old files that are no weights.
    """

    model_type: str
    architecture: str
    defaults: Options
    read: Callable[[Options], LanguageModelConfig]
    write: Callable[[LanguageModelConfig], dict[str, Any]]
    dropout: Mapping[str, str]
    modules: Mapping[str, str]
    layers: str  # the list of their layers
    layer: Mapping[str, str]
    fixed: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    transposed: bool = False
    leftovers: str = r"(?!)"  # nothing
    freezes_padding: bool = False  # the embedding of pad_token_id gets no gradient

    @property
    def prefix(self) -> str:
        """What the names of all modules but the output layer begin with."""
        return self.layers.partition(".")[0] + "."

    def options(self, theirs: Options) -> dict[str, Any]:
        """All options that matter. Raises: ValueError for one that is unknown or not supported."""
        fixed = FIXED | dict(self.fixed) | {"architectures": (None, [self.architecture])}
        for name, value in theirs.items():
            if name in fixed and value not in fixed[name]:
                raise option_error(name, value, one_of(fixed[name]))
            if name not in {*fixed, *self.defaults, *self.dropout, *self.ignored, *IGNORED}:
                wanted = f"no such option of {self.model_type}, or one that changes no number"
                raise option_error(name, value, wanted)
        known = {*self.defaults, *self.dropout}
        dropout = dict.fromkeys(self.dropout, 0.0)
        return dropout | dict(self.defaults) | {n: v for n, v in theirs.items() if n in known}

    def weights(self, model: LanguageModel) -> Iterator[Weight]:
        """Every tensor on disk; an output layer tied to the embedding has none."""
        tied = {"output"} if model.config.tied_output else set()
        for ours, theirs in self.modules.items():
            if ours not in tied:
                yield from _weights(model, ours, theirs, False)
        for number in range(model.config.num_layers):
            for ours, theirs in self.layer.items():
                names = " ".join(f"layers.{number}.{name}" for name in ours.split())
                yield from _weights(
                    model, names, f"{self.layers}.{number}.{theirs}", self.transposed
                )


def _weights(model: nn.Module, ours: str, theirs: str, transposed: bool) -> Iterator[Weight]:
    first = model.get_submodule(ours.split()[0])
    for kind, parameter in first.named_parameters(recurse=False):
        names = tuple(f"{name}.{kind}" for name in ours.split())
        yield Weight(f"{theirs}.{kind}", names, transposed and parameter.ndim == 2)


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


def dropout_at(model: LanguageModel, where: str) -> list[tuple[nn.Module, str]]:
    """The modules that drop out there, and the name of the probability in each."""
    if where == "embedding":
        return [(model.embedding.dropout, "p")]
    if where == "attention":
        return [(layer.attention, "dropout") for layer in model.layers]
    return [(each.dropout, "p") for layer in model.layers for each in layer.residuals]


def set_dropout(model: LanguageModel, family: Family, options: Options) -> None:
    """Set every dropout as the options say; the feed-forward network's hidden features have none."""
    for name, where in family.dropout.items():
        value = 0.0 if options[name] is None else options[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise option_error(name, value, "a probability in [0, 1)")
        for module, attribute in dropout_at(model, where):
            setattr(module, attribute, float(value))


def dropout_options(model: LanguageModel, family: Family) -> dict[str, float]:
    """The dropout that is set, in their words."""
    found = {name: dropout_at(model, where)[0] for name, where in family.dropout.items()}
    return {name: getattr(module, attribute) for name, (module, attribute) in found.items()}
